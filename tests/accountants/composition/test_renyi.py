"""Renyi divergences against adaptive quadrature in 40 digits, and against closed forms."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from exact_renyi import exact_renyi
from helpers import WINDOWED
from noise_registry import LAWS
from two_piece import TwoPiece

import dpkernels as dpk
from accountants import density_pair, guarantee
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.mechanisms.additive import Additive

ORDERS = (1.01, 2.5, 32.0, 1e4)
GENERAL = {"logistic": dpk.Logistic(0.7), "student": dpk.Student(1.3), "student-60": dpk.Student(0.2, 60.0)}
SAMPLED = {"gaussian": Gaussian(1.0), "narrow": Gaussian(0.2), "laplace": Laplace(0.7), "logistic": dpk.Logistic(0.7)}


def test_the_mass_of_large_orders_is_far_out():
    """The integration stopped 18 sigma beyond the means: order 64 was 11.175."""
    sampled = guarantee(Additive(Gaussian(1.0)), 1.0).subsample(0.01)
    np.testing.assert_allclose(sampled.renyi([32.0, 64.0]), [11.2462759370483, 27.3217318745525], rtol=1e-12)
    recycled = guarantee(Additive(Reweighted(Gaussian(1.0), -2.0, 2.0, 0.5)), 1.0)
    assert recycled.renyi(32.0) == pytest.approx(15.9783827654446, rel=1e-12)


def close(found, exact):
    """Equal to 1e-10, and not below by more than 1e-14."""
    assert -1e-14 <= float(mp.mpf(found) / exact - 1) <= 1e-10 if mp.isfinite(exact) else found == math.inf


STEEP = {
    "one step": (0.0, -800.0, -800.0),
    "several": (0.0, -300.0, -900.0, -2000.0),
    "all below the floats": (0.0, -760.0, -1500.0, -2300.0),
    "late": (*(-20.0 * np.arange(40)).tolist(), -1100.0, -1200.0),
}


def exact_of_cells(logs, shift, fall, order):
    """The divergence of ``Tabulated`` noise over a whole number of cells: a sum over cells, and of geometric tails."""
    cells, a = len(logs), mp.mpf(order)

    def at(j):  # (log density at the start of cell j of the line, its slope in a cell)
        distance = j if j >= 0 else -j - 1
        if distance < cells:
            return mp.mpf(logs[distance]), mp.mpf(0)
        start = mp.mpf(logs[-1]) - mp.mpf(fall) * (distance - cells)
        return (start, -mp.mpf(fall)) if j >= 0 else (start - fall, mp.mpf(fall))

    total, far = mp.mpf(0), cells + shift + 60
    for j in range(-far, far):
        (p, of_p), (q, of_q) = at(j), at(j - shift)
        slope = a * of_p + (1 - a) * of_q
        total += mp.exp(a * p + (1 - a) * q) * (mp.expm1(slope) / slope if slope else 1)
    norm = 2 * (sum(mp.exp(mp.mpf(x)) for x in logs) + mp.exp(mp.mpf(logs[-1])) / fall)
    return mp.log(total / norm) / (a - 1)


@pytest.mark.parametrize("name", STEEP)
def test_masses_that_underflow_are_not_left_out(name):
    """Their losses are the largest: a bound of eps from orders without them was 0.4 instead of 800."""
    logs, fall = STEEP[name], 40.0
    release = guarantee(dpk.Additive(dpk.Tabulated(0.5, logs, fall), 1.0))
    for order in (1.01, 2.0, 10.0):
        exact = exact_of_cells(logs, 2, fall, order)
        assert exact * (1 - 1e-14) <= release.renyi(order)
        if name != "late":  # Where p is below the floats it counts as the least one.
            assert release.renyi(order) == pytest.approx(float(exact), rel=1e-10)
    low, high = release.bracket(delta=1e-6)
    assert low <= high
    assert release.delta(high - 0.1 if high < 600 else 600.0) >= 1e-6


@pytest.mark.parametrize("ratio", [500.0, 740.0, 800.0, 3000.0])
def test_the_divergence_of_narrow_laplace_noise_is_the_closed_form(ratio):
    """For c = order - 1:  log((1 + c)/(1 + 2 c) e^(c r) + c/(1 + 2 c) e^(-(1 + c) r)) / c  (Mironov 2017)."""
    for order in (1.01, 2.0, 10.0):
        a, r = mp.mpf(order), mp.mpf(ratio)
        both = a / (2 * a - 1) * mp.exp(r * (a - 1)) + (a - 1) / (2 * a - 1) * mp.exp(-r * a)
        close(guarantee(dpk.Additive(Laplace(1 / ratio), 1.0)).renyi(order), mp.log(both) / (a - 1))


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", [*LAWS, *GENERAL])
def test_every_noise(name, order):
    mechanism = Additive((LAWS | GENERAL)[name])
    close(guarantee(mechanism, 1.0).renyi(order), exact_renyi(mechanism, order))


@pytest.mark.slow
@pytest.mark.parametrize("order", [1.01, 2.5, 32.0])
@pytest.mark.parametrize("adjacency", ["add_remove", "replace"])
@pytest.mark.parametrize("name", SAMPLED)
def test_every_sample(name, adjacency, order):
    mechanism = Additive(SAMPLED[name])
    value = guarantee(mechanism, 1.0).subsample(0.01, adjacency).renyi(order)
    close(value, exact_renyi(mechanism, order, 1.0, 0.01, adjacency))


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["sine-1", "ring-bowl-0.5-w0.7", "triangle-quartic1e-6-0.1-w1.7"])
def test_windows(name, order):
    close(guarantee(WINDOWED[name]).renyi(order), exact_renyi(WINDOWED[name], order))


@pytest.mark.parametrize("order", [1.0000001, 3.0, 1e3, 1e4])
@pytest.mark.parametrize("sigma", [0.03, 1.0, 1e3])
def test_sampled_gaussians_at_integer_orders(sigma, order):
    """The whole sample at rate 1 in closed form, by the general quadrature."""
    sampled = guarantee(Additive(Gaussian(sigma)), 1.0).subsample(1.0)
    assert sampled.renyi(order) == pytest.approx(order / (2 * sigma**2), rel=1e-10)


@pytest.mark.parametrize("rate", [1e-6, 0.01, 0.5])
@pytest.mark.parametrize("order", [2, 5, 40, 300])
def test_samples_by_the_binomial_theorem(rate, order):
    """E_q (1 - r + r e^l)^a of a Gaussian is a finite sum (Mironov, Talwar & Zhang 2019)."""
    with mp.workdps(60):
        r = mp.mpf(rate)
        total = mp.fsum(
            mp.binomial(order, k) * (1 - r) ** (order - k) * r**k * mp.exp(mp.mpf(k * k - k) / 2)
            for k in range(order + 1)
        )
        exact = mp.log(total) / (order - 1)
    close(guarantee(Additive(Gaussian(1.0)), 1.0).subsample(rate).renyi(order), exact)


def test_divergences_of_releases_add_up_and_the_worse_direction_counts():
    single = guarantee(Additive(TwoPiece(2.0, 4.0)), 1.0)
    assert single.repeat(7).renyi(5.0) == pytest.approx(7 * single.renyi(5.0), rel=1e-12)
    other = guarantee(Additive(Laplace(3.0)), 1.0)
    assert single.compose(other).renyi(5.0) == pytest.approx(single.renyi(5.0) + other.renyi(5.0), rel=1e-12)
    close(single.renyi(5.0), exact_renyi(Additive(TwoPiece(2.0, 4.0)), 5.0))


def test_infinite_divergences():
    """Infinite losses, of masses that underflow too; a moment that diverges; and one that hardly converges."""
    for theta in (3.0, 60.0):
        assert guarantee(Additive(Reweighted(Gaussian(1.0), -theta, theta, 0.0)), 1.0).renyi(2.0) == math.inf
    pair = density_pair(lambda y: np.log(2.0) - 2 * y, lambda y: -y, (0.0, np.inf))
    single = guarantee(pair)  # The moment of the mirror is 2^(1 - a)/(2 - a).
    assert single.renyi([2.0, 3.0]).tolist() == [math.inf, math.inf]
    assert single.renyi(1.99) == pytest.approx(math.log(2**-0.99 / 0.01) / 0.99, rel=1e-9)


@pytest.mark.thorough
def test_derivatives_and_values_of_jax_numbers(x64):
    def value(sigma, order):
        return guarantee(Additive(Gaussian(sigma)), 1.0).subsample(0.1).renyi(order)

    found, slopes = jax.jit(jax.value_and_grad(value, (0, 1)))(jnp.float64(2.0), jnp.float64(300.0))
    assert float(found) == pytest.approx(value(2.0, 300.0), rel=1e-13)
    h = 1e-4
    by_differences = [
        (value(2.0 + h, 300.0) - value(2.0 - h, 300.0)) / (2 * h),
        (value(2.0, 300.0 + h) - value(2.0, 300.0 - h)) / (2 * h),
    ]
    np.testing.assert_allclose(slopes, by_differences, rtol=1e-6)
