"""Certificates: what a table guarantees, computed from its integers with Python integers and Fractions only."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpkernels import checks
from dpkernels.exact.tables import WindowTable, rational

COVERS = (
    "pure epsilon-DP of each report; neighbouring: any two inputs of the interval (local DP, replace one value). "
    "Assumes that the key's generator is indistinguishable from random. Does not cover timing, caches or other side "
    "channels, which rows or columns exist, values copied unperturbed, or the composition of several reports."
)


class CertificateError(ValueError):
    """A table does not have the guarantee it was made for; it is never sampled."""


@contextmanager
def reading() -> Iterator[None]:
    """What is no certificate fails as one."""
    try:
        yield
    except CertificateError:
        raise
    except (KeyError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise CertificateError(f"form: is not a certificate ({type(error).__name__}: {error})") from error


def check_claims(form: dict[str, Any], again: dict[str, Any]) -> None:
    """Whatever a form says beside its integers must be what the integers give."""
    for name, value in again.items():
        claimed = form[name]
        same = math.isclose(claimed, value, rel_tol=1e-12) if isinstance(value, float) else claimed == value
        if not same:
            raise CertificateError(f"{name}: the form says {claimed}, the table gives {value}")


@dataclass(frozen=True)
class Certificate:
    """Verified facts about one table.

    Attributes:
        epsilon: the budget, as printed.
        ratio: the largest ratio of any report's probability between any two inputs.
        total: the sum of every row's weights, 2^bits.
        codes: how many reports are possible, the same for every input.
        rows: how many input rows there are.
        lowest: smallest possible report.
        highest: largest possible report.
        mean_error: largest difference of a row's mean from its nominal input; 0 is required.
        table: the integers, so that anyone can verify again.
    """

    epsilon: float
    ratio: Fraction
    total: int
    codes: int
    rows: int
    lowest: Fraction
    highest: Fraction
    mean_error: Fraction
    table: WindowTable

    @property
    def realised_epsilon(self) -> float:
        """ln(ratio), at most epsilon."""
        return math.log(self.ratio)

    @property
    def worst_variance(self) -> Fraction:
        """Bound on the variance at any input, input rounding included."""
        return worst_of(self.table.variance_terms, self.table)

    def to_dict(self) -> dict[str, Any]:
        """A JSON form with exact fractions as text and the table itself."""
        exact = {
            name: str(getattr(self, name)) for name in ("ratio", "lowest", "highest", "mean_error", "worst_variance")
        }
        plain = {name: getattr(self, name) for name in ("epsilon", "total", "codes", "rows", "realised_epsilon")}
        return {**plain, **exact, "covers": COVERS, "table": self.table.to_dict()}

    @classmethod
    def from_dict(cls, form: dict[str, Any]) -> Certificate:
        """Verify the table in a JSON form again; what the form says of itself must agree.

        Raises:
            CertificateError: the table fails, or the form claims something else.
        """
        with reading():
            certificate = certify_table(WindowTable.from_dict(form["table"]), form["epsilon"])
            check_claims(form, certificate.to_dict())
        return certificate

    def to_json(self) -> str:
        """``to_dict`` as text."""
        return json.dumps(self.to_dict())

    def __str__(self) -> str:
        lines = [
            f"epsilon             {self.epsilon:g}, realised {self.realised_epsilon:.9g} (exact ratio below e^epsilon)",
            f"reports             {self.codes} codes from {float(self.lowest):.9g} to {float(self.highest):.9g}",
            f"inputs              {self.rows} rows from {self.table.lower:g} to {self.table.upper:g}",
            f"total weight        2^{self.total.bit_length() - 1}, for every row",
            f"row means           equal to the input, as fractions (error {self.mean_error})",
            f"variance            at most {float(self.worst_variance):.9g} at any input",
            f"covers              {COVERS}",
        ]
        return "\n".join(lines)


def exp_lower_bound(epsilon: float | Fraction) -> Fraction:
    """A rational at most e^epsilon, within 2^-120 of it relatively; a float is read as the decimal it prints as.

    Horner's rule for a Taylor sum of positive terms, every step rounded down to a multiple of 2^-160.
    """
    eps, unit = rational(epsilon) if isinstance(epsilon, float) else Fraction(epsilon), 1 << 160
    value = unit
    for n in range(int(4 * eps) + 80, 0, -1):
        value = unit + value * eps.numerator // (eps.denominator * n)
    return Fraction(value, unit)


def certify_table(table: WindowTable, epsilon: float) -> Certificate:
    """Verify everything a release relies on.

    Raises:
        CertificateError: the total is not 2^bits, a report is impossible for some input, a ratio exceeds e^epsilon,
            or a row's mean is not the input; says by how much.
    """
    checks.epsilon(epsilon)
    if table.shifts < 1 or table.window_total == 0:
        raise CertificateError(f"table: {table.codes} codes and {table.shifts} shifts carry no signal")
    if table.total != 1 << table.bits:
        raise CertificateError(f"total: weights sum to 2^{table.bits} {table.total - (1 << table.bits):+d}")
    ratio = _largest_ratio(table)
    bound = exp_lower_bound(epsilon)
    if ratio > bound:
        excess = math.log(ratio) - float(rational(epsilon))
        raise CertificateError(f"epsilon: a ratio is {float(ratio):.9g}, {excess:.3g} above epsilon {epsilon:g}")
    mean_error = _mean_error(table)
    if mean_error:
        raise CertificateError(f"mean: a row is off its input by {float(mean_error):.3g} data units")
    return Certificate(
        epsilon=epsilon,
        ratio=ratio,
        total=table.total,
        codes=table.codes,
        rows=table.shifts + 1,
        lowest=table.value(0),
        highest=table.value(table.codes - 1),
        mean_error=mean_error,
        table=table,
    )


def _largest_ratio(table: WindowTable) -> Fraction:
    high, low = (weights.tolist() for weights in table.extremes())
    if min(low) == 0:
        raise CertificateError(f"support: report {low.index(0)} is impossible for some inputs and not for others")
    best = Fraction(1)
    for pair in set(zip(high, low, strict=True)):
        if pair[0] * best.denominator > pair[1] * best.numerator:
            best = Fraction(*pair)
    return best


def _mean_error(table: WindowTable) -> Fraction:
    """Row means and nominal inputs are both affine in s, so the ends decide."""
    ends = ((0, rational(table.lower)), (table.shifts, rational(table.upper)))
    return max(abs(table.row_mean(s) - nominal) for s, nominal in ends)


def worst_of(terms: tuple[Fraction, Fraction, Fraction], table: WindowTable) -> Fraction:
    """The largest A + c (x - middle)^2 + rho over the table's inputs."""
    A, c, rho = terms
    half = (rational(table.upper) - rational(table.lower)) / 2
    return A + max(Fraction(0), c * half**2) + rho
