"""Decimals: the shortest decimal that represents a float, and rounded decimals for people."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, SupportsFloat


def rational(number: float) -> Fraction:
    """Return the shortest decimal that stands for a float, as printed: 0.1 is 1/10."""
    return Fraction(repr(float(number)))


def shortest(number: SupportsFloat) -> str:
    """Return that decimal as text, 1.0000001 and not 1, so that an error shows by how much a value exceeds a bound."""
    return repr(float(number)).removesuffix(".0")


def float_at_least(number: Fraction) -> float:
    """Return the nearest float, or the next one up where its decimal is below the number."""
    nearest = float(number)
    return nearest if rational(nearest) >= number else math.nextafter(nearest, math.inf)


def float_at_most(number: Fraction) -> float:
    """Return the nearest float, or the next one down where it exceeds the number, which is positive."""
    nearest = float(number)
    return nearest if Fraction(nearest) <= number else math.nextafter(nearest, 0.0)


def format_number(value: Any, digits: int = 5) -> str:
    """Return a number with this number of digits and separators of thousands, or an array as its shape and ends."""
    if getattr(value, "ndim", 0):
        ends = f", {format_number(value.min())} to {format_number(value.max())}" if value.size else ""
        return f"array of shape {value.shape}{ends}"
    number = float(value)
    if not math.isfinite(number) or number == 0 or not 1e-4 <= abs(number) < 1e15:
        return f"{number:.{digits}g}"
    number = float(f"{number:.{digits - 1}e}")
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(number))))
    text = f"{number:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
