"""Pairs of the user's own: densities by quadrature, tables, randomised response."""

from __future__ import annotations

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import slope_by_differences
from scipy import stats

import accountants
from accountants import density_pair, discrete_pair, guarantee, randomised_response
from accountants.closed_forms.pure import pure_delta
from accountants.dominating_pairs.additive import additive_pair
from accountants.dominating_pairs.base import DominatingPair, Mixed
from accountants.dominating_pairs.discrete import Atoms
from accountants.dominating_pairs.registry import dominating_pairs
from accountants.dominating_pairs.replaced import ReplacedBounded, ReplacedNoise
from accountants.dominating_pairs.sampled import Sampled
from dpkernels.distributions.discrete import DiscreteLaplace
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.distributions.student import Student
from dpkernels.mechanisms.additive import Additive

WHOLE = (-np.inf, np.inf)


def laplace(y, scale=2.0):
    return -np.abs(y) / scale - np.log(2 * scale)


def normal(y):
    return -(y**2) / 2 - np.log(2 * np.pi) / 2


# name: (pair, the same as noise)
KNOWN = {
    "gaussian": (lambda: density_pair(normal, lambda y: normal(y - 0.3), WHOLE), (Gaussian(1.0), 0.3)),
    "gaussian-far": (
        lambda: density_pair(lambda y: normal(y - 1e3), lambda y: normal(y - 1000.3), (-np.inf, 990, 1010, np.inf)),
        (Gaussian(1.0), 0.3),
    ),
    "laplace": (
        lambda: density_pair(laplace, lambda y: laplace(y - 0.7), (-np.inf, 0, 0.7, np.inf)),
        (Laplace(2.0), 0.7),
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["gaussian", *(pytest.param(n, marks=pytest.mark.slow) for n in list(KNOWN)[1:])])
def test_densities_of_noise_are_noise(name):
    make, (noise, D) = KNOWN[name]
    release, known_release = guarantee(make()).repeat(200), guarantee(Additive(noise), D).repeat(200)
    assert release.estimate_epsilon(1e-6) == pytest.approx(known_release.estimate_epsilon(1e-6), rel=1e-9)
    low, high = release.bracket(delta=1e-6)
    assert low <= known_release.estimate_epsilon(1e-6) <= high <= low * (1 + 1e-4)


@pytest.mark.slow
def test_samples_of_densities_are_samples_of_noise():
    release, known_release = (
        one.subsample(0.2).repeat(100)
        for one in (guarantee(KNOWN["gaussian"][0]()), guarantee(Additive(Gaussian(1.0)), 0.3))
    )
    assert release.estimate_epsilon(1e-6) == pytest.approx(known_release.estimate_epsilon(1e-6), rel=1e-9)
    low, high = release.bracket(delta=1e-6)
    assert low <= known_release.estimate_epsilon(1e-6) <= high


@pytest.mark.slow
def test_repeat_is_repeated_compose_and_the_order_does_not_matter():
    pair = KNOWN["gaussian"][0]()
    one, other = guarantee(pair).subsample(0.2).repeat(50), guarantee(Additive(Laplace(3.0)), 1.0).repeat(40)
    assert one.compose(one).estimate_epsilon(1e-6) == pytest.approx(one.repeat(2).estimate_epsilon(1e-6), rel=1e-10)
    assert one.compose(other).estimate_delta(3.0) == pytest.approx(other.compose(one).estimate_delta(3.0), rel=1e-10)


def exponential(rate):
    return lambda y: np.log(rate) - rate * y


@cache
def exponentials():
    """Whatever reads it is compiled for it, so there is one; its loss is bounded one way only."""
    return guarantee(density_pair(exponential(2.0), exponential(1.0), (0.0, np.inf)))


@pytest.mark.thorough
@pytest.mark.parametrize("eps", [0.0, 0.2, 0.6])
def test_one_report_of_two_exponentials(eps):
    """Either way, in closed form: the loss log 2 - y is above eps below a point, and minus it above another."""
    near, far = max(math.log(2) - eps, 0.0), math.log(2) + eps
    ways = (
        -math.expm1(-2 * near) + math.exp(eps) * math.expm1(-near),
        math.exp(-far) - math.exp(eps - 2 * far),
    )
    assert exponentials().estimate_delta(eps) == pytest.approx(max(ways), rel=1e-10)
    low, high = exponentials().bracket(epsilon=eps)
    assert low <= max(ways) * (1 + 1e-12)
    assert max(ways) * (1 - 1e-12) <= high <= low * (1 + 1e-3)


@pytest.mark.lengthy
def test_one_report_of_noise_is_its_exact_profile():
    """Far out too."""
    pair, eps = KNOWN["gaussian"][0](), np.array([0.0, 0.3, 1.5, 2.4])
    exact = accountants.delta(Additive(Gaussian(1.0)), eps, 0.3)
    np.testing.assert_allclose(guarantee(pair).estimate_delta(eps), exact, rtol=1e-9, atol=1e-22)
    assert guarantee(pair).estimate_epsilon(float(exact[2])) == pytest.approx(1.5, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("eps", [0.0, 0.1, 0.19, 0.1995])
def test_one_report_whose_loss_turns(eps):
    """Cauchy laws D apart: p > e^eps q between the roots of a quadratic; the largest loss is 2 asinh(D/2)."""
    D, a = 0.2, math.exp(eps)
    release = guarantee(
        density_pair(stats.cauchy.logpdf, lambda y: stats.cauchy.logpdf(y, loc=D), (-np.inf, 0.0, np.inf))
    )
    # 1 + (y - D)^2 = a (1 + y^2).
    roots = np.sort(np.roots([a - 1, 2 * D, a - 1 - D**2])) if eps else np.array([-np.inf, D / 2])
    (p_low, p_high), (q_low, q_high) = (stats.cauchy.cdf(roots, loc=by) for by in (0, D))
    assert release.estimate_delta(eps) == pytest.approx(p_high - p_low - a * (q_high - q_low), rel=1e-8, abs=1e-14)


def test_a_pair_and_its_mirror_are_one():
    release = guarantee(exponentials().terms[0].pairs[0].mirror()).repeat(5)
    np.testing.assert_allclose(release.bracket(epsilon=1.0), exponentials().repeat(5).bracket(epsilon=1.0), rtol=1e-6)


def test_supports_that_differ_have_infinite_losses():
    """Two uniform laws a shift apart: delta is the chance that a report falls outside one of them."""

    def uniform(start):
        return lambda y: np.where((y >= start) & (y <= start + 1), 0.0, -np.inf)

    release = guarantee(density_pair(uniform(0.0), uniform(0.01), (0.0, 0.01, 1.0, 1.01))).repeat(20)
    exact = 1 - 0.99**20
    low, high = release.bracket(epsilon=1.0)
    assert low <= exact * (1 + 1e-12)
    assert exact * (1 - 1e-12) <= high <= exact * (1 + 1e-6)


@pytest.mark.slow
def test_heavy_tails():
    """Cauchy, whose largest loss is in closed form."""
    D = 0.2
    release = guarantee(
        density_pair(stats.cauchy.logpdf, lambda y: stats.cauchy.logpdf(y, loc=D), (-np.inf, 0.0, np.inf))
    )
    largest = 2 * math.asinh(D / 2)
    release = release.repeat(30)
    low, high = release.bracket(delta=1e-6)
    assert low <= release.estimate_epsilon(1e-6) <= high
    assert release.bracket(epsilon=30 * largest)[0] == 0.0 < release.bracket(epsilon=0.8)[0]


@pytest.mark.slow
def test_the_rate_of_samples_stays_differentiable(x64):
    pair = KNOWN["gaussian"][0]()
    both = jax.value_and_grad(lambda r: guarantee(pair).subsample(r).repeat(100).estimate_epsilon(jnp.float64(1e-6)))
    known = jax.grad(
        lambda r: guarantee(Additive(Gaussian(1.0)), 0.3).subsample(r).repeat(100).estimate_epsilon(jnp.float64(1e-6))
    )
    assert float(both(jnp.float64(0.2))[1]) == pytest.approx(float(known(jnp.float64(0.2))), rel=1e-7)


@pytest.mark.parametrize(
    ("wrong", "kind", "message"),
    [
        (
            lambda: density_pair(lambda y: normal(y) + 1e-8, normal, WHOLE),
            ValueError,
            "^log_p: .*integrates to 1.00000001",
        ),
        (lambda: density_pair(normal, lambda y: normal(y) - 0.1, WHOLE), ValueError, "^log_q: .*integrates to 0.9048"),
        (lambda: density_pair(normal, normal, (0.0, np.inf)), ValueError, "^log_p: .*integrates to 0.5"),
        (lambda: density_pair(lambda y: normal(y - 5e4), normal, WHOLE), ValueError, "^log_p: .*integrates to 0 "),
        (lambda: density_pair(lambda y: np.log(y), normal, (-1.0, 1.0)), ValueError, "^log_p: is nan at -"),
        (lambda: density_pair(normal, lambda y: y + np.inf, WHOLE), ValueError, "^log_q: is inf at"),
        (lambda: density_pair(lambda y: y[0], normal, WHOLE), TypeError, "^log_p: gives shape"),
        (lambda: density_pair(1.0, normal, WHOLE), TypeError, "^log_p: .*not a function"),
        (lambda: density_pair(normal, normal, (0.0,)), ValueError, "^knots: "),
        (lambda: density_pair(normal, normal, (1.0, 0.0)), ValueError, "^knots: "),
        (lambda: density_pair(normal, normal, (-np.inf, np.nan)), ValueError, "^knots: "),
        # A jump that is no knot.
        (
            lambda: density_pair(lambda y: np.where(y < 0.3, 0.0, -np.inf) - np.log(0.3), lambda y: 0 * y, (0.0, 1.0)),
            ValueError,
            "not smooth near 0.3",
        ),
    ],
)
def test_what_is_no_density_is_refused(wrong, kind, message):
    with np.errstate(invalid="ignore"), pytest.raises(kind, match=message):
        wrong()


def test_functions_have_no_json_form():
    release = guarantee(KNOWN["gaussian"][0]())
    with pytest.raises(TypeError, match="Densities has no JSON form"):
        release.to_json()
    same = release
    assert release == same
    with pytest.raises(ValueError, match=r"^adjacency: .*Densities"):
        release.subsample(0.1, "replace")


@pytest.mark.lengthy
def test_estimated_masses_give_no_bound():
    pair = exponentials().terms[0].pairs[0]
    mixed = Mixed(0.4, pair, discrete_pair([0.5, 0.5], [0.5, 0.5]))
    for ask in (
        lambda: guarantee(pair).repeat(3).delta(1.0),
        lambda: guarantee(pair).epsilon(1e-3),
        lambda: guarantee(discrete_pair([0.6, 0.4], [0.4, 0.6])).compose(guarantee(mixed)).delta([0.1, 0.2]),
        lambda: accountants.delta(pair, 1.0),
        lambda: accountants.epsilon(pair, [0.1, 0.2]),
    ):
        with pytest.raises(ValueError, match=r"no bound is proven; .* for estimate_delta or estimate_epsilon"):
            ask()


# Tables


def test_tables_are_read_both_ways():
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.35, 0.45])
    release = guarantee(discrete_pair(p.tolist(), q))
    for eps in (0.0, 0.5, 0.85):
        deltas = [np.maximum(a - math.exp(eps) * b, 0.0).sum() for a, b in ((p, q), (q, p))]
        assert release.estimate_delta(eps) == pytest.approx(max(deltas), rel=1e-12)
    mixed = guarantee(Mixed(0.4, discrete_pair(p, q), discrete_pair([0.5, 0.5], [0.5, 0.5])))
    assert mixed.estimate_delta(0.85) == pytest.approx(0.4 * release.estimate_delta(0.85), rel=1e-12)
    assert mixed.estimate_delta(0.85) == guarantee(
        Mixed(0.4, discrete_pair(q, p), discrete_pair([0.5, 0.5], [0.5, 0.5]))
    ).estimate_delta(0.85)


