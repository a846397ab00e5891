"""Where datasets are: files of this machine, or of any file system that Arrow knows by its URI."""

from __future__ import annotations

import glob
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from tempfile import TemporaryFile
from typing import Any
from urllib.parse import unquote

import click
from pyarrow import fs

# Keys in an URI would be in the release's description, which engines may spill to disks.
_SECRETS = re.compile(r"[?&][^=&]*(key|secret|token|pass|pwd|sig)[^=&]*=|://[^/?]*@", re.IGNORECASE)


@dataclass(frozen=True)
class Place:
    """A file or folder.

    Attributes:
        path: in its file system.
        uri: of the file system, as it was given; empty for this machine's.
    """

    path: str
    uri: str = ""

    @classmethod
    def of(cls, text: str) -> Place:
        """What an argument names.

        Raises:
            click.UsageError: an URI that Arrow does not know, or with keys in it.
        """
        if "://" not in text:
            return cls(str(Path(text).absolute()))
        if _SECRETS.search(unquote(text)):
            raise click.UsageError("URI: has keys in it; keep them where every machine finds its own")
        try:
            system, path = fs.FileSystem.from_uri(text)
        except (ValueError, OSError, NotImplementedError) as error:
            raise click.UsageError(f"{text}: {error}") from error
        return cls(path, "" if isinstance(system, fs.LocalFileSystem) else text)

    def __str__(self) -> str:
        return f"{self.uri.partition('://')[0]}://{self.path}" if self.uri else self.path

    @property
    def name(self) -> str:
        """The last part of its path."""
        return PurePosixPath(self.path).name

    @property
    def local(self) -> Path | None:
        """Its path on this machine, if it is there."""
        return None if self.uri else Path(self.path)

    @property
    def system(self) -> Any:
        """Its file system; machines that are given the place open their own."""
        return _system(self.uri)

    def within(self, name: str) -> Place:
        """A file in this folder."""
        return Place(f"{self.path.rstrip('/')}/{name}", self.uri)

    def opened(self) -> Any:
        """The file, for reading anywhere in it."""
        return self.system.open_input_file(self.path)

    def read(self) -> Any:
        """The file's bytes as they are: Arrow would unpack one whose name ends in .gz."""
        return self.system.open_input_stream(self.path, compression=None)

    def write(self) -> Any:
        """A new file, of the bytes that it is given."""
        return self.system.open_output_stream(self.path, compression=None)

    def stamp(self) -> tuple[int, int, str]:
        """Size, time of modification in ns, and ETag where there are any: another one, another file.

        Raises:
            FileNotFoundError: it is not a file.
        """
        found = self.system.get_file_info(self.path)
        if found.type != fs.FileType.File:
            raise FileNotFoundError(2, "No such file", str(self))
        if not self.uri:
            return found.size, found.mtime_ns, ""
        with self.opened() as file:
            tag = (file.metadata() or {}).get("ETag", b"")
        return found.size, found.mtime_ns or 0, tag.decode()

    @contextmanager
    def at_hand(self) -> Iterator[Path]:
        """The file on this machine: itself, or a copy without a name, which goes with the process however that ends."""
        if self.local is not None:
            yield self.local
            return
        with TemporaryFile() as copy:
            with self.read() as source:
                shutil.copyfileobj(source, copy, 1 << 22)
            copy.flush()
            yield Path(f"/dev/fd/{copy.fileno()}")


@lru_cache(maxsize=64)
def _system(uri: str) -> Any:
    return fs.FileSystem.from_uri(uri)[0] if uri else fs.LocalFileSystem()


def files(text: str) -> list[Place]:
    """The files of a dataset in the order of their names, which is that of its rows.

    Args:
        text: a file, a folder, or a pattern with ``*``, ``**``, ``?`` and ``[]``; of an URI ``*`` and ``**`` alone.
            In folders, names that begin with a dot or an underscore are not data.

    Raises:
        click.UsageError: there are none, or folders inside the folder.
    """
    if "://" not in text and not Path(text).exists():
        found = [Place.of(name) for name in glob.glob(text, recursive=True) if Path(name).is_file()]  # noqa: PTH207
    elif "://" in text and "*" in text:
        found = _matching(text)
    else:
        found = _inside(Place.of(text), text)
    if not found:
        raise click.UsageError(f"IN: {text} names no file")
    return sorted(set(found), key=lambda one: one.path)


def _inside(place: Place, text: str) -> list[Place]:
    info = place.system.get_file_info(place.path)
    if info.type == fs.FileType.File:
        return [place]
    if info.type != fs.FileType.Directory:
        raise click.UsageError(f"IN: {text} does not exist")
    entries = [one for one in place.system.get_file_info(fs.FileSelector(place.path)) if one.base_name[:1] not in "._"]
    for entry in entries:
        if entry.type == fs.FileType.Directory:
            raise click.UsageError(f"IN: {text} has a folder in it, {entry.base_name}; a pattern says which files")
    return [Place(one.path, place.uri) for one in entries if one.type == fs.FileType.File]


def _matching(text: str) -> list[Place]:
    """The files of a store whose paths match a pattern."""
    pattern, mark, options = text.partition("?")
    base, _, rest = pattern.partition("*")
    base, _, begun = base.rpartition("/")
    place = Place.of(base + mark + options)
    wanted = re.escape(begun + "*" + rest).replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
    whole = re.compile(re.escape(place.path.rstrip("/") + "/") + wanted)
    entries = place.system.get_file_info(fs.FileSelector(place.path, recursive=True))
    return [Place(one.path, place.uri) for one in entries if one.is_file and whole.fullmatch(one.path)]
