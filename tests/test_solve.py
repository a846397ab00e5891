"""One-dimensional searches that carry guarantees: what they return holds as computed, whatever the function."""

from __future__ import annotations

import math
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpkernels import solve
from dpkernels.solve import MARGINS, NotPrivateError, bisect, first_feasible, newton, root

places = st.floats(-1e6, 1e6)
widths = st.floats(1e-3, 1e6)


@given(places, widths, st.booleans(), st.integers(1, 5))
def test_a_root_is_feasible_and_the_next_float_is_not(at, width, rising, power):
    """From either side, of functions as flat and as steep as one likes."""
    sign = 1.0 if rising else -1.0
    safe, unsafe = at - sign * width, at + sign * width

    def excess(x, _):
        return sign * (x - at) * abs(x - at) ** (power - 1)

    x = root(excess, (), safe, unsafe)
    assert excess(x, ()) <= 0
    assert excess(math.nextafter(x, unsafe), ()) > 0 or math.nextafter(x, unsafe) == unsafe


@given(places, widths, st.floats(1e-12, 1e-2))
def test_a_tolerance_stops_on_the_safe_side_and_within_it(at, width, rtol):
    x = root(lambda x, _: x - at, (), at - width, at + width, rtol=rtol)
    assert x <= at
    assert at - x <= max(rtol * abs(x), np.spacing(abs(at)))


@given(places, widths)
def test_where_the_excess_is_nan_x_is_infeasible(at, width):
    """A fault that would put the root on the wrong side: NaN taken for fulfilled."""
    assert root(lambda x, _: -1.0 if x < at else math.nan, (), at - width, at + width) < at


@given(places, widths)
def test_several_roots_give_one_of_them_on_the_feasible_side(at, width):
    def excess(x, _):
        return math.sin(8 * (x - at) / width) if abs(x - at) < width / 2 else math.copysign(1.0, x - at)

    assert excess(root(excess, (), at - width, at + width), ()) <= 0


@given(st.lists(places, min_size=1, max_size=5), widths)
def test_bisection_keeps_the_turn_between_its_ends(turns, width):
    turns = np.array(turns)
    low, high = bisect(lambda x: x < turns, turns - width, turns + width, 60)
    assert (low <= turns).all()
    assert (turns <= high).all()
    assert (high - low <= 2 * np.spacing(np.maximum(abs(low), abs(high))) + width * 2.0**-58).all()


def test_bisection_of_jax_arrays():
    low, high = bisect(lambda x: x < 0.3, jnp.zeros(2), jnp.ones(2), 30)
    assert (low <= 0.3).all()
    assert (high >= 0.3).all()
    assert jnp.allclose(low, high, rtol=1e-6)


@given(st.floats(0.0, 1e-11))
def test_the_first_feasible_margin_is_taken(need):
    assert first_feasible(MARGINS, lambda margin: margin >= need) == next(n for n in MARGINS if n >= need)


def test_what_never_holds_is_an_error_and_no_number_is_never_private():
    """Planted faults: a claim that cannot be met, and one that compares with NaN."""
    for never in (False, math.nan <= 1.0, np.bool_(False)):
        with pytest.raises(NotPrivateError, match="none of 21 candidates is private"):
            first_feasible(MARGINS, lambda _, never=never: never)


def test_margins_grow_from_a_rounding_error():
    assert MARGINS[0] == 0.0
    assert MARGINS[1] == np.finfo(float).eps / 2
    assert all(a < b for a, b in pairwise(MARGINS))
    assert MARGINS[-1] <= 1e-10


def test_an_inverse_reaches_the_target_on_arrays_of_both_kinds():
    targets = np.array([0.1, 0.5, 0.9])
    for wrap in (np.asarray, jnp.asarray):
        found = solve.invert_increasing(lambda y: y**3, wrap(targets), 0.0, 1.0)
        assert np.allclose(found, targets ** (1 / 3), rtol=1e-6)


def test_newton_finds_a_root_between_its_ends_and_says_where_there_is_none(x64):
    """Steps half-way to an end grow short as well: what they come to is no root."""

    def found(level, low):
        return newton(lambda x, level: jnp.log(level) - jnp.expm1(x), level, 0.5, (low, 4.0), tolerance=1e-6)

    value, slope = jax.jit(jax.value_and_grad(found), static_argnums=1)(jnp.float64(5.0), -1.0)
    assert value == pytest.approx(math.log1p(math.log(5)), rel=1e-11)
    assert slope == pytest.approx(1 / (5 * (1 + math.log(5))), rel=1e-11)
    assert np.isnan(found(jnp.float64(0.9), 0.0))
    assert np.isnan(found(jnp.float64(1e30), -1.0))


def test_newton_compiles_its_function_once_with_all_its_derivatives(x64):
    """Of pytrees with whole numbers in them, along many directions and back."""
    traced = []

    def falling(x, given):
        traced.append(x)
        return jnp.log(given["level"]).sum() - jnp.expm1(x) * given["count"]

    def found(level):
        return newton(
            falling, {"level": jnp.stack([level, 1 / level, level]), "count": 2}, 0.5, (-1.0, 4.0), tolerance=1e-6
        )

    level = jnp.float64(5.0)
    exact = 1 / (5 * (2 + math.log(5)))
    _, forward = jax.jit(lambda level: jax.jvp(found, (level,), (1.0,)))(level)
    assert len(traced) == 1
    along = jax.vmap(lambda moved: jax.jvp(found, (level,), (moved,))[1])(jnp.array([1.0, -3.0]))
    assert np.allclose([forward, jax.grad(found)(level)], exact, rtol=1e-11)
    assert np.allclose(along, [exact, -3 * exact], rtol=1e-11)
