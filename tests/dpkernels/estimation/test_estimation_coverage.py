"""Intervals hold as often as they say: of distributions, moments and relations, over simulated releases.

Reports are drawn from the certified table's own channel, which ``test_estimation`` compares with ``perturb``'s.
"""

import contextlib
import functools

import numpy as np
import pytest
from scipy import stats

import dpkernels as dpk
from dpkernels.estimation.channel import as_channel
from dpkernels.estimation.counts import Counts
from dpkernels.estimation.intervals import Functional

ALARM = 1e-6
LAWS = {
    "one hump": stats.beta(5, 2),
    "heavy at an end": stats.truncexpon(8, scale=1 / 8),
    "uniform": stats.beta(1, 1),
}
POINTS = (0.1, 0.3, 0.5, 0.7, 0.9)
NAMES = ("mean", "variance", "median", "upper decile", *(f"cdf at {p}" for p in POINTS), "band")


@functools.cache
def probabilities(made, law):
    """Of the reports of inputs drawn from a law, on a grid much finer than what is estimated."""
    channel = Counts(made).channel
    edges = np.linspace(0, 1, 2049)
    q = channel.matrix(edges, np.arange(len(channel.reports))) @ np.diff(LAWS[law].cdf(edges))
    return q / q.sum()


def covered(interval, truth):
    return (np.asarray(interval[0]) <= truth) & (truth <= np.asarray(interval[1]))


def held(made, law, n, seed, confidence):
    """Which intervals of one simulated release hold."""
    counts, truth = Counts(made), LAWS[law]
    counts.numbers = np.random.default_rng(seed).multinomial(n, probabilities(made, law))
    e = dpk.estimate(counts, model="splines")
    at, quantiles, grid = truth.ppf(POINTS), np.array([0.5, 0.9]), np.linspace(0, 1, 51)
    return np.array(
        [
            covered(e.mean.interval(confidence), truth.mean()),
            covered(e.variance.interval(confidence), truth.var()),
            *covered(e.quantile(quantiles).interval(confidence), truth.ppf(quantiles)),
            *covered(e.cdf(at).interval(confidence), np.array(POINTS)),
            covered(e.cdf(grid).band(confidence), truth.cdf(grid)).all(),
        ]
    )


def shares(mechanism, law, n, runs, confidence=0.95):
    return np.mean([held(mechanism, law, n, seed, confidence) for seed in range(runs)], axis=0)


@pytest.mark.thorough
def test_intervals_hold_about_as_often_as_they_say():
    """The fast slice: 12 releases; half as wide as they should be, intervals would hold about 70 %."""
    mechanism, runs = dpk.piecewise(epsilon=1.0, lower=0.0, upper=1.0), 12
    coverages = shares(mechanism, "one hump", 100_000, runs)
    assert (coverages >= stats.binom.ppf(ALARM, runs, 0.95) / runs).all(), dict(zip(NAMES, coverages, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "epsilon", "law", "n"),
    [
        ("piecewise", 1.0, "one hump", 100_000),
        ("piecewise", 1.0, "heavy at an end", 100_000),
        ("piecewise", 1.0, "uniform", 100_000),
        ("hybrid", 2.0, "one hump", 100_000),
        ("piecewise", 0.5, "one hump", 1_000_000),
    ],
)
def test_intervals_hold_over_a_thousand_releases(name, epsilon, law, n):
    """95 % intervals in 93.5 % or more, and bands, but for what 1,000 releases leave to chance (1e-6)."""
    runs, mechanism = 1000, getattr(dpk, name)(epsilon=epsilon, lower=0.0, upper=1.0)
    coverages = shares(mechanism, law, n, runs)
    assert (coverages >= stats.binom.ppf(ALARM, runs, 0.935) / runs).all(), dict(zip(NAMES, coverages, strict=True))


# Values of a few people, by their number.
FEW = {
    "constant": lambda n: np.full(n, 0.165),
    "two-point at the ends": lambda n: np.arange(n) % 2.0,
    "uniform": lambda n: (np.arange(n) + 0.5) / n,
    "skewed": lambda n: ((np.arange(n) + 0.5) / n) ** 4,
    "one at the edge": lambda n: np.append(np.full(n - 1, 0.2), 1.0),
}
MOMENTS = {"mean": np.mean, "variance": np.var, "standard_deviation": np.std}


