"""Budget recycling (Jiang 2024): exact accounting, and releases on a sample.

A draw N of the kernel is redrawn with probability q if |N| > theta. With p_out = P(|N| > theta), the density is

    f(x) = K(x) w(x)/(1 - p_out q),   w = 1 on |x| <= theta, 1 - q outside.

This distribution is ``Reweighted(kernel, -theta, theta, 1 - q)``. Its mean, variance and acceptance, which is
P(|Z| <= theta) = p_in/(1 - p_out q), have closed forms. The published formulas, which are **not sound**, are in
``accountants.published.recycling``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from accountants import calibrate
from accountants.dominating_pairs.registry import additive_profile
from accountants.schemes.poisson import budget_on_sample
from dpkernels import checks
from dpkernels.distributions.base import Distribution
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import GAUSS_LEGENDRE, Real, cast_like, namespace

__all__ = [
    "acceptance",
    "profile",
    "recycled",
    "rescaled_sensitivity",
    "sampling_noise_count",
    "sampling_noise_mean",
    "sampling_noise_sum",
    "subsampled_recycling",
]

_NODES, _WEIGHTS = GAUSS_LEGENDRE
# The quantiles around which the mass of a tail changes fast, on the scale of the next one.
_QUANTILES = np.array([1e-14, 1e-10, 1e-7, 1e-4, 1e-2, 0.1, 0.3, 0.5])


def recycled(kernel: Distribution, theta: Real, q: Real) -> Reweighted:
    """Return the distribution of budget-recycled noise: draws beyond theta are redrawn with probability q.

    Raises:
        ValueError: theta is not positive and finite, or q is not in [0, 1).
    """
    checks.positive("theta", theta)
    checks.below_one("q", q)
    return Reweighted(kernel, -theta, theta, 1 - q)


def profile(kernel: Distribution, theta: Real, q: Real, sensitivity: Real, epsilon: Real) -> Real:
    """Return the exact delta(eps) of budget recycling, over all shifts of size up to D, in the shape of epsilon."""
    checks.sensitivity(sensitivity)
    return additive_profile(recycled(kernel, theta, q), sensitivity, epsilon)


def acceptance(noise: Distribution, theta: Real, sampling_noise: Real = 0.0) -> Real:
    """Return P(|Z + S| <= theta) for noise Z, recycled or not, and an independent sampling error S ~ N(0, s^2).

    Without S the formula is closed. With S, whose s is in the unit of the noise, 16-point Gauss-Legendre quadrature
    integrates phi(t) P(-theta - s t < Z <= theta - s t) between the points at which the mass of the noise has a knot or
    changes fast. The result is accurate to about 1e-12 for noise of one scale; for JAX arguments it is differentiable.

    Raises:
        ValueError: theta is not positive and finite, or sampling_noise (s) is not a number in [0, 1e300].
    """
    checks.positive("theta", theta)
    checks.within("sampling_noise", sampling_noise, 0.0, 1e300)
    xp = namespace(theta, sampling_noise, *jax.tree.leaves(noise))
    sampled = sampling_noise > 0
    s = xp.where(sampled, sampling_noise, 1.0)
    bends = xp.concatenate([xp.asarray(noise.knots), noise.icdf(_QUANTILES), noise.isf(_QUANTILES[:-1])])
    knots = xp.concatenate([theta - bends, -theta - bends]) / s
    ends = xp.sort(xp.concatenate([xp.clip(knots, -9.0, 9.0), xp.linspace(-9.0, 9.0, 13)]))
    width = xp.diff(ends)
    t = ends[:-1, None] + width[:, None] * cast_like(_NODES, ends)
    mass = noise.mass(-theta - s * t, theta - s * t)
    smoothed = ((xp.exp(-(t**2) / 2) * mass * cast_like(_WEIGHTS, ends)).sum(-1) * width).sum() / math.sqrt(2 * math.pi)
    return xp.where(sampled, smoothed, noise.mass(-theta, theta))[()]


# On a sample


def sampling_noise_sum(deviation: Real, size: int, rate: Real) -> Real:
    """Return s_x sqrt(n (1 - p)/p), the error of a sum of n values of standard deviation s_x on a sample of rate p."""
    return deviation * _root((1 - rate) * size / rate)


def sampling_noise_mean(deviation: Real, size: int, rate: Real) -> Real:
    """Return s_x sqrt((1 - p)/(p n)), the error of an average estimated from a sample of rate p."""
    return deviation * _root((1 - rate) / (rate * size))


def sampling_noise_count(share: Real, size: Real, rate: Real) -> Real:
    """Return sqrt(n (1 - p) pc (1 - pc)/p), the error of a count of the share pc of n records."""
    return _root(size * (1 - rate) * share * (1 - share) / rate)


def _root(value: Real) -> Real:
    return namespace(value).sqrt(value)


def rescaled_sensitivity(sensitivity: Real, rate: Real) -> Real:
    """Return D/p, the sensitivity on a sample: the sample's sum or count is divided by p, or its average by p |X|."""
    return sensitivity / rate


