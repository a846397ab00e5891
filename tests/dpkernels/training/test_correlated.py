"""Correlated noise: sensitivity by enumeration, releases against explicit matrices, accounting, states and faults."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.stats import norm

import dpkernels as dpk
from dpkernels.training import (
    PrivateNoise,
    ToeplitzStrategy,
    TrainingRun,
    aggregate,
    correlated,
    correlated_run,
    private_aggregate,
)
from dpkernels.training.clipping import check_overflow

KEY = dpk.key_from_bytes(bytes(range(32)))
ROOT = ToeplitzStrategy.square_root(4)
STRATEGIES = [
    ROOT,
    ToeplitzStrategy((4,)),
    ToeplitzStrategy((3, 3, 1)),
    ToeplitzStrategy((2, 1)),
    ToeplitzStrategy((5, 0)),
]


def test_the_square_root_squares_to_prefix_sums():
    full = np.linalg.matrix_power(ToeplitzStrategy.square_root(7, 1 << 12).matrix(7), 2) / 4.0**12
    assert full == pytest.approx(np.tril(np.ones((7, 7))), abs=2e-3)
    assert ROOT.bands == (16, 8, 6, 5)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: str(strategy.bands))
def test_the_sensitivity_is_the_largest_of_all_participations(strategy):
    """By enumeration of all steps that are far enough apart, and of contributions of either sign."""
    steps, matrix = 6, strategy.matrix(6).astype(float)
    for separation, most in itertools.product((1, 2, 3, 4, 7), (None, 1, 2)):
        largest = 0.0
        for signs in itertools.product((-1, 0, 1), repeat=steps):
            uses = np.flatnonzero(signs)
            if len(uses) <= (most or steps) and (len(uses) < 2 or np.diff(uses).min() >= separation):
                largest = max(largest, float(np.linalg.norm(matrix @ np.array(signs))))
        assert largest <= strategy.sensitivity(steps, separation, most) <= largest * (1 + 1e-12)


def test_integers_of_narrow_types_are_the_same_numbers():
    """Squares of 8 bits overflow, and so does the place of a column in 16 bits: the sensitivity would be too small."""
    narrow = ToeplitzStrategy(tuple(np.array(ROOT.bands, np.uint8)))
    assert repr(narrow) == repr(ROOT)
    assert narrow.sensitivity(40, 10) == ROOT.sensitivity(40, 10)
    assert ROOT.sensitivity(np.int16(32_700), np.int16(200)) == ROOT.sensitivity(32_700, 200)


def rounded_quotient(number, divisor):
    return (2 * number + divisor) // (2 * divisor)


def released(strategy, sums, drawn):
    """The releases of the code, of integer sums and noise, one a step."""
    errors, releases = (jnp.zeros(3, jnp.int32),) * strategy.lags, []
    for x, z in zip(sums, drawn, strict=True):
        with jax.enable_x64(True):
            mixed = strategy.mixed(jnp.asarray(x, jnp.int32), errors)
            release = strategy.unmixed(mixed.astype(jnp.float64) + z)
        errors = (aggregate._difference(release, jnp.asarray(x, jnp.int32)), *errors)[: strategy.lags]
        releases.append(np.asarray(release).astype(int))
    return np.array(releases)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: str(strategy.bands))
def test_releases_are_a_function_of_the_gaussian_release(strategy):
    """Of y = C x + z alone, and near x + c_0 C^-1 z/c_0; two data sets with one y have the same releases."""
    random, steps = np.random.default_rng(0), 8
    matrix = strategy.matrix(steps)
    x, z = random.integers(-50, 50, (steps, 3)), random.integers(-3000, 3000, (steps, 3))
    y, expected = matrix @ x + z, []
    for t in range(steps):
        rest = y[t] - sum(c * expected[t - k] for k, c in enumerate(strategy.bands) if 0 < k <= t)
        expected.append(rounded_quotient(rest, strategy.bands[0]))
    assert (released(strategy, x, z) == np.array(expected)).all()
    other = random.integers(-50, 50, (steps, 3))
    assert (released(strategy, other, y - matrix @ other) == np.array(expected)).all()
    exact = x + np.linalg.solve(matrix.astype(float), z)
    inverse = np.abs(np.linalg.inv(matrix.astype(float)))
    assert (np.abs(expected - exact) <= inverse.sum(1, keepdims=True) * strategy.bands[0] / 2 + 1e-9).all()
    largest = np.abs(np.array(expected) - x).max()
    assert largest <= strategy.errors_bound(3000, steps)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: str(strategy.bands))
def test_the_bound_of_errors_is_that_of_the_inverse(strategy):
    """One percent above it, for 1 to 200 steps."""
    for steps in (1, 2, 200):
        inverse = np.linalg.inv(strategy.matrix(steps) / strategy.bands[0])[:, 0]
        exact = np.abs(inverse).sum() * (3000 / strategy.bands[0] + 1)
        assert exact * 1.009 < strategy.errors_bound(3000, steps) < exact * 1.011 + 1


def test_two_steps_have_the_stated_privacy():
    """By the law of all pairs of releases of one coordinate, for integer sums that an example moves at both steps."""
    strategy, sigma, size = ToeplitzStrategy((2, 1)), 6.0, 61
    z = np.arange(-(size // 2), size // 2 + 1)
    mass = np.diff(norm.cdf(np.append(z - 0.5, z[-1] + 0.5) / sigma))

    def law(first, second):
        e0 = rounded_quotient(z, 2)
        e1 = rounded_quotient(z[None, :] - e0[:, None], 2)
        pairs = np.zeros((200, 200))
        np.add.at(pairs, (np.broadcast_to(e0[:, None], e1.shape) + first + 90, e1 + second + 90), mass[:, None] * mass)
        return pairs

    without, moved = law(0, 0), law(1, 1)
    mu = strategy.sensitivity(2, 1) / sigma
    for p, q in ((without, moved), (moved, without)):
        for epsilon in (0.0, 0.3, 0.8):
            delta = np.maximum(p - math.exp(epsilon) * q, 0).sum()
            bound = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
            assert bound / 3 < delta <= bound + 1e-6  # Beyond the table, 5 standard deviations, is a mass of 6e-7.


@pytest.mark.thorough  # That of a plan, which is lengthy, is in ``test_plan.py``.
@pytest.mark.parametrize("neighbours", ["add_remove", "replace"])
def test_a_run_is_one_gaussian_release(neighbours):
    """From the certificate of a step's noise: its deviation over the sensitivity of all steps, and its distance."""
    run = correlated_run(
        ROOT, epsilon=2.0, delta=1e-6, steps=40, separation=10, dimensions=50, neighbours=neighbours, slack=1e-12
    )
    noise = PrivateNoise.certified(1.0, run.noise_multiplier, 50)
    columns = ROOT.matrix(40)[:, ::10].sum(1)
    mu = float(noise.certificate.shift) * math.sqrt(columns @ columns) / noise.certificate.claim.sigma
    mu *= 2 if neighbours == "replace" else 1
    slack = (1e-12 + 40 * noise.total_variation) * (1 + math.exp(2.0))
    for shift, is_private in ((mu, True), (mu * (1 + 1e-4), False)):
        delta = norm.cdf(shift / 2 - 2 / shift) - math.exp(2.0) * norm.cdf(-shift / 2 - 2 / shift)
        assert (delta + slack <= 1e-6 * (1 + 1e-9)) == is_private
    assert run.epsilon(1e-6) <= 2.0
    assert run.delta(2.0) <= 1e-6
    assert isinstance(run.run, TrainingRun)


