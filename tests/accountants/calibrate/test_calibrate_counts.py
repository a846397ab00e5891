"""Calibrated noise on a lattice, and scales of the top k of a known domain."""

from __future__ import annotations

import math

import numpy as np
import pytest

import accountants
import dpkernels as dpk
from accountants import calibrate
from accountants.histograms import known_domain_guarantee, known_domain_top_k

DISCRETE = {"gaussian": calibrate.discrete_gaussian, "laplace": calibrate.discrete_laplace}
SIMULATED = {"exact": False, "key": dpk.simulation_key(5)}


def brute_delta(law, apart, epsilon):
    """By the definition, point by point."""
    p = dict(enumerate(law.probabilities.tolist()))
    return math.fsum(max(0.0, w - math.exp(epsilon) * p.get(k - apart, 0.0)) for k, w in p.items())


@pytest.mark.parametrize("name", DISCRETE)
@pytest.mark.parametrize(
    ("eps", "delta", "D", "step", "apart"),
    [(1.0, 1e-6, 1.0, 1.0, 1), (0.1, 1e-3, 3.0, 0.5, 6), (3.0, 1e-4, 1.0, 0.3, 4)],
)
def test_lattice_noise_meets_its_target_and_less_does_not(name, eps, delta, D, step, apart):
    made = DISCRETE[name](epsilon=eps, delta=delta, sensitivity=D, step=step)
    assert (made.epsilon, made.delta, made.sensitivity) == (eps, delta, D)
    assert accountants.delta(made, eps) <= delta
    assert brute_delta(made.noise, apart, eps) == pytest.approx(delta, rel=1e-6)
    law = type(made.noise)
    scale = made.noise.sigma if name == "gaussian" else made.noise.scale
    assert brute_delta(law(0.999 * scale, step), apart, eps) > delta


def test_on_a_fine_lattice_it_is_the_noise_on_the_line():
    fine = calibrate.discrete_gaussian(epsilon=1.0, delta=1e-6, step=1 / 64)
    assert fine.noise.sigma == pytest.approx(calibrate.gaussian(epsilon=1.0, delta=1e-6).noise.sigma, rel=1e-4)


@pytest.mark.quick("None-gaussian", "0.25-laplace")
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("pick", [None, 0.25])
def test_top_k_costs_what_was_asked_for(noise, pick):
    plan = calibrate.known_domain(10, epsilon=2.0, delta=1e-5, noise=noise, discovery_epsilon=pick)
    scales = {"discovery_epsilon": plan.discovery_epsilon, "noise": plan.noise}
    release = known_domain_top_k(np.arange(30), 10, delta=1e-5, **scales, **SIMULATED)
    assert 2.0 * (1 - 1e-9) <= release.guarantee.epsilon <= 2.0
    assert pick in (None, plan.discovery_epsilon)
    assert accountants.delta(plan.noise, plan.noise.epsilon) <= plan.noise.delta + 4e-15  # It is rounded upwards.


@pytest.mark.parametrize("share", [0.2, 0.7])
def test_shares_of_the_budget(share):
    plan = calibrate.known_domain(5, epsilon=1.0, delta=1e-6, share=share)
    picks, counts = plan.discovery_epsilon**2 / 8, 1 / (2 * plan.noise.noise.sigma**2)
    assert picks / (picks + counts) == pytest.approx(share, rel=1e-12)


def test_more_items_need_more_noise():
    sigmas = [calibrate.known_domain(k, epsilon=2.0, delta=1e-5).noise.noise.sigma for k in (1, 3, 30)]
    assert sigmas == sorted(sigmas)


@pytest.mark.parametrize(
    ("wrong", "kind", "message"),
    [
        (lambda: calibrate.discrete_gaussian(epsilon=0.0, delta=1e-6), ValueError, r"^epsilon: "),
        (lambda: calibrate.discrete_laplace(epsilon=1.0, delta=1.0), ValueError, r"^delta: "),
        (lambda: calibrate.discrete_laplace(epsilon=1.0, delta=0.1, step=0.0), ValueError, r"^step: "),
        (lambda: calibrate.known_domain(0, epsilon=1.0, delta=1e-6), ValueError, r"^k: "),
        (lambda: calibrate.known_domain(2, epsilon=1.0, delta=1e-6, noise="uniform"), ValueError, r"^noise: "),
        (lambda: calibrate.known_domain(2, epsilon=1.0, delta=1e-6, share=1.0), ValueError, r"^share: "),
    ],
)
def test_arguments_out_of_range(wrong, kind, message):
    with pytest.raises(kind, match=message):
        wrong()


def test_picks_that_leave_nothing_say_what_they_cost():
    alone = float(known_domain_guarantee(10, 3.0, 1e-5, sigma=1e9).epsilon)
    with pytest.raises(ValueError, match=rf"^discovery_epsilon: 3; 10 picks alone have eps {alone:.6g}"):
        calibrate.known_domain(10, epsilon=2.0, delta=1e-5, discovery_epsilon=3.0)


def test_a_budget_that_the_least_pick_exceeds():
    """A million picks of 1e-6 have eps 0.026 at delta 1e-300, where eps 0.01 was asked for."""
    with pytest.raises(ValueError, match=r"^epsilon, delta: 0\.01, 1e-300; 1000000 picks"):
        calibrate.known_domain(10**6, epsilon=0.01, delta=1e-300)
