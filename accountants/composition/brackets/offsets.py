"""The place of the grid: an offset that puts atoms, or the means of much mass, on it. These are estimates."""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np

from accountants.composition.brackets.cells import ON_GRID
from accountants.composition.brackets.monotone import MonotoneLoss, MonotonePieces, Panels
from accountants.composition.interpolation import heaviest_atoms
from accountants.loss_intervals import LossIntervals
from accountants.privacy_loss import PrivacyLossDistribution

_LEVELS = 64  # The levels at which outcomes are evaluated, to choose the offset.
_LEVEL_PANELS = 32  # The panels between two levels, of all pieces.
_MIN_CROWDED_MASS = 0.2  # The mass within a step that decides the offset.
_OFFSET_ABOVE = 1e-4  # How much higher, in steps, the offset is than the mean of a group with mass in the group above,
_OFFSET_BELOW = 1e-6  # and how much lower it is otherwise.
_SAME_LOSS = 1e-12  # Losses are one loss if they differ by less than this share of the largest one.
_HEAVIEST_ATOMS = 256  # The heaviest atoms decide the offset.
_ATOMS_ON_GRID = 32  # One of the heaviest of them is put on the grid.
_MIN_ATOM = 1e-14  # Lighter atoms do not decide where the grid is: far out every smooth loss is almost constant.


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
    measured = cast(LossIntervals, pieces.intervals).measure(
        level.ravel(), np.repeat(pieces.source_index, panel_count + 1)
    )
    masses = (np.append(mass, 0.0).reshape(-1, panel_count + 1)[:, :-1] for mass in (measured.p, measured.q))
    return tuple(np.where(falls, mass[:, ::-1], mass).ravel() for mass in masses)  # type: ignore[return-value]


class TwoAtoms(NamedTuple):
    """The two heaviest finite atoms of a loss; 0 for what is absent."""

    loss: float  # The loss of the heaviest one.
    gap: float  # The distance of the second one.
    second_mass: float


def two_heaviest_atoms(losses: MonotoneLoss) -> TwoAtoms:
    """Return the two heaviest finite atoms; those up to ``_MIN_ATOM`` count as absent."""
    is_atom = np.isfinite(losses.loss) & (losses.p > _MIN_ATOM)
    if not is_atom.any():
        return TwoAtoms(0.0, 0.0, 0.0)
    p, q, loss = (column[is_atom] for column in (losses.p, losses.q, losses.loss))
    heaviest, (distance,), (mass,) = heaviest_atoms(PrivacyLossDistribution(p, q, loss, 0 * p), p)
    return TwoAtoms(float(heaviest), abs(float(distance)) if mass > 0 else 0.0, float(mass))


def distinct_atoms(losses: MonotoneLoss) -> tuple[np.ndarray, np.ndarray]:
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

    A loss off the grid may count as the grid point below it, so the grid should go through the heaviest losses.
    With atoms, the grid goes through that one of the heaviest for which the mean distance of all atoms above their grid
    points is least. Without, it goes through the mean of a group: of the losses of a step with much mass, by rough
    losses, or else of the lowest losses, near which most of the mass is on samples.
    """
    if not losses.pieces or (np.isfinite(losses.loss) & (losses.p > 0)).any():
        loss, p = distinct_atoms(losses)
        position = (loss - loss[:_ATOMS_ON_GRID, None]) / step
        mean_excess = ((position - np.floor(position + ON_GRID)) * p).sum(1)
        mean_excess[1:] += _OFFSET_ABOVE  # The heaviest one, if that hardly matters.
        return float(loss[mean_excess.argmin()]) if len(loss) else 0.0
    lowest = min(float(np.min(pieces.end_losses)) for pieces in losses.pieces)
    start = max(lowest, -np.inf if rough is None else _crowded_loss(rough, step))
    levels = start + 3 * step * np.linspace(0.0, 1.0, _LEVELS + 1)
    with np.errstate(all="ignore"):
        p, q = np.sum([_masses_between_levels(pieces, levels) for pieces in losses.pieces], 0)
        mean = np.log(p / q)
        excess = levels[1:] - step / 2 - mean
    is_finite = np.isfinite(excess)
    if not (is_finite & (excess >= 0)).any():
        return float(mean[is_finite][-1]) if is_finite.any() else lowest
    after = int(np.argmax(is_finite & (excess >= 0)))
    offset = mean[after]
    if after > 0 and is_finite[after - 1]:
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
    index = np.flatnonzero(low <= levels[-1])
    if not len(index):
        return np.zeros(len(levels) - 1), np.zeros(len(levels) - 1)
    if pieces.intervals is not None:
        cuts = np.tile(levels, len(index))
        masses = pieces.intervals.measure(cuts, np.repeat(pieces.source_index[index], len(levels)))
        sums = [np.append(mass, 0.0).reshape(-1, len(levels))[:, :-1].sum(0) for mass in (masses.p, masses.q)]
    else:
        points = pieces.inverse(np.tile(levels, len(index)), np.repeat(index, len(levels)))[0].reshape(-1, len(levels))
        start, end = np.minimum(points[:, :-1], points[:, 1:]), np.maximum(points[:, :-1], points[:, 1:])
        count = max(_LEVEL_PANELS // len(index), 1)
        fractions = np.arange(count + 1) / count
        ends = start[..., None] * (1 - fractions) + end[..., None] * fractions
        panels = Panels(ends[..., :-1].ravel(), ends[..., 1:].ravel(), np.repeat(index, (len(levels) - 1) * count))
        sums = [mass.reshape(len(index), len(levels) - 1, count).sum((0, 2)) for mass in pieces.masses(panels)]
    return tuple(np.cumsum(sums, 1))
