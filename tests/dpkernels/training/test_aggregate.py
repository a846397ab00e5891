"""Private aggregation for optax: sensitivity, noise, streams, devices, micro-batches and the accounting of runs."""

from __future__ import annotations

import dataclasses
import io
import itertools
import math
import os
import pickle
import subprocess
import sys
import tempfile
from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P
from scipy import stats

import dpkernels as dpk
from dpkernels.exact.certificate import exp_lower_bound
from dpkernels.exact.noise.gaussian_cells import FIXED_BITS, cell_masses
from dpkernels.exact.sampler import LOWER_HALF_STREAM, NOISE_STREAM, UPPER_HALF_STREAM
from dpkernels.random.chacha import SPLIT_STREAM, stream_words
from dpkernels.training import (
    PrivateAggregateState,
    PrivateNoise,
    TrainingRun,
    best_training_run,
    clipped_sums,
    clipping,
    noise_multiplier_for,
    poisson_batch,
    poisson_capacity,
    poisson_overflow,
    private_aggregate,
    renew_key,
)
from dpkernels.training.aggregate import _RUNS, _is_matching, _is_one_key
from dpkernels.training.noise import exact_noise

KEY = dpk.key_from_bytes(bytes(range(32)))
PARAMS = {"w": jnp.zeros((30, 40)), "b": (jnp.zeros(()), jnp.zeros(7))}
SIZE = 30 * 40 + 1 + 7


def gradients(rows, seed=0, scale=1.0):
    """Per-example gradients whose norms are about the scale."""
    random = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: jnp.asarray(random.normal(size=(rows, *leaf.shape)) * scale / math.sqrt(SIZE), jnp.float32), PARAMS
    )


def flat(tree):
    return np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in jax.tree.leaves(tree)])


def sums_of(updates, noise, mask=None):
    return flat(clipped_sums(updates, True if mask is None else mask, noise).sums)


def every_row(aggregate):
    """The compiled update of batches without padded rows."""
    return jax.jit(lambda updates, state: aggregate.update(updates, state, mask=True))


@pytest.fixture(scope="module")
def noise():
    return PrivateNoise.certified(2.0, 1.5, SIZE)


HARD = {
    "random": lambda random: random.normal(size=SIZE),
    "halves": lambda random: random.choice([-0.5, 0.5, 1.5], SIZE) * 2.0 / 3000,
    "one": lambda random: np.eye(SIZE)[3] * 7.0,
    "tiny": lambda random: random.normal(size=SIZE) * 1e-30,
    "large": lambda random: random.normal(size=SIZE) * 1e25,
    "all ways": lambda random: random.normal(size=SIZE) * 10.0 ** random.uniform(-20, 10, SIZE),
}


@pytest.mark.lengthy
@pytest.mark.quick("float32-all*")
@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_no_example_is_longer_than_the_sensitivity(name, dtype, noise):
    """In integers, so without any rounding."""
    random = np.random.default_rng(5)
    for _ in range(5):
        with jax.enable_x64(dtype is np.float64), np.errstate(over="ignore"):
            row = jnp.asarray(HARD[name](random).astype(dtype))
            whole = {"w": row[None, :1200].reshape(1, 30, 40), "b": (row[None, 1200], row[None, 1201:])}
            units = sums_of(whole, noise)
        assert sum(int(k) ** 2 for k in units) <= noise.sensitivity**2


@pytest.mark.lengthy
def test_rounding_of_the_worst_kind_is_inside_the_sensitivity(noise):
    """Every coordinate half a unit from the next: its norm grows by nearly half the root of the dimension."""
    u = noise.unit
    k = math.floor((noise.sensitivity - math.sqrt(SIZE) / 2) / math.sqrt(SIZE)) - 0.5
    row = jnp.full(SIZE, (k + 1e-4) * u, jnp.float32)
    units = sums_of({"w": row[None, :1200].reshape(1, 30, 40), "b": (row[None, 1200], row[None, 1201:])}, noise)
    assert set(units) == {k + 0.5}
    assert (units**2).sum() <= noise.sensitivity**2


def test_the_margin_covers_float32():
    """One parameter, and a sensitivity next to a whole number: without the margin a product is rounded up to it."""
    one = PrivateNoise.certified(1.0, 1.0, 1)
    whole = math.ceil(one.sensitivity)
    assert whole - one.sensitivity < 1e-11
    rows = np.random.default_rng(0).uniform(1.0, 100.0, 400).astype(np.float32)
    scaled = (rows * ((one.sensitivity - 0.5) / rows.astype(float)).astype(np.float32)).astype(np.float32)
    assert (np.round(scaled) == whole).mean() > 0.5
    alone = jax.jit(jax.vmap(lambda row: clipped_sums({"w": row[None, None]}, True, one).sums["w"][0]))
    assert (np.asarray(alone(rows)) == whole - 1).all()


@pytest.mark.parametrize("is_local", [True, False])
def test_norms_are_sums_in_float64(is_local, monkeypatch):
    """Of every value once, on one device and on several; a sum in float32 would be off by more than the margin.

    The numbers of values are those where the lanes of a sum end, or a rest begins.
    """
    monkeypatch.setattr(clipping, "_is_local", lambda: is_local)
    for parts, size in ((1, 1), (1, 1023), (1, 1024), (1, 1039), (2, 1039), (1, 1 << 18)):
        rows = np.random.default_rng(size).uniform(0.5, 1.0, (parts, 6, size)).astype(np.float32)
        with jax.enable_x64(True):
            norms = jax.jit(lambda rows: clipping._norms([rows, 2 * rows], jnp.int32(2)))(rows)
        exact = 5 * np.square(rows[:, 2:].astype(float)).sum(2)
        assert np.abs(np.asarray(norms).T / np.sqrt(exact) - 1).max() < 2.0**-40


def test_short_gradients_are_rounded_and_long_ones_are_clipped(noise):
    short, long = gradients(1, scale=0.5), gradients(1, scale=50.0)
    assert np.abs(sums_of(short, noise) * noise.unit - flat(short)).max() <= noise.unit / 2 * (1 + 1e-5)
    expected = flat(long) * 2.0 / np.linalg.norm(flat(long))
    assert np.abs(sums_of(long, noise) * noise.unit - expected).max() <= noise.unit * (1 / 2 + 1e-2)


@pytest.mark.quick("nan", "3e+38")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_what_is_not_finite_contributes_nothing(bad, noise):
    updates = gradients(3)
    spoilt = {"w": updates["w"].at[1, 2, 3].set(bad), "b": updates["b"]}
    assert (sums_of(spoilt, noise) == sums_of(updates, noise, jnp.array([True, False, True]))).all()


