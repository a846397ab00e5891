"""Dominating pairs that are bounded by tables of losses, from above and from below, in each neighbour direction.

Every hockey-stick divergence is the expectation, under q, of a convex function of the ratio X = p/q. An upper bound of
the distribution of X is a distribution for which all these expectations are at least as large. For a lower bound they
are at most as large. A table holds such a bound for one direction.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import numpy as np

from accountants.composition.brackets.cells import cells_on_grid
from accountants.composition.brackets.masses import lower_masses, upper_masses
from accountants.composition.brackets.monotone import split_monotone
from accountants.composition.brackets.offsets import best_offset, rough_losses
from accountants.dominating_pairs.base import Curve, DominatingPair
from accountants.privacy_loss import PrivacyLossDistribution
from dpkernels.numerics import Real
from dpkernels.proven import proven
from dpkernels.shapes import Float

_MAX_STEP = 2e-3  # The largest step of the losses of one ratio; it is larger if there were too many points.
_MIN_POINTS = 1 << 13  # The least points of these losses,
_MAX_POINTS = 1 << 15  # and the most.
_NEGLIGIBLE = 1e-30  # The masses beyond the reach of these losses, on either side.
_MASS_ERROR = 1e-12  # A bound on the relative error of the masses of atoms, and of sums of masses.
_LIGHT = 1e-280  # Lighter masses of an upper bound count as infinite losses.
# The largest loss of one ratio whose sums, and their masses, floats hold; others are put next to it.
_MAX_LOSS = 320.0
_MAX_REMEMBERED = 32  # How many tables are remembered.


@dataclass(frozen=True)
class RatioTable:
    """Masses of p at finite losses, which increase, and at an infinite loss; further mass has q alone."""

    loss: Float[np.ndarray, " outcomes"]
    mass: Float[np.ndarray, " outcomes"]
    infinite: float

    @classmethod
    def of_ratios(
        cls, ratio: Float[np.ndarray, " outcomes"], mass: Float[np.ndarray, " outcomes"], infinite: float, removed: bool
    ) -> RatioTable:
        """Return the table of values of p/q with masses of q, and of an infinite one; of q and p if ``removed``."""
        order = np.argsort(ratio)
        ratio, mass = ratio[order], mass[order]
        is_positive = ratio > 0
        if removed:
            return cls(-np.log(ratio[is_positive])[::-1], mass[is_positive][::-1], float(mass[~is_positive].sum()))
        return cls(np.log(ratio[is_positive]), (ratio * mass)[is_positive], infinite)

    def delta(self, epsilon: np.ndarray) -> np.ndarray:
        """Return the hockey-stick divergence, a sum of positive terms, at numbers of any shape."""
        start = np.searchsorted(self.loss, epsilon, side="right")
        sums = [
            float((self.mass[first:] * -np.expm1(eps - self.loss[first:])).sum())
            for first, eps in zip(np.ravel(start), np.ravel(epsilon), strict=True)
        ]
        return np.reshape(sums, np.shape(epsilon)) + self.infinite

    def privacy_loss(self, pair: TablePair) -> PrivacyLossDistribution:
        with np.errstate(under="ignore", over="ignore"):
            q = self.mass * np.exp(-self.loss)
        remainder = max(1 - float(q.sum()), 0.0)
        p = np.concatenate([self.mass, [self.infinite, 0.0]])
        loss = np.concatenate([self.loss, [np.inf, -np.inf]])
        return OneDirection(p, np.concatenate([q, [0.0, remainder]]), loss, 0 * p, pair=pair)


@dataclass(frozen=True)
class OneDirection(PrivacyLossDistribution):
    """Losses that bound those of a pair in one direction only; the mirrored ones are those of the pair's mirror."""

    pair: Any = None
    weight: Real = 1.0  # Of all masses.

    def mirrored(self, sign: Real = -1) -> PrivacyLossDistribution:
        return self if sign == 1 else self.pair.mirror().privacy_loss().scaled(self.weight)

    def for_one_direction(self) -> PrivacyLossDistribution:
        return PrivacyLossDistribution(self.p, self.q, self.loss, self.width)

    def scaled(self, weight: Real) -> OneDirection:
        masses = weight * self.p, weight * self.q
        return OneDirection(*masses, self.loss, self.width, pair=self.pair, weight=weight * self.weight)


