"""The explorer's page: its tables and its script agree with Python, and the command writes and opens it."""

from __future__ import annotations

import html
import json
import math
import re
import shutil
import subprocess
import sys
import time
import webbrowser
from pathlib import Path

import jax
import numpy as np
import pytest
from click.testing import CliRunner

import accountants
import dpkernels as dpk
from accountants import calibrate
from benchmarks import explorer_tables as tables
from dpkernels.cli.categories import compare_categories
from dpkernels.cli.commands import dpkernels as command
from dpkernels.cli.explorer import page

TEXT = page.page()
HELD = page.tables()
FOLDER = Path(page.__file__).parent


def run(*arguments):
    return CliRunner().invoke(command, ["explore", *map(str, arguments)])


def test_the_page_is_assembled_at_once_and_needs_no_other_file():
    start = time.process_time()
    assert page.page() == TEXT
    assert time.process_time() - start < 1
    assert len(TEXT.encode()) < 1_500_000
    assert "default-src 'none'" in TEXT
    assert re.findall(r"""(?:src|href)=["'](?!data:)|@import|url\((?!#)|https?://""", TEXT) == []
    assert "{{" not in TEXT


def test_the_tables_are_those_of_the_command():
    assert HELD["deltas"] == list(tables.DELTAS)
    assert HELD["counts"] == list(tables.COUNTS)
    assert HELD["people"] == tables.people()
    assert set(HELD["windowed"]) == set(tables.WINDOWED)
    assert set(HELD["composed"]) == set(tables.COMPOSED)
    assert set(HELD["shuffled"]) == set(tables.SHUFFLED)
    assert HELD["grids"]["parameters"] == list(tables.PARAMETERS)
    assert HELD["grids"]["distributed"] == list(tables.ERROR_BUDGETS)
    assert HELD["grids"]["values"] == list(tables.ERROR_VALUES)
    assert HELD["optimalReports"] == tables.budgets("optimal").tolist()
    assert [one["epsilon"] for one in HELD["drawn"]] == list(tables.DRAWN)
    assert set(HELD["distribution"]) == set(tables.DISTRIBUTED)


def test_packed_tables_are_those_that_were_packed():
    values = {"one": [[0.25, -1.5, 3.00001], [1.0, 1.0, 1.0]]}
    assert np.allclose(page._unpacked(tables.packed(values))["one"], values["one"], rtol=0, atol=page.UNIT / 2 + 1e-12)


# The script, against Python

SCRIPT = """
const fs = require("fs");
const [model, input] = process.argv.slice(1).map((name) => fs.readFileSync(name, "utf8"));
const { tables, settings } = JSON.parse(input);
const make = new Function(model + "; return makeModel;")();
const page = make(tables);
const found = settings.map(({ name, epsilon, t, share, state }) => {
  if (!name) return page.ranked(state).rows.map(({ one, epsilon, total, error }) => ({
    name: one.name, epsilon, total, error, finer: page.total(one, epsilon * 1.006, state),
    coarser: page.errorOf(one, epsilon / 1.006, state),
  }));
  const one = tables[state.have].find((one) => one.name === name);
  const law = page.distributionOf(one, epsilon, state);
  const drawn = !law.untabulated;
  return {
    own: law.own ?? {},
    worst: law.worstVariance(),
    ends: Number.isFinite(law.high) ? [law.low, law.high] : null,
    variance: drawn ? law.variance(t) : null,
    mean: drawn ? law.mean(t) : null,
    delta: drawn ? law.delta(share * epsilon) : null,
    power: drawn ? [share, share / 1000].map(law.power) : null,
    beyond: one.noise ? law.beyond(0.05) : null,
    mass: drawn ? mass(law, t) : null,
    total: page.total(one, epsilon, state),
    error: page.errorOf(one, epsilon, state),
    intervals: page.meanIntervals({ law }, state.n, 0.95),
  };
});
function mass(law, t) {
  return law.cells(t).reduce((sum, cell) => sum + cell.mass, 0);
}
console.log(JSON.stringify(found));
"""
NODE = shutil.which("node")
PERSON = ("optimal", "hybrid", "duchi", "piecewise", "piecewise-wang2019", "piecewise-triangle", "sine-constant")
PERSON += ("triangle-constant", "piecewise-narrow", "square-wave", "laplace", "staircase")
STATISTIC = ("laplace", "staircase", "truncated-laplace", "discrete-laplace", "gaussian")


