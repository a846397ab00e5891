"""Estimates with their intervals: normal and Bernstein, or of resampled reports."""

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
_DIGITS = 5


class TooFewReportsError(ValueError):
    """There are too few reports to estimate a number: its interval would be as wide as what is possible.

    Attributes:
        reason: the first half of the message.
        needed: about how many reports would be enough.
    """

    def __init__(self, reason: str, needed: float) -> None:
        self.reason, self.needed = reason, needed
        super().__init__(f"{reason}; about {shown(needed, 2)} are needed")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, self.needed)


def shown(value: Any, digits: int = _DIGITS) -> str:
    """Return a number with so many digits and separators of thousands, or an array as its shape and its ends."""
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


@dataclass(frozen=True, repr=False)
class Moment:
    """An estimated number with a standard error, or an array of them.

    Attributes:
        value: the estimate, a float or an array, cut to what is possible. Intervals are about the estimate as it was.
        error: its standard error.
        missed: how far from the truth it may be for other reasons than chance; intervals are wider by this. It is 0 but
            for tables whose reports do not quite tell squares, some of ``optimal``, and for reports that rounding to
            decimals has made equal.
        smallest: the smallest value there can be; intervals end there.
        largest: the largest.
    """

    value: Any
    error: Any
    missed: Any = 0.0
    smallest: float = -math.inf
    largest: float = math.inf
    _bernstein: Callable[[float], Interval] | None = field(default=None, compare=False)
    _centre: Any = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_centre", self.value)
        object.__setattr__(self, "value", _plain(np.clip(self.value, self.smallest, self.largest)))

    def interval(self, confidence: float = 0.95) -> Interval:
        """Return (low, high): the normal interval, of each number by itself; right for large n."""
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        half = -NormalDist().inv_cdf((1 - confidence) / 2) * self.error + self.missed  # (1 + confidence)/2 may be 1
        return self._cut(self._centre - half, self._centre + half)

    def bernstein(self, confidence: float = 0.95) -> Interval:
        """Return (low, high) that holds at every n, from the range and the largest variance of what is averaged; wider.

        Raises:
            ValueError: there is none; there is of mean, variance and standard deviation.
        """
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        if self._bernstein is None:
            raise ValueError("bernstein: there is no such interval of this; interval() is the normal one")
        low, high = self._bernstein(confidence)
        return self._cut(low - self.missed, high + self.missed)

    def __repr__(self) -> str:
        low, high = self.interval()
        return f"Moment({shown(self.value)}, 95 % interval from {shown(low)} to {shown(high)})"

    def _cut(self, low: Real, high: Real) -> Interval:
        return tuple(_plain(np.clip(end, self.smallest, self.largest)) for end in (low, high))  # type: ignore[return-value]


@dataclass(frozen=True, repr=False)
class Resampled:
    """An estimated number, or an array of them, with the same from resampled reports.

    Attributes:
        value: the estimate, a float or an array.
        centre: the estimate of less bias that intervals are of, which always hold ``value`` too.
        draws: (resamples, *shape of value) of that estimate, of reports drawn again.
        smallest: the smallest value there can be; intervals end there.
        largest: the largest.
    """

    value: Any
    centre: Any
    draws: np.ndarray
    smallest: float
    largest: float

    @property
    def error(self) -> Real:
        """Return the standard deviation of the draws."""
        return _plain(self.draws.std(axis=0, ddof=1))

    def interval(self, confidence: float = 0.95) -> Interval:
        """Return (low, high): the draws' own quantiles, one interval a number; each holds by itself."""
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        low, high = np.quantile(self.draws, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
        return self._with_value(low, high)

    def band(self, confidence: float = 0.95) -> Interval:
        """Return (low, high): intervals that hold for all numbers together.

        centre -+ t (s + S/4), s the draws' standard deviations, S the largest of them, and t such that the given share
        of draws is within; where no draw differs it has no width.
        """
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        scale = np.asarray(self.error)
        scale = np.where(scale > 0, scale + scale.max() / 4, 0.0)
        away = np.abs(self.draws - self.centre) / np.where(scale > 0, scale, 1.0)
        half = np.quantile(away.reshape(len(away), -1).max(axis=1), confidence) * scale
        return self._with_value(self.centre - half, self.centre + half)

    def __repr__(self) -> str:
        low, high = self.interval()
        return f"Resampled({shown(self.value)}, 95 % interval from {shown(low)} to {shown(high)})"

    def _with_value(self, low: np.ndarray, high: np.ndarray) -> Interval:
        low, high = np.minimum(low, self.value), np.maximum(high, self.value)
        return _plain(np.maximum(low, self.smallest)), _plain(np.minimum(high, self.largest))


@dataclass(frozen=True, repr=False)
class Histogram:
    """Shares, or numbers, of inputs in bins.

    Attributes:
        edges: (d + 1,) of the bins; the last bin includes its upper end.
        shares: of all inputs, with intervals.
        counts: of inputs, with intervals.
    """

    edges: np.ndarray
    shares: Resampled
    counts: Resampled

    def __repr__(self) -> str:
        ends = f"{shown(self.edges[0])} to {shown(self.edges[-1])}"
        return f"Histogram({len(self.edges) - 1} bins from {ends}, shares {shown(self.shares.value)})"


def _plain(array: Real) -> Real:
    return float(array) if np.ndim(array) == 0 else np.asarray(array)
