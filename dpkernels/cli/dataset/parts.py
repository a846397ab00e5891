"""The parts of a dataset, and the task that an engine runs for each of them.

A plan reads the files' footers, so every part knows the index of its first row before a row is read. A task is a plain
function that may be run again, anywhere, and makes the same bytes: the noise of a row is a function of the release's
key and of the row's index, and so is the name that the file gets, by a rename or an atomic put. A second run of a part,
after or beside the first, makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import click

from dpkernels.cli.dataset.folder import Folder
from dpkernels.cli.files.arrays import ArrayFile
from dpkernels.cli.files.formats import Source
from dpkernels.cli.files.layout import Layout, layout_of
from dpkernels.cli.files.opening import open_source
from dpkernels.cli.files.parquet import ParquetFile
from dpkernels.cli.files.places import Place
from dpkernels.cli.interrupts import independent_of_reports, is_independent, mark_independent
from dpkernels.cli.release.rows import ReleaseSpec, check_values, perturbed
from dpkernels.cli.release.sidecar import WrittenFile, versions
from dpkernels.staging import naming

# Bytes before compression up to which row groups form a part: 2^23 values of a column, a second's work.
PART_BYTES = 1 << 26
_OPENED = 32  # files at once: a store answers in 50 ms


@dataclass(frozen=True)
class Part:
    """Rows of one file, and their place in the release. For arrays, rows are values.

    Attributes:
        number: the number of the part, in the order of the rows.
        file: the file.
        stamp: the stamp of the file when it was planned.
        groups: the range of its row groups; None for a file without any.
        row: the first row, counted in the file.
        first: the same row, counted in the whole release; its noise has this index.
        rows: the number of rows.
    """

    number: int
    file: Place
    stamp: tuple[int, int, str]
    groups: tuple[int, int] | None
    row: int
    first: int
    rows: int

    @contextmanager
    def opened(self, layout: Layout) -> Iterator[Source]:
        """The part as a file, which has not changed since it was planned.

        Raises:
            ValueError: it has.
        """
        self.check_unchanged()
        with _source(self.file, layout, self.groups) as source:
            yield source

    def check_unchanged(self) -> None:
        """Refuse a file that is another by now.

        Raises:
            ValueError: it is.
        """
        try:
            now = self.file.stamp()
        except FileNotFoundError:
            now = None
        if now != self.stamp:
            raise ValueError(f"{self.file}: has changed since the release was planned, so it cannot be released")


@dataclass(frozen=True)
class _Planned:
    """A file before its place in the release is known."""

    file: Place
    stamp: tuple[int, int, str]
    schema: Any  # see ``_schema``
    values_per_row: int
    pieces: tuple[tuple[tuple[int, int] | None, int], ...]


def common_layout(files: Sequence[Place], kind: str | None, delimiter: str | None, multiline: bool) -> Layout:
    """Return the layout of all the files, which is also the output's.

    Raises:
        click.UsageError: the files have several layouts, or no known format.
    """
    layouts = dict[Layout, Place]()
    for file in files:
        name = Path(file.name)
        layouts.setdefault(layout_of(name, name, kind, delimiter, multiline), file)
    if len(layouts) > 1:
        one, other = list(layouts.values())[:2]
        raise click.UsageError(f"IN: {one} and {other} have different formats")
    return next(iter(layouts))


def planned(files: Sequence[Place], layout: Layout) -> tuple[Part, ...]:
    """Return the parts of a dataset, in the order of its rows. Only delimited files are read, to count their rows.

    Raises:
        ValueError: a file is not readable, has other columns than the first, or there is no row.
    """
    with ThreadPoolExecutor(_OPENED) as pool:
        found = list(pool.map(lambda file: _read(file, layout), files))
    for one in found:
        _check_alike(found[0], one)
    pieces = [(one, *piece) for one in found for piece in one.pieces]
    firsts = accumulate((rows for *_, rows in pieces), initial=0)
    parts, before = [], dict[Place, int]()
    for number, ((one, groups, rows), first) in enumerate(zip(pieces, firsts, strict=False)):
        row = before.setdefault(one.file, 0)
        parts.append(Part(number, one.file, one.stamp, groups, row, first, rows))
        before[one.file] += rows
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


def _read(file: Place, layout: Layout) -> _Planned:
    stamp = file.stamp()
    with _source(file, layout) as source:
        pieces = list(_joined(source.groups)) if isinstance(source, ParquetFile) else [(None, _count(source))]
        found = _Planned(
            file, stamp, _schema(source), source.values_per_row, tuple(piece for piece in pieces if piece[1])
        )
    if file.stamp() != stamp:
        raise ValueError(f"{file}: changed while it was planned")
    return found


def _schema(source: Source) -> Any:
    """Return what all files of a dataset have in common: columns, with their types where the format has any."""
    if isinstance(source, ParquetFile):
        return source.schema
    return (str(source.dtype),) if isinstance(source, ArrayFile) else tuple(source.names)


def _joined(groups: Sequence[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], int]]:
    """Consecutive row groups (rows, bytes) of about ``PART_BYTES`` together: which these are, and their rows."""
    begin = rows = size = 0
    for at, (some, more) in enumerate(groups):
        if rows and size + more > PART_BYTES:
            yield (begin, at), rows
            begin, rows, size = at, 0, 0
        rows, size = rows + some, size + more
    yield (begin, len(groups)), rows


def _count(source: Source) -> int:
    """Rows of a delimited file, read once; the values of an array."""
    if isinstance(source, ArrayFile):
        return source.values
    return sum(len(piece) for piece in source.pieces(source.names[:1]))


def _check_alike(first: _Planned, one: _Planned) -> None:
    if first.values_per_row != one.values_per_row:
        counts = f"{first.values_per_row} and {one.values_per_row}"
        raise ValueError(f"{first.file} and {one.file}: have {counts} values a row; all files need the same number")
    if first.schema != one.schema:
        what = "hold other types" if first.file.name.endswith(".npy") else "have other columns"
        raise ValueError(f"{first.file} and {one.file}: {what}, {_named(first)} and {_named(one)}")


def _named(one: _Planned) -> str:
    """Return the columns, with their types where a file has any."""
    return ", ".join(f"{c.name} {c.type}" if hasattr(c, "type") else str(c) for c in one.schema)


class Secret:
    """The release's key, 32 bytes: in memory, and in what an engine sends to its workers. It is never printed."""

    __slots__ = ("value",)

    def __init__(self, value: bytes) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "Secret(...)"

    def __reduce__(self) -> tuple[Any, ...]:
        return Secret, (self.value,)


