"""``perturb`` of a dataset: planned in parts, charged once, released part by part by an engine, and bound by a sidecar.

A plan reads the files' footers, so every part knows the index of its first row before a row is read. A task may be run
again, anywhere, and makes the same bytes: the noise of a row is a function of the release's key and of the row's index,
and so is the name that the file gets, by a rename or an atomic put. A second run of a part, after or beside the first,
makes no difference.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import click
import jax

from dpkernels.cli.dataset.folder import SIDECAR, Folder, folder
from dpkernels.cli.errors import text_of
from dpkernels.cli.files.arrays import ArrayFile
from dpkernels.cli.files.formats import Source
from dpkernels.cli.files.layout import DASH, Layout, layout_of
from dpkernels.cli.files.opening import open_source
from dpkernels.cli.files.parquet import ParquetFile
from dpkernels.cli.files.places import FoundFiles, Place, find, would_match
from dpkernels.cli.interrupts import independent_of_reports, is_independent, mark_independent
from dpkernels.cli.release.plan import Done, Plan, Request, release_file
from dpkernels.cli.release.sidecar import ReleaseSpec, versions
from dpkernels.cli.terminal import private, warn
from dpkernels.cli.text import display_name, listed
from dpkernels.exact.certificate import CertificateError
from dpkernels.progress import bar
from dpkernels.staging import naming

# Bytes before compression up to which row groups form a part: 2^23 values of a column, a second's work.
PART_BYTES = 1 << 26
_OPENED = 32  # files at once: a store answers in 50 ms
_LONG_ROWS = 1 << 22  # of a dataset, from which a terminal sees a bar


@dataclass(frozen=True)
class Part:
    """Rows of one file, and their place in the release. For arrays, rows are values."""

    number: int  # of the part, in the order of the rows
    file: Place
    stamp: tuple[int, int, str]  # of the file when it was planned
    groups: tuple[int, int] | None  # the range of its row groups; None for a file without any
    row: int  # the first row, counted in the file
    first: int  # the same row, counted in the whole release; its noise has this index
    rows: int
    output_bytes: int  # an estimate for the whole file, or 0 for parts after its first one

    @contextmanager
    def opened(self, layout: Layout) -> Iterator[Source]:
        """Open the part as a file; ValueError if the file has changed since it was planned."""
        self.check_unchanged()
        with _source(self.file, layout, self.groups) as source:
            yield source

    def check_unchanged(self) -> None:
        try:
            stamp = self.file.stamp()
        except FileNotFoundError:
            stamp = None
        if stamp != self.stamp:
            raise ValueError(f"{self.file}: has changed since the release was planned, so it cannot be released")

    def check_whole(self, read: int) -> None:
        """Refuse a part that did not have the planned number of rows, or whose file has changed."""
        with independent_of_reports():
            if read != self.rows:
                raise ValueError(f"{self.file}: has {read} rows in a part that was planned with {self.rows}")
            self.check_unchanged()


@dataclass(frozen=True)
class _PlannedFile:
    """A file before its place in the release is known."""

    file: Place
    stamp: tuple[int, int, str]
    schema: Any  # what all files of a dataset have in common: columns, with their types where the format has any
    values_per_row: int
    # Of each part the range of row groups, None for a file without any, and the number of rows.
    pieces: list[tuple[tuple[int, int] | None, int]]
    output_bytes: int  # an estimate

    @classmethod
    def of(cls, file: Place, layout: Layout, columns: Sequence[str | None]) -> _PlannedFile:
        """Read a footer or header, or all rows of a delimited file to count them."""
        stamp, pieces = file.stamp(), list[tuple[tuple[int, int] | None, int]]()
        with _source(file, layout) as source:
            if isinstance(source, ParquetFile):
                schema: Any = source.schema
                begin = rows = size = 0
                for number, (some, more) in enumerate(source.groups):
                    if rows and size + more > PART_BYTES:
                        pieces.append(((begin, number), rows))
                        begin, rows, size = number, 0, 0
                    rows, size = rows + some, size + more
                pieces.append(((begin, len(source.groups)), rows))
            elif isinstance(source, ArrayFile):
                schema, pieces = (str(source.dtype),), [(None, source.count())]
            else:
                schema, pieces = tuple(source.names), [(None, source.count())]
            output_bytes, values_per_row = source.output_bytes(columns), source.values_per_row
        if file.stamp() != stamp:
            raise ValueError(f"{file}: changed while it was planned")
        return cls(file, stamp, schema, values_per_row, [piece for piece in pieces if piece[1]], output_bytes)

    def check_like(self, first: _PlannedFile) -> None:
        pair = f"{first.file} and {self.file}"
        if first.values_per_row != self.values_per_row:
            counts = f"{first.values_per_row} and {self.values_per_row}"
            raise ValueError(f"{pair}: have {counts} values a row; all files need the same number")
        if first.schema != self.schema:
            difference = "hold other types" if first.file.name.endswith(".npy") else "have other columns"
            schemas = first.schema, self.schema
            columns = [[f"{c.name} {c.type}" if hasattr(c, "type") else c for c in schema] for schema in schemas]
            counts = f"{len(columns[0])} and {len(columns[1])} of them"
            raise ValueError(f"{pair}: {difference}, {private(' and '.join(map(', '.join, columns)), counts)}")


def common_layout(
    files: Sequence[Place], kind: str | None, delimiter: str | None, multiline: bool, markers: Sequence[str] = ()
) -> Layout:
    """Return the layout of all the files, which is also the output's; click.UsageError if they have several."""
    layouts = dict[Layout, Place]()
    for file in files:
        name = Path(file.name)
        layouts.setdefault(layout_of(name, name, kind, delimiter, multiline, markers), file)
    if len(layouts) > 1:
        first, other = list(layouts.values())[:2]
        raise click.UsageError(f"IN: {first} and {other} have different formats")
    return next(iter(layouts))


