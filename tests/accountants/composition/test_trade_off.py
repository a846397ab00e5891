"""Trade-off curves: closed forms, quadrature, enumeration, and the properties that every curve has."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize
from scipy.special import ndtr, ndtri

import dpkernels as dpk
from accountants import discrete_pair, guarantee, randomised_response, shuffled
from accountants.composition import trade_off
from accountants.composition.brackets import refinement
from accountants.composition.brackets.refinement import GridBracket

ALPHAS = [1e-12, 1e-6, 0.05, 0.3, 0.45, 0.6, 0.999]


def gaussian_curve(mu, alpha):
    return float(ndtr(-ndtri(alpha) - mu))


def laplace_curve(eps, alpha):
    if alpha < math.exp(-eps) / 2:
        return 1 - math.exp(eps) * alpha
    return math.exp(-eps) / (4 * alpha) if alpha <= 0.5 else math.exp(-eps) * (1 - alpha)


def response_curve(eps, alpha):
    return max(1 - math.exp(eps) * alpha, math.exp(-eps) * (1 - alpha))


def noisy_training(rate=0.1, steps=40):
    return guarantee(dpk.gaussian(sigma=1.0), 1.0).subsample(rate).repeat(steps)


@pytest.mark.parametrize(
    ("made", "exact"),
    [
        (guarantee(dpk.gaussian(sigma=1.0), 1.0).repeat(2), lambda a: gaussian_curve(math.sqrt(2), a)),
        (guarantee(dpk.gaussian(sigma=2.0), 1.0), lambda a: gaussian_curve(0.5, a)),
        (guarantee(dpk.laplace(epsilon=1.5)), lambda a: laplace_curve(1.5, a)),
        (guarantee(randomised_response(1.0)), lambda a: response_curve(1.0, a)),
    ],
    ids=["gaussian two", "gaussian", "laplace", "response"],
)
def test_closed_forms(made, exact):
    for alpha in ALPHAS:
        low, high = made.bracket(alpha=alpha)
        assert low <= exact(alpha) + 1e-15
        assert high >= exact(alpha) - 1e-15
        assert high - low <= 1e-12
        assert made.trade_off(alpha) == low
        assert made.true_positive_rate(alpha) >= 1 - exact(alpha) - 1e-15
    assert (made.trade_off(0.0), made.trade_off(1.0)) == pytest.approx((1.0, 0.0), abs=1e-15)


def test_laplace_with_gaussian_noise_against_quadrature():
    """Both are symmetric: the errors of the likelihood ratio test by quadrature over the Laplace value."""
    eps, mu = 1.0, 0.7
    made = guarantee(dpk.laplace(epsilon=eps)).compose(guarantee(dpk.gaussian(sigma=1 / mu), 1.0))

    def mass(s, shift):
        """P(L > s) with the center at the shift; the loss of Laplace noise at x is |x| - |x - 1|, times eps."""

        def beyond(x):
            return ndtr(mu * shift - ((s - eps * (abs(x) - abs(x - 1))) / mu + mu / 2))

        density = lambda x: eps / 2 * math.exp(-eps * abs(x - shift))  # noqa: E731
        ends = beyond(-1.0) * math.exp(-eps * shift) / 2, beyond(2.0) * math.exp(-eps * (1 - shift)) / 2
        return sum(ends) + integrate.quad(lambda x: density(x) * beyond(x), 0, 1, epsabs=1e-14, epsrel=1e-12)[0]

    for alpha in (1e-6, 1e-3, 0.05, 0.3, 0.7):
        s = optimize.brentq(lambda s, alpha: math.log(mass(s, 0.0) / alpha), -20, 20, args=(alpha,), xtol=1e-14)
        low, high = made.bracket(alpha=alpha)
        exact = 1 - mass(s, 1.0)
        assert low - 1e-11 <= exact <= high + 1e-11
        assert high - low <= 1e-4 * high


def three_points(steps=12, rate=None):
    single = guarantee(dpk.piecewise(epsilon=0.8, lower=0.0, upper=1.0))
    return (single if rate is None else single.subsample(rate)).repeat(steps)


@pytest.mark.parametrize(
    "made", [three_points(), pytest.param(three_points(10, 0.2), marks=pytest.mark.lengthy)], ids=["even", "sampled"]
)
def test_the_grid_agrees_with_enumeration(made):
    """Samples are not symmetric, so that both neighbour directions decide."""
    assert made._bounds.method.__class__.__name__ == "FewOutcomes"
    for alpha in ALPHAS[:-1]:
        exact, by_grid = (
            made._bounds.curve_point(alpha),
            GridBracket(made).curve_point(alpha, made._bounds.largest_loss),
        )
        assert by_grid.error[0] <= exact.error[1]
        assert exact.error[0] <= by_grid.error[1]
        assert by_grid.power[0] <= exact.power[1]
        assert exact.power[0] <= by_grid.power[1]
        assert exact.error[1] - exact.error[0] <= 1e-9
        assert by_grid.error[1] - by_grid.error[0] <= 1e-4 * by_grid.error[1]


def test_tests_of_enumerated_outcomes():
    """The enumerated curve against the convex hull of all tests of both directions, point by point."""
    made = three_points(6, 0.3)
    points = [(0.0, 1.0), (1.0, 0.0)]
    for outcomes in made._bounds.method.directions:
        order = np.argsort(outcomes.log_q - outcomes.log_p)
        q, p = np.cumsum(np.exp(outcomes.log_q)[order]), np.cumsum(np.exp(outcomes.log_p)[order])
        points += [*zip(q, 1 - p, strict=True), *zip(1 - p, q, strict=True)]
    x, y = np.array(sorted(points)).T
    for alpha in ALPHAS[3:]:
        # The lower hull at alpha: the least over chords.
        left, right = x <= alpha, x > alpha
        share = (alpha - x[left][:, None]) / (x[right] - x[left][:, None])
        hull = (y[left][:, None] * (1 - share) + y[right] * share).min()
        low, high = made.bracket(alpha=alpha)
        assert low - 1e-12 <= hull <= high + 1e-12


@pytest.mark.parametrize(
    "made",
    [
        guarantee(dpk.laplace(epsilon=0.3)).repeat(30),
        pytest.param(noisy_training(), marks=pytest.mark.lengthy),
        pytest.param(shuffled(dpk.exact_sampler(dpk.piecewise(epsilon=2.0, lower=0.0, upper=1.0)), 1000),
                     marks=pytest.mark.lengthy),
    ],
    ids=["laplace", "training", "shuffled"],
)  # fmt: skip
def test_a_curve_is_convex_falls_and_is_its_own_inverse(made):
    alpha = np.array([0.02, 0.1, 0.25, 0.5, 0.8])
    low, high = np.transpose([made.bracket(alpha=a) for a in alpha])
    assert np.all(low <= high)
    assert np.all(high[1:] <= low[:-1])
    slopes = np.diff(low) / np.diff(alpha)
    assert np.all(np.diff(slopes) > -1e-3)
    assert np.all(high <= 1 - alpha)
    for a, below, above in zip(alpha, low, high, strict=True):
        assert made.bracket(alpha=below)[1] >= a - 1e-12  # f falls, and f(f(a)) is a.
        assert made.bracket(alpha=min(above, 1.0))[0] <= a + 1e-12


def test_no_line_is_above_the_curve():
    composed = guarantee(dpk.staircase(epsilon=0.7)).compose(guarantee(dpk.gaussian(sigma=2.0), 1.0)).repeat(3)
    for alpha in (1e-4, 0.1, 0.4, 0.8):
        _, high = composed.bracket(alpha=alpha)
        for eps in (0.0, 0.4, 1.3, 3.0):
            delta = composed.bracket(epsilon=eps)[1]
            lines = 1 - delta - math.exp(eps) * alpha, math.exp(-eps) * (1 - delta - alpha)
            assert max(lines) <= high + 1e-15


def test_an_infinite_loss_leaves_power_at_level_zero():
    composed = guarantee(dpk.truncated_laplace(epsilon=1.0, delta=1e-3, sensitivity=1.0)).repeat(3)
    low, high = composed.bracket(alpha=0.0)
    assert low <= 1 - composed.delta(np.inf) <= high
    assert composed.true_positive_rate(0.0) == pytest.approx(composed.delta(np.inf), rel=1e-9)


def test_convex_minimum_is_below_every_convex_function():
    """Maxima of some lines, seen at some points with some error; and what each part of the bound is needed for."""
    rng = np.random.default_rng(1)
    gaps = []
    for _ in range(50):
        slopes, offsets = rng.normal(size=5), rng.normal(size=5)
        value = lambda x: np.max(slopes * np.asarray(x)[..., None] + offsets, -1)  # noqa: B023, E731
        x = np.sort(rng.uniform(0.5, 3.0, 8))
        error = 1e-6 * rng.random((2, 8))
        bound = trade_off.convex_minimum(x, value(x) - error[0], value(x) + error[1])
        least = value(np.linspace(x[0], x[-1], 20001)).min()
        assert bound <= least + 1e-12
        gaps.append(least - value(x).min())  # The minimum over the points alone is no bound.
    assert min(gaps) < -1e-3


def test_a_grid_with_exchanged_ends_is_found(monkeypatch):
    """The planted fault: the test's power is that of the pair which dominates. Enumeration then contradicts it."""
    made = three_points(12)
    exact = made._bounds.curve_point(0.1)
    masses = refinement._DirectionSearch._masses

    def exchanged(self, *arguments):
        several = masses(self, *arguments)
        return {side: dataclasses.replace(several[1], mass=several[1].mass * (1 + 1e-6)) for side in several}

    monkeypatch.setattr(refinement._DirectionSearch, "_masses", exchanged)
    by_grid = GridBracket(made).curve_point(0.1, made._bounds.largest_loss)
    assert by_grid.power[0] > exact.power[1]


