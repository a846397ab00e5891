"""``dpkernels tune`` and ``perturb --mechanism auto``: the winner is the tuner's, and its line of Python builds it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_helpers import Run, assert_nothing_but, assert_refused, command

import accountants
import dpkernels as dpk
from accountants import tune
from dpkernels.cli import mechanisms
from dpkernels.cli import tune as command_tune
from dpkernels.cli.perturb.sidecar import parse_sidecar

run = pytest.fixture(command, name="run")

INTERVAL = ["--epsilon", "1", "--lower", "-3", "--upper", "5"]
NOISE = ["--epsilon", "1", "--delta", "1e-5", "--sensitivity", "2"]


def tuned(run: Run, *arguments: str) -> dict[str, Any]:
    done = run("tune", *arguments, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def built(line: str) -> Any:
    """What a line of Python builds."""
    return eval(line, {"dpk": dpk})


FEW = {
    ("epsilon", "lower", "upper"): (
        tune.optimal,
        tune.piecewise,
        tune.hybrid,
        tune.duchi,
        partial(tune.composite, "sine"),
    ),
    ("epsilon", "sensitivity"): (tune.laplace, tune.staircase),
    ("epsilon", "sensitivity", "delta"): (tune.gaussian, partial(tune.budget_recycled, "gaussian")),
}


@pytest.fixture(params=["few", pytest.param("all", marks=pytest.mark.slow)])
def families(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every family that is searched takes seconds to compile."""
    assert FEW.keys() == command_tune._FAMILIES.keys()
    if request.param == "few":
        monkeypatch.setattr(command_tune, "_FAMILIES", FEW)


@pytest.mark.thorough
@pytest.mark.usefixtures("families")
def test_bounded_families_for_the_worst_variance(run: Run) -> None:
    form = tuned(run, *INTERVAL)
    values = [row["value"] for row in form["results"]]
    assert values == sorted(values)
    assert form["refused"] == []
    assert form["results"][0]["mechanism"] == "optimal"
    named = {row["mechanism"]: row["value"] for row in form["results"]}
    assert {"piecewise", "duchi", "hybrid"} < set(named)
    for row in form["results"]:
        made = built(row["python"])
        assert float(made.worst_variance) == pytest.approx(row["value"], rel=1e-9), row["python"]
        assert accountants.epsilon(made) <= 1 + 1e-9


@pytest.mark.thorough
@pytest.mark.usefixtures("families")
def test_noise_for_an_acceptance(run: Run) -> None:
    form = tuned(run, *NOISE, "--objective", "acceptance", "--theta", "2", "--plot", "search.png")
    values = [row["value"] for row in form["results"]]
    assert values == sorted(values, reverse=True)
    assert Path("search.png").read_bytes().startswith(b"\x89PNG")
    for row in form["results"]:
        made = built(row["python"])
        assert float(made.noise.mass(-2.0, 2.0)) == pytest.approx(row["value"], rel=1e-6), row["python"]
        assert accountants.delta(made, 1.0) <= 1e-5 * (1 + 1e-9)
        assert made.sensitivity == 2.0


