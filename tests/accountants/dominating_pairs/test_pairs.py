"""Worst pairs and the profiles of mechanisms: against quadrature over all pairs, closed forms, and planted faults."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import (
    ALL,
    ATOMIC,
    MULTIVARIATE,
    SKEW,
    UNIT,
    WINDOWED,
    in_rows,
    knots,
    over,
    positive_part,
    shift_profile,
    slow,
    windowed_pair,
)
from noise_registry import LAWS, scale

import accountants
import dpkernels as dpk
from accountants.dominating_pairs import base, windowed
from accountants.dominating_pairs.additive import AdditivePair
from accountants.dominating_pairs.base import Mixed, profile
from accountants.dominating_pairs.discrete import Atoms
from accountants.dominating_pairs.larger_profile import _crossings as crossings
from accountants.dominating_pairs.larger_profile import larger_profile
from accountants.dominating_pairs.registry import dominating_pairs, pure_epsilon
from accountants.dominating_pairs.windowed import WindowedPair
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace, MergedLaplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.distributions.staircase import Staircase
from dpkernels.mechanisms import named
from dpkernels.mechanisms.additive import Additive

SHARES = np.array([0.0, 0.03, 0.3, 0.7, 0.93, 0.99])
PROVEN = {name: m for name, m in WINDOWED.items() if m.window.falls and m.base.falls}
BOUNDED_ABOVE = {name: m for name, m in WINDOWED.items() if name not in PROVEN}
# Far intervals and bases of 1e-9 carry their own rounding: see helpers.rounding.
EXACT = [name for name in PROVEN if "far" not in name and "-20" not in name]
SMOOTH = ("sine-2-w1.3", "triangle-quartic0.3-5-w1.3")
# Its loss turns beyond the middle of the window.
TURNING = dpk.composite("sine", dpk.Quartic(0.05), epsilon=2.0, width=0.7, **UNIT)


def by_quadrature(m, x, other, eps, cells=300):
    """Integral of max(0, p - e^eps q) over reports: cells between all knots, cut where the sign changes."""

    def gap(y):
        return m.pdf(y, x) - np.exp(eps) * m.pdf(y, other)

    points = np.unique(np.concatenate([knots(m, x), knots(m, other)]))
    if len(points) < 50:
        steps = np.linspace(0, 1, cells + 1)
        points = np.unique(points[:-1, None] + np.diff(points)[:, None] * steps)
    return positive_part(gap, points)


# What a side of a pair has one entry of for each piece.
OF_PIECES = ("left", "right", "in_p", "in_q")


def delta_of(m, eps, D=None):
    """Of one compiled program a mechanism, however many eps."""
    return in_rows(lambda row: accountants.delta(m, row, D), eps)


# Windowed mechanisms


@pytest.mark.quick("piecewise-*")
@over(PROVEN, *EXACT)
def test_windowed_profile_is_the_integral_at_the_ends(m):
    eps = SHARES * m.epsilon
    exact = [by_quadrature(m, m.upper, m.lower, e) for e in eps]
    np.testing.assert_allclose(delta_of(m, eps), exact, rtol=1e-10, atol=1e-17)


@pytest.mark.quick("0", "2")
@pytest.mark.parametrize("seed", range(6))
def test_windowed_profile_at_random_parameters(seed):
    random = np.random.default_rng(seed)
    window, width = ("uniform", "sine", "triangle")[seed % 3], random.uniform(0.05, 1.9)
    base = ("constant", dpk.Quartic(float(random.uniform(0.05, 1))))[seed // 3]
    low = random.normal() * 10
    interval = {"lower": low, "upper": low + 10.0 ** random.uniform(-2, 3)}
    m = dpk.composite(window, base, epsilon=float(random.uniform(0.2, 6)), width=float(width), **interval)
    eps = np.sort(random.uniform(0, 0.98 * m.epsilon, 5))
    exact = [by_quadrature(m, m.upper, m.lower, e, 1000) for e in eps]
    np.testing.assert_allclose(delta_of(m, eps), exact, rtol=1e-10, atol=1e-17)


@pytest.mark.quick("piecewise-0.5")
@over(PROVEN, *(name for name in EXACT if "bump" not in name))
def test_no_pair_of_inputs_is_worse_than_the_ends(m):
    eps = SHARES[1:5] * m.epsilon
    worst = delta_of(m, eps)
    x = np.linspace(m.lower, m.upper, 6)
    for first, second in [(a, b) for a in x for b in x if a != b]:
        delta = np.array([by_quadrature(m, first, second, e, 20) for e in eps])
        assert np.all(delta <= worst + 1e-9 * worst + 1e-15)


@pytest.mark.quick("*-piecewise-0.5")
@over(PROVEN, "sine-2-w1.3", "triangle-0.1-w1.7", "uniform-quartic0.3-1", "piecewise-0.5", "bump-1")
@pytest.mark.parametrize("ends", [(0.61, 0.14), (0.2, 0.9), (0.5, 0.49)])
def test_pairs_between_the_ends(m, ends):
    x, other = (m.lower + share * (m.upper - m.lower) for share in ends)
    eps = SHARES * m.epsilon
    exact = [by_quadrature(m, x, other, e) for e in eps]
    np.testing.assert_allclose(profile((windowed_pair(m, x, other),), eps), exact, rtol=1e-9, atol=1e-16)


@over(WINDOWED, *(name for name in WINDOWED if name.split("-")[0] in ("piecewise", "wang2019")))
def test_uniform_on_constant_is_closed_form(m):
    """Three losses, +eps, -eps and 0: delta = y w (e^eps0 - e^eps), w the part of p's window outside q's."""
    eps = SHARES * m.epsilon
    outside = min(m.width, 2 - m.width)
    peak = math.log1p(m.relative_height)
    exact = m.level * outside * (np.exp(peak) - np.exp(eps))
    allowed = 1e-13 + 1e-14 / m.base_mass + 1e-9 * (abs(m.lower) > 1e5)
    # The height over the base is 1 + (e^eps0 - 1), whose rounding is one of e^eps0; delta is rounded upwards by more.
    np.testing.assert_allclose(delta_of(m, eps), exact, rtol=allowed, atol=rounding(m.epsilon))


def rounding(eps):
    """What delta may be above the truth next to the largest loss."""
    return 16 * (1 + eps) * 2.0**-52


@pytest.mark.quick("piecewise-*")
@over(PROVEN)
def test_largest_loss_at_the_ends_is_the_pure_level(m):
    with jax.enable_x64(True):
        level = float(accountants.profile._pure_level(base.as_float64(dominating_pairs(m))))
    assert level == pytest.approx(accountants.epsilon(m), rel=1e-6)
    assert delta_of(m, accountants.epsilon(m) * (1 + 1e-6)) <= 1e-12 * max(1, 1e-3 / m.base_mass)


@pytest.mark.lengthy
@pytest.mark.quick("humps-1-w0.7", "uniform-bowl-1")
@over(BOUNDED_ABOVE)
def test_other_shapes_are_bounded_from_above(m):
    eps = SHARES[1:5] * m.epsilon
    above = delta_of(m, eps)
    for x in np.linspace(m.lower, m.upper, 5):
        for other in (m.lower, m.upper):
            assert all(by_quadrature(m, x, other, e, 20) <= limit for e, limit in zip(eps, above, strict=True))
    assert delta_of(m, accountants.epsilon(m)) <= rounding(m.epsilon)


# Other bounded mechanisms


@over(ATOMIC)
def test_atoms_and_mixtures(m):
    """Quadrature of the part with a density, and the atoms, one by one."""
    eps = SHARES * m.epsilon
    (_, p), (_, q) = m.atoms(m.upper), m.atoms(m.lower)
    exact = np.maximum(p - np.exp(eps)[:, None] * q, 0).sum(1)
    if isinstance(m, dpk.Mixture):
        exact = exact + [m.weight * by_quadrature(m.first, m.upper, m.lower, e) for e in eps]
    np.testing.assert_allclose(delta_of(m, eps), exact, rtol=1e-7)


@pytest.mark.parametrize("eps", [0.1, 2.0])
def test_two_points_are_randomised_response(eps):
    levels = np.array([0.0, 0.3, 0.9]) * eps
    exact = (np.exp(eps) - np.exp(levels)) / (1 + np.exp(eps))
    np.testing.assert_allclose(accountants.delta(dpk.duchi(epsilon=eps, **UNIT), levels), exact, rtol=1e-12)


def test_one_coordinate_of_several_is_the_coordinate():
    m = MULTIVARIATE["one-of-three"]
    eps = np.array([0.1, 0.5])
    np.testing.assert_array_equal(accountants.delta(m, eps), accountants.delta(m.coordinate, eps))
    with pytest.raises(ValueError, match="reports 2 coordinates"):
        accountants.delta(MULTIVARIATE["all-of-two"], 1.0)
    assert accountants.epsilon(MULTIVARIATE["all-of-two"]) == pytest.approx(4.0, rel=1e-6)


# Which pairs


def test_even_noise_needs_one_direction():
    assert [len(dominating_pairs(Additive(law, 1.0))) for law in LAWS.values()] == [
        1 if law.is_even else 2 for law in LAWS.values()
    ]
    assert LAWS["recycled-gaussian"].is_even
    assert not LAWS["truncated-gaussian-asymmetric"].is_even
    seen = []
    jax.jit(lambda low: seen.append(dominating_pairs(Additive(Reweighted(Laplace(1.0), low, 1.0, 0.5), 1.0))))(-1.0)
    assert len(seen[0]) == 2


def test_types_of_pairs():
    kinds = {"piecewise-0.5": WindowedPair, "humps-1-w0.7": Atoms, "duchi-0.1": Atoms, "hybrid-1": Mixed}
    for name, kind in kinds.items():
        assert isinstance(dominating_pairs(ALL[name])[0], kind)
    assert isinstance(dominating_pairs(Additive(Gaussian(1.0)), 1.0)[0], AdditivePair)


@pytest.mark.parametrize("unknown", [object(), 1.0, None, "piecewise", Gaussian(1.0)])
def test_unknown_mechanism_is_an_error(unknown):
    for call in (accountants.delta, accountants.epsilon):
        with pytest.raises(TypeError, match="no known"):
            call(unknown, 0.1)
    with pytest.raises(TypeError, match="no known worst pair"):
        accountants.delta(Additive(unknown, 1.0), 0.1) if not isinstance(unknown, Gaussian) else dominating_pairs(
            unknown
        )


def test_bad_arguments():
    m, noise = ALL["piecewise-0.5"], Additive(Gaussian(1.0))
    for call in (accountants.delta, accountants.epsilon):
        with pytest.raises(ValueError, match=r"^sensitivity: None"):
            call(noise, 0.5)
        for bad in (0.0, -1.0, math.inf, math.nan):
            with pytest.raises(ValueError, match=r"^sensitivity: .* is not in"):
                call(noise, 0.5, sensitivity=bad)
        with pytest.raises(ValueError, match=r"^sensitivity: 1.0; neighbours of a bounded mechanism"):
            call(m, 0.5, sensitivity=1.0)
    with pytest.raises(ValueError, match=r"^sensitivity: 1.0; neighbours of a bounded mechanism"):
        accountants.epsilon(m, sensitivity=1.0)
    for bad, text in ((-0.1, "-0.1 is"), (math.nan, "nan is"), ([0.5, -1.0], "entry 1 is -1,")):
        with pytest.raises(ValueError, match=rf"^epsilon: {text} not in \[0, inf\]"):
            accountants.delta(m, bad)
    for bad in (-1e-9, 1.0, 1.5, math.nan):
        with pytest.raises(ValueError, match=r"^delta: .* is not in \[0, 1\)"):
            accountants.epsilon(m, bad)
    with pytest.raises(ValueError, match=r"^sensitivity: is 1e\+06 periods"):
        accountants.delta(Additive(Staircase(1.0, 1.0, 0.3)), 1.0, 1e6)


# Shapes, types, compilation


@pytest.mark.quick("piecewise-0.5")
@over(ALL, "piecewise-0.5", "uniform-quartic0.3-1", "duchi-0.1", "hybrid-1")
def test_kinds_and_shapes(m):
    eps = np.linspace(0, m.epsilon, 6).reshape(2, 3)
    delta = accountants.delta(m, eps)
    assert delta.shape == (2, 3)
    assert delta.dtype == np.float64
    one = accountants.delta(m, 0.1)
    assert type(one) is float
    assert type(accountants.epsilon(m)) is type(accountants.epsilon(m, one)) is float
    assert accountants.delta(m, []).shape == (0,)
    in_jax = accountants.delta(m, jnp.float32(0.1))
    assert in_jax.dtype == jnp.float32
    assert float(in_jax) == pytest.approx(one, rel=1e-3, abs=2e-6)
    assert float(jax.jit(accountants.delta)(m, 0.1)) == pytest.approx(one, rel=1e-3, abs=2e-6)


def test_array_parameters_broadcast():
    sigma, eps = np.array([0.5, 1.0, 2.0]), np.array([[0.1], [1.0]])
    delta = accountants.delta(Additive(Gaussian(sigma), 1.0), eps)
    each = [[accountants.delta(Additive(Gaussian(s), 1.0), e) for s in sigma] for e in eps[:, 0]]
    np.testing.assert_allclose(delta, each, rtol=1e-14)
    np.testing.assert_allclose(
        accountants.delta(Additive(Gaussian(1.0)), 0.3, np.array([1.0, 2.0]))[1],
        delta[0, 0] * 0 + accountants.delta(Additive(Gaussian(1.0)), 0.3, 2.0),
    )


@pytest.mark.lengthy
def test_plain_numbers_compile_nothing(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a compiler was started")

    monkeypatch.setattr("jax._src.compiler.compile_or_get_cached", refuse)
    with pytest.raises(AssertionError, match="compiler"):
        jax.jit(lambda x: x + 1)(np.float64(1.0))
    eps = np.linspace(0, 2, 7)
    accountants.delta(named.budget_recycled(Gaussian(1.0), theta=1.5, q=0.5), eps, 1.0)
    accountants.delta(dpk.composite("sine", epsilon=1.0, width=0.7, **SKEW), eps)
    accountants.epsilon(Additive(Laplace(1.0)), 1e-3, 1)
    for mechanism in (
        accountants.guarantee(Additive(Laplace(1.0)), 1.0).repeat(20),
        accountants.guarantee(dpk.piecewise(epsilon=1.0, **SKEW)).repeat(20),
        accountants.guarantee(dpk.composite("sine", epsilon=1.0, **SKEW)).subsample(0.1).repeat(20),
        accountants.guarantee(Additive(Gaussian(1.0)), 1.0).subsample(0.1, "replace").repeat(20),
        accountants.guarantee(Additive(Reweighted(Laplace(1.0), -3.0, 4.0, 0.1)), 1.0).repeat(20),
        accountants.guarantee(accountants.randomised_response(1.0, 4)).repeat(20),
    ):
        mechanism.delta(0.3)
        mechanism.epsilon(1e-3)
        mechanism.renyi(2.0)
        mechanism.bracket(epsilon=0.3)


def test_other_parameters_do_not_compile_again():
    def calls(step):
        accountants.delta(Additive(Laplace(1.0 + step), 1.0), jnp.linspace(0.0, 2.0 + step, 7))

    calls(0.0)
    before = base.compiled_profile._cache_size()
    calls(0.125)
    assert base.compiled_profile._cache_size() == before
    accountants.delta(Additive(Gaussian(1.0), 1.0), jnp.zeros((3, 1, 5, 1)))
    assert base.compiled_profile._cache_size() == before + 1


@pytest.mark.quick("staircase-0.3")
@pytest.mark.parametrize("name", ["laplace", "gaussian", "merged", "staircase-0.3", "recycled-gaussian"])
def test_a_hundred_thousand_budgets(name):
    """In one call; each is its own, whichever stand beside it."""
    m, eps = Additive(LAWS[name], scale(LAWS[name])), np.random.default_rng(0).uniform(0, 5, 100_000)
    delta, order = accountants.delta(m, eps), np.argsort(eps)
    np.testing.assert_array_equal(accountants.delta(m, eps[order]), delta[order])
    assert np.all(np.diff(delta[order]) <= 1e-15)


# The budget for a delta

TARGETS = np.array([0.3, 1e-2, 1e-5, 1e-9, 1e-15])


@pytest.mark.quick("laplace")
@pytest.mark.parametrize("name", ["laplace", "gaussian", "merged", "staircase-0.3", "recycled-gaussian"])
def test_epsilon_is_the_least_that_meets_delta(name):
    m, D = Additive(LAWS[name]), 1.1 * scale(LAWS[name])
    eps = accountants.epsilon(m, TARGETS, D)
    assert np.all(delta_of(m, eps, D) <= TARGETS)
    below = eps * (1 - 1e-9)
    assert np.all((delta_of(m, below, D) > TARGETS * (1 - 1e-12)) | (eps == 0))
    for target, expected in zip(TARGETS, eps, strict=True):
        assert accountants.epsilon(m, target, D) == pytest.approx(expected, rel=1e-12)


@pytest.mark.quick("piecewise-0.5", "duchi-0.1", "humps-1-w0.7")
@over(ALL, "piecewise-0.5", "sine-1", "duchi-0.1", "hybrid-1", "humps-1-w0.7")
def test_epsilon_of_bounded_mechanisms(m):
    eps = accountants.epsilon(m, TARGETS)
    assert np.all(delta_of(m, eps) <= TARGETS)
    assert np.all((delta_of(m, eps * (1 - 1e-9)) > TARGETS * (1 - 1e-12)) | (eps == 0))
    assert np.all(eps <= accountants.epsilon(m) * (1 + 1e-9))
    mixed = accountants.epsilon(m, [0.0, *TARGETS[1:]])
    np.testing.assert_array_equal(mixed, [accountants.epsilon(m), *eps[1:]])


def test_pure_levels_of_noise():
    assert accountants.epsilon(Additive(Laplace(2.0)), sensitivity=3.0) == 1.5
    assert accountants.epsilon(named.laplace(epsilon=0.7, sensitivity=2.0)) == pytest.approx(0.7, rel=1e-15)
    assert accountants.epsilon(named.staircase(epsilon=1.3, sensitivity=0.7)) == pytest.approx(1.3, rel=1e-14)
    assert accountants.epsilon(Additive(Staircase(1.0, 1.0, 0.3)), sensitivity=1.31) == pytest.approx(2.0, rel=1e-14)
    merged = named.merged_laplace(rates=(5 / 0.2, 0.0, 5.0), breaks=(0.2, 1.0), sensitivity=1.0)
    assert accountants.epsilon(merged) == pytest.approx(5.0, rel=1e-14)
    recycled = named.budget_recycled(Laplace(1.0), theta=2.0, q=0.5, sensitivity=1.0)
    assert accountants.epsilon(recycled) == pytest.approx(1 + math.log(2), rel=1e-14)
    for law in (
        Gaussian(1.0),
        Reweighted(Laplace(1.0), -3.0, 3.0, 0.0),
        Reweighted(Staircase(1.0, 1.0, 0.5), -2.2, 3.0, 0.0),
    ):
        assert accountants.epsilon(Additive(law), sensitivity=1.0) == math.inf


def test_truncated_noise_has_no_budget_below_its_infinite_loss():
    m = Additive(Reweighted(Laplace(1.0), -6.0, 6.0, 0.0), 1.0)
    certain = float(m.noise.mass(-6.0, -5.0))
    assert accountants.epsilon(m, certain * (1 - 1e-12)) == math.inf
    assert accountants.epsilon(m, certain * (1 + 1e-6)) <= 1 + 1e-12
    assert delta_of(m, math.inf) == pytest.approx(certain, rel=1e-12)
    assert delta_of(m, 1e6) == pytest.approx(certain, rel=1e-12)


def test_enough_delta_needs_no_budget():
    m = Additive(Gaussian(3.0), 1.0)
    assert accountants.epsilon(m, delta_of(m, 0.0)) == 0.0
    assert accountants.epsilon(m, 0.99) == 0.0


def test_huge_losses_are_bounded_from_above_and_never_nan():
    for law in (Laplace(1e-3), Gaussian(1e-3), Staircase(15.0, 0.01, 0.3), Reweighted(Gaussian(1e-3), -1.0, 1.0, 0.1)):
        delta = accountants.delta(Additive(law, 1.0), np.array([0.0, 1.0, 600.0, 900.0, 1e6]))
        assert np.all((delta >= 0) & (delta <= 1))
        assert np.all(np.diff(delta) <= 0)
    assert accountants.delta(Additive(Laplace(1e-3), 1.0), 0.5) == pytest.approx(1.0)


@pytest.mark.parametrize("shift", [1.0, -1.0])
def test_both_densities_are_integrated_up_to_the_same_tail(shift):
    """Of noise much narrower than the sensitivity, q's tail begins where p has hardly any mass left."""
    noise = dpk.Logistic(0.02)
    (pieces,) = AdditivePair(noise, shift).privacy_loss().pieces
    ends = pieces.lower.min(), pieces.upper.max()
    low, high = (float(noise.inverse(np.array(1e-40), lower)) for lower in (True, False))
    np.testing.assert_allclose(ends, (low + min(shift, 0.0), high + max(shift, 0.0)), rtol=1e-12)


