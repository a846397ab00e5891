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
    "square_wave": (dpk.square_wave, LOCAL, {}),
    "square_wave-half_width": (dpk.square_wave, {**LOCAL, "half_width": 0.2}, {}),
    "composite-sine": (dpk.composite, {**LOCAL, "width": 0.7}, {"window": "sine"}),
    "composite-sine-best": (dpk.composite, LOCAL, {"window": "sine"}),
    "composite-wide": (dpk.composite, {**LOCAL, "width": 1.6}, {"window": "triangle"}),
    "composite-quartic": (dpk.composite, {**LOCAL, "width": 0.9}, {"window": "triangle", "base": dpk.Quartic(0.3)}),
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
    "gaussian": (dpk.gaussian, {**NOISE, "sigma": 2.1}, {}),
    "truncated_laplace": (dpk.truncated_laplace, NOISE, {}),
    "truncated_laplace-upper": (dpk.truncated_laplace, {**NOISE, "upper": 14.0}, {}),
    "merged_laplace": (dpk.merged_laplace, {**NOISE, "rates": (0.3, 0.9), "breaks": (1.1,)}, {}),
    "truncated_gaussian": (dpk.truncated_gaussian, {**NOISE, "sigma": 2.1}, {}),
    "truncated_gaussian-bound": (dpk.truncated_gaussian, {**NOISE, "sigma": 2.1, "bound": 6.0}, {}),
    "staircase": (dpk.staircase, {"epsilon": 0.9, "sensitivity": 1.5}, {}),
    "staircase-gamma": (dpk.staircase, {"epsilon": 0.9, "sensitivity": 1.5, "gamma": 0.4}, {}),
    "budget_recycled": (dpk.budget_recycled, {**NOISE, "theta": 1.4, "q": 0.6}, {"kernel": dpk.Gaussian(2.1)}),
    "discrete_laplace": (dpk.discrete_laplace, {"epsilon": 0.9, "sensitivity": 1.3, "step": 0.5}, {"reach": 200}),
    "truncated_discrete_laplace": (
        dpk.truncated_discrete_laplace,
        {**NOISE, "sensitivity": 1.3, "step": 0.5},
        {"reach": 30},
    ),
    "discrete_gaussian": (dpk.discrete_gaussian, {**NOISE, "sigma": 2.1, "step": 0.5}, {"reach": 60}),
}
# What is discrete, or a choice by name; ``optimal`` refuses the others when they are traced.
DISCRETE = {
    *("window", "base", "condition", "objective", "steps", "dimensions", "sampled", "coordinate", "points", "outputs"),
    *("reach", "kernel"),
}
REFUSED = {("optimal", "epsilon"), ("optimal", "sensitivity")}
QUICK = ("piecewise", "duchi", "laplace", "truncated_laplace", "square_wave")


def variance(name, given):
    make, _, others = CASES[name]
    made = make(**others, **given)
    return made.central_variance if others.get("objective") == "central" else made.worst_variance


def test_every_real_argument_of_every_constructor_has_a_case():
    makers = {make for make, _, _ in CASES.values()}
    for make in makers:
        covered = {key for maker, real, _ in CASES.values() if maker is make for key in real}
        for key in inspect.signature(make).parameters:
            assert key in covered | DISCRETE or (make.__name__, key) in REFUSED, (make.__name__, key)
    made = [value for value in map(vars(dpk).get, dpk.__all__) if inspect.isfunction(value)]
    returned = ("Additive", "Windowed", "TwoPoint", "SquareWave", "CentralPiecewise", "Optimal", "Multivariate")
    for function in made:
        if str(inspect.signature(function).return_annotation).startswith(returned) and function is not dpk.on_vectors:
            assert function in makers, function.__name__


def shifted(given, index, share):
    leaves, structure = jax.tree.flatten(given)
    leaves[index] = leaves[index] + share
    return jax.tree.unflatten(structure, leaves)


@pytest.mark.quick(*QUICK)
@pytest.mark.parametrize("name", CASES)
def test_values_and_derivatives_are_those_of_plain_numbers(name, x64):
    """Mapped over 1,000 values of all arguments, in one call; the first, the last and one more are compared."""
    _, given, _ = CASES[name]
    shares = 1 + 1e-3 * np.linspace(-1, 1, 1000)
    mapped = jax.tree.map(lambda value: value * shares, given)
    values, slopes = jax.jit(jax.vmap(jax.value_and_grad(lambda given: variance(name, given))))(mapped)
    for at in (0, 333, 999):
        here = jax.tree.map(lambda value, at=at: float(value[at]), mapped)
        plain = variance(name, here)
        assert not isinstance(plain, jax.Array)
        assert values[at] == pytest.approx(plain, rel=1e-12)
        for index, slope in enumerate(jax.tree.leaves(slopes)):
            step = 1e-4 * abs(jax.tree.leaves(here)[index])
            near, far = (
                variance(name, shifted(here, index, n * step)) - variance(name, shifted(here, index, -n * step))
                for n in (1, 2)
            )
            numeric = (8 * near - far) / (12 * step)
            noise = 1e-14 * plain / step
            assert slope[at] == pytest.approx(numeric, rel=1e-6, abs=noise), index


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["piecewise-best", "composite-quartic", "hybrid", "truncated_gaussian", "laplace"])
def test_forward_and_reverse_mode_agree(name, x64):
    _, given, _ = CASES[name]
    backward = jax.jit(jax.grad(lambda given: variance(name, given)))(given)
    forward = jax.jit(jax.jacfwd(lambda given: variance(name, given)))(given)
    for one, other in zip(jax.tree.leaves(backward), jax.tree.leaves(forward), strict=True):
        assert one == pytest.approx(float(other), rel=1e-9, abs=1e-12)


@pytest.mark.quick("piecewise-best", "hybrid")
@pytest.mark.parametrize("name", CASES)
def test_plain_numbers_give_plain_mechanisms(name):
    make, given, others = CASES[name]
    for leaf in jax.tree.leaves(make(**others, **given)):
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


def test_a_release_inside_jit_names_what_to_use():
    m = dpk.piecewise(epsilon=1.0, **SPAN)
    with pytest.raises(TypeError, match="perturb_traced"):
        jax.jit(lambda x: dpk.perturb(x, m))(jnp.zeros(3))
    with pytest.raises(TypeError, match="stop_gradient"):
        jax.grad(lambda eta: dpk.exact_sampler(dpk.piecewise(epsilon=1.0, eta=eta, **SPAN)).epsilon)(3.0)