def of_few(channel, x, runs, moments):
    """The shares of 95 % intervals that hold in releases of these values; NaN for one that few reports do not have."""
    rng, inputs = np.random.default_rng(7), np.unique(x)
    cumulated = np.cumsum(channel.probabilities(inputs, np.arange(len(channel.reports))), axis=0)
    columns = [rng.random(runs) * cumulated[-1, index] for index in np.searchsorted(inputs, x)]
    codes = [
        np.searchsorted(cumulated[:, index], u) for index, u in zip(np.searchsorted(inputs, x), columns, strict=True)
    ]
    hits = {name: [] for name in moments}
    for row in np.stack(codes, axis=1):
        counts = Counts(channel)
        counts.numbers = np.bincount(row, minlength=len(channel.reports))
        e = dpk.estimate(counts)
        for name, held in hits.items():
            with contextlib.suppress(ValueError):  # too few reports, or no information
                low, high = getattr(e, name).interval()
                held.append(low - 1e-12 <= MOMENTS[name](x) <= high + 1e-12)
    return {name: np.mean(held) for name, held in hits.items() if held}


def assert_few_hold(channel, n, shape, runs, moments=tuple(MOMENTS)):
    """95 % intervals hold in 93 % or more, but for what chance leaves out (1e-6)."""
    for name, share in of_few(channel, FEW[shape](n), runs, moments).items():
        assert share >= stats.binom.ppf(ALARM, runs, 0.93) / runs, (name, n, shape, share)


def test_intervals_of_the_mean_of_two_hold():
    """The quick slice: the reports' own spread alone held in 77 % of releases of two equal values."""
    assert_few_hold(as_channel(dpk.hybrid(epsilon=4.0, lower=0.0, upper=1.0)), 2, "constant", 250, ["mean"])


@pytest.mark.lengthy
@pytest.mark.parametrize("shape", FEW)
def test_intervals_of_few_hold(shape):
    for make in (dpk.hybrid, dpk.duchi):
        channel = as_channel(make(epsilon=4.0, lower=0.0, upper=1.0))
        for n in (2, 5, 20):
            assert_few_hold(channel, n, shape, 400, ["mean", "variance"] if n == 5 else ["mean"])


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0, 8.0])
@pytest.mark.parametrize("name", ["hybrid", "piecewise", "duchi", "optimal", "laplace", "gaussian"])
@pytest.mark.parametrize("shape", FEW)
def test_intervals_of_2_to_50_hold(name, shape, epsilon):
    noise = {"sensitivity": 1.0, "delta": 1e-6} if name == "gaussian" else {"sensitivity": 1.0}
    if name in ("laplace", "gaussian"):
        channel = as_channel(getattr(dpk, name)(epsilon=epsilon, **noise), bounds=(0.0, 1.0))
    else:
        channel = as_channel(getattr(dpk, name)(epsilon=epsilon, lower=0.0, upper=1.0))
    for n in (2, 3, 4, 5, 7, 10, 15, 22, 35, 50):
        assert_few_hold(channel, n, shape, 1000)


@pytest.mark.parametrize("shape", FEW)
def test_intervals_of_many_are_no_wider_than_the_reports_own_spread_says(shape):
    channel, n = as_channel(dpk.hybrid(epsilon=2.0, lower=0.0, upper=1.0)), 20_000
    counts, x = Counts(channel), FEW[shape](n)
    inputs, numbers = np.unique(x.round(3), return_counts=True)
    p = channel.probabilities(inputs, np.arange(len(channel.reports))) @ (numbers / n)
    counts.numbers = np.random.default_rng(7).multinomial(n, p / p.sum())
    e = dpk.estimate(counts)
    for moment in (e.mean, e.variance):
        low, high = moment.interval()
        assert high - low <= 1.01 * 2 * 1.96 * moment.error


