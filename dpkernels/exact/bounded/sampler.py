"""The base class of samplers of bounded tables: rounding of inputs to rows, and the map from codes to reports."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from dpkernels.exact.sampler import NOISE_STREAM, ROUNDING_STREAM, WIDE_NOISE_STREAM, ExactSampler, Words
from dpkernels.numerics import Real, RealArray, namespace
from dpkernels.proven import proven


class BoundedSampler(ExactSampler):
    """The sampler of a table with a row for every one of some inputs."""

    short_rounding_stream: ClassVar[int] = ROUNDING_STREAM  # Of words of 16 bits.

    @property
    def fraction_bits(self) -> int:
        return fraction_bits(self.table.last_row)

    @cached_property
    def words(self) -> tuple[Words, ...]:
        noise = Words(WIDE_NOISE_STREAM if self.table.bits == 64 else NOISE_STREAM, self.table.bits)
        is_short = self.fraction_bits <= 16
        return noise, Words(self.short_rounding_stream, 16) if is_short else Words(ROUNDING_STREAM, 32)

    @property
    def subnormal_safe_radius(self) -> float:
        """Return 2^-10 of a step of ``positions``."""
        first, last = self.table.ends
        return math.ldexp((last - first) / self.table.last_row, -self.fraction_bits - 10)

    def reports(self, x: RealArray, *words: RealArray) -> RealArray:
        noise, rounding = words
        rows = nearest_rows(x, rounding, self.table.last_row, *self.table.ends)
        return self.values(self.kernel(noise, rows), x.dtype)

    @abc.abstractmethod
    def values(self, outcomes: RealArray, dtype: np.dtype) -> RealArray:
        """Return the reports of the kernel's outcomes."""

    @cached_property
    def report_kernel(self) -> Callable[..., Any]:
        return report_kernel(self.table.middle, self.table.report_step)


def fraction_bits(last_row: int) -> int:
    """Return the bits that round between rows 0..last_row: 16, or with fewer than 256 rows enough for 30 in all."""
    return 16 if last_row >= 256 else 30 - last_row.bit_length()


@proven("row_mixtures#proof")
def nearest_rows(x: RealArray, rounding: RealArray, last_row: int, first: Real, last: Real) -> RealArray:
    """Round every input at random to one of the two adjacent rows, so that its mean is kept.

    Rows 0..last_row are evenly spaced from ``first`` to ``last``, which are numbers, or one for every input. Guarantees
    for rows hold for inputs. Neighbours d steps of ``positions`` apart go to rows at most ceil((d + 1)/2^bits) apart
    under one word; see docs/proofs/row_mixtures.md.
    """
    bits, position = fraction_bits(last_row), positions(x, last_row, first, last)
    low_bits = rounding.astype(position.dtype)
    if 8 * rounding.dtype.itemsize > bits:
        low_bits = low_bits & ((1 << bits) - 1)
    return ((position + low_bits) >> bits).astype(np.int32, copy=False)


@proven("row_mixtures#proof")
def positions(x: RealArray, last_row: int, first: Real, last: Real) -> RealArray:
    """Return the nearest of last_row 2^bits equal steps from ``first`` to ``last``, floor(2 o + 1) // 2 for position o.

    Roundings, of at most 2^40 steps, and inputs of at most ``subnormal_safe_radius`` that a processor reads as 0, move
    o by less than 2^-9. The half is added in integers: a processor that fuses a product with a sum would round
    otherwise than one that does not, and reports must be the same bits on both.
    """
    steps = last_row << fraction_bits(last_row)
    xp, integer = namespace(x), np.int32 if steps < 1 << 30 else np.int64
    doubled = (x.astype(np.float64, copy=False) - first) * (2 * steps / (last - first))
    return (xp.minimum(xp.maximum(doubled, 0.0), 2.0 * steps).astype(integer) + 1) >> 1


def report_kernel(middle: Fraction, step: Fraction) -> Callable[..., Any]:
    """Return (doubled offset, dtype) -> middle + step doubled/2, a function of the code alone, for |doubled| < 2^24.

    Half a step is a sum of two numbers of 29 bits, so that products are exact, fused or not.
    """
    centre, (coarse, fine) = float(middle), (float(numbers[0]) for numbers in split_products([step / 2], Fraction(1)))

    def reports(doubled: RealArray, dtype: np.dtype) -> RealArray:
        codes = doubled.astype(np.float64)
        return ((codes * coarse + centre) + codes * fine).astype(dtype, copy=False)

    return reports


def split_products(numbers: Sequence[Fraction], factor: Fraction) -> tuple[np.ndarray, np.ndarray]:
    """Return products with a factor as sums of two floats of 29 bits, each: the nearest one, and that of the rest."""
    products = [(number.numerator * factor.numerator, number.denominator * factor.denominator) for number in numbers]
    coarse, fine = _shortened([n / d for n, d in products]), list[float]()
    mantissas, exponents = np.frexp(coarse)
    terms = zip(products, np.ldexp(mantissas, 29).tolist(), (exponents - 29).tolist(), strict=True)
    for (n, d), m, exponent in terms:  # n/d - m 2^exponent; a quotient of integers is rounded once.
        left_shift, right_shift = max(exponent, 0), max(-exponent, 0)
        fine.append(((n << right_shift) - (int(m) * d << left_shift)) / (d << right_shift))
    return coarse, _shortened(fine)


def _shortened(numbers: Sequence[float]) -> np.ndarray:
    """Return the nearest floats of 29 bits."""
    mantissas, exponents = np.frexp(np.array(numbers, np.float64))
    return np.ldexp(np.rint(np.ldexp(mantissas, 29)), exponents - 29)