def drawn_setting(source, kind):
    """A random mechanism at a random budget, alone or together with others, as the page may be asked for it."""
    have = "person" if kind in ("shuffled", "distribution") else str(source.choice(["person", "statistic"]))
    names = {"shuffled": tables.SHUFFLED, "distribution": (*tables.DISTRIBUTED, "piecewise-narrow", "square-wave")}
    name = str(source.choice(names.get(kind, PERSON if have == "person" else STATISTIC)))
    n, delta = round(10 ** source.uniform(2, 6)), float(source.choice(tables.DELTAS))
    epsilon = float(f"{10 ** source.uniform(-1.5, 0.9):.4g}")
    if name == "optimal":
        epsilon = float(source.choice(tables.DRAWN if kind == "one" else HELD["optimalReports"]))
    state = {"n": n, "delta": delta, "count": 1, "shuffle": False, "know": "mean", "unit": 1.0, "sensitivity": 1}
    if kind == "together":
        state["count"] = int(source.choice(tables.COUNTS))
    if kind == "shuffled":
        state |= {"n": round(10 ** source.uniform(3, 8)), "shuffle": True}
        epsilon = float(source.uniform(0.13, 0.99) * tables.hideable(state["n"], delta))
    if kind == "distribution":
        state["know"] = "distribution"
    if name == "discrete-laplace" and kind == "one":
        state["sensitivity"] = int(source.integers(1, 6))
    t, share = (float(value) for value in source.uniform(0, 1, 2))
    state["have"] = have
    return {"name": name, "epsilon": epsilon, "t": t, "share": share, "state": state}


def mechanism_of(setting, own):
    name, epsilon, state = setting["name"], setting["epsilon"], setting["state"]
    if name in ("laplace", "staircase"):
        return getattr(dpk, name)(epsilon=epsilon, sensitivity=1.0)
    if name == "truncated-laplace":
        return dpk.truncated_laplace(epsilon=epsilon, delta=state["delta"], sensitivity=1.0)
    if name == "gaussian":
        return calibrate.gaussian(epsilon=epsilon, delta=state["delta"], sensitivity=1.0)
    if name == "discrete-laplace":
        return dpk.discrete_laplace(epsilon=epsilon, sensitivity=float(state["sensitivity"]))
    makers = {"piecewise-narrow": dpk.piecewise, "square-wave": dpk.square_wave}
    return makers.get(name, dpk.MECHANISMS.get(name))(epsilon=epsilon, lower=0.0, upper=1.0, **own)


def is_close(found, expected, rel=1e-3, absolute=1e-9):
    return found == pytest.approx(expected, rel=rel, abs=absolute)


def check_one(setting, found):
    m, state = mechanism_of(setting, found["own"]), setting["state"]
    scale = float(state["sensitivity"]) ** 2
    noise = hasattr(m, "noise")
    worst = float(m.noise.variance) if noise else float(m.worst_variance)
    assert is_close(found["worst"], worst / scale)
    variance = worst if noise else float(m.variance(setting["t"]))
    assert is_close(found["variance"], variance / scale)
    epsilon = setting["share"] * setting["epsilon"]
    assert is_close(found["delta"], float(accountants.delta(m, epsilon)), 2e-3, 2e-6)
    rates = setting["share"] * np.array([1.0, 1e-3])
    assert is_close(found["power"], 1 - accountants.guarantee(m).estimate_trade_off(rates), 2e-3, 1e-5)
    assert is_close(found["mass"], 1.0, 1e-3)
    if noise:
        D = state["sensitivity"]
        centre = round(setting["t"] * D) / D if setting["name"] == "discrete-laplace" else setting["t"]
        assert found["mean"] == pytest.approx(centre, abs=1e-4)
        check_beyond(m, found["beyond"] * D)
        return
    # The optimum's largest report barely matters to it, and the page rounds its table.
    room = 0.02 if setting["name"] == "optimal" else 1e-3
    bias = float(m.bias(setting["t"])) if setting["name"] == "square-wave" else 0.0
    assert found["mean"] == pytest.approx(setting["t"] + bias, abs=room * np.ptp(m.output_interval))
    assert found["ends"] == pytest.approx(list(m.output_interval), rel=room, abs=room)
    if setting["name"] != "square-wave":
        check_intervals(m, state["n"], found["intervals"], room)


