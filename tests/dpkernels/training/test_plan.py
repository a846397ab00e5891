"""Private training in one call: what a plan costs, its batches, its gradients in micro-batches, and its optimiser."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import NeighboringRelation, pld
from jax.sharding import PartitionSpec as P
from scipy.stats import norm

import dpkernels as dpk
from accountants.interop.dp_accounting import Accountant
from dpkernels.training import (
    ClippedSums,
    CorrelatedRun,
    PrivateBatch,
    ToeplitzStrategy,
    TrainingRun,
    aggregate,
    clipped_sums,
    poisson_batch,
    poisson_overflow,
    private_training,
)
from dpkernels.training.plan import TrainingPlan

KEY = dpk.key_from_bytes(bytes(range(32)))
PARAMS = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)


def loss(params, x):
    return jnp.square(x @ params["w"] + params["b"]).sum()


def planned(**changed):
    """A plan without a search for its noise multiplier."""
    run = TrainingRun(4.0, 0.25, 3, slack=1e-9)
    return dataclasses.replace(TrainingPlan((8.0, 1e-5), 40, 21, 8, 1.0, run), **changed)


ROOT = ToeplitzStrategy.square_root(3)


def correlated(strategy=ROOT, steps=10, **changed):
    """A plan of correlated noise over epochs of four steps, without a search for its noise multiplier."""
    run = CorrelatedRun(strategy, steps, 4, None, TrainingRun(2.0, 1.0, 1, slack=1e-9))
    return dataclasses.replace(TrainingPlan((8.0, 1e-5), 40, 35, 8, 1.0, run), **changed)


def flat(tree):
    return np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in jax.tree.leaves(tree)])


def gaussian_delta(mu, epsilon):
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


@pytest.mark.lengthy
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


@pytest.mark.parametrize("size", [3, *(pytest.param(n, marks=pytest.mark.lengthy) for n in (None, 1, 2, 4, 7, 100))])
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


DEVICES = f"""
import re, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from test_plan import PARAMS, X, PrivateBatch, flat, loss, planned
plan, mask = planned(), jnp.arange(16) != 3
one = flat(plan.gradients(loss, PARAMS, PrivateBatch(jnp.asarray(X[:16]), mask)).sums)
for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((4,), ("batch",), axis_types=(kind,))
    put = lambda leaf, *spec: jax.device_put(leaf, NamedSharding(mesh, P(*spec)))
    given = jax.tree.map(put, PARAMS), PrivateBatch(put(X[:16], "batch"), put(mask, "batch"))
    for size in (None, 8):
        compiled = jax.jit(lambda p, b: plan.gradients(loss, p, b, micro_batch_size=size).sums).lower(*given).compile()
        assert (flat(compiled(*given)) == one).all()
        names = "all-gather|all-to-all|collective-permute|all-reduce"
        sent = re.findall(rf"= (.*) ({{names}})(?:-start)?\\(", compiled.as_text())
        assert sent and all(name == "all-reduce" and "f32" not in types for types, name in sent), sent
# In shard_map, where JAX adds up the gradients of parameters that are the same on all devices.
mesh = jax.make_mesh((4,), ("batch",))
put = lambda leaf: jax.device_put(leaf, NamedSharding(mesh, P("batch")))
for size in (None, 2):
    local = lambda p, b: jax.lax.psum(plan.gradients(loss, p, b, micro_batch_size=size).sums, "batch")
    mapped = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(P(), P("batch")), out_specs=P()))
    assert (flat(mapped(PARAMS, PrivateBatch(put(X[:16]), put(mask)))) == one).all()
