"""Calibration: roots from the safe side, as close as the float allows, differentiable; what is infeasible says so."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from helpers import slow
from noise_registry import LAWS, REFERENCE, over, scale

import accountants
import dpkernels as dpk
from accountants import calibrate
from accountants.calibrate import analytic_gaussian
from accountants.calibrate import scale as scale_module
from accountants.dominating_pairs.registry import additive_profile
from dpkernels import solve
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace, MergedLaplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.mechanisms import named
from dpkernels.solve import NotPrivateError

TARGETS = [(0.01, 1e-12), (0.3, 1e-5), (1.0, 1e-9), (1.0, 0.05), (4.0, 1e-6), (15.0, 0.5)]


def realised(m):
    return float(additive_profile(m.noise, m.sensitivity, m.epsilon))


def meets_tightly(m, narrower):
    """The claim holds as computed, and not for noise narrower by one in 10^9 (delta's slope is at most about 10^6)."""
    return realised(m) <= m.delta < float(additive_profile(narrower, m.sensitivity, m.epsilon))


def shrunk(noise, share=1e-9):
    return calibrate.rescaled(noise, 1 - share)


# Roots


def test_roots_are_safe_neighbours_from_either_side():
    for safe, unsafe, sign in ((0.0, 7.0, 1), (9.0, 0.0, -1)):
        x = solve.root(lambda x, p: p[0] * (x**3 - p[1]), (sign, 5.0), safe, unsafe)
        assert sign * (x**3 - 5.0) <= 0 < sign * (np.nextafter(x, unsafe) ** 3 - 5.0)
        assert isinstance(x, float)


def test_a_nan_is_a_breach():
    assert solve.root(lambda x, _: -1.0 if x < 2 else math.nan, (), 0.0, 3.0) < 2


@pytest.mark.parametrize("low", [-7.3, 0.0, 2.0])
def test_minimum(low):
    """On intervals that do not start at 0, too."""
    for at in (low + 0.001, low + 1.3, low + 4.99):
        minimum = solve.minimum(lambda x, c: (x - c) ** 2, at, low, low + 5.0)
        assert minimum == pytest.approx(at, abs=2e-8)
    seen = []
    solve.minimum(lambda x, _: seen.append(x) or -1.0, (), 0.0, 1.0, stop_value=0.0)
    assert len(seen) <= 2


def test_first_root_of_a_function_that_is_not_monotone():
    def excess(x, level):
        return (math.log(x) - 1) ** 2 - level

    assert solve.first_root(excess, 0.25, 0.01, 100.0) == pytest.approx(math.exp(0.5), rel=1e-12)
    # A dip between two points of the grid, and one that does not reach.
    assert solve.first_root(excess, 1e-9, 0.01, 100.0, count=5) == pytest.approx(math.e, rel=1e-4)
    assert math.isnan(solve.first_root(excess, -1e-3, 0.01, 100.0))


@pytest.mark.usefixtures("x64")
def test_roots_are_differentiable_twice():
    def root(c):
        return solve.root(lambda x, c: x**3 - c, c, 0.0, 9.0)

    assert float(jax.grad(root)(5.0 * jnp.ones(()))) == pytest.approx(5 ** (-2 / 3) / 3, rel=1e-12)
    assert float(jax.grad(jax.grad(root))(jnp.float64(5.0))) == pytest.approx(-2 / 9 * 5 ** (-5 / 3), rel=1e-11)


# Scales


@pytest.mark.quick("laplace-wide-4.0-1e-06", "gaussian-1.0-1e-09")
@pytest.mark.parametrize(("epsilon", "delta"), TARGETS)
@over(LAWS, "laplace-wide", "gaussian", "merged", "staircase-0.3", "recycled-gaussian", "truncated-laplace")
def test_scaled_laws_meet_their_target_and_waste_nothing(law, epsilon, delta):
    D = 3.7
    m = calibrate.scaled(law, epsilon=epsilon, delta=delta, sensitivity=D)
    assert (m.sensitivity, m.epsilon, m.delta) == (D, epsilon, delta)
    assert realised(m) <= delta
    assert realised(m) == pytest.approx(delta, rel=1e-9, abs=2e-15)
    assert float(additive_profile(shrunk(m.noise, 1e-6), D, epsilon)) > delta * (1 - 1e-9) - 2e-15


@pytest.mark.quick("laplace", "recycled-laplace")
@over(LAWS, "laplace", "gaussian", "merged-narrow", "recycled-laplace", "truncated-gaussian-asymmetric")
def test_largest_shift(law):
    for epsilon, delta in ((0.5, 1e-4), (2.0, 0.2)):
        s = calibrate.largest_shift(law, epsilon, delta)
        assert float(additive_profile(law, s, epsilon)) <= delta
        assert float(additive_profile(law, s * (1 + 1e-9), epsilon)) > delta
        assert float(additive_profile(law, calibrate.infeasible_shift(law, epsilon, delta), epsilon)) > delta
        assert calibrate.smallest_scale(law, epsilon, delta, 2.0) == pytest.approx(2.0 / s, rel=1e-12)


def test_calibration_is_monotone_and_scales_with_the_sensitivity():
    random = np.random.default_rng(2)
    for _ in range(8):
        eps, delta, D = random.uniform(0.05, 5), 10 ** random.uniform(-10, -2), 10 ** random.uniform(-6, 6)
        s = calibrate.gaussian(epsilon=eps, delta=delta, sensitivity=D).noise.sigma
        assert calibrate.gaussian(epsilon=eps * 1.1, delta=delta, sensitivity=D).noise.sigma < s
        assert calibrate.gaussian(epsilon=eps, delta=delta * 1.5, sensitivity=D).noise.sigma < s
        assert calibrate.gaussian(epsilon=eps, delta=delta).noise.sigma * D == pytest.approx(s, rel=1e-12)


@pytest.mark.parametrize(("epsilon", "delta"), [*TARGETS[:5], (0.1, 1e-300)])
def test_analytic_gaussian(epsilon, delta):
    """Balle and Wang 2018, at 60 digits: safe up to rounding of delta, and within 1e-9 of the root."""
    sigma = calibrate.gaussian(epsilon=epsilon, delta=delta, sensitivity=2.0).noise.sigma

    def exact(s):
        with mpmath.workdps(400 if delta < 1e-100 else 60):
            half, slope = 2 / mpmath.mpf(s) / 2, mpmath.mpf(epsilon) * s / 2
            return float((mpmath.ncdf(half - slope) - mpmath.exp(epsilon) * mpmath.ncdf(-half - slope)) / delta)

    assert exact(sigma * (1 + 1e-9)) < 1 < exact(sigma * (1 - 1e-9))
    assert exact(sigma) < 1 + 1e-9


@pytest.mark.lengthy
def test_many_gaussians_are_calibrated_at_once():
    """Every entry meets its budget by all numbers that users get, is that of a call by itself, and wastes nothing."""
    random = np.random.default_rng(5)
    epsilon, D = 10 ** random.uniform(-6, 1.3, 30), 10 ** random.uniform(-2, 2, 30)
    delta = 10.0 ** np.concatenate(
        [random.uniform(-12, -0.31, 24), random.uniform(-280, -20, 4), [-291, np.log10(0.9)]]
    )
    batch = calibrate.gaussian(epsilon=epsilon, delta=delta, sensitivity=D)
    sigma = batch.noise.sigma
    for i, m in enumerate(batch):
        budget = {"epsilon": float(epsilon[i]), "delta": float(delta[i]), "sensitivity": float(D[i])}
        assert m == calibrate.gaussian(**budget)
        assert accountants.delta(m, epsilon[i]) <= delta[i]
        if i % 5 == 0:  # Of a search, which takes longer.
            assert accountants.epsilon(m, delta[i]) <= epsilon[i]
        if 1e-290 < delta[i] < 0.5:
            assert accountants.guarantee(m).epsilon(delta[i]) <= epsilon[i]
            narrower = dpk.gaussian(sigma=sigma[i] * (1 - 1e-10), sensitivity=budget["sensitivity"])
            assert accountants.delta(narrower, epsilon[i]) > delta[i]
    # The planted fault: budgets of neighbouring entries.
    moved = dpk.gaussian(sigma=np.roll(sigma / D, 1) * D, sensitivity=D)
    assert (accountants.delta(moved, epsilon) > delta).any()
    with pytest.raises(ValueError, match="delta: entry 1 is 1"):
        calibrate.gaussian(epsilon=1.0, delta=np.array([0.1, 1.0]))
    with pytest.raises(ValueError, match="do not broadcast"):
        calibrate.gaussian(epsilon=np.ones(3), delta=np.full(2, 0.1))


@pytest.mark.parametrize("row", REFERENCE["truncated_laplace_symmetric_sensitivity_1"])
def test_reference_rows(row):
    """B and the analytic Gaussian's sigma of every row, and their ratios."""
    budget = {"epsilon": row["eps"], "delta": row["delta"]}
    m, sigma = calibrate.truncated_laplace(**budget), calibrate.gaussian(**budget).noise.sigma
    assert float(m.noise.high) == pytest.approx(row["B"], rel=1e-12)
    assert sigma == pytest.approx(row["sigma"], rel=1e-9)
    assert float(m.absolute_error(0.0)) / sigma == pytest.approx(row["L1_ratio"], rel=1e-9)
    assert float(m.variance(0.0)) / sigma**2 == pytest.approx(row["L2_ratio"], rel=1e-9)
    assert realised(m) <= row["delta"]


def test_laplace_closed_form():
    for eps, delta in TARGETS:
        b = calibrate.laplace(epsilon=eps, delta=delta, sensitivity=2.0).noise.scale
        assert b == pytest.approx(2.0 / (eps - 2 * math.log1p(-delta)), rel=1e-9)


def test_merged_laplace_and_staircase_are_narrower_than_their_pure_forms():
    m = calibrate.scaled(dpk.MergedLaplace((2.0, 0.0, 1.0), (0.5, 1.0)), epsilon=1.0, delta=0.01)
    r, c = m.noise.rates, m.noise.breaks
    assert r[0] / r[2] == pytest.approx(2.0)
    assert (c[1] / c[0], c[0] * r[0]) == (pytest.approx(2.0), pytest.approx(1.0))
    steps = dpk.staircase(epsilon=1.0).noise
    assert calibrate.scaled(steps, epsilon=1.0, delta=0.01).noise.period < 1
    assert calibrate.scaled(steps, epsilon=1.0, delta=1e-12).noise.period == pytest.approx(1.0, rel=1e-9)


# Truncation


@pytest.mark.parametrize(("epsilon", "delta"), TARGETS)
def test_truncated_laplace(epsilon, delta):
    m = calibrate.truncated_laplace(epsilon=epsilon, delta=delta, sensitivity=0.3)
    assert realised(m) <= delta
    assert realised(m) == pytest.approx(delta, rel=1e-9)
    highest = float(named.symmetric_bound(epsilon, delta, 0.3))
    lowest = max(0.0, 0.3 / epsilon * math.log((math.expm1(epsilon) + delta) / (2 * delta)))
    skew = calibrate.truncated_laplace(epsilon=epsilon, delta=delta, sensitivity=0.3, upper=(lowest + highest) / 2)
    assert realised(skew) <= delta
    assert -skew.noise.low >= highest * (1 - 1e-12) >= skew.noise.high


@pytest.mark.parametrize("delta", [0.9, 0.3, 1e-3, 1e-6, 1e-12])
@pytest.mark.parametrize("ratio", [1e-3, 0.1, 1.0, 30.0, 1e4])
def test_equation_10(ratio, delta):
    """At 60 digits, from noise far narrower than the sensitivity to far wider."""
    T = named.truncation_bound(ratio * 2.0, delta, 2.0)

    def exact(T):
        with mpmath.workdps(60):
            s, end = mpmath.mpf(ratio * 2.0), mpmath.mpf(T)
            tail = mpmath.ncdf(-end / s)
            return float((mpmath.ncdf((2 - end) / s) - tail) / (1 - 2 * tail) / delta)

    assert exact(T) <= 1 + 1e-15 * (100 + 10 * ratio / delta**0.5)
    assert exact(T * (1 - 1e-9)) > 1


@pytest.mark.parametrize(("epsilon", "delta", "bound"), [(1.0, 1e-5, 18.0), (0.1, 0.02, 16.0), (5.0, 1e-5, 6.0)])
def test_truncated_gaussian_at_a_bound(epsilon, delta, bound):
    m = calibrate.truncated_gaussian(epsilon=epsilon, delta=delta, sensitivity=2.0, bound=2 * bound)
    kernel = m.noise.kernel
    assert meets_tightly(m, Reweighted(shrunk(kernel), -2 * bound, 2 * bound, 0.0))
    # No narrower one does, near or far.
    for share in np.geomspace(0.05, 0.999, 60):
        narrower = Reweighted(Gaussian(kernel.sigma * share), -2 * bound, 2 * bound, 0.0)
        assert float(additive_profile(narrower, 2.0, epsilon)) > delta


@pytest.mark.thorough
def test_least_bound():
    """Just above it there is a sigma, just below it none: delta is not monotone in sigma."""
    for epsilon, delta in ((1.0, 1e-3), (0.1, 0.1)):
        T = calibrate.least_truncation_bound(epsilon, delta)
        assert calibrate.truncated_gaussian(epsilon=epsilon, delta=delta, bound=T).delta == delta
        for sigma in np.geomspace(0.05, 50, 300) * T:
            law = Reweighted(Gaussian(sigma), -T * (1 - 1e-6), T * (1 - 1e-6), 0.0)
            assert float(additive_profile(law, 1.0, epsilon)) > delta


@pytest.mark.lengthy
def test_best_bound_has_the_least_variance():
    epsilon, delta = 0.1, 0.02
    best = calibrate.truncated_gaussian(epsilon=epsilon, delta=delta)
    T = best.noise.high
    assert realised(best) <= delta
    for share in (0.98, 0.999, 1.001, 1.02, 1.5):
        other = calibrate.truncated_gaussian(epsilon=epsilon, delta=delta, bound=T * share)
        assert other.worst_variance > best.worst_variance
    assert best.worst_variance < 0.92 * calibrate.gaussian(epsilon=epsilon, delta=delta).worst_variance


# Budget recycling

RECYCLING = [
    # Gaussian or Laplace kernel, theta, epsilon, delta, D
    (Gaussian(1.526), 5.0, 3.0, 1e-5, 1.0),
    (Gaussian(3.69), 1.0, 1.0, 1e-5, 1.0),  # Its own delta is above the target: only recycling brings it below.
    (Gaussian(9.8), 1.0, 2.0, 1e-5, 5.0),
    (Laplace(1.526), 1.3, 1.0, 1e-3, 1.1),
    (Laplace(2.0), 0.1, 1.0, 1e-6, 1.0),
    (MergedLaplace((0.9, 0.0, 0.35), (0.3, 0.7)), 2.0, 1.5, 1e-4, 1.0),
]


@pytest.mark.quick("kernel0*", "kernel3*")
@pytest.mark.parametrize(("kernel", "theta", "epsilon", "delta", "D"), RECYCLING)
def test_rate_is_the_largest(kernel, theta, epsilon, delta, D):
    m = calibrate.budget_recycled(kernel, theta=theta, epsilon=epsilon, delta=delta, sensitivity=D)
    q = 1 - m.noise.outside
    assert realised(m) <= delta
    for more in (1e-9, 1e-3, 0.03, 0.3, 0.9, 0.999):
        law = Reweighted(kernel, -theta, theta, (1 - q) * (1 - more))
        assert float(additive_profile(law, D, epsilon)) > delta


@pytest.mark.lengthy
@pytest.mark.parametrize(("kernel", "theta", "epsilon", "delta", "D"), RECYCLING)
def test_weighted_delta_is_convex_in_the_weight(kernel, theta, epsilon, delta, D):
    laws = [Reweighted(kernel, -theta, theta, u) for u in np.linspace(0, 1, 60)]
    weighted = np.array([law.total * additive_profile(law, D, epsilon) for law in laws])
    assert np.all(np.diff(weighted, 2) >= -1e-15 - 1e-13 * weighted[1:-1])


def test_delta_is_not_monotone_in_the_rate():
    """Hence no bisection from q = 0: this kernel is private for some q only, and not without recycling."""
    kernel, theta, epsilon, delta, D = RECYCLING[1]
    deltas = [float(additive_profile(Reweighted(kernel, -theta, theta, 1 - q), D, epsilon)) for q in (0, 0.5, 0.9)]
    assert deltas[0] > delta > deltas[1]
    assert deltas[2] > delta


def test_a_truncation_that_is_private_gives_the_last_rate_below_one():
    m = calibrate.budget_recycled(Gaussian(2.0), theta=5.0, epsilon=0.5, delta=0.2)
    assert 0 < m.noise.outside < 1e-14
    assert realised(m) <= 0.2


@pytest.mark.lengthy
@pytest.mark.parametrize(("theta", "q"), [(0.2, 0.6), (1.0, 0.9), (5.0, 0.9), (5.0, 0.9999), (1.0, 0.0)])
@pytest.mark.parametrize("kernel", [Gaussian, Laplace])
def test_kernel_for_a_rate(kernel, theta, q):
    """Its scale is the first from below; at theta = 5, q = 0.9 delta rises again in between."""
    m = calibrate.budget_recycled(kernel, theta=theta, q=q, epsilon=1.0, delta=1e-3)
    assert realised(m) <= 1e-3
    for share in [*np.geomspace(0.05, 0.999, 40), 1 - 1e-9]:
        law = Reweighted(calibrate.rescaled(m.noise.kernel, share), -theta, theta, 1 - q)
        assert float(additive_profile(law, 1.0, 1.0)) > 1e-3


def test_rate_and_kernel_are_each_others_inverse():
    m = calibrate.budget_recycled(Gaussian, theta=2.0, q=0.6, epsilon=1.0, delta=1e-4)
    again = calibrate.budget_recycled(m.noise.kernel, theta=2.0, epsilon=1.0, delta=1e-4)
    assert 1 - again.noise.outside == pytest.approx(0.6, rel=1e-9)


@pytest.mark.quick("0-*", "3-gaussian", "4-laplace")
@pytest.mark.parametrize("law", [calibrate.gaussian, calibrate.laplace])
@pytest.mark.parametrize("seed", range(5))
def test_a_kernel_that_meets_the_budget_alone_is_never_refused(law, seed):
    """Beyond a theta in its last tail recycling gains nothing, and q = 0 has no room but that of a rounding."""
    rng = np.random.default_rng(seed)
    target = {
        "epsilon": 10 ** rng.uniform(-1, 1),
        "delta": 10 ** rng.uniform(-9, -2),
        "sensitivity": 10 ** rng.uniform(-2, 2),
    }
    kernel = law(**target).noise
    m = calibrate.budget_recycled(kernel, theta=kernel.isf(10 ** rng.uniform(-30, -10)), **target)
    assert float(accountants.delta(m, m.epsilon)) <= m.delta


def test_tuned_kernel_is_the_best():
    common = {"theta": 1.0, "epsilon": 2.0, "delta": 1e-5}
    best = calibrate.budget_recycled(Gaussian, **common)
    for share in (0.995, 1.005, 1.1, 2.0):
        kernel = Gaussian(best.noise.kernel.sigma * share)
        q = calibrate.recycling_rate(kernel, 1.0, 2.0, 1e-5, 1.0)
        assert math.isnan(q) or Reweighted(kernel, -1.0, 1.0, 1 - q).acceptance < best.noise.acceptance


# Bounded mechanisms


@pytest.mark.skipif(not hasattr(accountants, "delta"), reason="accountants.delta is yet to come")
@pytest.mark.parametrize("constructor", [dpk.piecewise, dpk.duchi])
def test_bounded(constructor):
    m = calibrate.bounded(constructor, epsilon=1.0, delta=0.01, lower=0.0, upper=120.0)
    assert m.epsilon > 1.0
    assert float(accountants.delta(m, 1.0)) <= 0.01
    more = constructor(epsilon=m.epsilon * (1 + 1e-6), lower=0.0, upper=120.0)
    assert float(accountants.delta(more, 1.0)) > 0.01


# Derivatives


def differentiable():
    return {
        "largest-shift": (lambda s, e, d: calibrate.largest_shift(Laplace(s), e, d), (1.5, 0.7, 1e-2)),
        "gaussian": (
            lambda e, d, D: calibrate.gaussian(epsilon=e, delta=d, sensitivity=D).noise.sigma,
            (0.7, 1e-4, 2.0),
        ),
        "truncated-laplace": (
            lambda e, d, D: calibrate.truncated_laplace(epsilon=e, delta=d, sensitivity=D).noise.high,
            (0.7, 1e-4, 2.0),
        ),
        "equation-10": (named.truncation_bound, (2.0, 1e-6, 1.5)),
        "rate": (lambda s, t, e, d, D: calibrate.recycling_rate(Gaussian(s), t, e, d, D), RECYCLING_POINT),
        "kernel": (
            lambda t, q, e, d, D: calibrate.recycled_scale(Gaussian(1.0), t, q, e, d, D),
            (1.0, 0.5, 1.0, 1e-5, 1.0),
        ),
        "truncated-gaussian": (
            lambda T, e, d: calibrate.truncated_gaussian(epsilon=e, delta=d, bound=T).noise.kernel.sigma,
            (20.0, 1.0, 1e-5),
        ),
    }


RECYCLING_POINT = (1.526, 5.0, 3.0, 1e-5, 1.0)


# The searches for a first crossing take JAX many seconds to compile.
@pytest.mark.quick("equation-10")
@pytest.mark.parametrize("name", slow(differentiable(), "rate", "kernel", "truncated-gaussian"))
@pytest.mark.usefixtures("x64")
def test_gradients_are_finite_differences(name):
    function, at = differentiable()[name]
    value, gradient = jax.jit(jax.value_and_grad(lambda a: function(*a)))([jnp.float64(v) for v in at])
    assert float(value) == pytest.approx(float(function(*at)), rel=1e-12)
    for index, x in enumerate(at):
        up, down = ([*at[:index], x * (1 + h), *at[index + 1 :]] for h in (1e-5, -1e-5))
        numeric = (float(function(*up)) - float(function(*down))) / (2e-5 * x)
        assert float(gradient[index]) == pytest.approx(numeric, rel=1e-5)


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
def test_vmap_and_pytrees_of_several_kinds():
    eps = jnp.array([0.5, 1.0, 2.0])
    found = jax.jit(jax.vmap(lambda e: calibrate.gaussian(epsilon=e, delta=1e-5).noise.sigma))(eps)
    each = [calibrate.gaussian(epsilon=float(e), delta=1e-5).noise.sigma for e in eps]
    np.testing.assert_allclose(found, each, rtol=1e-12)
    mixed = MergedLaplace((jnp.float64(1.0), 0.0, 0.5), (0.4, 1.0))
    plain = MergedLaplace((1.0, 0.0, 0.5), (0.4, 1.0))
    assert float(calibrate.smallest_scale(mixed, 1.0, 1e-3, 1.0)) == pytest.approx(
        calibrate.smallest_scale(plain, 1.0, 1e-3, 1.0), rel=1e-12
    )


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_what_is_infeasible_is_nan_for_jax():
    assert jnp.isnan(calibrate.recycling_rate(Gaussian(jnp.float64(1.0)), 5.0, 1.0, 1e-5, 1.0))


# Planted faults: these tests tell a wrong accountant


def test_a_profile_five_percent_too_small_is_noticed(monkeypatch):
    monkeypatch.setattr(scale_module, "additive_profile", lambda *a: 0.95 * additive_profile(*a))
    with pytest.raises(NotPrivateError):
        calibrate.laplace(epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize("excess", [0.05, 1e-11])
def test_a_gaussian_root_that_is_too_large_is_noticed(monkeypatch, excess):
    log_delta = analytic_gaussian._log_delta
    monkeypatch.setattr(analytic_gaussian, "_log_delta", lambda *a: (log_delta(*a)[0] - excess, *log_delta(*a)[1:]))
    with pytest.raises(NotPrivateError):
        calibrate.gaussian(epsilon=1.0, delta=1e-5)


def test_a_root_from_the_wrong_side_is_noticed():
    m = calibrate.gaussian(epsilon=1.0, delta=1e-5)
    noise = shrunk(m.noise, 1e-9)
    assert not meets_tightly(named.gaussian(sigma=noise.sigma, sensitivity=1.0, epsilon=1.0, delta=1e-5), noise)


# Bad input


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: calibrate.gaussian(epsilon=0.0, delta=1e-5), r"epsilon: 0.* is not in \[1e-06, 20\]"),
        (lambda: calibrate.gaussian(epsilon=1.0, delta=0.0), r"delta: 0.* is not in \(0, 1\)"),
        (lambda: calibrate.laplace(epsilon=1.0, delta=1.0), r"delta: 1.* is not in \(0, 1\)"),
        (lambda: calibrate.gaussian(epsilon=1.0, delta=0.1, sensitivity=0.0), r"sensitivity: 0.* is not in \[1e-100, "),
        (lambda: calibrate.largest_shift(Laplace(1.0), -0.1, 0.1), r"epsilon: -0.1"),
        (
            lambda: calibrate.truncated_laplace(epsilon=0.7, delta=2.5e-6, upper=17.0),
            r"upper: 17 is not in \(17.456763012576296, inf\)",
        ),
        (
            lambda: calibrate.truncated_gaussian(epsilon=1.0, delta=1e-5, bound=15.0),
            r"bound: 15 is too short for epsilon, delta = 1, 1e-05; from 17.5974\d+ on",
        ),
        (lambda: calibrate.truncated_gaussian(epsilon=1.0, delta=1e-5, bound=-1.0), r"bound: -1"),
        (
            lambda: calibrate.budget_recycled(Gaussian(1.0), theta=5.0, epsilon=1.0, delta=1e-5),
            r"kernel: Gaussian\(sigma=1.0\) .* at no q; from 3.73063 times as wide",
        ),
        (lambda: calibrate.budget_recycled(Gaussian, theta=0.0, epsilon=1.0, delta=1e-5), r"theta: 0.* \(0, inf\)"),
        (lambda: calibrate.budget_recycled(Gaussian, theta=1.0, q=1.0, epsilon=1.0, delta=1e-5), r"q: 1.* \[0, 1\)"),
        (lambda: calibrate.budget_recycled(Gaussian, theta=1.0, q=-0.1, epsilon=1.0, delta=1e-5), r"q: -0.1"),
        (
            lambda: calibrate.budget_recycled(Gaussian(1.0), theta=1.0, q=0.5, epsilon=1.0, delta=0.1),
            r"q: 0.5; is calibrated",
        ),
    ],
)
def test_errors_say_what_is_feasible(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_an_unknown_law_is_an_error():
    with pytest.raises(TypeError, match="rescale dict"):
        calibrate.rescaled({}, 2.0)
    assert scale(calibrate.rescaled(LAWS["recycled-laplace"], 3.0)) == pytest.approx(
        3 * scale(LAWS["recycled-laplace"])
    )


def test_ends_move_until_the_profile_meets_a_small_delta():
    """Rounding alone left this one 1e-10 of delta above: the ends move further than by a few units of rounding."""
    eps, delta, D = 0.2064988334142934, 1.2236618107030035e-10, 0.04599655828730432
    mechanism = calibrate.truncated_laplace(epsilon=eps, delta=delta, sensitivity=D)
    assert accountants.delta(mechanism, epsilon=eps) <= delta
    plain = dpk.truncated_laplace(epsilon=eps, delta=delta, sensitivity=D)
    assert mechanism.noise.high == pytest.approx(plain.noise.high, rel=1e-5)


@pytest.mark.parametrize("kernel", ["gaussian", int, None, np.array(1.0)])
def test_a_kernel_that_is_no_distribution_is_refused(kernel):
    with pytest.raises(TypeError, match=r"^kernel: .* is no distribution; .*Gaussian or Laplace"):
        calibrate.budget_recycled(kernel, theta=1.0, epsilon=1.0, delta=0.1)


@pytest.mark.parametrize("seed", range(20))
def test_gaussian_constructor_meets_its_budget_by_every_bound(seed):
    """Both readings of the profile and both ends of the composed bound allow it; 1e-6 less noise is not private."""
    random = np.random.default_rng(seed)
    eps, delta, D = 10 ** random.uniform(-3, 1.3), 10 ** -random.uniform(0.01, 40), 10 ** random.uniform(-3, 3)
    m = dpk.gaussian(epsilon=eps, delta=delta, sensitivity=D)
    assert accountants.delta(m, eps) <= delta
    assert accountants.epsilon(m, delta) <= eps
    assert accountants.guarantee(m).delta(eps) <= delta
    assert accountants.guarantee(m).epsilon(delta) <= eps
    assert accountants.guarantee(dpk.gaussian(sigma=m.noise.sigma * (1 - 1e-6), sensitivity=D)).delta(eps) > delta
    assert m.noise.sigma == pytest.approx(calibrate.gaussian(epsilon=eps, delta=delta, sensitivity=D).noise.sigma, 1e-7)


def test_gaussian_constructor_takes_arrays_and_jax_numbers():
    eps = np.array([0.5, 1.0])
    batch = dpk.gaussian(epsilon=eps, delta=1e-6)
    assert [entry.noise.sigma for entry in batch] == [dpk.gaussian(epsilon=e, delta=1e-6).noise.sigma for e in eps]
    with jax.enable_x64(True):
        slopes = [
            jax.jit(jax.grad(lambda eps, make=make: make(epsilon=eps, delta=1e-6).noise.sigma))(jnp.asarray(1.0))
            for make in (dpk.gaussian, calibrate.gaussian)
        ]
    np.testing.assert_allclose(slopes[0], slopes[1], rtol=1e-8)


def test_gaussian_constructor_needs_sigma_or_a_budget():
    with pytest.raises(ValueError, match="sigma: missing; give it, or epsilon and delta"):
        dpk.gaussian(epsilon=1.0)
    assert dpk.gaussian(sigma=2.0).sensitivity == 1.0


def test_a_list_of_budgets_is_not_an_array_of_them():
    with pytest.raises(TypeError, match=r"epsilon: \[1.0, 2.0\] is a list; a number or an array is needed"):
        calibrate.gaussian(epsilon=[1.0, 2.0], delta=1e-5)
