"""Cells, and lines of files, are read each by itself: no other cell decides how, and none causes an error."""

from __future__ import annotations

import datetime
import decimal
import itertools
from fractions import Fraction

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest

from dpkernels.session import Session, cells, tables
from dpkernels.session.tables import SessionTable

SECRET = bytes(range(32))


class Unhashable:
    def __hash__(self):
        raise RuntimeError


class Unprintable:
    __hash__ = None

    def __repr__(self):
        raise RuntimeError


UTC = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
CET = UTC.astimezone(datetime.timezone(datetime.timedelta(hours=1)))  # the same instant
ODD = [
    UTC, CET, pd.Timestamp(CET), (1,), (1.0,), (True,), [1], {}, Unhashable(), Unprintable(), 1, 1.0, True, "1", "1.0",
    "True", b"1", decimal.Decimal("1.00"), decimal.Decimal("sNaN"), 0.0, -0.0, np.nan, None, pd.NA, pd.NaT, 10**400,
    np.float32(0.1), np.longdouble("1e4000"), np.str_("1"), 1 + 2j, "\ud800", frozenset([1]), frozenset([1.0]),
]  # fmt: skip


def test_no_cell_changes_how_another_is_read():
    """Of all pairs of odd cells; cells may be equal and have different texts."""
    keys = cells.Keys("x", [str(UTC), str(CET), "(1,)", "(1.0,)", 1, "frozenset({1})", "nan"])

    def read(column):
        array = cells.as_array(column)
        numbers = [repr(number + 0.0) for number in cells.numbers(array).tolist()]
        names = [str(cells.cell_key(cell)) for cell in array.tolist()]
        persons = list(zip(*(words.tolist() for words in cells.person_words(array, SECRET)), strict=True))
        return list(zip(numbers, names, keys.codes(array), cells.cell_hashes(array, SECRET), persons, strict=True))

    alone = [read([cell])[0] for cell in ODD]
    for i, first in enumerate(ODD):
        for j, second in enumerate(ODD):
            assert read([first, second]) == [alone[i], alone[j]]
    assert alone[0] != alone[1], "an instant in another time zone has another text"


def test_a_cell_that_python_cannot_hold_is_missing():
    """A text that is not UTF-8, and dates beyond the year 9999 within other types, are no errors."""
    texts = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"a\xff")]
    )
    far = pa.array([0, 10**17], pa.int64()).cast(pa.timestamp("s"))
    columns = texts, pa.StructArray.from_arrays([far], ["t"]), pa.DictionaryArray.from_arrays(pa.array([0, 1]), far)
    for column in columns:
        first, second = cells.as_array(column)
        assert first == column[0].as_py()
        assert second is None or cells.numbers(cells.as_array(column)[1:]).size


def test_files_of_other_types_are_refused_whatever_their_cells(tmp_path):
    """To refuse only those that have a cell which cannot be converted would say so, after the charge."""
    pyarrow.parquet.write_table(pa.table({"x": [1, 2]}), tmp_path / "0.parquet")
    for column in ([1.0, 2.0], [1.0, 2.5]):
        pyarrow.parquet.write_table(pa.table({"x": column}), tmp_path / "1.parquet")
        with pytest.raises(ValueError, match="different names or types"):
            SessionTable.open(tmp_path)


def test_files_of_a_folder_are_those_that_are_seen_to_change(tmp_path):
    """Neither those of folders within, nor of other kinds."""
    (tmp_path / "within").mkdir()
    (tmp_path / "read.me").write_text("x")
    for path in (tmp_path / "0.parquet", tmp_path / "within" / "1.parquet"):
        pyarrow.parquet.write_table(pa.table({"x": [1, 2]}), path)
    assert SessionTable.open(tmp_path).source.most_rows == 2


def test_columns_of_one_name_are_refused(tmp_path):
    (tmp_path / "p.csv").write_text("a,a\n1,2\n")
    for data in (tmp_path / "p.csv", pa.Table.from_arrays([pa.array([1])] * 2, ["a", "a"])):
        with pytest.raises(ValueError, match="same name"):
            SessionTable.open(data)


def test_hashes_that_follow_the_type_of_a_column_are_caught():
    """One cell of another type must not change which rows of others count."""
    plain, mixed = np.arange(5.0), np.array([0.0, 1.0, 2.0, 3.0, 4.0, "x"], object)
    texts = np.array(["0", "1", "2", "3", "4.0"], object)
    hashes = [cells.cell_hashes(array, SECRET)[:5].tolist() for array in (plain, mixed, texts, np.arange(5))]
    assert hashes == [hashes[0]] * 4


COLUMNS = {
    "numbers": [1, 2.5, -3, 1e-7, 2**60, 10**20],
    "truth": [True, False, True],
    "texts": ["a", "1", "é"],
    "dates": np.array(["2020-01-01", "2021-02-03"], "M8[ns]"),
}


