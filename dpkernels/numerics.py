"""Numerical guards and helpers: the only place that has them, so that formulas read like the paper."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def namespace(*values: Any) -> ModuleType:
    """jax.numpy if any value is a JAX array or tracer, else numpy.

    So a formula evaluated at NumPy arrays is NumPy in float64, whatever the caller's x64 flag: construction and
    tables need that precision; inside jit the same formula is JAX.
    """
    return jnp if any(isinstance(value, jax.Array) for value in values) else np


def floating(value: Any) -> Any:
    """The value as a floating array of its own kind: NumPy stays NumPy (float64), JAX stays JAX."""
    if isinstance(value, jax.Array):
        return value if jnp.issubdtype(value.dtype, jnp.floating) else value.astype(jnp.float32)
    array = np.asarray(value)
    return array if np.issubdtype(array.dtype, np.floating) else array.astype(np.float64)


def bisect(function: Callable[[Any], Any], target: Any, low: Any, high: Any) -> Any:
    """The point where an increasing ``function`` reaches ``target``, by bisection down to the float's resolution."""
    xp = namespace(target, low, high)
    low, high, target = xp.broadcast_arrays(low, high, target)
    for _ in range(xp.finfo(xp.result_type(target)).nmant + 8):
        middle = (low + high) / 2
        below = function(middle) < target
        low, high = xp.where(below, middle, low), xp.where(below, high, middle)
    return (low + high) / 2


def root_or_zero(value: Any) -> Any:
    """sqrt(max(value, 0)) with a finite gradient at 0: the double where."""
    xp = namespace(value)
    positive = value > 0
    return xp.where(positive, xp.sqrt(xp.where(positive, value, 1.0)), 0.0)