@pytest.mark.lengthy
def test_norms_that_the_caller_knows_are_used(noise):
    """Larger ones clip more, and values that a norm rules out count as 0."""
    updates = gradients(2, scale=3.0)
    norms = jnp.asarray([np.linalg.norm(flat(jax.tree.map(lambda leaf, i=i: leaf[i], updates))) for i in range(2)])
    known = flat(clipped_sums(updates, True, noise, norms * (1 + 1e-6)).sums)
    assert np.abs(known - sums_of(updates, noise)).max() <= 1
    halved = flat(clipped_sums(updates, True, noise, 2 * norms).sums)
    assert np.linalg.norm(halved) == pytest.approx(np.linalg.norm(known) / 2, rel=0.02)
    spoilt = {"w": updates["w"].at[0, 0, :3].set(jnp.array([jnp.nan, jnp.inf, 1e9])), "b": updates["b"]}
    zeroed = {"w": updates["w"].at[0, 0, :3].set(0.0), "b": updates["b"]}
    assert (
        flat(clipped_sums(spoilt, True, noise, norms).sums) == flat(clipped_sums(zeroed, True, noise, norms).sums)
    ).all()
    for bad in (norms[:1], norms.astype(int), norms[:, None]):
        with pytest.raises(ValueError, match="norms: are"):
            clipped_sums(updates, True, noise, bad)


def test_small_leaves_are_summed_together_as_they_are_one_by_one(noise, monkeypatch):
    """Of two types, also by vmap, and with known norms; rows that are not a multiple of those added together."""
    count = 6
    updates, mask = gradients(count, scale=3.0), jnp.arange(count) != 2
    updates["b"] = (updates["b"][0].astype(jnp.float16), updates["b"][1])
    norms = jnp.linspace(0.05, 4.0, count)

    def sums():
        one, known = (clipped_sums(updates, mask, noise, given).sums for given in (None, norms))
        pair = jax.tree.map(lambda leaf: jnp.stack([0 * leaf, leaf]), updates)
        return one, known, jax.vmap(lambda rows: clipped_sums(rows, mask, noise).sums)(pair)

    together = jax.jit(sums)()
    monkeypatch.setattr(clipping, "_MAX_JOINED_VALUES", 0)
    alone = jax.jit(lambda: sums())()
    assert jax.tree.map(lambda a, b: bool((a == b).all()), together, alone) == jax.tree.map(lambda _: True, alone)
    single = jax.jit(lambda row: clipped_sums(row, True, noise).sums)
    each = [flat(single(jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], updates))) for i in range(count) if i != 2]
    assert (flat(alone[0]) == sum(each)).all()
    # With known norms: of the first row most values are above its own, and count as 0.
    most, expected = (1 - 2.0**-20) * (noise.sensitivity - math.sqrt(SIZE) / 2), 0.0
    for i in (i for i in range(count) if i != 2):
        row, norm = flat(jax.tree.map(lambda leaf, i=i: leaf[i], updates)).astype(np.float32), float(norms[i])
        scale = np.float32(min(1 / noise.unit, most / max(norm, noise.l2_norm_clip / 2)))
        expected = expected + np.round(np.where(np.abs(row) <= norms[i], row, np.float32(0)) * scale)
    assert (flat(alone[1]) == expected).all()


def test_a_mask_leaves_rows_out(noise):
    updates = gradients(5)
    mask = jnp.array([True, False, True, True, False])
    kept = jax.tree.map(lambda leaf: leaf[np.flatnonzero(mask)], updates)
    assert (sums_of(updates, noise, mask) == sums_of(kept, noise)).all()


def first_state(aggregate, params):
    """The state of the first run of a process."""
    _RUNS.clear()
    return aggregate.init(params)


def run(aggregate, batches, params=PARAMS):
    state, made, update = first_state(aggregate, params), [], every_row(aggregate)
    for batch in batches:
        out, state = update(batch, state)
        made.append(out)
    return made, state


def noise_of(multiplier, steps, rows=4):
    """The noise of each step, in units, from updates without their sums."""
    aggregate, described = private_aggregate(2.0, multiplier, KEY), PrivateNoise.certified(2.0, multiplier, SIZE)
    batches = [gradients(rows, seed) for seed in range(steps)]
    made, _ = run(aggregate, batches)
    sums = jax.jit(lambda batch: clipped_sums(batch, True, described).sums)
    return np.array(
        [flat(out) * rows / described.unit - flat(sums(b)) for out, b in zip(made, batches, strict=True)]
    ), described


@pytest.mark.lengthy
def test_the_noise_is_the_one_of_the_certificate():
    """Its mean, variance and fourth moment; the false-alarm rate is below 1e-8 for each, six standard errors."""
    drawn, described = noise_of(1.5, 40)
    n, sigma = drawn.size, math.sqrt(float(described.certificate.worst_variance))
    assert sigma == pytest.approx(described.sensitivity * 1.5, rel=1e-6)
    scaled = drawn.ravel() / sigma
    assert abs(scaled.mean()) <= 6 / math.sqrt(n)
    assert abs((scaled**2).mean() - 1) <= 6 * math.sqrt(2 / n)
    assert abs((scaled**4).mean() - 3) <= 6 * math.sqrt(96 / n)
    # A scale 5 % off would be seen.
    assert abs(((1.05 * scaled) ** 2).mean() - 1) > 6 * math.sqrt(2 / n)


def correlated(drawn):
    """Whether two steps, or two parts of a step, have correlations beyond six standard errors."""
    n = drawn.shape[1] // 2
    parts = np.concatenate([drawn[:, :n], drawn[:, n : 2 * n]])
    found = np.corrcoef(parts) - np.eye(len(parts))
    return np.abs(found).max() > 6.5 / math.sqrt(n)


@pytest.mark.lengthy
def test_integers_on_a_lattice_are_released_inside_a_program_as_outside():
    form, _ = exact_noise(1.5, SIZE)
    x = np.random.default_rng(1).integers(-(1 << 20), 1 << 20, SIZE).astype(np.int32)
    with jax.enable_x64(True):
        traced = jax.jit(lambda key, x: dpk.perturb_traced(key, form, x))(KEY, x)
        assert (np.asarray(traced) == dpk.perturb(x.astype(float), form, key=KEY)).all()
        for bad in (x.astype(float), x.astype(np.int64), x.astype(np.uint32)):
            with pytest.raises(ValueError, match="lattice"):
                dpk.perturb_traced(KEY, form, jnp.asarray(bad))
        coarse = dpk.exact_sampler(
            dpk.on_vectors(dpk.laplace(epsilon=1.0, sensitivity=4.0), dimensions=2, norm="l1", lattice=2.0)
        )
        with pytest.raises(ValueError, match="lattice 2"):
            dpk.perturb_traced(KEY, coarse, jnp.array([3, 5], jnp.int32))
    with pytest.raises(ValueError, match="64-bit"):
        dpk.perturb_traced(KEY, form, x)


