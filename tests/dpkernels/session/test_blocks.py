"""Data of every kind is read in one way; failures of reading are known before the charge, or are handled after it."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import accountants
import dpkernels as dpk
from dpkernels.session import DataWarning, Session, blocks
from dpkernels.session.blocks import MAX_ROWS, as_source
from dpkernels.session.delimited import DelimitedLines
from dpkernels.session.distinct import DistinctWords, SortedCounts
from dpkernels.session.run import ReleaseInProgress
from dpkernels.session.tables import SessionTable

KEY = dpk.key_from_bytes(bytes(range(32)))
RNG = np.random.default_rng(5)
N = 1200
PEOPLE = {
    "id": RNG.integers(0, 300, N),
    "age": RNG.integers(0, 91, N).astype(float),
    "plan": RNG.choice(["A", "B", "C"], N),
}
TABLE = pa.table(PEOPLE)
CUTS = (0, 500, 501, N)

pytestmark = pytest.mark.filterwarnings("ignore:another session:UserWarning")


def of(data, **options):
    return Session(data, **{"epsilon": 50.0, "delta": 1e-3, "key": KEY} | options)


def released(data, **options):
    """One value of everything that reads rows: sums, places, stated and found keys."""
    s = of(data, **options)
    return [
        s.mean("age", 0, 95, by={"plan": ["A", "B"]}, epsilon=1.0).value.tolist(),
        s.quantiles("age", 0, 95, (0.2, 0.5), epsilon=1.0).value.tolist(),
        s.top("plan", 2, ["A", "B", "C"], epsilon=1.0).table(),
        s.count(by={"plan": "found"}, epsilon=1.0, delta=1e-5).index,
        s.mean("age", bounds="private", epsilon=1.0).value,
    ]


def check_same(make, **options):
    for own in (options, {"person": "id", "rows_per_person": 2, **options}):
        first, second = released(PEOPLE, **own), released(make(), **own)
        for one, other in zip(first, second, strict=True):
            assert str(one) == str(other) or {k: list(v) for k, v in one.items()} == {
                k: v.to_pylist() if hasattr(v, "to_pylist") else list(v)
                for k, v in (other.items() if hasattr(other, "items") else zip(other.column_names, other, strict=True))
            }


def parts():
    return [TABLE.slice(a, b - a) for a, b in pairwise(CUTS)]


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    for number, part in enumerate(parts()):
        pyarrow.csv.write_csv(part, folder / f"{number}.csv")
        pyarrow.parquet.write_table(part, folder / f"{number}.parquet", row_group_size=100)
    return folder


LISTS = {
    "tables": lambda folder: parts(),
    "batches": lambda folder: [part.to_batches()[0] for part in parts()],
    "frames": lambda folder: [part.to_pandas() for part in parts()],
    "mixed": lambda folder: [parts()[0].to_pandas(), pl.from_arrow(parts()[1]), dict(zip(
        TABLE.column_names, (column.to_numpy() for column in parts()[2].columns), strict=True))],
    "reader": lambda folder: pa.RecordBatchReader.from_batches(TABLE.schema, TABLE.to_batches(100)),
    "readers": lambda folder: [part.to_reader() for part in parts()],
    "paths": lambda folder: [folder / "0.csv", str(folder / "1.parquet"), parts()[2]],
    "other order": lambda folder: [parts()[0], pa.concat_tables(parts()[1:]).select(["plan", "id", "age"])],
}  # fmt: skip


@pytest.mark.parametrize("name", LISTS)
def test_lists_and_readers_have_the_results_of_one_table(name, paths):
    check_same(lambda: LISTS[name](paths))


@pytest.mark.parametrize("size", [7, 1 << 18])
def test_the_size_of_blocks_changes_nothing(size, monkeypatch, paths):
    for data in (PEOPLE, pd.DataFrame(PEOPLE), paths / "0.csv"):
        monkeypatch.setattr(blocks, "BLOCK_ROWS", size)
        names = ["age", "id"]
        read = list(as_source(data).blocks(names))
        assert sum(block.rows for block in read) == (500 if isinstance(data, Path) else N)
        assert max(block.rows for block in read) <= max(size, 1)
        joined = np.concatenate([block["age"] for block in read]).astype(float)
        assert np.array_equal(joined, PEOPLE["age"][: len(joined)])


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ([], "no tables"),
        ([PEOPLE, {"id": [1]}], "different columns"),
        ([PEOPLE, 3], "int is not"),
        (iter([PEOPLE]), "is not"),
        (pl.LazyFrame(PEOPLE), "is not"),
    ],
    ids=["empty", "other columns", "a number", "an iterator", "a lazy frame"],
)
def test_lists_that_are_no_table_are_refused(data, match):
    with pytest.raises((TypeError, ValueError), match=match):
        as_source(data)


def test_too_many_rows_are_refused_when_the_data_is_opened(monkeypatch, paths):
    monkeypatch.setattr(blocks, "MAX_ROWS", 499)
    for data in (PEOPLE, TABLE, [parts()[0].slice(0, 300)] * 2, paths / "0.csv", paths / "0.parquet"):
        with pytest.raises(ValueError, match="more than 499 rows"):
            as_source(data)
    assert as_source(parts()[0].slice(0, 499)).most_rows == 499


def test_lines_are_counted_where_the_size_of_a_file_does_not_bound_them(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("a,b\n" + "10,200\n" * 50)
    lines = DelimitedLines([path], ",")
    assert 50 < lines.most_rows(MAX_ROWS) <= 200
    assert 50 <= lines.most_rows(100) <= 52
    assert 50 <= lines.most_rows(10) <= 52


# Failures


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252"])
def test_texts_of_every_encoding_are_names_and_keys(encoding, tmp_path):
    """Bytes that are not UTF-8 are read as Windows-1252, by stated keys and by keys that are found."""
    rows = [f"{size},{town}" for size in (1, 2, 3) for town in ("Köln", "Genève", "€")]
    text = "\n".join(['Größe,"Ort, Kreis"', *rows])
    (tmp_path / "people.csv").write_bytes(text.encode(encoding))
    s = of(tmp_path / "people.csv")
    assert s.mean("Größe", 0, 4, by={"Ort, Kreis": ["Köln", "€"]}, epsilon=20.0).value == pytest.approx([2, 2], abs=0.4)
    assert s.count(by={"Ort, Kreis": "found"}, epsilon=20.0, delta=1e-4).index == {
        "Ort, Kreis": ["Genève", "Köln", "€"]
    }


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"a;b\n1;2\n", "';' between names of columns; ',' is needed"),
        (b"a;b, c;d\n1;2;3\n", "';' between names of columns; ',' is needed"),
        ("a,b\n1,2\n".encode("utf-16"), "UTF-16"),
        (b'"a,b\n1,2\n', "no line of a CSV file"),
        (b"\n1,2\n", "empty"),
    ],
)
def test_headers_that_cannot_be_used_are_refused(content, match, tmp_path):
    (tmp_path / "people.csv").write_bytes(content)
    with pytest.raises(ValueError, match=match) as error:
        of(tmp_path / "people.csv")
    assert "1" not in str(error.value).replace(str(tmp_path), "").replace("UTF-16", ""), "no cell is shown"


def test_lines_of_other_bytes_and_numbers_of_cells_are_left_out_without_a_word(tmp_path, capfd):
    """Each is read as if it were the only one: others neither fail nor are they told."""
    rng = np.random.default_rng(3)
    for names in (["a"], ["a", "b"], ["a", "b", "c"]):
        path, parts = tmp_path / "people.csv", []
        lines = [bytes(rng.choice([*b'aab,,,""\r \xfc\xef'], rng.integers(0, 9)).tolist()) for _ in range(80)]
        for content in (b"\n".join(lines), *(line + b"\n" for line in lines)):
            path.write_bytes(",".join(names).encode() + b"\n" + content)
            batches = DelimitedLines([path], ",").to_batches(names)
            parts.append([tuple(row.values()) for batch in batches for row in batch.to_pylist()])
        assert parts[0] == [row for part in parts[1:] for row in part]
        assert len(parts[0]) > 3
    assert capfd.readouterr() == ("", "")


@pytest.mark.lengthy
def test_a_file_is_opened_without_threads(tmp_path):
    """A process that ends while pyarrow starts threads may abort, as after an error of an argument."""
    (tmp_path / "people.csv").write_bytes(b"a,b\n1,2\n")
    code = (
        "import sys; from dpkernels.session.blocks import as_source; "
        f"as_source({str(tmp_path / 'people.csv')!r}); sys.exit('pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_warnings_are_said_before_the_charge():
    """So a warning that is an error leaves nothing charged."""
    ends = float(PEOPLE["age"].min()), float(PEOPLE["age"].max())
    s = of(PEOPLE)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        with pytest.raises(DataWarning):
            s.mean("age", *ends, epsilon=1.0)
    assert s.spent.epsilon == 0
    assert s.left.epsilon == 50


def test_bounds_that_were_read_from_a_file_are_caught(paths, monkeypatch):
    age = PEOPLE["age"][:500]
    for name in ("0.csv", "0.parquet"):
        with pytest.warns(DataWarning, match="exactly the smallest"):
            of(paths / name).mean("age", float(age.min()), float(age.max()), epsilon=1.0)
        monkeypatch.setattr(blocks, "SMALL_FILES", 100)
        with warnings.catch_warnings():
            warnings.simplefilter("error", DataWarning)
            of(paths / name).mean("age", float(age.min()), float(age.max()), epsilon=1.0)
        monkeypatch.undo()


def changes(path):
    def longer():
        path.write_text("id,age\n1,2\n3,4\n5,6\n")

    def others():
        path.write_text("id,age\n1,2\n3,9\n")

    return {"longer": longer, "other cells": others, "gone": path.unlink}


@pytest.mark.parametrize("name", ["longer", "other cells", "gone"])
@pytest.mark.parametrize("person", [None, "id"])
def test_a_file_that_has_changed_is_refused_before_the_charge(name, person, tmp_path):
    path, ledger = tmp_path / "p.csv", accountants.Ledger.create(tmp_path / "l", epsilon=9.0)
    path.write_text("id,age\n1,2\n3,4\n")
    os.utime(path, ns=(0, 0))
    s = of(path, person=person, rows_per_person=1 if person else None, ledger=ledger, delta=0)
    s.count(epsilon=1.0)
    changes(path)[name]()
    with pytest.raises((RuntimeError, OSError), match=r"changed|No such file"):
        s.count(epsilon=1.0)
    assert s.spent.epsilon == ledger.state().spent.epsilon == 1


def test_a_frame_that_has_changed_is_refused_before_the_charge():
    frame = pd.DataFrame(PEOPLE)
    s = of(frame)
    frame["weight"] = 1.0
    with pytest.raises(RuntimeError, match="changed"):
        s.count(epsilon=1.0)
    assert s.spent.epsilon == 0
    assert s.left.epsilon == 50


def test_a_failure_of_reading_after_the_charge_stays_charged(paths, monkeypatch):
    def fail(*_, **__):
        raise OSError("a disk")

    s = of(paths / "0.parquet")
    monkeypatch.setattr(blocks.Files, "blocks", fail)
    with pytest.raises(OSError, match="a disk"):
        s.count(epsilon=1.0)
    assert s.spent.epsilon == 1
    monkeypatch.undo()
    assert abs(s.count(epsilon=20.0).value - 500) < 3


def test_a_release_that_is_refused_reads_nothing(paths, monkeypatch):
    s = of(paths / "0.parquet", epsilon=5.0)
    monkeypatch.setattr(blocks.Files, "blocks", lambda *_: pytest.fail("it was read"))
    with pytest.raises(accountants.BudgetExceeded):
        s.mean("age", 0, 90, epsilon=6.0)


def test_sessions_of_one_table_of_a_list_say_so():
    table = parts()[0]
    Session([table, parts()[1]], epsilon=1.0)
    with pytest.warns(UserWarning, match="one ledger"):
        Session(table, epsilon=1.0)


# Ray


def test_a_block_of_ray_that_was_computed_again_with_other_values_is_refused():
    """A task reads only what has the hashes of the first time; names that were not read before have none."""
    ray_pickle = pytest.importorskip("ray.cloudpickle")
    described = ray_pickle.dumps((lambda block, own: (block["age"].sum(), own.sum()), ("age",), bytes(32)))
    one, other = TABLE, TABLE.set_column(1, "age", pa.array(np.append(PEOPLE["age"][1:], 0.0)))
    hashes, results = blocks._map_block(one, described, {}, np.ones(N))
    assert results == [(PEOPLE["age"].sum(), N)]
    again = pa.concat_tables([one.slice(0, 7), one.slice(7)])
    assert blocks._map_block(again, described, hashes, np.ones(N))[0] == hashes
    assert blocks._map_block(other, described, hashes, np.ones(N))[1] is None
    assert blocks._map_block(other, described, {"id": b""}, np.ones(N))[1] is not None


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        timeouts = {"agent_register_timeout_ms": 600_000, "worker_register_timeout_seconds": 600}
        try:
            ray.init(
                num_cpus=1, object_store_memory=80 << 20, include_dashboard=False, log_to_driver=False,
                logging_level="ERROR", _system_config=timeouts,
            )  # fmt: skip
        except Exception as error:
            pytest.skip(f"Ray did not start: {error}")
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield ray
        ray.shutdown()


class Blocks:
    """A dataset whose blocks are tables of this process, and tasks that run at once: Ray without its machines."""

    def __init__(self, tables):
        self.tables = tables

    def to_arrow_refs(self):
        return self.tables

    def columns(self):
        return [] if not self.tables else self.tables[0].column_names


@pytest.fixture
def tasks_of_this_process(monkeypatch):
    ray = pytest.importorskip("ray")

    class Task:
        def __init__(self, function):
            self.function = function

        def remote(self, *arguments):
            return lambda: self.function(*arguments)

    def get(task):
        if isinstance(task, list):
            return [get(each) for each in task]
        try:
            return task()
        except ValueError as error:
            raise ray.exceptions.RayTaskError("task", str(error), error) from error

    is_running = [True]
    for name, function in {
        "remote": Task, "get": get, "put": lambda value: value, "cancel": lambda task: None,
        "is_initialized": lambda: is_running[0], "cluster_resources": lambda: {"CPU": 2.0},
        "shutdown": lambda: is_running.clear() or is_running.append(False),
    }.items():  # fmt: skip
        monkeypatch.setattr(ray, name, function)
    monkeypatch.setattr("dpkernels.release.containers.is_ray_dataset", lambda x: isinstance(x, Blocks))
    return ray


def check_datasets(ray, monkeypatch, dataset):
    """Partial sums, places and pairs are joined; a session's secret and noise are not sent to tasks."""
    sent = []
    original = ray.put
    monkeypatch.setattr(ray, "put", lambda value: original(sent.append(value) or value))
    check_same(lambda: dataset(parts()))
    check_same(lambda: dataset([TABLE.slice(start, 300) for start in range(0, N, 300)] + [TABLE.slice(0, 0)]))
    assert sent
    secret = of(PEOPLE)._secret
    assert not any(secret in value for value in sent if isinstance(value, bytes))

    for data in (dataset([parts()[0], parts()[1].drop(["age"])]), dataset([])):
        with pytest.raises(ValueError, match="different columns"):
            as_source(data)

    data = dataset(parts())
    s = of(data, person="id", rows_per_person=1)
    for hashes in s._table.source._hashes:
        assert set(hashes) == set(PEOPLE), "those of columns that were read are known"
        hashes["age"] = bytes(32)  # As if a block had been computed again, with other values.
    with pytest.raises(RuntimeError, match="changed"):
        s.mean("age", 0, 95, epsilon=1.0)
    assert s.spent.epsilon == 1

    def broken(block, persons):
        raise ValueError("a cell")

    with pytest.raises(RuntimeError, match="Ray could not read a block: RayTaskError") as error:
        list(s._table.map(["plan"], broken))
    assert "a cell" not in str(error.value)
    ray.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        s.count(epsilon=1.0)
    assert s.spent.epsilon == 1


