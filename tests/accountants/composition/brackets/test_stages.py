"""Sums in stages stay bounds, and every allowance of a stage is needed: without it, a planted fault is seen."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from scipy.special import ndtr

from accountants import guarantee
from accountants.composition.brackets import direct_sums, masses, monotone, refinement, sum_quantities, sums
from accountants.composition.brackets.cells import Cells, cells_on_grid
from accountants.composition.brackets.masses import RATIO, GridReleases
from accountants.composition.brackets.monotone import MonotoneLoss, TooManyPointsError, split_monotone
from accountants.composition.brackets.offsets import best_offset, rough_losses
from accountants.composition.brackets.refinement import GridBracket, compose, lower_masses, upper_masses
from accountants.dominating_pairs.base import profile
from accountants.dominating_pairs.registry import dominating_pairs
from accountants.dominating_pairs.windowed import WindowedPair
from accountants.loss_intervals import IntervalMasses, LossIntervals, points_at_levels
from accountants.privacy_loss import PrivacyLossDistribution, SmoothPieces
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.distributions.staircase import Staircase
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.windowed.bases import Quartic
from dpkernels.mechanisms.windowed.windows import Sine, Uniform
from dpkernels.numerics import UNIT_ROUNDOFF

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
    low = compose([lower_masses(cells, step, COUNT)], step, TILT, -1, stages)
    high = compose([upper_masses(cells, step, COUNT)], step, TILT, 1, stages)
    for epsilon in EPSILONS:
        lower, upper = low.delta(epsilon, -1), high.delta(epsilon, 1)
        assert lower <= exact(epsilon) * (1 + 1e-10)
        assert exact(epsilon) * (1 - 1e-10) <= upper
        assert upper - lower <= 2e-3 * upper


def test_a_stage_with_the_wrong_side_is_seen():
    """A contraction in the upper bound's stages gives less than the truth, and a spread in the lower one's more."""
    step = 2e-4
    cells = gaussian_cells(step)
    assert compose([upper_masses(cells, step, COUNT)], step, TILT, -1, 2).delta(6.0, 1) < exact(6.0)
    assert compose([lower_masses(cells, step, COUNT)], step, TILT, 1, 2).delta(6.0, -1) > exact(6.0)


def reports(seed, size=40):
    """Masses of one report, of which the sum is known in extended precision."""
    mass = np.random.default_rng(seed).random(size) ** 4
    return GridReleases(mass / mass.sum(), -size // 3, 0.0, 0.0, sums.REPORTS_PER_BLOCK)


@pytest.mark.parametrize("seed", range(5))
def test_the_error_of_a_stage_is_within_its_bound(seed):
    """One block against its sum in extended precision; the bound is no larger than a millionth of a millionth."""
    part = reports(seed)
    tilted = sums._tilted(part, 0.01, 3.0)[0]
    ((block, error),) = sums._blocks(tilted, [sums.REPORTS_PER_BLOCK], 0.01, 3.0, 1, 1e-18)
    whole, square = np.ones(1, np.longdouble), tilted.g.astype(np.longdouble)
    for _ in range(sums.REPORTS_PER_BLOCK):
        whole = np.convolve(whole, square)
    spread, first = masses.coarsen(whole.astype(float), sums.REPORTS_PER_BLOCK * part.first_index, 0.01, 3.0, 1)
    found = np.zeros(len(spread))
    start = block.first_index - first
    found[start : start + len(block.g)] = block.g * math.exp(block.change)
    off = np.abs(found - spread).sum()
    assert 0.0 < off <= error < 1e-11


def test_what_a_stage_loses_is_counted(monkeypatch):
    """A grid too small on purpose: without the errors of the stages the upper bound is below the truth."""
    step = 2e-4
    cells = gaussian_cells(step)
    monkeypatch.setattr(sums, "_NEGLIGIBLE", 1e3)
    high = compose([upper_masses(cells, step, COUNT)], step, TILT, 1, 2)
    low = compose([lower_masses(cells, step, COUNT)], step, TILT, -1, 2)
    assert low.delta(6.0, -1) <= exact(6.0) <= high.delta(6.0, 1)
    bare = (
        dataclasses.replace(high, misplaced_mass=0.0, error=0.0),
        dataclasses.replace(low, misplaced_mass=0.0, error=0.0),
    )
    assert not bare[1].delta(6.0, -1) <= exact(6.0) <= bare[0].delta(6.0, 1)


def stop_loss(values, mass, t):
    return np.maximum(values - t[:, None], 0.0) @ mass


@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.parametrize("seed", range(3))
def test_a_linear_stage_keeps_the_mean_of_losses(seed, side):
    """E(L - t)_+ is nowhere moved to the other side; in the order of ratios, that of guarantees, a mean changes."""
    step, part = 0.3, reports(seed, 200)
    points = step * (part.first_index + np.arange(200.0))
    smooth = part.mass.mean() + part.mass
    smooth *= np.exp(-((np.arange(200.0) - 100) ** 2) / 800)
    part = replace(part, mass=smooth / smooth.sum())
    t = np.linspace(points[0] - 1, points[-1] + 1, 1001)
    results = {}
    for is_linear in (True, False):
        mass, first = masses.coarsen(part.mass, part.first_index, step, 0.0, side, is_linear=is_linear)
        results[is_linear] = masses.RATIO * step * (first + np.arange(float(len(mass)))), mass
    off = side * (stop_loss(*results[True], t) - stop_loss(points, part.mass, t))
    assert off.min() >= -1e-12
    assert off.max() > 1e-3
    means = {is_linear: values @ mass - points @ part.mass for is_linear, (values, mass) in results.items()}
    assert (-1e-12 if side > 0 else -0.02 * step) <= means[True] <= 1e-12  # A contraction may have nothing to take.
    assert abs(means[False]) > 0.4 * step


def test_sums_in_linear_stages_are_around_the_sum():
    """Losses on the grid, whose sum one transform gives but for its errors; stages of the wrong side are seen."""
    part = replace(reports(1), count=2000)
    step, tilt = 0.02, 0.6
    sums_of = {
        (side, stages): compose([part], step, tilt, side, stages, is_linear=True)
        for side in (1, -1)
        for stages in (0, 1, 2)
    }

    def positive_part(total, threshold):
        return float(np.exp(total.log_scale - tilt * total.loss) * total.g @ np.maximum(total.loss - threshold, 0.0))

    mean = 2000 * step * float(part.mass @ (part.first_index + np.arange(40.0)))
    for threshold in (mean, mean + 5.0):
        truth = positive_part(sums_of[1, 0], threshold)
        for stages in (1, 2):
            low, high = (positive_part(sums_of[side, stages], threshold) for side in (-1, 1))
            assert low < truth * (1 - 1e-7)
            assert truth * (1 + 1e-7) < high
            assert high - low <= 0.02 * truth


@pytest.mark.parametrize("side", [-1, 1])
def test_losses_of_stages_are_moved_to_their_side(side):
    """By more than the roundings of a stage, away from the multiples of the step, which are exact here."""
    part, step = GridReleases(np.array([0.3, 0.4, 0.3]), -1, 0.0, 0.0, 5000), 2.0**-6
    tilted = [compose([part], step, 0.5, side, 1, is_linear=is_linear) for is_linear in (False, True)]
    for total in [*tilted, direct_sums.compose_directly([part], step, 1e-12, side, 1)]:
        moved = total.loss - np.round(total.loss / (RATIO * step)) * RATIO * step
        assert np.all(side * moved >= 16 * UNIT_ROUNDOFF * 200 * RATIO * step)
        assert np.all(side * moved <= 1e-9 * step)


@pytest.mark.lengthy
def test_rare_losses_as_a_mixture_are_those_of_one_grid(monkeypatch):
    """The brackets intersect; of fewer rare losses than there are, the upper bound counts the rest as lost."""
    composed = guarantee(Additive(Gaussian(0.6)), 1.0).subsample(0.002).repeat(2000)
    low, high = GridBracket(composed).epsilon(1e-6)
    with monkeypatch.context() as patch:
        patch.setattr(refinement, "_WINDOW_MIN_POINTS", 1 << 40)
        plain_low, plain_high = GridBracket(composed).epsilon(1e-6)
    assert max(low, plain_low) <= min(high, plain_high)
    assert max(high - low, plain_high - plain_low) <= 1e-4 * high
    with monkeypatch.context() as patch:
        patch.setattr(sums, "_MAX_RARE", 3)
        few_low, few_high = GridBracket(composed).epsilon(1e-6)
    assert few_low <= plain_high
    assert few_high >= plain_low


@pytest.mark.parametrize("wrong", [-0.4e-12, 0.4e-12])
def test_masses_that_are_rounded_stay_between_their_bounds(wrong):
    """A mass off by its stated error: the bounds of one report hold that of the true mass."""
    stated = MonotoneLoss(np.array([0.25 * (1 + wrong)]), np.zeros(1), np.array([0.4]), (), 0.0)
    cells = cells_on_grid(stated, 0.4, offset=0.4)
    low, high = (side(cells, 0.4, 1).mass.sum() for side in (lower_masses, upper_masses))
    assert low <= 0.25 <= high


def test_a_contraction_keeps_the_mean_and_never_gains():
    """Groups have at least the p/q of their grid point, and hardly more: the mass under q is at least 1."""
    step = 0.05
    cells = gaussian_cells(step / SIGMA)
    low, high = (side(cells, step / SIGMA, 1) for side in (lower_masses, upper_masses))
    q = [part.mass @ np.exp(-step / SIGMA * (part.first_index + np.arange(len(part.mass)))) for part in (low, high)]
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


def test_a_loss_that_is_steep_next_to_an_end_has_a_bracket():
    """Within 1e-12 of its piece the loss passes four levels, whose half cells may each hold the mass there."""
    pair = WindowedPair(Sine(), Quartic(1.0713e-6), 0.35058, 75126.53, 1.64942, 0.0)
    rate, step = 0.34591, 0.0056675
    cells = cells_on_grid(split_monotone(pair.privacy_loss().subsampled(rate)), step)
    low, high = (compose([side(cells, step, 1)], step, 1.0) for side in (lower_masses, upper_masses))
    for epsilon in (0.0, 0.01, 0.1, 1.0):
        truth = rate * float(profile((pair,), np.float64(math.log1p(math.expm1(epsilon) / rate))))
        assert low.delta(epsilon, -1) <= truth <= high.delta(epsilon, 1) <= low.delta(epsilon, -1) * (1 + 1e-7)


@pytest.mark.parametrize("name", ["tails", "panels"])
def test_errors_do_not_grow_with_the_points(name):
    """A difference of tails has the error of the tails, of which a million add up; also that of a rounded loss."""
    pair, rate, count, step = {
        "tails": (dominating_pairs(Additive(Gaussian(2.0)), 1.0)[0], 1e-3, 10**6, 2e-7),
        "panels": (WindowedPair(Uniform(), Quartic(0.2), 0.4, 3.0, 0.9, 0.0), 4e-3, 10**5, 3e-7),
    }[name]
    losses = pair.privacy_loss().subsampled(rate)
    cells = cells_on_grid(split_monotone(losses), step, reach=(-np.inf, 0.01))
    low, high = (side(cells, step, 1) for side in (lower_masses, upper_masses))
    mean = [count * (part.mass * step * (part.first_index + np.arange(len(part.mass)))).sum() for part in (low, high)]
    assert 0 <= count * math.log(high.mass.sum() / low.mass.sum()) < 1e-6
    assert abs(mean[1] - mean[0]) < 1e-3


@pytest.mark.parametrize(
    ("noise", "rate", "count", "delta", "width"),
    [
        (Gaussian(0.6), 3e-6, 34, 4.6e-14, 2e-3),
        (Gaussian(1.0), 1e-5, 2, 1e-40, 1e-4),
        (Laplace(1.0), 1.5e-6, 1736, 3e-9, 9e-6),
    ],
)
def test_rare_losses_and_small_deltas_have_narrow_brackets(noise, rate, count, delta, width):
    """No tilt raises a tail that is heavy after sampling, and a loss of 1e-6 needs a tilt of 1e5."""
    low, high = guarantee(Additive(noise), 1.0).subsample(rate).repeat(count).bracket(delta=delta)
    assert 0 < high - low <= width * high


@pytest.mark.parametrize("stages", [0, 1])
def test_sums_of_positive_terms_are_those_of_transforms(stages):
    """Both brackets hold the closed form and have the same width."""
    step = 1e-2
    cells, count = gaussian_cells(step), 40
    mu = math.sqrt(count) / SIGMA
    for epsilon in (0.2, 0.5):
        truth = ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
        for side, part in ((-1, lower_masses(cells, step, count)), (1, upper_masses(cells, step, count))):
            direct = direct_sums.compose_directly([part], step, 1e-20, side, stages).delta(epsilon, side)
            tilted = compose([part], step, 2.0, side, stages).delta(epsilon, side)
            assert side * direct >= side * truth
            assert direct == pytest.approx(tilted, rel=1e-6)


def test_mass_that_is_left_out_of_sums_of_positive_terms_is_counted():
    step = 1e-2
    cells, count = gaussian_cells(step), 40
    mu, epsilon = math.sqrt(count) / SIGMA, 0.5
    truth = ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
    high = direct_sums.compose_directly([upper_masses(cells, step, count)], step, 1e-2, 1)
    assert high.delta(epsilon, 1) >= truth > dataclasses.replace(high, misplaced_mass=0.0).delta(epsilon, 1)


def test_sums_of_positive_terms_do_not_take_long(monkeypatch):
    monkeypatch.setattr(direct_sums, "_MAX_PRODUCTS", 1000)
    with pytest.raises(TooManyPointsError, match="take too long"):
        direct_sums.compose_directly([upper_masses(gaussian_cells(1e-3), 1e-3, 40)], 1e-3, 1e-20, 1)


@pytest.mark.lengthy
def test_common_losses_beside_rare_ones_lose_nothing_on_the_last_grid():
    """Each number of common losses is put on the coarse grid once; one loss at a time took 2e-4 of eps."""
    low, high = guarantee(Additive(Gaussian(0.6)), 1.0).subsample(1e-3).repeat(100_000).bracket(delta=1e-6)
    assert 0 < high - low <= 1.5e-5 * high


def test_losses_that_are_sums_of_opposite_numbers_are_off_by_no_more_than_stated():
    """A million offsets of -1000.1 leave sums of about 1, with an error of the offsets' size."""
    step, count = 1e-3, 10**6 + 7
    part = GridReleases(np.array([0.25, 0.5, 0.25]), 1_000_099, -1000.1, 0.0, count)
    for total in (compose([part], step, 0.0), direct_sums.compose_directly([replace(part, count=7)], step, 1e-20, 1)):
        copies = count if total.tilt == 0.0 and total.error > 0 else 7
        offset = copies * Fraction(part.offset)
        for loss in total.loss[[0, -1]]:
            place = (Fraction(float(loss)) - offset) / Fraction(step)
            assert abs(place - round(place)) * Fraction(step) <= total.shifted_by_loss_error(0.0, -1)


