"""What ``dpkernels perturb`` does to files besides noise: grammar, missing values, order, streams, Parquet's layout."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_helpers import (
    AGE,
    COLUMN,
    COMMAND,
    GOOD_CSV,
    Run,
    ages,
    assert_nothing_but,
    assert_refused,
    command,
    read,
    write,
)
from key_helpers import column_key

import dpkernels as dpk
from dpkernels.cli import main
from dpkernels.cli.files import delimited, parquet
from dpkernels.cli.perturb import plan, rows, sidecar

run = pytest.fixture(command, name="run")
known_secret = pytest.fixture(lambda monkeypatch: monkeypatch.setattr("os.urandom", bytes), name="known_secret")
MECHANISM = dpk.hybrid(epsilon=1.0, lower=0.0, upper=120.0)


def perturbed(values: Any, name: str | None = "age") -> np.ndarray:
    return dpk.perturb(np.asarray(values, float), MECHANISM, key=column_key(bytes(32), name))


# Cells are what the grammar says, or the file is refused

SWALLOWED = 'id,age,o\n0,1,"a\n1,2,b\n2,3,c\n'
MALFORMED: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "a quote that is never closed": (SWALLOWED.encode(), ("line 2:", "not closed")),
    "a quote that a later one closes": (b'id,age,o\n0,1,"a\n1,2,b"\n2,3,c\n', ("line 2:", "line break", "--multiline")),
    "text after a quote": (b'id,age,o\n0,1,"a"x\n', ("line 2:", "text after a closing quote")),
    "a quote inside a cell": (b'id,age,o\n0,1,a"b\n1,2,"c\n', ("line 2:", "quote inside a cell")),
    "a space before a quote": (b'id,age,o\n0,1, "a"\n', ("line 2:", "quote inside a cell")),
    "a carriage return": (b"id,age,o\n0,1,a\rb\n", ("line 2:", "carriage return")),
    "old line ends": (b"id,age,o\r0,1,a\r1,2,b", ("line 1:", "carriage return")),
    "a carriage return at the end": (b"id,age,o\n0,1,a\r", ("line 2:", "carriage return")),
    "a carriage return after the header": (b"\n\nid,age\r", ("line 3:", "at the end of the file")),
    "a quoted header that is never closed": (b'"a,age\n1,2\n', ("line 1: a quote that is not closed within 11 bytes",)),
    "the same after a mark": (b'\xef\xbb\xbf"a,age\n1,2\n', ("line 1: a quote that is not closed within 11 bytes",)),
    "the same after blank lines": (b'\r\n\n"a,age\n1,2\n', ("line 3: a quote that is not closed within 11 bytes",)),
    "the same after both": (b'\xef\xbb\xbf\n"a,age\n1,2\n', ("line 2: a quote that is not closed within 11 bytes",)),
    "a last record with an open quote": (b'age,o\n1,a\n2,"b', ("line 3: a quote that is not closed within 2 bytes",)),
    "NUL": (b"id,age,o\n0,1,a\0\n", ("NUL at byte 14",)),
    "UTF-16": ("id,age,o\n0,1,a\n".encode("utf-16"), ("UTF-16", "iconv")),
    "UTF-16 without a mark": ("id,age\n0,1\n".encode("utf-16-le"), ("NUL at byte 1;", "UTF-16")),
    "gzip": (gzip.compress(b"id,age\n0,1\n"), ("gzip", ".gz")),
    "a spreadsheet": (b"PK\x03\x04 age", ("spreadsheet",)),
    "a long header": (b"age," + b"x" * (5 << 20), ("header of more than 4194304 bytes",)),
    "a long record": (b"age\n" + b"1" * (9 << 20), ("line 2:", "a record of")),
    "a header of Latin-1": (b"age,\xe9\n1,2\n", ("header", "UTF-8")),
    "a header alone": (b"id,age", ("there is no row",)),
    "blank lines alone": (b"\n\r\n", ("is empty; a header is needed",)),
    "a mark alone": (b"\xef\xbb\xbf", ("is empty; a header is needed",)),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_what_is_no_table_is_refused(run: Run, case: str) -> None:
    content, words = MALFORMED[case]
    Path("in.csv").write_bytes(content)
    assert_refused(run("perturb", "in.csv", "out.csv", *COLUMN, *AGE), 1, "in.csv", *words)
    assert_nothing_but("in.csv")


def test_records_are_counted_by_a_second_parser(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault planted in the first: all of a quoted record's text is the cell of a column that is copied."""
    Path("in.csv").write_text(SWALLOWED.replace('"a\n', '"a"\n'))
    whole = delimited._grid

    def one_less(*given: Any) -> tuple[np.ndarray, np.ndarray]:
        first, ends = whole(*given)
        return first[:1], ends[-1:]

    monkeypatch.setattr(delimited, "_grid", one_less)
    monkeypatch.setattr("dpkernels.cli.files.delimited.DelimitedFile._names", lambda file, region: ["id", "age", "o"])
    assert_refused(run("perturb", "in.csv", "out.csv", *COLUMN, *AGE), 1, "second parser")


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_all_bytes_but_the_reports_are_kept(run: Run, known_secret: None, end: str) -> None:
    text = '\ufeff\r\n"id",age,"o, p"\n\n"0","{}",""\r\n1, {},x y\n\r\n2,{},"é"' + end
    Path("in.csv").write_bytes(text.format(5, 60.5, 120).encode())
    assert run("perturb", "in.csv", "out.csv", *COLUMN, *AGE).code == 0
    one, two, three = perturbed([5, 60.5, 120]).tolist()
    expected = text.replace(", {}", ",{}").replace('"{}"', "{}").format(repr(one), repr(two), repr(three))
    assert Path("out.csv").read_bytes().decode() == expected


