"""The command line: round trips, certificates, refusals that leave nothing behind, constant memory."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_helpers import (
    AGE,
    COLUMN,
    COMMAND,
    GOOD_CSV,
    SECRET,
    Result,
    Run,
    ages,
    assert_nothing_but,
    assert_refused,
    begun,
    column_options,
    command,
    known_secret,
    read,
    small_pieces,
    write,
)
from device_flags import several_devices
from key_helpers import column_key

import dpkernels as dpk
from dpkernels.cli.perturb.summary import _belief
from dpkernels.random.keys import column_secret

__all__ = ["known_secret", "small_pieces"]  # Fixtures.

run = pytest.fixture(command, name="run")


# Round trips


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".parquet"])
def test_reports_depend_on_key_and_row_alone(run: Run, suffix: str, known_secret: None, small_pieces: None) -> None:
    source, values = write(Path(f"in{suffix}"), ages()), ages()
    before = source.read_bytes()
    assert run("perturb", source, f"out{suffix}", *column_options(source), *AGE).code == 0
    mechanism = dpk.hybrid(epsilon=1.0, lower=0.0, upper=120.0)
    expected = dpk.perturb(values, mechanism, key=column_key(SECRET, None if suffix == ".npy" else "age"))
    np.testing.assert_array_equal(read(Path(f"out{suffix}")), expected)
    assert source.read_bytes() == before
    assert_nothing_but(source.name, f"out{suffix}", f"out{suffix}.json")


def test_two_releases_differ(run: Run) -> None:
    np.save("in.npy", ages())
    for name in ("one.npy", "two.npy"):
        assert run("perturb", "in.npy", name, *AGE).code == 0
    assert (np.load("one.npy") != np.load("two.npy")).mean() > 0.6


@pytest.mark.thorough
def test_reports_of_several_devices_are_those_of_one(tmp_path: Path) -> None:
    write(tmp_path / "in.csv", ages())
    script = (
        "import os, secrets, sys; from dpkernels.cli import main\n"
        "from dpkernels.cli.files import delimited; delimited.BLOCK_BYTES = 1000\n"
        "os.urandom = lambda count: bytes(count); sys.exit(main())"
    )
    for devices in (1, 3):
        flags = several_devices(devices)
        command = [sys.executable, "-c", script, "perturb", "in.csv", f"{devices}.csv", "--column", "age", *AGE]
        subprocess.run(command, check=True, cwd=tmp_path, env=os.environ | {"XLA_FLAGS": flags}, timeout=120)
    assert (tmp_path / "1.csv").read_bytes() == (tmp_path / "3.csv").read_bytes()


@pytest.mark.parametrize(
    ("dtype", "expected"), [("f2", "f4"), ("f4", "f4"), (">f4", "f4"), ("i8", "f8"), (">f8", "f8")]
)
def test_float32_stays_and_all_else_is_float64(run: Run, dtype: str, expected: str) -> None:
    np.save("in.npy", ages(100, dtype))
    assert run("perturb", "in.npy", "out.npy", *AGE).code == 0
    assert np.load("out.npy").dtype == np.dtype(expected)
    if dtype[0] != ">":
        write(Path("in.parquet"), ages(100, dtype))
        assert run("perturb", "in.parquet", "out.parquet", "--column", "age", *AGE).code == 0
        assert read(Path("out.parquet")).dtype == np.dtype(expected)


@pytest.mark.parametrize("shape", [(), (1,), (5, 7), (3, 4, 5)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_any_shape(run: Run, shape: tuple[int, ...], order: Any, known_secret: None) -> None:
    values = np.asarray(ages(int(np.prod(shape))).reshape(shape), order=order)
    np.save("in.npy", values)
    assert run("perturb", "in.npy", "out.npy", *AGE).code == 0
    mechanism = dpk.hybrid(epsilon=1.0, lower=0.0, upper=120.0)
    expected = dpk.perturb(values.ravel(order="K"), mechanism, key=column_key(SECRET, None))
    np.testing.assert_array_equal(np.load("out.npy").ravel(order="K"), expected)
    per_row = int(np.prod(shape[1:]))
    assert json.loads(Path("out.npy.json").read_text())["epsilon"] == per_row


def test_other_csv_cells_stay_as_they_are(run: Run) -> None:
    rows = ['007,"O\'Neil, ""Al""",{},', '008,Zoë\u2028,{},""', '1e5,"two\nlines",{}, x ', "+0,,{},NULL"]
    heading = "\ufeffid,full name,age,nöte"
    Path("in.csv").write_bytes("\r\n".join([heading, *(row.format("35.5") for row in rows), ""]).encode())
    options = ["--column", "age", *AGE]
    assert_refused(run("perturb", "in.csv", "out.csv", *options), 1, "line 4", "line break", "--multiline")
    assert run("perturb", "in.csv", "out.csv", *options, "--multiline").code == 0
    content = Path("out.csv").read_bytes().decode()
    reports = [row["age"] for row in csv.DictReader(io.StringIO(content, newline=""))]
    assert "35.5" not in reports
    filled = (row.format(report) for row, report in zip(rows, reports, strict=True))
    assert content == "\r\n".join([heading, *filled, ""])


