"""The mean of perturbed values, with its confidence intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import singledispatch
from statistics import NormalDist
from typing import Any

import numpy as np

from dpkernels import checks
from dpkernels.exact.form import ExactForm
from dpkernels.exact.mixture import ExactMultivariate
from dpkernels.exact.windows.lattice import PROMISED_DEVIATION
from dpkernels.mechanisms.base import Mechanism
from dpkernels.mechanisms.multivariate import Multivariate, check_shape
from dpkernels.release import containers

# A table's reports may pass the density's interval by this share of its width; its variance is within 0.1 %.
_TABLE_ROOM = 0.05


@dataclass(frozen=True)
class MeanEstimate:
    """An unbiased mean and two intervals for it; floats, or arrays of one entry a coordinate.

    Attributes:
        value: the mean of the reports.
        interval: normal interval from the reports' own variance, for the mean of the inputs or of the population
            they were drawn from; right for large n.
        bernstein: interval for the mean of the inputs that holds at every n, from the reports' bounds and their
            worst-case variance; wider.
        count: n, how many reports.
        confidence: of either interval; for vectors, of all coordinates together (Bonferroni).
    """

    value: Any
    interval: tuple[Any, Any]
    bernstein: tuple[Any, Any]
    count: int
    confidence: float


def estimate_mean(reports: Any, mechanism: Any, confidence: float = 0.95) -> MeanEstimate:
    """The mean of the values behind reports of one mechanism.

    It is post-processing: it costs no privacy.

    Args:
        reports: what ``perturb`` returned, without rows left out; for vectors, coordinates on the last axis.
        mechanism: the mechanism (or exact form) that made them.
        confidence: in (0, 1).

    Returns:
        A ``MeanEstimate``, in the data's units.

    Raises:
        ValueError: no reports, a report that the mechanism cannot have made, or confidence not in (0, 1).
        TypeError: not numbers, or not a mechanism.

    Source: Bernstein's inequality for n unbiased bounded reports, P(|error| >= t) <= 2 exp(-n t^2/(2 V + 2 M t/3)),
    with V the worst-case variance and M the largest |report - input| (Ma 2021, Theorem 5 and Appendix B).
    """
    checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
    values, _ = containers.unwrap(reports)
    return ReportSums.of(np.asarray(values), mechanism).estimate(mechanism, confidence)


@dataclass(frozen=True)
class ReportSums:
    """What the mean of reports takes from them: sums of parts, made anywhere, add up.

    Attributes:
        count: how many reports.
        mean: of each coordinate.
        squares: sums of squared distances from the mean.
    """

    count: int
    mean: np.ndarray
    squares: np.ndarray

    @classmethod
    def of(cls, reports: np.ndarray, mechanism: Any) -> ReportSums:
        """The sums of reports of one mechanism.

        Raises:
            ValueError: no reports, or one that the mechanism cannot have made.
            TypeError: not a mechanism.
        """
        mechanism = _of_form(mechanism)
        rows = _rows(mechanism, reports)
        if len(rows) == 0:
            raise ValueError("reports: is empty; there is no mean")
        _check_possible(rows, mechanism)
        return cls(len(rows), rows.mean(axis=0, dtype=np.float64), len(rows) * rows.var(axis=0, dtype=np.float64))

    def __add__(self, other: ReportSums) -> ReportSums:
        """Of both together (Chan, Golub, LeVeque 1979)."""
        count, apart = self.count + other.count, other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        return ReportSums(count, mean, self.squares + other.squares + apart**2 * (self.count * other.count / count))

    def estimate(self, mechanism: Any, confidence: float = 0.95) -> MeanEstimate:
        """The mean with its intervals, as ``estimate_mean`` of all these reports."""
        return _estimate(_of_form(mechanism), self, confidence)


def _of_form(mechanism: Any) -> Any:
    return mechanism.mechanism if isinstance(mechanism, ExactForm | ExactMultivariate) else mechanism


def _estimate(mechanism: Any, sums: ReportSums, confidence: float) -> MeanEstimate:
    n, mean, d = sums.count, sums.mean, len(sums.mean)
    tail = (1 - confidence) / d
    deviation = np.sqrt(sums.squares / (n - 1)) if n > 1 else np.full(d, np.inf)
    normal = -NormalDist().inv_cdf(tail / 2) * deviation / math.sqrt(n)
    variance = mechanism.worst_variance * (1 + PROMISED_DEVIATION)
    bernstein = _bernstein(n, math.log(2 / tail), variance, _largest_error(mechanism))
    shape = (lambda v: v) if isinstance(mechanism, Multivariate) else (lambda v: float(np.broadcast_to(v, (1,))[0]))
    return MeanEstimate(
        value=shape(mean),
        interval=(shape(mean - normal), shape(mean + normal)),
        bernstein=(shape(mean - bernstein), shape(mean + bernstein)),
        count=n,
        confidence=confidence,
    )


@singledispatch
def _rows(mechanism: Any, reports: np.ndarray) -> np.ndarray:
    """Reports as (n, d)."""
    raise TypeError(f"mechanism: {type(mechanism).__name__} is not a mechanism or an exact form")


@_rows.register
def _(mechanism: Mechanism, reports: np.ndarray) -> np.ndarray:
    return reports.reshape(-1, 1)


@_rows.register
def _(mechanism: Multivariate, reports: np.ndarray) -> np.ndarray:
    check_shape(mechanism, reports.shape)
    return reports.reshape(-1, mechanism.dimensions)


def _check_possible(rows: np.ndarray, mechanism: Any) -> None:
    low, high = _report_interval(mechanism)
    bad = ~((rows >= low) & (rows <= high))
    if bad.any():
        row = int(np.argwhere(bad)[0][0])
        raise ValueError(
            f"reports: row {row} is {rows[row]}, outside the mechanism's output interval [{low}, {high}]; "
            "these are not its reports"
        )


def _report_interval(mechanism: Any) -> tuple[Any, Any]:
    """The density's output interval, with room for a table's, whose lattice is not quite the density's."""
    low, high = (np.asarray(end, float) for end in mechanism.output_interval)
    room = _TABLE_ROOM * (high - low)
    return low - room, high + room


def _bernstein(n: int, log_odds: float, variance: Any, largest: Any) -> Any:
    """The t at which 2 exp(-n t^2 / (2 V + 2 M t / 3)) is the tail: the positive root of a quadratic."""
    third = largest * log_odds / 3
    return (third + np.sqrt(third**2 + 2 * n * variance * log_odds)) / n


def _largest_error(mechanism: Any) -> Any:
    (low_in, high_in), (low_out, high_out) = mechanism.input_interval, _report_interval(mechanism)
    return np.maximum(high_out - low_in, high_in - low_out)
