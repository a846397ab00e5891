"""Shuffled reports of which the blanket's bound is attained: both ends of the bracket are held to the truth.

Of randomised response on three or more categories let all others hold a third one. At epsilon 0 only the numbers A
and B of reports of the two inputs' own categories matter, whether or not one knows which reports are of the blanket:
the likelihood ratio is above 1 where A > B. So delta(0) of these n people is the blanket's bound, exactly:

    delta(0) = (p - s) sum over a, b of max(0, f(a - 1, b) - f(a, b - 1)),    s = 1/(e^eps0 + k - 1),    p = s e^eps0,

f the probability of (a, b) reports of the two categories among n - 1 others, a trinomial law of shares s and s.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy.special import gammaln
from scipy.stats import binom

from accountants import shuffled

WITHIN = 1e-4


def response(level: float, k: int) -> np.ndarray:
    """Randomised response on k categories, row by row."""
    rows = np.ones((k, k)) + np.diag(np.full(k, math.expm1(level)))
    return rows / rows.sum(1, keepdims=True)


def attained(level: float, k: int, n: int) -> float:
    """delta at epsilon 0 where all others hold a third category, by sums over both counts."""
    share = 1 / (math.exp(level) + k - 1)
    a, b = np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij")
    remaining = n - 1 - a - b
    some = remaining >= 0
    remaining = np.where(some, remaining, 0)
    log_f = gammaln(n) - gammaln(a + 1) - gammaln(b + 1) - gammaln(remaining + 1)
    log_f = log_f + (a + b) * math.log(share) + remaining * math.log1p(-2 * share)
    f = np.where(some, np.exp(log_f), 0.0)
    first, second = np.zeros_like(f), np.zeros_like(f)
    first[1:], second[:, 1:] = f[:-1], f[:, :-1]
    return share * math.expm1(level) * np.maximum(first - second, 0.0).sum()


def by_histograms(level: float, k: int, n: int) -> float:
    """The same, from every sequence of reports: total variation of the histograms of 0 and of 1 among n - 1 of 2."""
    rows, laws = response(level, k), ({}, {})
    for value, law in enumerate(laws):
        for reports in product(range(k), repeat=n):
            p = rows[value, reports[0]] * math.prod(rows[2, report] for report in reports[1:])
            key = tuple(sorted(reports))
            law[key] = law.get(key, 0.0) + p
    return sum(max(p - laws[1].get(key, 0.0), 0.0) for key, p in laws[0].items())


@pytest.mark.parametrize(("level", "k", "n"), [(1.5, 3, 5), (0.7, 4, 4)])
def test_the_truth_of_a_few_people_is_as_derived(level, k, n):
    assert attained(level, k, n) == pytest.approx(by_histograms(level, k, n), rel=1e-12)


# Reports summed outcome by outcome; on a grid; and of so many categories that the bound is over all pairs of rows.
CASES = {"by outcomes": (2.0, 3, 400), "on a grid": (1.0, 4, 1000), "all pairs": (1.0, 30, 200)}


@pytest.mark.lengthy
@pytest.mark.parametrize("case", CASES)
def test_the_upper_bound_is_attained(case):
    """Neither end of the bracket is on the wrong side of the truth, nor far from it."""
    level, k, n = CASES[case]
    reports, truth = shuffled(response(level, k), n), attained(level, k, n)
    low, high = reports.bracket(epsilon=0.0)
    assert low <= truth <= high
    assert truth * (1 - WITHIN) <= low
    assert high <= truth * (1 + WITHIN)
    assert reports.upper_bound(0.0) == high
    assert truth * (1 - 1e-9) <= reports.delta(0.0) <= truth * (1 + WITHIN)


def test_the_cases_are_of_three_kinds():
    """One sum of many reports at once, one on a grid, one bounded over all pairs; each has its own upper bound."""
    kinds = [shuffled(response(level, k), n) for level, k, n in CASES.values()]
    assert [reports.inputs.stop_loss is not None for reports in kinds] == [False, False, True]
    # On a grid the bracket has a width, which rounding alone does not have.
    assert [np.ptp(reports.bracket(epsilon=0.0)) > 1e-6 * reports.delta(0.0) for reports in kinds] == [
        False,
        True,
        True,
    ]


def enumerated(level: float, n: int, epsilon: float) -> float:
    """The blanket's bound for two categories, E[(L_1 + ... + L_M)_+]/(gamma n), by sums over both counts."""
    E0, E = math.exp(level), math.exp(epsilon)
    share, counts = 1 / (E0 + 1), np.arange(n + 1)  # gamma/2
    chance = binom.pmf(counts, n, share)
    x, y = np.meshgrid(counts[chance > 1e-25], counts[chance > 1e-25], indexing="ij")
    both = binom.pmf(x, n, share) * binom.pmf(y, n - x, share / (1 - share))
    S = 2 * share * (x * (E0 - E) + y * (1 - E * E0))
    return (both * np.maximum(S, 0.0)).sum() / (2 * share * n)


@pytest.mark.lengthy
@pytest.mark.parametrize(("level", "n", "epsilon"), [(1.0, 3000, 0.05), (4.0, 5000, 0.2)])
def test_the_upper_bound_is_that_of_the_formula(level, n, epsilon):
    """At other epsilons, where the blanket's bound need not be attained, the bracket ends at it."""
    reports, bound = shuffled(response(level, 2), n), enumerated(level, n, epsilon)
    high = reports.bracket(epsilon=epsilon)[1]
    assert bound <= high <= bound * (1 + WITHIN)


@pytest.mark.thorough
def test_rounds_are_composed_from_the_upper_bound():
    """What is composed with other reports is nowhere below the attained profile, and next to it at its dots."""
    level, k, n = CASES["by outcomes"]
    truth = attained(level, k, n)
    assert truth <= shuffled(response(level, k), n).guarantee().delta(0.0) <= truth * (1 + WITHIN)
