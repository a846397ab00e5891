"""Audits find known-bad releases, refute no correct one more often than they state, and report nothing for noise."""

import math

import numpy as np
import pytest
from scipy.stats import binom

import dpkernels as dpk
from accountants import audit, audit_training, calibrate
from accountants.audit import _best_event, _event_bound, _guesses_probability

FALSE_ALARM = 1e-6


def laplace(scale, clip=np.inf, seed=0, grid=2.0**-20):
    """Return a sum with Laplace noise, rounded to a grid, without which the bits of floats tell more."""
    rng = np.random.default_rng(seed)

    def release(x, count):
        noisy = np.clip(x, -clip, clip).sum() + rng.laplace(scale=scale, size=count)
        return np.round(noisy / grid) * grid if grid else noisy

    return release


def test_a_halved_scale_is_found():
    result = audit(laplace(0.5), (0.0, 1.0))
    assert result.contradicts(1.0)
    assert 1.8 < result.epsilon <= 2.0
    assert "epsilon >=" in str(result)


def test_a_wrong_clip_is_found():
    """Noise for records of at most 1, records that are clipped at 3."""
    assert audit(laplace(1.0, clip=3.0), ([0.2, 0.3], [0.2, 0.3, 3.0])).contradicts(1.0)
    assert not audit(laplace(1.0, clip=1.0), ([0.2, 0.3], [0.2, 0.3, 3.0])).contradicts(1.0)


def test_low_bits_of_floats_are_found():
    """NumPy's noise added to 0 has bits that noise added to 1 never has (Mironov 2012)."""
    result = audit(laplace(1.0, grid=None), (0.0, 1.0))
    assert result.epsilon > 5
    assert "bit" in result.event


def test_exact_releases_of_the_same_noise_are_not_refuted():
    made = dpk.laplace(epsilon=1.0, sensitivity=1.0)
    result = audit(lambda x, count: dpk.perturb(np.full(count, x), made), (0.0, 1.0), draws=100_000)
    assert 0.8 < result.epsilon <= 1.0


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("made", "neighbours", "epsilon", "delta"),
    [
        (dpk.piecewise(epsilon=2.0, lower=0.0, upper=1.0), (0.0, 1.0), 2.0, 0.0),
        (dpk.hybrid(epsilon=1.0, lower=0.0, upper=1.0), (0.0, 1.0), 1.0, 0.0),
        (dpk.staircase(epsilon=1.0, sensitivity=1.0), (0.0, 1.0), 1.0, 0.0),
        (dpk.truncated_laplace(epsilon=1.0, delta=1e-2, sensitivity=1.0), (0.0, 1.0), 1.0, 1e-2),
    ],
    ids=["piecewise", "hybrid", "staircase", "truncated"],
)
def test_releases_of_the_package_are_not_refuted(made, neighbours, epsilon, delta):
    result = audit(lambda x, count: dpk.perturb(np.full(count, x), made), neighbours, delta=delta)
    assert 0.5 * epsilon < result.epsilon <= epsilon


@pytest.mark.slow
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("made", "neighbours"),
    [
        (dpk.piecewise(epsilon=1.0, lower=0.0, upper=1.0), (0.0, 1.0)),
        (dpk.hybrid(epsilon=3.0, lower=-1.0, upper=1.0), (-1.0, 0.5)),
        (dpk.duchi(epsilon=0.5, lower=0.0, upper=1.0), (0.0, 1.0)),
        (dpk.laplace(epsilon=1.0, sensitivity=1.0), (0.0, 1.0)),
        (dpk.staircase(epsilon=2.0, sensitivity=1.0), (-0.25, 0.75)),
        (dpk.discrete_laplace(epsilon=1.0, sensitivity=1), (0.0, 1.0)),
        (calibrate.gaussian(epsilon=1.0, delta=1e-3, sensitivity=1.0), (0.0, 1.0)),
    ],
    ids=["piecewise", "hybrid", "duchi", "laplace", "staircase", "discrete", "gaussian"],
)
def test_ten_million_reports_of_every_kind_refute_nothing(made, neighbours, kind):
    epsilon, delta = made.epsilon, getattr(made, "delta", 0.0) or 0.0
    release = lambda x, count: dpk.perturb(np.full(count, x, kind), made)  # noqa: E731
    assert audit(release, neighbours, draws=10**7, delta=delta).epsilon <= epsilon


@pytest.mark.lengthy
def test_truncation_without_a_delta_is_found():
    made = dpk.truncated_laplace(epsilon=1.0, delta=1e-2, sensitivity=1.0)
    assert audit(lambda x, count: dpk.perturb(np.full(count, x), made), (0.0, 1.0)).contradicts(1.0)


