"""Groups of reports: the cells of a column that was copied as it is, under names that no two different cells share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpkernels.cli.files.formats import Source


def groups_of(source: Source, piece: Any, by: str | None) -> tuple[np.ndarray, list[str | None]]:
    """The group of every row of a piece, and the groups' cells."""
    if by is None:
        return np.zeros(0, np.int64), [None]
    cells = source.labels(piece, by)
    if pa.types.is_dictionary(cells.type):  # whose dictionary may hold a value twice
        cells = cells.cast(cells.type.value_type)
    encoded = pc.dictionary_encode(cells, null_encoding="encode")
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), _names(encoded.dictionary)


def _names(cells: Any) -> list[str | None]:
    """The names of groups: different cells have different names, and null has None.

    Bytes that are not UTF-8 become lone surrogates, as in the names of files. Times are written with all their digits,
    which Python's own types do not hold.
    """
    kind = cells.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        cells = cells.cast(pa.large_binary())
    elif pa.types.is_timestamp(kind) and kind.tz is not None:
        cells = cells.cast(pa.timestamp(kind.unit, "UTC")).cast(pa.string())
    elif pa.types.is_duration(kind):
        return [None if count is None else f"{count} {kind.unit}" for count in cells.cast(pa.int64()).to_pylist()]
    elif pa.types.is_date64(kind):
        cells = cells.cast(pa.timestamp("ms")).cast(pa.string())
    elif pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        cells = cells.cast(pa.string())
    names = [_text(cell) for cell in cells.to_pylist()]
    if len(set(names)) < len(names):
        raise ValueError(f"--by: different cells of {kind} read alike; make them texts")
    return names


def _text(cell: Any) -> str | None:
    if isinstance(cell, bytes):
        return cell.decode(errors="surrogateescape")
    return None if cell is None else str(cell)


def ordered(cell: str | None) -> tuple[int, float, str]:
    """Numbers by size, then other texts, then null: the same order, whichever part comes first."""
    if cell is None:
        return 2, 0.0, ""
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    return (1, 0.0, cell) if math.isnan(number) else (0, number, cell)
