"""Samples whose neighbours replace one record: which pair is the worst, its profile, and its compositions."""

from __future__ import annotations

import math
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ALL, UNIT, slope_by_differences, windowed_pair
from noise_registry import ASYMMETRIC, SYMMETRIC, over, scale
from scipy.optimize import brentq
from scipy.special import ndtr

import dpkernels as dpk
from accountants import Guarantee, discrete_pair, guarantee
from accountants.dominating_pairs.discrete import Atoms
from accountants.dominating_pairs.registry import dominating_pairs
from dpkernels.distributions.discrete import DiscreteGaussian, DiscreteLaplace
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.mechanisms.additive import Additive


def replaced(noise, rate, n=1, D=1.0):
    return guarantee(Additive(noise), D).subsample(rate, "replace").repeat(n)


def stick(p, q, eps):
    return np.maximum(p - math.exp(eps) * q, 0.0).sum(-1)


# The worst pair


def lattice(noise, steps):
    """The probabilities moved by -steps..steps, on one grid."""
    w = noise.probabilities
    return {a: np.pad(w, (steps + a, steps - a)) for a in range(-steps, steps + 1)}


@pytest.mark.quick("0.07-noise0")
@pytest.mark.parametrize("noise", [DiscreteLaplace(1.7, 1.0, 40), DiscreteGaussian(1.4, 1.0, 9)])
@pytest.mark.parametrize("rate", [0.07, 0.6])
def test_opposite_records_are_the_worst_on_a_lattice(noise, rate):
    """All pairs of records, summed exactly."""
    laws = lattice(noise, 3)
    mixed = {a: (1 - rate) * laws[0] + rate * laws[a] for a in laws}
    for eps in (0.0, 0.02, 0.2, 0.7):
        found = {(a, b): stick(mixed[a], mixed[b], eps) for a, b in product(laws, laws)}
        assert max(found.values()) <= found[3, -3] * (1 + 1e-12) + 1e-16
        assert found[3, -3] == pytest.approx(found[-3, 3], rel=1e-12)
        assert found[3, 0] < found[3, -3] or eps > 0
        low, high = replaced(noise, rate, D=3.0).bracket(epsilon=eps)
        assert low <= found[3, -3] <= high <= found[3, -3] * (1 + 1e-4) + 1e-12


@pytest.mark.lengthy
@over(SYMMETRIC)
def test_opposite_records_are_the_worst_of_every_even_noise(law):
    """All pairs of a grid of records; also where the density is not log-concave. On points, so to their error."""
    D, rate = 1.1 * scale(law), 0.4
    y, step = np.linspace(-25 * scale(law), 25 * scale(law), 200_001, retstep=True)
    records = np.linspace(-D, D, 7)
    mixed = [(1 - rate) * law.prob(y) + rate * law.prob(y - a) for a in records]
    for eps in (0.0, 0.15):
        found = np.array([[stick(p, q, eps) * step for q in mixed] for p in mixed])
        assert found.max() <= found[-1, 0] + 5e-4
        assert found[-1, 3] < found[-1, 0]


# One report and many


def half_line(sigma, rate, eps):
    """P(y > t) - e^eps Q(y > t), t where p = e^eps q."""

    def laws(t, sign):
        return (1 - rate) * ndtr(-t / sigma) + rate * ndtr((sign - t) / sigma)

    def gap(t):
        p, q = (math.log(1 - rate + rate * math.exp((s * t - 0.5) / sigma**2)) for s in (1, -1))
        return p - q - eps

    t = brentq(gap, -50 * sigma, 50 * sigma, xtol=1e-14)
    return laws(t, 1.0) - math.exp(eps) * laws(t, -1.0)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("sigma", "rate"), [(0.7, 0.3), *(pytest.param(*at, marks=pytest.mark.slow) for at in ((2.0, 0.1), (5.0, 0.9)))]
)
def test_one_gaussian_report(sigma, rate):
    made = replaced(Gaussian(sigma), rate)
    for eps in (0.0, 0.3 * rate / sigma):
        exact = half_line(sigma, rate, eps)
        low, high = made.bracket(epsilon=eps)
        assert low <= exact <= high
        assert made.estimate_delta(eps) == pytest.approx(exact, rel=1e-4)


