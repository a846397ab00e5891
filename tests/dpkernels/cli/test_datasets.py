"""Datasets of many files without a cluster: the plan, the parts, the folder, and what is refused."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from command_helpers import Run, assert_refused, command
from dataset_helpers import AGE, BOUNDS, MECHANISM, SECRET, expected, is_release, names, released, write

import dpkernels as dpk
from dpkernels.cli import estimate
from dpkernels.cli.dataset import estimate as estimates
from dpkernels.cli.dataset import perturb as plans
from dpkernels.cli.dataset.engines import LocalEngine
from dpkernels.cli.dataset.folder import NOTE, SIDECAR, StoreFolder, folder
from dpkernels.cli.dataset.perturb import Job, Secret, TaskError, perturb_part, run_task
from dpkernels.cli.files import locations
from dpkernels.cli.files.layout import Layout, input_layout
from dpkernels.cli.files.locations import Location, find
from dpkernels.cli.mechanisms import build_exact_sampler
from dpkernels.cli.perturb.sidecar import Column, ReleaseSpec, RowOptions
from dpkernels.random.keys import column_secret

run = pytest.fixture(command, name="run")
PARQUET = Layout("parquet")


@pytest.fixture
def known_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpkernels.cli.dataset.perturb.Secret", lambda _: Secret(SECRET))


def column(name: str | None = "age") -> Column:
    options = {"epsilon": 1.0, "lower": 0.0, "upper": 120.0}
    return Column(name, *build_exact_sampler("hybrid", options))


def job(out: Path | None, parts: int, *names: str) -> Job:
    columns = tuple(column(name) for name in names or ("age",))
    spec = ReleaseSpec(columns, False, PARQUET, RowOptions(), (), 1, ())
    return Job(spec, parts, None if out is None else folder(str(out), None))


def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "PART_BYTES", 1)


# start


@pytest.mark.parametrize("start", [1, 7, 32, 1000, 4097])
@pytest.mark.parametrize("mechanism", [MECHANISM, dpk.laplace(epsilon=1.0, sensitivity=1.0)], ids=["bounded", "noise"])
def test_a_part_of_a_release_is_that_part(mechanism: Any, start: int) -> None:
    x, key = np.random.default_rng(0).uniform(0, 120, 5000), dpk.key_from_bytes(SECRET)
    whole = dpk.perturb(x, mechanism, key=key)
    np.testing.assert_array_equal(dpk.perturb(x[start:], mechanism, key=key, start=start), whole[start:])


def test_parts_of_rows_of_several_values_and_of_tables() -> None:
    key, random = dpk.key_from_bytes(SECRET), np.random.default_rng(0)
    x = random.uniform(-1, 1, (300, 4))
    vectors = dpk.multivariate(epsilon=2.0, dimensions=4, lower=-1.0, upper=1.0)
    for mechanism in (dpk.piecewise(epsilon=1.0, lower=-1.0, upper=1.0), vectors):
        whole = dpk.perturb(x, mechanism, key=key)
        for start in (1, 11, 64):
            np.testing.assert_array_equal(dpk.perturb(x[start:], mechanism, key=key, start=start), whole[start:])
    table, both = pa.table({"a": x[:, 0], "b": x[:, 1]}), dict.fromkeys("ab", dpk.duchi(epsilon=1.0, lower=-1, upper=1))
    assert dpk.perturb(table[9:], both, key=key, start=9).equals(dpk.perturb(table, both, key=key)[9:])


@pytest.mark.parametrize(
    "mechanism",
    [
        dpk.multivariate(epsilon=2.0, dimensions=4, lower=-1.0, upper=1.0),
        dpk.on_vectors(dpk.laplace(epsilon=1.0), dimensions=4, norm="l1", lattice=1.0),
    ],
    ids=["sampled", "noise"],
)
def test_vectors_released_one_by_one_share_no_noise(mechanism: Any) -> None:
    """A vector by itself is a row: its start counts vectors, not coordinates."""
    x, key = np.zeros((6, 4)), dpk.key_from_bytes(SECRET)
    alone = [dpk.perturb(row, mechanism, key=key, start=at) for at, row in enumerate(x)]
    np.testing.assert_array_equal(alone, dpk.perturb(x, mechanism, key=key))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"start": 3}, "needs the key"),
        ({"start": -1}, "is not in 0"),
        ({"start": 3, "exact": False, "key": dpk.simulation_key(0)}, "simulation"),
        ({"start": 1 << 62, "key": dpk.key_from_bytes(SECRET)}, "the last value"),
    ],
)
def test_wrong_starts(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        dpk.perturb(np.ones(4), MECHANISM, **given)


def test_rows_far_on_have_their_own_noise() -> None:
    key, x = dpk.key_from_bytes(SECRET), np.full(4096, 60.0)
    far = [dpk.perturb(x, MECHANISM, key=key, start=start) for start in (0, 1 << 36, (1 << 37) + 5, 1 << 60)]
    assert all((a != b).mean() > 0.5 for at, a in enumerate(far) for b in far[:at])


# the plan


def test_parts_cover_every_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "in", files=3, rows=1000, group=130)
    small_parts(monkeypatch)
    parts = plans.plan_parts(find(str(tmp_path / "in")).files, PARQUET)
    assert len(parts) == 3 * 8
    assert [part.number for part in parts] == list(range(24))
    assert [part.first for part in parts] == np.cumsum([0, *(part.rows for part in parts[:-1])]).tolist()
    assert sum(part.rows for part in parts) == 3000
    assert [part.row for part in parts[:9]] == [*range(0, 1000, 130), 0]
    assert [part.file.name for part in parts] == sorted(part.file.name for part in parts)


def test_row_groups_are_put_together(tmp_path: Path) -> None:
    write(tmp_path / "in", files=3, rows=1000, group=130)
    parts = plans.plan_parts(find(str(tmp_path / "in")).files, PARQUET)
    assert [(part.groups, part.rows) for part in parts] == [((0, 8), 1000)] * 3


def test_no_two_values_of_a_release_share_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every (key of a column, index of a word) that the engines are asked for, over all parts and columns."""
    (tmp_path / "in").mkdir()
    for at in range(3):
        table = pa.table({"age": np.full(500, 60.0), "other": np.full(500, 60.0)})
        pq.write_table(table, tmp_path / "in" / f"{at}.parquet", row_group_size=110)
    small_parts(monkeypatch)
    parts, used = plans.plan_parts(find(str(tmp_path / "in")).files, PARQUET), list[tuple[bytes, int]]()

    def noted(engine: Any, bounds: Any, x: np.ndarray, *, start: int, row: int) -> np.ndarray:
        used.extend((engine.key, index) for index in range(start, start + len(x)))
        return x

    monkeypatch.setattr("dpkernels.cli.perturb.rows.in_chunks", noted)
    described = job(tmp_path / "out", len(parts), "age", "other")
    with described.folder.run():
        for part in [*parts, parts[3]]:  # one is run twice
            assert perturb_part(described, Secret(SECRET), part).rows == part.rows
    assert len(used) == 2 * (1500 + parts[3].rows)
    assert len(set(used)) == 2 * 1500
    assert {key for key, _ in used} == {column_secret(SECRET, "age"), column_secret(SECRET, "other")}
    assert {index for _, index in used} == set(range(1500))


