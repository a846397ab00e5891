"""Where what took long to compute is kept between runs, and when that may be trusted.

The folder is ``$DPKERNELS_CACHE``. By default it is the folder that the system has for a user's caches, such as
``~/.cache/dpkernels`` on Linux. An empty ``DPKERNELS_CACHE`` turns the cache off.
"""

from __future__ import annotations

import os
import stat
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

from platformdirs import user_cache_path

# Programs that compile in less time are not kept: reading them takes about as long.
_LEAST_SECONDS = "0.1"
_OWN = ("-cache", "-atime")  # how JAX names what it keeps
# Bytes of kept programs, above which the longest unused are removed until half is left. JAX's own limit fails on a
# folder that was filled without it.
_MOST_BYTES = 1 << 28


def folder() -> Path | None:
    """Return where results are kept; None where they are not."""
    chosen = os.environ.get("DPKERNELS_CACHE")
    if chosen is not None:
        return Path(chosen) if chosen else None
    usual = user_cache_path("dpkernels", appauthor=False)
    return usual if usual.is_absolute() else None  # without a home there is no folder


def keep_programs(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let JAX cache its compiled programs, unless the user has configured this; call it before JAX is imported.

    A compiled program is run as it is read, so whoever can write where it is kept decides what runs: only a folder of
    this user's own, which no other can enter, is used.

    Args:
        environment: of this process.
    """
    place = folder()
    if place is None or "JAX_COMPILATION_CACHE_DIR" in environment or "JAX_ENABLE_COMPILATION_CACHE" in environment:
        return
    programs = place / "programs"
    if _is_ours_alone(programs):
        trim(programs, _MOST_BYTES)
        environment["JAX_COMPILATION_CACHE_DIR"] = str(programs)
        environment.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", _LEAST_SECONDS)


def trim(programs: Path, most: int) -> None:
    """Remove the programs unused for longest of a folder that holds too many, until they take half of that.

    Files of other names than JAX's are not touched. Another process may remove some at the same time, or read one: JAX
    compiles again what it does not find.

    Args:
        programs: the folder.
        most: how many bytes it may hold.
    """
    with suppress(OSError), os.scandir(programs) as entries:
        own = [entry for entry in entries if entry.name.endswith(_OWN) and entry.is_file(follow_symlinks=False)]
        files = [(entry, entry.stat(follow_symlinks=False)) for entry in own]
        size = sum(found.st_size for _, found in files)
        if size <= most:
            return
        # When it was read is written once a day at the least, on many systems.
        for entry, found in sorted(files, key=lambda one: max(one[1].st_atime, one[1].st_mtime)):
            if size <= most // 2:
                return
            with suppress(OSError):
                Path(entry).unlink(missing_ok=True)
            size -= found.st_size


def _is_ours_alone(place: Path) -> bool:
    """Return whether the folder, made if need be, is this user's and nobody else's, nor can be exchanged for another's.

    Whoever may write in a folder above can rename it away, but for folders such as /tmp, where only owners can.
    """
    if not hasattr(os, "getuid") or not place.is_absolute():  # Windows, where a mode says nothing.
        return False
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir(mode=0o700, exist_ok=True)
        found, above = place.lstat(), [one.lstat() for one in place.parents]
    except OSError:
        return False
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return ours and all(map(_is_safe, above))


def _is_safe(above: os.stat_result) -> bool:
    """Return whether nobody but this user and root can rename what is in a folder; a link is none."""
    shared = above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX
    return stat.S_ISDIR(above.st_mode) and above.st_uid in (0, os.getuid()) and not shared
