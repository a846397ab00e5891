"""The specification of a release, made before a value is read, and its sidecar, from which anyone can verify it."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from functools import cached_property, reduce
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import dpkernels
from dpkernels.bounded_json import JsonObject, brief, parse_json, read_text
from dpkernels.budgets.filters import EpsilonDelta, plus
from dpkernels.cli.calendar import is_date_text
from dpkernels.cli.errors import error_text
from dpkernels.cli.files.categories import is_categorical
from dpkernels.cli.files.layout import Layout
from dpkernels.cli.ledger import Price
from dpkernels.cli.options import OptionValues
from dpkernels.cli.perturb.output import matching_sidecar
from dpkernels.cli.text import display_name
from dpkernels.decimals import float_at_least, format_number, rational, shortest
from dpkernels.estimation.released import confidence_interval
from dpkernels.exact.batches import BatchCertificate
from dpkernels.exact.bounded.rows import RowCertificate
from dpkernels.exact.bounded.windows import SquareWaveCertificate, WindowCertificate
from dpkernels.exact.certificate import Certificate, CertificateError
from dpkernels.exact.noise.certificate import AdditiveCertificate, NoiseCertificate
from dpkernels.exact.packed import full_certificates, pack_array, short_certificates, unpack_array
from dpkernels.exact.registry import MixtureCertificate
from dpkernels.mechanisms.base import Mechanism
from dpkernels.pytrees import named_leaves
from dpkernels.release.charges import SAME_PEOPLE

if TYPE_CHECKING:
    from dpkernels.cli.ledger import LedgerCharge
    from dpkernels.cli.perturb.queries import Queries

FORMAT = 4  # The format of sidecars that are written.
_READ = (3, FORMAT)  # In format 3, certificates held their integers themselves.
CONFIDENCE = 0.95  # of the interval of a true value behind a released one
MAX_DECIMALS = 15  # of reports that are rounded


@dataclass(frozen=True)
class StatedGuarantee:
    """The (epsilon, delta) of one report, or of a row, and which inputs it is for."""

    epsilon: float  # the budget
    realised_epsilon: float  # the epsilon of the integers that are sampled
    delta: float  # 0 for bounded mechanisms
    realised_delta: float  # the delta of the integers
    neighbouring: str  # which values are neighbouring, in words
    stated: Mapping[str, float]  # the claim that the mechanism's own parameters must state
    limits: str = ""  # why a value may be refused, if not for an interval of the user's
    is_local: bool = True  # whether any two valid inputs are neighbours

    def to_dict(self) -> dict[str, object]:
        names = ("epsilon", "realised_epsilon", "delta", "realised_delta", "neighbouring")
        return {name: getattr(self, name) for name in names}


def guarantee(certificate: Any) -> StatedGuarantee:
    """Return the guarantee of a certificate of single reports; ValueError for one of vectors."""
    if isinstance(certificate, BatchCertificate):
        return _batch_guarantee(certificate)
    if isinstance(certificate, NoiseCertificate):
        epsilon, delta, D = certificate.epsilon, certificate.delta, certificate.sensitivity
        realised = certificate.realised_epsilon, delta, float_at_least(certificate.realised_delta)
        claims = {"epsilon": epsilon, "delta": delta, "sensitivity": D}
        limits = "; additive noise takes values up to 2^34 sensitivities from 0"
        return StatedGuarantee(epsilon, *realised, f"at most {shortest(D)} apart", claims, limits, is_local=False)
    if is_categorical(certificate):
        neighbouring = f"any two of the {certificate.categories} {certificate.inputs}"
        level = certificate.realised_epsilon
        return StatedGuarantee(certificate.epsilon, level, 0.0, 0.0, neighbouring, {"epsilon": certificate.epsilon})
    if not isinstance(certificate, (WindowCertificate, SquareWaveCertificate, RowCertificate, MixtureCertificate)):
        raise ValueError(f"certificate: {type(certificate).__name__} is not of single values")
    table = (certificate.first if isinstance(certificate, MixtureCertificate) else certificate).table
    claims = {"epsilon": certificate.epsilon, "lower": table.lower, "upper": table.upper}
    ends = f"in [{shortest(table.lower)}, {shortest(table.upper)}]"
    sensitivity = certificate.sensitivity if isinstance(certificate, RowCertificate) else None
    neighbouring = f"any two {ends}"
    if sensitivity is not None:
        claims["sensitivity"] = sensitivity
        neighbouring = f"at most {shortest(sensitivity)} apart, {ends}"
    amounts = certificate.epsilon, certificate.realised_epsilon, 0.0, 0.0
    return StatedGuarantee(*amounts, neighbouring, claims, is_local=sensitivity is None)


def _batch_guarantee(certificate: BatchCertificate) -> StatedGuarantee:
    """Return the largest guarantee of a row, of rows with a mechanism each."""
    tables = certificate.tables
    epsilon, delta = (float(claims.max()) for claims in (certificate.epsilon, certificate.delta))
    is_noise = isinstance(tables[0], AdditiveCertificate)
    # Noise states its budget, at which the realised delta holds. The realised epsilon of a table that rows share is
    # that of neighbours one cell apart.
    realised = epsilon if is_noise else max(float(table.realised_epsilon) for table in tables)  # type: ignore[attr-defined]
    realised_delta = max(float_at_least(getattr(table, "realised_delta", Fraction(0))) for table in tables)
    neighbouring = (
        "values at most the row's own sensitivity apart" if is_noise else "any two values in the row's own interval"
    )
    limits = "; additive noise takes values up to 2^34 sensitivities from 0" if is_noise else ""
    return StatedGuarantee(epsilon, realised, delta, realised_delta, neighbouring, {}, limits, is_local=not is_noise)


def row_guarantee(columns: Sequence[StatedGuarantee], values_per_row: int) -> StatedGuarantee:
    """Return the guarantee of a row by basic composition over its values."""
    epsilon, delta = map(float_at_least, exact_totals(columns, values_per_row))
    realised_epsilon = _total([column.realised_epsilon for column in columns], values_per_row)
    realised_delta = _total([column.realised_delta for column in columns], values_per_row)
    neighbouring = "any two values of a row (local DP, replace one row's values)"
    if len(columns) == 1 and not columns[0].stated:  # Every row has a mechanism of its own.
        neighbouring = columns[0].neighbouring
    if any("sensitivity" in column.stated for column in columns):
        neighbouring = "rows whose perturbed values are neighbouring in every column"
    is_local = all(column.is_local for column in columns)
    return StatedGuarantee(epsilon, realised_epsilon, delta, realised_delta, neighbouring, {}, is_local=is_local)


def _total(amounts: Sequence[float], values_per_row: int) -> float:
    return float_at_least(values_per_row * sum(map(rational, amounts), Fraction(0)))


def exact_totals(columns: Sequence[StatedGuarantee], values_per_row: int) -> EpsilonDelta:
    """Return the (epsilon, delta) of a row without rounding, each budget read as the decimal that it prints as."""
    epsilon, delta = (sum(rational(getattr(column, name)) for column in columns) for name in ("epsilon", "delta"))
    return EpsilonDelta(Fraction(values_per_row * epsilon), Fraction(values_per_row * delta))


def interval(certificate: object, decimals: int | None) -> dict[str, float] | None:
    """Return the interval [released - below, released + above] of a true value as JSON; None for bounded mechanisms.

    It is the same for every float64. Rounding to float32 adds up to half a unit in the last place of the value.
    """
    if not isinstance(certificate, NoiseCertificate):
        return None
    low, high = confidence_interval(0.0, certificate, CONFIDENCE)
    rounding = 0.0 if decimals is None else 0.5000001 * 10.0**-decimals
    return {"confidence": CONFIDENCE, "below": rounding - low, "above": rounding + high}


@dataclass(frozen=True)
class Column:
    """One perturbed column; an array has no name. The mechanism, given by name, was made with the options."""

    name: str | None
    mechanism: str
    sampler: Any  # exact; that of a batch has a mechanism for every row
    options: OptionValues
    date_origin: date | None = None  # of a column of dates, whose values are days since then
    is_single: bool = False  # whether its reports are float32 that are written as text

    @cached_property
    def guarantee(self) -> StatedGuarantee:
        return guarantee(self.sampler.certificate)

    def to_dict(self, decimals: int | None) -> dict[str, object]:
        """Return a JSON form with the certificate, and without anything secret."""
        half_widths = interval(self.sampler.certificate, decimals)
        drawing = getattr(self.sampler, "drawing", None)
        return {
            "column": self.name,
            "mechanism": self.mechanism,
            "options": dict(self.options),
            "parameters": parameters(self.sampler.mechanism),
            "neighbouring": self.guarantee.neighbouring,
            **({} if half_widths is None else {"interval": half_widths}),
            **({} if drawing is None else {"drawing": drawing}),
            **({} if self.date_origin is None else {"date_origin": self.date_origin.isoformat()}),
            **({"report_type": "float32"} if self.is_single else {}),
            "certificate": certificate_document(self.sampler.certificate),
        }


def certificate_document(certificate: Certificate) -> dict[str, object]:
    """Return a certificate's JSON form, in which the numbers of a batch's entries are packed."""
    document = certificate.to_dict()
    if isinstance(certificate, BatchCertificate):
        claims = {name: pack_array(values) for name, values in certificate.claims.items()}
        document |= {"table_of": pack_array(certificate.table_index), "claims": claims}
    return document


def parse_certificate(document: JsonObject) -> Certificate:
    """Return the verified certificate of ``certificate_document``; a CertificateError says what it does not have."""
    try:
        if document.get("kind") == BatchCertificate.kind:
            claims = {name: unpack_array(packed).tolist() for name, packed in document["claims"].items()}
            document = {**document, "table_of": unpack_array(document["table_of"]).tolist(), "claims": claims}
    except (KeyError, ValueError, AttributeError) as error:
        raise CertificateError(f"payload: is not a certificate: {error_text(error)}") from error
    return Certificate.from_dict(document)


@dataclass(frozen=True)
class RowOptions:
    """The treatment of rows besides noise: missing values, rounding, and their order."""

    missing: str = "error"  # "error", "keep" or "drop"
    decimals: int | None = None  # to which reports are rounded; None for not
    shuffle: bool = False  # whether rows are put into a random order
    shuffleable: bool = True  # whether they could be: not the rows of a dataset, which are nowhere held together

    def to_dict(self) -> dict[str, object]:
        return {"missing": self.missing, "decimals": self.decimals, "row_order": "shuffled" if self.shuffle else "kept"}

    def notices(self) -> list[str]:
        """Return sentences on what the output reveals about rows."""
        lines = []
        if self.missing == "keep":
            lines.append("missing values are kept: which values are missing is NOT protected")
        if self.missing == "drop":
            lines.append("rows with missing values are dropped: it is NOT protected that a row is not there")
        if self.decimals is not None:
            decimals = f"{self.decimals} decimal{'s' * (self.decimals != 1)}"
            lines.append(f"reports are rounded to {decimals}, which costs no privacy")
        if not self.shuffle:
            advice = "--shuffle-rows prevents" if self.shuffleable else "shuffle the rows beforehand to prevent"
            lines.append(f"the order of rows is kept: if they are sorted by a column, it reveals ranks; {advice} this")
        return lines

    def rounded(self, reports: np.ndarray) -> np.ndarray:
        """Return reports rounded to the decimals; those too large to have decimals stay as they are."""
        if self.decimals is None:
            return reports
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = np.round(reports, self.decimals)
        return np.where(np.isfinite(rounded), rounded, reports)


@dataclass(frozen=True)
class ReleaseSpec:
    """A release that is specified before a value is read."""

    columns: tuple[Column, ...]  # the perturbed columns with their mechanisms
    clip: bool  # clip values outside the interval
    layout: Layout  # of the input's files
    row_options: RowOptions  # the treatment of rows besides noise
    names: tuple[str, ...]  # all columns of each file, perturbed or not, in their order; empty for an array
    values_per_row: int  # the number of values that a row holds in each perturbed column
    copied: tuple[str, ...]  # the names of the parts of a file that are not perturbed
    rows: str | None = None  # one of ``ROWS``, as the user says whom they are about; None if the user does not
    full_certificate: bool = False  # whether the sidecar has the integers as numbers
    queries: Queries | None = None  # the parameters of every row, where rows are queries
    converted: Layout | None = None  # of the output's files, if they have another format than the input's

    @property
    def written(self) -> Layout:
        """Return the layout of the output's files."""
        return self.converted or self.layout

    @cached_property
    def guarantee(self) -> StatedGuarantee:
        """Return the guarantee of a row."""
        return row_guarantee([column.guarantee for column in self.columns], self.values_per_row)

    def to_dict(self) -> dict[str, object]:
        """Return a JSON form of everything that decides about the reports of given values, but the key."""
        return {
            "columns": [column.to_dict(self.row_options.decimals) for column in self.columns],
            "clip": self.clip,
            "layout": self.layout.to_dict(),
            "written": self.written.to_dict(),
            **self.row_options.to_dict(),
            "names": self.names,
            "values_per_row": self.values_per_row,
            "copied": self.copied,
            "rows": self.rows,
        }

    def price(self, rows: int) -> Price:
        """Return the cost of this many rows about the same people; of one, if rows are about different people."""
        if self.queries is not None and self.queries.together is not None:
            return Price(self.queries.together, SAME_PEOPLE, rows)
        if self.rows != SAME_PEOPLE:
            amounts = exact_totals([column.guarantee for column in self.columns], self.values_per_row)
            return Price(amounts, self.rows, 1)
        from accountants.charges import repeated_charge

        reports = 1 if self.queries is not None else rows * self.values_per_row
        charges = [repeated_charge(column.sampler, reports) for column in self.columns]
        return Price(reduce(plus, charges), self.rows, rows)


