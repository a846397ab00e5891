"""Sums of integers and their noise.

A row adds nonnegative weights with the sum 1, or one number in [-1, 1], to the sums of its group. So the l1 norm of its
contribution is at most 1, and that of a person with r rows at most r. The weights of each row are rounded to multiples
of 2^-32 once, so that sums are exact integers in any order.

The sums are then rounded down to multiples of h, a power of two of about 2^-13 of the noise, and get discrete Laplace
noise. If T >= 0 is added to a sum, the rounded sum changes by floor(T/h) or ceil(T/h). 1/h is an integer if h <= 1, so
the l1 distance remains r/h for one weight. It also remains r/h for two weights, because the second is the rounded total
minus the first. Every further weight of a group adds at most 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

import dpkernels as dpk
from dpkernels.decimals import rational
from dpkernels.exact.noise.sampler import ExactNoise
from dpkernels.shapes import Float, Int

UNIT_LOG2 = -32  # of the weights of a row
UNIT = 1 << -UNIT_LOG2
_MAX_STEPS_PER_SCALE = 11_000  # of the lattice in a scale of the noise: a table holds no more
_FAST_STEPS_PER_SCALE = 2_048  # the same where rounding adds nothing, so that a small, faster table does
_SCALE_MARGIN = 1 + 1e-6  # how much wider than its scale noise may be, so that a table of integers has the claim


def floor_to_9_digits(number: Fraction) -> float:
    """Return a number with 9 digits, rounded down, so that sums of parts stay within the whole."""
    if not number:
        return 0.0
    digits = 9 - math.ceil(math.log10(float(number)))
    return float(Fraction(math.floor(number * Fraction(10) ** digits)) / Fraction(10) ** digits)


def integer_weights(weights: Sequence[Float[np.ndarray, " rows"]]) -> list[Float[np.ndarray, " rows"]]:
    """Return integers, in arrays of floats, that add up to 2^32 in every row, from k weights that add up to 1."""
    remaining, columns = np.full(len(weights[0]), float(UNIT)), []
    for weight in weights[:-1]:
        column = np.clip(weight, 0.0, 1.0)
        column *= UNIT
        columns.append(np.minimum(np.rint(column, out=column), remaining, out=column))
        remaining -= column
    return [*columns, remaining]


def add_rows(
    sums: Int[np.ndarray, "groups weights"],
    codes: Int[np.ndarray, " rows"],
    weights: Sequence[Float[np.ndarray, " rows"]] | None,
) -> None:
    """Add rows to sums of shape (groups, k): row i to group codes[i], or to none if that is -1."""
    present = codes >= 0
    if not present.all():
        codes, weights = codes[present], None if weights is None else [column[present] for column in weights]
    for j in range(sums.shape[1]):
        # Of up to 2^20 rows of at most 2^32 each: every partial sum is an integer that float64 holds.
        column = None if weights is None else weights[j]
        if len(sums) > 1:
            sums[:, j] += np.bincount(codes, column, minlength=len(sums)).astype(np.int64)
        else:
            sums[0, j] += len(codes) if column is None else int(column.sum())


@dataclass(frozen=True)
class SumLattice:
    """What neighbouring sums are, in multiples of 2^log2: integers at most ``sensitivity`` apart in l1."""

    log2: int
    source_log2: int  # log2 of the multiples that the sums are of before
    sensitivity: int

    @classmethod
    def for_sums(cls, rows: int, epsilon: float, groups: int, weights: int, *, counts: bool) -> SumLattice:
        """Return the lattice for sums over groups, of rows that are whole numbers (counts) or have several weights."""
        source_log2 = 0 if counts else UNIT_LOG2
        steps = (
            _MAX_STEPS_PER_SCALE if weights > 2 else _FAST_STEPS_PER_SCALE
        )  # Where rounding adds nothing, small tables are faster.
        log2 = max(source_log2, math.ceil(math.log2(rows / epsilon / (_MAX_STEPS_PER_SCALE if counts else steps))))
        if log2 <= 0:
            rounding = 0 if log2 == source_log2 or weights <= 2 else (weights - 1) * min(rows, groups)
            return cls(log2, source_log2, (rows << -log2) + rounding)
        return cls(log2, source_log2, -(-rows >> log2) + weights * min(rows, groups))

    def rounded(self, sums: Int[np.ndarray, "groups weights"]) -> Int[np.ndarray, "groups weights"]:
        """Return sums of shape (groups, k) in multiples of 2^log2, rounded down."""
        shift = self.log2 - self.source_log2
        rounded = sums >> shift
        if sums.shape[1] == 2 and self.log2 <= 0:
            rounded[:, 1] = (sums.sum(1) >> shift) - rounded[:, 0]
        return rounded

    @property
    def step(self) -> Fraction:
        return Fraction(2) ** self.log2

    @property
    def key_text(self) -> str:
        """Return the text from which keys of noise are derived: with another one, releases of a key would change."""
        return f"Lattice(log2={self.log2!r}, finest={self.source_log2!r}, sensitivity={self.sensitivity!r})"


@dataclass(frozen=True)
class NoisySums:
    """Released sums of shape (groups, k), in multiples of the lattice's step, and how they were made."""

    values: Float[np.ndarray, "groups weights"]
    lattice: SumLattice
    sampler: ExactNoise

    @property
    def slack(self) -> float:
        """Return the largest distance of a true sum from the middle of the sums that round to the same, in steps."""
        return 0.0 if self.lattice.log2 == self.lattice.source_log2 else 0.5

    @property
    def scale(self) -> float:
        """Return the scale of Laplace noise that, moved outwards by one step, has no smaller tail than the table."""
        return _SCALE_MARGIN * self.lattice.sensitivity / float(rational(self.sampler.certificate.epsilon))

    def bounds(
        self, confidence: float
    ) -> tuple[Float[np.ndarray, "groups weights"], Float[np.ndarray, "groups weights"]]:
        """Return intervals of the true sums, one by one, from the certified integers."""
        low, high = dpk.confidence_interval(self.values.reshape(-1), self.sampler, confidence)
        step, shape = float(self.lattice.step), self.values.shape
        return low.reshape(shape) * step, (high.reshape(shape) + 2 * self.slack) * step

    @property
    def sums(self) -> Float[np.ndarray, "groups weights"]:
        return (self.values + self.slack) * float(self.lattice.step)


@lru_cache(maxsize=16)
def noise_sampler(lattice: SumLattice, epsilon: float, size: int) -> ExactNoise:
    """Return the certified sampler of the noise on this many sums."""
    D = float(lattice.sensitivity)
    noise = dpk.Additive(dpk.DiscreteLaplace(D / epsilon, 1.0, 0), D, epsilon, 0.0)
    return dpk.exact_sampler(dpk.on_vectors(noise, dimensions=size, norm="l1", lattice=1.0))