@pytest.mark.thorough
def test_everything_sampled_is_twice_the_sensitivity():
    eps = np.array([0.5, 2.0, 4.0])
    exact = guarantee(Additive(Gaussian(4.0)), 2.0).repeat(10).estimate_delta(eps)
    np.testing.assert_allclose(replaced(Gaussian(4.0), 1.0, 10).estimate_delta(eps), exact, rtol=1e-8)


@pytest.mark.slow
def test_all_of_laplace_sampled_is_twice_the_sensitivity():
    low, high = replaced(Laplace(4.0), 1.0, 3).bracket(epsilon=0.6)
    below, above = guarantee(Additive(Laplace(4.0)), 2.0).repeat(3).bracket(epsilon=0.6)
    assert max(low, below) <= min(high, above)
    assert high - low <= 1e-3 * high


@pytest.mark.thorough
@pytest.mark.parametrize(
    "noise",
    [SYMMETRIC["recycled-laplace"], SYMMETRIC["staircase-0.3"]]
    + [pytest.param(SYMMETRIC[name], marks=pytest.mark.slow) for name in SYMMETRIC],
)
def test_one_report_of_other_noise_by_quadrature(noise):
    D, rate, eps = 1.1 * scale(noise), 0.3, 0.05
    y, step = np.linspace(-60 * scale(noise), 60 * scale(noise), 2_000_001, retstep=True)
    p, q = ((1 - rate) * noise.prob(y) + rate * noise.prob(y - a) for a in (D, -D))
    low, high = replaced(noise, rate, D=D).bracket(epsilon=eps)
    assert high - low <= 1e-3 * high
    assert low - 2e-4 <= stick(p, q, eps) * step <= high + 2e-4


# epsilon at (sigma, rate, reports, delta) of dp-accounting 0.6, replace-one, rounded down and up at 1e-4.
PEER = {
    (1.0, 0.01, 1000, 1e-5): (2.7934426, 2.8434459),
    (2.0, 0.1, 100, 1e-6): (4.8813377, 4.8863381),
    (0.5, 0.05, 100, 1e-6): (23.1229049, 23.1279051),
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "at", [pytest.param(at, marks=() if at[2] > 100 else pytest.mark.slow, id=str(at)) for at in PEER]
)
def test_sampled_gaussian_against_another_library(at):
    sigma, rate, n, delta = at
    made, (low, high) = replaced(Gaussian(sigma), rate, n), PEER[at]
    epsilon = made.estimate_epsilon(delta)
    assert low <= epsilon <= high
    assert epsilon == pytest.approx(high, rel=1e-5), "their upper end is the near one"
    below, above = made.bracket(delta=delta)
    assert below <= epsilon <= above


@pytest.mark.thorough
def test_three_reports_of_a_lattice_by_enumeration():
    noise, rate, eps = DiscreteLaplace(1.7, 1.0, 12), 0.3, 0.4
    laws = lattice(noise, 1)
    p, q = ((1 - rate) * laws[0] + rate * laws[a] for a in (1, -1))
    infinite = 1 - (1 - p[q == 0].sum()) ** 3
    p, q = p[(p > 0) & (q > 0)], q[(p > 0) & (q > 0)]
    loss, mass = np.zeros(1), np.ones(1)
    for _ in range(3):
        loss = np.add.outer(loss, np.log(p) - np.log(q)).ravel()
        mass = np.multiply.outer(mass, p).ravel()
    exact = infinite + mass @ -np.expm1(np.minimum(eps - loss, 0.0))
    made = replaced(noise, rate, 3)
    low, high = made.bracket(epsilon=eps)
    assert low <= exact <= high
    assert made.estimate_delta(eps) == pytest.approx(exact, rel=1e-3)


@pytest.mark.slow
def test_replaced_records_reveal_more_than_added_ones_and_less_than_two_of_them():
    single = guarantee(Additive(Gaussian(2.0)), 1.0)
    added, swapped, twice = (
        single.subsample(0.2).repeat(50).estimate_epsilon(1e-6),
        single.subsample(0.2, "replace").repeat(50).estimate_epsilon(1e-6),
        single.subsample(0.2).repeat(100).estimate_epsilon(1e-6),
    )
    assert added < swapped
    assert added < twice
    rates = [single.subsample(rate, "replace").repeat(50).estimate_epsilon(1e-6) for rate in (0.05, 0.2, 1.0)]
    assert rates == sorted(rates)


