"""How high a window may be at a budget: ``mechanisms.windowed.heights``, but traceable by JAX, for searches."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpkernels.mechanisms.windowed.bases import Base
from dpkernels.mechanisms.windowed.mechanism import Windowed, distances
from dpkernels.mechanisms.windowed.windows import Window
from dpkernels.numerics import Real, RealArray

# A zoom keeps the two cells of 8 around the best point, so that ten find the place of a maximum to 4^-10 of a piece,
# and its value, which is flat there, to about 1e-12.
_POINTS, _ZOOMS = 9, 10
_SIDE = 1e-12  # Off a kink to one side of it, as ``windowed.critical_points`` has it.


def tallest(window: Window, base: Base, width: Real, epsilon: Real, condition: str) -> Real:
    """k/y, the largest relative height that is eps-DP at this width; NaN where none is positive."""
    if condition == "sup_inf":
        ratio = jnp.exp(epsilon) * base.lowest - 1
    else:
        ratio = jnp.expm1(epsilon) / _steepest(window, base, width, epsilon)
    return jnp.where(ratio > 0, ratio, jnp.nan)


def _steepest(window: Window, base: Base, width: Real, epsilon: Any) -> Real:
    """Maximum over v of (ceiling - e^eps floor)/g, smooth between the points where a shape has a kink.

    In each piece between them a zoom finds the share s of its way with the largest value; s is then held: at a maximum
    inside the piece its derivative does not count, and at an end it moves with the end.
    """
    reach = 1 - width / 2
    kinks = [jnp.asarray(base.kinks), reach + width * window.kinks, width * window.kinks - reach, jnp.array([0.0, 1.0])]
    ends = jnp.sort(jnp.clip(jnp.concatenate(kinks), 0.0, 1.0))
    left, size = ends[:-1, None], jnp.diff(ends)[:, None]

    def steepness(s: Real) -> RealArray:
        v = left + size * s
        near, far = distances(v, width)
        return (window.ceiling(near) - jnp.exp(epsilon) * window.floor(far)) / base.density(v)

    return steepness(jax.lax.stop_gradient(_best_share(steepness, ends.size - 1, ends))).max()


def _best_share(steepness: Any, pieces: int, like: Real) -> RealArray:
    """Of shape (pieces, 1). Shapes of many short pieces, which tables have, are taken at their ends and middles."""
    grid = np.linspace(0.0, 1.0, _POINTS if pieces < 32 else 3)
    low, high = jnp.full_like(like, _SIDE, shape=(pieces, 1)), jnp.full_like(like, 1 - _SIDE, shape=(pieces, 1))

    def zoom(_: int, state: tuple[Any, Any, Any]) -> tuple[Real, Real, Real]:
        low, high, _ = state
        s = low + (high - low) * grid
        best = jnp.take_along_axis(s, steepness(s).argmax(-1, keepdims=True), -1)
        cell = (high - low) / (len(grid) - 1)
        return jnp.maximum(best - cell, low), jnp.minimum(best + cell, high), best

    zooms = _ZOOMS if pieces < 32 else 1
    return jax.lax.fori_loop(0, zooms, zoom, jax.lax.stop_gradient((low, high, low)))[2]


def windowed(window: Window, base: Base, width: Real, budget: tuple[Real, Real, Real], condition: str) -> Windowed:
    """The mechanism of this width with the tallest window; ``budget`` is (epsilon, lower, upper)."""
    epsilon, lower, upper = budget
    return Windowed(window, base, width, tallest(window, base, width, epsilon, condition), lower, upper, epsilon)
