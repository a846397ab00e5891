"""Ledgers: kill -9, races, full disks, damaged files; and the command that charges one."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_helpers import (
    AGE,
    GOOD_CSV,
    Result,
    Run,
    ages,
    assert_nothing_but,
    assert_refused,
    begun,
    command,
    read,
    write,
)
from ledger_helpers import LEDGER, READ_ONLY, SMALL, STOPPING, forged, light, shown, some_charges, sql

from dpkernels.budgets import ledger as ledger_module
from dpkernels.budgets.filters import BudgetExceeded, EpsilonDelta, Filter, format_amount
from dpkernels.budgets.ledger import Ledger, LedgerError

run = pytest.fixture(command, name="run")


# What it is


def outcome(budget: Any, price: tuple[float, ...]) -> str:
    """Why a charge was refused; nothing if it was not."""
    try:
        budget.charge(*price)
    except BudgetExceeded as refused:
        return str(refused)
    return ""


def test_charges_are_what_a_filter_grants(tmp_path: Path) -> None:
    source, model = random.Random(5), Filter(1, 1e-3)
    Ledger.create(tmp_path / "a", 1, 1e-3)
    for _ in range(40):
        price = round(source.uniform(0, 0.2), source.randrange(1, 9)), round(source.uniform(0, 1e-4), 8)
        ledger = Ledger(tmp_path / "a")
        expected, found = outcome(model, price), outcome(ledger, price)
        assert found == (expected and f"{tmp_path / 'a'}: {expected}")
        assert ledger.state().spent == model.spent
        assert ledger.state().left == model.left
    assert [entry.amounts for entry in ledger.state().entries] == [charge.amounts for charge in model.charges]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_ten_tenths_are_one(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "a", 1)
    for _ in range(10):
        ledger.charge(0.1)
    assert ledger.state().left == EpsilonDelta()
    with pytest.raises(BudgetExceeded, match=r"left epsilon 0, delta 0 \(budget epsilon 1, .*nothing was charged"):
        ledger.charge(0.1)


def test_another_budget_is_an_error_and_the_same_is_not(tmp_path: Path) -> None:
    some_charges(tmp_path / "a")
    assert len(Ledger.create(tmp_path / "a", 1.0, Fraction(1, 10**6)).state().entries) == 5
    with pytest.raises(LedgerError, match="a: has a budget of epsilon 1, delta 1e-06, not of epsilon 2, delta 0; "):
        Ledger.create(tmp_path / "a", 2)
    for less in ((0.5, 1e-6), (1.0, 1e-7), (1.0,)):
        with pytest.raises(LedgerError, match="a: has a budget of epsilon 1, delta 1e-06, not of"):
            Ledger.create(tmp_path / "a", *less)
    with pytest.raises(FileNotFoundError):
        Ledger(tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("price", [(-0.1,), (float("nan"),), (0.1, -1e-9), (Fraction(1, 3),), (Fraction(1, 10**900),)])
def test_wrong_charges_charge_nothing(tmp_path: Path, price: tuple[Any, ...]) -> None:
    ledger = some_charges(tmp_path / "a")
    with pytest.raises(ValueError, match=r"is not a finite number|has no short decimal"):
        ledger.charge(*price)
    with pytest.raises(UnicodeEncodeError):
        ledger.charge(0.1, 0, "\udce9")
    assert len(ledger.state().entries) == 5


def test_names_and_labels_of_every_kind(tmp_path: Path) -> None:
    path = tmp_path / "a ?x=1&#%20é.db"
    labels = ["", "Zoë\n\0", "'; DROP TABLE charges; --", "x" * 100_000]
    ledger = Ledger.create(path, 1)
    for label in labels:
        ledger.charge(0.1, label=label)
    assert [entry.label for entry in Ledger(path).state().entries] == labels
    assert [path.name for path in tmp_path.iterdir()] == [path.name]


def test_a_commit_is_durable_when_it_returns(tmp_path: Path) -> None:
    """EXTRA: the deletion of the journal, which is the commit, is on the disk as well."""
    some_charges(tmp_path / "a")
    with ledger_module._transaction(tmp_path / "a", "DEFERRED", 1.0) as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (3,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)


# Processes that die and processes that race

KILLED = """
path, rounds = sys.argv[1], int(sys.argv[2])
source, begun = random.Random(11), time.monotonic()
granted = [Ledger.create(path, 0.5).charge(0.001).entries[-1].id]
pause = min(6 * (time.monotonic() - begun), 0.3)
for number in range(rounds):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            while True:
                after = Ledger.create(path, 0.5).charge(0.001, label=f"of {number}")
                os.write(writing, f"{after.entries[-1].id} ".encode())
        except BudgetExceeded:
            os._exit(0)
    os.close(writing)
    first = os.read(reading, 1)  # Every child has been granted a charge, or finds the budget exhausted.
    time.sleep(source.uniform(0, pause))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as said:
        granted += map(int, (first + said.read()).split())
    Ledger(path)
