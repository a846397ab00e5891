"""Distributions of sums of independent losses on grids, with bounds on every error of their computation.

Sums are computed by FFT of the masses tilted by e^(c l), where c is the saddle point for the required eps or delta.
Many reports are composed in stages. The sum of 25 reports is moved to a grid with a step 5 times as large, by a spread
for an upper bound and by a contraction for a lower bound. It then counts as one report of the next stage. Each stage
adds as much to the variance of the sum as the first grid, and no stage needs many points. Rare large losses are added
on the last grid: the sum is a mixture over their number.

The bounds include the mass that wraps around a grid (by Chernoff's bound), the floating-point error of all transforms
(Higham 2002, section 24.1), and all other rounding errors. Proofs: docs/proofs/sums.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np

from accountants.composition.brackets.masses import RATIO, GridReleases, coarsen
from accountants.composition.brackets.monotone import NoGridError, TooManyPointsError
from accountants.composition.repeated import integer_power
from dpkernels.numerics import MAX_EXPONENT, UNIT_ROUNDOFF
from dpkernels.proven import proven
from dpkernels.shapes import Complex, Float, Int

REPORTS_PER_BLOCK = RATIO**2  # The reports of a stage that are one report of the next stage.
_NEGLIGIBLE = 1e-11  # The tilted mass of the whole sum that may wrap around all grids.
_MAX_POINTS = 1 << 21  # The most points of a grid: 16 MiB an array.
_NEGLIGIBLE_EXPONENT = 60.0  # Weights below e^-x are bounded, not computed.
_SUMMARY = 256  # The points that represent a distribution in Chernoff bounds.
_LIGHT = 1e-20  # Lighter masses, relative to the heaviest one, have a bound of their own for the error of exponents.
SECOND_ORDER = 1.01  # The factor on an error, for its terms of second order, which are small.
_MIN_FLOAT = 5e-324  # The least positive float.
_MIXING_RTOL = 2.0**-40  # More than the relative rounding errors of a randomised test between two losses.
_BLOCK_ENTRIES = 1 << 21  # About how many entries of all spectra are multiplied at once,
_MIN_BLOCK = 1 << 12  # and the fewest entries of one spectrum.
_MAX_RARE = 60  # The most rare losses of a sum.


# More reports than this are composed in stages.
_MAX_UNSTAGED_COUNT = 60


def stage_count(count: int) -> int:
    """Return the number of stages for so many reports of one kind."""
    stages = 0
    while count > _MAX_UNSTAGED_COUNT:
        count, stages = count // REPORTS_PER_BLOCK, stages + 1
    return stages


def entry_stage(count: int, max_count: int, stages: int) -> int:
    """Return the stage at which so many reports enter a sum whose largest term has ``max_count`` of them.

    Few reports enter late, on a coarser grid: at a stage at which blocks of the largest term are about as few.
    """
    stage = 0
    while stage < stages and count * REPORTS_PER_BLOCK ** (stage + 1) <= max_count:
        stage += 1
    return stage


class NotRareError(TooManyPointsError):
    """Losses outside of a window are too many for a mixture over their number."""


@dataclass(frozen=True)
class ComposedBounds:
    """The composed masses, tilted: p(S) = e^(log_scale - c S) g(S)."""

    loss: Float[np.ndarray, " points"]  # S, increasing.
    g: Float[np.ndarray, " points"]  # The tilted masses.
    tilt: float  # c.
    log_scale: float  # The log of the sum of e^(c S) p(S).
    infinite: float  # 1 - prod (1 - m)^n.
    error: float  # A bound on the 2-norm of the error of g.
    misplaced_mass: float  # A bound on the tilted mass that is beyond the grid, or at any wrong place.
    rounding_rtol: float = 1e-13  # A bound on the relative error of the tilted masses and of e^log_scale.
    largest_addend: float = 0.0  # The largest absolute value of the numbers whose sums the losses are.

    def loss_error(self, epsilon: float) -> float:
        return 4 * UNIT_ROUNDOFF * (abs(epsilon) + float(np.abs(self.loss[[0, -1]]).max()) + self.largest_addend)

    def shifted_by_loss_error(self, epsilon: float, side: int) -> float:
        """Return eps moved by more than the error of losses on the grid: up (side -1) makes all gains smaller."""
        return epsilon - side * self.loss_error(epsilon)

    def delta(self, epsilon: float, side: int) -> float:
        """Return an upper (side 1) or lower (side -1) bound of the profile at eps, with all errors on that side."""
        c, epsilon = self.tilt, self.shifted_by_loss_error(epsilon, side)
        start, stop = np.searchsorted(
            self.loss, [epsilon, epsilon + _NEGLIGIBLE_EXPONENT / max(c, 1e-300)], side="right"
        )
        s = self.loss[start:stop] - epsilon
        weight = np.exp(-c * s) * -np.expm1(-s)
        peak = (c / (1 + c)) ** c / (1 + c)
        value = (weight * self.g[start:stop]).sum()
        rounding_rtol = self.rounding_rtol + 4 * UNIT_ROUNDOFF * c * (abs(epsilon) + self.largest_addend)
        value += side * (self.error * norm(weight) + self.misplaced_mass * peak + rounding_rtol * value)
        if side > 0 and stop < len(self.loss):  # Weights that are negligible.
            remaining = float(self.g[stop:].sum()) * (1 + rounding_rtol) + self.error * math.sqrt(len(self.g))
            value += math.exp(-_NEGLIGIBLE_EXPONENT) * remaining
        exponent = self.log_scale - c * epsilon
        if exponent > MAX_EXPONENT and side > 0:  # The tilt is for a distant eps, and weights may underflow to 0.
            return 1.0
        value = max(value, 0.0)
        with np.errstate(over="ignore"):  # An upper bound may be anything above 1.
            finite = np.exp(min(exponent, MAX_EXPONENT)) * value
        if value > 0:  # Both may be below the floats.
            finite = max(finite + side * 4 * _MIN_FLOAT * (1 + value), 0.0)
        if np.isnan(finite):
            raise NoGridError("epsilon, delta: there is no bracket; the losses, or their masses, are beyond the floats")
        return float(min(self.infinite + finite, 1.0))

    def delta_rounding_rtol(self, epsilon: float) -> float:
        """Return the error of delta at eps that does not depend on the step, relative to delta."""
        bare = replace(self, error=0.0, misplaced_mass=0.0, rounding_rtol=0.0).delta(epsilon, 1)
        return self.delta(epsilon, 1) / bare - 1 if bare > 0 else 0.0

    def tail_masses(self, index: int) -> tuple[float, float]:
        """Return (upper bound of the mass of q, lower bound of the mass of p) of all losses from an index on."""
        c, start = self.tilt, float(self.loss[index])
        exponent = self.log_scale - c * start
        if max(exponent, exponent - start) > MAX_EXPONENT:  # The tilt is for a distant eps.
            return 1.0, self.infinite
        s, g = self.loss[index:] - start, self.g[index:]
        rounding_rtol = self.rounding_rtol + 2 * (c + 1) * self.loss_error(start)
        masses = []
        for side, weight in ((1, np.exp(-(c + 1) * s)), (-1, np.exp(-c * s))):
            value = (weight * g).sum()
            masses.append(value + side * (self.error * norm(weight) + self.misplaced_mass + rounding_rtol * value))
        q, p = math.exp(exponent - start) * masses[0] + _MIN_FLOAT, math.exp(exponent) * max(masses[1], 0.0)
        return min(q, 1.0), min(self.infinite + p, 1.0)

    @cached_property
    def _tails(self) -> tuple[Float[np.ndarray, " indices"], Float[np.ndarray, " indices"]]:
        """Return about the masses of q and p of all losses from each index on."""
        with np.errstate(all="ignore"):
            logs = np.log(self.g) + self.log_scale - self.tilt * self.loss
            q, p = (np.cumsum(np.exp(np.minimum(column, 0.0))[::-1])[::-1] for column in (logs - self.loss, logs))
        return np.append(q, 0.0), np.append(p, 0.0) + self.infinite

    def _threshold(self, alpha: float, is_flat: bool) -> int:
        """Return the index from which on q has at most the mass alpha, or p at most that of 1 - alpha."""
        q, p = self._tails
        return int(np.searchsorted(-p, alpha - 1) if is_flat else np.searchsorted(-q, -alpha))

    def tangent(self, alpha: float) -> tuple[float, bool]:
        """Return about the eps >= 0 of the highest line at alpha, and whether it is of the flat kind."""
        index = self._threshold(alpha, False)
        (q, p), eps = (column[index] for column in self._tails), self._loss_below(index)
        is_flat = bool(1 - p - math.exp(min(eps, MAX_EXPONENT)) * (alpha - q) < alpha)
        return (self._loss_below(self._threshold(alpha, True)) if is_flat else eps), is_flat

    def _loss_below(self, index: int) -> float:
        return max(float(self.loss[min(max(index - 1, 0), len(self.loss) - 1)]), 0.0)

    @proven("trade_off#proof")
    def test_bound(self, alpha: float, is_flat: bool) -> float:
        """Return a power that is at most that of the steep lines at alpha; or an error, at least that of the flat ones.

        Tests reject from some loss on, at random between two losses. Of a test of level q and power p, delta is at
        least p - e^eps q. So steep lines give at least the power p + alpha - q if q <= alpha. Flat lines give at most
        the error q + 1 - alpha - p if p <= 1 - alpha, and else at most q.
        """
        index, target = self._threshold(alpha, is_flat), 1 - alpha
        indices = {min(max(index + step, 0), len(self.loss) - 1) for step in (-2, -1, 0, 1)}
        tests = sorted([(0.0, self.infinite), (1.0, 1.0), *map(self.tail_masses, indices)])
        for (q, p), (q_further, p_further) in itertools.pairwise(tests):
            if is_flat and p < target < p_further:
                tests.append((q + (q_further - q) * (target - p) / (p_further - p), target))
            if not is_flat and q < alpha < q_further:
                tests.append((alpha, p + (p_further - p) * (alpha - q) / (q_further - q)))
        if is_flat:
            return min(q + max(target - p, 0.0) for q, p in tests) * (1 + _MIXING_RTOL)
        return max(p + alpha - q for q, p in tests if q <= alpha) * (1 - _MIXING_RTOL)

    def estimate_epsilon(self, delta: float) -> float | None:
        """Return about the eps at which the profile without errors is delta, if it is on the grid."""
        if not delta > self.infinite:
            return None
        c, s = self.tilt, self.loss - self.loss[-1]
        with np.errstate(all="ignore"):
            # Between two losses delta is A - e^eps B, with sums A and B over the larger ones.
            p = self.g * np.exp(-c * s)
            A, B = (np.cumsum(column[::-1])[::-1] for column in (p, p * np.exp(-s)))
            target = np.exp(np.log(delta - self.infinite) - self.log_scale + c * self.loss[-1])
            at_losses = A - np.exp(s) * B
            index = int(np.searchsorted(-at_losses, -target))
            value = float(np.log((A[index] - target) / B[index]) + self.loss[-1]) if 0 < index < len(s) else math.nan
        return value if math.isfinite(value) else None


@proven("sums#proof")
def compose(
    terms: Sequence[GridReleases], step: float, tilt: float, side: int = 0, stages: int = 0, *, is_linear: bool = False
) -> ComposedBounds:
    """Return the distribution of the sum of independent losses, on a grid of at most 2^21 points.

    With stages it is an upper (side 1) or lower (side -1) bound of that distribution, in the convex order of e^l under
    q, or, if it is linear, in that of the losses l themselves.
    """
    from scipy import fft  # Imported on use: it takes 0.1 s.

    negligible = _NEGLIGIBLE / (2 + stages)
    tilted: list[_Tilted] = []
    mixtures: list[_Mixture] = []
    lost_mass = 0.0
    for masses in terms:
        common, mixture, lost_by_tilt = _tilted(masses, step, tilt, side, negligible)
        tilted += [common] if common.count else []  # Of few losses all may be rare.
        mixtures += [] if mixture is None else [mixture]
        lost_mass += lost_by_tilt
    offset, offsets = sum_offsets(terms)
    with np.errstate(divide="ignore"):
        log_finite = sum(term.count * np.log1p(-min(term.infinite, 1.0)) for term in terms)
    infinite = float(-np.expm1(log_finite))
    if not all(term.g.any() for term in tilted):  # All sums are infinite.
        return ComposedBounds(np.zeros(1), np.zeros(1), tilt, 0.0, infinite, 0.0, 0.0)
    shift = 0.0
    for stage in range(stages):
        coarser = [term for term in tilted if term.stage > stage]
        current = [term for term in tilted if term.stage <= stage]
        total = float(sum(term.count for term in current))
        for term in current:
            block_count, remainder = divmod(term.count, REPORTS_PER_BLOCK)
            sizes = {size: count for size, count in ((REPORTS_PER_BLOCK, block_count), (remainder, 1)) if size * count}
            blocks = _blocks(term, list(sizes), step, tilt, side, negligible / total, is_linear=is_linear)
            for (block, error), count in zip(blocks, sizes.values(), strict=True):
                coarser.append(replace(block, count=count))
                lost_mass += count * error
                # A coarser grid moves losses by roundings of its steps.
                shift += 32 * UNIT_ROUNDOFF * count * RATIO * step
        # Errors are relative to the tilted mass, which coarser grids change.
        change = -sum(term.count * term.change for term in coarser if term.stage > stage)
        lost_mass *= math.exp(min(max(0.0, change), MAX_EXPONENT))
        tilted, step = coarser, step * RATIO
    # The losses of mixtures are moved by less than as many roundings of the largest one.
    shift += sum(32 * UNIT_ROUNDOFF * RATIO * step * (1 + mixture.count) for mixture in mixtures)
    offset += side * shift
    tails = _Tails.from_terms([*tilted, *mixtures])
    lower, upper = tails.widths(negligible)
    size = fft.next_fast_len(lower + upper + 1, real=True)
    if size > _MAX_POINTS:
        raise TooManyPointsError(
            f"the loss distribution needs {size} points at this step; at most {_MAX_POINTS} are used"
        )
    g, error = _transformed(tilted, size, mixtures)
    lowest = int(np.floor(tails.mean)) - lower
    addends: list[_Tilted | _Mixture] = [*tilted, *mixtures]
    return ComposedBounds(
        (lowest + np.arange(size)) * step + offset,
        np.maximum(np.roll(g, -(lowest % size)), 0.0),
        tilt,
        sum(term.count * term.log_scale for term in addends) + tilt * offset,
        infinite,
        error,
        tails.mass_outside(lower - 1, size - lower - 2) + math.expm1(min(lost_mass * SECOND_ORDER, MAX_EXPONENT)),
        1e-13 + sum(term.count * term.rounding_rtol for term in addends) + 4 * UNIT_ROUNDOFF * abs(tilt) * offsets,
        offsets + (abs(lowest) + size) * step,
    )


def sum_offsets(terms: Sequence[GridReleases]) -> tuple[float, float]:
    """Return the sum of all offsets, and that of their absolute values."""
    offsets = [term.count * term.offset for term in terms]
    return sum(offsets), len(offsets) * sum(map(abs, offsets))


@dataclass(frozen=True)
class _Tilted:
    """Masses times e^(c l), scaled to sum to 1: g at the grid numbers first + j; ``log_scale`` is the log of their sum.

    They are composed ``count`` times.
    """

    g: Float[np.ndarray, " points"]
    first_index: int
    log_scale: float
    count: int
    rounding_rtol: float
    stage: int = 0
    change: float = 0.0  # The log of the change of the tilted mass of one block on its last grid.

    @cached_property
    def points(self) -> tuple[Float[np.ndarray, " summary"], Float[np.ndarray, " summary"]]:
        return _summary(self.g, self.first_index)

    @property
    def mean_and_variance(self) -> tuple[float, float]:
        """Return the mean and the variance of the sum of all, in steps."""
        mean, variance = _mean_and_variance(*self.points)
        return self.count * mean, self.count * variance

    def log_moments(self, slopes: Float[np.ndarray, " slopes"]) -> Float[np.ndarray, " slopes"]:
        return self.count * _log_moments(*self.points, slopes)

    @property
    def ends(self) -> tuple[float, float]:
        k = self.points[0]
        return (self.count * k[0], self.count * k[-1]) if len(k) else (0.0, 0.0)


@dataclass(frozen=True)
class _Mixture:
    """The sum of ``count`` losses, each common or rare, as a mixture over how many of them are rare: from none to all.

    If j of them are rare, the sum is that of j rare losses and of ``count`` - j common ones, which are split into
    groups of one size and a remainder of fewer. All masses are tilted and sum to about 1.
    """

    groups: list[tuple[np.ndarray, int]]  # Of each number of groups: masses on the last grid, and the first point.
    remainders: list[tuple[np.ndarray, int]]  # The same of each number of other common losses, less than a group.
    rare: tuple[np.ndarray, int]
    weights: Float[np.ndarray, " rare_counts"]  # The probability of each number of rare losses.
    log_scale: float  # That of one loss.
    rounding_rtol: float

    @property
    def count(self) -> int:
        return len(self.weights) - 1

    @property
    def _numbers(
        self,
    ) -> tuple[Int[np.ndarray, " rare_counts"], Int[np.ndarray, " rare_counts"], Int[np.ndarray, " rare_counts"]]:
        """Return the numbers of groups, of other common losses, and of rare losses, of every part of the mixture."""
        rare = np.arange(self.count + 1)
        return *np.divmod(self.count - rare, len(self.remainders)), rare

    @cached_property
    def points(self) -> tuple[list[tuple[np.ndarray, np.ndarray]], ...]:
        """Return the summaries of groups, of other common losses, and of one rare loss."""
        return tuple([_summary(*part) for part in parts] for parts in (self.groups, self.remainders, [self.rare]))

    @property
    def mean_and_variance(self) -> tuple[float, float]:
        groups, remainders, (rare,) = (np.array([_mean_and_variance(*part) for part in parts]) for parts in self.points)
        in_groups, in_others, number = self._numbers
        (mean, variance), (rare_mean, rare_variance) = (groups[in_groups] + remainders[in_others]).T, rare
        means = mean + number * rare_mean
        center = float(self.weights @ means)
        return center, float(self.weights @ (variance + number * rare_variance + (means - center) ** 2))

    def log_moments(self, slopes: Float[np.ndarray, " slopes"]) -> Float[np.ndarray, " slopes"]:
        groups, remainders, rare = (
            np.array([_log_moments(*part, slopes) for part in parts]).T for parts in self.points
        )
        in_groups, in_others, number = self._numbers
        with np.errstate(divide="ignore"):
            logs = np.log(self.weights) + groups[:, in_groups] + remainders[:, in_others] + number * rare
        top = logs.max(1, keepdims=True)
        return top[:, 0] + np.log(np.exp(logs - top).sum(1))

    @property
    def ends(self) -> tuple[float, float]:
        in_groups, in_others, number = self._numbers
        groups, remainders, rare = (np.array([(k[0], k[-1]) for k, _ in parts]) for parts in self.points)
        low, high = (groups[in_groups] + remainders[in_others] + number[:, None] * rare).T
        return float(low.min()), float(high.max())

    def spectrum(self, length: int) -> Complex[np.ndarray, " frequencies"]:
        groups, remainders = ([_spectrum(*part, length) for part in parts] for parts in (self.groups, self.remainders))
        rare, total = _spectrum(*self.rare, length), np.zeros(length // 2 + 1, complex)
        for j, k, number in zip(*(row[::-1] for row in self._numbers), strict=True):  # Horner's rule in rare losses.
            total = total * rare + self.weights[number] * (groups[j] * remainders[k])
        return total


def _tilted(
    term: GridReleases, step: float, tilt: float, side: int = 0, negligible: float = 1.0
) -> tuple[_Tilted, _Mixture | None, float]:
    """Return the tilted masses, those of rare losses apart, and a bound of the tilted mass that is left out."""
    step = step * RATIO**term.stage
    arrays = [(term, step), *([] if term.tail is None else [(term.tail, term.ratio * step)])]
    if not any(array.mass.any() for array, _ in arrays):  # All losses are infinite.
        return _Tilted(0 * term.mass, term.first_index, 0.0, term.count, 0.0, term.stage), None, 0.0
    logs, log_mass = [], []
    for array, width in arrays:
        with np.errstate(divide="ignore"):
            log_mass.append(np.log(array.mass))
        logs.append(log_mass[-1] + tilt * width * (array.first_index + np.arange(len(array.mass), dtype=float)))
    top = max(array.max() for array in logs)
    g = [np.exp(array - top) for array in logs]
    # The exponents' errors, by those of masses that matter.
    terms, lost_mass = 32.0 + abs(top), 0.0
    for log, mass, array in zip(logs, log_mass, g, strict=True):
        heavy, light = array > _LIGHT, (array > 0) & (array <= _LIGHT)
        terms += np.abs(mass[heavy]).max(initial=0.0) + 2 * np.abs(log[heavy] - mass[heavy]).max(initial=0.0)
        lost_mass += float(
            (4 * UNIT_ROUNDOFF * (np.abs(mass[light]) + 2 * np.abs(log[light] - mass[light])) * array[light]).sum()
        )
    common_mass, rare_mass = float(g[0].sum()), float(sum(array.sum() for array in g[1:]))
    total = common_mass + rare_mass
    log_scale, rounding_rtol = float(top + np.log(total)), 4 * UNIT_ROUNDOFF * float(terms)
    common = _Tilted(
        g[0] / common_mass if common_mass else g[0], term.first_index, log_scale, term.count, rounding_rtol, term.stage
    )
    lost_mass *= term.count / total
    if not rare_mass or not common_mass:
        return common, None, lost_mass
    common_mass, rare_mass = common_mass / total, rare_mass / total
    if term.count * rare_mass > _MAX_RARE:
        raise NotRareError(f"a sum has {term.count * rare_mass:.3g} losses outside of the window in the mean")
    # The number of rare losses is binomial.
    number = np.arange(term.count + 1 if term.count < 4 * _MAX_RARE else 4 * _MAX_RARE)
    # Not by differences of large gamma functions.
    log_choices = np.append(0.0, np.cumsum(np.log((term.count - number[:-1]) / (number[:-1] + 1.0))))
    weights = np.exp(log_choices + number * math.log(rare_mass) + (term.count - number) * math.log1p(-rare_mass))
    tail = np.append(np.cumsum(weights[::-1])[-2::-1], 0.0)
    most = min(int((tail > negligible).sum()), len(number) - 1, _MAX_RARE)
    group = math.isqrt(most) + 1
    sizes = [*range(1, min(group, most + 1)), *range(group, most + 1, group)]
    blocks = _blocks(replace(common, log_scale=0.0), sizes, step, tilt, side, negligible, term.ratio) if most else []
    lost_mass += 2 * max((error for _, error in blocks), default=0.0)
    sums = [(block.g * math.exp(block.log_scale), block.first_index) for block, _ in blocks]
    unit = np.ones(1), 0
    mixture = _Mixture(
        [unit, *sums[group - 1 :]],
        [unit, *sums[: group - 1]],
        (g[1] / (rare_mass * total), cast(GridReleases, term.tail).first_index),
        weights[: most + 1],
        log_scale,
        rounding_rtol + 64 * UNIT_ROUNDOFF * (1 + math.log(1 + term.count)),
    )
    # Further terms, whose ratios fall, are at most a geometric series.
    ratio = (term.count - number[-1]) / (number[-1] + 1.0) * rare_mass / common_mass
    lost_mass += float(tail[most]) + (float(weights[-1]) * ratio / (1 - ratio) if ratio < 1 else 1.0)
    return replace(common, count=term.count - most), mixture, lost_mass


# Tails


@dataclass(frozen=True)
class _Tails:
    """Chernoff bounds of the tilted sum."""

    mean: float  # The mean of the sum, in steps.
    most: tuple[float, float]  # Bounds on the distance of the sum from its mean, to either side.
    slopes: Float[np.ndarray, " slopes"]  # The s > 0 that are tried.
    sides: list[Float[np.ndarray, " slopes"]]  # Log E e^(-s (S - mean)) and log E e^(s (S - mean)).

    @classmethod
    def from_terms(cls, terms: Sequence[_Tilted | _Mixture]) -> _Tails:
        mean, variance = (sum(column) for column in zip(*(term.mean_and_variance for term in terms), strict=True))
        low, high = (sum(column) for column in zip(*(term.ends for term in terms), strict=True))
        slopes = np.geomspace(1e-2, 1e3, 26) / np.sqrt(max(variance, 1e-12))
        sides = [sum(term.log_moments(sign * slopes) for term in terms) - sign * slopes * mean for sign in (-1, 1)]
        return cls(mean, (mean - low, high - mean), slopes, sides)

    def widths(self, negligible: float) -> tuple[int, int]:
        """Return distances to both sides of the mean, beyond which there is a negligible mass."""
        log_mass = math.log(negligible / 4)
        distances = (float(((side - log_mass) / self.slopes).min()) for side in self.sides)
        lower, upper = (
            int(np.ceil(min(max(distance, 1.0), farthest + 1, 4.0 * _MAX_POINTS))) + 2
            for distance, farthest in zip(distances, self.most, strict=True)
        )
        return lower, upper

    def mass_outside(self, lower: int, upper: int) -> float:
        """Return a bound on the mass beyond these distances from the mean."""
        return float(
            sum(
                np.exp(min(0.0, (side - self.slopes * width).min()))
                for side, width, farthest in zip(self.sides, (lower, upper), self.most, strict=True)
                if width < farthest + 1
            )
        )


def _summary(
    g: Float[np.ndarray, " points"], first: int
) -> tuple[Float[np.ndarray, " summary"], Float[np.ndarray, " summary"]]:
    """Return (k, g), in increasing order, of blocks spread to their ends.

    These are fewer points with the same mean and larger exponential moments. Heavy points stay where they are:
    otherwise the sum of many reports that mostly have one loss would need a grid hundreds of times as wide.
    """
    size = -(-len(g) // _SUMMARY)
    heavy = np.flatnonzero(g >= g.sum() / _SUMMARY) if size > 1 else np.zeros(0, int)
    light = g.copy() if len(heavy) else g
    light[heavy] = 0.0
    blocks = np.pad(light, (0, -len(g) % size)).reshape(-1, size)
    fraction = np.arange(size) / size
    k = np.append(first + size * np.arange(len(blocks) + 1.0), first + heavy)
    mass = np.concatenate([np.append(blocks @ (1 - fraction), 0.0) + np.append(0.0, blocks @ fraction), g[heavy]])
    order = np.argsort(k, kind="stable")
    order = order[mass[order] > 0]
    return k[order], mass[order]


def _mean_and_variance(k: Float[np.ndarray, " summary"], g: Float[np.ndarray, " summary"]) -> tuple[float, float]:
    mean = float((g * k).sum())
    return mean, float((g * (k - mean) ** 2).sum())


def _log_moments(
    k: Float[np.ndarray, " summary"], g: Float[np.ndarray, " summary"], slopes: Float[np.ndarray, " slopes"]
) -> Float[np.ndarray, " slopes"]:
    if not len(k):
        return np.full_like(slopes, -np.inf)
    x = slopes[:, None] * k
    top = x.max(1, keepdims=True)
    return top[:, 0] + np.log((np.exp(x - top) * g).sum(1))


# Stages


def _blocks(
    term: _Tilted,
    sizes: Sequence[int],
    step: float,
    tilt: float,
    side: int,
    negligible: float,
    ratio: int = RATIO,
    *,
    is_linear: bool = False,
) -> list[tuple[_Tilted, float]]:
    """Return, for each size, the sum of so many reports on the next stage's grid, and a bound on its misplaced mass."""
    from scipy import fft

    largest = max(sizes)
    tails = _Tails.from_terms([replace(term, count=largest)])
    lower, upper = tails.widths(negligible)
    length = fft.next_fast_len(lower + upper + 1, real=True)
    mass_outside, mean = 2 * tails.mass_outside(lower - 1, length - lower - 2), tails.mean / largest
    if length > _MAX_POINTS:
        raise TooManyPointsError(f"sums of {largest} need {length} points at this step; at most {_MAX_POINTS} are used")
    spectrum, eta, blocks = _spectrum(term.g, term.first_index, length), _eta(length), []
    for size in sizes:
        lowest = int(np.floor(size * mean)) - lower
        # Entries of spectra are at most 1, and each has an error of at most eta; see docs/proofs/sums.md.
        lower_power = integer_power(spectrum, size - 1) if size > 1 else np.ones_like(spectrum)
        power = lower_power * spectrum
        g = np.maximum(np.roll(fft.irfft(power, length), -(lowest % length)), 0.0)
        error = size * eta * (SECOND_ORDER * _spectrum_norm(lower_power) + 1e-3 ** (size - 1) * math.sqrt(length))
        error += (8 * UNIT_ROUNDOFF * size + eta) * _spectrum_norm(power) + mass_outside
        mass, first = coarsen(*_trimmed(g, lowest, error), step, tilt, side, ratio, is_linear=is_linear)
        total = float(mass.sum())
        log_scale, rounding_rtol = (
            size * term.log_scale + math.log(total),
            size * term.rounding_rtol + 16 * UNIT_ROUNDOFF,
        )
        block = _Tilted(mass / total, first, log_scale, 1, rounding_rtol, term.stage + 1, math.log(total))
        blocks.append((block, 2 * error))
    return blocks


