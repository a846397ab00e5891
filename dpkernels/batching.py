"""Batching of vmap: on a CPU a few values at a time, on other devices all at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap, sequential_vmap


def vmap_in_batches(function: Callable[..., Any], together: Callable[..., int]) -> Callable[..., Any]:
    """Return a function, traced once, that under vmap computes a few values at a time on a CPU, to stay in its cache.

    ``together`` maps the arguments, some of whose leaves have a leading axis, to the batch size. With a batch size of 1
    the function is not evaluated under vmap, which would compute both branches of every condition. Nested vmaps are
    batched in the same way.
    """
    one = jax.jit(function)
    mapped = custom_vmap(one)

    @mapped.def_vmap
    def _(size: int, batched: Any, *given: Any) -> Any:
        many = tuple(batched)
        if not any(jax.tree.leaves(many)):  # No argument is batched.
            found = one(*given)
            return found, jax.tree.map(lambda _: False, found)
        every = jax.vmap(one, jax.tree.map(lambda each: 0 if each else None, many))
        few = min(size, together(*given))

        def these(numbers: Any) -> Any:
            return jax.tree.map(lambda leaf, each: leaf[numbers] if each else leaf, given, many)

        def in_turn() -> Any:
            if few == 1:
                return jax.lax.map(lambda number: mapped(*these(number)), jnp.arange(size))
            numbers = jnp.arange(-(-size // few))[:, None] * few + jnp.arange(few)
            found = jax.lax.map(lambda some: sequential_vmap(every)(*these(some)), jnp.minimum(numbers, size - 1))
            return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:size], found)

        if jax.default_backend() == "cpu":  # The other branch would take as long to trace.
            found = in_turn()
        else:
            found = jax.lax.platform_dependent(cpu=in_turn, default=lambda: every(*given))
        return found, jax.tree.map(lambda _: True, found)

    return mapped
