"""Optimal composition of pure-DP mechanisms.

The worst loss of an eps0-DP mechanism is that of randomised response: +eps0 with probability 1/(1 + e^-eps0), and
otherwise -eps0. Neighbours are as in the definition of eps0.

``pure_delta`` and ``pure_epsilon`` take NumPy arrays (float64) or JAX ones (in their precision: float32 has three
digits for k = 10^4), broadcast, and are differentiable in all but k. They are rounded upwards: a delta is at most a few
parts in 10^15 times (k + k eps0) above the exact one, down to 1e-300.

The sum of k such losses is on a grid: L = top - s step with probability mass[..., s], s = 0, 1, ...; outcomes that are
not in ``mass`` never exceed eps. Leading axes stack distributions. All sums have positive terms only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpkernels import checks
from dpkernels.numerics import Real, RealArray, namespace, without_derivative
from dpkernels.pytrees import PyTree
from dpkernels.solve import promote, while_loop

MAX_MECHANISMS = 10**6  # The most mechanisms: an array of 8 MB.
# A bound on the relative error of a mass, in units in the last place a mechanism and unit of its logarithm.
_UNITS = 4


def pure_delta(epsilon0: Real, k: Real, epsilon: Real) -> RealArray:
    """Return the optimal delta at eps of k <= 10^6 eps0-DP mechanisms (Kairouz, Oh & Viswanath 2015), adaptive or not.

        delta = (1 + e^eps0)^-k sum_l C(k, l) [e^((k - l) eps0) - e^(eps + l eps0)]_+
              = E [1 - e^(eps - (k - 2 l) eps0)]_+,    l binomial of k and 1/(1 + e^eps0)

    Each value of epsilon0 costs k; eps may have any sign.
    """
    checks.within("epsilon", epsilon, -np.inf, np.inf)
    eps0, eps = numbers(epsilon0, epsilon)
    return upper_delta(eps, (eps0, np.asarray(k), pure_losses(eps0, k)))[()]


def upper_delta(eps: Real, parameters: tuple[Real, Real, tuple[Real, Real, RealArray]]) -> RealArray:
    """Return the profile at eps of (eps0, k, ``pure_losses``), an upper bound: products (k - 2 s) eps0 are exact."""
    eps0, k, (top, step, mass) = parameters
    xp = namespace(eps0, eps)
    high, low = split(eps0)

    def excess(s: Real, eps: Real) -> Real:
        number = k - 2 * s
        return (number * high - eps) + number * low

    delta = grid_delta(top, step, mass, eps, excess)
    return xp.minimum(delta * (1 + _UNITS * xp.finfo(delta.dtype).eps), 1.0)


def pure_epsilon(epsilon0: Real, k: Real, delta: Real) -> Real:
    """Return the least eps >= 0 whose ``pure_delta`` is at most delta in [0, 1); at delta = 0 it is k eps0."""
    checks.below_one("delta", delta)
    eps0, delta = numbers(epsilon0, delta)
    top, step, mass = pure_losses(eps0, k)
    eps = grid_epsilon(top, step, mass, delta)
    eps = raised(upper_delta, (eps0, np.asarray(k), (top, step, mass)), eps, delta, step)
    return namespace(eps).where(delta > 0, eps, pure_level(eps0, np.asarray(k)))[()]


def pure_level(eps0: Real, k: Real) -> RealArray:
    """Return k eps0, the level of k mechanisms, rounded up to a float."""
    xp = namespace(eps0)
    high, low = split(eps0)
    top = k * eps0
    start = without_derivative(top)
    rounded_down = (k * high - start) + k * low > 0
    return top + xp.where(rounded_down, xp.nextafter(start, xp.inf + 0 * start) - start, 0.0)


def pure_losses(eps0: RealArray, k: Real) -> tuple[RealArray, RealArray, RealArray]:
    """Return top, step and mass of the loss of k randomised responses (see the module), masses rounded upwards."""
    checks.positive("epsilon0", eps0)
    counts, log_ways_of_j = _counts(k)
    xp, j = namespace(eps0), np.arange(log_ways_of_j.shape[-1])
    counts, log_ways_of_j, j = (xp.asarray(value, eps0.dtype) for value in (counts, log_ways_of_j, j))
    level, count = eps0[..., None], counts[..., None]
    mass = xp.exp(log_ways_of_j - count * xp.log1p(xp.exp(-level)) - j * level)
    size = count + j * without_derivative(level)
    return counts * eps0, 2 * eps0, mass * (1 + _UNITS * xp.finfo(eps0.dtype).eps * (4 + size))


def _counts(k: Real) -> tuple[np.ndarray, np.ndarray]:
    k = np.asarray(k)
    counts = [checks.integer_in("k", value, 0, MAX_MECHANISMS) for value in k.ravel().tolist()]
    log_ways_of_j = np.full((len(counts), max(counts, default=0) + 1), -np.inf)
    for row, value in zip(log_ways_of_j, counts, strict=True):
        row[: value + 1] = log_ways(value)
    return k, log_ways_of_j.reshape(*k.shape, log_ways_of_j.shape[-1])


def grid_delta(
    top: Real, step: Real, mass: RealArray, epsilon: Real, excess: Callable[[Real, Real], Real]
) -> RealArray:
    """Return delta(eps) = E [1 - e^(eps - L)]_+ of stacked distributions, with which epsilon broadcasts.

    With the last s such that r = top - s step - eps >= 0, and B, C of ``grid_sums``: (1 - e^-r) B(s) + C(s). As top and
    step may be rounded, ``excess`` maps (s, epsilon) to r.
    """
    xp = namespace(top, mass, epsilon)
    B, C = grid_sums(mass, step)
    last = mass.shape[-1] - 1
    s = xp.floor(xp.clip((top - epsilon) / step, -1.0, last)).astype(int)
    # Rounding may have led to a neighbour of s.
    s = s + ((s < last) & (excess(s + 1, epsilon) >= 0))
    s = s - ((s >= 0) & (excess(s, epsilon) < 0))
    is_below_top = s >= 0
    r = xp.maximum(xp.where(is_below_top, excess(s, epsilon), 0.0), 0.0)
    return xp.where(is_below_top, -xp.expm1(-r) * _entry(B, s) + _entry(C, s), 0.0)


def grid_epsilon(top: Real, step: Real, mass: RealArray, delta: Real) -> RealArray:
    """Return the least eps >= 0 at which ``grid_delta`` is at most delta, up to rounding.

    With the last s such that C(s) <= delta:  eps = top - s step + ln(1 - (delta - C(s))/B(s)).
    """
    xp = namespace(top, mass, delta)
    B, C = grid_sums(mass, step)
    s = (xp.expand_dims(delta, -1) >= C).sum(-1) - 1
    is_above_bottom = s < mass.shape[-1] - 1  # Else eps is below every loss.
    fraction = (delta - _entry(C, s)) / xp.where(is_above_bottom, _entry(B, s), 1.0)
    eps = top - s * step + xp.log1p(-xp.where(is_above_bottom, fraction, 0.0))
    return xp.where(is_above_bottom & (eps > 0), eps, 0.0)


def grid_sums(mass: RealArray, step: Real) -> tuple[RealArray, RealArray]:
    """Return B(s) = sum over j <= s of mass(j) e^-((s - j) step), and C(s), the same with 1 - e^-((s - j) step)."""
    xp = namespace(mass, step)
    B = decayed(mass, step)
    steps = -xp.expm1(-xp.expand_dims(step, -1)) * xp.cumsum(B, -1)
    return B, xp.concatenate([xp.zeros_like(steps[..., :1]), steps[..., :-1]], -1)


def decayed(mass: RealArray, step: Real) -> RealArray:
    """Return the sum over j <= s of mass(j) e^-((s - j) step), by sum of x^i = (1 + x)(1 + x^2)(1 + x^4)..."""
    xp, size = namespace(mass, step), mass.shape[-1]
    step, position = xp.expand_dims(step, -1), np.arange(size)

    def double(k: Real, B: RealArray) -> RealArray:
        shift = 2**k
        return B + xp.where(position >= shift, xp.exp(-shift * step) * xp.roll(B, shift, -1), 0.0)

    doublings = (size - 1).bit_length()
    if xp is jnp:
        return jax.lax.fori_loop(0, doublings, double, mass)
    for k in range(doublings):
        mass = double(k, mass)
    return mass


def _entry(values: RealArray, s: RealArray) -> RealArray:
    """Return values[..., s] with the stack broadcast with s; a negative s is replaced by 0."""
    xp = namespace(values, s)
    s = xp.maximum(s, 0)
    shape = np.broadcast_shapes(values.shape[:-1], s.shape)
    spread = xp.broadcast_to(values, (*shape, values.shape[-1]))
    return xp.take_along_axis(spread, xp.broadcast_to(s, shape)[..., None], -1)[..., 0]


def raised(
    profile: Callable[[RealArray, PyTree], Real], parameters: PyTree, epsilon: RealArray, delta: Real, scale: Real
) -> RealArray:
    """Return eps moved up, in growing steps, until the profile is at most delta; the move has no derivative."""
    xp = namespace(epsilon)
    parameters, start, delta, scale = without_derivative((parameters, epsilon, delta, scale))

    def move(state: PyTree) -> PyTree:
        eps, step, is_above = state
        eps = xp.where(is_above, eps + step, eps)
        return eps, 4 * step, profile(eps, parameters) > delta

    first = 4 * xp.finfo(xp.asarray(start).dtype).eps * (start + scale)
    moved = while_loop(lambda state: xp.any(state[2]), move, (start, first, profile(start, parameters) > delta))[0]
    return epsilon + (moved - start) if xp is jnp else moved


@lru_cache(maxsize=64)
def log_ways(k: int) -> np.ndarray:
    """Return ln C(k, j) for j = 0..k, within 4e-16 (k + 4), by Stirling's formula and its error (Loader 2000)."""
    j = np.arange(k + 1.0)
    inner = j[1:-1]
    fraction = inner / k
    log_ways_of_j = np.zeros(k + 1)
    log_ways_of_j[1:-1] = _stirling_error(np.asarray(float(k))) - _stirling_error(inner) - _stirling_error(k - inner)
    log_ways_of_j[1:-1] -= (
        inner * np.log(fraction) + (k - inner) * np.log1p(-fraction) + np.log(2 * np.pi * inner * (1 - fraction)) / 2
    )
    log_ways_of_j.setflags(write=False)
    return log_ways_of_j


