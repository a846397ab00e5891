"""JSON of results and failures, all rows that cannot be perturbed, options in a file, and completion of the shell."""

from __future__ import annotations

import json
import os
import re
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_helpers import (
    AGE,
    COLUMN,
    COMMAND,
    GOOD_CSV,
    Run,
    assert_nothing_but,
    assert_refused,
    command,
    known_secret,
    small_pieces,
)

from dpkernels.budgets.ledger import Ledger
from dpkernels.cli import terminal
from dpkernels.cli.schemas import SCHEMAS, table

run = pytest.fixture(command, name="run")
__all__ = ["known_secret", "small_pieces"]  # Fixtures.

RELEASE = ["perturb", "in.csv", "out.csv", *COLUMN, *AGE]
# Every kind of fault, and a value that no output may show.
BAD_CSV = "id,age\na,1\nb,\nc,secret\nd,501.25\ne,nan\nf,1e400\ng,3\n"
BAD_PLACES = [1, 2, 3, 4, 5]


def test_all_bad_rows_are_reported_at_once(run: Run) -> None:
    Path("in.csv").write_text(BAD_CSV)
    done = run(*RELEASE)
    assert_refused(done, 1, "in all 5 values cannot be perturbed", "2 missing", "1 outside the interval")
    for row in BAD_PLACES:
        assert f"row {row} (line {row + 2})" in done.err
    assert_nothing_but("in.csv")