def test_csv_bytes_that_are_not_utf8_stay(run: Run) -> None:
    Path("in.csv").write_bytes(b"name,age\nJos\xe9,20\n")
    assert run("perturb", "in.csv", "out.csv", "--column", "age", *AGE).code == 0
    assert Path("out.csv").read_bytes().startswith(b"name,age\nJos\xe9,")


def test_other_parquet_columns_and_types_stay(run: Run) -> None:
    table = pa.table(
        {
            "when": pa.array([1, 2, None], pa.timestamp("ns", "UTC")),
            "age": pa.array([1, 2, 3], pa.int8()),
            "kind": pa.array(["a", "b", "a"]).dictionary_encode(),
            "nested": [[1], [], None],
        }
    )
    pq.write_table(table, "in.parquet", row_group_size=2)
    assert run("perturb", "in.parquet", "out.parquet", "--column", "age", *AGE).code == 0
    table, result = pq.read_table("in.parquet"), pq.read_table("out.parquet")
    assert result.drop_columns("age").equals(table.drop_columns("age"), check_metadata=True)
    assert result.column_names == table.column_names
    assert result.schema.field("age").type == pa.float64()


def test_clipping_is_asked_for(run: Run, known_secret: None) -> None:
    np.save("in.npy", np.array([-5.0, 10.0, 130.0]))
    np.save("clipped.npy", np.array([0.0, 10.0, 120.0]))
    assert_refused(run("perturb", "in.npy", "out.npy", *AGE), 1, "row 0", "-5", "[0, 120]", "--clip")
    assert run("perturb", "in.npy", "out.npy", *AGE, "--clip", "--progress").code == 0
    assert run("perturb", "clipped.npy", "out2.npy", *AGE).code == 0
    np.testing.assert_array_equal(np.load("out.npy"), np.load("out2.npy"))


# Several columns, and the sidecar


def several(run: Run, *more: str) -> Result:
    values = ages(50)
    pq.write_table(pa.table({"age": values, "copied": values, "pay": 1000 * values, "c": values}), "in.parquet")
    columns = ["--column", "age", "--column", "pay", "--column", "c", "--lower", "0"]
    uppers = ["--upper", "120", "--upper", "120000", "--upper", "120"]
    budgets = ["--epsilon", "0.1", "--epsilon", "0.1", "--epsilon", "0.1"]
    mechanism = [] if "--mechanism" in more else ["--mechanism", "closed-form"]
    return run("perturb", "in.parquet", "out.parquet", *columns, *uppers, *budgets, *mechanism, *more)


def test_several_columns_their_total_and_what_is_not_protected(run: Run) -> None:
    names = ["--mechanism", "duchi", "--mechanism", "hybrid", "--mechanism", "sine-constant"]
    result = several(run, *names)
    assert result.code == 0
    assert "total epsilon a row: 0.3; local DP: any two rows are neighbours\n" in result.out
    words = "if somebody is 50 % sure of a row's values, the released ones make them at most 57.45 % sure\n"
    assert words in result.out
    assert "NOT protected: copied\n" in result.out
    table, raw = pq.read_table("out.parquet"), pq.read_table("in.parquet")
    assert table["copied"].equals(raw["copied"])
    assert not np.isin(table["age"], raw["age"]).any()
    payload = json.loads(Path("out.parquet.json").read_text())
    assert payload["epsilon"] == 0.3
    assert payload["rows"] == 50
    assert [column["mechanism"] for column in payload["columns"]] == names[1::2]


