"""Noise on lattices: its law against mpmath, its moments and inverses, and the shortest lattices that keep a claim."""

import dataclasses
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from noise_tables import LATTICES, exp_bounds

import dpkernels as dpk
from dpkernels.exact.certificate import CertificateError

RNG = np.random.default_rng(19)
every_law = pytest.mark.parametrize("law", LATTICES.values(), ids=LATTICES)


def exact_probabilities(law):
    """In 60 digits."""
    with mpmath.workdps(60):
        step = mpmath.mpf(float(law.step))
        if isinstance(law, dpk.DiscreteLaplace):
            weight = lambda z: mpmath.exp(-abs(z) / mpmath.mpf(law.scale))  # noqa: E731
        else:
            weight = lambda z: mpmath.exp(-(z**2) / (2 * mpmath.mpf(law.sigma) ** 2))  # noqa: E731
        weights = [weight(k * step) for k in range(-law.reach, law.reach + 1)]
        total = mpmath.fsum(weights)
        return [w / total for w in weights]


@every_law
def test_probabilities(law):
    exact = exact_probabilities(law)
    np.testing.assert_allclose(law.probabilities, [float(p) for p in exact], rtol=1e-13)
    np.testing.assert_array_equal(law.probabilities, law.probabilities[::-1])
    np.testing.assert_array_equal(law.points, law.step * np.arange(-law.reach, law.reach + 1))
    atoms, p = law.atoms
    np.testing.assert_array_equal(atoms, law.points)
    np.testing.assert_array_equal(p, law.probabilities)
    assert np.all(law.prob(law.points) == 0)


@every_law
def test_moments(law):
    with mpmath.workdps(60):
        z, p = [mpmath.mpf(float(points)) for points in law.points], exact_probabilities(law)
        second = mpmath.fsum(a * a * q for a, q in zip(z, p, strict=True))
        first = mpmath.fsum(abs(a) * q for a, q in zip(z, p, strict=True))
    assert law.mean == 0
    assert law.variance == pytest.approx(float(second), rel=1e-12)
    assert law.absolute_moment == pytest.approx(float(first), rel=1e-12)


def test_variances_in_closed_form():
    """Of the whole lattice, where the ends do not matter: 2 q h^2/(1 - q)^2; and below the Gaussian's own."""
    for scale, step in ((2.5, 0.5), (0.4, 1.0), (300.0, 7.0)):
        q = math.exp(-step / scale)
        assert dpk.DiscreteLaplace(scale, step).variance == pytest.approx(2 * q * step**2 / (1 - q) ** 2, rel=1e-12)
    assert dpk.DiscreteGaussian(5.0).variance == pytest.approx(25.0, rel=1e-12)
    assert dpk.DiscreteGaussian(0.3).variance < 0.09


@every_law
def test_cdf_and_icdf(law):
    cumulative = np.cumsum(law.probabilities)
    np.testing.assert_allclose(law.cdf(law.points), cumulative, rtol=1e-12)
    between = law.points[:-1] + law.step / 3
    np.testing.assert_allclose(law.cdf(between), cumulative[:-1], rtol=1e-12)
    assert law.cdf(-np.inf) == law.cdf(law.points[0] - law.step / 2) == 0
    assert law.cdf(np.inf) == pytest.approx(1, abs=1e-12)
    assert law.cdf(np.inf) <= 1
    u = RNG.uniform(size=500)
    z = law.icdf(u)
    assert np.all(law.cdf(z) >= u)
    assert np.all(law.cdf(z - law.step) < u)
    assert np.isin(z, law.points).all()
    assert law.icdf(np.array([0.0, 1.0])).tolist()[1] == law.points[-1] or law.icdf(1.0) <= law.points[-1]