def test_a_part_that_is_run_again_has_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "in", files=2)
    (_, part), described = plans.plan_parts(find(str(tmp_path / "in")).files, PARQUET), job(tmp_path / "out", 2)
    with described.folder.run():
        first = perturb_part(described, Secret(SECRET), part)
        assert described.folder.sizes() == {
            NOTE: len((described.folder.staging / NOTE).read_text()),
            first.written.name: first.written.size,
        }
        bytes_ = (described.folder.staging / first.written.name).read_bytes()
        assert perturb_part(described, Secret(SECRET), part) == first
        assert (described.folder.staging / first.written.name).read_bytes() == bytes_


def test_a_machine_of_another_version_makes_nothing(tmp_path: Path) -> None:
    write(tmp_path / "in", files=1)
    (part,) = plans.plan_parts(find(str(tmp_path / "in")).files, PARQUET)
    other = dataclasses.replace(job(None, 1), versions={"jax": "0"})
    answer = run_task(perturb_part, other, Secret(SECRET), part)
    assert isinstance(answer, TaskError)
    assert "'jax': '0'" in answer.message


# releases


@pytest.mark.parametrize("named", ["in", "in/*.parquet", "in/00??.parquet", "file://{}/in"])
def test_a_release_is_that_of_one_process(run: Run, named: str, known_secret: None, tmp_path: Path) -> None:
    ages = write(Path("in"), rows=700, group=90)
    result = run("perturb", named.format(tmp_path), "out", *AGE)
    assert result.code == 0, result.err
    assert is_release(Path("out"), ages)
    assert "copied as they are, NOT protected: id" in result.out
    payload = json.loads(Path("out", SIDECAR).read_text())
    assert payload["rows"] == 3500
    assert [part["rows"] for part in payload["output"]["parts"]] == [700] * 5
    assert names("out") == sorted([SIDECAR, *(part["name"] for part in payload["output"]["parts"])])
    assert names() == ["in", "out"]
    assert SECRET.hex() not in json.dumps(payload)


def test_a_single_file_may_be_released_in_parts(run: Run, known_secret: None, monkeypatch: pytest.MonkeyPatch) -> None:
    ages = write(Path("in"), files=1, rows=1000, group=100)
    small_parts(monkeypatch)
    assert run("perturb", "in/0000.parquet", "out", "--engine", "local", *AGE).code == 0
    assert len(list(Path("out").glob("0*"))) == 10
    assert is_release(Path("out"), ages)


def test_delimited_files_and_arrays(run: Run, known_secret: None) -> None:
    ages = np.random.default_rng(1).uniform(0, 120, 900)
    Path("in").mkdir()
    Path("arrays").mkdir()
    for at, part in enumerate(np.split(ages, 3)):
        Path("in", f"{at}.csv").write_text("age,name\n" + "".join(f"{x!r},a\n" for x in part.tolist()))
        np.save(f"arrays/{at}.npy", part.reshape(-1, 3))
    assert run("perturb", "in", "out", *AGE).code == 0
    found = [line.split(",") for path in sorted(Path("out").glob("*.csv")) for line in path.read_text().split()[1:]]
    np.testing.assert_array_equal([float(age) for age, _ in found], expected(ages))
    assert run("perturb", "arrays", "out2", *BOUNDS).code == 0
    found = np.concatenate([np.load(path) for path in sorted(Path("out2").glob("*.npy"))])
    np.testing.assert_array_equal(found.ravel(), expected(ages, None))
    assert json.loads(Path("out2", SIDECAR).read_text())["epsilon"] == 3.0


def test_missing_values_are_dropped_or_kept(run: Run, known_secret: None) -> None:
    ages = write(Path("in"), files=2, rows=100)
    table = pq.read_table("in/0000.parquet")
    mask = np.arange(100) % 3 == 0
    pq.write_table(table.set_column(1, "age", pa.array(ages[:100], mask=mask)), "in/0000.parquet")
    assert run("perturb", "in", "out", *AGE).code == 1
    assert run("perturb", "in", "dropped", *AGE, "--missing", "drop").code == 0
    left = np.append(~mask, np.ones(100, bool))
    np.testing.assert_array_equal(released(Path("dropped"))["age"].to_numpy(), expected(ages)[left])
    assert run("perturb", "in", "kept", *AGE, "--missing", "keep").code == 0
    np.testing.assert_array_equal(released(Path("kept"))["age"].to_numpy()[left], expected(ages)[left])
    assert run("certify", "--verify", f"kept/{SIDECAR}").code == 0


