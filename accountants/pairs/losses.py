"""A pair of laws as quadrature nodes, masses under p and q, for smooth functions of the loss: exact to rounding.

Between its knots a pair's densities are smooth, so Gauss-Legendre nodes there give E_p exp(z l), and hence Renyi
divergences and compositions, to the last digits. A piece of constant loss is one node with its whole mass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dpkernels.numerics import Real, RealArray, gauss_legendre, like, namespace, without_derivative
from dpkernels.pytrees import pytree

_NODES, _WEIGHTS = gauss_legendre(16)
# How far out a Gaussian is followed, in sigma beyond both of its middles, and the panels it is cut into in all.
REACH, PANELS = 18.0, 30
# Panels of a piece of other laws.
FEW = 4
# Where e^loss is next to overflow, or soon is.
_LARGE = 30.0
# XLA sums on processors by so many terms: other lengths have programs of their own for their ends, and for each sum.
_ROUND = 32


@pytree
@dataclass(frozen=True)
class Losses:
    """Outcomes of a pair; arrays of one length.

    Attributes:
        p: mass under p.
        q: mass under q.
        loss: log p/q; inf where q = 0, -inf where p = 0.
        width: about how wide the range of losses is that an outcome stands for; 0 for an atom.
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

    def with_room(self) -> Losses:
        """The same and outcomes of no mass, one at least: as many as sums compile quickly for."""
        many = self.p.shape[-1] + 1
        room = 1 + -many % (1 if many < _ROUND else _ROUND if many < _ROUND**2 else _ROUND**2)
        pad = namespace(self.p).pad
        return jax.tree.map(lambda leaf: pad(leaf, [*[(0, 0)] * (leaf.ndim - 1), (0, room)]), self)

    def capped(self, cap: Real) -> Losses:
        """The same at every eps up to the cap: above it, (p, q) becomes (e^cap q, q), the rest of infinite loss.

        Composed it is the same as long as all other losses together are eps - cap at least. The last outcome becomes
        the rest: it should have no mass, see ``with_room``, and what it has is of infinite loss, too.
        """
        xp = namespace(self.p, cap)
        above = xp.isfinite(self.loss) & (self.loss > cap)
        down = xp.where(above, cap - self.loss, 0.0)
        # Not p less what is kept, whose rounding counts n times.
        lost = (self.p * -xp.expm1(down)).sum()
        last = np.arange(self.p.size) == self.p.size - 1
        loss = xp.where(last, np.inf, xp.where(above, cap, self.loss))
        p = self.p * xp.exp(down) + xp.where(last, lost, 0.0)
        return Losses(p, self.q, loss, xp.where(above, 0.0, self.width))

    def sampled(self, rate: Real) -> Losses:
        """The pair (r p + (1 - r) q, q): whoever tells the two apart is in a Poisson sample with probability r."""
        loss, xp = self._finite, namespace(self.loss, rate)
        large = loss > _LARGE
        near = xp.log1p(rate * xp.expm1(xp.where(large, 0.0, loss)))
        there = xp.where(large, loss + xp.log(rate + (1 - rate) * xp.exp(-xp.where(large, loss, 0.0))), near)
        sampled = xp.where(xp.isfinite(self.loss), there, xp.where(self.loss > 0, np.inf, xp.log1p(-rate)))
        width = self.width * rate * xp.exp(loss - there)
        return Losses(rate * self.p + (1 - rate) * self.q, self.q, sampled, width)

    def both_ways(self) -> Losses:
        """The pair whose profile is the larger of this pair's and its mirror's, where that is this one's at eps >= 0.

        It has the positive losses, their mirror images, and otherwise no loss.
        """
        # What is rounding would count twice, and be taken off from the rest.
        xp = namespace(self.loss)
        positive = self.loss > 64 * xp.finfo(self.loss.dtype).eps
        p, q = xp.where(positive, self.p, 0.0), xp.where(positive, self.q, 0.0)
        rest = 1 - p.sum(keepdims=True) - q.sum(keepdims=True)
        nothing = Losses(rest, rest, 0 * rest, 0 * rest)
        there = Losses(p, q, self.loss, self.width)
        return joined([there, there.mirrored(), nothing])

    @property
    def finite(self) -> tuple[Any, Any]:
        """(log p, loss) with no mass and no loss where the loss is infinite."""
        xp = namespace(self.p)
        real = ~(xp.isinf(self.loss) | (self.p <= 0))  # NaN stays.
        return xp.where(real, xp.log(xp.where(real, self.p, 1.0)), -np.inf), xp.where(real, self.loss, 0.0)

    @property
    def _finite(self) -> Real:
        xp = namespace(self.loss)
        return xp.where(xp.isfinite(self.loss), self.loss, 0.0)


def log_ratio(log_p: Any, log_q: Any) -> Any:
    """log p - log q: infinite where one of the two is 0, and 0 where both are."""
    xp = namespace(log_p, log_q)
    p, q = log_p > -np.inf, log_q > -np.inf
    finite = xp.where(p & q, log_p, 0.0) - xp.where(p & q, log_q, 0.0)
    return xp.where(p == q, finite, xp.where(p, np.inf, -np.inf))


def joined(parts: Sequence[Losses]) -> Losses:
    """All outcomes of several."""
    xp = namespace(*jax.tree.leaves(tuple(parts)))
    return jax.tree.map(lambda *leaves: xp.concatenate([xp.ravel(leaf) for leaf in leaves]), *parts)


def range_of(loss: Real) -> RealArray:
    """About how wide the range is that each node stands for; nodes are along the last axis."""
    xp = namespace(loss)
    return xp.abs(xp.asarray(xp.gradient(without_derivative(loss), axis=-1)))


def panel_rule(panels: int, value: Real, *, dense: bool = False, cuts: Any = None) -> tuple[Any, Any]:
    """Nodes and weights on [0, 1] of so many panels, in the type of a value.

    Dense ones come quadratically near to both ends, by t = s^2 (3 - 2 s): sums of few reports may be as near to where
    losses end. At cuts, of shape (rows, n), panels end too: of every row its own.
    """
    ends: Any = np.arange(panels + 1) / panels
    if cuts is None:
        s, weights = _in_panels(ends, dense)
        return like(s, value), like(weights, value)
    xp = namespace(cuts)
    cuts = 0.5 - xp.sin(xp.arcsin(1 - 2 * cuts) / 3) if dense else cuts
    regular = xp.broadcast_to(like(ends, value), (len(cuts), panels + 1))
    return _in_panels(xp.sort(xp.concatenate([regular, cuts], -1)), dense)


def _in_panels(ends: Any, dense: bool) -> tuple[Any, Any]:
    width = (ends[..., 1:] - ends[..., :-1])[..., None]
    s, weights = ends[..., :-1, None] + width * like(_NODES, ends), width * like(_WEIGHTS, ends)
    if dense:
        s, weights = s**2 * (3 - 2 * s), weights * 6 * s * (1 - s)
    shape = *ends.shape[:-1], -1
    return s.reshape(shape), weights.reshape(shape)
