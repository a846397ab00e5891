"""The session as its users meet it: results, budgets, refusals, tables, plots, files and reports."""

from __future__ import annotations

import copy
import json
import os
import pickle
import threading
import time
import warnings
from fractions import Fraction

import matplotlib
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import accountants
import dpkernels as dpk
from dpkernels.decimals import rational
from dpkernels.exact.certificate import CertificateError
from dpkernels.exact.packed import without_references
from dpkernels.session import (
    Count,
    DataWarning,
    Mean,
    Quantiles,
    Regression,
    Session,
    Sum,
    Top,
    Variance,
    reports,
)
from dpkernels.session.run import ReleaseInProgress
from dpkernels.session.sums import SumLattice

BY = {"plan": ["A", "B", "C"]}
RNG = np.random.default_rng(7)
N = 3000
PEOPLE = {
    "id": np.arange(N) // 2,
    "age": RNG.integers(0, 91, N).astype(float),
    "plan": RNG.choice(["A", "B"], N),
    "income": RNG.lognormal(10, 1, N).round(2),
}
FRAME = pd.DataFrame(PEOPLE)
KEY = dpk.key_from_bytes(bytes(range(32)))

pytestmark = pytest.mark.filterwarnings("ignore:another session:UserWarning")


def of(data=FRAME, **options):
    return Session(data, **{"epsilon": 10.0, "key": KEY} | options)


ALL = {
    "count": lambda s: s.count(epsilon=0.5),
    "count by": lambda s: s.count(by=BY, epsilon=0.5),
    "crosstab": lambda s: s.crosstab(by={"plan": ["A", "B"], "age": [1, 2]}, epsilon=0.5),
    "histogram": lambda s: s.histogram("age", range(0, 101, 10), epsilon=0.5),
    "sum": lambda s: s.sum("age", 0, 95, by=BY, epsilon=0.5),
    "mean": lambda s: s.mean("age", 0, 95, by=BY, epsilon=0.5),
    "variance": lambda s: s.variance("age", 0, 95, epsilon=0.5),
    "quantiles": lambda s: s.quantiles("age", 0, 95, (0.25, 0.5), epsilon=0.5),
    "regression": lambda s: s.regression("income", "age", y_bounds=(0, 1e5), x_bounds=(0, 95), epsilon=0.5),
    "top": lambda s: s.top("plan", 1, ["A", "B", "C"], epsilon=0.5),
}
every_statistic = pytest.mark.parametrize("release", ALL.values(), ids=ALL)


@pytest.mark.lengthy
@pytest.mark.quick("count", "crosstab", "sum")
@every_statistic
def test_a_result_is_a_value_an_interval_a_table_and_a_plot(release, tmp_path):
    result = release(of())
    low, high = (np.atleast_1d(end) for end in result.interval())
    assert (low <= high).all()
    wide = [np.atleast_1d(end) for end in result.interval(together=True)]
    assert (wide[0] <= low).all()
    assert (wide[1] >= high).all()
    table = result.table()
    assert isinstance(table, pd.DataFrame)
    assert list(table)[-3:] == ["value", "low", "high"]
    assert len(table) == len(result)
    axes = result.plot()
    assert isinstance(axes, matplotlib.axes.Axes)
    assert result.name in axes.get_title()
    axes.figure.savefig(tmp_path / "figure.png")
    assert "95 %" in repr(result)
    with pytest.raises(ValueError, match="confidence"):
        result.interval(1.0)


KINDS = {
    "dict": PEOPLE,
    "lists": {name: column.tolist() for name, column in PEOPLE.items()},
    "pandas": FRAME,
    "other index": FRAME.set_index(np.arange(N)[::-1] * 0.5),
    "nullable": FRAME.convert_dtypes(),
    "categorical": FRAME.astype({"plan": "category"}),
    "polars": pl.DataFrame(PEOPLE),
    "pyarrow": pa.table(PEOPLE),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    table = pa.table(PEOPLE)
    pyarrow.csv.write_csv(table, folder / "people.csv")
    pyarrow.parquet.write_table(table, folder / "people.parquet", row_group_size=700)
    (folder / "parts").mkdir()
    for part in range(3):
        pyarrow.parquet.write_table(table.slice(1000 * part, 1000), folder / "parts" / f"{part}.parquet")
    return {"csv": folder / "people.csv", "parquet": folder / "people.parquet", "folder": folder / "parts"}


@pytest.mark.parametrize("name", [*KINDS, "csv", "parquet", "folder"])
def test_every_kind_of_data_has_the_same_results(name, files):
    """With one key: the same rows count, so the noise, which follows from the integers, is the same, too."""
    data = KINDS.get(name, files.get(name))
    sessions = [of(each, person="id", rows_per_person=1) for each in (PEOPLE, data)]
    for release in (ALL["count"], ALL["mean"], ALL["quantiles"], ALL["count by"]):
        expected, result = (release(each) for each in sessions)
        assert np.array_equal(expected.value, result.value)
    kinds = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.Table, "csv": pa.Table, "dict": dict}
    assert isinstance(result.table(), kinds.get(name, object))


