"""The folder of a release of many files. It is a valid release once the sidecar is written, which is the last step.

In a local file system, the folder is created next to OUT under a hidden name, and renamed to OUT when it is complete.
An object store has no renames. There the parts get names that only this run uses, and a file ``_NOT_A_RELEASE`` marks
them as incomplete until the sidecar is written.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self

import click
from pyarrow import fs

from dpkernels.bounded_json import JsonObject, parse_json, read_text
from dpkernels.cli.files.locations import Location
from dpkernels.cli.interrupts import (
    finished,
    independent_of_reports,
    is_independent,
    raise_if_interrupted,
    uninterrupted,
)
from dpkernels.cli.perturb.output import ClaimedOutput, check_parent, digest, report_swept
from dpkernels.staging import leftovers, naming, place_folder, renamed_folder, replaced, staged_folder, sweep, to_disk

SIDECAR = "_release.json"  # the certificates of a whole release
NOTE = "_NOT_A_RELEASE"  # lies in a folder, or beside the parts in a store, until the release is complete
JOURNAL = "_journal.jsonl"  # which parts of a local release are complete
_OURS = re.compile(r"part-\d+-[0-9a-f]{16}\.[a-z.]+|" + NOTE)  # in a store
_NOTE = "A run of dpkernels is writing here, or was killed: these files are no release. It has the number "


class LocalFolder(ClaimedOutput):
    """A folder on a file system of this machine, or one that all machines share; it goes to every worker.

    ``like`` is a folder whose permissions it gets at most. With ``resume`` it is the hidden folder of a killed run. A
    journal in the hidden folder says what the run is, and which parts are complete. It holds no key: a part that is not
    in the journal is deleted, before its rows get other noise.
    """

    def __init__(self, target: Path, like: Path | None, resume: bool = False) -> None:
        super().__init__(target)
        self._like, self.resume = like, resume
        self.staging = Path()  # the hidden folder, once it is made
        self._is_left = False  # whether the hidden folder stays if the run fails

    def named(self, name: str, number: int, parts: int, suffix: str) -> str:
        """Return the name of a part, which is that of its file if ``name`` says so."""
        return name or f"part-{number:0{len(str(parts - 1))}}{suffix}"

    def _resumable(self) -> list[Path]:
        return [path for path in leftovers(self.target) if (path / JOURNAL).is_file()]

    def _make(self, stack: ExitStack) -> None:
        check_local(self.target)
        if not self.resume:
            self.staging = stack.enter_context(staged_folder(self.target, lambda: self._is_left))
            (self.staging / NOTE).write_text(_NOTE + self.staging.name + "\n")
            return
        runs = self._resumable()
        if len(runs) != 1:
            raise click.UsageError(f"--resume: {self.target} has {len(runs)} killed runs with a journal; one is needed")
        _check_ownership(runs[0])
        self.staging = renamed_folder(runs[0], self.target)

    @contextmanager
    def run(self) -> Iterator[Self]:
        with super().run():
            try:
                yield self
            except BaseException as error:
                # A complete release whose charge stays can be continued, as after a kill; see ``drawing``.
                self._is_left = getattr(error, "keeps_charge", False) and self.is_resumable
                raise

    @property
    def is_resumable(self) -> bool:
        return (self.staging / JOURNAL).is_file()

    def begin(self, entry: Mapping[str, object]) -> None:
        """Begin the journal with the description of the run, which is charged, before the first part is made."""
        report_swept(sweep(self.target, [self.staging]), self.target)
        with replaced(self.staging / JOURNAL) as file:
            file.write(f"{json.dumps(entry)}\n".encode())

    def note(self, entry: Mapping[str, object]) -> None:
        """Add an entry to the journal; when this returns, it is on the disk."""
        with (self.staging / JOURNAL).open("ab") as file:
            file.write(f"{json.dumps(entry)}\n".encode())
            file.flush()
            os.fsync(file.fileno())

    def journal(self) -> list[JsonObject]:
        """Return the entries of the journal; the last line may be incomplete, and is no entry then."""
        *lines, last = read_text(self.staging / JOURNAL).split("\n")
        if last:  # A later entry would be written onto it.
            with (self.staging / JOURNAL).open("r+b") as file:
                file.truncate(sum(len(line.encode()) + 1 for line in lines))
        return [parse_json(line) for line in lines]

    def keep(self, files: Mapping[str, str]) -> None:
        """Delete what is not complete. Every file of these names must be there with its SHA-256.

        A complete part that was taken away may have been read, so its rows must not get other noise.
        """
        for name, sha256 in files.items():
            if digest(self.staging / name) != sha256:
                raise click.UsageError(f"--resume: {name} was complete, and was changed or taken away since")
        for path in self.staging.iterdir():
            if path.name not in {*files, JOURNAL, NOTE}:
                path.unlink()
        to_disk(self.staging)

    @contextmanager
    def drawing(self, parts: int) -> Iterator[None]:
        """Delete a run of so many parts that fails, if the failure may depend on reports that would be drawn again.

        Rows would get other noise until the run succeeds, for one charge, and every failure tells of other reports.
        """
        try:
            yield
        except BaseException as error:
            with uninterrupted():
                is_continuable = is_independent(error) or not self.is_resumable
                if not is_continuable and sum("name" in entry for entry in self.journal()) < parts:
                    (self.staging / JOURNAL).unlink()
                    shutil.rmtree(self.staging, ignore_errors=True)
            raise

    def part(self, name: str, like: Path | None) -> AbstractContextManager[Any]:
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

    def commit(self, sidecar: str, names: Sequence[str] = (), completing: Callable[[], object] = lambda: None) -> None:
        """Put the folder in place; ``completing`` is called when it is complete, before anybody sees it."""
        with naming(self.target), replaced(self.staging / SIDECAR, like=self.staging / names[0]) as file:
            file.write(sidecar.encode())
        raise_if_interrupted()
        with uninterrupted():
            with independent_of_reports():
                check_local(self.target)
            completing()
            for name in self.sizes().keys() - {*names, SIDECAR}:
                (self.staging / name).unlink(missing_ok=True)  # what killed workers had begun, the note, the journal
            self.visible = True
            place_folder(self.staging, self.target, self._like)
            finished()


def _check_ownership(staging: Path) -> None:
    """Refuse to continue in a folder that belongs to another user, or that others can write.

    The other user could choose which rows count as complete, and keep a journal of an earlier state of the run.
    """
    status = staging.lstat()
    if status.st_uid != os.geteuid():
        raise click.UsageError(f"--resume: {staging} is the folder of another user, number {status.st_uid}; remove it")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = f"{stat.S_IMODE(status.st_mode):o}"
        raise click.UsageError(f"--resume: {staging} has the mode {mode}: other users can write there; remove it")


@dataclass
class StoreFolder:
    """The same in a store of objects, where a put is atomic and there are no renames."""

    target: Location  # OUT
    # The run's number is in the names of its parts, since workers of an earlier run may still put theirs.
    number: str = ""

    resume = is_resumable = False

    def named(self, name: str, number: int, parts: int, suffix: str) -> str:
        return f"part-{number:0{len(str(parts - 1))}}-{self.number}{suffix}"

    def begin(self, entry: Mapping[str, object]) -> None:
        """Keep no journal: a store shows the parts of a killed run, so none of its rows can get other noise."""

    def note(self, entry: Mapping[str, object]) -> None:
        """Keep no journal."""

    def drawing(self, parts: int) -> AbstractContextManager[None]:
        """Keep no journal."""
        return nullcontext()

    @contextmanager
    def run(self) -> Iterator[Self]:
        self.number = secrets.token_hex(8)
        self._clear()
        self._put_text(NOTE, _NOTE + self.number + "\n")
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

    def commit(self, sidecar: str, names: Sequence[str], completing: Callable[[], object] = lambda: None) -> None:
        if self._note() != self.number:
            raise OSError(f"{self.target}: another run has begun to write here")
        unnamed = self.sizes().keys() - {*names, NOTE}
        if foreign := sorted(name for name in unnamed if not _OURS.fullmatch(name)):
            raise OSError(f"{self.target}: {foreign[0]} has been put there meanwhile; there is no release")
        for name in unnamed:  # what workers of a dead run have put since this one began
            self._delete(name)
        raise_if_interrupted()
        with uninterrupted():
            self._put_text(SIDECAR, sidecar)
            self._delete(NOTE)
            finished()

    def _put_text(self, name: str, text: str) -> None:
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


def folder(text: str, like: Path | None, resume: bool = False) -> Folder:
    """Return the folder OUT; click.UsageError if it cannot be made there, or something is there."""
    location = Location.parse(text)
    if location.local is None:
        if resume:
            raise click.UsageError("--resume: is for folders; a store of objects shows a killed run's parts to others")
        return StoreFolder(location)
    check_local(location.local)
    return LocalFolder(location.local, like, resume)


def check_local(target: Path) -> None:
    """Refuse a folder whose parent does not exist or cannot be written, or that exists and is not an empty folder."""
    check_parent(target)
    if target.is_symlink() or (os.path.lexists(target) and not target.is_dir()):
        raise click.UsageError(f"OUT: {target} is not a folder; a dataset is released into a folder")
    if target.is_dir() and any(target.iterdir()):
        raise click.UsageError(f"OUT: {target} is not empty; name a new folder for a release of many files")
