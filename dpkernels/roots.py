"""One-dimensional searches: roots by halving, from the safe side, differentiated implicitly; valleys; nudges.

A requirement reads excess(x, parameters) <= 0. What is returned always meets it as computed; the point next to it in
the float's resolution does not. Where excess(x(p), p) = 0,

    dx/dp = -(d excess / dp) / (d excess / dx).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from dpkernels.numerics import Real, RealArray, namespace

_GOLDEN = (5**0.5 - 1) / 2

Excess = Callable[[Any, Any], Any]
T = TypeVar("T")

# How far something computed is moved to its safe side: by rounding errors, from half of one of 1 to 1e-10.
NUDGES = (0.0, *(2.0**-k for k in range(53, 33, -1)))


class NotPrivateError(ValueError):
    """What was made does not meet its budget."""


def until_private(step: Callable[[float], T], holds: Callable[[T], object], nudges: Iterable[float] = NUDGES) -> T:
    """The first of what ``step`` makes, nudged further and further to its safe side, that holds as computed.

    A root is exact but for rounding; what is made of it need not meet its claim to the last bit. Here is the one place
    where it is moved until it does.

    Args:
        step: from a nudge, 0 at first and growing, to what is made; it closes over where the root is.
        holds: whether that meets its claim; what is neither true nor false, a NaN's comparison for one, counts as no.
        nudges: how far to go, in order.

    Raises:
        NotPrivateError: none of them holds.
    """
    furthest = 0.0
    for nudge in nudges:
        made, furthest = step(nudge), nudge
        if holds(made):
            return made
    raise NotPrivateError(f"moved by up to {furthest:.3g} to the safe side, what was made is still not private")


def while_loop(unfinished: Callable[[Any], Any], body: Callable[[Any], Any], state: Any) -> Any:
    """``jax.lax.while_loop`` where the state holds a JAX array; else the same on the host."""
    if namespace(*jax.tree.leaves(state)) is jnp:
        return jax.lax.while_loop(unfinished, body, state)
    while unfinished(state):
        state = body(state)
    return state


def halved(before: Callable[[Any], Real], low: Real, high: Real, steps: int) -> tuple[Any, Any]:
    """Ends between which ``before`` turns from true to false, after so many halvings; element by element."""
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


def bisect(function: Callable[[Real], Real], target: Any, low: Any, high: Any) -> Any:
    """The point where an increasing ``function`` reaches ``target``, by halving down to the float's resolution."""
    xp = namespace(target, low, high)
    target, low, high = xp.broadcast_arrays(target, low, high)
    low, high = (end.astype(target.dtype) for end in (low, high))
    low, high = halved(lambda y: function(y) < target, low, high, xp.finfo(target.dtype).nmant + 8)
    return (low + high) / 2


def safe_root(excess: Excess, parameters: Any, safe: Real, unsafe: Real, rtol: float = 0.0) -> Any:
    """The last x, going from ``safe`` towards ``unsafe``, where the requirement still holds.

    Bisection down to neighbouring floats; a NaN counts as a breach. With several changes of sign in between it is
    one of them. The end ``safe`` is not evaluated: it may be a limit, such as 0.

    Args:
        excess: from (x, parameters) to a number, continuous; it closes over no tracer.
        parameters: any pytree of numbers.
        safe: where the requirement holds; a number.
        unsafe: where it does not, on either side of ``safe``.
        rtol: stop within this relative distance of the root already.

    Returns:
        x: a float for NumPy arguments; for JAX ones a JAX scalar, differentiable in the parameters, to their type's
        precision.
    """
    parameters, safe, unsafe = alike(parameters, safe, unsafe)
    if namespace(safe) is np:
        return float(_bisect(excess, parameters, float(safe), float(unsafe), rtol))
    return _root(excess, rtol, parameters, safe, unsafe)


def lowest(
    function: Excess, parameters: Any, low: Real, high: Real, *, enough: float = -np.inf, rtol: float = 1e-16
) -> Any:
    """Where a function with a single valley on [low, high] is lowest, by golden section; not differentiated.

    It stops at the first value that is ``enough``, or when it has the place to ``rtol`` of the interval.
    """
    steps = math.ceil(math.log(rtol) / math.log(_GOLDEN))
    parameters, low, high = alike(parameters, low, high)
    if namespace(low) is np:
        return float(_valley(function, parameters, float(low), float(high), enough, steps))
    parameters, low, high = jax.lax.stop_gradient((parameters, low, high))
    return _valley(function, parameters, low, high, enough, steps)


def best_on(function: Excess, grid: np.ndarray, rtol: float) -> float:
    """Where a function is lowest: around the lowest of the grid's points, to ``rtol`` of the cells there."""
    values = [function(x, ()) for x in grid]
    at = int(np.argmin(values))
    found = float(lowest(function, (), grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)], rtol=rtol))
    return found if function(found, ()) < values[at] else float(grid[at])


def _valley(function: Excess, parameters: Any, low: Any, high: Real, enough: float, steps: int) -> Real:
    left, right = (low + share * (high - low) for share in (1 - _GOLDEN, _GOLDEN))
    at_left, at_right = on_grid(function, parameters, namespace(low).stack([left, right]))
    state = (0, low, left, right, high, at_left, at_right)

    def unfinished(state: tuple[Real, ...]) -> Any:
        return (state[0] < steps) & (state[-2] > enough) & (state[-1] > enough)

    *_, left, right, _, at_left, at_right = while_loop(unfinished, partial(_narrow, function, parameters), state)
    return namespace(left, right).where(at_left <= at_right, left, right)


