"""Atomic replacement of an output and its sidecar: there is always a complete old release or a complete new release.

Both new files are complete and on the disk before anything is replaced. Two files cannot be renamed in one atomic step.
Between the renames, the sidecar therefore covers both releases: it is the new sidecar, which holds the SHA-256 of the
new output, and its first field, "replacing", has the text of the old sidecar (null if there was none). The steps are:

1. OUT.json becomes the double sidecar. OUT is still the old output.
2. OUT becomes the new output.
3. OUT.json becomes the new sidecar alone.

A run that stops before step 1 leaves the old release, and one that stops after step 3 leaves the new release. In
between, the hash of OUT determines which of the two sidecars in OUT.json belongs to it. ``certify --verify`` takes this
into account. The next run to the same output calls ``settle`` first, which finishes or undoes the replacement.

Standard output is first written to a private file, so that an output that cannot be completed is not started. The
private file has no name, so it disappears when the process ends for any reason.
"""

from __future__ import annotations

import abc
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedIOBase
from pathlib import Path
from typing import Self

import click

from dpkernels.bounded_json import parse_json
from dpkernels.cli.errors import error_text
from dpkernels.cli.interrupts import finished, independent_of_reports, raise_if_interrupted, uninterrupted
from dpkernels.cli.terminal import print_message
from dpkernels.staging import Staged, Swept, check_space, claimed, naming, sha256_and_size, staged, sweep, to_disk

# A double sidecar begins with this, and no other does.
_REPLACING = '{"replacing": '
# An old sidecar is kept in memory while it is replaced.
_MAX_SIDECAR = 1 << 26


def sidecar_path(target: Path) -> Path:
    """``out.csv`` has ``out.csv.json``."""
    return target.with_name(target.name + ".json")


def check_target(source: Path, target: Path, force: bool) -> None:
    """Refuse a target that is the input or not a file, exists (unless ``force``), or cannot be written."""
    check_parent(target)
    for path in (target, sidecar_path(target)):
        _check_kind(path)
    if target.exists() and source.exists() and source.samefile(target):
        raise click.UsageError(f"OUT: {target} is the input")
    _check_free(target, force)


def check_parent(target: Path) -> None:
    """Refuse a target in a folder that does not exist or cannot be written."""
    if not target.parent.is_dir():
        raise click.UsageError(f"OUT: the folder {target.parent} does not exist")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise click.UsageError(f"OUT: the folder {target.parent} cannot be written")


def _check_kind(path: Path) -> None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:  # a name that is too long, a folder that must not be looked into
        raise click.UsageError(f"OUT: {path}: {error.strerror}") from error
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
        raise click.UsageError(f"OUT: {path} is {'a folder' if path.is_dir() else 'not a file'}")
    if path.suffix == ".json" and status.st_size > _MAX_SIDECAR:
        raise click.UsageError(f"OUT: {path} has {status.st_size} bytes and is no sidecar; move it away")


def _check_free(target: Path, force: bool) -> None:
    existing = [path for path in (target, sidecar_path(target)) if os.path.lexists(path)]
    if existing and not force and not (existing == [sidecar_path(target)] and _is_double(existing[0])):
        raise click.UsageError(f"OUT: {existing[0]} exists; --force replaces it")


class ClaimedOutput(abc.ABC):
    """A claimed name, and new files that ``commit`` puts in place; otherwise they are deleted."""

    visible = False  # whether another user may have read some of the output

    def __init__(self, target: Path) -> None:
        self.target = target

    @property
    def is_resumable(self) -> bool:
        """Return whether another run can continue this one."""
        return False

    @contextmanager
    def run(self) -> Iterator[Self]:
        """Claim the name, remove the files of a killed run, and make the new files; refuse to replace an output."""
        stack = ExitStack()
        try:
            # An interrupt between a file and the note that it must go would leave the file.
            with uninterrupted():
                stack.enter_context(claimed(self.target))
                report_swept(sweep(self.target, self._resumable()), self.target)
                self._make(stack)
            raise_if_interrupted()
            yield self
        finally:
            with uninterrupted():
                stack.close()

    def _resumable(self) -> Sequence[Path]:
        """Return what killed runs have left that can be continued, so that it stays until this run is charged."""
        return ()

    @abc.abstractmethod
    def _make(self, stack: ExitStack) -> None:
        """Make the new files, which go when the stack is closed."""

    def check_space(self, size: int) -> None:
        """Raise the OSError of a full disk if a file of about this size does not fit; nothing is charged yet."""
        check_space(self.target.parent, size)

    @abc.abstractmethod
    def withdraw(self) -> bool:
        """Delete what was written; return False if another user may have read it, or if it cannot be deleted."""

    @abc.abstractmethod
    def commit(self, sidecar: str, names: Sequence[str] = ()) -> None:
        """Put the output, files of these names, and its sidecar in place; from then on the work is finished."""


