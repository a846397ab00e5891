"""The interface to files of every format, as streams of chunks."""

from __future__ import annotations

import abc
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

if TYPE_CHECKING:
    from datetime import date

    import pyarrow as pa

    from dpkernels.cli.files.categories import CategoryReports
    from dpkernels.cli.files.dates import Dates

Chunk = TypeVar("Chunk", bound=Sized)  # What a file is read in.
Replaced = TypeVar("Replaced")  # What is written of a chunk.

# Rows of a chunk at most: large enough for speed, small enough for constant memory.
MAX_ROWS = 1 << 20


@dataclass(frozen=True)
class Numbers:
    """A column of a chunk of a file."""

    values: np.ndarray  # the numbers; arbitrary where they are missing
    missing: np.ndarray | None = None  # a mask of the missing ones, or None
    rounded: np.ndarray | None = None  # a mask of the whole numbers of the file that floats do not hold, or None

    @classmethod
    def from_values(cls, values: np.ndarray, missing: np.ndarray | None = None) -> Numbers:
        """Return a column in which NaN is missing, too."""
        if values.dtype.kind == "f" and values.size and np.isnan(values.min()):
            missing = np.isnan(values) | (False if missing is None else missing)
        return cls(values, missing if missing is not None and missing.any() else None)


class Source(abc.ABC, Generic[Chunk, Replaced]):
    """A file that is read in chunks."""

    path: Path
    names: Sequence[str]  # of its columns; empty for an array
    values_per_row: int = 1  # of each column
    markers: Sequence[str] = ()  # texts of cells without a value, besides the usual ones
    droppable: bool = True  # whether rows can be left out
    single_precision: Sequence[str] = ()  # columns whose reports are float32, and become text
    # What is copied besides columns, in words by the column, where all rows stay in their order.
    also_copied: Mapping[str, str] = MappingProxyType({})
    fraction: float = 0.0  # of the file that has been read

    @abc.abstractmethod
    def chunks(self, columns: Sequence[str | None]) -> Generator[Chunk, None, None]:
        """Yield the file's chunks, of which these columns will be asked for; ``len`` is rows, or an array's values."""

    def count(self) -> int:
        """Return the number of rows, or of an array's values; by default all chunks are read for it."""
        return sum(len(chunk) for chunk in self.chunks(self.names[:1]))

    @abc.abstractmethod
    def numbers(self, chunk: Chunk, name: str | None, start: int) -> Numbers:
        """Return a column of a chunk whose first row is ``start``; a ValueError names the first that is no number."""

    @abc.abstractmethod
    def labels(self, chunk: Chunk, name: str) -> pa.Array:
        """Return the cells of a column as an Arrow array of any type; ValueError for an array."""

    def dates(self, chunk: Chunk, name: str, origin: date) -> Dates:
        """Return a column as days since an origin; ValueError if it holds neither dates nor texts."""
        from dpkernels.cli.files.dates import parse_dates

        return parse_dates(self.labels(chunk, name), origin, self.markers)

    @abc.abstractmethod
    def replaced(self, chunk: Chunk, reports: Mapping[str | None, Numbers | CategoryReports]) -> Replaced:
        """Return the chunk with these columns replaced and all others as they are; missing values stay.

        Reports are ``Numbers``, or of categories ``categories.CategoryReports``.
        """

    @abc.abstractmethod
    def select(self, replaced: Replaced, rows: np.ndarray) -> Replaced:
        """Return a replaced chunk without the rows whose mask is false; of a file that is ``droppable``."""

    @abc.abstractmethod
    def reordered(self, chunks: Sequence[Replaced], order: np.ndarray) -> Iterator[Replaced]:
        """Yield the rows of all replaced chunks in another order."""

    @abc.abstractmethod
    def size(self, replaced: Replaced) -> int:
        """Return the bytes that holding a replaced chunk takes."""

    @abc.abstractmethod
    def output_bytes(self, columns: Sequence[str | None]) -> int:
        """Estimate the size of a file with these columns replaced, without a look at any value."""

    @abc.abstractmethod
    def sink(self, path: Path) -> AbstractContextManager[Callable[[Replaced], object]]:
        """Open a new file of this format, and yield a function that appends a replaced chunk."""

    @abc.abstractmethod
    def rows(self, chunk: Chunk, begin: int, end: int) -> Chunk:
        """Return some rows of a chunk, to be read and not to be replaced."""

    @abc.abstractmethod
    def position(self, chunk: Chunk, row: int, start: int) -> str:
        """Return how an error names a row of a chunk whose first row is ``start``."""

    def lost_properties(self, output: Path) -> list[str]:
        """Return the properties of the input, besides the replaced columns, that a finished output does not have."""
        return []


def ahead(chunks: Generator[Chunk, None, None]) -> Generator[Chunk, None, None]:
    """Yield the chunks, the next of which is read while one is worked on."""
    with closing(chunks), ThreadPoolExecutor(1, thread_name_prefix="reader") as reader:
        following = reader.submit(next, chunks, None)
        while (chunk := following.result()) is not None:
            following = reader.submit(next, chunks, None)
            yield chunk
