"""Certificates: the guarantees of integer tables, computed with Python integers and Fractions only."""

from __future__ import annotations

import abc
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from operator import attrgetter
from typing import Any, ClassVar, Self

import numpy as np

from dpkernels import checks
from dpkernels.bounded_json import brief
from dpkernels.decimals import float_at_least, rational, shortest
from dpkernels.exact.table import WORDS, BoundedTable, Table
from dpkernels.solve import first_feasible, floats_from

# The exclusions that every certificate prints.
LIMITS = (
    "Assumes that the key's generator is indistinguishable from random. Does not cover timing, caches or other side "
    "channels, which rows or columns exist, values copied unperturbed, or the composition of several reports."
)

# The coverage of certificates for which any two inputs are neighbours.
COVERS = (
    "pure epsilon-DP of each report; neighbouring: any two inputs of the interval (local DP, replace one value). "
    f"{LIMITS}"
)

_KINDS: dict[str, type[Certificate]] = {}


class CertificateError(ValueError):
    """A table does not have the guarantee for which it was made; it is never sampled."""


class Certificate(abc.ABC):
    """Verified facts about integers, and their JSON payload.

    A payload contains the facts beside the integers, for human readers. ``from_dict`` recomputes the certificate from
    the integers and the claim, and raises an error if the payload disagrees.

    Attributes:
        kind: the name of the class in JSON.
        facts: the names of the attributes in a payload; Fractions become text.
        parts: its tables and certificates, from names in JSON to names of attributes.
    """

    kind: ClassVar[str]
    facts: ClassVar[tuple[str, ...]]
    parts: ClassVar[Mapping[str, str]]

    def __init_subclass__(cls, kind: str = "") -> None:
        if kind:
            cls.kind, _KINDS[kind] = kind, cls

    @property
    @abc.abstractmethod
    def covers(self) -> str:
        """Return text: the guarantee, for which neighbours it holds, and what it does not cover."""

    @abc.abstractmethod
    def lines(self) -> list[str]:
        """Return the lines of the printed certificate, without its coverage and the certificates of its parts."""

    @classmethod
    @abc.abstractmethod
    def certified(cls, payload: dict[str, Any]) -> Self:
        """Return the certificate of the integers and of the claim in a payload, whatever else the payload states.

        Raises:
            CertificateError: the integers do not have the claim.
        """

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON payload, with exact fractions as text and the tables themselves."""
        facts = {_key(path): attrgetter(path)(self) for path in self.facts}
        plain = {key: str(value) if isinstance(value, Fraction) else value for key, value in facts.items()}
        parts = {key: part.to_dict() for key, part in self._parts().items()}
        return {"kind": self.kind, **plain, "covers": self.covers, **parts}

    def to_json(self) -> str:
        """Return ``to_dict`` as text."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, payload: dict[str, Any]) -> Self:
        """Verify the integers in a JSON payload again, and check that the payload's own statements agree.

        Every kind can be read once ``combined`` has been imported, which ``dpkernels.Certificate`` does.

        Raises:
            CertificateError: the integers do not have the claim, the payload states something else or more, or it is of
                another kind than the class that reads it.
        """
        with reading():
            kind = _kind_of(payload)
            if not issubclass(kind, cls):
                raise CertificateError(f"payload: is of a {kind.__name__}, not of a {cls.__name__}")
            certificate = kind.certified(payload)
            certificate._check(payload)
        return certificate

    def __str__(self) -> str:
        inner = [f"-- {key}\n{part}" for key, part in self._parts().items() if isinstance(part, Certificate)]
        return "\n".join([*self.lines(), line("covers", self.covers), *inner])

    def _parts(self) -> dict[str, Any]:
        return {key: getattr(self, name) for key, name in self.parts.items()}

    def _check(self, payload: dict[str, Any]) -> None:
        """Check that a payload states exactly what the integers give."""
        # Parts that are certificates have been checked by themselves.
        read = {key: payload[key] for key, part in self._parts().items() if isinstance(part, Certificate)}
        again = self.to_dict() | read
        if odd := payload.keys() ^ again.keys():
            raise CertificateError(f"payload: {brief(min(odd))} is missing, or is nothing that can be verified")
        for name, value in again.items():
            if type(payload[name]) is not type(value) or payload[name] != value:
                raise CertificateError(
                    f"{name}: the payload says {brief(payload[name])}, the integers give {brief(value)}"
                )


def _key(path: str) -> str:
    return path.rpartition(".")[2]


def _kind_of(payload: dict[str, Any]) -> type[Certificate]:
    if payload["kind"] not in _KINDS:
        raise CertificateError(f"kind: {brief(payload['kind'])} is not one of {', '.join(sorted(_KINDS))}")
    return _KINDS[payload["kind"]]


