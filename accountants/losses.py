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

from accountants.noise_sticks import step_copies
from accountants.pairs import Atoms, Mixed, Placed, Shifted
from accountants.pieces import Pieces, split
from dpkernels.numerics import floating, gauss_legendre, like, namespace
from dpkernels.pytrees import pytree

_NODES, _WEIGHTS = gauss_legendre(16)
# How far out a Gaussian is followed, in sigma beyond both of its middles, and the panels it is cut into in all.
REACH, _PANELS = 18.0, 30
# Panels of a piece of other laws.
_FEW = 4


@pytree
@dataclass(frozen=True)
class Losses:
    """Outcomes of a pair; arrays of one length.

    Attributes:
        p: mass under p.
        q: mass under q.
        loss: log p/q; inf where q = 0, -inf where p = 0.
        spread: whether an outcome stands for a range of losses; if not it is an atom.
    """

    p: Any
    q: Any
    loss: Any
    spread: Any

    def mirrored(self) -> Losses:
        """The pair (q, p)."""
        return Losses(self.q, self.p, -self.loss, self.spread)

    def scaled(self, weight: Any) -> Losses:
        """The same outcomes, ``weight`` times as likely."""
        return Losses(weight * self.p, weight * self.q, self.loss, self.spread)

    def sampled(self, rate: Any) -> Losses:
        """The pair (r p + (1 - r) q, q): whoever tells the two apart is in a Poisson sample with probability r."""
        loss = self._finite
        there = jnp.log1p(rate * jnp.expm1(loss))
        sampled = jnp.where(jnp.isfinite(self.loss), there, jnp.where(self.loss > 0, jnp.inf, jnp.log1p(-rate)))
        return Losses(rate * self.p + (1 - rate) * self.q, self.q, sampled, self.spread)

    def both_ways(self) -> Losses:
        """The pair whose profile is the larger of this pair's and its mirror's, where that is this one's at eps >= 0.

        It has the positive losses, their mirror images, and otherwise no loss.
        """
        # What is rounding would count twice, and be taken off from the rest.
        positive = self.loss > 64 * jnp.finfo(self.loss.dtype).eps
        p, q = jnp.where(positive, self.p, 0.0), jnp.where(positive, self.q, 0.0)
        rest = 1 - p.sum(keepdims=True) - q.sum(keepdims=True)
        nothing = Losses(rest, rest, 0 * rest, rest != rest)
        there = Losses(p, q, self.loss, self.spread)
        return joined([there, there.mirrored(), nothing])

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
def losses(pair: Any) -> Losses:
    """The nodes of a pair.

    Raises:
        TypeError: a pair of an unknown type.
    """
    raise TypeError(f"pair: {type(pair).__name__} has no known losses")


@losses.register
def _(pair: Atoms) -> Losses:
    p, q = (floating(jnp.asarray(mass)) for mass in (pair.p, pair.q))
    both = (p > 0) & (q > 0)
    loss = jnp.log(jnp.where(both, p, 1.0)) - jnp.log(jnp.where(both, q, 1.0))
    return Losses(p, q, jnp.where(both, loss, jnp.where(p > 0, jnp.inf, -jnp.inf)), p < 0)


@losses.register
def _(pair: Mixed) -> Losses:
    first, second, w = losses(pair.first), losses(pair.second), pair.weight
    return joined([first.scaled(w), second.scaled(1 - w)])


def joined(parts: Sequence[Losses]) -> Losses:
    """All outcomes of several."""
    return jax.tree.map(lambda *leaves: jnp.concatenate([jnp.ravel(leaf) for leaf in leaves]), *parts)


@losses.register
def _(pair: Shifted) -> Losses:
    single, pieces, bend = shifted_pieces(pair)
    return single if pair.noise.law.degree == 0 else joined([single, _sloped(pair, pieces, bend)])


def shifted_pieces(pair: Shifted) -> tuple[Losses, Pieces, Any]:
    """Pieces of constant loss as outcomes, all pieces, and minus the second derivative of the log density."""
    pieces, law, D = split(pair), pair.noise.law, pair.shift
    bend = -law.score(jnp.ones_like(pieces.at[0])) if law.degree == 2 else 0.0 * pieces.at[0]
    if law.degree == 0:
        p = jnp.exp(pieces.log_p) * pieces.width * step_copies(pair, pieces.at)
        q = jnp.where(jnp.isfinite(pieces.loss), p * jnp.exp(-pieces.loss), 0.0)
        return Losses(p, q, pieces.loss, p < 0), pieces, bend
    flat = (pieces.slope == 0) & (pieces.width > 0)
    p = pieces.weight_p * law.mass(pieces.left, pieces.right)
    q = pieces.weight_q * law.mass(pieces.left - D, pieces.right - D)
    p, q = jnp.where(flat, p, 0.0), jnp.where(flat, q, 0.0)
    return Losses(p, q, pieces.loss, p < 0), pieces, bend


def _sloped(pair: Shifted, pieces: Pieces, bend: Any) -> Losses:
    """Panels of the pieces whose loss is not constant."""
    left, right, panels, D = pieces.left, pieces.right, _FEW, pair.shift
    if pair.noise.law.degree == 2:
        reach = REACH / jnp.sqrt(bend)
        low, high = jnp.minimum(0.0, D) - reach, jnp.maximum(0.0, D) + reach
        left, right, panels = jnp.clip(left, low, high), jnp.clip(right, low, high), max(6, _PANELS // len(left))
    present = (pieces.slope != 0) & (pieces.width > 0) & (right > left)
    left, right = jnp.where(present, left, 0.0), jnp.where(present, right, 1.0)
    share, weight = panel_rule(panels, left)
    x = left[:, None] + (right - left)[:, None] * share - pieces.at[:, None]
    log_p = pieces.log_p[:, None] + pieces.rise[:, None] * x - bend * x**2 / 2
    loss = jnp.where(present, pieces.loss, 0.0)[:, None] + pieces.slope[:, None] * x
    weight = jnp.where(present, right - left, 0.0)[:, None] * weight
    spread = present[:, None] & (x == x)
    return Losses(*map(jnp.ravel, (weight * jnp.exp(log_p), weight * jnp.exp(log_p - loss), loss, spread)))


def panel_rule(panels: int, value: Any) -> tuple[Any, Any]:
    """Nodes and weights on [0, 1] of so many panels, in the type of a value."""
    nodes = (np.arange(panels)[:, None] + _NODES).ravel() / panels
    return like(nodes, value), like(np.tile(_WEIGHTS / panels, panels), value)


@losses.register
def _(pair: Placed) -> Losses:
    p, q, ends = whole(pair)
    share, weight = panel_rule(_FEW, ends)
    width = jnp.diff(ends)
    v = ends[:-1, None] + width[:, None] * share
    weight = width[:, None] * weight
    loss = jnp.log(p(v)) - jnp.log(q(v))
    atomic = jnp.ptp(loss, axis=1, keepdims=True) <= 1e-13 * (1 + jnp.abs(loss))
    return Losses(*map(jnp.ravel, (weight * p(v), weight * q(v), loss, ~atomic)))


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
