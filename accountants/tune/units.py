"""Searches on intervals and sensitivities of their own, so that what they find does not depend on data units."""

from __future__ import annotations

import dataclasses
from functools import singledispatch
from typing import Any

from accountants.tune.family import Family, on_unit
from accountants.tune.objectives import Objective
from dpkernels.mechanisms.optimal.mechanism import Optimal
from dpkernels.mechanisms.two_point import Mixture, TwoPoint
from dpkernels.mechanisms.windowed.mechanism import Windowed
from dpkernels.mechanisms.windowed.square_wave import SquareWave


def search_in_units(family: Family, objective: Objective) -> tuple[Family, Objective, Any]:
    """The same search without data units: the input interval is [-1, 1], or the sensitivity 1.

    A function of the user's own sees mechanisms in data units; then nothing changes.

    Returns:
        The family, the objective, and the factor from its values to those in data units. A point of the search is the
        same member of both families.
    """
    placed = None if objective.power is None else on_unit(family)
    if placed is None:
        return family, objective, 1.0
    unit, lower, upper = placed
    return unit, objective.on_unit(lower, upper), _factor(objective, lower, upper)


def value_of(objective: Objective, mechanism: Any) -> Any:
    """The objective of one mechanism, found where its input interval is [-1, 1]."""
    unit = None if objective.power is None else _on_unit(mechanism)
    if unit is None:
        return objective(mechanism)
    lower, upper = mechanism.input_interval
    return objective.on_unit(lower, upper)(unit) * _factor(objective, lower, upper)


def _factor(objective: Objective, lower: Any, upper: Any) -> Any:
    return ((upper - lower) / 2) ** objective.power if objective.power else 1.0


@singledispatch
def _on_unit(mechanism: Any) -> Any:
    """A bounded mechanism with the input interval [-1, 1]; None of others."""
    return None


@_on_unit.register(Windowed)
@_on_unit.register(TwoPoint)
@_on_unit.register(SquareWave)
def _(mechanism: Any) -> Any:
    return dataclasses.replace(mechanism, lower=-1.0, upper=1.0)


@_on_unit.register
def _(mechanism: Mixture) -> Any:
    parts = _on_unit(mechanism.first), _on_unit(mechanism.second)
    return None if None in parts else dataclasses.replace(mechanism, first=parts[0], second=parts[1])


@_on_unit.register
def _(mechanism: Optimal) -> Any:
    half, D = (mechanism.upper - mechanism.lower) / 2, mechanism.sensitivity
    lengths = {"reach": mechanism.reach / half, "spacing": mechanism.spacing / half}
    return dataclasses.replace(mechanism, lower=-1.0, upper=1.0, sensitivity=None if D is None else D / half, **lengths)
