"""The exact hockey stick of a pair of laws: integral max(0, p - e^eps q).

For additive noise in closed form, piece by piece: where the loss l = log p - log q is affine, {l > eps} is an interval
with closed-form ends. Knots' masses do not depend on eps and are computed once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accountants.pairs import Atoms, Mixed, Shifted, noise_pairs, shifted
from accountants.pieces import Pieces, split
from dpkernels.distributions.base import Distribution
from dpkernels.numerics import floating, gauss_legendre, like, namespace

Curve = Callable[[Any], Any]

_NODES, _WEIGHTS = gauss_legendre(6)


@singledispatch
def hockey_stick(pair: Any) -> Curve:
    """eps -> delta(eps) of the pair, with all that does not depend on eps computed; JAX arrays of any shape.

    Differentiable in every parameter but an ``outside`` weight of 0: a truncation is no limit of recycled laws, its
    loss is infinite outside.

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
    numbers = [leaf for leaf in jax.tree.leaves(pairs, is_leaf=_is_whole) if not _is_whole(leaf)]
    shape = jnp.broadcast_shapes(epsilon.shape, *(jnp.shape(leaf) for leaf in numbers))
    if all(jnp.ndim(leaf) == 0 for leaf in numbers):
        return curve(pairs)(epsilon.ravel()).reshape(shape)
    flat = jax.tree.map(
        lambda leaf: leaf if _is_whole(leaf) else jnp.broadcast_to(leaf, shape).ravel(), pairs, is_leaf=_is_whole
    )
    axes = jax.tree.map(lambda leaf: None if _is_whole(leaf) else 0, pairs, is_leaf=_is_whole)
    one = jax.vmap(lambda pairs, eps: curve(pairs)(eps), in_axes=(axes, 0))
    return one(flat, jnp.broadcast_to(epsilon, shape).ravel()).reshape(shape)


def _is_whole(item: Any) -> bool:
    """Probabilities of atoms are arrays by themselves: they do not broadcast with eps."""
    return isinstance(item, Atoms)


def curve(pairs: tuple[Any, ...]) -> Curve:
    """The pointwise maximum of the pairs' hockey sticks, as a function of eps."""
    sticks = [hockey_stick(pair) for pair in pairs]

    def at(epsilon: Any) -> Any:
        values = [stick(_in_range(epsilon)) for stick in sticks]
        return jnp.clip(jnp.stack(values).max(0), 0.0, 1.0)

    return at


def cap(dtype: Any) -> float:
    """The largest budget told apart from larger ones: e^eps must stay finite."""
    return 0.97 * float(np.log(jnp.finfo(dtype).max))


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


# Additive noise


@hockey_stick.register
def _(pair: Shifted) -> Curve:
    return (_steps, _exponentials, _gaussians)[pair.noise.law.degree](pair)


@largest_loss.register
def _(pair: Shifted) -> Any:
    if pair.noise.law.degree == 2:
        return jnp.inf + 0 * pair.shift
    pieces = split(pair)
    top = pieces.loss + jnp.abs(pieces.slope) * _top(pieces)[2]
    return jnp.where(pieces.width > 0, top, -jnp.inf).max()


def total(term: Callable[[Any], Curve], items: Any, epsilon: Any) -> Any:
    """Sum of term(item)(eps) over the entries of a pytree of arrays, one at a time: each is one pass over eps."""

    def add(total: Any, item: Any) -> tuple[Any, None]:
        return total + jnp.maximum(term(item)(epsilon), 0.0), None

    dtype = jnp.result_type(epsilon, *jax.tree.leaves(items))
    return jax.lax.scan(add, jnp.zeros(epsilon.shape, dtype), items)[0]


def _top(pieces: Pieces) -> tuple[Any, Any, Any]:
    """The end of each piece with the larger loss (the finite one if it is flat), -1 if it is the left one, its offset.

    The offset is |top - at|, and the loss at the top loss + |slope| offset.
    """
    rightwards = jnp.where(pieces.slope == 0, ~jnp.isfinite(pieces.left), pieces.slope > 0)
    top = jnp.where(rightwards, pieces.right, pieces.left)
    return top, jnp.where(rightwards, 1.0, -1.0), jnp.abs(top - pieces.at)


def _exponentials(pair: Shifted) -> Curve:
    """Sum over pieces; t is the distance from the top, r the derivative of log p in t, s = |slope|.

    integral over 0 < t < T of p_top e^(r t) - e^eps q_top e^((r + s) t),    T = (l_top - eps)/s.
    """
    pieces = split(pair)
    top, side, offset = _top(pieces)
    fall = jnp.abs(pieces.slope)
    loss = pieces.loss + fall * offset
    log_p = pieces.log_p + pieces.rise * (top - pieces.at)
    log_q = jnp.where(jnp.isfinite(loss), log_p - jnp.where(jnp.isfinite(loss), loss, 0.0), -jnp.inf)
    items = log_p, log_q, loss, -side * pieces.rise, fall, pieces.width

    def term(item: Any) -> Curve:
        log_p, log_q, loss, r, s, width = item

        def at(eps: Any) -> Any:
            T = jnp.clip((loss - eps) / jnp.where(s > 0, s, 1.0), 0.0, width)
            T = jnp.where(s > 0, T, jnp.where(loss > eps, width, 0.0))
            return _growth(log_p, r, T) - _growth(log_q + eps, r + s, T)

        return at

    return lambda eps: total(term, items, eps)


