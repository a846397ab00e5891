"""Arrays and columns in, the same kind out: NumPy, JAX, pandas, polars, pyarrow.

pandas, polars and pyarrow are never imported here; their objects are known by the module of their type.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Rewrap = Callable[[Any], Any]

_NEEDED = '; every row needs a number, or missing="keep" or missing="drop"'


def kind(x: Any) -> str:
    """Return the library of x's class or its bases: "numpy", "jax", "pandas", "polars", "pyarrow" or "other"."""
    cls: type = type(x)
    library = _library(cls)
    return "jax" if library == "other" and isinstance(x, jax.Array) else library


@lru_cache(maxsize=64)
def _library(cls: type) -> str:
    libraries = (base.__module__.partition(".")[0] for base in cls.__mro__)
    return next((top for top in libraries if top in ("numpy", "pandas", "polars", "pyarrow")), "other")


def is_table(x: Any) -> bool:
    """Return whether x has named columns."""
    return not _TABLES.isdisjoint(_names(x))


def is_ray_dataset(x: Any) -> bool:
    """Return whether x is a ``ray.data.Dataset``."""
    return "ray.Dataset" in _names(x)


def _names(x: object) -> frozenset[str]:
    """Return x's class and its bases, each as "library.name", without importing a library."""
    cls: type = type(x)
    return _named(cls)


@lru_cache(maxsize=64)
def _named(cls: type) -> frozenset[str]:
    return frozenset(f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in cls.__mro__)


_TABLES = frozenset(("pandas.DataFrame", "polars.DataFrame", "pyarrow.Table"))

# Types that cannot be perturbed, each with the advice for the error message.
_INSTEAD = {
    "pandas.Index": "use x.to_series()",
    "polars.Expr": "an expression holds no values; select it and take the column",
    "polars.LazyFrame": "call .collect() first",
    "pyarrow.Scalar": "make it an array by pyarrow.array([x.as_py()])",
    "pyarrow.RecordBatch": "make it a pyarrow.Table by pyarrow.Table.from_batches([x])",
}


def check_kind(x: Any) -> None:
    """Refuse types that look like a column or a table but cannot be perturbed.

    Raises:
        TypeError: x is of such a type; the message says what to use instead.
    """
    for name in _INSTEAD.keys() & _names(x):
        raise TypeError(f"x: is a {name}; {_INSTEAD[name]}")


def unwrap(x: Any) -> tuple[Any, Rewrap]:
    """Return the numbers of x as a NumPy or JAX array, and how to put reports back into its kind.

    Raises:
        TypeError: not an array or a column, or not of numbers.
    """
    if type(x) is np.ndarray:
        _check_dtype(x.dtype)
        return x, _as_it_is
    match kind(x):
        case "jax" if isinstance(x, jax.core.Tracer):
            raise TypeError(
                "x: is traced by JAX; inside jit release with perturb_traced, or simulate with mechanism.sample"
            )
        case "jax":
            _check_dtype(x.dtype)
            devices = x.devices()
            if len(devices) == 1 and next(iter(devices)).platform == "cpu":
                return np.asarray(x), lambda reports: jax.device_put(reports, x.sharding, may_alias=True)
            return x, lambda reports: jax.device_put(reports, x.sharding)
        case "numpy":
            if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
                raise ValueError(f"x: has {np.ma.count_masked(x)} masked values{_NEEDED}")
            array = np.asarray(x)
            _check_dtype(array.dtype)
            return array, _as_it_is
        case "pandas":
            return _pandas(x)
        case "polars":
            return _polars(x)
        case "pyarrow":
            return _pyarrow(x)
        case _ if isinstance(x, int | float) and not isinstance(x, bool):
            array = np.asarray(x)
            if array.dtype.kind == "O":
                raise TypeError(f"x: is an integer of {int(x).bit_length()} bits; at most 64 bits can be perturbed")
            return array, lambda reports: reports.item()
        case _:
            raise TypeError(
                f"x: {type(x).__name__} is not an array or a column; "
                "use NumPy, JAX, pandas, polars or pyarrow (numpy.asarray makes an array of a list)"
            )


def _as_it_is(reports: Any) -> Any:
    return reports


def columns_of(table: Any) -> list[str]:
    """Return the names of a table's columns."""
    return list(table.column_names if kind(table) == "pyarrow" else table.columns)


