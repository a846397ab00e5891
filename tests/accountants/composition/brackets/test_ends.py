"""Ends of brackets, and defaults, against 50 digits where masses cancel: never on the wrong side, however little."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from default_audit import check

import dpkernels as dpk
from accountants import discrete_pair, guarantee, randomised_response, shuffled
from accountants.composition.brackets.monotone import MonotonePieces, UnknownSteepnessError
from accountants.composition.brackets.refinement import GridBracket
from accountants.dominating_pairs.additive import additive_pair
from accountants.loss_intervals import IntervalMasses, LossIntervals
from accountants.privacy_loss import SmoothPieces
from dpkernels.distributions.base import Symmetric
from dpkernels.pytrees import pytree

DIGITS = 150


@pytest.mark.parametrize("categories", [2, 3, 1000, 10**9, 1 << 52])
@pytest.mark.parametrize("epsilon", [0.1, 8.0, 20.0])
def test_randomised_response_of_many_categories(categories, epsilon):
    check_odds(randomised_response(epsilon, categories), epsilon, (1, categories - 1), 1)


@pytest.mark.parametrize("epsilon", [0.01, 8.0, 20.0])
@pytest.mark.parametrize("make", [dpk.randomised_response, dpk.subset_selection, dpk.block_response])
def test_categories_at_large_budgets(make, epsilon):
    mechanism = make(epsilon=epsilon, categories=10)
    if isinstance(mechanism, dpk.BlockResponse):
        check_odds(mechanism, epsilon, (1, mechanism.blocks - 1), 1 - mp.mpf(mechanism.collision))
    else:
        d, k = mechanism.categories, mechanism.size
        check_odds(mechanism, epsilon, (k, d - k), mp.mpf(d - k) / (d - 1))


def check_odds(mechanism, epsilon, choices, share):
    """Reports support the true category with the odds e^eps times those of all choices."""
    single = guarantee(mechanism)
    with mp.workdps(DIGITS):
        at, (supported, others) = 0.9 * epsilon, choices
        p = supported * mp.exp(epsilon) / (supported * mp.exp(epsilon) + others)
        truth = share * p * -mp.expm1(at - mp.mpf(epsilon))
        assert single.delta(at) >= truth * (1 - mp.mpf(10) ** -15)
    assert single.epsilon(1e-200) >= epsilon


LAWS = {
    "laplace": (dpk.Laplace, lambda z: mp.exp(-z) / 2),
    "gaussian": (dpk.Gaussian, lambda z: mp.erfc(z / mp.sqrt(2)) / 2),
    "logistic": (dpk.Logistic, lambda z: 1 / (1 + mp.exp(z))),
}


@pytest.mark.lengthy
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", [40.0, 36233.3, 5536652.1])
def test_truncated_noise_much_wider_than_the_sensitivity(law, scale):
    """The infinite loss of a release has the mass within D of an edge."""
    make, tail = LAWS[law]
    with mp.workdps(DIGITS):
        for share in (1.7, 10.7, 20.3):
            edge = scale * share
            composed = guarantee(dpk.Additive(dpk.Reweighted(make(scale), -edge, edge, 0.0)), 1.0).repeat(3)
            near, far = tail((mp.mpf(edge) - 1) / scale), tail(mp.mpf(edge) / scale)
            truth = 1 - (1 - (near - far) / (1 - 2 * far)) ** 3
            low, high = GridBracket(composed).delta(500.0)
            assert low <= truth <= high <= truth * 1.0001


def test_ends_of_pieces_are_rounded():
    """The knots of f and of its shift are D apart; as floats, by less than that here."""
    scale, edge = 1e5, 2.0**20 - 0.3
    edge -= 2.0**-33 * (int(edge * 2**33) % 2 == 0)
    pair = additive_pair(dpk.Reweighted(dpk.Logistic(scale), -1.4 * edge, edge, 0.0), -1.0).mirror()
    (pieces,) = pair.privacy_loss().pieces
    (number,) = np.flatnonzero((pieces.intervals.lower == edge) & (pieces.intervals.upper > edge))
    masses = pieces.intervals.measure(np.array([-np.inf, np.inf]), np.array([number, number]))
    with mp.workdps(DIGITS):
        tail = [LAWS["logistic"][1](at / mp.mpf(scale)) for at in (mp.mpf(edge) - 1, mp.mpf(edge), mp.mpf(1.4 * edge))]
        truth = (tail[0] - tail[1]) / (1 - tail[1] - tail[2])
        assert abs(masses.q[0] - truth) > 1e-11 * truth  # Without the rounding's error.
        assert abs(masses.q[0] - truth) <= masses.q_error[0] + 1e-12 * truth
    assert math.isclose(masses.q[0], truth, rel_tol=1e-8)


@pytest.mark.parametrize("epsilon", [2.0, 40.0])
def test_probabilities_on_a_lattice_are_computed(epsilon):
    """Beyond the largest finite loss only points near the ends count, whose probabilities are exponentials."""
    for scale in (0.7, 2.2, 5.1, 9.0):
        noise = dpk.DiscreteLaplace(float(scale))
        single = guarantee(dpk.Additive(noise), 1.0)
        with mp.workdps(DIGITS):
            masses = [mp.exp(-abs(k) / mp.mpf(scale)) for k in range(-noise.reach, noise.reach + 1)]
            total, factor = mp.fsum(masses), mp.exp(mp.mpf(epsilon))
            gains = (max(a - factor * b, 0) for a, b in zip(masses, [*masses[1:], 0], strict=True))
            assert single.delta(epsilon) >= mp.fsum(gains) / total
            assert single.repeat(2).delta(2 * epsilon) >= (masses[0] / total) * (2 - masses[0] / total)


def test_upper_ends_below_the_floats_are_not_rounded_down():
    release = guarantee(dpk.Additive(dpk.Gaussian(1.0)), 1.0)
    twice = release.repeat(2)
    for eps in np.linspace(37.0, 40.0, 60):
        for made, square in ((release, 1), (twice, 2)):
            with mp.workdps(DIGITS):
                mu = mp.sqrt(square)
                at = float(eps * mu)
                truth = mp.ncdf(mu / 2 - at / mu) - mp.exp(at) * mp.ncdf(-mu / 2 - at / mu)
                low, high = made.bracket(epsilon=at)
                assert low <= truth <= high
    rare = guarantee(discrete_pair([1e-60, 1 - 1e-60], [1e-61, 1 - 1e-61])).repeat(6)
    assert 0 < rare.delta(13.5) < 1e-320
    recycled = guarantee(dpk.Additive(dpk.Reweighted(dpk.Gaussian(1.0), -1.0, 9.0, 0.5)), 0.01)
    assert 0 < recycled.delta(30.0) < 1e-300


def test_upper_ends_of_shuffled_reports_below_the_floats():
    rows = np.array([[0.7, 0.3], [0.3, 0.7]])
    level = math.log(0.7 / 0.3)
    assert 0 < shuffled(rows, 3000).delta(0.95 * level) < 1e-300


def test_levels_next_to_the_lowest_one_of_a_sample():
    """The level on all data is found from a difference that cancels, which is counted as an error of the loss."""
    found = []

    def measure(level, piece):
        found.append(level)
        none = np.zeros(len(level) - 1)
        return IntervalMasses(none, none, none, none, none, none, none)

    rate = 1 - 2.0**-40
    ends = np.array([-40.0]), np.array([40.0])
    pieces = SmoothPieces(*ends, *[lambda x, i: x] * 3, intervals=LossIntervals(*ends, measure)).subsampled(rate)
    level = math.log1p(-rate) * (1 - np.geomspace(1e-12, 0.9, 200))
    error = pieces.intervals.measure(level, np.zeros(200, int)).loss_error
    with mp.workdps(DIGITS):
        there = [mp.log(1 - rate + rate * mp.exp(at)) for at in map(float, found[0])]
        off = np.array([float(abs(one - mp.mpf(float(at)))) for one, at in zip(there, level, strict=True)])
    assert off.max() > 1e-7
    assert (np.maximum(off[1:], off[:-1]) <= error).all()


@pytest.mark.lengthy
@pytest.mark.parametrize("seed", [388, 866, *(pytest.param(s, marks=pytest.mark.thorough) for s in (518, 650, 758))])
def test_guarantees_that_had_no_bracket(seed):
    """Deltas next to the floats, sums of losses above 1e6, losses that only looked rare, and fine lattices."""
    check(seed)


def test_a_loss_that_turns_where_its_noise_states_no_turn_has_no_bracket():
    """Its composed delta was 1e-5 below the truth."""
    composed = guarantee(dpk.Additive(Undeclared(2.0)), 1.0).repeat(3)
    with pytest.raises(ValueError, match="turning_points"):
        composed.delta(0.1)
    (pieces,) = composed.numeric.terms[0].privacy_losses[0].pieces
    every = np.arange(len(pieces.lower))
    parts = MonotonePieces(replace(pieces, intervals=None), every, pieces.lower, pieces.upper)
    with pytest.raises(UnknownSteepnessError):  # Where its density has to be integrated.
        parts.refined(parts.panels(), 0.1)


@pytree
@dataclass(frozen=True)
class Undeclared(Symmetric):
    """Student's distribution, as a user may write it: without its turning points and a steepness."""

    scale: Any

    @property
    def _student(self):
        return dpk.Student(self.scale, 5.0)

    def log_prob(self, z):
        return self._student.log_prob(z)

    def tail(self, z):
        return self._student.tail(z)

    def lower_inverse(self, u):
        return self._student.lower_inverse(u)


@pytest.mark.parametrize("seed", range(10))
def test_the_probability_of_an_infinite_loss_is_within_its_ends(seed):
    """In fractions: 1 - (1 - m)^n of n tables, which is delta at every eps that is infinite."""
    random = np.random.default_rng([43, 9, seed])
    count, mass = int(10 ** random.uniform(0, 2.5)), float(10 ** random.uniform(-12, -1))
    p = [0.5, 0.5 - mass, mass]
    low, high = guarantee(discrete_pair(p, [0.4, 0.6, 0.0])).repeat(count).bracket(epsilon=math.inf)
    share = Fraction(mass) / sum(map(Fraction, p))
    assert Fraction(low) <= 1 - (1 - share) ** count <= Fraction(high)
    assert high <= low * (1 + 1e-10)
