"""JAX numbers of 32 bits: computed in 64 bits where they have values, else refused; never inf."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import accountants
import dpkernels as dpk
from accountants import calibrate


def laplaces(epsilon, count=100):
    return accountants.guarantee(dpk.laplace(epsilon=epsilon)).repeat(count)


def reports(epsilon):
    return accountants.shuffled(dpk.piecewise(epsilon=10 * epsilon, lower=0.0, upper=1.0), 10_000)


# Each takes a number that is about 0.1.
QUANTITIES = {
    "epsilon of one release": lambda x: accountants.epsilon(dpk.gaussian(sigma=x / 3), 1e-6, 1.0),
    "delta": lambda x: laplaces(x).delta(1.0),
    "delta at a JAX number": lambda x: laplaces(0.1).delta(50 * x),
    "epsilon": lambda x: laplaces(x).epsilon(1e-6),
    "epsilon at a JAX number": lambda x: laplaces(0.1).epsilon(1e-5 * x),
    "epsilon of samples": lambda x: laplaces(0.1, 1000).subsample(x).epsilon(1e-6),
    "epsilon of samples and a Gaussian": lambda x: (
        laplaces(x).compose(accountants.guarantee(dpk.gaussian(sigma=5.0), 1.0)).epsilon(1e-6)
    ),
    "renyi": lambda x: laplaces(x).renyi(8.0),
    "shuffled delta": lambda x: reports(0.1).delta(x / 2),
    "shuffled epsilon": lambda x: reports(0.1).epsilon(1e-5 * x),
    "composed scale": lambda x: calibrate.composed_scale(dpk.Laplace(1.0), epsilon=10 * x, delta=1e-6, count=100),
    "composed": lambda x: calibrate.composed(dpk.Gaussian(1.0), epsilon=10 * x, delta=1e-6, count=100).noise.sigma,
    "scale factor": lambda x: calibrate.noise_scale_factor(laplaces(0.1), epsilon=10 * x, delta=1e-6),
    "composed budget": lambda x: (
        calibrate.composed_budget(dpk.laplace, epsilon=10 * x, delta=1e-6, count=10).noise.scale
    ),
    "shuffled budget": lambda x: (
        calibrate.shuffled(dpk.piecewise, epsilon=2 * x, delta=1e-6, n=10_000, lower=0.0, upper=1.0).epsilon
    ),
}
# The relative error of a number in 32 bits, by its effect; the plain values of "composed" are conservative by 2e-5.
TOLERANCE = 1e-4


@pytest.mark.lengthy
@pytest.mark.quick("epsilon", "scale factor")
@pytest.mark.parametrize("name", QUANTITIES)
def test_a_concrete_number_has_the_value_of_a_plain_one_in_its_own_type(name):
    assert not jax.config.jax_enable_x64
    value = QUANTITIES[name](jnp.asarray(0.1))
    if name != "shuffled budget":  # The constructor of a mechanism makes a concrete budget a plain number.
        assert isinstance(value, jax.Array)
        assert value.dtype == jnp.float32
    assert np.isfinite(value)
    assert float(value) == pytest.approx(float(QUANTITIES[name](0.1)), rel=TOLERANCE)


REFUSED = "traced by JAX .* in 32 bits, .*jax_enable_x64"
# Outside jit these are computed on the host, in 64 bits.
ON_HOST = [name for name in QUANTITIES if name.startswith(("delta", "epsilon")) and name != "epsilon of one release"]


@pytest.mark.parametrize(
    ("name", "transform"),
    [(name, transform) for name in QUANTITIES for transform in ("jit", "grad", "vmap")[: 1 if name in ON_HOST else 3]],
)
def test_a_traced_number_is_refused(name, transform):
    """In its own error: not with an infinite value, and not from inside JAX."""
    x = jnp.full(2, 0.1) if transform == "vmap" else jnp.asarray(0.1)
    with pytest.raises(ValueError, match=REFUSED):
        getattr(jax, transform)(QUANTITIES[name])(x)


@pytest.mark.lengthy
@pytest.mark.parametrize("name", ON_HOST)
def test_gradients_outside_jit_are_those_of_64_bits(name):
    value, slope = jax.value_and_grad(QUANTITIES[name])(jnp.asarray(0.1))
    mapped = jax.vmap(QUANTITIES[name])(jnp.full(2, 0.1))
    with jax.enable_x64(True):
        exact, by_x = jax.value_and_grad(QUANTITIES[name])(jnp.float64(0.1))
    assert value.dtype == slope.dtype == mapped.dtype == jnp.float32
    np.testing.assert_allclose([value, slope, *mapped], [exact, by_x, exact, exact], rtol=TOLERANCE)


@pytest.mark.lengthy
def test_a_number_of_32_bits_where_64_are_on():
    """It is computed in 64 bits inside programs too, and the result has its type."""
    with jax.enable_x64(True):
        epsilon = jax.jit(lambda delta: laplaces(0.1).epsilon(delta))
        narrow, wide = epsilon(jnp.float32(1e-6)), epsilon(jnp.float64(1e-6))
    assert (narrow.dtype, wide.dtype) == (jnp.float32, jnp.float64)
    assert float(narrow) == pytest.approx(float(wide), rel=1e-6)
    assert float(wide) == pytest.approx(laplaces(0.1).estimate_epsilon(1e-6), rel=1e-9)
