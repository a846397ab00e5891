"""``dpkernels perturb`` of one file, in pieces through the exact engine into a file of the same format."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from dpkernels.cli.files.formats import Source
from dpkernels.cli.files.layout import DASH, STANDARD_INPUT, Layout, layout_of
from dpkernels.cli.files.opening import open_source
from dpkernels.cli.files.places import FILE, kind
from dpkernels.cli.files.row_options import RowOptions, permutation
from dpkernels.cli.interrupts import independent_of_reports
from dpkernels.cli.ledger import LedgerAccount, charged, remaining_after
from dpkernels.cli.mechanisms import DEFAULT, build_exact_sampler, check_count, options_by_column
from dpkernels.cli.release.output import Output, StandardOutput, check_target, sidecar_path
from dpkernels.cli.release.rows import ReleaseSpec, check_values, label, perturbed, row_order_secret, some_rows
from dpkernels.cli.release.sidecar import Column, Release, WrittenFile, to_json
from dpkernels.cli.text import listed, shown
from dpkernels.progress import bar
from dpkernels.staging import naming

_LONG_BYTES = 1 << 26  # of an input, from which a terminal sees a bar


@dataclass(frozen=True)
class Plan:
    """A release of one file whose options have been checked.

    Attributes:
        source: the input.
        target: the output; ``DASH`` for standard output.
        sidecar: where its certificates go.
        spec: the treatment of every row.
        layout: how both files are written.
        ledger_account: the ledger that is charged, if there is one.
        force: replace an existing output.
    """

    source: Source
    target: Path
    sidecar: Path
    spec: ReleaseSpec
    layout: Layout
    ledger_account: LedgerAccount | None = None
    force: bool = False

    @property
    def copied(self) -> list[str]:
        """The columns that are not perturbed."""
        return self.spec.copied(self.source)


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


def plan(request: Request) -> Plan:
    """Check everything that can be checked before a value is read.

    Raises:
        click.UsageError: a wrong option or argument.
        ValueError: the input is not a readable file of its format.
    """
    path, target, rows = Path(request.source), Path(request.target), request.rows
    layout = layout_of(path, target, request.kind, request.delimiter, request.multiline)
    if path != DASH and (what := kind(path)) != FILE:
        raise click.UsageError(f"IN: {path} {what}; it must be a file, or - for standard input")
    path = STANDARD_INPUT if path == DASH else path
    beside = _sidecar(path, target, request.sidecar, request.force)
    ledger_account = LedgerAccount.of(request.ledger, (path, target, beside))
    rows.check_size(path)
    source = open_source(path, layout)
    rows.check_droppable(source)
    spec = ReleaseSpec(request.columns_of(source), request.clip, rows)
    return Plan(source, target, beside, spec, layout, ledger_account, request.force)


def _sidecar(path: Path, target: Path, given: Path | None, force: bool) -> Path:
    """Return where the certificates go, after checking that the place is free."""
    if target != DASH:
        if given is not None:
            raise click.UsageError("--sidecar: is for standard output; the sidecar of a file is beside it")
        check_target(path, target, force)
        return sidecar_path(target)
    if given is None:
        raise click.UsageError("--sidecar: missing; standard output needs a file for its certificates")
    if given.suffix != ".json":
        raise click.UsageError(f"--sidecar: {given} must end in .json")
    check_target(path, given, force)
    return given


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


def perturb_file(plan: Plan, progress: bool | None, check_first: bool = False) -> Release:
    """Charge the ledger, if there is one, then write the output and its sidecar.

    Args:
        plan: what to do.
        progress: show a bar; None for long work only.
        check_first: read every value once before the charge.

    Raises:
        click.UsageError: a stream that is to be read twice.
        ValueError: the budget would be exceeded, an input value is unfit, or the input is empty or damaged. No file
            is written.
        OSError: reading or writing failed. No file is written.
    """
    if check_first and plan.source.path == STANDARD_INPUT:
        raise click.UsageError("--check-first: standard input can be read only once")
    with _output(plan) as output:
        if check_first:
            _checked(plan, progress)
        with charged(plan.ledger_account, _totals(plan), _label(plan), output) as ledger_charge:
            with _shown(plan.source, progress) as show, naming(f"{plan.source.path} to {output.place}"):
                rows = _write(plan, output.path, show)
            not_kept = tuple(plan.source.not_kept(output.path))
            release = plan.spec.release(rows, plan.source.values_per_row, plan.layout, not_kept, ledger_charge)
            output.commit(to_json(release, WrittenFile(*output.digest()), plan.source.names))
    return release


def check_file(plan: Plan, progress: bool | None) -> tuple[Release, list[str]]:
    """Check everything that a release would, every value and the ledger too, without charging or writing.

    Returns:
        The release that would be, and in words the budget that would be left in the ledger.

    Raises:
        ValueError: as ``perturb_file``.
    """
    left = remaining_after(plan.ledger_account, _totals(plan))
    return plan.spec.release(_checked(plan, progress), plan.source.values_per_row, plan.layout), left


def _checked(plan: Plan, progress: bool | None) -> int:
    with naming(plan.source.path), _shown(plan.source, progress) as show:
        spec = plan.spec
        read, rows = check_values(plan.source, spec.columns, spec.clip, spec.row_options.missing, show)
    some_rows(plan.source, read, rows)
    return rows


@contextmanager
def _shown(source: Source, wanted: bool | None) -> Iterator[Callable[[], Any]]:
    with bar(1.0, wanted, wanted is None and source.path.stat().st_size >= _LONG_BYTES) as moved:
        yield lambda: moved(completed=source.fraction)


def _totals(plan: Plan) -> tuple[Fraction, Fraction]:
    return plan.spec.totals(plan.source.values_per_row)


def _label(plan: Plan) -> str:
    return f"perturb {shown(plan.source.path.name)} to {shown(plan.target.name)}"


def _output(plan: Plan) -> Output | StandardOutput:
    streamed = plan.target == DASH
    return StandardOutput(plan.sidecar, plan.force) if streamed else Output(plan.source.path, plan.target, plan.force)


def _write(plan: Plan, path: Path, show: Callable[[], Any]) -> int:
    """Perturb into a file; returns the number of rows (of an array: values) there."""
    source, row_options, secret = plan.source, plan.spec.row_options, os.urandom(32)
    held, read, rows, size = list[Any](), 0, 0, 0
    with source.sink(path) as sink, closing(perturbed(plan.spec, source, secret, show)) as pieces:
        for piece, before, left in pieces:
            read, rows = read + before, rows + left
            if not row_options.shuffle:
                sink.write(piece)
                continue
            held.append(piece)
            size += source.size(piece)
            row_options.check_held(size)
        with independent_of_reports():
            some_rows(source, read, rows)
        if held:
            order = permutation(row_order_secret(secret), rows // source.values_per_row)
            for piece in source.reordered(held, order):
                sink.write(piece)
    return rows