def test_columns_are_filled_in_any_order(run: Run) -> None:
    Path("in.csv").write_text("a,b,c\n1,x,3\n4,y,6\n")
    options = ["--column", "c", "--column", "a", "--lower", "0", "--upper", "10", "--upper", "1000", "--epsilon", "1"]
    assert run("perturb", "in.csv", "out.csv", *options, "--mechanism", "duchi").code == 0
    rows = [line.split(",") for line in Path("out.csv").read_text().split()]
    assert [row[1] for row in rows] == ["b", "x", "y"]
    assert all(abs(float(row[0])) > 400 and abs(float(row[2])) < 20 for row in rows[1:])


# Missing values


def with_missing(path: Path) -> Path:
    values = ages(40)
    missing = np.arange(40) % 3 == 0
    match path.suffix:
        case ".npy":
            np.save(path, np.where(missing, np.nan, values))
        case ".csv":
            path.write_text(
                "id,age\n" + "".join(f"{i},{'' if gone else value}\n" for i, (value, gone) in cells(values))
            )
        case _:
            table = pa.table({"id": range(40), "age": pa.array(values, mask=missing)})
            pq.write_table(table, path, row_group_size=7)
    return path


def cells(values: np.ndarray) -> list[tuple[int, tuple[float, bool]]]:
    return [(at, (value, at % 3 == 0)) for at, value in enumerate(values.tolist())]


