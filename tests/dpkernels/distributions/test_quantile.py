"""The normal quantile: right in both tails in float32 and float64, odd, increasing, and differentiable."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.special

import dpkernels as dpk
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import log1p_over, ndtri
from dpkernels.random.uniforms import uniforms

# Of the quantile, in units in the last place of float32; 3.7 was seen.
ULPS = 5
SMALLEST = np.finfo(np.float32).smallest_normal
TAIL = np.exp(np.random.default_rng(5).uniform(np.log(SMALLEST), np.log(0.5), 1 << 20)).astype(np.float32)


def in_float32(u):
    z = jax.jit(ndtri)(jnp.asarray(u, jnp.float32))
    assert z.dtype == jnp.float32
    return np.asarray(z)


def ulps(z, exact):
    return np.abs(z - exact) / np.spacing(np.abs(exact).astype(np.float32))


@pytest.fixture(scope="module")
def lattice():
    """Every float32 uniform a sampler can draw, and their quantiles."""
    u = ((np.arange(1 << 23) + 0.5) * 2.0**-23).astype(np.float32)
    return u, in_float32(u)


@pytest.mark.lengthy
def test_float32_is_right_at_every_uniform_a_sampler_draws(lattice):
    u, z = lattice
    assert ulps(z, scipy.special.ndtri(u.astype(float))).max() < ULPS


def test_float32_is_right_far_out_in_the_tail():
    assert ulps(in_float32(TAIL), scipy.special.ndtri(TAIL.astype(float))).max() < ULPS


def test_float32_is_right_by_mpmath():
    u = np.float32([SMALLEST, 1e-30, 2.0**-24, 1e-3, 0.0498, 0.0502, 0.3, 0.4999, 0.5 - 2.0**-25])
    with mpmath.workdps(80):
        exact = [float(mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(float(probability)) - 1)) for probability in u]
    np.testing.assert_allclose(scipy.special.ndtri(u.astype(float)), exact, rtol=1e-14)
    assert ulps(in_float32(u), np.array(exact)).max() < ULPS


def test_float32_is_odd_about_one_half(lattice):
    _, z = lattice
    np.testing.assert_array_equal(z, -z[::-1])


def test_float32_is_increasing_up_to_rounding(lattice):
    _, z = lattice
    assert np.all(np.diff(z) >= -np.spacing(np.abs(z[1:])))
    assert np.all(np.diff(z[:: 1 << 4]) > 0)


def test_float32_ends():
    z = in_float32([0.0, 0.5, 1.0, -0.1, 1.1, np.nan])
    np.testing.assert_array_equal(z, [-np.inf, 0.0, np.inf, np.nan, np.nan, np.nan])


@pytest.mark.usefixtures("x64")
def test_types_are_kept_and_float64_is_right():
    u = np.concatenate([10.0 ** -np.arange(1, 301, 13), np.linspace(0.01, 0.99, 99)])
    z = jax.jit(ndtri)(jnp.asarray(u))
    assert z.dtype == jnp.float64
    np.testing.assert_allclose(z, scipy.special.ndtri(u), rtol=1e-13, atol=1e-15)
    np.testing.assert_array_equal(ndtri(u), scipy.special.ndtri(u))
    assert in_float32(u).shape == u.shape


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.usefixtures("x64")
def test_derivatives_are_those_of_an_inverse_cdf(dtype):
    u = np.array([1e-30, 2.0**-24, 1e-4, 0.03, 0.0499, 0.2, 0.5, 0.8, 0.95, 1 - 2.0**-24]).astype(dtype)
    z = scipy.special.ndtri(u.astype(float))
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    rtol = {"float32": 2e-4, "float64": 1e-11}[dtype]
    for differentiate in (jax.grad, jax.jacfwd):
        slope = jax.vmap(differentiate(ndtri))(jnp.asarray(u))
        assert slope.dtype == dtype
        np.testing.assert_allclose(slope, 1 / density, rtol=rtol)
    bent = jax.vmap(jax.grad(jax.grad(ndtri)))(jnp.asarray(u[1:]))
    np.testing.assert_allclose(bent, (z / density**2)[1:], rtol=rtol, atol=1e-6)


@pytest.mark.quick("law0")
@pytest.mark.parametrize("law", [Gaussian(1.3), Laplace(0.7), Reweighted(Gaussian(1.0), -2.0, 1.0, 0.3)])
def test_the_two_tails_meet_with_their_slope(law):
    middle = jnp.float32(0.5)
    for inverse, slope in ((law.icdf, 1.0), (law.isf, -1.0)):
        np.testing.assert_allclose(jax.grad(inverse)(middle), slope / law.prob(inverse(0.5)), rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1e-6), ("float64", 4e-15)])
@pytest.mark.usefixtures("x64")
def test_log1p_over_passes_through_rate_zero(dtype, rtol):
    rate, q = (axis.ravel().astype(dtype) for axis in np.meshgrid([0.0, 1e-12, 3e-5, 0.2, 7.0], [1e-9, 0.3, 3.3, 40.0]))
    with mpmath.workdps(40):
        exact = [
            float(mpmath.log1p(mpmath.mpf(r) * t) / r if r else t)
            for r, t in zip(rate.tolist(), q.tolist(), strict=True)
        ]
    np.testing.assert_allclose(jax.jit(log1p_over)(jnp.asarray(rate), jnp.asarray(q)), exact, rtol=rtol)
    slope = jax.vmap(jax.grad(log1p_over))(jnp.asarray(rate), jnp.asarray(q))
    at_zero = rate == 0
    np.testing.assert_allclose(slope[at_zero], -(q[at_zero] ** 2) / 2, rtol=rtol)
    assert np.all(np.isfinite(slope))


@pytest.mark.thorough
def test_samples_are_the_quantile_at_the_uniforms_of_the_key():
    key, x, sigma = dpk.simulation_key(4), np.zeros(1 << 16, np.float32), 1.75
    noise = np.asarray(Additive(Gaussian(sigma)).sample(key, x))
    u = np.asarray(uniforms(key, (0, 0), x.size, jnp.float32), float)
    assert ulps(noise, sigma * scipy.special.ndtri(u)).max() < ULPS + 1
