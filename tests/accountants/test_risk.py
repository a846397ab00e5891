"""Risks against closed forms, attacks that reach them, and their order."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtr, ndtri

import dpkernels as dpk
from accountants import discrete_pair, guarantee, randomised_response, shuffled
from accountants.composition.gaussian import GaussianProfile
from accountants.risk import _mu_above


def gaussian(mu):
    return guarantee(dpk.gaussian(sigma=1 / mu), 1.0)


def test_gaussian_noise():
    release, mu = gaussian(0.5).repeat(4), 1.0
    assert release.advantage() == pytest.approx(2 * ndtr(mu / 2) - 1, abs=1e-12)
    for rate in (1e-12, 1e-3, 0.1, 0.9):
        power = ndtr(mu + ndtri(rate))
        assert release.true_positive_rate(rate) == pytest.approx(power, rel=1e-11)
        low, high = release.bracket(false_positive_rate=rate)
        assert low - 1e-15 <= power <= high == release.true_positive_rate(rate)
        assert release.reconstruction(rate) == high
    fit = release.gaussian_mu()
    assert mu <= fit.mu <= mu * (1 + 1e-11)
    assert fit.error < 1e-11
    assert release.odds() == math.inf
    assert release.posterior(0.01) == 1.0


def test_randomised_response():
    """The report tells all: beliefs, odds and powers are reached by guessing what it says."""
    eps = math.log(3)
    release = guarantee(randomised_response(eps))
    assert release.advantage() == pytest.approx(0.5, abs=1e-12)
    assert release.true_positive_rate(0.25) == pytest.approx(0.75, abs=1e-12)
    assert release.odds() == pytest.approx(3.0, rel=1e-10)
    assert release.odds() >= 3.0
    assert release.posterior(0.5) == pytest.approx(0.75, rel=1e-10)
    np.testing.assert_allclose(
        release.posterior(np.array([0.0, 0.01, 1.0])), [0.0, 0.03 / (0.03 + 0.99), 1.0], rtol=1e-10
    )
    assert release.reconstruction(0.1) == pytest.approx(0.3, rel=1e-10)


@pytest.mark.parametrize("delta", [1e-12, 1e-3])
def test_odds_grow_by_more_with_probability_delta_at_most(delta):
    """Losses of Gaussian noise are normal. The odds that a profile allows are those of the likeliest event."""
    release, mu = gaussian(1.0), 1.0
    odds = release.odds(delta)
    assert ndtr(-(math.log(odds) - mu**2 / 2) / mu) < delta
    exact = delta / ndtr(ndtri(delta) - mu)
    assert exact <= odds <= exact * (1 + 1e-2)
    assert release.posterior(0.5, delta) == pytest.approx(odds / (1 + odds), rel=1e-9)
    assert release.posterior(0.1, delta) < release.posterior(0.1) == 1.0


@pytest.mark.lengthy
def test_odds_of_jax_numbers_have_derivatives(x64):
    def odds(sigma):
        return guarantee(dpk.gaussian(sigma=sigma), 1.0).repeat(3).odds(1e-6)

    assert odds(jnp.asarray(2.0)) == pytest.approx(odds(2.0), rel=1e-6)
    slope = (odds(2.0 + 1e-3) - odds(2.0 - 1e-3)) / 2e-3
    assert jax.grad(odds)(jnp.asarray(2.0)) == pytest.approx(slope, rel=1e-3)


def test_inputs_that_are_never_confused():
    fit = guarantee(discrete_pair([1.0, 0.0], [0.0, 1.0])).gaussian_mu()
    assert fit == (math.inf, 0.0)


def test_corners_of_inexact_lines_cover_the_curve_up_to_the_diagonal():
    """Steep lines whose delta is too small cross the diagonal after that of eps = 0."""
    eps, delta = np.array([0.0, 0.5, 2.0]), np.array([0.4, 0.25, 0.02])
    mu = _mu_above(eps, delta, 1e-3)
    alpha = np.linspace(1e-3, np.max((1 - delta) / (1 + np.exp(eps))), 2001)
    height = np.max(1 - delta - np.exp(eps) * alpha[:, None], 1)
    assert np.all(ndtr(-ndtri(alpha) - mu) <= height + 1e-12)


@pytest.mark.parametrize(
    "made",
    [
        guarantee(dpk.laplace(epsilon=1.0)),
        guarantee(dpk.hybrid(epsilon=0.5, lower=0.0, upper=1.0)).repeat(4),
        pytest.param(guarantee(dpk.gaussian(sigma=1.0), 1.0).subsample(0.05).repeat(50), marks=pytest.mark.thorough),
        pytest.param(
            shuffled(dpk.exact_sampler(dpk.piecewise(epsilon=2.0, lower=0.0, upper=1.0)), 1000),
            marks=pytest.mark.lengthy,
        ),
    ],
    ids=["laplace", "local", "training", "shuffled"],
)
def test_the_gaussian_contains_the_curve_and_touches_it(made):
    smallest = 1e-3
    fit = made.gaussian_mu(smallest)
    alpha = np.append(np.geomspace(smallest, 0.5, 8), 0.7)
    curve = np.array([made.bracket(alpha=a)[1] for a in alpha])
    gaussian_curve = ndtr(-ndtri(alpha) - fit.mu)
    inside = curve >= smallest
    assert np.all(gaussian_curve[inside] <= curve[inside] + 1e-12)
    # A mu that is 5 % smaller does not contain it.
    fine = np.geomspace(smallest, 0.5, 20)
    curve = made.estimate_trade_off(fine)
    assert np.any(ndtr(-ndtri(fine) - 0.95 * fit.mu) > curve)
    # The error: both errors of the Gaussian's tests, increased by it, are those of tests here.
    eps = np.linspace(0.0, 5.0, 21)
    log_delta = GaussianProfile((), np.float64(fit.mu)).evaluate(eps)[0]
    assert np.all(np.exp(log_delta) <= made.estimate_delta(eps) + (fit.error + 1e-3) * (1 + np.exp(eps)))


def test_a_larger_budget_has_larger_risks():
    small, large = (guarantee(dpk.laplace(epsilon=0.2)).repeat(n) for n in (3, 6))
    assert small.advantage() < large.advantage()
    assert small.true_positive_rate(0.01) < large.true_positive_rate(0.01)
    assert small.posterior(0.1) < large.posterior(0.1)
    assert small.odds(1e-6) < large.odds(1e-6)


@pytest.mark.lengthy
def test_attacks_on_shuffled_reports_reach_no_more():
    """The count of reports of the first half, of people at one end and one person at either: a binomial test."""
    n, eps = 20, 1.0
    table = np.array([[math.exp(eps), 1.0], [1.0, math.exp(eps)]]) / (1 + math.exp(eps))
    reports = shuffled(table, n)
    from scipy.stats import binom

    k = np.arange(n + 1)
    p = table[0, 0]
    q = binom.pmf(k, n, p)  # All at 0.
    one = 1 - p  # One person at 1.
    other = binom.pmf(k, n - 1, p) * (1 - one) + np.append(0.0, binom.pmf(k[:-1], n - 1, p)) * one
    for first, second in ((q, other), (other, q)):
        order = np.argsort(-second / first)
        level, power = np.cumsum(first[order]), np.cumsum(second[order])
        for index in (3, 10):
            assert power[index] <= reports.true_positive_rate(min(level[index], 1.0)) + 1e-12


def test_errors_name_the_argument():
    release = guarantee(dpk.laplace(epsilon=1.0))
    for call, name in (
        (lambda: release.true_positive_rate(1.5), "false_positive_rate"),
        (lambda: release.posterior(-0.1), "prior"),
        (lambda: release.reconstruction(2.0), "prior"),
        (lambda: release.odds(1.0), "delta"),
        (lambda: release.gaussian_mu(0.5), "smallest"),
    ):
        with pytest.raises(ValueError, match=f"^{name}: "):
            call()


BATCH = dpk.laplace(epsilon=np.array([0.1, 0.2, 0.1]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: guarantee(dpk.gaussian(sigma=1.0), 1.0),
        pytest.param(lambda: guarantee(BATCH), marks=pytest.mark.lengthy),
        pytest.param(lambda: guarantee(BATCH, people="different"), marks=pytest.mark.thorough),
        pytest.param(lambda: shuffled(np.array([[0.75, 0.25], [0.25, 0.75]]), 20), marks=pytest.mark.thorough),
        pytest.param(
            lambda: guarantee(dpk.laplace(epsilon=1.0)).random_allocation(4).repeat(2), marks=pytest.mark.thorough
        ),
    ],
    ids=["composed", "batch", "people", "shuffled", "allocation"],
)
def test_every_kind_of_guarantee_has_every_risk(make):
    release = make()
    assert 0 < release.true_positive_rate(0.1) == release.reconstruction(0.1) < 1
    assert release.trade_off(0.1) == pytest.approx(1 - release.true_positive_rate(0.1), abs=1e-12)
    assert release.gaussian_mu().mu > 0
    assert math.exp(release.epsilon(1e-6)) <= release.odds(1e-6) <= release.odds()
    text = str(release.report(1e-6))
    assert release.neighbouring in text


@pytest.mark.lengthy
def test_a_report_says_what_the_methods_do(tmp_path):
    release = guarantee(dpk.laplace(epsilon=1.0)).repeat(3)
    report = release.report(1e-6)
    numbers = report.to_dict()
    assert numbers["epsilon"] == release.epsilon(1e-6)
    assert numbers["beliefs"][2] == {"prior": 0.5, "at_most": release.posterior(0.5, 1e-6)}
    assert numbers["true_positive_rates"][1] == {
        "false_positive_rate": 0.01,
        "at_most": release.true_positive_rate(0.01),
    }
    json.dumps(numbers)
    text = str(report)
    for share in (release.posterior(0.1, 1e-6), release.true_positive_rate(0.1), (1 + release.advantage()) / 2):
        printed = [float(word) for word in text.split() if word.replace(".", "").isdigit()]
        assert any(0 <= number - 100 * share < 0.1 + 1e-9 for number in printed)
    report.plot(tmp_path / "risk.png")
    assert (tmp_path / "risk.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"^delta: "):
        release.report(0.0)