@pytest.mark.thorough
def test_pure_noise_without_a_delta(run: Run) -> None:
    done = run("tune", "--epsilon", "2", "--sensitivity", "1", "--objective", "absolute-error")
    assert done.code == 0, done.err
    *_, best, line = done.out.splitlines()
    assert best == "best: staircase"
    assert built(line).noise.gamma == pytest.approx(dpk.staircase(epsilon=2.0, sensitivity=1.0).noise.gamma, rel=1e-6)
    assert "recycled" not in done.out


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--epsilon", "1"], "--sensitivity: missing (or --lower and --upper"),
        (["--epsilon", "1", "--lower", "0"], "--upper: missing"),
        (["--sensitivity", "1"], "--epsilon: missing"),
        ([*INTERVAL, "--delta", "1e-5"], "--delta: has no use here"),
        ([*NOISE, "--objective", "acceptance"], "--theta: missing"),
        ([*NOISE, "--theta", "1"], "--theta: has no use here"),
        ([*NOISE, "--objective", "acceptance", "--theta", "-1"], "theta: -1"),
        ([*NOISE, "--objective", "quantile", "--beta", "1.5"], "beta: 1.5"),
        ([*NOISE, "--epsilon", "2"], "--epsilon: given 2 times"),
        (
            ["--epsilon", "1", "--lower", "0", "--upper", "1", "--objective", "variance-at", "--at", "5"],
            "--at: 5 is not in [0, 1]",
        ),
        ([*NOISE, "--objective", "best"], "'best' is not one of"),
        (["--epsilon", "0", "--sensitivity", "1"], "epsilon: 0"),
        (["--epsilon", "nan", "--lower", "0", "--upper", "1"], "epsilon: nan"),
        ([*NOISE[:2], "--lower", "1", "--upper", "0"], "lower, upper"),
        ([*INTERVAL, "--objective", "distribution"], "--reports: missing"),
        ([*NOISE, "--objective", "distribution", "--reports", "9"], "--lower, --upper: missing"),
        ([*INTERVAL, "--objective", "distribution", "--reports", "0"], "reports: 0"),
        ([*INTERVAL, "--plot", "search.pdf"], "search.pdf must be a .png"),
    ],
)
def test_bad_options_are_refused(run: Run, given: list[str], says: str) -> None:
    assert_refused(run("tune", *given), 2, says)


def test_auto_is_the_best_bounded_mechanism(run: Run) -> None:
    np.save("in.npy", np.linspace(-3, 5, 1001))
    done = run("perturb", "in.npy", "out.npy", "--mechanism", "auto", *INTERVAL)
    assert done.code == 0, done.err
    assert "optimal" in done.out
    sidecar = json.loads(Path("out.npy.json").read_text())
    assert sidecar["columns"][0]["mechanism"] == "optimal"
    assert run("certify", "--verify", "out.npy.json").code == 0
    assert len(np.unique(np.load("out.npy"))) < 200