print(json.dumps(granted))
"""


def test_kill_9_at_random_moments(tmp_path: Path) -> None:
    granted = light(KILLED, tmp_path / "a", 45)
    statement = Ledger(tmp_path / "a").state()
    assert len(granted) == len(set(granted)) > 45
    assert set(granted) <= {entry.id for entry in statement.entries}
    assert len(granted) <= len(statement.entries) <= len(granted) + 45
    assert statement.spent.epsilon == Fraction(len(statement.entries), 1000) <= Fraction(1, 2)


STOPPED = (
    STOPPING
    + """
for word in ("INSERT", "UPDATE", "COMMIT"):
    child = os.fork()
    if child == 0:
        ledger = Ledger(path)
        sqlite3.connect = stopping(word)
        ledger.charge(0.1)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert len(Ledger(path).state().entries) == 5
print(json.dumps("done"))
"""
)


def test_kill_9_before_every_step_of_a_charge(tmp_path: Path) -> None:
    some_charges(tmp_path / "a")
    assert light(STOPPED, tmp_path / "a") == "done"
    assert len(some_charges(tmp_path / "a", 1).state().entries) == 6


def test_a_journal_that_a_dead_process_left_is_rolled_back(tmp_path: Path) -> None:
    """The moment before a commit: pages written, the journal still there. Nobody was told that this was charged."""
    expected = some_charges(tmp_path / "a").state()
    before = (tmp_path / "a").read_bytes()
    writer = sqlite3.connect(tmp_path / "a", isolation_level=None)
    writer.execute("PRAGMA cache_size = 1")  # so that pages are written before the commit
    writer.execute("BEGIN")
    ledger_module._write(writer, expected.next("now", "x" * 50_000, EpsilonDelta(Fraction(1, 10))))
    for ending in ("", "-journal"):
        shutil.copy(tmp_path / f"a{ending}", tmp_path / f"b{ending}")
    writer.close()
    assert (tmp_path / "b").stat().st_size > len(before)
    assert Ledger(tmp_path / "b").state() == expected
    assert (tmp_path / "b").read_bytes() == before
    assert not (tmp_path / "b-journal").exists()


RACE = """
path, writers, price = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
reading, writing = os.pipe()
for number in range(writers):
    if os.fork() == 0:
        try:
            while True:
                ledger = Ledger.create(path, 1, 0.5, timeout=60)
                os.write(writing, f"{number} {ledger.charge(price).entries[-1].id},".encode())
        except BudgetExceeded:
            os._exit(0)
        except BaseException as error:
            os.write(writing, f"{error!r},".encode())
            os._exit(1)
ends = [os.wait()[1] for _ in range(writers)]
os.close(writing)
with os.fdopen(reading) as said:
    print(json.dumps([ends, said.read().rstrip(",").split(",")]))
