"""Integer tables of a window over a base, on an interval, their certificates and their sampler.

A ``WindowTable`` has N output codes and S + 1 rows. Row s has, for code j, the weight

    base[j] + window[j - s],    0 <= j - s < w,    S = N - w,    total 2^bits for every s,

and code j represents the value  middle + step (j - (N - 1)/2).

The means of the rows are evenly spaced, which determines the step. An input between the means of two rows is rounded to
one of them at random. So all properties of rows (mean, pure DP of any two inputs) also hold for inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import NamedTuple, Self

import numpy as np

from dpkernels import checks
from dpkernels.bounded_json import JsonObject, integer, real
from dpkernels.decimals import rational, shortest
from dpkernels.exact.alias import alias_columns, alias_kernel, stacked_alias_kernel
from dpkernels.exact.bounded.certificate import BoundedCertificate, BoundedTable, sliding_extremes
from dpkernels.exact.bounded.sampler import BoundedSampler, fraction_bits, nearest_rows, split_products
from dpkernels.exact.certificate import COVERS, MAX_WEIGHTS, frozen_weights, integers, moments
from dpkernels.exact.sampler import StackedSampler
from dpkernels.numerics import Real, RealArray, namespace
from dpkernels.proven import proven
from dpkernels.pytrees import PyTree
from dpkernels.shapes import UInt64

_MAX_ROWS = 1 << 13  # The largest number of rows that is read. Tables built here have fewer.


@proven("window_tables#proof")
@dataclass(frozen=True, eq=False)
class WindowTable(BoundedTable):
    """Integer weights of a windowed mechanism."""

    base: UInt64[np.ndarray, " codes"]  # N weights, uint64, the same for every row.
    window: UInt64[np.ndarray, " window_codes"]  # w weights, uint64, placed at code s by row s.
    bits: int
    lower: float
    upper: float
    is_contracted: bool = False  # The window's middle is the input: means are nearer to the middle by ``slope``.

    def __post_init__(self) -> None:
        for name in ("base", "window"):
            object.__setattr__(self, name, frozen_weights(getattr(self, name)))

    @property
    def last_row(self) -> int:
        return len(self.base) - len(self.window)

    @property
    def doubled_offsets(self) -> range:
        return range(1 - len(self.base), len(self.base), 2)

    @property
    def outcomes(self) -> list[int]:
        """Return the weights of base codes, then of window positions, as Python integers."""
        return self.base.tolist() + self.window.tolist()

    @cached_property
    def window_total(self) -> int:
        return sum(self.window.tolist())

    @property
    def totals(self) -> list[int]:
        return [sum(self.outcomes)]

    @property
    def decisive_rows(self) -> tuple[int, int]:
        """Return the first and the last row, since means and inputs are both affine in the row."""
        return 0, self.last_row

    @property
    def slope(self) -> Fraction:
        """Return the derivative of the mean by the input: 1, or the window's share of the total if contracted."""
        return Fraction(self.window_total, self.total) if self.is_contracted else Fraction(1)

    @property
    def contracted(self) -> WindowTable:
        """Return the table with the same weights and its values contracted to the middle by the window's share."""
        return replace(self, is_contracted=True)

    def row(self, s: int) -> UInt64[np.ndarray, " codes"]:
        row = self.base.copy()
        row[s : s + len(self.window)] += self.window
        return row

    def row_moments(self, s: int) -> tuple[int, int]:
        (base1, base2), (window1, window2) = self._moments
        offset = 2 * s - self.last_row  # Of the window's middle, doubled.
        second = base2 + window2 + 2 * offset * window1 + offset**2 * self.window_total
        return base1 + window1 + offset * self.window_total, second

    @cached_property
    def _moments(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return ``moments`` of the base and of the window, each about its own middle."""
        width = len(self.window)
        base = moments(self.base.tolist(), self.doubled_offsets)
        return base, moments(self.window.tolist(), range(1 - width, width, 2))

    @cached_property
    def variance_terms(self) -> tuple[Fraction, Fraction, Fraction]:
        """Return (A, c, rho) with Var(x) = A + c (x - middle)^2 + r and 0 <= r <= rho, r the rounding between rows.

        With k = slope^2, row variances have c = k (total/window_total - 1), and rounding at a fraction f of the gap
        between two rows adds f (1 - f) (k + c) gap^2. With two rows this rounding is itself a parabola, and there is
        no other term.
        """
        half_span, k = self.last_row * self.row_spacing / 2, self.slope**2
        end = max(self.row_variance(0), self.row_variance(self.last_row))
        if self.last_row == 1:
            return end + k * half_span**2, -k, Fraction(0)
        c = k * (Fraction(self.total, self.window_total) - 1)
        return end - c * half_span**2, c, (k + c) * self.row_spacing**2 / 4

    @property
    def worst_variance(self) -> Fraction:
        return self.largest(self.variance_terms)

    def largest(self, terms: tuple[Fraction, Fraction, Fraction]) -> Fraction:
        """Return the largest A + c (x - middle)^2 + rho over the inputs."""
        A, c, rho = terms
        return A + max(Fraction(0), c * (self.last_row * self.row_spacing / 2) ** 2) + rho

    def extremes(self, row_distance: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the largest and smallest weight of every code over all rows, as Python integers."""
        pad = np.zeros(self.last_row, np.uint64)
        # Row s puts window[j - s] on code j; over s = 0..S these are S + 1 neighbours of the padded window.
        high, low = sliding_extremes(np.concatenate([pad, self.window, pad]), self.rows)
        base = self.base.astype(object)
        return base + high, base + low

    @cached_property
    def is_flat(self) -> bool:
        """Return whether both parts are constant: then two divisions sample it, without a table."""
        return bool((self.base == self.base[0]).all() and (self.window == self.window[0]).all())

    @property
    def falls(self) -> bool:
        """Return whether both parts are even and fall from their middles."""
        for weights in (self.window, self.base):
            outward = weights[len(weights) // 2 :]
            if (weights != weights[::-1]).any() or (outward[1:] > outward[:-1]).any():
                return False
        return True

    def kernel(self) -> Callable[[RealArray, RealArray], RealArray]:
        """Return the sampler, (random word of ``bits`` bits, row) -> code, both of one shape."""
        if self.is_flat:
            word = np.dtype(f"uint{self.bits}").type
            a, kappa, base_total = word(self.base[0]), word(self.window[0]), word(self.codes * int(self.base[0]))

            return lambda r, row: _divided(r, row, a, kappa, base_total)

        outcomes, n = alias_kernel(alias_columns(self.outcomes, self.bits)), np.int32(self.codes)

        return lambda r, row: _outcome_code(outcomes(r), row, n)

    def to_dict(self) -> Mapping[str, object]:
        ends = {"lower": self.lower, "upper": self.upper}
        return {"base": _runs(self.base), "window": _runs(self.window), "bits": self.bits, **ends}

    @classmethod
    def from_dict(cls, payload: JsonObject) -> WindowTable:
        """Return the table in a payload, after a check of types and sizes only."""
        base, window = (_from_runs(name, payload[name]) for name in ("base", "window"))
        lower, upper = (real(name, payload[name]) for name in ("lower", "upper"))
        return cls(base, window, integer("bits", payload["bits"]), lower, upper)


def _divided(r: RealArray, row: RealArray, a: Real, kappa: Real, base_total: Real) -> RealArray:
    """Return the code of a word: of a constant base of height a, and above its total of a window of height kappa."""
    in_base, in_window = (r // a).astype(np.int32), row + ((r - base_total) // kappa).astype(np.int32)
    return namespace(r).where(r < base_total, in_base, in_window)


def _outcome_code(outcome: RealArray, row: RealArray, n: RealArray | np.int32) -> RealArray:
    """Return the code of an outcome: one of the n of the base, or one of the window, which begins at the row."""
    return namespace(outcome).where(outcome < n, outcome, row + outcome - n)


def _runs(weights: UInt64[np.ndarray, " codes"]) -> list[list[int]]:
    starts = np.flatnonzero(np.concatenate([[True], weights[1:] != weights[:-1]]))
    counts = np.diff(np.append(starts, len(weights)))
    return [[int(value), int(count)] for value, count in zip(weights[starts], counts, strict=True)]


def _from_runs(name: str, runs: object) -> UInt64[np.ndarray, " codes"]:
    if type(runs) is not list or not 0 < len(runs) <= MAX_WEIGHTS:
        raise ValueError(f"{name}: needs runs of weights, {MAX_WEIGHTS} at most")
    values, counts = zip(*(integers(name, run, 2) for run in runs), strict=True)
    if min(counts) < 1 or sum(counts) > MAX_WEIGHTS:
        raise ValueError(f"{name}: has {sum(counts)} weights; {MAX_WEIGHTS} at most, every run one or more")
    return np.repeat(frozen_weights(values), counts)


class _OfWindow(BoundedCertificate):
    """The part of the certificates of window tables that serves the entries of a batch."""

    table: WindowTable
    table_type = WindowTable

    @proven("window_tables#proof-for-the-entries-of-a-batch")
    def refused_entries(self, claims: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return which entries have another budget or no interval; ratios and means do not depend on the interval."""
        return (claims["epsilon"] != self.epsilon) | ~checks.are_intervals(claims["lower"], claims["upper"])


class WindowCertificate(_OfWindow, kind="window"):
    """Verified facts about one window table whose means are the inputs; see ``BoundedCertificate``."""


class SquareWaveCertificate(_OfWindow, kind="placed window"):
    """Verified facts about a window table placed at the input: the mean lies between the input and the middle."""

    is_unbiased = False
    facts = tuple("slope" if name == "mean_error" else name for name in BoundedCertificate.facts)

    slope = property(attrgetter("table.slope"))

    @property
    def means(self) -> str:
        middle, slope = shortest(float(self.table.middle)), shortest(float(self.slope))
        return f"not the input: {middle} + {slope} (input - {middle}), biased towards the middle"

    @property
    def covers(self) -> str:
        return f"{COVERS} No mean is claimed: reports are biased."

    @classmethod
    def of(cls, table: WindowTable, epsilon: float, sensitivity: float | None = None) -> Self:  # type: ignore[override]
        """Verify the table with its values contracted; see ``BoundedCertificate.of``."""
        return super().of(table.contracted, epsilon, sensitivity)


class ExactWindow(BoundedSampler):
    """A mechanism that is one window table: windowed, square wave or two-point."""

    def values(self, outcomes: RealArray, dtype: np.dtype) -> RealArray:
        if isinstance(outcomes, np.ndarray):
            return self._values[np.dtype(dtype)].take(outcomes)
        return self.report_kernel(2 * outcomes - (self.table.codes - 1), dtype)

    def entry_parameters(self, claims: Mapping[str, np.ndarray]) -> WindowInterval:
        """Return the intervals of entries, by the arithmetic of one interval."""
        lower, upper = claims["lower"], claims["upper"]
        scale = self.table.slope * self.table.total / self.table.offset_rise
        pairs, inverse = np.unique(np.stack([lower, upper], -1), axis=0, return_inverse=True)
        centres, lengths = zip(*(_centre_and_length(low, high) for low, high in pairs.tolist()), strict=True)
        constants = np.stack([centres, *split_products(lengths, scale)])
        centre, coarse, fine = constants[:, inverse.ravel()]
        is_middle = centre == (lower + upper) * 0.5
        centre = np.where(is_middle, 0.0, centre)
        return WindowInterval(lower, upper, is_middle.astype(np.float64), centre, coarse, fine)

    def least_safe_radius(self, claims: Mapping[str, np.ndarray]) -> float:
        narrowest = float((claims["upper"] - claims["lower"]).min())
        return math.ldexp(narrowest / self.table.last_row, -self.fraction_bits - 10)

    @classmethod
    def stacked(cls, samplers: Sequence[ExactWindow]) -> StackedSampler:
        """Return the sampler of several tables; an entry's parameters are its interval, and its table's columns."""
        tables = [sampler.table for sampler in samplers]
        if len(tables) == 1:
            return StackedSampler(samplers[0]._interval_reports, (), interval=_interval)
        kernel_parameters, codes = _stacked_kernel(tables)
        bits = np.array([fraction_bits(table.last_row) for table in tables])
        steps = np.array([table.last_row for table in tables]) << bits
        last_code = np.array([table.codes - 1 for table in tables], np.int32)
        is_masked = (samplers[0].words[1].bits > bits).any()

        def reports(x: RealArray, words: Sequence[RealArray], entry: PyTree, table: PyTree) -> RealArray:
            (noise, rounding), (steps, bits, last_code, *columns), xp = words, table, namespace(x)
            interval = WindowInterval(*entry)
            factor = 2 * steps / (interval.upper - interval.lower)
            doubled = (x.astype(np.float64, copy=False) - interval.lower) * factor
            position = (xp.minimum(xp.maximum(doubled, 0.0), 2.0 * steps).astype(np.int64) + 1) >> 1
            low_bits = rounding.astype(np.int64)
            if is_masked:
                low_bits = low_bits & ((1 << bits) - 1)
            row = ((position + low_bits) >> bits).astype(np.int32)
            return interval.reports(2 * codes(noise, row, *columns) - last_code, x.dtype)

        return StackedSampler(reports, (steps, bits, last_code, *kernel_parameters), interval=_interval)

    def _interval_reports(self, x: RealArray, words: Sequence[RealArray], entry: PyTree, _: object) -> RealArray:
        (noise, rounding), interval = words, WindowInterval(*entry)
        rows = nearest_rows(x, rounding, self.table.last_row, interval.lower, interval.upper)
        return interval.reports(2 * self.kernel(noise, rows) - (self.table.codes - 1), x.dtype)

    @property
    def stack_key(self) -> tuple[object, ...]:
        return type(self), self.words, self.table.is_flat

    @cached_property
    def _values(self) -> dict[np.dtype, np.ndarray]:
        """Return the values of all codes: one look-up costs less than the formula."""
        doubled = np.array(self.table.doubled_offsets, np.int32)
        return {np.dtype(dtype): self.report_kernel(doubled, dtype) for dtype in (np.float32, np.float64)}


class WindowInterval(NamedTuple):
    """The interval of a table: arrays with a number for every value, or plain numbers where all have the same one.

    The report of the doubled offset d is centre + d (coarse + fine).
    """

    lower: RealArray
    upper: RealArray
    is_middle: RealArray  # 1.0 where the centre of the reports is the middle of the ends as floats, else 0.0.
    centre: RealArray  # The centre if it is not, else 0.
    coarse: RealArray
    fine: RealArray

    def reports(self, doubled: RealArray, dtype: np.dtype) -> RealArray:
        """Return the reports of doubled offsets, as ``report_kernel`` does."""
        codes = doubled.astype(np.float64)
        centre = (self.lower + self.upper) * 0.5 * self.is_middle + self.centre
        return ((codes * self.coarse + centre) + codes * self.fine).astype(dtype, copy=False)


def _interval(entry: Sequence[RealArray]) -> tuple[RealArray, RealArray]:
    return WindowInterval(*entry)[:2]


@lru_cache(maxsize=1 << 14)
def _centre_and_length(low: float, high: float) -> tuple[float, Fraction]:
    """Return the middle of an interval, whose ends are read as decimals, and its length."""
    first, last = rational(low), rational(high)
    return float((first + last) / 2), last - first


def _stacked_kernel(tables: Sequence[WindowTable]) -> tuple[tuple[np.ndarray, ...], Callable[..., RealArray]]:
    """Return the parameters of every table, and the sampler (word, row, parameters of each value's table) -> code."""
    if not tables[0].is_flat:
        columns = [alias_columns(table.outcomes, table.bits) for table in tables]
        outcomes, *alias_parameters = stacked_alias_kernel(columns)
        lengths = np.array([table.codes for table in tables], np.int32)

        def codes(r: RealArray, row: RealArray, start: RealArray, log_columns: RealArray, n: RealArray) -> RealArray:
            return _outcome_code(outcomes(r, start, log_columns), row, n)

        return (*alias_parameters, lengths), codes
    word = np.dtype(f"uint{tables[0].bits}").type
    heights = [np.array([getattr(table, name)[0] for table in tables], word) for name in ("base", "window")]
    base_totals = np.array([table.codes * int(table.base[0]) for table in tables], word)
    return (*heights, base_totals), _divided