def _trimmed(
    g: Float[np.ndarray, " points"], first: int, error: float
) -> tuple[Float[np.ndarray, " kept_points"], int]:
    """Return the masses without ends that add up to no more than an error bound, as those by rounding do."""
    lower, upper = (min(_count_within(ends, error / 2), len(g) - 1) for ends in (g, g[::-1]))
    return (g[lower : len(g) - upper], first + lower) if lower + upper < len(g) else (g, first)


def _count_within(g: Float[np.ndarray, " points"], allowed: float) -> int:
    """Return how many of the first masses add up to no more than this, or fewer."""
    blocked_size = len(g) // _SUMMARY * _SUMMARY
    blocks = int((np.cumsum(g[:blocked_size].reshape(-1, _SUMMARY).sum(1)) <= allowed).sum())
    start, block_mass = blocks * _SUMMARY, float(g[: blocks * _SUMMARY].sum())
    return start + int((block_mass + np.cumsum(g[start : start + _SUMMARY]) <= allowed).sum())


# Transforms


def _eta(length: int) -> float:
    """Return the error of a transform: relative to its 2-norm, and of every entry relative to the sum of its terms."""
    return 8 * UNIT_ROUNDOFF * math.log2(max(length, 2))


def _spectrum(g: Float[np.ndarray, " points"], first: int, length: int) -> Complex[np.ndarray, " frequencies"]:
    """Return the transform of masses on a cycle."""
    from scipy import fft

    if len(g) > length:
        return fft.rfft(np.bincount((first + np.arange(len(g))) % length, g, length))
    cycle, start = np.zeros(length), first % length
    unwrapped_size = min(len(g), length - start)
    cycle[start : start + unwrapped_size] = g[:unwrapped_size]
    cycle[: len(g) - unwrapped_size] += g[unwrapped_size:]
    return fft.rfft(cycle)


