"""Integer tables row by row, on an interval, their certificates and their sampler.

A ``RowTable`` has n rows and m codes. Row i has the weight weights[i, j] for code j, with the total 2^bits for every
row. Code j represents the value  middle + step places[j].

The means of the rows are evenly spaced, which determines the step. An input between the means of two rows is rounded to
one of them at random. So all properties of rows (mean, pure DP of any two inputs or of inputs within a sensitivity)
also hold for inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import numpy as np

from dpkernels import checks
from dpkernels.bounded_json import JsonObject, integer, real
from dpkernels.decimals import rational, shortest
from dpkernels.exact.alias import AliasColumns, alias_columns, alias_kernel, take
from dpkernels.exact.bounded.certificate import BoundedCertificate, BoundedTable, sliding_extremes
from dpkernels.exact.bounded.sampler import BoundedSampler, fraction_bits
from dpkernels.exact.certificate import MAX_WEIGHTS, CertificateError, frozen_weights, integers, moments
from dpkernels.exact.sampler import ROW_ROUNDING_STREAM
from dpkernels.jax_on_use import jnp, lax
from dpkernels.numerics import RealArray
from dpkernels.proven import proven
from dpkernels.shapes import UInt64

_MAX_ROWS = 1 << 13  # The largest number of rows that is read. Tables built here have fewer.
_MAX_PLACE = 1 << 30  # The sampler holds places as int32, and twice a place must fit.


@proven("row_mixtures#proof")
@dataclass(frozen=True, eq=False)
class RowTable(BoundedTable):
    """Integer weights of a mechanism row by row."""

    weights: UInt64[np.ndarray, "rows codes"]  # n rows of m codes.
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
    def last_row(self) -> int:
        return len(self.weights) - 1

    @cached_property
    def doubled_offsets(self) -> list[int]:
        return [2 * place for place in self.places]

    @cached_property
    def totals(self) -> list[int]:
        return [sum(row) for row in self.weights.tolist()]

    def row_moments(self, s: int) -> tuple[int, int]:
        return self._moments[s]

    @cached_property
    def _moments(self) -> list[tuple[int, int]]:
        return [moments(row, self.doubled_offsets) for row in self.weights.tolist()]

    @cached_property
    def worst_variance(self) -> Fraction:
        variances = [self.row_variance(s) for s in range(self.rows)]
        squared, largest = self.row_spacing**2, Fraction(0)
        begin, end = ((rational(x) - rational(self.first)) / self.row_spacing for x in (self.lower, self.upper))
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
        if max(abs(places[0]), abs(places[-1])) > _MAX_PLACE:
            raise CertificateError(f"places: {places[0]} to {places[-1]} are not within 2^30")
        if not rational(self.first) <= rational(self.lower) < rational(self.upper) <= rational(self.last):
            raise CertificateError(
                f"inputs: the rows from {shortest(self.first)} to {shortest(self.last)} do not hold the interval "
                f"[{shortest(self.lower)}, {shortest(self.upper)}]"
            )

    def rows_apart(self, sensitivity: float | None) -> int:
        """Return the largest distance of neighbours in rows; all of them if any two inputs are neighbours."""
        if sensitivity is None:
            return self.last_row
        checks.sensitivity(sensitivity)
        steps = 1 << fraction_bits(self.last_row)
        # Far from 0 the gap between these floats is not that between their decimals.
        gap = (Fraction(self.last) - Fraction(self.first)) / self.last_row
        return min(self.last_row, math.ceil((rational(sensitivity) * steps / gap + 1) / steps))

    def extremes(
        self, row_distance: int
    ) -> tuple[UInt64[np.ndarray, "row_runs codes"], UInt64[np.ndarray, "row_runs codes"]]:
        """Return the largest and smallest weight of every code over ``row_distance`` + 1 adjacent rows, as uint64."""
        return sliding_extremes(self.weights, min(row_distance, self.last_row) + 1)

    def kernel(self) -> Callable[[RealArray, RealArray], RealArray]:
        """Return the sampler, (random word of ``bits`` bits, row) -> place, both of one shape."""
        by_column, by_triple = lookups(self)

        def sampled(r: RealArray, row: RealArray) -> RealArray:
            if isinstance(r, np.ndarray):
                return by_column(r, row)
            return lax.platform_dependent(r, row, cuda=by_triple, default=by_column)

        return sampled

    def to_dict(self) -> Mapping[str, object]:
        ends = {name: getattr(self, name) for name in ("first", "last", "lower", "upper")}
        return {"weights": self.weights.tolist(), "places": list(self.places), "bits": self.bits, **ends}

    @classmethod
    def from_dict(cls, payload: JsonObject) -> RowTable:
        """Return the table in a payload, after a check of types and sizes only."""
        rows, places = payload["weights"], integers("places", payload["places"], MAX_WEIGHTS)
        if type(rows) is not list or not 0 < len(rows) <= _MAX_ROWS or len(rows) * len(places) > MAX_WEIGHTS:
            raise ValueError(f"weights: needs 1 to {_MAX_ROWS} rows of {len(places)}, {MAX_WEIGHTS} weights at most")
        if any(len(integers("weights", row, len(places))) != len(places) for row in rows):
            raise ValueError(f"weights: not all rows have {len(places)}")
        ends = (real(name, payload[name]) for name in ("first", "last", "lower", "upper"))
        return cls(frozen_weights(rows), tuple(places), integer("bits", payload["bits"]), *ends)


class RowCertificate(BoundedCertificate, kind="rows"):
    """Verified facts about one row table. The sensitivity is None if any two inputs are neighbours."""

    facts = (*BoundedCertificate.facts, "sensitivity", "cells")
    components: ClassVar[Mapping[str, str]] = {"row_table": "table"}

    table: RowTable
    table_type = RowTable


class ExactRows(BoundedSampler):
    """An exact sampler of a mechanism that is given row by row: one alias table for each row."""

    short_rounding_stream = ROW_ROUNDING_STREAM  # Most have fewer rows, and words of 32 bits.

    def values(self, outcomes: RealArray, dtype: np.dtype) -> RealArray:
        return self.report_kernel(2 * outcomes, dtype)


def lookups(table: RowTable) -> tuple[Callable[..., RealArray], Callable[..., RealArray]]:
    """Return two samplers with the same output: by separate look-ups, and by look-ups of triples."""
    rows = [alias_columns(row, table.bits) for row in table.weights.tolist()]
    log_columns, packed = rows[0].log_columns, np.concatenate([columns.packed for columns in rows])
    outcomes = alias_kernel(AliasColumns(packed, log_columns, table.bits))
    word, last = packed.dtype.type, (1 << log_columns) - 1
    # Padding columns have no weight of their own, so their place is never read.
    places = np.zeros(1 << log_columns, np.int32)
    places[: table.codes] = table.places
    alias_places = np.concatenate([places[columns.alias] for columns in rows])
    triples = np.stack([array.astype(word) for array in (packed, np.tile(places, len(rows)), alias_places)], -1)

    # Faster on a CPU; triples are on a GPU, where each look-up is a pass through memory.
    def by_column(r: RealArray, row: RealArray) -> RealArray:
        return take(places, outcomes(r, row))

    def by_triple(r: RealArray, row: RealArray) -> RealArray:
        index = (row << np.int32(log_columns)) + (r >> word(table.bits - log_columns)).astype(np.int32)
        triple = take(triples, index)
        is_column = (r << word(log_columns) | word(last)) < triple[..., 0]
        return jnp.where(is_column, triple[..., 1], triple[..., 2]).astype(np.int32)

    return by_column, by_triple
