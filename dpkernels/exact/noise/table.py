"""Noise tables: integer weights of additive noise on a grid, and the delta of shifted tables.

The code ``first + j`` has the probability weights[j] / 2^bits, whatever the input. A report is h (position + code), see
``grid.py``. The privacy of the release follows from the table and its shifts by up to ceil(ceil(D/g) / M) bins, see
docs/proofs/noise_tables.md. The hockey-stick divergence is computed at every such shift.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from dpkernels.bounded_json import JsonObject, integer
from dpkernels.exact import arithmetic
from dpkernels.exact.alias import alias_columns, alias_kernel
from dpkernels.exact.certificate import MAX_WEIGHTS, frozen_weights, integers, moments
from dpkernels.exact.noise.grid import cells_apart
from dpkernels.exact.noise.remainder import Remainder
from dpkernels.exact.noise.tail import Tail
from dpkernels.numerics import RealArray
from dpkernels.proven import proven
from dpkernels.shapes import UInt64


@dataclass(frozen=True, eq=False)
class NoiseTable:
    """Integer weights of additive noise; the module states their meaning."""

    weights: UInt64[np.ndarray, " codes"]
    first: int  # The code of weights[0].
    bits: int  # log2 of the total.
    grid_log2: int  # log2 of g, to which inputs are rounded first.
    points_per_bin: int  # M, the grid points in a bin.
    tail: Tail | None = None  # Codes beyond the first and the last one, which are otherwise impossible.
    remainder: Remainder | None = None  # What the weights lack, on these and further codes.

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", frozen_weights(self.weights))

    @cached_property
    def outcomes(self) -> list[int]:
        return self.weights.tolist()

    @property
    def codes(self) -> int:
        return len(self.weights)

    @property
    def last(self) -> int:
        return self.first + self.codes - 1

    @property
    def ends(self) -> tuple[int, int]:
        """Return the first and the last code that are possible, but for a tail."""
        if self.remainder is None:
            return self.first, self.last
        return min(self.first, self.remainder.first), max(self.last, self.remainder.last)

    @cached_property
    def total(self) -> int:
        return arithmetic.total(self.weights) + self.rest

    @property
    def rest(self) -> int:
        """Return the weight of draws that need the words of later turns."""
        if self.remainder:
            return self.remainder.rest
        return 2 * self.tail.rest if self.tail else 0

    @cached_property
    def finite(self) -> NoiseTable:
        """Return this table, or one without a tail or remainder, near it in 64 bits, and whose ends weigh more.

        For estimates: either side of a code has at least the true probability, as long as that is below a half.
        """
        if self.remainder:
            return self._without_remainder(self.remainder)
        if self.tail is None:
            return self
        block, blocks, scale = self.tail.block / 2.0**self.bits, list[np.ndarray](), float(self.tail.rest)
        while scale * block[0] >= 1:
            blocks.append(np.floor(scale * block).astype(np.uint64))
            scale *= float(self.tail.continue_probability)
        side = np.concatenate([*blocks, np.zeros(1, np.uint64)])
        side = side[: np.count_nonzero(side) + 1]
        side[-1] = self.tail.rest - arithmetic.total(side)
        weights = np.concatenate([side[::-1], self.weights, side])
        return replace(self, weights=weights, first=self.first - len(side), tail=None)

    def _without_remainder(self, remainder: Remainder) -> NoiseTable:
        """Return the table with the remainder's weight at either end, and as much less at the code 0."""
        weights = np.zeros(len(remainder.weights), np.uint64)
        start = self.first - remainder.first
        weights[start : start + self.codes] = self.weights
        weights[[0, -1]] += np.uint64(remainder.rest)
        weights[-remainder.first] -= np.uint64(remainder.rest)
        return replace(self, weights=weights, first=remainder.first, remainder=None)

    @cached_property
    def bin_width(self) -> Fraction:
        """Return h, data units between neighbouring reports."""
        return self.points_per_bin * Fraction(2) ** self.grid_log2

    def cells(self, sensitivity: Fraction) -> int:
        """Return the largest number of cells between the positions of inputs D apart."""
        return cells_apart(sensitivity, self.grid_log2, self.points_per_bin)

    @cached_property
    def _mean_and_square(self) -> tuple[Fraction, Fraction]:
        first, second = (
            Fraction(moment, self.total) for moment in moments(self.outcomes, range(self.first, self.last + 1))
        )
        if self.tail:  # The same on both sides.
            mean, square = self.tail.moments
            start = self.last + 1
            second += Fraction(2 * self.tail.rest, self.total) * (start**2 + 2 * start * mean + square)
        if self.remainder:
            mean, square = self.remainder.moments
            first += Fraction(self.rest, self.total) * mean
            second += Fraction(self.rest, self.total) * square
        return self.bin_width * first, self.bin_width**2 * second

    @property
    def mean(self) -> Fraction:
        return self._mean_and_square[0]

    @property
    def variance(self) -> Fraction:
        """Return the exact variance of the noise; rounding the input adds at most h^2/4."""
        return self._mean_and_square[1] - self.mean**2

    @cached_property
    def is_unimodal(self) -> bool:
        """Return whether weights never fall and then rise."""
        rises = self.weights[1:] > self.weights[:-1]
        falls = self.weights[1:] < self.weights[:-1]
        return not (falls.any() and rises[int(falls.argmax()) :].any())

    def kernel(self) -> Callable[[RealArray], RealArray]:
        """Return the sampler, random word of ``bits`` bits -> code, int32; the one before the first draws the rest."""
        outcomes, first = alias_kernel(alias_columns(self.kernel_weights, self.bits)), np.int32(self.kernel_first)
        return lambda r: outcomes(r) + first

    @property
    def kernel_weights(self) -> UInt64[np.ndarray, " outcomes"]:
        """Return the weights of the sampler's outcomes: that of the rest comes first, if there is one."""
        return np.append(np.uint64(self.rest), self.weights) if self.rest else self.weights

    @property
    def kernel_first(self) -> int:
        """Return the code of the first outcome."""
        return self.first - 1 if self.rest else self.first

    def to_dict(self) -> Mapping[str, object]:
        # A copy of the list that is sampled, because the caller may change it.
        weights, grid = self.weights.tolist(), {"grain": self.grid_log2, "grains": self.points_per_bin}
        tail = {} if self.tail is None else {"tail": self.tail.to_dict()}
        remainder = {} if self.remainder is None else {"remainder": self.remainder.to_dict()}
        return {"weights": weights, "first": self.first, "bits": self.bits, **grid, **tail, **remainder}

    @classmethod
    def from_dict(cls, payload: JsonObject) -> NoiseTable:
        """Return the table in a payload, after a check of types and sizes only."""
        first, bits, grid_log2, points_per_bin = (
            integer(name, payload[name]) for name in ("first", "bits", "grain", "grains")
        )
        tail = Tail.from_dict(payload["tail"], bits) if "tail" in payload else None
        remainder = Remainder.from_dict(payload["remainder"], bits) if "remainder" in payload else None
        weights = frozen_weights(integers("weights", payload["weights"], MAX_WEIGHTS))
        return cls(weights, first, bits, grid_log2, points_per_bin, tail, remainder)


