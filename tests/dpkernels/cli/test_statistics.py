"""The command ``dpkernels release``: a table and a sidecar of a file's statistics, within a budget."""

from __future__ import annotations

import csv
import errno
import json
import warnings as python_warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from matplotlib import pyplot

from dpkernels.budgets.ledger import Ledger
from dpkernels.cli import main, terminal
from dpkernels.cli.commands import dpkernels as command
from dpkernels.cli.errors import EXHAUSTED, UNVERIFIED, exit_code
from dpkernels.session import DataWarning

N = 400
RNG = np.random.default_rng(2)
COLUMNS = {"id": np.arange(N) // 2, "age": RNG.integers(0, 90, N), "plan": RNG.choice(["A", "B"], N)}
ALL = "--by plan=A,B,C --count --sum age:0:90 --mean age:0:90 --quantiles age:0:90:0.25,0.5"
ALL += " --histogram age:0,30,60,90 --regression age:0:90:id:0:200 --epsilon 7"
PERSON = "--person id --rows-per-person 2"

pytestmark = pytest.mark.filterwarnings("ignore:another session:UserWarning")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = zip(*COLUMNS.values(), strict=True)
    with Path("people.csv").open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    pyarrow.parquet.write_table(pa.table(COLUMNS), "people.parquet")
    return tmp_path


def run(line, *, fails=False):
    result = CliRunner().invoke(command, line.split())
    assert (result.exit_code != 0) == fails, result.output
    return result


def rows_of(path):
    with Path(path).open() as file:
        return list(csv.DictReader(file))


@pytest.mark.lengthy
def test_a_table_and_a_sidecar_that_is_verified(folder):
    for source in ("people.csv", "people.parquet"):
        run(f"release {source} out.csv {PERSON} {ALL} --force")
        rows = rows_of("out.csv")
        assert len(rows) == 3 * (3 + 2 + 3 + 2)
        assert {row["plan"] for row in rows} == {"A", "B", "C"}
        count = rows[0]
        half = (float(count["high"]) - float(count["low"])) / 2  # of 95 %; five times it fails once in .05^-5 runs
        assert abs(float(count["value"]) - (COLUMNS["plan"] == "A").sum()) <= 5 * half
        verified = run("certify --verify out.csv.json").output
        assert "spent: epsilon 7, delta 0" in verified
    assert json.loads(run("certify --verify out.csv.json --json").output)["verified"]
    payload = json.loads((folder / "out.csv.json").read_text())
    payload["spent"] = ["1", "0"]
    (folder / "out.csv.json").write_text(json.dumps(payload))
    result = run("certify --verify out.csv.json", fails=True)
    assert exit_code(result.exception) == UNVERIFIED


def test_a_dry_run_changes_nothing(folder):
    before = sorted(path.name for path in folder.iterdir())
    output = run(
        f"release people.csv out.csv {PERSON} --count --mean age:0:90 --epsilon 1 --dry-run --ledger l --budget 1"
    ).output
    assert "mean of age" in output
    assert "Nothing is released or charged" in output
    as_json = run("release people.csv out.csv --count --epsilon 1 --dry-run --json --rows 50").output
    assert json.loads(as_json)["rows"] == 50
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_ledger_is_charged_and_refuses(folder):
    run("release people.csv out.csv --count --epsilon 0.75 --ledger l --budget 1")
    result = run("release people.csv more.csv --count --epsilon 0.75 --ledger l", fails=True)
    assert exit_code(result.exception) == EXHAUSTED
    assert "at most epsilon 0.25, delta 0 fits" in str(result.exception)
    assert not (folder / "more.csv").exists()
    assert "0.75" in run("ledger l").output


@pytest.mark.parametrize("is_redacted", [True, False])
def test_bounds_that_are_read_from_the_data_are_said_on_a_terminal_alone(folder, monkeypatch, capsys, is_redacted):
    """Not even that there is such a warning is in a log, in JSON or in a file, whatever Python's filters are."""
    monkeypatch.setattr(terminal, "is_redacted", lambda: is_redacted)
    ends = f"age:{COLUMNS['age'].min()}:{COLUMNS['age'].max()}"
    with python_warnings.catch_warnings():
        python_warnings.simplefilter("error", DataWarning)
        assert main(f"release people.csv out.csv --mean {ends} --epsilon 1 --json".split()) == 0
    printed = capsys.readouterr()
    assert ("exactly the smallest" in printed.err) == (not is_redacted)
    written = printed.out + (folder / "out.csv.json").read_text() + (printed.err if is_redacted else "")
    assert "Warning" not in written
    assert "exactly" not in written


@pytest.mark.lengthy
def test_keys_are_found_and_top_is_drawn(folder):
    run("release people.csv out.parquet --by plan=found --count --epsilon 2 --delta 1e-4 --plot plans.png")
    assert pyarrow.parquet.read_table("out.parquet")["plan"].to_pylist() == ["A", "B"]
    assert (folder / "plans.png").stat().st_size > 1000
    alone = pyplot.imread("plans.png").shape
    several = "--by plan=A,B,C --count --mean age:0:90 --histogram age:0,30,90"
    run(f"release people.csv all.csv {several} --epsilon 5 --plot all.png")
    assert pyplot.imread("all.png").shape[0] > 2 * alone[0], "several statistics are one above the other"
    payload = json.loads(run("release people.csv top.csv --top plan:1:A,B,C --epsilon 2 --json").output)
    assert payload["releases"][0]["result"]["index"]["rank"] == [1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--epsilon 1", "at least one statistic"),
        ("--count", "--epsilon"),
        ("--count --epsilon 0", "epsilon"),
        ("--count --epsilon x", "--epsilon"),
        ("--mean age:0 --epsilon 1", "--mean: 'age:0': must have the form COL:LOW:HIGH"),
        ("--mean age:5:0 --epsilon 1", "lower must be below upper"),
        ("--mean age:1/1/2024:5 --epsilon 1", "LOW: '1/1/2024' is not a number"),
        ("--top plan:x:A,B --epsilon 1", "K: 'x' is not a whole number"),
        ("--by plan=A,B --top plan:1:A,B --epsilon 1", "--top: 'plan:1:A,B': by: top is for all rows"),
        ("--count --by plan=A, --epsilon 1", "empty key"),
        ("--count --by plan=A,A --epsilon 1", "--by: the keys of 'plan' have 'A' twice"),
        ("--mean size:0:5 --epsilon 1", "no 'size'"),
        ("--count --by plan --epsilon 1", "--by"),
        ("--count --by plan=found --epsilon 1", "delta"),
        ("--count --person id --epsilon 1", "rows_per_person"),
        ("--count --epsilon 1 --budget 2", "--budget"),
        ("--count --epsilon 1 --ledger l --budget 2 --confidence 95", "--confidence"),
    ],
)
def test_what_is_refused_is_a_usage_error(folder, options, message):
    result = run(f"release people.csv out.csv {options}", fails=True)
    assert result.exit_code == 2
    assert message in result.output
    assert not (folder / "out.csv").exists()
    assert not (folder / "l").exists()