def test_all_bad_rows_are_in_json_without_their_values(run: Run) -> None:
    Path("in.csv").write_text(BAD_CSV)
    Ledger.create("people.ledger", 5)
    done = run(*RELEASE, "--ledger", "people.ledger", "--json")
    payload = json.loads(done.out)
    assert (done.code, payload["code"]) == (1, 1)
    assert payload["rows"]["counts"] == {"missing": 2, "not a number": 1, "outside the interval": 1, "not finite": 1}
    assert payload["rows"]["all"] is True
    assert [row["row"] for row in payload["rows"]["first"]] == BAD_PLACES
    assert "is voided: nothing was released" in payload["charge"]
    for value in ("secret", "501.25", "1e400"):
        assert value not in done.out
    assert Ledger("people.ledger").state().spent == (0, 0)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_bad_rows_beyond_a_piece_are_counted_and_the_search_ends(
    run: Run, small_pieces: None, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    ages = [500.0 if row % 7 == 3 else 5.0 for row in range(1000)]
    if suffix == ".csv":
        Path("in.csv").write_text("age\n" + "".join(f"{age}\n" for age in ages))
    else:
        pq.write_table(pa.table({"age": ages}), "in.parquet", row_group_size=300)
    arguments = ["perturb", f"in{suffix}", f"out{suffix}", *COLUMN, *AGE, "--json"]
    rows = json.loads(run(*arguments).out)["rows"]
    assert rows["counts"] == {"outside the interval": ages.count(500.0)}
    assert [row["row"] for row in rows["first"]] == [row for row, age in enumerate(ages) if age == 500.0][:10]
    monkeypatch.setattr("dpkernels.cli.perturb.rows.MAX_COUNTED", 20)
    rows = json.loads(run(*arguments).out)["rows"]
    assert rows["all"] is False
    assert 20 <= sum(rows["counts"].values()) < ages.count(500.0)


def test_bad_rows_of_two_columns_and_of_categories(run: Run) -> None:
    Path("in.csv").write_text("age,ward\n1,a\n500,b\n3,q\n4,\n")
    mechanisms = ["--column", "ward", "--mechanism", "balanced", "--mechanism", "categorical", "--categories", "a,b"]
    done = run("perturb", "in.csv", "out.csv", *COLUMN, *mechanisms, *AGE, "--check", "--json")
    rows = json.loads(done.out)["rows"]["first"]
    assert [(row["row"], row["column"], row["problem"]) for row in rows] == [
        (1, "age", "outside the interval"),
        (2, "ward", "not a category"),
        (3, "ward", "missing"),
    ]


def test_standard_output_with_data_has_no_json(run: Run) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    done = run("perturb", "in.csv", "-", "--sidecar", "out.json", *COLUMN, *AGE[:-1], "0", "--json")
    assert (done.code, done.out) == (2, "")
    assert json.loads(done.err)["code"] == 2


def test_warnings_are_in_json_and_not_hidden_by_quiet(run: Run) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    assert json.loads(run(*RELEASE, "--json").out)["warnings"] == []
    warnings = json.loads(run(*RELEASE, "--force", "--json").out)["warnings"]
    assert len(warnings) == 1
    assert "add up" in warnings[0]
    noise = [*COLUMN, "--mechanism", "gaussian", "--sensitivity", "1", "--epsilon", "1", "--delta", "0.6"]
    done = run("perturb", "in.csv", "twice.csv", *noise, "--column", "id2", "--quiet")
    assert done.code == 2
    Path("in.csv").write_text("age,pay\n1,2\n3,4\n")
    done = run("perturb", "in.csv", "twice.csv", *noise, "--column", "pay", "--quiet")
    assert (done.code, done.out) == (0, "")
    assert "warning: a total delta of 1 or more guarantees nothing" in done.err


def test_verification_in_json(run: Run) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    assert run(*RELEASE).code == 0
    done = run("certify", "--verify", "out.csv.json", "--json")
    payload = json.loads(done.out)
    assert (done.code, payload["verified"]) == (0, True)
    assert {statement["status"] for statement in payload["statements"]} == {"ok", "declared, not verified"}
    Path("out.csv").unlink()
    payload = json.loads(run("certify", "--verify", "out.csv.json", "--json").out)
    assert (payload["code"], payload["verified"]) == (4, False)


# Options in a file


def test_options_in_a_file_make_the_same_release(run: Run, known_secret: None) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    first = run(*RELEASE, "--missing", "keep", "--ledger", "l.ledger", "--budget", "5,1e-9", "--label", "é\"\\night",
                "--save-config", "night.toml")  # fmt: skip
    assert first.code == 0, first.err
    Path("released.csv").write_bytes(Path("out.csv").read_bytes())
    text = Path("night.toml").read_text(encoding="utf-8")
    assert text.startswith("[perturb]\n")
    second = run("perturb", "in.csv", "out.csv", "--force", "--config", "night.toml", "--save-config", "again.toml")
    assert second.code == 0, second.err
    assert Path("out.csv").read_bytes() == Path("released.csv").read_bytes()
    assert Path("again.toml").read_text(encoding="utf-8") == text
    labels = [entry.label for entry in Ledger("l.ledger").state().entries]
    assert labels == ['é"\\night: perturb in.csv to out.csv'] * 2


def test_the_command_line_replaces_what_a_file_says(run: Run) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    Path("a.toml").write_text('[perturb]\ncolumn = ["age"]\nlower = 0\nupper = 120\nepsilon = 1\njson = true\n')
    assert json.loads(run("perturb", "in.csv", "a.csv", "--config", "a.toml").out)["epsilon"] == 1
    assert json.loads(run("perturb", "in.csv", "b.csv", "--config", "a.toml", "--epsilon", "0.5").out)["epsilon"] == 0.5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epsilon = 1", "'epsilon' is no command"),
        ("[perturb]\nepsilom = 1", "'epsilom' is no option of perturb"),
        ("[perturb]\nforce = true", "'force' is no option of perturb"),
        ("[perturb]\nepsilon = true", "'epsilon' must be a string, a number or a date"),
        ("[perturb]\nclip = 1", "'clip' must be true or false"),
        ("[perturb]\nmissing = ['keep', 'drop']", "'missing' is a list; it is given once"),
        ("[perturb]\nepsilon = {a = 1}", "'epsilon' must be a string, a number or a date"),
        ("perturb = 3", "'perturb' must be a table"),
        ("[perturb", "cannot be read as TOML"),
        ("[perturb]\nepsilon = -1", "epsilon"),
    ],
)
def test_wrong_files_of_options_are_refused(run: Run, text: str, words: str) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    Path("a.toml").write_text(text)
    assert_refused(run(*RELEASE[:-2], "--config", "a.toml"), 2, words)
    assert_nothing_but("a.toml", "in.csv")


def test_options_are_saved_to_a_new_file_only(run: Run) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    assert_refused(run(*RELEASE, "--save-config", "in.csv"), 2, "--save-config: in.csv must be a new file")
    assert Path("in.csv").read_text() == GOOD_CSV