def test_a_band_is_of_intervals_with_a_share_of_the_risk_each():
    def interval(confidence):
        half = stats.norm.ppf((1 + confidence) / 2) * np.array([1.0, 3.0])
        return -half, half

    both = Functional(np.array([0.0, 3.0]), interval)
    low, high = both.interval(0.8)
    assert low == pytest.approx(-stats.norm.ppf(0.9) * np.array([1, 3]))
    assert high == pytest.approx([stats.norm.ppf(0.9), 3 * stats.norm.ppf(0.9)])
    assert both.band(0.8)[0] == pytest.approx(both.interval(0.9)[0])
    assert both.interval(0.1)[1][1] == 3.0, "the interval contains the value"
    assert both.scaled(2.0).interval(0.8)[0] == pytest.approx(2 * low)


# Places and masses, and the grid if the values are said to be on one.
SPIKES = {
    "60 % zeros": (np.append(0.0, np.linspace(0, 1, 401)), np.append(0.6, np.full(401, 0.4 / 401)), None),
    "constant": (np.array([0.37]), np.ones(1), None),
    "whole numbers": (np.linspace(0, 1, 21), np.full(21, 1 / 21), 0.05),
}


def spiked(name, runs, n=10_000):
    """How many of the intervals hold in each release: of three quantiles, of three cdf and of three shares."""
    x, masses, grid = SPIKES[name]
    mechanism = dpk.piecewise(epsilon=1.0, lower=0.0, upper=1.0)
    q = Counts(mechanism).channel.probabilities(x, np.arange(len(Counts(mechanism).channel.reports))) @ masses
    p, at, edges = np.array([0.3, 0.5, 0.9]), np.array([0.1, 0.371, 0.9]), np.array([0.0, 0.2, 0.36, 1.0])
    cumulated = np.append(0.0, np.cumsum(masses))
    cdf, below = (cumulated[np.searchsorted(x, where, side)] for where, side in ((at, "right"), (edges, "left")))
    below[-1] = 1.0
    quantiles = x[np.minimum(np.searchsorted(cumulated[1:], p), len(x) - 1)]
    held = []
    for seed in range(runs):
        counts = Counts(mechanism)
        counts.numbers = np.random.default_rng(seed).multinomial(n, q / q.sum())
        e = dpk.estimate(counts, grid=grid, model="none")
        parts = [(e.quantile(p), quantiles), (e.cdf(at), cdf), (e.histogram(edges).shares, np.diff(below))]
        ends = [(part.interval(), truth) for part, truth in parts]
        held.append([(covered((low - 1e-9, high + 1e-9), truth)).mean() for (low, high), truth in ends])
    return np.mean(held, axis=0)


@pytest.mark.parametrize("name", SPIKES)
def test_intervals_hold_beside_point_masses(name):
    """In 5 releases of 9 intervals each, of which 97 to 100 % hold; the smooth model's held in none of them."""
    coverages = spiked(name, 5)
    assert (coverages >= stats.binom.ppf(ALARM, 5, 0.95) / 5).all(), coverages


@pytest.mark.slow
@pytest.mark.parametrize("name", SPIKES)
def test_intervals_beside_point_masses_hold_over_500_releases(name):
    coverages = spiked(name, 500)
    assert (coverages >= stats.binom.ppf(ALARM, 500, 0.935) / 500).all(), coverages


@functools.cache
def population():
    """Two columns in [0, 1] that belong together, with what is estimated of them."""
    rng = np.random.default_rng(3)
    a = rng.beta(3, 2, 1_000_000)
    b = 0.6 * a + 0.4 * rng.beta(2, 2, len(a))
    slope, intercept = np.polyfit(a, b, 1)
    return a, b, np.array([np.cov(a, b)[0, 1], np.corrcoef(a, b)[0, 1], slope, intercept])


def relations(a, b, confidence=0.95):
    """Values and intervals."""
    fit = dpk.least_squares(b, [a])
    low, high = fit.slopes.interval(confidence)
    moments = [dpk.covariance(a, b), dpk.correlation(a, b)]
    values = [moment.value for moment in moments] + [fit.slopes.value[0], fit.intercept.value]
    ends = [moment.interval(confidence) for moment in moments] + [(low[0], high[0]), fit.intercept.interval(confidence)]
    return np.array(values), np.array(ends)


