"""One-dimensional searches: what they return holds as computed, whatever the function; derivatives are implicit."""

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
        roots = solve.invert_increasing(lambda y: y**3, wrap(targets), 0.0, 1.0)
        assert np.allclose(roots, targets ** (1 / 3), rtol=1e-6)


def test_newton_finds_a_root_between_its_ends_and_says_where_there_is_none(x64):
    """Steps half-way to an end grow short as well: what they come to is no root."""

    def found(level, low):
        return newton(lambda x, level: jnp.log(level) - jnp.expm1(x), level, 0.5, (low, 4.0), tolerance=1e-6)

    value, slope = jax.jit(jax.value_and_grad(found), static_argnums=1)(jnp.float64(5.0), -1.0)
    assert value == pytest.approx(math.log1p(math.log(5)), rel=1e-11)
    assert slope == pytest.approx(1 / (5 * (1 + math.log(5))), rel=1e-11)
    assert np.isnan(found(jnp.float64(0.9), 0.0))
    assert np.isnan(found(jnp.float64(1e30), -1.0))


@pytest.mark.lengthy
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


# Conservative rounding


@given(places, st.integers(0, 40))
def test_the_floats_from_a_number_on_are_neighbours(start, count):
    floats = list(solve.floats_from(start, math.inf, count + 1))
    assert floats[0] == start
    assert all(b == math.nextafter(a, math.inf) for a, b in pairwise(floats))
    assert len(floats) == count + 1


@given(places, st.floats(0.0, 1e3), st.sampled_from([-1.0, 1.0]))
def test_a_conservative_root_is_feasible_and_close(start, off, direction):
    """The bound's root is beyond the estimate; what is returned is at most a share of the distance beyond it."""
    goal = start + direction * off
    x = solve.conservative_root(lambda x: direction * (goal - x), start, direction=direction)
    assert direction * (x - goal) >= 0
    assert abs(x - goal) <= 0.06 * off + 1e-6 + 8 * np.spacing(abs(goal))


def test_a_conservative_root_stays_where_it_is_feasible_and_gives_up():
    assert solve.conservative_root(lambda x: -1.0, 3.0) == 3.0
    with pytest.raises(NotPrivateError, match="none of 7 points from 3"):
        solve.conservative_root(lambda x: 1.0, 3.0, steps=7)
    with pytest.raises(NotPrivateError):
        solve.conservative_root(lambda x: math.nan, 3.0)


def test_a_conservative_root_walks_where_a_bound_is_infinite():
    """A planted jump: the distance says nothing, and short steps that grow come to the other side."""
    x = solve.conservative_root(lambda x: math.inf if x < 1e-3 else -1.0, 0.0, longest=1e-3)
    assert 1e-3 <= x <= 6e-3


# Roots of plain and of JAX numbers


@given(places, widths, st.booleans(), st.integers(1, 3), st.sampled_from([1e-13, 1e-9, 1e-3]))
def test_a_root_by_brent_is_on_the_feasible_side(at, width, rising, power, rtol):
    """With a tolerance plain numbers are searched by SciPy, which knows no sides."""
    sign = 1.0 if rising else -1.0
    seen = []

    def excess(x, _):
        seen.append(x)
        return sign * (x - at) * abs(x - at) ** (power - 1)

    x = root(excess, (), at - sign * width, at + sign * width, rtol=rtol)
    assert excess(x, ()) <= 0
    assert abs(x - at) <= max(rtol * abs(x), np.spacing(abs(at))) or power > 1 or at == 0.0


def test_a_root_by_brent_takes_few_evaluations():
    seen = []
    root(lambda x, _: seen.append(x) or math.expm1(x) - 3.0, (), 0.0, 9.0, rtol=1e-12)
    assert len(seen) < 25


FUNCTIONS = {
    "cubic": (lambda x, p: x**3 + p["a"] * x - p["b"], (0.0, 9.0)),
    "exponential": (lambda x, p: jnp.expm1(x * p["a"]) - p["b"], (0.0, 9.0)),
    "logarithm": (lambda x, p: jnp.log(x) + p["a"] * x - p["b"], (1e-9, 50.0)),
}