def test_the_ledger_of_the_environment_is_charged(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    usual, other = (Ledger.create(name, 1.5) for name in ("usual.ledger", "other.ledger"))
    monkeypatch.setenv("DPKERNELS_LEDGER", str(Path("usual.ledger").absolute()))
    assert run(*RELEASE).code == 0
    assert run(*RELEASE, "--force").code == 3
    assert run(*RELEASE, "--force", "--ledger", "other.ledger").code == 0
    assert [ledger.state().spent.epsilon for ledger in (usual, other)] == [1, 1]


def test_the_ledger_of_the_environment_is_the_same_in_every_folder(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    monkeypatch.setenv("DPKERNELS_LEDGER", "usual.ledger")
    for more in ([], ["--budget", "1"]):
        assert_refused(run(*RELEASE, *more), 2, "DPKERNELS_LEDGER: 'usual.ledger' must be an absolute path")
    assert not Path("usual.ledger").exists()
    assert run(*RELEASE, "--ledger", "own.ledger", "--budget", "1").code == 0


def test_a_label_needs_a_ledger(run: Run) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    assert_refused(run(*RELEASE, "--label", "night"), 2, "--label: is for a charge to a ledger")


def test_a_shell_can_complete_the_command() -> None:
    variables = {"_DPKERNELS_COMPLETE": "bash_complete", "COMP_WORDS": "dpkernels perturb --led", "COMP_CWORD": "2"}
    done = subprocess.run(COMMAND, capture_output=True, text=True, env=os.environ | variables, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "plain,--ledger\n", "")


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"_DPKERNELS_COMPLETE": "bash"}, "is bash_source, zsh_source or fish_source"),
        ({"_DPKERNELS_COMPLETE": "bash_complete"}, "is bash_source, zsh_source or fish_source"),
    ],
)
def test_a_completion_that_no_shell_asks_for_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], words: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert_refused(run(), 2, words)


def test_completion_prints_no_help(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_DPKERNELS_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "dpkernels perturb --help-all --led")
    monkeypatch.setenv("COMP_CWORD", "3")
    assert run() == (0, "plain,--ledger\n", "")


def test_failures_are_json_if_a_file_of_options_says_so(run: Run) -> None:
    Path("in.csv").write_text(BAD_CSV)
    Path("a.toml").write_text('[perturb]\ncolumn = "age"\nlower = 0\nupper = 120\nepsilon = 1\njson = true\n')
    assert json.loads(run("perturb", "in.csv", "out.csv", "--config", "a.toml").out)["code"] == 1
    assert json.loads(run("perturb", "in.csv", "out.csv", "--config", "a.toml", "--epsilon", "0").out)["code"] == 2
    assert run("perturb", "in.csv", "out.csv", *AGE).out == ""


def test_standard_output_with_data_has_no_json_of_wrong_options(run: Run) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    done = run("perturb", "in.csv", "-", "--sidecar", "out.json", "--colum", "age", "--json")
    assert (done.code, done.out) == (2, "")
    assert json.loads(done.err)["code"] == 2


