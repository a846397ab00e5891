"""The data of a session: columns of any kind of table, read in blocks, with a bound on the rows of each person.

Nothing here depends on one person's rows in a way that another person's rows would show. Types and names of columns
and the number of rows a table can have are public. Which rows of a person count is decided by a keyed hash of
the person and of the rows' own content, so it depends neither on other persons nor on the order of rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpkernels.release import containers
from dpkernels.session.cells import as_array, joined_hashes, person_codes
from dpkernels.session.delimited import DelimitedLines

BLOCK = 1 << 20  # rows that are read at once; sums of a block are exact in float64
MOST_ROWS = 1 << 29  # so that 64-bit integers hold every sum
_ENDINGS = {".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}

Block = dict[Any, np.ndarray]
ROWS = object()  # the name of a column of a block that no table has


class UnknownColumnError(ValueError):
    """A name that is not a column's; ``columns`` are the names, which may be cells of a file without a header."""

    def __init__(self, name: str, columns: Sequence[Any]) -> None:
        self.name, self.columns = name, tuple(map(str, columns))
        super().__init__(f"column: there is no {name!r}; the data has {', '.join(self.columns)}")


@dataclass
class Table:
    """Columns that are read in blocks, and which of their rows count.

    Attributes:
        kind: of the data, in which results are returned: "pandas", "polars", "pyarrow" or "dict".
        columns: the names.
        files: a pyarrow dataset or ``DelimitedLines``, or None if ``data`` holds the columns.
        persons: the number of each row's person, or None if a row is a person; -1 counts for nobody.
        counted: whether a row counts, or None if all do.
    """

    kind: str
    columns: tuple[str, ...]
    data: Any
    files: Any = None
    persons: np.ndarray | None = field(default=None, repr=False)
    counted: np.ndarray | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if len(set(self.columns)) < len(self.columns):
            raise ValueError("data: two columns have the same name; rename one of them")
        if self.files is None and self._length > MOST_ROWS:
            raise ValueError(f"data: has more than {MOST_ROWS} rows")

    @property
    def _length(self) -> int:
        return len(next(iter(self.data.values()))) if self.kind == "dict" else len(self.data)

    @classmethod
    def of(cls, data: Any) -> Table:
        """Return the table of a pandas or polars frame, a pyarrow table, a dict of arrays, or a path.

        Raises:
            TypeError: data of another kind.
            ValueError: columns of different lengths, or too many rows.
        """
        if isinstance(data, str | os.PathLike):
            return cls._of_files(Path(data))
        if isinstance(data, Mapping):
            columns = {name: as_array(column) for name, column in data.items()}
            if len({len(column) for column in columns.values()}) != 1:
                raise ValueError("data: the columns have different lengths, or there are none")
            return cls("dict", tuple(columns), columns)
        kind = containers.kind(data)
        if kind not in ("pandas", "polars", "pyarrow") or not containers.is_table(data):
            raise TypeError(
                f"data: {type(data).__name__} is not a pandas or polars DataFrame, a pyarrow Table, a dict of arrays, "
                "or the path of a CSV or Parquet file"
            )
        return cls(kind, tuple(containers.columns_of(data)), data)

    @classmethod
    def _of_files(cls, path: Path) -> Table:
        import pyarrow.dataset as datasets

        endings = {file.suffix for file in path.iterdir()} if path.is_dir() else {path.suffix}
        formats = {_ENDINGS[ending] for ending in endings if ending in _ENDINGS}
        if len(formats) != 1:
            raise ValueError(f"data: {path} must be a .csv, .tsv or .parquet file, or a folder of one kind of these")
        if formats == {"parquet"}:
            files = datasets.dataset(path, format="parquet")
            types = [{column.name: column.type for column in file.physical_schema} for file in files.get_fragments()]
            if any(each != types[0] for each in types):  # A cell decided whether it can have the type of another file.
                raise ValueError(f"data: the files of {path} have columns of different names or types")
            return cls("pyarrow", tuple(files.schema.names), None, files)
        if {".csv", ".tsv"} <= endings:
            raise ValueError(f"data: {path} has .csv and .tsv files; name a folder of one kind of them")
        paths = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.suffix in _ENDINGS)
        lines = DelimitedLines(paths, "\t" if ".tsv" in endings else ",")
        return cls("pyarrow", tuple(lines.names), None, lines)

    def check_columns(self, *names: str) -> None:
        """Raise an UnknownColumnError for a name that is not a column's."""
        for name in names:
            if name not in self.columns:
                raise UnknownColumnError(name, self.columns)

    def _all_blocks(self, names: Sequence[str]) -> Iterator[Block]:
        if self.files is not None:
            rows = 0
            for batch in self.files.to_batches(columns=list(names), batch_size=BLOCK):
                if (rows := rows + batch.num_rows) > MOST_ROWS:
                    raise ValueError(f"data: has more than {MOST_ROWS} rows")
                for start in range(0, batch.num_rows, BLOCK):
                    piece = batch.slice(start, BLOCK)
                    yield {name: as_array(piece.column(name)) for name in names} | {ROWS: np.empty(piece.num_rows)}
            return
        for start in range(0, self._length, BLOCK):
            piece = slice(start, min(start + BLOCK, self._length))
            by_place = {name: getattr(self.data[name], "iloc", self.data[name]) for name in names}  # of pandas
            columns = {name: as_array(by_place[name][piece]) for name in names}
            yield columns | {ROWS: np.empty(piece.stop - piece.start)}

    def blocks(self, *names: str) -> Iterator[tuple[Block, np.ndarray | None]]:
        """Yield the columns of up to 2^20 rows that count, and the persons of these rows, None where a row is one.

        The column ``ROWS`` is as long as the others and holds nothing.
        """
        start = 0
        for block in self._all_blocks(names):
            stop = start + len(block[ROWS])
            self._check_length(stop)
            if self.counted is None or self.persons is None:
                yield block, None
            else:
                keep = self.counted[start:stop]
                yield {name: array[keep] for name, array in block.items()}, self.persons[start:stop][keep]
            start = stop
        self._check_length(start, whole=True)

    def _check_length(self, rows: int, *, whole: bool = False) -> None:
        known = rows if self.counted is None else len(self.counted)
        if rows > known or (whole and rows < known):
            raise RuntimeError("data: has changed since the session was opened; open another one with the same ledger")

    def bound_rows(self, person: str, rows: int, secret: bytes) -> None:
        """Let at most so many rows of each person count, chosen by a keyed hash; rows without a person never count."""
        self.check_columns(person)
        codes: dict[Any, int] = {}
        blocks = [
            (person_codes(block[person], codes), joined_hashes((block[name] for name in self.columns), secret))
            for block in self._all_blocks(self.columns)
        ]
        del codes  # Of many rows, and of many persons, each of these objects is large.
        self.persons = np.concatenate([np.zeros(0, np.int32), *(persons for persons, _ in blocks)])
        hashes = np.concatenate([np.zeros(0, np.uint64), *(words for _, words in blocks)])
        del blocks
        order = np.lexsort((hashes, self.persons))
        del hashes
        self.counted = np.zeros(len(order), bool)
        self.counted[order] = are_first(self.persons[order], rows)
        self.counted &= self.persons >= 0


def are_first(owners: np.ndarray, most: int) -> np.ndarray:
    """Return which entries of a sorted array are among the first so many of their owner."""
    is_first = np.ones(len(owners), bool)
    is_first[most:] = owners[most:] != owners[:-most]
    return is_first


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

        return pa.table(dict(columns))
    return {name: np.asarray(column) for name, column in columns.items()}
