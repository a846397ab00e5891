"""Missing values of arrays, columns and tables: which rows have them, and the rows without."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from dpkernels.release import containers

CHOICES = ("refuse", "keep", "drop")


def is_missing(x: Any) -> np.ndarray:
    """Return (n,) booleans: whether each row of an array or a column has a missing value (NaN, null, masked).

    Raises:
        TypeError: x is not an array or a column with missing values.
    """
    match containers.kind(x):
        case "numpy":
            mask = np.ma.getmaskarray(x) if isinstance(x, np.ma.MaskedArray) else np.zeros(x.shape, bool)
            mask = mask | np.isnan(np.ma.getdata(x)) if x.dtype.kind == "f" else mask
            return np.any(mask, axis=tuple(range(1, x.ndim)))
        case "pandas":
            return x.isna().to_numpy()
        case "polars":
            return (x.is_null() | x.is_nan().fill_null(False) if x.dtype.is_float() else x.is_null()).to_numpy()
        case "pyarrow":
            import pyarrow.compute as pc

            return np.asarray(pc.is_null(x, nan_is_null=True))
        case _:
            raise TypeError(f"missing: {type(x).__name__} is not a NumPy array nor a pandas, polars or pyarrow column")


def in_any(columns: Iterable[Any]) -> np.ndarray:
    """Return (n,) booleans: whether any of a table's columns is missing in a row."""
    return np.any([is_missing(column) for column in columns], axis=0)


def rows_of(x: Any, rows: np.ndarray) -> Any:
    """Return the given rows of an array, a column or a table; pandas keeps their labels."""
    match containers.kind(x):
        case "pandas":
            return x.iloc[rows]
        case "polars" if containers.is_table(x):
            return x[rows]
        case "polars":
            return x.gather(rows)
        case "pyarrow":
            return x.take(rows)
        case _:
            return np.ma.getdata(x)[rows]


def stood_in(x: Any, mask: np.ndarray) -> Any:
    """Return the column with its first present value in place of each missing one."""
    found = rows_of(x, np.where(mask, mask.argmin(), np.arange(len(mask))))
    return found.set_axis(x.index) if containers.kind(x) == "pandas" else found


def blanked(made: Any, mask: np.ndarray, like: Any) -> Any:
    """Return reports with the rows of the mask missing, in the representation that ``like`` uses.

    The reports of these rows, which are of another row's value, are overwritten: a null alone would leave them in
    memory that can be read, and in files such as Arrow's.
    """
    match containers.kind(made):
        case "pandas":
            return made.mask(mask, 0.0).mask(mask)
        case "polars":
            gone = type(made)(mask)
            return made.set(gone, 0.0).set(gone, None)
        case "pyarrow":
            import pyarrow as pa
            import pyarrow.compute as pc

            gone = pa.array(mask)
            overwritten = pc.if_else(gone, pa.scalar(0.0, made.type), made)
            return pc.if_else(gone, pa.scalar(None, made.type), overwritten)
        case _:
            made[mask] = np.nan
            if not isinstance(like, np.ma.MaskedArray):
                return made
            return np.ma.array(made, mask=np.broadcast_to(mask.reshape(-1, *[1] * (made.ndim - 1)), made.shape))


def present_rows(x: Any) -> tuple[Any, np.ndarray | None]:
    """Return the values of an array or a column that are not missing, and their places; anything else as it is."""
    if containers.kind(x) not in ("numpy", "pandas", "polars", "pyarrow") or np.ndim(x) == 0 or containers.is_table(x):
        return x, None
    flat = x.reshape(-1) if isinstance(x, np.ndarray) else x
    gone = is_missing(flat)
    rows = np.flatnonzero(~gone)
    return (rows_of(flat, rows), rows) if gone.any() else (x, None)
