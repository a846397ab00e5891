"""``perturb`` of a dataset: planned in parts, charged once, released part by part by an engine, and bound by a sidecar.

The plan reads the footers of the files, so the index of the first row of every part is known before a row is read. A
task may be run again on any machine and writes the same bytes, because the noise of a row is a function of the key of
the release and of the index of the row. The file also gets the same name, by a rename or an atomic put. So it does not
matter if a part is run twice, even at the same time.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import click

from dpkernels.bounded_json import JsonObject
from dpkernels.cli.dataset.folder import SIDECAR, Folder, LocalFolder, folder
from dpkernels.cli.errors import BadRows, RowError, error_text, row_error
from dpkernels.cli.files.arrays import ArrayFile
from dpkernels.cli.files.formats import Source
from dpkernels.cli.files.layout import DASH, Layout
from dpkernels.cli.files.locations import FoundFiles, Location, find, matches_pattern
from dpkernels.cli.files.opening import converted, open_source
from dpkernels.cli.files.parquet import ParquetFile
from dpkernels.cli.interrupts import independent_of_reports, is_independent, mark_independent
from dpkernels.cli.ledger import LedgerCharge, mark, resuming
from dpkernels.cli.perturb.plan import ReleasePlan
from dpkernels.cli.perturb.request import Request
from dpkernels.cli.perturb.rows import MAX_SHOWN, PartResult, bad_rows, release_file
from dpkernels.cli.perturb.sidecar import ReleaseSpec, WrittenFile, versions
from dpkernels.cli.terminal import private, warn
from dpkernels.cli.text import display_name, listed
from dpkernels.exact.certificate import CertificateError
from dpkernels.jax_on_use import jax
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
    name: str  # of its new file, or empty if that has a number
    file: Location
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

    file: Location
    stamp: tuple[int, int, str]
    schema: Any  # what all files of a dataset have in common: columns, with their types where the format has any
    values_per_row: int
    # Of each part the range of row groups, None for a file without any, and the number of rows.
    ranges: list[tuple[tuple[int, int] | None, int]]
    output_bytes: int  # an estimate

    @classmethod
    def read(cls, file: Location, layout: Layout, columns: Sequence[str | None]) -> _PlannedFile:
        """Read a footer or header, or all rows of a delimited file to count them."""
        stamp, ranges = file.stamp(), list[tuple[tuple[int, int] | None, int]]()
        with _source(file, layout) as source:
            if isinstance(source, ParquetFile):
                schema = source.schema
                begin = rows = size = 0
                sizes = source.group_bytes(columns)  # of true values none: the parts are public
                for number, (group_rows, group_size) in enumerate(zip(source.groups, sizes, strict=True)):
                    if rows and size + group_size > PART_BYTES:
                        ranges.append(((begin, number), rows))
                        begin, rows, size = number, 0, 0
                    rows, size = rows + group_rows, size + group_size
                ranges.append(((begin, len(source.groups)), rows))
            elif isinstance(source, ArrayFile):
                schema, ranges = (str(source.dtype),), [(None, source.count())]
            else:
                schema, ranges = tuple(source.names), [(None, source.count())]
            output_bytes, values_per_row = source.output_bytes(columns), source.values_per_row
        if file.stamp() != stamp:
            raise ValueError(f"{file}: changed while it was planned")
        return cls(file, stamp, schema, values_per_row, [part for part in ranges if part[1]], output_bytes)

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


def common_layouts(files: Sequence[Location], request: Request) -> tuple[Layout, Layout | None]:
    """Return the layout of all files, and the output's if it is another one; click.UsageError if they have several."""
    layouts = dict[tuple[Layout, Layout | None], Location]()
    for file in files:
        layouts.setdefault(request.layouts(Path(file.name), Path(file.name)), file)
    if len(layouts) > 1:
        first, second = list(layouts.values())[:2]
        raise click.UsageError(f"IN: {first} and {second} have different formats")
    return next(iter(layouts))


