"""Containers of values and reports, with or without missing values: NumPy, JAX, pandas, polars, pyarrow.

A container is recognised by the module of its type, so pandas and polars are imported only for their own objects.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from dpkernels.jax_on_use import Array, Tracer, jax, jnp

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

# An array, a column or a table of one of the libraries, which share no type; ``library_name`` says of which.
Container: TypeAlias = Any
PolarsType: TypeAlias = "pl.DataType | pl.datatypes.DataTypeClass"
Rewrap = Callable[[Any], Container]

_MAY_LACK_VALUES = ("numpy", "pandas", "polars", "pyarrow")

_NEEDED = '; every row needs a number, or missing="keep" or missing="drop"'

# Types that cannot be perturbed, each with the advice for the error message.
_INSTEAD = {
    "pandas.Index": "use x.to_series()",
    "polars.Expr": "an expression holds no values; select it and take the column",
    "polars.LazyFrame": "call .collect() first",
    "pyarrow.Scalar": "make it an array by pyarrow.array([x.as_py()])",
    "pyarrow.RecordBatch": "make it a pyarrow.Table by pyarrow.Table.from_batches([x])",
}


def _names(cls: type) -> tuple[str, ...]:
    """Return a class and its bases, each as "library.name", without importing a library."""
    return tuple(f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in cls.__mro__)


def library_name(x: object) -> str:
    """Return the library of x's class or its bases: "numpy", "jax", "pandas", "polars", "pyarrow" or "other"."""
    libraries = (name.partition(".")[0] for name in _names(type(x)))
    default = "jax" if isinstance(x, Array) else "other"
    return next((top for top in libraries if top in ("numpy", "pandas", "polars", "pyarrow")), default)


def is_table(x: object) -> bool:
    """Return whether x has named columns."""
    return not {"pandas.DataFrame", "polars.DataFrame", "pyarrow.Table"}.isdisjoint(_names(type(x)))


def is_ray_dataset(x: object) -> bool:
    """Return whether x is a ``ray.data.Dataset``."""
    return "ray.Dataset" in _names(type(x))


def check_container(x: object) -> None:
    """Raise a TypeError for what looks like a column or a table but cannot be perturbed, with advice."""
    for name in _INSTEAD.keys() & _names(type(x)):
        raise TypeError(f"x: is a {name}; {_INSTEAD[name]}")


def unwrap(x: Container) -> tuple[Any, Rewrap]:
    """Return the numbers of a column or an array as a NumPy or JAX array, and a function from reports to its kind."""
    if type(x) is np.ndarray:
        _check_dtype(x.dtype)
        return x, lambda reports: reports
    match library_name(x):
        case "jax" if isinstance(x, Tracer):
            raise TypeError(
                "x: is traced by JAX; inside jit release with perturb_traced, or simulate with mechanism.sample"
            )
        case "jax":
            _check_dtype(x.dtype)
            devices = x.devices()
            if len(devices) == 1 and next(iter(devices)).platform == "cpu":
                return np.asarray(x), lambda reports: jax.device_put(reports, x.sharding, may_alias=True)
            return _with_automatic_axes(x), lambda reports: jax.device_put(reports, x.sharding)
        case "numpy":
            if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
                raise ValueError(f"x: has {np.ma.count_masked(x)} masked values{_NEEDED}")
            array = np.asarray(x)
            _check_dtype(array.dtype)
            return array, lambda reports: reports[()] if isinstance(x, np.generic) else reports
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


def _with_automatic_axes(x: Array) -> Array:
    """Return the same array, in place, on a mesh whose axes JAX may split and join in any computation."""
    if not isinstance(x.sharding, jax.sharding.NamedSharding):
        return x
    mesh = jax.sharding.Mesh(x.sharding.mesh.devices, x.sharding.mesh.axis_names)
    sharding = jax.sharding.NamedSharding(mesh, x.sharding.spec, memory_kind=x.sharding.memory_kind)
    return jax.device_put(x, sharding, may_alias=True)


def shape(x: Container) -> tuple[int, ...]:
    """Return the shape of an array, a column or a number; a TypeError for what is none, or holds no numbers."""
    match library_name(x):
        case "numpy":
            _check_dtype(x.dtype)
            return x.shape
        case "pandas" | "polars" | "pyarrow" as library:
            {"pandas": _pandas_numbers, "polars": _check_polars, "pyarrow": _pyarrow_numbers}[library](x)
            return (len(x),)
        case _:
            return unwrap(x)[0].shape


