"""Noise of any log-concave density: logistic and Student noise, and classes of a user's own."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.stats

import accountants
import dpkernels as dpk
from accountants import Guarantee, calibrate, check_steepness, guarantee, tune
from accountants.dominating_pairs.base import profile
from accountants.dominating_pairs.registry import noise_pairs
from dpkernels.distributions.base import Distribution, Noise, Symmetric
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import namespace
from dpkernels.pytrees import pytree

mp = mpmath.mp
NOISE = {
    "logistic": dpk.Logistic(0.7),
    "generalised-1.3": dpk.GeneralisedNormal(0.8, 1.3),
    "generalised-5": dpk.GeneralisedNormal(1.7, 5.0),
    "student-3": dpk.Student(1.3),
    "student-7.5": dpk.Student(0.4, 7.5),
    "student-60": dpk.Student(2.0, 60.0),
}
every_noise = pytest.mark.parametrize("noise", NOISE.values(), ids=NOISE)
EPS = np.array([0.0, 1e-3, 0.1, 0.4, 0.8, 1.5])


def logistic_delta(b, D, eps):
    """F(z) - e^eps F(z - D) where the loss -4 artanh(tanh((z - D/2)/2b) tanh(D/4b)) is eps, in 50 digits or more."""
    with mp.workdps(600):
        b, D, eps = map(mp.mpf, (b, D, eps))
        ratio = mp.tanh(eps / 4) / mp.tanh(D / (4 * b))
        if ratio >= 1:
            return mp.mpf(0)
        z = D / 2 - 2 * b * mp.atanh(ratio)
        cdf, shifted = (1 / (1 + mp.exp(-point / b)) for point in (z, z - D))
        return cdf - mp.exp(eps) * shifted


def by_quadrature(noise, D, eps, reach=400.0):
    """The positive part of f - e^eps f(. - D) by the midpoint rule, on the scale of the noise."""
    width = reach * float(noise.scale)
    z = np.concatenate([np.linspace(-1, 1, 2_000_001) ** 3 * width])
    middle, step = (z[1:] + z[:-1]) / 2, np.diff(z)
    p, q = noise.prob(middle), noise.prob(middle - D)
    return np.array([(np.maximum(p - np.exp(e) * q, 0.0) * step).sum() for e in eps])


# Distributions


@every_noise
def test_scipy_agrees(noise):
    if isinstance(noise, dpk.Logistic):
        peer = scipy.stats.logistic(scale=noise.scale)
    elif isinstance(noise, dpk.GeneralisedNormal):
        peer = scipy.stats.gennorm(noise.exponent, scale=noise.scale)
    else:
        peer = scipy.stats.t(noise.degrees, scale=noise.scale)
    z = np.array([-1e4, -30.0, -3.0, -0.2, 0.0, 1e-9, 0.7, 2.0, 11.0]) * noise.scale
    u = np.array([1e-12, 1e-5, 0.01, 0.3, 0.5, 0.77, 0.999])
    np.testing.assert_allclose(noise.log_prob(z), peer.logpdf(z), rtol=1e-12)
    np.testing.assert_allclose(noise.cdf(z), peer.cdf(z), rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(noise.icdf(u), peer.ppf(u), rtol=1e-10, atol=1e-15)
    np.testing.assert_allclose(noise.variance, peer.var(), rtol=1e-12)
    np.testing.assert_allclose(noise.cdf(noise.icdf(np.array([1e-200, 1e-40]))), [1e-200, 1e-40], rtol=1e-11)


@every_noise
def test_moments_follow_by_quadrature(noise):
    general = Distribution.variance.fget(noise), Distribution.absolute_moment.fget(noise)
    np.testing.assert_allclose(general, (noise.variance, noise.absolute_moment), rtol=1e-9)
    low, high = -0.3 * noise.scale, 2.1 * noise.scale
    np.testing.assert_allclose(noise.moment(0, low, high), noise.mass(low, high), rtol=1e-13)


@pytest.mark.lengthy
@pytest.mark.quick("generalised-5", "student-7.5")
@every_noise
def test_jax_agrees_with_numpy_and_has_derivatives(noise):
    with jax.enable_x64(True):
        z, u = np.linspace(-4, 4, 9) * noise.scale, np.array([1e-6, 0.02, 0.5, 0.9])
        np.testing.assert_allclose(noise.log_prob(jnp.asarray(z)), noise.log_prob(z), rtol=1e-12)
        np.testing.assert_allclose(noise.icdf(jnp.asarray(u)), noise.icdf(u), rtol=1e-8, atol=1e-12)
        slope = jax.vmap(jax.grad(noise.icdf))(jnp.asarray(u))
        np.testing.assert_allclose(slope * noise.prob(noise.icdf(u)), 1.0, rtol=1e-8)


def test_student_noise_is_pure_at_its_scale():
    """The largest loss is (nu + 1) asinh(D/(2 s sqrt(nu))), and the constructor inverts that."""
    for degrees, epsilon, D in ((3.0, 1.0, 1.0), (11.0, 0.2, 7.0), (40.0, 4.0, 0.3)):
        mechanism = dpk.student(epsilon=epsilon, sensitivity=D, degrees=degrees)
        assert accountants.epsilon(mechanism) == pytest.approx(epsilon, rel=1e-12)
        z = np.linspace(-9, 9, 100_001) * mechanism.noise.scale
        assert mechanism.noise.loss(z, D).max() <= epsilon * (1 + 1e-9)


def test_degrees_of_freedom_are_checked():
    with pytest.raises(ValueError, match="degrees"):
        dpk.Student(1.0, 2.5)
    with pytest.raises(TypeError, match="degrees"):
        dpk.Student(1.0, "3")


# Profiles


@pytest.mark.lengthy
def test_logistic_delta_in_50_digits():
    """At 200 random settings to 1e-12 of delta, or of 1e-3 where delta is smaller."""
    draws = np.random.default_rng(5)
    for _ in range(200):
        b, D = np.exp(draws.uniform(-4, 4, 2))
        eps = draws.uniform(0, 1.02) * min(D / b, 600.0)
        exact = float(logistic_delta(b, D, eps))
        delta = float(accountants.delta(Additive(dpk.Logistic(b), D), eps))
        assert delta == pytest.approx(exact, rel=1e-12, abs=1e-15)


def student_tail(nu, z):
    """P(Z > z) at unit scale, in 50 digits."""
    nu, z = mp.mpf(nu), mp.mpf(z)
    tail = mp.betainc(nu / 2, 0.5, 0, nu / (nu + z * z), regularized=True) / 2
    return tail if z >= 0 else 1 - tail


@pytest.mark.parametrize("nu", [3.0, 30.0, 300.0, 1000.0])
def test_student_tails_and_density_in_50_digits(nu):
    """Also far out at many degrees of freedom, where 1 less the rest has no digits: brackets end at a quantile."""
    noise = dpk.Student(1.0, nu)
    with mp.workdps(50):
        for z in (0.01, 0.5, 0.999, 1.0, 3.0, 7.0, 12.0, 25.0):
            assert float(noise.tail(np.float64(z))) == pytest.approx(float(student_tail(nu, z)), rel=2e-13)
            exact = mp.gamma((mp.mpf(nu) + 1) / 2) / mp.gamma(mp.mpf(nu) / 2) / mp.sqrt(nu * mp.pi)
            exact *= (1 + mp.mpf(z) ** 2 / nu) ** (-(mp.mpf(nu) + 1) / 2)
            assert float(noise.prob(np.float64(z))) == pytest.approx(float(exact), rel=4e-14)
        for u in (1e-5, 1e-16, 1e-40, 1e-160):
            z = float(noise.inverse(np.array([u]), np.ones(1, bool))[0])
            assert float(student_tail(nu, -z) / u) == pytest.approx(1.0, rel=2e-13)


def student_delta(s, nu, D, eps):
    """P[l > eps] - e^eps Q[l > eps] between the roots of k z^2 + 2 D z + nu s^2 k - D^2, k = e^(2 eps/(nu + 1)) - 1."""
    with mp.workdps(60):
        s, nu, D, eps = map(mp.mpf, (s, nu, D, eps))
        a, k = nu * s**2, mp.expm1(2 * eps / (nu + 1))
        root = D**2 - k * (a * k - D**2)
        if root <= 0:
            return mp.mpf(0)
        lower_end = -(D + mp.sqrt(root))
        low, high = lower_end / k, (a * k - D**2) / lower_end
        p, q = (student_mass(nu, (low - centre) / s, (high - centre) / s) for centre in (0, D))
        return p - mp.exp(eps) * q


def student_mass(nu, low, high):
    """P(low < Z < high), on the side of 0 where the tails are small."""
    if high <= 0:
        low, high = -high, -low
    return student_tail(nu, low) - student_tail(nu, high)


@pytest.mark.parametrize(
    ("s", "nu", "D"), [(1e-3, 30.0, 30.0), (7.0, 4.5, 1.0), (1e3, 30.0, 1e-3), (1.0, 1000.0, 30.0)]
)
def test_student_delta_is_never_below_the_truth(s, nu, D):
    """Up to next to the largest loss, where the difference of two masses would have lost all digits."""
    top = float((nu + 1) * mp.asinh(D / (2 * s * mp.sqrt(nu))))
    for fraction in (1e-3, 0.3, 0.9, 0.999, 1 - 1e-6, 1 - 1e-9):
        exact = float(student_delta(s, nu, D, top * fraction))
        delta = accountants.delta(Additive(dpk.Student(s, nu), D), top * fraction)
        assert exact <= delta <= exact * (1 + 1e-10) + 8 * 2.0**-52 * (1 + top), fraction


@pytest.mark.lengthy
@every_noise
@pytest.mark.parametrize("D", [0.05, 1.0, 9.0])
def test_profiles_by_quadrature(noise, D):
    delta = accountants.delta(Additive(noise, D), EPS)
    np.testing.assert_allclose(delta, by_quadrature(noise, D, EPS), rtol=2e-6, atol=2e-9)


@pytest.mark.lengthy
@pytest.mark.parametrize("ends", [(-1.0, 1.0, 0.3), (-0.4, 2.5, 0.0), (-3.0, 3.0, 0.0)])
def test_profiles_of_reweighted_noise(ends):
    law = dpk.Reweighted(dpk.Logistic(0.7), *ends)
    z = np.linspace(-40.0, 40.0, 2_000_001)
    middle = (z[1:] + z[:-1]) / 2
    for D in (0.5, 1.7):
        p, up, down = law.prob(middle), law.prob(middle - D), law.prob(middle + D)
        sums = [[np.maximum(p - np.exp(e) * q, 0).sum() * (z[1] - z[0]) for e in EPS] for q in (up, down)]
        np.testing.assert_allclose(accountants.delta(Additive(law, D), EPS), np.max(sums, 0), atol=2e-4)


@pytest.mark.thorough
@every_noise
def test_profiles_of_jax_numbers_have_the_derivative(noise):
    """d delta/d eps = -e^eps Q[loss > eps], against a difference."""
    with jax.enable_x64(True):
        pairs = noise_pairs(noise, 0.5)
        moved = jax.tree.map(jnp.asarray, pairs)
        top = float(pairs[0].largest_loss())

        def at(eps):
            return profile(moved, eps)

        eps, h = 0.4 * top, 1e-5
        assert at(jnp.asarray(eps)) == pytest.approx(profile(pairs, eps), rel=1e-12)
        difference = (profile(pairs, eps + h) - profile(pairs, eps - h)) / (2 * h)
        assert jax.grad(at)(jnp.asarray(eps)) == pytest.approx(difference, rel=1e-6)
        slope = jax.grad(lambda s: profile(jax.tree.map(jnp.asarray, noise_pairs(noise.rescale(s), 0.5)), eps))(1.0)
        wider = [profile(noise_pairs(noise.rescale(1 + d), 0.5), eps) for d in (h, -h)]
        assert slope == pytest.approx((wider[0] - wider[1]) / (2 * h), rel=1e-6)


# Composition


@pytest.mark.lengthy
@pytest.mark.parametrize("make", [dpk.Logistic, dpk.Student], ids=["logistic", "student"])
@pytest.mark.parametrize("rate", [None, 0.1])
def test_few_releases_are_inside_their_bracket(make, rate):
    single = guarantee(Additive(make(3.0), 1.0))
    composed = (single if rate is None else single.subsample(rate)).repeat(3)
    delta = float(composed.delta(0.1))
    low, high = composed.bracket(epsilon=0.1)
    assert low * (1 - 1e-9) <= delta <= high * (1 + 1e-9)
    assert high <= low * 1.01


def test_a_thousand_logistic_releases_are_inside_their_bracket():
    composed = guarantee(Additive(dpk.Logistic(30.0), 1.0)).repeat(1000)
    eps = float(composed.epsilon(1e-6))
    low, high = composed.bracket(delta=1e-6)
    assert low <= eps <= high <= low * 1.001


@pytest.mark.lengthy
def test_two_releases_by_enumeration():
    """delta of the sum of two losses by a double integral over both reports."""
    noise, D, eps = dpk.Logistic(1.0), 1.0, 0.7
    u = (np.arange(4000) + 0.5) / 4000
    loss = noise.loss(noise.icdf(u), D)
    single = -np.expm1(eps - loss[:, None] - loss[None, :])
    expected = np.maximum(single, 0.0).mean()
    assert float(guarantee(Additive(noise, D)).repeat(2).estimate_delta(eps)) == pytest.approx(expected, rel=1e-5)


def test_replaced_records_of_logistic_noise():
    """p and q are mixtures at rate r, by the midpoint rule; Student noise is refused, whose loss is not monotone."""
    noise, D, r = dpk.Logistic(0.8), 1.0, 0.3
    sampled = guarantee(Additive(noise, D)).subsample(r, adjacency="replace")
    z = np.linspace(-40, 40, 1_000_001)
    f, up, down = noise.prob(z), noise.prob(z - D), noise.prob(z + D)
    p, q = (1 - r) * f + r * up, (1 - r) * f + r * down
    expected = [np.maximum(p - np.exp(e) * q, 0).sum() * (z[1] - z[0]) for e in (0.0, 0.2, 0.5)]
    np.testing.assert_allclose([sampled.delta(e) for e in (0.0, 0.2, 0.5)], expected, rtol=1e-8)
    low, high = sampled.repeat(2).bracket(epsilon=0.5)
    assert low <= sampled.repeat(2).delta(0.5) <= high
    with pytest.raises(ValueError, match="log-concave"):
        guarantee(Additive(dpk.Student(1.0), 1.0)).subsample(r, adjacency="replace")


# Releases, calibration and files


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "made",
    [
        dpk.logistic(epsilon=0.5, sensitivity=2.0),
        dpk.student(epsilon=1.0),
        calibrate.generalised_normal(exponent=1.4, epsilon=0.5, delta=1e-9, sensitivity=3.0),
        dpk.generalised_normal(scale=4.0, exponent=1.0, epsilon=0.5, delta=0.0, sensitivity=2.0),
    ],
    ids=["logistic", "student", "generalised", "generalised-pure"],
)
def test_tables_are_certified_and_released(made):
    sampler = dpk.exact_sampler(made)
    assert sampler.certificate.epsilon == made.epsilon
    # 20,000 releases of 0: the mean absolute error, off by a factor of at most 1 +- 0.06 (7 standard deviations).
    y = dpk.perturb(np.zeros(20_000), made, key=dpk.key_from_bytes(bytes(range(32))))
    assert np.abs(y).mean() == pytest.approx(float(made.noise.absolute_moment), rel=0.06)


@pytest.mark.lengthy
@every_noise
def test_the_scale_for_a_budget(noise):
    calibrated = calibrate.scaled(noise, epsilon=0.5, delta=1e-3)
    assert accountants.delta(calibrated, 0.5) <= 1e-3
    assert accountants.delta(Additive(calibrated.noise.rescale(1 - 1e-9), 1.0), 0.5) > 1e-3


@every_noise
def test_guarantees_are_saved(noise):
    composed = guarantee(Additive(noise, 2.0)).repeat(3)
    assert Guarantee.from_json(composed.to_json()) == composed


@pytest.mark.thorough
def test_noise_is_tuned():
    tuned = tune.best(tune.budget_recycled(dpk.Logistic(1.0), epsilon=1.0, delta=1e-3), tune.acceptance(theta=2.0))
    assert accountants.delta(tuned.mechanism, 1.0) <= 1e-3
    assert isinstance(tuned.mechanism.noise.kernel, dpk.Logistic)


# The bound on derivatives, and what a class may leave out


@pytest.mark.lengthy
@every_noise
def test_steepness_bounds_the_derivatives(noise):
    """Generalised normal noise has none: between the exponents 1 and 2 there is no second derivative at 0."""
    if isinstance(noise, dpk.GeneralisedNormal):
        with pytest.raises(TypeError, match=r"write the method GeneralisedNormal\.steepness"):
            check_steepness(noise)
        return
    check_steepness(noise)
    check_steepness(dpk.Reweighted(noise, -1.0, 2.0, 0.5), points=100)


@pytree
@dataclass(frozen=True)
class TooSmooth(dpk.Logistic):
    """A bound that is a tenth too small."""

    def steepness(self, left, right):
        return 0.9 * super().steepness(left, right)


@pytree
@dataclass(frozen=True)
class Unbounded(Symmetric):
    """Logistic noise that states only what it must."""

    scale: float

    def log_prob(self, z):
        xp = namespace(z, self.scale)
        far = xp.abs(z) / self.scale
        return -far - 2 * xp.log1p(xp.exp(-far)) - xp.log(self.scale)

    def tail(self, z):
        return 1 / (1 + namespace(z, self.scale).exp(z / self.scale))

    def lower_inverse(self, u):
        xp = namespace(u, self.scale)
        return self.scale * (xp.log(u) - xp.log1p(-u))


def test_a_bound_that_is_too_small_is_found():
    with pytest.raises(ValueError, match=r"TooSmooth\.steepness"):
        check_steepness(TooSmooth(1.7))


@pytest.mark.lengthy
def test_three_members_are_enough():
    """Brackets need no more than the tails, also of samples with replaced records."""
    unbounded, logistic = Unbounded(3.0), dpk.Logistic(3.0)
    np.testing.assert_allclose(
        [unbounded.variance, unbounded.absolute_moment], [logistic.variance, logistic.absolute_moment], rtol=1e-10
    )
    np.testing.assert_allclose(
        *(accountants.delta(Additive(single, 1.0), EPS / 5) for single in (unbounded, logistic)), atol=1e-14
    )
    alone = [guarantee(Additive(noise, 1.0)) for noise in (unbounded, logistic)]
    sampled = [single.subsample(0.1, adjacency) for single in alone for adjacency in ("add_remove", "replace")]
    for ours, theirs in ((alone[0], alone[1]), (sampled[0], sampled[2]), (sampled[1], sampled[3])):
        composed, peer = ours.repeat(30), theirs.repeat(30)
        delta = peer.estimate_delta(0.5)
        assert composed.estimate_delta(0.5) == pytest.approx(delta, rel=1e-9)
        low, high = composed.bracket(epsilon=0.5)
        assert low * (1 - 1e-9) <= delta <= high * (1 + 1e-9)
        assert high <= low * (1 + 2e-5)


def test_two_classes_of_one_name_are_refused():
    """Files name distributions by their classes."""
    with pytest.raises(TypeError, match="choose another name"):
        type("Logistic", (Symmetric,), {})
    assert Noise.classes()["Logistic"] is dpk.Logistic


def test_lengths_are_named_or_rescale_is_written():
    lengthless = type("Lengthless", (dpk.Logistic,), {"lengths": ("width",)})
    with pytest.raises(TypeError, match=r"rescale\(factor, unit\)"):
        lengthless(1.0).rescale(2.0)


@pytest.mark.parametrize(
    ("scale", "degrees", "D", "eps"),
    [(2.86e-5, 1000, 3.8e-7, 0.1662), (891.713988732795, 452.87722627426905, 1.0, 0.0117), (0.5, 3.0, 1.0, 1.2)],
)
def test_student_profiles_far_out_are_not_below_the_truth(scale, degrees, D, eps):
    """The loss is above eps between the roots of a quadratic; differences of tails lost 2e-10 at 1.75e-52."""
    with mp.workdps(50):
        s, nu, shift, level = map(mp.mpf, (scale, degrees, D, eps))
        a, ratio = nu * s * s, mp.exp(2 * level / (nu + 1)) - 1
        root = mp.sqrt(shift**2 - ratio * (ratio * a - shift**2))
        low, high = ((-shift - root) / ratio, (-shift + root) / ratio)

        def cdf(z):
            tail = mp.betainc(nu / 2, mp.mpf(1) / 2, 0, nu / (nu + (z / s) ** 2), regularized=True) / 2
            return tail if z < 0 else 1 - tail

        exact = cdf(high) - cdf(low) - mp.exp(level) * (cdf(high - shift) - cdf(low - shift))
        delta = mp.mpf(float(accountants.delta(Additive(dpk.Student(scale, degrees)), eps, sensitivity=D)))
        assert 0 <= delta / exact - 1 < 1e-9
