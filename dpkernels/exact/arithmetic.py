"""Exact arithmetic on vectors of 64-bit weights: products and comparisons that do not fit into 64 bits."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from dpkernels.shapes import Bool, Int, UInt64

_WORD = 1 << 64  # One more than the largest word.
_HALF = np.uint64(32)  # The bits of half a word.
_LOW = np.uint64((1 << 32) - 1)  # The lower half of a word.
_MAX_SUMMANDS = 1 << 31  # Sums of so many halves of a word stay below 2^63.


def total(values: UInt64[np.ndarray, " entries"]) -> int:
    """Return the sum of words (uint64) as a Python integer."""
    if len(values) > _MAX_SUMMANDS:
        raise ValueError(f"values: are {len(values)}, more than 2^31")
    return (int((values >> _HALF).sum()) << 32) + int((values & _LOW).sum())


def product(
    values: UInt64[np.ndarray, " entries"], factor: int
) -> tuple[UInt64[np.ndarray, " entries"], UInt64[np.ndarray, " entries"]]:
    """Return the high and the low words of words times a factor below 2^64."""
    high, low = np.uint64(factor >> 32), np.uint64(factor & 0xFFFFFFFF)
    upper, lower = values >> _HALF, values & _LOW
    middle = upper * low
    carry = (lower * low >> _HALF) + (middle & _LOW)
    second = lower * high
    carry += second & _LOW
    carry >>= _HALF
    carry += middle >> _HALF
    carry += second >> _HALF
    carry += upper * high
    return carry, values * np.uint64(factor)


def high_product(values: UInt64[np.ndarray, " entries"], factor: int) -> UInt64[np.ndarray, " entries"]:
    """Return the high words of words times a factor below 2^64: floor(value factor/2^64)."""
    if factor >> 32:
        return product(values, factor)[0]
    # The sum of both halves' products is below factor 2^32, which fits into a word.
    carry = (values & _LOW) * np.uint64(factor)
    carry >>= _HALF
    high = values >> _HALF
    high *= np.uint64(factor)
    high += carry
    high >>= _HALF
    return high


def exceeds(
    first: UInt64[np.ndarray, " entries"], second: UInt64[np.ndarray, " entries"], ratio: Fraction
) -> Bool[np.ndarray, " entries"]:
    """Return whether first > ratio second for every pair of words, exactly, for a ratio of 1 or more."""
    p, q = ratio.numerator, ratio.denominator
    quotient, fraction = divmod((p << 64) // q, _WORD)
    if not 1 <= quotient < _WORD - 1:
        raise ValueError(f"ratio: {float(ratio):.6g} is not in 1..2^64")
    high, low = product(second, fraction)
    is_above = first > second * np.uint64(quotient) + high
    # The ratio is cut after 64 binary digits, so a product may be just below an integer that it reaches.
    unsure = low + second < low
    # Larger products may not fit into a word. They are at least 2^63, and hardly a first word is.
    large = second > np.uint64((_WORD - 1) // (quotient + 1))
    is_above[large] = False
    unsure = np.flatnonzero(np.where(large, first >> np.uint64(63) == 1, unsure))
    if len(unsure):
        pairs = zip(first[unsure].tolist(), second[unsure].tolist(), strict=True)
        is_above[unsure] = [q * a > p * b for a, b in pairs]
    return is_above


def rounded_up(
    mantissas: UInt64[np.ndarray, " entries"], exponents: Int[np.ndarray, " entries"], unit: int, limit: int
) -> UInt64[np.ndarray, " entries"]:
    """Return ceil(mantissa 2^exponent s / 2^unit) for the largest integer s at which the sum is at most ``limit``.

    Mantissas are words below 2^53, exponents are at most ``unit``, below 128, and s has to be below 2^75.
    """
    mass = sum(total(mantissas[exponents == e]) << int(e) for e in np.unique(exponents))
    low, high = ((limit - len(mantissas)) << unit) // mass, (limit << unit) // mass + 1
    if high >> 75:
        raise ValueError(f"mantissas: sum to {mass}, too little for a unit of 2^{unit}")
    shifts = np.uint64(unit) - exponents.astype(np.uint64)
    weights, high_weights = (_rounded_products(mantissas, shifts, s) for s in (low, high))
    indices, at_low, at_high = np.arange(len(mantissas)), weights, high_weights
    unused, excess, is_lower = limit - total(at_low), total(at_high) - limit, True
    while high - low > 1:
        # Values are monotone in s: those that are alike at both ends are alike in between.
        changed = at_low != at_high
        indices, at_low, at_high = indices[changed], at_low[changed], at_high[changed]
        # The sum rises evenly but for roundings. One step on either side of where it would be ``limit`` encloses s.
        guess, spread = low + (high - low) * unused // (unused + excess), math.isqrt(len(indices)) + 1
        step = guess + (-spread if is_lower else spread) if high - low > 8 * spread else (low + high) // 2
        step, is_lower = min(max(step, low + 1), high - 1), not is_lower
        values = _rounded_products(mantissas[indices], shifts[indices], step)
        risen = total(values) - total(at_low)
        if risen <= unused:
            low, at_low, unused = step, values, unused - risen
            weights[indices] = values
        else:
            high, at_high, excess = step, values, risen - unused
    return weights


def _rounded_products(
    mantissas: UInt64[np.ndarray, " entries"], shifts: UInt64[np.ndarray, " entries"], factor: int
) -> UInt64[np.ndarray, " entries"]:
    """Return ceil(mantissa factor / 2^shift), which must be words, for shifts below 128."""
    high, low = product(mantissas, factor % _WORD)
    high += mantissas * np.uint64(factor >> 64)
    # ceil(x / 2^n) = floor((x - 1) / 2^n) + 1 for positive x.
    high -= low == 0
    low -= np.uint64(1)
    is_long, short = shifts >= np.uint64(64), shifts % np.uint64(64)
    joined = (high << (np.uint64(63) - short) << np.uint64(1)) | (low >> short)
    rounded = np.where(is_long, high >> short, joined) + np.uint64(1)
    rounded[mantissas == 0] = 0
    return rounded


def root_up(x: Fraction) -> Fraction:
    """Return a rational at least sqrt(x), within 2^-80; exact for squares of whole numbers."""
    root = math.isqrt(x.numerator) if x.denominator == 1 else 0
    if root * root == x:
        return Fraction(root)
    return Fraction(math.isqrt((x.numerator << 160) // x.denominator) + 1, 1 << 80)
