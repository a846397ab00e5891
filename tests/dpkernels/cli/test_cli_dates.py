"""Columns of dates: released as days since an origin, verified, estimated, and never copied."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_helpers import SECRET, Run, assert_refused, command, known_secret, small_pieces
from key_helpers import column_key

import dpkernels as dpk
from dpkernels.cli import main
from dpkernels.cli.calendar import date_ticks, days_since, iso_date, parse_date
from dpkernels.cli.files.dates import parse_dates

__all__ = ["known_secret", "small_pieces"]

run = pytest.fixture(command, name="run")

ORIGIN, LOWER, UPPER = date(1900, 1, 1), date(1915, 1, 1), date(2021, 1, 1)
DAYS = np.random.default_rng(2).permutation(np.arange(6000, 44000, 77))[:300]
DATES = [ORIGIN + timedelta(int(day)) for day in DAYS]
BORN = ["--column", "born", "--date-origin", "1900-01-01"]
BOUNDS = ["--lower", "1915-01-01", "--upper", "2021-01-01", "--epsilon", "1"]
MECHANISM = dpk.hybrid(epsilon=1.0, lower=5478.0, upper=44195.0)

KINDS: dict[str, tuple[str, Any]] = {
    "csv": ("in.csv", None),
    "tsv": ("in.tsv", None),
    "gzip": ("in.csv.gz", None),
    "date32": ("in.parquet", pa.date32()),
    "date64": ("in.parquet", pa.date64()),
    "seconds": ("in.parquet", pa.timestamp("s")),
    "nanoseconds": ("in.parquet", pa.timestamp("ns")),
    "text": ("in.parquet", pa.string()),
    "zone": ("in.parquet", pa.timestamp("us", "UTC")),
}


def write(name: str, values: list[Any], kind: Any = None) -> None:
    ids = [f"p{row}" for row in range(len(values))]
    if name.endswith("parquet"):
        cells = pa.array([None if value is None else str(value) for value in values])
        column = cells if kind is None or pa.types.is_string(kind) else pa.array(values, pa.date32()).cast(kind)
        # Plain pages, so that a search of the bytes finds what is in them.
        pq.write_table(pa.table({"id": ids, "born": column}), name, compression="none", use_dictionary=False)
        return
    mark = "\t" if name.startswith("in.tsv") else ","
    cells = ["" if value is None else str(value) for value in values]
    text = f"id{mark}born\n" + "".join(f"{row}{mark}{cell}\n" for row, cell in zip(ids, cells, strict=True))
    Path(name).write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())


def read(path: str) -> np.ndarray:
    if path.endswith("parquet"):
        return pq.read_table(path)["born"].to_numpy()
    data = Path(path).read_bytes()
    lines = (gzip.decompress(data) if path.endswith("gz") else data).decode().splitlines()[1:]
    return np.array([float(line.replace("\t", ",").split(",")[1] or "nan") for line in lines])


def texts_of(day: date, kind: Any) -> list[bytes]:
    """How a file may hold a date: as text, as the numbers of Arrow's types, and as days since the origin."""
    day_number = (day - date(1970, 1, 1)).days
    forms = [day.isoformat().encode(), f",{(day - ORIGIN).days}\n".encode(), np.float64((day - ORIGIN).days).tobytes()]
    if kind is not None:
        forms += [np.int64(day_number * 86400 * unit).tobytes() for unit in (1, 10**3, 10**6, 10**9)]
        forms += [np.int32(day_number).tobytes()] if pa.types.is_date(kind) else []
    return forms


