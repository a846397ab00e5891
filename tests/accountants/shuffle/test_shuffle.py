"""Shuffled reports: the integral, the enumeration and the bracket against enumerations of their own, and bounds."""

import itertools
import json
import math
from collections import Counter
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from command_helpers import command
from scipy.stats import binom

import dpkernels as dpk
from accountants import calibrate, guarantee, shuffled, tune
from accountants.published import shuffle as published
from accountants.shuffle import bracket, estimate
from accountants.shuffle.blanket import largest_stop_loss, most_informative_outcomes, worst_inputs
from dpkernels.cli import tune as tuning

run = pytest.fixture(command, name="run")


def response(level, k):
    """Randomised response on k categories, row by row."""
    rows = np.ones((k, k)) + np.diag(np.full(k, math.expm1(level)))
    return rows / rows.sum(1, keepdims=True)


@cache
def piecewise(level):
    return dpk.exact_sampler(dpk.piecewise(epsilon=level, lower=0.0, upper=1.0))


def histograms(rows):
    """The law of how often each report is among those of these rows."""
    law = {(0,) * rows.shape[1]: 1.0}
    for row in rows:
        new = Counter()
        for counts, p in law.items():
            for j, q in enumerate(row):
                new[(*counts[:j], counts[j] + 1, *counts[j + 1 :])] += p * q
        law = new
    return law


def revealed(rows, x, y, others, epsilon):
    """delta of the shuffled reports of x and of y, with those of others, histogram by histogram."""
    p, q = (histograms(rows[[value, *others]]) for value in (x, y))
    return sum(max(mass - math.exp(epsilon) * q[counts], 0.0) for counts, mass in p.items())


def enumerated(level, k, n, epsilon):
    """The blanket's delta for randomised response, by sums over the counts of x, of x' and of all others."""
    E0, E = math.exp(level), math.exp(epsilon)
    share = 1 / (E0 + k - 1)  # gamma/k
    total, a = 0.0, np.arange(n + 1)
    chance = binom.pmf(a, n, share)
    for x in a[chance > 1e-40]:
        remaining = n - x
        y = np.arange(remaining + 1)
        of_y = binom.pmf(y, remaining, share / (1 - share))
        y, of_y = y[of_y > 1e-40], of_y[of_y > 1e-40]
        other = min((k - 2) * share / (1 - 2 * share), 1.0)
        z = np.arange(remaining + 1) if k > 2 else np.zeros(1)
        of_z = binom.pmf(z, (remaining - y)[:, None], other) if k > 2 else np.ones((len(y), 1))
        S = share * k * (x * (E0 - E) + y[:, None] * (1 - E * E0) + z * (1 - E))
        total += chance[x] * of_y @ (of_z * np.maximum(S, 0.0)).sum(1)
    return total / (share * k * n)


