"""Dates as numbers: days since an origin."""

from __future__ import annotations

import math
from datetime import date


def parse_date(text: str) -> date:
    """Return the date of a text ``YYYY-MM-DD``; ValueError for any other."""
    day = date.fromisoformat(text)
    if day.isoformat() != text:  # Python reads other forms, too.
        raise ValueError(f"{text!r} is no date such as 2020-02-29")
    return day


def days_since(day: date, origin: date) -> float:
    """Return the days from an origin to a day."""
    return float((day - origin).days)


def iso_date(days: float, origin: date) -> str | None:
    """Return the date of the nearest day in ISO 8601; None outside the years 1 to 9999, which have no such text."""
    ordinal = origin.toordinal() + math.floor(days + 0.5)
    return date.fromordinal(ordinal).isoformat() if 1 <= ordinal <= date.max.toordinal() else None


def date_text(days: float, origin: date) -> str:
    """Return the date of the nearest day, or the days since the origin where there is no text for a date."""
    return iso_date(days, origin) or f"{days:.15g} days since {origin.isoformat()}"


_MAX_TICKS = 8  # of an axis of years
_YEARS_FOR_DAYS = 4  # an axis of fewer years has days as ticks


def date_ticks(lower: float, upper: float, origin: date) -> list[tuple[float, str]]:
    """Return a few places of an axis of days with their texts: first days of years, or days of a shorter time.

    Without dates for both ends there are none.
    """
    first, last = math.ceil(lower), math.floor(upper)
    ends = [iso_date(day, origin) for day in (first, last)]
    if None in ends:
        return []
    first_year, last_year = (date.fromisoformat(str(end)).year for end in ends)
    if last_year - first_year < _YEARS_FOR_DAYS:
        days = range(first, last + 1, max(1, math.ceil((upper - lower) / 4)))  # Their texts are long.
        return [(float(day), date_text(day, origin)) for day in days]
    steps = (digit * 10**power for power in range(4) for digit in (1, 2, 5))
    step = next(step for step in steps if step * _MAX_TICKS >= last_year - first_year)
    years = range(-(-(first_year + 1) // step) * step, last_year + 1, step)
    return [(days_since(date(year, 1, 1), origin), f"{year:04}") for year in years]


def is_date_text(value: object) -> bool:
    """Return whether a value of JSON is the text of a date."""
    try:
        return type(value) is str and parse_date(value) is not None
    except ValueError:
        return False
