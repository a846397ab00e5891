"""``dpkernels certify --verify``: a finished release from its sidecar, and from its output where that is beside it.

From the sidecar alone: every certificate, from its integers; the sums; that a mechanism of the name, made again with
the options, has the table. With the output: its bytes, rows and columns, and that every number of a perturbed column
is a report that the column's table can make. Anything else that a sidecar holds is printed as declared. Whoever can
write both files can declare what they like: a sidecar is not signed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from dpkernels.budgets.amounts import printed
from dpkernels.cli.mechanisms.choose import exact_form
from dpkernels.cli.mechanisms.mechanism_table import RECIPES
from dpkernels.cli.release.guarantees import Guarantee, guarantee, of_a_row
from dpkernels.cli.release.output import own_sidecar
from dpkernels.cli.release.sidecar import exact_total, parameters, title, total, versions
from dpkernels.cli.release.sidecar_fields import check_fields
from dpkernels.cli.release.verify_output import VerifiedColumn, check_same, outputs, verified_output
from dpkernels.decimals import shortest
from dpkernels.exact.certificate import Certificate, CertificateError
from dpkernels.exact.combined import read_certificate
from dpkernels.untrusted import parse_json, read_text

_TOTALS = ("epsilon", "realised_epsilon", "delta", "realised_delta", "neighbouring")
_VERIFIED = {"format", *_TOTALS, "rows", "values_per_row", "output", "columns", "layout"}
# The solver of the default parameters may stop at others elsewhere; two mechanisms differ by more.
_SAME_LAW = 1e-6


def verify(path: Path) -> list[str]:
    """Verify a sidecar, and its output if that is there.

    Returns:
        What was verified, line by line, and what is only declared.

    Raises:
        CertificateError: a table does not have its guarantee, or the file claims anything that is not so.
        ValueError: not a sidecar.
    """
    target = path.with_name(path.name.removesuffix(".json"))
    try:
        text = read_text(path)
        own = own_sidecar(target, text)
        if own is None:
            raise CertificateError(f"{path}: a run to {target} was killed; its sidecar is there, its output is not")
        form = parse_json(own)
        check_fields(form)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: is not the sidecar of a release") from error
    except CertificateError:
        raise
    except ValueError as error:
        raise ValueError(f"{path}: is not the sidecar of a release; {error}") from error
    try:
        return [*_settling(text, own, target), *_verified(path, form)]
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise ValueError(f"{path}: is not the sidecar of a release") from error


def _settling(text: str, own: str, target: Path) -> list[str]:
    if text == own:
        return []
    return [f"a run that was to replace {target} was killed: this is the release that is there"]


def _verified(path: Path, form: dict[str, Any]) -> list[str]:
    if form["format"] == 1:  # which had no delta, and only columns without one
        form = {**form, "delta": 0.0, "realised_delta": 0.0}
    columns = [_column(column, form) for column in form["columns"]]
    _check_counts(form)
    _check_totals(form, [column.own for column in columns])
    _check_ledger(form, [column.own for column in columns])
    delta = f", delta {shortest(form['delta'])}" if form["delta"] else ""
    total_line = f"total epsilon a row {shortest(form['epsilon'])}{delta}; neighbouring: {form['neighbouring']}"
    files = outputs(form, path)
    if all(file.is_file() for file, _ in files):
        total_line = f"ok: {total_line}"
    else:
        total_line = f"declared, not verified: {form['values_per_row']} values a row in a column, so a {total_line}"
    return [*map(str, columns), total_line, verified_output(form, columns, files, path), *_declared(form)]


def _column(form: dict[str, Any], release: dict[str, Any]) -> VerifiedColumn:
    try:
        certificate = read_certificate(form["certificate"])
        own = guarantee(certificate)
        _check_parameters(form["parameters"], own)
        if release["format"] > 2 or (release["format"] == 2 and form["neighbouring"] != own.formerly):
            check_same("neighbouring", form["neighbouring"], own.neighbours)
        return VerifiedColumn(form, certificate, own, _is_rebuilt(form, certificate, own, release))
    except CertificateError as error:
        raise CertificateError(f"column {title(form['column'])}: {error}") from error


def _check_parameters(parameters: dict[str, float], own: Guarantee) -> None:
    """The claim written beside a certificate is that of its tables, in both parts of a mixture."""
    for word, found in own.stated.items():
        own_names = (word, f"first.{word}", f"second.{word}")
        claimed = {value for name, value in parameters.items() if name in own_names}
        if claimed != {found} or not all(type(value) is float for value in claimed):
            raise CertificateError(f"{word}: the parameters say {claimed or 'nothing'}, the tables {found}")


def _is_rebuilt(form: dict[str, Any], certificate: Certificate, own: Guarantee, release: dict[str, Any]) -> bool:
    """Whether the mechanism, made again, has the parameters and the table.

    Older formats do not have the options, which only bounded mechanisms can do without.

    Raises:
        CertificateError: it has not, and this is the version that made the release: another may make another table.
    """
    name, options = form["mechanism"], form["options"] if release["format"] > 2 else own.stated
    if release["format"] < 3 and name in RECIPES and set(options) != set(RECIPES[name].options):
        return False
    differs = _difference(name, options, form["parameters"], certificate)
    if differs and release["versions"] == versions():
        raise CertificateError(f"mechanism: {name!r}{differs}")
    return not differs


def _difference(name: str, options: Mapping[str, Any], stated: dict[str, float], certificate: Certificate) -> str:
    """How the mechanism made again differs; empty if it does not."""
    try:
        form = exact_form(name, {key: tuple(at) if isinstance(at, list) else at for key, at in options.items()})[1]
    except (click.UsageError, CertificateError) as error:
        return f" cannot be made: {error}"
    again = parameters(form.mechanism)
    if stated.keys() != again.keys() or not all(_same(stated[key], again[key]) for key in again):
        return f" has the parameters {again}, not {stated}"
    facts = ("worst_variance", "lowest", "highest")
    if not isinstance(form.certificate, type(certificate)) or not all(
        _same(getattr(form.certificate, fact), getattr(certificate, fact)) for fact in facts
    ):
        return " has another table"
    return ""


def _same(one: Any, other: Any) -> bool:
    return math.isclose(one, other, rel_tol=_SAME_LAW)


def _check_counts(form: dict[str, Any]) -> None:
    for word in ("rows", "values_per_row"):
        if not (type(form[word]) is int and form[word] >= 1):
            raise CertificateError(f"{word}: {form[word]} is not a positive whole number")


def _check_totals(form: dict[str, Any], guarantees: list[Guarantee]) -> None:
    """The sums of a file are those of its columns."""
    values = form["values_per_row"]
    for word in ("epsilon", "delta"):
        check_same(word, form[word], total([getattr(own, word) for own in guarantees], values))
    for word in ("realised_epsilon", "realised_delta"):
        realised = values * sum(getattr(own, word) for own in guarantees)
        if type(form[word]) is not float or not math.isclose(realised, form[word], rel_tol=1e-12):
            raise CertificateError(f"{word}: the file says {form[word]}, its columns {realised}")
    check_same("neighbouring", form["neighbouring"], of_a_row(guarantees))


def _check_ledger(form: dict[str, Any], guarantees: list[Guarantee]) -> None:
    """What was charged is the total."""
    for word in ("epsilon", "delta") if "ledger" in form else ():
        charged = exact_total([getattr(own, word) for own in guarantees], form["values_per_row"])
        check_same(f"ledger: {word}", form["ledger"][word], printed(charged))


def _declared(form: dict[str, Any]) -> list[str]:
    """What nothing here can confirm."""
    rest = [f"{name} {json.dumps(value)}" for name, value in form.items() if name not in _VERIFIED]
    return [f"declared, not verified: {one}" for one in rest]
