"""Any member of a tuning family meets the budget, and not only the optima that a search returns.

A search visits members by ``build``, and releases one by ``release``. Both are asked for at random parameters, and the
budget is checked in 50 digits by the definition of the mechanism's density, which shares no formula with the families.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from oracle import exact_profile

import dpkernels as dpk
from accountants import tune
from accountants.tune import domains
from accountants.tune.families import composed, constructed, noise

EPSILON, DELTA = 0.9, 1e-3
PURE = {"epsilon": EPSILON, "sensitivity": 1.3}
APPROXIMATE = {**PURE, "delta": DELTA}
INTERVAL = {"epsilon": EPSILON, "lower": -1.0, "upper": 4.0}

# By the name of the constructor; what has no free parameter has one member.
FAMILIES: dict[str, Callable[[], Any]] = {
    "laplace": lambda: tune.laplace(**PURE),
    "staircase": lambda: tune.staircase(**PURE),
    "merged_laplace": lambda: tune.merged_laplace(**PURE, segments=3),
    "gaussian": lambda: tune.gaussian(**APPROXIMATE),
    "truncated_laplace": lambda: tune.truncated_laplace(**APPROXIMATE),
    "truncated_gaussian": lambda: tune.truncated_gaussian(**APPROXIMATE),
    "budget_recycled": lambda: tune.budget_recycled("gaussian", **APPROXIMATE, theta=1.0),
    "composite": lambda: tune.composite("sine", "quartic", **INTERVAL),
    "piecewise": lambda: tune.piecewise(**INTERVAL),
    "piecewise_triangle": lambda: tune.piecewise_triangle(**INTERVAL),
    "square_wave": lambda: tune.square_wave(**INTERVAL),
    "duchi": lambda: tune.duchi(**INTERVAL),
    "hybrid": lambda: tune.hybrid(**INTERVAL),
    "constructed": lambda: tune.constructed(dpk.piecewise, free={"eta": domains.GreaterThan(1.0)}, **INTERVAL),
}
# A linear program with nothing free; and families of several releases, which are below.
OTHERS = {"optimal", "composed", "shuffled", "sampled_recycled"}


def members(family: Any, count: int) -> list[dict[str, Any]]:
    """Random parameters, up to a fifth beyond the span in which searches start."""
    random = np.random.default_rng(5)
    spans = np.array([one.span for one in family.domains.values() for _ in range(one.size)]).reshape(-1, 2)
    shares = random.uniform(-0.2, 1.2, (count if len(spans) else 1, len(spans)))
    return [domains.constrain(family.domains, spans[:, 0] + (spans[:, 1] - spans[:, 0]) * share) for share in shares]


def excess(mechanism: Any, delta: float) -> float:
    """By how much delta at the budget's eps exceeds the budget's delta."""
    D = PURE["sensitivity"] if isinstance(mechanism, dpk.Additive) else None
    # The eps that decides is a little higher, since floats are rounded; what it spares of delta is no more than that.
    return float(exact_profile(mechanism, EPSILON * (1 + 1e-9), D)) - delta


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.lengthy) if name == "truncated_gaussian" else name for name in FAMILIES],
)
def test_random_members_meet_the_budget(name: str) -> None:
    family, feasible = FAMILIES[name](), 0
    delta = float(family.budget[1])
    for free in members(family, 24 if name == "merged_laplace" else 6):  # A window of each kind is the steepest.
        try:
            made = family.build(free)
        except ValueError:  # No mechanism with these parameters meets the budget.
            continue
        feasible += 1
        assert excess(made, delta) <= 1e-9 * delta + 1e-12, free
        assert excess(family.certified_member(free), delta) <= 1e-9 * delta + 1e-12, free
    assert feasible


def test_every_family_is_tried() -> None:
    named = {name for home in (noise, constructed, composed) for name in home.__all__}
    made = {name for name in named if name[0].islower() and callable(getattr(tune, name))}
    assert made - OTHERS - set(FAMILIES) == {"free_rate"}
