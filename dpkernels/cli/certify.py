"""``dpkernels certify``: one mechanism's certificate, or a finished release verified again."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpkernels.cli.choose import exact_form
from dpkernels.cli.sidecar import FORMAT, parameters, total_epsilon
from dpkernels.cli.text import shown
from dpkernels.exact.certificate import Certificate, CertificateError
from dpkernels.exact.combined import MixtureCertificate, read_certificate
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
    def of(cls, name: str, epsilon: float, lower: float, upper: float) -> Report:
        """Certify.

        Raises:
            click.UsageError: no such mechanism, or an argument out of range.
            CertificateError: its integers do not have the guarantee.
        """
        return cls(name, exact_form(name, lower, upper, epsilon))

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
        return f"mechanism           {self.name}\n{self.form.certificate}\ncost                {cost}"


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
        if form["format"] != FORMAT:
            raise ValueError(f"{path}: format {form['format']!r}; this version reads {FORMAT}")
        if not form["columns"]:
            raise CertificateError(f"{path}: has no columns")
        lines = [_verified(column) for column in form["columns"]]
        _check_total(form)
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: is not the sidecar of a release") from error
    return [*lines, f"ok: total epsilon a row {form['epsilon']:g}"]


def _verified(column: dict[str, Any]) -> str:
    name = "(array)" if column["column"] is None else shown(column["column"])
    try:
        certificate = read_certificate(column["certificate"])
        _check_claims(column["parameters"], certificate)
    except CertificateError as error:
        raise CertificateError(f"column {name}: {error}") from error
    return f"ok: {name}, epsilon {certificate.epsilon:g} on {_interval(certificate)}"


def _interval(certificate: Certificate | MixtureCertificate) -> str:
    table = certificate.first.table if isinstance(certificate, MixtureCertificate) else certificate.table
    return f"[{table.lower:g}, {table.upper:g}]"


def _check_claims(claims: dict[str, Any], certificate: Certificate | MixtureCertificate) -> None:
    """The interval and budget written beside a certificate are those of its tables."""
    tables = (
        (certificate.first.table, certificate.second.table)
        if isinstance(certificate, MixtureCertificate)
        else (certificate.table,)
    )
    for word in ("lower", "upper", "epsilon"):
        claimed = {value for name, value in claims.items() if name.split(".")[-1] == word}
        found = {getattr(part, word) for part in (tables if word != "epsilon" else [certificate])}
        if len(found) != 1 or claimed != found:
            raise CertificateError(f"{word}: the parameters say {claimed}, the tables {found}")


def _check_total(form: dict[str, Any]) -> None:
    values = form["values_per_row"]
    if not (isinstance(values, int) and values >= 1):
        raise CertificateError(f"values_per_row: {values} is not a positive whole number")
    certificates = [column["certificate"] for column in form["columns"]]
    realised = values * sum(certificate["realised_epsilon"] for certificate in certificates)
    if not math.isclose(realised, form["realised_epsilon"], rel_tol=1e-12):
        raise CertificateError(f"realised_epsilon: the file says {form['realised_epsilon']}, its columns {realised}")
    total = total_epsilon([certificate["epsilon"] for certificate in certificates], values)
    if total != form["epsilon"]:
        raise CertificateError(f"epsilon: the file says {form['epsilon']}, its columns sum to {total}")
