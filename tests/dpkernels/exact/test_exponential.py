"""The exact exponential mechanism: its law by enumeration, floats against integers, and what it refuses."""

from __future__ import annotations

import bisect
import itertools
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from dpkernels.decimals import rational
from dpkernels.exact.selection import exponential
from dpkernels.random import host

FALSE_ALARM = 1e-6
KEY = bytes(range(32))
CASES = [([3, 1, 2], 1.0), ([0, 0, 5, 0], 0.3), ([7, 7, 7], 0.1), ([0, 40], 20.0), ([9], 2.0)]
CASES += [([-3, 2**40, 2**40 - 5], 0.01)]
every_case = pytest.mark.parametrize(("scores", "epsilon"), CASES)


def gaps_of(scores):
    scores = np.array(scores, np.int64)
    return scores.max() - scores


def boundaries(gaps, epsilon):
    """C_i / W at the current precision of mpmath."""
    weights = [mpmath.exp(-mpmath.mpf(repr(epsilon)) * n) for n in gaps.tolist()]
    return [total / mpmath.fsum(weights) for total in itertools.accumulate(weights)]


def fixed(numerator, bits):
    """The real number numerator / 2^bits, read to any precision."""
    return lambda wanted: numerator << (wanted - bits) if wanted >= bits else numerator >> (bits - wanted)


@pytest.mark.lengthy
@every_case
def test_every_short_uniform_is_decided_as_real_numbers_are(scores, epsilon):
    """Of the 2^10 cells of U, those within one item's interval choose it, the at most d - 1 others ask for more."""
    gaps, bits = gaps_of(scores), 10
    with mpmath.workdps(60):
        ends = [0, *(mpmath.ldexp(end, bits) for end in boundaries(gaps, epsilon)[:-1]), 1 << bits]
        expected = [int(mpmath.floor(b)) - int(mpmath.ceil(a)) for a, b in itertools.pairwise(ends)]
    found = [exponential._decide(gaps, rational(epsilon), u, bits) for u in range(1 << bits)]
    assert [found.count(i) for i in range(len(scores))] == [max(0, count) for count in expected]
    assert found.count(None) <= len(scores) - 1
    assert [i for i in found if i is not None] == sorted(i for i in found if i is not None)


def test_a_wrong_law_fails_the_enumeration():
    gaps, bits = gaps_of([3, 1, 2]), 10
    counts = [
        [exponential._decide(gaps, rational(eps), u, bits) for u in range(1 << bits)].count(0) for eps in (1.0, 1.01)
    ]
    assert counts[0] != counts[1]


@every_case
def test_floats_decide_as_integers_do_or_not_at_all(scores, epsilon):
    gaps, eps = gaps_of(scores), rational(epsilon)
    rng = np.random.default_rng(5)
    with mpmath.workdps(60):
        near = [int(mpmath.floor(mpmath.ldexp(end, 64))) for end in boundaries(gaps, epsilon)]
    edges = [edge + sign * (1 << power) for edge in near for power in range(0, 60, 3) for sign in (-1, 1)]
    tried = [0, (1 << 64) - 1, *near, *edges, *rng.integers(0, 1 << 64, 200, np.uint64).tolist()]
    decided = 0
    for u in (u for u in tried if 0 <= u < 1 << 64):
        found = exponential._by_floats(gaps, eps, u)
        if found is not None:
            decided += 1
            assert found == exponential._by_integers(gaps, eps, fixed(u, 64))
    assert decided > 150


def test_floats_of_many_scores_leave_what_their_sums_cannot_tell():
    """Sums of 5,000 weights are off by many roundings; next to their boundaries floats are right or do not decide."""
    gaps, epsilon = gaps_of(np.random.default_rng(7).integers(0, 200, 5000)), 0.03
    with mpmath.workdps(40):
        powers = [mpmath.exp(-mpmath.mpf(repr(epsilon)) * n) for n in range(200)]
        sums = list(itertools.accumulate(powers[gap] for gap in gaps.tolist()))
        ends = [int(mpmath.floor(mpmath.ldexp(end / sums[-1], 64))) for end in sums]
    undecided = 0
    for i in range(0, 4999, 50):
        for away in (-(1 << 16), -(1 << 13), -(1 << 11), 1 << 11, 1 << 13, 1 << 16):
            found = exponential._by_floats(gaps, rational(epsilon), ends[i] + away)
            undecided += found is None
            assert found in (None, bisect.bisect_left(ends, ends[i] + away + 1))
    assert undecided > 150


