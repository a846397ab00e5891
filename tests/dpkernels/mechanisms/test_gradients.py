"""Derivatives in every parameter: of the closed forms, and of samples by implicit reparameterisation."""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ALL, POINTWISE, SKEW, UNIT, WINDOWED, input_range, over, rounding

import dpkernels as dpk
from dpkernels.numerics import root_or_zero

VARIED = (
    "piecewise-0.5",
    "piecewise-1-far",
    "piecewise-5-central",
    "sine-2-w1.3",
    "triangle-0.1-w1.7",
    "triangle-quartic0.3-5-w1.3",
    "humps-1-w0.7",
    "ring-bowl-0.5-w0.7",
    "hybrid-1",
)
PATHWISE = ("piecewise-0.5", "sine-2-w1.3", "triangle-0.1-w1.7", "uniform-quartic0.3-1", "humps-1-w0.7")
N = 1 << 16
KEY = dpk.simulation_key(11)


@jax.jit
@partial(jax.jacrev, argnums=(0, 1, 2))
def derivatives_of_closed_forms(m, y, x):
    return jnp.stack([m.pdf(y, x), m.cdf(y, x), m.variance(x), m.absolute_error(x)])


def leaf_names(m):
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(m)]


def moved(m, index, by):
    """The mechanism with one leaf changed; rebuilding skips the constructor's checks."""
    leaves, structure = jax.tree.flatten(m)
    leaves[index] = leaves[index] + by
    return jax.tree.unflatten(structure, leaves)


def steps(m):
    """A small move for each leaf: of the interval's width for its ends, of the leaf itself for others."""
    size = 1e-6
    return [
        size * (input_range(m) if name.endswith(("lower", "upper")) else leaf)
        for name, leaf in zip(leaf_names(m), jax.tree.leaves(m), strict=True)
    ]


def finite_difference(function, step):
    """Central, of fourth order; by NumPy in float64."""
    inner, outer = function(step) - function(-step), function(2 * step) - function(-2 * step)
    return (8 * inner - outer) / (12 * step)


def numpy_forms(m, y, x):
    return np.array([m.pdf(y, x), m.cdf(y, x), m.variance(x), m.absolute_error(x)], np.float64)


@pytest.mark.lengthy
@pytest.mark.quick("piecewise-0.5")
@over(ALL, *VARIED)
def test_closed_forms_against_finite_differences(m, x64):
    y, x = m.middle + 0.137 * input_range(m), m.lower + 0.411 * input_range(m)
    by_leaf, by_y, by_x = derivatives_of_closed_forms(m, y, x)
    derivatives = [*jax.tree.leaves(by_leaf), by_y, by_x]
    step = 1e-6 * input_range(m)
    numeric = [
        *(finite_difference(lambda h, i=i: numpy_forms(moved(m, i, h), y, x), s) for i, s in enumerate(steps(m))),
        finite_difference(lambda h: numpy_forms(m, y + h, x), step),
        finite_difference(lambda h: numpy_forms(m, y, x + h), step),
    ]
    # Differences carry the rounding of the values over the step.
    values = abs(numpy_forms(m, y, x)) + np.array([m.pdf(y, x), 1, 0, 0])
    for derivative, expected, s in zip(derivatives, numeric, [*steps(m), step, step], strict=True):
        noise = (2e-15 + 4 * rounding(m)) * values / s
        assert np.all(abs(derivative - expected) <= 1e-6 * abs(expected) + noise + 1e-12 * values / input_range(m))