def numbers(path: Path) -> np.ndarray:
    if path.suffix == ".csv":
        return np.array([float(line.split(",")[1] or "nan") for line in path.read_text().splitlines()[1:]])
    return read(path)


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".parquet"])
@pytest.mark.parametrize("block", [40, 1 << 20])
def test_missing_values(run: Run, suffix: str, block: int, known_secret: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpkernels.cli.files.delimited.BLOCK_BYTES", block)
    source, column = with_missing(Path(f"in{suffix}")), COLUMN if suffix != ".npy" else []
    missing = np.arange(40) % 3 == 0
    assert_refused(run("perturb", source, f"out{suffix}", *column, *AGE), 1, "row 0", "is missing", "--missing")
    kept = run("perturb", source, f"keep{suffix}", *column, *AGE, "--missing", "keep")
    assert "which values are missing is NOT protected" in kept.out
    reports = numbers(Path(f"keep{suffix}"))
    np.testing.assert_array_equal(np.isnan(reports), missing)
    np.testing.assert_array_equal(reports[~missing], perturbed(ages(40), None if suffix == ".npy" else "age")[~missing])
    dropped = run("perturb", source, f"drop{suffix}", *column, *AGE, "--missing", "drop")
    assert "NOT protected" in dropped.out
    np.testing.assert_array_equal(numbers(Path(f"drop{suffix}")), reports[~missing])
    payload = json.loads(Path(f"drop{suffix}.json").read_text())
    assert (payload["missing"], payload["rows"]) == ("drop", (~missing).sum())


def test_which_kind_is_missing_stays(run: Run) -> None:
    Path("in.csv").write_text('age\n1\nNA\n" null "\n\n')
    assert run("perturb", "in.csv", "out.csv", *COLUMN, *AGE, "--missing", "keep").code == 0
    assert Path("out.csv").read_text().split("\n")[2:] == ["NA", "null", "", ""]
    pq.write_table(pa.table({"age": pa.array([1.0, None, np.nan], from_pandas=False)}), "in.parquet")
    assert run("perturb", "in.parquet", "out.parquet", *COLUMN, *AGE, "--missing", "keep").code == 0
    assert str(pq.read_table("out.parquet")["age"].to_pylist()[1:]) == "[None, nan]"


def test_a_bad_value_is_named_where_others_are_missing(run: Run) -> None:
    Path("in.csv").write_text("age\nNA\nNA\n300\nNA\n")
    assert_refused(run("perturb", "in.csv", "out.csv", *COLUMN, *AGE, "--missing", "keep"), 1, "row 2 (line 4) is 300")
    Path("none.csv").write_text("age\nNA\nNA\n")
    assert_refused(
        run("perturb", "none.csv", "out.csv", *COLUMN, *AGE, "--missing", "drop"), 1, "every row has a missing"
    )
    np.save("in.npy", np.full((2, 2), np.nan))
    assert_refused(run("perturb", "in.npy", "out.npy", *AGE, "--missing", "drop"), 2, "--missing drop", "in.npy")


@pytest.mark.parametrize("more", [[], ["--shuffle-rows"]], ids=["in order", "shuffled"])
@pytest.mark.parametrize("disk_is_full", [False, True])
def test_a_file_whose_rows_are_all_dropped_costs_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, more: list[str], disk_is_full: bool
) -> None:
    """Nothing of an output that has no row is completed, so no failure to complete it hides the reason."""
    pq.write_table(pa.table({"age": pa.array([None] * 9, pa.float64())}), "in.parquet")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    if disk_is_full:
        monkeypatch.setattr(pq.ParquetWriter, "close", full)
        monkeypatch.setattr(rows, "sha256_and_size", full)
    options = ["perturb", "in.parquet", "out.parquet", *COLUMN, *AGE, "--missing", "drop", *more]
    done = run(*options, "--ledger", "people.ledger", "--budget", "10")
    assert_refused(done, 1, "error: in.parquet: every row has a missing value; there is no row to perturb (charge 1 of")
    assert "in people.ledger is voided: nothing was released)" in done.err
    assert_refused(run(*options, "--check"), 1, "in.parquet: every row has a missing value")
    assert_nothing_but("in.parquet", "people.ledger")


# The order of rows


@pytest.mark.lengthy
def test_every_order_is_as_likely() -> None:
    """All 24 of four rows, 24,000 draws: chi-square with 23 degrees of freedom, above 81 with probability 2e-8."""
    orders = [tuple(rows.row_order(number.to_bytes(32, "little"), 4)) for number in range(24_000)]
    counts = np.array([orders.count(one) for one in permutations(range(4))])
    assert counts.sum() == 24_000
    assert ((counts - 1000) ** 2 / 1000).sum() < 81


