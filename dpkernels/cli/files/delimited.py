"""``.csv`` and ``.tsv``: every byte is copied except those of the cells that are replaced.

Records and cells are found over whole blocks of bytes. The grammar is strict (RFC 4180, with LF for CRLF where the file
has it): a quote opens a cell or is in a quoted one, a quote in a quoted cell is doubled, and a closing quote ends its
cell. Other text is refused, because another reader might see other cells in it, and copy a protected value with one.
"""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from dpkernels.cli.files import buffers
from dpkernels.cli.files.formats import MOST_ROWS, Numbers, Source
from dpkernels.cli.files.layout import STANDARD_INPUT, Layout

QUOTE, LF, CR = b'"\n\r'


class MalformedError(ValueError):
    """Bytes that are not delimited records.

    Attributes:
        at: where in the block.
    """

    def __init__(self, at: int, reason: str) -> None:
        self.at = int(at)
        super().__init__(reason)


@dataclass(frozen=True)
class Dialect:
    """The delimiter of cells, and whether quoted cells may have line breaks."""

    delimiter: int
    multiline: bool = False


@dataclass(frozen=True)
class Ends:
    """The delimiters and line feeds outside quotes.

    Attributes:
        cells: positions of all of them.
        lines: positions of the line feeds among them.
    """

    cells: np.ndarray
    lines: np.ndarray

    @classmethod
    def of(cls, block: bytes, dialect: Dialect) -> Ends:
        """Find the ends in a block that begins with a record; after its last line end it may be cut short."""
        text = np.frombuffer(block, np.uint8)
        feeds = text == LF
        special = feeds | (text == dialect.delimiter)
        if QUOTE not in block:
            return cls(np.flatnonzero(special), np.flatnonzero(feeds))
        places = np.flatnonzero(special | (text == QUOTE))
        kinds = text[places]
        quotes = kinds == QUOTE
        # Outside quotes an even number of them has gone before; a doubled one counts twice.
        outside = ~quotes & (np.cumsum(quotes) & 1 == 0)
        return cls(places[outside], places[outside & (kinds == LF)])


@dataclass(frozen=True)
class Region:
    """Whole records of a file.

    Attributes:
        text: their bytes.
        ends: where their cells end.
        line: the file's line on which they begin.
        size: how many of the bytes are in the file: all, or all but a line feed that its last record lacks.
    """

    text: bytes
    ends: Ends
    line: int
    size: int

    @classmethod
    def of(cls, block: bytes, line: int, dialect: Dialect) -> tuple[Region, bytes]:
        """Return the whole records at the beginning of a block, which begins with one, and the bytes after them."""
        ends = Ends.of(block, dialect)
        size = int(ends.lines[-1]) + 1 if len(ends.lines) else 0
        ends = Ends(ends.cells[: np.searchsorted(ends.cells, size)], ends.lines)
        return cls(block[:size], ends, line, size), block[size:]

    def head(self) -> Region:
        """Return the first record alone."""
        size = int(self.ends.lines[0]) + 1 if self.text else 0
        ends = Ends(self.ends.cells[: np.searchsorted(self.ends.cells, size)], self.ends.lines[:1])
        return Region(self.text[:size], ends, self.line, size)

    def line_of(self, at: int) -> int:
        """Return the file's line of a position."""
        return self.line + self.text.count(LF, 0, at)


