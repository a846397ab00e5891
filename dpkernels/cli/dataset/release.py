"""``dpkernels perturb`` of a dataset: planned, charged once, released in parts by an engine, and bound by a sidecar."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import click

from dpkernels.cli.dataset.engines import Engine
from dpkernels.cli.dataset.folder import SIDECAR, Folder, folder
from dpkernels.cli.dataset.parts import (
    Done,
    Job,
    Part,
    Secret,
    Task,
    check_part,
    common_layout,
    perturb_part,
    planned,
    results,
)
from dpkernels.cli.files.layout import DASH
from dpkernels.cli.files.places import FoundFiles, Place, find, would_match
from dpkernels.cli.interrupts import independent_of_reports
from dpkernels.cli.ledger import LedgerAccount
from dpkernels.cli.release.plan import Plan, Request
from dpkernels.cli.release.sidecar import WrittenFile
from dpkernels.cli.text import listed, shown
from dpkernels.progress import bar

LONG_ROWS = 1 << 22  # of a dataset, from which a terminal sees a bar


@dataclass(frozen=True)
class DatasetPlan(Plan):
    """A release of a dataset whose files are known, in parts in the order of their rows."""

    parts: tuple[Part, ...]
    folder: Folder
    engine: Engine

    @contextmanager
    def output(self) -> Iterator[Folder]:
        with self.folder.run(), self.engine.ready():
            yield self.folder

    def read(self, progress: bool | None) -> int:
        return sum(one.rows for one in self._all(check_part, None, progress))

    def write(self, output: Folder, progress: bool | None) -> tuple[int, list[str], list[WrittenFile]]:
        # The only copy of the key outside of the engine: it is gone when the parts are made.
        done = self._all(perturb_part, Secret(os.urandom(32)), progress)
        written = [one.written for one in done if one.written is not None]
        sizes = output.sizes()
        for one in written:
            if sizes.get(one.name) != one.size:
                found = f"{sizes.get(one.name, 'no')} bytes here, {one.size} where it was written"
                raise OSError(f"{one.name}: has {found}; OUT must be a folder that all machines share")
        not_kept = dict.fromkeys(note for one in done for note in one.not_kept)
        return sum(one.rows for one in done), list(not_kept), written

    def commit(self, output: Folder, sidecar: str, written: list[WrittenFile]) -> None:
        output.finish(sidecar, [one.name for one in written])

    def _all(self, task: Task, secret: Secret | None, progress: bool | None) -> list[Done]:
        long = sum(part.rows for part in self.parts) >= LONG_ROWS
        job = Job(self.spec, len(self.parts), self.folder)
        with (
            bar(len(self.parts), progress, long) as moved,
            closing(results(self.engine, task, job, secret, self.parts, lambda: moved(advance=1))) as found,
        ):
            done = sorted(found, key=lambda one: one.number)
        if not any(one.rows for one in done):
            with independent_of_reports():
                first = self.parts[0].file
                raise ValueError(f"{first}: every row of the dataset has a missing value; there is no row to perturb")
        return done


def plan(request: Request, engine: Engine) -> DatasetPlan:
    """Check everything of a release of many files that can be checked before a value is read."""
    source, target = str(request.source), str(request.target)
    _refuse(request)
    found = find(source)
    if found.skipped:
        why = "folders, which a pattern does not read" if found.folder is None else "names that begin with . or _"
        click.echo(f"dpkernels: IN: of {source} these are not read ({why}): {listed(found.skipped)}", err=True)
    like, place = found.files[0].local, Place.of(target)
    out = folder(target, None if like is None else like.parent)
    _check_apart(source, found, place)
    folders = [one.local for one in (place, found.folder) if one is not None and one.local is not None]
    ledger_account = LedgerAccount.of(request.ledger, [file.local for file in found.files if file.local], folders)
    layout = common_layout(found.files, request.kind, request.delimiter, request.multiline)
    parts = planned(found.files, layout)
    with parts[0].opened(layout) as first:
        spec = request.spec(first, layout, replace(request.rows, shuffleable=False))
    name = f"perturb {shown(parts[0].file.name)} and on to {shown(target)}"
    return DatasetPlan(spec, ledger_account, name, str(place.child(SIDECAR)), parts, out, engine)


def _refuse(request: Request) -> None:
    """Refuse options that are for single files."""
    dash = "OUT: - is for one file; a dataset is released into a folder (./- is a folder of this name)"
    for wrong, problem in (
        (str(request.target) == str(DASH), dash),
        (request.force, "--force: a release of many files needs a new folder"),
        (request.rows.shuffle, "--shuffle-rows: is for one file; shuffle the rows of a dataset beforehand"),
        (request.sidecar, f"--sidecar: is for one file; the sidecar of a dataset is {SIDECAR} in its folder"),
    ):
        if wrong:
            raise click.UsageError(problem)


def _check_apart(source: str, found: FoundFiles, target: Place) -> None:
    """Refuse an output that is the input, or that the same command would read the next time."""
    if any(_is_within(file, target) for file in found.files):
        raise click.UsageError(f"OUT: {target} is the folder of the input")
    if found.folder is not None and _is_within(target, found.folder):
        raise click.UsageError(f"OUT: {target} is in the folder of the input; choose a folder outside it")
    name = f"part-0{''.join(PurePosixPath(found.files[0].name).suffixes[-2:])}"
    if found.folder is None and would_match(source, target, name):
        raise click.UsageError(f"OUT: {target} would have files that match {source}, so the next run would read them")


def _is_within(place: Place, folder: Place) -> bool:
    if place.local is not None and folder.local is not None:
        return place.local.resolve().is_relative_to(folder.local.resolve())
    return place.uri == folder.uri and place.path.startswith(f"{folder.path.rstrip('/')}/")
