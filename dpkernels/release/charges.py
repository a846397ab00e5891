"""The cost of a release, and its charge to a ledger or filter before the release."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from fractions import Fraction
from typing import Any, Protocol

from dpkernels import checks
from dpkernels.batches import check_fits
from dpkernels.budgets.filters import ConcentratedFilter, EpsilonDelta, composed_claims
from dpkernels.decimals import rational, shortest
from dpkernels.exact.batches import ExactBatch
from dpkernels.exact.noise.certificate import AdditiveCertificate
from dpkernels.mechanisms.additive import check_dimensions
from dpkernels.mechanisms.categorical.base import Categorical
from dpkernels.mechanisms.categorical.prefixes import PrefixPlan
from dpkernels.proven import proven
from dpkernels.pytrees import PyTree
from dpkernels.release import containers
from dpkernels.release.categories import category_codes
from dpkernels.release.containers import Container

# Whom the rows of a release are about: all of them are charged, or one.
SAME_PEOPLE, DIFFERENT_PEOPLE = ROWS = ("same-people", "different-people")


class Chargeable(Protocol):
    """An object that refuses or keeps charges, such as a ledger, a filter or an odometer."""

    def charge(self, epsilon: object, delta: object = 0, label: str = "") -> object:
        """Charge (epsilon, delta), or raise an error."""


def is_statistic(certificate: object) -> bool:
    """Return whether neighbouring values are within a sensitivity, as those of statistics, and not any two values."""
    return isinstance(certificate, AdditiveCertificate) or getattr(certificate, "sensitivity", None) is not None


@proven("filters#proof")
def cost(x: Container, samplers: PyTree, rows: str | None) -> tuple[Fraction, Fraction]:
    """Return the (epsilon, delta) of all reports of x that are about one person, by basic composition.

    ``samplers`` are an exact sampler or, for a table, a dict from column name to one. ``rows`` is one of ``ROWS``, or
    None if every row is a person, or if there is only one row.
    """
    is_table = isinstance(samplers, Mapping)
    columns = [(name, x[name], sampler) for name, sampler in samplers.items()] if is_table else [(None, x, samplers)]
    epsilon = delta = Fraction(0)
    for name, values, sampler in columns:
        certificate = sampler.certificate
        with nullcontext() if name is None else containers.naming_column(name):
            if isinstance(sampler, ExactBatch):
                claims = _cost_of_batch(containers.shape(values), sampler, rows)
                epsilon, delta = epsilon + claims.epsilon, delta + claims.delta
                continue
            reports = _reports_of_a_person(values, sampler.mechanism, rows, is_statistic(certificate))
        epsilon += reports * rational(certificate.epsilon)
        delta += reports * rational(getattr(certificate, "delta", 0))
    return epsilon, delta


def _cost_of_batch(shape: tuple[int, ...], sampler: ExactBatch, rows: str | None) -> EpsilonDelta:
    """Return the cost for one person of values of a shape (..., *batch shape).

    All entries of a row are about the same person. Where the batch has one mechanism a row, one person costs the most
    that any row costs, for rows about different people.
    """
    check_fits(shape, sampler.shape)
    if 0 in shape:
        raise ValueError("x: is empty; at least one value is needed")
    is_local = not is_statistic(sampler.certificate.tables[0])
    outer, claims = shape[: len(shape) - len(sampler.shape)], (sampler.certificate.epsilon, sampler.certificate.delta)
    if rows is None and shape[0] > 1 and not (outer and is_local):
        raise ValueError(
            f"rows: None; x has {shape[0]} rows with a mechanism each, and a charge must know whom they are about: "
            f"{SAME_PEOPLE!r} (all are charged) or {DIFFERENT_PEOPLE!r} (the largest charge of a row)"
        )
    if outer or rows == SAME_PEOPLE or shape[0] == 1:
        entries = composed_claims(*claims)
        copies = math.prod(outer if rows == SAME_PEOPLE else outer[1:])
        return EpsilonDelta(copies * entries.epsilon, copies * entries.delta)
    if len(shape) == 1:
        return EpsilonDelta(*(rational(float(claim.max())) for claim in claims))
    costs = [composed_claims(epsilons, deltas) for epsilons, deltas in zip(*claims, strict=True)]
    return EpsilonDelta(max(cost.epsilon for cost in costs), max(cost.delta for cost in costs))


def _reports_of_a_person(x: Container, mechanism: Any, rows: str | None, is_statistic: bool) -> int:
    is_categorical = isinstance(mechanism, Categorical | PrefixPlan)
    # Values of another kind or shape are refused here.
    shape = category_codes(x, mechanism)[0].shape if is_categorical else containers.shape(x)
    if hasattr(mechanism, "dimensions"):
        check_dimensions(mechanism.dimensions, shape)
        shape = shape[:-1]
    count, count_of_a_row = math.prod(shape), math.prod(shape[1:])
    if not count:
        raise ValueError("x: is empty; at least one value is needed")
    if rows is None and is_statistic and count > count_of_a_row:
        raise ValueError(
            f"rows: None; x has {shape[0]} rows of statistics, and a charge must know whom they are about: "
            f"{SAME_PEOPLE!r} (all are charged) or {DIFFERENT_PEOPLE!r} (one is charged)"
        )
    return count if rows == SAME_PEOPLE else count_of_a_row


@proven("filters#proof")
def charge(ledger: Chargeable, x: object, samplers: object, rows: str | None, label: str) -> str:
    """Charge a ledger for the release of x, and return the charge in words."""
    if isinstance(ledger, type) or not callable(getattr(ledger, "charge", None)):
        raise TypeError(f"ledger: {ledger!r} cannot be charged; open a file with accountants.Ledger(path)")
    if isinstance(ledger, ConcentratedFilter):
        raise TypeError("ledger: a ConcentratedFilter has a budget of rho; a release costs (epsilon, delta)")
    if not isinstance(label, str):
        raise TypeError(f"label: {label!r} must be a string")
    if rows is not None:
        checks.one_of("rows", rows, ROWS)
    epsilon, delta = cost(x, samplers, rows)
    ledger.charge(epsilon, delta, label=label)
    return f"epsilon {shortest(epsilon)}, delta {shortest(delta)}"
