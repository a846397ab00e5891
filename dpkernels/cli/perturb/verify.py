"""``dpkernels certify``: the certificate of one mechanism, or of every column of a finished release.

A release is verified from its sidecar, and from its output if the output is next to the sidecar:

- The sidecar alone is enough to recompute every certificate from its integers, to verify the sums, and to check that
  the named mechanism with the stated options has the same table.
- With the output, its bytes, rows and columns are checked, and that every number of a perturbed column is a possible
  report.

All other entries of a sidecar are printed as declared. A sidecar is not signed: a user who can write both files can
declare anything.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import click
import numpy as np

from dpkernels.bounded_json import JsonObject, brief, integer
from dpkernels.budgets.filters import composed_claims, format_amount, plus
from dpkernels.budgets.ledger import UnsoundError, parse_amount
from dpkernels.cli.categories import describe
from dpkernels.cli.errors import error_text
from dpkernels.cli.files.categories import is_categorical, parse_reports
from dpkernels.cli.files.formats import Source
from dpkernels.cli.files.layout import Layout
from dpkernels.cli.files.opening import open_source
from dpkernels.cli.mechanisms import build_exact_sampler
from dpkernels.cli.perturb.grids import ReportGrid
from dpkernels.cli.perturb.output import digest
from dpkernels.cli.perturb.queries import StatedQueries, is_same, is_same_batch, stated_queries
from dpkernels.cli.perturb.sidecar import (
    MAX_DECIMALS,
    RowOptions,
    StatedGuarantee,
    describe_noise,
    exact_totals,
    guarantee,
    interval,
    parameters,
    parse_certificate,
    read_sidecar,
    row_guarantee,
    title,
    versions,
)
from dpkernels.cli.terminal import public
from dpkernels.cli.text import display_name, listed
from dpkernels.decimals import shortest
from dpkernels.exact.batches import BatchCertificate
from dpkernels.exact.certificate import Certificate, CertificateError
from dpkernels.exact.sampler import ExactSampler
from dpkernels.release.charges import ROWS, SAME_PEOPLE, is_statistic

_MAX_TEXT = 500  # of a text that is printed whole, such as a hash or a sentence
_MAX_PROBLEMS = 10  # that one message lists
_VERIFIED = {"format", "epsilon", "realised_epsilon", "delta", "realised_delta", "neighbouring"}
_VERIFIED |= {"rows", "values_per_row", "output", "columns", "layout", "queries"}


@dataclass(frozen=True)
class VerifiedColumn:
    """A column of a sidecar, verified: its JSON, its certificate and the guarantee of that."""

    record: JsonObject
    certificate: Any
    guarantee: StatedGuarantee
    rebuilt: bool  # whether the mechanism, made again from its name and options, has this table
    queries: StatedQueries | None = None  # what the sidecar states about rows with parameters of their own

    def declared(self) -> list[str]:
        """Return what is stated about the meaning of reports: with another meaning they would be the same."""
        record, options, lines = self.record, self.record["options"], []
        if is_categorical(self.certificate) and isinstance(options.get("categories"), list | tuple):
            if (mechanism := _rebuilt(record).mechanism).kind != "category":
                lines.append(f"is about {describe(mechanism)}, in this order")
        elif is_categorical(self.certificate) and "alphabet" in options:
            lines.append(f"is about texts of the characters {options['alphabet']!r}, in this order")
        if "date_origin" in record:
            lines.append(f"counts days since {record['date_origin']}")
        if "drawing" in record:
            lines.append(f"has reports of drawing {record['drawing']}")
        return [f"declared, not verified: {title(record['column'])} {line}" for line in lines]

    def __str__(self) -> str:
        delta = f", delta {shortest(self.guarantee.delta)}" if self.guarantee.delta else ""
        if self.queries is not None:
            delta += f"{self.queries}"
        # A divided budget may give a row an epsilon with which no mechanism can be made by its name.
        is_divided = self.queries is not None and self.queries.together is not None
        note = (
            " (the name is declared; the tables of all rows are verified)"
            if is_divided
            else " (declared, not verified)"
        )
        name = display_name(self.record["mechanism"]) + ("" if self.rebuilt else note)
        claim = f"epsilon {shortest(self.guarantee.epsilon)}{delta}; neighbours: {self.guarantee.neighbouring}"
        return f"ok: {title(self.record['column'])}, mechanism {name}, {claim}"


def _outputs(release: JsonObject, path: Path) -> list[tuple[Path, JsonObject]]:
    written = release["output"]
    if "parts" not in written:
        return [(path.with_name(path.name.removesuffix(".json")), {**written, "rows": release["rows"]})]
    for name, count in Counter(entry["name"] for entry in written["parts"]).items():
        if Path(name).name != name:
            raise CertificateError(f"output: {name!r} is not the name of a file beside the sidecar")
        if count > 1:
            raise CertificateError(f"output: {name!r} is named twice; every row is released once")
    rows = sum(integer("rows", entry["rows"]) for entry in written["parts"])
    _check_same("rows", release["rows"], rows, "its files have")
    return [(path.with_name(entry["name"]), {**entry, "columns": written["columns"]}) for entry in written["parts"]]


def _check_same(word: str, stated: object, actual: object, where: str = "its columns") -> None:
    if type(stated) is not type(actual) or stated != actual:
        texts = [
            value if isinstance(value, str) and len(value) <= _MAX_TEXT else brief(value) for value in (stated, actual)
        ]
        raise CertificateError(f"{word}: the file says {texts[0]}, {where} {texts[1]}")


def _verified_output(
    release: JsonObject, columns: list[VerifiedColumn], files: list[tuple[Path, JsonObject]], path: Path
) -> str:
    """Check all files of a release, and return a sentence about the result.

    An error names all files that differ from the sidecar, that are missing, or that the sidecar does not name.
    """
    if "parts" not in release["output"] and not files[0][0].is_file():
        return f"not verified: rows, values a row, the columns' names, the output's hash; {files[0][0]} is not there"
    coarse = set[str]()
    problems = list[str]()
    if "parts" in release["output"]:
        present, named = {file.name for file in path.parent.iterdir()}, {target.name for target, _ in files}
        problems += [f"{path.with_name(name)}: is not there" for name in sorted(named - present)]
        problems += [f"{file}: is not a file" for file, _ in files if file.name in present and not file.is_file()]
        strange = "is in the folder of the release, and its sidecar does not name it"
        problems += [f"{path.with_name(name)}: {strange}" for name in sorted(present - named - {path.name})]
    for target, written in files:
        if not target.is_file():
            continue  # one of the problems
        try:
            coarse |= _check_file(release, columns, target, written)
        except CertificateError as error:
            problems.append(error_text(error))
    if problems:
        more = [f"and {len(problems) - _MAX_PROBLEMS} more"] if len(problems) > _MAX_PROBLEMS else []
        raise CertificateError("; ".join([*problems[:_MAX_PROBLEMS], *more]))
    result = "every perturbed value is one that its mechanism can release"
    if coarse:
        result = f"not verified: reports of {', '.join(sorted(coarse))}, too coarse to distinguish from other numbers"
    files_text = str(files[0][0]) if len(files) == 1 else f"{len(files)} files, {files[0][0]} and on"
    return f"ok: {files_text}, {release['rows']} rows; SHA-256 is right; {result}"


def _check_file(
    release: JsonObject, columns: list[VerifiedColumn], target: Path, written: Mapping[str, object]
) -> set[str]:
    """Check a file; return the columns whose reports are too coarse to distinguish from other numbers."""
    _check_same("output: bytes", written["bytes"], target.stat().st_size, f"{target} has")
    _check_same("output: sha256", written["sha256"], digest(target), f"{target} has")
    try:
        source = open_source(target, Layout.from_dict(release["layout"]))
        names = list(source.names)
        _check_same("output: columns", written["columns"], names, f"{target} has")
        _check_same("values_per_row", release["values_per_row"], source.values_per_row, f"{target} has")
        for name in (column.record["column"] for column in columns):
            if (name is not None or names) and names.count(name) != 1:
                raise CertificateError(f"column {title(name)}: {target} has {names.count(name)} columns of this name")
        rows, coarse = _check_reports(release, columns, source)
        _check_same("rows", written["rows"], rows, f"{target} has")
    except (click.UsageError, ValueError) as error:
        raise CertificateError(f"{target}: {error_text(error)}") from error
    return coarse


def _check_reports(release: JsonObject, columns: list[VerifiedColumn], source: Source) -> tuple[int, set[str]]:
    decimals = release["decimals"]
    if decimals is not None and not 0 <= integer("decimals", decimals) <= MAX_DECIMALS:
        raise CertificateError(f"decimals: {decimals} must be from 0 to {MAX_DECIMALS}")
    row_options, slack = RowOptions(decimals=decimals), 0.0 if decimals is None else 0.5000001 * 10.0**-decimals
    start, coarse = 0, set[str]()
    names = [column.record["column"] for column in columns]
    names += [name for column in columns if column.queries for name in column.queries.columns.values()]
    numeric = [column for column in columns if not is_categorical(column.certificate)]
    grids = {id(column): ReportGrid.from_certificate(column.certificate) for column in numeric}
    for chunk in source.chunks(list(dict.fromkeys(names))):
        for column in columns:
            name = column.record["column"]
            if column.queries is not None:
                column.queries.check(source, chunk, start)
            if is_categorical(column.certificate):
                _check_categories(release, column, source, chunk, start)
                continue
            numbers = source.numbers(chunk, name, start)
            values = numbers.values
            if column.record.get("report_type") == "float32":  # in a text file
                with np.errstate(over="ignore"):
                    values = values.astype(np.float32)
            is_report = np.any([grid.can_report(values, start, slack) for grid in grids[id(column)]], axis=0)
            is_report &= (values == numbers.values) & (row_options.rounded(values) == values)
            if numbers.missing is not None:
                is_report = np.where(numbers.missing, release["missing"] == "keep", is_report)
            if not is_report.all():
                position = source.position(chunk, start + int(is_report.argmin()), start)
                raise CertificateError(f"column {title(name)}: {position} is no report of its table")
            if any(grid.is_coarse(values.dtype, slack) for grid in grids[id(column)]):
                coarse.add(title(name))
        start += len(chunk)
    return start // source.values_per_row, coarse


def _check_categories(release: JsonObject, column: VerifiedColumn, source: Source, chunk: Sized, start: int) -> None:
    mechanism = _rebuilt(column.record).mechanism
    _, is_report, missing = parse_reports(source.labels(chunk, column.record["column"]), mechanism, source.markers)
    is_report = np.where(missing, release["missing"] == "keep", is_report)
    if not is_report.all():
        position = source.position(chunk, start + int(is_report.argmin()), start)
        raise CertificateError(f"column {title(column.record['column'])}: {position} is no report of its mechanism")


_STATUSES = ("ok", "declared, not verified", "not verified")


@dataclass(frozen=True)
class Findings:
    """What of a release is verified or only declared, in lines, and why its output is not, if it is not there."""

    path: Path
    lines: list[str]
    problem: str

    @classmethod
    def from_sidecar(cls, path: Path) -> Findings:
        """Verify a release by its sidecar; see ``verify``."""
        return cls(path, *verify(path))

    def to_dict(self) -> dict[str, object]:
        statements = []
        for line in map(public, self.lines):
            status, _, text = line.partition(": ")
            statements.append({"status": status, "text": text} if status in _STATUSES else {"status": "", "text": line})
        return {"sidecar": str(self.path), "verified": not self.problem, "statements": statements}

    def check(self) -> None:
        """Raise a CertificateError if the output is not there."""
        if self.problem:
            error = CertificateError(self.problem)
            error.findings = self.to_dict()  # type: ignore[attr-defined]
            raise error


def verify(path: Path) -> tuple[list[str], str]:
    """Verify a sidecar and its output; return lines of what is verified or only declared, and why the output is not.

    That reason is empty if the output is there. A CertificateError says that a table does not have its guarantee, or
    that the file is no sidecar, or claims anything that is not so.
    """
    release, was_killed = read_sidecar(path)
    target = path.with_name(path.name.removesuffix(".json"))
    killed = f"a run that was to replace {target} was killed: this is the release that is there"
    try:
        columns = [_column(column, release) for column in release["columns"]]
        for word in ("rows", "values_per_row"):
            if not (type(release[word]) is int and release[word] >= 1):
                raise CertificateError(f"{word}: {brief(release[word])} is not a positive whole number")
        _check_totals(release, columns)
        delta = f", delta {shortest(release['delta'])}" if release["delta"] else ""
        total_line = f"total epsilon a row {shortest(release['epsilon'])}{delta}; neighbours: {release['neighbouring']}"
        files = _outputs(release, path)
        if all(file.is_file() for file, _ in files):
            total_line = f"ok: {total_line}"
        else:
            count = release["values_per_row"]
            values = f"{count} value{'s' * (count != 1)} a row in each column"
            total_line = f"declared, not verified: {values}; {total_line}"
        output_line = _verified_output(release, columns, files, path)
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise CertificateError(f"{path}: is not the sidecar of a release") from error
    except CertificateError:
        raise
    except ValueError as error:
        raise CertificateError(f"{path}: {error_text(error)}") from error
    declared = [line for column in columns for line in column.declared()]
    for name, text in ((name, json.dumps(value)) for name, value in release.items() if name not in _VERIFIED):
        meaning = _MEANINGS.get(name, {}).get(text)
        line = f"{display_name(name)} {text}" + (f": {meaning}" if meaning else "")
        declared.append(f"declared, not verified: {line}")
    lines = [*([killed] if was_killed else []), *map(str, columns), total_line, output_line, *declared]
    return lines, "" if files[0][0].is_file() else f"{files[0][0]}: is not there, so it could not be verified"


# The meaning of fields that a sidecar declares, by the JSON of their values.
_MEANINGS = {
    "clip": {"false": "values outside their interval were refused", "true": "they were moved to its nearest end"},
    "missing": {
        '"error"': "missing values were refused",
        '"keep"': "missing values stayed missing",
        '"drop"': "rows with a missing value were left out",
    },
    "decimals": {"null": "reports are not rounded"},
    "row_order": {'"kept"': "rows stand as in the input", '"shuffled"': "rows were put into a random order"},
    "not_kept": {"[]": "nothing else of the input was lost"},
}


def _column(record: JsonObject, release: JsonObject) -> VerifiedColumn:
    try:
        certificate = parse_certificate(record["certificate"])
        queries = stated_queries(release, certificate)
        claims = guarantee(certificate)
        for word, claim in claims.stated.items():  # beside the certificate, in both parts of a mixture
            names = (word, f"first.{word}", f"second.{word}")
            claimed = {value for name, value in record["parameters"].items() if name in names}
            if claimed != {claim} or not all(type(value) is float for value in claimed):
                stated = ", ".join(map(brief, claimed)) or "no claim"
                raise CertificateError(f"{word}: the parameters say {stated}, the tables {claim}")
        _check_same("neighbouring", record["neighbouring"], claims.neighbouring)
        if "interval" in record:
            _check_same("interval", record["interval"], interval(certificate, release["decimals"]))
        # How a budget was divided is declared; that the tables of all rows have it together is verified.
        is_divided = queries is not None and queries.together is not None
        differs = "" if is_divided else _difference(record, certificate, queries)
        # Another version may make another table of numbers.
        if differs and (release["versions"] == versions() or is_categorical(certificate)):
            raise CertificateError(f"mechanism: {brief(record['mechanism'])}{differs}")
        return VerifiedColumn(record, certificate, claims, not (differs or is_divided), queries)
    except CertificateError as error:
        raise CertificateError(f"column {title(record['column'])}: {error_text(error)}") from error


def _rebuilt(record: JsonObject) -> ExactSampler:
    """Return the exact sampler of a column's mechanism, made again from its name and options."""
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in record["options"].items()}
    return build_exact_sampler(record["mechanism"], options)[1]


