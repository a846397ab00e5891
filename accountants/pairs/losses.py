"""A pair of laws as nodes: masses under p and q and the loss, that integrate smooth functions of the loss to rounding.

Between its knots a pair's densities are smooth, so Gauss-Legendre nodes there give E_p exp(z l), and hence Renyi
divergences and compositions, to the last digits. A piece of constant loss is one node with its whole mass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accountants.pairs.pieces import Pieces, split
from accountants.pairs.shifted import step_copies
from accountants.pairs.worst import Atoms, Mixed, Placed, Shifted
from dpkernels.mechanisms.windowed.bases import Constant
from dpkernels.mechanisms.windowed.mechanism import Uniform
from dpkernels.numerics import floating, gauss_legendre, like, namespace
from dpkernels.pytrees import pytree

_NODES, _WEIGHTS = gauss_legendre(16)
# How far out a Gaussian is followed, in sigma beyond both of its middles, and the panels it is cut into in all.
REACH, _PANELS = 18.0, 30
# Panels of a piece of other laws.
_FEW = 4
# Densities that differ less, relatively, are equal.
_EQUAL = 1e-13
# Where e^loss is next to overflow, or soon is.
_LARGE = 30.0


@pytree
@dataclass(frozen=True)
class Losses:
    """Outcomes of a pair; arrays of one length.

    Attributes:
        p: mass under p.
        q: mass under q.
        loss: log p/q; inf where q = 0, -inf where p = 0.
        width: how wide the range of losses is that an outcome stands for, about; 0 of an atom.
    """

    p: Any
    q: Any
    loss: Any
    width: Any

    def mirrored(self) -> Losses:
        """The pair (q, p)."""
        return Losses(self.q, self.p, -self.loss, self.width)

    def scaled(self, weight: Any) -> Losses:
        """The same outcomes, ``weight`` times as likely."""
        return Losses(weight * self.p, weight * self.q, self.loss, self.width)

    def capped(self, cap: Any) -> Losses:
        """The same at every eps up to the cap: of a larger loss (p, q) becomes (e^cap q, q), and the rest is infinite.

        Composed it is the same as long as all other losses together are eps - cap at least.
        """
        above = jnp.isfinite(self.loss) & (self.loss > cap)
        down = jnp.where(above, cap - self.loss, 0.0)
        kept = self.p * jnp.exp(down)
        # Not p less what is kept, whose rounding counts n times.
        lost = (self.p * -jnp.expm1(down)).sum(keepdims=True)
        finite = Losses(kept, self.q, jnp.where(above, cap, self.loss), jnp.where(above, 0.0, self.width))
        return joined([finite, Losses(lost, 0 * lost, lost + jnp.inf, 0 * lost)])

    def sampled(self, rate: Any) -> Losses:
        """The pair (r p + (1 - r) q, q): whoever tells the two apart is in a Poisson sample with probability r."""
        loss = self._finite
        large = loss > _LARGE
        near = jnp.log1p(rate * jnp.expm1(jnp.where(large, 0.0, loss)))
        there = jnp.where(large, loss + jnp.log(rate + (1 - rate) * jnp.exp(-jnp.where(large, loss, 0.0))), near)
        sampled = jnp.where(jnp.isfinite(self.loss), there, jnp.where(self.loss > 0, jnp.inf, jnp.log1p(-rate)))
        width = self.width * rate * jnp.exp(loss - there)
        return Losses(rate * self.p + (1 - rate) * self.q, self.q, sampled, width)

    def both_ways(self) -> Losses:
        """The pair whose profile is the larger of this pair's and its mirror's, where that is this one's at eps >= 0.

        It has the positive losses, their mirror images, and otherwise no loss.
        """
        # What is rounding would count twice, and be taken off from the rest.
        positive = self.loss > 64 * jnp.finfo(self.loss.dtype).eps
        p, q = jnp.where(positive, self.p, 0.0), jnp.where(positive, self.q, 0.0)
        rest = 1 - p.sum(keepdims=True) - q.sum(keepdims=True)
        nothing = Losses(rest, rest, 0 * rest, 0 * rest)
        there = Losses(p, q, self.loss, self.width)
        return joined([there, there.mirrored(), nothing])

    @property
    def finite(self) -> tuple[Any, Any]:
        """(log p, loss) with no mass and no loss where the loss is infinite."""
        real = jnp.isfinite(self.loss) & (self.p > 0)
        return jnp.where(real, jnp.log(jnp.where(real, self.p, 1.0)), -jnp.inf), jnp.where(real, self.loss, 0.0)

    @property
    def _finite(self) -> Any:
        return jnp.where(jnp.isfinite(self.loss), self.loss, 0.0)


def log_ratio(log_p: Any, log_q: Any) -> Any:
    """log p - log q: infinite where one of the two is 0, and 0 where both are."""
    xp = namespace(log_p, log_q)
    p, q = log_p > -np.inf, log_q > -np.inf
    finite = xp.where(p & q, log_p, 0.0) - xp.where(p & q, log_q, 0.0)
    return xp.where(p == q, finite, xp.where(p, np.inf, -np.inf))


@singledispatch
def losses(pair: Any, panels: int = 0) -> Losses:
    """The nodes of a pair.

    Args:
        pair: any pair.
        panels: how many panels of 16 nodes the pieces whose loss varies share, at least one each; by default as few as
            smooth functions of the loss need.

    Raises:
        TypeError: a pair of an unknown type.
    """
    raise TypeError(f"pair: {type(pair).__name__} has no known losses")


@losses.register
def _(pair: Atoms, panels: int = 0) -> Losses:
    p, q = (floating(jnp.asarray(mass)) for mass in (pair.p, pair.q))
    both = (p > 0) & (q > 0)
    loss = jnp.log(jnp.where(both, p, 1.0)) - jnp.log(jnp.where(both, q, 1.0))
    return Losses(p, q, jnp.where(both, loss, jnp.where(p > 0, jnp.inf, -jnp.inf)), 0 * p)


@losses.register
def _(pair: Mixed, panels: int = 0) -> Losses:
    first, second, w = losses(pair.first, panels), losses(pair.second, panels), pair.weight
    return joined([first.scaled(w), second.scaled(1 - w)])


def joined(parts: Sequence[Losses]) -> Losses:
    """All outcomes of several."""
    return jax.tree.map(lambda *leaves: jnp.concatenate([jnp.ravel(leaf) for leaf in leaves]), *parts)


@losses.register
def _(pair: Shifted, panels: int = 0) -> Losses:
    single, pieces, bend = shifted_pieces(pair)
    return single if pair.noise.law.degree == 0 else joined([single, _sloped(pair, pieces, bend, panels)])


def shifted_pieces(pair: Shifted) -> tuple[Losses, Pieces, Any]:
    """Pieces of constant loss as outcomes, all pieces, and minus the second derivative of the log density."""
    pieces, law, D = split(pair), pair.noise.law, pair.shift
    bend = -law.score(jnp.ones_like(pieces.at[0])) if law.degree == 2 else 0.0 * pieces.at[0]
    if law.degree == 0:
        p = jnp.exp(pieces.log_p) * pieces.width * step_copies(pair, pieces.at)
        q = jnp.where(jnp.isfinite(pieces.loss), p * jnp.exp(-pieces.loss), 0.0)
        return Losses(p, q, pieces.loss, 0 * p), pieces, bend
    flat = (pieces.slope == 0) & (pieces.width > 0)
    p = pieces.weight_p * law.mass(pieces.left, pieces.right)
    q = pieces.weight_q * law.mass(pieces.left - D, pieces.right - D)
    p, q = jnp.where(flat, p, 0.0), jnp.where(flat, q, 0.0)
    return Losses(p, q, pieces.loss, 0 * p), pieces, bend


def _sloped(pair: Shifted, pieces: Pieces, bend: Any, panels: int) -> Losses:
    """Panels of the pieces whose loss is not constant."""
    left, right, D, few = pieces.left, pieces.right, pair.shift, _FEW
    if pair.noise.law.degree == 2:
        reach = REACH / jnp.sqrt(bend)
        low, high = jnp.minimum(0.0, D) - reach, jnp.maximum(0.0, D) + reach
        left, right, few = jnp.clip(left, low, high), jnp.clip(right, low, high), max(6, _PANELS // len(left))
    present = (pieces.slope != 0) & (pieces.width > 0) & (right > left)
    left, right = jnp.where(present, left, 0.0), jnp.where(present, right, 1.0)
    share, weight = panel_rule(max(1, panels // len(left)) if panels else few, left, dense=panels > 0 and len(left) > 1)
    x = left[:, None] + (right - left)[:, None] * share - pieces.at[:, None]
    log_p = pieces.log_p[:, None] + pieces.rise[:, None] * x - bend * x**2 / 2
    loss = jnp.where(present, pieces.loss, 0.0)[:, None] + pieces.slope[:, None] * x
    weight = jnp.where(present, right - left, 0.0)[:, None] * weight
    width = range_of(loss)
    return Losses(*map(jnp.ravel, (weight * jnp.exp(log_p), weight * jnp.exp(log_p - loss), loss, width)))


def range_of(loss: Any) -> Any:
    """About how wide the range is that a node stands for, of nodes along the last axis."""
    return jnp.abs(jnp.asarray(jnp.gradient(jax.lax.stop_gradient(loss), axis=-1)))


def panel_rule(panels: int, value: Any, *, dense: bool = False) -> tuple[Any, Any]:
    """Nodes and weights on [0, 1] of so many panels, in the type of a value.

    Dense ones come quadratically near to both ends, by t = s^2 (3 - 2 s): sums of few reports may be as near to where
    losses end.
    """
    s = (np.arange(panels)[:, None] + _NODES).ravel() / panels
    weights = np.tile(_WEIGHTS / panels, panels)
    if dense:
        s, weights = s**2 * (3 - 2 * s), weights * 6 * s * (1 - s)
    return like(s, value), like(weights, value)


@losses.register
def _(pair: Placed, panels: int = 0) -> Losses:
    if isinstance(pair.mechanism.window, Uniform) and isinstance(pair.mechanism.base, Constant):
        return _flat(pair)
    p, q, ends = whole(pair)
    share, weight = panel_rule(max(1, panels // (len(ends) - 1)) if panels else _FEW, ends, dense=panels > 0)
    width = jnp.diff(ends)
    v = ends[:-1, None] + width[:, None] * share
    weight = width[:, None] * weight
    loss = jnp.log(p(v)) - jnp.log(q(v))
    atomic = jnp.ptp(loss, axis=1, keepdims=True) <= 1e-13 * (1 + jnp.abs(loss))
    return Losses(*map(jnp.ravel, (weight * p(v), weight * q(v), loss, jnp.where(atomic, 0.0, range_of(loss)))))


def _flat(pair: Placed) -> Losses:
    """A flat window on a flat base: within one window, within the other, and where the two densities are the same."""
    p, q, ends = whole(pair)
    width, v = jnp.diff(ends), (ends[:-1] + ends[1:]) / 2
    higher, lower = p(v) > q(v) * (1 + _EQUAL), q(v) > p(v) * (1 + _EQUAL)
    parts = [jnp.where(each, width, 0.0) for each in (higher, ~higher & ~lower, lower)]
    p, q = (jnp.stack([(part * density(v)).sum() for part in parts]) for density in (p, q))
    there = p > 0
    return Losses(p, q, jnp.log(jnp.where(there, p, 1.0)) - jnp.log(jnp.where(there, q, 1.0)), 0 * p)


def whole(pair: Placed) -> tuple[Any, Any, Any]:
    """The densities of p and q on the scaled reports [-1, 1], and all their knots and the point half-way."""
    m = pair.mechanism
    xp = namespace(*jax.tree.leaves(pair))
    middles = [(x - m.middle) * m.scale / m.window_mass for x in (pair.x, pair.other)]

    def density(middle: Any) -> Any:
        return lambda v: m.level * m.base.density(v) + m.height * m.window.density((v - middle) / m.width + 0.5)

    bends = np.concatenate([m.window.kinks, -m.window.kinks])
    edges = np.concatenate([m.base.kinks, -m.base.kinks, [-1.0, 1.0]])
    # Between two inputs as far from the middle the loss changes its sign half-way.
    between = xp.stack([(middles[0] + middles[1]) / 2])
    knots = xp.concatenate([*(middle + m.width * bends for middle in middles), between, edges])
    return density(middles[0]), density(middles[1]), xp.sort(xp.clip(knots, -1.0, 1.0))