# Derivatives


def close_to_differences(function, values, skip=(), rtol=1e-6):
    """Reverse-mode derivatives, jitted in 64 bits, against central differences of fourth order in plain numbers."""
    with jax.enable_x64(True):
        value, found = jax.jit(jax.value_and_grad(function))([jnp.asarray(v) for v in values])
    assert float(value) == pytest.approx(float(function(values)), rel=1e-11)
    for index, at in enumerate(values):
        h = 1e-5 * max(abs(at), 0.1)

        def moved(k, index=index, at=at, h=h):
            return float(function([*values[:index], at + k * h, *values[index + 1 :]]))

        if index not in skip:
            numeric = (8 * (moved(1) - moved(-1)) - (moved(2) - moved(-2))) / (12 * h)
            assert float(found[index]) == pytest.approx(numeric, rel=rtol, abs=1e-8 * abs(float(value))), index


def rebuilt(template, values):
    return jax.tree.unflatten(jax.tree.structure(template), values)


@pytest.mark.quick("piecewise-0.5")
@over(PROVEN, *SMOOTH, "piecewise-0.5", "triangle-0.1-w1.7")
def test_windowed_gradients(m):
    leaves = [float(leaf) for leaf in jax.tree.leaves(m)]
    close_to_differences(lambda v: accountants.delta(rebuilt(m, v[:-1]), v[-1]), [*leaves, 0.37 * m.epsilon], rtol=1e-5)


