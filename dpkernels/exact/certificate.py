"""Certificates: what integers guarantee, computed from them with Python integers and Fractions only."""

from __future__ import annotations

import abc
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from operator import attrgetter
from typing import Any, ClassVar, Self

from dpkernels.decimals import rational, shortest
from dpkernels.exact.table import WORDS, Table
from dpkernels.solve import first_feasible, floats_from
from dpkernels.untrusted import brief

# What no certificate covers, in the words of all of them.
LIMITS = (
    "Assumes that the key's generator is indistinguishable from random. Does not cover timing, caches or other side "
    "channels, which rows or columns exist, values copied unperturbed, or the composition of several reports."
)

_KINDS: dict[str, type[Certificate]] = {}


class CertificateError(ValueError):
    """A table does not have the guarantee it was made for; it is never sampled."""


class Certificate(abc.ABC):
    """Verified facts about integers, and their JSON form.

    A form states the facts beside the integers, for those who only read it. Whoever reads it with ``from_dict`` gets a
    certificate made anew from the integers and the claim, and an error if the form says anything else.

    Attributes:
        kind: the name of the class in JSON.
        facts: what a form states, as names of attributes; Fractions become text.
        parts: its tables and certificates, names in JSON to names of attributes.
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
        """What is guaranteed, for which neighbours, and what is not."""

    @abc.abstractmethod
    def lines(self) -> list[str]:
        """What it says for a person, but for what it covers and the certificates it is made of."""

    @classmethod
    @abc.abstractmethod
    def certified(cls, form: dict[str, Any]) -> Self:
        """The certificate of the integers and of the claim in a form, whatever else the form states.

        Raises:
            CertificateError: the integers do not have the claim.
        """

    def to_dict(self) -> dict[str, Any]:
        """A JSON form, with exact fractions as text and the tables themselves."""
        facts = {_key(path): attrgetter(path)(self) for path in self.facts}
        plain = {key: str(value) if isinstance(value, Fraction) else value for key, value in facts.items()}
        parts = {key: part.to_dict() for key, part in self._parts().items()}
        return {"kind": self.kind, **plain, "covers": self.covers, **parts}

    def to_json(self) -> str:
        """``to_dict`` as text."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, form: dict[str, Any]) -> Self:
        """Verify the integers in a JSON form again; what the form says of itself must agree.

        Every kind can be read once ``combined`` has been imported, which ``dpkernels.Certificate`` does.

        Raises:
            CertificateError: the integers do not have the claim, the form states something else or something more, or
                it is of another kind than the class that reads it.
        """
        with reading():
            kind = _kind_of(form)
            if not issubclass(kind, cls):
                raise CertificateError(f"form: is of a {kind.__name__}, not of a {cls.__name__}")
            certificate = kind.certified(form)
            certificate._check(form)
        return certificate

    def __str__(self) -> str:
        inner = [f"-- {key}\n{part}" for key, part in self._parts().items() if isinstance(part, Certificate)]
        return "\n".join([*self.lines(), line("covers", self.covers), *inner])

    def _parts(self) -> dict[str, Any]:
        return {key: getattr(self, name) for key, name in self.parts.items()}

    def _check(self, form: dict[str, Any]) -> None:
        """A form states what the integers give, all of it, and nothing else."""
        # Parts that are certificates have been checked by themselves.
        read = {key: form[key] for key, part in self._parts().items() if isinstance(part, Certificate)}
        again = self.to_dict() | read
        form = form if "kind" in form else _with_kind(form, again)
        if odd := form.keys() ^ again.keys():
            raise CertificateError(f"form: {brief(min(odd))} is missing, or is nothing that can be verified")
        for name, value in again.items():
            if type(form[name]) is not type(value) or form[name] != value:
                raise CertificateError(f"{name}: the form says {brief(form[name])}, the integers give {brief(value)}")


def _key(path: str) -> str:
    return path.rpartition(".")[2]


def _kind_of(form: dict[str, Any]) -> type[Certificate]:
    """The class of a form; before forms had a kind, it follows from the names of what they state."""
    if "kind" in form:
        if form["kind"] not in _KINDS:
            raise CertificateError(f"kind: {brief(form['kind'])} is not one of {', '.join(sorted(_KINDS))}")
        return _KINDS[form["kind"]]
    for kind in _KINDS.values():
        if form.keys() == {*map(_key, kind.facts), "covers", *kind.parts}:
            return kind
    raise CertificateError("form: is not a certificate; it has no kind, and states what is of none")


def _with_kind(form: dict[str, Any], again: dict[str, Any]) -> dict[str, Any]:
    """A form from before there were kinds, in today's words where it says the same in the words of its time.

    These were the logarithm of the machine for the realised epsilon, the float nearest to a sum of budgets, and 12
    digits of a sensitivity in ``covers``.
    """
    form = {"kind": again["kind"], **form}
    rounded = {} if "delta" in form else {"realised_epsilon": 1e-12}
    rounded |= {"epsilon": 2.0**-52} if "sampled" in form else {}
    for name, share in rounded.items():
        if math.isclose(form[name], again[name], rel_tol=share):
            form[name] = again[name]
    if isinstance(D := again.get("sensitivity"), float):
        near = f"at most {shortest(D)} apart", f"at most {D:.12g} apart"
        form["covers"] = again["covers"] if form["covers"] == again["covers"].replace(*near) else form["covers"]
    return form


@contextmanager
def reading() -> Iterator[None]:
    """Whatever goes wrong while a form is read becomes a ``CertificateError``: the form is not a certificate.

    Raises:
        CertificateError: for any of these errors.
    """
    try:
        yield
    except CertificateError:
        raise
    except (KeyError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise CertificateError(f"form: is not a certificate ({type(error).__name__}: {error})") from error


def line(label: str, text: str) -> str:
    """A line of a certificate as text."""
    return f"{label:<20}{text}"


def check_totals(table: Table) -> None:
    """Refuse weights that are not a distribution, or whose total is not that of a random word.

    Raises:
        CertificateError: says what is wrong.
    """
    if table.bits not in WORDS:
        raise CertificateError(f"bits: {brief(table.bits)} is not one of {', '.join(map(str, WORDS))}")
    for i, total in enumerate(table.totals):
        if total != 1 << table.bits:
            row = f" of row {i}" if len(table.totals) > 1 else ""
            raise CertificateError(f"total: weights{row} sum to 2^{table.bits} {total - (1 << table.bits):+d}")


def exp_lower_bound(epsilon: float | Fraction) -> Fraction:
    """A rational at most e^epsilon, within 2^-120 of it relatively; a float is read as the decimal it prints as.

    Horner's rule for a Taylor sum of positive terms, every step rounded down to a multiple of 2^-160.
    """
    eps, unit = rational(epsilon) if isinstance(epsilon, float) else Fraction(epsilon), 1 << 160
    value = unit
    for n in range(int(4 * eps) + 80, 0, -1):
        value = unit + value * eps.numerator // (eps.denominator * n)
    return Fraction(value, unit)


def log_upper_bound(ratio: Fraction) -> float:
    """The least float whose e^epsilon, by ``exp_lower_bound``, is at least a ratio of 1 or more."""
    near = Fraction(math.log(ratio))
    near += ratio / exp_lower_bound(near) - 1  # A step of Newton's: right to a float's last digits, also near 0.
    start = max(0.0, float(near))
    below = first_feasible(floats_from(start, -1.0), lambda epsilon: epsilon <= 0 or exp_lower_bound(epsilon) < ratio)
    return first_feasible(floats_from(max(below, 0.0), math.inf), lambda epsilon: exp_lower_bound(epsilon) >= ratio)