@contextmanager
def naming_column(name: Hashable) -> Iterator[None]:
    """Let errors in a column of a table name it."""
    try:
        yield
    except (TypeError, ValueError) as error:
        error_type = TypeError if isinstance(error, TypeError) else ValueError
        raise error_type(f"column {name!r}: {error}") from error


def column_names(table: Container) -> list[str]:
    """Return the names of a table's columns."""
    return list(table.column_names if library_name(table) == "pyarrow" else table.columns)


def replace_columns(table: Container, columns: dict[str, Container]) -> Container:
    """Return the table with some columns replaced, in their places, and with nothing but what its columns show.

    Attributes, metadata, categories that no row has, and values in memory under missing ones may be the raw values, and
    would be released with the reports.
    """
    match library_name(table):
        case "pandas":
            # A subclass's own metadata are not copied, because its constructor gets a plain table.
            frame = type(table).__mro__[_names(type(table)).index("pandas.DataFrame")]
            released = table._constructor(frame(table, copy=False))
            for position, (name, column) in enumerate(table.items()):
                array = columns[name].array if name in columns else _visible_array(column.array)
                released.isetitem(position, array)  # by place: labels may repeat
            released.index, released.columns = visible_index(table.index), visible_index(table.columns)
            return released
        case "polars":
            visible_columns = [_visible_polars(column) for column in table.get_columns() if column.name not in columns]
            return table.with_columns(*visible_columns, *columns.values())
        case _:
            from dpkernels.release.arrow import released_table

            for name, column in columns.items():
                position = table.column_names.index(name)
                field = table.field(position).with_type(column.type).with_metadata(None)  # it may hold raw values
                table = table.set_column(position, field, column)
            return released_table(table)


def _value_positions(missing: np.ndarray) -> np.ndarray:
    """Return the position of each row's value among those that are present, and -1 for a missing one."""
    return np.where(missing, -1, np.cumsum(~missing) - 1)


def _visible_array(array: pd.api.extensions.ExtensionArray) -> pd.api.extensions.ExtensionArray:
    """Return the array of a pandas column or index with the memory of the values that it shows, and nothing else.

    Categories that no row has, values under missing ones, and Arrow's values around slices may be raw values.
    """
    if hasattr(array, "remove_unused_categories"):
        return array.remove_unused_categories()
    if "pandas.ArrowExtensionArray" in _names(type(array)):
        from dpkernels.release.arrow import released_column

        column = released_column(array.__arrow_array__())
        is_text = type(array.dtype).__name__ == "StringDtype"
        dtype = array.dtype if is_text else type(array.dtype)(column.type)
        return dtype.__from_arrow__(column)
    missing = array.isna()
    if isinstance(array.dtype, np.dtype) or not missing.any():
        return array
    return array[~missing].take(_value_positions(missing), allow_fill=True)


def visible_index(index: pd.Index) -> pd.Index:
    """Return a pandas index with the memory of the labels that it shows, and nothing else."""
    if hasattr(index, "remove_unused_levels"):
        shown_index = index.remove_unused_levels()
        return shown_index.set_levels([visible_index(level) for level in shown_index.levels], verify_integrity=False)
    visible = index.array if isinstance(index.dtype, np.dtype) else _visible_array(index.array)
    return index if visible is index.array else type(index)(visible, name=index.name)


def _visible_polars(column: pl.Series) -> pl.Series:
    """Return a polars column with the values of its rows, and no categories or memory of others."""
    dtype = _visible_type(column.dtype, column)
    if dtype != column.dtype:
        column = column.cast(dtype)
    if column.dtype.is_nested() or str(column.dtype) in ("String", "Binary"):
        return type(column)(column.name, column.to_list(), dtype=column.dtype)
    if not column.null_count():
        return column
    missing = column.is_null().to_numpy()
    return column.drop_nulls().gather(type(column)(_value_positions(missing)).replace(-1, None))


