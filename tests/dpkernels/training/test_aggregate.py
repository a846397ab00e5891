"""Private aggregation for optax: sensitivity, noise, streams, devices, micro-batches and the accounting of runs."""

from __future__ import annotations

import dataclasses
import math
import os
import pickle
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import dpkernels as dpk
from dpkernels.exact.noise import FIXED_BITS, cell_masses
from dpkernels.training import (
    PrivateNoise,
    TrainingRun,
    aggregate,
    best_training_run,
    noise_multiplier_for,
    poisson_batch,
    poisson_capacity,
    poisson_overflow,
    private_aggregate,
    renew_key,
)
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
    counted = jnp.ones(len(updates["w"]), bool) if mask is None else mask
    return flat(aggregate._clipped_sums(updates, counted, noise))


def every_row(aggregate):
    """The compiled update of batches without padded rows."""
    return jax.jit(lambda updates, state: aggregate.update(updates, state, mask=True))


@pytest.fixture(scope="module")
def noise():
    return private_aggregate(2.0, 1.5, KEY).init(PARAMS).noise


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


def test_a_mask_leaves_rows_out(noise):
    updates = gradients(5)
    mask = jnp.array([True, False, True, True, False])
    kept = jax.tree.map(lambda leaf: leaf[np.flatnonzero(mask)], updates)
    assert (sums_of(updates, noise, mask) == sums_of(kept, noise)).all()


def run(aggregate, batches, params=PARAMS):
    state, made, update = aggregate.init(params), [], every_row(aggregate)
    for batch in batches:
        out, state = update(batch, state)
        made.append(out)
    return made, state


def noise_of(aggregate, steps, rows=4):
    """The noise of each step, in units, from updates without their sums."""
    batches = [gradients(rows, seed) for seed in range(steps)]
    made, state = run(aggregate, batches)
    described = state.noise
    return np.array(
        [flat(out) * rows / described.unit - sums_of(b, described) for out, b in zip(made, batches, strict=True)]
    ), described


@pytest.mark.lengthy
def test_the_noise_is_the_one_of_the_certificate():
    """Its mean, variance and fourth moment; the false-alarm rate is below 1e-8 for each, six standard errors."""
    drawn, described = noise_of(private_aggregate(2.0, 1.5, KEY), 40)
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
    drawn, _ = noise_of(private_aggregate(2.0, 1.5, KEY), 12)
    assert not correlated(drawn)


@pytest.mark.lengthy
def test_a_planted_repeat_of_a_stream_is_caught(monkeypatch):
    split = jax.random.split
    monkeypatch.setattr(jax.random, "split", lambda key: (split(key)[0], key))  # The next step has the same key.
    drawn, _ = noise_of(private_aggregate(2.0, 1.25, KEY), 3)
    assert correlated(drawn)


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
    assert restored.noise.certificate.epsilon == 1.0
    for batch in batches[2:]:
        one, state = update(batch, state)
        two, restored = update(batch, restored)
        assert (flat(one) == flat(two)).all()
    other = dpk.key_from_bytes(bytes(32))
    renewed, _ = every_row(private_aggregate(1.0, 1.5, other))(batches[0], renew_key(restored, other))
    assert np.mean(flat(renewed) == flat(update(batches[0], restored)[0])) < 0.05


SMALL = {"w": jnp.zeros(3)}
BATCH = {"w": jnp.eye(3)}


def copied(state, transform=lambda leaf: leaf, **changed):
    """A copy as checkpoints make it: arrays by way of a file, into the structure of a template."""
    saved = pickle.dumps(jax.tree.map(np.asarray, state))
    leaves = [transform(jnp.asarray(leaf)) for leaf in jax.tree.leaves(pickle.loads(saved))]
    return dataclasses.replace(jax.tree.unflatten(jax.tree.structure(state), leaves), **changed)


OTHER = dpk.key_from_bytes(bytes(32))
OTHERS = {
    "clip norm": lambda: private_aggregate(2.0, 5.0, KEY),
    "less noise": lambda: private_aggregate(1.0, 0.5, KEY),
    "key": lambda: private_aggregate(1.0, 5.0, OTHER),
    "micro-batches": lambda: private_aggregate(1.0, 5.0, KEY, micro_batches=2),
}