@dataclass(frozen=True)
class Release:
    """A finished release."""

    spec: ReleaseSpec
    rows: int
    lost_properties: tuple[str, ...] = ()  # of the input, besides its columns, that the output does not have
    ledger_charge: LedgerCharge | None = None


def title(name: str | None) -> str:
    """Return a column's name for a terminal; an array has none."""
    return "(array)" if name is None else display_name(name)


def parameters(mechanism: Mechanism) -> dict[str, float]:
    """Return every number of a mechanism by its name; tables are in its certificate."""
    return {name: float(leaf) for name, leaf in named_leaves(mechanism) if np.ndim(leaf) == 0}


def describe_noise(mechanism: Mechanism) -> str:
    """Return the parameters of additive noise, or an empty string for other mechanisms."""
    named = {name.removeprefix("noise."): value for name, value in parameters(mechanism).items() if "noise." in name}
    return ", ".join(f"{name} {format_number(value, 9)}" for name, value in named.items())


@dataclass(frozen=True)
class WrittenFile:
    """One file of a release; it has a name in the sidecar's folder, and a number of rows, if there are several."""

    sha256: str
    size: int
    name: str = ""
    rows: int = 0
    source: str = ""  # the name of the file whose rows it has, if it is one of several

    def to_dict(self) -> dict[str, object]:
        if not self.name:
            return {"sha256": self.sha256, "bytes": self.size}
        return {"name": self.name, "input": self.source, "rows": self.rows, "bytes": self.size, "sha256": self.sha256}


