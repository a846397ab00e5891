"""Rigorous brackets of composed guarantees.

All Gaussian noise counts as one release. Losses are rounded to a grid in convex order (``masses``), and summed by FFT,
including all errors (``sums``). The step of the grid follows from the variance of the sum, and its range from the
tails. Mass outside the range counts as infinite loss in the upper bound, and as no mass in the lower bound. Proofs:
docs/proofs/brackets.md and docs/proofs/sums.md.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat

import jax
import numpy as np

from accountants.composition import self_composed
from accountants.composition.brackets.cells import (
    MonotoneLoss,
    NoGridError,
    TooManyPointsError,
    best_offset,
    cells_on_grid,
    different_atoms,
    rough_losses,
    split_monotone,
    two_heaviest_atoms,
)
from accountants.composition.brackets.masses import RATIO, Masses, dominating_masses, lower_masses, upper_masses
from accountants.composition.brackets.sums import (
    BLOCK,
    ComposedBounds,
    NotRareError,
    compose,
    compose_directly,
    stage_count,
)
from accountants.composition.brackets.table_sums import Table, lower_sum, upper_sum
from accountants.composition.closed_form import Bounds
from accountants.composition.self_composed import MAX_TILT, GuaranteeLike, LossTuple, RepeatedLoss, RepeatedReleases
from accountants.composition.trade_off import (
    CurvePoint,
    curve_point,
    error_of_line,
    points_around_tangent,
    power_of_line,
)
from accountants.dominating_pairs.additive import AdditivePair, additive_pair
from accountants.dominating_pairs.base import as_float64
from accountants.privacy_loss import PrivacyLossDistribution
from dpkernels import checks
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.numerics import UNIT_ROUNDOFF, Real, RealArray
from dpkernels.proven import proven
from dpkernels.solve import NotPrivateError, first_feasible, root

WIDTH = 1e-5  # The relative width aimed at.
_FIRST_WIDTH = 4.5e-6  # The relative width of the first grid's bracket, by estimate.
_MAX_REFINEMENTS = 3  # How often the grid is refined at most.
_MIN_STEP_FACTOR = 0.15  # The least factor by which a step becomes finer at once.
_MIN_DIRECT_STEP_FACTOR = 0.4  # The same for sums of positive terms, which take the square of the number of points.
_MAX_STEP_FACTOR = 0.8  # A factor above this is not worth another grid.
_STEP_GROWTH = 1.5  # By how much a refined step grows while its grid has too many points.
_NARROW_WIDTH = 1e-4  # The relative width up to which the lower bounds of other directions are not computed.
_POWER_WIDTH = 5e-5  # The relative width aimed at of a power, or of a small error.
_MIN_POWER_SHARE = 0.02  # The least value of (1 - power)/power, up to 1, by which that width is multiplied.
_RETILT_WIDTH = 0.1  # The relative width from which on the tilt is chosen once more.
_MAX_POINTS = 1 << 19  # The most points of refined grids.
_MAX_WORK = 1 << 19  # The points of all grids together, beyond which none is refined.
_MAX_ENLARGEMENTS = 24  # How often the first grid's step is enlarged if it has too many points.
_MAX_TABLE_POINTS = 1 << 19  # The most points of a table's losses.
_TABLE_STEP_DIVISOR = 4.0  # By how much the step of tables falls from try to try.
_DIRECT_POINT_COST = 16  # For how many points one counts where sums take the square of their number.
_NOISY_WIDTH = 2e-6  # The relative width from which on errors of transforms are avoided.
_MAX_DIRECT_COUNT = 10**6  # The most reports of sums of positive terms, whose roundings add up.
_NOISE_FACTOR = 3.0  # A bracket is refined if it is wider than this times these errors.
_TAIL_POINT_COST = 3  # For how many points one counts whose masses are differences of tails,
_INTEGRAL_POINT_COST = 8  # and one whose masses are integrals.
_MAX_TILT = 0.9 * MAX_TILT  # A larger tilt is that of an eps next to the largest loss, or beyond it.
_MAX_TILTED_STEP = 20.0  # The most by which logs of tilted masses change in a step of the coarsest grid.
_MAX_FIRST_STEP = 1.0  # The largest first step.
_MAX_STEP = 4.0**9  # The largest step.
_MAX_EPSILON = 1e300  # The largest eps that is looked for.
# The least eps that decides the step, in standard deviations of the sum.
_MIN_SIZE = 0.1
# Margins, beyond the root's own tolerance; a bound that is lost in rounding errors may need larger ones.
_MARGINS = tuple(2e-11 * 4.0**k for k in range(14))
_MIN_TILT = 1e-6  # The least tilt of a test.
_MIN_ERROR = 1e-300  # The least error that is not 0.
_COARSE_RTOL = 1e-4  # The relative error of delta on a coarse grid.
_MAX_COARSE_NOISE = 1e-2  # The relative error by its transforms from which on another tilt is needed.
_LINE_RTOL = 1e-7  # The precision of the eps of a line.
_DECISIVE_LOG = 1.0  # How far the log of a power is below another one that decides.
_LOG_ABOVE_ATOM = 0.7  # How far the log of a mass is above its limit at steep tilts.
_SLOPE_STEP = 1e-5  # The relative step of eps over which the slope of log delta is measured.
# Relative distances from an estimate at which an eps is looked for, in turn.
_SEARCH_STEPS = 2.0**-12, 2.0**-8, 2.0**-4
_LEFT_OUT_MASS = 1e-9  # The mass of outcomes that are left out, of all reports, relative to delta.
_MIXTURE_LOSSES = 4  # About how many losses a mixture has.
# How much coarser the grid of a direction is that is not the worst one by estimate.
_OTHER_STEP_FACTOR = 4.0
_WINDOW_MIN_POINTS = 1 << 12  # Grids of fewer points have no window: it would not pay.
_WINDOW_MIN_RATIO = 3  # Nor has a grid whose points are fewer than this times those of its window.
_RARE = (1.0, 4.0)  # The mean number, in a sum, of losses outside of the window; the second one if the window is large.
_LARGE_WINDOW = 1 << 16  # The points from which on a window is large.
_UNITS_OF_MU = 8  # The roundings of mu of Gaussian noise, besides those of sums, in units in the last place.
_MAX_DEVIATIONS = 40.0  # How many standard deviations the losses of Gaussian noise reach.
_MIN_STAGED_POINTS = 1 << 17  # On a grid of no more points than this stages save no time.
_GRID_DEVIATIONS = 16.0  # How many standard deviations of the sum such a grid reaches.
_MAX_CHOICES = 256  # The most steps that are tried to put atoms on the grid.
_MIN_LATTICE_TERMS = 9  # The fewest terms for which a lattice of atoms is looked for.
_MAX_LATTICE_PARTS = 1 << 12  # The most steps of such a lattice between two atoms of a term.
_MAX_LATTICE_POINTS = 1 << 18  # The most points of a grid on such a lattice, by estimate.
_ON_LATTICE = 1e-9  # The distance from a lattice, in its steps, up to which an atom is on it.


@proven("brackets#proof-of-5-margins")
@dataclass
class GridBracket(Bounds):
    """Brackets of one guarantee with concrete parameters."""

    guarantee: GuaranteeLike
    width: float = WIDTH

    def delta(self, epsilon: float) -> tuple[float, float]:
        checks.within("epsilon", epsilon, 0.0, np.inf)
        directions = self._estimates(lambda direction: direction.saddle(epsilon))
        likely_delta = math.exp(min(max(estimate.value for estimate in directions), 0.0))
        return self._refine(directions, likely_delta, None, _DeltaAt(epsilon), self.width)

    def epsilon(self, delta: float) -> tuple[float, float]:
        checks.within("delta", delta, 0.0, 1.0, open_ends=True)
        directions = self._estimates(lambda direction: direction.saddle_of_delta(delta))
        guess = max(estimate.value for estimate in directions)
        return self._refine(directions, delta, guess, _EpsilonAt(delta), self.width)

    @proven("trade_off#proof")
    def errors(self, alpha: float, largest_loss: float) -> CurvePoint:
        """Return bounds of the trade-off curve at alpha in (0, 1), from lines below and from tests above.

        Both are those of the composed losses on a grid, which a coarse grid tells the eps of the highest line.
        """
        directions = _CoarseDirections(self._estimates(lambda direction: direction.saddle_of_test(alpha)))
        tangents = directions.tangents(alpha)
        # The highest line of one direction is that of all, if its delta is the largest one there.
        highest = [
            (eps, is_flat)
            for number, eps, is_flat in tangents
            if directions.delta(number, eps) >= directions.upper_delta(eps) * (1 - _COARSE_RTOL)
        ]
        if not highest:  # It is where the profiles of two directions cross.

            def tangent_points(alpha: float, is_flat: bool) -> np.ndarray:
                return points_around_tangent(directions.upper_delta, alpha, is_flat, largest_loss, _LINE_RTOL)

            return curve_point(self.delta, tangent_points, alpha, largest_loss)
        eps, is_flat = min(highest[0][0], largest_loss), highest[0][1]
        # A steep line has a power, whose width is that of a smaller error.
        power = min(power_of_line(eps, directions.upper_delta(eps), alpha), 1.0)
        width = _POWER_WIDTH * (1.0 if is_flat else min(max((1 - power) / power, _MIN_POWER_SHARE), 1.0))
        estimates = self._estimates(lambda direction: direction.saddle(eps))
        likely_delta = math.exp(min(max(estimate.value for estimate in estimates), 0.0))
        low, high = self._refine(estimates, likely_delta, None, _PowerAt(alpha, eps, is_flat), max(width, self.width))
        if not is_flat:
            # Where the steep lines are not certain to be the highest ones, the error is at most alpha.
            return CurvePoint.of_power(min(low, 1 - alpha), high, alpha)
        error = 0.0 if high >= 1 / _MIN_ERROR else (1 - 2**-50) / high
        return CurvePoint.of_error(error, (1 + 2**-50) / low if low > 0 else 1.0, alpha)

    @cached_property
    def _terms(self) -> list[RepeatedReleases]:
        """Return the terms with all Gaussian noise as one release, and equal terms as one."""
        numeric = as_float64(self.guarantee)
        gaussian, non_gaussian = 0.0, []
        for term in numeric.terms:
            if _is_gaussian(term):
                gaussian += float(term.count) * float(term.mu) ** 2
            else:
                non_gaussian.append(term)
        merged: list[RepeatedReleases] = []
        for term in non_gaussian:
            index = next((k for k, other_term in enumerate(merged) if _is_same(other_term, term)), None)
            if index is None:
                merged.append(term)
            else:
                merged[index] = dataclasses.replace(term, count=merged[index].count + term.count)
        if not math.isfinite(gaussian):
            return list(numeric.terms)
        if gaussian > 0:
            merged.append(RepeatedReleases((additive_pair(Gaussian(1 / np.sqrt(gaussian)), np.float64(1.0)),), 1))
        return merged

    def _error_of_merged(self, gaussian: RepeatedReleases) -> float:
        """Return a bound on the error of the losses of all Gaussian noise as one release, by that of its mu."""
        mu = abs(float(gaussian.mu))
        return (_UNITS_OF_MU + len(self.guarantee.terms)) * UNIT_ROUNDOFF * (_MAX_DEVIATIONS + mu) * mu

    @cached_property
    def _directions(self) -> list[_Direction]:
        """Return the losses of every term, for each neighbour direction and each order of the pairs of a term."""
        orders = range(max(len(term.pairs) for term in self._terms))

        def direction_term(term: RepeatedReleases, mirror: bool, first: int) -> _Term:
            with np.errstate(all="ignore"):
                distributions = [term.privacy_loss(pair) for pair in term.pairs]
            split = [
                split_monotone(distribution.mirrored() if mirror else distribution) for distribution in distributions
            ]
            error = self._error_of_merged(term) if _is_gaussian(term) else 0.0
            return _Term(split[first % len(split) :] + split[: first % len(split)], int(term.count), error)

        return [
            _Direction([direction_term(term, mirror, k) for term in self._terms])
            for mirror in self.guarantee.neighbour_directions
            for k in orders
        ]

    def _estimates(self, estimate: Callable[[_Direction], tuple[Real, Real]]) -> list[_Estimate]:
        estimates = []
        is_unknown = any(np.isnan(leaf).any() for leaf in jax.tree.leaves(self._terms))
        for direction in () if is_unknown else self._directions:
            with np.errstate(all="ignore"):
                tilt, value = map(float, estimate(direction))
            is_unknown = is_unknown or not (math.isfinite(tilt) and math.isfinite(value))
            estimates.append(_Estimate(direction, min(tilt, _MAX_TILT), value))
        if is_unknown:
            raise NoGridError("epsilon, delta: no tilt was found for a bracket; parameters are out of reach")
        # The upper bound is that of all pairs, in any order: the worst first pair decides the tilt.
        orders = len(estimates) // len(self.guarantee.neighbour_directions)
        for start in range(0, len(estimates), orders):
            worst = max(estimates[start : start + orders], key=lambda candidate: candidate.value)
            for ordered in estimates[start : start + orders]:
                ordered.tilt, ordered.value = worst.tilt, worst.value
        return estimates

    def _refine(
        self, estimates: list[_Estimate], likely_delta: float, size: float | None, bound: _Bound, width: float
    ) -> tuple[float, float]:
        """Return the bracket, refining the grid until its relative width is narrow.

        The direction that is the worst one by estimate comes first. Of another one a coarse grid is enough if its upper
        bound is below the lower bound of the first, and that bound alone if it is not above the first bracket, which is
        narrow.
        """
        low, high, finer = 0.0, 0.0, 1.0
        for estimate in sorted(estimates, key=lambda candidate: -candidate.value):
            step = estimate.first_step(size) * math.sqrt(width / WIDTH)
            if high > 0.0:
                if estimate.upper_bound(step * _OTHER_STEP_FACTOR, likely_delta, bound) <= low:
                    continue
                top = estimate.upper_bound(step * finer, likely_delta, bound)
                if math.isfinite(top) and top - high <= width * top and high - low <= _NARROW_WIDTH * high:
                    high = max(high, top)
                    continue
            bottom, top, last = self._refine_direction(
                estimate, step, likely_delta, bound, width, is_epsilon=size is not None
            )
            low, high, finer = max(low, bottom), max(high, top), last / step
        return low, high

    def _refine_direction(
        self, estimate: _Estimate, step: float, likely_delta: float, bound: _Bound, width: float, *, is_epsilon: bool
    ) -> tuple[float, float, float]:
        """Return (lower, upper) bounds of one direction, and the step of its last grid."""
        low, high, step = self._bounds_at_feasible_step(estimate, step, likely_delta, bound, (-1, 1))
        if estimate.noise > _NOISY_WIDTH and high - low > width * high and estimate.count <= _MAX_DIRECT_COUNT:
            bottom, top = self._bounds_of_direct_sums(
                estimate, step, likely_delta if is_epsilon else min(likely_delta, high), bound
            )
            low, high = max(low, bottom), min(high, top)
        if high - low > width * high and not isinstance(bound, _PowerAt):
            low, high = estimate.bounds_of_tables(low, high, width, likely_delta, bound)
        last_gap = math.inf
        for _ in range(_MAX_REFINEMENTS):
            gap = high - low
            # Stop if it is narrow, if both ends are infinite, or if the width hardly depends on the grid.
            if (
                not gap > max(width, _NOISE_FACTOR * estimate.noise) * high
                or gap > 0.9 * last_gap
                or (low == 0.0 < last_gap < math.inf)
            ):
                break
            finest = _MIN_DIRECT_STEP_FACTOR if estimate.is_direct else _MIN_STEP_FACTOR
            finer = max(float(np.sqrt(0.7 * width * high / gap)), finest, estimate.points / _MAX_POINTS)
            if finer > _MAX_STEP_FACTOR or estimate.work > _MAX_WORK:
                break
            last_gap = gap
            likely_delta = likely_delta if is_epsilon else min(likely_delta, high)
            if is_epsilon and gap > _RETILT_WIDTH * high and math.isfinite(high) and not estimate.is_direct:
                estimate.tilt = min(float(estimate.direction.saddle(max(low, high / 4))[0]), _MAX_TILT)
            refined = None
            while refined is None and finer <= _MAX_STEP_FACTOR:
                try:
                    refined = estimate.bounds(step * finer, likely_delta, bound, (-1, 1))
                except TooManyPointsError:
                    finer *= _STEP_GROWTH
            if refined is None:
                break
            step *= finer
            bottom, top = refined
            low, high = max(low, bottom), min(high, top)
        return low, high, step

    @staticmethod
    def _bounds_at_feasible_step(
        estimate: _Estimate, step: float, likely_delta: float, bound: _Bound, sides: tuple[int, ...]
    ) -> tuple[float, float, float]:
        """Return bounds from a grid of this step, or of a larger one if it has too many points; and the step."""
        for _ in range(_MAX_ENLARGEMENTS):
            try:
                return *estimate.bounds(step, likely_delta, bound, sides), step
            except NotRareError:
                estimate.is_windowed = False
            except TooManyPointsError:
                if step > _MAX_STEP:
                    raise
                is_lattice = estimate.is_on_lattice and estimate.direction.lattice is not None
                estimate.is_on_lattice = estimate.is_on_lattice and not is_lattice
                step *= 1 if is_lattice or estimate.is_on_atoms else 4
                estimate.is_on_atoms = False
        return *estimate.bounds(step, likely_delta, bound, sides), step

    @staticmethod
    def _bounds_of_direct_sums(
        estimate: _Estimate, step: float, likely_delta: float, bound: _Bound
    ) -> tuple[float, float]:
        """Return the bracket by sums of positive terms, from now on, if they do not take too long."""
        tilt = estimate.tilt
        estimate.is_direct, estimate.tilt = True, 0.0
        try:
            return estimate.bounds(step, likely_delta, bound, (-1, 1))
        except TooManyPointsError:
            estimate.is_direct, estimate.tilt = False, tilt
            return 0.0, math.inf


class _CoarseDirections:
    """Upper bounds of delta of all directions on coarse grids, with a tilt for every eps that needs one of its own."""

    def __init__(self, estimates: list[_Estimate]) -> None:
        self.likely_delta = math.exp(max(estimate.value for estimate in estimates))
        self.estimates = [
            estimate for estimate in estimates if estimate.value > math.log(self.likely_delta) - _DECISIVE_LOG
        ]
        self.totals: list[list[ComposedBounds]] = [[] for _ in self.estimates]

    def tangents(self, alpha: float) -> list[tuple[int, float, bool]]:
        """Return the number of each direction, and about the eps of its highest line, and whether it is flat."""
        for number in range(len(self.estimates)):
            self._compose(number)
        return [(number, *totals[0].tangent(alpha)) for number, totals in enumerate(self.totals)]

    def _compose(self, number: int) -> None:
        estimate = self.estimates[number]
        step = _OTHER_STEP_FACTOR * estimate.first_step(None)
        GridBracket._bounds_at_feasible_step(
            estimate, step, self.likely_delta, _CollectedSums(self.totals[number]), (1,)
        )

    def delta(self, number: int, epsilon: float) -> float:
        """Return an upper bound of delta at eps of one direction."""
        if not any(
            total.delta(epsilon, 1) < 1 and total.noise(epsilon) < _MAX_COARSE_NOISE for total in self.totals[number]
        ):
            estimate = self.estimates[number]
            with np.errstate(all="ignore"):
                estimate.tilt = min(float(estimate.direction.saddle(epsilon)[0]), _MAX_TILT)
            self._compose(number)
        return min(total.delta(epsilon, 1) for total in self.totals[number])

    def upper_delta(self, epsilon: float) -> float:
        """Return an upper bound of delta at eps."""
        return max(self.delta(number, epsilon) for number in range(len(self.estimates)))


def _is_gaussian(term: RepeatedReleases) -> bool:
    pair = term.pairs[0]
    if not (term.is_gaussian and isinstance(pair, AdditivePair)):
        return False
    return type(pair.noise) is Gaussian and np.ndim(pair.shift) == 0


def _is_same(first: RepeatedReleases, second: RepeatedReleases) -> bool:
    """Return whether two terms have the same pairs, and so may have one count."""
    (p, structure_p), (q, structure_q) = (
        jax.tree.flatten(dataclasses.replace(term, count=0)) for term in (first, second)
    )
    return str(structure_p) == str(structure_q) and all(np.array_equal(a, b) for a, b in zip(p, q, strict=True))


# Directions


@dataclass
class _Term:
    """Releases of one mechanism, in one direction: the loss of every pair, the first of which bounds from below."""

    losses: list[MonotoneLoss]
    count: int
    error: float = 0.0  # A bound on the error of a loss, in addition to its own.

    @cached_property
    def rough(self) -> PrivacyLossDistribution:
        return rough_losses(self.losses[0])

    @cached_property
    def weight(self) -> int:
        """Return for how many points of sums a point of this term counts, by the time that it takes."""
        has_tails = [pieces.intervals is not None for loss in self.losses for pieces in loss.pieces]
        return 1 if not has_tails else _TAIL_POINT_COST if all(has_tails) else _INTEGRAL_POINT_COST

    @cached_property
    def atoms(self) -> tuple[float, float, float]:
        return two_heaviest_atoms(self.losses[0])

    def lattice(self) -> tuple[float, float] | None:
        """Return (offset, step) of a lattice of all losses, if there are only atoms that are on one."""
        if len(self.losses) > 1 or self.losses[0].pieces:
            return None
        offset, gap, _ = self.atoms
        loss = self.losses[0].loss[np.isfinite(self.losses[0].loss)]
        if not len(loss):
            return offset, 0.0
        if not gap:
            return (offset, 0.0) if np.ptp(loss) == 0 else None
        positions = (loss - offset) / gap
        if np.abs(positions).max() > 1 << 20:
            return None
        for divisor in (1, 2):
            if np.abs(divisor * positions - np.round(divisor * positions)).max() <= _ON_LATTICE * divisor:
                return offset, gap / divisor
        return None


@dataclass
class _Direction:
    """The losses of all terms in one neighbour direction."""

    terms: list[_Term]

    @cached_property
    def repeated_losses(self) -> LossTuple:
        return tuple(RepeatedLoss(term.rough, np.float64(0.0), np.float64(term.count)) for term in self.terms)

    def saddle(self, epsilon: float) -> tuple[Real, Real]:
        """Return the tilt for an eps, and an estimate of log delta."""
        c = self_composed.saddle_point(self.repeated_losses, np.float64(epsilon))
        if c <= _MAX_TILT:
            return c, self_composed.approximate(self.repeated_losses, c)[0]
        # Next to the largest loss, or beyond it: the Chernoff bound.
        return c, self_composed.cumulants(self.repeated_losses, np.float64(_MAX_TILT))[0] - _MAX_TILT * epsilon

    def saddle_of_test(self, alpha: float) -> tuple[Real, Real]:
        """Return the tilt for the highest line at alpha, and an estimate of the log of the power.

        Delta falls like e^(-c eps), so that about c delta = e^eps q and (1 + c) delta = p, of the masses beyond eps.
        The steep line is that of q = alpha, and the flat one that of p = 1 - alpha.
        """
        lines = []
        infinite = float(self_composed.infinity_mass(self.repeated_losses))
        largest_sum = float(sum(term.count * term.largest_loss(1) for term in self.repeated_losses))
        for is_flat in (False, True):

            def log_mass(log_c: float, is_flat: bool = is_flat) -> float:
                c = np.exp(log_c)
                log_delta, eps, _ = self_composed.approximate(self.repeated_losses, c)
                return float(log_delta + (np.log1p(c) if is_flat else log_c - eps))

            low, high = math.log(_MIN_TILT), math.log(_MAX_TILT)
            # An atom at the largest loss may have more mass. Steeper tilts lose all others.
            target = max(math.log1p(-alpha) if is_flat else math.log(alpha), log_mass(high) + _LOG_ABOVE_ATOM)
            has_root = log_mass(low) > target
            c = math.exp(root(lambda x, _: log_mass(x) - target, (), high, low, rtol=1e-4) if has_root else low)  # noqa: B023
            log_delta, eps, _ = map(float, self_composed.approximate(self.repeated_losses, np.float64(c)))
            if eps <= 0:
                c, log_delta, eps = *map(float, self.saddle(0.0)), 0.0
            delta = math.exp(min(log_delta, 0.0))
            power = 1 - error_of_line(eps, delta, alpha) if is_flat else power_of_line(eps, delta, alpha)
            lines.append((power, c))
        power, c = min(lines)
        power = min(power, power_of_line(largest_sum, infinite, alpha))
        return min(c, _MAX_TILT), math.log(min(max(power, alpha), 1.0))

    def saddle_of_delta(self, delta: float) -> tuple[Real, Real]:
        target = max(delta - float(self_composed.infinity_mass(self.repeated_losses)), delta / 2)
        c, eps = self_composed.saddle_point_of_delta(self.repeated_losses, np.log(np.float64(target)))
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
        return step if all(abs(ratio - round(ratio)) <= _ON_LATTICE for ratio in ratios) else None

    @cached_property
    def atom_lattice(self) -> float:
        """Return the step of a lattice of the two heaviest atoms of every one of many terms; 0 if there is none."""
        gaps = np.array([term.atoms[1] for term in self.terms if term.atoms[1]])
        if len(gaps) < _MIN_LATTICE_TERMS:
            return 0.0
        step = float(gaps.min())
        for gap in gaps.tolist():  # Euclid's algorithm, up to rounding errors.
            while gap > _ON_LATTICE * gaps.max():
                step, gap = gap, abs(math.remainder(step, gap))
        multiples = gaps / step
        is_lattice = (
            multiples.max() <= _MAX_LATTICE_PARTS and np.abs(multiples - np.round(multiples)).max() <= _ON_LATTICE
        )
        return step if is_lattice else 0.0

    def step_on_atoms(self, step: float, coarsest: int, negligible: float) -> float:
        """Return a step, at most this one, with the two heaviest atoms on all grids.

        It is the first one for which the others are next to the coarsest grid, but for a negligible loss in all.
        """
        if self.gap < step:
            return step
        while self.gap < coarsest * step:  # So fine a grid would have too many points.
            coarsest //= RATIO
        least_divisor = math.ceil(self.gap / (coarsest * step))
        divisors = least_divisor + np.arange(min(_MAX_CHOICES, 1 + least_divisor // 2))
        steps = self.gap / (coarsest * divisors)
        misfit = np.zeros(len(divisors))
        for term in self.terms:
            loss, p = different_atoms(term.losses[0])
            position = (loss - term.atoms[0]) / (coarsest * steps[:, None])
            misfit += term.count * ((position - np.floor(position + _ON_LATTICE)) * p).sum(1) * coarsest * steps
        return float(steps[int((misfit <= max(negligible, float(misfit.min()))).argmax())])

    @cached_property
    def gap(self) -> float:
        weighted_gaps = [(term.count * term.atoms[2], term.atoms[1]) for term in self.terms]
        return max(weighted_gaps)[1]


@dataclass
class _Estimate:
    """The tilt of a direction, and the estimate of log delta or of eps, which affect the width of bounds alone."""

    direction: _Direction
    tilt: float
    value: float
    points: int = 0  # The points of the last grids.
    work: int = 0  # Those of all grids.
    size: float = 0.0  # The size of the eps that decides the step.
    is_staged: bool = True  # Whether many reports are composed in stages.
    is_direct: bool = False  # Whether sums are those of positive terms, without a tilt.
    is_on_lattice: bool = True  # Whether the grid is the lattice of all losses, if there is one.
    is_on_atoms: bool = False  # Whether the grid goes through a lattice of the atoms of many terms.
    is_windowed: bool = True  # Whether losses outside of a window, which rough masses take as rare, are apart.
    noise: float = 0.0  # About the relative width by errors of the last sums, which no finer grid makes narrower.

    @property
    def count(self) -> int:
        return sum(term.count for term in self.direction.terms)

    def first_step(self, size: float | None) -> float:
        """Return a step that gives the relative width aimed at: of delta, or of an eps of this size."""
        c, terms = self.tilt, self.direction.terms
        tilted = [part.tilted(np.float64(c)) for part in self.direction.repeated_losses]
        variance = sum(float(part.variance) * term.count for part, term in zip(tilted, terms, strict=True))
        count = self.count
        max_count = max(term.count for term in terms)
        self.size = size = 1 / c if size is None else max(size, _MIN_SIZE * math.sqrt(variance), 1e-12)
        step = math.sqrt(8 * _FIRST_WIDTH * size / ((1 + c) * count))
        losses = [(self._sorted(term)[0], term.weight) for term in terms]
        weighted_extent = max((weight * float(np.ptp(loss)) for loss, weight in losses if len(loss)), default=0.0)
        extent, lattice = _GRID_DEVIATIONS * math.sqrt(variance) + weighted_extent, self.direction.atom_lattice
        self.is_on_atoms = 0 < extent <= _MAX_LATTICE_POINTS * lattice
        self.is_staged = extent > _MIN_STAGED_POINTS * step and not self.is_on_atoms
        if self.is_on_atoms:  # What is between the atoms is little, so that few points suffice.
            return lattice
        if not self.is_staged:
            return min(max(step, 1e-14), _MAX_FIRST_STEP)
        stages = stage_count(max_count)
        step /= math.sqrt(1 + stages)
        if any(self._window(term, step, RATIO**stages, (-np.inf, np.inf)) for term in terms if stages):
            # A mixture has further losses on the last grid.
            step *= math.sqrt((1 + stages) / (1 + stages + _MIXTURE_LOSSES * BLOCK**stages / max_count))
        return min(max(step, 1e-14), _MAX_FIRST_STEP)

    def upper_bound(self, step: float, likely_delta: float, bound: _Bound) -> float:
        """Return the upper bound on a grid of this step; inf if it has too many points."""
        try:
            return self.bounds(step, likely_delta, bound, (1,))[1]
        except TooManyPointsError:
            return math.inf

    def bounds(self, step: float, likely_delta: float, bound: _Bound, sides: tuple[int, ...]) -> tuple[float, float]:
        """Return (lower, upper) bounds from a grid of this step; only the upper one if the sides are (1,)."""
        direction = self.direction
        stages = stage_count(max(term.count for term in direction.terms)) if self.is_staged or self.is_direct else 0
        if direction.lattice is not None and self.is_on_lattice:
            step, stages = direction.lattice, 0
        elif self.is_on_atoms and not self.is_direct:
            lattice, stages = direction.atom_lattice, 0
            step = lattice / max(math.ceil(lattice / step * (1 - _ON_LATTICE)), 1)
        elif direction.gap:  # The two heaviest atoms and their midpoint can be on all grids.
            step = direction.step_on_atoms(step, RATIO**stages, _FIRST_WIDTH * self.size)
        max_count = max(term.count for term in direction.terms)
        masses_of_terms = [self._masses(term, step, stages, max_count, likely_delta, sides) for term in direction.terms]
        answers = {}
        self.points = sum(
            len(masses[1].mass) * term.weight for term, masses in zip(direction.terms, masses_of_terms, strict=True)
        )
        for side in sides:
            parts = [masses[side] for masses in masses_of_terms]
            if self.is_direct:
                total = compose_directly(parts, step, _LEFT_OUT_MASS * likely_delta, side, stages)
                self.points = max(self.points, _DIRECT_POINT_COST * max(len(entry.mass) for entry in parts))
            else:
                # On a coarse grid a steeper tilt leaves almost no mass of a contraction.
                tilt = min(self.tilt, _MAX_TILTED_STEP / (step * RATIO**stages)) if stages else self.tilt
                total = compose(parts, step, tilt, side, stages)
            self.points = max(self.points, len(total.loss))
            answers[side] = bound(total, side, self.value)
            self.noise = bound.noise(total, answers[side])
        self.work += self.points
        return answers.get(-1, 0.0), answers[1]

    def bounds_of_tables(
        self, low: float, high: float, width: float, likely_delta: float, bound: _Bound
    ) -> tuple[float, float]:
        """Return narrower bounds of losses that all are atoms, by their spread; the same ones for others."""
        terms = self.direction.terms
        tables = [
            Table.from_losses(term.losses[0], term.count, self._reach(term, _LEFT_OUT_MASS * likely_delta))
            for term in terms
        ]
        present = [table for table in tables if table is not None]
        if len(present) < len(tables):
            return low, high
        # The bump has the integral rho^2 sqrt(2) asinh(2 r/rho), rho^2 is about k h^2/4, and r is k h.
        bump = math.sqrt(2) / 4 * self.count * math.asinh(4 * math.sqrt(self.count))
        finest = max(max(table.width for table in present) / _MAX_TABLE_POINTS, 1e-14)
        step = max(math.sqrt(width * self.size / ((1 + self.tilt) * bump)), finest)
        is_alone = len(terms) == 1 and len(terms[0].losses) == 1
        for _ in range(_MAX_REFINEMENTS):
            with suppress(TooManyPointsError):
                low = max(low, bound(lower_sum(present, step, self.tilt), -1, self.value))
                if is_alone and high - low > width * high:
                    total = upper_sum(present[0], step, self.tilt, bound.target_epsilon(self.value))
                    high = min(high, bound(total, 1, self.value))
            if high - low <= width * high or step <= finest:
                break
            step = max(step / _TABLE_STEP_DIVISOR, finest)
        return low, high

    def _masses(
        self, term: _Term, step: float, stages: int, max_count: int, likely_delta: float, sides: tuple[int, ...]
    ) -> dict[int, Masses]:
        """Return the masses of a term, which few reports enter at a later stage on its coarser grid."""
        stage = 0
        while stage < stages and term.count * BLOCK ** (stage + 1) <= max_count:
            stage += 1
        step = step * RATIO**stage
        first, *further_losses = term.losses
        reach = self._reach(term, _LEFT_OUT_MASS * likely_delta)
        ratio = RATIO ** (stages - stage)
        window = (
            self._window(term, step, ratio, reach) if ratio > 1 and not further_losses and not self.is_direct else None
        )
        offset = best_offset(first, step, term.rough)
        if window:
            # The lowest losses are in balance on the coarse grid too, of which a share of the next group is taken.
            offset += step * math.ceil((best_offset(first, step * ratio, term.rough) - offset) / step)
        cells = [
            cells_on_grid(losses, step, offset=offset, reach=reach, window=window, ratio=ratio if window else 1)
            for losses in term.losses
        ]
        masses = {}
        if -1 in sides:
            lowest = lower_masses(cells[0], step, term.count)
            masses[-1] = dataclasses.replace(lowest, stage=stage, offset=lowest.offset - term.error)
        upper_bounds = [upper_masses(losses, step, term.count) for losses in cells]
        upper_bound = upper_bounds[0] if len(upper_bounds) == 1 else dominating_masses(upper_bounds, step)
        masses[1] = dataclasses.replace(upper_bound, stage=stage, offset=upper_bound.offset + term.error)
        return masses

    def _sorted(self, term: _Term) -> tuple[RealArray, RealArray, np.ndarray]:
        """Return finite rough losses, increasing, with their masses, and masses tilted to a sum of 1."""
        is_finite = np.isfinite(term.rough.loss)
        order = np.argsort(term.rough.loss[is_finite])
        loss, p = term.rough.loss[is_finite][order], term.rough.p[is_finite][order]
        with np.errstate(all="ignore"):
            logs = np.log(p) + self.tilt * loss
            tilted = np.exp(logs - logs.max(initial=-np.inf))
        return loss, p, tilted / max(tilted.sum(), 1e-300)

    def _reach(self, term: _Term, left_out: float) -> tuple[float, float]:
        """Return losses beyond which masses are negligible for delta."""
        loss, p, _ = self._sorted(term)
        if not len(loss) or len(term.losses) > 1:
            return -np.inf, np.inf
        is_needed_above = np.cumsum(p[::-1])[::-1] * term.count > left_out
        # What is below the lowest loss of the grid counts there, and is tilted accordingly.
        with np.errstate(divide="ignore"):
            log_tail_below = np.log(np.cumsum(p)) + self.tilt * loss
            logs = np.log(p) + self.tilt * loss
        log_total = logs.max() + math.log(np.exp(logs - logs.max()).sum())
        is_needed_below = log_tail_below - log_total + math.log(term.count) > 1.5 * math.log(_LEFT_OUT_MASS)
        stop = min(int(is_needed_above.sum()), len(loss) - 1)
        start = max(int((~is_needed_below).sum()) - 1, 0)
        return (float(loss[start]) if start > 0 else -np.inf), (float(loss[stop]) if stop < len(loss) - 1 else np.inf)

    def _window(self, term: _Term, step: float, ratio: int, reach: tuple[float, float]) -> tuple[float, float] | None:
        """Return a window of losses beyond which losses are rare, if it is much narrower than all losses."""
        loss, _, tilted = self._sorted(term)
        if not len(loss) or not self.is_windowed:
            return None
        mass_below, mass_above = np.cumsum(tilted), np.cumsum(tilted[::-1])[::-1]
        low, high = float(loss[0]), float(loss[-1])
        for rare_count in _RARE:
            if rare_count == _RARE[0] or high - low > _LARGE_WINDOW * step:
                allowed = rare_count / term.count / 2
                start, stop = int(np.searchsorted(mass_below, allowed)), int((mass_above > allowed).sum())
                low, high = float(loss[max(start - 1, 0)]), float(loss[min(stop, len(loss) - 1)])
        full_extent = min(reach[1], float(loss[-1])) - max(reach[0], float(loss[0]))
        if full_extent < _WINDOW_MIN_POINTS * step or high - low > full_extent / _WINDOW_MIN_RATIO:
            return None
        return low - ratio * step, high + ratio * step


# Questions


class _Bound(abc.ABC):
    """A question that bounds of a sum answer: delta at eps, say."""

    @abc.abstractmethod
    def __call__(self, total: ComposedBounds, side: int, guess: float) -> float:
        """Return the answer by an upper (side 1) or lower (side -1) bound of a sum."""

    def noise(self, total: ComposedBounds, answer: float) -> float:
        """Return about the relative error of an answer by errors of transforms and by what wraps around."""
        return 0.0

    def target_epsilon(self, guess: float) -> float:
        """Return the eps in question, or about that."""
        return guess


@dataclass(frozen=True)
class _DeltaAt(_Bound):
    epsilon: float

    def __call__(self, total: ComposedBounds, side: int, guess: float) -> float:
        return total.delta(self.epsilon, side)

    def noise(self, total: ComposedBounds, answer: float) -> float:
        return total.noise(self.epsilon)

    def target_epsilon(self, guess: float) -> float:
        return self.epsilon


@dataclass(frozen=True)
class _EpsilonAt(_Bound):
    delta: float

    def __call__(self, total: ComposedBounds, side: int, guess: float) -> float:
        """Return an eps at which a bound of delta meets the target, rounded to its side."""
        start = total.estimate_epsilon(self.delta)
        if start is None and total.infinite > self.delta:
            return math.inf if side > 0 or total.delta(_MAX_EPSILON, side) > self.delta else 0.0
        guess = guess if start is None else start
        return _least_epsilon(lambda eps: total.delta(eps, side), side, self.delta, guess)

    def noise(self, total: ComposedBounds, answer: float) -> float:
        # The log of delta falls about as fast as the tilt says.
        return total.noise(answer) / max(total.tilt * answer, 1.0) if math.isfinite(answer) else 0.0


@dataclass(frozen=True)
class _CollectedSums(_Bound):
    """The sums themselves."""

    totals: list[ComposedBounds]

    def __call__(self, total: ComposedBounds, side: int, guess: float) -> float:
        self.totals.append(total)
        return 0.0


@dataclass(frozen=True)
class _PowerAt(_Bound):
    """The power at a type I error, or 1 over the type II error if lines are flat: what grows with delta."""

    alpha: float
    epsilon: float
    is_flat: bool

    def __call__(self, total: ComposedBounds, side: int, guess: float) -> float:
        if side > 0:
            delta = total.delta(self.epsilon, 1)
            if not self.is_flat:
                return power_of_line(self.epsilon, delta, self.alpha, 1)
            return 1 / max(error_of_line(self.epsilon, delta, self.alpha, -1), _MIN_ERROR)
        if not self.is_flat:
            return total.test(self.alpha, False)
        error = total.test(self.alpha, True)
        # Where the flat lines are not certain to be the highest ones, the error is at most alpha.
        error = error if error <= self.alpha else max(1 - total.test(self.alpha, False), self.alpha)
        return 1 / max(error, _MIN_ERROR)

    def noise(self, total: ComposedBounds, answer: float) -> float:
        delta = total.delta(self.epsilon, 1)
        power = 1 - self.alpha - delta if self.is_flat else answer
        return total.noise(self.epsilon) * delta / power if power > 0 else 0.0

    def target_epsilon(self, guess: float) -> float:
        return self.epsilon


def _least_epsilon(delta: Callable[[float], float], side: int, target: float, guess: float) -> float:
    """Return an eps, searched from a guess, at which a bound of delta meets the target, rounded to its side."""

    def feasible(eps: float) -> bool:
        return delta(eps) <= target if side > 0 else delta(eps) > target

    if guess > 0:
        # Delta is nearly exponential; the guess does not know the errors.
        log_delta, log_delta_further = (math.log(max(delta(eps), 1e-320)) for eps in (guess, guess * (1 + _SLOPE_STEP)))
        log_excess, slope = log_delta - math.log(target), (log_delta - log_delta_further) / (guess * _SLOPE_STEP)
        start = guess + log_excess / slope if abs(log_excess) < 0.1 * guess * slope else guess
        for margin in _MARGINS[:4]:
            eps = start * (1 + margin * side) if start > 0 else guess
            if feasible(eps):
                if abs(log_excess) < 1e-6:
                    return float(eps)
                break
    low, high = None, max(guess, 1e-3)
    growths = chain(_SEARCH_STEPS, repeat(0.25))
    while delta(high) > target:
        low, high = high, (1 + next(growths)) * high
        if high > _MAX_EPSILON:
            return math.inf if side > 0 else low
    if low is None:
        candidates = (high * (1 - growth) for growth in (*_SEARCH_STEPS, 0.5, 1.0))
        low = next((eps for eps in candidates if delta(eps) > target), None)
    if low is None:
        return 0.0
    solution = root(lambda eps, _: np.log(max(delta(eps), 1e-320) / target), (), high, low, rtol=1e-11)
    with suppress(NotPrivateError):  # Next to the least float delta falls in jumps.
        return first_feasible((float(solution * (1 + margin * side)) for margin in _MARGINS), feasible)
    return math.inf if side > 0 else 0.0
