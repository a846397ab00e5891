"""Running the command in a test: its result, its files, and what a refusal leaves."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpkernels import cli
from dpkernels.cli import main, terminal

SECRET = bytes(range(32))


AGE = ["--lower", "0", "--upper", "120", "--epsilon", "1"]


class Result(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Result]


def command(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command in this process, in an empty folder, as a user at a terminal sees it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(terminal, "is_redacted", lambda: False)
    monkeypatch.setattr(cli, "is_redacted", lambda: False)

    def call(*arguments: Any, traceback: bool = False) -> Result:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert ("Traceback" in captured.err) == traceback
        return Result(code, captured.out, captured.err)

    return call


@pytest.fixture
def known_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", lambda count: SECRET[:count])


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpkernels.cli.files.arrays.MAX_ROWS", 64)
    monkeypatch.setattr("dpkernels.cli.files.parquet.PIECE_ROWS", 64)
    monkeypatch.setattr("dpkernels.cli.files.delimited.BLOCK_BYTES", 1000)


def ages(count: int = 1000, dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng(7).uniform(0, 120, count).astype(dtype)


def write(path: Path, values: np.ndarray) -> Path:
    """A file of the format of the suffix with the column age among others."""
    columns = {"id": [f"{row:05d}" for row in range(len(values))]}
    match path.suffix:
        case ".npy":
            np.save(path, values)
        case ".csv":
            rows = zip(columns["id"], values.tolist(), strict=True)
            path.write_text("id,age\n" + "".join(f"{name},{value!r}\n" for name, value in rows))
        case _:
            pq.write_table(pa.table({**columns, "age": values}), path, row_group_size=300)
    return path


def read(path: Path) -> np.ndarray:
    match path.suffix:
        case ".npy":
            return np.load(path)
        case ".csv":
            with path.open(newline="") as file:
                return np.array([float(row["age"]) for row in csv.DictReader(file)])
        case _:
            return pq.read_table(path)["age"].to_numpy()


def column_options(path: Path) -> list[str]:
    return [] if path.suffix == ".npy" else ["--column", "age"]


def assert_refused(result: Result, code: int, *words: str) -> None:
    assert result.code == code
    assert result.err.startswith("dpkernels: error: ")
    assert result.err.count("\n") == 1
    for word in words:
        assert word in result.err


def assert_nothing_but(*names: str) -> None:
    assert sorted(path.name for path in Path().iterdir()) == sorted(names)


GOOD_CSV = "id,age\nx,1\ny,2\n"


COLUMN = ["--column", "age"]


COMMAND = [sys.executable, "-c", "import sys; from dpkernels.cli import main; sys.exit(main())"]

# The command, which releases its first values again and again: it tells on stdout that it has begun, and never ends.
ENDLESS = """
import sys
from dpkernels.cli import main
from dpkernels.cli.perturb import rows
release = rows.in_chunks
def endless(*given, **how):
    release(*given, **how)
    print("begun", flush=True)
    while True:
        release(*given, **how)
rows.in_chunks = endless
sys.exit(main())
"""


def begun(*arguments: str) -> subprocess.Popen[str]:
    """Start the command, and return it in the middle of its work, in which it stays."""
    command = [sys.executable, "-c", ENDLESS, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n", process.communicate()[1]
    return process
