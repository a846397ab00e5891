"""Solve in one dimension: every root, minimum and feasibility search of the project.

Each search takes plain numbers or JAX ones. Plain numbers are searched on the host, without compiling. JAX numbers are
searched in a compiled loop, and every root has derivatives by one implicit rule. Where f(x(p), p) = 0,

    dx/dp = -(df/dp) / (df/dx).

A requirement reads excess(x, parameters) <= 0. An x that meets it is feasible. A NaN is infeasible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from dpkernels.numerics import Real, RealArray, namespace

_GOLDEN = (5**0.5 - 1) / 2
_NEWTON_STEPS = 60
_TURN_STEPS = 60  # Of golden section: 3e-13 of the interval.

Function = Callable[[Any, Any], Any]
T = TypeVar("T")

# How far a computed result is moved to the conservative side, at most: from a rounding error of 1 to 1e-10.
MARGINS = (0.0, *(2.0**-k for k in range(53, 33, -1)))


class NotPrivateError(ValueError):
    """A mechanism does not meet its budget."""


# Conservative rounding


def first_feasible(
    candidate: Callable[[float], T], is_feasible: Callable[[T], object], margins: Iterable[float] = MARGINS
) -> T:
    """Return the first candidate, at growing margins, that is feasible as computed.

    A root has rounding errors, so what is built from it may miss its claim in the last digits. This is the only
    function that moves such a result to the conservative side.

    Args:
        candidate: maps a margin, at first 0, to a candidate. A larger margin gives a more conservative one.
        is_feasible: says whether a candidate meets its claim.
        margins: margins to try, in this order.

    Raises:
        NotPrivateError: no candidate is feasible.
    """
    largest = 0.0
    for margin in margins:
        made, largest = candidate(margin), margin
        if is_feasible(made):
            return made
    raise NotPrivateError(f"no candidate is private, with a margin of up to {largest:.3g} to the conservative side")


# Loops


def while_loop(unfinished: Callable[[Any], Any], body: Callable[[Any], Any], state: Any) -> Any:
    """Run ``jax.lax.while_loop`` if the state holds a JAX array, else the same loop on the host."""
    if namespace(*jax.tree.leaves(state)) is jnp:
        return jax.lax.while_loop(unfinished, body, state)
    while unfinished(state):
        state = body(state)
    return state


def promote(*values: Any) -> Any:
    """Return the values; if any is a JAX array, with every number converted to their common JAX float type."""
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(values) if isinstance(leaf, jax.Array)]
    if not dtypes:
        return values
    dtype = jnp.result_type(jnp.float32, *dtypes)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), values)


def evaluate_on(function: Function, parameters: Any, grid: RealArray) -> RealArray:
    """Evaluate a function at every point of a grid, one after the other."""
    if namespace(grid, *jax.tree.leaves(parameters)) is np:
        return np.array([function(x, parameters) for x in grid])
    return jax.lax.map(lambda x: function(x, parameters), jnp.asarray(grid))


# Bisection of arrays


def bisect(before: Callable[[Any], Real], low: Real, high: Real, steps: int) -> tuple[Any, Any]:
    """Return ends between which ``before`` turns from true to false, after ``steps`` bisections; elementwise."""
    xp = namespace(low, high)

    def halve(_: int, ends: tuple[Real, Real]) -> tuple[Real, Real]:
        middle = (ends[0] + ends[1]) / 2
        left = before(middle)
        return xp.where(left, middle, ends[0]), xp.where(left, ends[1], middle)

    if xp is jnp:
        return jax.lax.fori_loop(0, steps, halve, (low, high))
    for step in range(steps):
        low, high = halve(step, (low, high))
    return low, high


def invert_increasing(function: Callable[[Real], Real], target: Any, low: Any, high: Any) -> Any:
    """Return where an increasing function reaches ``target``, to the float's resolution; elementwise."""
    xp = namespace(target, low, high)
    target, low, high = xp.broadcast_arrays(target, low, high)
    low, high = (end.astype(target.dtype) for end in (low, high))
    low, high = bisect(lambda y: function(y) < target, low, high, xp.finfo(target.dtype).nmant + 8)
    return (low + high) / 2


