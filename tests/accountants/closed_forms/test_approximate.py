"""Composition of (eps, delta) budgets: every claim against exact enumeration in rational numbers."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

import accountants
import dpkernels as dpk
from accountants import discrete_pair, guarantee, recycling
from accountants.closed_forms.approximate import (
    advanced_composition,
    approximate_delta,
    basic_composition,
    parallel_composition,
)
from accountants.published import recycling as published

RATIOS = [Fraction(1), Fraction(5, 4), Fraction(2), Fraction(7, 2)]


def stick(p, q, ratio):
    """The hockey-stick divergence of two vectors of fractions at e^eps = ratio."""
    return sum((max(a - ratio * b, Fraction(0)) for a, b in zip(p, q, strict=True)), Fraction(0))


def product(p, q):
    return [a * b for a, b in itertools.product(p, q)]


def delta_of(pairs, ratio):
    """The largest divergence of the pairs, in either direction."""
    return max(max(stick(p, q, ratio), stick(q, p, ratio)) for p, q in pairs)


# Parallel composition: every dataset of at most two records of two kinds in a part, and two parts. A mechanism is a
# table of three outputs for each content of its part.

CONTENTS = [(a, b) for a in range(3) for b in range(3 - a)]


def random_mechanism(random):
    """Probabilities of three outputs, whole numbers over their sum; some are 0."""
    table = {}
    for content in CONTENTS:
        chosen = random.integers(0, 9, 3) * (random.random(3) < 0.9)
        chosen[0] += 3
        table[content] = [Fraction(int(n), int(chosen.sum())) for n in chosen]
    return table


def one_more(content):
    """The contents with one record more."""
    a, b = content
    return [other for other in ((a + 1, b), (a, b + 1)) if other in CONTENTS]


ADDED = [(content, other) for content in CONTENTS for other in one_more(content)]
REPLACED = [((a, b), (a - 1, b + 1)) for a, b in CONTENTS if a]


def added_pairs(mechanism):
    return [(mechanism[one], mechanism[other]) for one, other in ADDED]


def whole(parts, contents):
    """The output of both parts."""
    return product(parts[0][contents[0]], parts[1][contents[1]])


def neighbours(parts, adjacency):
    """Every pair of neighbouring datasets, as what the two parts print."""
    if adjacency == "add_remove":
        for (one, other), still in itertools.product(ADDED, CONTENTS):
            yield whole(parts, (one, still)), whole(parts, (other, still))
            yield whole(parts, (still, one)), whole(parts, (still, other))
        return
    for (one, other), still in itertools.product(REPLACED, CONTENTS):
        yield whole(parts, (one, still)), whole(parts, (other, still))
        yield whole(parts, (still, one)), whole(parts, (still, other))
    yield from moved(parts)


def moved(parts):
    """One record leaves a part for the other."""
    for (few, many), (less, more) in itertools.product(ADDED, ADDED):
        yield whole(parts, (many, less)), whole(parts, (few, more))


def own_budgets(parts, ratio):
    return [float(delta_of(added_pairs(part), ratio)) for part in parts]


@pytest.mark.parametrize("ratio", RATIOS, ids=str)
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
def test_parallel_composition_covers_every_pair_of_neighbours(adjacency, ratio):
    random = np.random.default_rng(5)
    for _ in range(4):
        parts = [random_mechanism(random) for _ in range(2)]
        eps, delta = parallel_composition(math.log(ratio), own_budgets(parts, ratio), adjacency)
        power = 1 if adjacency == "add_remove" else 2
        assert eps == pytest.approx(power * math.log(ratio), rel=1e-15)
        assert delta_of(neighbours(parts, adjacency), ratio**power) <= Fraction(delta) + Fraction(1, 10**16)


def test_parts_with_different_epsilons():
    """e^eps of 2 and of 3."""
    random = np.random.default_rng(6)
    parts = [random_mechanism(random) for _ in range(2)]
    deltas = [float(delta_of(added_pairs(part), ratio)) for part, ratio in zip(parts, (2, 3), strict=True)]
    for adjacency, ratio in (("add_remove", 3), ("replace", 9)):
        eps, delta = parallel_composition(np.log([2.0, 3.0]), deltas, adjacency)
        assert eps == pytest.approx(math.log(ratio), rel=1e-15)
        assert delta_of(neighbours(parts, adjacency), ratio) <= Fraction(delta) + Fraction(1, 10**16)


# A mechanism that attains (eps, delta) for one record more, with e^eps = 2 and delta = 1/10: with probability delta it
# prints whether its part has a record, else a fair guess of that by randomised response.
R, D = Fraction(2), Fraction(1, 10)
ATTAINS = (
    [D, Fraction(0), (1 - D) * R / (1 + R), (1 - D) / (1 + R)],
    [Fraction(0), D, (1 - D) / (1 + R), (1 - D) * R / (1 + R)],
)


def test_the_printed_claim_fails_for_replaced_records():
    """Remark 2 claims (eps, delta): true for an added record, and 3.7 times delta for one that moves."""
    one, other = ATTAINS
    assert stick(one, other, R) == D
    added = delta_of([(product(one, still), product(other, still)) for still in ATTAINS], R)
    assert added == D
    move = product(one, other), product(other, one)
    at_the_same = stick(*move, R)
    assert at_the_same == D + D * (1 - D) + (1 - D) ** 2 * Fraction(2, 9)
    assert at_the_same > 3 * D
    # At twice eps what is left is that one of both parts prints the truth: less than what is claimed here.
    assert stick(*move, R**2) == 1 - (1 - D) ** 2 < D * (1 + R)
    eps, delta = parallel_composition(math.log(2), 0.1, "replace")
    assert eps == pytest.approx(2 * math.log(2), rel=1e-15)
    assert 0.3 <= delta <= 0.3 * (1 + 1e-14)


def test_replaced_within_a_part_attains_the_delta():
    """Without a record, with the one, with the other: the middle row is one record from both; delta (1 + e^eps)."""
    # Rows for contents {x}, {}, {y}: x is printed with 3 delta, the empty part prints "x" with delta, {y} never.
    x, empty, y = ([p, 1 - p] for p in (Fraction(3, 10), Fraction(1, 10), Fraction(0)))
    assert max(stick(x, empty, R), stick(empty, x, R), stick(empty, y, R), stick(y, empty, R)) == D
    assert stick(x, y, R**2) == D * (1 + R) > 1 - (1 - D) ** 2
    assert float(stick(x, y, R**2)) <= parallel_composition(math.log(2), 0.1, "replace")[1]


def test_a_guarantee_for_replaced_records_is_not_enough():
    """Two parts that print their sizes: a replaced record changes nothing within a part, and all where it moves."""
    prints = {size: [Fraction(int(size == n)) for n in range(3)] for size in range(3)}
    assert stick(product(prints[2], prints[0]), product(prints[1], prints[1]), Fraction(10**9)) == 1


def test_recycled_noise_on_parts():
    """Two recycled counts: exact guarantees of a moved record stay within the budget, not within the printed one."""
    recycled = recycling.recycled(accountants.calibrate.gaussian(epsilon=0.5, delta=1e-5).noise, 1.0, 0.2)
    alone = guarantee(dpk.Additive(recycled), 1.0)
    eps, delta = 1.0, float(alone.delta(1.0))
    moved_delta = alone.repeat(2).delta(eps)
    wide, all_delta = parallel_composition(eps, delta, "replace")
    assert moved_delta > 10 * delta
    assert alone.repeat(2).delta(wide) <= all_delta


def test_parallel_composition_of_pure_budgets():
    assert parallel_composition([0.1, 0.7, 0.3]) == (0.7, 0.0)
    assert parallel_composition([0.1, 0.7, 0.3], adjacency="replace") == (1.4, 0.0)
    assert parallel_composition(800.0, 0.0, "replace") == (1600.0, 0.0)
    assert parallel_composition(800.0, 1e-9, "replace") == (1600.0, 1.0)
    assert accountants.parallel_composition is parallel_composition


@pytest.mark.parametrize("eps", [0.0, 1e-9, 0.3, 5.0])
@pytest.mark.parametrize("delta", [1e-300, 1e-9, 0.01])
def test_the_replaced_delta_is_rounded_upwards(eps, delta):
    computed = parallel_composition(eps, delta, "replace")[1]
    with mpmath.workdps(50):
        exact = min(mpmath.mpf(delta) * (1 + mpmath.exp(mpmath.mpf(eps))), mpmath.mpf(1))
        assert exact <= mpmath.mpf(computed) <= exact * (1 + mpmath.mpf(10) ** -14)


# Sequential composition.


def leaking(ratio, leak):
    """The worst (ln ratio, leak)-DP mechanism: its outputs for two inputs."""
    response = [(1 - leak) * ratio / (1 + ratio), (1 - leak) / (1 + ratio)]
    return [leak, Fraction(0), *response], [Fraction(0), leak, *response[::-1]]


def repeated(pair, count):
    p, q = [Fraction(1)], [Fraction(1)]
    for _ in range(count):
        p, q = product(p, pair[0]), product(q, pair[1])
    return p, q


@pytest.mark.parametrize("ratio", RATIOS, ids=str)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_optimal_delta_is_that_of_the_worst_mechanism(ratio, count):
    leak = Fraction(1, 50)
    pair = repeated(leaking(ratio, leak), count)
    for total in (Fraction(1), Fraction(3, 2), Fraction(4), ratio**count * 2):
        exact = stick(*pair, total)
        computed = approximate_delta(math.log(ratio), float(leak), count, math.log(total))
        assert float(exact) <= computed * (1 + 1e-14)
        assert computed == pytest.approx(float(exact), rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("ratio", RATIOS, ids=str)
@pytest.mark.parametrize("slack", [1e-9, 1e-2, 0.3])
def test_basic_and_advanced_composition_are_sound(ratio, slack):
    """For counts up to 10,000, against the optimum, which the enumeration above confirms."""
    for count, leak in itertools.product((1, 3, 100, 10_000), (0.0, 1e-12, 1e-6)):
        eps0 = math.log(ratio) / math.sqrt(count)
        budgets = np.full(count, eps0)
        eps, delta = advanced_composition(budgets, leak, slack)
        assert approximate_delta(eps0, leak, count, eps) <= delta
        total, sum_delta = basic_composition(budgets, leak)
        assert total >= eps
        # Losses end at count * eps0, next to which floats have no digits left of what is below 1e-12.
        assert approximate_delta(eps0, leak, count, total) <= sum_delta * (1 + 1e-14) + 1e-12 * (ratio > 1)


def test_advanced_composition_is_below_the_classical_bound():
    """Dwork, Rothblum & Vadhan 2010; and T delta + delta', never below T delta."""
    for eps, count, delta, slack in itertools.product((0.01, 0.1, 1.0), (10, 1000), (0.0, 1e-7), (1e-6, 1e-3)):
        epsilon, spent = advanced_composition(np.full(count, eps), delta, slack)
        assert epsilon <= count * eps * math.expm1(eps) + eps * math.sqrt(2 * count * math.log(1 / slack))
        assert spent >= count * delta + slack
        assert spent == pytest.approx(count * delta + slack, rel=1e-15)


