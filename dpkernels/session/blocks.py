"""Data of every kind, read in blocks of columns: tables in memory, lists of these, files, and datasets of Ray.

``cells.as_array`` reads the cells of all kinds of data. The rows and their order are those of the data. Wrong column
names, types or sizes raise an error when the data are opened. The ``fingerprint`` of data shows without reading them
whether they have changed.
"""

from __future__ import annotations

import abc
import hashlib
import os
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from dpkernels.release import containers
from dpkernels.release.ray_data import unpickle
from dpkernels.session.cells import as_array
from dpkernels.session.delimited import DelimitedLines

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    import ray.data

# What a session accepts.
Data: TypeAlias = (
    "pd.DataFrame | pl.DataFrame | pa.Table | pa.RecordBatchReader | Mapping[str, Sequence[object] | np.ndarray] | str"
    " | os.PathLike[str] | ray.data.Dataset | Sequence[Data]"
)
T = TypeVar("T")

BLOCK_ROWS = 1 << 18  # rows that are read at once; sums of up to 2^20 are exact in float64
CHUNK_ROWS = 1 << 15  # rows that are computed at once: arrays that stay in a cache and need no new pages
MAX_ROWS = 1 << 29  # so that 64-bit integers hold every sum
SMALL_FILES = 1 << 28  # bytes of files that are read once more for a warning
_ENDINGS = {".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}
_KINDS = (
    "a pandas or polars DataFrame, a pyarrow Table or RecordBatchReader, a dict of arrays, the path of CSV or Parquet "
    "files, a list of these, or a ray.data.Dataset"
)


@dataclass(frozen=True, repr=False)
class Block:
    """Some columns of consecutive rows."""

    columns: Mapping[Hashable, np.ndarray]
    rows: int

    def __getitem__(self, name: Hashable) -> np.ndarray:
        return self.columns[name]

    def chunks(self, rows: int) -> Iterator[Block]:
        """Yield blocks of so many rows each, and of the last rows."""
        for start in range(0, self.rows, rows):
            stop = min(start + rows, self.rows)
            yield Block({name: array[start:stop] for name, array in self.columns.items()}, stop - start)

    def filtered(self, keep: np.ndarray) -> Block:
        """Return the rows for which ``keep`` is true."""
        columns = {name: array[keep] for name, array in self.columns.items()}
        return Block(columns, int(np.count_nonzero(keep)))


class Source(abc.ABC):
    """Data that can be read any number of times.

    Attributes:
        kind: of tables of results: "pandas", "polars", "pyarrow" or "dict".
        columns: the names.
        most_rows: an upper bound on the number of rows.
        is_small: whether reading a column takes little time.
    """

    kind: str
    columns: tuple[Hashable, ...]
    most_rows: int
    is_small: bool

    @abc.abstractmethod
    def fingerprint(self) -> object:
        """Return what changes when the data does, as far as that is seen without reading it."""

    def blocks(self, names: Sequence[Hashable]) -> Iterator[Block]:
        """Yield some columns of up to 2^18 rows after the other."""
        raise NotImplementedError

    def map(self, names: Sequence[Hashable], function: Callable[..., T], *by_row: np.ndarray) -> Iterator[T]:
        """Yield function(block, entries of its rows in each array of ``by_row``), block after block."""
        start = 0
        for block in self.blocks(names):
            stop = start + block.rows
            _check_rows(stop, by_row)
            yield function(block, *(array[start:stop] for array in by_row))
            start = stop
        _check_rows(start, by_row, is_all=True)


def _check_rows(rows: int, by_row: Sequence[np.ndarray], *, is_all: bool = False) -> None:
    if rows > MAX_ROWS:
        raise ValueError(f"data: has more than {MAX_ROWS} rows")
    if any(rows > len(array) or (is_all and rows < len(array)) for array in by_row):
        raise data_changed_error()


def data_changed_error() -> RuntimeError:
    """Return the error about data that is no longer what it was."""
    return RuntimeError("data: has changed since the session was opened; open another one with the same ledger")


def as_source(data: Data) -> Source:
    """Return the source of data of any kind.

    Raises:
        TypeError: data of another kind.
        ValueError: columns of different lengths, names or types, or too many rows.
    """
    source = _as_source(data)
    if len(set(source.columns)) < len(source.columns):
        raise ValueError("data: two columns have the same name; rename one of them")
    if source.most_rows > MAX_ROWS:
        raise ValueError(f"data: has more than {MAX_ROWS} rows")
    return source


def _as_source(data: object) -> Source:
    if isinstance(data, str | os.PathLike):
        return Files(Path(data))
    if isinstance(data, Mapping):
        columns = {name: as_array(column) for name, column in data.items()}
        if len({len(column) for column in columns.values()}) != 1:
            raise ValueError("data: the columns have different lengths, or there are none")
        return InMemory("dict", columns)
    if isinstance(data, list | tuple):
        return JoinedSources([as_source(table) for table in data])
    if containers.is_ray_dataset(data):
        return RayBlocks(data)
    kind = containers.library_name(data)
    if kind == "pyarrow":
        import pyarrow as pa

        if isinstance(data, pa.RecordBatchReader):
            data = data.read_all()  # It can be read once.
        elif isinstance(data, pa.RecordBatch):
            data = pa.Table.from_batches([data])
    if kind not in ("pandas", "polars", "pyarrow") or not containers.is_table(data):
        raise TypeError(f"data: {type(data).__name__} is not {_KINDS}")
    return InMemory(kind, data)


@dataclass(repr=False)
class InMemory(Source):
    """A pandas or polars frame, a pyarrow table, or a dict of arrays."""

    kind: str
    data: Any
    is_small = True

    def __post_init__(self) -> None:
        self.columns, self.most_rows = self.fingerprint()

    def fingerprint(self) -> tuple[tuple[Hashable, ...], int]:
        if self.kind == "dict":
            return tuple(self.data), len(next(iter(self.data.values())))
        return tuple(containers.column_names(self.data)), len(self.data)

    def blocks(self, names: Sequence[Hashable]) -> Iterator[Block]:
        columns = {name: getattr(self.data[name], "iloc", self.data[name]) for name in names}  # of pandas
        for start in range(0, self.most_rows, BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, self.most_rows)
            yield Block({name: as_array(column[start:stop]) for name, column in columns.items()}, stop - start)


class Files(Source):
    """CSV files or Parquet files, or a folder of one kind of these."""

    kind = "pyarrow"

    def __init__(self, path: Path) -> None:
        paths = sorted(file for file in path.iterdir() if file.suffix in _ENDINGS) if path.is_dir() else [path]
        self._paths, endings = paths, {file.suffix for file in paths}
        formats = {_ENDINGS.get(ending) for ending in endings}
        if len(formats) != 1 or None in formats:
            raise ValueError(f"data: {path} must be a .csv, .tsv or .parquet file, or a folder of one kind of these")
        if formats == {"parquet"}:
            self._batches, self.columns, self.most_rows = _parquet(paths, path)
        elif len(endings) > 1:
            raise ValueError(f"data: {path} has .csv and .tsv files; name a folder of one kind of them")
        else:
            lines = DelimitedLines(paths, "\t" if ".tsv" in endings else ",")
            self._batches, self.columns = lines.to_batches, tuple(lines.names)
            self.most_rows = lines.most_rows(MAX_ROWS)
        self.is_small = sum(size for size, _ in self.fingerprint()) <= SMALL_FILES

    def fingerprint(self) -> list[tuple[int, int]]:
        return [(state.st_size, state.st_mtime_ns) for state in map(os.stat, self._paths)]

    def blocks(self, names: Sequence[Hashable]) -> Iterator[Block]:
        for batch in self._batches(columns=list(names)):
            yield from _arrow_blocks(batch, names)


def _parquet(paths: Sequence[Path], path: Path) -> tuple[Callable[..., Iterator[pa.RecordBatch]], tuple[str, ...], int]:
    """Return a reader of batches of Parquet files, a few of them at a time, their columns and number of rows."""
    import pyarrow.dataset as datasets

    files = datasets.dataset(list(map(str, paths)), format="parquet")
    schemas = [{column.name: column.type for column in file.physical_schema} for file in files.get_fragments()]
    if any(schema != schemas[0] for schema in schemas):  # A cell decided whether it can have the type of another file.
        raise ValueError(f"data: the files of {path} have columns of different names or types")
    batches = partial(files.to_batches, batch_size=BLOCK_ROWS, batch_readahead=2, fragment_readahead=1)
    return batches, tuple(files.schema.names), files.count_rows()


def _arrow_blocks(table: pa.Table | pa.RecordBatch, names: Sequence[Hashable]) -> Iterator[Block]:
    """Yield the blocks of a pyarrow table or batch."""
    for start in range(0, table.num_rows, BLOCK_ROWS):
        rows = table.slice(start, BLOCK_ROWS)
        yield Block({name: as_array(rows.column(name)) for name in names}, rows.num_rows)


class JoinedSources(Source):
    """Data one after the other, which have the same columns; each is read by the types of its own."""

    def __init__(self, sources: Sequence[Source]) -> None:
        if not sources:
            raise ValueError("data: the list has no tables")
        if any(set(source.columns) != set(sources[0].columns) for source in sources):
            raise ValueError("data: the tables of the list have different columns")
        self._sources, self.kind, self.columns = sources, sources[0].kind, sources[0].columns
        self.most_rows = sum(source.most_rows for source in sources)
        self.is_small = all(source.is_small for source in sources)

    def fingerprint(self) -> list[object]:
        return [source.fingerprint() for source in self._sources]

    def blocks(self, names: Sequence[Hashable]) -> Iterator[Block]:
        for source in self._sources:
            yield from source.blocks(names)


class RayBlocks(Source):
    """A ``ray.data.Dataset``, of which each block is read where it is, and what is computed of it comes here.

    The dataset is computed once, into Ray's object store. If Ray loses a block and computes it again, it must be the
    same, which keyed hashes of its columns show: rows that count are known by their place.
    """

    kind, is_small = "pyarrow", False

    def __init__(self, dataset: ray.data.Dataset) -> None:
        import ray

        describe = ray.remote(_describe)
        blocks = dataset.to_arrow_refs()
        descriptions = self._fetch([describe.remote(block) for block in blocks])
        self._blocks = [(block, rows) for block, (rows, _) in zip(blocks, descriptions, strict=True) if rows]
        columns = [names for rows, names in descriptions if rows] or [dataset.columns() or ()]
        if not columns[0] or any(set(names) != set(columns[0]) for names in columns):
            raise ValueError("data: the blocks of the dataset have different columns, or there are none")
        self.columns, self.most_rows = tuple(columns[0]), sum(rows for _, rows in self._blocks)
        self._hashes: list[dict[Hashable, bytes]] = [{} for _ in self._blocks]
        self._secret = os.urandom(32)

    def fingerprint(self) -> bool:
        import ray

        if not ray.is_initialized():
            raise RuntimeError("data: Ray has been shut down; open another session with the same ledger")
        return True

    def map(self, names: Sequence[Hashable], function: Callable[..., T], *by_row: np.ndarray) -> Iterator[T]:
        import ray
        import ray.cloudpickle as pickle

        task, call = ray.remote(_map_block), ray.put(pickle.dumps((function, tuple(names), self._secret)))
        most_running = 2 * max(int(ray.cluster_resources().get("CPU", 1)), 1)
        running, start = deque[tuple[ray.ObjectRef, dict[Hashable, bytes]]](), 0
        _check_rows(self.most_rows, by_row, is_all=True)
        try:
            for (block, rows), hashes in zip(self._blocks, self._hashes, strict=True):
                entries = [array[start : start + rows] for array in by_row]
                running.append((task.remote(block, call, hashes, *entries), hashes))
                start += rows
                while len(running) >= most_running:
                    yield from self._results(*running.popleft())
            while running:
                yield from self._results(*running.popleft())
        finally:
            for reference, _ in running:
                ray.cancel(reference)

    def _results(self, reference: ray.ObjectRef, known_hashes: dict[Hashable, bytes]) -> list[Any]:
        hashes, results = self._fetch(reference)
        if results is None:
            raise data_changed_error()
        known_hashes |= hashes
        return results

    @staticmethod
    def _fetch(references: ray.ObjectRef | list[ray.ObjectRef]) -> Any:
        import ray

        try:
            return ray.get(references)
        except ray.exceptions.RayError as error:
            raise RuntimeError(f"data: Ray could not read a block: {type(error).__name__}") from None


def _describe(block: pa.Table) -> tuple[int, list[str]]:
    return block.num_rows, block.column_names


def _map_block(
    block: pa.Table, call: bytes, known_hashes: Mapping[Hashable, bytes], *by_row: np.ndarray
) -> tuple[dict[Hashable, bytes], list[Any] | None]:
    """Return the hashes of a block's columns, and the results of its parts, None if a column has another hash."""
    function, names, secret = unpickle(call)
    hashes = {name: _hash(block.select([name]), secret) for name in names}
    if any(known_hashes.get(name, digest) != digest for name, digest in hashes.items()):
        return hashes, None
    starts = range(0, block.num_rows, BLOCK_ROWS)
    entries = ([array[start : start + BLOCK_ROWS] for array in by_row] for start in starts)
    blocks = _arrow_blocks(block, names)
    return hashes, [function(rows, *arrays) for rows, arrays in zip(blocks, entries, strict=True)]


def _hash(table: pa.Table, secret: bytes) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table.combine_chunks())
    return hashlib.blake2b(sink.getvalue(), key=secret, digest_size=32).digest()