def related(runs, n=100_000, epsilon=2.0):
    a, b, truth = population()
    mechanism = dpk.piecewise(epsilon=epsilon, lower=0.0, upper=1.0)
    values, hits = [], []
    for seed in range(runs):
        rows = np.random.default_rng(seed).integers(0, len(a), n)
        key = dpk.key_from_bytes(seed.to_bytes(32, "little"))
        x, y = np.split(dpk.perturb(np.concatenate([a[rows], b[rows]]), mechanism, key=key), 2)
        value, ends = relations((x, mechanism), (y, mechanism))
        values.append(value)
        hits.append(covered(ends.T, truth))
    return np.array(values), np.mean(hits, axis=0), truth


@pytest.mark.lengthy
def test_relations_are_unbiased_and_their_intervals_hold():
    """The fast slice, 40 releases: within five standard errors of the truth."""
    runs = 40
    values, hits, truth = related(runs, n=20_000)
    assert (np.abs(values.mean(axis=0) - truth) <= 5 * values.std(axis=0) / runs**0.5).all()
    assert (hits >= stats.binom.ppf(ALARM, runs, 0.935) / runs).all()


@pytest.mark.slow
def test_relations_hold_over_a_thousand_releases():
    _, hits, _ = related(1000)
    assert (hits >= stats.binom.ppf(ALARM, 1000, 0.935) / 1000).all()
    assert (hits <= stats.binom.ppf(1 - ALARM, 1000, 0.97) / 1000).all()


def test_without_noise_relations_are_numpys():
    rng = np.random.default_rng(0)
    a, b = rng.normal(5, 2, 500), rng.normal(-3, 1, 500)
    y = 4 + 2 * a - b + rng.normal(size=500)
    assert dpk.covariance(a, y).value == pytest.approx(np.cov(a, y)[0, 1], rel=1e-10)
    assert dpk.correlation(a, y).value == pytest.approx(np.corrcoef(a, y)[0, 1], rel=1e-10)
    fit = dpk.least_squares(y, [a, b])
    z = np.stack([np.ones(500), a, b], axis=1)
    beta = np.linalg.lstsq(z, y)[0]
    assert [fit.intercept.value, *fit.slopes.value] == pytest.approx(beta, rel=1e-9)
    bread, residual = np.linalg.inv(z.T @ z), y - z @ beta
    sandwich = np.sqrt(np.diag(bread @ (z.T * residual**2) @ z @ bread))
    assert [fit.intercept.error, *fit.slopes.error] == pytest.approx(sandwich, rel=0.01)


def jackknifed(function, n):
    """Values, their errors, and the jackknife's: the spread of the values without one row, whichever it is."""
    values, errors = function(np.arange(n))
    without = np.array([function(np.delete(np.arange(n), row))[0] for row in range(n)])
    return values, errors, np.sqrt((n - 1) / n * ((without - without.mean(axis=0)) ** 2).sum(axis=0))


def test_errors_of_relations_are_the_jackknifes():
    """Of a target that was not perturbed, so that all of a slope's error is the corrected square's."""
    rng, n, mechanism = np.random.default_rng(3), 400, dpk.piecewise(epsilon=3.0, lower=0.0, upper=1.0)
    a = rng.random(n)
    b = 0.2 + 2 * a + 2 * rng.random(n)
    x = dpk.perturb(a, mechanism, key=dpk.key_from_bytes(bytes(range(32))))

    def relations(rows):
        column, other = (x[rows], mechanism), b[rows]
        fit = dpk.least_squares(other, [column])
        moments = [fit.intercept, dpk.covariance(column, other), dpk.correlation(column, other)]
        pairs = [(fit.slopes.value[0], fit.slopes.error[0]), *((moment.value, moment.error) for moment in moments)]
        return np.array(pairs).T

    _, errors, spread = jackknifed(relations, n)
    assert errors == pytest.approx(spread, rel=0.05)


def test_with_a_large_budget_relations_are_numpys():
    a, b, _ = (column[:50_000] for column in population())
    mechanism = dpk.piecewise(epsilon=12.0, lower=0.0, upper=1.0)
    key = dpk.key_from_bytes(bytes(range(32)))
    x, y = np.split(dpk.perturb(np.concatenate([a, b]), mechanism, key=key), 2)
    values, _ = relations((x, mechanism), (y, mechanism))
    plain, _ = relations(a, b)
    assert values == pytest.approx(plain, rel=0.02)


