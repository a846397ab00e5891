"""Outputs: kills, races, planted links, closed and full streams; the old release or the new one is whole, always."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
from command_helpers import (
    AGE,
    COMMAND,
    GOOD_CSV,
    Result,
    Run,
    ages,
    assert_nothing_but,
    assert_refused,
    command,
    write,
)

from dpkernels.budgets.ledger import Ledger
from dpkernels.cli import interrupts
from dpkernels.cli.files.delimited import DelimitedFile
from dpkernels.cli.perturb import output, summary
from dpkernels.cli.perturb.output import Output, matching_sidecar, sidecar_path
from dpkernels.staging import TakenError, claimed, descriptor_path, sha256_and_size, staged, staged_folder, sweep

run = pytest.fixture(command, name="run")

GIVEN = ["perturb", "in.csv", "out.csv", "--column", "age", *AGE]
OURS = ("in.csv", "out.csv", "out.csv.json")


def as_process(*arguments: str, script: str = COMMAND[2], **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, **{"capture_output": True, "text": True, "timeout": 120, **options})


# Every moment of a kill: a process dies before each step that changes a file

EVERY_STEP = """
import hashlib, json, os, signal, sys, traceback
from pathlib import Path
from dpkernels.cli.perturb.output import Output, check_target, matching_sidecar, sidecar_path
from dpkernels.staging import descriptor_path, sha256_and_size
assert not {"jax", "numpy"} & set(sys.modules)
os.fsync = lambda descriptor: None  # a kill loses nothing that was written

SOURCE, TARGET = Path("in.csv"), Path("out.csv")
steps, last = 0, None

def dies(event, arguments):
    global steps
    changes = event in ("os.rename", "os.remove") or (event == "open" and arguments[2] & (os.O_CREAT | os.O_WRONLY))
    if last is not None and changes:
        steps += 1
        if steps == last:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(dies)

def release(content, force):
    check_target(SOURCE, TARGET, force)
    with Output(SOURCE, TARGET, force).run() as out:
        descriptor_path(out.file).write_text(content)
        sha256, size = sha256_and_size(out.file)
        out.commit(json.dumps({"format": 3, "of": content, "output": {"sha256": sha256, "bytes": size}}) + "\\n")

def found():
    '''The release that is there, by its own sidecar; None for none.'''
    sidecar = sidecar_path(TARGET)
    own = matching_sidecar(TARGET, sidecar.read_text()) if sidecar.exists() else None
    assert (own is not None) == TARGET.exists(), "an output without its sidecar"
    if own is None:
        return None
    form = json.loads(own)
    assert form["output"]["sha256"] == hashlib.sha256(TARGET.read_bytes()).hexdigest()
    assert form["of"] == TARGET.read_text()
    return form["of"]

def dying(step, content, force):
    '''A release in a process that dies at a step; whether it did.'''
    global last
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        last = step
        try:
            release(content, force)
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), status
    return status != 0
"""

ONE_KILL = """
seen, step = set(), 0
while True:
    step += 1
    for name in (TARGET, sidecar_path(TARGET)):
        name.unlink(missing_ok=True)
    if OLD:
        release("old", False)
    killed = dying(step, "new", OLD)
    seen.add(there := found())
    assert there in ({"old", "new"} if OLD else {None, "new"})
    release("again", force=there is not None)
    assert found() == "again"
    assert sorted(os.listdir()) == ["in.csv", "out.csv", "out.csv.json"], os.listdir()
    if not killed:
        break
assert seen == ({"old", "new"} if OLD else {None, "new"}), seen
print(json.dumps(step))
"""

# The run that clears up after a kill is killed too.
TWO_KILLS = """
deaths = 0
for first in range(1, 40):
    for second in range(1, 40):
        for name in (TARGET, sidecar_path(TARGET)):
            name.unlink(missing_ok=True)
        release("old", False)
        if not dying(first, "new", True):
            break
        if BETWEEN and not sidecar_path(TARGET).read_text().startswith('{"replacing"'):
            break
        again = dying(second, "newer", True)
        assert found() in ("old", "new", "newer")
        deaths += again
        release("again", True)
        assert found() == "again"
        assert sorted(os.listdir()) == ["in.csv", "out.csv", "out.csv.json"], os.listdir()
        if not again:
            break
