"""Exact forms of mechanisms given row by row: one alias table an input, and rounding between inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jax import Array

from dpkernels.exact.form import NOISE_STREAM, ROUNDING_STREAM, ExactForm, Words
from dpkernels.exact.kernels import AliasColumns, alias_columns, alias_kernel
from dpkernels.exact.namespace import take
from dpkernels.exact.rounding import ReportKernel, fraction_bits, nearest_rows, negligible, report_kernel
from dpkernels.exact.rows.certificate import RowCertificate
from dpkernels.exact.rows.table import RowTable

RowKernel = Callable[[Array, Array], Array]


@dataclass(frozen=True, eq=False)
class ExactRows(ExactForm):
    """A mechanism that is a table row by row."""

    mechanism: Any
    certificate: RowCertificate

    @property
    def table(self) -> RowTable:
        """The verified integers."""
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
        """The table's sampler."""
        return row_kernel(self.table)

    def reports(self, x: Any, *words: Any) -> Any:
        (noise, rounding), table = words, self.table
        row = nearest_rows(x, rounding, table.shifts, table.first, table.last)
        return self._reports_at(2 * self.places(noise, row), x.dtype)

    @cached_property
    def _reports_at(self) -> ReportKernel:
        return report_kernel(self.table.middle, self.table.step)


def row_kernel(table: RowTable) -> RowKernel:
    """The sampler of a row table: (random word of ``table.bits`` bits, row) -> place, both of one shape."""
    rows = row_columns(table)
    columns = alias_kernel(*rows)
    # Padding columns have no weight of their own, so their place is never read.
    places = np.zeros(1 << rows[0].log_columns, np.int32)
    places[: len(table.places)] = table.places
    return lambda r, row: take(places, columns(r, row))


def row_columns(table: RowTable) -> list[AliasColumns]:
    """Exact alias columns of every row; checked against the row's weights."""
    return [alias_columns(row, table.bits) for row in table.weights.tolist()]


def row_form(mechanism: Any, certificate: RowCertificate) -> ExactRows:
    """The form of a mechanism by its certificate."""
    form = ExactRows(mechanism, certificate)
    _ = form.places  # The sampler's own tables are checked here, with the certificate.
    return form
