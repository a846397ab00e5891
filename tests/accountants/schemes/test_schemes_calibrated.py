"""The least noise of a batch scheme for a target."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

import dpkernels as dpk
from accountants import calibrate, guarantee

SCHEMES = {
    "allocation": lambda step: step.random_allocation(50),
    "fixed size": lambda step: step.sample_fixed(10, 500),
    "groups": lambda step: step.subsample(0.02).for_groups(2),
}


@pytest.mark.lengthy
@pytest.mark.parametrize("name", SCHEMES)
def test_least_noise_meets_the_target(name):
    scheme = SCHEMES[name]
    scale = calibrate.composed_scale(dpk.Gaussian(1.0), epsilon=2.0, delta=1e-5, count=4, scheme=scheme)

    def epsilon(sigma):
        return scheme(guarantee(dpk.Additive(dpk.Gaussian(sigma)), 1.0)).repeat(4).epsilon(1e-5)

    assert epsilon(scale) <= 2.0
    assert epsilon(scale * (1 - 2e-3)) > 2.0


@pytest.mark.lengthy
def test_schemes_are_compared_at_one_budget_and_with_one_kind_of_neighbours():
    """Gaussian noise on all the data has a closed form: nine releases need 1.5 times the noise of four."""
    target = {"epsilon": 1.0, "delta": 1e-6}
    runs = {"nine": lambda step: step.repeat(9), "four": lambda step: step.repeat(4)}
    scales = calibrate.compare_schemes(dpk.Gaussian(1.0), runs, **target)
    assert list(scales) == ["four", "nine"]
    assert scales["nine"] == pytest.approx(1.5 * scales["four"], rel=1e-6)
    assert guarantee(dpk.Additive(dpk.Gaussian(scales["nine"])), 1.0).repeat(9).epsilon(1e-6) <= 1.0
    by_risk = calibrate.compare_schemes(dpk.Gaussian(1.0), runs, advantage=0.1)
    assert by_risk["nine"] == pytest.approx(1.5 * by_risk["four"], rel=1e-6)
    with pytest.raises(ValueError, match="schemes: have different neighbours"):
        calibrate.compare_schemes(dpk.Gaussian(1.0), SCHEMES, **target)
    with pytest.raises(ValueError, match="schemes: is empty"):
        calibrate.compare_schemes(dpk.Gaussian(1.0), {}, **target)


def test_bad_input():
    with pytest.raises(ValueError, match=r"rate: 0\.1; a scheme has samples of its own"):
        calibrate.composed_scale(
            dpk.Gaussian(1.0), epsilon=1.0, delta=1e-5, count=1, rate=0.1, scheme=SCHEMES["allocation"]
        )
    with pytest.raises(TypeError, match="scheme: noise of schemes is calibrated for plain numbers"):
        calibrate.composed_scale(
            dpk.Gaussian(1.0), epsilon=jnp.asarray(1.0), delta=1e-5, count=1, scheme=SCHEMES["allocation"]
        )
