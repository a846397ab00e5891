"""Comparisons for the samplers: textbook methods, other libraries, and the machine itself.

Each is a function from a number of values to the task that is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from dpkernels.random import host

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from dpkernels.numerics import RealArray

EPSILON, DELTA, LOWER, UPPER = 1.0, 1e-6, 0.0, 120.0
WIDTH = UPPER - LOWER
KEY_SEED = 7

Task = Callable[[], Any]


def inputs(count: int, dtype: DTypeLike = np.float64) -> np.ndarray:
    """Values of the interval, the same ones each time."""
    return np.random.default_rng(1).uniform(LOWER, UPPER, count).astype(dtype)


def on_device(task: Callable[[], jax.Array]) -> Task:
    """The task, waited for."""
    return lambda: task().block_until_ready()


def _textbook(u: Any, x: RealArray, xp: Any) -> Any:
    """Wang 2019, Algorithm 2, on [-1, 1], as its readers write it."""
    e = np.exp(EPSILON / 2)
    C = (e + 1) / (e - 1)
    lower = (C + 1) / 2 * x - (C - 1) / 2
    upper = lower + C - 1
    in_window = lower + (upper - lower) * u[1]
    low_side, high_side = lower + C, C - upper
    v = u[1] * (low_side + high_side)
    in_base = xp.where(v < low_side, v - C, v - low_side + upper)
    return xp.where(u[0] < e / (e + 1), in_window, in_base)


def textbook_numpy(count: int) -> Task:
    """The textbook piecewise mechanism in NumPy."""
    x, rng = inputs(count) / 60 - 1, np.random.default_rng(2)
    return lambda: _textbook(rng.random((2, count)), x, np)


def textbook_jax(count: int) -> Task:
    """The textbook piecewise mechanism on ``jax.random.uniform``, jitted, float32."""
    x, key = jnp.asarray(inputs(count, np.float32)) / 60 - 1, jax.random.key(KEY_SEED)
    run = jax.jit(lambda key, x: _textbook(jax.random.uniform(key, (2, count)), x, jnp))
    return on_device(lambda: run(key, x))


def numpy_noise(kind: str) -> Callable[[int], Task]:
    """Inputs plus NumPy's noise, float64."""

    def prepare(count: int) -> Task:
        x, rng = inputs(count), np.random.default_rng(3)
        return lambda: x + getattr(rng, kind)(0.0, WIDTH / EPSILON, count)

    return prepare


def jax_laplace(count: int) -> Task:
    """Inputs plus ``jax.random.laplace``, jitted, float32."""
    x, key = jnp.asarray(inputs(count, np.float32)), jax.random.key(KEY_SEED)
    run = jax.jit(lambda key, x: x + WIDTH / EPSILON * jax.random.laplace(key, x.shape))
    return on_device(lambda: run(key, x))


def opendp_laplace(count: int) -> Task:
    """OpenDP's Laplace measurement on a vector of floats."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.l1_distance(T=float)
    measure, x = dp.m.make_laplace(*space, scale=WIDTH / EPSILON), inputs(count).tolist()
    return lambda: measure(x)


def diffprivlib_laplace(count: int) -> Task:
    """The Laplace mechanism of diffprivlib, value by value as it offers."""
    from diffprivlib.mechanisms import Laplace

    mechanism, x = Laplace(epsilon=EPSILON, sensitivity=WIDTH), inputs(count).tolist()
    return lambda: [mechanism.randomise(value) for value in x]


def memory_copy(count: int) -> Task:
    """Read 8 bytes and write 8 bytes a value into fresh memory: the floor for an array to an array."""
    x = inputs(count)
    return lambda: x.copy()


def device_copy(count: int) -> Task:
    """Read 4 bytes and write 4 bytes a value on JAX's device."""
    x, run = jnp.asarray(inputs(count, np.float32)), jax.jit(lambda x: x + 1)
    return on_device(lambda: run(x))


def chacha20(count: int) -> Task:
    """Words of 32 bits by OpenSSL, on one core."""
    words = np.empty(count, "<u4")
    return lambda: host.fill(words, bytes(32), 16, 0)
