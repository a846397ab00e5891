"""The two densities of a ``Placed`` pair on one side of the point half-way between the middles of the windows.

A report is given by its distance e inwards from the outer end of p's window. In this coordinate no knot, window or base
is a difference of larger numbers, however narrow the windows are, however little the windows differ in
place, and however low the base falls at its edge.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from dpkernels.mechanisms.windowed.bases import inward
from dpkernels.numerics import namespace


class Side(NamedTuple):
    """Pieces between the knots of both densities, from the end of the reports to the point half-way.

    Attributes:
        pair: the pair, for which p's window is on this side.
        apart: the distance of the windows' middles.
        margin: the distance of p's window from the end of the reports.
        left: the outer end of each piece.
        right: its inner end.
        in_p: whether p's window covers the piece.
        in_q: whether q's window does.
    """

    pair: Any
    apart: Any
    margin: Any
    left: Any
    right: Any
    in_p: Any
    in_q: Any

    def p(self, e: Any, inside: Any) -> Any:
        """The density of p at e; at the end of a piece its limit from inside the piece."""
        return self._base(e) + self._window(e, inside)

    def q(self, e: Any, inside: Any) -> Any:
        """The density of q."""
        return self._base(e) + self._window(e - self.apart, inside)

    def loss(self, e: Any, in_p: Any, in_q: Any) -> Any:
        """The log of p/q."""
        ratio = self.p(e, in_p) / self.q(e, in_q)
        return namespace(ratio).log(ratio)

    @property
    def densities(self) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """Both densities, each with whether its window covers the pieces."""
        return (self.p, self.in_p), (self.q, self.in_q)

    def _base(self, e: Any) -> Any:
        return self.pair.level * inward(self.pair.base, self.margin + e)

    def _window(self, e: Any, inside: Any) -> Any:
        z = e / self.pair.width
        xp = namespace(z)
        return xp.where(inside, self.pair.height * self.pair.window.density(xp.clip(z, 0.0, 1.0)), 0.0)


def side_of(pair: Any, *, beyond: bool = False) -> Side:
    """The side on which p's window is.

    Args:
        pair: a ``Placed`` pair.
        beyond: whether the reports beyond p's window count too; the loss is 0 there.
    """
    xp = namespace(*jax.tree.leaves(pair))
    width, apart = pair.width, xp.abs(pair.apart)
    to_the_right = xp.where(pair.apart >= 0, 1.0, -1.0)
    margin = xp.maximum((1 - width / 2 - apart / 2) - to_the_right * pair.centre, 0.0)
    shares = np.unique(np.concatenate([0.5 - pair.window.kinks, 0.5 + pair.window.kinks]))
    base = np.unique(np.concatenate([1 - pair.base.kinks, 1 + pair.base.kinks]))
    last = (width + apart) / 2
    first = -margin if beyond else 0 * last
    # Of q's window only the outer half is on this side.
    knots = xp.concatenate(
        [xp.stack([first, last]), width * shares, apart + width * shares[shares < 0.5], base - margin]
    )
    ends = xp.sort(xp.clip(knots, first, last))
    left, right = ends[:-1], ends[1:]
    middle = left + (right - left) / 2
    return Side(pair, apart, margin, left, right, (middle > 0) & (middle < width), middle > apart)
