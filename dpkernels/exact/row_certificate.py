"""Certificates of row tables: pure DP for any two inputs, or for inputs within a sensitivity."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpkernels import checks
from dpkernels.exact.certificate import COVERS, CertificateError, check_claims, exp_lower_bound, reading
from dpkernels.exact.rounding import fraction_bits
from dpkernels.exact.row_tables import RowTable
from dpkernels.exact.tables import rational


@dataclass(frozen=True)
class RowCertificate:
    """Verified facts about one row table.

    Attributes:
        epsilon: the budget, as printed.
        sensitivity: how far apart neighbouring inputs are at most; None: any two inputs are neighbours.
        cells: how many rows apart neighbouring inputs are rounded to at most, under the same rounding word.
        ratio: the largest ratio of any report's probability between two such rows.
        total: the sum of every row's weights, 2^bits.
        codes: how many reports are possible, the same for every input.
        rows: how many input rows there are.
        lowest: smallest possible report.
        highest: largest possible report.
        mean_error: largest difference of a row's mean from its nominal input; 0 is required.
        table: the integers, so that anyone can verify again.
    """

    epsilon: float
    sensitivity: float | None
    cells: int
    ratio: Fraction
    total: int
    codes: int
    rows: int
    lowest: Fraction
    highest: Fraction
    mean_error: Fraction
    table: RowTable

    @property
    def realised_epsilon(self) -> float:
        """ln(ratio), at most epsilon."""
        return math.log(self.ratio)

    @property
    def worst_variance(self) -> Fraction:
        """Bound on the variance at any input, input rounding included."""
        return self.table.worst_variance

    @property
    def covers(self) -> str:
        """What is guaranteed, for which neighbours, and what is not."""
        if self.sensitivity is None:
            return COVERS
        near = f"inputs of the interval at most {self.sensitivity:.12g} apart (the floats that are perturbed)"
        return COVERS.replace("any two inputs of the interval (local DP, replace one value)", near)

    def to_dict(self) -> dict[str, Any]:
        """A JSON form with exact fractions as text and the table itself."""
        exact = {
            name: str(getattr(self, name)) for name in ("ratio", "lowest", "highest", "mean_error", "worst_variance")
        }
        names = ("epsilon", "sensitivity", "cells", "total", "codes", "rows", "realised_epsilon", "covers")
        return {**{name: getattr(self, name) for name in names}, **exact, "row_table": self.table.to_dict()}

    @classmethod
    def from_dict(cls, form: dict[str, Any]) -> RowCertificate:
        """Verify the table in a JSON form again; what the form says of itself must agree.

        Raises:
            CertificateError: the table fails, or the form claims something else.
        """
        with reading():
            certificate = certify_rows(RowTable.from_dict(form["row_table"]), form["epsilon"], form["sensitivity"])
            check_claims(form, certificate.to_dict())
        return certificate

    def to_json(self) -> str:
        """``to_dict`` as text."""
        return json.dumps(self.to_dict())

    def __str__(self) -> str:
        near = "any two rows" if self.sensitivity is None else f"rows up to {self.cells} apart"
        ends = f"{self.table.first:.9g} to {self.table.last:.9g}"
        lines = [
            f"epsilon             {self.epsilon:g}, realised {self.realised_epsilon:.9g} (exact ratio below e^epsilon)",
            f"reports             {self.codes} codes from {float(self.lowest):.9g} to {float(self.highest):.9g}",
            f"inputs              {self.rows} rows from {ends}; ratios of {near}",
            f"total weight        2^{self.total.bit_length() - 1}, for every row",
            f"row means           equal to the input, as fractions (error {self.mean_error})",
            f"variance            at most {float(self.worst_variance):.9g} at any input",
            f"covers              {self.covers}",
        ]
        return "\n".join(lines)


def certify_rows(table: RowTable, epsilon: float, sensitivity: float | None = None) -> RowCertificate:
    """Verify everything a release relies on.

    With a sensitivity D, neighbours are put on steps of gap/2^b, at most D 2^b/gap + 1 apart (the 1 is for float
    arithmetic, see ``rounding``; the gap is that of the floats ``first`` and ``last``, which far from 0 is not that of
    their decimals), and then rounded by one word to rows at most ``cells`` apart.

    Raises:
        CertificateError: a total is not 2^bits, a report is impossible for some input, a ratio exceeds e^epsilon, a
            row's mean is not its input, or an input has no row; says by how much.
    """
    checks.epsilon(epsilon)
    _check_shape(table)
    for i, total in enumerate(table.totals):
        if total != 1 << table.bits:
            raise CertificateError(f"total: weights of row {i} sum to 2^{table.bits} {total - (1 << table.bits):+d}")
    cells = _cells_apart(table, sensitivity)
    ratio = _largest_ratio(table, cells)
    if ratio > exp_lower_bound(epsilon):
        excess = math.log(ratio) - float(rational(epsilon))
        raise CertificateError(f"epsilon: a ratio is {float(ratio):.9g}, {excess:.3g} above epsilon {epsilon:g}")
    error = max(abs(table.row_mean(i) - table.row_input(i)) for i in range(table.rows))
    if error:
        raise CertificateError(f"mean: a row is off its input by {float(error):.3g} data units")
    return RowCertificate(
        epsilon=epsilon,
        sensitivity=sensitivity,
        cells=cells,
        ratio=ratio,
        total=table.totals[0],
        codes=len(table.places),
        rows=table.rows,
        lowest=table.value(0),
        highest=table.value(len(table.places) - 1),
        mean_error=error,
        table=table,
    )


def _check_shape(table: RowTable) -> None:
    n, m = table.weights.shape
    if n < 2 or m < 2 or table.bits not in (16, 32, 64) or table.first_moments[-1] <= table.first_moments[0]:
        raise CertificateError(f"table: {n} rows of {m} codes at {table.bits} bits carry no signal")
    if any(b <= a for a, b in zip(table.places[:-1], table.places[1:], strict=True)) or m != len(table.places):
        raise CertificateError("places: are not increasing, one a code")
    checks.interval(table.lower, table.upper)
    if not rational(table.first) <= rational(table.lower) < rational(table.upper) <= rational(table.last):
        raise CertificateError(
            f"inputs: the rows from {table.first:.17g} to {table.last:.17g} do not hold the interval "
            f"[{table.lower:.17g}, {table.upper:.17g}]"
        )


def _cells_apart(table: RowTable, sensitivity: float | None) -> int:
    """Rows that neighbours are apart at most; all of them where any two inputs are neighbours."""
    if sensitivity is None:
        return table.shifts
    checks.sensitivity(sensitivity)
    steps = 1 << fraction_bits(table.shifts)
    gap = (Fraction(table.last) - Fraction(table.first)) / table.shifts
    return min(table.shifts, math.ceil((rational(sensitivity) * steps / gap + 1) / steps))


def _largest_ratio(table: RowTable, cells: int) -> Fraction:
    high, low = (weights.ravel().tolist() for weights in table.extremes(cells))
    if min(low) == 0:
        code = low.index(0) % len(table.places)
        raise CertificateError(f"support: report {code} is impossible for some inputs")
    best = Fraction(1)
    for pair in set(zip(high, low, strict=True)):
        if pair[0] * best.denominator > pair[1] * best.numerator:
            best = Fraction(*pair)
    return best
