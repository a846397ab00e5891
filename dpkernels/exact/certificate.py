"""Base classes of integer tables and of their certificates, computed with Python integers and Fractions only."""

from __future__ import annotations

import abc
import json
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from operator import attrgetter, mul
from typing import ClassVar, Protocol, Self

import numpy as np

from dpkernels.bounded_json import JsonObject, brief
from dpkernels.decimals import rational
from dpkernels.shapes import UInt64
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
MAX_WEIGHTS = 1 << 21  # The largest number of weights that is read. Tables built here have at most this many.


class CertificateError(ValueError):
    """A table does not have the guarantee for which it was made; it is never sampled."""


# Tables


def moments(weights: list[int], places: Sequence[int]) -> tuple[int, int]:
    """Return the sums of weight times place and of weight times its square."""
    products = list(map(mul, weights, places))
    return sum(products), sum(map(mul, products, places))


def integers(name: str, values: object, limit: int) -> list[int]:
    """Return a list of at most ``most`` integers, or raise a ValueError; ``frozen_weights`` checks their range."""
    if type(values) is not list or len(values) > limit:
        raise ValueError(f"{name}: {brief(values)} is not a list of at most {limit} integers")
    if not all(type(value) is int for value in values):
        raise ValueError(f"{name}: not all are integers")
    return values


def frozen_weights(values: object) -> UInt64[np.ndarray, "*rows codes"]:
    """Return a read-only copy as uint64: what has been certified must stay what is sampled."""
    array = np.array(values, np.uint64)
    array.setflags(write=False)
    return array


# Certificates


class Component(Protocol):
    """A table or a certificate, as a component of a certificate."""

    def to_dict(self) -> Mapping[str, object]:
        """Return its JSON payload."""


_KINDS: dict[str, type[Certificate]] = {}


class Certificate(abc.ABC):
    """Verified facts about integers, and their JSON payload, which states the facts beside the integers for readers."""

    kind: ClassVar[str]  # The name of the class in JSON.
    facts: ClassVar[tuple[str, ...]]  # Paths of the attributes in a payload, each under its last name.
    components: ClassVar[Mapping[str, str]]  # Its tables and certificates, from names in JSON to names of attributes.

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
        certified = {name: float(attrgetter(name)(self)) for name in self.entry_claims}
        return np.any([values != certified[name] for name, values in claims.items()], axis=0)

    @classmethod
    @abc.abstractmethod
    def certified(cls, payload: JsonObject) -> Self:
        """Return the certificate of the integers and of the claim in a payload, whatever else the payload states."""

    def to_dict(self) -> JsonObject:
        """Return a JSON payload, with exact fractions as text and the tables themselves."""
        facts = {path.rpartition(".")[2]: attrgetter(path)(self) for path in self.facts}
        values = {name: str(value) if isinstance(value, Fraction) else value for name, value in facts.items()}
        tables = {name: item.to_dict() for name, item in self._components().items()}
        return {"kind": self.kind, **values, "covers": self.covers, **tables}

    def to_json(self) -> str:
        """Return ``to_dict`` as text."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, payload: JsonObject) -> Self:
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
        return "\n".join(self._printed())

    def _printed(self, stated: str = "") -> list[str]:
        """Return the lines of the certificate and its parts, without a coverage that is stated already."""
        covers = [] if self.covers == stated else [("covers", self.covers)]
        lines = [f"{label:<20}{text}" for label, text in (*self.lines(), *covers)]
        for name, component in self._components().items():
            if isinstance(component, Certificate):
                lines += [f"-- {name}", *component._printed(self.covers)]
        return lines

    def _components(self) -> dict[str, Component]:
        return {name: getattr(self, attribute) for name, attribute in self.components.items()}

    def _check(self, payload: JsonObject) -> None:
        """Check that a payload states exactly what the integers give."""
        # Components that are certificates have been checked by themselves.
        checked = [name for name, item in self._components().items() if isinstance(item, Certificate)]
        recomputed = self.to_dict() | {name: payload[name] for name in checked}
        if odd := payload.keys() ^ recomputed.keys():
            raise CertificateError(f"payload: {brief(min(odd))} is missing, or is nothing that can be verified")
        for name, value in recomputed.items():
            if type(payload[name]) is not type(value) or payload[name] != value:
                raise CertificateError(
                    f"{name}: the payload says {brief(payload[name])}, the integers give {brief(value)}"
                )


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
    estimate = Fraction(math.log(ratio))
    # One Newton step makes it accurate to a float's rounding, also near 0.
    estimate += ratio / exp_lower_bound(estimate) - 1
    start = max(0.0, float(estimate))
    start = first_feasible(floats_from(start, -1.0), lambda epsilon: epsilon <= 0 or exp_lower_bound(epsilon) < ratio)
    return first_feasible(floats_from(max(start, 0.0), math.inf), lambda epsilon: exp_lower_bound(epsilon) >= ratio)


def check_totals(bits: int, totals: list[int]) -> None:
    """Refuse weights that are not a distribution, or whose total is not that of a random word."""
    if bits not in WORDS:
        raise CertificateError(f"bits: {brief(bits)} is not one of {', '.join(map(str, WORDS))}")
    for i, total in enumerate(totals):
        if total != 1 << bits:
            row = f" of row {i}" if len(totals) > 1 else ""
            raise CertificateError(f"total: weights{row} sum to 2^{bits} {total - (1 << bits):+d}")
