"""Estimated distributions of inputs: piecewise uniform on bins, with a parametric bootstrap for intervals."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from dpkernels.estimation.channel import Channel
from dpkernels.estimation.counts import Counts
from dpkernels.estimation.likelihood import Fit, most_likely, most_likely_each
from dpkernels.estimation.smoothing import smoothed
from dpkernels.estimation.splines import basis, chosen, ladder, spline_fit

SMOOTHINGS = ("splines", "ems", "none")

# The largest number of groups into which neighbouring reports are merged; fewer if the distribution is smooth.
_GROUPS, _MOST_CODES = 256, 2048
# Intervals use estimates with more splines than the chosen number, by this many steps of the ladder.
_STEPS_UP = 2


@dataclass(frozen=True)
class Shares:
    """Distributions over the same bins.

    Attributes:
        edges: (d + 1,).
        shares: (..., d), each with sum 1.
    """

    edges: np.ndarray
    shares: np.ndarray

    @cached_property
    def cumulated(self) -> np.ndarray:
        """Return the cdf at the edges, of shape (..., d + 1)."""
        whole = np.zeros((*self.shares.shape[:-1], len(self.edges)))
        np.cumsum(self.shares, axis=-1, out=whole[..., 1:])
        return whole / whole[..., -1:]

    def cdf(self, x: np.ndarray) -> np.ndarray:
        """Return the cdf at x, of shape (..., *shape of x)."""
        place = np.clip(np.interp(x, self.edges, np.arange(len(self.edges))), 0, len(self.edges) - 1)
        i = np.minimum(place.astype(int), len(self.edges) - 2)
        return self.cumulated[..., i] + (place - i) * (self.cumulated[..., i + 1] - self.cumulated[..., i])

    def quantile(self, p: np.ndarray) -> np.ndarray:
        """Return the smallest x with cdf(x) >= p, of shape (..., *shape of p)."""
        rows = self.cumulated.reshape(-1, len(self.edges))
        found = np.stack([_inverse(row, self.edges, p) for row in rows])
        return found.reshape((*self.shares.shape[:-1], *np.shape(p)))


def _inverse(cumulated: np.ndarray, edges: np.ndarray, p: np.ndarray) -> np.ndarray:
    after = np.clip(np.searchsorted(cumulated, p, side="left"), 1, len(edges) - 1)
    low, high = cumulated[after - 1], cumulated[after]
    part = np.clip((p - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
    return edges[after - 1] + part * (edges[after] - edges[after - 1])


class Distribution:
    """An estimate of the distribution of inputs from counts of reports.

    Args:
        counts: the counts of at least one report.
        bins: the number of equal bins.
        smoothing: one of ``SMOOTHINGS``.
        resamples: the number of bootstrap samples for intervals.
        seed: the seed of the bootstrap.
    """

    def __init__(self, counts: Counts, bins: int, smoothing: str, resamples: int, seed: int) -> None:
        self.counts, self.smoothing, self.resamples, self.seed = counts, smoothing, resamples, seed
        channel = counts.channel
        self.edges = np.linspace(channel.lower, channel.upper, bins + 1)

    @cached_property
    def fit(self) -> Fit:
        """Return the maximum likelihood distribution over the bins."""
        return most_likely(*self._grouped(_MOST_CODES))

    @cached_property
    def best(self) -> Shares:
        """Return the estimate."""
        match self.smoothing:
            case "splines":
                return self._spline_shares(spline_fit(*self._few, self._splines).shares, self._splines)
            case "ems":
                return Shares(self.edges, smoothed(*self._few).shares)
            case _:
                return Shares(self.edges, self.fit.shares)

    @cached_property
    def centre(self) -> Shares:
        """Return an estimate with more splines than the best, hence with less bias; intervals are centred on it."""
        return self._spline_shares(self._centre, self._more)

    @cached_property
    def draws(self) -> Shares:
        """Return estimates from resampled reports (parametric bootstrap), drawn from the distribution ``centre``."""
        B, _ = self._few
        splines = B @ basis(B.shape[1], self._more)
        q = splines @ self._centre
        again = np.random.default_rng(self.seed).multinomial(self.counts.total, q / q.sum(), size=self.resamples)
        return self._spline_shares(most_likely_each(splines, again), self._more)

    @cached_property
    def _splines(self) -> int:
        return chosen(*self._few)

    @property
    def _more(self) -> int:
        """Return the number of splines of ``centre``."""
        steps = ladder(len(self.edges) - 1)
        return steps[min(steps.index(self._splines) + _STEPS_UP, len(steps) - 1)]

    @cached_property
    def _centre(self) -> np.ndarray:
        return spline_fit(*self._few, self._more).shares

    def _spline_shares(self, shares: np.ndarray, splines: int) -> Shares:
        return Shares(self.edges, shares @ basis(len(self.edges) - 1, splines).T)

    @cached_property
    def _few(self) -> tuple[np.ndarray, np.ndarray]:
        return self._grouped(_GROUPS)

    def _grouped(self, most: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the channel's matrix and the counts, with neighbouring reports merged if more than ``most``."""
        matrix, groups = _pooled(self.counts.channel, len(self.edges) - 1, most)
        return matrix, np.add.reduceat(self.counts.numbers, groups)


@lru_cache(maxsize=16)
def _pooled(channel: Channel, bins: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a channel's matrix for equal bins and grouped reports, and the first report of each group."""
    m = len(channel.written)
    groups = np.unique(np.linspace(0, m, min(m, most), endpoint=False).astype(int))
    return channel.matrix(np.linspace(channel.lower, channel.upper, bins + 1), groups), groups
