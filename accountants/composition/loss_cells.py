"""A pair's spectrum gathered on a grid of the loss: masses of half cells, which are all that its bounds need.

NumPy in float64. Every outcome of a half cell counts as one. Their masses under p and q are integrals of smooth
functions between points where the loss is on the grid, exact to rounding (docs/proofs/brackets.md).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from accountants.pairs.runs import EXACT, ROUGH, Run, Spectrum, refined
from dpkernels.numerics import Real, RealArray, gauss_legendre

_NODES, _WEIGHTS = gauss_legendre(4)
# Panels of a run, beside those that the grid makes; an atom this near to the grid, in steps, is on it; how far from
# its ends a run is looked at, where a density may jump.
_PANELS, _ON_GRID, _INSET = 256, 1e-9, 1e-12
# What is left out is known to a thousandth; how far outside its cell a loss may be, for rounding.
_MARGIN, _OUTSIDE = 1.001, 1e-7
_MOST = 1 << 25  # half cells of a run
_LEVELS = 128  # at which the lowest outcomes are looked at


@dataclass(frozen=True)
class Cells:
    """A pair on the grid o + k h: cell j is [o + k h, o + (k + 1) h] with k = first + j.

    Attributes:
        first: k of the first cell.
        offset: o.
        p: mass under p of every cell's lower and upper half, an array (cells, 2).
        gain: p - e^(o + k h) q of the same, between 0 and (1 - e^-h) p.
        infinite: mass of p where q is 0.
        beyond: bound on the mass of p, far out, that is left out of all of these.
    """

    first: int
    offset: float
    p: np.ndarray
    gain: np.ndarray
    infinite: float
    beyond: float


def cells_on_grid(whole: Spectrum, step: float, *, negligible: float = 0.0, offset: float = 0.0) -> Cells:
    """The cells of a spectrum; ends of runs of so little mass of p are left out."""
    finite = np.isfinite(whole.loss)
    kept = [_without_ends(run, negligible / (2 * max(1, len(whole.runs)))) for run in whole.runs]
    atoms = _of_atoms(whole.p[finite], whole.loss[finite] - offset, step)
    parts = [atoms, *(_of_run(run, step, offset) for run, _ in kept)]
    half, p, gain = (np.concatenate(column) for column in zip(*parts, strict=True))
    first = int(half.min()) // 2 if len(half) else 0
    count = int(half.max()) // 2 - first + 1 if len(half) else 1
    p, gain = (np.bincount(half - 2 * first, mass, 2 * count).reshape(count, 2) for mass in (p, gain))
    gain = np.clip(gain, 0.0, -np.expm1(-step) * p)
    infinite, beyond = float(whole.p[whole.loss == np.inf].sum()), sum(left_out for _, left_out in kept)
    return Cells(first, offset, p, gain, infinite, beyond + whole.unseen)


def heavy_atoms(whole: Spectrum) -> list[tuple[float, float]]:
    """(mass, loss) of the two heaviest atoms of different finite loss, or of what there is."""
    some = np.isfinite(whole.loss) & (whole.p > 0)
    p, loss = whole.p[some], whole.loss[some]
    found: list[tuple[float, float]] = []
    while len(p) and len(found) < 2:
        at = p.argmax()
        found.append((float(p[at]), float(loss[at])))
        other = np.abs(loss - loss[at]) > _ON_GRID * (1 + np.abs(loss[at]))
        p, loss = p[other], loss[other]
    return found


def best_offset(whole: Spectrum, step: float) -> float:
    """An offset at which the heaviest atom is on the grid, or else the mean loss of a group of the lowest outcomes.

    On samples most of the mass is near the lowest loss: were it off the grid it would count as if a step lower.
    """
    atoms = heavy_atoms(whole)
    if atoms or not whole.runs:
        return atoms[0][1] if atoms else 0.0
    lowest = min(float(_ends(run).min()) for run in whole.runs)
    levels = lowest + 2 * step * np.linspace(0.0, 1.0, _LEVELS + 1)
    p, q = np.sum([_up_to(run, levels) for run in whole.runs], 0)
    mean = np.log(p / q)
    return float(mean[np.argmax(levels[1:] - step / 2 >= mean)])


def _up_to(run: Run, levels: np.ndarray) -> np.ndarray:
    """Masses of p and of q of losses up to every level but the first."""
    points = np.clip(run.inverse(np.clip(levels, *np.sort(_ends(run)))), run.left, run.right)
    width = np.diff(points)[:, None]
    x = points[:-1, None] + width * _NODES
    return np.abs(np.cumsum([(width * _WEIGHTS * density(x)).sum(1) for density in (run.p, run.q)], 1)) + 1e-300


def _of_atoms(p: np.ndarray, loss: np.ndarray, step: float) -> tuple[RealArray, RealArray, RealArray]:
    """(number of the half cell, mass, gain)."""
    level, near = loss / step, np.round(loss / step)
    level = np.where(np.abs(level - near) < _ON_GRID, near, level)
    return np.floor(2 * level).astype(np.int64), p, -p * np.expm1((np.floor(level) - level) * step)


def _of_run(run: Run, step: float, offset: float) -> tuple[Real, Real, Real]:
    """The same between points of a run: where its loss is on the grid or half-way, and evenly where it hardly moves."""
    ends = (_ends(run) - offset) / (step / 2)
    if not np.ptp(ends) <= _MOST:
        raise ValueError(f"losses over {np.ptp(_ends(run)):.6g} are too many for a grid of step {step:.6g}")
    on_grid = run.inverse(offset + np.arange(np.floor(ends.min()) + 1, np.ceil(ends.max())) * (step / 2))
    points = refined(np.union1d(np.clip(on_grid, run.left, run.right), _panels(run)), run.steep, EXACT)
    width = np.diff(points)
    half = np.floor((run.loss(_inner(run, points[:-1] + width / 2)) - offset) / (step / 2)).astype(np.int64)
    x = points[:-1, None] + width[:, None] * _NODES
    mass = width[:, None] * _WEIGHTS * run.p(x)
    over = _within(run.loss(x) - (offset + half // 2 * step)[:, None], step)
    return half, mass.sum(1), -(mass * np.expm1(-over)).sum(1)


def _within(over: np.ndarray, step: float) -> np.ndarray:
    """By how much losses are above their cells' lower ends; what is outside but for rounding is refused.

    Raises:
        ValueError: a loss is in another cell than the middle of its panel.
    """
    inside = np.clip(over, 0.0, step)
    if not (np.abs(over - inside) <= _OUTSIDE * (step + 1.0)).all():
        raise ValueError("the loss turns where it was not seen to; there is no bracket of this pair")
    return inside


def _without_ends(run: Run, negligible: float) -> tuple[Run, float]:
    """The run without the panels at either end that have less than this mass of p together, and what they have."""
    points = refined(_panels(run), run.steep, ROUGH)
    width = np.diff(points)[:, None]
    mass = (width * _WEIGHTS * run.p(points[:-1, None] + width * _NODES)).sum(1) * _MARGIN
    low = int((np.cumsum(mass) <= negligible).sum())
    high = len(mass) - int((np.cumsum(mass[::-1]) <= negligible).sum())
    if low >= high:
        low, high = len(mass) // 2, len(mass) // 2 + 1
    kept = dataclasses.replace(run, left=float(points[low]), right=float(points[high]))
    return kept, float(mass[:low].sum() + mass[high:].sum())


def _panels(run: Run) -> np.ndarray:
    return np.linspace(run.left, run.right, _PANELS + 1)


def _ends(run: Run) -> np.ndarray:
    """The losses at both ends."""
    return run.loss(_inner(run, np.array([run.left, run.right])))


def _inner(run: Run, x: np.ndarray) -> np.ndarray:
    inset = _INSET * (run.right - run.left)
    return np.clip(x, run.left + inset, run.right - inset)
