"""What certificates of bounded mechanisms have in common: pure DP by the largest ratio of a report's probabilities."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from fractions import Fraction

import numpy as np

from dpkernels import checks
from dpkernels.decimals import float_at_least, rational, shortest
from dpkernels.exact.certificate import (
    Certificate,
    CertificateError,
    check_totals,
    exp_lower_bound,
    line,
    log_upper_bound,
)
from dpkernels.exact.table import BoundedTable


class BoundedCertificate(Certificate):
    """Verified facts about a table with a row for every one of some inputs.

    Attributes:
        epsilon: the budget, as printed.
        cells: how many rows apart neighbouring inputs are rounded to at most, under the same rounding word.
        ratio: the largest ratio of any report's probability between two neighbouring inputs.
        table: the integers, so that anyone can verify again.
    """

    epsilon: float
    ratio: Fraction
    cells: int
    table: BoundedTable

    @property
    def realised_epsilon(self) -> float:
        """ln(ratio), rounded up; at most epsilon."""
        return log_upper_bound(self.ratio)

    @property
    def total(self) -> int:
        """The sum of every row's weights, 2^bits."""
        return 1 << self.table.bits

    @property
    def codes(self) -> int:
        """How many reports are possible, the same for every input."""
        return self.table.codes

    @property
    def rows(self) -> int:
        """How many input rows there are."""
        return self.table.shifts + 1

    @property
    def lowest(self) -> Fraction:
        """Smallest possible report."""
        return self.table.value(0)

    @property
    def highest(self) -> Fraction:
        """Largest possible report."""
        return self.table.value(self.codes - 1)

    @property
    def worst_variance(self) -> Fraction:
        """Bound on the variance at any input, input rounding included."""
        return self.table.worst_variance

    @property
    @abc.abstractmethod
    def means(self) -> str:
        """What is said of the rows' means."""

    def lines(self) -> list[str]:
        near = "any two rows" if self.cells == self.table.shifts else f"rows up to {self.cells} apart"
        ends = " to ".join(shortest(float(self.table.row_input(i))) for i in (0, self.rows - 1))
        realised = shortest(self.realised_epsilon)
        return [
            line("epsilon", f"{shortest(self.epsilon)}, realised {realised} (exact ratio below e^epsilon)"),
            line("reports", f"{self.codes} codes from {float(self.lowest):.9g} to {float(self.highest):.9g}"),
            line("inputs", f"{self.rows} rows from {ends}; ratios of {near}"),
            line("total weight", f"2^{self.table.bits}, for every row"),
            line("row means", self.means),
            line("variance", f"at most {shortest(float_at_least(self.worst_variance))} at any input"),
        ]


class UnbiasedCertificate(BoundedCertificate):
    """Of a table whose means are its inputs; one with another mean is refused."""

    @property
    def mean_error(self) -> Fraction:
        """Largest difference of a row's mean from its input."""
        return Fraction(0)

    @property
    def means(self) -> str:
        return f"equal to the input, as fractions (error {self.mean_error})"


def check_rows(table: BoundedTable) -> None:
    """Refuse a table that has no signal, no distributions for rows, or no interval.

    Raises:
        CertificateError: says what is wrong.
    """
    if table.shifts < 1 or table.codes < 2 or not table.has_signal:
        raise CertificateError(f"table: {table.codes} codes and {table.shifts} shifts carry no signal")
    check_totals(table)
    checks.interval(table.lower, table.upper)


def certified_ratio(high: np.ndarray, low: np.ndarray, epsilon: float) -> Fraction:
    """The largest of every report's largest weight over its smallest.

    Raises:
        CertificateError: a report is impossible for some input, or the ratio is above e^epsilon.
    """
    if not low.all():
        code = int((low == 0).argmax()) % low.shape[-1]
        raise CertificateError(f"support: report {code} is impossible for some inputs and not for others")
    ratio = _largest_ratio(high, low)
    if ratio > exp_lower_bound(epsilon):
        above = log_upper_bound(ratio) - float(rational(epsilon))
        raise CertificateError(
            f"epsilon: a ratio is {shortest(float(ratio))}, {above:.3g} above epsilon {shortest(epsilon)}"
        )
    return ratio


def _largest_ratio(high: np.ndarray, low: np.ndarray) -> Fraction:
    """Exactly: floats, whose quotients are off by less than 2^-50 of themselves, only say which pairs to look at."""
    quotients = high.astype(float) / low.astype(float)
    at = quotients >= quotients.max() * (1 - 2.0**-48)
    return max(Fraction(a, b) for a, b in set(zip(high[at].tolist(), low[at].tolist(), strict=True)))


def check_means(table: BoundedTable, rows: Iterable[int], nominal: Callable[[int], Fraction]) -> None:
    """Refuse a table of which one of the rows has another mean than it has to have: its input, if unbiased.

    Raises:
        CertificateError: says by how much.
    """
    error = max(abs(table.row_mean(i) - nominal(i)) for i in rows)
    if error:
        raise CertificateError(f"mean: a row is off its input by {float(error):.3g} data units")
