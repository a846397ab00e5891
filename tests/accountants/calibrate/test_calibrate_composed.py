"""Noise for several reports together: against other solvers and closed forms, from the safe side."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import UNIT
from scipy.optimize import brentq

import dpkernels as dpk
from accountants import calibrate, guarantee
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace, MergedLaplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.mechanisms.additive import Additive

LAWS = {
    "gaussian": Gaussian(1.0),
    "laplace": Laplace(0.7),
    "merged": MergedLaplace((2.0, 0.5), (0.4,)),
    "staircase": dpk.staircase(epsilon=1.0).noise,
    "recycled": Reweighted(Gaussian(2.0), -1.5, 1.5, 0.4),
    "truncated": Reweighted(Gaussian(1.0), -6.0, 6.0, 0.0),
}
# The bracket's grid: how much more noise than the precise root at most.
WIDTH = 2e-4


def reports(noise, D, count, rate=None):
    single = guarantee(Additive(noise), D)
    return (single if rate is None else single.subsample(rate)).repeat(count)


def wider(noise, c, D, count, rate=None):
    return reports(noise, D / c, count, rate)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "count", "rate"),
    [
        ("gaussian", 100, 0.1),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("laplace", 40, None), ("recycled", 100, None))),
        *(pytest.param(name, 30, 0.3, marks=pytest.mark.slow) for name in LAWS),
    ],
)
def test_scale_against_another_solver(name, count, rate):
    """The precise root by bisection of eps, and the safe side of it."""
    noise, D, eps, delta = LAWS[name], 1.3, 1.7, 1e-6
    scale = calibrate.composed_scale(noise, epsilon=eps, delta=delta, sensitivity=D, count=count, rate=rate)
    root = brentq(lambda c: wider(noise, c, D, count, rate).epsilon(delta) - eps, 0.5 * scale, 1.5 * scale, xtol=1e-10)
    assert root <= scale * (1 + 1e-9)
    assert scale <= root * (1 + WIDTH)
    assert wider(noise, scale, D, count, rate).bracket(delta=delta)[1] <= eps


@pytest.mark.parametrize(("count", "eps", "delta"), [(1, 1.0, 1e-6), (1000, 0.3, 1e-9)])
def test_gaussian_noise_is_the_analytic_gaussian(count, eps, delta):
    one = calibrate.gaussian(epsilon=eps, delta=delta, sensitivity=0.8).noise.sigma
    calibrated = calibrate.composed(Gaussian(1.0), epsilon=eps, delta=delta, sensitivity=0.8, count=count)
    assert one * math.sqrt(count) <= calibrated.noise.sigma <= one * math.sqrt(count) * (1 + WIDTH)


def test_grows_with_count_and_rate():
    cases = ((100, 0.05), (100, 0.2), (300, 0.2), (300, 0.9))
    made = [calibrate.composed(Gaussian(1.0), epsilon=1.0, delta=1e-6, count=n, rate=r) for n, r in cases]
    sigmas = [one.noise.sigma for one in made]
    assert sigmas == sorted(sigmas)


def test_the_claim_is_that_of_one_report():
    target = {"epsilon": 1.0, "delta": 1e-6}
    calibrated = calibrate.composed(Gaussian(1.0), count=100, **target)
    assert calibrated.delta == 1e-8
    assert guarantee(calibrated).delta(calibrated.epsilon) <= calibrated.delta
    assert guarantee(calibrated).repeat(100).bracket(delta=1e-6)[1] <= 1.0
    # So little noise on samples that a report has no budget worth stating.
    assert calibrate.composed(Gaussian(1.0), count=1, rate=1e-3, epsilon=1.0, delta=9e-4).epsilon is None


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))])
def test_random_targets_are_met_by_the_bracket(seed):
    random = np.random.default_rng(seed)
    name = list(LAWS)[int(random.integers(len(LAWS)))] if seed else "gaussian"
    rate = float(random.uniform(0.01, 0.5)) if random.random() < 0.5 else None
    count = int(random.choice([2, 10, 500]))
    eps, delta = float(random.uniform(0.1, 5.0)), float(10 ** random.uniform(-10, -4))
    scale = calibrate.composed_scale(LAWS[name], epsilon=eps, delta=delta, count=count, rate=rate)
    assert wider(LAWS[name], scale, 1.0, count, rate).bracket(delta=delta)[1] <= eps
    assert wider(LAWS[name], scale * 0.995, 1.0, count, rate).bracket(delta=delta)[1] > eps


@pytest.mark.slow
def test_of_several_kinds_of_reports_together():
    made = guarantee(Additive(Gaussian(3.0)), 1.0).repeat(20).compose(guarantee(Additive(Laplace(4.0)), 1.0).repeat(30))
    c = calibrate.noise_scale_factor(made, epsilon=2.0, delta=1e-7)
    both = (wider(Gaussian(3.0), c, 1.0, 20), wider(Laplace(4.0), c, 1.0, 30))
    assert both[0].compose(both[1]).epsilon(1e-7) == pytest.approx(2.0, rel=WIDTH)
    assert both[0].compose(both[1]).bracket(delta=1e-7)[1] <= 2.0


# JAX


def sigma(epsilon, delta, D, rate=None):
    return calibrate.composed_scale(Gaussian(1.0), epsilon=epsilon, delta=delta, sensitivity=D, count=100, rate=rate)


@pytest.mark.thorough
@pytest.mark.parametrize("at", [(1.0, 1e-6, 1.2), pytest.param((1.0, 1e-6, 1.2, 0.1), marks=pytest.mark.slow)])
def test_jax_values_derivatives_and_vmap(x64, at):
    """The precise root; central differences, extrapolated; several targets at once."""
    n, h, point = len(at), 1e-3, jnp.array(at)
    both = jax.jit(jax.vmap(jax.value_and_grad(lambda v: sigma(*v))))
    moved = [point * jnp.ones(n).at[j].add(step) for j in range(n) for step in (h, -h, h / 2, -h / 2)]
    values, slopes = both(jnp.stack([point, *moved]))
    assert float(values[0]) <= sigma(*at) <= float(values[0]) * (1 + WIDTH)
    d = np.asarray(values[1:]).reshape(n, 4)
    wide, narrow = (d[:, 0] - d[:, 1]) / (2 * h), (d[:, 2] - d[:, 3]) / h
    np.testing.assert_allclose(slopes[0] * point, (4 * narrow - wide) / 3, rtol=1e-6)
    assert float(slopes[0][2]) == pytest.approx(float(values[0]) / 1.2, rel=1e-8)


@pytest.mark.thorough
def test_32_bits_have_a_scale_too():
    """Their values end at 1e-5 or so from 0, which is a root for all that."""
    scale = jax.jit(lambda e, d: calibrate.composed_scale(Laplace(1.0), epsilon=e, delta=d, sensitivity=1.0, count=8))
    for target in ((0.3, 1e-6), (1.0, 1e-4), (4.0, 1e-2)):
        expected = calibrate.composed_scale(Laplace(1.0), epsilon=target[0], delta=target[1], sensitivity=1.0, count=8)
        assert float(scale(*map(jnp.float32, target))) == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
def test_few_reports_have_a_scale_under_tracing(x64):
    """Two reports of Laplace noise, of which no contour converges: a bracket's upper end needs a little more noise."""
    calibrated = calibrate.composed_scale(Laplace(1.0), epsilon=jnp.float64(1.0), delta=1e-6, count=2)
    bound = calibrate.composed_scale(Laplace(1.0), epsilon=1.0, delta=1e-6, count=2)
    assert float(calibrated) <= bound <= float(calibrated) * (1 + 1e-4)


