"""The dominating pair of a windowed mechanism: two densities on the same reports, each with its own window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from accountants.dominating_pairs.base import Curve, DominatingPair, sum_of_pieces
from accountants.privacy_loss import PrivacyLossDistribution, SmoothPieces, join, split_intervals
from dpkernels import checks
from dpkernels.mechanisms.windowed.bases import Base
from dpkernels.mechanisms.windowed.windows import Window
from dpkernels.numerics import (
    Boolean,
    Real,
    RealArray,
    cast_like,
    floating,
    gauss_legendre,
    namespace,
    without_derivative,
)
from dpkernels.proven import proven
from dpkernels.pytrees import pytree
from dpkernels.solve import bisect, falling_root, turning_points, unit_grid_dense_at_ends

# The rounding error by which a window in a file may reach beyond the reports.
_ROUNDING = 1e-12


@proven("worst_pairs#2-windows")
@pytree
@dataclass(frozen=True)
class WindowedPair(DominatingPair):
    """Two densities on the scaled reports [-1, 1]: a falling base, with the same window at one of two positions.

    The base falls from 0, the window from its middle. ``width`` is m in (0, 2), ``relative_height`` is k/y, the
    window's peak over the base's. ``apart`` is the distance from the middle of q's window to that of p's, positive to
    the right, and ``centre`` the midpoint of both, 0 for the two ends of the input interval.
    """

    window: Window
    base: Base
    width: Real
    relative_height: Real
    apart: Real
    centre: Real = 0.0

    @property
    def level(self) -> Real:
        return 1 / (self.relative_height * self.window.area * self.width + 2 * self.base.area)

    @property
    def height(self) -> Real:
        return self.relative_height * self.level

    def hockey_stick(self) -> Curve:
        side = side_of(self)
        return _linear(side) if self._is_linear else _smooth(side, _monotone_runs(side))

    @property
    def _is_linear(self) -> bool:
        return self.window.is_linear and self.base.is_linear

    def largest_loss(self) -> Real:
        side = side_of(self)
        xp = namespace(side.left)
        if not self._is_linear:
            return _monotone_runs(side).loss.max()
        loss = xp.maximum(*(side.loss(e, side.in_p, side.in_q) for e in (side.left, side.right)))
        return xp.where(side.right > side.left, loss, 0.0).max()

    def privacy_loss(self) -> PrivacyLossDistribution:
        if self.window.is_flat and self.base.is_flat:
            return _flat(_floating(self))
        apart = checks.concrete(self.apart)
        if apart is not None and np.all(apart == 0):
            one = 0 * floating(namespace(self.width).asarray(self.width))[None] + 1
            return PrivacyLossDistribution.of_masses(one, one)
        own, other = (self._pieces(side_of(one, beyond=True)) for one in (self, self.mirror()))
        return join([own, other.mirrored()])

    def _pieces(self, side: Side) -> PrivacyLossDistribution:
        window, base = self.window.steepness, self.base.steepness
        steepness: Any = None
        if window is not None and base is not None:  # Outside of both windows the densities are the base.

            def steepness(left: np.ndarray, _: object, i: np.ndarray) -> RealArray:
                return 0 * left + np.where((side.in_p | side.in_q)[i], max(window / self.width, base), base)

        return PrivacyLossDistribution.of_pieces(
            SmoothPieces(
                side.left,
                side.right,
                lambda e, i: namespace(e, side.left).log(side.p(e, side.in_p[i])),
                lambda e, i: namespace(e, side.left).log(side.q(e, side.in_q[i])),
                lambda e, i: side.loss(e, side.in_p[i], side.in_q[i]),
                steepness,
            )
        )

    def mirror(self) -> WindowedPair:
        return WindowedPair(self.window, self.base, self.width, self.relative_height, -self.apart, self.centre)

    def symmetry_gap(self) -> Real:
        return namespace(self.centre).abs(self.centre)

    def check(self) -> None:
        self.window.check()
        self.base.check()
        checks.within("width", self.width, 0.0, 2.0, open_ends=True)
        checks.positive("relative_height", self.relative_height)
        room = 1 - self.width / 2 + _ROUNDING
        for sign in (1, -1):
            checks.within("apart, centre", self.centre + sign * self.apart / 2, -room, room)


def _floating(pair: WindowedPair) -> WindowedPair:
    xp = namespace(*jax.tree.leaves(pair))
    return jax.tree.map(lambda leaf: floating(xp.asarray(leaf)), pair)


def _flat(pair: WindowedPair) -> PrivacyLossDistribution:
    """Return the losses of a flat window on a flat base: in p's window alone, both or neither, q's window alone."""
    xp = namespace(*jax.tree.leaves(pair))
    alone = xp.minimum(xp.abs(pair.apart), pair.width)
    high, low = (pair.level + pair.height) * alone, pair.level * alone
    same = (pair.level + pair.height) * (pair.width - alone) + pair.level * (2 - pair.width - alone)
    loss = xp.where(pair.apart == 0, 0.0, xp.log1p(pair.relative_height))
    p = xp.stack([high, same, low])
    return PrivacyLossDistribution(p, p[::-1], xp.stack([loss, 0 * loss, -loss]), 0 * p)


class Side(NamedTuple):
    """Pieces between the knots of both densities, from the end of the reports to the midpoint of the windows."""

    pair: WindowedPair  # Its p has its window on this side.
    apart: Any  # The distance of the windows' middles.
    margin: Real  # The distance of p's window from the end of the reports.
    left: Any  # The outer end of each piece.
    right: Any
    in_p: Any  # Whether p's window covers each piece.
    in_q: Any

    def p(self, e: RealArray, inside: Boolean) -> RealArray:
        """Return the density of p at e; at the end of a piece, the limit from inside the piece."""
        return self._density(e, e, inside)

    def q(self, e: RealArray, inside: Boolean) -> Any:
        return self._density(e, e - self.apart, inside)

    def loss(self, e: RealArray, in_p: Boolean, in_q: Boolean) -> Any:
        ratio = self.p(e, in_p) / self.q(e, in_q)
        return namespace(ratio).log(ratio)

    @property
    def densities(self) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        return (self.p, self.in_p), (self.q, self.in_q)

    def _density(self, e: RealArray, in_window: RealArray, inside: Boolean) -> RealArray:
        pair, z = self.pair, in_window / self.pair.width
        xp = namespace(z)
        window = xp.where(inside, pair.height * pair.window.inward(xp.clip(z, 0.0, 1.0)), 0.0)
        return pair.level * pair.base.inward(self.margin + e) + window


def side_of(pair: WindowedPair, *, beyond: bool = False) -> Side:
    """Return the side on which p's window is; if wanted with the reports beyond that window, where the loss is 0."""
    pair, xp = _floating(pair), namespace(*jax.tree.leaves(pair))
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


