"""Types, guarded functions and special functions that keep formulas close to the papers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar, overload

import numpy as np

from dpkernels.jax_on_use import Array, custom_jvp, jax, jnp
from dpkernels.pytrees import tree_leaves

T = TypeVar("T")
# A number or an array of them: Python's, NumPy's or JAX's, traced ones too. Formulas take and return the caller's kind;
# what asks for a shape, a type or an element takes arrays only. NumPy's numbers count as arrays of no dimension.
RealArray = np.ndarray | Array
Real = float | RealArray
# What a comparison of real numbers gives: a truth value, or an array of them.
Boolean = bool | np.bool_ | RealArray

UNIT_ROUNDOFF = 2.0**-53  # The relative error of rounding to float64.
MAX_EXPONENT = 700.0  # e^x overflows float64 from 709.8 on.


def gauss_legendre(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of Gauss-Legendre quadrature on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return (nodes + 1) / 2, weights / 2


GAUSS_LEGENDRE = gauss_legendre(16)


def namespace(*values: object) -> ModuleType:
    """Return jax.numpy if any value is a JAX array or tracer, else numpy, which evaluates in float64."""
    for value in values:  # A loop takes half the time of any().
        if type(value) not in _HOST_TYPES and isinstance(value, Array):
            return jax.numpy  # which is no stand-in
    return np


def choose(condition: Boolean, value: Real, alternative: Real) -> Real:
    """Return ``where`` of a single condition, without its overhead for plain numbers."""
    if namespace(condition) is np:
        return value if condition else alternative
    return jnp.where(condition, value, alternative)


# Types that are no JAX array: asking by type takes a tenth of the time.
_HOST_TYPES = frozenset({bool, int, float, type(None), np.ndarray, np.float64, np.float32, np.int64, np.bool_})


def math_namespace(*values: object) -> ModuleType | SimpleNamespace:
    """Return jax.numpy if any value is a JAX array or tracer, else the functions of math, for NumPy's arrays too."""
    if namespace(*values) is jnp:
        return jnp
    return _MATH_OF_ARRAYS if any(isinstance(value, np.ndarray) for value in values) else math


# An entry of an array has the bits that the same number by itself has.
_MATH_OF_ARRAYS = SimpleNamespace(**{name: np.vectorize(getattr(math, name), [float]) for name in ("exp", "expm1")})


def squared(value: Real) -> Real:
    """Return value^2; of an array's entry with the bits of Python's power, which is not always the nearest float.

    C libraries err by at most 0.54 units in the last place. So where the product is rounded by less than 0.45 units,
    its nearest float is that of the power.
    """
    if not isinstance(value, np.ndarray):
        return value**2
    if not value.ndim or value.dtype != np.float64:
        return _POWER(value, 2.0)
    with np.errstate(all="ignore"):
        square = value * value
        shifted = _SPLITTER * value
        high = shifted - (shifted - value)
        low = value - high
        rounding = ((high * high - square) + 2 * high * low) + low * low  # Exact, but for tiny and huge numbers.
        # The unit in the last place of the next float below, by the exponent's bits.
        unit = ((square.view(np.int64) - 1 & _EXPONENT_BITS) - _52_IN_EXPONENT).view(np.float64)
        is_clear = (np.abs(rounding) < _CLEAR_UNITS * unit) & (square > _TINY_SQUARE) & (square < _HUGE_SQUARE)
    if not is_clear.all():
        square[~is_clear] = _POWER(value[~is_clear], 2.0)
    return square


_POWER = np.vectorize(math.pow, [float])
_EXPONENT_BITS, _52_IN_EXPONENT = 0x7FF << 52, 52 << 52  # Of a float64.
_SPLITTER = 2.0**27 + 1  # Splits a float into two halves, whose products are exact.
_CLEAR_UNITS = 0.45  # The largest rounding of a product, in units in the last place, for which a power has its float.
_TINY_SQUARE, _HUGE_SQUARE = 1e-250, 1e280


@overload
def floating(value: Array) -> Array: ...


@overload
def floating(value: Real) -> RealArray: ...


def floating(value: Real) -> RealArray:
    """Return the value as a float array: NumPy values become float64, JAX values keep float32 or float64."""
    if isinstance(value, Array):
        return value if value.dtype in (jnp.float32, jnp.float64) else value.astype(jnp.float32)
    array = np.asarray(value)
    return array if np.issubdtype(array.dtype, np.floating) else array.astype(np.float64)


