"""Columns of dates: from cells to days since an origin.

Only the day of a date counts, as the file shows it: a time of day is dropped, and a time zone is ignored. A Parquet
timestamp with a zone is converted to this zone. Text is ISO 8601, ``YYYY-MM-DD`` with or without a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpkernels.cli.files import buffers
from dpkernels.cli.files.layout import MISSING_TEXTS

_DAY = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9](:([0-5][0-9]|60)([.,][0-9]+)?)?"
_ZONE = r" ?(Z|UTC|[+-][0-9]{2}(:?[0-9]{2})?)"
_TEXT = rf"\A{_DAY}([T ]{_TIME}({_ZONE})?)?\z"
_MIDNIGHT = rf"\A.{{10}}([T ]00:00(:00([.,]0+)?)?({_ZONE})?)?\z"
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # in a second
_DAY_SECONDS = 86400  # seconds of a day
_EPOCH = date(1970, 1, 1)


@dataclass(frozen=True)
class Dates:
    """Cells of a column of dates."""

    days: np.ndarray  # since the origin, as float64; arbitrary where there is no date
    missing: np.ndarray  # a mask
    is_invalid: np.ndarray  # a mask of cells that are neither missing nor a date
    has_time: np.ndarray  # a mask of cells with a time of day other than midnight


def parse_dates(cells: pa.Array, origin: date, markers: Sequence[str] = ()) -> Dates:
    """Return the days of cells since an origin; ValueError if their type is none of dates or texts.

    ``markers`` are further texts of cells without a value, besides ``MISSING_TEXTS``.
    """
    if pa.types.is_dictionary(cells.type):
        cells = cells.cast(cells.type.value_type)
    if pa.types.is_timestamp(cells.type) or pa.types.is_date(cells.type):
        days, missing, is_invalid, has_time = _parse_times(cells)
    elif pa.types.is_binary(cells.type) and not cells.null_count:  # of a text file
        days, missing, is_invalid, has_time = _parse_texts(buffers.as_text(cells), markers)
    elif pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type) or pa.types.is_string_view(cells.type):
        days, missing, is_invalid, has_time = _parse_texts(cells.cast(pa.string()), markers)
    else:
        raise ValueError(f"holds {cells.type}; dates are date32, date64, timestamps, or texts such as 2020-02-29")
    return Dates((days - (origin - _EPOCH).days).astype(np.float64), missing, is_invalid, has_time)


def _parse_times(cells: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    missing, data_type = buffers.truths(pc.is_null(cells)), cells.type
    if pa.types.is_timestamp(data_type) and data_type.tz is not None:
        cells = pc.local_timestamp(cells)
    unit = "ms" if pa.types.is_date64(data_type) else None if pa.types.is_date(data_type) else data_type.unit
    numbers = buffers.numbers(cells.cast(pa.int32() if unit is None else pa.int64())).astype(np.int64)
    days, remainder = np.divmod(numbers, 1 if unit is None else _DAY_SECONDS * _UNITS[unit])
    return days, missing, np.zeros(len(cells), bool), (remainder != 0) & ~missing


def _parse_texts(cells: pa.Array, markers: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    texts = pc.ascii_trim_whitespace(cells)
    empty = pc.is_in(texts, value_set=pa.array([*MISSING_TEXTS, *markers], pa.string()))
    missing = buffers.truths(pc.or_(pc.is_null(texts), empty))
    has_form = ~missing & buffers.truths(pc.fill_null(pc.match_substring_regex(texts, _TEXT), False))
    filled = pc.if_else(buffers.array(has_form), texts, "1970-01-01")
    begins = buffers.offsets(filled)[:-1] - buffers.offsets(filled)[:1]
    characters = np.frombuffer(buffers.text(filled), np.uint8)[begins[:, None] + np.arange(10)].astype(np.int64)
    digits = characters - ord("0")
    year, month, day = digits[:, :4] @ [1000, 100, 10, 1], digits[:, 5:7] @ [10, 1], digits[:, 8:] @ [10, 1]
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    first, after = (number.astype("datetime64[D]").astype(np.int64) for number in (months, months + 1))
    is_date = has_form & (year > 0) & (first + day <= after)
    has_time = is_date & ~buffers.truths(pc.match_substring_regex(filled, _MIDNIGHT))
    return first + day - 1, missing, ~missing & ~is_date, has_time