@pytest.mark.parametrize(
    ("p", "q", "kind", "message"),
    [
        ([0.5, 0.4], [0.5, 0.5], ValueError, "^p: adds up to 0.9"),
        ([0.5, 0.5], [0.5, 0.5 + 1e-6], ValueError, "^q: adds up to 1.000001"),
        ([1.5, -0.5], [0.5, 0.5], ValueError, "^p: "),
        ([0.5, np.nan], [0.5, 0.5], ValueError, "^p: "),
        ([0.5, 0.5], [0.5, 0.25, 0.25], ValueError, "^q: has shape"),
        ([[0.5, 0.5]], [[0.5, 0.5]], ValueError, "^p: has shape"),
        ([], [], ValueError, "^p: has shape"),
        ("half", [1.0], TypeError, "^p: "),
    ],
)
def test_what_is_no_table_is_refused(p, q, kind, message):
    with pytest.raises(kind, match=message):
        discrete_pair(p, q)


# Randomised response


@pytest.mark.parametrize(("eps0", "k"), [(0.3, 2), (1.0, 3), (1.0, 4), (2.5, 11)])
def test_randomised_response_against_its_channel(eps0, k):
    """Every two categories, from the matrix of all probabilities."""
    channel = (np.ones((k, k)) + math.expm1(eps0) * np.eye(k)) / (math.exp(eps0) + k - 1)
    pair = randomised_response(eps0, categories=k)
    for eps in (0.0, 0.4 * eps0, 0.95 * eps0):
        gaps = np.maximum(channel[:, None] - math.exp(eps) * channel[None], 0.0).sum(-1)
        assert guarantee(pair).estimate_delta(eps) == pytest.approx(gaps.max(), rel=1e-12)
    assert 0.0 <= guarantee(pair).estimate_delta(eps0) <= 4e-15 * (1 + eps0)  # Rounded upwards.
    assert accountants.delta(pair, 0.0) == guarantee(pair).estimate_delta(0.0)
    assert accountants.epsilon(pair, 1e-9) == pytest.approx(eps0, rel=1e-6)


