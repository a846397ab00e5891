"""A privacy loss distribution on a grid: masses of half cells, from which rigorous bounds are computed.

All numbers are NumPy float64. Smooth pieces are split into parts with a monotone loss, which can be cut where the loss
is on the grid. Masses under p and q are integrals of smooth functions between such points, exact up to rounding
(docs/proofs/brackets.md).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from accountants.composition.grid import heaviest_atoms
from accountants.privacy_loss import PrivacyLossDistribution, SmoothPieces, split_at
from dpkernels.numerics import gauss_legendre
from dpkernels.solve import bisect, shares_with_ends, turning_points

_NODES, _WEIGHTS = gauss_legendre(4)
# Points at which turning points of the loss are looked for: of one piece, of all pieces together, of one of very many.
_SAMPLES, _ALL_SAMPLES, _FEWEST_SAMPLES = 257, 1 << 16, 17
# The same three numbers for panels, in addition to those that the grid makes.
_PANELS, _ALL_PANELS, _FEWEST_PANELS = 256, 1 << 14, 8
_INVERSE_STEPS = 56  # Bisections for a point with a given loss.
_INSET = 1e-12  # A density may jump at a knot: the distance from it at which it is evaluated, as a share of the piece.
_CONSTANT = 4e-15  # Relative difference up to which losses are equal; the bounds have twice this margin.
# Panels times steepness at which 4 nodes are exact to 2^-53, and to 10^-4; and the most panels.
_EXACT, _ROUGH, _MOST_PANELS = 1 / 8, 3.0, 1 << 25
_ON_GRID = 1e-9  # The distance from the grid, in steps, up to which an atom is on it.
# The factor on mass that is left out, for its error, and how far outside its cell a loss may be due to rounding.
_MARGIN, _OUTSIDE = 1.001, 1e-7
_MOST = 1 << 25  # The most half cells of a piece.
_LEVELS = 128  # The levels at which the lowest outcomes are evaluated.
_HEAVY = 1e-14  # Lighter atoms do not decide where the grid is: far out every smooth loss is almost constant.


class UnknownSteepnessError(ValueError):
    """A density that states no bound on how fast it changes has no bracket."""


@dataclass(frozen=True)
class Panels:
    """Intervals inside pieces, as arrays of one length: lower ends, upper ends, and the numbers of their pieces."""

    start: np.ndarray
    end: np.ndarray
    piece: np.ndarray

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
    left: np.ndarray  # The lower ends.
    right: np.ndarray  # The upper ends.

    def __len__(self) -> int:
        return len(self.left)

    def p(self, x: np.ndarray, piece: np.ndarray) -> np.ndarray:
        return np.exp(self.source.log_p(x, self.number[piece]))

    def q(self, x: np.ndarray, piece: np.ndarray) -> np.ndarray:
        return np.exp(self.source.log_q(x, self.number[piece]))

    def loss(self, x: np.ndarray, piece: np.ndarray) -> np.ndarray:
        return self.source.loss(x, self.number[piece])

    def inside(self, x: np.ndarray, piece: np.ndarray) -> np.ndarray:
        """Return the points moved off the ends of their pieces, where densities may jump."""
        inset = _INSET * (self.right - self.left)[piece]
        return np.clip(x, self.left[piece] + inset, self.right[piece] - inset)

    @property
    def end_losses(self) -> tuple[np.ndarray, np.ndarray]:
        every = np.arange(len(self))
        return self.loss(self.inside(self.left, every), every), self.loss(self.inside(self.right, every), every)

    def inverse(self, level: np.ndarray, piece: np.ndarray) -> np.ndarray:
        """Return the points of pieces with given losses; the nearer end where a piece has no such loss."""
        left, right = self.left[piece], self.right[piece]
        if self.source.inverse is not None:
            return np.clip(self.source.inverse(level, self.number[piece]), left, right)
        low, high = (end[piece] for end in self.end_losses)
        rises = high > low
        start, end = (self.inside(side, piece) for side in (left, right))
        found = sum(bisect(lambda x: (self.loss(x, piece) < level) == rises, start, end, _INVERSE_STEPS)) / 2
        beyond = np.where(rises, level >= high, level <= high)
        return np.where(beyond, right, np.where(np.where(rises, level <= low, level >= low), left, found))

    def panels(self) -> Panels:
        count = len(self)
        many = int(np.clip(_ALL_PANELS // max(count, 1), _FEWEST_PANELS, _PANELS))
        shares = np.linspace(0.0, 1.0, many + 1)
        points = self.left[:, None] * (1 - shares) + self.right[:, None] * shares
        return Panels(points[:, :-1].ravel(), points[:, 1:].ravel(), np.repeat(np.arange(count), many))

    def refined(self, panels: Panels, still: float) -> Panels:
        """Return at most 2^25 panels, cut evenly so that their width times steepness is at most ``still``."""
        if self.source.steepness is None:
            raise UnknownSteepnessError(
                "mechanism: no bound on how fast its density changes is known, so it has no bracket"
            )
        width = panels.end - panels.start
        steep = self.source.steepness(panels.start, panels.end, self.number[panels.piece])
        parts = np.maximum(np.ceil(width * steep / still), 1.0)
        if not parts.sum() <= _MOST_PANELS:
            raise ValueError(
                f"densities need {parts.sum():.3g} panels, too many for a grid; at most {_MOST_PANELS} are used"
            )
        many = parts.astype(np.int64)
        if (many == 1).all():
            return panels
        number = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
        start, ends, share = (np.repeat(each, many) for each in (panels.start, panels.end, width / parts))
        # The last part ends exactly where the panel did.
        end = np.where(number + 1 == np.repeat(many, many), ends, start + (number + 1) * share)
        return Panels(start + number * share, end, np.repeat(panels.piece, many))

    def masses(self, panels: Panels) -> tuple[np.ndarray, np.ndarray]:
        x, piece, weights = panels.nodes, panels.piece[:, None], panels.weights
        return (weights * self.p(x, piece)).sum(1), (weights * self.q(x, piece)).sum(1)

    def without_ends(self, negligible: float) -> tuple[MonotonePieces, float]:
        """Return the pieces without outer panels of ``negligible`` mass, and a bound on the mass under p left out."""
        panels = self.refined(self.panels(), _ROUGH)
        mass = self.masses(panels)[0] * _MARGIN
        first = np.flatnonzero(np.diff(panels.piece, prepend=-1))
        kept = np.zeros(len(mass), bool)
        # Each piece is summed by itself: a small mass would be lost to rounding next to the mass of others.
        for start, end in zip(first, np.append(first[1:], len(mass)), strict=True):
            low = int((np.cumsum(mass[start:end]) <= negligible).sum())
            high = end - start - int((np.cumsum(mass[start:end][::-1]) <= negligible).sum())
            middle = (end - start) // 2
            kept[start + min(low, middle) : start + max(high, middle + 1)] = True
        left, right = np.full(len(self), np.inf), np.full(len(self), -np.inf)
        np.minimum.at(left, panels.piece[kept], panels.start[kept])
        np.maximum.at(right, panels.piece[kept], panels.end[kept])
        return dataclasses.replace(self, left=left, right=right), float(mass[~kept].sum())


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
    atoms, pieces = [(losses.p, losses.q, losses.loss)], []
    with np.errstate(all="ignore"):
        for source in losses.pieces:
            found, monotone = _split(source)
            atoms.append(found)
            pieces += [monotone] if len(monotone) else []
    p, q, loss = (np.concatenate([np.ravel(one) for one in column]) for column in zip(*atoms, strict=True))
    some = (p > 0) | (q > 0)
    return MonotoneLoss(p[some], q[some], loss[some], tuple(pieces), losses.unseen)


def _split(source: SmoothPieces) -> tuple[tuple[Any, Any, Any], MonotonePieces]:
    left, right = np.asarray(source.left, np.float64), np.asarray(source.right, np.float64)
    number = np.flatnonzero(right > left)
    left, right = left[number], right[number]
    count = int(np.clip(_ALL_SAMPLES // max(len(number), 1), _FEWEST_SAMPLES, _SAMPLES))
    inset = _INSET * (right - left)
    shares = shares_with_ends(count)
    x = (left + inset)[:, None] * (1 - shares) + (right - inset)[:, None] * shares
    level = source.loss(x, number[:, None])
    infinite = np.isinf(level).all(1)
    constant = infinite | (
        np.ptp(np.where(infinite[:, None], 0.0, level), axis=1) <= _CONSTANT * (1 + np.abs(level).max(1))
    )
    whole = MonotonePieces(source, number[constant], left[constant], right[constant])
    panels = whole.refined(whole.panels(), _EXACT) if len(whole) else whole.panels()
    masses = (np.bincount(panels.piece, mass, len(whole)) for mass in whole.masses(panels))
    atoms = (*masses, level[constant, len(shares) // 2])
    number, left, right, x, level = (each[~constant] for each in (number, left, right, x, level))
    turn, row = turning_points(lambda v, row: source.loss(v, number[row]), x)
    starts, ends, rows = split_at(left, right, turn, row)
    return atoms, MonotonePieces(source, number[rows], starts, ends)


@dataclass(frozen=True)
class Cells:
    """A pair on the grid o + k h: cell j is [o + k h, o + (k + 1) h] with k = first + j."""

    first: int  # k of the first cell.
    offset: float  # o.
    p: np.ndarray  # The mass under p of the lower and the upper half of every cell, an array (cells, 2).
    gain: np.ndarray  # p - e^(o + k h) q of each half cell, between 0 and (1 - e^-h) p.
    infinite: float  # The mass of p where q is 0.
    beyond: float  # A bound on the mass of p, far out, that is in none of the other fields.


def cells_on_grid(whole: MonotoneLoss, step: float, *, negligible: float = 0.0, offset: float = 0.0) -> Cells:
    """Return the cells of a loss; ends of pieces with a negligible mass of p are left out."""
    finite = np.isfinite(whole.loss)
    count = sum(map(len, whole.pieces))
    kept = [pieces.without_ends(negligible / (2 * max(1, count))) for pieces in whole.pieces]
    atoms = _of_atoms(whole.p[finite], whole.loss[finite] - offset, step)
    parts = [atoms, *(_of_pieces(pieces, step, offset) for pieces, _ in kept)]
    half, p, gain = (np.concatenate(column) for column in zip(*parts, strict=True))
    first = int(half.min()) // 2 if len(half) else 0
    size = int(half.max()) // 2 - first + 1 if len(half) else 1
    p, gain = (np.bincount(half - 2 * first, mass, 2 * size).reshape(size, 2) for mass in (p, gain))
    gain = np.clip(gain, 0.0, -np.expm1(-step) * p)
    infinite, beyond = float(whole.p[whole.loss == np.inf].sum()), sum(left_out for _, left_out in kept)
    return Cells(first, offset, p, gain, infinite, beyond + whole.unseen)


def two_heaviest_atoms(whole: MonotoneLoss) -> tuple[float, float, float]:
    """Return (loss of the heaviest finite atom, distance and mass of the second one); 0 for what is absent."""
    some = np.isfinite(whole.loss) & (whole.p > _HEAVY)
    if not some.any():
        return 0.0, 0.0, 0.0
    p, q, loss = (each[some] for each in (whole.p, whole.q, whole.loss))
    heaviest, (distance,), (mass,) = heaviest_atoms(PrivacyLossDistribution(p, q, loss, 0 * p), p)
    return float(heaviest), abs(float(distance)) if mass > 0 else 0.0, float(mass)


def best_offset(whole: MonotoneLoss, step: float) -> float:
    """Return an offset that puts the heaviest atom on the grid, or else the mean loss of a group of the lowest losses.

    On samples most of the mass is near the lowest loss. If it were off the grid, it would count as one step lower.
    """
    if not whole.pieces or (np.isfinite(whole.loss) & (whole.p > 0)).any():
        return two_heaviest_atoms(whole)[0]
    lowest = min(float(np.min(pieces.end_losses)) for pieces in whole.pieces)
    levels = lowest + 2 * step * np.linspace(0.0, 1.0, _LEVELS + 1)
    p, q = np.sum([_up_to(pieces, levels) for pieces in whole.pieces], 0)
    mean = np.log(p / q)
    return float(mean[np.argmax(levels[1:] - step / 2 >= mean)])


def _up_to(pieces: MonotonePieces, levels: np.ndarray) -> np.ndarray:
    low = np.minimum(*pieces.end_losses)
    some = np.flatnonzero(low <= levels[-1])
    points = pieces.inverse(np.tile(levels, len(some)), np.repeat(some, len(levels))).reshape(-1, len(levels))
    start, end = np.minimum(points[:, :-1], points[:, 1:]), np.maximum(points[:, :-1], points[:, 1:])
    panels = Panels(start.ravel(), end.ravel(), np.repeat(some, len(levels) - 1))
    sums = [mass.reshape(-1, len(levels) - 1).sum(0) for mass in pieces.masses(panels)]
    return np.cumsum(sums, 1) + 1e-300


def _of_atoms(p: np.ndarray, loss: np.ndarray, step: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (number of the half cell, mass, gain) of atoms."""
    level, near = loss / step, np.round(loss / step)
    level = np.where(np.abs(level - near) < _ON_GRID, near, level)
    return np.floor(2 * level).astype(np.int64), p, -p * np.expm1((np.floor(level) - level) * step)


