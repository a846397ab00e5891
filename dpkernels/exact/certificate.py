"""Base classes of integer tables and of their certificates, computed with Python integers and Fractions only."""

from __future__ import annotations

import abc
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from operator import attrgetter, mul
from typing import Any, ClassVar, Self

import numpy as np

from dpkernels import checks
from dpkernels.bounded_json import brief, real
from dpkernels.decimals import float_at_least, rational, shortest
from dpkernels.proven import proven
from dpkernels.solve import first_feasible, floats_from

# What every certificate excludes, and the coverage of those for which any two inputs are neighbours.
LIMITS = (
    "Assumes that the key's generator is indistinguishable from random. Does not cover timing, caches or other side "
    "channels, which rows or columns exist, values copied unperturbed, or the composition of several reports."
)
COVERS = (
    "pure epsilon-DP of each report; neighbouring: any two inputs of the interval (local DP, replace one value). "
    f"{LIMITS}"
)
WORDS = (16, 32, 64)  # The possible log2 of a table's total: the bits of a random word (16 in tests).
MOST_WEIGHTS = 1 << 21  # The largest number of weights that is read. Tables built here have at most this many.


class CertificateError(ValueError):
    """A table does not have the guarantee for which it was made; it is never sampled."""


# Tables


class BoundedTable(abc.ABC):
    """Integer weights: a distribution for each of S + 1 inputs, the rows, which are evenly spaced on an interval.

    Code j stands for the report  middle + step places[j].  The step follows from the rows' means.
    """

    bits: int  # log2 of every row's total.
    lower: float
    upper: float

    @property
    @abc.abstractmethod
    def shifts(self) -> int:
        """Return S, the last row."""

    @property
    @abc.abstractmethod
    def totals(self) -> list[int]:
        """Return the sums of weights that have to be 2^bits, as Python integers."""

    @property
    @abc.abstractmethod
    def doubled_places(self) -> Sequence[int]:
        """Return 2 places[j]: places may be halves."""

    @abc.abstractmethod
    def row_moments(self, s: int) -> tuple[int, int]:
        """Return the sums of weight times doubled place, and of weight times its square, of row s."""

    @property
    @abc.abstractmethod
    def worst_variance(self) -> Fraction:
        """Return the bound on the variance at any input, input rounding included."""

    @abc.abstractmethod
    def extremes(self, row_distance: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the largest and smallest weight of every code in every run of rows at most ``row_distance`` apart."""

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
        return len(self.doubled_places)

    @property
    def slope(self) -> Fraction:
        """Return the derivative of the mean by the input."""
        return Fraction(1)

    @property
    def total(self) -> int:
        return 1 << self.bits

    @property
    def rows(self) -> int:
        return self.shifts + 1

    @cached_property
    def middle(self) -> Fraction:
        return sum(map(rational, self.ends)) / Fraction(2)

    @cached_property
    def gap(self) -> Fraction:
        """Return the data units between neighbouring rows' inputs."""
        return (rational(self.ends[1]) - rational(self.ends[0])) / self.shifts

    @cached_property
    def rise(self) -> int:
        """Return the last row's sum of weight times doubled place minus the first row's."""
        return self.row_moments(self.shifts)[0] - self.row_moments(0)[0]

    @cached_property
    def step(self) -> Fraction:
        """Return the data units between places: means rise by ``slope`` times the distance of the rows' inputs."""
        return 2 * self.slope * self.shifts * self.gap * self.total / self.rise

    def value(self, code: int) -> Fraction:
        return self.middle + self.step * self.doubled_places[code] / 2

    def row_input(self, s: int) -> Fraction:
        return rational(self.ends[0]) + self.gap * s

    def row_mean(self, s: int) -> Fraction:
        return self.middle + self.step * self.row_moments(s)[0] / (2 * self.total)

    def row_variance(self, s: int) -> Fraction:
        first, second = (Fraction(moment, self.total) for moment in self.row_moments(s))
        return (second - first**2) * self.step**2 / 4

    def check(self) -> None:
        """Refuse a table that has no signal, rows that are not distributions, or no interval."""
        if self.shifts < 1 or self.codes < 2 or self.rise <= 0:
            raise CertificateError(f"table: {self.codes} codes and {self.shifts} shifts carry no signal")
        check_totals(self.bits, self.totals)
        checks.interval(self.lower, self.upper)

    def cells(self, sensitivity: float | None) -> int:
        """Return the largest distance of neighbours in rows; by default all rows, as any two inputs are neighbours."""
        if sensitivity is not None:
            raise ValueError(f"sensitivity: {sensitivity!r}; this table is certified for any two inputs")
        return self.shifts


def moments(weights: list[int], places: Sequence[int]) -> tuple[int, int]:
    """Return the sums of weight times place and of weight times its square."""
    products = list(map(mul, weights, places))
    return sum(products), sum(map(mul, products, places))


def integers(name: str, values: Any, limit: int) -> list[int]:
    """Return a list of at most ``most`` integers, or raise a ValueError; ``frozen_weights`` checks their range."""
    if type(values) is not list or len(values) > limit:
        raise ValueError(f"{name}: {brief(values)} is not a list of at most {limit} integers")
    if not all(type(value) is int for value in values):
        raise ValueError(f"{name}: not all are integers")
    return values


def frozen_weights(values: object) -> np.ndarray:
    """Return a read-only copy as uint64: what has been certified must stay what is sampled."""
    array = np.array(values, np.uint64)
    array.setflags(write=False)
    return array


def sliding_extremes(values: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the maximum and the minimum of every ``width`` neighbours along the first axis, by doubling."""
    high, low, span = values, values, 1
    while span < width:
        step = min(span, width - span)
        high, low = np.maximum(high[:-step], high[step:]), np.minimum(low[:-step], low[step:])
        span += step
    return high, low


# Certificates

_KINDS: dict[str, type[Certificate]] = {}


class Certificate(abc.ABC):
    """Verified facts about integers, and their JSON payload, which states the facts beside the integers for readers."""

    kind: ClassVar[str]  # The name of the class in JSON.
    facts: ClassVar[tuple[str, ...]]  # Paths of the attributes in a payload, each under its last name.
    parts: ClassVar[Mapping[str, str]]  # Its tables and certificates, from names in JSON to names of attributes.

    def __init_subclass__(cls, kind: str = "") -> None:
        if kind:
            cls.kind, _KINDS[kind] = kind, cls

    @property
    @abc.abstractmethod
    def covers(self) -> str:
        """Return text: the guarantee, for which neighbours it holds, and what it does not cover."""

    @abc.abstractmethod
    def lines(self) -> list[tuple[str, str]]:
        """Return labels and texts of the printed certificate, without its coverage and its parts' certificates."""

    @property
    def entry_claims(self) -> tuple[str, ...]:
        """Return the names of the numbers that a batch's entry claims by this certificate: attributes of both."""
        return ("epsilon",)

    def refused_entries(self, claims: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return which entries of a batch may not claim these numbers by this certificate: all that are not its own.

        A class whose integers serve other intervals or sensitivities, too, decides by itself.
        """
        own = {name: float(attrgetter(name)(self)) for name in self.entry_claims}
        return np.any([values != own[name] for name, values in claims.items()], axis=0)

    @classmethod
    @abc.abstractmethod
    def certified(cls, payload: dict[str, Any]) -> Self:
        """Return the certificate of the integers and of the claim in a payload, whatever else the payload states."""

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON payload, with exact fractions as text and the tables themselves."""
        facts = {path.rpartition(".")[2]: attrgetter(path)(self) for path in self.facts}
        plain = {name: str(value) if isinstance(value, Fraction) else value for name, value in facts.items()}
        tables = {name: item.to_dict() for name, item in self._parts().items()}
        return {"kind": self.kind, **plain, "covers": self.covers, **tables}

    def to_json(self) -> str:
        """Return ``to_dict`` as text."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, payload: dict[str, Any]) -> Self:
        """Verify the integers in a JSON payload again, and check that the payload's own statements agree.

        A ``CertificateError`` says that the integers do not have the claim, that the payload states something else or
        more, or that it is of another kind than the class that reads it.
        """
        try:
            if payload["kind"] not in _KINDS:
                raise CertificateError(f"kind: {brief(payload['kind'])} is not one of {', '.join(sorted(_KINDS))}")
            kind = _KINDS[payload["kind"]]
            if not issubclass(kind, cls):
                raise CertificateError(f"payload: is of a {kind.__name__}, not of a {cls.__name__}")
            certificate = kind.certified(payload)
            certificate._check(payload)
        except CertificateError:
            raise
        except (KeyError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise CertificateError(f"payload: is not a certificate ({type(error).__name__}: {error})") from error
        return certificate

    def __str__(self) -> str:
        inner = [f"-- {name}\n{item}" for name, item in self._parts().items() if isinstance(item, Certificate)]
        lines = [f"{label:<20}{text}" for label, text in (*self.lines(), ("covers", self.covers))]
        return "\n".join([*lines, *inner])

    def _parts(self) -> dict[str, Any]:
        return {name: getattr(self, attribute) for name, attribute in self.parts.items()}

    def _check(self, payload: dict[str, Any]) -> None:
        """Check that a payload states exactly what the integers give."""
        # Parts that are certificates have been checked by themselves.
        read = {name: payload[name] for name, piece in self._parts().items() if isinstance(piece, Certificate)}
        again = self.to_dict() | read
        if odd := payload.keys() ^ again.keys():
            raise CertificateError(f"payload: {brief(min(odd))} is missing, or is nothing that can be verified")
        for name, value in again.items():
            if type(payload[name]) is not type(value) or payload[name] != value:
                raise CertificateError(
                    f"{name}: the payload says {brief(payload[name])}, the integers give {brief(value)}"
                )


@proven("row_mixtures#proof")
@dataclass(frozen=True)
class BoundedCertificate(Certificate):
    """Verified facts about a table with a row for every one of some inputs."""

    epsilon: float  # The budget, as printed.
    sensitivity: float | None  # The largest distance of neighbouring inputs, or None if any two inputs are neighbours.
    cells: int  # The largest distance, in rows, to which one random word rounds neighbours.
    ratio: Fraction  # The largest of any report's probability between two neighbouring inputs.
    table: Any  # The integers, for independent verification.

    parts: ClassVar[Mapping[str, str]] = {"table": "table"}
    is_unbiased: ClassVar[bool] = True
    table_type: ClassVar[type[Any]]

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
        row_distance = table.cells(sensitivity)
        ratio = certified_ratio(*table.extremes(row_distance), epsilon)
        slope = Fraction(1) if cls.is_unbiased else table.slope
        away = ((table.row_mean(s) - table.middle, table.row_input(s) - table.middle) for s in table.decisive_rows)
        if error := max(abs(mean - slope * x) for mean, x in away):
            raise CertificateError(f"mean: a row is off its input by {float(error):.3g} data units")
        return cls(float(epsilon), None if sensitivity is None else float(sensitivity), row_distance, ratio, table)

    @classmethod
    def certified(cls, payload: dict[str, Any]) -> Self:
        (table,) = cls.parts
        near = payload.get("sensitivity")
        sensitivity = None if near is None else real("sensitivity", near)
        return cls.of(cls.table_type.from_dict(payload[table]), real("epsilon", payload["epsilon"]), sensitivity)

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
        return max(abs(self.table.row_mean(s) - self.table.row_input(s)) for s in (0, self.table.shifts))

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
        near = "any two rows" if self.cells == table.shifts else f"rows up to {self.cells} apart"
        ends = " to ".join(shortest(float(table.row_input(i))) for i in (0, table.shifts))
        realised = shortest(self.realised_epsilon)
        return [
            ("epsilon", f"{shortest(self.epsilon)}, attained {realised} (exact ratio below e^epsilon)"),
            ("reports", f"{table.codes} codes from {float(self.lowest):.9g} to {float(self.highest):.9g}"),
            ("inputs", f"{table.rows} rows from {ends}; ratios of {near}"),
            ("total weight", f"2^{table.bits}, for every row"),
            ("row means", self.means),
            ("variance", f"at most {shortest(float_at_least(self.worst_variance))} at any input"),
        ]


# Verification


def exp_lower_bound(epsilon: float | Fraction, bits: int = 160) -> Fraction:
    """Return a rational at most e^epsilon, within 2^-120 of it relatively; a float stands for its printed decimal.

    With more ``bits``, for an epsilon of at most 2^-10, it is within 2^(8 - bits).
    """
    eps, unit = rational(epsilon) if isinstance(epsilon, float) else Fraction(epsilon), 1 << bits
    value = unit
    # Horner's rule for a Taylor sum of positive terms, every step rounded down to a multiple of 2^-bits.
    for n in range(int(4 * eps) + 80, 0, -1):
        value = unit + value * eps.numerator // (eps.denominator * n)
    return Fraction(value, unit)


def log_upper_bound(ratio: Fraction) -> float:
    """Return the least float whose e^epsilon, by ``exp_lower_bound``, is at least a ratio of 1 or more."""
    near = Fraction(math.log(ratio))
    near += ratio / exp_lower_bound(near) - 1  # One Newton step makes it accurate to a float's rounding, also near 0.
    start = max(0.0, float(near))
    below = first_feasible(floats_from(start, -1.0), lambda epsilon: epsilon <= 0 or exp_lower_bound(epsilon) < ratio)
    return first_feasible(floats_from(max(below, 0.0), math.inf), lambda epsilon: exp_lower_bound(epsilon) >= ratio)


def check_totals(bits: int, totals: list[int]) -> None:
    """Refuse weights that are not a distribution, or whose total is not that of a random word."""
    if bits not in WORDS:
        raise CertificateError(f"bits: {brief(bits)} is not one of {', '.join(map(str, WORDS))}")
    for i, total in enumerate(totals):
        if total != 1 << bits:
            row = f" of row {i}" if len(totals) > 1 else ""
            raise CertificateError(f"total: weights{row} sum to 2^{bits} {total - (1 << bits):+d}")


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
        above = log_upper_bound(ratio) - float(rational(epsilon))
        raise CertificateError(
            f"epsilon: a ratio is {shortest(float(ratio))}, {above:.3g} above epsilon {shortest(epsilon)}"
        )
    return ratio