_CELLS = 64  # The cells of a piece in which turning points of the loss are looked for.
_MAX_TURNS = 3  # The most turning points that are kept.
_BISECTIONS = 60  # Halvings for a turning point or a cut, to full float64 precision.
_INSET = 1e-12  # The distance from a knot at which one side of it is evaluated, as a share of the piece.
_MIN_LENGTH = 1e-13  # Shorter pieces need no turning points.
# Units in the last place by which the derivatives of two equal densities may differ.
_UNITS = 16
_NODES, _WEIGHTS = gauss_legendre(8)


def _linear(side: Side) -> Curve:
    """Sum w a^2 / (2 (a - b)), the positive part's mass on a piece of width w with values a > 0 > b at its ends."""
    (p0, p1), (q0, q1) = ([density(e, inside) for e in (side.left, side.right)] for density, inside in side.densities)

    def of_pieces(eps: RealArray) -> RealArray:
        xp = namespace(eps, p0)
        ends = p0 - xp.exp(eps) * q0, p1 - xp.exp(eps) * q1
        high, low = xp.maximum(*ends), xp.minimum(*ends)
        crossing = (high > 0) & (low < 0)
        share = high / xp.where(crossing, high - low, 1.0)
        return (side.right - side.left) / 2 * xp.where(crossing, high * share, xp.where(high > 0, high + low, 0.0))

    return sum_of_pieces(of_pieces, len(p0))


# Smooth densities


class _Runs(NamedTuple):
    """Intervals on which the loss is monotone."""

    top: Any  # The end with the larger loss.
    extent: RealArray  # The signed distance to the other end.
    loss: Any  # The loss at the top.
    in_p: RealArray  # Whether p's window covers the interval.
    in_q: Boolean


def _rate(side: Side, e: Any) -> RealArray:
    """Return the derivative of the loss, p'/p - q'/q, or 0 where the difference is a rounding error."""

    def relative(density: Any, inside: Boolean) -> Array:
        value, slope = jax.jvp(lambda at: density(at, inside), (e,), (jnp.ones_like(e),))
        return slope / value

    of_p, of_q = (relative(density, inside) for density, inside in side.densities)
    width, units = side.right - side.left, _UNITS * jnp.finfo(e.dtype).eps
    is_resolved = jnp.abs(of_p - of_q) * width > units * (1 + (jnp.abs(of_p) + jnp.abs(of_q)) * width)
    return jnp.where(is_resolved, of_p - of_q, 0.0)


