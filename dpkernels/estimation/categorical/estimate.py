"""Estimates of the shares and numbers of people in categories, from reports of one local mechanism."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from dpkernels import checks
from dpkernels.decimals import format_number
from dpkernels.estimation.categorical.counts import CategoryCounts, plain_reports
from dpkernels.estimation.categorical.intervals import (
    count_intervals,
    cut_by_sum,
    nearest_in_simplex,
    share_intervals,
)
from dpkernels.estimation.intervals import Interval
from dpkernels.mechanisms.categorical.base import Categorical

# Entries of the matrix of reports and categories from which the likelihood is computed.
_MAX_ENTRIES = 1 << 27
_GAP_TOLERANCE = 1e-6  # the distance of the mean log likelihood from its maximum at which a search ends
_MAX_ITERATIONS = 20_000  # steps of expectation maximisation


@dataclass(frozen=True, repr=False)
class CategoryNumbers:
    """Estimated shares or numbers of people, one of every category.

    ``unbiased`` are the unbiased estimates, which may be negative. ``value`` are the nearest numbers that are not
    negative and add up to the total, with a smaller expected error; the fewer reports there are, the more they are
    biased. Intervals come from the numbers of supporting reports, and not from ``value``, but contain it.
    """

    value: np.ndarray
    unbiased: np.ndarray
    error: np.ndarray  #: the standard errors of ``unbiased``
    _total: float = field(repr=False)
    _interval: Callable[[float], Interval] = field(repr=False, compare=False)

    def __repr__(self) -> str:
        return f"CategoryNumbers({format_number(self.value)})"

    def interval(self, confidence: float = 0.95) -> Interval:
        """Return (low, high), arrays of one interval for each category, of which each holds by itself."""
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        return self._including_values(*self._interval(confidence))

    def band(self, confidence: float = 0.95) -> Interval:
        """Return (low, high) that hold for all categories together, by Bonferroni's inequality and their sum."""
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        low, high = self._interval(1 - (1 - confidence) / len(self.value))
        return self._including_values(*cut_by_sum(low, high, self._total))

    def _including_values(self, low: np.ndarray, high: np.ndarray) -> Interval:
        return np.minimum(low, self.value), np.maximum(high, self.value)


@dataclass(frozen=True)
class TopCategory:
    """One of the categories with the largest estimated numbers of people."""

    category: object  #: its label, or its code if there are no labels
    count: float
    interval: tuple[float, float]  #: of its number, which holds together with those of all other categories


@dataclass(frozen=True)
class CategoryLikelihood:
    """The maximum likelihood estimate of the shares of a population."""

    shares: np.ndarray
    gap: float  #: a bound of how far the log-likelihood per report is below its maximum