@pytest.mark.lengthy
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("method", ["root", "newton"])
def test_implicit_derivatives_are_those_of_differences(name, method, x64):
    """Forward and reverse, of a pytree of parameters, against differences of roots of plain numbers."""
    function, (low, high) = FUNCTIONS[name]

    def found(a, b):
        options = {"a": a, "b": b}
        if method == "root":
            return root(function, options, low, high)
        return newton(lambda x, p: -function(x, p), options, 1.0, (low, high), tolerance=1e-8)

    point, step = (0.7, 2.3), 1e-5
    plain = [found(*(p + d for p, d in zip(point, (i * step, j * step), strict=True))) for i, j in STENCIL]
    differences = np.array([plain[0] - plain[1], plain[2] - plain[3]]) / (2 * step)
    reverse = jax.grad(found, argnums=(0, 1))(*map(jnp.float64, point))
    forward = [jax.jvp(found, tuple(map(jnp.float64, point)), along)[1] for along in ((1.0, 0.0), (0.0, 1.0))]
    assert np.allclose(reverse, differences, rtol=1e-6)
    assert np.allclose(forward, differences, rtol=1e-6)


STENCIL = (1, 0), (-1, 0), (0, 1), (0, -1)


def test_newton_of_plain_numbers_compiles_nothing_and_agrees(x64):
    def falling(x, p):
        return p - x - math.exp(x) if isinstance(x, float) else p - x - jnp.exp(x)

    ends, traces = (-30.0, 30.0), []
    for level in (-20.0, 0.3, 7.0, 1e9):
        plain = newton(lambda x, p: traces.append(type(x)) or falling(x, p), level, 0.0, ends, tolerance=1e-6)
        traced = newton(falling, jnp.float64(level), 0.0, ends, tolerance=1e-6)
        assert plain == pytest.approx(float(traced), rel=1e-9, abs=1e-11)
    assert set(traces) <= {float, np.float64}


@pytest.mark.parametrize("kind", [float, jnp.float64])
def test_newton_clips_to_the_nearer_end_only_if_asked(kind, x64):
    """No root between the ends is NaN, and never an end by itself; a function that is NaN has no root."""

    def falling(x, p):
        return p - x

    for level, end in ((9.0, 4.0), (-9.0, -1.0)):
        assert math.isnan(newton(falling, kind(level), 0.5, (-1.0, 4.0), tolerance=1e-6))
        assert float(newton(falling, kind(level), 0.5, (-1.0, 4.0), tolerance=1e-6, clip=True)) == end
    for clip in (False, True):
        assert math.isnan(newton(falling, kind(math.nan), 0.5, (-1.0, 4.0), tolerance=1e-6, clip=clip))


@given(st.floats(0.01, 0.9), st.floats(0.0, 0.5), st.floats(1.0, 6.0))
def test_the_least_root_of_a_convex_function_is_found(first, width, scale):
    """Of (x - a)(x - b), a <= b: a, feasible as computed; the same of JAX numbers to float32's accuracy."""
    last = first + width

    def convex(x, p):
        return p * (x - first) * (x - last)

    x = solve.convex_root(convex, scale, 1e-12, 1.0)
    assert convex(x, scale) <= 0 or math.isnan(x)
    assert x == pytest.approx(first, rel=1e-7) or (math.isnan(x) and width < 1e-6)


def test_a_convex_function_without_a_root_has_none_and_an_end_may_be_it(x64):
    for number in (float, jnp.float64):
        assert math.isnan(solve.convex_root(lambda x, p: (x - 0.5) ** 2 + p, number(0.1), 1e-12, 1.0))
        assert float(solve.convex_root(lambda x, p: x - p, number(0.5), 1e-12, 1.0)) == 1e-12
    slope = jax.grad(lambda p: solve.convex_root(lambda x, p: (x - 1) ** 2 - p, p, 1e-12, 1.0))(jnp.float64(0.09))
    assert float(slope) == pytest.approx(-0.5 / 0.3, rel=1e-7)