def _difference(record: JsonObject, certificate: Certificate, queries: StatedQueries | None) -> str:
    """Return how the mechanism, made again from its name and options, differs; empty if it does not."""
    try:
        sampler = _rebuilt(record) if queries is None else queries.rebuilt(record)
    except (click.UsageError, CertificateError) as error:
        return f" cannot be made: {error_text(error)}"
    recorded, remade, rebuilt = record["parameters"], parameters(sampler.mechanism), sampler.certificate
    if recorded.keys() != remade.keys() or not all(is_same(recorded[name], remade[name]) for name in remade):
        text = str(recorded)
        return f" has the parameters {remade}, not {text[:_MAX_TEXT]}{'...' * (len(text) > _MAX_TEXT)}"
    if not isinstance(rebuilt, type(certificate)):
        return " has another table"
    if is_categorical(certificate):
        return "" if rebuilt == certificate else " has other integers"
    if isinstance(certificate, BatchCertificate) and isinstance(rebuilt, BatchCertificate):
        return "" if is_same_batch(rebuilt, certificate) else " has other tables"
    for fact in ("worst_variance", "lowest", "highest"):  # Noise without an end has no lowest and no highest value.
        if not is_same(getattr(rebuilt, fact), getattr(certificate, fact)):
            return " has another table"
    return ""


