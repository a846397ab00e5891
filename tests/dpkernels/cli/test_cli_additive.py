"""The command line with additive noise: which options a mechanism has, releases, mixed columns, forged sidecars."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from additive_commands import ADDITIVE, CLAIM, PURE, TARGET, arguments
from command_helpers import (
    AGE,
    SECRET,
    Run,
    ages,
    assert_nothing_but,
    assert_refused,
    column_options,
    command,
    read,
    write,
)
from independent import noise_law
from key_helpers import column_key

import dpkernels as dpk
from accountants import calibrate
from dpkernels.cli import options
from dpkernels.cli.perturb.sidecar import parse_sidecar

run = pytest.fixture(command, name="run")


@pytest.fixture(autouse=True)
def _known_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpkernels.cli.perturb.plan.os.urandom", lambda count: SECRET[:count])


def sidecar(name: str) -> dict[str, Any]:
    return json.loads(Path(f"{name}.json").read_text())


# Releases


@pytest.mark.lengthy
@pytest.mark.quick(
    "laplace",
    "gaussian, sigma",
    "truncated-laplace, end",
    "recycled-gaussian, q",
    "discrete-laplace, step",
    "truncated-discrete-laplace",
)
@pytest.mark.parametrize("case", ADDITIVE)
def test_reports_are_those_of_the_mechanism_and_its_sidecar_is_verified(run: Run, case: str) -> None:
    np.save("in.npy", ages())
    done = run("perturb", "in.npy", "out.npy", *arguments(case))
    assert done.code == 0, done.err
    made = ADDITIVE[case][1]()
    expected = dpk.perturb(ages(), made, key=column_key(SECRET, None))
    np.testing.assert_array_equal(np.load("out.npy"), expected)
    form = sidecar("out.npy")
    assert (form["epsilon"], form["delta"]) == (1.0, made.delta)
    assert 0 <= form["realised_delta"] <= made.delta
    assert form["columns"][0]["neighbouring"] == "at most 2 apart"
    checked = run("certify", "--verify", "out.npy.json")
    name, claim = case.partition(",")[0], f"epsilon 1, delta {made.delta:g}" if made.delta else "epsilon 1"
    assert checked.out.splitlines()[0] == f"ok: (array), mechanism {name}, {claim}; neighbours: at most 2 apart"


UNEVEN = ["--mechanism", "truncated-laplace", "--epsilon", "1", "--delta", "0.1", "--sensitivity", "1"]


@pytest.mark.parametrize("end", ["2.5", "12"])
def test_each_side_of_the_interval_of_the_sidecar_misses_by_half_of_the_rest(run: Run, end: str) -> None:
    """By a count of the certificate's weights, which shares nothing with the interval. The noise is far from even."""
    np.save("in.npy", ages(5))
    assert run("perturb", "in.npy", "out.npy", *UNEVEN, "--noise-upper", end).code == 0
    (column,) = parse_sidecar(Path("out.npy.json").read_text())["columns"]
    form, found = column["certificate"], column["interval"]
    weights, cell = noise_law(form["noise"])
    assert found["confidence"] == 0.95
    assert abs(found["below"] - found["above"]) > 0.1
    for side, name in ((1, "below"), (-1, "above")):  # The true value is at least the released one less "below".
        cells = found[name] / float(cell)
        # The share of the noise beyond the end; rounding moves a release by less than two cells.
        least, most = (
            sum(w for code, w in weights.items() if side * code > cells + moved) / sum(weights.values())
            for moved in (2, -2)
        )
        assert least <= 0.025 <= most


def test_every_additive_mechanism_is_here() -> None:
    from dpkernels.cli import categories
    from dpkernels.cli.mechanisms import CHOICES, CONSTRUCTORS

    central = {"optimal-central", "central-piecewise"}
    assert central == {name for name, one in CONSTRUCTORS.items() if one.is_central}
    named = {case.partition(",")[0] for case in ADDITIVE} | set(dpk.MECHANISMS) | central | {"square-wave"}
    named |= set(categories.NAMES)
    assert named | set(CHOICES) == set(CONSTRUCTORS)