def test_paths_of_a_file_of_options_are_in_its_folder(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    more = ["--ledger", "l.ledger", "--budget", "2", "--save-config", "night.toml"]
    assert run(*RELEASE, *more).code == 0
    assert "budget" not in Path("night.toml").read_text()
    other = Path("other")
    other.mkdir()
    monkeypatch.chdir(other)
    text = Path("../night.toml").read_text().replace(str(Path("..").resolve()) + "/", "")
    Path("../night.toml").write_text(text + 'budget = "2"\n')
    for name, code in (("a.csv", 0), ("b.csv", 3)):
        assert run("perturb", "../in.csv", name, "--config", "../night.toml").code == code
    assert not Path("l.ledger").exists()
    assert Ledger("../l.ledger").state().spent.epsilon == 2


def test_a_saved_release_charges_the_ledger_of_the_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler runs it in another environment, in which it must not be released without a charge."""
    Path("in.csv").write_text(GOOD_CSV)
    Ledger.create("usual.ledger", 2)
    monkeypatch.setenv("DPKERNELS_LEDGER", str(Path("usual.ledger").absolute()))
    assert run(*RELEASE, "--save-config", "night.toml").code == 0
    monkeypatch.delenv("DPKERNELS_LEDGER")
    assert [run("perturb", "in.csv", f"{i}.csv", "--config", "night.toml").code for i in range(2)] == [0, 3]


def test_options_that_cannot_be_saved_do_not_hide_the_result(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "n.toml")

    monkeypatch.setattr("dpkernels.cli.config.save", full)
    Path("in.csv").write_text(GOOD_CSV)
    done = run(*RELEASE, "--save-config", "n.toml", "--json")
    assert done.code == 0
    assert "n.toml could not be written" in json.loads(done.out)["warnings"][0]


def test_warnings_of_libraries_are_withheld_from_logs(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    def library(*_: object, **__: object) -> None:
        warnings.warn("cell secret", UserWarning, stacklevel=2)
        raise ValueError

    monkeypatch.setattr(terminal, "is_redacted", lambda: True)
    monkeypatch.setattr("dpkernels.cli.mechanisms.listing_dict", library)
    done = run("mechanisms", "--json")
    assert json.loads(done.out)["warnings"] == ["UserWarning"]
    assert "secret" not in done.out + done.err


def test_warnings_of_one_run_are_not_those_of_the_next() -> None:
    terminal.warn("first")
    terminal.begin()
    assert terminal.warnings() == []


# Texts of cells without a value


def test_markers_of_missing_values_are_no_numbers(run: Run) -> None:
    Path("in.csv").write_text("age,ward\n1,a\n-999,N/A\n,b\n3,a\n")
    mechanisms = ["--column", "ward", "--mechanism", "balanced", "--mechanism", "categorical", "--categories", "a,b"]
    arguments = ["perturb", "in.csv", "out.csv", *COLUMN, *mechanisms, *AGE, "--missing", "keep"]
    assert run(*arguments).code == 1
    assert run(*arguments, "--missing-markers", "-999, N/A").code == 0
    rows = [line.split(",") for line in Path("out.csv").read_text().splitlines()[1:]]
    assert [row[0] for row in rows][1:3] == ["-999", ""]
    assert [row[1] for row in rows][1] == "N/A"
    assert run("certify", "--verify", "out.csv.json").code == 0
    # Also where the reports are in another file, of another format.
    Path("moved.tsv").write_text(Path("out.csv").read_text().replace(",", "\t"))
    moved = ["estimate", "moved.tsv", "--sidecar", "out.csv.json", "--column", "ward", "--json"]
    assert json.loads(run(*moved).out)["missing"] == json.loads(run("estimate", "out.csv", *moved[4:]).out)["missing"]
    payload = json.loads(Path("out.csv.json").read_text())
    assert payload["layout"]["markers"] == ["-999", "N/A"]
    del payload["layout"]["markers"]
    Path("out.csv.json").write_text(json.dumps(payload))
    assert run("certify", "--verify", "out.csv.json").code == 4
    pq.write_table(pa.table({"age": [1.0]}), "in.parquet")
    refused = run("perturb", "in.parquet", "out.parquet", *COLUMN, *AGE, "--missing-markers", "x")
    assert_refused(refused, 2, "--missing-markers: is for csv and tsv, not for parquet")


# The schemas in the documentation


def problems(form: Any, schema: Any, where: str = "") -> list[str]:
    """What of a JSON value is not as a schema says; of JSON Schema, the words that the schemas use."""
    if "anyOf" in schema:
        each = [problems(form, one, where) for one in schema["anyOf"]]
        return min(each, key=len)
    if "enum" in schema:
        return [] if form in schema["enum"] else [f"{where}: {form!r}"]
    kinds = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None)}
    kind = (kinds | {"object": dict, "array": list})[schema["type"]]
    if not isinstance(form, kind) or (isinstance(form, bool) and kind is not bool):
        return [f"{where}: {form!r} is no {schema['type']}"]
    if isinstance(form, list):
        items = schema.get("items", {})
        return [problem for at, one in enumerate(form) for problem in problems(one, items, f"{where}[{at}]")]
    if not isinstance(form, dict):
        return []
    found = [f"{where}: {name} is missing" for name in schema.get("required", ()) if name not in form]
    for name, value in form.items():
        patterns = [one for pattern, one in schema.get("patternProperties", {}).items() if re.search(pattern, name)]
        of = schema.get("properties", {}).get(name, (patterns or [schema.get("additionalProperties", True)])[0])
        if of is False:
            found.append(f"{where}: {name} is in no schema")
        elif isinstance(of, dict):
            found += problems(value, of, f"{where}.{name}")
    return found


NOISE = ["gaussian", "--sensitivity", "1", "--sigma", "4"]
CLAIM = ["--epsilon", "1", "--delta", "1e-6"]
WINDOW = ["piecewise", "--lower", "0", "--upper", "120", "--epsilon", "4"]
# Of each schema some commands; the files are those of the test, in their order.
PRINTED: dict[str, list[list[str]]] = {
    "any that fails": [["perturb", "bad.csv", "no.csv", *COLUMN, *AGE], ["perturb", "in.csv", "no.csv"]],
    "perturb": [
        [*RELEASE, "--ledger", "l.ledger"],
        [*RELEASE[:2], "other.csv", *RELEASE[3:], "--check"],
        ["perturb", "dates.csv", "days.csv", *COLUMN, "--date-origin", "2000-01-01", *AGE],
        ["perturb", "queries.csv", "q.csv", *COLUMN, "--sensitivity-column", "most", "--together", "1,1e-6"],
    ],
    "release": [["release", "in.csv", "counts.csv", "--count", "--epsilon", "1"]],
    "release --dry-run": [["release", "in.csv", "dry.csv", "--count", "--epsilon", "1", "--dry-run"]],
    "estimate": [["estimate", "out.csv", "--by", "id"], ["estimate", "days.csv", "--histogram", "2"]],
    "estimate of categories": [["estimate", "wards.csv"]],
    "estimate of prefixes": [["estimate", "words.csv"]],
    "certify": [
        ["certify", "--mechanism", *WINDOW],
        ["certify", "--mechanism", *NOISE[:3], "--epsilon", "1", "--delta", "1e-6"],
    ],
    "certify --verify": [["certify", "--verify", "out.csv.json"], ["certify", "--verify", "counts.csv.json"]],
    "account": [["account", *NOISE], ["account", *WINDOW], ["account", "square-wave", *WINDOW[1:]]],
    "account --reports": [["account", *NOISE, "--reports", "3"]],
    "account --risk": [["account", *NOISE, "--risk"], ["account", *NOISE, "--risk", "--reports", "3"]],
    "compare": [["compare", "--epsilon", "1", "--sensitivity", "10"]],
    "compare --categories": [["compare", "--epsilon", "1", "--categories", "20"]],
    "ledger": [["ledger", "l.ledger"]],
    "mechanisms": [["mechanisms"]],
    "explore": [["explore", "--output", "page.html"]],
}


@pytest.mark.lengthy
def test_what_commands_print_follows_their_schemas(run: Run) -> None:
    Path("in.csv").write_text("id,age\n" + "".join(f"x,{row}\n" for row in range(100)))
    Path("bad.csv").write_text(BAD_CSV)
    Path("dates.csv").write_text("age\n" + "".join(f"2000-01-{1 + row % 31:02}\n" for row in range(300)))
    Path("queries.csv").write_text("age,most\n" + "3,1\n5,2\n" * 5)
    Path("ward.csv").write_text("ward\n" + "A\nB\n" * 50)
    Ledger.create("l.ledger", 5)
    wards = ["--column", "ward", "--categories", "A,B", "--epsilon", "1"]
    assert run("perturb", "ward.csv", "wards.csv", *wards).code == 0
    words = ["--column", "ward", "--length", "2", "--alphabet", "AB", "--epsilon", "1"]
    assert run("perturb", "ward.csv", "words.csv", *words).code == 0
    for name, calls in PRINTED.items():
        for arguments in calls:
            done = run(*arguments, "--json")
            assert (done.code == 0) == (name != "any that fails"), done
            payload = json.loads(done.out)
            assert problems(payload, SCHEMAS[name]) == [], arguments
    # A schema is a statement: another type, a field more and a field less are found.
    assert problems(payload | {"page": 1}, SCHEMAS["explore"])
    assert problems(payload | {"more": 1}, SCHEMAS["explore"])
    assert problems({}, SCHEMAS["explore"])
    assert SCHEMAS.keys() - PRINTED.keys() == {"tune"}


@pytest.mark.thorough
def test_tuning_prints_its_schema(run: Run) -> None:
    done = run("tune", "--epsilon", "1", "--lower", "0", "--upper", "120", "--json")
    assert problems(json.loads(done.out), SCHEMAS["tune"]) == []


def test_the_documentation_has_the_fields_of_the_schemas() -> None:
    page = (Path(__file__).parents[3] / "docs" / "releasing.md").read_text()
    assert f"<!-- python -m dpkernels.cli.schemas --table -->\n\n{table()}\n\n<!-- end -->" in page


def test_a_trial_on_some_rows_is_refused(run: Run) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    assert_refused(run(*RELEASE, "--head", "5"), 2, "--head: reports of some rows are a release", "--check")
    assert_nothing_but("in.csv")


def test_words_of_the_summary_are_explained(run: Run) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    summary = run(*RELEASE).out
    for word in ("neighbours: true values that", "local DP: any two rows", "hybrid: each value is"):
        assert word in summary
