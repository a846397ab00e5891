"""Calibration inside jit and grad: values of plain numbers, and derivatives against central differences."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import accountants
import dpkernels as dpk
from accountants import calibrate, guarantee
from dpkernels.mechanisms.two_point import TwoPoint


def two_points(*, epsilon, lower=0.0, upper=1.0):
    return TwoPoint(lower, upper, epsilon)


def wide_two_points(*, epsilon, width):
    return TwoPoint(0.0, width, epsilon)


# Name -> (function of (epsilon, delta), epsilon, delta, relative error of the traced value and of its derivatives).
# Plain values of releases composed and of shuffled reports are rounded conservatively: traced ones are above.
CASES = {
    "bounded": (lambda e, d: calibrate.bounded(two_points, epsilon=e, delta=d).epsilon, 0.5, 0.1, 1e-9, 1e-5),
    "least bound": (lambda e, d: calibrate.least_truncation_bound(e, d, 2.0), 0.5, 0.05, 1e-9, 1e-5),
    "composed budget": (
        lambda e, d: calibrate.composed_budget(two_points, epsilon=e, delta=d, count=10).epsilon,
        1.0,
        1e-5,
        1e-4,
        1e-3,
    ),
    "shuffled": (
        lambda e, d: calibrate.shuffled(two_points, epsilon=e, delta=d, n=100_000).epsilon,
        0.1,
        1e-6,
        1e-5,
        1e-3,
    ),
}


@pytest.mark.lengthy
@pytest.mark.quick("bounded", "least bound")
@pytest.mark.parametrize("name", CASES)
def test_the_same_function_under_jit_and_grad(name):
    function, epsilon, delta, rtol, slope_rtol = CASES[name]
    with jax.enable_x64(True):
        value, slopes = jax.jit(jax.value_and_grad(function, (0, 1)))(jnp.asarray(epsilon), jnp.asarray(delta))
    plain = float(function(epsilon, delta))
    assert float(value) == pytest.approx(plain, rel=rtol)
    h = 1e-3
    for at, slope in enumerate(slopes):
        ends = [[epsilon, delta], [epsilon, delta]]
        ends[0][at] *= 1 - h
        ends[1][at] *= 1 + h
        with jax.enable_x64(True):
            low, high = (float(jax.jit(function)(*map(jnp.asarray, one))) for one in ends)
        difference = (high - low) / (2 * h * (epsilon, delta)[at])
        assert float(slope) == pytest.approx(difference, rel=slope_rtol)


@pytest.mark.lengthy
@pytest.mark.quick("2.0")
@pytest.mark.parametrize("exponent", [1.0, 1.5, 2.0])
def test_a_scale_has_a_derivative_in_the_budget_outside_jit(x64, exponent):
    """Whether an exponent is 1 or 2 is known, though everything else is traced."""

    def scale(delta):
        return calibrate.generalised_normal(epsilon=1.0, delta=delta, exponent=exponent).noise.scale

    delta, h = 1e-5, 1e-3
    difference = (float(scale(delta * (1 + h))) - float(scale(delta * (1 - h)))) / (2 * h * delta)
    assert float(jax.grad(scale)(delta)) == pytest.approx(difference, rel=1e-5)


@pytest.mark.thorough
def test_a_traced_budget_is_not_above_the_precise_one():
    with jax.enable_x64(True):
        level = jax.jit(lambda e: calibrate.composed_budget(two_points, epsilon=e, delta=1e-5, count=10).epsilon)(1.0)
    assert guarantee(two_points(epsilon=float(level))).repeat(10).delta(1.0) == pytest.approx(1e-5, rel=1e-6)


@pytest.mark.thorough
def test_an_infeasible_traced_budget_is_nan():
    def level(epsilon, delta):
        return calibrate.composed_budget(two_points, epsilon=epsilon, delta=delta, count=10).epsilon

    with jax.enable_x64(True):
        assert math.isnan(jax.jit(level)(0.05, 1e-12))


@pytest.mark.lengthy
def test_arguments_of_the_constructor_are_differentiated():
    with jax.enable_x64(True):
        slope = jax.grad(
            lambda width: calibrate.bounded(wide_two_points, epsilon=0.5, delta=0.1, width=width).worst_variance
        )(jnp.asarray(2.0))
    plain = [
        float(calibrate.bounded(wide_two_points, epsilon=0.5, delta=0.1, width=w).worst_variance) for w in (1.9, 2.1)
    ]
    assert float(slope) == pytest.approx((plain[1] - plain[0]) / 0.2, rel=1e-6)


@pytest.mark.thorough
def test_batches_of_bounds():
    deltas = np.array([0.02, 0.1])
    with jax.enable_x64(True):
        found = jax.vmap(lambda d: calibrate.least_truncation_bound(0.5, d))(jnp.asarray(deltas))
    np.testing.assert_allclose(found, [calibrate.least_truncation_bound(0.5, float(d)) for d in deltas], rtol=1e-8)


@pytest.mark.thorough
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 0.02), (0.5, 0.05), (1.0, 1e-3), (3.0, 1e-6)])
def test_no_bound_is_feasible_below_the_least_one_and_the_best_has_the_least_variance(epsilon, delta):
    least, best = calibrate.least_truncation_bound(epsilon, delta), calibrate.best_truncation_bound(epsilon, delta)
    assert accountants.delta(calibrate.truncated_gaussian(epsilon=epsilon, delta=delta, bound=least * 1.00001), epsilon)
    with pytest.raises(ValueError, match="too short"):
        calibrate.truncated_gaussian(epsilon=epsilon, delta=delta, bound=least * (1 - 1e-4))
    variances = [
        float(calibrate.truncated_gaussian(epsilon=epsilon, delta=delta, bound=best * share).noise.variance)
        for share in (0.98, 1.0, 1.02)
        if best * share > least
    ]
    at = float(calibrate.truncated_gaussian(epsilon=epsilon, delta=delta).noise.variance)
    assert at <= min(variances) * (1 + 1e-7)


@pytest.mark.thorough
def test_optima_are_those_of_plain_numbers():
    scale = partial(calibrate.best_recycled_scale, dpk.Gaussian(1.0), 1.0)
    with jax.enable_x64(True):
        found = jax.jit(calibrate.best_truncation_bound)(0.5, 0.05), jax.jit(scale)(1.0, 1e-5, 1.0)
    assert float(found[0]) == pytest.approx(calibrate.best_truncation_bound(0.5, 0.05), rel=1e-6)
    assert float(found[1]) == pytest.approx(scale(1.0, 1e-5, 1.0), rel=2e-4)


def test_noise_on_a_grid_takes_plain_numbers():
    with pytest.raises(TypeError, match="noise on a grid is calibrated by plain numbers"):
        calibrate.discrete_gaussian(epsilon=jnp.asarray(1.0), delta=1e-6)
