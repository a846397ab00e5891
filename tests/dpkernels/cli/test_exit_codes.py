"""Exit codes of every subcommand, and what is said before a second release and before a charge that cannot be used."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import sqlite3
import subprocess
from collections import namedtuple
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_helpers import AGE, COLUMN, COMMAND, GOOD_CSV, Run, assert_nothing_but, assert_refused, command

from dpkernels import staging
from dpkernels.budgets.filters import BudgetExceeded
from dpkernels.budgets.ledger import Ledger, UnsoundError
from dpkernels.cli import commands, errors
from dpkernels.cli.files.layout import input_layout
from dpkernels.cli.files.opening import open_source
from dpkernels.exact.certificate import CertificateError
from dpkernels.staging import TakenError, claimed

run = pytest.fixture(command, name="run")

RELEASE = ["perturb", "in.csv", "out.csv", *COLUMN, *AGE]
LEDGER = ["--ledger", "people.ledger"]
BOUNDS = ["--lower", "0", "--upper", "120", "--epsilon", "1"]


def _full(*_: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def _damaged() -> None:
    content = bytearray(Path("people.ledger").read_bytes())
    content[: len(b"SQLite format 3")] = b"no database....."[: len(b"SQLite format 3")]
    Path("people.ledger").write_bytes(content)


# By subcommand, the codes that it can end with: what happens before, and what is typed.
Case = tuple[int, Callable[[pytest.MonkeyPatch], Any] | None, list[str]]
CASES: dict[str, list[Case]] = {
    "account": [
        (0, None, ["laplace", "--sensitivity", "1", "--epsilon", "1"]),
        (2, None, ["laplace", "--epsilon", "1"]),
        (5, lambda patch: patch.setattr(staging.os, "fsync", _full), ["duchi", *BOUNDS, "--plot", "a.png"]),
    ],
    "certify": [
        (0, None, ["--verify", "old.csv.json"]),
        (1, lambda _: Path("old.csv").chmod(0), ["--verify", "old.csv.json"]),
        (2, None, ["--verify", "none.json"]),
        (4, lambda _: Path("old.csv").unlink(), ["--verify", "old.csv.json"]),
        (4, lambda _: Path("old.csv").write_text(GOOD_CSV), ["--verify", "old.csv.json"]),
        (4, lambda _: Path("old.csv.json").write_text("{}"), ["--verify", "old.csv.json"]),
    ],
    "compare": [(0, None, BOUNDS), (2, None, ["--epsilon", "0", "--lower", "0", "--upper", "1"])],
    "estimate": [
        (0, None, ["many.csv"]),
        (1, None, ["old.csv"]),
        (2, None, ["none.csv"]),
        (4, lambda _: Path("old.csv").write_text(GOOD_CSV), ["old.csv"]),
    ],
    "explore": [
        (0, None, ["--print"]),
        (1, lambda patch: patch.setattr("webbrowser.open", lambda _: False), []),
        (2, None, ["--output", "none/page.html"]),
        (5, lambda patch: patch.setattr(staging.os, "fsync", _full), ["--output", "page.html"]),
    ],
    "ledger": [
        (0, None, ["people.ledger"]),
        (2, None, ["none.ledger"]),
        (4, lambda _: _damaged(), ["people.ledger"]),
        (4, lambda _: Path("people.ledger").write_bytes(b""), ["people.ledger"]),
    ],
    "mechanisms": [(0, None, []), (2, None, ["more"])],
    "perturb": [
        (0, None, RELEASE[1:]),
        (1, lambda _: Path("in.csv").write_text("id,age\nx,none\n"), RELEASE[1:]),
        (2, None, RELEASE[1:-1]),
        (3, None, [*RELEASE[1:], *LEDGER]),
        (3, None, [*RELEASE[1:], *LEDGER, "--check"]),
        (4, lambda _: _damaged(), [*RELEASE[1:], *LEDGER]),
        (5, lambda patch: patch.setattr(staging.os, "fsync", _full), RELEASE[1:]),
    ],
    "release": [
        (0, None, ["in.csv", "out.csv", "--count", "--epsilon", "1"]),
        (2, None, ["in.csv", "out.csv", "--epsilon", "1"]),
    ],
    "tune": [(0, None, [*BOUNDS, "--objective", "distribution", "--reports", "9"]), (2, None, ["--epsilon", "1"])],
}  # fmt: skip


@pytest.mark.lengthy
@pytest.mark.parametrize("more", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize("name", sorted(commands.dpkernels.commands))
def test_every_subcommand_ends_with_the_code_of_its_failure(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str, more: list[str]
) -> None:
    if name == "tune":
        monkeypatch.setattr("accountants.tune.best", lambda *_: (_ for _ in ()).throw(ValueError("none")))
    for code, before, arguments in CASES[name]:
        for path in Path().iterdir():
            path.unlink()
        Path("in.csv").write_text(GOOD_CSV)
        Path("m.csv").write_text("age\n" + "5\n" * 500)
        assert run("perturb", "in.csv", "old.csv", *COLUMN, *AGE).code == 0
        assert run("perturb", "m.csv", "many.csv", *COLUMN, *AGE).code == 0
        Ledger.create("people.ledger", 1).charge(0.5)
        with monkeypatch.context() as patch:
            if before is not None:
                before(patch)
            if name == "certify" and code == 1 and os.geteuid() == 0:
                continue  # who may read every file
            if name == "tune" and code == 0:
                continue  # searches are not repeated here
            done = run(name, *arguments, *more)
        assert done.code == code, (arguments, done)
        assert bool(done.err.count("error: ")) == bool(code)
        if more:
            payload = json.loads(done.out)
            assert not code or payload["code"] == code, (arguments, payload)
            assert ("error" in payload) == bool(code)


def test_codes_are_explained_by_help_and_the_page(run: Run) -> None:
    page = (Path(__file__).parents[3] / "docs/releasing.md").read_text()
    for code in range(6):
        assert f"\n  {code}  " in run("--help").out.replace("\n    ", "\n  ")
        assert f"\n| {code} |" in page


def test_codes_are_those_of_the_classes_that_they_name() -> None:
    """The table has names, since a light command does not load the classes."""
    classes = BudgetExceeded, CertificateError, UnsoundError, TakenError
    assert {one.__name__ for one in classes} == set(errors._CODES)
    busy, full, damaged = (getattr(sqlite3, f"SQLITE_{name}") for name in ("BUSY", "FULL", "CORRUPT"))
    assert {busy, sqlite3.SQLITE_LOCKED, full} == errors._PASSING_IN_SQLITE
    assert {damaged, sqlite3.SQLITE_NOTADB} == errors._DAMAGED_IN_SQLITE


@pytest.mark.parametrize("held", ["output", "ledger"])
def test_a_file_that_another_process_holds_is_to_be_tried_again(
    run: Run, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    Ledger.create("people.ledger", 5)
    monkeypatch.setattr("dpkernels.cli.ledger.Ledger", lambda path: Ledger(path, timeout=0.01))
    if held == "output":
        with claimed(Path("out.csv")):
            assert_refused(run(*RELEASE, *LEDGER), 5, "out.csv: another process is writing it")
    else:
        with closing(sqlite3.connect("people.ledger", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert_refused(run(*RELEASE, *LEDGER), 5, "people.ledger: other processes held it", "nothing was charged")
    assert run(*RELEASE, *LEDGER).code == 0


def test_a_failure_that_keeps_its_charge_is_not_to_be_tried_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    monkeypatch.setattr("dpkernels.cli.files.delimited._texts", _full)
    done = run(*RELEASE, *LEDGER, "--budget", "5")
    assert_refused(done, 1, "No space left on device (charge 1 of epsilon 1, delta 0 stays in people.ledger: ")


# A disk without room


Usage = namedtuple("Usage", "total used free")


def test_a_disk_without_room_is_found_before_the_charge(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("in.csv").write_text("age\n" + "5\n" * 1000)
    Path("in").mkdir()
    for number in range(3):
        shutil.copy("in.csv", f"in/{number}.csv")
    Ledger.create("people.ledger", 5)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 30, 1 << 30, 5000))
    for source, target in (("in.csv", "out.csv"), ("in", "out"), ("in.csv", "-")):
        more = ["--sidecar", "out.json"] if target == "-" else []
        done = run("perturb", source, target, *more, *COLUMN, *AGE, *LEDGER)
        assert_refused(done, 5, "the disk has 5000 bytes left, and about ")
    assert Ledger("people.ledger").state().entries == ()
    assert_nothing_but("in", "in.csv", "people.ledger")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 30, 1 << 30, 50_000))
    assert run("perturb", "in.csv", "out.csv", *COLUMN, *AGE, *LEDGER).code == 0


def test_sizes_of_outputs_are_estimated(run: Run) -> None:
    ages = np.random.default_rng(3).integers(0, 120, 20_000)
    Path("in.csv").write_text("age,id\n" + "".join(f"{age},p{row}\n" for row, age in enumerate(ages)))
    pq.write_table(pa.table({"age": ages, "id": [f"p{row}" for row in range(len(ages))]}), "in.parquet")
    np.save("in.npy", ages)
    for suffix, name in ((".csv", "age"), (".parquet", "age"), (".npy", None), (".csv.gz", "age")):
        source, target = Path("in" + suffix.removesuffix(".gz")), Path("out" + suffix)
        estimate = open_source(source, input_layout(source, target, None, None, False)).output_bytes([name])
        column = [] if name is None else COLUMN
        assert run("perturb", source, target, *column, *AGE, "--mechanism", "piecewise", "--quiet").code == 0
        size = target.stat().st_size
        assert 0.5 * size < estimate < 2 * size, suffix


# A second release


@pytest.mark.parametrize("more", [[], ["--json"], ["--quiet"]])
def test_a_release_that_replaces_another_one_warns_of_the_sum(run: Run, more: list[str]) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    assert run(*RELEASE, "--force").err == ""
    done = run(*RELEASE, "--force", *more)
    assert done.code == 0
    assert done.err.startswith("dpkernels: warning: out.csv was a release before. ")
    assert "add up" in done.err
    assert run(*RELEASE, "--force", *LEDGER, "--budget", "5", *more).err == "", "the ledger has the sum"


# Standard output, and files that may be open


@pytest.mark.lengthy
def test_a_broken_pipe_says_what_was_charged(run: Run) -> None:
    Path("in.csv").write_text("age\n" + "5\n" * 500)
    Ledger.create("people.ledger", 5)
    for ledger, says in (([], ""), (LEDGER, "charge 1 of epsilon 1, delta 0 stays in people.ledger: ")):
        read, written = os.pipe()
        os.close(read)
        arguments = ["perturb", "in.csv", "-", "--sidecar", "out.json", *COLUMN, *AGE, *ledger]
        done = subprocess.run([*COMMAND, *arguments], stdout=written, stderr=subprocess.PIPE, text=True, timeout=60)
        os.close(written)
        assert done.returncode == 1
        assert says in done.stderr
        assert done.stderr.count("\n") == bool(ledger)


def test_too_few_files_that_may_be_open_are_named_as_the_cause(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the file that happened to be opened next being blamed."""
    Path("in").mkdir()
    for number in range(20):
        Path(f"in/{number}.csv").write_text(GOOD_CSV)
    assert run("perturb", "in", "first", *COLUMN, *AGE).code == 0  # which imports everything
    limits, held = resource.getrlimit(resource.RLIMIT_NOFILE), []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        os.close(held.pop())
        os.close(held.pop())
        done = run("perturb", "in", "second", *COLUMN, *AGE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in held:
            os.close(descriptor)
    assert_refused(
        done, 5, "error: too many open files: this process reached its limit of 256; raise it with ulimit -n"
    )
