"""Quantiles by the exponential mechanism on a lattice, with intervals from counts between points near them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

import dpkernels as dpk
from dpkernels import checks
from dpkernels.decimals import rational
from dpkernels.session.blocks import Block
from dpkernels.session.distinct import SortedCounts
from dpkernels.session.results import Bounds, Result
from dpkernels.session.run import NoiseRecord, ReleaseInProgress
from dpkernels.session.statistic import BoundedColumn, Groups, as_vector, remaining_budget, to_unit_interval
from dpkernels.session.sums import SumLattice, floor_to_9_digits

_QUANTILE_STEPS = 1 << 24  # of the lattice of a quantile without a step
_MAX_POINTS = 1 << 32  # of a quantile's lattice: positions are words of 32 bits
_HALVINGS = 14  # distances of a published quantile at which values are counted: 1/2 to 2^-14 of the lattice
_MAX_DENOMINATOR = 1000  # of the fractions to which probabilities are rounded
_EPSILON_PER_ROW = 2e-5  # the least, of a choice of one quantile


@dataclass(frozen=True)
class Quantiles(BoundedColumn):
    """The smallest values that shares p of the values do not exceed, by the exponential mechanism.

    Attributes:
        p: a number, or increasing numbers, in (0, 1).
        step: values are ``lower`` plus a multiple of this number, such as 1 for ages; by default none is known. It is
            not used if there are 2^32 multiples or more between private bounds.
        interval_share: the share of the budget for counts between points near the quantiles, from which their intervals
            follow. With 0 the intervals are [lower, upper].
    """

    p: float | Sequence[float] = 0.5
    step: float | None = field(default=None, kw_only=True)
    interval_share: float = field(default=0.3, kw_only=True)
    adds_whole_numbers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        probabilities = self._probabilities if np.isfinite(as_vector("p", self.p)).all() else []
        is_inside = len(probabilities) > 0 and all(0 < p < 1 for p in probabilities)
        if not is_inside or any(a >= b for a, b in pairwise(probabilities)):
            raise ValueError(f"p: {self.p!r} must be increasing numbers in (0, 1), at least 1/1000 apart")
        checks.within("interval_share", checks.number("interval_share", self.interval_share), 0.0, 0.9)
        if self.step is not None:
            checks.positive("step", checks.number("step", self.step))
            if not self.has_private_bounds and (self._ends[1] - self._ends[0]) / self.step >= _MAX_POINTS:
                raise ValueError(f"step: {self.step} is too small for so wide bounds; at most 2^32 steps are possible")

    def smallest_epsilon(self, rows_per_person: int) -> float:
        return (
            _EPSILON_PER_ROW
            * rows_per_person
            * (1 + math.log2(len(self._probabilities) + 1))
            / (1 - self.interval_share)
        )

    @property
    def _probabilities(self) -> list[Fraction]:
        return [Fraction(p).limit_denominator(_MAX_DENOMINATOR) for p in np.atleast_1d(as_vector("p", self.p)).tolist()]

    @property
    def _step(self) -> float | None:
        """Return the step, or None where private bounds are so wide that they have too many of them."""
        lower, upper = self._ends
        return None if self.step is None or (upper - lower) / self.step >= _MAX_POINTS else self.step

    @property
    def _point_count(self) -> int:
        (lower, upper), step = self._ends, self._step
        if step is None:
            return _QUANTILE_STEPS
        return min(math.floor((upper - lower) / step + 1e-9) + 1, _MAX_POINTS - 1)

    def _values(self, positions: np.ndarray) -> np.ndarray:
        (lower, upper), step = self._ends, self._step
        if step is None:
            return lower + (upper - lower) * (positions + 0.5) / _QUANTILE_STEPS
        return lower + step * positions

    def noise_parameters(self, rows_per_person: int, groups: int, epsilon: float) -> tuple[SumLattice, float, int]:
        """Return those of the counts near the points, of which a person changes at most ``rows_per_person``."""
        count_epsilon = floor_to_9_digits(rational(epsilon) * rational(float(self.interval_share))) or epsilon
        return SumLattice.for_sums(rows_per_person, count_epsilon, rows_per_person, 1, counts=True), count_epsilon, 1

    def release_groups(self, run: ReleaseInProgress, groups: Groups, epsilon: float) -> Result:
        (lower, upper), probabilities = self._ends, self._probabilities
        lattice, count_epsilon, _ = self.noise_parameters(run.rows_per_person, groups.count, epsilon)
        choice_epsilon = remaining_budget(epsilon, count_epsilon) if self.interval_share else epsilon
        rows = run.sorted_counts(self.names, groups.count, lambda block: self._positions(block, groups.codes(block)))
        quantiles = [
            private_quantiles(counts, probabilities, self._point_count, choice_epsilon, run) for counts in rows
        ]
        run.noise_records.append(NoiseRecord(f"{self.title}: points", choice_epsilon))
        values = self._values(np.array(quantiles, float).reshape(-1))
        index = groups.index(len(probabilities))
        if len(probabilities) > 1:
            index["p"] = [float(p) for p in probabilities] * groups.count
        bounds: Bounds = lambda _: (np.full(len(values), lower), np.full(len(values), upper))  # noqa: E731
        if self.interval_share:
            bounds = self._bounds(rows, quantiles, lattice, count_epsilon, run)
        return Result(self.title, index, values, bounds, (lower, upper), run.table.kind)

    def _bounds(
        self,
        rows: Sequence[SortedCounts],
        quantiles: Sequence[Sequence[int]],
        lattice: SumLattice,
        epsilon: float,
        run: ReleaseInProgress,
    ) -> Bounds:
        """Release counts between points near the quantiles of each group; return the intervals that follow."""
        edges = [nested_edges(group_quantiles, self._point_count) for group_quantiles in quantiles]
        counts = [np.diff(counts.count_at_most(group_edges)) for counts, group_edges in zip(rows, edges, strict=True)]
        label = f"{self.title}: counts near the points"
        noisy = run.add_noise(np.concatenate(counts)[:, None], lattice, epsilon, label)

        @cache
        def estimates() -> list[Any]:
            released = dpk.released_values(noisy.values[:, 0], noisy.sampler)
            by_group = np.split(released, np.cumsum([len(group_edges) - 1 for group_edges in edges])[:-1])
            pairs = zip(by_group, edges, strict=True)
            histograms = [(counts.tolist(), group_edges.astype(float)) for counts, group_edges in pairs]
            return [
                dpk.histogram_quantile(*histogram, float(p)) for histogram in histograms for p in self._probabilities
            ]

        def bounds(confidence: float) -> tuple[np.ndarray, np.ndarray]:
            low, high = np.array([estimate.interval(confidence) for estimate in estimates()]).T
            margin = 0.5 if self._step is None else 0.0  # of a position, which stands for a stretch of values
            return self._values(np.minimum(low + 1, high) - margin), self._values(high + margin)

        return bounds

    def _positions(self, block: Block, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        (lower, upper), last, step = self._ends, self._point_count - 1, self._step
        t, missing = to_unit_interval(block[self.column], lower, upper)
        positions = np.floor(t * (last + 1)) if step is None else np.rint(t * ((upper - lower) / step))
        is_counted = ~missing & (codes >= 0)
        return codes[is_counted], np.clip(positions[is_counted], 0, last).astype(np.int64)

    def expected_width(self, rows: int, rows_per_person: int, epsilon: float) -> float:
        return self._ends[1] - self._ends[0] if self.interval_share == 0 else math.nan


@dataclass(frozen=True)
class _Segment:
    """Some of the quantiles to choose, and what is known of them."""

    first: int  # the index of the first one
    last: int  # the index of the last one plus 1
    rows: SortedCounts  # between the quantiles of the probabilities ``start`` and ``end``
    low: int  # between which the quantiles are
    high: int
    start: Fraction
    end: Fraction


def private_quantiles(
    counts: SortedCounts, probabilities: Sequence[Fraction], points: int, epsilon: float, run: ReleaseInProgress
) -> list[int]:
    """Return private quantiles of integers in 0..points - 1, in order.

    The middle one is chosen first, then those of the values up to it, and of the values above it, so that a row is
    read once at each of ceil(log2(m + 1)) levels, with the same part of the budget each (Kaplan, Schnapp & Stemmer
    2022).
    """
    levels = math.ceil(math.log2(len(probabilities) + 1))
    quantiles = [0] * len(probabilities)

    def choose(segment: _Segment) -> None:
        """Choose the middle quantile of a segment, and then those on its two sides."""
        if segment.first >= segment.last:
            return
        middle, quantile = (segment.first + segment.last) // 2, segment.low
        probability = probabilities[middle]
        if segment.low < segment.high:
            within_segment = (probability - segment.start) / (segment.end - segment.start)
            quantile += _quantile(
                SortedCounts(segment.rows.values - segment.low, segment.rows.counts),
                within_segment.limit_denominator(_MAX_DENOMINATOR),
                segment.high - segment.low + 1,
                rational(epsilon) / levels,
                run,
            )
        quantiles[middle] = quantile
        lower_rows, upper_rows = segment.rows.split(quantile)
        choose(replace(segment, last=middle, rows=lower_rows, high=quantile, end=probability))
        low = min(quantile + 1, segment.high)
        choose(replace(segment, first=middle + 1, rows=upper_rows, low=low, start=probability))

    choose(_Segment(0, len(probabilities), counts, 0, points - 1, Fraction(0), Fraction(1)))
    return quantiles


def quantile_scores(counts: SortedCounts, probability: Fraction, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores of stretches of 0..points - 1, in order, and their lengths.

    The score of y is -max(0, p n - d #(<= y), d #(< y) - p n) for the quantile p/d of n rows: 0 if y is a quantile.
    One more row changes the score of every y by at most max(p, d - p).
    """
    p, d, values = probability.numerator, probability.denominator, counts.values
    # Of the rows below a value, p n of 1/d, and 0 of these at a quantile.
    excess = d * counts.cumulative - p * len(counts)
    # Stretches between values, and the values themselves, in turn.
    scores, lengths = np.empty(2 * len(values) + 1, np.int64), np.ones(2 * len(values) + 1, np.int64)
    scores[::2] = -np.abs(excess)
    scores[1::2] = -np.maximum(np.maximum(-excess[1:], excess[:-1]), 0)
    lengths[::2] = np.append(values, points)
    lengths[2::2] -= values + 1
    return scores, lengths


def _quantile(
    counts: SortedCounts, probability: Fraction, points: int, epsilon: Fraction, run: ReleaseInProgress
) -> int:
    scores, lengths = quantile_scores(counts, probability, points)
    largest_change = run.rows_per_person * max(probability.numerator, probability.denominator - probability.numerator)
    stretch, item = run.choose_item(scores, lengths, epsilon / (2 * largest_change))
    return int(lengths[:stretch].sum()) + item


def nested_edges(quantiles: Sequence[int], points: int) -> np.ndarray:
    """Return increasing edges from -1 to points - 1: around each quantile, and at points/2^k from it on both sides."""
    edges = {-1, points - 1}
    for quantile in quantiles:
        edges |= {quantile - 1, quantile}
        for distance in (points >> halvings for halvings in range(1, _HALVINGS + 1)):
            edges |= {quantile - distance, quantile + distance}
    return np.array(sorted(edge for edge in edges if -1 <= edge < points))