def to_json(release: Release, written: Sequence[WrittenFile]) -> str:
    """Return the text of the sidecar of a release of one file, or of several in the order of their rows."""
    spec, files = release.spec, [file.to_dict() for file in written]
    columns = [column.to_dict(spec.row_options.decimals) for column in spec.columns]
    certificates = {} if spec.full_certificate else short_certificates(columns)
    document = {
        "format": FORMAT,
        **spec.guarantee.to_dict(),
        "rows": release.rows,
        "values_per_row": spec.values_per_row,
        "clip": spec.clip,
        "output": {**({"parts": files} if written[0].name else files[0]), "columns": list(spec.names)},
        "layout": spec.written.to_dict(),
        **spec.row_options.to_dict(),
        "not_kept": release.lost_properties,
        **({} if spec.queries is None else {"queries": spec.queries.to_dict()}),
        "columns": columns,
        **certificates,
        "versions": versions(),
    }
    if release.ledger_charge is not None:
        document["ledger"] = release.ledger_charge.to_dict()
    return json.dumps(document) + "\n"


def versions() -> dict[str, str]:
    """Return the versions of the software that makes a release."""
    packages = {"dpkernels": dpkernels.__version__, "jax": version("jax"), "numpy": np.__version__}
    return packages | {"python": platform.python_version()}