@pytest.mark.lengthy
@pytest.mark.quick("csv", "date32", "nanoseconds")
@pytest.mark.parametrize("kind", KINDS)
def test_dates_are_days_since_their_origin(run: Run, kind: str, known_secret: None, small_pieces: None) -> None:
    (name, arrow_type), out = KINDS[kind], KINDS[kind][0].replace("in", "out")
    write(name, DATES, arrow_type)
    before = Path(name).read_bytes()
    done = run("perturb", name, out, *BORN, *BOUNDS, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["columns"][0]["date_origin"] == "1900-01-01"
    expected = dpk.perturb(DAYS.astype(float), MECHANISM, key=column_key(SECRET, "born"))
    assert np.array_equal(read(out), expected)

    # No form of any true value is left; the same search finds all of them in the input.
    after = Path(out).read_bytes()
    before, after = (gzip.decompress(text) if name.endswith("gz") else text for text in (before, after))
    sidecar = Path(f"{out}.json").read_bytes()
    for day in DATES:
        forms = texts_of(day, arrow_type)
        assert any(form in before for form in forms)
        assert not [form for form in forms[:1] + forms[2:] if form in after + sidecar]
    assert not {str(int(day)) for day in DAYS} & {f"{report:g}" for report in read(out)}

    verified = run("certify", "--verify", f"{out}.json")
    assert verified.code == 0, verified.err
    assert "declared, not verified: born counts days since 1900-01-01" in verified.out
    (answer,) = json.loads(run("estimate", out, "--json", "--histogram", "4").out)["estimates"]
    direct = dpk.estimate(expected, MECHANISM)
    assert answer["mean"]["value"] == float(direct.mean.value)
    low, high = direct.mean.interval(0.95)
    ends = [iso_date(np.floor(low), ORIGIN), iso_date(np.ceil(high), ORIGIN)]
    assert (answer["mean"]["date"], answer["mean"]["date_interval"]) == (
        iso_date(answer["mean"]["value"], ORIGIN),
        ends,
    )
    assert "date" not in answer["standard_deviation"]
    assert [answer["histogram"][at][f"{end}_date"] for at, end in ((0, "lower"), (3, "upper"))] == [
        str(LOWER),
        str(UPPER),
    ]
    printed = run("estimate", out).out
    assert "values in [1915-01-01, 2021-01-01]" in printed
    assert f"mean                        {answer['mean']['date']}  {ends[0]} to {ends[1]}" in printed
    assert "standard deviation in days" in printed


BAD = ["1950-02-29", "1950-13-01", "x", "", "1900-06-01", "1950-06-01", "12/31/1950", "0000-01-01", "1950-1-1", "14762"]


@pytest.mark.parametrize("name", ["in.csv", "in.parquet"])
def test_all_bad_dates_are_counted_and_none_is_printed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(name, BAD)
    code = main(["perturb", name, name.replace("in", "out"), *BORN, *BOUNDS, "--json"])
    printed, form = capsys.readouterr(), {}
    form = json.loads(printed.out)
    assert (code, form["code"], form["row"]["row"]) == (1, 1, 0)
    assert form["rows"]["counts"] == {"not a date": 7, "missing": 1, "outside the interval": 1}
    assert [row["row"] for row in form["rows"]["first"]] == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert not [value for value in BAD if len(value) > 1 and value in printed.out + printed.err]
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


def test_on_a_terminal_a_bad_date_is_shown_as_a_date(run: Run) -> None:
    write("in.csv", [*DATES[:3], "1900-06-01"])
    assert_refused(run("perturb", "in.csv", "out.csv", *BORN, *BOUNDS), 1, "row 3 (line 5) is 1900-06-01, outside")
    write("in.csv", [*DATES[:3], "soon"])
    assert_refused(run("perturb", "in.csv", "out.csv", *BORN, *BOUNDS), 1, "row 3 (line 5) is 'soon'; every row needs")


def test_missing_dates(run: Run) -> None:
    values: list[Any] = [*DATES[:20], None, *DATES[20:40]]
    for name, missing, rows in (("in.csv", "keep", 41), ("in.parquet", "drop", 40), ("in.parquet", "keep", 41)):
        write(name, values, pa.date32() if name.endswith("parquet") else None)
        out = f"{missing}.{name}"
        done = run("perturb", name, out, *BORN, *BOUNDS, "--missing", missing)
        assert done.code == 0, done.err
        reports = read(out)
        assert len(reports) == rows
        assert np.isnan(reports).sum() == rows - 40
        assert run("certify", "--verify", f"{out}.json").code == 0
    # A placeholder is no date.
    write("in.csv", [*DATES[:20], "9999-12-31"])
    done = run("perturb", "in.csv", "out.csv", *BORN, *BOUNDS, "--missing", "drop", "--missing-markers", "9999-12-31")
    assert len(read("out.csv")) == 20


def test_a_date_is_the_day_that_the_file_shows(known_secret: None, run: Run) -> None:
    texts = [
        "1950-06-01T23:59:59.999-11:00",
        "1950-06-01 00:30",
        "1950-06-01T12:00Z",
        "1950-06-01 01:00:00+05",
        " 1950-06-01 ",
    ]
    write("in.csv", texts)
    assert run("perturb", "in.csv", "out.csv", *BORN, *BOUNDS).code == 0
    days = np.full(len(texts), float((date(1950, 6, 1) - ORIGIN).days))
    assert np.array_equal(read("out.csv"), dpk.perturb(days, MECHANISM, key=column_key(SECRET, "born")))
    moment = pa.array([datetime(1950, 6, 1, 3, tzinfo=UTC)], pa.timestamp("ns", "UTC"))
    for zone, day in (("America/New_York", 31), ("Asia/Tokyo", 1)):
        days = parse_dates(moment.cast(pa.timestamp("ns", zone)), ORIGIN).days
        assert iso_date(days[0], ORIGIN) == f"1950-0{5 if day > 1 else 6}-{day:02}"
    before_the_epoch = pa.array([-1, 0, 86399, 86400], pa.timestamp("s"))
    assert parse_dates(before_the_epoch, date(1970, 1, 1)).days.tolist() == [-1, 0, 0, 1]


def test_where_neighbours_are_near_a_time_of_day_is_refused(run: Run) -> None:
    noise = ["--mechanism", "laplace", "--sensitivity", "3650", "--epsilon", "1"]
    write("in.csv", ["1950-06-01", "1950-06-01T00:00:00Z", "1950-06-01T12:00"])
    assert_refused(run("perturb", "in.csv", "out.csv", *BORN, *noise), 1, "row 2 (line 4) has a time of day")
    write("in.csv", ["1950-06-01", "1950-06-02T00:00:00Z", *DATES])
    assert run("perturb", "in.csv", "out.csv", *BORN, *noise).code == 0
    ends = ["--lower", "1900-01-01", "--upper", "2000-01-01"]
    payload = json.loads(run("estimate", "out.csv", *ends, "--json").out)
    assert payload["values"] == [0, (date(2000, 1, 1) - ORIGIN).days]
    assert_refused(run("estimate", "out.csv"), 2, "--lower and --upper: missing")
    times = pa.array([datetime(1950, 6, 1, 12)], pa.timestamp("ms"))
    pq.write_table(pa.table({"born": times}), "in.parquet")
    assert_refused(run("perturb", "in.parquet", "out.parquet", *BORN, *noise), 1, "row 0 has a time of day")
    # Of timestamps that wrap around, near ones can be far apart.
    pq.write_table(pa.table({"born": times}), "in.parquet", use_deprecated_int96_timestamps=True)
    assert_refused(run("perturb", "in.parquet", "out.parquet", *BORN, *BOUNDS), 1, "INT96")


def test_columns_of_dates_and_of_other_things(run: Run, known_secret: None) -> None:
    table = {"born": DATES[:50], "age": list(range(50)), "ward": ["A", "B"] * 25}
    rows = zip(*table.values(), strict=True)
    Path("in.csv").write_text("born,age,ward\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows))
    columns = ["--column", "born", "--column", "age", "--epsilon", "1"]
    ends = ["--lower", "1915-01-01", "--lower", "0", "--upper", "44195", "--upper", "120"]
    done = run("perturb", "in.csv", "out.csv", *columns, *ends, "--date-origin", "born=1900-01-01")
    assert done.code == 0, done.err
    forms = json.loads(Path("out.csv.json").read_text())["columns"]
    assert [form.get("date_origin") for form in forms] == ["1900-01-01", None]
    expected = dpk.perturb(DAYS[:50].astype(float), MECHANISM, key=column_key(SECRET, "born"))
    assert np.array_equal(
        [float(line.split(",")[0]) for line in Path("out.csv").read_text().splitlines()[1:]], expected
    )
    with_wards = [*BORN, "--column", "ward", "--mechanism", "balanced", "--mechanism", "categorical"]
    ward = ["--categories", "A,B"]
    assert run("perturb", "in.csv", "wards.csv", *with_wards, *BOUNDS, *ward).code == 0

    def refused(*options: str) -> str:
        done = run("perturb", "in.csv", "no.csv", *columns, *ends, *options)
        assert_refused(done, 2)
        return done.err

    assert "column 'born': --lower: 1915-01-01 is a date" in refused()
    assert "column 'born': --lower: 1915-01-01 is a date" in refused("--date-origin", "age=1900-01-01")
    assert "'ward' is no perturbed column" in refused("--date-origin", "ward=1900-01-01")
    assert "given twice" in refused("--date-origin", "born=1900-01-01", "--date-origin", "born=1901-01-01")
    for text in ("1900-02-29", "1900", "01.01.1900", "1900-W05-1", "19000101"):
        assert "must be a date" in refused("--date-origin", text)
    only_wards = ["--column", "ward", "--epsilon", "1", *ward]
    assert_refused(run("perturb", "in.csv", "no.csv", *only_wards, "--date-origin", "1900-01-01"), 2, "there is none")
    in_wards = run("perturb", "in.csv", "no.csv", *only_wards, "--date-origin", "ward=1900-01-01")
    assert_refused(in_wards, 2, "'ward' holds categories")
    np.save("in.npy", np.arange(3.0))
    array = run("perturb", "in.npy", "out.npy", *BOUNDS, "--date-origin", "1900-01-01")
    assert_refused(array, 2, "there is none")
    pq.write_table(pa.table({"born": DATES[:3], "age": [True, False, True]}), "in.parquet")
    without = run(
        "perturb", "in.parquet", "no.parquet", "--column", "born", "--lower", "0", "--upper", "9", "--epsilon", "1"
    )
    assert_refused(without, 1, "can be perturbed without --date-origin")
    of_truths = ["--column", "age", "--date-origin", "1900-01-01", *BOUNDS]
    assert_refused(run("perturb", "in.parquet", "no.parquet", *of_truths), 1, "holds bool; dates are")


def test_a_dataset_and_a_file_of_options(run: Run) -> None:
    Path("in").mkdir()
    for at in range(3):
        column = pa.array(DATES[at * 100 : at * 100 + 100], pa.date32())
        pq.write_table(pa.table({"id": np.arange(100), "born": column}), f"in/{at}.parquet")
    Path("dates.toml").write_text(
        '[perturb]\ncolumn = "born"\ndate-origin = 1900-01-01\nlower = 1915-01-01\nupper = "2021-01-01"\nepsilon = 1\n'
    )
    done = run("perturb", "in", "out", "--config", "dates.toml", "--save-config", "saved.toml")
    assert done.code == 0, done.err
    assert run("certify", "--verify", "out/_release.json").code == 0
    assert '"date": "' in run("estimate", "out", "--json").out
    assert run("perturb", "in", "again", "--config", "saved.toml").code == 0
    texts = [json.loads(Path(folder, "_release.json").read_text())["columns"] for folder in ("out", "again")]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("origin", ["1900-02-29", 1900, None, "1900-1-1", "19000101"])
def test_a_sidecar_with_another_origin_is_refused(run: Run, origin: Any) -> None:
    write("in.csv", DATES[:20])
    assert run("perturb", "in.csv", "out.csv", *BORN, *BOUNDS).code == 0
    payload = json.loads(Path("out.csv.json").read_text())
    payload["columns"][0]["date_origin"] = origin
    Path("out.csv.json").write_text(json.dumps(payload))
    for command_ in (["certify", "--verify", "out.csv.json"], ["estimate", "out.csv"]):
        assert_refused(run(*command_), 4, "date_origin")


def test_dates_agree_with_python() -> None:
    rng = np.random.default_rng(3)
    texts = [f"{rng.integers(1, 10000):04}-{rng.integers(1, 13):02}-{rng.integers(1, 32):02}" for _ in range(20_000)]
    dates = parse_dates(pa.array(texts), ORIGIN)
    for text, day, is_invalid in zip(texts, dates.days.tolist(), dates.is_invalid.tolist(), strict=True):
        try:
            expected = (parse_date(text) - ORIGIN).days
        except ValueError:
            assert is_invalid
        else:
            assert (is_invalid, day) == (False, expected)
    assert iso_date(-1e9, ORIGIN) is iso_date(1e9, ORIGIN) is None


@pytest.mark.parametrize(
    ("lower", "upper", "texts"),
    [
        ("1930-01-01", "1998-12-31", ["1940", "1950", "1960", "1970", "1980", "1990"]),
        ("1900-01-01", "2021-01-01", ["1920", "1940", "1960", "1980", "2000", "2020"]),
        ("2020-01-01", "2020-01-05", ["2020-01-01", "2020-01-02", "2020-01-03", "2020-01-04", "2020-01-05"]),
        ("0001-01-01", "9999-12-31", ["2000", "4000", "6000", "8000"]),
    ],
)
def test_axes_of_days_have_dates(lower: str, upper: str, texts: list[str]) -> None:
    origin = date(1970, 1, 1)
    ticks = date_ticks(*(days_since(date.fromisoformat(end), origin) for end in (lower, upper)), origin)
    assert [text for _, text in ticks] == texts
    assert [iso_date(day, origin)[: len(text)] for day, text in ticks] == texts
    assert date_ticks(-1e9, 1e9, origin) == []