@pytest.mark.parametrize(
    "data", [3, [1, 2], np.zeros(3), pl.LazyFrame(PEOPLE), PEOPLE | {"age": [1.0]}, {}, "x.txt"], ids=str
)
def test_other_data_is_refused(data):
    with pytest.raises((TypeError, ValueError), match="data"):
        of(data)


# Cells of all kinds


@pytest.mark.lengthy
def test_no_cell_causes_an_error():
    odd = [
        np.nan,
        np.inf,
        -np.inf,
        None,
        "x",
        "12",
        b"7",
        10**400,
        -(10**400),
        [1],
        {},
        object(),
        pd.NA,
        pd.NaT,
        1 + 2j,
        "é",
        True,
    ]
    data = {name: np.array([*odd], object) for name in ("id", "age", "income", "plan")}
    for person in (None, "id"):
        s = of(data, person=person, rows_per_person=1 if person else None, epsilon=100, delta=1e-3)
        for release in ALL.values():
            release(s)
        s.count(by={"plan": "found"}, epsilon=1.0, delta=1e-5)
        s.mean("age", bounds="private", epsilon=1.0)


@pytest.mark.parametrize("step", [1e-9, 1e-300])
def test_a_step_of_which_private_bounds_have_too_many_is_not_used(step):
    result = of(epsilon=20).release(Quantiles("age", bounds="private", step=step), epsilon=20)
    low, high = result.interval()
    assert abs(result.value - 45) < 2
    assert low - 0.01 <= np.sort(PEOPLE["age"])[(N - 1) // 2] <= high + 0.01


def test_missing_cells_are_left_out_and_infinities_clipped():
    data = {"x": np.array([1.0, np.nan, np.inf, -np.inf, 5.0])}
    s = of(data)
    assert round(s.count(epsilon=5).value) in range(3, 8)
    noisy = [of(data, key=None).sum("x", 0, 10, epsilon=10).value for _ in range(20)]
    assert abs(np.mean(noisy) - 16) < 3  # 1 + 10 + 0 + 5
    noisy = [of(data, key=None).mean("x", 0, 10, epsilon=10).value for _ in range(20)]
    assert abs(np.mean(noisy) - 4) < 1


def test_groups_of_a_column_p_keep_their_keys_in_quantiles():
    data = {"p": np.array(["A", "B"] * 500), "age": np.arange(1000) % 90.0}
    result = of(data).quantiles("age", 0, 90, by={"p": ["A", "B"]}, epsilon=2.0)
    assert dict(result.index) == {"p": ["A", "B"]}
    assert np.shape(result.value) == (2,)


def test_columns_may_have_any_name():
    for name in ("", " ", "rows", "value", "a:b", "é"):
        s = of({name: np.full(1000, 3.0)})
        assert abs(s.mean(name, 0, 10, epsilon=5).value - 3) < 0.1
        assert len(s.count(by={name: [3, 4]}, epsilon=2).table()) == 4


def test_a_file_that_changes_is_refused(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("id,age\n1,30\n2,40\n")
    s = of(path, person="id", rows_per_person=1)
    for lines in ("1,30\n2,40\n3,50\n", "1,30\n"):
        path.write_text(f"id,age\n{lines}")
        with pytest.raises(RuntimeError, match="changed"):
            s.count(epsilon=1)


# Budget


def test_a_refused_release_changes_nothing_and_says_what_fits():
    s = of(epsilon=1.0)
    s.count(epsilon=0.7)
    before = s.spent, s.left, len(s._entries)
    with pytest.raises(accountants.BudgetExceeded, match=r"at most epsilon 0\.3, delta 0 fits"):
        s.mean("age", 0, 95, epsilon=0.5)
    assert before == (s.spent, s.left, len(s._entries))
    s.mean("age", 0, 95, epsilon=0.3)
    assert str(s.left) == "epsilon 0, delta 0"


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda s: s.count(), "epsilon, share"),
        (lambda s: s.count(epsilon=0.1, share=0.1), "epsilon, share"),
        (lambda s: s.count(epsilon=0), "epsilon"),
        (lambda s: s.count(epsilon=float("nan")), "epsilon"),
        (lambda s: s.count(by="plan", epsilon=0.1), "does not state the keys"),
        (lambda s: s.count(by={"plan": []}, epsilon=0.1), "keys"),
        (lambda s: s.count(by={"plan": "A"}, epsilon=0.1), "keys"),
        (lambda s: s.count(by={"plan": pd.Series(["A"])}, epsilon=0.1), "of type Series; state a list"),
        (lambda s: s.count(by={"plan": [None]}, epsilon=0.1), "a text, a number or a date"),
        (lambda s: s.mean("age", low=0, upper=1, epsilon=0.1), r"mean\(\).*'low'"),
        (lambda s: s.count(by={"plan": ["A", "A"]}, epsilon=0.1), "twice"),
        (lambda s: s.count(by={"plan": [1, "1.0"]}, epsilon=0.1), "twice"),
        (lambda s: s.count(by={"town": ["A"]}, epsilon=0.1), "no 'town'"),
        (lambda s: s.count(by={"plan": "found"}, epsilon=0.1), "delta"),
        (lambda s: s.count(by={"plan": "found"}, epsilon=0.01, delta=1e-6), "too small to find keys"),
        (lambda s: s.count(by={"plan": "found", "age": [1]}, epsilon=0.1, delta=1e-6), "one column alone"),
        (lambda s: s.mean("age", epsilon=0.1), "private"),
        (lambda s: s.mean("age", 5, 5, epsilon=0.1), "lower"),
        (lambda s: s.mean("age", 0, np.inf, epsilon=0.1), "upper"),
        (lambda s: s.mean("age", 0, 1, bounds="private", epsilon=0.1), "state none"),
        (lambda s: s.mean("weight", 0, 1, epsilon=0.1), "no 'weight'"),
        (lambda s: s.histogram("age", [3, 2], epsilon=0.1), "edges"),
        (lambda s: s.quantiles("age", 0, 1, 1.5, epsilon=0.1), "p"),
        (lambda s: s.quantiles("age", 0, 1, (0.5, 0.5001), epsilon=0.1), "p"),
        (lambda s: s.quantiles("age", 0, 1, (0.5, np.nan), epsilon=0.1), "p"),
        (lambda s: s.quantiles("age", 0, 1, "half", epsilon=0.1), "p: 'half' are not numbers"),
        (lambda s: s.quantiles("age", 0, 1, step=np.array([0.1, 0.2]), epsilon=0.1), "step"),
        (lambda s: s.histogram("age", 3, epsilon=0.1), "edges: must be"),
        (lambda s: s.mean(["age", "plan"], 0, 1, epsilon=0.1), "column: .* is not the name of a column"),
        (lambda s: s.release("count", epsilon=0.1), "statistic: 'count'"),
        (lambda s: s.plan(Count(), epsilon=0.1), "statistics"),
        (lambda s: s.crosstab(by={"plan": ["A"]}, epsilon=0.1), "two columns"),
        (lambda s: s.top("plan", 4, ["A", "B"], epsilon=0.1), "k"),
        (lambda s: s.regression("income", "age", y_bounds=(0,), x_bounds=(0, 1), epsilon=0.1), "y_bounds"),
        (lambda s: s.plan([], epsilon=0.1), "statistics"),
        (lambda s: s.plan([Count()], epsilon=0.1, widths=[1, 2]), "widths"),
        (lambda s: s.plan([Count()], epsilon=0.1, widths=[0]), "widths"),
        (lambda s: s.plan([Count()], epsilon=0.1, widths=[1], objective="mean"), "objective"),
        (lambda s: s.plan([Count(by={"plan": "found"})], epsilon=0.1), "delta"),
    ],
)
def test_what_is_refused_costs_nothing(call, match):
    s = of(delta=1e-5)
    with pytest.raises((ValueError, TypeError), match=match):
        call(s)
    assert str(s.spent) == "epsilon 0, delta 0"