# Bounded mechanisms


@pytest.mark.parametrize(
    "name", ["duchi-0.1", *(pytest.param(n, marks=pytest.mark.slow) for n in ("sine-2-w1.3", "hybrid-1"))]
)
def test_one_report_of_a_bounded_mechanism_is_amplified(name):
    """r delta at log(1 + r (e^eps - 1)), either way."""
    rate = 0.3
    single = guarantee(ALL[name])
    top = single.estimate_epsilon(1e-6)
    for share in (0.0, 0.3, 0.8):
        exact = rate * single.estimate_delta(share * top)
        low, high = single.subsample(rate, "replace").bracket(epsilon=math.log1p(rate * math.expm1(share * top)))
        assert low <= exact * (1 + 1e-9)
        assert exact * (1 - 1e-9) <= high
        assert high - low <= 1e-3 * high


def test_reports_of_two_points_bound_every_choice_of_records():
    """Three records of three reports, each an input at either end, without and with either record."""
    rate, n, eps = 0.4, 3, 0.3
    mechanism = dpk.duchi(epsilon=0.7, **UNIT)
    p = dominating_pairs(mechanism)[0].p
    ends = np.array([p, p[::-1]])
    choices = [
        ((1 - rate) * ends[rest] + rate * ends[a], (1 - rate) * ends[rest] + rate * ends[1 - a])
        for rest, a in product((0, 1), (0, 1))
    ]

    def all_of(chosen):
        return [np.multiply.outer(np.multiply.outer(x, y), z).ravel() for x, y, z in zip(*chosen, strict=True)]

    largest = max(stick(*all_of(chosen), eps) for chosen in product(choices, repeat=n))
    composed = guarantee(mechanism).subsample(rate, "replace").repeat(n)
    low, high = composed.bracket(epsilon=eps)
    added = guarantee(mechanism).subsample(rate).repeat(n).bracket(epsilon=eps)
    assert largest <= high
    assert added[0] <= low
    assert high - low <= 1e-3 * high


def test_the_precise_value_of_windows_is_in_the_bracket():
    composed = guarantee(ALL["sine-1"]).subsample(0.3, "replace").repeat(50)
    low, high = composed.bracket(delta=1e-5)
    assert low <= composed.estimate_epsilon(1e-5) <= high
    assert high - low <= 1e-4 * high


# Derivatives, order, JSON

