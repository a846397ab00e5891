"""``dpkernels perturb``: a release whose options have been checked, its charge, and its output."""

from __future__ import annotations

import abc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import click

from dpkernels.cli.errors import BadRows, row_error
from dpkernels.cli.files.formats import Source
from dpkernels.cli.files.layout import DASH, STANDARD_INPUT
from dpkernels.cli.files.locations import FILE, file_kind
from dpkernels.cli.files.opening import converted, open_source
from dpkernels.cli.interrupts import independent_of_reports
from dpkernels.cli.ledger import LedgerAccount, LedgerCharge, Price, ReleaseOutput, charging
from dpkernels.cli.perturb.output import Output, StandardOutput, check_target, sidecar_path
from dpkernels.cli.perturb.request import Request
from dpkernels.cli.perturb.rows import HELD_IN_MEMORY, MAX_SHUFFLED_BYTES, PartResult, bad_rows, release_file
from dpkernels.cli.perturb.sidecar import Release, ReleaseSpec, to_json
from dpkernels.cli.terminal import warn
from dpkernels.cli.text import display_name
from dpkernels.progress import bar
from dpkernels.release.charges import SAME_PEOPLE
from dpkernels.staging import naming

_LONG_BYTES = 1 << 26  # of an input, from which a terminal sees a bar

ReleaseOutputT = TypeVar("ReleaseOutputT", bound=ReleaseOutput)


