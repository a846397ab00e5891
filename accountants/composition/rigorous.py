"""Rigorous bounds of a guarantee of plain numbers, by the narrowest method that applies.

- One release: its profile, which is rounded upwards by eight units in the last place of 1 + eps, and its lower bound.
- Gaussian noise alone, any number of releases: closed form, with a bound on its rounding errors.
- Few joint outcomes: enumeration, with a bound on its rounding errors.
- Noise that is not even: dynamic programming over the directions of a neighbour (``adaptive``), where it has a bracket.
- All others: ``bounds.Bracket``, by privacy loss distributions on a grid.

From the sum of all releases' largest losses on, delta is 0.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, Protocol

import jax
import numpy as np

from accountants.composition import enumeration
from accountants.composition.bounds import Bracket
from accountants.composition.enumeration import JointOutcomes
from accountants.composition.gaussian import GaussianProfile
from accountants.composition.self_composed import check_one_mechanism
from accountants.composition.trade_off import CurvePoint, around, around_estimate, curve_point, searched_place
from accountants.dominating_pairs.base import cap, lower_profile, profile
from accountants.dominating_pairs.discrete import Atoms
from accountants.profile import epsilon_of
from dpkernels.numerics import ndtri
from dpkernels.proven import proven
from dpkernels.solve import NotPrivateError, first_feasible

_UNIT = 2.0**-53  # The rounding of a float.
# The relative and the absolute error allowed for a largest loss, which is the log of a ratio near 1 if it is small.
_LEVEL, _LOSS = 1e-12, 64 * _UNIT
# The relative error allowed for the mass of an outcome of one release: of a table, whose masses are given, and of a
# mechanism, from whose densities they are computed.
_MASS_OF_TABLE, _MASS = 16 * _UNIT, 1e-12
# Rounding errors of the closed form of Gaussian noise, in units: of its sums, for each unit of |log delta|, and of
# eps/mu -/+ mu/2, relative to eps/mu + mu/2.
_SUMS, _LOGS, _PLACES = 128, 8, 16
# Rounding errors of the log of a joint outcome's probability, in units for each unit of the log.
_TERMS = 8
# The distances by which an eps is moved outwards from an estimate, in turn, relative to 1 + eps.
_OUTWARD = (0.0, *(2.0**k for k in range(-53, 11)))
# The largest eps at which profiles are evaluated, and the mu from which on one Gaussian release may need a larger one.
_FARTHEST, _LARGE_MU = 0.99 * cap(np.float64), 10.0
_LEAST = 5e-324  # The least positive float: what a bound of a positive delta underflows to.
# The points and the rounds of a search for the highest line, which narrows by 16 in each round.
_ZOOM_POINTS, _ZOOMS = 33, 12
_DIGITS, _PRECISE = 12, 1e-15  # The digits in which equal losses agree, and the precision of a search.
_REMEMBERED = 512  # The most answers of each kind that a guarantee keeps.


class Bounds(Protocol):
    """The interface of ``bounds.Bracket``: (lower, upper) bounds, or an upper bound alone, which may take less time."""

    def delta(self, epsilon: float) -> tuple[float, float]: ...

    def epsilon(self, delta: float) -> tuple[float, float]: ...

    def upper_delta(self, epsilon: float) -> float: ...

    def upper_epsilon(self, delta: float) -> float: ...

    def errors(self, alpha: float, largest_loss: float) -> CurvePoint: ...


class ClosedForm(abc.ABC):
    """Bounds by a formula with a bound on its rounding errors."""

    @abc.abstractmethod
    def bound(self, epsilon: float, side: int) -> float:
        """Return an upper (side 1) or lower (side -1) bound of delta at a finite eps >= 0."""

    @abc.abstractmethod
    def estimate(self, delta: float) -> float:
        """Return an estimate of the least eps at delta, or inf."""

    @abc.abstractmethod
    def places(self, alpha: float, is_flat: bool, largest_loss: float) -> np.ndarray:
        """Return points around the eps of the highest line at alpha; see ``trade_off.curve_point``."""

    def errors(self, alpha: float, largest_loss: float) -> CurvePoint:
        """Return bounds of the trade-off curve at alpha in (0, 1)."""
        return curve_point(
            self.delta, lambda alpha, is_flat: self.places(alpha, is_flat, largest_loss), alpha, largest_loss
        )

    def delta(self, epsilon: float) -> tuple[float, float]:
        return self.bound(epsilon, -1), self.bound(epsilon, 1)

    def upper_delta(self, epsilon: float) -> float:
        return self.bound(epsilon, 1)

    def epsilon(self, delta: float) -> tuple[float, float]:
        estimate = self.estimate(delta)
        return self._outward(estimate, delta, -1), self._outward(estimate, delta, 1)

    def upper_epsilon(self, delta: float) -> float:
        return self._outward(self.estimate(delta), delta, 1)

    def _outward(self, estimate: float, delta: float, side: int) -> float:
        """Return the first eps, from the estimate on, that the bound of this side proves to suffice, or to be small."""
        if not math.isfinite(estimate):
            return math.inf if side > 0 else _FARTHEST if self.bound(_FARTHEST, -1) > delta else 0.0
        candidates = (max(estimate + side * share * (1 + estimate), 0.0) for share in _OUTWARD)
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

    pairs: tuple[Any, ...]

    def bound(self, epsilon: float, side: int) -> float:
        eps = np.float64(epsilon)
        if side > 0:
            return float(profile(self.pairs, eps))
        return float(lower_profile(self.pairs, eps)) if epsilon <= _FARTHEST else 0.0

    def estimate(self, delta: float) -> float:
        return float(epsilon_of(self.pairs, np.float64(delta)))

    def places(self, alpha: float, is_flat: bool, largest_loss: float) -> np.ndarray:
        low, high = 0.0, min(largest_loss, _FARTHEST if is_flat else -math.log(alpha))
        for _ in range(_ZOOMS):
            eps = np.linspace(low, high, _ZOOM_POINTS)
            delta = profile(self.pairs, eps)
            with np.errstate(over="ignore"):
                height = np.exp(-eps) * (1 - alpha - delta) if is_flat else -delta - np.exp(eps) * alpha
            best = int(height.argmax())
            low, high = float(eps[max(best - 1, 0)]), float(eps[min(best + 1, len(eps) - 1)])
        return around((low + high) / 2)


@proven("sums#closed-forms")
@dataclass(frozen=True)
class GaussianReleases(ClosedForm):
    """The bounds of Gaussian noise alone, on all the data.

    The formulas evaluate x = eps/mu - mu/2 with an error of some units of y = eps/mu + mu/2, and log delta changes by
    at most |x| + 2 for each unit of x.
    """

    form: GaussianProfile

    @classmethod
    def of(cls, guarantee: Any) -> GaussianReleases:
        (parts,) = guarantee.numeric.repeated_losses()
        return cls(GaussianProfile.of(parts))

    def bound(self, epsilon: float, side: int) -> float:
        mu = float(self.form.mu)
        x, y = epsilon / mu - mu / 2, epsilon / mu + mu / 2
        with np.errstate(all="ignore"):
            log_delta = float(self.form.evaluate(np.float64(epsilon))[0])
        units = _SUMS + _LOGS * abs(log_delta) + _PLACES * y * (abs(x) + 2)
        if not math.isfinite(units):  # Beyond the floats, where delta is almost 0 or almost 1.
            return 0.0 if side < 0 else _LEAST if x > 1e6 else 1.0
        delta = math.exp(min(log_delta + side * units * _UNIT, 0.0))
        return max(delta, _LEAST) if side > 0 else delta

    def estimate(self, delta: float) -> float:
        log_delta, zero = np.float64(math.log(delta)), np.float64(0.0)
        with np.errstate(all="ignore"):
            guess = self.form.guess(log_delta)
            return float(self.form.solve(log_delta, guess, zero, zero, False)[0])

    def places(self, alpha: float, is_flat: bool, largest_loss: float) -> np.ndarray:
        mu, quantile = float(self.form.mu), float(ndtri(np.float64(alpha)))
        return around(mu * (mu / 2 + quantile if is_flat else -quantile - mu / 2))


@proven("sums#closed-forms")
@dataclass(frozen=True)
class FewOutcomes(ClosedForm):
    """The bounds of releases with few joint outcomes, given for each neighbour direction."""

    directions: list[JointOutcomes]
    count: int  # of all releases.
    mass_error: float  # The relative error of the mass of one release's outcome.

    def bound(self, epsilon: float, side: int) -> float:
        return max(self._bound(outcomes, epsilon, side) for outcomes in self.directions)

    def _bound(self, outcomes: JointOutcomes, epsilon: float, side: int) -> float:
        logs = np.stack([outcomes.log_p, outcomes.log_q])
        size = np.where(np.isfinite(logs), np.abs(logs), 0.0)
        error_p, error_q = _UNIT * _TERMS * (self.count + size)
        with np.errstate(invalid="ignore"):
            loss = np.where(np.isneginf(logs[0]), -np.inf, logs[0] - logs[1])
        rounding = error_p + error_q + _UNIT * _TERMS * epsilon
        gain = -np.expm1(np.minimum(epsilon - loss - side * rounding, 0.0))
        mass = np.exp(logs[0] + side * (error_p + self.count * self.mass_error))
        total = float((mass * gain).sum()) * (1 + side * _UNIT * len(loss))
        return min(max(total, 0.0), 1.0)

    def estimate(self, delta: float) -> float:
        return float(enumeration.evaluate_outcomes("epsilon", self.directions, np.float64(delta)))

    def places(self, alpha: float, is_flat: bool, largest_loss: float) -> np.ndarray:
        """Return points around the loss beyond which q has the mass alpha, or p that of 1 - alpha.

        Of two directions, the highest line may be where their profiles cross.
        """
        if len(self.directions) > 1:
            upper = partial(self.bound, side=1)
            return around(searched_place(upper, alpha, is_flat, largest_loss, _PRECISE))
        ((loss, p, q),) = self._sorted
        place = int(np.searchsorted(p, 1 - alpha) if is_flat else np.searchsorted(q, alpha))
        return np.append(around(float(loss[min(place, len(loss) - 1)])), 0.0)

    @cached_property
    def _sorted(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Return, for every direction, the different losses, falling, and the masses of p and q from each on."""
        columns = []
        for log_p, log_q in self.directions:
            some = np.isfinite(log_p) & np.isfinite(log_q)
            loss, index = np.unique(np.round(log_q[some] - log_p[some], _DIGITS), return_inverse=True)
            infinite = np.exp(log_p[np.isneginf(log_q)]).sum()
            p = infinite + np.cumsum(np.bincount(index, np.exp(log_p[some])))
            columns.append((-loss, p, np.cumsum(np.bincount(index, np.exp(log_q[some])))))
        return columns