def _growth(log_start: Any, r: Any, T: Any) -> Any:
    """Integral of exp(log_start + r t) over 0 < t < T; T may be infinite where r < 0."""
    endless = jnp.isinf(T)
    y = r * jnp.where(endless, 1.0, T)
    tiny = jnp.abs(y) < 1e-8
    size = jnp.where(tiny, 1.0, jnp.abs(r))
    bounded = jnp.where(tiny, jnp.where(endless, 1.0, T), -jnp.expm1(-jnp.abs(y)) / size)
    exponent = log_start + jnp.where(endless, 0.0, jnp.maximum(y, 0.0))
    return jnp.exp(exponent) * jnp.where(endless, 1 / size, bounded)


def _gaussians(pair: Shifted) -> Curve:
    """Sum over pieces of w_P K(cut, top) - e^eps w_Q K(cut - D, top - D), K the Gaussian's mass, from the nearer tail.

    Where the cut is next to the top the difference would lose its digits: there, by quadrature.
    """
    pieces = split(pair)
    law: Any = pair.noise.law

    def term(piece: Pieces) -> Curve:
        ends = (piece.right, piece.left), (piece.left, piece.right)
        up: Any = piece.slope >= 0
        side, (top, far) = jnp.where(up, 1, -1), (jnp.where(up, right, left) for right, left in ends)

        def at(eps: Any) -> Any:
            sloped = jnp.isfinite(piece.loss)
            reach = (eps - jnp.where(sloped, piece.loss, 0.0)) / jnp.where(piece.slope != 0, piece.slope, 1.0)
            cut = jnp.clip(piece.at + reach, piece.left, piece.right)
            cut = jnp.where(sloped, cut, jnp.where(piece.loss > 0, far, top))
            p = piece.weight_p * law.mass(side * cut, side * top)
            q = piece.weight_q * law.mass(side * (cut - pair.shift), side * (top - pair.shift))
            short = sloped & _is_short(piece, law.sigma, cut, top)
            near = jnp.where(short, cut, 0.0), jnp.where(short, top, 0.0)
            by_nodes = jax.lax.cond(short.any(), lambda: _short_mass(piece, law, eps, *near), lambda: 0 * p)
            # At the top two equal tails, one of an array and one of a number, may differ in their last bit.
            return jnp.where(short, by_nodes, jnp.where(cut == top, 0.0, p - jnp.exp(eps) * q))

        return at

    return lambda eps: total(term, pieces, eps)


def _is_short(piece: Pieces, sigma: Any, cut: Any, top: Any) -> Any:
    """Whether neither the density nor the loss changes much from the cut to the top."""
    finite = jnp.isfinite(top) & jnp.isfinite(cut)
    cut, top = jnp.where(finite, cut, 0.0), jnp.where(finite, top, 0.0)
    z = (jnp.abs(top - cut) + 0 * cut) / sigma
    steep = (1 + jnp.maximum(jnp.abs(top), jnp.abs(cut)) / sigma) * z
    return finite & (z > 0) & (steep <= 0.5) & (jnp.abs(piece.slope) * sigma * z <= 1)


def _short_mass(piece: Pieces, law: Any, eps: Any, cut: Any, top: Any) -> Any:
    """Integral of p (1 - e^(eps - l)) from the cut to the top."""
    nodes, weights = like(_NODES, eps), like(_WEIGHTS, eps)
    x = cut[..., None] + (top - cut)[..., None] * nodes
    loss = jnp.where(jnp.isfinite(piece.loss), piece.loss, 0.0) + piece.slope * (x - piece.at)
    gain = piece.weight_p * jnp.exp(law.log_prob(x)) * -jnp.expm1(eps[..., None] - loss)
    return jnp.abs(top - cut) * (gain @ weights)


def _steps(pair: Shifted) -> Curve:
    """The loss takes the values l_1 < l_2 < ...: delta is linear in e^eps between them, and summed from the top.

    delta(eps) = delta(l_i) + (1 - e^(eps - l_i)) e^(l_i) Q(loss >= l_i),  l_i the least level above eps.
    """
    pieces = split(pair)
    largest = cap(pieces.loss.dtype)
    mass = jnp.exp(pieces.log_p) * pieces.width * step_copies(pair, pieces.at)
    certain = pieces.loss >= largest
    level = jnp.clip(pieces.loss, -largest, largest)
    order = jnp.argsort(-level)
    level, other = level[order], jnp.where(certain, 0.0, mass * jnp.exp(-level))[order]
    above = jnp.cumsum(other)
    steps = above[:-1] * jnp.exp(level[:-1]) * -jnp.expm1(level[1:] - level[:-1])
    delta = jnp.where(certain, mass, 0.0).sum() + jnp.concatenate([jnp.zeros_like(level[:1]), jnp.cumsum(steps)])
    slope = above * jnp.exp(level)

    def at(eps: Any) -> Any:
        count = len(level) - jnp.searchsorted(level[::-1], eps, side="right")
        i = jnp.maximum(count - 1, 0)
        return delta[i] - jnp.where(count > 0, slope[i] * jnp.expm1(eps - level[i]), 0.0)

    return at


def step_copies(pair: Shifted, at: Any) -> Any:
    """How often a piece counts: beyond all edges a staircase repeats, e^-eps as high each period.

    The last whole period before the reach R stands for all that follow; NaN where R is not beyond the edges.
    """
    law: Any = pair.noise.law
    D = law.period
    shift = jnp.abs(pair.shift)
    reach = (pair.periods - 1 - jnp.ceil(shift / D)) * D
    needed = shift + jnp.abs(jnp.stack([0 * shift, *pair.noise.edges])).max()
    x = jnp.abs(at)
    copies = jnp.where(x < reach - D, 1.0, jnp.where(x < reach, -1 / jnp.expm1(-law.epsilon), 0.0))
    negligible = law.epsilon * (reach / D - 1) > 120
    return jnp.where((reach - D >= needed) | negligible, copies, jnp.nan)
