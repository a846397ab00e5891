"""Random allocation: against enumeration in fractions, nested quadrature, Monte Carlo, limits, and bad input."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.special import ndtr

import accountants
import dpkernels as dpk
from accountants import guarantee
from accountants.schemes import ratio_sums

EPS = (0.0, 0.05, 0.3, 0.9)
TABLES = {
    "two outcomes": ((Fraction(3, 4), Fraction(1, 4)), (Fraction(1, 4), Fraction(3, 4))),
    "not symmetric": (
        (Fraction(5, 8), Fraction(1, 4), Fraction(1, 8)),
        (Fraction(1, 8), Fraction(5, 8), Fraction(1, 4)),
    ),
    "unbounded": ((Fraction(3, 4), Fraction(1, 4), Fraction(0)), (Fraction(1, 2), Fraction(1, 4), Fraction(1, 4))),
}


def gaussian(sigma):
    return guarantee(dpk.Additive(dpk.Gaussian(sigma)), 1.0)


def joint_laws(p, q, steps, times=1):
    """Return the probabilities of all outcomes of all steps, with the record and without it."""
    subsets = list(itertools.combinations(range(steps), times))
    with_it, without = [], []
    for outcomes in itertools.product(range(len(p)), repeat=steps):
        without.append(math.prod(q[o] for o in outcomes))
        products = (math.prod((p if i in subset else q)[o] for i, o in enumerate(outcomes)) for subset in subsets)
        with_it.append(sum(products) / len(subsets))
    return with_it, without


def largest_delta(p, q, eps):
    """Return the exact larger divergence of both directions."""
    t = Fraction(math.exp(eps))
    return max(float(sum(max(a - t * b, 0) for a, b in zip(*pair, strict=True))) for pair in ((p, q), (q, p)))


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_enumeration_of_tables(name, steps):
    p, q = TABLES[name]
    laws = joint_laws(p, q, steps)
    scheme = guarantee(accountants.discrete_pair(*(np.array([float(m) for m in law]) for law in (p, q))))
    scheme = scheme.random_allocation(steps)
    for eps in EPS:
        low, high = scheme.bracket(epsilon=eps)
        truth = largest_delta(*laws, eps)
        assert low * (1 - 1e-12) <= truth <= high * (1 + 1e-12)
        assert high - low <= 2e-4 * high + 1e-11


def test_ten_steps_of_randomised_response():
    """The ratio depends on the number of ones alone."""
    steps, p, q = 10, Fraction(3, 4), Fraction(1, 4)
    laws = [[], []]
    for ones in range(steps + 1):
        without = math.comb(steps, ones) * q**ones * (1 - q) ** (steps - ones)
        ratio = (ones * p / q + (steps - ones) * (1 - p) / (1 - q)) / steps
        laws[0].append(without * ratio)
        laws[1].append(without)
    scheme = guarantee(accountants.discrete_pair(np.array([0.75, 0.25]), np.array([0.25, 0.75]))).random_allocation(
        steps
    )
    for eps in EPS[:3]:
        low, high = scheme.bracket(epsilon=eps)
        truth = largest_delta(*laws, eps)
        assert low <= truth <= high <= truth * (1 + 1e-9)


def test_epochs_are_allocated_afresh():
    """Two epochs of three steps are neither six steps nor one assignment for both."""
    p, q = TABLES["two outcomes"]
    one = joint_laws(p, q, 3)
    laws = [[a * b for a in law for b in law] for law in one]
    step = guarantee(accountants.discrete_pair(*(np.array([float(m) for m in law]) for law in (p, q))))
    for eps in EPS:
        low, high = step.random_allocation(3).repeat(2).bracket(epsilon=eps)
        truth = largest_delta(*laws, eps)
        assert low <= truth <= high
        assert high - low <= 1e-4 * high + 1e-11
        assert step.random_allocation(6).bracket(epsilon=eps)[1] < truth or truth == 0


@pytest.mark.parametrize(("steps", "times"), [(3, 2), (5, 2), (5, 3), (4, 4), (6, 3)])
def test_several_times_are_bounded(steps, times):
    for name in ("two outcomes", "not symmetric"):
        p, q = TABLES[name]
        if name == "not symmetric" and steps > 4:
            continue
        laws = joint_laws(p, q, steps, times)
        step = guarantee(accountants.discrete_pair(*(np.array([float(m) for m in law]) for law in (p, q))))
        for eps in EPS:
            low, high = step.random_allocation(steps, times).bracket(epsilon=eps)
            truth = largest_delta(*laws, eps)
            assert low <= truth <= high * (1 + 1e-12)
            if times == steps:
                assert high == pytest.approx(truth, rel=1e-9, abs=1e-12)


# Nested quadrature


def call(strike, sigma):
    """Return E (X - k)_+ of X = e^l with l ~ N(-1/(2 s^2), 1/s^2)."""
    safe = np.maximum(strike, 1e-300)
    d = (-np.log(safe) + 0.5 / sigma**2) * sigma
    return np.where(strike > 0, ndtr(d) - safe * ndtr(d - 1 / sigma), 1 - strike)


def call_on_sum(strike, sigma):
    """Return E (X_1 + X_2 - k)_+ at strikes k; nodes accumulate where X_1 = k, and beyond that all is linear."""
    cut = np.maximum((np.log(np.maximum(strike, 1e-300)) + 0.5 / sigma**2) * sigma, -11.0)[:, None]
    nodes, weights = np.polynomial.legendre.leggauss(160)
    width = (cut + 12.0) ** (1 / 3)
    v = width * (nodes + 1) / 2
    z = cut - v**3
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    x = np.exp(z / sigma - 0.5 / sigma**2)
    below = (width[:, 0] / 2) * (weights * 3 * v**2 * density * call(strike[:, None] - x, sigma)).sum(1)
    above = (1 - strike) * ndtr(-cut[:, 0]) + ndtr(1 / sigma - cut[:, 0])
    return np.where(strike > 0, below + above, 2 - strike)


def by_quadrature(sigma, steps, eps, removed):
    """Return delta of 2 or 3 steps; of the third one by the trapezoidal rule."""
    strike = steps * math.exp(-eps if removed else eps)
    if steps == 2:
        mean = call_on_sum(np.array([strike]), sigma)[0]  # E (S - k)_+
    else:
        z = np.linspace(-12.0, 12.0, 2401)
        weight = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
        mean = (weight * call_on_sum(strike - np.exp(z / sigma - 0.5 / sigma**2), sigma)).sum()
    if removed:  # E (k - S)_+ = k - t + E (S - k)_+.
        return math.exp(eps) / steps * (strike - steps + mean)
    return mean / steps


@pytest.mark.parametrize("steps", [2, pytest.param(3, marks=pytest.mark.lengthy)])
@pytest.mark.parametrize("sigma", [0.6, 1.0, 2.5])
def test_gaussian_quadrature(sigma, steps):
    scheme = gaussian(sigma).random_allocation(steps)
    pair = scheme.numeric.terms[0].pairs[0]
    for eps in (0.0, 0.2, 1.0):
        truths = [by_quadrature(sigma, steps, eps, removed) for removed in (False, True)]
        for removed, truth in zip((False, True), truths, strict=True):
            one = pair.mirror() if removed else pair
            low, high = (float(stick(np.float64(eps))) for stick in (one.lower_hockey_stick(), one.hockey_stick()))
            assert low - 1e-13 <= truth <= high + 1e-13
            assert high - low <= 2e-4 * high + 1e-9
        low, high = scheme.bracket(epsilon=eps)
        assert low - 1e-13 <= max(truths) <= high + 1e-13


def test_laplace_quadrature():
    """Two steps of Laplace noise, where an added record costs more than a removed one."""
    eps = 0.7
    y = np.linspace(-40.0, 40.0, 80001)
    middle = (y[1:] + y[:-1]) / 2
    q = np.exp(-np.abs(middle))
    x = np.exp(np.abs(middle) - np.abs(middle - 1))
    order = np.argsort(x)
    q, x = q[order] / q.sum(), x[order]
    below, firsts = np.append(0.0, np.cumsum(q)), np.append(0.0, np.cumsum(q * x))
    strike = 2 * math.exp(-eps)
    place = np.searchsorted(x, strike - x)
    truth = math.exp(eps) / 2 * (q * ((strike - x) * below[place] - firsts[place])).sum()
    low, high = guarantee(dpk.Additive(dpk.Laplace(1.0)), 1.0).random_allocation(2).bracket(epsilon=eps)
    assert low == pytest.approx(truth, rel=1e-4)
    assert high == pytest.approx(truth, rel=1e-4)


# Monte Carlo


def tilted_sample(sigma, steps, removed, random, count):
    """Return ratios R under p (or q if removed), where the record's step is tilted, and the weights of the samples."""
    losses = random.normal(-0.5 / sigma**2, 1 / sigma, (count, steps))
    if removed:
        return np.exp(losses).mean(1), np.ones(count)
    tilt = 2.0 * random.integers(0, 2, count)  # A mixture of the law itself and of one that is moved by 2.
    z = random.normal(0.0, 1.0, count) + tilt
    weight = 2 / (1 + np.exp(2 * z - 2))
    losses[:, 0] = 0.5 / sigma**2 + z / sigma
    return np.exp(losses).mean(1), weight


