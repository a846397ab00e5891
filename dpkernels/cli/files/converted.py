"""Release in another format: copied cells become text or Arrow columns, and reports remain the same numbers.

Copied cells of a text file become text in a Parquet file, exactly as they are inside their quotes, because inferred
types would depend on the values. Copied columns of a Parquet file become the text that Arrow prints, with an empty cell
for null. In a text file that is written, cells have quotes if they need them, or if they are empty but not null.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Sized
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpkernels.cli.errors import RowError
from dpkernels.cli.files import buffers
from dpkernels.cli.files.categories import CategoryReports
from dpkernels.cli.files.dates import Dates
from dpkernels.cli.files.delimited import MAX_RECORD_BYTES
from dpkernels.cli.files.formats import MAX_ROWS, Numbers, Source
from dpkernels.cli.files.layout import Layout
from dpkernels.cli.files.parquet import GroupPart, ParquetFile, ParquetSink

_REPORT_BYTES = 18  # of the text of a report, on average
_MAX_REPORT_BYTES = 1 << 13  # of a row's reports, sets of categories aside
_BLOCK_ROWS = 1 << 10  # A row group of a new Parquet file ends after a multiple of these.


@dataclass(frozen=True)
class _Chunk:
    """A chunk of the input, and its copied columns as they are written."""

    chunk: Sized
    copied: dict[str, pa.Array]

    def __len__(self) -> int:
        return len(self.chunk)


class ConvertedFile(Source[_Chunk, pa.Table | pa.Array]):
    """A file of columns whose output has another layout than the file itself."""

    def __init__(self, source: Source, written: Layout) -> None:
        self._source, self._written, self._is_text = source, written, written.file_format != "parquet"
        self.path, self.names, self.markers = source.path, source.names, source.markers
        if len(set(self.names)) < len(self.names):
            raise click.UsageError("OUT: another format needs different names for the columns; two are the same")
        if isinstance(source, ParquetFile):
            for field in source.schema:
                if not _has_text(field.type):
                    raise click.UsageError(f"OUT: column {field.name!r} holds {field.type}, which has no text")
            floats = (pa.float16(), pa.float32())
            self.single_precision = [field.name for field in source.schema if field.type in floats]

    @property
    def fraction(self) -> float:  # type: ignore[override]
        """Return how much of the input has been read."""
        return self._source.fraction

    def count(self) -> int:
        return self._source.count()

    def chunks(self, columns: Sequence[str | None]) -> Generator[_Chunk, None, None]:
        start = 0
        with closing(self._source.chunks(self.names)) as chunks:
            for chunk in chunks:
                copied = {name: self._copied(chunk, name, start) for name in self.names if name not in columns}
                if self._is_text and copied:
                    self._check_length(chunk, copied, start)
                yield _Chunk(chunk, copied)
                start += len(chunk)

    def _copied(self, chunk: Any, name: str, start: int) -> pa.Array:
        """Return a column as it is written."""
        if isinstance(self._source, ParquetFile):
            cells = _texts(chunk.table.column(name).combine_chunks())
        else:
            cells = self._source.labels(chunk, name)
            try:
                cells = cells.cast(pa.string())
            except pa.ArrowInvalid:
                is_bad = np.array([not _is_utf8(cell) for cell in cells.to_pylist()])
                raise self._error(chunk, start, is_bad, "not UTF-8", "is not UTF-8", name) from None
        if not self._is_text:
            return cells
        has_nul = buffers.truths(pc.fill_null(pc.match_substring(cells, "\0"), False))
        if has_nul.any():
            raise self._error(chunk, start, has_nul, "with a NUL", "has a NUL character", name)
        return _quoted(cells, self._written.delimiter)

    def _check_length(self, chunk: Sized, copied: dict[str, pa.Array], start: int) -> None:
        sizes = np.sum([buffers.numbers(pc.binary_length(cells)).astype(np.int64) for cells in copied.values()], axis=0)
        too_long = sizes > MAX_RECORD_BYTES - _MAX_REPORT_BYTES
        if too_long.any():
            raise self._error(chunk, start, too_long, "too long", f"has about {MAX_RECORD_BYTES} bytes or more of text")

    def _error(
        self, chunk: Sized, start: int, is_bad: np.ndarray, fault: str, text: str, name: str | None = None
    ) -> RowError:
        row = start + int(is_bad.argmax())
        return RowError(row, self._source.position(chunk, row, start), fault, f"{text}, which OUT cannot hold", name)

    def numbers(self, chunk: _Chunk, name: str | None, start: int) -> Numbers:
        return self._source.numbers(chunk.chunk, name, start)

    def labels(self, chunk: _Chunk, name: str) -> pa.Array:
        return self._source.labels(chunk.chunk, name)

    def dates(self, chunk: _Chunk, name: str, origin: date) -> Dates:
        return self._source.dates(chunk.chunk, name, origin)

    def rows(self, chunk: _Chunk, begin: int, end: int) -> _Chunk:
        return _Chunk(self._source.rows(chunk.chunk, begin, end), {})

    def position(self, chunk: _Chunk, row: int, start: int) -> str:
        return self._source.position(chunk.chunk, row, start)

    def replaced(self, chunk: _Chunk, reports: Mapping[str | None, Numbers | CategoryReports]) -> pa.Table | pa.Array:
        """Return the rows as a table, or as an array of lines without their ends."""
        replaced = {name: self._report_column(column) for name, column in reports.items()}
        columns = [replaced[name] if name in replaced else chunk.copied[name] for name in self.names]
        if not self._is_text:
            return pa.Table.from_arrays(columns, list(self.names))
        return pc.binary_join_element_wise(*columns, self._written.delimiter.encode())

    def _report_column(self, reports: Numbers | CategoryReports) -> pa.Array:
        if isinstance(reports, CategoryReports):
            column = reports.texts(self._written.delimiter) if self._is_text else reports.column()
        elif self._is_text:  # Every digit of float32 numbers, so that the text is the same number in float64.
            column = buffers.array(reports.values.astype(np.float64)).cast(pa.string()).cast(pa.binary())
        else:
            column = buffers.array(reports.values, reports.missing)
        if self._is_text and reports.missing is not None:
            column = pc.if_else(buffers.array(reports.missing), pa.scalar(b"", pa.binary()), column)
        return column

    def select(self, replaced: pa.Table | pa.Array, rows: np.ndarray) -> pa.Table | pa.Array:
        return replaced.filter(buffers.array(rows))

    def reordered(self, chunks: Sequence[pa.Table | pa.Array], order: np.ndarray) -> Iterator[pa.Table | pa.Array]:
        rows = pa.chunked_array(chunks, pa.binary()) if self._is_text else pa.concat_tables(chunks)
        for first in range(0, len(order), MAX_ROWS):
            block = rows.take(buffers.array(order[first : first + MAX_ROWS]))
            yield block.combine_chunks()

    def size(self, replaced: pa.Table | pa.Array) -> int:
        return replaced.nbytes

    def output_bytes(self, columns: Sequence[str | None]) -> int:
        if not isinstance(self._source, ParquetFile):
            return self._source.output_bytes(columns)
        stored_bytes = sum(self._source.group_bytes(columns))
        return 0 if self._written.pack else stored_bytes + _REPORT_BYTES * len(columns) * self._source.count()

    def lost_properties(self, output: Path) -> list[str]:
        if isinstance(self._source, ParquetFile):
            return ["types, row groups, compression and metadata of a Parquet file"]
        return ["quotes and line ends"]

    @contextmanager
    def sink(self, path: Path) -> Iterator[Callable[[pa.Table | pa.Array], object]]:
        if not self._is_text:
            with ParquetSink.opened(path, dict, lambda: _BLOCK_ROWS) as write:
                yield lambda table: write(GroupPart(table, last=False))
            return
        header = _quoted(pa.array(list(self.names)), self._written.delimiter).to_pylist()
        with (
            path.open("wb") as file,
            # The header of gzip contains neither the time nor the temporary name.
            gzip.GzipFile("", "wb", 6, file, mtime=0) if self._written.pack else nullcontext(file) as stream,
        ):
            stream.write(self._written.delimiter.encode().join(header) + b"\n")
            yield lambda lines: stream.write(buffers.text(pc.binary_join_element_wise(lines, b"", b"\n")))


def _has_text(data_type: pa.DataType) -> bool:
    types = pa.types
    if types.is_dictionary(data_type):
        return _has_text(data_type.value_type)
    is_plain = (
        types.is_boolean(data_type)
        or types.is_integer(data_type)
        or types.is_floating(data_type)
        or types.is_decimal(data_type)
    )
    is_text = types.is_string(data_type) or types.is_large_string(data_type) or types.is_string_view(data_type)
    return is_plain or is_text or types.is_date(data_type) or types.is_time(data_type) or types.is_timestamp(data_type)


def _texts(cells: pa.Array) -> pa.Array:
    data_type = cells.type
    if pa.types.is_dictionary(data_type):
        return _texts(cells.cast(data_type.value_type))
    if pa.types.is_timestamp(data_type) and data_type.tz is not None:
        cells = cells.cast(pa.timestamp(data_type.unit, "UTC"))
    return cells.cast(pa.string())


def _quoted(cells: pa.Array, delimiter: str) -> pa.Array:
    """Return texts as bytes of cells: quoted where they must be, null as an empty cell."""
    needs = pc.match_substring_regex(cells, rf'["\n\r\x{{feff}}]|\A\z|\x{{{ord(delimiter):x}}}')
    in_quotes = pc.binary_join_element_wise('"', pc.replace_substring(cells, '"', '""'), '"', "")
    return pc.fill_null(pc.if_else(needs, in_quotes, cells), "").cast(pa.binary())


def _is_utf8(cell: bytes) -> bool:
    try:
        cell.decode()
    except UnicodeDecodeError:
        return False
    return True