@pytest.mark.thorough
@over(ALL, "piecewise-0.5", "triangle-quartic0.3-5-w1.3", "humps-1-w0.7", "hybrid-1")
def test_icdf_derivative_is_one_over_the_density(m, x64):
    """By the implicit rule, against the density and against differences of the bisection."""
    x, y = m.lower + 0.411 * input_range(m), m.middle + 0.137 * input_range(m)
    u = float(m.cdf(y, x))
    with jax.disable_jit():
        slope = jax.grad(lambda level: m.icdf(level, x))(jnp.asarray(u))
    assert slope == pytest.approx(1 / m.pdf(y, x), rel=1e-6)
    numeric = finite_difference(lambda h: m.icdf(u + h, x), 1e-5)
    assert slope == pytest.approx(numeric, rel=1e-5)


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "m",
    [
        dpk.composite("sine", "quartic", epsilon=1.0, lower=0.0, upper=1.0),
        dpk.hybrid(epsilon=1.0, lower=0.0, upper=1.0),
        dpk.laplace(epsilon=1.0, sensitivity=1.0),
    ],
    ids=["window", "atoms", "noise"],
)
def test_derivatives_by_inputs_that_several_uniform_numbers_share(m):
    """Inputs of shape (3,) and uniform numbers of shape (4, 3): the derivative adds up those of each."""
    x, u = jnp.array([0.2, 0.5, 0.9]), jnp.linspace(0.05, 0.95, 12).reshape(4, 3)
    shared, apart = (jax.grad(lambda x: m.icdf(u, x).sum())(inputs) for inputs in (x, jnp.broadcast_to(x, u.shape)))
    np.testing.assert_allclose(shared, apart.sum(0), rtol=1e-5)


@pytest.mark.lengthy
@pytest.mark.quick("piecewise-0.5")
@over(WINDOWED, *PATHWISE)
def test_pathwise_gradient_of_the_sampled_moments(m, x64):
    """d mean(y) and d mean(y^2) are those of x and Var(x) + x^2, within 6 standard errors."""
    x = jnp.full(N, m.lower + 0.3 * input_range(m))
    offset = m.middle  # Squares about the middle: far from 0 they would only add noise.

    @jax.jit
    def tangents(direction, d_x):
        y, d_y = jax.jvp(lambda mech, at: mech.sample(KEY, at), (m, x), (direction, d_x * jnp.ones(N)))
        return d_y, 2 * (y - offset) * d_y

    @jax.jit
    def expected(direction, d_x):
        def moments(mech, at):
            return at, mech.variance(at) + (at - offset) ** 2

        return jax.jvp(moments, (m, x[0]), (direction, jnp.asarray(d_x)))[1]

    zero = jax.tree.map(lambda leaf: 0.0, m)
    directions = [(moved(zero, i, 1.0), 0.0) for i in range(len(leaf_names(m)))] + [(zero, 1.0)]
    for name, (direction, d_x) in zip([*leaf_names(m), "x"], directions, strict=True):
        for sampled, value in zip(tangents(direction, d_x), expected(direction, d_x), strict=True):
            error = 6 * jnp.std(sampled) / np.sqrt(N) + 1e-9 * (1 + abs(value))
            assert abs(jnp.mean(sampled) - value) <= error, name


@pytest.mark.thorough
@over(WINDOWED, "piecewise-0.5", "sine-2-w1.3")
def test_reverse_mode_gradient_of_samples_is_the_forward_one(m, x64):
    x = jnp.full(512, m.lower + 0.3 * input_range(m))

    def loss(mech):
        return jnp.mean((mech.sample(KEY, x) - x) ** 2)

    backward, forward = (jax.jit(derive(loss))(m) for derive in (jax.grad, jax.jacfwd))
    for gradient, expected in zip(jax.tree.leaves(backward), jax.tree.leaves(forward), strict=True):
        assert gradient == pytest.approx(float(expected), rel=1e-9, abs=1e-12)


@pytest.mark.lengthy
@pytest.mark.quick("triangle-quartic0.3-5-w1.3")
@over(WINDOWED, "piecewise-0.5", "sine-2-w1.3", "triangle-quartic0.3-5-w1.3")
def test_gradient_of_one_sample_is_implicit(m, x64):
    """dy = -dF(y | x)/pdf(y | x): the derivatives of F at the report, by NumPy differences."""
    x = m.lower + 0.3 * input_range(m)
    for seed in range(5):
        key = dpk.simulation_key(seed)
        y, by_x = jax.value_and_grad(lambda at, key=key: m.sample(key, at))(jnp.asarray(x))
        y = float(y)
        numeric = finite_difference(lambda h, y=y: m.cdf(y, x + h), 1e-6 * input_range(m))
        assert by_x == pytest.approx(-numeric / m.pdf(y, x), rel=1e-6, abs=1e-6)


