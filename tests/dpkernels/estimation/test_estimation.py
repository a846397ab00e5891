"""``estimate``: channels to the bit, likelihoods that nothing beats, moments without bias, and what is refused."""

import functools
import itertools
import json
import pickle

import numpy as np
import pandas as pd
import pytest
from exact_registry import EVERY, exact, mechanism, small_table
from matplotlib.figure import Figure
from scipy import optimize, stats

import dpkernels as dpk
from dpkernels.cli import main
from dpkernels.decimals import format_number
from dpkernels.estimation.channel import TableChannel, as_channel
from dpkernels.estimation.counts import Counts
from dpkernels.estimation.estimate import save_plots
from dpkernels.estimation.likelihood import ProfileLikelihood, ems_shares, evaluate_fit, maximum_likelihood
from dpkernels.estimation.models import LADDER, ReportModels, basis, grid_points
from dpkernels.estimation.pictures import draw_intervals, draw_open_intervals
from dpkernels.exact.bounded.windows import WindowCertificate

KEY = dpk.key_from_bytes(bytes(range(3, 35)))
ALARM = 1e-6
AGES = dpk.piecewise(epsilon=1.0, lower=0.0, upper=120.0)
BUDGET = {"epsilon": 1.0, "lower": -1.0, "upper": 3.0}
NOISES = {
    "laplace": dpk.laplace(epsilon=1.0, sensitivity=4.0),
    "discrete": dpk.discrete_laplace(epsilon=1.0, sensitivity=4),
    "truncated": dpk.truncated_laplace(epsilon=1.0, delta=1e-3, sensitivity=4.0),
}


@functools.cache
def make_channel(name):
    if name in NOISES:
        return as_channel(NOISES[name], bounds=(-1.0, 3.0))
    if name in ("optimal", "central"):
        mechanism = dpk.optimal(**BUDGET) if name == "optimal" else dpk.central_piecewise(**BUDGET, sensitivity=1.0)
        return as_channel(mechanism)
    return as_channel(exact(name, 1.0))


@functools.cache
def ages(n=20_000):
    """Reports of ages about 45, and the ages."""
    x = 20 + 70 * np.random.default_rng(5).beta(2, 4, n)
    return dpk.perturb(x, AGES, key=KEY), x


def all_codes(channel):
    return np.arange(len(channel.reports))


CHANNELS = [*EVERY, "optimal", "central", *NOISES]


@pytest.mark.lengthy
@pytest.mark.quick(
    "piecewise", "sine-quartic", "own", "duchi", "hybrid", "optimal", "central", "laplace", "discrete", "truncated"
)
@pytest.mark.parametrize("name", CHANNELS)
def test_a_channel_is_of_probabilities_with_the_right_means_and_squares(name):
    """Of inputs uniform on a bin: total 1, mean the bin's middle, and squares the mean of (x - middle)^2."""
    channel = make_channel(name)
    edges = np.linspace(channel.lower, channel.upper, 13) if name != "discrete" else np.arange(-1.5, 4.0)
    B = channel.matrix(edges, all_codes(channel))
    width, middles = channel.upper - channel.lower, (edges[1:] + edges[:-1]) / 2
    assert B.min() >= 0
    assert np.abs(B.sum(axis=0) - 1).max() < 1e-12
    assert np.abs(channel.values @ B - middles).max() < 1e-9 * width
    if name == "duchi":
        with pytest.raises(ValueError, match="the mean only"):
            _ = channel.square_weights
        return
    squares, bias_bound = channel.square_weights
    truth = (middles - channel.middle) ** 2 + (np.diff(edges) ** 2 / 12 if name != "discrete" else 0.0)
    assert (bias_bound == 0) == (name not in ("optimal", "central"))
    # The rounding of inputs to rows is averaged over a row's breadth; the bins' ends are not on rows.
    assert np.abs(squares @ B - truth).max() < bias_bound + 2e-5 * width**2


def enumerated(table, low, high, points=64):
    """P(code | x uniform on [low, high]) from the rows themselves, as fractions, by the midpoint rule on every cell."""
    inputs = np.array([float(table.row_input(i)) for i in range(table.last_row + 1)])
    cuts = np.unique(np.concatenate([[low, high], inputs[(inputs > low) & (inputs < high)]]))
    total = np.zeros(table.codes)
    for a, b in itertools.pairwise(cuts):  # linear between rows: the middle is the mean
        place = ((a + b) / 2 - inputs[0]) / (inputs[-1] - inputs[0]) * table.last_row
        s = min(int(place), table.last_row - 1)
        rows = [[int(w) for w in table.row(r)] for r in (s, s + 1)]
        total += (b - a) * ((1 - place + s) * np.array(rows[0]) + (place - s) * np.array(rows[1]))
    return total / (high - low) / 2.0**table.bits


@pytest.mark.parametrize("name", ["piecewise", "sine-constant", "dented", "duchi"])
def test_a_channel_is_the_table_with_its_input_rounding(name):
    table = small_table(name, 1.0 if name == "dented" else 2.0)
    channel = TableChannel([(1.0, table)])
    width = table.upper - table.lower
    edges = table.lower + width * np.array([0.0, 0.1234, 0.5, 0.77, 1.0])
    B = channel.matrix(edges, all_codes(channel))
    for k in range(4):
        assert np.abs(B[:, k] - enumerated(table, edges[k], edges[k + 1])).max() < 1e-12


@pytest.mark.lengthy
def test_a_noise_channel_is_that_of_its_grains():
    """Every grain of a bin by itself: its two positions, with the noise on each."""
    channel = make_channel("laplace")
    table = channel.table
    grain, M = 2.0**table.grid_log2, table.points_per_bin
    first, count = 5 * M + M - 1000, 1500  # across a cell's end; from half a grain below the first
    probabilities = channel.matrix((np.array([first, first + count]) - 0.5) * grain, all_codes(channel))[:, 0]
    p = np.zeros(len(channel.reports))
    lowest = round(channel.reports[0] / float(table.bin_width))
    for i in range(first, first + count):
        q, f = divmod(i, M)
        for position, share in ((q, 1 - f / M), (q + 1, f / M)):
            start = position + table.first - lowest
            p[start : start + table.codes] += share / count * (table.weights / 2.0**table.bits)
    assert np.abs(probabilities - p).max() < 1e-7 * p.max()


def test_discrete_noise_is_for_whole_numbers():
    channel = make_channel("discrete")
    B = channel.matrix(np.arange(-1.5, 4.0), all_codes(channel))
    w = channel.table.weights / 2.0**channel.table.bits
    for k in range(5):
        assert np.abs(B[k : k + len(w), k] - w).max() < 1e-12


