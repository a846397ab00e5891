"""The same formulas on NumPy's arrays and on JAX's: which library computes, and tables looked up in either."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from dpkernels.numerics import Real


def namespace(array: object) -> Any:
    """NumPy for its own arrays, else jax.numpy."""
    return np if isinstance(array, np.ndarray) else jnp


def take(table: np.ndarray, at: Real) -> Any:
    """``table[at]`` for indices that are within it, NumPy's or JAX's."""
    if isinstance(at, np.ndarray):
        return table.take(at)
    return jnp.asarray(table).at[at].get(mode="promise_in_bounds")
