"""Distributions of sums of independent noise on grids, with bounds on all numerical errors.

Sums of equal terms are convolved by the fast Fourier transform (FFT); the last two distributions are never convolved,
because

    P(A + B >= t) = sum_j P(A = a_j) P(B >= t - a_j)

takes one look-up for each a_j. Two numbers bound all numerical errors: ``rounding``, the error of a value, and
``slack``, the error of a probability.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dpkernels.caching import bounded_cache
from dpkernels.exact.noise.table import NoiseTable
from dpkernels.numerics import convolution

_OUTWARD_ROUNDING = 1e-6  # of positions, relative to a step
# Tails of convolved distributions are truncated at this probability.
_TAIL = 1e-15
_MAX_POINTS = 1 << 18  # The most points of the grid of a sum of noises.
# The relative error of a sum of n positive floats, n below 2^22.
_SUM_MARGIN = 1 + 1e-9


@dataclass(frozen=True, eq=False)
class GridNoise:
    """A distribution with the probabilities p on the points step * (first + j).

    ``rounding`` bounds the distance of a value from its grid point, and ``slack`` the error of a tail probability.
    """

    step: float
    first: int
    p: np.ndarray
    rounding: float = 0.0
    slack: float = 0.0

    @cached_property
    def points(self) -> np.ndarray:
        return self.step * (self.first + np.arange(len(self.p)))

    @property
    def width(self) -> float:
        return self.step * (len(self.p) - 1)

    @cached_property
    def survival(self) -> np.ndarray:
        """Return (n + 1,) the probability of point j and all above it."""
        return np.append(np.cumsum(self.p[::-1])[::-1], 0.0)

    def scaled(self, factor: float) -> GridNoise:
        size, first, p = abs(factor), self.first, self.p
        if factor < 0:
            first, p = -(first + len(p) - 1), p[::-1]
        return GridNoise(self.step * size, first, p, self.rounding * size, self.slack)

    def on_grid(self, step: float) -> GridNoise:
        """Return the noise with every point moved to the nearest multiple of another step."""
        if step == self.step:
            return self
        index = np.rint(self.points / step).astype(np.int64)
        p = np.bincount(index - index[0], self.p)
        return GridNoise(step, int(index[0]), p, self.rounding + step * (0.5 + _OUTWARD_ROUNDING), self.slack)

    def __add__(self, other: GridNoise) -> GridNoise:
        step = max(min(self.step, other.step), (self.width + other.width) / _MAX_POINTS)
        a, b = self.on_grid(step), other.on_grid(step)
        p = np.maximum(convolution(a.p, b.p), 0.0)
        # Every entry of a convolution by FFT is right to a few roundings of |a| |b| for each of log2 n steps.
        error = 16 * math.log2(2 * len(p)) * np.finfo(float).eps * float(np.linalg.norm(a.p) * np.linalg.norm(b.p))
        start = int(np.searchsorted(np.cumsum(p), _TAIL))
        end = len(p) - int(np.searchsorted(np.cumsum(p[::-1]), _TAIL))
        slack = a.slack + b.slack + len(p) * error + 2 * _TAIL
        return GridNoise(step, a.first + b.first + start, p[start:end], a.rounding + b.rounding, slack)


@bounded_cache(1 << 27)
def repeated_sum(table: NoiseTable, count: int) -> GridNoise:
    """Return the sum of ``count`` independent draws from a table, in cells."""
    if count == 1:
        return GridNoise(1.0, table.first, table.weights / 2.0**table.bits)
    half = repeated_sum(table, count // 2)
    return half + (half if count % 2 == 0 else repeated_sum(table, count - count // 2))


@dataclass(frozen=True, eq=False)
class CombinedNoise:
    """The sum of two independent noises: the points of a are summed one by one, the tails of b are looked up."""

    a: GridNoise
    b: GridNoise
    rounding: float  # the largest rounding error of a value that the probabilities are computed for
    slack: float  # a bound on the error of a tail probability

    @classmethod
    def from_noises(cls, noises: Sequence[GridNoise], rounding: float = 0.0) -> CombinedNoise:
        """Return the sum of any number of independent noises, for a value with this rounding error of its own."""
        remaining = list(noises) + [GridNoise(1.0, 0, np.ones(1))] * (2 - len(noises))
        while len(remaining) > 2:
            *remaining, second, first = sorted(remaining, key=lambda noise: -noise.width)
            remaining.append(first + second)
        a, b = sorted(remaining, key=lambda noise: (len(noise.p), -noise.width))
        return cls(a, b, a.rounding + rounding + b.rounding, a.slack + b.slack)

    def mirrored(self) -> CombinedNoise:
        return replace(self, a=self.a.scaled(-1.0), b=self.b.scaled(-1.0))

    def tail(self, t: float) -> float:
        """Return an upper bound on P(noise >= t)."""
        a, b = self.a, self.b
        index = np.ceil((t - a.points) / b.step - b.first - _OUTWARD_ROUNDING)
        survival = b.survival[np.clip(index, 0, len(b.p)).astype(np.int64)]
        return min(1.0, float(a.p @ survival) * _SUM_MARGIN + self.slack)

    def upper_quantile(self, tail: float) -> float:
        """Return a t, nearly the smallest one, with P(noise >= t) at most ``tail``, which is above the slack."""
        low = sum(noise.step * noise.first for noise in (self.a, self.b))
        high = sum(noise.step * (noise.first + len(noise.p)) for noise in (self.a, self.b))
        tolerance = min(self.a.step, self.b.step) * _OUTWARD_ROUNDING
        while high - low > tolerance and low < (middle := (low + high) / 2) < high:
            low, high = (low, middle) if self.tail(middle) <= tail else (middle, high)
        return high