@pytest.mark.slow
def test_reports_of_two_categories_are_kairouz():
    reports = guarantee(randomised_response(0.5)).repeat(20)
    for eps in (1.0, 4.2):
        assert reports.estimate_delta(eps) == pytest.approx(float(pure_delta(0.5, 20, eps)), rel=1e-6)


def test_reports_of_many_categories_by_enumeration():
    p, q = (np.asarray(part) for part in (lambda pair: (pair.p, pair.q))(randomised_response(1.0, categories=5)))
    loss, mass = np.zeros(1), np.ones(1)
    for _ in range(6):
        loss = np.add.outer(loss, np.log(p) - np.log(q)).ravel()
        mass = np.multiply.outer(mass, p).ravel()
    reports = guarantee(randomised_response(1.0, categories=5)).repeat(6)
    for eps in (0.7, 2.3):
        exact = mass @ -np.expm1(np.minimum(eps - loss, 0.0))
        low, high = reports.bracket(epsilon=eps)
        assert low <= exact <= high <= low * (1 + 1e-3)


def test_randomised_response_is_differentiable(x64):
    def read(eps0):
        return accountants.delta(randomised_response(eps0, categories=4), jnp.float64(0.3))

    expected = slope_by_differences(lambda v: read(jnp.float64(v)), 1.0, 1e-3)
    assert float(jax.grad(read)(jnp.float64(1.0))) == pytest.approx(expected, rel=1e-6)