def plan_parts(files: Sequence[Place], layout: Layout, columns: Sequence[str | None] = ()) -> tuple[Part, ...]:
    """Return the parts of a dataset, in the order of its rows, in which these columns will be replaced.

    Only delimited files are read, to count their rows.
    """
    with ThreadPoolExecutor(_OPENED) as pool:
        planned_files = list(pool.map(lambda file: _PlannedFile.of(file, layout, columns), files))
    parts, first = list[Part](), 0
    for planned_file in planned_files:
        planned_file.check_like(planned_files[0])
        row = 0
        for groups, rows in planned_file.pieces:
            size = 0 if row else planned_file.output_bytes
            parts.append(Part(len(parts), planned_file.file, planned_file.stamp, groups, row, first + row, rows, size))
            row += rows
        first += row
    if not parts:
        raise ValueError(f"{files[0]}: no file has a row to perturb")
    return tuple(parts)


@contextmanager
def _source(file: Place, layout: Layout, groups: tuple[int, int] | None = None) -> Iterator[Source]:
    if layout.kind == "parquet":
        yield ParquetFile(Path(str(file)), layout, groups, None if file.local else file.opened)
        return
    with file.at_hand() as path:
        yield open_source(path, layout)


@dataclass(frozen=True, repr=False)
class Secret:
    """The release's key, 32 bytes: in memory, and in what an engine sends to its workers. It is never printed."""

    value: bytes


@dataclass(frozen=True)
class Job:
    """The work on every part: the same for all, and without a secret. The versions are the driver's."""

    spec: ReleaseSpec
    parts: int
    folder: Folder
    versions: dict[str, str] = field(default_factory=versions)
    on_accelerators: bool = False  # whether a task makes reports on the accelerators that it was given


@dataclass(frozen=True)
class TaskError:
    """The failure of a part whose data are unfit: no exception, because engines write those to logs many can read."""

    message: str
    usage: bool = False  # whether the options are wrong
    unsound: bool = False  # whether the release is not what its sidecar says
    independent: bool = False  # whether the failure does not depend on the reports


# A function that engines run, of what is the same for all parts (such as a ``Job``), the release's key and a part.
Task = Callable[[Any, Secret | None, Any], Any]


def run_task(task: Task, job: Any, secret: Secret | None, part: Part) -> Any:
    """Run a task. Unfit data are a result, a ``TaskError``; after an OSError the task may be tried again."""
    if job.versions != (here := versions()):
        problem = f"a machine of the cluster has {here}, the driver {job.versions}; a release is of one version"
        return TaskError(problem, independent=True)
    try:
        return task(job, secret, part)
    except click.UsageError as error:
        return TaskError(error.message, usage=True)
    except ValueError as error:
        name = str(part.file)
        text = text_of(error)
        message = text if name in text else f"{name}: {text}"
        return TaskError(message, unsound=isinstance(error, CertificateError), independent=is_independent(error))


def perturb_part(job: Job, secret: Secret | None, part: Part) -> Done:
    """Read, perturb and write a part, or without a secret check it.

    ValueError if its values cannot be perturbed, or the file has changed.
    """
    name = job.folder.named(part.number, job.parts, job.spec.layout.suffix)
    with naming(part.file if secret is None else f"{part.file} to {name}"), ExitStack() as held:
        with independent_of_reports():
            source = held.enter_context(part.opened(job.spec.layout))
        output = None if secret is None else (secret.value, held.enter_context(job.folder.part(name, part.file.local)))
        devices = jax.local_devices() if job.on_accelerators else None
        done = release_file(job.spec, source, output, name=name, row=part.row, first=part.first, devices=devices)
        part.check_whole(done.read)
    return done


