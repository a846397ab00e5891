"""Noise of any symmetric shape: its delta and gradient, its optimum, and its certificate."""

from __future__ import annotations

import math
import sys
from functools import partial

import numpy as np
import pytest

import dpkernels as dpk
from accountants import guarantee, tune
from accountants.tune.free_form import Descent, _falls
from dpkernels.mechanisms.additive import Additive

# (epsilon, delta, releases, cells of a sensitivity), and the variance that a prototype found.
PROTOTYPE = [
    pytest.param((1.0, 1e-6, 3, 12), 17.92, marks=pytest.mark.thorough),
    pytest.param((1.0, 1e-6, 5, 4), 49.73, marks=pytest.mark.thorough),
    pytest.param((1.0, 1e-6, 10, 4), 158.62, marks=pytest.mark.thorough),
    ((1.0, 1e-9, 30, 1), 867.2),
]


def problem():
    """A descent at two cells, falls that are near its budget, and a direction."""
    descent = Descent(1.0, 1e-6, 10, 2)
    falls = _falls(dpk.GeneralisedNormal(14.5, 1.48), 2, 1e-7)
    return descent, falls, 1e-6 * np.random.default_rng(0).normal(size=len(falls))


def table_of(falls, cells):
    logs = -np.concatenate([[0.0], np.cumsum(falls)])
    return dpk.Tabulated(1.0 / cells, tuple(logs.tolist()), float(falls[-cells:].mean()))


def faults(descent, falls):
    """What is off about a descent: its delta, its variance, or a derivative."""
    direction, noise = problem()[2], table_of(falls, descent.cells)
    exact = guarantee(Additive(noise, 1.0)).repeat(10).estimate_delta(1.0)
    off = {
        "delta": abs(descent.log_delta(falls)[0] - math.log(exact)) > 1e-4,
        "variance": abs(descent.log_second_moment(falls)[0] - math.log(noise.variance)) > 1e-4,
    }
    for name, function in (("delta", descent.log_delta), ("variance", descent.log_variance)):
        _, slope = function(falls)
        difference = (function(falls + direction)[0] - function(falls - direction)[0]) / 2
        off[f"derivative of {name}"] = abs(slope @ direction - difference) > 1e-3 * (abs(slope) @ abs(direction))
    return {name for name, is_off in off.items() if is_off}


def test_delta_and_its_derivatives():
    descent, falls, _ = problem()
    assert not faults(descent, falls)


class TurnedDescent(Descent):
    """A budget that is tied in the wrong direction."""

    def log_variance(self, falls):
        value, slope = super().log_variance(falls)
        return value, -slope


class CutDescent(Descent):
    """Losses without the tail: those whose partner is beyond the last cell are left out."""

    def _masses(self, falls):
        p, loss, here, there = super()._masses(falls)
        return p * (here + there < len(falls)), loss, here, there


class SwappedDescent(Descent):
    """Epsilon and the number of releases exchanged."""

    def __init__(self, epsilon, delta, count, cells):
        super().__init__(float(count), delta, round(epsilon), cells)


@pytest.mark.parametrize(
    ("kind", "fault"), [(TurnedDescent, "derivative of variance"), (CutDescent, "delta"), (SwappedDescent, "delta")]
)
def test_planted_faults_are_seen(kind, fault):
    assert fault in faults(kind(1.0, 1e-6, 10, 2), problem()[1])


@pytest.mark.lengthy
def test_a_descent_that_misses_the_budget_is_corrected(monkeypatch):
    """Its tables have too little noise, and what is returned has been proven."""
    descend = Descent.descend
    monkeypatch.setattr(Descent, "descend", lambda self, *start: (0.0, 1.01 * descend(self, *start)[1], 0))
    families = [family for family in tune.NOISE_FAMILIES if family.name == "generalised normal"]
    search = partial(tune.noise, families=families)
    monkeypatch.setattr(sys.modules["accountants.tune.free_form"], "noise", search)
    tuned = tune.free_form(epsilon=2.0, delta=1e-3, count=3, cells=1, turns=1, sensitivity=3.0)
    assert guarantee(tuned.mechanism).repeat(3).delta(2.0) == pytest.approx(tuned.delta, rel=1e-9)
    assert 0.9e-3 < tuned.delta <= 1e-3


