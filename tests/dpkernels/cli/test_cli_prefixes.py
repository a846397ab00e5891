"""The command on values that cannot be listed: releases of prefixes, the values that are found, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_helpers import SECRET, Run, command, known_secret, small_pieces
from key_helpers import column_key

import dpkernels as dpk
from dpkernels.cli.files.categories import category_codes
from dpkernels.release.categories import MISSING, UNKNOWN

__all__ = ["known_secret", "small_pieces"]

run = pytest.fixture(command, name="run")

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VALUES = np.random.default_rng(3).choice(["fig", "figs", "kiwi", "nut"], 3000, p=[0.5, 0.2, 0.2, 0.1]).tolist()
WORDS = ["--column", "word", "--length", "4", "--alphabet", LETTERS, "--epsilon", "6"]
PLAN = dpk.prefix_response(6.0, 4, LETTERS)
every_suffix = pytest.mark.parametrize("suffix", ["csv", "parquet"])


def write(path, values, **more):
    table = {"id": [f"p{row}" for row in range(len(values))], "word": values, **more}
    if path.endswith("parquet"):
        pq.write_table(pa.table(table), path, row_group_size=128)
        return
    rows = [",".join("" if cell is None else str(cell) for cell in row) for row in zip(*table.values(), strict=True)]
    Path(path).write_text("\n".join([",".join(table), *rows, ""]))


def reports(path):
    if path.endswith("parquet"):
        return pq.read_table(path).column("word")
    return pa.array([int(line.split(",")[1]) for line in Path(path).read_text().splitlines()[1:]])


@pytest.mark.lengthy
@every_suffix
def test_a_release_has_the_reports_of_the_library(run: Run, suffix, known_secret, small_pieces):
    write(f"in.{suffix}", VALUES)
    done = run("perturb", f"in.{suffix}", f"out.{suffix}", *WORDS)
    assert done.code == 0, done.err
    assert "values: texts of at most 4 characters out of 26" in done.out
    cells = reports(f"out.{suffix}")
    assert cells.to_pylist() == dpk.perturb(np.array(VALUES), PLAN, key=column_key(SECRET, "word")).tolist()
    verified = run("certify", "--verify", f"out.{suffix}.json")
    assert verified.code == 0, verified.err
    assert "ok: word, mechanism prefix-response, epsilon 6; neighbours: any two of the 531441 values" in verified.out
    found = PLAN.find(cells, most=8)
    payload = json.loads(run("estimate", f"out.{suffix}", "--most", "8", "--json").out)
    assert [row["value"] for row in payload["found"]] == found.values
    assert {row["value"] for row in payload["found"][:4]} == {"fig", "figs", "kiwi", "nut"}
    np.testing.assert_array_equal([row["share_low"] for row in payload["found"]], found.low)
    np.testing.assert_array_equal([row["share_high"] for row in payload["found"]], found.high)
    assert payload["reports"] == 3000
    assert payload["standard_error"] == PLAN.standard_error(3000)
    shown = run("estimate", f"out.{suffix}", "--most", "8", "--plot", "p.png")
    assert "fig " in shown.out
    assert "4 more values; " in shown.out
    assert Path("p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_a_cell_is_read_by_itself(kind):
    """Its code, or that it is none of the plan's values or has none, does not depend on other cells."""
    known = ["fig", "a", "zzzz"]
    strange = ["figss", "Fig", "fig ", "fïg", "f\0g", "nan", "NULL", "", "-", None]
    cells = pa.array([*known, *strange]).cast(pa.string())
    cells = cells.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else cells.cast(kind)
    codes = category_codes(cells, PLAN, ["-"])
    assert [PLAN.value(int(code)) for code in codes[: len(known)]] == known
    assert codes[len(known) :].tolist() == [UNKNOWN] * 5 + [MISSING] * 5
    assert [category_codes(cells[at : at + 1], PLAN, ["-"])[0] for at in range(len(cells))] == codes.tolist()


