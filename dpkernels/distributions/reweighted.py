"""A step reweighting of another distribution, which covers truncation and budget recycling."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Self

import numpy as np

from dpkernels import checks
from dpkernels.distributions.base import Distribution
from dpkernels.numerics import Real, RealArray, floating, log_or_minus_inf, namespace
from dpkernels.pytrees import pytree


@pytree
@dataclass(frozen=True)
class Reweighted(Distribution):
    """A distribution with the density of a kernel K, reweighted outside an interval.

        f(z) = K(z) w(z) / Z,   w = 1 on [low, high], outside elsewhere,   Z = the weighted mass

    The ends are finite, ``low`` below 0 and ``high`` above 0. The weight ``outside`` is in [0, 1]. Truncation has
    outside = 0, and no derivative in it. Budget recycling (Jiang 2024) redraws a kernel's value outside [-theta, theta]
    with probability q: outside = 1 - q.
    """

    kernel: Distribution
    low: Real
    high: Real
    outside: Real

    def __post_init__(self) -> None:
        checks.within("low", self.low, -np.inf, 0.0, open_ends=True)
        checks.within("high", self.high, 0.0, np.inf, open_ends=True)
        checks.within("outside", self.outside, 0.0, 1.0)

    @property
    def is_even(self) -> bool:  # type: ignore[override]
        low, high = checks.concrete(self.low), checks.concrete(self.high)
        return low is not None and high is not None and bool(np.all(self.low == -self.high)) and self.kernel.is_even

    def rescale(self, factor: Real, unit: Real = 1.0) -> Self:
        kernel, low, high = self.kernel.rescale(factor, unit), self.low * factor / unit, self.high * factor / unit
        return dataclasses.replace(self, kernel=kernel, low=low, high=high)

    def steepness(self, left: Real, right: Real) -> Real:
        return self.kernel.steepness(left, right)

    @property
    def inside_mass(self) -> Real:
        """Return the mass of the kernel on [low, high]."""
        return self.kernel.moment(0, self.low, self.high)

    @property
    def total(self) -> Real:
        """Return Z, the probability that a kernel's draw is accepted at once."""
        return self.inside_mass + self.outside * (self.kernel.cdf(self.low) + self.kernel.sf(self.high))

    @property
    def acceptance(self) -> Real:
        """Return P(low <= Z <= high)."""
        return self.inside_mass / self.total

    def log_prob(self, z: Real) -> Real:
        weight = log_or_minus_inf(self._step(floating(z)))
        return self.kernel.log_prob(z) + weight - namespace(weight).log(self.total)

    def _step(self, z: Real) -> Real:
        return namespace(z, self.low, self.outside).where((z >= self.low) & (z <= self.high), 1.0, self.outside)

    @property
    def unweighted(self) -> Distribution:
        return self.kernel.unweighted

    def weight(self, z: Real) -> Real:
        return self.kernel.weight(z) * self._step(floating(z)) / self.total

    def cdf(self, z: Real) -> Real:
        z, xp = floating(z), namespace(z, self.low)
        outer_mass = self.kernel.cdf(xp.minimum(z, self.low)) + self.kernel.mass(self.high, xp.maximum(z, self.high))
        inner_mass = self.kernel.moment(0, self.low, xp.clip(z, self.low, self.high))
        return (inner_mass + self.outside * outer_mass) / self.total

    def sf(self, z: Real) -> Real:
        z, xp = floating(z), namespace(z, self.low)
        outer_mass = self.kernel.sf(xp.maximum(z, self.high)) + self.kernel.mass(xp.minimum(z, self.low), self.low)
        inner_mass = self.kernel.moment(0, xp.clip(z, self.low, self.high), self.high)
        return (inner_mass + self.outside * outer_mass) / self.total

    def mass(self, a: Real, b: Real) -> RealArray:
        return self._in_parts(self.kernel.mass, a, b)

    def inverse(self, u: Real, lower: Real) -> RealArray:
        """Return the kernel's inverse at a piecewise linear map of u: outside, inside, and outside again."""
        xp = namespace(u, lower, self.low, self.outside)
        kernel_tail = xp.where(lower, self.kernel.cdf(self.low), self.kernel.sf(self.high))
        weighted, outer_mass, inner_mass = u * self.total, self.outside * kernel_tail, self.inside_mass
        is_inside = (weighted >= outer_mass) & (weighted <= outer_mass + inner_mass)
        outer_weight = xp.where(self.outside > 0, self.outside, 1.0)
        outer = xp.where(weighted < outer_mass, weighted, weighted + (outer_weight - 1) * inner_mass) / outer_weight
        z = self.kernel.inverse(xp.where(is_inside, weighted - outer_mass + kernel_tail, outer), lower)
        return xp.where(is_inside, xp.clip(z, self.low, self.high), z)

    def moment(self, power: int, a: Real, b: Real) -> RealArray:
        return self._in_parts(partial(self.kernel.moment, power), a, b)

    @property
    def mean(self) -> Real:
        """Return (w E_K Z + (1 - w) integral of z K(z) over the inside) / Z, w the outside's weight."""
        return self._from_kernel(self.kernel.mean, 1)

    @property
    def variance(self) -> Real:
        """Return E Z^2 minus the squared mean, with E Z^2 computed like the mean."""
        K = self.kernel
        return self._from_kernel(K.variance + K.mean**2, 2) - self.mean**2

    def _from_kernel(self, kernel_moment: Real, power: int) -> Real:
        inner_moment = self.kernel.moment(power, self.low, self.high)
        return (self.outside * kernel_moment + (1 - self.outside) * inner_moment) / self.total

    def _in_parts(self, integral: Callable[[Real, Real], RealArray], a: Real, b: Real) -> RealArray:
        """Return the weighted sum of the kernel's integrals over the parts of [a, b]."""
        xp = namespace(a, b, self.low)
        inner = integral(xp.clip(a, self.low, self.high), xp.clip(b, self.low, self.high))
        lower = integral(xp.minimum(a, self.low), xp.minimum(b, self.low))
        upper = integral(xp.maximum(a, self.high), xp.maximum(b, self.high))
        return (inner + self.outside * (lower + upper)) / self.total

    @property
    def support(self) -> tuple[Real, Real]:
        low, high = self.kernel.support
        xp, is_truncated = namespace(self.outside, self.low), self.outside <= 0
        return xp.where(is_truncated, self.low, low), xp.where(is_truncated, self.high, high)

    @property
    def edges(self) -> tuple[Real, ...]:
        return (*self.kernel.edges, self.low, self.high)

    @property
    def knots(self) -> RealArray:
        xp = namespace(self.low, self.high, *([self.kernel.knots] if len(self.kernel.knots) else []))
        return xp.sort(xp.concatenate([xp.asarray(self.kernel.knots), xp.stack([self.low, self.high])]))
