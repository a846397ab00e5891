"""Locations of files: local names and patterns, and URIs of the file systems that Arrow supports.

Unlike with ``glob``, a folder that cannot be read is an error, and broken links are returned to the caller.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from tempfile import TemporaryFile
from urllib.parse import unquote

import click
import pyarrow as pa
from pyarrow import fs

from dpkernels.cli.errors import error_text
from dpkernels.cli.text import display_name

# Kinds of a file, in words that follow its name in errors.
FILE = "is a file"
FOLDER = "is a folder"
GONE = "is gone"
_KINDS = {stat.S_IFREG: FILE, stat.S_IFDIR: FOLDER, stat.S_IFIFO: "is a pipe", stat.S_IFSOCK: "is a socket"}
_KINDS |= dict.fromkeys((stat.S_IFCHR, stat.S_IFBLK), "is a device")


def file_kind(path: Path) -> str:
    """Return the kind of file that a name is, in words: ``FILE`` and ``FOLDER`` also for links that lead to one."""
    try:
        return _KINDS.get(stat.S_IFMT(path.stat().st_mode), "is not a file")
    except (FileNotFoundError, NotADirectoryError):
        return "is a link that leads nowhere" if path.is_symlink() else GONE
    except OSError as error:  # a loop of links, a folder that must not be looked into
        return f"cannot be read ({error.strerror})"


def _matches(path: Path, patterns: tuple[str, ...], ancestors: tuple[tuple[int, int], ...] = ()) -> Iterator[Path]:
    """Yield what matches the parts of a pattern in a folder; a name that begins with a dot needs a dot.

    ``above`` identifies the folders that ``**`` has led through. A folder that leads into itself is refused, and so is
    a link that leads nowhere where a folder may be. A folder that cannot be read is an OSError.
    """
    if not patterns:
        if os.path.lexists(path):
            yield path
        return
    if not _is_folder(path):
        return
    pattern, remaining = patterns[0], patterns[1:]
    if pattern == "**":
        identity = path.stat().st_dev, path.stat().st_ino
        if identity in ancestors:
            raise click.UsageError(f"IN: {display_name(str(path))} leads into itself, so a pattern with ** never ends")
        if remaining:
            yield from _matches(path, remaining, (*ancestors, identity))
        for child in sorted(path.iterdir()):
            if child.name[0] != ".":
                if _is_folder(child):
                    yield from _matches(child, patterns, (*ancestors, identity))
                elif not remaining:
                    yield child
    elif glob.has_magic(pattern):
        for child in sorted(path.iterdir()):
            if fnmatch.fnmatchcase(child.name, pattern) and (pattern[0] == "." or child.name[0] != "."):
                yield from _matches(child, remaining, ancestors)
    else:
        yield from _matches(path / pattern, remaining, ancestors)


def _is_folder(path: Path) -> bool:
    """Return whether a name on the way is a folder; refuse it where that cannot be known."""
    state = file_kind(path)
    if state not in (FOLDER, GONE, *_KINDS.values()):
        problem = f"{state}; remove it, because the pattern may match files in it"
        raise click.UsageError(f"IN: {display_name(str(path))} {problem}")
    return state == FOLDER


# What Arrow opens. An error does not quote the URI, which may have a key.
_SCHEMES = ("file", "s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")

_RETRY_SECONDS = 30  # for a store that does not answer

# Keys in an URI would be in the release's description, which engines may spill to disks.
_SECRETS = re.compile(r"[?&][^=&]*(key|secret|token|pass|pwd|sig)[^=&]*=|://[^/?]*@", re.IGNORECASE)


@dataclass(frozen=True)
class Location:
    """A file or folder: its path in a file system, and that one's URI as it was given, empty for this machine's."""

    path: str
    uri: str = ""

    @classmethod
    def parse(cls, text: str) -> Location:
        """Return the place of an argument; click.UsageError for an URI that Arrow does not know, or with keys in it."""
        if "://" not in text:
            return cls(str(Path(text).absolute()))
        if (scheme := text.partition("://")[0].lower()) not in _SCHEMES:
            raise click.UsageError(
                f"URI: {display_name(scheme)}:// is no file system that can be read and written; it is one of "
                f"{', '.join(_SCHEMES)}, or a name on this machine without ://"
            )
        if _SECRETS.search(unquote(text)):
            raise click.UsageError("URI: contains a key; give keys to every machine in its own settings instead")
        try:
            system, path = _from_uri(text)
        except (ValueError, OSError, NotImplementedError) as error:
            raise click.UsageError(f"{text}: {error_text(error)}") from error
        return cls(path, "" if isinstance(system, fs.LocalFileSystem) else text)

    def __str__(self) -> str:
        return f"{self.uri.partition('://')[0]}://{self.path}" if self.uri else self.path

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

    @property
    def local(self) -> Path | None:
        return None if self.uri else Path(self.path)

    @property
    def system(self) -> fs.FileSystem:
        """Return its file system; every machine that gets the place opens its own."""
        return _system(self.uri)

    def child(self, name: str) -> Location:
        return Location(f"{self.path.rstrip('/')}/{name}", self.uri)

    def opened(self) -> pa.NativeFile:
        """Return the file, open for random access."""
        return self.system.open_input_file(self.path)

    def read(self) -> pa.NativeFile:
        """Return the file's bytes as they are: Arrow would unpack one whose name ends in .gz."""
        return self.system.open_input_stream(self.path, compression=None)

    def write(self) -> pa.NativeFile:
        return self.system.open_output_stream(self.path, compression=None)

    def stamp(self) -> tuple[int, int, str]:
        """Return size, time of modification in ns, and ETag, if it has these; another stamp means another file."""
        info = self.system.get_file_info(self.path)
        if info.type != fs.FileType.File:
            raise FileNotFoundError(2, "No such file", str(self))
        if not self.uri:
            return info.size, info.mtime_ns, ""
        with self.opened() as file:
            tag = (file.metadata() or {}).get("ETag", b"")
        return info.size, info.mtime_ns or 0, tag.decode()

    @contextmanager
    def at_hand(self) -> Iterator[Path]:
        """Yield the file, or a copy of it without a name, which disappears with the process however that ends."""
        if self.local is not None:
            yield self.local
            return
        with TemporaryFile() as copy:
            with self.read() as source:
                shutil.copyfileobj(source, copy, 1 << 22)
            copy.flush()
            yield Path(f"/dev/fd/{copy.fileno()}")


