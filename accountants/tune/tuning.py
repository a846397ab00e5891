"""Tuning: the best member of a family, of several families, and at many budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from accountants.dominating_pairs.base import as_float64
from accountants.tune import domains
from accountants.tune.family import Family, checked, expression
from accountants.tune.objectives import Aim, Objective, as_objective, evaluate
from accountants.tune.search import Found, compiled_search, search_many
from dpkernels import checks

__all__ = ["Many", "Result", "best", "compare", "many"]

TURNS = 200  # A search ends by itself, see ``Family.patience``; this bounds the time of one that creeps.
# For one free number; for each further one four times the starts, and two times the points of each; and at most.
_STARTS, _MOST_STARTS = 2, 64
_POINTS, _MOST_POINTS = 3, 12
_MOST = 100_000  # Of starts and of turns.
# How wide the starts of a second search are around what the first one found, next to those of that; see ``has_dips``.
_NEAR = 1 / 6


class Many(NamedTuple):
    """Tuned parameters at many budgets: arrays of the budgets' shape, by the source's symbols.

    ``values`` are those of the objective, in its natural direction; ``evaluations`` counts over all budgets and starts.
    """

    parameters: dict[str, np.ndarray]
    values: np.ndarray
    evaluations: int


@dataclass(frozen=True)
class Result:
    """A tuned mechanism, certified.

    Attributes:
        family: its family's name.
        objective: the objective's name.
        mechanism: a mechanism of dpkernels.
        value: its objective, in its natural direction.
        parameters: every parameter, by the source's symbols.
        path: the free parameters and ``"objective"`` along the steps of the winning start, arrays of one length.
        steps: how many steps it took.
        evaluations: of the objective, over all starts; each with its gradient where the method is "gradient".
        epsilon: with delta the budget that the mechanism meets, but for rounding of at most 1e-9 of it.
        delta: as the exact accountant finds it at epsilon.
        python: the Python expression that makes the mechanism, with ``import dpkernels as dpk``.
    """

    family: str
    objective: str
    mechanism: Any
    value: float
    parameters: dict[str, Any]
    path: dict[str, np.ndarray]
    steps: int
    evaluations: int
    epsilon: float
    delta: float
    python: str = ""

    def plot(self, path: Path | str) -> None:
        """Draw the objective and the free parameters along the path into a .png.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 2.2 * len(self.path)), layout="constrained")
        axes = np.atleast_1d(figure.subplots(len(self.path), 1, sharex=True))
        for axis, (name, values) in zip(axes, reversed(self.path.items()), strict=True):
            axis.plot(values, marker="o", markersize=3)
            axis.set_ylabel(self.objective if name == "objective" else name)
        axes[0].set_title(f"{self.family}: {self.value:.6g}")
        axes[-1].set_xlabel("step")
        figure.savefig(Path(path), dpi=120)


