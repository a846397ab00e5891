"""Bounds of one report on a grid: masses above and below a dominating pair in the convex order of R = p/q.

Two operations move the distribution of R to a grid:

- A mean-preserving spread splits the R of a cell between both ends of the cell. It increases every hockey-stick
  divergence ("connect the dots", Doroshenko 2022).
- A contraction gathers outcomes into groups. It decreases every hockey-stick divergence.

Composition preserves both orders. The error of both operations is proportional to the square of the step. Proofs:
docs/proofs/brackets.md.

Masses are under p. They may be tilted by a factor e^(c l). The masses of a cell are then relative to the factor at its
lower end, and ``growth`` is e^(c h).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from accountants.composition.brackets.cells import Cells, subtract_errors
from accountants.composition.interpolation import masses_of_profile, profile_on_grid
from accountants.loss_intervals import LOSS_UNITS
from dpkernels.numerics import UNIT_ROUNDOFF
from dpkernels.proven import proven
from dpkernels.shapes import Float

RATIO = 5  # The step of the next coarser grid. It is odd, so that no point is half-way between two of that grid.
_MASS_ERROR = 1e-12  # A bound on the relative error of the maximum of several profiles.
_MAX_SHARE_FROM_ABOVE = 0.4  # The share of a group's mass that the group below it may count on.
_MAX_SHARE_FROM_BELOW = 0.25  # The share of a group's mass that the group above it may take.


@dataclass(frozen=True)
class GridReleases:
    """A bound of one pair: masses of p at the losses offset + (first + j) h and at infinite loss, composed n times."""

    mass: Float[np.ndarray, " points"]  # The masses under p, not negative; with ``infinite`` they need not sum to 1.
    first_index: int  # k of mass[0].
    offset: float  # a shift of the whole grid.
    infinite: float  # The mass of infinite loss.
    count: int  # n.
    stage: int = 0  # h is ``RATIO``^stage times the step that is composed.
    tail: GridReleases | None = None  # Masses of rare losses, on a grid of ``ratio`` h with the same offset.
    ratio: int = 1  # A power of ``RATIO``.


@proven("brackets#proof-of-2-above")
def upper_masses(cells: Cells, step: float, count: int) -> GridReleases:
    """Return a pair whose profile is at least that of the cells."""
    displacement = cells.displacement + np.zeros(cells.p.shape)
    p, gain = (
        _both_halves(cells.p + cells.p_error),
        _both_halves(cells.gain + cells.gain_error + cells.p * displacement),
    )
    # Cells are split between their ends.
    at_end = np.clip(gain / -np.expm1(-step), 0.0, p)
    mass, error = np.append(p - at_end, 0.0) + np.append(0.0, at_end), _loss_error(cells, step)
    if displacement.max(initial=0.0) < step:
        mass = raise_losses(mass, displacement.max(1), step)
    else:  # On so fine a grid all losses are raised.
        error += float(displacement.max())
    tail, offset = None, cells.offset + error
    if cells.tail is None:
        mass[0] += cells.mass_below
    else:
        tail = upper_masses(cells.tail, cells.ratio * step, count)
        tail.mass[0] += cells.mass_below
        offset = max(offset, tail.offset)  # Both grids have one offset.
    factor = 1 + cells.mass_error
    # Rounding of a loss may move mass either way: all losses are raised by its bound.
    infinite = cells.infinite * factor + cells.neglected
    return GridReleases(mass * factor, cells.first_index, offset, infinite, count, 0, tail, cells.ratio)


def _both_halves(halves: Float[np.ndarray, "cells 2"]) -> Float[np.ndarray, " cells"]:
    return halves[:, 0] + halves[:, 1]


def raise_losses(
    mass: Float[np.ndarray, " points"], increases: Float[np.ndarray, " points-1"], step: float
) -> Float[np.ndarray, " points+1"]:
    """Return the masses with losses that are raised, by less than a step, then spread.

    A loss is raised by the larger number of both cells next to it.
    """
    moved = mass * (np.expm1(-np.maximum(np.append(increases, 0.0), np.append(0.0, increases))) / np.expm1(-step))
    return np.append(mass - moved, 0.0) + np.append(0.0, moved)


def _loss_error(cells: Cells, step: float) -> float:
    """Return a bound on the error of losses."""
    if cells.loss_error is not None:
        return cells.loss_error
    ends = cells.first_index * step, (cells.first_index + len(cells.p)) * step
    return LOSS_UNITS * UNIT_ROUNDOFF * (1 + abs(cells.offset) + max(map(abs, ends)))


@proven("brackets#proof-of-3-below")
def lower_masses(cells: Cells, step: float, count: int) -> GridReleases:
    """Return a pair whose profile is at most that of the cells: groups around grid points, with at least their loss."""
    p, gain = cells.lower or subtract_errors(cells.p, cells.gain, cells.p_error, cells.gain_error)
    gain = np.minimum(gain, -np.expm1(-step) * p)
    error, factor = _loss_error(cells, step), max(1 - cells.mass_error, 0.0)
    tail = None if cells.tail is None else lower_masses(cells.tail, cells.ratio * step, count)
    mass = contract(p, gain, step) * factor
    return GridReleases(
        mass, cells.first_index, cells.offset - error, cells.infinite * factor, count, 0, tail, cells.ratio
    )


@proven("brackets#proof-of-3-below")
def contract(
    p: Float[np.ndarray, "cells 2"],
    gain: Float[np.ndarray, "cells 2"],
    step: float,
    growth: float = 1.0,
    *,
    is_linear: bool = False,
) -> Float[np.ndarray, " cells+1"]:
    """Return the masses at grid points of groups, from those of half cells.

    Mass p of a half cell at k h that stays adds its gain p - e^(k h) q to the group at k. Mass that joins the group at
    k + 1 costs that group e^((k + 1) h) q - p = (e^h - 1) p - e^h gain. If the gains of a group equal
    its costs, its mean of p/q is that of the grid point:

    1. Lower halves stay, and upper halves move up, as far as the gains of the group above pay for them.
    2. A group with too much gain takes a share of the group below it. One with too little takes a share of the group
       above it.

    If it is linear, means are those of the loss l itself: the gain of mass p of a half cell is p (l - k h), and its
    cost p ((k + 1) h - l).
    """
    exp_step, inverse_growth = 1.0 if is_linear else np.exp(step), 1 / growth
    gain_up, gain_down = (step, step) if is_linear else (np.expm1(step), -np.expm1(-step))
    cost = np.maximum(p * gain_up - gain * exp_step, 0.0) * growth
    # Where there is nothing below that a group could take, as next to the lowest loss, lower halves move as well.
    supply = _MAX_SHARE_FROM_BELOW / 2 * gain_up * growth * np.append(0.0, _both_halves(p)[:-1])
    spare_gain = gain[:, 0] - np.append(0.0, cost[:-1, 1]) - supply
    moved_share = np.maximum(spare_gain, 0.0) / np.maximum(gain[:, 0], 1e-300)
    (p_low, p_high), (gain_low, gain_high), (_, cost_high) = (
        (column[:, 0] * (1 - moved_share), column[:, 1] + column[:, 0] * moved_share) for column in (p, gain, cost)
    )
    lower, upper, gains, costs = (
        *(np.append(p_low, 0.0), np.append(0.0, p_high)),
        *(np.append(gain_low, 0.0), np.append(0.0, cost_high)),
    )
    # What of the upper halves can move, if shares of the lower halves above may be taken.
    gains_below = (gain_down * lower + gains / exp_step) * inverse_growth
    allowed = gains + _MAX_SHARE_FROM_ABOVE * np.append(gains_below[1:], 0.0)
    moves = np.minimum(allowed / np.maximum(costs, 1e-300), 1.0)
    stays = np.append((1 - moves[1:]), 0.0)
    mass = lower + upper * moves * growth + np.append(p_high, 0.0) * stays
    net = gains + np.append(gain_high, 0.0) * stays - costs * moves
    # The gain, at the grid point below or above, of all mass of a group; and the share of it that is taken there.
    at_below, at_above = gain_down * mass + net / exp_step, gain_up * mass - net * exp_step
    from_above = np.maximum(-net, 0.0) / np.maximum(np.append(at_below[1:], 0.0) * inverse_growth, 1e-300)
    from_above = np.minimum(from_above, 0.5)

    def from_below(net: Float[np.ndarray, " points"]) -> Float[np.ndarray, " points"]:
        fractions = np.maximum(net, 0.0) / np.maximum(np.append(0.0, at_above[:-1]) * growth, 1e-300)
        return np.minimum(fractions, _MAX_SHARE_FROM_BELOW) * (np.append(0.0, mass[:-1]) > 0)

    # A group of which shares are taken needs less.
    remaining = 1 - np.append(from_below(net)[1:], 0.0) - np.append(0.0, from_above[:-1])
    taken_share = from_below(net * remaining)
    remaining = 1 - np.append(taken_share[1:], 0.0) - np.append(0.0, from_above[:-1])
    return (
        mass * remaining
        + from_above * np.append(mass[1:], 0.0) * inverse_growth
        + taken_share * np.append(0.0, mass[:-1]) * growth
    )


@proven("brackets#proof-of-4-several-pairs")
def dominating_masses(bounds: Sequence[GridReleases], step: float) -> GridReleases:
    """Return a pair whose profile is at least each of several: their maximum on one grid, between chords in e^eps."""
    first = min(bound.first_index for bound in bounds)
    size = max(bound.first_index + len(bound.mass) for bound in bounds) - first + 1
    profiles = []
    for bound in bounds:
        start = bound.first_index - first + 1
        p = np.pad(bound.mass, (start, size - start - len(bound.mass)))
        profiles.append(bound.infinite + profile_on_grid(p[::-1], step))
    delta, infinite = np.max(profiles, axis=0), max(bound.infinite for bound in bounds)
    delta[0] = infinite
    mass = np.maximum(masses_of_profile(delta, step)[-2::-1], 0.0)
    # A sum of positive terms has an error of at most one unit a term.
    mass = mass * (1 + _MASS_ERROR + 8 * UNIT_ROUNDOFF * size) + UNIT_ROUNDOFF * delta[-1] * 8
    return GridReleases(mass, first, max(bound.offset for bound in bounds), infinite, bounds[0].count)


# Coarser grids


@proven("sums#proof")
def coarsen(
    g: Float[np.ndarray, " points"],
    first: int,
    step: float,
    tilt: float,
    side: int,
    ratio: int = RATIO,
    *,
    is_linear: bool = False,
) -> tuple[Float[np.ndarray, " coarse_points"], int]:
    """Return tilted masses on a grid of ``ratio`` steps, spread (side 1) or contracted (side -1); and their first k.

    Both keep the mean of p/q = e^l, or, if it is linear, that of l.
    """
    padding, coarse_first = first % ratio, first // ratio
    cells = np.pad(g, (padding, -(padding + len(g)) % ratio)).reshape(-1, ratio)
    above_start = step * np.arange(ratio)
    mass, growth = np.exp(-tilt * above_start), np.exp(tilt * step * ratio)
    point_gain, cell_gain = (
        (above_start, ratio * step) if is_linear else (-np.expm1(-above_start), -np.expm1(-ratio * step))
    )
    if side > 0:
        moved = point_gain / cell_gain
        staying, moving = cells @ (mass * (1 - moved)), cells @ (mass * moved * growth)
        return np.append(staying, 0.0) + np.append(0.0, moving), coarse_first
    # Of an odd number of points none is in the middle.
    is_half = (np.arange(ratio)[:, None] > ratio / 2) == np.array([False, True])
    p, gains = cells @ (mass[:, None] * is_half), cells @ ((mass * point_gain)[:, None] * is_half)
    return contract(p, gains, ratio * step, growth, is_linear=is_linear), coarse_first
