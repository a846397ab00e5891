"""Rigorous brackets of composed guarantees.

All Gaussian noise counts as one release. Losses are put on a grid, in convex order (``masses``), and summed by
FFT, with every error included (``sums``). The grid's step follows from the variance of the sum, and its reach from the
tails. Mass that is left out counts as infinite loss in the upper bound, and as no mass in the lower bound. Proofs:
docs/proofs/brackets.md and docs/proofs/sums.md.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat
from typing import Any, Protocol

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
from accountants.composition.brackets.masses import RATIO, Masses, above, below, dominating_masses
from accountants.composition.brackets.sums import (
    BLOCK,
    ComposedBounds,
    NotRareError,
    compose,
    compose_directly,
    stage_count,
)
from accountants.composition.brackets.table_sums import Table, lower_sum, upper_sum
from accountants.composition.self_composed import MAX_TILT, LossTuple, RepeatedLoss, RepeatedReleases
from accountants.composition.trade_off import (
    CurvePoint,
    curve_point,
    error_of_line,
    points_around_tangent,
    power_of_line,
)
from accountants.dominating_pairs.additive import AdditivePair, additive_pair
from accountants.dominating_pairs.base import as_float64
from accountants.loss_intervals import UNIT
from accountants.privacy_loss import PrivacyLossDistribution
from dpkernels import checks
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.numerics import Real
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
class GridBracket:
    """Brackets of one guarantee with concrete parameters."""

    guarantee: Any
    width: float = WIDTH

    def delta(self, epsilon: float) -> tuple[float, float]:
        checks.within("epsilon", epsilon, 0.0, np.inf)
        directions = self._estimated(lambda one: one.saddle(epsilon))
        likely = math.exp(min(max(one.value for one in directions), 0.0))
        return self._refined(directions, likely, None, _DeltaAt(epsilon), self.width)

    def upper_delta(self, epsilon: float) -> float:
        """Return the upper end of the bracket of delta at eps."""
        return self.delta(epsilon)[1]

    def epsilon(self, delta: float) -> tuple[float, float]:
        checks.within("delta", delta, 0.0, 1.0, open_ends=True)
        directions = self._estimated(lambda one: one.guess(delta))
        guess = max(one.value for one in directions)
        return self._refined(directions, delta, guess, _EpsilonAt(delta), self.width)

    def upper_epsilon(self, delta: float) -> float:
        """Return the upper end of the bracket of eps at delta."""
        return self.epsilon(delta)[1]

    @proven("trade_off#proof")
    def errors(self, alpha: float, largest_loss: float) -> CurvePoint:
        """Return bounds of the trade-off curve at alpha in (0, 1), from lines below and from tests above.

        Both are those of the composed losses on a grid, which a coarse grid tells the eps of the highest line.
        """
        directions = _CoarseDirections(self._estimated(lambda one: one.saddle_of_test(alpha)))
        tangents = directions.tangents(alpha)
        # The highest line of one direction is that of all, if its delta is the largest one there.
        best = [
            (eps, is_flat)
            for one, eps, is_flat in tangents
            if directions.delta(one, eps) >= directions.upper_delta(eps) * (1 - _COARSE_RTOL)
        ]
        if not best:  # It is where the profiles of two directions cross.

            def places(alpha: float, is_flat: bool) -> np.ndarray:
                return points_around_tangent(directions.upper_delta, alpha, is_flat, largest_loss, _LINE_RTOL)

            return curve_point(self.delta, places, alpha, largest_loss)
        eps, is_flat = min(best[0][0], largest_loss), best[0][1]
        # A steep line has a power, whose width is that of a smaller error.
        power = min(power_of_line(eps, directions.upper_delta(eps), alpha), 1.0)
        width = _POWER_WIDTH * (1.0 if is_flat else min(max((1 - power) / power, _MIN_POWER_SHARE), 1.0))
        estimates = self._estimated(lambda one: one.saddle(eps))
        likely = math.exp(min(max(one.value for one in estimates), 0.0))
        low, high = self._refined(estimates, likely, None, _PowerAt(alpha, eps, is_flat), max(width, self.width))
        if not is_flat:
            # Where the steep lines are not certain to be the highest ones, the error is at most alpha.
            return CurvePoint.of_power(min(low, 1 - alpha), high, alpha)
        error = 0.0 if high >= 1 / _MIN_ERROR else (1 - 2**-50) / high
        return CurvePoint.of_error(error, (1 + 2**-50) / low if low > 0 else 1.0, alpha)

    @cached_property
    def _terms(self) -> list[RepeatedReleases]:
        """Return the terms with all Gaussian noise as one release, and equal terms as one."""
        numeric = as_float64(self.guarantee)
        gaussian, others = 0.0, []
        for term in numeric.terms:
            if _is_gaussian(term):
                gaussian += float(term.count) * float(term.pairs[0].shift / term.pairs[0].noise.sigma) ** 2
            else:
                others.append(term)
        merged: list[RepeatedReleases] = []
        for term in others:
            same = next((k for k, known in enumerate(merged) if _is_same(known, term)), None)
            if same is None:
                merged.append(term)
            else:
                merged[same] = dataclasses.replace(term, count=merged[same].count + term.count)
        if not math.isfinite(gaussian):
            return list(numeric.terms)
        if gaussian > 0:
            merged.append(RepeatedReleases((additive_pair(Gaussian(1 / np.sqrt(gaussian)), np.float64(1.0)),), 1))
        return merged

    def _error_of_merged(self, gaussian: RepeatedReleases) -> float:
        """Return a bound on the error of the losses of all Gaussian noise as one release, by that of its mu."""
        mu = abs(float(gaussian.pairs[0].shift / gaussian.pairs[0].noise.sigma))
        return (_UNITS_OF_MU + len(self.guarantee.terms)) * UNIT * (_MAX_DEVIATIONS + mu) * mu

    @cached_property
    def _directions(self) -> list[_Direction]:
        """Return the losses of every term, for each neighbour direction and each order of the pairs of a term."""
        orders = range(max(len(term.pairs) for term in self._terms))

        def losses(term: RepeatedReleases, mirror: bool, first: int) -> _Term:
            with np.errstate(all="ignore"):
                every = [term.privacy_loss(pair) for pair in term.pairs]
            split = [split_monotone(one.mirrored() if mirror else one) for one in every]
            error = self._error_of_merged(term) if _is_gaussian(term) else 0.0
            return _Term(split[first % len(split) :] + split[: first % len(split)], int(term.count), error)

        return [
            _Direction([losses(term, mirror, k) for term in self._terms])
            for mirror in self.guarantee.neighbour_directions
            for k in orders
        ]

    def _estimated(self, estimate: Callable[[_Direction], tuple[Any, Any]]) -> list[_Estimate]:
        estimates = []
        unknown = any(np.isnan(leaf).any() for leaf in jax.tree.leaves(self._terms))
        for direction in () if unknown else self._directions:
            with np.errstate(all="ignore"):
                tilt, value = map(float, estimate(direction))
            unknown = unknown or not (math.isfinite(tilt) and math.isfinite(value))
            estimates.append(_Estimate(direction, min(tilt, _MAX_TILT), value))
        if unknown:
            raise NoGridError("epsilon, delta: no tilt was found for a bracket; parameters are out of reach")
        # The upper bound is that of all pairs, in any order: the worst first pair decides the tilt.
        orders = len(estimates) // len(self.guarantee.neighbour_directions)
        for start in range(0, len(estimates), orders):
            worst = max(estimates[start : start + orders], key=lambda one: one.value)
            for each in estimates[start : start + orders]:
                each.tilt, each.value = worst.tilt, worst.value
        return estimates

    def _refined(
        self, estimates: list[_Estimate], likely: float, size: float | None, bound: _Bound, width: float
    ) -> tuple[float, float]:
        """Return the bracket, refining the grid until its relative width is narrow.

        The direction that is the worst one by estimate comes first. Of another one a coarse grid is enough if its upper
        bound is below the lower bound of the first, and that bound alone if it is not above the first bracket, which is
        narrow.
        """
        low, high, finer = 0.0, 0.0, 1.0
        for estimate in sorted(estimates, key=lambda one: -one.value):
            step = estimate.first_step(size) * math.sqrt(width / WIDTH)
            if high > 0.0:
                if estimate.upper_bound(step * _OTHER_STEP_FACTOR, likely, bound) <= low:
                    continue
                top = estimate.upper_bound(step * finer, likely, bound)
                if math.isfinite(top) and top - high <= width * top and high - low <= _NARROW_WIDTH * high:
                    high = max(high, top)
                    continue
            bottom, top, last = self._of_direction(estimate, step, likely, bound, width, is_of_epsilon=size is not None)
            low, high, finer = max(low, bottom), max(high, top), last / step
        return low, high

    def _of_direction(
        self, estimate: _Estimate, step: float, likely: float, bound: _Bound, width: float, *, is_of_epsilon: bool
    ) -> tuple[float, float, float]:
        """Return (lower, upper) bounds of one direction, and the step of its last grid."""
        low, high, step = self._at_a_step(estimate, step, likely, bound, (-1, 1))
        if estimate.noise > _NOISY_WIDTH and high - low > width * high and estimate.count <= _MAX_DIRECT_COUNT:
            bottom, top = self._directly(estimate, step, likely if is_of_epsilon else min(likely, high), bound)
            low, high = max(low, bottom), min(high, top)
        if high - low > width * high and not isinstance(bound, _PowerAt):
            low, high = estimate.bounds_of_tables(low, high, width, likely, bound)
        last = math.inf
        for _ in range(_MAX_REFINEMENTS):
            gap = high - low
            # Stop if it is narrow, if both ends are infinite, or if the width hardly depends on the grid.
            if (
                not gap > max(width, _NOISE_FACTOR * estimate.noise) * high
                or gap > 0.9 * last
                or (low == 0.0 < last < math.inf)
            ):
                break
            finest = _MIN_DIRECT_STEP_FACTOR if estimate.is_direct else _MIN_STEP_FACTOR
            finer = max(float(np.sqrt(0.7 * width * high / gap)), finest, estimate.points / _MAX_POINTS)
            if finer > _MAX_STEP_FACTOR or estimate.work > _MAX_WORK:
                break
            last = gap
            likely = likely if is_of_epsilon else min(likely, high)
            if is_of_epsilon and gap > _RETILT_WIDTH * high and math.isfinite(high) and not estimate.is_direct:
                estimate.tilt = min(float(estimate.direction.saddle(max(low, high / 4))[0]), _MAX_TILT)
            refined = None
            while refined is None and finer <= _MAX_STEP_FACTOR:
                try:
                    refined = estimate.bounds(step * finer, likely, bound, (-1, 1))
                except TooManyPointsError:
                    finer *= _STEP_GROWTH
            if refined is None:
                break
            step *= finer
            bottom, top = refined
            low, high = max(low, bottom), min(high, top)
        return low, high, step

    @staticmethod
    def _at_a_step(
        estimate: _Estimate, step: float, likely: float, bound: _Bound, sides: tuple[int, ...]
    ) -> tuple[float, float, float]:
        """Return bounds from a grid of this step, or of a larger one if it has too many points; and the step."""
        for _ in range(_MAX_ENLARGEMENTS):
            try:
                return *estimate.bounds(step, likely, bound, sides), step
            except NotRareError:
                estimate.is_windowed = False
            except TooManyPointsError:
                if step > _MAX_STEP:
                    raise
                is_lattice = estimate.is_on_lattice and estimate.direction.lattice is not None
                estimate.is_on_lattice = estimate.is_on_lattice and not is_lattice
                step *= 1 if is_lattice or estimate.is_on_atoms else 4
                estimate.is_on_atoms = False
        return *estimate.bounds(step, likely, bound, sides), step

    @staticmethod
    def _directly(estimate: _Estimate, step: float, likely: float, bound: _Bound) -> tuple[float, float]:
        """Return the bracket by sums of positive terms, from now on, if they do not take too long."""
        tilt = estimate.tilt
        estimate.is_direct, estimate.tilt = True, 0.0
        try:
            return estimate.bounds(step, likely, bound, (-1, 1))
        except TooManyPointsError:
            estimate.is_direct, estimate.tilt = False, tilt
            return 0.0, math.inf


class _CoarseDirections:
    """Upper bounds of delta of all directions on coarse grids, with a tilt for every eps that needs one of its own."""

    def __init__(self, estimates: list[_Estimate]) -> None:
        self.likely = math.exp(max(one.value for one in estimates))
        self.estimates = [one for one in estimates if one.value > math.log(self.likely) - _DECISIVE_LOG]
        self.totals: list[list[ComposedBounds]] = [[] for _ in self.estimates]

    def tangents(self, alpha: float) -> list[tuple[int, float, bool]]:
        """Return the number of each direction, and about the eps of its highest line, and whether it is flat."""
        for number in range(len(self.estimates)):
            self._compose(number)
        return [(number, *totals[0].tangent(alpha)) for number, totals in enumerate(self.totals)]

    def _compose(self, number: int) -> None:
        estimate = self.estimates[number]
        step = _OTHER_STEP_FACTOR * estimate.first_step(None)
        GridBracket._at_a_step(estimate, step, self.likely, _Kept(self.totals[number]), (1,))

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
    (pair, *others) = term.pairs
    is_noise = isinstance(pair, AdditivePair) and not others and term.sampling_rate is None
    return is_noise and type(pair.noise) is Gaussian and np.ndim(pair.shift) == 0


def _is_same(one: RepeatedReleases, other: RepeatedReleases) -> bool:
    (first, structure), (second, same) = (jax.tree.flatten(dataclasses.replace(term, count=0)) for term in (one, other))
    return str(structure) == str(same) and all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


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
        known = [pieces.intervals is not None for loss in self.losses for pieces in loss.pieces]
        return 1 if not known else _TAIL_POINT_COST if all(known) else _INTEGRAL_POINT_COST

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
        places = (loss - offset) / gap
        if np.abs(places).max() > 1 << 20:
            return None
        for parts in (1, 2):
            if np.abs(parts * places - np.round(parts * places)).max() <= _ON_LATTICE * parts:
                return offset, gap / parts
        return None


@dataclass
class _Direction:
    """The losses of all terms in one neighbour direction."""

    terms: list[_Term]

    @cached_property
    def repeated(self) -> LossTuple:
        return tuple(RepeatedLoss(term.rough, np.float64(0.0), np.float64(term.count)) for term in self.terms)

    def saddle(self, epsilon: float) -> tuple[Any, Any]:
        """Return the tilt for an eps, and an estimate of log delta."""
        c = self_composed.saddle_point(self.repeated, np.float64(epsilon))
        if c <= _MAX_TILT:
            return c, self_composed.approximate(self.repeated, c)[0]
        # Next to the largest loss, or beyond it: the Chernoff bound.
        return c, self_composed.cumulants(self.repeated, np.float64(_MAX_TILT))[0] - _MAX_TILT * epsilon

    def saddle_of_test(self, alpha: float) -> tuple[Real, Real]:
        """Return the tilt for the highest line at alpha, and an estimate of the log of the power.

        Delta falls like e^(-c eps), so that about c delta = e^eps q and (1 + c) delta = p, of the masses beyond eps.
        The steep line is that of q = alpha, and the flat one that of p = 1 - alpha.
        """
        lines = []
        infinite = float(self_composed.infinity_mass(self.repeated))
        largest = float(sum(part.count * part.largest_loss(1) for part in self.repeated))
        for is_flat in (False, True):

            def log_mass(log_c: float, is_flat: bool = is_flat) -> float:
                c = np.exp(log_c)
                log_delta, eps, _ = self_composed.approximate(self.repeated, c)
                return float(log_delta + (np.log1p(c) if is_flat else log_c - eps))

            low, high = math.log(_MIN_TILT), math.log(_MAX_TILT)
            # An atom at the largest loss may have more mass. Steeper tilts lose all others.
            goal = max(math.log1p(-alpha) if is_flat else math.log(alpha), log_mass(high) + _LOG_ABOVE_ATOM)
            is_inside = log_mass(low) > goal
            c = math.exp(root(lambda x, _: log_mass(x) - goal, (), high, low, rtol=1e-4) if is_inside else low)  # noqa: B023
            log_delta, eps, _ = map(float, self_composed.approximate(self.repeated, np.float64(c)))
            if eps <= 0:
                c, log_delta, eps = *map(float, self.saddle(0.0)), 0.0
            delta = math.exp(min(log_delta, 0.0))
            power = 1 - error_of_line(eps, delta, alpha) if is_flat else power_of_line(eps, delta, alpha)
            lines.append((power, c))
        power, c = min(lines)
        power = min(power, power_of_line(largest, infinite, alpha))
        return min(c, _MAX_TILT), math.log(min(max(power, alpha), 1.0))

    def guess(self, delta: float) -> tuple[Real, Real]:
        target = max(delta - float(self_composed.infinity_mass(self.repeated)), delta / 2)
        c, eps = self_composed.saddle_point_of_delta(self.repeated, np.log(np.float64(target)))
        return c, np.maximum(eps, 0.0)

    @cached_property
    def lattice(self) -> float | None:
        """Return the step of a lattice of the losses of all terms, if there is one."""
        lattices = [term.lattice() for term in self.terms]
        steps = [one[1] for one in lattices if one is not None]
        if len(steps) < len(lattices) or not max(steps):
            return None
        step = min(one for one in steps if one)
        ratios = [one / step for one in steps]
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
        parts = gaps / step
        is_lattice = parts.max() <= _MAX_LATTICE_PARTS and np.abs(parts - np.round(parts)).max() <= _ON_LATTICE
        return step if is_lattice else 0.0

    def step_on_atoms(self, step: float, coarsest: int, negligible: float) -> float:
        """Return a step, at most this one, with the two heaviest atoms on all grids.

        It is the first one for which the others are next to the coarsest grid, but for a negligible loss in all.
        """
        if self.gap < step:
            return step
        while self.gap < coarsest * step:  # So fine a grid would have too many points.
            coarsest //= RATIO
        least = math.ceil(self.gap / (coarsest * step))
        parts = least + np.arange(min(_MAX_CHOICES, 1 + least // 2))
        steps = self.gap / (coarsest * parts)
        beside = np.zeros(len(parts))
        for term in self.terms:
            loss, p = different_atoms(term.losses[0])
            place = (loss - term.atoms[0]) / (coarsest * steps[:, None])
            beside += term.count * ((place - np.floor(place + _ON_LATTICE)) * p).sum(1) * coarsest * steps
        return float(steps[int((beside <= max(negligible, float(beside.min()))).argmax())])

    @cached_property
    def gap(self) -> float:
        every = [(term.count * term.atoms[2], term.atoms[1]) for term in self.terms]
        return max(every)[1]


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
        parts = [part.tilted(np.float64(c)) for part in self.direction.repeated]
        variance = sum(float(part.variance) * term.count for part, term in zip(parts, terms, strict=True))
        count = self.count
        most = max(term.count for term in terms)
        self.size = size = 1 / c if size is None else max(size, _MIN_SIZE * math.sqrt(variance), 1e-12)
        step = math.sqrt(8 * _FIRST_WIDTH * size / ((1 + c) * count))
        losses = [(self._sorted(term)[0], term.weight) for term in terms]
        reach = max((weight * float(np.ptp(loss)) for loss, weight in losses if len(loss)), default=0.0)
        extent, lattice = _GRID_DEVIATIONS * math.sqrt(variance) + reach, self.direction.atom_lattice
        self.is_on_atoms = 0 < extent <= _MAX_LATTICE_POINTS * lattice
        self.is_staged = extent > _MIN_STAGED_POINTS * step and not self.is_on_atoms
        if self.is_on_atoms:  # What is between the atoms is little, so that few points suffice.
            return lattice
        if not self.is_staged:
            return min(max(step, 1e-14), _MAX_FIRST_STEP)
        stages = stage_count(most)
        step /= math.sqrt(1 + stages)
        if any(self._window(term, step, RATIO**stages, (-np.inf, np.inf)) for term in terms if stages):
            # A mixture has further losses on the last grid.
            step *= math.sqrt((1 + stages) / (1 + stages + _MIXTURE_LOSSES * BLOCK**stages / most))
        return min(max(step, 1e-14), _MAX_FIRST_STEP)

    def upper_bound(self, step: float, likely: float, bound: _Bound) -> float:
        """Return the upper bound on a grid of this step; inf if it has too many points."""
        try:
            return self.bounds(step, likely, bound, (1,))[1]
        except TooManyPointsError:
            return math.inf

    def bounds(self, step: float, likely: float, bound: _Bound, sides: tuple[int, ...]) -> tuple[float, float]:
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
        most = max(term.count for term in direction.terms)
        several = [self._masses(term, step, stages, most, likely, sides) for term in direction.terms]
        answers = {}
        self.points = sum(
            len(masses[1].mass) * term.weight for term, masses in zip(direction.terms, several, strict=True)
        )
        for side in sides:
            parts = [masses[side] for masses in several]
            if self.is_direct:
                total = compose_directly(parts, step, _LEFT_OUT_MASS * likely, side, stages)
                self.points = max(self.points, _DIRECT_POINT_COST * max(len(part.mass) for part in parts))
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
        self, low: float, high: float, width: float, likely: float, bound: _Bound
    ) -> tuple[float, float]:
        """Return narrower bounds of losses that all are atoms, by their spread; the same ones for others."""
        terms = self.direction.terms
        tables = [Table.of(term.losses[0], term.count, self._reach(term, _LEFT_OUT_MASS * likely)) for term in terms]
        known = [table for table in tables if table is not None]
        if len(known) < len(tables):
            return low, high
        # The bump has the integral rho^2 sqrt(2) asinh(2 r/rho), rho^2 is about k h^2/4, and r is k h.
        bump = math.sqrt(2) / 4 * self.count * math.asinh(4 * math.sqrt(self.count))
        finest = max(max(table.width for table in known) / _MAX_TABLE_POINTS, 1e-14)
        step = max(math.sqrt(width * self.size / ((1 + self.tilt) * bump)), finest)
        is_alone = len(terms) == 1 and len(terms[0].losses) == 1
        for _ in range(_MAX_REFINEMENTS):
            with suppress(TooManyPointsError):
                low = max(low, bound(lower_sum(known, step, self.tilt), -1, self.value))
                if is_alone and high - low > width * high:
                    total = upper_sum(known[0], step, self.tilt, bound.place(self.value))
                    high = min(high, bound(total, 1, self.value))
            if high - low <= width * high or step <= finest:
                break
            step = max(step / _TABLE_STEP_DIVISOR, finest)
        return low, high

    def _masses(
        self, term: _Term, step: float, stages: int, most: int, likely: float, sides: tuple[int, ...]
    ) -> dict[int, Masses]:
        """Return the masses of a term, which few reports enter at a later stage on its coarser grid."""
        stage = 0
        while stage < stages and term.count * BLOCK ** (stage + 1) <= most:
            stage += 1
        step = step * RATIO**stage
        first, *others = term.losses
        reach = self._reach(term, _LEFT_OUT_MASS * likely)
        ratio = RATIO ** (stages - stage)
        window = self._window(term, step, ratio, reach) if ratio > 1 and not others and not self.is_direct else None
        offset = best_offset(first, step, term.rough)
        if window:
            # The lowest losses are in balance on the coarse grid too, of which a share of the next group is taken.
            offset += step * math.ceil((best_offset(first, step * ratio, term.rough) - offset) / step)
        cells = [
            cells_on_grid(one, step, offset=offset, reach=reach, window=window, ratio=ratio if window else 1)
            for one in term.losses
        ]
        masses = {}
        if -1 in sides:
            lowest = below(cells[0], step, term.count)
            masses[-1] = dataclasses.replace(lowest, stage=stage, offset=lowest.offset - term.error)
        upper = [above(one, step, term.count) for one in cells]
        whole = upper[0] if len(upper) == 1 else dominating_masses(upper, step)
        masses[1] = dataclasses.replace(whole, stage=stage, offset=whole.offset + term.error)
        return masses

    def _sorted(self, term: _Term) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return finite rough losses, increasing, with their masses, and masses tilted to a sum of 1."""
        some = np.isfinite(term.rough.loss)
        order = np.argsort(term.rough.loss[some])
        loss, p = term.rough.loss[some][order], term.rough.p[some][order]
        with np.errstate(all="ignore"):
            logs = np.log(p) + self.tilt * loss
            tilted = np.exp(logs - logs.max(initial=-np.inf))
        return loss, p, tilted / max(tilted.sum(), 1e-300)

    def _reach(self, term: _Term, left_out: float) -> tuple[float, float]:
        """Return losses beyond which masses are negligible for delta."""
        loss, p, _ = self._sorted(term)
        if not len(loss) or len(term.losses) > 1:
            return -np.inf, np.inf
        high = np.cumsum(p[::-1])[::-1] * term.count > left_out
        # What is below the lowest loss of the grid counts there, and is tilted accordingly.
        with np.errstate(divide="ignore"):
            below_there = np.log(np.cumsum(p)) + self.tilt * loss
            logs = np.log(p) + self.tilt * loss
        log_total = logs.max() + math.log(np.exp(logs - logs.max()).sum())
        low = below_there - log_total + math.log(term.count) > 1.5 * math.log(_LEFT_OUT_MASS)
        stop = min(int(high.sum()), len(loss) - 1)
        start = max(int((~low).sum()) - 1, 0)
        return (float(loss[start]) if start > 0 else -np.inf), (float(loss[stop]) if stop < len(loss) - 1 else np.inf)

    def _window(self, term: _Term, step: float, ratio: int, reach: tuple[float, float]) -> tuple[float, float] | None:
        """Return a window of losses beyond which losses are rare, if it is much narrower than all losses."""
        loss, _, tilted = self._sorted(term)
        if not len(loss) or not self.is_windowed:
            return None
        up, down = np.cumsum(tilted), np.cumsum(tilted[::-1])[::-1]
        low, high = float(loss[0]), float(loss[-1])
        for rare in _RARE:
            if rare == _RARE[0] or high - low > _LARGE_WINDOW * step:
                allowed = rare / term.count / 2
                start, stop = int(np.searchsorted(up, allowed)), int((down > allowed).sum())
                low, high = float(loss[max(start - 1, 0)]), float(loss[min(stop, len(loss) - 1)])
        whole = min(reach[1], float(loss[-1])) - max(reach[0], float(loss[0]))
        if whole < _WINDOW_MIN_POINTS * step or high - low > whole / _WINDOW_MIN_RATIO:
            return None
        return low - ratio * step, high + ratio * step


