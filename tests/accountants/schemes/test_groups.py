"""Groups of records: against enumeration of samples and of values, limits, and bad input."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import accountants
import dpkernels as dpk
from accountants import guarantee

NOISES = {
    "gaussian": dpk.Gaussian(1.3),
    "laplace": dpk.Laplace(1.0),
    "logistic": dpk.Logistic(0.8),
    "recycled": accountants.recycling.recycled(dpk.Gaussian(1.3), 1.5, 0.4),
    "student": dpk.Student(1.0, 4.0),
    "staircase": dpk.staircase(epsilon=1.0, sensitivity=1.0).noise,
}
LOG_CONCAVE = ("gaussian", "laplace", "logistic")


def divergences(noise, values, rate, eps):
    """Return both divergences of a group of records with these values on a Poisson sample, by fine sums."""
    x = np.linspace(-60.0, 60.0, 240_001) + 1e-4
    q = np.exp(np.asarray(noise.log_prob(x)))
    p = np.zeros(len(x))
    for drawn in itertools.product((0, 1), repeat=len(values)):
        weight = math.prod(rate if one else 1 - rate for one in drawn)
        p += weight * np.exp(np.asarray(noise.log_prob(x - np.dot(drawn, values))))
    step = x[1] - x[0]
    t = math.exp(eps)
    return np.maximum(p - t * q, 0).sum() * step, np.maximum(q - t * p, 0).sum() * step


@pytest.mark.lengthy
@pytest.mark.quick("laplace", "student")
@pytest.mark.parametrize("name", NOISES)
def test_no_values_of_a_group_reveal_more(name):
    """Equal records of the largest value attain the bound of log-concave noise, and no others exceed it."""
    noise, rate, records = NOISES[name], 0.3, 3
    scheme = guarantee(dpk.Additive(noise), 1.0).subsample(rate).for_groups(records)
    pair = scheme.numeric.terms[0].pairs[0]
    rng = np.random.default_rng(2)
    worst = np.ones(records)
    for eps in (0.1, 0.8):
        bounds = [float(p.hockey_stick()(np.float64(eps))) for p in (pair, pair.mirror())]
        low, high = scheme.bracket(epsilon=eps)
        for values in (worst, -worst, np.array([1.0, -1.0, 1.0]), *rng.uniform(-1, 1, (4, records))):
            for truth, bound in zip(divergences(noise, values, rate, eps), bounds, strict=True):
                assert truth <= bound + 3e-5
        truth = max(divergences(noise, worst, rate, eps))
        assert low - 3e-5 <= truth <= high + 3e-5
        if name in LOG_CONCAVE:
            assert high - low <= 2e-4 * high
            assert high == pytest.approx(truth, abs=3e-5)


def test_lattice_enumeration():
    """Discrete Laplace noise: a table of three equal records, composed twice."""
    noise, rate, records = dpk.DiscreteLaplace(0.8), 0.4, 3
    scheme = guarantee(dpk.Additive(noise), 1.0).subsample(rate).for_groups(records).repeat(2)
    single = np.asarray(guarantee(dpk.Additive(noise), 1.0).terms[0].pairs[0].p)[:-1]
    p, q = np.zeros(len(single) + records), np.append(single, np.zeros(records))
    for j in range(records + 1):
        p[j : j + len(single)] += math.comb(records, j) * rate**j * (1 - rate) ** (records - j) * single
    for eps in (0.3, 1.0):
        low, high = scheme.bracket(epsilon=eps)
        both, t = (np.outer(p, p), np.outer(q, q)), math.exp(eps)
        truth = max(np.maximum(both[0] - t * both[1], 0).sum(), np.maximum(both[1] - t * both[0], 0).sum())
        assert low * (1 - 1e-9) <= truth <= high * (1 + 1e-9)
        assert high - low <= 3e-4 * high


def test_known_number():
    """dp_accounting 0.6.0 has 23.0827 for groups of 8 in 1,000 steps, with an interval of 1e-3."""
    low, high = (
        guarantee(dpk.Additive(dpk.Gaussian(1.0)), 1.0).subsample(0.01).for_groups(8).repeat(1000).bracket(delta=1e-6)
    )
    assert 23.0807 <= low < high <= 23.0861
    assert high - low <= 1e-5 * high


@pytest.mark.lengthy
@pytest.mark.quick("gaussian", "student")
@pytest.mark.parametrize("name", NOISES)
def test_limits(name):
    step = guarantee(dpk.Additive(NOISES[name]), 1.0)
    sampled = step.subsample(0.2)
    assert sampled.for_groups(1) is sampled
    assert step.for_groups(3).bracket(epsilon=0.7) == guarantee(dpk.Additive(NOISES[name]), 3.0).bracket(epsilon=0.7)
    assert step.subsample(1.0).for_groups(2).bracket(epsilon=0.7) == step.for_groups(2).bracket(epsilon=0.7)
    sizes = [sampled.for_groups(k).delta(0.5) for k in (1, 2, 4)]
    assert sizes == sorted(sizes)


def test_bad_input():
    step = guarantee(dpk.Additive(dpk.Gaussian(1.0)), 1.0)
    with pytest.raises(ValueError, match=r"records: 0 is not in 1\.\.1024"):
        step.for_groups(0)
    with pytest.raises(ValueError, match="groups are known for additive noise"):
        guarantee(accountants.randomised_response(1.0)).for_groups(2)
    for scheme in (step.random_allocation(3), step.sample_fixed(1, 3), step.subsample(0.1, adjacency="replace")):
        with pytest.raises(ValueError, match="groups are known for reports on all the data and on Poisson samples"):
            scheme.for_groups(2)
