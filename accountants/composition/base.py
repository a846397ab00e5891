"""Composed privacy profiles: delta as a function of eps for finite losses, its gradient, and its root."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np

from dpkernels.numerics import namespace
from dpkernels.solve import while_loop

_STEPS = 60
# How near the target log delta is before the last of Newton's steps, as a power of a rounding: 1e-9, 1e-4 in 32 bits.
_NEAR = 0.575


class ComposedProfile(abc.ABC):
    """The privacy profile of composed releases, without infinite losses; a pytree of arrays."""

    @abc.abstractmethod
    def evaluate(self, epsilon: Any) -> tuple[Any, Any, Any]:
        """Return (log delta, its derivative in eps, the evaluation that ``gradient`` needs) at one eps."""

    @abc.abstractmethod
    def gradient(self, evaluation: Any) -> tuple[Any, Any]:
        """Return the derivatives of delta in everything that is composed, and in eps; JAX arrays only."""

    @abc.abstractmethod
    def empty(self) -> Any:
        """Return an evaluation of zeros: the shape of what ``evaluate`` returns last."""

    def is_resolved(self, epsilon: Any, value: Any, slope: Any, noise: Any) -> Any:
        """Return whether floats resolve which eps has a value of log delta.

        Args:
            epsilon: eps.
            value: log delta there.
            slope: its derivative there.
            noise: the relative error of tilted masses.
        """
        return epsilon > -np.inf

    def solve(self, log_delta: Any, start: Any, floor: Any, noise: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Return where log delta(eps) has a value, or the floor if it is less there.

        Newton's steps; a step that leaves the known bracket of the root goes to its middle, or twice as far.

        Args:
            log_delta: the value.
            start: where the iteration starts.
            floor: the least eps of interest.
            noise: the relative error of delta.

        Returns:
            (eps, value and slope of log delta next to it, whether it was found to a rounding of eps or of the value,
            the evaluation there).
        """
        xp = namespace(log_delta, start)
        unit = xp.finfo(log_delta.dtype).eps
        near = unit**_NEAR + noise

        def is_found(eps: Any, value: Any, slope: Any) -> Any:
            rounding = 2 * unit * xp.maximum(-slope, 0.0) * eps
            return xp.isfinite(value) & (xp.abs(value - log_delta) <= near + rounding)

        def unfinished(state: Any) -> Any:
            k, eps, value, slope, low, high, _ = state
            done = is_found(eps, value, slope) | ((eps <= floor) & (value <= log_delta))
            return (k < _STEPS) & ~done & ((high == np.inf) | (high - low > unit * high))

        def newton(state: Any) -> Any:
            """Go to the next trial from what is known of this one; of the first one nothing is."""
            k, eps, value, slope, low, high, _ = state
            low, high = xp.where(value > log_delta, eps, low), xp.where(value > log_delta, high, eps)
            low, high = xp.where(k > 0, low, floor - 1), xp.where(k > 0, high, np.inf)
            new = xp.maximum(eps - (value - log_delta) / xp.where(slope < 0, slope, -1.0), floor)
            middle = xp.where(low < floor, floor, xp.where(high == np.inf, 2 * low + 1e-3, (low + high) / 2))
            new = xp.where((new > low) & (new < high) & (slope < 0), new, middle)
            new = xp.where(k > 0, new, start)
            value, slope, evaluation = self.evaluate(new)
            return k + 1, new, value, slope, low, high, evaluation

        none = xp.full_like(log_delta, np.inf)
        state = xp.zeros_like(log_delta, int), start, none, -none, floor - 1, none, self.empty()
        _, eps, value, slope, low, high, evaluation = while_loop(unfinished, newton, state)
        last = xp.maximum(eps - (value - log_delta) / xp.where(slope < 0, slope, -1.0), floor)
        found = is_found(eps, value, slope)
        # A bracket halved to its end is on the safe side.
        ended = xp.where(value <= log_delta, eps, high)
        return xp.where(found, last, ended), value, slope, found | (high - low <= 4 * unit * high), evaluation