def best(
    family: Family,
    objective: Aim,
    *,
    method: str = "gradient",
    at_least: float | None = None,
    at_most: float | None = None,
    starts: int | None = None,
    turns: int = TURNS,
    optimizer: optax.GradientTransformation | None = None,
) -> Result:
    """Return the best member of a family, by a method of this package's own unless ``optimizer`` names another.

    The exact accountant certifies the member. The default method is BFGS, written as an optax transformation but not
    one of optax's own: ``python -m benchmarks.tuning`` compares it with ``optax.lbfgs`` and
    ``scipy.optimize.minimize``.

    Args:
        family: one of this package's, for one budget, or a ``Family`` of your own.
        objective: one of this package's; or a callable from a mechanism to a JAX scalar, made small (``maximise`` for
            large). A callable is compiled once for each object: define it once.
        method: "gradient"; or "enumeration", the source's own search of that family, for comparison.
        at_least: refuse a best value below this.
        at_most: refuse a best value above this.
        starts: the number of starts, each at the best of some points; by default 2, each of 3 points, with one free
            number, 8 of 6 with two, 32 of 12 with three, 64 with more; of ``composed`` pure ones without a rate up to
            12 points, and once more around what is found.
        turns: the most evaluations of each start of a compiled search.
        optimizer: an optax transformation, such as ``optax.adam(0.05)``. Its steps are taken as they are, but steps to
            where no member is feasible are shortened; the best point of all is returned. It is compiled once for each
            object: define it once. A line search of its own evaluates the objective more often than
            ``Result.evaluations`` says.

    Raises:
        ValueError: an unknown method, starts or turns not in 1..100000, a budget that the family refuses, no member is
            feasible, the best value is not good enough, with that value.
        NotPrivateError: what was found does not meet the budget (the sources' searches of recycling may do that).
        TypeError: no family, a family without a published search, an optimizer that is no optax transformation.

    Example:
        >>> from accountants import tune
        >>> found = tune.best(tune.piecewise(epsilon=1.0, lower=-1.0, upper=1.0), tune.worst_variance)
        >>> round(found.value, 3)
        5.066
    """
    checks.one_of("method", method, ("gradient", "enumeration"))
    chosen = as_objective(objective)
    for number in jax.tree.leaves(checked(family)):
        if np.ndim(number):
            raise ValueError(f"family: holds an array of shape {np.shape(number)}; tune.many takes arrays of budgets")
    if method == "gradient":
        result = _by_gradient(family.for_error(chosen.theta), chosen, starts, *_limits(turns, optimizer))
    else:
        result = _by_enumeration(family if chosen.theta is None else family.for_error(chosen.theta), chosen)
    for name, limit, sign in (("at_least", at_least, 1), ("at_most", at_most, -1)):
        if limit is not None and not sign * result.value >= sign * (wanted := checks.number(name, limit)):
            raise ValueError(
                f"{name}: {wanted:g} of {result.objective} is not feasible for {result.family}; the best achievable is "
                f"{result.value:.6g}"
            )
    return result


def compare(families: Sequence[Family], objective: Aim, **options: Any) -> list[Result]:
    """Return the best of each family, best first; options as for ``best``.

    Raises:
        ValueError: no family, and as for ``best``.
    """
    chosen = as_objective(objective)
    if not families:
        raise ValueError("families: is empty; at least one is needed")
    results = [best(family, chosen, **options) for family in families]
    return sorted(results, key=lambda result: chosen.sign * result.value)


def many(
    family: Family,
    objective: Aim,
    *,
    starts: int | None = None,
    turns: int = TURNS,
    optimizer: optax.GradientTransformation | None = None,
) -> Many:
    """Return the best members at many budgets, in one compiled call.

    The arrays of the family, such as ``piecewise(epsilon=np.array(...), ...)``, broadcast to one shape, that of the
    results. These are not certified one by one: build a mechanism for release with ``best``, which has the other
    arguments, too; here no search is repeated.

    Raises:
        ValueError: starts or turns is not in 1..100000, the arrays do not broadcast, or no member is feasible at some
            budget.
    """
    chosen = as_objective(objective)
    family = checked(family).for_error(chosen.theta)
    numbers, tree = jax.tree.flatten(as_float64(family))
    shape = np.broadcast_shapes(*(np.shape(number) for number in numbers))
    columns = [np.broadcast_to(number, shape).ravel() for number in numbers]
    points = starting_points(family, starts)
    limits = _limits(turns, optimizer)
    if not points.size:
        rows = (jax.tree.unflatten(tree, row) for row in zip(*columns, strict=True))
        values = [_by_gradient(row, chosen, None, *limits).value for row in rows]
        return Many({}, np.reshape(values, shape), len(values))
    flat = jax.tree.unflatten(tree, columns)
    with jax.enable_x64(True):
        found, every = jax.tree.map(np.asarray, search_many(flat, as_float64(chosen), points, *limits))
    if not np.isfinite(found.value).all():
        at = int(np.argmin(np.isfinite(found.value)))
        raise ValueError(f"family: at budget number {at} no member of {family.name} is feasible")
    parameters = {name: value.reshape((*shape, *value.shape[1:])) for name, value in every.items()}
    return Many(parameters, found.value.reshape(shape), int(found.evaluations.sum()))


