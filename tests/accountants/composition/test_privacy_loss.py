"""Privacy loss distributions: their algebra keeps masses and losses, and rigorous bounds are made of all of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import dpkernels as dpk
from accountants import discrete_pair, guarantee
from accountants.composition.brackets.cells import cells_on_grid
from accountants.composition.brackets.monotone import split_monotone
from accountants.dominating_pairs.registry import noise_pairs
from accountants.dominating_pairs.windowed import WindowedPair
from accountants.privacy_loss import PrivacyLossDistribution, SmoothPieces, join, sampled_loss
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.distributions.staircase import Staircase
from dpkernels.mechanisms.windowed.bases import Constant, Quartic
from dpkernels.mechanisms.windowed.windows import Sine, Triangle, Uniform
from dpkernels.solve import falling_root, turning_points, unit_grid_dense_at_ends

PAIRS = {
    "gaussian": noise_pairs(Gaussian(1.3), 1.0)[0],
    "laplace": noise_pairs(Laplace(0.8), 1.0)[0],
    "recycled": noise_pairs(Reweighted(Gaussian(0.7), -1.1, 1.6, 0.2), 1.0)[0],
    "truncated": noise_pairs(Reweighted(Laplace(0.7), -3.0, 2.0, 0.0), 1.0)[0],
    "truncated-staircase": noise_pairs(Reweighted(Staircase(1.0, 1.0, 0.3), -3.0, 3.0, 0.0), 1.0)[0],
    "sine-quartic": WindowedPair(Sine(), Quartic(0.3), 0.7, 2.0, 1.3),
    "one-input": WindowedPair(Sine(), Constant(), 0.5, 3.0, 0.0, 0.3),
    "near-inputs": WindowedPair(Uniform(), Quartic(0.5), 0.5, 3.0, 1e-14),
    "narrow": WindowedPair(Uniform(), Quartic(0.5), 1e-14, 5e14, 2 - 1e-14),
    "table": discrete_pair([0.5, 0.3, 0.2, 0.0], [0.1, 0.3, 0.2, 0.4]),
}


@pytest.mark.lengthy
@pytest.mark.parametrize("rate", [None, 0.3, 1 - 2.0**-30])
@pytest.mark.parametrize("name", PAIRS)
def test_no_mass_is_lost(name, rate):
    losses = PAIRS[name].privacy_loss()
    losses = losses if rate is None else losses.subsampled(rate)
    for one in (losses, losses.mirrored(), join([losses.scaled(0.25), losses.mirrored().scaled(0.75)])):
        np.testing.assert_allclose(one.masses(), 1.0, rtol=1e-12)
        cells = cells_on_grid(split_monotone(one), 0.01)
        assert cells.p.sum() + cells.infinite == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("rate", [0.001, 0.5, 1 - 2.0**-20, 1 - 2.0**-40, 1.0])
def test_losses_on_samples_keep_their_digits(rate):
    """Also next to log(1 - r), where log1p(r (e^l - 1)) would cancel."""
    for loss in (-40.0, -34.0, -30.0, -3.0, -1.0, -1e-9, 0.0, 1e-9, 1.0, 29.0, 31.0, 700.0):
        with mp.workdps(60):
            exact = mp.log((1 - mp.mpf(rate)) + mp.mpf(rate) * mp.exp(mp.mpf(loss)))
        assert abs(float(sampled_loss(np.float64(loss), rate) - exact)) <= 4 * 2.0**-52 * max(1.0, abs(exact))
    assert sampled_loss(np.inf, rate) == np.inf
    assert np.isnan(sampled_loss(np.float64(np.nan), rate))
    assert np.isnan(sampled_loss(jnp.float32(jnp.nan), rate))


@pytest.mark.filterwarnings("error")
def test_a_loss_that_no_sample_has_is_met_nowhere():
    """Losses on samples of rate r are above log(1 - r); a lower one is that of a point infinitely far out."""
    (pieces,) = PAIRS["gaussian"].privacy_loss().subsampled(0.3).pieces
    level = np.array([-5.0, math.log(0.7) - 1e-12, math.log(0.7) + 1e-3, 1.0])
    found = pieces.inverse(level, 0)
    np.testing.assert_array_equal(np.isinf(found), [True, True, False, False])
    np.testing.assert_allclose(pieces.loss(found[2:], 0), level[2:], rtol=1e-12)


@pytest.mark.parametrize(("small", "rate", "eps"), [(30, 40, 27.62794489), (30, 20, 13.862933513)])
def test_brackets_of_nearly_all_data(small, rate, eps):
    """A record is left out with probability 2^-rate: losses next to the rate's logarithm decide."""
    with mp.workdps(60):
        x, r = mp.exp(-small) / 2, 1 - mp.mpf(2) ** -rate
        p, q = (float(x), float(1 - x)), (0.5, 0.5)
        exact = sum(
            max(0, mp.mpf(b) - mp.exp(mp.mpf(eps)) * (r * mp.mpf(a) + (1 - r) * mp.mpf(b)))
            for a, b in zip(p, q, strict=True)
        )
    sampled = guarantee(discrete_pair(p, q)).subsample(float(r))
    low, high = sampled.bracket(epsilon=eps)
    assert low <= exact <= high
    assert 0 <= sampled.estimate_delta(eps) - exact < 1e-4 * exact


