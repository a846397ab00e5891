"""The table of a session: its columns, and the selection of the rows of each person.

The rows of one person never affect the treatment of the rows of another person. Types and names of columns and the
limit on the number of rows are public. A keyed hash of the person and of the content of the rows selects the rows that
count, so the selection depends neither on other persons nor on the order of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dpkernels.session.blocks import CHUNK_ROWS, Block, Data, Source, as_source, data_changed_error
from dpkernels.session.cells import numbers, person_words, row_hashes

T = TypeVar("T")

_BUCKET_ROWS = 1 << 20  # rows that are sorted at once, about
_MAX_BUCKETS_LOG2 = 6  # log2 of the most buckets that persons are divided into, by their first bits
_MAX_HASHED_ROWS = 1 << 26  # rows of which hashes are held at once, about: 28 bytes each


class Hashes(NamedTuple):
    """The number of rows of a block, and the indices and hashes of those whose persons are in one bucket."""

    rows: int
    indices: np.ndarray
    high: np.ndarray  # with ``low``, the person
    low: np.ndarray
    content: np.ndarray


class UnknownColumnError(ValueError):
    """A name that is not a column's; ``columns`` are the names, which may be cells of a file without a header."""

    def __init__(self, name: Hashable, columns: Sequence[Hashable]) -> None:
        self.name, self.columns = name, tuple(map(str, columns))
        super().__init__(f"column: there is no {name!r}; the data has {', '.join(self.columns)}")


