"""``dpkernels perturb``: the release of a file's rows, chunk by chunk through the exact engine, and its plan."""

from __future__ import annotations

import abc
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from io import BufferedIOBase
from itertools import count, islice
from pathlib import Path
from typing import Any, Generic, TypeVar

import click
import numpy as np

from dpkernels.cli import categories
from dpkernels.cli.calendar import date_text, days_since
from dpkernels.cli.errors import BadRows, RowError, error_text, row_error
from dpkernels.cli.files.categories import CategoryReports, is_categorical
from dpkernels.cli.files.converted import ConvertedFile
from dpkernels.cli.files.formats import Numbers, Source, ahead
from dpkernels.cli.files.layout import DASH, STANDARD_INPUT, Layout, input_layout, written_layout
from dpkernels.cli.files.locations import FILE, file_kind
from dpkernels.cli.files.opening import converted, open_source
from dpkernels.cli.interrupts import independent_of_reports, raise_if_interrupted
from dpkernels.cli.ledger import LedgerAccount, LedgerCharge, Price, ReleaseOutput, charging
from dpkernels.cli.mechanisms import DEFAULT, build_exact_sampler, check_count, options_by_column
from dpkernels.cli.options import flag, single
from dpkernels.cli.perturb import queries as of_rows
from dpkernels.cli.perturb.categories import perturb_categories
from dpkernels.cli.perturb.output import Output, StandardOutput, check_target, sidecar_path
from dpkernels.cli.perturb.sidecar import Column, Release, ReleaseSpec, RowOptions, WrittenFile, to_json
from dpkernels.cli.terminal import private, warn
from dpkernels.cli.text import display_name, label, listed
from dpkernels.decimals import shortest
from dpkernels.exact.batches import ExactBatch
from dpkernels.progress import bar
from dpkernels.random import host
from dpkernels.random.keys import column_secret
from dpkernels.release.charges import DIFFERENT_PEOPLE, SAME_PEOPLE, is_statistic
from dpkernels.release.engines import exact_engine, in_chunks
from dpkernels.release.inputs import Bounds, InputError, report_type
from dpkernels.staging import descriptor_path, naming, sha256_and_size

_LONG_BYTES = 1 << 26  # of an input, from which a terminal sees a bar
_NOT_FINITE = "; every value must be a finite number, or missing with --missing keep or --missing drop"
# Numbers that are folded into a release's key where there is no column's name, whose hash would be folded in.
_ARRAY = 0  # for the values of an array
_ROW_ORDER = 1  # for the order of rows
# Rows are held in memory to be shuffled.
MAX_SHUFFLED_BYTES = 1 << 30
MAX_SHOWN = 10  # values that cannot be perturbed, in a message
MAX_COUNTED = 1000  # such values; the search ends then
_SEARCHED_ROWS = 1 << 8  # among which each of them is looked for
HELD = f"they are held in memory, at most {MAX_SHUFFLED_BYTES}"

# What is done with the values of a column of a chunk, which begins with a row of the file.
ColumnFunction = Callable[[np.ndarray, Bounds, int], np.ndarray]
# What is done with a column of categories: a chunk and its first row become its reports.
CategoryFunction = Callable[[Any, int], CategoryReports]


def row_order(secret: bytes, rows: int) -> np.ndarray:
    """Return a uniformly random order: that of random 64-bit words, all drawn again where two are equal."""
    key = host.fold_in(secret, _ROW_ORDER)
    for stream in count():
        words = np.empty(rows, "<u8")
        host.fill(words, key, stream, 0)
        order = np.argsort(words)
        if (np.diff(words[order]) > 0).all():
            return order
    raise AssertionError


@dataclass(frozen=True)
class Done:
    """The rows (of an array: values) that were read, and those that are left and were perturbed, or only checked."""

    read: int
    rows: int
    written: WrittenFile | None = None  # None for a check
    lost_properties: tuple[str, ...] = ()  # properties of the input that the file does not have