@pytest.mark.parametrize("name", ["piecewise", "hybrid", "optimal", "laplace"])
def test_reports_have_the_channels_frequencies(name):
    """2^18 reports of inputs uniform on a bin, by chi-squared; of another bin's inputs it is refused."""
    channel = make_channel(name)
    n, source = 1 << 18, {"laplace": NOISES["laplace"], "optimal": dpk.optimal(**BUDGET)}.get(name)
    source = source or mechanism(name, 1.0)
    edges = channel.lower + (channel.upper - channel.lower) * np.array([0.0, 0.21, 0.4, 1.0])
    x = np.random.default_rng(3).uniform(edges[1], edges[2], n)
    bounds = (-1.0, 3.0) if name == "laplace" else None
    numbers = Counts(source, bounds=bounds).add(dpk.perturb(x, source, key=KEY)).numbers
    groups = np.linspace(0, len(numbers), min(40, len(numbers)), endpoint=False).astype(int)
    seen, B = np.add.reduceat(numbers, groups), channel.matrix(edges, groups)
    keep = B[:, 1] * n > 20

    def p_value(column):
        expected = np.append(B[keep, column], B[~keep, column].sum()) * n
        observed = np.append(seen[keep], seen[~keep].sum())
        used = expected > 0
        return stats.chi2.sf(((observed - expected)[used] ** 2 / expected[used]).sum(), used.sum() - 1)

    assert p_value(1) > ALARM
    assert p_value(2) < ALARM


def small_problem(seed=0, m=12, d=5, n=500):
    rng = np.random.default_rng(seed)
    B = rng.dirichlet(np.ones(m), d).T
    return B, rng.multinomial(n, B @ rng.dirichlet(np.ones(d)))