# Budgets of mechanisms


@pytest.mark.slow
@pytest.mark.parametrize("constructor", [dpk.duchi, dpk.piecewise])
def test_budget_of_bounded_mechanisms(constructor):
    calibrated = calibrate.composed_budget(constructor, epsilon=1.0, delta=1e-6, count=100, **UNIT)
    assert guarantee(calibrated).repeat(100).bracket(delta=1e-6)[1] <= 1.0
    assert guarantee(constructor(epsilon=calibrated.epsilon * 1.001, **UNIT)).repeat(100).epsilon(1e-6) > 1.0
    assert calibrated.epsilon > 1.0 / 100


def narrow_gaussian(epsilon):
    return Additive(Gaussian(2.0 / epsilon), 2.0, epsilon)


@pytest.mark.parametrize(
    ("constructor", "law"),
    [(narrow_gaussian, Gaussian(2.0)), pytest.param(dpk.laplace, Laplace(1.0), marks=pytest.mark.slow)],
)
def test_budget_of_noise_on_samples(constructor, law):
    target = {"epsilon": 1.0, "delta": 1e-6, "count": 100, "rate": 0.1}
    calibrated = calibrate.composed_budget(constructor, **target)
    scale = calibrate.composed_scale(law, sensitivity=calibrated.sensitivity, **target)
    assert 1 / calibrated.epsilon == pytest.approx(scale, rel=WIDTH)