def test_a_file_is_replaced_by_force_alone(folder):
    run("release people.csv out.csv --count --epsilon 1")
    before = (folder / "out.csv").read_text()
    run("release people.csv out.csv --count --epsilon 1", fails=True)
    assert (folder / "out.csv").read_text() == before
    run("release people.csv out.csv --count --sum age:0:90 --epsilon 1 --force")
    assert len(rows_of("out.csv")) == 2


# Files, charges and what is shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("people.csv people.csv --force", "is the input"),
        ("people.csv out.csv --ledger out.csv --budget 3", "is a file of the release"),
        ("people.csv out.csv --ledger out.csv.json --budget 3", "is a file of the release"),
        ("people.csv out.csv --ledger p.png --plot p.png --budget 3", "is a file of the release"),
        ("in in/out.csv", "is in the folder of the input"),
        ("people.csv out.csv --mean size:0:1 --ledger l --budget 3", "there is no 'size'"),
        ("people.csv out.csv --ledger l --budget 0.5", "exceed"),
    ],
)
def test_no_file_of_a_release_of_statistics_is_another_one(folder, arguments, words):
    (folder / "in").mkdir()
    (folder / "in/1.csv").write_bytes((folder / "people.csv").read_bytes())
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    result = run(f"release {arguments} --count --epsilon 1", fails=True)
    assert words in str(result.output) + str(result.exception)
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before
    assert not (folder / "l").exists()


