"""Composed guarantees: reference values, closed forms, and convolutions done in other ways."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from helpers import SKEW, UNIT
from scipy.special import ndtr

import accountants
import dpkernels as dpk
from accountants import guarantee
from accountants.closed_forms.pure import pure_delta
from accountants.composition.repeated import RepeatedReleases
from accountants.dominating_pairs.discrete import Atoms, randomised_response
from accountants.guarantee import Guarantee
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.mechanisms.additive import Additive


def gaussian(sigma, D=1.0):
    return guarantee(Additive(Gaussian(sigma)), D)


def laplace(eps0):
    return guarantee(Additive(Laplace(1 / eps0)), 1.0)


def response(eps0):
    return guarantee(dpk.duchi(epsilon=eps0, **UNIT))


# Reference values: name, what, argument, value, relative error allowed.

REFERENCE = {
    "gaussian": (
        lambda: gaussian(30.74956613197745).repeat(1000),
        [
            ("delta", 2.0, 0.024798212940362597, 1e-9),
            ("delta", 4.0, 7.8155977912139e-05, 1e-9),
            ("epsilon", 1e-5, 4.521553285812701, 1e-9),
        ],
    ),
    "laplace": (
        lambda: laplace(0.1).repeat(1000),
        [
            ("delta", 10.0, 0.028034041215477545, 1e-9),
            ("delta", 20.0, 1.7889027779797768e-07, 1e-9),
            ("epsilon", 1e-5, 17.423651987537447, 1e-9),
        ],
    ),
    "sampled": (
        lambda: gaussian(1.0).subsample(0.01).repeat(1000),
        [("delta", 2.0, 2.66557192435e-06, 1e-8), ("epsilon", 1e-5, 1.828236666496, 1e-8)],
    ),
    "response": (
        lambda: response(0.1).repeat(100),
        [("delta", 2.0, 0.020140178428191532, 1e-9), ("epsilon", 1e-5, 4.306791372516507, 1e-9)],
    ),
}


@pytest.mark.quick("gaussian")
@pytest.mark.parametrize("name", REFERENCE)
def test_reference_values(name):
    make, rows = REFERENCE[name]
    made = make()
    for what, at, expected, allowed in rows:
        assert getattr(made, f"estimate_{what}")(at) == pytest.approx(expected, rel=allowed)
        # What users get is above the published digits, by the width of a bracket at most.
        assert expected * (1 - allowed) <= getattr(made, what)(at) <= expected * (1 + 1e-4)


@pytest.mark.thorough
def test_calibrated_sigma_of_the_reference_meets_its_budget():
    made = gaussian(1.5626656014552).subsample(0.01).repeat(1000)
    assert made.estimate_epsilon(1e-6) == pytest.approx(1.0, rel=1e-8)


# Closed forms


@pytest.mark.parametrize(("sigma", "D", "n"), [(30.7, 1.0, 1000), (2.3, 0.4, 7), (0.9, 1.3, 2), (1300.0, 0.7, 10**6)])
def test_gaussian_n_fold_is_one_gaussian(sigma, D, n):
    mu = D * math.sqrt(n) / sigma
    made = gaussian(sigma, D).repeat(n)
    eps = mu**2 / 2 + mu * np.array([-0.4, 0.0, 1.0, 3.0, 6.0])
    eps = np.maximum(eps, 0.0)  # Of one shape: one program for all.
    exact = ndtr(mu / 2 - eps / mu) - np.exp(eps) * ndtr(-mu / 2 - eps / mu)
    # The closed form loses digits to cancellation.
    rounding = 1e-15 * ndtr(mu / 2 - eps / mu)
    np.testing.assert_allclose(
        made.estimate_delta(eps), exact, rtol=2e-9, atol=rounding.max() if eps.max() > 50 else 1e-20
    )
    for at, target in zip(eps, exact, strict=True):
        if 1e-12 < target < 0.5:
            assert made.estimate_epsilon(float(target)) == pytest.approx(at, rel=1e-8)


@pytest.mark.thorough
@pytest.mark.parametrize(("eps0", "n"), [(0.1, 100), (1.0, 5), (0.5, 30), (3.0, 2)])
def test_response_n_fold_is_kairouz(eps0, n):
    """Its losses are a lattice: a contour alone misses how the characteristic function comes back."""
    made = response(eps0).repeat(n)
    for share in (0.13, 0.47, 0.71):
        eps = share * n * eps0
        exact = float(pure_delta(eps0, n, eps))
        low, high = made.bracket(epsilon=eps)
        assert low <= exact <= high
        assert high - low <= 1e-5 * high
        assert made.estimate_delta(eps) == pytest.approx(exact, rel=1e-8)


@pytest.mark.thorough
@pytest.mark.parametrize("n", [2, 10, 100])
def test_lattices_never_pass_as_smooth(n):
    """Many atoms with spread mass between: what is returned is within the bracket, to its own precision."""
    composed = guarantee(Additive(Laplace(10.0)), 1.0).repeat(n)
    low, high = composed.bracket(epsilon=0.05 * n)
    assert low <= composed.estimate_delta(0.05 * n) <= high * (1 + 1e-7)


# Another way: one report's exact profile, averaged over the other's loss in 30 digits


def laplace_profile(eps0, eps):
    """delta of one Laplace report at any eps, also negative."""
    if eps >= eps0:
        return mpmath.mpf(0)
    if eps <= -eps0:
        return 1 - mpmath.exp(eps)
    return 1 - mpmath.exp((eps - eps0) / 2)


def two_laplace(eps0, eps):
    """E over the first report's loss l of the profile at eps - l: atoms at both ends, eps0 - 2 x between."""
    with mpmath.workdps(30):
        eps0, eps = mpmath.mpf(eps0), mpmath.mpf(eps)
        ends = sorted({mpmath.mpf(0), eps0, *(x for x in ((2 * eps0 - eps) / 2, -eps / 2) if 0 < x < eps0)})
        inner = mpmath.quad(lambda x: mpmath.exp(-x) / 2 * laplace_profile(eps0, eps - eps0 + 2 * x), ends)
        at_ends = laplace_profile(eps0, eps - eps0) + mpmath.exp(-eps0) * laplace_profile(eps0, eps + eps0)
        return float(inner + at_ends / 2)


