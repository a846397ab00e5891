"""``.parquet``, read and written row group by row group."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.parquet import FileMetaData

from dpkernels.cli.errors import error_text
from dpkernels.cli.files import buffers
from dpkernels.cli.files.categories import CategoryReports
from dpkernels.cli.files.formats import Numbers, Source
from dpkernels.cli.files.layout import Layout
from dpkernels.release import arrow

if TYPE_CHECKING:
    from datetime import date

    from dpkernels.cli.files.dates import Dates

_NO_CODEC = "NONE"


def writer_options(footer: FileMetaData, replaced: Collection[str] = ()) -> dict[str, object]:
    """Return the options of ``pyarrow.parquet.ParquetWriter`` for a file like this one.

    Some writers decide by the values of a column whether it gets a dictionary, statistics or compression. So replaced
    columns always have dictionaries and statistics, and are compressed if any column of the file is.
    """
    first = footer.row_group(0)
    columns = [first.column(i) for i in range(first.num_columns)]
    codecs = {column.path_in_schema: _codec(column) for column in columns}
    usual = next((codec for codec in codecs.values() if codec != _NO_CODEC), _NO_CODEC)
    codecs |= {name: usual for name in replaced if codecs[name] == _NO_CODEC}
    copied = [column for column in columns if column.path_in_schema not in replaced]
    return {
        "compression": codecs,
        "use_dictionary": [*replaced, *(column.path_in_schema for column in copied if column.has_dictionary_page)],
        "write_statistics": [*replaced, *(column.path_in_schema for column in copied if column.is_stats_set)],
        "version": footer.format_version if footer.format_version in ("1.0", "2.4") else "2.6",
        "use_deprecated_int96_timestamps": _all_int96(footer.schema),
    }


def differences(old: FileMetaData, new: FileMetaData, replaced: set[str], groups: Sequence[int]) -> list[str]:
    """Return the properties of some row groups that another file does not have, without types of replaced columns."""
    words = ("path", "physical_type", "logical_type", "max_definition_level", "max_repetition_level")
    pairs = [(old.schema.column(i), new.schema.column(i)) for i in range(min(old.num_columns, new.num_columns))]
    lines = [
        f"column {before.path!r}: {word.replace('_', ' ')} {getattr(before, word)}, now {getattr(after, word)}"
        for before, after in pairs
        for word in words
        if str(getattr(before, word)) != str(getattr(after, word)) and before.path not in replaced
    ]
    old_codecs, new_codecs = ({_codec(column) for column in _column_chunks(footer)} for footer in (old, new))
    if new_codecs and old_codecs - new_codecs:  # a file without rows has no codecs
        lines.append(f"compression by {', '.join(sorted(old_codecs - new_codecs))}")
    sizes = [old.row_group(i).num_rows for i in groups]
    new_sizes = [new.row_group(i).num_rows for i in range(new.num_row_groups)]
    if not new_sizes:
        lines.append("the row groups of a file whose rows were all dropped")
    elif sizes != new_sizes:
        lines.append(f"{len(sizes)} row group{'s' * (len(sizes) > 1)}, now {len(new_sizes)}, of other sizes")
    if any(old.row_group(i).sorting_columns for i in range(old.num_row_groups)):
        lines.append("the note of the columns it is sorted by")
    if any(column.bloom_filter_offset is not None for column in _column_chunks(old)):
        lines.append("Bloom filters")
    if any(column.has_column_index or column.has_offset_index for column in _column_chunks(old)):
        lines.append("the page index")
    return lines


def _column_chunks(footer: FileMetaData) -> Iterator[pq.ColumnChunkMetaData]:
    for group in map(footer.row_group, range(footer.num_row_groups)):
        yield from map(group.column, range(group.num_columns))


def _codec(column_chunk: pq.ColumnChunkMetaData) -> str:
    return _NO_CODEC if column_chunk.compression == "UNCOMPRESSED" else column_chunk.compression


def _all_int96(schema: pq.ParquetSchema) -> bool:
    """Return whether timestamps are INT96, which a writer writes for all or for none."""
    logical = {schema.column(i).logical_type.type for i in range(len(schema))}
    physical = {schema.column(i).physical_type for i in range(len(schema))}
    return "TIMESTAMP" not in logical and "INT96" in physical


# Rows of a chunk, and about its bytes, at most: they bound the memory of wide tables. Powers of two.
PIECE_ROWS = 1 << 16
_PIECE_BYTES = 1 << 24
_BUFFER_BYTES = 1 << 20  # read of a column at once
_REMOTE_BYTES = 1 << 23  # the same from a store, where a request takes 10 to 50 ms
GROUP_BYTES = 1 << 26  # of a row group in memory; a larger one is written as several
_REPORT_BYTES = 8  # of a value that is replaced


@dataclass(frozen=True)
class GroupPart:
    """Rows of one row group, and whether they are its last."""

    table: pa.Table
    last: bool

    def __len__(self) -> int:
        return len(self.table)


class ParquetFile(Source[GroupPart, GroupPart]):
    """A Parquet file; types, codecs, row groups and the order of columns and rows are kept, metadata where harmless.

    ``groups`` is the range of the row groups that are read, by default all. ``remote`` opens a file of another file
    system, whose ``path`` is its name in errors.
    """

    def __init__(
        self,
        path: Path,
        layout: Layout,
        groups: tuple[int, int] | None = None,
        remote: Callable[[], pa.NativeFile] | None = None,
    ) -> None:
        self.path, self._remote = path, remote
        with self._opened() as file:
            self._footer, self._schema = file.metadata, file.schema_arrow
        self.names = self._schema.names
        self._group_numbers = range(*(groups or (0, self._footer.num_row_groups)))
        read = [self._footer.row_group(i) for i in self._group_numbers]
        self.groups = [group.num_rows for group in read]
        self._rows, self._bytes = sum(self.groups), sum(group.total_byte_size for group in read)
        self.schema = self._schema.remove_metadata()  # without what writers add to names and types
        self._replaced = set[str]()
        described = [field.name for field in self._schema if arrow.has_dictionary(field.type)]
        self.also_copied = {name: f"the categories of {name!r}, also those that no row has" for name in described}
        self._plain = set[str]()  # columns whose dictionaries are not kept

    def count(self) -> int:
        return self._rows

    def group_bytes(self, columns: Collection[str | None]) -> list[int]:
        """Return the stored bytes of each row group, in which those of columns to be replaced are not counted."""
        groups = [self._footer.row_group(number) for number in self._group_numbers]
        column_chunks = [[group.column(i) for i in range(group.num_columns)] for group in groups]
        return [
            _REPORT_BYTES * len(columns) * rows
            + sum(
                column_chunk.total_uncompressed_size
                for column_chunk in of_group
                if column_chunk.path_in_schema not in columns
            )
            for rows, of_group in zip(self.groups, column_chunks, strict=True)
        ]

    def chunks(self, columns: Sequence[str | None]) -> Generator[GroupPart, None, None]:
        self.fraction = 0.0
        # An estimate from stored widths, which bounds the memory that a table of long texts takes.
        rows = _power_of_two(self._bytes, self._rows)
        with self._opened() as file:
            for number, remaining in zip(self._group_numbers, self.groups, strict=True):
                # Threads would each keep memory, and are no faster, since the chunk before is worked on meanwhile.
                for batch in file.iter_batches(rows, row_groups=[number], use_threads=False):
                    remaining -= len(batch)
                    self.fraction += len(batch) / self._rows
                    yield GroupPart(pa.Table.from_batches([batch]), remaining == 0)

    def numbers(self, chunk: GroupPart, name: str | None, start: int) -> Numbers:
        column = chunk.table.column(name)
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            remedy = "--date-origin" if pa.types.is_temporal(column.type) else "--categories"
            raise ValueError(f"holds {column.type}; only integers and floats can be perturbed without {remedy}")
        missing = _nulls(column) if column.null_count else None
        return Numbers.from_values(buffers.numbers(column.combine_chunks()), missing)

    def labels(self, chunk: GroupPart, name: str) -> pa.Array:
        column = chunk.table.column(name)
        if pa.types.is_nested(column.type):
            raise ValueError(f"column {name!r}: holds {column.type}; groups are of plain values")
        return column.combine_chunks()

    def dates(self, chunk: GroupPart, name: str, origin: date) -> Dates:
        schema = self._footer.schema
        if "INT96" in {schema.column(i).physical_type for i in range(len(schema)) if schema.column(i).path == name}:
            # Arrow reads them as nanoseconds, which wrap around: neighbouring days could become distant ones.
            raise ValueError("holds INT96 timestamps, which wrap around in 2262; write it as a date or in microseconds")
        return super().dates(chunk, name, origin)

    def replaced(self, chunk: GroupPart, reports: Mapping[str | None, Numbers | CategoryReports]) -> GroupPart:
        table = chunk.table
        self._replaced = set(map(str, reports))
        for name, report in reports.items():
            number, missing = self.names.index(str(name)), report.missing
            if isinstance(report, CategoryReports):
                column = report.column()
            elif missing is None:
                column = buffers.array(report.values)
            else:  # what was null is null, and what was no number is none
                values = np.where(missing, report.values.dtype.type(np.nan), report.values)
                column = buffers.array(values, _nulls(table.column(number)))
            # Its metadata, also the name of a type that it no longer has, are of the old column.
            field = table.schema.field(number).with_type(column.type).with_metadata(None)
            table = table.set_column(number, field, column)
        return replace(chunk, table=table)

    def select(self, replaced: GroupPart, rows: np.ndarray) -> GroupPart:
        return GroupPart(self._decoded(replaced.table).filter(buffers.array(rows)), replaced.last)

    def reordered(self, chunks: Sequence[GroupPart], order: np.ndarray) -> Iterator[GroupPart]:
        table = pa.concat_tables([self._decoded(chunk.table) for chunk in chunks])
        ends = [end for end, chunk in zip(accumulate(map(len, chunks)), chunks, strict=True) if chunk.last]
        for begin, end in zip([0, *ends], ends, strict=False):
            for first in range(begin, end, PIECE_ROWS):
                upto = min(first + PIECE_ROWS, end)
                yield GroupPart(table.take(buffers.array(order[first:upto])), upto == end)

    def _decoded(self, table: pa.Table) -> pa.Table:
        """Return a table, in the order of the file, without dictionaries: they show omitted rows, and the order."""
        for number, field in enumerate(table.schema):
            if arrow.has_dictionary(field.type):
                values = field.with_type(arrow.decoded(field.type))
                table = table.set_column(number, values, table.column(number).cast(values.type))
                self._plain.add(field.name)
        return table

    def size(self, replaced: GroupPart) -> int:
        return replaced.table.nbytes

    def output_bytes(self, columns: Sequence[str | None]) -> int:
        column_chunks = _column_chunks(self._footer) if self._rows else ()
        copied = sum(
            column_chunk.total_compressed_size
            for column_chunk in column_chunks
            if column_chunk.path_in_schema not in columns
        )
        return copied + _REPORT_BYTES * len(columns) * self._rows  # Reports are hardly compressed.

    def rows(self, chunk: GroupPart, begin: int, end: int) -> GroupPart:
        return GroupPart(chunk.table.slice(begin, end - begin), chunk.last)

    def position(self, chunk: GroupPart, row: int, start: int) -> str:
        return f"row {row}"

    def lost_properties(self, output: Path) -> list[str]:
        lines = differences(self._footer, pq.read_metadata(output), self._replaced, self._group_numbers)
        lines += [f"column {name!r}: its dictionary of values" for name in sorted(self._plain)]
        return lines + arrow.dropped_metadata(self._schema)

    @contextmanager
    def sink(self, path: Path) -> Iterator[Callable[[GroupPart], object]]:
        def block_rows() -> int:
            return _power_of_two(sum(self.group_bytes(self._replaced)), self._rows)

        with ParquetSink.opened(path, lambda: writer_options(self._footer, self._replaced), block_rows) as write:
            yield write

    @contextmanager
    def _opened(self) -> Iterator[pq.ParquetFile]:
        """Open the file, and name it in Arrow's errors about its contents; other errors of a store stay as they are."""
        with pa.OSFile(str(self.path)) if self._remote is None else self._remote() as file:
            try:
                # Page by page: without a buffer, or with pre_buffer, a whole row group is read into memory.
                size = _BUFFER_BYTES if self._remote is None else _REMOTE_BYTES
                yield pq.ParquetFile(file, buffer_size=size, pre_buffer=False)
            except (pa.ArrowException, OSError) as error:
                error_class = OSError if self._remote and isinstance(error, OSError) else ValueError
                raise error_class(f"{self.path}: is not a readable Parquet file: {error_text(error)}") from error