@pytest.mark.quick("1")
@pytest.mark.parametrize("seed", range(4))
def test_the_likelihood_is_that_of_exact_optimisation(seed):
    """SLSQP's, and no random distribution is better by more than the gap."""
    B, counts = small_problem(seed)
    p = counts / counts.sum()
    fit = maximum_likelihood(B, counts)
    assert 0 <= fit.gap + 1e-15 <= 1e-6
    assert fit.shares.min() >= 0
    assert fit.shares.sum() == pytest.approx(1, abs=1e-12)
    other = optimize.minimize(
        lambda t: -p @ np.log(B @ t),
        np.full(5, 0.2),
        jac=lambda t: -B.T @ (p / (B @ t)),
        bounds=[(1e-12, 1)] * 5,
        constraints={"type": "eq", "fun": lambda t: t.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert fit.log_likelihood == pytest.approx(-other.fun, abs=1e-8)
    for shares in np.random.default_rng(1).dirichlet(np.full(5, 0.3), 500):
        assert p @ np.log(B @ shares) <= fit.log_likelihood + fit.gap + 1e-12


def test_the_gap_bounds_what_is_missing():
    """Of any shares at all, and a planted error is seen by it."""
    B, counts = small_problem(7)
    best = maximum_likelihood(B, counts)
    for shares in np.random.default_rng(2).dirichlet(np.ones(5), 50):
        fit = evaluate_fit(B, counts, shares)
        assert best.log_likelihood - fit.log_likelihood <= fit.gap + 1e-12
    moved = best.shares + np.array([0.05, 0, 0, 0, 0])
    assert evaluate_fit(B, counts, moved).gap > 1e-4


def test_expectation_maximisation_gets_there_too():
    """The plain iteration, many times."""
    B, counts = small_problem(3)
    p, theta = counts / counts.sum(), np.full(5, 0.2)
    for _ in range(20_000):
        theta = theta * (B.T @ (p / (B @ theta)))
    fit = maximum_likelihood(B, counts)
    assert p @ np.log(B @ theta) == pytest.approx(fit.log_likelihood, abs=1e-8)
    assert np.abs(theta - fit.shares).max() < 1e-3


def test_impossible_reports_have_no_likelihood():
    B, counts = small_problem(0)
    B[0] = 0
    counts[0] = 1
    with pytest.raises(ValueError, match="impossible"):
        maximum_likelihood(B, counts)
    with pytest.raises(ValueError, match="there are none"):
        maximum_likelihood(B, np.zeros(12, int))


def test_a_few_reports_far_from_the_others_do_not_stop_the_fit() -> None:
    """A quarter of these fits ended at a gap of 1e11 when a Newton step left a rare report's component at 1e-14."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        m, d = int(rng.integers(50, 300)), int(rng.integers(4, 40))
        z = (np.arange(m)[:, None] - np.linspace(0, m, d)) / (m / d * rng.uniform(0.3, 1.5))
        B = np.where(np.abs(z) < 11, np.exp(-(z**2) / 2), 0.0) + 1e-200
        B /= B.sum(axis=0)
        reports = B @ rng.dirichlet(np.full(d, 0.05))
        counts = rng.multinomial(rng.integers(100, 10_000), reports / reports.sum())
        np.add.at(counts, rng.integers(0, m, 3), 1)
        fit = maximum_likelihood(B, counts)
        assert evaluate_fit(B, counts, fit.shares).gap <= 1e-6


def test_smoothed_shares_are_a_fixed_point():
    """Of one EM step and one of (1, 2, 1)/4; of a uniform distribution they are uniform."""
    channel = make_channel("piecewise")
    B = channel.matrix(np.linspace(channel.lower, channel.upper, 33), all_codes(channel))
    counts = np.random.default_rng(0).multinomial(100_000, B @ np.full(32, 1 / 32))
    theta = ems_shares(B, counts, 32)
    step = theta * (B.T @ (counts / counts.sum() / (B @ theta)))
    step = np.convolve(np.pad(step, 1, mode="edge"), [0.25, 0.5, 0.25], mode="valid")
    assert np.abs(step - theta).sum() < 2e-5
    assert 0.5 * np.abs(theta - 1 / 32).sum() < 0.05


@pytest.mark.parametrize("splines", [6, 16, 64])
def test_splines_are_densities(splines):
    """Columns sum to 1, together they can be uniform, and each has one hump."""
    W = basis(256, splines)
    assert np.abs(W.sum(axis=0) - 1).max() < 1e-12
    assert W.min() >= -1e-15
    uniform, *_ = np.linalg.lstsq(W, np.full(256, 1 / 256), rcond=None)
    assert np.abs(W @ uniform - 1 / 256).max() < 1e-12
    assert uniform.min() > 0
    signs = np.sign(np.round(np.diff(W, axis=0), 12))
    assert all((np.diff(column[column != 0]) != 0).sum() <= 1 for column in signs.T)


def expected(channel, shares, total=10**6):
    """Expected counts of reports of inputs with these shares of equal bins."""
    B = channel.matrix(np.linspace(channel.lower, channel.upper, len(shares) + 1), all_codes(channel))
    return np.round(total * B @ shares).astype(np.int64)


def test_a_smooth_distribution_needs_few_splines_and_a_rough_one_many():
    channel = as_channel(AGES)
    models = ReportModels(channel, 256, (), None)
    smooth, rough = np.diff(stats.beta.cdf(np.linspace(0, 1, 257), 3, 4)), np.zeros(256)
    rough[[40, 100]] = 0.5
    fits = [
        models.fit("splines", np.add.reduceat(expected(channel, shares), models.groups)) for shares in (smooth, rough)
    ]
    assert fits[0].splines <= 12
    assert fits[1].splines == LADDER[-1]
    assert np.abs(np.cumsum(fits[0].cells - smooth)).max() < 4e-3


def counted(mechanism, places, masses, n, seed=0):
    """Counts of reports of inputs with these masses, drawn from the mechanism's own table."""
    counts = Counts(mechanism)
    q = counts.channel.probabilities(np.asarray(places, float), all_codes(counts.channel)) @ np.asarray(masses)
    counts.numbers = np.random.default_rng(seed).multinomial(n, q / q.sum())
    return counts


@pytest.mark.lengthy
@pytest.mark.parametrize("name", CHANNELS)
def test_between_its_places_a_channel_is_linear_and_bins_average_it(name):
    channel = make_channel(name)
    knots, inner = channel.knots, channel.knots[:-1] + 0.3 * np.diff(channel.knots)
    if name == "discrete":
        assert channel.lattice == 1
        return
    groups = np.unique(np.linspace(0, len(channel.reports), 256, endpoint=False).astype(int))
    B = channel.probabilities(knots, groups)
    assert np.abs(B.sum(axis=0) - 1).max() < 1e-12
    assert np.abs(channel.probabilities(inner, groups) - (0.7 * B[:, :-1] + 0.3 * B[:, 1:])).max() < 2e-3 * B.max()
    assert np.abs(channel.matrix(knots, groups) - (B[:, :-1] + B[:, 1:]) / 2).max() < 2e-3 * B.max()


ZEROS = (np.append(0.0, np.linspace(0, 120, 400)), np.append(0.6, np.full(400, 0.001)))


def test_zeros_are_found_and_quantiles_are_at_them():
    """Of 10^6 rows with 60 % zeros the quantiles 0.3 and 0.5 were 0.4 and 0.8 % of the interval."""
    e = dpk.estimate(counted(AGES, *ZEROS, 10**6))
    assert "1 point mass, chosen by the likelihood of held-out reports" in e.model
    assert (e.quantile([0.3, 0.5]).value == 0).all()
    low, high = e.quantile([0.3, 0.5]).interval()
    assert (low == 0).all()
    assert (high < 1).all()
    assert e.cdf(0.0).value == pytest.approx(0.6, abs=0.02)
    low, high = e.cdf(0.0).interval()
    assert low == 0, "reports of 0 and of the next number are alike"
    assert 0.6 < high < 0.65
    assert e.distribution.cdf(np.array(0.0), strict=True) == 0
    assert e.assumption == "Intervals assume nothing about the values."


def test_an_estimate_is_pickled_with_the_intervals_that_it_has_found():
    e = dpk.estimate(counted(AGES, [30.0, 60.0], [0.5, 0.5], 10**4))
    interval = e.quantile(0.5).interval()
    assert pickle.loads(pickle.dumps(e)).quantile(0.5).interval() == interval


def test_integrals_of_noise_sum_its_table_once(monkeypatch):
    channel = as_channel(dpk.laplace(epsilon=1.0), bounds=(0.0, 10.0))
    edges, groups = np.linspace(0, 10, 30), np.arange(0, len(channel.reports), 100)
    expected = channel.matrix(edges, groups)
    monkeypatch.setattr("dpkernels.estimation.channel.np.cumsum", None)
    np.testing.assert_array_equal(channel.matrix(edges, groups), expected)


@pytest.mark.parametrize("atom", [45.0, 71.3])
def test_a_constant_column_is_one_place(atom):
    e = dpk.estimate(counted(AGES, [atom], [1.0], 10**5))
    for p in (0.1, 0.9):
        low, high = e.quantile(p).interval()
        assert low <= atom <= high
        assert high - low < 6
        assert e.quantile(p).value == pytest.approx(atom, abs=2)


@pytest.mark.parametrize("atom", [0.0, 50.0])
def test_reports_that_only_other_values_make_have_no_information(atom):
    """Noise on a wide interval: many reports are impossible, or nearly so, given the values that were estimated."""
    channel = as_channel(dpk.laplace(epsilon=1.0, sensitivity=1.0), bounds=(0.0, 100.0))
    counts = Counts(channel)
    counts.numbers += np.random.default_rng(0).multinomial(
        3000, channel.probabilities(np.array([atom]), all_codes(channel))[:, 0]
    )
    e = dpk.estimate(counts)
    low, high = e.quantile(0.5).interval()
    assert low <= atom <= high < low + 5
    low, high = e.histogram([0.0, 40.0, 60.0, 100.0]).shares.interval()
    assert np.isfinite([low, high]).all()
    assert high[2] < 0.01


@pytest.mark.lengthy
def test_named_atoms_and_smoothness_make_intervals_narrow():
    counts = counted(AGES, *ZEROS, 10**5)
    any_, smooth = dpk.estimate(counts), dpk.estimate(counts, assume="smooth", atoms=[0])
    assert "smooth density and point masses only at 0." in smooth.assumption
    widths = [np.ptp(e.cdf(np.linspace(0, 110, 6)).interval(), axis=0).mean() for e in (any_, smooth)]
    assert widths[1] < 0.8 * widths[0]
    low, high = smooth.cdf(0.0).interval()
    assert 0.4 < low < 0.6 < high < 0.7


def test_whole_numbers_stay_whole():
    counts = counted(AGES, np.arange(18, 66), np.full(48, 1 / 48), 10**5)
    e = dpk.estimate(counts, grid=1)
    assert (e.distribution.shares == 0).all()
    assert (e.distribution.places == np.arange(121)).all()
    quantiles = e.quantile([0.25, 0.5])
    assert (quantiles.value == np.round(quantiles.value)).all()
    low, high = quantiles.interval()
    assert (low == np.round(low)).all()
    assert (high == np.round(high)).all()
    assert e.cdf(40.0).value == e.cdf(40.9).value
    assert e.cdf(40.0).interval() == e.cdf(40.9).interval()
    assert e.assumption == "Intervals assume that the values are whole numbers, and nothing else."
    assert (grid_points(-0.5, 2.0, 0.5) == [-0.5, 0, 0.5, 1, 1.5, 2]).all()


def test_noise_on_integers_has_integers_behind_it():
    counts = Counts(NOISES["discrete"], bounds=(-1.0, 3.0))
    counts.numbers += np.round(
        1e5 * counts.channel.probabilities(np.array([2.0]), all_codes(counts.channel))[:, 0]
    ).astype(int)
    e = dpk.estimate(counts)
    assert (e.distribution.places == [-1, 0, 1, 2, 3]).all()
    assert e.quantile(0.5).value == 2


@pytest.mark.parametrize("seed", range(3))
def test_profile_intervals_are_those_of_constrained_optimisation(seed):
    """The largest c'theta that loses at most z^2/2 of the log-likelihood, by SLSQP, of many reports."""
    B, counts = small_problem(seed, m=12, d=5, n=10**6)
    fit, c = maximum_likelihood(B, counts), np.array([1.0, 1.0, 0.0, 0.0, 0.0])
    profile, p, top = ProfileLikelihood(B, counts, fit.shares), counts / counts.sum(), fit.log_likelihood
    for sign, confidence in itertools.product((1, -1), (0.5, 0.95)):
        room = stats.chi2.ppf(confidence, 1) / 2 / counts.sum()
        best = optimize.minimize(
            lambda t, sign=sign: -sign * c @ t,
            fit.shares,
            bounds=[(0, 1)] * 5,
            constraints=[
                {"type": "eq", "fun": lambda t: t.sum() - 1},
                {
                    "type": "ineq",
                    "fun": lambda t, room=room: 1e6 * (p @ np.log(B @ np.maximum(t, 1e-12)) - top + room),
                },
            ],
            method="SLSQP",
            options={"ftol": 1e-12, "maxiter": 500},
        )
        width = abs(-best.fun - sign * c @ fit.shares)
        assert profile.maximum(sign * c, confidence) == pytest.approx(-best.fun, abs=0.02 * width + 1e-5)


def test_parts_of_reports_are_the_whole():
    reports, _ = ages()
    whole = Counts(AGES).add(reports)
    parts = Counts(AGES).add(reports[:7]).add(reports[7:9000].reshape(-1, 1)) + Counts(AGES).add(reports[9000:])
    assert (parts.numbers == whole.numbers).all()
    assert parts.total == len(reports)
    assert dpk.estimate(parts).mean == dpk.estimate(reports, AGES).mean
    assert (
        whole + Counts(dpk.Certificate.from_dict(dpk.exact_sampler(AGES).certificate.to_dict()))
    ).total == whole.total
    for other in (dpk.piecewise(epsilon=2.0, lower=0.0, upper=120.0), dpk.piecewise(epsilon=1.0, lower=0.0, upper=9.0)):
        with pytest.raises(ValueError, match="different mechanisms"):
            whole + Counts(other)
    with pytest.raises(TypeError):
        whole + 1


WRITTEN = {
    "float64": lambda r: r,
    "text": lambda r: np.array([float(str(v)) for v in r]),
    "float32": lambda r: r.astype(np.float32),
    "float32 as text": lambda r: np.array([float(str(v)) for v in r.astype(np.float32)]),
    "float32 as float64": lambda r: r.astype(np.float32).astype(np.float64),
    "12 digits": lambda r: np.array([float(f"{v:.14g}") for v in r]),
    "pandas": lambda r: pd.Series(r),
}


@pytest.mark.parametrize("how", WRITTEN)
@pytest.mark.parametrize("name", ["piecewise", "hybrid"])
def test_reports_are_known_however_they_were_written(how, name):
    mechanism = getattr(dpk, name)(epsilon=1.0, lower=0.0, upper=120.0)
    reports = dpk.perturb(ages()[1][:3000], mechanism, key=KEY)
    assert (Counts(mechanism).add(WRITTEN[how](reports)).numbers == Counts(mechanism).add(reports).numbers).all()


@pytest.mark.quick("0")
@pytest.mark.parametrize("decimals", [0, 2])
def test_rounded_reports_are_known_by_their_decimals(decimals):
    """Those that rounding makes equal are counted together, and the channel is of what is written."""
    reports, _ = ages()
    counts = Counts(AGES, decimals=decimals).add(reports.round(decimals))
    assert counts.total == len(reports)
    assert np.array_equal(counts.channel.reports, np.unique(Counts(AGES).channel.reports.round(decimals)))
    rounded, plain = dpk.estimate(counts), dpk.estimate(reports, AGES)
    assert rounded.mean.value == pytest.approx(plain.mean.value, abs=0.02)
    assert rounded.quantile(0.5).value == pytest.approx(plain.quantile(0.5).value, abs=1.0)


def at_one_bin(channel, number=3, bins=7, total=10**12):
    """Counts of very many reports of inputs uniform on a bin, and its ends."""
    edges = np.linspace(channel.lower, channel.upper, bins + 1)
    counts = Counts(channel)
    counts.numbers += np.round(total * channel.matrix(edges, all_codes(channel))[:, number]).astype(np.int64)
    return counts, edges[number : number + 2]


COARSE = {
    "piecewise": (dpk.piecewise(epsilon=4.0, lower=0.0, upper=1.0), None, 1),
    "square wave": (dpk.square_wave(epsilon=4.0, lower=0.0, upper=1.0), None, 1),
    "hybrid": (dpk.hybrid(epsilon=1.0, lower=0.0, upper=1.0), None, 0),
    "laplace": (dpk.laplace(epsilon=1.0, sensitivity=1.0), (0.0, 1.0), 0),
    "laplace on a wide interval": (dpk.laplace(epsilon=8.0, sensitivity=1.0), (0.0, 4.0), 0),
}


@pytest.mark.lengthy
@pytest.mark.quick("0-*", "2-piecewise", "2-laplace")
@pytest.mark.parametrize("name", COARSE)
@pytest.mark.parametrize("at", [0, 2, 3])
def test_what_rounding_has_made_equal_is_in_the_intervals(name, at):
    """Rounding moves means of reports, and adds to their spread; of 10^12 reports chance plays no part."""
    mechanism, bounds, decimals = COARSE[name]
    counts, (low, high) = at_one_bin(as_channel(mechanism, bounds=bounds, decimals=decimals), at)
    e, mean, variance = dpk.estimate(counts), (low + high) / 2, (high - low) ** 2 / 12
    for moment, truth in ((e.mean, mean), (e.variance, variance)):
        assert moment.bias_bound > 0
        for start, end in (moment.interval(), moment.bernstein()):
            assert start - 1e-5 <= truth <= end + 1e-5
    # About what rounding adds to the spread, a constant, is known: of wide noise next to nothing is missed.
    assert name != "laplace" or (e.mean.bias_bound < 0.01 and e.variance.bias_bound < 0.03)


@pytest.mark.parametrize("n", [3, 20])
def test_a_variance_is_the_mean_over_pairs_of_reports(n):
    """(g_i + g_j)/2 - y_i y_j has the inputs' variance as its mean, of any two reports: also of few, without bias."""
    mechanism = dpk.piecewise(epsilon=10.0, lower=-1.0, upper=3.0)
    reports = dpk.perturb(np.linspace(-0.9, 2.9, n), mechanism, key=KEY)
    source = as_channel(mechanism)
    indices = np.abs(source.reports - reports[:, None]).argmin(axis=1)
    g, y = source.square_weights[0][indices], source.values[indices] - source.middle
    pairs = [(g[i] + g[j]) / 2 - y[i] * y[j] for i, j in itertools.combinations(range(n), 2)]
    assert dpk.estimate(reports, mechanism).variance.value == pytest.approx(np.mean(pairs), rel=1e-9)


@pytest.mark.parametrize("decimals", [None, 0])
def test_intervals_are_of_the_spread_of_the_reports_and_of_the_noise(decimals):
    """value -+ (t s/sqrt(n) + bias_bound), cut at the ends of what there can be."""
    reports = dpk.perturb(np.linspace(10.0, 110.0, 100), AGES, key=KEY)
    reports = reports if decimals is None else reports.round(decimals)
    e, source = dpk.estimate(reports, AGES, decimals=decimals), as_channel(AGES, decimals=decimals)
    indices = np.abs(source.reports - reports[:, None]).argmin(axis=1)
    y, g = source.values[indices], source.square_weights[0][indices]
    assert e.mean.error == pytest.approx(stats.sem(y), rel=1e-9)
    each = g - 2 * (y.mean() - source.middle) * (y - source.middle)
    assert e.variance.error == pytest.approx(stats.sem(each), rel=1e-9)
    assert (e.mean.bias_bound > 0) == (e.variance.bias_bound > 0) == (decimals is not None)
    n, covariance = len(y), dpk.covariance((reports, source), np.arange(100.0))
    mean = (n * y.mean() + 4 * source.middle) / (n + 4)
    away = source.values - source.middle
    y_noise, g_noise = (
        source.noise_variances(mean, weights)
        for weights in (away, source.square_weights[0] - 2 * (mean - source.middle) * away)
    )
    pooled = [
        max(((n - 1) * values.var(ddof=1) + 4 * known) / (n + 3), least)
        for values, (known, least) in ((y, y_noise), (each, g_noise))
    ]
    errors = np.sqrt(pooled[0] / n), np.sqrt(pooled[1] / n + 2 * pooled[0] ** 2 / (n * (n - 1)))
    for confidence in (0.3, 0.9, 0.99):
        for moment, error, degrees, low in (
            (e.mean, errors[0], n + 3, 1.0),
            (e.variance, errors[1], n + 3, 1 - 1 / n),
            (covariance, covariance.error, n - 1, 1.0),
        ):
            half = stats.t.ppf((1 + confidence) / 2, degrees) * error + moment.bias_bound
            ends = np.clip([low * moment.value - half, moment.value + half], moment.smallest, moment.largest)
            assert moment.interval(confidence) == pytest.approx(tuple(ends), rel=1e-9)
        assert e.standard_deviation.interval(confidence) == pytest.approx(np.sqrt(e.variance.interval(confidence)))
    low, high = e.mean.interval(0.3)
    assert 0 < low < high < 120, "the ends cut every interval"


def bernstein_half_width(table, weights, n, confidence):
    """The t at which 2 exp(-n t^2/(2 V + 2 M t/3)) is 1 - confidence, V and M by all rows, and half-way between."""
    rows = np.stack([table.row(s) for s in range(table.last_row + 1)]) / float(table.total)
    rows = np.concatenate([rows, (rows[1:] + rows[:-1]) / 2])
    means = rows @ weights
    V, M = (rows @ weights**2 - means**2).max(), np.abs(weights - means[:, None]).max()
    return optimize.brentq(
        lambda t: np.log(2 / (1 - confidence)) - n * t**2 / (2 * V + 2 * M * t / 3), 0.0, 100 * M, xtol=1e-14
    )


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("name", ["duchi", "sine-constant"])
def test_bernsteins_intervals_solve_their_equation(name, confidence):
    """Of a mean; of a variance those of both averages that it is made of, each with half the risk (a union bound)."""
    table = small_table(name, 1.0)
    channel = as_channel(WindowCertificate.of(table, 1.0))
    counts, n = Counts(channel), 40_000
    of_all = np.mean([table.row(s) for s in range(table.last_row + 1)], axis=0) / float(table.total)
    counts.numbers += np.random.default_rng(1).multinomial(n, of_all)
    e, y = dpk.estimate(counts), channel.values - channel.middle
    low, high = e.mean.bernstein(confidence)
    half = bernstein_half_width(table, y, n, confidence)
    assert (high - low) / 2 == pytest.approx(half, rel=1e-3)
    assert (high + low) / 2 == pytest.approx(e.mean.value, abs=1e-6 * half)
    if name == "duchi":
        return
    (g, bias_bound), p = channel.square_weights, counts.numbers / n
    assert bias_bound == 0
    half, of_squares = (bernstein_half_width(table, part, n, (1 + confidence) / 2) for part in (y, g))
    far, near = abs(p @ y) + half, max(abs(p @ y) - half, 0.0)
    low, high = e.variance.bernstein(confidence)
    assert low == pytest.approx(max(p @ g - of_squares - far**2, 0.0), rel=2e-3)
    assert high == pytest.approx(
        min(p @ g + of_squares - near**2, ((channel.upper - channel.lower) / 2) ** 2), rel=2e-3
    )
    assert low < e.variance.value < high < ((channel.upper - channel.lower) / 2) ** 2


@pytest.mark.parametrize("name", ["piecewise", "square_wave"])
def test_far_from_zero_bernsteins_interval_is_as_wide(name):
    """Squares of 10^9 have no digits left for a variance of 1."""
    make, halves = getattr(dpk, name), []
    for lower in (0.0, 1e9):
        counts, _ = at_one_bin(as_channel(make(epsilon=1.0, lower=lower, upper=lower + 1.0)), total=10**4)
        low, high = dpk.estimate(counts).mean._bernstein(0.95)
        halves.append((high - low) / 2)
    assert halves[1] == pytest.approx(halves[0], rel=1e-4)


def test_an_estimate_is_of_what_had_been_counted():
    reports, _ = ages()
    counts = Counts(AGES).add(reports[:1000])
    e = dpk.estimate(counts)
    counts.add(np.repeat(reports.max(), 1000))
    assert e.count == 1000
    assert e.mean.value == pytest.approx(reports[:1000].mean())


def test_one_report_is_shown_and_tells_no_quantile():
    """Few reports put the estimate at an end, where no resampled cdf differs."""
    written = as_channel(AGES).reports
    for n in (1, 5):
        for report in (written[0], written[len(written) // 2]):
            e = dpk.estimate(np.repeat(report, n), AGES)
            assert str(n) in repr(e)
            with pytest.raises(ValueError, match=r"too few for the quantile 0\.5"):
                e.quantile(0.5)


def refused(reports, mechanism=AGES, **options):
    with pytest.raises(ValueError, match=r"the mechanism cannot have made it") as error:
        dpk.estimate(reports, mechanism, **options)
    return str(error.value)


def test_what_is_no_report_is_refused():
    """Values themselves, shifted, scaled and rounded ones, one among many, and another mechanism's."""
    reports, x = ages()
    assert "row 0 " in refused(x)
    refused(reports + 1e-6)
    refused(reports * 1.001)
    refused(reports.round(3))
    refused(reports, decimals=3)
    refused(reports, dpk.piecewise(epsilon=1.01, lower=0.0, upper=120.0))
    refused(reports, dpk.piecewise(epsilon=1.0, lower=0.0, upper=121.0))
    refused(reports, NOISES["laplace"], bounds=(0.0, 120.0))
    for odd in (np.inf, -np.inf, 1e300, 60.1):
        assert "row 17 " in refused(np.insert(reports, 17, odd))
        assert "row 18 " in refused(np.insert(reports, 17, [np.nan, odd]))
    lattice = Counts(AGES).channel.reports
    assert "[-188." in refused(np.array([2 * lattice[-1] - lattice[-2]]))  # on the lattice, past its end


def test_reports_that_float32_cannot_tell_apart_are_refused():
    mechanism = dpk.piecewise(epsilon=1.0, lower=1000.0, upper=1000.001)
    with pytest.raises(ValueError, match="float32"):
        Counts(mechanism).add(dpk.perturb(np.full(50, 1000.0005, np.float32), mechanism, key=KEY))


@functools.cache
def estimated():
    return dpk.estimate(ages(200_000)[0], AGES)


def test_estimates_agree_with_each_other():
    e = estimated()
    p = np.array([0.2, 0.5, 0.8])
    assert e.cdf(e.quantile(p).value).value == pytest.approx(p, abs=1e-9)
    assert (e.cdf(0.0).value, e.cdf(120.0).value) == (0.0, 1.0)
    histogram = e.histogram(12)
    assert histogram.shares.value.sum() == pytest.approx(1)
    assert histogram.counts.value == pytest.approx(e.count * histogram.shares.value)
    assert e.count_between(20.0, 50.0).value == pytest.approx(histogram.counts.value[2:5].sum())
    assert e.histogram([20.0, 50.0]).counts.value == pytest.approx([e.count_between(20.0, 50.0).value])
    assert e.standard_deviation.value == pytest.approx(e.variance.value**0.5)
    assert e.mean.value == pytest.approx(dpk.estimate_mean(ages(200_000)[0], AGES).value)
    assert 0 <= e.gap <= 1e-6
    assert e.gap == e.likelihood.gap
    assert "200,000 reports" in repr(e)


def test_estimates_are_near_the_truth():
    """Within five standard errors, which are themselves a small part of the interval."""
    e, (_, x) = estimated(), ages(200_000)
    q = [0.1, 0.5, 0.9]
    for functional, truth in (
        (e.mean, x.mean()),
        (e.variance, x.var()),
        (e.quantile(q), np.quantile(x, q)),
        (e.cdf([30.0, 60.0]), [(x <= 30).mean(), (x <= 60).mean()]),
        (e.histogram(6).shares, np.histogram(x, 6, (0, 120))[0] / len(x)),
    ):
        low, high = functional.interval(1 - ALARM)
        assert (np.asarray(low) <= truth).all()
        assert (truth <= np.asarray(high)).all()
        low, high = functional.interval(0.95)
        assert (np.asarray(low) <= functional.value).all()
        assert (np.asarray(functional.value) <= high).all()
    assert np.abs(e.quantile(q).value - np.quantile(x, q)).max() < 5


@pytest.mark.quick("none")
@pytest.mark.parametrize("model", ["auto", "splines", "ems", "atoms", "none"])
def test_every_model_finds_the_distribution(model):
    reports, x = ages(200_000)
    grid = np.linspace(0, 120, 61)
    cdf = dpk.estimate(reports, AGES, model=model).cdf(grid).value
    truth = np.searchsorted(np.sort(x), grid) / len(x)
    assert np.abs(cdf - truth).mean() < (0.02 if model in ("ems", "none") else 0.01)


def test_intervals_are_wider_with_confidence_and_bands_wider_than_intervals():
    e = estimated()
    cdf = e.cdf(np.linspace(10, 110, 21))
    for kind in (cdf.interval, cdf.band, e.mean.interval, e.mean.bernstein, e.variance.bernstein):
        (a, b), (c, d) = kind(0.5), kind(0.99)
        assert (np.asarray(c) <= a).all()
        assert (np.asarray(b) <= d).all()
        assert np.sum(np.asarray(d) - c) > 1.2 * np.sum(np.asarray(b) - a)
    (low, high), (below, above) = cdf.interval(), e.cdf(np.linspace(0, 120, 25)).band(0.999)
    assert (below.min(), above.max(), below[0], below[-1]) == (0, 1, 0, 1)
    below, above = cdf.band()
    assert (above - below).mean() > 1.2 * (high - low).mean()
    assert e.mean.bernstein()[0] < e.mean.interval()[0]


@pytest.mark.lengthy
@pytest.mark.quick("piecewise", "optimal")
@pytest.mark.parametrize("name", ["piecewise", "hybrid", "optimal"])
def test_with_a_large_budget_it_is_numpy(name):
    mechanism = getattr(dpk, name)(epsilon=8.0, lower=-1.0, upper=3.0)
    x = -1 + 4 * np.random.default_rng(2).beta(2, 3, 50_000)
    e = dpk.estimate(dpk.perturb(x, mechanism, key=KEY), mechanism)
    assert e.mean.value == pytest.approx(x.mean(), abs=2e-3)
    assert e.variance.value == pytest.approx(x.var(), rel=2e-2)
    assert e.quantile([0.25, 0.5, 0.75]).value == pytest.approx(np.quantile(x, [0.25, 0.5, 0.75]), abs=2e-2)
    assert e.histogram(8).shares.value == pytest.approx(np.histogram(x, 8, (-1, 3))[0] / len(x), abs=4e-3)


@pytest.mark.lengthy
@pytest.mark.quick("piecewise", "hybrid", "laplace")
@pytest.mark.parametrize("name", ["piecewise", "hybrid", "optimal", "sine-quartic", "central", "laplace"])
def test_moments_are_unbiased(name):
    """Mean and variance over 400 releases of 5,000 (100 with noise), within five standard errors of the truth."""
    channel, runs = make_channel(name), 100 if name == "laplace" else 400
    edges = np.linspace(channel.lower, channel.upper, 65)
    middles, shares = (edges[1:] + edges[:-1]) / 2, np.diff(stats.beta.cdf(np.linspace(0, 1, 65), 2, 5))
    mean = shares @ middles
    variance = shares @ (middles**2 + (edges[1] - edges[0]) ** 2 / 12) - mean**2
    q = channel.matrix(edges, all_codes(channel)) @ shares
    estimates, counts = [], Counts(channel)
    for numbers in np.random.default_rng(8).multinomial(5000, q / q.sum(), size=runs):
        counts.numbers = numbers
        e = dpk.estimate(counts)
        # The noise's variance is 32 here, beside which that of the values is often cut off at 0: the mean alone.
        estimates.append((e.mean.value, e.variance.value if name != "laplace" else variance))
    error = np.std(estimates, axis=0) / runs**0.5
    assert (
        np.abs(np.mean(estimates, axis=0) - (mean, variance)) <= 5 * error + (0, channel.square_weights[1]) + 1e-12
    ).all()


@pytest.mark.thorough
def test_additive_noise_on_a_known_interval():
    noise, x = NOISES["laplace"], -1 + 4 * np.random.default_rng(2).beta(2, 3, 200_000)
    e = dpk.estimate(dpk.perturb(x, noise, key=KEY), noise, bounds=(-1.0, 3.0))
    assert e.gap <= 1e-6
    for found, truth in ((e.mean, x.mean()), (e.variance, x.var()), (e.quantile(0.5), np.median(x))):
        low, high = found.interval(1 - ALARM)
        assert low <= truth <= high
    with pytest.raises(ValueError, match="bounds: None"):
        dpk.estimate(x, noise)
    with pytest.raises(ValueError, match="possible reports"):
        dpk.estimate(x, noise, bounds=(0.0, 1e9))


def test_sidecars_say_what_made_the_reports(tmp_path):
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    pd.DataFrame({"age": range(20, 36, 2), "pay": range(1000, 9000, 1000)}).to_csv(source, index=False)
    age = ["--column", "age", "--mechanism", "piecewise", "--epsilon", "1", "--lower", "0", "--upper", "120"]
    pay = ["--column", "pay", "--mechanism", "discrete-laplace", "--epsilon", "5", "--sensitivity", "1"]
    assert main(["perturb", str(source), str(target), *age, *pay, "--quiet"]) == 0
    table, sidecar = pd.read_csv(target), tmp_path / "out.csv.json"
    e = dpk.estimate(table["age"], sidecar, column="age")
    assert (e.count, e.upper) == (8, 120.0)
    again = dpk.estimate(table["age"], json.loads(sidecar.read_text()), column="age")
    assert again.reports.numbers.tolist() == e.reports.numbers.tolist()
    with pytest.raises(ValueError, match="is not one of the perturbed columns"):
        dpk.estimate(table["age"], sidecar)
    with pytest.raises(ValueError, match="cannot have made it"):
        dpk.estimate(table["pay"].to_numpy(float) + 0.5, sidecar, column="pay", bounds=(0, 10_000))
    forged = json.loads(sidecar.read_text())
    forged["columns"][0]["certificate"]["epsilon"] = 0.5
    with pytest.raises(dpk.CertificateError):
        dpk.estimate(table["age"], forged, column="age")
    with pytest.raises(ValueError, match="not the sidecar"):
        dpk.estimate(table["age"], target)
    with pytest.raises(ValueError, match="not the sidecar"):
        dpk.estimate(table["age"], {"columns": 3})


def test_decimals_of_a_sidecar_are_used():
    """And other ones refused."""
    reports, _ = ages()
    form = {"columns": [{"column": "age", "certificate": dpk.exact_sampler(AGES).certificate.to_dict()}], "decimals": 1}
    assert dpk.estimate(reports.round(1), form).count == len(reports)
    with pytest.raises(ValueError, match="the sidecar says 1"):
        dpk.estimate(reports.round(2), form, decimals=2)
    with pytest.raises(dpk.CertificateError, match="killed"):
        dpk.estimate(reports.round(1), form | {"replacing": "old"})


BAD = {
    "no reports": (lambda: dpk.estimate(np.array([]), AGES), ValueError, "is empty"),
    "no counts": (lambda: dpk.estimate(Counts(AGES)), ValueError, "is empty"),
    "no mechanism": (lambda: dpk.estimate(ages()[0]), TypeError, "mechanism: None"),
    "a mechanism of counts": (
        lambda: dpk.estimate(Counts(AGES).add(ages()[0]), AGES),
        ValueError,
        "Counts already hold",
    ),
    "a number for a mechanism": (lambda: dpk.estimate(ages()[0], 1.0), TypeError, "exact sampler"),
    "one report": (lambda: dpk.estimate(ages()[0][:1], AGES).mean, dpk.TooFewReportsError, "about 2 are needed"),
    "bounds of a table": (lambda: dpk.estimate(ages()[0], AGES, bounds=(0, 1)), ValueError, "own interval"),
    "a column of a mechanism": (lambda: dpk.estimate(ages()[0], AGES, column="x"), ValueError, "for a sidecar"),
    "few bins": (lambda: dpk.estimate(ages()[0], AGES, bins=4), ValueError, "bins: 4"),
    "a model": (lambda: dpk.estimate(ages()[0], AGES, model="more"), ValueError, "model: 'more'"),
    "an assumption": (lambda: dpk.estimate(ages()[0], AGES, assume="all"), ValueError, "assume: 'all'"),
    "an atom outside": (lambda: dpk.estimate(ages()[0], AGES, atoms=[121]), ValueError, "atoms: 121"),
    "an atom off the grid": (lambda: dpk.estimate(ages()[0], AGES, atoms=[0.5], grid=1), ValueError, "multiples"),
    "a fine grid": (lambda: dpk.estimate(ages()[0], AGES, grid=0.01), ValueError, "grid: 0.01"),
    "a wide grid": (lambda: dpk.estimate(ages()[0], AGES, grid=121.0), ValueError, "grid: 121"),
    "a grid of NaN": (lambda: dpk.estimate(ages()[0], AGES, grid=np.nan), ValueError, "grid: nan"),
    "decimals": (lambda: dpk.estimate(ages()[0], AGES, decimals=-1), ValueError, "decimals: -1"),
    "a quantile of 0": (lambda: estimated().quantile(0.0), ValueError, "p: 0"),
    "a quantile too far out": (lambda: estimated().quantile([0.5, 1e-5]), ValueError, "too few for the quantile 1e-05"),
    "a cdf outside": (lambda: estimated().cdf(121.0), ValueError, "x: 121"),
    "a cdf of NaN": (lambda: estimated().cdf(np.nan), ValueError, "x: nan"),
    "an empty interval": (lambda: estimated().count_between(5.0, 5.0), ValueError, "is not less"),
    "no bins": (lambda: estimated().histogram(0), ValueError, "bins: 0"),
    "edges that fall": (lambda: estimated().histogram([1.0, 3.0, 2.0]), ValueError, "increasing"),
    "a confidence": (lambda: estimated().cdf(5.0).interval(1.0), ValueError, "confidence: 1"),
    "text": (lambda: dpk.estimate(np.array(["a"]), AGES), TypeError, "reports: .*floats"),
    "a list": (lambda: dpk.estimate([1.0], AGES), TypeError, "reports: list"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused(what):
    call, kind, words = BAD[what]
    with pytest.raises(kind, match=words):
        call()


def test_two_point_reports_tell_the_mean_only():
    mechanism = dpk.duchi(epsilon=1.0, lower=0.0, upper=120.0)
    e = dpk.estimate(dpk.perturb(ages()[1], mechanism, key=KEY), mechanism)
    assert e.mean.interval()[0] < e.mean.value
    for ask in (lambda: e.variance, lambda: e.cdf(3.0), lambda: e.quantile(0.5), lambda: e.histogram(4), lambda: e.gap):
        with pytest.raises(ValueError, match="the mean only"):
            ask()


def test_vectors_are_refused():
    vectors = dpk.multivariate(epsilon=1.0, dimensions=2, lower=0.0, upper=1.0)
    with pytest.raises(TypeError, match="vectors"):
        dpk.estimate(np.zeros((3, 2)), vectors)


def test_a_picture_is_drawn(tmp_path):
    e, (left, right) = estimated(), Figure().subplots(1, 2)
    assert e.plot(left, bins=12, label="age in years") is left
    assert e.plot(right, kind="cdf", title="ages") is right
    shares = e.histogram(12).shares
    ends = shares.interval(0.95)
    assert [bar.get_y() for bar in left.patches] == pytest.approx(ends[0])
    assert [bar.get_y() + bar.get_height() for bar in left.patches] == pytest.approx(ends[1])
    lines = [line for lines in left.collections for line in lines.get_segments()]
    drawn = {float(first): float(height) for (first, height), _ in lines}
    assert [drawn[first] for first in sorted(drawn)] == pytest.approx(shares.value)
    assert left.get_xlim() == right.get_xlim() == (e.lower, e.upper)
    assert (left.get_xlabel(), left.get_title(), right.get_title()) == (
        "age in years",
        "200,000 reports at epsilon 1",
        "ages",
    )
    save_plots({"": e}, tmp_path / "ages.png", 0.95, bins=5)
    assert (tmp_path / "ages.png").read_bytes().startswith(b"\x89PNG")
    for bad in (tmp_path / "ages.pdf", tmp_path / "none" / "ages.png"):
        with pytest.raises(ValueError, match="existing folder"):
            save_plots({"": e}, bad, 0.95)
    with pytest.raises(ValueError, match="13 groups; at most 12"):
        save_plots({str(number): e for number in range(13)}, tmp_path / "ages.png", 0.95)
    with pytest.raises(ValueError, match="kind: 'pie'"):
        e.plot(left, kind="pie")


def test_a_number_that_may_be_0_is_drawn_as_such():
    ax = Figure().subplots()
    value, low, high = np.array([0.5, 0.2, 0.3]), np.array([0.4, 0.0, 0.1]), np.array([0.6, 0.5, 0.4])
    draw_intervals(ax, np.arange(3.0), np.arange(3.0) + 1, value, low, high, "95 % intervals")
    shown, hidden = ax.collections
    assert [segment[0][1] for segment in shown.get_segments()] == [0.5, 0.3]
    assert [segment[0][1] for segment in hidden.get_segments()] == [0.2]
    assert hidden.get_linestyle() != shown.get_linestyle()
    ax.figure.canvas.draw()
    legend = ax.get_legend().get_window_extent().transformed(ax.transData.inverted())
    assert 0.6 < legend.y0 < legend.y1 < ax.get_ylim()[1]  # It is above all bands.


def test_lines_that_do_not_end_are_arrows():
    ax = Figure().subplots()
    low, high = np.array([1.0, -np.inf, -np.inf]), np.array([4.0, 9.0, np.inf])
    draw_open_intervals(ax, np.arange(3), np.array([2.0, 3.0, np.nan]), low, high)
    assert [(text.xyann[1], text.xy[0] < 1.0, text.xy[0] > 9.0) for text in ax.texts] == [
        (1, True, False),
        (2, True, False),
        (2, False, True),
    ]
    left, right = ax.get_xlim()
    assert all(left < text.xy[0] < right for text in ax.texts)


def test_a_picture_has_bins_that_the_reports_resolve():
    m = dpk.piecewise(epsilon=1.0, lower=0.0, upper=1.0)
    x = np.random.default_rng(3).beta(2, 5, 30_000)
    few, many = (dpk.estimate(dpk.perturb(x[:n], m, key=key), m) for n, key in ((600, KEY), (30_000, KEY)))
    assert few._resolved_bins(0.95) < many._resolved_bins(0.95)


def test_a_mean_is_in_the_inputs_interval_and_in_its_own():
    """All reports are the largest that there is, far beyond the inputs' interval."""
    written = as_channel(AGES).reports
    for report, end in ((written[-1], 120.0), (written[0], 0.0)):
        e = dpk.estimate(np.repeat(report, 100), AGES)
        assert e.mean.value == end
        for low, high in (e.mean.interval(), e.mean.bernstein()):
            assert low <= e.mean.value <= high
        assert 0 <= e.variance.value <= 3600
        low, high = e.variance.interval()
        assert low <= e.variance.value <= high


def test_too_few_reports_are_an_answer():
    """The mean needs as many as make the worst interval no wider than the inputs' own: n = (1.96 s / 60)^2."""
    needed = (1.96 / 60) ** 2 * AGES.worst_variance
    written = as_channel(AGES).reports[::40]
    for n in (int(needed) - 1, int(needed) + 2):
        e = dpk.estimate(np.resize(written, n), AGES)
        if n > needed:
            assert 0 <= e.mean.value <= 120
            continue
        with pytest.raises(dpk.TooFewReportsError, match="too few for the mean") as error:
            _ = e.mean
        assert error.value.needed == pytest.approx(needed, rel=0.1)
        assert pickle.loads(pickle.dumps(error.value)).args == error.value.args
        assert "too few" in repr(e)


def test_nothing_prints_more_than_a_line():
    e = estimated()
    results = [e, e.mean, e.quantile([0.2, 0.5]), e.quantile(0.5), e.histogram(100), e.cdf(np.linspace(0, 100, 50))]
    for result in [*results, e.likelihood, e.reports]:
        assert len(repr(result)) < 200
        assert "\n" not in repr(result)
    assert format_number(113338.2) == "113,340"
    assert [format_number(x) for x in (0.0, -3.14159265, 91084.4, 0.001234567, 1e20)] == [
        "0",
        "-3.1416",
        "91,084",
        "0.0012346",
        "1e+20",
    ]


def test_few_reports_of_which_many_distributions_are_as_likely_have_intervals():
    """The matrix of a Newton step is singular up to rounding; its Cholesky factor was not finite."""
    mechanism = dpk.piecewise(epsilon=4.0, lower=0.0, upper=100.0)
    reports = [-5.2038261433, 9.9377947418, 73.5536324881]
    written = Counts(mechanism).channel.reports
    reports = written[np.abs(written[:, None] - reports).argmin(axis=0)]
    low, high = dpk.estimate(reports, mechanism).histogram(4).shares.interval(0.9)
    assert np.isfinite([low, high]).all()
    assert (low <= high).all()
