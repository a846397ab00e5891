"""The output distribution of a mechanism given row by row, as integers.

A ``RowTable`` has n rows and m codes. Row i gives code j the weight weights[i, j], total 2^bits for every row, and code
j stands for the value  middle + step places[j].  The step follows from the rows' means, which are evenly spaced from
``first`` to ``last``; an input between two rows is rounded to one of them at random, so what holds for rows holds for
inputs: the mean, and pure DP, see ``certificate``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from dpkernels.bounded_json import integer, real
from dpkernels.decimals import rational
from dpkernels.exact.table import MOST_WEIGHTS, BoundedTable, frozen_weights, integers, sliding

# The largest number of rows that is read. Tables built here have fewer.
_MOST_ROWS = 1 << 13


@dataclass(frozen=True, eq=False)
class RowTable(BoundedTable):
    """Integer weights of a mechanism row by row.

    Attributes:
        weights: uint64, of shape (n, m).
        places: m increasing integers.
        bits: log2 of every row's total.
        first: the mean of row 0.
        last: the mean of row n - 1.
        lower: smallest valid input, at least ``first``.
        upper: largest valid input, at most ``last``.
    """

    weights: np.ndarray
    places: tuple[int, ...]
    bits: int
    first: float
    last: float
    lower: float
    upper: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", frozen_weights(self.weights))
        object.__setattr__(self, "places", tuple(int(place) for place in self.places))

    @property
    def rows(self) -> int:
        """Return n."""
        return len(self.weights)

    @property
    def codes(self) -> int:
        """Return m."""
        return len(self.places)

    @property
    def shifts(self) -> int:
        """Return the last row."""
        return self.rows - 1

    @cached_property
    def totals(self) -> list[int]:
        return [sum(row) for row in self.weights.tolist()]

    def moments(self, power: int) -> list[int]:
        """Return sums of weight times place^power of the rows."""
        places = [place**power for place in self.places]
        return [sum(w * p for w, p in zip(row, places, strict=True)) for row in self.weights.tolist()]

    @cached_property
    def first_moments(self) -> list[int]:
        """Return sums of weight times place."""
        return self.moments(1)

    @property
    def has_signal(self) -> bool:
        """Return whether the last row's mean is above the first's."""
        return self.first_moments[-1] > self.first_moments[0]

    @cached_property
    def middle(self) -> Fraction:
        """Return the middle of the rows' inputs, and the value of place 0."""
        return (rational(self.first) + rational(self.last)) / 2

    @cached_property
    def step(self) -> Fraction:
        """Return the data units between neighbouring places, from mean(last row) - mean(first row) = last - first."""
        width = rational(self.last) - rational(self.first)
        return width * (1 << self.bits) / (self.first_moments[-1] - self.first_moments[0])

    @cached_property
    def gap(self) -> Fraction:
        """Return the data units between neighbouring rows' inputs."""
        return (rational(self.last) - rational(self.first)) / self.shifts

    def value(self, code: int) -> Fraction:
        """Return the report that a code stands for."""
        return self.middle + self.step * self.places[code]

    def row_input(self, i: int) -> Fraction:
        """Return the nominal input of row i."""
        return rational(self.first) + self.gap * i

    def row_mean(self, i: int) -> Fraction:
        """Return the exact mean of row i, from the integers alone."""
        return self.middle + self.step * self.first_moments[i] / (1 << self.bits)

    @cached_property
    def row_variances(self) -> list[Fraction]:
        """Return the exact variances of the rows."""
        total = 1 << self.bits
        return [
            (Fraction(second, total) - Fraction(first, total) ** 2) * self.step**2
            for first, second in zip(self.first_moments, self.moments(2), strict=True)
        ]

    @cached_property
    def worst_variance(self) -> Fraction:
        """Return the largest variance over valid inputs.

        At the share f between rows of variances A and B it is  (1 - f) A + f B + f (1 - f) gap^2.
        """
        squared, largest = self.gap**2, Fraction(0)
        begin, end = ((rational(x) - rational(self.first)) / self.gap for x in (self.lower, self.upper))
        for i in range(math.floor(begin), math.ceil(end)):
            A, B = self.row_variances[i : i + 2]
            f = min(Fraction(1), end - i, max(Fraction(0), begin - i, (1 + (B - A) / squared) / 2))
            largest = max(largest, (1 - f) * A + f * B + f * (1 - f) * squared)
        return largest

    def extremes(self, cells: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the largest and smallest weight of every code over each ``cells`` + 1 neighbouring rows, as uint64."""
        width = min(cells, self.shifts) + 1
        return sliding(np.maximum, self.weights, width), sliding(np.minimum, self.weights, width)

    def to_dict(self) -> dict[str, Any]:
        return {
            "weights": self.weights.tolist(),
            "places": list(self.places),
            "bits": self.bits,
            "first": self.first,
            "last": self.last,
            "lower": self.lower,
            "upper": self.upper,
        }

    @classmethod
    def from_dict(cls, payload: dict[str, Any]) -> RowTable:
        rows, places = payload["weights"], integers("places", payload["places"], MOST_WEIGHTS)
        if type(rows) is not list or not 0 < len(rows) <= _MOST_ROWS or len(rows) * len(places) > MOST_WEIGHTS:
            raise ValueError(f"weights: needs 1 to {_MOST_ROWS} rows of {len(places)}, {MOST_WEIGHTS} weights at most")
        if any(len(integers("weights", row, len(places))) != len(places) for row in rows):
            raise ValueError(f"weights: not all rows have {len(places)}")
        ends = (real(name, payload[name]) for name in ("first", "last", "lower", "upper"))
        return cls(frozen_weights(rows), tuple(places), integer("bits", payload["bits"]), *ends)
