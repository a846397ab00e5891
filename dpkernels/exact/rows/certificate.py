"""Certificates of row tables: pure DP for any two inputs, or for inputs within a sensitivity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, ClassVar

from dpkernels import checks
from dpkernels.bounded_json import real
from dpkernels.decimals import rational, shortest
from dpkernels.exact.certificate import (
    LIMITS,
    CertificateError,
    UnbiasedCertificate,
    certified_ratio,
    check_means,
    check_rows,
)
from dpkernels.exact.kernels import fraction_bits
from dpkernels.exact.rows.table import RowTable
from dpkernels.exact.windows.certificate import COVERS, WindowCertificate

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

    facts = (*WindowCertificate.facts, "sensitivity", "cells")
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
