"""The numbers of a pytree that can be differentiated, and derivatives of functions in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import SymbolicZero
from jax.flatten_util import ravel_pytree

from dpkernels.numerics import RealArray
from dpkernels.pytrees import PyTree

MAX_FORWARD = 16  # Up to this number of parameters, derivatives are computed forwards, by one program.


def leaves_that_move(tangents: PyTree) -> tuple[list[Array], tuple[bool, ...]]:
    """Return the leaves of tangents, given with symbolic zeros, and whether each of them may be other than 0."""
    leaves = jax.tree.leaves(tangents, is_leaf=lambda leaf: isinstance(leaf, SymbolicZero))
    return leaves, tuple(not isinstance(leaf, SymbolicZero) and leaf.dtype != jax.dtypes.float0 for leaf in leaves)


def split_moving(leaves: Sequence[PyTree], moving: Sequence[bool]) -> tuple[list[PyTree], list[PyTree]]:
    """Return the leaves that move, and all others."""
    pairs = list(zip(leaves, moving, strict=True))
    return [leaf for leaf, moves in pairs if moves], [leaf for leaf, moves in pairs if not moves]


def join_moving(
    structure: object, moving: tuple[bool, ...], moved: Sequence[PyTree], fixed: Sequence[PyTree]
) -> PyTree:
    """Return the pytree of these leaves, as ``split_moving`` gives them."""
    sources = {True: iter(moved), False: iter(fixed)}
    return jax.tree.unflatten(structure, [next(sources[moves]) for moves in moving])


def derivatives_forwards(function: Callable[..., PyTree], moved: Sequence[RealArray]) -> tuple[PyTree, PyTree]:
    """Return the results, and their derivatives in every number that moves, along a first axis."""
    flat, restore = ravel_pytree(moved)
    if not moved:
        value = function(moved)
        return value, jax.tree.map(lambda leaf: jnp.zeros((0, *leaf.shape), leaf.dtype), value)

    def restored(flat: Array) -> PyTree:
        return function(restore(flat))

    if len(flat) == 1:  # Without vmap the program is smaller.
        value, slopes = jax.jvp(restored, (flat,), (jnp.ones_like(flat),))
        return value, jax.tree.map(lambda slope: slope[None], slopes)
    value, push_forward = jax.linearize(restored, flat)
    return value, jax.vmap(push_forward)(jnp.eye(len(flat), dtype=flat.dtype))
