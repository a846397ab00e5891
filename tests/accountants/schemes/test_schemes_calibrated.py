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


def test_bad_input():
    with pytest.raises(ValueError, match=r"rate: 0\.1; a scheme has samples of its own"):
        calibrate.composed_scale(
            dpk.Gaussian(1.0), epsilon=1.0, delta=1e-5, count=1, rate=0.1, scheme=SCHEMES["allocation"]
        )
    with pytest.raises(TypeError, match="scheme: noise of schemes is calibrated for plain numbers"):
        calibrate.composed_scale(
            dpk.Gaussian(1.0), epsilon=jnp.asarray(1.0), delta=1e-5, count=1, scheme=SCHEMES["allocation"]
        )