SETTINGS = [
    (sigma, steps, eps)
    for sigma in (0.7, 1.0, 1.6, 3.0)
    for steps, eps in ((4, 0.2), (20, 0.3), (50, 0.1), (100, 0.05), (100, 0.3))
]


@pytest.mark.thorough
def test_monte_carlo():
    """Of 40 means one is more than 6 standard errors off with a probability of about 1e-7."""
    random = np.random.default_rng(7)
    for sigma, steps, eps in SETTINGS:
        pair = gaussian(sigma).random_allocation(steps).numeric.terms[0].pairs[0]
        for removed in (False, True):
            ratio, weight = tilted_sample(sigma, steps, removed, random, 60_000)
            gain = np.maximum(1 - math.exp(eps) * (ratio if removed else 1 / ratio), 0.0) * weight
            # Without tilted samples a gain of at most 1 may be too rare to be seen: Bernstein.
            error = 6 * gain.std() / math.sqrt(len(gain)) + (20 / len(gain) if removed else 1e-9)
            one = pair.mirror() if removed else pair
            low, high = (float(stick(np.float64(eps))) for stick in (one.lower_hockey_stick(), one.hockey_stick()))
            assert low - error <= gain.mean() <= high + error, (sigma, steps, eps, removed)
            assert high - low <= 2e-3 * high + 1e-12