"""


@pytest.mark.lengthy
def test_micro_batches_on_several_devices_have_the_same_sums():
    """And only integers, sums of parameters, are sent."""
    from device_flags import several_devices  # It is not on the path of the program.

    environment = {"XLA_FLAGS": several_devices(4), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", DEVICES], capture_output=True, text=True, env=os.environ | environment, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("size", [None, 2])
def test_a_loss_that_reads_the_data_of_its_device_is_refused(size):
    """By indices that are the same on all devices, JAX adds up the gradients of rows of several devices."""
    plan, mesh = planned(), jax.sharding.AbstractMesh((2,), ("i",))
    batch = PrivateBatch(jnp.arange(4), jnp.ones(4, bool))

    def sums(params, rows, batch, of_index):
        at = plan.gradients(lambda p, i: loss(p, of_index(rows, i)), params, batch, micro_batch_size=size)
        return at.sums

    def traced(of_index, spec):
        mapped = jax.shard_map(
            lambda *given: sums(*given, of_index), mesh=mesh, in_specs=(P(), P("i"), spec), out_specs=spec
        )
        return jax.eval_shape(mapped, PARAMS, jnp.asarray(X[:8]), batch)

    with pytest.raises(ValueError, match="loss: differs along 'i', where the batch is the same"):
        traced(lambda rows, i: rows[i], P())
    traced(lambda rows, i: rows[i], P("i"))
    traced(lambda _, i: jnp.asarray(X)[i], P())  # Examples that are the same on all devices.


def test_one_example_moves_the_sums_by_the_sensitivity_at_most():
    """By nearly the sensitivity, so that the noise multiplier is for this clipping norm and no other."""
    plan = planned(clip=0.5)
    batch = PrivateBatch(jnp.asarray(X[:7] * 100), jnp.ones(7, bool))
    without = batch._replace(mask=batch.mask.at[3].set(False))
    moved = flat(plan.gradients(loss, PARAMS, batch).sums) - flat(plan.gradients(loss, PARAMS, without).sums)
    assert 0.99 * plan.noise.sensitivity <= np.linalg.norm(moved) <= plan.noise.sensitivity
    assert plan.noise.unit * np.linalg.norm(moved) == pytest.approx(0.5, rel=0.01)
    assert plan.noise.standard_deviation == pytest.approx(4.0 * 0.5, rel=0.01)


def test_all_rows_of_a_person_move_the_sums_by_the_sensitivity_at_most():
    """Federated averaging: an example is a person with three rows, whose parameters move in two local steps."""
    plan = planned()
    rows = jnp.asarray(X[:39].reshape(13, 3, 3)) * 10

    def difference(params, own):
        local = params
        for _ in range(2):
            gradient = jax.grad(lambda p: jnp.stack([loss(p, own[i]) for i in range(3)]).mean())(local)
            local = jax.tree.map(lambda leaf, g: leaf - 0.01 * g, local, gradient)
        return jax.tree.map(jnp.subtract, params, local)

    people = jax.jit(jax.vmap(difference, (None, 0)))

    def sums(rows, mask):
        return flat(clipped_sums(people(PARAMS, rows), mask, plan.noise).sums)

    everybody = jnp.ones(13, bool)
    whole = sums(rows, everybody)
    moved = np.linalg.norm(whole - sums(rows, everybody.at[4].set(False)))
    assert 0.9 * plan.noise.sensitivity <= moved <= plan.noise.sensitivity
    replaced = np.linalg.norm(whole - sums(rows.at[4].multiply(-300.0), everybody))
    assert 0 < replaced <= 2 * plan.noise.sensitivity


@pytest.fixture
def without_noise(monkeypatch):
    """Updates of which the noise is left out: the sums times the factor, without the seconds that noise compiles."""
    monkeypatch.setattr(
        aggregate, "_noisy", lambda noise, now, sums: jax.tree.map(lambda leaf: leaf.astype(jnp.float32), sums)
    )


def test_an_update_is_the_clipped_sum_over_the_expected_batch_size(without_noise):
    """Of rows that count, once for each, also along an axis: nothing is averaged over devices or over the rows."""
    plan = planned(clip=0.5)
    rows, mask = jnp.asarray(X[:8]), jnp.array([True, False] * 4)
    gradients = jax.vmap(jax.grad(loss), (None, 0))(PARAMS, rows)
    flattened = np.stack([flat(jax.tree.map(lambda leaf, i=i: leaf[i], gradients)) for i in range(8)])
    clipped = flattened * np.minimum(1, 0.5 / np.linalg.norm(flattened, axis=1))[:, None]
    optimiser, along = (plan.optimizer(optax.identity(), KEY, axis_name=name) for name in (None, "i"))
    state = optimiser.init(PARAMS)
    updates, _ = optimiser.update(plan.gradients(loss, PARAMS, PrivateBatch(rows, mask)), state, PARAMS)
    assert flat(updates) == pytest.approx(clipped[::2].sum(0) / 10.0, abs=1e-3)
    pieces = jax.tree.map(lambda leaf: leaf.reshape(2, 4, *leaf.shape[1:]), (gradients, mask))
    split = jax.vmap(lambda g, m: along.update(g, state, PARAMS, mask=m)[0], axis_name="i")(*pieces)
    for device in range(2):
        assert (flat(jax.tree.map(lambda leaf, i=device: leaf[i], split)) == flat(updates)).all()


def test_a_release_has_the_micro_batches_since_the_last_one(without_noise):
    """And no others: sums that are released twice would move by twice the sensitivity."""
    options = {"inner": optax.identity(), "expected_batch_size": 4.0}
    accumulated = aggregate.private_aggregate(1.0, 4.0, KEY, micro_batches=2, **options)
    whole = aggregate.private_aggregate(1.0, 4.0, KEY, **options)
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(4, 2, 8)), jnp.float32)
    state, update = accumulated.init(jnp.zeros(8)), jax.jit(accumulated.update)
    releases = []
    for part in rows:
        release, state = update(part, state, mask=jnp.ones(2, bool))
        releases.append(np.asarray(release))
    assert not releases[0].any()
    assert not releases[2].any()
    for number in (0, 2):
        both, _ = whole.update(rows[number : number + 2].reshape(4, 8), whole.init(jnp.zeros(8)), mask=True)
        assert (releases[number + 1] == np.asarray(both)).all()
    assert not flat(state.sums).any()


def test_the_noise_of_a_release_is_that_of_the_plan(monkeypatch):
    """Its table, its factor and its key: of this plan's clipping norm and multiplier, and no key twice."""
    drawn = []

    def noisy(noise, now, sums):
        drawn.append((noise, tuple(np.asarray(jax.random.key_data(now)).tolist())))
        return jax.tree.map(lambda leaf: jnp.ones(leaf.shape), sums)

    monkeypatch.setattr(aggregate, "_noisy", noisy)
    plan = planned(clip=0.5)
    optimiser = plan.optimizer(optax.identity(), KEY)
    state = optimiser.init(PARAMS)
    for _ in range(2):
        sums = plan.gradients(loss, PARAMS, PrivateBatch(jnp.asarray(X[:4]), jnp.ones(4, bool)))
        units, state = optimiser.update(sums, state, PARAMS)
        assert (
            tuple(state.key.tolist()) != drawn[-1][1]
        )  # The noise of a step cannot be computed from the state after it.
    (first, key), (second, other) = drawn
    (factor,) = set(flat(units).tolist())
    assert first == second == plan.noise
    assert key != other
    deviation = factor * math.sqrt(float(first.certificate.worst_variance)) * plan.expected_batch_size
    assert deviation == pytest.approx(4.0 * 0.5, rel=0.01)


