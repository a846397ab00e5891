"""No command line and no sidecar, however wrong, gives an "unexpected" error: each gives one line that says why."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import chdir
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fuzzed_commands import command_line, forged

from dpkernels.budgets.ledger import Ledger
from dpkernels.cli import estimate, main

LINES, SIDECARS = 2000, 500
OPTIONS = ["--column", "age", "--mechanism", "piecewise", "--epsilon", "4", "--lower", "0", "--upper", "100"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with inputs, damaged ones too, and a release of each kind."""
    folder = tmp_path_factory.mktemp("fuzz")
    source = np.random.default_rng(1)
    plan, age, pay = (source.choice(values, 60) for values in (["a", "b", ""], range(100), [0.5, 50.25, 99.0]))
    with chdir(folder):
        for name, between in (("in.csv", ","), ("in.tsv", "\t")):
            rows = (between.join(map(str, row)) + "\n" for row in zip(plan, age, pay, strict=True))
            Path(name).write_text(between.join(["plan", "age", "pay"]) + "\n" + "".join(rows))
        np.save("in.npy", pay)
        pq.write_table(pa.table({"plan": plan, "age": age, "pay": pay}), "in.parquet")
        holes, wide = pay.copy(), pay * 1e300
        holes[7], wide[9] = np.nan, np.inf
        for ending, between in (("csv", ","), ("tsv", "\t")):
            rows = (between.join(map(str, row)) + "\n" for row in zip(plan, holes, wide, strict=True))
            Path(f"holes.{ending}").write_text(between.join(["plan", "age", "pay"]) + "\n" + "".join(rows))
        np.save("holes.npy", holes)
        pq.write_table(pa.table({"plan": plan, "age": holes, "pay": wide}), "holes.parquet")
        Path("in").mkdir()
        for number in range(2):
            shutil.copy("in.parquet", f"in/{number}.parquet")
        Path("empty.csv").touch()
        Path("latin.csv").write_bytes("plan,age\nä,1\nö,2\n".encode("latin-1"))
        Path("bytes.npy").write_bytes(bytes(range(256)))
        for name, target in (("in.csv", "out.csv"), ("in.parquet", "out.parquet"), ("in", "released")):
            assert main(["perturb", name, target, *OPTIONS, "--quiet"]) == 0
        assert main(["perturb", "in.npy", "out.npy", *OPTIONS[2:], "--round", "2", "--quiet"]) == 0
        noise = ["--mechanism", "laplace", "--sensitivity", "20", "--epsilon", "1"]
        assert main(["perturb", "in.npy", "noise.npy", *noise, "--quiet"]) == 0
        Ledger.create("people.ledger", 1e6, 0.9)
    return folder


