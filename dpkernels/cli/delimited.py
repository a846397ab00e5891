"""``.csv``: cells are read as bytes and written as the same bytes, but for quotes that are not needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from dpkernels.cli.files import Source, regrouped

_BLOCK_BYTES = 1 << 22
_PIECE_BYTES = 1 << 24  # several copies of a piece exist while it is written
_MARK = b"\xef\xbb\xbf"  # the byte-order mark, by which spreadsheets know UTF-8


class CsvFile(Source):
    """A comma-separated file with a header; its byte-order mark and line ends are kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            first = file.readline(_BLOCK_BYTES)
        self._mark = _MARK if first.startswith(_MARK) else b""
        self._end = b"\r\n" if first.endswith(b"\r\n") else b"\n"
        with _reader(path, None) as (_, reader):
            self.names = reader.schema.names
        self._size = path.stat().st_size
        self._position: Callable[[], int] = lambda: 0

    @property
    def fraction(self) -> float:
        return min(1.0, self._position() / max(1, self._size))

    def pieces(self) -> Iterator[pa.Table]:
        with _reader(self.path, self.names) as (file, reader):
            self._position = file.tell
            yield from regrouped(reader, _PIECE_BYTES)
            self._position = lambda: self._size

    def numbers(self, piece: pa.Table, name: str | None, start: int) -> np.ndarray:
        cells = piece.column(name)
        if cells.null_count:
            raise ValueError(f"row {start + _first(pc.is_null(cells))} is empty; every row needs a number")
        try:
            return _parsed(cells).to_numpy()
        except pa.ArrowInvalid:
            row = next(at for at in range(len(cells)) if not _is_number(cells.slice(at, 1)))
            shown = repr(cells[row].as_py().decode(errors="replace"))
            raise ValueError(f"row {start + row} is {shown}; every row needs a number") from None

    def replaced(self, piece: pa.Table, reports: dict[str | None, np.ndarray]) -> pa.Table:
        for name, values in reports.items():
            text = pc.cast(pa.array(values), pa.string())  # the shortest that reads back as the same number
            piece = piece.set_column(self.names.index(name), name, text.cast(pa.binary()))
        return piece

    @contextmanager
    def sink(self, path: Path) -> Iterator[_CsvSink]:
        with path.open("wb") as file:
            file.write(self._mark)
            sink = _CsvSink(file, self._end)
            sink.write(pa.table({str(at): [name.encode()] for at, name in enumerate(self.names)}))
            yield sink


class _CsvSink:
    def __init__(self, file: BinaryIO, end: bytes) -> None:
        self._file = file
        self._end = end

    def write(self, piece: pa.Table) -> None:
        for batch in piece.combine_chunks().to_batches():
            lines = pc.binary_join_element_wise(*map(_quoted, batch.columns), b",")
            ended = pc.binary_join_element_wise(lines, b"", self._end)
            # An array of texts keeps them back to back: that is the file.
            self._file.write(ended.buffers()[2].slice(0, pc.sum(pc.binary_length(ended)).as_py()))


def _quoted(cells: pa.Array) -> pa.Array:
    """Cells as they stand in a file: an empty text is "" and a null is nothing."""
    plain = cells.fill_null(b"")
    special = pc.or_(pc.match_substring_regex(plain, '[",\r\n]'), pc.equal(cells, b"").fill_null(False))
    if not pc.any(special).as_py():
        return plain
    doubled = pc.replace_substring(plain, '"', '""')
    return pc.if_else(special, pc.binary_join_element_wise(b"", doubled, b"", b'"'), plain)


def _parsed(cells: Any) -> Any:
    return pc.cast(pc.ascii_trim_whitespace(cells.cast(pa.string())), pa.float64())


def _is_number(cell: Any) -> bool:
    try:
        return _parsed(cell) is not None
    except pa.ArrowInvalid:
        return False


def _first(mask: Any) -> int:
    return pc.index(mask, True).as_py()


@contextmanager
def _reader(path: Path, names: Sequence[str] | None) -> Iterator[tuple[pa.NativeFile, csv.CSVStreamingReader]]:
    """A reader of every cell as bytes; without names, of the header alone."""
    # No invalid_row_handler: Arrow's threads would drop it while the interpreter shuts down, and abort the process.
    # In a table of one column an empty line is an empty cell.
    parse = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=names is None or len(names) > 1)
    convert = csv.ConvertOptions(
        column_types=dict.fromkeys(names or (), pa.binary()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    # One thread: only then does Arrow number the rows.
    read = csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=False)
    try:
        with pa.OSFile(str(path)) as file, csv.open_csv(file, read, parse, convert) as reader:
            yield file, reader
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {_without_data(str(error))}") from None


def _without_data(message: str) -> str:
    """Arrow's message; the original may show a whole row."""
    if wrong := re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", message):
        row, expected, got = map(int, wrong.groups())
        return f"row {row - 2} has {got} cells; the header has {expected}"
    if "Empty CSV" in message:
        return "is empty; a header is needed"
    if "straddl" in message:
        return f"has a row of more than {_BLOCK_BYTES >> 20} MiB, or a quote that is never closed"
    return "is not a readable CSV file in UTF-8"
