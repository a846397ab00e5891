"""Adaptive orders: rigorous brackets, against strategies played out and the reference values."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import slow

from accountants.closed_forms.adaptive import adaptive_bracket, adaptive_delta, ordering_table
from accountants.closed_forms.bounded_range import mixed_delta
from accountants.closed_forms.pure import pure_delta

# From the project's reference values, computed apart from this library: eps0 = 1, eps = 0.25.
REFERENCE = {"DP,BR,BR": 0.427211575, "BR,DP,BR": 0.4226402507, "BR,BR,DP": 0.4226402507}
NON_ADAPTIVE = 0.4199269262
EPSILONS = np.r_[np.linspace(0, 3.2, 33), 0.123456, 1.98765]


@pytest.mark.parametrize("order", REFERENCE)
def test_references_lie_in_the_bracket(order):
    bounds = adaptive_bracket(order, 1.0, 0.25)
    assert bounds.lower - 5e-11 <= REFERENCE[order] <= bounds.upper + 5e-11
    assert bounds.upper - bounds.lower < 4e-7


@pytest.mark.lengthy
@pytest.mark.parametrize("order", REFERENCE)
def test_the_upper_bound_closes_with_the_square_of_the_cell(order):
    ends = [float(adaptive_delta(order, 1.0, 0.25, cells=cells)) for cells in (256, 512, 1024)]
    assert (ends[0] - ends[1]) / (ends[1] - ends[2]) == pytest.approx(4, abs=0.02)
    assert ends[2] + (ends[2] - ends[1]) / 3 == pytest.approx(REFERENCE[order], abs=2e-10)


def played(order, eps0, x, strategy):
    """The delta of the adversary whose t is strategy(past losses)."""

    def after(rest, loss, past):
        if not rest:
            return max(0.0, 1 - math.exp(x - loss))
        if rest[0] == "DP":
            high, a = eps0, 1 / (1 + math.exp(-eps0))
            low = -eps0
        else:
            high = strategy(past)
            low, a = high - eps0, math.expm1(high - eps0) / math.expm1(-eps0)
        return a * after(rest[1:], loss + high, (*past, 1)) + (1 - a) * after(rest[1:], loss + low, (*past, 0))

    return after(order, 0.0, ())


@pytest.mark.parametrize("order", ["BR,BR,BR", "DP,BR,BR", "BR,DP,BR,BR"])
@pytest.mark.parametrize("eps0", [0.2, 1.0, 3.0])
def test_no_strategy_exceeds_the_upper_bound(order, eps0):
    rng = np.random.default_rng(7)
    x = 0.4 * eps0
    bracket, best = adaptive_bracket(order, eps0, x, cells=256), 0.0
    for _ in range(200):
        t = eps0 * rng.beta(4, 4, 1 << 5)
        best = max(best, played(order.split(","), eps0, x, lambda past, t=t: t[int("1" + "".join(map(str, past)), 2)]))
    assert best <= bracket.upper
    assert best > 0.9 * bracket.lower


def test_two_bounded_range_mechanisms_by_brute_force():
    """Every first t on a fine grid, and the best second one in closed form."""
    eps0, x = 1.0, 0.3
    E = math.exp(-eps0)
    t = np.linspace(0, eps0, 20_001)
    q = np.expm1(t - eps0) / np.expm1(-eps0)

    def one(y):
        inside = -np.expm1((np.clip(y, -eps0, eps0) - eps0) / 2)
        return np.where(y < -eps0, -np.expm1(y), np.where(y < eps0, inside**2 / (1 - E), 0.0))

    best = (q * one(x - t) + (1 - q) * one(x - t + eps0)).max()
    bounds = adaptive_bracket("BR,BR", eps0, x, cells=2048)
    assert bounds.lower - 1e-9 <= best <= bounds.upper
    assert bounds.upper - bounds.lower < 1e-7
    np.testing.assert_allclose(adaptive_delta("BR", eps0, EPSILONS, cells=2048), one(EPSILONS), atol=1e-7)


@pytest.mark.parametrize("eps0", [0.05, 1.0, 6.0])
def test_pure_mechanisms_do_not_gain_by_adaptivity(eps0):
    """And a single bounded-range one has nothing to adapt to but what came before."""
    eps = EPSILONS * eps0
    nodes = np.arange(4) * eps0
    np.testing.assert_allclose(adaptive_delta("DP,DP,DP", eps0, nodes), pure_delta(eps0, 3, nodes), atol=1e-12)
    assert np.all(adaptive_delta("DP,DP,DP", eps0, eps) >= pure_delta(eps0, 3, eps) * (1 - 1e-13) - 1e-15)
    lone = adaptive_bracket("BR", eps0, eps)
    assert np.all(lone.lower <= mixed_delta(eps0, 1, 0, eps) + 1e-15)
    assert np.all(lone.upper >= mixed_delta(eps0, 1, 0, eps) * (1 - 1e-13) - 1e-15)


@pytest.mark.lengthy
@pytest.mark.parametrize("order", ["BR,BR", "DP,BR,BR", "BR,DP,BR", "DP,DP,BR", "BR,BR,BR,DP"])
@pytest.mark.parametrize("eps0", [0.1, 1.0, 4.0])
def test_adaptive_is_at_least_non_adaptive(order, eps0):
    kinds, eps = order.split(","), EPSILONS * eps0
    bounds = adaptive_bracket(kinds, eps0, eps)
    fixed = mixed_delta(eps0, kinds.count("BR"), kinds.count("DP"), eps)
    assert np.all(bounds.upper >= fixed - 1e-13)
    assert np.all(bounds.lower <= bounds.upper)
    assert np.all((bounds.upper - bounds.lower) < 4e-6 * max(1, eps0**2))
    assert np.all(bounds.upper <= pure_delta(eps0, len(kinds), eps) + 1e-5 * max(1, eps0**2))


def test_bounded_range_last_is_the_worst_of_three():
    """Strictly on [0, eps0), where the two other orders agree."""
    eps = np.linspace(0, 0.9, 10)
    worst, middle, first = (adaptive_bracket(order, 1.0, eps) for order in REFERENCE)
    assert np.all(worst.lower > middle.upper)
    assert np.all(worst.lower > first.upper)
    np.testing.assert_allclose(middle.upper, first.upper, atol=1e-13)
    np.testing.assert_allclose(middle.lower, first.lower, atol=1e-13)
    beyond = np.linspace(1.05, 2.9, 5)
    ends = [adaptive_delta(order, 1.0, beyond) for order in REFERENCE]
    np.testing.assert_allclose(ends[0], ends[1], atol=1e-6)


@pytest.mark.lengthy
def test_the_table_of_orders():
    table = ordering_table(1.0, 5, 2, 0.4)
    assert len(table) == math.comb(5, 2)
    assert next(iter(table)) == "DP,DP,DP,BR,BR"
    uppers = [bracket.upper for bracket in table.values()]
    assert uppers == sorted(uppers, reverse=True)
    for order, bracket in table.items():
        bounds_again = adaptive_bracket(order, 1.0, 0.4)
        assert (bounds_again.lower, bounds_again.upper) == (bracket.lower, bracket.upper)
        assert bracket.upper > mixed_delta(1.0, 2, 3, 0.4)


def test_ends_and_shapes():
    bounds = adaptive_bracket("DP,BR", 0.5, np.array([[0.0, 0.9999], [1.0, np.inf]]), cells=64)
    assert bounds.upper.shape == (2, 2)
    assert np.all(bounds.upper[1] == 0)
    assert np.all(bounds.lower[1] == 0)
    assert 0 <= bounds.lower[0, 1] <= bounds.upper[0, 1] < 1e-4
    assert isinstance(adaptive_delta("BR", 1.0, 0.5, cells=8), np.float64)


@pytest.mark.parametrize("cells", [2, 3, 17, 100])
def test_coarse_grids_still_bracket(cells):
    fine = adaptive_bracket("DP,BR,BR", 1.0, EPSILONS, cells=1024)
    coarse = adaptive_bracket("DP,BR,BR", 1.0, EPSILONS, cells=cells)
    assert np.all(coarse.upper >= fine.lower)
    assert np.all(coarse.lower <= fine.upper)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: adaptive_delta("DP,XX", 1.0, 0.0), ValueError, "order: 'XX'"),
        (lambda: adaptive_delta("", 1.0, 0.0), ValueError, "order: its length: 0"),
        (lambda: adaptive_delta("BR", 0.0, 0.0), ValueError, "epsilon0: 0"),
        (lambda: adaptive_delta("BR", [1.0, 2.0], 0.0), TypeError, "epsilon0: "),
        (lambda: adaptive_delta("BR", 1.0, -0.1), ValueError, "epsilon: -0.1"),
        (lambda: adaptive_delta("BR", 1.0, 0.1, cells=1), ValueError, "cells: 1"),
        (lambda: ordering_table(1.0, 3, 4, 0.1), ValueError, "bounded_range: 4"),
        (lambda: ordering_table(1.0, 0, 0, 0.1), ValueError, "k: 0"),
    ],
)
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


# Derivatives


@pytest.mark.thorough
@pytest.mark.parametrize("order", slow(["BR,DP,BR", "DP,DP"], "DP,DP"))
def test_derivatives_are_those_of_the_bound(x64, order):
    """The same value in JAX, and central differences of it; DP alone is linear between the kinks of its own losses."""
    eps0, eps = jnp.float64(0.7), jnp.float64(0.43)

    def delta(eps0, eps):
        return adaptive_delta(order, eps0, eps, cells=64)

    np.testing.assert_allclose(delta(eps0, eps), adaptive_delta(order, 0.7, 0.43, cells=64), rtol=1e-12)
    slopes = jax.jit(jax.grad(delta, argnums=(0, 1)))(eps0, eps)
    h = 1e-6
    differences = [(delta(eps0 + a, eps + b) - delta(eps0 - a, eps - b)) / (2 * h) for a, b in ((h, 0.0), (0.0, h))]
    np.testing.assert_allclose(slopes, differences, rtol=1e-6)


def test_derivatives_over_many_levels_and_beyond_all_losses(x64):
    eps = jnp.linspace(0.0, 2.5, 7)
    both = jax.value_and_grad(lambda eps: adaptive_delta("BR,DP,BR", jnp.float64(0.7), eps, cells=64))
    values, slopes = jax.jit(jax.vmap(both))(eps)
    bound = adaptive_delta("BR,DP,BR", 0.7, np.asarray(eps), cells=64)
    np.testing.assert_allclose(values, bound, rtol=1e-12, atol=1e-13)
    assert np.all(np.asarray(slopes) <= 0.0)
    assert values[-1] == slopes[-1] == 0.0
    with pytest.raises(ValueError, match=r"^epsilon0: "):
        adaptive_delta("BR", jnp.float64(-1.0), 0.1)
