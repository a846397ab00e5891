"""The privacy profile of pairs of laws: the pointwise maximum of their hockey sticks, on NumPy and JAX arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accountants.pairs.base import Curve, Pair
from accountants.pairs.rounding import cap, lowered
from accountants.pairs.worst import noise_pairs
from dpkernels.distributions.base import Distribution
from dpkernels.numerics import Real, RealArray, floating, namespace


def profile(pairs: tuple[Pair, ...], epsilon: Real) -> Any:
    """Pointwise maximum of the pairs' hockey sticks.

    Args:
        pairs: pairs of any types; array parameters broadcast with epsilon.
        epsilon: any shape.

    Returns:
        delta, of epsilon's shape; NumPy (float64) for NumPy arguments, JAX for JAX ones.
    """
    if namespace(epsilon, *jax.tree.leaves(pairs)) is jnp:
        return _profile(pairs, floating(jnp.asarray(epsilon)))
    with jax.enable_x64(True):
        return np.asarray(_profile(as_float64(pairs), np.asarray(epsilon, np.float64)))[()]


def as_float64(tree: Any) -> Any:
    """Every number of a pytree as NumPy float64, so that what is compiled does not depend on how it was given."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def additive_profile(noise: Distribution, sensitivity: Real, epsilon: Real) -> Real:
    """delta(eps) over all shifts of size up to D, for a density unimodal about 0; see ``worst.noise_pairs``."""
    return profile(noise_pairs(noise, sensitivity), epsilon)


@jax.jit
def _profile(pairs: tuple[Any, ...], epsilon: RealArray) -> Real:
    numbers = [leaf for leaf in jax.tree.leaves(pairs, is_leaf=is_whole) if not is_whole(leaf)]
    shape = jnp.broadcast_shapes(epsilon.shape, *(jnp.shape(leaf) for leaf in numbers))
    if all(jnp.ndim(leaf) == 0 for leaf in numbers):
        return curve(pairs)(epsilon.ravel()).reshape(shape)
    flat = jax.tree.map(
        lambda leaf: leaf if is_whole(leaf) else jnp.broadcast_to(leaf, shape).ravel(), pairs, is_leaf=is_whole
    )
    axes = jax.tree.map(lambda leaf: None if is_whole(leaf) else 0, pairs, is_leaf=is_whole)
    one = jax.vmap(lambda pairs, eps: curve(pairs)(eps), in_axes=(axes, 0))
    return one(flat, jnp.broadcast_to(epsilon, shape).ravel()).reshape(shape)


def is_whole(item: Any) -> bool:
    """Whether the arrays of an item belong together, and do not broadcast with eps."""
    return isinstance(item, Pair) and item.joint


def curve(pairs: tuple[Pair, ...]) -> Curve:
    """The pointwise maximum of the pairs' hockey sticks, as a function of eps; rounded upwards, see ``rounding``.

    A budget beyond the cap is read as the cap.
    """
    sticks = [pair.hockey_stick() for pair in pairs]

    def at(epsilon: Any) -> Any:
        known = jnp.minimum(epsilon, cap(epsilon.dtype))
        values = [stick(known if pair.rounds_up else lowered(known)) for pair, stick in zip(pairs, sticks, strict=True)]
        return jnp.clip(jnp.stack(values).max(0), 0.0, 1.0)

    return at
