"""Dictionaries for intervals: the distributions that are possible, and bounds on their cdf.

A dictionary is a list of components. The possible distributions are the mixtures of these with masses theta. For every
x there are two vectors c such that P(X <= x) lies between the two numbers c'theta. ``ProfileLikelihood`` finds the
least and the greatest number over the masses that the reports allow.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from functools import cached_property, lru_cache

import numpy as np

from dpkernels.estimation.likelihood import Fit, most_likely
from dpkernels.estimation.profile_likelihood import ProfileLikelihood

# Numbers that differ by less than this share of the interval are the same place.
_SAME = 1e-9

Ends = tuple[np.ndarray, np.ndarray]


class Dictionary(abc.ABC):
    """The components of possible distributions.

    Args:
        columns: (m, d) P(group of reports | component).
        counts: (m,) of the groups of reports.
        places: (k,) increasing, from the smallest to the largest possible input, at which quantiles are evaluated.
    """

    is_discrete = False  # whether inputs are at the places only

    def __init__(self, columns: np.ndarray, counts: np.ndarray, places: np.ndarray) -> None:
        self.columns, self.counts, self.places = columns, counts, places
        self._tolerance = _SAME * float(places[-1] - places[0])

    @cached_property
    def fit(self) -> Fit:
        """Return the maximum likelihood masses, certified."""
        return most_likely(self.columns, self.counts)

    @abc.abstractmethod
    def cumulative(self, x: float, *, strict: bool = False) -> Ends:
        """Return (d,) vectors c with c'theta <= P(X <= x) <= c'theta, or of P(X < x) if strict."""

    def between(self, a: float, b: float, *, closed: bool) -> Ends:
        """Return (d,) vectors that bound P(a <= X < b), or P(a <= X <= b) if closed."""
        (low_a, high_a), (low_b, high_b) = self.cumulative(a, strict=True), self.cumulative(b, strict=not closed)
        return low_b - high_a, high_b - low_a

    def interval(self, ends: Ends, confidence: float) -> tuple[float, float]:
        """Return the interval of a functional that the vectors bound."""
        return -self._profile.maximum(-ends[0], confidence), self._profile.maximum(ends[1], confidence)

    def quantile_interval(self, p: float, confidence: float) -> tuple[float, float]:
        """Return the numbers between which the p-quantile lies: those at which the cdf may be p."""
        above = _first(lambda i: self._largest_cdf(i, confidence) >= p, len(self.places) - 1)
        reached = _first(lambda i: self._smallest_cdf(i, confidence) >= p, len(self.places) - 1)
        if not self.is_discrete:  # The quantile may lie between the place before and this place.
            above = max(above - 1, 0)
        return float(self.places[above]), float(self.places[reached])

    @lru_cache(maxsize=4096)  # noqa: B019  # Searches for several quantiles visit the same places.
    def _largest_cdf(self, place: int, confidence: float) -> float:
        return self._profile.maximum(self.cumulative(self.places[place])[1], confidence)

    @lru_cache(maxsize=4096)  # noqa: B019
    def _smallest_cdf(self, place: int, confidence: float) -> float:
        return -self._profile.maximum(-self.cumulative(self.places[place])[0], confidence)

    @cached_property
    def _profile(self) -> ProfileLikelihood:
        return ProfileLikelihood(self.columns, self.counts, self.fit.shares)


def _first(holds: Callable[[int], bool], last: int) -> int:
    """Return the first index at which an increasing condition holds; at the last one it does."""
    low, high = 0, last
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


class AnyDistribution(Dictionary):
    """All distributions on an interval, without any assumption.

    A distribution has the same reports as one on the places between which P(report | x) is linear. The mass between two
    places moves to both, so that the cdf is known up to the mass at the next places.
    """

    def cumulative(self, x: float, *, strict: bool = False) -> Ends:
        last, tolerance = len(self.places), self._tolerance
        if x >= self.places[-1] - tolerance and not strict:
            return np.ones(last), np.ones(last)
        if x <= self.places[0] + tolerance and strict:
            return np.zeros(last), np.zeros(last)
        surely = int(np.searchsorted(self.places, x + tolerance, side="right")) - 1
        perhaps = int(np.searchsorted(self.places, x - tolerance, side="left")) + 1
        return _first_ones(last, surely), _first_ones(last, perhaps)


class GridDistribution(Dictionary):
    """All distributions on a grid, such as those of whole numbers; the places are its points."""

    is_discrete = True

    def cumulative(self, x: float, *, strict: bool = False) -> Ends:
        limit = x - self._tolerance if strict else x + self._tolerance
        ones = _first_ones(len(self.places), int(np.searchsorted(self.places, limit)))
        return ones, ones


class SmoothDistribution(Dictionary):
    """Mixtures of splines, and of point masses at known places.

    Args:
        columns, counts: as of ``Dictionary``; columns of splines come first.
        edges: (d + 1,) of bins.
        shapes: (d, k) the share of every spline in each bin.
        atoms: places of point masses.
    """

    def __init__(
        self, columns: np.ndarray, counts: np.ndarray, edges: np.ndarray, shapes: np.ndarray, atoms: np.ndarray
    ) -> None:
        super().__init__(columns, counts, np.union1d(edges, atoms))
        self._edges, self._atoms = edges, atoms
        self._cumulated = np.vstack([np.zeros(shapes.shape[1]), np.cumsum(shapes, axis=0)])

    def cumulative(self, x: float, *, strict: bool = False) -> Ends:
        smooth = [np.interp(x, self._edges, column) for column in self._cumulated.T]
        limit = x - self._tolerance if strict else x + self._tolerance
        both = np.append(smooth, (self._atoms <= limit).astype(float))
        return both, both


def _first_ones(size: int, count: int) -> np.ndarray:
    return (np.arange(size) < count).astype(float)