def release_file(
    spec: ReleaseSpec,
    source: Source,
    output: tuple[bytes, BufferedIOBase] | None,
    show: Callable[[], object] = lambda: None,
    *,
    name: str = "",
    file_name: str = "",
    row: int = 0,
    first: int = 0,
    devices: Sequence[Any] | None = None,
) -> Done:
    """Perturb the rows of a file or a part, or without an output check them.

    ``output`` is the release's key of 32 bytes and a new file; what has no key has no file. ``row`` is the first
    chunk's row in the file, and ``first`` in the whole release, whose noise it gets. ``show`` is called after every
    chunk. ``name`` is the new file's in a dataset, a part of which may have no row left; else that is a ValueError.
    ``file_name`` is that of the part's file.
    ``devices`` are those of JAX that make the reports, by default the CPU.
    """
    key, file = output or (None, None)
    shuffled_chunks, read, rows, size = list[Any](), 0, 0, 0
    functions = {
        column.name: _column_function(spec, source, column, key, first - row, devices) for column in spec.columns
    }
    chunks = source.chunks([*functions, *(spec.queries.names if spec.queries else ())])
    with (
        nullcontext() if file is None else source.sink(descriptor_path(file)) as write,
        # A request to stop need not wait for a stream's next bytes.
        closing(chunks if source.path == STANDARD_INPUT else ahead(chunks)) as following,
    ):
        columns = _columns(spec, source, following, functions, row)
        while True:
            with independent_of_reports():
                if (following_piece := next(columns, None)) is None:
                    if spec.queries:
                        spec.queries.check_row_count(source, read)
                    break
            chunk, reports, is_whole = following_piece
            read, rows = read + len(chunk), rows + (len(chunk) if is_whole is None else int(is_whole.sum()))
            if write is not None:
                done = source.replaced(chunk, reports)
                done = done if is_whole is None else source.select(done, is_whole)
                if spec.row_options.shuffle:
                    shuffled_chunks.append(done)
                    size += source.size(done)
                else:
                    write(done)
            if size > MAX_SHUFFLED_BYTES:
                raise ValueError(f"--shuffle-rows: the rows take more than {size} bytes; {HELD}")
            show()
            raise_if_interrupted()
        if not rows and not name:  # before the output is completed: that may fail too, and would keep the charge
            with independent_of_reports():
                problem = "every row has a missing value" if read else "is empty"
                raise ValueError(f"{source.path}: {problem}; there is no row to perturb")
        if write is not None and key is not None and shuffled_chunks:
            for chunk in source.reordered(shuffled_chunks, row_order(key, rows // source.values_per_row)):
                write(chunk)
    if file is None or not read:
        return Done(read, rows)
    written = WrittenFile(*sha256_and_size(file), name, rows // source.values_per_row, file_name)
    return Done(read, rows, written, tuple(source.lost_properties(descriptor_path(file))))


def _column_function(
    spec: ReleaseSpec, source: Source, column: Column, key: bytes | None, offset: int, devices: Sequence[Any] | None
) -> ColumnFunction | CategoryFunction:
    """Return a check, or noise of a key of the column's own: two columns never share noise."""
    column_key = None
    if key is not None:
        column_key = host.fold_in(key, _ARRAY) if column.name is None else column_secret(key, column.name)
    if is_categorical(column.sampler.certificate):
        missing = spec.row_options.missing
        return lambda chunk, start: perturb_categories(source, column, chunk, start, column_key, offset, missing)
    if column_key is None and isinstance(column.sampler, ExactBatch):
        return lambda values, bounds, row: bounds.check_entries(values, np.arange(row, row + len(values)), row)
    if column_key is None:
        return lambda values, bounds, row: bounds.check(values, first=row)
    engine = exact_engine(column.sampler, column_key, devices)
    return lambda values, bounds, row: in_chunks(engine, bounds, values, start=row + offset, row=row)


def _columns(
    spec: ReleaseSpec, source: Source, chunks: Iterable[Sized], functions: Mapping[str | None, object], row: int
) -> Iterator[tuple[Sized, dict[str | None, Numbers | CategoryReports], np.ndarray | None]]:
    """Yield each chunk with what ``functions`` make of its columns, and the mask of the rows that are kept, or None."""
    bounds = [
        None if is_categorical(column.sampler.certificate) else Bounds.of(column.sampler, spec.clip)
        for column in spec.columns
    ]
    for chunk in chunks:
        if spec.queries:
            spec.queries.check(source, chunk, row)
        numbers = {
            column.name: _apply_to_column(spec, source, column, column_bounds, chunk, row, functions[column.name])
            for column, column_bounds in zip(spec.columns, bounds, strict=True)
        }
        masks = [column_numbers.missing for column_numbers in numbers.values() if column_numbers.missing is not None]
        # Also where no row of this chunk is dropped: all chunks have the types of those that lack rows.
        is_whole = ~np.logical_or.reduce([np.zeros(len(chunk), bool), *masks])
        yield chunk, numbers, is_whole if spec.row_options.missing == "drop" else None
        row += len(chunk)


def _apply_to_column(
    spec: ReleaseSpec, source: Source, column: Column, bounds: Bounds | None, chunk: Sized, start: int, function: Any
) -> Numbers | CategoryReports:
    """Return a column of a chunk whose first row is ``start``, with what ``function`` makes of its values.

    A ValueError of a value that cannot be perturbed names its column, its place and a remedy.
    """
    first = 0
    try:
        if bounds is None:
            return function(chunk, start)
        if column.date_origin is None:
            numbers = source.numbers(chunk, column.name, start)
        else:
            numbers = _days(source, chunk, str(column.name), start, column.date_origin, bounds.has_sensitivity)
        if bounds.has_sensitivity and numbers.rounded is not None:
            problem = "is a whole number that float64 rounds, which may move neighbours further apart"
            raise _row_error(source, chunk, start, numbers.rounded, "whole numbers that float64 rounds", problem)
        values, missing = numbers.values, numbers.missing
        if missing is not None and spec.row_options.missing == "error":
            raise _row_error(source, chunk, start, missing, "missing", f"is missing (empty, null, nan){_NOT_FINITE}")
        if not values.size or (missing is not None and missing.all()):
            return Numbers(np.zeros(len(values), report_type(values.dtype)), missing)
        if missing is not None:
            first = int(np.argmin(missing))
            values = np.where(missing, values[first], values)  # stands in, also before its own row
        return Numbers(spec.row_options.rounded(function(values, bounds, start)), missing)
    except InputError as error:
        clips = "; --clip clips" if error.clips else ""
        limits = column.guarantee.limits if error.clips else ""
        row = max(error.row, start + first)
        reason = error.reason if np.isfinite(error.value) else _NOT_FINITE
        fault = "not finite" if not np.isfinite(error.value) else "outside the interval" if error.clips else "too large"
        value, unit = shortest(error.value), ""
        if column.date_origin is not None:
            value, unit = date_text(error.value, column.date_origin), f" (days since {column.date_origin})"
        text = f"is {private(value, 'a value')}{reason}{unit}{limits}{clips}"
        raise RowError(row, source.position(chunk, row, start), fault, text, column.name) from error
    except RowError as error:
        raise error.in_column(column.name) from error
    except ValueError as error:
        raise ValueError(label(column.name) + error_text(error)) from error


def _days(source: Source, chunk: Sized, name: str, start: int, origin: date, has_sensitivity: bool) -> Numbers:
    """Return the days of a column of dates; a RowError names the first cell that is none.

    Where only values within a sensitivity are neighbours (``has_sensitivity``), a time of day is refused: without it
    neighbours may be further apart.
    """
    dates = source.dates(chunk, name, origin)
    if dates.is_invalid.any():
        row = int(dates.is_invalid.argmax())
        cell = source.labels(source.rows(chunk, row, row + 1), name)[0].as_py()
        text = private(repr(cell.decode(errors="replace") if isinstance(cell, bytes) else cell), "not a date")
        problem = f"is {text}; every row needs a date such as 2020-02-29"
        raise _row_error(source, chunk, start, dates.is_invalid, "not a date", problem)
    if has_sensitivity and dates.has_time.any():
        problem = "has a time of day; without it, neighbours may be further apart: write dates alone"
        raise _row_error(source, chunk, start, dates.has_time, "with a time of day", problem)
    return Numbers(dates.days, dates.missing if dates.missing.any() else None)


def _row_error(source: Source, chunk: Sized, start: int, is_bad: np.ndarray, fault: str, text: str) -> RowError:
    """Return the error of the first bad row of a chunk."""
    row = start + int(np.argmax(is_bad))
    return RowError(row, source.position(chunk, row, start), fault, text)


def bad_rows(spec: ReleaseSpec, source: Source, start: int = 0) -> BadRows:
    """Return the values of a file that cannot be perturbed: the first ones of each column, and the count of each kind.

    At most ``MAX_COUNTED`` are counted. A fault of the file itself, such as a row of too few cells, ends the search.
    ``start`` is the first row of a part of a file.
    """
    functions = {column.name: _column_function(spec, source, column, None, 0, None) for column in spec.columns}
    first, counts = list[RowError](), Counter[str]()
    with suppress(ValueError, OSError), closing(source.chunks(list(functions))) as chunks:
        for chunk in chunks:
            values = (
                _bad_values(spec, source, column, chunk, start, functions[column.name]) for column in spec.columns
            )
            errors = [error for of_column in values for error in islice(of_column, MAX_COUNTED)]
            counts.update(error.fault for error in errors)
            first += sorted(errors, key=lambda error: error.row)[: MAX_SHOWN - len(first)]
            if counts.total() >= MAX_COUNTED:
                return BadRows(counts, first, False)
            start += len(chunk)
            raise_if_interrupted()
        return BadRows(counts, first, True)
    return BadRows(counts, first, False)


def _bad_values(
    spec: ReleaseSpec, source: Source, column: Column, chunk: Sized, start: int, function: object
) -> Iterator[RowError]:
    """Yield the faults of a column of a chunk whose first row is ``start``, in their order."""
    bounds = None if is_categorical(column.sampler.certificate) else Bounds.of(column.sampler, spec.clip)
    while len(chunk):
        try:
            _apply_to_column(spec, source, column, bounds, chunk, start, function)
            return
        except RowError as error:
            fault, row = error, error.row - start
        if len(chunk) > _SEARCHED_ROWS:
            for begin in range(0, len(chunk), _SEARCHED_ROWS):
                block = source.rows(chunk, begin, min(begin + _SEARCHED_ROWS, len(chunk)))
                yield from _bad_values(spec, source, column, block, start + begin, function)
            return
        # The rows before have no fault of this kind, but may have one that is looked for later.
        yield from _bad_values(spec, source, column, source.rows(chunk, 0, row), start, function)
        yield fault
        chunk, start = source.rows(chunk, row + 1, len(chunk)), start + row + 1


def describe_columns(source: Source) -> str:
    """Return the columns in words; their names may be cells of the first row, of a file without a header."""
    count = len(source.names)
    return private(listed(source.names), f"{count} column{'s' * (count > 1)}")


@dataclass(frozen=True)
class Request:
    """The arguments and options of ``dpkernels perturb``, as they were given."""

    source: Path | str
    target: Path | str
    # The values of the mechanisms' options that were given; see ``mechanisms.options_by_column``.
    options: Mapping[str, Sequence[Any]]
    columns: Sequence[str]
    mechanism: Sequence[str]  # one for all columns or one a column; none for the default
    clip: bool
    force: bool
    ledger: Sequence[Path]
    budget: Sequence[tuple[Decimal, ...]]
    rows: Sequence[str]  # whom the rows are about, for the charge to a ledger
    missing: str
    decimals: int | None
    shuffle_rows: bool
    sidecar: Path | None  # where the certificates go; needed if OUT is -
    file_format: str | None  # the format; None for the one that the suffixes say
    delimiter: str | None  # None for that of the format
    multiline: bool
    missing_markers: tuple[str, ...] = ()  # texts of cells without a value, besides the usual ones
    query_columns: Mapping[str, Sequence[str]] = field(default_factory=dict)  # names of columns, by parameter
    together: Sequence[tuple[Decimal, ...]] = ()  # the budget of all rows
    label: str | None = None  # of the charge
    full_certificate: bool = False  # whether the sidecar has the integers of tables as numbers
    resume: bool = False  # whether to continue a killed run to the same output
    # The days from which dates are counted, of columns by name, or of all columns of numbers.
    date_origin: Sequence[tuple[str | None, date]] = ()
    output_format: str | None = None  # the format of OUT; None for the one that its suffix or ``file_format`` says

    def name(self, description: str) -> str:
        """Return what the ledger calls the charge for a release."""
        if self.label is None:
            return description
        if not self.ledger:
            raise click.UsageError("--label: is for a charge to a ledger; it needs --ledger FILE")
        return f"{self.label}: {description}"

    def account(self, files: Sequence[Path], folders: Sequence[Path] = ()) -> LedgerAccount | None:
        return LedgerAccount.from_options(single({"ledger": self.ledger, "budget": self.budget}), files, folders)

    def layouts(self, source: Path, target: Path) -> tuple[Layout, Layout | None]:
        """Return the layout of a file, and that of its output if it is another one; None if it is the same."""
        text_options = self.multiline, self.missing_markers
        layout = input_layout(source, target, self.file_format, self.delimiter, *text_options, self.output_format)
        return layout, written_layout(layout, target, self.file_format, self.output_format, self.delimiter)

    def spec(
        self, source: Source, layout: Layout, converted: Layout | None = None, shuffleable: bool = True
    ) -> ReleaseSpec:
        """Return the release of a file, or of several like it, with certified mechanisms."""
        options = RowOptions(self.missing, self.decimals, self.shuffle_rows, shuffleable)
        if options.missing == "drop" and not source.droppable:
            raise click.UsageError(f"--missing drop: {source.path} has no rows of one value each that could be dropped")
        perturbed, queries = self._names(source), self._queries()
        options = options if queries is None else replace(options, shuffleable=False)
        parameters = None if queries is None else self._of_rows(queries, source, perturbed, options)
        if parameters is None:
            columns = self._columns(source, perturbed)
        else:
            columns = self._query_column(perturbed[0], parameters)
        if not source.names and is_categorical(columns[0].sampler.certificate):
            raise click.UsageError(f"--mechanism: {columns[0].mechanism} is for columns; {source.path} is one array")
        also = [text for name, text in source.also_copied.items() if name not in perturbed]
        also = [] if options.missing == "drop" or options.shuffle else also
        copied = *(name for name in source.names if name not in perturbed), *also
        names, values = tuple(source.names), source.values_per_row
        rows = self._rows(columns, parameters)
        specified = columns, self.clip, layout, options, names, values, copied, rows, self.full_certificate
        return ReleaseSpec(*specified, queries=parameters, converted=converted)

    def _columns(self, source: Source, perturbed: Sequence[str | None]) -> tuple[Column, ...]:
        """Return the columns with the mechanisms that are named, or the default one."""
        mechanisms = self.mechanism or [self._default]
        check_count("mechanism", len(mechanisms), len(perturbed))
        spread = list(mechanisms) * (len(perturbed) if len(mechanisms) == 1 else 1)
        origins, titles = self._origins(perturbed, spread), [label(name) for name in perturbed]
        column_options = map(in_days, options_by_column(spread, self.options), origins, titles)
        samplers = [build_exact_sampler(*setting) for setting in zip(spread, column_options, titles, strict=True)]
        settings = zip(perturbed, samplers, origins, strict=True)
        return tuple(
            Column(name, *sampler, date_origin=origin, is_single=name in source.single_precision)
            for name, sampler, origin in settings
        )

    def _queries(self) -> of_rows.QueryRequest | None:
        return of_rows.QueryRequest.from_options(self.query_columns, self.together)

    def check_no_queries(self) -> None:
        """Refuse parameters of rows, which are for one file."""
        if self._queries() is not None:
            option = "--together" if self.together else of_rows.column_option(next(iter(self.query_columns)))
            raise click.UsageError(f"{option}: is for one file; a dataset has one mechanism for all its rows")

    def _of_rows(
        self, queries: of_rows.QueryRequest, source: Source, perturbed: Sequence[str | None], options: RowOptions
    ) -> of_rows.Queries:
        """Return the public parameters of every row."""
        if isinstance(source, ConvertedFile):
            raise click.UsageError("OUT: rows with parameters of their own are released in the format of IN")
        if source.path == STANDARD_INPUT:
            raise click.UsageError("IN: standard input cannot be read twice, and the rows' parameters are read first")
        queries.check(source, perturbed, options.missing, options.shuffle)
        with independent_of_reports():
            return queries.read(source)

    def _query_column(self, name: str | None, parameters: of_rows.Queries) -> tuple[Column, ...]:
        """Return the one column, of which every row has a mechanism."""
        if self.date_origin:
            raise click.UsageError("--date-origin: is for columns of dates; rows that are queries hold numbers")
        settings = in_days(single({"mechanism": self.mechanism, **self.options}), None, "")
        return (Column(name, *of_rows.build(settings.pop("mechanism", None), settings, parameters)),)

    def _origins(self, columns: Sequence[str | None], mechanisms: Sequence[str]) -> list[date | None]:
        """Return the day from which the dates of each column are counted; None for a column of no dates."""
        by_name = dict(self.date_origin)
        if len(by_name) < len(self.date_origin):
            raise click.UsageError("--date-origin: given twice for the same columns")
        may_have = {
            name: mechanism not in categories.NAMES
            for name, mechanism in zip(columns, mechanisms, strict=True)
            if name is not None
        }
        for name in by_name:
            if name is None and not any(may_have.values()):
                raise click.UsageError("--date-origin: is for columns of dates; there is none")
            if name is not None and not may_have.get(name):
                problem = "holds categories" if name in may_have else "is no perturbed column"
                raise click.UsageError(f"--date-origin: {name!r} {problem}")
        usual = by_name.get(None)
        return [by_name.get(name, usual) if name and may_have[name] else None for name in columns]

    @property
    def _default(self) -> str:
        """Return the mechanism of columns for which none is given."""
        if {"alphabet", "length"} & self.options.keys():
            return "prefix-response"
        if not {"categories", "categories_from"} & self.options.keys():
            return DEFAULT
        if numeric := {"lower", "upper", "sensitivity"} & self.options.keys():
            raise click.UsageError(
                f"--mechanism: missing; with --categories and --{min(numeric)} give one for each column, such as "
                f"categorical and {DEFAULT}"
            )
        return "categorical"

    def _rows(self, columns: Sequence[Column], parameters: of_rows.Queries | None) -> str | None:
        """Return whom the rows are about; with a ledger, rows of statistics must say so."""
        rows = single({"rows": self.rows}).get("rows")
        if parameters is not None and parameters.together is not None:
            if rows not in (None, SAME_PEOPLE):
                raise click.UsageError(f"--rows {rows}: the rows of --together are all about the same people")
            return SAME_PEOPLE
        if rows is not None and not self.ledger:
            raise click.UsageError("--rows: says what is charged to a ledger; it needs --ledger FILE")
        tables = [getattr(column.sampler.certificate, "tables", [column.sampler.certificate])[0] for column in columns]
        statistics = [column for column, table in zip(columns, tables, strict=True) if is_statistic(table)]
        if statistics and self.ledger and rows is None:
            raise click.UsageError(
                f"--rows: missing; the ledger must know whom the rows of {statistics[0].mechanism} are about: "
                f"{SAME_PEOPLE} charges all rows together, {DIFFERENT_PEOPLE} charges one"
            )
        return rows

    def _names(self, source: Source) -> Sequence[str | None]:
        if not source.names:
            if self.columns:
                raise click.UsageError(f"--column: {self.columns[0]!r}; {source.path} is one array and has no columns")
            return [None]
        if not self.columns:
            raise click.UsageError(f"--column: missing; {source.path} has {describe_columns(source)}")
        for name in self.columns:
            if (count := list(source.names).count(name)) != 1:
                problem = (
                    f"{count} columns of this name" if count else f"no such column; it has {describe_columns(source)}"
                )
                raise click.UsageError(f"--column: {name!r}; {source.path} has {problem}")
            if self.columns.count(name) > 1:
                raise click.UsageError(f"--column: {name!r} is given twice")
        return self.columns


def in_days(options: Mapping[str, object], origin: date | None, where: str) -> dict[str, Any]:
    """Return the options of a column, whose dates are days since its origin."""
    numbers = dict(options)
    for name, value in options.items():
        if isinstance(value, date):
            if origin is None:
                raise click.UsageError(f"{where}{flag(name)}: {value} is a date; --date-origin is missing")
            numbers[name] = days_since(value, origin)
    return numbers


Destination = TypeVar("Destination", bound=ReleaseOutput)


@dataclass(frozen=True)
class Plan(abc.ABC, Generic[Destination]):
    """A release whose options have been checked; ``label`` is that of its entry in the ledger."""

    spec: ReleaseSpec
    ledger_account: LedgerAccount | None
    label: str
    sidecar: Path | str

    @abc.abstractmethod
    def values(self) -> int:
        """Return the number of values that each column of the input has, missing ones too."""

    @abc.abstractmethod
    def output(self) -> AbstractContextManager[Destination]:
        """Return the output, ready to be written, which is withdrawn unless it is committed."""

    @abc.abstractmethod
    def output_bytes(self) -> int:
        """Estimate the size of the output."""

    @abc.abstractmethod
    def write(self, output: Destination | None, progress: bool | None) -> list[Done]:
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

    def _charging(self, output: Destination) -> AbstractContextManager[LedgerCharge | None]:
        """Charge the ledger, if there is one, and settle the charge if the release fails."""
        return charging(self.ledger_account, self.price, self.label, output)

    def _commit(self, output: Destination, charge: LedgerCharge | None, sidecar: str, names: Sequence[str]) -> None:
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

    def _release(self, done: Sequence[Done], ledger_charge: LedgerCharge | None = None) -> Release:
        rows, lost_properties = (
            sum(file.rows for file in done),
            dict.fromkeys(note for file in done for note in file.lost_properties),
        )
        return Release(self.spec, rows // self.spec.values_per_row, tuple(lost_properties), ledger_charge)


@dataclass(frozen=True)
class FilePlan(Plan[Output | StandardOutput]):
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

    def write(self, output: Output | StandardOutput | None, progress: bool | None) -> list[Done]:
        source = self.source
        long = progress is None and source.path.stat().st_size >= _LONG_BYTES
        destination = None if output is None else (os.urandom(32), output.file)
        with (
            bar(1.0, progress, long) as moved,
            naming(source.path if output is None else f"{source.path} to {output.place}"),
        ):
            return [release_file(self.spec, source, destination, lambda: moved(completed=source.fraction))]


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
        raise click.UsageError(f"--shuffle-rows: {path} has {size} bytes; {HELD}")
    source = converted(open_source(path, layout), written)
    spec = request.spec(source, layout, written)
    name = request.name(f"perturb {display_name(path.name)} to {display_name(target.name)}")
    return FilePlan(spec, ledger_account, name, sidecar, source, target, request.force)