@pytest.mark.parametrize("count", [2, 100, 10_000])
def test_the_printed_advanced_composition_loses_the_deltas(count):
    """A mechanism prints its input with probability delta, else nothing: exactly 1 - (1 - delta)^T at every eps."""
    leak = Fraction(1, 10**6)
    printed = float(published.published_advanced_composition(0.0, count, float(leak)))
    assert printed == 0
    exact = 1 - (1 - leak) ** count
    if count == 2:
        assert stick(*repeated(leaking(Fraction(1), leak), 2), Fraction(10**6)) == exact
    assert float(exact) == pytest.approx(approximate_delta(0.0, float(leak), count, 50.0), rel=1e-12)
    assert exact > Fraction(199, 100) * leak
    assert float(exact) <= advanced_composition(np.zeros(count), float(leak), 1e-9)[1]
    # By the characteristic function and Fourier transform of ``guarantee``, another route.
    rows = [float(leak), 0.0, 1 - float(leak)], [0.0, float(leak), 1 - float(leak)]
    delta = guarantee(discrete_pair(*rows)).repeat(count).delta(3.0)
    assert delta == pytest.approx(float(exact), rel=1e-9)


def test_the_printed_advanced_composition_is_the_printed_formula():
    eps, count, delta = np.array([0.1, 0.5]), 100, 1e-6
    epsilon = published.published_advanced_composition(eps, count, delta)
    with mpmath.workdps(30):
        for one, e in zip(epsilon, eps, strict=True):
            e = mpmath.mpf(float(e))
            exact = count * e * (mpmath.exp(e) - 1) + mpmath.sqrt(count) * e * mpmath.sqrt(
                2 * mpmath.log(1 / mpmath.mpf(delta))
            )
            assert float(exact) == pytest.approx(float(one), rel=1e-13)
    # At its eps T such mechanisms have more than T delta, and the claim is delta.
    assert approximate_delta(0.1, delta, count, epsilon[0]) > 99 * delta


