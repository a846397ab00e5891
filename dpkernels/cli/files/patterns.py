"""What is in the folders of this machine: patterns of names, and which names are files that can be read.

Unlike ``glob``, nothing is left out in silence: a folder that cannot be read is an error, and whoever asks sees links
that lead nowhere.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import click

from dpkernels.cli.text import shown

FILE, FOLDER, GONE = "is a file", "is a folder", "is gone"
_KINDS = {
    stat.S_IFREG: FILE,
    stat.S_IFDIR: FOLDER,
    stat.S_IFIFO: "is a pipe",
    stat.S_IFSOCK: "is a socket",
    stat.S_IFCHR: "is a device",
    stat.S_IFBLK: "is a device",
}


def kind(path: Path) -> str:
    """Return what a name is, in words: ``FILE`` and ``FOLDER`` also for links that lead to one."""
    try:
        return _KINDS.get(stat.S_IFMT(path.stat().st_mode), "is not a file")
    except (FileNotFoundError, NotADirectoryError):
        return "is a link that leads nowhere" if path.is_symlink() else GONE
    except OSError as error:  # a loop of links, a folder that must not be looked into
        return f"cannot be read ({error.strerror})"


def expanded(pattern: str) -> Iterator[Path]:
    """Yield what matches a pattern with ``*``, ``**``, ``?`` and ``[]``; a name that begins with a dot needs a dot.

    Raises:
        click.UsageError: a folder on the way leads into itself, or a link where a folder may be leads nowhere.
        OSError: a folder on the way cannot be read.
    """
    parts = Path(pattern).parts
    first = next((at for at, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    yield from _matches(Path(*parts[:first]), parts[first:], ())


def matches(pattern: str, path: Path) -> bool:
    """Return whether a path, which need not exist, matches a pattern; links are not followed."""
    return _match(Path(os.path.abspath(pattern)).parts, path.parts)  # noqa: PTH100


def _match(parts: tuple[str, ...], names: tuple[str, ...]) -> bool:
    if not parts:
        return not names
    if parts[0] == "**":
        return any(_match(parts[1:], names[at:]) for at in range(len(names) + 1))
    return bool(names) and fnmatch.fnmatchcase(names[0], parts[0]) and _match(parts[1:], names[1:])


def _matches(path: Path, parts: tuple[str, ...], above: tuple[tuple[int, int], ...]) -> Iterator[Path]:
    """What matches the parts of a pattern in a folder."""
    if not parts:
        if os.path.lexists(path):
            yield path
        return
    if not _is_folder(path):
        return
    part, rest = parts[0], parts[1:]
    if not glob.has_magic(part):
        yield from _matches(path / part, rest, above)
    elif part == "**":
        yield from _below(path, rest, above)
    else:
        for name in _names(path):
            if fnmatch.fnmatchcase(name, part) and (part[0] == "." or name[0] != "."):
                yield from _matches(path / name, rest, above)


def _below(path: Path, rest: tuple[str, ...], above: tuple[tuple[int, int], ...]) -> Iterator[Path]:
    """What matches the rest of a pattern in a folder and in all folders below it."""
    own = path.stat()
    if (own.st_dev, own.st_ino) in above:
        raise click.UsageError(f"IN: {shown(str(path))} leads into itself, so a pattern with ** never ends")
    above = (*above, (own.st_dev, own.st_ino))
    if rest:
        yield from _matches(path, rest, above)
    for name in _names(path):
        if name[0] != ".":
            if _is_folder(path / name):
                yield from _below(path / name, rest, above)
            elif not rest:
                yield path / name


def _is_folder(path: Path) -> bool:
    """Whether a name on the way is a folder, refused where that cannot be known."""
    what = kind(path)
    if what not in (FOLDER, GONE, *_KINDS.values()):
        raise click.UsageError(f"IN: {shown(str(path))} {what}, and a pattern may mean files in it; remove it")
    return what == FOLDER


def _names(path: Path) -> list[str]:
    return sorted(one.name for one in path.iterdir())
