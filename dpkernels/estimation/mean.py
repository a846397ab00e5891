"""The estimated mean of the true values from reports of one mechanism, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpkernels import checks
from dpkernels.estimation.interval_formulas import (
    bernstein_half_width,
    clopper_pearson,
    convex_minorant,
    pooled_mean,
    pooled_quantile,
    pooled_variance,
)
from dpkernels.estimation.intervals import Interval, interval_repr
from dpkernels.exact.bounded.certificate import PROMISED_DEVIATION
from dpkernels.exact.registry import ExactMultivariate
from dpkernels.exact.sampler import ExactSampler
from dpkernels.mechanisms.additive import check_dimensions
from dpkernels.mechanisms.base import Mechanism
from dpkernels.mechanisms.multivariate import Multivariate
from dpkernels.mechanisms.two_point import TwoPoint
from dpkernels.mechanisms.windowed.mechanism import SquareWave
from dpkernels.numerics import Real
from dpkernels.release import containers

# The fraction of its width by which a table's reports may exceed the density's output interval: their lattices differ.
_TABLE_MARGIN = 0.05
_NOISE_POINTS = 257  # inputs at which a mechanism's variance is computed


@dataclass(frozen=True, repr=False)
class MeanEstimate:
    """An unbiased mean with two confidence intervals, as floats or arrays of one entry per coordinate, in data units.

    Intervals end where inputs can be, while the value is unbiased and may be outside. For vectors their confidence is
    that of all coordinates together (Bonferroni).
    """

    value: float  #: the mean of the reports
    count: int  #: n, the number of reports
    _interval: Callable[[float], Interval] = field(compare=False)
    _bernstein: Callable[[float], Interval] = field(compare=False)

    __repr__ = interval_repr

    def interval(self, confidence: float = 0.95) -> Interval:
        """Return Student's (low, high), from the variance of the sample and the known one of the noise.

        It is for the mean of the inputs, and for large n also for that of the population from which they were drawn.
        """
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        return self._interval(confidence)

    def bernstein(self, confidence: float = 0.95) -> Interval:
        """Return a wider (low, high), proven for every n, for the mean of the inputs.

        It follows from the bounds and the worst-case variance of the reports.
        """
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        return self._bernstein(confidence)


def estimate_mean(reports: Real, mechanism: Any) -> MeanEstimate:
    """Return the mean of the values behind reports of one mechanism, by post-processing, which costs no privacy.

    Args:
        reports: the output of ``perturb``, without rows left out; for vectors, coordinates on the last axis.
        mechanism: the mechanism (or exact sampler) that made them.

    Raises:
        ValueError: there are no reports, a report is impossible for the mechanism, or the mechanism is biased.
        TypeError: not numbers, or not a mechanism.

    Source: Bernstein's inequality for n unbiased bounded reports, P(|error| >= t) <= 2 exp(-n t^2/(2 V + 2 M t/3)),
    with V the worst-case variance and M the largest |report - input| (Ma 2021, Theorem 5 and Appendix B).
    """
    mechanism = mechanism.mechanism if isinstance(mechanism, ExactSampler | ExactMultivariate) else mechanism
    values, _ = containers.unwrap(reports)
    rows = _rows(mechanism, np.asarray(values))
    if len(rows) == 0:
        raise ValueError("reports: is empty; there is no mean")
    low, high = (np.asarray(end, float) for end in mechanism.output_interval)
    allowance = _TABLE_MARGIN * (high - low)
    low, high = low - allowance, high + allowance
    is_impossible = ~((rows >= low) & (rows <= high))
    if is_impossible.any():
        row = int(np.argwhere(is_impossible)[0][0])
        raise ValueError(
            f"reports: row {row} is {rows[row]}, outside the mechanism's output interval [{low}, {high}]; "
            "these are not its reports"
        )
    n, d = rows.shape
    mean = rows.mean(axis=0, dtype=np.float64)
    standard_error, high_count = np.zeros(d), 0
    if isinstance(mechanism, TwoPoint):
        low_report, high_report = map(float, mechanism.output_interval)
        high_count = int((rows > (low_report + high_report) / 2).sum())
    else:
        sample = rows.var(axis=0, ddof=1, dtype=np.float64) if n > 1 else np.zeros(d)
        standard_error = np.sqrt(pooled_variance(n, sample, *_noise_variances(mechanism, n, mean)) / n)

    def entry(values: np.ndarray) -> Any:
        return values if isinstance(mechanism, Multivariate) else values.item()

    def clipped(*ends: np.ndarray) -> Interval:
        low, high = (entry(np.clip(end, *mechanism.input_interval) + 0.0) for end in ends)
        return low, high

    def interval(confidence: float) -> Interval:
        coverage = 1 - (1 - confidence) / d
        if isinstance(mechanism, TwoPoint):
            probabilities = clopper_pearson(n, high_count, coverage)
            return clipped(*(low_report + p.reshape(1) * (high_report - low_report) for p in probabilities))
        half_width = pooled_quantile(n, coverage) * standard_error
        return clipped(mean - half_width, mean + half_width)

    def bernstein(confidence: float) -> Interval:
        largest = np.maximum(high - mechanism.input_interval[0], mechanism.input_interval[1] - low)
        variance = mechanism.worst_variance * (1 + PROMISED_DEVIATION)
        half_width = bernstein_half_width(n, variance, largest, math.log(2 * d / (1 - confidence)))
        return clipped(mean - half_width, mean + half_width)

    return MeanEstimate(entry(mean), n, interval, bernstein)


def _noise_variances(mechanism: Mechanism, n: int, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the variances of the noise for ``pooled_variance``, (d,) one for each coordinate."""
    low, high = (np.asarray(end, float) for end in mechanism.input_interval)
    width = high - low
    if not np.isfinite(width).all():  # of additive noise, whose variance is the same for all inputs
        variance = np.full(len(mean), float(mechanism.worst_variance))
        return variance, variance
    factor = (width / width.flat[0]) ** 2  # All coordinates are perturbed alike.
    x = np.linspace(0.0, 1.0, _NOISE_POINTS)
    v = np.asarray(mechanism.variance(np.linspace(low, high, _NOISE_POINTS)), float).reshape(len(x), -1)[:, 0]
    position = (np.clip(pooled_mean(n, mean, low + width / 2), low, high) - low) / width
    return np.interp(position, x, v) * factor, np.interp(position, x, convex_minorant(x, v)) * factor


def _rows(mechanism: object, reports: np.ndarray) -> np.ndarray:
    if isinstance(mechanism, Multivariate):
        check_dimensions(mechanism.dimensions, reports.shape)
        return reports.reshape(-1, mechanism.dimensions)
    if not isinstance(mechanism, Mechanism):
        raise TypeError(f"mechanism: {type(mechanism).__name__} is not a mechanism or an exact sampler")
    if isinstance(mechanism, SquareWave):
        raise ValueError(
            "mechanism: square wave is biased, so the mean of its reports is not that of the inputs; dpk.estimate "
            "corrects for it, and piecewise needs no correction and is as accurate at the same width of the window"
        )
    return reports.reshape(-1, 1)