@pytest.mark.parametrize(("n", "epsilon"), [(3, 0.1), (5, 0.4), (7, 0.0)])
def test_bounds_hold_the_truth_of_every_neighbour(n, epsilon):
    """Histogram by histogram, for every pair and every choice of one input, or of two, of all others."""
    rows, reports = response(1.5, 3), shuffled(response(1.5, 3), n)
    truths = [
        revealed(rows, x, y, others, epsilon)
        for x, y in ((0, 1), (2, 0))
        for others in ([0] * (n - 1), [1] * (n - 1), [2] * (n - 1), [1] + [2] * (n - 2))
    ]
    assert max(truths) <= reports.delta(epsilon) * (1 + 1e-12)
    assert reports.lower(epsilon=epsilon) == pytest.approx(max(truths), rel=1e-9)
    low, high = reports.bracket(epsilon=epsilon)
    assert low <= max(truths) <= high
    assert low == pytest.approx(max(truths), rel=1e-9)


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("level", "k", "n", "epsilon"),
    [
        (0.5, 2, 2, 0.2),
        (1.0, 2, 100, 0.3),
        (4.0, 2, 10_000, 0.3),
        (1.0, 2, 10_000, 0.05),
        (3.0, 4, 60, 0.5),
        (2.0, 10, 40, 0.0),
    ],
)
def test_randomised_response_is_enumerated(level, k, n, epsilon):
    reports = shuffled(response(level, k), n)
    assert reports.estimate_delta(epsilon) == pytest.approx(enumerated(level, k, n, epsilon), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("k", [3, 8])
@pytest.mark.parametrize("level", [1.0, 4.0])
def test_randomised_response_on_categories_is_enumerated(level, k):
    for epsilon in (0.0, 0.1, 0.7):
        reports = shuffled(response(level, k), 300)
        assert reports.estimate_delta(epsilon) == pytest.approx(enumerated(level, k, 300, epsilon), rel=1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("level", "n", "upper", "lower", "rel"),
    [
        (4.0, 100_000, 6.957e-6, 6.957e-6, 1e-4),
        (2.0, 1000, 7.49e-3, 5.99e-3, 1e-3),
        (1.0, 1000, 5.81e-5, 1.56e-5, 3e-3),
    ],
)
def test_the_certified_type_one_table(level, n, upper, lower, rel):
    reports = shuffled(piecewise(level), n)
    assert reports.estimate_delta(0.1) == pytest.approx(upper, rel=rel)
    assert reports.lower(epsilon=0.1) == pytest.approx(lower, rel=rel)


def test_generic_bounds_are_those_known():
    """Feldman, McMillan & Talwar 2021, numerically, at eps0 = 4 and 100,000 reports."""
    epsilon = published.epsilon_of(lambda eps: published.published_clones(4.0, 100_000, eps), 1e-6, 4.0)
    assert 0.168 <= epsilon <= 0.173


def random_mechanisms(count, seed):
    draws = np.random.default_rng(seed)
    for number in range(count):
        level, n = float(np.exp(draws.uniform(-1.5, 1.8))), int(10 ** draws.uniform(0.4, 6))
        kinds = (
            lambda e: piecewise(round(e, 3)),
            lambda e: dpk.exact_sampler(dpk.duchi(epsilon=e, lower=-1.0, upper=3.0)),
            lambda e: response(e, 5),
            lambda e: _rows(draws, e, 6, 9),
        )
        yield kinds[number % len(kinds)](level), n, float(10 ** draws.uniform(-14, -2))


def _rows(draws, level, n, m):
    """A table of random rows of about this level."""
    rows = np.exp(level * draws.uniform(-0.5, 0.5, (n, m)))
    return rows / rows.sum(1, keepdims=True)


def _check(mechanism, n, delta):
    reports = shuffled(mechanism, n)
    eps = reports.estimate_epsilon(delta)
    assert reports.lower(delta=delta) <= eps
    epsilon_inside = max(eps, 1e-6)
    low, high = reports.bracket(epsilon=epsilon_inside)
    value = reports.estimate_delta(epsilon_inside)
    slack = {"enumeration": 1e-9, "integral": 2e-5, "grid": 2e-4}[max(reports._upper.methods)]
    # What the grid allows for rounding of losses, which is all there is next to eps0.
    rounding = 1e-12 if epsilon_inside < (1 - 1e-9) * float(reports.inputs.pure_epsilon) else 1e-8
    assert low <= high * (1 + 1e-12)
    assert low <= value * (1 + slack)
    assert value <= high * (1 + slack) + rounding
    level = float(reports.inputs.pure_epsilon)
    pairs = reports.inputs.pairs
    distance = max(0.5 * np.abs(pair.first - pair.second).sum() for pair in pairs)
    bounds = [
        published.published_clones(level, n, epsilon_inside),
        published.published_variation_ratio(level, n, epsilon_inside, math.tanh(level / 2)),
        *(published.published_blanket(mechanism, n, epsilon_inside, which) for which in ("hoeffding", "bennett")),
    ]
    if len(pairs[0].upper.merged.mass) <= 3:
        bounds.append(published.published_variation_ratio(level, n, epsilon_inside, distance))
    assert value <= min(bounds) * (1 + slack) + rounding


@pytest.mark.parametrize("number", [0, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(1, 8))])
def test_random_mechanisms(number):
    _check(*next(itertools.islice(random_mechanisms(8, 1), number, None)))


@pytest.mark.slow
def test_three_hundred_random_mechanisms():
    for case in random_mechanisms(300, 2):
        _check(*case)


@pytest.mark.parametrize("n", [2, 50, 3000, 10**6, 10**9])
def test_epsilon_and_delta_are_inverse(n):
    reports = shuffled(piecewise(2.0), n)
    for delta in (1e-3, 1e-10):
        eps = reports.estimate_epsilon(delta)
        back = reports.estimate_delta(eps)
        assert back == pytest.approx(delta, rel=1e-8) or (eps == 0 and reports.estimate_delta(0.0) <= delta)
    assert np.all(np.diff(reports.estimate_delta(np.linspace(0.0, 2.0, 9))) <= 0)
    assert reports.estimate_delta(np.zeros((2, 3))).shape == (2, 3)


