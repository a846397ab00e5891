"""Row tables: integer weights of mechanisms that are given row by row, their certificate and their sampler.

A ``RowTable`` has n rows and m codes. Row i gives code j the weight weights[i, j], total 2^bits for every row, and code
j stands for the value  middle + step places[j].  The step follows from the rows' means, which are evenly spaced from
``first`` to ``last``. An input between two rows is rounded to one of them at random, so what holds for rows holds for
inputs: the mean, and pure DP, for any two inputs or for inputs within a sensitivity.

The tables that are built here are proposals; ``RowCertificate.of`` decides.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import combinations, pairwise
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax

from dpkernels import checks
from dpkernels.bounded_json import integer, real
from dpkernels.decimals import rational, shortest
from dpkernels.exact.certificate import (
    MOST_WEIGHTS,
    BoundedCertificate,
    BoundedTable,
    CertificateError,
    exp_lower_bound,
    frozen_weights,
    integers,
    moments,
    sliding_extremes,
)
from dpkernels.exact.sampler import AliasColumns, BoundedSampler, alias_columns, alias_kernel, fraction_bits, take
from dpkernels.exact.windows import PROMISED_DEVIATION
from dpkernels.mechanisms.central_piecewise import CentralPiecewise
from dpkernels.mechanisms.optimal.mechanism import Optimal
from dpkernels.numerics import RealArray

_MOST_ROWS = 1 << 13  # The largest number of rows that is read. Tables built here have fewer.
_LARGEST_PLACE = 1 << 30  # The sampler holds places as int32, and twice a place must fit.


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

    def cells(self, sensitivity: float | None) -> int:
        """Return the largest distance of neighbours in rows; all of them if any two inputs are neighbours."""
        if sensitivity is None:
            return self.shifts
        checks.sensitivity(sensitivity)
        steps = 1 << fraction_bits(self.shifts)
        # Far from 0 the gap between these floats is not that between their decimals.
        gap = (Fraction(self.last) - Fraction(self.first)) / self.shifts
        return min(self.shifts, math.ceil((rational(sensitivity) * steps / gap + 1) / steps))

    def extremes(self, cells: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the largest and smallest weight of every code over each ``cells`` + 1 neighbouring rows, as uint64."""
        return sliding_extremes(self.weights, min(cells, self.shifts) + 1)

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

    def values(self, outcomes: RealArray, dtype: Any) -> Any:
        return self.reports_at(2 * outcomes, dtype)


def lookups(table: RowTable) -> tuple[Callable[..., RealArray], Callable[..., RealArray]]:
    """Return two samplers with the same output: by separate look-ups, and by look-ups of triples."""
    rows = row_columns(table)
    log_columns, packed = rows[0].log_columns, np.concatenate([columns.packed for columns in rows])
    outcomes = alias_kernel(AliasColumns(packed, log_columns, table.bits))
    word, last = packed.dtype.type, (1 << log_columns) - 1
    # Padding columns have no weight of their own, so their place is never read.
    places = np.zeros(1 << log_columns, np.int32)
    places[: table.codes] = table.places
    others = np.concatenate([places[columns.alias] for columns in rows])
    triples = np.stack([part.astype(word) for part in (packed, np.tile(places, len(rows)), others)], -1)

    # Faster on a CPU; triples are on a GPU, where each look-up is a pass through memory.
    def by_column(r: RealArray, row: RealArray) -> RealArray:
        return take(places, outcomes(r, row))

    def by_triple(r: RealArray, row: RealArray) -> RealArray:
        at = (row << np.int32(log_columns)) + (r >> word(table.bits - log_columns)).astype(np.int32)
        taken = take(triples, at)
        is_own = (r << word(log_columns) | word(last)) < taken[..., 0]
        return jnp.where(is_own, taken[..., 1], taken[..., 2]).astype(np.int32)

    return by_column, by_triple


def row_columns(table: RowTable) -> list[AliasColumns]:
    """Return exact alias columns of every row, after a check against the row's weights."""
    return [alias_columns(row, table.bits) for row in table.weights.tolist()]


# Construction

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
        short = slope * (i - (n - 1) // 2) - sum(map(operator.mul, weights, places))
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
    most = 2 * max(gaps[-1], abs(remainder))
    paths: dict[int, tuple[int, ...]] = {0: ()}
    ends = [0]
    while ends and remainder not in paths:
        found: dict[int, tuple[int, ...]] = {}
        for end in ends:
            for gap in (*gaps, *(-gap for gap in gaps)):
                if abs(end + gap) <= most and end + gap not in paths:
                    found.setdefault(end + gap, (*paths[end], gap))
        paths |= found
        ends = list(found)
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
        cells = min(range(*ends), key=lambda cells: math.ceil(span / D / 2 * cells) / (span / D / 2 * cells))
        for bits in (32, 64):
            table = central_table(mechanism, cells, bits)
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


def central_table(mechanism: CentralPiecewise, cells: int, bits: int) -> RowTable | None:
    """Return integer weights with steps of ``cells`` codes and one row a cell, or None if they do not fit."""
    span, D = _span_and_sensitivity(mechanism)
    shifts = 2 * math.ceil(span * cells / D / 2)
    gap = max(D / (cells - _MARGIN), span / shifts)
    core = max(1, round(float(mechanism.core * span / gap)))
    widths = [core + 2 * cells * k for k in range(mechanism.steps)]
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
        made = [core]
        for _ in counts[1:]:
            # Rounded up: so no ratio is above e^eps, and far steps that the total is too coarse for share its unit.
            made.append(math.ceil(made[-1] / E))
        return made[::-1]

    low, high = 0, total
    while high - low > 1:
        middle = (low + high) // 2
        fits = sum(map(operator.mul, levels(middle), counts)) <= total
        low, high = (middle, high) if fits else (low, middle)
    return levels(low) if low > 0 else None


def optimal_certificate(mechanism: Optimal) -> RowCertificate:
    """Return the certificate with words of 32 bits, or of 64 where weights out of 2^32 would be too coarse."""
    sensitivity = None if mechanism.sensitivity is None else float(mechanism.sensitivity)

    def certified(bits: int) -> RowCertificate:
        return RowCertificate.of(row_table(mechanism, bits), float(mechanism.epsilon), sensitivity)

    try:
        return certified(32)
    except CertificateError:
        return certified(64)
