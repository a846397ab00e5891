"""The cache folder for results that take long to compute, and the conditions under which it is trusted.

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
_MIN_SECONDS = "0.1"
_JAX_ENDINGS = ("-cache", "-atime")  # how JAX names what it keeps
# The size of cached programs, in bytes, above which the least recently used ones are removed until half is left. JAX's
# own limit fails on a folder that was filled without it.
_MAX_BYTES = 1 << 28


def folder() -> Path | None:
    """Return where results are kept; None where they are not."""
    chosen = os.environ.get("DPKERNELS_CACHE")
    if chosen is not None:
        return Path(chosen) if chosen else None
    usual = user_cache_path("dpkernels", appauthor=False)
    return usual if usual.is_absolute() else None  # without a home there is no folder


def keep_programs(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let JAX cache its compiled programs, unless the user has configured this; call it before JAX is imported.

    A compiled program is executed as it is read, so a user who can write to the folder can execute code. Therefore the
    folder must belong to this user, and no other user may enter it.
    """
    cache = folder()
    if cache is None or "JAX_COMPILATION_CACHE_DIR" in environment or "JAX_ENABLE_COMPILATION_CACHE" in environment:
        return
    programs = cache / "programs"
    if _is_ours_alone(programs):
        trim(programs, _MAX_BYTES)
        environment["JAX_COMPILATION_CACHE_DIR"] = str(programs)
        environment.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", _MIN_SECONDS)


def trim(programs: Path, limit: int) -> None:
    """Remove the least recently used programs of a folder of more than ``most`` bytes, until half of that is left.

    Only files with JAX's names are removed. JAX compiles one again that another process misses.
    """
    with suppress(OSError), os.scandir(programs) as entries:
        cached = [
            entry for entry in entries if entry.name.endswith(_JAX_ENDINGS) and entry.is_file(follow_symlinks=False)
        ]
        files = [(entry, entry.stat(follow_symlinks=False)) for entry in cached]
        size = sum(status.st_size for _, status in files)
        if size <= limit:
            return
        # When it was read is written once a day at the least, on many systems.
        for entry, status in sorted(files, key=lambda item: max(item[1].st_atime, item[1].st_mtime)):
            if size <= limit // 2:
                return
            with suppress(OSError):
                Path(entry).unlink(missing_ok=True)
            size -= status.st_size


def _is_ours_alone(path: Path) -> bool:
    """Return whether the folder, made if necessary, belongs to this user alone and cannot be replaced by another user.

    A user who can write to a parent folder can rename the folder, except in folders like /tmp, where only owners can.
    """
    if not hasattr(os, "getuid") or not path.is_absolute():  # On Windows, file modes carry no information.
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        status, parent_statuses = path.lstat(), [parent.lstat() for parent in path.parents]
    except OSError:
        return False
    user = os.getuid()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == user and not status.st_mode & 0o077
    return is_ours and all(
        stat.S_ISDIR(parent.st_mode)  # no link
        and parent.st_uid in (0, user)
        and (not parent.st_mode & 0o022 or bool(parent.st_mode & stat.S_ISVTX))
        for parent in parent_statuses
    )
