"""The smallest scale of noise of any distribution for a budget: a root of the profile in the shift."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from accountants.calibrate.analytic_gaussian import DELTAS, largest_ratios
from accountants.dominating_pairs.base import DominatingPair, profile
from accountants.dominating_pairs.registry import additive_profile, noise_pairs
from accountants.profile import inverse_profile
from dpkernels import checks
from dpkernels.batches import entrywise, has_axes
from dpkernels.distributions.base import Distribution, Noise
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.generalised_normal import GeneralisedNormal
from dpkernels.distributions.laplace import Laplace
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import Real, float_if_scalar, namespace
from dpkernels.solve import MARGINS, first_feasible, promote, root

__all__ = [
    "gaussian",
    "generalised_normal",
    "infeasible_shift",
    "laplace",
    "largest_shift",
    "rescaled",
    "scaled",
    "smallest_scale",
]


def rescaled(noise: Noise, factor: Real) -> Any:
    """Return the distribution of factor * Z, for Z of this distribution; what has no ``rescale`` is a TypeError."""
    if not isinstance(noise, Noise):
        raise TypeError(f"noise: it is not known how to rescale {type(noise).__name__}")
    return noise.rescale(factor)


def infeasible_shift(noise: Distribution, epsilon: Real, delta: Real) -> Real:
    """Return a shift s = isf(t) - icdf(t) at which delta(eps) is guaranteed to exceed delta.

    For A = {z < isf(t)}, P(A) - e^eps P(A - s) = 1 - t - e^eps t = (1 + delta)/2 where t = (1 - delta)/(2 (1 + e^eps)).
    """
    xp = namespace(epsilon, delta, *jax.tree.leaves(noise))
    t = xp.asarray((1 - delta) / (2 * (1 + xp.exp(epsilon))))
    return noise.isf(t) - noise.icdf(t)


def largest_shift(noise: Distribution, epsilon: Real, delta: Real) -> Real:
    """Return the largest s with delta(eps) <= delta in (0, 1) over all shifts up to s.

    The density of the noise is unimodal about 0, so that delta grows with s, which is in its unit; eps >= 0. The
    computed delta(eps; s) is at most delta, and exceeds it at the next float.
    """
    check_target(epsilon, delta)
    noise, epsilon, delta = promote(noise, epsilon, delta)
    return root(_shift_excess, (noise, epsilon, delta), 0.0, infeasible_shift(noise, epsilon, delta))


def _shift_excess(shift: Real, parameters: tuple[Distribution, Real, Real]) -> Real:
    noise, eps, delta = parameters
    return additive_profile(noise, shift, eps) - delta


def smallest_scale(noise: Distribution, epsilon: Real, delta: Real, sensitivity: Real) -> Real:
    """Return the least c for which noise c Z is (eps, delta)-DP over shifts of D: c = D/largest_shift.

    The root is found in 1/c, of the profile of the distribution that is returned, so that no further rounding occurs.
    """
    check_target(epsilon, delta, sensitivity)
    noise, epsilon, delta, sensitivity = promote(noise, epsilon, delta, sensitivity)
    widest = infeasible_shift(noise, epsilon, delta) / sensitivity
    return 1 / root(_scale_excess, (noise, epsilon, delta, sensitivity), 0.0, widest)


def _scale_excess(inverse: Real, parameters: tuple[Distribution, Real, Real, Real]) -> Real:
    noise, eps, delta, D = parameters
    return additive_profile(noise.rescale(1 / inverse), D, eps) - delta


def scaled(noise: Distribution, *, epsilon: Real, delta: Real, sensitivity: Real = 1.0) -> Additive:
    """Return additive noise of this shape, with the smallest scale that (eps, delta) allows, and its claim.

    The shape is a distribution of any scale, such as ``Laplace(1.0)``; the sensitivity D is in data units.

    Arrays of budgets or sensitivities give a batch, with a search for every different budget and sensitivity.

    Raises:
        ValueError: epsilon is not in [1e-6, 20], delta is not in (0, 1), sensitivity is not in [1e-100, 1e100], or
            delta does not fall with the scale of the shape.
    """
    _check_targets(epsilon, delta, sensitivity)
    if has_axes(epsilon, delta, sensitivity):
        return entrywise(
            lambda eps, delta, D: scaled(noise, epsilon=eps, delta=delta, sensitivity=D), epsilon, delta, sensitivity
        )
    scale = smallest_scale(noise, epsilon, delta, sensitivity)
    wider = (noise.rescale(scale * (1 + margin)) for margin in MARGINS)
    certified = first_feasible(wider, lambda noise: meets_budget(noise_pairs(noise, sensitivity), epsilon, delta))
    return Additive(certified, sensitivity, epsilon, delta)


def _check_targets(epsilon: Real, delta: Real, sensitivity: Real) -> None:
    checks.noise_epsilon(epsilon)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    checks.sensitivity(sensitivity)
    checks.broadcastable(epsilon=epsilon, delta=delta, sensitivity=sensitivity)


def meets_budget(pairs: tuple[DominatingPair, ...], epsilon: Real, delta: Real) -> bool:
    """Return whether the computed profile meets a target, read as delta at eps and as eps at delta; true if traced.

    The computed profile is not monotone in its last digits, so that one reading may hold without the other.
    """
    excess = checks.concrete(profile(pairs, epsilon) - delta)
    return excess is None or bool(excess <= 0 and inverse_profile(pairs, delta) <= epsilon)


def gaussian(*, epsilon: Real, delta: Real, sensitivity: Real = 1.0) -> Additive:
    """Return Gaussian noise of the smallest sigma s: the analytic Gaussian mechanism of Balle and Wang 2018.

    Phi(D/2s - eps s/D) - e^eps Phi(-D/2s - eps s/D) <= delta. Errors are those of ``scaled``. Many budgets are solved
    at once.
    """
    target = epsilon, delta, sensitivity
    if namespace(*target) is not np:
        return scaled(Gaussian(1.0), epsilon=epsilon, delta=delta, sensitivity=sensitivity)
    _check_targets(*target)
    eps, deltas, D = (np.asarray(array, np.float64) for array in np.broadcast_arrays(*target))
    sigma, is_regular = np.empty(eps.shape), (deltas >= DELTAS[0]) & (deltas <= DELTAS[1])
    sigma[is_regular] = D[is_regular] / largest_ratios(eps[is_regular], deltas[is_regular])
    for index in map(tuple, np.argwhere(~is_regular).tolist()):
        sigma[index] = smallest_scale(Gaussian(1.0), float(eps[index]), float(deltas[index]), float(D[index]))
    return Additive(Gaussian(float_if_scalar(sigma)), *(sensitivity, epsilon, delta))


def laplace(*, epsilon: Real, delta: Real, sensitivity: Real = 1.0) -> Additive:
    """Return Laplace noise of the smallest scale, b = D/(eps - 2 ln(1 - delta)); errors are those of ``scaled``."""
    return scaled(Laplace(1.0), epsilon=epsilon, delta=delta, sensitivity=sensitivity)


def generalised_normal(*, exponent: Real, epsilon: Real, delta: Real, sensitivity: Real = 1.0) -> Additive:
    """Return generalised normal noise of an exponent, in [1, 8], with the smallest scale; errors as ``scaled``."""
    return scaled(GeneralisedNormal(1.0, exponent), epsilon=epsilon, delta=delta, sensitivity=sensitivity)


def check_target(epsilon: Real, delta: Real, sensitivity: Real = 1.0) -> None:
    """Raise ValueError for a budget or a sensitivity that is out of range or an array: a root is a number."""
    for name, value in (("epsilon", epsilon), ("delta", delta), ("sensitivity", sensitivity)):
        if np.ndim(value):
            raise ValueError(f"{name}: has shape {np.shape(value)}; calibration takes numbers (jax.vmap takes arrays)")
    checks.within("epsilon", epsilon, 0.0, math.inf)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    checks.sensitivity(sensitivity)