def test_sums_are_exact_or_rounded_upwards():
    assert basic_composition([0.5, 0.25], [1e-6]) == (0.75, 2e-6)
    eps, delta = basic_composition([0.1] * 10, 0.2)
    assert Fraction(eps) >= 10 * Fraction(0.1)
    assert delta == 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: parallel_composition([]), "epsilons: are none"),
        (lambda: parallel_composition(-1.0), "epsilons: -1"),
        (lambda: parallel_composition(math.inf), "epsilons: inf"),
        (lambda: parallel_composition(1.0, 1.5), "deltas: 1.5"),
        (lambda: parallel_composition(1.0, 0.0, "replace_one"), "adjacency: 'replace_one'"),
        (lambda: basic_composition([math.nan]), "epsilons: entry 0 is nan, not in"),
        (lambda: advanced_composition(1.0, 0.0, 0.0), "slack: 0"),
        (lambda: approximate_delta(-1.0, 0.0, 1, 1.0), "epsilon0: -1"),
        (lambda: approximate_delta(1.0, 1.0, 1, 1.0), "delta: 1"),
        (lambda: approximate_delta(1.0, 0.0, 1, -1.0), "epsilon: -1"),
        (lambda: published.published_advanced_composition(1.0, 0, 0.1), "count: 0"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