@pytest.mark.parametrize("odd", [None, "x", np.nan, 7, True, [1]], ids=str)
@pytest.mark.parametrize("name", COLUMNS)
def test_one_cell_does_not_change_how_others_are_read(name, odd):
    """Of a list, of a pandas column, and of a column of texts that a file has."""
    column = COLUMNS[name]
    keys = cells.Keys("x", ["1", 2.5, "a", "False"])

    def read(array, count):
        return (
            cells.numbers(array)[:count].tolist(),
            keys.codes(array)[:count].tolist(),
            cells.cell_hashes(array, SECRET)[:count].tolist(),
        )

    if name == "dates":
        assert np.isnan(cells.numbers(cells.as_array(column))).all()
        return
    plain, more = (read(cells.as_array(each), len(column)) for each in (column, [*column, odd]))
    frames = (read(cells.as_array(pd.Series(each)), len(column)) for each in (column, [*column, odd]))
    texts = read(cells.as_array([str(cell) for cell in column]), len(column))
    for other in (more, *frames, texts):
        assert np.array_equal(np.array(plain[0]), np.array(other[0]), equal_nan=True)
        assert plain[1:] == other[1:]


TYPED = {
    "int64": [1, 2**60 + 1],
    "uint64": [2**64 - 1, 3],
    "float32": [0.1, 2.0],
    "bool_": [True, False],
    "string": ["a", "1"],
    "binary": [b"a", b"1"],
    "date32": [0, 18_000],
    "timestamp:s": [1_577_836_800, 10**12],
    "timestamp:ns": [1_577_836_800_000_000_001],
    "time64:ns": [1001],
    "duration:ns": [1, 10**9],
    "decimal128:9": [decimal.Decimal(5)],
}


@pytest.mark.parametrize("name", TYPED)
def test_a_missing_cell_does_not_change_how_others_are_read(name):
    """Nor does it cause an error: the type of a column is public, and whether a cell is missing is not."""
    kind, _, unit = name.partition(":")
    kind = getattr(pa, kind)(*([int(unit) if unit.isdigit() else unit] if unit else []))
    column = TYPED[name]
    keys = cells.Keys("x", ["2020-01-01T00:00:00", "1970-01-01", "a", 1, 0.1])
    frames = (
        lambda column: column,
        lambda column: pd.Series(column, dtype=pd.ArrowDtype(kind)),
        lambda column: pd.Series(column, dtype=pd.ArrowDtype(kind)).astype("category"),
        pl.from_arrow,
    )
    for frame in frames:
        arrays = [cells.as_array(frame(pa.array(own, kind))) for own in (column, [*column, None])]
        assert cells.cell_key(arrays[1].tolist()[-1]) is None
        plain, more = (
            (
                [cells.cell_key(cell) for cell in array.tolist()[: len(column)]],
                cells.cell_hashes(array, SECRET)[: len(column)].tolist(),
                keys.codes(array)[: len(column)].tolist(),
                [words[: len(column)].tolist() for words in cells.person_words(array, SECRET)],
            )
            for array in arrays
        )
        assert plain == more


def test_keys_that_are_found_are_those_of_their_cells_and_can_be_written():
    """Bytes that are no text, years, and integers beyond 64 bits."""
    column = [pd.Period("2012", "Y"), 2012, "2012.0", b"\xff", "\ud800", 1e300, "x", np.inf]
    array = cells.as_array(column)
    names, codes = cells.distinct_keys(array)
    assert len(names) == 6
    assert np.array_equal(cells.Keys("x", names).codes(array), codes)
    table = tables.make_table("pyarrow", {"x": names})
    assert table["x"].to_pylist() == [str(name) for name in names]
    assert tables.make_table("pyarrow", {"x": [1, 1e300, None]})["x"].to_pylist() == [1, 1e300, None]


def test_missing_cells_have_no_key():
    """Whatever else the column holds, and whatever their text is."""
    keys = cells.Keys("x", ["nan", "None", "NaT", 1])
    dates = cells.as_array(np.array(["NaT", "2020-01-01"], "M8[D]"))
    for column in ([np.nan, 1.0], [np.nan, 1.0, None, "x"], [1.0, pd.NaT, decimal.Decimal("sNaN")]):
        array = np.array(column) if len(column) == 2 else np.array(column, object)
        codes = keys.codes(array)
        assert set(codes.tolist()) == {-1, 3}
        assert (codes == 3).sum() == 1
    assert keys.codes(dates).tolist() == [-1, -1]


