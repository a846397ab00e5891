"""A nightly job with an empty home, no terminal, a full disk and a kill; exit codes and JSON decide alone.

Every step is a process of its own, and what it decides by is printed with ``pytest -s``.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from command_helpers import AGE, COLUMN, COMMAND
from dataset_helpers import write

from dpkernels.budgets.ledger import Ledger

pytestmark = pytest.mark.lengthy


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command as cron runs it: without a home and a terminal; what is returned is the exit code and the JSON."""
    monkeypatch.chdir(tmp_path)
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH", "JAX_PLATFORMS")}
    # A module that were compiled on the full disk would be damaged.
    kept["PYTHONDONTWRITEBYTECODE"] = "1"
    environment = {**kept, "HOME": "", "DPKERNELS_LEDGER": str(tmp_path / "people.ledger")}

    def call(*arguments: Any, most_bytes: int = -1) -> tuple[int, Any]:
        def limit() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

        command = [*COMMAND, *map(str, arguments), "--json"]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL, timeout=300,
            start_new_session=True, preexec_fn=limit if most_bytes >= 0 else None,
        )  # fmt: skip
        print("$ dpkernels", *arguments, f"--json -> {done.returncode}", done.stdout.replace("\n", " ")[:400])
        assert "Traceback" not in done.stderr
        return done.returncode, json.loads(done.stdout)

    call.environment = environment  # type: ignore[attr-defined]
    return call


def test_a_night(job: Any, tmp_path: Path) -> None:
    write(Path("in"), files=40, rows=200)
    write(Path("large"), files=1, rows=40_000)
    Path("large/0000.parquet").replace("in/0030.parquet")
    ledger = Ledger.create("people.ledger", 2)
    options = [*COLUMN, *AGE]
    arguments = ["perturb", "in", "out", *options]

    # A full disk: here a file that may not grow beyond some bytes. The charge stays, and no part is drawn again for it.
    code, form = job(*arguments, most_bytes=100_000)
    assert (code, form["code"]) == (1, 1)
    assert "stays in" in form["charge"]
    assert "--resume" not in form["charge"]
    assert job(*arguments, "--resume")[0] == 2
    assert ledger.state().spent.epsilon == 1

    # A killed run, and its resume by the scheduler.
    killed = subprocess.Popen(
        [*COMMAND, *arguments, "--quiet"], env=job.environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while not any("sha256" in path.read_text() for path in tmp_path.glob(".dpkernels-*.parts/_journal.jsonl")):
        assert killed.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.001)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    spent = ledger.state().spent.epsilon
    assert not Path("out").exists()
    (left,) = tmp_path.glob(".dpkernels-*.parts")
    before = {
        entry["name"]: (left / entry["name"]).read_bytes()
        for line in (left / "_journal.jsonl").read_text().splitlines()
        if "sha256" in (entry := json.loads(line))
    }
    code, form = job(*arguments, "--resume")
    assert (code, form["rows"]) == (0, 39 * 200 + 40_000)
    assert ledger.state().spent.epsilon == spent
    assert all(Path("out", name).read_bytes() == text for name, text in before.items())

    # A ledger that is exhausted.
    while ledger.state().left.epsilon:
        ledger.charge(ledger.state().left.epsilon)
    code, form = job("perturb", "in", "third", *options)
    assert (code, form["code"], form["charge"]) == (3, 3, None)
    assert not Path("third").exists()

    # Verification by a third party, who has the release alone; then of an altered one.
    Path("copy").mkdir()
    for path in Path("out").iterdir():
        Path("copy", path.name).write_bytes(path.read_bytes())
    code, form = job("certify", "--verify", "copy/_release.json")
    assert (code, form["verified"]) == (0, True)
    part = Path("copy/0003.parquet")
    part.write_bytes(part.read_bytes()[:-1])
    assert job("certify", "--verify", "copy/_release.json")[0] == 4
