"""A skewed distribution of a user's own, of which only the abstract members are written, is right in all it can do."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from skewed import MEAN, VARIANCE, Gumbel

import accountants
import dpkernels as dpk
from accountants import Guarantee, calibrate, guarantee
from dpkernels.distributions.base import Distribution

NOISE, D = Gumbel(0.7), 0.4
KEY = dpk.key_from_bytes(bytes(range(32)))


def test_it_has_the_abstract_members_alone() -> None:
    assert {name for name in vars(Gumbel) if hasattr(Distribution, name) and not name.startswith("_")} == set(
        Distribution.__abstractmethods__
    )


def test_moments_are_those_of_its_density() -> None:
    assert NOISE.mean == pytest.approx(MEAN * 0.7, rel=1e-9)
    assert NOISE.variance == pytest.approx(VARIANCE * 0.49, rel=1e-9)
    absolute = mpmath.quad(lambda z: abs(z) * mpmath.exp(-z - mpmath.exp(-z)), [-6, -2, 0, 3, 60])
    assert NOISE.absolute_moment == pytest.approx(0.7 * float(absolute), rel=1e-9)
    with jax.enable_x64(True):
        noise = Gumbel(jnp.float64(0.7))
        assert float(noise.variance) == pytest.approx(VARIANCE * 0.49, rel=1e-9)


def test_both_tails_are_inverted() -> None:
    u = np.array([1e-200, 1e-9, 0.2, 0.5, 0.9])
    np.testing.assert_allclose(NOISE.cdf(NOISE.icdf(u)), u, rtol=1e-12)
    np.testing.assert_allclose(NOISE.sf(NOISE.isf(u)), u, rtol=1e-12)
    np.testing.assert_allclose(NOISE.mass(-1.0, 2.0), NOISE.cdf(2.0) - NOISE.cdf(-1.0), rtol=1e-12)
    assert float(Gumbel(1.0).rescale(0.7).scale) == 0.7


def test_the_profile_is_the_larger_of_both_directions() -> None:
    z = np.linspace(-6, 40, 2_000_001)
    step = z[1] - z[0]
    p = NOISE.prob(z)
    for epsilon in (0.1, 0.5, 0.9):
        sides = [np.maximum(p - np.exp(epsilon) * NOISE.prob(z - s), 0.0).sum() * step for s in (D, -D)]
        assert abs(sides[0] - sides[1]) > 1e-3
        assert accountants.delta(dpk.Additive(NOISE, D), epsilon) == pytest.approx(max(sides), rel=1e-6)


@pytest.mark.lengthy
def test_a_scale_is_calibrated_and_saved() -> None:
    calibrated = calibrate.scaled(Gumbel(1.0), epsilon=0.8, delta=1e-3)
    assert (
        accountants.delta(calibrated, 0.8)
        <= 1e-3
        < accountants.delta(dpk.Additive(calibrated.noise.rescale(1 - 1e-6), 1.0), 0.8)
    )
    single = guarantee(dpk.Additive(NOISE, D))
    assert Guarantee.from_json(single.to_json()) == single


@pytest.mark.lengthy
def test_its_table_keeps_the_mean_and_both_ends_of_the_interval() -> None:
    """20,000 releases of 5: their mean and the share within the interval, each within 6 standard deviations."""
    mechanism = dpk.Additive(NOISE, D).claim(sensitivity=D, epsilon=1.0, delta=0.06)
    released = dpk.perturb(np.full(20_000, 5.0), mechanism, key=KEY)
    assert abs((released - 5).mean() - MEAN * 0.7) <= 6 * np.sqrt(VARIANCE * 0.49 / 20_000)
    low, high = dpk.confidence_interval(released, mechanism, 0.9)
    for misses in ((low > 5).mean(), (high < 5).mean()):
        assert abs(misses - 0.05) <= 6 * np.sqrt(0.05 * 0.95 / 20_000) + 1e-3
