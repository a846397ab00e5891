"""Privacy: no report is e^eps times likelier under one input than under another, and the heights waste nothing."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from helpers import ALL, ATOMIC, MULTIVARIATE, POINTWISE, SUP_INF, WINDOWED, inputs, over, shape_knots

import accountants
import dpkernels as dpk
from accountants import profile
from accountants.dominating_pairs.registry import dominating_pairs
from accountants.profile import inverse_profile

SLACK = 1e-9


def limit(m):
    """e^eps, with the rounding of the base's mass 1 - S1 where the density is evaluated."""
    return math.exp(m.epsilon) * (1 + SLACK + 2.0**-52 / m.base_mass)


def density_extremes(m, y):
    """Largest and smallest density at each report over inputs.

    The inputs are a grid, both ends, and those that put a knot of the window on the report: between two such knots
    the density is monotone in the input, so these extremes are exact.
    """
    z = np.union1d(shape_knots(m.window), np.linspace(0, 1, 65))
    half = (m.output_interval[1] - m.output_interval[0]) / 2
    centre = y - half * m.width * (z[:, None] - 0.5)
    on_knots = m.middle + (centre - m.middle) * m.window_mass
    grid = np.linspace(m.lower, m.upper, 65)[:, None] + 0 * y
    density = m.pdf(y, np.clip(np.concatenate([on_knots, grid]), m.lower, m.upper))
    return density.max(0), density.min(0)


def report_grid(m):
    """Reports strictly inside the output interval, with those at the reach of the window's middle."""
    low, high = m.output_interval
    v = np.concatenate([np.linspace(-1, 1, 801), [1 - m.width / 2, m.width / 2 - 1]])
    return (low + high) / 2 + (high - low) / 2 * np.sort(v) * (1 - 1e-9)


def worst_ratio(m):
    """Supremum over reports of the ratio of the extremes: a grid, zoomed into its best cell down to 1e-9 of it."""
    y = report_grid(m)
    for _ in range(7):
        high, low = density_extremes(m, y)
        index = int((high / low).argmax())
        best = (high / low)[index]
        y = np.linspace(y[max(index - 1, 0)], y[min(index + 1, len(y) - 1)], 41)
    return float(best)


def raise_odds(m, factor):
    """The mechanism whose window is ``factor`` times higher against the base."""
    return dataclasses.replace(m, relative_height=factor * m.relative_height)


@over(WINDOWED)
def test_no_report_betrays_its_input(m):
    assert worst_ratio(m) <= limit(m)


@over(POINTWISE)
def test_pointwise_height_is_tight(m):
    assert worst_ratio(m) >= math.exp(m.epsilon) * (1 - 1e-6)


@over(SUP_INF)
def test_sup_inf_height_is_tight(m):
    high, low = density_extremes(m, report_grid(m))
    assert high.max() / low.min() == pytest.approx(math.exp(m.epsilon), rel=1e-7)


@over(POINTWISE)
def test_fault_of_one_percent_is_caught(m):
    faulty = raise_odds(m, 1.01)
    assert worst_ratio(faulty) > limit(faulty)
    assert accountants.epsilon(faulty) > m.epsilon + 1e-6


@over(WINDOWED)
def test_accountant_agrees_with_the_density(m):
    assert accountants.epsilon(m) == pytest.approx(math.log(worst_ratio(m)), rel=1e-6, abs=1e-9)


@over(WINDOWED)
def test_envelope_is_the_extremes(m):
    y = report_grid(m)
    v = (y - m.middle) / (m.output_interval[1] - m.middle)
    high, low = m.envelope(v)
    exact_high, exact_low = density_extremes(m, y)
    assert np.all(high * m.scale >= exact_high - SLACK * exact_high.max())
    assert np.all(low * m.scale <= exact_low * (1 + SLACK))


@over(ATOMIC)
def test_mixtures_and_points_are_private(m):
    """Probabilities of the atoms, and the density beside them, each change by at most e^eps."""
    x = np.linspace(m.lower, m.upper, 65)
    _, p = m.atoms(x)
    p = p[p.max(1) > 0]
    assert np.all(p.max(1) <= math.exp(m.epsilon) * (1 + 1e-8) * p.min(1))
    if isinstance(m, dpk.Mixture):
        assert worst_ratio(m.first) <= limit(m.first)
    assert accountants.epsilon(m) == pytest.approx(m.epsilon, rel=1e-6)


@over(ATOMIC, "duchi-0.1", "duchi-8-far", "hybrid-0.5")
def test_two_points_use_the_whole_budget(m):
    _, p = m.atoms(np.array([m.lower, m.upper]))
    assert p[1, 1] / p[1, 0] == pytest.approx(math.exp(m.epsilon), rel=1e-6)


@over(MULTIVARIATE)
def test_vector_spends_the_budget_of_its_coordinates(m):
    budget = {"one-of-three": 1.0, "two-of-five": 5.0, "all-of-two": 4.0, "alone": 0.5}
    expected = next(budget[name] for name, entry in MULTIVARIATE.items() if entry is m)
    assert m.epsilon == pytest.approx(expected)
    assert accountants.epsilon(m) == pytest.approx(expected, rel=1e-6)


@over(WINDOWED)
def test_level_is_that_of_the_density_and_not_of_the_label(m):
    relabelled = dataclasses.replace(m, epsilon=3.3)
    assert accountants.epsilon(relabelled) == accountants.epsilon(m)


@pytest.mark.parametrize("unknown", [object(), 1.0, None, "piecewise", np.zeros(3)])
def test_unknown_mechanism_is_an_error(unknown):
    with pytest.raises(TypeError, match="no known privacy level"):
        accountants.epsilon(unknown)


@over(ALL)
def test_inputs_at_both_ends_have_the_same_support(m):
    """A report possible under one input is possible under all: a base without zeros."""
    y = np.linspace(*m.output_interval, 101)[1:-1, None]
    density = m.pdf(y, inputs(m))
    assert np.all((density > 0).all(1) | (density == 0).all(1))


@pytest.mark.parametrize(
    "noise",
    [
        dpk.Laplace(1.3),
        dpk.Gaussian(2.1),
        dpk.Gaussian(1e-3),
        dpk.Staircase(0.7, 1.0, 0.4),
        dpk.GeneralisedNormal(2.0, 1.4),
    ],
    ids=str,
)
def test_a_bisection_that_knows_about_its_root_has_the_same_bits(monkeypatch, noise):
    pairs, deltas = dominating_pairs(dpk.Additive(noise, 1.0)), (1e-300, 1e-11, 1e-6, 0.03, 0.9)
    quick = [inverse_profile(pairs, np.float64(delta)) for delta in deltas]
    monkeypatch.setattr(profile, "_evaluated_near_root", lambda before, *_: before)
    assert quick == [inverse_profile(pairs, np.float64(delta)) for delta in deltas]