@dataclass(frozen=True)
class CellGrid:
    """Records of equally many cells in a block.

    Attributes:
        first: where each record begins.
        ends: of each record, where each cell ends; at the last, its line feed.
    """

    first: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, region: Region, cells: int) -> CellGrid:
        """Find the cells of records without blank lines; in a table of one column a blank line is an empty cell.

        Raises:
            RaggedError: a record has more or fewer cells.
        """
        ends = region.ends
        first = np.concatenate([[0], ends.lines[:-1] + 1]) if len(ends.lines) else ends.lines
        if not _regular(ends, cells):
            first, ends = _without_blank_lines(np.frombuffer(region.text, np.uint8), first, ends, cells)
        return cls(first, ends.cells.reshape(-1, cells))

    def last(self, text: np.ndarray) -> np.ndarray:
        """Return where the content of each record ends, before its line end."""
        feeds = self.ends[:, -1]
        return feeds - ((feeds > self.first) & (text[feeds - 1] == CR))

    def column(self, text: np.ndarray, at: int) -> tuple[np.ndarray, np.ndarray]:
        """Return where the content of each cell of a column begins and ends, without quotes around it."""
        begins, ends = self.whole(text, at)
        quoted = text[begins] == QUOTE
        return begins + quoted, ends - quoted

    def whole(self, text: np.ndarray, at: int) -> tuple[np.ndarray, np.ndarray]:
        """Return where each cell of a column begins and ends."""
        begins = self.ends[:, at - 1] + 1 if at else self.first
        return begins, self.ends[:, at] if at < self.ends.shape[1] - 1 else self.last(text)


class RaggedError(ValueError):
    """A record with too few or too many cells.

    Attributes:
        row: its number in the block.
        at: where it begins.
        cells: how many it has.
    """

    def __init__(self, row: int, at: int, cells: int) -> None:
        self.row, self.at, self.cells = int(row), int(at), int(cells)
        super().__init__(f"{self.cells} cells")


def _regular(ends: Ends, cells: int) -> bool:
    """Return whether every record has this number of cells."""
    return len(ends.cells) == cells * len(ends.lines) and np.array_equal(ends.cells[cells - 1 :: cells], ends.lines)


def _without_blank_lines(text: np.ndarray, first: np.ndarray, ends: Ends, cells: int) -> tuple[np.ndarray, Ends]:
    blank = (ends.lines - first == 0) | ((ends.lines - first == 1) & (text[first] == CR))
    if cells == 1:
        blank[:] = False
    kept = np.ones(len(ends.cells), bool)
    kept[np.searchsorted(ends.cells, ends.lines[blank])] = False
    first, rest = first[~blank], Ends(ends.cells[kept], ends.lines[~blank])
    if not _regular(rest, cells):
        counts = np.diff(np.searchsorted(rest.cells, rest.lines), prepend=-1)
        row = np.flatnonzero(counts != cells)[0]
        raise RaggedError(row, first[row], counts[row])
    return first, rest


def check_grammar(region: Region, dialect: Dialect) -> None:
    """Refuse records that are not of the grammar.

    Raises:
        MalformedError: names the first offence of a kind.
    """
    text = np.frombuffer(region.text, np.uint8)
    quotes = np.flatnonzero(text == QUOTE) if QUOTE in region.text else np.empty(0, int)
    if len(quotes):
        check_quotes(text, quotes, dialect)
    if not dialect.multiline and len(quotes) and region.text.count(LF) > len(region.ends.lines):
        feeds = np.flatnonzero(text == LF)
        raise _break_at(feeds[~np.isin(feeds, region.ends.lines)][0])
    if CR in region.text:
        returns = np.flatnonzero(text == CR)
        alone = returns[text[returns + 1] != LF]
        inside = np.searchsorted(quotes, alone) & 1 == 1
        if not inside.all():
            raise MalformedError(alone[~inside][0], "a carriage return without a line feed, outside quotes")
        if len(alone) and not dialect.multiline:
            raise _break_at(alone[0])