def test_budget_from_where_it_is_known():
    """What is not it is not taken for it; what is no budget is refused."""
    target = {"epsilon": 1.0, "delta": 1e-6, "count": 10, **UNIT}
    calibrated = calibrate.composed_budget(dpk.piecewise, **target)
    for share in (1 - 1e-9, 1 + 1e-9, 1.001, 1.2, 0.5):
        again = calibrate.composed_budget(dpk.piecewise, **target, initial_guess=calibrated.epsilon * share)
        assert guarantee(again).repeat(10).bracket(delta=1e-6)[1] <= 1.0
        assert again.epsilon == pytest.approx(calibrated.epsilon, rel=WIDTH)
    for wrong in (-1.0, 0.0, math.nan):
        with pytest.raises(ValueError, match=r"^initial_guess: "):
            calibrate.composed_budget(dpk.piecewise, **target, initial_guess=wrong)


@pytest.mark.slow
def test_budget_at_the_end_of_its_range():
    calibrated = calibrate.composed_budget(dpk.duchi, epsilon=30.0, delta=0.01, count=1, **UNIT)
    assert calibrated.epsilon == pytest.approx(20.0)


# Errors

TARGET = {"epsilon": 1.0, "delta": 1e-6, "count": 10}


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"epsilon": 0.0}, ValueError, "^epsilon: "),
        ({"epsilon": math.nan}, ValueError, "^epsilon: "),
        ({"delta": 1.0}, ValueError, "^delta: "),
        ({"delta": [1e-6]}, ValueError, "^delta: has shape"),
        ({"sensitivity": -1.0}, ValueError, "^sensitivity: "),
        ({"count": 0}, ValueError, "^count: "),
        ({"count": 2.0}, TypeError, "^count: "),
        ({"rate": 1.5}, ValueError, "^rate: "),
        ({"rate": -1.0}, ValueError, "^rate: "),
        ({"rate": math.nan}, ValueError, "^rate: "),
        ({"rate": 1e-3, "delta": 0.01}, ValueError, r"^delta: 0\.01; .* without noise have 0\.00995512"),
    ],
)
def test_arguments_out_of_range(change, kind, message):
    with pytest.raises(kind, match=message):
        calibrate.composed(Gaussian(1.0), **{**TARGET, **change})


@pytest.mark.parametrize("rate", [0.0, -1.0, 2.0, math.nan])
def test_budgets_of_samples_of_no_rate(rate):
    with pytest.raises(ValueError, match=r"^rate: "):
        calibrate.composed_budget(dpk.piecewise, **UNIT, **{**TARGET, "rate": rate})


@pytest.mark.thorough
def test_infeasible_targets_say_what_is_best():
    """Every report leaks its own delta, whatever its budget; and a budget has a least value."""
    with pytest.raises(ValueError, match=r"^epsilon, delta: 1, 1e-06; .* budgets of 0\.01 each, have delta 0\.0009"):
        calibrate.composed_budget(lambda epsilon: dpk.truncated_laplace(epsilon=epsilon, delta=1e-4), **TARGET)
    with pytest.raises(TypeError, match=r"^made: releases of Atoms"):
        calibrate.noise_scale_factor(guarantee(dpk.duchi(epsilon=1.0, **UNIT)), epsilon=1.0, delta=1e-6)
