"""Small searches: every root, minimum and feasibility search of the project.

Each search takes plain numbers or JAX ones. Plain numbers are searched on the host, without compiling. JAX numbers are
searched in a compiled loop, and every root has derivatives by one implicit rule. Where f(x(p), p) = 0,

    dx/dp = -(df/dp) / (df/dx).

A function maps (x, parameters) to a number, where parameters are a pytree of numbers, and closes over no tracer. A
requirement reads excess(x, parameters) <= 0. An x that meets it is feasible. A NaN is infeasible.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from dpkernels.batching import QUICKLY_COMPILED, call_on_host, is_compiling
from dpkernels.numerics import Real, RealArray, choose, half_precision, map_over, namespace

_GOLDEN = (5**0.5 - 1) / 2
_NEWTON_STEPS = 60  # Steps of Newton's method at most.
_DAMPED_STEPS = 60  # Steps of the damped Newton method at most.
_HALVINGS = 2200  # Between any two floats in 64 bits there are fewer bisections.
_LAST_STEP = 1e-8  # Of Newton's method on a convex function, as a share of x. The error is about its square.
_SECANTS = 100  # Steps of a bracket at most.
_FOUND = 1e-11  # The relative width of a bracket at the end.
_TURN_STEPS = 60  # Of golden section: 3e-13 of the interval.
# A zoom keeps the two cells of 8 around the best point, so that ten find the place of a maximum to 4^-10 of a piece,
# and its value, which is flat there, to about 1e-12.
_ZOOM_POINTS = 9
_ZOOMS = 10
_MANY_PIECES = 32  # From this number of pieces on, each is evaluated at its ends and its middle, and zoomed once.
_SIDE = 1e-12  # The share of a piece by which a zoom starts off a knot.
_SHORT = 1e-4  # The longest step from the place that a zoom found to the maximum, as a share of the piece.
_TINY = 5e-324  # The least positive float.
_LARGEST = 1e300  # Values are cut to this size for SciPy.
_LEAST_RTOL = 4 * float(np.finfo(float).eps)  # The least that SciPy takes.

Function = Callable[[Any, Any], Any]
T = TypeVar("T")

# How far a computed result is moved to the conservative side, at most: from a rounding error of 1 to 1e-10.
MARGINS = (0.0, *(2.0**-k for k in range(53, 33, -1)))


class NotPrivateError(ValueError):
    """A mechanism does not meet its budget."""


# Conservative rounding


def first_feasible(candidates: Iterable[T], is_feasible: Callable[[T], object]) -> T:
    """Return the first of ever more conservative candidates, such as one for each of ``MARGINS``, that is feasible.

    A root has rounding errors, so what is built from it may miss its claim in the last digits. Only this function and
    ``conservative_root`` move such a result to the conservative side, or raise NotPrivateError.
    """
    tried = 0
    for candidate in candidates:
        if is_feasible(candidate):
            return candidate
        tried += 1
    raise NotPrivateError(f"none of {tried} candidates is private, the last one the most conservative")


def floats_from(start: float, towards: float, count: int = 1 << 20) -> Iterator[float]:
    """Yield ``start`` and the floats after it in the direction of ``towards``, at most ``count``."""
    value = start
    for _ in range(count):
        yield value
        value = math.nextafter(value, towards)


def conservative_root(
    missing: Callable[[float], float],
    start: float,
    *,
    direction: float = 1.0,
    overshoot: float = 1.05,
    least: float = 1e-9,
    growth: float = 4.0,
    longest: float = math.inf,
    steps: int = 40,
) -> float:
    """Return the first feasible x of a walk from an estimated root to the conservative side, or raise NotPrivateError.

    ``missing`` maps x to about how far it still is from the root of a bound, and to at most 0 where x is feasible. The
    walk starts at the estimate, and goes up, or with ``direction`` -1 down. A step is ``overshoot`` times the missing
    distance, left out if that is above ``longest``, plus an extra length: ``least`` at first, then ``growth`` times as
    much in each step, up to 0.1. At most ``steps`` points are tried.
    """
    x = start
    for step in range(steps):
        distance = missing(x)
        if distance <= 0:
            return x
        x += direction * (min(least * growth**step, 0.1) + (overshoot * distance if distance < longest else 0.0))
    raise NotPrivateError(f"none of {steps} points from {start:.9g} to {x:.9g} is private")


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


def invert_smooth(
    function: Callable[[Any], Any], target: Any, near: Any, slope: Callable[[Any], Any], steps: int | None
) -> Any:
    """Return where an increasing function of x >= 0 reaches ``target``, from a point near there; elementwise.

    Newton takes ``steps`` steps in float32 and one more in float64. They must lead to within half a cell of the grid of
    floats with half the digits: 2^-12 of x, in float64 2^-27. The function is then interpolated between two neighbours
    on the grid, with the error of one more step, so that the result increases with the target.
    """
    xp, x = namespace(target, near), near
    for _ in range(0 if steps is None else steps + (x.dtype == np.float64)):
        x = xp.maximum(x + (target - function(x)) * (1 / slope(x)), 0.0)
    point = half_precision(x)
    at_point = function(point)
    step = 1.25 * 0.5 ** (xp.finfo(x.dtype).nmant // 2 + 1)  # Rounded to the grid, this leads to the next point.
    after = at_point <= target
    other = half_precision(point * xp.where(after, 1 + step, 1 - step).astype(x.dtype))
    at_other = function(other)
    low, high = xp.where(after, point, other), xp.where(after, other, point)
    at_low, at_high = xp.where(after, at_point, at_other), xp.where(after, at_other, at_point)
    rise = at_high - at_low
    return low + (high - low) * xp.clip((target - at_low) * (1 / xp.where(rise > 0, rise, 1.0)), 0.0, 1.0)


# Roots of arrays


def rising_root(function: Callable[[Any], tuple[Any, Any]], x: Any, low: Any, high: Any, tolerance: float) -> Any:
    """Return about the root of a rising function, by Newton's method from x; the nearer end if there is no root.

    ``function`` returns the value and its slope, which may be approximate. ``tolerance`` is the length of the last
    step. A step that leaves the bracket of the root goes to its middle instead.
    """

    def unfinished(state: Any) -> Any:
        count, x, before, low, high = state
        return (count < _NEWTON_STEPS) & (abs(x - before) > tolerance) & (high - low > tolerance)

    def improve(state: Any) -> Any:
        count, x, _, low, high = state
        value, slope = function(x)
        low, high = choose(value < 0, x, low), choose(value < 0, high, x)
        new = x - value / slope
        return count + 1, choose((new > low) & (new < high), new, (low + high) / 2), x, low, high

    return while_loop(unfinished, improve, (0, x, x + np.inf, low, high))[1]


def falling_root(function: Callable[[Any], Any], low: Any, high: Any) -> np.ndarray:
    """Return the root of a falling function of plain numbers, >= 0 at ``low`` and <= 0 at ``high``; elementwise."""
    low, high = (np.array(end, np.float64) for end in np.broadcast_arrays(low, high))
    above_low, below_high = function(low), function(high)
    # The Illinois method: secants of a bracket, of which an end that stays twice counts for half.
    last = np.zeros(low.shape, int)
    for _ in range(_SECANTS):
        fall = above_low - below_high
        x = np.clip(low + (high - low) * above_low / np.where(fall > 0, fall, 1.0), low, high)
        value = function(x)
        side = np.where(value > 0, 1, -1)
        again = side == last
        low, high = np.where(side > 0, x, low), np.where(side > 0, high, x)
        above_low = np.where(side > 0, value, np.where(again, above_low / 2, above_low))
        below_high = np.where(side > 0, np.where(again, below_high / 2, below_high), value)
        last = side
        if ((high - low <= _FOUND * np.abs(high)) | (value == 0)).all():
            break
    return x


# Roots


def root(excess: Function, parameters: Any, feasible: Real, infeasible: Real, rtol: float = 0.0) -> Any:
    """Return the last feasible x on the way from ``feasible`` to ``infeasible``, which may be on either side of it.

    The excess, continuous, is at most 0 at x as computed, and above 0 (or NaN) at the next float. If it changes sign
    several times, x is at one of the changes. Neither end is evaluated: ``feasible`` may be a limit, such as 0. Plain
    numbers with ``rtol``, a relative distance from the root, are searched by SciPy's ``brentq``, others by bisection.
    The result is a float for plain numbers; for JAX ones a JAX scalar, differentiable in the parameters.
    """
    parameters, feasible, infeasible = promote(parameters, feasible, infeasible)
    if namespace(feasible) is np:
        feasible, infeasible = float(feasible), float(infeasible)
        if rtol > 0:
            feasible, infeasible = _bracket(lambda x: excess(x, parameters), feasible, infeasible, rtol)
        return float(_Bisection(rtol).root(excess, parameters, (feasible, infeasible)))
    return _implicit_root(_Bisection(rtol), excess, parameters, (feasible, infeasible))


def _bracket(excess: Callable[[float], Any], feasible: float, infeasible: float, rtol: float) -> tuple[float, float]:
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
        return max(min(excess_at_x, -_TINY), -_LARGEST) if excess_at_x <= 0 else min(excess_at_x, _LARGEST)

    rtol = max(rtol / 2, _LEAST_RTOL)
    # A root at 0 is never found to within a share of it; the last bracket is as good as any.
    brentq(value, feasible, infeasible, xtol=_TINY, rtol=rtol, maxiter=200, full_output=True, disp=False)
    return bracket[0], bracket[1]


def newton(
    falling: Function,
    parameters: Any,
    initial_guess: Real,
    ends: tuple[Real, Real],
    *,
    tolerance: float,
    longest: float = np.inf,
    clip: bool = False,
) -> Any:
    """Return the root of a falling function near an initial guess, or NaN if there is none between the ends.

    JAX numbers: Newton's method. It evaluates the function and all its derivatives together, so that a large function
    is compiled once. A step beyond the bracket of the root ends halfway to the bracket's end. Plain numbers: a step of
    the function's value, which suits a slope of about -1, and secants until the root is bracketed, and then SciPy's
    ``brentq``. ``tolerance`` is the length of the last step, and the error about its square; ``longest`` limits every
    step. With ``clip``, the result is the nearer end instead of NaN.
    """
    parameters, start, ends = promote(parameters, initial_guess, ends)
    if namespace(start) is np:
        low, high = map(float, ends)
        return _root_near(lambda x: falling(x, parameters), float(start), low, high, tolerance, longest, clip)
    return _implicit_root(_Newton(tolerance, longest, clip), falling, parameters, (start, ends))


def _root_near(
    falling: Callable[[float], float], x: float, low: float, high: float, tolerance: float, longest: float, clip: bool
) -> float:
    from scipy.optimize import brentq  # Imported on use: it takes 0.15 s.

    value = step = float(falling(x))
    while value != 0.0:
        if math.isnan(value) or x == (high if value > 0 else low):
            return x if clip and not math.isnan(value) else math.nan
        away = min(1.1 * abs(step) + tolerance, longest)
        other = min(max(x + math.copysign(away, value), low), high)
        there = float(falling(other))
        if (there > 0) != (value > 0):
            xtol = max(tolerance**2, _LEAST_RTOL * max(abs(x), abs(other)))
            return float(brentq(falling, x, other, xtol=xtol, rtol=_LEAST_RTOL)) if there == there else math.nan
        # A secant; where the function is all but flat, twice as far each time.
        fall = abs(there - value)
        step = there * (other - x) / fall if fall > 1e-3 * abs(value) else 2 * step
        x, value = other, there
    return x


def convex_root(convex: Function, parameters: Any, low: Real, high: Real, *, rtol: float = 0.0) -> Any:
    """Return the least x in [low, high] at which a convex function is at most 0, or NaN if there is none; low > 0.

    JAX numbers are searched by Newton's method. Of plain numbers the function is at most 0 as computed; ``rtol`` is
    that of ``root``.
    """
    parameters, low, high = promote(parameters, low, high)
    if namespace(low) is not np:
        return _implicit_root(_ConvexNewton(), convex, parameters, (low, (low, high)))
    if convex(low, parameters) <= 0:
        return float(low)
    feasible = high if convex(high, parameters) <= 0 else minimum(convex, parameters, low, high, enough=0.0)
    return root(convex, parameters, feasible, low, rtol) if convex(feasible, parameters) <= 0 else math.nan


def first_root(excess: Function, parameters: Any, low: Real, high: Real, *, count: int = 160) -> Real:
    """Return the first feasible x from ``low`` up, for an excess that need not be monotone; NaN if none was found.

    The search tries ``count`` points, spaced evenly in the logarithm from ``low``, positive and infeasible, up to
    ``high``. If none is feasible it tries the minimum around the lowest of them. A change of sign between two may be
    missed; the x that is returned is feasible anyway.
    """
    parameters, low, high = promote(parameters, low, high)
    xp = namespace(low)
    frozen, low, high = (parameters, low, high) if xp is np else jax.lax.stop_gradient((parameters, low, high))
    grid = xp.geomspace(low, high, count)
    values = map_over(lambda x: excess(x, frozen), grid)
    best, first = xp.argmin(values), xp.argmax(values <= 0)
    left, right = grid[xp.maximum(best - 1, 0)], grid[xp.minimum(best + 1, count - 1)]
    valley = minimum(excess, frozen, left, right, enough=0.0, rtol=1e-9)
    some = values[first] <= 0
    feasible, infeasible = xp.where(some, grid[first], valley), xp.where(some, grid[xp.maximum(first - 1, 0)], left)
    found = excess(feasible, frozen) <= 0
    return xp.where(found, root(excess, parameters, feasible, infeasible), xp.nan)[()]


def found_roots(
    residual: Function, parameters: Any, find: Callable[[Any], Any], slope: Callable[[Any, Any], Any]
) -> Any:
    """Return the roots that ``find`` gives for JAX parameters, with the derivatives of the implicit rule; elementwise.

    ``slope`` gives the derivatives of ``residual`` by x. Where the slope is 0 the roots' derivatives are NaN.
    """
    return _implicit_root(_Found(find, slope), residual, parameters, ())


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _implicit_root(method: _Method, function: Function, parameters: Any, where: Any) -> Any:
    return method.root(function, parameters, where)


@_implicit_root.defjvp
def _(method: _Method, function: Function, primals: Any, tangents: Any) -> tuple[Any, Any]:
    """Apply the implicit function rule. Where the function is flat, the root is an end of the bracket, or has none.

    For a derivative of NaN in reverse mode, multiply by NaN everything that moves; ``where`` would give 0.
    """
    parameters, where = primals
    x, slope, moved = method.root_and_derivatives(function, parameters, where, tangents[0])
    steep = (slope != 0) if slope.shape == x.shape else jnp.ones(x.shape, bool)
    step = jnp.where(steep, -_quotient(moved, jnp.where(steep, slope, 1.0)), 0.0 * x)
    if method.moves_where_flat:
        moving = [leaf for leaf in jax.tree.leaves(tangents[0]) if leaf.dtype != jax.dtypes.float0]
        step = step + jnp.where(steep, 0.0, jnp.nan) * sum(moving)
    return x, step


class _Method(abc.ABC):
    """A way to find a root, and what the implicit rule needs there."""

    moves_where_flat: ClassVar[bool] = False

    @abc.abstractmethod
    def root(self, function: Function, parameters: Any, where: Any) -> Any:
        """Return the root."""

    def root_and_derivatives(self, function: Function, parameters: Any, where: Any, tangents: Any) -> tuple[Any, ...]:
        """Return the root, the function's derivative by x, and the one along the parameters' tangents."""
        x = _implicit_root(self, function, parameters, where)
        return x, *self.derivatives(function, x, parameters, where, tangents)

    def derivatives(self, function: Function, x: Any, parameters: Any, where: Any, tangents: Any) -> tuple[Any, Any]:
        value, pullback = jax.vjp(function, x, parameters)
        slope, gradient = pullback(jnp.ones_like(value))
        return slope, _along(gradient, tangents)


def _along(gradient: Any, tangents: Any) -> Any:
    return sum(jax.tree.leaves(jax.tree.map(lambda by, moved: (by * moved).sum(), gradient, tangents)), 0.0)


@dataclass(frozen=True)
class _Found(_Method):
    """Roots that ``find`` gives; see ``found_roots``."""

    moves_where_flat: ClassVar[bool] = True

    find: Callable[[Any], Any]
    slope: Callable[[Any, Any], Any]

    def root(self, residual: Function, parameters: Any, where: Any) -> Any:
        return self.find(parameters)

    def derivatives(self, residual: Function, x: Any, parameters: Any, where: Any, tangents: Any) -> tuple[Any, Any]:
        return self.slope(x, parameters), jax.jvp(partial(residual, x), (parameters,), (tangents,))[1]


@dataclass(frozen=True)
class _Bisection(_Method):
    """Bisection of a bracket (feasible, infeasible) down to neighbouring floats, or to ``rtol``."""

    rtol: float

    def root(self, excess: Function, parameters: Any, bracket: tuple[Any, Any]) -> Any:
        xp = namespace(*bracket)

        def unfinished(state: tuple[Any, Any, Any]) -> Any:
            count, feasible, infeasible = state
            middle = (feasible + infeasible) / 2
            # Compiled without optimisation, the excess may be computed twice in a step and rounded in two ways. Next to
            # the root the bracket then stays as it is, so the steps are counted.
            wide = abs(infeasible - feasible) > self.rtol * abs(feasible)
            return (count < _HALVINGS) & (middle != feasible) & (middle != infeasible) & wide

        def halve(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            count, feasible, infeasible = state
            middle = (feasible + infeasible) / 2
            holds = excess(middle, parameters) <= 0
            return count + 1, xp.where(holds, middle, feasible), xp.where(holds, infeasible, middle)

        return while_loop(unfinished, halve, (0, *bracket))[1]


class _Differentiating(_Method):
    """A method whose every step evaluates the function with its derivatives: a large function is compiled once."""

    @abc.abstractmethod
    def iterate(self, evaluate: Callable[[Any], Any], zeros: Any, start: Any, ends: Any) -> tuple[Any, ...]:
        """Return the root, and the derivatives there; ``evaluate`` gives the value and them, of the form ``zeros``."""

    def root(self, function: Function, parameters: Any, where: tuple[Any, Any]) -> Any:
        def evaluate(x: Any) -> Any:
            return jax.jvp(lambda x: function(x, parameters), (x,), (jnp.ones_like(x),))

        return self.iterate(evaluate, (jnp.zeros_like(where[0]),), *where)[0]

    def root_and_derivatives(
        self, function: Function, parameters: Any, where: tuple[Any, Any], tangents: Any
    ) -> tuple[Any, ...]:
        def evaluate(x: Any) -> Any:
            value, pullback = jax.vjp(function, x, parameters)
            return value, *pullback(jnp.ones_like(value))

        zeros = jnp.zeros_like(where[0]), jax.tree.map(jnp.zeros_like, parameters)
        x, slope, gradient = self.iterate(evaluate, zeros, *where)
        return x, slope, _along(gradient, tangents)


@dataclass(frozen=True)
class _Newton(_Differentiating):
    """Newton's method in a bracket."""

    tolerance: float
    longest: float
    clip: bool

    def iterate(self, evaluate: Callable[[Any], Any], zeros: Any, start: Any, ends: Any) -> tuple[Any, ...]:
        def unfinished(state: Any) -> Any:
            count, step, *_ = state
            return (count < _NEWTON_STEPS) & (jnp.abs(step) > self.tolerance)

        def improve(state: Any) -> Any:
            count, _, x, (value, slope, *_), low, high = state
            new = x - jnp.clip(value / jnp.where(slope < 0, slope, -1.0), -self.longest, self.longest)
            new = jnp.where(new <= low, (low + x) / 2, jnp.where(new >= high, (high + x) / 2, new))
            there = evaluate(new)
            low, high = jnp.where(there[0] > 0, new, low), jnp.where(there[0] > 0, high, new)
            return count + 1, jnp.where(count > 0, new - x, jnp.inf), new, there, low, high

        first = 0, jnp.full_like(start, jnp.inf), start, (jnp.zeros_like(start), *zeros), *ends
        _, step, x, (value, slope, *gradient), *_ = jax.lax.while_loop(unfinished, improve, first)
        # Steps halfway to an end get short too if there is no root; at a root the value is small beside the slope.
        precision = jnp.maximum(self.tolerance, jnp.finfo(x.dtype).eps ** 0.5)
        found = (jnp.abs(step) <= self.tolerance) & (jnp.abs(value) <= precision * jnp.abs(slope))
        root = jnp.where(found, x, jnp.nan)
        if self.clip:
            at_low, at_high = (jnp.abs(x - end) <= 2 * self.tolerance for end in ends)
            root = jnp.where(at_low & (value < 0), ends[0], jnp.where(at_high & (value > 0), ends[1], root))
        return root, slope, *gradient


@dataclass(frozen=True)
class _ConvexNewton(_Differentiating):
    """Newton's method on a convex function, from the low end: its steps are monotone; see ``convex_root``."""

    def iterate(self, evaluate: Callable[[Any], Any], zeros: Any, start: Any, ends: Any) -> tuple[Any, ...]:
        low, high = ends

        def unfinished(state: Any) -> Any:
            count, x, before, _ = state
            return (count < _NEWTON_STEPS) & (jnp.abs(x - before) > _LAST_STEP * x) & (x <= high)

        def improve(state: Any) -> Any:
            count, x, _, _ = state
            value, slope, *gradient = evaluate(x)
            step = jnp.where(slope < 0, -value / jnp.where(slope < 0, slope, -1.0), jnp.inf)
            new = jnp.maximum(x + jnp.where(value > 0, step, jnp.minimum(step, 0.0)), low)
            return count + 1, new, x, (slope, *gradient)

        _, x, _, (slope, *gradient) = jax.lax.while_loop(unfinished, improve, (0, start, jnp.zeros_like(start), zeros))
        at_low = x <= low
        found = (x <= high) & ((slope < 0) | at_low)
        # At the low end the root does not move with the parameters.
        return jnp.where(found, x, jnp.nan), jnp.where(at_low, 0.0, slope), *gradient


# Minima and maxima


def minimum(
    function: Function, parameters: Any, low: Real, high: Real, *, enough: float = -np.inf, rtol: float = 1e-16
) -> Any:
    """Return where a function with one minimum on [low, high] is lowest, by golden section; not differentiated."""
    steps = math.ceil(math.log(rtol) / math.log(_GOLDEN))
    parameters, low, high = promote(parameters, low, high)
    plain = namespace(low) is np
    if not plain:
        parameters, low, high = jax.lax.stop_gradient((parameters, low, high))

    def unfinished(state: tuple[Real, ...]) -> Any:
        # Until a value is at most ``enough``, or the interval within ``rtol`` of its first length.
        return (state[0] < steps) & (state[-2] > enough) & (state[-1] > enough)

    def narrow(state: tuple[Real, ...]) -> tuple[Real, ...]:
        """The minimum is left of ``right``, or right of ``left``."""
        step, low, left, right, high, at_left, at_right = state
        xp = namespace(left, at_left)
        leftwards = at_left <= at_right
        low, high = xp.where(leftwards, low, left), xp.where(leftwards, right, high)
        new = xp.where(leftwards, low + (1 - _GOLDEN) * (high - low), low + _GOLDEN * (high - low))
        at_new = function(new, parameters)
        left, right = xp.where(leftwards, new, right), xp.where(leftwards, left, new)
        at_left, at_right = xp.where(leftwards, at_new, at_right), xp.where(leftwards, at_left, at_new)
        return step + 1, low, left, right, high, at_left, at_right

    left, right = (low + share * (high - low) for share in (1 - _GOLDEN, _GOLDEN))
    at_left, at_right = map_over(lambda x: function(x, parameters), namespace(low).stack([left, right]))
    state = 0, low, left, right, high, at_left, at_right
    *_, left, right, _, at_left, at_right = while_loop(unfinished, narrow, state)
    best = namespace(left, right).where(at_left <= at_right, left, right)
    return float(best) if plain else best


def bounded_minimum(function: Callable[[float], float], low: float, high: float, xatol: float) -> tuple[float, float]:
    """Return (x, value) where a smooth function of plain numbers with one minimum on [low, high] is lowest.

    The search is SciPy's bounded Brent method. It stops within about ``xatol`` or 1.5e-8 of x, whichever is more.
    """
    from scipy.optimize import minimize_scalar  # Imported on use: it takes 0.15 s.

    result = minimize_scalar(function, bounds=(low, high), method="bounded", options={"xatol": xatol})
    return float(result.x), float(result.fun)


def minimum_near_grid(function: Callable[[float], float], grid: np.ndarray, xatol: float) -> tuple[float, float]:
    """Return (x, value) where a function of plain numbers is lowest, around the best point of a grid."""
    values = [function(float(x)) for x in grid]
    best = int(np.argmin(values))
    ends = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, len(grid) - 1)])
    x, value = bounded_minimum(function, *ends, xatol)
    # Brent's method may miss the minimum of a function that jumps.
    return (x, value) if value <= values[best] + 1e-9 * abs(values[best]) else (float(grid[best]), float(values[best]))


def smooth_minimum(
    function: Function,
    parameters: Any,
    starts: Any,
    low: Any,
    high: Any,
    on_host: Callable[[Any], np.ndarray] | None = None,
) -> Any:
    """Return where a smooth function of JAX numbers is lowest, near the best of several starts; differentiable.

    The search is Newton's method, damped (Levenberg and Marquardt). By the implicit rule the derivatives are those of
    the place where the gradient is 0. A coordinate at an end of its range stays there. Where the minimum is a kink the
    derivatives are NaN. ``starts`` has shape (n, d); x and its range, ``low`` and ``high``, have shape (d,).

    Outside ``jit`` the place is ``on_host(parameters)``, a search by NumPy, if there is one. Only the derivatives are
    compiled then, once for every function that is the same object.
    """
    parameters, *where = promote(parameters, *map(jnp.asarray, (starts, low, high)))
    if on_host is None or is_compiling():
        return _implicit_root(_DampedNewton(), function, parameters, tuple(where))
    place = jax.ShapeDtypeStruct(where[1].shape, where[1].dtype)
    (x,) = call_on_host(lambda parameters: [on_host(parameters)], [place], parameters)
    return _implicit_root(_FoundMinimum(), function, parameters, (x, *where[1:]))


@dataclass(frozen=True)
class _DampedNewton(_Method):
    """Newton's method for the minimum of a function in a box; see ``smooth_minimum``."""

    def root(self, function: Function, parameters: Any, where: tuple[Any, Any, Any]) -> Any:
        starts, low, high = where
        values = jax.vmap(lambda x: function(x, parameters))(starts)
        x = starts[jnp.where(jnp.isnan(values), jnp.inf, values).argmin()]
        tolerance = jnp.finfo(x.dtype).eps

        def unfinished(state: Any) -> Any:
            count, _, step, *_ = state
            return (count < _DAMPED_STEPS) & (step > tolerance**0.75)

        def improve(state: Any) -> Any:
            count, x, _, damping, before = state
            value, gradient, hessian = before
            free = _is_free(x, gradient, low, high)
            damped = hessian + damping * jnp.diag(jnp.abs(jnp.diag(hessian)))
            new = jnp.clip(x - _solve_free(damped, gradient, free), low, high)
            there = _with_derivatives(function, new, parameters)
            better = (count == 0) | (there[0] <= value + 4 * tolerance * jnp.abs(value))
            step = jnp.where(better & (count > 0), jnp.abs(new - x).max(), jnp.where(damping < 1e12, jnp.inf, 0.0))
            x, before = jax.tree.map(partial(jnp.where, better), (new, there), (x, before))
            return count + 1, x, step, jnp.where(better, damping / 10, 10 * damping + 1e-3), before

        flat = values[0], jnp.zeros_like(x), jnp.eye(x.size, dtype=x.dtype)
        state = 0, x, jnp.full((), jnp.inf, x.dtype), jnp.full((), 1e-2, x.dtype), flat
        return jax.lax.while_loop(unfinished, improve, state)[1]

    def derivatives(
        self, function: Function, x: Any, parameters: Any, where: tuple[Any, Any, Any], tangents: Any
    ) -> tuple[Any, Any]:
        gradient, along = jax.linearize(jax.jacfwd(function), x, parameters)
        none = jax.tree.map(jnp.zeros_like, parameters)
        hessian = jax.vmap(lambda direction: along(direction, none))(jnp.eye(x.size, dtype=x.dtype))
        moved = along(jnp.zeros_like(x), tangents)
        free = _is_free(x, gradient, *where[1:])
        is_smooth = jnp.abs(_solve_free(hessian, gradient, free)).max() <= jnp.finfo(x.dtype).eps ** 0.25
        hessian = jnp.where(is_smooth, hessian, jnp.nan)
        return _restricted(hessian, free), jnp.where(free, moved, 0.0)


@dataclass(frozen=True)
class _FoundMinimum(_DampedNewton):
    """The minimum of a function in a box, which is known."""

    def root(self, function: Function, parameters: Any, where: tuple[Any, Any, Any]) -> Any:
        return where[0]

    def derivatives(
        self, function: Function, x: Any, parameters: Any, where: tuple[Any, Any, Any], tangents: Any
    ) -> tuple[Any, Any]:
        # The program has no tangents: it runs at once, whatever becomes of these.
        slope, by_parameters = _minimum_derivatives(function, x, parameters, where)
        along = jax.tree.map(lambda by, moved: (by * moved).reshape(x.size, -1).sum(1), by_parameters, tangents)
        return slope, sum(jax.tree.leaves(along), jnp.zeros_like(x))


@partial(jax.jit, static_argnums=0, compiler_options=QUICKLY_COMPILED)
def _minimum_derivatives(function: Function, x: Any, parameters: Any, where: Any) -> tuple[Any, Any]:
    """Return the derivatives of the gradient in x, and in every parameter, along a first axis of the gradient."""

    def derivatives(tangents: Any) -> tuple[Any, Any]:
        return _DampedNewton().derivatives(function, x, parameters, where, tangents)

    slope, _ = derivatives(jax.tree.map(jnp.zeros_like, parameters))
    return slope, jax.jacfwd(lambda tangents: derivatives(tangents)[1])(jax.tree.map(jnp.zeros_like, parameters))


def _with_derivatives(function: Function, x: Any, parameters: Any) -> tuple[Any, Any, Any]:
    """Return the value, the gradient by x and the second derivatives, in one evaluation."""

    def first(x: Any) -> tuple[Any, Any]:
        gradient, value = jax.jacfwd(lambda x: (function(x, parameters),) * 2, has_aux=True)(x)
        return gradient, (value, gradient)

    hessian, (value, gradient) = jax.jacfwd(first, has_aux=True)(x)
    return value, gradient, hessian


def _is_free(x: Any, gradient: Any, low: Any, high: Any) -> Any:
    """Return which coordinates are not held at an end of their range."""
    return ~(((x <= low) & (gradient > 0)) | ((x >= high) & (gradient < 0)))


def _restricted(matrix: Any, free: Any) -> Any:
    """Return a matrix with the rows and columns of held coordinates replaced by those of the identity."""
    return jnp.where(free[:, None] & free, matrix, jnp.eye(free.size, dtype=matrix.dtype))


def _solve_free(hessian: Any, gradient: Any, free: Any) -> Any:
    return _quotient(jnp.where(free, gradient, 0.0), _restricted(hessian, free))


def _quotient(values: Any, slope: Any) -> Any:
    """Return slope^-1 values, for one number or two."""
    if values.shape == slope.shape:
        return values / slope
    if values.size == 1:
        return values / slope[0]
    (a, b), (c, d) = slope
    return jnp.stack([d * values[0] - b * values[1], a * values[1] - c * values[0]]) / (a * d - b * c)


def minimum_on_grid(function: Function, parameters: Any, grid: Any, *, xatol: float) -> Any:
    """Return where a smooth function is lowest, around the best point of a grid; not differentiated."""
    parameters, grid = promote(parameters, grid)
    if namespace(grid) is np:
        return minimum_near_grid(lambda x: function(x, parameters), grid, xatol)[0]
    parameters, grid = jax.lax.stop_gradient((parameters, grid))
    lowest = jnp.argmin(map_over(lambda x: function(x, parameters), grid))
    ends = grid[jnp.maximum(lowest - 1, 0)], grid[jnp.minimum(lowest + 1, grid.size - 1)]
    return minimum(function, parameters, *ends, rtol=1e-9)


def maximum_on(function: Callable[[np.ndarray], np.ndarray], points: np.ndarray) -> float:
    """Return the largest value, on the interval that dense ``points`` span, of a NumPy function smooth between them."""
    best = -np.inf
    for _ in range(4):
        values = function(points)
        highest = int(values.argmax())
        best = max(best, float(values[highest]))
        points = np.linspace(points[max(highest - 1, 0)], points[min(highest + 1, len(points) - 1)], 33)
    return best