@pytest.mark.lengthy
@pytest.mark.parametrize("suffix", [".npy", ".csv", ".parquet"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int16])
def test_files_of_every_format(run: Run, suffix: str, dtype: Any) -> None:
    source = write(Path(f"in{suffix}"), ages(700, dtype))
    done = run("perturb", source, f"out{suffix}", *column_options(source), *arguments("laplace"))
    assert done.code == 0, done.err
    values = read(source) if suffix == ".csv" else ages(700, dtype)
    expected = dpk.perturb(
        values, dpk.laplace(epsilon=1.0, sensitivity=2.0), key=column_key(SECRET, None if suffix == ".npy" else "age")
    )
    np.testing.assert_array_equal(read(Path(f"out{suffix}")), expected)
    assert_nothing_but(source.name, f"out{suffix}", f"out{suffix}.json")


def test_reports_of_discrete_noise_are_on_its_lattice(run: Run) -> None:
    np.save("in.npy", ages(500))
    assert run("perturb", "in.npy", "out.npy", *arguments("discrete-laplace, step")).code == 0
    np.testing.assert_array_equal(np.fmod(np.load("out.npy"), 0.5), 0.0)


def test_what_is_calibrated_is_printed(run: Run) -> None:
    np.save("in.npy", ages(5))
    done = run("perturb", "in.npy", "out.npy", *arguments("gaussian"))
    assert f"(array): noise with sigma {calibrate.gaussian(**TARGET).noise.sigma:.9g}\n" in done.out
    certificate = run("certify", *arguments("gaussian")).out
    assert f"sigma {calibrate.gaussian(**TARGET).noise.sigma:.9g}\n" in certificate


# Several columns


MIXED = [
    *("--column", "age", "--mechanism", "piecewise", "--lower", "0", "--upper", "120", "--epsilon", "0.5"),
    *("--column", "pay", "--mechanism", "gaussian", "--sensitivity", "100", "--epsilon", "0.3", "--delta", "1e-6"),
    *("--column", "count", "--mechanism", "laplace", "--sensitivity", "1", "--epsilon", "0.2"),
]


def mixed(run: Run, *more: str) -> Any:
    values = ages(60)
    table = pa.table({"id": range(60), "age": values, "pay": values * 1000, "count": np.arange(60)})
    pq.write_table(table, "in.parquet")
    return run("perturb", "in.parquet", "out.parquet", *MIXED, *more)


@pytest.mark.lengthy
def test_bounded_and_additive_columns_mix(run: Run) -> None:
    done = mixed(run)
    assert done.code == 0, done.err
    table, raw = pq.read_table("out.parquet"), pq.read_table("in.parquet")
    means: dict[str, Any] = {
        "age": dpk.piecewise(epsilon=0.5, lower=0.0, upper=120.0),
        "pay": calibrate.gaussian(epsilon=0.3, delta=1e-6, sensitivity=100.0),
        "count": dpk.laplace(epsilon=0.2, sensitivity=1.0),
    }
    for name, made in means.items():
        expected = dpk.perturb(raw[name].to_numpy(), made, key=column_key(SECRET, name))
        np.testing.assert_array_equal(table[name].to_numpy(), expected)
    assert table["id"].equals(raw["id"])


@pytest.mark.lengthy
def test_the_total_of_mixed_columns_and_their_neighbours(run: Run) -> None:
    done = mixed(run)
    form = sidecar("out.parquet")
    assert form["epsilon"] == 1.0
    assert form["delta"] == 1e-6
    assert [one["neighbouring"] for one in form["columns"]] == [
        "any two in [0, 120]",
        "at most 100 apart",
        "at most 1 apart",
    ]
    total = "total epsilon a row: 1, delta 1e-06; two rows are neighbours if their values are in every column\n"
    assert total in done.out
    guess = "a guess which of two neighbouring rows is the true one, if both are equally likely, is right in "
    assert guess in done.out
    assert "NOT protected: id\n" in done.out
    lines = run("certify", "--verify", "out.parquet.json").out.splitlines()
    assert lines[0] == "ok: age, mechanism piecewise, epsilon 0.5; neighbours: any two in [0, 120]"
    assert lines[3].startswith("ok: total epsilon a row 1, delta 1e-06; neighbours: rows whose ")