def test_parts_are_named_in_the_order_of_their_rows(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever is done first: here the last."""
    write(Path("in"), files=4)
    each = LocalEngine.map_unordered

    def reversed_(self: LocalEngine, *given: Any) -> Any:
        yield from list(each(self, *given))[::-1]

    monkeypatch.setattr(LocalEngine, "map_unordered", reversed_)
    assert run("perturb", "in", "out", *AGE).code == 0
    parts = json.loads(Path("out", SIDECAR).read_text())["output"]["parts"]
    assert [part["name"] for part in parts] == [f"{number:04}.parquet" for number in range(4)]


def test_a_ledger_is_charged_once(run: Run) -> None:
    write(Path("in"))
    paid = ("--ledger", "people.ledger", "--budget", "1.5")
    assert "would be made, and epsilon 0.5, delta 0 be left" in run("perturb", "in", "out", *AGE, *paid, "--check").out
    assert not Path("out").exists()
    assert run("perturb", "in", "out", *AGE, *paid, "--check-first").code == 0
    assert json.loads(run("ledger", "people.ledger", "--json").out)["left_epsilon"] == "0.5"
    assert run("perturb", "in", "out2", *AGE, *paid).code == 3
    assert names() == ["in", "out", "people.ledger"]


# what is refused


def test_a_bad_value_names_file_row_and_column_and_leaves_nothing(run: Run) -> None:
    write(Path("in"), rows=100, group=30)
    table = pq.read_table("in/0003.parquet")
    ages = table["age"].to_numpy().copy()
    ages[77] = 121.5
    pq.write_table(table.set_column(1, "age", pa.array(ages)), "in/0003.parquet", row_group_size=30)
    result = run("perturb", "in", "out", *AGE)
    assert result.code == 1
    for words in ("0003.parquet", "column 'age'", "row 77", "121.5"):
        assert words in result.err
    assert names() == ["in"]


def test_a_file_that_changes_after_the_plan_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "in", files=2)
    parts = plans.plan_parts(find(str(tmp_path / "in")).files, PARQUET)
    described = job(tmp_path / "out", 2)
    path = tmp_path / "in" / "0001.parquet"
    for change in (lambda: os.utime(path, ns=(1, 1)), lambda: path.write_bytes(path.read_bytes() + b"0"), path.unlink):
        change()
        with described.folder.run():
            assert run_task(perturb_part, described, Secret(SECRET), parts[0]).rows == 1000
            answer = run_task(perturb_part, described, Secret(SECRET), parts[1])
            assert isinstance(answer, TaskError)
            assert "0001.parquet: has changed since the release was planned" in answer.message
            assert len(described.folder.sizes()) == 2  # the note, and the part of the other file


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "in", files=1)
    (part,), described = plans.plan_parts(find(str(tmp_path / "in")).files, PARQUET), job(tmp_path / "out", 1)

    def touched(*given: Any, **named: Any) -> Any:
        os.utime(part.file.path, ns=(5, 5))
        return given[2]

    monkeypatch.setattr("dpkernels.cli.perturb.rows.in_chunks", touched)
    with described.folder.run():
        assert "has changed" in run_task(perturb_part, described, Secret(SECRET), part).message
        assert list(described.folder.sizes()) == [NOTE]


@pytest.mark.parametrize("more", [-1, 1])
def test_a_part_of_other_rows_than_planned_is_refused(tmp_path: Path, more: int) -> None:
    """Its first row, and so its noise, would be that of rows of another part."""
    write(tmp_path / "in", files=1)
    (part,), described = plans.plan_parts(find(str(tmp_path / "in")).files, PARQUET), job(tmp_path / "out", 1)
    other = dataclasses.replace(part, rows=part.rows + more)
    with described.folder.run():
        for secret in (Secret(SECRET), None):
            answer = run_task(perturb_part, described, secret, other)
            assert isinstance(answer, TaskError)
            assert f"has 1000 rows in a part that was planned with {1000 + more}" in answer.message
        assert list(described.folder.sizes()) == [NOTE]


def test_a_connection_that_is_lost_is_no_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines try errors of the system again; a refusal ends the release."""
    write(tmp_path / "in", files=1, rows=1000)
    where = tmp_path / "in" / "0000.parquet"
    (part,), described = plans.plan_parts([Location(str(where), where.as_uri())], PARQUET), job(tmp_path / "out", 1)
    lost = [False, True, False, False]  # the footer is read, the rows are not

    class Connection(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.lost:
                raise OSError("connection lost")
            return super().read(size)

    def opened(place: Location) -> Any:
        connection = Connection(where.read_bytes())
        connection.lost = lost.pop(0)
        return pa.PythonFile(connection, mode="r")

    monkeypatch.setattr(Location, "stamp", lambda place: part.stamp)
    monkeypatch.setattr(Location, "opened", opened)
    with described.folder.run():
        with pytest.raises(OSError, match=r"0000\.parquet: .*connection lost"):
            run_task(perturb_part, described, Secret(SECRET), part)
        assert run_task(perturb_part, described, Secret(SECRET), part).rows == 1000


def _other_schema() -> None:
    pq.write_table(pa.table({"id": [1], "age": [1]}), "in/0002.parquet")


def _partitioned() -> None:
    Path("in/year=2024").mkdir()


@pytest.mark.parametrize(
    ("change", "arguments", "words"),
    [
        (_other_schema, AGE, "have other columns, id int64, age double and id int64, age int64"),
        (lambda: Path("in/0001.parquet").write_bytes(b"PAR1"), AGE, "0001.parquet: is not a readable Parquet file"),
        (_partitioned, AGE, "contains the folder year=2024"),
        (lambda: Path("in/notes.txt").touch(), AGE, "suffix '.txt'"),
        (lambda: Path("in/a.csv").write_text("age\n"), AGE, "have different formats"),
        (lambda: Path("out").mkdir() or Path("out/x").touch(), AGE, "is not empty"),
        (lambda: Path("out").touch(), AGE, "is not a folder"),
        (lambda: None, (*AGE, "--force"), "--force: a release of many files needs a new folder"),
        (lambda: None, (*AGE, "--shuffle-rows"), "--shuffle-rows"),
        (lambda: None, (*AGE, "--sidecar", "x.json"), "--sidecar"),
        (lambda: None, (*AGE, "--retries", "3"), "--retries: is for --engine ray"),
        (lambda: None, (*AGE, "--engine", "ray", "--address", "ray://host:1"), "would be the driver and hold the key"),
        (lambda: None, (*AGE, "--engine", "ray", "--task-resource", "x"), "'x' is not NAME=N"),
        (lambda: None, ("--column", "no", *BOUNDS), "no such column"),
    ],
)
def test_wrong_datasets_and_options(run: Run, change: Any, arguments: tuple[str, ...], words: str) -> None:
    write(Path("in"), rows=10)
    change()
    before = names()
    result = run("perturb", "in", "out", *arguments)
    assert result.code != 0
    assert words in result.err
    assert names() == before


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("s3://key:secret@bucket/in", "out", "contains a key"),
        ("s3://bucket/in?secret_key=abc", "out", "contains a key"),
        ("s3://bucket/in?region=x&session%5Ftoken=abc", "out", "contains a key"),
        ("abfss://account.dfs.core.windows.net/in?client_secret=abc", "out", "contains a key"),
        ("abfss://account.dfs.core.windows.net/in?sv=1&sig=abc", "out", "contains a key"),
        ("no-such-scheme://bucket/in", "out", "no-such-scheme"),
        ("https://example.org/in.csv?token=sesame", "out", "https:// is no file system"),
        ("in", "https://user:sesame@example.org/out", "one of file, s3, gs"),
        ("none*", "out", "names no file"),
        ("in", "in/out", "is the folder of the input"),
        ("in", "nowhere/out", "does not exist"),
    ],
)
def test_wrong_places(run: Run, source: str, target: str, words: str) -> None:
    write(Path("in"), files=1, rows=10)
    result = run("perturb", source, "in" if target == "in/out" else target, *AGE)
    assert result.code == 2
    assert (words if target != "in/out" else "is not empty") in result.err
    assert "sesame" not in result.err


