"""What docs/proofs/brackets.md proves of masses of cells, and of their roundings, against mpmath."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from helpers import UNIT
from scipy.special import ndtri

import dpkernels as dpk
from accountants.composition.brackets.cells import _COARSE_STEEPNESS as ROUGH
from accountants.composition.brackets.cells import cells_on_grid
from accountants.composition.brackets.monotone import ACCURATE_STEEPNESS as EXACT
from accountants.composition.brackets.monotone import MonotoneLoss, MonotonePieces, Panels, split_monotone
from accountants.composition.brackets.refinement import (
    ComposedBounds,
    GridReleases,
    compose,
    lower_masses,
    upper_masses,
)
from accountants.composition.interpolation import profile_on_grid
from accountants.dominating_pairs.registry import dominating_pairs
from accountants.dominating_pairs.replaced import replaced_pair
from accountants.privacy_loss import PrivacyLossDistribution, SmoothPieces
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace, MergedLaplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.windowed.bases import Constant
from dpkernels.mechanisms.windowed.windows import Uniform, Window

UNIT_ROUNDING = 2.0**-53
# (4!)^4/(9 (8!)^3), of the remainder of 4 nodes.
REMAINDER = mp.mpf(24) ** 4 / (9 * mp.factorial(8) ** 3)


def four_nodes(f, lower, upper):
    """Gauss-Legendre in 50 digits: the roots of P_4 and their weights."""
    inner, outer = (mp.sqrt((3 - sign * 2 * mp.sqrt(mp.mpf(6) / 5)) / 7) for sign in (1, -1))
    weights = (18 + mp.sqrt(30)) / 36, (18 - mp.sqrt(30)) / 36
    middle, half_width = (lower + upper) / 2, (upper - lower) / 2
    pairs = zip((inner, outer), weights, strict=True)
    return half_width * sum(w * (f(middle - half_width * x) + f(middle + half_width * x)) for x, w in pairs)


def errors(x):
    """Relative errors on panels whose width times steepness is x: e^-t, Gaussians from 0 to 18 sigma, a half sine."""
    with mp.workdps(50):
        yield abs(four_nodes(lambda t: mp.exp(-t), 0, x) / -mp.expm1(-x) - 1)
        for z in (0, 1, 3, 6, 9, 18):
            width = mp.findroot(lambda w, z=z: w * (z + w + mp.mpf("1.8")) - x, x / (z + 2))
            exact = mp.sqrt(mp.pi / 2) * (mp.erfc(z / mp.sqrt(2)) - mp.erfc((z + width) / mp.sqrt(2)))
            yield abs(four_nodes(lambda t: mp.exp(-(t**2) / 2), z, z + width) / exact - 1)
        for z in (mp.mpf(0), mp.mpf(1)):
            yield abs(four_nodes(mp.sin, z, z + x) / (mp.cos(z) - mp.cos(z + x)) - 1)


def test_the_remainder_bounds_the_error_on_every_panel():
    for x in (mp.mpf(EXACT), mp.mpf(1), mp.mpf(ROUGH)):
        bound = REMAINDER * x**8 * max(2, mp.exp(x))
        assert max(errors(x)) <= bound
    assert 2 * REMAINDER * mp.mpf(EXACT) ** 8 < UNIT_ROUNDING
    assert REMAINDER * mp.mpf(ROUGH) ** 8 * mp.exp(ROUGH) < 1e-3
    # Panels six times as wide would not do.
    assert max(errors(mp.mpf(6 * EXACT))) > 1e-12


def test_steepness_bounds_the_eighth_derivative():
    """|f^(8)| <= s^8 f, s = |g'| + 1.8 sqrt(bend), of f = e^g: Hermite's polynomial with every sign plus."""
    assert mp.mpf("1.8") ** 8 >= 105
    t = mp.mpf(0)
    for bend in (mp.mpf("0.3"), mp.mpf(7)):
        for score in (mp.mpf(0), mp.mpf("0.4"), mp.mpf(5), mp.mpf(40)):
            eighth = mp.diff(lambda t, a=score, b=bend: mp.exp(-a * t - b * t**2 / 2), t, 8)
            assert abs(eighth) <= (score + mp.mpf("1.8") * mp.sqrt(bend)) ** 8


def gaussian_mass(lower, upper, sigma):
    if lower >= 0:
        return gaussian_mass(-upper, -lower, sigma)
    return mp.ncdf(upper / sigma) - mp.ncdf(lower / sigma)


@pytest.mark.parametrize(("sigma", "step"), [(20.0, 0.2), (2.0, 0.5), (1.0, 0.1)])
def test_masses_of_cells_far_out(sigma, step):
    """Differences of tails are within their stated errors, which are far below the masses, out to 37 sigma."""
    reach = -mp.mpf(float(ndtri(1e-307)))
    cut = cells_on_grid(split_monotone(dominating_pairs(Additive(Gaussian(sigma)), 1.0)[0].privacy_loss()), step)
    for j in np.unique(np.linspace(0, len(cut.p) - 1, 40).astype(int)):
        # l = (1/2 - x)/sigma^2
        ends = [0.5 - (cut.first_index + j + mp.mpf(part) / 2) * mp.mpf(step) * sigma**2 for part in (2, 1, 0)]
        start, middle, stop = (min(max(end, -reach * sigma), 1 + reach * sigma) for end in ends)
        for half, (a, b) in enumerate(((middle, stop), (start, middle))):
            exact = gaussian_mass(a, b, sigma) if b > a else mp.mpf(0)
            assert abs(cut.p[j, half] - exact) <= cut.p_error[j, half]
            if exact > 1e-250:
                assert cut.p_error[j, half] <= 1e-9 * cut.p[max(j - 1, 0) : j + 2].max()


LAWS = {
    "gaussian": Gaussian(3.0),
    "recycled": Reweighted(Gaussian(0.4), -1.1, 1.3, 0.3),
    "laplace": Laplace(0.05),
    "merged": MergedLaplace((9.0, 0.5, 2.0), (0.3, 0.9)),
}


def check_panels(pieces):
    """The code's sums over some of its panels against nodes enough for 30 digits."""
    panels = pieces.refined(pieces.panels(), EXACT)
    fine = np.polynomial.legendre.leggauss(24)
    some = np.unique(np.linspace(0, len(panels.start) - 1, 50).astype(int))
    for density, masses in zip((pieces.p, pieces.q), pieces.masses(panels), strict=True):
        for j in some:
            width = panels.end[j] - panels.start[j]
            x = panels.start[j] + width * (fine[0] + 1) / 2
            exact = width / 2 * float(fine[1] @ density(x, np.full(x.shape, panels.piece[j])))
            assert masses[j] == pytest.approx(exact, rel=1e-12, abs=1e-300)


