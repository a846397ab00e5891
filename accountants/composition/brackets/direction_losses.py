"""The losses of one neighbour direction: their tilt, and the lattices of their atoms. Both choose a grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from accountants.composition import repeated
from accountants.composition.brackets.masses import RATIO
from accountants.composition.brackets.monotone import MonotoneLoss
from accountants.composition.brackets.offsets import TwoAtoms, distinct_atoms, rough_losses, two_heaviest_atoms
from accountants.composition.repeated import MAX_TILT, LossTuple, RepeatedLoss
from accountants.composition.trade_off import error_of_line, power_of_line
from accountants.privacy_loss import PrivacyLossDistribution
from dpkernels.numerics import Real
from dpkernels.solve import root

ON_LATTICE = 1e-9  # The distance from a lattice, in its steps, up to which an atom is on it.
LARGEST_TILT = 0.9 * MAX_TILT  # A larger tilt is that of an eps next to the largest loss, or beyond it.
_TAIL_POINT_COST = 3  # For how many points of sums a point counts whose mass is a difference of tails,
_INTEGRAL_POINT_COST = 8  # and a point whose mass is an integral.
_MIN_TILT = 1e-6  # The least tilt of a test.
_LOG_ABOVE_ATOM = 0.7  # How far the log of a mass is above its limit at steep tilts.
_MAX_CHOICES = 256  # The most steps that are tried to put atoms on the grid.
_MIN_LATTICE_TERMS = 9  # The fewest terms for which a lattice of atoms is looked for.
_MAX_LATTICE_PARTS = 1 << 12  # The most steps of such a lattice between two atoms of a term.


@dataclass
class TermLosses:
    """Releases of one mechanism, in one direction: the loss of every pair, the first of which bounds from below."""

    losses: list[MonotoneLoss]
    count: int
    error: float = 0.0  # A bound on the error of a loss, in addition to its own.

    @cached_property
    def rough(self) -> PrivacyLossDistribution:
        return rough_losses(self.losses[0])

    @cached_property
    def point_cost(self) -> int:
        """Return for how many points of sums a point of this term counts, by the time that it takes."""
        has_tails = [pieces.intervals is not None for loss in self.losses for pieces in loss.pieces]
        return 1 if not has_tails else _TAIL_POINT_COST if all(has_tails) else _INTEGRAL_POINT_COST

    @cached_property
    def atoms(self) -> TwoAtoms:
        return two_heaviest_atoms(self.losses[0])

    def lattice(self) -> tuple[float, float] | None:
        """Return (offset, step) of a lattice of all losses, if there are only atoms that are on one."""
        if len(self.losses) > 1 or self.losses[0].pieces:
            return None
        offset, gap = self.atoms.loss, self.atoms.gap
        loss = self.losses[0].loss[np.isfinite(self.losses[0].loss)]
        if not len(loss):
            return offset, 0.0
        if not gap:
            return (offset, 0.0) if np.ptp(loss) == 0 else None
        positions = (loss - offset) / gap
        if np.abs(positions).max() > 1 << 20:
            return None
        for divisor in (1, 2):
            if np.abs(divisor * positions - np.round(divisor * positions)).max() <= ON_LATTICE * divisor:
                return offset, gap / divisor
        return None


@dataclass
class DirectionLosses:
    """The losses of all terms in one neighbour direction."""

    terms: list[TermLosses]

    @cached_property
    def repeated_losses(self) -> LossTuple:
        return tuple(RepeatedLoss(term.rough, np.float64(0.0), np.float64(term.count)) for term in self.terms)

    def saddle(self, epsilon: float) -> tuple[Real, Real]:
        """Return the tilt for an eps, and an estimate of log delta."""
        c = repeated.saddle_point(self.repeated_losses, np.float64(epsilon))
        if c <= LARGEST_TILT:
            return c, repeated.approximate(self.repeated_losses, c)[0]
        # Next to the largest loss, or beyond it: the Chernoff bound.
        return c, repeated.cumulants(self.repeated_losses, np.float64(LARGEST_TILT))[0] - LARGEST_TILT * epsilon

    def saddle_of_test(self, alpha: float) -> tuple[Real, Real]:
        """Return the tilt for the highest line at alpha, and an estimate of the log of the power.

        Delta falls like e^(-c eps), so that about c delta = e^eps q and (1 + c) delta = p, of the masses beyond eps.
        The steep line is that of q = alpha, and the flat one that of p = 1 - alpha.
        """
        lines = []
        infinite = float(repeated.infinity_mass(self.repeated_losses))
        largest_sum = float(sum(term.count * term.largest_loss(1) for term in self.repeated_losses))
        for is_flat in (False, True):

            def log_mass(log_c: float, is_flat: bool = is_flat) -> float:
                c = np.exp(log_c)
                log_delta, eps, _ = repeated.approximate(self.repeated_losses, c)
                return float(log_delta + (np.log1p(c) if is_flat else log_c - eps))

            low, high = math.log(_MIN_TILT), math.log(LARGEST_TILT)
            # An atom at the largest loss may have more mass. Steeper tilts lose all others.
            target = max(math.log1p(-alpha) if is_flat else math.log(alpha), log_mass(high) + _LOG_ABOVE_ATOM)
            has_root = log_mass(low) > target
            c = math.exp(root(lambda x, _: log_mass(x) - target, (), high, low, rtol=1e-4) if has_root else low)  # noqa: B023
            log_delta, eps, _ = map(float, repeated.approximate(self.repeated_losses, np.float64(c)))
            if eps <= 0:
                c, log_delta, eps = *map(float, self.saddle(0.0)), 0.0
            delta = math.exp(min(log_delta, 0.0))
            power = 1 - error_of_line(eps, delta, alpha) if is_flat else power_of_line(eps, delta, alpha)
            lines.append((power, c))
        power, c = min(lines)
        power = min(power, power_of_line(largest_sum, infinite, alpha))
        return min(c, LARGEST_TILT), math.log(min(max(power, alpha), 1.0))

    def saddle_of_delta(self, delta: float) -> tuple[Real, Real]:
        target = max(delta - float(repeated.infinity_mass(self.repeated_losses)), delta / 2)
        c, eps = repeated.saddle_point_of_delta(self.repeated_losses, np.log(np.float64(target)))
        return c, np.maximum(eps, 0.0)

    @cached_property
    def lattice(self) -> float | None:
        """Return the step of a lattice of the losses of all terms, if there is one."""
        lattices = [term.lattice() for term in self.terms]
        steps = [lattice[1] for lattice in lattices if lattice is not None]
        if len(steps) < len(lattices) or not max(steps):
            return None
        step = min(lattice for lattice in steps if lattice)
        ratios = [lattice / step for lattice in steps]
        return step if all(abs(ratio - round(ratio)) <= ON_LATTICE for ratio in ratios) else None

    @cached_property
    def atom_lattice(self) -> float:
        """Return the step of a lattice of the two heaviest atoms of every one of many terms; 0 if there is none."""
        gaps = np.array([term.atoms.gap for term in self.terms if term.atoms.gap])
        if len(gaps) < _MIN_LATTICE_TERMS:
            return 0.0
        step = float(gaps.min())
        for gap in gaps.tolist():  # Euclid's algorithm, up to rounding errors.
            while gap > ON_LATTICE * gaps.max():
                step, gap = gap, abs(math.remainder(step, gap))
        ratios = gaps / step
        is_lattice = ratios.max() <= _MAX_LATTICE_PARTS and np.abs(ratios - np.round(ratios)).max() <= ON_LATTICE
        return step if is_lattice else 0.0

    def step_on_atoms(self, step: float, coarsest: int, negligible: float) -> float:
        """Return a step, at most this one, with the two heaviest atoms of the term with the widest gap on all grids.

        It is the largest step that is tried for which all other atoms together, of all reports, are above points of the
        coarsest grid by a negligible loss; if there is none, the best one.
        """
        if self.widest_gap < step:
            return step
        while self.widest_gap < coarsest * step:  # So fine a grid would have too many points.
            coarsest //= RATIO
        least_divisor = math.ceil(self.widest_gap / (coarsest * step))
        divisors = least_divisor + np.arange(min(_MAX_CHOICES, 1 + least_divisor // 2))
        steps = self.widest_gap / (coarsest * divisors)
        misfit = np.zeros(len(divisors))
        for term in self.terms:
            loss, p = distinct_atoms(term.losses[0])
            position = (loss - term.atoms.loss) / (coarsest * steps[:, None])
            misfit += term.count * ((position - np.floor(position + ON_LATTICE)) * p).sum(1) * coarsest * steps
        return float(steps[int((misfit <= max(negligible, float(misfit.min()))).argmax())])

    @cached_property
    def widest_gap(self) -> float:
        weighted_gaps = [(term.count * term.atoms.second_mass, term.atoms.gap) for term in self.terms]
        return max(weighted_gaps)[1]