@pytest.mark.thorough
def test_without_ray_the_message_says_how_to_install_it(tmp_path: Path) -> None:
    write(tmp_path / "in", files=1, rows=10)
    code = "import sys; sys.modules['ray'] = None; from dpkernels.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "perturb", "in", "out", "--engine", "ray", *AGE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ray is not installed; pip install '.[ray]'" in done.stderr
    assert names(tmp_path) == ["in"]
    paid = ["--ledger", "people.ledger", "--budget", "1"]
    done = subprocess.run([*command, *paid], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "ray is not installed" in done.stderr
    assert names(tmp_path) == ["in"]  # and nothing is paid


@pytest.mark.lengthy
def test_nothing_imports_ray_before_it_is_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "in", files=1, rows=10)
    code = "import sys; from dpkernels.cli import main; print(main(sys.argv[1:]), 'ray' in sys.modules)"
    command = [sys.executable, "-c", code, "perturb", "in", "out", "--quiet", *AGE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "0 False\n"


# runs that die


@pytest.mark.lengthy
def test_a_killed_run_leaves_no_release_and_the_next_removes_what_it_left(run: Run, tmp_path: Path) -> None:
    ages = write(Path("in"), files=400, rows=200)
    code = "import sys; from dpkernels.cli import main; sys.exit(main())"
    process = subprocess.Popen([sys.executable, "-c", code, "perturb", "in", "out", "--quiet", *AGE], cwd=tmp_path)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".dpkernels-*.parts/0*")):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    (left,) = tmp_path.glob(".dpkernels-*.parts")
    assert not Path("out").exists()
    assert not (left / SIDECAR).exists()
    assert "no release" in (left / NOTE).read_text()
    result = run("perturb", "in", "out", *AGE)
    assert result.code == 0
    assert "removed" in result.err
    assert names() == ["in", "out"]
    assert len(released(Path("out"))) == len(ages)


def test_workers_of_a_dead_driver_cannot_write_into_the_next_release(tmp_path: Path) -> None:
    write(tmp_path / "in", files=1)
    (part,), old = plans.plan_parts(find(str(tmp_path / "in")).files, PARQUET), job(tmp_path / "out", 1)
    with old.folder.run():
        pass
    with pytest.raises(FileNotFoundError):
        perturb_part(old, Secret(SECRET), part)


# a store of objects


def test_a_store_that_does_not_answer_is_not_waited_for_a_quarter_of_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is how long Google's client tries again unless the URI says otherwise."""
    opened: list[str] = []

    class Opened:
        @staticmethod
        def from_uri(uri: str) -> tuple[Any, str]:
            opened.append(uri)
            return pa.fs.LocalFileSystem(), "b/k"

    monkeypatch.setattr(locations.fs, "FileSystem", Opened)
    options = ["gs://b/k", "GCS://b/k?scheme=http", "gs://b/k?retry_limit_seconds=900", "s3://b/k?region=x"]
    for uri in options:
        Location.parse(uri)
    assert opened == [
        "gs://b/k?retry_limit_seconds=30",
        "GCS://b/k?scheme=http&retry_limit_seconds=30",
        *options[2:],
    ]


def test_a_store_of_objects_has_no_renames(tmp_path: Path) -> None:
    """The same code as for s3://, on a folder of this machine."""
    write(tmp_path / "in", files=2)
    (tmp_path / "out").mkdir()
    parts, described = plans.plan_parts(find(str(tmp_path / "in")).files, PARQUET), job(None, 2)
    store = StoreFolder(Location(str(tmp_path / "out")))
    made = Job(described.spec, 2, store)
    with pytest.raises(KeyboardInterrupt), store.run():  # noqa: PT012
        done = [perturb_part(made, Secret(SECRET), part) for part in parts]
        assert store.sizes().keys() == {NOTE, *(one.written.name for one in done)}
        assert all(re.fullmatch(r"part-\d-[0-9a-f]{16}\.parquet", one.written.name) for one in done)
        raise KeyboardInterrupt
    assert names(tmp_path / "out") == []
    with store.run():
        done = [perturb_part(made, Secret(SECRET), part) for part in parts]
        (tmp_path / "out" / "part-0-0123456789abcdef.parquet").touch()  # by a worker whose driver is dead
        store.commit("{}", [one.written.name for one in done])
    assert store.sizes().keys() == {SIDECAR, *(one.written.name for one in done)}
    with pytest.raises(Exception, match="is not empty"), store.run():
        pass


def test_what_a_killed_run_left_in_a_store_is_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    left = ["part-0-0123456789abcdef.parquet", NOTE]
    for name in left:
        (tmp_path / "out" / name).write_text("number 1")
    store = StoreFolder(Location(str(tmp_path / "out")))
    with store.run():
        assert list(store.sizes()) == [NOTE]
        (tmp_path / "out" / NOTE).write_text("number 2")
        with pytest.raises(OSError, match="another run"):
            store.commit("{}", [])
    (tmp_path / "out" / "mine.txt").touch()
    with pytest.raises(Exception, match="is not empty"), store.run():
        pass


