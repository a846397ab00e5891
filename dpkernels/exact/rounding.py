"""From inputs to rows of a table by stochastic rounding, and from codes to reports; shared by window and row tables."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import jax.numpy as jnp
from jax import Array


def fraction_bits(shifts: int) -> int:
    """Bits that round an input between rows 0..shifts: 16, or with fewer than 256 rows enough for 30 in all."""
    return 16 if shifts >= 256 else 30 - shifts.bit_length()


def nearest_rows(x: Array, rounding: Array, shifts: int, first: float, last: float) -> Array:
    """Round inputs to one of the two rows around them, with random bits of their own.

    Rows 0..shifts are evenly spaced from ``first`` to ``last``. An input is first put on the nearest of
    shifts 2^bits equal steps. Neither this nor the float arithmetic touches a guarantee for any two rows: any mixture
    of rows has it. Where neighbouring inputs are d steps apart, they are put on steps at most ceil(d + 2^-9) apart: the
    float position has three roundings of 2^-53 relatively, of at most 2^40 steps; under one word they then go to
    rows at most ceil(ceil(d + 2^-9)/2^bits) apart, since floor((i + r)/2^bits) moves by no more.
    """
    bits = fraction_bits(shifts)
    steps = shifts << bits
    integer = jnp.int32 if steps < 1 << 30 else jnp.int64
    offset = (x.astype(jnp.float64) - first) * (steps / (last - first))
    position = jnp.clip(offset + 0.5, 0.0, float(steps)).astype(integer)
    low_bits = rounding.astype(integer) & ((1 << bits) - 1)
    return ((position + low_bits) >> bits).astype(jnp.int32)


def reports_at(doubled: Array, middle: Fraction, step: Fraction, dtype: Any) -> Array:
    """middle + step doubled/2, a function of the code alone."""
    value = float(middle) + float(step / 2) * doubled.astype(jnp.float64)
    return value.astype(dtype)
