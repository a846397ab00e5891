"""Batches of random allocation and of a fixed size: every row once, uniform draws, static shapes, and bad input."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom, chi2

import dpkernels as dpk
from dpkernels.training import allocated_batch, fixed_batch, poisson_capacity, poisson_overflow, random_assignment

KEY = dpk.key_from_bytes(bytes(range(32)))


def test_every_row_is_in_one_batch_of_an_epoch():
    examples, steps, capacity = 103, 7, 40
    assignment = random_assignment(KEY, examples, steps)
    batches = jax.jit(jax.vmap(lambda step: allocated_batch(assignment, step, capacity)))(jnp.arange(steps))
    assert batches.indices.shape == batches.mask.shape == (steps, capacity)
    rows = np.asarray(batches.indices)[np.asarray(batches.mask)]
    assert sorted(rows) == list(range(examples))


@pytest.mark.lengthy
def test_a_batch_above_its_capacity_is_empty():
    assignment = jnp.zeros(5, jnp.int32)
    assert not allocated_batch(assignment, 0, 4).mask.any()
    assert allocated_batch(assignment, 0, 5).mask.all()
    assert not allocated_batch(assignment, 1, 4).mask.any()


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
    found = np.bincount(np.asarray(random_assignment(KEY, count, steps)), minlength=steps)
    statistic = ((found - count / steps) ** 2 / (count / steps)).sum()
    assert len(found) == steps
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
        fixed_batch(jax.random.key(0), 10, 3)
    with pytest.raises(ValueError, match=r"batch: 11 is not in 1\.\.10"):
        fixed_batch(KEY, 10, 11)
    with pytest.raises(ValueError, match=r"steps: 0 is not in"):
        random_assignment(KEY, 10, 0)