def test_a_guess_is_right_more_often_by_delta() -> None:
    """Of releases with a delta no belief is bounded, so that the best guess is stated, by its total variation."""
    assert "right in at most 73.61 %" in _belief(1.0, 0.01 * (1 + np.e) / 2, is_local=True)
    assert "sure" not in _belief(1.0, 1e-6, is_local=True)
    assert _belief(1.0, 0.0, is_local=True).endswith("make them at most 73.11 % sure")


def test_no_belief_is_bounded_where_only_near_values_are_neighbours(run: Run) -> None:
    """Noise of sensitivity 1 tells 0 from 1000 for certain; what it limits is a guess between two neighbours."""
    np.save("in.npy", np.arange(3.0))
    done = run("perturb", "in.npy", "out.npy", "--mechanism", "laplace", "--sensitivity", "1", "--epsilon", "1")
    assert "sure" not in done.out
    assert "a guess which of two neighbouring rows is the true one, if both are equally likely, is right" in done.out


def test_columns_do_not_share_noise(run: Run) -> None:
    values = np.full(1000, 60.0)
    pq.write_table(pa.table({"a": values, "b": values}), "in.parquet")
    assert run("perturb", "in.parquet", "out.parquet", "--column", "a", "--column", "b", *AGE).code == 0
    table = pq.read_table("out.parquet")
    assert (table["a"].to_numpy() != table["b"].to_numpy()).mean() > 0.6


def test_the_sidecar_does_not_hold_the_key(run: Run, known_secret: None) -> None:
    assert several(run).code == 0
    text = Path("out.parquet.json").read_text()
    for secret in (SECRET, *(column_secret(SECRET, name) for name in ("age", "pay", "c"))):
        assert secret.hex() not in text
        assert str(np.frombuffer(secret, "<u4")[0]) not in text
    payload = json.loads(text)
    assert payload["format"] == 4
    assert payload["versions"].keys() == {"dpkernels", "jax", "numpy", "python"}
    assert payload["columns"][0]["parameters"]["upper"] == 120


@pytest.mark.lengthy
@pytest.mark.parametrize("name", ["piecewise", "hybrid", "duchi", "triangle-quartic"])
def test_sidecars_are_verified_again(run: Run, name: str) -> None:
    assert several(run, "--mechanism", name).code == 0
    result = run("certify", "--verify", "out.parquet.json")
    assert result.code == 0
    assert result.out.count("ok: ") == 5
    assert "(declared" not in result.out


TAMPERINGS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "total": lambda form: form.update(epsilon=0.2),
    "budget": lambda form: form["columns"][1]["certificate"].update(epsilon=0.05),
    "ratio": lambda form: form["columns"][0]["certificate"].update(ratio="1"),
    "weights": lambda form: form["columns"][0]["certificate"]["table"]["base"][0].__setitem__(0, 1),
    "parameters": lambda form: form["columns"][0]["parameters"].update(upper=60.0),
    "format": lambda form: form.update(format=99),
    "columns": lambda form: form.pop("columns"),
    "table": lambda form: form["columns"][0]["certificate"].pop("table"),
    "neighbouring": lambda form: form.update(neighbouring="rows that are equal"),
    "a column's neighbouring": lambda form: form["columns"][0].update(neighbouring="any two in [0, 1e9]"),
    "delta": lambda form: form.update(delta=1e-9),
}


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_changed_sidecars_fail(run: Run, tampering: str) -> None:
    assert several(run, "--full-certificate").code == 0
    payload = json.loads(Path("out.parquet.json").read_text())
    TAMPERINGS[tampering](payload)
    Path("out.parquet.json").write_text(json.dumps(payload))
    assert_refused(run("certify", "--verify", "out.parquet.json"), 4)


# Refusals

BAD_CELLS = {
    "nan": ("nan", "missing", "finite", "--missing"),
    "infinity": ("-inf", "-inf", "finite"),
    "too large to write down": ("1e999", "inf", "finite"),
    "outside": ("121", "121", "[0, 120]"),
    "text": ("old", "'old'", "number"),
    "empty": ("", "missing", "empty", "--missing"),
    "quoted empty": ('""', "missing", "empty", "--missing"),
}


@pytest.mark.parametrize("case", BAD_CELLS)
def test_bad_csv_cells(run: Run, case: str, small_pieces: None) -> None:
    cell, *words = BAD_CELLS[case]
    Path("in.csv").write_text("id,age\n" + "a,77\n" * 200 + f"b,{cell}\nc,88\n")
    result = run("perturb", "in.csv", "out.csv", "--column", "age", *AGE)
    assert_refused(result, 1, "column 'age'", "row 200", *words)
    assert "77" not in result.err
    assert_nothing_but("in.csv")


