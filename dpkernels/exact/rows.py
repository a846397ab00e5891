"""Row tables: integer weights of mechanisms that are given row by row, their certificate and their sampler.

A ``RowTable`` has n rows and m codes. Row i gives code j the weight weights[i, j], total 2^bits for every row, and code
j stands for the value  middle + step places[j].  The step follows from the rows' means, which are evenly spaced from
``first`` to ``last``. An input between two rows is rounded to one of them at random, so what holds for rows holds for
inputs: the mean, and pure DP, for any two inputs or for inputs within a sensitivity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax

from dpkernels import checks
from dpkernels.bounded_json import integer, real
from dpkernels.decimals import rational, shortest
from dpkernels.exact.certificate import (
    COVERS,
    LIMITS,
    BoundedCertificate,
    CertificateError,
    UnbiasedCertificate,
    certified_ratio,
    check_means,
    check_rows,
)
from dpkernels.exact.kernels import (
    AliasColumns,
    alias_columns,
    fraction_bits,
    take,
)
from dpkernels.exact.sampler import BoundedSampler
from dpkernels.exact.table import MOST_WEIGHTS, BoundedTable, frozen_weights, integers, sliding
from dpkernels.numerics import RealArray, namespace

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
    def ends(self) -> tuple[float, float]:
        return self.first, self.last

    @property
    def codes(self) -> int:
        return len(self.places)

    @property
    def shifts(self) -> int:
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
        return self.first_moments[-1] > self.first_moments[0]

    @cached_property
    def step(self) -> Fraction:
        """Return the data units between neighbouring places, from mean(last row) - mean(first row) = last - first."""
        return self.shifts * self.gap * (1 << self.bits) / (self.first_moments[-1] - self.first_moments[0])

    def value(self, code: int) -> Fraction:
        return self.middle + self.step * self.places[code]

    def row_mean(self, i: int) -> Fraction:
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


# The sampler holds places as int32, and twice a place must fit.
_LARGEST_PLACE = 1 << 30


@dataclass(frozen=True)
class RowCertificate(UnbiasedCertificate, kind="rows"):
    """Verified facts about one row table; see ``BoundedCertificate``.

    Attributes:
        sensitivity: the largest distance of neighbouring inputs, or None if any two inputs are neighbours.
    """

    epsilon: float
    sensitivity: float | None
    cells: int
    ratio: Fraction
    table: RowTable

    facts = (*BoundedCertificate.facts, "sensitivity", "cells")
    parts: ClassVar[Mapping[str, str]] = {"row_table": "table"}

    @property
    def covers(self) -> str:
        if self.sensitivity is None:
            return COVERS
        return (
            "pure epsilon-DP of each report; neighbouring: inputs of the interval at most "
            f"{shortest(self.sensitivity)} apart (the floats that are perturbed). {LIMITS}"
        )

    @classmethod
    def certified(cls, payload: dict[str, Any]) -> RowCertificate:
        sensitivity = None if payload["sensitivity"] is None else real("sensitivity", payload["sensitivity"])
        return certify_rows(RowTable.from_dict(payload["row_table"]), real("epsilon", payload["epsilon"]), sensitivity)


def certify_rows(table: RowTable, epsilon: float, sensitivity: float | None = None) -> RowCertificate:
    """Verify all properties that a release relies on, and return the certificate.

    With a sensitivity D, neighbours are rounded by one word to rows at most ``cells`` apart, see
    docs/proofs/row_mixtures.md. The gap of rows is that of the floats ``first`` and ``last``, which far from 0 is not
    that of their decimals.

    Raises:
        CertificateError: a total is not 2^bits, a report is impossible for some input, a ratio exceeds e^epsilon, a
            row's mean is not its input, or an input has no row; says by how much.
        ValueError: the budget or the sensitivity is out of range, or the interval is none.
    """
    checks.epsilon(epsilon)
    check_rows(table)
    _check_shape(table)
    cells = _cells_apart(table, sensitivity)
    ratio = certified_ratio(*table.extremes(cells), epsilon)
    check_means(table, range(table.rows), table.row_input)
    return RowCertificate(float(epsilon), None if sensitivity is None else float(sensitivity), cells, ratio, table)


def _check_shape(table: RowTable) -> None:
    places = table.places
    if any(b <= a for a, b in pairwise(places)) or table.weights.shape != (table.rows, len(places)):
        raise CertificateError("places: are not increasing, one a code")
    if max(abs(places[0]), abs(places[-1])) > _LARGEST_PLACE:
        raise CertificateError(f"places: {places[0]} to {places[-1]} are not within 2^30")
    if not rational(table.first) <= rational(table.lower) < rational(table.upper) <= rational(table.last):
        raise CertificateError(
            f"inputs: the rows from {shortest(table.first)} to {shortest(table.last)} do not hold the interval "
            f"[{shortest(table.lower)}, {shortest(table.upper)}]"
        )


def _cells_apart(table: RowTable, sensitivity: float | None) -> int:
    """Return rows that neighbours are apart at most; all of them where any two inputs are neighbours."""
    if sensitivity is None:
        return table.shifts
    checks.sensitivity(sensitivity)
    steps = 1 << fraction_bits(table.shifts)
    gap = (Fraction(table.last) - Fraction(table.first)) / table.shifts
    return min(table.shifts, math.ceil((rational(sensitivity) * steps / gap + 1) / steps))


RowKernel = Callable[[RealArray, RealArray], RealArray]


@dataclass(frozen=True, eq=False)
class ExactRows(BoundedSampler):
    """An exact sampler of a mechanism that is given row by row: one alias table for each row."""

    mechanism: Any
    certificate: RowCertificate

    @property
    def table(self) -> RowTable:
        return self.certificate.table

    @cached_property
    def kernel(self) -> RowKernel:
        return row_kernel(self.table)

    def reports(self, x: RealArray, *words: RealArray) -> RealArray:
        noise, rounding = words
        return self.reports_at(2 * self.kernel(noise, self.rows(x, rounding)), x.dtype)


def row_kernel(table: RowTable) -> RowKernel:
    """Return the sampler of a row table: (random word of ``table.bits`` bits, row) -> place, both of one shape."""
    rows = row_columns(table)
    shift, log_columns = table.bits - rows[0].log_columns, np.int32(rows[0].log_columns)
    by_column, by_triple = lookups(table, rows)

    def sampled(r: RealArray, row: RealArray) -> RealArray:
        at = (row << log_columns) + (r >> r.dtype.type(shift)).astype(np.int32)
        if isinstance(r, np.ndarray):
            return by_column(r, at)
        return lax.platform_dependent(r, at, cuda=by_triple, default=by_column)

    return sampled


def lookups(table: RowTable, rows: list[AliasColumns]) -> tuple[RowKernel, RowKernel]:
    """Return two samplers with the same output: by separate look-ups, and by look-ups of triples.

    The first looks up columns and then places, which is faster on a CPU. The second looks up triples, which is faster
    on a GPU, where each look-up is a pass through memory.
    """
    packed, log_columns = np.concatenate([columns.packed for columns in rows]), rows[0].log_columns
    word, last = packed.dtype.type, (1 << log_columns) - 1
    # Padding columns have no weight of their own, so their place is never read.
    places = np.zeros(1 << log_columns, np.int32)
    places[: len(table.places)] = table.places
    others = np.concatenate([places[columns.alias] for columns in rows])
    triples = np.stack([part.astype(word) for part in (packed, np.tile(places, len(rows)), others)], -1)

    def is_own(r: RealArray, entry: RealArray) -> RealArray:
        return (r << word(log_columns) | word(last)) < entry

    def by_column(r: RealArray, at: RealArray) -> RealArray:
        entry = take(packed, at)
        alias = (entry & word(last)).astype(np.int32)
        return take(places, namespace(r).where(is_own(r, entry), at & np.int32(last), alias))

    def by_triple(r: RealArray, at: RealArray) -> RealArray:
        taken = jnp.asarray(triples).at[at].get(mode="promise_in_bounds")
        return jnp.where(is_own(r, taken[..., 0]), taken[..., 1], taken[..., 2]).astype(np.int32)

    return by_column, by_triple


def row_columns(table: RowTable) -> list[AliasColumns]:
    """Return exact alias columns of every row, after a check against the row's weights."""
    return [alias_columns(row, table.bits) for row in table.weights.tolist()]
