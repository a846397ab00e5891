"""delta(eps) and eps(delta) of a mechanism."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accountants.pairs import pure
from accountants.pairs.base import Pair
from accountants.pairs.hockey_stick import as_float64, curve, profile
from accountants.pairs.rounding import cap
from accountants.pairs.worst import take_none, worst_pairs
from dpkernels import checks
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import Real, floating, namespace, plain
from dpkernels.roots import halved


def delta(mechanism: Any, epsilon: Real, sensitivity: Any = None) -> Any:
    """The least delta for which the mechanism is (eps, delta)-DP: its privacy profile, exactly.

    delta(eps) = max over worst pairs of  integral max(0, p(y) - e^eps q(y)) dy.  Covers one report of a float
    mechanism in exact arithmetic. Rounded upwards, by what eight units in the last place of 1 + eps move it: next to
    the largest loss up to 4e-14 at eps 20, and so much at the level of a pure mechanism. See
    ``pairs.worst.worst_pairs`` for the pairs and for the two kinds of mechanism whose value is an upper bound.

    Args:
        mechanism: a mechanism of dpkernels.
        epsilon: eps >= 0, any shape; broadcasts with array parameters.
        sensitivity: D of an additive mechanism, by default its claim's; bounded mechanisms take none.

    Returns:
        delta of epsilon's shape: a float for a number, else NumPy float64; JAX, in the caller's precision and
        differentiable, if any argument holds a JAX array.

    Raises:
        TypeError: an unknown mechanism.
        ValueError: epsilon negative; a missing, unneeded or bad sensitivity; several reported coordinates.

    Example:
        >>> from dpkernels.mechanisms.named_additive import gaussian
        >>> round(delta(gaussian(sigma=1.0), 1.0, sensitivity=1.0), 6)
        0.126937
    """
    checks.within("epsilon", epsilon, 0.0, np.inf)
    return plain(profile(worst_pairs(mechanism, sensitivity), epsilon))


def epsilon(mechanism: Any, delta: Real = 0.0, sensitivity: Any = None) -> Any:
    """The least eps >= 0 for which the mechanism is (eps, delta)-DP.

    From the safe side: the profile at what is returned, as computed, is at most delta. For delta = 0 the pure level:
    the largest loss, inf for Gaussian or truncated noise; of bounded mechanisms as ``pure.epsilon`` has it.
    Derivatives are implicit:  d eps = (d delta - d profile(eps)) / profile'(eps).

    Args:
        mechanism: a mechanism of dpkernels.
        delta: in [0, 1), any shape.
        sensitivity: D of an additive mechanism, by default its claim's; bounded mechanisms take none.

    Returns:
        eps of delta's shape, of the kind that ``accountants.delta`` returns; inf where no eps will do.

    Raises:
        TypeError: an unknown mechanism.
        ValueError: delta outside [0, 1); arrays of mechanisms or sensitivities; and as for ``accountants.delta``.
    """
    checks.below_one("delta", delta)
    _check_numbers(mechanism, sensitivity)
    if namespace(delta, sensitivity, *jax.tree.leaves(mechanism)) is jnp:
        pairs = worst_pairs(mechanism, sensitivity)
        target = floating(jnp.asarray(delta))
        return jnp.where(target > 0, solved(pairs, jnp.where(target > 0, target, 0.5)), _pure_level(pairs))
    target = np.asarray(delta, np.float64)
    level = _pure(mechanism, sensitivity) if np.any(target == 0) else np.nan
    if np.all(target == 0):
        return plain(np.full(target.shape, level))
    found = epsilon_of(worst_pairs(mechanism, sensitivity), np.where(target > 0, target, 0.5))
    return plain(np.where(target > 0, found, level))


def epsilon_of(pairs: tuple[Pair, ...], delta: Real) -> Real:
    """``epsilon`` of pairs, for delta in (0, 1)."""
    if namespace(delta, *jax.tree.leaves(pairs)) is jnp:
        return solved(pairs, floating(jnp.asarray(delta)))
    return plain(_safe(pairs, np.asarray(delta, np.float64)))


def _check_numbers(mechanism: Any, sensitivity: Any) -> None:
    parameters = jax.tree.leaves(mechanism) if isinstance(mechanism, Additive) else []
    for value in (sensitivity, *parameters):
        if np.ndim(value):
            raise ValueError(f"sensitivity, mechanism: an array of shape {np.shape(value)}; epsilon takes numbers")


def _pure(mechanism: Any, sensitivity: Any) -> float:
    if not isinstance(mechanism, Additive):
        level = pure.epsilon(mechanism)
        take_none(sensitivity)
        return level
    with jax.enable_x64(True):
        return float(_pure_level(as_float64(worst_pairs(mechanism, sensitivity))))


@jax.jit
def _pure_level(pairs: tuple[Pair, ...]) -> Real:
    return jnp.stack([pair.largest_loss() for pair in pairs]).max()


def _safe(pairs: tuple[Pair, ...], target: np.ndarray) -> np.ndarray:
    """The root, moved up by floats until the profile agrees."""
    with jax.enable_x64(True):
        eps = np.array(solved(as_float64(pairs), target))
    step = np.spacing(eps)
    while np.any(high := np.isfinite(eps) & (profile(pairs, eps) > target)):
        eps, step = np.where(high, eps + step, eps), 2 * step
    return eps


@jax.custom_jvp
@jax.jit
def solved(pairs: tuple[Any, ...], delta: jax.Array) -> Real:
    """Bisection on [0, cap] down to the float's resolution; inf where the profile stays above delta."""
    at, top = curve(pairs), cap(delta.dtype)

    ends = jnp.zeros_like(delta), jnp.full_like(delta, top)
    # Not "above": where the profile is NaN, it is not known to be enough.
    eps = halved(lambda eps: ~(at(eps) <= delta), *ends, jnp.finfo(delta.dtype).nmant + 34)[1]
    eps = jnp.where(at(ends[0]) <= delta, 0.0, eps)
    return jnp.where(at(ends[1]) <= delta, eps, jnp.inf)


@solved.defjvp
def _implicit_derivative(primals: tuple[tuple[Pair, ...], Real], tangents: tuple[Any, Real]) -> tuple[Real, Real]:
    pairs, delta = primals
    eps = solved(pairs, delta)
    inside = (eps > 0) & jnp.isfinite(eps)
    point = jnp.where(inside, eps, 1.0)
    _, moved = jax.jvp(lambda p: curve(p)(point), (pairs,), (tangents[0],))
    _, slope = jax.jvp(curve(pairs), (point,), (jnp.ones_like(point),))
    steep = inside & (slope < 0)
    return eps, jnp.where(steep, (tangents[1] - moved) / jnp.where(steep, slope, 1.0), 0.0)
