"""``estimate_mean``: intervals that cover as often as they say, and reports that are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pytest
from exact_registry import EVERY
from exact_registry import mechanism as make_mechanism
from scipy import stats

import dpkernels as dpk

KEY = dpk.key_from_bytes(bytes(range(2, 34)))
RNG = np.random.default_rng(4)
ALARM = 1e-6
AGES = dpk.piecewise(epsilon=1.0, lower=0.0, upper=120.0)


def covered(interval, truth):
    return (interval[0] <= truth) & (truth <= interval[1])


def coverage(mechanism, confidence, *, runs, n):
    """How often each interval holds the inputs' mean, over runs of n reports of unequal inputs; fixed key."""
    lower, upper = mechanism.input_interval
    x = RNG.uniform(lower, lower + 0.7 * (upper - lower), n)
    reports = dpk.perturb(np.broadcast_to(x, (runs, n)), mechanism, key=KEY)
    results = [dpk.estimate_mean(row, mechanism) for row in reports]
    return tuple(
        sum(covered(getattr(result, name)(confidence), x.mean()) for result in results)
        for name in ("interval", "bernstein")
    )


@pytest.mark.lengthy
@pytest.mark.quick("piecewise-0.95", "hybrid-0.5")
@pytest.mark.parametrize("confidence", [0.5, 0.95])
@pytest.mark.parametrize("name", ["piecewise", "sine-constant", "duchi", "hybrid"])
def test_intervals_cover(name, confidence):
    """Both at least as often as they say, to a binomial false alarm of 1e-6.

    The reports' own spread contains the inputs', so the normal interval may cover a little more than it says: by
    less than 0.03 here, or it would not be the interval of that confidence.
    """
    runs = 2000
    normal, bernstein = coverage(make_mechanism(name, 1.0), confidence, runs=runs, n=400)
    low = stats.binom.ppf(ALARM, runs, confidence - 0.005)  # 0.005 for the approximation by the normal law.
    high = stats.binom.ppf(1 - ALARM, runs, min(1, confidence + 0.03))
    assert low <= normal <= high
    assert bernstein >= stats.binom.ppf(ALARM, runs, confidence)


@pytest.mark.lengthy
@pytest.mark.parametrize("name", EVERY)
def test_the_value_is_the_mean_and_the_intervals_are_about_it(name):
    mechanism = make_mechanism(name, 1.0)
    reports = dpk.perturb(np.full(1000, mechanism.middle), mechanism, key=KEY)
    result = dpk.estimate_mean(reports, mechanism)
    assert result.value == pytest.approx(reports.mean())
    assert result.count == 1000
    for low, high in (result.interval(0.9), result.bernstein(0.9)):
        assert low < result.value < high


def test_the_interval_is_students_of_a_pooled_variance():
    """That of four further reports is known; for many reports it is the normal interval."""
    reports = dpk.perturb(np.full(1000, 30.0), AGES, key=KEY)
    pooled_mean = (1000 * reports.mean() + 4 * AGES.middle) / 1004
    pooled = (999 * reports.var(ddof=1) + 4 * AGES.variance(pooled_mean)) / 1003
    expected = stats.t.interval(0.9, 1003, reports.mean(), np.sqrt(max(pooled, AGES.variance(pooled_mean)) / 1000))
    assert dpk.estimate_mean(reports, AGES).interval(0.9) == pytest.approx(expected, rel=1e-4)
    reports = dpk.perturb(np.full(100_000, 30.0), AGES, key=KEY)
    expected = stats.norm.interval(0.9, reports.mean(), stats.sem(reports))
    assert dpk.estimate_mean(reports, AGES).interval(0.9) == pytest.approx(expected, abs=0.005 * np.ptp(expected))