@pytest.mark.quick("duchi-0.1")
@over(ATOMIC, "duchi-0.1", "hybrid-1")
def test_atomic_gradients(m):
    leaves = [float(leaf) for leaf in jax.tree.leaves(m)]
    close_to_differences(lambda v: accountants.delta(rebuilt(m, v[:-1]), v[-1]), [*leaves, 0.37 * m.epsilon], rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("law", [Laplace(0.8), Gaussian(1.3)])
def test_gradients_of_epsilon_are_implicit(law):
    leaves = [float(leaf) for leaf in jax.tree.leaves(law)]
    values = [*leaves, 1.1, 3e-3]
    close_to_differences(lambda v: accountants.epsilon(Additive(rebuilt(law, v[:-2])), v[-1], v[-2]), values)


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
def test_second_derivatives():
    """Of delta in eps, through the cut; and of eps in delta, through the implicit rule."""
    noise = Additive(Gaussian(1.3))
    for function, at, h in (
        (lambda eps: accountants.delta(noise, eps, 1.0), 0.7, 1e-5),
        (lambda delta: accountants.epsilon(noise, delta, 1.0), 1e-2, 1e-6),
    ):
        first = jax.jit(jax.grad(function))
        numeric = float(first(at + h) - first(at - h)) / (2 * h)
        assert float(jax.jit(jax.grad(jax.grad(function)))(at)) == pytest.approx(numeric, rel=1e-6)


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
def test_pure_level_is_differentiable():
    by_scale = jax.jit(jax.grad(lambda b: accountants.epsilon(Additive(Laplace(b), 1.0))))(2.0)
    assert float(by_scale) == pytest.approx(-0.25, rel=1e-12)


# Planted faults


def test_one_direction_dropped_is_caught():
    law, eps = LAWS["truncated-gaussian-asymmetric"], np.array([0.5, 1.0])
    both = accountants.delta(Additive(law, 0.9), eps)
    assert max(abs(shift_profile(law, shift, eps) - both).max() for shift in (0.9, -0.9)) > 1e-3


def turning_delta(eps):
    """Of JAX numbers: compiled afresh, with the fault of the moment."""
    pairs = jax.tree.map(jnp.asarray, dominating_pairs(TURNING))
    return jax.jit(lambda pairs, eps_array: base.curve(pairs)(eps_array))(pairs, jnp.asarray([eps]))[0]


@pytest.mark.lengthy
@pytest.mark.quick("none", "turns")
@pytest.mark.parametrize("fault", ["none", "piece", "turns", "cut"])
def test_faults_in_the_windowed_integral_are_caught(fault, monkeypatch):
    pieces, eps = windowed.window_side, 0.998 * TURNING.epsilon
    if fault == "piece":
        monkeypatch.setattr(
            windowed,
            "window_side",
            lambda pair: (d := pieces(pair))._replace(**{name: getattr(d, name)[2:] for name in OF_PIECES}),
        )
    elif fault == "turns":
        monkeypatch.setattr(windowed, "_turns", lambda pieces, cells, most: pieces.upper[None])
        monkeypatch.setattr(windowed, "turning_points", lambda function, points: (np.zeros(0), np.zeros(0, int)))
    elif fault == "cut":
        monkeypatch.setattr(windowed, "falling_root", lambda gap, low, high: low + 0.9 * (high - low))
        monkeypatch.setattr(windowed, "bisect", lambda is_low, low, high, steps: (low + 0.9 * (high - low),) * 2)
    with jax.enable_x64(True):
        deltas = float(turning_delta(eps)), accountants.delta(TURNING, eps)
    exact = by_quadrature(TURNING, TURNING.upper, TURNING.lower, eps, 1000)
    assert all((abs(one / exact - 1) < 1e-10) == (fault == "none") for one in deltas)


@pytest.mark.lengthy
def test_more_turns_than_kept_are_not_a_number(monkeypatch):
    with jax.enable_x64(True):

        @partial(jax.jit, static_argnums=0)
        def turns(most, *ends):
            lower, upper = ends
            wavy = SimpleNamespace(
                lower=lower,
                upper=upper,
                densities=((lambda e, _: jnp.exp(jnp.sin(20 * e)), True), (lambda e, _: 1 + 0 * e, True)),
            )
            return windowed._turns(wavy, 64, most)

        ends = jnp.zeros(1), jnp.ones(1)
        np.testing.assert_allclose(turns(8, *ends)[:6, 0], np.pi / 40 * (1 + 2 * np.arange(6)), rtol=1e-12)
        assert np.all(np.isnan(turns(3, *ends)))
        monkeypatch.setattr(windowed, "_turns", lambda pieces, cells, most: jnp.nan * pieces.upper[None])
        assert np.isnan(turning_delta(0.1))


def test_a_traced_staircase_out_of_reach_is_not_a_number():
    """Under tracing 256 periods are kept: more are an error for numbers, and NaN for tracers."""
    value = jax.jit(lambda D: accountants.delta(Additive(Staircase(0.5, 1.0, 0.3)), 0.2, D))
    assert np.isnan(value(200.0))
    assert float(value(3.3)) == pytest.approx(accountants.delta(Additive(Staircase(0.5, 1.0, 0.3)), 0.2, 3.3), rel=1e-4)


def test_shift_by_whole_periods_makes_no_pieces_of_rounding():
    """A staircase over its own period has losses -eps, 0 and eps: no sliver between knots has 2 eps."""
    m = named.staircase(epsilon=0.7, sensitivity=0.1)
    assert accountants.delta(m, 0.7 * (1 + 1e-12)) == 0.0
    assert accountants.epsilon(m, 1e-20) == pytest.approx(0.7, rel=1e-9)


def test_relabelled_mechanisms_have_the_same_profile():
    m = WINDOWED["sine-1"]
    assert accountants.delta(dataclasses.replace(m, epsilon=3.3), 0.2) == accountants.delta(m, 0.2)


def test_released_tables_of_noise_are_pure_at_no_budget():
    """Their claim is of (epsilon, delta): the budget of it must not pass for a pure level."""
    form = dpk.exact_sampler(named.truncated_laplace(epsilon=1.0, delta=0.1))
    assert accountants.epsilon(form) == pure_epsilon(form) == math.inf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: accountants.delta(m, 0.5, sensitivity=1e200), r"sensitivity: 1\.?e\+200 is not in"),
        (lambda m: accountants.delta(m, 0.5, sensitivity=-1.0), r"sensitivity: -1"),
        (lambda m: accountants.epsilon(m, 1e-6, sensitivity=math.nan), "sensitivity: nan"),
        (lambda m: accountants.epsilon(m, 0.0, sensitivity=[1.0, 2.0]), r"sensitivity.*shape \(2,\)"),
        (lambda m: accountants.epsilon(m, 1.0), r"delta: 1 is not in \[0, 1\)"),
        (lambda m: accountants.delta(named.discrete_laplace(epsilon=1.0), 0.5, [1.0, 2.0]), "sensitivity: .*one "),
    ],
)
def test_arguments_that_would_give_no_profile_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(named.laplace(epsilon=1.0))