@pytest.mark.parametrize("strategy", [None, ROOT])
def test_a_plan_accounts_for_its_batches(monkeypatch, strategy):
    """For their overflow, and for the uses of a row; the search for the noise multiplier is left out."""
    asked = {}

    def found(run, **given):
        asked.update(given)
        if strategy:
            return CorrelatedRun(run, given["steps"], given["separation"], None, TrainingRun(4.0, 1.0, 1))
        return dataclasses.replace(run, noise_multiplier=4.0)

    for name in ("noise_multiplier_for", "correlated_run"):
        monkeypatch.setattr(f"dpkernels.training.plan.{name}", found)
    given = {"epsilon": 3.0, "delta": 1e-6, "examples": 5000, "batch_size": 250, "steps": 50, "clip": 1.0}
    plan = private_training(**given, parameters=8, neighbours="replace", strategy=strategy)
    assert plan.overflow > 0
    assert (asked["epsilon"], asked["delta"], asked["dimensions"]) == (3.0, 1e-6, 8)
    if strategy:
        assert plan.overflow == 20 * poisson_overflow(5000, 1 / 20 + 2.0**-32, plan.capacity) == asked["slack"]
        assert (asked["separation"], asked["steps"], asked["neighbours"]) == (20, 50, "replace")
    else:
        assert plan.overflow == poisson_overflow(5000, 0.05, plan.capacity)
        assert plan.run == TrainingRun(4.0, 0.05, 50, "replace", plan.overflow)


