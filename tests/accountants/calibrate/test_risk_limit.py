"""Noise and budgets for limits of risks: closed forms, the limit as the rigorous bound has it, and no waste."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtri

import dpkernels as dpk
from accountants import calibrate, guarantee, shuffled
from accountants.composition.repeated import ConvergenceError
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace


def test_gaussian_noise_has_a_closed_form():
    mu = 2 * ndtri(0.55)
    scale = calibrate.composed_scale(Gaussian(1.0), advantage=0.1, count=25)
    assert scale == pytest.approx(5 / mu, rel=1e-6)
    assert guarantee(dpk.gaussian(sigma=scale), 1.0).repeat(25).advantage() <= 0.1
    mu = ndtri(0.05) - ndtri(0.01)
    calibrated = calibrate.composed(Gaussian(1.0), true_positive_rate=(0.01, 0.05), count=4, sensitivity=3.0)
    assert calibrated.noise.sigma == pytest.approx(6 / mu, rel=1e-6)
    assert guarantee(calibrated).repeat(4).true_positive_rate(0.01) <= 0.05


@pytest.mark.parametrize(
    ("noise", "arguments", "limit"),
    [
        (Laplace(1.0), {"count": 10}, {"advantage": 0.2}),
        pytest.param(Laplace(1.0), {"count": 10}, {"true_positive_rate": (1e-3, 0.01)}, marks=pytest.mark.lengthy),
        pytest.param(
            Gaussian(1.0),
            {"count": 200, "rate": 0.05},
            {"true_positive_rate": (0.01, 0.03)},
            marks=pytest.mark.lengthy,
        ),
    ],
    ids=["advantage", "rare", "training"],
)
def test_the_limit_is_met_by_the_bound_and_hardly_missed(noise, arguments, limit):
    scale = calibrate.composed_scale(noise, **arguments, **limit)

    def risk(factor, end):
        made = guarantee(dpk.Additive(noise.rescale(scale * factor), 1.0))
        made = made.subsample(arguments["rate"]) if "rate" in arguments else made
        made = made.repeat(arguments["count"])
        if "advantage" in limit:
            return made.bracket(epsilon=0.0)[end]
        return made.bracket(false_positive_rate=limit["true_positive_rate"][0])[end]

    most = limit["advantage"] if "advantage" in limit else limit["true_positive_rate"][1]
    assert risk(1.0, 1) <= most < risk(0.999, 0)


@pytest.mark.parametrize(
    "limit",
    [{"advantage": 1e-9}, {"advantage": 1e-12}, {"true_positive_rate": (1e-12, 1.0000001e-12)}],
    ids=["small", "least", "rare"],
)
def test_limits_next_to_the_precision_of_floats_are_met(limit):
    single = guarantee(dpk.Additive(Gaussian(calibrate.composed_scale(Gaussian(1.0), count=1, **limit)), 1.0))
    if "advantage" in limit:
        assert 0.999 * limit["advantage"] < single.advantage() <= limit["advantage"]
    else:
        rate, most = limit["true_positive_rate"]
        assert single.true_positive_rate(rate) <= most


def test_limits_that_floats_do_not_resolve_are_refused():
    with pytest.raises(ConvergenceError, match=r"^advantage: 1e-14; "):
        calibrate.composed_scale(Gaussian(1.0), advantage=1e-14, count=1)


@pytest.mark.lengthy
def test_all_noise_is_scaled_by_one_factor():
    composed = guarantee(dpk.laplace(epsilon=1.0)).compose(guarantee(dpk.gaussian(sigma=1.0), 1.0)).repeat(3)
    factor = calibrate.noise_scale_factor(composed, advantage=0.1)
    own = guarantee(dpk.laplace(epsilon=1 / factor)).compose(guarantee(dpk.gaussian(sigma=factor), 1.0)).repeat(3)
    assert 0.0999 < own.advantage() <= 0.1 + 1e-9


@pytest.mark.lengthy
def test_local_budgets():
    calibrated = calibrate.composed_budget(dpk.piecewise, advantage=0.1, count=5, lower=0.0, upper=1.0)
    assert 0.0999 < guarantee(calibrated).repeat(5).advantage() <= 0.1
    calibrated = calibrate.composed_budget(dpk.laplace, true_positive_rate=(0.01, 0.02), count=5, sensitivity=2.0)
    assert 0.01999 < guarantee(calibrated).repeat(5).true_positive_rate(0.01) <= 0.02
    with pytest.raises(ValueError, match=r"^advantage: 1e-05; these reports"):
        calibrate.composed_budget(dpk.piecewise, advantage=1e-5, count=5, lower=0.0, upper=1.0)


@pytest.mark.lengthy
def test_shuffled_reports():
    for limit in ({"advantage": 0.02}, {"true_positive_rate": (0.01, 0.012)}):
        calibrated = calibrate.shuffled(dpk.piecewise, n=1000, lower=0.0, upper=1.0, **limit)
        reports = shuffled(dpk.exact_sampler(calibrated), 1000)
        risk = reports.advantage() if "advantage" in limit else reports.true_positive_rate(0.01)
        most = limit["advantage"] if "advantage" in limit else limit["true_positive_rate"][1]
        assert 0.99 * most < risk <= most


def test_a_risk_takes_less_noise_than_the_budget_that_implies_it():
    """An advantage of a follows from (eps, delta)-DP with (e^eps - 1 + 2 delta)/(e^eps + 1) = a."""
    delta = 1e-5
    eps = math.log((1.1 - 2 * delta) / 0.9)
    by_budget = calibrate.composed_scale(Gaussian(1.0), epsilon=eps, delta=delta, count=10)
    assert calibrate.composed_scale(Gaussian(1.0), advantage=0.1, count=10) < 0.5 * by_budget


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ({}, "epsilon, delta, advantage, true_positive_rate: give"),
        ({"epsilon": 1.0}, "epsilon, delta, advantage, true_positive_rate: give"),
        ({"epsilon": 1.0, "delta": 1e-6, "advantage": 0.1}, "epsilon, delta, advantage, true_positive_rate: give"),
        ({"advantage": 1.0}, "advantage: "),
        ({"advantage": jnp.float32(0.1)}, "advantage, true_positive_rate: take numbers"),
        ({"true_positive_rate": 0.1}, "true_positive_rate: must be two"),
        ({"true_positive_rate": (0.1, 0.05)}, "true_positive_rate: 0.1, 0.05; "),
        ({"advantage": 0.5, "rate": 0.01}, "advantage: 0.5; on these samples releases without noise have"),
    ],
)
def test_errors_name_the_argument(target, words):
    for call in (calibrate.composed_scale, calibrate.composed):
        with pytest.raises(ValueError, match=f"^{words}"):
            call(Gaussian(1.0), count=3, **target)
    assert np.isfinite(calibrate.composed_scale(Gaussian(1.0), epsilon=1.0, delta=1e-6, count=3))