# The allowed values of a field, in words and as a check.
Rule = tuple[str, Callable[[Any], bool]]

_TEXT: Rule = ("a string", lambda value: type(value) is str)
_OBJECT: Rule = ("an object", lambda value: type(value) is dict)
_OBJECTS: Rule = ("a list of one or more objects", lambda value: type(value) is list and bool(value))
_COUNT: Rule = ("a whole number from 0 to 2^63 - 1", lambda value: type(value) is int and 0 <= value < 1 << 63)
_NAMES: Rule = ("a list of strings", lambda value: type(value) is list and all(map(_TEXT[1], value)))
_HASH: Rule = ("64 hexadecimal digits", lambda value: type(value) is str and bool(re.fullmatch("[0-9a-f]{64}", value)))

# A field with a question mark may be missing.
_FIELDS: dict[str, Rule] = {
    "format": ("a whole number", lambda value: type(value) is int),
    "rows": _COUNT,
    "values_per_row": _COUNT,
    "missing": ("error, keep or drop", lambda value: value in ("error", "keep", "drop")),
    "decimals": ("null or a whole number", lambda value: value is None or _COUNT[1](value)),
    "columns": _OBJECTS,
    **dict.fromkeys(("layout", "output", "versions", "ledger?", "queries?"), _OBJECT),
}
_COLUMN: dict[str, Rule] = {
    "column": ("a string, or null for an array", lambda value: value is None or type(value) is str),
    "mechanism": _TEXT,
    "report_type?": ("float32", lambda value: value == "float32"),
    "date_origin?": ("a date YYYY-MM-DD", is_date_text),
    **dict.fromkeys(("options", "parameters", "interval?", "certificate"), _OBJECT),
    "drawing?": _COUNT,
}
_OUTPUT: dict[str, Rule] = {"sha256": _HASH, "bytes": _COUNT, "columns": _NAMES}
_PARTS: dict[str, Rule] = {"parts": _OBJECTS, "columns": _NAMES}
_PART: dict[str, Rule] = {"name": _TEXT, "input?": _TEXT, "rows": _COUNT, "sha256": _HASH, "bytes": _COUNT}