def test_equal_words_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    words = iter([np.array([5, 5, 1], "<u8"), np.array([3, 1, 2], "<u8")])
    monkeypatch.setattr(rows.host, "fold_in", lambda key, _: key)
    monkeypatch.setattr(rows.host, "fill", lambda out, *_: out.__setitem__(slice(None), next(words)))
    assert rows.row_order(bytes(32), 3).tolist() == [1, 2, 0]


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".parquet"])
@pytest.mark.parametrize("missing", ["error", "drop"])
def test_rows_are_shuffled(run: Run, suffix: str, missing: str, known_secret: None) -> None:
    source = with_missing(Path(f"in{suffix}")) if missing == "drop" else write(Path(f"in{suffix}"), ages(300))
    options = [*([] if suffix == ".npy" else COLUMN), *AGE, "--missing", missing]
    assert "--shuffle-rows" in run("perturb", source, f"out{suffix}", *options).out
    assert "--shuffle-rows" not in run("perturb", source, f"mixed{suffix}", *options, "--shuffle-rows").out
    plain, mixed = read(Path(f"out{suffix}")), read(Path(f"mixed{suffix}"))
    assert (plain != mixed).mean() > 0.6
    # By a key that no column has: an array has the number 0, and the keys of columns are folded from hashes.
    np.testing.assert_array_equal(mixed, plain[rows.row_order(bytes(32), len(plain))])
    assert json.loads(Path(f"mixed{suffix}.json").read_text())["row_order"] == "shuffled"
    if suffix == ".csv":
        before, after = (path.read_text().split("\n") for path in (Path("out.csv"), Path("mixed.csv")))
        assert (before[0], before[-1]) == (after[0], after[-1])
        assert sorted(before) == sorted(after)
    if suffix == ".parquet":
        groups = [pq.ParquetFile(name).metadata for name in ("out.parquet", "mixed.parquet")]
        assert [groups[0].row_group(at).num_rows for at in range(groups[0].num_row_groups)] == [
            groups[1].row_group(at).num_rows for at in range(groups[1].num_row_groups)
        ]


@pytest.mark.parametrize("order", ["C", "F"])
def test_rows_of_arrays_stay_together(run: Run, order: Any, known_secret: None) -> None:
    np.save("in.npy", np.asarray(ages(60).reshape(10, 3, 2), order=order))
    for name, more in (("out.npy", []), ("mixed.npy", ["--shuffle-rows"])):
        assert run("perturb", "in.npy", name, *AGE, *more).code == 0
    plain, mixed = np.load("out.npy"), np.load("mixed.npy")
    assert sorted(plain.tolist()) == sorted(mixed.tolist())
    assert (plain != mixed).any()


def test_shuffled_lines_do_not_show_their_place(run: Run) -> None:
    """A blank line or a line end of its own would."""
    Path("in.csv").write_bytes(b"id,age\r\n0,1\n\n1,2\r\n2,3\n3,4")
    assert run("perturb", "in.csv", "out.csv", *COLUMN, *AGE, "--shuffle-rows").code == 0
    content = Path("out.csv").read_bytes()
    assert (content.count(b"\r\n"), content.count(b"\n"), content[-1:] == b"\n") == (4, 4, False)