@pytest.mark.parametrize("distance", [2**-70, 2**-140, 2**-300])
def test_close_to_a_boundary_integers_decide(distance):
    scores, epsilon, bits = [3, 1, 2], 0.7, 1024
    gaps = gaps_of(scores)
    with mpmath.workdps(400):
        edge = boundaries(gaps, epsilon)[1]
        for side, expected in ((-1, 1), (1, 2)):
            u = fixed(int(mpmath.floor(mpmath.ldexp(edge + side * distance, bits))), bits)
            assert exponential._by_floats(gaps, rational(epsilon), u(64)) is None
            assert exponential._choose(np.array(scores), rational(epsilon), u) == expected


def test_forced_into_integers_the_choices_are_the_same(monkeypatch):
    scores = np.random.default_rng(2).integers(0, 60, 300)
    usual = exponential.exponential_top_k(scores, 0.2, 40, KEY)
    monkeypatch.setattr(exponential, "_by_floats", lambda *_: None)
    np.testing.assert_array_equal(exponential.exponential_top_k(scores, 0.2, 40, KEY), usual)


@pytest.mark.parametrize("epsilon", [1e-4, 0.01, 0.3, 1.0, 20.0])
def test_float_weights_are_within_their_bound(epsilon):
    gaps = np.unique(np.linspace(0, 75 / epsilon, 500).astype(np.int64))
    weights = exponential.float_weights(gaps, rational(epsilon))
    with mpmath.workdps(50):
        for gap, weight in zip(gaps.tolist(), weights.tolist(), strict=True):
            exact = mpmath.exp(-mpmath.mpf(repr(epsilon)) * gap)
            assert abs(weight - exact) <= (mpmath.ldexp(exact, -51) if weight else mpmath.ldexp(1, -100))
    assert exponential.float_weights(np.array([2**62]), rational(epsilon)) == 0


@pytest.mark.parametrize("x", [Fraction(0), Fraction(1, 10**4), Fraction(7, 10), Fraction(20), Fraction(300)])
@pytest.mark.parametrize("bits", [64, 192, 1000])
def test_exponentials_are_bounded_both_ways(x, bits):
    low, high = exponential.exp_minus(x, bits)
    with mpmath.workdps(500):
        exact = mpmath.ldexp(mpmath.exp(-mpmath.mpf(x.numerator) / x.denominator), bits)
        assert low <= exact <= high <= low + 4
        for n in (0, 1, 2, 37, 10**6):
            least, most = exponential.power_interval((low, high), n, bits)
            assert least <= mpmath.ldexp(mpmath.exp(-n * mpmath.mpf(x.numerator) / x.denominator), bits) <= most


def test_a_uniform_number_is_one_number_however_many_bits_are_read():
    u = exponential.uniform_number(KEY, 7)
    assert u(64) == u(128) >> 64 == u(1024) >> 960
    assert len({exponential.uniform_number(KEY, number)(64) for number in range(100)}) == 100
    words = np.empty(2, "<u4")
    host.fill(words, KEY, 20, 7 << 32)
    assert u(64) == int.from_bytes(words.tobytes(), "big")


def law(scores, epsilon, k):
    """The probability of every ordered choice of k."""
    weights = np.exp(epsilon * (np.array(scores, float) - max(scores)))
    found = {}
    for picks in itertools.permutations(range(len(scores)), k):
        left, p = weights.sum(), 1.0
        for pick in picks:
            p, left = p * weights[pick] / left, left - weights[pick]
        found[picks] = p
    return found


def chi_square(counts, probabilities):
    n = sum(counts.values())
    statistic = sum((counts.get(picks, 0) - n * p) ** 2 / (n * p) for picks, p in probabilities.items())
    return statistic, stats.chi2.isf(FALSE_ALARM, len(probabilities) - 1)


@pytest.mark.lengthy
def test_picks_have_the_law_and_a_wrong_one_is_seen():
    scores, epsilon, n = [4, 0, 3, 1], 0.5, 12_000
    counts = {}
    for number in range(n):
        picks = tuple(exponential.exponential_top_k(scores, epsilon, 2, host.fold_in(KEY, number)).tolist())
        counts[picks] = counts.get(picks, 0) + 1
    statistic, critical = chi_square(counts, law(scores, epsilon, 2))
    assert statistic < critical
    statistic, critical = chi_square(counts, law(scores, 1.15 * epsilon, 2))
    assert statistic > critical