def check_beyond(m, z):
    """The noise is further than z with a probability of at most 0.05, and not so for a smaller z."""
    if isinstance(m.noise, dpk.DiscreteLaplace):
        outside = [2 * float(m.noise.cdf(-w - 1.0)) for w in (z, z - 1.0)]
    else:
        outside = [float(m.noise.cdf(-w) + 1 - m.noise.cdf(w)) for w in (z * (1 + 1e-6), z * (1 - 1e-6))]
    assert outside[0] <= 0.05 * (1 + 1e-3)
    assert outside[1] >= 0.05 * (1 - 1e-3)


def check_intervals(m, n, found, rel):
    reports = np.full(n, float(np.mean(m.output_interval)))
    low, high = dpk.estimate_mean(reports, m).bernstein()
    # Python's interval ends where inputs can be; here the mean is in the middle.
    assert is_close(min(found["bernstein"], float(m.upper - m.lower) / 2), (high - low) / 2, rel)
    assert is_close(found["normal"], 1.959963985 * math.sqrt(float(m.worst_variance) / n))


def expected_total(setting, m):
    state = setting["state"]
    if state["shuffle"]:
        return accountants.shuffled(m, state["n"]).estimate_epsilon(state["delta"])
    return accountants.guarantee(m).repeat(state["count"]).estimate_epsilon(state["delta"])


def checked(kind, count, tmp_path):
    source = np.random.default_rng([3, len(kind), count])
    settings = [drawn_setting(source, kind) for _ in range(count)]
    if kind == "together":
        settings = [one for one in settings if one["name"] not in ("truncated-laplace",)]
    return list(zip(settings, of_the_script(settings, tmp_path), strict=True))


def of_the_script(settings, tmp_path):
    (tmp_path / "input.json").write_text(json.dumps({"tables": HELD, "settings": settings}))
    script = [NODE, "-e", SCRIPT, FOLDER / "model.js", tmp_path / "input.json"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


with_node = pytest.mark.skipif(NODE is None, reason="node, which runs the page's script, is not installed")


CATEGORIES = """
const fs = require("fs");
const make = new Function(fs.readFileSync(process.argv[1], "utf8") + "; return makeModel;")();
const model = make(JSON.parse(process.argv[2]));
console.log(JSON.stringify(JSON.parse(process.argv[3]).map(([epsilon, d]) => model.categories(epsilon, d))));
"""


@with_node
def test_mechanisms_for_categories_are_those_of_python():
    cases = [(epsilon, d) for epsilon in (0.01, 0.5, 1, 2.3, 6, 20) for d in (2, 3, 5, 20, 266, 4096, 100_000)]
    held = json.dumps({name: HELD[name] for name in ("person", "statistic", "grids")})
    script = [NODE, "-e", CATEGORIES, FOLDER / "model.js", held, json.dumps(cases)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for (epsilon, d), found in zip(cases, json.loads(done.stdout), strict=True):
        wanted = compare_categories(epsilon, d)
        assert found["least"] == pytest.approx(wanted.least, rel=1e-6)
        rows = {row["mechanism"]: row for row in wanted.rows}
        assert {row["name"] for row in found["rows"]} == set(rows)
        for row in found["rows"]:
            assert row["error"] == pytest.approx(rows[row["name"]]["error"], rel=1e-6), (epsilon, d, row)
            assert row["bits"] == pytest.approx(rows[row["name"]]["bits"], rel=1e-9), (epsilon, d, row)
        errors = [row["error"] for row in found["rows"]]
        assert errors == sorted(errors)


@pytest.mark.lengthy
@with_node
@pytest.mark.quick("40")
@pytest.mark.parametrize("count", [40, 1000], ids=str)
def test_reports_of_the_script_are_those_of_python(tmp_path, count):
    for setting, found in checked("one", count, tmp_path):
        try:
            check_one(setting, found)
        except AssertionError as error:
            raise AssertionError(f"{setting}: {found}") from error


@with_node
@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "count"), [("together", 1000), ("shuffled", 1000)])
def test_epsilon_of_several_reports_is_that_of_python(tmp_path, kind, count):
    for setting, found in checked(kind, count, tmp_path):
        expected = float(expected_total(setting, mechanism_of(setting, found["own"])))
        assert is_close(found["total"], expected, 2e-3), setting


