"""Pieces of a privacy loss distribution on which the loss is monotone: they can be cut where the loss is on a grid.

All numbers are NumPy float64. Proof: docs/proofs/brackets.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from accountants.loss_intervals import LOSS_UNITS, LossIntervals, points_at_levels
from accountants.privacy_loss import PrivacyLossDistribution, SmoothPieces, split_intervals
from dpkernels.numerics import UNIT_ROUNDOFF, gauss_legendre
from dpkernels.solve import turning_points, unit_grid_dense_at_ends

MASS_ERROR = 1e-12  # A bound on the relative error of the masses of atoms and of integrals.
ACCURATE_STEEPNESS = 1 / 8  # Width of a panel times steepness at which 4 nodes have a relative error of 2^-53.
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
_MAX_PANELS = 1 << 23  # More panels than this are refused.
_UNSEEN_BY_TAILS = 1e-306  # More than the mass of p beyond the ends of pieces with known tails.


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
    source_index: np.ndarray  # The number of the smooth piece that contains each.
    lower: np.ndarray  # The lower ends.
    upper: np.ndarray  # The upper ends.

    def __len__(self) -> int:
        return len(self.lower)

    def p(self, x: np.ndarray, piece: np.ndarray) -> np.ndarray:
        return np.exp(self.source.log_p(x, self.source_index[piece]))

    def q(self, x: np.ndarray, piece: np.ndarray) -> np.ndarray:
        return np.exp(self.source.log_q(x, self.source_index[piece]))

    def loss(self, x: np.ndarray, piece: np.ndarray) -> np.ndarray:
        return np.asarray(self.source.loss(x, self.source_index[piece]))

    def move_off_ends(self, x: np.ndarray, piece: np.ndarray) -> np.ndarray:
        """Return the points moved off the ends of their pieces, where densities may jump."""
        inset = _INSET * (self.upper - self.lower)[piece]
        return np.clip(x, self.lower[piece] + inset, self.upper[piece] - inset)

    def is_at_end(self, panels: Panels) -> np.ndarray:
        """Return whether panels begin or end next to an end of their piece."""
        inset = _INSETS_AT_END * _INSET * (self.upper - self.lower)[panels.piece]
        return (panels.start < self.lower[panels.piece] + inset) | (panels.end > self.upper[panels.piece] - inset)

    @property
    def end_losses(self) -> tuple[np.ndarray, np.ndarray]:
        index = np.arange(len(self))
        if self.intervals is not None:  # Whose losses are continuous up to their ends.
            return self.loss(self.lower, index), self.loss(self.upper, index)
        lower, upper = (self.move_off_ends(ends, index) for ends in (self.lower, self.upper))
        return self.loss(lower, index), self.loss(upper, index)

    @property
    def intervals(self) -> LossIntervals | None:
        return self.source.intervals

    def inverse(self, level: np.ndarray, piece: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the points of pieces with given losses, and bounds on how far their losses are off.

        Where a piece has no such loss, its nearer end is returned.
        """
        lower, upper = self.lower[piece], self.upper[piece]
        if self.source.inverse is not None:
            x = np.clip(self.source.inverse(level, self.source_index[piece]), lower, upper)
            return x, LOSS_UNITS * UNIT_ROUNDOFF * (1 + np.abs(level))
        numbers = np.arange(len(self))
        inner = self.move_off_ends(self.lower, numbers), self.move_off_ends(self.upper, numbers)
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
            steep = self.source.steepness(panels.start, panels.end, self.source_index[panels.piece])
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
    end_source: SmoothPieces | LossIntervals = source if source.intervals is None else source.intervals
    lower, upper = np.asarray(end_source.lower, np.float64), np.asarray(end_source.upper, np.float64)
    source_index = np.flatnonzero(upper > lower)
    lower, upper = lower[source_index], upper[source_index]
    count = int(np.clip(_TOTAL_SAMPLES // max(len(source_index), 1), _MIN_SAMPLES, _SAMPLES))
    inset = _INSET * (upper - lower)
    fractions = unit_grid_dense_at_ends(count)
    x = (lower + inset)[:, None] * (1 - fractions) + (upper - inset)[:, None] * fractions
    loss = np.asarray(source.loss(x, source_index[:, None]))
    infinite = np.all(np.isinf(loss), axis=1)
    constant = infinite | (
        np.ptp(np.where(infinite[:, None], 0.0, loss), axis=1) <= _CONSTANT_RTOL * (1 + np.abs(loss).max(1))
    )
    p, q, error = _masses_of_pieces(MonotonePieces(source, source_index[constant], lower[constant], upper[constant]))
    # The mass of a short piece next to a long one is not known as well as that of an atom.
    is_infinite = infinite[constant]
    is_atom = is_infinite | (error <= MASS_ERROR / 2 * p)
    p, unknown_mass = np.where(is_infinite, np.maximum(p - error, 0.0), p), 2 * float(error[is_infinite].sum())
    atoms = p[is_atom], q[is_atom], loss[constant, len(fractions) // 2][is_atom]
    constant[constant] = is_atom
    source_index, lower, upper, x, loss = (column[~constant] for column in (source_index, lower, upper, x, loss))
    if source.intervals is not None:  # The loss is stated to be monotone on every piece.
        _check_monotone(loss)
        return atoms, MonotonePieces(source, source_index, lower, upper), unknown_mass
    turn, row = turning_points(lambda v, row: np.asarray(source.loss(v, source_index[row])), x)
    starts, ends, rows = split_intervals(lower, upper, turn, row)
    return atoms, MonotonePieces(source, source_index[rows], starts, ends), unknown_mass


def _check_monotone(loss: np.ndarray) -> None:
    """Raise ValueError if losses along the rows turn by more than rounding errors."""
    change = np.diff(loss, axis=1)
    size = np.where(np.isfinite(loss), np.abs(loss), 0.0).max(1, initial=0.0)
    allowed = (_MONOTONE_TOLERANCE * (1 + size))[:, None]
    if ((change > allowed).any(1) & (change < -allowed).any(1)).any():
        raise ValueError(
            "mechanism: the loss turns between the points that its noise states, so it has no bracket; a density that "
            "is not log-concave needs turning_points"
        )


def _masses_of_pieces(pieces: MonotonePieces) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if pieces.intervals is not None:
        level = np.tile([-np.inf, np.inf], len(pieces))
        masses = pieces.intervals.measure(level, np.repeat(pieces.source_index, 2))
        return masses.p[::2], masses.q[::2], masses.p_error[::2]
    panels = pieces.refined(pieces.panels(), ACCURATE_STEEPNESS) if len(pieces) else pieces.panels()
    p, q = (np.bincount(panels.piece, mass, len(pieces)) for mass in pieces.masses(panels))
    return p, q, 0 * p