def test_a_state_of_another_plan_is_refused():
    """Before anything is released, with the setting that differs."""
    plan = planned()
    state = plan.optimizer(optax.identity(), KEY).init(PARAMS)
    updates = jax.vmap(jax.grad(loss), (None, 0))(PARAMS, jnp.asarray(X[:4]))
    others = {
        "state: is for l2_norm_clip 1, but this update for 2": planned(clip=2.0),
        "state: is for noise_multiplier 4, but this update for 2": planned(run=TrainingRun(2.0, 0.25, 3)),
    }
    for message, other in others.items():
        with pytest.raises(ValueError, match=message):
            other.optimizer(optax.identity(), KEY).update(updates, state, PARAMS, mask=True)
    for key, run in ((dpk.key_from_bytes(bytes(32)), None), (KEY, "second")):
        with pytest.raises(ValueError, match="state: belongs to a transformation with another key"):
            plan.optimizer(optax.identity(), key, run=run).update(updates, state, PARAMS, mask=True)


def test_sampling_is_what_the_batches_do():
    """Rows are in a batch at the plan's rate: of 2,000 rows between 390 and 610, outside with probability 1e-7."""
    plan = planned(run=TrainingRun(4.0, 0.25, 2), examples=2000, capacity=2001)
    (batch, second), (named, _), (resumed,) = plan.batches(KEY), plan.batches(KEY, run="x"), plan.batches(KEY, start=1)
    assert 390 <= int(batch.mask.sum()) <= 610
    # Steps and runs with the same samples would cost more than independent ones. 375 rows of one are not in the other.
    rows, *others = (set(each.examples[each.mask].tolist()) for each in (batch, second, named))
    assert all(270 < len(rows - each) < 480 for each in others)
    # A run that goes on has the samples of its own steps. They have no key of the optimiser's.
    assert (resumed.examples == second.examples).all()
    keys = [jax.random.fold_in(KEY, number) for number in range(2)]
    assert all((poisson_batch(key, 2000, 0.25, 2001).indices != batch.examples).any() for key in keys)
    assert plan.run.guarantee.terms[0].sampling_rate == 0.25


def test_a_state_that_is_not_valid_gives_its_optimiser_nothing(without_noise):
    """In a program, where it cannot be refused: moments would hold a release with less noise, or one too many."""
    plan = planned()
    updates = plan.gradients(loss, PARAMS, PrivateBatch(jnp.asarray(X[:4]), jnp.ones(4, bool)))
    optimiser, other = (plan.optimizer(optax.trace(0.9), KEY, run=run) for run in (None, "second"))
    state, update = optimiser.init(PARAMS), jax.jit(optimiser.update)
    wider = planned(clip=2.0).optimizer(optax.trace(0.9), KEY).init(PARAMS)
    last = state._replace(step=jnp.int32(2))
    for given in (state, last, state._replace(step=jnp.int32(3)), other.init(PARAMS), wider):
        moves, after = update(updates, given)
        is_valid = given is state or given is last
        assert np.isfinite(flat(moves)).all() == is_valid
        assert np.isnan(flat(after.inner)).all() != is_valid


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


def test_a_plan_is_restored_from_its_state():
    """By way of JSON; one whose cost is not what it says is refused."""
    plan = planned(capacity=41, run=TrainingRun(4.0, 0.25, 3, slack=1e-20))
    again = TrainingPlan.from_state(json.loads(json.dumps(plan.state)))
    assert again == plan
    assert again.noise == plan.noise
    faults = {
        "a slack of 1e-20; the distance": {"capacity": 15},
        # That of the noise alone: batches of all rows do not overflow.
        "a slack of 1e-40; the distance": {"run": plan.state["run"] | {"slack": 1e-40}},
        "epsilon .* more than its budget": {"budget": (0.1, 1e-5)},
    }
    for message, fault in faults.items():
        with pytest.raises(ValueError, match=f"state: .*{message}"):
            TrainingPlan.from_state(plan.state | fault)


def test_bad_budgets_are_errors():
    good = {"epsilon": 1.0, "delta": 1e-5, "examples": 40, "batch_size": 10, "steps": 3, "parameters": 8, "clip": 1.0}
    for name, value in (("epsilon", 0.0), ("delta", 1.0), ("batch_size", 41), ("clip", 0.0), ("parameters", 0)):
        with pytest.raises(ValueError, match=f"{name}: "):
            private_training(**good | {name: value})
    for epochs in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="epochs: "):
            private_training(**good | {"steps": None, "epochs": epochs})
    for more in ({"epochs": 1.0}, {"params": PARAMS}, {"steps": None}, {"parameters": None}):
        with pytest.raises(ValueError, match="give one of the two"):
            private_training(**good | more)


@pytest.mark.lengthy
@pytest.mark.parametrize("neighbours", [pytest.param("add_remove", marks=pytest.mark.thorough), "replace"])
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