def test_probabilities_by_quadrature_are_refused_and_estimated_by_name():
    mechanism = dpk.composite("sine", epsilon=2.0, lower=0.0, upper=1.0)
    reports = shuffled(mechanism, 1000)
    for ask in (lambda: reports.delta(0.1), lambda: reports.epsilon(1e-6)):
        with pytest.raises(ValueError, match=r"exact_sampler.*; or ask for estimate_delta or estimate_epsilon"):
            ask()
    assert reports.estimate_epsilon(1e-6) == pytest.approx(
        shuffled(dpk.exact_sampler(mechanism), 1000).epsilon(1e-6), rel=1e-2
    )


@pytest.mark.parametrize("share", [0.9, 1 - 1e-6, 1 - 1e-9])
def test_the_bracket_holds_next_to_the_pure_level(share):
    """Where only the largest losses are positive, and barely: against the first report that is not hidden at all."""
    rows = _rows(np.random.default_rng(11), 1.0, 6, 9)
    reports, n = shuffled(rows, 13), 13
    eps = share * float(reports.inputs.pure_epsilon)
    low, high = reports.bracket(epsilon=eps)
    value = reports.estimate_delta(eps)
    assert low <= high
    assert 0 < value <= high * (1 + 2e-4) + 1e-12  # The grid's own allowance for rounding.
    # M = 1: one report of the blanket, that of the person, of any pair.
    blanket = reports._upper.blankets[0]
    alone = (1 - blanket.gamma) ** (n - 1) * blanket.mass @ np.maximum(blanket.losses(eps), 0.0)
    assert alone <= high * (1 + 1e-9)


@pytest.mark.thorough
def test_the_bracket_of_epsilon_holds_both_values():
    for n in (30, 10**5):
        reports = shuffled(piecewise(3.0), n)
        low, high = reports.bracket(delta=1e-8)
        assert low <= reports.lower(delta=1e-8) <= reports.epsilon(1e-8) <= high
        assert high <= reports.epsilon(1e-8) * (1 + 1e-5)


@pytest.mark.thorough
def test_derivatives():
    """In eps, in n, in the mechanism's parameters; against central differences."""
    with jax.enable_x64(True):

        def made(n, level, eta):
            family = tune.piecewise(epsilon=level, lower=0.0, upper=1.0)
            return shuffled(family.build({"eta": eta}), n)

        def delta(eps, n, level, eta):
            return jnp.log(made(n, level, eta).delta(eps))

        def epsilon(log_delta, n, level, eta):
            return made(n, level, eta).epsilon(jnp.exp(log_delta))

        for function, first in ((delta, 0.08), (epsilon, -12.0)):
            at = tuple(jnp.float64(value) for value in (first, 3e4, 2.0, 3.0))
            both = jax.jit(jax.value_and_grad(function, argnums=(0, 1, 2, 3)))
            for i, slope in enumerate(both(*at)[1]):
                step = 1e-4 * abs(at[i])

                def value(share, i=i, step=step, both=both, at=at):
                    return both(*at[:i], at[i] + share * step, *at[i + 1 :])[0]

                coarse, fine = (value(1) - value(-1)) / (2 * step), (value(0.5) - value(-0.5)) / step
                assert slope == pytest.approx(float((4 * fine - coarse) / 3), rel=1e-6)


@pytest.mark.lengthy
def test_the_derivative_in_the_number_of_people_is_a_difference():
    """Of the values for plain numbers, which have no derivative."""
    mechanism, n, step, eps = dpk.piecewise(epsilon=2.0, lower=0.0, upper=1.0), 30_000, 300, 0.08
    with jax.enable_x64(True):
        slope = float(jax.grad(lambda n: jnp.log(shuffled(mechanism, n).delta(eps)))(jnp.float64(n)))
    above, below = (math.log(shuffled(mechanism, n + sign * step).estimate_delta(eps)) for sign in (1, -1))
    assert slope == pytest.approx((above - below) / (2 * step), rel=1e-3)


