"""From inputs to rows of a table by stochastic rounding, and from codes to reports; shared by window and row tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from dpkernels.numerics import RealArray, namespace

ReportKernel = Callable[[Any, Any], Any]


def fraction_bits(shifts: int) -> int:
    """Bits that round an input between rows 0..shifts: 16, or with fewer than 256 rows enough for 30 in all."""
    return 16 if shifts >= 256 else 30 - shifts.bit_length()


def nearest_rows(x: RealArray, rounding: RealArray, shifts: int, first: float, last: float) -> RealArray:
    """Round inputs to one of the two rows around them, with random bits of their own.

    Rows 0..shifts are evenly spaced from ``first`` to ``last``. What holds for rows holds for inputs. Neighbours d
    steps of ``positions`` apart go to rows at most ceil((d + 1)/2^bits) apart under one word; see
    docs/proofs/row_mixtures.md.
    """
    bits = fraction_bits(shifts)
    position = positions(x, shifts, first, last)
    low_bits = rounding.astype(position.dtype)
    if 8 * rounding.dtype.itemsize > bits:
        low_bits = low_bits & ((1 << bits) - 1)
    return ((position + low_bits) >> bits).astype(np.int32, copy=False)


def positions(x: RealArray, shifts: int, first: float, last: float) -> RealArray:
    """The nearest of shifts 2^bits equal steps from ``first`` to ``last``: floor(2 o + 1) // 2, o the float position.

    Roundings, of at most 2^40 steps, and inputs of at most ``negligible`` that a processor reads as 0, move o by less
    than 2^-9. The half is added in integers: a processor that fuses a product with a sum
    would round otherwise than one that does not, and reports must be the same bits on both.
    """
    steps = shifts << fraction_bits(shifts)
    xp, integer = namespace(x), np.int32 if steps < 1 << 30 else np.int64
    doubled = (x.astype(np.float64, copy=False) - first) * (2 * steps / (last - first))
    return (xp.minimum(xp.maximum(doubled, 0.0), 2.0 * steps).astype(integer) + 1) >> 1


def negligible(shifts: int, first: float, last: float) -> float:
    """Inputs so near to 0 may be read as 0: 2^-10 of a step of ``positions``."""
    return math.ldexp((last - first) / shifts, -fraction_bits(shifts) - 10)


def report_kernel(middle: Fraction, step: Fraction) -> ReportKernel:
    """(doubled, dtype) -> middle + step doubled/2, a function of the code alone, for |doubled| below 2^24.

    Half the step is a sum of two numbers of 29 bits. Their products are exact, so it does not matter whether a
    processor fuses them with the sums.
    """
    half, centre = step / 2, float(middle)
    coarse = _short(half)
    fine = _short(half - Fraction(coarse))

    def reports(doubled: RealArray, dtype: Any) -> Any:
        codes = doubled.astype(np.float64)
        return ((codes * coarse + centre) + codes * fine).astype(dtype, copy=False)

    return reports


def _short(number: Fraction) -> float:
    """The nearest float of 29 bits."""
    mantissa, exponent = math.frexp(float(number))
    return math.ldexp(round(math.ldexp(mantissa, 29)), exponent - 29)
