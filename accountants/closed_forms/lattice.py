"""The profile of a privacy loss with atoms on a lattice, and its inverse, in closed form.

The loss is L = top - s step with probability mass[..., s], s = 0, 1, ...; what is not in ``mass`` never exceeds eps.
Laws may be stacked on the leading axes. Every sum here has positive terms only, so that results keep their relative
accuracy down to the smallest floats; NumPy and JAX alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpkernels.numerics import Real, RealArray, namespace
from dpkernels.solve import promote, while_loop

Excess = Callable[[Any, Any], Any]


def lattice_delta(top: Any, step: Any, mass: Any, epsilon: Any, excess: Excess | None = None) -> Any:
    """delta(eps) = E [1 - e^(eps - L)]_+.

    With the last s such that r = top - s step - eps >= 0, and B, C of ``lattice_sums``: (1 - e^-r) B(s) + C(s).

    Args:
        top: the largest loss, shape of the stack.
        step: positive, the same shape.
        mass: probabilities, that shape and one axis more.
        epsilon: broadcasts with the stack.
        excess: from (s, epsilon) to r, where top and step are rounded and r is known better.
    """
    xp = namespace(top, mass, epsilon)
    B, C = lattice_sums(mass, step)
    rest: Excess = excess or (lambda s, epsilon: top - s * step - epsilon)
    last = mass.shape[-1] - 1
    s = xp.floor(xp.clip((top - epsilon) / step, -1.0, last)).astype(int)
    # Rounding may have taken it for its neighbour.
    s = s + ((s < last) & (rest(s + 1, epsilon) >= 0))
    s = s - ((s >= 0) & (rest(s, epsilon) < 0))
    some = s >= 0
    r = xp.maximum(xp.where(some, rest(s, epsilon), 0.0), 0.0)
    return xp.where(some, -xp.expm1(-r) * _entry(B, s) + _entry(C, s), 0.0)


def lattice_epsilon(top: Any, step: Any, mass: Any, delta: Any) -> Any:
    """The least eps >= 0 at which ``lattice_delta`` is at most delta, up to rounding; shapes as there.

    With the last s such that C(s) <= delta:  eps = top - s step + ln(1 - (delta - C(s))/B(s)).
    """
    xp = namespace(top, mass, delta)
    B, C = lattice_sums(mass, step)
    s = (xp.expand_dims(delta, -1) >= C).sum(-1) - 1
    some = s < mass.shape[-1] - 1  # Else eps is below every loss.
    share = (delta - _entry(C, s)) / xp.where(some, _entry(B, s), 1.0)
    eps = top - s * step + xp.log1p(-xp.where(some, share, 0.0))
    return xp.where(some & (eps > 0), eps, 0.0)


def lattice_sums(mass: RealArray, step: Real) -> tuple[RealArray, RealArray]:
    """B(s) = sum over j <= s of mass(j) e^-((s - j) step), and C(s), the same with 1 - e^-((s - j) step).

    B by doubling, sum of x^i = (1 + x)(1 + x^2)(1 + x^4)...; and C(s + 1) = C(s) + (1 - e^-step) B(s).
    """
    xp = namespace(mass, step)
    B = decayed(mass, step)
    return B, _delayed(-xp.expm1(-xp.expand_dims(step, -1)) * xp.cumsum(B, -1), 1)


def decayed(mass: Any, step: Any) -> RealArray:
    """Sum over j <= s of mass(j) e^-((s - j) step), by doubling."""
    xp, size = namespace(mass, step), mass.shape[-1]
    step, place = xp.expand_dims(step, -1), np.arange(size)

    def double(k: Real, B: Real) -> Real:
        shift = 2**k
        return B + xp.where(place >= shift, xp.exp(-shift * step) * xp.roll(B, shift, -1), 0.0)

    doublings = (size - 1).bit_length()
    if xp is jnp:
        return jax.lax.fori_loop(0, doublings, double, mass)
    for k in range(doublings):
        mass = double(k, mass)
    return mass


def _delayed(values: RealArray, shift: int) -> RealArray:
    xp = namespace(values)
    return xp.concatenate([xp.zeros_like(values[..., :shift]), values[..., :-shift]], -1)


def _entry(values: Any, s: Any) -> Any:
    """values[..., s] with s >= 0 (0 is read below), the stack broadcast with s."""
    xp = namespace(values, s)
    s = xp.maximum(s, 0)
    shape = np.broadcast_shapes(values.shape[:-1], s.shape)
    spread = xp.broadcast_to(values, (*shape, values.shape[-1]))
    return xp.take_along_axis(spread, xp.broadcast_to(s, shape)[..., None], -1)[..., 0]


def raised(at: Callable[[Any, Any], Any], parameters: Any, epsilon: Any, delta: Any, scale: Any) -> Any:
    """eps moved up until the profile at(eps, parameters) is at most delta; the move has no derivative.

    Steps start at a few floats of eps and scale, and grow fourfold.
    """
    xp = namespace(epsilon)
    start = epsilon
    if xp is jnp:
        parameters, start, delta, scale = jax.lax.stop_gradient((parameters, epsilon, delta, scale))

    def high(state: Any) -> Real:
        return xp.any(state[2])

    def move(state: Any) -> Any:
        eps, step, above = state
        eps = xp.where(above, eps + step, eps)
        return eps, 4 * step, at(eps, parameters) > delta

    first = 4 * xp.finfo(start.dtype).eps * (start + scale)
    moved = while_loop(high, move, (start, first, at(start, parameters) > delta))[0]
    return epsilon + (moved - start) if xp is jnp else moved


@lru_cache(maxsize=64)
def log_ways(k: int) -> np.ndarray:
    """ln C(k, j) for j = 0..k, within 4e-16 (k + 4): by Stirling's formula and its error (Loader 2000)."""
    j = np.arange(k + 1.0)
    inner = j[1:-1]
    share = inner / k
    ways = np.zeros(k + 1)
    ways[1:-1] = (
        _stirling_error(np.asarray(float(k)))
        - _stirling_error(inner)
        - _stirling_error(k - inner)
        - inner * np.log(share)
        - (k - inner) * np.log1p(-share)
        - np.log(2 * np.pi * inner * (1 - share)) / 2
    )
    ways.setflags(write=False)
    return ways


