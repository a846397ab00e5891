"""``.npy``: one array of any shape. No memory maps are used, because a full disk would kill the process by a signal."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.lib import format as npy

from dpkernels.cli.files.formats import MAX_ROWS, Numbers, Source
from dpkernels.cli.files.layout import Layout
from dpkernels.release.inputs import report_type

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class ArrayFile(Source[np.ndarray, np.ndarray]):
    """A ``.npy`` file; its values in the order of the file, which keeps Fortran arrays as they are."""

    names = ()

    def __init__(self, path: Path, layout: Layout) -> None:
        self.path = path
        with path.open("rb") as file:
            try:
                self.shape, self._fortran, self._dtype = _HEADERS[npy.read_magic(file)](file)
            except Exception as error:  # NumPy evaluates the header as Python: whatever that raises
                problem = "is not a readable .npy file" if path.stat().st_size else "is empty"
                raise ValueError(f"{path}: {problem}") from error
            self._offset = file.tell()
        if self._dtype.kind not in "iuf":
            raise ValueError(f"{path}: holds {self._dtype}; only integers and floats can be perturbed")
        if self._dtype.itemsize > 8:
            raise ValueError(f"{path}: holds {self._dtype}, which float64 rounds; make it float64 first")
        self.droppable = len(self.shape) == 1
        self.dtype = self._dtype.newbyteorder("=")  # in the machine's byte order
        self.values = int(np.prod(self.shape, dtype=object))  # their number
        missing = self._offset + self.values * self._dtype.itemsize - path.stat().st_size
        if missing > 0:
            raise ValueError(f"{path}: is truncated; {missing} bytes are missing")
        self.values_per_row = int(np.prod(self.shape[1:], dtype=object))

    def chunks(self, columns: Sequence[str | None]) -> Generator[np.ndarray, None, None]:
        with self.path.open("rb") as file:
            file.seek(self._offset)
            for start in range(0, self.values, MAX_ROWS):
                count = min(MAX_ROWS, self.values - start)
                chunk = np.fromfile(file, self._dtype, count)
                if len(chunk) < count:
                    raise ValueError(f"{self.path}: became shorter while it was read")
                self.fraction = (start + count) / self.values
                yield chunk.astype(self.dtype, copy=False)

    def count(self) -> int:
        return self.values

    def numbers(self, chunk: np.ndarray, name: str | None, start: int) -> Numbers:
        return Numbers.from_values(chunk)

    def labels(self, chunk: np.ndarray, name: str) -> NoReturn:
        raise ValueError(f"{self.path}: is an array, which has no column {name!r}")

    def replaced(self, chunk: np.ndarray, reports: Mapping[str | None, Numbers]) -> np.ndarray:  # type: ignore[override]
        values, missing = reports[None].values, reports[None].missing
        return values if missing is None else np.where(missing, values.dtype.type(np.nan), values)

    def select(self, replaced: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return replaced[rows]

    def reordered(self, chunks: Sequence[np.ndarray], order: np.ndarray) -> Iterator[np.ndarray]:
        values = np.concatenate(chunks)
        by_row = values.reshape(-1, len(order)).T if self._fortran else values.reshape(len(order), -1)
        yield np.ascontiguousarray(by_row[order].T if self._fortran else by_row[order])

    def size(self, replaced: np.ndarray) -> int:
        return replaced.nbytes

    def output_bytes(self, columns: Sequence[str | None]) -> int:
        return self._offset + self.values * report_type(self.dtype).itemsize

    def rows(self, chunk: np.ndarray, begin: int, end: int) -> np.ndarray:
        return chunk[begin:end]

    def position(self, chunk: np.ndarray, row: int, start: int) -> str:
        if len(self.shape) < 2:
            return f"row {row}"
        index = np.unravel_index(row, self.shape, "F" if self._fortran else "C")
        return f"value {tuple(int(i) for i in index)}"

    def lost_properties(self, output: Path) -> list[str]:
        return [] if self._dtype.isnative else ["the byte order"]

    @contextmanager
    def sink(self, path: Path) -> Iterator[Callable[[np.ndarray], object]]:
        dtype = report_type(self.dtype)
        header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": self._fortran, "shape": self.shape}
        with path.open("wb") as file:
            npy.write_array_header_1_0(file, header)
            begin = file.tell()
            yield lambda chunk: file.write(chunk.data)
            # Only a vector has rows that may be dropped; a header has room for any number.
            if (values := (file.tell() - begin) // dtype.itemsize) < self.values:
                file.seek(0)
                npy.write_array_header_1_0(file, {**header, "shape": (values,)})
