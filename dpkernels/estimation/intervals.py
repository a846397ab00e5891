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


@dataclass(frozen=True)
class Moment:
    """An estimated number with a standard error, or an array of them.

    Attributes:
        value: the estimate, a float or an array.
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

    def interval(self, confidence: float = 0.95) -> Interval:
        """(low, high): the normal interval, of each number by itself; right for large n."""
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        half = -NormalDist().inv_cdf((1 - confidence) / 2) * self.error + self.missed  # (1 + confidence)/2 may be 1
        return self._cut(self.value - half, self.value + half)

    def bernstein(self, confidence: float = 0.95) -> Interval:
        """(low, high) that holds at every n, from the range and the largest variance of what is averaged; wider.

        Raises:
            ValueError: there is none; there is of mean, variance and standard deviation.
        """
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        if self._bernstein is None:
            raise ValueError("bernstein: there is no such interval of this; interval() is the normal one")
        low, high = self._bernstein(confidence)
        return self._cut(low - self.missed, high + self.missed)

    def _cut(self, low: Real, high: Real) -> Interval:
        return tuple(_plain(np.clip(end, self.smallest, self.largest)) for end in (low, high))  # type: ignore[return-value]


@dataclass(frozen=True)
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
        """The standard deviation of the draws."""
        return _plain(self.draws.std(axis=0, ddof=1))

    def interval(self, confidence: float = 0.95) -> Interval:
        """(low, high): the draws' own quantiles, one interval a number; each holds by itself."""
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        low, high = np.quantile(self.draws, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
        return self._with_value(low, high)

    def band(self, confidence: float = 0.95) -> Interval:
        """(low, high): intervals that hold for all numbers together.

        centre -+ t (s + S/4), s the draws' standard deviations, S the largest of them, and t such that the given share
        of draws is within; where no draw differs it has no width.
        """
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        scale = np.asarray(self.error)
        scale = np.where(scale > 0, scale + scale.max() / 4, 0.0)
        away = np.abs(self.draws - self.centre) / np.where(scale > 0, scale, 1.0)
        half = np.quantile(away.reshape(len(away), -1).max(axis=1), confidence) * scale
        return self._with_value(self.centre - half, self.centre + half)

    def _with_value(self, low: np.ndarray, high: np.ndarray) -> Interval:
        low, high = np.minimum(low, self.value), np.maximum(high, self.value)
        return _plain(np.maximum(low, self.smallest)), _plain(np.minimum(high, self.largest))


@dataclass(frozen=True)
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


def _plain(array: Real) -> Real:
    return float(array) if np.ndim(array) == 0 else np.asarray(array)
