"""What the command prints: no cell of a file in an error that a log keeps, and nothing that disturbs a terminal."""

from __future__ import annotations

import ast
import gzip
import json
import re
import shutil
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_helpers import AGE, COLUMN, GOOD_CSV, Result, assert_refused, command

import dpkernels.cli as package
from dpkernels.bounded_json import parse_json
from dpkernels.budgets import ledger as ledger_module
from dpkernels.budgets.ledger import Ledger
from dpkernels.cli import main
from dpkernels.cli.files.delimited import DelimitedFile

run = pytest.fixture(command, name="run")
MODULES = sorted(Path(package.__file__).parent.rglob("*.py"))

# Distinctive cells: whatever is printed of them has one of these.
VALUE, NAME = "86753.09", "Doe-8675"
SECRETS = ("86753", "8675", "Doe")


@pytest.fixture
def log(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command in an empty folder, whose standard error is no terminal."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: Any) -> Result:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        sys.stdout.flush()
        return Result(code, *capfd.readouterr())

    return call


def _parquet(name: str, **columns: Any) -> None:
    pq.write_table(pa.table(columns), name)


def _gzip(text: str) -> None:
    Path("in.csv.gz").write_bytes(gzip.compress(text.encode()))


def _latin(text: str) -> None:
    Path("in.csv").write_bytes(text.encode("latin-1"))


def _folder(text: str) -> None:
    Path("in").mkdir()
    Path("in/a.csv").write_text(GOOD_CSV)
    Path("in/b.csv").write_text(text)


# fmt: off
# Files with a row that cannot be perturbed.
BAD: dict[str, tuple[str, Callable[[], Any]]] = {
    "a text": ("in.csv", lambda: Path("in.csv").write_text(f"{GOOD_CSV}{NAME},{NAME}\n")),
    "a text in a tsv": ("in.tsv", lambda: Path("in.tsv").write_text(f"id\tage\n{NAME}\t{NAME}\n")),
    "a text in a gzip": ("in.csv.gz", lambda: _gzip(f"id,age\na,{NAME}\n")),
    "a text in a dataset": ("in", lambda: _folder(f"id,age\n{NAME},{NAME}\n")),
    "another header in a dataset": ("in", lambda: _folder(f"{NAME},{VALUE},age\n1,2,3\n")),
    "outside": ("in.csv", lambda: Path("in.csv").write_text(f"{GOOD_CSV}{NAME},{VALUE}\n")),
    "outside in a dataset": ("in", lambda: _folder(f"id,age\n{NAME},{VALUE}\n")),
    "outside in an array": ("in.npy", lambda: np.save("in.npy", np.array([1.0, float(VALUE)]))),
    "outside in a table": ("in.parquet", lambda: _parquet("in.parquet", age=[1.0, float(VALUE)], id=[NAME, NAME])),
    "infinite": ("in.csv", lambda: Path("in.csv").write_text(f"{GOOD_CSV}{NAME},8675e999\n")),
    "a long integer": ("in.csv", lambda: Path("in.csv").write_text(f"{GOOD_CSV}{NAME},86753090000000001\n")),
    "a long integer in a table": ("in.parquet", lambda: _parquet("in.parquet", age=[86753090000000001])),
    "a long record": ("in.csv", lambda: Path("in.csv").write_text(f"{GOOD_CSV}{NAME},{VALUE},{VALUE}\n")),
    "a quote inside": ("in.csv", lambda: Path("in.csv").write_text(f'{GOOD_CSV}{NAME}"{VALUE},{VALUE}\n')),
    "an open quote": ("in.csv", lambda: Path("in.csv").write_text(f'{GOOD_CSV}"{NAME},{VALUE}\n')),
    "no header": ("in.csv", lambda: Path("in.csv").write_text(f"{NAME},{VALUE}\n")),
    "no UTF-8 in the header": ("in.csv", lambda: _latin(f"{NAME}\xff,age\n1,2\n")),
    "no gzip": ("in.csv.gz", lambda: Path("in.csv.gz").write_text(f"{NAME},{VALUE}\n")),
    "no table": ("in.parquet", lambda: Path("in.parquet").write_text(f"{NAME},{VALUE}\n" * 9)),
    "no array": ("in.npy", lambda: Path("in.npy").write_text(f"{NAME},{VALUE}\n" * 9)),
    "texts in a table": ("in.parquet", lambda: _parquet("in.parquet", age=[NAME])),
    "a dictionary in a table": ("in.parquet", lambda: _parquet("in.parquet", age=pa.array([NAME]).dictionary_encode())),
    "texts in an array": ("in.npy", lambda: np.save("in.npy", np.array([NAME]))),
    "objects in an array": ("in.npy", lambda: np.save("in.npy", np.array([NAME, None]), allow_pickle=True)),
}
# fmt: on


def assert_tells_no_cell(done: Result) -> None:
    assert done.code in (1, 2, 4), done
    assert "error: " in done.err
    assert not any(secret in done.out + done.err for secret in SECRETS)
    for path in [Path("people.ledger"), *Path().glob("out*")]:  # whose random hashes may have four such digits
        assert not path.is_file() or not any(cell.encode() in path.read_bytes() for cell in (VALUE, NAME))


@pytest.mark.quick("a text", "outside in a table", "no header")
@pytest.mark.parametrize("case", BAD)
def test_a_log_has_no_cell_of_a_bad_row(log: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    name, make = BAD[case]
    make()
    Ledger.create("people.ledger", 9)
    column = [] if name.endswith(".npy") else COLUMN
    arguments = ["perturb", name, f"out{''.join(Path(name).suffixes)}", *column, *AGE, "--ledger", "people.ledger"]
    assert_tells_no_cell(log(*arguments, "--json"))
    monkeypatch.setenv("DPKERNELS_DEBUG", "1")
    assert_tells_no_cell(log(*arguments, "--check"))


OF_TEXTS = {
    "categories": ["--categories", "a,b", "--epsilon", "1"],
    "sets": ["--categories", "a,b,c,d,e", "--mechanism", "subset-selection", "--epsilon", "1"],
    "prefixes": ["--length", "3", "--alphabet", "abc", "--epsilon", "1"],
    "dates": ["--date-origin", "1900-01-01", "--lower", "2000-01-01", "--upper", "2001-01-01", "--epsilon", "1"],
}


@pytest.mark.parametrize("name", ["in.csv", "in.parquet", "in"])
@pytest.mark.parametrize("case", OF_TEXTS)
def test_a_log_has_no_cell_of_a_column_of_texts(log: Callable[..., Result], case: str, name: str) -> None:
    texts = {"age": ["a", f"{NAME} {VALUE}"], "id": [NAME, NAME]}
    if name == "in.csv":
        Path(name).write_text(
            "age,id\n" + "".join(f"{age},{name_}\n" for age, name_ in zip(*texts.values(), strict=True))
        )
    else:
        if name == "in":
            Path(name).mkdir()
        _parquet(name if name.endswith("parquet") else "in/a.parquet", **texts)
    target = f"out{''.join(Path(name).suffixes)}"
    assert_tells_no_cell(log("perturb", name, target, *COLUMN, *OF_TEXTS[case], "--json"))


FOREIGN: dict[str, Callable[[], object]] = {
    "of Arrow": lambda: pa.scalar(NAME).cast(pa.float64()),
    "of Python": lambda: float(NAME),
    "of an encoding": lambda: NAME.encode().join([b"\xff"] * 2).decode(),
    "of NumPy": lambda: np.array([NAME]).astype(float),
    "of a key": lambda: {}[NAME],
    "of a system": lambda: (_ for _ in ()).throw(OSError(f"cannot read {NAME}")),
    "of anything": lambda: (_ for _ in ()).throw(RuntimeError(NAME)),
}


@pytest.mark.quick("in.csv-of Arrow", "in.csv-of Python", "in-of Arrow")
@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("name", ["in.csv", "in"])
def test_a_log_has_no_text_of_an_error_of_another_package(
    log: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    """It may quote a cell, wherever it arises."""
    _folder(GOOD_CSV)
    Path("in.csv").write_text(GOOD_CSV)
    Ledger.create("people.ledger", 9)
    for method in ("numbers", "chunks"):
        with monkeypatch.context() as patch:
            patch.setattr(DelimitedFile, method, lambda *_: FOREIGN[kind]())
            done = log("perturb", name, "out.csv" if "." in name else "out", *COLUMN, *AGE, "--ledger", "people.ledger")
            assert_tells_no_cell(done)


def test_a_log_has_no_cell_of_a_file_that_is_no_release(log: Callable[..., Result]) -> None:
    Path("in.csv").write_text(GOOD_CSV + f"{NAME},{VALUE}\n")
    Ledger.create("people.ledger", 9)
    assert log("perturb", "in.csv", "out.csv", *COLUMN, "--clip", *AGE).code == 0
    shutil.move("out.csv.json", "other.json")
    Path("out.csv").unlink()
    assert_tells_no_cell(log("estimate", "in.csv", "--sidecar", "other.json", *COLUMN))
    assert_tells_no_cell(log("estimate", "in.csv", "--sidecar", "other.json", *COLUMN, "--by", "id"))
    shutil.copy("other.json", "in.csv.json")
    assert_tells_no_cell(log("estimate", "in.csv", *COLUMN))
    assert_tells_no_cell(log("certify", "--verify", "in.csv.json"))


def test_a_group_that_cannot_answer_is_not_named_in_a_log(log: Callable[..., Result]) -> None:
    Path("in.csv").write_text("id,age\n" + f"{NAME},5\n" * 3)
    Ledger.create("people.ledger", 9)
    assert log("perturb", "in.csv", "copy.csv", *COLUMN, *AGE).code == 0
    assert_tells_no_cell(log("estimate", "copy.csv", "--by", "id"))


@pytest.mark.parametrize("case", ["a text", "outside", "outside in a dataset", "no header"])
def test_a_terminal_shows_the_cell_unless_it_is_withheld(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    name, make = BAD[case]
    make()
    arguments = ["perturb", name, "out" + Path(name).suffix, *COLUMN, *AGE]
    for more, is_shown in (([], True), (["--redact"], False), ([], True)):
        assert main([*arguments, *more]) in (1, 2)
        assert (VALUE in (err := capsys.readouterr().err) or NAME in err) == is_shown
        assert not any(mark in err for mark in "\ufdd0\ufdd1\ufdd2")


def test_errors_in_a_log_name_row_and_line(log: Callable[..., Result]) -> None:
    Path("in.csv").write_text(GOOD_CSV + f"z,{VALUE}\n")
    done = log("perturb", "in.csv", "out.csv", *COLUMN, *AGE)
    place = "column 'age': row 2 (line 4) is a value, outside the input interval [0, 120]; --clip clips"
    assert (done.code, done.err) == (1, f"dpkernels: error: in.csv: {place}\n".replace("in.csv: ", ""))
    Path("in.csv").write_text(GOOD_CSV + f"z,{NAME}\n")
    assert_refused(log("perturb", "in.csv", "out.csv", *COLUMN, *AGE), 1, "row 2 (line 4) is not a number;")


def test_every_text_of_an_error_goes_through_one_function() -> None:
    """Texts of errors may quote cells: no module of the command puts one into a message by itself."""
    found = []
    for path in MODULES:
        if path.name == "errors.py":
            continue
        for handler in ast.walk(ast.parse(path.read_text())):
            if not isinstance(handler, ast.ExceptHandler) or handler.name is None:
                continue
            texts = [node.value for node in ast.walk(handler) if isinstance(node, ast.FormattedValue)]
            calls = [node for node in ast.walk(handler) if isinstance(node, ast.Call)]
            texts += [node.args[0] for node in calls if getattr(node.func, "id", "") in ("str", "repr") and node.args]
            names = [text.id for text in texts if isinstance(text, ast.Name)]
            found += [f"{path.name}:{handler.lineno}"] * names.count(handler.name)
    assert found == []


def test_one_module_writes_to_the_terminal() -> None:
    wrong = re.compile(r"(?<!\w)print\(|echo|sys\.stdout\.write|sys\.stderr")
    assert [path.name for path in MODULES if wrong.search(path.read_text())] == ["terminal.py"]


# Terminals

ESCAPE = "\x1b]0;x\x07\x1b[2Jok\u202e\x9b\r"


def assert_disturbs_nothing(done: Result, shown: str = "\\x1b]0;x\\x07\\x1b[2Jok\\u202e\\x9b") -> None:
    assert (done.out + done.err).replace("\n", "").isprintable(), done
    assert shown in done.out + done.err, done


@pytest.mark.lengthy
def test_options_and_names_of_files_disturb_no_terminal(log: Callable[..., Result]) -> None:
    odd = Path(f"{ESCAPE}.csv")
    odd.write_text(GOOD_CSV)
    for arguments in (
        [f"--{ESCAPE}"],
        [ESCAPE],
        *([name, f"--{ESCAPE}"] for name in package.commands.dpkernels.commands),
        ["account", ESCAPE],
        ["tune", "--objective", ESCAPE],
        ["certify", "--mechanism", ESCAPE],
        ["certify", "--verify", odd],
        ["ledger", odd],
        ["perturb", odd, "out.csv", "--column", ESCAPE, *AGE],
        ["perturb", odd, f"{ESCAPE}/out.csv", *COLUMN, *AGE],
        ["perturb", odd, f"{ESCAPE}2.csv", *COLUMN, *AGE],
        ["certify", "--verify", f"{ESCAPE}2.csv.json"],
        ["estimate", odd],
    ):
        assert_disturbs_nothing(log(*arguments))


@pytest.mark.lengthy
def test_names_of_columns_and_groups_disturb_no_terminal(log: Callable[..., Result]) -> None:
    cell = ESCAPE.replace("\r", "")
    Path("in.csv").write_text(f"{cell},age\n" + f"{cell},5\n" * 300)
    for arguments in (
        ["perturb", "in.csv", "out.csv", *COLUMN, *AGE],
        ["estimate", "out.csv", "--by", cell],
        ["perturb", "in.csv", "out2.csv", "--column", cell, *AGE],
        ["perturb", "in.csv", "out2.csv", "--column", "no", *AGE, "--redact"],
    ):
        assert_disturbs_nothing(log(*arguments), "" if "no" in arguments else "\\x1b]0;x\\x07\\x1b[2Jok\\u202e\\x9b")


def test_a_forged_ledger_disturbs_no_terminal(log: Callable[..., Result]) -> None:
    start = Ledger.create("a", 5).state()
    forged = ledger_module.LedgerState(f"{ESCAPE}\nfake", f"{ESCAPE}\nfake", start.budget)
    entry = forged.next(f"{ESCAPE}\nfake", f"{ESCAPE}\nfake", type(start.budget)(1, 0))
    connection = sqlite3.connect("a")
    connection.execute(
        "UPDATE budget SET ledger = ?, created = ?, head = ?", (forged.ledger, forged.created, entry.hash)
    )
    row = (1, entry.time, entry.label, "1", "0", entry.hash, "")
    connection.execute("INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    connection.commit()
    connection.close()
    done = log("ledger", "a")
    assert_disturbs_nothing(done)
    assert done.code == 0
    assert len(done.out.splitlines()) == 7, "and adds no line"
    assert_disturbs_nothing(log("ledger", "a", "--json"), "")


@pytest.mark.lengthy
def test_a_forged_sidecar_disturbs_no_terminal(log: Callable[..., Result]) -> None:
    Path("in.csv").write_text(GOOD_CSV)
    assert log("perturb", "in.csv", "out.csv", *COLUMN, *AGE).code == 0
    payload = json.loads(Path("out.csv.json").read_text())
    column = payload["columns"][0]
    forgeries = [payload | {key: f"{ESCAPE}\nfake"} for key in payload]
    forgeries += [payload | {"columns": [column | {key: f"{ESCAPE}\nfake"}]} for key in column]
    forgeries += [payload | {f"{ESCAPE}\nfake": 1}, payload | {"versions": {ESCAPE: ESCAPE}}]
    forgeries += [payload | {"output": payload["output"] | {key: f"{ESCAPE}\nfake"}} for key in payload["output"]]
    forgeries += [payload | {"layout": payload["layout"] | {key: f"{ESCAPE}\nfake"}} for key in payload["layout"]]
    for number, forgery in enumerate(forgeries):
        Path("out.csv.json").write_text(json.dumps(forgery))
        for arguments in (["certify", "--verify", "out.csv.json"], ["estimate", "out.csv"]):
            done = log(*arguments)
            assert_disturbs_nothing(done, "")
            assert "\nfake" not in done.out + done.err, number


@pytest.mark.parametrize(
    "text", ["[" + "[]," * (1 << 18) + "1]", "[" + '{"a":1},' * (1 << 18) + "1]", "{" + '"a":1,' * (1 << 20) + '"b":1}']
)
def test_json_of_too_many_values_is_not_parsed(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of three characters takes 64 bytes."""
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("parsed"))
    with pytest.raises(ValueError, match=r"JSON: has about .* at most .* are read"):
        parse_json(text)
