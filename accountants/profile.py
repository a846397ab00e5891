"""The privacy profile delta(eps) of a mechanism, and its inverse eps(delta)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accountants.dominating_pairs.base import DominatingPair, as_float64, cap, check_masses, curve, profile
from accountants.dominating_pairs.registry import dominating_pairs, pure_epsilon, reject_sensitivity
from accountants.precision import in_64_bits
from dpkernels import checks
from dpkernels.batches import evaluate_entries
from dpkernels.distributions.base import Distribution
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import Boolean, Real, RealArray, elementwise_maximum, float_if_scalar, floating, namespace
from dpkernels.pytrees import PyTree
from dpkernels.solve import bisect, first_feasible, root

_ESTIMATE = "ask accountants.guarantee(mechanism) for estimate_delta or estimate_epsilon"


def delta(mechanism: Any, epsilon: Real, sensitivity: Real | None = None) -> Any:
    """Return the smallest delta for which the mechanism is (eps, delta)-DP: its exact privacy profile.

    delta(eps) is the maximum over the dominating pairs of  integral max(0, p(y) - e^eps q(y)) dy.  It covers one report
    of a float mechanism in exact arithmetic. The value is an upper bound: it is rounded upwards, by the effect of eight
    units in the last place of 1 + eps, up to 4e-14 at eps 20, next to the largest loss and at the level of a pure
    mechanism. ``dominating_pairs.registry`` has the pairs, and names the mechanisms whose profile is not exact.

    Args:
        mechanism: a mechanism of dpkernels.
        epsilon: eps >= 0, any shape; for a batch it broadcasts with the batch shape.
        sensitivity: D of an additive mechanism; the default is that of its claim. Bounded mechanisms take none.

    Returns:
        delta in the shape of epsilon: a float for a number, otherwise a NumPy float64 array. If any argument holds a
            JAX array, a JAX array in the caller's precision, differentiable.

    Raises:
        TypeError: the mechanism is unknown.
        ValueError: epsilon is negative, the sensitivity is missing, not applicable or out of range, the mechanism
            reports several coordinates, or its masses are estimates (``densities``).

    Example:
        >>> from dpkernels.mechanisms.named import gaussian
        >>> round(delta(gaussian(sigma=1.0), 1.0, sensitivity=1.0), 6)
        0.126937
    """
    checks.within("epsilon", epsilon, 0.0, np.inf)
    if _is_host_batch(mechanism, epsilon, sensitivity) and not _has_density(mechanism):
        return evaluate_entries(lambda entry, eps, *D: delta(entry, eps, *D), mechanism, epsilon, *_given(sensitivity))
    pairs = dominating_pairs(mechanism, sensitivity)
    if namespace(epsilon, *jax.tree.leaves(pairs)) is np:
        check_masses(pairs, _ESTIMATE)
    return float_if_scalar(profile(pairs, epsilon))


@in_64_bits
def epsilon(mechanism: Any, delta: Real = 0.0, sensitivity: Any = None) -> Any:
    """Return the smallest eps >= 0 for which the mechanism is (eps, delta)-DP; inf where no eps is sufficient.

    The result is conservative: the computed profile at this eps is at most delta. For delta = 0 it is the pure level,
    that is the largest loss, which is inf for Gaussian or truncated noise; for bounded mechanisms see ``pure_epsilon``.
    Its shape is that of delta, its type that of ``accountants.delta``. Derivatives are implicit:
    d eps = (d delta - d profile(eps)) / profile'(eps).

    Args:
        mechanism: a mechanism of dpkernels.
        delta: in [0, 1), any shape; for a batch it broadcasts with the batch shape.
        sensitivity: D of an additive mechanism; the default is that of its claim. Bounded mechanisms take none.

    Raises:
        TypeError: the mechanism is unknown.
        ValueError: delta is out of range; a JAX mechanism, or the sensitivity of a single one, is an array; or a case
            of ``delta``.
    """
    checks.below_one("delta", delta)
    if _is_host_batch(mechanism, delta, sensitivity):
        return evaluate_entries(
            lambda entry, entry_delta, *D: epsilon(entry, entry_delta, *D), mechanism, delta, *_given(sensitivity)
        )
    for value in (sensitivity, *(jax.tree.leaves(mechanism) if isinstance(mechanism, Additive) else ())):
        if np.ndim(value):
            raise ValueError(f"sensitivity, mechanism: an array of shape {np.shape(value)}; epsilon takes numbers")
    if namespace(delta, sensitivity, *jax.tree.leaves(mechanism)) is jnp:
        pairs = dominating_pairs(mechanism, sensitivity)
        target_delta = floating(jnp.asarray(delta))
        return jnp.where(
            target_delta > 0, solved(pairs, jnp.where(target_delta > 0, target_delta, 0.5)), _pure_level(pairs)
        )
    target = np.asarray(delta, np.float64)
    level = _pure(mechanism, sensitivity) if np.any(target == 0) else np.nan
    if np.all(target == 0):
        return float_if_scalar(np.full(target.shape, level))
    pairs = dominating_pairs(mechanism, sensitivity)
    check_masses(pairs, _ESTIMATE)
    eps = inverse_profile(pairs, np.where(target > 0, target, 0.5))
    return float_if_scalar(np.where(target > 0, eps, level))


def _is_host_batch(mechanism: object, *values: object) -> bool:
    return bool(getattr(mechanism, "batch_shape", ())) and namespace(*values, *jax.tree.leaves(mechanism)) is np


def _has_density(mechanism: object) -> bool:
    """Return whether the profile's formulas broadcast over parameters, as those of densities do."""
    return isinstance(mechanism, Additive) and isinstance(mechanism.noise, Distribution)


