"""Newton's method between two ends, for functions that are large: compiled once, with all their derivatives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpkernels.numerics import Real
from dpkernels.roots import Excess, alike

_STEPS = 60


def newton(
    falling: Excess, parameters: Any, start: Real, ends: tuple[Real, Real], *, found: float, longest: float = np.inf
) -> Any:
    """Where a falling function is 0, by Newton's method from ``start``; NaN where it was not found. JAX alone.

    A step beyond what is known of the root's place goes half-way there. Derivatives are implicit.

    Args:
        falling: from (x, parameters) to a JAX scalar.
        parameters: any pytree of numbers.
        start: between the ends.
        ends: a step goes beyond neither.
        found: the length of the last step; the error is about its square.
        longest: no step is longer.
    """
    parameters, start = alike(parameters, jnp.asarray(start))
    return _newton(falling, found, longest, parameters, start, ends)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _newton(falling: Excess, found: float, longest: float, parameters: Any, start: Any, ends: Any) -> Any:
    def read(x: Any) -> Any:
        return jax.jvp(lambda x: falling(x, parameters), (x,), (jnp.ones_like(x),))

    return _followed(read, found, longest, (jnp.zeros_like(start),) * 2, start, ends)[0]


@_newton.defjvp
def _(falling: Excess, found: float, longest: float, primals: Any, tangents: Any) -> tuple[Any, Any]:
    """All derivatives with every step: the function, which may be large, is compiled once."""
    parameters, start, ends = primals

    def read(x: Any) -> Any:
        value, pullback = jax.vjp(falling, x, parameters)
        return value, *pullback(jnp.ones_like(value))

    nothing = jnp.zeros_like(start), jnp.zeros_like(start), jax.tree.map(jnp.zeros_like, parameters)
    x, slope, gradient = _followed(read, found, longest, nothing, start, ends)
    along = jax.tree.map(lambda by, moved: (by * moved).sum(), gradient, tangents[0])
    moved = sum(jax.tree.leaves(along), jnp.zeros_like(x))
    return x, -moved / jnp.where(slope < 0, slope, jnp.nan)


def _followed(
    read: Callable[[Any], Any], found: float, longest: float, nothing: Any, start: Any, ends: Any
) -> tuple[Any, ...]:
    """(the root, what ``read`` says there but the value): it says (value, slope, ...) at any x; see ``newton``."""

    def unfinished(state: Any) -> Any:
        count, step, *_ = state
        return (count < _STEPS) & (jnp.abs(step) > found)

    def improve(state: Any) -> Any:
        """To the next trial from what is known of this one; of the first one nothing is."""
        count, _, x, (value, slope, *_), low, high = state
        new = x - jnp.clip(value / jnp.where(slope < 0, slope, -1.0), -longest, longest)
        new = jnp.where(new <= low, (low + x) / 2, jnp.where(new >= high, (high + x) / 2, new))
        there = read(new)
        low, high = jnp.where(there[0] > 0, new, low), jnp.where(there[0] > 0, high, new)
        return count + 1, jnp.where(count > 0, new - x, jnp.inf), new, there, low, high

    low, high = (jnp.full_like(start, end) for end in ends)
    first = 0, jnp.full_like(start, jnp.inf), start, nothing, low, high
    _, step, x, (value, slope, *gradient), *_ = jax.lax.while_loop(unfinished, improve, first)
    # Steps half-way to an end are short too, where no root is between the ends; a value is as near to 0 as floats tell.
    told = jnp.maximum(found, jnp.finfo(x.dtype).eps ** 0.5)
    root = (jnp.abs(step) <= found) & (jnp.abs(value) <= told * jnp.abs(slope))
    return jnp.where(root, x, jnp.nan), slope, *gradient