@pytest.mark.lengthy
@pytest.mark.parametrize("other", OTHERS)
def test_a_state_of_another_transformation_is_refused(other):
    """Not only as a whole, by what is static, but by its arrays alone: a checkpoint has nothing else."""
    aggregate, other = private_aggregate(1.0, 5.0, KEY), OTHERS[other]()
    pickled = pickle.loads(pickle.dumps(other.init(SMALL)))
    template = aggregate.init(SMALL)
    arrays = dataclasses.replace(pickled, noise=template.noise, sums=template.sums)
    for state in (pickled, arrays):
        with pytest.raises((ValueError, TypeError), match="state: "):
            aggregate.update(BATCH, state, mask=True)
    update, following = every_row(aggregate)(BATCH, arrays)
    assert np.isnan(flat(update)).all()
    assert np.isnan(flat(every_row(aggregate)(BATCH, following)[0])).all()
    assert np.isfinite(flat(every_row(aggregate)(BATCH, copied(template))[0])).all()


@pytest.mark.lengthy
def test_sums_of_another_sensitivity_are_not_released():
    """In the middle of micro-batches, where a state holds true sums in the units of its own settings."""
    wide, narrow = (private_aggregate(1.0, z, KEY, micro_batches=2) for z in (0.5, 5.0))
    _, half = every_row(wide)(BATCH, wide.init(SMALL))
    assert flat(half.sums).any()
    restored = dataclasses.replace(half, noise=narrow.init(SMALL).noise)
    assert np.isnan(flat(every_row(narrow)(BATCH, restored)[0])).all()


ATTACKS = {
    "a key of zeros": lambda state: jax.tree.map(jnp.zeros_like, state),
    "a mean of states": lambda state: jax.tree.map(lambda leaf: leaf // 2, state),
    "another type": lambda state: jax.tree.map(lambda leaf: leaf.astype(jnp.float32), state),
    "a narrow type": lambda state: jax.tree.map(lambda leaf: leaf.astype(jnp.uint16), state),
    "a stack of states": lambda state: jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), state),
    "plain numbers": lambda state: dataclasses.replace(state, step=0),
    "sums": lambda state: dataclasses.replace(state, sums=(jnp.zeros(3, jnp.int32),)),
    "a dictionary": lambda state: dict(vars(state)),
    "optax's own": lambda state: optax.EmptyState(),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_is_no_state_is_refused(attack):
    aggregate = private_aggregate(1.0, 5.0, KEY)
    state = ATTACKS[attack](aggregate.init(SMALL))
    with pytest.raises((ValueError, TypeError), match="state: "):
        aggregate.update(BATCH, state, mask=True)


def test_a_pickle_of_another_version_is_refused():
    state = private_aggregate(1.0, 5.0, KEY).init(SMALL)
    kind, arguments, values = state.__reduce_ex__(2)[:3]
    for fields in ({name: values[name] for name in ("key", "step", "sums", "noise")}, values | {"more": 1}):
        restored = kind(*arguments)
        with pytest.raises(ValueError, match="state: was pickled by another version"):
            restored.__setstate__(fields)


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


@pytest.mark.thorough
def test_micro_batches_release_what_one_batch_does():
    whole = gradients(12)
    parts = [jax.tree.map(lambda leaf, i=i: leaf[4 * i : 4 * i + 4], whole) for i in range(3)]
    (one,), _ = run(private_aggregate(1.0, 1.5, KEY), [whole])
    made, state = run(private_aggregate(1.0, 1.5, KEY, micro_batches=3), parts * 2)
    assert not flat(made[0]).any()
    assert not flat(made[1]).any()
    assert (flat(made[2]) == flat(one)).all()
    assert (flat(made[5]) != flat(one)).any()
    assert int(state.step) == 2
    assert not flat(state.sums).any()


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
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import jax, numpy as np
from functools import partial
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from test_aggregate import KEY, PARAMS, every_row, flat, gradients, private_aggregate
assert jax.device_count() == 4
mesh, batch = Mesh(jax.devices(), ("batch",)), gradients(8)
aggregate = private_aggregate(1.0, 1.5, KEY)
state = aggregate.init(PARAMS)
one, _ = every_row(aggregate)(batch, state)
sharded = jax.device_put(batch, NamedSharding(mesh, P("batch")))
many, _ = every_row(aggregate)(sharded, state)
assert (flat(one) == flat(many)).all()
along = private_aggregate(1.0, 1.5, KEY, axis_name="batch")
split = jax.shard_map(
    lambda g, s: along.update(g, s, mask=True)[0], mesh=mesh, in_specs=(P("batch"), P()), out_specs=P(), check_vma=False
)
assert (flat(one) == flat(jax.jit(split)(batch, along.init(PARAMS)))).all()
for check in (True, False):
    unnamed = jax.shard_map(
        lambda g, s: aggregate.update(g, s, mask=True)[0],
        mesh=mesh, in_specs=(P("batch"), P()), out_specs=P(), check_vma=check
    )
    for run in (unnamed, jax.jit(unnamed)):
        try:
            run(batch, state)
        except ValueError as error:
            assert "axis_name: None leaves out 'batch'" in str(error)
        else:
            raise AssertionError("every device releases sums of its own with the same noise")