@pytest.mark.lengthy
def test_several_times_by_monte_carlo():
    """Elementary symmetric polynomials of the ratios: the truth is in the bracket, within 6 standard errors."""
    random = np.random.default_rng(11)
    for steps, times, eps in ((4, 2, 1.0), (20, 4, 1.0), (50, 5, 0.5)):
        losses = random.normal(-0.5, 1.0, (60_000, steps))
        losses[:, :times] += 1.0
        x, e = np.exp(losses), np.zeros((times + 1, len(losses)))
        e[0] = 1.0
        for column in x.T:
            e[1:] = e[1:] + column * e[:-1]
        gain = np.maximum(1 - math.exp(eps) * math.comb(steps, times) / e[times], 0.0)
        error = 6 * gain.std() / math.sqrt(len(gain))
        low, high = gaussian(1.0).random_allocation(steps, times).bracket(epsilon=eps)
        assert low - error <= gain.mean() <= high + error


# Limits


@pytest.mark.lengthy
def test_limits():
    step = gaussian(1.0)
    assert step.random_allocation(1).bracket(delta=1e-5) == step.bracket(delta=1e-5)
    assert step.balls_in_bins(1, 4).bracket(delta=1e-5) == pytest.approx(gaussian(0.5).bracket(delta=1e-5), rel=1e-12)
    assert step.balls_in_bins(7).bracket(delta=1e-5) == step.random_allocation(7).bracket(delta=1e-5)
    every = step.random_allocation(5, 5).bracket(delta=1e-5)
    assert every == pytest.approx(step.repeat(5).bracket(delta=1e-5), rel=1e-9)
    pair = step.random_allocation(20).numeric.terms[0].pairs[0]
    zero = np.float64(0.0)
    added, removed = (
        (float(p.lower_hockey_stick()(zero)), float(p.hockey_stick()(zero))) for p in (pair, pair.mirror())
    )
    assert max(added[0], removed[0]) <= min(added[1], removed[1])  # The total variation is one number.


@pytest.mark.lengthy
def test_monotone():
    """More steps cost less, more noise too, and more participations more."""
    steps = [gaussian(1.0).random_allocation(t).bracket(delta=1e-5) for t in (1, 2, 7, 40)]
    assert all(later[1] < earlier[0] for earlier, later in itertools.pairwise(steps))
    noise = [gaussian(sigma).random_allocation(20).bracket(delta=1e-5) for sigma in (0.5, 1.0, 2.0)]
    assert all(later[1] < earlier[0] for earlier, later in itertools.pairwise(noise))
    times = [gaussian(1.0).random_allocation(12, k).epsilon(1e-5) for k in (1, 2, 5, 12)]
    assert times == sorted(times)