def test_a_smooth_inverse_on_both_kinds(x64):
    for wrap in (np.asarray, jnp.asarray):
        roots = solve.invert_smooth(
            lambda x: x**2, wrap([2.0, 9.0, 0.25]), wrap([1.4, 3.1, 0.49]), lambda x: 2 * x, steps=2
        )
        np.testing.assert_allclose(roots, [math.sqrt(2), 3.0, 0.5], rtol=4e-16)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_smooth_inverse_increases_with_its_target(dtype, x64):
    """Newton's steps alone decrease between some neighbouring floats; cells of half the digits are crossed as well."""
    start = np.asarray(1.999, dtype)
    targets = start + np.arange(20_000, dtype=dtype) * np.spacing(start)
    tolerance = {"float32": 1e-5, "float64": 1e-9}[dtype]
    noise = np.random.default_rng(0).uniform(-tolerance, tolerance, targets.shape).astype(dtype)

    def cube(x):
        return x * x * x

    initial_guess = jnp.asarray(targets) ** (1 / 3) * (1 + noise)
    plain = initial_guess + (targets - cube(initial_guess)) / (3 * initial_guess**2)
    inverse = solve.invert_smooth(cube, jnp.asarray(targets), initial_guess, lambda x: 3 * x**2, None)
    assert np.diff(inverse).min() >= 0
    assert np.diff(plain).min() < 0
    np.testing.assert_allclose(np.asarray(inverse, float), np.cbrt(targets.astype(float)), rtol=2 * np.finfo(dtype).eps)


# Minima and maxima


@given(places, widths, st.floats(0.05, 0.95))
def test_a_bounded_minimum_of_a_smooth_function(low, width, share):
    place = low + share * width
    x, value = solve.bounded_minimum(lambda x: ((x - place) / width) ** 2, low, low + width, xatol=1e-9 * width)
    assert value == ((x - place) / width) ** 2
    assert abs(x - place) <= 1e-5 * width + 1e-6 * abs(place)


@given(st.floats(-0.9, 0.9))
def test_a_minimum_near_a_grid_is_global_where_the_grid_sees_it(place):
    """Two valleys, the deeper one at ``place``; and a function that jumps, of which a grid point may be the best."""

    def two(x):
        return min((x - place) ** 2, (x - place - 0.7) ** 2 + 0.1)

    x, _ = solve.minimum_and_value_on_grid(two, np.linspace(-1.5, 2.0, 40), xatol=1e-9)
    assert x == pytest.approx(place, abs=1e-6)
    grid = np.linspace(0.0, 1.0, 5)
    assert solve.minimum_and_value_on_grid(lambda x: float(x != 0.5), grid, xatol=1e-9) == (0.5, 0.0)


@pytest.mark.lengthy
@pytest.mark.parametrize("place", [0.1, 0.25, 0.61])
def test_maxima_of_both_kinds_agree(place, x64):
    """Inside a piece, and at a knot; the derivative of the maximum is that of the function there."""

    def function(v, p):
        xp = jnp if isinstance(v, jax.Array) else np
        return p - (v - place) ** 2 + xp.maximum(0.0, v - 0.5)

    fine = np.linspace(0.0, 1.0, 2049)
    plain = solve.refined_maximum(lambda v: function(v, 1.3), fine)
    assert plain == pytest.approx(function(fine, 1.3).max(), rel=1e-6)
    knots = jnp.array([0.0, 0.5, 1.0])
    value, slope = jax.value_and_grad(lambda p: solve.maximum_between(function, p, knots))(1.3)
    assert float(value) == pytest.approx(plain, rel=1e-11)
    assert float(slope) == 1.0
    assert jax.grad(lambda e: solve.maximum_between(lambda v, _: v, (), jnp.stack([0.0 * e, e])))(2.0) == pytest.approx(
        1.0
    )


def test_newton_evaluates_no_plain_number_twice():
    places = []

    def falling(x, level):
        places.append(float(x))
        return level - math.expm1(x)

    assert newton(falling, 1.0, 0.1, (-4.0, 4.0), tolerance=1e-6) == pytest.approx(math.log(2.0), rel=1e-9)
    assert len(places) == len(set(places)) > 2
