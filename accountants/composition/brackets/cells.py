"""A privacy loss distribution on a grid: masses of half cells, from which rigorous bounds are computed.

All numbers are NumPy float64. Smooth pieces are split into parts with a monotone loss, which are cut at the grid points
of the loss. Masses under p and q are differences of tail probabilities if these are known, and otherwise integrals of
smooth functions between the cuts, exact up to rounding (docs/proofs/brackets.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np

from accountants.composition.interpolation import heaviest_atoms
from accountants.loss_intervals import LOSS_UNITS, LossIntervals, points_at_levels, smaller_and_larger
from accountants.privacy_loss import PrivacyLossDistribution, SmoothPieces, split_intervals
from dpkernels.numerics import MAX_EXPONENT, UNIT_ROUNDOFF, Real, gauss_legendre
from dpkernels.proven import proven
from dpkernels.solve import turning_points, unit_grid_dense_at_ends

_NODES, _WEIGHTS = gauss_legendre(4)
_SAMPLES = 257  # The points of a piece at which turning points of its loss are looked for, at most.
_TOTAL_SAMPLES = 1 << 16  # Those of all pieces together, about; each piece gets an equal share.
_MIN_SAMPLES = 17  # Those of one of very many pieces.
_PANELS = 256  # The panels of a piece, in addition to those that the grid makes, at most.
_TOTAL_PANELS = 1 << 14  # Those of all pieces together, about; each piece gets an equal share.
_MIN_PANELS = 8  # Those of one of very many pieces.
_MONOTONE_TOLERANCE = 1e-9  # A loss that turns by this share of 1 and of itself is not monotone.
_INSET = 1e-12  # A density may jump at a knot: the distance from it at which it is evaluated, as a share of the piece.
_INSETS_AT_END = 2.0  # A panel is at an end of its piece if it is within so many insets of it.
_CONSTANT_RTOL = 4e-15  # Relative difference up to which losses are equal; the bounds have twice this margin.
_ACCURATE_STEEPNESS = 1 / 8  # Width of a panel times steepness at which 4 nodes have a relative error of 2^-53,
_COARSE_STEEPNESS = 3.0  # and that at which they have one of 10^-4.
_MAX_PANELS = 1 << 23  # More panels than this are refused.
_ON_GRID = 1e-9  # The distance from the grid, in steps, up to which an atom is on it.
_MASS_MARGIN = 1.001  # The factor on the mass beyond the grid, for the error of its integral.
_PLACE_TOLERANCE = 1e-7  # How far, in steps, rounding may put a loss outside of its half cell.
_MAX_HALF_CELLS = 1 << 19  # More half cells than this are refused,
_MAX_INTEGRATED_EDGES = 1 << 17  # and more edges of half cells if masses are integrals, not differences of tails.
_UNSEEN_BY_TAILS = 1e-306  # More than the mass of p beyond the ends of pieces with known tails.
_MASS_ERROR = 1e-12  # A bound on the relative error of the masses of atoms and of integrals.
_SUM_ERROR = 16 * UNIT_ROUNDOFF  # A bound on the relative rounding error of the sums of other masses.
_GAIN_UNITS = 8  # Roundings of a gain, relative to its mass.
_LEVELS = 64  # The levels at which outcomes are evaluated, to choose the offset.
_LEVEL_PANELS = 32  # The panels between two levels, of all pieces.
_MIN_CROWDED_MASS = 0.2  # The mass within a step that decides the offset.
_OFFSET_ABOVE = 1e-4  # How much higher, in steps, the offset is than the mean of a group with mass in the group above,
_OFFSET_BELOW = 1e-6  # and how much lower it is otherwise.
_SAME_LOSS = 1e-12  # Losses are one loss if they differ by less than this share of the largest one.
_HEAVIEST_ATOMS = 256  # The heaviest atoms decide the offset.
_ATOMS_ON_GRID = 32  # One of the heaviest of them is put on the grid.
_MIN_ATOM = 1e-14  # Lighter atoms do not decide where the grid is: far out every smooth loss is almost constant.


class UnknownSteepnessError(ValueError):
    """A density that states no bound on how fast it changes has no bracket."""


class NoGridError(ValueError):
    """Floating point does not hold the losses on any grid."""


class TooManyPointsError(NoGridError):
    """A grid of this step has too many points."""


@dataclass(frozen=True)
class Panels:
    """Intervals inside pieces, as arrays of one length: lower ends, upper ends, and the numbers of their pieces."""

    start: np.ndarray
    end: np.ndarray
    piece: np.ndarray

    def select(self, selected: np.ndarray) -> Panels:
        return Panels(self.start[selected], self.end[selected], self.piece[selected])

    @property
    def nodes(self) -> np.ndarray:
        return self.start[:, None] + (self.end - self.start)[:, None] * _NODES

    @property
    def weights(self) -> np.ndarray:
        return (self.end - self.start)[:, None] * _WEIGHTS


@dataclass(frozen=True)
class MonotonePieces:
    """Pieces on which the loss is monotone and finite."""

    source: SmoothPieces  # The smooth pieces of which these are parts.
    number: np.ndarray  # The number of the smooth piece that contains each.
    lower: np.ndarray  # The lower ends.
    upper: np.ndarray  # The upper ends.

    def __len__(self) -> int:
        return len(self.lower)

    def p(self, x: np.ndarray, piece: np.ndarray) -> np.ndarray:
        return np.exp(self.source.log_p(x, self.number[piece]))

    def q(self, x: np.ndarray, piece: np.ndarray) -> np.ndarray:
        return np.exp(self.source.log_q(x, self.number[piece]))

    def loss(self, x: np.ndarray, piece: np.ndarray) -> np.ndarray:
        return np.asarray(self.source.loss(x, self.number[piece]))

    def clip_inside(self, x: np.ndarray, piece: np.ndarray) -> np.ndarray:
        """Return the points moved off the ends of their pieces, where densities may jump."""
        inset = _INSET * (self.upper - self.lower)[piece]
        return np.clip(x, self.lower[piece] + inset, self.upper[piece] - inset)

    def is_at_end(self, panels: Panels) -> np.ndarray:
        """Return whether panels begin or end next to an end of their piece."""
        inset = _INSETS_AT_END * _INSET * (self.upper - self.lower)[panels.piece]
        return (panels.start < self.lower[panels.piece] + inset) | (panels.end > self.upper[panels.piece] - inset)

    @property
    def end_losses(self) -> tuple[np.ndarray, np.ndarray]:
        numbers = np.arange(len(self))
        if self.intervals is not None:  # Whose losses are continuous up to their ends.
            return self.loss(self.lower, numbers), self.loss(self.upper, numbers)
        return self.loss(self.clip_inside(self.lower, numbers), numbers), self.loss(
            self.clip_inside(self.upper, numbers), numbers
        )

    @property
    def intervals(self) -> LossIntervals | None:
        return self.source.intervals

    def inverse(self, level: np.ndarray, piece: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the points of pieces with given losses, and bounds on how far their losses are off.

        Where a piece has no such loss, its nearer end is returned.
        """
        lower, upper = self.lower[piece], self.upper[piece]
        if self.source.inverse is not None:
            x = np.clip(self.source.inverse(level, self.number[piece]), lower, upper)
            return x, LOSS_UNITS * UNIT_ROUNDOFF * (1 + np.abs(level))
        numbers = np.arange(len(self))
        inner = self.clip_inside(self.lower, numbers), self.clip_inside(self.upper, numbers)
        x, error = points_at_levels(self.loss, inner, level, piece)
        return np.where(x == inner[0][piece], lower, np.where(x == inner[1][piece], upper, x)), error

    def panels(self) -> Panels:
        count = len(self)
        panel_count = int(np.clip(_TOTAL_PANELS // max(count, 1), _MIN_PANELS, _PANELS))
        fractions = np.linspace(0.0, 1.0, panel_count + 1)
        points = self.lower[:, None] * (1 - fractions) + self.upper[:, None] * fractions
        return Panels(points[:, :-1].ravel(), points[:, 1:].ravel(), np.repeat(np.arange(count), panel_count))

    def refined(self, panels: Panels, max_steepness: float) -> Panels:
        """Return at most 2^23 panels, cut evenly so that their width times steepness is at most ``max_steepness``."""
        unknown = "mechanism: no bound on how fast its density changes is known, so it has no bracket"
        if self.source.steepness is None:
            raise UnknownSteepnessError(unknown)
        width = panels.end - panels.start
        try:
            steep = self.source.steepness(panels.start, panels.end, self.number[panels.piece])
        except TypeError as error:  # Of noise that states none.
            raise UnknownSteepnessError(unknown) from error
        splits = np.maximum(np.ceil(width * steep / max_steepness), 1.0)
        if not splits.sum() <= _MAX_PANELS:
            raise TooManyPointsError(
                f"densities need {splits.sum():.3g} panels, too many for a grid; at most {_MAX_PANELS} are used"
            )
        counts = splits.astype(np.int64)
        if (counts == 1).all():
            return panels
        number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        start, ends, part = (np.repeat(column, counts) for column in (panels.start, panels.end, width / splits))
        # The last part ends exactly where the panel did.
        end = np.where(number + 1 == np.repeat(counts, counts), ends, start + (number + 1) * part)
        return Panels(start + number * part, end, np.repeat(panels.piece, counts))

    def masses(self, panels: Panels) -> tuple[np.ndarray, np.ndarray]:
        x, piece, weights = panels.nodes, panels.piece[:, None], panels.weights
        return (weights * self.p(x, piece)).sum(1), (weights * self.q(x, piece)).sum(1)


@dataclass(frozen=True)
class MonotoneLoss:
    """A privacy loss distribution as atoms and monotone pieces."""

    p: np.ndarray  # The masses of the atoms under p.
    q: np.ndarray  # The masses of the atoms under q.
    loss: np.ndarray  # The losses of the atoms, which may be infinite.
    pieces: tuple[MonotonePieces, ...]  # All other outcomes.
    unseen: float  # See ``PrivacyLossDistribution``.


def split_monotone(losses: PrivacyLossDistribution) -> MonotoneLoss:
    """Split all smooth pieces at the turning points of the loss; pieces of constant loss become atoms."""
    atoms, pieces, unknown_mass = [(losses.p, losses.q, losses.loss)], [], 0.0
    with np.errstate(all="ignore"):
        for source in losses.pieces:
            constant, monotone, mass = _split(source)
            atoms.append(constant)
            unknown_mass += mass
            pieces += [monotone] if len(monotone) else []
    p, q, loss = (np.concatenate([np.ravel(values) for values in column]) for column in zip(*atoms, strict=True))
    has_mass = (p > 0) | (q > 0)
    # Masses between levels reach further than quadrature.
    unseen = _UNSEEN_BY_TAILS if all(piece.intervals is not None for piece in losses.pieces) else losses.unseen
    return MonotoneLoss(
        p[has_mass], q[has_mass], loss[has_mass], tuple(pieces), unseen + unknown_mass if losses.pieces else 0.0
    )


def _split(source: SmoothPieces) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], MonotonePieces, float]:
    """Return (p, q, loss) of atoms, all other pieces, and mass of p that may have an infinite loss."""
    stated: SmoothPieces | LossIntervals = source if source.intervals is None else source.intervals
    lower, upper = np.asarray(stated.lower, np.float64), np.asarray(stated.upper, np.float64)
    number = np.flatnonzero(upper > lower)
    lower, upper = lower[number], upper[number]
    count = int(np.clip(_TOTAL_SAMPLES // max(len(number), 1), _MIN_SAMPLES, _SAMPLES))
    inset = _INSET * (upper - lower)
    fractions = unit_grid_dense_at_ends(count)
    x = (lower + inset)[:, None] * (1 - fractions) + (upper - inset)[:, None] * fractions
    level = np.asarray(source.loss(x, number[:, None]))
    infinite = np.all(np.isinf(level), axis=1)
    constant = infinite | (
        np.ptp(np.where(infinite[:, None], 0.0, level), axis=1) <= _CONSTANT_RTOL * (1 + np.abs(level).max(1))
    )
    p, q, error = _masses_of_pieces(MonotonePieces(source, number[constant], lower[constant], upper[constant]))
    # The mass of a short piece next to a long one is not known as well as that of an atom.
    is_infinite = infinite[constant]
    is_atom = is_infinite | (error <= _MASS_ERROR / 2 * p)
    p, unknown_mass = np.where(is_infinite, np.maximum(p - error, 0.0), p), 2 * float(error[is_infinite].sum())
    atoms = p[is_atom], q[is_atom], level[constant, len(fractions) // 2][is_atom]
    constant[constant] = is_atom
    number, lower, upper, x, level = (column[~constant] for column in (number, lower, upper, x, level))
    if source.intervals is not None:  # The loss is stated to be monotone on every piece.
        _check_monotone(level)
        return atoms, MonotonePieces(source, number, lower, upper), unknown_mass
    turn, row = turning_points(lambda v, row: np.asarray(source.loss(v, number[row])), x)
    starts, ends, rows = split_intervals(lower, upper, turn, row)
    return atoms, MonotonePieces(source, number[rows], starts, ends), unknown_mass


def _check_monotone(level: np.ndarray) -> None:
    """Raise ValueError if losses along the rows turn by more than rounding errors."""
    change = np.diff(level, axis=1)
    size = np.where(np.isfinite(level), np.abs(level), 0.0).max(1, initial=0.0)
    allowed = (_MONOTONE_TOLERANCE * (1 + size))[:, None]
    if ((change > allowed).any(1) & (change < -allowed).any(1)).any():
        raise ValueError(
            "mechanism: the loss turns between the points that its noise states, so it has no bracket; a density that "
            "is not log-concave needs turning_points"
        )


def _masses_of_pieces(pieces: MonotonePieces) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if pieces.intervals is not None:
        level = np.tile([-np.inf, np.inf], len(pieces))
        masses = pieces.intervals.measure(level, np.repeat(pieces.number, 2))
        return masses.p[::2], masses.q[::2], masses.p_error[::2]
    panels = pieces.refined(pieces.panels(), _ACCURATE_STEEPNESS) if len(pieces) else pieces.panels()
    p, q = (np.bincount(panels.piece, mass, len(pieces)) for mass in pieces.masses(panels))
    return p, q, 0 * p


# Cells


@dataclass(frozen=True)
class Cells:
    """A pair on the grid o + k h: cell j is [o + k h, o + (k + 1) h] with k = first + j."""

    first: int  # k of the first cell.
    offset: float  # o.
    p: np.ndarray  # The mass under p of the lower and the upper half of every cell, an array (cells, 2).
    gain: np.ndarray  # p - e^(o + k h) q of each half cell, between 0 and (1 - e^-h) p.
    infinite: float = 0.0  # The mass of p where q is 0.
    neglected: float = 0.0  # A bound on the mass of p, far out, that is in none of the other fields.
    mass_below: float = 0.0  # The mass of p whose loss is below the first cell, and of no other field.
    p_error: np.ndarray | float = (
        0.0  # Bounds on the errors of p and of the gains, in addition to the two numbers that follow.
    )
    gain_error: np.ndarray | float = 0.0
    displacement: np.ndarray | float = 0.0  # Bounds on how far a loss may be outside of its half cell, by rounding.
    lower: tuple[np.ndarray, np.ndarray] | None = None  # p and gains with all errors subtracted; None: computed.
    mass_error: float = _MASS_ERROR  # A bound on the relative error of all masses.
    loss_error: float | None = None  # A bound on the error of losses; None: of so many roundings of the largest one.
    tail: Cells | None = None  # Cells of ``ratio`` steps for the losses outside of the window of the others.
    ratio: int = 1


@dataclass(frozen=True)
class _Edges:
    """The ends of half cells, increasing: of ``ratio`` steps a cell, then of one step in the window, then again."""

    step: float
    offset: float
    ratio: int  # Odd.
    positions: np.ndarray  # Ends in half steps from the offset; the number of half cells of each part is even.
    window: tuple[int, int]  # The half cells of the window.

    @classmethod
    def from_range(
        cls, low: float, high: float, step: float, offset: float, window: tuple[float, float] | None, ratio: int
    ) -> _Edges:
        first, last = np.floor((low - offset) / step + _ON_GRID), np.floor((high - offset) / step + _ON_GRID) + 1
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
    def level(self) -> np.ndarray:
        return self.offset + self.positions * (self.step / 2)

    @property
    def start(self) -> np.ndarray:
        """Return the losses at the lower ends of the cells of all half cells."""
        width = np.full(len(self.positions) - 1, 2.0 * self.ratio)
        width[slice(*self.window)] = 2.0
        return self.offset + np.floor(self.positions[:-1] / width) * width * (self.step / 2)

    def split(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the values of the half cells of the window, and of those outside, with zeros where the window is."""
        start, stop = self.window
        half, gap = np.zeros(int(self.positions[start] % 2)), (stop - start) // self.ratio
        inner = np.concatenate([half, values[start:stop], np.zeros(int(self.positions[stop] % 2))])
        outer = np.concatenate([values[:start], np.zeros(gap), values[stop:]])
        return inner.reshape(-1, 2), outer.reshape(-1, 2)


class _HalfCells(NamedTuple):
    """Masses, gains and bounds of their errors in all half cells; how far losses may be outside; masses beyond."""

    p: np.ndarray
    gain: np.ndarray
    p_error: np.ndarray
    gain_error: np.ndarray
    displacement: np.ndarray
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
    ends = [np.concatenate([loss, *(end for pieces in losses.pieces for end in pieces.end_losses)])]
    low, high = (float(end(ends[0])) if len(ends[0]) else 0.0 for end in (np.min, np.max))
    low, high = max(low, reach[0]), min(max(high, reach[0]), reach[1])
    edges = _Edges.from_range(low, max(low, high), step, offset, window, ratio)
    if len(edges.positions) > _MAX_INTEGRATED_EDGES and any(pieces.intervals is None for pieces in losses.pieces):
        raise TooManyPointsError(f"losses over {high - low:.6g} are too many to integrate at a step of {step:.6g}")
    atoms, loss_error = _atom_contribution(p, loss, edges)
    parts = [atoms]
    with np.errstate(all="ignore"):
        parts += [
            _panel_contribution(pieces, edges) if pieces.intervals is None else _interval_contribution(pieces, edges)
            for pieces in losses.pieces
        ]
    total = _HalfCells(*(cast(Any, sum(column)) for column in zip(*parts, strict=True)))
    displacement = np.max([part.displacement for part in parts], axis=0)
    # Errors are those of each part alone: atoms have none.
    lower: list[Any] = [sum(column) for column in zip(*(less_errors(*part[:4]) for part in parts), strict=True)]
    integrated = len(losses.loss) > 0 or any(pieces.intervals is None for pieces in losses.pieces)
    size = 1 + np.abs(edges.level[[0, -1]]).max()
    common = max((pieces.intervals.mass_error for pieces in losses.pieces if pieces.intervals), default=0.0)
    mass_error = max(_MASS_ERROR, LOSS_UNITS * UNIT_ROUNDOFF * size) if integrated else _SUM_ERROR + common
    columns = [edges.split(column) for column in (*cast(Any, total[:4]), displacement, *lower)]

    def cells(part_index: int, first: float) -> Cells:
        p, gain, p_error, gain_error, displacement, *lower = (column[part_index] for column in columns)
        return Cells(
            int(first), offset, p, gain, p_error=p_error, gain_error=gain_error, displacement=displacement,
            lower=(lower[0], lower[1]), mass_error=mass_error, loss_error=loss_error,
        )  # fmt: skip

    return replace(
        cells(0, edges.positions[edges.window[0]] // 2),
        infinite=float(losses.p[losses.loss == np.inf].sum()),
        neglected=total.mass_above * _MASS_MARGIN + losses.unseen,
        mass_below=total.mass_below * _MASS_MARGIN,
        tail=None if window is None else cells(1, edges.positions[0] // (2 * ratio)),
        ratio=ratio,
    )


def less_errors(p: np.ndarray, gain: np.ndarray, p_error: Real, gain_error: Real) -> tuple[np.ndarray, np.ndarray]:
    """Return masses and gains with errors subtracted; nothing of a half cell whose gain is lost in its error."""
    reduced_p = np.maximum(p - p_error, 0.0)
    gain = gain * (reduced_p / np.maximum(p, 1e-300)) - gain_error
    return np.where(gain < 0, 0.0, reduced_p), np.maximum(gain, 0.0)


def _atom_contribution(p: np.ndarray, loss: np.ndarray, edges: _Edges) -> tuple[_HalfCells, float]:
    """Return what atoms contribute, and a bound on the error of their losses; atoms next to the grid are put on it."""
    level = edges.level
    index = np.clip(np.searchsorted(level, loss), 1, max(len(level) - 1, 1))
    nearest = np.where(loss - level[index - 1] < level[index] - loss, level[index - 1], level[index])
    on_grid = np.abs(loss - nearest) <= _ON_GRID * edges.step
    moved = float(np.abs(loss - nearest)[on_grid].max(initial=0.0))
    loss = np.where(on_grid, nearest, loss)
    half_cell = np.searchsorted(level, loss, side="right") - 1
    is_inside = (half_cell >= 0) & (half_cell < len(level) - 1)
    count = len(level) - 1
    start = edges.start[half_cell[is_inside]]
    mass = np.bincount(half_cell[is_inside], p[is_inside], count)
    gain = np.bincount(half_cell[is_inside], -p[is_inside] * np.expm1(start - loss[is_inside]), count)
    zeros = np.zeros(count)
    rounding = LOSS_UNITS * UNIT_ROUNDOFF * (1 + float(np.abs(loss).max(initial=0.0)))
    error = rounding + 1.001 * moved if len(loss) else 0.0
    return _HalfCells(
        mass, gain, zeros, zeros, zeros, float(p[half_cell < 0].sum()), float(p[half_cell >= count].sum())
    ), error


@proven("brackets#proof-of-1-quadrature")
def _interval_contribution(pieces: MonotonePieces, edges: _Edges) -> _HalfCells:
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
    masses = cast(LossIntervals, pieces.intervals).measure(cuts, pieces.number[piece])
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
    overflows = (float(p_all[j] + p_error_all[j]) for j in (0, -1))
    return _HalfCells(p, gain, p_error, gain_error, displacement[1:-1], *overflows)


@proven("brackets#proof-of-1-quadrature")
def _panel_contribution(pieces: MonotonePieces, edges: _Edges) -> _HalfCells:
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

    def halves(panels: Panels) -> np.ndarray:
        middle = pieces.clip_inside((panels.start + panels.end) / 2, panels.piece)
        return np.searchsorted(level, pieces.loss(middle, panels.piece), side="right") - 1

    half_cell = halves(panels)
    inner_panels, outer_panels = (
        (panels.select(where), max_steepness)
        for where, max_steepness in (
            ((half_cell >= 0) & (half_cell < count), _ACCURATE_STEEPNESS),
            ((half_cell < 0) | (half_cell >= count), _COARSE_STEEPNESS),
        )
    )
    coarse_panels = pieces.refined(*outer_panels)
    coarse_cells, coarse_mass = halves(coarse_panels), pieces.masses(coarse_panels)[0]
    panels = pieces.refined(*inner_panels)
    half_cell = np.clip(halves(panels), 0, count - 1)
    x, piece = panels.nodes, panels.piece[:, None]
    mass = panels.weights * pieces.p(x, piece)
    start, width = edges.start[half_cell], np.diff(level)[half_cell]
    excess = pieces.loss(x, piece) - start[:, None]
    clipped = np.clip(excess, 0.0, 2 * width[:, None])
    is_misplaced = ~(np.abs(excess - clipped) <= _PLACE_TOLERANCE * edges.step + 2 * displacement[half_cell, None]).all(
        1
    )
    if (is_misplaced & ~pieces.is_at_end(panels)).any():
        raise ValueError("the loss turns where it was not seen to; there is no bracket of this pair")
    # Next to the end of a piece levels are not looked for. A loss that is steep there may pass some of them: the mass
    # then is not known to be in any of their half cells, and may be in each.
    misplaced_mass = np.zeros(count + 2)
    for panel, total in zip(np.flatnonzero(is_misplaced), mass[is_misplaced].sum(1), strict=True):
        points = np.concatenate([x[panel], [panels.start[panel], panels.end[panel]]])
        passed_losses = pieces.loss(points, piece[panel])
        lowest, highest = np.searchsorted(level, [passed_losses.min(), passed_losses.max()])
        misplaced_mass[lowest : highest + 1] += total
    p, gain = mass.sum(1), -(mass * np.expm1(-clipped)).sum(1)
    p, gain = (np.bincount(half_cell, column, count) for column in (p, gain))
    p_error = misplaced_mass[1:-1]
    gain_error = p * displacement + p_error * -np.expm1(-2 * np.diff(level))
    mass_below, mass_above = (float(coarse_mass[where].sum()) for where in (coarse_cells < 0, coarse_cells >= count))
    return _HalfCells(
        p, gain, p_error, gain_error, displacement, mass_below + misplaced_mass[0], mass_above + misplaced_mass[-1]
    )


# Estimates, which choose the grid


def rough_losses(losses: MonotoneLoss) -> PrivacyLossDistribution:
    """Return outcomes that represent the loss roughly, far out in its tails too: estimates choose the grid by them."""
    columns = [(losses.p, losses.q, losses.loss)]
    with np.errstate(all="ignore"):
        for pieces in losses.pieces:
            panels = pieces.panels()
            if pieces.intervals is None:
                p, q = pieces.masses(panels)
            else:
                p, q = _masses_of_panels(pieces, panels)
            middle = pieces.loss((panels.start + panels.end) / 2, panels.piece)
            has_mass = (p > 0) & (q > 0)
            loss = np.where(has_mass, np.log(np.where(has_mass, p, 1.0) / np.where(has_mass, q, 1.0)), middle)
            columns.append((p, q, np.where(np.isfinite(loss), loss, middle)))
    p, q, loss = (np.concatenate(column) for column in zip(*columns, strict=True))
    has_mass = p > 0
    return PrivacyLossDistribution(p[has_mass], q[has_mass], loss[has_mass], 0 * p[has_mass])


def _masses_of_panels(pieces: MonotonePieces, panels: Panels) -> tuple[np.ndarray, np.ndarray]:
    panel_count = len(panels.start) // len(pieces)
    ends = np.concatenate([panels.start.reshape(-1, panel_count), panels.end.reshape(-1, panel_count)[:, -1:]], 1)
    number = np.arange(len(pieces))[:, None]
    level = pieces.loss(ends, number)
    falls = level[:, :1] > level[:, -1:]
    level = np.maximum.accumulate(np.where(falls, level[:, ::-1], level), 1)
    level[:, 0], level[:, -1] = -np.inf, np.inf
    measured = cast(LossIntervals, pieces.intervals).measure(level.ravel(), np.repeat(pieces.number, panel_count + 1))
    masses = (np.append(mass, 0.0).reshape(-1, panel_count + 1)[:, :-1] for mass in (measured.p, measured.q))
    return tuple(np.where(falls, mass[:, ::-1], mass).ravel() for mass in masses)  # type: ignore[return-value]


def two_heaviest_atoms(losses: MonotoneLoss) -> tuple[float, float, float]:
    """Return (loss of the heaviest finite atom, distance and mass of the second one); 0 for what is absent."""
    is_atom = np.isfinite(losses.loss) & (losses.p > _MIN_ATOM)
    if not is_atom.any():
        return 0.0, 0.0, 0.0
    p, q, loss = (column[is_atom] for column in (losses.p, losses.q, losses.loss))
    heaviest, (distance,), (mass,) = heaviest_atoms(PrivacyLossDistribution(p, q, loss, 0 * p), p)
    return float(heaviest), abs(float(distance)) if mass > 0 else 0.0, float(mass)


def different_atoms(losses: MonotoneLoss) -> tuple[np.ndarray, np.ndarray]:
    """Return the finite losses of the heaviest atoms, heaviest first, and their masses; equal losses are one."""
    is_atom = np.isfinite(losses.loss) & (losses.p > 0)
    scale = float(np.abs(losses.loss[is_atom]).max(initial=1e-300))
    _, first, number = np.unique(
        np.round(losses.loss[is_atom] / (scale * _SAME_LOSS)), return_index=True, return_inverse=True
    )
    p = np.bincount(number, losses.p[is_atom], len(first))
    heaviest = np.argsort(-p)[:_HEAVIEST_ATOMS]
    return losses.loss[is_atom][first[heaviest]], p[heaviest]


def best_offset(losses: MonotoneLoss, step: float, rough: PrivacyLossDistribution | None = None) -> float:
    """Return an offset that puts an atom on the grid, or else the mean loss of a group of losses.

    On samples most of the mass is near the lowest loss. If it were off the grid, it would count as one step lower. The
    group is that of the lowest losses, or of much mass within a step, by rough losses. A lone atom counts as the grid
    point below it, so that of the heaviest atoms, that one is on the grid for which others are least above grid points.
    """
    if not losses.pieces or (np.isfinite(losses.loss) & (losses.p > 0)).any():
        loss, p = different_atoms(losses)
        position = (loss - loss[:_ATOMS_ON_GRID, None]) / step
        above_grid = ((position - np.floor(position + _ON_GRID)) * p).sum(1)
        above_grid[1:] += _OFFSET_ABOVE  # The heaviest one, if that hardly matters.
        return float(loss[above_grid.argmin()]) if len(loss) else 0.0
    lowest = min(float(np.min(pieces.end_losses)) for pieces in losses.pieces)
    start = max(lowest, -np.inf if rough is None else _crowded_loss(rough, step))
    levels = start + 3 * step * np.linspace(0.0, 1.0, _LEVELS + 1)
    with np.errstate(all="ignore"):
        p, q = np.sum([_masses_between_levels(pieces, levels) for pieces in losses.pieces], 0)
        mean = np.log(p / q)
        excess = levels[1:] - step / 2 - mean
    is_known = np.isfinite(excess)
    if not (is_known & (excess >= 0)).any():
        return float(mean[is_known][-1]) if is_known.any() else lowest
    after = int(np.argmax(is_known & (excess >= 0)))
    offset = mean[after]
    if after > 0 and is_known[after - 1]:
        fraction = excess[after] / (excess[after] - excess[after - 1])
        offset += fraction * (mean[after - 1] - mean[after])
    # A mean slightly below the grid point is mended by a share of the next group, if there is one.
    margin = _OFFSET_ABOVE if p[-1] - p[after] > 10 * _OFFSET_ABOVE * p[after] else -_OFFSET_BELOW
    return float(offset + margin * step)


def _crowded_loss(rough: PrivacyLossDistribution, step: float) -> float:
    """Return a loss below the step that has the most mass, if that is much; else -inf."""
    is_finite = np.isfinite(rough.loss)
    cell_index, number = np.unique(np.floor(rough.loss[is_finite] / step), return_inverse=True)
    mass = np.bincount(number, rough.p[is_finite])
    return float((cell_index[mass.argmax()] - 1) * step) if len(mass) and mass.max() > _MIN_CROWDED_MASS else -np.inf


def _masses_between_levels(pieces: MonotonePieces, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the masses with a loss between the first level and each of the others."""
    low = np.minimum(*pieces.end_losses)
    numbers = np.flatnonzero(low <= levels[-1])
    if not len(numbers):
        return np.zeros(len(levels) - 1), np.zeros(len(levels) - 1)
    if pieces.intervals is not None:
        cuts = np.tile(levels, len(numbers))
        masses = pieces.intervals.measure(cuts, np.repeat(pieces.number[numbers], len(levels)))
        sums = [np.append(mass, 0.0).reshape(-1, len(levels))[:, :-1].sum(0) for mass in (masses.p, masses.q)]
    else:
        points = pieces.inverse(np.tile(levels, len(numbers)), np.repeat(numbers, len(levels)))[0].reshape(
            -1, len(levels)
        )
        start, end = np.minimum(points[:, :-1], points[:, 1:]), np.maximum(points[:, :-1], points[:, 1:])
        panel_count = max(_LEVEL_PANELS // len(numbers), 1)
        fractions = np.arange(panel_count + 1) / panel_count
        ends = start[..., None] * (1 - fractions) + end[..., None] * fractions
        panels = Panels(
            ends[..., :-1].ravel(), ends[..., 1:].ravel(), np.repeat(numbers, (len(levels) - 1) * panel_count)
        )
        sums = [mass.reshape(len(numbers), len(levels) - 1, panel_count).sum((0, 2)) for mass in pieces.masses(panels)]
    return tuple(np.cumsum(sums, 1))