@pytest.mark.lengthy
def test_steps_and_leaves_have_noise_of_their_own():
    drawn, _ = noise_of(1.5, 12)
    assert not correlated(drawn)


@pytest.mark.lengthy
def test_a_planted_repeat_of_a_stream_is_caught(monkeypatch):
    split = jax.random.split
    monkeypatch.setattr(jax.random, "split", lambda key: (split(key)[0], key))  # The next step has the same key.
    drawn, _ = noise_of(1.25, 3)
    assert correlated(drawn)


def test_the_functions_do_not_print_the_key():
    """A loop that logs its optimiser would disclose the noise: the repr of a key in JAX contains its words."""
    words = jax.random.key_data(KEY).tolist()
    text = repr(private_aggregate(1.0, 1.5, KEY))
    assert not any(str(word) in text for word in words)
    assert str(words[0]) in repr(KEY)


def test_the_state_is_a_pytree_that_can_be_restored():
    aggregate = private_aggregate(1.0, 1.5, KEY)
    update, batches = every_row(aggregate), [gradients(4, seed) for seed in range(4)]
    state = aggregate.init(PARAMS)
    for batch in batches[:2]:
        _, state = update(batch, state)
    leaves, tree = jax.tree.flatten(state)
    saved = pickle.dumps([np.asarray(leaf) for leaf in leaves])
    restored = jax.tree.unflatten(tree, [jnp.asarray(leaf) for leaf in pickle.loads(saved)])
    assert int(restored.step) == 2
    for batch in batches[2:]:
        one, state = update(batch, state)
        two, restored = update(batch, restored)
        assert (flat(one) == flat(two)).all()
    other = dpk.key_from_bytes(bytes(32))
    renewed, _ = every_row(private_aggregate(1.0, 1.5, other))(batches[0], renew_key(restored, other))
    assert np.mean(flat(renewed) == flat(update(batches[0], restored)[0])) < 0.05


SMALL = {"w": jnp.zeros(3)}
BATCH = {"w": jnp.eye(3)}


def copied(state):
    """A copy as checkpoints make it: arrays by way of a file."""
    return jax.tree.map(jnp.asarray, pickle.loads(pickle.dumps(jax.tree.map(np.asarray, state))))


OTHER = dpk.key_from_bytes(bytes(32))
ACCUMULATED = {"inner": optax.identity(), "expected_batch_size": 3.0}
OTHERS = {
    "clip norm": lambda: private_aggregate(2.0, 5.0, KEY),
    "less noise": lambda: private_aggregate(1.0, 0.5, KEY),
    "key": lambda: private_aggregate(1.0, 5.0, OTHER),
    "micro-batches": lambda: private_aggregate(
        1.0, 5.0, KEY, micro_batches=2, inner=optax.identity(), expected_batch_size=3.0
    ),
    "name of the run": lambda: private_aggregate(1.0, 5.0, KEY, run="second"),
}


@pytest.mark.lengthy
@pytest.mark.quick("less noise", "key")
@pytest.mark.parametrize("other", OTHERS)
def test_a_state_of_another_transformation_is_refused(other):
    """Not only as a whole, by what is static, but by its arrays alone: a checkpoint has nothing else."""
    aggregate, other = private_aggregate(1.0, 5.0, KEY), OTHERS[other]()
    pickled = pickle.loads(pickle.dumps(other.init(SMALL)))
    template = aggregate.init(SMALL)
    arrays = pickled._replace(sums=template.sums)
    for state in (pickled, arrays):
        with pytest.raises((ValueError, TypeError), match="state: "):
            aggregate.update(BATCH, state, mask=True)
    update, following = every_row(aggregate)(BATCH, arrays)
    assert np.isnan(flat(update)).all()
    assert np.isnan(flat(every_row(aggregate)(BATCH, following)[0])).all()
    assert np.isfinite(flat(every_row(aggregate)(BATCH, copied(template))[0])).all()


def test_a_program_finds_a_state_of_another_transformation():
    """By the function that the compiled update calls, where the words of a state are not known."""
    own = private_aggregate(1.0, 5.0, KEY).init(SMALL)
    owner, settings = np.asarray(own.owner), np.asarray(own.settings)
    is_own = jax.jit(lambda state: _is_matching(state, owner, settings, {"sums": (), "noise": ()}))
    assert is_own(own)
    for name in ("clip norm", "less noise", "key", "name of the run"):
        assert not is_own(OTHERS[name]().init(SMALL))


@pytest.mark.lengthy
def test_sums_of_another_sensitivity_are_not_released():
    """In the middle of micro-batches, where a state holds true sums in the units of its own settings."""
    wide, narrow = (
        private_aggregate(1.0, z, KEY, micro_batches=2, inner=optax.identity(), expected_batch_size=3.0)
        for z in (0.5, 5.0)
    )
    _, half = every_row(wide)(BATCH, wide.init(SMALL))
    assert flat(half.sums).any()
    assert np.isnan(flat(every_row(narrow)(BATCH, half)[0])).all()


ATTACKS = {
    "a key of zeros": lambda state: jax.tree.map(jnp.zeros_like, state),
    "a mean of states": lambda state: jax.tree.map(lambda leaf: leaf // 2, state),
    "another type": lambda state: jax.tree.map(lambda leaf: leaf.astype(jnp.float32), state),
    "a narrow type": lambda state: jax.tree.map(lambda leaf: leaf.astype(jnp.uint16), state),
    "a stack of states": lambda state: jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), state),
    "plain numbers": lambda state: state._replace(step=0),
    "sums": lambda state: state._replace(sums=(jnp.zeros(3, jnp.int32),)),
    "a dictionary": lambda state: state._asdict(),
    "optax's own": lambda state: optax.EmptyState(),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_is_no_state_is_refused(attack):
    aggregate = private_aggregate(1.0, 5.0, KEY)
    state = ATTACKS[attack](aggregate.init(SMALL))
    with pytest.raises((ValueError, TypeError), match="state: "):
        aggregate.update(BATCH, state, mask=True)


