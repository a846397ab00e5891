"""``dpkernels perturb``: a file in pieces through the exact engine into a file of the same format."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from dpkernels.cli import sidecar
from dpkernels.cli.choose import check_count, exact_form, spread
from dpkernels.cli.files import Source, known_suffix, open_source
from dpkernels.cli.interrupts import stop_if_asked
from dpkernels.cli.ledger import Purse, Receipt
from dpkernels.cli.output import Output, check_target, sidecar_path
from dpkernels.cli.sidecar import Column, Release, exact_total, law_of
from dpkernels.cli.text import aligned, listed, shown
from dpkernels.random import host
from dpkernels.release import Engine, exact_engine, in_chunks
from dpkernels.validation import Bounds, InputError

_LONG_BYTES = 1 << 26


@dataclass(frozen=True)
class Plan:
    """A release whose options have been checked.

    Attributes:
        source: the input.
        target: the output.
        columns: what is perturbed, and how.
        clip: clip values outside the interval.
        purse: what pays for it; None for nothing.
    """

    source: Source
    target: Path
    columns: tuple[Column, ...]
    clip: bool
    purse: Purse | None = None


def plan(
    path: Path,
    target: Path,
    names: Sequence[str],
    mechanisms: Sequence[str],
    options: Mapping[str, Sequence[Any]],
    *,
    clip: bool,
    force: bool,
    charged: Mapping[str, Any],
) -> Plan:
    """Check everything that can be checked before a value is read.

    Args:
        path: the input.
        target: the output.
        names: columns to perturb; none for an array.
        mechanisms: their names, one for all columns or one a column.
        options: the values of the mechanisms' options that were given; see ``choose.spread``.
        clip: clip values outside the interval.
        force: replace an existing output.
        charged: the options of a ledger that were given.

    Raises:
        click.UsageError: a wrong option or argument.
        ValueError: the input is not a readable file of its format.
    """
    if known_suffix(path) != known_suffix(target):
        raise click.UsageError(f"OUT: {target} must have the suffix of IN, {path.suffix}")
    check_target(path, target, force)
    purse = Purse.of(charged, (path, target, sidecar_path(target)))
    source = open_source(path)
    chosen = _chosen(source, names)
    each = _each(mechanisms, len(chosen))
    columns = tuple(_column(*setting) for setting in zip(chosen, each, spread(each, options), strict=True))
    return Plan(source, target, columns, clip, purse)


def _column(name: str | None, mechanism: str, options: Mapping[str, Any]) -> Column:
    return Column(name, *exact_form(mechanism, options, _label(name)))


def _chosen(source: Source, names: Sequence[str]) -> Sequence[str | None]:
    if not source.names:
        if names:
            raise click.UsageError(f"--column: {names[0]!r}; {source.path} is one array, without columns")
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


def _each(mechanisms: Sequence[str], count: int) -> list[str]:
    check_count("mechanism", len(mechanisms), count)
    return list(mechanisms) * (count if len(mechanisms) == 1 else 1)


def _label(name: str | None) -> str:
    return "" if name is None else f"column {name!r}: "


def perturb_file(plan: Plan, progress: bool | None) -> list[str]:
    """Charge the ledger, if there is one, then write the output and its sidecar.

    Returns:
        Lines for the user: what was done to which column, and what it guarantees.

    Raises:
        ValueError: the budget would be exceeded, an input value is unfit, or the input is empty or damaged; nothing is
            written.
        OSError: reading or writing failed; nothing is written.
    """
    with Output(plan.source.path, plan.target) as output, _charged(plan) as receipt, _naming(plan):
        with _bar(plan.source, progress) as show:
            rows = _write(plan, output.temporary, show)
        release = Release(plan.columns, rows, plan.source.values_per_row, plan.clip, receipt)
        output.commit(sidecar.to_json(release))
    return _summary(plan, release)


@contextmanager
def _charged(plan: Plan) -> Iterator[Receipt | None]:
    """Pays before a value is read. The charge stays, come what may: a failure says so."""
    if plan.purse is None:
        yield None
        return
    parts, values = [column.guarantee for column in plan.columns], plan.source.values_per_row
    totals = exact_total([one.epsilon for one in parts], values), exact_total([one.delta for one in parts], values)
    names = f"perturb {shown(plan.source.path.name)} to {shown(plan.target.name)}"
    receipt = plan.purse.charge(*totals, names)
    try:
        yield receipt
    except BaseException as error:
        error.left_behind = receipt.stays  # type: ignore[attr-defined]
        raise


@contextmanager
def _naming(plan: Plan) -> Iterator[None]:
    """A full disk and the like, which do not say where."""
    try:
        yield
    except OSError as error:
        if error.filename or not error.strerror:
            raise
        raise OSError(error.errno, error.strerror, f"{plan.source.path} to {plan.target}") from error


def _write(plan: Plan, path: Path, show: Callable[[], Any]) -> int:
    secret = os.urandom(32)
    engines = [exact_engine(column.form, host.fold_in(secret, at)) for at, column in enumerate(plan.columns)]
    start = 0
    with plan.source.sink(path) as sink:
        for piece in plan.source.pieces():
            sink.write(_perturbed(plan, engines, piece, start))
            start += len(piece)
            show()
            stop_if_asked()
    if start == 0:
        raise ValueError(f"{plan.source.path}: is empty; there is nothing to perturb")
    return start // plan.source.values_per_row


def _perturbed(plan: Plan, engines: Sequence[Engine], piece: Any, start: int) -> Any:
    reports: dict[str | None, np.ndarray] = {}
    for column, engine in zip(plan.columns, engines, strict=True):
        bounds = Bounds.of(column.form.mechanism, plan.clip)
        try:
            values = plan.source.numbers(piece, column.name, start)
            reports[column.name] = in_chunks(engine, bounds, values, start=start)
        except InputError as error:
            clips = "" if error.interval is None else "; --clip clips"
            limits = "" if error.interval is None else column.guarantee.limits
            where = f"{plan.source.place(error.row)} is {error.value:g}{error.reason}{limits}{clips}"
            raise ValueError(_label(column.name) + where) from error
        except ValueError as error:
            raise ValueError(_label(column.name) + str(error)) from error
    return plan.source.replaced(piece, reports)


def _summary(plan: Plan, release: Release) -> list[str]:
    heading = ["column", "mechanism", "neighbours", "epsilon", "realised", "delta", "realised"]
    copied = [name for name in plan.source.names if name not in {column.name for column in plan.columns}]
    lines = aligned([heading, *map(_summary_row, plan.columns)])
    lines += [line for column in plan.columns for line in _noise_line(column)]
    lines += _totals(release)
    if release.receipt is not None:
        lines.append(str(release.receipt))
    if copied:
        lines.append(f"copied as they are, NOT protected: {listed(copied)}")
    lines.append(f"{release.rows} rows: {plan.target}, certificates: {sidecar_path(plan.target)}")
    return lines


def _summary_row(column: Column) -> list[str]:
    own = column.guarantee
    realised = f"{own.realised_epsilon:.6g}", f"{own.delta:g}", f"{own.realised_delta:.9g}"
    return [column.title, column.mechanism, own.neighbours, f"{own.epsilon:g}", *realised]


def _noise_line(column: Column) -> list[str]:
    """The parameters of additive noise, some of which may have been calibrated."""
    law = law_of(column.form.mechanism)
    return [f"{column.title}: noise of {law}"] if law else []


def _totals(release: Release) -> list[str]:
    budget, realised = f"{release.epsilon:g}", f"{release.realised_epsilon:.6g}"
    if release.delta:
        budget += f", delta {release.delta:g}"
        realised += f", delta {release.realised_delta:.9g}"
    lines = [f"total epsilon a row: {budget} (realised {realised}); neighbouring: {release.neighbouring}"]
    if release.delta >= 1:
        lines.append("WARNING: a total delta of 1 or more guarantees nothing")
    return lines


@contextmanager
def _bar(source: Source, wanted: bool | None) -> Iterator[Callable[[], Any]]:
    if wanted is None:
        wanted = source.path.stat().st_size >= _LONG_BYTES and sys.stderr.isatty()
    if not wanted:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("perturbing", total=1.0)
        yield lambda: bar.update(task, completed=source.fraction)
