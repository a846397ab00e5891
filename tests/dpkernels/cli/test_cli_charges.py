"""``perturb --ledger`` charges statistics for whom their rows are about, and ``certify --verify`` checks the charge."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from command_helpers import AGE, Run, assert_nothing_but, assert_refused, command

from dpkernels.budgets.ledger import Ledger
from dpkernels.cli.files.delimited import DelimitedFile
from dpkernels.cli.perturb.sidecar import StatedGuarantee, row_guarantee

run = pytest.fixture(command, name="run")

COUNTS = "plan,count,sum\na,10,100\nb,20,200\nc,30,300\nd,40,400\n"
NOISE = ["--mechanism", "discrete-laplace", "--sensitivity", "1", "--epsilon", "1"]
COUNT = ["perturb", "in.csv", "out.csv", "--column", "count", *NOISE]
LEDGER = ["--ledger", "people.ledger", "--budget", "20,1e-9"]
SAME, DIFFERENT = ["--rows", "same-people"], ["--rows", "different-people"]


@pytest.fixture(autouse=True)
def counts(run: Run) -> None:
    Path("in.csv").write_text(COUNTS)
    np.save("in.npy", np.arange(8.0).reshape(4, 2))
    np.save("row.npy", np.arange(8.0))
    Path("in").mkdir()
    for number in range(2):
        Path(f"in/{number}.csv").write_text(COUNTS)
    Path("holes.csv").write_text(COUNTS.replace("20", ""))


def charge_of(sidecar: str) -> dict[str, Any]:
    return json.loads(Path(sidecar).read_text())["ledger"]


# The arguments, then epsilon and the rows that are charged together.
CASES: dict[str, tuple[list[str], str, int]] = {
    "overlapping counts": ([*COUNT, *SAME], "4", 4),
    "counts of different people": ([*COUNT, *DIFFERENT], "1", 1),
    "two columns": ([*COUNT, "--column", "sum", *SAME], "8", 4),
    "two columns, different": ([*COUNT, "--column", "sum", *DIFFERENT], "2", 1),
    "rows of two values": (["perturb", "in.npy", "out.csv", *NOISE, *SAME], "8", 4),
    "rows of two values, different": (["perturb", "in.npy", "out.csv", *NOISE, *DIFFERENT], "2", 1),
    "a vector": (["perturb", "row.npy", "out.csv", *NOISE, *SAME], "8", 8),
    "a dataset": (["perturb", "in", "out.csv", "--column", "count", *NOISE, *SAME], "8", 8),
    "rows that are dropped": (["perturb", "holes.csv", "out.csv", *COUNT[3:], *SAME, "--missing", "drop"], "4", 4),
    "rows that are missing": (["perturb", "holes.csv", "out.csv", *COUNT[3:], *SAME, "--missing", "keep"], "4", 4),
    "local": ([*COUNT[:5], *AGE], "1", 1),
    "local, one person": ([*COUNT[:5], *AGE, *SAME], "4", 4),
}


@pytest.mark.lengthy
@pytest.mark.parametrize("case", CASES)
def test_the_charge_is_that_of_the_rows_about_one_person(run: Run, case: str) -> None:
    arguments, epsilon, rows = CASES[case]
    target = arguments[2] = arguments[2].replace("csv", "npy") if "npy" in arguments[1] else arguments[2]
    done = run(*arguments, *LEDGER)
    assert done.code == 0, done.err
    assert f"charge 1 of epsilon {epsilon}," in done.out
    assert "if all" not in done.out or "--rows" not in arguments
    assert Ledger("people.ledger").state().spent.epsilon == Fraction(epsilon)
    sidecar = "out.csv/_release.json" if arguments[1] == "in" else f"{target}.json"
    charge = charge_of(sidecar)
    assert (charge["epsilon"], charge["charged_rows"]) == (epsilon, rows)
    assert charge["rows"] == (arguments[arguments.index("--rows") + 1] if "--rows" in arguments else None)
    assert run("certify", "--verify", sidecar).code == 0


@pytest.mark.lengthy
def test_the_check_and_the_listing_say_the_same(run: Run) -> None:
    checked = run(*COUNT, *SAME, *LEDGER, "--check")
    assert "epsilon 16, delta 1e-09 be left" in checked.out
    assert run(*COUNT, *SAME, *LEDGER).code == 0
    assert "perturb in.csv to out.csv, 4 rows about the same people" in run("ledger", "people.ledger").out
    assert run(*COUNT, *DIFFERENT, *LEDGER, "--force").code == 0
    assert "perturb in.csv to out.csv, rows about different people" in run("ledger", "people.ledger").out


USAGE: dict[str, tuple[list[str], str]] = {
    "not said": (LEDGER, "--rows: missing; the ledger must know whom the rows of discrete-laplace are about"),
    "without a ledger": (SAME, "--rows: says what is charged to a ledger; it needs --ledger FILE"),
    "twice": ([*LEDGER, *SAME, *DIFFERENT], "--rows: given 2 times"),
    "another word": ([*LEDGER, "--rows", "people"], "'people' is not one of"),
}


@pytest.mark.parametrize("case", USAGE)
def test_wrong_usage_charges_nothing(run: Run, case: str) -> None:
    given, words = USAGE[case]
    refused = run(*COUNT, *given)
    assert refused.code == 2
    assert words in refused.err
    assert not Path("people.ledger").exists()


def test_standard_input_cannot_be_counted(run: Run) -> None:
    piped = ["perturb", "-", "out.csv", "--format", "csv", *COUNT[3:]]
    assert_refused(run(*piped, *SAME, *LEDGER), 2, "--rows same-people: standard input cannot be read twice")


def test_rows_that_exceed_the_budget_together_are_refused(run: Run) -> None:
    refused = run(*COUNT, *SAME, "--ledger", "people.ledger", "--budget", "3.5,1e-9")
    assert refused.code != 0
    assert "asked for epsilon 4, delta 0; left epsilon 3.5" in refused.err
    assert_nothing_but("holes.csv", "in", "in.csv", "in.npy", "row.npy")


@pytest.mark.lengthy
@pytest.mark.parametrize("more", ["e,50,500\n", ""])
def test_a_file_that_changes_after_the_charge_is_not_released(
    run: Run, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    """It grows, or loses a row, between the count and the release: what would be released was not charged."""
    count = DelimitedFile.count

    def changed(source: DelimitedFile) -> int:
        rows = count(source)
        Path("in.csv").write_text(COUNTS + more if more else COUNTS.replace("d,40,400\n", ""))
        return rows

    monkeypatch.setattr(DelimitedFile, "count", changed)
    refused = run(*COUNT, *SAME, *LEDGER)
    assert_refused(refused, 1, f"IN: had 4 rows when they were charged, and {5 if more else 3} when they were read")
    assert "is voided: nothing was released" in refused.err
    assert not Path("out.csv").exists()
    assert Ledger("people.ledger").state().spent.epsilon == 0


FORGERIES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "whom the rows are about": (lambda form: form.update(rows="different-people"), "ledger: epsilon: the file says 4"),
    "nobody": (lambda form: form.update(rows=None), "ledger: rows: None must say whom"),
    "another word": (lambda form: form.update(rows="people"), "ledger: rows: 'people' must say whom"),
    "no word": (lambda form: form.pop("rows"), "ledger: rows: None must say whom"),
    "one row": (lambda form: form.update(charged_rows=1), "ledger: charged_rows: the file says 1"),
    "one row and its cost": (
        lambda form: form.update(charged_rows=1, epsilon="1", delta="1e-15"),
        "ledger: charged_rows: the file says 1",
    ),
    "more rows": (lambda form: form.update(charged_rows=5), "ledger: charged_rows: the file says 5"),
    "the cost of a row": (lambda form: form.update(epsilon="1"), "ledger: epsilon: the file says '1', 4 rows cost"),
    "a little less": (lambda form: form.update(epsilon="3.99"), "ledger: epsilon: the file says '3.99', 4 rows cost"),
    "more than the claims": (lambda form: form.update(epsilon="4.5"), "ledger: epsilon: the file says '4.5'"),
    "no number": (lambda form: form.update(epsilon="1e999999999"), "ledger: epsilon: the file says '1e999999999'"),
    "a number": (lambda form: form.update(epsilon=4), "ledger: epsilon: the file says 4"),
    "less delta": (lambda form: form.update(delta="1e-15"), "ledger: delta: the file says 1e-15"),
}


@pytest.mark.lengthy
def test_forged_charges_are_refused(run: Run) -> None:
    assert run(*COUNT, *SAME, *LEDGER).code == 0
    text = Path("out.csv.json").read_text()
    for change, words in FORGERIES.values():
        payload = json.loads(text)
        change(payload["ledger"])
        Path("out.csv.json").write_text(json.dumps(payload))
        assert_refused(run("certify", "--verify", "out.csv.json"), 4, words)


@pytest.mark.lengthy
def test_many_rows_cost_the_upper_end_of_their_bracket(run: Run) -> None:
    np.save("many.npy", np.arange(200.0))
    arguments = [
        "perturb",
        "many.npy",
        "out.npy",
        "--mechanism",
        "truncated-discrete-laplace",
        "--sensitivity",
        "1",
        "--epsilon",
        "0.05",
        "--delta",
        "1e-12",
        *SAME,
        *LEDGER,
    ]
    assert run(*arguments).code == 0
    charge = charge_of("out.npy.json")
    assert 4 < float(charge["epsilon"]) < 6
    assert run("certify", "--verify", "out.npy.json").code == 0
    payload = json.loads(Path("out.npy.json").read_text())
    payload["ledger"]["epsilon"] = f"{float(charge['epsilon']) * 0.99999:.7g}"
    Path("out.npy.json").write_text(json.dumps(payload))
    assert_refused(run("certify", "--verify", "out.npy.json"), 4, "ledger: epsilon: ")


def test_printed_totals_are_not_below_the_sums() -> None:
    source = Random(4)
    for _ in range(300):
        epsilons = [source.uniform(0, 3) for _ in range(source.randrange(1, 7))]
        values = source.randrange(1, 9)
        parts = [StatedGuarantee(epsilon, epsilon, epsilon / 9, epsilon / 9, "", {}) for epsilon in epsilons]
        row = row_guarantee(parts, values)
        for name in ("epsilon", "delta", "realised_epsilon", "realised_delta"):
            exact = values * sum(Fraction(repr(getattr(part, name))) for part in parts)
            assert exact <= Fraction(repr(getattr(row, name))) <= exact * (1 + Fraction(1, 10**15))