def test_a_pickle_of_another_version_is_refused():
    """Versions before had other fields, or no named tuple."""
    state = private_aggregate(1.0, 5.0, KEY).init(SMALL)
    for arguments in ((), tuple(state)[:-2], (*state, 1)):
        with pytest.raises(TypeError, match="argument"):
            PrivateAggregateState.__new__(PrivateAggregateState, *arguments)
    with pytest.raises(TypeError, match="state: settings has the form"):
        private_aggregate(1.0, 5.0, KEY).update(BATCH, state._replace(settings=state.settings[:7]), mask=True)
    # A state of format 4 would go on with other noise than its version had drawn.
    with pytest.raises(ValueError, match="state: is for format 4, but this update for 5"):
        private_aggregate(1.0, 5.0, KEY).update(BATCH, state._replace(settings=state.settings.at[7].set(4)), mask=True)


@pytest.mark.lengthy
def test_a_restored_state_has_the_noise_of_the_transformation_or_none():
    """The standard deviation of 999 values is within 12 % of its own, except with a probability below 1e-6."""
    params, rows = {"w": jnp.zeros(999)}, {"w": jnp.zeros((1, 999))}
    for z in (0.5, 5.0):
        aggregate = private_aggregate(1.0, z, KEY)
        update, _ = every_row(aggregate)(rows, copied(aggregate.init(params)))
        assert abs(flat(update).std() / z - 1) < 0.12


def test_a_mask_is_required():
    """Without one, the padded rows of a Poisson batch would all count as one example."""
    aggregate = private_aggregate(1.0, 5.0, KEY)
    state = aggregate.init(SMALL)
    chain = optax.chain(aggregate, optax.sgd(0.1))
    for update, made in ((aggregate.update, state), (chain.update, chain.init(SMALL))):
        for run in (update, jax.jit(update)):
            with pytest.raises(ValueError, match="mask: is missing"):
                run(BATCH, made)
    batch = poisson_batch(KEY, 3, 0.5, 3)
    for bad in (batch.indices, jnp.ones(3), jnp.ones(2, bool), jnp.array(True), False, 1):
        with pytest.raises(ValueError, match="mask: is"):
            aggregate.update(BATCH, state, mask=bad)
    counted = aggregate.update(BATCH, state, mask=[True, False, True])[0]
    assert (flat(counted) == flat(aggregate.update(BATCH, state, mask=jnp.array([True, False, True]))[0])).all()


@pytest.mark.thorough
def test_a_state_does_not_hold_the_keys_of_the_past():
    aggregate = private_aggregate(1.0, 1.5, KEY)
    state = aggregate.init(PARAMS)
    _, after = every_row(aggregate)(gradients(4), state)
    assert (np.asarray(after.key) != np.asarray(state.key)).any()


@pytest.mark.lengthy
def test_micro_batches_are_one_step_of_the_optimiser():
    """Of its moments and of its schedule: what one batch and a chain give, also in the optimiser's state."""
    whole = [gradients(12, seed) for seed in range(2)]
    parts = [jax.tree.map(lambda leaf, i=i: leaf[4 * i : 4 * i + 4], batch) for batch in whole for i in range(3)]
    adam = optax.adam(optax.linear_schedule(1.0, 0.1, 2))
    moves, state = run(private_aggregate(1.0, 1.5, KEY, inner=adam), whole)
    in_parts, after = run(
        private_aggregate(1.0, 1.5, KEY, micro_batches=3, inner=adam, expected_batch_size=12.0), parts
    )
    assert not any(flat(in_parts[i]).any() for i in (0, 1, 3, 4))
    for one, other in zip(moves, in_parts[2::3], strict=True):
        assert flat(one) == pytest.approx(flat(other), abs=1e-6)
    assert int(after.step) == int(state.step) == 2
    assert [int(count) for count in jax.tree.leaves(after.inner) if count.ndim == 0 and count.dtype == jnp.int32] == [
        2,
        2,
    ]
    assert flat(after.inner) == pytest.approx(flat(state.inner), abs=1e-6)
    assert not flat(after.sums).any()


def test_accumulation_outside_of_the_optimiser_is_refused():
    with pytest.raises(ValueError, match="inner: is missing; with 3 micro-batches"):
        private_aggregate(1.0, 1.5, KEY, micro_batches=3)
    with pytest.raises(ValueError, match="expected_batch_size: is missing; 3 micro-batches may differ in size"):
        private_aggregate(1.0, 1.5, KEY, micro_batches=3, inner=optax.identity())
    aggregate = private_aggregate(1.0, 1.5, KEY)
    for optimiser in (aggregate, optax.chain(aggregate, optax.sgd(0.1))):
        with pytest.raises(ValueError, match=r"MultiSteps averages .* use private_aggregate\(..., micro_batches=n"):
            optax.MultiSteps(optimiser, 4).init(SMALL)


@pytest.mark.thorough
def test_it_composes_with_other_transformations():
    optimiser = optax.chain(private_aggregate(1.0, 1.5, KEY, expected_batch_size=3.0), optax.adam(0.1))
    state = optimiser.init(PARAMS)
    update = jax.jit(lambda g, s, mask: optimiser.update(g, s, PARAMS, mask=mask))
    updates, _ = update(gradients(4), state, jnp.array([True, True, False, True]))
    assert np.isfinite(flat(updates)).all()


@pytest.mark.thorough
def test_the_mean_is_over_the_expected_size():
    four, eight = (
        run(private_aggregate(1.0, 1.5, KEY, expected_batch_size=size), [gradients(4)])[0][0] for size in (4.0, 8.0)
    )
    assert flat(four) == pytest.approx(2 * flat(eight), rel=1e-6)
    assert (flat(run(private_aggregate(1.0, 1.5, KEY), [gradients(4)])[0][0]) == flat(four)).all()