def plan_parts(
    files: Sequence[Location], layout: Layout, columns: Sequence[str | None] = (), written: Layout | None = None
) -> tuple[Part, ...]:
    """Return the parts of a dataset, in the order of its rows, in which these columns will be replaced.

    Only delimited files are read, to count their rows. ``written`` is the layout of the new files, if it is another.
    """
    with ThreadPoolExecutor(_OPENED) as pool:
        planned_files = list(pool.map(lambda file: _PlannedFile.read(file, layout, columns), files))
    parts, first = list[Part](), 0
    for planned_file in planned_files:
        planned_file.check_like(planned_files[0])
        row, file, stamp = 0, planned_file.file, planned_file.stamp
        for number, (groups, rows) in enumerate(planned_file.ranges):
            size = 0 if row else planned_file.output_bytes
            name = _name(file.name, layout, number, planned_file.ranges, written)
            parts.append(Part(len(parts), name, file, stamp, groups, row, first + row, rows, size))
            row += rows
        first += row
    if not parts:
        raise ValueError(f"{files[0]}: no file has a row to perturb")
    names = [part.name for part in parts]
    # In the order of their names the new files must have the rows in their order, also where case does not count.
    is_in_order = names == sorted(names) and len({name.casefold() for name in names}) == len(names)
    if not is_in_order or any(name[0] in "._" for name in names):
        parts = [replace(part, name="") for part in parts]
    return tuple(parts)


def _name(name: str, layout: Layout, number: int, ranges: Sequence[object], written: Layout | None) -> str:
    """Return the name of the new file of a part of a file: the file's own, with a number if there are several."""
    stem = name[: -len(layout.suffix)] if name.lower().endswith(layout.suffix) else name
    suffix = name[len(stem) :] if written is None else written.suffix
    return f"{stem}{suffix}" if len(ranges) == 1 else f"{stem}.{number:0{len(str(len(ranges) - 1))}}{suffix}"


@contextmanager
def _source(file: Location, layout: Layout, groups: tuple[int, int] | None = None) -> Iterator[Source]:
    if layout.file_format == "parquet":
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
    row: RowError | None = None  # the value that cannot be perturbed
    usage: bool = False  # whether the options are wrong
    unsound: bool = False  # whether the release is not what its sidecar says
    independent: bool = False  # whether the failure does not depend on the reports


# A function that engines run, of what is the same for all parts (such as a ``Job``), the release's key and a part.
Task = Callable[[Any, Secret | None, Any], Any]


def run_task(task: Task, job: Any, secret: Secret | None, part: Part) -> object:
    """Run a task. Unfit data are a result, a ``TaskError``; after an OSError the task may be tried again."""
    if job.versions != (own_versions := versions()):
        problem = f"a machine of the cluster has {own_versions}, the driver {job.versions}; a release is of one version"
        return TaskError(problem, independent=True)
    try:
        return task(job, secret, part)
    except click.UsageError as error:
        return TaskError(error.message, usage=True)
    except ValueError as error:
        name = str(part.file)
        text = error_text(error)
        message = text if name in text else f"{name}: {text}"
        fault = None if (fault := row_error(error)) is None else fault.in_file(name)
        return TaskError(message, fault, unsound=isinstance(error, CertificateError), independent=is_independent(error))


def perturb_part(job: Job, secret: Secret | None, part: Part) -> PartResult:
    """Read, perturb and write a part, or without a secret check it.

    ValueError if its values cannot be perturbed, or the file has changed.
    """
    name = part_name(job, part)
    with naming(part.file if secret is None else f"{part.file} to {name}"), ExitStack() as stack:
        with independent_of_reports():
            source = converted(stack.enter_context(part.opened(job.spec.layout)), job.spec.converted)
        output = None if secret is None else (secret.value, stack.enter_context(job.folder.part(name, part.file.local)))
        devices = jax.local_devices() if job.on_accelerators else None
        done = release_file(
            job.spec,
            source,
            output,
            part_name=name,
            source_name=part.file.name,
            first_row_of_file=part.row,
            first_row_of_release=part.first,
            devices=devices,
        )
        part.check_whole(done.read)
    return done


def part_name(job: Job, part: Part) -> str:
    """Return the name of a part's new file."""
    return job.folder.named(part.name, part.number, job.parts, job.spec.written.suffix)


def bad_rows_of_part(job: Job, secret: Secret | None, part: Part) -> tuple[int, BadRows]:
    """Return the number of a part, and its values that cannot be perturbed."""
    with part.opened(job.spec.layout) as source:
        faults = bad_rows(job.spec, converted(source, job.spec.converted), part.row)
    return part.number, replace(faults, first=[error.in_file(str(part.file)) for error in faults.first])