class Output(ClaimedOutput):
    """A new file for the target, with at most the permissions of the input, and its sidecar."""

    def __init__(self, source: Path, target: Path, force: bool = False) -> None:
        super().__init__(target)
        self._source, self._force, self._sidecar = source, force, sidecar_path(target)
        self._old: str | None = None  # the text of a sidecar that is replaced
        self.place: object = target  # how errors call the output while it is written

    def _make(self, stack: ExitStack) -> None:
        settle(self.target)
        _check_free(self.target, self._force)
        # Such that writing the text gives the same bytes, whatever they are.
        with suppress(FileNotFoundError):
            self._old = self._sidecar.read_bytes().decode(errors="surrogateescape")
        self._output, self._double, self._single = (stack.enter_context(staged(self.target)) for _ in range(3))
        self.file: BufferedIOBase = self._output.file

    def withdraw(self) -> bool:
        if self.visible:
            return False
        name = self._output.path
        with suppress(OSError):
            name.unlink(missing_ok=True)
        return not os.path.lexists(name)

    def commit(self, sidecar: str, names: Sequence[str] = ()) -> None:
        files = self._output, self._double, self._single
        with naming(self.target):
            self._double.file.write((_REPLACING + json.dumps(self._old) + ", " + sidecar[1:]).encode())
            self._single.file.write(sidecar.encode())
            for new in files:
                new.finish()
        raise_if_interrupted()
        with uninterrupted():
            with independent_of_reports():
                _check_free(self.target, self._force)
            self.visible = True
            for new in files:
                new.finish(self._source)
            try:
                _move_into_place(self._double, self._sidecar)
                _move_into_place(self._output, self.target)
                _move_into_place(self._single, self._sidecar)
            except OSError:
                settle(self.target)
                raise
            finished()


class StandardOutput(ClaimedOutput):
    """A file without a name, copied to standard output by ``commit``, and its sidecar, whose name is claimed."""

    def __init__(self, sidecar: Path, force: bool = False) -> None:
        super().__init__(sidecar)
        self._force, self.place = force, f"the temporary folder {tempfile.gettempdir()}"

    def _make(self, stack: ExitStack) -> None:
        with naming(self.place):
            self.file = stack.enter_context(tempfile.TemporaryFile(prefix="dpkernels-"))  # noqa: SIM115

    def check_space(self, size: int) -> None:
        check_space(Path(tempfile.gettempdir()), size)

    def withdraw(self) -> bool:
        if not self.visible:
            self.file.close()
        return not self.visible

    def commit(self, sidecar: str, names: Sequence[str] = ()) -> None:
        """Write the output, and when it is complete name its sidecar, which is already on the disk."""
        with staged(self.target) as new:
            with naming(self.target):
                new.file.write(sidecar.encode())
                new.finish()
            raise_if_interrupted()
            if os.path.lexists(self.target) and not self._force:
                with independent_of_reports():
                    raise click.UsageError(f"--sidecar: {self.target} exists by now; --force replaces it")
            self.visible = True
            self.file.seek(0)
            with naming("standard output"):
                shutil.copyfileobj(self.file, sys.stdout.buffer, 1 << 20)
                sys.stdout.buffer.flush()
            with uninterrupted():
                _move_into_place(new, self.target)
                finished()


def settle(target: Path) -> None:
    """Finish or undo a replacement that was cut short; the target's name must be claimed."""
    sidecar = sidecar_path(target)
    if not _is_double(sidecar):
        return
    try:
        text = matching_sidecar(target, sidecar.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{sidecar}: is damaged, and was being replaced; move it away: {error_text(error)}") from error
    if text is None:
        sidecar.unlink()
        return
    with staged(target) as new:  # under the claimed name, by which the next run finds what a killed one has left
        new.file.write(text.encode(errors="surrogateescape"))
        new.finish(sidecar)
        _move_into_place(new, sidecar)


def matching_sidecar(target: Path, text: str) -> str | None:
    """Return the sidecar that is the target's own, from the text of the one beside it, which may be double.

    A double one holds the new release's and the old one's; the target's hash decides. None where the target is neither,
    that is, where there was no sidecar before and the new output is not in place.
    """
    if not text.startswith(_REPLACING):
        return text
    new = parse_json(text)
    replaced, output = new.pop("replacing"), new.get("output")
    if type(output) is not dict or "sha256" not in output or type(replaced) not in (str, type(None)):
        raise ValueError("it begins as a sidecar that is being replaced, and is none")
    return json.dumps(new) + "\n" if digest(target) == output["sha256"] else replaced


def digest(target: Path) -> str | None:
    """Return the SHA-256 of a file in hexadecimal; None if there is none."""
    try:
        with target.open("rb") as file:
            return sha256_and_size(file)[0]
    except FileNotFoundError:
        return None


def _move_into_place(new: Staged, target: Path) -> None:
    new.place(target)
    to_disk(target.parent)


def _is_double(sidecar: Path) -> bool:
    try:
        with sidecar.open("rb") as file:
            return file.read(len(_REPLACING)) == _REPLACING.encode()
    except FileNotFoundError:
        return False


def report_swept(swept: Sequence[Swept], target: Path) -> None:
    """Print the number and size of the files that a killed run had left."""
    for entry_kind in ("file", "folder"):
        if sizes := [item.size for item in swept if item.is_folder == (entry_kind == "folder")]:
            amount = f"{len(sizes)} {entry_kind}{'s' * (len(sizes) > 1)} of {sum(sizes)} bytes in all"
            print_message(f"removed {amount} that a killed run to {target} had left")