@pytest.mark.quick("truncated-discrete-laplace")
@every_law
def test_jax_agrees(law):
    with jax.enable_x64(True):
        u = RNG.uniform(0.001, 0.999, 200)
        leaves = jax.tree.map(jnp.asarray, law)
        np.testing.assert_allclose(jax.jit(lambda m: m.probabilities)(leaves), law.probabilities, rtol=1e-12)
        np.testing.assert_allclose(jax.jit(lambda m: m.variance)(leaves), law.variance, rtol=1e-10)
        np.testing.assert_allclose(jax.jit(lambda m, v: m.icdf(v))(leaves, jnp.asarray(u)), law.icdf(u))
        np.testing.assert_allclose(
            jax.jit(lambda m, v: m.cdf(v))(leaves, jnp.asarray(law.points + 0.1)), law.cdf(law.points + 0.1)
        )


@pytest.mark.thorough
def test_laws_are_pytrees_of_fixed_length():
    law = LATTICES["discrete-laplace"]
    leaves, shape = jax.tree.flatten(law)
    assert leaves == [2.5, 0.5]
    assert jax.tree.unflatten(shape, leaves) == law
    slope = jax.grad(lambda b: dataclasses.replace(law, scale=b).variance)(2.5)
    apart = [dpk.DiscreteLaplace(b, 0.5, law.reach).variance for b in (2.501, 2.499)]
    assert float(slope) == pytest.approx((apart[0] - apart[1]) / 0.002, rel=1e-3)


@pytest.mark.parametrize("made", [dpk.discrete_laplace(epsilon=0.7), dpk.discrete_gaussian(sigma=3.0, step=0.5)])
def test_samples_are_on_the_lattice_about_x(made):
    x = np.float32(RNG.normal(0, 10, 100_000))
    z = np.asarray(made.sample(dpk.simulation_key(3), x), float) - x
    k = z / made.noise.step
    assert np.abs(k - np.rint(k)).max() < 1e-4
    assert np.mean(z**2) == pytest.approx(made.noise.variance, rel=0.05)
    assert abs(z.mean()) < 6 * math.sqrt(made.noise.variance / len(z))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: dpk.DiscreteLaplace(0.0), "scale"),
        (lambda: dpk.DiscreteLaplace(math.nan), "scale"),
        (lambda: dpk.DiscreteLaplace(1.0, 0.0), "step"),
        (lambda: dpk.DiscreteLaplace(1.0, -1.0), "step"),
        (lambda: dpk.DiscreteLaplace(1.0, 1.0, -3), "reach"),
        (lambda: dpk.DiscreteLaplace(1e6, 1.0), "step"),
        (lambda: dpk.DiscreteLaplace(1.0, 1.0, 1 << 19), "step"),
        (lambda: dpk.DiscreteGaussian(-1.0), "sigma"),
        (lambda: dpk.DiscreteGaussian(1e6), "step"),
        (lambda: dpk.discrete_laplace(epsilon=1e-3), "epsilon"),
        (lambda: dpk.discrete_laplace(epsilon=1.0, sensitivity=0.0), "sensitivity"),
        (lambda: dpk.discrete_laplace(epsilon=1.0, step=-1.0), "step"),
        (lambda: dpk.discrete_laplace(epsilon=1.0, step=1e-308), "step"),
        (lambda: dpk.discrete_laplace(epsilon=1.0, sensitivity=1e100, step=5e-324), "step"),
        (lambda: dpk.truncated_discrete_laplace(epsilon=1.0, delta=0.5, step=1e-308), "step"),
        (lambda: dpk.discrete_gaussian(sigma=1e140, step=5e-324), "step"),
        (lambda: dpk.DiscreteLaplace(1.0, step=5e-324), "step"),
        (lambda: dpk.discrete_laplace(epsilon=0.01, sensitivity=1e9), "step"),
        (lambda: dpk.truncated_discrete_laplace(epsilon=1.0, delta=0.0), "delta"),
        (lambda: dpk.truncated_discrete_laplace(epsilon=1.0, delta=1.0), "delta"),
        (lambda: dpk.discrete_gaussian(sigma=0.0), "sigma"),
    ],
)
def test_errors_name_the_argument(make, name):
    with pytest.raises(ValueError, match=f"^{name}:"):
        make()