def results(
    engine: Any, task: Task, job: Any, secret: Secret | None, parts: Sequence[Part], progress: bool | None = None
) -> Generator[Any, None, None]:
    """Yield the results of an engine for parts, as they come, with a progress bar; raise the first refusal."""
    long = sum(part.rows for part in parts) >= _LONG_ROWS
    with bar(len(parts), progress, long) as moved, closing(engine.each(task, job, secret, parts)) as outcomes:
        for outcome in outcomes:
            if isinstance(outcome, TaskError):
                kind = click.UsageError if outcome.usage else CertificateError if outcome.unsound else ValueError
                error = kind(outcome.message)
                if outcome.independent:
                    mark_independent(error)
                raise error
            moved(advance=1)
            yield outcome


@dataclass(frozen=True)
class DatasetPlan(Plan):
    """A release of a dataset whose files are known, in parts in the order of their rows."""

    parts: tuple[Part, ...]
    folder: Folder
    engine: Any

    def values(self) -> int:
        return sum(part.rows for part in self.parts)

    @contextmanager
    def output(self) -> Iterator[Folder]:
        with self.folder.run() as folder, self.engine.ready():
            yield folder

    def output_bytes(self) -> int:
        return sum(part.output_bytes for part in self.parts)

    def write(self, output: Folder | None, progress: bool | None) -> list[Done]:
        # The only copy of the key outside of the engine: it is gone when the parts are made.
        secret = None if output is None else Secret(os.urandom(32))
        job = Job(self.spec, len(self.parts), self.folder, on_accelerators=self.engine.gpus > 0)
        with closing(results(self.engine, perturb_part, job, secret, self.parts, progress)) as outcomes:
            done = sorted(outcomes, key=lambda file: file.written.name if file.written else "")
        del secret
        written = [file.written for file in done if file.written]
        if output is not None and len(written) < len(self.parts):
            raise OSError(
                f"{output.target}: {len(written)} files were written for {len(self.parts)} parts of the release"
            )
        if not any(file.rows for file in done):
            with independent_of_reports():
                first = self.parts[0].file
                raise ValueError(f"{first}: every row of the dataset has a missing value; there is no row to perturb")
        sizes = {} if output is None else output.sizes()
        for file in written:
            if sizes.get(file.name) != file.size:
                sizes_here = f"{sizes.get(file.name, 'no')} bytes here, {file.size} where it was written"
                raise OSError(f"{file.name}: has {sizes_here}; OUT must be a folder that all machines share")
        return done


def plan(request: Request, engine: Any) -> DatasetPlan:
    """Check everything of a release of many files that can be checked before a value is read."""
    source, target = str(request.source), str(request.target)
    dash = "OUT: - is for one file; a dataset is released into a folder (./- is a folder of this name)"
    for wrong, problem in (
        (target == str(DASH), dash),
        (request.force, "--force: a release of many files needs a new folder"),
        (request.shuffle_rows, "--shuffle-rows: is for one file; shuffle the rows of a dataset beforehand"),
        (request.sidecar, f"--sidecar: is for one file; the sidecar of a dataset is {SIDECAR} in its folder"),
    ):
        if wrong:
            raise click.UsageError(problem)
    dataset = find(source)
    if dataset.skipped:
        why = "folders, which a pattern does not read" if dataset.folder is None else "names that begin with . or _"
        warn(f"IN: of {source} these are not read ({why}): {listed(dataset.skipped)}")
    like, place = dataset.files[0].local, Place.of(target)
    out = folder(target, None if like is None else like.parent)
    _check_apart(source, dataset, place)
    folders = [place_.local for place_ in (place, dataset.folder) if place_ is not None and place_.local is not None]
    ledger_account = request.account([file.local for file in dataset.files if file.local], folders)
    layout = common_layout(dataset.files, request.kind, request.delimiter, request.multiline, request.missing_markers)
    parts = plan_parts(dataset.files, layout, request.columns or [None])
    with parts[0].opened(layout) as first:
        spec = request.spec(first, layout, shuffleable=False)
    name = request.name(f"perturb {display_name(parts[0].file.name)} and on to {display_name(target)}")
    return DatasetPlan(spec, ledger_account, name, str(place.child(SIDECAR)), parts, out, engine)


def _check_apart(source: str, dataset: FoundFiles, target: Place) -> None:
    """Refuse an output that is the input, or that the same command would read the next time."""
    if any(_is_within(file, target) for file in dataset.files):
        raise click.UsageError(f"OUT: {target} is the folder of the input")
    if dataset.folder is not None and _is_within(target, dataset.folder):
        raise click.UsageError(f"OUT: {target} is in the folder of the input; choose a folder outside it")
    name = f"part-0{''.join(PurePosixPath(dataset.files[0].name).suffixes[-2:])}"
    if dataset.folder is None and would_match(source, target, name):
        raise click.UsageError(f"OUT: {target} would have files that match {source}, so the next run would read them")


def _is_within(place: Place, folder: Place) -> bool:
    if place.local is not None and folder.local is not None:
        return place.local.resolve().is_relative_to(folder.local.resolve())
    return place.uri == folder.uri and place.path.startswith(f"{folder.path.rstrip('/')}/")
