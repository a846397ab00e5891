"""Optimal composition of pure DP and bounded range, against enumeration of all outcomes, and its pieces."""

from __future__ import annotations

import math
import warnings
from fractions import Fraction
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from helpers import slow
from scipy.stats import binom

from accountants.closed_forms import concentrated as cdp
from accountants.closed_forms.bounded_range import bounded_range_renyi, mixed_delta, mixed_epsilon
from accountants.closed_forms.pure import pure_delta, pure_epsilon

# From the project's reference values, computed apart from this library: three mechanisms of eps0 = 1 at eps = 0.5, by
# the number of bounded-range ones; fifty of eps0 = 0.1 at delta = 1e-6.
MIX = {0: 0.5283059855, 1: 0.4456328498, 2: 0.3552477516, 3: 0.2064677658}
FIFTY = {0: 3.173, 25: 2.428, 50: 1.534}


# By enumeration, in fractions of e^loss


def responses(ratio):
    """(probability, e^loss) of randomised response with e^eps0 = ratio."""
    return [(ratio / (1 + ratio), ratio), (1 / (1 + ratio), 1 / ratio)]


def ranged(ratio, u):
    """The same of the bounded-range loss with e^t = u."""
    q = (1 - u / ratio) / (1 - 1 / ratio)
    return [(q, u), (1 - q, u / ratio)]


def enumerated(laws, level):
    """E [1 - e^eps/e^loss]_+ over all sequences of outcomes, e^eps = level."""
    total = Fraction(0)
    for outcomes in product(*laws):
        probability = math.prod((p for p, _ in outcomes), start=Fraction(1))
        loss = math.prod((x for _, x in outcomes), start=Fraction(1))
        total += probability * max(Fraction(0), 1 - level / loss)
    return total


@pytest.mark.parametrize("ratio", [Fraction(101, 100), Fraction(3, 2), Fraction(20)])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_pure_composition_by_enumeration(k, ratio):
    for level in (Fraction(1, 2), Fraction(1), Fraction(11, 10), Fraction(5)):
        exact = float(enumerated([responses(ratio)] * k, level))
        assert pure_delta(math.log(ratio), k, math.log(level)) == pytest.approx(exact, rel=1e-12, abs=1e-15)


def test_an_infinite_budget_has_no_delta():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(mixed_delta(0.3, 5, 3, np.array([2.4, 1e300, np.inf])), 0.0)