def test_the_error_of_all_gaussian_noise_as_one_release_is_stated():
    terms = [guarantee(Additive(Gaussian(0.013 * 1.1**k)), 1.0).repeat(3 + k) for k in range(5)]
    composed = GridBracket(terms[0].compose(*terms[1:], guarantee(Additive(Laplace(9.0)), 1.0)))
    (term,) = (term for term in composed._directions[0].terms if term.error)
    (merged,) = (one for one in composed._terms if refinement._is_gaussian(one))
    with mp.workdps(40):
        mu = mp.sqrt(sum((3 + k) / mp.mpf(0.013 * 1.1**k) ** 2 for k in range(5)))
        off = abs(1 / mp.mpf(float(merged.pairs[0].noise.sigma)) / mu - 1)
        # l = mu z + mu^2/2 at z = 37, of which mu is off.
        assert 0 < off * (37 * mu + mu**2) <= term.error


def test_a_mass_that_is_hardly_known_is_no_atom():
    """A short piece of constant loss next to long ones, whose tails have lost its digits."""

    def measure(level, piece):
        mass = np.full(len(level) - 1, 1e-9)
        return IntervalMasses(mass, mass, 0 * mass, 1e-17 + 0 * mass, 0 * mass, 0 * mass, 0 * mass)

    intervals = LossIntervals(np.zeros(1), np.ones(1), measure)
    source = SmoothPieces(np.zeros(1), np.ones(1), *3 * (lambda x, i: 0.0 * x + 0.0 * i,), None, intervals=intervals)
    whole = split_monotone(PrivacyLossDistribution.of_pieces(source, 0.0))
    assert not whole.p.any()
    cells = cells_on_grid(whole, 0.1)
    assert (
        lower_masses(cells, 0.1, 1).mass.sum() <= 1e-9 - 1e-17 <= 1e-9 + 1e-17 <= upper_masses(cells, 0.1, 1).mass.sum()
    )


