"""Additive mechanisms: samples have their law, and named constructors the budgets and costs they state."""

from __future__ import annotations

import itertools
import math
import re

import jax
import mpmath
import numpy as np
import pytest
from noise_registry import LAWS, REFERENCE, ends, quadrature

import dpkernels as dpk
from accountants.dominating_pairs.registry import additive_profile
from dpkernels.budgets.filters import parse_charge
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.mechanisms import named
from dpkernels.mechanisms.additive import Additive

N = 1 << 18
SAMPLED = ("laplace-wide", "gaussian", "merged", "staircase-0.3", "staircase-1", "recycled-laplace")
SAMPLED += ("truncated-gaussian-asymmetric", "recycled-truncated")
# Massart's bound: a right library fails one of these with probability below 1e-6, were seeds drawn anew.
CRITICAL = math.sqrt(math.log(2 * len(SAMPLED) / 1e-6) / (2 * N))


def draws(law):
    x = np.resize(np.float32([-3, 0, 0.5, 40]), N)
    y = Additive(law).sample(dpk.simulation_key(11), x)
    assert y.dtype == np.float32
    return np.asarray(y, float) - x


def distance_from(law, z):
    ranks, u = np.arange(N) / N, np.sort(law.cdf(z))
    return max((u - ranks).max(), (ranks + 1 / N - u).max())


@pytest.mark.lengthy
@pytest.mark.quick("gaussian", "staircase-0.3", "recycled-laplace", "recycled-truncated")
@pytest.mark.parametrize("name", SAMPLED)
def test_samples_have_the_law(name):
    law = LAWS[name]
    z = draws(law)
    assert distance_from(law, z) < CRITICAL
    for factor in (1.05, 1 / 1.05):
        assert distance_from(law, factor * z) > CRITICAL
    mean, variance = quadrature(law, lambda t: t, *ends(law)), law.variance
    fourth = quadrature(law, lambda t: (t - mean) ** 4, *ends(law))
    assert abs(z.mean() - mean) < 6 * math.sqrt(variance / N)
    allowed = 6 * math.sqrt((fourth - variance**2) / N)
    square = np.mean((z - mean) ** 2)
    assert abs(square - variance) < allowed
    assert abs(1.05**2 * square - variance) > allowed


@pytest.mark.parametrize("name", ["laplace", "recycled-merged"])
def test_the_mechanism_is_the_law_shifted(name):
    law, x, y = LAWS[name], np.array([[-2.0], [5.5]]), np.linspace(-7, 11, 9)
    m = Additive(law)
    np.testing.assert_array_equal(m.pdf(y, x), law.prob(y - x))
    np.testing.assert_array_equal(m.cdf(y, x), law.cdf(y - x))
    np.testing.assert_allclose(m.cdf(m.icdf(np.array([0.01, 0.6]), x), x), [[0.01, 0.6]] * 2, rtol=1e-12)
    np.testing.assert_allclose(m.mean(x), x + law.mean, rtol=1e-15)
    assert m.worst_variance == law.variance
    for spread, cost in ((m.variance(x), law.variance), (m.absolute_error(x), law.absolute_moment)):
        np.testing.assert_array_equal(spread, np.full((2, 1), cost))
    assert m.atoms(x)[0].shape == (0, 2, 1)