def test_large_noise_is_nearly_gaussian():
    """The ratio tends to a Gaussian one of variance (e^(1/s^2) - 1)/t."""
    sigma, steps = 20.0, 50
    mu = math.sqrt(math.expm1(1 / sigma**2) / steps)
    low, high = gaussian(sigma).random_allocation(steps).bracket(epsilon=0.01)
    truth = float(guarantee(dpk.Additive(dpk.Gaussian(1 / mu)), 1.0).delta(0.01))
    assert low == pytest.approx(truth, rel=2e-2)
    assert high == pytest.approx(truth, rel=2e-2)


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("sigma", "steps", "published"),
    [(1.0, 1000, (0.16865, 0.17569)), (0.5, 1000, (4.0984, 4.1176)), (1.0, 100, (0.8437, 0.8745))],
)
def test_narrower_than_what_is_published(sigma, steps, published):
    """Brackets of PLD_accounting 2.0 at delta 1e-6 contain ours."""
    low, high = gaussian(sigma).random_allocation(steps).bracket(delta=1e-6)
    assert published[0] < low < high < published[1]
    assert high - low <= 1e-4 * high


# Sums of ratios


@pytest.mark.parametrize("side", [-1, 1])
def test_sums_of_atoms(side):
    """Bounds of the expectations E (S - c)_+ and E (c - S)_+ of a sum of few atoms, which is enumerated."""
    random = np.random.default_rng(3)
    value, mass = random.exponential(1.0, 5), random.dirichlet(np.ones(5))
    total = ratio_sums.self_sum(ratio_sums.discretised_ratio(value, mass, side), 5)
    sums, masses = np.zeros(1), np.ones(1)
    for _ in range(5):
        sums, masses = (sums[:, None] + value).ravel(), (masses[:, None] * mass).ravel()
    points, sum_masses = total.points()
    for strike in np.quantile(sums, [0.01, 0.3, 0.7, 0.99]):
        for sign in (1, -1):
            truth = (masses * np.maximum(sign * (sums - strike), 0.0)).sum()
            bound = (sum_masses * np.maximum(sign * (points - strike), 0.0)).sum() + total.excess * (sign > 0)
            assert side * (bound - truth) >= -1e-12
            assert abs(bound - truth) <= 4e-6  # The sum has the mean 5.


def test_an_origin_in_the_middle_keeps_the_order():
    """Sums of many have their origin in the middle, and both bounds the same mean."""
    value, mass = np.linspace(0.5, 1.5, 11), np.full(11, 1 / 11)
    laws = {side: ratio_sums.self_sum(ratio_sums.discretised_ratio(value, mass, side), 3000) for side in (-1, 1)}
    assert laws[1].origin > 0
    for law in laws.values():
        points, masses = law.points()
        assert (points * masses).sum() == pytest.approx(3000, rel=1e-10)
    variance = {side: (m * (p - 3000) ** 2).sum() for side, (p, m) in ((s, law.points()) for s, law in laws.items())}
    assert variance[-1] <= 3000 * 0.1 <= variance[1] <= variance[-1] * (1 + 1e-3)


# Errors


def test_bad_input():
    step = gaussian(1.0)
    with pytest.raises(TypeError, match=r"steps: 2\.5 is not a whole number"):
        step.random_allocation(2.5)
    with pytest.raises(ValueError, match="times: 4 of 3 steps"):
        step.random_allocation(3, 4)
    with pytest.raises(ValueError, match="steps: these reports are on samples already"):
        step.subsample(0.1).random_allocation(3)
    with pytest.raises(ValueError, match="rate: these reports are on samples already"):
        step.random_allocation(3).subsample(0.1)
    with pytest.raises(ValueError, match="one assignment for several epochs is known for Gaussian noise"):
        guarantee(dpk.Additive(dpk.Laplace(1.0)), 1.0).balls_in_bins(3, 2)
    with pytest.raises(ValueError, match="adjacency: some samples have records added or removed"):
        step.random_allocation(3).compose(step.sample_fixed(1, 3))
    assert step.random_allocation(3).neighbouring == "datasets of which one has one record more"


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(gaussian(0.04), marks=pytest.mark.lengthy),
        gaussian(0.01),
        guarantee(accountants.randomised_response(600.0)),
        guarantee(accountants.discrete_pair(np.array([1.0, 0.0]), np.array([0.0, 1.0]))),
    ],
)
def test_losses_beyond_those_of_floats_are_bounded(step):
    """The ratio is at most that of a step and, with the record, at least half of it; floats hold ratios up to e^709."""
    allocated = step.random_allocation(2)
    low, high = allocated.bracket(epsilon=250.0)
    assert low <= step.bracket(epsilon=250.0)[1]
    assert high >= step.bracket(epsilon=250.0 + np.log(2.0))[0]
    assert allocated.epsilon(1e-3) >= step.bracket(delta=2e-3)[0] - np.log(2.0)
    assert allocated.repeat(2).delta(500.0) >= low**2
