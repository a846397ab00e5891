"""Repeated reports by vmap, for the reproductions of the sources' experiments."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np

import dpkernels as dpk


@partial(jax.jit, static_argnames="repetitions")
def repeated(mechanism: Any, key: jax.Array, x: Any, repetitions: int) -> jax.Array:
    """Independent reports of the same input, shape (repetitions, *x.shape): ``sample`` over split keys."""
    return jax.vmap(lambda each: mechanism.sample(each, x))(jax.random.split(key, repetitions))


@partial(jax.jit, static_argnames="repetitions")
def _repeated_means(mechanism: Any, key: jax.Array, x: Any, repetitions: int) -> jax.Array:
    return jax.vmap(lambda each: mechanism.sample(each, x).mean(0))(jax.random.split(key, repetitions))


def errors(mechanism: object, answer: float, seed: int = 0, repetitions: int = 1000) -> np.ndarray:
    """Report minus answer, once a repetition, in float32."""
    start = np.float32(answer)
    reports = repeated(mechanism, dpk.simulation_key(seed), start, repetitions)
    return np.asarray(reports, np.float64) - start


def mean_errors(mechanism: object, values: np.ndarray, seed: int = 0, repetitions: int = 1000) -> np.ndarray:
    """Mean of one report a row minus mean of the rows, once a repetition; of vectors, a column a coordinate."""
    start = np.asarray(values, np.float32)
    means = _repeated_means(mechanism, dpk.simulation_key(seed), start, repetitions)
    return np.asarray(means, np.float64) - start.mean(0, dtype=np.float64)


def root_mean_square(error: np.ndarray) -> float:
    """sqrt of the mean square."""
    return float(np.sqrt((error**2).mean()))