def test_what_cannot_be_held_is_not_shuffled(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(Path("in.csv"), ages(100))
    for limit, code in ((1000, 2), (source.stat().st_size, 1)):
        for module in (plan, rows):
            monkeypatch.setattr(module, "MAX_SHUFFLED_BYTES", limit)
        refused = run("perturb", source, "out.csv", *COLUMN, *AGE, "--shuffle-rows")
        assert_refused(refused, code, "--shuffle-rows", "held in memory")
    assert_nothing_but("in.csv")


# Formats, streams and what is printed


def test_tsv_gzip_and_delimiters(run: Run, known_secret: None) -> None:
    expected = perturbed([1, 2])
    for name, delimiter, more in (
        ("in.tsv", "\t", []),
        ("in.tsv.gz", "\t", []),
        ("in.csv.gz", ",", []),
        ("in.csv", ";", ["--delimiter", ";"]),
        ("in.tsv", "|", ["--delimiter", "|"]),
        ("in.data", ",", ["--format", "csv"]),
        ("in.data", "\t", ["--format", "tsv"]),
    ):
        content = GOOD_CSV.replace(",", delimiter).encode()
        Path(name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        target = name.replace("in", "out")
        assert run("perturb", name, target, *COLUMN, *AGE, *more, "--force").code == 0
        written = Path(target).read_bytes()
        rows = (gzip.decompress(written) if name.endswith(".gz") else written).decode().splitlines()
        assert [float(row.split(delimiter)[1]) for row in rows[1:]] == expected.tolist()
        assert b"out" not in written[:100]
        form = json.loads(Path(f"{target}.json").read_text())["layout"]
        assert (form["delimiter"], form["unpack"]) == (delimiter, name.endswith(".gz"))
    Path("cut.csv.gz").write_bytes(gzip.compress(GOOD_CSV.encode())[:-9])
    assert_refused(run("perturb", "cut.csv.gz", "a.csv.gz", *COLUMN, *AGE), 1, "cut.csv.gz", "not a whole gzip file")


WRONG: dict[str, tuple[list[str], str]] = {
    "a wide delimiter": (["in.csv", "out.csv", "--delimiter", ";;"], "--delimiter: ';;'"),
    "a digit for a delimiter": (["in.csv", "out.csv", "--delimiter", "1"], "--delimiter"),
    "a point for a delimiter": (["in.csv", "out.csv", "--delimiter", "."], "--delimiter"),
    "a delimiter of Parquet": (["in.parquet", "out.parquet", "--delimiter", ";"], "parquet"),
    "lines of Parquet": (["in.parquet", "out.parquet", "--multiline"], "parquet"),
    "packed Parquet": (["in.parquet.gz", "out.parquet.gz"], "may be .gz"),
    "csv to npy": (["in.csv", "out.npy"], "out.npy"),
    "a stream without a format": (["-", "-", "--sidecar", "a.json"], "--format"),
    "a stream without a sidecar": (["in.csv", "-"], "--sidecar: missing"),
    "a sidecar of another name": (["in.csv", "-", "--sidecar", "in.csv"], "must end in .json"),
    "a sidecar of a file": (["in.csv", "out.csv", "--sidecar", "a.json"], "--sidecar"),
    "Parquet from a stream": (["-", "-", "--format", "parquet", "--sidecar", "a.json"], "standard input"),
    "negative decimals": (["in.csv", "out.csv", "--round", "-1"], "--round"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_options(run: Run, case: str) -> None:
    arguments, words = WRONG[case]
    for name in ("in.csv", "in.parquet", "in.parquet.gz"):
        Path(name).write_text(GOOD_CSV)
    assert_refused(run("perturb", *arguments, *COLUMN, *AGE), 2, words)
    assert_nothing_but("in.csv", "in.parquet", "in.parquet.gz")


def piped(content: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, "perturb", *arguments, *COLUMN, *AGE], input=content, capture_output=True, timeout=60
    )


@pytest.mark.thorough
def test_standard_input_and_output(run: Run) -> None:
    content = b"id,age\n" + b"".join(b"%d,%d\n" % (row, row % 120) for row in range(150_000))
    done = piped(content, "-", "-", "--format", "csv", "--sidecar", "out.json")
    assert (done.returncode, b"certificates in out.json" in done.stderr) == (0, True)
    assert [line.split(b",")[0] for line in done.stdout.split(b"\n")] == [
        line.split(b",")[0] for line in content.split(b"\n")
    ]
    assert json.loads(Path("out.json").read_text())["rows"] == 150_000
    assert_nothing_but("out.json")
    failed = piped(content + b"1,nothing\n", "-", "-", "--format", "csv", "--sidecar", "b.json", "--quiet")
    assert (failed.returncode, failed.stdout) == (1, b"")
    assert b"row 150000 (line 150002) is 'nothing'" in failed.stderr
    assert_nothing_but("out.json")


def test_rounding_is_written_down(run: Run, known_secret: None) -> None:
    write(Path("in.csv"), ages(200))
    for name, more in (("a.csv", []), ("b.csv", ["--round", "1"]), ("c.csv", ["--round", "0"])):
        assert run("perturb", "in.csv", name, *COLUMN, *AGE, *more).code == 0
    np.testing.assert_array_equal(read(Path("b.csv")), np.round(read(Path("a.csv")), 1))
    assert "." not in Path("c.csv").read_text()
    assert [json.loads(Path(f"{name}.csv.json").read_text())["decimals"] for name in "abc"] == [None, 1, 0]
    huge = np.array([1e300, -2.5, 1.26])
    assert sidecar.RowOptions(decimals=15).rounded(huge)[0] == 1e300


def test_quiet_and_json(run: Run) -> None:
    write(Path("in.csv"), ages(200))
    assert run("perturb", "in.csv", "out.csv", *COLUMN, *AGE, "--quiet").out == ""
    payload = json.loads(run("perturb", "in.csv", "b.csv", *COLUMN, *AGE, "--json").out)
    assert (payload["rows"], payload["epsilon"], payload["copied"], payload["output"]) == (200, 1.0, ["id"], "b.csv")
    assert payload["columns"][0]["parameters"]["first.upper"] == 120


# Parquet files keep how they are written


def test_codecs_and_row_groups_stay(run: Run) -> None:
    table = pa.table({"age": ages(1000), "id": np.arange(1000), "kind": ["a", "b"] * 500})
    codecs = {"age": "zstd", "id": "none", "kind": "gzip"}
    with pq.ParquetWriter("in.parquet", table.schema, compression=codecs, use_dictionary=["kind"]) as writer:
        for start, count in ((0, 300), (300, 50), (350, 650)):
            writer.write_table(table.slice(start, count))
    assert "not kept" not in run("perturb", "in.parquet", "out.parquet", *COLUMN, *AGE).out
    old, new = (pq.read_metadata(name) for name in ("in.parquet", "out.parquet"))
    for at in range(3):
        assert new.row_group(at).num_rows == old.row_group(at).num_rows
        for column in range(3):
            pair = [one.row_group(at).column(column) for one in (old, new)]
            assert pair[0].compression == pair[1].compression
            assert pair[1].has_dictionary_page == (pair[0].has_dictionary_page or column == 0)  # reports always


def test_old_timestamps_stay_or_are_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    when = pa.array([1, 2, 3], pa.timestamp("ns"))
    pq.write_table(pa.table({"age": [1, 2, 3], "when": when}), "in.parquet", use_deprecated_int96_timestamps=True)
    assert "not kept" not in run("perturb", "in.parquet", "out.parquet", *COLUMN, *AGE).out
    assert pq.read_metadata("out.parquet").schema.column(1).physical_type == "INT96"
    monkeypatch.setattr(parquet, "_all_int96", lambda footer: False)  # as where a file has timestamps of both kinds
    result = run("perturb", "in.parquet", "new.parquet", *COLUMN, *AGE)
    assert "column 'when': physical type INT96, now INT64" in result.out
    assert "INT96" in str(json.loads(Path("new.parquet.json").read_text())["not_kept"])


def test_what_of_a_parquet_file_is_not_kept(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_BYTES", 1000)
    monkeypatch.setattr(parquet, "PIECE_ROWS", 100)
    table = pa.table({"age": np.sort(ages(1000))})
    pq.write_table(table, "in.parquet", sorting_columns=[pq.SortingColumn(0)], write_page_index=True)
    result = run("perturb", "in.parquet", "out.parquet", *COLUMN, *AGE)
    for words in ("1 row group, now ", "sorted by", "page index"):
        assert words in result.out
        assert words in str(json.loads(Path("out.parquet.json").read_text())["not_kept"])


@pytest.mark.thorough
def test_the_release_of_a_stream_is_verified(run: Run) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    done = piped(b"", "in.csv", "-", "--sidecar", "a.json")
    assert done.returncode == 0
    assert main(["certify", "--verify", "a.json"]) == 4  # The output is not there.
    Path("a").write_bytes(done.stdout)
    assert main(["certify", "--verify", "a.json"]) == 0


@pytest.mark.parametrize("how", [["--shuffle-rows"], ["--missing", "drop"]])
def test_dictionaries_of_parquet_show_neither_order_nor_dropped_rows(run: Run, how: list[str]) -> None:
    names = [f"person {at}" for at in range(300)]
    values = pa.array([None, *range(1, 300)], pa.float64()) if "drop" in how else pa.array(np.arange(300.0) / 3)
    table = pa.table({"age": values, "who": pa.array(names).dictionary_encode()})
    pq.write_table(table, "in.parquet")
    assert run("perturb", "in.parquet", "out.parquet", *COLUMN, *AGE, "--clip", *how).code == 0
    assert b"person 0\x00" not in Path("out.parquet").read_bytes()
    out = pq.read_table("out.parquet")
    assert out.schema.field("who").type == pa.string()
    assert sorted(out["who"].to_pylist()) == sorted(names[1:] if "drop" in how else names)
    assert "column 'who': its dictionary of values" in json.loads(Path("out.parquet.json").read_text())["not_kept"]


def test_metadata_are_not_copied(run: Run) -> None:
    """Nor named: the names of entries are free text, too."""
    fields = [pa.field(name, pa.float64(), metadata={"23;35": "23;35"}) for name in ("age", "pay")]
    schema = pa.schema(fields, metadata={"23;35": "23;35", "more": "23;35"})
    pq.write_table(pa.table([pa.array([23.0, 35.0])] * 2, schema=schema), "in.parquet")
    done = run("perturb", "in.parquet", "out.parquet", *COLUMN, *AGE)
    words = "metadata of the file (2 entries); column 'age': its metadata; column 'pay': its metadata"
    assert f"not kept of the file: {words}" in done.out
    assert json.loads(Path("out.parquet.json").read_text())["not_kept"] == words.split("; ")
    for content in (done.out.encode(), *(path.read_bytes() for path in Path().glob("out*"))):
        assert b"23;35" not in content


@pytest.mark.parametrize("dtype", ["int64", "Int64", "int64[pyarrow]", "UInt8", "Float32"])
@pytest.mark.parametrize("index", ["age", "id", None])
def test_pandas_reads_the_release_of_its_file(run: Run, dtype: str, index: str | None) -> None:
    table = pd.DataFrame({"id": [3, 1, 2], "age": pd.array([20, 30, 45], dtype=dtype)})
    table["copied"] = table["age"]
    table.attrs = {"rows": [1234567]}
    table = table if index is None else table.set_index(index)
    table.to_parquet("in.parquet")
    done = run("perturb", "in.parquet", "out.parquet", *COLUMN, *AGE)
    assert "the attributes of the pandas table" in done.out
    assert b"1234567" not in Path("out.parquet").read_bytes()
    made, before = pd.read_parquet("out.parquet"), pd.read_parquet("in.parquet")
    assert (made.index.name, made.attrs, list(made.columns)) == (before.index.name, {}, list(before.columns))
    pd.testing.assert_series_equal(made["copied"].reset_index(drop=True), before["copied"].reset_index(drop=True))
    if index != "age":
        assert str(made["age"].dtype).lower().startswith("float" if "arrow" not in dtype else "double")
        pd.testing.assert_index_equal(made.index, before.index)


def test_dictionaries_where_only_some_row_groups_lack_values(run: Run) -> None:
    """The pieces without a missing value have the types of the others."""
    names = pa.array(["ann", "bob", "cat", "dan"]).dictionary_encode()
    pq.write_table(pa.table({"age": [1.0, 2.0, 3.0, None], "who": names}), "in.parquet", row_group_size=2)
    assert run("perturb", "in.parquet", "out.parquet", *COLUMN, *AGE, "--missing", "drop").code == 0
    assert pq.read_table("out.parquet")["who"].to_pylist() == ["ann", "bob", "cat"]
    done = run("perturb", "in.parquet", "kept.parquet", *COLUMN, *AGE, "--missing", "keep")
    assert "NOT protected: who, the categories of 'who', also those that no row has" in done.out


def test_whether_a_protected_cell_was_quoted_is_not_copied(run: Run) -> None:
    Path("in.csv").write_text('id,age\n1,"9"\n"2",3\n')
    assert run("perturb", "in.csv", "out.csv", *COLUMN, *AGE).code == 0
    lines = Path("out.csv").read_text().split("\n")
    assert [line.partition(",")[0] for line in lines] == ["id", "1", '"2"', ""]
    assert all('"' not in line.partition(",")[2] for line in lines)


def test_long_doubles_are_refused(run: Run) -> None:
    if np.dtype(np.longdouble).itemsize <= 8:
        pytest.skip("this machine's longdouble is float64")
    np.save("in.npy", np.ones(3, np.longdouble))
    assert_refused(run("perturb", "in.npy", "out.npy", *AGE), 1, "which float64 rounds")


def test_rows_of_several_values_cannot_be_dropped(run: Run) -> None:
    """Said before anything is charged."""
    np.save("in.npy", np.ones((3, 2)))
    assert_refused(run("perturb", "in.npy", "out.npy", *AGE, "--missing", "drop", "--check"), 2, "--missing drop")


def test_a_block_of_blank_lines_is_no_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpkernels.cli.files import delimited

    monkeypatch.setattr(delimited, "BLOCK_BYTES", 16)
    Path("in.csv").write_text("id,age\n1,23\n" + "\n" * 100 + "2,35\n")
    assert run("perturb", "in.csv", "out.csv", *COLUMN, *AGE, "--check-first").code == 0
    assert Path("out.csv").read_text().count("\n") == 103


def test_markers_of_missing_values_keep_the_quotes_that_they_need(run: Run) -> None:
    """Without them a row would have more cells than the header, or another parser other rows."""
    Path("in.csv").write_bytes(b'ward;age;id\n"n;a";" n;a ";1\n"x""y";30;2\nb;"NA";3\n\xff;4;4\n"l\nm";5;5\n')
    markers = ["--missing", "keep", "--missing-markers", 'n;a,x"y,l\nm', "--delimiter", ";", "--multiline"]
    columns = ["--column", "ward", "--column", "age", "--mechanism", "categorical", "--mechanism", "balanced", *AGE]
    done = run("perturb", "in.csv", "out.csv", *columns, "--categories", "a,b", "--other", "a", *markers)
    assert done.code == 0, done.err
    text = Path("out.csv").read_text()
    for expected in (r'"n;a";"n;a";1', r'"x""y";[-.e\d]+;2', r"[ab];NA;3", r"[ab];[-.e\d]+;4", r'"l\nm";[-.e\d]+;5'):
        assert re.search(f"^{expected}$", text, re.MULTILINE), (expected, text)
    assert run("certify", "--verify", "out.csv.json").code == 0


@pytest.mark.parametrize("name", ["in.csv", "in.parquet"])
def test_whole_numbers_that_floats_round_are_refused_where_neighbours_are_near(run: Run, name: str) -> None:
    """Two that differ by 1 may become floats that differ by 2, so the noise of a sensitivity would not be enough."""
    noise = [*COLUMN, "--mechanism", "laplace", "--sensitivity", "1e7", "--epsilon", "1"]
    for number, code in ((2**53 - 1, 0), (2**53 + 1, 1)):
        if name == "in.csv":
            Path(name).write_text(f"id,age\na,1\nb, {number}\n")
        else:
            pq.write_table(pa.table({"age": [1, number]}), name)
        done = run("perturb", name, name.replace("in", f"out{code}"), *noise)
        assert done.code == code, done.err
        assert code == 0 or ("row 1" in done.err and "float64 rounds" in done.err)
