"""Rigorous brackets of composed guarantees.

All Gaussian noise counts as one release. Losses are rounded to a grid in convex order (``masses``), and summed by FFT,
including all errors (``sums``). The step of the grid follows from the variance of the sum, and its range from the
tails. Mass outside the range counts as infinite loss in the upper bound, and as no mass in the lower bound. Proofs:
docs/proofs/brackets.md and docs/proofs/sums.md.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial

import jax
import numpy as np

from accountants.composition.brackets.cells import cells_on_grid
from accountants.composition.brackets.direct_sums import compose_directly
from accountants.composition.brackets.direction_losses import LARGEST_TILT, ON_LATTICE, DirectionLosses, TermLosses
from accountants.composition.brackets.masses import RATIO, GridReleases, dominating_masses, lower_masses, upper_masses
from accountants.composition.brackets.monotone import NoGridError, TooManyPointsError, split_monotone
from accountants.composition.brackets.offsets import best_offset
from accountants.composition.brackets.sum_quantities import (
    MIN_ERROR,
    DeltaOfSum,
    EpsilonOfSum,
    PowerOfSum,
    SumQuantity,
    SumRecorder,
)
from accountants.composition.brackets.sums import (
    REPORTS_PER_BLOCK,
    ComposedBounds,
    NotRareError,
    compose,
    entry_stage,
    stage_count,
)
from accountants.composition.brackets.table_sums import LossTable, lower_sum, upper_sum
from accountants.composition.closed_form import Bounds
from accountants.composition.repeated import GuaranteeLike, RepeatedReleases
from accountants.composition.trade_off import CurvePoint, Interval, curve_point, points_around_tangent, power_of_line
from accountants.dominating_pairs.additive import AdditivePair, additive_pair
from accountants.dominating_pairs.base import as_float64
from dpkernels import checks
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.numerics import UNIT_ROUNDOFF, Real, RealArray
from dpkernels.proven import proven
from dpkernels.shapes import Float

WIDTH = 1e-5  # The relative width aimed at.
_FIRST_WIDTH = 4.5e-6  # The relative width for which the first grid is chosen, by estimate.
_MAX_REFINEMENTS = 3  # How often the grid is refined at most.
_MIN_STEP_FACTOR = 0.15  # The least factor by which one refinement multiplies a step.
_MIN_DIRECT_STEP_FACTOR = 0.4  # This least factor for sums of positive terms, whose time is that of points squared.
_MAX_STEP_FACTOR = 0.8  # The factor of a step from which on a refinement is not worth its time.
_STEP_GROWTH = 1.5  # By how much a refined step grows while its grid has too many points.
_NARROW_WIDTH = 1e-4  # The relative width up to which the lower bounds of other directions are not computed.
_POWER_WIDTH = 5e-5  # The relative width aimed at of a power, or of a small error.
_MIN_POWER_SHARE = 0.02  # The least value of (1 - power)/power, up to 1, by which ``_POWER_WIDTH`` is multiplied.
_RETILT_WIDTH = 0.1  # The relative width from which on the tilt is chosen once more.
_MAX_POINTS = 1 << 19  # The most points of refined grids.
_MAX_TOTAL_POINTS = 1 << 19  # The points of all grids together beyond which no grid is refined.
_MAX_ENLARGEMENTS = 24  # How often the first grid's step is enlarged if it has too many points.
_MAX_TABLE_POINTS = 1 << 19  # The most points of a table's losses.
_TABLE_STEP_DIVISOR = 4.0  # By how much the step of tables falls from try to try.
_DIRECT_POINT_COST = 16  # For how many points of transforms a point of a sum of positive terms counts.
_ROUNDING_WIDTH = 2e-6  # The relative error of transforms from which on sums of positive terms are tried.
_MAX_DIRECT_COUNT = 10**6  # The most reports of sums of positive terms, whose roundings add up.
_ROUNDING_FACTOR = 3.0  # A bracket is refined if it is wider than this times its errors of transforms.
_MAX_TILTED_STEP = 20.0  # The most by which logs of tilted masses change in a step of the coarsest grid.
_MAX_FIRST_STEP = 1.0  # The largest first step.
_MAX_STEP = 4.0**9  # The largest step.
# The least eps that decides the step, in standard deviations of the sum.
_MIN_EPSILON_SCALE = 0.1
_COARSE_RTOL = 1e-4  # The relative error of delta on a coarse grid.
_MAX_COARSE_ROUNDING = 1e-2  # The relative error of transforms on a coarse grid from which on another tilt is needed.
_LINE_RTOL = 1e-7  # The precision of the eps of a line.
_CANDIDATE_LOG_GAP = 1.0  # How far below the largest log of a power, by estimate, that of the worst direction may be.
_LEFT_OUT_MASS = 1e-9  # The mass of outcomes that are left out, of all reports, relative to delta.
_MIXTURE_LOSSES = 4  # About how many losses a mixture has.
# How much coarser the first grid is of a direction that is not the worst by estimate.
_OTHER_STEP_FACTOR = 4.0
_WINDOW_MIN_POINTS = 1 << 12  # Grids of fewer points have no window: it would not pay.
_WINDOW_MIN_RATIO = 3  # Grids of fewer points than this times those of their window have none either.
_RARE = (1.0, 4.0)  # The mean number, in a sum, of losses outside of the window; the second one if the window is large.
_LARGE_WINDOW = 1 << 16  # The points of a window from which on it is large.
_UNITS_OF_MU = 8  # The roundings of mu of Gaussian noise, besides those of sums, in units in the last place.
_MAX_DEVIATIONS = 40.0  # How many standard deviations the losses of Gaussian noise reach.
_MIN_STAGED_POINTS = 1 << 17  # On a grid of no more points than this stages save no time.
_GRID_DEVIATIONS = 16.0  # How many standard deviations of the sum a grid reaches, by estimate.
_MAX_LATTICE_POINTS = 1 << 18  # The most points of a grid on a lattice of atoms, by estimate.


@proven("brackets#proof-of-5-margins")
@dataclass
class GridBracket(Bounds):
    """Brackets of one guarantee with concrete parameters."""

    guarantee: GuaranteeLike
    width: float = WIDTH

    def delta(self, epsilon: float) -> Interval:
        checks.within("epsilon", epsilon, 0.0, np.inf)
        searches = self._searches(lambda direction: direction.saddle(epsilon))
        likely_delta = math.exp(min(max(search.estimate for search in searches), 0.0))
        return self._refine(searches, likely_delta, None, DeltaOfSum(epsilon), self.width)

    def epsilon(self, delta: float) -> Interval:
        checks.within("delta", delta, 0.0, 1.0, open_ends=True)
        searches = self._searches(lambda direction: direction.saddle_of_delta(delta))
        guess = max(search.estimate for search in searches)
        return self._refine(searches, delta, guess, EpsilonOfSum(delta), self.width)

    @proven("trade_off#proof")
    def curve_point(self, alpha: float, largest_loss: float) -> CurvePoint:
        """Return bounds of the trade-off curve at alpha in (0, 1), from lines below and from tests above.

        Both are those of the composed losses on a grid, which a coarse grid tells the eps of the highest line.
        """
        searches = self._searches(lambda direction: direction.saddle_of_test(alpha))
        likely_delta = math.exp(max(search.estimate for search in searches))
        candidates = [search for search in searches if search.estimate > math.log(likely_delta) - _CANDIDATE_LOG_GAP]
        directions = [_CoarseDirection(search, likely_delta) for search in candidates]
        tangents = [direction.tangent(alpha) for direction in directions]

        def upper_delta(epsilon: float) -> float:
            return max(direction.delta(epsilon) for direction in directions)

        # The highest line of one direction is that of all, if its delta is the largest one there.
        highest = [
            (eps, is_flat)
            for direction, (eps, is_flat) in zip(directions, tangents, strict=True)
            if direction.delta(eps) >= upper_delta(eps) * (1 - _COARSE_RTOL)
        ]
        if not highest:  # It is where the profiles of two directions cross.
            tangent_points = partial(points_around_tangent, upper_delta, largest_loss=largest_loss, rtol=_LINE_RTOL)
            return curve_point(self.delta, tangent_points, alpha, largest_loss)
        eps, is_flat = min(highest[0][0], largest_loss), highest[0][1]
        # A steep line has a power, whose width is that of a smaller error.
        power = min(power_of_line(eps, upper_delta(eps), alpha), 1.0)
        width = _POWER_WIDTH * (1.0 if is_flat else min(max((1 - power) / power, _MIN_POWER_SHARE), 1.0))
        searches = self._searches(lambda direction: direction.saddle(eps))
        likely_delta = math.exp(min(max(search.estimate for search in searches), 0.0))
        low, high = self._refine(searches, likely_delta, None, PowerOfSum(alpha, eps, is_flat), max(width, self.width))
        if not is_flat:
            # Where the steep lines are not certain to be the highest ones, the error is at most alpha.
            return CurvePoint.of_power(min(low, 1 - alpha), high, alpha)
        error = 0.0 if high >= 1 / MIN_ERROR else (1 - 2**-50) / high
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
            index = next((k for k, entry in enumerate(merged) if _is_same(entry, term)), None)
            if index is None:
                merged.append(term)
            else:
                merged[index] = dataclasses.replace(term, count=merged[index].count + term.count)
        if not math.isfinite(gaussian):
            return list(numeric.terms)
        if gaussian > 0:
            merged.append(RepeatedReleases((additive_pair(Gaussian(1 / np.sqrt(gaussian)), np.float64(1.0)),), 1))
        return merged

    def _merged_loss_error(self, gaussian: RepeatedReleases) -> float:
        """Return a bound on the error of the losses of all Gaussian noise as one release, by that of its mu."""
        mu = abs(float(gaussian.mu))
        return (_UNITS_OF_MU + len(self.guarantee.terms)) * UNIT_ROUNDOFF * (_MAX_DEVIATIONS + mu) * mu

    @cached_property
    def _directions(self) -> list[DirectionLosses]:
        """Return the losses of every term, for each neighbour direction and each order of the pairs of a term."""
        orders = range(max(len(term.pairs) for term in self._terms))

        def direction_term(term: RepeatedReleases, mirror: bool, first: int) -> TermLosses:
            with np.errstate(all="ignore"):
                distributions = [term.privacy_loss(pair) for pair in term.pairs]
            split = [split_monotone(loss.mirrored() if mirror else loss) for loss in distributions]
            error = self._merged_loss_error(term) if _is_gaussian(term) else 0.0
            return TermLosses(split[first % len(split) :] + split[: first % len(split)], int(term.count), error)

        return [
            DirectionLosses([direction_term(term, mirror, k) for term in self._terms])
            for mirror in self.guarantee.neighbour_directions
            for k in orders
        ]

    def _searches(self, saddle: Callable[[DirectionLosses], tuple[Real, Real]]) -> list[_DirectionSearch]:
        searches = []
        is_unknown = any(np.isnan(leaf).any() for leaf in jax.tree.leaves(self._terms))
        for direction in () if is_unknown else self._directions:
            with np.errstate(all="ignore"):
                tilt, value = map(float, saddle(direction))
            is_unknown = is_unknown or not (math.isfinite(tilt) and math.isfinite(value))
            searches.append(_DirectionSearch(direction, min(tilt, LARGEST_TILT), value))
        if is_unknown:
            raise NoGridError("epsilon, delta: no tilt was found for a bracket; parameters are out of reach")
        # The upper bound is that of all pairs, in any order: the worst first pair decides the tilt.
        orders = len(searches) // len(self.guarantee.neighbour_directions)
        for start in range(0, len(searches), orders):
            worst = max(searches[start : start + orders], key=lambda candidate: candidate.estimate)
            for ordered in searches[start : start + orders]:
                ordered.tilt, ordered.estimate = worst.tilt, worst.estimate
        return searches

    def _refine(
        self,
        searches: list[_DirectionSearch],
        likely_delta: float,
        epsilon_scale: float | None,
        quantity: SumQuantity,
        width: float,
    ) -> Interval:
        """Return the bracket of all directions, the worst one by estimate first.

        Each direction has up to three steps:

        1. An upper bound on a coarse grid. If it is at most the lower end so far, the direction changes nothing.
        2. An upper bound on a grid as fine as the last one. If it hardly exceeds a bracket that is narrow already, it
           raises the upper end alone.
        3. Otherwise bounds on grids that are refined until their relative width is ``width``.

        The first direction has step 3 alone.
        """
        low, high, step_factor = 0.0, 0.0, 1.0
        for search in sorted(searches, key=lambda candidate: -candidate.estimate):
            step = search.first_step(epsilon_scale) * math.sqrt(width / WIDTH)
            if high > 0.0:
                if search.upper_bound(step * _OTHER_STEP_FACTOR, likely_delta, quantity) <= low:
                    continue
                new_upper = search.upper_bound(step * step_factor, likely_delta, quantity)
                if (
                    math.isfinite(new_upper)
                    and new_upper - high <= width * new_upper
                    and high - low <= _NARROW_WIDTH * high
                ):
                    high = max(high, new_upper)
                    continue
            new_lower, new_upper, last_step = self._refine_direction(search, step, likely_delta, quantity, width)
            low, high, step_factor = max(low, new_lower), max(high, new_upper), last_step / step
        return low, high

    def _refine_direction(
        self, search: _DirectionSearch, step: float, likely_delta: float, quantity: SumQuantity, width: float
    ) -> tuple[float, float, float]:
        """Return (lower, upper) bounds of one direction, and the step of its last grid."""
        is_epsilon = isinstance(quantity, EpsilonOfSum)
        low, high, step = search.bounds_at_feasible_step(step, likely_delta, quantity, (-1, 1))
        if search.rounding_rtol > _ROUNDING_WIDTH and high - low > width * high and search.count <= _MAX_DIRECT_COUNT:
            new_lower, new_upper = search.bounds_of_direct_sums(
                step, likely_delta if is_epsilon else min(likely_delta, high), quantity
            )
            low, high = max(low, new_lower), min(high, new_upper)
        if high - low > width * high and not isinstance(quantity, PowerOfSum):
            low, high = search.bounds_of_tables(low, high, width, likely_delta, quantity)
        last_gap = math.inf
        for _ in range(_MAX_REFINEMENTS):
            gap = high - low
            # Stop if it is narrow, if both ends are infinite, or if the width hardly depends on the grid.
            if (
                not gap > max(width, _ROUNDING_FACTOR * search.rounding_rtol) * high
                or gap > 0.9 * last_gap
                or (low == 0.0 < last_gap < math.inf)
            ):
                break
            least_factor = _MIN_DIRECT_STEP_FACTOR if search.is_direct else _MIN_STEP_FACTOR
            step_factor = max(float(np.sqrt(0.7 * width * high / gap)), least_factor, search.last_points / _MAX_POINTS)
            if step_factor > _MAX_STEP_FACTOR or search.total_points > _MAX_TOTAL_POINTS:
                break
            last_gap = gap
            likely_delta = likely_delta if is_epsilon else min(likely_delta, high)
            if is_epsilon and gap > _RETILT_WIDTH * high and math.isfinite(high) and not search.is_direct:
                search.tilt = min(float(search.direction.saddle(max(low, high / 4))[0]), LARGEST_TILT)
            refined = None
            while refined is None and step_factor <= _MAX_STEP_FACTOR:
                try:
                    refined = search.bounds(step * step_factor, likely_delta, quantity, (-1, 1))
                except TooManyPointsError:
                    step_factor *= _STEP_GROWTH
            if refined is None:
                break
            step *= step_factor
            new_lower, new_upper = refined
            low, high = max(low, new_lower), min(high, new_upper)
        return low, high, step


@dataclass
class _CoarseDirection:
    """Upper bounds of delta of a direction on coarse grids, with a tilt for every eps that needs one of its own."""

    search: _DirectionSearch
    likely_delta: float
    totals: list[ComposedBounds] = field(default_factory=list)

    def _compose(self) -> None:
        step = _OTHER_STEP_FACTOR * self.search.first_step(None)
        self.search.bounds_at_feasible_step(step, self.likely_delta, SumRecorder(self.totals), (1,))

    def tangent(self, alpha: float) -> tuple[float, bool]:
        """Return about the eps of the highest line, and whether it is flat."""
        self._compose()
        return self.totals[0].tangent(alpha)

    def delta(self, epsilon: float) -> float:
        """Return an upper bound of delta at eps."""
        if not any(
            total.delta(epsilon, 1) < 1 and total.delta_rounding_rtol(epsilon) < _MAX_COARSE_ROUNDING
            for total in self.totals
        ):
            with np.errstate(all="ignore"):
                self.search.tilt = min(float(self.search.direction.saddle(epsilon)[0]), LARGEST_TILT)
            self._compose()
        return min(total.delta(epsilon, 1) for total in self.totals)


def _is_gaussian(term: RepeatedReleases) -> bool:
    pair = term.pairs[0]
    if not (term.is_gaussian and isinstance(pair, AdditivePair)):
        return False
    return type(pair.noise) is Gaussian and np.ndim(pair.shift) == 0


def _is_same(first: RepeatedReleases, second: RepeatedReleases) -> bool:
    """Return whether two terms have the same pairs, and so may have one count."""
    (p, tree_p), (q, tree_q) = (jax.tree.flatten(dataclasses.replace(term, count=0)) for term in (first, second))
    return str(tree_p) == str(tree_q) and all(np.array_equal(a, b) for a, b in zip(p, q, strict=True))


@dataclass
class _DirectionSearch:
    """The search for a tilt and a grid on which the bounds of a direction are narrow; its state affects only widths."""

    direction: DirectionLosses
    tilt: float
    estimate: float  # Of log delta, or of eps.
    last_points: int = 0  # The points of the last grid, in those of sums.
    total_points: int = 0  # The points of all grids together.
    epsilon_scale: float = 0.0  # The size of the eps that decides the step.
    is_staged: bool = True  # Whether many reports are composed in stages.
    is_direct: bool = False  # Whether sums are those of positive terms, without a tilt.
    is_on_lattice: bool = True  # Whether the grid is the lattice of all losses, if there is one.
    is_on_atoms: bool = False  # Whether the grid goes through a lattice of the atoms of many terms.
    is_windowed: bool = True  # Whether losses outside of a window, which rough masses take as rare, are apart.
    # About the relative width by errors of the last sums, which no finer grid makes narrower.
    rounding_rtol: float = 0.0

    @property
    def count(self) -> int:
        return sum(term.count for term in self.direction.terms)

    def first_step(self, epsilon_scale: float | None) -> float:
        """Return a step that gives the relative width aimed at: of delta, or of an eps of this size."""
        terms = self.direction.terms
        tilted = [losses.tilted(np.float64(self.tilt)) for losses in self.direction.repeated_losses]
        variance = sum(float(losses.variance) * term.count for losses, term in zip(tilted, terms, strict=True))
        count = self.count
        max_count = max(term.count for term in terms)
        if epsilon_scale is None:
            epsilon_scale = 1 / self.tilt
        else:
            epsilon_scale = max(epsilon_scale, _MIN_EPSILON_SCALE * math.sqrt(variance), 1e-12)
        self.epsilon_scale = epsilon_scale
        step = math.sqrt(8 * _FIRST_WIDTH * epsilon_scale / ((1 + self.tilt) * count))
        losses = [(self._rough_profile(term)[0], term.point_cost) for term in terms]
        weighted_extent = max(
            (point_cost * float(np.ptp(loss)) for loss, point_cost in losses if len(loss)), default=0.0
        )
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
            step *= math.sqrt((1 + stages) / (1 + stages + _MIXTURE_LOSSES * REPORTS_PER_BLOCK**stages / max_count))
        return min(max(step, 1e-14), _MAX_FIRST_STEP)

    def upper_bound(self, step: float, likely_delta: float, quantity: SumQuantity) -> float:
        """Return the upper bound on a grid of this step; inf if it has too many points."""
        try:
            return self.bounds(step, likely_delta, quantity, (1,))[1]
        except TooManyPointsError:
            return math.inf

    def bounds(self, step: float, likely_delta: float, quantity: SumQuantity, sides: tuple[int, ...]) -> Interval:
        """Return (lower, upper) bounds from a grid of this step; only the upper one if the sides are (1,)."""
        direction = self.direction
        stages = stage_count(max(term.count for term in direction.terms)) if self.is_staged or self.is_direct else 0
        if direction.lattice is not None and self.is_on_lattice:
            step, stages = direction.lattice, 0
        elif self.is_on_atoms and not self.is_direct:
            lattice, stages = direction.atom_lattice, 0
            step = lattice / max(math.ceil(lattice / step * (1 - ON_LATTICE)), 1)
        elif direction.widest_gap:  # The two heaviest atoms and their midpoint can be on all grids.
            step = direction.step_on_atoms(step, RATIO**stages, _FIRST_WIDTH * self.epsilon_scale)
        max_count = max(term.count for term in direction.terms)
        masses_of_terms = [self._masses(term, step, stages, max_count, likely_delta, sides) for term in direction.terms]
        answers = {}
        self.last_points = sum(
            len(masses[1].mass) * term.point_cost for term, masses in zip(direction.terms, masses_of_terms, strict=True)
        )
        for side in sides:
            parts = [masses[side] for masses in masses_of_terms]
            if self.is_direct:
                total = compose_directly(parts, step, _LEFT_OUT_MASS * likely_delta, side, stages)
                self.last_points = max(self.last_points, _DIRECT_POINT_COST * max(len(entry.mass) for entry in parts))
            else:
                # On a coarse grid a steeper tilt leaves almost no mass of a contraction.
                tilt = min(self.tilt, _MAX_TILTED_STEP / (step * RATIO**stages)) if stages else self.tilt
                total = compose(parts, step, tilt, side, stages)
            self.last_points = max(self.last_points, len(total.loss))
            answers[side] = quantity(total, side, self.estimate)
            self.rounding_rtol = quantity.rounding_rtol(total, answers[side])
        self.total_points += self.last_points
        return answers.get(-1, 0.0), answers[1]

    def bounds_at_feasible_step(
        self, step: float, likely_delta: float, quantity: SumQuantity, sides: tuple[int, ...]
    ) -> tuple[float, float, float]:
        """Return bounds from a grid of this step, or of a larger one if it has too many points; and the step."""
        for _ in range(_MAX_ENLARGEMENTS):
            try:
                return *self.bounds(step, likely_delta, quantity, sides), step
            except NotRareError:
                self.is_windowed = False
            except TooManyPointsError:
                if step > _MAX_STEP:
                    raise
                is_lattice = self.is_on_lattice and self.direction.lattice is not None
                self.is_on_lattice = self.is_on_lattice and not is_lattice
                step *= 1 if is_lattice or self.is_on_atoms else 4
                self.is_on_atoms = False
        return *self.bounds(step, likely_delta, quantity, sides), step

    def bounds_of_direct_sums(self, step: float, likely_delta: float, quantity: SumQuantity) -> Interval:
        """Return the bracket by sums of positive terms, from now on, if they do not take too long."""
        tilt = self.tilt
        self.is_direct, self.tilt = True, 0.0
        try:
            return self.bounds(step, likely_delta, quantity, (-1, 1))
        except TooManyPointsError:
            self.is_direct, self.tilt = False, tilt
            return 0.0, math.inf

    def bounds_of_tables(
        self, low: float, high: float, width: float, likely_delta: float, quantity: SumQuantity
    ) -> Interval:
        """Return narrower bounds of losses that all are atoms, by their spread; the same ones for others."""
        terms = self.direction.terms
        tables = [
            LossTable.from_losses(term.losses[0], term.count, self._reach(term, _LEFT_OUT_MASS * likely_delta))
            for term in terms
        ]
        present = [table for table in tables if table is not None]
        if len(present) < len(tables):
            return low, high
        # The bump has the integral rho^2 sqrt(2) asinh(2 r/rho), rho^2 is about k h^2/4, and r is k h.
        bump = math.sqrt(2) / 4 * self.count * math.asinh(4 * math.sqrt(self.count))
        least_step = max(max(table.width for table in present) / _MAX_TABLE_POINTS, 1e-14)
        step = max(math.sqrt(width * self.epsilon_scale / ((1 + self.tilt) * bump)), least_step)
        is_alone = len(terms) == 1 and len(terms[0].losses) == 1
        for _ in range(_MAX_REFINEMENTS):
            with suppress(TooManyPointsError):
                low = max(low, quantity(lower_sum(present, step, self.tilt), -1, self.estimate))
                if is_alone and high - low > width * high:
                    total = upper_sum(present[0], step, self.tilt, quantity.target_epsilon(self.estimate))
                    high = min(high, quantity(total, 1, self.estimate))
            if high - low <= width * high or step <= least_step:
                break
            step = max(step / _TABLE_STEP_DIVISOR, least_step)
        return low, high

    def _masses(
        self, term: TermLosses, step: float, stages: int, max_count: int, likely_delta: float, sides: tuple[int, ...]
    ) -> dict[int, GridReleases]:
        """Return the masses of a term on the grid of the stage at which it enters the sum."""
        stage = entry_stage(term.count, max_count, stages)
        step = step * RATIO**stage
        first, *further = term.losses
        reach = self._reach(term, _LEFT_OUT_MASS * likely_delta)
        ratio = RATIO ** (stages - stage)
        window = self._window(term, step, ratio, reach) if ratio > 1 and not further and not self.is_direct else None
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

    def _rough_profile(
        self, term: TermLosses
    ) -> tuple[Float[RealArray, " outcomes"], Float[RealArray, " outcomes"], Float[np.ndarray, " outcomes"]]:
        """Return finite rough losses, increasing, with their masses, and masses tilted to a sum of 1."""
        is_finite = np.isfinite(term.rough.loss)
        order = np.argsort(term.rough.loss[is_finite])
        loss, p = term.rough.loss[is_finite][order], term.rough.p[is_finite][order]
        with np.errstate(all="ignore"):
            logs = np.log(p) + self.tilt * loss
            tilted = np.exp(logs - logs.max(initial=-np.inf))
        return loss, p, tilted / max(tilted.sum(), 1e-300)

    def _reach(self, term: TermLosses, left_out: float) -> Interval:
        """Return losses beyond which masses are negligible for delta."""
        loss, p, _ = self._rough_profile(term)
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

    def _window(self, term: TermLosses, step: float, ratio: int, reach: Interval) -> Interval | None:
        """Return a window of losses beyond which losses are rare, if it is much narrower than all losses."""
        loss, _, tilted = self._rough_profile(term)
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