def excess(cells, step):
    """How much more mass of q the lower bound has, in steps: the mean loss of a report that it loses."""
    low = lower_masses(cells, step, 1)
    points = low.offset + step * (low.first_index + np.arange(len(low.mass)))
    return ((low.mass * np.exp(-points)).sum() - 1) / step


def test_losses_that_crowd_within_a_step_are_on_the_grid():
    """Their mean is; a step that holds the lowest losses alone is another one."""
    for losses, step in (
        (dominating_pairs(Additive(Gaussian(1e5)), 1.0)[0].privacy_loss(), 1e-3),
        (dominating_pairs(Additive(Reweighted(Gaussian(4e4), -1e5, 1e5, 0.3)), 1.0)[0].privacy_loss(), 3e-4),
    ):
        whole = split_monotone(losses)
        assert abs(best_offset(whole, step, rough_losses(whole))) < 1e-3 * step
        assert excess(cells_on_grid(whole, step, offset=best_offset(whole, step, rough_losses(whole))), step) < 2e-5


def test_a_window_cuts_no_group():
    """Its ends are in the middle of coarse cells: at their ends the lower bound lost a share of a coarse step."""
    losses = dominating_pairs(Additive(Gaussian(4.0)), 1.0)[0].privacy_loss().subsampled(0.01)
    step, ratio = 2e-6, 125
    whole = cells_on_grid(split_monotone(losses), step, window=(-0.006, 0.01), ratio=ratio)
    low = lower_masses(whole, step, 1)
    tail = low.offset + ratio * step * (low.tail.first_index + np.arange(len(low.tail.mass)))
    middle = low.offset + step * (low.first_index + np.arange(len(low.mass)))
    of_q = (low.mass * np.exp(-middle)).sum() + (low.tail.mass * np.exp(-tail)).sum()
    assert 0 <= of_q - 1 < 2e-4 * ratio * step * low.tail.mass.sum()


