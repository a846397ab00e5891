"""``dpkernels account``: its numbers are the accountants', and it says what they are for."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from additive_commands import ADDITIVE
from command_helpers import Run, assert_nothing_but, assert_refused, command

import accountants
import dpkernels as dpk

run = pytest.fixture(command, name="run")

BOUNDED = ["--epsilon", "1", "--lower", "-3", "--upper", "5"]
CASES = [case for case in ADDITIVE if "discrete" not in case]


def accounted(run: Run, *arguments: str) -> dict[str, Any]:
    done = run("account", *arguments, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def assert_profile(form: dict[str, Any], made: Any) -> None:
    """Every number of the tables is that of the accountants, and is told with null where it is infinite."""
    for row in form["delta_at_epsilon"]:
        assert row["delta"] == pytest.approx(accountants.delta(made, row["epsilon"]), rel=1e-9, abs=1e-15)
    for row in form["epsilon_at_delta"]:
        epsilon = accountants.epsilon(made, row["delta"])
        assert row["epsilon"] == (pytest.approx(epsilon, rel=1e-9) if math.isfinite(epsilon) else None)
    pure = accountants.epsilon(made)
    assert form["pure_epsilon"] == (pure if math.isfinite(pure) else None)


@pytest.mark.quick("laplace")
@pytest.mark.parametrize("case", CASES)
def test_additive_mechanisms(run: Run, case: str) -> None:
    given, make = ADDITIVE[case]
    made = make()
    form = accounted(run, case.partition(",")[0], *given)
    assert_profile(form, made)
    assert [row["epsilon"] for row in form["delta_at_epsilon"]] == [0.25, 0.5, 0.75, 1.0, 1.5, 2.0]
    assert [row["delta"] for row in form["epsilon_at_delta"]] == [1e-5, 1e-6, 1e-9]
    # Next to the largest loss delta is rounded upwards.
    assert form["delta_at_epsilon"][3]["delta"] <= made.delta * (1 + 1e-9) + 1e-14
    assert form["neighbouring"] == "true values at most 2 apart"
    assert form["variance"] == float(made.noise.variance)
    assert form["certified"].startswith("a release attains epsilon 1, delta ")
    assert form.get("acceptance") == (float(made.noise.acceptance) if "recycled" in case else None)


@pytest.mark.parametrize("case", [case for case in ADDITIVE if "discrete" in case])
def test_discrete_noise_is_answered_or_refused(run: Run, case: str) -> None:
    given, _ = ADDITIVE[case]
    done = run("account", case.partition(",")[0], *given)
    if done.code:
        assert_refused(done, 2, "no known worst pair")


@pytest.mark.quick("piecewise", "triangle-constant")
@pytest.mark.parametrize("name", ["piecewise", "duchi", "hybrid", "sine-constant", "triangle-constant"])
def test_bounded_mechanisms(run: Run, name: str) -> None:
    made = dpk.MECHANISMS[name](epsilon=1.0, lower=-3.0, upper=5.0)
    form = accounted(run, name, *BOUNDED)
    assert_profile(form, made)
    assert form["neighbouring"] == "any two values in [-3, 5]"
    assert form["pure_epsilon"] == pytest.approx(1.0)
    assert form["worst_variance"] == float(made.worst_variance)
    assert form["central_variance"] == pytest.approx(float(made.central_variance))


def test_noise_without_a_claim(run: Run) -> None:
    form = accounted(run, "gaussian", "--sigma", "3", "--sensitivity", "2")
    assert_profile(form, dpk.gaussian(sigma=3.0, sensitivity=2.0))
    assert form["certified"] is None
    assert [row["epsilon"] for row in form["delta_at_epsilon"]] == [0.1, 0.5, 1.0, 2.0, 4.0]
    options = ["--sensitivity", "2", "--theta", "3", "--scale", "2", "--q", "0.5"]
    assert_profile(
        accounted(run, "recycled-laplace", *options),
        dpk.budget_recycled(dpk.Laplace(2.0), theta=3.0, q=0.5, sensitivity=2.0),
    )


def test_points_that_are_asked_for(run: Run) -> None:
    options = ["--sigma", "3", "--sensitivity", "2", "--at-epsilon", "0", "--at-epsilon", "7", "--at-delta", "1e-3"]
    form = accounted(run, "gaussian", *options)
    assert [row["epsilon"] for row in form["delta_at_epsilon"]] == [0.0, 7.0]
    assert [row["delta"] for row in form["epsilon_at_delta"]] == [1e-3]
    assert_profile(form, dpk.gaussian(sigma=3.0, sensitivity=2.0))


@pytest.mark.thorough
def test_the_text_has_the_tables_and_what_they_are_for(run: Run) -> None:
    given, make = ADDITIVE["truncated-laplace"]
    text = run("account", "truncated-laplace", *given).out
    assert "neighbours          true values at most 2 apart\n" in text
    assert "pure level          none: delta is never 0\n" in text
    assert f"\n0.5      {accountants.delta(make(), 0.5):.9g}\n" in text
    assert "\n1e-09  none\n" in text
    assert "covers              one report of the ideal distribution, in exact arithmetic" in text


@pytest.mark.lengthy
def test_a_claim_without_a_release_is_accounted(run: Run) -> None:
    form = accounted(run, "gaussian", "--sigma", "3", "--sensitivity", "2", "--epsilon", "1", "--delta", "1e-6")
    assert form["certified"].startswith("no release: delta: is ")
    assert_profile(form, dpk.gaussian(sigma=3.0, sensitivity=2.0))


@pytest.mark.lengthy
@pytest.mark.quick("gaussian", "hybrid")
@pytest.mark.parametrize(
    "given",
    [
        ["laplace", "--epsilon", "1", "--sensitivity", "2"],
        ["truncated-laplace", *ADDITIVE["truncated-laplace"][0]],
        ["gaussian", "--sigma", "3", "--sensitivity", "2"],
        ["hybrid", *BOUNDED],
    ],
    ids=lambda given: given[0],
)
def test_the_profile_is_drawn(run: Run, given: list[str]) -> None:
    done = run("account", *given, "--plot", "profile.png")
    assert done.code == 0, done.err
    assert Path("profile.png").read_bytes().startswith(b"\x89PNG")
    assert_nothing_but("profile.png")


def test_the_curve_is_the_profile(run: Run) -> None:
    from dpkernels.cli import account
    from dpkernels.cli.account import Account

    found = Account.from_options("gaussian", {"sigma": 3.0, "sensitivity": 2.0, "epsilon": 1.5, "delta": 1e-3}, (), ())
    epsilons = np.linspace(0, 2, 9)
    axes = account._figure(found, epsilons).axes[0]
    curve, claim = (line.get_xydata() for line in axes.lines)
    expected = [accountants.delta(found.mechanism, epsilon) for epsilon in epsilons]
    np.testing.assert_allclose(curve, np.column_stack([epsilons, expected]), rtol=1e-9)
    np.testing.assert_array_equal(claim, [[1.5, 1e-3]])


def test_a_claim_below_the_axis_says_so(run: Run) -> None:
    from dpkernels.cli import account
    from dpkernels.cli.account import Account

    found = Account.from_options("gaussian", {"sigma": 9.0, "sensitivity": 1.0, "epsilon": 1.0, "delta": 1e-15}, (), ())
    claim = account._figure(found, np.linspace(0, 2, 3)).axes[0].lines[1]
    assert "delta 1e-15 (below the axis, drawn at 1e-12)" in claim.get_label()
    assert claim.get_ydata() == [1e-12]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "MECHANISM"),
        (["magic"], "'magic' is not one of piecewise"),
        (["gaus"], "'gaus' is not one of the mechanisms; did you mean gaussian?"),
        (["gaussian", "--sigma", "3"], "--sensitivity: missing; gaussian needs --sensitivity"),
        (["gaussian", "--sensitivity", "3"], "--sigma: missing; give it, or --epsilon and --delta"),
        (["recycled-gaussian", "--sensitivity", "3", "--theta", "1", "--sigma", "1"], "--q: missing"),
        (["recycled-laplace", "--sensitivity", "3", "--theta", "1", "--q", "0.1"], "--scale: missing"),
        (["gaussian", "--sigma", "3", "--sensitivity", "2", "--sigma", "4"], "--sigma: given 2 times"),
        (["gaussian", "--sigma", "3", "--sensitivity", "2", "--lower", "4"], "--lower: gaussian has no such option"),
        (["piecewise", *BOUNDED, "--sensitivity", "1"], "--sensitivity: piecewise has no such option"),
        (["piecewise", "--epsilon", "1", "--lower", "0"], "--upper: missing"),
        (["piecewise", *BOUNDED, "--at-epsilon", "-1"], "--at-epsilon: entry 0 is -1, not in"),
        (["piecewise", *BOUNDED, "--at-epsilon", "nan"], "--at-epsilon: entry 0 is nan, not in"),
        (["piecewise", *BOUNDED, "--at-delta", "1"], "--at-delta: entry 0 is 1, not in (0, 1)"),
        (["piecewise", *BOUNDED, "--at-delta", "0"], "--at-delta: entry 0 is 0, not in (0, 1)"),
        (["piecewise", *BOUNDED, "--plot", "out.pdf"], "out.pdf"),
        (["piecewise", *BOUNDED, "--plot", "no/out.png"], "no/out.png"),
    ],
)
def test_wrong_usage(run: Run, given: list[str], words: str) -> None:
    assert_refused(run("account", *given), 2, words)
    assert_nothing_but()


# Several reports


def test_reports_are_composed(run: Run) -> None:
    options = ["gaussian", "--sigma", "4", "--sensitivity", "2", "--reports", "30", "--at-delta", "1e-5"]
    form = accounted(run, *options, "--at-epsilon", "3")
    composed = accountants.guarantee(dpk.gaussian(sigma=4.0, sensitivity=2.0)).repeat(30)
    (row,) = form["epsilon_at_delta"]
    # Thirty Gaussian reports are one of a sigma smaller by the root of thirty.
    epsilon = accountants.epsilon(dpk.gaussian(sigma=4.0 / math.sqrt(30), sensitivity=2.0), 1e-5)
    assert row["at_least"] <= epsilon <= row["epsilon"] * (1 + 1e-12)
    assert row["epsilon"] - row["at_least"] < 1e-12 * epsilon
    assert row["epsilon"] == composed.epsilon(1e-5)
    (row,) = form["delta_at_epsilon"]
    assert row["at_least"] <= row["delta"] == composed.delta(3.0)
    assert (form["reports"], form["subsample"]) == (30, None)


def test_reports_on_samples_are_composed(run: Run) -> None:
    options = ["gaussian", "--sigma", "4", "--sensitivity", "2", "--reports", "30", "--subsample", "0.1"]
    composed = accountants.guarantee(dpk.gaussian(sigma=4.0, sensitivity=2.0)).subsample(0.1).repeat(30)
    form = accounted(run, *options, "--at-delta", "1e-5")
    assert form["neighbouring"] == composed.neighbouring
    assert [form["epsilon_at_delta"][0][end] for end in ("at_least", "epsilon")] == list(composed.bracket(delta=1e-5))
    assert form["delta_at_epsilon"] == []
    text = run("account", *options, "--at-delta", "1e-5").out
    assert "\nreports             30, each on a Poisson sample of rate 0.1 of its own\n" in text
    assert "\ndelta  epsilon " in text


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--reports", "0"], "--reports: 0 is not"),
        (["--reports", "two"], "'two' is not a valid integer"),
        (["--reports", "2", "--reports", "3"], "--reports: given 2 times"),
        (["--subsample", "0"], "--subsample: 0"),
        (["--subsample", "1.5"], "--subsample: 1.5"),
        (["--subsample", "nan"], "--subsample: nan"),
    ],
)
def test_wrong_reports(run: Run, given: list[str], words: str) -> None:
    assert_refused(run("account", "gaussian", "--sigma", "3", "--sensitivity", "2", *given), 2, words)


# What it means for one person.


@pytest.mark.thorough
def test_the_risk_is_that_of_the_guarantee(run: Run) -> None:
    options = ["laplace", "--sensitivity", "1", "--epsilon", "0.5", "--reports", "3", "--risk", "--at-delta", "1e-5"]
    done = run("account", *options, "--json", "--plot", "risk.png")
    guarantee = accountants.guarantee(dpk.laplace(epsilon=0.5, sensitivity=1.0)).repeat(3)
    assert json.loads(done.out)["risk"] == guarantee.report(1e-5).to_dict()
    assert Path("risk.png").read_bytes().startswith(b"\x89PNG")
    assert str(guarantee.report(1e-5)) in run("account", *options).out
    result = run("account", "laplace", "--sensitivity", "1", "--epsilon", "0.5", "--risk", "--json")
    assert json.loads(result.out)["risk"]["delta"] == 1e-6


def test_the_risk_has_one_delta(run: Run) -> None:
    options = ["account", "laplace", "--sensitivity", "1", "--epsilon", "0.5", "--risk"]
    assert_refused(run(*options, "--at-epsilon", "1"), 2, "error: --risk: takes one --at-delta")
    assert_refused(run(*options, "--at-delta", "1e-5", "--at-delta", "1e-6"), 2, "error: --risk: takes one --at-delta")
