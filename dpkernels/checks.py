"""Validation of arguments: every error names the argument, its value and what is allowed.

The wrong kind of value is a TypeError, a wrong value a ValueError. Traced values are accepted unchecked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from dpkernels.decimals import shortest
from dpkernels.jax_on_use import Array, Tracer
from dpkernels.numerics import Boolean, Real

EPSILON_RANGE = (0.01, 20.0)  # The supported budgets: below there is no signal left, above no privacy.
# The supported budgets of noise, whose sums over many people may be worth releasing at small budgets.
NOISE_EPSILON_RANGE = (1e-6, 20.0)
_SENSITIVITY_RANGE = (1e-100, 1e100)  # Squares and long tails of the noise stay finite.
_MAX_END = 1e150  # The ends of intervals: squares of the width, hence variances, stay finite.
_WIDTH_RANGE = (1e-140, 1e140)  # Squares of widths, hence variances, neither vanish nor overflow.


def concrete(value: object) -> np.ndarray | None:
    """Return real numbers as a float64 array, or None where they are traced."""
    if isinstance(value, Tracer):
        return None
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{value!r} is not a number")
    return array.astype(np.float64)


def number(name: str, value: object) -> Any:
    """Return one real number: a tracer as it is, any other as a float."""
    if isinstance(value, Tracer) and not value.shape:
        return value
    array = np.asarray(value)
    if array.shape != () or array.dtype.kind not in "iuf":
        raise TypeError(f"{name}: {value!r} is not a number")
    return float(array)


def real(name: str, value: object) -> Real:
    """Return a number as a float, NumPy's arrays as float64, and JAX's arrays and tracers as they are."""
    if isinstance(value, Tracer) or (isinstance(value, Array) and value.ndim):
        return value
    if isinstance(value, np.ndarray) and value.ndim and value.dtype.kind in "iuf":
        return value.astype(np.float64)
    return number(name, value)


def not_traced(name: str, reason: str, *values: object) -> None:
    """Refuse values that JAX traces, for a reason that says what to do instead."""
    if any(isinstance(value, Tracer) for value in values):
        raise TypeError(f"{name}: traced by JAX (jit, grad or vmap). {reason}")


def integer_in(name: str, value: object, low: int, high: int) -> int:
    """Return an integer in low..high."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name}: {value!r} is not a whole number")
    if not low <= value <= high:
        raise ValueError(f"{name}: {value} is not in {low}..{high}")
    return int(value)


def integers(name: str, values: object) -> np.ndarray:
    """Return a vector of integers, at least one and none masked."""
    if np.ma.is_masked(values):
        raise TypeError(f"{name}: some are masked; there is no number for these")
    array = np.asarray(values)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name}: have shape {array.shape}; a 1-D array of one or more is needed")
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name}: are {array.dtype}; integers are needed")
    return array


