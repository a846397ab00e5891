"""A NaN parameter is no guarantee (delta NaN, eps infinite): a false comparison must not read as no loss."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import accountants
import dpkernels as dpk
from accountants import guarantee, tune
from accountants.composition import dispatch
from accountants.composition.quantity import DeltaAt
from accountants.composition.repeated import RepeatedLoss

MAKE = {
    "three losses": lambda z: tune.piecewise(epsilon=z, lower=0.0, upper=1.0).build({"eta": jnp.float64(3.0)}),
    "laplace": lambda z: dpk.Additive(dpk.Laplace(z), 1.0),
    "recycled": lambda z: dpk.Additive(dpk.Reweighted(dpk.Gaussian(z), -3.0, 3.0, 0.3), 1.0),
    "uneven": lambda z: dpk.Additive(dpk.Reweighted(dpk.Gaussian(z), -2.6, 4.9, 0.4), 1.0),
    "outside": lambda z: dpk.Additive(dpk.Reweighted(dpk.Gaussian(2.0), -3.0, 3.0, z / 4), 1.0),
    "sine": lambda z: tune.composite("sine", epsilon=z, lower=0.0, upper=1.0).build({"width": jnp.float64(0.5)}),
}


CASES = [(name, rate) for name in MAKE for rate in (1.0, 0.1)]
# Compiling a derivative takes as long again as its value.
VALUES = [("three losses", 1.0), ("laplace", 1.0), ("uneven", 1.0), ("outside", 1.0), ("sine", "replace")]


def of(name, rate):
    """(a guarantee's delta or eps as a function of the parameter, what it is at NaN)"""

    def made(z):
        single = guarantee(MAKE[name](z))
        if rate == "replace":
            return single.subsample(0.2, "replace").repeat(7)
        return (single if rate == 1.0 else single.subsample(rate)).repeat(7)

    return (lambda z: made(z).delta(0.1), math.nan), (lambda z: made(z).epsilon(1e-3), math.inf)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "rate"), VALUES)
def test_nan_stays(x64, name, rate):
    for function, unknown in of(name, rate):
        value = jax.jit(function)
        assert np.isfinite(value(jnp.float64(2.0)))
        assert str(float(value(jnp.float64(jnp.nan)))) == str(unknown)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rate"), CASES)
def test_nan_stays_in_the_derivative(name, rate):
    with jax.enable_x64(True):
        for function, unknown in of(name, rate):
            both = jax.jit(jax.value_and_grad(function))
            value, slope = both(jnp.float64(2.0))
            assert np.isfinite([value, slope]).all()
            value, slope = both(jnp.float64(jnp.nan))
            assert str(float(value)) == str(unknown)
            assert math.isnan(slope)


def test_nan_of_either_direction_is_the_largest():
    for mu in ([np.nan, 0.5], [0.5, np.nan], [0.25, 0.5]):
        directions = (RepeatedLoss(None, jnp.float32(mu), jnp.ones(2, jnp.float32)),)
        _, largest = dispatch._largest(dispatch._VALUE, dispatch._Traced(DeltaAt), directions, None, jnp.float32(1.0))
        delta = accountants.delta(dpk.gaussian(sigma=1 / max(mu)), 1.0, 1.0) if np.isfinite(mu).all() else np.nan
        np.testing.assert_allclose(largest.value, delta, rtol=1e-5)
