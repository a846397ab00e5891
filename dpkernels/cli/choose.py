"""A mechanism chosen by its name."""

from __future__ import annotations

import click

from dpkernels.exact.forms import ExactForm, certify
from dpkernels.mechanisms.base import Mechanism
from dpkernels.mechanisms.named import MECHANISMS


def mechanism(name: str, epsilon: float, lower: float, upper: float, where: str = "") -> Mechanism:
    """The mechanism.

    Raises:
        click.UsageError: no such mechanism, or an argument out of range; begins with ``where``.
    """
    if name not in MECHANISMS:
        raise click.UsageError(f"{where}--mechanism: {name!r} is not one of {', '.join(MECHANISMS)}")
    try:
        return MECHANISMS[name](epsilon=epsilon, lower=lower, upper=upper)
    except ValueError as error:
        raise click.UsageError(f"{where}{error}") from error


def exact_form(name: str, lower: float, upper: float, epsilon: float, where: str = "") -> ExactForm:
    """The certified form of the mechanism.

    Raises:
        click.UsageError: as ``mechanism``.
        CertificateError: its integers do not have the guarantee.
    """
    return certify(mechanism(name, epsilon, lower, upper, where))