def _of_pieces(pieces: MonotonePieces, step: float, offset: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the same for pieces, on panels cut where the loss is on the grid or half-way, and evenly between."""
    ends = (np.stack(pieces.end_losses) - offset) / (step / 2)
    if not np.ptp(ends, axis=0).max() <= _MOST:
        width = np.ptp(ends, axis=0).max() * step / 2
        raise ValueError(f"losses over {width:.6g} are too many for a grid of step {step:.6g}")
    first = np.floor(ends.min(0)) + 1
    many = np.maximum(np.ceil(ends.max(0)) - first, 0.0).astype(np.int64)
    piece = np.repeat(np.arange(len(pieces)), many)
    level = np.repeat(first, many) + np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
    panels = pieces.panels()
    cuts = np.concatenate([panels.start, pieces.inverse(offset + level * (step / 2), piece)])
    start, end, piece = split_at(pieces.left, pieces.right, cuts, np.concatenate([panels.piece, piece]))
    some = end > start  # Cuts may coincide with the ends of pieces, where densities may jump.
    panels = pieces.refined(Panels(start[some], end[some], piece[some]), _EXACT)
    middle = pieces.inside((panels.start + panels.end) / 2, panels.piece)
    half = np.floor((pieces.loss(middle, panels.piece) - offset) / (step / 2)).astype(np.int64)
    x, piece = panels.nodes, panels.piece[:, None]
    mass = panels.weights * pieces.p(x, piece)
    over = pieces.loss(x, piece) - (offset + half // 2 * step)[:, None]
    inside = np.clip(over, 0.0, step)
    if not (np.abs(over - inside) <= _OUTSIDE * (step + 1.0)).all():
        raise ValueError("the loss turns where it was not seen to; there is no bracket of this pair")
    return half, mass.sum(1), -(mass * np.expm1(-inside)).sum(1)