@pytest.mark.thorough
def test_bounded_families_for_the_distribution(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Square wave and piecewise of one width say the same, a triangle says less, and two points next to nothing."""
    some = (tune.duchi, tune.piecewise_triangle, tune.piecewise)
    monkeypatch.setitem(command_tune._FAMILIES, ("epsilon", "lower", "upper"), some)
    form = tuned(
        run, "--epsilon", "1", "--lower", "0", "--upper", "8", "--objective", "distribution", "--reports", "100000"
    )
    named = {row["mechanism"]: row for row in form["results"]}
    assert form["refused"] == []
    assert {form["results"][0]["mechanism"], form["results"][1]["mechanism"]} == {"piecewise", "square-wave"}
    assert named["piecewise"]["value"] == pytest.approx(named["square-wave"]["value"], rel=1e-6)
    assert named["duchi"]["value"] > 4 * named["piecewise"]["value"]
    wave, plain = (built(named[name]["python"]) for name in ("square-wave", "piecewise"))
    assert float(wave.unbiased.width) == pytest.approx(float(plain.width), rel=1e-3)
    assert float(wave.half_width) < 0.2561  # The published width is for fewer reports.


@pytest.mark.thorough
def test_auto_for_the_distribution_is_a_narrow_piecewise(run: Run) -> None:
    np.save("in.npy", np.linspace(-3, 5, 1001))
    done = run("perturb", "in.npy", "out.npy", "--mechanism", "auto", "--objective", "distribution", *INTERVAL)
    assert done.code == 0, done.err
    column = json.loads(Path("out.npy.json").read_text())["columns"][0]
    assert column["mechanism"] == "piecewise"
    assert set(column["options"]) == {"epsilon", "lower", "upper", "eta"}
    assert column["options"]["eta"] > 1.5 * 2 / float(dpk.piecewise(epsilon=1.0, lower=-3.0, upper=5.0).width)
    assert run("certify", "--verify", "out.npy.json").code == 0
    asked = run("account", "auto", "--objective", "distribution", *INTERVAL, "--json")
    assert asked.code == 0, asked.err
    assert_refused(run("perturb", "in.npy", "o.npy", "--mechanism", "duchi", "--objective", "variance", *INTERVAL), 2)


def test_auto_has_an_interval(run: Run) -> None:
    np.save("in.npy", np.zeros(3))
    given = "in.npy", "out.npy", "--mechanism", "auto"
    assert_refused(run("perturb", *given, "--epsilon", "1", "--sensitivity", "1"), 2, "--sensitivity")
    assert_nothing_but("in.npy")


def test_auto_where_the_optimum_is_not_computed(run: Run) -> None:
    """Above its largest epsilon another mechanism is the best."""
    done = run("certify", "--mechanism", "auto", "--epsilon", "15", "--lower", "0", "--upper", "1", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["mechanism"] in ("piecewise", "hybrid")


@pytest.mark.parametrize(
    ("choice", "epsilon", "name", "says"),
    [
        ("closed-form", "0.5", "duchi", "good for means, not for quantiles and histograms; for these use --mechanism"),
        ("balanced", "0.5", "hybrid", "good for means, and for quantiles of many people"),
        ("balanced", "1", "hybrid", "good for means, and for quantiles of many people"),
        ("balanced", "4", "piecewise", "for the best quantiles add --objective distribution"),
        ("triangle-constant", "1", "triangle-constant", "the variance of means is 207 % above the best"),
        ("square-wave", "1", "square-wave", "not for means, which are biased"),
    ],
)
def test_a_choice_is_named_with_the_questions_that_it_answers_well(
    run: Run, choice: str, epsilon: str, name: str, says: str
) -> None:
    np.save("in.npy", np.linspace(-3, 5, 11))
    given = () if choice == "balanced" else ("--mechanism", choice)
    done = run("perturb", "in.npy", "out.npy", *given, "--lower", "-3", "--upper", "5", "--epsilon", epsilon)
    assert done.code == 0, done.err
    assert f"(array)  {name} " in done.out
    assert says in done.out
    verified = run("certify", "--verify", "out.npy.json").out
    assert verified.startswith(f"ok: (array), mechanism {name}, epsilon {epsilon};")


@pytest.mark.parametrize("epsilon", [0.01, 0.25, 0.5, 0.61, 0.62, 1.0, 3.0, 20.0])
def test_the_default_costs_at_most_a_tenth_and_can_estimate_distributions(epsilon: float) -> None:
    """Reports of two values cannot; the balanced choice is never one of them."""
    own = {"epsilon": epsilon, "lower": -3.0, "upper": 5.0}
    made = [mechanisms.mechanism(name, own) for name in ("balanced", "closed-form")]
    balanced, best = (float(one.worst_variance) for one in made)  # type: ignore[attr-defined]
    assert best <= balanced <= mechanisms.ROOM * best * (1 + 1e-12)
    assert not isinstance(made[0], dpk.TwoPoint)
    assert balanced >= 1.0995 * best or type(made[0]) is type(made[1])
    assert accountants.epsilon(made[0]) <= epsilon * (1 + 1e-9)
    assert dpk.exact_sampler(made[0]).certificate.realised_epsilon <= epsilon  # type: ignore[attr-defined]


def test_a_share_of_the_hybrid_is_a_probability(run: Run) -> None:
    np.save("in.npy", np.zeros(3))
    given = "perturb", "in.npy", "out.npy", "--mechanism", "hybrid", *INTERVAL, "--share"
    assert_refused(run(*given, "1"), 2, "share: 1 is not in (0, 1)")
    assert run(*given, "0.25").code == 0
    assert "mixture" in parse_sidecar(Path("out.npy.json").read_text())["columns"][0]["certificate"]["kind"]
    assert run("certify", "--verify", "out.npy.json").code == 0