def check_quotes(text: np.ndarray, quotes: np.ndarray, dialect: Dialect) -> None:
    """Refuse quotes that are neither around a cell nor doubled in a quoted one.

    Args:
        text: what they are in, from the beginning of a record on; at least two bytes follow the last.
        quotes: where they are.
        dialect: what ends a cell.

    Raises:
        MalformedError: names the first.
    """
    opening, closing = quotes[0::2], quotes[1::2]
    ending = np.array([dialect.delimiter, LF, QUOTE], np.uint8)
    opens = np.isin(text[opening - 1], ending) | (opening == 0)
    after, next_but_one = text[closing + 1], text[np.minimum(closing + 2, len(text) - 1)]
    closes = np.isin(after, ending) | ((after == CR) & (next_but_one == LF))
    offences = [(at, "a quote inside a cell that does not begin with one") for at in opening[~opens][:1]]
    offences += [(at, "text after a closing quote") for at in closing[~closes][:1]]
    if offences:
        raise MalformedError(*min(offences))


def unended(rest: bytes, dialect: Dialect) -> MalformedError:
    """Return what is wrong with bytes from the beginning of a record on that no line end outside quotes ends."""
    text = np.frombuffer(rest + b"\n\n", np.uint8)
    quotes = np.flatnonzero(text == QUOTE)
    try:
        check_quotes(text, quotes, dialect)
    except MalformedError as error:
        return error
    if len(quotes) % 2:
        return MalformedError(quotes[-1], f"a quote that is not closed within {len(rest) - quotes[-1]} bytes")
    return MalformedError(0, f"a record of {len(rest)} bytes or more")


def _break_at(at: int) -> MalformedError:
    return MalformedError(at, "a line break inside a quoted cell; --multiline allows them")


_WHOLE = 2.0**53  # Floats hold every whole number below.
# Texts of cells without a value, as pandas, R and databases write them.
_MISSING = ["", "NA", "NaN", "nan", "NULL", "null"]


@dataclass(frozen=True)
class Records:
    """Whole records and where the chosen columns' cells are in them.

    Attributes:
        region: the records.
        first: where each begins.
        last: where the content of each ends, before its line end.
        spans: of each chosen column, where its cells begin and end, quotes around them included: whether a cell was
            quoted may depend on its value.
        cells: their contents, without these quotes.
    """

    region: Region
    first: np.ndarray
    last: np.ndarray
    spans: dict[str | None, tuple[np.ndarray, np.ndarray]]
    cells: dict[str | None, pa.Array]

    @classmethod
    def of(cls, region: Region, grid: CellGrid, columns: dict[str | None, int]) -> Records:
        """Find the cells of columns, which are given by name and number."""
        text = np.frombuffer(region.text, np.uint8)
        inner = {name: grid.column(text, at) for name, at in columns.items()}
        cells = {name: _parts(region.text, span) for name, span in inner.items()}
        spans = {name: grid.whole(text, at) for name, at in columns.items()}
        return cls(region, grid.first, grid.last(text), spans, cells)

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True)
class Lines:
    """Records of the output.

    Attributes:
        text: their bytes.
        first: where each begins.
        last: where the content of each ends, before its line end.
    """

    text: pa.Buffer
    first: np.ndarray
    last: np.ndarray

    def only(self, rows: np.ndarray) -> Lines:
        """Return those whose mask is true; a line end goes with the record before it."""
        begin = int(self.first[0]) if len(rows) else 0
        left = buffers.binary(self.text, np.append(self.first, self.text.size)).filter(buffers.array(rows))
        begins, lengths = begin + buffers.offsets(left)[:-1], (self.last - self.first)[rows]
        text = self.text.slice(0, begin).to_pybytes() + buffers.text(left).to_pybytes()
        return Lines(pa.py_buffer(text), begins, begins + lengths)

    def contents(self) -> pa.Array:
        """Return the records without line ends and blank lines between them."""
        return _parts(self.text, (self.first, self.last))