@pytest.mark.parametrize(("m", "n"), [(1, 0), (1, 2), (2, 1), (3, 0), (3, 2)])
@pytest.mark.parametrize("ratio", [Fraction(6, 5), Fraction(3)])
def test_no_bounded_range_loss_is_worse_and_one_is_as_bad(m, n, ratio):
    """Over a grid of t; and over sizes of eps for which the best t lies on it."""
    eps0, places = math.log(ratio), 24
    for share in (0, 5, 19, 30):
        level = Fraction(math.exp(share * (m + 1) * eps0 / places % ((m + n) * eps0)))
        grid = [Fraction(math.exp(j * eps0 / places)) for j in range(1, places)]
        worst = max(float(enumerated([ranged(ratio, u)] * m + [responses(ratio)] * n, level)) for u in grid)
        delta = mixed_delta(eps0, m, n, math.log(level))
        assert delta >= worst * (1 - 1e-12)
        assert delta == pytest.approx(worst, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("eps0", [0.05, 1.0, 6.0])
@pytest.mark.parametrize(("m", "n"), [(1, 30), (7, 4), (40, 25)])
def test_no_t_on_a_fine_grid_is_worse(m, n, eps0):
    """By the law of the whole loss, its m t + n eps0 - w eps0 counted one by one."""
    w, level = np.arange(m + 2 * n + 1), np.array([0.0, 0.31, 2.0, 0.6 * (m + n)]) * eps0
    J, doubled = binom.pmf(np.arange(n + 1), n, 1 / (1 + np.exp(eps0))), np.zeros(2 * n + 1)
    doubled[::2] = J
    worst = np.zeros(4)
    for t in np.linspace(0, eps0, 401):
        I = binom.pmf(np.arange(m + 1), m, 1 - np.expm1(t - eps0) / np.expm1(-eps0))  # noqa: E741
        gain = -np.expm1(np.minimum(level[:, None] - (m * t + (n - w) * eps0), 0))
        worst = np.maximum(worst, gain @ np.convolve(I, doubled))
    delta = mixed_delta(eps0, m, n, level)
    assert np.all(delta >= worst * (1 - 1e-12))
    np.testing.assert_allclose(delta, worst, rtol=2e-2)


def test_bounded_range_losses_are_worst_alike():
    """Two bounded-range mechanisms with different t do no better than with one."""
    ratio = Fraction(2)
    grid = [1 + Fraction(j, 25) for j in range(26)]
    for level in (Fraction(1), Fraction(3, 2), Fraction(5, 2)):
        worst = max(
            enumerated([ranged(ratio, u), ranged(ratio, w), responses(ratio)], level) for u in grid for w in grid
        )
        assert worst <= mixed_delta(math.log(2), 2, 1, math.log(level)) + 1e-15


# Reference values and large counts


def test_references():
    np.testing.assert_allclose(pure_delta(0.1, 100, [2.0, 4.306791372516507]), [0.020140178428191532, 1e-5], rtol=1e-12)
    assert pure_epsilon(0.1, 100, 1e-5) == pytest.approx(4.306791372516507, rel=1e-13)
    for m, value in MIX.items():
        assert mixed_delta(1.0, m, 3 - m, 0.5) == pytest.approx(value, abs=6e-11)
    for m, value in FIFTY.items():
        assert mixed_epsilon(0.1, m, 50 - m, 1e-6) == pytest.approx(value, abs=5e-4)


@pytest.mark.lengthy
@pytest.mark.parametrize(("k", "eps0", "eps"), [(10_000, 0.01, 1.0), (10_000, 0.01, 36.0), (3000, 2.0, 5000.0)])
def test_pure_composition_of_many(k, eps0, eps):
    """The second delta is 1.5e-280."""
    with mpmath.workdps(40):
        e0, level = mpmath.mpf(eps0), mpmath.mpf(eps)
        p, total, coefficient = 1 / (1 + mpmath.exp(-e0)), mpmath.mpf(0), mpmath.mpf(1)
        for j in range(int((k * e0 - level) / (2 * e0)) + 1):
            total += coefficient * p ** (k - j) * (1 - p) ** j * -mpmath.expm1(level - (k - 2 * j) * e0)
            coefficient = coefficient * (k - j) / (j + 1)
        assert pure_delta(eps0, k, eps) == pytest.approx(float(total), rel=1e-10)
        assert pure_epsilon(eps0, k, float(total)) == pytest.approx(eps, rel=1e-11)


@pytest.mark.parametrize(("eps0", "eps"), [(0.3, 2.0), (0.3, 12.0), (4.0, 150.0)])
def test_a_mix_of_many(eps0, eps):
    """Theorem 3 as printed."""
    m, n = 25, 20
    with mpmath.workdps(40):
        e0, level = mpmath.mpf(eps0), mpmath.mpf(eps)
        E, best = mpmath.exp(-e0), mpmath.mpf(0)
        p = E / (1 + E)
        J = [mpmath.binomial(n, j) * p**j * (1 - p) ** (n - j) for j in range(n + 1)]
        for last in range(m + 2 * n + 1):
            t = (level + (last + 1 - n) * e0) / (m + 1)
            if 0 < t < e0:
                q = (1 - mpmath.exp(t - e0)) / (1 - E)
                law = [mpmath.binomial(m, i) * (1 - q) ** i * q ** (m - i) for i in range(m + 1)]
                terms = (
                    law[i] * J[j] * (1 - mpmath.exp(t - (last + 1 - i - 2 * j) * e0))
                    for i in range(m + 1)
                    for j in range(n + 1)
                    if i + 2 * j <= last
                )
                best = max(best, mpmath.fsum(terms))
        assert mixed_delta(eps0, m, n, eps) == pytest.approx(float(best), rel=1e-11)


# Both directions, shapes and kinds


@pytest.mark.lengthy
@pytest.mark.parametrize("delta", [0.3, 1e-5, 1e-100, 1e-300])
def test_epsilon_is_on_the_safe_side_and_tight(delta):
    counts, eps0 = np.array([1, 7, 400])[:, None], np.array([0.01, 0.3, 5.0])
    eps = pure_epsilon(eps0, counts, delta)
    assert eps.shape == (3, 3)
    assert np.all(pure_delta(eps0, counts, eps) <= delta)
    assert np.all((eps == 0) | (pure_delta(eps0, counts, eps * (1 - 1e-12)) > delta * (1 - 1e-9)))
    for m, n in ((1, 0), (4, 3), (60, 50)):
        eps = mixed_epsilon(eps0, m, n, delta)
        assert np.all(mixed_delta(eps0, m, n, eps) <= delta)
        assert np.all((eps == 0) | (mixed_delta(eps0, m, n, eps * (1 - 1e-11)) > delta * (1 - 1e-9)))


def test_all_arguments_broadcast():
    eps0, k, eps = np.array([[0.1], [0.5]]), np.array([3, 30, 0]), np.linspace(-1, 3, 4)[:, None, None]
    delta = pure_delta(eps0, k, eps)
    assert delta.shape == (4, 2, 3)
    for index in np.ndindex(delta.shape):
        one = pure_delta(
            *(float(np.broadcast_to(x, delta.shape)[index]) if x is not k else int(k[index[2]]) for x in (eps0, k, eps))
        )
        assert delta[index] == pytest.approx(one, rel=1e-13, abs=1e-16)
    assert mixed_delta([0.1, 0.2], 2, 3, [[0.3], [0.4], [0.5]]).shape == (3, 2)


def test_ends():
    assert pure_epsilon(0.1, 50, 0.0) == pytest.approx(5.0)
    assert mixed_epsilon(0.1, 20, 30, 0.0) == pytest.approx(5.0)
    assert pure_delta(0.1, 50, 5.0 + 1e-9) == pure_delta(0.1, 50, np.inf) == 0
    assert mixed_delta(0.1, 20, 30, 5.0 + 1e-9) == mixed_delta(0.1, 20, 30, np.inf) == 0
    assert pure_epsilon(0.1, 2, 0.5) == mixed_epsilon(0.1, 1, 1, 0.5) == 0
    assert pure_delta(0.1, 0, -1.0) == pytest.approx(1 - math.exp(-1))
    assert mixed_delta(0.1, 0, 0, 0.0) == 0
    assert pure_delta(0.3, 1, 0.0) == pytest.approx(math.tanh(0.15))
    assert mixed_delta(0.3, 1, 0, 0.0) == pytest.approx(math.tanh(0.075))


@pytest.mark.parametrize("eps", [0.0, 0.5, 1.0, 2.7])
def test_bounded_range_costs_less_than_pure_and_more_than_half(eps):
    """eps0-bounded range is eps0-DP, and half of it in DP is bounded range."""
    deltas = [mixed_delta(1.0, m, 6 - m, eps) for m in range(7)]
    assert deltas[0] == pytest.approx(pure_delta(1.0, 6, eps), rel=1e-14)
    assert np.all(np.diff(deltas) < 1e-13)
    assert deltas[1] > deltas[6] >= pure_delta(0.5, 6, eps) * (1 - 1e-13)


@pytest.mark.thorough
def test_kinds_of_array():
    assert isinstance(pure_delta(0.1, 10, 0.2), np.float64)
    assert mixed_delta(np.float32(0.1), 2, 3, np.zeros(2, np.float32)).dtype == np.float64
    for call in (pure_delta, mixed_delta, mixed_epsilon):
        counts = (7,) if call is pure_delta else (3, 4)
        values = call(0.3, *counts, jnp.array([0.01, 0.1], jnp.float32))
        assert isinstance(values, jax.Array)
        assert values.dtype == jnp.float32
        np.testing.assert_allclose(values, call(0.3, *counts, [0.01, 0.1]), rtol=1e-5)


# Derivatives

CURVES = {
    "pure delta": (lambda eps0, eps: pure_delta(eps0, 30, eps), (0.3, 2.05)),
    "pure epsilon": (lambda eps0, delta: pure_epsilon(eps0, 30, delta), (0.3, 1e-3)),
    "mixed delta": (lambda eps0, eps: mixed_delta(eps0, 20, 15, eps), (0.3, 2.05)),
    "bounded range delta": (lambda eps0, eps: mixed_delta(eps0, 3, 0, eps), (1.0, 0.6)),
    "mixed epsilon": (lambda eps0, delta: mixed_epsilon(eps0, 20, 15, delta), (0.3, 1e-3)),
    "renyi": (bounded_range_renyi, (0.3, 2.5)),
    "renyi, wide": (bounded_range_renyi, (9.0, 2.5)),
}


@pytest.mark.lengthy
@pytest.mark.quick("bounded range delta")
@pytest.mark.parametrize("name", slow(CURVES, "mixed delta"))
def test_gradients(name, x64):
    curve, point = CURVES[name]
    gradient = jax.jit(jax.grad(curve, (0, 1)))(*map(jnp.float64, point))
    for axis in (0, 1):
        ends = []
        for sign in (1, -1):
            moved = list(point)
            moved[axis] *= 1 + sign * 1e-5
            ends.append(curve(*moved))
        slope = (ends[0] - ends[1]) / (2e-5 * point[axis])
        assert float(gradient[axis]) == pytest.approx(float(slope), rel=1e-6)


@pytest.mark.thorough
def test_vmap_and_values_agree(x64):
    eps = jnp.linspace(0.0, 4.0, 7)
    mapped = jax.vmap(lambda eps: mixed_delta(0.5, 4, 5, eps))(eps)
    np.testing.assert_allclose(mapped, mixed_delta(0.5, 4, 5, np.asarray(eps)), rtol=1e-12, atol=1e-16)
    delta = jnp.geomspace(1e-8, 0.1, 5)
    np.testing.assert_allclose(pure_epsilon(0.5, 9, delta), pure_epsilon(0.5, 9, np.asarray(delta)), rtol=1e-12)


# Renyi curve and the pieces of the set-wise bound

BUDGETS = [1e-6, 0.01, 0.3, 1.0, 4.0, 7.0, 20.0]
ORDERS = [1.0, 1 + 1e-9, 1.01, 1.5, 2.0, 7.0, 400.0, 1e6]


def renyi(order, eps, t):
    """Of the losses t and t - eps."""
    q = mpmath.expm1(t - eps) / mpmath.expm1(-eps)
    if order == 1:
        return q * t + (1 - q) * (t - eps)
    moment = q * mpmath.exp((order - 1) * t) + (1 - q) * mpmath.exp((order - 1) * (t - eps))
    return mpmath.log(moment) / (order - 1)


@pytest.mark.parametrize("eps", BUDGETS)
@pytest.mark.parametrize("order", ORDERS)
def test_the_renyi_curve_is_attained_and_never_exceeded(eps, order):
    divergence = bounded_range_renyi(eps, order)
    with mpmath.workdps(60):
        a, e = mpmath.mpf(order), mpmath.mpf(eps)
        if order == 1:
            best = e - mpmath.log(e / (1 - mpmath.exp(-e)))
        else:
            best = e + mpmath.log((a - 1) * (1 - mpmath.exp(-a * e)) / (a * (1 - mpmath.exp(-(a - 1) * e))))
        assert abs(renyi(a, e, best) / mpmath.mpf(float(divergence)) - 1) < 3e-15
        for share in range(33):
            assert renyi(a, e, e * share / 32) <= mpmath.mpf(float(divergence)) * (1 + mpmath.mpf("3e-15"))
    assert divergence <= min(eps, order * cdp.bounded_range_rho(eps)) * (1 + 1e-14)


def test_renyi_limits():
    assert bounded_range_renyi(4.0, 2.0) == pytest.approx(2.65, abs=5e-3)
    np.testing.assert_allclose(bounded_range_renyi([0.1, 30.0], np.inf), [0.1, 30.0])
    assert bounded_range_renyi(1e-9, 3.0) == pytest.approx(3e-18 / 8, rel=1e-12)
    with pytest.raises(ValueError, match=r"order: 0\.5"):
        bounded_range_renyi(1.0, 0.5)


@pytest.mark.parametrize("eps", [0.3, 1.0, 4.0])
def test_pieces_of_the_setwise_bound(eps):
    """The mean is the largest Kullback-Leibler divergence; losses in a range eps are eps/2-subgaussian (Hoeffding)."""
    mean, square = cdp.bounded_range_terms(eps)
    assert mean == pytest.approx(bounded_range_renyi(eps, 1.0), rel=1e-13)
    assert cdp.pure_terms(eps) == (pytest.approx(eps * math.tanh(eps / 2)), eps**2)
    t = np.linspace(0, eps, 50)[1:-1, None]
    q, z = np.expm1(t - eps) / np.expm1(-eps), np.linspace(-9, 9, 61)
    centred = t - (q * t + (1 - q) * (t - eps))
    assert np.all(np.log(q * np.exp(z * centred) + (1 - q) * np.exp(z * (centred - eps))) <= z**2 * square / 2 + 1e-12)


@pytest.mark.parametrize("m", [0, 10, 25, 50])
def test_the_setwise_bound_is_above_the_optimal_one(m):
    for delta in (1e-2, 1e-6, 1e-12):
        bound = cdp.setwise_epsilon(delta, pure=[0.1] * (50 - m), bounded_range=[0.1] * m)
        assert mixed_epsilon(0.1, m, 50 - m, delta) <= bound


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: pure_delta(0.0, 2, 1.0), ValueError, "epsilon0: 0"),
        (lambda: pure_delta(0.1, 1.5, 1.0), TypeError, "k: 1.5"),
        (lambda: pure_delta(0.1, [2, -1], 1.0), ValueError, "k: -1"),
        (lambda: pure_delta(0.1, 2, float("nan")), ValueError, "epsilon: nan"),
        (lambda: pure_epsilon(0.1, 2, 1.0), ValueError, "delta: 1"),
        (lambda: pure_epsilon(0.1, 2, -1e-9), ValueError, "delta: -1"),
        (lambda: mixed_delta(-0.1, 2, 1, 1.0), ValueError, "epsilon0: -0.1"),
        (lambda: mixed_delta(0.1, -2, 1, 1.0), ValueError, "bounded_range: -2"),
        (lambda: mixed_delta(0.1, 2, 1.0, 1.0), TypeError, "pure: 1.0"),
        (lambda: mixed_delta(0.1, 2, 1, -1.0), ValueError, "epsilon: -1"),
        (lambda: mixed_epsilon(0.1, 2, 1, 2.0), ValueError, "delta: 2"),
        (lambda: bounded_range_renyi(0.0, 2.0), ValueError, "epsilon0: 0"),
        (partial(mixed_delta, "0.1", 1, 1, 1.0), TypeError, "epsilon0: '0.1'"),
    ],
)
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