@pytest.mark.lengthy
@every_suffix
def test_values_that_are_none_and_missing_ones(run: Run, suffix):
    """No file of a release has a value that is none, and no message shows one where values are not shown."""
    values = [*VALUES[:100], "SECRET1", None, "figskiwi", *VALUES[100:]]
    write(f"in.{suffix}", values)
    for options, words in (
        ([], "row 100"),
        (["--redact"], "row 100"),
        (["--other", "zzzz"], "row 101"),
        (["--missing", "keep", "--longer", "cut"], "row 100"),
    ):
        done = run("perturb", f"in.{suffix}", "no." + suffix, *WORDS, *options)
        assert done.code == 1
        assert words in done.err
        assert not Path("no." + suffix).exists()
    assert "a text of the plan's characters; --other NAME takes such values" in done.err
    for missing, rows in (("keep", 3003), ("drop", 3002)):
        target = f"{missing}.{suffix}"
        options = ["--other", "zzzz", "--longer", "cut", "--missing", missing]
        assert run("perturb", f"in.{suffix}", target, *WORDS, *options).code == 0
        assert f"{rows} rows" in run("certify", "--verify", f"{target}.json").out
        payload = json.loads(run("estimate", target, "--json").out)
        assert payload["reports"] == 3002
        assert payload["missing"] == rows - 3002
        for file in (target, f"{target}.json"):
            assert b"SECRET" not in Path(file).read_bytes()
            assert b"kiwi" not in Path(file).read_bytes()
    options = json.loads(Path(f"{target}.json").read_text())["columns"][0]["options"]
    assert options == {"epsilon": 6.0, "length": 4, "alphabet": LETTERS, "lengths": [2, 3, 4], "longer": "cut"} | {
        "other": "zzzz"
    }


@pytest.mark.lengthy
def test_false_sidecars_and_outputs_are_refused(run: Run):
    write("in.csv", VALUES)
    assert run("perturb", "in.csv", "out.csv", *WORDS, "--full-certificate").code == 0
    text = Path("out.csv.json").read_text()

    def refused(change):
        payload = json.loads(text)
        change(payload["columns"][0])
        Path("out.csv.json").write_text(json.dumps(payload))
        assert run("certify", "--verify", "out.csv.json").code == 4
        done = run("estimate", "out.csv")
        assert done.code != 0
        return done.err

    def less_of_a_level(own):
        own["certificate"]["level_1"]["threshold"] -= own["certificate"]["level_1"]["blocks"] - 1

    def more_of_a_level(own):
        own["certificate"]["level_1"]["threshold"] += own["certificate"]["level_1"]["blocks"] - 1

    def no_level(own):
        del own["certificate"]["level_2"]

    def other_lengths(own):
        own["options"]["lengths"] = [1, 4]

    def other_alphabet(own):
        own["options"]["alphabet"] = LETTERS[:-1]

    def no_options(own):
        del own["options"]["alphabet"]

    for change in (less_of_a_level, more_of_a_level, no_level, other_lengths, other_alphabet, no_options):
        refused(change)
    Path("out.csv.json").write_text(text)
    lines = Path("out.csv").read_text().splitlines()
    for cell in (str(PLAN.outcomes), "-1", "fig", "1.5"):
        changed = [*lines[:5], f"p4,{cell}", *lines[6:], ""]
        Path("changed.csv").write_text("\n".join(changed))
        done = run("estimate", "changed.csv", "--sidecar", "out.csv.json")
        assert done.code == 1
        assert "row 4 (line 6) is no report of this release" in done.err
        assert "fig" not in done.err


@pytest.mark.lengthy
def test_a_dataset_of_many_files(run: Run):
    Path("in").mkdir()
    for part in range(2):
        write(f"in/{part}.parquet", VALUES[part::2])
    assert run("perturb", "in", "out", *WORDS).code == 0
    assert run("certify", "--verify", "out/_release.json").code == 0
    parts = sorted(Path("out").glob("*.parquet"))
    pq.write_table(pa.concat_tables([pq.read_table(part) for part in parts]), "one.parquet")
    whole = json.loads(run("estimate", "out", "--json").out)
    alone = json.loads(run("estimate", "one.parquet", "--sidecar", "out/_release.json", "--json").out)
    assert whole == alone
    assert whole["reports"] == 3000


