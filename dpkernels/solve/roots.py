"""Root finding without derivatives: elementwise, and by SciPy for plain numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dpkernels.jax_on_use import jax, jnp
from dpkernels.numerics import Boolean, Real, RealArray, choose, half_precision, namespace
from dpkernels.pytrees import PyTree
from dpkernels.solve.base import while_loop

NEWTON_STEPS = 60  # Steps of Newton's method at most.
_MAX_SECANTS = 100  # Steps of a bracket at most.
_BRACKET_RTOL = 1e-11  # The relative width of a bracket at the end.
_MIN_FLOAT = 5e-324  # The least positive float.
_MAX_VALUE = 1e300  # Values are cut to this size for SciPy.
_MIN_RTOL = 4 * float(np.finfo(float).eps)  # The least that SciPy takes.


# Arrays


def bisect(before: Callable[[Real], Real], low: Real, high: Real, steps: int) -> tuple[Any, Any]:
    """Return ends between which ``before`` turns from true to false, after ``steps`` bisections; elementwise."""
    xp = namespace(low, high)

    def halve(_: int, ends: tuple[Real, Real]) -> tuple[Real, Real]:
        middle = (ends[0] + ends[1]) / 2
        is_before = before(middle)
        return xp.where(is_before, middle, ends[0]), xp.where(is_before, ends[1], middle)

    if xp is jnp:
        return jax.lax.fori_loop(0, steps, halve, (low, high))
    for step in range(steps):
        before_halving = low, high
        low, high = halve(step, before_halving)
        # Neighbouring floats stay as they are.
        if np.array_equal(low, before_halving[0]) and np.array_equal(high, before_halving[1]):
            break
    return low, high


def invert_increasing(function: Callable[[Real], Real], target: Real, low: Real, high: Real) -> RealArray:
    """Return where an increasing function reaches ``target``, to the float's resolution; elementwise."""
    xp = namespace(target, low, high)
    targets, lower, upper = xp.broadcast_arrays(target, low, high)
    ends = lower.astype(targets.dtype), upper.astype(targets.dtype)
    lower, upper = bisect(lambda y: function(y) < targets, *ends, xp.finfo(targets.dtype).nmant + 8)
    return (lower + upper) / 2