def _given(sensitivity: object) -> tuple[Any, ...]:
    return () if sensitivity is None else (sensitivity,)


def inverse_profile(pairs: tuple[DominatingPair, ...], delta: Real) -> Real:
    """Return ``epsilon`` of dominating pairs, for delta in (0, 1)."""
    if namespace(delta, *jax.tree.leaves(pairs)) is jnp:
        return solved(pairs, floating(jnp.asarray(delta)))
    with np.errstate(all="ignore"):
        return float_if_scalar(_rounded_up(as_float64(pairs), np.asarray(delta, np.float64)))


def _pure(mechanism: object, sensitivity: object) -> float:
    if not isinstance(mechanism, Additive):
        level = pure_epsilon(mechanism)
        reject_sensitivity(sensitivity)
        return level
    with np.errstate(all="ignore"):
        return float(_pure_level(as_float64(dominating_pairs(mechanism, sensitivity))))


def _pure_level(pairs: tuple[DominatingPair, ...]) -> Real:
    return elementwise_maximum([pair.largest_loss() for pair in pairs])


_ROOT_RTOL = 2.0**-33  # The relative distance from a root within which a profile is evaluated.
_MIN_DELTA = 1e-300  # The least delta whose logarithm is taken.
# How many floats a root is moved up by, in turn, until its profile is at most delta.
_FLOATS_UP = (0.0, *(2.0**k for k in range(40)))


def _rounded_up(pairs: tuple[DominatingPair, ...], target: np.ndarray) -> np.ndarray:
    """Return the root, moved up until the profile, as computed, is at most the target."""

    def rounded_up(eps: np.float64, delta: np.float64) -> float:
        if not np.isfinite(eps):
            return float(eps)
        candidates = (float(eps + floats * np.spacing(eps)) for floats in _FLOATS_UP)
        return first_feasible(candidates, lambda eps: profile(pairs, eps) <= delta)

    eps = _bisected(pairs, target)
    return np.array([rounded_up(*pair) for pair in zip(eps.ravel(), target.ravel(), strict=True)]).reshape(target.shape)


def _bisected(pairs: tuple[DominatingPair, ...], delta: RealArray) -> RealArray:
    xp = namespace(delta, *jax.tree.leaves(pairs))
    profile_at, top = curve(pairs), cap(delta.dtype)
    ends = xp.zeros_like(delta), xp.full_like(delta, top)

    # Write "not at most" instead of "above": a profile of NaN must not count as small enough.
    def is_before(eps: Real) -> Any:
        return ~(profile_at(eps) <= delta)

    turns = is_before if xp is jnp or np.ndim(delta) else _evaluated_near_root(is_before, profile_at, delta, float(top))
    eps = bisect(turns, *ends, xp.finfo(delta.dtype).nmant + 34)[1]
    eps = xp.where(profile_at(ends[0]) <= delta, 0.0, eps)
    return xp.where(profile_at(ends[1]) <= delta, eps, np.inf)


def _evaluated_near_root(
    is_before: Callable[[Real], Boolean], profile_at: Callable[[Real], Boolean], delta: RealArray, top: float
) -> Callable[[Real], Any]:
    """Return a function that evaluates ``is_before`` near the root alone, where a bisection takes half of its steps."""

    def excess(eps: float) -> float:
        return float(np.log(np.maximum(profile_at(np.float64(eps)), _MIN_DELTA) / delta))

    low, high = 0.0, 1.0
    while high < top and not excess(high) <= 0:
        low, high = high, min(4 * high, top)
    if not excess(low) > 0 or not excess(high) <= 0:
        return is_before
    estimate = root(lambda eps, _: excess(float(eps)), (), high, low, rtol=_ROOT_RTOL / 16)
    low, high = estimate * (1 - _ROOT_RTOL), estimate * (1 + _ROOT_RTOL)
    if not is_before(np.float64(low)) or is_before(np.float64(high)):
        return is_before
    return lambda eps: np.asarray(eps < low) if not low < eps < high else is_before(eps)


@jax.custom_jvp
@jax.jit
def solved(pairs: tuple[DominatingPair, ...], delta: jax.Array) -> Real:
    """Return the smallest eps at delta, for JAX numbers."""
    return _bisected(pairs, delta)


@solved.defjvp
def _implicit_derivative(
    primals: tuple[tuple[DominatingPair, ...], Real], tangents: tuple[PyTree, Real]
) -> tuple[Real, Real]:
    pairs, delta = primals
    eps = solved(pairs, delta)
    is_interior = (eps > 0) & jnp.isfinite(eps)
    point = jnp.where(is_interior, eps, 1.0)
    _, by_pairs = jax.jvp(lambda p: curve(p)(point), (pairs,), (tangents[0],))
    _, slope = jax.jvp(curve(pairs), (point,), (jnp.ones_like(point),))
    is_falling = is_interior & (slope < 0)
    return eps, jnp.where(is_falling, (tangents[1] - by_pairs) / jnp.where(is_falling, slope, 1.0), 0.0)
