"""Mechanisms for categories: exact channels, unbiased estimates, errors at the strict bound, and float kernels."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import dpkernels as dpk
from dpkernels.exact.categorical.certificate import BlockCertificate, SetCertificate
from dpkernels.exact.categorical.sampler import category_sampler
from dpkernels.mechanisms.categorical.galois import field, is_field, prime_power

FALSE_ALARM = 1e-6
SMALL = {
    "response": dpk.randomised_response(1.0, 5),
    "binary": dpk.randomised_response(0.3, 2),
    "sets": dpk.subset_selection(1.0, 9, 3),
    "most": dpk.subset_selection(2.0, 5, 4),
    "blocks": dpk.block_response(1.0, 20),
    "prime blocks": dpk.block_response(1.5, 11, 5),
    "cubes": dpk.block_response(2.0, 30, 27),
}
every_mechanism = pytest.mark.parametrize("name", SMALL)


def moments(channel, supports, certificate):
    """Means and summed variances, as fractions, of the estimated shares from one report of each category."""
    p, q = certificate.probability, certificate.other_probability
    means, variances = [], []
    for row in channel:
        supported = [sum(w for w, is_in in zip(row, column, strict=True) if is_in) for column in supports.T.tolist()]
        means.append([(probability - q) / (p - q) for probability in supported])
        variances.append(sum(probability * (1 - probability) for probability in supported) / (p - q) ** 2)
    return means, variances


def is_unbiased(means):
    return all(mean == (x == y) for x, row in enumerate(means) for y, mean in enumerate(row))


@every_mechanism
def test_estimates_are_unbiased_and_have_the_stated_error(name):
    """By fractions, over all reports of the integers that a release samples."""
    m = SMALL[name]
    certificate = category_sampler(m).certificate
    means, variances = moments(certificate.channel(), m.supports(m.all_reports()), certificate)
    assert is_unbiased(means)
    p, q = float(certificate.probability), float(certificate.other_probability)
    d = m.categories
    stated = (p * (1 - p) + (d - 1) * q * (1 - q)) / (p - q) ** 2
    np.testing.assert_allclose([float(variance) for variance in variances], stated, rtol=1e-12)
    assert m.mean_squared_error(3) == pytest.approx(stated / 3, rel=1e-12)
    assert m.share_variance(1.0) + (d - 1) * m.share_variance(0.0) == pytest.approx(stated, rel=1e-12)


def test_planted_faults_bias_an_estimate():
    m = SMALL["sets"]
    certificate = category_sampler(m).certificate
    channel, supports = certificate.channel(), m.supports(m.all_reports())
    assert is_unbiased(moments(channel, supports, certificate)[0])
    assert not is_unbiased(moments([*channel[1:], channel[0]], supports, certificate)[0])  # Codes shifted by one.
    assert not is_unbiased(moments([channel[1], *channel[1:]], supports, certificate)[0])  # A wrong row.
    more = SetCertificate(2.0, 9, certificate.threshold, 64, 2)  # Sets of another size.
    assert not is_unbiased(moments(channel, supports, more)[0])


@pytest.mark.lengthy
@pytest.mark.quick("2", "3", "4", "5", "6", "7", "9", "16", "20", "27", "33", "64")
@pytest.mark.parametrize("d", range(2, 65))
def test_every_channel_up_to_64_categories(d):
    """By fractions: rows add up to 1, ratios are at most e^eps, estimates are unbiased, errors are as stated."""
    for epsilon in (0.5, 2.0):
        response, blocks = dpk.randomised_response(epsilon, d), dpk.block_response(epsilon, d)
        for m in (response, blocks):
            certificate = category_sampler(m).certificate
            channel = certificate.channel()
            assert all(sum(row) == 1 for row in channel)
            ratio = max(max(column) / min(column) for column in zip(*channel, strict=True))
            assert ratio == certificate.ratio <= math.exp(epsilon) * (1 + 1e-15)
            means, variances = moments(channel, m.supports(m.all_reports()), certificate)
            assert is_unbiased(means)
            np.testing.assert_allclose([float(variance) for variance in variances], m.mean_squared_error(), rtol=1e-12)
        # Sets are too many; all that contain a category are alike, and all others.
        m = dpk.subset_selection(epsilon, d)
        certificate, k = category_sampler(m).certificate, m.size
        p, q = certificate.probability, certificate.other_probability
        p_true, p_other = p / math.comb(d - 1, k - 1), (1 - p) / math.comb(d - 1, k)
        assert math.comb(d - 1, k - 1) * p_true + math.comb(d - 1, k) * p_other == 1
        assert p_true / p_other == certificate.ratio <= math.exp(epsilon) * (1 + 1e-15)
        with_other = math.comb(d - 2, k - 2) * p_true if k > 1 else 0
        assert with_other + math.comb(d - 2, k - 1) * p_other == q


@pytest.mark.parametrize("d", [2, 5, 20, 266, 4096])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0])
def test_subset_selection_attains_the_strict_bound(d, epsilon):
    bound = min(
        (d - 1) ** 2 * (k * math.exp(epsilon) + d - k) ** 2 / (d * k * (d - k) * (math.exp(epsilon) - 1) ** 2)
        - (d - 1) / d
        for k in range(1, d)
    )
    assert dpk.strict_bound(epsilon, d) == pytest.approx(bound, rel=1e-12)
    certificate = category_sampler(m := dpk.subset_selection(epsilon, d)).certificate
    p, q = float(certificate.probability), float(certificate.other_probability)
    assert (p * (1 - p) + (d - 1) * q * (1 - q)) / (p - q) ** 2 == pytest.approx(bound, rel=1e-6)
    assert all(m.mean_squared_error() <= dpk.subset_selection(epsilon, d, k).mean_squared_error() * (1 + 1e-12)
               for k in {1, max(1, m.size - 1), min(d - 1, m.size + 1)})  # fmt: skip
    if d >= 266 and epsilon <= 2:
        blocks = dpk.block_response(epsilon, d)
        assert bound <= blocks.mean_squared_error() <= 1.015 * bound


@every_mechanism
def test_the_channel_has_the_log_probabilities(name):
    m = SMALL[name]
    reports, channel = m.channel()
    exact = np.array(category_sampler(m).certificate.channel(), float)
    np.testing.assert_allclose(channel, exact, rtol=1e-12)
    assert len(reports) == m.outcomes
    assert reports.dtype == m.report_dtype
    assert reports.shape[1:] == m.report_shape
    assert float(np.log((channel.max(0) / channel.min(0)).max())) == pytest.approx(float(m.epsilon), rel=1e-12)


@pytest.mark.lengthy
@every_mechanism
def test_float_kernels_have_the_channel(name):
    m, n, x = SMALL[name], 40_000, 3 % SMALL[name].categories
    sample = np.asarray(m.sample(dpk.simulation_key(1), np.full(n, x)))
    assert sample.dtype == m.report_dtype
    assert sample.shape == (n, *m.report_shape)
    assert p_value(m, sample, x) > FALSE_ALARM
    assert p_value(m, sample, (x + 1) % m.categories) < FALSE_ALARM


def p_value(m, sample, x):
    reports, channel = m.channel()
    keys = {report.tobytes(): index for index, report in enumerate(reports)}
    counts = np.bincount([keys[report.tobytes()] for report in sample], minlength=len(reports))
    return stats.chisquare(counts, len(sample) * channel[x] / channel[x].sum()).pvalue


def test_a_batch_has_a_budget_for_each_row():
    n = 4000
    epsilon = jnp.where(jnp.arange(n) < n // 2, 0.1, 8.0)
    m = dpk.SubsetSelection(epsilon, 6, 1)
    is_true = np.asarray(m.sample(dpk.simulation_key(2), jnp.full(n, 4))) == 4
    true_fractions = is_true[: n // 2].mean(), is_true[n // 2 :].mean()
    p = np.asarray(m.support_probabilities[0])[[0, -1]]
    assert (np.abs(true_fractions - p) < 5 * np.sqrt(p * (1 - p) / (n // 2))).all()


@pytest.mark.parametrize("build", [lambda e: dpk.SubsetSelection(e, 6, 1), lambda e: dpk.SubsetSelection(e, 6, 2),
                                   lambda e: dpk.BlockResponse(e, 6, 3)])  # fmt: skip
def test_reports_of_a_batch_are_independent(build):
    """Also where the budgets have more entries than the codes."""
    m = build(jnp.full((500, 1), 1.0))
    sample = np.asarray(m.sample(dpk.simulation_key(3), jnp.array([4, 5])))
    assert sample.shape == (500, 2, *m.report_shape)
    assert all(len(np.unique(sample[:, x].reshape(500, -1), axis=0)) > 4 for x in (0, 1))
    with pytest.raises(ValueError, match=r"channel: epsilon has shape \(500, 1\)"):
        m.channel()


@pytest.mark.parametrize("q", [2, 3, 4, 8, 9, 27, 49, 256])
def test_fields(q):
    numbers = field(q)
    assert is_field(q)
    assert prime_power(q) == (numbers.r, numbers.s)
    a, b, c = np.random.default_rng(0).integers(0, q, (3, 200))
    add, multiply = numbers.add, numbers.multiply
    np.testing.assert_array_equal(multiply(a, add(b, c)), add(multiply(a, b), multiply(a, c)))
    np.testing.assert_array_equal(multiply(a, multiply(b, c)), multiply(multiply(a, b), c))
    assert (np.sort(numbers.products[1:], axis=1) == np.arange(q)).all()
    assert sorted(numbers.frequencies) == list(range(q))


@pytest.mark.parametrize("q", [6, 12, 1, 0, 257 * 257])
def test_what_is_no_field_is_refused(q):
    assert not is_field(q)
    with pytest.raises(ValueError, match="blocks"):
        dpk.block_response(1.0, 30, q)


def test_the_chooser_takes_the_least_error():
    assert dpk.categorical(1.0, 266) == dpk.subset_selection(1.0, 266)
    assert dpk.categorical(1.0, 266, bits=16).kind == "block"
    assert dpk.categorical(1.0, 266, bits=9).size == 1
    assert dpk.categorical(1.0, 266, shuffled=True) == dpk.randomised_response(1.0, 266)
    for name in ("shares", "largest-share"):
        best = dpk.categorical(1.0, 20, objective=name)
        candidates = [dpk.subset_selection(1.0, 20, k) for k in range(1, 20)] + [dpk.block_response(1.0, 20)]

        def error(m, name=name):
            return m.mean_squared_error() if name == "shares" else max(m.share_variance(0.0), m.share_variance(1.0))

        assert error(best) <= min(map(error, candidates)) * (1 + 1e-12)
    with pytest.raises(ValueError, match=r"bits: 2; the smallest report of 266"):
        dpk.categorical(1.0, 266, bits=2)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((1.0, 1), ValueError, "categories: 1 is not in 2"),
        ((1.0, ["a"]), ValueError, "1 labels"),
        ((1.0, ["a", "a"]), ValueError, "'a' is given twice"),
        ((1.0, ["a", 1]), TypeError, "all strings or all integers"),
        ((1.0, [1.5, 2.5]), TypeError, "all strings or all integers"),
        ((1.0, [True, False]), TypeError, "all strings or all integers"),
        ((1.0, "abc"), TypeError, "a list of their labels"),
        ((1.0, ["a", "a\0"]), ValueError, "without NUL"),  # NumPy's arrays of texts do not distinguish them.
        ((1.0, ["a", "\ud800"]), ValueError, "Unicode"),
        ((0.0, 5), ValueError, "epsilon"),
        ((1.0, 5, 5), ValueError, "size: 5 is not in 1..4"),
        ((1.0, 1 << 17, 2), ValueError, "block_response"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        dpk.subset_selection(*arguments)


def test_another_category_is_added_or_found():
    assert dpk.randomised_response(1.0, ["a", "b"], other="rest").labels == ("a", "b", "rest")
    assert dpk.randomised_response(1.0, ["a", "b"], other="b").other == 1
    assert dpk.block_response(1.0, 7, other=3).other == 3
    with pytest.raises(ValueError, match="other: 7"):
        dpk.block_response(1.0, 7, other=7)


def test_codes_are_checked_before_a_simulation():
    m = SMALL["response"]
    for bad, error in (([5], ValueError), ([-1], ValueError), ([0.0], TypeError)):
        with pytest.raises(error, match="x: holds"):
            m.sample(dpk.simulation_key(0), np.array(bad))


def test_directions_are_all_different_lines():
    """Every vector but 0 is a multiple of the vector of exactly one direction."""
    m = dpk.block_response(1.0, 60, 4)
    numbers, vectors = field(4), m.direction_vectors(np.arange(m.directions))
    digits = vectors[:, None] // 4 ** np.arange(m.digits) % 4
    multiples = numbers.multiply(digits[:, None, :], np.arange(1, 4)[:, None]) @ 4 ** np.arange(m.digits)
    assert sorted(multiples.ravel()) == list(range(1, m.points))
    assert isinstance(category_sampler(m).certificate, BlockCertificate)


@pytest.mark.parametrize("g", [2, 3, 4, 5, 9, 16, 25, 27, 251, 256, 257])
@pytest.mark.parametrize("digits", [1, 2, 3, 5])
def test_tables_of_digits_give_the_blocks(g, digits):
    """Blocks by several digits at a time, in fields of each kind, with and without tables of directions."""
    if g**digits > 1 << 40:
        return
    m = dpk.block_response(1.0, g**digits, g)
    rng = np.random.default_rng(0)
    directions, x = rng.integers(0, m.directions, 500), rng.integers(0, m.categories, 500)
    directions[:3], x[1:4] = (0, m.directions - 1, m.directions - 1), (0, m.categories - 1, m.categories - 1)
    assert np.array_equal(m.host_block_indices(directions, x), m.block_indices(directions, x))