def invert_smooth(
    function: Callable[[RealArray], RealArray],
    target: RealArray,
    initial_guess: RealArray,
    slope: Callable[[RealArray], RealArray],
    steps: int | None,
) -> RealArray:
    """Return where an increasing function of x >= 0 reaches ``target``, from a point near there; elementwise.

    First Newton's method takes ``steps`` steps in float32, and one more in float64. Its x must be within 2^-12 of the
    root, relative to it, or 2^-27 in float64. Then x is rounded to half its digits, and the function is interpolated
    between that point and its neighbour with half the digits on the other side of the target. This has the error of
    one more step, and the result increases with the target.
    """
    xp, x = namespace(target, initial_guess), initial_guess
    for _ in range(0 if steps is None else steps + (x.dtype == np.float64)):
        x = xp.maximum(x + (target - function(x)) * (1 / slope(x)), 0.0)
    point = half_precision(x)
    point_value = function(point)
    step = 1.25 * 0.5 ** (xp.finfo(x.dtype).nmant // 2 + 1)  # Rounded to the grid, this leads to the next point.
    point_is_low = point_value <= target
    neighbour = half_precision(point * xp.where(point_is_low, 1 + step, 1 - step).astype(x.dtype))
    neighbour_value = function(neighbour)
    low, high = xp.where(point_is_low, point, neighbour), xp.where(point_is_low, neighbour, point)
    low_value = xp.where(point_is_low, point_value, neighbour_value)
    rise = xp.where(point_is_low, neighbour_value, point_value) - low_value
    return low + (high - low) * xp.clip((target - low_value) * (1 / xp.where(rise > 0, rise, 1.0)), 0.0, 1.0)


def rising_root(
    function: Callable[[Real], tuple[Real, ...]], x: Real, low: Real, high: Real, tolerance: float, others: int = 0
) -> tuple[Any, ...]:
    """Return about the root of a rising function, by Newton's method from x; the nearer end if there is no root.

    ``function`` returns the value, its slope, which may be approximate, and as many others as stated. The result is the
    root, and the other values before the last step, whose length is at most ``tolerance``. A step that leaves the
    bracket of the root goes to its middle instead.
    """

    def unfinished(state: PyTree) -> Boolean:
        count, x, before, low, high, *_ = state
        return (count < NEWTON_STEPS) & (abs(x - before) > tolerance) & (high - low > tolerance)

    def improve(state: PyTree) -> PyTree:
        count, x, _, low, high, *_ = state
        value, slope, *values = function(x)
        low, high = choose(value < 0, x, low), choose(value < 0, high, x)
        new = x - value / slope
        return count + 1, choose((new > low) & (new < high), new, (low + high) / 2), x, low, high, *values

    _, x, _, _, _, *values = while_loop(unfinished, improve, (0, x, x + np.inf, low, high, *(others * [x])))
    return x, *values


def falling_root(function: Callable[[np.ndarray], np.ndarray], low: Real, high: Real) -> np.ndarray:
    """Return the root of a falling function of plain numbers, >= 0 at ``low`` and <= 0 at ``high``; elementwise.

    SciPy's ``elementwise.find_root`` takes 2.8 ms for 50 roots instead of 0.4 ms, and 0.15 s more for the first ones.
    """
    low, high = (np.array(end, np.float64) for end in np.broadcast_arrays(low, high))
    above_low, below_high = function(low), function(high)
    # The Illinois method: secants of a bracket, of which an end that stays twice counts for half.
    last = np.zeros(low.shape, int)
    for _ in range(_MAX_SECANTS):
        fall = above_low - below_high
        x = np.clip(low + (high - low) * above_low / np.where(fall > 0, fall, 1.0), low, high)
        value = function(x)
        side = np.where(value > 0, 1, -1)
        side_repeats = side == last
        low, high = np.where(side > 0, x, low), np.where(side > 0, high, x)
        above_low = np.where(side > 0, value, np.where(side_repeats, above_low / 2, above_low))
        below_high = np.where(side > 0, np.where(side_repeats, below_high / 2, below_high), value)
        last = side
        if ((high - low <= _BRACKET_RTOL * np.abs(high)) | (value == 0)).all():
            break
    return x


# Plain numbers


def narrow_bracket(
    excess: Callable[[float], Real], feasible: float, infeasible: float, rtol: float
) -> tuple[float, float]:
    """Return a bracket (feasible, infeasible) of a root, about as wide as ``rtol``, by SciPy's ``brentq``."""
    from scipy.optimize import brentq  # Imported on use: it takes 0.15 s.

    bracket = [feasible, infeasible]

    def value(x: float) -> float:
        # The ends are not evaluated, and an excess of 0 is on the feasible side.
        if x in (feasible, infeasible):
            return -1.0 if x == feasible else 1.0
        excess_at_x = float(excess(x))
        bracket[0 if excess_at_x <= 0 else 1] = x
        if math.isnan(excess_at_x):
            return 1.0
        return max(min(excess_at_x, -_MIN_FLOAT), -_MAX_VALUE) if excess_at_x <= 0 else min(excess_at_x, _MAX_VALUE)

    rtol = max(rtol / 2, _MIN_RTOL)
    # A root at 0 is never found to within a share of it; the last bracket is as good as any.
    brentq(value, feasible, infeasible, xtol=_MIN_FLOAT, rtol=rtol, maxiter=200, full_output=True, disp=False)
    return bracket[0], bracket[1]


def secant_root(
    falling: Callable[[float], float], x: float, low: float, high: float, tolerance: float, longest: float, clip: bool
) -> float:
    """Return the root of a falling function near x; see ``implicit.newton``."""
    from scipy.optimize import brentq  # Imported on use: it takes 0.15 s.

    values: dict[float, float] = {}

    def evaluate(x: float) -> float:  # ``brentq`` asks for the values at the ends once more.
        if x not in values:
            values[x] = float(falling(x))
        return values[x]

    value = step = evaluate(x)
    while value != 0.0:
        if math.isnan(value) or x == (high if value > 0 else low):
            return x if clip and not math.isnan(value) else math.nan
        next_step = min(1.1 * abs(step) + tolerance, longest)
        next_x = min(max(x + math.copysign(next_step, value), low), high)
        next_value = evaluate(next_x)
        if (next_value > 0) != (value > 0):
            if math.isnan(next_value):
                return math.nan
            xtol = max(tolerance**2, _MIN_RTOL * max(abs(x), abs(next_x)))
            return float(brentq(evaluate, x, next_x, xtol=xtol, rtol=_MIN_RTOL))
        # A secant; where the function is all but flat, twice as far each time.
        fall = abs(next_value - value)
        step = next_value * (next_x - x) / fall if fall > 1e-3 * abs(value) else 2 * step
        x, value = next_x, next_value
    return x
