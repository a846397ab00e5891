"""Files whose rows are queries: parameters in public columns, one budget for all rows, and forged sidecars."""

from __future__ import annotations

import hashlib
import json
import math
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_helpers import SECRET, Run, assert_nothing_but, assert_refused, command
from key_helpers import column_key
from scipy import stats

import dpkernels as dpk
from accountants import Ledger, calibrate, epsilon
from accountants.charges import batch_bound
from accountants.tune.allocate import allocate_claims
from dpkernels.cli.files.layout import Layout
from dpkernels.cli.files.opening import open_source
from dpkernels.cli.perturb.queries import QueryRequest
from dpkernels.exact.packed import pack_array, unpack, unpack_array

run = pytest.fixture(command, name="run")
N = 40
NOISE = ["--mechanism", "laplace", "--sensitivity-column", "s", "--epsilon", "0.5"]


@pytest.fixture(autouse=True)
def _known_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpkernels.cli.perturb.plan.os.urandom", lambda count: SECRET[:count])


def words(text: str) -> list[str]:
    return text.split()


def table() -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    s = np.round(random.uniform(0.5, 8.0, N), 2)
    return {
        "answer": np.round(100 * s + random.uniform(0, 1, N), 6),
        "s": s,
        "w": np.round(random.uniform(0.1, 3.0, N), 2),
        "low": -s,
        "high": 300 * s,
        "eps": np.tile([0.5, 1.0, 2.0], N)[:N],
    }


def written(suffix: str = ".csv", **changed: Any) -> Path:
    """A file of queries, with some of its cells changed, given as column=(row, text)."""
    columns, path = {name: list(map(repr, map(float, values))) for name, values in table().items()}, Path(f"in{suffix}")
    for name, (row, text) in changed.items():
        columns[name][row] = text
    if suffix == ".parquet":
        pq.write_table(pa.table({name: list(map(float, values)) for name, values in columns.items()}), path)
        return path
    rows = zip(*columns.values(), strict=True)
    path.write_text(",".join(columns) + "\n" + "".join(",".join(row) + "\n" for row in rows))
    return path


def released(path: str) -> dict[str, np.ndarray]:
    if path.endswith(".parquet"):
        columns = pq.read_table(path)
        return {name: columns[name].to_numpy() for name in columns.column_names}
    header, *rows = Path(path).read_text().splitlines()
    return dict(zip(header.split(","), np.array([list(map(float, row.split(","))) for row in rows]).T, strict=True))


CASES = {
    "sensitivities": (NOISE, lambda t: dpk.laplace(epsilon=0.5, sensitivity=t["s"])),
    "intervals and budgets": (
        words("--mechanism piecewise --lower-column low --upper-column high --epsilon-column eps"),
        lambda t: dpk.piecewise(epsilon=t["eps"], lower=t["low"], upper=t["high"]),
    ),
    "a choice": (
        words("--mechanism closed-form --lower -8 --upper-column high --epsilon 0.5"),
        lambda t: None,
    ),
    "Gaussian": (
        words("--mechanism gaussian --sensitivity-column s --epsilon 0.5 --delta 1e-6"),
        lambda t: calibrate.gaussian(epsilon=0.5, delta=1e-6, sensitivity=t["s"]),
    ),
}


@pytest.mark.lengthy
@pytest.mark.quick("sensitivities-.parquet", "intervals and budgets-.csv")
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("case", CASES)
def test_every_row_is_released_by_its_own_mechanism(run: Run, case: str, suffix: str) -> None:
    options, mechanism = CASES[case]
    source, t = written(suffix), table()
    done = run("perturb", source, f"out{suffix}", "--column", "answer", *options)
    assert done.code == 0, done.err
    assert "are PUBLIC" in done.out
    out = released(f"out{suffix}")
    assert not set(out["answer"]) & set(t["answer"])
    if (batch := mechanism(t)) is not None:
        np.testing.assert_array_equal(out["answer"], dpk.perturb(t["answer"], batch, key=column_key(SECRET, "answer")))
    for name in ("s", "low", "high", "eps"):
        np.testing.assert_array_equal(out[name], t[name])
    sidecar = Path(f"out{suffix}.json").read_text()
    assert not any(repr(float(value)) in sidecar for value in t["answer"])
    checked = run("certify", "--verify", f"out{suffix}.json")
    assert checked.code == 0, checked.err
    assert f"at most, for each of {N} rows (" in checked.out
    assert "every perturbed value is one that its mechanism can release" in checked.out
    assert "declared, not verified)" not in checked.out