print(json.dumps(deaths))
"""


@pytest.mark.parametrize("old", [False, True], ids=["nothing before", "replacing"])
def test_a_kill_at_every_step_leaves_the_old_release_or_the_new(tmp_path: Path, old: bool) -> None:
    (tmp_path / "in.csv").write_text("secret")
    done = as_process(script=f"{EVERY_STEP}\nOLD = {old}\n{ONE_KILL}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) >= 8  # steps at which it died


@pytest.mark.parametrize("between", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["renames", "any steps"])
def test_a_kill_of_the_run_that_clears_up_leaves_a_whole_release(tmp_path: Path, between: bool) -> None:
    (tmp_path / "in.csv").write_text("secret")
    done = as_process(script=f"{EVERY_STEP}\nBETWEEN = {between}\n{TWO_KILLS}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) >= 16


def sidecar_text(content: str) -> str:
    sha256 = hashlib.sha256(content.encode()).hexdigest()
    return json.dumps({"format": 3, "output": {"sha256": sha256}}) + "\n"


def release(content: str, force: bool = True) -> None:
    with Output(Path("in.csv"), Path("out.csv"), force).run() as new:
        descriptor_path(new.file).write_text(content)
        new.commit(sidecar_text(content))


@pytest.mark.parametrize("failing", ["out.csv.json", "out.csv"])
def test_a_rename_that_fails_changes_nothing(run: Run, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    Path("out.csv").write_bytes(b"old")
    Path("out.csv.json").write_bytes(b"no sidecar \xff, of any old tool")
    before, replace = Path("out.csv.json").read_bytes(), Path.replace

    def fail(path: Path, target: Path) -> Any:
        if Path(target).name == failing and not list(Path().glob("failed")):
            Path("failed").touch()
            raise OSError(5, "Input/output error")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="Input/output"):
        release("new")
    Path("failed").unlink()
    assert (Path("out.csv").read_bytes(), Path("out.csv.json").read_bytes()) == (b"old", before)
    assert_nothing_but(*OURS)


# Kills of the command at random moments


def kill_at_random(run: Run, count: int, seed: int) -> None:
    Path("in.csv").write_text("age\n" + "50\n" * 400_000)
    started = time.monotonic()
    assert as_process(*GIVEN).returncode == 0
    whole, source, killed = time.monotonic() - started, random.Random(seed), 0
    for number in itertools.count():
        if killed == count:
            break
        assert number < 30 * count  # A moment is in the middle of a run with a probability of a half.
        if force := number % 2:
            arguments = [*GIVEN, "--force"]
        else:
            arguments = GIVEN
            for name in ("out.csv", "out.csv.json"):
                Path(name).unlink(missing_ok=True)
        before = Path("out.csv").read_bytes() if force and Path("out.csv").exists() else None
        started = time.monotonic()
        process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(source.uniform(0.3, 1.1) * whole)
        process.kill()
        if process.wait() == -signal.SIGKILL:
            killed += 1
        else:  # The machine is faster now.
            whole = min(whole, time.monotonic() - started)
        if Path("out.csv").exists():
            assert run("certify", "--verify", "out.csv.json").code == 0
        else:
            assert before is None  # there was a release, and there is one now
    again = run(*GIVEN, *(["--force"] if Path("out.csv").exists() else []))
    assert again.code == 0, again.err
    assert run("certify", "--verify", "out.csv.json").code == 0
    assert_nothing_but(*OURS)


@pytest.mark.thorough
def test_kills_at_random_moments(run: Run) -> None:
    kill_at_random(run, 3, seed=1)


@pytest.mark.slow
def test_a_hundred_kills_at_random_moments(run: Run) -> None:
    kill_at_random(run, 100, seed=2)


# Races


def race(count: int) -> None:
    write(Path("in.csv"), ages(20_000))
    Ledger.create("people.ledger", count)
    arguments = [*COMMAND, *GIVEN, "--ledger", "people.ledger"]
    processes = [subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) for _ in range(count)]
    errors = [process.communicate(timeout=600)[1] for process in processes]
    codes = [process.returncode for process in processes]
    assert sorted(codes)[:2] == [0, 1 if 1 in codes else 2]
    for code, error in zip(codes, errors, strict=True):
        words = {0: "", 1: "out.csv: another process is writing it", 2: "out.csv exists; --force replaces it"}
        assert words[code] in error
    assert len(Ledger("people.ledger").state().entries) == 1
    assert_nothing_but(*OURS, "people.ledger")


@pytest.mark.thorough
def test_of_racing_processes_one_wins_and_only_it_is_charged(run: Run) -> None:
    race(4)


@pytest.mark.slow
def test_of_twenty_racing_processes_one_wins(run: Run) -> None:
    race(20)


def test_a_claimed_output_is_refused_and_what_is_there_is_not_touched(run: Run) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    Ledger.create("people.ledger", 1)
    with Output(Path("in.csv"), Path("out.csv")).run() as other:
        descriptor_path(other.file).write_text("half")
        refused = run(*GIVEN, "--ledger", "people.ledger")
        assert_refused(refused, 5, "out.csv: another process is writing it")
        assert Ledger("people.ledger").state().entries == ()
        other.commit(sidecar_text("half"))
    assert Path("out.csv").read_text() == "half"
    assert_nothing_but(*OURS, "people.ledger")


def test_an_output_that_appears_meanwhile_is_not_replaced(run: Run) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    with Output(Path("in.csv"), Path("out.csv")).run() as new:
        Path("out.csv").write_text("of another program")
        with pytest.raises(click.UsageError, match=r"out\.csv exists"):
            new.commit(sidecar_text(""))
    assert Path("out.csv").read_text() == "of another program"
    assert_nothing_but("in.csv", "out.csv")


def test_names_are_claimed_one_at_a_time(tmp_path: Path) -> None:
    with claimed(tmp_path / "a"), claimed(tmp_path / "b"):
        with pytest.raises(TakenError, match="another process"), claimed(tmp_path / "a"):
            pass
        with pytest.raises(TakenError), claimed(tmp_path / "a", timeout=0.05):
            pass
    with claimed(tmp_path / "a"):
        pass
    assert list(tmp_path.iterdir()) == []


# What killed runs left


def test_what_killed_runs_left_is_removed_and_that_is_said(run: Run) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    with staged(Path("out.csv")) as ours, staged(Path("other.csv")) as others:
        dead, alive = ours.path.with_name(ours.path.name), others.path
        folder = Path(dead.name + "s")
        folder.mkdir()
        (folder / "part-0.csv").write_text("x" * 70)
        (folder / "part-1.csv").write_text("x" * 7)
        kept = dead.with_name(dead.name.replace(".part", ".txt"))
        kept.write_text("not ours")
        ours.file.write(b"x" * 1000)
        ours.file.flush()
        done = run(*GIVEN)
        assert done.code == 0
        assert done.err.splitlines() == [
            "dpkernels: removed 1 file of 1000 bytes in all that a killed run to out.csv had left",
            "dpkernels: removed 1 folder of 77 bytes in all that a killed run to out.csv had left",
        ]
        assert (dead.exists(), folder.exists(), alive.exists(), kept.exists()) == (False, False, True, True)
    kept.unlink()
    assert_nothing_but(*OURS)


def test_a_planted_link_is_not_swept_through(tmp_path: Path) -> None:
    victim, target = tmp_path / "victim", tmp_path / "out.csv"
    victim.write_text("mine")
    with staged(target) as new:
        planted = new.path.with_name(new.path.name[:-21] + "0" * 16 + ".part")
    planted.symlink_to(victim)
    assert sweep(target) == []
    assert (planted.is_symlink(), victim.read_text()) == (True, "mine")


@pytest.mark.thorough
def test_standard_output_that_is_killed_leaves_no_copy(run: Run, tmp_path: Path) -> None:
    Path("in.csv").write_text("age\n" + "50\n" * 3_000_000)
    Path("temporary").mkdir()
    arguments = ["perturb", "-", "-", "--format", "csv", "--sidecar", "out.json", "--column", "age", *AGE]
    arguments += ["--ledger", "people.ledger", "--budget", "3"]
    options: dict[str, Any] = {
        "env": {**os.environ, "TMPDIR": str(tmp_path / "temporary")},
    }
    with Path("in.csv").open() as source:
        process = subprocess.Popen([*COMMAND, *arguments], stdin=source, stdout=subprocess.PIPE, **options)
    assert process.stdout is not None
    assert process.stdout.read(1)  # It has begun to write, and waits for a reader of more than a pipe holds.
    process.kill()
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    assert list(Path("temporary").iterdir()) == []
    assert len(Ledger("people.ledger").state().entries) == 1
    with Path("in.csv").open() as source:
        again = subprocess.run(
            [*COMMAND, *arguments],
            stdin=source,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
            **options,
        )
    assert again.returncode == 0, again.stderr
    assert_nothing_but("in.csv", "out.json", "people.ledger", "temporary")
    assert list(Path("temporary").iterdir()) == []


def test_the_private_copy_of_standard_output_has_no_name(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    Path("temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", "temporary")
    seen = list[int]()

    def noted(file: Any) -> Any:
        seen.extend((descriptor_path(file).stat().st_size, len(list(Path("temporary").iterdir()))))
        return sha256_and_size(file)

    monkeypatch.setattr("dpkernels.cli.perturb.rows.sha256_and_size", noted)
    done = run("perturb", "in.csv", "-", "--format", "csv", "--sidecar", "out.json", "--column", "age", *AGE)
    assert (done.code, seen) == (0, [len(done.out), 0])


# Links and permissions


def test_a_planted_link_is_never_written_through(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    Path("victim").write_text("mine")
    names = iter([f"{number:016x}" for number in range(99)])
    monkeypatch.setattr("dpkernels.staging.secrets.token_hex", lambda _: next(names))
    with staged(Path("out.csv")) as new:
        lock = new.path.with_name(new.path.name[:-22] + ".lock")
        planted = new.path.with_name(new.path.name.replace("0" * 16, f"{1:016x}"))
    planted.symlink_to("victim")
    with pytest.raises(FileExistsError), staged(Path("out.csv")):
        pass
    planted.unlink()
    lock.symlink_to("victim")
    assert_refused(run(*GIVEN), 1, lock.name)
    lock.unlink()
    assert Path("victim").read_text() == "mine"
    assert_nothing_but("in.csv", "victim")


def test_what_is_being_made_is_for_its_owner_alone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a release is complete, whatever its input and its folder let others do."""
    Path("in.csv").write_text(GOOD_CSV)
    Path("in.csv").chmod(0o666)
    seen, replaced = dict[str, int](), DelimitedFile.replaced

    def looked(*given: Any) -> Any:
        seen.update({path.suffix: path.stat().st_mode & 0o777 for path in Path().glob(".dpkernels-*")})
        return replaced(*given)

    monkeypatch.setattr(DelimitedFile, "replaced", looked)
    before = os.umask(0)
    try:
        assert run(*GIVEN).code == 0
        with staged_folder(Path("out")) as folder:
            assert folder.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)
    assert seen == {".part": 0o600, ".lock": 0o600}


