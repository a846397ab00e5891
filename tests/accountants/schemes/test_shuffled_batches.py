"""Shuffled batches: the lower end is a test that works, the upper end no amplification, by quadrature."""

from __future__ import annotations

import math

import numpy as np
import pytest

import dpkernels as dpk
from accountants import guarantee


def gaussian(sigma):
    return guarantee(dpk.Additive(dpk.Gaussian(sigma)), 1.0)


def by_quadrature(sigma, eps):
    """Return both divergences of two batches of opposite records, one of which the record is in."""
    x = np.linspace(-10 * sigma, 10 * sigma + 2, 1201)

    def law(value):
        moved, rest = (np.exp(-((x - c) ** 2) / (2 * sigma**2)) for c in (value, 0.0))
        joint = (np.outer(moved, rest) + np.outer(rest, moved)) / 2
        return joint / (2 * math.pi * sigma**2) * (x[1] - x[0]) ** 2

    p, q, t = law(2.0), law(1.0), math.exp(eps)
    return np.maximum(p - t * q, 0).sum(), np.maximum(q - t * p, 0).sum()


@pytest.mark.lengthy
@pytest.mark.parametrize("sigma", [0.4, 1.0])
def test_two_batches_are_in_the_bracket(sigma):
    for eps in (0.0, 0.5, 1.5):
        low, high = gaussian(sigma).shuffled_batches(2).bracket(epsilon=eps)
        assert low <= max(by_quadrature(sigma, eps)) + 1e-6
        assert max(by_quadrature(sigma, eps)) <= high
        assert low > 0.3 * high


@pytest.mark.lengthy
def test_shuffling_is_not_poisson_sampling():
    """Chua et al. 2024: of 1,000 batches at sigma 0.5 delta(4) is above 0.07, of random allocation about 1e-6."""
    low, high = gaussian(0.5).shuffled_batches(1000).bracket(epsilon=4.0)
    assert 0.0730 < low <= 0.0738
    assert high == gaussian(0.5).bracket(epsilon=4.0)[1]
    assert gaussian(0.5).random_allocation(1000).delta(4.0) < 2e-6


def test_epochs_and_input():
    one, three = (gaussian(1.0).shuffled_batches(50).repeat(epochs).bracket(epsilon=1.0) for epochs in (1, 3))
    assert one[0] < three[0] < three[1] == pytest.approx(gaussian(1.0).repeat(3).bracket(epsilon=1.0)[1], rel=1e-5)
    assert one[1] < three[1]
    assert (
        gaussian(1.0).shuffled_batches(5).neighbouring == "datasets of which one has the value 0 in place of one record"
    )
    with pytest.raises(ValueError, match="shuffled batches are known for Gaussian noise"):
        guarantee(dpk.Additive(dpk.Laplace(1.0)), 1.0).shuffled_batches(5)
    with pytest.raises(ValueError, match="these reports are on samples already"):
        gaussian(1.0).subsample(0.1).shuffled_batches(5)
