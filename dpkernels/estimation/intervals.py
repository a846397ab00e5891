"""Estimates whose intervals come from resampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpkernels import checks

Interval = tuple[Any, Any]


@dataclass(frozen=True)
class Resampled:
    """An estimated number, or an array of them, with the same from resampled reports.

    Attributes:
        value: the estimate, a float or an array.
        centre: the estimate of less bias that intervals are of, which always hold ``value`` too.
        draws: (resamples, *shape of value) of that estimate, of reports drawn again.
    """

    value: Any
    centre: Any
    draws: np.ndarray

    @property
    def error(self) -> Any:
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
        of draws is within.
        """
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        scale = np.asarray(self.error)
        scale = scale + scale.max() / 4
        away = np.abs(self.draws - self.centre) / np.where(scale > 0, scale, 1.0)
        half = np.quantile(away.reshape(len(away), -1).max(axis=1), confidence) * scale
        return self._with_value(self.centre - half, self.centre + half)

    def _with_value(self, low: np.ndarray, high: np.ndarray) -> Interval:
        return _plain(np.minimum(low, self.value)), _plain(np.maximum(high, self.value))


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


def _plain(array: Any) -> Any:
    return float(array) if np.ndim(array) == 0 else np.asarray(array)