def test_one_direction_alone_is_too_private(monkeypatch):
    """The planted fault: added records only. The curve of samples in both directions is lower."""
    made = three_points(10, 0.2)
    both = made.trade_off(0.05)
    method = made._bounds.method
    powers = [dataclasses.replace(method, directions=[one]).curve_point(0.05, 99.0).power for one in method.directions]
    assert min(high for _, high in powers) < (1 - both) * (1 - 1e-3) <= max(high for _, high in powers)


@pytest.mark.lengthy
def test_jax_numbers_have_derivatives():
    with jax.enable_x64(True):

        def error(sigma, alpha):
            return guarantee(dpk.gaussian(sigma=sigma), 1.0).repeat(3).trade_off(alpha)

        value, slopes = jax.value_and_grad(error, argnums=(0, 1))(2.0, 0.05)
        mu, z = math.sqrt(3) / 2, -ndtri(0.05)
        phi = math.exp(-((z - mu) ** 2) / 2) / math.sqrt(2 * math.pi)
        assert value == pytest.approx(gaussian_curve(mu, 0.05), abs=1e-8)
        assert slopes[0] == pytest.approx(phi * mu / 2, rel=1e-3)
        assert slopes[1] == pytest.approx(-math.exp(z * mu - mu**2 / 2), rel=1e-3)
        assert isinstance(guarantee(dpk.laplace(epsilon=1.0)).trade_off(jnp.array([0.1, 0.2])), jax.Array)


