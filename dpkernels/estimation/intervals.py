"""Estimates with confidence intervals and the mean of perturbed values.

Intervals of means are Student's, with the variance of ``pooled_variance``, because the sample variance of few reports
may be too small by chance. Two-point reports have Clopper and Pearson's intervals. Bernstein's intervals hold at every
n. Intervals of distributions use the profile likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpkernels import checks
from dpkernels.decimals import format_number
from dpkernels.exact.bounded.certificate import PROMISED_DEVIATION
from dpkernels.exact.registry import ExactMultivariate
from dpkernels.exact.sampler import ExactSampler
from dpkernels.mechanisms.additive import check_dimensions
from dpkernels.mechanisms.base import Mechanism
from dpkernels.mechanisms.multivariate import Multivariate
from dpkernels.mechanisms.two_point import TwoPoint
from dpkernels.mechanisms.windowed.mechanism import SquareWave
from dpkernels.numerics import Real, float_if_scalar
from dpkernels.release import containers

# The fraction of its width by which a table's reports may exceed the density's output interval: their lattices differ.
_TABLE_MARGIN = 0.05

# As many reports of the known variance are pooled with the sample, like the z^2 = 4 of Agresti and Coull (1998).
_POOLED = 4
_NOISE_POINTS = 257  # inputs at which a mechanism's variance is computed

Interval = tuple[Any, Any]


class TooFewReportsError(ValueError):
    """There are too few reports: the confidence interval would be as wide as the range of possible values.

    ``needed`` is the approximate number of reports that would be enough, and ``reason`` the first half of the message.
    """

    def __init__(self, reason: str, needed: float) -> None:
        self.reason, self.needed = reason, needed
        super().__init__(f"{reason}; about {format_number(needed, 2)} are needed")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.reason, self.needed)


def interval_repr(estimate: Functional) -> str:
    """Return the text of an object with ``value`` and ``interval``: the value and its 95 % interval."""
    low, high = estimate.interval()
    interval = f"95 % interval from {format_number(low)} to {format_number(high)}"
    return f"{type(estimate).__name__}({format_number(estimate.value)}, {interval})"


def bernstein_half_width(n: int, variance: Real, largest: Real, log_odds: float) -> Real:
    """Return the t at which Bernstein's bound 2 exp(-n t^2/(2 V + 2 M t/3)) of P(|error| >= t) is 2 e^-log_odds.

    V and M are the largest variance and deviation of a report, over all inputs.
    """
    third = largest * log_odds / 3
    return (third + np.sqrt(third**2 + 2 * n * variance * log_odds)) / n


def pooled_variance(n: int, sample: Real, noise: Real, least_variance: Real) -> Real:
    """Return the variance of a report for an interval: the sample's, pooled with the known one of the noise.

    ``noise`` is the variance of the noise at the estimated mean, and ``least_variance`` a lower bound on the mean
    variance of the noise of inputs with this mean. A smaller sample variance is due to chance.
    """
    return np.maximum(((n - 1) * sample + _POOLED * noise) / (n - 1 + _POOLED), least_variance)


def pooled_mean(n: int, mean: Real, middle: Real) -> Real:
    """Return the mean of a sample and of the reports that are pooled with it, at the middle of the inputs."""
    return (n * mean + _POOLED * middle) / (n + _POOLED)


def student_quantile(degrees: float, confidence: float) -> float:
    """Return the half-width, in standard errors, of Student's interval."""
    from scipy import special  # Imported on use: it takes 0.7 s.

    return -float(special.stdtrit(degrees, (1 - confidence) / 2))  # (1 + confidence)/2 may be 1


def pooled_quantile(n: int, confidence: float) -> float:
    """Return that half-width for a ``pooled_variance``."""
    return student_quantile(n - 1 + _POOLED, confidence)


def clopper_pearson(n: int, count: int, confidence: float) -> tuple[float, float]:
    """Return the interval of a probability of which there are ``count`` of n.

    It holds for the mean of n different probabilities, too, whose number of successes varies less (Hoeffding 1956).

    Source: C. J. Clopper and E. S. Pearson, "The use of confidence or fiducial limits", Biometrika 26 (1934).
    """
    from scipy import special  # Imported on use: it takes 0.7 s.

    tail = (1 - confidence) / 2
    low = float(special.betaincinv(count, n - count + 1, tail)) if count else 0.0
    return low, float(special.betainccinv(count + 1, n - count, tail)) if count < n else 1.0