def within(name: str, value: object, low: Real, high: Real, *, open_ends: bool = False, span: str = "") -> None:
    """Refuse a value outside [low, high], or (low, high) with ``open_ends``, and NaN; ``span`` describes the range."""
    if isinstance(value, str):
        raise TypeError(f"{name}: {value!r} is text; it must be a number")
    try:
        array = concrete(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: {value!r} is not a number") from error
    if array is None:
        return
    is_inside = (low < array) & (array < high) if open_ends else (low <= array) & (array <= high)
    if not np.all(is_inside):
        opening, closing = "()" if open_ends else "[]"
        span = span or f"{opening}{shortest(low)}, {shortest(high)}{closing}"
        raise ValueError(f"{name}: {refused(~is_inside, value)}{',' if array.ndim else ' is'} not in {span}")


def refused(is_refused: Boolean, *values: object) -> str:
    """Return the text of refused numbers, or of the first refused entry of arrays."""
    if not (shape := np.shape(is_refused)):
        return ", ".join(map(_display, values))
    index = tuple(int(i) for i in np.argwhere(is_refused)[0])
    entries = (shortest(np.broadcast_to(np.asarray(value), shape)[index]) for value in values)
    return f"entry {index[0] if len(index) == 1 else index} is {', '.join(entries)}"


def positive(name: str, value: Real) -> None:
    """Refuse a number that is not positive and finite."""
    within(name, value, 0.0, np.inf, open_ends=True)


def width(name: str, value: Real) -> None:
    """Refuse a width of a distribution that is not positive, or whose moments would overflow or underflow."""
    within(name, value, *_WIDTH_RANGE)


def below_one(name: str, value: Real) -> None:
    """Refuse a number that is not in [0, 1)."""
    within(name, value, 0.0, float(np.nextafter(1.0, 0.0)), span="[0, 1)")


def no_list(name: str, value: object) -> None:
    """Refuse a list or a tuple where an array makes a batch."""
    if isinstance(value, list | tuple):
        raise TypeError(f"{name}: {value!r} is a {type(value).__name__}; a number or an array is needed")


def broadcastable(**values: Real) -> None:
    """Refuse arrays that do not broadcast to one batch."""
    try:
        np.broadcast_shapes(*map(np.shape, values.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {np.shape(value)}" for name, value in values.items())
        raise ValueError(f"{', '.join(values)}: shapes {shapes} do not broadcast to one batch") from None


def sensitivity(value: Real) -> None:
    """Refuse a sensitivity that is not positive, or whose noise floats cannot hold."""
    no_list("sensitivity", value)
    within("sensitivity", value, *_SENSITIVITY_RANGE)


def epsilon(value: Real) -> None:
    """Refuse a budget outside [0.01, 20]."""
    no_list("epsilon", value)
    within("epsilon", value, *EPSILON_RANGE)


def noise_epsilon(value: Real) -> None:
    """Refuse a budget of additive noise outside [1e-6, 20]."""
    within("epsilon", value, *NOISE_EPSILON_RANGE)


def interval(lower: Real, upper: Real) -> None:
    """Refuse an input interval that is not finite or not lower < upper."""
    within("lower", lower, -_MAX_END, _MAX_END)
    within("upper", upper, -_MAX_END, _MAX_END)
    broadcastable(lower=lower, upper=upper)
    low, high = concrete(lower), concrete(upper)
    if low is None or high is None:
        return
    if not np.all(rises := low < high):
        raise ValueError(f"lower, upper: {refused(~rises, lower, upper)}; lower must be below upper")
    if np.any(is_narrow := _are_narrow(low, high)):
        raise ValueError(f"lower, upper: {refused(is_narrow, lower, upper)} are too close to be told apart")


def are_intervals(lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """Return which pairs of arrays ``interval`` accepts."""
    with np.errstate(all="ignore"):
        return ~_are_narrow(lower, upper) & (lower >= -_MAX_END) & (lower < upper) & (upper <= _MAX_END)


def _are_narrow(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return high - low <= np.maximum(1e-12 * np.maximum(abs(low), abs(high)), 1 / _MAX_END)


def budget(value: Real, lower: Real, upper: Real) -> tuple[Real, Real, Real]:
    """Return an epsilon and the ends of an input interval, numbers or arrays of a batch, or refuse them."""
    epsilon(value)
    interval(lower, upper)
    broadcastable(epsilon=value, lower=lower, upper=upper)
    return real("epsilon", value), real("lower", lower), real("upper", upper)


def unbiased_for_any_two(name: str, mechanism: object) -> None:
    """Refuse a part of a mechanism that is biased, or private only for inputs within a sensitivity."""
    if hasattr(mechanism, "bias"):
        raise ValueError(f"{name}: {type(mechanism).__name__} is biased; a mechanism whose mean is the input is needed")
    if (distance := getattr(mechanism, "sensitivity", None)) is not None:
        raise ValueError(f"{name}: is private for inputs at most {distance} apart; one for any two inputs is needed")


def one_of(name: str, value: str, allowed: Iterable[str]) -> None:
    """Refuse a choice that is not listed."""
    if value not in allowed:
        raise ValueError(f"{name}: {value!r} is not one of {', '.join(sorted(allowed))}")


def _display(value: object) -> str:
    array = np.asarray(value)
    if array.dtype.kind == "f" and not array.ndim:
        return shortest(array)
    text = np.array2string(array, threshold=4, floatmode="unique")
    return text if len(text) < 80 else text[:77] + "..."
