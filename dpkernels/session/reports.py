"""The record of the releases of a session: as text, and as JSON that others can verify."""

from __future__ import annotations

import importlib.metadata
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import Any

from accountants.charges import composed_epsilon
from dpkernels.bounded_json import JsonObject, integer
from dpkernels.budgets.filters import EpsilonDelta, format_amount, plus
from dpkernels.budgets.ledger import UnsoundError, parse_amount
from dpkernels.decimals import rational, shortest
from dpkernels.exact.certificate import CertificateError
from dpkernels.exact.packed import json_digest, with_references, without_references
from dpkernels.exact.registry import Certificate
from dpkernels.numerics import MAX_EXPONENT
from dpkernels.session.results import Result
from dpkernels.session.run import NoiseRecord
from dpkernels.session.statistic import Statistic

FORMAT = "dpkernels session 2"
_FORMAT_WITHOUT_REFERENCES = "dpkernels session 1"  # whose certificates held their integers themselves
_RECORD_FIELDS = ("label", "epsilon", "delta", "sensitivity", "step", "reports")


@dataclass(frozen=True)
class Entry:
    """One release: what it cost, what was drawn, and the result.

    Attributes:
        statistic: what was released.
        plan: 0, or the number of the plan of which it is a part.
        cost: of the release, or of its whole plan.
        noise_records: the noises and choices.
        result: what came out.
        charge: the hash of the ledger's entry, if there is a ledger.
    """

    statistic: Statistic
    plan: int
    cost: EpsilonDelta
    noise_records: tuple[NoiseRecord, ...]
    result: Result
    charge: str = ""


def report(entries: Sequence[Entry], spent: EpsilonDelta, left: EpsilonDelta, neighbouring: str) -> str:
    """Return the report of a session as text."""
    lines = [f"Neighbours: {neighbouring}.", ""]
    for entry in entries:
        settings = f" ({entry.statistic.arguments_text})" if entry.statistic.arguments_text else ""
        plan = f", all of plan {entry.plan}" if entry.plan else ""
        lines.append(f"{entry.statistic.title}{settings}: {entry.cost}{plan}")
        for record in entry.noise_records:
            cost = f"epsilon {shortest(record.epsilon)}" + (f", delta {shortest(record.delta)}" if record.delta else "")
            noise = record.choice
            if record.certificate is not None:
                distribution = "bounded" if record.delta else "discrete Laplace"
                noise = (
                    f"{distribution} noise in steps of {shortest(record.step)}, sensitivity {record.sensitivity} steps"
                )
                noise += f", certificate {json_digest(record.certificate.to_dict())[:16]}"
            lines.append(f"  {record.label}: {cost}; {noise}")
    replaced = f"epsilon {format_amount(2 * spent.epsilon)}"
    if spent.delta:
        replaced += f" and delta {float(spent.delta) * (1 + math.exp(min(float(spent.epsilon), MAX_EXPONENT))):.3g}"
    version = importlib.metadata.version("dpkernels")
    private = f"({format_amount(spent.epsilon)}, {format_amount(spent.delta)})"
    return "\n".join(
        [
            *lines,
            "",
            f"Spent: {spent}. Left: {left}. If one person is replaced by another one: {replaced}.",
            "",
            f"All statistics together are {private}-differentially private; neighbouring data differ in that "
            f"{neighbouring}. Noise was drawn from integer tables with verified certificates (dpkernels {version}). "
            "Intervals of released values contain the noise alone, not the sampling of the data.",
        ]
    )


def to_dict(
    entries: Sequence[Entry], spent: EpsilonDelta, neighbouring: str, ledger: str | None, confidence: float
) -> JsonObject:
    """Return the JSON that ``verify`` reads."""
    certificates, releases, integers = JsonObject(), [], JsonObject()
    for entry in entries:
        parts = []
        for record in entry.noise_records:
            fields = {name: getattr(record, name) for name in _RECORD_FIELDS}
            if record.certificate is not None:
                certificate = record.certificate.to_dict()
                fields["certificate"] = json_digest(certificate)
                certificates[fields["certificate"]] = certificate
            parts.append(fields)
        releases.append(
            {
                "statistic": entry.statistic.title,
                "settings": entry.statistic.arguments_text,
                "charge": entry.charge,
                "plan": entry.plan,
                "cost": [format_amount(amount) for amount in entry.cost],
                "parts": parts,
                "result": entry.result.to_dict(confidence),
            }
        )
    return {
        "format": FORMAT,
        "version": importlib.metadata.version("dpkernels"),
        "neighbouring": neighbouring,
        "spent": [format_amount(amount) for amount in spent],
        "ledger": ledger,
        "releases": releases,
        "certificates": with_references(certificates, integers),
        "integers": integers,
    }


def verify(saved: JsonObject) -> list[str]:
    """Verify a saved session, and return lines that describe it.

    Every certificate is computed again from its integers. The parts of a release must have the claims of their
    certificates, and cost at most what it states: their sum, or of a plan the composition of its releases. Costs must
    add up to at most what was spent, which includes releases that failed. Everything else is as declared: neighbours,
    values with their intervals and keys, and the epsilons of choices.

    Raises:
        CertificateError: what is stated does not follow.
        ValueError: this is not a saved session.
    """
    try:
        return _verified(saved)
    except (KeyError, TypeError, AttributeError, UnsoundError) as error:
        raise ValueError(f"is not a session that was saved: {type(error).__name__} {error}") from None


