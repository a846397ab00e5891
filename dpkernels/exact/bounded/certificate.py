"""Tables of weights for each input of an interval, and their certificates of pure epsilon-DP."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from operator import attrgetter
from typing import ClassVar, Self

import numpy as np

from dpkernels import checks
from dpkernels.bounded_json import JsonObject, real
from dpkernels.decimals import float_at_least, rational, shortest
from dpkernels.exact.certificate import (
    COVERS,
    LIMITS,
    Certificate,
    CertificateError,
    check_totals,
    exp_lower_bound,
    log_upper_bound,
)
from dpkernels.proven import proven
from dpkernels.shapes import Num

# Of the mechanism's variances, relatively, within which those of every table are: ``estimate_mean`` allows for it.
PROMISED_DEVIATION = 1e-3


class BoundedTable(abc.ABC):
    """Integer weights: a distribution for each of S + 1 inputs, the rows, which are evenly spaced on an interval.

    Code j stands for the report  middle + step offsets[j].  The step follows from the rows' means.
    """

    bits: int  # log2 of every row's total.
    lower: float
    upper: float

    @property
    @abc.abstractmethod
    def last_row(self) -> int:
        """Return S, the last row."""

    @property
    @abc.abstractmethod
    def totals(self) -> list[int]:
        """Return the sums of weights that have to be 2^bits, as Python integers."""

    @property
    @abc.abstractmethod
    def doubled_offsets(self) -> Sequence[int]:
        """Return 2 offsets[j]: offsets may be halves."""

    @abc.abstractmethod
    def row_moments(self, s: int) -> tuple[int, int]:
        """Return the sums of weight times doubled offset, and of weight times its square, of row s."""

    @property
    @abc.abstractmethod
    def worst_variance(self) -> Fraction:
        """Return the bound on the variance at any input, input rounding included."""

    @abc.abstractmethod
    def extremes(self, row_distance: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the largest and smallest weight of every code in every run of rows at most ``row_distance`` apart."""

    @abc.abstractmethod
    def to_dict(self) -> Mapping[str, object]:
        """Return the table's JSON payload."""

    @classmethod
    @abc.abstractmethod
    def from_dict(cls, payload: JsonObject) -> Self:
        """Return the table in a payload, after a check of types and sizes only."""

    @property
    def decisive_rows(self) -> Iterable[int]:
        """Return rows such that all means are as required if theirs are."""
        return range(self.rows)

    @property
    def ends(self) -> tuple[float, float]:
        """Return the nominal inputs of the first and of the last row."""
        return self.lower, self.upper

    @property
    def codes(self) -> int:
        """Return N, how many reports are possible, the same for every input."""
        return len(self.doubled_offsets)

    @property
    def slope(self) -> Fraction:
        """Return the derivative of the mean by the input."""
        return Fraction(1)

    @property
    def total(self) -> int:
        return 1 << self.bits

    @property
    def rows(self) -> int:
        return self.last_row + 1

    @cached_property
    def middle(self) -> Fraction:
        return sum(map(rational, self.ends)) / Fraction(2)

    @cached_property
    def row_spacing(self) -> Fraction:
        """Return the data units between neighbouring rows' inputs."""
        return (rational(self.ends[1]) - rational(self.ends[0])) / self.last_row

    @cached_property
    def offset_rise(self) -> int:
        """Return the last row's sum of weight times doubled offset minus the first row's."""
        return self.row_moments(self.last_row)[0] - self.row_moments(0)[0]

    @cached_property
    def report_step(self) -> Fraction:
        """Return the data units between offsets: means rise by ``slope`` times the distance of the rows' inputs."""
        return 2 * self.slope * self.last_row * self.row_spacing * self.total / self.offset_rise

    def value(self, code: int) -> Fraction:
        return self.middle + self.report_step * self.doubled_offsets[code] / 2

    def row_input(self, s: int) -> Fraction:
        return rational(self.ends[0]) + self.row_spacing * s

    def row_mean(self, s: int) -> Fraction:
        return self.middle + self.report_step * self.row_moments(s)[0] / (2 * self.total)

    def row_variance(self, s: int) -> Fraction:
        first, second = (Fraction(moment, self.total) for moment in self.row_moments(s))
        return (second - first**2) * self.report_step**2 / 4

    def check(self) -> None:
        """Refuse a table that has no signal, rows that are not distributions, or no interval."""
        if self.last_row < 1 or self.codes < 2 or self.offset_rise <= 0:
            raise CertificateError(f"table: {self.codes} codes and {self.last_row} shifts carry no signal")
        check_totals(self.bits, self.totals)
        checks.interval(self.lower, self.upper)

    def rows_apart(self, sensitivity: float | None) -> int:
        """Return the largest distance of neighbours in rows; by default all rows, as any two inputs are neighbours."""
        if sensitivity is not None:
            raise ValueError(f"sensitivity: {sensitivity!r}; this table is certified for any two inputs")
        return self.last_row


def sliding_extremes(
    values: Num[np.ndarray, " rows *codes"], width: int
) -> tuple[Num[np.ndarray, " row_runs *codes"], Num[np.ndarray, " row_runs *codes"]]:
    """Return the maximum and the minimum of every ``width`` neighbours along the first axis, by doubling."""
    high, low, span = values, values, 1
    while span < width:
        step = min(span, width - span)
        high, low = np.maximum(high[:-step], high[step:]), np.minimum(low[:-step], low[step:])
        span += step
    return high, low


