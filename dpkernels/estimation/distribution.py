"""Distributions of inputs: piecewise uniform on bins, estimated once and again from resampled reports."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpkernels.estimation.counts import Counts
from dpkernels.estimation.likelihood import Fit, most_likely, most_likely_each
from dpkernels.estimation.smoothing import smoothed

# Neighbouring reports are put together into so many groups: what is lost is far below a bin.
_GROUPS = 256
_MOST_CODES = 2048


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
        """(..., d + 1) the cdf at the edges."""
        whole = np.zeros((*self.shares.shape[:-1], len(self.edges)))
        np.cumsum(self.shares, axis=-1, out=whole[..., 1:])
        return whole / whole[..., -1:]

    def cdf(self, x: np.ndarray) -> np.ndarray:
        """(..., *shape of x)."""
        place = np.clip(np.interp(x, self.edges, np.arange(len(self.edges))), 0, len(self.edges) - 1)
        i = np.minimum(place.astype(int), len(self.edges) - 2)
        return self.cumulated[..., i] + (place - i) * (self.cumulated[..., i + 1] - self.cumulated[..., i])

    def quantile(self, p: np.ndarray) -> np.ndarray:
        """(..., *shape of p): the smallest x with cdf(x) >= p."""
        rows = self.cumulated.reshape(-1, len(self.edges))
        found = np.stack([_inverse(row, self.edges, p) for row in rows])
        return found.reshape((*self.shares.shape[:-1], *np.shape(p)))


def _inverse(cumulated: np.ndarray, edges: np.ndarray, p: np.ndarray) -> np.ndarray:
    after = np.clip(np.searchsorted(cumulated, p, side="left"), 1, len(edges) - 1)
    low, high = cumulated[after - 1], cumulated[after]
    part = np.clip((p - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
    return edges[after - 1] + part * (edges[after] - edges[after - 1])


class Distribution:
    """What counts say of the distribution of inputs.

    Args:
        counts: of at least one report.
        bins: how many equal bins, or their edges.
        smooth: whether shares are smoothed (``smoothing``), else those of greatest likelihood.
        resamples: how many times reports are drawn again for intervals.
        seed: of the resampling.
    """

    def __init__(self, counts: Counts, bins: int, smooth: bool, resamples: int, seed: int) -> None:
        self.counts, self.smooth, self.resamples, self.seed = counts, smooth, resamples, seed
        channel = counts.channel
        self.edges = np.linspace(channel.lower, channel.upper, bins + 1)
        self.groups = np.unique(np.linspace(0, len(counts.numbers), _GROUPS, endpoint=False).astype(int))

    @cached_property
    def fit(self) -> Fit:
        """The distribution of greatest likelihood over the bins, from all codes, certified."""
        every = np.arange(len(self.counts.numbers)) if len(self.counts.numbers) <= _MOST_CODES else self._finer
        return most_likely(self.counts.channel.matrix(self.edges, every), np.add.reduceat(self.counts.numbers, every))

    @property
    def _finer(self) -> np.ndarray:
        return np.unique(np.linspace(0, len(self.counts.numbers), _MOST_CODES, endpoint=False).astype(int))

    @cached_property
    def best(self) -> Shares:
        """The estimate."""
        if not self.smooth:
            return Shares(self.edges, self.fit.shares)
        matrix = self.counts.channel.matrix(self.edges, self.groups)
        return Shares(self.edges, smoothed(matrix, np.add.reduceat(self.counts.numbers, self.groups)).shares)

    @cached_property
    def draws(self) -> Shares:
        """Distributions of greatest likelihood over coarser bins, of reports drawn again from the first of them."""
        edges = np.linspace(self.edges[0], self.edges[-1], self.resolution + 1)
        B = self.counts.channel.matrix(edges, self.groups)
        numbers = np.add.reduceat(self.counts.numbers, self.groups)
        q = B @ most_likely(B, numbers).shares
        rng = np.random.default_rng(self.seed)
        again = rng.multinomial(self.counts.total, q / q.sum(), size=self.resamples)
        return Shares(edges, most_likely_each(B, again))

    @property
    def resolution(self) -> int:
        """How many bins intervals are computed on."""
        return 16