def results(
    engine: Any, task: Task, job: Any, secret: Secret | None, parts: Sequence[Part], progress: bool | None = None
) -> Generator[Any, None, None]:
    """Yield the results of an engine for parts, as they come, with a progress bar; raise the first refusal."""
    long = sum(part.rows for part in parts) >= _LONG_ROWS
    with bar(len(parts), progress, long) as moved, closing(engine.map_unordered(task, job, secret, parts)) as outcomes:
        for outcome in outcomes:
            if isinstance(outcome, TaskError):
                error_class = click.UsageError if outcome.usage else CertificateError if outcome.unsound else ValueError
                error = error_class(outcome.message)
                error.__cause__ = outcome.row
                if outcome.independent:
                    mark_independent(error)
                raise error
            moved(advance=1)
            yield outcome


@dataclass(frozen=True)
class DatasetPlan(ReleasePlan[Folder]):
    """A release of a dataset whose files are known, in parts in the order of their rows."""

    parts: tuple[Part, ...]
    folder: Folder
    engine: Any
    completed: dict[str, PartResult] = field(default_factory=dict)  # the parts that a killed run has completed, by name

    def values(self) -> int:
        return sum(part.rows for part in self.parts)

    @contextmanager
    def output(self) -> Iterator[Folder]:
        with self.folder.run() as folder, self.engine.ready():
            yield folder

    def output_bytes(self) -> int:
        return sum(part.output_bytes for part in self.parts)

    def _job(self) -> Job:
        return Job(self.spec, len(self.parts), self.folder, on_accelerators=self.engine.gpus > 0)

    def _bad_rows(self) -> BadRows | None:
        with suppress(ValueError, OSError, click.UsageError):
            of_parts = dict(results(self.engine, bad_rows_of_part, self._job(), None, self.parts, progress=False))
            parts = [of_parts[number] for number in sorted(of_parts)]  # An engine gives them as they come.
            counts = sum((Counter(part.counts) for part in parts), Counter[str]())
            first = [error for part in parts for error in part.first]
            return BadRows(counts, first[:MAX_SHOWN], all(part.is_all for part in parts))
        return None

    def _charging(self, output: Folder) -> AbstractContextManager[LedgerCharge | None]:
        return self._resuming(output) if isinstance(output, LocalFolder) and output.resume else self._beginning(output)

    @contextmanager
    def _beginning(self, output: Folder) -> Iterator[LedgerCharge | None]:
        with super()._charging(output) as charge:
            noted = None if charge is None else {**charge.to_dict(), "marks": 0}
            with independent_of_reports():  # No part is made yet.
                output.begin(self._description() | {"charge": noted})
            with output.drawing(len(self.parts)):
                yield charge

    @contextmanager
    def _resuming(self, output: LocalFolder) -> Iterator[LedgerCharge | None]:
        """Continue a killed run, after checking that everything that its parts depend on is what it was."""
        try:
            begun, *entries = output.journal()
            charge = begun.pop("charge")
            for entry in (entry for entry in entries if "marks" in entry):
                charge |= entry
            files = {entry["name"]: entry for entry in entries if "name" in entry}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"--resume: the journal of the killed run to {output.target} is damaged") from error
        for word, value in json.loads(json.dumps(self._description())).items():
            if begun.get(word) != value:
                raise click.UsageError(f"--resume: {word} differ from those of the killed run to {output.target}")
        output.keep({name: entry["sha256"] for name, entry in files.items()})
        with resuming(self.ledger_account, self.price, charge, output) as ledger_charge:
            if charge is not None:
                output.note({"marks": charge["marks"] + 1})
            self.completed.update((name, _done(entry)) for name, entry in files.items())
            with output.drawing(len(self.parts)):
                yield ledger_charge

    def _description(self) -> JsonObject:
        """Return what the parts depend on, in words and numbers that a later run compares."""
        return {
            "versions": versions(),
            "options": hashlib.sha256(json.dumps(self.spec.to_dict()).encode()).hexdigest(),
            "input files": [_identity(part) for part in self.parts],
        }

    def _commit(self, output: Folder, charge: LedgerCharge | None, sidecar: str, names: Sequence[str]) -> None:
        output.commit(sidecar, names, partial(_mark, charge))

    def write(self, output: Folder | None, progress: bool | None) -> list[PartResult]:
        job = self._job()
        parts = [part for part in self.parts if part_name(job, part) not in self.completed]
        # The only copy of the key outside of the engine: it is gone when the parts are made.
        secret = None if output is None else Secret(os.urandom(32))
        finished = list[PartResult]()
        with closing(results(self.engine, perturb_part, job, secret, parts, progress)) as outcomes:
            for file in outcomes if parts else ():
                finished.append(file)
                if output is not None and file.written is not None:
                    output.note(
                        {**file.written.to_dict(), "read": file.read, "kept": file.rows, "lost": file.lost_properties}
                    )
        del secret
        order = {part_name(job, part): part.number for part in self.parts}
        done = sorted(
            [*finished, *self.completed.values()], key=lambda file: order[file.written.name] if file.written else 0
        )
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