def test_the_ledger_of_the_environment_is_charged_for_statistics(folder, monkeypatch):
    monkeypatch.setenv("DPKERNELS_LEDGER", str(folder / "usual"))
    ledger = Ledger.create("usual", 1)
    run("release people.csv out.csv --count --epsilon 0.75")
    assert ledger.state().spent.epsilon == 0.75
    run("release people.csv more.csv --count --epsilon 0.75", fails=True)
    assert not (folder / "more.csv").exists()


@pytest.mark.parametrize(
    ("failure", "code", "spent"), [(OSError(errno.ENOSPC, "full"), 1, 1), (KeyboardInterrupt(), 1, 0)]
)
def test_a_release_of_statistics_that_fails_says_what_became_of_its_charge(
    folder, monkeypatch, capsys, failure, code, spent
):
    ledger, names = Ledger.create("l", 2), {path.name for path in folder.iterdir()} | {"l"}

    def fail(*_):
        raise failure

    monkeypatch.setattr("dpkernels.cli.release._write", fail)
    assert main(["release", "people.csv", "out.csv", "--count", "--epsilon", "1", "--ledger", "l", "--json"]) == code
    payload = json.loads(capsys.readouterr().out)
    assert payload["code"] == 1
    assert ("stays in l" if spent else "is voided") in payload["charge"]
    assert ledger.state().spent.epsilon == spent
    assert {path.name for path in folder.iterdir()} == names


def test_a_release_of_statistics_is_the_old_or_the_new_one(folder):
    run("release people.csv out.csv --count --epsilon 1")
    table, old = (folder / "out.csv").read_bytes(), (folder / "out.csv.json").read_text()
    run("release people.csv new.csv --count --epsilon 1")
    new = (folder / "new.csv.json").read_text()
    # A run that was killed between its renames has left this.
    (folder / "out.csv.json").write_text(f'{{"replacing": {json.dumps(old)}, {new[1:]}')
    assert "verified" in run("certify --verify out.csv.json").output
    run("release people.csv out.csv --count --epsilon 1", fails=True)
    assert (folder / "out.csv").read_bytes() == table
    run("release people.csv out.csv --count --epsilon 1 --force")
    assert "verified" in run("certify --verify out.csv.json").output


def test_a_table_that_was_altered_is_not_verified(folder):
    run("release people.csv out.csv --count --epsilon 1")
    (folder / "out.csv").write_text((folder / "out.csv").read_text().replace("count", "total"))
    assert exit_code(run("certify --verify out.csv.json", fails=True).exception) == UNVERIFIED
    (folder / "out.csv").unlink()
    assert exit_code(run("certify --verify out.csv.json", fails=True).exception) == UNVERIFIED


def test_columns_that_were_not_named_are_withheld_from_logs(folder, capsys):
    (folder / "bare.csv").write_text("Ann Smith,31\nBob,40\n")
    assert main(["release", "bare.csv", "out.csv", "--mean", "age:0:90", "--epsilon", "1", "--json"]) == 2
    said = capsys.readouterr()
    assert "bare.csv has 2 columns" in said.out
    assert "Smith" not in said.out + said.err


@pytest.mark.parametrize("more", ["", "--person id --rows-per-person 2"])
def test_two_columns_of_one_name_are_refused(folder, more):
    (folder / "twice.csv").write_text("id,age,age\n1,31,2\n")
    assert (
        "two columns have the same name"
        in run(f"release twice.csv out.csv --count --epsilon 1 {more}", fails=True).output
    )
