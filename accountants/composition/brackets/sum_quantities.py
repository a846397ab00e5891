"""Quantities of a sum of losses: delta at an eps, eps at a delta, and the power at a type I error."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat

import numpy as np

from accountants.composition.brackets.sums import ComposedBounds
from accountants.composition.trade_off import error_of_line, power_of_line
from dpkernels.solve import NotPrivateError, first_feasible, root

MIN_ERROR = 1e-300  # The least error that is not 0.
_MAX_EPSILON = 1e300  # The largest eps that is looked for.
# Relative distances of an eps from the root, outwards, that are tried in turn; rounding errors may need larger ones.
_MARGINS = tuple(2e-11 * 4.0**k for k in range(14))
_SLOPE_STEP = 1e-5  # The relative step of eps of the difference quotient of log delta.
# Relative distances from an estimate at which the root is bracketed, in turn.
_SEARCH_STEPS = 2.0**-12, 2.0**-8, 2.0**-4


class SumQuantity(abc.ABC):
    """A quantity of a sum of losses, such as delta at an eps, of which bounds of the sum give bounds."""

    @abc.abstractmethod
    def __call__(self, total: ComposedBounds, side: int, guess: float) -> float:
        """Return the quantity by an upper (side 1) or lower (side -1) bound of a sum."""

    def rounding_rtol(self, total: ComposedBounds, answer: float) -> float:
        """Return about the relative error of the quantity by errors of transforms and by what wraps around."""
        return 0.0

    def target_epsilon(self, guess: float) -> float:
        """Return the eps at which delta is taken, or about that."""
        return guess


@dataclass(frozen=True)
class DeltaOfSum(SumQuantity):
    """Delta at an eps."""

    epsilon: float

    def __call__(self, total: ComposedBounds, side: int, guess: float) -> float:
        return total.delta(self.epsilon, side)

    def rounding_rtol(self, total: ComposedBounds, answer: float) -> float:
        return total.delta_rounding_rtol(self.epsilon)

    def target_epsilon(self, guess: float) -> float:
        return self.epsilon


@dataclass(frozen=True)
class EpsilonOfSum(SumQuantity):
    """The least eps at a delta."""

    delta: float

    def __call__(self, total: ComposedBounds, side: int, guess: float) -> float:
        """Return an eps at which a bound of delta meets the target, rounded to its side."""
        start = total.estimate_epsilon(self.delta)
        if start is None and total.infinite > self.delta:
            return math.inf if side > 0 or total.delta(_MAX_EPSILON, side) > self.delta else 0.0
        guess = guess if start is None else start
        return _least_epsilon(lambda eps: total.delta(eps, side), side, self.delta, guess)

    def rounding_rtol(self, total: ComposedBounds, answer: float) -> float:
        # The log of delta falls about as fast as the tilt says.
        return total.delta_rounding_rtol(answer) / max(total.tilt * answer, 1.0) if math.isfinite(answer) else 0.0


@dataclass(frozen=True)
class SumRecorder(SumQuantity):
    """No quantity: the sums themselves are kept in a list."""

    totals: list[ComposedBounds]

    def __call__(self, total: ComposedBounds, side: int, guess: float) -> float:
        self.totals.append(total)
        return 0.0


@dataclass(frozen=True)
class PowerOfSum(SumQuantity):
    """The power at a type I error, or 1 over the type II error if lines are flat: what grows with delta."""

    alpha: float
    epsilon: float
    is_flat: bool

    def __call__(self, total: ComposedBounds, side: int, guess: float) -> float:
        if side > 0:
            delta = total.delta(self.epsilon, 1)
            if not self.is_flat:
                return power_of_line(self.epsilon, delta, self.alpha, 1)
            return 1 / max(error_of_line(self.epsilon, delta, self.alpha, -1), MIN_ERROR)
        if not self.is_flat:
            return total.test_bound(self.alpha, False)
        error = total.test_bound(self.alpha, True)
        # Where the flat lines are not certain to be the highest ones, the error is at most alpha.
        error = error if error <= self.alpha else max(1 - total.test_bound(self.alpha, False), self.alpha)
        return 1 / max(error, MIN_ERROR)

    def rounding_rtol(self, total: ComposedBounds, answer: float) -> float:
        delta = total.delta(self.epsilon, 1)
        power = 1 - self.alpha - delta if self.is_flat else answer
        return total.delta_rounding_rtol(self.epsilon) * delta / power if power > 0 else 0.0

    def target_epsilon(self, guess: float) -> float:
        return self.epsilon


def _least_epsilon(delta: Callable[[float], float], side: int, target: float, guess: float) -> float:
    """Return an eps, searched from a guess, at which a bound of delta meets the target, rounded to its side."""

    def feasible(eps: float) -> bool:
        return delta(eps) <= target if side > 0 else delta(eps) > target

    if guess > 0:
        # Delta is nearly exponential; the guess does not know the errors.
        log_delta, log_delta_further = (math.log(max(delta(eps), 1e-320)) for eps in (guess, guess * (1 + _SLOPE_STEP)))
        log_excess, slope = log_delta - math.log(target), (log_delta - log_delta_further) / (guess * _SLOPE_STEP)
        start = guess + log_excess / slope if abs(log_excess) < 0.1 * guess * slope else guess
        for margin in _MARGINS[:4]:
            eps = start * (1 + margin * side) if start > 0 else guess
            if feasible(eps):
                if abs(log_excess) < 1e-6:
                    return float(eps)
                break
    low, high = None, max(guess, 1e-3)
    growths = chain(_SEARCH_STEPS, repeat(0.25))
    while delta(high) > target:
        low, high = high, (1 + next(growths)) * high
        if high > _MAX_EPSILON:
            return math.inf if side > 0 else low
    if low is None:
        candidates = (high * (1 - growth) for growth in (*_SEARCH_STEPS, 0.5, 1.0))
        low = next((eps for eps in candidates if delta(eps) > target), None)
    if low is None:
        return 0.0
    solution = root(lambda eps, _: np.log(max(delta(eps), 1e-320) / target), (), high, low, rtol=1e-11)
    with suppress(NotPrivateError):  # Next to the least float delta falls in jumps.
        return first_feasible((float(solution * (1 + margin * side)) for margin in _MARGINS), feasible)
    return math.inf if side > 0 else 0.0
