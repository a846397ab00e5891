"""``.csv`` and ``.tsv``: every byte is copied except those of the cells that are replaced.

The grammar is strict (RFC 4180, with LF for CRLF where the file has it): a quote opens a cell or is in a quoted one, a
quote in a quoted cell is doubled, and a closing quote ends its cell. Other text is refused, because another reader
might split it into other cells, so that a protected value would be copied.
"""

from __future__ import annotations

import gzip
import sys
import zlib
from bisect import bisect
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from dpkernels.byte_order_marks import UTF8_MARK, UTF16_MARKS, UTF16_PROBLEM
from dpkernels.cli.errors import RowError, error_text
from dpkernels.cli.files import buffers
from dpkernels.cli.files.categories import CategoryReports
from dpkernels.cli.files.formats import MAX_ROWS, Numbers, Source
from dpkernels.cli.files.layout import MISSING_TEXTS, STANDARD_INPUT, Layout
from dpkernels.cli.terminal import private

QUOTE, LF, CR = b'"\n\r'
BLOCK_BYTES = 1 << 20  # read at once
_REPORT_BYTES = 18  # of the text of a report, on average
_PACKED_REPORT_BYTES = 9  # the same where the output is compressed
MAX_RECORD_BYTES = 1 << 22  # bytes of a record
_WHOLE = 2.0**53  # Floats hold every whole number below.
_OTHER_KINDS = {
    b"\x1f\x8b": "is compressed by gzip; its name must end in .gz, or gunzip comes first",
    b"PK\x03\x04": "is a zip file or a spreadsheet, not a delimited text",
    **dict.fromkeys(UTF16_MARKS, UTF16_PROBLEM),
}


@dataclass(frozen=True)
class Region:
    """Whole records of a file."""

    text: bytes
    line: int  # the file's line on which they begin
    file_bytes: int  # how many bytes of ``text`` are in the file: all, or all but a line feed added to its last record
    ends: np.ndarray  # positions of the delimiters and line feeds outside quotes
    feeds: np.ndarray  # positions of these line feeds

    @classmethod
    def from_block(cls, block: bytes, line: int, layout: Layout) -> tuple[Region, bytes]:
        """Return the whole records at the beginning of a block, which begins with one, and the bytes after them."""
        text = np.frombuffer(block, np.uint8)
        feeds = text == LF
        special = feeds | (text == ord(layout.delimiter))
        if QUOTE not in block:
            ends, feeds = np.flatnonzero(special), np.flatnonzero(feeds)
        else:
            special_positions = np.flatnonzero(special | (text == QUOTE))
            special_bytes = text[special_positions]
            quotes = special_bytes == QUOTE
            # Outside quotes an even number of them has gone before; a doubled one counts twice.
            is_outside = ~quotes & (np.cumsum(quotes) & 1 == 0)
            ends, feeds = special_positions[is_outside], special_positions[is_outside & (special_bytes == LF)]
        size = int(feeds[-1]) + 1 if len(feeds) else 0
        return cls(block[:size], line, size, ends[: np.searchsorted(ends, size)], feeds), block[size:]

    def end_of_record(self, position: int) -> int:
        """Return the end of the record at this position."""
        return int(self.feeds[np.searchsorted(self.feeds, position)]) + 1

    def line_number(self, position: int) -> int:
        return self.line + self.text.count(LF, 0, position)

    def check_grammar(self, layout: Layout) -> None:
        """Refuse records that break the grammar, and name the first offence of a kind."""
        text = np.frombuffer(self.text, np.uint8)
        quotes = np.flatnonzero(text == QUOTE) if QUOTE in self.text else np.empty(0, int)
        offences = _quote_offences(text, quotes, layout) if len(quotes) else []
        broken = "a line break inside a quoted cell; --multiline allows them"
        if not layout.multiline and len(quotes) and self.text.count(LF) > len(self.feeds):
            offences.append((np.setdiff1d(np.flatnonzero(text == LF), self.feeds)[0], broken))
        if CR in self.text:
            returns = np.flatnonzero(text == CR)
            alone = returns[text[returns + 1] != LF]
            outside_quotes = alone[np.searchsorted(quotes, alone) & 1 == 0]
            offences += [(i, "a carriage return without a line feed, outside quotes") for i in outside_quotes[:1]]
            offences += [(i, broken) for i in alone[:1] if not layout.multiline]
        if offences:
            i, problem = offences[0]
            raise ValueError(f"line {self.line_number(int(i))}: {problem}")