def test_a_link_put_in_place_of_the_new_file_is_not_written_through(run: Run) -> None:
    """In a folder where others may write, the name may become another file between two openings of it."""
    Path("in.csv").write_text(GOOD_CSV)
    Path("victim").write_text("mine")
    with Output(Path("in.csv"), Path("out.csv")).run() as new:
        (name,) = (path for path in Path().glob(".dpkernels-*.part") if path.samefile(descriptor_path(new.file)))
        name.unlink()
        name.symlink_to("victim")
        descriptor_path(new.file).write_text("reports")
        assert Path("victim").read_text() == "mine"


def mode(name: str) -> int:
    return Path(name).stat().st_mode & 0o7777


@pytest.mark.parametrize("given", [0o600, 0o640, 0o644, 0o6755, 0o1666])
def test_output_sidecar_and_ledger_are_no_more_open_than_the_input(run: Run, given: int) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    Path("in.csv").chmod(given)
    before = os.umask(0)
    try:
        assert run(*GIVEN, "--ledger", "people.ledger", "--budget", "3").code == 0
        assert run(*GIVEN, "--ledger", "people.ledger", "--force").code == 0
    finally:
        os.umask(before)
    assert {mode(name) for name in ("out.csv", "out.csv.json", "people.ledger")} == {given & 0o777}