def test_atoms_that_no_grid_holds_are_next_to_it():
    """Of 1,020 atoms the two heaviest ones were on the grid, and others counted as up to a step less."""
    noise = Reweighted(Staircase(0.016063878091825523, 9.096487258252541, 0.0), -1144.69028, 1144.69028, 0.5453)
    low, high = GridBracket(guarantee(Additive(noise), 1.0).repeat(432)).epsilon(4.5e-8)
    assert 0 < high - low <= 2e-5 * high


def test_a_direction_whose_coarse_grid_is_too_large_is_computed(monkeypatch):
    composed = guarantee(Additive(Laplace(2.0)), 1.0).subsample(0.1).repeat(30)
    expected = GridBracket(composed).epsilon(1e-6)
    monkeypatch.setattr(refinement._DirectionSearch, "upper_bound", lambda *_: math.inf)
    low, high = GridBracket(composed).epsilon(1e-6)
    assert math.isfinite(high)
    assert max(low, expected[0]) <= min(high, expected[1])


def test_a_density_is_its_base_outside_of_windows(monkeypatch):
    """A window of a millionth needs a million panels inside, and none beside it."""
    monkeypatch.setattr(monotone, "_MAX_PANELS", 1 << 14)
    pair = WindowedPair(Sine(), Quartic(0.2), 1e-6, 1000.0, 0.9, 0.0)
    whole = split_monotone(pair.privacy_loss())
    assert whole.p.sum() == pytest.approx(1, abs=1e-2)