@with_node
def test_shuffled_hybrid_reports_about_the_budget_where_they_begin_to_mix(tmp_path):
    settings = [drawn_setting(np.random.default_rng(0), "shuffled") | {"name": "hybrid"} for _ in range(6)]
    for setting, epsilon in zip(settings, [0.55, 0.593, 0.609, 0.61, 0.62, 0.668], strict=True):
        setting["epsilon"] = epsilon
        setting["state"] = setting["state"] | {"n": 1234, "delta": 1e-5}
    for setting, found in zip(settings, of_the_script(settings, tmp_path), strict=True):
        assert is_close(found["total"], float(expected_total(setting, mechanism_of(setting, {}))), 1e-3), setting


@with_node
@pytest.mark.thorough
def test_errors_of_the_distribution_are_those_of_python(tmp_path):
    for setting, found in checked("distribution", 1000, tmp_path):
        m = mechanism_of(setting, found["own"])
        if setting["name"] == "square-wave":  # It has the reports of piecewise-narrow in another unit.
            continue
        with jax.enable_x64(True):
            expected = float(tables._error(m, setting["state"]["n"]))
        assert is_close(found["error"], expected, 2e-3), setting


def drawn_question(source):
    """A random state of the page's controls."""
    state = drawn_setting(source, "one")["state"] | {"goal": str(source.choice(["budget", "accuracy"])), "unit": 7.0}
    state |= {"epsilon": float(f"{10 ** source.uniform(-1, 1):.3g}"), "target": float(10 ** source.uniform(-2, 1))}
    state |= {"count": int(source.choice([1, 1, *tables.COUNTS])), "whole": True}
    if state["have"] == "person":
        state["know"] = str(source.choice(["mean", "distribution"]))
        state["shuffle"] = state["count"] == 1 and state["n"] >= 1000 and bool(source.integers(2))
    else:
        state["n"] = 1
    return {"state": state}


@with_node
@pytest.mark.quick("30")
@pytest.mark.parametrize("count", [30, 1000], ids=str)
def test_the_page_uses_the_budget_and_reaches_the_accuracy(tmp_path, count):
    """The epsilon that the page chooses for a mechanism is right, and one that is 0.6 % off is not."""
    source = np.random.default_rng(29)
    questions = [drawn_question(source) for _ in range(count)]
    answered = 0
    for question, rows in zip(questions, of_the_script(questions, tmp_path), strict=True):
        state = question["state"]
        for row in rows:
            answered += 1
            if state["goal"] == "accuracy":
                assert row["error"] <= state["target"] * (1 + 1e-9), (state, row)
                ends = row["epsilon"] < 0.0101 or (row["name"] == "optimal" and state["count"] > 1) or state["shuffle"]
                assert ends or row["coarser"] > state["target"], (state, row)
            else:
                assert row["total"] <= state["epsilon"], (state, row)
                ends = row["name"] == "optimal" or row["epsilon"] > 5.9 or not row["finer"]
                assert ends or row["finer"] > state["epsilon"], (state, row)
    assert answered > 3 * count


# Where the page's interpolation is furthest below the accountants, of 150 random questions: (mechanism, question).
TOGETHER = {"have": "person", "know": "mean", "goal": "budget", "unit": 1.0, "sensitivity": 1, "whole": True}
REPORTS, SHUFFLED = TOGETHER | {"n": 10_000, "shuffle": False}, TOGETHER | {"count": 1, "shuffle": True}
FURTHEST = [
    ("laplace", REPORTS | {"count": 20, "delta": 1e-5, "epsilon": 0.27}),
    ("laplace", REPORTS | {"have": "statistic", "n": 1, "count": 200, "delta": 1e-8, "epsilon": 1.35}),
    ("triangle-constant", REPORTS | {"count": 20, "delta": 1e-8, "epsilon": 0.407}),
    ("piecewise", SHUFFLED | {"n": 2_533_900, "delta": 1e-5, "epsilon": 0.127}),
    ("piecewise-triangle", SHUFFLED | {"n": 467_547, "delta": 1e-8, "epsilon": 0.211}),
    ("piecewise", SHUFFLED | {"n": 4_099_088, "delta": 1e-6, "epsilon": 0.278}),
]


