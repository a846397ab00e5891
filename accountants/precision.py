"""The precision of JAX numbers: accounting needs 64 bits, whatever the user's settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp

from dpkernels.programs import is_compiling

F = TypeVar("F", bound=Callable[..., Any])


def in_64_bits(function: F, *, computes_on_host: bool = False) -> F:
    """Return the function that computes JAX numbers of 32 bits in 64 bits, and gives results in the caller's type.

    Numbers in 32 bits lose the tails of sums, so that an epsilon would be infinite. The user's settings do not change.
    With JAX's 64-bit types off, traced numbers (jit, grad, vmap) are a ValueError: they cannot leave 32 bits. Functions
    that compute on the host outside ``jit`` (``composition.outside_jit``) do so in 64 bits, also under grad and vmap.
    """

    @wraps(function)
    def computed(*args: object, **arguments: object) -> Any:
        inputs = args, arguments
        types = [leaf.dtype for leaf in jax.tree.leaves(inputs) if _is_number(leaf)]
        if not types:
            return function(*args, **arguments)
        caller_dtype = jnp.result_type(*(dtype for dtype in types if jnp.issubdtype(dtype, jnp.floating)), jnp.float32)
        has_64_bits = jax.dtypes.canonicalize_dtype(jnp.float64) == jnp.float64
        if has_64_bits and caller_dtype == jnp.float64:
            return function(*args, **arguments)
        if not has_64_bits and any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(inputs)):
            if computes_on_host and not is_compiling():
                return function(*args, **arguments)
            raise ValueError(
                f"{function.__qualname__}: traced by JAX (jit, grad or vmap) in 32 bits, which lose the tails of sums; "
                "call it under jax.enable_x64(True), or set jax.config.update('jax_enable_x64', True)"
            )
        with jax.enable_x64(True):
            args, arguments = jax.tree.map(partial(_cast, jnp.float64), inputs)
            return jax.tree.map(partial(_cast, caller_dtype), function(*args, **arguments))

    return cast(F, computed)


def _is_number(leaf: object) -> bool:
    return isinstance(leaf, jax.Array) and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _cast(dtype: Any, leaf: Any) -> Any:
    return leaf.astype(dtype) if _is_number(leaf) and jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