@dataclass(frozen=True)
class Job:
    """The work on every part: the same for all, and without a secret.

    Attributes:
        spec: the treatment of every row.
        layout: how the files are written.
        suffix: the end of their names.
        parts: the number of parts.
        folder: where the parts go.
        versions: the driver's.
    """

    spec: ReleaseSpec
    layout: Layout
    suffix: str
    parts: int
    folder: Folder
    versions: dict[str, str]


@dataclass(frozen=True)
class TaskError:
    """The failure of a part whose data are unfit. It is no exception: engines write those to logs that many can read.

    Attributes:
        message: the problem, with the value.
        usage: whether the options are wrong.
        independent: whether the failure does not depend on the reports.
    """

    message: str
    usage: bool = False
    independent: bool = False


@dataclass(frozen=True)
class Done:
    """A finished part.

    Attributes:
        number: the number of the part.
        rows: the number of rows (for an array: values) that are left.
        written: its file; None for a check.
        not_kept: properties of the input that the file does not have.
    """

    number: int
    rows: int
    written: WrittenFile | None = None
    not_kept: tuple[str, ...] = ()


class Versioned(Protocol):
    """The data that the tasks of all parts share, such as a ``Job``."""

    @property
    def versions(self) -> dict[str, str]:
        """The versions of the driver."""


# A function of job, secret and part, which engines run.
Task = Callable[[Any, Secret | None, Any], Any]


def run_task(task: Task, job: Versioned, secret: Secret | None, part: Part) -> Any:
    """Run a task. Unfit data are a result, a ``TaskError``.

    Raises:
        OSError: reading or writing failed; the task may be tried again.
    """
    if job.versions != (own := versions()):
        problem = f"a machine of the cluster has {own}, the driver {job.versions}; a release is of one version"
        return TaskError(problem, independent=True)
    try:
        return task(job, secret, part)
    except click.UsageError as error:
        return TaskError(error.message, usage=True)
    except ValueError as error:
        name = str(part.file)
        message = str(error) if name in str(error) else f"{name}: {error}"
        return TaskError(message, independent=is_independent(error))


def perturb_part(job: Job, secret: Secret | None, part: Part) -> Done:
    """Read, check, perturb and write a part.

    Raises:
        ValueError: a value cannot be perturbed, or the file is damaged or has changed since it was planned.
        OSError: reading or writing failed.
    """
    if secret is None:
        raise TypeError("secret: is missing")
    name = job.folder.named(part.number, job.parts, job.suffix)
    with (
        naming(f"{part.file} to {name}"),
        _opened(part, job.layout) as source,
        job.folder.part(name, part.file.local) as made,
    ):
        read = rows = 0
        pieces = perturbed(job.spec, source, secret.value, _nothing, row=part.row, first=part.first)
        with source.sink(made.path) as sink, closing(pieces):
            for piece, before, left in pieces:
                sink.write(piece)
                read, rows = read + before, rows + left
        not_kept = tuple(source.not_kept(made.path))
        _check_whole(part, read)
    return Done(part.number, rows, WrittenFile(made.sha256, made.size, name, rows // source.values_per_row), not_kept)


def check_part(job: Job, secret: Secret | None, part: Part) -> Done:
    """Read and check a part.

    Raises:
        ValueError: as ``perturb_part``.
    """
    spec = job.spec
    with naming(part.file), part.opened(job.layout) as source:
        wanted = spec.columns, spec.clip, spec.row_options.missing
        read, rows = check_values(source, *wanted, _nothing, part.row)
        _check_whole(part, read)
    return Done(part.number, rows)


@contextmanager
def _opened(part: Part, layout: Layout) -> Iterator[Source]:
    with ExitStack() as held:
        with independent_of_reports():
            source = held.enter_context(part.opened(layout))
        yield source


def _check_whole(part: Part, read: int) -> None:
    with independent_of_reports():
        if read != part.rows:
            raise ValueError(f"{part.file}: has {read} rows in a part that was planned with {part.rows}")
        part.check_unchanged()


def _nothing() -> None:
    """Show no progress of single pieces: it is shown by parts."""


def results(
    engine: Any, task: Task, job: Versioned, secret: Secret | None, parts: Sequence[Part], show: Callable[[], Any]
) -> Generator[Any, None, None]:
    """Yield the results of an engine for parts, as they come.

    Raises:
        click.UsageError, ValueError: the first refusal that comes.
        OSError: a part failed.
    """
    with closing(engine.each(task, job, secret, parts)) as found:
        for one in found:
            if isinstance(one, TaskError):
                error = click.UsageError(one.message) if one.usage else ValueError(one.message)
                if one.independent:
                    mark_independent(error)
                raise error
            show()
            yield one