# ln n! - (n + 1/2) ln n + n - ln sqrt(2 pi): its series in 1/n beyond this, and up to it by the factorial.
_SERIES_FROM = 16
_SMALL_ERRORS = np.array(
    [0.0]
    + [
        math.log(math.factorial(n)) - (n + 0.5) * math.log(n) + n - math.log(2 * math.pi) / 2
        for n in range(1, _SERIES_FROM)
    ]
)


def _stirling_error(n: np.ndarray) -> np.ndarray:
    """How far Stirling's formula is from ln n!, for whole n."""
    m = np.maximum(n, _SERIES_FROM)
    series = (1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - 1 / 1188 / m**2) / m**2) / m**2) / m**2) / m
    return np.where(n < _SERIES_FROM, _SMALL_ERRORS[np.minimum(n, _SERIES_FROM - 1).astype(int)], series)


def split(value: Any) -> tuple[Any, Any]:
    """Two parts of a number, the first of half of its digits: multiples of it by integers up to 2^20 are exact.

    The second has the derivative.
    """
    xp = namespace(value)
    fraction, exponent = xp.frexp(value if xp is np else jax.lax.stop_gradient(value))
    half = (xp.finfo(fraction.dtype).nmant + 1) // 2
    first = xp.ldexp(xp.floor(xp.ldexp(fraction, half)), exponent - half)
    return first, value - first


def numbers(*values: Any) -> Any:
    """The values as arrays of one floating type: float64 of NumPy, or JAX's if any is JAX's."""
    return promote(*(value if isinstance(value, jax.Array) else np.asarray(value, float) for value in values))