def test_what_others_put_into_a_store_meanwhile_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for strange in ("mine.txt", SIDECAR):
        store = StoreFolder(Location(str(tmp_path / "out")))
        with pytest.raises(OSError, match=f"{strange} has been put there meanwhile"), store.run():  # noqa: PT012
            (tmp_path / "out" / strange).write_text("mine")
            store.commit("{}", [])
        assert (tmp_path / "out" / strange).read_text() == "mine"
        (tmp_path / "out" / strange).unlink()
        (tmp_path / "out" / NOTE).unlink()


@pytest.mark.parametrize("kind", ["npy", "csv", "csv.gz", "parquet"])
def test_a_worker_that_is_killed_leaves_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """What it reads and what it makes lie on its disk under no name, and go with it."""
    (tmp_path / "out").mkdir()
    (there := tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(there))
    path, ages = tmp_path / f"in.{kind}", np.linspace(0, 120, 500)
    if kind == "npy":
        np.save(path, ages)
    elif kind == "parquet":
        pq.write_table(pa.table({"age": ages}), path)
    else:
        text = "age\n" + "".join(f"{x!r}\n" for x in ages.tolist())
        path.write_bytes(gzip.compress(text.encode()) if kind == "csv.gz" else text.encode())
    source = Location(str(path), path.as_uri())
    form = input_layout(path, path, None, None, False)
    (part,), seen = plans.plan_parts([source], form), list[list[str]]()

    def noted(*given: Any, **named: Any) -> Any:
        seen.append(names(there))
        return given[2]

    monkeypatch.setattr("dpkernels.cli.perturb.rows.in_chunks", noted)
    store = StoreFolder(Location(str(tmp_path / "out")))
    spec = ReleaseSpec((column("age" if kind != "npy" else None),), False, form, RowOptions(), (), 1, ())
    with store.run():
        done = perturb_part(Job(spec, 1, store), Secret(SECRET), part)
        made = (tmp_path / "out" / done.written.name).read_bytes()
    assert (len(made), hashlib.sha256(made).hexdigest()) == (done.written.size, done.written.sha256)
    assert done.rows == 500
    assert seen == [[]]
    assert names(there) == []


