"""Two-way tables from two reports of a person, and the test that two groups have the same shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from dpkernels import checks
from dpkernels.estimation.categorical.counts import CategoryCounts, plain_reports
from dpkernels.estimation.categorical.estimate import CategoryEstimate
from dpkernels.estimation.categorical.intervals import nearest_in_simplex
from dpkernels.estimation.intervals import Interval
from dpkernels.exact.categorical.sampler import CategorySampler
from dpkernels.exact.registry import exact_sampler
from dpkernels.mechanisms.categorical.base import Categorical

_CHUNK = 1 << 22  # entries of the indicators that are multiplied at once
_MAX_TESTED = 1 << 11  # categories, of which a matrix is inverted


@dataclass(frozen=True)
class TwoWayTable:
    """Estimated numbers of people by the categories of two columns.

    ``value`` are not negative and add up to the number of people; ``unbiased`` may be negative.
    """

    value: np.ndarray  #: (d1, d2)
    unbiased: np.ndarray
    error: np.ndarray  #: the standard errors of ``unbiased``
    rows: list[object]  #: the categories of the first column
    columns: list[object]  #: the categories of the second column
    count: int  #: the number of people

    def interval(self, confidence: float = 0.95) -> Interval:
        """Return normal (low, high) of every number by itself, for many people; they contain ``value``."""
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        half = -float(special.ndtri((1 - confidence) / 2)) * self.error
        low, high = (np.clip(end, 0.0, self.count) for end in (self.unbiased - half, self.unbiased + half))
        return np.minimum(low, self.value), np.maximum(high, self.value)


def two_way_table(
    first_reports: Any, first_mechanism: Categorical, second_reports: Any, second_mechanism: Categorical
) -> TwoWayTable:
    """Return the numbers of people by two categories, from two independent reports of each person.

    The budgets of both reports add up. Row i of both columns is about the same person; no row may be left out.

    Raises:
        ValueError: the columns have different lengths or missing reports, or hold an impossible report.
        TypeError: a mechanism is not for categories.
    """
    samplers = [exact_sampler(mechanism) for mechanism in (first_mechanism, second_mechanism)]
    for name, sampler in zip(("first_mechanism", "second_mechanism"), samplers, strict=True):
        if not isinstance(sampler, CategorySampler):
            raise TypeError(f"{name}: {type(sampler).__name__} is not for categories")
    first, second = (
        plain_reports(reports, sampler.mechanism)
        for reports, sampler in zip((first_reports, second_reports), samplers, strict=True)
    )
    for reports, present in ((first_reports, first), (second_reports, second)):
        if missing := len(reports) - len(present):
            raise ValueError(f"reports: {missing} are missing in one column; leave out the rows without both reports")
    n = len(first)
    if n != len(second) or n < 2:
        raise ValueError(f"reports: {n} in the first column, {len(second)} in the second; two or more pairs are needed")
    mechanisms = [sampler.mechanism for sampler in samplers]
    joint = _joint_supports(first, mechanisms[0], second, mechanisms[1]) / n
    (p, q), (r, s) = (
        (float(sampler.certificate.probability), float(sampler.certificate.other_probability)) for sampler in samplers
    )
    rows, columns = (
        CategoryCounts(mechanism).add(reports).supports / n
        for mechanism, reports in zip(mechanisms, (first, second), strict=True)
    )

    # The mean of a_y(report) b_z(report), each of which has two values: outside, and inside the set.
    def mean(a: tuple[float, float], b: tuple[float, float]) -> np.ndarray:
        (out_a, in_a), (out_b, in_b) = a, b
        margins = (in_a - out_a) * out_b * rows[:, None] + out_a * (in_b - out_b) * columns
        return out_a * out_b + margins + (in_a - out_a) * (in_b - out_b) * joint

    a, b = (-q / (p - q), (1 - q) / (p - q)), (-s / (r - s), (1 - s) / (r - s))
    shares = mean(a, b)
    squares = mean((a[0] ** 2, a[1] ** 2), (b[0] ** 2, b[1] ** 2))
    error = np.sqrt(np.maximum(squares - shares**2, 0.0) / (n - 1))
    nearest = nearest_in_simplex(shares.ravel(), 1.0).reshape(shares.shape)
    names = [list(mechanism.labels or range(mechanism.categories)) for mechanism in mechanisms]
    return TwoWayTable(n * nearest, n * shares, n * error, names[0], names[1], n)


def _joint_supports(
    first: np.ndarray, first_mechanism: Categorical, second: np.ndarray, second_mechanism: Categorical
) -> np.ndarray:
    """Return (d1, d2) how many pairs of reports support both categories."""
    total = np.zeros((first_mechanism.categories, second_mechanism.categories))
    size = max(1, _CHUNK // sum(total.shape))
    for start in range(0, len(first), size):
        first_supports = first_mechanism.supports(first[start : start + size]).astype(np.float32)
        second_supports = second_mechanism.supports(second[start : start + size]).astype(np.float32)
        total += first_supports.T @ second_supports
    return total


@dataclass(frozen=True)
class EqualityTest:
    """A chi-square test that two groups of people come from populations with the same shares."""

    statistic: float
    degrees: int
    p_value: float


def equality_test(first: CategoryEstimate, second: CategoryEstimate) -> EqualityTest:
    """Return the chi-square test that the populations of two groups have the same shares of all categories.

    The groups hold different people, and their mechanism is the same. For randomised response it is Pearson's test of
    the reports, and for sets Wald's test of the supports, with the covariance under the pooled shares. The p-value is
    for many reports.

    Raises:
        ValueError: the mechanisms differ, are block response, or have more than 2,048 categories.
    """
    if first.mechanism != second.mechanism:
        raise ValueError("second: is of another mechanism than first; the test compares reports of one")
    mechanism, d = first.mechanism, first.mechanism.categories
    if mechanism.kind == "block" or d > _MAX_TESTED:
        raise ValueError(
            f"first: is of a {mechanism.kind} of {d} categories; the test is for randomised response and sets of at "
            f"most {_MAX_TESTED} categories"
        )
    n, m = first.count, second.count
    pooled = (first.supports + second.supports) / (n + m)
    difference = first.supports / n - second.supports / m
    p, q = first.reports.probabilities
    shares = nearest_in_simplex((pooled - q) / (p - q), 1.0)
    k = getattr(mechanism, "size", 1)
    # P(y and z are in the set | x), where x is neither of them, and where x = y.
    pair_without_x = ((1 - p) * k * (k - 1) + p * (k - 1) * (k - 2)) / max((d - 1) * (d - 2), 1)
    pair_with_x = p * (k - 1) / (d - 1)
    pair = pair_without_x + (pair_with_x - pair_without_x) * (shares[:, None] + shares)
    expected = q + (p - q) * shares
    np.fill_diagonal(pair, expected)
    covariance = (pair - np.outer(expected, expected)) * (1 / n + 1 / m)
    # The supports add up to k in every report, so one of them is left out.
    statistic = float(difference[:-1] @ np.linalg.solve(covariance[:-1, :-1], difference[:-1]))
    return EqualityTest(statistic, d - 1, float(special.chdtrc(d - 1, statistic)))
