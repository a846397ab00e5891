"""A privacy loss distribution on a grid: masses of half cells, from which rigorous bounds are computed.

Monotone pieces (``monotone``) are cut at the grid points of the loss. Masses under p and q are differences of tail
probabilities if these are known, and otherwise integrals of smooth functions between the cuts, exact up to rounding
(docs/proofs/brackets.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np

from accountants.composition.brackets.monotone import (
    ACCURATE_STEEPNESS,
    MASS_ERROR,
    MonotoneLoss,
    MonotonePieces,
    Panels,
    TooManyPointsError,
)
from accountants.loss_intervals import LOSS_UNITS, LossIntervals, smaller_and_larger
from accountants.privacy_loss import split_intervals
from dpkernels.numerics import MAX_EXPONENT, UNIT_ROUNDOFF, Real
from dpkernels.proven import proven
from dpkernels.shapes import Float, Int, Num

_COARSE_STEEPNESS = 3.0  # The width of a panel times steepness at which 4 nodes have a relative error of 10^-4.
ON_GRID = 1e-9  # The distance from the grid, in steps, up to which an atom is on it.
_MASS_MARGIN = 1.001  # The factor on the mass beyond the grid, for the error of its integral.
_PLACE_TOLERANCE = 1e-7  # How far, in steps, rounding may put a loss outside of its half cell.
_MAX_HALF_CELLS = 1 << 19  # More half cells than this are refused,
_MAX_INTEGRATED_EDGES = 1 << 17  # and more edges of half cells if masses are integrals, not differences of tails.
_SUM_ERROR = 16 * UNIT_ROUNDOFF  # A bound on the relative rounding error of the sums of other masses.
_GAIN_UNITS = 8  # Roundings of a gain, relative to its mass.


@dataclass(frozen=True)
class Cells:
    """A pair on the grid o + k h: cell j is [o + k h, o + (k + 1) h] with k = first + j."""

    first_index: int  # k of the first cell.
    offset: float  # o.
    p: Float[np.ndarray, "cells 2"]  # The mass under p of the lower and the upper half of every cell.
    gain: Float[np.ndarray, "cells 2"]  # p - e^(o + k h) q of each half cell, between 0 and (1 - e^-h) p.
    infinite: float = 0.0  # The mass of p where q is 0.
    neglected: float = 0.0  # A bound on the mass of p, far out, that is in none of the other fields.
    mass_below: float = 0.0  # The mass of p whose loss is below the first cell, and of no other field.
    # Bounds on the errors of p and of the gains, in addition to those of all masses and losses.
    p_error: Float[np.ndarray, "cells 2"] | float = 0.0
    gain_error: Float[np.ndarray, "cells 2"] | float = 0.0
    displacement: Float[np.ndarray, "cells 2"] | float = (
        0.0  # Bounds on how far a loss may be outside of its half cell, by rounding.
    )
    lower: tuple[Float[np.ndarray, "cells 2"], Float[np.ndarray, "cells 2"]] | None = (
        None  # p and gains with all errors subtracted; None: computed.
    )
    mass_error: float = MASS_ERROR  # A bound on the relative error of all masses.
    loss_error: float | None = None  # A bound on the error of losses; None: of so many roundings of the largest one.
    tail: Cells | None = None  # Cells of ``ratio`` steps for the losses outside of the window of the others.
    ratio: int = 1


@dataclass(frozen=True)
class _Edges:
    """The ends of half cells, increasing: of ``ratio`` steps a cell, then of one step in the window, then again."""

    step: float
    offset: float
    ratio: int  # Odd.
    # Ends in half steps from the offset; the number of half cells of each part is even.
    positions: Num[np.ndarray, " edges"]
    window: tuple[int, int]  # The half cells of the window.

    @classmethod
    def from_range(
        cls, low: float, high: float, step: float, offset: float, window: tuple[float, float] | None, ratio: int
    ) -> _Edges:
        first, last = np.floor((low - offset) / step + ON_GRID), np.floor((high - offset) / step + ON_GRID) + 1
        a, b = first, last
        if window is not None:
            first, last = ratio * np.floor(first / ratio), ratio * np.ceil(last / ratio)
            # In the middle of coarse cells, so that no group of a grid point is cut.
            a, b = (ratio * (np.floor((end - offset) / (step * ratio)) + 0.5) for end in window)
            a, b = np.clip([a, max(b, a + ratio)], first, last)
        if not 2 * (b - a + (last - first) / ratio) <= _MAX_HALF_CELLS:
            raise TooManyPointsError(f"losses over {high - low:.6g} are too many for a grid of step {step:.6g}")
        ends = [np.arange(2 * first, 2 * a, ratio), np.arange(2 * a, 2 * b), np.arange(2 * b, 2 * last + 1, ratio)]
        return cls(step, offset, ratio, np.concatenate(ends), (len(ends[0]), len(ends[0]) + len(ends[1])))

    @property
    def level(self) -> Float[np.ndarray, " edges"]:
        return self.offset + self.positions * (self.step / 2)

    @property
    def start(self) -> Float[np.ndarray, " half_cells"]:
        """Return the losses at the lower ends of the cells of all half cells."""
        width = np.full(len(self.positions) - 1, 2.0 * self.ratio)
        width[slice(*self.window)] = 2.0
        return self.offset + np.floor(self.positions[:-1] / width) * width * (self.step / 2)

    def split(
        self, values: Num[np.ndarray, " half_cells"]
    ) -> tuple[Num[np.ndarray, "cells 2"], Num[np.ndarray, "tail_cells 2"]]:
        """Return values of half cells in rows of cells: in the window, and outside, with zeros for the window."""
        start, stop = self.window
        padding, gap = np.zeros(int(self.positions[start] % 2)), (stop - start) // self.ratio
        inner = np.concatenate([padding, values[start:stop], np.zeros(int(self.positions[stop] % 2))])
        outer = np.concatenate([values[:start], np.zeros(gap), values[stop:]])
        return inner.reshape(-1, 2), outer.reshape(-1, 2)


class _HalfCells(NamedTuple):
    """The fields of ``Cells`` of the same names for all half cells, before the two of each cell are paired."""

    p: Num[np.ndarray, " half_cells"]
    gain: Num[np.ndarray, " half_cells"]
    p_error: Num[np.ndarray, " half_cells"]
    gain_error: Num[np.ndarray, " half_cells"]
    displacement: Num[np.ndarray, " half_cells"]
    mass_below: float = 0.0
    mass_above: float = 0.0


@proven("brackets#proof-of-5-margins")
def cells_on_grid(
    losses: MonotoneLoss,
    step: float,
    *,
    offset: float = 0.0,
    reach: tuple[float, float] = (-np.inf, np.inf),
    window: tuple[float, float] | None = None,
    ratio: int = 1,
) -> Cells:
    """Return the cells of the losses within a reach, of one step inside a window and of ``ratio`` steps outside."""
    finite = np.isfinite(losses.loss)
    p, loss = losses.p[finite], losses.loss[finite]
    ends = np.concatenate([loss, *(end for pieces in losses.pieces for end in pieces.end_losses)])
    low, high = (float(ends.min()), float(ends.max())) if len(ends) else (0.0, 0.0)
    low, high = max(low, reach[0]), min(max(high, reach[0]), reach[1])
    edges = _Edges.from_range(low, max(low, high), step, offset, window, ratio)
    if len(edges.positions) > _MAX_INTEGRATED_EDGES and any(pieces.intervals is None for pieces in losses.pieces):
        raise TooManyPointsError(f"losses over {high - low:.6g} are too many to integrate at a step of {step:.6g}")
    atoms, loss_error = _cells_of_atoms(p, loss, edges)
    half_cells = [atoms]
    with np.errstate(all="ignore"):
        half_cells += [
            _cells_of_panels(pieces, edges) if pieces.intervals is None else _cells_of_intervals(pieces, edges)
            for pieces in losses.pieces
        ]
    total = _HalfCells(*(cast(Any, sum(column)) for column in zip(*half_cells, strict=True)))
    displacement = np.max([entry.displacement for entry in half_cells], axis=0)
    # Errors are those of each part alone: atoms have none.
    lower: list[Any] = [
        sum(column) for column in zip(*(subtract_errors(*entry[:4]) for entry in half_cells), strict=True)
    ]
    integrated = len(losses.loss) > 0 or any(pieces.intervals is None for pieces in losses.pieces)
    size = 1 + np.abs(edges.level[[0, -1]]).max()
    common = max((pieces.intervals.mass_error for pieces in losses.pieces if pieces.intervals), default=0.0)
    mass_error = max(MASS_ERROR, LOSS_UNITS * UNIT_ROUNDOFF * size) if integrated else _SUM_ERROR + common
    split_columns = [edges.split(column) for column in (*cast(Any, total[:4]), displacement, *lower)]

    def build_cells(part_index: int, first: float) -> Cells:
        p, gain, p_error, gain_error, displacement, *lower = (column[part_index] for column in split_columns)
        return Cells(
            int(first), offset, p, gain, p_error=p_error, gain_error=gain_error, displacement=displacement,
            lower=(lower[0], lower[1]), mass_error=mass_error, loss_error=loss_error,
        )  # fmt: skip

    return replace(
        build_cells(0, edges.positions[edges.window[0]] // 2),
        infinite=float(losses.p[losses.loss == np.inf].sum()),
        neglected=total.mass_above * _MASS_MARGIN + losses.unseen,
        mass_below=total.mass_below * _MASS_MARGIN,
        tail=None if window is None else build_cells(1, edges.positions[0] // (2 * ratio)),
        ratio=ratio,
    )


def subtract_errors(
    p: Num[np.ndarray, " half_cells"], gain: Num[np.ndarray, " half_cells"], p_error: Real, gain_error: Real
) -> tuple[Float[np.ndarray, " half_cells"], Float[np.ndarray, " half_cells"]]:
    """Return masses and gains with errors subtracted; nothing of a half cell whose gain is lost in its error."""
    reduced_p = np.maximum(p - p_error, 0.0)
    gain = gain * (reduced_p / np.maximum(p, 1e-300)) - gain_error
    return np.where(gain < 0, 0.0, reduced_p), np.maximum(gain, 0.0)


def _cells_of_atoms(
    p: Float[np.ndarray, " atoms"], loss: Float[np.ndarray, " atoms"], edges: _Edges
) -> tuple[_HalfCells, float]:
    """Return what atoms contribute, and a bound on the error of their losses; atoms next to the grid are put on it."""
    level = edges.level
    index = np.clip(np.searchsorted(level, loss), 1, max(len(level) - 1, 1))
    nearest = np.where(loss - level[index - 1] < level[index] - loss, level[index - 1], level[index])
    on_grid = np.abs(loss - nearest) <= ON_GRID * edges.step
    moved = float(np.abs(loss - nearest)[on_grid].max(initial=0.0))
    loss = np.where(on_grid, nearest, loss)
    cell = np.searchsorted(level, loss, side="right") - 1
    is_inside = (cell >= 0) & (cell < len(level) - 1)
    count = len(level) - 1
    start = edges.start[cell[is_inside]]
    mass = np.bincount(cell[is_inside], p[is_inside], count)
    gain = np.bincount(cell[is_inside], -p[is_inside] * np.expm1(start - loss[is_inside]), count)
    zeros = np.zeros(count)
    rounding = LOSS_UNITS * UNIT_ROUNDOFF * (1 + float(np.abs(loss).max(initial=0.0)))
    error = rounding + 1.001 * moved if len(loss) else 0.0
    return _HalfCells(mass, gain, zeros, zeros, zeros, float(p[cell < 0].sum()), float(p[cell >= count].sum())), error


@proven("brackets#proof-of-1-quadrature")
def _cells_of_intervals(pieces: MonotonePieces, edges: _Edges) -> _HalfCells:
    """Return what pieces with known tails contribute: masses between the points where the loss is at the edges."""
    level, count = edges.level, len(edges.positions) - 1
    low, high = smaller_and_larger(*pieces.end_losses)
    first, last = np.searchsorted(level, low, side="right"), np.searchsorted(level, high, side="left")
    last = np.maximum(first, last)
    # The levels of each piece: -inf for its lowest loss, all edges between, and inf for its highest loss.
    counts = last - first + 2
    piece = np.repeat(np.arange(len(pieces)), counts)
    edge_index = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) - 1 + np.repeat(first, counts)
    is_low, is_high = edge_index == first[piece] - 1, edge_index == last[piece]
    cuts = np.where(is_low, -np.inf, np.where(is_high, np.inf, level[np.clip(edge_index, 0, count)]))
    masses = cast(LossIntervals, pieces.intervals).measure(cuts, pieces.source_index[piece])
    is_interval = np.flatnonzero(~is_high[:-1])
    half_cell = edge_index[:-1][is_interval]
    p, q, difference, p_error, q_error, difference_error, loss_error = (
        column[is_interval] for column in vars(masses).values()
    )
    start = np.concatenate([[0.0], edges.start, [0.0]])[half_cell + 1]
    # Where p and q are close the difference of both is known better than either.
    is_close = np.abs(start) < 0.5
    growth = np.where(is_close, np.expm1(start), np.exp(np.minimum(start, MAX_EXPONENT)))
    gain = np.where(is_close, difference, p) - growth * q
    gain_error = np.where(is_close, difference_error, p_error) + np.abs(growth) * q_error
    # Of the start, of this difference, and of groups.
    gain_error += _GAIN_UNITS * UNIT_ROUNDOFF * (1 + np.abs(start)) * p
    # Where e^l would overflow, a gain is only known to be at most the mass.
    overflows = start > MAX_EXPONENT
    gain, gain_error = np.where(overflows, p, gain), np.where(overflows, p, gain_error)
    displacement = np.zeros(count + 2)
    np.maximum.at(displacement, half_cell + 1, loss_error)
    columns = [np.bincount(half_cell + 1, column, count + 2) for column in (p, gain, p_error, gain_error)]
    p_all, p_error_all = columns[0], columns[2]
    p, gain, p_error, gain_error = (column[1:-1] for column in columns)
    mass_below, mass_above = (float(p_all[j] + p_error_all[j]) for j in (0, -1))
    return _HalfCells(p, gain, p_error, gain_error, displacement[1:-1], mass_below, mass_above)


@proven("brackets#proof-of-1-quadrature")
def _cells_of_panels(pieces: MonotonePieces, edges: _Edges) -> _HalfCells:
    """Return what other pieces contribute, on panels cut where the loss is at the edges, and evenly between."""
    level, count = edges.level, len(edges.positions) - 1
    low, high = smaller_and_larger(*pieces.end_losses)
    first, last = np.searchsorted(level, low, side="right"), np.searchsorted(level, high, side="left")
    counts = np.maximum(last - first, 0)
    piece = np.repeat(np.arange(len(pieces)), counts)
    edge_index = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
    panels = pieces.panels()
    points, loss_error = pieces.inverse(level[edge_index], piece)
    cuts = np.concatenate([panels.start, points])
    # Losses, which are at most this large, are rounded, and so are the points where they are on the grid.
    displacement = LOSS_UNITS * UNIT_ROUNDOFF * (1 + np.maximum(np.abs(level[1:]), np.abs(level[:-1])))
    for halves_beside in (edge_index - 1, edge_index):
        is_valid = (halves_beside >= 0) & (halves_beside < count)
        np.maximum.at(displacement, halves_beside[is_valid], loss_error[is_valid])
    start, end, piece = split_intervals(pieces.lower, pieces.upper, cuts, np.concatenate([panels.piece, piece]))
    is_valid = end > start  # Cuts may coincide with the ends of pieces, where densities may jump.
    panels = Panels(start[is_valid], end[is_valid], piece[is_valid])

    def half_cell_index(panels: Panels) -> Int[np.ndarray, " panels"]:
        middle = pieces.move_off_ends((panels.start + panels.end) / 2, panels.piece)
        return np.searchsorted(level, pieces.loss(middle, panels.piece), side="right") - 1

    half_cell = half_cell_index(panels)
    inner_panels, outer_panels = (
        (panels.select(where), max_steepness)
        for where, max_steepness in (
            ((half_cell >= 0) & (half_cell < count), ACCURATE_STEEPNESS),
            ((half_cell < 0) | (half_cell >= count), _COARSE_STEEPNESS),
        )
    )
    coarse_panels = pieces.refined(*outer_panels)
    coarse_cells, coarse_mass = half_cell_index(coarse_panels), pieces.masses(coarse_panels)[0]
    panels = pieces.refined(*inner_panels)
    half_cell = np.clip(half_cell_index(panels), 0, count - 1)
    x, piece = panels.nodes, panels.piece[:, None]
    mass = panels.weights * pieces.p(x, piece)
    start, width = edges.start[half_cell], np.diff(level)[half_cell]
    excess = pieces.loss(x, piece) - start[:, None]
    clipped = np.clip(excess, 0.0, 2 * width[:, None])
    is_astray = ~(np.abs(excess - clipped) <= _PLACE_TOLERANCE * edges.step + 2 * displacement[half_cell, None]).all(1)
    if (is_astray & ~pieces.is_at_end(panels)).any():
        raise ValueError("the loss turns where it was not seen to; there is no bracket of this pair")
    # Next to the end of a piece levels are not looked for. A loss that is steep there may pass some of them: the mass
    # then is not known to be in any of their half cells, and may be in each.
    stray = np.zeros(count + 2)
    for panel, total in zip(np.flatnonzero(is_astray), mass[is_astray].sum(1), strict=True):
        points = np.concatenate([x[panel], [panels.start[panel], panels.end[panel]]])
        passed_losses = pieces.loss(points, piece[panel])
        lowest, highest = np.searchsorted(level, [passed_losses.min(), passed_losses.max()])
        stray[lowest : highest + 1] += total
    p, gain = mass.sum(1), -(mass * np.expm1(-clipped)).sum(1)
    p, gain = (np.bincount(half_cell, column, count) for column in (p, gain))
    p_error = stray[1:-1]
    gain_error = p * displacement + p_error * -np.expm1(-2 * np.diff(level))
    mass_below, mass_above = (float(coarse_mass[where].sum()) for where in (coarse_cells < 0, coarse_cells >= count))
    return _HalfCells(p, gain, p_error, gain_error, displacement, mass_below + stray[0], mass_above + stray[-1])