@pytest.mark.lengthy
@pytest.mark.quick("7-0.001", "1-20.0")
@pytest.mark.parametrize("epsilon", [0.001, 0.03, 20.0])
@pytest.mark.parametrize("rows", [1, 7, 1000, 1 << 20])
def test_a_release_that_noise_does_not_exist_for_is_refused_before_its_charge(rows, epsilon):
    """Of every statistic: either it is released, or nothing is charged."""
    s = of(FRAME[:5], person="id", rows_per_person=rows, epsilon=1000, delta=0.5)
    shares = (0.1, 0.5, 0.9)
    line = {"y_bounds": (0, 9), "x_bounds": (0, 9)}
    released = [
        Count(by=BY), Sum("age", 0, 9), Mean("age", 0, 9), Variance("age", 0, 9, by=BY), Quantiles("age", 0, 9, shares),
        Regression("age", "income", **line, by=BY), Regression("age", "income", **line, by={"plan": "found"}),
        Top("plan", 2, ["A", "B"]), Mean("age", bounds="private", by={"plan": "found"}),
    ]  # fmt: skip
    for statistic in released:
        before, delta = s.spent, 1e-6 if statistic.finds_keys else 0
        message = ""
        try:
            s.release(statistic, epsilon=epsilon, delta=delta)
        except ValueError as error:
            message = str(error)
        assert s.spent > before if not message else (s.spent == before and "epsilon" in message)


