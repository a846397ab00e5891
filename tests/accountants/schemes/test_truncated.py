"""Poisson samples of limited capacity: against enumeration of samples, limits, and bad input."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.special import ndtr

import accountants
import dpkernels as dpk
from accountants import guarantee
from accountants.schemes.poisson import full_sample_probabilities


def gaussian(sigma):
    return guarantee(dpk.Additive(dpk.Gaussian(sigma)), 1.0)


def sums_of_samples(values, rate, capacity):
    """Return the probabilities of all sums of a truncated Poisson sample of records with these integer values."""
    sums = {}
    for size in range(len(values) + 1):
        for drawn in itertools.combinations(range(len(values)), size):
            probability = rate**size * (1 - rate) ** (len(values) - size)
            subsets = list(itertools.combinations(drawn, capacity)) if size > capacity else [drawn]
            for subset in subsets:
                total = sum(values[i] for i in subset)
                sums[total] = sums.get(total, 0) + probability / len(subsets)
    return sums


def divergence(p, q, sigma, eps):
    """Return the hockey-stick divergence of two mixtures of Gaussians at integers, by bisected crossings."""
    x = np.linspace(-60 * sigma - 8, 60 * sigma + 8, 20001)

    def density(law, x):
        return sum(float(w) * np.exp(-((x - c) ** 2) / (2 * sigma**2)) for c, w in law.items())

    def excess(x):
        return density(p, x) - math.exp(eps) * density(q, x)

    sign = excess(x) > 0
    places = np.flatnonzero(sign[1:] != sign[:-1])
    low, high, rises = x[places], x[places + 1], sign[places + 1]
    for _ in range(60):
        middle = (low + high) / 2
        after = (excess(middle) > 0) == rises
        low, high = np.where(after, low, middle), np.where(after, middle, high)
    ends = np.concatenate([[-np.inf] if sign[0] else [], high, [np.inf] if sign[-1] else []]).reshape(-1, 2)

    def mass(law):
        return sum(float(w) * (ndtr((b - c) / sigma) - ndtr((a - c) / sigma)) for c, w in law.items() for a, b in ends)

    return mass(p) - math.exp(eps) * mass(q)


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("examples", "capacity", "rate"), [(5, 2, Fraction(2, 5)), (4, 1, Fraction(1, 4)), (5, 4, Fraction(1, 2))]
)
def test_enumeration_of_samples(examples, capacity, rate):
    """No values of the other records reveal more than the bound, and zeros attain the lower end."""
    sigma = 0.8
    scheme = gaussian(sigma).subsample(float(rate), capacity=capacity, examples=examples)
    pair = scheme.numeric.terms[0].pairs[0]
    for eps in (0.0, 0.3, 1.0):
        bounds = [float(p.hockey_stick()(np.float64(eps))) for p in (pair, pair.mirror())]
        low, high = scheme.bracket(epsilon=eps)
        assert high == pytest.approx(max(bounds), rel=1e-12)
        for others in itertools.combinations_with_replacement((-1, 0, 1), examples - 1):
            laws = sums_of_samples((1, *others), rate, capacity), sums_of_samples(others, rate, capacity)
            truths = [divergence(*pair_of_laws, sigma, eps) for pair_of_laws in (laws, laws[::-1])]
            assert all(truth <= bound + 1e-12 for truth, bound in zip(truths, bounds, strict=True))
            if not any(others):
                assert low == pytest.approx(max(truths), rel=1e-7)


def test_probabilities_of_full_samples():
    """Against sums of fractions."""
    for n, B, rate in ((5, 2, Fraction(2, 5)), (40, 7, Fraction(1, 10)), (12, 11, Fraction(1, 2))):

        def tail(count, least, rate=rate):
            return sum(math.comb(count, j) * rate**j * (1 - rate) ** (count - j) for j in range(least, count + 1))

        full = tail(n - 1, B)
        kept = Fraction(B, n) * tail(n, B + 1) / full
        probabilities = full_sample_probabilities(float(rate), B, n)
        assert probabilities[0] == pytest.approx(float(full), rel=1e-11)
        assert probabilities[1] == pytest.approx(float(kept), rel=1e-11)
        # The record is kept in a full sample with the mean of r B/(N + 1), N >= B other records in the sample.
        law = [math.comb(n - 1, j) * rate**j * (1 - rate) ** (n - 1 - j) for j in range(n)]
        assert kept == sum(law[j] * rate * Fraction(B, j + 1) for j in range(B, n)) / full


@pytest.mark.lengthy
def test_limits():
    step = gaussian(1.0)
    poisson = step.subsample(0.01).repeat(1000)
    assert step.subsample(0.01, capacity=500, examples=500).repeat(1000).bracket(delta=1e-6) == poisson.bracket(
        delta=1e-6
    )
    low, high = step.subsample(0.01, capacity=200, examples=10_000).repeat(1000).bracket(delta=1e-6)
    assert low == pytest.approx(poisson.bracket(delta=1e-6)[0], rel=1e-6)
    assert high == pytest.approx(poisson.bracket(delta=1e-6)[1], rel=1e-4)
    widths = [
        step.subsample(0.01, capacity=B, examples=10_000).repeat(100).bracket(delta=1e-6) for B in (120, 140, 160)
    ]
    assert widths[0][1] > widths[1][1] > widths[2][1]


@pytest.mark.lengthy
def test_known_numbers():
    """At a capacity that is exceeded with a probability of 1.6e-6, a published bound is 2.1385."""
    low, high = gaussian(1.0).subsample(0.01, capacity=150, examples=10_000).repeat(1000).bracket(delta=1e-6)
    assert 2.124 < low < high < 2.1386


@pytest.mark.lengthy
@pytest.mark.parametrize("noise", [dpk.Laplace(1.0), dpk.Logistic(1.0), dpk.DiscreteLaplace(0.7)])
def test_other_noise(noise):
    low, high = (
        guarantee(dpk.Additive(noise), 1.0).subsample(0.1, capacity=20, examples=100).repeat(10).bracket(epsilon=0.5)
    )
    plain = guarantee(dpk.Additive(noise), 1.0).subsample(0.1).repeat(10).bracket(epsilon=0.5)
    assert plain[0] * (1 - 1e-2) <= low <= plain[1] <= high <= plain[1] * 1.5


def test_bad_input():
    step = gaussian(1.0)
    for arguments in ({"capacity": 3}, {"examples": 3}, {"capacity": 3, "examples": 9, "adjacency": "replace"}):
        with pytest.raises(ValueError, match="both are needed for samples of a capacity"):
            step.subsample(0.1, **arguments)
    with pytest.raises(ValueError, match="capacity: 0 is not in"):
        step.subsample(0.1, capacity=0, examples=9)
    near = accountants.dominating_pairs.discrete.Atoms(
        np.array([0.6, 0.4]), np.array([0.4, 0.6]), within_sensitivity=True
    )
    with pytest.raises(ValueError, match="take a mechanism for any two inputs"):
        guarantee(near).subsample(0.1, capacity=2, examples=9)
