"""The release of categories: columns of codes or labels in, reports in the same kind of container out.

Reports of randomised response are categories, as labels if the mechanism has labels. The dictionary, enumeration or
categories of an output always contain all labels of the mechanism, in its order, and never those of the data. Other
reports are unsigned integers, or sets as bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from dpkernels import checks
from dpkernels.exact.categorical.sampler import CategorySampler
from dpkernels.exact.registry import exact_sampler
from dpkernels.jax_on_use import Tracer, jax, jnp
from dpkernels.mechanisms.categorical.base import Categorical, Labels
from dpkernels.mechanisms.categorical.prefixes import PrefixPlan
from dpkernels.numerics import Real
from dpkernels.progress import bar
from dpkernels.release import containers
from dpkernels.release.containers import Container
from dpkernels.release.engines import CORES
from dpkernels.release.inputs import InputError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

MISSING = -1  # the code of a row without a value
UNKNOWN = -2  # the code of a value that is no category

_PIECE_ROWS = 1 << 16  # rows that a thread perturbs at a time, at least
_PROGRESS_ROWS = 1 << 26  # rows from which on a terminal shows a progress bar
_NEEDED = '; every row needs a category, or missing="keep" or missing="drop"'

Wrap = Callable[[np.ndarray, np.ndarray | None], Any]


class CategoryError(InputError):
    """A value that is no category, in a row of the whole release."""

    def __init__(self, row: int, value: Any, reason: str, location: str | None = None) -> None:
        self.row, self.coordinate, self.value, self.clips, self.reason = row, None, value, False, reason
        ValueError.__init__(self, f"x: {location or f'row {row}'} is {value!r}{reason}")

    def named(self, location: str) -> CategoryError:
        return CategoryError(self.row, self.value, self.reason, location)


def is_categorical(mechanism: object) -> bool:
    """Return whether a mechanism, or that of a sampler, is for categories."""
    is_for_categories: bool = getattr(mechanism, "is_categorical", False)  # One call: small releases are fast.
    return is_for_categories


def perturb_categories(
    x: object,
    mechanism: object,
    *,
    missing: str,
    secret: Any,
    exact: bool,
    clip: bool,
    progress: bool | None,
    start: int,
    devices: object,
) -> Container:
    """Return the reports of a column of categories; the arguments are those of ``perturb``, with the key's secret."""
    if clip:
        raise ValueError("clip: categories are not clipped; a mechanism with other= takes unknown ones")
    if devices is not None:
        raise ValueError("devices: reports of categories are made by the CPU")
    inner: Any = getattr(mechanism, "mechanism", mechanism)
    if isinstance(inner, PrefixPlan) and not exact:
        raise ValueError("exact: False; reports of prefixes are exact only")
    sampler = exact_sampler(mechanism) if exact else None
    codes, row_value = category_codes(x, inner)
    wrap = _wrap(x, inner)
    if not len(codes):
        raise ValueError("x: is empty; at least one value is needed")
    codes = check_codes(codes, row_value, inner, missing)
    if missing == "drop":
        rows = np.flatnonzero(codes >= 0)
        if len(rows) < len(codes):
            codes, wrap = codes[rows], _wrap(containers.take_rows(x, rows), inner)
    is_missing = codes < 0
    has_missing = bool(is_missing.any())
    mask = is_missing if missing == "keep" and has_missing else None
    # The report of a row without a value is not written, and does not depend on any value.
    filled = np.where(is_missing, 0, codes) if has_missing else codes
    if sampler is None:
        reports = np.asarray(inner.sample(secret, jnp.asarray(filled)))
    else:
        reports = released_reports(sampler, filled, secret, start, progress)
    if mask is not None:
        reports[mask] = 0
    return wrap(reports, mask)


