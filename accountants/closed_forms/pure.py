"""Optimal composition of pure-DP mechanisms.

The worst loss of an eps0-DP mechanism is that of randomised response: +eps0 with probability 1/(1 + e^-eps0), else
-eps0. Neighbours are those for which the mechanisms' eps0 holds.

``pure_delta`` and ``pure_epsilon`` take NumPy arrays (float64) or JAX ones (in their precision: float32 has three
digits for k = 10^4), broadcast, and are differentiable in all but k. They are rounded upwards: a delta is at most a few
parts in 10^15 times (k + k eps0) above the exact one, down to 1e-300.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accountants.closed_forms.lattice import lattice_delta, lattice_epsilon, log_ways, numbers, raised, split
from dpkernels import checks
from dpkernels.numerics import Real, RealArray, namespace

# The most mechanisms, and the most values of a sum that are enumerated exactly: arrays of 8 MB.
MOST = 10**6
MOST_VALUES = 1 << 20
# Units in the last place that a mass may be off by, relatively, for each mechanism and each unit of its logarithm.
_UNITS = 4


def pure_delta(epsilon0: Any, k: Real, epsilon: Any) -> Any:
    """The optimal delta at eps of k eps0-DP mechanisms (Kairouz, Oh & Viswanath 2015), adaptive or not.

        delta = (1 + e^eps0)^-k sum_l C(k, l) [e^((k - l) eps0) - e^(eps + l eps0)]_+
              = E [1 - e^(eps - (k - 2 l) eps0)]_+,    l binomial of k and 1/(1 + e^eps0)

    Args:
        epsilon0: positive, any shape.
        k: whole numbers, 0 to 10^6, any shape; with epsilon0 of many values it costs k for each.
        epsilon: eps, any sign, any shape.

    Raises:
        TypeError: k is not whole.
        ValueError: epsilon0 not positive; k not in 0..10^6; epsilon NaN.
    """
    checks.within("epsilon", epsilon, -np.inf, np.inf)
    eps0, eps = numbers(epsilon0, epsilon)
    return upper_delta(eps, (eps0, np.asarray(k), pure_losses(eps0, k)))[()]


def upper_delta(eps: Any, parameters: tuple[Any, Any, tuple[Any, Any, Any]]) -> Any:
    """The profile at eps of (eps0, k, ``pure_losses``), an upper bound.

    Masses are rounded upwards, and products (k - 2 s) eps0 are exact.
    """
    eps0, k, (top, step, mass) = parameters
    xp = namespace(eps0, eps)
    high, low = split(eps0)

    def excess(s: Any, eps: Any) -> Any:
        number = k - 2 * s
        return (number * high - eps) + number * low

    delta = lattice_delta(top, step, mass, eps, excess)
    return xp.minimum(delta * (1 + _UNITS * xp.finfo(delta.dtype).eps), 1.0)


def pure_epsilon(epsilon0: Real, k: Real, delta: Real) -> Real:
    """The least eps >= 0 at delta of k eps0-DP mechanisms: the inverse of ``pure_delta``, in closed form.

    From the safe side: ``pure_delta`` at what is returned is at most delta. At delta = 0 it is k eps0.

    Args:
        epsilon0: positive, any shape.
        k: whole numbers, 0 to 10^6, any shape.
        delta: in [0, 1), any shape; costs k for each.

    Raises:
        TypeError: k is not whole.
        ValueError: epsilon0 not positive; k not in 0..10^6; delta not in [0, 1).
    """
    eps0, delta = numbers(epsilon0, checked_delta(delta))
    top, step, mass = pure_losses(eps0, k)
    found = lattice_epsilon(top, step, mass, delta)
    found = raised(upper_delta, (eps0, np.asarray(k), (top, step, mass)), found, delta, step)
    return namespace(found).where(delta > 0, found, pure_level(eps0, np.asarray(k)))[()]


def pure_level(eps0: Any, k: Any) -> Any:
    """k eps0, the level of k mechanisms: the least float that is not below it."""
    xp = namespace(eps0)
    high, low = split(eps0)
    top = k * eps0
    start = jax.lax.stop_gradient(top) if xp is jnp else top
    rounded_down = (k * high - start) + k * low > 0
    return top + xp.where(rounded_down, xp.nextafter(start, xp.inf + 0 * start) - start, 0.0)


def pure_mix_delta(epsilons: Any, epsilon: Real, *, points: int = 1 << 16) -> Real:
    """delta at eps of mechanisms that are eps_i-DP each, non-adaptive or adaptive, from above.

    The worst losses are +-eps_i independently (Murtagh & Vadhan 2016). Exact where all eps_i are equal, and where
    the sum takes at most 2^20 values. Else every mechanism's loss is moved to a grid of step h = 2 sum eps_i / points,
    each atom split between its neighbours so that both laws of the pair keep their mass: by convexity this can
    only raise delta (connect the dots, Doroshenko et al. 2022). With g different eps_i:

        delta(eps) <= found <= delta(eps - g h)

    Where many different losses make delta smooth, found - delta is of order g h^2.

    Args:
        epsilons: positive, a vector.
        epsilon: eps, any sign, any shape.
        points: 2^8 to 2^24.

    Returns:
        delta of epsilon's shape, NumPy.

    Raises:
        ValueError: epsilons not positive, or not a vector; epsilon NaN; points not in 2^8..2^24.
    """
    points = checks.whole("points", points, 1 << 8, 1 << 24)
    checks.within("epsilon", epsilon, -np.inf, np.inf)
    each, times = np.unique(_vector("epsilons", epsilons), return_counts=True)
    eps = np.asarray(epsilon, float)
    if len(each) == 1:
        return pure_delta(each[0], int(times[0]), eps)
    # Losses are rounded by units of the largest sum: next to it a lower budget covers that.
    eps = eps - _UNITS * np.finfo(float).eps * float(each @ times)
    if math.prod((times + 1).tolist()) <= MOST_VALUES:
        return _by_enumeration(each, times, eps)
    return _on_grid(each, times, 2 * float(each @ times) / points, eps)


def _vector(name: str, values: RealArray) -> np.ndarray:
    checks.positive(name, values)
    vector = np.asarray(values, float)
    if vector.ndim != 1 or not vector.size:
        raise ValueError(f"{name}: shape {vector.shape} is not that of a vector with entries")
    return vector


def _by_enumeration(each: np.ndarray, times: np.ndarray, eps: np.ndarray) -> Real:
    losses, masses = np.zeros(1), np.ones(1)
    for eps0, k in zip(each, times.tolist(), strict=True):
        top, step, mass = pure_losses(np.asarray(eps0), k)
        losses = np.add.outer(losses, top - step * np.arange(k + 1)).ravel()
        masses = np.multiply.outer(masses, mass).ravel()
    found = [masses @ -np.expm1(np.minimum(some - losses, 0.0)) for some in eps.ravel()]
    return np.array(found).reshape(eps.shape)[()]


def _on_grid(each: np.ndarray, times: np.ndarray, h: float, eps: np.ndarray) -> Any:
    lowest, masses = 0, np.ones(1)
    for eps0, k in zip(each, times.tolist(), strict=True):
        at, below, above = _dotted(eps0, k, h)
        wide = np.zeros(len(masses) + at[0] - at[-1] + 1)
        for cell, down, up in zip((at - at[-1]).tolist(), below, above, strict=True):
            wide[cell : cell + len(masses)] += down * masses
            wide[cell + 1 : cell + 1 + len(masses)] += up * masses
        lowest, masses = lowest + int(at[-1]), wide
    return lattice_delta(np.asarray((lowest + len(masses) - 1) * h), np.asarray(h), masses[::-1], eps)[()]


def _dotted(eps0: Real, k: int, h: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each loss x of k mechanisms: a = floor(x/h), and its masses at a h and (a + 1) h; sum mass e^-loss stays."""
    top, step, mass = pure_losses(np.asarray(eps0), k)
    x = top - step * np.arange(k + 1)
    at = np.floor(x / h).astype(int)
    over = np.clip(x - at * h, 0.0, h)
    whole = -np.expm1(-h)
    return at, mass * np.exp(-over) * -np.expm1(over - h) / whole, mass * -np.expm1(-over) / whole