@pytest.mark.quick("0.3-shares0")
@pytest.mark.parametrize(("eps0", "shares"), [(0.3, (0.0, 0.7)), (2.5, (0.31, 0.9))])
def test_two_laplace_reports_by_convolution(eps0, shares):
    made = laplace(eps0).repeat(2)
    for share in shares:
        eps = 2 * share * eps0
        exact = two_laplace(eps0, eps)
        low, high = made.bracket(epsilon=eps)
        assert low <= exact <= high
        assert high - low <= 1e-4 * high
        assert made.estimate_delta(eps) == pytest.approx(exact, rel=1e-4)


def test_one_recycled_gaussian_by_quadrature():
    s, theta, q, D, eps = 1.7, 2.0, 0.35, 0.9, 0.6
    single = guarantee(Additive(Reweighted(Gaussian(s), -theta, theta, 1 - q)), D)
    with mpmath.workdps(25):
        out = 2 * mpmath.ncdf(-theta / s)

        def f(x):
            return mpmath.npdf(x, 0, s) * (1 if abs(x) <= theta else 1 - q) / (1 - out * q)

        def gap(x):
            return max(f(x) - mpmath.exp(eps) * f(x - D), mpmath.mpf(0))

        levels = (0, mpmath.log(1 - q), -mpmath.log(1 - q))
        cuts = [D / 2 - (eps + level) * s**2 / D for level in levels]
        points = sorted([*range(-18, 20, 2), theta, -theta, D - theta, D + theta, *cuts])
        exact = float(mpmath.quad(gap, points))
    assert single.estimate_delta(eps) == pytest.approx(exact, rel=1e-12)
    assert accountants.delta(Additive(Reweighted(Gaussian(s), -theta, theta, 1 - q)), eps, D) == single.estimate_delta(
        eps
    )


