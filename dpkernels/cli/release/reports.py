"""Which numbers can be reports of a certified table: whether a column is what its certificate is for."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np

from dpkernels.exact.combined import MixtureCertificate
from dpkernels.exact.noise.certificate import NoiseCertificate
from dpkernels.exact.rows.certificate import RowCertificate
from dpkernels.exact.windows.certificate import PlacedCertificate, WindowCertificate

# A number so far from a report, in steps, is as near to the next one.
ANY = 0.5
# Reports are rounded to floats a few times: this many units in the last place of the largest.
_ROUNDINGS = 4


@singledispatch
def can_report(certificate: Any, values: np.ndarray, slack: float = 0.0) -> np.ndarray:
    """Whether each value is a report that the certificate's table can make.

    Args:
        certificate: of single values.
        values: floats of the type of the reports.
        slack: how far reports may have been moved by rounding them to decimals.

    Raises:
        ValueError: a certificate of another kind.
    """
    raise ValueError(f"certificate: {type(certificate).__name__} is not of single values")


@can_report.register(WindowCertificate)
@can_report.register(PlacedCertificate)
@can_report.register(RowCertificate)
def _(certificate: Any, values: np.ndarray, slack: float = 0.0) -> np.ndarray:
    lowest, highest, step = map(float, (certificate.lowest, certificate.highest, certificate.table.step))
    rounding = blur(certificate, values.dtype, slack)
    with np.errstate(invalid="ignore"):  # infinities have no place
        place = (values.astype(np.float64) - lowest) / step
        ends = max(0.5, rounding)
        inside = (place > -ends) & (place < (highest - lowest) / step + ends)
        return inside & (np.abs(place - np.rint(place)) <= rounding)


@singledispatch
def blur(certificate: Any, dtype: np.dtype, slack: float) -> float:
    """How far from the places of a table its reports may be, in steps; from ``ANY`` on every number is a report."""
    raise ValueError(f"certificate: {type(certificate).__name__} is not of single values")


@blur.register(WindowCertificate)
@blur.register(PlacedCertificate)
@blur.register(RowCertificate)
def _(certificate: Any, dtype: np.dtype, slack: float) -> float:
    lowest, highest, step = map(float, (certificate.lowest, certificate.highest, certificate.table.step))
    return (_ROUNDINGS * float(np.finfo(dtype).eps) * max(abs(lowest), abs(highest)) + slack) / step


@blur.register
def _(certificate: MixtureCertificate, dtype: np.dtype, slack: float) -> float:
    return max(blur(part, dtype, slack) for part in (certificate.first, certificate.second))


@blur.register
def _(certificate: NoiseCertificate, dtype: np.dtype, slack: float) -> float:
    return slack / float(certificate.table.cell)


@can_report.register
def _(certificate: MixtureCertificate, values: np.ndarray, slack: float = 0.0) -> np.ndarray:
    return can_report(certificate.first, values, slack) | can_report(certificate.second, values, slack)


@can_report.register
def _(certificate: NoiseCertificate, values: np.ndarray, slack: float = 0.0) -> np.ndarray:
    """Multiples of the cell; the remainder of floats is exact."""
    cell = float(certificate.table.cell)
    with np.errstate(invalid="ignore"):
        left = np.abs(np.fmod(values.astype(np.float64), cell))
        return np.minimum(left, cell - left) <= slack
