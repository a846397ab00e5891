"""Execution of JAX programs: vmap in chunks on a CPU, NumPy callbacks, and programs that run only a few times."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import numpy as np

from dpkernels.jax_on_use import Array, Decorator, Tracer, jax, jit, jnp
from dpkernels.pytrees import PyTree

P = ParamSpec("P")
T = TypeVar("T")


def vmap_in_batches(function: Callable[P, T], together: Callable[..., int]) -> Callable[P, T]:
    """Return a function, traced once, that under vmap computes a few values at a time on a CPU, to stay in its cache.

    ``together`` maps the arguments, some of whose leaves have a leading axis, to the batch size. With a batch size of 1
    the function is not evaluated under vmap, which would compute both branches of every condition. Nested vmaps are
    batched in the same way.
    """
    compiled: Callable[..., T] = jax.jit(function)
    mapped = jax.custom_batching.custom_vmap(compiled)

    @mapped.def_vmap
    def _(size: int, batched: PyTree, *arguments: PyTree) -> PyTree:
        is_batched = tuple(batched)
        if not any(jax.tree.leaves(is_batched)):  # No argument is batched.
            results = compiled(*arguments)
            return results, jax.tree.map(lambda _: False, results)
        vmapped = jax.vmap(compiled, jax.tree.map(lambda flag: 0 if flag else None, is_batched))
        count = min(size, together(*arguments))

        def take(numbers: Array) -> PyTree:
            return jax.tree.map(lambda leaf, flag: leaf[numbers] if flag else leaf, arguments, is_batched)

        def in_turn() -> PyTree:
            if count == 1:
                return jax.lax.map(lambda number: mapped(*take(number)), jnp.arange(size))
            numbers = jnp.arange(-(-size // count))[:, None] * count + jnp.arange(count)
            results = jax.lax.map(
                lambda numbers: jax.custom_batching.sequential_vmap(vmapped)(*take(numbers)),
                jnp.minimum(numbers, size - 1),
            )
            return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:size], results)

        if jax.default_backend() == "cpu":  # The other branch would take as long to trace.
            results = in_turn()
        else:
            results = jax.lax.platform_dependent(cpu=in_turn, default=lambda: vmapped(*arguments))
        return results, jax.tree.map(lambda _: True, results)

    return mapped


# Of programs that run a few times XLA's optimisation takes longer than it saves.
QUICKLY_COMPILED = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


def is_compiling() -> bool:
    """Return whether JAX traces a program, as in ``jit``; under ``grad`` or ``vmap`` alone numbers have values."""
    return isinstance(jax.device_put(np.float32(0)), Tracer)  # Unlike arithmetic this compiles nothing outside of one.


def in_one_program(*, quickly: bool = False, **options: object) -> Decorator:
    """Return a decorator: outside ``jit`` the function is one program, instead of one for each operation.

    ``quickly`` compiles it as one that runs a few times, but where the arguments are differentiated: JAX takes compiler
    options for no derivative.
    """

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        program = jit(**options)(function)
        quick = jit(compiler_options=QUICKLY_COMPILED, **options)(function) if quickly else program

        @wraps(function)
        def call(*arguments: P.args, **named: P.kwargs) -> T:
            if is_compiling():
                return function(*arguments, **named)
            are_traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((arguments, named)))
            return (program if are_traced else quick)(*arguments, **named)

        return call

    return decorated


def call_on_host(
    function: Callable[[PyTree], list[np.ndarray]], results: list[jax.ShapeDtypeStruct], numbers: PyTree
) -> list[Array]:
    """Return the results of a NumPy function of a pytree of JAX numbers that have values, outside ``jit``.

    Under vmap the function is called for every entry. The results have no derivatives. Their shapes and types, without
    the axes of vmap, are those of ``results``.
    """
    leaves, structure = jax.tree.flatten(jax.lax.stop_gradient(numbers))
    traced = [index for index, leaf in enumerate(leaves) if isinstance(leaf, Tracer)]

    def call(values: tuple[np.ndarray, ...]) -> list[np.ndarray]:
        traced_values = dict(zip(traced, values, strict=True))
        filled = [np.asarray(traced_values.get(index, leaf)) for index, leaf in enumerate(leaves)]
        outputs = function(jax.tree.unflatten(structure, filled))
        return [np.asarray(value, result.dtype) for value, result in zip(outputs, results, strict=True)]

    def call_for_each(*values: np.ndarray) -> list[np.ndarray]:
        batch = values[0].shape[: values[0].ndim - leaves[traced[0]].ndim]
        rows = [call(tuple(value[entry] for value in values)) for entry in np.ndindex(batch)]
        return [np.reshape(column, batch + column[0].shape) for column in zip(*rows, strict=True)]

    if not traced:
        return [jnp.asarray(value) for value in call(())]
    arguments = (leaves[index] for index in traced)
    return jax.pure_callback(call_for_each, results, *arguments, vmap_method="broadcast_all")
