"""Where the records and cells of a delimited file begin and end, found over whole blocks of its bytes.

The grammar is strict (RFC 4180, with LF for CRLF where the file has it): a quote opens a cell or is in a quoted one, a
quote in a quoted cell is doubled, and nothing stands between a closing quote and the end of its cell. Whatever is not
of this grammar is refused: another reader might see other cells in it, and copy a protected value with one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
    """What ends a cell, and whether a quoted one may have line breaks."""

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
        """Of a block that begins with a record; what is after its last line end may be cut short."""
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
        """The whole records at the beginning of a block, which begins with one, and the bytes after them."""
        ends = Ends.of(block, dialect)
        size = int(ends.lines[-1]) + 1 if len(ends.lines) else 0
        ends = Ends(ends.cells[: np.searchsorted(ends.cells, size)], ends.lines)
        return cls(block[:size], ends, line, size), block[size:]

    def head(self) -> Region:
        """The first record alone."""
        size = int(self.ends.lines[0]) + 1 if self.text else 0
        ends = Ends(self.ends.cells[: np.searchsorted(self.ends.cells, size)], self.ends.lines[:1])
        return Region(self.text[:size], ends, self.line, size)

    def line_of(self, at: int) -> int:
        """The file's line of a position."""
        return self.line + self.text.count(LF, 0, at)


@dataclass(frozen=True)
class Grid:
    """Records of equally many cells in a block.

    Attributes:
        first: where each record begins.
        ends: of each record, where each cell ends; at the last, its line feed.
    """

    first: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, region: Region, cells: int) -> Grid:
        """Of records, blank lines apart; in a table of one column a blank line is an empty cell.

        Raises:
            RaggedError: a record has more or fewer cells.
        """
        ends = region.ends
        first = np.concatenate([[0], ends.lines[:-1] + 1]) if len(ends.lines) else ends.lines
        if not _regular(ends, cells):
            first, ends = _without_blank_lines(np.frombuffer(region.text, np.uint8), first, ends, cells)
        return cls(first, ends.cells.reshape(-1, cells))

    def last(self, text: np.ndarray) -> np.ndarray:
        """Where the content of each record ends, before its line end."""
        feeds = self.ends[:, -1]
        return feeds - ((feeds > self.first) & (text[feeds - 1] == CR))

    def column(self, text: np.ndarray, at: int) -> tuple[np.ndarray, np.ndarray]:
        """Where the content of each cell of a column begins and ends, without quotes around it."""
        begins, ends = self.whole(text, at)
        quoted = text[begins] == QUOTE
        return begins + quoted, ends - quoted

    def whole(self, text: np.ndarray, at: int) -> tuple[np.ndarray, np.ndarray]:
        """Where each cell of a column begins and ends."""
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
    """Whether every so manieth end is a line feed, and no other."""
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
    """What is wrong with bytes from the beginning of a record on that no line end outside quotes ends."""
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