@pytest.mark.quick("gaussian", "laplace")
@pytest.mark.parametrize("name", LAWS)
def test_panels_of_every_law_alone_sampled_and_replaced(name):
    pair = dominating_pairs(Additive(LAWS[name]), 1.0)[0]
    losses = [pair.privacy_loss(), pair.privacy_loss().subsampled(0.3).mirrored()]
    losses += [replaced_pair(pair, 0.3).privacy_loss()] if name != "recycled" else []
    pieces = [pieces for one in losses for pieces in split_monotone(one).pieces]
    assert pieces
    for one in pieces:
        check_panels(one)
        assert np.all(one.source.steepness(one.lower, one.upper, one.source_index) > 0)


def test_panels_of_a_sine_window():
    losses = dominating_pairs(dpk.composite("sine", epsilon=2.0, **UNIT))[0].privacy_loss()
    for pieces in split_monotone(losses).pieces:
        check_panels(pieces)


def test_panels_are_cut_evenly_and_not_without_end():
    def cut(ends, steepness):
        source = smooth(lambda x: 0 * x, steepness=steepness)
        pieces = MonotonePieces(source, np.zeros(1, int), np.array(ends[:1]), np.array(ends[-1:]))
        whole = Panels(np.array(ends[:-1]), np.array(ends[1:]), np.zeros(len(ends) - 1, int))
        panels = pieces.refined(whole, EXACT)
        assert panels.end[:-1].tolist() == panels.start[1:].tolist()
        return [*panels.start.tolist(), float(panels.end[-1])]

    ends = cut([0.0, 1.0, 1.5, 4.0], lambda left, right, piece: np.where(left < 1.2, 0.5, 0.0))
    assert ends == [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 4.0]
    with pytest.raises(ValueError, match="too many for a grid"):
        cut([0.0, 1.0], lambda left, right, piece: 1e9 + 0 * left)
    with pytest.raises(ValueError, match="no bound on how fast its density changes"):
        cut([0.0, 1.0], None)


