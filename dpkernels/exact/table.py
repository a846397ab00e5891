"""Base classes of integer tables: weights of distributions with the total 2^bits, read from untrusted payloads."""

from __future__ import annotations

import abc
from fractions import Fraction
from functools import cached_property
from typing import Any, Self

import numpy as np

from dpkernels.bounded_json import brief
from dpkernels.decimals import rational

# The possible log2 of a table's total: 32 or 64 bits of a random word (16 in tests).
WORDS = (16, 32, 64)

# The largest number of weights that is read. Tables built here have at most 2^21.
MOST_WEIGHTS = 1 << 21


class Table(abc.ABC):
    """Integer weights of distributions, each with the total 2^bits.

    Attributes:
        bits: log2 of the total.
    """

    bits: int

    @property
    @abc.abstractmethod
    def totals(self) -> list[int]:
        """Return the sums of weights that have to be 2^bits, as Python integers."""

    @abc.abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return a JSON payload."""

    @classmethod
    @abc.abstractmethod
    def from_dict(cls, payload: dict[str, Any]) -> Self:
        """Return the table in a payload of ``to_dict``, after a check of types and sizes only.

        Raises:
            ValueError: an entry has the wrong type, or there are too many.
            OverflowError: a weight is negative or has more than 64 bits.
            KeyError: an entry is missing.
        """


class BoundedTable(Table):
    """A table with a distribution for each of S + 1 inputs, the rows, from the lower to the upper end of an interval.

    Attributes:
        lower: smallest valid input.
        upper: largest valid input.
    """

    lower: float
    upper: float

    @property
    @abc.abstractmethod
    def ends(self) -> tuple[float, float]:
        """Return the nominal inputs of the first and of the last row."""

    @property
    @abc.abstractmethod
    def codes(self) -> int:
        """Return N, how many reports are possible."""

    @property
    @abc.abstractmethod
    def shifts(self) -> int:
        """Return S, the last row."""

    @property
    @abc.abstractmethod
    def step(self) -> Fraction:
        """Return the data units between neighbouring codes or places."""

    @property
    @abc.abstractmethod
    def has_signal(self) -> bool:
        """Return whether the last row's mean is above the first's."""

    @abc.abstractmethod
    def value(self, code: int) -> Fraction:
        """Return the report that a code stands for."""

    @abc.abstractmethod
    def row_mean(self, s: int) -> Fraction:
        """Return the exact mean of row s, from the integers alone."""

    @property
    @abc.abstractmethod
    def worst_variance(self) -> Fraction:
        """Return the bound on the variance at any input, input rounding included."""

    @cached_property
    def middle(self) -> Fraction:
        """Return the middle of the rows' inputs."""
        return sum(map(rational, self.ends)) / Fraction(2)

    @cached_property
    def gap(self) -> Fraction:
        """Return the data units between neighbouring rows' inputs."""
        return (rational(self.ends[1]) - rational(self.ends[0])) / self.shifts

    def row_input(self, s: int) -> Fraction:
        """Return the nominal input of row s."""
        return rational(self.ends[0]) + self.gap * s


def integers(name: str, values: Any, most: int) -> list[int]:
    """Return a list of at most ``most`` integers; their range is checked when an array is made of them.

    Raises:
        ValueError: it is not.
    """
    if type(values) is not list or len(values) > most:
        raise ValueError(f"{name}: {brief(values)} is not a list of at most {most} integers")
    if not all(type(value) is int for value in values):
        raise ValueError(f"{name}: not all are integers")
    return values


def frozen_weights(values: Any) -> np.ndarray:
    """Return a read-only copy as uint64: what has been certified must stay what is sampled.

    Raises:
        OverflowError: an integer is negative or has more than 64 bits.
    """
    array = np.array(values, np.uint64)
    array.setflags(write=False)
    return array


def sliding(extreme: np.ufunc, values: np.ndarray, width: int) -> np.ndarray:
    """Return ``extreme`` over every ``width`` neighbours along the first axis, by doubling."""
    span = 1
    while 2 * span <= width:
        values = extreme(values[:-span], values[span:])
        span *= 2
    rest = width - span
    return extreme(values[: len(values) - rest], values[rest:])