@pytest.mark.parametrize("n", [200, 1000, 10_000])
def test_bernsteins_interval_solves_its_equation(n):
    """2 exp(-n t^2 / (2 V + 2 M t / 3)) is 1 - confidence at its half-width t, with room for a table's V and M."""
    reports = dpk.perturb(np.full(n, 60.0), AGES, key=KEY)
    low, high = dpk.estimate_mean(reports, AGES).bernstein(0.9)
    t, variance, largest = (high - low) / 2, AGES.worst_variance, AGES.output_interval[1] - AGES.lower
    assert 2 * np.exp(-n * t**2 / (2 * variance + 2 * largest * t / 3)) <= 0.1
    assert 2 * np.exp(-n * t**2 / (2.002 * variance + 2.2 * largest * t / 3)) >= 0.1


def test_more_reports_or_less_confidence_give_shorter_intervals():
    reports = dpk.perturb(np.full(10_000, 30.0), AGES, key=KEY)

    def lengths(n, confidence):
        result = dpk.estimate_mean(reports[:n], AGES)
        return np.array([np.diff(result.interval(confidence))[0], np.diff(result.bernstein(confidence))[0]])

    assert np.all(lengths(10_000, 0.9) < lengths(1000, 0.9))
    assert np.all(lengths(1000, 0.8) < lengths(1000, 0.9))
    assert np.all(lengths(10_000, 0.9) > 0)


def test_one_report_has_no_spread_of_its_own():
    result = dpk.estimate_mean(np.array([100.0]), AGES)
    assert result.value == 100.0
    assert result.interval() == result.bernstein() == (0.0, 120.0)


@pytest.mark.parametrize("wrap", [np.float32, jnp.asarray, pd.Series, pl.Series, lambda x: x.reshape(10, 100)])
def test_reports_of_every_kind(wrap):
    reports = dpk.perturb(np.full(1000, 30.0), AGES, key=KEY).astype(np.float32)
    result, expected = dpk.estimate_mean(wrap(reports), AGES), dpk.estimate_mean(reports.astype(float), AGES)
    assert result.value == pytest.approx(expected.value, rel=1e-6)
    assert result.count == 1000
    assert type(result.value) is float


def test_an_exact_form_stands_for_its_mechanism():
    reports = dpk.perturb(np.full(1000, 30.0), AGES, key=KEY)
    assert dpk.estimate_mean(reports, dpk.exact_sampler(AGES)) == dpk.estimate_mean(reports, AGES)


def test_float32_reports_are_summed_in_float64():
    """Of a million reports near 1e6, float32 sums would be off by more than the tolerance."""
    mechanism = dpk.duchi(epsilon=5.0, lower=1e6, upper=1e6 + 8)
    reports = RNG.uniform(1e6, 1e6 + 8, 999_999).astype(np.float32)
    assert dpk.estimate_mean(reports, mechanism).value == pytest.approx(reports.astype(float).mean(), rel=1e-12)


# Vectors.

LOW, HIGH = np.array([0.0, -1.0, 5.0, 2.0]), np.array([1.0, 3.0, 6.0, 20.0])
VECTOR = dpk.multivariate(dimensions=4, epsilon=4.0, lower=LOW, upper=HIGH, sampled=2)


@pytest.mark.parametrize("mechanism", [AGES, dpk.duchi(epsilon=1.0, lower=0.0, upper=120.0), VECTOR])
@pytest.mark.parametrize("n", [1, 2, 5, 100])
def test_intervals_of_a_mean_end_where_values_can_be(mechanism, n):
    low, high = mechanism.input_interval
    inputs = np.full((n, VECTOR.dimensions) if mechanism is VECTOR else n, low, np.float64)
    result = dpk.estimate_mean(dpk.perturb(inputs, mechanism, key=KEY), mechanism)
    for ends in (result.interval(), result.bernstein()):
        assert np.all((low <= np.asarray(ends[0])) & (np.asarray(ends[0]) <= ends[1]) & (np.asarray(ends[1]) <= high))


