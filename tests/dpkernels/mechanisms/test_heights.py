"""Default parameters are optimal: nothing near them, and no fixed choice, has less variance."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import BOWL, BUMP, HUMPS, SKEW, UNIT

import dpkernels as dpk

EPSILONS = (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 8.0)
NAMED = ("uniform", "sine", "triangle")
SLACK = 1e-9

over_epsilon = pytest.mark.parametrize("epsilon", EPSILONS)
over_windows = pytest.mark.parametrize("window", [*NAMED, BUMP, HUMPS], ids=[*NAMED, "bump", "humps"])
over_objectives = pytest.mark.parametrize("objective", ["worst", "central"])


def _variance(m, objective):
    return float(m.worst_variance if objective == "worst" else m.central_variance)


@pytest.mark.lengthy
@pytest.mark.quick("*-uniform", "0.1-*-sine")
@over_windows
@over_objectives
@pytest.mark.parametrize("condition", ["pointwise", "sup_inf"])
@pytest.mark.parametrize("base", ["constant", dpk.Quartic(0.95)], ids=["constant", "quartic0.95"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_no_width_beats_the_default(window, base, condition, objective, epsilon):
    options = {"epsilon": epsilon, "condition": condition, "objective": objective, **SKEW}
    best = dpk.composite(window, base, **options)
    nearby_widths = best.width * (1 + np.linspace(-0.02, 0.02, 41))
    widths = np.concatenate(
        [np.geomspace(1e-3, 0.1, 20), np.linspace(0.1, 1.98, 120), nearby_widths[nearby_widths < 1.98]]
    )
    variances = [_variance(dpk.composite(window, base, width=width, **options), objective) for width in widths]
    assert min(variances) >= _variance(best, objective) * (1 - SLACK)


@pytest.mark.thorough
@pytest.mark.parametrize("window", ["sine", "triangle"])
@pytest.mark.parametrize("epsilon", [0.1, 2.0])
def test_no_quartic_edge_beats_the_default(window, epsilon):
    best = dpk.composite(window, "quartic", epsilon=epsilon, **UNIT)
    variances = [
        dpk.composite(window, dpk.Quartic(edge), epsilon=epsilon, **UNIT).worst_variance
        for edge in np.geomspace(1e-6, 1, 25)
    ]
    assert min(variances) >= best.worst_variance * (1 - 1e-6)


@pytest.mark.quick("*-uniform", "*-triangle")
@over_windows
@over_objectives
@over_epsilon
def test_pointwise_is_never_worse_than_sup_inf(window, objective, epsilon):
    options = {"epsilon": epsilon, "objective": objective, **UNIT}
    exact = _variance(dpk.composite(window, **options), objective)
    sufficient = _variance(dpk.composite(window, condition="sup_inf", **options), objective)
    assert exact <= sufficient * (1 + SLACK)


def test_wide_windows_gain_at_small_budgets():
    """Where the window is wider than 4/3 every placement covers the middle: 241 against 506 at eps = 0.1."""
    exact = dpk.composite("triangle", epsilon=0.1, **UNIT)
    sufficient = dpk.piecewise_triangle(epsilon=0.1, **UNIT)
    assert exact.width > 4 / 3 > sufficient.width
    assert exact.worst_variance < 0.5 * sufficient.worst_variance


@over_objectives
@over_epsilon
def test_each_objective_is_best_at_itself(objective, epsilon):
    other_objective = {"worst": "central", "central": "worst"}[objective]
    best, best_for_other = (dpk.piecewise(epsilon=epsilon, objective=o, **UNIT) for o in (objective, other_objective))
    assert _variance(best, objective) < _variance(best_for_other, objective)


@pytest.mark.parametrize("window", NAMED)
def test_quartic_never_helps_under_sup_inf(window):
    """Under sup P / inf P' <= e^eps the best quartic base is the constant one."""
    best = dpk.composite(window, "quartic", epsilon=1.0, condition="sup_inf", **UNIT)
    constant = dpk.composite(window, epsilon=1.0, condition="sup_inf", **UNIT)
    assert best.base.edge == 1
    assert best.worst_variance == pytest.approx(constant.worst_variance, rel=1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize(("window", "saving"), [("sine", 0.46), ("triangle", 0.55)])
def test_quartic_saves_much_under_the_pointwise_condition(window, saving):
    """Zhang 2024's A2B2 and A3B2 at eps = 0.2, against their variance under sup_inf."""
    options = {"epsilon": 0.2, "objective": "central", **UNIT}
    exact = dpk.composite(window, "quartic", **options).central_variance
    sufficient = dpk.composite(window, "quartic", condition="sup_inf", **options).central_variance
    assert 1 - exact / sufficient == pytest.approx(saving, abs=0.006)


@over_epsilon
def test_budget_buys_accuracy(epsilon):
    for make in (dpk.piecewise, dpk.composite, dpk.duchi, dpk.hybrid):
        less, more = (make(epsilon=e, **UNIT).worst_variance for e in (epsilon, 1.5 * epsilon))
        assert more < less


@pytest.mark.parametrize("window", NAMED)
@pytest.mark.parametrize("base", ["constant", BOWL, dpk.Quartic(0.3)], ids=["constant", "bowl", "quartic0.3"])
def test_parameters_do_not_depend_on_the_interval(window, base):
    here, there = (dpk.composite(window, base, epsilon=1.0, **interval) for interval in (SKEW, UNIT))
    assert (here.width, here.height) == (there.width, there.height)


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_shape_instances_are_their_names(epsilon):
    by_name = dpk.composite("sine", "constant", epsilon=epsilon, **UNIT)
    assert dpk.composite(dpk.Sine(), dpk.Constant(), epsilon=epsilon, **UNIT) == by_name


@pytest.mark.quick("duchi", "hybrid", "piecewise*", "sine-constant", "triangle-constant")
@pytest.mark.parametrize("name", sorted(dpk.MECHANISMS))
def test_listed_mechanisms_build(name):
    m = dpk.MECHANISMS[name](epsilon=0.7, **SKEW)
    assert (m.lower, m.upper, m.epsilon) == (SKEW["lower"], SKEW["upper"], 0.7)