@pytest.mark.parametrize(
    ("budget", "mechanism", "weights"),
    [
        pytest.param("1,1e-6", "gaussian", True, id="gaussian"),
        pytest.param("1,1e-6", None, False, id="the better noise", marks=pytest.mark.lengthy),
        pytest.param("0.8", "laplace", True, id="pure", marks=pytest.mark.lengthy),
        pytest.param("0.8,1e-5", "laplace", True, id="pure with a delta", marks=pytest.mark.lengthy),
    ],
)
def test_one_budget_for_all_rows_is_charged_once(run: Run, budget: str, mechanism: str | None, weights: bool) -> None:
    source = written()
    options = ["--mechanism", mechanism] * (mechanism is not None) + ["--weight-column", "w"] * weights
    options += ["--sensitivity-column", "s", "--together", budget, "--ledger", "l.ledger", "--budget", "3,1e-4"]
    done = run("perturb", source, "out.csv", "--column", "answer", *options)
    assert done.code == 0, done.err
    epsilon, _, delta = budget.partition(",")
    spent = Ledger("l.ledger").state().spent
    assert spent == (Fraction(epsilon), Fraction(delta or "0"))
    assert f"all {N} rows together" in done.out
    right = (1 + float(delta or 0) * math.exp(-float(epsilon))) / (1 + math.exp(-float(epsilon)))
    (stated,) = re.findall(r"neighbouring columns is .* right in at most ([\d.]+) %", done.out)
    assert 100 * right <= float(stated) < 100 * right + 0.011
    checked = run("certify", "--verify", "out.csv.json")
    assert checked.code == 0, checked.err
    assert f"all rows together: epsilon {epsilon}" in checked.out
    assert "(the name is declared; the tables of all rows are verified)" in checked.out
    payload = json.loads(Path("out.csv.json").read_text())
    assert payload["ledger"]["charged_rows"] == N
    (certificate,) = payload["certificates"].values()
    epsilons = unpack_array(certificate["claims"]["epsilon"])
    if not delta:
        assert 0.999 * 0.8 <= sum(map(Fraction, map(repr, epsilons.tolist()))) <= Fraction("0.8")


