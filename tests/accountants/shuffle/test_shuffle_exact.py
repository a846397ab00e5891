"""Both ends of shuffled reports against enumeration in fractions, for random tables of integers and few people."""

import math
from fractions import Fraction
from itertools import combinations, pairwise, permutations

import mpmath as mp
import numpy as np
import pytest

from accountants import shuffled
from accountants.shuffle import bracket
from accountants.shuffle.blanket import WorstInputs, most_informative_outcomes

_MOST_SUMS = 200  # The most sums of losses that are enumerated for one number.


def exponential(epsilon):
    with mp.workdps(40):
        mantissa, exponent = mp.exp(mp.mpf(epsilon)).man_exp
    return Fraction(int(mantissa)) * Fraction(2) ** int(exponent)


def enumerated(outcomes, n, E):
    """E[(L_1 + ... + L_n)_+] of losses p - E q, for outcomes (mass, p, q) in fractions, whose masses sum to 1."""
    masses = {}
    for mass, p, q in outcomes:
        masses[p - E * q] = masses.get(p - E * q, 0) + mass
    common = [math.lcm(*(number.denominator for number in numbers)) for numbers in (masses, masses.values())]
    losses = [int(loss * common[0]) for loss in masses]
    powers = [[int(mass * common[1]) ** k for k in range(n + 1)] for mass in masses.values()]
    total = 0
    for bars in combinations(range(n + len(losses) - 1), len(losses) - 1):
        ends = [-1, *bars, n + len(losses) - 1]
        counts = [end - start - 1 for start, end in pairwise(ends)]
        value = sum(count * loss for count, loss in zip(counts, losses, strict=True))
        if value > 0:
            multiplicity = math.factorial(n) // math.prod(map(math.factorial, counts))
            total += value * multiplicity * math.prod(power[k] for power, k in zip(powers, counts, strict=True))
    return Fraction(total, common[0] * common[1] ** n)


def blanket(rows, n, E):
    """The largest delta that the blanket proves, over all pairs of rows of integers."""
    total, least = int(rows[0].sum()), rows.min(0).tolist()
    gamma = Fraction(sum(least), total)
    alone = [(1 - gamma, Fraction(0), Fraction(0))]
    values = []
    for x, y in permutations(rows.tolist(), 2):
        ratios = [
            (Fraction(c, total), gamma * Fraction(a, c), gamma * Fraction(b, c))
            for a, b, c in zip(x, y, least, strict=True)
        ]
        values.append(enumerated(ratios + alone, n, E) / (gamma * n))
    return max(values)


def revealed(rows, n, E):
    """The largest delta of two rows if all others hold one row."""
    total, every = int(rows[0].sum()), rows.tolist()
    cases = [(x, y, z) for x, y in permutations(every, 2) for z in every]
    return max(
        enumerated(
            [(Fraction(c, total), Fraction(a, c), Fraction(b, c)) for a, b, c in zip(x, y, z, strict=True)], n, E
        )
        / n
        for x, y, z in cases
    )


def case(seed):
    """Rows of integers, a number of people, a level that may be tiny, and a place below it, at it, or next to it."""
    random = np.random.default_rng([43, 5, seed])
    reports, total = int(random.integers(2, 4)), 1 << int(random.integers(8, 41))
    size = 10.0 ** random.uniform(-9, 0.8) if seed % 2 else random.uniform(0.3, 4.0)
    rows = random.dirichlet(np.ones(reports)) * np.exp(
        size * random.uniform(-0.5, 0.5, (int(random.integers(2, 4)), reports))
    )
    rows = np.maximum((rows / rows.sum(1, keepdims=True) * total).astype(np.int64), 1)
    rows[:, 0] += total - rows.sum(1)
    n = int(random.integers(2, 41))
    while math.comb(n + reports, reports) > _MOST_SUMS:
        n -= 1
    share = (random.random(), 1 - 10 ** random.uniform(-16, -1), 0.0, 10 ** random.uniform(-9, 0))[seed % 4]
    return rows, n, float(share), float(10 ** random.uniform(-30, -0.1))


