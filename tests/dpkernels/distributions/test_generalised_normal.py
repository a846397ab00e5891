"""Generalised normal noise: digits of its functions and derivatives, its guarantee, and its two classic exponents."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import accountants
import dpkernels as dpk
from accountants import calibrate, guarantee
from dpkernels.mechanisms.additive import Additive
from dpkernels.pytrees import pytree

mp = mpmath.mp
CLASSICS = ((1.0, dpk.Laplace(1.7)), (2.0, dpk.Gaussian(1.7 / np.sqrt(2))))


def exact_tail(scale, exponent, z):
    """P(Z > z) in 40 digits."""
    z, b = mp.mpf(float(z)) / mp.mpf(scale), mp.mpf(exponent)
    tail = mp.gammainc(1 / b, abs(z) ** b, regularized=True) / 2
    return tail if z >= 0 else 1 - tail


def exact_delta(scale, exponent, D, eps):
    """F(z) - e^eps F(z - D) at the z where the loss is eps, in 40 digits."""
    with mp.workdps(40):
        s, b, D, eps = map(mp.mpf, (scale, exponent, D, eps))
        low, high = -s, D / 2
        while (abs(low - D) ** b - abs(low) ** b) / s**b < eps:
            low *= 2
        for _ in range(140):
            middle = (low + high) / 2
            is_above = (abs(middle - D) ** b - abs(middle) ** b) / s**b > eps
            low, high = (middle, high) if is_above else (low, middle)
        return exact_tail(s, b, -low) - mp.exp(eps) * exact_tail(s, b, D - low)


def faults(kind):
    """What is off about a class: its tail, moments, density, or a profile that is below the truth."""
    messages = []
    with mp.workdps(40):
        for scale, exponent in ((0.6, 1.3), (2.5, 3.7)):
            noise = kind(scale, exponent)
            for z in (0.05, 0.5, 3.0):
                true = exact_tail(scale, exponent, z * scale)
                messages += ["tail"] * (abs(float(noise.sf(np.float64(z * scale)) / true) - 1) > 1e-13)
                density = mp.exp(-(mp.mpf(z) ** exponent)) / (2 * mp.mpf(scale) * mp.gamma(1 + 1 / mp.mpf(exponent)))
                messages += ["density"] * (abs(float(noise.prob(np.float64(z * scale)) / density) - 1) > 1e-13)
            a = 1 / mp.mpf(exponent)
            square, size = (scale**k * mp.gamma((k + 1) * a) / mp.gamma(a) for k in (2, 1))
            messages += ["variance"] * (abs(float(noise.variance / square) - 1) > 1e-13)
            messages += ["absolute moment"] * (abs(float(noise.absolute_moment / size) - 1) > 1e-13)
            for eps in (0.0, 0.4, 1.1):
                exact, delta = exact_delta(scale, exponent, 1.0, eps), accountants.delta(Additive(noise, 1.0), eps)
                messages += ["profile"] * (not exact <= delta <= exact * (1 + 1e-11))
    return set(messages)


def test_functions_and_profiles_in_40_digits():
    assert not faults(dpk.GeneralisedNormal)


@pytree
@dataclass(frozen=True)
class SwappedNormal(dpk.GeneralisedNormal):
    """Exponent and scale exchanged where the density is computed."""

    def log_prob(self, z):
        return dpk.GeneralisedNormal(self.exponent, max(self.scale, 1.0)).log_prob(z)


@pytree
@dataclass(frozen=True)
class TurnedNormal(dpk.GeneralisedNormal):
    """A loss of the wrong direction."""

    def loss(self, z, shift):
        return -super().loss(z, shift)


@pytree
@dataclass(frozen=True)
class CutNormal(dpk.GeneralisedNormal):
    """Tails without the mass beyond 4 scales."""

    def tail(self, z):
        return super().tail(z) - super().tail(np.float64(4 * self.scale))


@pytest.mark.parametrize(
    ("kind", "fault"), [(SwappedNormal, "density"), (TurnedNormal, "profile"), (CutNormal, "tail")]
)
def test_planted_faults_are_seen(kind, fault):
    assert fault in faults(kind)


@pytest.mark.parametrize(("exponent", "peer"), CLASSICS, ids=["laplace", "gaussian"])
def test_the_classic_exponents_are_the_classics(exponent, peer):
    noise = dpk.GeneralisedNormal(1.7, exponent)
    z = np.array([-40.0, -9.0, -1.1, -1e-9, 0.0, 0.3, 2.0, 17.0])
    u = np.array([1e-300, 1e-30, 1e-5, 0.2, 0.5, 0.8, 0.9999])
    for name in ("log_prob", "prob", "cdf", "sf"):
        np.testing.assert_allclose(getattr(noise, name)(z), getattr(peer, name)(z), rtol=1e-12)
    np.testing.assert_allclose(noise.icdf(u), peer.icdf(u), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(noise.loss(z, 0.7), peer.loss(z, 0.7), rtol=1e-12)
    np.testing.assert_allclose(
        [noise.variance, noise.absolute_moment], [peer.variance, peer.absolute_moment], rtol=1e-12
    )
    ours, theirs = (Additive(law, 0.7) for law in (noise, peer))
    np.testing.assert_allclose(accountants.delta(ours, [0.0, 0.2, 0.4]), accountants.delta(theirs, [0.0, 0.2, 0.4]))
    assert accountants.epsilon(ours) == accountants.epsilon(theirs)
    assert guarantee(ours).repeat(10).bracket(delta=1e-6) == pytest.approx(
        guarantee(theirs).repeat(10).bracket(delta=1e-6), rel=1e-12
    )


def test_only_the_exponent_1_is_pure():
    pure = dpk.generalised_normal(scale=2.0, exponent=1.0, epsilon=0.5, delta=0.0, sensitivity=1.0)
    assert dpk.exact_sampler(pure).certificate.guarantee == "pure epsilon-DP"
    assert accountants.epsilon(pure) == pytest.approx(0.5)
    assert accountants.epsilon(Additive(dpk.GeneralisedNormal(2.0, 1.0001), 1.0)) == np.inf
    with pytest.raises(dpk.CertificateError, match="delta"):
        dpk.exact_sampler(dpk.generalised_normal(scale=2.0, exponent=1.1, epsilon=0.5, delta=0.0, sensitivity=1.0))


def test_exponents_are_checked():
    for exponent in (0.99, 8.01, float("nan")):
        with pytest.raises(ValueError, match="exponent"):
            dpk.GeneralisedNormal(1.0, exponent)


@pytest.mark.lengthy
def test_derivatives_in_scale_and_exponent():
    """Those of the tail and its inverse against 40 digits, also far out; those of a profile against differences."""
    with jax.enable_x64(True):
        tails = jax.jit(jax.grad(lambda b, z: dpk.GeneralisedNormal(1.0, b).sf(z)))
        roots = jax.jit(jax.value_and_grad(lambda b, u: dpk.GeneralisedNormal(1.0, b).icdf(u)))
        for b in (1.0, 1.02, 1.5, 2.0, 3.0, 8.0):
            for x in (0.01, 1.0, 1.99, 2.01, 30.0, 600.0):
                z = x ** (1 / b)
                with mp.workdps(40):
                    exact = float(mp.diff(lambda b, z=z: exact_tail(1.0, b, z), b))
                    u, density = (float(f(np.float64(-z))) for f in (dpk.GeneralisedNormal(1.0, b).cdf,) * 2)
                assert tails(jnp.asarray(b), jnp.asarray(z)) == pytest.approx(exact, rel=1e-10, abs=1e-15)
                density = float(dpk.GeneralisedNormal(1.0, b).prob(np.float64(z)))
                root, slope = roots(jnp.asarray(b), jnp.asarray(u))
                assert root == pytest.approx(-z, rel=1e-12)
                assert slope == pytest.approx(-exact / density, rel=1e-9, abs=1e-14)

        def delta(b, s):
            return accountants.delta(Additive(dpk.GeneralisedNormal(s, b), 1.0), 0.3)

        point, h = (1.4, 2.0), 1e-5
        slopes = jax.jit(jax.grad(delta, (0, 1)))(*map(jnp.asarray, point))
        differences = [
            (delta(point[0] + h * i, point[1] + h * j) - delta(point[0] - h * i, point[1] - h * j)) / (2 * h)
            for i, j in ((1, 0), (0, 1))
        ]
        np.testing.assert_allclose(slopes, differences, rtol=1e-6)


@pytest.mark.lengthy
@pytest.mark.parametrize(("epsilon", "delta", "count", "exponent", "variance"), [(1.0, 1e-6, 10, 1.48, 158.95)])
def test_ten_releases_need_less_variance_than_any_classic(epsilon, delta, count, exponent, variance):
    noise = calibrate.composed(dpk.GeneralisedNormal(1.0, exponent), epsilon=epsilon, delta=delta, count=count)
    assert noise.noise.variance == pytest.approx(variance, rel=1e-3)
    low, high = guarantee(noise).repeat(count).bracket(epsilon=epsilon)
    assert low <= high <= delta
    assert high <= low * (1 + 1e-4)


@pytest.mark.lengthy
def test_replaced_records_have_brackets():
    composed = guarantee(Additive(dpk.GeneralisedNormal(2.0, 1.5), 1.0)).subsample(0.1, adjacency="replace").repeat(30)
    low, high = composed.bracket(epsilon=0.5)
    assert low <= composed.estimate_delta(0.5) <= high <= low * (1 + 2e-5)