def _visible_type(dtype: PolarsType, column: pl.Series | None = None) -> PolarsType:
    """Return a polars type in which an Enum has the categories of a column; inside nested ones they are texts."""
    import polars as pl

    if isinstance(dtype, pl.Enum):
        if column is None:
            return pl.String()
        shown_names = set(column.unique().to_list())
        return pl.Enum([name for name in dtype.categories if name in shown_names])
    if isinstance(dtype, pl.Struct):
        return pl.Struct([pl.Field(field.name, _visible_type(field.dtype)) for field in dtype.fields])
    if isinstance(dtype, pl.Array):
        return pl.Array(_visible_type(dtype.inner), dtype.size)
    return pl.List(_visible_type(dtype.inner)) if isinstance(dtype, pl.List) else dtype


def _check_dtype(dtype: np.dtype) -> None:
    """Refuse types that are not numeric, including times and durations, which NumPy stores as integers."""
    kind = np.dtype(dtype).kind
    if kind not in "iuf" and not jnp.issubdtype(dtype, np.floating):  # Only JAX knows bfloat16.
        raise TypeError(f"x: holds {dtype}; only integers and floats can be perturbed")
    if np.dtype(dtype).itemsize > 8:
        raise TypeError(f"x: holds {dtype}, which float64 rounds; make it float64 and take the sensitivity of that")


def _pandas_numbers(series: pd.Series) -> tuple[pd.Series, np.dtype]:
    """Return a pandas column without categories, and NumPy's type of its numbers."""
    if "pandas.Series" not in _names(type(series)):
        raise TypeError(f"x: a pandas {type(series).__name__} needs a mechanism a column, as a dict")
    values = series.astype(series.cat.categories.dtype) if hasattr(series, "cat") else series
    kind = getattr(values.dtype, "kind", "O")
    if kind not in "iuf":
        raise TypeError(f"x: holds {series.dtype}; only integers and floats can be perturbed")
    # Arrow's and pandas' own types name NumPy's; integers stay integers, for a float may not hold them.
    dtype = np.dtype(getattr(values.dtype, "numpy_dtype", getattr(values.dtype, "subtype", values.dtype)))
    _check_dtype(dtype)
    return values, dtype


def _pandas(series: pd.Series) -> tuple[np.ndarray, Rewrap]:
    values, dtype = _pandas_numbers(series)
    missing = values.isna().to_numpy()
    if values.dtype.kind != "f" and missing.any():
        raise ValueError(f"x: row {missing.argmax()} is missing{_NEEDED}")

    def rewrap(reports: np.ndarray) -> pd.Series:
        # Neither attributes nor a subclass's own metadata are copied: they may hold raw values.
        released = series._constructor(reports, index=visible_index(series.index), name=series.name)
        names = ("Float32", "Float64") if hasattr(values.dtype, "numpy_dtype") else ("float32", "float64")
        if str(values.dtype).endswith("[pyarrow]"):
            names = ("float[pyarrow]", "double[pyarrow]")
        return released.astype(names[reports.dtype == np.float64])

    return values.to_numpy(dtype=dtype, na_value=np.nan), rewrap


def _check_polars(series: pl.Series) -> None:
    if type(series).__name__ != "Series":
        raise TypeError(f"x: a polars {type(series).__name__} needs a mechanism a column, as a dict")
    if not series.dtype.is_numeric() or series.dtype.is_decimal() or "Int128" in str(series.dtype):
        raise TypeError(f"x: holds {series.dtype}; only integers and floats of up to 64 bits can be perturbed")


def _polars(series: pl.Series) -> tuple[np.ndarray, Rewrap]:
    _check_polars(series)
    if series.null_count():
        raise ValueError(f"x: row {series.is_null().arg_max()} is null{_NEEDED}")
    return series.to_numpy(), lambda reports: type(series)(series.name, reports)


def _pyarrow_numbers(column: object) -> pa.Array | pa.ChunkedArray:
    """Return an Arrow column without a dictionary."""
    if type(column).__name__ == "Table":
        raise TypeError("x: a pyarrow Table needs a mechanism a column, as a dict")
    import pyarrow as pa

    if not isinstance(column, pa.Array | pa.ChunkedArray):
        raise TypeError(f"x: a pyarrow {type(column).__name__} is not an array or a column")
    values = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise TypeError(f"x: holds {column.type}; only integers and floats can be perturbed")
    return values