def test_what_is_charged_is_what_is_used():
    """A fraction that a float is above is not charged by itself."""
    s = of(delta=1e-3, epsilon=Fraction(1, 2))
    tiny = Fraction(1, 10**6) - Fraction(1, 10**40)
    assert rational(float(tiny)) > tiny
    s.count(by={"plan": "found"}, epsilon=Fraction(1, 2), delta=tiny)
    assert rational(s._entries[0].noise_records[0].delta) <= s.spent.delta == rational(1e-6)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"person": "id"}, "rows_per_person"),
        ({"rows_per_person": 3}, "person"),
        ({"person": "name", "rows_per_person": 1}, "no 'name'"),
        ({"epsilon": None}, "epsilon"),
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": 1.0, "delta": 1.0}, "delta"),
        ({"person": "id", "rows_per_person": 0}, "rows_per_person"),
    ],
)
def test_sessions_that_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        of(**options)


def test_rows_per_person_are_asked_for_whatever_the_data():
    """To refuse only a table in which somebody has two rows would say so."""
    for data in ({"id": [1, 2], "x": [1, 2]}, {"id": [1, 1], "x": [1, 2]}):
        with pytest.raises(ValueError, match="rows_per_person: must be stated"):
            Session(data, person="id", epsilon=1.0)


def test_a_ledger_is_charged_before_anything_is_drawn(tmp_path, monkeypatch):
    ledger = accountants.Ledger.create(tmp_path / "people.ledger", epsilon=1.0, delta=1e-6)
    s = of(epsilon=None, ledger=ledger)

    def broken(*_, **__):
        assert str(ledger.state().left) == "epsilon 0.6, delta 1e-06"
        raise KeyboardInterrupt

    monkeypatch.setattr(ReleaseInProgress, "sums", broken)
    with pytest.raises(KeyboardInterrupt):
        s.count(epsilon=0.4)
    assert str(ledger.state().spent) == str(s.spent) == "epsilon 0.4, delta 0"


def test_sessions_with_one_ledger_do_not_overspend(tmp_path):
    ledger = tmp_path / "people.ledger"
    accountants.Ledger.create(ledger, epsilon=1.0)
    sessions = [of(epsilon=None, ledger=ledger), of(epsilon=5.0, ledger=str(ledger))]
    refused, released = [], []

    def spend(s):
        for _ in range(8):
            try:
                released.append(s.count(epsilon=0.1))
            except accountants.BudgetExceeded as error:
                refused.append(error)

    threads = [threading.Thread(target=spend, args=(s,)) for s in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(released), len(refused)) == (10, 6)
    assert str(accountants.Ledger(ledger).state().left) == "epsilon 0, delta 0"
    assert str(sessions[1].left) == "epsilon 0, delta 0"


