"""The interfaces of a method of composition, and of the privacy profile that it returns."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np

from accountants.composition.repeated import LossTuple, RepeatedLoss
from dpkernels.numerics import Boolean, Real, RealArray, choose, namespace
from dpkernels.pytrees import PyTree
from dpkernels.solve import while_loop

_MAX_ITERATIONS = 60  # The most steps of a search for eps, which also ends if its bracket has the width of a rounding.
# By this step Newton's method has ended, unless it creeps; from then on every other step is a bisection.
_ITERATIONS_TO_BISECT = 12
# The error of log delta before the last Newton step, as a power of the rounding unit. The step squares it.
FOR_VALUES = 0.45
# The same where derivatives are needed, which are taken before that step: 1e-9, or 1e-4 in 32 bits.
FOR_DERIVATIVES = 0.575


class ComposedProfile(abc.ABC):
    """The privacy profile of composed releases, without infinite losses; a pytree of arrays."""

    @abc.abstractmethod
    def evaluate(self, epsilon: Real) -> tuple[Real, Real, PyTree]:
        """Return (log delta, its derivative in eps, the evaluation that ``gradient`` needs) at one eps."""

    @abc.abstractmethod
    def gradient(self, evaluation: PyTree) -> tuple[PyTree, Real]:
        """Return the derivatives of delta in everything that is composed, and in eps; JAX arrays only."""

    @abc.abstractmethod
    def empty(self) -> PyTree:
        """Return an evaluation of zeros: the shape of what ``evaluate`` returns last."""

    def is_resolved(self, epsilon: Real, value: Real, slope: Real, rounding_rtol: Real) -> Boolean:
        """Return whether floating point resolves the eps at which log delta has a value; see ``solve``."""
        return epsilon > -np.inf

    def solve(
        self, log_delta: Any, start: Real, floor: Real, rounding_rtol: Real, precision: float
    ) -> tuple[Real, Real, Real, Boolean, PyTree]:
        """Return the eps at which log delta(eps) has a value, or the floor if log delta is smaller there.

        The iteration is Newton's, from ``start``. A step that leaves the known bracket of the root, and later every
        other step, goes to the middle of the bracket, or twice as far if there is no upper end yet. ``rounding_rtol``
        is the relative error of delta; ``precision`` is ``FOR_VALUES`` or ``FOR_DERIVATIVES``. The result is (eps,
        value and slope of log delta next to it, whether eps or the value is accurate to rounding, the evaluation).
        """
        xp = namespace(log_delta, start)
        unit = xp.finfo(log_delta.dtype).eps
        tolerance = unit**precision + rounding_rtol

        def is_near_root(eps: Real, value: Real, slope: RealArray) -> Boolean:
            rounding_error = 2 * unit * xp.maximum(-slope, 0.0) * eps
            return xp.isfinite(value) & (xp.abs(value - log_delta) <= tolerance + rounding_error)

        def newton_step(eps: Real, value: Real, slope: RealArray) -> Real:
            return xp.maximum(eps - (value - log_delta) / choose(slope < 0, slope, -1.0), floor)

        def unfinished(state: PyTree) -> Boolean:
            k, eps, value, slope, low, high, _ = state
            done = is_near_root(eps, value, slope) | ((eps <= floor) & (value <= log_delta))
            return (k < _MAX_ITERATIONS) & ~done & ((high == np.inf) | (high - low > unit * high))

        def advance(state: PyTree) -> PyTree:
            k, eps, value, slope, low, high, _ = state
            low, high = choose(value > log_delta, eps, low), choose(value > log_delta, high, eps)
            low, high = choose(k > 0, low, floor - 1), choose(k > 0, high, np.inf)
            new = newton_step(eps, value, slope)
            middle = choose(low < floor, floor, choose(high == np.inf, 2 * low + 1e-3, (low + high) / 2))
            creeps = (k > _ITERATIONS_TO_BISECT) & (k % 2 == 1) & (high < np.inf)
            new = choose((new > low) & (new < high) & (slope < 0) & ~creeps, new, middle)
            new = choose(k > 0, new, start)
            value, slope, evaluation = self.evaluate(new)
            return k + 1, new, value, slope, low, high, evaluation

        infinity = xp.full_like(log_delta, np.inf)
        state = xp.zeros_like(log_delta, int), start, infinity, -infinity, floor - 1, infinity, self.empty()
        _, eps, value, slope, low, high, evaluation = while_loop(unfinished, advance, state)
        is_root = is_near_root(eps, value, slope)
        # A bracket that was halved to its end is rounded conservatively.
        conservative_end = choose(value <= log_delta, eps, high)
        accurate = is_root | (high - low <= 4 * unit * high)
        return choose(is_root, newton_step(eps, value, slope), conservative_end), value, slope, accurate, evaluation


class Composer(abc.ABC):
    """A method that composes the losses of one neighbour direction; a pytree of numbers that change its precision only.

    ``dispatch`` takes the first method that applies. What is composed, ``prepare`` returns, which JAX differentiates,
    and its profile has a gradient in all of that.
    """

    @classmethod
    @abc.abstractmethod
    def applies(cls, direction: Any) -> Boolean:
        """Return whether the method applies to a ``tilted_direction.Direction``; this may be a traced boolean."""

    @classmethod
    @abc.abstractmethod
    def for_direction(cls, direction: Any) -> Composer:
        """Return the method with the numbers that suit a direction."""

    @abc.abstractmethod
    def prepare(self, losses: LossTuple) -> tuple[PyTree, Real]:
        """Return (what is composed, the probability of an infinite loss) for the losses of all releases."""

    @abc.abstractmethod
    def profile(self, prepared: PyTree, direction: Any) -> ComposedProfile:
        """Return the privacy profile of the finite losses that were prepared for a direction."""

    def compose(self, direction: Any) -> tuple[ComposedProfile, Real]:
        """Return the privacy profile of a direction's finite losses, and the probability of an infinite loss."""
        prepared, infinite = self.prepare(direction.losses)
        return self.profile(prepared, direction), infinite

    def initial_guess(self, composed: ComposedProfile, log_delta: Real) -> Real:
        """Return an estimate of the eps at which log delta has a value."""
        return 0.0 * log_delta

    def rounding_rtol(self, losses: tuple[RepeatedLoss, ...], number: RealArray) -> Real:
        """Return the approximate relative error of delta in the type of a number."""
        return sum(term.count for term in losses) * namespace(number).finfo(number.dtype).eps