def test_different_mechanisms_by_enumeration():
    """Two points and three points, twice each: all sums of losses one by one; the larger of both directions."""
    p, q = np.array([0.55, 0.3, 0.15]), np.array([0.2, 0.3, 0.5])
    made = response(0.7).compose(Guarantee((RepeatedReleases((Atoms(p, q),), 1),))).repeat(2)
    high = 1 / (1 + math.exp(-0.7))

    def enumerated(eps, *pairs):
        loss, mass = np.zeros(1), np.ones(1)
        for one_p, one_q in pairs:
            loss = np.add.outer(loss, np.log(one_p) - np.log(one_q)).ravel()
            mass = np.multiply.outer(mass, one_p).ravel()
        return mass @ -np.expm1(np.minimum(eps - loss, 0.0))

    points = ((high, 1 - high), (1 - high, high))
    for eps in (0.0, 0.45, 1.1, 2.3):
        ways = [enumerated(eps, *[points, pair] * 2) for pair in ((p, q), (q, p))]
        low, top = made.bracket(epsilon=eps)
        assert low <= max(ways) <= top
        assert abs(ways[0] - ways[1]) > 1e-3 * top or eps == 0.0
        assert top - low <= 1e-3 * top


@pytest.mark.thorough
def test_independent_infinite_losses_add_up():
    """Truncated noise: 1 - (1 - m)^n is never less than delta, however large eps is."""
    composed = guarantee(Additive(Reweighted(Gaussian(1.0), -3.0, 3.0, 0.0)), 0.1).repeat(50)
    one = float(Reweighted(Gaussian(1.0), -3.0, 3.0, 0.0).mass(-3.0, -2.9))
    certain = -math.expm1(50 * math.log1p(-one))
    assert composed.estimate_delta(60.0) == pytest.approx(certain, rel=1e-9)
    low, high = composed.bracket(epsilon=60.0)
    assert low <= certain * (1 + 1e-12)
    assert certain * (1 - 1e-12) <= high
    assert high - low <= 1e-6 * high
    assert composed.estimate_epsilon(0.9 * certain) == math.inf
    assert composed.bracket(delta=0.9 * certain) == (math.inf, math.inf)


# Laws of composition


@pytest.mark.thorough
def test_order_of_two_does_not_matter():
    a, b = gaussian(9.0).repeat(30), gaussian(4.0).subsample(0.3).repeat(40)
    assert a.compose(b).estimate_delta(2.0) == pytest.approx(b.compose(a).estimate_delta(2.0), rel=1e-11)


def mixed_terms() -> list[Guarantee]:
    return [
        gaussian(9.0).repeat(30),
        laplace(0.2).repeat(40),
        guarantee(dpk.composite("sine", epsilon=0.3, width=0.7, **SKEW)).repeat(20),
    ]


@pytest.mark.slow
def test_order_and_grouping_do_not_matter():
    a, b, c = mixed_terms()
    whole = a.compose(b, c)
    for other in (c.compose(b).compose(a), b.compose(a.compose(c))):
        assert other.estimate_epsilon(1e-6) == pytest.approx(whole.estimate_epsilon(1e-6), rel=1e-12)
        assert other.estimate_delta(3.0) == pytest.approx(whole.estimate_delta(3.0), rel=1e-11)


@pytest.mark.thorough
def test_repeat_is_repeated_compose():
    one = gaussian(3.0).subsample(0.2).repeat(5)
    assert one.compose(one, one).estimate_delta(0.5) == pytest.approx(one.repeat(3).estimate_delta(0.5), rel=1e-11)
    assert one.repeat(2).repeat(3).terms == one.repeat(6).terms
    two = laplace(0.7)
    np.testing.assert_allclose(two.compose(two).bracket(epsilon=0.4), two.repeat(2).bracket(epsilon=0.4), rtol=1e-6)