DEVICES = f"""
import re, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import jax, numpy as np, optax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from test_aggregate import KEY, PARAMS, _RUNS, flat, gradients, private_aggregate
assert jax.device_count() == 4
batch, mask, order = gradients(8), jnp.arange(8) != 5, np.random.default_rng(0).permutation(8)
whole, along = (private_aggregate(1.0, 1.5, KEY, axis_name=name) for name in (None, ("batch", "model")))
state = whole.init(PARAMS)

def step(transformation):
    return jax.jit(lambda g, s, mask: transformation.update(g, s, mask=mask)[0])

one = flat(step(whole)(batch, state, mask))
shuffled = jax.tree.map(lambda leaf: leaf[order], batch)
assert (flat(step(whole)(shuffled, state, mask[order])) == one).all()
kinds = AxisType.Auto, AxisType.Explicit
for shape, some in (((2, 1), kinds[:1]), ((2, 2), kinds), ((4, 1), kinds[1:])):
    for kind in some:
        devices = jax.devices()[: shape[0] * shape[1]]
        mesh = jax.make_mesh(shape, ("batch", "model"), axis_types=(kind,) * 2, devices=devices)
        put = lambda leaf, *spec: jax.device_put(leaf, NamedSharding(mesh, P(*spec)))
        # Parameters may be split as well.
        parts = "model" if shape[1] > 1 else None
        rows = {{"w": put(batch["w"], "batch", None, parts), "b": put(batch["b"], "batch")}}
        given = rows, put(state), put(mask, "batch")
        compiled = step(whole).lower(*given).compile()
        assert (flat(compiled(*given)) == one).all(), (shape, kind)
        # Rows of gradients stay on their device; integers are added over devices.
        names = "all-gather|all-to-all|collective-permute|all-reduce"
        sent = re.findall(rf"= (.*) ({{names}})(?:-start)?\\(", compiled.as_text())
        assert any(name == "all-reduce" and "s32[30," in types for types, name in sent), sent
        assert not any("f32" in types for types, name in sent), sent
mesh = jax.make_mesh((2, 2), ("batch", "model"))
rows = P(("batch", "model"))
split = jax.shard_map(step(along), mesh=mesh, in_specs=(rows, P(), rows), out_specs=P())
placed = jax.device_put((batch, mask), NamedSharding(mesh, rows))
assert (flat(jax.jit(split)(placed[0], state, placed[1])) == one).all()
alone = jax.make_mesh((1, 1), ("batch", "model"), devices=jax.devices()[:1])
placed = jax.device_put((batch, mask), NamedSharding(alone, rows))
split = jax.shard_map(step(along), mesh=alone, in_specs=(rows, P(), rows), out_specs=P())
assert (flat(jax.jit(split)(placed[0], state, placed[1])) == one).all()
pieces = jax.tree.map(lambda leaf: leaf.reshape(4, 2, *leaf.shape[1:]), (batch, mask))
mapped = jax.pmap(step(private_aggregate(1.0, 1.5, KEY, axis_name="i")), axis_name="i", in_axes=(0, None, 0))
assert (flat(jax.tree.map(lambda leaf: leaf[3], mapped(pieces[0], state, pieces[1]))) == one).all()
states = jax.tree.map(lambda leaf: jnp.stack([leaf] * 4), state)
mapped = jax.pmap(step(private_aggregate(1.0, 1.5, KEY, axis_name="i")), axis_name="i")
assert (flat(jax.tree.map(lambda leaf: leaf[2], mapped(pieces[0], states, pieces[1]))) == one).all()
other = states._replace(key=states.key.at[3, 0].add(1))
assert np.isnan(flat(mapped(pieces[0], other, pieces[1]))).all()
# Micro-batches, with an optimiser whose state is sharded.
put = lambda leaf, *spec: jax.device_put(leaf, NamedSharding(mesh, P(*spec)))
micro = private_aggregate(1.0, 1.5, KEY, micro_batches=2, inner=optax.sgd(1.0, momentum=0.5), expected_batch_size=8.0)
params = {{"w": put(PARAMS["w"], None, "model"), "b": put(PARAMS["b"])}}
given = {{"w": put(batch["w"], "batch", None, "model"), "b": put(batch["b"], "batch")}}
_RUNS.clear()
accumulated = micro.init(params)
update = jax.jit(lambda g, s, mask: micro.update(g, s, params, mask=mask))
for half in (mask & (jnp.arange(8) < 4), mask & (jnp.arange(8) >= 4)):
    moves, accumulated = update(given, accumulated, put(half, "batch"))
assert (flat(moves) == -one).all()
"""


def test_continuations_of_a_checkpoint_have_noise_of_their_own():
    """Also with one new key: the difference of their releases would disclose that of their batches."""
    aggregate = private_aggregate(1.0, 5.0, OTHER)
    state = private_aggregate(1.0, 5.0, KEY).init(SMALL)
    renewed = [renew_key(state, OTHER) for _ in range(3)]
    keys = {tuple(each.key.tolist()) for each in (state, *renewed, aggregate.init(SMALL))}
    assert len(keys) == 5
    assert all((each.owner == aggregate.init(SMALL).owner).all() for each in renewed)
    for inside in (lambda given: renew_key(given, OTHER), lambda _: renew_key(state, OTHER)):
        with pytest.raises(ValueError, match="renew_key: call it outside jit"):
            jax.jit(inside)(state)


@pytest.mark.parametrize("is_tracked", [True, False])
def test_devices_with_states_of_their_own_are_refused(is_tracked):
    """Each would release the same sum with noise of its own. Traced on a mesh without devices."""
    aggregate = private_aggregate(1.0, 5.0, KEY, axis_name="i")
    states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(aggregate.init(SMALL) for _ in range(2)))
    mapped = jax.shard_map(
        lambda rows, states: aggregate.update(rows, jax.tree.map(lambda leaf: leaf[0], states), mask=True)[0],
        mesh=jax.sharding.AbstractMesh((2,), ("i",)),
        in_specs=P("i"),
        out_specs=P("i"),
        check_vma=is_tracked,
    )
    rows = {"w": jnp.ones((4, 3))}
    if is_tracked:
        with pytest.raises(ValueError, match="state: differs along 'i'"):
            jax.eval_shape(mapped, rows, states)
        return
    # JAX does not know it here, so that the program has to find out.
    assert "pmax" in str(jax.make_jaxpr(mapped)(rows, states))


def test_a_program_finds_devices_with_keys_of_their_own(monkeypatch):
    """By the function that it calls where JAX does not know, on an axis of vmap in place of devices."""
    monkeypatch.setattr("dpkernels.training.aggregate.device_axes", lambda: ("i",))
    monkeypatch.setattr("dpkernels.training.aggregate.varying_axes", lambda *_: None)
    state = private_aggregate(1.0, 5.0, KEY).init(SMALL)
    states = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), state)
    has_one = jax.vmap(_is_one_key, axis_name="i")
    assert has_one(states).all()
    for word in (0, 7):
        assert not has_one(states._replace(key=states.key.at[2, word].add(1))).any()


def test_every_init_and_every_named_run_have_keys_of_their_own():
    """Else the difference of two runs would be the difference of their sums. Names are for other processes."""
    named = [private_aggregate(1.0, 5.0, KEY, run=name) for name in (None, None, "a", "b", "run")]
    _RUNS.clear()
    keys = {tuple(aggregate.init(SMALL).key.tolist()) for _ in range(3) for aggregate in named}
    assert len(keys) == 15
    again = first_state(private_aggregate(1.0, 5.0, KEY, run="a"), SMALL)
    assert tuple(again.key.tolist()) in keys  # The name of a restored run is given again.
    assert (again.owner == named[2].init(SMALL).owner).all()
    with pytest.raises(TypeError, match="run: is a int"):
        private_aggregate(1.0, 1.5, KEY, run=1)


