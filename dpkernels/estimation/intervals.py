"""Estimates with confidence intervals, normal, Bernstein and profile likelihood, and the mean of perturbed values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np

from dpkernels import checks
from dpkernels.exact.bounded import PROMISED_DEVIATION
from dpkernels.exact.registry import ExactMultivariate
from dpkernels.exact.sampler import ExactSampler
from dpkernels.mechanisms.additive import check_shape
from dpkernels.mechanisms.base import Mechanism
from dpkernels.mechanisms.multivariate import Multivariate
from dpkernels.mechanisms.windowed.mechanism import SquareWave
from dpkernels.numerics import Real
from dpkernels.release import containers

# The share of its width by which a table's reports may exceed the density's output interval: their lattices differ.
_TABLE_ROOM = 0.05

Interval = tuple[Any, Any]


class TooFewReportsError(ValueError):
    """There are too few reports: the confidence interval would be as wide as the range of possible values.

    ``needed`` is the approximate number of reports that would be enough, and ``reason`` the first half of the message.
    """

    def __init__(self, reason: str, needed: float) -> None:
        self.reason, self.needed = reason, needed
        super().__init__(f"{reason}; about {shown(needed, 2)} are needed")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, self.needed)


def shown(value: Any, digits: int = 5) -> str:
    """Return a number with this number of digits and separators of thousands, or an array as its shape and ends."""
    array = np.asarray(value)
    if array.ndim:
        ends = f", {shown(array.min())} to {shown(array.max())}" if array.size else ""
        return f"array of shape {array.shape}{ends}"
    number = float(array)
    if not math.isfinite(number) or number == 0 or not 1e-4 <= abs(number) < 1e15:
        return f"{number:.{digits}g}"
    number = float(f"{number:.{digits - 1}e}")
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(number))))
    text = f"{number:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def plain(array: Real) -> Real:
    """Return an array without axes as a float."""
    return float(array) if np.ndim(array) == 0 else np.asarray(array)


def with_interval(estimate: Any) -> str:
    """Return the text of an object with ``value`` and ``interval``: the value and its 95 % interval."""
    low, high = estimate.interval()
    return f"{type(estimate).__name__}({shown(estimate.value)}, 95 % interval from {shown(low)} to {shown(high)})"


def bernstein_half(n: int, variance: Real, largest: Real, log_odds: float) -> Real:
    """Return the t at which Bernstein's bound 2 exp(-n t^2/(2 V + 2 M t/3)) of P(|error| >= t) is 2 e^-log_odds.

    V and M are the largest variance and deviation of a report, over all inputs.
    """
    third = largest * log_odds / 3
    return (third + np.sqrt(third**2 + 2 * n * variance * log_odds)) / n


@dataclass(frozen=True, repr=False)
class Moment:
    """An estimated number with a standard error, or an array of them.

    ``bias_bound`` is a bound on its bias, by which intervals are extended. It is 0 except for tables without unbiased
    weights for squares (some of ``optimal``), and for reports that became equal by rounding to decimals.
    """

    _centre: Any
    error: Any  #: the standard error
    bias_bound: Any = 0.0
    smallest: float = -math.inf  #: the smallest possible value, at which intervals end
    largest: float = math.inf  #: the largest possible value, at which intervals end
    _bernstein: Callable[[float], Interval] | None = field(default=None, compare=False)

    __repr__ = with_interval

    @property
    def value(self) -> Any:
        """Return the estimate, clipped to possible values; intervals are centred on the unclipped estimate."""
        return self._cut(self._centre)

    def interval(self, confidence: float = 0.95) -> Interval:
        """Return (low, high): the normal interval, of each number by itself; right for large n."""
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        half = -NormalDist().inv_cdf((1 - confidence) / 2) * self.error + self.bias_bound  # (1 + confidence)/2 may be 1
        return self._cut(self._centre - half), self._cut(self._centre + half)

    def bernstein(self, confidence: float = 0.95) -> Interval:
        """Return a wider (low, high) that holds at every n, from the range and the largest variance of a report.

        Mean, variance and standard deviation have one; for another number it is a ValueError.
        """
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        if self._bernstein is None:
            raise ValueError("bernstein: there is no such interval of this; interval() is the normal one")
        low, high = self._bernstein(confidence)
        return self._cut(low - self.bias_bound), self._cut(high + self.bias_bound)

    def _cut(self, number: Any) -> Any:
        return plain(np.clip(number, self.smallest, self.largest))


@dataclass(frozen=True, repr=False)
class Functional:
    """An estimated number that depends on a distribution, or an array of them, with profile likelihood intervals."""

    value: Any
    _interval: Callable[[float], Interval] = field(compare=False)

    __repr__ = with_interval

    def interval(self, confidence: float = 0.95) -> Interval:
        """Return (low, high), one interval for each number. Each holds by itself; it contains ``value``."""
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        low, high = self._interval(confidence)
        return plain(np.minimum(low, self.value)), plain(np.maximum(high, self.value))

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
        ends = f"{shown(self.edges[0])} to {shown(self.edges[-1])}"
        return f"Histogram({len(self.edges) - 1} bins from {ends}, shares {shown(self.shares.value)})"


@dataclass(frozen=True)
class MeanEstimate:
    """An unbiased mean with two confidence intervals, as floats or arrays of one entry per coordinate, in data units.

    ``interval`` is normal, from the sample variance of the reports, for the mean of the inputs or of the population
    from which they were drawn; it is valid for large n. ``bernstein`` is wider and valid for every n, for the mean of
    the inputs, from the bounds and the worst-case variance of the reports.
    """

    value: Any  #: the mean of the reports
    interval: tuple[Real, Real]
    bernstein: tuple[Real, Real]
    count: int  #: n, the number of reports
    confidence: float  #: of either interval; for vectors, of all coordinates together (Bonferroni)


def estimate_mean(reports: Any, mechanism: Any, confidence: float = 0.95) -> MeanEstimate:
    """Return the mean of the values behind reports of one mechanism, by post-processing, which costs no privacy.

    Args:
        reports: the output of ``perturb``, without rows left out; for vectors, coordinates on the last axis.
        mechanism: the mechanism (or exact sampler) that made them.
        confidence: in (0, 1).

    Raises:
        ValueError: there are no reports, a report is impossible for the mechanism, the mechanism is biased, or
            confidence is not in (0, 1).
        TypeError: not numbers, or not a mechanism.

    Source: Bernstein's inequality for n unbiased bounded reports, P(|error| >= t) <= 2 exp(-n t^2/(2 V + 2 M t/3)),
    with V the worst-case variance and M the largest |report - input| (Ma 2021, Theorem 5 and Appendix B).
    """
    checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
    mechanism = mechanism.mechanism if isinstance(mechanism, ExactSampler | ExactMultivariate) else mechanism
    values, _ = containers.unwrap(reports)
    rows = _rows(mechanism, np.asarray(values))
    if len(rows) == 0:
        raise ValueError("reports: is empty; there is no mean")
    low, high = (np.asarray(end, float) for end in mechanism.output_interval)
    room = _TABLE_ROOM * (high - low)
    low, high = low - room, high + room
    bad = ~((rows >= low) & (rows <= high))
    if bad.any():
        row = int(np.argwhere(bad)[0][0])
        raise ValueError(
            f"reports: row {row} is {rows[row]}, outside the mechanism's output interval [{low}, {high}]; "
            "these are not its reports"
        )
    n, d = rows.shape
    tail = (1 - confidence) / d
    mean = rows.mean(axis=0, dtype=np.float64)
    deviation = rows.std(axis=0, ddof=1, dtype=np.float64) if n > 1 else np.full(d, np.inf)
    normal = -NormalDist().inv_cdf(tail / 2) * deviation / math.sqrt(n)
    largest = np.maximum(high - mechanism.input_interval[0], mechanism.input_interval[1] - low)
    variance = mechanism.worst_variance * (1 + PROMISED_DEVIATION)
    bernstein = bernstein_half(n, variance, largest, math.log(2 / tail))
    found = [mean, mean - normal, mean + normal, mean - bernstein, mean + bernstein]
    value, *ends = found if isinstance(mechanism, Multivariate) else [each.item() for each in found]
    return MeanEstimate(value, (ends[0], ends[1]), (ends[2], ends[3]), n, confidence)


def _rows(mechanism: Any, reports: np.ndarray) -> np.ndarray:
    if isinstance(mechanism, Multivariate):
        check_shape(mechanism, reports.shape)
        return reports.reshape(-1, mechanism.dimensions)
    if not isinstance(mechanism, Mechanism):
        raise TypeError(f"mechanism: {type(mechanism).__name__} is not a mechanism or an exact sampler")
    if isinstance(mechanism, SquareWave):
        raise ValueError(
            "mechanism: square wave is biased, so the mean of its reports is not that of the inputs; dpk.estimate "
            "corrects for it, and piecewise needs no correction and is as accurate at the same width of the window"
        )
    return reports.reshape(-1, 1)
