"""Linear combinations of independent table noise: tail probabilities, bounded from above.

A combination is the sum of a few distributions on grids. Sums of equal terms are convolved by the fast Fourier
transform (FFT); the last two distributions are never convolved, because

    P(A + B >= t) = sum_j P(A = a_j) P(B >= t - a_j)

takes one look-up for each a_j. Two numbers bound all numerical errors: ``room``, the error of a value, and ``slack``,
the error of a probability.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy import signal

from dpkernels.exact.noise import NoiseTable

# Tails of convolved distributions are truncated at this probability.
_CUT = 1e-15
_MOST_POINTS = 1 << 18
# The allowance for rounding when a value is divided by the step, as a share of a step.
_ROUNDING = 1e-6
# The relative error of a sum of n positive floats, n below 2^22.
_SUM = 1 + 1e-9


@dataclass(frozen=True, eq=False)
class GridNoise:
    """A distribution on the points step * (first + j).

    Attributes:
        step: positive.
        first: the index of the smallest point.
        p: the probabilities.
        room: a bound on the distance of a value from its grid point.
        slack: a bound on the error of a tail probability.
    """

    step: float
    first: int
    p: np.ndarray
    room: float = 0.0
    slack: float = 0.0

    @classmethod
    def of_table(cls, table: NoiseTable) -> GridNoise:
        """Return the noise of a table, in cells."""
        return cls(1.0, table.first, table.weights / 2.0**table.bits)

    @property
    def last(self) -> int:
        """Return the index of the largest point."""
        return self.first + len(self.p) - 1

    @property
    def width(self) -> float:
        """Return the distance between the ends."""
        return self.step * (len(self.p) - 1)

    @cached_property
    def survival(self) -> np.ndarray:
        """Return (n + 1,) the probability of point j and all above it."""
        return np.append(np.cumsum(self.p[::-1])[::-1], 0.0)

    def scaled(self, factor: float) -> GridNoise:
        """Return the distribution of ``factor`` times the noise."""
        size = abs(factor)
        if factor < 0:
            return GridNoise(self.step * size, -self.last, self.p[::-1], self.room * size, self.slack)
        return GridNoise(self.step * size, self.first, self.p, self.room * size, self.slack)

    def on_grid(self, step: float) -> GridNoise:
        """Return the noise with every point moved to the nearest multiple of another step."""
        if step == self.step:
            return self
        index = np.rint(self.step * (self.first + np.arange(len(self.p))) / step).astype(np.int64)
        p = np.bincount(index - index[0], self.p)
        return GridNoise(step, int(index[0]), p, self.room + step * (0.5 + _ROUNDING), self.slack)

    def __add__(self, other: GridNoise) -> GridNoise:
        """Return the distribution of the sum of two independent noises."""
        step = max(min(self.step, other.step), (self.width + other.width) / _MOST_POINTS)
        a, b = self.on_grid(step), other.on_grid(step)
        p = np.maximum(signal.fftconvolve(a.p, b.p), 0.0)
        # Every entry of a convolution by FFT is right to a few roundings of |a| |b| for each of log2 n steps.
        error = 16 * math.log2(2 * len(p)) * np.finfo(float).eps * float(np.linalg.norm(a.p) * np.linalg.norm(b.p))
        below, above = np.cumsum(p), np.cumsum(p[::-1])
        start, end = int(np.searchsorted(below, _CUT)), len(p) - int(np.searchsorted(above, _CUT))
        slack = a.slack + b.slack + len(p) * error + 2 * _CUT
        return GridNoise(step, a.first + b.first + start, p[start:end], a.room + b.room, slack)


_ZERO = GridNoise(1.0, 0, np.ones(1))


@lru_cache(maxsize=256)
def sum_of(table: NoiseTable, count: int) -> GridNoise:
    """Return the sum of so many independent draws from a table, in cells."""
    if count == 1:
        return GridNoise.of_table(table)
    half = sum_of(table, count // 2)
    return half + (half if count % 2 == 0 else sum_of(table, count - count // 2))


@dataclass(frozen=True, eq=False)
class CombinedNoise:
    """The sum of two independent noises.

    Attributes:
        a: the noise whose points are summed one by one.
        b: the noise whose tail probabilities are looked up.
    """

    a: GridNoise
    b: GridNoise

    @classmethod
    def of(cls, parts: Sequence[GridNoise]) -> CombinedNoise:
        """Return the sum of any number of independent noises."""
        widest_first = sorted(parts, key=lambda part: -part.width)
        while len(widest_first) > 2:
            *widest_first, second, first = widest_first
            widest_first = sorted([*widest_first, first + second], key=lambda part: -part.width)
        return cls(*sorted([*widest_first, *[_ZERO] * (2 - len(widest_first))], key=lambda part: len(part.p)))

    @property
    def room(self) -> float:
        """Return the largest rounding error of a value that the probabilities are computed for."""
        return self.a.room + self.b.room

    @property
    def slack(self) -> float:
        """Return a bound on the error of a tail probability."""
        return self.a.slack + self.b.slack

    def with_room(self, room: float) -> CombinedNoise:
        """Return the same noise for a value whose rounding error is larger by the given amount."""
        return CombinedNoise(dataclasses.replace(self.a, room=self.a.room + room), self.b)

    def mirrored(self) -> CombinedNoise:
        """Return the distribution of minus the noise."""
        return CombinedNoise(self.a.scaled(-1.0), self.b.scaled(-1.0))

    def tail(self, t: float) -> float:
        """Return an upper bound on P(noise >= t)."""
        a, b = self.a, self.b
        points = a.step * (a.first + np.arange(len(a.p)))
        index = np.ceil((t - points) / b.step - b.first - _ROUNDING)
        found = b.survival[np.clip(index, 0, len(b.p)).astype(np.int64)]
        return min(1.0, float(a.p @ found) * _SUM + self.slack)

    def upper_quantile(self, tail: float) -> float:
        """Return a t, nearly the smallest one, with P(noise >= t) at most ``tail``, which is above the slack."""
        low = self.a.step * self.a.first + self.b.step * self.b.first
        high = self.a.step * (self.a.last + 1) + self.b.step * (self.b.last + 1)
        tolerance = min(self.a.step, self.b.step) * _ROUNDING
        while high - low > tolerance and low < (middle := (low + high) / 2) < high:
            low, high = (low, middle) if self.tail(middle) <= tail else (middle, high)
        return high
