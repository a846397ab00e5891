"""Distributions on a grid: discrete Laplace and discrete Gaussian, truncated to finitely many points."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from dpkernels import checks
from dpkernels.batches import each_entry
from dpkernels.decimals import shortest
from dpkernels.distributions.base import Noise
from dpkernels.numerics import Real, RealArray, floating, namespace
from dpkernels.pytrees import pytree, tree_leaves

_TAIL_NATS = 66 * math.log(2)  # By default a distribution is truncated where probabilities fall below 2^-66.
MAX_POINTS = 1 << 20  # Of a table.


class Lattice(Noise):
    """A distribution on a grid, P(Z = k step) proportional to exp(-(|k| step / w)^p / p), k = -reach..reach."""

    power: ClassVar[int]  # p; the first of ``lengths`` is w.
    is_even = True

    step: Real
    reach: int

    def __post_init__(self) -> None:
        checks.width(self.lengths[0], self._width)
        checks.positive("step", self.step)
        checks.integer_in("reach", self.reach, 0, MAX_POINTS)
        if not self.reach:
            checks.not_traced("reach", "By default it is a discrete choice; give it.", *tree_leaves(self))
            object.__setattr__(self, "reach", self._farthest())
        if not 1 <= self.reach < MAX_POINTS // 2:
            raise too_fine(self.step)

    def _farthest(self) -> int:
        """Return the default reach; a batch has the one of the entry that needs the largest."""
        farthest = self._width * (math.sqrt(2 * _TAIL_NATS) if self.power == 2 else _TAIL_NATS) / self.step
        return math.ceil(min(MAX_POINTS, np.max(farthest))) + 1

    @property
    def _width(self) -> Real:
        return getattr(self, self.lengths[0])

    def log_weight(self, z: Real) -> Real:
        """Return the log of the probability at z, up to a constant."""
        return -((namespace(z, self._width).abs(z) / self._width) ** self.power) / self.power

    @property
    def points(self) -> RealArray:
        xp = namespace(self.step, self._width)
        return self.step * xp.arange(-self.reach, self.reach + 1)

    @property
    @each_entry
    def probabilities(self) -> RealArray:
        logs = self.log_weight(self.points)
        weights = namespace(logs).exp(logs)
        return weights / weights.sum()

    def prob(self, z: Real) -> Real:
        """Return 0: there is no density."""
        return namespace(z, self.step).zeros_like(floating(z))

    @each_entry
    def log_prob(self, z: Real) -> Real:
        """Return log_weight(z) minus the log of the total weight at a lattice point, and -inf elsewhere."""
        xp, logs = namespace(z, self.step, self._width), self.log_weight(self.points)
        z = floating(z)
        k = xp.round(z / self.step)
        is_possible = (z == self.step * k) & (xp.abs(k) <= self.reach)
        return xp.where(is_possible, self.log_weight(z) - xp.log(xp.exp(logs).sum()), -xp.inf)

    @each_entry
    def nearest_possible(self, z: Real, tolerance: Real) -> Real:
        xp = namespace(z, self.step)
        point = self.step * xp.round(xp.clip(z / self.step, -self.reach - 1, self.reach + 1))
        return xp.where(xp.abs(z - point) <= xp.minimum(tolerance, self.step / 4), point, z)

    @each_entry
    def cdf(self, z: Real) -> Real:
        xp = namespace(z, self.probabilities)
        cumulative = xp.concatenate([xp.zeros(1), xp.cumsum(self.probabilities)])
        return xp.minimum(cumulative[xp.searchsorted(self.points, floating(z), side="right")], 1.0)

    @each_entry
    def icdf(self, u: Real) -> Real:
        xp = namespace(u, self.probabilities)
        index = xp.searchsorted(xp.cumsum(self.probabilities), u)
        return self.points[xp.minimum(index, 2 * self.reach)]

    @property
    @each_entry
    def mean(self) -> Real:
        return 0.0 * self.step

    @property
    @each_entry
    def variance(self) -> Real:
        return (self.probabilities * self.points**2).sum()

    @property
    @each_entry
    def absolute_moment(self) -> Real:
        return (self.probabilities * namespace(self.points).abs(self.points)).sum()

    @property
    @each_entry
    def atoms(self) -> tuple[RealArray, RealArray]:
        return self.points, self.probabilities


@partial(pytree, static=("reach",))
@dataclass(frozen=True)
class DiscreteLaplace(Lattice):
    """The discrete Laplace distribution, P(Z = k step) proportional to exp(-|k| step / b), |k| <= reach < 2^19.

    The scale b is in [1e-140, 1e140]. By default probabilities beyond the reach are below 2^-66.
    """

    lengths = ("scale", "step")
    power = 1

    scale: Real
    step: Real = 1.0
    reach: int = 0

    @property
    def geometric_tail(self) -> tuple[float, float | None] | None:
        """Return that of the distribution on all multiples, unless it is truncated nearer than by default."""
        return (0.0, None) if self.reach >= self._farthest() else None


@partial(pytree, static=("reach",))
@dataclass(frozen=True)
class DiscreteGaussian(Lattice):
    """The discrete Gaussian, P(Z = k step) proportional to exp(-(k step)^2 / (2 s^2)) (Canonne et al. 2020).

    Sigma, s, is in [1e-140, 1e140]. By default probabilities beyond the reach, |k| <= reach < 2^19, are below 2^-66.
    """

    lengths = ("sigma", "step")
    power = 2

    sigma: Real
    step: Real = 1.0
    reach: int = 0


def too_fine(step: Real) -> ValueError:
    """Return the error of a grid with more points than a table has."""
    return ValueError(f"step: {shortest(step)} has more than {MAX_POINTS} points in reach; take a coarser one")