def _limits(turns: int, optimizer: Any) -> tuple[int, optax.GradientTransformation | None]:
    if optimizer is not None and not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(f"optimizer: {optimizer!r} is no optax transformation, such as optax.adam(0.05)")
    return checks.whole("turns", turns, 1, _MOST), optimizer


def starting_points(family: Family, count: int | None) -> np.ndarray:
    """Return the points of each start, neighbours where one number is free: of shape (points, starts, free)."""
    free = sum(domain.size for domain in family.domains.values())
    further = max(free - 1, 0)
    chosen = min(_STARTS * 4**further, _MOST_STARTS) if count is None else checks.whole("starts", count, 1, _MOST)
    points = min(_POINTS * 2 ** (further + family.has_dips), _MOST_POINTS)
    return domains.starts(family.domains, points * chosen).reshape(chosen, points, free).swapaxes(0, 1)


def _by_gradient(family: Family, objective: Objective, starts: int | None, turns: int, optimizer: Any) -> Result:
    points = starting_points(family, starts)
    if not points.size:
        mechanism = family.release({})
        value = _value(objective, mechanism)
        return _certified(family, objective, {}, mechanism, value, {"objective": np.array([value])}, 1)

    def find(points: np.ndarray) -> Found:
        found = compiled_search()(as_float64(family), as_float64(objective), points, turns=turns, optimizer=optimizer)
        return jax.tree.map(np.asarray, found)

    with jax.enable_x64(True):
        found = find(points)
        if family.has_dips and np.isfinite(found.value):
            again = find(found.z + _NEAR * (points - points.mean((0, 1))))
            both = found.evaluations + again.evaluations
            found = min(found, again, key=lambda one: objective.sign * one.value)._replace(evaluations=both)
    if not np.isfinite(found.value):
        raise ValueError(
            f"family: no member of {family.name} is feasible at epsilon, delta = {family.budget}, or the objective is "
            "no number of any"
        )
    free = domains.values(family.domains, found.z)
    mechanism = family.release_from(_plain(free), float(found.spent))
    value = _value(objective, mechanism) if family.is_estimated else float(found.value)
    z, values = found.path[: found.turns, :-1], found.path[: found.turns, -1]
    moved = np.append(True, values[1:] != values[:-1]) & np.isfinite(values)
    path = {**domains.values(family.domains, z[moved]), "objective": values[moved]}
    return _certified(family, objective, free, mechanism, value, path, int(found.evaluations))


def _value(objective: Objective, mechanism: Any) -> float:
    with jax.enable_x64(True):
        return float(evaluate(as_float64(objective), as_float64(mechanism)))


def _by_enumeration(family: Family, objective: Objective) -> Result:
    found = family.published_search(objective)
    member = found.parameters, found.mechanism, found.value, {"objective": np.asarray(found.rounds)}
    return _certified(family, objective, *member, found.evaluations, source=found.source)


def _certified(
    family: Family,
    objective: Objective,
    free: dict[str, Any],
    mechanism: Any,
    value: float,
    path: dict[str, np.ndarray],
    evaluations: int,
    source: str = "",
) -> Result:
    epsilon, delta = family.verify(mechanism)
    if not np.isfinite(value):
        raise ValueError(f"objective: {objective.name} is {value} of {family.name}")
    parameters = _plain(family.parameters(free, mechanism))
    return Result(
        family=f"{family.name}, {source}" if source else family.name,
        objective=objective.name,
        mechanism=mechanism,
        value=value,
        parameters=parameters,
        path=path,
        steps=len(path["objective"]) - 1,
        evaluations=evaluations,
        epsilon=epsilon,
        delta=delta,
        python=expression(mechanism) if source else family.python(mechanism, parameters),
    )


def _plain(parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        name: float(value) if np.ndim(value) == 0 else tuple(map(float, value)) for name, value in parameters.items()
    }