def test_the_input_s_group_and_others_are_not_let_in_as_each_other(run: Run) -> None:
    if os.geteuid():
        pytest.skip("needs to give a file to another group")
    for given, expected in ((0o640, 0o600), (0o604, 0o600), (0o664, 0o644)):
        Path("in.csv").write_text(GOOD_CSV)
        os.chown("in.csv", -1, os.getegid() + 4321)
        Path("in.csv").chmod(given)
        release(f"{given}")
        assert mode("out.csv") == mode("out.csv.json") == expected


# Targets that are refused before anything is charged

FULL = 255  # bytes of a name
REFUSED: dict[str, tuple[str, str]] = {
    "a name that is too long": ("x" * FULL + ".csv", "File name too long"),
    "no room for .json": ("x" * (FULL - 4) + ".csv", "File name too long"),
    "a folder as sidecar": ("folder.csv", "folder.csv.json is a folder"),
    "a pipe": ("pipe.csv", "pipe.csv is not a file"),
    "a huge sidecar": ("huge.csv", "bytes and is no sidecar"),
    "an empty name": ("", "an empty name"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("more", [[], ["--force"], ["--check"]])
def test_impossible_targets_are_refused_before_the_charge(run: Run, case: str, more: list[str]) -> None:
    name, words = REFUSED[case]
    Path("in.csv").write_text(GOOD_CSV)
    Path("folder.csv.json").mkdir()
    os.mkfifo("pipe.csv")
    with Path("huge.csv.json").open("wb") as file:
        file.truncate(1 << 30)
    options = ["perturb", "in.csv", name, "--column", "age", *AGE, "--ledger", "people.ledger", "--budget", "3"]
    assert_refused(run(*options, *more), 2, words)
    assert_nothing_but("in.csv", "folder.csv.json", "pipe.csv", "huge.csv.json")


def test_an_unwritable_folder_is_refused(tmp_path: Path) -> None:
    script = f"""
import os, sys
from pathlib import Path
from dpkernels.cli.perturb.output import check_target
if os.geteuid() == 0: os.setgid(65534); os.setuid(65534)
try: check_target(Path({str(tmp_path / "in.csv")!r}), Path("closed/out.csv"), False)
except Exception as error: print(error.message)
"""
    (tmp_path / "closed").mkdir(mode=0o555)
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    done = as_process(script=script, cwd=tmp_path)
    assert done.stdout == "OUT: the folder closed cannot be written\n", done.stderr


def test_a_pipe_is_not_read_as_a_file(run: Run) -> None:
    """It would be read twice: the first block, with the header, would be lost."""
    os.mkfifo("in.csv")
    assert_refused(run(*GIVEN), 2, "IN: in.csv is a pipe; it must be a file, or - for standard input")


@pytest.mark.parametrize(
    "arguments", [[*GIVEN, "--ledger", "-", "--budget", "1"], ["explore", "--output", "-"], ["explore", "--output", ""]]
)
def test_no_file_is_called_dash(run: Run, arguments: list[str]) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    assert_refused(
        run(*arguments), 2, "- is not a file; ./- is one of this name" if "-" in arguments else "an empty name"
    )
    assert_nothing_but("in.csv")
    assert run("explore", "--output", "./-").code == 0
    assert Path("-").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("stream", "places"),
    [("stdin", ["-", "out.csv", "--format", "csv"]), ("stdout", ["in.csv", "-", "--sidecar", "a.json"])],
)
def test_a_closed_standard_stream_is_refused_before_the_charge(
    run: Run, monkeypatch: pytest.MonkeyPatch, stream: str, places: list[str]
) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    monkeypatch.setattr(sys, stream, None)
    options = ["perturb", *places, "--column", "age", *AGE, "--ledger", "people.ledger", "--budget", "3"]
    assert_refused(run(*options), 2, "- is closed; name a file, or leave the standard stream open")
    assert_nothing_but("in.csv")


def test_a_page_that_does_not_fit_on_the_disk_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dpkernels.staging.os.fsync", full)
    assert_refused(run("explore", "--output", "page.html"), 5, "page.html: No space left on device")
    assert_refused(run("explore", "--output", "no/page.html"), 2, "the folder no does not exist")
    assert_nothing_but()


def test_a_damaged_double_sidecar_is_named(run: Run) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    Path("out.csv.json").write_bytes(b'{"replacing": \xff')
    assert_refused(run(*GIVEN), 1, "out.csv.json: is damaged, and was being replaced")


# --check and --check-first

BAD_ROWS = {"no number": "z,old\n", "out of bounds": "z,121\n", "not finite": "z,nan\n"}


@pytest.mark.parametrize("case", BAD_ROWS)
@pytest.mark.parametrize("option", ["--check", "--check-first"])
def test_bad_cells_are_found_before_the_charge(run: Run, case: str, option: str) -> None:
    Path("in.csv").write_text(GOOD_CSV + BAD_ROWS[case])
    ledger = ["--ledger", "people.ledger", "--budget", "3"]
    assert_refused(run(*GIVEN, *ledger, option), 1, "column 'age': row 2 (line 4) is ")
    assert_nothing_but("in.csv")
    if case == "out of bounds":
        assert run(*GIVEN, *ledger, option, "--clip").code == 0


def test_check_writes_and_charges_nothing(run: Run) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    ledger = ["--ledger", "people.ledger", "--budget", "3"]
    done = run(*GIVEN, *ledger, "--check")
    assert (done.code, done.err) == (0, "")
    assert "total epsilon a row: 1; " in done.out
    assert "ledger people.ledger: would be made, and epsilon 2, delta 0 be left\n" in done.out
    assert done.out.endswith("2 rows can be released; nothing was charged or written\n")
    assert_nothing_but("in.csv")
    assert run(*GIVEN, *ledger, "--check-first").code == 0
    content = {name: Path(name).read_bytes() for name in (*OURS, "people.ledger")}
    done = run(*GIVEN, *ledger, "--check", "--force")
    assert "ledger people.ledger: epsilon 1, delta 0 fits; epsilon 1, delta 0 would be left\n" in done.out
    assert_refused(run(*GIVEN, "--check"), 2, "out.csv exists")
    assert {name: Path(name).read_bytes() for name in content} == content


def test_check_refuses_what_does_not_fit_the_budget(run: Run) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    assert_refused(run(*GIVEN, "--ledger", "people.ledger", "--budget", "0.5", "--check"), 3, "left epsilon 0.5")
    assert_nothing_but("in.csv")
    Ledger.create("people.ledger", 1).charge(0.5)
    assert_refused(run(*GIVEN, "--ledger", "people.ledger", "--check"), 3, "left epsilon 0.5")
    assert_refused(run(*GIVEN, "--ledger", "people.ledger", "--budget", "2", "--check"), 1, "has a budget of epsilon 1")


def test_a_file_without_rows_is_found_by_check(run: Run) -> None:
    Path("in.csv").write_text("id,age\n")
    assert_refused(run(*GIVEN, "--check"), 1, "is empty")


# Exit codes


def in_shell(redirection: str, *arguments: str, script: str = COMMAND[2]) -> Result:
    command = ["sh", "-c", f'"$@" {redirection}', "sh", sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return Result(done.returncode, done.stdout, done.stderr)


slowly = [pytest.param(one, marks=pytest.mark.slow) for one in (">&- 2>&-", "2>&-", "<&- >&- 2>&-")]


@pytest.mark.thorough
@pytest.mark.parametrize("redirection", ["> /dev/full", ">&-", *slowly])
def test_a_complete_release_is_a_success_whoever_can_read_it(run: Run, redirection: str) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    done = in_shell(redirection, *GIVEN)
    assert done.code == 0
    note = "dpkernels: the output is complete; what came after failed: standard output: No space left on device\n"
    assert done.err == (note if "full" in redirection else "")
    assert run("certify", "--verify", "out.csv.json").code == 0
    assert_nothing_but(*OURS)


CHATTY = """
import os, sys
from dpkernels.cli import main
from dpkernels.cli.perturb import output
place = output._move_into_place
def chatty(*arguments):
    for stream in (1, 2): os.write(stream, b"from a library")
    place(*arguments)
output._move_into_place = chatty
sys.exit(main())
"""


@pytest.mark.thorough
def test_a_library_that_writes_to_a_closed_stream_does_not_write_to_the_output(run: Run) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    assert in_shell(">&- 2>&-", *GIVEN, script=CHATTY).code == 0
    assert run("certify", "--verify", "out.csv.json").code == 0


@pytest.mark.lengthy
def test_a_broken_pipe_after_a_complete_release_is_a_success(run: Run) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    read, written = os.pipe()
    os.close(read)
    done = as_process(*GIVEN, stdout=written, stderr=subprocess.PIPE, capture_output=False)
    os.close(written)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.lengthy
def test_what_is_only_printed_fails_if_it_cannot_be(run: Run) -> None:
    full = in_shell("> /dev/full", "mechanisms")
    assert (full.code, full.err) == (5, "dpkernels: error: standard output: No space left on device\n")
    assert in_shell(">&-", "mechanisms") == Result(0, "", "")


@pytest.mark.usefixtures("requests_to_stop_are_heeded")
@pytest.mark.parametrize("request_to_stop", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_stop_after_the_commit_comes_too_late(
    run: Run, monkeypatch: pytest.MonkeyPatch, request_to_stop: signal.Signals
) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    lines = summary.summary_lines

    def late(*arguments: Any) -> Any:
        os.kill(os.getpid(), request_to_stop)
        return lines(*arguments)

    monkeypatch.setattr(summary, "summary_lines", late)
    done = run(*GIVEN)
    assert (done.code, done.err) == (0, "")
    assert run("certify", "--verify", "out.csv.json").code == 0


@pytest.mark.thorough
@pytest.mark.usefixtures("requests_to_stop_are_heeded")
def test_a_request_to_stop_as_the_process_ends_comes_too_late(run: Run) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    at_exit = "import atexit, os, signal; atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
    done = as_process(*GIVEN, script=at_exit + COMMAND[2])
    assert (done.returncode, done.stderr) == (0, "")


IN_A_CALLBACK = """
import gc, os, signal, sys
from dpkernels.cli import main
gc.set_threshold(50)
def ask(phase, info):
    if os.path.exists("asked") or not any(name.endswith(".part") for name in os.listdir()): return
    open("asked", "w").close()
    os.kill(os.getpid(), REQUEST)
gc.callbacks.append(ask)
sys.exit(main())
"""


@pytest.mark.thorough
@pytest.mark.usefixtures("requests_to_stop_are_heeded")
def test_an_interrupt_in_a_callback_of_the_garbage_collector_prints_no_traceback(run: Run) -> None:
    Path("in.csv").write_text("age\n" + "50\n" * 2_000_000)
    done = as_process(*GIVEN, script=IN_A_CALLBACK.replace("REQUEST", "signal.SIGINT"))
    assert Path("asked").exists()
    assert (done.returncode, done.stderr) == (1, "dpkernels: error: interrupted\n")
    assert_nothing_but("in.csv", "asked")


@pytest.mark.lengthy
@pytest.mark.quick("15")
@pytest.mark.parametrize("ignored", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_request_that_the_caller_ignores_stops_nothing(run: Run, ignored: signal.Signals) -> None:
    """As of a process that a shell started in the background, or nohup; the release is whole."""
    Path("in.csv").write_text("age\n" + "50\n" * 200_000)
    before = f"import signal; signal.signal({int(ignored)}, signal.SIG_IGN)\n"
    done = as_process(*GIVEN, script=before + IN_A_CALLBACK.replace("REQUEST", str(int(ignored))))
    assert Path("asked").exists()
    assert (done.returncode, done.stderr) == (0, "")
    assert run("certify", "--verify", "out.csv.json").code == 0
    assert_nothing_but(*OURS, "asked")


def test_other_unraisable_errors_are_still_printed(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Any] = []
    before, sys.unraisablehook = sys.unraisablehook, seen.append
    try:
        with interrupts.interruptible(interrupts.Requests()):
            for error in (ValueError(), KeyboardInterrupt()):

                class Failing:
                    def __del__(self, error: BaseException = error) -> None:
                        raise error

                Failing()
    finally:
        sys.unraisablehook = before
    assert [one.exc_type for one in seen] == [ValueError]


@pytest.mark.usefixtures("requests_to_stop_are_heeded")
@pytest.mark.parametrize("moment", ["claimed", "sweep", "staged", "settle"])
def test_an_interrupt_as_the_output_is_made_leaves_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    write(Path("in.csv"), ages(3))
    step = getattr(output, moment)

    def and_interrupt(*arguments: Any) -> Any:
        done = step(*arguments)
        os.kill(os.getpid(), signal.SIGINT)
        return done

    monkeypatch.setattr(output, moment, and_interrupt)
    assert_refused(run(*GIVEN), 1, "interrupted")
    assert_nothing_but("in.csv")


@pytest.mark.usefixtures("requests_to_stop_are_heeded")
def test_a_command_leaves_no_request_to_stop_to_the_next_work_of_its_process(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(Path("in.csv"), ages(3))
    with monkeypatch.context() as patch:
        patch.setattr(output, "settle", lambda _: os.kill(os.getpid(), signal.SIGINT))
        assert_refused(run(*GIVEN), 1, "interrupted")
    assert not interrupts.is_independent(OSError())
    interrupts.raise_if_interrupted()


# Imports


@pytest.mark.parametrize("arguments", [["ledger", "people.ledger"], []])
def test_light_commands_do_not_load_jax(run: Run, arguments: list[str]) -> None:
    Ledger.create("people.ledger", 1)
    script = (
        f"import sys; from dpkernels.cli import main; code = main({arguments!r})\n"
        "sys.exit(str(heavy) if (heavy := {'jax', 'scipy', 'accountants'} & set(sys.modules)) or code else 0)"
    )
    done = as_process(script=script)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_the_parts_of_a_double_sidecar(tmp_path: Path) -> None:
    """What a reader is told of each release that may be there."""
    target = tmp_path / "out.csv"
    old, new = sidecar_text("old"), sidecar_text("new")
    for text in (old, "no JSON \udcff"):
        double = '{"replacing": ' + json.dumps(text) + ", " + new[1:]
        assert matching_sidecar(target, double) == text
        target.write_text("new")
        assert matching_sidecar(target, double) == new
        target.write_text("old")
        assert matching_sidecar(target, double) == text
        target.unlink()
    assert matching_sidecar(target, '{"replacing": null, ' + new[1:]) is None
    assert matching_sidecar(target, old) == old
    assert sidecar_path(target).name == "out.csv.json"


@pytest.mark.parametrize("arguments", [("--help",), ("perturb", "--help")])
def test_a_reader_that_has_gone_is_a_failure_without_a_message(arguments: tuple[str, ...]) -> None:
    read, written = os.pipe()
    os.close(read)
    done = as_process(*arguments, stdout=written, stderr=subprocess.PIPE, capture_output=False)
    os.close(written)
    assert (done.returncode, done.stderr) == (1, "")
