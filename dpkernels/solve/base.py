"""Loops of plain numbers and of JAX numbers, and the types of searches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

from dpkernels.jax_on_use import Array, jax, jnp
from dpkernels.numerics import Boolean, namespace
from dpkernels.pytrees import PyTree, tree_leaves

# Of x, a number or an array of the kind that a search is given, and a pytree of parameters.
Function = Callable[[Any, PyTree], Any]
State = TypeVar("State")
Numbers = TypeVarTuple("Numbers")


def while_loop(unfinished: Callable[[State], Boolean], body: Callable[[State], State], state: State) -> State:
    """Run ``jax.lax.while_loop`` if the state holds a JAX array, else the same loop on the host."""
    if namespace(*tree_leaves(state)) is jnp:
        return jax.lax.while_loop(unfinished, body, state)
    while unfinished(state):
        state = body(state)
    return state


def promote(*values: *Numbers) -> tuple[*Numbers]:
    """Return the values; if any is a JAX array, with every number converted to their common JAX float type."""
    dtypes = [leaf.dtype for leaf in tree_leaves(values) if isinstance(leaf, Array)]
    if not dtypes:
        return values
    dtype = jnp.result_type(jnp.float32, *dtypes)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), values)