def test_lines_of_a_file_that_are_no_rows_are_left_out(tmp_path):
    path = tmp_path / "odd.csv"
    path.write_bytes(b"id,age\n1,30\n2\n3,40,5\n4,\xff\xfe\n5,x\n6,50\n")
    (block,) = SessionTable.open(path).source.blocks(["id", "age"])
    assert block["id"].tolist() == ["1", "4", "5", "6"]
    assert np.array_equal(cells.numbers(block["age"]), [30, np.nan, np.nan, 50], equal_nan=True)


def test_rows_of_a_file_without_a_person_are_left_out(tmp_path):
    """Several persons without an id would be one whose rows that count follow from all of them."""
    path = tmp_path / "p.csv"
    path.write_text("id,age\n,1\n,2\n5,6\n")
    table = Session(path, epsilon=1, person="id", rows_per_person=1)._table
    assert list(table.map(["age"], lambda block, persons: block["age"].tolist())) == [["6"]]


def test_a_long_cell_of_a_file_is_no_error(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("id,age\n1,2\n2," + "x" * 3_000_000 + "\n")
    assert Session(path, epsilon=20.0).count(epsilon=20.0).value == pytest.approx(2, abs=2)


def _cells(folder, lines):
    """What is read of lines, by the id in their first cell."""
    (folder / "p.csv").write_bytes(b"\n".join([b"id,x", *lines, b""]))
    read = {}
    for block in SessionTable.open(folder / "p.csv").source.blocks(["id", "x"]):
        read |= dict(zip(block["id"].tolist(), block["x"].tolist(), strict=True))
    return read


@pytest.mark.lengthy
def test_no_line_of_a_file_changes_how_others_are_read(tmp_path, monkeypatch):
    """Quotes that are not closed, carriage returns, other numbers of cells, byte order marks, lines of any length."""
    monkeypatch.setattr("dpkernels.session.delimited.LONGEST_LINE", 64)
    random = np.random.default_rng(5)
    texts = [b"a", b'"b', b'"c,d"', b'"e""f"', b'g"h', b'"i\r9,j"', b"k\r9,l", b"m,n", b'"o"p', b'"q"\r', b"\xff"]
    for _ in range(40):
        ends = [texts[random.integers(len(texts))] + b"y" * int(random.choice([0, 0, 9, 57, 58, 59, 60, 61, 150]))
                for _ in range(random.integers(1, 30))]  # fmt: skip
        marks = random.choice([b"", b"", "\ufeff".encode()], len(ends))
        lines = [b"%s%d,%s" % (mark, *row) for mark, row in zip(marks.tolist(), enumerate(ends), strict=True)]
        gone = int(random.integers(len(lines)))
        all_cells = _cells(tmp_path, lines)
        all_cells.pop(f"{marks[gone].decode()}{gone}", None)
        assert _cells(tmp_path, lines[:gone] + lines[gone + 1 :]) == all_cells
    sound = _cells(tmp_path, [b"1,a", b'2,"c,d"', b'3,"e""f"\r', b'4,g"h', b'5,"o', b"6," + b"y" * 63])
    assert sound == {"1": "a", "2": "c,d", "3": 'e"f', "4": 'g"h'}


def test_persons_are_the_same_if_their_numbers_or_texts_are():
    """Numbers of every type, each by itself and in a column of its own; two words are zeros for missing cells alone."""
    same = [
        [
            1,
            1.0,
            True,
            np.bool_(True),
            np.int8(1),
            np.float32(1),
            decimal.Decimal("1.00"),
            Fraction(1),
            1 + 0j,
            "1",
            "1.0",
            b"1",
            np.str_("1"),
        ],
        [0, 0.0, -0.0, False],
        [2**60 + 1, decimal.Decimal(2**60 + 1), np.uint64(2**60 + 1)],
        [2.0**60, 2**60],
        [2**64 - 1, np.uint64(2**64 - 1)],
        [-5, -5.0, np.int64(-5), "-5"],
        [0.5, np.float32(0.5), Fraction(1, 2)],
        [2.0**64, 2**64],
        [np.inf],
        [2**64 + 1, str(2**64 + 1)],
        ["2.5", 2.5],
        ["1e5"],
        ["inf"],
        [b"M\xfcller"],
        [b"M\xf6ller"],
        ["01", b"01", np.str_("01")],
        ["a"],
        [None, np.nan, pd.NA, pd.NaT, decimal.Decimal("sNaN")],
    ]
    words = []
    for group in same:  # fmt: skip
        alone = [cells.person_words(cells.as_array([cell]), SECRET) for cell in group]
        plain = [cells.person_words(np.array([c]), SECRET) for c in group if isinstance(c, int | float | np.number)
                 and np.array([c]).dtype.kind in "biuf"]  # fmt: skip
        found = {(int(high[0]), int(low[0])) for high, low in alone + plain}
        assert len(found) == 1, group
        words += found
    assert len(set(words)) == len(same)
    assert words.index((0, 0)) == len(same) - 1


def test_persons_that_share_one_of_their_words_are_apart():
    """-1 and 2^64 - 1 have the same bits and other types; small integers have one type."""
    for ids in ([-1, 2**64 - 1], [1, 2]):
        table = SessionTable.open({"id": np.array(ids, object)})
        table.bound_rows("id", 1, SECRET)
        assert table.counted.all()
        assert table.persons[0] != table.persons[1]


def test_every_bit_of_a_hash_differs():
    """Between 200 texts; that one does not has a probability below 2^-190."""
    texts = np.array([f"text {number}" for number in range(200)], object)
    high, low = cells.person_words(texts, SECRET)
    assert (high >> np.uint64(63) == 1).all(), "which texts have, and numbers have not"
    for words in (
        high ^ low << np.uint64(63),
        low,
        cells.cell_hashes(texts, SECRET),
        cells.row_hashes([texts], SECRET),
    ):
        assert np.bitwise_or.reduce(words) == 2**64 - 1
        assert np.bitwise_and.reduce(words) == 0


def test_rows_are_bounded_whatever_the_shares_that_are_sorted_at_once(monkeypatch):
    """As by a plain loop over persons."""
    rng = np.random.default_rng(3)
    ids, rows = rng.integers(0, 40, 500), rng.integers(0, 2**63, 500).astype(np.uint64)
    high, low = cells.person_words(np.where(ids == 0, np.nan, ids), SECRET)

    def hashes(start, part):
        stop = min(start + 90, 500)
        own = [k for k in range(start, stop) if high[k] and int(low[k]) >> (64 - part[1]) == part[0]]
        return tables.Hashes(stop - start, np.array(own, np.int32) - start, high[own], low[own], rows[own])

    for size, log2 in itertools.product((1 << 20, 100, 1), (0, 1, 3)):
        monkeypatch.setattr(tables, "_BUCKET_ROWS", size)
        bounded = tables.BoundedRows(3, log2)
        for part in range(1 << log2):
            bounded.add([hashes(start, (part, log2)) for start in range(0, 500, 90)], 600)
        persons, counted = bounded.persons, bounded.counted
        assert (persons[ids == 0] == -1).all()
        assert len(set(persons[ids > 0])) == len(set(ids[ids > 0]))
        for person in range(1, 40):
            own = np.flatnonzero(ids == person)
            assert len(set(persons[own])) <= 1
            assert set(own[counted[own]]) == set(own[np.argsort(rows[own])[:3]])
        assert not counted[ids == 0].any()
    for most_rows in (600, 80):
        with pytest.raises(RuntimeError, match="has changed"):
            bounded.add([hashes(0, (7, 3))], most_rows)


@pytest.mark.parametrize("held", [300, 1 << 26])
def test_a_session_reads_many_rows_a_part_of_the_persons_at_a_time(monkeypatch, held):
    """The same rows count, and the same persons, with however many parts."""
    rng = np.random.default_rng(4)
    data = {"id": rng.integers(0, 400, 3000), "x": rng.uniform(0, 1, 3000)}
    whole = tables.SessionTable.open(data)
    whole.bound_rows("id", 2, SECRET)
    monkeypatch.setattr(tables, "_MAX_HASHED_ROWS", held)
    calls, of_parts = [], tables.SessionTable.open(data)
    source_map = of_parts.source.map
    monkeypatch.setattr(of_parts.source, "map", lambda *options: calls.append(1) or source_map(*options))
    of_parts.bound_rows("id", 2, SECRET)
    assert len(calls) == (16 if held == 300 else 1)
    assert (of_parts.counted == whole.counted).all()
    pairs = set(zip(whole.persons.tolist(), of_parts.persons.tolist(), strict=True))
    assert len(pairs) == len(set(whole.persons.tolist())) == len(set(of_parts.persons.tolist())) == 400


@pytest.mark.parametrize("dtype", ["datetime64[ns]", "datetime64[s]", object])
def test_a_date_is_a_key_in_every_type_of_column(dtype):
    """At midnight it is the key of its day, whatever the unit of the column; the time of day is kept."""
    times = pd.to_datetime(["2024-01-02", "2024-01-03", None, "2024-01-02 12:00"], format="mixed")
    column = cells.as_array(pd.Series(times.astype(dtype)))
    for key in ("2024-01-02", datetime.date(2024, 1, 2), pd.Timestamp("2024-01-02"), np.datetime64("2024-01-02", "us")):
        keys = cells.Keys("day", [key, "2024-01-04"])
        assert keys.codes(column).tolist() == [0, -1, -1, -1]
        assert keys.keys == ["2024-01-02", "2024-01-04"]
    assert cells.distinct_keys(column)[0][:2] == ["2024-01-02", "2024-01-03"]