def test_blocks_of_ray_have_the_results_of_their_table(tasks_of_this_process, monkeypatch):
    with monkeypatch.context() as patch:  # More blocks than tasks at once, each read in two chunks.
        patch.setattr(blocks, "BLOCK_ROWS", 64)
        check_same(lambda: Blocks([TABLE.slice(start, 100) for start in range(0, N, 100)]))
    check_datasets(tasks_of_this_process, monkeypatch, Blocks)


@pytest.mark.thorough
def test_a_dataset_of_ray_has_the_results_of_its_table(cluster, monkeypatch):
    check_datasets(cluster, monkeypatch, lambda tables: cluster.data.from_arrow(tables or [pa.table({})]))


# Distinct places


@pytest.mark.parametrize("span", [3, 1000, 2**60])
def test_distinct_words_are_counted(span, monkeypatch):
    monkeypatch.setattr("dpkernels.session.distinct._MIN_UNMERGED", 300)
    monkeypatch.setattr("dpkernels.session.distinct._SORTED_WORDS", 64)
    rng, words, everything = np.random.default_rng(span % 1000), DistinctWords(), []
    assert [len(each) for each in words.sorted()] == [0, 0]
    for _ in range(30):
        block = rng.integers(0, span, rng.integers(0, 200)).astype(np.uint64)
        words.add(*np.unique(block, return_counts=True))
        everything.append(block)
    distinct, counts = np.unique(np.concatenate(everything), return_counts=True)
    for _ in range(2):
        assert np.array_equal(words.sorted()[0], distinct)
        assert np.array_equal(words.sorted()[1], counts)


def test_places_are_those_of_sorted_rows():
    rows = np.sort(np.random.default_rng(1).integers(0, 30, 200))
    places = SortedCounts(*np.unique(rows, return_counts=True))
    assert len(places) == 200
    assert np.array_equal(
        places.count_at_most(np.arange(-1, 31)), np.searchsorted(rows, np.arange(-1, 31), side="right")
    )
    below, above = places.split(12)
    assert (len(below), len(above)) == ((rows <= 12).sum(), (rows > 12).sum())


def test_places_of_groups_are_those_of_their_rows():
    """Also the first place and the last one, and of a group without rows."""
    groups, places = np.random.default_rng(2).integers(0, [[3], [4]], (2, 500))
    run = ReleaseInProgress(SessionTable.open({"group": groups, "place": places}), 1, 1, bytes(32))
    members = run.sorted_counts(("group", "place"), 4, lambda block: (block["group"], block["place"]))
    for group, each in enumerate(members):
        values, counts = np.unique(places[groups == group], return_counts=True)
        assert np.array_equal(each.values, values)
        assert np.array_equal(each.counts, counts)