def test_randomised_response_with_replaced_records():
    one = guarantee(randomised_response(1.0, categories=4))
    low, high = one.subsample(0.2, "replace").bracket(epsilon=0.1)
    assert low <= 0.2 * one.estimate_delta(math.log1p(math.expm1(0.1) / 0.2)) <= high <= low * (1 + 1e-3)


@pytest.mark.parametrize(
    ("wrong", "kind", "message"),
    [
        (lambda: randomised_response(0.0), ValueError, "^epsilon: "),
        (lambda: randomised_response(math.inf), ValueError, "^epsilon: "),
        (lambda: randomised_response(1.0, categories=1), ValueError, "^categories: "),
        (lambda: randomised_response(1.0, categories=2.5), TypeError, "^categories: "),
    ],
)
def test_bad_randomised_response(wrong, kind, message):
    with pytest.raises(kind, match=message):
        wrong()


def test_large_budgets_do_not_overflow():
    pair = randomised_response(900.0, categories=3)
    assert isinstance(pair, Atoms)
    assert pair.p.sum() == pytest.approx(1.0)
    assert np.isfinite(pair.p).all()


@pytest.mark.parametrize(
    ("p", "q"),
    [
        ([0.9, 0.9], [0.5, 0.5]),
        ([1.1, -0.1], [0.5, 0.5]),
        ([np.nan, 1.0], [0.5, 0.5]),
        ([1.0], [0.5, 0.5]),
    ],
)
def test_a_bare_pair_of_no_laws_is_refused(p, q):
    with pytest.raises(ValueError, match=r"^[pq]: "):
        guarantee(Atoms(np.array(p), np.array(q)))