@jax.jit
@partial(jax.grad, argnums=(0, 1))
def every_gradient(m, x):
    forms = (m.variance(x), m.absolute_error(x), m.cdf(x, x), m.pdf(x, x))
    return jnp.sum(m.sample(KEY, x)) + sum(jnp.sum(structure) for structure in forms)


@pytest.mark.lengthy
@pytest.mark.quick("20.0-shapes0-float32-interval0")
@pytest.mark.parametrize(("dtype", "interval"), [("float32", UNIT), ("float64", SKEW)])
@pytest.mark.parametrize("shapes", [("uniform", "constant"), ("triangle", dpk.Quartic(1e-6))])
@pytest.mark.parametrize("epsilon", [0.01, 20.0])
def test_gradients_are_finite_at_the_extremes(shapes, epsilon, dtype, interval):
    m = dpk.composite(*shapes, epsilon=epsilon, **interval)
    with jax.enable_x64(dtype == "float64"):
        x = jnp.asarray(np.resize([m.lower, m.upper, m.middle], 3 << 12).astype(dtype))
        for leaf in jax.tree.leaves(every_gradient(m, x)):
            assert np.all(np.isfinite(leaf))


@pytest.mark.lengthy
@pytest.mark.quick("forward-hybrid-1")
@over(ALL, "duchi-0.1", "hybrid-1")
@pytest.mark.parametrize("mode", ["forward", "backward"])
def test_sample_gradient_at_an_atom_is_nan(m, mode, x64):
    """A report of positive probability does not move smoothly: no number would be right."""
    x = jnp.full(64, m.lower + 0.3 * input_range(m))
    y = m.sample(KEY, x)
    if mode == "forward":
        slopes = jax.jvp(lambda at: m.sample(KEY, at), (x,), (jnp.ones(64),))[1]
    else:
        slopes = jax.grad(lambda at: jnp.sum(m.sample(KEY, at)))(x)
    at, _ = m.atoms(np.asarray(x))
    on_atom = np.isclose(y, at, rtol=0, atol=1e-9 * input_range(m)).any(0)
    assert on_atom.any()
    np.testing.assert_array_equal(np.isnan(slopes), on_atom)


@over(POINTWISE, "piecewise-0.5", "sine-1", "bump-1")
def test_best_width_is_stationary(m, x64):
    """On a constant base the ratio of the heights is e^eps - 1 at any width near the best one."""

    def worst(width):
        return dataclasses.replace(m, width=width).worst_variance

    slope = jax.jit(jax.grad(worst))(jnp.asarray(m.width))
    assert abs(slope) * m.width < 1e-5 * m.worst_variance


FORMS = {
    "pdf": lambda m, y, x: m.pdf(y, x),
    "cdf": lambda m, y, x: m.cdf(y, x),
    "icdf": lambda m, y, x: m.icdf(0.3, x),
    "variance": lambda m, y, x: m.variance(x),
    "absolute_error": lambda m, y, x: m.absolute_error(x),
    "atoms": lambda m, y, x: m.atoms(x),
    "output_interval": lambda m, y, x: m.output_interval,
    "central_variance": lambda m, y, x: m.central_variance,
    "worst_variance": lambda m, y, x: m.worst_variance,
}


@pytest.mark.quick("*-piecewise-0.5", "*-hybrid-1")
@over(ALL, "piecewise-0.5", "sine-quartic-0.5", "hybrid-1", "duchi-0.1")
@pytest.mark.parametrize("form", FORMS)
def test_any_one_parameter_may_be_traced(m, form, x64):
    """A formula is JAX if any of its inputs is: the others may be plain numbers."""
    y, x = m.middle + 0.137 * input_range(m), m.lower + 0.411 * input_range(m)
    for index in range(len(leaf_names(m))):
        jax.eval_shape(lambda by, index=index: FORMS[form](moved(m, index, by), y, x), 0.0)


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-30, 4.0])
def test_root_or_zero_has_a_finite_gradient(value):
    slope = jax.grad(root_or_zero)(value)
    assert np.isfinite(slope)
    assert slope == pytest.approx(0.5 / np.sqrt(value) if value > 0 else 0, rel=1e-5)
