"""What a calibration accepts: a value at its target, and none that is one float above it.

The number that decides is replaced: it is a float above the target for the first candidate, and the target for the
second one. A tolerance on the wrong side, however small, accepts the first; one on the safe side refuses the second.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dpkernels as dpk
from accountants import calibrate, profile, tune
from accountants.shuffle.bracket import conservative_epsilon
from dpkernels.distributions.gaussian import Gaussian

EPSILON, DELTA = 0.5, 1e-5
BUDGET = {"epsilon": EPSILON, "delta": DELTA}
INTERVAL = {"lower": 0.0, "upper": 1.0}
MERGED = {"falls": np.array([0.3]), "breaks": np.array([0.6])}

# Where the number that decides is computed, its target, and a calibration.
ONE, SEVERAL = "accountants.calibrate.one_release", "accountants.calibrate.composed"
CASES: dict[str, tuple[str, float, Callable[[], Any]]] = {
    "discrete": (f"{ONE}.realised", DELTA, lambda: calibrate.discrete_gaussian(**BUDGET, sensitivity=1.0)),
    "truncated-laplace": (f"{ONE}.additive_profile", DELTA, lambda: calibrate.truncated_laplace(**BUDGET)),
    "truncated-gaussian": (f"{ONE}.additive_profile", DELTA, lambda: calibrate.truncated_gaussian(**BUDGET)),
    "recycling-rate": (
        f"{ONE}.additive_profile",
        DELTA,
        lambda: calibrate.recycling_rate(Gaussian(9.0), 1.0, EPSILON, DELTA, 1.0),
    ),
    "recycled-scale": (
        f"{ONE}.additive_profile",
        DELTA,
        lambda: calibrate.recycled_scale(Gaussian(1.0), 1.0, 0.3, EPSILON, DELTA, 1.0),
    ),
    "scale": (f"{SEVERAL}.Bracket", EPSILON, lambda: calibrate.composed_scale(Gaussian(1.0), **BUDGET, count=3)),
    "shuffled": (
        f"{SEVERAL}.upper_delta",
        DELTA,
        lambda: calibrate.shuffled(dpk.piecewise, **BUDGET, n=1000, **INTERVAL),
    ),
    "merged": (
        "accountants.tune.families.noise.realised_epsilon",
        EPSILON,
        lambda: tune.merged_laplace(epsilon=EPSILON, segments=2).release(MERGED),
    ),
    "epsilon": ("accountants.profile.profile", DELTA, lambda: profile._rounded_up((), np.array([DELTA]))),
}


def one_float_above_then_at(target: float, asked: list[Any]) -> Callable[..., float]:
    """Return a function whose first value is the float above the target, and every other the target."""

    def value(*given: Any, **named: Any) -> float:
        asked.append(given)
        return math.nextafter(target, math.inf) if len(asked) == 1 else target

    return value


@pytest.mark.parametrize("case", CASES)
def test_the_target_is_met_and_a_float_above_it_is_not(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (place, target, calibrated), asked = CASES[case], []
    value: Any = one_float_above_then_at(target, asked)
    if place.endswith("Bracket"):
        replacement: Any = lambda releases: SimpleNamespace(upper_epsilon=value)  # noqa: E731
    else:
        replacement = value
    module, _, name = place.rpartition(".")
    monkeypatch.setattr(import_module(module), name, replacement)
    monkeypatch.setattr(profile, "_bisected", lambda pairs, delta: np.full(delta.shape, EPSILON))
    calibrated()
    assert len(asked) == 2


def test_the_upper_end_of_a_shuffled_bracket_meets_its_delta() -> None:
    asked: list[Any] = []
    conservative_epsilon(one_float_above_then_at(DELTA, asked), DELTA, EPSILON, -1.0, 1)
    assert len(asked) == 2
