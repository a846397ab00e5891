"""What a calibration accepts: a value at its target, and none that is one float above it.

The number that decides is replaced: it is a float above the target for the first candidate, and the target for the
second one. A tolerance on the wrong side, however small, accepts the first; one on the safe side refuses the second.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from accountants import profile, tune
from accountants.shuffle.bracket import conservative_epsilon

EPSILON, DELTA = 0.5, 1e-5
MERGED = {"falls": np.array([0.3]), "breaks": np.array([0.6])}

# Where the number that decides is computed, its target, and a calibration.
CASES: dict[str, tuple[str, float, Callable[[], Any]]] = {
    "merged": (
        "accountants.tune.families.noise.realised_epsilon",
        EPSILON,
        lambda: tune.merged_laplace(epsilon=EPSILON, segments=2).certified_member(MERGED),
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
    module, _, name = place.rpartition(".")
    monkeypatch.setattr(import_module(module), name, value)
    monkeypatch.setattr(profile, "_bisected", lambda pairs, delta: np.full(delta.shape, EPSILON))
    calibrated()
    assert len(asked) == 2


def test_the_upper_end_of_a_shuffled_bracket_meets_its_delta() -> None:
    asked: list[Any] = []
    conservative_epsilon(one_float_above_then_at(DELTA, asked), DELTA, EPSILON, -1.0, 1)
    assert len(asked) == 2