def released_reports(
    sampler: CategorySampler, codes: np.ndarray, key: bytes, start: int = 0, progress: bool | None = False
) -> np.ndarray:
    """Return exact reports of codes 0..d - 1, which are rows ``start`` and on of the release of a key."""
    mechanism = sampler.mechanism
    checks.integer_in("start: the index after the last row", start + len(codes), 0, sampler.most_rows)
    out = np.empty((len(codes), *mechanism.report_shape), mechanism.report_dtype)
    rows = sampler.rows * -(-_PIECE_ROWS // sampler.rows)
    first = -start % rows  # Pieces begin at multiples of the rows whose noise is drawn together.
    ends = list(pairwise(sorted({0, *range(first, len(codes), rows), len(codes)})))

    def release(interval: tuple[int, int]) -> int:
        begin, end = interval
        out[begin:end] = sampler.reports(codes[begin:end], key, start + begin)
        return end - begin

    with bar(len(codes), progress, len(codes) >= _PROGRESS_ROWS) as moved:
        if len(ends) == 1:
            moved(advance=release(ends[0]))
        else:
            with ThreadPoolExecutor(min(CORES, len(ends)), thread_name_prefix="categories") as pool:
                for done in pool.map(release, ends):
                    moved(advance=done)
    return out


def check_codes(
    codes: np.ndarray, row_value: Callable[[int], object], mechanism: Categorical | PrefixPlan, missing: str
) -> np.ndarray:
    """Return codes with unknown values replaced, or raise an error that names the first row without a category."""
    unknown = codes == UNKNOWN
    if unknown.any():
        if mechanism.other is None:
            row = int(unknown.argmax())
            problem = f", which is not {mechanism.domain}; a mechanism with other= takes it"
            raise CategoryError(row, row_value(row), problem)
        codes = np.where(unknown, mechanism.other, codes)
    is_missing = codes == MISSING
    if missing == "refuse" and is_missing.any():
        raise ValueError(f"x: row {int(is_missing.argmax())} is missing{_NEEDED}")
    if is_missing.all():
        raise ValueError("x: every row has a missing value; at least one value is needed")
    return codes


def category_codes(x: Container, mechanism: Categorical | PrefixPlan) -> tuple[np.ndarray, Callable[[int], object]]:
    """Return the code of every row, ``MISSING`` or ``UNKNOWN``, and a function from a row to its value for errors."""
    if isinstance(mechanism, PrefixPlan):
        return _prefix_codes(x, mechanism)
    match containers.library_name(x):
        case "pandas":
            return _pandas_codes(x, mechanism), lambda row: x.iloc[row]
        case "polars":
            return _polars_codes(x, mechanism), lambda row: x[row]
        case "pyarrow":
            return _arrow_codes(x, mechanism), lambda row: x[row].as_py()
        case "jax" | "numpy":
            if isinstance(x, Tracer):
                raise TypeError("x: is traced by JAX; categories are released outside jit, or simulated with sample")
            array = np.ma.getdata(x) if isinstance(x, np.ma.MaskedArray) else np.asarray(x)
            if array.ndim > 1:
                raise ValueError(f"x: has shape {array.shape}; categories are a column")
            mask = np.ma.getmaskarray(x).reshape(-1) if isinstance(x, np.ma.MaskedArray) else None
            flat = array.reshape(-1)
            codes = _array_codes(flat, mask, mechanism)
            return codes, lambda row: flat[row] if flat.dtype == object else flat[row].item()
        case _ if isinstance(x, str | int) and not isinstance(x, bool):
            return _array_codes(np.array([x]), None, mechanism), lambda _: x
        case _:
            raise TypeError(
                f"x: {type(x).__name__} is not a column of categories; use NumPy, JAX, pandas, polars or pyarrow"
            )


def _prefix_codes(x: Container, plan: PrefixPlan) -> tuple[np.ndarray, Callable[[int], object]]:
    """Return ``category_codes`` for words of digits."""
    if np.ndim(x) > 1:
        raise ValueError(f"x: has shape {np.shape(x)}; values are a column")
    if isinstance(plan.alphabet, str):
        texts = [x] if isinstance(x, str) else containers.to_list(x)
        codes, is_valid = plan.codes_of_texts([text if isinstance(text, str) else "" for text in texts])
        codes[~is_valid] = UNKNOWN
        for row in [row for row, text in enumerate(texts) if not isinstance(text, str)]:
            codes[row] = MISSING if is_missing_value(texts[row]) else UNKNOWN
        return codes, lambda row: texts[row]
    present, rows = containers.present_rows(x)
    values = np.asarray(containers.unwrap(present)[0]).reshape(-1)
    if values.dtype.kind not in "iu":
        raise TypeError(f"x: holds {values.dtype}; the plan's values are integers")
    is_valid = (values >= 0) & (values < plan.categories)
    codes_or_unknown = np.where(is_valid, np.where(is_valid, values, 0).astype(np.int64), UNKNOWN)
    if rows is None:
        return codes_or_unknown, lambda row: int(values[row])
    codes = np.full(len(x), MISSING)
    codes[rows] = codes_or_unknown
    return codes, lambda row: int(values[np.searchsorted(rows, row)])


def _check_type(mechanism: Categorical, is_text: bool, dtype: object) -> None:
    """Refuse values of another kind than the categories."""
    if is_text != (mechanism.labels is not None and isinstance(mechanism.labels[0], str)):
        expected = (
            "codes, which are integers" if mechanism.labels is None else f"{type(mechanism.labels[0]).__name__} labels"
        )
        raise TypeError(f"x: holds {dtype}; the mechanism's categories are {expected}")


def _array_codes(values: np.ndarray, mask: np.ndarray | None, mechanism: Categorical) -> np.ndarray:
    if values.dtype.kind in "UT":
        _check_type(mechanism, True, values.dtype)
    if values.dtype.kind in "OT":  # Texts of variable width may have any object for missing ones.
        codes = _object_codes(values.astype(object), mechanism)
    elif values.dtype.kind == "U":
        codes = _matched(values, np.array(mechanism.labels))
    else:
        if values.dtype.kind not in "iu":
            raise TypeError(f"x: holds {values.dtype}; categories are integers or strings")
        _check_type(mechanism, False, values.dtype)
        codes = _integer_codes(values, mechanism)
    return codes if mask is None else np.where(mask, MISSING, codes)


def _object_codes(values: Iterable[object], mechanism: Categorical) -> np.ndarray:
    """Return the code of every object by its own value and type alone: True and 1.0 equal 1, and are no integers."""
    label_codes = None if mechanism.labels is None else {label: code for code, label in enumerate(mechanism.labels)}

    def code(value: object) -> int:
        if is_missing_value(value):
            return MISSING
        if not isinstance(value, str | int | np.integer) or isinstance(value, bool):
            return UNKNOWN
        label = value if isinstance(value, str) else int(value)
        if label_codes is not None:
            return label_codes.get(label, UNKNOWN)
        return label if isinstance(label, int) and 0 <= label < mechanism.categories else UNKNOWN

    return np.array([code(value) for value in values], np.int64)


def is_missing_value(value: object) -> bool:
    """Return whether an object stands for no value: None, NaN, or pandas' NA and NaT, which have no truth value."""
    is_nan = isinstance(value, float | np.floating) and math.isnan(value)
    return value is None or is_nan or type(value).__name__ in ("NAType", "NaTType")


def _integer_codes(values: np.ndarray, mechanism: Categorical) -> np.ndarray:
    if mechanism.labels is not None:
        # Labels are below 2^63. Unsigned values would be compared with them as floats.
        is_int64 = values <= np.iinfo(np.int64).max
        return np.where(is_int64, _matched(values.astype(np.int64), np.array(mechanism.labels, np.int64)), UNKNOWN)
    if values.size and values.min() >= 0 and values.max() < mechanism.categories:
        return values.astype(np.int64, copy=False)
    in_range = (values >= 0) & (values < mechanism.categories)
    return np.where(in_range, np.where(in_range, values, 0).astype(np.int64), UNKNOWN)


def _matched(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the index of every value among distinct labels, or ``UNKNOWN``."""
    order = np.argsort(labels)
    ranked = labels[order]
    index = np.minimum(np.searchsorted(ranked, values), len(ranked) - 1)
    return np.where(ranked[index] == values, order[index], UNKNOWN)


def _take_codes(codes: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Return codes of categories at places, of which negative ones are missing."""
    return np.append(codes, MISSING)[np.where(indices < 0, len(codes), indices)]


def _pandas_codes(x: pd.Series, mechanism: Categorical) -> np.ndarray:
    import pandas as pd

    if containers.is_table(x):
        raise TypeError(f"x: a pandas {type(x).__name__} needs a mechanism a column, as a dict")
    if hasattr(x.dtype, "pyarrow_dtype"):
        return _arrow_codes(x.array.__arrow_array__(), mechanism)
    dtype = x.cat.categories.dtype if hasattr(x, "cat") else x.dtype
    is_object = isinstance(dtype, np.dtype) and dtype.hasobject
    if pd.api.types.is_bool_dtype(dtype) or not (
        is_object or pd.api.types.is_string_dtype(dtype) or pd.api.types.is_integer_dtype(dtype)
    ):
        raise TypeError(f"x: holds {dtype}; categories are integers or strings (Int64 for integers and missing ones)")
    if not is_object:
        _check_type(mechanism, not pd.api.types.is_integer_dtype(dtype), dtype)
    if hasattr(x, "cat"):
        return _take_codes(_object_codes(x.cat.categories, mechanism), x.cat.codes.to_numpy().astype(np.int64))
    if is_object:
        return _object_codes(x, mechanism)  # pandas would take equal objects of different types for one.
    indices, values = pd.factorize(x)
    return _take_codes(_object_codes(values, mechanism), indices)


def _polars_codes(x: pl.Series, mechanism: Categorical) -> np.ndarray:
    import polars as pl

    if type(x).__name__ != "Series":
        raise TypeError(f"x: a polars {type(x).__name__} needs a mechanism a column, as a dict")
    is_text = x.dtype in (pl.String, pl.Categorical) or isinstance(x.dtype, pl.Enum)
    if not (is_text or x.dtype.is_integer()):
        raise TypeError(f"x: holds {x.dtype}; categories are integers or strings")
    _check_type(mechanism, is_text, x.dtype)
    column = x.cast(pl.String) if is_text else x
    values = column.unique().drop_nulls()
    codes = pl.Series(_object_codes(values.to_list(), mechanism))
    row_codes = column.replace_strict(values, codes, default=None, return_dtype=pl.Int64)
    return row_codes.fill_null(MISSING).to_numpy().astype(np.int64)


def _arrow_codes(x: object, mechanism: Categorical) -> np.ndarray:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not isinstance(x, pa.Array | pa.ChunkedArray):
        raise TypeError(f"x: a pyarrow {type(x).__name__} is not a column of categories")
    value_type = x.type.value_type if pa.types.is_dictionary(x.type) else x.type
    types = pa.types
    is_text = types.is_string(value_type) or types.is_large_string(value_type) or types.is_string_view(value_type)
    if not (is_text or pa.types.is_integer(value_type)):
        raise TypeError(f"x: holds {x.type}; categories are integers or strings")
    _check_type(mechanism, is_text, x.type)
    column = x.cast(value_type) if pa.types.is_dictionary(x.type) else x
    encoded = pc.dictionary_encode(column)
    chunks = encoded.chunks if isinstance(encoded, pa.ChunkedArray) else [encoded]
    chunk_codes = [np.zeros(0, np.int64)]
    for chunk in chunks:
        indices = chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        chunk_codes.append(_take_codes(_object_codes(chunk.dictionary.to_pylist(), mechanism), indices))
    return np.concatenate(chunk_codes)


def _wrap(x: Container, mechanism: Categorical) -> Wrap:
    """Return the function from reports, and a mask of missing ones or None, to a container like x."""
    labels = mechanism.labels if mechanism.kind == "category" else None
    match containers.library_name(x):
        case "pandas":
            return lambda reports, mask: _pandas_column(x, reports, mask, labels)
        case "polars":
            return lambda reports, mask: _polars_column(x, reports, mask, labels)
        case "pyarrow":
            return lambda reports, mask: _arrow_column(x, reports, mask, labels)
        case "jax":
            return lambda reports, _: jax.device_put(reports)
        case "numpy":
            return lambda reports, mask: _array(x, reports, mask, labels)
        case _:
            return lambda reports, _: _single(reports[0], labels)


def _single(report: Real, labels: Labels | None) -> object:
    if labels is not None:
        return labels[int(report)]
    return report if np.ndim(report) else int(report)


def _array(x: Container, reports: np.ndarray, mask: np.ndarray | None, labels: Labels | None) -> np.ndarray:
    values = reports if labels is None else np.array(labels)[reports]
    if mask is not None:
        wide = np.broadcast_to(mask.reshape(-1, *[1] * (values.ndim - 1)), values.shape)
        return np.ma.array(values, mask=wide)
    return values.reshape(values.shape[1:])[()] if np.ndim(x) == 0 else values


def _arrow_array(reports: np.ndarray, mask: np.ndarray | None, labels: Labels | None) -> pa.Array:
    import pyarrow as pa

    if reports.ndim > 1:  # Sets are binary values of one length.
        binary_type, rows = pa.binary(reports.shape[1]), len(reports)
        validity = None if mask is None else pa.py_buffer(np.packbits(~mask, bitorder="little"))
        return pa.Array.from_buffers(binary_type, rows, [validity, pa.py_buffer(np.ascontiguousarray(reports))])
    codes = pa.array(reports, mask=mask)
    return codes if labels is None else pa.DictionaryArray.from_arrays(codes, pa.array(labels))


def _arrow_column(
    x: Container, reports: np.ndarray, mask: np.ndarray | None, labels: Labels | None
) -> pa.Array | pa.ChunkedArray:
    import pyarrow as pa

    array = _arrow_array(reports, mask, labels)
    return pa.chunked_array([array]) if isinstance(x, pa.ChunkedArray) else array


def _polars_column(x: pl.Series, reports: np.ndarray, mask: np.ndarray | None, labels: Labels | None) -> pl.Series:
    import polars as pl

    if reports.ndim > 1:
        rows = [bytes(row) for row in reports]
        values = rows if mask is None else [None if gone else row for row, gone in zip(rows, mask, strict=True)]
        return pl.Series(x.name, values, dtype=pl.Binary)
    codes = pl.Series(x.name, reports)
    if labels is not None:
        dtype = pl.Enum(labels) if isinstance(labels[0], str) else pl.Int64
        codes = codes.replace_strict(list(range(len(labels))), list(labels), return_dtype=dtype)
    return codes if mask is None else codes.set(pl.Series(mask), None)


def _pandas_column(x: pd.Series, reports: np.ndarray, mask: np.ndarray | None, labels: Labels | None) -> pd.Series:
    import pandas as pd

    if reports.ndim > 1:
        sets = _arrow_array(reports, mask, None)
        array = pd.array(sets, dtype=pd.ArrowDtype(sets.type))
    elif labels is not None:
        codes = reports.astype(np.int64) if mask is None else np.where(mask, -1, reports.astype(np.int64))
        array = pd.Categorical.from_codes(codes, categories=list(labels))
    elif mask is None:
        array = reports
    else:
        array = pd.arrays.IntegerArray(reports, mask)
    return x._constructor(array, index=containers.visible_index(x.index), name=x.name)
