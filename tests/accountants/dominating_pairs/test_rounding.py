"""Deltas are rounded upwards, and hardly: against 50-digit arithmetic, where cancellation is worst."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from helpers import shift_profile, slope_by_differences
from mpmath import mp, mpf

import accountants
from accountants import calibrate
from accountants.closed_forms.bounded_range import mixed_delta, mixed_epsilon
from accountants.closed_forms.concentrated import best_delta
from accountants.closed_forms.pure import log_ways, pure_delta, pure_epsilon
from accountants.dominating_pairs.registry import dominating_pairs
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace, MergedLaplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.distributions.staircase import Staircase
from dpkernels.mechanisms.additive import Additive


@pytest.fixture(autouse=True)
def many_digits():
    """References in 60 digits."""
    with mpmath.workdps(60):
        yield


def is_upper(bound, exact, above):
    """Not below the exact value (whose own digits end somewhere), and at most so much above it, relatively."""
    return exact * (1 - mpf(10) ** -40) <= mpf(float(bound)) <= exact * (1 + mpf(above))


# Losses


def drop(rates, breaks, z):
    """How far the log density of merged Laplace noise at z is below that at 0."""
    starts, ends = [0.0, *breaks], [*breaks, mp.inf]
    return sum(mpf(r) * max(min(abs(z), mpf(b)) - mpf(a), 0) for r, a, b in zip(rates, starts, ends, strict=True))


@pytest.mark.parametrize("shift", [1.0, -1.0])
def test_losses_keep_their_digits_where_densities_are_small(shift):
    """Differences of log densities lose a unit for each unit of their size; 64 (1 + |loss|) are allowed."""
    random = np.random.default_rng(5)
    for _ in range(40):
        breaks = np.cumsum(np.exp(random.uniform(-3, 6, 3))).tolist()
        rates = [*(np.exp(random.uniform(-7, 0, 3)) * (random.random(3) < 0.8)).tolist(), 0.3]
        z = (random.uniform(-2, 2, 9) * breaks[-1]).tolist()
        b, period = breaks[0], float(random.uniform(0.2, 3.0))
        for law, rate, ends in (
            (MergedLaplace(tuple(rates), tuple(breaks)), rates, breaks),
            (Laplace(b), [1 / mpf(b)], []),
        ):
            for point, loss in zip(z, law.loss(np.array(z), shift).tolist(), strict=True):
                truth = drop(rate, ends, mpf(point) - mpf(shift)) - drop(rate, ends, mpf(point))
                assert abs(truth - mpf(loss)) <= 64 * mpf(2) ** -53 * (1 + abs(truth))
        losses = Staircase(0.7, period, 0.4).loss(np.array(z), shift)
        assert np.abs(losses / 0.7 - np.round(losses / 0.7)).max() <= 1e-15 * np.abs(losses).max()


def test_levels_of_steep_losses_far_from_0_are_rounded():
    """Next to the break at 300 the loss changes by 20 a unit, and a point is known to 300 units in the last place."""
    noise = MergedLaplace((0.001, 20.0), (300.0,))
    (pair,) = dominating_pairs(Additive(noise, 1.0))
    pieces = next(one for one in pair.privacy_loss().pieces if one.intervals is not None)
    number = int(np.argmax(np.where(pieces.upper > 300, pieces.upper - pieces.lower, 0.0)))
    level = np.linspace(*np.sort(pieces.loss(np.array([pieces.lower, pieces.upper])[:, number], number)), 99)[1:-1]
    masses = pieces.intervals.measure(level, np.full(len(level), number))
    points = pieces.inverse(level, number)
    rates, breaks = noise.rates, noise.breaks
    for point, wanted, allowed in zip(
        points[:-1].tolist(), level[:-1].tolist(), masses.loss_error.tolist(), strict=True
    ):
        truth = drop(rates, breaks, mpf(point) - pair.shift.item()) - drop(rates, breaks, mpf(point))
        assert abs(truth - mpf(wanted)) <= allowed


# Gaussian noise, whole, recycled and truncated


def gaussian_delta(law, D, eps):
    """Masses of the pieces between the knots, each cut where the loss is eps."""
    kernel = law.kernel if isinstance(law, Reweighted) else law
    s, D, eps = mpf(float(kernel.sigma)), mpf(float(D)), mpf(float(eps))
    if law is kernel:
        return mp.ncdf(D / s / 2 - eps * s / D) - mp.exp(eps) * mp.ncdf(-D / s / 2 - eps * s / D)
    low, high, outside = (mpf(float(x)) for x in (law.low, law.high, law.outside))
    reach = 200 * s + D + high - low

    def mass(a, b):
        return mp.ncdf(-a / s) - mp.ncdf(-b / s) if a > 0 else mp.ncdf(b / s) - mp.ncdf(a / s)

    def weight(x):
        return mpf(1) if low <= x <= high else outside

    ends = sorted([low, high, low + D, high + D, -reach, reach])
    total = mpf(0)
    for a, b in itertools.pairwise(ends):
        w_p, w_q = weight((a + b) / 2), weight((a + b) / 2 - D)
        if w_p == 0 or a == b:
            continue
        if w_q > 0:
            b = min(b, D / 2 - s**2 / D * (eps - mp.log(w_p / w_q)))
        if a < b:
            total += w_p * mass(a, b) - mp.exp(eps) * w_q * mass(a - D, b - D)
    return total / (mass(low, high) + outside * (1 - mass(low, high)))


def random_gaussians(kind, count):
    """Laws, shifts and budgets: sigma/D from 0.1 to 10^6, up to 8 deviations into the tail."""
    random = np.random.default_rng([5, len(kind)])
    for _ in range(count):
        sigma, ratio = 10 ** random.uniform(-3, 5), 10 ** random.uniform(-6, 1)
        eps = min(random.uniform(0, 8) * ratio * random.integers(0, 4).clip(0, 1), 50.0)
        law = Gaussian(sigma)
        if kind != "whole":
            low, high = sigma * 10 ** random.uniform(-1, 0.8, 2)
            law = Reweighted(law, -low, high, 0.0 if kind == "truncated" else float(random.uniform()))
        yield law, ratio * sigma, eps


def test_laplace_noise_far_narrower_than_its_shift_is_rounded_upwards():
    """The log density between the knots is a thousand times that at a knot, which is computed from it."""
    random = np.random.default_rng(8)
    for scale in (10.0 ** random.uniform(-6, 0, 60)).tolist():
        release = accountants.guarantee(Additive(Laplace(scale), 1.0))
        epsilons = np.array([0.0, 0.1, 0.5, 1 - 1e-9]) / scale
        for eps, delta in zip(epsilons.tolist(), release.delta(epsilons).tolist(), strict=True):
            assert -mp.expm1((mpf(eps) - 1 / mpf(scale)) / 2) <= delta or delta == 1


@pytest.mark.parametrize("kind", ["whole", "recycled", "truncated"])
@pytest.mark.parametrize("count", [150, pytest.param(3000, marks=pytest.mark.slow)])
def test_gaussian_noise_is_rounded_upwards(kind, count):
    tried = 0
    for law, D, eps in random_gaussians(kind, count):
        exact = gaussian_delta(law, D, eps)
        if exact > 1e-290:
            tried += 1
            assert is_upper(shift_profile(law, D, eps), exact, "3e-12"), (law, D, eps)
    assert tried > 0.8 * count


def test_an_outside_weight_next_to_1_is_rounded():
    """The loss of 0.0016 exceeds eps by 0.00009, and is the logarithm of a weight that is known to a unit of 1."""
    law = Reweighted(Gaussian(96.81509820355095), -118.25768663119565, 159.81906124042163, 0.9984297350233062)
    D, eps = 0.018867535883297665, np.float64(0.001484302171117412)
    assert is_upper(shift_profile(law, D, eps), gaussian_delta(law, D, eps), "5e-11")


def test_wide_gaussian_noise():
    """The loss hardly exceeds eps: p and e^eps q agree in ten digits."""
    m = Additive(Gaussian(1e5), sensitivity=1.0)
    delta = accountants.delta(m, 6e-5)
    assert is_upper(delta, gaussian_delta(m.noise, 1.0, 6e-5), "1e-12")
    eps = accountants.epsilon(m, delta)
    assert accountants.delta(m, eps) <= delta
    assert eps == pytest.approx(6e-5, rel=1e-12)


def test_wide_gaussian_noise_under_tracing(x64):
    def value(sigma):
        return accountants.delta(Additive(Gaussian(sigma), sensitivity=1.0), jnp.float64(6e-5))

    delta, slope = jax.jit(jax.value_and_grad(value))(jnp.float64(1e5))
    assert is_upper(delta, gaussian_delta(Gaussian(1e5), 1.0, 6e-5), "1e-12")
    exact = slope_by_differences(lambda sigma: gaussian_delta(Gaussian(sigma), 1.0, 6e-5), 1e5, 10.0)
    assert float(slope) == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-6, 1e-12), (1e-6, 1e-8), (1e-6, 0.3), (1e-4, 1e-9)])
def test_gaussian_noise_is_calibrated_for_small_budgets(epsilon, delta):
    m = calibrate.gaussian(epsilon=epsilon, delta=delta)
    exact = gaussian_delta(m.noise, 1.0, epsilon)
    assert mpf(delta) * (1 - mpf("1e-11")) <= exact <= mpf(delta)
    assert accountants.epsilon(m, delta) <= epsilon


# Pure and bounded-range mechanisms


def exact_pure_delta(eps0, k, eps):
    eps0, eps = mpf(float(eps0)), mpf(float(eps))
    total = mpf(0)
    for j in range(k + 1):
        loss = (k - 2 * j) * eps0
        if loss <= eps:
            break
        total += mp.binomial(k, j) * mp.exp(-j * eps0) * -mp.expm1(eps - loss)
    return total * (1 + mp.exp(-eps0)) ** -k


def next_to_a_loss(count, counts=(1, 300)):
    """eps0, k, and a budget at, just below or just above a value of the composed loss."""
    random = np.random.default_rng(8)
    for index in range(count):
        eps0, k = 10 ** random.uniform(-5, 1.2), int(random.integers(*counts))
        loss = (k - 2 * int(random.integers(0, k // 2 + 1)) * (index % 2)) * eps0
        yield eps0, k, loss * (1 - random.choice([0, 1e-16, 3e-16, 1e-15, 1e-13, 1e-9, 1e-4]))


def test_pure_composition_next_to_its_largest_losses():
    tried = 0
    for eps0, k, eps in next_to_a_loss(200):
        exact, delta = exact_pure_delta(eps0, k, eps), pure_delta(eps0, k, eps)
        if exact > 1e-290:
            tried += 1
            assert is_upper(delta, exact, "2e-12"), (eps0, k, eps)
        elif exact == 0:
            assert delta == 0, (eps0, k, eps)
    assert tried > 100


@pytest.mark.lengthy
def test_epsilon_of_pure_composition_is_an_upper_bound():
    assert (
        exact_pure_delta(10.568190278025336, 55, pure_epsilon(10.568190278025336, 55, 6.780267962378194e-15))
        <= 6.78e-15
    )
    for eps0, k, eps in next_to_a_loss(80):
        delta = float(exact_pure_delta(eps0, k, eps))
        if delta == 1:
            continue
        epsilon = pure_epsilon(eps0, k, delta)
        assert exact_pure_delta(eps0, k, epsilon) <= mpf(delta)
        if delta > 1e-300:
            assert (
                epsilon <= max(eps, 0.0) * (1 + 1e-9) + 1e-12 or exact_pure_delta(eps0, k, epsilon * (1 - 1e-9)) > delta
            )
    for eps0, k in ((0.1, 3), (0.7, 10**6), (1 / 3, 999_983)):
        level = pure_epsilon(eps0, k, 0.0)
        assert k * mpf(eps0) <= level < k * mpf(eps0) * (1 + mpf("3e-16"))
        assert mixed_epsilon(eps0, 0, k if k < 100 else 7, 0.0) >= (k if k < 100 else 7) * mpf(eps0)


def exact_mixed_delta(eps0, m, n, eps):
    """The largest over t_l of the sum of Theorem 3, in many digits."""
    eps0, eps = mpf(float(eps0)), mpf(float(eps))
    deltas = [mpf(0)]
    for l in range(m + 2 * n + 2):  # noqa: E741
        t = (eps + (l + 1 - n) * eps0) / (m + 1)
        if 0 < t < eps0:
            deltas.append(delta_at(eps0, m, n, eps, t))
    return max(deltas)


def delta_at(eps0, m, n, eps, t):
    rest, other = (mp.expm1(-t) / mp.expm1(-eps0)) * mp.exp(t - eps0), 1 / (1 + mp.exp(eps0))
    total = mpf(0)
    for i in range(m + 1):
        for j in range(n + 1):
            loss = m * t + n * eps0 - (i + 2 * j) * eps0
            if loss > eps:
                ways = mp.binomial(m, i) * rest**i * (1 - rest) ** (m - i)
                total += ways * mp.binomial(n, j) * other**j * (1 - other) ** (n - j) * -mp.expm1(eps - loss)
    return total


def test_mixed_composition_next_to_its_largest_loss():
    random = np.random.default_rng(3)
    for _ in range(60):
        m, n, eps0 = int(random.integers(1, 6)), int(random.integers(0, 5)), 10 ** random.uniform(-2, 1)
        eps = (m + n) * eps0 * (1 - 10 ** random.uniform(-13, -0.5))
        exact = exact_mixed_delta(eps0, m, n, eps)
        if exact > 1e-290:
            assert is_upper(mixed_delta(eps0, m, n, eps), exact, "1e-12"), (m, n, eps0, eps)


def test_the_best_t_is_not_on_a_coarse_grid():
    """Next to the largest loss the best t is next to eps0: twenty values of t give a tenth of delta, or nothing."""
    eps0, m, n, eps = 0.5, 3, 2, 2.46
    grid = max(delta_at(mpf(eps0), m, n, mpf(eps), mpf(eps0) * k / 20) for k in range(1, 20))
    delta = mixed_delta(eps0, m, n, eps)
    assert is_upper(delta, exact_mixed_delta(eps0, m, n, eps), "1e-12")
    assert delta > 5 * grid


@pytest.mark.parametrize("k", [1, 2, 7, 40, 1000, 10**6])
def test_logarithms_of_binomial_coefficients(k):
    ways = log_ways(k)
    for j in {0, 1, k // 3, k // 2, k - 1, k}:
        assert abs(float(mpf(float(ways[j])) - mp.log(mp.binomial(k, j)))) <= 4e-16 * (k + 4)


# Concentrated privacy


def exact_best_delta(rho, eps):
    rho, eps = mpf(float(rho)), mpf(float(eps))

    def slope(x):
        return (2 * x + 1) * rho - eps - mp.log1p(1 / x)

    low, high = mpf(10) ** -30, max(mpf(1), (eps + 1) / (2 * rho))
    for _ in range(240):
        middle = mp.sqrt(low * high)
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return min(mpf(1), mp.exp(high * ((1 + high) * rho - eps) - mp.log(high) - (1 + high) * mp.log1p(1 / high)))


@pytest.mark.thorough
def test_delta_of_concentrated_privacy():
    """rho and eps up to 10^9: products of order and budget cancel."""
    random = np.random.default_rng(2)
    for _ in range(120):
        rho = 10 ** random.uniform(-12, 9)
        eps = random.choice([0.0, 10 ** random.uniform(-6, 3), rho + random.uniform(0, 20) * math.sqrt(2 * rho)])
        exact = exact_best_delta(rho, eps)
        if exact > 1e-290:
            assert is_upper(best_delta(rho, eps), exact, "1e-12"), (rho, eps)
