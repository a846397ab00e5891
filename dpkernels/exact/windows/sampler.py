"""Exact samplers of windowed and two-point mechanisms: one table for every input, shifted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpkernels.exact.kernels import (
    ReportKernel,
    alias_columns,
    alias_kernel,
    fraction_bits,
    nearest_rows,
    negligible,
    report_kernel,
)
from dpkernels.exact.sampler import NOISE_STREAM, ROUNDING_STREAM, ExactSampler, Words
from dpkernels.exact.windows.certificate import PlacedCertificate, WindowCertificate, certify_placed, certify_table
from dpkernels.exact.windows.table import WindowTable
from dpkernels.mechanisms.two_point import TwoPoint
from dpkernels.mechanisms.windowed.mechanism import Windowed
from dpkernels.mechanisms.windowed.square_wave import SquareWave
from dpkernels.numerics import Real, RealArray, namespace

CodeKernel = Callable[[RealArray, RealArray], RealArray]


@dataclass(frozen=True, eq=False)
class ExactWindow(ExactSampler):
    """A mechanism that is one window table: windowed, square wave or two-point."""

    mechanism: Any
    certificate: WindowCertificate | PlacedCertificate

    @property
    def table(self) -> WindowTable:
        """Return the verified integers."""
        return self.certificate.table

    @property
    def fraction_bits(self) -> int:
        """Return bits that round an input between rows."""
        return fraction_bits(self.table.shifts)

    @cached_property
    def words(self) -> tuple[Words, ...]:
        rounding = 16 if self.fraction_bits <= 16 else 32
        return Words(NOISE_STREAM, self.table.bits), Words(ROUNDING_STREAM, rounding)

    @property
    def negligible(self) -> float:
        return negligible(self.table.shifts, self.table.lower, self.table.upper)

    @cached_property
    def codes(self) -> CodeKernel:
        """Return the table's sampler."""
        return code_kernel(self.table)

    def reports(self, x: RealArray, *words: RealArray) -> RealArray:
        noise, rounding = words
        return self.values(self.codes(noise, self.rows(x, rounding)), x.dtype)

    def rows(self, x: RealArray, rounding: RealArray) -> RealArray:
        """Round an input to one of the two rows around it, with its own random bits."""
        table = self.table
        return nearest_rows(x, rounding, table.shifts, table.lower, table.upper)

    def values(self, codes: Real, dtype: Any) -> Any:
        """Return middle + step (code - (N - 1)/2), a function of the code alone."""
        if isinstance(codes, np.ndarray):
            return self._values[np.dtype(dtype)].take(codes)
        return self._reports_at(2 * codes - (self.table.codes - 1), dtype)

    @cached_property
    def _reports_at(self) -> ReportKernel:
        return report_kernel(self.table.middle, self.table.step)

    @cached_property
    def _values(self) -> dict[np.dtype, np.ndarray]:
        """Return the values of all codes: one look-up costs less than the formula."""
        doubled = 2 * np.arange(self.table.codes, dtype=np.int32) - (self.table.codes - 1)
        return {np.dtype(dtype): self._reports_at(doubled, dtype) for dtype in (np.float32, np.float64)}


def window_sampler(mechanism: Windowed | TwoPoint, table: WindowTable) -> ExactWindow:
    """Return the sampler of a mechanism by a table that has its budget.

    Raises:
        CertificateError: it has not.
    """
    return _sampled(ExactWindow(mechanism, certify_table(table, mechanism.epsilon)))


def placed_sampler(mechanism: SquareWave, table: WindowTable) -> ExactWindow:
    """Return the sampler of a square wave by a table that has its budget.

    Raises:
        CertificateError: it has not.
    """
    return _sampled(ExactWindow(mechanism, certify_placed(table, mechanism.epsilon)))


def _sampled(sampler: ExactWindow) -> ExactWindow:
    _ = sampler.codes  # The sampler's own tables are checked here, with the certificate.
    return sampler


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