def _check_totals(release: JsonObject, columns: list[VerifiedColumn]) -> None:
    """Refuse totals, or a charge of them, that differ from those of the columns."""
    total = row_guarantee([column.guarantee for column in columns], release["values_per_row"])
    for word in ("epsilon", "delta", "neighbouring"):
        _check_same(word, release[word], getattr(total, word))
    for word in ("realised_epsilon", "realised_delta"):
        realised = getattr(total, word)
        if type(release[word]) is not float or not math.isclose(realised, release[word], rel_tol=1e-12):
            raise CertificateError(f"{word}: the file says {brief(release[word])}, its columns {realised}")
    if "ledger" in release:
        _check_charge(release, columns)


def _check_charge(release: JsonObject, columns: list[VerifiedColumn]) -> None:
    """Refuse a charge that is not that of the rows which the sidecar says were charged together."""
    charge, values = release["ledger"], release["values_per_row"]
    queries = columns[0].queries
    if queries is not None and queries.together is not None:
        _check_same("ledger: rows", charge["rows"], SAME_PEOPLE)
        _check_same("ledger: charged_rows", charge["charged_rows"], release["rows"])
        for word, amount in zip(("epsilon", "delta"), queries.together, strict=True):
            _check_same(f"ledger: {word}", charge[word], format_amount(amount))
        return
    claims = exact_totals([column.guarantee for column in columns], values)
    rows = charge.get("rows")
    tables = [getattr(column.certificate, "tables", [column.certificate])[0] for column in columns]
    if rows not in ROWS and (rows is not None or any(map(is_statistic, tables))):
        raise CertificateError(
            f"ledger: rows: {brief(rows)} must say whom rows of statistics are about: {listed(ROWS)}"
        )
    if rows != SAME_PEOPLE:
        for word, amount in zip(("epsilon", "delta"), claims, strict=True):
            _check_same(f"ledger: {word}", charge[word], format_amount(amount))
        return
    from accountants.charges import repeated_bound

    count = integer("ledger: charged_rows", charge["charged_rows"])
    if count < release["rows"] or (count > release["rows"] and release["missing"] != "drop"):
        raise CertificateError(f"ledger: charged_rows: the file says {count}, and that it has {release['rows']} rows")
    if queries is not None:
        claims, values = composed_claims(columns[0].certificate.epsilon, columns[0].certificate.delta), 1
        bounds, count = repeated_bound(columns[0].certificate, 1), 1
    else:
        bounds = reduce(plus, (repeated_bound(column.certificate, count * values) for column in columns))
    _check_same("ledger: delta", charge["delta"], format_amount(count * claims.delta))
    epsilon = charge["epsilon"] if type(charge["epsilon"]) is str else ""
    try:
        is_enough = bounds.epsilon <= parse_amount(epsilon) <= count * claims.epsilon
    except UnsoundError:
        is_enough = False
    if not is_enough:
        ends = f"from {float(bounds.epsilon):.9g} to {format_amount(count * claims.epsilon)}"
        raise CertificateError(f"ledger: epsilon: the file says {brief(charge['epsilon'])}, {count} rows cost {ends}")


@dataclass(frozen=True)
class MechanismCertificate:
    """A mechanism's certificate, and the variance that the certificate costs."""

    name: str
    sampler: ExactSampler
    options: Mapping[str, object]

    def to_dict(self) -> dict[str, object]:
        sampler, values = self.sampler, parameters(self.sampler.mechanism)
        if is_categorical(sampler.certificate):
            return {"mechanism": self.name, "parameters": values, "certificate": sampler.certificate.to_dict()}
        cost, certificate = sampler.variance_cost, sampler.certificate.to_dict()
        return {"mechanism": self.name, "parameters": values, "variance_cost": cost, "certificate": certificate}

    def __str__(self) -> str:
        if is_categorical(self.sampler.certificate):
            return f"mechanism           {self.name}\n{self.sampler.certificate}"
        cost = f"{100 * self.sampler.variance_cost:+.4g} % in worst-case variance, against the ideal density"
        name = ", ".join(filter(None, (self.name, describe_noise(self.sampler.mechanism))))
        return f"mechanism           {name}\n{self.sampler.certificate}\ncost                {cost}"