"""


@pytest.mark.lengthy
def test_every_init_begins_a_run_with_noise_of_its_own():
    """Else the difference of two runs would be the difference of their sums."""
    aggregate, batch = private_aggregate(1.0, 1.5, KEY), gradients(4)
    first, second, third = (flat(aggregate.update(batch, aggregate.init(PARAMS), mask=True)[0]) for _ in range(3))
    assert (first == flat(run(private_aggregate(1.0, 1.5, KEY), [batch])[0][0])).all()
    for one, other in ((first, second), (first, third), (second, third)):
        assert np.mean(one == other) < 0.05


@pytest.mark.thorough
def test_several_devices_release_the_same_bits():
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
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
    with pytest.raises(ValueError, match="params"):
        private_aggregate(1.0, 1000.0, KEY).init(PARAMS)
    aggregate = private_aggregate(1.0, 1.5, KEY)
    state = aggregate.init(PARAMS)
    with pytest.raises(ValueError, match="first axis"):
        aggregate.update(PARAMS, state, mask=True)
    with pytest.raises(ValueError, match="values an example"):
        aggregate.update(
            jax.tree.map(lambda leaf: leaf[None, None], PARAMS) | {"w": jnp.zeros((1, 3))}, state, mask=True
        )
    with pytest.raises(TypeError, match="floats"):
        aggregate.update(jax.tree.map(lambda leaf: leaf[None].astype(int), PARAMS), state, mask=True)
    huge = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1 << 20, *leaf.shape), jnp.float32), PARAMS)
    with pytest.raises(ValueError, match="overflow"):
        jax.eval_shape(every_row(aggregate), huge, state)


@pytest.mark.lengthy
def test_the_description_has_the_certificate(noise):
    certificate = noise.certificate
    assert certificate.claim.dimensions == SIZE
    assert float(certificate.shift) == noise.sensitivity
    assert certificate.claim.lattice == 1.0
    assert 1 / noise.noise_multiplier >= float(certificate.shift) / certificate.claim.sigma
    assert noise.standard_deviation == pytest.approx(2.0 * 1.5 * (1 + noise.rounding_cost), rel=1e-6)
    assert 0 < noise.total_variation < SIZE * 1e-13
    table, claim = noise.certificate.table, noise.certificate.claim
    masses, error = cell_masses(Fraction(claim.sigma), max(-table.first, table.last) + 1)
    exact = [Fraction(masses[abs(code)], 1 << FIXED_BITS) for code in range(table.first, table.last + 1)]
    over = sum(max(Fraction(0), Fraction(w, table.total) - p) for w, p in zip(table.outcomes, exact, strict=True))
    assert noise.total_variation >= claim.dimensions * (over - 2 * error)


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
    made = noise_multiplier_for(TrainingRun(1.0, 0.02, 200), epsilon=1.0, delta=1e-5)
    assert made.bracket(delta=1e-5)[1] <= 1.0
    less = dataclasses.replace(made, noise_multiplier=made.noise_multiplier * 0.999)
    assert less.bracket(delta=1e-5)[1] > 1.0
    best = best_training_run(epsilon=1.0, delta=1e-5, sampling_rates=(0.02, 0.1), steps=(200, 50))
    assert best.bracket(delta=1e-5)[1] <= 1.0
    ours, other = (run.noise_multiplier / (run.sampling_rate * math.sqrt(run.steps)) for run in (best, made))
    assert ours <= other
    with pytest.raises(ValueError, match="at least one value"):
        best_training_run(epsilon=1.0, delta=1e-5, sampling_rates=(), steps=(1,))


@pytest.mark.lengthy
@pytest.mark.parametrize(("epsilon", "dimensions", "steps"), [(4.0, 2410, 150), (0.5, 50, 150), (10.0, 1, 1)])
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


@pytest.mark.lengthy
def test_init_is_not_compiled():
    """A compiled ``init`` would begin every run with one key."""
    transformation = private_aggregate(1.0, 2.0, dpk.key_from_bytes(bytes(32)))
    with pytest.raises(ValueError, match="init: call it outside jit"):
        jax.jit(transformation.init)({"w": jnp.zeros(3)})
