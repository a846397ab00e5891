"""Integer kernels: inputs to rows by stochastic rounding, random words to outcomes, and codes to reports.

Constants are compiled into the kernels, because traced divisors and table sizes would be several times slower; each
table therefore has its own compiled kernel. The kernels also accept NumPy arrays, which they process without JAX; this
is faster for few values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np

from dpkernels.exact.certificate import CertificateError
from dpkernels.numerics import RealArray, namespace

OutcomeKernel = Callable[[RealArray], RealArray]


@dataclass(frozen=True, eq=False)
class AliasColumns:
    """Walker's alias table in integers: column c yields c if the word's low bits are below threshold[c].

    Attributes:
        packed: for every column its threshold and, in the last ``log_columns`` bits, its alias.
        log_columns: log2 of the number of columns.
        bits: bits of a word, and of a packed entry.
    """

    packed: np.ndarray
    log_columns: int
    bits: int

    @property
    def threshold(self) -> np.ndarray:
        """Return one integer a column, below 2^(bits - log_columns); 0 for a column that is all its own."""
        return self.packed >> self.packed.dtype.type(self.log_columns)

    @property
    def alias(self) -> np.ndarray:
        """Return the outcome from the threshold on, int32."""
        return (self.packed & self.packed.dtype.type((1 << self.log_columns) - 1)).astype(np.int32)


def take(table: np.ndarray, at: RealArray) -> RealArray:
    """Return ``table[at]`` for indices that are within it, NumPy's or JAX's."""
    if namespace(at) is np:
        return table.take(at)
    return jnp.asarray(table).at[at].get(mode="promise_in_bounds")


def alias_columns(weights: list[int], bits: int) -> AliasColumns:
    """Return exact alias columns (Walker, Vose) of weights that sum to 2^bits.

    Every column has the weight 2^bits / columns; padding outcomes have weight 0. Vose's construction in integers fills
    a light column up from a heavy one.
    """
    log_columns = (len(weights) - 1).bit_length()
    capacity = 1 << (bits - log_columns)
    left = weights + [0] * ((1 << log_columns) - len(weights))
    threshold, alias = list(left), list(range(1 << log_columns))
    light = [c for c, weight in enumerate(left) if weight < capacity]
    heavy = [c for c, weight in enumerate(left) if weight > capacity]
    while light:
        small, large = light.pop(), heavy[-1]
        threshold[small], alias[small] = left[small], large
        left[large] -= capacity - left[small]
        if left[large] <= capacity:
            heavy.pop()
            threshold[large] = left[large]
            if left[large] < capacity:
                light.append(large)
    # A full column, whose threshold has a bit too many and whose alias is itself, is as well one with threshold 0.
    packed = [below % capacity << log_columns | other for below, other in zip(threshold, alias, strict=True)]
    columns = AliasColumns(np.array(packed, f"uint{bits}"), log_columns, bits)
    _check_masses(columns, weights)
    return columns


def _check_masses(columns: AliasColumns, weights: list[int]) -> None:
    """Refuse columns that do not add up to the table's weights, so that the certified weights are sampled."""
    capacity, threshold = 1 << (columns.bits - columns.log_columns), columns.threshold.tolist()
    masses = list(threshold)
    for below, other in zip(threshold, columns.alias.tolist(), strict=True):
        masses[other] += capacity - below
    if masses != weights + [0] * (len(masses) - len(weights)):
        raise CertificateError("alias columns: do not add up to the table's weights")


def alias_kernel(columns: AliasColumns) -> OutcomeKernel:
    """Return the sampler of columns: random word -> outcome, int32.

    With the word's column bits shifted out and ones in their place, it is below the packed entry exactly where its low
    bits are below the threshold, whatever the alias.
    """
    word = columns.packed.dtype.type
    log_columns, shift = word(columns.log_columns), word(columns.bits - columns.log_columns)
    ones = word((1 << columns.log_columns) - 1)

    def outcomes(r: RealArray) -> RealArray:
        column = (r >> shift).astype(np.int32)
        entry = take(columns.packed, column)
        return namespace(r).where((r << log_columns | ones) < entry, column, (entry & ones).astype(np.int32))

    return outcomes


ReportKernel = Callable[[Any, Any], Any]


def fraction_bits(shifts: int) -> int:
    """Return bits that round an input between rows 0..shifts: 16, or with fewer than 256 rows enough for 30 in all."""
    return 16 if shifts >= 256 else 30 - shifts.bit_length()


def nearest_rows(x: RealArray, rounding: RealArray, shifts: int, first: float, last: float) -> RealArray:
    """Round every input at random to one of the two adjacent rows, so that its mean is kept.

    Rows 0..shifts are evenly spaced from ``first`` to ``last``. Guarantees for rows hold for inputs. Neighbours d
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
    """Return the nearest of shifts 2^bits equal steps from ``first`` to ``last``, floor(2 o + 1) // 2 for position o.

    Roundings, of at most 2^40 steps, and inputs of at most ``negligible`` that a processor reads as 0, move o by less
    than 2^-9. The half is added in integers: a processor that fuses a product with a sum
    would round otherwise than one that does not, and reports must be the same bits on both.
    """
    steps = shifts << fraction_bits(shifts)
    xp, integer = namespace(x), np.int32 if steps < 1 << 30 else np.int64
    doubled = (x.astype(np.float64, copy=False) - first) * (2 * steps / (last - first))
    return (xp.minimum(xp.maximum(doubled, 0.0), 2.0 * steps).astype(integer) + 1) >> 1


def negligible(shifts: int, first: float, last: float) -> float:
    """Return inputs so near to 0 may be read as 0: 2^-10 of a step of ``positions``."""
    return math.ldexp((last - first) / shifts, -fraction_bits(shifts) - 10)


def report_kernel(middle: Fraction, step: Fraction) -> ReportKernel:
    """Return (doubled, dtype) -> middle + step doubled/2, a function of the code alone, for |doubled| below 2^24.

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
    """Return the nearest float of 29 bits."""
    mantissa, exponent = math.frexp(float(number))
    return math.ldexp(round(math.ldexp(mantissa, 29)), exponent - 29)