def replaced(piece: Records, reports: dict[str | None, Numbers]) -> Lines:
    """Return the records with reports for the cells of these columns, and every other byte as it is."""
    names = sorted(reports, key=lambda name: piece.spans[name][0][:1].tolist())
    columns = [_texts(piece.cells[name], reports[name]) for name in names]
    filled = columns[0]
    if len(names) > 1:  # in the order of the file
        order = np.arange(len(piece) * len(names)).reshape(len(names), -1).T.ravel()
        filled = pa.concat_arrays(columns).take(buffers.array(order))
    old = _alternating(piece.region.text, [piece.spans[name] for name in names], piece.region.size)
    new = pc.replace_with_mask(old, _every_other(len(piece) * len(names)), filled)
    # A record begins in the bytes that are copied before its first report, and ends in those after its last.
    moved = (buffers.offsets(new) - buffers.offsets(old))[:: 2 * len(names)]
    return Lines(buffers.text(new), piece.first + moved[: len(piece)], piece.last + moved[1 : len(piece) + 1])


def numbers(cells: pa.Array) -> Numbers:
    """Return the numbers of cells' contents, spaces around them apart.

    Raises:
        CellError: for the first that is neither a number nor missing.
    """
    found = _plain_numbers(cells) or _numbers_and_missing(cells)
    return replace(found, rounded=_rounded(cells, found.values))


def _plain_numbers(cells: pa.Array) -> Numbers | None:
    """None where one is missing or not a number, or may be one with spaces around it."""
    try:
        found = Numbers.of(_floats(buffers.as_text(cells)))
    except pa.ArrowInvalid:
        return None
    return None if found.missing is not None else found


def _numbers_and_missing(cells: pa.Array) -> Numbers:
    trimmed = pc.ascii_trim_whitespace(buffers.as_text(cells))
    missing = pc.is_in(trimmed, pa.array(_MISSING))
    filled = pc.if_else(missing, "0", trimmed)
    try:
        values = _floats(filled)
    except pa.ArrowInvalid:
        raise CellError(_first_that_is_none(filled), cells) from None
    mask = buffers.truths(missing)
    return Numbers(values, mask if mask.any() else None)


def _rounded(cells: pa.Array, values: np.ndarray) -> np.ndarray | None:
    """Return where whole numbers from 2^53 on stand, which a float may not hold; None for nowhere."""
    large = np.abs(values) >= _WHOLE
    if not large.any():
        return None
    whole = buffers.truths(pc.match_substring_regex(buffers.as_text(cells), r"^\s*[+-]?[0-9]+\s*$"))
    return large & whole if (large & whole).any() else None


class CellError(ValueError):
    """A cell that is not a number.

    Attributes:
        row: its number in the piece.
    """

    def __init__(self, row: int, cells: pa.Array) -> None:
        self.row = row
        super().__init__(f"{cells[row].as_py().decode(errors='replace')!r}; every row needs a number")


def counted_again(piece: Records, names: int, columns: dict[str | None, int], dialect: Dialect) -> None:
    """Refuse records of which Arrow's own parser finds another number, or other cells in the chosen columns.

    Raises:
        ValueError: it does.
    """
    if not piece.region.text:
        return
    wanted = {str(at): pa.binary() for at in columns.values()}
    parse = csv.ParseOptions(
        delimiter=chr(dialect.delimiter), newlines_in_values=dialect.multiline, ignore_empty_lines=names > 1
    )
    numbered = [str(at) for at in range(names)]
    read = csv.ReadOptions(use_threads=False, block_size=len(piece.region.text) + 1, column_names=numbered)
    convert = csv.ConvertOptions(include_columns=list(wanted), column_types=wanted, check_utf8=False)
    try:
        table = csv.read_csv(pa.py_buffer(piece.region.text), read, parse, convert)
    except pa.ArrowInvalid:
        table = None
    if table is None or len(table) != len(piece) or not all(_same(table, piece, *one) for one in columns.items()):
        raise ValueError(f"a second parser reads the records from line {piece.region.line} on differently")


def _same(table: pa.Table, piece: Records, name: str | None, at: int) -> bool:
    cells = piece.cells[name]
    if QUOTE in piece.region.text:
        cells = pc.replace_substring(cells, '""', '"')
    return table.column(str(at)).equals(pa.chunked_array([cells]))