def _monotone_runs(side: Side) -> _Runs:
    # In the cells of a table the loss turns at most once.
    tabulated = side.pair.window.is_table or side.pair.base.is_table
    cells, most = (1, 1) if tabulated else (_CELLS, _MAX_TURNS)
    xp = namespace(side.left)
    if xp is np:
        left, right, rows = _cut_at_turns(side, cells)
    else:
        ends = jnp.concatenate([side.left[None], _turns(side, cells, most), side.right[None]])
        left, right = ends[:-1].ravel(), ends[1:].ravel()
        rows = np.tile(np.arange(len(side.left)), len(ends) - 1)
    in_p, in_q, width = side.in_p[rows], side.in_q[rows], right - left
    near, far = (side.loss(e, in_p, in_q) for e in (left, right))
    falling = near >= far
    top, loss = xp.where(falling, left, right), xp.where(width <= 0, -np.inf, xp.maximum(near, far))
    return _Runs(top, xp.where(falling, width, -width), loss, in_p, in_q)


def _cut_at_turns(side: Side, cells: int) -> Any:
    wide = np.flatnonzero(side.right > side.left)
    left, right, in_p, in_q = (each[wide] for each in (side.left, side.right, side.in_p, side.in_q))
    low, high = _inside(left, right)
    shares: Any = unit_grid_dense_at_ends(cells + 1)
    points = low[:, None] * (1 - shares) + high[:, None] * shares
    turn, row = turning_points(lambda e, row: side.loss(e, in_p[row], in_q[row]), points)
    starts, ends, rows = split_intervals(left, right, turn, row)
    return starts, ends, wide[rows]


def _inside(left: Any, right: Real) -> tuple[RealArray, RealArray]:
    """Return both ends of an interval, moved inside it: at a knot the derivative of the loss may jump."""
    inset = _INSET * (right - left) + 4 * np.finfo(left.dtype).eps * (abs(left) + abs(right))
    return left + inset, right - inset


def _turns(pieces: Side, cells: int, most: int) -> Real:
    """Return the turning points of the loss in each piece, and its right end, (most, pieces); NaN if there are more."""
    left, right = jax.lax.stop_gradient(_inside(pieces.left, pieces.right))
    grid = left + (right - left) * jnp.linspace(0, 1, cells + 1, dtype=left.dtype)[:, None]
    rising = _rate(pieces, grid) > 0
    changes = rising[:-1] != rising[1:]

    low, high = bisect(lambda x: (_rate(pieces, x) > 0) == rising[:-1], grid[:-1], grid[1:], _BISECTIONS)
    turns = jnp.sort(jnp.where(changes, (low + high) / 2, jnp.inf), 0)[:most]
    fits = (changes.sum(0) <= most) | (pieces.right - pieces.left <= _MIN_LENGTH)
    return jnp.where(fits, jnp.where(jnp.isfinite(turns), turns, pieces.right), jnp.nan)


def _smooth(side: Side, runs: _Runs) -> Curve:
    """Integrate p - e^eps q from the top of each run, where the loss is largest, to the point where the loss is eps."""
    frozen = without_derivative((side, runs))

    def gap(share: Real, eps: object, side: Side = side, runs: _Runs = runs) -> Any:
        """Return p - e^eps q at a share of each run; its slope, unlike the loss's, is moderate where a window ends."""
        e = runs.top + runs.extent * share
        return side.p(e, runs.in_p) - namespace(e, eps).exp(eps) * side.q(e, runs.in_q)

    def of_pieces(eps: Real) -> RealArray:
        xp, frozen_eps = namespace(eps, runs.top), without_derivative(eps)
        zeros = 0 * (frozen_eps + frozen[1].top)
        top_above, all_above = (gap(zeros + share, frozen_eps, *frozen) > 0 for share in (0.0, 1.0))
        partial = top_above & ~all_above
        if xp is np:
            share = falling_root(lambda share: gap(share, frozen_eps), zeros, zeros + partial)
        else:
            share = bisect(lambda share: gap(share, frozen_eps, *frozen) > 0, zeros, zeros + 1, _BISECTIONS)[0]
        share = xp.where(partial, share, xp.where(top_above, 1.0, 0.0))
        if xp is jnp:  # The first derivatives of delta do not need those of the cut, but the second ones do.
            slope = jax.jvp(lambda share: gap(share, frozen_eps, *frozen), (share,), (jnp.ones_like(share),))[1]
            moved = gap(share, eps)
            moved = (moved - without_derivative(moved)) / jnp.where(slope != 0, slope, 1.0)
            share = share - jnp.where((share > 0) & ~all_above, moved, 0.0)
        # The nodes are along a first axis.
        nodes, weights = (cast_like(rule, share).reshape(-1, *[1] * share.ndim) for rule in (_NODES, _WEIGHTS))
        return xp.abs(runs.extent) * share * (weights * gap(nodes * share, eps)).sum(0)

    return sum_of_pieces(of_pieces, len(runs.top))