@pytest.mark.lengthy
@pytest.mark.parametrize("confidence", [0.5, 0.9])
def test_intervals_of_vectors_cover_together(confidence):
    """All coordinates at once, by Bonferroni: at least as often as they say."""
    runs, x = 1000, LOW + (HIGH - LOW) * np.array([0.1, 0.5, 0.8, 1.0])
    reports = dpk.perturb(np.broadcast_to(x, (runs, 300, 4)), VECTOR, key=KEY)
    results = [dpk.estimate_mean(block, VECTOR) for block in reports]
    normal = sum(covered(result.interval(confidence), x).all() for result in results)
    bernstein = sum(covered(result.bernstein(confidence), x).all() for result in results)
    assert normal >= stats.binom.ppf(ALARM, runs, confidence - 0.01)
    assert bernstein >= stats.binom.ppf(ALARM, runs, confidence)


def test_vectors_have_an_estimate_a_coordinate():
    reports = dpk.perturb(np.broadcast_to((LOW + HIGH) / 2, (7, 50, 4)), VECTOR, key=KEY)
    result = dpk.estimate_mean(reports, VECTOR)
    np.testing.assert_allclose(result.value, reports.reshape(-1, 4).mean(axis=0))
    assert result.count == 350
    assert all(np.shape(end) == (4,) for end in (*result.interval(), *result.bernstein()))


# What is refused.


@pytest.mark.parametrize("shape", [(0,), (0, 4)])
def test_no_reports_have_no_mean(shape):
    for made in (AGES, VECTOR):
        with pytest.raises(ValueError, match=r"empty|last axis"):
            dpk.estimate_mean(np.zeros(shape), made)


@pytest.mark.parametrize("bad", [1e4, -1e4, np.nan, np.inf])
def test_an_impossible_report_is_refused(bad):
    reports = dpk.perturb(np.full(20, 30.0), AGES, key=KEY)
    reports[7] = bad
    with pytest.raises(ValueError, match=r"reports: row 7 is .* these are not its reports"):
        dpk.estimate_mean(reports, AGES)


def test_an_impossible_coordinate_is_refused():
    reports = dpk.perturb(np.broadcast_to((LOW + HIGH) / 2, (20, 4)), VECTOR, key=KEY)
    reports[7, 2] = 1e5
    with pytest.raises(ValueError, match="row 7"):
        dpk.estimate_mean(reports, VECTOR)


@pytest.mark.lengthy
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("epsilon", [0.1, 5.0])
def test_every_report_a_release_can_make_is_possible(name, epsilon):
    """The lattice reaches a little past the density's interval; its ends must not be called impossible."""
    mechanism = make_mechanism(name, epsilon)
    certificate = dpk.exact_sampler(mechanism).certificate
    ends = np.array([float(certificate.lowest), float(certificate.highest)])
    assert dpk.estimate_mean(ends, mechanism).value == pytest.approx(mechanism.middle)


@pytest.mark.parametrize("confidence", [0, 1, 0.0, 1.0, -0.1, 95, np.nan])
def test_confidence_is_a_probability(confidence):
    result = dpk.estimate_mean(np.array([30.0]), AGES)
    for interval in (result.interval, result.bernstein):
        with pytest.raises(ValueError, match=r"confidence: .* is not in \(0, 1\)"):
            interval(confidence)


@pytest.mark.parametrize("made", ["piecewise", None, 1.0, dpk.piecewise, dpk.Sine()])
def test_what_is_no_mechanism_is_refused(made):
    with pytest.raises(TypeError, match=r"mechanism: .* is not a mechanism"):
        dpk.estimate_mean(np.array([30.0]), made)


@pytest.mark.parametrize("reports", [[30.0], "30", np.array([True]), np.array(["30"]), pd.Series(["a"]), None])
def test_what_does_not_hold_numbers_is_refused(reports):
    with pytest.raises(TypeError):
        dpk.estimate_mean(reports, AGES)


@pytest.mark.parametrize("shape", [(6,), (6, 3)])
def test_vectors_of_another_dimension_are_refused(shape):
    with pytest.raises(ValueError, match="last axis"):
        dpk.estimate_mean(np.zeros(shape), VECTOR)


def test_simulated_reports_will_do():
    reports = dpk.perturb(np.full(20_000, 30.0), AGES, key=jax.random.key(0), exact=False)
    assert covered(dpk.estimate_mean(reports, AGES).interval(1 - ALARM), 30.0)
