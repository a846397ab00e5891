"""Conversion between NumPy and Arrow without a copy, and without importing pandas, as ``pa.array`` would."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def array(values: np.ndarray, missing: np.ndarray | None = None) -> pa.Array:
    """Return a vector of numbers or truth values, null where ``missing``."""
    data = np.packbits(values, bitorder="little") if values.dtype == bool else np.ascontiguousarray(values)
    validity = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [validity, pa.py_buffer(data)])


def numbers(column: pa.Array) -> np.ndarray:
    """Return an array of numbers as a vector; arbitrary where it is null."""
    dtype = np.dtype(column.type.to_pandas_dtype())
    return np.frombuffer(column.buffers()[1], dtype)[column.offset : column.offset + len(column)]


def truths(column: pa.Array) -> np.ndarray:
    """Return an array of truth values, none of which is null, as a vector."""
    bits = np.unpackbits(np.frombuffer(column.buffers()[1], np.uint8), bitorder="little")
    return bits[column.offset : column.offset + len(column)].astype(bool)


def binary(text: bytes | pa.Buffer, offsets: np.ndarray) -> pa.Array:
    """Return the consecutive parts of a text between offsets."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def offsets(texts: pa.Array) -> np.ndarray:
    """Return where the parts of a binary array begin in its text, and where the last ends."""
    return np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]


def text(texts: pa.Array) -> pa.Buffer:
    """Return the parts of a binary array, one after the other."""
    begin, end = offsets(texts)[[0, -1]].tolist()
    return texts.buffers()[2].slice(begin, end - begin)


def as_text(texts: pa.Array) -> pa.Array:
    """Return a binary array under the type that numbers are read from; its bytes need not be UTF-8."""
    return pa.Array.from_buffers(pa.string(), len(texts), texts.buffers(), offset=texts.offset)