def _spectrum_norm(spectrum: Complex[np.ndarray, " frequencies"]) -> float:
    """Return a bound on the 2-norm of a spectrum of which half is given."""
    return math.sqrt(2 * float((spectrum.real**2).sum() + (spectrum.imag**2).sum()))


@proven("sums#proof")
def _transformed(
    terms: Sequence[_Tilted], size: int, mixtures: Sequence[_Mixture] = ()
) -> tuple[Float[np.ndarray, " {size}"], float]:
    """Return the cyclic convolution powers, and a bound on the 2-norm of their error.

    Every entry of a transform of length N has an error of at most eta = 8 u log2 N, and powers one of 8 u a factor.
    """
    from scipy import fft

    eta, half = _eta(size), size // 2 + 1
    spectra = [_spectrum(term.g, term.first_index, size) for term in terms]
    spectra += [mixture.spectrum(size) for mixture in mixtures]
    # How many factors each one is, and how many errors there are.
    powers, counts = [term.count for term in terms] + [1] * len(mixtures), [term.count for term in terms]
    counts += [2 * mixture.count + 4 for mixture in mixtures]
    product, squares = np.empty(half, complex), np.zeros(len(spectra))
    length = max(_BLOCK_ENTRIES // len(spectra), _MIN_BLOCK)
    for start in range(0, half, length):
        entries = slice(start, start + length)
        product[entries], block_squares = _product([spectrum[entries] for spectrum in spectra], powers)
        squares += block_squares
    norms = np.sqrt(2 * squares / size)
    # Where an entry is small, so is its power but for this.
    least = [1e-3 ** (count - 1) if count > 1 else 0.0 for count in counts]
    errors = [
        count * (eta + 8 * UNIT_ROUNDOFF) * (SECOND_ORDER * factor_norm + least_entry)
        for count, factor_norm, least_entry in zip(counts, norms, least, strict=True)
    ]
    error = sum(errors) + 8 * UNIT_ROUNDOFF * sum(counts) * _spectrum_norm(product) / math.sqrt(size)
    g = fft.irfft(product, size)
    return g, error + eta * norm(g)


def _product(
    spectra: Sequence[Complex[np.ndarray, " frequencies"]], powers: Sequence[int]
) -> tuple[Complex[np.ndarray, " frequencies"], Float[np.ndarray, " factors"]]:
    """Return the product of all powers s^n, and for each s the sum of squares of s^(n - 1) times all other powers.

    An error of s changes the product by n times that factor, to first order.
    """
    lower_powers = [
        integer_power(spectrum, n - 1) if n > 1 else np.ones_like(spectrum)
        for spectrum, n in zip(spectra, powers, strict=True)
    ]
    factors = [lower_power * spectrum for lower_power, spectrum in zip(lower_powers, spectra, strict=True)]
    later_products = [np.ones_like(factors[0])]
    for factor in factors[:0:-1]:
        later_products.append(later_products[-1] * factor)
    product, squares = np.ones_like(factors[0]), []
    for lower_power, factor, later_factors in zip(lower_powers, factors, later_products[::-1], strict=True):
        error_factor = lower_power * product * later_factors
        squares.append(float((error_factor.real**2).sum() + (error_factor.imag**2).sum()))
        product = product * factor
    return product, np.array(squares)


def norm(values: np.ndarray) -> float:
    """Return the 2-norm; not by BLAS, whose threads may wait for each other."""
    return float(np.sqrt((values * values).sum()))
