"""The output distribution of a release, as integers.

A ``WindowTable`` has N output codes and S + 1 rows. Row s gives code j the weight

    base[j] + window[j - s],    0 <= j - s < w,    S = N - w,    total 2^bits for every s,

and code j stands for the value  middle + step (j - (N - 1)/2). An input between two rows' means is rounded to one of
them at random, so what holds for rows (mean, pure DP) holds for inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from dpkernels.bounded_json import integer, real
from dpkernels.decimals import rational
from dpkernels.exact.table import MOST_WEIGHTS, BoundedTable, frozen_weights, integers, sliding


@dataclass(frozen=True, eq=False)
class WindowTable(BoundedTable):
    """Integer weights of a windowed mechanism.

    Attributes:
        base: N weights, uint64, the same for every row.
        window: w weights, uint64, placed at code s by row s.
        bits: log2 of the total.
        lower: smallest valid input, the mean of row 0.
        upper: largest valid input, the mean of row S.
        is_placed: whether the window's middle is the input itself; means are then nearer to the middle by ``slope``.
    """

    base: np.ndarray
    window: np.ndarray
    bits: int
    lower: float
    upper: float
    is_placed: bool = False

    def __post_init__(self) -> None:
        for name in ("base", "window"):
            object.__setattr__(self, name, frozen_weights(getattr(self, name)))

    @property
    def codes(self) -> int:
        """Return N, how many outputs there are."""
        return len(self.base)

    @property
    def shifts(self) -> int:
        """Return S, the last row."""
        return len(self.base) - len(self.window)

    @property
    def outcomes(self) -> list[int]:
        """Return the weights of base codes, then of window positions, as Python integers."""
        return self.base.tolist() + self.window.tolist()

    @cached_property
    def window_total(self) -> int:
        """Return the sum of the window's weights."""
        return sum(self.window.tolist())

    @cached_property
    def total(self) -> int:
        """Return the sum of a row's weights."""
        return sum(self.base.tolist()) + self.window_total

    @property
    def totals(self) -> list[int]:
        return [self.total]

    @property
    def slope(self) -> Fraction:
        """Return the derivative of the mean by the input: 1, or the window's share of the total if it is placed."""
        return Fraction(self.window_total, self.total) if self.is_placed else Fraction(1)

    @property
    def placed(self) -> WindowTable:
        """Return the table with the same weights and its values contracted to the middle by the window's share."""
        return replace(self, is_placed=True)

    @cached_property
    def step(self) -> Fraction:
        """Return the data units between neighbouring codes, slope R total / (S window_total)."""
        width = rational(self.upper) - rational(self.lower)
        return self.slope * width * self.total / (self.shifts * self.window_total)

    @cached_property
    def middle(self) -> Fraction:
        """Return the middle of the input and of the output interval."""
        return (rational(self.lower) + rational(self.upper)) / 2

    def value(self, code: int) -> Fraction:
        """Return the report that a code stands for."""
        return self.middle + self.step * (code - Fraction(self.codes - 1, 2))

    def row(self, s: int) -> np.ndarray:
        """Return the weights of row s."""
        row = self.base.copy()
        row[s : s + len(self.window)] += self.window
        return row

    def _moment(self, power: int) -> tuple[int, int]:
        """Return integer sums of weight (2 j + 1 - n)^power over base codes and over window positions."""
        return (
            sum(int(weight) * (2 * j + 1 - n) ** power for j, weight in enumerate(weights.tolist()))
            for weights, n in ((self.base, self.codes), (self.window, len(self.window)))
        )  # type: ignore[return-value]

    @cached_property
    def _moments(self) -> tuple[tuple[int, int], tuple[int, int]]:
        return tuple(self._moment(1)), tuple(self._moment(2))  # type: ignore[return-value]

    def row_input(self, s: int) -> Fraction:
        """Return the nominal input of row s."""
        width = rational(self.upper) - rational(self.lower)
        return rational(self.lower) + width * s / self.shifts

    def row_mean(self, s: int) -> Fraction:
        """Return the exact mean of row s, from the integers alone."""
        (base1, window1), _ = self._moments
        # Doubled codes about the middle; the window's middle is 2 s - S away.
        doubled = Fraction(base1 + window1 + (2 * s - self.shifts) * self.window_total, self.total)
        return self.middle + self.step * doubled / 2

    def row_variance(self, s: int) -> Fraction:
        """Return the exact variance of row s."""
        (_, window1), (base2, window2) = self._moments
        away = 2 * s - self.shifts
        second = Fraction(base2 + window2 + 2 * away * window1 + away**2 * self.window_total, self.total)
        mean = (self.row_mean(s) - self.middle) * 2 / self.step
        return (second - mean**2) * self.step**2 / 4

    @cached_property
    def variance_terms(self) -> tuple[Fraction, Fraction, Fraction]:
        """Return (A, c, rho) with Var(x) = A + c (x - middle)^2 + r and 0 <= r <= rho, r the rounding between rows.

        With k = slope^2, row variances have c = k (total/window_total - 1), and rounding at a fraction f of the gap
        between two rows adds f (1 - f) (k + c) gap^2. With two rows this rounding is itself a parabola, and there is
        no other term.
        """
        half, k = (rational(self.upper) - rational(self.lower)) / 2, self.slope**2
        end = max(self.row_variance(0), self.row_variance(self.shifts))
        if self.shifts == 1:
            return end + k * half**2, -k, Fraction(0)
        c = k * (Fraction(self.total, self.window_total) - 1)
        return end - c * half**2, c, (k + c) * (2 * half / self.shifts) ** 2 / 4

    @property
    def worst_variance(self) -> Fraction:
        """Return the bound on the variance at any input, input rounding included."""
        return self.largest(self.variance_terms)

    def largest(self, terms: tuple[Fraction, Fraction, Fraction]) -> Fraction:
        """Return the largest A + c (x - middle)^2 + rho over the inputs."""
        A, c, rho = terms
        half = (rational(self.upper) - rational(self.lower)) / 2
        return A + max(Fraction(0), c * half**2) + rho

    @property
    def has_signal(self) -> bool:
        """Return whether the last row's mean is above the first's."""
        return self.window_total > 0

    def extremes(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the largest and smallest weight of every code over all rows, as Python integers."""
        pad = np.zeros(self.shifts, np.uint64)
        # Row s puts window[j - s] on code j; over s = 0..S these are S + 1 neighbours of the padded window.
        padded, base = np.concatenate([pad, self.window, pad]), self.base.astype(object)
        high, low = (sliding(extreme, padded, self.shifts + 1) for extreme in (np.maximum, np.minimum))
        return base + high, base + low

    @cached_property
    def is_flat(self) -> bool:
        """Return whether both parts are constant: then two divisions sample it, without a table."""
        return bool((self.base == self.base[0]).all() and (self.window == self.window[0]).all())

    @property
    def falls(self) -> bool:
        """Return whether both parts are even and fall from their middles."""
        return all(_falls(weights) for weights in (self.window, self.base))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON payload; weights as runs [value, count]."""
        return {
            "base": _runs(self.base),
            "window": _runs(self.window),
            "bits": self.bits,
            "lower": self.lower,
            "upper": self.upper,
        }

    @classmethod
    def from_dict(cls, payload: dict[str, Any]) -> WindowTable:
        base, window = (_from_runs(name, payload[name]) for name in ("base", "window"))
        lower, upper = (real(name, payload[name]) for name in ("lower", "upper"))
        return cls(base, window, integer("bits", payload["bits"]), lower, upper)


def _falls(weights: np.ndarray) -> bool:
    outward = weights[len(weights) // 2 :]
    return bool((weights == weights[::-1]).all() and (outward[1:] <= outward[:-1]).all())


def _runs(weights: np.ndarray) -> list[list[int]]:
    starts = np.flatnonzero(np.concatenate([[True], weights[1:] != weights[:-1]]))
    counts = np.diff(np.append(starts, len(weights)))
    return [[int(value), int(count)] for value, count in zip(weights[starts], counts, strict=True)]


def _from_runs(name: str, runs: Any) -> np.ndarray:
    if type(runs) is not list or not 0 < len(runs) <= MOST_WEIGHTS:
        raise ValueError(f"{name}: needs runs of weights, {MOST_WEIGHTS} at most")
    values, counts = zip(*(integers(name, run, 2) for run in runs), strict=True)
    if min(counts) < 1 or sum(counts) > MOST_WEIGHTS:
        raise ValueError(f"{name}: has {sum(counts)} weights; {MOST_WEIGHTS} at most, every run one or more")
    return np.repeat(frozen_weights(values), counts)
