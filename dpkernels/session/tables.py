"""The table of a session: its columns, and which rows of each person count.

Nothing here depends on one person's rows in a way that another person's rows would show. Types and names of columns
and the number of rows a table can have are public. Which rows of a person count is decided by a keyed hash of
the person and of the rows' own content, so it depends neither on other persons nor on the order of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dpkernels.session.blocks import PIECE, Block, Source, changed, opened
from dpkernels.session.cells import joined_hashes, numbers, person_words

_SHARE_ROWS = 1 << 20  # rows that are sorted at once, about
_MAX_SHARES_LOG2 = 6  # log2 of the most shares that rows are divided into, by their first bits
_MAX_HASHED_ROWS = 1 << 26  # rows of which hashes are held at once, about: 28 bytes each


class Hashes(NamedTuple):
    """The number of rows of a block, and of those whose persons are in one part of all: hashes, and where they are."""

    rows: int
    places: np.ndarray
    high: np.ndarray  # with ``low``, the person
    low: np.ndarray
    content: np.ndarray


class UnknownColumnError(ValueError):
    """A name that is not a column's; ``columns`` are the names, which may be cells of a file without a header."""

    def __init__(self, name: str, columns: Sequence[Any]) -> None:
        self.name, self.columns = name, tuple(map(str, columns))
        super().__init__(f"column: there is no {name!r}; the data has {', '.join(self.columns)}")