"""


@pytest.mark.lengthy
@pytest.mark.parametrize(("writers", "price"), [(2, 0.03), (4, 0.021)])
def test_racing_processes_spend_exactly_what_there_is(tmp_path: Path, writers: int, price: float) -> None:
    ends, granted = light(RACE, tmp_path / "a", writers, price)
    assert ends == [0] * writers, granted
    statement, most = Ledger(tmp_path / "a").state(), Fraction(1) // Fraction(repr(price))
    assert len(granted) == len(statement.entries) == most
    assert sorted(int(words.split()[1]) for words in granted) == list(range(1, most + 1))
    assert 0 <= statement.left.epsilon < Fraction(repr(price))
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_threads_share_a_ledger(tmp_path: Path) -> None:
    ledger, granted = Ledger.create(tmp_path / "a", 1, timeout=60), []

    def spend() -> None:
        while True:
            try:
                granted.append(ledger.charge(0.07).entries[-1].id)
            except BudgetExceeded:
                return

    threads = [threading.Thread(target=spend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(granted) == list(range(1, 15))


def test_a_ledger_that_is_held_too_long(tmp_path: Path) -> None:
    some_charges(tmp_path / "a")
    ledger = Ledger(tmp_path / "a", timeout=0.1)
    other = sqlite3.connect(tmp_path / "a", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match=r"a: other processes held it for 0.1 s; nothing was charged"):
        ledger.charge(0.1)
    assert len(ledger.state().entries) == 5
    other.execute("ROLLBACK")
    other.close()
    assert len(ledger.charge(0.1).entries) == 6


# Disks and folders

FULL = """
import resource
path = sys.argv[1]
ledger = Ledger.create(path, 10)
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
granted = []
try:
    while True:
        granted.append(ledger.charge(0.001, label="x" * 700).entries[-1].id)
except LedgerError as error:
    print(json.dumps([granted, str(error), os.listdir(os.path.dirname(path))]))
