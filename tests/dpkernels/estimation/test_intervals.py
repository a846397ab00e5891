"""Intervals, whatever their ends: of inputs, sound or refused; of guarantees and of searches, holding what they say."""

from __future__ import annotations

import math

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpkernels as dpk
from accountants import guarantee
from dpkernels import solve

FEW = settings(max_examples=25, deadline=None, derandomize=True, database=None)
MANY = settings(FEW, max_examples=300)

anything = st.floats(allow_nan=True, allow_infinity=True)
near = st.floats(-1e6, 1e6)
ends = st.one_of(
    st.tuples(anything, anything),
    st.tuples(near, near),
    # Neighbouring floats, and a width next to that which is refused.
    near.map(lambda at: (at, math.nextafter(at, math.inf))),
    st.tuples(near, st.floats(-14, 0)).map(lambda one: (one[0], one[0] + abs(one[0]) * 10 ** one[1])),
)


@MANY
@given(ends)
def test_an_interval_is_sound_or_refused(one):
    """What is built has a finite range of reports around the inputs, and the variance that is worst at the ends."""
    lower, upper = one
    if not (abs(lower) <= 1e150 >= abs(upper) and upper - lower > max(1e-12 * max(abs(lower), abs(upper)), 1e-150)):
        with pytest.raises(ValueError, match=r"lower|upper"):
            dpk.duchi(epsilon=1.0, lower=lower, upper=upper)
        return
    mechanism = dpk.duchi(epsilon=1.0, lower=lower, upper=upper)
    low, high = mechanism.output_interval
    assert -math.inf < low < lower < upper < high < math.inf
    assert 0 < mechanism.worst_variance < math.inf


def of_coins(loss: float, count: int, epsilon: float) -> mpmath.mpf:
    """delta of so many randomised responses: sum of C(k, j) (p^j q^(k - j) - e^eps p^(k - j) q^j)+, to 40 digits."""
    with mpmath.workdps(60):
        p = mpmath.exp(loss) / (1 + mpmath.exp(loss))
        terms = (
            mpmath.binomial(count, j)
            * max(0, p**j * (1 - p) ** (count - j) - mpmath.exp(epsilon) * p ** (count - j) * (1 - p) ** j)
            for j in range(count + 1)
        )
        return mpmath.fsum(terms)


@FEW
@given(st.floats(0.01, 3.0), st.integers(1, 40), st.floats(0.0, 1.0))
def test_a_bracket_holds_the_delta_of_any_number_of_coins(loss, count, share):
    """Whatever the loss, which is no step of the grid."""
    epsilon = share * min(loss * count, 20.0)
    low, high = guarantee(dpk.duchi(epsilon=loss, lower=0.0, upper=1.0)).repeat(count).bracket(epsilon=epsilon)
    exact = of_coins(loss, count, epsilon)
    assert low <= exact <= high
    assert 0 <= low <= high <= 1


@pytest.mark.lengthy
@FEW
@given(st.floats(0.05, 2.0), st.integers(1, 30), st.floats(-12, -1))
def test_a_bracket_of_epsilon_is_enough_at_its_upper_end_and_not_at_its_lower(loss, count, power):
    delta = 10**power
    low, high = guarantee(dpk.duchi(epsilon=loss, lower=0.0, upper=1.0)).repeat(count).bracket(delta=delta)
    assert of_coins(loss, count, high) <= delta
    assert low == 0 or of_coins(loss, count, low * (1 - 1e-9)) >= delta * (1 - 1e-9)


@pytest.mark.lengthy
@MANY
@given(st.floats(0.1, 10.0), st.floats(0.05, 0.45), st.integers(2, 40))
def test_a_first_root_holds_and_nothing_on_the_grid_before_it_does(turn, half, count):
    """Of a requirement that is met on one interval only."""

    def excess(x, _):
        return abs(x - turn) - half * turn

    x = solve.first_root(excess, (), 0.01, 100.0, count=count)
    if math.isnan(x):
        return
    assert excess(x, ()) <= 0
    assert all(excess(at, ()) > 0 for at in (0.01 * 1e4 ** (j / (count - 1)) for j in range(count)) if at < x * 0.999)


@pytest.mark.lengthy
@MANY
@given(near, st.floats(1e-3, 1e3), st.floats(0.0, 1.0), st.integers(1, 4))
def test_the_minimum_of_a_valley_is_found(low, width, share, power):
    x0 = low + share * width
    minimum = solve.minimum(lambda x, _: abs(x - x0) ** power, (), low, low + width, rtol=1e-9)
    assert low <= minimum <= low + width
    # Flat valleys are known to the power-th root of the smallest number that counts: here next to 0.
    assert abs(minimum - x0) <= 1e-7 * width + 4 * math.ulp(abs(low) + width)
