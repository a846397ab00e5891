"""Floats as decimals: what is printed reads back as the same float, and a value is told from its bound."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpkernels as dpk
from dpkernels.decimals import float_at_least, rational, shortest

EVERY = settings(max_examples=300, deadline=None, derandomize=True, database=None)
FINITE = st.floats(allow_nan=False, allow_infinity=False)


@EVERY
@given(FINITE)
def test_what_is_printed_reads_back(number):
    assert float(shortest(number)) == number
    assert rational(number) == Fraction(shortest(number))


@pytest.mark.parametrize(
    ("number", "text"),
    [(1.0, "1"), (1.0000049, "1.0000049"), (math.nextafter(1.0, 2.0), "1.0000000000000002"), (1e-6, "1e-06")],
)
def test_how_numbers_are_printed(number, text):
    assert shortest(number) == shortest(np.float64(number)) == text
    assert shortest(math.inf) == "inf"


@EVERY
@given(st.fractions(min_value=0, max_value=1000))
def test_a_float_at_least_a_number(number):
    rounded_up = float_at_least(number)
    assert rational(rounded_up) >= number
    assert rational(math.nextafter(rounded_up, -math.inf)) < number


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_refused_value_is_told_from_the_bound(dtype):
    just_above = np.nextafter(dtype(1.0), dtype(2.0))
    with pytest.raises(ValueError, match=rf"row 0 is {shortest(just_above)}, outside the input interval \[0, 1\]"):
        dpk.perturb(np.array([just_above]), dpk.piecewise(epsilon=1.0, lower=0.0, upper=1.0))
    with pytest.raises(ValueError, match=r"epsilon: 20\.000000000000004 is not in \[0.01, 20\]"):
        dpk.piecewise(epsilon=math.nextafter(20.0, 21.0), lower=0.0, upper=1.0)


@pytest.mark.lengthy
def test_a_certificate_prints_the_whole_budget():
    certificate = dpk.exact_sampler(dpk.laplace(epsilon=1.0000049, sensitivity=1.0000001)).certificate
    assert str(certificate).startswith("epsilon, delta      1.0000049, 0, attained delta 0")
    assert "at most 1.0000001 apart" in str(certificate)
    assert (
        "interval at most 0.50000001 apart"
        in dpk.exact_sampler(
            dpk.central_piecewise(epsilon=1.0, lower=0.0, upper=1.0, sensitivity=0.50000001)
        ).certificate.covers
    )