"""


def test_a_full_disk_charges_nothing(tmp_path: Path) -> None:
    granted, message, names = light(FULL, tmp_path / "a")
    assert 5 < len(granted) < 60
    assert message.startswith(f"{tmp_path / 'a'}: reading or writing failed (disk I/O error)")
    ledger = Ledger(tmp_path / "a")
    assert names == ["a"]
    assert [entry.id for entry in ledger.state().entries] == granted
    assert len(ledger.charge(0.001, label="x" * 700).entries) == len(granted) + 1


def test_a_database_that_may_not_grow_charges_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = some_charges(tmp_path / "a")
    monkeypatch.setattr(ledger_module, "_SETTINGS", (*ledger_module._SETTINGS, "max_page_count = 3"))
    with pytest.raises(LedgerError, match=r"the disk is full .*nothing was charged"):
        ledger.charge(0.1, label="x" * 10_000)
    assert len(ledger.state().entries) == 5
    monkeypatch.undo()
    assert len(ledger.charge(0.1, label="x" * 10_000).entries) == 6


def test_no_room_for_a_new_ledger_leaves_nothing(tmp_path: Path) -> None:
    script = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))
try: Ledger.create(sys.argv[1], 1)
except LedgerError as error: print(json.dumps(str(error)))
"""
    assert "a: reading or writing failed" in light(script, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written() -> None:
    with tempfile.TemporaryDirectory() as name:
        some_charges(Path(name) / "a")
        Path(name).chmod(0o555)
        try:
            count, charging, making = light(READ_ONLY, name)
        finally:
            Path(name).chmod(0o755)
        assert count == 5
        assert charging.startswith(f"{name}/a: cannot be ")
        assert "nothing was charged" in charging
        assert making.startswith(f"{name}/b: cannot be ")
        assert len(Ledger(f"{name}/a").state().entries) == 5


# Damage


def assert_sound_or_refused(path: Path, expected: Any) -> bool:
    """A damaged file is refused by name, or nothing of what it means has changed. Says whether it was refused."""
    problem = ""
    try:
        assert Ledger(path).state() == expected
    except LedgerError as error:
        problem = str(error)
        with pytest.raises(LedgerError):
            Ledger.create(path, 1, 1e-6)
    assert not problem or problem.startswith(f"{path}: ")
    return bool(problem)


def test_truncated_files(tmp_path: Path) -> None:
    expected = some_charges(tmp_path / "a").state()
    content = (tmp_path / "a").read_bytes()
    for length in [*range(0, len(content), 97), len(content) - 1, 4096, 8192]:
        (tmp_path / "b").write_bytes(content[:length])
        assert assert_sound_or_refused(tmp_path / "b", expected)


def test_flipped_bytes(tmp_path: Path) -> None:
    expected = some_charges(tmp_path / "a").state()
    content, source, refused = (tmp_path / "a").read_bytes(), random.Random(2), 0
    used = [at for at, byte in enumerate(content) if byte]
    for at in [*range(100), *source.sample(used, 250), *source.sample(range(len(content)), 50)]:
        damaged = bytearray(content)
        damaged[at] ^= source.randrange(1, 256)
        (tmp_path / "b").write_bytes(damaged)
        refused += assert_sound_or_refused(tmp_path / "b", expected)
        for name in ("b", "b-journal", "b-wal", "b-shm"):
            (tmp_path / name).unlink(missing_ok=True)
    assert refused > 200


def test_a_file_that_still_reads_can_be_charged_and_then_reads(tmp_path: Path) -> None:
    """Damage that changes no meaning must not become damage by writing."""
    some_charges(tmp_path / "a")
    content, source = (tmp_path / "a").read_bytes(), random.Random(3)
    for at in range(100):
        damaged = bytearray(content)
        damaged[at] ^= source.randrange(1, 256)
        (tmp_path / "b").write_bytes(damaged)
        try:
            after = Ledger(tmp_path / "b").charge(0.1)
        except LedgerError:
            continue
        finally:
            for name in ("b-journal", "b-wal", "b-shm"):
                (tmp_path / name).unlink(missing_ok=True)
        assert Ledger(tmp_path / "b").state() == after


NOT_LEDGERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "it is empty"),
    "text": (lambda path: path.write_text("hello world\n" * 1000), "not a database"),
    "noise": (lambda path: path.write_bytes(random.Random(1).randbytes(9000)), "not a database"),
    "a folder": (lambda path: path.mkdir(), "is not a file"),
    "another database": (lambda path: sql(path, "CREATE TABLE t (x)"), "is not a ledger of dpkernels"),
}


@pytest.mark.parametrize("case", NOT_LEDGERS)
def test_files_that_are_no_ledgers(tmp_path: Path, case: str) -> None:
    spoil, words = NOT_LEDGERS[case]
    spoil(tmp_path / "a")
    for opened in (lambda: Ledger(tmp_path / "a"), lambda: Ledger.create(tmp_path / "a", 1)):
        with pytest.raises(LedgerError, match=f"a: .*{words}"):
            opened()


