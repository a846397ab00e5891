"""Intervals of ratios: the bound on tails of noise, against the certified integers; and single rows, exactly."""

from __future__ import annotations

import numpy as np
import pytest

from dpkernels.session import ratios, sums
from dpkernels.session.moments import Mean, Variance


@pytest.mark.parametrize("coefficients", [(1.0,), (1.0, 1.0), (0.3, -0.7), (1.0, 0.0), (0.999, 1e-3)], ids=str)
@pytest.mark.parametrize(("sensitivity", "epsilon"), [(1, 1.0), (1, 4.0), (15, 0.5)])
def test_tails_are_bounded_from_above(sensitivity, epsilon, coefficients):
    """A step further out, Laplace noise has at least the table's tail, and for wide noise nearly the same."""
    sampler = sums.noise_sampler(sums.SumLattice(0, 0, sensitivity), epsilon, 1)
    noisy = sums.NoisySums(np.zeros((1, 1)), sums.SumLattice(0, 0, sensitivity), sampler)
    table = sampler.certificate.table.finite
    codes, weights = np.arange(table.first, table.last + 1), table.weights / 2.0**table.bits
    keep = weights > 1e-9
    codes, weights = codes[keep], weights[keep]
    points, masses = np.zeros(1), np.ones(1)
    for c in coefficients:
        points, masses = (points[:, None] + c * codes).ravel(), (masses[:, None] * weights).ravel()
    order = np.argsort(points)
    points, tails = points[order], np.cumsum(masses[order][::-1])[::-1]
    distances = np.unique(np.quantile(points, np.linspace(0.5, 1, 60)))
    true = tails[np.searchsorted(points, distances - 1e-9)]
    size = np.abs(coefficients).sum()
    scales = np.broadcast_to(noisy.scale * np.array(coefficients), (len(distances), len(coefficients)))
    bound = ratios.laplace_tail(distances - size, scales)
    assert (bound >= true - 1e-6).all()
    is_compared = (true > 1e-4) & (true < 0.3)
    assert sensitivity == 1 or (ratios.laplace_tail(distances, scales)[is_compared] < 1.25 * true[is_compared]).all()
    narrow = ratios.laplace_tail(distances - size, 0.9 * scales)
    assert (narrow < true - 1e-6).any() or sensitivity == 1, "noise that is 10 % narrower fails"


@pytest.mark.parametrize("ratio", [Mean.ratio, Variance.ratio], ids=["mean", "variance"])
def test_a_ratio_of_sums_without_noise_is_the_statistic(ratio):
    x = np.random.default_rng(3).uniform(0, 1, 5000)
    weights = (x, 1 - x) if ratio is Mean.ratio else ((1 - x) ** 2, 2 * x * (1 - x), x**2)
    totals = np.sum(sums.integer_weights(weights), 1)[None] / sums.UNIT
    lattice = sums.SumLattice(0, 0, 1)
    noisy = sums.NoisySums(totals, lattice, sums.noise_sampler(lattice, 10.0, 1))
    true = x.mean() if ratio is Mean.ratio else x.var()
    assert ratio.value(noisy)[0] == pytest.approx(true, rel=1e-8)
    low, high = ratio.bounds(noisy, 0.95)
    assert low[0] < true < high[0] < low[0] + 0.01


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_an_interval_of_a_ratio_covers_it_for_coarse_noise_too(confidence):
    """Summed over all noise of two sums; noise of few steps has a larger tail than Laplace noise of its scale."""
    lattice, true = sums.SumLattice(0, 0, 1), np.array([[30.0, 70.0]])
    sampler = sums.noise_sampler(lattice, 1.0, 1)
    table = sampler.certificate.table.finite
    codes, weights = np.arange(table.first, table.last + 1), table.weights / 2.0**table.bits
    is_near = np.abs(codes) <= 14
    codes, weights = codes[is_near], weights[is_near]
    first, second = (grid.ravel() for grid in np.meshgrid(codes, codes, indexing="ij"))
    noisy = sums.NoisySums(true + np.stack([first, second], 1), lattice, sampler)
    low, high = Mean.ratio.bounds(noisy, confidence)
    covered = (np.outer(weights, weights).ravel())[(low <= 0.3) & (high >= 0.3)].sum()
    assert confidence <= covered