def number_like(value: float, *others: object) -> Real:
    """Return a plain number in the type of the JAX arrays among the others; float64 of NumPy if there are none."""
    types = [other.dtype for other in others if isinstance(other, Array)]
    return jnp.asarray(value, jnp.result_type(*types)) if types else np.float64(value)


def cast_like(table: RealArray, value: Any) -> Any:
    """Cast a constant to the kind and type of ``value``.

    JAX keeps one type for an array of NumPy that programs of both precisions hold, so each program has its own.
    """
    xp = namespace(value, table)
    return xp.asarray(table.astype(value.dtype, copy=xp is jnp))


def without_derivative(values: T) -> T:
    """Return the same pytree of numbers as constants, which JAX does not differentiate."""
    return jax.lax.stop_gradient(values) if namespace(*tree_leaves(values)) is jnp else values


def map_over(function: Callable[[RealArray], Real], values: RealArray) -> RealArray:
    """Return the function of every entry along the first axis, stacked."""
    if namespace(values) is jnp:
        return jax.lax.map(function, values)
    return np.stack([function(value) for value in values]) if len(values) else np.zeros(np.shape(values))


def elementwise_maximum(values: Sequence[Real]) -> Any:
    """Return the largest of several values, elementwise, with the derivative of the first one that is as large.

    JAX compares values with their maximum in its derivative of ``max``. A program may compute them once more with other
    rounding errors, and the derivative is then 0.
    """
    xp = namespace(*values)
    if xp is np:
        return np.max(np.stack(values), axis=0)
    return reduce(lambda largest, value: jnp.where((value > largest) | jnp.isnan(value), value, largest), values)


def power_of_two(exponent: Any) -> Real:
    """Return 2^exponent exactly, of a Python integer or of int64 from -1022 to 1023."""
    return 2.0**exponent if isinstance(exponent, int) else ((exponent + 1023) << 52).view(np.float64)


def sums_by_index(size: int, index: RealArray, *rows: RealArray) -> list[RealArray]:
    """Return the sums of each row by index: entry i sums the values whose index is i."""
    if namespace(index, *rows) is jnp:
        values = jnp.stack(rows, -1)
        return list(jnp.zeros((size, len(rows)), values.dtype).at[index].add(values).T)
    return [np.bincount(index, row, size) for row in rows]


def zero_at_infinity(function: Callable[[Real], Real], z: Real) -> Real:
    """Return ``function(z)``, and 0 where z is infinite, with gradients that do not see the infinity."""
    ordinary = namespace(z).isfinite(z)
    value = function(namespace(z).where(ordinary, z, 0.0))
    return namespace(z, value).where(ordinary, value, 0.0)


def ndtr(z: Real) -> RealArray:
    """Return the standard normal cdf, accurate in the lower tail."""
    return special_functions(z).ndtr(z)


def ndtri(u: Any) -> Real:
    """Return the inverse of ``ndtr``; in JAX's float32 within 5 units in the last place, and exactly odd about 1/2."""
    if namespace(u) is jnp and u.dtype == jnp.float32:
        return _ndtri_float32(u)
    return special_functions(u).ndtri(u)


# From the highest power down: of w - 3 for w < 6.5, of 1/sqrt(w) - 1/4 beyond; relative minimax fits up to w = 88,
# by iteratively reweighted least squares, of error 5.5e-9 and 2.8e-8.
_NDTRI_CENTRAL, _NDTRI_TAIL = np.array(
    [
        (1.8092641e-09, 17913.098),
        (-1.5360175e-08, -3385.4048),
        (-5.2544447e-08, -2222.4553),
        (1.2661782e-06, 98.74213),
        (-5.019237e-06, 102.00639),
        (-3.59338e-05, 17.36556),
        (0.00055189873, -1.5998924),
        (-0.0023651342, 1.5976963),
        (-0.016230064, 0.22803178),
        (0.683434, -0.56055754),
        (4.59207, 2.7151372),
    ],
    np.float32,
).T


