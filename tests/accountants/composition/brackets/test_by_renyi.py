"""Upper ends by Renyi divergences, where grids have too many points or leave out too much."""

import dataclasses
import math
from fractions import Fraction

import mpmath as mp
import pytest
from default_audit import check

import dpkernels as dpk
from accountants import discrete_pair, guarantee
from accountants.composition.brackets import by_renyi
from accountants.composition.brackets.by_renyi import GridOrRenyi, delta_of_orders, epsilon_of_orders
from accountants.composition.brackets.monotone import NoGridError, TooManyPointsError
from accountants.composition.brackets.refinement import GridBracket
from accountants.dominating_pairs.base import as_float64


def refuse(*_):
    raise TooManyPointsError("a grid of this step has too many points")


def gaussian(mu):
    return guarantee(dpk.Additive(dpk.Gaussian(1.0)), mu)


def profile(mu, epsilon):
    """delta of Gaussian noise, in 50 digits."""
    with mp.workdps(50):
        return mp.ncdf(mu / 2 - mp.mpf(epsilon) / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - mp.mpf(epsilon) / mu)


@pytest.mark.parametrize("mu", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("share", [1.0, 5.0, 20.0])
def test_bounds_of_orders_are_above_the_profile_and_not_far(mu, share):
    epsilon = mu**2 / 2 + share * mu
    truth = profile(mu, epsilon)
    found = delta_of_orders(gaussian(mu), epsilon)
    assert truth <= found <= 40 * truth  # The best order itself is 2.5 to 25 times the profile.
    assert epsilon <= epsilon_of_orders(gaussian(mu), float(truth)) <= epsilon + 4 * mu


def test_the_best_order_may_be_beyond_those_that_are_tried_first():
    """mu = 1e8, of which it is about 1 + 5e-8: eps is between mu^2/2 and that and 12 mu."""
    assert 5e15 < epsilon_of_orders(gaussian(1e8), 1e-6) < 5e15 + 12e8


def test_both_bounds_are_one():
    composed = guarantee(dpk.laplace(epsilon=0.5, sensitivity=1.0)).repeat(30)
    for delta in (1e-3, 1e-30, 1e-200):
        assert delta_of_orders(composed, epsilon_of_orders(composed, delta)) == pytest.approx(delta, rel=1e-2)


def test_orders_are_all_valid(monkeypatch):
    """A single order, whichever it is, is above the profile as well."""
    for order in (0.01, 0.3, 2.0, 40.0, 1e3):
        monkeypatch.setattr(by_renyi, "_ORDER_EXCESSES", [order, order])
        for epsilon in (0.1, 1.0, 4.0):
            assert profile(1.0, epsilon) <= delta_of_orders(gaussian(1.0), epsilon)
        assert profile(1.0, epsilon_of_orders(gaussian(1.0), 1e-6)) <= 1e-6


RELEASES = {
    "gaussian": guarantee(dpk.gaussian(sigma=2.0)),
    "gaussian on samples": guarantee(dpk.gaussian(sigma=1.0)).subsample(0.01),
    "gaussian, replaced": guarantee(dpk.gaussian(sigma=1.0)).subsample(0.01, adjacency="replace"),
    "laplace": guarantee(dpk.laplace(epsilon=0.1, sensitivity=1.0)),
    "laplace on samples": guarantee(dpk.laplace(epsilon=1.0, sensitivity=1.0)).subsample(0.01),
    "laplace, replaced": guarantee(dpk.laplace(epsilon=1.0, sensitivity=1.0)).subsample(0.3, adjacency="replace"),
    "logistic": guarantee(dpk.Additive(dpk.Logistic(2.0)), 1.0),
    "piecewise": guarantee(dpk.piecewise(epsilon=1.0, lower=-1.0, upper=1.0)),
    "staircase on samples": guarantee(dpk.staircase(epsilon=1.0, sensitivity=1.0)).subsample(0.1),
    "sine window": guarantee(dpk.composite("sine", "quartic", epsilon=1.0, lower=0.0, upper=1.0)),
    "student": guarantee(dpk.Additive(dpk.Student(3.0, 4.0)), 1.0),
}


@pytest.mark.parametrize("order", [1.5, 3.0, 40.0, 300.0])
@pytest.mark.parametrize("name", RELEASES)
def test_divergences_from_above_are_above_the_precise_ones_and_close(name, order):
    release = RELEASES[name]
    if "samples" in name and "gaussian" in name:
        order = float(round(order))
    precise, above = release.renyi(order), by_renyi._divergence_above(as_float64(release), order - 1)
    assert precise <= above * (1 + 1e-13)
    if not (name == "gaussian, replaced" and order > 10):  # Masses that underflow count as the largest loss.
        assert above <= precise * (1 + 2e-3) + 1e-11


@pytest.mark.parametrize("order", [1.3, 4.5, 30.2])
def test_orders_that_are_no_integers_and_samples_of_everybody(order):
    sampled, everybody = RELEASES["gaussian on samples"], guarantee(dpk.gaussian(sigma=1.0)).subsample(1.0)
    replaced = guarantee(dpk.gaussian(sigma=1.0)).subsample(1.0, adjacency="replace")
    for made in (sampled, everybody, replaced):
        assert made.renyi(order) <= by_renyi._divergence_above(as_float64(made), order - 1) * (1 + 1e-13)
    for made, mu in ((everybody, 1.0), (replaced, 2.0)):
        assert by_renyi._divergence_above(as_float64(made), order - 1) == pytest.approx(order * mu**2 / 2, rel=1e-12)


@pytest.mark.parametrize("order", [2, 9])
def test_moments_of_sampled_gaussians_against_quadrature(order):
    """Of both directions; with a record removed the moment is smaller."""
    rate, mu = 0.05, 1.3

    def moment(is_added):
        def at(x):
            ratio = (1 - rate) + rate * mp.exp(mu * x - mp.mpf(mu) ** 2 / 2)
            return mp.npdf(x) * (ratio**order if is_added else ratio ** (1 - order))

        return mp.log(mp.quad(at, mp.linspace(-12, 12 + order * mu, 12)))

    with mp.workdps(30):
        removed, truth = moment(is_added=False), moment(is_added=True)
    assert removed < truth <= by_renyi._log_moment_of_sampled(rate, mu, order) <= truth * (1 + 1e-11)


def test_moments_of_tables_against_fractions():
    """The sum over outcomes of p^a q^(1 - a), in both directions."""
    p, q = [0.5, 0.25, 0.125, 0.125], [0.25, 0.5, 0.1875, 0.0625]
    composed = guarantee(discrete_pair(p, q)).repeat(3)
    for order in (2, 7):
        moments = [
            sum(Fraction(x) ** order * Fraction(y) ** (1 - order) for x, y in zip(a, b, strict=True))
            for a, b in ((p, q), (q, p))
        ]
        truth = 3 * math.log(max(moments)) / (order - 1)
        assert (
            truth <= by_renyi._divergence_above(as_float64(composed), order - 1.0) * (1 + 1e-15) <= truth * (1 + 1e-6)
        )


def test_mass_that_is_left_out_has_the_largest_loss(monkeypatch):
    """Gaussian masses at order 300 underflow: without them the moment would be far below the truth."""
    release = RELEASES["gaussian, replaced"]
    original = by_renyi.upper_masses
    monkeypatch.setattr(by_renyi, "upper_masses", lambda *given: dataclasses.replace(original(*given), infinite=0.0))
    assert by_renyi._divergence_above(as_float64(release), 299.0) < 0.9 * release.renyi(300.0)


@pytest.mark.parametrize("log_of_tail", [0.0, 5.0, 80.0])
def test_the_tail_beyond_the_grid_is_bounded_and_counts(monkeypatch, log_of_tail):
    """The integral over the losses beyond the grid is below its bound, which is a part of the moment."""
    monkeypatch.setattr(by_renyi, "_LOG_OF_TAIL", log_of_tail)
    rate, mu, c = 0.3, 2.0, 5.0
    reach, log_tail = by_renyi._tail_of_replaced(rate, mu, c)

    def ratio(x, side):
        return 1 - rate + rate * mp.exp(side * mu * x - mp.mpf(mu) ** 2 / 2)

    def beyond(side):
        end = mp.findroot(lambda x: mp.log(ratio(x, 1) / ratio(x, -1)) - side * reach, side * reach / (2 * mu))
        places = [end + side * step for step in range(0, 40, 4)]
        return abs(mp.quad(lambda x: mp.npdf(x) * ratio(x, 1) ** (c + 1) * ratio(x, -1) ** -c, places))

    with mp.workdps(30):
        truth = mp.log(beyond(1) + beyond(-1))
    assert truth <= log_tail
    monkeypatch.setattr(by_renyi, "_tail_of_replaced", lambda *_: (reach, 200.0))
    release = guarantee(dpk.gaussian(sigma=0.5)).subsample(rate, adjacency="replace")
    assert by_renyi._divergence_above(as_float64(release), c) >= 200.0 / c


def test_losses_without_a_bound_have_no_divergence_from_above():
    composed = guarantee(dpk.Additive(dpk.GeneralisedNormal(2.0, 1.5)), 1.0).repeat(10)
    assert math.isfinite(composed.renyi(3.0))
    assert by_renyi._divergence_above(as_float64(composed), 2.0) == math.inf
    assert epsilon_of_orders(composed, 1e-6) == math.inf
    assert delta_of_orders(composed, 20.0) == 1.0


def test_a_grid_that_is_refused_leaves_the_bounds_of_orders(monkeypatch):
    composed = guarantee(dpk.laplace(epsilon=0.5, sensitivity=1.0)).repeat(30)
    bounds = GridOrRenyi(GridBracket(composed))
    exact, exact_delta, point = bounds.epsilon(1e-6)[1], bounds.delta(6.0)[1], bounds.curve_point(0.1, 15.0)
    for name in ("delta", "epsilon", "curve_point"):
        monkeypatch.setattr(GridBracket, name, refuse)
    assert bounds.epsilon(1e-6)[0] == bounds.delta(6.0)[0] == 0.0
    assert exact <= bounds.upper_epsilon(1e-6) <= exact * 1.2
    assert exact_delta <= bounds.upper_delta(6.0) <= exact_delta * 30
    wider = bounds.curve_point(0.1, 15.0)
    assert wider.error[0] <= point.error[0] <= point.error[1] <= wider.error[1]


@pytest.mark.lengthy
def test_the_least_delta_that_is_a_float_has_a_finite_epsilon():
    """Next to it delta is rounded to few values, and a search on the grid found none that is small enough."""
    composed = guarantee(dpk.gaussian(sigma=1.0), 1.0).subsample(0.01).repeat(1000)
    low, high = composed.bracket(delta=5e-324)
    assert 86.9 < high < 100.0  # At delta 1e-305 it is 86.92.
    assert low <= composed.bracket(delta=1e-300)[1] <= high


def test_wide_ends_are_replaced(monkeypatch):
    composed = guarantee(dpk.laplace(epsilon=0.5, sensitivity=1.0)).repeat(30)
    monkeypatch.setattr(GridBracket, "epsilon", lambda *_: (1.0, 15.0))
    monkeypatch.setattr(GridBracket, "delta", lambda *_: (1e-12, 0.9))
    bounds = GridOrRenyi(GridBracket(composed))
    assert bounds.epsilon(1e-6) == (1.0, epsilon_of_orders(composed, 1e-6))
    assert bounds.delta(6.0) == (1e-12, delta_of_orders(composed, 6.0))


def test_an_infinite_loss_has_no_bound_of_orders(monkeypatch):
    composed = guarantee(discrete_pair([0.5, 0.499, 0.001], [0.4, 0.6, 0.0])).repeat(1000)
    monkeypatch.setattr(GridBracket, "epsilon", refuse)
    monkeypatch.setattr(GridBracket, "delta", refuse)
    with pytest.raises(NoGridError, match="too many points"):
        GridOrRenyi(GridBracket(composed)).epsilon(1e-6)
    assert GridOrRenyi(GridBracket(composed)).delta(1.0) == (0.0, 1.0)


@pytest.mark.lengthy
@pytest.mark.parametrize("seed", [2540, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (2630, 2756))])
def test_guarantees_whose_grids_were_too_large_are_answered(seed):
    """At their eps no loss of one direction is as large, which makes the tilt steep; or delta is next to the floats."""
    check(seed)
