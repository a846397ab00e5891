"""zCDP: its parameters against Renyi divergences, its conversions against a search, and the set-wise bound."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from accountants.closed_forms import concentrated as cdp
from accountants.dominating_pairs.registry import additive_profile
from dpkernels.distributions.gaussian import Gaussian

SETWISE = {0: 3.967, 25: 3.095, 50: 1.921}
ORDERS = [1 + 1e-6, 1.01, 1.5, 2, 3, 7, 30, 400]
BUDGETS = [0.01, 0.3, 1.0, 4.0, 20.0]


@pytest.mark.parametrize("eps", BUDGETS)
@pytest.mark.parametrize("order", ORDERS)
def test_bounded_range_has_its_rho(eps, order):
    """The tight Renyi curve of an eps-bounded-range mechanism is below alpha eps^2/8."""
    with mpmath.workdps(40):
        a, e = mpmath.mpf(order), mpmath.mpf(eps)
        t = e + mpmath.log((a - 1) * (1 - mpmath.exp(-a * e)) / (a * (1 - mpmath.exp(-(a - 1) * e))))
        curve = t + mpmath.log((1 - mpmath.exp(-a * e)) / (a * (1 - mpmath.exp(-e)))) / (a - 1)
        assert curve <= a * mpmath.mpf(float(cdp.bounded_range_rho(eps))) * (1 + mpmath.mpf(10) ** -12)


def response(order, eps):
    """The Renyi divergence of randomised response."""
    a, e = mpmath.mpf(order), mpmath.mpf(eps)
    p = 1 / (1 + mpmath.exp(-e))
    return mpmath.log(p**a * (1 - p) ** (1 - a) + (1 - p) ** a * p ** (1 - a)) / (a - 1)


@pytest.mark.parametrize("eps", BUDGETS)
def test_pure_has_its_rho_and_no_less(eps):
    rho = float(cdp.pure_rho(eps))
    assert rho <= eps**2 / 2
    with mpmath.workdps(40):
        for order in ORDERS:
            assert response(order, eps) <= order * mpmath.mpf(rho) * (1 + mpmath.mpf(10) ** -12)
        assert response(1 + 1e-9, eps) >= rho * (1 - 1e-6)


def test_gaussian_rho():
    np.testing.assert_allclose(cdp.gaussian_rho(np.array([1.0, 2.0]), 3.0), [4.5, 1.125])
    np.testing.assert_allclose(cdp.gaussian_concentration(2.0, 3.0), (1.125, 1.5))


RHO, DELTA = np.array([1e-8, 1e-3, 0.1, 1.0, 30.0, 1e3])[:, None], np.array([0.9, 0.1, 1e-5, 1e-12, 1e-100])


def test_the_best_order_is_found():
    """The least eps over a fine grid of orders is no lower than what is returned."""
    x = np.geomspace(1e-8, 1e9, 40_001)[:, None, None]
    grid = (1 + x) * RHO - np.log1p(1 / x) - (np.log1p(x) + np.log(DELTA)) / x
    epsilon = cdp.best_epsilon(RHO, DELTA)
    assert np.all(epsilon <= np.maximum(grid.min(0), 0) * (1 + 1e-12))
    assert np.all(epsilon >= np.maximum(grid.min(0), 0) * (1 - 1e-6) - 1e-12)
    assert np.all(epsilon <= RHO + 2 * np.sqrt(RHO * np.log(1 / DELTA)))  # Bun & Steinke 2016, Proposition 1.3.


def test_both_conversions_agree():
    eps = cdp.best_epsilon(RHO, DELTA)
    back = cdp.best_delta(RHO, eps)
    np.testing.assert_allclose(np.log(back)[eps > 0], np.broadcast_to(np.log(DELTA), back.shape)[eps > 0], rtol=1e-8)
    assert np.all(back <= DELTA * (1 + 1e-8))


@pytest.mark.parametrize("eps", [0.0, 0.5, 2.0, 8.0])
def test_gaussian_noise_does_not_exceed_the_conversion(eps):
    for sigma in (0.5, 1.0, 5.0):
        exact = float(additive_profile(Gaussian(sigma), 1.0, eps))
        assert exact <= cdp.best_delta(cdp.gaussian_rho(sigma), eps) + np.finfo(float).tiny  # As Gaussian delta has.


def test_nothing_costs_nothing():
    assert cdp.best_epsilon(0.0, 1e-9) == 0
    assert cdp.best_delta(0.0, 0.0) == 0


def test_composition():
    a, b = cdp.Concentrated(0.1, 1e-3), cdp.Concentrated(0.2, 0.25)
    both = a.compose(b)
    assert both.rho == pytest.approx(0.3)
    assert 1 - both.leak == pytest.approx((1 - 1e-3) * 0.75)
    assert a.repeat(3).rho == pytest.approx(a.compose(a).compose(a).rho)
    assert a.repeat(3).leak == pytest.approx(a.compose(a).compose(a).leak, rel=1e-12)
    assert cdp.Concentrated(0.1, 1e-15).repeat(10).leak == pytest.approx(1e-14, rel=1e-12)


def test_a_leak_takes_its_part_of_delta():
    m = cdp.Concentrated(0.1, 1e-6)
    assert m.epsilon(1e-6) == np.inf
    np.testing.assert_allclose(m.delta(m.epsilon(3e-6)), 3e-6, rtol=1e-8)
    assert m.epsilon(3e-6) == pytest.approx(float(cdp.best_epsilon(0.1, 2e-6 / (1 - 1e-6))))
    np.testing.assert_array_equal(m.epsilon(np.array([1e-7, 1e-3])) < np.inf, [False, True])


@pytest.mark.parametrize("ranges", SETWISE)
def test_setwise_reference(ranges):
    epsilon = cdp.setwise_epsilon(1e-6, pure=[0.1] * (50 - ranges), bounded_range=[0.1] * ranges)
    assert epsilon == pytest.approx(SETWISE[ranges], abs=5e-4)


def test_setwise_takes_all_kinds():
    tau = 0.2
    epsilon = cdp.setwise_epsilon(1e-5, pure=[0.3], bounded_range=[0.5], concentrated=[(0.02, tau)])
    mean = 0.3 * np.tanh(0.15) + cdp.bounded_range_terms(0.5)[0] + 0.02
    assert epsilon == pytest.approx(mean + np.sqrt(2 * (0.09 + 0.0625 + 0.04) * np.log(1e5)))
    assert cdp.setwise_epsilon(1e-5) == 0
    # A Gaussian alone: rho + 2 sqrt(rho ln(1/delta)).
    alone, rho = cdp.setwise_epsilon(1e-5, concentrated=[cdp.gaussian_concentration(3.0)]), cdp.gaussian_rho(3.0)
    assert alone == pytest.approx(float(rho + 2 * np.sqrt(rho * np.log(1e5))))


def lemma(rho, eps):
    """Cesar & Rogers 2021, Lemma 3.4, as printed."""
    rho, eps = mpmath.mpf(rho), mpmath.mpf(eps)
    ratio = (eps - rho) / (2 * rho)
    last = 2 / (1 + ratio + mpmath.sqrt((1 + ratio) ** 2 + 4 / (mpmath.pi * rho)))
    return mpmath.exp(-((eps - rho) ** 2) / (4 * rho)) * min(1, mpmath.sqrt(mpmath.pi * rho), 1 / (1 + ratio), last)


@pytest.mark.parametrize("rhos", [[1e-9], [0.1, 0.2, 1e-3], [0.1] * 7, [3.0, 40.0]], ids=str)
def test_the_setwise_delta_is_the_printed_one_from_above(rhos):
    total = float(np.sum(rhos)) * (1 + 1e-12)
    eps = total + np.array([0.0, 1e-6, 0.01, 0.5, 3.0, 20.0]) * np.sqrt(total)
    delta = cdp.setwise_concentrated_delta(rhos, eps)
    assert delta.shape == eps.shape
    with mpmath.workdps(50):
        for bound, level in zip(delta, eps, strict=True):
            exact = lemma(mpmath.fsum(rhos), float(level))
            assert exact <= mpmath.mpf(float(bound)) <= exact * (1 + mpmath.mpf(10) ** -10)


def test_the_best_order_is_below_the_setwise_delta():
    """Over all rho and eps: the conversion of the Renyi curve is smaller, at small deltas 2.4 to 2.6 times."""
    rho = np.geomspace(1e-10, 1e4, 57)
    for over in np.linspace(0.0, 30.0, 61):
        eps = rho + over * np.sqrt(2 * rho)
        bound = np.array([cdp.setwise_concentrated_delta([r], e) for r, e in zip(rho, eps, strict=True)])
        assert np.all(cdp.best_delta(rho, eps) <= bound)
    times = [
        cdp.setwise_concentrated_delta([r], cdp.best_epsilon(r, d)) / d
        for r, d in ((0.1, 1e-5), (0.5, 1e-6), (1.0, 1e-9))
    ]
    np.testing.assert_allclose(times, [2.57, 2.47, 2.45], atol=0.01)


def test_the_setwise_delta_holds_for_an_adaptive_choice():
    """Two randomised responses, by enumeration: which one is used first, and whether again, hangs on what was seen."""
    levels = [0.3, 0.9]
    rhos = [float(cdp.pure_rho(level)) for level in levels]
    yes = [1 / (1 + np.exp(-level)) for level in levels]

    def output(truth, choices):
        """Probabilities of both answers; ``choices`` are the first level and, by its answer, whether the other one."""
        first, again = choices
        law = {}
        for a in (0, 1):
            chance = yes[first] if a == truth else 1 - yes[first]
            if not again[a]:
                law[a, None] = chance
                continue
            for b in (0, 1):
                law[a, b] = chance * (yes[1 - first] if b == truth else 1 - yes[1 - first])
        return law

    worst = 0.0
    for first in (0, 1):
        for again in ((0, 0), (0, 1), (1, 0), (1, 1)):
            p, q = (output(truth, (first, again)) for truth in (0, 1))
            for eps in (sum(rhos), 0.6, 0.8, 1.1):
                exact = sum(max(p[key] - np.exp(eps) * q[key], 0.0) for key in p)
                bound = cdp.setwise_concentrated_delta(rhos, eps)
                assert exact <= bound
                worst = max(worst, exact / bound)
    assert worst > 0.05


def test_no_budget_has_no_setwise_delta():
    np.testing.assert_array_equal(cdp.setwise_concentrated_delta([], np.array([0.0, 1.0])), 0.0)
    assert cdp.setwise_concentrated_delta([0.0, 0.0], 0.5) == 0


@pytest.mark.parametrize("eps", [0.0, 1e-3, 0.1, 2.0, 20.0])
def test_bounded_range_terms(eps):
    mean, square = cdp.bounded_range_terms(eps)
    with mpmath.workdps(40):
        ratio = mpmath.mpf(eps) / (1 - mpmath.exp(-mpmath.mpf(eps))) if eps else mpmath.mpf(1)
        assert float(mean) == pytest.approx(float(ratio - 1 - mpmath.log(ratio)), rel=1e-8, abs=1e-300)
    assert square == eps**2 / 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cdp.gaussian_rho(0.0), "sigma: 0"),
        (lambda: cdp.gaussian_rho(1.0, -1.0), "sensitivity: -1"),
        (lambda: cdp.bounded_range_rho(-0.1), "epsilon: -0.1"),
        (lambda: cdp.pure_rho(float("inf")), "epsilon: inf"),
        (lambda: cdp.best_epsilon(-1.0, 0.1), "rho: -1"),
        (lambda: cdp.best_epsilon(1.0, 0.0), "delta: 0"),
        (lambda: cdp.best_delta(1.0, -1.0), "epsilon: -1"),
        (lambda: cdp.best_delta(float("nan"), 1.0), "rho: nan"),
        (lambda: cdp.Concentrated(1.0, 1.0), "leak: 1"),
        (lambda: cdp.Concentrated(1.0).epsilon(2.0), "delta: 2"),
        (lambda: cdp.setwise_epsilon(0.0), "delta: 0"),
        (lambda: cdp.setwise_concentrated_delta([-1.0], 1.0), "rhos: entry 0 is -1, not in"),
        (lambda: cdp.setwise_concentrated_delta([0.5, 0.5], 0.9), "epsilon: 0.9 is not in \\[1, "),
        (lambda: cdp.setwise_epsilon(0.1, concentrated=[(-1.0, 0.0)]), "mu: -1"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
