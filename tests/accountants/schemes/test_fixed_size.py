"""Samples of a fixed size: against enumeration of samples in fractions, closed forms, limits, and bad input."""

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

EPS = (0.0, 0.1, 0.4, 0.9)
K = 3  # The categories of randomised response.
HIGH, LOW = Fraction(3, 5), Fraction(1, 5)


def gaussian(sigma):
    return guarantee(dpk.Additive(dpk.Gaussian(sigma)), 1.0)


def response(category):
    return [HIGH if k == category else LOW for k in range(K)]


def on_samples(value, batch, examples):
    """Return the law of a response to the value of a sample, of which record 0 is the one in question."""
    samples = list(itertools.combinations(range(examples), batch))
    return [sum(response(value(sample))[k] for sample in samples) / len(samples) for k in range(K)]


def largest_delta(laws, eps):
    t = Fraction(math.exp(eps))
    return max(float(sum(max(a - t * b, 0) for a, b in zip(*pair, strict=True))) for pair in (laws, laws[::-1]))


def composed(laws, count):
    return [[math.prod(each) for each in itertools.product(law, repeat=count)] for law in laws]


@pytest.mark.parametrize(("batch", "examples"), [(1, 4), (2, 5), (3, 4), (4, 4)])
@pytest.mark.parametrize("count", [1, 3])
def test_enumeration_of_samples(batch, examples, count):
    """The record sways a response if it is in the sample, in every way that the responses of others allow."""
    table = guarantee(
        accountants.discrete_pair(*(np.array([float(HIGH), float(LOW), float(LOW)][::s]) for s in (1, -1)))
    )
    scheme = table.sample_fixed(batch, examples).repeat(count)
    for eps in EPS:
        low, high = scheme.bracket(epsilon=eps)
        truths = []
        for value_p, value_q, rest in itertools.product(range(K), repeat=3):
            laws = [
                on_samples(lambda sample, value=value, rest=rest: value if 0 in sample else rest, batch, examples)
                for value in (value_p, value_q)
            ]
            truths.append(largest_delta(composed(laws, count), eps))
        assert low * (1 - 1e-9) - 1e-15 <= max(truths) <= high * (1 + 1e-9) + 1e-15
        if count == 1:
            assert high == pytest.approx(max(truths), rel=1e-9, abs=1e-13)


@pytest.mark.parametrize("sigma", [0.7, 1.5])
@pytest.mark.parametrize("rate", [0.01, 0.3])
def test_one_release_of_gaussian_noise(sigma, rate):
    """The mixture of both records' distributions, twice the norm apart, against one of them."""
    D = 2 / sigma
    for eps in (0.0, 0.3, 1.5):
        loss = math.log1p((math.exp(eps) - 1) / rate)
        x = loss / D + D / 2
        truth = rate * ndtr(D - x) + (1 - rate) * ndtr(-x) - math.exp(eps) * ndtr(-x)
        low, high = gaussian(sigma).sample_fixed(rate * 1000, 1000).bracket(epsilon=eps)
        assert low - 1e-14 <= truth <= high + 1e-14
        assert high == pytest.approx(truth, rel=1e-9)


@pytest.mark.lengthy
def test_several_releases_are_between_known_numbers():
    """Of 1,000 steps at rate 0.01, the worst fixed dataset has epsilon 13.36 and the pair 14.82."""
    low, high = gaussian(1.0).sample_fixed(10, 1000).repeat(1000).bracket(delta=1e-5)
    assert low == pytest.approx(13.36, abs=0.005)
    assert high == pytest.approx(14.82, abs=0.005)
    poisson = gaussian(0.5).subsample(0.01).repeat(1000).bracket(delta=1e-5)  # With the distance 2.
    assert low == pytest.approx(poisson[0], rel=1e-4)


NOISES = {
    "gaussian": dpk.Gaussian(1.0),
    "laplace": dpk.Laplace(1.0),
    "logistic": dpk.Logistic(0.7),
    "recycled": accountants.recycling.recycled(dpk.Gaussian(1.0), 1.5, 0.4),
    "student": dpk.Student(1.0, 5.0),
}


@pytest.mark.parametrize(
    "name", [name if name == "laplace" else pytest.param(name, marks=pytest.mark.lengthy) for name in NOISES]
)
def test_limits(name):
    """A sample of everything is a release on everything with a record replaced, twice the sensitivity apart."""
    noise = NOISES[name]
    all_data = guarantee(dpk.Additive(noise), 1.0).sample_fixed(50, 50)
    plain = guarantee(dpk.Additive(noise), 2.0)
    for eps in (0.1, 1.0):
        assert all_data.bracket(epsilon=eps)[1] == pytest.approx(plain.bracket(epsilon=eps)[1], rel=1e-9)
    few = guarantee(dpk.Additive(noise), 1.0)
    sizes = [few.sample_fixed(batch, 50).repeat(3).delta(0.5) for batch in (1, 5, 25, 50)]
    assert sizes == sorted(sizes)


def test_lattices_move_by_twice_the_sensitivity():
    noise = dpk.DiscreteLaplace(1.0)
    all_data = guarantee(dpk.Additive(noise), 1.0).sample_fixed(5, 5).bracket(epsilon=0.5)
    assert all_data == pytest.approx(guarantee(dpk.Additive(noise), 2.0).bracket(epsilon=0.5), rel=1e-9)


def test_bad_input():
    step = gaussian(1.0)
    with pytest.raises(ValueError, match=r"batch: .* is not in"):
        step.sample_fixed(11, 10)
    with pytest.raises(ValueError, match="batch: 0 is not in"):
        step.sample_fixed(0, 10)
    with pytest.raises(ValueError, match="batch: these reports are on samples already"):
        step.subsample(0.1).sample_fixed(1, 10)
    with pytest.raises(ValueError, match="samples of a fixed size are known for symmetric pairs"):
        guarantee(accountants.discrete_pair(np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.4, 0.5]))).sample_fixed(1, 10)
    assert step.sample_fixed(1, 10).neighbouring == "datasets of as many records that differ in one"