@proven("row_mixtures#proof")
@dataclass(frozen=True)
class BoundedCertificate(Certificate):
    """Verified facts about a table with a row for every one of some inputs."""

    epsilon: float  # The budget, as printed.
    sensitivity: float | None  # The largest distance of neighbouring inputs, or None if any two inputs are neighbours.
    cells: int  # The largest distance, in rows, to which one random word rounds neighbours.
    ratio: Fraction  # The largest of any report's probability between two neighbouring inputs.
    table: BoundedTable  # The integers, for independent verification.

    components: ClassVar[Mapping[str, str]] = {"table": "table"}
    is_unbiased: ClassVar[bool] = True
    table_type: ClassVar[type[BoundedTable]]

    facts: ClassVar[tuple[str, ...]] = (
        *("epsilon", "table.total", "table.codes", "table.rows", "realised_epsilon", "ratio", "lowest", "highest"),
        *("mean_error", "worst_variance"),
    )

    @classmethod
    def of(cls, table: BoundedTable, epsilon: float, sensitivity: float | None = None) -> Self:
        """Verify totals, support, ratios, means and rows, and return the certificate, or say what fails by how much."""
        checks.epsilon(epsilon)
        table.check()
        # One random word rounds neighbours to rows at most ``row_distance`` apart, see docs/proofs/row_mixtures.md.
        row_distance = table.rows_apart(sensitivity)
        ratio = certified_ratio(*table.extremes(row_distance), epsilon)
        slope = Fraction(1) if cls.is_unbiased else table.slope
        centred = ((table.row_mean(s) - table.middle, table.row_input(s) - table.middle) for s in table.decisive_rows)
        if error := max(abs(mean - slope * x) for mean, x in centred):
            raise CertificateError(f"mean: a row is off its input by {float(error):.3g} data units")
        return cls(float(epsilon), None if sensitivity is None else float(sensitivity), row_distance, ratio, table)

    @classmethod
    def certified(cls, payload: JsonObject) -> Self:
        (table,) = cls.components
        sensitivity = payload.get("sensitivity")
        distance = None if sensitivity is None else real("sensitivity", sensitivity)
        return cls.of(cls.table_type.from_dict(payload[table]), real("epsilon", payload["epsilon"]), distance)

    @property
    def realised_epsilon(self) -> float:
        """Return ln(ratio), rounded up; at most epsilon."""
        return log_upper_bound(self.ratio)

    @property
    def lowest(self) -> Fraction:
        return self.table.value(0)

    @property
    def highest(self) -> Fraction:
        return self.table.value(self.table.codes - 1)

    @property
    def mean_error(self) -> Fraction:
        """Return the largest difference of a row's mean from its input, which is that of the first or the last row."""
        return max(abs(self.table.row_mean(s) - self.table.row_input(s)) for s in (0, self.table.last_row))

    worst_variance = property(attrgetter("table.worst_variance"))
    lower = property(attrgetter("table.lower"))
    upper = property(attrgetter("table.upper"))

    @property
    def entry_claims(self) -> tuple[str, ...]:
        return ("epsilon", "lower", "upper", *(() if self.sensitivity is None else ("sensitivity",)))

    @property
    def covers(self) -> str:
        if self.sensitivity is None:
            return COVERS
        return (
            "pure epsilon-DP of each report; neighbouring: inputs of the interval at most "
            f"{shortest(self.sensitivity)} apart (the floats that are perturbed). {LIMITS}"
        )

    @property
    def means(self) -> str:
        """Return the printed statement about the means of the rows."""
        return f"equal to the input, as fractions (error {self.mean_error})"

    def lines(self) -> list[tuple[str, str]]:
        table = self.table
        neighbours = "any two of them" if self.cells == table.last_row else f"those up to {self.cells} places apart"
        ends = " to ".join(shortest(float(table.row_input(i))) for i in (0, table.last_row))
        realised = shortest(self.realised_epsilon)
        return [
            ("epsilon", f"{shortest(self.epsilon)}, attained {realised} (the logarithm of the largest ratio)"),
            ("reports", f"{table.codes} values from {float(self.lowest):.9g} to {float(self.highest):.9g}"),
            ("inputs", f"{table.rows} values from {ends}, one row of weights each; neighbours are {neighbours}"),
            ("total weight", f"2^{table.bits}, for every row"),
            ("row means", self.means),
            ("variance", f"at most {shortest(float_at_least(self.worst_variance))} at any input"),
        ]


# Verification


def certified_ratio(high: np.ndarray, low: np.ndarray, epsilon: float) -> Fraction:
    """Return the largest ratio of a report's largest weight to its smallest; refuse one above e^epsilon."""
    if not low.all():
        code = int((low == 0).argmax()) % low.shape[-1]
        raise CertificateError(f"support: report {code} is impossible for some inputs and not for others")
    # Float quotients, within 2^-50 relatively, only select the pairs to compare exactly.
    quotients = high.astype(float) / low.astype(float)
    candidates = quotients >= quotients.max() * (1 - 2.0**-48)
    ratio = max(Fraction(a, b) for a, b in set(zip(high[candidates].tolist(), low[candidates].tolist(), strict=True)))
    if ratio > exp_lower_bound(epsilon):
        overshoot = log_upper_bound(ratio) - float(rational(epsilon))
        raise CertificateError(
            f"epsilon: a ratio is {shortest(float(ratio))}, {overshoot:.3g} above epsilon {shortest(epsilon)}"
        )
    return ratio
