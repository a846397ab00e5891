"""How programs run: vmap on a CPU a few values at a time, functions of NumPy, and programs that run a few times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
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


# Of programs that run a few times XLA's optimisation takes longer than it saves.
QUICKLY_COMPILED = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


def is_compiling() -> bool:
    """Return whether JAX traces a program, as in ``jit``; under ``grad`` or ``vmap`` alone numbers have values."""
    return isinstance(jax.lax.neg(np.float32(0)), jax.core.Tracer)


def call_on_host(function: Callable[[Any], list[np.ndarray]], results: list[Any], numbers: Any) -> list[jax.Array]:
    """Return the results of a NumPy function of a pytree of JAX numbers that have values, outside ``jit``.

    Under vmap the function is called for every entry. The results have no derivatives. Their shapes and types, without
    the axes of vmap, are those of ``results``.
    """
    leaves, structure = jax.tree.flatten(jax.lax.stop_gradient(numbers))
    traced = [place for place, leaf in enumerate(leaves) if isinstance(leaf, jax.core.Tracer)]

    def call(values: tuple[Any, ...]) -> list[np.ndarray]:
        known = dict(zip(traced, values, strict=True))
        every = [np.asarray(known.get(place, leaf)) for place, leaf in enumerate(leaves)]
        found = function(jax.tree.unflatten(structure, every))
        return [np.asarray(value, like.dtype) for value, like in zip(found, results, strict=True)]

    def call_for_each(*values: Any) -> list[np.ndarray]:
        batch = values[0].shape[: values[0].ndim - leaves[traced[0]].ndim]
        rows = [call(tuple(value[entry] for value in values)) for entry in np.ndindex(batch)]
        return [np.reshape(column, batch + column[0].shape) for column in zip(*rows, strict=True)]

    if not traced:
        return [jnp.asarray(value) for value in call(())]
    arguments = (leaves[place] for place in traced)
    return jax.pure_callback(call_for_each, results, *arguments, vmap_method="broadcast_all")
