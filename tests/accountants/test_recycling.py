"""Budget recycling: exact accounting, acceptance under sampling noise, the published formulas and where they fail."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from noise_registry import LAWS, REFERENCE, over, scale
from scipy.stats import norm

from accountants import calibrate, recycling
from accountants.dominating_pairs.registry import additive_profile
from accountants.published import recycling as published
from benchmarks import literature_recycling as literature
from benchmarks import recycling as tables
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace

DELTA = 1e-5
KERNELS = {"gaussian": Gaussian, "laplace": Laplace}

# Derivations, section 3: D, eps, kernel alone, published algorithms, exact (a lower bound: that search was coarse).
TABLE = [
    (1.0, 1.0, 0.2113, 0.2324, 0.3951),
    (1.0, 2.0, 0.3840, 0.4663, 0.7597),
    (1.0, 3.0, 0.5279, 0.7037, 0.9122),
    (5.0, 2.0, 0.0799, 0.1329, 0.3497),
    (5.0, 3.0, 0.1144, 0.2942, 0.6438),
]


# Exact


@pytest.mark.parametrize("row", REFERENCE["budget_recycling_exact_delta"])
def test_reference_profile_and_acceptance(row):
    kernel = KERNELS[row["kernel"]](row["scale"])
    delta = recycling.profile(kernel, row["theta"], row["q"], row["sensitivity"], row["eps"])
    assert float(delta) == pytest.approx(row["delta"], rel=1e-9)
    law = recycling.recycled(kernel, row["theta"], row["q"])
    assert float(recycling.acceptance(law, row["theta"])) == pytest.approx(row["acceptance"], rel=1e-12)


@pytest.mark.lengthy
@pytest.mark.parametrize("s", [0.05, 0.8, 6.0])
@over(LAWS, "laplace", "gaussian", "merged", "recycled-gaussian", "recycled-laplace", "truncated-laplace")
def test_acceptance_with_sampling_noise_is_the_integral(law, s):
    """By the midpoint rule on the quantiles of the sampling noise, where the mass is continuous."""
    s, theta = s * scale(law), 1.2 * scale(law)
    u = (np.arange(400_000) + 0.5) / 400_000
    x = s * norm.ppf(u)
    plain = law.mass(-theta - x, theta - x).mean()
    assert float(recycling.acceptance(law, theta, s)) == pytest.approx(float(plain), rel=2e-6)


def test_acceptance_closed_form_for_gaussians():
    for sigma, s, theta in ((1.0, 0.3, 0.7), (0.2, 5.0, 3.0), (4.0, 1e-3, 1.0), (1e4, 3e4, 1e3), (1.0, 1e-12, 0.5)):
        exact = math.erf(theta / math.hypot(sigma, s) / math.sqrt(2))
        assert float(recycling.acceptance(Gaussian(sigma), theta, s)) == pytest.approx(exact, rel=1e-12)


@over(LAWS, "laplace", "recycled-gaussian", "staircase-0.3", "recycled-truncated")
def test_acceptance_goes_over_into_that_without_sampling_noise(law):
    theta = 0.9 * scale(law)
    plain = float(law.mass(-theta, theta))
    assert float(recycling.acceptance(law, theta)) == pytest.approx(plain, rel=1e-14)
    assert float(recycling.acceptance(law, theta, 1e-13 * scale(law))) == pytest.approx(plain, rel=1e-11)


def test_acceptance_is_found_by_sampling():
    """A hundred thousand draws; a false alarm is a deviation of six standard errors, 2e-9."""
    random, law, theta, s = np.random.default_rng(11), recycling.recycled(Laplace(1.3), 1.0, 0.7), 1.0, 0.6
    z = law.icdf(random.uniform(size=100_000)) + s * random.standard_normal(100_000)
    p = float(recycling.acceptance(law, theta, s))
    error = math.sqrt(p * (1 - p) / z.size)
    assert abs((np.abs(z) <= theta).mean() - p) < 6 * error
    assert abs((np.abs(z) <= theta).mean() - float(recycling.acceptance(law, theta, 1.05 * s))) > error


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
def test_gradient_of_acceptance():
    def found(values):
        b, theta, q, s = values
        return recycling.acceptance(recycling.recycled(Laplace(b), theta, q), theta, s)

    point = np.array([1.1, 0.8, 0.55, 0.6])
    gradient = jax.jit(jax.grad(found))(jnp.asarray(point))
    for index in range(4):
        h = np.eye(4)[index] * 1e-6
        assert float(gradient[index]) == pytest.approx(float(found(point + h) - found(point - h)) / 2e-6, rel=1e-7)


# As published


@pytest.mark.thorough
@pytest.mark.parametrize("row", TABLE)
def test_published_against_exact(row):
    """The derivations' table: its published numbers to all their digits, its exact ones or better."""
    D, eps, alone, published, exact = row
    acceptances = tables.acceptances(D, eps)
    assert [round(value, 4) for value in acceptances[:2]] == [alone, published]
    assert acceptances[1] < acceptances[2] <= acceptances[3] + 1e-9
    assert exact <= acceptances[3] < exact * 1.02