def test_vectorised_and_traced_values_are_the_integral():
    mechanism = dpk.piecewise(epsilon=2.0, lower=0.0, upper=1.0)
    with jax.enable_x64(True):
        eps = jnp.array([[0.02, 0.05], [0.1, 0.2]])
        delta = shuffled(mechanism, jnp.float64(10**6)).delta(eps)
    assert np.asarray(delta) == pytest.approx(shuffled(mechanism, 10**6).estimate_delta(np.asarray(eps)), rel=1e-9)
    for bad in (
        shuffled(mechanism, 10**6).delta,
        lambda eps: shuffled(dpk.piecewise(epsilon=20 * eps, lower=0.0, upper=1.0), 10**6).delta(0.1),
    ):
        with pytest.raises(ValueError, match="64"):
            jax.jit(bad)(jnp.float32(0.1))


@pytest.mark.thorough
@pytest.mark.parametrize("window", ["sine", "triangle"])
@pytest.mark.parametrize("width", [0.9, 1.2])
def test_the_ends_are_worst_by_exhaustion(window, width):
    """All pairs of rows of a small table, at many eps and t; and the bound for overlapping windows is above them."""
    mechanism = dpk.composite(window=window, base="quartic", epsilon=1.5, lower=0.0, upper=1.0, width=width)
    table = dpk.exact_sampler(mechanism).table
    rows = np.stack([table.row(s) for s in np.linspace(0, table.last_row, 25).round().astype(int)]) / float(table.total)
    inputs = worst_inputs(dpk.exact_sampler(mechanism))
    (ends,) = inputs.pairs
    omega = ends.least / ends.least.sum()
    # The sampled rows' own minimum is not that of all rows: the losses are of the table's omega.
    for eps in (0.05, 0.3, 1.0):
        E = math.exp(eps)
        L = (ends.first - E * ends.second) / omega
        t = np.linspace(L.min(), L.max(), 41)[1:-1]
        worst = np.maximum(L - t[:, None], 0.0) @ omega
        for x in range(len(rows)):
            gaps = (rows[x] - E * rows) / omega
            assert np.all(np.maximum(gaps[:, None] - t[:, None], 0.0) @ omega <= worst * (1 + 1e-9) + 1e-12)
        if inputs.stop_loss is not None:
            assert np.all(inputs.stop_loss(E, t) >= worst * (1 - 1e-12))
    assert (inputs.stop_loss is None) == (width < 1)


def test_a_table_is_bounded_over_all_its_pairs():
    rows = _rows(np.random.default_rng(5), 2.0, 7, 6)
    inputs, E = worst_inputs(rows), math.exp(0.2)
    blankets = [pair.upper for pair in inputs.pairs]
    t = np.linspace(-1.0, 1.0, 9)
    for blanket in blankets:
        stop_loss = np.maximum(blanket.p - E * blanket.q - t[:, None], 0.0) @ blanket.mass
        assert np.all(stop_loss <= largest_stop_loss(rows, E, t) * (1 + 1e-12))
    reports = shuffled(rows, 400)
    assert reports.delta(0.2) <= reports.bracket(epsilon=0.2)[1] * (1 + 1e-6)


def test_a_level_bounds_every_mechanism_of_it():
    """The law of eps0 and gamma alone is above the piecewise mechanism's, the flat one's equal."""
    inputs = worst_inputs(piecewise(2.0))
    generic = most_informative_outcomes(inputs.pure_epsilon, inputs.pairs[0].least.sum()).upper.merged
    exact = inputs.pairs[0].upper.merged
    for n, eps in ((100, 0.3), (10**6, 0.01)):
        values = [estimate.host_log_delta(blanket, n, eps)[0] for blanket in (exact, generic)]
        assert values[0] <= values[1] + 1e-9


def test_planted_faults_are_seen():
    """A blanket that is too large, or a report more than there are, breaks the bound's truth."""
    rows, n, eps = response(1.5, 3), 5, 0.4
    truth = revealed(rows, 0, 1, [2] * (n - 1), eps)
    assert shuffled(rows, n).bracket(epsilon=eps)[1] >= truth
    assert shuffled(rows, n + 1).bracket(epsilon=eps)[1] < truth
    blanket = shuffled(rows, n)._upper.blankets[0]
    wrong = type(blanket)(blanket.mass, blanket.p, blanket.q, blanket.gamma * 1.2)
    assert bracket.blanket_upper_delta(wrong, n, eps) < truth


@pytest.mark.thorough
def test_a_round_as_a_pair_is_no_less_than_it():
    reports, eps = shuffled(piecewise(2.0), 2000), np.array([0.0, 0.03, 0.1, 0.3])
    pair = reports.guarantee()
    assert np.all(reports.delta(eps) <= pair.delta(eps))
    assert np.all(pair.delta(eps) <= reports.delta(eps) * 1.02 + 1e-17)


