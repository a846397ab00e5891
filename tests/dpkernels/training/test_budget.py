"""Private training in one call: what a plan costs, its batches, its gradients in micro-batches, and its optimiser."""

from __future__ import annotations

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import NeighboringRelation, pld
from scipy.stats import norm

import dpkernels as dpk
from accountants.interop.dp_accounting import Accountant
from dpkernels.training import (
    ClippedSums,
    PrivateBatch,
    TrainingRun,
    clipped_sums,
    poisson_overflow,
    private_training,
)
from dpkernels.training.budget import TrainingPlan

KEY = dpk.key_from_bytes(bytes(range(32)))
PARAMS = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)


def loss(params, x):
    return jnp.square(x @ params["w"] + params["b"]).sum()


def planned(**changed):
    """A plan without a search for its noise multiplier."""
    run = TrainingRun(4.0, 0.25, 3, slack=1e-9)
    return dataclasses.replace(TrainingPlan((8.0, 1e-5), 40, 21, 8, 1.0, run), **changed)


def flat(tree):
    return np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in jax.tree.leaves(tree)])


def gaussian_delta(mu, epsilon):
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


def test_batches_are_poisson_samples_with_their_mask():
    plan = planned()
    batches = list(plan.batches(KEY, {"x": X, "y": jnp.arange(40)}))
    assert len(batches) == plan.steps == 3
    for batch, indices in zip(batches, plan.batches(KEY), strict=True):
        assert (batch.examples["x"] == X[indices.examples]).all()
        assert (batch.examples["y"] == indices.examples).all()
        assert (batch.mask == indices.mask).all()
        assert batch.mask.sum() == len(set(np.asarray(batch.examples["y"])[np.asarray(batch.mask)].tolist()))
    assert len({tuple(batch.examples["y"].tolist()) for batch in batches}) == 3
    (resumed,) = plan.batches(KEY, {"x": X, "y": jnp.arange(40)}, start=2)
    assert (resumed.examples["y"] == batches[2].examples["y"]).all()
    with pytest.raises(ValueError, match="data: has an array of shape"):
        plan.batches(KEY, X[:39])
    with pytest.raises(ValueError, match="start"):
        plan.batches(KEY, X, start=4)
    with pytest.raises(TypeError, match="ChaCha20"):
        plan.batches(jax.random.key(0), X)


@pytest.mark.lengthy
def test_batches_have_their_rate():
    """Of 200 batches of 40 rows with rate 1/4, within six standard errors."""
    plan = planned(run=TrainingRun(4.0, 0.25, 200), capacity=41)
    sizes = np.array([int(batch.mask.sum()) for batch in plan.batches(KEY)])
    assert abs(sizes.mean() - 10) <= 6 * math.sqrt(7.5 / 200)
    assert abs(sizes.var() / 7.5 - 1) <= 6 * math.sqrt(2 / 200)


@pytest.mark.parametrize("size", [None, 1, 2, 3, 4, 7, 100])
def test_micro_batches_have_the_sums_of_the_whole_batch(size):
    """Also where they do not divide it, and where the last row counts, which padding repeats."""
    plan = planned(capacity=7)
    mask = jnp.array([True, False, True, True, True, False, True])
    batch = PrivateBatch(jnp.asarray(X[:7]), mask)
    expected = jax.vmap(jax.grad(loss), (None, 0))(PARAMS, batch.examples)
    sums = plan.gradients(loss, PARAMS, batch, micro_batch_size=size)
    assert isinstance(sums, ClippedSums)
    assert (flat(sums.sums) == flat(clipped_sums(expected, mask, plan.noise).sums)).all()
    assert np.linalg.norm(flat(sums.sums)) > 0
    assert sums.rows == 7


def test_one_example_moves_the_sums_by_the_sensitivity_at_most():
    """By nearly the sensitivity, so that the noise multiplier is for this clipping norm and no other."""
    for clip in (0.5, 2.0):
        plan = planned(clip=clip)
        batch = PrivateBatch(jnp.asarray(X[:7] * 100), jnp.ones(7, bool))
        without = batch._replace(mask=batch.mask.at[3].set(False))
        moved = flat(plan.gradients(loss, PARAMS, batch).sums) - flat(plan.gradients(loss, PARAMS, without).sums)
        assert 0.99 * plan.noise.sensitivity <= np.linalg.norm(moved) <= plan.noise.sensitivity
        assert plan.noise.unit * np.linalg.norm(moved) == pytest.approx(clip, rel=0.01)
        assert plan.noise.standard_deviation == pytest.approx(4.0 * clip, rel=0.01)