def test_the_slack_of_a_run_has_the_distance_of_all_steps(monkeypatch):
    """Of a table at a distance that can be seen; the search for the multiplier is left out."""
    monkeypatch.setattr(PrivateNoise, "certified", lambda *_: SimpleNamespace(total_variation=1e-6))
    monkeypatch.setattr(correlated, "calibrated_run", lambda run, epsilon, delta: run)
    run = correlated_run(ROOT, epsilon=2.0, delta=1e-3, steps=40, separation=10, dimensions=50, slack=1e-5)
    assert 5e-5 <= run.run.slack <= 5.1e-5


PARAMS = {"w": jnp.zeros(2), "b": jnp.zeros(())}
ROWS = {"w": jnp.eye(4, 2), "b": jnp.ones(4)}


@pytest.mark.lengthy
def test_updates_have_the_noise_of_the_strategy(monkeypatch):
    """The state's noise is that of the releases before, also in a program; every step has a key of its own."""
    drawn = []

    def noisy(noise, now, sums):
        drawn.append(len(drawn))
        with jax.enable_x64(True):
            return jax.tree.map(lambda leaf: leaf.astype(jnp.float64) + 1000 * len(drawn), sums)

    monkeypatch.setattr(aggregate, "_noisy", noisy)
    transformation = private_aggregate(1.0, 64.0, KEY, strategy=ROOT, steps=5, expected_batch_size=1.0)
    state, noise, updates = transformation.init(PARAMS), PrivateNoise.certified(1.0, 64.0, 3), []
    assert len(jax.tree.leaves(state.noise)) == 3 * 2
    for _ in range(5):
        update, state = transformation.update(ROWS, state, mask=True)
        updates.append(float(update["b"]) / noise.unit)
    sums = float(updates[0]) - rounded_quotient(1000, 16)
    expected = released(ROOT, np.full((5, 3), round(sums)), 1000 * np.arange(1, 6)[:, None])[:, 0]
    assert np.array(updates) == pytest.approx(expected, abs=1e-2)
    with pytest.raises(ValueError, match="state: has made 5 releases; the budget is for 5"):
        transformation.update(ROWS, state, mask=True)