def _pyarrow(column: pa.Array | pa.ChunkedArray) -> tuple[np.ndarray, Rewrap]:
    import pyarrow as pa

    values = _pyarrow_numbers(column)
    if values.null_count:
        row = np.argmax(np.asarray(values.is_null()))
        raise ValueError(f"x: row {row} is null{_NEEDED}")
    chunked = isinstance(values, pa.ChunkedArray)
    return np.asarray(values), lambda reports: pa.chunked_array([reports]) if chunked else pa.array(reports)


def check_may_lack_values(x: object) -> None:
    """Refuse what ``missing`` is not for: single numbers, and arrays that have no mask."""
    if isinstance(x, int | float | np.generic):
        raise TypeError("missing: is for arrays and columns; x is one number")
    if library_name(x) not in _MAY_LACK_VALUES:
        raise TypeError(f"missing: {type(x).__name__} is not a NumPy array nor a pandas, polars or pyarrow column")


def is_missing(x: Container) -> np.ndarray:
    """Return (n,) booleans: whether each row of an array or a column has a missing value (NaN, null, masked)."""
    match library_name(x):
        case "numpy":
            mask = np.ma.getmaskarray(x) if isinstance(x, np.ma.MaskedArray) else np.zeros(x.shape, bool)
            mask = mask | np.isnan(np.ma.getdata(x)) if x.dtype.kind == "f" else mask
            return np.any(mask, axis=tuple(range(1, x.ndim)))
        case "pandas":
            return x.isna().to_numpy()
        case "polars":
            return (x.is_null() | x.is_nan().fill_null(False) if x.dtype.is_float() else x.is_null()).to_numpy()
        case _:
            import pyarrow.compute as pc

            return np.asarray(pc.is_null(x, nan_is_null=True))


def take_rows(x: Container, rows: np.ndarray) -> Container:
    """Return the given rows of an array, a column or a table; pandas keeps their labels."""
    match library_name(x):
        case "pandas":
            return x.iloc[rows]
        case "polars" if is_table(x):
            return x[rows]
        case "polars":
            return x.gather(rows)
        case "pyarrow":
            return x.take(rows)
        case _:
            return np.ma.getdata(x)[rows]


def fill_missing(x: Container, mask: np.ndarray) -> Container:
    """Return the column with its first present value in place of each missing one."""
    filled = take_rows(x, np.where(mask, mask.argmin(), np.arange(len(mask))))
    return filled.set_axis(x.index) if library_name(x) == "pandas" else filled


def with_missing(reports: Container, mask: np.ndarray, source: object) -> Container:
    """Return reports with the rows of the mask missing, in the representation that ``source`` uses.

    The reports of these rows, which are of another row's value, are overwritten: a null alone would leave them in
    memory that can be read, and in files such as Arrow's.
    """
    match library_name(reports):
        case "pandas":
            return reports.mask(mask, 0.0).mask(mask)
        case "polars":
            mask_column = type(reports)(mask)
            return reports.set(mask_column, 0.0).set(mask_column, None)
        case "pyarrow":
            import pyarrow as pa
            import pyarrow.compute as pc

            mask_column = pa.array(mask)
            overwritten = pc.if_else(mask_column, pa.scalar(0.0, reports.type), reports)
            return pc.if_else(mask_column, pa.scalar(None, reports.type), overwritten)
        case _:
            reports[mask] = np.nan
            if not isinstance(source, np.ma.MaskedArray):
                return reports
            by_row = mask.reshape(-1, *[1] * (reports.ndim - 1))
            return np.ma.array(reports, mask=np.broadcast_to(by_row, reports.shape))


def to_list(column: Container) -> list[object]:
    """Return the values of a column as objects of Python."""
    match library_name(column):
        case "pyarrow":
            return column.to_pylist()
        case "pandas" | "polars":
            return column.to_list()
        case "numpy":
            return column.reshape(-1).tolist()
        case _:
            raise TypeError(f"{type(column).__name__} is not a column; use NumPy, pandas, polars or pyarrow")


def present_rows(x: Container) -> tuple[Container, np.ndarray | None]:
    """Return the values of an array or a column that are present, and their places unless all are; or x as it is."""
    if library_name(x) not in _MAY_LACK_VALUES or np.ndim(x) == 0 or is_table(x):
        return x, None
    flat = x.reshape(-1) if isinstance(x, np.ndarray) else x
    missing = is_missing(flat)
    rows = np.flatnonzero(~missing)
    return (take_rows(flat, rows), rows) if missing.any() else (x, None)
