"""Conversion of floats to the shortest decimals that print them."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import SupportsFloat


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
