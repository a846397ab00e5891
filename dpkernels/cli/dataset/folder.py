"""The folder of a release of many files. It becomes a release with its sidecar, which is put last.

On this machine's file systems a folder is made beside OUT under a hidden name, and renamed to OUT when it is complete.
A store of objects has no renames; there the parts get names that only this run uses, and a file ``_NOT_A_RELEASE`` lies
beside them until the sidecar is there.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from tempfile import TemporaryFile
from typing import Self

import click
from pyarrow import fs

from dpkernels.cli.files.places import Place
from dpkernels.cli.interrupts import finished, independent_of_reports, stop_if_asked, uninterrupted
from dpkernels.cli.release.output import ClaimedOutput, check_parent
from dpkernels.staging import naming, place_folder, replaced, staged_folder

SIDECAR, NOTE = "_release.json", "_NOT_A_RELEASE"
_OURS = re.compile(r"part-\d+-[0-9a-f]{16}\.[a-z.]+|" + NOTE)  # in a store
_NOTE = "A run of dpkernels is writing here, or was killed: these files are no release. It has the number "


class LocalFolder(ClaimedOutput):
    """A folder on a file system of this machine, or one that all machines share; it goes to every worker.

    ``like`` is a folder whose permissions it gets at most.
    """

    def __init__(self, target: Path, like: Path | None) -> None:
        super().__init__(target)
        self._like, self.staging = like, Path()  # the hidden folder, once it is made

    def named(self, number: int, parts: int, suffix: str) -> str:
        return f"part-{number:0{len(str(parts - 1))}}{suffix}"

    def _make(self, held: ExitStack) -> None:
        check_local(self.target)
        self.staging = held.enter_context(staged_folder(self.target))
        (self.staging / NOTE).write_text(_NOTE + self.staging.name + "\n")

    def part(self, name: str, like: Path | None) -> AbstractContextManager[BufferedIOBase]:
        """Yield a new file that gets its name at once when it is complete."""
        return replaced(self.staging / name, like=like)

    def sizes(self) -> dict[str, int]:
        sizes_by_name = dict[str, int]()
        for path in self.staging.iterdir():
            with suppress(FileNotFoundError):  # of a second run of a part, which has just got its name
                sizes_by_name[path.name] = path.stat().st_size
        return sizes_by_name

    def withdraw(self) -> bool:
        if not self.visible:
            shutil.rmtree(self.staging, ignore_errors=True)
        return not self.visible and not os.path.lexists(self.staging)

    def commit(self, sidecar: str, names: Sequence[str] = ()) -> None:
        with naming(self.target), replaced(self.staging / SIDECAR, like=self.staging / names[0]) as file:
            file.write(sidecar.encode())
        for name in self.sizes().keys() - {*names, SIDECAR}:
            (self.staging / name).unlink(missing_ok=True)  # what killed workers had begun, and the note
        stop_if_asked()
        with uninterrupted():
            with independent_of_reports():
                check_local(self.target)
            self.visible = True
            place_folder(self.staging, self.target, self._like)
            finished()


@dataclass
class StoreFolder:
    """The same in a store of objects, where a put is atomic and there are no renames."""

    target: Place  # OUT
    # The run's number is in the names of its parts, since workers of an earlier run may still put theirs.
    number: str = ""

    def named(self, number: int, parts: int, suffix: str) -> str:
        return f"part-{number:0{len(str(parts - 1))}}-{self.number}{suffix}"

    @contextmanager
    def run(self) -> Iterator[Self]:
        self.number = secrets.token_hex(8)
        self._clear()
        self._put(NOTE, _NOTE + self.number + "\n")
        try:
            yield self
        except BaseException:
            with uninterrupted(), suppress(OSError, click.UsageError):  # report the failure, not the rest
                if self._note() == self.number:
                    self._clear()
            raise

    @contextmanager
    def part(self, name: str, like: Path | None) -> Iterator[BufferedIOBase]:
        with TemporaryFile() as file:  # without a name: it goes with the worker, however that ends
            yield file
            file.seek(0)
            with self.target.child(name).write() as stored:
                shutil.copyfileobj(file, stored, 1 << 22)

    def sizes(self) -> dict[str, int]:
        selected = fs.FileSelector(self.target.path, allow_not_found=True)
        return {entry.base_name: entry.size for entry in self.target.system.get_file_info(selected)}

    def check_space(self, size: int) -> None:
        """Assume that a store has room."""

    def withdraw(self) -> bool:
        return False  # a store shows each part as soon as it is put, and may keep its versions

    def commit(self, sidecar: str, names: Sequence[str]) -> None:
        if self._note() != self.number:
            raise OSError(f"{self.target}: another run has begun to write here")
        others = self.sizes().keys() - {*names, NOTE}
        if strange := sorted(name for name in others if not _OURS.fullmatch(name)):
            raise OSError(f"{self.target}: {strange[0]} has been put there meanwhile; there is no release")
        for name in others:  # what workers of a dead run have put since this one began
            self._delete(name)
        stop_if_asked()
        with uninterrupted():
            self._put(SIDECAR, sidecar)
            self._delete(NOTE)
            finished()

    def _put(self, name: str, text: str) -> None:
        with self.target.child(name).write() as file:
            file.write(text.encode())

    def _delete(self, name: str) -> None:
        self.target.system.delete_file(self.target.child(name).path)

    def _note(self) -> str:
        with self.target.child(NOTE).read() as file:
            return file.read().decode().split()[-1]

    def _clear(self) -> None:
        """Remove the files of a killed run, after checking that all files are of such a run."""
        names = list(self.sizes())
        strange = [name for name in names if not _OURS.fullmatch(name)]
        if strange or (names and NOTE not in names):
            raise click.UsageError(f"OUT: {self.target} is not empty, it has {(strange or names)[0]}")
        for name in sorted(names, key=NOTE.__eq__):  # the note must go last
            self._delete(name)


Folder = LocalFolder | StoreFolder


def folder(text: str, like: Path | None) -> Folder:
    """Return the folder OUT; click.UsageError if it cannot be made there, or something is there."""
    place = Place.of(text)
    if place.local is None:
        return StoreFolder(place)
    check_local(place.local)
    return LocalFolder(place.local, like)


def check_local(target: Path) -> None:
    """Refuse a folder whose parent does not exist or cannot be written, or that exists and is not an empty folder."""
    check_parent(target)
    if target.is_symlink() or (os.path.lexists(target) and not target.is_dir()):
        raise click.UsageError(f"OUT: {target} is not a folder; a dataset is released into a folder")
    if target.is_dir() and any(target.iterdir()):
        raise click.UsageError(f"OUT: {target} is not empty; name a new folder for a release of many files")
