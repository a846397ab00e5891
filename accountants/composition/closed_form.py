"""Rigorous bounds in closed form, such as the privacy profile of one release, rounded upwards and downwards."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass

import numpy as np

from accountants.composition.repeated import GuaranteeLike
from accountants.composition.trade_off import CurvePoint, Interval, curve_point, points_around
from accountants.dominating_pairs.base import DominatingPair, cap, lower_profile, profile
from accountants.profile import inverse_profile
from dpkernels.numerics import Real
from dpkernels.proven import proven
from dpkernels.solve import NotPrivateError, first_feasible

# The distances by which an eps is moved outwards from an estimate, in turn, relative to 1 + eps.
_MARGINS = (0.0, *(2.0**k for k in range(-53, 11)))
MAX_EPSILON = 0.99 * cap(np.float64)  # The largest eps at which profiles are evaluated.
_UNDERFLOW = 2.0**-1060  # More than what a profile loses below the floats.
_LARGE_MU = 10.0  # The mu from which on one Gaussian release may need a larger one.
_ZOOM_POINTS = 33  # The points of a round of the search for the highest line: each round narrows it by 16.
_ZOOMS = 12  # The rounds, which narrow it by 2^48.


def more_than_least(delta: Real) -> np.ndarray:
    """Return an upper bound of a profile where products and sums may be below the floats."""
    return np.minimum(np.asarray(delta) + _UNDERFLOW, 1.0)


class Bounds(abc.ABC):
    """Rigorous bounds (lower, upper) of a guarantee of plain numbers, by one method."""

    @abc.abstractmethod
    def delta(self, epsilon: float) -> Interval:
        """Return bounds of delta at a finite eps >= 0."""

    @abc.abstractmethod
    def epsilon(self, delta: float) -> Interval:
        """Return bounds of the least eps at delta in (0, 1)."""

    @abc.abstractmethod
    def curve_point(self, alpha: float, largest_loss: float) -> CurvePoint:
        """Return bounds of the trade-off curve at alpha in (0, 1)."""

    def upper_delta(self, epsilon: float) -> float:
        return self.delta(epsilon)[1]

    def upper_epsilon(self, delta: float) -> float:
        return self.epsilon(delta)[1]


class ClosedForm(Bounds):
    """Bounds by a formula with a bound on its rounding errors."""

    @classmethod
    @abc.abstractmethod
    def from_guarantee(cls, guarantee: GuaranteeLike) -> ClosedForm | None:
        """Return the formula's bounds of a guarantee, or None if it does not apply."""

    @abc.abstractmethod
    def bound(self, epsilon: float, side: int) -> float:
        """Return an upper (side 1) or lower (side -1) bound of delta at a finite eps >= 0."""

    @abc.abstractmethod
    def estimate(self, delta: float) -> float:
        """Return an estimate of the least eps at delta, or inf."""

    @abc.abstractmethod
    def tangent_points(self, alpha: float, is_flat: bool, largest_loss: float) -> np.ndarray:
        """Return points around the eps of the highest line at alpha; see ``trade_off.curve_point``."""

    def curve_point(self, alpha: float, largest_loss: float) -> CurvePoint:
        return curve_point(
            self.delta, lambda alpha, is_flat: self.tangent_points(alpha, is_flat, largest_loss), alpha, largest_loss
        )

    def delta(self, epsilon: float) -> Interval:
        return self.bound(epsilon, -1), self.bound(epsilon, 1)

    def upper_delta(self, epsilon: float) -> float:
        return self.bound(epsilon, 1)

    def epsilon(self, delta: float) -> Interval:
        estimate = self.estimate(delta)
        return self._certified_epsilon(estimate, delta, -1), self._certified_epsilon(estimate, delta, 1)

    def upper_epsilon(self, delta: float) -> float:
        return self._certified_epsilon(self.estimate(delta), delta, 1)

    def _certified_epsilon(self, estimate: float, delta: float, side: int) -> float:
        """Return the first eps, from the estimate on, that the bound of this side proves to suffice, or to be small."""
        if not math.isfinite(estimate):
            return math.inf if side > 0 else MAX_EPSILON if self.bound(MAX_EPSILON, -1) > delta else 0.0
        candidates = (max(estimate + side * margin * (1 + estimate), 0.0) for margin in _MARGINS)
        if side < 0:
            return first_feasible(candidates, lambda eps: eps == 0.0 or self.bound(eps, -1) > delta)
        try:
            return first_feasible(candidates, lambda eps: self.bound(eps, 1) <= delta)
        except NotPrivateError:
            return math.inf


@proven("sums#closed-forms")
@dataclass(frozen=True)
class OneRelease(ClosedForm):
    """The bounds of one release by the profile of its dominating pairs."""

    pairs: tuple[DominatingPair, ...]

    @classmethod
    def from_guarantee(cls, guarantee: GuaranteeLike) -> OneRelease | None:
        (first, *others) = guarantee.numeric.terms
        if others or first.count != 1 or any(pair.has_estimated_masses for pair in first.pairs):
            return None
        is_large_mu = first.is_gaussian and abs(float(first.mu)) > _LARGE_MU
        return None if is_large_mu else cls(first.release_pairs())

    def bound(self, epsilon: float, side: int) -> float:
        eps = np.float64(epsilon)
        if side > 0:
            return float(more_than_least(profile(self.pairs, eps)))
        return float(lower_profile(self.pairs, eps)) if epsilon <= MAX_EPSILON else 0.0

    def estimate(self, delta: float) -> float:
        return float(inverse_profile(self.pairs, np.float64(delta)))

    def tangent_points(self, alpha: float, is_flat: bool, largest_loss: float) -> np.ndarray:
        low, high = 0.0, min(largest_loss, MAX_EPSILON if is_flat else -math.log(alpha))
        for _ in range(_ZOOMS):
            eps = np.linspace(low, high, _ZOOM_POINTS)
            delta = profile(self.pairs, eps)
            with np.errstate(over="ignore"):
                height = np.exp(-eps) * (1 - alpha - delta) if is_flat else -delta - np.exp(eps) * alpha
            best = int(height.argmax())
            low, high = float(eps[max(best - 1, 0)]), float(eps[min(best + 1, len(eps) - 1)])
        return points_around((low + high) / 2)