def test_a_state_of_another_strategy_is_refused():
    first, *others = (
        private_aggregate(1.0, 64.0, KEY, strategy=strategy, steps=5)
        for strategy in (ROOT, ToeplitzStrategy((16, 8, 6, 4)), ToeplitzStrategy((2, 1)), None)
    )
    for other in others:
        with pytest.raises((ValueError, TypeError), match=r"state: (is for strategy|noise has the form)"):
            first.update(ROWS, other.init(PARAMS), mask=True)


@pytest.mark.lengthy
def test_the_noise_of_steps_is_correlated_as_the_strategy_says():
    """C times the noise of releases is white, within six standard errors; that of other bands is not."""
    size, steps = 4000, 4
    transformation = private_aggregate(1.0, 64.0, KEY, strategy=ROOT, steps=steps, expected_batch_size=1.0)
    state, rows = transformation.init(jnp.zeros(size)), jnp.zeros((1, size))
    update, noise = jax.jit(lambda state: transformation.update(rows, state, mask=True)), []
    for _ in range(steps):
        released, state = update(state)
        noise.append(np.asarray(released, float))
    deviation = PrivateNoise.certified(1.0, 64.0, size).standard_deviation
    for strategy, is_white in ((ROOT, True), (ToeplitzStrategy((16, 12, 6, 5)), False)):
        whitened = strategy.matrix(steps) @ np.array(noise) / deviation
        excess = np.abs(whitened @ whitened.T / size - np.eye(steps)).max()
        assert (excess <= 6 * math.sqrt(2 / size)) == is_white


def test_integers_do_not_overflow():
    """The largest numbers of a step are bounded by the worst noise of every step."""
    noise = PrivateNoise.certified(1.0, 64.0, 3)
    check_overflow(1000, noise, ROOT, 100)
    for rows, steps in ((1 << 21, 100), (1, 1 << 15)):
        strategy = ROOT if rows > 1 else ToeplitzStrategy((1 << 12, 1 << 12))
        with pytest.raises(ValueError, match="may overflow 32-bit integers"):
            check_overflow(rows, noise, strategy, steps)
    # 2^12 rows in 2^14 micro-batches of a type in which their product overflows.
    many = private_aggregate(
        1.0, 64.0, KEY, micro_batches=np.int16(1 << 14), inner=optax.identity(), expected_batch_size=1.0
    )
    with pytest.raises(ValueError, match="may overflow 32-bit integers"):
        many.update({"w": jnp.zeros((1 << 12, 3))}, many.init({"w": jnp.zeros(3)}), mask=True)


def test_bad_strategies_are_errors():
    for bands in ((), (1, 2), (3, -1), (0,), (1 << 17,), (2,) * 65):
        with pytest.raises(ValueError, match="bands"):
            ToeplitzStrategy(bands)
    with pytest.raises(ValueError, match="steps: is missing"):
        private_aggregate(1.0, 64.0, KEY, strategy=ROOT)
    with pytest.raises(ValueError, match="separation"):
        ROOT.sensitivity(5, 0)
    assert Fraction(ROOT.sensitivity(100, 100)) >= 0
