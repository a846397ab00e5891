"""Risks of random tables against every attack: joint outcomes are enumerated in rational numbers, both directions."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from accountants import discrete_pair, guarantee, shuffled

WHOLE = 1 << 40  # Masses are multiples of 1/WHOLE, so that floats hold them.


def masses(random, k):
    """Return k random masses; some are tiny, and some are 0."""
    shares = 10 ** random.uniform(-9, 0, k) if random.random() < 0.3 else random.integers(1, 50, k)
    numbers = (shares / shares.sum() * WHOLE).astype(np.int64)
    if random.random() < 0.15:
        numbers[random.integers(k)] = 0
    numbers[numbers.argmax()] += WHOLE - numbers.sum()
    return [Fraction(int(each), WHOLE) for each in numbers]


def table(p, q):
    return guarantee(discrete_pair(np.array(p, float), np.array(q, float)))


def together(pairs):
    """Return the masses of all joint outcomes of independent reports."""
    return [[math.prod(masses) for masses in itertools.product(*side)] for side in zip(*pairs, strict=True)]


def composed(random):
    p, q = masses(random, 3), masses(random, 3)
    other = masses(random, 2), masses(random, 2)
    return table(p, q).repeat(2).compose(table(*other)), [together([(p, q), (p, q), other])]


def sampled(random):
    """Q is the distribution without the record."""
    p, q = masses(random, 2), masses(random, 2)
    rate, count = Fraction(int(random.integers(1, 64)), 64), int(random.integers(1, 5))
    mixed = [rate * a + (1 - rate) * b for a, b in zip(p, q, strict=True)]
    return table(p, q).subsample(float(rate)).repeat(count), [together([(mixed, q)] * count)]


def allocated(random):
    p = masses(random, int(random.integers(2, 4)))
    q, steps = p[::-1], int(random.integers(1, 5))
    without = together([(q,)] * steps)[0]
    places = [together([(p,) if k == place else (q,) for k in range(steps)])[0] for place in range(steps)]
    return table(p, q).random_allocation(steps), [([sum(each) / steps for each in zip(*places, strict=True)], without)]


def fixed_size(random):
    """All other records have the opposite value of the record, or its value, or none: datasets that exist."""
    p = masses(random, 2)
    q, share, count = p[::-1], Fraction(int(random.integers(1, 5)), 4), int(random.integers(1, 4))
    worlds = []
    for rest in (p, q, [Fraction(1, 2)] * 2):
        sides = [[share * a + (1 - share) * b for a, b in zip(own, rest, strict=True)] for own in (p, q)]
        worlds.append(together([sides] * count))
    return table(p, q).sample_fixed(share.numerator, share.denominator).repeat(count), worlds


def of_shuffled(random):
    """Counts of outcomes, for all inputs of the others."""
    rows = [[Fraction(int(a), 64) for a in (first, 64 - first)] for first in random.integers(4, 60, 3)]
    n, worlds = int(random.integers(2, 6)), []
    for others in itertools.combinations_with_replacement(rows, n - 1):
        for own in itertools.permutations(rows, 2):
            sides = []
            for row in own:
                counts = [Fraction(1)]
                for first, second in (*others, row):
                    before, after = [*counts, Fraction(0)], [Fraction(0), *counts]
                    counts = [a * first + b * second for a, b in zip(before, after, strict=True)]
                sides.append(counts)
            worlds.append(sides)
    return shuffled(np.array(rows, float), n), worlds


def attacks(p, q):
    """Return the (false, true) positive rates of the best tests, increasing."""
    order = sorted(range(len(p)), key=lambda k: math.inf if q[k] == 0 else p[k] / q[k], reverse=True)
    false, true = ([Fraction(0), *itertools.accumulate(side[k] for k in order)] for side in (q, p))
    return list(zip(false, true, strict=True))


def between(points, point, axis):
    """Return the other rate where one rate has a value, by mixing the tests on either side of it."""
    for start, stop in itertools.pairwise(points):
        if stop[axis] >= point and (stop[axis] > start[axis]):
            share = (point - start[axis]) / (stop[axis] - start[axis])
            return start[1 - axis] + share * (stop[1 - axis] - start[1 - axis])
    return points[-1][1 - axis]


MAKERS = composed, sampled, allocated, fixed_size, of_shuffled
FIRST = {allocated: pytest.mark.lengthy, fixed_size: pytest.mark.lengthy, of_shuffled: pytest.mark.lengthy}
SEEDS = [
    pytest.param(make, seed, marks=pytest.mark.thorough if seed else FIRST.get(make, ()))
    for make in MAKERS
    for seed in range(15)
]


@pytest.mark.parametrize(("make", "seed"), SEEDS)
def test_no_attack_succeeds_more_often(make, seed):
    random = np.random.default_rng(seed)
    release, worlds = make(random)
    both = [attacks(*pair) for p, q in worlds for pair in ((p, q), (q, p))]
    for rate in (1e-12, 1e-6, 10 ** random.uniform(-4, -1), random.uniform(0, 1), 0.999):
        true = max(between(points, Fraction(rate), 0) for points in both)
        assert true <= Fraction(release.true_positive_rate(rate))
        assert Fraction(release.trade_off(rate)) <= 1 - true
        assert true <= Fraction(release.reconstruction(rate))
    assert max(sum(max(a - b, 0) for a, b in zip(*pair, strict=True)) for pair in worlds) <= Fraction(
        release.advantage()
    )
    for delta in (1e-9, 1e-3, random.uniform(0, 1)):
        level = min(between(points, Fraction(delta), 1) for points in both)
        odds = release.odds(delta)
        assert level >= Fraction(delta) / Fraction(odds) if math.isfinite(odds) else True
        prior = Fraction(random.uniform(0, 1))
        assert prior * Fraction(delta) <= Fraction(release.posterior(float(prior), delta)) * (
            prior * Fraction(delta) + (1 - prior) * level
        )
    ratios = [math.inf if b == 0 else a / b for p, q in worlds for a, b in (*zip(p, q), *zip(q, p)) if a > 0]  # noqa: B905
    assert max(ratios) <= release.odds()
