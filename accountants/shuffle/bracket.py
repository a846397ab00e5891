"""Rigorous bounds for shuffled reports: the sum of losses on a grid, including errors of transforms and rounding.

Bounds use the convex order. To split an outcome of L between two grid points without changing its mean increases E[(L_1
+ ... + L_M)_+]. A distribution whose E(L - t)_+ is a polygon below the true function decreases it
(docs/proofs/shuffle.md). Both errors are of second order in the step if outcomes are dense, so sums of 2^j reports are
first formed outcome by outcome. A bound over many pairs of inputs uses the maximum of their E(L - t)_+ at some t, with
linear interpolation.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from accountants.composition.brackets.masses import RATIO, GridReleases
from accountants.composition.brackets.monotone import TooManyPointsError
from accountants.composition.brackets.sums import ComposedBounds, compose, entry_stage, stage_count
from accountants.shuffle.blanket import Blanket, StopLoss, WorstInputs, shuffled_saddle_point
from dpkernels.numerics import MAX_EXPONENT, UNIT_ROUNDOFF
from dpkernels.proven import proven
from dpkernels.shapes import Float, Int
from dpkernels.solve import NotPrivateError, conservative_root

# Beyond this eps e^eps is next to overflow: an upper bound is that at it, and a lower bound 0.
_MAX_EPSILON = MAX_EXPONENT
# Relative errors that are allowed for. Both are known to some units of 2^-53.
_MASS_ERROR = 1e-12  # That of probabilities.
_VALUE_ERROR = 1e-14  # That of sums of L.
# The share of a cell by which an outcome is moved up or down. It exceeds rounding errors on the largest grid.
_CELL_MARGIN = 1e-9
_PURE_EPSILON_RTOL = 1e-12  # A bound on the relative error of eps0.
_PURE_EPSILON_ATOL = 64 * UNIT_ROUNDOFF  # A bound on its absolute error: a small eps0 is the log of a ratio near 1.
_CHORDS = 1e-3, 1e-2, 1e-1  # How far below eps0, as a share of it, chords of delta start.
_UNDERFLOW = 1e-310  # More than the mass that products lose below the floats.
_MAX_PAIRS = 1 << 19  # The most pairs of outcomes from which a sum is formed.
_MAX_OUTCOMES = 1 << 12  # The most outcomes of a sum that is added to itself.
# The relative error of a bound by its grids. Sums of few reports may have few outcomes, and then the error is that of
# the outcome at 0, of first order in the step.
_RTOL = 1e-5
_FEW_RTOL = 5e-7
_MIN_POINTS = 64.0  # The least points of the last grid in a deviation of the sum.
_COARSER_GRIDS = 12  # How many coarser grids are tried, each with half of the points of the one before.
_FINER_GRIDS = 2  # The grids of a lower bound.
_FINER = 5.0  # How much finer each of them is than the one before.
_NARROW_ENOUGH = 1e-3  # If a grid raises the bound by no more than this share of it, it is the last one.
_MIN_DEVIATION = 1e-2  # A sum may have one likely value. A grid covers at least this share of the losses' range.
_MAX_TRIMMED = 1e-9  # How much losses far below 0 may change the log of a bound.
_MAX_CELLS = 1 << 20  # The most points of one distribution on a grid.
# Places, as shares of the range of losses, at which a bound of them is evaluated.
_INNER_SHARES = np.linspace(0.0, 1.0, 257)
_MAX_TILTED = 1.0  # The largest tilt times the step that a grid resolves.
_MIN_STEP = 1e-7  # The first extra step of eps away from the estimate, relative to that, or to 1e-12 next to 0.
_MAX_ITERATIONS = 60  # The most steps of eps.


@dataclass(frozen=True)
class LossSum:
    """The distribution of a sum of losses, one of each of some reports; a report outside the blanket adds 0."""

    value: Float[np.ndarray, " outcomes"]
    mass: Float[np.ndarray, " outcomes"]
    reports: int
    slack: float  # A bound of the error of every value.

    def plus(self, other: LossSum) -> LossSum:
        value = (self.value[:, None] + other.value).ravel()
        slack = self.slack + other.slack + _VALUE_ERROR * float(np.abs(value).max())
        mass = (self.mass[:, None] * other.mass).ravel()
        return _merged(value, mass, self.reports + other.reports, slack)


def _merged(
    value: Float[np.ndarray, " outcomes"], mass: Float[np.ndarray, " outcomes"], reports: int, slack: float
) -> LossSum:
    """Return the distribution with values that may be equal merged into one of them, which doubles the slack."""
    keys, group = np.unique(np.round(value / slack), return_inverse=True)
    first = np.zeros(len(keys))
    first[group] = value
    return LossSum(first, np.bincount(group, mass), reports, 2 * slack)


@dataclass(frozen=True)
class ReportLoss:
    """The outcomes of the loss of one report; a report outside the blanket has the loss 0."""

    value: Float[np.ndarray, " outcomes"]
    mass: Float[np.ndarray, " outcomes"]
    slack: Float[np.ndarray, " outcomes"]  # A bound of the error of each value.

    @classmethod
    def of_reports(
        cls,
        value: Float[np.ndarray, " outcomes"],
        mass: Float[np.ndarray, " outcomes"],
        gamma: float,
        size: Float[np.ndarray, " outcomes"],
    ) -> ReportLoss:
        """Return the losses L, differences of numbers that add up to ``size``, of reports of the blanket."""
        value, mass = np.append(value, 0.0), np.append(gamma * mass, max(1 - gamma, 0.0))
        return cls(value, mass, np.append(_VALUE_ERROR * size, 0.0))

    def sum(self) -> LossSum:
        return _merged(self.value, self.mass, 1, float(self.slack.max()))

    @proven("shuffle#proof")
    def trimmed(self, n: int, c: float, side: int) -> ReportLoss:
        """Return the losses without those far below 0, which would need a wide grid and a large slack.

        For an upper bound they are raised to a loss that still changes K(c) by at most ``_MAX_TRIMMED``. For a lower
        bound they are dropped: sums that contain one count as 0.
        """
        least = -math.log(n / _MAX_TRIMMED) / c
        is_low = self.value + self.slack < least
        if not is_low.any():
            return self
        value, mass, slack = (column[~is_low] for column in (self.value, self.mass, self.slack))
        if side > 0:
            value, slack = np.append(value, least), np.append(slack, 0.0)
            mass = np.append(mass, self.mass[is_low].sum())
        return ReportLoss(value, mass, slack)


def _blanket_losses(blanket: Blanket, exp_epsilon: float) -> ReportLoss:
    has_mass = np.asarray(blanket.mass) > 0
    mass, p, q = (np.asarray(column, float)[has_mass] for column in (blanket.mass, blanket.p, blanket.q))
    return ReportLoss.of_reports(p - exp_epsilon * q, mass, float(blanket.gamma), p + exp_epsilon * q)


def _bound_losses(inputs: WorstInputs, stop_loss: StopLoss, exp_epsilon: float) -> ReportLoss:
    """Return the distribution whose E(L - t)_+ is the bound at some t, with the likely losses, and linear between."""
    blankets = [pair.upper.merged for pair in inputs.pairs]
    gamma, high = blankets[0].gamma, math.exp(inputs.pure_epsilon) * (1 + _MASS_ERROR)
    least, most = gamma * (1 - _MASS_ERROR - exp_epsilon * high), gamma * (high - exp_epsilon)  # Of all pairs.
    losses = [blanket.p - exp_epsilon * blanket.q for blanket in blankets]
    inner = np.concatenate([*losses, least + (most - least) * _INNER_SHARES, [0.0, 1 - exp_epsilon]])
    t = np.unique(np.clip(inner, least, most))
    t = t[np.append(np.diff(t) > 1e-9 * (most - least), True)]
    t[0] = least
    bound = np.concatenate([[1 - exp_epsilon - t[0]], stop_loss(exp_epsilon, t[1:-1]), [0.0]])
    # What is bounded is convex, so it is below the hull as well.
    hull, slopes = lower_hull(t, bound)
    t, slopes = t[hull], np.concatenate([[-1.0], slopes, [0.0]])
    size = np.full(len(t), gamma * (1 + exp_epsilon) * high)
    return ReportLoss.of_reports(t, np.maximum(np.diff(slopes), 0.0), gamma, size)


def _split_reports(report: LossSum, n: int) -> list[tuple[LossSum, int]]:
    """Return (sum of 2^j reports, how often) for n reports, with 2^j as large as keeps the values few."""
    sums = [report]
    while 2 * sums[-1].reports <= n and len(sums[-1].value) <= _MAX_OUTCOMES and len(sums[-1].value) ** 2 <= _MAX_PAIRS:
        sums.append(sums[-1].plus(sums[-1]))
    repeats, remainder = divmod(n, sums[-1].reports)
    terms = [(sums[-1], repeats), *((loss_sum, 1) for loss_sum in sums[-2::-1] if remainder & loss_sum.reports)]
    while len(terms) > 1 and terms[0][1] == 1 and len(terms[0][0].value) * len(terms[1][0].value) <= _MAX_PAIRS:
        terms[:2] = [(terms[0][0].plus(terms[1][0]), 1)]
    return terms


def _tilt(report: LossSum | ReportLoss, n: int) -> tuple[float, float]:
    """Return (c, the deviation of the sum there), c the saddle point of K(c) - 2 ln c; any c gives valid bounds."""
    with np.errstate(all="ignore"):
        c, variance = shuffled_saddle_point(report.mass, report.value, n)
    return float(c), max(math.sqrt(variance), _MIN_DEVIATION * float(np.ptp(report.value)))


@proven("shuffle#proof")
def _split_upwards(loss_sum: LossSum, step: float, count: int) -> GridReleases:
    """Return the distribution with every value split between the grid points around it, its mean kept or raised."""
    position = (loss_sum.value + loss_sum.slack) / step
    k, first, size = _cells(position)
    upper_share = np.minimum(position - k + _CELL_MARGIN, 1.0)
    mass = np.bincount(k - first, loss_sum.mass * (1 - upper_share), size)
    mass = mass + np.bincount(k - first + 1, loss_sum.mass * upper_share, size)
    return GridReleases(mass * (1 + _MASS_ERROR * loss_sum.reports), first, 0.0, 0.0, count)


def _cells(position: Float[np.ndarray, " outcomes"]) -> tuple[Int[np.ndarray, " outcomes"], int, int]:
    if not np.abs(position).max() < 2.0**52:
        raise TooManyPointsError("values are too far apart for this step")
    k = np.floor(position).astype(np.int64)
    size = int(k[-1] - k[0]) + 2
    if size > _MAX_CELLS:
        raise TooManyPointsError(f"values need {size} points at this step; at most {_MAX_CELLS} are used")
    return k, int(k[0]), size


@proven("shuffle#proof")
def _split_downwards(loss_sum: LossSum, step: float, count: int) -> GridReleases:
    """Return a distribution on the grid whose E(L - t)_+ is a convex polygon nowhere above that of the part."""
    position = (loss_sum.value - loss_sum.slack) / step - _CELL_MARGIN
    k, first, size = _cells(position)
    mass = loss_sum.mass * (1 - _MASS_ERROR * loss_sum.reports - UNIT_ROUNDOFF * len(loss_sum.value))
    f, at_outcomes = _stop_loss(position - first, mass, size)
    fraction = position - k
    excess = np.zeros(size + 1)
    np.maximum.at(excess, k - first + 1, (1 - fraction) * f[k - first] + fraction * f[k - first + 1] - at_outcomes)
    reduction = np.maximum(excess[1:], excess[:-1]) + _CELL_MARGIN * excess.max()
    capped = f <= reduction
    f = np.where(capped | np.append(capped[1:], True), 0.0, f - reduction)
    grid, total = np.arange(size, dtype=float), mass.sum()
    f[0] = min(f[0], (f + total * grid).min())
    hull, slopes = lower_hull(grid, f)
    masses = np.zeros(size)
    masses[hull] = np.maximum(np.diff(np.concatenate([[-total], slopes, [0.0]])), 0.0)
    return GridReleases(masses, first, 0.0, 0.0, count)


def lower_hull(
    t: Float[np.ndarray, " points"], f: Float[np.ndarray, " points"]
) -> tuple[Int[np.ndarray, " corners"], Float[np.ndarray, " corners-1"]]:
    """Return the indices of the points of the lower convex hull, with both ends, and the slopes between them."""
    hull = np.arange(len(t))
    while True:
        slopes = np.diff(f[hull]) / np.diff(t[hull])
        bent = np.concatenate([[True], np.diff(slopes) > 0, [True]])
        if bent.all():
            return hull, slopes
        hull = hull[bent]


def _stop_loss(
    position: Float[np.ndarray, " outcomes"], mass: Float[np.ndarray, " outcomes"], size: int
) -> tuple[Float[np.ndarray, " {size}"], Float[np.ndarray, " outcomes"]]:
    """Return E(L - t)_+, in steps, at the grid points 0, 1, .. and at the outcomes."""
    mass_above, weighted = (np.append(np.cumsum(column[::-1])[::-1], 0.0) for column in (mass, mass * position))
    grid = np.arange(size, dtype=float)
    first = np.searchsorted(position, grid, side="left")
    return weighted[first] - grid * mass_above[first], weighted[:-1] - position * mass_above[:-1]


def _positive_part(total: ComposedBounds, side: int) -> float:
    """Return E[S_+] with all errors moved to one side."""
    c, zero = total.tilt, total.shifted_by_loss_error(0.0, side)
    s, g = total.loss[total.loss > zero] - zero, total.g[total.loss > zero]
    weight = s * np.exp(-c * s)
    value = (weight * g).sum()
    error = total.error * math.sqrt((weight * weight).sum()) + total.misplaced_mass / (math.e * c)
    value += side * (error + (total.rounding_rtol + c * abs(zero)) * value)
    if total.log_scale > MAX_EXPONENT:  # Weights may be 0 by underflow.
        return math.inf if side > 0 else 0.0
    return math.exp(total.log_scale) * max(value, 0.0)


def _bound(loss: ReportLoss, n: int, side: int, target: float = math.inf) -> float:
    """Return a bound of E[S_+]; a lower one is that of the first grid on which it is at least ``target``."""
    if loss.value.max() <= 0:  # Every loss is negative, or 0 but for rounding.
        return max(n * float((loss.value + loss.slack).max()), 0.0) if side > 0 else 0.0
    terms = _split_reports(loss.sum(), n)
    if len(terms) == 1 and terms[0][1] == 1:
        loss_sum = terms[0][0]
        value = np.maximum(loss_sum.value + side * loss_sum.slack, 0.0) @ loss_sum.mass
        return float(value * (1 + side * _MASS_ERROR * n))
    trimmed = loss.trimmed(n, _tilt(loss, n)[0], side)
    report = trimmed.sum()
    if report.value.max() <= 0:
        return n * (float(report.value.max()) + report.slack) if side > 0 else 0.0
    terms = terms if trimmed is loss else _split_reports(report, n)
    c, deviation = _tilt(report, n)
    grids = _Grids(terms, c, deviation, side)
    error = _RTOL if stage_count(max(count for _, count in terms)) else _FEW_RTOL
    if side > 0:
        return min(grids.bound(error), _chernoff_bound(report, n, c))
    # Where outcomes are sparse, a polygon on a grid loses more than its square.
    best = 0.0
    for _ in range(_FINER_GRIDS):
        before, best = best, max(best, grids.bound(error, coarser=0 if best else _COARSER_GRIDS))
        if best - before <= _NARROW_ENOUGH * best or best >= target:
            break
        error /= _FINER**2
    return best


@proven("shuffle#proof")
def _chernoff_bound(report: LossSum, n: int, c: float) -> float:
    """Return e^K(c)/(e c), an upper bound of E[S_+] for any c > 0.

    It holds where no grid resolves the few positive losses of a sum that is hardly ever positive.
    """
    with np.errstate(over="ignore"):
        grown = report.mass * np.expm1(c * (report.value + report.slack))
    moment = float(grown.sum()) + _MASS_ERROR * float(np.abs(grown).sum())  # Of one report, less 1.
    if not -1 < moment < math.inf:  # No digit is left.
        return math.inf
    log_bound = n * math.log1p(moment) * (1 + math.copysign(_MASS_ERROR, moment)) - 1 - math.log(c)
    return math.exp(max(log_bound, -MAX_EXPONENT)) * (1 + _MASS_ERROR) if log_bound < MAX_EXPONENT else math.inf


@dataclass(frozen=True)
class _Grids:
    """Bounds of E[S_+] of the sum of some parts, on grids of a given error."""

    terms: list[tuple[LossSum, int]]
    tilt: float
    deviation: float  # That of the tilted sum.
    side: int

    def bound(self, error: float, coarser: int = _COARSER_GRIDS) -> float:
        """Return the bound on the grid with about this relative error, or on one that is at most 2^coarser as coarse.

        It is trivial if all of these grids are too large. A cell adds up to a sixth of its square to the variance in
        the mean, and the tilted sum grows by c^2 / 2 of that.
        """
        counts = [count for _, count in self.terms]
        stages = stage_count(max(counts))
        step = math.sqrt(12 * error / ((1 + stages) * sum(counts))) / self.tilt
        step = min(step, self.deviation / _MIN_POINTS / RATIO**stages)
        for _ in range(coarser + 1):
            with contextlib.suppress(TooManyPointsError, MemoryError):
                masses = [self._masses(loss_sum, step, count, max(counts), stages) for loss_sum, count in self.terms]
                tilt = min(self.tilt, _MAX_TILTED / (step * RATIO**stages))
                return _positive_part(compose(masses, step, tilt, self.side, stages, is_linear=True), self.side)
            step *= 2
        return math.inf if self.side > 0 else 0.0

    def _masses(self, loss_sum: LossSum, step: float, count: int, most: int, stages: int) -> GridReleases:
        """Return the masses of a part on the grid of the stage at which it enters the sum."""
        stage = entry_stage(count, most, stages)
        split = _split_upwards if self.side > 0 else _split_downwards
        return replace(split(loss_sum, step * RATIO**stage, count), stage=stage)


def blanket_upper_delta(blanket: Blanket, n: int, epsilon: float) -> float:
    """Return delta from above, of one blanket."""
    return _upper_delta(_blanket_losses(blanket, math.exp(min(epsilon, _MAX_EPSILON))), float(blanket.gamma), n)


def _upper_delta(loss: ReportLoss, gamma: float, n: int) -> float:
    # Masses below the floats are lost; the largest loss of every report bounds what they would add.
    lost = _UNDERFLOW * max(float(loss.value.max()), 0.0)
    return min(_bound(loss, n, 1) / (gamma * n) * (1 + _MASS_ERROR) + lost / gamma, 1.0)


def upper_pure_epsilon(inputs: WorstInputs) -> float:
    """Return an upper bound of eps0, from which on delta is 0."""
    return float(inputs.pure_epsilon) * (1 + _PURE_EPSILON_RTOL) + _PURE_EPSILON_ATOL


@proven("shuffle#proof")
def upper_delta(inputs: WorstInputs, n: int, epsilon: float) -> float:
    """Return an upper bound of delta at eps, for n reports of any people.

    Next to eps0 a grid cannot tell the few losses above eps from none. There delta, which is convex in e^eps, is below
    the chord from a lesser eps to 0 at eps0.
    """
    eps0 = upper_pure_epsilon(inputs)
    if epsilon >= eps0:
        return 0.0
    delta = _upper_delta_on_grid(inputs, n, epsilon)
    for start in (eps0 * (1 - fraction) for fraction in _CHORDS if epsilon > eps0 * (1 - fraction)):
        fraction = math.expm1(eps0 - epsilon) / -math.expm1(start - eps0) * math.exp(epsilon - eps0)
        delta = min(delta, _upper_delta_on_grid(inputs, n, start) * fraction * (1 + _MASS_ERROR) + _UNDERFLOW)
    return delta


def _upper_delta_on_grid(inputs: WorstInputs, n: int, epsilon: float) -> float:
    exp_epsilon = math.exp(epsilon)
    if inputs.stop_loss is not None:
        losses, gamma = _bound_losses(inputs, inputs.stop_loss, exp_epsilon), float(inputs.pairs[0].least.sum())
        return _upper_delta(losses, gamma, n)
    return max(blanket_upper_delta(pair.upper, n, epsilon) for pair in inputs.pairs)


def lower_delta(blanket: Blanket, n: int, epsilon: float, target: float = math.inf) -> float:
    """Return a lower bound of delta at eps, for n reports where all others have one input.

    A bound that is at least ``target`` is not refined.
    """
    if epsilon > _MAX_EPSILON:
        return 0.0
    needed = (target + _UNDERFLOW) * n * (1 + 4 * _MASS_ERROR)
    bound = _bound(_blanket_losses(blanket, math.exp(epsilon)), n, -1, needed)
    return max(bound / n * (1 - _MASS_ERROR) - _UNDERFLOW, 0.0)


def conservative_epsilon(
    bound: Callable[[float], float], target: float, start: float, slope: float, side: int
) -> float:
    """Return an eps, near ``start``, at which a bound of delta is at most (side 1) or at least (side -1) the target."""

    def missing(eps: float) -> float:
        value = bound(max(eps, 0.0))
        if (value <= target) if side > 0 else (value >= target or eps <= 0):
            return 0.0
        return abs(math.log(max(value, 1e-300) / target)) / -slope

    start, least = max(start, 0.0), _MIN_STEP * max(start, 1e-12)
    try:
        epsilon = conservative_root(
            missing, start, direction=side, overshoot=1 + 1e-3, least=least, growth=2.0, steps=_MAX_ITERATIONS
        )
        return max(epsilon, 0.0)
    except NotPrivateError:
        return math.inf if side > 0 else 0.0
