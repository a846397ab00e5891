"""Files as streams of pieces: the one interface to every format, and the choice of a format by suffix."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import click
import numpy as np

from dpkernels.release import BLOCK_VALUES

_FORMATS = {".npy": "arrays.ArrayFile", ".csv": "delimited.CsvFile", ".parquet": "columnar.ParquetFile"}

# Rows of a piece at most: large enough for speed, small enough for constant memory.
MOST_ROWS = 1 << 20


class Sink(Protocol):
    """Where perturbed pieces go, in order."""

    def write(self, piece: Any) -> None:
        """Append a piece."""


class Source(abc.ABC):
    """A file that is read in pieces; every piece but the last has a multiple of ``BLOCK_VALUES`` rows.

    Attributes:
        path: the file.
        names: its columns; empty for an array.
        values_per_row: how many values of one row each chosen column holds.
    """

    path: Path
    names: Sequence[str]
    values_per_row: int = 1

    @property
    @abc.abstractmethod
    def fraction(self) -> float:
        """How much has been read, from 0 to 1."""

    @abc.abstractmethod
    def pieces(self) -> Iterator[Any]:
        """The file's pieces; ``len`` of one is its number of rows (of values, for an array)."""

    @abc.abstractmethod
    def numbers(self, piece: Any, name: str | None, start: int) -> np.ndarray:
        """A column of a piece whose first row is ``start``.

        Raises:
            ValueError: not a column of numbers; names the first row that is not one.
        """

    @abc.abstractmethod
    def replaced(self, piece: Any, reports: dict[str | None, np.ndarray]) -> Any:
        """The piece with these columns replaced and all others as they are."""

    @abc.abstractmethod
    def sink(self, path: Path) -> AbstractContextManager[Sink]:
        """Writes pieces to a new file of this format."""

    def place(self, row: int) -> str:
        """How an error names a row."""
        return f"row {row}"


def open_source(path: Path) -> Source:
    """The file, its header read.

    Raises:
        click.UsageError: a suffix of no known format.
        ValueError: not a readable file of that format.
    """
    module, name = _FORMATS[known_suffix(path)].split(".")
    return getattr(import_module(f"dpkernels.cli.{module}"), name)(path)


def known_suffix(path: Path) -> str:
    """The suffix that names the format.

    Raises:
        click.UsageError: none of ``.npy``, ``.csv`` and ``.parquet``.
    """
    suffix = path.suffix.lower()
    if suffix not in _FORMATS:
        raise click.UsageError(f"{path}: suffix {path.suffix!r} is not one of {', '.join(_FORMATS)}")
    return suffix


def regrouped(batches: Iterator[Any], piece_bytes: int) -> Iterator[Any]:
    """Arrow batches as tables of equally many rows, a power of two that in the first batch takes ``piece_bytes``."""
    import pyarrow as pa

    held: list[Any] = []
    count = rows = 0
    for batch in batches:
        rows = rows or _rows_for(batch, piece_bytes)
        held.append(batch)
        count += len(batch)
        while count >= rows > 0:
            table = pa.Table.from_batches(held)
            yield table.slice(0, rows)
            held, count = table.slice(rows).to_batches(), count - rows
    if count:
        yield pa.Table.from_batches(held)


def _rows_for(batch: Any, piece_bytes: int) -> int:
    fitting = piece_bytes * len(batch) // max(1, batch.nbytes)
    return max(BLOCK_VALUES, min(MOST_ROWS, 1 << max(fitting, 1).bit_length() - 1)) if len(batch) else 0
