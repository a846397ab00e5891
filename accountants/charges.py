"""The charge to a ledger for many reports about the same people, by a rigorous bound if possible."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import ROUND_CEILING, Context
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from accountants.dominating_pairs.discrete import randomised_response
from accountants.from_mechanism import guarantee
from dpkernels import checks
from dpkernels.budgets.filters import EpsilonDelta, composed_claims
from dpkernels.decimals import float_at_most, rational
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.exact.arithmetic import root_up
from dpkernels.exact.batches import BatchCertificate
from dpkernels.exact.certificate import Certificate, CertificateError
from dpkernels.exact.noise.certificate import NoiseCertificate, gaussian_distance
from dpkernels.exact.registry import exact_sampler
from dpkernels.mechanisms.additive import Additive
from dpkernels.proven import proven

MAX_REPORTS = 1 << 40  # The most reports that one charge composes.
# The bound is raised by this share and to this number of digits: other machines, whose sums round differently, and a
# reader of the printed decimal find it at least as large as their own bound.
ALLOWANCE = Fraction(1_000_001, 1_000_000)
_DIGITS = 7  # Significant digits of the bound that is printed.
_MAX_TABLES = 1 << 8  # The most tables of a batch whose composition is computed; the claims of more are added.
_NEAR_GAUSSIAN = 2.0**-40  # The distance of a table of 64 bits is below 2^-46.


@proven("filters#proof")
def repeated_charge(mechanism: object, count: int) -> EpsilonDelta:
    """Return the (epsilon, delta) of ``count`` reports of one mechanism that are all about the same people.

    Delta is the sum of the claimed deltas. Epsilon is the sum of the claims or, where that is less, the upper end of
    the accountant's bracket at this delta, computed from the integers that a release samples. The bracket is used for
    symmetric additive noise on numbers whose claim has a delta, since at delta 0 epsilons add up. Every value may
    change by up to the sensitivity, in either direction.

    Args:
        mechanism: a mechanism with a claim, its exact sampler, or its certificate. Every entry of a batch makes the
            reports.
        count: the number of reports, 1 to 2^40.

    Example:
        >>> import dpkernels as dpk
        >>> print(repeated_charge(dpk.laplace(epsilon=0.1, sensitivity=1.0), 100))
        epsilon 10, delta 0
    """
    total, bound = _claims(mechanism, count), repeated_bound(mechanism, count).epsilon * ALLOWANCE
    raised = Fraction(Context(_DIGITS, ROUND_CEILING).divide(bound.numerator, bound.denominator))
    return EpsilonDelta(min(total.epsilon, raised), total.delta)


def repeated_bound(mechanism: object, count: int) -> EpsilonDelta:
    """Return the same without the allowance: any epsilon of at least this is one of all the reports."""
    total, certificate = _claims(mechanism, count), _certificate(mechanism)
    if isinstance(certificate, BatchCertificate):
        return EpsilonDelta(batch_bound(certificate, total.delta, count), total.delta)
    if count > 1 and total.delta < 1 and _is_symmetric_noise(certificate):
        with suppress(ValueError, OverflowError):  # not every table and count has a finite bracket
            upper = guarantee(certificate).repeat(count).bracket(delta=float_at_most(total.delta))[1]
            return EpsilonDelta(min(total.epsilon, Fraction(upper)), total.delta)
    return total


@proven("filters#proof")
def composed_epsilon(counts: Mapping[float, int], delta: float) -> float:
    """Return an upper bound on the epsilon at ``delta`` of independent releases: ``counts`` of each pure budget.

    A release of the pure budget e is dominated by randomised response with e, whatever it does within. Budgets count as
    the decimals that they print as.
    """
    return _composed_epsilon(tuple(sorted(counts.items())), delta)


@lru_cache(maxsize=16)  # An allocation and its release ask for the same.
def _composed_epsilon(counts: tuple[tuple[float, int], ...], delta: float) -> float:
    first, *further = (
        guarantee(randomised_response(math.nextafter(epsilon, math.inf))).repeat(count) for epsilon, count in counts
    )
    return float(first.compose(*further).epsilon(delta))


@proven("filters#proof")
def batch_bound(certificate: BatchCertificate, delta: Fraction, count: int = 1) -> Fraction:
    """Return an epsilon such that ``count`` reports of every entry, all about the same people, are (epsilon, delta)-DP.

    It is the least of these that are known:

    - the sum of the claims, where the sum of their deltas is at most ``delta``;
    - the composition of the claims, where all are of delta 0 and have at most 256 epsilons: ``composed_epsilon``;
    - the upper end of the accountant's bracket of all tables together, since every entry's neighbours are as many cells
      apart as those of its table. This needs symmetric noise on numbers with a delta, and at most 256 tables.

    Raises:
        ValueError: none of them is known.
    """
    claims = _claims(certificate, count)
    bounds = [claims.epsilon] if claims.delta <= delta else []
    tables: Any = certificate.tables
    if 0 < delta < 1 and len(tables) <= _MAX_TABLES and all(map(_is_composable, tables)):
        counts = (np.bincount(certificate.table_index) * count).tolist()
        with suppress(ValueError, OverflowError):  # as in repeated_bound
            gaussian_bound = _gaussian_bound(tables, counts, delta)
            bounds.append(_composed_bound(tables, counts, delta) if gaussian_bound is None else gaussian_bound)
    if claims.delta == 0 < delta < 1:
        epsilons, entry_counts = np.unique(certificate.epsilon, return_counts=True)
        if len(epsilons) <= _MAX_TABLES:
            pairs = zip(epsilons.tolist(), (entry_counts * count).tolist(), strict=True)
            bounds.append(Fraction(composed_epsilon(dict(pairs), float_at_most(delta))))
    if not bounds:
        raise ValueError(f"delta: {float(delta):g}; the composition of these {len(tables)} tables is not known")
    return min(bounds)


def _composed_bound(tables: Sequence[NoiseCertificate], counts: Sequence[int], delta: Fraction) -> Fraction:
    """Return the upper end of the bracket of the reports, ``counts`` of each table."""
    reports = [guarantee(table).repeat(count) for table, count in zip(tables, counts, strict=True)]
    return Fraction(reports[0].compose(*reports[1:]).bracket(delta=float_at_most(delta))[1])


@proven("filters#proof")
def _gaussian_bound(tables: Sequence[NoiseCertificate], counts: Sequence[int], delta: Fraction) -> Fraction | None:
    """Return an epsilon of ``counts`` reports of each table, all next to Gaussian noise; None if a table is not.

    With tau the distance of a table to the masses of a Gaussian, and s/sigma its neighbours' distance, the reports have
    the delta of Gaussian noise at the root of the sum of n (s/sigma)^2, plus the sum of n tau (1 + e^epsilon).
    """
    square = distance = Fraction(0)
    for certificate, count in zip(tables, counts, strict=True):
        table = certificate.table
        variance = table.variance / table.bin_width**2 - Fraction(1, 12)  # Of the Gaussian, without its rounding.
        if variance <= 0:
            return None
        sigma = root_up(Fraction(math.floor(variance * (1 << 80)), 1 << 80))
        try:
            tau = gaussian_distance(table, sigma)
        except CertificateError:
            return None
        if tau > _NEAR_GAUSSIAN:
            return None
        square += count * (certificate.shift / sigma) ** 2
        distance += count * tau
    mu = math.nextafter(math.nextafter(math.sqrt(square), math.inf), math.inf)
    noise = guarantee(Additive(Gaussian(1.0), mu))
    max_epsilon = 1.001 * noise.epsilon(float_at_most(delta))
    remaining_delta = delta - distance * (1 + Fraction(math.exp(max_epsilon) * (1 + 1e-12)))
    if remaining_delta <= 0:
        return None
    epsilon = noise.epsilon(float_at_most(remaining_delta))
    return Fraction(epsilon) if epsilon <= max_epsilon else None


def _is_composable(certificate: Any) -> bool:
    """Return whether one pair, the table and it shifted, dominates every entry of a table."""
    if not (_is_symmetric_noise(certificate) and certificate.shift >= 1 and certificate.table.is_unimodal):
        return False
    return certificate.table.tail is None and certificate.table.remainder is None


def _claims(mechanism: object, count: int) -> EpsilonDelta:
    """Return the sum of the claims of all reports."""
    count, certificate = checks.integer_in("count", count, 1, MAX_REPORTS), _certificate(mechanism)
    if isinstance(certificate, BatchCertificate):
        total = composed_claims(certificate.epsilon, certificate.delta)
        return EpsilonDelta(count * total.epsilon, count * total.delta)
    delta = rational(getattr(certificate, "delta", 0))
    return EpsilonDelta(count * rational(certificate.epsilon), count * delta)


def _certificate(mechanism: object) -> Any:
    if isinstance(mechanism, Certificate):
        return mechanism
    return exact_sampler(mechanism).certificate


def _is_symmetric_noise(certificate: Certificate) -> bool:
    if not isinstance(certificate, NoiseCertificate):
        return False
    return bool((certificate.table.weights == certificate.table.weights[::-1]).all())