@pytest.mark.lengthy
def test_a_budget_that_cannot_carry_the_parameters_is_refused():
    """In words, and not by an infinite epsilon."""
    budget = {"delta": 1e-8, "examples": 1000, "batch_size": 1000, "steps": 10, "clip": 1.0}
    with pytest.raises(ValueError, match=r"params: have 100000000 values; with noise multiplier .* they may have"):
        private_training(epsilon=0.5, parameters=10**8, **budget)
    assert 7.9 < private_training(epsilon=8.0, parameters=10**7, **budget).epsilon <= 8.0
    with pytest.raises(ValueError, match=r"batch_size: 1000001 examples of .* may overflow 32-bit integers"):
        private_training(epsilon=20.0, parameters=8, **budget | {"examples": 10**6, "batch_size": 10**6})


@pytest.mark.lengthy
def test_a_plan_with_a_strategy_uses_a_row_once_an_epoch():
    """In the same batch of all epochs, also where a run goes on, so that uses are an epoch apart."""
    plan = correlated(capacity=41)
    batches = [set(batch.examples[batch.mask].tolist()) for batch in plan.batches(KEY)]
    assert len(batches) == 10
    assert sorted(row for batch in batches[:4] for row in batch) == list(range(40))
    assert batches[4:8] == batches[:4]
    assert batches[8:] == batches[:2]
    resumed = [set(batch.examples[batch.mask].tolist()) for batch in plan.batches(KEY, start=5)]
    assert resumed == batches[5:]
    (batch, *_) = plan.batches(KEY, X)
    assert set(map(tuple, np.asarray(batch.examples[batch.mask]))) == set(map(tuple, X[sorted(batches[0])]))


def test_the_optimiser_of_a_plan_with_a_strategy_has_it():
    """Its state holds the noise of two steps, its settings are those of the plan, and it ends with the plan."""
    plan, other = correlated(), correlated(ToeplitzStrategy.square_root(4))
    optimiser = plan.optimizer(optax.identity(), KEY)
    state = optimiser.init(PARAMS)
    assert len(state.noise) == 2
    sums = plan.gradients(loss, PARAMS, PrivateBatch(jnp.asarray(X[:4]), jnp.ones(4, bool)))
    assert sums.noise.noise_multiplier == plan.noise_multiplier >= 2.0 * ROOT.sensitivity(10, 4)
    with pytest.raises(ValueError, match="state: has made 10 releases"):
        optimiser.update(sums, state._replace(step=jnp.int32(10)), PARAMS)
    with pytest.raises(TypeError, match="state: noise has the form"):
        other.optimizer(optax.identity(), KEY).update(
            other.gradients(loss, PARAMS, PrivateBatch(jnp.asarray(X[:4]), jnp.ones(4, bool))), state, PARAMS
        )


def test_a_plan_with_a_strategy_is_restored_from_its_state():
    """What would cost more than is accounted is refused: fewer uses, sampling, batches that overflow, a small slack."""
    plan = correlated()
    state = json.loads(json.dumps(plan.state))
    assert TrainingPlan.from_state(state) == plan
    run, once = state["run"], state["run"]["run"]
    faults = {
        "run: its participations are 1": {"run": run | {"participations": 1}},
        "no amplification by sampling is proven": {"run": run | {"run": once | {"sampling_rate": 0.25}}},
        "run: has 10 steps of sampling rate 1": {"run": run | {"run": once | {"steps": 10}}},
        "state: has a slack of 1e-09; the distance": {"capacity": 12},
        "state: has a slack of 1e-40; the distance": {"run": run | {"run": once | {"slack": 1e-40}}},
        "state: .* more than its budget": {"budget": (0.1, 1e-5)},
        "bands": {"run": run | {"strategy": {"bands": [16, 20]}}},
    }
    for message, fault in faults.items():
        with pytest.raises(ValueError, match=message):
            TrainingPlan.from_state(state | fault)


def test_the_distances_of_a_plan_with_a_strategy_are_those_of_all_steps():
    plan = correlated(capacity=15)
    accounted, overflow, noise = plan._accounted
    assert accounted.steps == 1
    assert overflow == 4 * poisson_overflow(40, 0.25 + 2.0**-32, 15) == plan.overflow
    assert noise == 10 * plan.noise.total_variation
    report = plan.report()
    for word in (
        "bands (16, 8, 6)",
        "no amplification by sampling is claimed",
        f"at most {overflow * (1 + math.exp(8)):.3g}",
    ):
        assert word in report