@pytest.mark.thorough
def test_rounds_compose():
    reports = shuffled(piecewise(2.0), 2000)
    assert reports.epsilon(1e-6) < reports.repeat(10).epsilon(1e-6) < 10 * reports.epsilon(1e-7)


@pytest.mark.slow
def test_rounds_compose_with_others():
    reports = shuffled(piecewise(2.0), 2000)
    both = reports.compose(guarantee(dpk.laplace(epsilon=0.1, sensitivity=1.0)))
    assert reports.epsilon(1e-6) < both.epsilon(1e-6) <= reports.epsilon(1e-6) + 0.1 + 1e-6
    assert guarantee(reports).epsilon(1e-6) == pytest.approx(reports.epsilon(1e-6), rel=1e-3)


@pytest.mark.slow
def test_a_composed_pair_of_two_rounds_is_no_less_than_the_rounds():
    """Two rounds of 4 people, by all pairs of histograms: their truth is within what is composed."""
    rows, n, eps = response(1.0, 2), 4, 0.3
    laws = [histograms(rows[[value] + [1] * (n - 1)]) for value in (0, 1)]
    truth = sum(
        max(laws[0][a] * laws[0][b] - math.exp(eps) * laws[1][a] * laws[1][b], 0.0) for a in laws[0] for b in laws[0]
    )
    reports = shuffled(rows, n)
    assert truth <= reports.repeat(2).delta(eps)
    assert truth <= reports.guarantee(rigorous=True).repeat(2).bracket(epsilon=eps)[1]


@pytest.mark.thorough
def test_calibration_meets_its_target():
    mechanism = calibrate.shuffled(dpk.piecewise, epsilon=0.1, delta=1e-6, n=100_000, lower=0.0, upper=1.0)
    assert shuffled(dpk.exact_sampler(mechanism), 100_000).bracket(epsilon=0.1)[1] <= 1e-6
    more = dpk.piecewise(epsilon=float(mechanism.epsilon) * 1.001, lower=0.0, upper=1.0)
    assert shuffled(more, 100_000).delta(0.1) > 1e-6
    with pytest.raises(ValueError, match="already have epsilon"):
        calibrate.shuffled(dpk.piecewise, epsilon=1e-6, delta=1e-9, n=10, lower=0.0, upper=1.0)


@pytest.mark.thorough
def test_tuning_under_a_shuffled_budget():
    family = tune.shuffled(tune.piecewise(epsilon=1.0, lower=0.0, upper=1.0), n=10_000, epsilon=0.2, delta=1e-6)
    tuned = tune.best(family, tune.worst_variance)
    assert tuned.delta <= 1e-6
    usual = calibrate.shuffled(dpk.piecewise, epsilon=0.2, delta=1e-6, n=10_000, lower=0.0, upper=1.0)
    assert tuned.value <= float(usual.worst_variance) * (1 + 1e-4)
    duchi = tune.shuffled(tune.duchi(epsilon=1.0, lower=0.0, upper=1.0), n=10_000, epsilon=0.2, delta=1e-6)
    assert tune.best(duchi, tune.worst_variance).value > 0
    with pytest.raises(TypeError, match="no bounded family"):
        tune.shuffled(tune.laplace(epsilon=1.0, sensitivity=1.0), n=100, epsilon=1.0, delta=1e-6)


@pytest.mark.parametrize(
    ("mechanism", "error", "match"),
    [
        (lambda: dpk.laplace(epsilon=1.0, sensitivity=1.0), ValueError, "additive noise"),
        (lambda: dpk.gaussian(sigma=1.0), ValueError, "additive noise"),
        (lambda: dpk.truncated_laplace(epsilon=0.7, delta=2.5e-6, sensitivity=1.0), ValueError, "additive noise"),
        (lambda: dpk.exact_sampler(dpk.laplace(epsilon=1.0, sensitivity=1.0)), ValueError, "additive noise"),
        (
            lambda: dpk.multivariate(epsilon=4.0, lower=0.0, upper=1.0, dimensions=4, sampled=2),
            ValueError,
            "2 coordinates",
        ),
        (lambda: np.array([[1.0, 0.0], [0.5, 0.5]]), ValueError, "every report must be possible"),
        (lambda: np.array([[0.6, 0.6], [0.5, 0.5]]), ValueError, "add up to 1"),
        (lambda: "piecewise", TypeError, "no known blanket"),
    ],
)
def test_what_nothing_hides_is_refused(mechanism, error, match):
    with pytest.raises(error, match=match):
        shuffled(mechanism(), 100)