def test_levels_of_a_loss_that_is_infinite_at_an_end_are_found():
    def loss(x, piece):
        with np.errstate(divide="ignore"):
            return 1 / np.asarray(x)

    level = np.array([1.5, 3.0, 1e6])
    with np.errstate(invalid="ignore"):
        x, error = points_at_levels(loss, (np.zeros(1), np.ones(1)), level, np.zeros(3, int))
    assert (error <= 1e-9 * level).all()
    assert x == pytest.approx(1 / level, rel=1e-9)


def test_a_tilt_that_is_far_too_steep_gives_a_wide_bracket():
    """A contraction on a coarse grid leaves almost no tilted mass: errors relative to it were beyond the floats."""
    composed = guarantee(Additive(Gaussian(SIGMA)), 1.0).subsample(0.5).repeat(20 * COUNT)
    question = sum_quantities.EpsilonOfSum(1e-6)
    (search, *_) = GridBracket(composed)._searches(lambda direction: direction.saddle_of_delta(1e-6))
    step = search.first_step(search.estimate)
    low, high = search.bounds(step, 1e-6, question, (-1, 1))
    assert 0 < high - low < 1e-3 * high
    search.tilt, search.is_staged = 1e5, True
    wide_low, wide_high = search.bounds(8 * step, 1e-6, question, (-1, 1))
    assert wide_low <= high
    assert low <= wide_high