def test_algorithm_one_is_unsound_for_a_wide_theta():
    kernel = Gaussian(calibrate.smallest_scale(Gaussian(1.0), 2.7, DELTA, 1.0))
    q = published.published_rate(kernel, 5.0, 3.0, DELTA, 1.0)
    assert round(q, 3) == 0.729
    assert float(published.published_profile(kernel, 5.0, q, 1.0, 3.0)) == pytest.approx(DELTA, rel=1e-9)
    true = float(recycling.profile(kernel, 5.0, q, 1.0, 3.0))
    assert true == pytest.approx(1.23e-3, rel=1e-3)
    exact = calibrate.recycling_rate(kernel, 5.0, 3.0, DELTA, 1.0)
    assert exact < q
    assert float(recycling.profile(kernel, 5.0, exact, 1.0, 3.0)) <= DELTA


@pytest.mark.thorough
@pytest.mark.parametrize(("D", "eps", "times"), [(1.0, 1.0, 2.0), (5.0, 3.0, 3.11), (5.0, 4.0, 4.09)])
def test_algorithm_two_exceeds_the_target_with_laplace_kernels(D, eps, times):
    choice = published.published_budget(Laplace, theta=1.0, epsilon=eps, delta=DELTA, sensitivity=D)
    true = float(recycling.profile(choice.kernel, 1.0, choice.q, D, eps))
    assert true / DELTA == pytest.approx(times, rel=5e-3)


def test_published_profile_without_redraws_is_the_kernels():
    eps = np.linspace(0, 3, 5)
    for kernel in (Gaussian(1.3), Laplace(0.8)):
        delta = published.published_profile(kernel, 1.0, 0.0, 1.0, eps)
        np.testing.assert_allclose(delta, additive_profile(kernel, 1.0, eps), rtol=1e-13)


@pytest.mark.parametrize("q", [0.0, 1e-6, 0.3, 0.9, 1.0])
@pytest.mark.parametrize(("sigma", "theta", "s"), [(1.0, 0.2, 0.0), (2.0, 3.0, 0.0), (5.0, 1.0, 4.0), (1.0, 8.0, 0.1)])
def test_the_printed_acceptance_rate_is_no_probability(sigma, theta, s, q):
    """Equations 10 and 13 as printed, by 40 digits; what they are is said of the function."""
    with mpmath.workdps(40):
        inside = mpmath.erf(theta / mpmath.sqrt(2 * (mpmath.mpf(sigma) ** 2 + mpmath.mpf(s) ** 2)))
        printed = 1 - mpmath.mpf(q) + mpmath.mpf(q) / inside
        rate = published.published_acceptance_rate(sigma, theta, q, s)
        assert float(rate) == pytest.approx(float(printed), rel=1e-14)
        assert rate >= 1
        true = inside / (1 - (1 - inside) * mpmath.mpf(q))
        released = float(published.published_acceptance_rate(sigma, theta, 1 - q, s))
        assert 1 / released == pytest.approx(float(true), rel=1e-14)
        assert printed * inside >= true * (1 - mpmath.mpf(10) ** -35)
        if 0 < q < 1 and inside < 0.9:
            assert printed * inside > true * (1 + mpmath.mpf(10) ** -8)