# Roots


def root(excess: Function, parameters: Any, feasible: Real, infeasible: Real, rtol: float = 0.0) -> Any:
    """Return the last feasible x on the way from ``feasible`` to ``infeasible``.

    The excess at x is at most 0 as computed, and above 0 (or NaN) at the next float. If the excess changes sign several
    times, x is at one of the changes. Neither end is evaluated: ``feasible`` may be a limit, such as 0.

    Args:
        excess: maps (x, parameters) to a number; continuous; closes over no tracer.
        parameters: a pytree of numbers.
        feasible: a number that meets the requirement.
        infeasible: a number that does not, on either side of ``feasible``.
        rtol: stop within this relative distance of the root.

    Returns:
        x: a float for plain numbers; for JAX ones a JAX scalar, differentiable in the parameters.
    """
    parameters, feasible, infeasible = promote(parameters, feasible, infeasible)
    if namespace(feasible) is np:
        return float(_Bisection(rtol).root(excess, parameters, (float(feasible), float(infeasible))))
    return _implicit_root(_Bisection(rtol), excess, parameters, (feasible, infeasible))


def newton(
    falling: Function,
    parameters: Any,
    initial_guess: Real,
    ends: tuple[Real, Real],
    *,
    tolerance: float,
    longest: float = np.inf,
) -> Any:
    """Return the root of a falling function by Newton's method, or NaN if it was not found; JAX numbers only.

    The method evaluates the function and all its derivatives together, so that a large function is compiled once. A
    step beyond the bracket of the root ends halfway to the bracket's end.

    Args:
        falling: maps (x, parameters) to a JAX scalar.
        parameters: a pytree of numbers.
        initial_guess: between the ends.
        ends: the lowest and the highest x.
        tolerance: the length of the last step; the error is about its square.
        longest: the longest step.
    """
    parameters, start = promote(parameters, jnp.asarray(initial_guess))
    return _implicit_root(_Newton(tolerance, longest), falling, parameters, (start, ends))


def first_root(
    excess: Function, parameters: Any, low: Real, high: Real, *, count: int = 160, rtol: float = 0.0
) -> Real:
    """Return the first feasible x from ``low`` up, for an excess that need not be monotone.

    The search tries ``count`` points, spaced evenly in the logarithm. If none is feasible it tries the minimum around
    the lowest of them. A change of sign between two points may be missed; the x that is returned is feasible anyway.

    Args:
        excess: see ``root``.
        parameters: a pytree of numbers.
        low: positive and infeasible.
        high: above low.
        count: number of points.
        rtol: see ``root``.

    Returns:
        x as ``root`` finds it; NaN if no x was found.
    """
    parameters, low, high = promote(parameters, low, high)
    xp = namespace(low)
    frozen = (parameters, low, high) if xp is np else jax.lax.stop_gradient((parameters, low, high))
    feasible, infeasible, found = _first_bracket(excess, frozen[0], frozen[1], frozen[2], count)
    return xp.where(found, root(excess, parameters, feasible, infeasible, rtol), xp.nan)[()]


def _first_bracket(excess: Function, parameters: Any, low: Real, high: Real, count: int) -> tuple[Real, Real, Real]:
    xp = namespace(low)
    grid = xp.geomspace(low, high, count)
    values = evaluate_on(excess, parameters, grid)
    at, first = xp.argmin(values), xp.argmax(values <= 0)
    left, right = grid[xp.maximum(at - 1, 0)], grid[xp.minimum(at + 1, count - 1)]
    valley = minimum(excess, parameters, left, right, enough=0.0, rtol=1e-9)
    some = values[first] <= 0
    feasible, infeasible = xp.where(some, grid[first], valley), xp.where(some, grid[xp.maximum(first - 1, 0)], left)
    return feasible, infeasible, excess(feasible, parameters) <= 0


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _implicit_root(method: _Bisection | _Newton, function: Function, parameters: Any, where: Any) -> Any:
    return method.root(function, parameters, where)


