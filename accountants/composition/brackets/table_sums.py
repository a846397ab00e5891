"""Lower bounds of sums of the losses of tables, from masses that are spread over the ends of cells.

The losses of a table may be further apart than the points of a grid. A contraction then cannot form groups whose means
are on the grid, and lowers every loss to the next grid point. A spread keeps all means, and its effect on delta at eps
is bounded. Let S be the sum of all losses, S' the sum of the spread losses, and m = e^(eps - S). Then e^(eps - S') = m
W, with E W = 1 and a known variance of W. So the spread adds at most the mean of a bump around eps,

    rho^2 / sqrt(2 (rho^2 + (1 - e^(eps - S'))^2))    for |S' - eps| <= 2 r,    else 0.

Sums of losses that are all on the grid are not spread. Proof: docs/proofs/brackets.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from accountants.composition.brackets.masses import GridReleases
from accountants.composition.brackets.monotone import MonotoneLoss, TooManyPointsError
from accountants.composition.brackets.sums import ComposedBounds, compose, norm
from accountants.loss_intervals import LOSS_UNITS
from dpkernels.numerics import UNIT_ROUNDOFF
from dpkernels.proven import proven
from dpkernels.shapes import Float

_BINS = 32  # The groups of losses in a step.
_HEAVY_SHARE = 0.1  # The mass of a group, over that of the heaviest one, from which on the grid goes through both.
_MASS_ERROR = 1e-12  # A bound on the relative error of the mass of an atom.
_GRID_UNITS = 8  # The roundings of a loss up to which it is on the grid.
_MIN_SHARE = 1e-3  # The least share of mass on the grid, of a whole sum, that matters.
_BUMP_RTOL = 2.0**-40  # More than the relative rounding errors of the bump and of its numbers.
_MAX_EXPONENT = 300.0  # e^x, and its square, do not overflow float64, which ends at e^709.8.
_MAX_POINTS = 1 << 20  # The most points of a grid of one loss.


@dataclass(frozen=True)
class SpreadSum(ComposedBounds):
    """The sum of losses that are spread, with lower bounds of delta of the sum of the losses themselves."""

    deviation: float = 0.0  # rho.
    reach: float = 0.0  # r.
    on_grid: ComposedBounds | None = None  # The sums of losses that all are on the grid.

    @proven("brackets#proof-of-6-tables")
    def delta(self, epsilon: float, side: int) -> float:
        """Return a lower bound (side -1) of the profile at eps."""
        if side != -1:
            raise ValueError(f"side: {side}; only the lower bound (-1) of the sum of losses is known")
        epsilon = self.shifted_by_loss_error(epsilon, side)
        added = _mean_of_bump(self, epsilon, self.deviation, self.reach, 1)
        if self.on_grid is not None:
            added -= _mean_of_bump(self.on_grid, epsilon, self.deviation, self.reach, -1)
        return max(super().delta(epsilon, side) - max(added, 0.0) * (1 + _BUMP_RTOL), 0.0)


def _mean_of_bump(total: ComposedBounds, epsilon: float, deviation: float, reach: float, side: int) -> float:
    """Return an upper (side 1) or lower (side -1) bound of the mean of the bump."""
    if not deviation:
        return 0.0
    error = 2 * total.loss_error(epsilon)
    max_distance = max(2 * reach + side * error, 0.0)
    start, stop = np.searchsorted(total.loss, [epsilon - max_distance, epsilon + max_distance], side="right")
    x = total.loss[start:stop] - epsilon
    distance = np.expm1(-np.sign(x) * np.maximum(np.abs(x) - side * error, 0.0))
    with np.errstate(over="ignore", invalid="ignore"):
        weight = deviation**2 / np.sqrt(2 * (deviation**2 + distance**2)) * np.exp(-total.tilt * x)
        largest = deviation / math.sqrt(2) * np.exp(total.tilt * max_distance)
        value = float((weight * total.g[start:stop]).sum())
        rounding_rtol = total.rounding_rtol + 4 * UNIT_ROUNDOFF * total.tilt * (abs(epsilon) + total.largest_addend)
        value += side * (total.error * norm(weight) + total.misplaced_mass * float(largest) + rounding_rtol * value)
        mean = float(np.exp(total.log_scale - total.tilt * epsilon) * max(value, 0.0))
    return mean if math.isfinite(mean) else math.inf if side > 0 else 0.0


@dataclass(frozen=True)
class LossTable:
    """Losses of one mechanism, all of them atoms, that are composed ``count`` times."""

    p: Float[np.ndarray, " atoms"]  # The masses of the finite losses within a reach.
    loss: Float[np.ndarray, " atoms"]
    mass_below: float  # The mass of the losses below the reach.
    mass_above: float  # That of the finite losses above it.
    infinite: float
    count: int

    @classmethod
    def from_losses(cls, losses: MonotoneLoss, count: int, reach: tuple[float, float]) -> LossTable | None:
        """Return the table of losses, or None if not all are atoms."""
        if losses.pieces:
            return None
        has_mass = np.isfinite(losses.loss) & (losses.p > 0)
        p, loss = losses.p[has_mass], losses.loss[has_mass]
        is_below, is_above = loss < reach[0], loss > reach[1]
        is_within = ~(is_below | is_above)
        infinite = float(losses.p[losses.loss == np.inf].sum())
        return cls(p[is_within], loss[is_within], float(p[is_below].sum()), float(p[is_above].sum()), infinite, count)

    @property
    def width(self) -> float:
        return float(np.ptp(self.loss)) if len(self.loss) else 0.0

    def gathered(self, start: float, step: float) -> tuple[Float[np.ndarray, " groups"], Float[np.ndarray, " groups"]]:
        """Return the masses and losses of groups of losses that are at most a small part of a step apart."""
        bins = np.round((self.loss - start) * (_BINS / step))
        _, first_index, group_index = np.unique(bins, return_index=True, return_inverse=True)
        group_loss = self.loss[first_index]
        mass = np.bincount(group_index, self.p, len(first_index))
        # The mean of q/p = e^-l, relative to that of one of the losses.
        mean = np.bincount(group_index, self.p * np.expm1(group_loss[group_index] - self.loss), len(first_index)) / mass
        return mass, group_loss - np.log1p(mean)

    def heaviest(self, step: float) -> tuple[float, float]:
        """Return the loss of the heaviest group, and the distance to another heavy one; 0 if there is none."""
        if not len(self.p):
            return 0.0, 0.0
        p, loss = self.gathered(float(self.loss[self.p.argmax()]), step)
        distance = np.abs(loss - loss[p.argmax()])
        distant_masses = np.where(distance > 2 * step, p, 0.0)
        is_heavy = distant_masses.max() > _HEAVY_SHARE * p.max()
        return float(loss[p.argmax()]), float(distance[distant_masses.argmax()]) if is_heavy else 0.0

    def masses(self, offset: float, step: float, side: int) -> tuple[GridReleases, GridReleases]:
        """Return the masses at grid points of all losses, spread, and of those that are on the grid.

        All errors are on the upper (side 1) or the lower (side -1) side. Groups of losses are a lower bound.
        """
        p, loss = (self.p, self.loss) if side > 0 else self.gathered(offset, step)
        size = 1 + float(np.abs(loss).max(initial=0.0)) + abs(offset)
        position = (loss - offset) / step
        is_on_grid = np.abs(loss - (offset + np.round(position) * step)) <= _GRID_UNITS * UNIT_ROUNDOFF * size
        index = np.where(is_on_grid, np.round(position), np.floor(position))
        if self.width > _MAX_POINTS * step:
            raise TooManyPointsError(f"losses over {self.width:.6g} are too many for a grid of step {step:.6g}")
        distance = np.where(is_on_grid, 0.0, np.clip(loss - (offset + index * step), 0.0, step))
        upper_mass = p * np.minimum(np.expm1(-distance) / math.expm1(-step), 1.0)
        first = int(index.min(initial=math.inf)) if len(index) else 0
        index = index.astype(int) - first
        points = int(index.max(initial=0)) + 2
        all_masses = np.bincount(index, p - upper_mass, points) + np.bincount(index + 1, upper_mass, points)
        on_grid = np.bincount(index, np.where(is_on_grid, p, 0.0), points)
        infinite = self.infinite
        if side > 0:
            all_masses[0] += self.mass_below
            infinite += self.mass_above
        # Sums have one rounding for each of their terms.
        of_masses = max(_MASS_ERROR, LOSS_UNITS * UNIT_ROUNDOFF * size) + 2 * UNIT_ROUNDOFF * (len(self.p) + 8)
        of_losses = (LOSS_UNITS + _GRID_UNITS) * UNIT_ROUNDOFF * size + UNIT_ROUNDOFF * len(self.p) * step

        def masses(mass: Float[np.ndarray, " points"]) -> GridReleases:
            factor = 1 + side * of_masses
            return GridReleases(mass * factor, first, offset + side * of_losses, infinite * factor, self.count)

        return masses(all_masses), masses(on_grid)


@proven("brackets#proof-of-6-tables")
def lower_sum(tables: Sequence[LossTable], step: float, tilt: float) -> SpreadSum:
    """Return the sum of the losses of tables, spread on a grid of at most this step, for lower bounds."""
    atoms = [table.heaviest(step) for table in tables]
    step = _step_through(max(distance for _, distance in atoms), step)
    pairs = [table.masses(offset, step, -1) for table, (offset, _) in zip(tables, atoms, strict=True)]
    total = compose([masses for masses, _ in pairs], step, tilt, -1)
    spread = sum(masses.count for masses, on_grid in pairs if not np.array_equal(masses.mass, on_grid.mass))
    # The variance of one factor of W is at most sinh^2(h/2) = cosh^2(h/2) - 1, and cosh x <= e^(x^2/2).
    variance = math.expm1(min(spread * step**2 / 4, _MAX_EXPONENT))
    reach = spread * step * (1 + _BUMP_RTOL)
    deviation = math.sqrt(variance) * math.exp(min(reach, _MAX_EXPONENT)) * (1 + _BUMP_RTOL)
    grid_share = math.prod(
        float(grid_masses.mass.sum() / max(masses.mass.sum(), 1e-300)) ** grid_masses.count
        for masses, grid_masses in pairs
    )
    on_grid = (
        compose([grid_masses for _, grid_masses in pairs], step, tilt, -1)
        if spread and grid_share > _MIN_SHARE
        else None
    )
    return SpreadSum(**vars(total), deviation=deviation, reach=reach, on_grid=on_grid)


@proven("brackets#proof-of-2-above")
def upper_sum(table: LossTable, step: float, tilt: float, epsilon: float) -> ComposedBounds:
    """Return the sum of the losses of a table, spread on a grid with eps/n on it, for upper bounds.

    Losses next to eps/n, as those of nearly pure noise, then add nothing to delta if their sum is not above eps.
    """
    offset = epsilon / table.count
    step = _step_through(2 * offset, step)
    return compose([table.masses(offset, step, 1)[0]], step, tilt, 1)


def _step_through(gap: float, step: float) -> float:
    """Return a step, at most this one, with two points of this distance, and that in their middle, on the grid."""
    return gap / (2 * math.ceil(gap / step / 2)) if gap > step else step