class TablePair(DominatingPair):
    """A pair of plain numbers that is known by tables; a subclass is a pytree with the static fields of this class."""

    removed: bool
    is_lower: bool

    may_be_asymmetric: ClassVar[bool] = True
    rounds_up: ClassVar[bool] = True
    neighbours: ClassVar[str | None] = "add_remove"

    @abc.abstractmethod
    def compute_table(self, side: int) -> RatioTable:
        """Return an upper (side 1) or a lower (side -1) bound of the pair, or of its mirror if ``removed``."""

    @property
    def table(self) -> RatioTable:
        """Return the upper bound, or the lower one if ``is_lower``; the last tables are remembered."""
        leaves, structure = jax.tree.flatten(self)
        key = (str(structure), *(np.asarray(leaf, np.float64).tobytes() for leaf in leaves))
        if key not in _tables:
            while len(_tables) >= _MAX_REMEMBERED:
                _tables.pop(next(iter(_tables)), None)
            with np.errstate(all="ignore"):
                _tables[key] = self.compute_table(-1 if self.is_lower else 1)
        return _tables[key]

    def hockey_stick(self) -> Curve:
        return self.table.delta

    def lower_hockey_stick(self) -> Curve:
        return replace(self, is_lower=True).table.delta  # type: ignore[type-var]

    def privacy_loss(self) -> PrivacyLossDistribution:
        return self.table.privacy_loss(self)

    def mirror(self) -> TablePair:
        return replace(self, removed=not self.removed)  # type: ignore[type-var]

    def check(self) -> None:
        if self.is_lower:
            raise ValueError("is_lower: True; a lower bound of a pair is no guarantee")

    def attained(self) -> tuple[DominatingPair, ...]:
        return () if self.is_lower else (replace(self, is_lower=True),)  # type: ignore[type-var]


_tables: dict[tuple[object, ...], RatioTable] = {}


@proven("schemes#1-ratios-and-their-order")
def ratios(
    pair: DominatingPair, removed: bool, side: int
) -> tuple[Float[np.ndarray, " outcomes"], Float[np.ndarray, " outcomes"], float]:
    """Return values of X = p/q with masses of q, and the mass of p at an infinite X, of plain numbers.

    Of an upper bound (side 1) E_Q (X - c)_+ is at least that of the pair for every c, or E_Q (c - X)_+ if ``removed``;
    of a lower bound (side -1) it is at most that. The masses of q are at most 1 in a lower bound. What is nowhere else
    has the ratio 0, or an infinite one if ``removed``, where it counts for nothing.
    """
    losses = pair.privacy_loss()
    monotone = split_monotone(losses.mirrored() if removed else losses)
    if monotone.pieces:
        rough = rough_losses(monotone)
        low, high = _reach(rough)
        step = max(min(_MAX_STEP, (high - low) / _MIN_POINTS), (high - low) / _MAX_POINTS)
        cells = cells_on_grid(monotone, step, offset=best_offset(monotone, step, rough), reach=(low, high))
        masses = (upper_masses if side > 0 else lower_masses)(cells, step, 1)
        loss = masses.offset + (masses.first_index + np.arange(len(masses.mass))) * step
        mass, infinite = masses.mass, masses.infinite
    else:
        finite = np.isfinite(monotone.loss)
        loss, mass = monotone.loss[finite], monotone.p[finite] * (1 + side * _MASS_ERROR)
        infinite = float(monotone.p[monotone.loss == np.inf].sum()) * (1 + side * _MASS_ERROR)
    if side > 0:  # Larger losses are more.
        is_counted = (mass > _LIGHT) & (loss <= _MAX_LOSS)
        loss, infinite = np.maximum(loss, -_MAX_LOSS), infinite + float(mass[~is_counted].sum())
    else:
        is_counted = (mass > _LIGHT) & (loss >= -_MAX_LOSS)
        loss = np.minimum(loss, _MAX_LOSS)
    loss, mass = loss[is_counted], mass[is_counted]
    if removed:
        value, mass, infinite = np.append(np.exp(-loss), 0.0), np.append(mass, infinite), 0.0
    else:
        p, mass = mass, mass * np.exp(-loss)
        infinite += float(p[mass <= _LIGHT].sum()) if side > 0 else 0.0
        value, mass = np.append(np.exp(loss), 0.0), np.append(mass, max(1 - float(mass.sum()), 0.0))
    if side < 0:
        total = max(float(mass.sum()) * (1 + _MASS_ERROR), 1.0)
        mass, infinite = mass / total, infinite / total
    is_counted = mass > _LIGHT
    return value[is_counted], mass[is_counted], infinite


def _reach(rough: PrivacyLossDistribution) -> tuple[float, float]:
    """Return losses beyond which p above, and q below, have negligible masses."""
    finite = np.isfinite(rough.loss)
    order = np.argsort(rough.loss[finite])
    loss, p = rough.loss[finite][order], rough.p[finite][order]
    lower_index, last_index = int((np.cumsum(p * np.exp(-loss)) < _NEGLIGIBLE).sum()), len(loss) - 1
    upper_index = int((np.cumsum(p[::-1])[::-1] >= _NEGLIGIBLE).sum()) - 1
    return float(loss[min(lower_index, last_index)]), float(loss[max(upper_index, 0)])