def test_arguments_out_of_range_are_refused():
    one = piecewise(1.0)
    for n in (1, 0, -3, math.inf, math.nan):
        with pytest.raises((ValueError, TypeError), match="n:"):
            shuffled(one, n)
    reports = shuffled(one, 10)
    with pytest.raises(ValueError, match="epsilon"):
        reports.delta(-0.1)
    with pytest.raises(ValueError, match="delta"):
        reports.epsilon(0.0)
    with pytest.raises(ValueError, match="exactly one"):
        reports.bracket()
    with pytest.raises(ValueError, match="must be an integer"):
        shuffled(one, 10.5).bracket(epsilon=0.1)
    with pytest.raises(ValueError, match="exact_sampler"):
        shuffled(dpk.piecewise_triangle(epsilon=1.0, lower=0.0, upper=1.0), 100).bracket(epsilon=0.1)
    for word in ("replaced", "trusted", "honest", "colludes"):
        assert word in reports.neighbouring


def test_one_coordinate_of_many_is_one_coordinate():
    many = dpk.multivariate(epsilon=2.0, lower=0.0, upper=1.0, dimensions=5, sampled=1)
    assert shuffled(many, 1000).epsilon(1e-6) == pytest.approx(shuffled(many.coordinate, 1000).epsilon(1e-6))


@pytest.mark.thorough
def test_the_command_accounts_shuffled_reports(run, tmp_path):
    picture = tmp_path / "n.png"
    done = run(
        *("account", "piecewise", "--lower", "0", "--upper", "120", "--epsilon", "1", "--shuffle", "1000"),
        *("--at-delta", "1e-6", "--at-epsilon", "0.1", "--plot", str(picture), "--json"),
    )
    assert done.code == 0, done.err
    numbers = json.loads(done.out)
    (row,) = numbers["epsilon_at_delta"]
    assert row["epsilon"] == pytest.approx(shuffled(piecewise(1.0), 1000).epsilon(1e-6), rel=1e-9)
    assert row["at_least"] <= row["some_inputs"] <= row["epsilon"] <= row["at_most"]
    assert numbers["delta_at_epsilon"][0]["delta"] == pytest.approx(5.81e-5, rel=3e-3)
    assert "trusted" in numbers["neighbouring"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    refused = run("account", "laplace", "--sensitivity", "1", "--epsilon", "1", "--shuffle", "100")
    assert refused.code == 2
    assert "additive noise" in refused.err
    both = run("account", "duchi", "--lower", "0", "--upper", "1", "--epsilon", "1", "--shuffle", "9", "--reports", "2")
    assert both.code == 2
    assert "--shuffle" in both.err


@pytest.mark.lengthy
def test_the_command_tunes_for_a_shuffled_budget(run, monkeypatch):
    monkeypatch.setitem(tuning._FAMILIES, tuning._BOUNDED, (tune.duchi, tune.hybrid))
    options = ["--epsilon", "0.3", "--lower", "0", "--upper", "1", "--shuffle", "3000"]
    done = run("tune", *options, "--delta", "1e-6", "--json")
    assert done.code == 0, done.err
    best = json.loads(done.out)["results"][0]
    mechanism = eval(best["python"], {"dpk": dpk})
    assert shuffled(dpk.exact_sampler(mechanism), 3000).upper_bound(0.3) <= 1e-6
    assert "trusted" in json.loads(done.out)["covers"]
    refused = run("tune", *options)
    assert refused.code == 2
    assert "--delta: missing" in refused.err


@pytest.mark.thorough
def test_the_grid_at_the_level_does_not_hide_the_root():
    """At 12.5 the grid from above has 1e-3 where delta is 0; epsilon was the level for it."""
    rounds = [shuffled(dpk.hybrid(epsilon=level, lower=0.0, upper=1.0), 70_000_000) for level in (12.499, 12.5)]
    epsilon_before, epsilon = (one.estimate_epsilon(1e-6) for one in rounds)
    assert epsilon_before < epsilon < epsilon_before * 1.01
    assert rounds[1].estimate_delta(epsilon) == pytest.approx(1e-6, rel=1e-6)
    assert rounds[1].lower(delta=1e-6) <= epsilon <= rounds[1].bracket(delta=1e-6)[1] * (1 + 1e-9)