def test_a_grid_finer_than_the_roundings_of_losses_has_no_negative_mass():
    """A loss that may be off by several steps cannot be split between neighbouring points."""
    losses = dominating_pairs(Additive(Gaussian(1e14)), 1.0)[0].privacy_loss()
    for step in (1e-15, 1e-13):
        cells = cells_on_grid(split_monotone(losses), step)
        high, low = upper_masses(cells, step, 1), lower_masses(cells, step, 1)
        assert min(high.mass.min(), low.mass.min()) >= 0
        mean = [
            (part.mass * (part.offset + step * (part.first_index + np.arange(len(part.mass))))).sum()
            for part in (low, high)
        ]
        assert mean[0] <= 0 <= mean[1]


def test_losses_that_are_raised_outside_of_a_window_raise_all():
    """The masses outside have the offset of those in the window."""
    half_cells = np.full((3, 2), 0.1)
    fine = Cells(0, 0.0, half_cells, 1e-7 * half_cells, 0.0, 0.0)
    tail = replace(fine, first_index=2, displacement=np.full((3, 2), 0.5))
    high = upper_masses(replace(fine, tail=tail, ratio=5), 1e-3, 1)
    assert high.offset >= 0.5


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_losses_of_which_all_may_be_rare(count):
    """No common loss is left beside the mixture over the number of rare ones."""
    step, common, rare = 0.01, np.array([0.1, 0.3, 0.2, 0.39]), np.array([0.002, 0.003, 0.005])
    part = GridReleases(common, -2, 0.0, 0.0, count, 0, GridReleases(rare, 3, 0.0, 0.0, count), sums.RATIO)
    losses = np.concatenate([step * (np.arange(4) - 2), sums.RATIO * step * (3 + np.arange(3))])
    values = [(0.0, 1.0)]
    for _ in range(count):
        values = [(total + x, m * w) for total, m in values for x, w in zip(losses, [*common, *rare], strict=True)]
    loss, mass = map(np.array, zip(*values, strict=True))
    for side in (1, -1):
        total = compose([part], step, 0.0, side, 1)
        p = total.g * math.exp(total.log_scale)
        for eps in (0.0, 0.05, 0.2):
            delta = (mass * np.maximum(-np.expm1(eps - loss), 0.0)).sum()
            assert side * (p * np.maximum(-np.expm1(eps - total.loss), 0.0)).sum() >= side * delta - 1e-12


def test_a_group_of_pieces_may_have_no_loss_near_the_lowest():
    """The offset of a grid comes from the group that has the lowest losses."""
    near, far = (dominating_pairs(Additive(Gaussian(1.0)), shift)[0].privacy_loss() for shift in (1.0, 1e-3))
    both = replace(near, pieces=(*near.pieces, *far.pieces))
    whole, alone = split_monotone(both), split_monotone(near)
    assert len(whole.pieces) == 2
    assert best_offset(whole, 1e-3) == best_offset(alone, 1e-3)
