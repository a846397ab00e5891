"""Charges that are voided: when they are, when they stay, what a crash at every step leaves, and forged voids."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_helpers import AGE, GOOD_CSV, Run, assert_nothing_but, assert_refused, command
from dataset_helpers import AGE as COLUMN_AGE
from dataset_helpers import write as write_dataset
from ledger_helpers import LEDGER, READ_ONLY, SMALL, STOPPING, forged, light, some_charges, sql
from ledger_helpers import shown as ledger_shown

from dpkernels.budgets import ledger as ledger_module
from dpkernels.budgets.filters import BudgetExceeded, EpsilonDelta
from dpkernels.budgets.ledger import Ledger, LedgerError
from dpkernels.cli.dataset.folder import StoreFolder
from dpkernels.cli.files.delimited import DelimitedFile
from dpkernels.cli.files.locations import Location
from dpkernels.cli.perturb.output import Output

run = pytest.fixture(command, name="run")


@pytest.fixture(autouse=True)
def heeded_interrupts() -> Iterator[None]:
    """Let interrupts count, also where the tests run in the background and ignore them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


BUDGET = [*LEDGER, "--budget", "5"]
VOIDED = "(charge 1 of epsilon 1, delta 0 in people.ledger is voided: nothing was released)"
STAYS = "(charge 1 of epsilon 1, delta 0 stays in people.ledger: "


def standing(path: str | Path = "people.ledger") -> list[int]:
    """The charges that count."""
    found = Ledger(path).state()
    return [one.id for one in found.entries if not one.voids and one.id not in found.voided]


# The ledger


def test_a_voided_charge_does_not_count_and_stays_in_the_ledger(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "a", 1)
    for number in (1, 3, 5):
        assert ledger.charge(1, label="query").entries[-1].id == number
        with pytest.raises(BudgetExceeded):
            ledger.charge(0.1)
        assert ledger.void(number, "it failed").spent == EpsilonDelta()
    found = Ledger(tmp_path / "a").state()
    assert [(one.id, one.voids, one.label) for one in found.entries[:2]] == [(1, 0, "query"), (2, 1, "it failed")]
    assert found.voided == {1: 2, 3: 4, 5: 6}
    assert found.left == EpsilonDelta(Fraction(1))


def test_only_the_object_that_charged_can_void_and_only_once(tmp_path: Path) -> None:
    ledger = some_charges(tmp_path / "a", 2)
    for other, number in ((Ledger(tmp_path / "a"), 1), (ledger, 3), (ledger, 0), (ledger, -1)):
        with pytest.raises(ValueError, match="was not made by this object"):
            other.void(number)
    ledger.void(2)
    for number in (2, 3):
        with pytest.raises(ValueError, match="or is voided already"):
            ledger.void(number)
    assert standing(tmp_path / "a") == [1]


@pytest.mark.parametrize("twice", [copy.copy, copy.deepcopy, lambda ledger: pickle.loads(pickle.dumps(ledger))])
def test_a_copy_of_the_object_that_charged_cannot_void(tmp_path: Path, twice: Callable[[Ledger], Ledger]) -> None:
    ledger = Ledger.create(tmp_path / "a", 1)
    ledger.charge(0.5)
    other = twice(ledger)
    with pytest.raises(ValueError, match="was not made by this object"):
        other.void(1)
    other.charge(0.5)
    assert (ledger.voidable, other.voidable) == ({1}, {2})


