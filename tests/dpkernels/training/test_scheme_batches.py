"""Batches of random allocation and of a fixed size: every row once, uniform draws, static shapes, and bad input."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom, chi2

import dpkernels as dpk
from accountants import guarantee
from dpkernels.training import (
    TrainingRun,
    allocated_batch,
    fixed_batch,
    poisson_batch,
    poisson_capacity,
    poisson_overflow,
    private_training,
    random_assignment,
)
from dpkernels.training.batches import shuffled_batch

KEY = dpk.key_from_bytes(bytes(range(32)))


def test_every_row_is_in_one_batch_of_an_epoch():
    examples, steps, capacity = 103, 7, 40
    assignment = random_assignment(KEY, examples, steps)
    batches = jax.jit(
        jax.vmap(lambda step: allocated_batch(jax.random.fold_in(KEY, step), assignment, step, capacity))
    )(jnp.arange(steps))
    assert batches.indices.shape == batches.mask.shape == (steps, capacity)
    rows = np.asarray(batches.indices)[np.asarray(batches.mask)]
    assert sorted(rows) == list(range(examples))


@pytest.mark.lengthy
def test_a_batch_above_its_capacity_is_empty():
    assignment = jnp.zeros(5, jnp.int32)
    assert not allocated_batch(KEY, assignment, 0, 4).mask.any()
    assert allocated_batch(KEY, assignment, 0, 5).mask.all()
    assert not allocated_batch(KEY, assignment, 1, 4).mask.any()


def test_rows_stand_at_random_places():
    """Else an example more would move others, whose gradients may depend on their place by rounding errors.

    Two rows of three have each pair of four places with the same probability: a false alarm has one of 1e-7.
    """
    keys = jax.random.split(KEY, 6000)
    hits = jnp.array([False, True, True])
    drawn = {
        "Poisson": jax.vmap(lambda key: shuffled_batch(key, hits, 4)),
        "allocated": jax.vmap(lambda key: allocated_batch(key, hits.astype(jnp.int32), 1, 4)),
    }
    for batches in drawn.values():
        indices, mask = map(np.asarray, jax.jit(batches)(keys))
        assert (mask.sum(1) == 2).all()
        places = np.stack([np.argmax(mask & (indices == row), axis=1) for row in (1, 2)])
        assert (indices[np.arange(6000), places] == np.array([[1], [2]])).all()
        counts = np.bincount(4 * places[0] + places[1], minlength=16)
        pairs = np.array([4 * one + other for one in range(4) for other in range(4) if one != other])
        assert counts[pairs].sum() == 6000
        assert ((counts[pairs] - 500) ** 2 / 500).sum() < chi2.isf(1e-7, 11)


def test_rows_of_a_poisson_batch_are_not_in_the_order_of_the_data():
    """Two orders of 60 rows are alike with a probability of 1e-82. The order is that of the key, and no other."""
    first, again, other = (poisson_batch(key, 60, 1.0, 60) for key in (KEY, KEY, jax.random.fold_in(KEY, 1)))
    assert first.mask.all()
    assert sorted(first.indices.tolist()) == list(range(60))
    assert first.indices.tolist() == again.indices.tolist() != list(range(60))
    assert first.indices.tolist() != other.indices.tolist()


def test_places_have_words_of_their_own(monkeypatch):
    """Words that also decide which rows are in the batch would order them by these: places would not be random."""
    keys, bits = [], jax.random.bits

    def recorded(key, *others):
        keys.append(tuple(jax.random.key_data(key).tolist()))
        return bits(key, *others)

    monkeypatch.setattr(jax.random, "bits", recorded)
    poisson_batch(KEY, 10, 0.5, 10)
    assert len(keys) == len(set(keys)) == 2


def test_places_that_a_sort_would_decide_are_not_used(monkeypatch):
    """Equal words would keep the order of the data."""
    words = jnp.array([[1, 2, 3, 3], [7, 7, 7, 7]], jnp.uint32)
    for upper, is_drawn in ((words, False), (words.at[1, 3].set(8), True)):
        monkeypatch.setattr(jax.random, "bits", lambda *_, upper=upper: upper)
        assert shuffled_batch(KEY, jnp.array([True, False]), 4).mask.any() == is_drawn
    # A batch with more rows than its capacity is empty.
    assert shuffled_batch(KEY, jnp.ones(4, bool), 4).mask.all()
    assert not shuffled_batch(KEY, jnp.ones(5, bool), 4).mask.any()


@pytest.mark.parametrize("steps", [3, 1000, (1 << 16) - 1])
def test_the_overflow_of_an_allocation_has_the_words_of_32_bits(steps):
    """The most probable step has ceil(2^32/steps) words: more than 1/steps."""
    examples, probability = 1_000_000, -((-1 << 32) // steps) / 2.0**32
    capacity = poisson_capacity(examples, 1 / steps)
    exact = binom.sf(capacity, examples + 1, probability)
    assert exact > binom.sf(capacity, examples + 1, 1 / steps)
    assert exact <= poisson_overflow(examples, 1 / steps + 2.0**-32, capacity)


def test_assignments_are_uniform():
    """A false alarm has a probability of 1e-7."""
    steps, count = 13, 130_000
    counts = np.bincount(np.asarray(random_assignment(KEY, count, steps)), minlength=steps)
    statistic = ((counts - count / steps) ** 2 / (count / steps)).sum()
    assert len(counts) == steps
    assert statistic < chi2.isf(1e-7, steps - 1)


@pytest.mark.parametrize("steps", [1, 2, 3, 1000, 1 << 16])
def test_words_become_steps_evenly(steps, monkeypatch):
    """Of evenly spaced words every step has its share: floor(w steps/2^32), without overflow."""
    words = np.concatenate([np.linspace(0, 2**32 - 1, 1001).astype(np.uint64), [2**32 - 1, 0]])
    monkeypatch.setattr(jax.random, "bits", lambda *_: jnp.asarray(words.astype(np.uint32)))
    drawn = np.asarray(random_assignment(KEY, len(words), steps))
    np.testing.assert_array_equal(drawn, [int(word) * steps >> 32 for word in words])


@pytest.mark.lengthy
def test_fixed_batches_are_uniform_subsets():
    """All ten pairs of five rows, with a false alarm of 1e-7."""
    keys = jax.random.split(KEY, 4000)
    drawn = np.sort(np.asarray(jax.jit(jax.vmap(lambda key: fixed_batch(key, 5, 2)))(keys)), axis=1)
    subsets = list(itertools.combinations(range(5), 2))
    found = np.array([(drawn == subset).all(1).sum() for subset in subsets])
    assert found.sum() == len(keys)
    assert ((found - 400) ** 2 / 400).sum() < chi2.isf(1e-7, 9)
    assert sorted(np.asarray(fixed_batch(KEY, 6, 6))) == list(range(6))


def test_bad_input():
    with pytest.raises(TypeError, match="key"):
        random_assignment(jax.random.key(0), 10, 3)
    with pytest.raises(TypeError, match="key"):
        allocated_batch(jax.random.key(0), jnp.zeros(5, jnp.int32), 0, 4)
    with pytest.raises(TypeError, match="key"):
        fixed_batch(jax.random.key(0), 10, 3)
    with pytest.raises(ValueError, match=r"batch: 11 is not in 1\.\.10"):
        fixed_batch(KEY, 10, 11)
    with pytest.raises(ValueError, match=r"steps: 0 is not in"):
        random_assignment(KEY, 10, 0)


@pytest.mark.parametrize("scheme", ["random_allocation", "balls_in_bins"])
def test_a_run_costs_what_its_scheme_costs(scheme):
    """Its slack is added once for each of its steps."""
    step = guarantee(dpk.Additive(dpk.Gaussian(2.0)), 1.0)
    batches = step.balls_in_bins(10, 3) if scheme == "balls_in_bins" else step.random_allocation(10).repeat(3)
    run = TrainingRun(2.0, 1 / 10, 30, scheme=scheme)
    slack = replace(run, slack=1e-9)
    assert run.bracket(epsilon=0.5) == batches.bracket(epsilon=0.5)
    assert slack.delta(0.5) == pytest.approx(batches.delta(0.5) + 30 * (1 + math.exp(0.5)) * 1e-9, rel=1e-12)
    assert run.epsilon(1e-5) < slack.epsilon(1e-5)
    assert run.bracket(epsilon=0.5) != replace(run, scheme="poisson").bracket(epsilon=0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampling_rate": 0.3}, "sampling_rate: 0.3; the scheme 'random_allocation' needs 1 over the steps"),
        ({"steps": 45}, "steps: 45 are no whole epochs of 10 steps"),
        (
            {"neighbours": "replace"},
            "neighbours: 'replace'; the scheme 'random_allocation' is accounted for 'add_remove'",
        ),
        ({"scheme": "shuffled"}, "scheme: 'shuffled' is not one of balls_in_bins, poisson, random_allocation"),
    ],
)
def test_runs_that_are_not_of_their_scheme_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(TrainingRun(1.0, 1 / 10, 40, scheme="random_allocation"), **changes)


@pytest.mark.lengthy
def test_a_plan_of_poisson_samples_is_not_accounted_as_another_scheme():
    plan = private_training(epsilon=2.0, delta=1e-5, examples=100, batch_size=10, steps=20, parameters=5, clip=1.0)
    with pytest.raises(ValueError, match="run: its scheme is 'random_allocation'; the batches of a plan are Poisson"):
        replace(plan, run=replace(plan.run, scheme="random_allocation"))