@_implicit_root.defjvp
def _(method: Any, function: Function, primals: Any, tangents: Any) -> tuple[Any, Any]:
    """The one implicit-derivative rule. Where the function is flat the root is an end of the bracket, and stays."""
    x, slope, gradient = method.root_and_derivatives(function, *primals)
    along = jax.tree.map(lambda by, moved: (by * moved).sum(), gradient, tangents[0])
    moved = sum(jax.tree.leaves(along), jnp.zeros_like(x))
    steep = slope != 0
    return x, jnp.where(steep, -moved / jnp.where(steep, slope, 1.0), 0.0 * x)


@dataclass(frozen=True)
class _Bisection:
    """Bisection of a bracket (feasible, infeasible) down to neighbouring floats, or to ``rtol``."""

    rtol: float

    def root(self, excess: Function, parameters: Any, bracket: tuple[Any, Any]) -> Any:
        xp = namespace(*bracket)

        def unfinished(ends: tuple[Any, Any]) -> Any:
            feasible, infeasible = ends
            middle = (feasible + infeasible) / 2
            wide = abs(infeasible - feasible) > self.rtol * abs(feasible)
            return (middle != feasible) & (middle != infeasible) & wide

        def halve(ends: tuple[Any, Any]) -> tuple[Real, Real]:
            feasible, infeasible = ends
            middle = (feasible + infeasible) / 2
            holds = excess(middle, parameters) <= 0
            return xp.where(holds, middle, feasible), xp.where(holds, infeasible, middle)

        return while_loop(unfinished, halve, bracket)[0]

    def root_and_derivatives(self, excess: Function, parameters: Any, bracket: tuple[Any, Any]) -> tuple[Any, ...]:
        x = _implicit_root(self, excess, parameters, bracket)
        value, pullback = jax.vjp(excess, x, parameters)
        return x, *pullback(jnp.ones_like(value))


@dataclass(frozen=True)
class _Newton:
    """Newton's method from (initial guess, ends): until a step is shorter than ``tolerance``."""

    tolerance: float
    longest: float

    def root(self, falling: Function, parameters: Any, where: tuple[Any, Any]) -> Any:
        def evaluate(x: Any) -> Any:
            return jax.jvp(lambda x: falling(x, parameters), (x,), (jnp.ones_like(x),))

        return self._iterate(evaluate, (jnp.zeros_like(where[0]),) * 2, *where)[0]

    def root_and_derivatives(self, falling: Function, parameters: Any, where: tuple[Any, Any]) -> tuple[Any, ...]:
        def evaluate(x: Any) -> Any:
            value, pullback = jax.vjp(falling, x, parameters)
            return value, *pullback(jnp.ones_like(value))

        zero = jnp.zeros_like(where[0])
        return self._iterate(evaluate, (zero, zero, jax.tree.map(jnp.zeros_like, parameters)), *where)

    def _iterate(self, evaluate: Callable[[Any], Any], zeros: Any, start: Any, ends: Any) -> tuple[Any, ...]:
        """Return the root, and what ``evaluate`` gives there, (value, slope, ...), without the value."""

        def unfinished(state: Any) -> Any:
            count, step, *_ = state
            return (count < _NEWTON_STEPS) & (jnp.abs(step) > self.tolerance)

        def improve(state: Any) -> Any:
            """Evaluate the next trial; of the first one nothing is known but its place."""
            count, _, x, (value, slope, *_), low, high = state
            new = x - jnp.clip(value / jnp.where(slope < 0, slope, -1.0), -self.longest, self.longest)
            new = jnp.where(new <= low, (low + x) / 2, jnp.where(new >= high, (high + x) / 2, new))
            there = evaluate(new)
            low, high = jnp.where(there[0] > 0, new, low), jnp.where(there[0] > 0, high, new)
            return count + 1, jnp.where(count > 0, new - x, jnp.inf), new, there, low, high

        low, high = (jnp.full_like(start, end) for end in ends)
        first = 0, jnp.full_like(start, jnp.inf), start, zeros, low, high
        _, step, x, (value, slope, *gradient), *_ = jax.lax.while_loop(unfinished, improve, first)
        # Steps halfway to an end get short too if there is no root; at a root the value is small beside the slope.
        precision = jnp.maximum(self.tolerance, jnp.finfo(x.dtype).eps ** 0.5)
        found = (jnp.abs(step) <= self.tolerance) & (jnp.abs(value) <= precision * jnp.abs(slope))
        return jnp.where(found, x, jnp.nan), slope, *gradient


