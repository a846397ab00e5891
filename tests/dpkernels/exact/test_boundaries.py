"""A certificate of any kind is accepted with the least claim that is so, and refused with the float below it."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import mpmath
import pytest
from independent import decimal
from small_certificates import NAMES, text

from dpkernels.exact.certificate import Certificate, CertificateError

# Of the others the budget is that of their parts.
CLAIMED = [name for name in NAMES if not name.startswith(("mixture", "multivariate", "prefixes"))]


def least_float(is_so, near):
    """The least float for which a monotone statement about its decimal is so."""
    value = near
    while is_so(value):
        value = math.nextafter(value, -math.inf)
    while not is_so(value):
        value = math.nextafter(value, math.inf)
    return value


def holds(ratio, epsilon):
    """Whether a ratio of probabilities is at most e^epsilon, in 60 digits."""
    with mpmath.workdps(60):
        claimed = decimal(epsilon)
        bound = mpmath.exp(mpmath.mpf(claimed.numerator) / claimed.denominator)
        return mpmath.mpf(ratio.numerator) / ratio.denominator <= bound


@pytest.mark.parametrize("name", CLAIMED)
def test_the_least_claim_is_accepted_and_the_float_below_it_is_not(name):
    payload = json.loads(text(name))
    if "delta" in payload:
        claim, realised = "delta", Fraction(payload["realised_delta"])
        least = least_float(lambda delta: decimal(delta) >= realised, float(realised))
    else:
        claim, ratio = "epsilon", Fraction(payload["ratio"])
        least = least_float(lambda epsilon: holds(ratio, epsilon), math.log(ratio))
        assert payload["realised_epsilon"] == least
    assert getattr(Certificate.from_dict({**payload, claim: least}), claim) == least
    with pytest.raises(CertificateError):
        Certificate.from_dict({**payload, claim: math.nextafter(least, 0.0)})