def alike(*values: Any) -> Any:
    """The values, with every number in them a JAX one of the floating type that they have together if any is."""
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(values) if isinstance(leaf, jax.Array)]
    if not dtypes:
        return values
    dtype = jnp.result_type(jnp.float32, *dtypes)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), values)


def on_grid(function: Excess, parameters: Any, grid: RealArray) -> RealArray:
    """The function at every point of a grid, one after the other."""
    if namespace(grid, *jax.tree.leaves(parameters)) is np:
        return np.array([function(x, parameters) for x in grid])
    return jax.lax.map(lambda x: function(x, parameters), jnp.asarray(grid))


def _bisect(excess: Excess, parameters: Any, safe: Any, unsafe: Any, rtol: float) -> Real:
    """Halve until the middle is an end."""
    xp = namespace(safe)

    def unfinished(ends: tuple[Any, Any]) -> Any:
        safe, unsafe = ends
        middle = (safe + unsafe) / 2
        return (middle != safe) & (middle != unsafe) & (abs(unsafe - safe) > rtol * abs(safe))

    def halve(ends: tuple[Real, Real]) -> tuple[Real, Real]:
        safe, unsafe = ends
        middle = (safe + unsafe) / 2
        holds = excess(middle, parameters) <= 0
        return xp.where(holds, middle, safe), xp.where(holds, unsafe, middle)

    return while_loop(unfinished, halve, (safe, unsafe))[0]


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _root(excess: Excess, rtol: float, parameters: Any, safe: Real, unsafe: Real) -> Real:
    return _bisect(excess, parameters, safe, unsafe, rtol)


@_root.defjvp
def _(excess: Excess, rtol: float, primals: Any, tangents: Any) -> tuple[Any, Any]:
    parameters, safe, unsafe = primals
    x = _root(excess, rtol, parameters, safe, unsafe)
    value, pullback = jax.vjp(excess, x, parameters)
    slope, gradient = pullback(jnp.ones_like(value))
    moved = sum(map(jnp.multiply, jax.tree.leaves(gradient), jax.tree.leaves(tangents[0])), jnp.zeros_like(x))
    # Where the excess is flat the root is an end of the bracket, and stays there.
    steep = slope != 0
    return x, jnp.where(steep, -moved / jnp.where(steep, slope, 1.0), 0.0)


def _narrow(function: Excess, parameters: Any, state: tuple[Real, ...]) -> tuple[Real, ...]:
    """One step of the golden section: the valley is left of ``right``, or right of ``left``."""
    step, low, left, right, high, at_left, at_right = state
    xp = namespace(left, at_left)
    leftwards = at_left <= at_right
    low, high = xp.where(leftwards, low, left), xp.where(leftwards, right, high)
    new = xp.where(leftwards, low + (1 - _GOLDEN) * (high - low), low + _GOLDEN * (high - low))
    at_new = function(new, parameters)
    left, right = xp.where(leftwards, new, right), xp.where(leftwards, left, new)
    at_left, at_right = xp.where(leftwards, at_new, at_right), xp.where(leftwards, at_left, at_new)
    return step + 1, low, left, right, high, at_left, at_right


def first_crossing(
    excess: Excess, parameters: Any, low: Real, high: Real, *, count: int = 160, rtol: float = 0.0
) -> Real:
    """The first x from ``low`` up where the requirement holds, for an excess that need not be monotone.

    It is looked for on ``count`` points spaced evenly in the logarithm and, where none of them meets it, in the
    valley around the lowest of them. A crossing missed between two points costs size, not safety.

    Args:
        excess: see ``safe_root``.
        parameters: any pytree of numbers.
        low: positive; the requirement is breached there.
        high: above low.
        count: how many points.
        rtol: see ``safe_root``.

    Returns:
        x as ``safe_root`` finds it; NaN where no x was found.
    """
    parameters, low, high = alike(parameters, low, high)
    xp = namespace(low)
    frozen = (parameters, low, high) if xp is np else jax.lax.stop_gradient((parameters, low, high))
    safe, unsafe, found = _first_bracket(excess, frozen[0], frozen[1], frozen[2], count)
    return xp.where(found, safe_root(excess, parameters, safe, unsafe, rtol), xp.nan)[()]


def _first_bracket(excess: Excess, parameters: Any, low: Real, high: Real, count: int) -> tuple[Real, Real, Real]:
    xp = namespace(low)
    grid = xp.geomspace(low, high, count)
    values = on_grid(excess, parameters, grid)
    at, first = xp.argmin(values), xp.argmax(values <= 0)
    left, right = grid[xp.maximum(at - 1, 0)], grid[xp.minimum(at + 1, count - 1)]
    valley = lowest(excess, parameters, left, right, enough=0.0, rtol=1e-9)
    some = values[first] <= 0
    safe, unsafe = xp.where(some, grid[first], valley), xp.where(some, grid[xp.maximum(first - 1, 0)], left)
    return safe, unsafe, excess(safe, parameters) <= 0