@with_node
@pytest.mark.lengthy
def test_the_budgets_that_the_page_chooses_are_kept(tmp_path):
    """By the accountants, where the page would exceed them if it left no room for its interpolation."""
    rows = of_the_script([{"state": state} for _, state in FURTHEST], tmp_path)
    chosen = [
        {"name": name, "state": state, "epsilon": row["epsilon"], "t": 0.5, "share": 0.5}
        for (name, state), several in zip(FURTHEST, rows, strict=True)
        for row in several
        if row["name"] == name
    ]
    assert len(chosen) == len(FURTHEST)
    for setting, found in zip(chosen, of_the_script(chosen, tmp_path), strict=True):
        spent = float(expected_total(setting, mechanism_of(setting, found["own"])))
        assert 0.99 * setting["state"]["epsilon"] <= spent <= setting["state"]["epsilon"], setting


# The tables, against Python


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


def test_each_row_of_a_drawn_table_is_an_unbiased_distribution():
    for table in HELD["drawn"]:
        inputs = np.linspace(-0.5, 0.5, len(table["rows"]))
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
    found = tables.errors(tables.made(name, float(tables.grid(tables.ERROR_BUDGETS)[60])))
    assert [row[60] for row in HELD["distribution"][name]] == pytest.approx(found, abs=1e-4)


@pytest.mark.quick("20-70")
@pytest.mark.parametrize(("crowd", "at"), [(4, 30), (20, 70)])
def test_the_width_with_the_least_error(crowd, at):
    people, epsilon = tables.grid(tables.ERROR_VALUES)[crowd], float(tables.grid(tables.ERROR_BUDGETS)[at])
    held = HELD["narrow"]["errors"][crowd][at]
    width = HELD["narrow"]["widths"][crowd][at]
    assert held == pytest.approx(tables.narrow_error(epsilon, people, width), abs=2e-5)
    ((_, least),) = tables.narrow(people, [epsilon])
    assert held == pytest.approx(least, abs=2e-5)
    for other in (-0.1, 0.1):
        assert tables.narrow_error(epsilon, people, width + other) > held


# The command


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DPKERNELS_CACHE", str(tmp_path / "cache"))


def kept():
    return Path(page.folder(), "explorer.html")


def test_the_command_says_where_the_page_is():
    done = run("--print")
    assert done.exit_code == 0
    assert done.output.strip() == kept().as_uri()
    assert kept().read_text() == TEXT


def test_without_a_cache_the_page_is_in_a_temporary_folder(monkeypatch):
    monkeypatch.setenv("DPKERNELS_CACHE", "")
    place = Path(run("--print").output.strip().removeprefix("file://"))
    assert place.read_text() == TEXT
    shutil.rmtree(place.parent)


def test_the_command_writes_the_page(tmp_path):
    target = tmp_path / "page.html"
    assert run("--output", target).output.strip() == str(target)
    assert target.read_bytes() == TEXT.encode()
    target.write_text("mine")
    refused = run("--output", target)
    assert refused.exit_code == 2
    assert "--force replaces it" in refused.output
    assert target.read_text() == "mine"
    assert run("--output", target, "--force").exit_code == 0
    assert target.read_bytes() == TEXT.encode()


def test_the_command_opens_the_page(monkeypatch):
    asked = []
    monkeypatch.setattr(webbrowser, "open", lambda uri: bool(asked.append(uri)) or True)
    assert run().exit_code == 0
    assert asked == [kept().as_uri()]


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


@pytest.mark.parametrize("call", ["count(epsilon=0.5)", 'sum("x", lower=0, upper=3, epsilon=0.5)'])
def test_the_lines_for_a_session_run(call, capsys):
    """With the values that the script fills in; a browser, where there is one, fills them in itself."""
    template = (FOLDER / "template.html").read_text()
    shown = html.unescape(re.search(r'<pre id="session"[^>]*>(.*?)</pre>', template, re.DOTALL)[1])
    values = {"epsilonCall": "0.5", "statisticCall": call}
    lines = re.sub(r'<span data-value="(\w+)"></span>', lambda place: values[place[1]], shown)
    script = (FOLDER / "page.js").read_text()
    assert all(f"{name}: " in script for name in values)
    exec(compile(lines, "session", "exec"), {})
    assert "95 % intervals" in capsys.readouterr().out