def _verified(saved: JsonObject) -> list[str]:
    if saved["format"] not in (FORMAT, _FORMAT_WITHOUT_REFERENCES):
        raise ValueError(f"is of format {saved['format']!r}, not {FORMAT!r}")
    payloads, certificates = saved["certificates"], dict[str, object]()
    if saved["format"] == FORMAT:
        payloads = without_references(payloads, saved["integers"])
    for digest, payload in payloads.items():
        if json_digest(payload) != digest:
            raise CertificateError(f"certificate {digest[:16]} was altered")
        certificates[digest] = Certificate.from_dict(payload)
    lines = [
        f"neighbours, as declared: {saved['neighbouring']}",
        "values, intervals, keys, settings, steps of noise, and entries of a ledger are as declared",
    ]
    charged: dict[int | str, tuple[EpsilonDelta, list[EpsilonDelta]]] = {}  # plans and releases, each with its claims
    for number, release in enumerate(saved["releases"]):
        cost = EpsilonDelta(*(parse_amount(text) for text in release["cost"]))
        stated, claims = charged.setdefault(integer("plan", release["plan"]) or f"release {number}", (cost, []))
        claims.append(_claims(release["parts"], certificates))
        if stated != cost:
            raise CertificateError(f"{release['statistic']}: its cost of {cost} is not its plan's of {stated}")
        choices = [part for part in release["parts"] if "certificate" not in part]
        plan = f" with all of plan {release['plan']}" if release["plan"] else ""
        lines.append(f"{release['statistic']}: {cost}{plan}, verified{', choices as declared' if choices else ''}")
    for name, (cost, claims) in charged.items():
        if not _costs_at_most(claims, cost):
            raise CertificateError(
                f"{'plan ' * isinstance(name, int)}{name}: its parts have more than its cost of {cost}"
            )
    total = reduce(plus, (cost for cost, _ in charged.values()), EpsilonDelta())
    spent = EpsilonDelta(*(parse_amount(text) for text in saved["spent"]))
    if total.epsilon > spent.epsilon or total.delta > spent.delta:
        raise CertificateError(f"the releases cost {total}, and {spent} is stated")
    costs = "the sum of all costs" if total == spent else f"of which {total} for these; other releases failed"
    return [*lines, f"spent: {spent}, {costs}", f"{len(certificates)} certificates verified"]


def _costs_at_most(claims: Sequence[EpsilonDelta], cost: EpsilonDelta) -> bool:
    """Return whether releases with such claims, added or composed, cost at most that."""
    total = reduce(plus, claims)
    if total.delta > cost.delta or total.epsilon <= cost.epsilon or len(claims) == 1:
        return total.delta <= cost.delta and total.epsilon <= cost.epsilon
    delta = math.nextafter(float(cost.delta - total.delta), 0.0)  # what is left for the composition
    epsilons = Counter(float(claim.epsilon) for claim in claims)
    return delta > 0 and composed_epsilon(epsilons, delta) <= cost.epsilon


def _claims(parts: Sequence[JsonObject], certificates: Mapping[str, Any]) -> EpsilonDelta:
    """Return the sum of the claims of parts, of which there is at least one."""
    if not parts:
        raise ValueError("a release has no parts")
    claims = [_claim(part, certificates) for part in parts]
    epsilon, delta = (sum(amounts, Fraction(0)) for amounts in zip(*claims, strict=True))
    return EpsilonDelta(epsilon, delta)


def _claim(part: JsonObject, certificates: Mapping[str, Any]) -> tuple[Fraction, Fraction]:
    """Return epsilon and delta of a part, which must be those of its certificate."""
    if unknown := part.keys() - {*_RECORD_FIELDS, "certificate"}:  # such as a certificate whose name was altered
        raise ValueError(f"{part['label']}: has an unknown field {sorted(unknown)[0]!r}")
    claim = rational(part["epsilon"]), rational(part["delta"])
    if min(claim) < 0 or integer("reports", part["reports"]) < 1:
        raise CertificateError(f"{part['label']}: claims less than nothing, or for {part['reports']} reports")
    if "certificate" in part:
        certificate = certificates.get(part["certificate"])
        if certificate is None:
            raise CertificateError(f"{part['label']}: its certificate {part['certificate'][:16]} is missing")
        epsilon, delta = (
            float(part["reports"] * rational(getattr(certificate, name))) for name in ("epsilon", "delta")
        )
        if (epsilon, delta) != tuple(map(float, claim)):
            raise CertificateError(f"{part['label']}: its certificate claims epsilon {epsilon}, delta {delta}")
        if (D := getattr(certificate, "claim", certificate).sensitivity) != part["sensitivity"]:
            raise CertificateError(f"{part['label']}: its certificate is for sensitivity {D}")
    return claim
