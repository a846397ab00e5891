"""Dates as numbers: days since an origin."""

from __future__ import annotations

import math
from datetime import date
from typing import Any


def parse_date(text: str) -> date:
    """Return the date of a text ``YYYY-MM-DD``; ValueError for any other."""
    day = date.fromisoformat(text)
    if day.isoformat() != text:  # Python reads other forms, too.
        raise ValueError(f"{text!r} is no date such as 2020-02-29")
    return day


def days_since(day: date, origin: date) -> float:
    """Return the days from an origin to a day."""
    return float((day - origin).days)


def date_of(days: float, origin: date) -> str | None:
    """Return the date of the nearest day in ISO 8601; None outside the years 1 to 9999, which have no such text."""
    ordinal = origin.toordinal() + math.floor(days + 0.5)
    return date.fromordinal(ordinal).isoformat() if 1 <= ordinal <= date.max.toordinal() else None


def date_text(days: float, origin: date) -> str:
    """Return the date of the nearest day, or the days since the origin where there is no text for a date."""
    return date_of(days, origin) or f"{days:.15g} days since {origin.isoformat()}"


def is_date_text(value: Any) -> bool:
    """Return whether a value of JSON is the text of a date."""
    try:
        return type(value) is str and parse_date(value) is not None
    except ValueError:
        return False
