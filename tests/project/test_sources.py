"""The table of the sources: no empty cell, every name exists, every command can be run."""

import importlib
import re
import shlex
from pathlib import Path

import pytest

from benchmarks import printed
from benchmarks.sources import tables

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "sources.md").read_text()
HEADER = ["item", "what it is", "where", "does it hold", "command"]


def rows():
    """Cells of every row of every table, without header and rule."""
    lines = [line for line in TEXT.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in lines]
    return [row for row in cells if row != HEADER and not set("".join(row)) <= set("-")]


ROWS = rows()
every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: re.sub(r"\W+", "-", row[0]))


def resolve(name):
    """A file of the repository, or what a dotted name stands for."""
    if "/" in name:
        return (ROOT / name).is_file()
    names = name.split(".")
    for split in range(len(names), 0, -1):
        try:
            item = importlib.import_module(".".join(names[:split]))
        except ModuleNotFoundError:
            continue
        for attribute in names[split:]:
            item = getattr(item, attribute)
        return True
    return False


def test_every_source_has_a_table_with_its_header():
    """The five sources, and the papers on categories."""
    assert len(re.findall(r"^## ", TEXT, re.MULTILINE)) == 6
    assert TEXT.count("| " + " | ".join(HEADER) + " |") == 6
    assert len(ROWS) > 80


@every_row
def test_no_cell_is_empty(row):
    assert len(row) == len(HEADER)
    assert all(row)


@every_row
def test_every_name_exists(row):
    names = re.findall(r"`([^`]+)`", row[2])
    assert names
    for name in names + re.findall(r"`((?:accountants|dpkernels)\.[\w.]+)`", row[3]):
        assert resolve(name), name


@every_row
def test_every_command_can_be_run(row):
    (command,) = re.findall(r"^`([^`]+)`$", row[4])
    words = shlex.split(command)
    if words[0] == "pytest":
        if words[1:3] == ["-m", "notebook"]:  # Else none is run.
            assert list((ROOT / "notebooks").glob(f"{words[5]}_*.py"))
            del words[1:3]
        assert (ROOT / words[1]).is_file()
        assert ("notebooks" in words[1]) == ("-m notebook" in row[4])
        return
    assert words[:2] == ["python", "-m"]
    assert hasattr(importlib.import_module(words[2]), "main")
    if words[2] == "benchmarks.printed":
        assert printed.chosen(words[3], quick=False), command


def test_every_printed_table_is_reached_by_a_command():
    asked = [shlex.split(row[4].strip("`"))[3] for row in ROWS if "benchmarks.printed" in row[4]]
    reached = {table.name for text in asked for table in printed.chosen(text, quick=False)}
    assert reached == set(tables())


def test_a_planted_name_is_noticed():
    assert not resolve("notebooks/99_nothing.py")
    assert not resolve("no_package.of_ours")
    with pytest.raises(AttributeError):
        resolve("dpkernels.Windowed.h3_rate")
