"""Every constructor takes JAX numbers for every real argument, with the values and derivatives of plain numbers."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpkernels as dpk

SPAN = {"lower": -1.0, "upper": 2.0}
LOCAL = {"epsilon": 1.3, **SPAN}
NOISE = {"epsilon": 0.9, "delta": 1e-4, "sensitivity": 1.5}
BUMP = dpk.window_from(lambda z: 0.1 + np.sin(np.pi * z) ** 2)

# (constructor, its real arguments, its other arguments)
CASES = {
    "piecewise-best": (dpk.piecewise, LOCAL, {}),
    "piecewise-best-central": (dpk.piecewise, LOCAL, {"objective": "central"}),
    "piecewise": (dpk.piecewise, {**LOCAL, "eta": 3.1}, {}),
    "piecewise_triangle-best": (dpk.piecewise_triangle, LOCAL, {}),
    "piecewise_triangle": (dpk.piecewise_triangle, {**LOCAL, "eta": 3.1}, {}),
    "piecewise_wang2019": (dpk.piecewise_wang2019, LOCAL, {}),
    "duchi": (dpk.duchi, LOCAL, {}),
    "hybrid": (dpk.hybrid, LOCAL, {}),
    "hybrid-low": (dpk.hybrid, {"epsilon": 0.4, **SPAN}, {}),
    "hybrid-share": (dpk.hybrid, {**LOCAL, "share": 0.4}, {}),
    "square_wave": (dpk.square_wave, LOCAL, {}),
    "square_wave-half_width": (dpk.square_wave, {**LOCAL, "half_width": 0.2}, {}),
    "composite-sine": (dpk.composite, {**LOCAL, "width": 0.7}, {"window": "sine"}),
    "composite-sine-best": (dpk.composite, LOCAL, {"window": "sine"}),
    "composite-wide": (dpk.composite, {**LOCAL, "width": 1.6}, {"window": "triangle"}),
    "composite-quartic": (dpk.composite, {**LOCAL, "width": 0.9, "base": dpk.Quartic(0.3)}, {"window": "triangle"}),
    "composite-edge-at-its-end": (dpk.composite, LOCAL, {"window": "sine", "base": "quartic"}),
    "composite-edge-inside": (dpk.composite, {"epsilon": 3.6, **SPAN}, {"window": "sine", "base": "quartic"}),
    "composite-edge-1": (dpk.composite, {"epsilon": 6.0, **SPAN}, {"window": "sine", "base": "quartic"}),
    "composite-table": (dpk.composite, {**LOCAL, "width": 0.7}, {"window": BUMP}),
    "central_piecewise-best": (dpk.central_piecewise, {**LOCAL, "sensitivity": 1.0}, {"steps": 4}),
    "central_piecewise-published": (
        dpk.central_piecewise,
        {**LOCAL, "sensitivity": 1.0},
        {"steps": 4, "core": "published"},
    ),
    "central_piecewise": (dpk.central_piecewise, {**LOCAL, "sensitivity": 1.0, "core": 0.4}, {"steps": 4}),
    "optimal": (dpk.optimal, SPAN, {"epsilon": 1.3, "points": 9, "outputs": 41}),
    "multivariate": (dpk.multivariate, LOCAL, {"dimensions": 4, "sampled": 2}),
    "laplace": (dpk.laplace, {"epsilon": 0.9, "sensitivity": 1.5}, {}),
    "logistic": (dpk.logistic, {"epsilon": 0.9, "sensitivity": 1.5}, {}),
    "student": (dpk.student, {"epsilon": 0.9, "sensitivity": 1.5}, {"degrees": 6.5}),
    "gaussian": (dpk.gaussian, {**NOISE, "sigma": 2.1}, {}),
    "generalised_normal": (dpk.generalised_normal, {**NOISE, "scale": 2.1, "exponent": 1.4}, {}),
    "truncated_laplace": (dpk.truncated_laplace, NOISE, {}),
    "truncated_laplace-upper": (dpk.truncated_laplace, {**NOISE, "upper": 16.0}, {}),
    "merged_laplace": (dpk.merged_laplace, {**NOISE, "rates": (0.3, 0.9), "breaks": (1.1,)}, {}),
    "truncated_gaussian": (dpk.truncated_gaussian, {**NOISE, "sigma": 2.1}, {}),
    "truncated_gaussian-bound": (dpk.truncated_gaussian, {**NOISE, "sigma": 2.1, "bound": 6.0}, {}),
    "staircase": (dpk.staircase, {"epsilon": 0.9, "sensitivity": 1.5}, {}),
    "staircase-gamma": (dpk.staircase, {"epsilon": 0.9, "sensitivity": 1.5, "gamma": 0.4}, {}),
    "budget_recycled": (dpk.budget_recycled, {**NOISE, "theta": 1.4, "q": 0.6, "kernel": dpk.Gaussian(2.1)}, {}),
    "discrete_laplace": (dpk.discrete_laplace, {"epsilon": 0.9, "sensitivity": 1.3, "step": 0.5}, {"reach": 200}),
    "truncated_discrete_laplace": (
        dpk.truncated_discrete_laplace,
        {**NOISE, "sensitivity": 1.3, "step": 0.5},
        {"reach": 30},
    ),
    "discrete_gaussian": (dpk.discrete_gaussian, {**NOISE, "sigma": 2.1, "step": 0.5}, {"reach": 60}),
}
# What is discrete, or a choice by name. Of the others REFUSED names those that a constructor refuses when traced.
DISCRETE = {
    *("window", "base", "condition", "objective", "steps", "dimensions", "sampled", "coordinate", "points", "outputs"),
    "reach",
}
REFUSED = {("optimal", "epsilon"), ("optimal", "sensitivity"), ("student", "degrees")}
QUICK = ("piecewise", "duchi", "laplace", "gaussian", "square_wave")
# A program of several seconds to compile, or a search by plain numbers of a second.
HEAVY = ("composite-sine-best", "composite-edge-at-its-end", "composite-edge-inside", "composite-edge-1")
DIFFERENCE = 1e-4  # A step of the central differences, as a share of the argument.


def variance(name, traced):
    make, _, constants = CASES[name]
    mechanism = make(**constants, **traced)
    return mechanism.central_variance if constants.get("objective") == "central" else mechanism.worst_variance


def test_every_real_argument_of_every_constructor_has_a_case():
    makers = {make for make, _, _ in CASES.values()}
    for make in makers:
        covered = {key for maker, real, _ in CASES.values() if maker is make for key in real}
        for key in inspect.signature(make).parameters:
            assert key in covered | DISCRETE or (make.__name__, key) in REFUSED, (make.__name__, key)
    constructors = [value for name in dpk.__all__ if inspect.isfunction(value := getattr(dpk, name))]
    returned = ("Additive", "Windowed", "TwoPoint", "SquareWave", "CentralPiecewise", "Optimal", "Multivariate")
    for function in constructors:
        if str(inspect.signature(function).return_annotation).startswith(returned) and function is not dpk.on_vectors:
            assert function in makers, function.__name__


def with_numbers(name, vector):
    """Return the variance of a constructor whose real arguments are the numbers of a vector."""
    return variance(name, jax.tree.unflatten(jax.tree.structure(CASES[name][1]), list(vector)))


def real_arguments(name):
    return np.array(jax.tree.leaves(CASES[name][1]), np.float64)


def check(name, point, value, slope):
    """Compare a value and its derivatives with the plain value and central differences of fourth order."""

    def host_variance(vector):
        variances = with_numbers(name, vector.tolist())
        assert isinstance(variances, float)
        return variances

    assert value == pytest.approx(host_variance(point), rel=1e-12)
    for index, by in enumerate(np.eye(point.size)):
        step = DIFFERENCE * abs(point[index])
        inner, outer = (host_variance(point + n * step * by) - host_variance(point - n * step * by) for n in (1, 2))
        noise = 1e-14 * host_variance(point) / step
        assert slope[index] == pytest.approx((8 * inner - outer) / (12 * step), rel=1e-6, abs=noise), index


def derived(name):
    return jax.value_and_grad(lambda vector: with_numbers(name, vector))


@pytest.mark.quick(*QUICK)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in HEAVY)) for name in CASES])
def test_values_and_derivatives_are_those_of_plain_numbers(name, x64):
    compiled = jax.jit(derived(name))
    for factor in (0.999, 1.0):
        point = factor * real_arguments(name)
        check(name, point, *compiled(point))


@pytest.mark.quick("laplace")
@pytest.mark.parametrize("name", ["laplace", "piecewise-best", "composite-quartic"])
def test_a_thousand_values_in_one_call(name, x64):
    points = np.multiply.outer(1 + 1e-3 * np.linspace(-1, 1, 1000), real_arguments(name))
    values, slopes = jax.jit(jax.vmap(derived(name)))(points)
    for index in (0, 333, 999):
        check(name, points[index], values[index], slopes[index])


@pytest.mark.lengthy
@pytest.mark.parametrize("name", ["piecewise-best", "composite-edge-at-its-end"])
def test_derivatives_of_best_parameters_that_a_host_searched(name, x64):
    point = real_arguments(name)
    check(name, point, *derived(name)(point))


@pytest.mark.lengthy
def test_second_derivatives_of_best_parameters_that_a_host_searched(x64):
    def variance(epsilon):
        return dpk.piecewise(epsilon=epsilon, lower=0.0, upper=1.0).worst_variance

    second = jax.grad(jax.grad(variance))
    assert float(second(1.3)) == pytest.approx(float(jax.jit(second)(1.3)), rel=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["piecewise-best", "composite-quartic", "hybrid", "staircase-gamma"])
def test_forward_and_reverse_mode_agree(name, x64):
    derivatives = [
        jax.jit(derive(lambda vector: with_numbers(name, vector)))(real_arguments(name))
        for derive in (jax.grad, jax.jacfwd)
    ]
    np.testing.assert_allclose(*derivatives, rtol=1e-9, atol=1e-12)


@pytest.mark.quick("piecewise-best", "hybrid")
@pytest.mark.parametrize("name", [name for name in CASES if name not in HEAVY])
def test_plain_numbers_give_plain_mechanisms(name):
    make, arguments, constants = CASES[name]
    for leaf in jax.tree.leaves(make(**constants, **arguments)):
        assert not isinstance(leaf, jax.Array)


@pytest.mark.parametrize(
    ("make", "given", "says"),
    [
        (dpk.optimal, {**SPAN, "epsilon": 1.0}, "epsilon, sensitivity: traced by JAX"),
        (dpk.central_piecewise, {**LOCAL, "sensitivity": 1.0}, "steps: traced by JAX .*; give it"),
        (dpk.multivariate, {**LOCAL, "dimensions": 3}, "epsilon: traced by JAX .*; give sampled"),
        (dpk.discrete_laplace, {"epsilon": 1.0}, "reach: traced by JAX .*; give it"),
        (dpk.truncated_discrete_laplace, {"epsilon": 1.0, "delta": 1e-3}, "reach: traced by JAX .*; give it"),
    ],
)
def test_a_discrete_choice_is_refused_by_name(make, given, says):
    with pytest.raises(TypeError, match=says):
        jax.grad(lambda epsilon: make(**{**given, "epsilon": epsilon}).worst_variance)(1.0)


def test_traced_degrees_are_refused():
    with pytest.raises(TypeError, match=r"degrees: traced by JAX .*; give a plain number"):
        jax.grad(lambda degrees: dpk.student(epsilon=1.0, degrees=degrees).worst_variance)(5.0)


def test_a_release_inside_jit_names_what_to_use():
    m = dpk.piecewise(epsilon=1.0, **SPAN)
    with pytest.raises(TypeError, match="perturb_traced"):
        jax.jit(lambda x: dpk.perturb(x, m))(jnp.zeros(3))
    with pytest.raises(TypeError, match="stop_gradient"):
        jax.grad(lambda eta: dpk.exact_sampler(dpk.piecewise(epsilon=1.0, eta=eta, **SPAN)).epsilon)(3.0)
