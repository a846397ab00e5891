"""The explorer's page: its tables are what Python computes, it is built of its parts, and the command hands it out."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import webbrowser

import numpy as np
import pytest
from click.testing import CliRunner

from dpkernels.cli.commands import dpkernels as command
from dpkernels.cli.explorer import build, distribution, page, tables
from dpkernels.cli.mechanisms import CONSTRUCTORS

TEXT = page.PAGE.read_text()
HELD = build.tables_of(TEXT)


def run(*arguments):
    return CliRunner().invoke(command, ["explore", *map(str, arguments)])


def test_the_page_is_built_of_its_parts():
    """Else: python -m dpkernels.cli.explorer.build --keep."""
    assert build.page_of(HELD) == TEXT


def test_the_page_is_small_and_needs_nothing_else():
    assert len(TEXT.encode()) < 1_500_000
    assert "default-src 'none'" in TEXT
    assert re.findall(r"""(?:src|href)=["'](?!data:)|@import|url\((?!#)|https?://""", TEXT) == []


def test_a_page_without_tables_is_refused():
    with pytest.raises(ValueError, match="without --keep"):
        build.tables_of("<html></html>")


def test_the_tables_are_those_of_the_command():
    assert HELD["deltas"] == list(tables.DELTAS)
    assert HELD["counts"] == list(tables.COUNTS)
    assert HELD["people"] == tables.people()
    assert set(HELD["windowed"]) == set(tables.WINDOWED)
    assert set(HELD["composed"]) == set(tables.COMPOSED)
    assert set(HELD["shuffled"]) == set(tables.SHUFFLED)
    assert HELD["grids"]["parameters"] == list(tables.PARAMETERS)
    assert HELD["grids"]["distributed"] == list(distribution.BUDGETS)
    assert HELD["grids"]["values"] == list(distribution.VALUES)
    assert set(HELD["distribution"]) == set(tables.DISTRIBUTED)


@pytest.mark.parametrize("name", tables.WINDOWED)
@pytest.mark.parametrize("at", [7, 50, 93])
def test_parameters(name, at):
    held = [column[at] for column in HELD["windowed"][name]]
    assert held == pytest.approx(tables.windowed(name, tables.grid(tables.PARAMETERS)[at]), rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("at", [20, 88])
def test_the_optimum(at):
    found = tables.optimum(tables.grid(tables.OPTIMUM)[at])
    assert HELD["optimum"][0][at] == pytest.approx(found[0], abs=1e-3)
    assert HELD["optimum"][1][at] == pytest.approx(found[1], abs=1e-2)  # How far it reaches barely matters to it.


def test_a_drawn_table_is_a_law():
    for table in HELD["drawn"]:
        inputs = np.linspace(-0.5, 0.0, len(table["rows"]))
        for row, x in zip(table["rows"], inputs, strict=True):
            assert sum(row) == pytest.approx(1, abs=1e-3)
            mean = sum(p * y for p, y in zip(row, table["reports"], strict=True))
            assert mean == pytest.approx(x, abs=1e-3 * max(table["reports"]))


def check_composed(name, at, count):
    found = tables.composed(name, tables.budgets(name)[at], tables.COUNTS[count])
    held = [delta[count][at] for delta in HELD["composed"][name]]
    assert held == pytest.approx(found, abs=5e-4)


@pytest.mark.thorough
@pytest.mark.parametrize(("at", "count"), [(20, 3), (60, 8)])
def test_composed_reports(at, count):
    check_composed("laplace", at, count)


@pytest.mark.slow
@pytest.mark.parametrize("name", tables.COMPOSED)
@pytest.mark.parametrize(("at", "count"), [(10, 0), (15, 5), (25, 11)])
def test_composed_reports_of_all(name, at, count):
    check_composed(name, at, count)


@pytest.mark.parametrize(("name", "share", "crowd", "delta"), [("duchi", 6, 4, 1), ("piecewise", 10, 8, 2)])
def test_shuffled_reports(name, share, crowd, delta):
    at = tables.grid(tables.SHARES)[share], tables.people()[crowd], tables.DELTAS[delta]
    assert HELD["shuffled"][name][delta][crowd][share] == pytest.approx(tables.shuffled(name, *at), abs=5e-4)
    assert math.exp(HELD["shuffled"][name][delta][crowd][share]) < 1


@pytest.mark.quick("piecewise")
@pytest.mark.parametrize("name", ["piecewise", "duchi"])
def test_errors_of_the_distribution(name):
    found = distribution.errors(tables.made(name, float(tables.grid(distribution.BUDGETS)[60])))
    assert [row[60] for row in HELD["distribution"][name]] == pytest.approx(found, abs=1e-4)


@pytest.mark.quick("20-70")
@pytest.mark.parametrize(("crowd", "at"), [(4, 30), (20, 70)])
def test_the_width_that_tells_most(crowd, at):
    people, epsilon = tables.grid(distribution.VALUES)[crowd], float(tables.grid(distribution.BUDGETS)[at])
    held = HELD["narrow"]["errors"][crowd][at]
    width = HELD["narrow"]["widths"][crowd][at]
    assert held == pytest.approx(distribution.narrow_error(epsilon, people, width), abs=1e-5)
    ((_, least),) = distribution.narrow(people, [epsilon])
    assert held == pytest.approx(least, abs=1e-5)
    for other in (-0.1, 0.1):
        assert distribution.narrow_error(epsilon, people, width + other) > held


def test_the_page_knows_every_mechanism_of_the_command():
    """In its list, or with the reason why not."""
    script = build.page_of({})
    names = set(CONSTRUCTORS) - {"closed-form", "auto"}
    assert {name for name in names if not re.search(rf'"{name}"|\b{name}: (named|\{{)', script)} == set()


def test_the_command_says_where_the_page_is():
    done = run("--print")
    assert done.exit_code == 0
    assert done.output.strip() == page.PAGE.as_uri()


def test_the_command_writes_the_page(tmp_path):
    target = tmp_path / "page.html"
    assert run("--output", target).output.strip() == str(target)
    assert target.read_bytes() == page.PAGE.read_bytes()
    target.write_text("mine")
    refused = run("--output", target)
    assert refused.exit_code == 2
    assert "--force replaces it" in refused.output
    assert target.read_text() == "mine"
    assert run("--output", target, "--force").exit_code == 0
    assert target.read_bytes() == page.PAGE.read_bytes()


def test_the_command_opens_the_page(monkeypatch):
    asked = []
    monkeypatch.setattr(webbrowser, "open", lambda uri: bool(asked.append(uri)) or True)
    assert run().exit_code == 0
    assert asked == [page.PAGE.as_uri()]


def test_without_a_browser_the_command_says_what_to_do(monkeypatch):
    monkeypatch.setattr(webbrowser, "open", lambda uri: False)
    done = run()
    assert done.exit_code == 1
    assert "--output FILE" in done.output


def test_the_command_loads_neither_jax_nor_numpy():
    script = """
import json, sys
from dpkernels.cli import main
sys.argv = ["dpkernels", "explore", "--print"]
try: main()
except SystemExit: pass
print(json.dumps([name for name in ("jax", "numpy", "scipy") if name in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []
