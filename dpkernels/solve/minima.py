"""Minima and maxima, and roots on either side of a minimum."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from dpkernels.jax_on_use import Array, custom_jvp, jax, jnp
from dpkernels.numerics import Boolean, Real, RealArray, map_over, namespace
from dpkernels.programs import call_on_host, in_one_program, is_compiling
from dpkernels.pytrees import PyTree
from dpkernels.solve.base import Function, promote, while_loop
from dpkernels.solve.implicit import DifferentiatingMethod, Method, divide_by_slope, implicit_root, root
from dpkernels.solve.roots import NEWTON_STEPS

_GOLDEN = (5**0.5 - 1) / 2  # The larger part of a golden section.
_MAX_DAMPED_STEPS = 60  # Steps of the damped Newton method at most.
_NEWTON_RTOL = 1e-8  # Of Newton's method on a convex function, as a share of x. The error is about its square.
_GOLDEN_STEPS = 60  # Of golden section: 3e-13 of the interval.
# A zoom keeps the two cells of 8 around the best point, so that ten find the place of a maximum to 4^-10 of a piece,
# and its value, which is flat there, to about 1e-12.
_ZOOM_POINTS = 9
_ZOOMS = 10  # The zooms of few pieces.
_MIN_MANY_PIECES = 32  # From this number of pieces on, each is evaluated at its ends and its middle, and zoomed once.
_END_SHARE = 1e-6  # The share of a range within which a minimum that a host found is at the range's end.
_KNOT_INSET = 1e-12  # The share of a piece by which a zoom starts off a knot.
_MAX_POLISH = 1e-4  # The longest step from the place that a zoom found to the maximum, as a share of the piece.


def minimum(
    function: Function, parameters: PyTree, low: Real, high: Real, *, stop_value: float = -np.inf, rtol: float = 1e-16
) -> Any:
    """Return where a function with one minimum on [low, high] is lowest, by golden section; not differentiated."""
    steps = math.ceil(math.log(rtol) / math.log(_GOLDEN))
    parameters, low, high = promote(parameters, low, high)
    is_plain = namespace(low) is np
    if not is_plain:
        parameters, low, high = jax.lax.stop_gradient((parameters, low, high))

    def unfinished(state: tuple[Real, ...]) -> Boolean:
        # Until a value is at most ``stop_value``, or the interval within ``rtol`` of its first length.
        return (state[0] < steps) & (state[-2] > stop_value) & (state[-1] > stop_value)

    def narrow(state: tuple[Real, ...]) -> tuple[Real, ...]:
        """The minimum is left of ``upper``, or right of ``lower``."""
        step, low, lower, upper, high, lower_value, upper_value = state
        xp = namespace(lower, lower_value)
        goes_down = lower_value <= upper_value
        low, high = xp.where(goes_down, low, lower), xp.where(goes_down, upper, high)
        new = xp.where(goes_down, low + (1 - _GOLDEN) * (high - low), low + _GOLDEN * (high - low))
        new_value = function(new, parameters)
        lower, upper = xp.where(goes_down, new, upper), xp.where(goes_down, lower, new)
        values = xp.where(goes_down, new_value, upper_value), xp.where(goes_down, lower_value, new_value)
        return step + 1, low, lower, upper, high, *values

    lower, upper = (low + fraction * (high - low) for fraction in (1 - _GOLDEN, _GOLDEN))
    lower_value, upper_value = map_over(lambda x: function(x, parameters), namespace(low).stack([lower, upper]))
    state: tuple[Real, ...] = 0, low, lower, upper, high, lower_value, upper_value
    *_, lower, upper, _, lower_value, upper_value = while_loop(unfinished, narrow, state)
    best = namespace(lower, upper).where(lower_value <= upper_value, lower, upper)
    return float(best) if is_plain else best


def bounded_minimum(function: Callable[[float], float], low: float, high: float, xatol: float) -> tuple[float, float]:
    """Return (x, value) where a smooth function of plain numbers with one minimum on [low, high] is lowest.

    The search is SciPy's bounded Brent method. It stops within about ``xatol`` or 1.5e-8 of x, whichever is more.
    """
    from scipy.optimize import minimize_scalar  # Imported on use: it takes 0.15 s.

    result = minimize_scalar(function, bounds=(low, high), method="bounded", options={"xatol": xatol})
    return float(result.x), float(result.fun)


def minimum_and_value_on_grid(
    function: Callable[[float], float], grid: np.ndarray, xatol: float
) -> tuple[float, float]:
    """Return (x, value) where a function of plain numbers is lowest, around the best point of a grid."""
    values = [function(float(x)) for x in grid]
    best = int(np.argmin(values))
    ends = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, len(grid) - 1)])
    x, value = bounded_minimum(function, *ends, xatol)
    # Brent's method may miss the minimum of a function that jumps.
    return (x, value) if value <= values[best] + 1e-9 * abs(values[best]) else (float(grid[best]), float(values[best]))


def smooth_minimum(
    function: Function,
    parameters: PyTree,
    starts: RealArray,
    low: RealArray,
    high: RealArray,
    on_host: Callable[[PyTree], np.ndarray] | None = None,
) -> Array:
    """Return where a smooth function of JAX numbers is lowest, near the best of several starts, with derivatives.

    The search is Newton's method, damped (Levenberg and Marquardt). By the implicit rule the derivatives are those of
    the place where the gradient is 0. A coordinate at an end of its range stays there. Where the minimum is a kink the
    derivatives are NaN. ``starts`` has shape (n, d); x and its range, ``low`` and ``high``, have shape (d,).

    Outside ``jit`` the place is ``on_host(parameters)``, a search by NumPy, if there is one. Only the derivatives are
    compiled then, once for every function that is the same object.

    For two coordinates optimistix's Levenberg-Marquardt takes 2.5 s instead of 1.4 s the first time and 0.12 ms instead
    of 0.07 ms later, and its BFGS 1.7 s and 0.09 ms. Importing it takes 0.4 s.
    """
    parameters, *where = promote(parameters, *map(jnp.asarray, (starts, low, high)))
    if on_host is None or is_compiling():
        return implicit_root(_DampedNewton(), function, parameters, tuple(where))
    ends = np.asarray(low), np.asarray(high)
    shape_of_x = jax.ShapeDtypeStruct(where[1].shape, where[1].dtype)
    (x,) = call_on_host(lambda parameters: [_snap_to_ends(on_host(parameters), *ends)], [shape_of_x], parameters)
    return _fixed_minimum(function, parameters, (x, *where[1:]))


def _snap_to_ends(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return x at an end of its range where it is next to it: Brent's method does not evaluate the ends."""
    margin = _END_SHARE * (high - low)
    return np.where(x <= low + margin, low, np.where(x >= high - margin, high, x))


@dataclass(frozen=True)
class _DampedNewton(Method):
    """Newton's method for the minimum of a function in a box; see ``smooth_minimum``."""

    def root(self, function: Function, parameters: PyTree, where: tuple[Array, Array, Array]) -> Array:
        starts, low, high = where
        values = jax.vmap(lambda x: function(x, parameters))(starts)
        x = starts[jnp.where(jnp.isnan(values), jnp.inf, values).argmin()]
        tolerance = jnp.finfo(x.dtype).eps

        def unfinished(state: PyTree) -> Array:
            count, _, step, *_ = state
            return (count < _MAX_DAMPED_STEPS) & (step > tolerance**0.75)

        def improve(state: PyTree) -> PyTree:
            count, x, _, damping, derivatives = state
            value, gradient, hessian = derivatives
            is_free = _is_free(x, gradient, low, high)
            damped = hessian + damping * jnp.diag(jnp.abs(jnp.diag(hessian)))
            new = jnp.clip(x - _solve_free(damped, gradient, is_free), low, high)
            new_derivatives = _with_derivatives(function, new, parameters)
            is_better = (count == 0) | (new_derivatives[0] <= value + 4 * tolerance * jnp.abs(value))
            step = jnp.where(is_better & (count > 0), jnp.abs(new - x).max(), jnp.where(damping < 1e12, jnp.inf, 0.0))
            x, derivatives = jax.tree.map(partial(jnp.where, is_better), (new, new_derivatives), (x, derivatives))
            return count + 1, x, step, jnp.where(is_better, damping / 10, 10 * damping + 1e-3), derivatives

        first_derivatives = values[0], jnp.zeros_like(x), jnp.eye(x.size, dtype=x.dtype)
        state = 0, x, jnp.full((), jnp.inf, x.dtype), jnp.full((), 1e-2, x.dtype), first_derivatives
        return jax.lax.while_loop(unfinished, improve, state)[1]

    def derivatives(
        self, function: Function, x: Array, parameters: PyTree, where: tuple[Array, Array, Array], tangents: PyTree
    ) -> tuple[Array, Array]:
        gradient, linear_map = jax.linearize(jax.jacfwd(function), x, parameters)
        no_tangents = jax.tree.map(jnp.zeros_like, parameters)
        hessian = jax.vmap(lambda direction: linear_map(direction, no_tangents))(jnp.eye(x.size, dtype=x.dtype))
        gradient_tangent = linear_map(jnp.zeros_like(x), tangents)
        is_free = _is_free(x, gradient, *where[1:])
        is_smooth = jnp.abs(_solve_free(hessian, gradient, is_free)).max() <= jnp.finfo(x.dtype).eps ** 0.25
        hessian = jnp.where(is_smooth, hessian, jnp.nan)
        return _restricted(hessian, is_free), jnp.where(is_free, gradient_tangent, 0.0)


def _fixed_minimum_jvp(function: Function, primals: PyTree, tangents: PyTree) -> tuple[Array, Array]:
    """Apply the implicit rule to a minimum that is known, by one program without tangents."""
    parameters, where = primals
    x = _fixed_minimum(function, parameters, where)
    jacobian = _minimum_jacobian(function, x, parameters, where)
    steps = jax.tree.map(lambda slope, tangent: jnp.tensordot(slope, tangent, tangent.ndim), jacobian, tangents[0])
    return x, reduce(jnp.add, jax.tree.leaves(steps))


@custom_jvp(jvp=_fixed_minimum_jvp, nondiff_argnums=(0,))
def _fixed_minimum(function: Function, parameters: PyTree, where: tuple[Array, Array, Array]) -> Array:
    """Return the minimum of a function in a box, which is known: the first one of ``where``."""
    return where[0]


@in_one_program(static_argnums=0, quickly=True)
def _minimum_jacobian(function: Function, x: Array, parameters: PyTree, where: PyTree) -> PyTree:
    """Return the derivatives of the minimum x by every parameter, along a first axis of x."""

    def step(tangents: PyTree) -> Array:  # linear
        slope, moved = _DampedNewton().derivatives(function, x, parameters, where, tangents)
        return -divide_by_slope(moved, slope)

    return jax.jacfwd(step)(jax.tree.map(jnp.zeros_like, parameters))


def _with_derivatives(function: Function, x: Array, parameters: PyTree) -> tuple[Array, Array, Array]:
    """Return the value, the gradient by x and the second derivatives, in one evaluation."""

    def first(x: Array) -> tuple[Array, tuple[Array, Array]]:
        gradient, value = jax.jacfwd(lambda x: (function(x, parameters),) * 2, has_aux=True)(x)
        return gradient, (value, gradient)

    hessian, (value, gradient) = jax.jacfwd(first, has_aux=True)(x)
    return value, gradient, hessian


def _is_free(x: Array, gradient: Array, low: Array, high: Array) -> Array:
    """Return which coordinates are not held at an end of their range."""
    return ~(((x <= low) & (gradient > 0)) | ((x >= high) & (gradient < 0)))


def _restricted(matrix: Array, is_free: Array) -> Array:
    """Return a matrix with the rows and columns of held coordinates replaced by those of the identity."""
    return jnp.where(is_free[:, None] & is_free, matrix, jnp.eye(is_free.size, dtype=matrix.dtype))


def _solve_free(hessian: Array, gradient: Array, is_free: Array) -> Array:
    return divide_by_slope(jnp.where(is_free, gradient, 0.0), _restricted(hessian, is_free))


def minimum_on_grid(function: Function, parameters: PyTree, grid: RealArray, *, xatol: float) -> Real:
    """Return where a smooth function is lowest, around the best point of a grid; not differentiated."""
    parameters, grid = promote(parameters, grid)
    if namespace(grid) is np:
        return minimum_and_value_on_grid(lambda x: function(x, parameters), np.asarray(grid), xatol)[0]
    parameters, grid = jax.lax.stop_gradient((parameters, grid))
    lowest = jnp.argmin(map_over(lambda x: function(x, parameters), grid))
    ends = grid[jnp.maximum(lowest - 1, 0)], grid[jnp.minimum(lowest + 1, grid.size - 1)]
    return minimum(function, parameters, *ends, rtol=1e-9)


def refined_maximum(function: Callable[[np.ndarray], np.ndarray], points: np.ndarray) -> float:
    """Return the largest value, on the interval that dense ``points`` span, of a NumPy function smooth between them."""
    best = -np.inf
    for _ in range(4):
        values = function(points)
        highest = int(values.argmax())
        best = max(best, float(values[highest]))
        points = np.linspace(points[max(highest - 1, 0)], points[min(highest + 1, len(points) - 1)], 33)
    return best


def maximum_between(function: Function, parameters: PyTree, knots: Array) -> Array:
    """Return the largest value of a JAX function that is smooth between increasing knots; differentiable twice.

    In each piece a zoom finds the place with the largest value, as a share of the way from knot to knot. At a knot the
    share is held: the maximum moves with the knot. Inside a piece it moves by the implicit rule, which only second
    derivatives need. If there are many pieces, as in tables, only their ends and middles are evaluated.
    """
    return _maximum_between(function, *promote(parameters, knots))


@in_one_program(static_argnums=0)
def _maximum_between(function: Function, parameters: PyTree, knots: Array) -> Array:
    pieces = knots.size - 1
    has_many_pieces = pieces >= _MIN_MANY_PIECES
    grid = np.linspace(0.0, 1.0, 3 if has_many_pieces else _ZOOM_POINTS)
    start, length = jax.lax.stop_gradient((knots[:-1, None], jnp.diff(knots)[:, None]))
    constants = jax.lax.stop_gradient(parameters)

    def zoom(_: int, state: tuple[Array, ...]) -> tuple[Array, ...]:
        low, high = state[:2]
        fractions = low + (high - low) * grid
        values = function(start + length * fractions, constants)
        highest = values.max(-1, keepdims=True)
        best = jnp.where(values >= highest, fractions, -1.0).max(-1, keepdims=True)
        cell = (high - low) / (len(grid) - 1)
        return jnp.maximum(best - cell, low), jnp.minimum(best + cell, high), best, highest

    low = jnp.full_like(start, _KNOT_INSET)
    *_, fraction, highest = jax.lax.fori_loop(0, 1 if has_many_pieces else _ZOOMS, zoom, (low, 1 - low, low, low))
    # Of equal values the last: where a function is flat, its place decides the derivatives.
    best = pieces - 1 - highest[::-1].argmax()
    piece = knots[best], knots[best + 1], parameters
    fraction = implicit_root(_Interior(), partial(_slope, partial(_on_piece, function)), piece, fraction[best, 0])
    return _at_extreme(partial(_on_piece, function), fraction, piece)


def _on_piece(function: Function, fraction: Array, piece: tuple[Array, Array, PyTree]) -> Array:
    lower, upper, parameters = piece
    return function(lower + (upper - lower) * fraction, parameters)


def _extreme_and_slope(
    function: Function, primals: tuple[Array, PyTree], tangents: tuple[Array, PyTree]
) -> tuple[Array, Array]:
    """Apply the envelope theorem: the derivative of the extreme by x vanishes."""
    x, parameters = primals
    return jax.jvp(partial(function, x), (parameters,), (tangents[1],))


@custom_jvp(jvp=_extreme_and_slope, nondiff_argnums=(0,))
def _at_extreme(function: Function, x: Array, parameters: PyTree) -> Array:
    return function(x, parameters)


def _slope(function: Function, x: Array, parameters: PyTree) -> Array:
    return jax.jvp(lambda x: function(x, parameters), (x,), (jnp.ones_like(x),))[1]


@dataclass(frozen=True)
class _Interior(Method):
    """The place of a maximum, which is known; at an end of [0, 1] it stays."""

    def root(self, slope: Function, parameters: PyTree, fraction: Array) -> Array:
        return fraction

    def derivatives(
        self, slope: Function, fraction: Array, parameters: PyTree, where: PyTree, tangents: PyTree
    ) -> tuple[Array, Array]:
        slope_value, bend = slope(fraction, parameters), _slope(slope, fraction, parameters)
        slope_tangent = jax.jvp(partial(slope, fraction), (parameters,), (tangents,))[1]
        is_off_knots = (fraction > 2 * _KNOT_INSET) & (fraction < 1 - 2 * _KNOT_INSET)
        is_interior = (jnp.abs(slope_value) <= _MAX_POLISH * -bend) & is_off_knots
        return jnp.where(is_interior, bend, 0.0), slope_tangent


def unit_grid_dense_at_ends(count: int) -> np.ndarray:
    """Return increasing numbers from 0 to 1: ``count`` evenly spaced ones, and ones ever nearer to both ends."""
    distances = 2.0 ** -np.arange(math.ceil(math.log2(count)), 28.0)
    return np.unique(np.concatenate([np.linspace(0.0, 1.0, count), distances, 1 - distances]))


def turning_points(
    function: Callable[[np.ndarray, np.ndarray], np.ndarray], points: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (turns, rows): where functions (x, row) -> value of plain numbers turn from rising to falling or back.

    A turn is seen between three neighbouring points, of shape (rows, n), and found there by golden section. Two turns
    between neighbouring points are not seen.
    """
    rising = np.diff(function(points, np.arange(len(points))[:, None]), axis=1) > 0
    row, column = np.nonzero(rising[:, 1:] != rising[:, :-1])
    low, high, sign = points[row, column], points[row, column + 2], np.where(rising[row, column], -1.0, 1.0)
    for _ in range(_GOLDEN_STEPS if len(row) else 0):
        lower, upper = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        goes_down = sign * function(lower, row) <= sign * function(upper, row)
        low, high = np.where(goes_down, low, lower), np.where(goes_down, upper, high)
    return (low + high) / 2, row


# Roots next to a minimum


def convex_root(convex: Function, parameters: PyTree, low: Real, high: Real, *, rtol: float = 0.0) -> Real:
    """Return the least x in [low, high] at which a convex function is at most 0, or NaN if there is none; low > 0.

    JAX numbers are searched by Newton's method. Of plain numbers the function is at most 0 as computed; ``rtol`` is
    that of ``root``.
    """
    parameters, low, high = promote(parameters, low, high)
    if namespace(low) is not np:
        return implicit_root(_ConvexNewton(), convex, parameters, (low, (low, high)))
    if convex(low, parameters) <= 0:
        return float(low)
    feasible = high if convex(high, parameters) <= 0 else minimum(convex, parameters, low, high, stop_value=0.0)
    return root(convex, parameters, feasible, low, rtol) if convex(feasible, parameters) <= 0 else math.nan


def first_root(excess: Function, parameters: PyTree, low: Real, high: Real, *, count: int = 160) -> Real:
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
    best_index, first_index = xp.argmin(values), xp.argmax(values <= 0)
    lower, upper = grid[xp.maximum(best_index - 1, 0)], grid[xp.minimum(best_index + 1, count - 1)]
    local_minimum = minimum(excess, frozen, lower, upper, stop_value=0.0, rtol=1e-9)
    any_feasible = values[first_index] <= 0
    feasible = xp.where(any_feasible, grid[first_index], local_minimum)
    infeasible = xp.where(any_feasible, grid[xp.maximum(first_index - 1, 0)], lower)
    is_feasible = excess(feasible, frozen) <= 0
    return xp.where(is_feasible, root(excess, parameters, feasible, infeasible), xp.nan)[()]


@dataclass(frozen=True)
class _ConvexNewton(DifferentiatingMethod):
    """Newton's method on a convex function, from the low end: its steps are monotone; see ``convex_root``."""

    def iterate(
        self, evaluate: Callable[[Array], PyTree], zeros: PyTree, start: Array, ends: tuple[Array, Array]
    ) -> tuple[Array, ...]:
        low, high = ends

        def unfinished(state: PyTree) -> Array:
            count, x, before, _ = state
            return (count < NEWTON_STEPS) & (jnp.abs(x - before) > _NEWTON_RTOL * x) & (x <= high)

        def improve(state: PyTree) -> PyTree:
            count, x, _, _ = state
            value, slope, *gradient = evaluate(x)
            step = jnp.where(slope < 0, -value / jnp.where(slope < 0, slope, -1.0), jnp.inf)
            new = jnp.maximum(x + jnp.where(value > 0, step, jnp.minimum(step, 0.0)), low)
            return count + 1, new, x, (slope, *gradient)

        _, x, _, (slope, *gradient) = jax.lax.while_loop(unfinished, improve, (0, start, jnp.zeros_like(start), zeros))
        at_low = x <= low
        has_root = (x <= high) & ((slope < 0) | at_low)
        # At the low end the root does not move with the parameters.
        return jnp.where(has_root, x, jnp.nan), jnp.where(at_low, 0.0, slope), *gradient
