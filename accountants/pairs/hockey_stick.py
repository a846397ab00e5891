"""The exact hockey stick of a pair of laws: integral max(0, p - e^eps q). Of additive noise see ``noise_sticks``."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accountants.pairs import shifted as noise_sticks
from accountants.pairs.shifted import Curve, cap
from accountants.pairs.worst import Atoms, Mixed, Shifted, noise_pairs, shifted
from dpkernels.distributions.base import Distribution
from dpkernels.numerics import floating, namespace


@singledispatch
def hockey_stick(pair: Any) -> Curve:
    """eps -> delta(eps) of the pair, with all that does not depend on eps computed; JAX arrays of any shape.

    Differentiable in every parameter; in an ``outside`` weight of 0, where that ends, from the right.

    Raises:
        TypeError: a pair of an unknown type.
    """
    raise TypeError(f"pair: {type(pair).__name__} has no known hockey stick")


@singledispatch
def largest_loss(pair: Any) -> Any:
    """The supremum of the loss: the pair's pure level; inf where the loss is unbounded.

    Raises:
        TypeError: a pair of an unknown type.
    """
    raise TypeError(f"pair: {type(pair).__name__} has no known largest loss")


def profile(pairs: tuple[Any, ...], epsilon: Any) -> Any:
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


def shift_profile(noise: Distribution, shift: Any, epsilon: Any) -> Any:
    """delta(eps) of the pair (Z, Z + shift).

    Args:
        noise: the law of Z.
        shift: how far the second law is shifted; any sign.
        epsilon: any shape; negative values are allowed.

    Returns:
        delta, of epsilon's shape; NumPy for NumPy arguments, JAX for JAX ones; see ``hockey_stick``.
    """
    return profile((shifted(noise, shift),), epsilon)


def additive_profile(noise: Distribution, sensitivity: Any, epsilon: Any) -> Any:
    """delta(eps) over all shifts of size up to D, for a density unimodal about 0; see ``pairs.noise_pairs``."""
    return profile(noise_pairs(noise, sensitivity), epsilon)


@jax.jit
def _profile(pairs: tuple[Any, ...], epsilon: Any) -> Any:
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


@singledispatch
def is_whole(item: Any) -> bool:
    """Whether the arrays of an item belong together, as probabilities of atoms do, and do not broadcast with eps."""
    return False


@is_whole.register
def _(item: Atoms) -> bool:
    return True


def curve(pairs: tuple[Any, ...]) -> Curve:
    """The pointwise maximum of the pairs' hockey sticks, as a function of eps."""
    sticks = [hockey_stick(pair) for pair in pairs]

    def at(epsilon: Any) -> Any:
        values = [stick(_in_range(epsilon)) for stick in sticks]
        return jnp.clip(jnp.stack(values).max(0), 0.0, 1.0)

    return at


def _in_range(epsilon: Any) -> Any:
    """Delta falls with eps, so a budget beyond the cap is read as the cap: an upper bound."""
    return jnp.minimum(epsilon, cap(epsilon.dtype))


@hockey_stick.register
def _(pair: Atoms) -> Curve:
    return lambda eps: jnp.maximum(pair.p - jnp.exp(eps)[..., None] * pair.q, 0.0).sum(-1)


@largest_loss.register
def _(pair: Atoms) -> Any:
    possible = pair.p > 0
    both = possible & (pair.q > 0)
    loss = jnp.log(jnp.where(both, pair.p, 1.0)) - jnp.log(jnp.where(both, pair.q, 1.0))
    return jnp.where(both, loss, jnp.where(possible, jnp.inf, -jnp.inf)).max()


@hockey_stick.register
def _(pair: Mixed) -> Curve:
    w, first, second = pair.weight, hockey_stick(pair.first), hockey_stick(pair.second)
    return lambda eps: w * first(eps) + (1 - w) * second(eps)


@largest_loss.register
def _(pair: Mixed) -> Any:
    return jnp.maximum(largest_loss(pair.first), largest_loss(pair.second))


@hockey_stick.register
def _(pair: Shifted) -> Curve:
    return noise_sticks.of_noise(pair)


@largest_loss.register
def _(pair: Shifted) -> Any:
    return noise_sticks.largest_loss_of_noise(pair)
