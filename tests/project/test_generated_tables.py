"""Tables of the pages: each marker names what makes it, and a table that needs no clock is what is printed."""

import importlib.util
import re
import shlex

import pytest

import dpkernels as dpk
from benchmarks import tables

MARKED = [(page, *found) for page in tables.pages() for found in tables.marked(page)]
SHORT = """<!-- table 1: x -->

| a | ms | x peer |
| --- | --- | --- |
| one | 2 | 3 |

<!-- end -->
"""


@pytest.mark.parametrize(("page", "number", "command", "text"), MARKED, ids=lambda one: str(one)[:40])
def test_a_marker_names_a_benchmark(page, number, command, text):
    assert importlib.util.find_spec(f"benchmarks.{shlex.split(command)[0]}")
    head, *rows = tables.cells(text)
    assert rows
    assert {len(row) for row in rows} == {len(head)}


def test_markers_are_closed_and_most_tables_have_one():
    text = (tables.ROOT / "benchmarks/README.md").read_text()
    assert len(re.findall("<!-- table", text)) == text.count("<!-- end -->") == len(tables.MARKED.findall(text)) > 10
    assert re.sub(tables.MARKED, "", text).count("\n| ---") == 0


@pytest.mark.thorough
def test_budget_recycling_is_as_printed():
    ((number, command, text),) = (marker[1:] for marker in MARKED if marker[2] == "recycling")
    assert tables.differences(text, tables.table(number, command)) == []
    with pytest.raises(ValueError, match="prints 2"):
        tables.table(3, command)


def test_the_speeds_of_the_readme_are_those_of_the_benchmarks():
    speeds = (tables.ROOT / "README.md").read_text().partition("\n| sampler |")[2].partition("\n\n")[0]
    measured = [row for _, _, command, text in MARKED if "sampling" in command for row in tables.cells(text)]
    rows = tables.cells(f"| sampler |{speeds}")[1:]
    assert len(rows) > 5
    for _, nanoseconds, ratio in rows:
        assert any(row[1] == nanoseconds and f"{float(ratio):.1f}" in row[3:] for row in measured)


def test_what_differs_is_named_and_times_may():
    ((_, _, before),) = ((marker[2], marker[3], marker[4]) for marker in tables.MARKED.finditer(SHORT))
    assert tables.differences(before, before.replace("| 2 |", "| 7 |").replace("| 3 |", "| 9 |")) == []
    assert tables.differences(before, before.replace("one", "two")) == ["one, a: one is two"]
    assert tables.differences(before, before.replace("| x peer |", "| x other |"))
    assert tables.differences(before, before + "\n| two | 1 | 1 |")
    assert tables.differences("| v |\n| - |\n| 1.0000001 |", "| v |\n| - |\n| 1 |") == []
    assert tables.differences("| v |\n| - |\n| 1.001 |", "| v |\n| - |\n| 1 |") == ["1.001, v: 1.001 is 1"]


def test_a_page_is_written_again(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{SHORT}\nafter\n")
    monkeypatch.setattr(tables, "printed", lambda command: ["| b |\n| --- |\n| 4 |"])
    assert tables.rewritten(page, lambda command: False) == page.read_text()
    after = tables.rewritten(page, lambda command: command == "x")
    assert after.startswith("before\n\n<!-- table 1: x -->\n\n| b |\n| --- |\n| 4 |\n\n<!-- end -->\n\nafter")


def test_a_command_that_fails_is_an_error():
    with pytest.raises(RuntimeError, match="no_such_module: ended with 1"):
        tables.printed("no_such_module")


def variances():
    """Name and printed central and worst-case variance, of the page on choosing."""
    text = (tables.ROOT / "docs/choosing.md").read_text()
    return re.findall(r"^\| `(\w+)(?:\(([^)]*)\))?`.*\| ([\d.]+) \| ([\d.]+) \|$", text, re.MULTILINE)


@pytest.mark.parametrize(("name", "shape", "central", "worst"), variances())
def test_variances_of_the_page_on_choosing(name, shape, central, worst):
    m = getattr(dpk, name)(*(word.strip(' "') for word in shape.split(",") if word), epsilon=1.0, lower=0.0, upper=1.0)
    assert [f"{m.central_variance:.3f}", f"{m.worst_variance:.3f}"] == [central, worst]
