"""Cumulant generating functions of composed privacy losses, and the tilt that suits a question.

With l the privacy loss under p, the cumulant generating function of n independent releases is

    K(c) = n log E_p exp(c l).

Tilting by c means weighting losses by e^(c l). The saddle point, where K'(c) = eps + 1/c + 1/(1 + c), puts the mean of
the tilted sum next to eps: sums computed there keep their relative accuracy far out in the tail. Any other tilt gives
the same values with fewer digits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from accountants.privacy_loss import PrivacyLossDistribution
from dpkernels.numerics import Real, RealArray, namespace, without_derivative
from dpkernels.pytrees import pytree
from dpkernels.solve import bisect

_BISECTIONS = 60  # For a tilt, on log c.
# A tilt is searched for between 1e-4 and 1e5.
_LEAST_LOG, _GREATEST_LOG = np.log(1e-4), np.log(1e5)


class ConvergenceError(ValueError):
    """The promised precision cannot be reached."""


@pytree
@dataclass(frozen=True)
class RepeatedLoss:
    """The privacy loss of n releases of one mechanism, for one direction of neighbours.

    Attributes:
        losses: the outcomes of one release, or None for Gaussian noise on all the data.
        mu: sensitivity over sigma of that Gaussian noise, whose K(z) is z (z + 1) mu^2 / 2; else 0.
        count: n.
    """

    losses: PrivacyLossDistribution | None
    mu: Any
    count: Any

    @property
    def infinity_mass(self) -> Real:
        """The probability of an infinite loss of one release, at most the largest float below 1."""
        if self.losses is None:
            return 0.0 * self.mu
        xp = namespace(self.losses.p)
        mass = xp.where(self.losses.loss == np.inf, self.losses.p, 0.0).sum()
        return xp.minimum(mass, 1 - xp.finfo(mass.dtype).epsneg)

    def pruned(self) -> RepeatedLoss:
        """The same without outcomes of no mass; plain numbers only."""
        return self if self.losses is None else replace(self, losses=self.losses.pruned())

    def padded(self) -> RepeatedLoss:
        """The same with at least one outcome of no mass; see ``PrivacyLossDistribution.padded``."""
        return self if self.losses is None else replace(self, losses=self.losses.padded())

    def moments(self, c: Any) -> tuple[Real, Real, Real]:
        """Return K(c), and the mean and the variance of the tilted loss, all of one release; c is a number."""
        if self.losses is None:
            return c * (c + 1) * self.mu**2 / 2, (2 * c + 1) * self.mu**2 / 2, self.mu**2 + 0 * c
        log_p, loss = self.losses.finite
        xp = namespace(log_p)
        top, tilted = _exp_relative_to_largest(log_p + c * loss)
        mass = xp.maximum(tilted.sum(), xp.finfo(tilted.dtype).tiny)
        mean = (tilted * loss).sum() / mass
        return top[0] + xp.log(mass), mean, (tilted * (loss - mean) ** 2).sum() / mass

    def log_moment(self, c: Any) -> Any:
        """Return log E_p exp(c l) of one release over its finite losses; c has any shape."""
        if self.losses is None:
            return c * (c + 1) * self.mu**2 / 2
        log_p, loss = self.losses.finite
        xp = namespace(log_p)
        top, terms = _exp_relative_to_largest(log_p + c[..., None] * loss)
        return top[..., 0] + xp.log(xp.maximum(terms.sum(-1), xp.finfo(terms.dtype).tiny))


RepeatedLosses = tuple[RepeatedLoss, ...]


def _exp_relative_to_largest(size: Any) -> tuple[Any, Any]:
    """Return (the largest size, e^(size - largest)) along the last axis; 0 where all sizes are -inf."""
    xp = namespace(size)
    top = without_derivative(size.max(-1, keepdims=True))
    top = xp.where(xp.isneginf(top), 0.0, top)  # NaN stays.
    return top, xp.exp(size - top)


def infinity_mass(parts: RepeatedLosses) -> RealArray:
    """Return 1 - prod (1 - m)^n, the probability that some loss is infinite."""
    (first, *_) = parts
    xp = namespace(first.count, first.infinity_mass)
    return -xp.expm1(sum(part.count * xp.log1p(-part.infinity_mass) for part in parts))


def cumulants(parts: RepeatedLosses, c: Real) -> tuple[Any, Any, Any]:
    """Return K, K' and K'' of all releases at a tilt c."""
    moments = [part.moments(c) for part in parts]
    value, slope, curvature = (
        sum(part.count * each for part, each in zip(parts, column, strict=True))
        for column in zip(*moments, strict=True)
    )
    return value, slope, curvature


def renyi_divergence(parts: RepeatedLosses, order: Any) -> Any:
    """Return K(a - 1)/(a - 1) at an order a > 1; inf where a loss may be infinite."""
    a = order - 1
    total = sum(part.count * part.log_moment(a) for part in parts)
    return namespace(total).where(infinity_mass(parts) > 0, np.inf, total / a)


def saddle_point(parts: RepeatedLosses, epsilon: Real, steps: int = _BISECTIONS) -> Real:
    """Return the tilt c at which K'(c) = eps + 1/c + 1/(1 + c)."""

    def excess(c: Real) -> Any:
        return cumulants(parts, c)[1] - epsilon - 1 / c - 1 / (1 + c)

    return _tilt_at_root(excess, epsilon, steps)


def saddle_point_of_delta(parts: RepeatedLosses, log_delta: Real, steps: int = _BISECTIONS) -> tuple[Any, Any]:
    """Return (c, eps) at which the saddle-point approximation of log delta(eps) has the given value."""
    c = _tilt_at_root(lambda c: log_delta - approximate(parts, c)[0], log_delta, steps)
    return c, approximate(parts, c)[1]


def _tilt_at_root(rising: Any, like: Any, steps: int) -> Any:
    """Return the tilt at which a rising function changes sign; an end of the range of tilts where it does not."""
    xp = namespace(like)
    ends = xp.full_like(like, _LEAST_LOG), xp.full_like(like, _GREATEST_LOG)
    low, high = bisect(lambda log_c: rising(xp.exp(log_c)) < 0, *ends, steps)
    return xp.exp((low + high) / 2)


def approximate(parts: RepeatedLosses, c: Real) -> tuple[Any, Any]:
    """Return (log delta, eps) of the saddle-point approximation at the eps whose saddle point is c."""
    xp = namespace(c, *jax.tree.leaves(parts))
    value, slope, curvature = cumulants(parts, c)
    eps = slope - 1 / c - 1 / (1 + c)
    curvature = curvature + 1 / c**2 + 1 / (1 + c) ** 2
    return value - c * eps - xp.log(c * (1 + c)) - xp.log(2 * np.pi * curvature) / 2, eps