@pytest.mark.slow
def test_more_reports_reveal_more():
    a, b, _ = mixed_terms()
    assert a.compose(b).estimate_epsilon(1e-6) > max(a.estimate_epsilon(1e-6), b.estimate_epsilon(1e-6))
    assert a.repeat(2).estimate_epsilon(1e-6) > a.estimate_epsilon(1e-6)
    assert a.compose(b).estimate_epsilon(1e-6) < a.estimate_epsilon(5e-7) + b.estimate_epsilon(5e-7)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "made", [gaussian(4.0).repeat(10), pytest.param(laplace(0.2).repeat(500), marks=pytest.mark.slow)]
)
def test_sampling_everything_changes_nothing(made):
    eps = np.array([0.3, 1.0, 2.5])
    np.testing.assert_allclose(made.subsample(1.0).estimate_delta(eps), made.estimate_delta(eps), rtol=1e-8)
    np.testing.assert_allclose(made.subsample(1.0).bracket(epsilon=1.0), made.bracket(epsilon=1.0), rtol=1e-3)


@pytest.mark.thorough
def test_samples_reveal_less_and_one_sample_is_amplified():
    mechanism = gaussian(2.0)
    rates = [mechanism.subsample(rate).repeat(50).estimate_epsilon(1e-6) for rate in (0.05, 0.3, 1.0)]
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(mechanism.repeat(50).estimate_epsilon(1e-6), rel=1e-8)
    # One report: eps' = log(1 + r (e^eps - 1)) at r delta, of record added and removed the larger.
    rate, eps = 0.3, 0.8
    delta = rate * mechanism.estimate_delta(eps)
    low, high = mechanism.subsample(rate).bracket(delta=delta)
    assert low <= math.log1p(rate * math.expm1(eps)) * (1 + 1e-9)
    assert math.log1p(rate * math.expm1(eps)) * (1 - 1e-9) <= high


@pytest.mark.quick("laplace")
@pytest.mark.parametrize(
    ("m", "D"),
    [
        (Additive(Laplace(0.7)), 1.1),
        pytest.param(Additive(Reweighted(Gaussian(0.9), -5.2, 1.3, 0.0)), 0.8, marks=pytest.mark.slow),
        pytest.param(dpk.piecewise(epsilon=1.0, **SKEW), None, marks=pytest.mark.slow),
        (dpk.hybrid(epsilon=1.0, **UNIT), None),
    ],
    ids=["laplace", "truncated", "piecewise", "hybrid"],
)
def test_one_report_is_the_exact_profile(m, D):
    eps = np.array([0.0, 0.3, 0.9])
    np.testing.assert_array_equal(guarantee(m, D).delta(eps), accountants.delta(m, eps, D))
    assert guarantee(m, D).epsilon(1e-3) == accountants.epsilon(m, 1e-3, D)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "made",
    [gaussian(2.0).subsample(0.1).repeat(100), *(pytest.param(made, marks=pytest.mark.slow) for made in mixed_terms())],
)
def test_profiles_fall_and_are_convex_in_exp_eps(made):
    x = np.linspace(1.0, math.exp(2.0), 25)
    delta = made.estimate_delta(np.log(x))
    steps = np.diff(delta)
    assert np.all(steps < 0)
    assert np.all(np.diff(steps) > -1e-9 * delta[1:-1])
    assert np.all((delta > 0) & (delta < 1))


# Renyi


def test_renyi_of_gaussian_and_laplace():
    order = np.array([1.0001, 1.5, 2.0, 7.3, 64.0])
    sigma, n = 2.3, 11
    np.testing.assert_allclose(gaussian(sigma).repeat(n).renyi(order), n * order / (2 * sigma**2), rtol=1e-12)
    eps0 = 0.4
    exact = np.log(
        order / (2 * order - 1) * np.exp((order - 1) * eps0) + (order - 1) / (2 * order - 1) * np.exp(-order * eps0)
    )
    np.testing.assert_allclose(laplace(eps0).repeat(n).renyi(order), n * exact / (order - 1), rtol=1e-10, atol=1e-12)
    pure = 1 / (1 + math.exp(-eps0))
    both = np.log(pure**order * (1 - pure) ** (1 - order) + (1 - pure) ** order * pure ** (1 - order)) / (order - 1)
    np.testing.assert_allclose(response(eps0).repeat(3).renyi(order), 3 * both, rtol=1e-10, atol=1e-12)