def test_both_readings_of_a_redraw_by_enumeration():
    """Noise on five points: deciding at every draw is the true rate, deciding once what eq. (10) times B says."""
    chance, within, q = np.array([0.1, 0.2, 0.3, 0.25, 0.15]), np.array([0, 0, 1, 1, 0], bool), 0.6
    inside = float(chance[within].sum())
    anew, once, drawing = 0.0, 0.0, 1.0
    once += inside
    for _ in range(400):  # What is still drawn after so many falls below a float.
        anew += drawing * inside
        drawing *= (1 - inside) * q
    once += (1 - inside) * q  # Redrawn until it is within.
    assert anew == pytest.approx(inside / (1 - (1 - inside) * q), rel=1e-14)
    printed = 1 - q + q / inside
    assert once == pytest.approx(printed * inside, rel=1e-14)
    assert once - anew > 0.05


@pytest.mark.thorough
def test_equation_thirteen_claims_what_it_cannot():
    """At n = 300 and p = 0.584 its reciprocal, which the sources' search maximises, is 0.791; the truth is 0.125."""
    n, p, share = 300, 0.584, 0.1
    at = literature.count_on_sample(n, p)
    s = float(recycling.sampling_noise_count(share, n, p))
    claimed = 1 / published.published_acceptance_rate(at.sigma, 3.0, at.q, s)
    assert float(claimed) == pytest.approx(0.791, abs=5e-4)
    true = recycling.acceptance(recycling.recycled(Gaussian(at.sigma), 3.0, at.q), 3.0, s)
    assert float(true) == pytest.approx(0.125, abs=5e-4)
    assert math.erf(3.0 / s / math.sqrt(2)) < claimed  # More than without any noise.


def test_weight_is_the_mass_that_leaves_the_inside():
    z = np.random.default_rng(3).normal(0, 1.4, 400_000)
    for theta, D in ((1.0, 0.3), (1.0, 1.7), (0.4, 5.0)):
        leaves = (np.abs(z) <= theta) & (z + D > theta)
        assert float(published.published_weight(Gaussian(1.4), theta, D)) == pytest.approx(leaves.mean(), abs=5e-3)


def test_weight_is_equation_seven():
    """As printed, max over both sides, for 500 random kernels, thetas and sensitivities."""
    random = np.random.default_rng(7)
    for kind in (Gaussian, Laplace):
        for width, theta, D in np.exp(random.normal(0, 1.5, (250, 3))):
            kernel = kind(width)
            low, high = -theta, theta
            sides = (
                kernel.cdf(min(low + D, high)) - kernel.cdf(low),
                kernel.cdf(high + D) - kernel.cdf(max(high, low + D)),
            )
            assert float(published.published_weight(kernel, theta, D)) == pytest.approx(max(sides), abs=1e-15)


def test_baseline():
    q = float(published.published_baseline_rate(2.0, 1.5))
    assert q == pytest.approx(1 - math.exp(-0.5), rel=1e-12)
    for theta in (0.1, 1.0, 4.0):
        assert float(recycling.profile(Laplace(1 / 1.5), theta, q, 1.0, 2.0 + 1e-9)) < 1e-15


@pytest.mark.lengthy
def test_published_rate_is_nan_for_a_kernel_that_is_not_private_enough():
    assert math.isnan(published.published_rate(Gaussian(1.0), 1.0, 1.0, DELTA, 1.0))


def test_composition_of_one_and_of_two():
    kernel, theta, q, D, eps = Gaussian(4.0), 1.5, 0.3, 1.0, 0.8
    W = float(published.published_weight(kernel, theta, D))

    def composed(count):
        return lambda e: additive_profile(kernel, math.sqrt(count) * D, e)

    once = published.published_composition(composed(1), W, q, 1, eps)
    assert once == pytest.approx(float(published.published_profile(kernel, theta, q, D, eps)), rel=1e-12)
    Lq, two = -math.log1p(-q), composed(2)
    terms = ((1 - W) ** 2 * two(eps), 2 * W * (1 - W) * two(eps - Lq), W**2 * two(eps - 2 * Lq))
    assert published.published_composition(two, W, q, 2, eps) == pytest.approx(float(sum(terms)), rel=1e-12)


def test_composition_without_redraws_is_the_kernels():
    sigma = 30.74956613197745
    delta = published.published_composition(
        lambda e: additive_profile(Gaussian(sigma), math.sqrt(1000), e), 0.03, 0.0, 1000, 4.0
    )
    assert delta == pytest.approx(7.8155977912139e-05, rel=1e-9)


# On a sample


