"""Integer tables of mechanisms on an interval, their certificates and their samplers, for windows and row by row.

A ``WindowTable`` has N output codes and S + 1 rows. Row s gives code j the weight

    base[j] + window[j - s],    0 <= j - s < w,    S = N - w,    total 2^bits for every s,

and code j stands for the value  middle + step (j - (N - 1)/2). A ``RowTable`` has n rows and m codes. Row i gives code
j the weight weights[i, j], total 2^bits for every row, and code j stands for the value  middle + step places[j].

The step follows from the rows' means, which are evenly spaced. An input between two rows' means is rounded to one of
them at random, so what holds for rows (mean, pure DP of any two inputs or of inputs within a sensitivity) holds for
inputs. The tables that are built here are proposals; ``BoundedCertificate.of`` decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import combinations, pairwise
from operator import attrgetter, mul
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from dpkernels import checks
from dpkernels.bounded_json import integer, real
from dpkernels.decimals import rational, shortest
from dpkernels.exact.bounded_certificate import BoundedCertificate, BoundedTable, sliding_extremes
from dpkernels.exact.certificate import (
    COVERS,
    MOST_WEIGHTS,
    CertificateError,
    exp_lower_bound,
    frozen_weights,
    integers,
    moments,
)
from dpkernels.exact.sampler import (
    ROW_ROUNDING_STREAM,
    AliasColumns,
    BoundedSampler,
    Stacked,
    alias_columns,
    alias_kernel,
    fraction_bits,
    report_constants,
    rounded_rows,
    stacked_alias_kernel,
    step_factor,
    take,
)
from dpkernels.jax_on_use import jnp, lax
from dpkernels.mechanisms.central_piecewise import CentralPiecewise
from dpkernels.mechanisms.optimal.mechanism import FILES, Optimal, digest
from dpkernels.mechanisms.two_point import TwoPoint
from dpkernels.mechanisms.windowed.bases import Constant
from dpkernels.mechanisms.windowed.mechanism import SquareWave, Windowed, height_at, relative_height
from dpkernels.mechanisms.windowed.windows import Uniform
from dpkernels.numerics import Real, RealArray, namespace
from dpkernels.proven import proven

_MOST_ROWS = 1 << 13  # The largest number of rows that is read. Tables built here have fewer.
_LARGEST_PLACE = 1 << 30  # The sampler holds places as int32, and twice a place must fit.


@proven("window_tables#proof")
@dataclass(frozen=True, eq=False)
class WindowTable(BoundedTable):
    """Integer weights of a windowed mechanism."""

    base: np.ndarray  # N weights, uint64, the same for every row.
    window: np.ndarray  # w weights, uint64, placed at code s by row s.
    bits: int
    lower: float
    upper: float
    is_placed: bool = False  # The window's middle is the input itself, so means are nearer to the middle by ``slope``.

    def __post_init__(self) -> None:
        for name in ("base", "window"):
            object.__setattr__(self, name, frozen_weights(getattr(self, name)))

    @property
    def shifts(self) -> int:
        return len(self.base) - len(self.window)

    @property
    def doubled_places(self) -> range:
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
        return 0, self.shifts

    @property
    def slope(self) -> Fraction:
        """Return the derivative of the mean by the input: 1, or the window's share of the total if it is placed."""
        return Fraction(self.window_total, self.total) if self.is_placed else Fraction(1)

    @property
    def placed(self) -> WindowTable:
        """Return the table with the same weights and its values contracted to the middle by the window's share."""
        return replace(self, is_placed=True)

    def row(self, s: int) -> np.ndarray:
        row = self.base.copy()
        row[s : s + len(self.window)] += self.window
        return row

    def row_moments(self, s: int) -> tuple[int, int]:
        (base1, base2), (window1, window2) = self._moments
        away = 2 * s - self.shifts  # Of the window's middle, in doubled places.
        second = base2 + window2 + 2 * away * window1 + away**2 * self.window_total
        return base1 + window1 + away * self.window_total, second

    @cached_property
    def _moments(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return ``moments`` of the base and of the window, each about its own middle."""
        width = len(self.window)
        base = moments(self.base.tolist(), self.doubled_places)
        return base, moments(self.window.tolist(), range(1 - width, width, 2))

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

    def extremes(self, row_distance: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the largest and smallest weight of every code over all rows, as Python integers."""
        pad = np.zeros(self.shifts, np.uint64)
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

        return lambda r, row: _code_of(outcomes(r), row, n)

    def to_dict(self) -> dict[str, Any]:
        ends = {"lower": self.lower, "upper": self.upper}
        return {"base": _runs(self.base), "window": _runs(self.window), "bits": self.bits, **ends}

    @classmethod
    def from_dict(cls, payload: dict[str, Any]) -> WindowTable:
        """Return the table in a payload, after a check of types and sizes only."""
        base, window = (_from_runs(name, payload[name]) for name in ("base", "window"))
        lower, upper = (real(name, payload[name]) for name in ("lower", "upper"))
        return cls(base, window, integer("bits", payload["bits"]), lower, upper)


def _divided(r: RealArray, row: RealArray, a: Real, kappa: Real, base_total: Real) -> RealArray:
    """Return the code of a word: of a constant base of height a, and above its total of a window of height kappa."""
    in_base, in_window = (r // a).astype(np.int32), row + ((r - base_total) // kappa).astype(np.int32)
    return namespace(r).where(r < base_total, in_base, in_window)


def _code_of(outcome: RealArray, row: RealArray, n: Any) -> RealArray:
    """Return the code of an outcome: one of the n of the base, or one of the window, which begins at the row."""
    return namespace(outcome).where(outcome < n, outcome, row + outcome - n)


def _runs(weights: np.ndarray) -> list[list[int]]:
    starts = np.flatnonzero(np.concatenate([[True], weights[1:] != weights[:-1]]))
    counts = np.diff(np.append(starts, len(weights)))
    return [[int(value), int(count)] for value, count in zip(weights[starts], counts, strict=True)]


def _from_runs(name: str, runs: object) -> np.ndarray:
    if type(runs) is not list or not 0 < len(runs) <= MOST_WEIGHTS:
        raise ValueError(f"{name}: needs runs of weights, {MOST_WEIGHTS} at most")
    values, counts = zip(*(integers(name, run, 2) for run in runs), strict=True)
    if min(counts) < 1 or sum(counts) > MOST_WEIGHTS:
        raise ValueError(f"{name}: has {sum(counts)} weights; {MOST_WEIGHTS} at most, every run one or more")
    return np.repeat(frozen_weights(values), counts)


class _OfWindow(BoundedCertificate):
    """The part of the certificates of window tables that serves the entries of a batch."""

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
        """Verify the table with its values placed; see ``BoundedCertificate.of``."""
        return super().of(table.placed, epsilon, sensitivity)


class ExactWindow(BoundedSampler):
    """A mechanism that is one window table: windowed, square wave or two-point."""

    def values(self, outcomes: RealArray, dtype: np.dtype) -> RealArray:
        if isinstance(outcomes, np.ndarray):
            return self._values[np.dtype(dtype)].take(outcomes)
        return self.reports_at(2 * outcomes - (self.table.codes - 1), dtype)

    def entry_places(self, claims: Mapping[str, np.ndarray]) -> WindowPlace:
        """Return the places of the table on the intervals of entries, by the arithmetic of one interval."""
        lower, upper = claims["lower"], claims["upper"]
        table, scale = self.table, self.table.slope * self.table.total / self.table.rise
        pairs, inverse = np.unique(np.stack([lower, upper], -1), axis=0, return_inverse=True)
        constants = [report_constants((low + high) / 2, (high - low) * scale) for low, high in _decimals(pairs)]
        columns = np.array(constants).reshape(-1, 3)[inverse.ravel()].T
        return WindowPlace(lower, step_factor(table.shifts, lower, upper), *columns)

    def safe_radius_of(self, claims: Mapping[str, np.ndarray]) -> float:
        narrowest = float((claims["upper"] - claims["lower"]).min())
        return math.ldexp(narrowest / self.table.shifts, -self.fraction_bits - 10)

    @classmethod
    def stacked(cls, samplers: Sequence[ExactWindow]) -> Stacked:
        """Return the reports of several tables; the numbers of an entry are its place, and its table's columns."""
        tables = [sampler.table for sampler in samplers]
        if len(tables) == 1:
            return Stacked(samplers[0]._placed_reports, ())
        numbers, codes = _stacked_kernel(tables)
        bits = np.array([fraction_bits(table.shifts) for table in tables])
        steps = np.array([table.shifts for table in tables]) << bits
        far = np.array([table.codes - 1 for table in tables], np.int32)
        is_masked = (samplers[0].words[1].bits > bits).any()

        def reports(x: RealArray, words: Sequence[RealArray], place: Any, table: Any) -> RealArray:
            (noise, rounding), (steps, bits, far, *columns), xp = words, table, namespace(x)
            place = WindowPlace(*place)
            doubled = (x.astype(np.float64, copy=False) - place.first) * place.factor
            position = (xp.minimum(xp.maximum(doubled, 0.0), 2.0 * steps).astype(np.int64) + 1) >> 1
            low_bits = rounding.astype(np.int64)
            if is_masked:
                low_bits = low_bits & ((1 << bits) - 1)
            row = ((position + low_bits) >> bits).astype(np.int32)
            doubled_code = 2 * codes(noise, row, *columns) - far
            return place.reports(doubled_code, x.dtype)

        return Stacked(reports, (steps, bits, far, *numbers))

    def _placed_reports(
        self,
        x: RealArray,
        words: Sequence[RealArray],
        place: tuple[RealArray, RealArray, RealArray, RealArray, RealArray],
        _: object,
    ) -> RealArray:
        (noise, rounding), place = words, WindowPlace(*place)
        rows = rounded_rows(x, rounding, self.table.shifts, place.first, place.factor)
        return place.reports(2 * self.kernel(noise, rows) - (self.table.codes - 1), x.dtype)

    @property
    def stack(self) -> tuple[Any, ...]:
        return type(self), self.words, self.table.is_flat

    @cached_property
    def _values(self) -> dict[np.dtype, np.ndarray]:
        """Return the values of all codes: one look-up costs less than the formula."""
        doubled = np.array(self.table.doubled_places, np.int32)
        return {np.dtype(dtype): self.reports_at(doubled, dtype) for dtype in (np.float32, np.float64)}


class WindowPlace(NamedTuple):
    """Where a window table is: arrays with a number for every value."""

    first: Any
    factor: Any  # Of the distance from the first input to doubled steps.
    centre: Any
    coarse: Any
    fine: Any

    def reports(self, doubled: RealArray, dtype: np.dtype) -> RealArray:
        """Return the reports of doubled places, as ``report_kernel`` does."""
        codes = doubled.astype(np.float64)
        return ((codes * self.coarse + self.centre) + codes * self.fine).astype(dtype, copy=False)


def _decimals(pairs: np.ndarray) -> Iterator[tuple[Fraction, Fraction]]:
    return ((rational(low), rational(high)) for low, high in pairs.tolist())


def _stacked_kernel(tables: Sequence[WindowTable]) -> tuple[tuple[np.ndarray, ...], Callable[..., RealArray]]:
    """Return the numbers of every table, and the sampler (word, row, numbers of each value's table) -> code."""
    if not tables[0].is_flat:
        columns = [alias_columns(table.outcomes, table.bits) for table in tables]
        outcomes, *numbers = stacked_alias_kernel(columns)
        lengths = np.array([table.codes for table in tables], np.int32)

        def codes(r: RealArray, row: RealArray, start: int, log_columns: int, n: int) -> RealArray:
            return _code_of(outcomes(r, start, log_columns), row, n)

        return (*numbers, lengths), codes
    word = np.dtype(f"uint{tables[0].bits}").type
    heights = [np.array([getattr(table, name)[0] for table in tables], word) for name in ("base", "window")]
    base_totals = np.array([table.codes * int(table.base[0]) for table in tables], word)
    return (*heights, base_totals), _divided


@proven("row_mixtures#proof")
@dataclass(frozen=True, eq=False)
class RowTable(BoundedTable):
    """Integer weights of a mechanism row by row."""

    weights: np.ndarray  # uint64, of shape (n, m).
    places: tuple[int, ...]  # m increasing integers.
    bits: int
    first: float  # The mean of row 0, at most ``lower``.
    last: float  # The mean of row n - 1, at least ``upper``.
    lower: float
    upper: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", frozen_weights(self.weights))
        object.__setattr__(self, "places", tuple(int(place) for place in self.places))

    @property
    def ends(self) -> tuple[float, float]:
        return self.first, self.last

    @property
    def shifts(self) -> int:
        return len(self.weights) - 1

    @cached_property
    def doubled_places(self) -> list[int]:
        return [2 * place for place in self.places]

    @cached_property
    def totals(self) -> list[int]:
        return [sum(row) for row in self.weights.tolist()]

    def row_moments(self, s: int) -> tuple[int, int]:
        return self._moments[s]

    @cached_property
    def _moments(self) -> list[tuple[int, int]]:
        return [moments(row, self.doubled_places) for row in self.weights.tolist()]

    @cached_property
    def worst_variance(self) -> Fraction:
        variances = [self.row_variance(s) for s in range(self.rows)]
        squared, largest = self.gap**2, Fraction(0)
        begin, end = ((rational(x) - rational(self.first)) / self.gap for x in (self.lower, self.upper))
        for i in range(math.floor(begin), math.ceil(end)):
            A, B = variances[i : i + 2]
            f = min(Fraction(1), end - i, max(Fraction(0), begin - i, (1 + (B - A) / squared) / 2))
            largest = max(largest, (1 - f) * A + f * B + f * (1 - f) * squared)
        return largest

    def check(self) -> None:
        super().check()
        places = self.places
        if any(b <= a for a, b in pairwise(places)) or self.weights.shape != (self.rows, len(places)):
            raise CertificateError("places: are not increasing, one a code")
        if max(abs(places[0]), abs(places[-1])) > _LARGEST_PLACE:
            raise CertificateError(f"places: {places[0]} to {places[-1]} are not within 2^30")
        if not rational(self.first) <= rational(self.lower) < rational(self.upper) <= rational(self.last):
            raise CertificateError(
                f"inputs: the rows from {shortest(self.first)} to {shortest(self.last)} do not hold the interval "
                f"[{shortest(self.lower)}, {shortest(self.upper)}]"
            )

    def rows_apart(self, sensitivity: float | None) -> int:
        """Return the largest distance of neighbours in rows; all of them if any two inputs are neighbours."""
        if sensitivity is None:
            return self.shifts
        checks.sensitivity(sensitivity)
        steps = 1 << fraction_bits(self.shifts)
        # Far from 0 the gap between these floats is not that between their decimals.
        gap = (Fraction(self.last) - Fraction(self.first)) / self.shifts
        return min(self.shifts, math.ceil((rational(sensitivity) * steps / gap + 1) / steps))

    def extremes(self, row_distance: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the largest and smallest weight of every code over ``row_distance`` + 1 adjacent rows, as uint64."""
        return sliding_extremes(self.weights, min(row_distance, self.shifts) + 1)

    def kernel(self) -> Callable[[RealArray, RealArray], RealArray]:
        """Return the sampler, (random word of ``bits`` bits, row) -> place, both of one shape."""
        by_column, by_triple = lookups(self)

        def sampled(r: RealArray, row: RealArray) -> RealArray:
            if isinstance(r, np.ndarray):
                return by_column(r, row)
            return lax.platform_dependent(r, row, cuda=by_triple, default=by_column)

        return sampled

    def to_dict(self) -> dict[str, Any]:
        ends = {name: getattr(self, name) for name in ("first", "last", "lower", "upper")}
        return {"weights": self.weights.tolist(), "places": list(self.places), "bits": self.bits, **ends}

    @classmethod
    def from_dict(cls, payload: dict[str, Any]) -> RowTable:
        """Return the table in a payload, after a check of types and sizes only."""
        rows, places = payload["weights"], integers("places", payload["places"], MOST_WEIGHTS)
        if type(rows) is not list or not 0 < len(rows) <= _MOST_ROWS or len(rows) * len(places) > MOST_WEIGHTS:
            raise ValueError(f"weights: needs 1 to {_MOST_ROWS} rows of {len(places)}, {MOST_WEIGHTS} weights at most")
        if any(len(integers("weights", row, len(places))) != len(places) for row in rows):
            raise ValueError(f"weights: not all rows have {len(places)}")
        ends = (real(name, payload[name]) for name in ("first", "last", "lower", "upper"))
        return cls(frozen_weights(rows), tuple(places), integer("bits", payload["bits"]), *ends)


class RowCertificate(BoundedCertificate, kind="rows"):
    """Verified facts about one row table. The sensitivity is None if any two inputs are neighbours."""

    facts = (*BoundedCertificate.facts, "sensitivity", "cells")
    parts: ClassVar[Mapping[str, str]] = {"row_table": "table"}

    table_type = RowTable


class ExactRows(BoundedSampler):
    """An exact sampler of a mechanism that is given row by row: one alias table for each row."""

    short_rounding_stream = ROW_ROUNDING_STREAM  # Most have fewer rows, and words of 32 bits.

    def values(self, outcomes: RealArray, dtype: np.dtype) -> RealArray:
        return self.reports_at(2 * outcomes, dtype)


def lookups(table: RowTable) -> tuple[Callable[..., RealArray], Callable[..., RealArray]]:
    """Return two samplers with the same output: by separate look-ups, and by look-ups of triples."""
    rows = [alias_columns(row, table.bits) for row in table.weights.tolist()]
    log_columns, packed = rows[0].log_columns, np.concatenate([columns.packed for columns in rows])
    outcomes = alias_kernel(AliasColumns(packed, log_columns, table.bits))
    word, last = packed.dtype.type, (1 << log_columns) - 1
    # Padding columns have no weight of their own, so their place is never read.
    places = np.zeros(1 << log_columns, np.int32)
    places[: table.codes] = table.places
    others = np.concatenate([places[columns.alias] for columns in rows])
    triples = np.stack([array.astype(word) for array in (packed, np.tile(places, len(rows)), others)], -1)

    # Faster on a CPU; triples are on a GPU, where each look-up is a pass through memory.
    def by_column(r: RealArray, row: RealArray) -> RealArray:
        return take(places, outcomes(r, row))

    def by_triple(r: RealArray, row: RealArray) -> RealArray:
        index = (row << np.int32(log_columns)) + (r >> word(table.bits - log_columns)).astype(np.int32)
        triple = take(triples, index)
        is_own = (r << word(log_columns) | word(last)) < triple[..., 0]
        return jnp.where(is_own, triple[..., 1], triple[..., 2]).astype(np.int32)

    return by_column, by_triple


# A table is accepted if its variances are within this of the mechanism's, relatively.
_ACCEPTED_DEVIATION = 2e-4
# Its window height has to be within this, relatively, which determines its width as well.
_HEIGHT_TOLERANCE = 0.005
# If no table is accepted, the best one is used if its variances are within this: ``estimate_mean`` allows for it.
PROMISED_DEVIATION = 1e-3
# Cell masses come from float64 cdfs; this share of the window's height makes their rounding conservative.
_SLACK = 1e-8

# Whether two divisions sample the table (else alias columns), log2 of its total, the most codes: cheapest first.
_ORDER = (
    (True, 32, 1 << 12),
    (False, 32, 1 << 12),
    (False, 32, 1 << 14),
    (True, 64, 1 << 14),
    (False, 64, 1 << 14),
    (True, 64, 1 << 17),
    (False, 64, 1 << 17),
)
_MOST_CODES = 1 << 17  # Of the last candidates.
_FEWEST_ROWS = 1 << 8  # With fewer, rounding an input among them would need more than 16 bits.


def two_point_table(mechanism: TwoPoint, bits: int = 32) -> WindowTable:
    """Return Duchi's mechanism as two codes and a window of one: 2 a + kappa = 2^bits, (a + kappa)/a <= e^eps."""
    total = 1 << bits
    a = math.ceil(total / (1 + exp_lower_bound(mechanism.epsilon)))
    base, window = np.full(2, a, np.uint64), np.full(1, total - 2 * a, np.uint64)
    return WindowTable(base, window, bits, float(mechanism.lower), float(mechanism.upper))


@proven("window_tables#proof")
def windowed_table(
    mechanism: Windowed, bits: int | None = None, codes: int | None = None, half_width: float | None = None
) -> WindowTable:
    """Return the first table, from the cheapest to sample up, that is faithful to a windowed mechanism.

    Its variances, and the window's half width in widths of the interval if that is given, are near the mechanism's.
    With ``codes``, any deviation is accepted, of a table with at most this many codes and the total 2^bits. A
    CertificateError says that the mechanism's height is not private at its epsilon, or that no table is near enough.
    """
    interval = {"lower": float(mechanism.lower), "upper": float(mechanism.upper)}
    mechanism = mechanism.on_unit()  # So that the weights do not depend on the interval.
    relative, best_deviation = _permitted_height(mechanism), math.inf
    best: Any = None
    is_flat = isinstance(mechanism.window, Uniform) and isinstance(mechanism.base, Constant)
    order = _ORDER if codes is None else ((True, bits or 32, codes), (False, bits or 32, codes))
    for divides, table_bits, limit in order:
        if divides and not is_flat:
            continue
        for table in (_flat_tables if divides else _cell_tables)(mechanism, relative, table_bits, limit):
            height = float(table.window.max() / table.base.max()) / mechanism.relative_height
            if codes is None and (table.shifts < _FEWEST_ROWS or height < 1 - _HEIGHT_TOLERANCE):
                continue
            off = _deviation(mechanism, table)
            if half_width is not None:
                off = max(off, abs(len(table.window) / table.shifts / 2 / half_width - 1))
            if off < best_deviation:
                best, best_deviation = table, off
            if not divides and best_deviation <= _ACCEPTED_DEVIATION:
                return replace(best, **interval)
        if best_deviation <= _ACCEPTED_DEVIATION:
            return replace(best, **interval)
    if best is None or (codes is None and best_deviation > PROMISED_DEVIATION):
        raise CertificateError(
            f"lattice: no table of at most {_MOST_CODES} codes and at least {_FEWEST_ROWS} rows has the variance of a "
            f"window of width {shortest(mechanism.width)} at epsilon {shortest(mechanism.epsilon)} to within "
            f"{PROMISED_DEVIATION}"
        )
    return replace(best, **interval)


def placed_table(mechanism: SquareWave, bits: int | None = None, codes: int | None = None) -> WindowTable:
    """Return ``windowed_table`` of the unbiased counterpart, of the same width, with values moved to the middle."""
    return windowed_table(mechanism.unbiased, bits, codes, mechanism.half_width).placed


def _deviation(mechanism: Windowed, table: WindowTable) -> float:
    """Return the relative difference of the worst-case or central variance, the larger, for choosing among tables."""
    total, n, w, span = float(table.total), table.codes, len(table.window), table.upper - table.lower
    base, window = table.base.astype(float) / total, table.window.astype(float) / total
    mass = window.sum()
    second = base @ (np.arange(n) - (n - 1) / 2) ** 2 + window @ (np.arange(w) - (w - 1) / 2) ** 2
    central = (second / mass**2 + 1 / (4 * mass)) * (span / table.shifts) ** 2
    worst = central + (1 / mass - 1) * span**2 / 4
    return float(max(central / mechanism.central_variance - 1, abs(worst / mechanism.worst_variance - 1)))


def _permitted_height(mechanism: Windowed) -> Fraction | float:
    """Return the mechanism's ratio k / y, or infinity where it is the largest private one; refuse a larger one."""
    ratio = mechanism.relative_height
    best = relative_height(mechanism.window, mechanism.base, mechanism.width, mechanism.epsilon, "pointwise")
    if ratio > best * (1 + 1e-9):
        raise CertificateError(
            f"relative_height: {shortest(ratio)} is {ratio / best - 1:.3g} above what epsilon "
            f"{shortest(mechanism.epsilon)} allows"
        )
    return math.inf if ratio >= best * (1 - 1e-9) else Fraction(float(ratio))


def _flat_tables(mechanism: Windowed, relative: Fraction | float, bits: int, limit: int) -> Iterator[WindowTable]:
    """Yield solutions of N a + w kappa = 2^bits with N = 2^g p, w = 2^g q and p - q = 2^h, w/N near m/2.

    Then p a + q kappa = 2^(bits-g) fixes a modulo q, S = 2^(g+h) is a power of two, and the smallest a with
    kappa / a <= e^eps - 1 wastes at most q/a of the ratio.
    """
    largest, share = min(exp_lower_bound(mechanism.epsilon) - 1, relative), mechanism.width / 2
    for h in range(18):
        near = (int(share / (1 - share) * 2**h) - 1) | 1
        for q in {odd for odd in (near - 2, near, near + 2, near + 4) if odd > 0}:
            p = q + 2**h
            for g in range(max(0, limit.bit_length() - p.bit_length() - 4), bits):
                if p << g > limit:
                    break
                total = 1 << (bits - g)
                least_base = math.ceil(total / (p + q * largest))
                a = least_base + (total * pow(p, -1, q) - least_base) % q
                kappa = (total - p * a) // q
                if a > 0 and kappa > 0:
                    base, window = np.full(p << g, a, np.uint64), np.full(q << g, kappa, np.uint64)
                    yield WindowTable(base, window, bits, float(mechanism.lower), float(mechanism.upper))


def _cell_tables(mechanism: Windowed, relative: Fraction | float, bits: int, limit: int) -> Iterator[WindowTable]:
    """Yield tables of cell masses, one per octave of codes up to ``limit``, with w/N nearest to m/2 in the octave."""
    for octave in range(max(4, limit.bit_length() - 5), limit.bit_length()):
        codes = np.arange(1 << octave, min(limit, (2 << octave) - 1) + 1, 2)
        window_codes = 2 * np.round(mechanism.width * codes / 4)  # Even, so that the window mirrors like the base.
        nearest = int(np.argmin(np.abs(window_codes / codes - mechanism.width / 2)))
        table = _cell_table(mechanism, relative, bits, int(codes[nearest]), int(window_codes[nearest]))
        if table is not None:
            yield table


@proven("window_tables#proof")
def _cell_table(
    mechanism: Windowed, relative: Fraction | float, bits: int, codes: int, window_codes: int
) -> WindowTable | None:
    """Return cell masses as integers: the window's rounded down, the base's up, the remainder added to the base.

    Weight added to the base of a code raises no ratio. Where every row's window covers a code, rounding can lower the
    smaller side by one; E/(E - 1) more in the base, E = e^eps, make up for it (docs/proofs/window_tables.md).
    """
    h, g, half = mechanism.window, mechanism.base, codes // 2
    if not 2 <= window_codes <= codes - 2:
        return None
    width = 2 * window_codes / codes
    best = relative_height(h, g, width, mechanism.epsilon, "pointwise") * (1 - _SLACK)
    height = height_at(float(min(relative, best)), h, g, width)
    window_mass = h.area * height * width
    is_covered = window_codes > codes - window_codes
    pad = math.ceil(1 / -math.expm1(-mechanism.epsilon)) if is_covered else 0
    scale = float((1 << bits) - (2 + pad) * codes)
    # The lower halves of both; the upper ones mirror them.
    base = np.diff(g.cdf(np.linspace(-1, 0, half + 1))) * ((1 - window_mass) * scale)
    window = np.diff(h.cdf(np.linspace(0, 0.5, window_codes // 2 + 1))) * (window_mass * scale)
    base, window = np.ceil(base).astype(np.uint64), np.floor(window).astype(np.uint64)
    spare = (1 << (bits - 1)) - sum(base.tolist()) - sum(window.tolist())
    if spare < 0 or not window.any():
        return None
    base += np.uint64(spare // half)
    base[half - spare % half :] += np.uint64(1)
    base, window = np.append(base, base[::-1]), np.append(window, window[::-1])
    return WindowTable(base, window, bits, float(mechanism.lower), float(mechanism.upper))


# The relative changes of a weight by rounding and repair; the linear program leaves a larger share of e^eps unused.
_MOST_CHANGE = 1e-7
_FINE = 120  # Probabilities are read to 2^-120.
_MOVED = 24  # The number of heaviest weights of a row between which repairs move units.


def row_table(mechanism: Optimal, bits: int) -> RowTable:
    """Return integer weights near a mechanism's probabilities: every row sums to 2^bits, means are evenly spaced."""
    probabilities, places = np.asarray(mechanism.probabilities, np.float64), mechanism.places
    n, total = len(probabilities), 1 << bits
    unit = math.gcd(*(place - places[0] for place in places))
    # Means are multiples of unit/2^bits places, up to an offset that is 0 for symmetric places.
    slope = unit * round(Fraction(float(mechanism.step)) / Fraction(float(mechanism.spacing)) * total / unit)
    rows = []
    for i, row in enumerate(probabilities.tolist()):
        # Cumulative sums are right to within 1/2, so that the mean is nearly right.
        weights, carried, shift = [], 0, _FINE - bits
        for p in row:
            carried += int(math.ldexp(p, _FINE))
            weights.append((carried + (1 << shift - 1)) >> shift)
            carried -= weights[-1] << shift
        short = slope * (i - (n - 1) // 2) - sum(map(mul, weights, places))
        rows.append(_repaired(weights, places, total - sum(weights), short, unit))
    lower, upper, reach = (float(value) for value in (mechanism.lower, mechanism.upper, mechanism.reach))
    within = 2 * reach <= (upper - lower) * (1 + 1e-12)
    ends = (lower, upper) if within else outer_ends(lower, upper, Fraction(reach))
    return RowTable(np.array(rows, np.uint64), places, bits, *ends, lower, upper)


def outer_ends(lower: float, upper: float, reach: Fraction) -> tuple[float, float]:
    """Return floats outside the interval, at least ``reach`` from its middle: rows are never nearer than intended."""
    middle = (rational(lower) + rational(upper)) / 2
    first, last = float(middle - reach), float(middle + reach)
    if first > middle - reach:
        first = math.nextafter(first, -math.inf)
    if last < middle + reach:
        last = math.nextafter(last, math.inf)
    return min(first, lower), max(last, upper)


def _repaired(weights: list[int], places: tuple[int, ...], missing: int, short: int, unit: int) -> list[int]:
    """Add ``missing`` to the sum and ``short`` to the sum of weight times place, in small shares of large weights."""
    changed = list(weights)
    # The heaviest columns, enough that moves between them can change a mean by one unit.
    columns, count = sorted(range(len(places)), key=weights.__getitem__, reverse=True), _MOVED
    while math.gcd(*(places[j] - places[columns[0]] for j in columns[:count])) > unit:
        count *= 2
    heavy = columns[:count]
    changed[heavy[0]] += missing
    short -= missing * places[heavy[0]]
    # For every gap the pair of columns whose lighter one is heaviest: its weight, and both columns.
    by_gap: dict[int, tuple[int, int, int]] = {}
    for a, b in combinations(sorted(heavy), 2):
        gap, weight = places[b] - places[a], min(weights[a], weights[b])
        if weight > by_gap.get(gap, (-1,))[0]:
            by_gap[gap] = weight, a, b
    far = max(by_gap, key=lambda gap: gap * by_gap[gap][0])
    moves = {far: math.trunc(Fraction(short, far))}
    for gap in _moves(short - far * moves[far], tuple(sorted(by_gap))):
        moves[abs(gap)] = moves.get(abs(gap), 0) + (1 if gap > 0 else -1)
    for gap, count in moves.items():
        _, a, b = by_gap[gap]
        changed[a] -= count
        changed[b] += count
    for j, (before, after) in enumerate(zip(weights, changed, strict=True)):
        if abs(after - before) > max(1, _MOST_CHANGE * before) or after <= 0:
            raise CertificateError(f"rows: a weight of {before} at place {places[j]} would have to become {after}")
    return changed


@lru_cache(maxsize=1 << 12)
def _moves(remainder: int, gaps: tuple[int, ...]) -> tuple[int, ...]:
    """Return the fewest gaps, with signs, that add up to the remainder, by breadth-first search."""
    farthest = 2 * max(gaps[-1], abs(remainder))
    paths: dict[int, tuple[int, ...]] = {0: ()}
    ends = [0]
    while ends and remainder not in paths:
        new_paths: dict[int, tuple[int, ...]] = {}
        for end in ends:
            for gap in (*gaps, *(-gap for gap in gaps)):
                if abs(end + gap) <= farthest and end + gap not in paths:
                    new_paths.setdefault(end + gap, (*paths[end], gap))
        paths |= new_paths
        ends = list(new_paths)
    if remainder not in paths:
        raise CertificateError(f"rows: a mean is off by {remainder}, which moves between places cannot repair")
    return paths[remainder]


# Between these numbers of cells of a sensitivity one is tried each.
_CELLS = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192)
# A margin, in cells, for rounding inputs to 2^16 steps a row.
_MARGIN = Fraction(1, 1 << 15)


def central_certificate(mechanism: CentralPiecewise) -> RowCertificate:
    """Return that of the coarsest table with a variance within 0.1 % of the mechanism's, at 32 or 64 bits a word."""
    variance, (span, D) = float(mechanism.worst_variance), _span_and_sensitivity(mechanism)
    for ends in pairwise(_CELLS):
        # The number whose whole cells reach the least beyond the interval.
        count = min(range(*ends), key=lambda count: math.ceil(span / D / 2 * count) / (span / D / 2 * count))
        for bits in (32, 64):
            table = central_table(mechanism, count, bits)
            if table is None or abs(float(table.worst_variance) / variance - 1) > PROMISED_DEVIATION:
                continue
            return RowCertificate.of(table, mechanism.epsilon, mechanism.sensitivity)
    raise CertificateError(
        f"rows: no table of at most {MOST_WEIGHTS} weights out of 2^64 has the variance of {mechanism.steps} steps, "
        f"each e^{shortest(mechanism.epsilon)} times the last, to within {PROMISED_DEVIATION}; fewer steps may"
    )


def _span_and_sensitivity(mechanism: CentralPiecewise) -> tuple[Fraction, Fraction]:
    lower, upper, D = (rational(float(v)) for v in (mechanism.lower, mechanism.upper, mechanism.sensitivity))
    return upper - lower, D


def central_table(mechanism: CentralPiecewise, resolution: int, bits: int) -> RowTable | None:
    """Return integer weights with steps of ``resolution`` codes and one row a cell, or None if they do not fit."""
    span, D = _span_and_sensitivity(mechanism)
    shifts = 2 * math.ceil(span * resolution / D / 2)
    gap = max(D / (resolution - _MARGIN), span / shifts)
    core = max(1, round(float(mechanism.core * span / gap)))
    widths = [core + 2 * resolution * k for k in range(mechanism.steps)]
    codes = shifts + widths[-1]
    if codes * (shifts + 1) > MOST_WEIGHTS:
        return None
    # The step that every cell of the window is on, counted inwards.
    window = sum(np.pad(np.ones(width, np.int64), (widths[-1] - width) // 2) for width in widths)
    outside_and_steps = [shifts, *np.bincount(window)[1:].tolist()]
    levels = _levels(mechanism.epsilon, outside_and_steps, 1 << bits)
    if levels is None:
        return None
    heights = np.array(levels, np.uint64)[window]
    # The outer level at every code, and what is left of the total on top, symmetric.
    left, extra = divmod((1 << bits) - levels[0] * shifts - sum(heights.tolist()), codes)
    base, edge = np.full(codes, levels[0] + left, np.uint64), (codes - extra) // 2
    base[edge : codes - edge] += np.uint64(1)
    base[codes // 2] -= np.uint64(codes - 2 * edge - extra)  # An even number of codes about a middle one leaves it out.
    weights = np.stack([base + np.pad(heights - np.uint64(levels[0]), (i, shifts - i)) for i in range(shifts + 1)])
    interval = float(mechanism.lower), float(mechanism.upper)
    ends = outer_ends(*interval, gap * shifts / 2)
    return RowTable(weights, tuple(range(1 - codes, codes, 2)), bits, *ends, *interval)


def _levels(epsilon: float, counts: list[int], total: int) -> list[int] | None:
    """Return weights of a code outside the window and on each step inwards, for the highest core that fits."""
    E = exp_lower_bound(float(epsilon))

    def levels(core: int) -> list[int]:
        weights = [core]
        for _ in counts[1:]:
            # Rounded up: so no ratio is above e^eps, and far steps that the total is too coarse for share its unit.
            weights.append(math.ceil(weights[-1] / E))
        return weights[::-1]

    low, high = 0, total
    while high - low > 1:
        middle = (low + high) // 2
        fits = sum(map(mul, levels(middle), counts)) <= total
        low, high = (middle, high) if fits else (low, middle)
    return levels(low) if low > 0 else None


def optimal_certificate(mechanism: Optimal) -> RowCertificate:
    """Return the certificate with words of 32 bits, or of 64 where weights out of 2^32 would be too coarse."""
    claim = float(mechanism.epsilon), None if mechanism.sensitivity is None else float(mechanism.sensitivity)
    with suppress(CertificateError):
        return RowCertificate.of(row_table(mechanism, 32), *claim)
    try:
        return RowCertificate.of(row_table(mechanism, 64), *claim)
    except CertificateError as error:
        if path := FILES.get(digest(mechanism.probabilities)):
            raise CertificateError(f"{error}; the table was read from {path}: delete it to solve it again") from error
        raise