def test_a_table_of_steps_is_staircase_noise():
    """Also its profile and its composition, with a period of 12 cells and a step after 5 of them."""
    epsilon, cells = 0.12, 12
    steps = np.floor(np.arange(250 * cells) / cells + 1 - 5 / 12 + 1e-9)
    table, peer = (
        dpk.Tabulated(1 / cells, tuple((-epsilon * steps).tolist()), epsilon / cells),
        dpk.Staircase(epsilon, 1.0, 5 / 12),
    )
    z, u = np.array([-30.2, -3.3, -0.1, 0.01, 0.5, 2.2, 88.0]), np.array([1e-3, 0.2, 0.5, 0.7, 0.99])
    for name in ("log_prob", "cdf", "sf"):
        np.testing.assert_allclose(getattr(table, name)(z), getattr(peer, name)(z), rtol=1e-10)
    np.testing.assert_allclose(table.icdf(u), peer.icdf(u), rtol=1e-10, atol=1e-12)
    assert table.variance == pytest.approx(peer.variance, rel=1e-9)
    assert table.absolute_moment == pytest.approx(peer.absolute_moment, rel=1e-9)
    ours, theirs = (guarantee(Additive(noise, 1.0)).repeat(10) for noise in (table, peer))
    assert ours.estimate_delta(1.0) == pytest.approx(theirs.estimate_delta(1.0), rel=1e-9)


def test_tables_are_checked():
    for width, table, fall in ((0.0, (0.0,), 1.0), (1.0, (0.0, 0.5), 1.0), (1.0, (), 1.0), (1.0, (0.0, -1.0), 0.0)):
        with pytest.raises(ValueError, match=r"width|log_density|fall"):
            dpk.Tabulated(width, table, fall)


def test_tables_are_saved_and_released():
    noise = dpk.Tabulated(0.5, (0.0, -0.1, -0.5, -0.6), 0.25)
    composed = guarantee(Additive(noise, 1.0)).repeat(3)
    assert type(composed).from_json(composed.to_json()) == composed
    sampler = dpk.exact_sampler(Additive(noise, 1.0, 0.6, 0.0))
    assert sampler.certificate.guarantee == "pure epsilon-DP"
    assert float(sampler.certificate.worst_variance) == pytest.approx(noise.variance, rel=5e-3)


@pytest.mark.thorough
@pytest.mark.parametrize(("budget", "variance"), PROTOTYPE, ids=lambda value: str(value))
def test_no_free_form_is_worse_than_the_prototype(budget, variance):
    epsilon, delta, count, cells = budget
    tuned = tune.free_form(epsilon=epsilon, delta=delta, count=count, cells=cells, sensitivity=2.0)
    assert tuned.value <= 4 * variance * 1.0005
    assert tuned.gap == pytest.approx(tuned.named.value / tuned.value - 1)
    assert guarantee(tuned.mechanism).repeat(count).delta(epsilon) <= delta
    sampler = dpk.exact_sampler(tuned.mechanism)
    assert guarantee(sampler).repeat(count).delta(epsilon) <= delta * 1.001
    assert float(sampler.certificate.worst_variance) <= 4 * variance * 1.002


@pytest.mark.thorough
def test_a_table_whose_masses_are_below_the_floats_is_not_taken():
    """One descent ends at noise of variance 0.0023, whose delta is 1: less than the best that is possible."""
    free = tune.free_form(epsilon=4.0, delta=1e-6, count=1, cells=12)
    assert free.delta <= 1e-6
    assert guarantee(free.mechanism).delta(4.0) <= 1e-6
    assert free.value > 0.99 * free.named.value
