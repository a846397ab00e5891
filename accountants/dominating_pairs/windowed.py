"""The dominating pair of a windowed mechanism: two densities with the same base and different windows."""

from __future__ import annotations

from collections.abc import Callable
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
from dpkernels.shapes import Bool, Float, Int
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
        side = window_side(self)
        return _linear_profile(side) if self._is_linear else _smooth_profile(side, _monotone_runs(side))

    @property
    def _is_linear(self) -> bool:
        return self.window.is_linear and self.base.is_linear

    def largest_loss(self) -> Real:
        side = window_side(self)
        xp = namespace(side.lower)
        if not self._is_linear:
            return _monotone_runs(side).loss.max()
        loss = xp.maximum(*(side.loss(e, side.in_p, side.in_q) for e in (side.lower, side.upper)))
        return xp.where(side.upper > side.lower, loss, 0.0).max()

    def privacy_loss(self) -> PrivacyLossDistribution:
        if self.window.is_flat and self.base.is_flat:
            return _flat_losses(_floating(self))
        apart = checks.concrete(self.apart)
        if apart is not None and np.all(apart == 0):
            unit = 0 * floating(namespace(self.width).asarray(self.width))[None] + 1
            return PrivacyLossDistribution.of_masses(unit, unit)
        sides = (window_side(pair, with_outer_reports=True) for pair in (self, self.mirror()))
        forwards, backwards = (self._losses(side) for side in sides)
        return join([forwards, backwards.mirrored()])

    def _losses(self, side: Side) -> PrivacyLossDistribution:
        window, base = self.window.steepness, self.base.steepness
        steepness: Callable[..., RealArray] | None = None
        if window is not None and base is not None:  # Outside of both windows the densities are the base.

            def steepness(lower: np.ndarray, _: object, i: np.ndarray) -> RealArray:
                return 0 * lower + np.where((side.in_p | side.in_q)[i], max(window / self.width, base), base)

        return PrivacyLossDistribution.of_pieces(
            SmoothPieces(
                side.lower,
                side.upper,
                lambda e, i: namespace(e, side.lower).log(side.p(e, side.in_p[i])),
                lambda e, i: namespace(e, side.lower).log(side.q(e, side.in_q[i])),
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


def _flat_losses(pair: WindowedPair) -> PrivacyLossDistribution:
    """Return the losses of a flat window on a flat base: in p's window alone, both or neither, q's window alone."""
    xp = namespace(*jax.tree.leaves(pair))
    uncovered = xp.minimum(xp.abs(pair.apart), pair.width)
    high, low = (pair.level + pair.height) * uncovered, pair.level * uncovered
    even = (pair.level + pair.height) * (pair.width - uncovered) + pair.level * (2 - pair.width - uncovered)
    loss = xp.where(pair.apart == 0, 0.0, xp.log1p(pair.relative_height))
    p = xp.stack([high, even, low])
    return PrivacyLossDistribution(p, p[::-1], xp.stack([loss, 0 * loss, -loss]), 0 * p)


_Density = Callable[..., RealArray]  # Of a point, and whether the window covers it.


class Side(NamedTuple):
    """Pieces between the knots of both densities, from the end of the reports to the midpoint of the windows."""

    pair: WindowedPair  # Its p has its window on this side.
    apart: Float[RealArray, ""]  # The distance of the windows' middles.
    margin: Real  # The distance of p's window from the end of the reports.
    lower: Float[Any, " pieces"]  # The outer end of each piece.
    upper: Float[Any, " pieces"]
    in_p: Bool[RealArray, " pieces"]  # Whether p's window covers each piece.
    in_q: Bool[RealArray, " pieces"]

    def p(self, e: RealArray, in_window: Boolean) -> RealArray:
        """Return the density of p at e; at the end of a piece, the limit from inside the piece."""
        return self._density(e, e, in_window)

    def q(self, e: RealArray, in_window: Boolean) -> RealArray:
        return self._density(e, e - self.apart, in_window)

    def loss(self, e: RealArray, in_p: Boolean, in_q: Boolean) -> Any:
        ratio = self.p(e, in_p) / self.q(e, in_q)
        return namespace(ratio).log(ratio)

    @property
    def densities(self) -> tuple[tuple[_Density, RealArray], tuple[_Density, RealArray]]:
        return (self.p, self.in_p), (self.q, self.in_q)

    def _density(self, e: RealArray, position: RealArray, in_window: Boolean) -> RealArray:
        pair, z = self.pair, position / self.pair.width
        xp = namespace(z)
        window = xp.where(in_window, pair.height * pair.window.density_near_end(xp.clip(z, 0.0, 1.0)), 0.0)
        return pair.level * pair.base.density_near_end(self.margin + e) + window


def window_side(pair: WindowedPair, *, with_outer_reports: bool = False) -> Side:
    """Return the side on which p's window is; if wanted with the reports beyond that window, where the loss is 0."""
    pair, xp = _floating(pair), namespace(*jax.tree.leaves(pair))
    width, apart = pair.width, xp.abs(pair.apart)
    to_the_right = xp.where(pair.apart >= 0, 1.0, -1.0)
    margin = xp.maximum((1 - width / 2 - apart / 2) - to_the_right * pair.centre, 0.0)
    window_knots = np.unique(np.concatenate([0.5 - pair.window.kinks, 0.5 + pair.window.kinks]))
    base_knots = np.unique(np.concatenate([1 - pair.base.kinks, 1 + pair.base.kinks]))
    last = (width + apart) / 2
    first = -margin if with_outer_reports else 0 * last
    # Of q's window only the outer half is on this side.
    knots = xp.concatenate(
        [
            xp.stack([first, last]),
            width * window_knots,
            apart + width * window_knots[window_knots < 0.5],
            base_knots - margin,
        ]
    )
    ends = xp.sort(xp.clip(knots, first, last))
    lower, upper = ends[:-1], ends[1:]
    middle = lower + (upper - lower) / 2
    return Side(pair, apart, margin, lower, upper, (middle > 0) & (middle < width), middle > apart)


_CELLS = 64  # The cells of a piece in which turning points of the loss are looked for.
_MAX_TURNS = 3  # The most turning points that are kept.
_BISECTIONS = 60  # Halvings for a turning point or a cut, to full float64 precision.
_INSET = 1e-12  # The distance from a knot at which one side of it is evaluated, as a share of the piece.
_MIN_LENGTH = 1e-13  # Shorter pieces need no turning points.
# Units in the last place by which the derivatives of two equal densities may differ.
_UNITS = 16
_NODES, _WEIGHTS = gauss_legendre(8)


def _linear_profile(side: Side) -> Curve:
    """Sum w a^2 / (2 (a - b)), the positive part's mass on a piece of width w with values a > 0 > b at its ends."""
    (p0, p1), (q0, q1) = (
        [density(e, in_window) for e in (side.lower, side.upper)] for density, in_window in side.densities
    )

    def piece_deltas(eps: RealArray) -> RealArray:
        xp = namespace(eps, p0)
        ends = p0 - xp.exp(eps) * q0, p1 - xp.exp(eps) * q1
        high, low = xp.maximum(*ends), xp.minimum(*ends)
        crosses = (high > 0) & (low < 0)
        fraction = high / xp.where(crosses, high - low, 1.0)
        return (side.upper - side.lower) / 2 * xp.where(crosses, high * fraction, xp.where(high > 0, high + low, 0.0))

    return sum_of_pieces(piece_deltas, len(p0))


# Smooth densities


class _Runs(NamedTuple):
    """Intervals on which the loss is monotone."""

    top: Float[RealArray, " runs"]  # The end with the larger loss.
    extent: Float[RealArray, " runs"]  # The signed distance to the other end.
    loss: Float[RealArray, " runs"]  # The loss at the top.
    in_p: Bool[RealArray, " runs"]  # Whether p's window covers the interval.
    in_q: Bool[RealArray, " runs"]


def _loss_slope(side: Side, e: Float[Any, "*points pieces"]) -> Float[RealArray, "*points pieces"]:
    """Return the derivative of the loss, p'/p - q'/q, or 0 where the difference is a rounding error."""

    def relative_slope(density: _Density, in_window: Boolean) -> Array:
        value, slope = jax.jvp(lambda x: density(x, in_window), (e,), (jnp.ones_like(e),))
        return slope / value

    slope_p, slope_q = (relative_slope(density, in_window) for density, in_window in side.densities)
    width, units = side.upper - side.lower, _UNITS * jnp.finfo(e.dtype).eps
    is_resolved = jnp.abs(slope_p - slope_q) * width > units * (1 + (jnp.abs(slope_p) + jnp.abs(slope_q)) * width)
    return jnp.where(is_resolved, slope_p - slope_q, 0.0)


def _monotone_runs(side: Side) -> _Runs:
    # In the cells of a table the loss turns at most once.
    tabulated = side.pair.window.is_table or side.pair.base.is_table
    cells, max_turns = (1, 1) if tabulated else (_CELLS, _MAX_TURNS)
    xp = namespace(side.lower)
    if xp is np:
        lower, upper, piece = _split_at_turns(side, cells)
    else:
        ends = jnp.concatenate([side.lower[None], _turns(side, cells, max_turns), side.upper[None]])
        lower, upper = ends[:-1].ravel(), ends[1:].ravel()
        piece = np.tile(np.arange(len(side.lower)), len(ends) - 1)
    in_p, in_q, width = side.in_p[piece], side.in_q[piece], upper - lower
    lower_loss, upper_loss = (side.loss(e, in_p, in_q) for e in (lower, upper))
    falling = lower_loss >= upper_loss
    top, loss = xp.where(falling, lower, upper), xp.where(width <= 0, -np.inf, xp.maximum(lower_loss, upper_loss))
    return _Runs(top, xp.where(falling, width, -width), loss, in_p, in_q)


def _split_at_turns(
    side: Side, cells: int
) -> tuple[Float[RealArray, " runs"], Float[RealArray, " runs"], Int[np.ndarray, " runs"]]:
    nonempty = np.flatnonzero(side.upper > side.lower)
    lower, upper, in_p, in_q = (
        np.asarray(column)[nonempty] for column in (side.lower, side.upper, side.in_p, side.in_q)
    )
    lower_inset, upper_inset = _inset_ends(lower, upper)
    fractions = unit_grid_dense_at_ends(cells + 1)
    points = np.asarray(lower_inset[:, None] * (1 - fractions) + upper_inset[:, None] * fractions)
    turn, piece = turning_points(lambda e, piece: side.loss(e, in_p[piece], in_q[piece]), points)
    starts, ends, rows = split_intervals(lower, upper, turn, piece)
    return starts, ends, nonempty[rows]


def _inset_ends(
    lower: Float[Any, " pieces"], upper: Float[Any, " pieces"]
) -> tuple[Float[RealArray, " pieces"], Float[RealArray, " pieces"]]:
    """Return both ends of an interval, moved inside it: at a knot the derivative of the loss may jump."""
    margin = _INSET * (upper - lower) + 4 * np.finfo(lower.dtype).eps * (abs(lower) + abs(upper))
    return lower + margin, upper - margin


def _turns(pieces: Side, cells: int, max_turns: int) -> Float[RealArray, "{max_turns} pieces"]:
    """Return the turning points of the loss in each piece, and its upper end: (max_turns, pieces); NaN for more."""
    lower, upper = jax.lax.stop_gradient(_inset_ends(pieces.lower, pieces.upper))
    grid = lower + (upper - lower) * jnp.linspace(0, 1, cells + 1, dtype=lower.dtype)[:, None]
    rising = _loss_slope(pieces, grid) > 0
    changes = rising[:-1] != rising[1:]

    low, high = bisect(lambda x: (_loss_slope(pieces, x) > 0) == rising[:-1], grid[:-1], grid[1:], _BISECTIONS)
    turns = jnp.sort(jnp.where(changes, (low + high) / 2, jnp.inf), 0)[:max_turns]
    is_complete = (changes.sum(0) <= max_turns) | (pieces.upper - pieces.lower <= _MIN_LENGTH)
    return jnp.where(is_complete, jnp.where(jnp.isfinite(turns), turns, pieces.upper), jnp.nan)


def _smooth_profile(side: Side, runs: _Runs) -> Curve:
    """Integrate p - e^eps q from the top of each run, where the loss is largest, to the point where the loss is eps."""
    frozen = without_derivative((side, runs))

    def gap(fraction: Real, eps: object, side: Side = side, runs: _Runs = runs) -> Any:
        """Return p - e^eps q at a share of each run; its slope, unlike the loss's, is moderate where a window ends."""
        e = runs.top + runs.extent * fraction
        return side.p(e, runs.in_p) - namespace(e, eps).exp(eps) * side.q(e, runs.in_q)

    def run_deltas(eps: Real) -> RealArray:
        xp, frozen_eps = namespace(eps, runs.top), without_derivative(eps)
        zeros = 0 * (frozen_eps + frozen[1].top)
        top_above, all_above = (gap(zeros + fraction, frozen_eps, *frozen) > 0 for fraction in (0.0, 1.0))
        is_partial = top_above & ~all_above
        if xp is np:
            fraction = falling_root(lambda fraction: gap(fraction, frozen_eps), zeros, zeros + is_partial)
        else:
            fraction = bisect(lambda fraction: gap(fraction, frozen_eps, *frozen) > 0, zeros, zeros + 1, _BISECTIONS)[0]
        fraction = xp.where(is_partial, fraction, xp.where(top_above, 1.0, 0.0))
        if xp is jnp:  # The first derivatives of delta do not need those of the cut, but the second ones do.
            slope = jax.jvp(
                lambda fraction: gap(fraction, frozen_eps, *frozen), (fraction,), (jnp.ones_like(fraction),)
            )[1]
            shift = gap(fraction, eps)
            shift = (shift - without_derivative(shift)) / jnp.where(slope != 0, slope, 1.0)
            fraction = fraction - jnp.where((fraction > 0) & ~all_above, shift, 0.0)
        # The nodes are along a first axis.
        nodes, weights = (cast_like(rule, fraction).reshape(-1, *[1] * fraction.ndim) for rule in (_NODES, _WEIGHTS))
        return xp.abs(runs.extent) * fraction * (weights * gap(nodes * fraction, eps)).sum(0)

    return sum_of_pieces(run_deltas, len(runs.top))
