"""``dpkernels certify``: one mechanism's certificate; ``release.verify`` checks a finished release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpkernels.cli.mechanisms.choose import exact_form
from dpkernels.cli.release.sidecar import law_of, parameters
from dpkernels.exact.sampler import ExactSampler


@dataclass(frozen=True)
class Report:
    """A mechanism's certificate, and what the certificate costs.

    Attributes:
        name: the mechanism's name.
        form: its certified form.
    """

    name: str
    form: ExactSampler

    @classmethod
    def of(cls, name: str, options: Mapping[str, Any]) -> Report:
        """Certify.

        Raises:
            click.UsageError: no such mechanism, or an option that is wrong, missing or out of range.
            CertificateError: its integers do not have the guarantee.
        """
        return cls(*exact_form(name, options)[:2])

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
