"""Rigorous bounds of a guarantee of plain numbers, by the narrowest method that applies.

- One release: its profile (``closed_form``).
- Gaussian noise alone, any number of releases: closed form (``gaussian``).
- Few joint outcomes: enumeration (``outcomes``).
- Asymmetric noise: dynamic programming over the directions of a neighbour (``adaptive``), if it returns a bracket.
- All others: ``refinement.GridBracket``, by privacy loss distributions on a grid, or by Renyi divergences if the former
  is wide.

If epsilon is at least the sum of the largest losses of all releases, delta is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import jax
import numpy as np

from accountants.composition.brackets.by_renyi import GridOrRenyi
from accountants.composition.brackets.refinement import WIDTH, GridBracket
from accountants.composition.closed_form import Bounds, ClosedForm, OneRelease, more_than_least
from accountants.composition.gaussian import GaussianReleases
from accountants.composition.outcomes import MASS_ERROR, FewOutcomes
from accountants.composition.repeated import AdaptiveBrackets, GuaranteeLike, check_one_mechanism
from accountants.composition.trade_off import CurvePoint, Interval, curve_point, points_around_tangent
from accountants.dominating_pairs.base import profile
from accountants.profile import inverse_profile
from dpkernels.numerics import UNIT_ROUNDOFF

_LOSS_RTOL = 1e-12  # A bound on the relative error of a largest loss, and of a sum of them.
_LOSS_ATOL = 64 * UNIT_ROUNDOFF  # A bound on its absolute error: a small loss is the log of a ratio near 1.
_MAX_REMEMBERED = 512  # The most answers of each kind that a guarantee keeps.


@dataclass(frozen=True)
class AdaptiveOrGrid(Bounds):
    """The bounds of noise that is not even, whose neighbour may move in another direction from release to release."""

    profile: AdaptiveBrackets  # Its bracket may be None.
    fallback: GridOrRenyi

    def delta(self, epsilon: float) -> Interval:
        return self.profile.bracket("delta", epsilon) or self.fallback.delta(epsilon)

    def epsilon(self, delta: float) -> Interval:
        low, high = self.profile.bracket("epsilon", delta) or (0.0, math.inf)
        if math.isfinite(high):
            return low, high
        fallback = self.fallback.epsilon(delta)  # No eps on the profile's grid suffices.
        return max(low, fallback[0]), fallback[1]

    def curve_point(self, alpha: float, largest_loss: float) -> CurvePoint:
        estimate = self.fallback.grid.guarantee.estimate_delta
        tangent_points = partial(points_around_tangent, estimate, largest_loss=largest_loss)
        return curve_point(self.delta, tangent_points, alpha, largest_loss)


@dataclass(frozen=True)
class UpperAndAttained(Bounds):
    """The bounds of pairs that need not be attained, of which the lower ends are those of pairs that are."""

    upper: Bounds
    lower: list[RigorousBounds]  # Each is a lower bound.

    def delta(self, epsilon: float) -> Interval:
        high = self.upper_delta(epsilon)
        return min(max(bounds.delta(epsilon)[0] for bounds in self.lower), high), high

    def epsilon(self, delta: float) -> Interval:
        high = self.upper_epsilon(delta)
        return min(max(bounds.epsilon(delta)[0] for bounds in self.lower), high), high

    def upper_delta(self, epsilon: float) -> float:
        return self.upper.upper_delta(epsilon)

    def upper_epsilon(self, delta: float) -> float:
        return self.upper.upper_epsilon(delta)

    def curve_point(self, alpha: float, largest_loss: float) -> CurvePoint:
        high, low = self.upper.curve_point(alpha, largest_loss), [bounds.curve_point(alpha) for bounds in self.lower]
        error, power = high.error[0], high.power[1]
        return CurvePoint(
            (error, max(min(point.error[1] for point in low), error)),
            (min(max(point.power[0] for point in low), power), power),
        )


class RigorousBounds:
    """The bounds of a guarantee of plain numbers, by the narrowest method; answers are remembered."""

    def __init__(self, guarantee: GuaranteeLike, width: float = WIDTH) -> None:
        check_one_mechanism(guarantee.terms)
        self.guarantee, self.width = guarantee, width  # The relative width aimed at on grids.
        self.delta = lru_cache(_MAX_REMEMBERED)(self._delta)
        self.epsilon = lru_cache(_MAX_REMEMBERED)(self._epsilon)
        self.curve_point = lru_cache(_MAX_REMEMBERED)(self._curve_point)

    @cached_property
    def method(self) -> Bounds:
        """Return the narrowest method that applies, with lower ends of pairs that are attained."""
        lower = [RigorousBounds(attained, self.width) for attained in self.guarantee.attained()]
        return UpperAndAttained(self._upper_method, lower) if lower else self._upper_method

    @cached_property
    def _upper_method(self) -> Bounds:
        """Return the narrowest method of upper ends."""
        if any(np.isnan(leaf).any() for leaf in jax.tree.leaves(self.guarantee.numeric.terms)):
            raise ValueError("mechanism: a parameter is NaN, so it has no bracket")
        for formula in (OneRelease, GaussianReleases, FewOutcomes):
            bounds = formula.from_guarantee(self.guarantee)
            if bounds is not None:
                return bounds
        by_grid, adaptive = GridOrRenyi(GridBracket(self.guarantee, self.width)), self.guarantee.adaptive_profile
        return by_grid if adaptive is None else AdaptiveOrGrid(adaptive, by_grid)

    @cached_property
    def largest_loss(self) -> float:
        """Return an upper bound of the largest sum of losses; inf where it is unknown."""
        terms = self.guarantee.numeric.terms
        try:
            with np.errstate(all="ignore"):
                losses = [max(float(pair.largest_loss()) for pair in term.release_pairs()) for term in terms]
        except TypeError:  # A pair whose largest loss is unknown.
            return math.inf
        losses = [loss * (1 + _LOSS_RTOL) + _LOSS_ATOL for loss in losses]
        level = sum(float(term.count) * loss for term, loss in zip(terms, losses, strict=True)) * (1 + _LOSS_RTOL)
        return level if level >= 0 else math.inf  # NaN is unknown.

    def upper_ends_of_delta(self, epsilon: np.ndarray) -> np.ndarray:
        """Return the upper ends of ``delta`` at every eps; those of closed forms without the lower ones."""
        if isinstance(self._upper_method, OneRelease):
            is_beyond, delta = epsilon >= self.largest_loss, more_than_least(profile(self._upper_method.pairs, epsilon))
            return np.where(is_beyond, self._infinite_loss_bounds[1], delta) if is_beyond.any() else delta
        is_formula, ends = isinstance(self._upper_method, ClosedForm), np.empty(epsilon.shape)
        for index, eps in np.ndenumerate(epsilon):
            ends[index] = self.upper_delta(float(eps)) if is_formula else self.delta(float(eps))[1]
        return ends

    def upper_ends_of_epsilon(self, delta: np.ndarray) -> np.ndarray:
        """Return the upper ends of ``epsilon`` at every delta; those of closed forms without the lower ones."""
        if isinstance(self._upper_method, OneRelease):
            return np.minimum(inverse_profile(self._upper_method.pairs, delta), self.largest_loss)
        is_formula, ends = isinstance(self._upper_method, ClosedForm), np.empty(delta.shape)
        for index, number in np.ndenumerate(delta):
            ends[index] = self.upper_epsilon(float(number)) if is_formula else self.epsilon(float(number))[1]
        return ends

    def _delta(self, epsilon: float) -> Interval:
        return self._infinite_loss_bounds if epsilon >= self.largest_loss else self.method.delta(epsilon)

    def upper_delta(self, epsilon: float) -> float:
        return self._infinite_loss_bounds[1] if epsilon >= self.largest_loss else self.method.upper_delta(epsilon)

    def _epsilon(self, delta: float) -> Interval:
        low, high = self.method.epsilon(delta)
        return min(low, self.largest_loss), min(high, self.largest_loss)

    def upper_epsilon(self, delta: float) -> float:
        return min(self.method.upper_epsilon(delta), self.largest_loss)

    def _curve_point(self, alpha: float) -> CurvePoint:
        """Return bounds of the trade-off curve at alpha in [0, 1]."""
        if 0 < alpha < 1 and self.largest_loss > 0:
            return self.method.curve_point(alpha, self.largest_loss)
        low, high = self._infinite_loss_bounds if alpha == 0 else (alpha, alpha)
        return CurvePoint.of_power(low, high, alpha)

    @cached_property
    def _infinite_loss_bounds(self) -> Interval:
        """Return bounds of the probability of an infinite loss, which is delta from the largest finite loss on."""
        infinite = self.guarantee.infinity_mass if math.isinf(self.largest_loss) else 0.0
        infinite = max(0.0, infinite)  # Not -0.
        low = infinite * (1 - MASS_ERROR)
        if isinstance(self.method, UpperAndAttained):
            low = min(max(bounds._infinite_loss_bounds[0] for bounds in self.method.lower), low)
        return low, min(infinite * (1 + MASS_ERROR), 1.0)
