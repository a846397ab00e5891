"""The table of a session: its columns, and which rows of each person count.

Nothing here depends on one person's rows in a way that another person's rows would show. Types and names of columns
and the number of rows a table can have are public. Which rows of a person count is decided by a keyed hash of
the person and of the rows' own content, so it depends neither on other persons nor on the order of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from dpkernels.session.blocks import Block, Source, changed, opened
from dpkernels.session.cells import joined_hashes, numbers, person_words

_SHARE = 1 << 20  # rows that are sorted at once, about
_MOST_SHARES_LOG2 = 6

Hashes = tuple[np.ndarray, np.ndarray, np.ndarray]


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
        """Let at most so many rows of each person count, chosen by a keyed hash; rows without a person never count."""
        self.check_columns(person)
        names = self.source.columns
        hashes = list(self.source.map(names, partial(_hashes, person=person, names=names, secret=secret)))
        self.persons, self.counted = bounded_rows(hashes, rows)


def _of_counted(function: Callable[..., Any], block: Block, counted: np.ndarray, persons: np.ndarray) -> Any:
    return function(block.filtered(counted), persons=persons[counted])


def _extremes(column: str, block: Block) -> tuple[float, float]:
    values = numbers(block[column])
    values = values[~np.isnan(values)]
    return float(values.min(initial=math.inf)), float(values.max(initial=-math.inf))


def _hashes(block: Block, person: str, names: Sequence[str], secret: bytes) -> Hashes:
    """Return of each row two words of its person, and a hash of its content."""
    return *person_words(block[person], secret), joined_hashes((block[name] for name in names), secret)


def bounded_rows(hashes: Sequence[Hashes], most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of each row's person, -1 for nobody, and whether the row is one of its first ``most`` by hash.

    Rows are sorted a share of all persons after the other, which needs less memory.
    """
    starts = list(accumulate((len(low) for _, low, _ in hashes), initial=0))
    persons, counted = np.full(starts[-1], -1, np.int32), np.zeros(starts[-1], bool)
    log2, known = min((starts[-1] // _SHARE).bit_length(), _MOST_SHARES_LOG2), 0
    unused = np.uint64(_MOST_SHARES_LOG2 - log2)
    for share in range(1 << log2):
        own = [
            np.flatnonzero((low >> np.uint64(64 - _MOST_SHARES_LOG2) >> unused == share) & (high != 0))
            for high, low, _ in hashes
        ]
        own_places = (start + rows for start, rows in zip(starts, own, strict=False))
        places = np.concatenate([np.zeros(0, np.int64), *own_places])
        high, low, words = (
            np.concatenate([np.zeros(0, np.uint64), *(each[k][rows] for each, rows in zip(hashes, own, strict=True))])
            for k in range(3)
        )
        order = np.lexsort((words, low, high))
        high, low = high[order], low[order]
        is_another = np.ones(len(order), bool)
        is_another[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        numbers_ = known + np.cumsum(is_another) - 1
        known += int(np.count_nonzero(is_another))
        persons[places[order]], counted[places[order]] = numbers_, are_first(numbers_, most)
    return persons, counted


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
