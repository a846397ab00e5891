"""Validation of arguments: every error names the argument, its value and what is allowed.

Tracers, and the placeholders jax puts into pytrees, are let through: only concrete numbers can be judged.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

EPSILON_RANGE = (0.01, 20.0)


def concrete(value: Any) -> np.ndarray | None:
    """The value as a float64 array, or None where it is a tracer or a pytree placeholder."""
    if value is None or isinstance(value, jax.core.Tracer) or type(value) is object:
        return None
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError):
        return None


def within(name: str, value: Any, low: float, high: float, *, open_ends: bool = False) -> None:
    """Refuse a concrete value outside [low, high], or (low, high) with ``open_ends``; NaN is outside.

    Raises:
        ValueError: naming the argument, the value and the range.
        TypeError: the value is text.
    """
    if isinstance(value, str):
        raise TypeError(f"{name}: {value!r} is text; it must be a number")
    number = concrete(value)
    if number is None:
        return
    inside = (low < number) & (number < high) if open_ends else (low <= number) & (number <= high)
    if not np.all(inside):
        span = f"({low:g}, {high:g})" if open_ends else f"[{low:g}, {high:g}]"
        raise ValueError(f"{name}: {_shown(value)} is not in {span}")


def positive(name: str, value: Any) -> None:
    """Refuse what is not positive and finite."""
    within(name, value, 0.0, np.inf, open_ends=True)


def epsilon(value: Any) -> None:
    """Refuse a budget outside [0.01, 20]: below there is no signal left, above no privacy."""
    within("epsilon", value, *EPSILON_RANGE)


def interval(lower: Any, upper: Any) -> None:
    """Refuse an input interval that is not finite or not lower < upper."""
    limit = 1e150  # Squares of the width, hence variances, stay finite.
    within("lower", lower, -limit, limit)
    within("upper", upper, -limit, limit)
    low, high = concrete(lower), concrete(upper)
    if low is None or high is None:
        return
    if not np.all(low < high):
        raise ValueError(f"lower, upper: {_shown(lower)}, {_shown(upper)}; lower must be below upper")
    if np.any(high - low <= 1e-12 * np.maximum(abs(low), abs(high))):
        raise ValueError(f"lower, upper: {_shown(lower)}, {_shown(upper)} are too close to be told apart")


def one_of(name: str, value: str, allowed: Any) -> None:
    """Refuse a choice that is not listed."""
    if value not in allowed:
        raise ValueError(f"{name}: {value!r} is not one of {', '.join(sorted(allowed))}")


def _shown(value: Any) -> str:
    text = np.array2string(np.asarray(value), threshold=4, precision=12)
    return text if len(text) < 80 else text[:77] + "..."
