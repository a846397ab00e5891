"""``dpkernels perturb``: the release of a file's rows, chunk by chunk through the exact engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from datetime import date
from io import BufferedIOBase
from itertools import count, islice
from typing import Any

import numpy as np

from dpkernels.cli.calendar import date_text
from dpkernels.cli.errors import BadRows, RowError, error_text
from dpkernels.cli.files.categories import CategoryReports, is_categorical
from dpkernels.cli.files.formats import Numbers, Source, ahead
from dpkernels.cli.files.layout import STANDARD_INPUT
from dpkernels.cli.interrupts import independent_of_reports, raise_if_interrupted
from dpkernels.cli.perturb.categories import perturb_categories
from dpkernels.cli.perturb.sidecar import Column, ReleaseSpec, WrittenFile
from dpkernels.cli.terminal import private
from dpkernels.cli.text import label
from dpkernels.decimals import shortest
from dpkernels.exact.batches import ExactBatch
from dpkernels.random import host
from dpkernels.random.keys import column_secret
from dpkernels.release.engines import exact_engine, in_chunks
from dpkernels.release.inputs import Bounds, InputError, report_type
from dpkernels.staging import descriptor_path, sha256_and_size

_NOT_FINITE = "; every value must be a finite number, or missing with --missing keep or --missing drop"
# Numbers that are folded into a release's key where there is no column's name, whose hash would be folded in.
_ARRAY = 0  # for the values of an array
_ROW_ORDER = 1  # for the order of rows
# Rows are held in memory to be shuffled.
MAX_SHUFFLED_BYTES = 1 << 30
MAX_SHOWN = 10  # values that cannot be perturbed, in a message
MAX_COUNTED = 1000  # such values; the search ends then
_SEARCHED_ROWS = 1 << 8  # among which each of them is looked for
HELD_IN_MEMORY = f"they are held in memory, at most {MAX_SHUFFLED_BYTES}"

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
class PartResult:
    """What became of a file or a part: its perturbed or, without an output, only checked rows."""

    read: int  # the number of rows (of an array: values) that were read
    rows: int  # the number of these that were not dropped
    written: WrittenFile | None = None  # None for a check
    lost_properties: tuple[str, ...] = ()  # properties of the input that the file does not have


def release_file(
    spec: ReleaseSpec,
    source: Source,
    output: tuple[bytes, BufferedIOBase] | None,
    on_chunk: Callable[[], object] = lambda: None,
    *,
    part_name: str = "",
    source_name: str = "",
    first_row_of_file: int = 0,
    first_row_of_release: int = 0,
    devices: Sequence[Any] | None = None,
) -> PartResult:
    """Perturb the rows of a file or a part, or without an output check them.

    Args:
        spec: the release.
        source: the rows.
        output: the release's key of 32 bytes and a new file, or None for a check.
        on_chunk: is called after every chunk.
        part_name: of a part of a dataset, the name of its new file. A part may have no row left; a file may not, which
            is a ValueError.
        source_name: of a part of a dataset, the name of the file that has its rows.
        first_row_of_file: the number in that file of the first row that is read.
        first_row_of_release: the number of this row in the whole release, which decides its noise.
        devices: those of JAX that make the reports; by default the CPU.
    """
    key, file = output or (None, None)
    shuffled_chunks, read, rows, size = list[Any](), 0, 0, 0
    functions = {
        column.name: _column_function(spec, source, column, key, first_row_of_release - first_row_of_file, devices)
        for column in spec.columns
    }
    chunks = source.chunks([*functions, *(spec.queries.names if spec.queries else ())])
    with (
        nullcontext() if file is None else source.sink(descriptor_path(file)) as write,
        # A request to stop need not wait for a stream's next bytes.
        closing(chunks if source.path == STANDARD_INPUT else ahead(chunks)) as following,
    ):
        columns = _columns(spec, source, following, functions, first_row_of_file)
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
                raise ValueError(f"--shuffle-rows: the rows take more than {size} bytes; {HELD_IN_MEMORY}")
            on_chunk()
            raise_if_interrupted()
        if not rows and not part_name:  # before the output is completed: that may fail too, and would keep the charge
            with independent_of_reports():
                problem = "every row has a missing value" if read else "is empty"
                raise ValueError(f"{source.path}: {problem}; there is no row to perturb")
        if write is not None and key is not None and shuffled_chunks:
            for chunk in source.reordered(shuffled_chunks, row_order(key, rows // source.values_per_row)):
                write(chunk)
    if file is None or not read:
        return PartResult(read, rows)
    written = WrittenFile(*sha256_and_size(file), part_name, rows // source.values_per_row, source_name)
    return PartResult(read, rows, written, tuple(source.lost_properties(descriptor_path(file))))


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
