"""What is said of a finished release: the sidecar, from which anyone can verify it, and the summary."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, singledispatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

import dpkernels
from dpkernels.bounded_json import brief
from dpkernels.cli.files.layout import Layout
from dpkernels.cli.files.row_options import RowOptions
from dpkernels.cli.text import aligned, listed, shown
from dpkernels.decimals import float_at_least, rational, shortest
from dpkernels.exact.certificate import BoundedCertificate
from dpkernels.exact.combined import MixtureCertificate
from dpkernels.exact.noise.certificate import NoiseCertificate
from dpkernels.exact.rows.certificate import RowCertificate
from dpkernels.exact.sampler import ExactSampler
from dpkernels.exact.windows.certificate import PlacedCertificate, WindowCertificate
from dpkernels.mechanisms.base import Mechanism

if TYPE_CHECKING:
    from dpkernels.cli.ledger import LedgerCharge


_LOCAL = "any two values of a row (local DP, replace one row's values)"
_MIXED = "rows whose perturbed values are neighbouring in every column"


@dataclass(frozen=True)
class Guarantee:
    """The (epsilon, delta) of one report and what it is for.

    Attributes:
        epsilon: the budget.
        realised_epsilon: what the integers realise of it.
        delta: the delta; 0 for bounded mechanisms.
        realised_delta: what the integers realise of it.
        stated: what the mechanism's own parameters must say.
        neighbours: which values are neighbouring, for a table.
        limits: why values are refused, if not for an interval of the user's.
    """

    epsilon: float
    realised_epsilon: float
    delta: float
    realised_delta: float
    stated: dict[str, float]
    neighbours: str
    limits: str = ""


@singledispatch
def guarantee(certificate: Any) -> Guarantee:
    """Return the guarantee of a certificate of single reports.

    Raises:
        ValueError: a certificate of vectors.
    """
    raise ValueError(f"certificate: {type(certificate).__name__} is not of single values")


@guarantee.register(WindowCertificate)
@guarantee.register(PlacedCertificate)
def _(certificate: WindowCertificate | PlacedCertificate) -> Guarantee:
    return _bounded(certificate, certificate)


@guarantee.register
def _(certificate: MixtureCertificate) -> Guarantee:
    return _bounded(certificate, certificate.first)


@guarantee.register
def _(certificate: RowCertificate) -> Guarantee:
    if certificate.sensitivity is None:
        return _bounded(certificate, certificate)
    local, D = _bounded(certificate, certificate), certificate.sensitivity
    lower, upper = certificate.table.lower, certificate.table.upper
    near = f"at most {shortest(D)} apart, in [{shortest(lower)}, {shortest(upper)}]"
    return replace(local, stated={**local.stated, "sensitivity": D}, neighbours=near)


def _bounded(whole: BoundedCertificate | MixtureCertificate, part: BoundedCertificate) -> Guarantee:
    epsilon, lower, upper = whole.epsilon, part.table.lower, part.table.upper
    stated = {"epsilon": epsilon, "lower": lower, "upper": upper}
    near = f"any two in [{shortest(lower)}, {shortest(upper)}]"
    return Guarantee(epsilon, whole.realised_epsilon, 0.0, 0.0, stated, near)


@guarantee.register
def _(certificate: NoiseCertificate) -> Guarantee:
    epsilon, delta, D = certificate.epsilon, certificate.delta, certificate.sensitivity
    return Guarantee(
        epsilon,
        certificate.realised_epsilon,
        delta,
        float_at_least(certificate.realised_delta),
        {"epsilon": epsilon, "delta": delta, "sensitivity": D},
        f"at most {shortest(D)} apart",
        "; additive noise takes values up to 2^34 sensitivities from 0",
    )


def of_a_row(guarantees: Iterable[Guarantee]) -> str:
    """Return which rows are neighbouring."""
    return _MIXED if any("sensitivity" in one.stated for one in guarantees) else _LOCAL


FORMAT = 3


@dataclass(frozen=True)
class Column:
    """One perturbed column.

    Attributes:
        name: its name; None for an array.
        mechanism: the mechanism's name.
        form: its certified form.
        options: what the mechanism was made with.
    """

    name: str | None
    mechanism: str
    form: ExactSampler
    options: Mapping[str, Any]

    @cached_property
    def guarantee(self) -> Guarantee:
        """What its certificate guarantees."""
        return guarantee(self.form.certificate)

    @property
    def title(self) -> str:
        """Its name for a terminal."""
        return title(self.name)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form with the certificate, and without anything secret."""
        return {
            "column": self.name,
            "mechanism": self.mechanism,
            "options": dict(self.options),
            "parameters": parameters(self.form.mechanism),
            "neighbouring": self.guarantee.neighbours,
            "certificate": self.form.certificate.to_dict(),
        }