def smooth(loss, steepness=lambda left, right, piece: 0 * left):
    """One piece on [0, 1] of density 1."""
    return SmoothPieces(
        np.zeros(1), np.ones(1), lambda x, _: 0 * x, lambda x, _: -loss(x), lambda x, _: loss(x), steepness
    )


def test_a_turn_of_the_loss_that_was_not_seen_is_refused(monkeypatch):
    wavy = PrivacyLossDistribution.of_pieces(smooth(lambda x: x + 0.3 * np.sin(20 * x)))
    assert len(split_monotone(wavy).pieces[0]) > 3
    monkeypatch.setattr("accountants.composition.brackets.monotone._SAMPLES", 2)
    monkeypatch.setattr("accountants.composition.brackets.monotone._MIN_SAMPLES", 2)
    with pytest.raises(ValueError, match="turns"):
        cells_on_grid(split_monotone(wavy), 0.05)


# Roundings


@pytest.mark.parametrize("step", [1e-3, 1e-6, 1e-8])
def test_a_loss_that_is_rounded_stays_between_its_bounds(step):
    """Losses off by 32 units of their size: the bounds of one report hold that of the true loss at every eps."""
    for loss in (0.37, 9.0):
        for wrong in (-1, 1):
            stated = loss + wrong * 32 * UNIT_ROUNDING * (1 + loss)
            cut = cells_on_grid(MonotoneLoss(np.array([0.25]), np.zeros(1), np.array([stated]), (), 0.0), step)
            low, high = (side(cut, step, 1) for side in (lower_masses, upper_masses))
            for gap in (0.3 * step, 3 * step, 0.1):
                with mp.workdps(40):
                    exact = mp.mpf("0.25") * -mp.expm1(-mp.mpf(gap))
                    bounds = [
                        sum(
                            mp.mpf(mass) * max(0, -mp.expm1(mp.mpf(loss) - gap - grid))
                            for mass, grid in ((m, losses_of(part, step, j)) for j, m in enumerate(part.mass) if m > 0)
                        )
                        for part in (low, high)
                    ]
                assert bounds[0] <= exact <= bounds[1]


def losses_of(part, step, j):
    return mp.mpf(part.offset) + (part.first_index + j) * mp.mpf(step)


def test_profile_of_masses_keeps_its_digits():
    """Sums of p and of e^eps q apart are off by 8e-11 here, of a margin of 1e-12."""
    step, size = 1e-6, 4000
    mass = np.random.default_rng(5).random(size) / size
    profile = profile_on_grid(mass[::-1], step)[::-1]
    for k in (0, size // 2, size - 3):
        with mp.workdps(40):
            exact = sum(mp.mpf(m) * -mp.expm1((k - j) * mp.mpf(step)) for j, m in enumerate(mass) if j > k)
        assert float(abs(profile[k] / exact - 1)) < 1e-13


def test_exponents_of_a_steep_tilt_are_allowed_for():
    """A tilt of 300 at losses near 40: the exponents are near 12,000, and each e^.. is off by as many units."""
    step, rng = 0.25, np.random.default_rng(3)
    mass = rng.random(9) / 9
    one = compose([GridReleases(mass, 156, 0.0, 0.0, 1)], step, 300.0)
    assert one.rounding_rtol > 12_000 * UNIT_ROUNDING
    for eps in (39.1, 40.3):
        grid = [mp.mpf(step) * (156 + j) for j in range(9)]
        exact = sum(mp.mpf(m) * max(0, -mp.expm1(eps - level)) for m, level in zip(mass, grid, strict=True))
        assert one.delta(eps, -1) <= exact <= one.delta(eps, 1)


def test_losses_of_a_sum_are_rounded_to_the_safe_side():
    """At an eps next to the only loss the gain is a rounding error of it."""
    loss = 1000.1
    total = ComposedBounds(np.array([loss]), np.ones(1), 0.0, 0.0, 0.0, 0.0, 0.0)
    near = math.nextafter(loss, 0.0)
    assert total.delta(near, -1) == 0.0
    assert total.delta(near, 1) >= 2 * (loss - near)


# Shapes


def test_shapes_of_unknown_classes_are_not_taken_to_fall():
    assert Uniform().falls
    assert Constant().falls

    class Rising(Window):
        area, variance, kinks = 0.5, 0.1, np.array([0.0, 0.5])
        density = cdf = cdf_integral = icdf = supremum_beyond = infimum_within = lambda self, z: z

    assert not Rising().falls