@pytest.mark.filterwarnings("ignore:os.fork", "ignore:.*multi-threaded")
def test_a_forked_process_can_void_its_own_charges_alone(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "a", 1)
    ledger.charge(0.5)
    child = os.fork()
    if child == 0:
        try:
            ledger.void(1)
        except ValueError:
            ledger.charge(0.25)
            ledger.void(2)
            os._exit(7 if not ledger.voidable else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert (ledger.voidable, standing(tmp_path / "a")) == ({1}, [1])


def test_racing_processes_that_void_never_exceed_the_budget(tmp_path: Path) -> None:
    script = """
path, writers = sys.argv[1], 4
reading, writing = os.pipe()
for number in range(writers):
    if os.fork() == 0:
        kept = 0
        for turn in range(12):
            ledger = Ledger.create(path, 1, timeout=60)
            try: charge = ledger.charge(0.15).entries[-1].id
            except BudgetExceeded: continue
            if (turn + number) % 3: ledger.void(charge)
            else: kept += 1
        os.write(writing, f"{kept} ".encode())
        os._exit(0)
ends = [os.wait()[1] for _ in range(writers)]
os.close(writing)
with os.fdopen(reading) as said: print(json.dumps([ends, [int(one) for one in said.read().split()]]))
"""
    ends, kept = light(script, tmp_path / "a")
    assert ends == [0] * 4
    statement = Ledger(tmp_path / "a").state()  # which verifies the sum after every entry
    assert len(standing(tmp_path / "a")) == sum(kept) == 6
    assert len(statement.entries) > 12


STOPPED = (
    STOPPING
    + """
connect, left = sqlite3.connect, []
for word in ("INSERT", "UPDATE budget", "COMMIT"):
    child = os.fork()
    if child == 0:
        ledger = Ledger(path)
        charge = ledger.charge(0.1).entries[-1].id
        sqlite3.connect = stopping(word)
        ledger.void(charge)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL, word
    found = Ledger(path).state()
    left.append([len(found.entries), len(found.voided)])
print(json.dumps(left))
"""
)


def test_kill_9_before_every_step_of_a_void_keeps_the_charge(tmp_path: Path) -> None:
    some_charges(tmp_path / "a", 1)
    assert light(STOPPED, tmp_path / "a") == [[number, 0] for number in range(2, 5)]


def forge(path: Path, *rows: tuple[str, int]) -> None:
    """A ledger whose hashes are right, of (amount, number of the charge that the row voids)."""
    head = Ledger.create(path, 1).state().head
    for number, (price, voids) in enumerate(rows, 1):
        head = ledger_module._hash(head, number, "", "", price, "0", *ledger_module._voiding(voids))
        sql(path, f"INSERT INTO charges VALUES ({number}, '', '', '{price}', '0', '{head}', '{voids or ''}')")
    sql(path, f"UPDATE budget SET head = '{head}'")


FORGED: dict[str, tuple[list[tuple[str, int]], str]] = {
    "itself": ([("1", 1)], "entry 1 voids a charge, and the ledger has no charge 1"),
    "a later charge": ([("1", 2), ("1", 0)], "entry 1 voids a charge, and the ledger has no charge 2"),
    "a void": ([("1", 0), ("1", 1), ("1", 2)], "entry 3 voids a charge, and the ledger has no charge 2"),
    "twice": ([("0.5", 0), ("0.5", 1), ("0.5", 1)], "entry 3 voids a charge, and the ledger has voided charge 1"),
    "another amount": ([("0.5", 0), ("0.6", 1)], "entry 2 does not void the amounts of charge 1"),
    "too late": ([("0.6", 0), ("0.6", 0), ("0.6", 1)], "charges of epsilon 1.2, delta 0 exceed its budget"),
}


@pytest.mark.parametrize("case", FORGED)
def test_forged_voids_are_refused(tmp_path: Path, case: str) -> None:
    rows, words = FORGED[case]
    forge(tmp_path / "a", *rows)
    with pytest.raises(LedgerError, match=words):
        Ledger(tmp_path / "a")
    forge(tmp_path / "b", ("0.6", 0), ("0.6", 1), ("0.6", 0))
    assert Ledger(tmp_path / "b").state().spent.epsilon == Fraction(3, 5)
    forged(tmp_path / "c", "0.5")


def test_a_rehearsed_charge_is_refused_as_a_charge_is_and_changes_nothing(tmp_path: Path) -> None:
    ledger = some_charges(tmp_path / "a")
    content, expected = (tmp_path / "a").read_bytes(), ledger.state()
    assert ledger.rehearse(0.5) == expected
    with pytest.raises(BudgetExceeded):
        ledger.rehearse(0.6)
    assert (tmp_path / "a").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


# The command: failures before the output is in place

FAILURES: dict[str, tuple[str, str]] = {
    "a missing value": ("z,\n", "is missing"),
    "an outlier": ("z,121\n", "is 121"),
    "no number": ("z,old\n", "is 'old'"),
    "a torn record": ("z\n", "1 cells"),
}


def test_failures_of_the_input_cost_nothing(run: Run) -> None:
    for number, (row, words) in enumerate(FAILURES.values()):
        Path("in.csv").write_text(GOOD_CSV + row)
        done = run("perturb", "in.csv", "out.csv", *SMALL, *BUDGET)
        assert_refused(done, 1, words, f"(charge {2 * number + 1} of epsilon 1, delta 0 in people.ledger is voided")
    Path("in.csv").write_text("id,age\nz,\n")
    assert_refused(run("perturb", "in.csv", "out.csv", *SMALL, *BUDGET, "--missing", "drop"), 1, "voided")
    Path("in.csv").write_text(GOOD_CSV)
    for number in range(5):
        assert run("perturb", "in.csv", f"{number}.csv", *SMALL, *LEDGER).code == 0
    assert run("perturb", "in.csv", "more.csv", *SMALL, *LEDGER).code == 3
    found = ledger_shown(run)
    assert (found["spent_epsilon"], len(found["charges"])) == ("5", 2 * 5 + 5)
    assert sum(Fraction(one["epsilon"]) for one in found["charges"]) == 5
    assert [(one["voids"], one["voided_by"]) for one in found["charges"][:2]] == [(None, 2), (1, None)]
    assert {one["label"] for one in found["charges"] if one["voids"]} == {
        "the run failed before its output was in place"
    }
    lines = run("ledger", "people.ledger").out.splitlines()
    assert lines[6].split(maxsplit=4)[2:] == ["1", "0", "voided by 2: perturb in.csv to out.csv"]
    voids = "voids charge 1: the run failed before its output was in place"
    assert lines[7].split(maxsplit=4)[2:] == ["-1", "0", voids]


def interrupted(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("where", ["files.delimited.DelimitedFile.chunks", "perturb.rows.in_chunks"])
def test_an_interrupted_run_costs_nothing(run: Run, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    monkeypatch.setattr(f"dpkernels.cli.{where}", interrupted)
    assert_refused(run("perturb", "in.csv", "out.csv", *SMALL, *BUDGET), 1, f"interrupted {VOIDED}")
    assert_nothing_but("in.csv", "people.ledger")


def test_an_interrupt_while_the_ledger_is_charged_costs_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    charge = Ledger.charge

    def late(*given: Any) -> Any:
        made = charge(*given)
        os.kill(os.getpid(), signal.SIGINT)
        return made

    monkeypatch.setattr(Ledger, "charge", late)
    assert_refused(run("perturb", "in.csv", "out.csv", *SMALL, *BUDGET), 1, f"interrupted {VOIDED}")
    assert standing() == []


def test_an_output_that_appears_meanwhile_is_no_wrong_usage_any_more(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 2 promises that nothing was charged."""
    Path("in.csv").write_text(GOOD_CSV)
    commit = Output.commit

    def late(output: Output, *given: Any) -> None:
        Path("out.csv").write_text("of another program")
        commit(output, *given)

    monkeypatch.setattr(Output, "commit", late)
    assert_refused(
        run("perturb", "in.csv", "out.csv", *SMALL, *BUDGET), 1, f"out.csv exists; --force replaces it {VOIDED}"
    )
    assert Path("out.csv").read_text() == "of another program"
    assert_nothing_but("in.csv", "out.csv", "people.ledger")


# The command: failures that keep the charge


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_is_full_keeps_the_charge(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a text or a compressed file fits depends on the reports in it."""
    Path("in.csv").write_text(GOOD_CSV)
    monkeypatch.setattr(DelimitedFile, "sink", lambda *_: nullcontext(full))
    why = f"in.csv to out.csv: No space left on device {STAYS}whether such a run fails may depend on the reports)"
    assert_refused(run("perturb", "in.csv", "out.csv", *SMALL, *BUDGET), 1, why)
    assert standing() == [1]


def test_reports_that_are_too_large_to_shuffle_keep_the_charge(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    monkeypatch.setattr("dpkernels.cli.perturb.rows.MAX_SHUFFLED_BYTES", len(GOOD_CSV))
    done = run("perturb", "in.csv", "out.csv", *SMALL, *BUDGET, "--shuffle-rows")
    assert_refused(done, 1, "--shuffle-rows: the rows take more than", STAYS)
    assert standing() == [1]


@pytest.mark.parametrize("failing", ["out.csv.json", "out.csv"])
@pytest.mark.parametrize("asked", [False, True])
def test_a_rename_that_fails_keeps_the_charge(
    run: Run, monkeypatch: pytest.MonkeyPatch, failing: str, asked: bool
) -> None:
    """The permissions of the new files are those of the input by then, also for a run that is asked to stop."""
    Path("in.csv").write_text(GOOD_CSV)
    replace = Path.replace

    def fail(path: Path, target: Path) -> Any:
        if asked:
            interrupted()
        return full() if Path(target).name == failing else replace(path, target)

    monkeypatch.setattr(Path, "replace", fail)
    words = "interrupted" if asked else "No space left"
    assert_refused(run("perturb", "in.csv", "out.csv", *SMALL, *BUDGET), 1, words, STAYS)
    assert standing() == [1]
    assert_nothing_but("in.csv", "people.ledger")


def test_nobody_but_the_user_may_read_an_output_that_can_still_be_withdrawn(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    Path("in.csv").chmod(0o666)
    calls, modes = iter([False, True, True, True]), list[int]()

    def at_the_end() -> None:
        """A request to stop that is seen when all is written, and not before."""
        if next(calls):
            modes.extend(path.stat().st_mode & 0o777 for path in Path().glob(".dpkernels-*.part"))
            raise KeyboardInterrupt

    monkeypatch.setattr("dpkernels.cli.perturb.output.raise_if_interrupted", at_the_end)
    assert_refused(run("perturb", "in.csv", "out.csv", *SMALL, *BUDGET), 1, f"interrupted {VOIDED}")
    assert modes == [0o600] * 3


def test_an_output_that_cannot_be_deleted_keeps_the_charge(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("in.csv").write_text(GOOD_CSV + "z,121\n")
    monkeypatch.setattr(Output, "withdraw", lambda _: False)
    why = f"{STAYS}part of the release may already have been read)"
    assert_refused(run("perturb", "in.csv", "out.csv", *SMALL, *BUDGET), 1, "121", why)


def test_a_charge_that_cannot_be_voided_stays(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("in.csv").write_text(GOOD_CSV + "z,121\n")

    def held(*_: Any) -> None:
        raise LedgerError("people.ledger: other processes held it for 10 s; the charge stands")

    monkeypatch.setattr(Ledger, "void", held)
    why = f"{STAYS}it could not be voided: people.ledger: other processes held it for 10 s; the charge stands)"
    assert_refused(run("perturb", "in.csv", "out.csv", *SMALL, *BUDGET), 1, "121", why)
    assert standing() == [1]


@pytest.mark.parametrize("begun", [None, full, interrupted])
def test_standard_output_that_has_begun_keeps_the_charge(
    run: Run, monkeypatch: pytest.MonkeyPatch, begun: Callable[..., None] | None
) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    if begun:
        monkeypatch.setattr("dpkernels.cli.perturb.output.shutil.copyfileobj", begun)
    else:
        digest = lambda _: (Path("out.json").write_text("of another") and "", 0)  # noqa: E731
        monkeypatch.setattr("dpkernels.cli.perturb.rows.sha256_and_size", digest)
    done = run("perturb", "in.csv", "-", "--format", "csv", "--sidecar", "out.json", *SMALL, *BUDGET)
    if begun:
        assert_refused(done, 1, "standard output: No space left" if begun is full else "interrupted", STAYS)
    else:
        assert_refused(done, 1, "out.json exists by now", VOIDED)
    assert standing() == ([1] if begun else [])
    assert_nothing_but("in.csv", "people.ledger", *([] if begun else ["out.json"]))


def spoiled(folder: Path) -> None:
    """A dataset of arrays whose last value cannot be perturbed."""
    folder.mkdir()
    for at in range(3):
        np.save(folder / f"{at}.npy", np.append(np.full(9, 60.0), 121.0 if at == 2 else 60.0))


def test_a_dataset_whose_parts_nobody_could_see_costs_nothing(run: Run) -> None:
    spoiled(Path("in"))
    assert_refused(run("perturb", "in", "out", *AGE, *BUDGET), 1, "2.npy: row 9 is 121", VOIDED)
    assert_nothing_but("in", "people.ledger")


def test_a_dataset_whose_parts_were_visible_in_a_store_keeps_the_charge(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoiled(Path("in"))
    Path("out").mkdir()
    store = StoreFolder(Location.parse("out"))
    monkeypatch.setattr("dpkernels.cli.dataset.perturb.folder", lambda *_: store)
    why = f"{STAYS}part of the release may already have been read)"
    assert_refused(run("perturb", "in", "out", *AGE, *BUDGET), 1, "2.npy: row 9 is 121", why)


def test_a_part_that_cannot_be_written_keeps_the_charge(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dataset(Path("in"), files=2, rows=10)
    monkeypatch.setattr("dpkernels.cli.files.parquet.ParquetSink.write", full)
    done = run("perturb", "in", "out", *COLUMN_AGE, *BUDGET)
    assert_refused(done, 1, "parquet to ", "No space left on device", STAYS)
    assert_nothing_but("in", "people.ledger")


# Crashes: a run dies before every step that changes a file or the ledger

CRASHES = """
import sqlite3, traceback
from fractions import Fraction
from pathlib import Path
from dpkernels.budgets.filters import EpsilonDelta
from dpkernels.cli.ledger import LedgerAccount, Price, charging
from dpkernels.cli.interrupts import independent_of_reports
from dpkernels.cli.perturb.output import Output
from dpkernels.staging import descriptor_path
assert not {"jax", "numpy"} & set(sys.modules)
os.chdir(sys.argv[1])
os.fsync = lambda descriptor: None  # a kill loses nothing that was written
FAILS, steps, last = sys.argv[2] == "fails", 0, None

def step():
    global steps
    if last is not None:
        steps += 1
        if steps == last:
            os.kill(os.getpid(), signal.SIGKILL)

def audit(event, arguments):
    writes = event == "open" and arguments[2] & (os.O_CREAT | os.O_WRONLY)
    if event in ("os.rename", "os.remove", "os.chmod") or writes:
        step()
sys.addaudithook(audit)

class Stepping(sqlite3.Connection):
    def execute(self, statement, *more):
        if statement.startswith(("BEGIN", "INSERT", "UPDATE", "COMMIT")):
            step()
        done = super().execute(statement, *more)
        if statement.startswith("COMMIT"):
            step()
        return done
connect = sqlite3.connect
sqlite3.connect = lambda *given, **named: connect(*given, **named, factory=Stepping)

def release():
    with Output(Path("in.csv"), Path("out.csv")).run() as out:
        price = lambda: Price(EpsilonDelta(Fraction(1)), None, 1)
        with charging(LedgerAccount(Path("ledger")), price, "", out):
            descriptor_path(out.file).write_text("reports")
            step()
            if FAILS:
                with independent_of_reports():
                    raise ValueError("row 9")
            out.commit("{}")

def dying(at):
    global last
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        last = at
        try: release()
        except ValueError: os._exit(1)
        except BaseException: os._exit(9)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, 256, signal.SIGKILL), status
    return status == signal.SIGKILL

found, at, killed = [], 0, True
while killed:
    at += 1
    Path("ledger").unlink(missing_ok=True)
    Ledger.create("ledger", 5)
    for name in ("out.csv", "out.csv.json"):
        Path(name).unlink(missing_ok=True)
    killed = dying(at)
    statement = Ledger("ledger").state()
    standing = len([one for one in statement.entries if not one.voids]) - len(statement.voided)
    files = [one.read_text() for one in Path().iterdir() if one.name != "in.csv" and one.suffix in (".csv", ".part")]
    found.append([standing, len(statement.voided), "reports" in files])
    last = None
    with Output(Path("in.csv"), Path("other.csv")).run():
        pass
    try: release()
    except ValueError: pass
    except Exception as error: assert "exists" in str(error), error
print(json.dumps(found))
"""


@pytest.mark.lengthy
@pytest.mark.parametrize("ending", ["fails", "succeeds"])
def test_kill_9_before_every_step_of_a_run_keeps_the_charge_of_what_could_be_read(tmp_path: Path, ending: str) -> None:
    (tmp_path / "in.csv").write_text("secret")
    found = light(CRASHES, tmp_path, ending)
    for stands, voided, reports in found:
        assert stands or not reports  # what can be read is paid for
        assert voided + stands <= 1
    outcomes = {tuple(one) for one in found}
    assert (0, 0, False) in outcomes  # killed before the charge
    assert (1, 0, True) in outcomes  # killed with reports on the disk
    last = found[-1]  # which was not killed
    assert last == ([0, 1, False] if ending == "fails" else [1, 0, True])
    if ending == "fails":
        assert (1, 0, False) in outcomes  # killed between the charge and the void, the output deleted
        assert (0, 1, False) in outcomes
    else:
        assert {voided for _, voided, _ in outcomes} == {0}


# --check


def test_check_finds_a_ledger_that_cannot_be_charged(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    check = ["perturb", "in.csv", "out.csv", *SMALL, "--check"]
    assert_refused(run(*check, "--ledger", "no/a", "--budget", "1"), 1, "no/a: cannot be made")
    Path("link").symlink_to("nowhere")
    assert_refused(run(*check, "--ledger", "link", "--budget", "1"), 1, "link: cannot be made: a link")
    Ledger.create("people.ledger", 2)
    assert run(*check, *LEDGER).code == 0
    content = Path("people.ledger").read_bytes()
    monkeypatch.setattr(ledger_module, "_SETTINGS", (*ledger_module._SETTINGS, "query_only = ON"))
    assert_refused(run(*check, *LEDGER), 1, "people.ledger: cannot be written")
    assert Path("people.ledger").read_bytes() == content
    assert_nothing_but("in.csv", "people.ledger", "link")


def test_rehearsing_in_a_folder_that_cannot_be_written() -> None:
    script = READ_ONLY.replace(".charge(0.1)", ".rehearse(0.1)")
    with tempfile.TemporaryDirectory() as name:
        some_charges(Path(name) / "a")
        Path(name).chmod(0o555)
        try:
            count, charging, _ = light(script, name)
        finally:
            Path(name).chmod(0o755)
    assert count == 5
    assert charging.startswith(f"{name}/a: cannot be ")