# The derivative is 1/phi(z).
@custom_jvp(lambda du, z, _: du * math.sqrt(2 * math.pi) * jnp.exp(z**2 / 2))
def _ndtri_float32(u: Real) -> Real:
    """Return (u - 1/2) h with h a polynomial in w = -log(4 u (1 - u)), far out sqrt(w) times one in 1/sqrt(w)."""
    # As Giles 2010, "Approximating the erfinv function"; w of u, not of 2 u - 1, keeps its digits in the lower tail.
    w = -jnp.log(4 * u * (1 - u))
    root, central = jnp.sqrt(w), w < 6.5
    t = jnp.where(central, w - 3, 1 / root - 0.25)
    h = jnp.zeros_like(u)
    for central_term, tail_term in zip(_NDTRI_CENTRAL, _NDTRI_TAIL, strict=True):
        h = h * t + jnp.where(central, central_term, tail_term)
    return (u - 0.5) * jnp.where(central, h, root * h)


# Minimax polynomials in the square of the argument, from the constant term up, by Remez' algorithm. Of float32 and
# float64 their relative errors are 3e-11 and 4e-19 for the sine, 2e-9 and 3e-17 for the arcsine.
_SINE = {
    "float32": (-0.6459640966152797, 0.07969261014274834, -0.004681672664016227, 0.00016026936286455206, -3.43705e-06),
    "float64": (
        *(-0.6459640975062462, 0.07969262624616634, -0.00468175413530885, 0.0001604411847284925),
        *(-3.5988430492691816e-06, 5.6921394734476955e-08, -6.684587149979295e-10, 5.876893572491463e-12),
    ),
}
_ARCSINE = {
    "float32": (0.10610324544, 0.04775222351, 0.02827264419, 0.02089509065, 0.00660932308, 0.02757482559),
    "float64": (
        *(0.10610329539459767, 0.04774648292690323, 0.02842052564709287, 0.01934174102738408, 0.0142427316009224),
        *(0.01104382098144552, 0.00893123457655396, 0.00700958555825497, 0.00820426981489999, -0.00249932753452796),
        *(0.02508396621597305, -0.02849142307257419, 0.02971819775529904),
    ),
}


def _polynomial(coefficients: dict[str, tuple[float, ...]], z: RealArray) -> RealArray:
    *lower, total = (z.dtype.type(value) for value in coefficients[z.dtype.name])
    for value in reversed(lower):
        total = value + z * total
    return total


def sin_pi(z: Real) -> RealArray:
    """Return sin(pi z) for z in [-1/2, 1], faster than XLA's sine on CPUs, which serves every angle."""
    return np.sin(np.pi * z) if namespace(z) is np else _sin_pi(floating(z))


def _sin_pi_slope(dz: Array, _: Array, z: Array) -> Array:
    """Return dz pi cos(pi z)."""
    return dz * (math.pi * _sin_pi(0.5 - z))


@custom_jvp(_sin_pi_slope)
def _sin_pi(z: Array) -> Array:
    t = 2 * jnp.minimum(z, 1 - z)
    return jnp.minimum(t + t * (math.pi / 2 - 1 + t * t * _polynomial(_SINE, t * t)), 1.0)


def arcsine_cdf(w: Real) -> RealArray:
    """Return 2/pi arcsin(sqrt(w)) for w in [0, 1], faster than XLA's arcsine, which is not vectorised on CPUs."""
    if namespace(w) is np:
        return 2 / np.pi * np.arcsin(root_or_zero(w))
    return _arcsine_cdf(floating(w))


def _arcsine_slope(dw: Array, _: Array, w: Array) -> Array:
    """Return dw / (pi sqrt(w (1 - w))), and 0 at the ends, where it is infinite."""
    slope = math.pi * root_or_zero(w * (1 - w))
    return jnp.where(slope > 0, dw / jnp.where(slope > 0, slope, 1.0), 0.0)


@custom_jvp(_arcsine_slope)
def _arcsine_cdf(w: Array) -> Array:
    """Return the series of s = sqrt(w), near 1/2 as 1/2 - arcsin(1 - 2 w)/pi, above it by symmetry."""
    smaller = jnp.minimum(w, 1 - w)
    is_small = smaller < 0.3
    s = jnp.where(is_small, jnp.sqrt(smaller), 1 - 2 * smaller)
    z = jnp.where(is_small, smaller, s * s)
    t = s + s * (2 / math.pi - 1 + z * _polynomial(_ARCSINE, z))
    t = jnp.where(is_small, t, 0.5 - t / 2)
    return jnp.where(w < 0.5, t, 1 - t)


