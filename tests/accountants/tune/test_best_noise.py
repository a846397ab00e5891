"""The best noise of all families for several releases: its budget, its optimum, and what the others cost."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import accountants
import dpkernels as dpk
from accountants import calibrate, guarantee, tune
from accountants.tune.best_noise import NOISE_FAMILIES

BY_NAME = {family.name: family for family in NOISE_FAMILIES}
QUICK = [BY_NAME[name] for name in ("Laplace", "Gaussian", "staircase")]
TARGET = {"epsilon": 1.0, "delta": 1e-6, "count": 10}
# Of a prototype: the best variance of a named family at sensitivity 1.
PROTOTYPE = [
    pytest.param((1.0, 1e-6, 3), "staircase", 17.92, marks=pytest.mark.thorough),
    ((1.0, 1e-6, 10), "generalised normal", 158.95),
    ((4.0, 1e-6, 10), "generalised normal", 11.577),
    ((1.0, 1e-9, 30), "generalised normal", 869.9),
    ((1.0, 1e-6, 100), "Student", 1781.9),
]


def test_the_best_of_quick_families_meets_the_budget():
    tuned = tune.noise(**TARGET, families=QUICK, sensitivity=3.0)
    assert tuned.family == "Gaussian"
    assert [cost.family for cost in tuned.costs] == ["Gaussian", "Laplace", "staircase"]
    assert tuned.value == pytest.approx(9 * 178.479, rel=1e-4)
    assert tuned.value == pytest.approx(tuned.mechanism.worst_variance)
    assert guarantee(tuned.mechanism).repeat(10).delta(1.0) == tuned.delta <= 1e-6
    assert eval(tuned.python) == tuned.mechanism
    assert "staircase" in str(tuned)


def test_costs_are_those_of_calibrated_noise():
    costs = {cost.family: cost.value for cost in tune.noise(**TARGET, families=QUICK).costs}
    for name, noise in (("Laplace", dpk.Laplace(1.0)), ("Gaussian", dpk.Gaussian(1.0))):
        assert costs[name] == pytest.approx(calibrate.composed(noise, **TARGET).noise.variance, rel=1e-4)


def test_objectives_may_be_large():
    """Acceptance is maximised."""
    tuned = tune.noise(**TARGET, families=QUICK, objective=tune.acceptance(theta=3.0))
    accepted = [cost.value for cost in tuned.costs]
    assert accepted == sorted(accepted, reverse=True)
    assert tuned.value == pytest.approx(accepted[0], rel=1e-4)


def test_wrong_budgets_and_families_are_refused():
    for name, value in (("epsilon", 0.0), ("delta", 1.0), ("count", 0), ("sensitivity", -1.0), ("rate", 2.0)):
        with pytest.raises(ValueError, match=name):
            tune.noise(**{**TARGET, "families": QUICK, name: value})
    with pytest.raises(ValueError, match="families"):
        tune.noise(**TARGET, families=[])


def test_a_family_that_narrows_with_its_width_is_found_out():
    """A budget that is tied in the wrong direction has no member, and is no answer."""
    turned = replace(BY_NAME["Gaussian"], name="turned", member=lambda width: dpk.Gaussian(1 / width))
    tuned = tune.noise(**TARGET, families=[turned, BY_NAME["Gaussian"]])
    assert tuned.family == "Gaussian"
    assert tuned.costs[1].noise is None
    with pytest.raises(ValueError, match="no family meets them"):
        tune.noise(**TARGET, families=[turned])


@pytest.mark.lengthy
@pytest.mark.parametrize(("budget", "family", "variance"), PROTOTYPE, ids=lambda value: str(value))
def test_no_cell_is_worse_than_the_prototype(budget, family, variance):
    epsilon, delta, count = budget
    tuned = tune.noise(epsilon=epsilon, delta=delta, count=count)
    assert tuned.family == family
    assert tuned.value <= 1.0005 * variance
    assert tuned.delta <= delta
    low, high = guarantee(tuned.mechanism).repeat(count).bracket(epsilon=epsilon)
    assert low <= high == tuned.delta
    assert high <= low * (1 + 1e-4)


@pytest.mark.lengthy
def test_the_shape_is_a_minimum_on_the_budget():
    """Exponents on both sides need more variance, each with its own least scale."""
    tuned = tune.noise(**TARGET, families=[BY_NAME["generalised normal"]])
    best = tuned.parameters["exponent"]
    for exponent in (best - 0.05, best + 0.05):
        other = calibrate.composed(dpk.GeneralisedNormal(1.0, exponent), **TARGET).noise.variance
        assert tuned.value < other < tuned.value * 1.01


def test_truncated_noise_may_spend_delta_on_infinite_losses():
    """Its composed eps at delta jumps from below the budget to infinity."""
    cut = replace(
        BY_NAME["Laplace"], member=lambda width: dpk.Reweighted(dpk.Laplace(width), -10 * width, 10 * width, 0)
    )
    tuned = tune.noise(epsilon=0.5, delta=1e-6, count=3, families=[cut])
    releases = guarantee(tuned.mechanism).repeat(3)
    assert 0.99e-6 < releases.infinity_mass < releases.delta(0.5) <= 1e-6
    free = tune.noise(epsilon=0.5, delta=1e-6, count=3, families=[BY_NAME["truncated Laplace"]])
    assert free.value < 72.0


@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_the_budget_is_that_of_samples(adjacency):
    budget = {"epsilon": 1.0, "delta": 1e-6, "count": 20}
    tuned = tune.noise(**budget, rate=0.1, adjacency=adjacency, families=QUICK[:1])
    epsilon = guarantee(tuned.mechanism).subsample(0.1, adjacency).repeat(20).epsilon(1e-6)
    assert 0.998 < epsilon <= 1.0


@pytest.mark.thorough
def test_samples_and_replaced_records():
    """Student noise has no known worst replaced record: it is listed with the reason."""
    sampled = tune.noise(epsilon=1.0, delta=1e-6, count=200, rate=0.02)
    assert guarantee(sampled.mechanism).subsample(0.02).repeat(200).delta(1.0) <= 1e-6
    replaced = tune.noise(epsilon=1.0, delta=1e-6, count=200, rate=0.02, adjacency="replace")
    assert guarantee(replaced.mechanism).subsample(0.02, "replace").repeat(200).delta(1.0) <= 1e-6
    assert sampled.value < replaced.value
    refused = next(cost for cost in replaced.costs if cost.family == "Student")
    assert "log-concave" in refused.error
    assert math.isinf(refused.value)


@pytest.mark.lengthy
def test_the_best_noise_is_released():
    tuned = tune.noise(**TARGET)
    sampler = dpk.exact_sampler(tuned.mechanism)
    assert float(sampler.certificate.worst_variance) <= 1.002 * 158.95
    assert accountants.delta(tuned.mechanism, tuned.mechanism.epsilon) <= 1e-7
    released = dpk.perturb(np.zeros(20_000), tuned.mechanism, key=dpk.key_from_bytes(bytes(range(32))))
    # The variance of the squares of this noise is below 4 times its squared variance: 7 standard deviations.
    assert released.var() == pytest.approx(tuned.value, rel=7 * math.sqrt(4 / 20_000))