@pytest.mark.lengthy
def test_an_estimate_is_next_to_the_curve():
    for made in (guarantee(dpk.laplace(epsilon=1.0)), guarantee(dpk.laplace(epsilon=0.5)).repeat(5)):
        alpha = np.array([0.0, 1e-6, 0.05, 0.5, 0.95, 1.0])
        np.testing.assert_allclose(made.estimate_trade_off(alpha), made.trade_off(alpha), atol=1e-4)


def test_errors_name_the_argument():
    single = guarantee(dpk.laplace(epsilon=1.0))
    with pytest.raises(ValueError, match=r"^alpha: "):
        single.trade_off(1.5)
    with pytest.raises(ValueError, match=r"^epsilon, delta, alpha, false_positive_rate: exactly one"):
        single.bracket(alpha=0.1, delta=0.1)


def random_guarantee(rng):
    eps = float(10 ** rng.uniform(-1.5, 0.7))
    made = [
        lambda: guarantee(dpk.laplace(epsilon=eps)),
        lambda: guarantee(dpk.gaussian(sigma=float(10 ** rng.uniform(-0.3, 1.0))), 1.0),
        lambda: guarantee(dpk.staircase(epsilon=eps)),
        lambda: guarantee(dpk.hybrid(epsilon=eps, lower=0.0, upper=1.0)),
        lambda: guarantee(dpk.truncated_laplace(epsilon=min(eps, 2.0), delta=1e-3, sensitivity=1.0)),
        lambda: guarantee(randomised_response(eps)),
        lambda: guarantee(dpk.discrete_laplace(epsilon=eps, sensitivity=1)),
    ][rng.integers(7)]()
    made = made.subsample(float(10 ** rng.uniform(-2, 0))) if rng.random() < 0.4 else made
    return made.repeat(int(10 ** rng.uniform(0, 2)))


