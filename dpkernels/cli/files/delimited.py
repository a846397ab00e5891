"""``.csv`` and ``.tsv``: every byte is copied but those of the cells that are replaced."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpkernels.cli.files import buffers
from dpkernels.cli.files.cells import CellError, Lines, Records, counted_again, numbers, replaced
from dpkernels.cli.files.formats import MOST_ROWS, Numbers, Source
from dpkernels.cli.files.layout import STANDARD_INPUT, Layout
from dpkernels.cli.files.records import LF, Dialect, Grid, MalformedError, RaggedError, Region, check_grammar, unended

BLOCK_BYTES = 1 << 20  # read at once
LONGEST = 1 << 22  # bytes of a record
_MARK = b"\xef\xbb\xbf"  # the byte-order mark, by which spreadsheets know UTF-8
_OTHER_KINDS = {
    b"\x1f\x8b": "is compressed by gzip; its name must end in .gz, or gunzip comes first",
    b"PK\x03\x04": "is a zip file or a spreadsheet, not a delimited text",
    b"\xff\xfe": "is UTF-16; a text in UTF-8 is needed (iconv -f UTF-16 -t UTF-8)",
    b"\xfe\xff": "is UTF-16; a text in UTF-8 is needed (iconv -f UTF-16 -t UTF-8)",
}


class DelimitedFile(Source):
    """A file with a header; quotes, line ends, blank lines and a byte-order mark are kept."""

    def __init__(self, path: Path, form: Layout) -> None:
        self.path = path
        self._form = form
        self._dialect = Dialect(ord(form.delimiter), form.multiline)
        self._size = path.stat().st_size
        self._position = 0
        self._ended = True  # whether the last record has a line end
        with self._named():
            blocks = self._blocks()
            self._head, self.names, read = self._header(blocks)
        # A stream is read on from here; a file is read again.
        self._stream = chain([read], blocks) if path == STANDARD_INPUT else None

    @property
    def fraction(self) -> float:
        return min(1.0, self._position / max(1, self._size))

    def pieces(self, chosen: Sequence[str | None]) -> Generator[Records, None, None]:
        columns = {name: list(self.names).index(str(name)) for name in chosen}
        start = 0
        with self._named():
            for region in self._regions():
                piece = self._records(region, columns, start)
                counted_again(piece, len(self.names), columns, self._dialect)
                yield piece
                start += len(piece)

    def numbers(self, piece: Records, name: str | None, start: int) -> Numbers:
        try:
            return numbers(piece.cells[name])
        except CellError as error:
            raise ValueError(f"{self.place(piece, start + error.row, start)} is {error}") from None

    def labels(self, piece: Records, name: str) -> pa.Array:
        return pc.replace_substring(piece.cells[name], '""', '"')

    def replaced(self, piece: Records, reports: dict[str | None, Numbers]) -> Lines:
        return replaced(piece, reports)

    def kept(self, replaced: Lines, rows: np.ndarray) -> Lines:
        return replaced.only(rows)

    def reordered(self, pieces: Sequence[Lines], order: np.ndarray) -> Iterator[Lines]:
        rows = pa.chunked_array([piece.contents() for piece in pieces], pa.binary())
        end = b"\r\n" if self._head.endswith(b"\r\n") else b"\n"
        for at in range(0, len(order), MOST_ROWS):
            some = rows.take(buffers.array(order[at : at + MOST_ROWS])).combine_chunks()
            text = buffers.text(pc.binary_join_element_wise(some, b"", end))
            cut = 0 if self._ended or at + MOST_ROWS < len(order) else len(end)
            yield Lines(text.slice(0, text.size - cut), order[:0], order[:0])

    def size(self, replaced: Lines) -> int:
        return replaced.text.size + replaced.first.nbytes + replaced.last.nbytes

    def place(self, piece: Records, row: int, start: int) -> str:
        return f"row {row} (line {piece.region.line_of(int(piece.first[row - start]))})"

    def not_kept(self, output: Path) -> list[str]:
        return []

    @contextmanager
    def sink(self, path: Path) -> Iterator[_LineSink]:
        with path.open("wb") as file:
            if not self._form.pack:
                yield _LineSink(file, self._head)
                return
            # Neither the time nor the temporary name is anyone's business.
            with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
                yield _LineSink(packed, self._head)

    def _records(self, region: Region, columns: dict[str | None, int], start: int) -> Records:
        self._check(region)
        try:
            grid = Grid.of(region, len(self.names))
        except RaggedError as error:
            place = f"row {start + error.row} (line {region.line_of(error.at)})"
            raise ValueError(f"{place} has {error}; the header has {len(self.names)}") from None
        return Records.of(region, grid, columns)

    def _check(self, region: Region) -> None:
        try:
            check_grammar(region, self._dialect)
        except MalformedError as error:
            raise ValueError(f"line {region.line_of(error.at)}: {error}") from None

    def _regions(self) -> Iterator[Region]:
        """All after the header in whole records."""
        line, held = 1 + self._head.count(LF), b""
        for block in self._body():
            region, held = Region.of(held + block, line, self._dialect)
            line += region.text.count(LF)
            if region.text:
                yield region
            if len(held) > LONGEST:
                raise self._unended(held, line)
        self._ended = not held
        if held:
            region, rest = Region.of(held + b"\n", line, self._dialect)
            if rest:
                raise self._unended(rest, line)
            if held.endswith(b"\r"):
                raise ValueError(f"line {line}: a carriage return without a line feed, at the end of the file")
            yield replace(region, size=len(held))

    def _unended(self, rest: bytes, line: int) -> ValueError:
        error = unended(rest, self._dialect)
        return ValueError(f"line {line + rest.count(LF, 0, error.at)}: {error}")

    def _body(self) -> Iterator[bytes]:
        """The blocks after the header."""
        if self.path == STANDARD_INPUT and self._stream is None:
            raise ValueError("can be read only once")
        stream, self._stream = self._stream, None
        skip = len(self._head)
        for block in stream or self._blocks():
            yield block[skip:]
            skip = max(0, skip - len(block))

    def _header(self, blocks: Iterator[bytes]) -> tuple[bytes, list[str], bytes]:
        """The bytes until the end of the header, the names in it, and all that was read to find it."""
        read = b""
        for block in blocks:
            read += block
            begin, region = self._first(read)
            if region.text:
                break
            if len(read) - begin > LONGEST:
                raise ValueError(f"has a header of more than {LONGEST} bytes, or one with a quote that is not closed")
        else:
            begin, region = self._first(read + b"\n")
            if begin >= len(read):
                raise ValueError("is empty; a header is needed")
            if not region.text:
                raise self._unended(read[begin:], 1)
        return read[: begin + region.size], self._names(region), read

    def _first(self, read: bytes) -> tuple[int, Region]:
        """Where the header begins, after a byte-order mark and blank lines, and the header if it has a line end."""
        begin = len(_MARK) * read.startswith(_MARK)
        begin += len(read) - begin - len(read[begin:].lstrip(b"\r\n"))
        region, _ = Region.of(read[begin:], 1 + read.count(LF, 0, begin), self._dialect)
        return begin, region.head()

    def _names(self, region: Region) -> list[str]:
        self._check(region)
        grid = Grid.of(region, len(region.ends.cells))
        text = np.frombuffer(region.text, np.uint8)
        spans = [grid.column(text, at) for at in range(len(region.ends.cells))]
        try:
            return [region.text[begin[0] : end[0]].decode().replace('""', '"') for begin, end in spans]
        except UnicodeDecodeError:
            raise ValueError("has a header that is not UTF-8") from None

    def _blocks(self) -> Generator[bytes, None, None]:
        stream = self.path == STANDARD_INPUT
        with nullcontext(sys.stdin.buffer) if stream else self.path.open("rb") as raw:
            file = gzip.GzipFile(fileobj=raw) if self._form.unpack else raw
            done = 0
            while block := file.read(BLOCK_BYTES):
                _check_kind(block, done)
                done += len(block)
                self._position = 0 if stream else raw.tell()
                yield block

    @contextmanager
    def _named(self) -> Iterator[None]:
        name = "standard input" if self.path == STANDARD_INPUT else self.path
        try:
            yield
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{name}: is not a whole gzip file: {error}") from error
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error


class _LineSink:
    def __init__(self, file: BinaryIO | gzip.GzipFile, head: bytes) -> None:
        self._file = file
        file.write(head)

    def write(self, piece: Lines) -> None:
        self._file.write(piece.text)


def _check_kind(block: bytes, done: int) -> None:
    """Refuse what is not text in UTF-8 or the like."""
    for mark, problem in _OTHER_KINDS.items():
        if not done and block.startswith(mark):
            raise ValueError(problem)
    if b"\0" in block:
        raise ValueError(f"has a NUL at byte {done + block.index(0)}; is it UTF-16? A text in UTF-8 is needed")