@pytest.mark.lengthy
def test_ledgers_shuffled_rows_and_columns_of_other_kinds(run: Run):
    write("in.parquet", VALUES, age=[row % 90 for row in range(3000)])
    both = ["--column", "word", "--column", "age", "--mechanism", "prefix-response", "--mechanism", "balanced"]
    options = [*WORDS[2:6], "--lower", "0", "--upper", "120", "--epsilon", "6", "--epsilon", "0.5", "--shuffle-rows"]
    done = run("perturb", "in.parquet", "out.parquet", *both, *options, "--ledger", "l", "--budget", "7")
    assert done.code == 0, done.err
    assert "total epsilon a row: 6.5" in done.out
    assert run("certify", "--verify", "out.parquet.json").code == 0
    assert run("perturb", "in.parquet", "again.parquet", *both, *options, "--ledger", "l").code == 3
    assert run("estimate", "out.parquet", "--column", "age").code == 0
    assert "fig" in run("estimate", "out.parquet", "--column", "word").out
    assert "--most: is for prefix-response" in run("estimate", "out.parquet", "--column", "age", "--most", "3").err
    assert "--by: the most frequent" in run("estimate", "out.parquet", "--column", "word", "--by", "id").err
    assert "--histogram: is for numbers" in run("estimate", "out.parquet", "--column", "word", "--histogram", "3").err


@pytest.mark.lengthy
def test_checks_and_other_formats(run: Run, known_secret):
    """A check reads every value and writes nothing; another format has the same reports."""
    write("in.csv", VALUES)
    assert run("perturb", "in.csv", "out.csv", *WORDS, "--check").code == 0
    assert not Path("out.csv").exists()
    write("wrong.csv", [*VALUES[:9], "SECRET"])
    refused = run("perturb", "wrong.csv", "out.csv", *WORDS, "--check", "--redact")
    assert refused.code == 1
    assert "row 9" in refused.err
    assert run("perturb", "in.csv", "out.csv", *WORDS).code == 0
    assert run("perturb", "in.csv", "out.parquet", *WORDS).code == 0
    assert reports("out.csv").to_pylist() == reports("out.parquet").to_pylist()
    with pytest.raises(TypeError, match="has reports of prefixes"):
        dpk.estimate(reports("out.csv"), "out.csv.json")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--length", "4"], "missing"),
        (["--length", "4", "--alphabet", "aa"], "alphabet: 'aa' must be different characters"),
        (["--length", "41", "--alphabet", "ab"], "length: 41"),
        (["--length", "9", "--alphabet", LETTERS], "more than 2^40 values"),
        (["--length", "4", "--alphabet", "ab", "--lengths", "2,3"], "must grow to 4"),
        (["--length", "4", "--alphabet", "ab", "--other", "abaab"], "other: 'abaab' is not a text of up to 4"),
        (["--length", "4", "--alphabet", "ab", "--categories", "3"], "--categories"),
    ],
)
def test_wrong_options_are_refused(run: Run, options, words):
    write("in.csv", VALUES[:5])
    done = run("perturb", "in.csv", "out.csv", "--column", "word", "--epsilon", "1", *options)
    assert done.code == 2
    assert words in done.err


def test_account_and_certify(run: Run):
    options = ["--length", "4", "--alphabet", LETTERS, "--epsilon", "1"]
    done = run("certify", "--mechanism", "prefix-response", *options)
    assert done.code == 0, done.err
    assert "at one of 3 levels" in done.out
    done = run("account", "prefix-response", *options, "--json")
    assert done.code == 0, done.err
    payload = json.loads(done.out)
    assert payload["share_variance"] == pytest.approx(dpk.prefix_response(1.0, 4, LETTERS).standard_error(1) ** 2)