# ln n! - (n + 1/2) ln n + n - ln sqrt(2 pi): by its series in 1/n from here on, and by the factorial below.
_SERIES_FROM = 16
_LOG_ROOT = math.log(2 * math.pi) / 2  # log sqrt(2 pi).
_STIRLING_ERRORS = np.array(
    [0.0, *(math.log(math.factorial(n)) - (n + 0.5) * math.log(n) + n - _LOG_ROOT for n in range(1, _SERIES_FROM))]
)


def _stirling_error(n: np.ndarray) -> np.ndarray:
    """Return the error of Stirling's formula for ln n!, for integers n."""
    m = np.maximum(n, _SERIES_FROM)
    series = (1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - 1 / 1188 / m**2) / m**2) / m**2) / m**2) / m
    return np.where(n < _SERIES_FROM, _STIRLING_ERRORS[np.minimum(n, _SERIES_FROM - 1).astype(int)], series)


def split(value: Real) -> tuple[Real, Real]:
    """Return two parts of a number: multiples of the first up to 2^20 are exact; the second has the derivative."""
    xp = namespace(value)
    fraction, exponent = xp.frexp(without_derivative(value))
    half_bits = (xp.finfo(fraction.dtype).nmant + 1) // 2
    first = xp.ldexp(xp.floor(xp.ldexp(fraction, half_bits)), exponent - half_bits)
    return first, value - first


def numbers(*values: object) -> Any:
    """Return the values as arrays of one floating type: NumPy float64, or JAX's if any value is JAX's."""
    return promote(*(value if isinstance(value, jax.Array) else np.asarray(value, float) for value in values))
