"""Brackets on grids that are too small on purpose: the bound on the mass that wraps around keeps them right.

A grid usually holds all but 1e-22 of the tilted mass. Here a tenth or more of it lies beyond the grid and comes back on
the other side, which moves sums of losses up as well as down.
"""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy.stats import binom

from accountants import discrete_pair, guarantee, shuffled
from accountants.composition.brackets import refinement, sums

REPORTS = 20
FIRST, SECOND = 0.1, 0.02  # The probability of the rare outcome under either input.


def exact(epsilon: float) -> float:
    """delta of the number of rare outcomes among all reports, the larger of both directions, to 50 digits."""
    with mpmath.workdps(50):

        def law(p: float) -> list[mpmath.mpf]:
            p = mpmath.mpf(p)
            return [mpmath.binomial(REPORTS, k) * p**k * (1 - p) ** (REPORTS - k) for k in range(REPORTS + 1)]

        one, other, factor = law(FIRST), law(SECOND), mpmath.exp(epsilon)
        ways = ((one, other), (other, one))
        return float(max(mpmath.fsum(max(p - factor * q, 0) for p, q in zip(*way, strict=True)) for way in ways))


@pytest.mark.quick("1.0")
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 3.0])
def test_a_grid_that_is_too_small_is_allowed_for(monkeypatch, epsilon):
    """Without the bound the whole bracket lies above the truth at epsilon 0, and below it at the other three."""
    single = guarantee(discrete_pair(np.array([FIRST, 1 - FIRST]), np.array([SECOND, 1 - SECOND])))
    truth = exact(epsilon)
    low, high = refinement.GridBracket(single.repeat(REPORTS)).delta(epsilon)
    assert low <= truth <= high
    assert high - low <= 1e-3 * truth
    monkeypatch.setattr(refinement, "_ROUNDING_WIDTH", math.inf)  # No sum of positive terms, which has no such error.
    monkeypatch.setattr(sums, "_NEGLIGIBLE", 20.0)
    low, high = refinement.GridBracket(single.repeat(REPORTS)).delta(epsilon)
    assert low <= truth <= high
    assert high - low > 0.1 * truth, "the grid is not too small; this test shows nothing"


def others_alike(level: float, n: int, epsilon: float) -> float:
    """delta of n shuffled reports of two categories, all others holding one input: the largest over that input."""
    p, h = math.exp(level) / (1 + math.exp(level)), np.arange(n + 1)
    found = 0.0
    for share in (p, 1 - p):  # The probability of the first category in the others' reports.
        rest = binom.pmf(h, n - 1, share)
        more = np.append(0.0, rest[:-1])
        one, other = p * more + (1 - p) * rest, (1 - p) * more + p * rest
        found = max(found, *(np.maximum(a - math.exp(epsilon) * b, 0.0).sum() for a, b in ((one, other), (other, one))))
    return found


@pytest.mark.lengthy
@pytest.mark.parametrize(("level", "n", "epsilon"), [(1.0, 3000, 0.05), (2.0, 2000, 0.1)])
def test_a_grid_that_is_too_small_is_allowed_for_in_shuffled_reports(monkeypatch, level, n, epsilon):
    """Without the bound the lower end lies above what reports reveal where all others hold one input."""
    rows = np.array([[math.exp(level), 1.0], [1.0, math.exp(level)]]) / (1 + math.exp(level))
    made, truth = shuffled(rows, n), others_alike(level, n, epsilon)
    assert made.bracket(epsilon=epsilon)[0] == pytest.approx(truth, rel=1e-4)
    monkeypatch.setattr(sums, "_NEGLIGIBLE", 0.3)
    low, _ = made.bracket(epsilon=epsilon)
    assert low <= truth
    assert low < 0.9 * truth, "the grid is not too small; this test shows nothing"


def test_heavy_points_of_a_summary_stay():
    """Blocks are spread to their ends, in order, but a point with most of the mass would spread too far."""
    g = np.random.default_rng(7).uniform(0.0, 1e-7, 5000)
    g[[1234, 4000]] = 1.0, 0.2
    k, mass = sums._summary(g, -2000)
    points = np.arange(5000.0) - 2000
    assert len(k) <= 300
    assert (np.diff(k) >= 0).all()
    assert k[0] <= points[0]
    assert k[-1] >= points[-1]
    assert mass.sum() == pytest.approx(g.sum(), rel=1e-13)
    assert mass @ k == pytest.approx(g @ points, rel=1e-11)
    for slope in (-1e-2, -1e-5, 1e-5, 1e-2):
        assert mass @ np.exp(slope * k) >= g @ np.exp(slope * points) * (1 - 1e-14)
    assert mass @ (k - mass @ k) ** 2 <= 1.001 * (g @ (points - g @ points) ** 2)