@dataclass(frozen=True)
class ByDirections:
    """The bounds of noise that is not even, whose neighbour may move in another direction from release to release."""

    profile: Any  # An ``adaptive.AdaptiveProfile``, whose bracket may be None.
    otherwise: Bracket

    def delta(self, epsilon: float) -> tuple[float, float]:
        return self.profile.bracket("delta", epsilon) or self.otherwise.delta(epsilon)

    def epsilon(self, delta: float) -> tuple[float, float]:
        return self.profile.bracket("epsilon", delta) or self.otherwise.epsilon(delta)

    def upper_delta(self, epsilon: float) -> float:
        return self.delta(epsilon)[1]

    def upper_epsilon(self, delta: float) -> float:
        return self.epsilon(delta)[1]

    def errors(self, alpha: float, largest_loss: float) -> CurvePoint:
        def places(alpha: float, is_flat: bool) -> np.ndarray:
            return around_estimate(self.otherwise.guarantee.estimate_delta, alpha, is_flat, largest_loss)

        return curve_point(self.delta, places, alpha, largest_loss)


class RigorousBounds:
    """The bounds of a guarantee of plain numbers, by the narrowest method; answers are remembered."""

    def __init__(self, guarantee: Any) -> None:
        check_one_mechanism(guarantee.terms)
        self.guarantee = guarantee
        self.delta = lru_cache(_REMEMBERED)(self._delta)
        self.epsilon = lru_cache(_REMEMBERED)(self._epsilon)
        self.errors = lru_cache(_REMEMBERED)(self._errors)

    @cached_property
    def method(self) -> Bounds:
        """Return the narrowest method that applies."""
        terms = self.guarantee.numeric.terms
        if any(np.isnan(leaf).any() for leaf in jax.tree.leaves(terms)):
            raise ValueError("mechanism: a parameter is NaN, so it has no bracket")
        gaussian = GaussianReleases.of(self.guarantee) if all(term.is_gaussian for term in terms) else None
        (first, *others) = terms
        is_single = not others and first.count == 1 and not any(pair.has_estimated_masses for pair in first.pairs)
        if is_single and (gaussian is None or gaussian.form.mu <= _LARGE_MU):
            return OneRelease(first.one_release())
        if gaussian is not None:
            return gaussian
        outcomes = enumeration.enumerate_outcomes(terms, self.guarantee.neighbour_directions)
        if outcomes is not None:
            are_tables = all(isinstance(pair, Atoms) for term in terms for pair in term.pairs)
            count = int(sum(term.count for term in terms))
            return FewOutcomes(outcomes, count, _MASS_OF_TABLE if are_tables else _MASS)
        by_grid, adaptive = Bracket(self.guarantee), self.guarantee.adaptive_profile
        return by_grid if adaptive is None else ByDirections(adaptive, by_grid)

    @cached_property
    def largest_loss(self) -> float:
        """Return an upper bound of the largest sum of losses; inf where it is unknown."""
        terms = self.guarantee.numeric.terms
        try:
            with np.errstate(all="ignore"):
                losses = [max(float(pair.largest_loss()) for pair in term.one_release()) for term in terms]
        except TypeError:  # A pair whose largest loss is unknown.
            return math.inf
        losses = [loss * (1 + _LEVEL) + _LOSS for loss in losses]
        level = sum(float(term.count) * loss for term, loss in zip(terms, losses, strict=True)) * (1 + _LEVEL)
        return level if level >= 0 else math.inf  # NaN is unknown.

    def upper_ends_of_delta(self, epsilon: np.ndarray) -> np.ndarray:
        """Return the upper ends of ``delta`` at every eps; those of closed forms without the lower ones."""
        if not isinstance(self.method, ClosedForm):
            return _each(lambda eps: self.delta(eps)[1], epsilon)
        if not isinstance(self.method, OneRelease):
            return _each(self.upper_delta, epsilon)
        beyond, delta = epsilon >= self.largest_loss, np.asarray(profile(self.method.pairs, epsilon))
        return np.where(beyond, self._of_infinite_losses[1], delta) if beyond.any() else delta

    def upper_ends_of_epsilon(self, delta: np.ndarray) -> np.ndarray:
        """Return the upper ends of ``epsilon`` at every delta; those of closed forms without the lower ones."""
        if not isinstance(self.method, ClosedForm):
            return _each(lambda at: self.epsilon(at)[1], delta)
        if not isinstance(self.method, OneRelease):
            return _each(self.upper_epsilon, delta)
        return np.minimum(epsilon_of(self.method.pairs, delta), self.largest_loss)

    def _delta(self, epsilon: float) -> tuple[float, float]:
        return self._of_infinite_losses if epsilon >= self.largest_loss else self.method.delta(epsilon)

    def upper_delta(self, epsilon: float) -> float:
        return self._of_infinite_losses[1] if epsilon >= self.largest_loss else self.method.upper_delta(epsilon)

    def _epsilon(self, delta: float) -> tuple[float, float]:
        low, high = self.method.epsilon(delta)
        return min(low, self.largest_loss), min(high, self.largest_loss)

    def upper_epsilon(self, delta: float) -> float:
        return min(self.method.upper_epsilon(delta), self.largest_loss)

    def _errors(self, alpha: float) -> CurvePoint:
        """Return bounds of the trade-off curve at alpha in [0, 1]."""
        if 0 < alpha < 1 and self.largest_loss > 0:
            return self.method.errors(alpha, self.largest_loss)
        low, high = self._of_infinite_losses if alpha == 0 else (alpha, alpha)
        return CurvePoint.of_power(low, high, alpha)

    @cached_property
    def _of_infinite_losses(self) -> tuple[float, float]:
        """Return bounds of the probability of an infinite loss, which is delta from the largest finite loss on."""
        infinite = self.guarantee.infinity_mass if math.isinf(self.largest_loss) else 0.0
        infinite = max(infinite, 0.0)  # Not -0.
        return infinite * (1 - _MASS), min(infinite * (1 + _MASS), 1.0)


def _each(bound: Callable[[float], float], at: np.ndarray) -> np.ndarray:
    return np.array([bound(float(number)) for number in at.ravel()], np.float64).reshape(at.shape)