@pytest.mark.thorough
def test_several_sensitivities_may_be_a_list():
    m = named.laplace(epsilon=1.0)
    both = [accountants.delta(m, 0.5, sensitivity=D) for D in (1.0, 2.0)]
    np.testing.assert_allclose(accountants.delta(m, 0.5, sensitivity=[1.0, 2.0]), both, rtol=1e-14)


# Noise that is not even: of every budget the worse sign of the shift

# Their profiles cross once, never, twice, twice, twice and, for losses that may be infinite, once.
UNEVEN = {
    "gaussian": Reweighted(Gaussian(0.9), -2.6, 4.9, 0.55),
    "wide-laplace": Reweighted(Laplace(6.0), -2.1, 3.9, 0.9),
    "narrow-gaussian": Reweighted(Gaussian(0.34), -0.37, 1.47, 0.42),
    "laplace": Reweighted(Laplace(2.34), -0.375, 2.965, 0.952),
    "merged": Reweighted(MergedLaplace((9.22, 3.07, 18.4), (0.4, 1.3)), -4.99, 0.33, 0.98),
    "truncated": Reweighted(Gaussian(0.9), -5.2, 1.3, 0.0),
}


@jax.jit
def moments_of(pair, orders):
    """E_p e^(c l) of finite losses: by the nodes, and c (c + 1) integral e^(c y) delta(y) dy of the larger profile."""
    nodes = larger_profile(pair, 256)
    log_p, loss = nodes.finite
    y = jnp.linspace(-90.0, 40.0, 400_001)
    profile = jnp.maximum(pair.hockey_stick()(y), pair.mirror().hockey_stick()(y))
    of_finite = jnp.where(y < loss.max(), profile - jnp.where(nodes.loss == jnp.inf, nodes.p, 0.0).sum(), 0.0)
    summed = [jnp.exp(log_p + c * loss).sum() for c in orders]
    return jnp.stack(summed), jnp.stack([c * (c + 1) * jnp.trapezoid(jnp.exp(c * y) * of_finite, y) for c in orders])