def test_sampling_noise_by_simulation():
    """Samples of fixed size from a population; the formulas are for large ones."""
    random, n, p = np.random.default_rng(8), 4000, 0.3
    x = random.gamma(2.0, 3.0, n)
    picks = [random.choice(x, int(p * n), replace=False) for _ in range(3000)]
    sums = np.array([pick.sum() / p for pick in picks])
    counted = np.array([(pick > 6).sum() / p for pick in picks])
    assert sums.std() == pytest.approx(recycling.sampling_noise_sum(x.std(), n, p), rel=0.08)
    assert (sums / n).std() == pytest.approx(recycling.sampling_noise_mean(x.std(), n, p), rel=0.08)
    assert counted.std() == pytest.approx(recycling.sampling_noise_count((x > 6).mean(), n, p), rel=0.08)
    assert recycling.sampling_noise_sum(3.0, 100, 1.0) == 0


@pytest.mark.thorough
def test_sampling_helps_only_as_published():
    """With the right sensitivity D/p all the data are best; with D held fixed a sample seems better."""

    def accepted(kernel, rate, **more):
        report = recycling.subsampled_recycling(kernel, rate=rate, theta=2.0, epsilon=0.5, delta=DELTA, **more)
        return float(report.acceptance)

    fixed = {"sensitivity_at": published.published_sensitivity}
    assert accepted(Laplace, 0.3) < accepted(Laplace, 1.0) < accepted(Laplace, 0.3, **fixed)
    # A count among a hundred records: what sampling them adds is more than the 1 % of Gaussian noise it saves.
    sampling = {"sampling_noise": recycling.sampling_noise_count(0.3, 100, 0.8)}
    on_all_data = accepted(Gaussian, 1.0)
    assert accepted(Gaussian, 0.8, **sampling) < on_all_data < accepted(Gaussian, 0.8)
    assert on_all_data < accepted(Gaussian, 0.3, **fixed)


def test_a_sample_of_all_the_data_is_the_whole():
    kernel = Laplace(1.3)
    report = recycling.subsampled_recycling(kernel, theta=1.1, rate=1.0, epsilon=1.0, delta=1e-4)
    same = calibrate.budget_recycled(kernel, theta=1.1, epsilon=1.0, delta=1e-4)
    assert report.mechanism == same
    assert report.acceptance == pytest.approx(float(same.noise.acceptance), rel=1e-12)


def test_the_claim_on_the_sample_gives_that_on_the_whole():
    report = recycling.subsampled_recycling(
        Gaussian(9.0), theta=2.0, rate=0.4, epsilon=1.0, delta=1e-4, sampling_noise=0.5
    )
    claim = report.mechanism
    assert float(claim.sensitivity) == pytest.approx(1 / 0.4)
    assert math.log1p(0.4 * math.expm1(claim.epsilon)) == pytest.approx(1.0, rel=1e-12)
    assert 0.4 * claim.delta == pytest.approx(1e-4, rel=1e-12)
    assert float(additive_profile(claim.noise, claim.sensitivity, claim.epsilon)) <= claim.delta
    assert report.acceptance < float(claim.noise.acceptance)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: recycling.recycled(Laplace(1.0), 0.0, 0.5), r"theta: 0.* is not in \(0, inf\)"),
        (lambda: recycling.recycled(Laplace(1.0), 1.0, 1.0), r"q: 1.* is not in \[0, 1\)"),
        (lambda: recycling.recycled(Laplace(1.0), 1.0, -0.1), r"q: -0.1"),
        (lambda: recycling.profile(Laplace(1.0), 1.0, 0.1, -1.0, 1.0), r"sensitivity: -1"),
        (lambda: recycling.acceptance(Laplace(1.0), -1.0), r"theta: -1"),
        (lambda: recycling.acceptance(Laplace(1.0), 1.0, -0.5), r"sampling_noise: -0.5"),
        (lambda: published.published_budget(dict, theta=1.0, epsilon=1.0, delta=0.1), r"kernel: 'dict' is not one of"),
        (
            lambda: recycling.subsampled_recycling(Gaussian, theta=1.0, rate=1e-6, epsilon=1.0, delta=1e-5),
            r"rate: 1e-06 is not in \(1e-05, 1\]",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_benchmark_prints_tables():
    table = tables.markdown(["a", "b"], [["1", "2"]])
    assert table == "| a | b |\n| --- | --- |\n| 1 | 2 |"
    first = next(iter(tables.unsound_rows()))
    assert first[-3:] == ["0.7294", "0.00123", "123"]
