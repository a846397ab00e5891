"""Smoothed maximum likelihood (EMS): expectation maximisation with a smoothing step after each step.

The iteration is theta <- S (theta B' (p / B theta)), where S averages neighbouring bins with the weights (1, 2, 1)/4
and repeats the first and the last bin. With few noisy reports the maximum likelihood distribution consists of spikes;
the smoothed one is nearer to a smooth true distribution.

Source: Silverman, Jones, Wilson & Nychka 1990; for locally private reports Li et al. 2020 (square wave).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dpkernels.estimation.likelihood import Fit, judged

# The iteration stops when a step moves less than this share of the total.
_AIM = 1e-7
_MOST_STEPS = 20_000


def smoothed(B: np.ndarray, counts: np.ndarray) -> Fit:
    """Return the fixed point of EMS, with its log-likelihood and how far below the greatest that can be.

    Args:
        B: (m, d) P(report j | bin k).
        counts: (m,) how often each report was seen, at least one.
    """
    with jax.enable_x64(True):
        shares, steps = _iterated(jnp.asarray(B), jnp.asarray(counts / counts.sum()))
    return judged(B, counts, np.asarray(shares), int(steps))


def _smooth(theta: Array) -> Array:
    padded = jnp.pad(theta, 1, mode="edge")
    return (padded[:-2] + 2 * theta + padded[2:]) / 4


@jax.jit
def _iterated(B: Array, p: Array) -> tuple[Array, Array]:
    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        theta, _, count = state
        new = _smooth(theta * (B.T @ (p / jnp.maximum(B @ theta, 1e-300))))
        return new, jnp.abs(new - theta).sum(), count + 1

    def unfinished(state: tuple[Array, Array, Array]) -> Array:
        return (state[1] > _AIM) & (state[2] < _MOST_STEPS)

    start = jnp.full(B.shape[1], 1 / B.shape[1]), jnp.array(jnp.inf), jnp.array(0)
    theta, _, steps = lax.while_loop(unfinished, step, start)
    return theta / theta.sum(), steps