def test_samples_of_a_truncated_staircase_are_inside_their_bracket():
    """Steps at which p has no mass and q has: they count once the records are on samples."""
    K, n = Reweighted(Staircase(1.0, 1.0, 0.3), -3.0, 3.0, 0.0), 2
    at = (np.arange(-30, 40) + 0.5) / 10  # Steps and ends are tenths.
    p, q = (K.prob(at - shift) / 10 for shift in (0.0, 1.0))
    two = [np.multiply.outer(a, a).ravel() for a in (0.5 * p + 0.5 * q, q)]
    exact = max(np.maximum(a - math.exp(0.1) * b, 0).sum() for a, b in (two, two[::-1]))
    composed = guarantee(dpk.Additive(K), 1.0).subsample(0.5).repeat(n)
    low, high = composed.bracket(epsilon=0.1)
    assert low * (1 - 1e-12) <= exact <= high * (1 + 1e-12)
    assert composed.estimate_delta(0.1) == pytest.approx(exact, rel=1e-5)


def test_two_equal_inputs_add_nothing():
    noise = guarantee(dpk.laplace(epsilon=1.0)).repeat(2)
    for centre in (0.3, -0.3):
        both = guarantee(WindowedPair(Sine(), Constant(), 0.5, 3.0, 0.0, centre)).compose(noise)
        low, high = both.bracket(epsilon=0.5)
        assert low <= noise.estimate_delta(0.5) <= high
        assert both.estimate_delta(0.5) == pytest.approx(noise.estimate_delta(0.5), rel=1e-6)


def test_a_shape_that_states_no_steepness_has_no_bracket():
    @dataclass(frozen=True)
    class Raised(Triangle):
        steepness = None

    pair = WindowedPair(Raised(), Quartic(0.4), 0.7, 3.0, 1.3)
    with pytest.raises(ValueError, match="no bound on how fast its density changes"):
        guarantee(pair).repeat(3).bracket(epsilon=0.5)
    with pytest.raises(ValueError, match="state its steepness, or ask for estimate_delta or estimate_epsilon"):
        guarantee(pair).repeat(3).delta(0.5)
    assert 0 < guarantee(pair).repeat(3).estimate_delta(0.5) < 1


def test_the_larger_of_both_directions_has_their_losses():
    losses = PAIRS["sine-quartic"].privacy_loss()
    both = losses.symmetrized().nodes()
    own = losses.nodes()
    np.testing.assert_allclose(both.p[both.loss > 1e-9].sum(), own.p[own.loss > 1e-9].sum(), rtol=1e-12)
    np.testing.assert_allclose([both.p.sum(), both.q.sum()], 1.0, rtol=1e-12)


def test_turns_are_seen_however_near_to_an_end():
    for distance in (0.3, 2e-3, 1e-5, 3e-7):
        turn, row = turning_points(lambda x, _, at=distance: -((x - (1 - at)) ** 2), unit_grid_dense_at_ends(65)[None])
        assert row.tolist() == [0]
        assert turn[0] == pytest.approx(1 - distance, abs=1e-3 * distance)


def test_falling_roots_keep_their_digits():
    roots = np.array([1e-12, 0.3, 0.999])
    found = falling_root(lambda x: roots - x, np.zeros(3), np.ones(3))
    np.testing.assert_allclose(found, roots, rtol=1e-12)
    np.testing.assert_allclose(falling_root(lambda x: 1e-10 - x**2, 0.0, 1.0), 1e-5, rtol=1e-10)


def test_a_piece_may_be_empty():
    pieces = SmoothPieces(np.zeros(1), np.ones(1), lambda x, _: 0 * x, lambda x, _: -x, lambda x, _: x)
    nothing = PrivacyLossDistribution.of_pieces(pieces.where(np.zeros(1, bool)))
    assert nothing.masses() == (0.0, 0.0)
