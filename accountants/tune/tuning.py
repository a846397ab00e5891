"""Tuning: the best mechanism of one family, of several families, and for many budgets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from accountants.dominating_pairs.base import as_float64
from accountants.tune import domains
from accountants.tune.family import Family, Member, checked, checked_single, expression
from accountants.tune.objectives import Constraint, Objective, ObjectiveLike, as_objective, evaluate
from accountants.tune.search import NO_RESULT, QUICK, Cost, SearchResult, search, search_constrained
from dpkernels import checks
from dpkernels.numerics import Real

__all__ = ["Result", "best", "compare", "pareto_front"]

TURNS = 200  # A descent ends by itself, see ``Family.patience``; this bounds the time of one that creeps.
_STARTS = 2  # The starts for one free number; each further one needs four times as many.
_MAX_STARTS = 64  # The most by default.
_POINTS = 3  # The points of a start for one free number; each further one needs twice as many.
_MAX_POINTS = 12  # The most of them.
_MAX_ALLOWED = 100_000  # The most starts and turns that a caller may ask for.
# The width of the starts of a second search, relative to the first one's; see ``needs_second_search``.
_SECOND_SEARCH_WIDTH = 1 / 6
_MAX_TIGHTENINGS = 8  # Of constraints that what is released misses, because it is rounded.


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
        epsilon: with delta the budget that the mechanism meets, but for rounding of at most 1e-12 of it.
        delta: as the exact accountant finds it at epsilon.
        python: the Python expression that makes the mechanism, with ``import dpkernels as dpk``.
        free: the free parameters, by the family's names; those of a published search, as far as it has them.
        at_end: the names of the free parameters that ended at an end of their domain.
        values: of the objective, and of the objectives of the constraints in their order.
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
    free: dict[str, Any] = field(default_factory=dict)
    at_end: tuple[str, ...] = ()
    values: tuple[float, ...] = ()

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
    objective: ObjectiveLike,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    subject_to: Sequence[Constraint] = (),
    start: Mapping[str, Real] | Result | None = None,
    starts: int | None = None,
    turns: int = TURNS,
    optimizer: optax.GradientTransformation | None = None,
) -> Result:
    """Return the best member of a family, certified by the exact accountant.

    One free number is searched by Brent's method, several by BFGS, unless ``optimizer`` names another method.
    ``python -m benchmarks.tuning`` compares them with optax's and SciPy's.

    Args:
        family: one of this package's, for one budget, or a ``Family`` of your own.
        objective: one of this package's; or a callable from a mechanism to a JAX scalar, made small (``maximise`` for
            large). A callable is compiled once for each object: define it once.
        at_least: refuse a best value below this.
        at_most: refuse a best value above this.
        subject_to: inequalities on other objectives; the best member that meets them all is returned.
        start: the only start: free parameters by name, or an earlier result whose free parameters are taken. Those of a
            result, at another budget perhaps, are moved into the domains.
        starts: the number of starts, each at the best of some points; by default 2, each of 3 points, with one free
            number, 8 of 6 with two, 32 of 12 with three, 64 with more; of ``composed`` pure ones without a rate up to
            12 points, and once more around what is found. The worse starts are dropped early.
        turns: the most evaluations of each descent, without those for derivatives.
        optimizer: an optax transformation, such as ``optax.adam(0.05)``. Its steps are taken as they are, but steps to
            where no member is feasible are shortened; the best point of all is returned.

    Raises:
        ValueError: starts or turns not in 1..100000, a start without the free parameters, outside
            their domains or where no member is feasible, start and starts together, a budget that the family refuses,
            no member is feasible or meets the constraints, an objective that is not bounded, the best value is not good
            enough, with that value.
        NotPrivateError: what was found does not meet the budget.
        TypeError: no family, an optimizer that is no optax transformation, what is no Constraint, a start of another
            type, an objective that is not one number.

    Example:
        >>> from accountants import tune
        >>> found = tune.best(tune.piecewise(epsilon=1.0, lower=-1.0, upper=1.0), tune.worst_variance)
        >>> round(found.value, 3)
        5.066
    """
    chosen, constraints = as_objective(objective), _checked_constraints(subject_to)
    if start is not None and starts is not None:
        raise ValueError(f"start, starts: {starts} starts and one that is given; give one of them")
    target = checked_single(family).with_tolerated_error(chosen.theta)
    points, warm_start = starting_points(target, starts), _parse_start(target, start)
    result = _by_search(target, chosen, constraints, points, warm_start, *check_limits(turns, optimizer))
    for name, limit, sign in (("at_least", at_least, 1), ("at_most", at_most, -1)):
        if limit is not None and not sign * result.value >= sign * (bound := checks.number(name, limit)):
            raise ValueError(
                f"{name}: {bound:g} of {result.objective} is not feasible for {result.family}; the best achievable is "
                f"{result.value:.6g}"
            )
    return result


def compare(families: Sequence[Family], objective: ObjectiveLike, **options: Any) -> list[Result]:
    """Return the best of each family, best first; options as for ``best``.

    Raises:
        ValueError: no family, and as for ``best``.
    """
    chosen = as_objective(objective)
    if not families:
        raise ValueError("families: is empty; at least one is needed")
    results = [best(family, chosen, **options) for family in families]
    return sorted(results, key=lambda result: chosen.sign * result.value)


def pareto_front(
    family: Family,
    objectives: Sequence[ObjectiveLike],
    *,
    points: int = 11,
    starts: int | None = None,
    turns: int = TURNS,
    optimizer: optax.GradientTransformation | None = None,
) -> list[Result]:
    """Return members of which none is better in both of two objectives, from the best of the first to the second's.

    Between these two, the limits of the second objective are spaced evenly, and the first is the best at each. The
    ``values`` of a result are those of both. A recycled family recycles beyond the theta of the first objective.

    Args:
        family: as for ``best``.
        objectives: two, as for ``best``.
        points: the most members, in 2..1000. There are fewer where members are alike, and one that is the best of both.
        starts: as for ``best``.
        turns: as for ``best``.
        optimizer: as for ``best``.

    Raises:
        ValueError: not two objectives, points out of range, and as for ``best``.
        TypeError: as for ``best``.
    """
    checks.integer_in("points", points, 2, 1000)
    if not isinstance(objectives, Sequence) or len(objectives) != 2:
        raise ValueError(f"objectives: {objectives!r}; a list of two is needed")
    first, second = map(as_objective, objectives)
    family = checked(family).with_tolerated_error(first.theta)
    search = partial(best, family, starts=starts, turns=turns, optimizer=optimizer)
    side = "at_most" if second.sign > 0 else "at_least"

    def value_of_second(result: Result) -> float:
        return _value(second, result.mechanism)

    best_of_first, best_of_second = search(first), search(second)
    limits = np.linspace(value_of_second(best_of_first), value_of_second(best_of_second), points)[1:-1].tolist()
    between = [search(first, subject_to=[Constraint(second, **{side: limit})]) for limit in limits]
    value = _value(first, best_of_second.mechanism)
    front: list[Result] = []
    for result in (best_of_first, *between, replace(best_of_second, objective=first.name, value=value)):
        values = result.value, value_of_second(result)
        while front and _is_no_better((first, second), front[-1].values, values, family.patience.gain):
            front.pop()
        if not front or not _is_no_better((second,), values[1:], front[-1].values[1:], family.patience.gain):
            front.append(replace(result, values=values))
    return front


def _is_no_better(
    objectives: Sequence[Objective], values: Sequence[float], reference_values: Sequence[float], gain: float
) -> bool:
    """Return whether no objective is better at the values than at others, by more than what searches end at."""
    return all(
        objective.sign * value >= objective.sign * reference - gain * abs(reference)
        for objective, value, reference in zip(objectives, values, reference_values, strict=True)
    )


def check_limits(turns: int, optimizer: object) -> tuple[int, optax.GradientTransformation | None]:
    if optimizer is not None and not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(f"optimizer: {optimizer!r} is no optax transformation, such as optax.adam(0.05)")
    return checks.integer_in("turns", turns, 1, _MAX_ALLOWED), optimizer


def _checked_constraints(constraints: object) -> tuple[Constraint, ...]:
    several = tuple(constraints) if isinstance(constraints, Iterable) else ()
    if not isinstance(constraints, Iterable) or not all(isinstance(constraint, Constraint) for constraint in several):
        raise TypeError(f"subject_to: {constraints!r}; a list of tune.Constraint(objective, at_least=...) is needed")
    return several


def _parse_start(family: Family, start: Mapping[str, Real] | Result | None) -> SearchResult | None:
    if start is None:
        return None
    if not isinstance(start, Mapping | Result):
        raise TypeError(f"start: {start!r} is neither an earlier result nor free parameters by name")
    params = dict(start.free if isinstance(start, Result) else start)
    if params.keys() != family.domains.keys():
        raise ValueError(
            f"start: has {sorted(params)}; the free parameters of {family.name} are {sorted(family.domains)}"
        )
    for name, domain in family.domains.items():
        checks.within(f"start: {name}", params[name], -np.inf, np.inf, open_ends=True)
        shape = (domain.count,) if domain.count else ()
        if np.shape(params[name]) != shape:
            raise ValueError(f"start: {name} = {params[name]!r} has shape {np.shape(params[name])}; {shape} is needed")
        if isinstance(start, Mapping) and np.asarray(params[name]) not in domain:
            raise ValueError(f"start: {name} = {params[name]!r} is not in its domain, {domain}")
    return SearchResult(domains.unconstrain(family.domains, params), np.inf)


def starting_points(family: Family, count: int | None) -> np.ndarray:
    """Return the points of each start, neighbours where one number is free: of shape (points, starts, n)."""
    n = sum(domain.size for domain in family.domains.values())
    further = max(n - 1, 0)
    chosen = (
        min(_STARTS * 4**further, _MAX_STARTS) if count is None else checks.integer_in("starts", count, 1, _MAX_ALLOWED)
    )
    points = min(_POINTS * 2 ** (further + family.needs_second_search), _MAX_POINTS)
    return domains.starts(family.domains, points * chosen).reshape(chosen, points, n).swapaxes(0, 1)


def search_all_starts(
    cost: Cost, points: np.ndarray, max_trials: int, optimizer: optax.GradientTransformation | None
) -> SearchResult:
    """Search from all starts, and where there are dips once more around what is found."""
    if not points.size:
        value = cost(np.zeros(0))
        return SearchResult(np.zeros(0), value, cost.log.solved_budget, [(np.zeros(0), value)])
    lowest = search(cost, points, max_trials, optimizer)
    if not cost.family.needs_second_search or lowest.value == np.inf:
        return lowest
    second = search(cost, lowest.point + _SECOND_SEARCH_WIDTH * (points - points.mean((0, 1))), max_trials, optimizer)
    return min(lowest, second, key=lambda result: result.value)


def _by_search(
    family: Family,
    objective: Objective,
    constraints: tuple[Constraint, ...],
    points: np.ndarray,
    warm_start: SearchResult | None,
    max_trials: int,
    optimizer: optax.GradientTransformation | None,
) -> Result:
    # Of several numbers there are thousands of evaluations.
    program = QUICK if points.shape[-1] > 1 and not constraints else None
    cost = Cost(as_float64(family), as_float64(objective), constraints, program)
    with jax.enable_x64(True):
        for _ in range(_MAX_TIGHTENINGS):
            if cost.constraints and points.size:
                lowest = search_constrained(cost, points, max_trials, optimizer, warm_start)
            elif warm_start is not None and points.size:
                lowest = search(cost, points, max_trials, optimizer, warm_start)
            else:
                lowest = search_all_starts(cost, points, max_trials, optimizer)
            if lowest.value == np.inf:
                raise _infeasible(family, cost, warm_start) from cost.log.infeasibility
            params = domains.constrain(family.domains, lowest.point)
            mechanism = family.certified_member_warm_started(_plain_numbers(params), lowest.solved_budget)
            values = [_value(as_objective(constraint.objective), mechanism) for constraint in constraints]
            violations = list(map(Constraint.violation, constraints, values))
            if not any(violations):
                break
            # What is released is rounded, or its noise is a little wider than that of the search.
            tightened = map(Constraint.tightened, cost.constraints, (2 * violation for violation in violations))
            cost, warm_start = replace(cost, constraints=tuple(tightened)), lowest if points.size else None
            cost.log.best_feasible = NO_RESULT
        else:
            raise ValueError(f"subject_to: {', '.join(map(str, constraints))}; no member that is released meets it")
    is_estimated = family.is_estimated or objective.bound is not None or not points.size
    value = _value(objective, mechanism) if is_estimated else lowest.value * value_per_cost(family, objective)
    finite = [(z, step_cost) for z, step_cost in lowest.path if np.isfinite(step_cost)]
    z, costs = np.array([z for z, _ in finite]), np.array([step_cost for _, step_cost in finite])
    path = {name: np.asarray(column) for name, column in domains.constrain(family.domains, z).items()}
    path["objective"] = costs * value_per_cost(family, objective) if points.size else np.array([value])
    result = certified_result(family, objective, params, mechanism, value, path, cost.log.evaluations)
    return replace(result, values=(value, *values))


def _infeasible(family: Family, cost: Cost, warm_start: SearchResult | None) -> ValueError:
    if cost.log.least_violation < np.inf:
        limits = ", ".join(map(str, cost.constraints))
        return ValueError(
            f"subject_to: {limits}; no member of {family.name} meets it: the nearest misses by "
            f"{100 * cost.log.least_violation:.3g} %"
        )
    reason = "the objective or a constraint" if cost.constraints else "the objective"
    if warm_start is not None:
        return ValueError(f"start: no member of {family.name} is feasible there, or {reason} is no finite number")
    return ValueError(
        f"family: no member of {family.name} is feasible at epsilon, delta = {family.budget}, or {reason} is no finite "
        "number of any"
    )


def value_per_cost(family: Family, objective: Objective) -> float:
    """Return the factor from the cost of a search to the objective's value."""
    return float(objective.sign * objective.factor(family.unit))