@pytest.mark.parametrize("cell", [float("nan"), float("inf"), -1.0, None])
def test_bad_parquet_cells(run: Run, cell: float | None, small_pieces: None) -> None:
    pq.write_table(pa.table({"age": [5.0] * 200 + [cell, 5.0]}), "in.parquet")
    result = run("perturb", "in.parquet", "out.parquet", "--column", "age", *AGE)
    assert_refused(
        result, 1, "column 'age'", "row 200 is " + ("missing" if cell is None or np.isnan(cell) else f"{cell:g}")
    )
    assert_nothing_but("in.parquet")


def test_bad_array_values_are_named_by_their_index(run: Run) -> None:
    values = np.ones((4, 5))
    values[2, 3] = np.nan
    for order in ("C", "F"):
        np.save("in.npy", np.asarray(values, order=order))
        assert_refused(run("perturb", "in.npy", "out.npy", *AGE), 1, "value (2, 3) is missing")
    assert_nothing_but("in.npy")


def _truncate(path: Path, share: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


def _damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[20:-2000] = bytes(len(content) - 2020)
    path.write_bytes(content)


def _without_groups(path: Path) -> None:
    with pq.ParquetWriter(path, pq.read_schema(path)):
        pass


UNREADABLE: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "truncated parquet": ("in.parquet", lambda path: _truncate(path, 0.6), "not a readable Parquet file"),
    "damaged parquet": ("in.parquet", _damage, "not a readable Parquet file"),
    "empty parquet file": ("in.parquet", lambda path: path.write_bytes(b""), "not a readable Parquet file"),
    "no rows in parquet": ("in.parquet", lambda path: write(path, ages(0)), "is empty"),
    "no row groups in parquet": ("in.parquet", lambda path: _without_groups(path), "there is no row"),
    "text in parquet": ("in.parquet", lambda path: pq.write_table(pa.table({"age": ["1"]}), path), "holds string"),
    "truncated npy": ("in.npy", lambda path: _truncate(path, 0.6), "is truncated"),
    "truncated npy header": ("in.npy", lambda path: path.write_bytes(path.read_bytes()[:50]), "not a readable .npy"),
    "not npy": ("in.npy", lambda path: path.write_text("hello world, hello"), "not a readable .npy"),
    "empty npy file": ("in.npy", lambda path: path.write_bytes(b""), "is empty"),
    "no values in npy": ("in.npy", lambda path: np.save(path, ages(0)), "is empty"),
    "objects in npy": ("in.npy", lambda path: np.save(path, np.array([None, 1]), allow_pickle=True), "object"),
    "texts in npy": ("in.npy", lambda path: np.save(path, np.array(["a", "b"])), "<U1"),
    "complex npy": ("in.npy", lambda path: np.save(path, ages(9).astype(complex)), "complex128"),
    "empty csv file": ("in.csv", lambda path: path.write_bytes(b""), "is empty"),
    "no rows in csv": ("in.csv", lambda path: path.write_text("id,age\n"), "is empty"),
    "a short row": ("in.csv", lambda path: path.write_text(GOOD_CSV + "z\n"), "row 2 (line 4) has 1 cells"),
    "a long row": ("in.csv", lambda path: path.write_text(GOOD_CSV + "z,1,hidden\n"), "row 2 (line 4) has 3 cells"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_unreadable_files(run: Run, case: str) -> None:
    name, spoil, words = UNREADABLE[case]
    source = write(Path(name), ages())
    spoil(source)
    result = run("perturb", name, f"out{source.suffix}", *column_options(source), *AGE)
    assert_refused(result, 1, words)
    assert "hidden" not in result.err
    assert_nothing_but(name)


def test_an_empty_line_of_a_single_column_is_an_empty_cell(run: Run) -> None:
    Path("in.csv").write_text("age\n1\n\n3\n")
    assert_refused(run("perturb", "in.csv", "out.csv", "--column", "age", *AGE), 1, "row 1 (line 3) is missing")


WRONG_USAGE: dict[str, tuple[list[str], str]] = {
    "no arguments": ([], "IN"),
    "missing input": (["no.csv", "out.csv", *COLUMN, *AGE], "no.csv"),
    "no suffix": (["in", "out", *COLUMN, *AGE], "suffix ''"),
    "other suffix": (["in.csv", "out.npy", *COLUMN, *AGE], "out.npy"),
    "unknown suffix": (["in.txt", "out.txt", *COLUMN, *AGE], ".txt"),
    "no folder": (["in.csv", "no/out.csv", *COLUMN, *AGE], "folder no "),
    "onto itself": (["in.csv", "in.csv", "--force", *COLUMN, *AGE], "is the input"),
    "onto itself by a link": (["in.csv", "link.csv", "--force", *COLUMN, *AGE], "is the input"),
    "output exists": (["in.csv", "old.csv", *COLUMN, *AGE], "--force"),
    "sidecar exists": (["in.csv", "older.csv", *COLUMN, *AGE], "--force"),
    "no such column": (["in.csv", "out.csv", "--column", "wage", *AGE], "'wage'"),
    "no column": (["in.csv", "out.csv", *AGE], "--column"),
    "column twice": (["in.csv", "out.csv", *COLUMN, *COLUMN, *AGE], "twice"),
    "ambiguous column": (["twin.csv", "out.csv", *COLUMN, *AGE], "2 columns"),
    "column of an array": (["in.npy", "out.npy", *COLUMN, *AGE], "--column"),
    "no bounds": (["in.csv", "out.csv", *COLUMN, "--epsilon", "1"], "--lower"),
    "bounds reversed": (["in.csv", "out.csv", *COLUMN, "--lower", "9", "--upper", "1", "--epsilon", "1"], "lower"),
    "bounds equal": (["in.csv", "out.csv", *COLUMN, "--lower", "1", "--upper", "1", "--epsilon", "1"], "lower"),
    "bound nan": (["in.csv", "out.csv", *COLUMN, "--lower", "nan", "--upper", "1", "--epsilon", "1"], "lower"),
    "bound infinite": (["in.csv", "out.csv", *COLUMN, "--lower", "0", "--upper", "inf", "--epsilon", "1"], "upper"),
    "epsilon zero": (["in.csv", "out.csv", *COLUMN, "--lower", "0", "--upper", "1", "--epsilon", "0"], "epsilon"),
    "epsilon negative": (["in.csv", "out.csv", *COLUMN, "--lower", "0", "--upper", "1", "--epsilon", "-1"], "epsilon"),
    "epsilon absurd": (["in.csv", "out.csv", *COLUMN, "--lower", "0", "--upper", "1", "--epsilon", "1e6"], "epsilon"),
    "epsilon nan": (["in.csv", "out.csv", *COLUMN, "--lower", "0", "--upper", "1", "--epsilon", "nan"], "epsilon"),
    "epsilon text": (["in.csv", "out.csv", *COLUMN, "--lower", "0", "--upper", "1", "--epsilon", "one"], "'one'"),
    "epsilon twice": (["in.csv", "out.csv", *COLUMN, *AGE, "--epsilon", "2"], "--epsilon: given 2 times"),
    "unknown mechanism": (["in.csv", "out.csv", *COLUMN, *AGE, "--mechanism", "magic"], "piecewise-wang2019"),
    "unknown option": (["in.csv", "out.csv", *COLUMN, *AGE, "--magic"], "--magic"),
}


@pytest.mark.parametrize("case", WRONG_USAGE)
def test_wrong_usage(run: Run, case: str) -> None:
    arguments, words = WRONG_USAGE[case]
    for name in ("in.csv", "in.txt", "in", "old.csv", "older.csv.json"):
        Path(name).write_text(GOOD_CSV)
    Path("twin.csv").write_text("age,age\n1,2\n")
    Path("link.csv").symlink_to("in.csv")
    np.save("in.npy", ages(3))
    before = {path: path.read_bytes() for path in Path().iterdir()}
    assert_refused(run("perturb", *arguments), 2, words)
    assert {path: path.read_bytes() for path in Path().iterdir()} == before


def test_counts_of_options_match_the_columns(run: Run) -> None:
    assert_refused(several(run, "--epsilon", "1"), 2, "--epsilon: given 4 times", "3 columns")


def test_force_replaces_both_files(run: Run) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    for name in ("out.csv", "out.csv.json"):
        Path(name).write_text("old")
    assert run("perturb", "in.csv", "out.csv", "--force", "--column", "age", *AGE).code == 0
    assert Path("out.csv").read_text().startswith("id,age\nx,")
    assert run("certify", "--verify", "out.csv.json").code == 0
    assert_nothing_but("in.csv", "out.csv", "out.csv.json")


def test_a_failure_with_force_keeps_the_old_files(run: Run) -> None:
    Path("in.csv").write_text(GOOD_CSV + "z,nan\n")
    for name in ("out.csv", "out.csv.json"):
        Path(name).write_text("old")
    assert run("perturb", "in.csv", "out.csv", "--force", "--column", "age", *AGE).code == 1
    assert Path("out.csv").read_text() == Path("out.csv.json").read_text() == "old"
    assert_nothing_but("in.csv", "out.csv", "out.csv.json")


def test_unexpected_errors_are_one_line_after_a_traceback_if_debugging(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("oh\nno\x1b[2J")

    np.save("in.npy", ages(3))
    monkeypatch.setattr("dpkernels.cli.perturb.rows.in_chunks", fail)
    line = "error: unexpected RuntimeError: oh no\\x1b[2J (DPKERNELS_DEBUG=1 shows where)\n"
    assert run("perturb", "in.npy", "out.npy", *AGE) == (1, "", f"dpkernels: {line}")
    assert_nothing_but("in.npy")
    monkeypatch.setenv("DPKERNELS_DEBUG", "1")
    done = run("perturb", "in.npy", "out.npy", *AGE, traceback=True)
    assert done.code == 1
    assert done.err.startswith("Traceback (most recent call last):\n")
    assert done.err.endswith(f"RuntimeError: oh\nno\\x1b[2J\ndpkernels: {line}")


# Processes: full disks, signals, imports, memory


@pytest.mark.lengthy
@pytest.mark.quick(".csv")
@pytest.mark.parametrize("suffix", [".npy", ".csv", ".parquet"])
def test_a_full_disk_leaves_nothing(run: Run, suffix: str) -> None:
    source = write(Path(f"in{suffix}"), ages(200_000))
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); {COMMAND[2]}"
    arguments = ["perturb", source.name, f"out{suffix}", *column_options(source), *AGE]
    done = subprocess.run([sys.executable, "-c", limited, *arguments], capture_output=True, text=True, timeout=120)
    assert_refused(Result(done.returncode, done.stdout, done.stderr), 1, f"out{suffix}", "File too large")
    assert_nothing_but(source.name)


@pytest.mark.lengthy
@pytest.mark.quick("15")
@pytest.mark.usefixtures("requests_to_stop_are_heeded")
@pytest.mark.parametrize("request_to_stop", [signal.SIGINT, signal.SIGTERM])
def test_interrupts_leave_nothing(run: Run, request_to_stop: signal.Signals) -> None:
    Path("in.csv").write_text("age\n" + "50\n" * 100_000)
    process = begun("perturb", "in.csv", "out.csv", "--column", "age", *AGE)
    assert list(Path().glob(".dpkernels-*"))
    process.send_signal(request_to_stop)
    _, err = process.communicate(timeout=60)
    assert_refused(Result(process.returncode, "", err), 1, "interrupted")
    assert_nothing_but("in.csv")


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        *([name, "-h"] for name in ("perturb", "compare", "certify", "account", "mechanisms", "ledger")),
    ],
)
def test_help_does_not_start_jax(arguments: list[str]) -> None:
    script = (
        f"import sys; from dpkernels.cli import main; code = main({arguments!r})\n"
        "heavy = {'jax', 'numpy', 'pyarrow', 'rich', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy or code else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage" in done.stdout or dpk.__version__ in done.stdout


@pytest.mark.lengthy
@pytest.mark.parametrize("package", ["click", "pyarrow"])
def test_a_missing_extra_is_named(tmp_path: Path, package: str) -> None:
    write(tmp_path / "in.csv", ages(3))
    script = f"import sys; sys.modules[{package!r}] = None; {COMMAND[2]}"
    command = [sys.executable, "-c", script, "perturb", "in.csv", "out.csv", "--column", "age", *AGE]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    expected = f"{package} is not installed; pip install '.[cli]' in a clone of dpkernels"
    assert_refused(Result(done.returncode, done.stdout, done.stderr), 1, expected)


def peak_mib(*arguments: str) -> float:
    """Peak memory of the command. A process counts its parent's memory as its own, hence the small one between."""
    script = (
        "import os, subprocess, sys; process = subprocess.Popen(sys.argv[1:], stdout=2)\n"
        "_, status, usage = os.wait4(process.pid, 0); print(usage.ru_maxrss); sys.exit(status != 0)"
    )
    done = subprocess.run([sys.executable, "-c", script, *COMMAND, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout) / 1024


def write_rows(path: str, rows: int, columns: int, groups: int) -> None:
    """Incompressible numbers, written piece by piece."""
    source = np.random.default_rng(3)
    piece = rows // groups
    schema = pa.schema([(f"c{number}", pa.float64()) for number in range(columns)])
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for _ in range(groups):
            table = pa.table([source.uniform(0, 100, piece) for _ in range(columns)], schema)
            writer.write_table(table, row_group_size=piece)


MEMORY = ["--column", "c0", "--lower", "0", "--upper", "100", "--epsilon", "1"]


@pytest.mark.thorough
def test_memory_does_not_grow_with_the_file(run: Run) -> None:
    write_rows("small.parquet", 2_500_000, 6, groups=1)
    write_rows("large.parquet", 8_000_000, 6, groups=1)  # 366 MiB in one row group
    small = peak_mib("perturb", "small.parquet", "a.parquet", *MEMORY)
    large = peak_mib("perturb", "large.parquet", "b.parquet", *MEMORY)
    assert large < small + 160


@pytest.mark.slow
def test_a_hundred_million_rows_in_a_gibibyte(run: Run) -> None:
    write_rows("in.parquet", 100_000_000, 2, groups=100)
    started = time.monotonic()
    peak = peak_mib("perturb", "in.parquet", "out.parquet", *MEMORY)
    print(f"peak {peak:.0f} MiB, {time.monotonic() - started:.0f} s")
    assert pq.ParquetFile("out.parquet").metadata.num_rows == 100_000_000
    assert peak < 1024


# compare and certify


@pytest.mark.thorough
def test_compare_sorts_by_worst_case_and_has_laplace(run: Run) -> None:
    result = run("compare", "--epsilon", "1", "--lower", "0", "--upper", "120", "--json")
    rows = json.loads(result.out)
    noise_names = {f"{name} (unbounded)" for name in ("laplace", "staircase", "logistic", "student")}
    assert {row["mechanism"] for row in rows} == {*dpk.MECHANISMS} | noise_names
    worst = [row["worst_variance"] for row in rows]
    assert worst == sorted(worst)
    by_name = {row["mechanism"]: row for row in rows}
    assert by_name["laplace (unbounded)"]["worst_variance"] == 2 * 120**2
    noise = dpk.staircase(epsilon=1.0, sensitivity=120.0).noise
    assert by_name["staircase (unbounded)"]["worst_variance"] == pytest.approx(float(noise.variance), rel=1e-12)
    mechanism = dpk.piecewise(epsilon=1.0, lower=0.0, upper=120.0)
    assert by_name["piecewise"]["worst_variance"] == pytest.approx(float(mechanism.worst_variance))
    assert by_name["piecewise"]["reports"] == pytest.approx([float(end) for end in mechanism.output_interval])
    table = run("compare", "--epsilon", "1", "--lower", "0", "--upper", "120").out
    assert all(row["mechanism"] in table for row in rows)
    assert_refused(run("compare", "--epsilon", "0", "--lower", "0", "--upper", "1"), 2, "epsilon")
    twice = run("compare", "--epsilon", "1", "--epsilon", "2", "--lower", "0", "--upper", "1")
    assert_refused(twice, 2, "--epsilon: given 2 times")
    tiny = run("compare", "--epsilon", "1", "--lower", "0", "--upper", "120e-120", "--json")
    assert [row["worst_variance"] * 1e240 for row in json.loads(tiny.out)] == pytest.approx(worst, rel=1e-9)


@pytest.mark.parametrize(
    "header",
    [
        b"v\0{'descr': '<f8', 'fortran_order': False, 'shape': (" + b"(" * 90 + b"\n",
        b"v\0{'descr': '<f8', 'fortran_order': False, 'shape': '''" + b"(" * 67 + b"\n",
        b"v\0" + b"[" * 5000 + b"\n",
    ],
)
def test_headers_of_arrays_that_cannot_be_read(run: Run, header: bytes) -> None:
    Path("in.npy").write_bytes(b"\x93NUMPY\x01\0" + header)
    assert_refused(run("perturb", "in.npy", "out.npy", *AGE), 1, "in.npy: is not a readable .npy file")


@pytest.mark.thorough
def test_compare_draws(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpkernels.cli import compare

    monkeypatch.setattr(compare, "_POINTS", 4)
    monkeypatch.setattr(compare, "_FEWER", 2)
    monkeypatch.setattr(compare, "_MAX_EPSILON", 0.5)
    drawn: list[Any] = []
    monkeypatch.setattr(
        compare, "_figure", lambda *figure, make=compare._figure: drawn.append(make(*figure)) or drawn[-1]
    )
    arguments = ["compare", "--epsilon", "1", "--lower", "0", "--upper", "1", "--plot"]
    assert run(*arguments, "plot.png").code == 0
    assert Path("plot.png").read_bytes().startswith(b"\x89PNG")
    assert_nothing_but("plot.png")
    assert_refused(run(*arguments, "plot.txt"), 2, "plot.txt")
    assert {"optimal", "hybrid"} < labels(drawn[0])
    central = ["compare", "--epsilon", "0.05", "--lower", "0", "--upper", "2", "--sensitivity", "1", "--plot"]
    assert run(*central, "central.png").code == 0
    axes = drawn[1].axes[0]
    assert {"optimal-central", "central-piecewise"} < labels(drawn[1])
    curves = [line.get_xydata() for line in axes.lines if len(line.get_xydata()) > 2]
    np.testing.assert_allclose([curve[0, 0] for curve in curves], 0.05)
    np.testing.assert_allclose([curve[-1, 0] for curve in curves], 0.5)


def labels(figure: Any) -> set[str]:
    return {line.get_label() for line in figure.axes[0].lines}


@pytest.mark.parametrize("name", ["piecewise", "hybrid", "duchi"])
def test_certify_prints_the_certificate_and_its_cost(run: Run, name: str) -> None:
    arguments = ["certify", "--mechanism", name, "--epsilon", "1", "--lower", "0", "--upper", "1"]
    payload = json.loads(run(*arguments, "--json").out)
    assert payload["certificate"]["epsilon"] == 1
    assert abs(payload["variance_cost"]) < 0.01
    text = run(*arguments).out
    assert str(dpk.exact_sampler(dpk.MECHANISMS[name](epsilon=1.0, lower=0.0, upper=1.0)).certificate) in text
    assert "% in worst-case variance" in text


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 2),
        (["--mechanism", "magic", "--epsilon", "1", "--lower", "0", "--upper", "1"], 2),
        (["--mechanism", "duchi", "--epsilon", "1", "--lower", "0"], 2),
        (["--verify", "no.json"], 2),
        (["--verify", "list.json"], 4),
        (["--verify", "list.json", "--epsilon", "1"], 2),
        (["--mechanism", "duchi", "--epsilon", "1", "--lower", "0", "--upper", "1", "--epsilon", "2"], 2),
        (["--mechanism", "duchi", "--epsilon", "1", "--lower", "0", "--upper", "1", "--sensitivity", "2"], 2),
    ],
)
def test_certify_refuses(run: Run, arguments: list[str], code: int) -> None:
    Path("list.json").write_text("[1]")
    assert_refused(run("certify", *arguments), code)


def test_without_a_subcommand_there_is_help(run: Run) -> None:
    bare = run()
    assert bare == run("--help")
    assert (bare.code, bare.err) == (0, "")
    assert "Exit codes:" in bare.out


# Access and false claims


@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_an_output_is_no_more_open_than_its_input(run: Run, mode: int) -> None:
    source = write(Path("in.csv"), ages())
    source.chmod(mode)
    assert run("perturb", source, "out.csv", *column_options(source), *AGE).code == 0
    assert Path("out.csv").stat().st_mode & 0o777 == mode


@pytest.mark.parametrize(
    "change", [{"values_per_row": 0, "epsilon": 0.0}, {"columns": [], "epsilon": 0.0}, {"realised_epsilon": 0.001}]
)
def test_a_sidecar_with_false_totals_is_refused(run: Run, change: dict[str, object]) -> None:
    source = write(Path("in.csv"), ages())
    assert run("perturb", source, "out.csv", *column_options(source), *AGE).code == 0
    sidecar = Path("out.csv.json")
    sidecar.write_text(json.dumps(json.loads(sidecar.read_text()) | change))
    assert_refused(run("certify", "--verify", sidecar), 4)
