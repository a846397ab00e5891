"""What a certificate guarantees, in the same words wherever the command states it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any

from dpkernels.decimals import float_at_least, shortest
from dpkernels.exact.certificate import BoundedCertificate
from dpkernels.exact.combined import MixtureCertificate
from dpkernels.exact.noise.certificate import NoiseCertificate
from dpkernels.exact.rows.certificate import RowCertificate
from dpkernels.exact.windows.certificate import PlacedCertificate, WindowCertificate

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
        formerly: the same in the words of format 2, with fewer digits.
        limits: why values are refused, if not for an interval of the user's.
    """

    epsilon: float
    realised_epsilon: float
    delta: float
    realised_delta: float
    stated: dict[str, float]
    neighbours: str
    formerly: str
    limits: str = ""


@singledispatch
def guarantee(certificate: Any) -> Guarantee:
    """The guarantee of a certificate of single reports.

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
    former = f"at most {D:.12g} apart, in [{lower:g}, {upper:g}]"
    return replace(local, stated={**local.stated, "sensitivity": D}, neighbours=near, formerly=former)


def _bounded(whole: BoundedCertificate | MixtureCertificate, part: BoundedCertificate) -> Guarantee:
    epsilon, lower, upper = whole.epsilon, part.table.lower, part.table.upper
    stated = {"epsilon": epsilon, "lower": lower, "upper": upper}
    near, former = f"any two in [{shortest(lower)}, {shortest(upper)}]", f"any two in [{lower:g}, {upper:g}]"
    return Guarantee(epsilon, whole.realised_epsilon, 0.0, 0.0, stated, near, former)


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
        f"at most {D:.12g} apart",
        "; additive noise takes values up to 2^34 sensitivities from 0",
    )


def of_a_row(guarantees: Iterable[Guarantee]) -> str:
    """Which rows are neighbouring."""
    return _MIXED if any("sensitivity" in one.stated for one in guarantees) else _LOCAL
