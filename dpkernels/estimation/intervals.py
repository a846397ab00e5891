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
        draws: (resamples, *shape of value) of reports drawn again.
    """

    value: Any
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

        They are quantiles of the draws, the same share cut off of either end of each, as far out as the given
        confidence of draws being within all of them needs.
        """
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        draws = self.draws.reshape(len(self.draws), -1)
        ranks = draws.argsort(axis=0).argsort(axis=0)
        outer = np.minimum(ranks, len(draws) - 1 - ranks).min(axis=1)  # How far in a draw is where it is farthest out.
        cut = int(np.sort(outer)[int(np.floor((1 - confidence) * len(draws)))])
        ordered = np.sort(draws, axis=0)
        shape = self.draws.shape[1:]
        return self._with_value(ordered[cut].reshape(shape), ordered[-1 - cut].reshape(shape))

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
