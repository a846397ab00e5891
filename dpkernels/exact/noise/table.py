"""The output distribution of additive noise, as integers on a grid.

An input x is rounded to the position

    floor((floor(x/g + 1/2) + r) / M),    g = 2^grid_log2,    r uniform on 0..M-1,

a stochastic rounding to multiples of the bin width h = M g, in exact arithmetic: x/g moves a float's exponent, the rest
are integers. The report is h (position + code), with code ``first + j`` of probability weights[j] / 2^bits whatever
x is. The privacy of the release is that of the table shifted by up to ceil(ceil(D/g) / M) bins, see
docs/proofs/noise_tables.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from dpkernels.bounded_json import integer
from dpkernels.exact.table import MOST_WEIGHTS, Table, frozen_weights, integers


@dataclass(frozen=True, eq=False)
class NoiseTable(Table):
    """Integer weights of additive noise.

    Attributes:
        weights: uint64, one a code.
        first: the code of weights[0].
        bits: log2 of the total.
        grid_log2: log2 of g, to which inputs are rounded first.
        points_per_bin: M, the grid points in a bin.
    """

    weights: np.ndarray
    first: int
    bits: int
    grid_log2: int
    points_per_bin: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", frozen_weights(self.weights))

    @cached_property
    def outcomes(self) -> list[int]:
        """Return the weights as Python integers."""
        return self.weights.tolist()

    @property
    def codes(self) -> int:
        """Return the number of values of the noise."""
        return len(self.weights)

    @property
    def last(self) -> int:
        """Return the code of the last weight."""
        return self.first + self.codes - 1

    @cached_property
    def total(self) -> int:
        """Return the sum of the weights."""
        return sum(self.outcomes)

    @property
    def totals(self) -> list[int]:
        return [self.total]

    @property
    def bin_width(self) -> Fraction:
        """Return h, data units between neighbouring reports."""
        return self.points_per_bin * Fraction(2) ** self.grid_log2

    def cells(self, sensitivity: Fraction) -> int:
        """Return the largest number of cells between the positions of inputs D apart."""
        return cells_apart(sensitivity, self.grid_log2, self.points_per_bin)

    def _moment(self, power: int) -> Fraction:
        return Fraction(sum(w * (self.first + j) ** power for j, w in enumerate(self.outcomes)), self.total)

    @cached_property
    def mean(self) -> Fraction:
        """Return the exact mean of the noise, in data units."""
        return self.bin_width * self._moment(1)

    @cached_property
    def variance(self) -> Fraction:
        """Return the exact variance of the noise; rounding the input adds at most h^2/4."""
        return self.bin_width**2 * self._moment(2) - self.mean**2

    @cached_property
    def is_unimodal(self) -> bool:
        """Return whether weights never fall and then rise."""
        rises = self.weights[1:] > self.weights[:-1]
        falls = self.weights[1:] < self.weights[:-1]
        return not (falls.any() and rises[int(falls.argmax()) :].any())

    def to_dict(self) -> dict[str, Any]:
        return {
            "weights": self.weights.tolist(),  # Not the list that is sampled: whoever gets this may change it.
            "first": self.first,
            "bits": self.bits,
            "grain": self.grid_log2,
            "grains": self.points_per_bin,
        }

    @classmethod
    def from_dict(cls, payload: dict[str, Any]) -> NoiseTable:
        numbers = (integer(name, payload[name]) for name in ("first", "bits", "grain", "grains"))
        return cls(frozen_weights(integers("weights", payload["weights"], MOST_WEIGHTS)), *numbers)


def cells_apart(distance: Fraction, grid_log2: int, points_per_bin: int) -> int:
    """Return ceil(ceil(distance / g) / M), the most cells by which the positions of such inputs can differ."""
    return math.ceil(Fraction(math.ceil(distance / Fraction(2) ** grid_log2), points_per_bin))


def excess(weights: list[int], shift: int, ratio: Fraction) -> Fraction:
    """Return the sum over codes of max(0, w[j] - ratio w[j - shift]), w being 0 beyond its ends.

    The shift may be negative.
    """
    steps = [0] * abs(shift)
    here, there = (weights + steps, steps + weights) if shift >= 0 else (steps + weights, weights + steps)
    p, q = ratio.numerator, ratio.denominator
    return Fraction(sum(d for a, b in zip(here, there, strict=True) if (d := q * a - p * b) > 0), q)


def hockey_stick(table: NoiseTable, shift: int, ratio: Fraction) -> Fraction:
    """Return delta at e^eps = ratio between the table and itself shifted by up to ``shift`` cells either way, exactly.

    For unimodal weights the largest shift is the worst. Shifts beyond the table's length have the same delta.
    """
    shift = min(shift, table.codes)
    shifts = [shift] if table.is_unimodal else range(1, shift + 1)
    worst = max(excess(table.outcomes, sign * s, ratio) for s in shifts for sign in (1, -1))
    return worst / table.total
