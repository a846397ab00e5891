"""A killed run of a dataset that ``--resume`` continues: every row gets noise once, for one charge."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_helpers import AGE, COLUMN, Run, assert_refused, command
from dataset_helpers import names, write

from dpkernels.budgets.ledger import Ledger
from dpkernels.cli.dataset import perturb
from dpkernels.cli.dataset.folder import JOURNAL, SIDECAR, LocalFolder

run = pytest.fixture(command, name="run")

FILES, ROWS = 4, 50
LEDGER = ["--ledger", "people.ledger"]
RELEASE = ["perturb", "in", "out", *COLUMN, *AGE]


def killed(run: Run, patch: pytest.MonkeyPatch, complete: int, more: list[str]) -> Path:
    """What a run leaves that is killed when so many parts are complete; its files are all that it leaves."""
    write(Path("in"), files=FILES, rows=ROWS)
    note, begin, left = LocalFolder.note, LocalFolder.begin, list[Path]()

    def copy(folder: LocalFolder) -> None:
        entries = (folder.staging / JOURNAL).read_text().count("sha256")
        if entries == complete and not left:
            left.append(folder.staging)
            # Other threads may be writing parts: those have another name in the next moment.
            shutil.copytree(folder.staging, "left", ignore=shutil.ignore_patterns("*.part"))
            for name in {path.name for path in Path("left").glob("0*")} - {
                json.loads(line)["name"] for line in (folder.staging / JOURNAL).read_text().splitlines()[1:]
            }:
                (Path("left") / name).unlink()
            if more:
                shutil.copy("people.ledger", "left.ledger")

    def noting(folder: LocalFolder, entry: Any) -> None:
        note(folder, entry)
        copy(folder)

    def beginning(folder: LocalFolder, entry: Any) -> None:
        begin(folder, entry)
        copy(folder)

    if more:
        Ledger.create("people.ledger", 1.5)
    with patch.context() as patched:
        patched.setattr(LocalFolder, "note", noting)
        patched.setattr(LocalFolder, "begin", beginning)
        assert run(*RELEASE, *more).code == 0
    shutil.rmtree("out")
    return killed_again(left[0], more)


def killed_again(left: Path, more: list[str]) -> Path:
    """The same once more: the state of the run and of its ledger are those of the moment when it was killed."""
    shutil.rmtree("out", ignore_errors=True)
    for path in Path().glob(".dpkernels-*"):
        shutil.rmtree(path)
    shutil.copytree("left", left)
    if more:
        shutil.copy("left.ledger", "people.ledger")
    return left


@pytest.mark.parametrize("more", [[], LEDGER], ids=["no ledger", "ledger"])
@pytest.mark.parametrize("complete", range(FILES + 1))
def test_a_killed_run_is_continued(run: Run, monkeypatch: pytest.MonkeyPatch, complete: int, more: list[str]) -> None:
    left = killed(run, monkeypatch, complete, more)
    before = {path.name: path.read_bytes() for path in left.glob("0*")}
    assert len(before) == complete
    (left / ".dpkernels-0-1.part").write_text("half a part")
    with (left / JOURNAL).open("a") as file:
        file.write('{"name": "half an entry')
    done = run(*RELEASE, *more, "--resume", "--json")
    assert done.code == 0, done
    assert json.loads(done.out)["rows"] == FILES * ROWS
    assert names("out") == [*(f"{at:04}.parquet" for at in range(FILES)), SIDECAR]
    assert all(Path("out", name).read_bytes() == text for name, text in before.items())
    assert run("certify", "--verify", f"out/{SIDECAR}").code == 0
    parts = json.loads(Path("out", SIDECAR).read_text())["output"]["parts"]
    assert [(part["name"], part["input"]) for part in parts] == [(f"{at:04}.parquet",) * 2 for at in range(FILES)]
    if more:
        assert Ledger("people.ledger").state().spent.epsilon == 1
        assert [entry.amounts.epsilon for entry in Ledger("people.ledger").state().entries] == [1, 0, 0]
    assert not [path for path in Path().iterdir() if path.name.startswith(".dpkernels")]
    assert_refused(run(*RELEASE, *more, "--resume"), 2)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_folder_that_others_can_write_is_not_continued(run: Run, monkeypatch: pytest.MonkeyPatch, mode: int) -> None:
    left = killed(run, monkeypatch, FILES, LEDGER)
    left.chmod(mode)
    assert_refused(run(*RELEASE, *LEDGER, "--resume"), 2, "other users can write there")
    assert left.is_dir()
    assert Ledger("people.ledger").state().spent.epsilon == 1
    left.chmod(0o755)
    assert run(*RELEASE, *LEDGER, "--resume").code == 0


def test_a_folder_of_another_user_is_not_continued(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    left = killed(run, monkeypatch, FILES, LEDGER)
    if os.geteuid() == 0:
        os.chown(left, 12345, -1)
    else:  # The run is then another user's.
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert_refused(run(*RELEASE, *LEDGER, "--resume"), 2, "the folder of another user")
    assert left.is_dir()
    assert not Path("out").exists()


def _same_stamp(path: Path) -> None:
    status, text = path.stat(), bytearray(path.read_bytes())
    text[len(text) // 2] ^= 1
    path.write_bytes(bytes(text))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _complete(left: Path) -> Path:
    """One of the parts that are complete, which may be any: threads make them in any order."""
    return min(left.glob("0*"))


def _voided(_: Path) -> None:
    ledger = Ledger("people.ledger")
    ledger._made.add((os.getpid(), 1))
    ledger.void(1)


def _other_ledger(_: Path) -> None:
    Path("people.ledger").unlink()
    Ledger.create("people.ledger", 1.5).charge(1, 0, "perturb 0000.parquet and on to out")


CHANGES: dict[str, tuple[Callable[[Path], object], list[str], str]] = {
    "an input of the same size and time": (lambda _: _same_stamp(Path("in/0003.parquet")), LEDGER, "input files"),
    "a complete input": (lambda _: _same_stamp(Path("in/0000.parquet")), LEDGER, "input files"),
    "another file": (lambda _: shutil.copy("in/0000.parquet", "in/0009.parquet"), LEDGER, "input files"),
    "other options": (lambda _: None, [*LEDGER, "--clip"], "options"),
    "other bounds": (lambda _: None, [*LEDGER, "--upper", "121"], "options"),
    "another ledger": (_other_ledger, LEDGER, "does not have the charge"),
    "no ledger": (lambda _: None, [], "the killed run charged a ledger"),
    "a voided charge": (_voided, LEDGER, "is voided"),
    "a part that was taken away": (lambda left: _complete(left).rename("mine"), LEDGER, "taken away"),
    "a part that was changed": (lambda left: _same_stamp(_complete(left)), LEDGER, "was changed"),
    "a damaged journal": (lambda left: (left / JOURNAL).write_text("[]\n"), LEDGER, "journal"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_run_is_not_continued_after_a_change(run: Run, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    left = killed(run, monkeypatch, 2, LEDGER)
    change, more, words = CHANGES[name]
    change(left)
    spent = Ledger("people.ledger").state().spent
    arguments = RELEASE if "--upper" not in more else [*RELEASE[:3], *COLUMN, "--lower", "0", "--epsilon", "1"]
    done = run(*arguments, *more, "--resume")
    assert_refused(done, 1 if "damaged" in name else 2, words)
    assert not Path("out").exists()
    assert Ledger("people.ledger").state().spent == spent


def test_a_run_of_another_version_is_not_continued(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    killed(run, monkeypatch, 2, LEDGER)
    monkeypatch.setattr(perturb, "versions", lambda: {"numpy": "0"})
    assert_refused(run(*RELEASE, *LEDGER, "--resume"), 2, "versions")


@pytest.mark.parametrize("is_completed", [True, False])
def test_a_copy_of_a_run_is_not_continued_twice(run: Run, monkeypatch: pytest.MonkeyPatch, is_completed: bool) -> None:
    """Its other rows would get other noise, for the charge that the first ones were made for."""
    left = killed(run, monkeypatch, 2, LEDGER)
    copied: list[Path] = []
    note = LocalFolder.note

    def noting(folder: LocalFolder, entry: Any) -> None:
        note(folder, entry)
        if "marks" in entry and not copied:
            copied.append(folder.staging)
            shutil.copytree(folder.staging, "copy")

    with monkeypatch.context() as patched:
        patched.setattr(LocalFolder, "note", noting)
        assert run(*RELEASE, *LEDGER, "--resume").code == 0
    shutil.move("out", "first")
    shutil.copytree("copy" if is_completed else "left", left)  # at its second beginning, or when it was killed
    assert_refused(run(*RELEASE, *LEDGER, "--resume"), 2, "was continued or completed")
    assert not Path("out").exists()


def test_a_run_that_is_complete_is_not_continued_from_a_copy(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    left = killed(run, monkeypatch, 2, LEDGER)
    assert run(*RELEASE, *LEDGER[:1], "other.ledger", "--budget", "1").code == 0
    shutil.rmtree("out")
    with monkeypatch.context() as patched:
        patched.setattr("dpkernels.cli.dataset.folder.place_folder", lambda *_: None)
        assert not left.exists()
        shutil.copytree("left", left)
        assert run(*RELEASE, *LEDGER, "--resume").code == 0  # complete, and never seen
    done = run(*RELEASE, *LEDGER, "--resume")
    assert (done.code, "0 killed runs" in done.err) == (2, True)
    shutil.copytree("left", left)
    assert_refused(run(*RELEASE, *LEDGER, "--resume"), 2, "was continued or completed")


def test_a_disk_that_was_full_costs_no_second_charge(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Path("in"), files=FILES, rows=ROWS)
    Ledger.create("people.ledger", 1)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(LocalFolder, "commit", full)
        done = run(*RELEASE, *LEDGER)
        assert_refused(done, 1, "No space left on device", "stays in people.ledger", "--resume continues the run")
        (left,) = Path().glob(".dpkernels-*.parts")
        before = {path.name: path.read_bytes() for path in left.glob("0*")}
        assert len(before) == FILES
        assert_refused(run(*RELEASE, *LEDGER, "--resume"), 1, "No space left on device", "stays in people.ledger")
    assert run(*RELEASE, *LEDGER).code == 3  # which removes nothing
    assert run(*RELEASE, *LEDGER, "--resume").code == 0
    assert all(Path("out", name).read_bytes() == text for name, text in before.items())
    assert Ledger("people.ledger").state().spent.epsilon == 1


def test_a_disk_that_is_full_before_the_first_part_costs_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Path("in"), files=FILES, rows=ROWS)
    Ledger.create("people.ledger", 1)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(LocalFolder, "begin", full)
        assert_refused(run(*RELEASE, *LEDGER), 5, "No space left on device", "is voided")
    assert list(Path().glob(".dpkernels-*")) == []
    assert run(*RELEASE, *LEDGER).code == 0
    assert Ledger("people.ledger").state().spent.epsilon == 1


@pytest.mark.parametrize("is_resumed", [False, True])
@pytest.mark.parametrize("more", [[], LEDGER], ids=["no ledger", "ledger"])
def test_a_failure_that_may_depend_on_reports_is_not_continued(
    run: Run, monkeypatch: pytest.MonkeyPatch, more: list[str], is_resumed: bool
) -> None:
    """Parts would be drawn again until they fit on the disk, for one charge."""
    if is_resumed:
        killed(run, monkeypatch, 1, more)
    else:
        write(Path("in"), files=FILES, rows=ROWS)
        Ledger.create("people.ledger", 1.5)
    note, noted = LocalFolder.note, list[Any]()

    def noting(folder: LocalFolder, entry: Any) -> None:
        noted.append(entry)
        if "sha256" in entry and len(noted) > 2:
            raise OSError(28, "No space left on device")
        note(folder, entry)

    with monkeypatch.context() as patched:
        patched.setattr(LocalFolder, "note", noting)
        done = run(*RELEASE, *more, *["--resume"] * is_resumed)
    assert_refused(done, 1 if more else 5, "No space left on device", *["stays in people.ledger"] * bool(more))
    assert "--resume" not in done.err
    assert not list(Path().glob(".dpkernels-*"))
    assert_refused(run(*RELEASE, *more, "--resume"), 2, "0 killed runs")


def _copy_goes_on(_: Any) -> None:
    Ledger("people.ledger").charge(0, 0, "the run of charge 1 was continued or completed")


@pytest.mark.parametrize("meanwhile", [_copy_goes_on, _voided])
@pytest.mark.parametrize("is_resumed", [False, True])
def test_of_a_run_and_its_copy_one_is_complete(
    run: Run, monkeypatch: pytest.MonkeyPatch, is_resumed: bool, meanwhile: Callable[[Any], None]
) -> None:
    """A copy of the hidden folder, made while the run goes on, is continued elsewhere, or the run voids its charge."""
    if is_resumed:
        killed(run, monkeypatch, 1, LEDGER)
    else:
        write(Path("in"), files=FILES, rows=ROWS)
        Ledger.create("people.ledger", 1.5)
    commit = LocalFolder.commit

    def committing(folder: LocalFolder, *arguments: Any) -> None:
        meanwhile(Path())
        commit(folder, *arguments)

    monkeypatch.setattr(LocalFolder, "commit", committing)
    done = run(*RELEASE, *LEDGER, *["--resume"] * is_resumed)
    assert_refused(done, 1, "continued or completed by another one, or its charge was voided")
    assert not Path("out").exists()


def test_a_charge_whose_run_was_copied_is_not_voided(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Path("in"), files=FILES, rows=ROWS)
    Ledger.create("people.ledger", 1.5)

    def interrupted(folder: LocalFolder, *_: Any) -> None:
        _copy_goes_on(folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalFolder, "commit", interrupted)
    assert_refused(run(*RELEASE, *LEDGER), 1, "stays in people.ledger", "a copy of the run was continued")
    assert Ledger("people.ledger").state().spent.epsilon == 1


def test_what_cannot_be_continued_is_refused(run: Run) -> None:
    write(Path("in"), files=FILES, rows=ROWS)
    assert_refused(run(*RELEASE, "--resume"), 2, "0 killed runs")
    assert_refused(run("perturb", "in/0000.parquet", "o.parquet", *COLUMN, *AGE, "--resume"), 2, "is for a dataset")


def test_all_bad_rows_of_a_dataset_are_reported_at_once(run: Run) -> None:
    Path("in").mkdir()
    for at in range(3):
        Path(f"in/{at}.csv").write_text(f"id,age\na,1\nb,{'' if at else 5}\nc,{501.25 if at == 2 else 7}\nd,3\n")
    done = run(*RELEASE, "--json")
    payload = json.loads(done.out)
    assert (done.code, payload["rows"]["counts"]) == (1, {"missing": 2, "outside the interval": 1})
    places = [row["place"].partition("/in/")[2] for row in payload["rows"]["first"]]
    assert places == ["1.csv: row 1 (line 3)", "2.csv: row 1 (line 3)", "2.csv: row 2 (line 4)"]
    assert "501.25" not in done.out


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["in/part0.csv", "in/part1.csv"], ["part0.csv", "part1.csv"]),
        (["in/a/x.csv", "in/b/x.csv"], ["part-0.csv", "part-1.csv"]),  # one name
        (["in/a/y.csv", "in/b/x.csv"], ["part-0.csv", "part-1.csv"]),  # another order
        (["in/a/x.csv", "in/b/_x.csv"], ["part-0.csv", "part-1.csv"]),  # a name that a later reader skips
        (["in/A.csv", "in/a.csv"], ["part-0.csv", "part-1.csv"]),  # one name where case does not count
    ],
)
def test_files_keep_their_names_if_these_have_their_order(run: Run, files: list[str], expected: list[str]) -> None:
    for at, name in enumerate(files):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(f"age\n{at}\n")
    assert run("perturb", "in/**/*.csv" if "in/a/" in files[0] else "in", *RELEASE[2:]).code == 0
    parts = json.loads(Path("out", SIDECAR).read_text())["output"]["parts"]
    assert [part["name"] for part in parts] == expected
    assert [part["input"] for part in parts] == [Path(name).name for name in files]
    assert run("certify", "--verify", f"out/{SIDECAR}").code == 0
