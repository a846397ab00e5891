"""Arrays and columns in, the same kind out: NumPy, JAX, pandas, polars, pyarrow.

pandas, polars and pyarrow are never imported here; their objects are known by the module of their type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Rewrap = Callable[[Any], Any]


def kind(x: Any) -> str:
    """Which library x belongs to: "numpy", "jax", "pandas", "polars", "pyarrow" or "other"."""
    if isinstance(x, jax.Array):
        return "jax"
    top = type(x).__module__.partition(".")[0]
    return top if top in ("numpy", "pandas", "polars", "pyarrow") else "other"


def is_table(x: Any) -> bool:
    """Whether x has named columns."""
    return kind(x) in ("pandas", "polars", "pyarrow") and type(x).__name__ in ("DataFrame", "Table")


def unwrap(x: Any) -> tuple[Any, Rewrap]:
    """The numbers of x as a NumPy or JAX array, and how to put reports back into its kind.

    Raises:
        TypeError: not an array or a column, or not of numbers.
    """
    match kind(x):
        case "jax" if isinstance(x, jax.core.Tracer):
            raise TypeError("x: is traced; a release is of concrete values, inside jit simulate with mechanism.sample")
        case "jax":
            _check_dtype(x.dtype)
            devices = x.devices()
            if len(devices) == 1 and next(iter(devices)).platform == "cpu":
                return np.asarray(x), lambda reports: jax.device_put(reports, x.sharding, may_alias=True)
            return x, lambda reports: jax.device_put(reports, x.sharding)
        case "numpy":
            if np.ma.is_masked(x):
                raise ValueError(f"x: has {np.ma.count_masked(x)} masked values; every row needs a number")
            array = np.asarray(x)
            _check_dtype(array.dtype)
            return array, lambda reports: reports
        case "pandas":
            return _pandas(x)
        case "polars":
            return _polars(x)
        case "pyarrow":
            return _pyarrow(x)
        case _:
            raise TypeError(
                f"x: {type(x).__name__} is not an array or a column; "
                "use NumPy, JAX, pandas, polars or pyarrow (numpy.asarray makes an array of a list)"
            )


def columns_of(table: Any) -> list[str]:
    """The names of a table's columns."""
    return list(table.column_names if kind(table) == "pyarrow" else table.columns)


def replace_columns(table: Any, columns: dict[str, Any]) -> Any:
    """The table with some columns replaced, in their places."""
    match kind(table):
        case "pandas":
            table = table.copy(deep=False)
            for name, column in columns.items():
                table[name] = column
            return table
        case "polars":
            return table.with_columns(list(columns.values()))
        case _:
            for name, column in columns.items():
                table = table.set_column(table.column_names.index(name), name, column)
            return table


def _check_dtype(dtype: Any) -> None:
    if not (jnp.issubdtype(dtype, np.integer) or jnp.issubdtype(dtype, np.floating)):
        raise TypeError(f"x: holds {dtype}; only integers and floats can be perturbed")


def _pandas(series: Any) -> tuple[np.ndarray, Rewrap]:
    if type(series).__name__ != "Series":
        raise TypeError(f"x: a pandas {type(series).__name__} needs a mechanism a column, as a dict")
    numeric = getattr(series.dtype, "kind", "O")
    if numeric not in "iuf":
        raise TypeError(f"x: holds {series.dtype}; only integers and floats can be perturbed")
    target = np.float32 if str(series.dtype).lower().startswith(("float32", "float16")) else np.float64
    array = series.to_numpy(dtype=target, na_value=np.nan)
    return array, lambda reports: type(series)(reports, index=series.index, name=series.name)


def _polars(series: Any) -> tuple[np.ndarray, Rewrap]:
    if type(series).__name__ != "Series":
        raise TypeError(f"x: a polars {type(series).__name__} needs a mechanism a column, as a dict")
    if not series.dtype.is_numeric() or series.dtype.is_decimal():
        raise TypeError(f"x: holds {series.dtype}; only integers and floats can be perturbed")
    if series.null_count():
        raise ValueError(f"x: row {series.is_null().arg_max()} is null; every row needs a number")
    return series.to_numpy(), lambda reports: type(series)(series.name, reports)


def _pyarrow(column: Any) -> tuple[np.ndarray, Rewrap]:
    if type(column).__name__ == "Table":
        raise TypeError("x: a pyarrow Table needs a mechanism a column, as a dict")
    import pyarrow as pa

    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise TypeError(f"x: holds {column.type}; only integers and floats can be perturbed")
    if column.null_count:
        row = np.argmax(np.asarray(column.is_null()))
        raise ValueError(f"x: row {row} is null; every row needs a number")
    chunked = isinstance(column, pa.ChunkedArray)
    return np.asarray(column), lambda reports: pa.chunked_array([reports]) if chunked else pa.array(reports)