def restored_by_flax(state, template):
    serialization = pytest.importorskip("flax.serialization", reason="flax, of the test extra, is not installed")
    return serialization.from_bytes(template, serialization.to_bytes(state))


def restored_by_orbax(state, template):
    checkpoint = pytest.importorskip("orbax.checkpoint", reason="orbax, of the test extra, is not installed")
    with tempfile.TemporaryDirectory() as folder, checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(Path(folder) / "state", state)
        checkpointer.wait_until_finished()
        return checkpointer.restore(Path(folder) / "state", template)


RESTORED = {
    "pickle": lambda state, _: pickle.loads(pickle.dumps(state)),
    "arrays": lambda state, template: jax.tree.unflatten(
        jax.tree.structure(template), [np.asarray(leaf) for leaf in jax.tree.leaves(state)]
    ),
    "numpy file": lambda state, template: jax.tree.unflatten(jax.tree.structure(template), saved_leaves(state)),
    "flax": restored_by_flax,
    "orbax": restored_by_orbax,
}


def saved_leaves(state):
    file = io.BytesIO()
    np.savez(file, *jax.tree.leaves(state))
    file.seek(0)
    return list(np.load(file).values())


@pytest.mark.lengthy
@pytest.mark.parametrize("way", RESTORED)
def test_a_state_is_restored_from_a_checkpoint(way):
    """With the state of the optimiser, in a chain, and into another process's template of the same named run."""
    made, again = (
        optax.chain(
            private_aggregate(1.0, 5.0, KEY, micro_batches=2, inner=optax.adam(0.1), expected_batch_size=3.0, run="a"),
            optax.scale(2.0),
        )
        for _ in range(2)
    )
    state = made.init(SMALL)
    state = (state[0]._replace(step=jnp.int32(7), key=state[0].key + 1), *state[1:])
    restored = RESTORED[way](state, again.init(SMALL))
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(restored), strict=True):
        assert one.dtype == other.dtype
        assert (np.asarray(one) == np.asarray(other)).all()


def test_no_more_releases_than_steps():
    aggregate = private_aggregate(1.0, 5.0, KEY, steps=3)
    state = aggregate.init(SMALL)._replace(step=jnp.int32(3))
    with pytest.raises(ValueError, match="state: has made 3 releases; the budget is for 3"):
        aggregate.update(BATCH, state, mask=True)


@pytest.mark.lengthy
def test_a_compiled_update_beyond_the_last_step_is_nan():
    aggregate = private_aggregate(1.0, 5.0, KEY, steps=2)
    updates, _ = run(aggregate, [BATCH] * 3, SMALL)
    assert [bool(np.isnan(flat(update)).all()) for update in updates] == [False, False, True]


STREAMS = (UPPER_HALF_STREAM, 0), (LOWER_HALF_STREAM, 0), (NOISE_STREAM, 1), (SPLIT_STREAM, 0)


@pytest.mark.lengthy
def test_no_two_steps_share_a_word():
    """All words of noise and of keys of 20 steps of 3 runs are counted; two alike have a probability of 1e-11."""
    aggregate, steps = private_aggregate(1.0, 1.5, KEY), 20
    update, seen = every_row(aggregate), []
    words_of = jax.jit(lambda key, stream, turn: stream_words(key, stream, (0, 0), 64, 32, turn))
    for _ in range(3):
        state = aggregate.init(SMALL)
        for _ in range(steps):
            now, following = jax.random.split(jax.random.wrap_key_data(state.key, impl=jax.random.key_impl(KEY)))
            _, state = update(BATCH, state)
            assert (state.key == jax.random.key_data(following)).all()
            words = (words_of(jax.random.key_data(now), stream, turn) for stream, turn in STREAMS)
            seen.append(np.concatenate([np.asarray(part) for part in words]).view("<u8"))
    words = np.concatenate(seen)
    assert len(words) == 3 * steps * 128
    assert len(set(words.tolist())) == len(words)


@pytest.mark.lengthy
def test_a_killed_run_goes_on_with_the_same_bits():
    """From the checkpoint of its second step, in a transformation that another process made."""
    batches = [gradients(4, seed) for seed in range(4)]
    made = private_aggregate(1.0, 1.5, KEY, run="a", inner=optax.sgd(0.1, momentum=0.9))
    moves, _ = run(made, batches)
    _, state = run(private_aggregate(1.0, 1.5, KEY, run="a", inner=optax.sgd(0.1, momentum=0.9)), batches[:2])
    again = private_aggregate(1.0, 1.5, KEY, run="a", inner=optax.sgd(0.1, momentum=0.9))
    state = RESTORED["pickle"](state, again.init(PARAMS))
    for batch, expected in zip(batches[2:], moves[2:], strict=True):
        move, state = every_row(again)(batch, state)
        assert (flat(move) == flat(expected)).all()


@pytest.mark.lengthy
def test_several_devices_release_the_same_bits():
    """On meshes of either kind of axes, in shard_map and pmap; and no gradient of an example leaves its device."""
    from device_flags import several_devices  # It is not on the path of the program.

    environment = {"XLA_FLAGS": several_devices(4), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", DEVICES], capture_output=True, text=True, env=os.environ | environment, check=False
    )
    assert done.returncode == 0, done.stderr