def _value(objective: Objective, mechanism: object) -> float:
    """Return the objective of a mechanism that is released."""
    with jax.enable_x64(True):
        return float(evaluate(as_float64(objective.of_release), as_float64(mechanism)))


def certified_result(
    family: Family,
    objective: Objective,
    params: dict[str, Any],
    mechanism: Member,
    value: float,
    path: dict[str, np.ndarray],
    evaluations: int,
    source: str = "",
) -> Result:
    """Return the result of a search whose best member has been verified; a ``source`` is a published search's.

    Raises:
        NotPrivateError: the member does not meet the budget of the family.
        ValueError: the objective is not finite.
    """
    epsilon, delta = family.verify(mechanism)
    if not np.isfinite(value):
        raise ValueError(f"objective: {objective.name} is {value} of {family.name}")
    parameters = _plain_numbers(family.parameters(params, mechanism))
    params = {name: params[name] for name in family.domains if name in params}
    ends = (name for name in params if family.domains[name].is_at_end(np.asarray(params[name])))
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
        python=expression(mechanism) if source else family.source_expression(mechanism, parameters),
        free=_plain_numbers(params),
        at_end=tuple(ends),
        values=(value,),
    )


def _plain_numbers(parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        name: float(value) if np.ndim(value) == 0 else tuple(map(float, value)) for name, value in parameters.items()
    }
