"""Output of another format than the input: the same reports, verified and estimated as in the input's own format."""

from __future__ import annotations

import csv
import gzip
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_helpers import AGE, COLUMN, Run, assert_nothing_but, assert_refused, command, known_secret, small_pieces
from dataset_helpers import names

__all__ = ["known_secret", "small_pieces"]

run = pytest.fixture(command, name="run")

ROWS = 500
VALUES = np.random.default_rng(4).uniform(0, 120, ROWS)
TEXTS = ["plain", 'qu"ote', "com,ma", "tab\tbed", "", "NA", " spaced ", "ümlaut", "\ufeffmark", "'", '""', "0012"]
WARDS = ["A", "B,C", "D"]
WARD = ["--column", "ward", "--categories-from", "wards.txt", "--epsilon", "1"]


def table(**more: Any) -> dict[str, list[Any]]:
    columns = {"id": [f"p{row}" for row in range(ROWS)], "age": VALUES.tolist()}
    columns |= {"text": [TEXTS[row % len(TEXTS)] for row in range(ROWS)]}
    return columns | {"ward": [WARDS[row % 3] for row in range(ROWS)]} | more


def write(name: str, columns: dict[str, list[Any]]) -> None:
    if name.endswith("parquet"):
        pq.write_table(pa.table(columns), name, row_group_size=170)
        return
    file = io.StringIO()
    writer = csv.writer(file, delimiter="\t" if ".tsv" in name else ",", lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    text = file.getvalue().encode()
    Path(name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)


def read(name: str) -> dict[str, list[Any]]:
    """All cells of a file as text, and as they are of a Parquet file."""
    if name.endswith("parquet"):
        return pq.read_table(name).to_pydict()
    data = Path(name).read_bytes()
    text = (gzip.decompress(data) if name.endswith("gz") else data).decode()
    header, *rows = csv.reader(io.StringIO(text, newline=""), delimiter="\t" if ".tsv" in name else ",")
    return dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))


PAIRS = [("in.csv", "out.parquet"), ("in.parquet", "out.csv"), ("in.csv.gz", "out.tsv"), ("in.tsv", "out.csv.gz")]
PAIRS += [("in.parquet", "out.tsv.gz"), ("in.tsv", "out.parquet")]