@proven("noise_tables#proof")
def excess(weights: UInt64[np.ndarray, " codes"], shift: int, ratio: Fraction) -> Fraction:
    """Return the sum of max(0, w[j] - ratio w[j - shift]) over codes, for a shift of either sign; w is 0 outside."""
    alone, paired = (weights[:shift], weights[shift:]) if shift >= 0 else (weights[shift:], weights[:shift])
    shifted = weights[: len(paired)] if shift >= 0 else weights[len(alone) :]
    is_above = arithmetic.exceeds(paired, shifted, ratio)
    return arithmetic.total(alone) + arithmetic.total(paired[is_above]) - ratio * arithmetic.total(shifted[is_above])


def hockey_stick(table: NoiseTable, shift: int, ratio: Fraction) -> Fraction:
    """Return delta at e^eps = ratio between the table and itself shifted by up to ``shift`` cells, exactly."""
    # Shifts beyond the table's length have the same delta. For unimodal weights the largest shift is the worst.
    shift = min(shift, table.codes)
    shifts = [shift] if table.is_unimodal else range(1, shift + 1)
    worst = max(excess(table.weights, sign * s, ratio) for s in shifts for sign in (1, -1))
    return worst / table.total


def rounding_probability(table: NoiseTable, sensitivity: Fraction) -> Fraction:
    """Return the largest probability, at most 1, with which rounding moves inputs D apart to different positions.

    Where a bin has M grid points and D fewer, n, this is the probability of n neighbouring values of r, or of all but
    M - n. Of the words, n neighbouring values have at most ceil(n 2^32/M), and M - n at least floor((M - n) 2^32/M).
    """
    points = math.ceil(sensitivity / Fraction(2) ** table.grid_log2)
    return min(Fraction(1), Fraction(-((-points << 32) // table.points_per_bin), 1 << 32))


@proven("noise_tables#proof")
def mixed_hockey_stick(table: NoiseTable, probability: Fraction, ratio: Fraction) -> Fraction:
    """Return delta between the table T and the mixture of T and its neighbour S, T shifted by a cell, exactly.

    With a the share of S and rho the ratio, in one order T - rho ((1 - a) T + a S) = (1 - rho + rho a) T - rho a S, in
    the other (1 - a) T + a S - rho T = a S - (rho - 1 + a) T.
    """
    a, b = probability, 1 - ratio * (1 - probability)
    forward = [b * excess(table.weights, sign, ratio * a / b) for sign in (1, -1) if b > 0]
    backward = [a * excess(table.weights, sign, (ratio - 1 + a) / a) for sign in (1, -1)]
    return max(Fraction(0), *forward, *backward) / table.total