class Subsampled(NamedTuple):
    """A recycled report on a sample of rate p, as tuned and accounted by ``subsampled_recycling``.

    The mechanism adds the noise to the rescaled estimate from the sample; its claim holds on the sample.
    ``sampling_noise`` is the standard deviation of that estimate, and ``acceptance`` the probability that the report is
    within theta of the true value on the whole data.
    """

    mechanism: Additive
    rate: Real
    sampling_noise: Real
    acceptance: Real | None

    def variance(self, x: Real) -> Any:
        return self.mechanism.variance(x) + self.sampling_noise**2

    @property
    def worst_variance(self) -> Any:
        return self.mechanism.worst_variance + self.sampling_noise**2

    def probability_within(self, x: Real, theta: Real) -> Any:
        return acceptance(self.mechanism.noise, theta, self.sampling_noise)  # type: ignore[arg-type]

    def error_bound(self, x: Real) -> Real:
        """Return a bound of the error that is exceeded with a probability below 1e-9."""
        return self.mechanism.error_bound(x) + 8 * self.sampling_noise

    def absolute_error(self, x: Real) -> Real:
        """Refuse: E|error| of the noise and the sampling error together has no formula here."""
        raise TypeError("objective: E|error| is not known for noise and error of sampling together; use another")


def subsampled_recycling(
    kernel: Distribution | type,
    *,
    theta: Real,
    rate: Real,
    epsilon: Real,
    delta: Real,
    sensitivity: Real = 1.0,
    sampling_noise: Real = 0.0,
    sensitivity_at: Callable[[Real, Real], Real] = rescaled_sensitivity,
) -> Subsampled:
    """Return budget-recycled noise on a sample of rate p that is (eps, delta)-DP for the whole data, exactly accounted.

    ``budget_on_sample`` gives the budget on the sample, and ``sensitivity_at(D, p)`` its sensitivity. With the correct
    sensitivity, D/p, all the data (p = 1) are nearly always best, because the sampling error of a realistic
    number of records exceeds any gain.

    Args:
        kernel: a distribution, which is kept; or the class ``Gaussian`` or ``Laplace``, whose scale is tuned: see
            ``calibrate.budget_recycled``.
        theta: the tolerated error, in the unit of the estimate.
        rate: the sampling rate p, in (delta, 1].
        epsilon: eps for the whole data.
        delta: delta for the whole data.
        sensitivity: D of the estimate from all the data.
        sampling_noise: s of the estimate from a sample of this rate, such as ``sampling_noise_sum`` returns.
        sensitivity_at: the sensitivity of the released estimate, from D and p. The formula of the source is
            ``published.recycling.published_sensitivity``.

    Raises:
        ValueError: rate is out of range; the budget on the sample is not in [0.01, 20] and (0, 1); theta is not
            positive; the sensitivity on the sample is not in [1e-100, 1e100]; or no q makes the kernel private enough.
    """
    inner_epsilon, inner_delta = budget_on_sample(epsilon, delta, rate)
    mechanism = calibrate.budget_recycled(
        kernel, theta=theta, epsilon=inner_epsilon, delta=inner_delta, sensitivity=sensitivity_at(sensitivity, rate)
    )
    probability = acceptance(mechanism.noise, theta, sampling_noise)  # type: ignore[arg-type]
    return Subsampled(mechanism, rate, sampling_noise, probability)