@pytest.mark.slow
def test_a_store_that_speaks_s3(run: Run, known_secret: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a server of the protocol on this machine, where there is one: ``pip install 'moto[server]'``."""
    moto, boto3 = pytest.importorskip("moto.server"), pytest.importorskip("boto3")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    ages, server = write(Path("in"), files=4, rows=500, group=100), moto.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = f"?endpoint_override={host}:{port}&scheme=http&region=us-east-1"
    try:
        client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1")
        client.create_bucket(Bucket="bucket")
        for path in Path("in").iterdir():
            client.upload_file(str(path), "bucket", f"data/in/{path.name}")
        client.upload_file("in/0000.parquet", "bucket", "data/in2/a/0.parquet")
        out = f"s3://bucket/data/out{options}"
        result = run("perturb", f"s3://bucket/data/in{options}", out, *AGE)
        assert result.code == 0, result.err
        assert "mean" in run("estimate", out, "--column", "age").out
        keys = [one["Key"] for one in client.list_objects_v2(Bucket="bucket", Prefix="data/out/")["Contents"]]
        Path("out").mkdir()
        for key in keys:
            client.download_file("bucket", key, f"out/{Path(key).name}")
        assert is_release(Path("out"), ages)
        assert "4 files" in run("certify", "--verify", f"out/{SIDECAR}").out
        assert NOTE not in names("out")
        assert "is not empty" in run("perturb", f"s3://bucket/data/in{options}", out, *AGE).err
        assert run("perturb", f"s3://bucket/data/*/a/*.parquet{options}", "found", *AGE).code == 0
        assert len(released(Path("found"))) == 500
        (part, *_) = plans.plan_parts(find(f"s3://bucket/data/in{options}").files, PARQUET)
        assert part.stamp[2]
        client.upload_file("in/0003.parquet", "bucket", "data/in/0000.parquet")
        with pytest.raises(ValueError, match="has changed"):
            part.check_unchanged()
    finally:
        server.stop()


# what is made of a release


@pytest.mark.lengthy
def test_what_a_dataset_says_is_what_its_reports_say_in_one_array(run: Run) -> None:
    write(Path("in"), files=7, rows=311)
    assert run("perturb", "in", "out", *AGE).code == 0
    options = ("--column", "age", "--confidence", "0.9", "--quantiles", "0.5", "--json")
    (found,) = json.loads(run("estimate", "out", *options).out)["estimates"]
    wanted = dpk.estimate(released(Path("out"))["age"].to_numpy(), MECHANISM)
    assert found["reports"] == 7 * 311
    for name, one in (("mean", wanted.mean), ("quantile_0.5", wanted.quantile(0.5))):
        np.testing.assert_allclose(found[name]["value"], one.value, rtol=1e-9)
        np.testing.assert_allclose(found[name]["interval"], one.interval(0.9), rtol=1e-9)
    assert "mean " in run("estimate", "out", "--column", "age").out
    assert "the perturbed columns are age" in run("estimate", "out", "--column", "id").err
    assert "is no release" in run("estimate", "in", "--column", "age").err
    assert "--sidecar: is for one file" in run("estimate", "out", "--sidecar", f"out/{SIDECAR}").err
    assert "--engine: runs the parts" in run("estimate", "in/0000.parquet", "--engine", "local").err


def test_groups_of_a_dataset_are_those_of_one_file(run: Run) -> None:
    """Whatever part comes first; and every limit is that of the whole."""
    Path("in").mkdir()
    random = np.random.default_rng(3)
    for at, cells in enumerate((["1.0", "b", "nan"], ["1", "10", "b"], ["2", "", "01"])):
        table = pa.table({"age": random.uniform(0, 120, 300), "plan": np.repeat(cells, 100)})
        pq.write_table(table, f"in/{at}.parquet")
    assert run("perturb", "in", "out", *AGE).code == 0
    pq.write_table(released(Path("out")), "one.parquet")
    select = partial(estimate.Selection.from_sidecar, column="age", group_column="plan", bounds=None)
    found = estimates.read("out", select, LocalEngine()).groups
    release, source = estimate.open_release(Path("one.parquet"), Path("out", SIDECAR))
    selection = select(release, source.names, "one.parquet")
    alone = selection.join([selection.tally(source)], "one.parquet").groups
    wanted = estimate.Selection("age", "plan", "hybrid", 1.0, found["b"].channel, keep=False, clip=False)
    parts = [estimate.Tally({cell: one.numbers}, 0) for cell, one in reversed(found.items())]
    groups = ["01", "1", "1.0", "2", "10", "", "b", "nan"]
    assert list(found) == list(alone) == list(wanted.join(parts, "out").groups) == groups
    assert [one.total for one in found.values()] == [100 + 100 * (group == "b") for group in groups]
    assert all((found[group].numbers == alone[group].numbers).all() for group in groups)


def test_too_many_groups_are_a_wrong_option_wherever_they_are_seen(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Path("in"), files=4, rows=30)
    assert run("perturb", "in", "out", *AGE).code == 0
    width = len(dpk.Counts(MECHANISM).numbers)
    for most in (10, 100):  # groups, of 30 in each part
        monkeypatch.setattr(estimate, "_MAX_COUNTS", most * width)
        result = run("estimate", "out", "--column", "age", "--by", "id")
        assert result.code == 2
        assert "--by: 'id' has too many groups" in result.err


def test_what_a_part_of_an_estimate_sends_is_small_and_is_joined_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Additive noise has a large channel: it goes to the parts once, and none of them sends it back."""
    mechanism = dpk.laplace(epsilon=1.0, sensitivity=1.0)
    channel = dpk.Counts(mechanism, bounds=(0.0, 120.0)).channel
    wanted = estimate.Selection("age", None, "laplace", 1.0, channel, keep=False, clip=False)
    ones, alive = np.ones(len(channel.reports), np.int64), list[weakref.ref[Any]]()

    def parts() -> Any:
        for _ in range(9):
            assert sum(one() is not None for one in alive) <= 1
            part = estimate.Tally({None: ones.copy()}, 0)
            assert len(pickle.dumps(part)) < ones.nbytes + 1000
            alive.append(weakref.ref(part.groups[None]))
            yield part
            del part

    found = wanted.join(parts(), "out")
    np.testing.assert_array_equal(found.groups[None].numbers, 9 * ones)


def test_a_number_that_is_no_report_is_named_by_its_row_of_the_file(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Path("in"), files=1, rows=1000, group=100)
    assert run("perturb", "in", "out", *AGE).code == 0
    table, path = released(Path("out")), Path("out/0000.parquet")
    reports = table["age"].to_numpy().copy()
    reports[777] = 1e6
    pq.write_table(table.set_column(1, "age", pa.array(reports)), path, row_group_size=100)
    payload = json.loads(Path("out", SIDECAR).read_text())
    payload["output"]["parts"][0] |= {
        "bytes": path.stat().st_size,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    Path("out", SIDECAR).write_text(json.dumps(payload))
    small_parts(monkeypatch)
    result = run("estimate", "out", "--column", "age")
    assert result.code == 1
    assert "row 777 is 1000000, which is not in" in result.err
    assert "0.parquet" in result.err


def test_a_part_of_another_release_is_no_part_of_this(run: Run) -> None:
    """Arrays of one shape have one size, whatever they hold."""
    np.save("in.npy", np.full(500, 60.0))
    Path("in").mkdir()
    Path("in.npy").rename("in/0.npy")
    for out in ("out", "other"):
        assert run("perturb", "in", out, *BOUNDS).code == 0
    Path("out/0.npy").write_bytes(Path("other/0.npy").read_bytes())
    result = run("estimate", "out")
    assert result.code == 4
    assert "0.npy: is not the file that was released, its SHA-256 is another" in result.err


@pytest.mark.parametrize(
    "change",
    [
        lambda form: form.update(rows=0, output={**form["output"], "parts": []}),
        lambda form: form.pop("columns"),
        lambda form: form.update(columns=[]),
        lambda form: form.update(columns=[{"column": ["age"]}]),
        lambda form: form.update(output=5),
        lambda form: form.update(rows="many"),
        lambda form: form.pop("values_per_row"),
        lambda form: form.update(layout=[]),
        lambda form: form["output"].update(parts=[]),
        lambda form: form["output"]["parts"][0].pop("sha256"),
        lambda form: form["output"]["parts"][0].update(name=7),
        lambda form: form["output"]["parts"][0].update(name="../in/0000.parquet"),
    ],
)
def test_a_damaged_sidecar_of_a_dataset_is_told_by_name(run: Run, change: Any) -> None:
    write(Path("in"), files=2, rows=20)
    assert run("perturb", "in", "out", *AGE).code == 0
    form = json.loads(Path("out", SIDECAR).read_text())
    change(form)
    Path("out", SIDECAR).write_text(json.dumps(form))
    result = run("estimate", "out", "--column", "age")
    assert result.code == 4
    told = "is not the sidecar of a release", "is not the file of", "its files have 40 rows, the release many"
    assert any(words in result.err for words in told)


def test_a_dataset_whose_sidecar_says_that_it_has_no_row_is_refused(run: Run) -> None:
    write(Path("in"), files=2, rows=20)
    assert run("perturb", "in", "out", *AGE).code == 0
    payload = json.loads(Path("out", SIDECAR).read_text())
    for part in payload["output"]["parts"]:
        part["rows"] = 0
    Path("out", SIDECAR).write_text(json.dumps(payload))
    assert_refused(run("estimate", "out", "--column", "age"), 4, "out: its files have no row, the release 40")


def test_files_are_hashed_as_streams_in_few_reads(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a store of objects every read is a request."""
    Path("in").mkdir()
    np.save("in/0.npy", np.full(1 << 17, 60.0))
    assert run("perturb", "in", "out", *BOUNDS).code == 0
    asked = list[int]()

    class Noted(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            asked.append(size)
            return super().read(size)

    monkeypatch.setattr(Location, "read", lambda place: Noted(Path(place.path).read_bytes()))
    monkeypatch.setattr(Location, "opened", lambda place: pytest.fail(f"{place}: is open for random access"))
    assert run("estimate", "out").code == 0
    assert asked == [-1, 1 << 22, 1 << 22]  # The sidecar, the file, and its end.


def test_a_release_of_many_files_is_verified(run: Run) -> None:
    write(Path("in"), files=3, rows=100)
    assert run("perturb", "in", "out", *AGE).code == 0
    sidecar = Path("out", SIDECAR)
    assert "3 files" in run("certify", "--verify", sidecar).out
    assert run("certify", "--verify", sidecar).code == 0
    part, text = Path("out/0001.parquet"), sidecar.read_text()
    good = part.read_bytes()
    part.write_bytes(good[:-9] + b"x" + good[-8:])
    assert "sha256" in run("certify", "--verify", sidecar).err
    part.write_bytes(good)
    sidecar.write_text(text.replace('"rows": 300', '"rows": 301'))
    assert "rows" in run("certify", "--verify", sidecar).err
    sidecar.write_text(text.replace("0001.parquet", "../0001.parquet"))
    assert "is not the name of a file" in run("certify", "--verify", sidecar).err
    twice = json.loads(text)
    twice["output"]["parts"][2] = twice["output"]["parts"][1]
    sidecar.write_text(json.dumps(twice))
    assert "is named twice" in run("certify", "--verify", sidecar).err
    sidecar.write_text(text)
    part.unlink()
    assert run("estimate", "out", "--column", "age").code == 1


def _another_part(out: Path) -> None:
    (out / "0003.parquet").write_bytes((out / "0000.parquet").read_bytes())


FOLDERS: dict[str, tuple[list[Any], list[str]]] = {
    "a part is missing": ([lambda out: (out / "0001.parquet").unlink()], ["0001.parquet: is not there"]),
    "a part is altered": ([lambda out: _altered(out / "0001.parquet")], ["output: sha256", "0001.parquet"]),
    "one is missing, one altered": (
        [lambda out: (out / "0000.parquet").unlink(), lambda out: _altered(out / "0002.parquet")],
        ["0000.parquet: is not there", "output: sha256", "0002.parquet"],
    ),
    "two are altered": (
        [lambda out: _altered(out / "0000.parquet"), lambda out: _altered(out / "0002.parquet")],
        ["0000.parquet", "0002.parquet"],
    ),
    "one more": ([_another_part], ["0003.parquet: is in the folder of the release"]),
    "a folder more": ([lambda out: (out / "more").mkdir()], ["more: is in the folder of the release"]),
    "a note": ([lambda out: (out / NOTE).touch()], [f"{NOTE}: is in the folder of the release"]),
    "a pipe": (
        [lambda out: (out / "0001.parquet").unlink(), lambda out: os.mkfifo(out / "0001.parquet")],
        ["0001.parquet: is not a file"],
    ),
    "no part": ([lambda out: [one.unlink() for one in out.glob("0*")]], [f"{at:04}.parquet" for at in range(3)]),
}


def _altered(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-9] + b"x" + content[-8:])


@pytest.mark.parametrize("case", FOLDERS)
def test_every_part_of_a_release_is_verified(run: Run, case: str) -> None:
    changes, words = FOLDERS[case]
    write(Path("in"), files=3, rows=20)
    assert run("perturb", "in", "out", *AGE).code == 0
    for change in changes:
        change(Path("out"))
    assert_refused(run("certify", "--verify", Path("out", SIDECAR)), 4, *words)


# what is read and what is not


def test_names_that_are_not_read_are_named(run: Run) -> None:
    write(Path("in"), files=2, rows=10)
    for name in ("_SUCCESS", ".hidden.parquet", "_more.parquet"):
        Path("in", name).write_text("x")
    Path("in/.folder").mkdir()
    done = run("perturb", "in", "out", *AGE)
    assert done.code == 0
    names_ = ".folder, .hidden.parquet, _SUCCESS, _more.parquet"
    assert done.err == f"dpkernels: warning: IN: of in these are not read (names that begin with . or _): {names_}\n"
    Path("more").mkdir()
    write(Path("more/in"), files=2, rows=10)
    Path("more/0.parquet").write_bytes(Path("in/0000.parquet").read_bytes())
    done = run("perturb", "more/*", "out2", *AGE)
    assert (
        done.err
        == "dpkernels: warning: IN: of more/* these are not read (folders, which a pattern does not read): more/in\n"
    )
    done = run("perturb", "more/**", "out3", *AGE)
    assert (done.code, done.err) == (0, "")
    assert len(released(Path("out3"))) == 30


UNREADABLE: dict[str, tuple[Any, str]] = {
    "a dangling link": (lambda path: path.symlink_to("nowhere"), "is a link that leads nowhere"),
    "a loop of links": (lambda path: path.symlink_to(path.name), "cannot be read (Too many levels of symbolic links)"),
    "a pipe": (lambda path: os.mkfifo(path), "is a pipe"),
    "a device": (lambda path: path.symlink_to("/dev/null"), "is a device"),
}


@pytest.mark.parametrize("case", UNREADABLE)
@pytest.mark.parametrize("named", ["in", "in/*.parquet", "*/*.parquet", "**/*.parquet"])
def test_what_is_no_file_is_refused_and_not_skipped(run: Run, case: str, named: str) -> None:
    make, words = UNREADABLE[case]
    write(Path("in"), files=2, rows=10)
    make(Path("in/0001b.parquet"))
    assert_refused(run("perturb", named, "out", *AGE), 2, "0001b.parquet", words)
    assert names() == ["in"]


def test_folders_on_the_way_of_a_pattern(run: Run) -> None:
    write(Path("a"), files=1, rows=10)
    Path("b").symlink_to("nowhere")
    for pattern in ("*/*.parquet", "**/*.parquet"):
        assert_refused(run("perturb", pattern, "out", *AGE), 2, "b is a link that leads nowhere")
    Path("b").unlink()
    Path("a/up").symlink_to("..")
    assert_refused(run("perturb", "**/*.parquet", "out", *AGE), 2, "leads into itself")
    Path("a/up").unlink()
    Path("b").symlink_to("a")  # is read like a folder
    Path(".c").symlink_to("a")
    assert run("perturb", "**/*.parquet", "out", *AGE).code == 2  # and the next run would read out
    assert [one.path for one in find("**/*.parquet").files] == [
        str(Path(name, "0000.parquet").absolute()) for name in "ab"
    ]
    assert [one.name for one in find("[ab]/*").files] == ["0000.parquet"] * 2
    assert [one.name for one in find(".c/*").files] == ["0000.parquet"]
    assert [one.name for one in find("a/?000.*").files] == ["0000.parquet"]


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("in", "in/out", "is in the folder of the input"),
        ("in/", "./in/../in/out", "is in the folder of the input"),
        ("file://{}/in", "in/out", "is in the folder of the input"),
        ("link", "in/out", "is in the folder of the input"),
        ("**/*.parquet", "out", "the next run would read them"),
        ("**", "out", "the next run would read them"),
        ("*/*", "out", "the next run would read them"),
        ("in/*.parquet", "in/out", ""),
        ("in/0*.parquet", "in/out", ""),
        ("in", "-", "OUT: - is for one file"),
        ("", "out", "an empty name"),
        ("in", "", "an empty name"),
    ],
)
def test_an_output_is_not_where_the_input_is(run: Run, tmp_path: Path, source: str, target: str, words: str) -> None:
    write(Path("in"), files=2, rows=10)
    Path("link").symlink_to("in")
    done = run("perturb", source.format(tmp_path), target, *AGE)
    assert done.code == (2 if words else 0), done.err
    assert words in done.err
    if words:
        assert names() == ["in", "link"]
        assert names("in") == ["0000.parquet", "0001.parquet"]


@pytest.mark.parametrize("place", ["out/people.ledger", "in/people.ledger", "./in/../out/l", "link/l"])
def test_a_ledger_is_not_in_a_folder_of_the_release(run: Run, place: str) -> None:
    write(Path("in"), files=2, rows=10)
    Path("out").mkdir()
    Path("link").symlink_to("out")
    done = run("perturb", "in", "out", *AGE, "--ledger", place, "--budget", "3")
    assert_refused(done, 2, "--ledger: ", "a folder of the release; keep it elsewhere")
    assert names("out") == []
    assert names("in") == ["0000.parquet", "0001.parquet"]


def test_arrays_of_other_types_are_no_dataset(run: Run) -> None:
    Path("in").mkdir()
    np.save("in/0.npy", np.full(5, 60.0))
    np.save("in/1.npy", np.full(5, 60.0, np.float32))
    assert_refused(run("perturb", "in", "out", *BOUNDS), 1, "1.npy: hold other types, float64 and float32")
    np.save("in/1.npy", np.full(5, 60.0, ">f8"))
    assert run("perturb", "in", "out", *BOUNDS).code == 0


# what is said


def test_a_summary_does_not_recommend_what_a_dataset_refuses(run: Run) -> None:
    write(Path("in"), files=2, rows=10)
    assert "--shuffle-rows" not in run("perturb", "in", "out", *AGE).out
    assert "--shuffle-rows prevents this" in run("perturb", "in/0000.parquet", "out.parquet", *AGE).out


def test_a_part_whose_values_are_all_missing(run: Run) -> None:
    write(Path("in"), files=2, rows=10)
    pq.write_table(pa.table({"id": np.arange(10), "age": np.full(10, np.nan)}), "in/0001.parquet")
    done = run("perturb", "in", "out", *AGE, "--missing", "drop")
    assert "not kept of the file: the row groups of a file whose rows were all dropped\n" in done.out
    assert run("certify", "--verify", Path("out", SIDECAR)).code == 0
    assert len(released(Path("out"))) == 10
    pq.write_table(pa.table({"id": np.arange(10), "age": np.full(10, np.nan)}), "in/0000.parquet")
    assert_refused(run("perturb", "in", "out2", *AGE, "--missing", "drop"), 1, "every row of the dataset has a")


def test_a_part_that_comes_back_without_a_file_is_no_release(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that loses the key of a part has it checked, and not perturbed."""
    write(Path("in"), files=2, rows=10)

    def keyless(task: Any, job: Any, secret: Secret | None, part: Any) -> Any:
        return run_task(task, job, None if part.number else secret, part)

    monkeypatch.setattr("dpkernels.cli.dataset.engines.run_task", keyless)
    assert_refused(run("perturb", "in", "out", *AGE), 1, "out: 1 files were written for 2 parts of the release")
    assert not Path("out").exists()


def test_a_full_disk_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Path("in"), files=1, rows=10)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dpkernels.cli.files.parquet.ParquetSink.write", full)
    done = run("perturb", "in", "out", *AGE)
    assert_refused(done, 5, "in/0000.parquet to 0000.parquet: No space left on device")


def test_a_sidecar_that_is_not_utf_8_is_named(run: Run) -> None:
    write(Path("in"), files=1, rows=10)
    Path("in", SIDECAR).write_bytes(b"\xff")
    assert_refused(run("estimate", "in", "--column", "age"), 4, f"{SIDECAR}: is not the sidecar of a release")


def test_threads_are_few_and_parts_are_not_held(tmp_path: Path) -> None:
    """The engine asks for parts as threads become free."""
    asked = list[int]()
    write(tmp_path / "in", files=1)
    (part,) = plans.plan_parts(find(str(tmp_path / "in")).files, PARQUET)

    def parts() -> Any:
        for number in range(50):
            asked.append(number)
            yield part

    for done, _ in enumerate(LocalEngine(2).map_unordered(lambda *_: 1, job(None, 1), None, parts())):
        assert len(asked) <= done + 3


def test_the_example_by_hand(tmp_path: Path) -> None:
    """The page's function, which Spark would call, on parts that are run twice and in any order."""
    text = Path(__file__).parents[3].joinpath("docs", "many_machines.md").read_text()
    page: dict[str, Any] = {}
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], page)
    ages = write(tmp_path / "in", files=3, rows=200, group=64)
    listed = [
        dict(zip(("path", "group", "start"), one, strict=True))
        for one in page["parts"](map(str, (tmp_path / "in").iterdir()))
    ]
    (tmp_path / "out").mkdir()
    for part in [*listed[::-1], listed[5]]:
        batch = pa.RecordBatch.from_pylist([part])
        (said,) = page["released"](iter([batch]), SECRET, str(tmp_path / "out"))
        assert said.to_pylist()[0]["path"].startswith(str(tmp_path))
    wanted = dpk.perturb(pa.table({"age": ages}), page["MECHANISMS"], key=dpk.key_from_bytes(SECRET))
    assert released(tmp_path / "out")["age"].to_pylist() == wanted["age"].to_pylist()
