"""Sums in stages stay bounds, and every allowance of a stage is needed: without it, a planted fault is seen."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy.special import ndtr

from accountants import guarantee
from accountants.composition import bounds, masses, sums
from accountants.composition.bounds import above, below, compose
from accountants.composition.cells import MonotoneLoss, cells_on_grid, split_monotone
from accountants.composition.masses import Masses
from accountants.dominating_pairs.registry import dominating_pairs
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.mechanisms.additive import Additive

COUNT, SIGMA, TILT = 2000, 40.0, 6.0
MU = math.sqrt(COUNT) / SIGMA
EPSILONS = (3.0, 6.0, 7.0)


def exact(epsilon):
    return ndtr(MU / 2 - epsilon / MU) - math.exp(epsilon) * ndtr(-MU / 2 - epsilon / MU)


def gaussian_cells(step):
    return cells_on_grid(split_monotone(dominating_pairs(Additive(Gaussian(SIGMA)), 1.0)[0].privacy_loss()), step)


@pytest.mark.parametrize("stages", [1, 2])
def test_sums_in_stages_hold_the_closed_form(stages):
    cells, step = gaussian_cells(2e-4), 2e-4
    low = compose([below(cells, step, COUNT)], step, TILT, -1, stages)
    high = compose([above(cells, step, COUNT)], step, TILT, 1, stages)
    for epsilon in EPSILONS:
        lower, upper = low.delta(epsilon, -1), high.delta(epsilon, 1)
        assert lower <= exact(epsilon) * (1 + 1e-10)
        assert exact(epsilon) * (1 - 1e-10) <= upper
        assert upper - lower <= 2e-3 * upper


def test_a_stage_with_the_wrong_side_is_seen():
    """A contraction in the upper bound's stages gives less than the truth, and a spread in the lower one's more."""
    step = 2e-4
    cells = gaussian_cells(step)
    assert compose([above(cells, step, COUNT)], step, TILT, -1, 2).delta(6.0, 1) < exact(6.0)
    assert compose([below(cells, step, COUNT)], step, TILT, 1, 2).delta(6.0, -1) > exact(6.0)


def reports(seed, size=40):
    """Masses of one report, of which the sum is known in extended precision."""
    mass = np.random.default_rng(seed).random(size) ** 4
    return Masses(mass / mass.sum(), -size // 3, 0.0, 0.0, sums.BLOCK)


@pytest.mark.parametrize("seed", range(5))
def test_the_error_of_a_stage_is_within_its_bound(seed):
    """One block against its sum in extended precision; the bound is no larger than a millionth of a millionth."""
    part = reports(seed)
    tilted = sums._tilted(part, 0.01, 3.0)[0]
    ((block, error),) = sums._blocks(tilted, [sums.BLOCK], 0.01, 3.0, 1, 1e-18)
    whole, square = np.ones(1, np.longdouble), tilted.g.astype(np.longdouble)
    for _ in range(sums.BLOCK):
        whole = np.convolve(whole, square)
    spread, first = masses.coarsened(whole.astype(float), sums.BLOCK * part.first, 0.01, 3.0, 1)
    found = np.zeros(len(spread))
    start = block.first - first
    found[start : start + len(block.g)] = block.g * math.exp(block.change)
    off = np.abs(found - spread).sum()
    assert 0.0 < off <= error < 1e-11


def test_what_a_stage_loses_is_counted(monkeypatch):
    """A grid too small on purpose: without the errors of the stages the upper bound is below the truth."""
    step = 2e-4
    cells = gaussian_cells(step)
    monkeypatch.setattr(sums, "_NEGLIGIBLE", 1e3)
    high = compose([above(cells, step, COUNT)], step, TILT, 1, 2)
    low = compose([below(cells, step, COUNT)], step, TILT, -1, 2)
    assert low.delta(6.0, -1) <= exact(6.0) <= high.delta(6.0, 1)
    bare = dataclasses.replace(high, outside=0.0, error=0.0), dataclasses.replace(low, outside=0.0, error=0.0)
    assert not bare[1].delta(6.0, -1) <= exact(6.0) <= bare[0].delta(6.0, 1)


def test_rare_losses_as_a_mixture_are_those_of_one_grid(monkeypatch):
    """The brackets intersect; of fewer rare losses than there are, the upper bound counts the rest as lost."""
    made = guarantee(Additive(Gaussian(0.6)), 1.0).subsample(0.002).repeat(2000)
    low, high = bounds.Bracket(made).epsilon(1e-6)
    with monkeypatch.context() as patch:
        patch.setattr(bounds, "_LONG", 1 << 40)
        plain_low, plain_high = bounds.Bracket(made).epsilon(1e-6)
    assert max(low, plain_low) <= min(high, plain_high)
    assert max(high - low, plain_high - plain_low) <= 1e-4 * high
    with monkeypatch.context() as patch:
        patch.setattr(sums, "_MOST_RARE", 3)
        few_low, few_high = bounds.Bracket(made).epsilon(1e-6)
    assert few_low <= plain_high
    assert few_high >= plain_low


@pytest.mark.parametrize("wrong", [-0.4e-12, 0.4e-12])
def test_masses_that_are_rounded_stay_between_their_bounds(wrong):
    """A mass off by its stated error: the bounds of one report hold that of the true mass."""
    stated = MonotoneLoss(np.array([0.25 * (1 + wrong)]), np.zeros(1), np.array([0.4]), (), 0.0)
    cells = cells_on_grid(stated, 0.4, offset=0.4)
    low, high = (side(cells, 0.4, 1).mass.sum() for side in (below, above))
    assert low <= 0.25 <= high


def test_a_contraction_keeps_the_mean_and_never_gains():
    """Groups have at least the p/q of their grid point, and hardly more: the mass under q is at least 1."""
    step = 0.05
    cells = gaussian_cells(step / SIGMA)
    low, high = (side(cells, step / SIGMA, 1) for side in (below, above))
    q = [part.mass @ np.exp(-step / SIGMA * (part.first + np.arange(len(part.mass)))) for part in (low, high)]
    assert 0.0 <= q[0] - 1 < 1e-7
    assert abs(q[1] - 1) < 1e-7


def test_gaussian_noise_alone_has_a_closed_form_of_any_count():
    """Also of counts and distances that no grid holds; and equal terms are one."""
    many = guarantee(Additive(Gaussian(1e4)), 1.0).repeat(85_000_000)
    low, high = many.bracket(delta=1e-6)
    assert 0 < high - low <= 1e-9 * high
    mu = math.sqrt(85e6) / 1e4
    delta = ndtr(mu / 2 - high / mu) - math.exp(high) * ndtr(-mu / 2 - high / mu)
    assert delta == pytest.approx(1e-6, rel=1e-8)
    apart = guarantee(Additive(Gaussian(30.0)), 1.0).compose(guarantee(Additive(Gaussian(40.0)), 1.0))
    alike = guarantee(Additive(Gaussian(24.0)), 1.0)
    assert apart.bracket(delta=1e-5) == pytest.approx(alike.bracket(delta=1e-5), rel=1e-9)


def test_far_deltas_have_upper_ends():
    """Gaussian tails are known to the least float, so that no delta is lost in what lies beyond."""
    low, high = guarantee(Additive(Gaussian(1.0)), 1.0).subsample(0.01).repeat(3).bracket(delta=1e-75)
    assert 0 < high - low <= 1e-4 * high