def _parts(text: bytes | pa.Buffer, span: tuple[np.ndarray, np.ndarray]) -> pa.Array:
    return _alternating(text, [span], len(text)).filter(_every_other(len(span[0])))


def _alternating(text: bytes | pa.Buffer, spans: Sequence[tuple[np.ndarray, np.ndarray]], size: int) -> pa.Array:
    """Return the parts of a text: before the first span, the first span, between it and the second, and so on."""
    places = np.empty((len(spans[0][0]), 2 * len(spans)), np.int32)
    for at, span in enumerate(spans):
        places[:, 2 * at], places[:, 2 * at + 1] = span
    return buffers.binary(text, np.concatenate([[0], places.ravel(), [size]]))


def _every_other(count: int) -> pa.Array:
    """Return the mask false, true, false ... true, false with this number of true values."""
    return pa.Array.from_buffers(pa.bool_(), 2 * count + 1, [None, pa.py_buffer(b"\xaa" * (count // 4 + 1))])


def _texts(cells: pa.Array, reports: Numbers) -> pa.Array:
    """Reports as the shortest decimals that read back as the same numbers; missing cells as they are."""
    texts = pc.cast(buffers.array(reports.values), pa.string())
    if reports.missing is not None:
        own = pc.ascii_trim_whitespace(buffers.as_text(cells))
        texts = pc.if_else(buffers.array(reports.missing), own, texts)
    return texts.cast(pa.binary())


def _floats(texts: pa.Array) -> np.ndarray:
    return buffers.numbers(pc.cast(texts, pa.float64()))


def _first_that_is_none(texts: pa.Array) -> int:
    """Return the row of the first text that is not a number, by halves."""
    low, high = 0, len(texts)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _floats(texts[low:middle])
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low


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

    def __init__(self, path: Path, layout: Layout) -> None:
        self.path = path
        self._layout = layout
        self._dialect = Dialect(ord(layout.delimiter), layout.multiline)
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
            if not self._layout.pack:
                yield _LineSink(file, self._head)
                return
            # Neither the time nor the temporary name is anyone's business.
            with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
                yield _LineSink(packed, self._head)

    def _records(self, region: Region, columns: dict[str | None, int], start: int) -> Records:
        self._check(region)
        try:
            grid = CellGrid.of(region, len(self.names))
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
        """Yield all after the header in whole records."""
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
        """Yield the blocks after the header."""
        if self.path == STANDARD_INPUT and self._stream is None:
            raise ValueError("can be read only once")
        stream, self._stream = self._stream, None
        skip = len(self._head)
        for block in stream or self._blocks():
            yield block[skip:]
            skip = max(0, skip - len(block))

    def _header(self, blocks: Iterator[bytes]) -> tuple[bytes, list[str], bytes]:
        """Return the bytes until the end of the header, the names in it, and all that was read to find it."""
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
        """Return where the header begins, after a mark and blank lines, and the header if it has a line end."""
        begin = len(_MARK) * read.startswith(_MARK)
        begin += len(read) - begin - len(read[begin:].lstrip(b"\r\n"))
        region, _ = Region.of(read[begin:], 1 + read.count(LF, 0, begin), self._dialect)
        return begin, region.head()

    def _names(self, region: Region) -> list[str]:
        self._check(region)
        grid = CellGrid.of(region, len(region.ends.cells))
        text = np.frombuffer(region.text, np.uint8)
        spans = [grid.column(text, at) for at in range(len(region.ends.cells))]
        try:
            return [region.text[begin[0] : end[0]].decode().replace('""', '"') for begin, end in spans]
        except UnicodeDecodeError:
            raise ValueError("has a header that is not UTF-8") from None

    def _blocks(self) -> Generator[bytes, None, None]:
        stream = self.path == STANDARD_INPUT
        with nullcontext(sys.stdin.buffer) if stream else self.path.open("rb") as raw:
            file = gzip.GzipFile(fileobj=raw) if self._layout.unpack else raw
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