FAULTS = {
    "missing": ({"s": (5, "")}, NOISE, 1, ("column 's': row 5 (line 7)", "is missing")),
    "nan": ({"s": (5, "nan")}, NOISE, 1, ("row 5", "is missing")),
    "infinite": ({"s": (5, "inf")}, NOISE, 1, ("row 5", "is not finite")),
    "negative": ({"s": (5, "-1")}, NOISE, 1, ("row 5", "not positive")),
    "no number": ({"s": (5, "much")}, NOISE, 1, ("column 's': row 5", "is 'much'")),
    "rounded": ({"s": (5, "9007199254740993")}, NOISE, 1, ("row 5", "float64 rounds")),
    "too large an epsilon": (
        {"eps": (4, "25")},
        words("--mechanism laplace --sensitivity 1 --epsilon-column eps"),
        1,
        ("entry 4 is 25",),
    ),
    "an empty interval": ({"high": (3, "-900")}, CASES["intervals and budgets"][0], 1, ("row 3", "not above")),
    "a value outside": ({"answer": (2, "1e9")}, CASES["intervals and budgets"][0], 1, ("row 2", "outside the input")),
    "private": (
        {},
        words("--mechanism laplace --epsilon 1 --sensitivity-column answer"),
        2,
        ("is perturbed",),
    ),
    "no column": (
        {},
        words("--mechanism laplace --epsilon 1 --sensitivity-column d"),
        2,
        ("no such column",),
    ),
    "twice": ({}, [*NOISE, "--sensitivity", "1"], 2, ("--sensitivity: is in --sensitivity-column",)),
    "repeated": ({}, [*NOISE, "--sensitivity-column", "w"], 2, ("given 2 times",)),
    "kept": ({}, [*NOISE, "--missing", "keep"], 2, ("--missing keep",)),
    "shuffled": ({}, [*NOISE, "--shuffle-rows"], 2, ("--shuffle-rows",)),
    "no noise": ({}, words("--sensitivity-column s --epsilon 1"), 2, ("--mechanism: missing",)),
    "weights alone": ({}, [*NOISE, "--weight-column", "w"], 2, ("--together",)),
    "two budgets": (
        {},
        words("--sensitivity-column s --epsilon-column eps --together 1"),
        2,
        ("leave one",),
    ),
    "a budget each": ({}, [*NOISE, "--together", "1"], 2, ("--epsilon: --together",)),
    "no delta": (
        {},
        words("--mechanism gaussian --sensitivity-column s --together 1"),
        2,
        ("needs a delta",),
    ),
    "a delta of 1": ({}, words("--sensitivity-column s --together 1,1"), 2, ("--together: delta",)),
    "an option out of range": (
        {},
        words("--mechanism laplace --sensitivity-column s --epsilon 30"),
        2,
        ("--epsilon: 30 is not in",),
    ),
    "bounded": ({}, words("--mechanism duchi --sensitivity-column s --together 1"), 2, ("is none",)),
    "one budget, several": (
        {},
        words("--lower-column low --upper-column high --epsilon-column eps"),
        2,
        ("name a mechanism",),
    ),
    "other people": (
        {},
        words("--sensitivity-column s --together 1 --rows different-people"),
        2,
        ("same people",),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_refused_before_anything_is_charged(run: Run, fault: str) -> None:
    changed, options, code, words = FAULTS[fault]
    source = written(**changed)
    charge = ["--ledger", "l.ledger", "--budget", "100,1e-3"] + ["--rows", "same-people"] * ("--rows" not in options)
    refused = run("perturb", source, "out.csv", "--column", "answer", "--check-first", *options, *charge)
    assert_refused(refused, code, *words)
    assert_nothing_but("in.csv")


def test_a_value_of_a_parameter_is_shown_on_a_terminal_alone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpkernels.cli.terminal.is_redacted", lambda: True)
    monkeypatch.setattr("dpkernels.cli.is_redacted", lambda: True)
    source = written(s=(5, "-12345.678"))
    refused = run("perturb", source, "out.csv", "--column", "answer", *NOISE)
    assert_refused(refused, 1, "row 5")
    assert "12345" not in refused.err


def test_datasets_and_streams_and_estimates_are_refused(run: Run) -> None:
    written()
    Path("folder").mkdir()
    Path("in.csv").rename("folder/in.csv")
    assert_refused(run("perturb", "folder", "out", "--column", "answer", *NOISE), 2, "is for one file")
    source = written()
    assert run("perturb", source, "out.csv", "--column", "answer", *NOISE).code == 0
    assert_refused(run("estimate", "out.csv", "--column", "answer"), 2, "are queries")


def test_another_format_is_refused_before_anything_is_charged(run: Run) -> None:
    """Columns of parameters would be texts there, which no verifier compares with claims."""
    charge = ["--ledger", "l.ledger", "--budget", "100,1e-3", "--rows", "same-people"]
    refused = run("perturb", written(), "out.parquet", "--column", "answer", *NOISE, *charge)
    assert_refused(refused, 2, "in the format of IN")
    assert_nothing_but("in.csv")


def parameters_of(path: Path) -> Any:
    return QueryRequest({"sensitivity": "s"}).read(open_source(path, Layout("csv")))


@pytest.mark.parametrize("change", ["a cell", "more rows", "fewer rows"])
def test_parameters_are_those_that_were_certified(tmp_path: Path, monkeypatch: Any, change: str) -> None:
    monkeypatch.chdir(tmp_path)
    path = written()
    queries, text = parameters_of(path), path.read_text()
    last = text.splitlines()[-1]
    changed = {
        "a cell": text.replace(last, last.replace(repr(float(table()["s"][-1])), "0.01", 1)),
        "more rows": text + last + "\n",
        "fewer rows": text.removesuffix(last + "\n"),
    }[change]
    assert changed != text
    path.write_text(changed)
    with pytest.raises(ValueError, match=r"changed since|rows when"):
        check(queries, open_source(path, Layout("csv")))


def check(queries: Any, source: Any) -> None:
    rows = 0
    for chunk in source.chunks(["s"]):
        queries.check(source, chunk, rows)
        rows += len(chunk)
    queries.check_row_count(source, rows)


def forged(change: Any) -> None:
    """Change the sidecar's certificate, and let everything that refers to it agree."""
    payload = json.loads(Path("out.csv.json").read_text())
    (certificate,) = payload["certificates"].values()
    change(payload, certificate)
    digest = hashlib.sha256(json.dumps(certificate_in_full(certificate, payload), sort_keys=True).encode()).hexdigest()
    payload["certificates"] = {digest: certificate}
    payload["columns"][0]["certificate"] = {"sha256": digest}
    Path("out.csv.json").write_text(json.dumps(payload))


def certificate_in_full(certificate: Any, form: Any) -> Any:
    if isinstance(certificate, dict):
        if certificate.keys() == {"integers"}:
            return unpack(form["integers"][certificate["integers"]])
        return {name: certificate_in_full(value, form) for name, value in certificate.items()}
    return [certificate_in_full(value, form) for value in certificate] if isinstance(certificate, list) else certificate


def swap_tables(form: Any, certificate: Any) -> None:
    number = unpack_array(certificate["table_of"]).copy()
    number[[0, 1]] = number[[1, 0]]
    certificate["table_of"] = pack_array(number)


def shift_sensitivities(form: Any, certificate: Any) -> None:
    name = "sensitivity" if "sensitivity" in certificate["claims"] else "upper"
    certificate["claims"][name] = pack_array(np.roll(unpack_array(certificate["claims"][name]), 1))


def drop_a_row(form: Any, certificate: Any) -> None:
    form["rows"] = N - 1


def smaller_budget(form: Any, certificate: Any) -> None:
    form["queries"]["together"] = {"epsilon": "0.9", "delta": "1e-06"}


def no_queries(form: Any, certificate: Any) -> None:
    del form["queries"]


def other_column(form: Any, certificate: Any) -> None:
    form["queries"]["columns"] = dict.fromkeys(form["queries"]["columns"], "w")


def no_column(form: Any, certificate: Any) -> None:
    form["queries"]["columns"] = {}


def budget_with_a_zero(form: Any, certificate: Any) -> None:
    form["queries"]["together"]["epsilon"] = "1.0"


def no_budget(form: Any, certificate: Any) -> None:
    form["queries"]["together"]["epsilon"] = "0"


DIVIDED = words("--sensitivity-column s --together 1,1e-6")
GAUSSIAN = words("--mechanism gaussian --sensitivity 2 --together 1,1e-6")
FORGERIES = {
    "tables of two rows": (CASES["intervals and budgets"][0], swap_tables),
    "sensitivities of the next row": (NOISE, shift_sensitivities),
    "intervals of the next row": (CASES["intervals and budgets"][0], shift_sensitivities),
    "one row left out": (NOISE, drop_a_row),
    "a smaller budget": (GAUSSIAN, smaller_budget),
    "nothing about queries": (NOISE, no_queries),
    "another column": (NOISE, other_column),
    "no column of sensitivities": (DIVIDED, no_column),
    "a budget that is no amount": (DIVIDED, budget_with_a_zero),
    "no budget": (DIVIDED, no_budget),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_sidecar_is_found(run: Run, forgery: str) -> None:
    options, change = FORGERIES[forgery]
    assert run("perturb", written(), "out.csv", "--column", "answer", *options).code == 0
    forged(lambda form, certificate: None)
    assert run("certify", "--verify", "out.csv.json").code == 0
    forged(change)
    done = run("certify", "--verify", "out.csv.json")
    assert_refused(done, 4)
    assert "unexpected" not in done.err


def test_a_parameter_that_was_changed_in_the_output_is_found(run: Run) -> None:
    assert run("perturb", written(), "out.csv", "--column", "answer", *NOISE).code == 0
    text = Path("out.csv").read_text()
    last = text.splitlines()[-1].split(",")
    changed = text.replace(",".join(last), ",".join([last[0], "0.5", *last[2:]]))
    Path("out.csv").write_text(changed)
    payload = json.loads(Path("out.csv.json").read_text())
    payload["output"] |= {"sha256": hashlib.sha256(changed.encode()).hexdigest(), "bytes": len(changed)}
    Path("out.csv.json").write_text(json.dumps(payload))
    assert_refused(run("certify", "--verify", "out.csv.json"), 4, "is not the sensitivity of its certificate")


# The bound of a batch


def test_the_bound_of_a_batch_is_that_of_all_its_tables() -> None:
    """Against the closed form of Gaussian noise, from below within a thousandth; one entry less costs less."""
    ratios = np.repeat([0.02, 0.03, 0.05], 30)
    batch = dpk.Additive(dpk.Gaussian(1 / ratios), np.ones(90)).claim(sensitivity=1.0, epsilon=1.0, delta=1e-6)
    certificate, delta = dpk.exact_sampler(batch).certificate, Fraction(1, 10**6)
    mu = float(np.sqrt((ratios**2).sum()))
    truth = float(epsilon(dpk.Additive(dpk.Gaussian(1.0)), 1e-6, sensitivity=mu))
    bound = batch_bound(certificate, delta)
    assert truth <= bound <= 1.001 * truth
    assert batch_bound(dpk.exact_sampler(batch[:-1]).certificate, delta) < Fraction(truth)
    assert batch_bound(certificate, delta, 2) > bound


def test_noise_that_is_not_gaussian_is_composed_or_added() -> None:
    batch = dpk.laplace(epsilon=0.1, sensitivity=np.array([1.0, 2.0, 3.0]))
    certificate = dpk.exact_sampler(batch).certificate
    assert batch_bound(certificate, Fraction(0)) == Fraction(3, 10)
    mixed = dpk.Additive(dpk.Laplace(np.array([10.0, 20.0])), np.ones(2)).claim(
        sensitivity=1.0, epsilon=np.array([0.1, 0.05]), delta=1e-9
    )
    certificate = dpk.exact_sampler(mixed).certificate
    bound = batch_bound(certificate, Fraction(1, 10**3))
    assert 0.05 < bound < Fraction("0.15")
    with pytest.raises(ValueError, match="not known"):
        batch_bound(certificate, Fraction(0))


def test_the_claims_of_pure_noise_are_composed() -> None:
    """Against all outcomes of as many randomised responses, within a thousandth; one entry less costs less."""
    budgets, numbers, delta = np.array([0.02, 0.03, 0.05]), (20, 30, 40), Fraction(1, 10**6)
    batch = dpk.laplace(epsilon=np.repeat(budgets, numbers), sensitivity=np.linspace(1.0, 2.0, 90))
    certificate = dpk.exact_sampler(batch).certificate
    bound = float(batch_bound(certificate, delta))
    first, second, loss = np.ones(1), np.ones(1), np.zeros(1)
    for budget, number in zip(budgets, numbers, strict=True):
        hits = np.arange(number + 1)
        share = 1 / (1 + np.exp(-budget))
        first = np.outer(first, stats.binom.pmf(hits, number, share)).ravel()
        second = np.outer(second, stats.binom.pmf(hits, number, 1 - share)).ravel()
        loss = np.add.outer(loss, budget * (2 * hits - number)).ravel()
    deltas = [(first - np.exp(at) * second)[loss > at].sum() for at in (bound, 0.999 * bound)]
    assert deltas[0] <= delta < deltas[1]
    assert bound < 2.0 < batch_bound(certificate, Fraction(0)) == Fraction("3.3")
    assert batch_bound(dpk.exact_sampler(batch[:-1]).certificate, delta) < bound < batch_bound(certificate, delta, 2)


def test_one_budget_with_a_delta_is_divided_by_the_composition_of_pure_claims() -> None:
    """As a release does: with much less noise than budgets that add up."""
    queries = dpk.laplace(epsilon=1.0, sensitivity=np.ones(300))
    options: Any = {"epsilon": 1.0, "weights": None, "levels": 8}
    allocation = allocate_claims(queries, delta=1e-6, **options)
    certificate = dpk.exact_sampler(allocation.mechanism).certificate
    assert 0.999 <= float(batch_bound(certificate, Fraction(1, 10**6))) <= allocation.epsilon <= 1
    assert allocation.value < allocate_claims(queries, delta=0.0, **options).value / 10


@pytest.mark.parametrize("array", [np.array([1.5, -2.0, 1e300]), np.arange(5) - 2, np.zeros(0)])
def test_packed_arrays_are_read_as_they_were(array: np.ndarray) -> None:
    payload = json.loads(json.dumps(pack_array(array)))
    again = unpack_array(payload)
    assert again.dtype == array.dtype
    np.testing.assert_array_equal(again, array)
    for damage in ({"count": len(array) + 1}, {"type": "text"}, {"data": "!"}, {"count": -1}, {"more": 1}):
        with pytest.raises(ValueError, match=r"array|integers"):
            unpack_array(payload | damage)
    with pytest.raises(ValueError, match="finite"):
        unpack_array(pack_array(np.array([np.nan])))