def test_an_array_counts_every_value_of_a_row(run: Run) -> None:
    np.save("in.npy", np.ones((3, 40)))
    done = run("perturb", "in.npy", "out.npy", "--mechanism", "gaussian", "--delta", "0.03", *PURE)
    assert (sidecar("out.npy")["epsilon"], sidecar("out.npy")["delta"]) == (40.0, 1.2)
    assert "warning: a total delta of 1 or more guarantees nothing\n" in done.err
    assert run("certify", "--verify", "out.npy.json").code == 0


def test_an_option_is_for_the_columns_whose_mechanism_has_it() -> None:
    from dpkernels.cli.mechanisms import options_by_column

    names = ["laplace", "piecewise", "gaussian"]
    assert options_by_column(names, {"epsilon": [1.0], "sensitivity": [2.0, 3.0], "lower": [0.0], "delta": [0.1]}) == [
        {"epsilon": 1.0, "sensitivity": 2.0},
        {"epsilon": 1.0, "lower": 0.0},
        {"epsilon": 1.0, "sensitivity": 3.0, "delta": 0.1},
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sensitivity": [1.0] * 3}, "--sensitivity: given 3 times; give it once, or once for each of the 2 columns"),
        ({"epsilon": [1.0] * 2}, "--epsilon: given 2 times; give it once, or once for each of the 3 columns"),
        ({"lower": [1.0] * 2}, "--lower: given 2 times; give it once"),
        ({"theta": [1.0]}, "--theta: none of laplace, piecewise has such an option"),
    ],
)
def test_options_that_no_columns_match(given: dict[str, Any], words: str) -> None:
    from dpkernels.cli.mechanisms import options_by_column

    with pytest.raises(click.UsageError, match="^" + words):
        options_by_column(["laplace", "piecewise", "laplace"], given)


def test_every_option_is_some_mechanisms() -> None:
    from dpkernels.cli.mechanisms import CONSTRUCTORS

    assert {name for one in CONSTRUCTORS.values() for name in one.options} == set(options.OPTIONS)


def test_mechanisms_are_listed_with_their_options(run: Run) -> None:
    from dpkernels.cli.mechanisms import CONSTRUCTORS

    lines = {line.split()[0]: line for line in run("mechanisms").out.splitlines() if line}
    assert set(CONSTRUCTORS) < set(lines)
    assert lines["gaussian"].split() == ["gaussian", "--epsilon", "--delta", "--sensitivity", "--sigma"]


# Sidecars


def _columns(form: dict[str, Any], **changes: Any) -> None:
    form["columns"][1]["parameters"].update(changes)


FORGERIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "total delta": lambda form: form.update(delta=1e-7),
    "realised delta": lambda form: form.update(realised_delta=1e-12),
    "no delta": lambda form: form.pop("delta"),
    "not a delta": lambda form: form.update(delta=float("nan")),
    "certified delta": lambda form: form["columns"][1]["certificate"].update(delta=1e-9),
    "certified realised delta": lambda form: form["columns"][1]["certificate"].update(realised_delta="0"),
    "certified sensitivity": lambda form: form["columns"][1]["certificate"].update(sensitivity=1000.0),
    "sensitivity": lambda form: _columns(form, sensitivity=1000.0),
    "epsilon": lambda form: _columns(form, epsilon=0.1),
    "delta": lambda form: _columns(form, delta=1e-9),
    "no sensitivity": lambda form: form["columns"][1]["parameters"].pop("sensitivity"),
    "neighbouring": lambda form: form["columns"][1].update(neighbouring="at most 1000 apart"),
    "all neighbouring": lambda form: form.update(neighbouring="any two values of a row"),
    "a weight": lambda form: form["columns"][1]["certificate"]["noise"]["weights"].__setitem__(0, 7),
    "the cell": lambda form: form["columns"][1]["certificate"]["noise"].update(grains=1),
    "no table": lambda form: form["columns"][1]["certificate"].pop("noise"),
    "an older format": lambda form: form.update(format=1),
}