def _quote_offences(text: np.ndarray, quotes: np.ndarray, layout: Layout) -> list[tuple[int, str]]:
    """Return the first quotes that are neither around a cell nor doubled in a quoted one, each with the fault.

    The text begins with a record, and at least two bytes follow the last quote.
    """
    opening, closing = quotes[0::2], quotes[1::2]
    ending = np.array([ord(layout.delimiter), LF, QUOTE], np.uint8)
    opens = np.isin(text[opening - 1], ending) | (opening == 0)
    next_byte, second_next = text[closing + 1], text[np.minimum(closing + 2, len(text) - 1)]
    closes = np.isin(next_byte, ending) | ((next_byte == CR) & (second_next == LF))
    offences = [(position, "a quote inside a cell that does not begin with one") for position in opening[~opens][:1]]
    return sorted([*offences, *((position, "text after a closing quote") for position in closing[~closes][:1])])


def _unended(remainder: bytes, line: int, layout: Layout) -> ValueError:
    """Return the error of bytes that begin a record which has no line end outside quotes."""
    text = np.frombuffer(remainder + b"\n\n", np.uint8)
    quotes = np.flatnonzero(text == QUOTE)
    offences = _quote_offences(text, quotes, layout)
    if len(quotes) % 2:
        offences.append((quotes[-1], f"a quote that is not closed within {len(remainder) - quotes[-1]} bytes"))
    position, problem = [*offences, (0, f"a record of {len(remainder)} bytes or more")][0]
    return ValueError(f"line {line + remainder.count(LF, 0, int(position))}: {problem}")


@dataclass(frozen=True)
class Records:
    """Whole records and where the chosen columns' cells are in them."""

    region: Region
    first: np.ndarray  # where each begins
    last: np.ndarray  # where the content of each ends, before its line end
    # Where each chosen column's cells begin and end, with quotes: whether a cell was quoted may depend on its value.
    spans: dict[str | int | None, tuple[np.ndarray, np.ndarray]]
    cells: dict[str | int | None, pa.Array]  # their contents, without these quotes

    @classmethod
    def parse(cls, region: Region, width: int, columns: Mapping[Any, int], start: int = 0) -> Records:
        """Find the cells of columns, given by name and number, in records of ``width`` cells from row ``start`` on."""
        text = np.frombuffer(region.text, np.uint8)
        first, ends = _grid(region, text, width, start)
        feeds = ends[:, -1]
        last = feeds - ((feeds > first) & (text[feeds - 1] == CR))
        spans, cells = {}, {}
        for name, number in columns.items():
            begin, end = ends[:, number - 1] + 1 if number else first, ends[:, number] if number < width - 1 else last
            quoted = text[begin] == QUOTE
            spans[name], cells[name] = (begin, end), _slices(region.text, begin + quoted, end - quoted)
        return cls(region, first, last, spans, cells)

    def __len__(self) -> int:
        return len(self.first)


