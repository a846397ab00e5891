"""The privacy of reports about categories: pairs, composition and shuffling, against their full channels."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import accountants
import dpkernels as dpk
from accountants import calibrate, tune
from accountants.shuffle.blanket import worst_inputs

MECHANISMS = [
    dpk.randomised_response(1.0, 5),
    dpk.randomised_response(2.0, 2),
    dpk.subset_selection(1.0, 7, 3),
    dpk.subset_selection(1.0, 7, 6),
    dpk.block_response(1.0, 20),
    dpk.block_response(1.0, 7, 7),
    dpk.block_response(1.0, 2, 2),
]
every_mechanism = pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: f"{m.kind}-{m.categories}")


@every_mechanism
@pytest.mark.parametrize("exact", [False, True])
def test_the_profile_is_that_of_the_channel(mechanism, exact):
    sampler = dpk.exact_sampler(mechanism) if exact else mechanism
    channel = mechanism.channel()[1]
    level = float(mechanism.epsilon)
    assert accountants.epsilon(sampler, 0.0) == pytest.approx(level, rel=1e-12)
    for epsilon in (0.0, 0.3 * level, 0.9 * level):
        wanted = max(
            np.maximum(a - math.exp(epsilon) * b, 0).sum()
            for a, b in ((channel[0], channel[1]), (channel[-1], channel[0]))
        )
        assert accountants.delta(sampler, epsilon) == pytest.approx(wanted, rel=1e-9)
        assert accountants.guarantee(sampler).delta(epsilon) == pytest.approx(wanted, rel=1e-9)


def test_randomised_response_has_the_pair_of_its_name():
    pair = accountants.guarantee(accountants.randomised_response(1.0, 5))
    release = accountants.guarantee(dpk.randomised_response(1.0, 5))
    assert release.repeat(20).epsilon(1e-6) == pytest.approx(pair.repeat(20).epsilon(1e-6), rel=1e-9)
    sampled = release.subsample(0.1).repeat(20).bracket(delta=1e-6)
    assert sampled == pytest.approx(pair.subsample(0.1).repeat(20).bracket(delta=1e-6), rel=1e-9)
    restored = accountants.Guarantee.from_json(release.to_json())
    assert restored == release


@every_mechanism
def test_the_blanket_is_that_of_all_rows(mechanism):
    inputs, rows = worst_inputs(mechanism), worst_inputs(mechanism.channel()[1])
    assert float(inputs.pure_epsilon) == pytest.approx(rows.pure_epsilon, rel=1e-12)
    (pair,) = inputs.pairs
    blanket = pair.upper.merged
    assert blanket.gamma == pytest.approx(rows.pairs[0].upper.gamma, rel=1e-12)
    for epsilon in (0.1, 0.5):
        losses = blanket.losses(epsilon)
        for t in np.linspace(losses.min(), losses.max(), 7)[1:-1]:
            value = (blanket.mass * np.maximum(losses - t, 0)).sum()
            for other in rows.pairs:  # Every pair of the table is alike.
                full = other.upper.merged
                wanted = (full.mass * np.maximum(full.losses(epsilon) - t, 0)).sum()
                assert value == pytest.approx(wanted, rel=1e-9)


@pytest.mark.lengthy
@every_mechanism
def test_shuffled_reports_have_the_bracket_of_the_channel(mechanism):
    reports = accountants.shuffled(dpk.exact_sampler(mechanism), 200)
    rows = accountants.shuffled(mechanism.channel()[1], 200)
    low, high = reports.bracket(delta=1e-4)
    least, most = rows.bracket(delta=1e-4)
    assert high == pytest.approx(most, rel=1e-6)
    assert least * (1 - 1e-6) <= low <= high  # The rows of a table try fewer categories for the others.
    assert reports.epsilon(1e-4) == high <= float(mechanism.epsilon)


@pytest.mark.lengthy
def test_a_budget_behind_a_shuffler_and_the_size_of_sets_there():
    """At one central budget randomised response has the least error of all sizes."""
    errors = {}
    for size in (1, 2, 5):
        m = calibrate.shuffled(dpk.subset_selection, epsilon=0.5, delta=1e-6, n=10_000, categories=20, size=size)
        assert accountants.shuffled(dpk.exact_sampler(m), 10_000).epsilon(1e-6) <= 0.5
        errors[size] = m.mean_squared_error()
    assert errors[1] < errors[2] < errors[5]


@pytest.mark.lengthy
def test_gradients_in_the_budget():
    with jax.enable_x64(True):

        def composed(epsilon):
            return accountants.guarantee(dpk.subset_selection(epsilon, 20, 5)).repeat(10).epsilon(jnp.asarray(1e-6))

        def shuffled(epsilon):
            return accountants.shuffled(dpk.block_response(epsilon, 60, 4), 1000).epsilon(jnp.asarray(1e-6))

        for function in (composed, shuffled):
            slope = jax.grad(function)(jnp.asarray(0.7))
            step = 1e-4
            wanted = (function(jnp.asarray(0.7 + step)) - function(jnp.asarray(0.7 - step))) / (2 * step)
            assert float(slope) == pytest.approx(float(wanted), rel=1e-3)


@pytest.mark.lengthy
@pytest.mark.parametrize(("categories", "epsilon", "n"), [(5, 0.5, 2000), (["a", "b", "c", "d"], 1.0, 500)])
def test_the_size_behind_a_shuffler_is_the_best_of_all(categories, epsilon, n):
    best = tune.shuffled_categories(categories, epsilon=epsilon, delta=1e-6, n=n)
    assert best.labels == (None if isinstance(categories, int) else tuple(categories))
    reports = accountants.shuffled(dpk.exact_sampler(best), n)
    assert 0.99 * epsilon < reports.epsilon(1e-6) <= epsilon
    errors = {}
    for size in range(1, best.categories):
        m = tune.shuffled_categories(categories, epsilon=epsilon, delta=1e-6, n=n, sizes=[size])
        assert m.size == size
        errors[size] = m.mean_squared_error(n)
    assert best.size == min(errors, key=errors.get)
    assert best.mean_squared_error(n) == min(errors.values())


def test_sizes_behind_a_shuffler_are_checked():
    target = {"epsilon": 0.5, "delta": 1e-6, "n": 2000}
    for sizes, words in (([], "at least one"), ([5], "sizes: 5"), (np.array([1, 0]), "sizes: 0")):
        with pytest.raises(ValueError, match=words):
            tune.shuffled_categories(5, **target, sizes=sizes)
    with pytest.raises(ValueError, match="already have epsilon"):
        tune.shuffled_categories(5, epsilon=1e-6, delta=1e-6, n=100)