def read_sidecar(path: Path) -> tuple[JsonObject, bool]:
    """Return the JSON of the release beside a sidecar, and whether a run that was to replace it was killed.

    A CertificateError says that it is not shaped as one, or that the run was killed before there was any release.
    ``verify`` checks whether it is true.
    """
    target = path.with_name(path.name.removesuffix(".json"))
    try:
        text = read_text(path)
        sidecar_text = matching_sidecar(target, text)
        if sidecar_text is not None:
            return parse_sidecar(sidecar_text), sidecar_text != text
    except ValueError as error:
        raise CertificateError(f"{path}: is not the sidecar of a release; {error_text(error)}") from error
    raise CertificateError(f"{path}: a run to {target} was killed; its sidecar is there, its output is not")


def parse_sidecar(text: str) -> JsonObject:
    """Return the JSON of a sidecar; ValueError if it is not shaped as one."""
    release = parse_json(text)
    if type(release) is dict and type(release.get("format")) is int and release["format"] not in _READ:
        raise ValueError(f"format {brief(release['format'])}; this version reads formats {_READ[0]} to {FORMAT}")
    _check("", release, _FIELDS)
    if release["format"] == FORMAT:
        release = full_certificates(release)
    for number, column in enumerate(release["columns"]):
        _check(f"columns[{number}].", column, _COLUMN)
    names = [column["column"] for column in release["columns"]]
    if len(set(names)) < len(names):
        raise ValueError(f"columns: one of {brief(names)} is there twice")
    if None in names and len(names) > 1:
        raise ValueError("columns: an array must be the only column")
    output = release["output"]
    _check("output.", output, _PARTS if "parts" in output else _OUTPUT)
    for number, entry in enumerate(output.get("parts", ())):
        _check(f"output.parts[{number}].", entry, _PART)
    return release


def _check(where: str, document: object, fields: dict[str, Rule]) -> None:
    if type(document) is not dict:
        raise ValueError(f"{where.removesuffix('.') or 'JSON'}: {brief(document)} must be an object")
    for name, (words, is_right) in fields.items():
        key = name.removesuffix("?")
        if key not in document:
            if key == name:
                raise ValueError(f"{where}{key}: is missing; it must be {words}")
        elif not is_right(document[key]):
            raise ValueError(f"{where}{key}: {brief(document[key])} must be {words}")
