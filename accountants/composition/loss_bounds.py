"""Masses on a grid of the privacy loss that bound a pair's profile, from above or from below.

Above: connect the dots (Doroshenko 2022): an outcome of loss in [k h, (k+1) h] is split between both ends so that its
masses under p and under q are kept. Below: outcomes are gathered into groups, each of a loss of at least k h. Mass left
out of a pair's cells counts as infinite loss in the upper bound, and not at all in the lower. Proofs:
docs/proofs/brackets.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from accountants.composition.loss_cells import Cells

# Relative error allowed for a mass at least; the roundings of 2^-53 of a loss and of the log of a density that are
# allowed for, relative to 1 and the largest loss.
_MASS, _ROUNDINGS = 1e-12, 64 * 2.0**-53
# By how much of a step the grids of the two bounds are moved up, and down, beside: for atoms that were put on the grid.
_UP, _DOWN = 1.001e-9, 1e-6
# Rounds in which the groups of the lower bound agree.
_ROUNDS = 20
_UNIT = 2.0**-53


@dataclass(frozen=True)
class Masses:
    """Masses of p at the losses offset + (first + j) h and at infinite loss: the bound of one pair, composed n times.

    Attributes:
        mass: p, not negative; with ``infinite`` it need not sum to 1.
        first: k of mass[0].
        offset: moves the whole grid.
        infinite: mass of infinite loss.
        count: n.
    """

    mass: np.ndarray
    first: int
    offset: float
    infinite: float
    count: int


def above(cells: Cells, step: float, count: int) -> Masses:
    """A pair whose profile is at least that of the cells."""
    p, error = cells.p.sum(1), _error(cells, step)
    up = np.minimum(cells.gain.sum(1) / -np.expm1(-step), p)
    mass = np.append(p - up, 0.0) + np.append(0.0, up)
    wider = 1 + max(_MASS, error)
    # Rounding of a loss moves mass one way or the other: all losses are raised by as much.
    offset = cells.offset + _UP * step + error
    return Masses(mass * wider, cells.first, offset, cells.infinite * wider + cells.beyond, count)


def _error(cells: Cells, step: float) -> float:
    """By how much losses are wrong at most, and masses relatively."""
    ends = cells.first * step, (cells.first + len(cells.p)) * step
    return _ROUNDINGS * (1 + abs(cells.offset) + max(map(abs, ends)))


def below(cells: Cells, step: float, count: int) -> Masses:
    """A pair whose profile is at most that of the cells: groups around every grid point, of its loss at least.

    Mass p of a half cell at k h that stays brings its gain p - e^(k h) q to the group at k; what joins the group at
    k + 1 costs that group e^((k + 1) h) q - p = (e^h - 1) p - e^h gain. Of every cell the upper half goes first.
    A cell moves up what the levels of both of its groups allow. Groups are nearly in balance after a few rounds: the
    mean of e^(-l), which is what a composition's lower tail depends on first, is then kept.
    """
    gain, cost = cells.gain, np.maximum(cells.p * np.expm1(step) - cells.gain * np.exp(step), 0.0)
    moved, most = np.zeros_like(cells.p), gain.sum(1)
    for _ in range(_ROUNDS):
        gains, costs = np.append(most - (moved * gain).sum(1), 0.0), np.append(0.0, (moved * cost).sum(1))
        level = (gains + costs) / 2
        level[0] = 0.0  # Nothing moves up there.
        moved = np.minimum(_shares(gain, most - level[:-1]), _shares(cost, level[1:]))
    error = _error(cells, step)
    narrower = max(1 - max(_MASS, error), 0.0)
    p = cells.p * narrower
    mass = np.append((p * (1 - moved)).sum(1), 0.0) + np.append(0.0, (p * moved).sum(1))
    offset = cells.offset - _DOWN * step - error
    return Masses(mass, cells.first, offset, cells.infinite * narrower, count)


def _shares(price: np.ndarray, budget: np.ndarray) -> np.ndarray:
    """Which shares of the upper and the lower half the budget pays for, the upper one first."""
    left = np.stack([budget - price[:, 1], budget], 1)
    return np.clip(left / np.maximum(price, 1e-300), 0.0, 1.0)


def highest(several: Sequence[Masses], step: float) -> Masses:
    """A pair whose profile is at least that of every one: on the highest of their grids the maximum, and chords.

    These are of x = e^eps. A profile's slope in x is minus Q(loss > eps), so masses under q are differences of slopes.
    """
    first = min(part.first for part in several)
    last = max(part.first + len(part.mass) for part in several)
    offset = max(part.offset for part in several)
    loss = offset + np.arange(first - 1, last + 1) * step
    profiles = [_profile(part, part.first - first + 1, loss) for part in several]
    delta, infinite = np.max(profiles, axis=0), max(part.infinite for part in several)
    delta[-1] = infinite
    x = np.exp(loss)
    slopes = np.maximum(-np.diff(delta) / np.diff(x), 0.0)
    q = np.maximum(slopes[:-1] - slopes[1:], 0.0)
    mass = np.append(q * x[1:-1], slopes[-1] * x[-1])
    # Every sum of so many positive terms is off by a unit a term.
    mass = mass * (1 + _MASS + 8 * _UNIT * len(loss)) + _UNIT * delta[0] * 8
    return Masses(mass, first, offset, infinite, several[0].count)


def _profile(part: Masses, start: int, loss: np.ndarray) -> np.ndarray:
    """delta at losses of the grid, of masses from number ``start`` on; of positive terms alone.

    delta_k = delta_(k+1) + (1 - e^-h) sum over j > k of p_j e^(l_(k+1) - l_j).
    """
    p = np.zeros(len(loss))
    p[start : start + len(part.mass)] = part.mass
    steps = (np.cumsum((p * np.exp(-loss))[::-1])[::-1] * np.exp(loss))[1:] * -np.expm1(-np.diff(loss))
    return part.infinite + np.append(np.cumsum(steps[::-1])[::-1], 0.0)
