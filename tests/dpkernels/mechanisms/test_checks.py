"""Bad arguments are refused when a mechanism is built, by name, value and range; traced ones are let through."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import SKEW, UNIT

import dpkernels as dpk
from dpkernels.decimals import shortest
from dpkernels.mechanisms.base import Bounded
from dpkernels.mechanisms.windowed.mechanism import best_shape, relative_height

NAMES = sorted(dpk.MECHANISMS)
over_names = pytest.mark.parametrize("make", [pytest.param(dpk.MECHANISMS[name], id=name) for name in NAMES])
WINDOWED = dpk.piecewise(epsilon=1.0, **SKEW)


@over_names
@pytest.mark.parametrize("epsilon", [0.0, -1.0, 0.0099, 20.01, 1e9, np.inf, np.nan])
def test_epsilon_out_of_range(make, epsilon):
    with pytest.raises(ValueError, match=rf"epsilon: {_pattern(epsilon)} is not in \[0.01, 20\]"):
        make(epsilon=epsilon, **UNIT)


@over_names
def test_text_for_epsilon(make):
    with pytest.raises(TypeError, match="epsilon: '1' is text"):
        make(epsilon="1", **UNIT)


@pytest.mark.parametrize("epsilon", [None, [1.0, 2.0], 1j], ids=repr)
@pytest.mark.parametrize("make", [dpk.piecewise, dpk.piecewise_wang2019, dpk.duchi])
def test_epsilon_that_is_no_number(make, epsilon):
    with pytest.raises((TypeError, ValueError), match="epsilon"):
        make(epsilon=epsilon, **UNIT)


@over_names
@pytest.mark.parametrize(
    ("lower", "upper", "match"),
    [
        (1.0, 1.0, "lower, upper: 1, 1; lower must be below upper"),
        (2.0, -2.0, "lower must be below upper"),
        (-np.inf, 1.0, "lower: -inf is not in"),
        (0.0, np.inf, "upper: inf is not in"),
        (np.nan, 1.0, "lower: nan is not in"),
        (0.0, np.nan, "upper: nan is not in"),
        (0.0, 1e300, r"upper: 1e\+300 is not in"),
        (1e6, 1e6 * (1 + 1e-15), "too close to be told apart"),
    ],
)
def test_bad_interval(make, lower, upper, match):
    with pytest.raises(ValueError, match=match):
        make(epsilon=1.0, lower=lower, upper=upper)


@over_names
def test_text_for_an_end(make):
    with pytest.raises(TypeError, match="lower: '0' is text"):
        make(epsilon=1.0, lower="0", upper=1.0)


@pytest.mark.parametrize("made", [dpk.piecewise, dpk.piecewise_triangle])
def test_windows_whose_squares_vanish_are_refused(made):
    with pytest.raises(ValueError, match=r"eta: 1e\+300 is not in \[1, 2e\+100\]"):
        made(epsilon=1.0, lower=0.0, upper=120.0, eta=1e300)
    with pytest.raises(ValueError, match="width: 1e-200 is not in"):
        dpk.composite("sine", "constant", epsilon=1.0, lower=0.0, upper=120.0, width=1e-200)
    assert np.isfinite(float(made(epsilon=1.0, lower=0.0, upper=120.0, eta=1e100).worst_variance))


@pytest.mark.parametrize("eta", [1.0, 0.5, 0.0, -3.0, np.inf, np.nan])
@pytest.mark.parametrize("make", [dpk.piecewise, dpk.piecewise_triangle])
def test_eta_out_of_range(make, eta):
    with pytest.raises(ValueError, match=rf"eta: {_pattern(eta)} is not in \(1, inf\)"):
        make(epsilon=1.0, eta=eta, **UNIT)


@pytest.mark.parametrize("width", [0.0, 2.0, -0.1, 2.5, np.nan, np.inf])
def test_width_out_of_range(width):
    match = rf"width: {_pattern(width)} is not in \(0, 2\)"
    with pytest.raises(ValueError, match=match):
        dpk.composite(epsilon=1.0, width=width, **UNIT)
    with pytest.raises(ValueError, match=match):
        dataclasses.replace(WINDOWED, width=width)


@pytest.mark.parametrize("height", [0.0, -1.0, np.nan, np.inf])
def test_height_out_of_range(height):
    with pytest.raises(ValueError, match=r"relative_height: .* is not in \(0, inf\)"):
        dataclasses.replace(WINDOWED, relative_height=height)


@pytest.mark.parametrize("edge", [0.0, -0.5, 1.0001, np.nan])
def test_quartic_edge_out_of_range(edge):
    with pytest.raises(ValueError, match=rf"edge: {_pattern(edge)} is not in"):
        dpk.Quartic(edge)


@pytest.mark.parametrize("weight", [0.0, 1.0, -0.1, np.nan])
def test_mixture_weight_out_of_range(weight):
    with pytest.raises(ValueError, match=rf"weight: {_pattern(weight)} is not in \(0, 1\)"):
        dpk.Mixture(WINDOWED, dpk.duchi(epsilon=1.0, **SKEW), weight)


def test_mixture_of_two_intervals():
    with pytest.raises(ValueError, match="second: its interval"):
        dpk.Mixture(WINDOWED, dpk.duchi(epsilon=1.0, **UNIT), 0.5)


@pytest.mark.parametrize("name", ["first", "second"])
def test_mixture_of_a_part_whose_variance_is_no_parabola(name):
    """``worst_variance`` looks at the middle and at an end only."""
    components = {"first": WINDOWED, "second": dpk.duchi(epsilon=1.0, **SKEW)}
    components[name] = dpk.optimal(epsilon=1.0, points=5, outputs=11, **SKEW)
    with pytest.raises(ValueError, match=f"{name}: Optimal is not Parabolic"):
        dpk.Mixture(**components, weight=0.5)


@pytest.mark.parametrize("member", ["pdf", "worst_excess"])
def test_a_class_of_ones_own_must_define_what_has_no_right_default(member):
    members = dict.fromkeys(Bounded.__abstractmethods__ - {member})
    incomplete = type("Own", (Bounded,), members)
    with pytest.raises(TypeError, match=f"abstract method '?{member}"):
        incomplete()


@pytest.mark.parametrize(
    ("argument", "choices"),
    [
        ("window", "sine, triangle, uniform"),
        ("base", "constant, quartic"),
        ("condition", "pointwise, sup_inf"),
        ("objective", "central, worst"),
    ],
)
def test_unknown_choice(argument, choices):
    with pytest.raises(ValueError, match=f"{argument}: 'best' is not one of {choices}"):
        dpk.composite(epsilon=1.0, **{argument: "best"}, **UNIT)


def test_unknown_condition_or_objective_of_a_height_and_of_a_shape():
    window, base = WINDOWED.window, WINDOWED.base
    with pytest.raises(ValueError, match="condition: 'best' is not one of pointwise, sup_inf"):
        relative_height(window, base, 1.0, 1.0, "best")
    with pytest.raises(ValueError, match="condition: 'best' is not one of pointwise, sup_inf"):
        best_shape(window, base, 1.0, "best", "worst")
    with pytest.raises(ValueError, match="objective: 'best' is not one of central, worst"):
        best_shape(window, base, 1.0, "pointwise", "best")


TABLES = {
    "asymmetric": ([1.0, 2.0, 3.0], "not symmetric, 1.* at knot 0 but 3.* opposite"),
    "negative": ([-1.0, 2.0, -1.0], "holds -1.0; values must be finite and not negative"),
    "nan": ([1.0, np.nan, 1.0], "holds nan; values must be finite"),
    "infinite": ([1.0, np.inf, 1.0], "holds inf; values must be finite"),
    "zero": ([0.0, 0.0, 0.0], "is 0 everywhere"),
    "even": ([1.0, 2.0, 2.0, 1.0], r"shape \(4,\); a table needs an odd number"),
    "short": ([1.0], r"shape \(1,\); a table needs an odd number of at least 3"),
    "matrix": (np.ones((3, 3)), r"shape \(3, 3\); a table needs"),
    "function": (lambda z: z, "not symmetric|negative"),
}


@pytest.mark.parametrize(("table", "match"), TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("argument", ["window", "base"])
def test_bad_table(argument, table, match):
    make = {"window": dpk.window_from, "base": dpk.base_from}[argument]
    with pytest.raises(ValueError, match=f"{argument}: .*({match})"):
        make(table)
    with pytest.raises(ValueError, match=f"{argument}: .*({match})"):
        dpk.composite(epsilon=1.0, **{argument: table}, **UNIT)


@pytest.mark.parametrize("table", [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], lambda v: v**2])
def test_base_that_is_zero_somewhere(table):
    with pytest.raises(ValueError, match="base: is 0 somewhere; a base must be positive"):
        dpk.base_from(table)


@pytest.mark.parametrize("base", [dpk.Quartic(0.3), dpk.base_from([0.1, 1.0, 0.1])], ids=["quartic", "table"])
def test_base_too_low_for_sup_inf(base):
    with pytest.raises(ValueError, match=r"epsilon: at 0\.5 no positive window height is private.*sup_inf"):
        dpk.composite(base=base, epsilon=0.5, condition="sup_inf", **UNIT)
    assert dpk.composite(base=base, epsilon=0.5, **UNIT).height > 0


@pytest.mark.parametrize("sampled", [0, -1, 4, 1.5, "2"])
def test_multivariate_sampled_out_of_range(sampled):
    with pytest.raises((TypeError, ValueError), match="sampled"):
        dpk.multivariate(dimensions=3, epsilon=3.0, sampled=sampled, **UNIT)


@pytest.mark.parametrize("dimensions", [0, -2, 2.5, "3"])
def test_multivariate_dimensions_out_of_range(dimensions):
    with pytest.raises((TypeError, ValueError), match="dimensions"):
        dpk.multivariate(dimensions=dimensions, epsilon=3.0, **UNIT)


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"coordinate": "best"}, "coordinate: 'best' is not one of"),
        ({"lower": [0.0, 0.0]}, r"lower: shape \(2,\); a number or 3 numbers"),
        ({"upper": [1.0, 1.0, -1.0]}, "lower must be below upper"),
        ({"epsilon": 0.015, "sampled": 3}, "epsilon: 0.005 is not in"),
        ({"epsilon": 30.0, "sampled": 3}, "epsilon: 30 is not in"),
    ],
)
def test_other_multivariate_arguments(changed, match):
    with pytest.raises(ValueError, match=match):
        dpk.multivariate(**({"dimensions": 3, "epsilon": 3.0} | UNIT | changed))


def test_multivariate_needs_a_coordinate_mechanism_on_the_unit_interval():
    with pytest.raises(ValueError, match=r"coordinate: its interval is .* it must be \[-1, 1\]"):
        dpk.Multivariate(WINDOWED, 0.0, 1.0, 3, 1)


@pytest.mark.parametrize("bad", [-1.0, 3.0, 1e9])
def test_traced_arguments_pass(bad):
    """Only concrete numbers can be judged: a traced width may have any value, and stays a parameter."""

    @jax.jit
    def variance(width):
        built = dpk.Windowed(dpk.Uniform(), dpk.Constant(), width, 0.3, -3.0, 17.0, 1.0)
        return built.variance(jnp.asarray(1.0)), dpk.Quartic(width).area, dpk.TwoPoint(width, 17.0, 1.0).magnitude

    assert jax.tree.leaves(variance(bad))[1] == pytest.approx((bad + 4) / 5, rel=1e-6)


def test_rebuilding_a_pytree_checks_nothing():
    """A gradient with respect to a mechanism is of its type but no valid mechanism."""
    negative = jax.tree.map(lambda leaf: -leaf, WINDOWED)
    assert negative.width == -WINDOWED.width
    assert (negative.window, negative.base) == (WINDOWED.window, WINDOWED.base)


@pytest.mark.lengthy
@over_names
def test_leaves_are_the_parameters(make):
    m = make(epsilon=1.0, **SKEW)
    leaves, structure = jax.tree.flatten(m)
    assert jax.tree.unflatten(structure, leaves) == m
    assert {-3.0, 17.0, 1.0} <= {float(leaf) for leaf in leaves if np.ndim(leaf) == 0}


def _pattern(value):
    return re.escape(shortest(value))


@pytest.mark.parametrize("upper", [1e-160, 1e-300, 1e-320])
def test_an_interval_too_narrow_for_float64_variances_is_refused(upper):
    with pytest.raises(ValueError, match="too close to be told apart"):
        dpk.piecewise(epsilon=1.0, lower=0.0, upper=upper)
