"""``.parquet``, row group by row group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpkernels.cli.files import Source, regrouped

_BATCH_ROWS = 1 << 16
_PIECE_BYTES = 1 << 26  # of a row group written


class ParquetFile(Source):
    """A Parquet file; types, metadata and the order of columns and rows are kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._opened() as file:
            self.names = file.schema_arrow.names
            self._rows = file.metadata.num_rows
            # Stored widths, so an estimate; it bounds what is read at once from a table of long texts.
            groups = [file.metadata.row_group(at).total_byte_size for at in range(file.num_row_groups)]
            self._width = max(1, sum(groups) // max(1, self._rows))
        self._done = 0

    @contextmanager
    def _opened(self) -> Iterator[pq.ParquetFile]:
        # Page by page: without a buffer, or with pre_buffer, a whole row group is read into memory.
        with pa.OSFile(str(self.path)) as file, _named(self.path):
            yield pq.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)

    @property
    def fraction(self) -> float:
        return self._done / max(1, self._rows)

    def pieces(self) -> Iterator[pa.Table]:
        rows = max(1, min(_BATCH_ROWS, _PIECE_BYTES // self._width))
        with self._opened() as file:
            for piece in regrouped(file.iter_batches(rows), _PIECE_BYTES):
                self._done += len(piece)
                yield piece

    def numbers(self, piece: pa.Table, name: str | None, start: int) -> np.ndarray:
        column = piece.column(name)
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            raise ValueError(f"holds {column.type}; only integers and floats can be perturbed")
        if column.null_count:
            row = start + pc.index(pc.is_null(column), True).as_py()
            raise ValueError(f"row {row} is null; every row needs a number")
        return column.to_numpy()

    def replaced(self, piece: pa.Table, reports: dict[str | None, np.ndarray]) -> pa.Table:
        for name, values in reports.items():
            at, column = self.names.index(name), pa.array(values)
            piece = piece.set_column(at, piece.schema.field(at).with_type(column.type), column)
        return piece

    @contextmanager
    def sink(self, path: Path) -> Iterator[_ParquetSink]:
        with pa.OSFile(str(path), "wb") as file:
            sink = _ParquetSink(file)
            try:
                yield sink
                sink.close()
            finally:
                sink.forget()


class _ParquetSink:
    def __init__(self, file: pa.NativeFile) -> None:
        self._file = file
        self._writer: Any = None

    def write(self, piece: pa.Table) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._file, piece.schema)
        self._writer.write_table(piece, row_group_size=len(piece))

    def close(self) -> None:
        """Write the footer."""
        if self._writer is not None:
            self._writer.close()

    def forget(self) -> None:
        """Keep the writer's destructor from writing to a file that is closed by then."""
        if self._writer is not None:
            self._writer.is_open = False


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Arrow's errors about a file's contents do not say which file."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path}: is not a readable Parquet file: {error}") from error