# Questions


class _Bound(Protocol):
    """A question that bounds of a sum answer: delta at eps, say."""

    def __call__(self, total: ComposedBounds, side: int, guess: float) -> float: ...

    def noise(self, total: ComposedBounds, answer: float) -> float:
        """Return about the relative error of an answer by errors of transforms and by what wraps around."""

    def place(self, guess: float) -> float:
        """Return the eps in question, or about that."""


@dataclass(frozen=True)
class _DeltaAt:
    epsilon: float

    def __call__(self, total: ComposedBounds, side: int, guess: float) -> float:
        return total.delta(self.epsilon, side)

    def noise(self, total: ComposedBounds, answer: float) -> float:
        return total.noise(self.epsilon)

    def place(self, guess: float) -> float:
        return self.epsilon


@dataclass(frozen=True)
class _EpsilonAt:
    delta: float

    def __call__(self, total: ComposedBounds, side: int, guess: float) -> float:
        """Return an eps at which a bound of delta meets the target, rounded to its side."""
        near = total.epsilon_near(self.delta)
        if near is None and total.infinite > self.delta:
            return math.inf if side > 0 or total.delta(_MAX_EPSILON, side) > self.delta else 0.0
        guess = guess if near is None else near
        return _least_of(lambda eps: total.delta(eps, side), side, self.delta, guess)

    def noise(self, total: ComposedBounds, answer: float) -> float:
        # The log of delta falls about as fast as the tilt says.
        return total.noise(answer) / max(total.tilt * answer, 1.0) if math.isfinite(answer) else 0.0

    def place(self, guess: float) -> float:
        return guess


