"""Estimates of categories: counts of reports, exact intervals, likelihood, tables, tests and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import dpkernels as dpk
from dpkernels.estimation.categorical import counts
from dpkernels.estimation.categorical.counts import block_supports
from dpkernels.estimation.categorical.intervals import (
    count_intervals,
    cut_by_sum,
    nearest_in_simplex,
    share_intervals,
    tail,
)
from dpkernels.exact.categorical.sampler import category_sampler
from dpkernels.release.categories import released_reports

FALSE_ALARM = 1e-6
MECHANISMS = {
    "response": dpk.randomised_response(1.0, 7),
    "sets": dpk.subset_selection(1.0, 19),
    "blocks": dpk.block_response(1.0, 60, 4),
    "prime blocks": dpk.block_response(1.0, 60, 5),
    "cubes": dpk.block_response(2.0, 100, 27),
}
every_mechanism = pytest.mark.parametrize("name", MECHANISMS)


def reports_of(m, n=600, seed=0):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, m.categories, n)
    return codes, released_reports(category_sampler(m), codes, bytes([seed]) * 32)


@every_mechanism
def test_counts_of_parts_add_up_to_what_reports_support(name):
    m = MECHANISMS[name]
    _, reports = reports_of(m)
    counts = dpk.CategoryCounts(m).add(reports[:250]).add(reports[250:])
    assert counts.total == 600
    assert counts.supports.tolist() == m.supports(reports).sum(0).tolist()
    both = dpk.CategoryCounts(m).add(reports[:250]) + dpk.CategoryCounts(m).add(reports[250:])
    assert both.supports.tolist() == counts.supports.tolist()
    estimate = dpk.estimate(counts)
    counts.add(reports)
    assert estimate.count == 600
    with pytest.raises(ValueError, match="different mechanisms"):
        _ = counts + dpk.CategoryCounts(dpk.randomised_response(1.0, 3))


@pytest.mark.parametrize(("d", "g"), [(4096, 4), (4096, 3), (300, 16), (90, 97)])
def test_blocks_are_counted_exactly_by_one_transform(d, g):
    m = dpk.block_response(1.0, d, g)
    numbers = np.random.default_rng(0).integers(0, 1 << 40, m.outcomes)
    supports = block_supports(m, numbers)
    directions = np.arange(m.directions)
    for x in (0, 1, d // 3, d - 1):
        assert supports[x] == numbers[directions * g + m.block_indices(directions, x)].sum()


def test_a_wrong_frequency_is_seen(monkeypatch):
    """A planted fault: vectors of directions that are one off are no longer those of the reports."""
    m = dpk.block_response(1.0, 60, 5)
    _, reports = reports_of(m)
    right = dpk.CategoryCounts(m).add(reports).supports
    vectors = m.direction_vectors
    monkeypatch.setattr(dpk.BlockResponse, "direction_vectors", lambda _, a: vectors((a + 1) % m.directions))
    assert not np.array_equal(dpk.CategoryCounts(m).add(reports).supports, right)


def test_impossible_reports_are_refused():
    sets = MECHANISMS["sets"]
    _, reports = reports_of(sets, 10)
    for wrong in (reports[5] & 0xFE if reports[5, 0] & 1 else reports[5] | 1, reports[5] ^ np.uint8(0x80)):
        bad = reports.copy()
        bad[5] = wrong
        if np.bitwise_count(bad[5]).sum() == sets.size and not bad[5, -1] >> 3:
            continue
        counts = dpk.CategoryCounts(sets)
        with pytest.raises(ValueError, match=f"reports: row 5 is no set of {sets.size} of 19"):
            counts.add(bad)
        assert counts.total == 0
    padded = reports.copy()
    padded[3, :2] = 0
    padded[3, 2] = 0xFF
    with pytest.raises(ValueError, match="row 3 is no set"):
        dpk.CategoryCounts(sets).add(padded)
    with pytest.raises(ValueError, match="sets have 3 bytes"):
        dpk.CategoryCounts(sets).add(reports[:, :2])
    with pytest.raises(ValueError, match="row 1 is no set of 3 bytes"):
        dpk.CategoryCounts(sets).add(pd.Series([bytes(reports[0]), b"xx"]))
    blocks = MECHANISMS["blocks"]
    for bad in (-1, blocks.outcomes):
        with pytest.raises(ValueError, match="row 1 is no integer in"):
            dpk.CategoryCounts(blocks).add(np.array([0, bad]))
    with pytest.raises(TypeError, match="integers are needed"):
        dpk.CategoryCounts(blocks).add(np.array([0.5]))
    labelled = dpk.randomised_response(1.0, ["a", "b"])
    with pytest.raises(ValueError, match="row 2 is 'c', which is not one of the 2"):
        dpk.CategoryCounts(labelled).add(np.array(["a", "b", "c"]))
    with pytest.raises(ValueError, match="is empty"):
        dpk.estimate(np.zeros(0, int), MECHANISMS["response"])
    with pytest.raises(ValueError, match="too many to count"):
        dpk.CategoryCounts(dpk.block_response(1.0, 1 << 30))
    with pytest.raises(TypeError, match="not for categories"):
        dpk.CategoryCounts(dpk.piecewise(epsilon=1.0, lower=0.0, upper=1.0))
    with pytest.raises(ValueError, match="bounds"):
        dpk.estimate(np.zeros(1, int), MECHANISMS["response"], bounds=(0.0, 1.0))


def test_sets_may_be_text_and_codes_may_stand_for_labels():
    m = dpk.subset_selection(1.0, list("abcdefghijk"))
    reports = dpk.perturb(np.array(list("abcabc")), m)
    texts = [bytes(row).hex() for row in reports]
    assert dpk.CategoryCounts(m).add(pd.Series(texts)).supports.tolist() == m.supports(reports).sum(0).tolist()
    response = dpk.randomised_response(1.0, ["a", "b", "c"])
    assert dpk.CategoryCounts(response).add(np.array([0, 2, 2])).numbers.tolist() == [1, 0, 2]


def convolved(n, m, p, q):
    return np.convolve(stats.binom.pmf(np.arange(m + 1), m, p), stats.binom.pmf(np.arange(n - m + 1), n - m, q))


@pytest.mark.parametrize("n", [1, 2, 30, 1000])
def test_tails_are_those_of_two_binomials(n):
    rng = np.random.default_rng(n)
    for p, q in ((0.73, 0.27), (0.95, 0.01), (0.6, 0.002)):
        for m in rng.integers(0, n + 1, 4):
            law = convolved(n, int(m), p, q)
            c = rng.integers(0, n + 1, 5)
            for upper in (True, False):
                expected = [law[count:].sum() if upper else law[: count + 1].sum() for count in c]
                tails = tail(c, np.full(5, m), n, p, q, upper=upper)
                np.testing.assert_allclose(tails, expected, rtol=1e-7, atol=1e-14)


@pytest.mark.parametrize("n", [1, 2, 7, 40])
@pytest.mark.parametrize(("p", "q"), [(0.73, 0.27), (0.4, 0.1), (0.95, 0.01)])
def test_intervals_hold_all_numbers_that_neither_tail_rejects(n, p, q):
    """And the exact coverage, summed over all outcomes, is at least the confidence."""
    c, confidence = np.arange(n + 1), 0.9
    low, high = count_intervals(c, n, (p, q), confidence)
    people = np.arange(n + 1)
    laws = [convolved(n, m, p, q) for m in people]
    for supports in c:
        kept = [m for m in people if min(laws[m][supports:].sum(), laws[m][: supports + 1].sum()) > 0.05]
        if kept:
            assert (low[supports], high[supports]) == (kept[0], kept[-1])
        else:  # No number is compatible; the nearest one is named.
            assert low[supports] == high[supports]
    for m in people:
        assert laws[m][(low <= m) & (m <= high)].sum() >= confidence


def test_intervals_of_a_billion_reports():
    """The normal approximation is then good to 1e-4 of the width."""
    n, p, q = 10**9, 0.5069, 0.2669
    supports = np.array([266_900_000, 267_500_000, 300_000_000])
    low, high = count_intervals(supports, n, (p, q), 0.95)
    middle = (supports - n * q) / (p - q)
    shares = np.clip(middle / n, 0, 1)
    half = 1.959964 * np.sqrt(n * (shares * p * (1 - p) + (1 - shares) * q * (1 - q))) / (p - q)
    np.testing.assert_allclose(high, middle + half, atol=1e-3 * half[0])
    np.testing.assert_allclose(low, np.maximum(middle - half, 0), atol=1e-3 * half[0])


RELEASES = 400


def share_of(events):
    """Refuse a coverage that is 5 standard deviations below 95 %, which by chance has a probability of 3e-7."""
    assert events.mean() > 0.95 - 5 * math.sqrt(0.95 * 0.05 / len(events))
    return events.mean()


@pytest.mark.lengthy
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("name", ["response", "sets", "blocks"])
def test_coverage(name, epsilon):
    """Of 95 % intervals, of empty categories too, and of bands, in all 45 settings of budgets and shares."""
    p, n = np.array([0.4, 0.25, 0.2, 0.12, 0.03]), 500
    d = 12
    m = {
        "response": dpk.randomised_response(epsilon, d),
        "sets": dpk.subset_selection(epsilon, d),
        "blocks": dpk.block_response(epsilon, d),
    }[name]
    codes = np.random.default_rng(3).choice(5, n, p=p)
    truth, sampler = np.bincount(codes, minlength=d), category_sampler(m)
    supports = np.array(
        [
            dpk.CategoryCounts(m).add(released_reports(sampler, codes, release.to_bytes(32))).supports
            for release in range(RELEASES)
        ]
    )
    probabilities = dpk.CategoryCounts(m).probabilities

    def intervals(confidence):
        return [end.reshape(-1, d) for end in count_intervals(supports.ravel(), n, probabilities, confidence)]

    low, high = intervals(0.95)
    inside = (low <= truth) & (truth <= high)
    assert np.mean([share_of(column) for column in inside.T]) > 0.945
    bands = [cut_by_sum(*ends, n) for ends in zip(*intervals(1 - 0.05 / d), strict=True)]
    assert share_of(np.array([((low <= truth) & (truth <= high)).all() for low, high in bands])) >= 0.94
    low, high = share_intervals(supports, n, probabilities, 0.95)
    for column in ((low <= truth / n) & (truth / n <= high)).T:
        share_of(column)


def test_bands_are_cut_by_their_sum():
    low, high = np.array([50.0, 20.0, 0.0]), np.array([70.0, 40.0, 30.0])
    cut = cut_by_sum(low, high, 80.0)
    assert cut[0].tolist() == [50.0, 20.0, 0.0]
    assert cut[1].tolist() == [60.0, 30.0, 10.0]
    estimate = dpk.estimate(*reports_of(MECHANISMS["response"], 400)[1:], MECHANISMS["response"])
    band, each = estimate.shares.band(), estimate.shares.interval()
    assert (band[0] <= each[0] + 1e-12).all()
    assert (band[1] >= each[1] - 1e-12).all()


def test_population_intervals_are_clopper_and_pearsons():
    low, high = share_intervals(np.array([0, 30, 100]), 100, (0.7, 0.2), 0.95)
    wanted = stats.beta.ppf([0.025, 0.975], [30, 31], [71, 70])
    np.testing.assert_allclose([low[1], high[1]], (wanted - 0.2) / 0.5, rtol=1e-9)
    assert low[0] == 0 == high[0]
    assert high[2] == 1


@every_mechanism
def test_projected_values_are_nearer_to_the_truth(name):
    m = MECHANISMS[name]
    codes, reports = reports_of(m)
    estimate = dpk.estimate(reports, m)
    truth = np.bincount(codes, minlength=m.categories) / len(codes)
    shares = estimate.shares
    assert shares.value.min() >= 0
    assert shares.value.sum() == pytest.approx(1, abs=1e-12)
    assert ((shares.value - truth) ** 2).sum() <= ((shares.unbiased - truth) ** 2).sum()
    assert (np.abs(shares.unbiased - truth) < 7 * shares.error).all()
    assert estimate.counts.value.sum() == pytest.approx(600)
    table = pd.DataFrame(estimate.table())
    assert (table["count_low"] <= table["count"]).all()
    assert (table["count"] <= table["count_high"]).all()
    assert "600 reports" in repr(estimate)


def test_nearest_in_simplex():
    rng = np.random.default_rng(0)
    for _ in range(20):
        values = rng.normal(0.2, 0.5, 6)
        nearest = nearest_in_simplex(values, 1.0)
        others = rng.dirichlet(np.ones(6), 200)
        assert ((nearest - values) ** 2).sum() <= ((others - values) ** 2).sum(1).min()


@pytest.mark.parametrize("name", ["response", "sets", "blocks"])
def test_the_likelihood_is_within_its_gap_of_the_maximum(name):
    m = MECHANISMS[name]
    _, reports = reports_of(m, 300)
    fit = dpk.estimate(reports, m).likelihood(reports)
    assert fit.gap <= 1e-6
    p = np.exp([m.log_prob(reports, np.full(len(reports), x)) for x in range(m.categories)]).T
    value = np.log(p @ fit.shares).mean()
    gradient = (p / (p @ fit.shares)[:, None]).mean(0)
    assert gradient.max() - 1 <= 3e-6  # So no distribution is likelier by more.
    rng = np.random.default_rng(1)
    assert max(np.log(p @ other).mean() for other in rng.dirichlet(np.ones(m.categories), 50)) <= value + 3e-6
    if name == "sets":
        with pytest.raises(ValueError, match="the reports themselves"):
            dpk.estimate(reports, m).likelihood()


def test_top_categories_have_intervals_that_hold_together():
    m = dpk.randomised_response(3.0, list("abcdef"))
    x = np.array(list("a" * 500 + "b" * 300 + "c" * 200))
    top = dpk.estimate(dpk.perturb(x, m, key=dpk.key_from_bytes(bytes(32))), m).top(2)
    assert [one.category for one in top] == ["a", "b"]
    assert top[0].interval[0] <= 500 <= top[0].interval[1]
    with pytest.raises(ValueError, match="k: 7"):
        dpk.estimate(dpk.perturb(x, m), m).top(7)


def test_groups():
    m = MECHANISMS["response"]
    _, reports = reports_of(m, 300)
    by = np.array(["x", "y", "x"] * 100)
    estimated = dpk.estimate_by(pd.Series(reports), m, pd.Series(by))
    assert list(estimated) == ["x", "y"]
    assert estimated["x"].supports.tolist() == dpk.estimate(reports[by == "x"], m).supports.tolist()
    numbers = dpk.piecewise(epsilon=1.0, lower=0.0, upper=1.0)
    values = dpk.perturb(np.linspace(0, 1, 300), numbers)
    assert dpk.estimate_by(values, numbers, by)["y"].count == 100
    with pytest.raises(ValueError, match="299 labels for 300 reports"):
        dpk.estimate_by(reports, m, by[1:])
    with pytest.raises(ValueError, match="some labels are missing"):
        dpk.estimate_by(reports, m, pd.Series(np.where(by == "x", None, by)))


@pytest.mark.parametrize("names", [("response", "sets"), ("blocks", "response")])
def test_two_way_tables(names):
    first, second = (MECHANISMS[name] for name in names)
    rng = np.random.default_rng(0)
    n = 4000
    x = rng.integers(0, first.categories, n)
    y = np.where(rng.random(n) < 0.7, x % second.categories, rng.integers(0, second.categories, n))
    reports = [
        released_reports(category_sampler(m), codes, bytes([at]) * 32)
        for at, (m, codes) in enumerate(((first, x), (second, y)))
    ]
    table = dpk.two_way_table(reports[0], first, reports[1], second)
    truth = np.zeros(table.value.shape)
    np.add.at(truth, (x, y), 1)
    deviation = (table.unbiased - truth) / table.error
    assert np.abs(deviation).max() < 6
    assert 0.7 < deviation.std() < 1.1
    assert table.value.sum() == pytest.approx(n)
    unbiased = dpk.estimate(reports[0], first).counts.unbiased
    expected = table.unbiased.sum(1)
    if second.kind != "block":  # Supports of every report add up to the same number, so the margins agree.
        np.testing.assert_allclose(expected, unbiased, rtol=1e-6, atol=1e-6 * n)
    low, high = table.interval()
    assert ((low <= truth) & (truth <= high)).mean() > 0.9
    with pytest.raises(ValueError, match="4000 in the first column, 3999 in the second"):
        dpk.two_way_table(reports[0], first, reports[1][1:], second)


def test_pairs_with_a_missing_report_are_refused():
    """Rows would be paired wrongly where both columns miss as many."""
    m = MECHANISMS["response"]
    first, second = (pd.Series([0, 1, 2, 0], dtype="Int64") for _ in range(2))
    first[0] = second[3] = pd.NA
    with pytest.raises(ValueError, match="1 are missing"):
        dpk.two_way_table(first, m, second, m)


@pytest.mark.lengthy
@pytest.mark.parametrize("size", [1, 3])
def test_p_values_of_equal_groups_are_uniform(size):
    m = dpk.subset_selection(1.0, 8, size)
    rng, p = np.random.default_rng(5), np.array([0.4, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05, 0])
    sampler, values = category_sampler(m), []
    for trial in range(300):
        groups = [
            dpk.estimate(released_reports(sampler, rng.choice(8, 1500, p=p), (2 * trial + one).to_bytes(32)), m)
            for one in (0, 1)
        ]
        values.append(dpk.equality_test(*groups).p_value)
    assert stats.kstest(values, "uniform").pvalue > FALSE_ALARM
    other = dpk.estimate(released_reports(sampler, rng.choice(8, 6000), bytes(32)), m)
    same = dpk.estimate(released_reports(sampler, rng.choice(8, 6000, p=p), b"1" * 32), m)
    assert dpk.equality_test(other, same).p_value < FALSE_ALARM


def test_the_test_of_single_categories_is_pearsons():
    m = MECHANISMS["response"]
    (_, a), (_, b) = reports_of(m, 500, 1), reports_of(m, 700, 2)
    test = dpk.equality_test(dpk.estimate(a, m), dpk.estimate(b, m))
    table = np.array([np.bincount(one, minlength=7) for one in (a, b)])
    wanted = stats.chi2_contingency(table, correction=False)
    assert test.statistic == pytest.approx(wanted.statistic, rel=1e-6)
    assert test.degrees == 6
    with pytest.raises(ValueError, match="another mechanism"):
        dpk.equality_test(dpk.estimate(a, m), dpk.estimate(a, dpk.randomised_response(2.0, 7)))
    blocks = MECHANISMS["blocks"]
    both = dpk.estimate(reports_of(blocks)[1], blocks)
    with pytest.raises(ValueError, match="block of 60"):
        dpk.equality_test(both, both)


@pytest.mark.parametrize("width", [1, 3, 34, 70])
def test_bits_are_counted_in_planes_as_one_by_one(width, monkeypatch):
    monkeypatch.setattr(counts, "_BLOCK_BYTES", 8 * width)
    rng = np.random.default_rng(width)
    for rows in (0, 7, 24, 63 * 8, 63 * 8 + 15 * 8 + 3 * 8 + 5, 3000):
        for held in (rng.integers(0, 256, (rows, width), np.uint8), np.full((rows, width), 255, np.uint8)):
            bits = np.unpackbits(held, axis=1, bitorder="little", count=8 * width - 3)
            assert counts._sum_of_bits(held, 8 * width - 3).tolist() == bits.sum(0, dtype=int).tolist()
            assert counts._sum_of_bits(held[::2], 8 * width - 3).tolist() == bits[::2].sum(0, dtype=int).tolist()
    planes = counts._bit_planes([np.array([word], np.uint64) for word in range(63)])
    assert [len(level) for level in planes] == [1] * 6


@pytest.mark.parametrize("d", [9, 64, 100, 266, 700])
def test_sets_are_those_of_the_size(d):
    m = dpk.subset_selection(1.0, d, 4)
    rng = np.random.default_rng(d)
    members = rng.random((9000, d)) < 4 / d
    rows = np.packbits(members, axis=1, bitorder="little")
    assert m.are_sets(rows).tolist() == (members.sum(1) == 4).tolist()
    if d % 8:
        rows[:, -1] |= 128
        assert not m.are_sets(rows).any()