HALVES, NO_LAWS = np.array([0.6, 0.4]), np.array([0.9, 0.9])


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (Sampled(randomised_response(1.0), -0.5), "^rate: "),
        (Sampled(randomised_response(1.0), 1.5), "^rate: "),
        (Sampled(Atoms(NO_LAWS, NO_LAWS), 0.5), "^p: adds up"),
        (ReplacedBounded(randomised_response(1.0), 1.5), "^rate: "),
        (ReplacedBounded(Atoms(NO_LAWS, NO_LAWS), 0.5), "^p: adds up"),
        (
            ReplacedBounded(Atoms(HALVES, HALVES[::-1], within_sensitivity=True), 0.5),
            "^adjacency: .*twice the sensitivity",
        ),
        (ReplacedBounded(additive_pair(Laplace(1.0), 1.0), 0.5), "^pair: .*twice the sensitivity"),
        (ReplacedNoise(additive_pair(Laplace(1.0), 1.0), -0.5), "^rate: "),
        (ReplacedNoise(additive_pair(Student(1.0, 3.0), 1.0), 0.3), "^adjacency: .*Student"),
    ],
)
def test_a_bare_pair_on_samples_is_checked(pair, message):
    with pytest.raises(ValueError, match=message):
        guarantee(pair)


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("rate", [0.02, 0.5, 1.0])
def test_a_sampled_pair_is_that_of_the_mixture(rate, removed):
    """Every outcome of (r P + (1 - r) Q, Q), or of its mirror, for a pair that is not symmetric."""
    p, q = np.array([0.7, 0.2, 0.1, 0.0]), np.array([0.1, 0.35, 0.45, 0.1])
    first, second = (q, rate * p + (1 - rate) * q) if removed else (rate * p + (1 - rate) * q, q)
    pair, epsilon = Sampled(Atoms(p, q), rate, removed), np.array([0.0, 0.01, 0.1, 0.5, 1.5])
    exact = np.maximum(first - np.exp(epsilon)[:, None] * second, 0.0).sum(1)
    upper, lower = pair.hockey_stick()(epsilon), pair.lower_hockey_stick()(epsilon)
    rounding = 1e-16  # of the exact values, which are floats
    assert (lower <= exact + rounding).all()
    assert (exact <= upper + rounding).all()
    np.testing.assert_allclose(upper, lower, rtol=1e-10, atol=1e-13)


def test_every_pair_defines_its_check():
    """A pair without one would be accepted unchecked."""

    class Unchecked(Atoms):
        check = DominatingPair.check

    with pytest.raises(TypeError, match="check"):
        Unchecked(HALVES, HALVES[::-1])


NEAR = Atoms(HALVES, HALVES[::-1], within_sensitivity=True)
NOISE = additive_pair(Gaussian(1.0), 1.0)
(LATTICE,) = dominating_pairs(Additive(DiscreteLaplace(1.7, 1.0, 40)), 1.0)


@pytest.mark.parametrize(
    "pair",
    [
        *(Mixed(0.5, one, one) for one in (NEAR, NOISE, LATTICE)),
        Mixed(0.5, randomised_response(1.0), NEAR),
        Mixed(0.5, Mixed(0.5, NOISE, NOISE), randomised_response(1.0)),
        Sampled(NEAR, 0.5),
        Sampled(NOISE, 0.5),
    ],
)
def test_replaced_records_of_parts_within_a_sensitivity_are_refused(pair):
    """They may be twice the sensitivity apart, for which the parts have other distributions."""
    with pytest.raises(ValueError, match=r"^adjacency: .*twice the sensitivity"):
        guarantee(pair).subsample(0.9, "replace")
