"""Exact samplers of mechanisms that are given row by row: one alias table for each row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from dpkernels.exact.kernels import (
    AliasColumns,
    ReportKernel,
    alias_columns,
    fraction_bits,
    nearest_rows,
    negligible,
    report_kernel,
    take,
)
from dpkernels.exact.rows.certificate import RowCertificate
from dpkernels.exact.rows.table import RowTable
from dpkernels.exact.sampler import NOISE_STREAM, ROUNDING_STREAM, ExactSampler, Words
from dpkernels.mechanisms.base import Mechanism
from dpkernels.numerics import RealArray, namespace

RowKernel = Callable[[RealArray, RealArray], RealArray]


@dataclass(frozen=True, eq=False)
class ExactRows(ExactSampler):
    """An exact sampler of a mechanism that is given row by row."""

    mechanism: Any
    certificate: RowCertificate

    @property
    def table(self) -> RowTable:
        """Return the verified integers."""
        return self.certificate.table

    @cached_property
    def words(self) -> tuple[Words, ...]:
        rounding = 16 if fraction_bits(self.table.shifts) <= 16 else 32
        return Words(NOISE_STREAM, self.table.bits), Words(ROUNDING_STREAM, rounding)

    @property
    def negligible(self) -> float:
        return negligible(self.table.shifts, self.table.first, self.table.last)

    @cached_property
    def places(self) -> RowKernel:
        """Return the table's sampler."""
        return row_kernel(self.table)

    def reports(self, x: RealArray, *words: RealArray) -> RealArray:
        (noise, rounding), table = words, self.table
        row = nearest_rows(x, rounding, table.shifts, table.first, table.last)
        return self._reports_at(2 * self.places(noise, row), x.dtype)

    @cached_property
    def _reports_at(self) -> ReportKernel:
        return report_kernel(self.table.middle, self.table.step)


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


def row_sampler(mechanism: Mechanism, certificate: RowCertificate) -> ExactRows:
    """Return the sampler of a mechanism by its certificate."""
    sampler = ExactRows(mechanism, certificate)
    _ = sampler.places  # The sampler's own tables are checked here, with the certificate.
    return sampler