@pytest.mark.parametrize("reach", [2.5, True, "3"])
def test_reaches_are_whole(reach):
    with pytest.raises(TypeError, match=r"^reach: .* is not a whole number"):
        dpk.DiscreteLaplace(1.0, 1.0, reach)


def enumerated_delta(law, shift, epsilon):
    """The hockey stick of the law and itself ``shift`` points further, in 60 digits."""
    with mpmath.workdps(60):
        p, ratio = exact_probabilities(law), mpmath.exp(mpmath.mpf(repr(epsilon)))
        return mpmath.fsum(max(0, a - ratio * b) for a, b in zip(p, [0] * shift + p, strict=False))


@pytest.mark.lengthy
@pytest.mark.parametrize("epsilon", [0.3, 0.7, 1.0, 3.0, 12.0])
@pytest.mark.parametrize("delta", [0.3, 1e-2, 1e-6, 1e-12])
@pytest.mark.parametrize(("D", "step"), [(1.0, 1.0), (3.0, 1.0), (2.0, 0.25), (0.7, 0.5), (0.3, 1.0)])
def test_truncated_lattices_are_the_shortest_with_the_claim(epsilon, delta, D, step):
    """Recomputed from the law in 60 digits."""
    law = dpk.truncated_discrete_laplace(epsilon=epsilon, delta=delta, sensitivity=D, step=step).noise
    shift = math.ceil(Fraction(D) / Fraction(step))
    assert enumerated_delta(law, shift, epsilon) <= delta * (1 + 1e-12)
    if law.reach > max(1, (shift + 1) // 2):
        shorter = dpk.DiscreteLaplace(law.scale, step, law.reach - 1)
        assert enumerated_delta(shorter, shift, epsilon) > delta


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_discrete_laplace_has_its_ratio(epsilon):
    """Neighbouring probabilities are e^(eps/n) apart, so shifts of n points e^eps."""
    law = dpk.discrete_laplace(epsilon=epsilon, sensitivity=3.0, step=0.5).noise
    ratios = law.probabilities[6:] / law.probabilities[:-6]
    assert max(ratios.max(), 1 / ratios.min()) <= float(exp_bounds(epsilon)[1]) * (1 + 1e-12)
    assert float(law.probabilities[-1]) < 2.0**-64


@pytest.mark.parametrize("step", [1.0, 0.25, 1e6, 2.0**-20, 3.0, float(np.float32(0.1))])
def test_steps_small_and_large_are_certified(step):
    """Reports are exact multiples of the step."""
    mechanism = dpk.discrete_laplace(epsilon=1.0, sensitivity=2 * step, step=step)
    sampler = dpk.exact_sampler(mechanism)
    assert sampler.table.bin_width == Fraction(step)
    assert sampler.certificate.shift == 2
    reports = dpk.perturb(step * np.arange(-50.0, 50.0), sampler)
    assert all((Fraction(report) / Fraction(step)).denominator == 1 for report in reports.tolist())


@pytest.mark.parametrize("step", [0.1, 1 / 3, math.pi])
def test_steps_that_floats_only_approximate_are_refused(step):
    with pytest.raises(CertificateError, match=r"^step: .* short binary fraction"):
        dpk.exact_sampler(dpk.discrete_laplace(epsilon=1.0, step=step))


def test_a_step_far_above_the_sensitivity_is_certified():
    """Inputs 1 apart are on one point or two neighbouring ones."""
    sampler = dpk.exact_sampler(dpk.discrete_laplace(epsilon=1.0, sensitivity=1.0, step=1000.0))
    assert sampler.certificate.shift == 1
    assert sampler.table.bin_width == 1000