@dataclass
class SessionTable:
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
    def open(cls, data: Data) -> SessionTable:
        """Return the table of data of any kind; the errors are those of ``as_source``."""
        return cls(as_source(data))

    @property
    def kind(self) -> str:
        return self.source.kind

    def check_columns(self, *names: Hashable) -> None:
        """Raise an UnknownColumnError for a name that is not a column's."""
        for name in names:
            if name not in self.source.columns:
                raise UnknownColumnError(name, self.source.columns)

    def check_unchanged(self) -> None:
        """Raise a RuntimeError or an OSError for data that has changed, or is gone, as far as that is seen at once."""
        if self.source.fingerprint() != self._fingerprint:
            raise data_changed_error()

    def map(self, names: Sequence[Hashable], function: Callable[..., T]) -> Iterator[T]:
        """Yield function(block, persons=persons) of the rows that count, block after block.

        Persons are None if a row is a person. If the data is on other machines, the function is sent there.
        """
        if self.persons is None or self.counted is None:
            return self.source.map(names, partial(function, persons=None))
        return self.source.map(names, partial(_call_on_counted, function), self.counted, self.persons)

    def extremes(self, column: Hashable) -> tuple[float, float] | None:
        """Return the smallest and the largest number of a column, or None if it takes long to find them."""
        if not self.source.is_small:
            return None
        ends = list(self.source.map([column], partial(_extremes, column)))
        return min((low for low, _ in ends), default=math.inf), max((high for _, high in ends), default=-math.inf)

    def bound_rows(self, person: str, rows: int, secret: bytes) -> None:
        """Let at most so many rows of each person count, chosen by a keyed hash; rows without a person never count.

        Many rows are read several times, each time for one bucket of persons, so that few hashes are held at once.
        """
        self.check_columns(person)
        names = self.source.columns
        log2 = min((self.source.most_rows // _MAX_HASHED_ROWS).bit_length(), _MAX_BUCKETS_LOG2)
        bounded = BoundedRows(rows, log2)
        for bucket in range(1 << log2):
            hash_block = partial(_hashes, person=person, names=names, secret=secret, bucket=bucket, buckets_log2=log2)
            bounded.add(self.source.map(names, hash_block), self.source.most_rows)
        self.persons, self.counted = bounded.persons, bounded.counted


def _call_on_counted(function: Callable[..., T], block: Block, counted: np.ndarray, persons: np.ndarray) -> T:
    return function(block.filtered(counted), persons=persons[counted])


def _extremes(column: Hashable, block: Block) -> tuple[float, float]:
    low, high = math.inf, -math.inf
    for rows in block.chunks(CHUNK_ROWS):
        values = numbers(rows[column])
        low, high = min(low, float(np.fmin.reduce(values))), max(high, float(np.fmax.reduce(values)))
    return low, high


def _hashes(
    block: Block, person: Hashable, names: Sequence[Hashable], secret: bytes, bucket: int, buckets_log2: int
) -> Hashes:
    """Return the hashes of the rows whose persons are in a bucket."""
    high, low = person_words(block[person], secret)
    indices = np.flatnonzero(_is_in_bucket(low, bucket, buckets_log2) & (high != 0))
    content = row_hashes((block[name] for name in names), secret)
    return Hashes(len(high), indices.astype(np.int32), high[indices], low[indices], content[indices])


def _is_in_bucket(low: np.ndarray, bucket: int, buckets_log2: int) -> np.ndarray:
    """Return which persons are in a bucket, by the first bits of their second word."""
    return low >> np.uint64(64 - _MAX_BUCKETS_LOG2) >> np.uint64(_MAX_BUCKETS_LOG2 - buckets_log2) == bucket


class BoundedRows:
    """Which rows count if each person has at most so many of them, the first ones by the hash of their content.

    Attributes:
        persons: the number of each row's person, -1 for nobody.
        counted: whether the row counts.
    """

    def __init__(self, rows_per_person: int, buckets_log2: int) -> None:
        self._rows_per_person, self._buckets_log2 = rows_per_person, buckets_log2
        self._bucket, self._person_count = 0, 0  # the next bucket, and the persons of those before it
        self.persons, self.counted = np.zeros(0, np.int32), np.zeros(0, bool)

    def add(self, hashes: Iterable[Hashes], most_rows: int) -> None:
        """Add the next bucket of persons, in the order of their second words; a RuntimeError if rows have changed.

        Hashes are held in one array of each kind, whose memory the system gets back, as it would not from many small
        ones; pages that are not written take none. Rows are sorted in smaller buckets, one after the other.
        """
        indices, (high, low, content) = np.empty(most_rows, np.int32), np.empty((3, most_rows), np.uint64)
        rows = size = 0
        for block in hashes:
            stop = size + len(block.indices)
            if rows + block.rows > most_rows:
                raise data_changed_error()
            indices[size:stop] = block.indices + rows
            high[size:stop], low[size:stop], content[size:stop] = block.high, block.low, block.content
            rows, size = rows + block.rows, stop
        if not self._bucket:
            self.persons, self.counted = np.full(rows, -1, np.int32), np.zeros(rows, bool)
        elif rows != len(self.persons):
            raise data_changed_error()
        log2 = max(min((rows // _BUCKET_ROWS).bit_length(), _MAX_BUCKETS_LOG2), self._buckets_log2)
        count = 1 << log2 - self._buckets_log2
        for bucket in range(count * self._bucket, count * (self._bucket + 1)):
            members = [np.zeros(0, np.int64)]
            for start in range(0, size, _BUCKET_ROWS):
                is_member = _is_in_bucket(low[start : min(start + _BUCKET_ROWS, size)], bucket, log2)
                members.append(start + np.flatnonzero(is_member))
            chosen = np.concatenate(members)
            self._count(indices[chosen], high[chosen], low[chosen], content[chosen])
        self._bucket += 1

    def _count(self, indices: np.ndarray, high: np.ndarray, low: np.ndarray, content: np.ndarray) -> None:
        """Number the persons of rows, and let the first rows of each count."""
        order = np.lexsort((content, low, high))
        high, low = high[order], low[order]
        is_another = np.ones(len(order), bool)
        is_another[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        owners = self._person_count + np.cumsum(is_another) - 1
        self._person_count += int(np.count_nonzero(is_another))
        self.persons[indices[order]] = owners
        self.counted[indices[order]] = are_first(owners, self._rows_per_person)


def are_first(owners: np.ndarray, most: int) -> np.ndarray:
    """Return which entries of a sorted array are among the first so many of their owner."""
    is_first = np.ones(len(owners), bool)
    is_first[most:] = owners[most:] != owners[:-most]
    return is_first


def _uniform(column: Sequence[object]) -> Sequence[object]:
    """Return a column of results, whose keys are texts if one of them is."""
    has_texts = any(isinstance(cell, str) for cell in column)
    return [None if cell is None else str(cell) for cell in column] if has_texts else column


def make_table(kind: str, columns: Mapping[str, Sequence[object]]) -> Any:
    """Return columns as a table of a kind: "pandas", "polars", "pyarrow" or "dict"."""
    if kind == "pandas":
        import pandas as pd

        return pd.DataFrame(dict(columns))
    if kind == "polars":
        import polars as pl

        return pl.DataFrame(dict(columns), strict=False)
    if kind == "pyarrow":
        import pyarrow as pa

        return pa.table({name: _uniform(column) for name, column in columns.items()})
    return {name: np.asarray(column) for name, column in columns.items()}