@dataclass(frozen=True)
class Release:
    """A finished release.

    Attributes:
        columns: what was perturbed.
        rows: how many rows there are.
        values_per_row: how many values a row holds in each column.
        clip: whether inputs were clipped.
        form: how the file is written.
        row_options: what else was done to rows.
        not_kept: what of the file, besides the replaced columns, the output does not have.
        ledger_charge: what was charged for it, if it was.
    """

    columns: tuple[Column, ...]
    rows: int
    values_per_row: int
    clip: bool
    form: Layout
    row_options: RowOptions
    not_kept: tuple[str, ...] = ()
    ledger_charge: LedgerCharge | None = None

    @cached_property
    def epsilon(self) -> float:
        """The budget of a row: the sum over its values, each budget read as the decimal it prints as."""
        return total([one.epsilon for one in self.guarantees], self.values_per_row)

    @cached_property
    def delta(self) -> float:
        """The delta of a row, likewise."""
        return total([one.delta for one in self.guarantees], self.values_per_row)

    @cached_property
    def realised_epsilon(self) -> float:
        """The sum of what the tables realise."""
        return self.values_per_row * sum(one.realised_epsilon for one in self.guarantees)

    @cached_property
    def realised_delta(self) -> float:
        """The sum of what the tables realise."""
        return self.values_per_row * sum(one.realised_delta for one in self.guarantees)

    @property
    def guarantees(self) -> list[Guarantee]:
        """The columns' guarantees."""
        return [column.guarantee for column in self.columns]

    @property
    def neighbouring(self) -> str:
        """Which rows the totals are for."""
        return of_a_row(self.guarantees)


def total(parts: list[float], values_per_row: int) -> float:
    """Basic composition over the values of a row, without rounding on the way."""
    return float(exact_total(parts, values_per_row))


def exact_total(parts: list[float], values_per_row: int) -> Fraction:
    """Return the same, not rounded at all."""
    return values_per_row * sum(map(rational, parts), Fraction(0))


def title(name: str | None) -> str:
    """Return a column's name for a terminal; an array has none."""
    return "(array)" if name is None else shown(name)


def parameters(mechanism: Mechanism) -> dict[str, float]:
    """Return every number of a mechanism by its name; tables are in its certificate."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(mechanism)
    numbers = [(path, leaf) for path, leaf in leaves if np.ndim(leaf) == 0]
    return {jax.tree_util.keystr(path, simple=True, separator="."): float(leaf) for path, leaf in numbers}


def law_of(mechanism: Mechanism) -> str:
    """Return the parameters of additive noise in a sentence; nothing for other mechanisms."""
    named = {name.removeprefix("noise."): value for name, value in parameters(mechanism).items() if "noise." in name}
    return ", ".join(f"{name} {value:.9g}" for name, value in named.items())


@dataclass(frozen=True)
class Written:
    """What binds a sidecar to its output.

    Attributes:
        sha256: of the output, in hexadecimal.
        size: of the output in bytes.
        names: all its columns, perturbed or not, in their order; empty for an array.
    """

    sha256: str
    size: int
    names: Sequence[str]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form."""
        return {"sha256": self.sha256, "bytes": self.size, "columns": list(self.names)}


@dataclass(frozen=True)
class WrittenPart:
    """One file of a release of many.

    Attributes:
        name: in the sidecar's folder.
        rows: how many it has.
        size: in bytes.
        sha256: in hexadecimal.
    """

    name: str
    rows: int
    size: int
    sha256: str

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form."""
        return {"name": self.name, "rows": self.rows, "bytes": self.size, "sha256": self.sha256}


@dataclass(frozen=True)
class WrittenParts:
    """What binds a sidecar to an output of many files.

    Attributes:
        parts: these, in the order of their rows.
        names: all columns of each, in their order; empty for arrays.
    """

    parts: Sequence[WrittenPart]
    names: Sequence[str]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form."""
        return {"parts": [part.to_dict() for part in self.parts], "columns": list(self.names)}