def _identity(part: Part) -> list[str | int]:
    """Return the file and the rows of a part. On this machine a file that was written again has another identity."""
    identity = [str(part.file), *part.stamp, *(part.groups or ()), part.name, part.row, part.first, part.rows]
    if part.file.local is None:
        return identity
    status = part.file.local.stat()
    return [*identity, status.st_ino, status.st_ctime_ns]


def _mark(charge: LedgerCharge | None) -> None:
    """Note in the ledger that a run is complete, so that no copy of an earlier state of it can be continued."""
    if charge is not None:
        mark(charge.ledger, charge.entry.id, charge.marks)


def _done(entry: JsonObject) -> PartResult:
    """Return what the journal says of a complete part."""
    written = WrittenFile(entry["sha256"], entry["bytes"], entry["name"], entry["rows"], entry["input"])
    return PartResult(entry["read"], entry["kept"], written, tuple(entry["lost"]))


def plan(request: Request, engine: object) -> DatasetPlan:
    """Check everything of a release of many files that can be checked before a value is read."""
    request.check_no_queries()
    source, target = str(request.source), str(request.target)
    dash = "OUT: - is for one file; a dataset is released into a folder (./- is a folder of this name)"
    for is_refused, problem in (
        (target == str(DASH), dash),
        (request.force, "--force: a release of many files needs a new folder"),
        (request.shuffle_rows, "--shuffle-rows: is for one file; shuffle the rows of a dataset beforehand"),
        (request.sidecar, f"--sidecar: is for one file; the sidecar of a dataset is {SIDECAR} in its folder"),
    ):
        if is_refused:
            raise click.UsageError(problem)
    dataset = find(source)
    if dataset.skipped:
        why = "folders, which a pattern does not read" if dataset.folder is None else "names that begin with . or _"
        warn(f"IN: of {source} these are not read ({why}): {listed(dataset.skipped)}")
    like, location = dataset.files[0].local, Location.parse(target)
    output = folder(target, None if like is None else like.parent, request.resume)
    layout, written = common_layouts(dataset.files, request)
    _check_apart(source, dataset, location, layout, written)
    folders = [
        folder_location.local
        for folder_location in (location, dataset.folder)
        if folder_location is not None and folder_location.local is not None
    ]
    ledger_account = request.account([file.local for file in dataset.files if file.local], folders)
    parts = plan_parts(dataset.files, layout, request.columns or [None], written)
    with parts[0].opened(layout) as first:
        spec = request.spec(converted(first, written), layout, written, shuffleable=False)
    name = request.name(f"perturb {display_name(parts[0].file.name)} and on to {display_name(target)}")
    return DatasetPlan(spec, ledger_account, name, str(location.child(SIDECAR)), parts, output, engine)


def _check_apart(source: str, dataset: FoundFiles, target: Location, layout: Layout, written: Layout | None) -> None:
    """Refuse an output that is the input, or that the same command would read the next time."""
    if any(_is_within(file, target) for file in dataset.files):
        raise click.UsageError(f"OUT: {target} is the folder of the input")
    if dataset.folder is not None and _is_within(target, dataset.folder):
        raise click.UsageError(f"OUT: {target} is in the folder of the input; choose a folder outside it")
    names = [f"part-0{''.join(PurePosixPath(dataset.files[0].name).suffixes[-2:])}"]
    new = {_name(name, layout, 0, [0], written) for name in names + [file.name for file in dataset.files]}
    if dataset.folder is None and any(matches_pattern(source, target, name) for name in new):
        raise click.UsageError(f"OUT: {target} would have files that match {source}, so the next run would read them")


def _is_within(location: Location, folder: Location) -> bool:
    if location.local is not None and folder.local is not None:
        return location.local.resolve().is_relative_to(folder.local.resolve())
    return location.uri == folder.uri and location.path.startswith(f"{folder.path.rstrip('/')}/")