class ParquetSink:
    """Gathers a row group, and writes it when it is complete, or too large to be held.

    A group that is too large ends after a multiple of ``block_rows`` rows. These, and the bytes of the rows that are
    written, decide where it ends, and neither the chunks nor their number: they depend on the lengths of true values.

    ``options`` returns those of ``pyarrow.parquet.ParquetWriter``, for a file that has rows. Both functions are called
    with the first chunk.
    """

    def __init__(
        self, file: pa.NativeFile, options: Callable[[], dict[str, object]], block_rows: Callable[[], int]
    ) -> None:
        self._file, self._options, self._block_rows = file, options, block_rows
        self._writer: Any = None
        self._blocks: list[pa.Table] = []  # whole ones
        self._bytes = 0  # of these
        self._rest: list[pa.Table] = []  # rows of the next one

    @classmethod
    @contextmanager
    def opened(
        cls, path: Path, options: Callable[[], dict[str, object]], block_rows: Callable[[], int]
    ) -> Iterator[Callable[[GroupPart], object]]:
        """Yield a function that appends rows to a new file, which is complete at the end."""
        with pa.OSFile(str(path), "wb") as file:
            sink = cls(file, options, block_rows)
            try:
                yield sink.write
                if sink._writer is not None:
                    sink._end_group()
                    sink._writer.close()
            finally:
                if sink._writer is not None:
                    sink._writer.is_open = False  # else the destructor of one that failed writes to a closed file

    def write(self, chunk: GroupPart) -> None:
        if self._writer is None:
            self._rows = self._block_rows()
            self._schema = arrow.released_schema(chunk.table.schema)
            self._writer = pq.ParquetWriter(self._file, self._schema, **self._options())
        self._rest.append(arrow.relabelled(chunk.table, self._schema))
        if sum(map(len, self._rest)) >= self._rows:
            remainder = pa.concat_tables(self._rest)
            while len(remainder) >= self._rows:
                block, remainder = remainder.slice(0, self._rows).combine_chunks(), remainder.slice(self._rows)
                self._blocks.append(block)
                self._bytes += _stored_bytes(block)
                if self._bytes >= GROUP_BYTES:
                    self._rest = []
                    self._end_group()
            self._rest = [remainder]
        if chunk.last:
            self._end_group()

    def _end_group(self) -> None:
        group = pa.concat_tables([*self._blocks, *self._rest, self._schema.empty_table()])
        self._blocks, self._rest, self._bytes = [], [], 0
        if len(group):
            self._writer.write_table(group, row_group_size=len(group))
        # Otherwise the allocator keeps the memory of the pages, 60 MiB.
        pa.default_memory_pool().release_unused()


def _stored_bytes(block: pa.Table) -> int:
    """Return the bytes of a table. A dictionary is not counted: it may hold values of other rows, too."""
    columns = [block.column(number) for number in range(block.num_columns)]
    return sum(8 * len(column) if arrow.has_dictionary(column.type) else column.nbytes for column in columns)


def _power_of_two(size: int, rows: int) -> int:
    """Return how many of these rows, which have so many bytes, are about a chunk."""
    most = min(PIECE_ROWS, _PIECE_BYTES // max(1, size // max(1, rows)))
    return 1 << max(0, most.bit_length() - 1)


def _nulls(column: pa.ChunkedArray) -> np.ndarray:
    return buffers.truths(pc.is_null(column).combine_chunks())