def test_vectors_and_words():
    rng = np.random.default_rng(1)
    vectors = lambda x, count: np.asarray(x) + rng.normal(size=(count, 12))  # noqa: E731
    assert audit(vectors, (np.zeros(12), np.ones(12)), draws=20_000).epsilon > 3.0
    answers = lambda x, count: rng.choice(["no", "yes"], count, p=(0.75, 0.25) if x else (0.25, 0.75))  # noqa: E731
    assert 0.9 < audit(answers, (0, 1)).epsilon <= math.log(3)
    count_of_bits = audit(answers, (0, 1), statistic=lambda each: each == "yes")
    assert 0.9 < count_of_bits.epsilon <= math.log(3)


@pytest.mark.lengthy
def test_the_error_rate_is_what_is_stated():
    """Of 200 correct releases at an error rate of 5 %: randomised response, whose epsilon is reached; and noise alone.

    The bound chosen and tested on the same draws is the planted fault.
    """
    rng = np.random.default_rng(2)
    most = binom.isf(FALSE_ALARM, 200, 0.05)
    epsilon = math.log(3)

    def answer(x, count):
        return rng.random(count) < (0.75 if x else 0.25)

    def noise(_, count):
        return rng.normal(size=count)

    wrong = sum(audit(answer, (0, 1), draws=400, error_rate=0.05).contradicts(epsilon) for _ in range(200))
    assert wrong <= most
    assert sum(audit(noise, (0, 1), draws=400, error_rate=0.05).epsilon > 0 for _ in range(200)) <= most
    same = 0
    for _ in range(200):
        outputs = [noise(0, 200), noise(1, 200)]
        same += _event_bound(_best_event(outputs, 0.0, 0.05, None), outputs, 0.0, 0.05).epsilon > 0
    assert same > most


def test_errors_name_the_argument():
    for arguments, name in (
        ({"draws": 10}, "draws"),
        ({"delta": 1.0}, "delta"),
        ({"error_rate": 0.0}, "error_rate"),
    ):
        with pytest.raises(ValueError, match=f"^{name}: "):
            audit(laplace(1.0), (0.0, 1.0), **arguments)
    with pytest.raises(ValueError, match=r"^neighbours: "):
        audit(laplace(1.0), (0.0, 1.0, 2.0))
    with pytest.raises(ValueError, match=r"^release: "):
        audit(lambda x, count: np.zeros(3), (0.0, 1.0))


# One training run


def test_guesses_of_one_run_against_the_definition():
    """Pure DP: the probability of so many right guesses; a delta adds at most what the paper's sum adds."""
    for eps in (0.0, 0.7, 2.0):
        chance = 1 / (1 + math.exp(-eps))
        assert _guesses_probability(50, 10, 9, eps, 0.0) == pytest.approx(10 * chance**9 * (1 - chance) + chance**10)
    delta, v, r, m, p = 1e-3, 9, 10, 50, 0.5
    alpha = max(sum(binom.pmf(v - j, r, p) for j in range(1, i + 1)) / i for i in range(1, v + 1))
    assert _guesses_probability(m, r, v, 0.0, delta) == pytest.approx(binom.sf(v - 1, r, p) + 2 * m * delta * alpha)


def test_one_run_finds_a_leak_and_nothing_in_noise():
    rng = np.random.default_rng(3)
    included = rng.random(2000) < 0.5
    leak = included + 0.1 * rng.normal(size=2000)
    result = audit_training(leak, included, guesses=[100, 500], delta=1e-7, error_rate=0.01)
    assert result.contradicts(3.0)
    assert audit_training(rng.normal(size=2000), included, guesses=[100, 500]).epsilon == 0.0
    with pytest.raises(ValueError, match=r"^guesses: "):
        audit_training(leak, included, guesses=2001)
    with pytest.raises(ValueError, match=r"^scores, included: "):
        audit_training(leak[1:], included, guesses=10)
    with pytest.raises(ValueError, match=r"^scores: "):
        audit_training(leak * np.nan, included, guesses=10)


@pytest.mark.lengthy
def test_the_error_rate_of_one_run_is_what_is_stated():
    """Canaries that are answered by randomised response of epsilon 1: the bound is reached, and rarely exceeded."""
    rng, eps, wrong = np.random.default_rng(4), 1.0, 0
    for _ in range(200):
        included = rng.random(500) < 0.5
        truthful = rng.random(500) < 1 / (1 + math.exp(-eps))
        scores = np.where(truthful, included, ~included) + 1e-3 * rng.random(500)
        wrong += audit_training(scores, included, guesses=200, error_rate=0.05).contradicts(eps)
    assert 0 < wrong <= binom.isf(FALSE_ALARM, 200, 0.05)