def test_renyi_of_truncated_noise_is_infinite():
    single = guarantee(Additive(Reweighted(Gaussian(1.0), -3.0, 3.0, 0.0)), 0.1)
    assert single.renyi(2.0) == math.inf


def test_nothing_is_left_at_an_infinite_epsilon():
    """But the mass of infinite losses."""
    single = guarantee(dpk.truncated_laplace(epsilon=1.0, delta=1e-3, sensitivity=1.0))
    assert single.repeat(3).delta(np.inf) == pytest.approx(single.repeat(3).delta(500.0), rel=1e-12)
    for one in (guarantee(dpk.gaussian(sigma=1.0), 1.0), guarantee(dpk.laplace(epsilon=1.0))):
        assert one.repeat(3).delta(np.inf) == 0.0
        assert one.repeat(3).delta(np.array([np.inf, 1e308]))[1] <= 5e-324  # Next to nothing, rounded upwards.


@pytest.mark.parametrize("delta", [0.3, 1e-3, 1e-9, 1e-30])
def test_eps_of_few_joint_outcomes_is_where_delta_is_met(delta):
    composed = guarantee(dpk.piecewise(epsilon=0.5, lower=0.0, upper=1.0)).repeat(20)
    eps = composed.estimate_epsilon(delta)
    low, high = composed.bracket(delta=delta)
    assert low <= eps <= high
    assert composed.estimate_delta(eps) == pytest.approx(delta, rel=1e-11)
    assert composed.estimate_epsilon(min(1.01 * composed.estimate_delta(0.0), 0.99)) == 0.0
    assert composed.estimate_delta(1e9) == 0.0


@pytest.mark.parametrize(("budget", "count", "delta"), [(10.0, 73, 1e-6), (5.0, 150, 0.5), (20.0, 40, 1e-6)])
def test_few_joint_outcomes_have_losses_whose_exponentials_overflow(budget, count, delta):
    composed = guarantee(randomised_response(budget)).repeat(count)
    low, high = composed.bracket(delta=delta)
    assert low <= composed.estimate_epsilon(delta) <= high
    assert composed.compose(guarantee(randomised_response(0.1))).estimate_epsilon(delta) >= low
    assert composed.estimate_delta(0.0) <= 1.0
    assert composed.estimate_delta(count * budget + 1e-9) == 0.0


@pytest.mark.lengthy
def test_nan_of_few_joint_outcomes_is_no_guarantee(x64):
    def eps(budget, delta):
        made = guarantee(randomised_response(budget)).repeat(2).compose(guarantee(randomised_response(1.0)))
        return made.estimate_epsilon(delta)

    assert math.isnan(jax.jit(eps)(np.nan, 1e-6))
    assert math.isnan(jax.jit(eps)(1.0, np.nan))
    assert jax.jit(eps)(1.0, 1e-6) == pytest.approx(eps(1.0, 1e-6), rel=1e-14)
    by_budget = float(jax.grad(eps)(0.7, 1e-2))
    assert by_budget == pytest.approx((eps(0.7 + 1e-5, 1e-2) - eps(0.7 - 1e-5, 1e-2)) / 2e-5, rel=1e-8)


@pytest.mark.lengthy
def test_second_derivatives_of_compositions_are_refused(x64):
    """They ended in a bare AssertionError."""

    def epsilon(scale):
        return guarantee(Additive(Laplace(scale)), 1.0).repeat(100).epsilon(jnp.float64(1e-6))

    with pytest.raises(NotImplementedError, match="first derivatives only"):
        jax.hessian(epsilon)(jnp.float64(10.0))
