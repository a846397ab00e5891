"""Heavy hitters: supports of any prefix, plans that spend their budget, values that are found, and their intervals."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import dpkernels as dpk
from dpkernels.decimals import rational
from dpkernels.estimation.categorical.heavy_hitters import _supports
from dpkernels.mechanisms.categorical.galois import prime_power

KEY = dpk.key_from_bytes(bytes(range(32)))
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def values(n, seed=0):
    """Words of which four are frequent, one of them empty and one a prefix of another."""
    rng = np.random.default_rng(seed)
    rare = ["".join(word) for word in rng.choice(list(LETTERS), (n, 4))]
    frequent = rng.choice(["fig", "figs", "", "kiwi"], n, p=[0.4, 0.2, 0.2, 0.2])
    return np.where(rng.random(n) < 0.8, frequent, rare)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("length", [1, 3, 40])
def test_supports_of_candidates_are_those_of_the_mechanism(epsilon, length):
    m = dpk.prefix_response(epsilon, length, 2).levels[-1]
    assert prime_power(m.blocks) == (m.blocks, 1)
    rng = np.random.default_rng(length)
    reports, candidates = rng.integers(0, m.outcomes, 300), rng.integers(0, 1 << length, 50)
    directions, blocks = m.split(reports)
    wanted = [(m.block_indices(directions, x) == blocks).sum() for x in candidates]
    assert _supports(m, reports, candidates).tolist() == wanted
    shifted = [(m.block_indices((directions + 1) % m.directions, x) == blocks).sum() for x in candidates]
    assert m.directions == 1 or wanted != shifted  # A planted fault: the vector of another direction.


@pytest.mark.parametrize("split", ["people", "budget"])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
def test_a_person_spends_at_most_the_budget(split, epsilon):
    for length in (4, 6, 8):
        plan = dpk.prefix_response(epsilon, length, LETTERS if length < 8 else 30, split=split)
        budgets = [rational(dpk.exact_sampler(level).certificate.epsilon) for level in plan.levels]
        assert (max(budgets) if split == "people" else sum(budgets)) <= rational(epsilon)
        assert sum(budgets) > 0.999 * epsilon


def test_levels_do_not_depend_on_values():
    """And a report depends on no more than the prefix of its level."""
    plan = dpk.prefix_response(1.0, 4, LETTERS)
    x = values(500)
    reports = plan.perturb(x, key=KEY)
    others = plan.perturb(np.array([word[:2] + "zz" if len(word) > 2 else word for word in x]), key=KEY)
    assert (reports["level"] == others["level"]).all()
    first = reports["level"] == 0
    assert plan.lengths[0] == 2
    assert (reports["report"] == others["report"])[first].all()
    assert not (reports["report"] == others["report"])[~first].all()
    assert np.bincount(reports["level"], minlength=3).min() > 100
    assert not (plan.perturb(x)["report"] == reports["report"]).all()


@pytest.mark.parametrize("lengths", [(4,), (1, 2, 3, 4), (2, 4)])
def test_extensions_are_all_values(lengths):
    plan = dpk.prefix_response(1.0, 4, "ab", lengths=lengths)
    prefixes, before = np.zeros(1, np.int64), 0
    for length in lengths:
        prefixes, before = plan.extensions(prefixes, before, length), length
    words = {"".join(word) for size in range(5) for word in itertools.product("ab", repeat=size)}
    assert sorted(map(plan.value, prefixes.tolist())) == sorted(words)
    assert sorted(prefixes) == sorted(plan.codes_of(np.array(sorted(words))))


@pytest.mark.lengthy
@pytest.mark.parametrize("split", ["people", "budget"])
def test_frequent_words_are_found(split):
    x = values(30_000)
    plan = dpk.prefix_response(8.0 if split == "budget" else 4.0, 4, LETTERS, split=split)
    hitters = plan.find(pd.DataFrame(plan.perturb(x, key=KEY)), most=8)
    assert hitters.values[0] == "fig"
    assert set(hitters.values[:4]) == {"fig", "figs", "", "kiwi"}
    truth = np.array([(x == word).mean() for word in hitters.values])
    assert (np.abs(hitters.shares - truth)[:4] < 6 * plan.standard_error(len(x)) + 0.03).all()
    assert ((hitters.low <= truth) & (truth <= hitters.high)).all()
    assert len(hitters.table()["share"]) == 8
    assert hitters.about == ("people" if split == "budget" else "population")


@pytest.mark.parametrize(
    "container", [np.array, pd.Series, pl.Series, pa.array, lambda x: pa.chunked_array([pa.array(x)])]
)
def test_containers_and_integers(container):
    texts, numbers = dpk.prefix_response(1.0, 4, LETTERS), dpk.prefix_response(1.0, 30, 2)
    assert texts.codes_of(container(["ab", "", "zzzz"])).tolist() == [27**3 + 2 * 27**2, 0, 27**4 - 1]
    assert [texts.value(code) for code in (27**3 + 2 * 27**2, 0, 27**4 - 1)] == ["ab", "", "zzzz"]
    assert numbers.codes_of(container([5, (1 << 30) - 1])).tolist() == [5, (1 << 30) - 1]
    for wrong in ([5, 1 << 30], [5, -1]):
        with pytest.raises(ValueError, match="row 1 is"):
            numbers.perturb(container(wrong))
    for wrong in (["a", "abcde"], ["a", "A"], ["a", "e\u0301"]):
        with pytest.raises(ValueError, match="row 1 is"):
            texts.perturb(container(wrong))


def test_missing_values_are_refused():
    for plan, column in (
        (dpk.prefix_response(1.0, 4, LETTERS), pd.Series(["a", None])),
        (dpk.prefix_response(1.0, 4, 10), pd.Series([1, None], dtype="Int64")),
        (dpk.prefix_response(1.0, 4, 10), np.ma.array([1, 2], mask=[False, True])),
    ):
        with pytest.raises(ValueError, match="row 1 is missing"):
            plan.perturb(column)


def test_impossible_reports_are_refused():
    plan = dpk.prefix_response(1.0, 4, LETTERS)
    reports = plan.perturb(values(500), key=KEY)
    with pytest.raises(ValueError, match="no column 'level'"):
        plan.find({"report": reports["report"]})
    with pytest.raises(ValueError, match="row 7 is of level 3"):
        plan.find({**reports, "level": np.where(np.arange(500) == 7, 3, reports["level"])})
    wrong = reports["report"].astype(np.int64)
    wrong[9] = -1
    with pytest.raises(ValueError, match="row 9 is no report of this plan"):
        plan.find({**reports, "report": wrong})
    with pytest.raises(ValueError, match="different lengths"):
        plan.find({**reports, "report": wrong[1:]})
    with pytest.raises(ValueError, match="too few people"):
        plan.find({name: column[:0] for name, column in reports.items()})
    with pytest.raises(ValueError, match="most: 0"):
        plan.find(reports, most=0)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((1.0, 9, LETTERS), {}, "more than 2\\^40"),
        ((1.0, 4, "aba"), {}, "different characters"),
        ((1.0, 4, ""), {}, "different characters"),
        ((1.0, 4, 10), {"lengths": (2, 3)}, "must grow to 4"),
        ((1.0, 4, 10), {"lengths": (3, 2, 4)}, "must grow to 4"),
        ((1.0, 4, 10), {"split": "both"}, "split"),
        ((0.0, 4, 10), {}, "epsilon"),
    ],
)
def test_wrong_plans_are_refused(arguments, options, words):
    with pytest.raises(ValueError, match=words):
        dpk.prefix_response(*arguments, **options)


@pytest.mark.thorough
@pytest.mark.lengthy
@pytest.mark.parametrize("split", ["people", "budget"])
def test_intervals_hold_together(split):
    """Of the values that are compared at the last level, in 400 releases; 5 standard deviations below 95 %."""
    plan, rng = dpk.prefix_response(4.0, 4, 8, lengths=(2, 4), split=split), np.random.default_rng(1)
    p = np.zeros(8**4)
    p[[0, 9, 1000, 1001, 4095]] = 0.3, 0.2, 0.2, 0.2, 0.1
    hold = []
    for _ in range(400):
        x = rng.choice(8**4, 600, p=p)
        hitters = plan.find(plan.perturb(x, key=dpk.key_from_bytes(rng.bytes(32))), most=20)
        truth = p if split == "people" else np.bincount(x, minlength=8**4) / len(x)
        hold.append(((hitters.low <= truth[hitters.values]) & (truth[hitters.values] <= hitters.high)).all())
    assert np.mean(hold) > 0.95 - 5 * math.sqrt(0.95 * 0.05 / len(hold))


@pytest.mark.parametrize(
    "container", [np.array, pd.Series, pl.Series, pa.array, lambda x: pa.chunked_array([pa.array(x)])]
)
def test_columns_of_reports_are_found_as_tables_are(container):
    """``perturb`` releases one integer a person in the container of the values."""
    plan, x = dpk.prefix_response(4.0, 4, LETTERS), values(5000)
    reports = dpk.perturb(container(x.tolist()), plan, key=KEY)
    plain = np.asarray(reports)
    assert plain.dtype == plan.report_dtype
    assert np.array_equal(plain, dpk.perturb(x, plan, key=KEY))
    level, report = plan.split_reports(plain.astype(np.int64))
    hitters = plan.find(reports, most=6)
    table = plan.find({"level": level, "report": report}, most=6)
    assert hitters.values == table.values
    assert set(hitters.values[:3]) <= {"fig", "figs", "", "kiwi"}
    assert np.array_equal(hitters.low, table.low)
    with pytest.raises(ValueError, match="row 4999 is no report"):
        plan.find(np.append(plain[:-1], plan.outcomes).astype(np.int64))
    with pytest.raises(ValueError, match="exact only"):
        dpk.perturb(x, plan, key=KEY, exact=False)


def test_supports_of_few_prefixes_are_counted_by_a_transform():
    m = dpk.prefix_response(1.0, 4, 5).levels[0]
    assert m.outcomes < 3000
    rng = np.random.default_rng(1)
    reports, candidates = rng.integers(0, m.outcomes, 3000), rng.integers(0, 5**4, 40)
    parts = sum(_supports(m, part, candidates) for part in np.array_split(reports, 30))
    assert _supports(m, reports, candidates).tolist() == parts.tolist()


@pytest.mark.parametrize("alphabet", [LETTERS, "a\u00e9\U0001f600", "0123456789"])
def test_codes_of_texts_are_their_digits(alphabet):
    plan = dpk.prefix_response(1.0, 3, alphabet)
    cut = dpk.prefix_response(1.0, 3, alphabet, longer="cut")
    first, last = alphabet[0], alphabet[-1]
    texts = ["", first, last * 3, first + last, last * 4, first + "?", "?", "\0", first + "\0" + first, last + "\ud800"]
    base = len(alphabet) + 1
    wanted = [0, base**2, base**3 - 1, base**2 + (base - 1) * base]
    for tested_plan, good in ((plan, 4), (cut, 5)):
        codes, known = tested_plan.codes_of_texts(texts)
        assert known.tolist() == [True] * good + [False] * (len(texts) - good)
        assert codes[:4].tolist() == wanted
        assert tested_plan.codes_of_texts([])[0].tolist() == []
    assert cut.codes_of_texts([last * 4])[0].tolist() == [base**3 - 1]


def test_other_values_and_longer_ones():
    plan = dpk.prefix_response(8.0, 3, "abc", other="cab")
    assert plan.value(plan.other) == "cab"
    x = np.array(["a", "zz", "abca", "cab"])
    same = dpk.perturb(np.array(["a", "cab", "cab", "cab"]), plan, key=KEY)
    assert np.array_equal(dpk.perturb(x, plan, key=KEY), same)
    assert dpk.prefix_response(1.0, 3, 5, other=7).other == 7
    cut = dpk.prefix_response(8.0, 3, "abc", other="cab", longer="cut")
    same = dpk.perturb(np.array(["a", "cab", "abc", "cab"]), cut, key=KEY)
    assert np.array_equal(dpk.perturb(x, cut, key=KEY), same)
    for other, words in (("abcd", "not a text of up to 3"), ("d", "not a text"), (5, "must be a text")):
        with pytest.raises((ValueError, TypeError), match=words):
            dpk.prefix_response(8.0, 3, "abc", other=other, longer="cut" if other == "d" else "error")
    with pytest.raises(ValueError, match=r"not in 0\.\.124"):
        dpk.prefix_response(1.0, 3, 5, other=125)
    with pytest.raises(ValueError, match="without NUL"):
        dpk.prefix_response(1.0, 3, "a\0")


def test_missing_values_of_columns():
    plan = dpk.prefix_response(1.0, 4, LETTERS)
    column = pd.Series(["a", None, "b", "c"])
    with pytest.raises(ValueError, match="row 1 is missing"):
        dpk.perturb(column, plan)
    kept = dpk.perturb(column, plan, missing="keep", key=KEY)
    assert kept.isna().tolist() == [False, True, False, False]
    whole = dpk.perturb(pd.Series(["a", "z", "b", "c"]), plan, key=KEY)
    assert kept[[0, 2, 3]].tolist() == whole[[0, 2, 3]].tolist()
    assert len(dpk.perturb(column, plan, missing="drop")) == 3
    with pytest.raises(ValueError, match="row 1 is missing"):
        plan.find(kept)


@pytest.mark.parametrize("split", ["people", "budget"])
def test_levels_have_noise_of_their_own(split):
    """Whether reports of two levels support the truth is independent, within 6 standard deviations: below 1e-7."""
    plan = dpk.prefix_response(2.0, 4, 4, lengths=(2, 4), split=split)
    reports = plan.perturb(np.full(9000, 100), key=KEY)
    columns, _ = plan._columns(reports)
    n = min(map(len, columns))
    true = []
    for mechanism, length, column in zip(plan.levels, plan.lengths, columns, strict=True):
        directions, blocks = mechanism.split(column[:n])
        true.append(mechanism.block_indices(directions, 100 // 4 ** (4 - length)) == blocks)
    p = [float(dpk.exact_sampler(level).certificate.probability) for level in plan.levels]
    assert abs(np.mean(true[0] & true[1]) - p[0] * p[1]) < 3 / math.sqrt(n)
    assert abs(np.mean(true[0] & true[0]) - p[0] * p[1]) > 3 / math.sqrt(n)  # A planted fault: noise of one level.


def test_what_a_plan_is_not_for():
    plan = dpk.prefix_response(1.0, 3, "abc")
    reports = dpk.perturb(np.array(["a", "b"]), plan)
    with pytest.raises(TypeError, match="is a plan of prefixes; its method find"):
        dpk.estimate(reports, plan)
    with pytest.raises(ValueError, match=r"has shape \(1, 2\)"):
        dpk.perturb(np.array([["a", "b"]]), plan)
    with pytest.raises(TypeError, match="integers are needed"):
        plan.find(reports.astype(float))
    with pytest.raises(ValueError, match="row 1 is 1, which is not a text"):
        dpk.perturb(np.array(["a", 1], object), plan)
    assert dpk.prefix_response(1.0, 3, np.int64(5)).alphabet == 5