@contextmanager
def reading() -> Iterator[None]:
    """Raise any error that occurs while a payload is read as a ``CertificateError``.

    Raises:
        CertificateError: for any of these errors.
    """
    try:
        yield
    except CertificateError:
        raise
    except (KeyError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise CertificateError(f"payload: is not a certificate ({type(error).__name__}: {error})") from error


def line(label: str, text: str) -> str:
    """Return a line of a certificate as text."""
    return f"{label:<20}{text}"


def check_totals(table: Table) -> None:
    """Refuse weights that are not a distribution, or whose total is not that of a random word.

    Raises:
        CertificateError: the weights are not valid.
    """
    if table.bits not in WORDS:
        raise CertificateError(f"bits: {brief(table.bits)} is not one of {', '.join(map(str, WORDS))}")
    for i, total in enumerate(table.totals):
        if total != 1 << table.bits:
            row = f" of row {i}" if len(table.totals) > 1 else ""
            raise CertificateError(f"total: weights{row} sum to 2^{table.bits} {total - (1 << table.bits):+d}")


def exp_lower_bound(epsilon: float | Fraction) -> Fraction:
    """Return a rational at most e^epsilon, within 2^-120 of it relatively; a float is read as the decimal it prints as.

    Horner's rule for a Taylor sum of positive terms, every step rounded down to a multiple of 2^-160.
    """
    eps, unit = rational(epsilon) if isinstance(epsilon, float) else Fraction(epsilon), 1 << 160
    value = unit
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


class BoundedCertificate(Certificate):
    """Verified facts about a table with a row for every one of some inputs.

    Attributes:
        epsilon: the budget, as printed.
        cells: the largest distance, in rows, of the rows to which neighbours are rounded under the same random word.
        ratio: the largest ratio of any report's probability between two neighbouring inputs.
        table: the integers, for independent verification.
    """

    epsilon: float
    ratio: Fraction
    cells: int
    table: BoundedTable

    facts: ClassVar[tuple[str, ...]] = (
        "epsilon",
        "total",
        "codes",
        "rows",
        "realised_epsilon",
        "ratio",
        "lowest",
        "highest",
        "mean_error",
        "worst_variance",
    )

    @property
    def realised_epsilon(self) -> float:
        """Return ln(ratio), rounded up; at most epsilon."""
        return log_upper_bound(self.ratio)

    @property
    def total(self) -> int:
        """Return the sum of every row's weights, 2^bits."""
        return 1 << self.table.bits

    @property
    def codes(self) -> int:
        """Return the number of possible reports, which is the same for every input."""
        return self.table.codes

    @property
    def rows(self) -> int:
        """Return the number of input rows."""
        return self.table.shifts + 1

    @property
    def lowest(self) -> Fraction:
        """Return the smallest possible report."""
        return self.table.value(0)

    @property
    def highest(self) -> Fraction:
        """Return the largest possible report."""
        return self.table.value(self.codes - 1)

    @property
    def worst_variance(self) -> Fraction:
        """Return the bound on the variance at any input, input rounding included."""
        return self.table.worst_variance

    @property
    @abc.abstractmethod
    def means(self) -> str:
        """Return the printed statement about the means of the rows."""

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
    """A certificate of a table whose row means are its inputs; any other table is refused."""

    @property
    def mean_error(self) -> Fraction:
        """Return the largest difference of a row's mean from its input."""
        return Fraction(0)

    @property
    def means(self) -> str:
        return f"equal to the input, as fractions (error {self.mean_error})"


def check_rows(table: BoundedTable) -> None:
    """Refuse a table that has no signal, rows that are not distributions, or no valid interval.

    Raises:
        CertificateError: the table is not valid.
    """
    if table.shifts < 1 or table.codes < 2 or not table.has_signal:
        raise CertificateError(f"table: {table.codes} codes and {table.shifts} shifts carry no signal")
    check_totals(table)
    checks.interval(table.lower, table.upper)


def certified_ratio(high: np.ndarray, low: np.ndarray, epsilon: float) -> Fraction:
    """Return the largest of every report's largest weight over its smallest.

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
    """Return the largest ratio exactly; float quotients, within 2^-50 relatively, only select the pairs to compare."""
    quotients = high.astype(float) / low.astype(float)
    at = quotients >= quotients.max() * (1 - 2.0**-48)
    return max(Fraction(a, b) for a, b in set(zip(high[at].tolist(), low[at].tolist(), strict=True)))


def check_means(table: BoundedTable, rows: Iterable[int], nominal: Callable[[int], Fraction]) -> None:
    """Refuse a table if a row's mean differs from the required one, which is its input for unbiased tables.

    Raises:
        CertificateError: a mean differs; the message has the difference.
    """
    error = max(abs(table.row_mean(i) - nominal(i)) for i in rows)
    if error:
        raise CertificateError(f"mean: a row is off its input by {float(error):.3g} data units")
