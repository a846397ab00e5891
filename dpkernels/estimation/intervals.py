"""Estimates with confidence intervals: normal, Bernstein and profile likelihood intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np

from dpkernels import checks
from dpkernels.numerics import Real

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


@dataclass(frozen=True, repr=False)
class Moment:
    """An estimated number with a standard error, or an array of them.

    Attributes:
        value: the estimate, a float or an array, clipped to possible values. Intervals are centred on the unclipped
            estimate.
        error: its standard error.
        bias_bound: a bound on its bias, by which intervals are extended. It is 0 except for tables without unbiased
            weights for squares (some of ``optimal``), and for reports that became equal by rounding to decimals.
        smallest: the smallest possible value; intervals end there, and at ``largest``.
        largest: the largest possible value.
    """

    value: Any
    error: Any
    bias_bound: Any = 0.0
    smallest: float = -math.inf
    largest: float = math.inf
    _bernstein: Callable[[float], Interval] | None = field(default=None, compare=False)
    _centre: Any = field(init=False, compare=False)

    __repr__ = with_interval

    def __post_init__(self) -> None:
        object.__setattr__(self, "_centre", self.value)
        object.__setattr__(self, "value", plain(np.clip(self.value, self.smallest, self.largest)))

    def interval(self, confidence: float = 0.95) -> Interval:
        """Return (low, high): the normal interval, of each number by itself; right for large n."""
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        half = -NormalDist().inv_cdf((1 - confidence) / 2) * self.error + self.bias_bound  # (1 + confidence)/2 may be 1
        return self._cut(self._centre - half, self._centre + half)

    def bernstein(self, confidence: float = 0.95) -> Interval:
        """Return a wider (low, high) that holds at every n, from the range and the largest variance of a report.

        Raises:
            ValueError: this number has none; mean, variance and standard deviation have one.
        """
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        if self._bernstein is None:
            raise ValueError("bernstein: there is no such interval of this; interval() is the normal one")
        low, high = self._bernstein(confidence)
        return self._cut(low - self.bias_bound, high + self.bias_bound)

    def _cut(self, low: Real, high: Real) -> Interval:
        return tuple(plain(np.clip(end, self.smallest, self.largest)) for end in (low, high))  # type: ignore[return-value]


@dataclass(frozen=True, repr=False)
class Functional:
    """An estimated number that depends on a distribution, or an array of them, with profile likelihood intervals.

    ``value`` is the estimate, a float or an array.
    """

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
    """Shares, or numbers, of inputs in bins.

    Attributes:
        edges: (d + 1,) of the bins; the last bin includes its upper end.
        shares: of all inputs, with intervals.
        counts: of inputs, with intervals.
    """

    edges: np.ndarray
    shares: Functional
    counts: Functional

    def __repr__(self) -> str:
        ends = f"{shown(self.edges[0])} to {shown(self.edges[-1])}"
        return f"Histogram({len(self.edges) - 1} bins from {ends}, shares {shown(self.shares.value)})"
