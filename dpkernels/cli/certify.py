"""``dpkernels certify``: one mechanism's certificate, or a finished release verified again."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpkernels.cli.choose import exact_form
from dpkernels.cli.guarantees import Guarantee, guarantee, of_a_row
from dpkernels.cli.sidecar import FORMAT, law_of, parameters, title, total
from dpkernels.exact.certificate import CertificateError
from dpkernels.exact.combined import read_certificate
from dpkernels.exact.forms import ExactForm


@dataclass(frozen=True)
class Report:
    """A mechanism's certificate, and what the certificate costs.

    Attributes:
        name: the mechanism's name.
        form: its certified form.
    """

    name: str
    form: ExactForm

    @classmethod
    def of(cls, name: str, options: Mapping[str, Any]) -> Report:
        """Certify.

        Raises:
            click.UsageError: no such mechanism, or an option that is wrong, missing or out of range.
            CertificateError: its integers do not have the guarantee.
        """
        return cls(*exact_form(name, options))

    def to_dict(self) -> dict[str, Any]:
        """A JSON form."""
        return {
            "mechanism": self.name,
            "parameters": parameters(self.form.mechanism),
            "variance_cost": self.form.variance_cost,
            "certificate": self.form.certificate.to_dict(),
        }

    def __str__(self) -> str:
        cost = f"{100 * self.form.variance_cost:+.4g} % in worst-case variance, against the ideal density"
        law = law_of(self.form.mechanism)
        name = f"{self.name}, {law}" if law else self.name
        return f"mechanism           {name}\n{self.form.certificate}\ncost                {cost}"


def verify(path: Path) -> list[str]:
    """Verify every certificate of a sidecar from its integers.

    Returns:
        A line a column.

    Raises:
        CertificateError: a table does not have its guarantee, or the file claims another.
        ValueError: not a sidecar.
    """
    try:
        form = json.loads(path.read_text(encoding="utf-8"))
        if form["format"] not in (1, FORMAT):
            raise ValueError(f"{path}: format {form['format']!r}; this version reads 1 and {FORMAT}")
        if not form["columns"]:
            raise CertificateError(f"{path}: has no columns")
        guarantees = [_verified(column, form["format"]) for column in form["columns"]]
        _check_totals(form, guarantees)
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: is not the sidecar of a release") from error
    lines = [_line(column, own) for column, own in zip(form["columns"], guarantees, strict=True)]
    delta = f", delta {form['delta']:g}" if form.get("delta") else ""
    return [*lines, f"ok: total epsilon a row {form['epsilon']:g}{delta}"]


def _line(column: dict[str, Any], own: Guarantee) -> str:
    delta = f", delta {own.delta:g}" if own.delta else ""
    return f"ok: {title(column['column'])}, epsilon {own.epsilon:g}{delta}; neighbouring: {own.neighbours}"


def _verified(column: dict[str, Any], version: int) -> Guarantee:
    try:
        own = guarantee(read_certificate(column["certificate"]))
        _check_parameters(column["parameters"], own)
        if version > 1:
            _check_same("neighbouring", column["neighbouring"], own.neighbours)
    except CertificateError as error:
        raise CertificateError(f"column {title(column['column'])}: {error}") from error
    return own


def _check_parameters(parameters: dict[str, float], own: Guarantee) -> None:
    """The claim written beside a certificate is that of its tables, in both parts of a mixture."""
    for word, found in own.stated.items():
        own_names = (word, f"first.{word}", f"second.{word}")
        claimed = {value for name, value in parameters.items() if name in own_names}
        if claimed != {found}:
            raise CertificateError(f"{word}: the parameters say {claimed or 'nothing'}, the tables {found}")


def _check_totals(form: dict[str, Any], guarantees: list[Guarantee]) -> None:
    """The sums of a file are those of its columns; format 1 had no delta, and only columns without one."""
    values = form["values_per_row"]
    if not (isinstance(values, int) and values >= 1):
        raise CertificateError(f"values_per_row: {values} is not a positive whole number")
    stated = form if form["format"] > 1 else {**form, "delta": 0.0, "realised_delta": 0.0}
    for word in ("epsilon", "delta"):
        _check_same(word, stated[word], total([getattr(own, word) for own in guarantees], values))
    for word in ("realised_epsilon", "realised_delta"):
        realised = values * sum(getattr(own, word) for own in guarantees)
        if not math.isclose(realised, stated[word], rel_tol=1e-12):
            raise CertificateError(f"{word}: the file says {stated[word]}, its columns {realised}")
    _check_same("neighbouring", form["neighbouring"], of_a_row(guarantees))


def _check_same(word: str, stated: Any, found: Any) -> None:
    if stated != found:
        raise CertificateError(f"{word}: the file says {stated}, its columns {found}")