def half_precision(x: RealArray) -> RealArray:
    """Return floats rounded to half the digits of their type."""
    bits = namespace(x).finfo(x.dtype).nmant
    if namespace(x) is jnp:
        return jax.lax.reduce_precision(x, jnp.finfo(x.dtype).nexp, bits // 2)
    scaled = x * x.dtype.type(2.0 ** (bits - bits // 2) + 1)
    return scaled - (scaled - x)


def special_functions(value: Real) -> ModuleType:
    """Return the module of special functions for the kind of a value: SciPy's or JAX's."""
    # SciPy is imported on first use, since the import is slow and only distributions need it.
    return jax.scipy.special if namespace(value) is jnp else import_module("scipy.special")


def log1p_over(rate: Real, q: Real) -> Real:
    """Return log(1 + rate q) / rate for rate q >= 0, and its limit q at rate 0."""
    xp = namespace(rate, q)
    bent = rate * q > 1e-4
    y = xp.where(bent, 0.0, rate * q)
    series = q * (1 - y * (1 / 2 - y * (1 / 3 - y / 4)))
    return xp.where(bent, xp.log1p(rate * q) / xp.where(bent, rate, 1.0), series)


_UNDERFLOW_EXPONENT = 750.0  # exp of minus this, and of anything larger, is 0 as a float.


def exponential_moment(power: int, start: Real, rate: Real, width: Real) -> Real:
    """Return the integral of (start + s)^power exp(-rate s) over [0, width]; the rate may be 0, the width infinite."""
    xp = namespace(rate, width)
    with np.errstate(over="ignore", invalid="ignore"):
        product = rate * width
    endless = xp.isinf(width) | (product > _UNDERFLOW_EXPONENT)
    if power == 0:
        finite = xp.where(endless, 1.0, width)
        y = rate * finite
        flat = (y < 1e-8) & ~endless
        decay = xp.where(endless, 1.0, -xp.expm1(-y))
        return xp.where(flat, finite * (1 - y / 2), decay / xp.where(flat, 1.0, rate))
    # Where rate * width is small the closed forms cancel; there Gauss-Legendre is exact to the last digits.
    is_small = product < 1.0
    r, w = xp.where(is_small, 1.0, rate), xp.where(is_small | endless, 1.0, width)
    decay = xp.where(endless, 0.0, xp.exp(-r * w))
    closed = ((1 - decay) / r, (1 - (1 + r * w) * decay) / r**2, (2 - (2 + 2 * r * w + (r * w) ** 2) * decay) / r**3)
    short = xp.where(is_small, width, 1.0)
    nodes, weights = (cast_like(array, short) for array in GAUSS_LEGENDRE)
    short, slow = xp.expand_dims(short, -1), xp.expand_dims(xp.where(is_small, rate, 0.0), -1)
    s = short * nodes
    weight = short * weights * xp.exp(-slow * s)
    series = (weight.sum(-1), (weight * s).sum(-1), (weight * s**2).sum(-1))
    m0, m1, m2 = (
        xp.where(is_small, series_value, closed_value)
        for series_value, closed_value in zip(series, closed, strict=True)
    )
    return start * m0 + m1 if power == 1 else start**2 * m0 + 2 * start * m1 + m2


def float_if_scalar(value: Real) -> Real:
    """Return a float for a NumPy number, anything else as it is."""
    return float(value) if namespace(value) is np and np.ndim(value) == 0 else value


def root_or_zero(value: Real) -> RealArray:
    """Return sqrt(max(value, 0)) with a finite gradient at 0: the double where."""
    xp = namespace(value)
    positive = value > 0
    return xp.where(positive, xp.sqrt(xp.where(positive, value, 1.0)), 0.0)


def unless_nan(value: Real, *others: Real) -> Real:
    """Return the value, with NaN where any other argument is NaN, since comparisons with NaN are False."""
    total = sum(others)
    return namespace(value, total).where(total != total, np.nan, value)


def log_or_minus_inf(probability: Real) -> Real:
    """Return the log of what is above 0, and -inf of 0, with a finite gradient there."""
    xp = namespace(probability)
    possible = probability > 0
    return xp.where(possible, xp.log(xp.where(possible, probability, 1.0)), -xp.inf)


def convolution(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the convolution of two real vectors by FFT, as ``scipy.signal.fftconvolve``, whose import takes 0.5 s."""
    from scipy import fft

    size = len(a) + len(b) - 1
    n = fft.next_fast_len(size, real=True)
    return fft.irfft(fft.rfft(a, n) * fft.rfft(b, n), n)[:size]