def test_threads_share_a_session_one_release_at_a_time(monkeypatch):
    """Otherwise two releases would have one number, and so keys of the same secret, and the sum could lack a cost."""
    s, inside, most, released = of(epsilon=1.0), [], [], Count.release

    def slow(*given):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.02)
        try:
            return released(*given)
        finally:
            inside.pop()

    monkeypatch.setattr(Count, "release", slow)
    threads = [threading.Thread(target=s.count, kwargs={"epsilon": 0.25}) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 4
    assert str(s.spent) == "epsilon 1, delta 0"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:os.fork", "ignore:.*multi-threaded")
def test_a_forked_process_has_no_second_session(tmp_path):
    ledger = tmp_path / "people.ledger"
    accountants.Ledger.create(ledger, epsilon=1.0)
    for s in (of(epsilon=1.0), of(epsilon=1.0, ledger=ledger)):
        child = os.fork()
        if child == 0:
            try:
                s.count(epsilon=1.0)
            except RuntimeError as error:
                os._exit(7 if "use a Ledger" in str(error) else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert not accountants.Ledger(ledger).state().entries


@pytest.mark.parametrize("twice", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_session_has_no_copies(twice):
    with pytest.raises(TypeError, match="Session: cannot be copied"):
        twice(of(epsilon=1.0))


def test_a_ledger_that_refuses_leaves_the_session_as_it_was(tmp_path):
    ledger = accountants.Ledger.create(tmp_path / "people.ledger", epsilon=0.2)
    s = of(epsilon=1.0, ledger=ledger)
    with pytest.raises(accountants.BudgetExceeded, match=r"epsilon 0\.2, delta 0 fits"):
        s.count(epsilon=0.5)
    assert str(s.spent) == "epsilon 0, delta 0"
    s.count(epsilon=0.2)


def check_budget(s):
    """The parts of every release add up to no more than its cost, and the costs are what was spent."""
    for entry in s._entries:
        assert (
            0.9 * entry.cost.epsilon
            <= sum(rational(part.epsilon) for part in entry.noise_records)
            <= entry.cost.epsilon
        )
        assert sum(rational(part.delta) for part in entry.noise_records) <= entry.cost.delta
    spent = sum(entry.cost.epsilon for entry in s._entries)
    assert spent == s.spent.epsilon == s._filter.spent.epsilon
    if s._ledger is not None:
        assert s._ledger.state().spent.epsilon == spent


def test_every_release_is_charged(tmp_path):
    s = of(delta=1e-4, person="id", rows_per_person=2, ledger=accountants.Ledger.create(tmp_path / "l", 9, 1e-4))
    for name in ("count", "histogram", "top"):
        ALL[name](s)
    s.quantiles("age", 0, 95, (0.25, 0.5), epsilon=0.5)
    s.count(by={"plan": "found"}, epsilon=0.5, delta=1e-6)
    s.mean("income", bounds="private", epsilon=0.5)
    for _ in range(3):
        s.sum("age", 0, 95, epsilon=0.25)
    check_budget(s)


def test_three_sums_that_are_charged_once_are_caught(monkeypatch):
    original = Session._charge
    monkeypatch.setattr(Session, "_charge", lambda s, cost, label: original(s, cost, label) if not s._entries else "")
    s = of()
    for _ in range(3):
        s.sum("age", 0, 95, epsilon=0.25)
    with pytest.raises(AssertionError):
        check_budget(s)


def test_a_part_with_the_whole_budget_is_caught(monkeypatch):
    monkeypatch.setattr("dpkernels.session.statistic.remaining_budget", lambda epsilon, part: epsilon)
    s = of()
    s.mean("income", bounds="private", epsilon=0.5)
    with pytest.raises(AssertionError):
        check_budget(s)


@pytest.mark.lengthy
def test_a_plan_is_charged_once_and_within_the_composed_bound():
    s = of(epsilon=1.0, delta=1e-6)
    plan = s.plan([Count(by=BY)] * 60, epsilon=0.5, delta=1e-6)
    factor = sum(plan.epsilons) / 0.5
    assert 1.9 < factor < 60, "composition at a delta gives each of many more than its share"
    pairs = accountants.guarantee(accountants.randomised_response(plan.epsilons[0])).repeat(60)
    assert pairs.epsilon(1e-6) <= 0.5
    wider = accountants.guarantee(accountants.randomised_response(1.02 * plan.epsilons[0])).repeat(60)
    assert wider.epsilon(1e-6) > 0.5
    assert plan.expected()["width"].min() > 100
    assert str(s.spent) == "epsilon 0, delta 0"
    assert len(plan.release()) == 60
    assert str(s.spent) == "epsilon 0.5, delta 1e-06"
    with pytest.raises(accountants.BudgetExceeded):
        plan.release()


def test_a_plan_without_delta_adds():
    plan = of().plan([Count(), Mean("age", 0, 95), Variance("age", 0, 95)], share=0.06)
    assert sum(rational(each) for each in plan.epsilons) <= rational(0.6)
    assert sum(plan.epsilons) > 0.599


@pytest.mark.lengthy
def test_a_plan_meets_widths_in_proportion():
    plan = of().plan([Count(), Mean("age", 0, 95), Sum("age", 0, 95)], epsilon=2.0, widths=[10, 2.0, 1000], rows=2000)
    widths = plan.expected()["width"] / [10, 2.0, 1000]
    assert widths.max() < 1.25 * widths.min()
    with pytest.raises(ValueError, match="depends on the data"):
        of().plan([Quantiles("age", 0, 95)], epsilon=2.0, widths=[10])


@pytest.mark.lengthy
def test_a_plan_is_best_for_its_objective():
    wanted, statistics = np.array([10, 0.5, 4000]), [Count(), Mean("age", 0, 95), Sum("age", 0, 95)]
    options = {"epsilon": 1.0, "widths": wanted}
    plans = {name: of().plan(statistics, **options, objective=name) for name in ("largest", "variance")}
    relative = {name: plan.expected()["width"].to_numpy() / wanted for name, plan in plans.items()}
    assert relative["largest"].max() < 0.95 * relative["variance"].max()
    assert (relative["variance"] ** 2).sum() < 0.95 * (relative["largest"] ** 2).sum()
    equal = of().plan(statistics, epsilon=1.0).expected()["width"].to_numpy() / wanted
    assert (equal**2).sum() > (relative["variance"] ** 2).sum()
    for plan in plans.values():
        assert sum(map(rational, plan.epsilons)) <= 1


# Keys and repeats


def test_noise_follows_from_the_key_the_question_and_the_data():
    first, again = (of().count(by=BY, epsilon=0.5).value for _ in range(2))
    assert np.array_equal(first, again)
    other = of(FRAME.iloc[1:]).count(by=BY, epsilon=0.5).value
    true = FRAME.plan.value_counts()[["A", "B"]].to_numpy()
    moved = FRAME.iloc[1:].plan.value_counts()[["A", "B"]].to_numpy()
    assert not np.array_equal(first[:2] - true, other[:2] - moved), "other data never have the same noise"
    s = of()
    assert not np.array_equal(s.count(by=BY, epsilon=0.5).value, s.count(by=BY, epsilon=0.5).value)
    assert not np.array_equal(
        of(key=None).count(by=BY, epsilon=0.5).value, of(key=None).count(by=BY, epsilon=0.5).value
    )


# The first values of releases under ``KEY``, and the texts from which their keys are derived. None of these may change.
PINNED = {
    "count by": ([1523.0, 1482.0, 8.0], "count by plan by={'plan': ['A', 'B', 'C']}"),
    "crosstab": ([15.0, 12.0, 17.0], "crosstab by plan and age by={'plan': ['A', 'B'], 'age': [1, 2]}"),
    "sum": (
        [69579.38232421875, 67135.91552734375, -79.27490234375],
        "sum of age by plan by={'plan': ['A', 'B', 'C']}, column='age', lower=0, upper=95",
    ),
    "mean": ([], "mean of age by plan by={'plan': ['A', 'B', 'C']}, column='age', lower=0, upper=95"),
    "variance": ([], "variance of age column='age', lower=0, upper=95"),
    "quantiles": (
        [23.082927614450455, 45.76084062457085],
        "quantiles of age column='age', lower=0, upper=95, p=(0.25, 0.5), interval_share=0.3",
    ),
    "regression": (
        [],
        "regression of income on age y='income', x='age', y_bounds=(0, 100000.0), x_bounds=(0, 95)",
    ),
    "top": ([1522.0], "top of plan column='plan', k=1, candidates=['A', 'B', 'C']"),
}


@pytest.mark.parametrize("name", PINNED)
def test_releases_under_a_fixed_key_stay_as_they_are(name):
    session, (values, text) = of(), PINNED[name]
    released = np.atleast_1d(ALL[name](session).value)
    statistic = session._entries[0].statistic
    assert f"{statistic.title} {statistic.arguments_text}" == text
    assert released[: len(values)].tolist() == values


def test_the_text_of_a_lattice_in_keys_stays_as_it_is():
    assert SumLattice.for_sums(3, 0.5, 4, 2, counts=False).key_text == "Lattice(log2=-8, finest=-32, sensitivity=768)"
    run = ReleaseInProgress(None, 1, 1, bytes(32))
    assert run.key(b"a", b"bc").hex() == "7c0f5585d2dc9c32e83937c8abec4f8f3d322f4d3c21c35f190e55de6b6ef832"


def test_the_key_must_be_a_releases():
    import jax

    with pytest.raises(TypeError, match="ChaCha20"):
        of(key=jax.random.key(0))


# Slips


def test_slips_are_caught():
    extremes = FRAME.age.min(), FRAME.age.max()
    with pytest.warns(DataWarning, match="exactly the smallest and the largest"):
        of().mean("age", *extremes, epsilon=0.5)
    with pytest.warns(DataWarning, match="'age' are exactly"):
        of().regression("income", "age", y_bounds=(0, 1e5), x_bounds=extremes, epsilon=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        of().mean("age", extremes[0], extremes[1] + 1, epsilon=0.5)


@pytest.mark.filterwarnings("default:another session")
def test_a_second_session_without_a_ledger_says_so(tmp_path):
    data = {"x": np.zeros(3)}
    Session(data, epsilon=1.0)
    with pytest.warns(UserWarning, match="one ledger"):
        Session(data, epsilon=1.0)
    ledger = accountants.Ledger.create(tmp_path / "l", epsilon=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Session(data, epsilon=1.0, ledger=ledger)
        Session({"x": np.zeros(3)}, epsilon=1.0)


# Reports


def test_the_report_says_what_was_released_and_about_whom():
    s = of(delta=1e-5)
    s.mean("age", 0, 95, epsilon=0.5)
    s.count(by={"plan": "found"}, epsilon=0.5, delta=1e-6)
    text = s.report()
    assert "a row is a person" in text
    assert "(1, 1e-06)-differentially private" in text
    assert "sensitivity" in text
    assert "If one person is replaced by another one: epsilon 2" in text
    assert "at most 3 count" in of(person="id", rows_per_person=3).report()


def test_a_report_has_plain_numbers():
    s = of()
    s.histogram("age", np.arange(3.0), by={"plan": np.array(["A", "B"])}, epsilon=0.5)
    assert "edges=(0.0, 1.0, 2.0)" in s.report()
    assert "np." not in s.report()
    assert "by={'plan': ('A', 'B')}" in s.report()


def test_operands_have_half_of_the_risk_each():
    s = of()
    count, total = s.count(epsilon=0.5), s.sum("age", 0, 95, epsilon=0.5)
    (a, b), (c, d) = count.interval(0.95), total.interval(0.95)
    assert (count - total).interval(0.9) == (a - d, b - c)
    assert (count + 3).interval(0.95) == (a + 3, b + 3)


def test_arithmetic_keeps_intervals():
    s = of()
    total, people = s.sum("age", 0, 95, epsilon=1.0), s.count(epsilon=1.0)
    for result, value in (
        (total / people, total.value / people.value),
        (total - 40 * people, total.value - 40 * people.value),
        (1 - people, 1 - people.value),
        (people * 2 + 1, 2 * people.value + 1),
        (2 / people, 2 / people.value),
    ):
        low, high = result.interval()
        assert result.value == pytest.approx(value)
        assert low < value < high
    assert (total / (people - people.value)).interval() == (-np.inf, np.inf)
    groups = s.sum("age", 0, 95, by=BY, epsilon=1.0) / s.count(by=BY, epsilon=1.0)
    assert list(groups.table()["plan"]) == ["A", "B", "C"]
    assert abs(groups.value[0] - FRAME.age[FRAME.plan == "A"].mean()) < 1
    for other in (s.histogram("age", [0, 1, 2], epsilon=0.1), s.count(by={"plan": ["B", "A", "C"]}, epsilon=0.1)):
        with pytest.raises(ValueError, match="not of the same keys"):
            groups + other
    with pytest.raises(TypeError):
        groups + "x"


# Saved sessions


def test_a_saved_session_is_verified(tmp_path):
    s = of(delta=1e-4, person="id", rows_per_person=2)
    for name in ("count", "quantiles"):
        ALL[name](s)
    s.count(by={"plan": "found"}, epsilon=0.5, delta=1e-6)
    s.plan([Count(), Count()], epsilon=0.5).release()
    s.save(path := tmp_path / "session.json")
    lines = reports.verify(form := json.loads(path.read_text()))
    assert sum(line.endswith("verified") for line in lines) >= 3
    assert sum(line.endswith("verified, choices as declared") for line in lines) == 1
    assert "are as declared" in lines[1]  # forged, they pass

    def cheap_plan(form, count=2):
        for release in form["releases"][-count:]:
            release["cost"] = ["0.1", "0"]  # As if the plan were composed.

    for alter in (
        cheap_plan,
        lambda f: cheap_plan(f, 1),
        lambda f: [release.update(plan=1) for release in f["releases"]],
        lambda f: f["releases"][-1].update(plan="1"),
        lambda f: f["releases"][0]["parts"][0].update(epsilon=0.1),
        lambda f: f["releases"][0].update(cost=["0.1", "0"]),
        lambda f: f["releases"][0].update(parts=[]),
        lambda f: f["releases"][0]["parts"][0].update(reports=0, epsilon=0.0),
        lambda f: f["releases"][0]["parts"].append({**f["releases"][0]["parts"][0], "reports": -1, "epsilon": -0.5}),
        lambda f: f["releases"][1]["parts"][0].update(epsilon=-1.0),
        lambda f: f.update(spent=["1", "0"]),
        lambda f: f.update(spent=[f["spent"][0], "0"]),
        lambda f: f["releases"][0]["parts"][0].update(certificate="0" * 64),
        lambda f: f["releases"][0]["parts"][0].update(certifikate=f["releases"][0]["parts"][0].pop("certificate")),
        lambda f: next(iter(f["certificates"].values())).update(epsilon=0.01),
        lambda f: f["integers"].popitem(),
        lambda f: next(iter(f["integers"].values())).update(order=0),
        lambda f: f["integers"].update({"0" * 64: next(iter(f["integers"].values()))}),
        lambda f: f.pop("integers"),
        lambda f: f.update(format="dpkernels session 1"),
    ):
        altered = json.loads(json.dumps(form))
        alter(altered)
        with pytest.raises(ValueError, match=r"."):
            reports.verify(altered)


@pytest.mark.lengthy
def test_the_composition_of_a_saved_plan_is_verified():
    """Of 40 counts, whose epsilons add up to more than the plan's; but not to more than its composition."""
    s = of({"plan": ["A"]}, delta=1e-6)
    s.plan([Count()] * 40, epsilon=0.5, delta=1e-6).release()
    payload = s.to_dict()
    assert sum(part["epsilon"] for release in payload["releases"] for part in release["parts"]) > 0.6
    assert reports.verify(payload)[2].endswith("verified")
    for cost in (["0.49", "1e-06"], ["0.5", "9e-07"]):
        altered = json.loads(json.dumps(payload))
        for release in altered["releases"]:
            release["cost"] = cost
        with pytest.raises(CertificateError, match="plan 1"):
            reports.verify(altered)


def test_a_saved_session_is_small_and_one_with_full_certificates_is_read():
    s = of(delta=1e-4)
    for release in (ALL["count by"], ALL["mean"], ALL["variance"], ALL["histogram"]):
        release(s)
    payload = s.to_dict()
    assert len(json.dumps(payload)) < 80_000
    full = {name: value for name, value in payload.items() if name != "integers"} | {"format": "dpkernels session 1"}
    full["certificates"] = without_references(payload["certificates"], payload["integers"])
    assert len(json.dumps(full)) > 300_000
    assert reports.verify(full) == reports.verify(payload)


@pytest.mark.parametrize("cells", [[], [None], ["x"]], ids=str)
def test_a_report_does_not_say_whether_anybody_has_a_key(cells, tmp_path):
    """The noise of keys is a part of the report, too, where there are none."""
    s = of({"plan": cells}, delta=1e-5)
    s.count(by={"plan": "found"}, epsilon=0.5, delta=1e-6)
    s.save(tmp_path / "s.json")
    parts = json.loads((tmp_path / "s.json").read_text())["releases"][0]["parts"]
    assert [part["label"] for part in parts] == ["count by plan: keys"]
    assert "count by plan: keys" in s.report()


def test_a_key_of_one_person_is_found_only_at_the_largest_noise(monkeypatch):
    """Its probability is then at most delta; and 0 without the person, as that of the key that nobody has."""
    (below, at) = (lambda sampler, lost=lost: sampler.certificate.highest - lost for lost in (1, 0))
    for noise, keys in ((below, []), (at, ["x"])):
        monkeypatch.setattr(
            ReleaseInProgress,
            "add_bounded_noise",
            lambda self, counts, sampler, label, noise=noise: counts + noise(sampler),
        )
        s = of({"plan": ["x"]}, delta=1e-5)
        assert s.count(by={"plan": "found"}, epsilon=0.5, delta=1e-6).index["plan"] == keys


def test_private_bounds_are_near_the_values_of_a_thousand_people():
    """Of 20 means each at epsilon 1, at most 3 bounds are wide, though each may be so with probability 1e-3: 4e-9."""
    rng = np.random.default_rng(8)
    for values, low, high in ((rng.integers(20, 91, 1000), 0, 128), (rng.normal(0, 1, 1000), -8, 8)):
        results = [Session({"x": values}, epsilon=1).mean("x", bounds="private", epsilon=1) for _ in range(20)]
        assert sum(not low <= result._known[0] < result._known[1] <= high for result in results) <= 3
        assert np.median([abs(result.value - values.mean()) for result in results]) < (high - low) / 100


def test_private_bounds_differ_where_all_values_are_at_the_end():
    values = np.full(100_000, -(2.0**70))
    assert of({"x": values}).mean("x", bounds="private", epsilon=9.0).value == pytest.approx(-(2.0**60), rel=0.01)


def test_a_release_that_failed_after_its_charge_stays_spent_in_what_is_saved(tmp_path, monkeypatch):
    def fail(*_):
        raise MemoryError

    s = of(PEOPLE)
    monkeypatch.setattr(ReleaseInProgress, "person_counts", fail)
    with pytest.raises(MemoryError):
        s.top("plan", 1, ["A", "B"], epsilon=0.5)
    s.count(epsilon=0.25)
    s.save(tmp_path / "s.json")
    payload = json.loads((tmp_path / "s.json").read_text())
    assert "spent: epsilon 0.75, delta 0, of which epsilon 0.25, delta 0" in "\n".join(reports.verify(payload))
