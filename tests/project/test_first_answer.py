"""The benchmark of first answers: new processes without caches, what is timed, and the lines of its table."""

import ast
import dataclasses

import pytest

from benchmarks import first_answer
from benchmarks.first_answer import PEER, ROWS, Program, measured

PROGRAMS = [program for row in ROWS for program in (row.ours, row.peer) if program]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.work[:40])
def test_every_program_is_python_and_times_what_it_does_not_import_first(program):
    source = ast.parse(program.text)
    assigned = [node.id for node in ast.walk(source) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    assert assigned.count("answer") == 1
    assert (
        program.text.index(program.imports) < program.text.index("start, before =") < program.text.index(program.work)
    )


def test_a_run_has_no_cache_folder_of_the_user(monkeypatch):
    names = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "DPKERNELS_CACHE")
    for name in (*names, "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "/kept")
    values = measured(Program("import os", f"answer = [os.environ.get(name) for name in {names}]"), 1)["answer"]
    assert values == [None, None, ""]
    folders = [measured(Program("import os", "answer = os.environ['XDG_CACHE_HOME']"), 1)["answer"] for _ in range(2)]
    assert len({"/kept", *folders}) == 3


def test_seconds_are_those_of_the_work_and_its_children():
    """A fifth of a second of a child's work is counted."""
    spin = "import time; end = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    child = Program("import subprocess, sys", f"answer = subprocess.run([sys.executable, '-c', {spin!r}]).returncode")
    assert measured(child, 1)["processor"] >= 0.2


def test_seconds_of_imports_and_of_waiting_are_not_counted():
    """The clocks of the program are its own, so that the machine's load changes nothing."""
    clocks = """
from types import SimpleNamespace
used, now = {resource.RUSAGE_SELF: 5.0, resource.RUSAGE_CHILDREN: 3.0}, [7.0]
resource.getrusage = lambda who: SimpleNamespace(ru_utime=used[who], ru_stime=1.0)
time.perf_counter = lambda: now[0]
"""
    work = "used[resource.RUSAGE_SELF] += 0.25; used[resource.RUSAGE_CHILDREN] += 0.5; now[0] += 2.0\nanswer = 0"
    seconds = measured(Program(clocks, work), 1)
    assert (seconds["processor"], seconds["clock"]) == (0.75, 2.0)


def test_modules_imported_meanwhile_can_be_imported_before():
    program = Program("import os", "import calendar, wave\nanswer = 0")
    later = measured(program, 1)["imported"]
    assert {"calendar", "wave"} <= set(later)
    assert "os" not in later
    assert measured(program.after_importing(["of_no_such_name", *later]), 1)["imported"] == []


def test_the_run_with_the_least_processor_time_is_shown(monkeypatch):
    times = iter((3.0, 1.0, 2.0))

    class Done:
        returncode = 0

        def __init__(self, *arguments, **options):
            self.stdout = f'a warning\n{{"processor": {next(times)}, "clock": 9.0, "answer": 1.5}}\n'

    monkeypatch.setattr(first_answer.subprocess, "run", Done)
    assert measured(PROGRAMS[0], 3)["processor"] == 1.0


def test_a_program_that_fails_is_an_error():
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        measured(Program("", "answer = 1 / 0"), 1)


def test_lines_of_the_table(monkeypatch):
    with_peer, without = ROWS[0], next(row for row in ROWS if row.peer is None)
    ours, theirs = ({"processor": s, "clock": 2 * s, "computing": s / 2, "answer": [0.5, 0.25]} for s in (3.42, 0.2))
    cells = first_answer.cells(with_peer, ours, theirs)[1:]
    assert cells == ["3.42", "6.84", "1.71", "0.2", "0.1", "0.5, 0.25", "0.5, 0.25"]
    assert first_answer.cells(without, ours, None)[4::3] == ["-", "-"]
    assert first_answer.shown(None) == "-"
    monkeypatch.setattr(first_answer, "find_spec", lambda name: None)
    assert first_answer.peer_row(with_peer, 1) is None
    assert first_answer.cells(with_peer, ours, None)[4] == "not installed"
    assert len(first_answer.HEADING) == len(first_answer.cells(with_peer, ours, None))
    assert PEER in first_answer.HEADING[4]


def test_answers_and_measurements_are_printed_and_kept(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(
        first_answer,
        "measured",
        lambda program, rounds: {"processor": 1, "clock": 2, "answer": rounds, "imported": ["calendar"]},
    )
    monkeypatch.setattr(first_answer.compileall, "compile_dir", lambda *arguments, **options: True)
    monkeypatch.setattr(first_answer.sys, "argv", ["first_answer", "--quick", "--json", str(tmp_path / "kept.json")])
    first_answer.main()
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(table) == 2 + sum(not row.slow for row in ROWS)
    record = first_answer.json.loads((tmp_path / "kept.json").read_text())
    assert [row["name"] for row in record["rows"]] == [row.name for row in ROWS if not row.slow]
    assert record["rows"][0]["ours"] == dataclasses.asdict(ROWS[0].ours)
    assert record["command"].startswith("python -m benchmarks.first_answer --quick")