def pure_losses(eps0: Any, k: Any) -> tuple[Any, Any, Any]:
    """top, step and mass (see ``lattice``) of the loss of k randomised responses; masses are rounded upwards."""
    checks.positive("epsilon0", eps0)
    k, ways = _counts(k)
    xp = namespace(eps0)
    k, ways, j = (xp.asarray(value, eps0.dtype) for value in (k, ways, np.arange(ways.shape[-1])))
    each, times = eps0[..., None], k[..., None]
    mass = xp.exp(ways - times * xp.log1p(xp.exp(-each)) - j * each)
    size = times + j * (jax.lax.stop_gradient(each) if xp is jnp else each)
    return k * eps0, 2 * eps0, mass * (1 + _UNITS * xp.finfo(eps0.dtype).eps * (4 + size))


def checked_delta(delta: Real) -> Real:
    """The delta, refused outside [0, 1)."""
    checks.below_one("delta", delta)
    return delta


def _counts(k: Real) -> tuple[np.ndarray, np.ndarray]:
    """k, and ln C(k, j) on a last axis, -inf from j = k + 1."""
    k = np.asarray(k)
    each = [checks.whole("k", value, 0, MOST) for value in k.ravel().tolist()]
    ways = np.full((len(each), max(each, default=0) + 1), -np.inf)
    for row, value in zip(ways, each, strict=True):
        row[: value + 1] = log_ways(value)
    return k, ways.reshape(*k.shape, ways.shape[-1])