class CategoryEstimate:
    """Estimates from reports about categories; ``dpk.estimate`` makes it.

    - ``counts`` and ``shares`` are about the people who sent the reports.
    - ``population`` are shares of a population from which these people were drawn at random.
    - ``top`` returns the largest categories, and ``likelihood`` the maximum likelihood estimate.
    """

    def __init__(self, reports: CategoryCounts) -> None:
        if not reports.total:
            raise ValueError("reports: is empty; at least one report is needed")
        self.reports = reports
        self.mechanism: Categorical = reports.mechanism

    @property
    def count(self) -> int:
        """Return the number of reports."""
        return self.reports.total

    @cached_property
    def supports(self) -> np.ndarray:
        """Return (d,) the number of reports that support each category."""
        return self.reports.supports

    @cached_property
    def counts(self) -> CategoryNumbers:
        """Return the numbers of people in each category, with exact intervals (``count_intervals``)."""
        n = self.count

        def interval(confidence: float) -> Interval:
            low, high = count_intervals(self.supports, n, self.reports.probabilities, confidence)
            return low.astype(float), high.astype(float)

        return CategoryNumbers(n * self._nearest, n * self._unbiased, n * self._error(0.0), n, interval)

    @cached_property
    def shares(self) -> CategoryNumbers:
        """Return the shares of each category among the people, with the intervals of ``counts``."""
        n, counts = self.count, self.counts

        def interval(confidence: float) -> Interval:
            low, high = counts._interval(confidence)
            return low / n, high / n

        return CategoryNumbers(self._nearest, self._unbiased, self._error(0.0), 1.0, interval)

    @cached_property
    def population(self) -> CategoryNumbers:
        """Return the shares in the population, with Clopper and Pearson's intervals."""

        def interval(confidence: float) -> Interval:
            return share_intervals(self.supports, self.count, self.reports.probabilities, confidence)

        return CategoryNumbers(self._nearest, self._unbiased, self._error(1.0), 1.0, interval)

    @cached_property
    def _unbiased(self) -> np.ndarray:
        p, q = self.reports.probabilities
        return (self.supports / self.count - q) / (p - q)

    @cached_property
    def _nearest(self) -> np.ndarray:
        return nearest_in_simplex(self._unbiased, 1.0)

    def _error(self, sampled: float) -> np.ndarray:
        p, q = self.reports.probabilities
        share = np.clip(self._unbiased, 0.0, 1.0)
        noise = (share * p * (1 - p) + (1 - share) * q * (1 - q)) / (p - q) ** 2
        return np.sqrt((noise + sampled * share * (1 - share)) / self.count)

    @property
    def categories(self) -> list[object]:
        """Return the labels of the categories, or their codes if there are none."""
        return list(self.mechanism.labels or range(self.mechanism.categories))

    def top(self, k: int, confidence: float = 0.95) -> list[TopCategory]:
        """Return the k categories with the largest estimated numbers, in falling order.

        Their intervals hold together with those of all other categories, so they stay valid although the categories
        were chosen by the same reports. A k that is not in 1..d is a ValueError.
        """
        checks.integer_in("k", k, 1, self.mechanism.categories)
        low, high = self.counts.band(confidence)
        order = np.argsort(-self._unbiased, kind="stable")[:k]
        value, label = self.counts.value, self.mechanism.label
        return [
            TopCategory(label(code), float(value[code]), (float(low[code]), float(high[code])))
            for code in order.tolist()
        ]

    def table(self, confidence: float = 0.95) -> dict[str, Any]:
        """Return columns for a table of one row a category: counts, shares, and the intervals of ``interval``."""
        low, high = self.counts.interval(confidence)
        columns = {"count": self.counts.value, "count_low": low, "count_high": high, "share": self.shares.value}
        n = self.count
        return {"category": self.categories, **columns, "share_low": low / n, "share_high": high / n}

    def likelihood(self, reports: object = None) -> CategoryLikelihood:
        """Return the shares of the population that make the reports most likely, by expectation maximisation.

        The steps end where the log-likelihood per report is proven to be within 1e-6 of its maximum. The counts of sets
        do not determine their likelihood, so for these ``reports`` must be given again.

        Raises:
            ValueError: reports of sets are missing, or there are too many different reports.
            ArithmeticError: 20,000 steps do not reach the tolerance.
        """
        mechanism = self.mechanism
        if mechanism.kind != "set":
            present = np.flatnonzero(self.reports.numbers)
            rows, numbers = present.astype(mechanism.report_dtype), self.reports.numbers[present]
        elif reports is None:
            raise ValueError("reports: None; the likelihood of sets needs the reports themselves")
        else:
            rows, numbers = np.unique(plain_reports(reports, mechanism), axis=0, return_counts=True)
        if len(rows) * mechanism.categories > _MAX_ENTRIES:
            raise ValueError(
                f"reports: {len(rows)} different ones of {mechanism.categories} categories are too many for the "
                "likelihood; the estimates of counts and shares need no matrix"
            )
        frequencies = numbers.astype(float) / numbers.sum()
        ratio = float(self.reports.certificate.ratio)
        return _maximise(mechanism.supports(rows).astype(np.float32), frequencies, ratio)

    def __repr__(self) -> str:
        first = self.mechanism.label(int(np.argmax(self._unbiased)))
        return f"CategoryEstimate({self.count:,} reports, {self.mechanism.categories:,} categories, most: {first!r})"


def _maximise(supports: np.ndarray, weights: np.ndarray, ratio: float) -> CategoryLikelihood:
    """Maximise sum_i w_i log(1 + (ratio - 1) (S theta)_i) over shares theta.

    The ratio is that of the probabilities of a report given a category that it supports, and another one.

    Each step of expectation maximisation is followed by an extrapolation (Varadhan & Roland 2008), which is kept where
    it raises the likelihood. By concavity the likelihood is below its maximum by at most max_y g_y - 1, with g its
    gradient.
    """
    d = supports.shape[1]

    def gradient(theta: np.ndarray) -> tuple[np.ndarray, float]:
        mixed = 1.0 + (ratio - 1.0) * (supports @ theta.astype(np.float32)).astype(float)
        inverse = weights / mixed
        supported = (supports.T @ inverse.astype(np.float32)).astype(float)
        return inverse.sum() + (ratio - 1.0) * supported, float(weights @ np.log(mixed))

    theta = np.full(d, 1 / d)
    g, value = gradient(theta)
    for _ in range(_MAX_ITERATIONS):
        if (gap := float(g.max()) - 1) <= _GAP_TOLERANCE:
            return CategoryLikelihood(theta, max(gap, 0.0))
        first = theta * g
        second = first * gradient(first)[0]
        r, v = first - theta, second - 2 * first + theta
        length = -np.sqrt((r @ r) / max(v @ v, 1e-300))
        theta = np.maximum(theta - 2 * length * r + length**2 * v, 1e-12 * second)
        theta /= theta.sum()
        g, extrapolated_value = gradient(theta)
        if extrapolated_value < value:
            theta = second / second.sum()
            g, value = gradient(theta)
        else:
            value = extrapolated_value
    raise ArithmeticError(f"likelihood: {_MAX_ITERATIONS} steps left a gap of {gap:.3g}; {_GAP_TOLERANCE} is needed")