def to_json(release: Release, written: Written | WrittenParts) -> str:
    """Return the sidecar's text."""
    form = {
        "format": FORMAT,
        "epsilon": release.epsilon,
        "realised_epsilon": release.realised_epsilon,
        "delta": release.delta,
        "realised_delta": release.realised_delta,
        "neighbouring": release.neighbouring,
        "rows": release.rows,
        "values_per_row": release.values_per_row,
        "clip": release.clip,
        "output": written.to_dict(),
        "layout": release.form.to_dict(),
        **release.row_options.to_dict(),
        "not_kept": release.not_kept,
        "columns": [column.to_dict() for column in release.columns],
        "versions": versions(),
    }
    if release.ledger_charge is not None:
        form["ledger"] = release.ledger_charge.to_dict()
    return json.dumps(form) + "\n"


def versions() -> dict[str, str]:
    """Return what made the release."""
    return {
        "dpkernels": dpkernels.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


Check = Callable[[Any], bool]

_MISSING = object()
_HEXADECIMAL = frozenset("0123456789abcdef")


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_names(value: Any) -> bool:
    return type(value) is list and all(map(_is_text, value))


def _is_hash(value: Any) -> bool:
    return type(value) is str and len(value) == 64 and _HEXADECIMAL.issuperset(value)


# What each field must be, in words and as a check. A field with a question mark may be missing.
_FIELDS: dict[str, tuple[str, Check]] = {
    "format": ("a whole number", lambda value: type(value) is int),
    "rows": ("a whole number from 0 to 2^63 - 1", _is_count),
    "values_per_row": ("a whole number from 0 to 2^63 - 1", _is_count),
    "missing": ("error, keep or drop", lambda value: value in ("error", "keep", "drop")),
    "decimals": ("null or a whole number", lambda value: value is None or _is_count(value)),
    "layout": ("an object", lambda value: type(value) is dict),
    "columns": ("a list of one or more objects", lambda value: type(value) is list and bool(value)),
    "output": ("an object", lambda value: type(value) is dict),
    "versions": ("an object", lambda value: type(value) is dict),
    "ledger?": ("an object", lambda value: type(value) is dict),
}
_COLUMN: dict[str, tuple[str, Check]] = {
    "column": ("a string, or null for an array", lambda value: value is None or _is_text(value)),
    "mechanism": ("a string", _is_text),
    "options": ("an object", lambda value: type(value) is dict),
    "parameters": ("an object", lambda value: type(value) is dict),
    "certificate": ("an object", lambda value: type(value) is dict),
}
_OUTPUT: dict[str, tuple[str, Check]] = {
    "sha256": ("64 hexadecimal digits", _is_hash),
    "bytes": ("a whole number from 0 to 2^63 - 1", _is_count),
    "columns": ("a list of strings", _is_names),
}
_PARTS: dict[str, tuple[str, Check]] = {
    "parts": ("a list of one or more objects", lambda value: type(value) is list and bool(value)),
    "columns": ("a list of strings", _is_names),
}
_PART: dict[str, tuple[str, Check]] = {
    "name": ("a string", _is_text),
    "rows": ("a whole number from 0 to 2^63 - 1", _is_count),
    "sha256": ("64 hexadecimal digits", _is_hash),
    "bytes": ("a whole number from 0 to 2^63 - 1", _is_count),
}


def check_fields(form: Any) -> None:
    """Refuse what is not shaped as the sidecar of a release; whether it is true is checked elsewhere.

    Raises:
        ValueError: names the field, its value, and what it must be.
    """
    if type(form) is dict and type(form.get("format")) is int and form["format"] != FORMAT:
        raise ValueError(f"format {brief(form['format'])}; this version reads format {FORMAT}")
    _check("", form, _FIELDS)
    for number, column in enumerate(form["columns"]):
        _check(f"columns[{number}].", column, _COLUMN)
    names = [column["column"] for column in form["columns"]]
    if len(set(names)) < len(names):
        raise ValueError(f"columns: one of {brief(names)} is there twice")
    if None in names and len(names) > 1:
        raise ValueError("columns: an array, which has no name, is the only column")
    output = form["output"]
    _check("output.", output, _PARTS if "parts" in output else _OUTPUT)
    for number, part in enumerate(output.get("parts", ())):
        _check(f"output.parts[{number}].", part, _PART)


def _check(where: str, form: Any, fields: dict[str, tuple[str, Check]]) -> None:
    if type(form) is not dict:
        raise ValueError(f"{where.removesuffix('.') or 'JSON'}: {brief(form)} must be an object")
    for name, (words, is_right) in fields.items():
        value = form.get(name.removesuffix("?"), _MISSING)
        if value is _MISSING:
            if name.endswith("?"):
                continue
            raise ValueError(f"{where}{name}: is missing; it must be {words}")
        if not is_right(value):
            raise ValueError(f"{where}{name.removesuffix('?')}: {brief(value)} must be {words}")


def summary_lines(
    release: Release, copied: Sequence[str], places: tuple[Path | str, Path | str] | None, left: Sequence[str] = ()
) -> list[str]:
    """For people: what was done to which column, and what it guarantees.

    Args:
        release: what was done, or checked.
        copied: the columns that are not perturbed.
        places: output and certificates; None for a check.
        left: what a ledger would have left.
    """
    heading = ["column", "mechanism", "neighbours", "epsilon", "realised", "delta", "realised"]
    found = aligned([heading, *map(_column_row, release.columns)])
    found += [line for column in release.columns for line in _noise_line(column)]
    found += _total_lines(release)
    if release.ledger_charge is not None:
        found.append(str(release.ledger_charge))
    if copied:
        found.append(f"copied as they are, NOT protected: {listed(copied)}")
    found += release.row_options.notices()
    if release.not_kept:
        found.append(f"not kept of the file: {'; '.join(release.not_kept)}")
    if places is None:
        return [*found, *left, f"{release.rows} rows can be released; nothing was charged or written"]
    target, sidecar = places
    return [*found, f"{release.rows} rows: {target}, certificates: {sidecar}"]


def summary_dict(
    release: Release, copied: Sequence[str], places: tuple[Path | str, Path | str] | None
) -> dict[str, Any]:
    """For programs: the same."""
    target, sidecar = (None, None) if places is None else map(str, places)
    return {
        "output": target,
        "certificates": sidecar,
        "rows": release.rows,
        "epsilon": release.epsilon,
        "realised_epsilon": release.realised_epsilon,
        "delta": release.delta,
        "realised_delta": release.realised_delta,
        "neighbouring": release.neighbouring,
        "columns": list(map(_column_dict, release.columns)),
        "copied": list(copied),
        **release.row_options.to_dict(),
        "not_kept": list(release.not_kept),
        "notices": release.row_options.notices(),
        "ledger": None if release.ledger_charge is None else release.ledger_charge.to_dict(),
    }


def _column_dict(column: Column) -> dict[str, Any]:
    own = column.guarantee
    return {
        "column": column.name,
        "mechanism": column.mechanism,
        "parameters": parameters(column.form.mechanism),
        "neighbouring": own.neighbours,
        "epsilon": own.epsilon,
        "realised_epsilon": own.realised_epsilon,
        "delta": own.delta,
        "realised_delta": own.realised_delta,
    }


def _column_row(column: Column) -> list[str]:
    own = column.guarantee
    realised = shortest(own.realised_epsilon), shortest(own.delta), shortest(own.realised_delta)
    return [column.title, column.mechanism, own.neighbours, shortest(own.epsilon), *realised]


def _noise_line(column: Column) -> list[str]:
    """Return the parameters of additive noise, some of which may have been calibrated."""
    law = law_of(column.form.mechanism)
    return [f"{column.title}: noise of {law}"] if law else []


def _total_lines(release: Release) -> list[str]:
    budget, realised = shortest(release.epsilon), shortest(release.realised_epsilon)
    if release.delta:
        budget += f", delta {shortest(release.delta)}"
        realised += f", delta {shortest(release.realised_delta)}"
    found = [f"total epsilon a row: {budget} (realised {realised}); neighbouring: {release.neighbouring}"]
    if release.delta >= 1:
        found.append("WARNING: a total delta of 1 or more guarantees nothing")
    return found