def convex_minorant(x: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the largest convex function below values at increasing x: of means of values by the mean of their x."""
    corners = [0]
    for i in range(1, len(x)):
        while len(corners) > 1 and (values[corners[-1]] - values[corners[-2]]) * (x[i] - x[corners[-2]]) >= (
            values[i] - values[corners[-2]]
        ) * (x[corners[-1]] - x[corners[-2]]):
            corners.pop()
        corners.append(i)
    return np.interp(x, x[corners], values[corners])


@dataclass(frozen=True, repr=False)
class Moment:
    """An estimated number with a standard error, or an array of them.

    ``bias_bound`` is a bound on its bias, by which intervals are extended. It is 0 except for tables without unbiased
    weights for squares (some of ``optimal``), and for reports that became equal by rounding to decimals.
    """

    _centre: Any
    error: float  #: the standard error
    bias_bound: float = 0.0
    smallest: float = -math.inf  #: the smallest possible value, at which intervals end
    largest: float = math.inf  #: the largest possible value, at which intervals end
    _bernstein: Callable[[float], Interval] | None = field(default=None, compare=False)
    degrees: float = math.inf  #: degrees of freedom of Student's interval, unless there is a better one
    _interval: Callable[[float], Interval] | None = field(default=None, compare=False)

    __repr__ = interval_repr

    @property
    def value(self) -> Any:
        """Return the estimate, clipped to possible values; intervals are centred on the unclipped estimate."""
        return self._clip(self._centre)

    def interval(self, confidence: float = 0.95) -> Interval:
        """Return (low, high), of each number by itself.

        Those of a mean, a variance and a standard deviation are for any number of reports, others for many.
        """
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        if self._interval is None:
            half_width = student_quantile(self.degrees, confidence) * self.error + self.bias_bound
            low, high = self._centre - half_width, self._centre + half_width
        else:
            low, high = self._interval(confidence)
        return self._clip(low), self._clip(high)

    def bernstein(self, confidence: float = 0.95) -> Interval:
        """Return a wider (low, high) that holds at every n, from the range and the largest variance of a report.

        Mean, variance and standard deviation have one; for another number it is a ValueError.
        """
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        if self._bernstein is None:
            raise ValueError("bernstein: there is no such interval of this; interval() is the one there is")
        low, high = self._bernstein(confidence)
        return self._clip(low), self._clip(high)

    def _clip(self, number: Real) -> Real:
        return float_if_scalar(np.clip(number, self.smallest, self.largest) + 0.0)  # no -0


@dataclass(frozen=True, repr=False)
class Functional:
    """An estimated number that depends on a distribution, or an array of them, with profile likelihood intervals."""

    value: Any
    _interval: Callable[[float], Interval] = field(compare=False)

    __repr__ = interval_repr

    def interval(self, confidence: float = 0.95) -> Interval:
        """Return (low, high), one interval for each number. Each holds by itself; it contains ``value``."""
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        low, high = self._interval(confidence)
        return float_if_scalar(np.minimum(low, self.value)), float_if_scalar(np.maximum(high, self.value))

    def band(self, confidence: float = 0.95) -> Interval:
        """Return (low, high): intervals that hold for all numbers together, by Bonferroni's inequality."""
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        return self.interval(1 - (1 - confidence) / max(np.size(self.value), 1))

    def scaled(self, factor: float) -> Functional:
        """Return the number times a positive factor."""

        def interval(confidence: float) -> Interval:
            low, high = self._interval(confidence)
            return factor * low, factor * high

        return Functional(factor * self.value, interval)


@dataclass(frozen=True, repr=False)
class Histogram:
    """Shares and numbers of inputs in bins, with intervals."""

    edges: np.ndarray  #: (d + 1,) of the bins; the last bin includes its upper end
    shares: Functional  #: of all inputs
    counts: Functional  #: of inputs

    def __repr__(self) -> str:
        ends = f"{format_number(self.edges[0])} to {format_number(self.edges[-1])}"
        return f"Histogram({len(self.edges) - 1} bins from {ends}, shares {format_number(self.shares.value)})"


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
        standard_error = np.sqrt(pooled_variance(n, sample, *_noise(mechanism, n, mean)) / n)

    def entry(values: np.ndarray) -> Any:
        return values if isinstance(mechanism, Multivariate) else values.item()

    def clipped(*ends: np.ndarray) -> Interval:
        low, high = (entry(np.clip(end, *mechanism.input_interval) + 0.0) for end in ends)
        return low, high

    def interval(confidence: float) -> Interval:
        coverage = 1 - (1 - confidence) / d
        if isinstance(mechanism, TwoPoint):
            probabilities = clopper_pearson(n, high_count, coverage)
            return clipped(*(np.array([low_report + p * (high_report - low_report)]) for p in probabilities))
        half_width = pooled_quantile(n, coverage) * standard_error
        return clipped(mean - half_width, mean + half_width)

    def bernstein(confidence: float) -> Interval:
        largest = np.maximum(high - mechanism.input_interval[0], mechanism.input_interval[1] - low)
        variance = mechanism.worst_variance * (1 + PROMISED_DEVIATION)
        half_width = bernstein_half_width(n, variance, largest, math.log(2 * d / (1 - confidence)))
        return clipped(mean - half_width, mean + half_width)

    return MeanEstimate(entry(mean), n, interval, bernstein)


def _noise(mechanism: Mechanism, n: int, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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