@pytest.mark.parametrize("first", [0, *(pytest.param(k, marks=pytest.mark.thorough) for k in range(40, 400, 40))])
def test_ends_are_on_their_sides_of_the_enumeration(first):
    checked = 0
    for rows, n, share, target in map(case, range(first, first + 40)):
        if (rows < 1).any() or (rows == rows[0]).all():
            continue
        reports = shuffled(rows / rows[0].sum(), n)
        epsilon = share * float(reports.inputs.pure_epsilon)
        E = exponential(epsilon)
        low, high = reports.bracket(epsilon=epsilon)
        assert Fraction(low) <= revealed(rows, n, E)
        assert blanket(rows, n, E) <= Fraction(high)
        epsilon = reports.epsilon(target)
        assert blanket(rows, n, exponential(epsilon)) <= Fraction(target)
        checked += 1
    assert checked > 30


@pytest.mark.parametrize("seed", range(3))
def test_tables_of_many_pairs_are_bounded_over_all_of_them(seed):
    """The bound over all pairs, which no single one attains; the worst pair may be any, also of the last row."""
    random = np.random.default_rng([43, 8, seed])
    rows = np.maximum((random.dirichlet(np.ones(3), 5) * 1000).astype(np.int64), 20)
    rows[-1], rows[0] = (20, 20, 960), (30, 900, 70)
    rows[:, 2] += 1024 - rows.sum(1)
    rows, n = random.permuted(rows, axis=1), int(random.integers(2, 6))
    reports = shuffled(rows / 1024, n)
    assert reports.inputs.stop_loss is not None
    for share in (0.05, 0.4, 0.8):
        epsilon = share * float(reports.inputs.pure_epsilon)
        low, high = reports.bracket(epsilon=epsilon)
        truth = blanket(rows, n, exponential(epsilon))
        assert truth <= Fraction(high)
        assert Fraction(low) <= truth


@pytest.mark.parametrize("seed", range(8))
def test_delta_is_positive_below_a_tiny_level(seed):
    """The level is the log of a ratio next to 1, whose rounding is more than 1e-12 of it."""
    random = np.random.default_rng([43, 6, seed])
    total = 1 << 50
    a = int(total / 2 * (1 + 10 ** random.uniform(-8, -6))) + int(random.integers(0, 1000))
    rows = np.array([[a, total - a], [total - a, a]])
    reports = shuffled(rows / total, 3)
    for epsilon in (float(reports.inputs.pure_epsilon) * (1 + 1e-12), reports.epsilon(1e-30)):
        truth = blanket(rows, 3, exponential(epsilon))
        assert truth <= Fraction(reports.delta(epsilon))
    assert truth <= Fraction(1e-30)


@pytest.mark.parametrize("seed", range(8))
def test_reports_of_a_level_are_bounded_where_gamma_is_next_to_1(seed):
    """1 - gamma has few digits there, on which the probability of the larger ratio depends."""
    random = np.random.default_rng([43, 7, seed])
    level, n = 10 ** random.uniform(-3, 0.3), int(random.integers(2, 9))
    gamma = 1 - 10 ** random.uniform(-10, -5) * min(1.0, -math.expm1(-level))
    epsilon = level * random.random()
    bound = bracket.upper_delta(WorstInputs((most_informative_outcomes(level, gamma),), level), n, epsilon)
    ratio, gamma = exponential(level), Fraction(gamma)
    w = min((1 / gamma - 1) / (ratio - 1), Fraction(1))
    both, high = max(2 * w - 1, Fraction(0)), gamma * ratio
    outcomes = [(w - both, high, gamma), (w - both, gamma, high), (both, high, high), (1 - 2 * w + both, gamma, gamma)]
    outcomes = [(gamma * mass, p, q) for mass, p, q in outcomes if mass > 0] + [(1 - gamma, Fraction(0), Fraction(0))]
    truth = enumerated(outcomes, n, exponential(epsilon)) / (gamma * n)
    assert truth <= Fraction(bound) <= truth * (1 + Fraction(1, 1000)) + Fraction(1, 10**20)
