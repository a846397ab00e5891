"""The least scale of any law of noise for a budget: one root, of the profile in the shift."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from accountants.dominating_pairs.registry import additive_profile
from dpkernels import checks
from dpkernels.distributions.base import Distribution, Noise
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.distributions.merged_laplace import MergedLaplace
from dpkernels.mechanisms import named_additive as named
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import Real, namespace
from dpkernels.solve import promote, root


def rescaled(noise: Noise, factor: Real) -> Any:
    """Return the distribution of factor * Z, for Z of this distribution.

    Raises:
        TypeError: no distribution, or one that does not say how to rescale it.
    """
    if not isinstance(noise, Noise):
        raise TypeError(f"noise: it is not known how to rescale {type(noise).__name__}")
    return noise.rescale(factor)


def infeasible_shift(noise: Distribution, epsilon: Real, delta: Real) -> Real:
    """A shift s over which delta(eps) is above delta for certain: s = isf(t) - icdf(t).

    For A = {z < isf(t)}, P(A) - e^eps P(A - s) = 1 - t - e^eps t = (1 + delta)/2 where t = (1 - delta)/(2 (1 + e^eps)).
    """
    xp = namespace(epsilon, delta, *jax.tree.leaves(noise))
    t = xp.asarray((1 - delta) / (2 * (1 + xp.exp(epsilon))))
    return noise.isf(t) - noise.icdf(t)


def largest_shift(noise: Distribution, epsilon: Real, delta: Real) -> Real:
    """The largest s with delta(eps) <= delta over all shifts up to s; delta grows with s.

    Args:
        noise: a law with a density unimodal about 0.
        epsilon: eps >= 0.
        delta: in (0, 1).

    Returns:
        s, in the unit of the noise; as computed delta(eps; s) <= delta, and the next float is beyond.
    """
    check_target(epsilon, delta)
    noise, epsilon, delta = promote(noise, epsilon, delta)
    return root(_shift_excess, (noise, epsilon, delta), 0.0, infeasible_shift(noise, epsilon, delta))


def _shift_excess(shift: Real, parameters: tuple[Distribution, Real, Real]) -> Real:
    noise, eps, delta = parameters
    return additive_profile(noise, shift, eps) - delta


def smallest_scale(noise: Distribution, epsilon: Real, delta: Real, sensitivity: Real) -> Real:
    """The least c for which noise c Z is (eps, delta)-DP over shifts of D: c = D/largest_shift.

    The root is taken in 1/c, of the profile of the very law it is for, so that no rounding comes in between.
    """
    check_target(epsilon, delta, sensitivity)
    noise, epsilon, delta, sensitivity = promote(noise, epsilon, delta, sensitivity)
    widest = infeasible_shift(noise, epsilon, delta) / sensitivity
    return 1 / root(_scale_excess, (noise, epsilon, delta, sensitivity), 0.0, widest)


def _scale_excess(inverse: Real, parameters: tuple[Distribution, Real, Real, Real]) -> Real:
    noise, eps, delta, D = parameters
    return additive_profile(noise.rescale(1 / inverse), D, eps) - delta


def scaled(noise: Distribution, *, epsilon: Real, delta: Real, sensitivity: Real = 1.0) -> Additive:
    """Noise of this law's shape, as narrow as (eps, delta) allows.

    Args:
        noise: the shape: Gaussian, Laplace, merged Laplace, staircase, or one of them truncated or recycled.
        epsilon: eps, in [1e-6, 20].
        delta: in (0, 1).
        sensitivity: D, in data units.

    Returns:
        The mechanism, with its claim.

    Raises:
        ValueError: epsilon not in [1e-6, 20]; delta not in (0, 1); sensitivity not in [1e-100, 1e100]; arrays for
            these; a shape whose delta does not fall with its width.
    """
    checks.noise_epsilon(epsilon)
    return Additive(noise.rescale(smallest_scale(noise, epsilon, delta, sensitivity)), sensitivity, epsilon, delta)


def gaussian(*, epsilon: Real, delta: Real, sensitivity: Real = 1.0) -> Additive:
    """Gaussian noise of the least sigma s: the analytic Gaussian of Balle and Wang 2018.

    Phi(D/2s - eps s/D) - e^eps Phi(-D/2s - eps s/D) <= delta.

    Raises:
        ValueError: epsilon not in [1e-6, 20]; delta not in (0, 1); sensitivity not in [1e-100, 1e100].
    """
    return scaled(Gaussian(1.0), epsilon=epsilon, delta=delta, sensitivity=sensitivity)


def laplace(*, epsilon: Real, delta: Real, sensitivity: Real = 1.0) -> Additive:
    """Laplace noise of the least scale, b = D/(eps - 2 ln(1 - delta)).

    Raises:
        ValueError: epsilon not in [1e-6, 20]; delta not in (0, 1); sensitivity not in [1e-100, 1e100].
    """
    return scaled(Laplace(1.0), epsilon=epsilon, delta=delta, sensitivity=sensitivity)


def merged_laplace(
    *, rates: tuple[float, ...], breaks: tuple[float, ...], epsilon: Real, delta: Real, sensitivity: Real = 1.0
) -> Additive:
    """Merged Laplace noise (Mugunthan 2020) with rates and breaks in these proportions, as narrow as possible.

    Raises:
        ValueError: epsilon not in [1e-6, 20]; delta not in (0, 1); sensitivity not in [1e-100, 1e100]; rates or breaks
            that ``MergedLaplace`` refuses.
    """
    return scaled(MergedLaplace(tuple(rates), tuple(breaks)), epsilon=epsilon, delta=delta, sensitivity=sensitivity)


def staircase(*, epsilon: float, delta: float, sensitivity: float = 1.0, gamma: float | None = None) -> Additive:
    """Staircase noise of ratio e^eps (Geng and Viswanath 2014), its period as short as delta allows; below D.

    Its steps are placed by NumPy: arguments are plain numbers.

    Raises:
        ValueError: epsilon not in [0.01, 20]; delta not in (0, 1); sensitivity not in [1e-100, 1e100]; gamma not in
            [0, 1].
    """
    shape: Any = named.staircase(epsilon=epsilon, gamma=gamma).noise
    return scaled(shape, epsilon=epsilon, delta=delta, sensitivity=sensitivity)


def check_target(epsilon: Real, delta: Real, sensitivity: Real = 1.0) -> None:
    """Refuse a budget or a sensitivity out of range, and arrays of them: a root is for numbers."""
    for name, value in (("epsilon", epsilon), ("delta", delta), ("sensitivity", sensitivity)):
        if np.ndim(value):
            raise ValueError(f"{name}: has shape {np.shape(value)}; calibration takes numbers (jax.vmap takes arrays)")
    checks.within("epsilon", epsilon, 0.0, math.inf)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    checks.sensitivity(sensitivity)
