"""A planned release: what the user asked for, checked, and the steps that a file and a dataset have in common."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from dpkernels.cli.files.formats import Source
from dpkernels.cli.files.layout import Layout
from dpkernels.cli.files.row_options import RowOptions
from dpkernels.cli.ledger import LedgerAccount, LedgerCharge, charged, remaining_after
from dpkernels.cli.mechanisms import DEFAULT, build_exact_sampler, check_count, options_by_column
from dpkernels.cli.release.rows import ReleaseSpec, label
from dpkernels.cli.release.sidecar import Column, Release, WrittenFile, to_json
from dpkernels.cli.text import listed


@dataclass(frozen=True)
class Request:
    """The arguments and options of ``dpkernels perturb``, as they were given.

    Attributes:
        source: IN.
        target: OUT.
        columns: names of the columns to perturb; none for an array.
        mechanisms: their names, one for all columns or one a column; none for the default.
        options: the values of the mechanisms' options that were given; see ``mechanisms.options_by_column``.
        clip: clip values outside the interval.
        force: replace an existing output.
        ledger: the options of a ledger that were given.
        rows: the treatment of rows besides noise.
        sidecar: where the certificates go if the output is standard output.
        kind: the format of both files; None to take it from their names.
        delimiter: the separator of cells; None for that of the format.
        multiline: whether quoted cells may have line breaks.
    """

    source: Path | str
    target: Path | str
    columns: Sequence[str]
    mechanisms: Sequence[str]
    options: Mapping[str, Sequence[Any]]
    clip: bool
    force: bool
    ledger: Mapping[str, Any]
    rows: RowOptions
    sidecar: Path | None
    kind: str | None
    delimiter: str | None
    multiline: bool

    def columns_of(self, source: Source) -> tuple[Column, ...]:
        """Return the columns of a file that are perturbed, with their certified mechanisms.

        Raises:
            click.UsageError: a wrong name, mechanism or option.
        """
        chosen, mechanisms = _chosen(source, self.columns), self.mechanisms or [DEFAULT]
        check_count("mechanism", len(mechanisms), len(chosen))
        each = list(mechanisms) * (len(chosen) if len(mechanisms) == 1 else 1)
        settings = zip(chosen, each, options_by_column(each, self.options), strict=True)
        return tuple(Column(name, *build_exact_sampler(one, own, label(name))) for name, one, own in settings)


def _chosen(source: Source, names: Sequence[str]) -> Sequence[str | None]:
    if not source.names:
        if names:
            raise click.UsageError(f"--column: {names[0]!r}; {source.path} is one array and has no columns")
        return [None]
    if not names:
        raise click.UsageError(f"--column: missing; {source.path} has {listed(source.names)}")
    for name in names:
        if (found := list(source.names).count(name)) != 1:
            problem = f"{found} columns of this name" if found else f"no such column; it has {listed(source.names)}"
            raise click.UsageError(f"--column: {name!r}; {source.path} has {problem}")
        if names.count(name) > 1:
            raise click.UsageError(f"--column: {name!r} is given twice")
    return names


@dataclass(frozen=True)
class Plan(abc.ABC):
    """A release whose options have been checked.

    Attributes:
        spec: the treatment of every row.
        layout: how the files are written.
        names: the columns of every file; empty for arrays.
        values_per_row: the number of values that a row holds in each perturbed column.
        copied: the names of the parts of a file that are not perturbed.
        ledger_account: the ledger that is charged, if there is one.
    """

    spec: ReleaseSpec
    layout: Layout
    names: Sequence[str]
    values_per_row: int
    copied: Sequence[str]
    ledger_account: LedgerAccount | None

    @property
    @abc.abstractmethod
    def sidecar(self) -> Path | str:
        """The place of the certificates."""

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """The label of the ledger's entry."""

    @abc.abstractmethod
    def output(self) -> AbstractContextManager[Any]:
        """Return the output, ready to be written, which is withdrawn unless ``commit`` is called."""

    @abc.abstractmethod
    def read(self, progress: bool | None) -> int:
        """Read and check every value; return the number of rows (for an array: values) of the release."""

    @abc.abstractmethod
    def write(self, output: Any, progress: bool | None) -> tuple[int, Sequence[str], WrittenFile | list[WrittenFile]]:
        """Perturb every value; return the number of rows, the properties that are not kept, and the files."""

    @abc.abstractmethod
    def commit(self, output: Any, sidecar: str, written: Any) -> None:
        """Put the files and their sidecar in place."""

    def check(self, progress: bool | None) -> tuple[Release, list[str]]:
        """Check everything that a release would, every value and the ledger too, without charging or writing.

        Returns:
            The release that would be, and in words the budget that would be left in the ledger.

        Raises:
            ValueError: as ``release``.
        """
        left = remaining_after(self.ledger_account, self.spec.totals(self.values_per_row))
        return self._release(self.read(progress)), left

    def release(self, progress: bool | None, check_first: bool = False) -> Release:
        """Charge the ledger, if there is one, then write the files and, last, their sidecar.

        Args:
            progress: show a bar; None for long work only.
            check_first: read every value once before the charge.

        Raises:
            ValueError: the budget would be exceeded, an input value is unfit, or an input is empty or damaged. There is
                no release.
            OSError: reading or writing failed. There is no release.
        """
        with self.output() as output:
            if check_first:
                self.read(progress)
            totals = self.spec.totals(self.values_per_row)
            with charged(self.ledger_account, totals, self.label, output) as ledger_charge:
                rows, not_kept, written = self.write(output, progress)
                release = self._release(rows, not_kept, ledger_charge)
                self.commit(output, to_json(release, written, self.names), written)
        return release

    def _release(self, values: int, not_kept: Sequence[str] = (), ledger_charge: LedgerCharge | None = None) -> Release:
        """Return a release with this number of values in each column."""
        own, rows = self.spec, values // self.values_per_row
        facts = own.columns, rows, self.values_per_row, own.clip, self.layout, own.row_options
        return Release(*facts, tuple(not_kept), ledger_charge)