def test_picks_are_different_items_that_a_key_repeats():
    scores = np.random.default_rng(0).integers(0, 30, 50, np.uint16)
    picks = exponential.exponential_top_k(scores, 0.4, 50, KEY)
    assert sorted(picks.tolist()) == list(range(50))
    np.testing.assert_array_equal(exponential.exponential_top_k(scores, 0.4, 12, KEY), picks[:12])
    np.testing.assert_array_equal(exponential.exponential_top_k(scores.astype(int) - 10**15, 0.4, 50, KEY), picks)
    assert exponential.exponential_top_k(scores, 0.4, 50, bytes(32)).tolist() != picks.tolist()


def test_far_apart_scores():
    scores = [-(2**61), 2**61, 0]
    assert exponential.exponential_top_k(scores, 1e-4, 3, KEY).tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("scores", "epsilon", "k", "error", "message"),
    [
        ([1.0, 2.0], 1.0, 1, TypeError, "scores: are float64"),
        ([True, False], 1.0, 1, TypeError, "scores: are bool"),
        ([], 1.0, 1, ValueError, r"scores: have shape \(0,\)"),
        ([[1, 2]], 1.0, 1, ValueError, r"scores: have shape \(1, 2\)"),
        ([0, 2**61 + 1], 1.0, 1, ValueError, "scores: 0 to"),
        (np.array([2**63], np.uint64), 1.0, 1, ValueError, "scores: "),
        ([1, 2], 0.0, 1, ValueError, r"epsilon: 0"),
        ([1, 2], float("nan"), 1, ValueError, "epsilon: nan"),
        ([1, 2], 21.0, 1, ValueError, "epsilon: 21"),
        ([1, 2], "1", 1, TypeError, "epsilon: '1'"),
        ([1, 2], 1.0, 3, ValueError, r"k: 3 is not in 1\.\.2"),
        ([1, 2], 1.0, 0, ValueError, "k: 0"),
        ([1, 2], 1.0, 1.0, TypeError, "k: 1.0"),
    ],
)
def test_bad_arguments_are_named(scores, epsilon, k, error, message):
    with pytest.raises(error, match=message):
        exponential.exponential_top_k(scores, epsilon, k, KEY)


@every_case
def test_runs_are_chosen_as_their_items_written_out(scores, epsilon):
    """The same U chooses the run that holds the item which it chooses of all items, by floats and by integers."""
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 5, len(scores))
    runs = np.repeat(np.arange(len(scores)), lengths)
    gaps, eps = gaps_of(scores), rational(epsilon)
    for u in rng.integers(0, 1 << 63, 50).tolist():
        uniform = fixed(u, 63)
        item = exponential._by_integers(gaps[runs], eps, uniform)
        assert exponential._by_integers(gaps, eps, uniform, lengths) == runs[item]
        assert exponential._by_floats(gaps, eps, uniform(64), lengths) in (None, runs[item])


@pytest.mark.lengthy
def test_runs_and_their_items_have_the_law():
    scores, lengths, epsilon = [4, 9, 7, 0], [3, 2, 0, 5], Fraction(3, 10)
    items = [(run, item) for run, length in enumerate(lengths) for item in range(length)]
    chosen = [exponential.exponential_item(scores, lengths, epsilon, KEY, number) for number in range(20_000)]
    weights = np.exp(float(epsilon) * np.array([scores[run] for run, _ in items]))
    counts = np.array([chosen.count(item) for item in items])
    assert counts.sum() == len(chosen)
    assert stats.chisquare(counts, weights / weights.sum() * len(chosen)).pvalue > FALSE_ALARM
    wrong = weights * np.where(np.array([run for run, _ in items]) == 3, 2.0, 1.0)
    assert stats.chisquare(counts, wrong / wrong.sum() * len(chosen)).pvalue < FALSE_ALARM


@pytest.mark.parametrize(
    ("scores", "lengths", "epsilon"),
    [
        ([1, 2], [1], 1),
        ([1, 2], [0, 0], 1),
        ([1, 2], [1, -1], 1),
        ([1], [1 << 33], 1),
        ([1 << 62], [1], 1),
        ([1], [1], 21),
    ],
)
def test_runs_that_are_refused(scores, lengths, epsilon):
    with pytest.raises(ValueError, match=r"lengths|scores|epsilon"):
        exponential.exponential_item(scores, lengths, Fraction(epsilon), KEY)
