"""The optimiser as an optax transformation: BFGS with its matrix in full, for a handful of parameters.

``optax.scale_by_lbfgs`` keeps a memory of differences instead, made for thousands of parameters: compiling it takes
three times as long as compiling this.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpkernels.numerics import RealArray


class BfgsState(NamedTuple):
    """Where the last step ended, and the estimate of the inverse Hessian, 0 before the first step."""

    params: Any
    gradient: Any
    inverse: Any


def bfgs() -> optax.GradientTransformation:
    """Steps -H g, with H the BFGS estimate of the inverse Hessian (Nocedal and Wright 2006, 6.17).

    s = step, y = change of gradient, r = 1/(s y):  H <- (1 - r s y^T) H (1 - r y s^T) + r s s^T.

    The first step has length 1. Where s y <= 0, on a concave stretch, H is doubled instead, so that steps get longer
    there. At kinks, where gradients jump, BFGS with a line search still descends (Lewis and Overton 2013).
    """
    return optax.chain(_scale_by_bfgs(), optax.scale(-1.0))


def _scale_by_bfgs() -> optax.GradientTransformation:
    def init(params: RealArray) -> BfgsState:
        return BfgsState(params, jnp.zeros_like(params), jnp.zeros((params.size, params.size), params.dtype))

    def update(gradient: Any, state: BfgsState, params: Any = None) -> tuple[jax.Array, BfgsState]:
        s, y, H = params - state.params, gradient - state.gradient, state.inverse
        sy = (s * y).sum()
        convex = sy > 1e-12 * jnp.sqrt((s * s).sum() * (y * y).sum())
        r = jnp.where(convex, 1 / jnp.where(convex, sy, 1.0), 0.0)
        Hy = (H * y).sum(-1)
        cross = s[:, None] * Hy
        better = H + r * ((1 + r * (y * Hy).sum()) * s[:, None] * s - cross - cross.T)
        length = jnp.sqrt((gradient * gradient).sum())
        first = jnp.eye(params.size, dtype=params.dtype) / jnp.maximum(length, 1e-300)
        H = jnp.where(H[0, 0] == 0, first, jnp.where(convex, better, 2 * H))
        return (H * gradient).sum(-1), BfgsState(params, gradient, H)

    return optax.GradientTransformation(init, update)
