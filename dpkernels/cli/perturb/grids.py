"""The possible reports of a certified table, for the verification of an output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpkernels.exact.batches import BatchCertificate
from dpkernels.exact.bounded.rows import RowCertificate
from dpkernels.exact.bounded.windows import SquareWaveCertificate, WindowCertificate
from dpkernels.exact.certificate import Certificate, CertificateError
from dpkernels.exact.noise.certificate import AdditiveCertificate, NoiseCertificate
from dpkernels.exact.registry import MixtureCertificate
from dpkernels.numerics import Real

_ROUNDINGS = 4  # Reports are rounded to floats a few times: this many units in the last place of the largest.


@dataclass(frozen=True)
class ReportGrid:
    """The numbers that reports are on: lowest + step k, from k = 0 to ``steps``, arrays () or (rows,)."""

    lowest: np.ndarray  # 0 for noise, whose reports are all multiples of the step
    step: np.ndarray
    steps: np.ndarray  # inf for noise
    largest: np.ndarray  # the largest size of a report, which is rounded a few times; 0 for noise

    @classmethod
    def from_certificate(cls, certificate: Certificate) -> list[ReportGrid]:
        """Return the grid of a certificate, two for a mixture; ValueError for one of vectors."""
        if isinstance(certificate, BatchCertificate):
            is_mixture = any(isinstance(table, MixtureCertificate) for table in certificate.tables)
            return [cls._from_batch(certificate, component) for component in ("first", "second")[: 1 + is_mixture]]
        if isinstance(certificate, MixtureCertificate):
            return cls.from_certificate(certificate.first) + cls.from_certificate(certificate.second)
        if isinstance(certificate, NoiseCertificate):
            return [_noise_grid(float(certificate.table.bin_width))]
        if not isinstance(certificate, WindowCertificate | SquareWaveCertificate | RowCertificate):
            raise ValueError(f"certificate: {type(certificate).__name__} is not of single values")
        lowest, highest = float(certificate.lowest), float(certificate.highest)
        step = float(certificate.table.report_step)
        numbers = lowest, step, (highest - lowest) / step, max(abs(lowest), abs(highest))
        return [cls(*map(np.asarray, numbers))]

    @classmethod
    def _from_batch(cls, certificate: BatchCertificate, component: str) -> ReportGrid:
        columns = [np.empty(len(certificate.table_index)) for _ in range(4)]
        order = np.argsort(certificate.table_index, kind="stable")
        ends = np.flatnonzero(np.diff(certificate.table_index[order])) + 1
        for table, rows in zip(certificate.tables, np.split(order, ends), strict=True):
            table = getattr(table, component) if isinstance(table, MixtureCertificate) else table
            claims = {name: values[rows] for name, values in certificate.claims.items()}
            if isinstance(table, AdditiveCertificate):
                grid = _noise_grid(table.entry_grids(claims).bin_width)
            elif isinstance(table, WindowCertificate | SquareWaveCertificate | RowCertificate):
                grid = _interval_grid(table, claims)
            else:
                raise CertificateError(f"certificate: {type(table).__name__} is not of single values")
            for column, numbers in zip(columns, grid._columns, strict=True):
                column[rows] = numbers
        return cls(*columns)

    def can_report(self, values: np.ndarray, start: int = 0, slack: float = 0.0) -> np.ndarray:
        """Return whether the rows from ``start`` on can report each value, which rounding moved by up to ``slack``."""
        rows = slice(start, start + len(values))
        lowest, step, steps, largest = (column[rows] if column.ndim else column for column in self._columns)
        numbers = values.astype(np.float64)
        with np.errstate(invalid="ignore"):  # infinities are on no grid
            if np.isinf(self.steps).all():
                remainder = np.abs(np.fmod(numbers, step))  # The remainder of floats is exact.
                return np.minimum(remainder, step - remainder) <= slack
            rounding = (_ROUNDINGS * float(np.finfo(values.dtype).eps) * largest + slack) / step
            k, ends = (numbers - lowest) / step, np.maximum(0.5, rounding)
            return (k > -ends) & (k < steps + ends) & (np.abs(k - np.rint(k)) <= rounding)

    def is_coarse(self, dtype: np.dtype, slack: float) -> bool:
        """Return whether rounding hides the grid of a row: by half a step, any number is one of its reports."""
        rounding = (_ROUNDINGS * float(np.finfo(dtype).eps) * self.largest + slack) / self.step
        return bool(np.any(rounding >= 0.5))

    @property
    def _columns(self) -> tuple[np.ndarray, ...]:
        return self.lowest, self.step, self.steps, self.largest


def _noise_grid(step: Real) -> ReportGrid:
    zero = np.asarray(0.0)
    return ReportGrid(zero, np.asarray(step), np.asarray(np.inf), zero)


def _interval_grid(
    certificate: WindowCertificate | SquareWaveCertificate | RowCertificate, claims: Mapping[str, np.ndarray]
) -> ReportGrid:
    """Return the grid of rows with intervals of their own: the table's, moved from its interval to theirs."""
    table = certificate.table
    scale = (claims["upper"] - claims["lower"]) / (table.upper - table.lower)
    ends = (float(end) - table.lower for end in (certificate.lowest, certificate.highest))
    lowest, highest = (claims["lower"] + end * scale for end in ends)
    step = float(table.report_step) * scale
    return ReportGrid(lowest, step, np.rint((highest - lowest) / step), np.maximum(np.abs(lowest), np.abs(highest)))