def maximum_between(function: Function, parameters: Any, knots: RealArray) -> RealArray:
    """Return the largest value of a JAX function that is smooth between increasing knots; differentiable twice.

    In each piece a zoom finds the place with the largest value, as a share of the way from knot to knot. At a knot the
    share is held: the maximum moves with the knot. Inside a piece it moves by the implicit rule, which only second
    derivatives need. If there are many pieces, as in tables, only their ends and middles are evaluated.
    """
    # Outside jit it is one program, instead of one for each operation.
    return (_maximum_between if is_compiling() else _maximum_between_in_a_program)(
        function, *promote(parameters, knots)
    )


def _maximum_between(function: Function, parameters: Any, knots: Any) -> Any:
    pieces = knots.size - 1
    are_many = pieces >= _MANY_PIECES
    grid = np.linspace(0.0, 1.0, 3 if are_many else _ZOOM_POINTS)
    start, length = jax.lax.stop_gradient((knots[:-1, None], jnp.diff(knots)[:, None]))
    held = jax.lax.stop_gradient(parameters)

    def zoom(_: int, state: tuple[Any, Any, Any, Any]) -> tuple[Real, Real, Real, Real]:
        low, high, _, _ = state
        shares = low + (high - low) * grid
        values = function(start + length * shares, held)
        highest = values.max(-1, keepdims=True)
        best = jnp.where(values >= highest, shares, -1.0).max(-1, keepdims=True)
        cell = (high - low) / (len(grid) - 1)
        return jnp.maximum(best - cell, low), jnp.minimum(best + cell, high), best, highest

    low = jnp.full_like(start, _SIDE)
    *_, share, highest = jax.lax.fori_loop(0, 1 if are_many else _ZOOMS, zoom, (low, 1 - low, low, low))
    # Of equal values the last: where a function is flat, its place decides the derivatives.
    best = pieces - 1 - highest[::-1].argmax()
    place = knots[best], knots[best + 1], parameters
    share = _implicit_root(_Interior(), partial(_slope, partial(_on_piece, function)), place, share[best, 0])
    return _at_extreme(partial(_on_piece, function), share, place)


_maximum_between_in_a_program = jax.jit(_maximum_between, static_argnums=0)


def _on_piece(function: Function, share: Any, place: tuple[Any, Any, Any]) -> Any:
    left, right, parameters = place
    return function(left + (right - left) * share, parameters)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _at_extreme(function: Function, x: Any, parameters: Any) -> Any:
    return function(x, parameters)


@_at_extreme.defjvp
def _(function: Function, primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> Any:
    """Apply the envelope theorem: the derivative of the extreme by x vanishes."""
    x, parameters = primals
    return jax.jvp(partial(function, x), (parameters,), (tangents[1],))


def _slope(function: Function, x: Any, parameters: Any) -> Any:
    return jax.jvp(lambda x: function(x, parameters), (x,), (jnp.ones_like(x),))[1]


@dataclass(frozen=True)
class _Interior(_Method):
    """The place of a maximum, which is known; at an end of [0, 1] it stays."""

    def root(self, slope: Function, parameters: Any, share: Any) -> Any:
        return share

    def derivatives(self, slope: Function, share: Any, parameters: Any, where: Any, tangents: Any) -> tuple[Any, Any]:
        rise, bend = slope(share, parameters), _slope(slope, share, parameters)
        moved = jax.jvp(partial(slope, share), (parameters,), (tangents,))[1]
        inside = (jnp.abs(rise) <= _SHORT * -bend) & (share > 2 * _SIDE) & (share < 1 - 2 * _SIDE)
        return jnp.where(inside, bend, 0.0), moved


def shares_with_ends(count: int) -> np.ndarray:
    """Return increasing numbers from 0 to 1: ``count`` evenly spaced ones, and ones ever nearer to both ends."""
    near = 2.0 ** -np.arange(math.ceil(math.log2(count)), 28.0)
    return np.unique(np.concatenate([np.linspace(0.0, 1.0, count), near, 1 - near]))


def turning_points(function: Callable[[Any, Any], Any], points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (turns, rows): where functions (x, row) -> value of plain numbers turn from rising to falling or back.

    A turn is seen between three neighbouring points, of shape (rows, n), and found there by golden section. Two turns
    between neighbouring points are not seen.
    """
    rising = np.diff(function(points, np.arange(len(points))[:, None]), axis=1) > 0
    row, column = np.nonzero(rising[:, 1:] != rising[:, :-1])
    low, high, sign = points[row, column], points[row, column + 2], np.where(rising[row, column], -1.0, 1.0)
    for _ in range(_TURN_STEPS if len(row) else 0):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        leftwards = sign * function(left, row) <= sign * function(right, row)
        low, high = np.where(leftwards, low, left), np.where(leftwards, right, high)
    return (low + high) / 2, row