@dataclass
class Table:
    """Columns that are read in blocks, and which of their rows count.

    Attributes:
        source: the data.
        persons: the number of each row's person, or None if a row is a person; -1 counts for nobody.
        counted: whether a row counts, or None if all do.
    """

    source: Source
    persons: np.ndarray | None = field(default=None, repr=False)
    counted: np.ndarray | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._fingerprint = self.source.fingerprint()

    @classmethod
    def of(cls, data: Any) -> Table:
        """Return the table of data of any kind; the errors are those of ``opened``."""
        return cls(opened(data))

    @property
    def kind(self) -> str:
        return self.source.kind

    def check_columns(self, *names: str) -> None:
        """Raise an UnknownColumnError for a name that is not a column's."""
        for name in names:
            if name not in self.source.columns:
                raise UnknownColumnError(name, self.source.columns)

    def check_unchanged(self) -> None:
        """Raise a RuntimeError or an OSError for data that has changed, or is gone, as far as that is seen at once."""
        if self.source.fingerprint() != self._fingerprint:
            raise changed()

    def map(self, names: Sequence[str], function: Callable[..., Any]) -> Iterator[Any]:
        """Yield function(block, persons=persons) of the rows that count, block after block.

        Persons are None if a row is a person. If the data is on other machines, the function is sent there.
        """
        if self.persons is None or self.counted is None:
            return self.source.map(names, partial(function, persons=None))
        return self.source.map(names, partial(_of_counted, function), self.counted, self.persons)

    def extremes(self, column: str) -> tuple[float, float] | None:
        """Return the smallest and the largest number of a column, or None if it takes long to find them."""
        if not self.source.is_small:
            return None
        ends = list(self.source.map([column], partial(_extremes, column)))
        return min((low for low, _ in ends), default=math.inf), max((high for _, high in ends), default=-math.inf)

    def bound_rows(self, person: str, rows: int, secret: bytes) -> None:
        """Let at most so many rows of each person count, chosen by a keyed hash; rows without a person never count.

        Many rows are read several times, each time for a part of all persons, so that few hashes are held at once.
        """
        self.check_columns(person)
        names = self.source.columns
        log2 = min((self.source.most_rows // _MAX_HASHED_ROWS).bit_length(), _MAX_SHARES_LOG2)
        bounded = BoundedRows(rows, log2)
        for part in range(1 << log2):
            of_part = partial(_hashes, person=person, names=names, secret=secret, part=(part, log2))
            bounded.add(self.source.map(names, of_part), self.source.most_rows)
        self.persons, self.counted = bounded.persons, bounded.counted


def _of_counted(function: Callable[..., Any], block: Block, counted: np.ndarray, persons: np.ndarray) -> Any:
    return function(block.filtered(counted), persons=persons[counted])


def _extremes(column: str, block: Block) -> tuple[float, float]:
    low, high = math.inf, -math.inf
    for piece in block.pieces(PIECE):
        values = numbers(piece[column])
        low, high = min(low, float(np.fmin.reduce(values))), max(high, float(np.fmax.reduce(values)))
    return low, high


def _hashes(block: Block, person: str, names: Sequence[str], secret: bytes, part: tuple[int, int]) -> Hashes:
    """Return the hashes of the rows whose persons are in a part, which the first bits of their second word name."""
    high, low = person_words(block[person], secret)
    rows = np.flatnonzero(_is_in(low, *part) & (high != 0))
    content = joined_hashes((block[name] for name in names), secret)
    return Hashes(len(high), rows.astype(np.int32), high[rows], low[rows], content[rows])


def _is_in(low: np.ndarray, number: int, log2: int) -> np.ndarray:
    """Return which words begin with the bits of a number, of which there are ``log2``."""
    return low >> np.uint64(64 - _MAX_SHARES_LOG2) >> np.uint64(_MAX_SHARES_LOG2 - log2) == number


class BoundedRows:
    """Which rows count if each person has at most ``most`` of them, the first ones by the hash of their content.

    Attributes:
        persons: the number of each row's person, -1 for nobody.
        counted: whether the row counts.
    """

    def __init__(self, most: int, parts_log2: int) -> None:
        self._most, self._parts_log2, self._parts, self._known = most, parts_log2, 0, 0
        self.persons, self.counted = np.zeros(0, np.int32), np.zeros(0, bool)

    def add(self, hashes: Iterable[Hashes], most_rows: int) -> None:
        """Add the next part of all persons, in the order of their second words; a RuntimeError if rows have changed.

        Hashes are held in one array of each kind, whose memory the system gets back, as it would not from many small
        ones; pages that are not written take none. Rows are sorted a share of the persons after the other.
        """
        places, (high, low, content) = np.empty(most_rows, np.int32), np.empty((3, most_rows), np.uint64)
        rows = size = 0
        for block in hashes:
            stop = size + len(block.places)
            if rows + block.rows > most_rows:
                raise changed()
            places[size:stop] = block.places + rows
            high[size:stop], low[size:stop], content[size:stop] = block.high, block.low, block.content
            rows, size = rows + block.rows, stop
        if not self._parts:
            self.persons, self.counted = np.full(rows, -1, np.int32), np.zeros(rows, bool)
        elif rows != len(self.persons):
            raise changed()
        log2 = max(min((rows // _SHARE_ROWS).bit_length(), _MAX_SHARES_LOG2), self._parts_log2)
        shares = 1 << log2 - self._parts_log2
        for share in range(shares * self._parts, shares * (self._parts + 1)):
            starts = range(0, size, _SHARE_ROWS)
            parts = [at + np.flatnonzero(_is_in(low[at : min(at + _SHARE_ROWS, size)], share, log2)) for at in starts]
            own = np.concatenate([np.zeros(0, np.int64), *parts])
            self._sort(places[own], high[own], low[own], content[own])
        self._parts += 1

    def _sort(self, places: np.ndarray, high: np.ndarray, low: np.ndarray, content: np.ndarray) -> None:
        order = np.lexsort((content, low, high))
        high, low = high[order], low[order]
        is_another = np.ones(len(order), bool)
        is_another[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        owners = self._known + np.cumsum(is_another) - 1
        self._known += int(np.count_nonzero(is_another))
        self.persons[places[order]], self.counted[places[order]] = owners, are_first(owners, self._most)


def are_first(owners: np.ndarray, most: int) -> np.ndarray:
    """Return which entries of a sorted array are among the first so many of their owner."""
    is_first = np.ones(len(owners), bool)
    is_first[most:] = owners[most:] != owners[:-most]
    return is_first


def _of_one_type(column: Any) -> Any:
    """Return a column of results, whose keys are texts if one of them is."""
    cells = list(column)
    return [None if cell is None else str(cell) for cell in cells] if any(isinstance(c, str) for c in cells) else cells


def table_of(kind: str, columns: Mapping[str, Any]) -> Any:
    """Return columns as a table of a kind: "pandas", "polars", "pyarrow" or "dict"."""
    if kind == "pandas":
        import pandas as pd

        return pd.DataFrame(dict(columns))
    if kind == "polars":
        import polars as pl

        return pl.DataFrame(dict(columns), strict=False)
    if kind == "pyarrow":
        import pyarrow as pa

        return pa.table({name: _of_one_type(column) for name, column in columns.items()})
    return {name: np.asarray(column) for name, column in columns.items()}
