"""Ends of brackets, and defaults, against 50 digits where masses cancel: never on the wrong side, however little."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest

import dpkernels as dpk
from accountants import guarantee, randomised_response
from accountants.composition.bounds import Bracket
from accountants.dominating_pairs.additive import additive_pair

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
    made = guarantee(mechanism)
    with mp.workdps(DIGITS):
        at, (supported, others) = 0.9 * epsilon, choices
        p = supported * mp.exp(epsilon) / (supported * mp.exp(epsilon) + others)
        truth = share * p * -mp.expm1(at - mp.mpf(epsilon))
        assert made.delta(at) >= truth * (1 - mp.mpf(10) ** -15)
    assert made.epsilon(1e-200) >= epsilon


LAWS = {
    "laplace": (dpk.Laplace, lambda z: mp.exp(-z) / 2),
    "gaussian": (dpk.Gaussian, lambda z: mp.erfc(z / mp.sqrt(2)) / 2),
    "logistic": (dpk.Logistic, lambda z: 1 / (1 + mp.exp(z))),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", [40.0, 36233.3, 5536652.1])
def test_truncated_noise_much_wider_than_the_sensitivity(law, scale):
    """The infinite loss of a release has the mass within D of an edge."""
    make, tail = LAWS[law]
    with mp.workdps(DIGITS):
        for share in (1.7, 10.7, 20.3):
            edge = scale * share
            made = guarantee(dpk.Additive(dpk.Reweighted(make(scale), -edge, edge, 0.0)), 1.0).repeat(3)
            near, far = tail((mp.mpf(edge) - 1) / scale), tail(mp.mpf(edge) / scale)
            truth = 1 - (1 - (near - far) / (1 - 2 * far)) ** 3
            low, high = Bracket(made).delta(500.0)
            assert low <= truth <= high <= truth * 1.0001


def test_ends_of_pieces_are_rounded():
    """The knots of f and of its shift are D apart; as floats, by less than that here."""
    scale, edge = 1e5, 2.0**20 - 0.3
    edge -= 2.0**-33 * (int(edge * 2**33) % 2 == 0)
    pair = additive_pair(dpk.Reweighted(dpk.Logistic(scale), -1.4 * edge, edge, 0.0), -1.0).mirror()
    (pieces,) = pair.privacy_loss().pieces
    (number,) = np.flatnonzero((pieces.intervals.left == edge) & (pieces.intervals.right > edge))
    masses = pieces.intervals.measure(np.array([-np.inf, np.inf]), np.array([number, number]))
    with mp.workdps(DIGITS):
        tail = [LAWS["logistic"][1](at / mp.mpf(scale)) for at in (mp.mpf(edge) - 1, mp.mpf(edge), mp.mpf(1.4 * edge))]
        truth = (tail[0] - tail[1]) / (1 - tail[1] - tail[2])
        assert abs(masses.q[0] - truth) > 1e-11 * truth  # Without the rounding's error.
        assert abs(masses.q[0] - truth) <= masses.q_error[0] + 1e-12 * truth
    assert math.isclose(masses.q[0], truth, rel_tol=1e-8)