SAMPLED = {
    "rate": (lambda v: replaced(Gaussian(2.0), v, 100), 0.1),
    "sigma": (lambda v: replaced(Gaussian(v), 0.1, 100), 2.0),
    "windows": (lambda v: guarantee(ALL["sine-1"]).subsample(v, "replace").repeat(100), 0.1),
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [*list(SAMPLED)[:1], *(pytest.param(n, marks=pytest.mark.slow) for n in ("sigma", "windows"))]
)
def test_gradients_against_differences(x64, name):
    make, at = SAMPLED[name]
    both = jax.jit(jax.value_and_grad(lambda v: make(v).estimate_epsilon(jnp.float64(1e-6))))
    expected = slope_by_differences(lambda v: both(jnp.float64(v))[0], at, 1e-3 * at)
    assert float(both(jnp.float64(at))[1]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_order_and_repetition():
    a, b = replaced(Gaussian(3.0), 0.2, 5), guarantee(Additive(Gaussian(9.0)), 1.0).repeat(30)
    assert a.compose(b).estimate_delta(1.0) == pytest.approx(b.compose(a).estimate_delta(1.0), rel=1e-11)
    assert a.compose(a, a).estimate_delta(1.0) == pytest.approx(a.repeat(3).estimate_delta(1.0), rel=1e-11)


@pytest.mark.parametrize("noise", [Gaussian(2.0), DiscreteLaplace(1.7, 1.0, 12), SYMMETRIC["staircase-0.3"]])
def test_json_keeps_the_adjacency(noise):
    made = replaced(noise, 0.25, 3)
    again = Guarantee.from_json(made.to_json())
    assert again == made
    assert again.bracket(epsilon=0.5) == made.bracket(epsilon=0.5)
    assert again.neighbouring == made.neighbouring
    added = guarantee(Additive(noise), 1.0).subsample(0.25).repeat(3)
    assert made != added
    assert made.neighbouring != added.neighbouring != guarantee(Additive(noise), 1.0).neighbouring


def forged(change):
    payload = replaced(DiscreteLaplace(1.7, 1.0, 12), 0.25).to_dict()
    term = payload["guarantee"]["terms"]["tuple"][0]
    change(term, term["pairs"]["tuple"][0])
    return payload


@pytest.mark.parametrize(
    "change",
    [
        lambda term, pair: term.update(adjacency="near"),
        lambda term, pair: pair.update(moved=2),
        lambda term, pair: pair.update(moved=10**6),
        lambda term, pair: pair["q"]["array"].reverse(),
    ],
)
def test_forged_forms_are_refused(change):
    assert Guarantee.from_dict(forged(lambda term, pair: None))
    with pytest.raises((ValueError, TypeError)):
        Guarantee.from_dict(forged(change))


SKEWED = discrete_pair([0.5, 0.3, 0.2], [0.2, 0.35, 0.45])


@pytest.mark.parametrize(
    ("wrong", "kind", "message"),
    [
        (lambda: replaced(Gaussian(2.0), 0.0), ValueError, "^rate: "),
        (lambda: guarantee(Additive(Gaussian(2.0)), 1.0).subsample(0.1, "swap"), ValueError, "^adjacency: 'swap'"),
        (lambda: replaced(ASYMMETRIC["truncated-laplace"], 0.1), ValueError, "^adjacency: .*even noise"),
        (lambda: guarantee(SKEWED).subsample(0.1, "replace"), ValueError, "^adjacency: "),
        (lambda: replaced(Gaussian(2.0), 0.5).subsample(0.5), ValueError, "^rate: .*samples already"),
        (
            lambda: replaced(Gaussian(2.0), 0.5).compose(guarantee(Additive(Gaussian(2.0)), 1.0).subsample(0.5)),
            ValueError,
            "^adjacency: .*added or removed",
        ),
    ],
)
def test_bad_arguments(wrong, kind, message):
    with pytest.raises(kind, match=message):
        wrong()


def test_a_table_is_symmetric_if_reversed():
    high = 1 / (1 + math.exp(-0.7))
    table = Atoms(np.array([high, 1 - high]), np.array([1 - high, high]))
    (ours,), (theirs,) = (
        guarantee(one).subsample(0.3, "replace").terms for one in (table, dpk.duchi(epsilon=0.7, **UNIT))
    )
    assert len(ours.pairs) == len(theirs.pairs) == 1
    assert (ours.count, ours.sampling_rate, ours.adjacency) == (
        theirs.count,
        theirs.sampling_rate,
        theirs.adjacency,
    )
    for one, other in zip(ours.pairs, theirs.pairs, strict=True):
        np.testing.assert_allclose([one.p, one.q], [other.p, other.q], rtol=1e-15)


@pytest.mark.slow
def test_a_window_at_two_inputs_of_the_users_own_is_composed_both_ways():
    m = ALL["sine-1"]
    x, other = m.lower + 0.9 * (m.upper - m.lower), m.lower + 0.4 * (m.upper - m.lower)
    single, eps = guarantee(windowed_pair(m, x, other)), 0.1
    ways = [guarantee(windowed_pair(m, *inputs)).estimate_delta(eps) for inputs in ((x, other), (other, x))]
    assert ways[0] == ways[1] == single.estimate_delta(eps)
    with pytest.raises(ValueError, match=r"^adjacency: "):
        single.subsample(0.5, "replace")


@pytest.mark.parametrize("kernel", [Gaussian(0.9), Laplace(0.9)])
def test_a_bracket_of_noise_whose_density_jumps(kernel):
    """Panels without width at a knot would be evaluated on its other side."""
    sampled = guarantee(Additive(Reweighted(kernel, -2.6, 2.6, 0.3), 1.0)).subsample(0.5, "replace")
    low, high = sampled.bracket(epsilon=0.3)
    assert low <= sampled.estimate_delta(0.3) <= high < 1.001 * low
