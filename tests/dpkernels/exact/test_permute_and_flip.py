"""Permute-and-flip: its law, its privacy, and that floats and integers make the same choice."""

from __future__ import annotations

import itertools
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from dpkernels.decimals import rational
from dpkernels.exact.selection import permute_and_flip as flips
from dpkernels.random import host

KEY = bytes(range(32))
FALSE_ALARM = 1e-7


def by_rejection(scores, epsilon):
    """The law as it is defined: indices in every order, each accepted with its probability, the best one always."""
    p = np.exp(epsilon * (np.array(scores, float) - max(scores)))
    law = np.zeros(len(p))
    orders = list(itertools.permutations(range(len(p))))
    for order in orders:
        left = 1.0
        for i in order:
            law[i] += left * p[i] / len(orders)
            left *= 1 - p[i]
    return law


def frequencies(scores, epsilon, n):
    keys = (host.fold_in(KEY, number) for number in range(n))
    picks = [flips.permute_and_flip_top_k(scores, epsilon, 1, key)[0] for key in keys]
    return np.bincount(picks, minlength=len(scores))


@pytest.mark.lengthy
@pytest.mark.parametrize("scores", [[4, 0, 3, 1], [2, 2, 2], [0, 5]], ids=str)
def test_choices_have_the_law_and_a_wrong_one_is_seen(scores):
    n = 10_000
    counts = frequencies(scores, 0.5, n)
    critical = stats.chi2.isf(FALSE_ALARM, len(scores) - 1)
    assert stats.chisquare(counts, n * by_rejection(scores, 0.5)).statistic < critical
    if len(set(scores)) > 1:
        exponential = np.exp(0.5 * np.array(scores, float))
        assert stats.chisquare(counts, n * exponential / exponential.sum()).statistic > critical


def test_neighbouring_scores_have_near_laws():
    """Scores that rise by 0 or 1 change every probability by at most e^epsilon; a rise by 2 does not."""
    rng = np.random.default_rng(1)
    worst = {1: 0.0, 2: 0.0}
    for _ in range(150):
        epsilon, scores = float(rng.choice([0.2, 1.0, 3.0])), rng.integers(0, 4, rng.integers(2, 5))
        rises = rng.integers(0, 2, len(scores))
        for size in worst:
            laws = by_rejection(scores, epsilon), by_rejection(scores + size * rises, epsilon)
            worst[size] = max(worst[size], np.abs(np.log(laws[0] / laws[1])).max() / epsilon)
    assert worst[1] <= 1 + 1e-9
    assert worst[2] > 1


def test_the_expected_gap_is_from_half_to_all_of_the_exponential_mechanism():
    """And the best index is chosen at most 1.3 times as often, since (1 - e^-x)/x is at most that times 1/(1 + x)."""
    for scores in ([5, 0], [5, 0, 0, 0], [4, 0, 3, 1], [2, 2, 2], [1, 0, 0]):
        gaps = max(scores) - np.array(scores)
        for epsilon in (0.1, 0.7, 2.0):
            law, weights = by_rejection(scores, epsilon), np.exp(-epsilon * gaps)
            exponential = weights / weights.sum()
            assert exponential @ gaps / 2 - 1e-12 <= law @ gaps <= exponential @ gaps + 1e-12
            assert 1 - 1e-12 <= law[0] / exponential[0] < 1.3


@pytest.mark.parametrize("epsilon", [1e-4, 0.3, 20.0])
def test_integers_decide_as_floats_do(epsilon, monkeypatch):
    scores = np.random.default_rng(2).integers(0, int(3 / epsilon) + 3, 60)
    usual = flips.permute_and_flip_top_k(scores, epsilon, 12, KEY)
    floats = flips._by_floats
    monkeypatch.setattr(flips, "_by_floats", lambda gaps, *_: (np.zeros(len(gaps), bool), np.ones(len(gaps), bool)))
    np.testing.assert_array_equal(flips.permute_and_flip_top_k(scores, epsilon, 12, KEY), usual)
    words = np.array([0, 2**64 - 1], "<u8")
    assert [each.tolist() for each in floats(np.array([0, 0]), rational(epsilon), words)] == [
        [True, False],
        [False, True],
    ]


@pytest.mark.parametrize("distance", [1e-25, 1e-60])
def test_close_to_the_probability_further_bits_decide(distance):
    bits, epsilon = 1024, Fraction(7, 10)
    with mpmath.workdps(400):
        for side in (-1, 1):
            u = int(mpmath.floor(mpmath.ldexp(mpmath.exp(-mpmath.mpf(21) / 10) + side * distance, bits)))
            word, rest = u >> (bits - 64), u & ((1 << (bits - 64)) - 1)
            _, undecided = flips._by_floats(np.array([3]), epsilon, np.array([word], "<u8"))
            assert undecided.all()
            accepted = flips._by_integers(3, epsilon, word, lambda n, rest=rest: rest >> (bits - 64 - n))
            assert accepted == (side < 0)


def test_many_candidates_and_far_scores():
    scores = np.arange(200_000)
    assert flips.permute_and_flip_top_k(scores, 20.0, 2, KEY).tolist() == [199_999, 199_998]
    assert flips.permute_and_flip_top_k([-(2**61), 2**61, 0], 1e-4, 3, KEY).tolist() == [1, 2, 0]
    for arguments in (([1], 0.1, 2, KEY), ([1.5], 0.1, 1, KEY), ([1], 1e-9, 1, KEY), ([2**62], 0.1, 1, KEY)):
        with pytest.raises((ValueError, TypeError)):
            flips.permute_and_flip_top_k(*arguments)