@pytest.mark.lengthy
def test_relations_of_perturbed_and_other_columns():
    """A mechanism of another kind, additive noise with its bounds, and a column that was not perturbed."""
    a, b, truth = (column[:200_000] for column in population())
    mechanism, noise = dpk.hybrid(epsilon=4.0, lower=0.0, upper=1.0), dpk.laplace(epsilon=4.0, sensitivity=1.0)
    key = dpk.key_from_bytes(bytes(range(1, 33)))
    x, y = dpk.perturb(a, mechanism, key=key), dpk.perturb(b, noise, key=key)
    lattice = Counts(noise, bounds=(0.0, 1.0)).channel
    for first, second in (((x, mechanism), b), (a, (y, lattice))):
        values, ends = relations(first, second, 1 - ALARM)
        assert covered(ends.T, truth).all(), values


@pytest.mark.parametrize("make", [dpk.piecewise, dpk.square_wave])
def test_relations_of_rounded_reports_hold_what_rounding_moved(make):
    """Of narrow windows and two heaps of inputs: rounding moves their means, all in one direction each."""
    rng, mechanism = np.random.default_rng(3), make(epsilon=8.0, lower=0.0, upper=1.0)
    x = 0.12 * rng.random(200_000) + 0.6 * rng.integers(0, 2, 200_000)
    y = 2 * x + 0.1 * rng.random(len(x))
    reports = dpk.perturb(x, mechanism, key=dpk.key_from_bytes(bytes(32)))
    rounded = (reports.round(1), as_channel(mechanism, decimals=1))
    truth, _ = relations(x, y)
    _, ends = relations(rounded, y, 1 - ALARM)
    assert covered(ends.T, truth).all()
    with pytest.raises(ValueError, match="rounded too much"):
        dpk.least_squares(y, [(reports.round(0), as_channel(mechanism, decimals=0))])
    with pytest.raises(ValueError, match=r"a: .* rounded too much"):
        dpk.correlation((reports.round(0), as_channel(mechanism, decimals=0)), y)


BAD = {
    "lengths": (lambda m, r: dpk.covariance((r, m), r[:5]), ValueError, "different lengths"),
    "no report": (lambda m, r: dpk.correlation((r + 0.01, m), r), ValueError, "cannot have made it"),
    "not finite": (lambda m, r: dpk.covariance((r, m), np.full(len(r), np.nan)), ValueError, "b: row 0 is not finite"),
    "one row": (lambda m, r: dpk.covariance((r[:1], m), r[:1]), ValueError, "two or more"),
    "a constant": (lambda m, r: dpk.correlation(r, np.ones(len(r))), ValueError, "b: .* too few"),
    "few rows": (lambda m, r: dpk.correlation((r[:20], m), np.arange(20.0)), ValueError, "a: 20 reports are too few"),
    "no columns": (lambda m, r: dpk.least_squares(r, []), ValueError, "columns: are none"),
    "dependent": (
        lambda m, r: dpk.least_squares(r, [np.arange(1e3), 2 * np.arange(1e3)]),
        ValueError,
        "linearly",
    ),
    "few coefficients": (lambda m, r: dpk.least_squares(r[:2], [np.arange(2.0)]), ValueError, "too few for 2"),
    "three parts": (lambda m, r: dpk.covariance((r, m, 1), r), TypeError, "has 3 parts"),
    "a list": (lambda m, r: dpk.covariance([1.0, 2.0], r), TypeError, "a: "),
    "bernstein": (lambda m, r: dpk.covariance((r, m), r).bernstein(), ValueError, "no such interval"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_columns_are_refused(what):
    mechanism = dpk.piecewise(epsilon=1.0, lower=0.0, upper=1.0)
    reports = dpk.perturb(np.full(1000, 0.5), mechanism, key=dpk.key_from_bytes(bytes(32)))
    call, kind, words = BAD[what]
    with pytest.raises(kind, match=words):
        call(mechanism, reports)


def test_two_point_reports_have_covariances_only():
    mechanism = dpk.duchi(epsilon=4.0, lower=0.0, upper=1.0)
    a, b, truth = population()
    column = (dpk.perturb(a[:100_000], mechanism, key=dpk.key_from_bytes(bytes(32))), mechanism)
    assert covered(dpk.covariance(column, b[:100_000]).interval(1 - ALARM), truth[0])
    with pytest.raises(ValueError, match="the mean only"):
        dpk.correlation(column, b[:100_000])