@pytest.mark.lengthy
@pytest.mark.quick(
    "total delta", "realised delta", "certified delta", "sensitivity", "epsilon", "neighbouring", "a weight", "the cell"
)
@pytest.mark.parametrize("forgery", FORGERIES)
def test_forged_sidecars_of_additive_noise_fail(run: Run, forgery: str) -> None:
    assert mixed(run, "--full-certificate").code == 0
    form = sidecar("out.parquet")
    FORGERIES[forgery](form)
    Path("out.parquet.json").write_text(json.dumps(form))
    assert_refused(run("certify", "--verify", "out.parquet.json"), 4)


def test_an_unknown_format_is_named(run: Run) -> None:
    Path("new.json").write_text(json.dumps({"format": 5}))
    assert_refused(run("certify", "--verify", "new.json"), 4, "format 5; this version reads formats 3 to 4")


# Refusals


GAUSSIAN = ["--mechanism", "gaussian"]
RECYCLED = ["--mechanism", "recycled-gaussian"]
WRONG: dict[str, tuple[list[str], str]] = {
    "no sensitivity": (["--mechanism", "laplace", "--epsilon", "1"], "--sensitivity: missing; laplace needs --epsilon"),
    "no delta": ([*GAUSSIAN, *PURE], "--delta: missing; gaussian needs --epsilon, --delta and --sensitivity"),
    "no claim": ([*GAUSSIAN, "--sigma", "3"], "--epsilon, --delta, --sensitivity: missing"),
    "no theta": ([*RECYCLED, *CLAIM], "--theta: missing"),
    "bounds": (["--mechanism", "laplace", *PURE, "--lower", "0"], "--lower: laplace has no such option"),
    "no bounds": ([*PURE[:2], "--lower", "0"], "--upper: missing; balanced, the default, needs"),
    "sensitivity of bounded": (
        [*AGE, "--sensitivity", "1"],
        "--sensitivity: balanced, the default, has no such option",
    ),
    "delta of laplace": (["--mechanism", "laplace", *CLAIM], "--delta: laplace has no such option"),
    "twice": ([*GAUSSIAN, *CLAIM, "--delta", "1e-5"], "--delta: given 2 times; give it once"),
    "sensitivity 0": (["--mechanism", "laplace", "--epsilon", "1", "--sensitivity", "0"], "sensitivity: 0"),
    "sensitivity below": ([*GAUSSIAN, *CLAIM[:-1], "-1"], "sensitivity: -1"),
    "sensitivity nan": ([*GAUSSIAN, *CLAIM[:-1], "nan"], "sensitivity: nan"),
    "sensitivity inf": ([*GAUSSIAN, *CLAIM[:-1], "inf"], "sensitivity: inf"),
    "delta 0": ([*GAUSSIAN, *PURE, "--delta", "0"], "delta: 0"),
    "delta 0, sigma": ([*GAUSSIAN, *PURE, "--delta", "0", "--sigma", "5"], "delta: 0"),
    "delta 1": (["--mechanism", "truncated-laplace", *PURE, "--delta", "1"], "delta: 1"),
    "delta nan": ([*GAUSSIAN, *PURE, "--delta", "nan"], "delta: nan"),
    "epsilon 0": ([*GAUSSIAN, "--epsilon", "0", *CLAIM[2:]], "epsilon: 0"),
    "sigma 0": ([*GAUSSIAN, *CLAIM, "--sigma", "0"], "sigma: 0"),
    "sigma text": ([*GAUSSIAN, *CLAIM, "--sigma", "wide"], "'wide'"),
    "theta 0": ([*RECYCLED, *CLAIM, "--theta", "0"], "theta: 0"),
    "theta below": ([*RECYCLED, *CLAIM, "--theta", "-1", "--sigma", "9", "--q", "0.1"], "theta: -1"),
    "q 1": ([*RECYCLED, *CLAIM, "--theta", "3", "--q", "1"], "q: 1"),
    "q below": ([*RECYCLED, *CLAIM, "--theta", "3", "--q", "-0.1", "--sigma", "9"], "q: -0.1"),
    "no feasible q": ([*RECYCLED, *CLAIM, "--theta", "3", "--sigma", "1"], "at no q; from"),
    "scale of a Gaussian kernel": ([*RECYCLED, *CLAIM, "--theta", "3", "--scale", "1"], "--scale: recycled-gaussian"),
    "end too near": (
        ["--mechanism", "truncated-laplace", *CLAIM, "--noise-upper", "3"],
        "noise-upper: 3 is not in (27.3",
    ),
    "bound too short": (["--mechanism", "truncated-gaussian", *CLAIM, "--bound", "3"], "bound: 3 is too short"),
    "gamma": (["--mechanism", "staircase", *PURE, "--gamma", "2"], "gamma: 2"),
    "step": (["--mechanism", "discrete-laplace", *PURE, "--step", "1e-9"], "step: 1e-09"),
    "rates": (["--mechanism", "merged-laplace", *CLAIM, "--rates", "1,x", "--breaks", "1"], "'1,x'"),
    "too many rates": (["--mechanism", "merged-laplace", *CLAIM, "--rates", "1,2", "--breaks", ""], "rates: 2 for 0"),
    "breaks": (["--mechanism", "merged-laplace", *CLAIM, "--rates", "1,2,3", "--breaks", "2,1"], "breaks: "),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_options(run: Run, case: str) -> None:
    given, words = WRONG[case]
    np.save("in.npy", ages(3))
    assert_refused(run("perturb", "in.npy", "out.npy", *given), 2, words)
    if given[0] == "--mechanism":
        assert_refused(run("certify", *given), 2, words)
    assert_nothing_but("in.npy")


INFEASIBLE: dict[str, tuple[list[str], str]] = {
    "sigma": ([*GAUSSIAN, *CLAIM, "--sigma", "5"], "at delta 1e-06 this noise has epsilon "),
    "rates": (["--mechanism", "merged-laplace", *CLAIM, "--rates", "1", "--breaks", ""], "this noise has epsilon 2"),
    "discrete": (["--mechanism", "discrete-gaussian", *CLAIM, "--sigma", "5"], "above the claimed 1e-06"),
    "too wide": ([*GAUSSIAN, *CLAIM, "--sigma", "1e9"], "wide; a table holds at most"),
    "odd lattice": (["--mechanism", "discrete-laplace", *PURE, "--step", "0.1"], "not a short binary fraction"),
}


@pytest.mark.quick("discrete")
@pytest.mark.parametrize("case", INFEASIBLE)
def test_tables_that_do_not_reach_their_claim(run: Run, case: str) -> None:
    given, words = INFEASIBLE[case]
    write(Path("in.csv"), ages(3))
    assert_refused(run("perturb", "in.csv", "out.csv", "--column", "age", *given), 4, "column 'age': ", words)
    assert_refused(run("certify", *given), 4, words)
    assert_nothing_but("in.csv")


def test_errors_name_the_column(run: Run) -> None:
    pq.write_table(pa.table({"a": [1.0], "b": [2.0]}), "in.parquet")
    columns = ["--column", "a", "--column", "b", "--mechanism", "laplace", "--mechanism", "recycled-laplace"]
    assert_refused(run("perturb", "in.parquet", "out.parquet", *columns, *CLAIM), 2, "column 'b': --theta: missing")


def test_inputs_far_from_0(run: Run) -> None:
    np.save("in.npy", np.array([1.0, 2.0**36]))
    given = arguments("laplace")
    words = "row 1 is 68719476736,", "2^34 sensitivities from 0", "--clip clips"
    assert_refused(run("perturb", "in.npy", "out.npy", *given), 1, *words)
    assert run("perturb", "in.npy", "out.npy", *given, "--clip").code == 0
    assert abs(np.load("out.npy")[1] - 2.0**35) < 100
    np.save("in.npy", np.array([1.0, np.nan]))
    result = run("perturb", "in.npy", "out2.npy", *given)
    assert_refused(result, 1, "row 1 is missing")
    assert "sensitivities" not in result.err


# certify


@pytest.mark.lengthy
@pytest.mark.parametrize("case", ["laplace", "truncated-laplace", "recycled-gaussian, sigma", "discrete-laplace"])
def test_certify_prints_the_certificate_and_its_cost(run: Run, case: str) -> None:
    made = ADDITIVE[case][1]()
    text = run("certify", *arguments(case)).out
    assert str(dpk.exact_sampler(made).certificate) in text
    assert "% in worst-case variance" in text
    payload = json.loads(run("certify", *arguments(case), "--json").out)
    assert payload["certificate"]["sensitivity"] == payload["parameters"]["sensitivity"] == 2
    assert abs(payload["variance_cost"]) < 0.05


# Intervals and composition


@pytest.mark.parametrize("case", ["laplace", "gaussian, sigma"])
def test_the_interval_of_a_true_value_is_printed_and_in_the_sidecar(run: Run, case: str) -> None:
    np.save("in.npy", ages(3))
    done = run("perturb", "in.npy", "out.npy", *arguments(case))
    assert done.code == 0, done.err
    interval = sidecar("out.npy")["columns"][0]["interval"]
    assert interval["confidence"] == 0.95
    released = np.load("out.npy")
    low, high = dpk.confidence_interval(released, ADDITIVE[case][1](), 0.95)
    np.testing.assert_allclose(released - interval["below"], low, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(released + interval["above"], high, rtol=1e-12, atol=1e-9)
    line = next(line for line in done.out.splitlines() if "with probability 95 %" in line)
    below, above = (float(text.replace(",", "")) for text in re.findall(r"released [-+] ([\d.,]+\d)", line))
    assert interval["below"] <= below <= interval["below"] * 1.001
    assert interval["above"] <= above <= interval["above"] * 1.001


def test_an_interval_that_the_table_does_not_have_is_refused(run: Run) -> None:
    np.save("in.npy", ages(3))
    assert run("perturb", "in.npy", "out.npy", *arguments("laplace")).code == 0
    form = sidecar("out.npy")
    form["columns"][0]["interval"]["below"] /= 2
    Path("out.npy.json").write_text(json.dumps(form))
    assert_refused(run("certify", "--verify", "out.npy.json"), 4, "interval: the file says")


@pytest.mark.lengthy
@pytest.mark.parametrize("case", ["laplace", "gaussian, sigma", "recycled-gaussian, q"])
def test_the_printed_command_composes_the_values(run: Run, case: str) -> None:
    np.save("in.npy", ages(3))
    done = run("perturb", "in.npy", "out.npy", *arguments(case))
    assert "if all 3 values are about the same people, they compose to epsilon 3" in done.out
    printed = next(line.partition("dpkernels account ")[2] for line in done.out.splitlines() if "account" in line)
    accounted = run("account", *shlex.split(printed), "--json")
    assert accounted.code == 0, accounted.err
    assert json.loads(accounted.out)["reports"] == 3


def test_a_budget_without_a_delta_is_answered_with_one(run: Run) -> None:
    np.save("in.npy", ages(3))
    people = ["--rows", "different-people"]
    charged = ["perturb", "in.npy", "out.npy", "--mechanism", "logistic", *PURE, "--ledger", "people.ledger", *people]
    for more in ([], ["--check"]):
        refused = run(*charged, "--budget", "2", *more)
        assert_refused(refused, 2, "has delta 0, but this release costs delta 1e-15; use --budget 2,1e-9")
    assert_nothing_but("in.npy")
    assert run(*charged, "--budget", "2,1e-9").code == 0
    gaussian = ["--mechanism", "gaussian", *CLAIM]
    budget = "--ledger", "other.ledger", "--budget", "5", *people
    assert_refused(run("perturb", "in.npy", "o.npy", *gaussian, *budget), 2, "use --budget 5,1e-")


def test_a_ledger_without_a_delta_cannot_pay_for_noise(run: Run) -> None:
    np.save("in.npy", ages(3))
    assert run("perturb", "in.npy", "out.npy", *AGE, "--ledger", "people.ledger", "--budget", "2").code == 0
    noise = ["--mechanism", "logistic", *PURE, "--rows", "different-people"]
    refused = run("perturb", "in.npy", "o.npy", *noise, "--ledger", "people.ledger")
    assert_refused(refused, 2, "the budget of people.ledger: has delta 0", "use --budget 2,1e-9 with a new ledger")


def test_a_ledger_without_a_delta_pays_for_pure_noise(run: Run) -> None:
    np.save("in.npy", ages(3))
    for case in ("laplace", "staircase", "discrete-laplace"):
        done = run(
            *("perturb", "in.npy", f"{case}.npy", "--mechanism", case, *PURE),
            *("--ledger", f"{case}.ledger", "--budget", "9", "--rows", "same-people"),
        )
        assert done.code == 0, done.err


def test_noise_is_compared_without_an_interval(run: Run) -> None:
    done = run("compare", "--epsilon", "1", "--sensitivity", "10", "--json")
    assert done.code == 0, done.err
    rows = {row["mechanism"]: row["worst_variance"] for row in json.loads(done.out)}
    assert rows["laplace (unbounded)"] == pytest.approx(200.0)
    assert min(rows, key=lambda name: rows[name]) == "staircase (unbounded)"
    for given in ([], ["--lower", "0"], ["--upper", "1", "--sensitivity", "1"]):
        assert_refused(run("compare", "--epsilon", "1", *given), 2, "--lower and --upper: give both")


@pytest.mark.parametrize("wrong", ["0", "-1", "nan", "inf", "1e-300", "1e200"])
def test_a_comparison_refuses_numbers_out_of_range(run: Run, wrong: str) -> None:
    assert_refused(run("compare", "--epsilon", "1", f"--sensitivity={wrong}"), 2, "sensitivity: ", "is not in [1e-100,")
    assert_refused(run("compare", f"--epsilon={wrong}", "--sensitivity", "1"), 2, "epsilon: ", "is not in [0.01, 20]")


@pytest.mark.lengthy
def test_the_interval_of_a_true_value_holds_rounded_values(run: Run) -> None:
    """10^4 intervals of 95 %, with noise narrower than the rounding: 9,000 hold the truth but with odds below 1e-60."""
    x = np.full(10_000, 0.5)
    np.save("in.npy", x)
    options = ["--mechanism", "laplace", "--sensitivity", "1", "--epsilon", "10", "--round", "0"]
    assert run("perturb", "in.npy", "out.npy", *options).code == 0
    interval, released = sidecar("out.npy")["columns"][0]["interval"], np.load("out.npy")
    assert interval["below"] > 0.5
    assert ((released - interval["below"] <= x) & (x <= released + interval["above"])).mean() > 0.9
    assert run("certify", "--verify", "out.npy.json").code == 0


def test_a_budget_that_would_not_be_enough_is_not_advised(run: Run) -> None:
    np.save("in.npy", ages(3))
    given = ["--mechanism", "laplace", "--sensitivity", "1", "--epsilon", "2", "--ledger", "money"]
    given += ["--rows", "different-people"]
    done = run("perturb", "in.npy", "out.npy", *given, "--budget", "0.5")
    assert done.code != 0
    assert "use --budget" not in done.err