def replace_columns(table: Any, columns: dict[str, Any]) -> Any:
    """Return the table with some columns replaced, in their places."""
    match kind(table):
        case "pandas":
            table = _without_attributes(table.copy(deep=False))
            for name, column in columns.items():
                table[name] = column
            return table
        case "polars":
            return table.with_columns(list(columns.values()))
        case _:
            for name, column in columns.items():
                at = table.column_names.index(name)
                field = table.field(at).with_type(column.type).with_metadata(None)  # it may hold raw values
                table = table.set_column(at, field, column)
            return _without_pandas_attributes(table)


def _without_attributes(made: Any) -> Any:
    """Return a pandas object without ``attrs``, which may hold raw values and would be released with the reports."""
    made.attrs = {}
    return made


def _without_pandas_attributes(table: Any) -> Any:
    """Return a pyarrow table without the ``attrs`` that pandas writes into the metadata of a Parquet file."""
    kept = {name: text for name, text in (table.schema.metadata or {}).items() if name != b"PANDAS_ATTRS"}
    return table.replace_schema_metadata(kept or None)


def _check_dtype(dtype: Any) -> None:
    """Refuse types that are not numeric, including times and durations, which NumPy stores as integers."""
    kind = np.dtype(dtype).kind
    if kind not in "iuf" and not jnp.issubdtype(dtype, np.floating):  # Only JAX knows bfloat16.
        raise TypeError(f"x: holds {dtype}; only integers and floats can be perturbed")
    if np.dtype(dtype).itemsize > 8:
        raise TypeError(f"x: holds {dtype}, which float64 rounds; make it float64 and take the sensitivity of that")


def _pandas(series: Any) -> tuple[np.ndarray, Rewrap]:
    if "pandas.Series" not in _names(series):
        raise TypeError(f"x: a pandas {type(series).__name__} needs a mechanism a column, as a dict")
    values = series.astype(series.cat.categories.dtype) if hasattr(series, "cat") else series
    kind = getattr(values.dtype, "kind", "O")
    if kind not in "iuf":
        raise TypeError(f"x: holds {series.dtype}; only integers and floats can be perturbed")
    # Arrow's and pandas' own types name NumPy's; integers stay integers, for a float may not hold them.
    dtype = np.dtype(getattr(values.dtype, "numpy_dtype", getattr(values.dtype, "subtype", values.dtype)))
    _check_dtype(dtype)
    missing = values.isna().to_numpy()
    if kind != "f" and missing.any():
        raise ValueError(f"x: row {missing.argmax()} is missing{_NEEDED}")

    def rewrap(reports: np.ndarray) -> Any:
        made = series._constructor(reports, index=series.index, name=series.name)
        return _without_attributes(made.astype(_pandas_type(values.dtype, reports.dtype)).__finalize__(series))

    return values.to_numpy(dtype=dtype, na_value=np.nan), rewrap


def _pandas_type(dtype: Any, reports: np.dtype) -> Any:
    """Return the pandas type of reports that matches a column's: Arrow-backed, nullable or plain."""
    if not hasattr(dtype, "numpy_dtype"):
        return reports
    if str(dtype).endswith("[pyarrow]"):
        return "float[pyarrow]" if reports == np.float32 else "double[pyarrow]"
    return "Float32" if reports == np.float32 else "Float64"


def _polars(series: Any) -> tuple[np.ndarray, Rewrap]:
    if type(series).__name__ != "Series":
        raise TypeError(f"x: a polars {type(series).__name__} needs a mechanism a column, as a dict")
    if not series.dtype.is_numeric() or series.dtype.is_decimal() or "Int128" in str(series.dtype):
        raise TypeError(f"x: holds {series.dtype}; only integers and floats of up to 64 bits can be perturbed")
    if series.null_count():
        raise ValueError(f"x: row {series.is_null().arg_max()} is null{_NEEDED}")
    return series.to_numpy(), lambda reports: type(series)(series.name, reports)


def _pyarrow(column: Any) -> tuple[np.ndarray, Rewrap]:
    if type(column).__name__ == "Table":
        raise TypeError("x: a pyarrow Table needs a mechanism a column, as a dict")
    import pyarrow as pa

    if not isinstance(column, pa.Array | pa.ChunkedArray):
        raise TypeError(f"x: a pyarrow {type(column).__name__} is not an array or a column")
    values = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise TypeError(f"x: holds {column.type}; only integers and floats can be perturbed")
    if values.null_count:
        row = np.argmax(np.asarray(values.is_null()))
        raise ValueError(f"x: row {row} is null{_NEEDED}")
    chunked = isinstance(values, pa.ChunkedArray)
    return np.asarray(values), lambda reports: pa.chunked_array([reports]) if chunked else pa.array(reports)