@pytest.mark.thorough
def test_random_guarantees():
    """Both ends are in order, no line is above the upper end, and the curve is its own inverse."""
    rng, narrow = np.random.default_rng(5), 0
    for _ in range(60):
        made = random_guarantee(rng)
        alpha = float(
            rng.choice([10 ** rng.uniform(-12, -0.3), rng.uniform(0.01, 0.99), 1 - 10 ** rng.uniform(-8, -0.3)])
        )
        low, high = made.bracket(alpha=alpha)
        least, most = made.bracket(false_positive_rate=alpha)
        assert 0 <= low <= high <= 1 - alpha + 1e-15
        assert alpha - 1e-15 <= least <= most <= 1
        narrow += high - low <= max(2e-4 * high, 1e-12)
        for eps in (0.0, float(10 ** rng.uniform(-2, 1))):
            delta = made.bracket(epsilon=eps)[1]
            line = max(1 - delta - math.exp(eps) * alpha, math.exp(-eps) * (1 - delta - alpha))
            assert line <= high * (1 + 1e-13) + 1e-15
        if low > 1e-12:
            assert made.bracket(alpha=low)[1] >= alpha * (1 - 1e-9) - 1e-15
        if 0.0 < high < 1.0:
            assert made.bracket(alpha=high)[0] <= alpha * (1 + 1e-9) + 1e-15
    assert narrow >= 55


def test_no_error_is_left_if_losses_are_infinite_often():
    """With probability 1 - 0.9^20 some loss is infinite: at small powers there is no error at all."""
    composed = guarantee(dpk.truncated_laplace(epsilon=1.0, delta=0.1, sensitivity=1.0)).repeat(20)
    assert composed.bracket(alpha=0.5)[0] == 0.0
    assert composed.bracket(alpha=0.9)[1] <= 1e-290
    assert composed.bracket(false_positive_rate=1e-9)[1] <= 1.0


def test_reports_that_tell_all_have_no_errors():
    composed = guarantee(discrete_pair([1.0, 0.0], [0.0, 1.0])).sample_fixed(2, 2).repeat(2)
    assert composed.bracket(alpha=0.1) == (0.0, pytest.approx(0.0, abs=1e-11))
    assert composed.bracket(alpha=0.0) == (0.0, pytest.approx(0.0, abs=1e-11))