@dataclass(frozen=True)
class _Kept:
    """The sums themselves."""

    totals: list[ComposedBounds]

    def __call__(self, total: ComposedBounds, side: int, guess: float) -> float:
        self.totals.append(total)
        return 0.0

    def noise(self, total: ComposedBounds, answer: float) -> float:
        return 0.0

    def place(self, guess: float) -> float:
        return guess


@dataclass(frozen=True)
class _PowerAt:
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
        whole = 1 - self.alpha - delta if self.is_flat else answer
        return total.noise(self.epsilon) * delta / whole if whole > 0 else 0.0

    def place(self, guess: float) -> float:
        return self.epsilon


def _least_of(delta_at: Callable[[float], float], side: int, target: float, guess: float) -> float:
    """Return an eps, searched from a guess, at which a bound of delta meets the target, rounded to its side."""

    def feasible(eps: float) -> bool:
        return delta_at(eps) <= target if side > 0 else delta_at(eps) > target

    if guess > 0:
        # Delta is nearly exponential; the guess does not know the errors.
        at_guess, further = (math.log(max(delta_at(eps), 1e-320)) for eps in (guess, guess * (1 + _SLOPE_STEP)))
        off, slope = at_guess - math.log(target), (at_guess - further) / (guess * _SLOPE_STEP)
        near = guess + off / slope if abs(off) < 0.1 * guess * slope else guess
        for margin in _MARGINS[:4]:
            eps = near * (1 + margin * side) if near > 0 else guess
            if feasible(eps):
                if abs(off) < 1e-6:
                    return float(eps)
                break
    low, high = None, max(guess, 1e-3)
    shares = chain(_SEARCH_STEPS, repeat(0.25))
    while delta_at(high) > target:
        low, high = high, (1 + next(shares)) * high
        if high > _MAX_EPSILON:
            return math.inf if side > 0 else low
    if low is None:
        tried = (high * (1 - share) for share in (*_SEARCH_STEPS, 0.5, 1.0))
        low = next((eps for eps in tried if delta_at(eps) > target), None)
    if low is None:
        return 0.0
    found = root(lambda eps, _: np.log(max(delta_at(eps), 1e-320) / target), (), high, low, rtol=1e-11)
    with suppress(NotPrivateError):  # Next to the least float delta falls in jumps.
        return first_feasible((float(found * (1 + margin * side)) for margin in _MARGINS), feasible)
    return math.inf if side > 0 else 0.0