@pytest.mark.lengthy
def test_training_with_a_plan():
    """The noise of an update is that of the plan: its deviation over 8 x 3 values, with a false-alarm rate of 1e-6."""
    plan = planned(run=TrainingRun(50.0, 0.25, 3))
    optimiser = plan.optimizer(optax.sgd(1.0), KEY)
    params, state, noise = PARAMS, optimiser.init(PARAMS), []
    step = jax.jit(lambda params, state, batch: optimiser.update(plan.gradients(loss, params, batch), state, params))
    for batch in plan.batches(KEY, X):
        sums = flat(plan.gradients(loss, params, batch).sums) * plan.noise.unit
        updates, state = step(params, state, batch)
        noise.append(-flat(updates) * plan.expected_batch_size - sums)
        params = optax.apply_updates(params, updates)
    assert int(state.step) == 3
    assert 0.4 < np.std(noise) / 50.0 < 1.8
    with pytest.raises(ValueError, match="state: has made 3 releases; the budget is for 3"):
        optimiser.update(plan.gradients(loss, params, batch), state, params)


def test_what_is_not_of_the_plan_is_refused():
    plan = planned()
    batch = PrivateBatch(jnp.asarray(X[:7]), jnp.ones(7, bool))
    optimiser = plan.optimizer(optax.sgd(1.0), KEY)
    with pytest.raises(ValueError, match="params: have 3 values; the plan is for 8"):
        optimiser.init({"w": jnp.zeros(3)})
    with pytest.raises(TypeError, match="batch: is a tuple"):
        plan.gradients(loss, PARAMS, tuple(batch))
    with pytest.raises(ValueError, match="params: have 6 values; the plan is for 8"):
        plan.gradients(loss, {"w": PARAMS["w"]}, batch)
    with pytest.raises(ValueError, match="micro_batch_size"):
        plan.gradients(loss, PARAMS, batch, micro_batch_size=0)
    other = planned(clip=2.0).gradients(loss, PARAMS, batch)
    with pytest.raises(ValueError, match="updates: are sums for PrivateNoise"):
        optimiser.update(other, optimiser.init(PARAMS), PARAMS)


def test_bad_budgets_are_errors():
    good = {"epsilon": 1.0, "delta": 1e-5, "examples": 40, "batch_size": 10, "steps": 3, "parameters": 8, "clip": 1.0}
    for name, value in (("epsilon", 0.0), ("delta", 1.0), ("batch_size", 41), ("clip", 0.0), ("parameters", 0)):
        with pytest.raises(ValueError, match=f"{name}: "):
            private_training(**good | {name: value})
    for more in ({"epochs": 1.0}, {"params": PARAMS}, {"steps": None}, {"parameters": None}):
        with pytest.raises(ValueError, match="give one of the two"):
            private_training(**good | more)


@pytest.mark.lengthy
@pytest.mark.parametrize("neighbours", ["add_remove", "replace"])
def test_a_plan_has_every_cost_and_no_more_than_its_budget(neighbours):
    """Also by dp_accounting, whose grid rounds upwards."""
    plan = private_training(
        epsilon=3.0, delta=1e-6, examples=5000, batch_size=250, epochs=3, params=PARAMS, clip=0.7, neighbours=neighbours
    )
    assert plan.steps == 60
    assert 2.999 < plan.epsilon <= 3.0
    assert plan.run.slack >= plan.overflow + plan.noise.total_variation
    assert plan.overflow == poisson_overflow(5000, 0.05, plan.capacity) > 0
    relation = NeighboringRelation.REPLACE_ONE if neighbours == "replace" else NeighboringRelation.ADD_OR_REMOVE_ONE
    event = plan.to_dp_event()
    assert Accountant(relation).compose(event).guarantee.bracket(delta=1e-6)[0] >= plan.epsilon
    assert pld.PLDAccountant(relation).compose(event).get_epsilon(1e-6) == pytest.approx(3.0, rel=2e-3)
    report = plan.report()
    for word in (f"{plan.noise_multiplier:.6g}", "overflow", "distance", "rounding", "epsilon 3, delta 1e-06"):
        assert word in report


def random_plans(count):
    """Whole batches, whose delta is known in closed form (Balle and Wang 2018)."""
    random = np.random.default_rng(3)
    for _ in range(count):
        epsilon, delta = math.exp(random.uniform(-1, 2)), 10.0 ** random.uniform(-9, -4)
        steps, parameters = int(random.integers(1, 40)), int(10 ** random.uniform(0, 4))
        examples = int(random.integers(10, 1000))
        yield private_training(
            epsilon=epsilon,
            delta=delta,
            examples=examples,
            batch_size=examples,
            steps=steps,
            parameters=parameters,
            clip=1.0,
        )


@pytest.mark.thorough
@pytest.mark.quick("5")
@pytest.mark.parametrize("count", [5, 100])
def test_what_was_run_costs_at_most_the_budget_by_another_path(count):
    """From the certificate of the noise: its standard deviation over the shift of neighbours, and its distance."""
    for plan in itertools.islice(random_plans(count), count):
        (epsilon, delta), certificate = plan.budget, plan.noise.certificate
        mu = math.sqrt(plan.steps) * float(certificate.shift) / certificate.claim.sigma
        slack = plan.steps * (plan.noise.total_variation + plan.overflow) * (1 + math.exp(epsilon))
        assert gaussian_delta(mu, epsilon) + slack <= delta * (1 + 1e-9)
        assert gaussian_delta(mu * (1 + 1e-3), epsilon) + slack > delta or plan.noise_multiplier == 0.25
