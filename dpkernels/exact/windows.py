"""Window tables: integer weights of windowed and two-point mechanisms, their certificates and their samplers.

A ``WindowTable`` has N output codes and S + 1 rows. Row s gives code j the weight

    base[j] + window[j - s],    0 <= j - s < w,    S = N - w,    total 2^bits for every s,

and code j stands for the value  middle + step (j - (N - 1)/2). An input between two rows' means is rounded to one of
them at random, so what holds for rows (mean, pure DP) holds for inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from dpkernels import checks
from dpkernels.bounded_json import integer, real
from dpkernels.decimals import shortest
from dpkernels.exact.certificate import (
    COVERS,
    BoundedCertificate,
    UnbiasedCertificate,
    certified_ratio,
    check_means,
    check_rows,
)
from dpkernels.exact.kernels import alias_columns, alias_kernel
from dpkernels.exact.sampler import BoundedSampler
from dpkernels.exact.table import MOST_WEIGHTS, BoundedTable, frozen_weights, integers, sliding
from dpkernels.numerics import Real, RealArray, namespace


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
    def ends(self) -> tuple[float, float]:
        return self.lower, self.upper

    @property
    def codes(self) -> int:
        return len(self.base)

    @property
    def shifts(self) -> int:
        return len(self.base) - len(self.window)

    @property
    def outcomes(self) -> list[int]:
        """Return the weights of base codes, then of window positions, as Python integers."""
        return self.base.tolist() + self.window.tolist()

    @cached_property
    def window_total(self) -> int:
        return sum(self.window.tolist())

    @cached_property
    def total(self) -> int:
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
        """Return the data units between neighbouring codes, slope gap total / window_total."""
        return self.slope * self.gap * self.total / self.window_total

    def value(self, code: int) -> Fraction:
        return self.middle + self.step * (code - Fraction(self.codes - 1, 2))

    def row(self, s: int) -> np.ndarray:
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

    def row_mean(self, s: int) -> Fraction:
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
        half, k = self.shifts * self.gap / 2, self.slope**2
        end = max(self.row_variance(0), self.row_variance(self.shifts))
        if self.shifts == 1:
            return end + k * half**2, -k, Fraction(0)
        c = k * (Fraction(self.total, self.window_total) - 1)
        return end - c * half**2, c, (k + c) * self.gap**2 / 4

    @property
    def worst_variance(self) -> Fraction:
        return self.largest(self.variance_terms)

    def largest(self, terms: tuple[Fraction, Fraction, Fraction]) -> Fraction:
        """Return the largest A + c (x - middle)^2 + rho over the inputs."""
        A, c, rho = terms
        return A + max(Fraction(0), c * (self.shifts * self.gap / 2) ** 2) + rho

    @property
    def has_signal(self) -> bool:
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


@dataclass(frozen=True)
class _OneWindow(BoundedCertificate):
    """Verified facts about one window table; any two inputs are neighbours."""

    epsilon: float
    ratio: Fraction
    table: WindowTable

    parts: ClassVar[Mapping[str, str]] = {"table": "table"}

    @property
    def cells(self) -> int:  # type: ignore[override]
        return self.table.shifts


@dataclass(frozen=True)
class WindowCertificate(_OneWindow, UnbiasedCertificate, kind="window"):
    """Verified facts about one window table; see ``BoundedCertificate``."""

    @property
    def covers(self) -> str:
        return COVERS

    @classmethod
    def certified(cls, payload: dict[str, Any]) -> WindowCertificate:
        return certify_table(WindowTable.from_dict(payload["table"]), real("epsilon", payload["epsilon"]))


@dataclass(frozen=True)
class PlacedCertificate(_OneWindow, kind="placed window"):
    """Verified facts about a window table whose means are not the inputs; see ``BoundedCertificate``."""

    facts = tuple("slope" if name == "mean_error" else name for name in BoundedCertificate.facts)

    @property
    def slope(self) -> Fraction:
        """Return the derivative of the mean of a report by the input, below 1."""
        return self.table.slope

    @property
    def means(self) -> str:
        middle, slope = shortest(float(self.table.middle)), shortest(float(self.slope))
        return f"not the input: {middle} + {slope} (input - {middle}), biased towards the middle"

    @property
    def covers(self) -> str:
        return f"{COVERS} No mean is claimed: reports are biased."

    @classmethod
    def certified(cls, payload: dict[str, Any]) -> PlacedCertificate:
        return certify_placed(WindowTable.from_dict(payload["table"]), real("epsilon", payload["epsilon"]))


def certify_table(table: WindowTable, epsilon: float) -> WindowCertificate:
    """Verify all properties that a release relies on, and return the certificate.

    Raises:
        CertificateError: the total is not 2^bits, a report is impossible for some input, a ratio exceeds e^epsilon,
            or a row's mean is not the input; says by how much.
        ValueError: the budget is out of range, or the interval is none.
    """
    return WindowCertificate(float(epsilon), _verified_ratio(table, epsilon, table.row_input), table)


def certify_placed(table: WindowTable, epsilon: float) -> PlacedCertificate:
    """Certify weights with the window placed at the input; means lie between the inputs and the middle.

    Raises:
        CertificateError: as ``certify_table``; a row's mean is not where the slope says.
        ValueError: the budget is out of range, or the interval is none.
    """
    table = table.placed

    def nominal(s: int) -> Fraction:
        return table.middle + table.slope * (table.row_input(s) - table.middle)

    return PlacedCertificate(float(epsilon), _verified_ratio(table, epsilon, nominal), table)


def _verified_ratio(table: WindowTable, epsilon: float, nominal: Callable[[int], Fraction]) -> Fraction:
    checks.epsilon(epsilon)
    check_rows(table)
    ratio = certified_ratio(*table.extremes(), epsilon)
    check_means(table, (0, table.shifts), nominal)  # Means and inputs are both affine in the row: the ends decide.
    return ratio


CodeKernel = Callable[[RealArray, RealArray], RealArray]


@dataclass(frozen=True, eq=False)
class ExactWindow(BoundedSampler):
    """A mechanism that is one window table: windowed, square wave or two-point."""

    mechanism: Any
    certificate: WindowCertificate | PlacedCertificate

    @property
    def table(self) -> WindowTable:
        return self.certificate.table

    @cached_property
    def kernel(self) -> CodeKernel:
        return code_kernel(self.table)

    def reports(self, x: RealArray, *words: RealArray) -> RealArray:
        noise, rounding = words
        return self.values(self.kernel(noise, self.rows(x, rounding)), x.dtype)

    def values(self, codes: Real, dtype: Any) -> Any:
        """Return middle + step (code - (N - 1)/2), a function of the code alone."""
        if isinstance(codes, np.ndarray):
            return self._values[np.dtype(dtype)].take(codes)
        return self.reports_at(2 * codes - (self.table.codes - 1), dtype)

    @cached_property
    def _values(self) -> dict[np.dtype, np.ndarray]:
        """Return the values of all codes: one look-up costs less than the formula."""
        doubled = 2 * np.arange(self.table.codes, dtype=np.int32) - (self.table.codes - 1)
        return {np.dtype(dtype): self.reports_at(doubled, dtype) for dtype in (np.float32, np.float64)}


def code_kernel(table: WindowTable) -> CodeKernel:
    """Return the sampler of a table, (random word, row) -> code, both of one shape.

    The word has ``table.bits`` bits.
    """
    if table.is_flat:
        return _division_kernel(table)
    outcomes, n = alias_kernel(alias_columns(table.outcomes, table.bits)), np.int32(table.codes)

    def codes(r: RealArray, row: RealArray) -> RealArray:
        outcome = outcomes(r)
        return namespace(r).where(outcome < n, outcome, row + outcome - n)

    return codes


def _division_kernel(table: WindowTable) -> CodeKernel:
    """Return the sampler of constant weights a (base) and kappa (window), which divides.

    r < N a gives the code r // a, any other r the code row + (r - N a) // kappa.
    """
    word = np.dtype(f"uint{table.bits}").type
    a, kappa, base_total = word(table.base[0]), word(table.window[0]), word(table.codes * int(table.base[0]))

    def codes(r: RealArray, row: RealArray) -> RealArray:
        in_base = (r // a).astype(np.int32)
        in_window = row + ((r - base_total) // kappa).astype(np.int32)
        return namespace(r).where(r < base_total, in_base, in_window)

    return codes