@pytest.mark.lengthy
@pytest.mark.parametrize("neighbours", ["add_remove", pytest.param("replace", marks=pytest.mark.thorough)])
def test_a_plan_with_a_strategy_costs_at_most_its_budget_by_another_path(neighbours):
    """From the certificate and the whole matrix of the strategy; its noise is the least one."""
    options = {"epsilon": 3.0, "delta": 1e-6, "examples": 5000, "batch_size": 333, "params": PARAMS, "clip": 0.7}
    plan = private_training(**options, epochs=3, neighbours=neighbours, strategy=ROOT)
    assert plan.steps == 45
    assert plan.expected_batch_size == 5000 / 15
    columns = ROOT.matrix(45)[:, ::15].sum(1)
    certificate, changed = plan.noise.certificate, 2 if neighbours == "replace" else 1
    mu = changed * math.sqrt(columns @ columns) * float(certificate.shift) / certificate.claim.sigma
    slack = (45 * plan.noise.total_variation + plan.overflow) * (1 + math.exp(3.0))
    assert 15 * poisson_overflow(5000, 1 / 15, plan.capacity) <= plan.overflow <= 1e-9
    assert gaussian_delta(mu, 3.0) + slack <= 1e-6 * (1 + 1e-9)
    assert gaussian_delta(mu * (1 + 1e-4), 3.0) + slack > 1e-6
    assert 2.999 < plan.epsilon <= 3.0
    relation = NeighboringRelation.REPLACE_ONE if neighbours == "replace" else NeighboringRelation.ADD_OR_REMOVE_ONE
    assert pld.PLDAccountant(relation).compose(plan.to_dp_event()).get_epsilon(1e-6) == pytest.approx(3.0, rel=2e-3)


def test_what_a_strategy_cannot_have_is_refused():
    options = {"epsilon": 3.0, "delta": 1e-6, "parameters": 8, "clip": 0.7, "epochs": 1}
    with pytest.raises(TypeError, match="strategy: is a tuple; it must be a ToeplitzStrategy"):
        private_training(**options, examples=400, batch_size=40, strategy=(2, 1))
    with pytest.raises(ValueError, match=r"examples / batch_size, rounded: 100000 is not in 1..65536"):
        private_training(**options, examples=100_000, batch_size=1, strategy=ROOT)
    with pytest.raises(ValueError, match="rate: "):
        poisson_overflow(10, 1 + 2.0**-32, 5)


def random_plans(count):
    """Whole batches, and every other one with a strategy: delta is known in closed form (Balle and Wang 2018)."""
    random = np.random.default_rng(3)
    for number in range(count):
        epsilon, delta = math.exp(random.uniform(-1, 2)), 10.0 ** random.uniform(-9, -4)
        steps, parameters = int(random.integers(1, 40)), int(10 ** random.uniform(0, 4))
        examples = int(random.integers(10, 1000))
        strategy = ToeplitzStrategy.square_root(int(random.integers(1, 5)), unit=2) if number % 2 else None
        yield private_training(
            epsilon=epsilon,
            delta=delta,
            examples=examples,
            batch_size=examples / int(random.integers(1, 6)) if strategy else examples,
            steps=steps,
            parameters=min(parameters, 300) if strategy else parameters,
            clip=1.0,
            strategy=strategy,
        )


@pytest.mark.thorough
@pytest.mark.parametrize("count", [100])
def test_what_was_run_costs_at_most_the_budget_by_another_path(count):
    """From the certificate of the noise: its standard deviation over the shift of neighbours, and its distance."""
    for plan in itertools.islice(random_plans(count), count):
        (epsilon, delta), certificate = plan.budget, plan.noise.certificate
        length, batches = math.sqrt(plan.steps), plan.steps
        if plan.strategy:
            per_epoch = round(plan.examples / plan.expected_batch_size)
            columns = plan.strategy.matrix(plan.steps)[:, ::per_epoch].sum(1)
            length, batches = math.sqrt(columns @ columns), 1
        mu = length * float(certificate.shift) / certificate.claim.sigma
        slack = (plan.steps * plan.noise.total_variation + batches * plan.overflow) * (1 + math.exp(epsilon))
        assert gaussian_delta(mu, epsilon) + slack <= delta * (1 + 1e-9)
        assert gaussian_delta(mu * (1 + 1e-3), epsilon) + slack > delta or plan.noise_multiplier == 0.25
