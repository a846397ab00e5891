"""The charge to a ledger for many reports about the same people, by a rigorous bound where there is one."""

from __future__ import annotations

import math
from contextlib import suppress
from decimal import ROUND_CEILING, Context
from fractions import Fraction
from typing import Any

from accountants.mechanism_guarantee import guarantee
from dpkernels import checks
from dpkernels.budgets.filters import EpsilonDelta
from dpkernels.decimals import rational
from dpkernels.exact.certificate import Certificate
from dpkernels.exact.noise import NoiseCertificate
from dpkernels.exact.registry import exact_sampler
from dpkernels.proven import proven

MOST_REPORTS = 1 << 40
# The bound is raised by this share and to this number of digits: other machines, whose sums round differently, and a
# reader of the printed decimal find it at least as large as their own bound.
_ALLOWANCE, _DIGITS = Fraction(1_000_001, 1_000_000), 7


@proven("filters#proof")
def repeated_charge(mechanism: Any, count: int) -> EpsilonDelta:
    """Return the (epsilon, delta) of ``count`` reports of one mechanism that are all about the same people.

    Delta is the sum of the claimed deltas. Epsilon is the sum of the claims or, where that is less, the upper end of
    the accountant's bracket at this delta, computed from the integers that a release samples. The bracket is used for
    symmetric additive noise on numbers whose claim has a delta, since at delta 0 epsilons add up. Every value may
    change by up to the sensitivity, in either direction.

    Args:
        mechanism: a mechanism with a claim, its exact sampler, or its certificate.
        count: the number of reports, 1 to 2^40.

    Example:
        >>> import dpkernels as dpk
        >>> print(repeated_charge(dpk.laplace(epsilon=0.1, sensitivity=1.0), 100))
        epsilon 10, delta 0
    """
    total, bound = _claims(mechanism, count), repeated_bound(mechanism, count).epsilon * _ALLOWANCE
    raised = Fraction(Context(_DIGITS, ROUND_CEILING).divide(bound.numerator, bound.denominator))
    return EpsilonDelta(min(total.epsilon, raised), total.delta)


def repeated_bound(mechanism: Any, count: int) -> EpsilonDelta:
    """Return the same without the allowance: any epsilon of at least this is one of all the reports."""
    total, certificate = _claims(mechanism, count), _certificate(mechanism)
    if count > 1 and total.delta < 1 and _is_symmetric_noise(certificate):
        with suppress(ValueError, OverflowError):  # not every table and count has a finite bracket
            upper = guarantee(certificate).repeat(count).bracket(delta=_float_at_most(total.delta))[1]
            return EpsilonDelta(min(total.epsilon, Fraction(upper)), total.delta)
    return total


def _claims(mechanism: Any, count: int) -> EpsilonDelta:
    """Return the sum of the claims of all reports."""
    count, certificate = checks.integer_in("count", count, 1, MOST_REPORTS), _certificate(mechanism)
    delta = rational(getattr(certificate, "delta", 0))
    return EpsilonDelta(count * rational(certificate.epsilon), count * delta)


def _certificate(mechanism: Any) -> Any:
    if isinstance(mechanism, Certificate):
        return mechanism
    return exact_sampler(mechanism).certificate


def _is_symmetric_noise(certificate: Any) -> bool:
    if not isinstance(certificate, NoiseCertificate):
        return False
    return bool((certificate.table.weights == certificate.table.weights[::-1]).all())


def _float_at_most(number: Fraction) -> float:
    nearest = float(number)
    return nearest if Fraction(nearest) <= number else math.nextafter(nearest, 0.0)