EDITS = {
    "a price": ("UPDATE charges SET epsilon = '0.01' WHERE id = 2", "charge 2, or one before it, was changed"),
    "a label": ("UPDATE charges SET label = '' WHERE id = 5", "charge 5, or one before it"),
    "a time": ("UPDATE charges SET time = '' WHERE id = 1", "charge 1, or one"),
    "a hash": ("UPDATE charges SET hash = '' WHERE id = 3", "charge 3, or one"),
    "the first deleted": ("DELETE FROM charges WHERE id = 1", "charge 1 is missing"),
    "one deleted": ("DELETE FROM charges WHERE id = 3", "charge 3 is missing"),
    "the last deleted": ("DELETE FROM charges WHERE id = 5", "last charges were changed or deleted"),
    "all deleted": ("DELETE FROM charges", "last charges were changed or deleted"),
    "one moved": ("UPDATE charges SET id = 0 WHERE id = 3", "charge 1 is missing"),
    "one added": (
        "INSERT INTO charges SELECT 6, time, label, '0', '0', hash, '' FROM charges WHERE id = 5",
        "charge 6, or",
    ),
    "the budget": ("UPDATE budget SET epsilon = '100'", "charge 1, or one before it"),
    "the head": ("UPDATE budget SET head = ''", "its budget or its last charges"),
    "no budget": ("DELETE FROM budget", "it has 0 budgets"),
    "two budgets": ("INSERT INTO budget SELECT * FROM budget", "it has 2 budgets"),
    "a null": ("UPDATE charges SET label = NULL WHERE id = 4", "charge 4 holds what is not text"),
    "a blob": ("UPDATE charges SET epsilon = x'30' WHERE id = 4", "charge 4 holds what is not text"),
    "bytes that are no text": ("UPDATE charges SET label = CAST(x'ff' AS TEXT) WHERE id = 4", "UTF-8"),
    "no table": ("DROP TABLE charges", "its tables are not"),
    "another table": ("CREATE TABLE more (x)", "its tables are not"),
    "a trigger": (
        "CREATE TRIGGER charges AFTER INSERT ON charges BEGIN DELETE FROM charges; END",
        "its tables are not",
    ),
    "a view": ("CREATE VIEW seen AS SELECT * FROM charges", "its tables are not"),
    "an older version": ("PRAGMA user_version = 1", "is a ledger of version 1; this program reads version 2"),
    "a charge voided": ("UPDATE charges SET voids = '2' WHERE id = 5", "charge 5, or one before it, was changed"),
    "a void without a number": ("UPDATE charges SET voids = NULL WHERE id = 5", "charge 5 holds what is not text"),
    "a void of no number": ("UPDATE charges SET voids = '02' WHERE id = 5", "'02' is not the number of a charge"),
    "another version": ("PRAGMA user_version = 3", "is a ledger of version 3; this program reads version 2"),
    "another program": ("PRAGMA application_id = 7", "is not a ledger of dpkernels"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_edits_are_noticed(tmp_path: Path, edit: str) -> None:
    ledger = some_charges(tmp_path / "a")
    line, words = EDITS[edit]
    sql(tmp_path / "a", line)
    for refused in (lambda: Ledger(tmp_path / "a"), lambda: ledger.charge(0.1), lambda: Ledger.create(ledger.path, 1)):
        with pytest.raises(LedgerError, match=f"a: .*{words}"):
            refused()


@pytest.mark.parametrize(
    "price",
    [
        "-0.5",
        "nan",
        "inf",
        "0.50",
        "1/3",
        "",
        " 0.5",
        "0.5\n",
        "٠.٥",
        "1e+9999999999",
        "1e+999",
        "9" * 2000,
        "0x1",
        "1_0",
    ],
)
def test_forged_amounts_are_refused(tmp_path: Path, price: str) -> None:
    forged(tmp_path / "a", "0.1", price)
    with pytest.raises(LedgerError, match="is not an amount"):
        Ledger(tmp_path / "a")


def test_a_file_that_sqlite_finds_damaged_is_refused(tmp_path: Path) -> None:
    """Its rows are all there, and their hashes agree; but its header counts free pages that it does not have."""
    path = tmp_path / "a"
    some_charges(path)
    content = bytearray(path.read_bytes())
    assert content[36:40] == bytes(4)  # Free pages; https://www.sqlite.org/fileformat.html, 1.3.
    content[39] = 7
    path.write_bytes(content)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM charges").fetchone() == (5,)
    with pytest.raises(LedgerError, match="a: is damaged: "):
        Ledger(path)


def test_forged_sums_are_refused(tmp_path: Path) -> None:
    forged(tmp_path / "a", "0.5", "0.5")
    assert Ledger(tmp_path / "a").state().left.epsilon == 0
    forged(tmp_path / "b", "0.5", "0.51")
    with pytest.raises(LedgerError, match=r"b: .*its charges of epsilon 1\.01, delta 0 exceed its budget of epsilon 1"):
        Ledger(tmp_path / "b")


def test_an_older_copy_or_another_ledger_is_noticed_by_whoever_saw_more(tmp_path: Path) -> None:
    ledger = some_charges(tmp_path / "a")
    shutil.copy(tmp_path / "a", tmp_path / "old")
    ledger.charge(0.1)
    shutil.copy(tmp_path / "old", tmp_path / "a")
    with pytest.raises(LedgerError, match="has lost charges: there were 6"):
        ledger.charge(0.1)
    some_charges(tmp_path / "b")
    shutil.copy(tmp_path / "b", tmp_path / "a")
    with pytest.raises(LedgerError, match="is now another ledger"):
        ledger.state()
    (tmp_path / "a").unlink()
    with pytest.raises(FileNotFoundError):
        ledger.charge(0.1)
    assert not (tmp_path / "a").exists()


def test_the_journal_of_a_ledger_that_is_gone_stops_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "a-journal").write_bytes(b"pages of a charge")
    with pytest.raises(LedgerError, match="a: is gone, but a-journal is left of it"):
        Ledger.create(tmp_path / "a", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["a-journal"]


def test_a_write_ahead_log_is_taken_back_into_the_file(tmp_path: Path) -> None:
    ledger = some_charges(tmp_path / "a")
    sql(tmp_path / "a", "PRAGMA journal_mode = WAL")
    assert len(ledger.charge(0.1).entries) == 6
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


# The command


def test_releases_are_charged_until_the_budget_is_spent(run: Run) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    done = run("perturb", "in.csv", "1.csv", *SMALL, *LEDGER, "--budget", "2.5,1e-6")
    assert done.code == 0, done.err
    assert (
        "ledger people.ledger: charge 1 of epsilon 1, delta 0; spent epsilon 1, delta 0; left epsilon 1.5, " in done.out
    )
    assert run("perturb", "in.csv", "2.csv", *SMALL, *LEDGER).code == 0
    refused = run("perturb", "in.csv", "3.csv", *SMALL, *LEDGER, "--budget", "2.5,1e-6")
    words = "people.ledger: the budget would be exceeded: asked for epsilon 1, delta 0; left epsilon 0.5, delta 1e-06"
    assert_refused(refused, 3, words, "nothing was charged")
    names = [f"{number}.csv{ending}" for number in (1, 2) for ending in ("", ".json")]
    assert_nothing_but("in.csv", "people.ledger", *names)
    payload = json.loads(Path("2.csv.json").read_text())
    charges = shown(run)["charges"]
    assert [charge["label"] for charge in charges] == ["perturb in.csv to 1.csv", "perturb in.csv to 2.csv"]
    assert payload["ledger"]["hash"] == charges[1]["hash"]
    amounts = {name: payload["ledger"][name] for name in ("charge", "epsilon", "spent_epsilon", "budget_delta")}
    assert amounts == {"charge": 2, "epsilon": "1", "spent_epsilon": "2", "budget_delta": "1e-06"}
    assert run("certify", "--verify", "2.csv.json").code == 0


def test_a_listing(run: Run) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    run("perturb", "in.csv", "1.csv", *SMALL, *LEDGER, "--budget", "2.5,1e-6")
    lines = run("ledger", "people.ledger").out.splitlines()
    assert lines[1:4] == [
        "budget  epsilon 2.5, delta 1e-06",
        "spent   epsilon 1, delta 0",
        "left    epsilon 1.5, delta 1e-06",
    ]
    assert lines[5].split() == ["charge", "time", "epsilon", "delta", "label"]
    assert lines[6].split()[2:] == ["1", "0", "perturb", "in.csv", "to", "1.csv"]
    Path("people.ledger").write_text("text")
    assert_refused(run("ledger", "people.ledger"), 4, "people.ledger: is damaged or not a ledger")


@pytest.mark.thorough
def test_what_is_charged_is_the_total_of_a_row(run: Run) -> None:
    pq.write_table(pa.table({"a": ages(9), "b": ages(9)}), "in.parquet")
    columns = ["--column", "a", "--column", "b", "--mechanism", "gaussian", "--sensitivity", "1", "--delta", "3e-7"]
    options = [*columns, "--epsilon", "0.1", "--epsilon", "0.2", *LEDGER, "--budget", "1,1e-6"]
    done = run("perturb", "in.parquet", "out.parquet", *options)
    assert done.code == 0, done.err
    np.save("in.npy", np.ones((3, 7)))
    array = ["--mechanism", "laplace", "--sensitivity", "1", "--epsilon", "0.1", *LEDGER]
    assert run("perturb", "in.npy", "out.npy", *array).code == 0
    assert [(one["epsilon"], one["delta"]) for one in shown(run)["charges"]] == [("0.3", "6e-07"), ("0.7", "7e-15")]
    assert shown(run)["left_epsilon"] == "0"
    for name in ("out.parquet.json", "out.npy.json"):
        payload = json.loads(Path(name).read_text())
        assert format_amount(Fraction(repr(payload["epsilon"]))) == payload["ledger"]["epsilon"]


def test_a_release_that_fails_over_its_input_voids_its_charge(run: Run) -> None:
    write(Path("in.csv"), np.r_[ages(200), 121.0])
    done = run("perturb", "in.csv", "out.csv", *SMALL, *LEDGER, "--budget", "1")
    voided = "(charge 1 of epsilon 1, delta 0 in people.ledger is voided: nothing was released)"
    assert_refused(done, 1, "row 200 (line 202) is 121", voided)
    assert_nothing_but("in.csv", "people.ledger")
    assert [one["charge"] for one in shown(run)["charges"]] == [1, 2]
    assert run("perturb", "in.csv", "out.csv", *SMALL, *LEDGER, "--clip").code == 0
    assert run("perturb", "in.csv", "more.csv", *SMALL, *LEDGER, "--clip").code == 3


def test_the_charge_comes_before_the_data(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save("in.npy", ages(3))
    counts = []

    def fail(*_: Any, **__: Any) -> None:
        counts.append(len(Ledger("people.ledger").state().entries))
        raise KeyboardInterrupt

    monkeypatch.setattr("dpkernels.cli.files.arrays.ArrayFile.chunks", fail)
    done = run("perturb", "in.npy", "out.npy", *AGE, *LEDGER, "--budget", "2")
    assert_refused(done, 1, "interrupted (charge 1 of epsilon 1, delta 0 in people.ledger is voided")
    assert counts == [1]
    assert_nothing_but("in.npy", "people.ledger")


USAGE: dict[str, tuple[list[str], int, str]] = {
    "no ledger": (["--budget", "1"], 2, "--budget: needs --ledger FILE"),
    "no such ledger": (LEDGER, 2, "--ledger: people.ledger does not exist; --budget EPS[,DELTA] makes it"),
    "budget 0": ([*LEDGER, "--budget", "0"], 2, "--budget: epsilon: a budget of 0"),
    "budget below": ([*LEDGER, "--budget", "-1"], 2, "--budget: epsilon: -1 is not"),
    "budget nan": ([*LEDGER, "--budget", "nan"], 2, "--budget: epsilon: NaN is not"),
    "budget text": ([*LEDGER, "--budget", "one"], 2, "'one' must be numbers separated by commas"),
    "delta 1": ([*LEDGER, "--budget", "1,1"], 2, "--budget: delta: 1 is not below 1"),
    "three numbers": ([*LEDGER, "--budget", "1,0,0"], 2, "--budget: 3 numbers"),
    "twice": ([*LEDGER, *LEDGER, "--budget", "1"], 2, "--ledger: given 2 times"),
    "the input": (["--ledger", "in.csv", "--budget", "1"], 2, "--ledger: in.csv is a file of the release"),
    "the output": (["--ledger", "./out.csv", "--budget", "1"], 2, "--ledger: out.csv is a file of the release"),
    "the sidecar": (["--ledger", "out.csv.json", "--budget", "1"], 2, "--ledger: out.csv.json is a file of"),
    "no folder": (["--ledger", "no/a", "--budget", "1"], 1, "no/a: cannot be made"),
    "too small for this": ([*LEDGER, "--budget", "0.5"], 3, "asked for epsilon 1, delta 0; left epsilon 0.5, delta 0"),
}


@pytest.mark.parametrize("case", USAGE)
def test_wrong_usage_makes_no_ledger(run: Run, case: str) -> None:
    given, code, words = USAGE[case]
    Path("in.csv").write_text(GOOD_CSV)
    assert_refused(run("perturb", "in.csv", "out.csv", *SMALL, *given), code, words)
    assert_nothing_but("in.csv")


def test_the_budget_of_a_ledger_must_agree(run: Run) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    Ledger.create("people.ledger", 2)
    done = run("perturb", "in.csv", "out.csv", *SMALL, *LEDGER, "--budget", "3")
    assert_refused(done, 1, "people.ledger: has a budget of epsilon 2, delta 0, not of epsilon 3, delta 0")
    assert_nothing_but("in.csv", "people.ledger")


def test_a_ledger_linked_to_the_output_is_not_replaced(run: Run) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    Ledger.create("people.ledger", 2)
    Path("out.csv").symlink_to("people.ledger")
    assert_refused(run("perturb", "in.csv", "out.csv", "--force", *SMALL, *LEDGER), 2, "is a file of the release")


def test_an_output_is_no_journal_of_the_ledger(run: Run) -> None:
    """SQLite would take it for a journal of a killed charge, and delete it."""
    Path("in.csv").write_text(GOOD_CSV)
    Ledger.create("people.ledger", 5)
    Path("link").symlink_to("people.ledger")
    for path in ("people.ledger", "link"):
        arguments = "perturb", "in.csv", "people.ledger-journal", "--format", "csv", *SMALL, "--ledger", path
        assert_refused(run(*arguments), 2, "people.ledger-journal is one of the ledger")


@pytest.mark.lengthy
def test_kill_9_of_a_release_leaves_the_charge_and_no_output(run: Run) -> None:
    np.save("in.npy", np.full(1000, 50, np.float32))
    options = ["perturb", "in.npy", "out.npy", *AGE, *LEDGER, "--budget", "1.5"]
    process = begun(*options)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert not Path("out.npy").exists()
    assert len(Ledger("people.ledger").state().entries) == 1
    again = run(*options)
    assert again.err.startswith("dpkernels: removed 3 files of ")
    assert (again.code, "left epsilon 0.5" in again.err) == (3, True)
    assert_nothing_but("in.npy", "people.ledger")


def test_without_a_ledger_nothing_changes(run: Run) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    assert run("perturb", "in.csv", "out.csv", *SMALL).code == 0
    assert "ledger" not in json.loads(Path("out.csv.json").read_text())
    assert read(Path("out.csv")).shape == (2,)


def test_help_of_a_ledger_does_not_start_jax() -> None:
    script = (
        "import sys; from dpkernels.cli import main; code = main(['ledger', '-h'])\n"
        "sys.exit(str(heavy) if (heavy := {'jax', 'numpy'} & set(sys.modules)) or code else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert Result(done.returncode, "", done.stderr) == (0, "", "")
    assert "what is spent and left" in " ".join(done.stdout.split())
    assert os.linesep in done.stdout