@pytest.fixture
def run(
    prepared: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """The command in this process and in a copy of the folder, which is made anew after whatever writes to it."""
    monkeypatch.setattr(
        estimate, "estimate", partial(estimate.estimate, model="splines")
    )  # The choice is not looked at.
    place = tmp_path / "work"
    shutil.copytree(prepared, place)
    nothing, stdin = os.open(os.devnull, os.O_RDONLY), os.dup(0)
    os.dup2(nothing, 0)

    def call(arguments: list[str]) -> tuple[int, str, str, float]:
        before, started = _stamps(place), time.monotonic()
        code = main(arguments)
        sys.stdout.flush()
        spent, (out, err) = time.monotonic() - started, capfd.readouterr()
        if _stamps(place) != before:
            os.chdir(tmp_path)
            shutil.rmtree(place)
            shutil.copytree(prepared, place)
            os.chdir(place)
        return code, out, err, spent

    with chdir(place):
        yield call
    os.dup2(stdin, 0)
    os.close(nothing)
    os.close(stdin)


def _stamps(folder: Path) -> dict[str, tuple[int, int]]:
    found = ((path, path.lstat()) for path in folder.rglob("*"))
    return {str(path): (one.st_mtime_ns, one.st_size) for path, one in found}


def faults_of(code: int, err: str, text: str | None) -> str:
    """What is wrong with how the command ended, and with its JSON; empty for nothing."""
    if text is not None:
        try:
            payload = json.loads(text)
        except ValueError:
            return f"no JSON: {text[:200]!r}"
        if isinstance(payload, dict) and payload.get("code", 0) != code:
            return f"code {code}, and JSON says {payload['code']}"
    lines = [line for line in err.splitlines() if line.startswith("dpkernels: error: ")]
    if "error: unexpected " in err or "Traceback" in err:
        return "unexpected"
    if code not in range(6):
        return f"code {code}"
    # Where data go to standard output, JSON is all that is said.
    if (code != 0) != (len(lines) == 1) and not err.startswith("{"):
        return f"code {code} with {len(lines)} lines"
    return "a long line" if any(len(line) > 2500 for line in lines) else ""


def judged(run: Any, cases: Iterable[tuple[int, list[str]]]) -> dict[str, int]:
    """Run command lines; how often each exit code came."""
    codes, faults, slow = dict.fromkeys("012345", 0), [], (0.0, "")
    for number, arguments in cases:
        try:
            code, out, err, spent = run(arguments)
        except BaseException as error:
            code, out, err, spent = -1, "", f"{type(error).__name__}: {error}", 0.0
        slow = max(slow, (spent, f"{number}: {arguments}"))
        if fault := faults_of(code, err, _json_of(arguments, out, err)):
            faults.append(f"{number}: {arguments!r}: {fault}: {err[-500:]!r}")
        else:
            codes[str(code)] += 1
    print(codes, "the slowest:", *slow)
    assert not faults, "\n".join(faults)
    return codes


def _json_of(arguments: Sequence[str], out: str, err: str) -> str | None:
    """The JSON that a command line asks for; where data go to standard output, a failure's is on standard error."""
    if "--json" not in arguments or {"-h", "--help", "--help-all"} & set(arguments):
        return None
    if "-" in arguments:
        return err if err.startswith("{") else None
    return out


def slices(numbers: Sequence[int], quick: Sequence[int]) -> list[Any]:
    """A quick slice, and the rest in four slow ones."""
    rest = sorted(set(numbers) - set(quick))
    slow = [pytest.param(rest[at::4], id=f"slow {at}", marks=pytest.mark.slow) for at in range(4)]
    return [pytest.param(quick, id="quick"), *slow]


JSON = ["--json"]

# Accounting compiles a program for every mechanism.
QUICK = [number for number in range(120) if command_line(number)[0] != "account"][:60]


@pytest.mark.lengthy
@pytest.mark.parametrize("numbers", slices(range(LINES), QUICK))
def test_no_command_line_gives_an_unexpected_error(run: Any, numbers: Sequence[int]) -> None:
    codes = judged(run, ((number, [*command_line(number), *JSON[: number % 2]]) for number in numbers))
    assert all(codes[code] for code in "012")  # The lines are wrong enough, and not too wrong.


@pytest.mark.lengthy
@pytest.mark.parametrize("numbers", slices(range(SIDECARS), range(30)))
def test_no_forged_sidecar_gives_an_unexpected_error(run: Any, prepared: Path, numbers: Sequence[int]) -> None:
    names = ["out.csv.json", "out.npy.json", "noise.npy.json", "released/_release.json"]
    texts = {name: (prepared / name).read_text() for name in names}

    def cases() -> Iterator[tuple[int, list[str]]]:
        for number in numbers:
            name, text = forged(number, texts)
            for arguments in (["certify", "--verify", name], _estimate(name)):
                Path(name).write_text(text, errors="surrogatepass")
                yield number, arguments

    judged(run, cases())


def _estimate(name: str) -> list[str]:
    """The command that reads a sidecar besides ``certify``."""
    column = [] if name.endswith(".npy.json") else ["--column", "age"]
    ends = ["--lower", "0", "--upper", "100"] if name.startswith("noise") else []
    reports = str(Path(name).parent) if name.startswith("released") else name.removesuffix(".json")
    return ["estimate", reports, *column, *ends]


def test_the_same_number_is_the_same_command_line() -> None:
    assert [command_line(number) for number in range(50)] == [command_line(number) for number in range(50)]
    text = {"a.json": json.dumps({"columns": [1, 2, {"a": "b"}]})}
    assert [forged(number, text) for number in range(50)] == [forged(number, text) for number in range(50)]
    assert len({tuple(command_line(number)) for number in range(LINES)}) > 0.85 * LINES