@pytest.mark.thorough
@pytest.mark.parametrize("name", slow(UNEVEN, "gaussian", "narrow-gaussian", "merged", "truncated"))
def test_moments_of_the_larger_profile_are_its_integrals(x64, name):
    nodes, integrals = moments_of(AdditivePair(UNEVEN[name], 1.0), jnp.array([0.5, 1.0, 2.0]))
    np.testing.assert_allclose(nodes, integrals, rtol=6e-8)


@jax.jit
def short_of_the_larger(pair):
    """The most, relatively, by which the profile that is taken for the larger one is below the other."""
    y, own = crossings(pair)
    eps = jnp.abs(pair.privacy_loss().nodes().finite[1]).max() * jnp.linspace(1e-4, 1.02, 6000)
    both = jnp.stack([pair.mirror().hockey_stick()(eps), pair.hockey_stick()(eps)])
    taken = jnp.where(own[(eps > y[:, None]).sum(0)], both[1], both[0])
    return jnp.where(both.max(0) > 1e-14, 1 - taken / both.max(0), 0.0).max()


def uneven(random, kind):
    def wide(low, high):
        return float(np.exp(random.uniform(np.log(low), np.log(high))))

    kernels = {
        "gaussian": lambda: Gaussian(wide(0.2, 10)),
        "laplace": lambda: Laplace(wide(0.2, 10)),
        "merged": lambda: MergedLaplace(tuple(wide(0.1, 20) for _ in range(3)), (0.4, wide(0.5, 2))),
    }
    outside = float(random.choice([0.0, wide(1e-3, 1), random.uniform()]))
    return Reweighted(kernels[kind](), -wide(0.1, 8), wide(0.1, 8), outside)


# The second one's profiles cross next to their common end.
ENDS = [(2.34, -0.375, 2.965, 0.952), (1.1039397667806679, -1.3185719418582282, 0.6415837249573852, 0.0020884385734001)]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", slow(["laplace", "gaussian", "merged"], "gaussian", "merged"))
def test_the_larger_profile_of_random_laws_is_no_less_than_either(x64, kind):
    random = np.random.default_rng(7)
    laws = [uneven(random, kind) for _ in range(200)]
    laws += [Reweighted(Laplace(b), *rest) for b, *rest in ENDS] if kind == "laplace" else []
    assert max(float(short_of_the_larger(AdditivePair(law, 1.0))) for law in laws) < 1e-9


def test_crossings_are_not_dropped(x64):
    """Two steps of a staircase a twentieth of the shift wide may cross each."""
    steps = Reweighted(Staircase(0.9993, 0.0537, 0.3162), -0.139, 5.235, 0.0051)
    assert np.isnan(larger_profile(AdditivePair(steps, 1.0)).p).all()