# Minima


def minimum(
    function: Function, parameters: Any, low: Real, high: Real, *, enough: float = -np.inf, rtol: float = 1e-16
) -> Any:
    """Return where a function with one minimum on [low, high] is lowest, by golden section; not differentiated.

    The search stops at the first value that is at most ``enough``, or within ``rtol`` of the interval's length.
    """
    steps = math.ceil(math.log(rtol) / math.log(_GOLDEN))
    parameters, low, high = promote(parameters, low, high)
    if namespace(low) is np:
        return float(_golden_section(function, parameters, float(low), float(high), enough, steps))
    parameters, low, high = jax.lax.stop_gradient((parameters, low, high))
    return _golden_section(function, parameters, low, high, enough, steps)


def minimum_near_grid(function: Function, grid: np.ndarray, rtol: float) -> float:
    """Return where a function is lowest around the best point of a grid, to ``rtol`` of the cells there."""
    values = [function(x, ()) for x in grid]
    at = int(np.argmin(values))
    found = float(minimum(function, (), grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)], rtol=rtol))
    return found if function(found, ()) < values[at] else float(grid[at])


def _golden_section(function: Function, parameters: Any, low: Any, high: Real, enough: float, steps: int) -> Real:
    left, right = (low + share * (high - low) for share in (1 - _GOLDEN, _GOLDEN))
    at_left, at_right = evaluate_on(function, parameters, namespace(low).stack([left, right]))
    state = (0, low, left, right, high, at_left, at_right)

    def unfinished(state: tuple[Real, ...]) -> Any:
        return (state[0] < steps) & (state[-2] > enough) & (state[-1] > enough)

    *_, left, right, _, at_left, at_right = while_loop(unfinished, partial(_narrow, function, parameters), state)
    return namespace(left, right).where(at_left <= at_right, left, right)


def _narrow(function: Function, parameters: Any, state: tuple[Real, ...]) -> tuple[Real, ...]:
    """Take one step of the golden section: the minimum is left of ``right``, or right of ``left``."""
    step, low, left, right, high, at_left, at_right = state
    xp = namespace(left, at_left)
    leftwards = at_left <= at_right
    low, high = xp.where(leftwards, low, left), xp.where(leftwards, right, high)
    new = xp.where(leftwards, low + (1 - _GOLDEN) * (high - low), low + _GOLDEN * (high - low))
    at_new = function(new, parameters)
    left, right = xp.where(leftwards, new, right), xp.where(leftwards, left, new)
    at_left, at_right = xp.where(leftwards, at_new, at_right), xp.where(leftwards, at_left, at_new)
    return step + 1, low, left, right, high, at_left, at_right


def turning_points(function: Callable[[Any, Any], Any], points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (turns, rows): where functions of plain numbers turn from rising to falling or back.

    A turn is seen between three neighbouring points, and found there by golden section. Two turns between neighbouring
    points are not seen.

    Args:
        function: maps (x, row) to the value at x of the function of that row; elementwise.
        points: of shape (rows, n), increasing along the last axis.
    """
    rising = np.diff(function(points, np.arange(len(points))[:, None]), axis=1) > 0
    row, at = np.nonzero(rising[:, 1:] != rising[:, :-1])
    low, high, sign = points[row, at], points[row, at + 2], np.where(rising[row, at], -1.0, 1.0)
    for _ in range(_TURN_STEPS if len(row) else 0):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        leftwards = sign * function(left, row) <= sign * function(right, row)
        low, high = np.where(leftwards, low, left), np.where(leftwards, right, high)
    return (low + high) / 2, row
