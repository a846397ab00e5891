"""Sweeps: the best members of a family at many budgets, each searched from those of a neighbouring budget."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np
import optax

from accountants.dominating_pairs.base import as_float64
from accountants.tune import domains
from accountants.tune.family import Family, checked
from accountants.tune.objectives import ObjectiveLike, as_objective
from accountants.tune.search import NO_RESULT, OPTIMISED, QUICK, Cost, SearchResult, search
from accountants.tune.tuning import TURNS, check_limits, search_all_starts, starting_points, value_per_cost
from dpkernels.numerics import Real, RealArray

__all__ = ["SweepResult", "many"]

# Of many budgets each is searched from its neighbour's parameters, and so often from all starts.
_RESTART_INTERVAL = 20
_MIN_OPTIMISED = 200  # So many budgets are worth an optimised program.


class SweepResult(NamedTuple):
    """Tuned parameters at many budgets: arrays of the budgets' shape, by the source's symbols.

    ``values`` are those of the objective, in its natural direction; ``evaluations`` counts over all budgets and starts.
    """

    parameters: dict[str, np.ndarray]
    values: np.ndarray
    evaluations: int


def many(
    family: Family,
    objective: ObjectiveLike,
    *,
    starts: int | None = None,
    turns: int = TURNS,
    optimizer: optax.GradientTransformation | None = None,
) -> SweepResult:
    """Return the best members at many budgets, each searched from the parameters of a neighbouring budget.

    The arrays of the family, such as ``piecewise(epsilon=np.array(...), ...)``, broadcast to one shape, that of the
    results. These are not certified one by one: build a mechanism for release with ``best``, which has the other
    arguments, too. Some budgets are searched from all starts, and what is better there is tried at its neighbours.

    Raises:
        ValueError: starts or turns is not in 1..100000, the arrays do not broadcast or are empty, or no member is
            feasible at some budget.
    """
    chosen = as_float64(as_objective(objective))
    numbers, tree = jax.tree.flatten(as_float64(checked(family).with_tolerated_error(chosen.theta)))
    shapes = [np.shape(number) for number in numbers]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        raise ValueError(f"family: holds arrays of shapes {shapes}, which do not broadcast") from None
    if 0 in shape:
        raise ValueError(f"family: holds an array of shape {shape}; at least one budget is needed")
    columns = [np.broadcast_to(number, shape).ravel() for number in numbers]
    order = np.lexsort(columns[::-1]).tolist()
    rows = [jax.tree.unflatten(tree, [column[index] for column in columns]) for index in order]
    limits = check_limits(turns, optimizer)
    with jax.enable_x64(True):
        program = QUICK if len(rows) < _MIN_OPTIMISED else OPTIMISED
        cost = Cost(rows[0], chosen, program=program if rows[0].domains else None)
        descents, members = _sweep(cost, rows, starts, *limits), []
        for index, row, descent in zip(order, rows, descents, strict=True):
            if descent.value == np.inf:
                message = f"family: at budget number {index} no member of {row.name} is feasible"
                raise ValueError(message) from cost.log.infeasibility
            members.append({"": descent.value * value_per_cost(row, chosen)})
            if descent.point.size:
                parameters_at = _traced_parameters if cost.program is OPTIMISED else _parameters
                members[-1] |= jax.tree.map(np.asarray, parameters_at(row, descent.point, descent.solved_budget))
    inverse = np.argsort(order)
    stacked = {name: np.stack([np.asarray(member[name]) for member in members])[inverse] for name in members[0]}
    parameters = {name: column.reshape((*shape, *column.shape[1:])) for name, column in stacked.items()}
    return SweepResult(parameters, parameters.pop(""), cost.log.evaluations)


def _parameters(family: Family, z: RealArray, solved_budget: Real) -> dict[str, Real]:
    """Return every parameter of the member at z."""
    params = domains.constrain(family.domains, z)
    return family.parameters(params, family.build_warm_started(params, solved_budget))


_traced_parameters = jax.jit(_parameters)  # Of many budgets, of which plain numbers take 20 times as long.


def _sweep(cost: Cost, rows: list[Family], starts: int | None, turns: int, optimizer: object) -> list[SearchResult]:
    """Return what the search finds for each family, of which neighbours have budgets next to one another."""
    descents: list[SearchResult] = []
    for index, row in enumerate(rows):
        cost, descent = replace(cost, family=row), NO_RESULT
        if row.domains and descents and descents[-1].value < np.inf:
            descent = search(cost, descents[-1].point[None, None], turns, optimizer, descents[-1])
        is_cold = row.needs_second_search or index % _RESTART_INTERVAL == 0 or index == len(rows) - 1
        if is_cold or descent.value == np.inf:
            cold = search_all_starts(cost, starting_points(row, starts), turns, optimizer)
            descent = min(descent, cold, key=lambda descent: descent.value)
        descents.append(descent._replace(path=()))
    for index in range(len(rows) - 2, -1, -1):
        cost, following = replace(cost, family=rows[index]), descents[index + 1]
        cost.log.solved_budget = following.solved_budget
        value = descents[index].value
        if following.point.size and cost(following.point) < value - cost.family.patience.gain * abs(value):
            descent = search(cost, following.point[None, None], turns, optimizer, following)
            descents[index] = min(descents[index], descent._replace(path=()), key=lambda descent: descent.value)
    return descents