def test_bad_arguments_are_errors():
    for bad in (0.0, -1.0, math.nan, 1e21):
        with pytest.raises(ValueError, match="l2_norm_clip"):
            private_aggregate(bad, 1.0, KEY)
    for bad in (0.0, 0.1, 2000.0):
        with pytest.raises(ValueError, match="noise_multiplier"):
            private_aggregate(1.0, bad, KEY)
    with pytest.raises(TypeError, match="key"):
        private_aggregate(1.0, 1.0, jax.random.key(0))
    with pytest.raises(TypeError, match="key: traced by JAX"):
        jax.jit(lambda key: private_aggregate(1.0, 1.0, key).init(PARAMS))(KEY)
    with pytest.raises(ValueError, match="params: have 1208 values; with noise multiplier 1000 they may have 268"):
        private_aggregate(1.0, 1000.0, KEY).init(PARAMS)
    aggregate = private_aggregate(1.0, 1.5, KEY)
    state = aggregate.init(PARAMS)
    with pytest.raises(ValueError, match="first axis"):
        aggregate.update(PARAMS, state, mask=True)
    other = jax.tree.map(lambda leaf: leaf[None, None], PARAMS) | {"w": jnp.zeros((1, 3))}
    with pytest.raises(ValueError, match="state: is for parameters 1208, but this update for 11"):
        aggregate.update(other, state, mask=True)
    with pytest.raises(ValueError, match="values an example"):
        clipped_sums(other, True, PrivateNoise.certified(1.0, 1.5, SIZE))
    with pytest.raises(TypeError, match="floats"):
        aggregate.update(jax.tree.map(lambda leaf: leaf[None].astype(int), PARAMS), state, mask=True)
    huge = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1 << 20, *leaf.shape), jnp.float32), PARAMS)
    with pytest.raises(ValueError, match="overflow"):
        jax.eval_shape(every_row(aggregate), huge, state)
    # The examples of all devices count: of 64, each with 2^14.
    along, largest = private_aggregate(1.0, 1.5, KEY, axis_name="i"), 1 << 14
    mapped = jax.vmap(lambda rows: along.update(rows, state, mask=True)[0], axis_name="i")
    one, many = (
        jax.tree.map(lambda leaf, n=n: jax.ShapeDtypeStruct((n, largest, *leaf.shape), jnp.float32), PARAMS)
        for n in (1, 64)
    )
    jax.eval_shape(mapped, one)
    with pytest.raises(ValueError, match=r"updates: 1048576 examples of .* may overflow"):
        jax.eval_shape(mapped, many)


@pytest.mark.lengthy
def test_the_description_has_the_certificate(noise):
    certificate = noise.certificate
    assert certificate.claim.dimensions == SIZE
    assert float(certificate.shift) == noise.sensitivity
    assert certificate.claim.lattice == 1.0
    assert 1 / noise.noise_multiplier >= float(certificate.shift) / certificate.claim.sigma
    assert noise.standard_deviation == pytest.approx(2.0 * 1.5 * (1 + noise.rounding_cost), rel=1e-6)
    assert 0 < noise.total_variation < SIZE * 1e-28
    table, claim = noise.certificate.table, noise.certificate.claim
    first, last = table.ends
    masses, error = cell_masses(Fraction(claim.sigma), max(-first, last) + 1, is_fine=True)
    exact = [Fraction(masses[abs(code)], 1 << FIXED_BITS) for code in range(first, last + 1)]
    weights = table.remainder.combined_weights(table.first, table.outcomes)
    over = sum(max(Fraction(0), Fraction(w, 1 << 128) - p) for w, p in zip(weights, exact, strict=True))
    assert noise.total_variation >= claim.dimensions * (over - 2 * error)


@pytest.mark.lengthy
@pytest.mark.parametrize(("multiplier", "parameters"), [(0.5, 10**5), (1.0, 10**8), (4.0, 10**7)])
def test_the_noise_of_many_parameters_costs_next_to_nothing(multiplier, parameters):
    """Of 10^4 steps at epsilon 8 less than 1e-11 of delta, where 64-bit weights cost more than 1."""
    described = PrivateNoise.certified(1.0, multiplier, parameters)
    assert described.total_variation / parameters <= 1e-22
    assert 1e4 * described.total_variation * (1 + math.exp(8.0)) < 1e-11


@pytest.mark.thorough
def test_poisson_batches():
    """Every row is in a sample at the rate, and rows are independent; six standard errors."""
    n, rate, draws = 200, 0.1, 400
    capacity = poisson_capacity(n, rate)
    assert poisson_overflow(n, rate, capacity) <= 1e-15 < poisson_overflow(n, rate, capacity - 1)
    keys = jax.random.split(KEY, draws)
    batches = jax.jit(jax.vmap(lambda key: poisson_batch(key, n, rate, capacity)))(keys)
    counts = np.asarray(batches.mask).sum(1)
    assert abs(counts.mean() - n * rate) <= 6 * math.sqrt(n * rate * (1 - rate) / draws)
    assert abs(counts.var() / (n * rate * (1 - rate)) - 1) <= 6 * math.sqrt(2 / draws)
    seen = np.bincount(np.asarray(batches.indices)[np.asarray(batches.mask)], minlength=n)
    assert stats.chisquare(seen).pvalue > 1e-8
    for row, mask in zip(np.asarray(batches.indices), np.asarray(batches.mask), strict=True):
        assert len(set(row[mask])) == mask.sum()
    with pytest.raises(TypeError, match="ChaCha20"):
        poisson_batch(jax.random.key(0), 10, 0.5, 10)
    everything = poisson_batch(KEY, 10, 1.0, 10)
    assert everything.mask.all()
    assert not poisson_batch(KEY, 10, 1.0, 9).mask.any()


def binomial_tail(trials, rate, capacity):
    """P(Bin(trials, rate) > capacity), as a fraction."""
    r = Fraction(rate)
    return sum(math.comb(trials, k) * r**k * (1 - r) ** (trials - k) for k in range(capacity + 1, trials + 1))


@pytest.mark.parametrize("examples", [1, 2, 5, 40])
@pytest.mark.parametrize("rate", [0.01, 0.5, 0.9, 1.0])
def test_the_overflow_bounds_that_of_both_neighbours(examples, rate):
    for capacity in range(1, examples + 2):
        bound = Fraction(poisson_overflow(examples, rate, capacity))
        tails = [binomial_tail(n, rate, capacity) for n in (examples - 1, examples, examples + 1)]
        assert max(tails) <= bound <= max(tails) * (1 + Fraction(1, 10**5))
    capacity = poisson_capacity(examples, rate, 1e-9)
    assert 1 <= capacity <= examples + 1
    assert poisson_overflow(examples, rate, capacity) <= 1e-9
    assert capacity == 1 or poisson_overflow(examples, rate, capacity - 1) > 1e-9


def released_sum(y, examples, rate, capacity, sigma):
    """The density of a step on gradients that are all 1: the sum of a batch, or 0 if it overflows, plus noise."""
    k = np.arange(examples + 1)
    weights = stats.binom.pmf(k, examples, rate)
    weights[0] += weights[capacity + 1 :].sum()
    weights[capacity + 1 :] = 0
    return (weights[:, None] * stats.norm.pdf(y, k[:, None], sigma)).sum(0)


