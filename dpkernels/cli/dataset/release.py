"""``dpkernels perturb`` of a dataset: planned, charged once, released in parts by an engine, and bound by a sidecar."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import click

from dpkernels.cli.dataset.folder import SIDECAR, Folder, folder
from dpkernels.cli.dataset.part import Done, Job, Secret, Versioned, Work, answers, check_part, perturb_part
from dpkernels.cli.dataset.places import Found, Place, find, would_match
from dpkernels.cli.dataset.plan import Part, layout_of, planned
from dpkernels.cli.failures import independent_of_reports
from dpkernels.cli.files.handling import Handling
from dpkernels.cli.files.layout import DASH, Layout
from dpkernels.cli.ledger import Purse, paid, would_leave
from dpkernels.cli.perturb import columns_of
from dpkernels.cli.release import sidecar
from dpkernels.cli.release.sidecar import Release, WrittenParts, versions
from dpkernels.cli.release.treatment import Treatment
from dpkernels.cli.text import listed, shown
from dpkernels.progress import bar

_LONG_ROWS = 1 << 22  # of a dataset, from which a terminal sees a bar


class Engine(Protocol):
    """Runs a work for parts, wherever and in whatever order."""

    def ready(self) -> AbstractContextManager[None]:
        """What it needs is there, as long as this lasts: what cannot work fails before anything is paid."""

    def each(self, work: Work, job: Versioned, secret: Secret | None, parts: Sequence[Part]) -> Iterator[Any]:
        """The answers, as they come."""


@dataclass(frozen=True)
class DatasetPlan:
    """A release of a dataset whose options have been checked and whose files are known.

    Attributes:
        parts: of it, in the order of their rows.
        names: the columns of every file; empty for arrays.
        copied: what is not perturbed.
        values_per_row: how many values of one row each perturbed column holds.
        job: what is done to every part.
        target: OUT, as it was given.
        purse: what pays for it; None for nothing.
        engine: what runs the parts.
    """

    parts: tuple[Part, ...]
    names: Sequence[str]
    copied: list[str]
    values_per_row: int
    job: Job
    target: str
    purse: Purse | None
    engine: Engine

    @property
    def sidecar(self) -> str:
        """Where its certificates go."""
        return str(Place.of(self.target).within(SIDECAR))

    @property
    def totals(self) -> tuple[Fraction, Fraction]:
        """The (epsilon, delta) of a row, exactly."""
        return self.job.treatment.totals(self.values_per_row)


def plan(
    source: str,
    target: str,
    names: Sequence[str],
    mechanisms: Sequence[str],
    options: Mapping[str, Sequence[Any]],
    *,
    clip: bool,
    force: bool,
    charged: Mapping[str, Any],
    engine: Engine,
    form: tuple[str | None, str | None, bool],
    handling: Handling,
    sidecar: Path | None,
) -> DatasetPlan:
    """Check everything that can be checked before a value is read.

    Args:
        source: a file, a folder, a pattern or an URI.
        target: a folder or its URI.
        names: columns to perturb; none for arrays.
        mechanisms: their names, one for all columns or one a column.
        options: the values of the mechanisms' options that were given.
        clip: clip values outside the interval.
        force: is refused.
        charged: the options of a ledger that were given.
        engine: what will run the parts.
        form: the format, the delimiter and whether cells have line breaks, as they were given.
        handling: what else is done to rows.
        sidecar: is refused.

    Raises:
        click.UsageError: a wrong option or argument.
        ValueError: a file is not readable or not like the others.
    """
    _refuse(target, force, handling, sidecar)
    handling = replace(handling, shuffleable=False)
    found = find(source)
    _say_skipped(source, found)
    like, place = found.files[0].local, Place.of(target)
    out = folder(target, None if like is None else like.parent)
    _check_apart(source, found, place)
    folders = [one.local for one in (place, found.folder) if one is not None and one.local is not None]
    purse = Purse.of(charged, [file.local for file in found.files if file.local], folders)
    written = layout_of(found.files, *form)
    parts = planned(found.files, written)
    with parts[0].opened(written) as first:
        handling.check_droppable(first)
        treatment = Treatment(columns_of(first, names, mechanisms, options), clip, handling)
        copied, facts = treatment.copied(first), (tuple(first.names), first.values_per_row)
    job = Job(treatment, written, _suffix(written), len(parts), out, versions())
    return DatasetPlan(parts, facts[0], copied, facts[1], job, target, purse, engine)


def _refuse(target: str, force: bool, handling: Handling, sidecar: Path | None) -> None:
    """Refuse what is for single files."""
    if target == str(DASH):
        raise click.UsageError("OUT: - is for one file; the parts of a dataset are put into a folder (./- is one)")
    if force:
        raise click.UsageError("--force: a release of many files replaces nothing; name a new folder")
    if handling.shuffle:
        raise click.UsageError("--shuffle-rows: the rows of a dataset are nowhere held together; shuffle it before")
    if sidecar is not None:
        raise click.UsageError(f"--sidecar: that of a dataset is {SIDECAR} in its folder")


def _say_skipped(source: str, found: Found) -> None:
    """Name what is in the folder, or matches the pattern, and is not read."""
    if found.skipped:
        why = "folders, which a pattern does not read" if found.folder is None else "names that begin with . or _"
        click.echo(f"dpkernels: IN: of {source} these are not read ({why}): {listed(found.skipped)}", err=True)


def _check_apart(source: str, found: Found, target: Place) -> None:
    """Refuse an output that is the input, or that the same command would read the next time."""
    if any(_is_within(file, target) for file in found.files):
        raise click.UsageError(f"OUT: {target} is the folder of the input")
    if found.folder is not None and _is_within(target, found.folder):
        raise click.UsageError(f"OUT: {target} is in the folder of the input, of which all files are read")
    name = f"part-0{''.join(PurePosixPath(found.files[0].name).suffixes[-2:])}"
    if found.folder is None and would_match(source, target, name):
        raise click.UsageError(f"OUT: {target} would have files that match {source}, so the next run would read them")


def _is_within(place: Place, folder: Place) -> bool:
    if place.local is not None and folder.local is not None:
        return place.local.resolve().is_relative_to(folder.local.resolve())
    return place.uri == folder.uri and place.path.startswith(f"{folder.path.rstrip('/')}/")


def _suffix(form: Layout) -> str:
    return f".{form.kind}{'.gz' if form.pack else ''}"


def release(plan: DatasetPlan, progress: bool | None, check_first: bool = False) -> Release:
    """Charge the ledger, if there is one, then write the parts and, last, their sidecar.

    Raises:
        ValueError: the budget would be exceeded, or an input value or file is unfit; there is no release.
        OSError: reading or writing failed, or machines did more often than they may; there is no release.
    """
    out = plan.job.folder
    if out is None:
        raise TypeError("plan: has no folder")
    with out.run(), plan.engine.ready():
        if check_first:
            _all(plan, check_part, None, progress)
        label = f"perturb {shown(plan.parts[0].file.name)} and on to {shown(plan.target)}"
        with paid(plan.purse, plan.totals, label, out) as receipt:
            # The only copy of the key outside of the engine: it is gone when the parts are made.
            done = _all(plan, perturb_part, Secret(os.urandom(32)), progress)
            written = [one.written for one in done if one.written is not None]
            _check_there(out, written)
            not_kept = tuple(dict.fromkeys(note for one in done for note in one.not_kept))
            finished = plan.job.treatment.release(_rows(done), plan.values_per_row, plan.job.form, not_kept, receipt)
            text = sidecar.to_json(finished, WrittenParts(written, plan.names))
            out.finish(text, [one.name for one in written])
    return finished


def check(plan: DatasetPlan, progress: bool | None) -> tuple[Release, list[str]]:
    """Check everything that a release would, every value and the ledger too, without charging or writing.

    Returns:
        The release that would be, and what would be left in the ledger, in words.

    Raises:
        ValueError: as ``release``.
    """
    left = would_leave(plan.purse, plan.totals)
    rows = _rows(_all(plan, check_part, None, progress))
    return plan.job.treatment.release(rows, plan.values_per_row, plan.job.form), left


def _all(plan: DatasetPlan, work: Work, secret: Secret | None, progress: bool | None) -> list[Done]:
    """The answers for all parts, in their order."""
    long = sum(part.rows for part in plan.parts) >= _LONG_ROWS
    with (
        bar(len(plan.parts), progress, long) as moved,
        closing(answers(plan.engine, work, plan.job, secret, plan.parts, lambda: moved(advance=1))) as found,
    ):
        done = list(found)
    if not _rows(done):
        with independent_of_reports():
            raise ValueError(f"{plan.parts[0].file}: every row of the dataset has a missing value, nothing to perturb")
    return sorted(done, key=lambda one: one.number)


def _rows(done: Sequence[Done]) -> int:
    return sum(one.rows for one in done)


def _check_there(out: Folder, written: Sequence[sidecar.WrittenPart]) -> None:
    there = out.sizes()
    for one in written:
        if there.get(one.name) != one.size:
            found = f"{there.get(one.name, 'no')} bytes here, {one.size} where it was written"
            raise OSError(f"{one.name}: has {found}; OUT must be a folder that all machines share")