@dataclass(frozen=True)
class ReleasePlan(abc.ABC, Generic[ReleaseOutputT]):
    """A release whose options have been checked; ``label`` is that of its entry in the ledger."""

    spec: ReleaseSpec
    ledger_account: LedgerAccount | None
    label: str
    sidecar: Path | str

    @abc.abstractmethod
    def values(self) -> int:
        """Return the number of values that each column of the input has, missing ones too."""

    @abc.abstractmethod
    def output(self) -> AbstractContextManager[ReleaseOutputT]:
        """Return the output, ready to be written, which is withdrawn unless it is committed."""

    @abc.abstractmethod
    def output_bytes(self) -> int:
        """Estimate the size of the output."""

    @abc.abstractmethod
    def write(self, output: ReleaseOutputT | None, progress: bool | None) -> list[PartResult]:
        """Perturb every value, or without an output check it; return the result of every part in order."""

    def price(self) -> Price:
        """Return the cost of the release, which does not depend on the values: also missing ones are charged."""
        return self.spec.price(self.values() // self.spec.values_per_row if self.spec.rows == SAME_PEOPLE else 1)

    def check(self, progress: bool | None) -> tuple[Release, str]:
        """Return the release that there would be, after all its checks, and in words the budget that it would leave."""
        remaining_budget = "" if self.ledger_account is None else self.ledger_account.check(self.price().amounts)
        with self._naming_bad_rows():
            return self._release(self.write(None, progress)), remaining_budget

    def release(self, progress: bool | None, check_first: bool = False) -> Release:
        """Charge the ledger, if there is one, then write the files and, last, their sidecar.

        After an error there is no release. With ``check_first`` every value is read once before the charge.
        ``progress`` shows a bar; None is for long work only.
        """
        with self._naming_bad_rows(), self.output() as output:
            if check_first:
                self.write(None, progress)
            output.check_space(self.output_bytes())
            with self._charging(output) as ledger_charge:
                done = self.write(output, progress)
                self._check_rows(sum(file.read for file in done), ledger_charge)
                release, written = self._release(done, ledger_charge), [file.written for file in done if file.written]
                self._commit(output, ledger_charge, to_json(release, written), [file.name for file in written])
        return release

    def _charging(self, output: ReleaseOutputT) -> AbstractContextManager[LedgerCharge | None]:
        """Charge the ledger, if there is one, and settle the charge if the release fails."""
        return charging(self.ledger_account, self.price, self.label, output)

    def _commit(self, output: ReleaseOutputT, charge: LedgerCharge | None, sidecar: str, names: Sequence[str]) -> None:
        output.commit(sidecar, names)

    @abc.abstractmethod
    def _bad_rows(self) -> BadRows | None:
        """Return all values that cannot be perturbed, or None if the input cannot be read again."""

    @contextmanager
    def _naming_bad_rows(self) -> Iterator[None]:
        """Let the error of a row know all others of the input, which is read again after the charge was voided."""
        try:
            yield
        except Exception as error:
            if (row_fault := row_error(error)) is not None:
                row_fault.others = self._bad_rows()
            raise

    def _check_rows(self, read: int, ledger_charge: LedgerCharge | None) -> None:
        """Refuse a release of another number of rows than were charged together: the input has changed."""
        if ledger_charge is None or self.spec.rows != SAME_PEOPLE:
            return
        if (rows := read // self.spec.values_per_row) != (charged := ledger_charge.price.charged_rows):
            with independent_of_reports():
                raise ValueError(f"IN: had {charged} rows when they were charged, and {rows} when they were read")

    def _release(self, done: Sequence[PartResult], ledger_charge: LedgerCharge | None = None) -> Release:
        rows, lost_properties = (
            sum(file.rows for file in done),
            dict.fromkeys(note for file in done for note in file.lost_properties),
        )
        return Release(self.spec, rows // self.spec.values_per_row, tuple(lost_properties), ledger_charge)


@dataclass(frozen=True)
class FilePlan(ReleasePlan[Output | StandardOutput]):
    """A release of one file; to standard output if the target is ``DASH``."""

    source: Source
    target: Path
    force: bool

    def values(self) -> int:
        with naming(self.source.path):
            return self.source.count()

    def output(self) -> AbstractContextManager[Output | StandardOutput]:
        if self.target == DASH:
            return StandardOutput(Path(self.sidecar), self.force).run()
        return Output(self.source.path, self.target, self.force).run()

    def output_bytes(self) -> int:
        return self.source.output_bytes([column.name for column in self.spec.columns])

    def _bad_rows(self) -> BadRows | None:
        return None if self.source.path == STANDARD_INPUT else bad_rows(self.spec, self.source)

    def release(self, progress: bool | None, check_first: bool = False) -> Release:
        if check_first and self.source.path == STANDARD_INPUT:
            raise click.UsageError("--check-first: standard input can be read only once")
        is_second = self.ledger_account is None and self.target != DASH and Path(self.sidecar).exists()
        release = super().release(progress, check_first)
        if is_second:
            warn(
                f"{display_name(str(self.target))} was a release before. If it is about the same people, the "
                "privacy losses of both releases add up, even though the first one is replaced; --ledger keeps the sum"
            )
        return release

    def write(self, output: Output | StandardOutput | None, progress: bool | None) -> list[PartResult]:
        source = self.source
        long = progress is None and source.path.stat().st_size >= _LONG_BYTES
        key_and_file = None if output is None else (os.urandom(32), output.file)
        with (
            bar(1.0, progress, long) as moved,
            naming(source.path if output is None else f"{source.path} to {output.place}"),
        ):
            return [release_file(self.spec, source, key_and_file, lambda: moved(completed=source.fraction))]


def plan(request: Request) -> FilePlan:
    """Check everything of a release of one file that can be checked before a value is read."""
    path, target = Path(request.source), Path(request.target)
    layout, written = request.layouts(path, target)
    if path != DASH and (state := file_kind(path)) != FILE:
        raise click.UsageError(f"IN: {path} {state}; it must be a file, or - for standard input")
    if request.resume:
        raise click.UsageError("--resume: is for a dataset; the release of one file is made as a whole, or not at all")
    if path == DASH and SAME_PEOPLE in request.rows:
        raise click.UsageError(
            "--rows same-people: standard input cannot be read twice, and its rows are counted first"
        )
    for name, path_or_dash, stream in (("IN", path, sys.stdin), ("OUT", target, sys.stdout)):
        if path_or_dash == DASH and stream is None:
            raise click.UsageError(f"{name}: - is closed; name a file, or leave the standard stream open")
    path = STANDARD_INPUT if path == DASH else path
    sidecar_option = request.sidecar
    if target != DASH and sidecar_option is not None:
        raise click.UsageError("--sidecar: is for standard output; the sidecar of a file is beside it")
    if target == DASH and sidecar_option is None:
        raise click.UsageError("--sidecar: missing; standard output needs a file for its certificates")
    if sidecar_option is not None and sidecar_option.suffix != ".json":
        raise click.UsageError(f"--sidecar: {sidecar_option} must end in .json")
    check_target(path, sidecar_option or target, request.force)
    sidecar = sidecar_option or sidecar_path(target)
    ledger_account = request.account((path, target, sidecar))
    if request.shuffle_rows and (size := path.stat().st_size) > MAX_SHUFFLED_BYTES:
        raise click.UsageError(f"--shuffle-rows: {path} has {size} bytes; {HELD_IN_MEMORY}")
    source = converted(open_source(path, layout), written)
    spec = request.spec(source, layout, written)
    name = request.name(f"perturb {display_name(path.name)} to {display_name(target.name)}")
    return FilePlan(spec, ledger_account, name, sidecar, source, target, request.force)