def _grid(region: Region, text: np.ndarray, width: int, start: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where each record begins, and (records, cells) where each cell ends, the last one at its line feed.

    Blank lines are no records; in a table of one column a blank line is an empty cell.
    """
    ends, feeds = region.ends, region.feeds
    first = np.concatenate([[0], feeds[:-1] + 1]) if len(feeds) else feeds
    is_regular = _is_regular(ends, feeds, width)
    if width > 1 and not is_regular:
        blank = (feeds == first) | ((feeds - first == 1) & (text[first] == CR))
        is_end = np.ones(len(ends), bool)
        is_end[np.searchsorted(ends, feeds[blank])] = False
        first, ends, feeds = first[~blank], ends[is_end], feeds[~blank]
        is_regular = _is_regular(ends, feeds, width)
    if not is_regular:
        counts = np.diff(np.searchsorted(ends, feeds), prepend=-1)
        row = int(np.flatnonzero(counts != width)[0])
        line = region.line_number(int(first[row]))
        raise ValueError(f"row {start + row} (line {line}) has {counts[row]} cells; the header has {width}")
    return first, ends.reshape(-1, width)


def _is_regular(ends: np.ndarray, feeds: np.ndarray, width: int) -> bool:
    return len(ends) == width * len(feeds) and np.array_equal(ends[width - 1 :: width], feeds)


@dataclass(frozen=True)
class Lines:
    """Records of the output."""

    text: pa.Buffer
    first: np.ndarray  # where each begins
    last: np.ndarray  # where the content of each ends, before its line end

    def only(self, rows: np.ndarray) -> Lines:
        """Return the records whose mask is true; a line end goes with the record before it."""
        begin = int(self.first[0]) if len(rows) else 0
        selected = buffers.binary(self.text, np.append(self.first, self.text.size)).filter(buffers.array(rows))
        begins, lengths = begin + buffers.offsets(selected)[:-1], (self.last - self.first)[rows]
        text = self.text.slice(0, begin).to_pybytes() + buffers.text(selected).to_pybytes()
        return Lines(pa.py_buffer(text), begins, begins + lengths)

    def contents(self) -> pa.Array:
        """Return the records without line ends and blank lines."""
        return _slices(self.text, self.first, self.last)


def _slices(text: bytes | pa.Buffer, begin: np.ndarray, end: np.ndarray) -> pa.Array:
    return _alternating(text, [(begin, end)], len(text)).filter(_alternating_mask(len(begin)))


def _alternating(text: bytes | pa.Buffer, spans: Sequence[tuple[np.ndarray, np.ndarray]], size: int) -> pa.Array:
    """Return the parts of a text: before the first span, the first span, between it and the second, and so on."""
    boundaries = np.stack([position for span in spans for position in span], axis=1)
    return buffers.binary(text, np.concatenate([[0], boundaries.ravel(), [size]]))


def _alternating_mask(count: int) -> pa.Array:
    """Return the mask false, true, false ... true, false with this number of true values."""
    return pa.Array.from_buffers(pa.bool_(), 2 * count + 1, [None, pa.py_buffer(b"\xaa" * (count // 4 + 1))])


def _texts(cells: pa.Array, reports: Numbers | CategoryReports, delimiter: str) -> pa.Array:
    """Return reports as the shortest decimals that read back as the same numbers, and missing cells' contents.

    Reports about categories have texts of their own.
    """
    if isinstance(reports, CategoryReports):
        texts = reports.texts(delimiter)
        if reports.missing is None:
            return texts
        return pc.if_else(buffers.array(reports.missing), _requoted(cells, delimiter), texts)
    texts = pc.cast(buffers.array(reports.values), pa.string()).cast(pa.binary())
    if reports.missing is not None:
        markers = pc.ascii_trim_whitespace(buffers.as_text(cells)).cast(pa.binary())
        texts = pc.if_else(buffers.array(reports.missing), _requoted(markers, delimiter), texts)
    return texts


def _requoted(cells: pa.Array, delimiter: str) -> pa.Array:
    """Return the contents of cells in quotes if they need these: a marker of missing values may."""
    needs = pc.match_substring_regex(cells, rf'["\n\r]|\x{{{ord(delimiter):x}}}')
    return pc.if_else(needs, pc.binary_join_element_wise(b'"', cells, b'"', b""), cells)


def _floats(texts: pa.Array) -> np.ndarray | None:
    """Return the numbers that texts are, or None if one is not a number."""
    try:
        return buffers.numbers(pc.cast(texts, pa.float64()))
    except pa.ArrowInvalid:
        return None


class DelimitedFile(Source[Records, Lines]):
    """A file with a header; quotes, line ends, blank lines and a byte-order mark are kept."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self.path = path
        self._layout, self.markers = layout, layout.markers
        self._head, self._ended = b"", True  # the bytes up to the records; whether the last one has a line end
        self._unpacked, self._lines = 1.0, 0.0  # bytes and lines for each byte of the file, in its first block
        with self._naming_file():
            regions = self._regions()
            header = next(regions, None)
            if header is None:
                raise ValueError("is empty; a header is needed")
            self.names = self._names(header)
        # A stream is read on from here; a file is read again.
        self._stream = regions if path == STANDARD_INPUT else None

    def chunks(self, columns: Sequence[str | None]) -> Generator[Records, None, None]:
        numbers = {name: list(self.names).index(str(name)) for name in columns}
        start = 0
        with self._naming_file():
            for region in self._body():
                region.check_grammar(self._layout)
                chunk = Records.parse(region, len(self.names), numbers, start)
                self._check_twice(chunk, numbers)
                yield chunk
                start += len(chunk)

    def _body(self) -> Iterator[Region]:
        """Yield the records after the header."""
        if self.path == STANDARD_INPUT and self._stream is None:
            raise ValueError("can be read only once")
        regions, self._stream = self._stream, None
        if regions is None:
            regions = self._regions()
            next(regions, None)
        yield from regions

    def _regions(self) -> Generator[Region, None, None]:
        """Yield the header, and then the records, in whole ones; note how the file begins and ends."""
        line, buffered, has_header = 1, b"", False
        for block in chain(self._blocks(), [b""]):  # Nothing is the end of the file.
            buffered += block
            # Before the header there may be a mark and blank lines.
            skip = 0 if has_header else len(buffered) - len(buffered.removeprefix(UTF8_MARK).lstrip(b"\r\n"))
            region, remainder = Region.from_block(buffered if block else buffered + b"\n", line, self._layout)
            if not block:
                self._ended = not buffered
                if skip == len(buffered):
                    return
                if remainder:
                    raise _unended(buffered[skip:], line + buffered.count(LF, 0, skip), self._layout)
                if buffered.endswith(b"\r"):
                    line += buffered.count(LF)
                    raise ValueError(f"line {line}: a carriage return without a line feed, at the end of the file")
                region = replace(region, file_bytes=len(buffered))
            if not has_header and region.file_bytes > skip:
                end, has_header = region.end_of_record(skip), True
                self._head = region.text[: min(end, region.file_bytes)]
                yield Region.from_block(region.text[skip:end], region.line_number(skip), self._layout)[0]
                records, _ = Region.from_block(region.text[end:], region.line_number(end), self._layout)
                region = replace(records, file_bytes=region.file_bytes - len(self._head))
            if has_header:
                line, buffered = region.line + region.text.count(LF), remainder
                if region.text:
                    yield region
            if len(buffered) > MAX_RECORD_BYTES and has_header:
                raise _unended(buffered, line, self._layout)
            if len(buffered) > MAX_RECORD_BYTES:
                raise ValueError(
                    f"has a header of more than {MAX_RECORD_BYTES} bytes, or one with a quote that is not closed"
                )

    def _check_twice(self, chunk: Records, columns: dict[str | None, int]) -> None:
        """Refuse records of which Arrow's own parser finds another number, or other cells in the chosen columns."""
        text, names = chunk.region.text, [str(i) for i in range(len(self.names))]
        if not text:
            return
        types = {str(i): pa.binary() for i in columns.values()}
        delimiter, multiline = self._layout.delimiter, self._layout.multiline
        parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=multiline, ignore_empty_lines=len(names) > 1)
        read = csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=names)
        convert = csv.ConvertOptions(include_columns=list(types), column_types=types, check_utf8=False)
        try:
            table = csv.read_csv(pa.py_buffer(text), read, parse, convert)
        except pa.ArrowInvalid:
            table = None
        by_number = {
            str(i): self.labels(chunk, name) if QUOTE in text else chunk.cells[name] for name, i in columns.items()
        }
        if (
            table is None
            or len(table) != len(chunk)
            or not all(table.column(i).equals(pa.chunked_array([cells])) for i, cells in by_number.items())
        ):
            raise ValueError(f"a second parser reads the records from line {chunk.region.line} on differently")

    def numbers(self, chunk: Records, name: str | None, start: int) -> Numbers:
        cells = buffers.as_text(chunk.cells[name])
        # A marker may read as a number, such as -999.
        values, missing = None if self.markers else _floats(cells), None
        if values is None or (values.size and np.isnan(values.min())):
            trimmed = pc.ascii_trim_whitespace(cells)
            empty = pc.is_in(trimmed, pa.array([*MISSING_TEXTS, *self.markers]))
            filled = pc.if_else(empty, "0", trimmed)
            values, missing = _floats(filled), buffers.truths(empty)
            if values is None:
                row = bisect(range(len(filled)), False, key=lambda row: _floats(filled[: row + 1]) is None)
                position, cell = self.position(chunk, start + row, start), chunk.cells[name][row].as_py()
                text = private(repr(cell.decode(errors="replace")), "not a number")
                problem = f"is {text}; every row needs a number, or give --categories or --date-origin"
                raise RowError(start + row, position, "not a number", problem)
        # Floats may not hold whole numbers from 2^53 on.
        rounded = np.abs(values) >= _WHOLE
        if rounded.any():
            rounded &= buffers.truths(pc.match_substring_regex(cells, r"^\s*[+-]?[0-9]+\s*$"))
        return Numbers(values, *(mask if mask is not None and mask.any() else None for mask in (missing, rounded)))

    def labels(self, chunk: Records, name: str | None) -> pa.Array:
        return pc.replace_substring(chunk.cells[name], '""', '"')

    def replaced(self, chunk: Records, reports: Mapping[str | None, Numbers | CategoryReports]) -> Lines:
        names = sorted(reports, key=lambda name: chunk.spans[name][0][:1].tolist())  # in the order of the file
        columns = [_texts(chunk.cells[name], reports[name], self._layout.delimiter) for name in names]
        filled = columns[0]
        if len(names) > 1:
            order = np.arange(len(chunk) * len(names)).reshape(len(names), -1).T.ravel()
            filled = pa.concat_arrays(columns).take(buffers.array(order))
        old_texts = _alternating(chunk.region.text, [chunk.spans[name] for name in names], chunk.region.file_bytes)
        new_texts = pc.replace_with_mask(old_texts, _alternating_mask(len(chunk) * len(names)), filled)
        # A record begins in the bytes that are copied before its first report, and ends in those after its last.
        moved = (buffers.offsets(new_texts) - buffers.offsets(old_texts))[:: 2 * len(names)]
        return Lines(buffers.text(new_texts), chunk.first + moved[: len(chunk)], chunk.last + moved[1 : len(chunk) + 1])

    def select(self, replaced: Lines, rows: np.ndarray) -> Lines:
        return replaced.only(rows)

    def reordered(self, chunks: Sequence[Lines], order: np.ndarray) -> Iterator[Lines]:
        rows = pa.chunked_array([chunk.contents() for chunk in chunks], pa.binary())
        end = b"\r\n" if self._head.endswith(b"\r\n") else b"\n"
        for first in range(0, len(order), MAX_ROWS):
            block = rows.take(buffers.array(order[first : first + MAX_ROWS])).combine_chunks()
            text = buffers.text(pc.binary_join_element_wise(block, b"", end))
            cut = 0 if self._ended or first + MAX_ROWS < len(order) else len(end)
            yield Lines(text.slice(0, text.size - cut), order[:0], order[:0])

    def size(self, replaced: Lines) -> int:
        return replaced.text.size + replaced.first.nbytes + replaced.last.nbytes

    def output_bytes(self, columns: Sequence[str | None]) -> int:
        if self.path == STANDARD_INPUT:
            return 0  # whose size is not known
        size, pack = self.path.stat().st_size, self._layout.pack
        reports = size * self._lines * len(columns) * (_PACKED_REPORT_BYTES if pack else _REPORT_BYTES)
        # How far a plain text can be compressed is not known.
        copied = (size if self._layout.unpack else 0) if pack else size * self._unpacked
        return int(copied + reports)

    def rows(self, chunk: Records, begin: int, end: int) -> Records:
        rows = slice(begin, end)
        spans = {name: (first[rows], last[rows]) for name, (first, last) in chunk.spans.items()}
        cells = {name: column[begin:end] for name, column in chunk.cells.items()}
        return Records(chunk.region, chunk.first[rows], chunk.last[rows], spans, cells)

    def position(self, chunk: Records, row: int, start: int) -> str:
        return f"row {row} (line {chunk.region.line_number(int(chunk.first[row - start]))})"

    @contextmanager
    def sink(self, path: Path) -> Iterator[Callable[[Lines], object]]:
        pack = self._layout.pack
        with (
            path.open("wb") as file,
            # The header of gzip contains neither the time nor the temporary name.
            gzip.GzipFile("", "wb", 6, file, mtime=0) if pack else nullcontext(file) as stream,
        ):
            stream.write(self._head)
            yield lambda chunk: stream.write(chunk.text)

    def _names(self, region: Region) -> list[str]:
        region.check_grammar(self._layout)
        width = len(region.ends)
        header = Records.parse(region, width, {number: number for number in range(width)})
        try:
            return [header.cells[number][0].as_py().decode().replace('""', '"') for number in range(width)]
        except UnicodeDecodeError:
            raise ValueError("has a header that is not UTF-8") from None

    def _blocks(self) -> Generator[bytes, None, None]:
        stream = self.path == STANDARD_INPUT
        with nullcontext(sys.stdin.buffer) if stream else self.path.open("rb") as raw:
            file = gzip.GzipFile(fileobj=raw) if self._layout.unpack else raw
            size, done = max(1, self.path.stat().st_size), 0
            while block := file.read(BLOCK_BYTES):
                for mark, problem in _OTHER_KINDS.items():
                    if not done and block.startswith(mark):
                        raise ValueError(problem)
                if b"\0" in block:
                    raise ValueError(
                        f"has a NUL at byte {done + block.index(0)}; is it UTF-16? A text in UTF-8 is needed"
                    )
                if not done and not stream:
                    self._unpacked, self._lines = len(block) / raw.tell(), block.count(LF) / raw.tell()
                done += len(block)
                self.fraction = 0.0 if stream else min(1.0, raw.tell() / size)
                yield block

    @contextmanager
    def _naming_file(self) -> Iterator[None]:
        name = "standard input" if self.path == STANDARD_INPUT else self.path
        try:
            yield
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{name}: is not a whole gzip file: {error_text(error)}") from error
        except ValueError as error:
            raise ValueError(f"{name}: {error_text(error)}") from error