@pytest.mark.parametrize(("examples", "rate", "capacity"), [(5, 0.9, 5), (5, 0.9, 6), (3, 0.5, 2), (8, 0.1, 3)])
def test_a_step_whose_batch_may_overflow_has_the_stated_privacy(examples, rate, capacity):
    """By its density under neighbouring data sets, on a grid fine enough for 1e-9; the smaller or the larger first."""
    for sigma in (0.5, 1.0, 2.0):
        run = TrainingRun(sigma, rate, 1, slack=poisson_overflow(examples, rate, capacity))
        y = np.linspace(-9 * sigma, examples + 1 + 9 * sigma, 20_001)
        for neighbours in ((examples, examples + 1), (examples, examples - 1)):
            p, q = (released_sum(y, n, rate, capacity, sigma) for n in neighbours)
            for eps in (0.0, 0.3, 1.0, 3.0, TrainingRun(sigma, rate, 1).epsilon(1e-5)):
                for one, other in ((p, q), (q, p)):
                    delta = np.maximum(one - math.exp(eps) * other, 0).sum() * (y[1] - y[0])
                    assert delta <= run.delta(eps) + 1e-9


def test_the_factor_of_the_slack_is_rounded_up():
    """Also where e^epsilon is no float."""
    for epsilon in np.random.default_rng(0).uniform(0, 40, 200):
        steps = int(math.exp(epsilon / 2))
        assert Fraction(TrainingRun(1.0, 0.1, steps).slack_factor(epsilon)) >= steps * (1 + exp_lower_bound(epsilon))
    assert TrainingRun(1.0, 0.1, 1, slack=1e-310).slack_factor(710.0) == math.inf


@pytest.mark.lengthy
def test_a_run_without_slack_is_its_guarantee():
    made = TrainingRun(1.1, 0.01, 100)
    assert made.epsilon(1e-5) == made.guarantee.epsilon(1e-5)
    assert made.bracket(delta=1e-5) == made.guarantee.bracket(delta=1e-5)
    low, high = made.bracket(epsilon=1.0)
    assert low <= made.delta(1.0) <= high


@pytest.mark.lengthy
@pytest.mark.quick("*1e-11*")
@pytest.mark.parametrize("slack", [1e-16, 1e-11, 1e-9])
@pytest.mark.parametrize("neighbours", ["add_remove", "replace"])
def test_a_run_with_slack_solves_its_equation(slack, neighbours):
    made = TrainingRun(1.1, 0.01, 100, neighbours, slack)
    exact = dataclasses.replace(made, slack=0.0)
    eps = made.epsilon(1e-5)
    assert eps >= exact.epsilon(1e-5)
    assert exact.delta(eps) + 100 * slack * (1 + math.exp(eps)) <= 1e-5 * (1 + 1e-9)
    assert exact.delta(eps - 1e-4) + 100 * slack * (1 + math.exp(eps - 1e-4)) > 1e-5
    low, high = made.bracket(delta=1e-5)
    assert low <= eps <= high + 2e-9
    assert made.delta(1.0) == pytest.approx(exact.delta(1.0) + 100 * slack * (1 + math.e), rel=1e-12)
    assert TrainingRun(1.1, 0.01, 100, slack=1e-7).epsilon(1e-5) == math.inf


@pytest.mark.thorough
def test_noise_and_schedule_for_a_budget():
    multiplier = noise_multiplier_for(TrainingRun(1.0, 0.02, 200), epsilon=1.0, delta=1e-5)
    assert multiplier.bracket(delta=1e-5)[1] <= 1.0
    less = dataclasses.replace(multiplier, noise_multiplier=multiplier.noise_multiplier * 0.999)
    assert less.bracket(delta=1e-5)[1] > 1.0
    best = best_training_run(epsilon=1.0, delta=1e-5, sampling_rates=(0.02, 0.1), steps=(200, 50))
    assert best.bracket(delta=1e-5)[1] <= 1.0
    ours, other = (run.noise_multiplier / (run.sampling_rate * math.sqrt(run.steps)) for run in (best, multiplier))
    assert ours <= other
    with pytest.raises(ValueError, match="at least one value"):
        best_training_run(epsilon=1.0, delta=1e-5, sampling_rates=(), steps=(1,))


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("epsilon", "dimensions", "steps"),
    [(4.0, 2410, 150), *(pytest.param(*few, marks=pytest.mark.thorough) for few in ((0.5, 50, 150), (10.0, 1, 1)))],
)
def test_a_calibrated_run_costs_no_more_than_its_budget_with_all_of_its_slack(epsilon, dimensions, steps):
    overflow, delta = poisson_overflow(1500, 0.1, 240), 1e-5
    run = TrainingRun(1.0, 0.1, steps, slack=overflow)
    run = noise_multiplier_for(run, epsilon=epsilon, delta=delta, dimensions=dimensions)
    noise = PrivateNoise.certified(1.0, run.noise_multiplier, dimensions)
    assert run.slack >= overflow + noise.total_variation
    whole = dataclasses.replace(run, slack=overflow + noise.total_variation)
    for made in (run, whole):
        assert made.epsilon(delta) <= epsilon
        assert made.bracket(delta=delta)[1] <= epsilon
    assert run.noise_multiplier == 0.25 or whole.bracket(delta=delta)[1] > epsilon * (1 - 1e-4)


def test_init_is_not_compiled():
    """A compiled ``init`` would begin every run with one key, whether its parameters are traced or constants."""
    transformation = private_aggregate(1.0, 5.0, KEY)
    for init in (transformation.init, lambda _: transformation.init(SMALL)):
        with pytest.raises(ValueError, match="init: call it outside jit"):
            jax.jit(init)(SMALL)


def test_gradients_that_jax_added_up_over_devices_are_refused():
    """Those of parameters that are the same on all devices, for examples that are not: a row is then several examples.

    Whatever the mask, which need not differ between devices. A mesh without devices is enough to trace the program.
    """
    noise = PrivateNoise.certified(1.0, 5.0, 3)
    rows, mesh = jnp.eye(4, 3), jax.sharding.AbstractMesh((2,), ("i",))

    def sums(params, rows, mask, own):
        params = jax.lax.pcast(params, "i", to="varying") if own else params
        gradients = jax.vmap(jax.grad(lambda w, row: w @ row), (None, 0))(params, rows)
        return jax.lax.psum(clipped_sums(gradients, True if mask.size == 1 else mask, noise).sums, "i")

    masks = (jnp.ones(4, bool), P("i")), (jnp.ones(2, bool), P()), (jnp.ones((), bool), P())
    for own, (mask, spec) in itertools.product((True, False), masks):
        mapped = jax.shard_map(
            lambda *given, own=own: sums(*given, own), mesh=mesh, in_specs=(P(), P("i"), spec), out_specs=P()
        )
        if own:
            assert jax.eval_shape(mapped, jnp.zeros(3), rows, mask).shape == (3,)
            continue
        with pytest.raises(ValueError, match="updates: are the same along 'i'; JAX may have added up"):
            jax.eval_shape(mapped, jnp.zeros(3), rows, mask)