@pytest.mark.lengthy
@pytest.mark.quick("in.csv-out.parquet", "in.parquet-out.csv")
@pytest.mark.parametrize(("source", "target"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_the_reports_are_those_of_the_same_format(
    run: Run, source: str, target: str, known_secret: None, small_pieces: None
) -> None:
    write(source, table())
    same = source.replace("in", "same")
    assert run("perturb", source, same, *COLUMN, *AGE).code == 0
    done = run("perturb", source, target, *COLUMN, *AGE)
    assert done.code == 0, done.err
    before, after = read(same), read(target)
    assert list(after) == list(before)
    assert [float(cell) for cell in after["age"]] == [float(cell) for cell in before["age"]]
    assert all(after[name] == before[name] for name in ("id", "text", "ward"))
    assert not {str(value) for value in VALUES} & {str(cell) for cells in after.values() for cell in cells}
    assert b"not kept" in done.out.encode()

    verified = run("certify", "--verify", f"{target}.json")
    assert verified.code == 0, verified.err
    assert f"ok: {target}, 500 rows; SHA-256 is right; every perturbed value is one" in verified.out
    answers = [json.loads(run("estimate", name, "--json", "--by", "ward").out) for name in (same, target)]
    assert answers[0] == answers[1]
    # A number that is no report is found.
    data = read(target)
    data["age"][7] = VALUES[7] if target.endswith("parquet") else str(VALUES[7])
    write(target, data)
    assert run("certify", "--verify", f"{target}.json").code == 4


@pytest.mark.parametrize(("source", "target"), PAIRS[:2], ids=["text to Parquet", "Parquet to text"])
@pytest.mark.parametrize("mechanism", ["randomised-response", "subset-selection", "block-response"])
def test_categories(run: Run, source: str, target: str, mechanism: str, known_secret: None) -> None:
    Path("wards.txt").write_text("\n".join(WARDS))
    write(source, table())
    same = source.replace("in", "same")
    size = ["--size", "2"] if mechanism == "subset-selection" else []
    for name in (same, target):
        assert run("perturb", source, name, *WARD, "--mechanism", mechanism, *size).code == 0
        assert run("certify", "--verify", f"{name}.json").code == 0
    answers = [json.loads(run("estimate", name, "--json").out) for name in (same, target)]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("missing", ["keep", "drop"])
@pytest.mark.parametrize("source", ["in.csv", "in.parquet"])
def test_rows_without_a_value(run: Run, source: str, missing: str, known_secret: None, small_pieces: None) -> None:
    ages = [None if row % 7 == 0 else value for row, value in enumerate(VALUES.tolist())]
    write(source, table(age=ages))
    same, target = source.replace("in", "same"), "out.parquet" if source == "in.csv" else "out.csv"
    for name in (same, target):
        assert run("perturb", source, name, *COLUMN, *AGE, "--missing", missing, "--shuffle-rows").code == 0
    assert run("certify", "--verify", f"{target}.json").code == 0
    before, after = read(same), read(target)
    assert [cell or "" for cell in after["text"]] == [cell or "" for cell in before["text"]]
    numbers = [[None if cell in (None, "") else float(cell) for cell in cells["age"]] for cells in (before, after)]
    assert numbers[0] == numbers[1]
    answers = [json.loads(run("estimate", name, "--json").out) for name in (same, target)]
    assert answers[0] == answers[1]


def test_single_precision_stays_so(run: Run, known_secret: None) -> None:
    pq.write_table(pa.table({"age": VALUES.astype(np.float32)}), "in.parquet")
    for more in ([], ["--round", "2"]):
        for name in ("same.parquet", "out.csv"):
            assert run("perturb", "in.parquet", name, *COLUMN, *AGE, *more, "--force").code == 0
        expected = pq.read_table("same.parquet")["age"].to_pylist()
        assert [float(cell) for cell in read("out.csv")["age"]] == expected
        verified = run("certify", "--verify", "out.csv.json")
        assert verified.code == 0, verified.err
        assert json.loads(run("estimate", "out.csv", "--json").out)["estimates"][0]["reports"] == ROWS
    payload = json.loads(Path("out.csv.json").read_text())
    assert payload["columns"][0]["report_type"] == "float32"
    assert "report_type" not in json.loads(Path("same.parquet.json").read_text())["columns"][0]


def test_every_plain_type_has_a_text(run: Run) -> None:
    moment = datetime(2020, 2, 29, 12, 30, 5, 250_000)
    columns = {
        "age": pa.array([1.0, 2.0]),
        "truth": pa.array([True, None]),
        "whole": pa.array([2**63 - 1, None], pa.int64()),
        "real": pa.array([0.1, None]),
        "single": pa.array([np.float32(0.1), None], pa.float32()),
        "decimal": pa.array([Decimal("1.50"), None]),
        "day": pa.array([date(2020, 2, 29), None]),
        "day64": pa.array([date(2020, 2, 29), None]).cast(pa.date64()),
        "moment": pa.array([moment, None], pa.timestamp("ms")),
        "zoned": pa.array([moment.replace(tzinfo=UTC), None], pa.timestamp("us", "America/New_York")),
        "clock": pa.array([moment.time(), None]),
        "word": pa.array(["b", None]).dictionary_encode(),
        "large": pa.array(['"', None], pa.large_string()),
        "empty": pa.array(["", None]),
    }
    pq.write_table(pa.table(columns), "in.parquet")
    done = run("perturb", "in.parquet", "out.csv", *COLUMN, *AGE)
    assert done.code == 0, done.err
    cells = {name: column[0] for name, column in read("out.csv").items() if name != "age"}
    assert cells == {
        "truth": "true", "whole": str(2**63 - 1), "real": "0.1", "single": "0.1", "decimal": "1.50",
        "day": "2020-02-29", "day64": "2020-02-29", "moment": "2020-02-29 12:30:05.250",
        "zoned": "2020-02-29 12:30:05.250000Z", "clock": "12:30:05.250000", "word": "b", "large": '"', "empty": "",
    }  # fmt: skip
    # An empty text is told from null.
    assert Path("out.csv").read_text().splitlines()[1].endswith(',""')
    assert Path("out.csv").read_text().splitlines()[2].endswith("," * 12)
    assert run("certify", "--verify", "out.csv.json").code == 0


NO_TEXT = [pa.array([[1], [2]]), pa.array([b"\xff", b""]), pa.array([{"a": 1}] * 2), pa.array([1, 2], pa.duration("s"))]


@pytest.mark.parametrize("column", NO_TEXT, ids=lambda column: str(column.type))
def test_types_without_a_text_are_refused_before_a_charge(run: Run, column: pa.Array) -> None:
    pq.write_table(pa.table({"age": [1.0, 2.0], "more": column}), "in.parquet")
    ledger = ["--ledger", "people.ledger", "--budget", "2"]
    assert_refused(run("perturb", "in.parquet", "out.csv", *COLUMN, *AGE, *ledger), 2, "'more' holds", "has no text")
    assert_nothing_but("in.parquet")


def test_cells_that_the_output_cannot_hold(run: Run) -> None:
    Path("in.csv").write_bytes(b"age,more\n1,a\n2,\xff\n3,\xfe\n")
    result = run("perturb", "in.csv", "out.parquet", *COLUMN, *AGE, "--check")
    assert_refused(result, 1, "column 'more': row 1 (line 3) is not UTF-8")
    pq.write_table(pa.table({"age": [1.0, 2.0], "more": ["a", "b\0c"]}), "in.parquet")
    assert_refused(run("perturb", "in.parquet", "out.csv", *COLUMN, *AGE), 1, "'more': row 1 has a NUL character")
    pq.write_table(pa.table({"age": [1.0, 2.0], "more": ["a", "b" * (1 << 22)]}), "in.parquet")
    assert_refused(run("perturb", "in.parquet", "out.csv", *COLUMN, *AGE), 1, "row 1 has about 4194304 bytes or more")
    Path("in.csv").write_text("age,more,more\n1,a,b\n")
    assert_refused(run("perturb", "in.csv", "out.parquet", *COLUMN, *AGE), 2, "two are the same")
    np.save("in.npy", VALUES)
    assert_refused(run("perturb", "in.npy", "out.csv", *AGE), 2, "must have the format of IN")
    assert_refused(run("perturb", "in.csv", "out.npy", *COLUMN, *AGE), 2, "must have the format of IN")
    assert_nothing_but("in.csv", "in.parquet", "in.npy")


def test_lines_and_names_of_every_kind(run: Run) -> None:
    texts = ["two\nlines", "car\rriage", "a;b", ";", "\r\n"]
    header = ["age", "a;b", 'c"d', "", "e\nf", "\ufeffg"]
    columns = {"age": pa.array(VALUES[:5]), **{name: pa.array(texts) for name in header[1:]}}
    for order in (header, header[::-1]):
        pq.write_table(pa.table({name: columns[name] for name in order}), "in.parquet")
        done = run("perturb", "in.parquet", "out.csv", *COLUMN, *AGE, "--delimiter", ";", "--force")
        assert done.code == 0, done.err
        rows = list(csv.reader(io.StringIO(Path("out.csv").read_bytes().decode(), newline=""), delimiter=";"))
        assert rows[0] == order
        assert [row[order.index('c"d')] for row in rows[1:]] == texts
        verified = run("certify", "--verify", "out.csv.json")
        assert verified.code == 0, verified.err
    # One column alone: a row without a value is an empty line.
    pq.write_table(pa.table({"age": pa.array([None, *VALUES])}), "one.parquet")
    assert run("perturb", "one.parquet", "one.csv", *COLUMN, *AGE, "--missing", "keep").code == 0
    assert run("certify", "--verify", "one.csv.json").code == 0
    assert json.loads(run("estimate", "one.csv", "--json").out)["missing"] == 1


@pytest.mark.parametrize(("suffix", "kind"), [("parquet", "csv"), ("csv", "parquet")])
def test_a_dataset(run: Run, suffix: str, kind: str, known_secret: None) -> None:
    Path("in").mkdir()
    for at in range(3):
        columns = {name: cells[at * 100 : at * 100 + 100] for name, cells in table().items()}
        write(f"in/{at}.{suffix}", columns)
    assert run("perturb", "in", "same", *COLUMN, *AGE).code == 0
    done = run("perturb", "in", "out", *COLUMN, *AGE, "--output-format", kind)
    assert done.code == 0, done.err
    assert names("out") == [*(f"{at}.{kind}" for at in range(3)), "_release.json"]
    for at in range(3):
        before, after = read(f"same/{at}.{suffix}"), read(f"out/{at}.{kind}")
        assert [float(cell) for cell in after["age"]] == [float(cell) for cell in before["age"]]
    assert run("certify", "--verify", "out/_release.json").code == 0
    answers = [json.loads(run("estimate", name, "--json").out) for name in ("same", "out")]
    assert answers[0] == answers[1]
    result = run("perturb", f"in/*.{suffix}", "in", *COLUMN, *AGE, "--output-format", kind)
    assert_refused(result, 2)
