"""What decides the privacy of a training run, in its smallest form: the noise, the sum over devices, the multiplier."""

from __future__ import annotations

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import dpkernels as dpk
from dpkernels.training import PrivateNoise, TrainingRun, noise_multiplier_for, private_aggregate, run

KEY = dpk.key_from_bytes(bytes(range(32)))
MULTIPLIER, CLIP, SIZE = 1.5, 2.0, 1208


@pytest.fixture(scope="module")
def state():
    return private_aggregate(CLIP, MULTIPLIER, KEY).init(jnp.zeros(SIZE))


def test_the_certified_table_has_the_multiplier_as_its_deviation_over_the_sensitivity(noise):
    """In exact integers of the certificate, whose shift is the norm that one example can have."""
    payload = noise.certificate.to_dict()
    table = payload["noise"]
    codes = np.arange(len(table["weights"])) + table["first"]
    weights = np.array(table["weights"], float) / 2.0 ** table["bits"]
    cell = table["grains"] * 2.0 ** table["grain"]
    deviation = cell * math.sqrt(weights @ codes**2 - (weights @ codes) ** 2)
    assert deviation / payload["sensitivity"] == pytest.approx(MULTIPLIER, rel=1e-4)
    assert payload["sensitivity"] == noise.sensitivity


@pytest.fixture(scope="module")
def noise():
    return PrivateNoise.certified(CLIP, MULTIPLIER, SIZE)


@pytest.mark.lengthy
def test_the_noise_of_a_step_has_the_multiplier_and_the_sum_is_that_of_all_devices(state, noise):
    """Vectorised over a named axis, which needs no second device. Six standard errors of the deviation of the noise."""
    four = jnp.asarray(np.random.default_rng(1).normal(size=(4, SIZE)) / 50, jnp.float32)
    one, _ = private_aggregate(CLIP, MULTIPLIER, KEY).update(four, state, mask=True)
    along = private_aggregate(CLIP, MULTIPLIER, KEY, axis_name="batch")
    many = jax.vmap(lambda g: along.update(g, state, mask=True)[0], axis_name="batch")(four.reshape(2, 2, SIZE))
    assert (np.asarray(many) == np.asarray(one)).all()
    drawn = 4 * np.asarray(one, float) - np.asarray(four, float).sum(0)
    expected = MULTIPLIER * CLIP * (1 + noise.rounding_cost)
    assert abs(drawn.std() / expected - 1) <= 6 / math.sqrt(2 * SIZE)


def test_the_slack_of_a_budget_has_the_distance_of_the_table(monkeypatch):
    """Of a table at a distance that can be seen; the search for the multiplier is left out."""
    monkeypatch.setattr(PrivateNoise, "certified", lambda *_: SimpleNamespace(total_variation=1e-5))
    monkeypatch.setattr(run, "calibrated_run", lambda run, epsilon, delta: run)
    multiplier = noise_multiplier_for(TrainingRun(1.5, 1.0, 1, slack=1e-6), epsilon=2.0, delta=1e-3, dimensions=SIZE)
    assert 1.1e-5 <= multiplier.slack <= 1.2e-5


@pytest.mark.lengthy
def test_the_multiplier_for_a_budget_is_the_least_of_the_closed_form():
    """Whole batches: Gaussian noise of mu = sqrt(steps)/multiplier, whose delta is known (Balle and Wang 2018)."""
    steps, epsilon, delta = 9, 2.0, 1e-6
    made = noise_multiplier_for(TrainingRun(3.0, 1.0, steps), epsilon=epsilon, delta=delta)

    def true_delta(multiplier):
        mu = math.sqrt(steps) / multiplier
        return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)

    assert true_delta(made.noise_multiplier) <= delta < true_delta(made.noise_multiplier * (1 - 1e-3))