@pytest.mark.lengthy
def test_samples_differentiate_in_x_and_scale():
    x, key = np.array([0.5, -2.0, 7.0], np.float32), dpk.simulation_key(3)
    z = Additive(Laplace(2.0)).sample(key, x) - x
    by_scale, by_x = jax.jacfwd(lambda b, t: Additive(Laplace(b)).sample(key, t), argnums=(0, 1))(2.0, x)
    np.testing.assert_allclose(by_scale, z / 2, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(by_x, np.eye(3), atol=1e-6)


def test_sampling_refuses_inputs_it_cannot_add_to():
    y = Additive(Laplace(1.0)).sample(dpk.simulation_key(0), np.float32([np.nan, np.inf, 1e31, 1.0]))
    assert np.isnan(y).tolist() == [True, True, True, False]


# Truncated Laplace


@pytest.mark.parametrize("row", REFERENCE["truncated_laplace_symmetric_sensitivity_1"])
def test_symmetric_truncated_laplace_reference(row):
    m = named.truncated_laplace(epsilon=row["eps"], delta=row["delta"])
    values = [m.noise.high, -m.noise.low, m.noise.absolute_moment, m.noise.variance, m.noise.mean + 1]
    np.testing.assert_allclose(values, [row["B"], row["B"], row["E_abs"], row["E_sq"], 1], rtol=1e-9)
    ratios = m.noise.absolute_moment / row["sigma"], m.noise.variance / row["sigma"] ** 2
    np.testing.assert_allclose(ratios, [row["L1_ratio"], row["L2_ratio"]], rtol=1e-9)
    assert additive_profile(Gaussian(row["sigma"]), 1.0, row["eps"]) == pytest.approx(row["delta"], rel=1e-8)


def feasible(eps, delta, D):
    scale = D / eps
    low = scale * math.log((math.expm1(eps) + delta) / (2 * delta))
    return low, scale * math.log(1 + math.expm1(eps) / (2 * delta))


BUDGETS = [(1.0, 1e-5, 1.0), (0.3, 1e-8, 7.0), (4.0, 1e-3, 0.2), (0.05, 2e-2, 3.0), (1.0, 0.4, 1.0), (0.1, 0.8, 1.0)]


@pytest.mark.parametrize(("eps", "delta", "D"), BUDGETS)
@pytest.mark.parametrize("share", [1e-9, 1e-4, 0.1, 0.5, 0.93, 1.0])
def test_asymmetric_truncated_laplace_spends_delta_exactly(eps, delta, D, share):
    low, high = feasible(eps, delta, D)
    low = max(low, 0.0)
    B = high if share == 1.0 else max(low + share * (high - low), low * (1 + 1e-12))
    m = named.truncated_laplace(epsilon=eps, delta=delta, sensitivity=D, upper=B)
    assert m.noise.high == B
    rounding = 1e-14 * D / eps * math.exp(B * eps / D)  # Of B, which the formula for A magnifies.
    assert -m.noise.low >= B - rounding
    realised = float(additive_profile(m.noise, D, eps))
    unit = 1e-14 * (1 + eps)  # Most of the mass has a loss of eps, next to which delta is rounded upwards.
    assert realised <= delta * (1 + 1e-9) + unit
    if B >= D:
        assert realised >= delta * (1 - 1e-7) - unit


def furthest(eps, delta, D):
    """The largest B: none where the nearer end has a least distance from 0."""
    odds = (math.expm1(eps) + delta) / delta
    return -D / eps * math.log(2 - odds) if odds < 2 else math.inf


@pytest.mark.parametrize("upper", [1e100, 1e200, 1e300, 1e308])
def test_an_end_that_no_noise_reaches_changes_no_moment(upper: float) -> None:
    """The square of the end overflowed: the variance was not a number, and the cost of the table neither."""
    with np.errstate(over="raise", invalid="raise"):
        farther = dpk.truncated_laplace(epsilon=1.0, delta=1e-6, sensitivity=1.0, upper=upper)
        nearer = dpk.truncated_laplace(epsilon=1.0, delta=1e-6, sensitivity=1.0, upper=1000.0)
        assert (float(farther.noise.mean), float(farther.noise.variance)) == (
            float(nearer.noise.mean),
            float(nearer.noise.variance),
        )
    assert 0 <= dpk.exact_sampler(farther).variance_cost < 1e-6


@pytest.mark.parametrize(("eps", "delta", "D"), BUDGETS)
@pytest.mark.parametrize("share", [1e-4, 0.1, 0.5, 0.9, 0.999])
def test_truncated_laplace_with_the_further_end_above(eps, delta, D, share):
    """|A| < |B|: the mirror image of the case that the source gives, delta spent exactly as there."""
    _, high = feasible(eps, delta, D)
    last = min(furthest(eps, delta, D), 3 * high)
    B = high + share * (last - high)
    m = named.truncated_laplace(epsilon=eps, delta=delta, sensitivity=D, upper=B)
    assert 0 < -m.noise.low < m.noise.high == B
    mirror = named.truncated_laplace(epsilon=eps, delta=delta, sensitivity=D, upper=-m.noise.low)
    # What rounding does to the nearer end the further one has e^(b/l) times.
    assert -mirror.noise.low == pytest.approx(B, abs=1e-13 * D / eps * math.exp(B * eps / D) + 1e-9 * B)
    realised = float(additive_profile(m.noise, D, eps))
    assert realised <= delta * (1 + 1e-9) + 1e-14 * (1 + eps)
    if -m.noise.low >= D:
        assert realised >= delta * (1 - 1e-7) - 1e-15


@pytest.mark.parametrize(("eps", "delta", "D"), BUDGETS)
def test_infeasible_ends_are_refused_with_the_feasible_interval(eps, delta, D):
    low, _ = feasible(eps, delta, D)
    last = furthest(eps, delta, D)
    for upper in (low - 1e-6 * D, last + 1e-6 * D if math.isfinite(last) else -1.0):
        with pytest.raises(ValueError, match=r"^upper: .*feasible") as error:
            named.truncated_laplace(epsilon=eps, delta=delta, sensitivity=D, upper=upper)
        feasible_interval = [float(end) for end in re.search(r"\((\S+), (\S+)\)", str(error.value)).groups()]
        np.testing.assert_allclose(feasible_interval, [max(low, 0.0), last], rtol=1e-8)


# Truncated Gaussian


def equation_10(T, s, D):
    T, s, D = (mpmath.mpf(value) for value in (T, s, D))
    reach = mpmath.ncdf((D - T) / s) - mpmath.ncdf(-T / s)
    return reach / (1 - 2 * mpmath.ncdf(-T / s))


@pytest.mark.parametrize(
    ("s", "delta", "D"),
    [(1.0, 1e-6, 1.0), (5.0, 1e-12, 1.0), (0.2, 1e-9, 3.0), (70.0, 1e-5, 0.5), (1e-3, 0.3, 2e-3), (2.0, 1e-30, 1.0)],
)
def test_truncation_bound_is_the_root_from_the_safe_side(s, delta, D):
    T = named.truncation_bound(s, delta, D)
    with mpmath.workdps(50):
        assert equation_10(T, s, D) <= delta * (1 + 1e-11)
        assert equation_10(T * (1 - 1e-9), s, D) > delta
    m = named.truncated_gaussian(sigma=s, delta=delta, sensitivity=D)
    assert (m.noise.low, m.noise.high) == (-T, T)
    # At a large eps only reports beyond the shifted support are lost.
    assert float(additive_profile(m.noise, D, 2 * T * D / s**2 + 1)) == pytest.approx(delta, rel=1e-8)


# Other constructors


@pytest.mark.parametrize("row", REFERENCE["merged_laplace_sensitivity_1"])
def test_merged_laplace_reference(row):
    rates, breaks, absolute, square = row
    m = named.merged_laplace(rates=rates, breaks=breaks)
    assert round(float(m.absolute_error(0.0)), 4) == absolute
    assert round(float(m.variance(0.0)), 4) == square


@pytest.mark.parametrize("row", REFERENCE["budget_recycling_exact_delta"])
def test_budget_recycling_reference(row):
    kernel = {"gaussian": Gaussian, "laplace": Laplace}[row["kernel"]](row["scale"])
    m = named.budget_recycled(kernel, theta=row["theta"], q=row["q"])
    assert float(m.noise.acceptance) == pytest.approx(row["acceptance"], rel=1e-9)
    assert float(m.noise.mass(-row["theta"], row["theta"])) == pytest.approx(row["acceptance"], rel=1e-9)


@pytest.mark.parametrize(("theta", "q"), list(itertools.product([0.03, 1.4, 9.0], [0.0, 0.4, 0.9999])))
def test_budget_recycling_acceptance(theta, q):
    for kernel in (Additive(Laplace(1.7)), named.gaussian(sigma=2.2)):
        kernel_tail = (
            math.exp(-theta / 1.7) if isinstance(kernel.noise, Laplace) else math.erfc(theta / 2.2 / math.sqrt(2))
        )
        m = named.budget_recycled(kernel, theta=theta, q=q)
        assert float(m.noise.acceptance) == pytest.approx((1 - kernel_tail) / (1 - q * kernel_tail), rel=1e-12)
        z = np.linspace(-12, 12, 45) + 0.01
        weight = np.where(np.abs(z) <= theta, 1.0, 1 - q) / (1 - q * kernel_tail)
        np.testing.assert_allclose(m.noise.prob(z), kernel.noise.prob(z) * weight, rtol=1e-12)


def test_pure_constructors():
    m = named.laplace(epsilon=0.4, sensitivity=3.0)
    assert (m.noise.scale, m.sensitivity, m.epsilon) == (pytest.approx(7.5), 3.0, 0.4)
    for eps in (0.2, 1.0, 6.0):
        best = named.staircase(epsilon=eps, sensitivity=2.0)
        neighbours = [
            named.staircase(epsilon=eps, sensitivity=2.0, gamma=best.noise.gamma + step) for step in (-0.01, 0.01)
        ]
        assert best.absolute_error(0.0) < min(neighbour.absolute_error(0.0) for neighbour in neighbours)
        assert best.absolute_error(0.0) <= named.laplace(epsilon=eps, sensitivity=2.0).absolute_error(0.0)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: named.laplace(epsilon=0.0), "epsilon"),
        (lambda: named.laplace(epsilon=1.0, sensitivity=-1.0), "sensitivity"),
        (lambda: named.gaussian(sigma=0.0), "sigma"),
        (lambda: named.gaussian(sigma=1.0, sensitivity=0.0), "sensitivity"),
        (lambda: named.gaussian(sigma=1.0, delta=1.5), "delta"),
        (lambda: named.gaussian(sigma=1.0, epsilon=30.0), "epsilon"),
        (lambda: named.truncated_laplace(epsilon=1.0, delta=0.0), "delta"),
        (lambda: named.truncated_laplace(epsilon=1.0, delta=1.0), "delta"),
        (lambda: named.truncated_laplace(epsilon=1.0, delta=1e-5, upper=np.nan), "upper"),
        (lambda: named.truncated_gaussian(sigma=-1.0, delta=1e-5), "sigma"),
        (lambda: named.truncated_gaussian(sigma=1.0, delta=0.0), "delta"),
        (lambda: named.truncated_gaussian(sigma=1.0, delta=1e-5, sensitivity=np.inf), "sensitivity"),
        (lambda: named.truncated_gaussian(sigma=1.0, delta=1e-5, bound=-1.0), "bound"),
        (lambda: named.staircase(epsilon=1.0, gamma=2.0), "gamma"),
        (lambda: named.merged_laplace(rates=(1.0,), breaks=(1.0,)), "rates"),
        (lambda: named.budget_recycled(Laplace(1.0), theta=0.0, q=0.5), "theta"),
        (lambda: named.budget_recycled(Laplace(1.0), theta=1.0, q=1.0), "q"),
        (lambda: named.budget_recycled(Laplace(1.0), theta=1.0, q=-0.1), "q"),
        (lambda: Additive(Laplace(1.0)).claim(sensitivity=0.0, epsilon=1.0, delta=0.1), "sensitivity"),
    ],
)
def test_errors_name_the_argument(make, name):
    with pytest.raises(ValueError, match=f"^{name}:"):
        make()


@pytest.mark.lengthy
def test_a_vector_is_charged_with_its_delta():
    vector = dpk.on_vectors(dpk.laplace(epsilon=0.5), dimensions=3, norm="l1")
    assert parse_charge(vector) == parse_charge(dpk.exact_sampler(vector).certificate) == parse_charge(0.5, 0)