@lru_cache(maxsize=64)
def _system(uri: str) -> fs.FileSystem:
    return _from_uri(uri)[0] if uri else fs.LocalFileSystem()


def _from_uri(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of an URI, and the path in it. A store that is out of reach is refused in a minute."""
    scheme, _, remainder = uri.partition("://")
    if (
        scheme.lower() in ("gs", "gcs") and "retry_limit_seconds=" not in remainder
    ):  # Else it takes a quarter of an hour.
        uri += f"{'&' if '?' in remainder else '?'}retry_limit_seconds={_RETRY_SECONDS}"
    return fs.FileSystem.from_uri(uri)


@dataclass(frozen=True)
class FoundFiles:
    """The files of a dataset."""

    files: list[Location]  # in the order of their names, which is that of the rows
    folder: Location | None = None  # the folder that they are all files of; None for a file or a pattern
    # Names in the folder that are not data, as they begin with a dot or an underscore; folders that match a pattern.
    skipped: tuple[str, ...] = ()


def find(text: str) -> FoundFiles:
    """Find the files of a dataset: a file, a folder, or a pattern with ``*``, ``**``, ``?`` and ``[]``.

    An URI may have ``*`` and ``**`` alone. In folders, names that begin with a dot or an underscore are not data. A
    click.UsageError says that there are no files, or names a folder inside the folder or what is not a readable file: a
    link that leads nowhere or to itself, a pipe, a socket, a device.
    """
    if "://" in text and "*" in text:
        root, expression = _stored(text)
        entries = root.system.get_file_info(fs.FileSelector(root.path, recursive=True))
        files = FoundFiles([Location(e.path, root.uri) for e in entries if e.is_file and expression.fullmatch(e.path)])
    elif "://" in text or Path(text).exists():
        files = _list_folder(Location.parse(text), text)
    else:
        files = _expanded(text)
    if not files.files:
        raise click.UsageError(f"IN: {text} names no file")
    return replace(files, files=sorted(set(files.files), key=lambda file: file.path))


def _list_folder(location: Location, text: str) -> FoundFiles:
    info = location.system.get_file_info(location.path)
    if info.type == fs.FileType.File:
        return FoundFiles([location])
    if info.type != fs.FileType.Directory:
        raise click.UsageError(f"IN: {text} does not exist")
    if location.local is not None:
        names = {path.name: file_kind(path) for path in location.local.iterdir()}
    else:
        file_kinds = {fs.FileType.File: FILE, fs.FileType.Directory: FOLDER}
        entries = location.system.get_file_info(fs.FileSelector(location.path))
        names = {entry.base_name: file_kinds.get(entry.type, "is not a file") for entry in entries}
    data = sorted(name for name in names if name[:1] not in "._")
    for name in data:
        if names[name] == FOLDER:
            raise click.UsageError(
                f"IN: {text} contains the folder {display_name(name)}; use a pattern to name files in folders"
            )
        if names[name] != FILE:
            raise click.UsageError(f"IN: {text} contains {display_name(name)}, which {names[name]}; remove it")
    return FoundFiles([location.child(name) for name in data], location, tuple(sorted(names.keys() - set(data))))


def _expanded(pattern: str) -> FoundFiles:
    patterns = Path(pattern).parts
    literal_count = next((i for i, name in enumerate(patterns) if glob.has_magic(name)), len(patterns))
    files, folders = list[Location](), list[str]()
    for path in _matches(Path(*patterns[:literal_count]), patterns[literal_count:]):
        if (state := file_kind(path)) == FOLDER:
            folders.append(str(path))
        elif state == FILE:
            files.append(Location.parse(str(path)))
        else:
            raise click.UsageError(f"IN: {pattern} matches {display_name(str(path))}, which {state}; remove it")
    # A pattern with ** matches folders for the files in them.
    return FoundFiles(files, None, () if "**" in patterns else tuple(sorted(folders)))


def matches_pattern(pattern: str, folder: Location, name: str) -> bool:
    """Return whether a file of this name in a folder, which may not exist yet, would match a pattern."""
    path = folder.child(name).path
    if "://" not in pattern:
        return not folder.uri and _matches_names(Path(os.path.abspath(pattern)).parts, Path(path).parts)  # noqa: PTH100
    if "*" not in pattern:
        return False
    location, expression = _stored(pattern)
    return location.system == folder.system and expression.fullmatch(path) is not None


def _matches_names(patterns: tuple[str, ...], names: tuple[str, ...]) -> bool:
    if not patterns:
        return not names
    if patterns[0] == "**":
        return any(_matches_names(patterns[1:], names[i:]) for i in range(len(names) + 1))
    return bool(names) and fnmatch.fnmatchcase(names[0], patterns[0]) and _matches_names(patterns[1:], names[1:])


def _stored(text: str) -> tuple[Location, re.Pattern[str]]:
    """Return the folder with all matches of a pattern's URI, and the pattern as a regular expression of paths."""
    pattern, mark, options = text.partition("?")
    base, _, remainder = pattern.partition("*")
    base, _, begun = base.rpartition("/")
    location = Location.parse(base + mark + options)
    expression = re.escape(begun + "*" + remainder).replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
    return location, re.compile(re.escape(location.path.rstrip("/") + "/") + expression)
