"""Estimated numbers with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpkernels import checks
from dpkernels.decimals import format_number
from dpkernels.estimation.interval_formulas import student_quantile
from dpkernels.numerics import Real, float_if_scalar

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
