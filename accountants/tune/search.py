"""The search of ``tune``: several initial guesses, and descents from the best of them, in a loop on the host.

One free parameter is found by Brent's method around the lowest points, several by BFGS, or any number by an optax
transformation. Mechanisms are evaluated with plain numbers. If the number of evaluations is large enough, a small
program of the value and its forward derivatives is compiled instead; see ``Cost``.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from accountants.tune import domains
from accountants.tune.family import Family, Member
from accountants.tune.objectives import Constraint, Objective, as_objective, evaluate, evaluate_in_unit
from dpkernels.numerics import Real, RealArray
from dpkernels.programs import QUICKLY_COMPILED
from dpkernels.pytrees import PyTree
from dpkernels.solve import bisect

TRACED_FAMILIES: list[str] = []  # Names of families, one each time members are traced.
# A descent ends where the slope predicts a smaller fall for its next step, in units of ``Patience.gain``.
_NEGLIGIBLE_FALL = 1e-3
_ARMIJO = 1e-4  # The share of the predicted fall that a step must bring: Nocedal and Wright's usual choice.
_DIFFERENCE_STEP = 1e3  # The step of z of numerical derivatives, in units of ``Patience.gain``.
_TRIALS = 20  # The trials of each descent before the worse half of the descents is dropped, again and again.
_MIN_KEPT = 4  # The fewest descents that are kept, if a quarter of the starts is fewer.
_SIMPLEX = 0.1  # The size of the first simplex of a search at a kink.
_KINK_GAIN = 1e-6  # The relative gain that another simplex follows.
_MAX_Z = 60.0  # The largest |z| of a bracket.
_BRACKET_GROWTH = 1.6  # The growth of the steps of a bracket.
_FIRST_STEP = 0.01  # The first step from a start that is known to be good.
_MAX_SIMILAR = 2  # Brent's method ends after so many values in a row that differ from the best by less than the gain.
_HALVINGS = 50  # Of the way from a member that meets a constraint to one that misses it.
# The weight of a missed constraint, relative to the value, at first. It grows by the square of that,
_PENALTY = 10.0
_MAX_PENALTIES = 3  # and so many weights are tried.


class SearchResult(NamedTuple):
    """The best unconstrained point, (n,), its cost, infinite if no point was feasible, and the descent to it.

    ``path`` has (point, cost) after each step. ``solved_budget`` is ``Family.solved_budget`` at the point.
    ``optimizer_state`` is that of the descent, and ``predicted_gain`` what its next step would gain by the slope.
    """

    point: np.ndarray
    value: float
    solved_budget: float = 0.0
    path: Sequence[tuple[np.ndarray, float]] = ()
    optimizer_state: BfgsState | None = None
    predicted_gain: float = 0.0


NO_RESULT = SearchResult(np.zeros(0), math.inf)


@dataclass
class SearchLog:
    """What the evaluations of costs have shown so far.

    Attributes:
        evaluations: how many members have been built.
        infeasibility: why the last infeasible member is none.
        best_feasible: the best point that meets all constraints.
        least_violation: the least violation of all constraints by a member; see ``Constraint.violation``.
        solved_budget: what the family solved for the last feasible member; the next search for one starts there.
        last_point, last_slopes: the point of the last call of the program, and the derivatives there.
    """

    evaluations: int = 0
    infeasibility: ValueError | None = None
    best_feasible: SearchResult = NO_RESULT
    least_violation: float = math.inf
    solved_budget: float = 0.0
    last_point: np.ndarray | None = None
    last_slopes: np.ndarray = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class Cost:
    """The function of z that is minimised: the objective's sign times its value, in the family's unit.

    It is infinite where no member meets the budget. With constraints, what a member misses is added, times ``weight``.

    Attributes:
        program: ``QUICK`` or ``OPTIMISED``, in which members are traced and derivatives exact. Without one members are
            plain numbers, and derivatives differences, as those of one number always are. Constraints need that.
        log: what is remembered of evaluations; costs of one search share it.
    """

    family: Family
    objective: Objective
    constraints: tuple[Constraint, ...] = ()
    program: Callable[..., tuple[Array, Array, Array]] | None = None
    weight: float = 0.0
    log: SearchLog = field(default_factory=SearchLog)

    def __call__(self, z: np.ndarray) -> float:
        log = self.log
        log.evaluations += 1
        if self.program:
            *numbers, slopes = self.program(self.family, self.objective, z, log.solved_budget)
            log.last_point, log.last_slopes = z, np.asarray(slopes)
            (value, solved_budget), violation = map(float, numbers), 0.0
        else:
            with np.errstate(over="ignore"):  # A step may lead to parameters that are infinite.
                value, solved_budget, violation = self._evaluate_numbers(z)
        if value == -math.inf:
            raise ValueError(f"objective: {self.objective.name} of {self.family.name} is not bounded")
        if not value + violation < math.inf:
            return math.inf
        log.solved_budget = solved_budget if math.isfinite(solved_budget) else 0.0
        if violation == 0 and value < log.best_feasible.value:
            log.best_feasible = SearchResult(np.array(z), value, log.solved_budget)
        return value + self.weight * violation

    def _evaluate_numbers(self, z: np.ndarray) -> tuple[float, float, float]:
        """Return the value, the solved budget, and what is missed of the constraints."""
        try:
            member = self.family.build_warm_started(domains.constrain(self.family.domains, z), self.log.solved_budget)
            value = self.objective.sign * float(evaluate_in_unit(self.family.unit, self.objective, member))
            values = [float(evaluate(as_objective(constraint.objective), member)) for constraint in self.constraints]
            violation = sum(map(Constraint.violation, self.constraints, values), 0.0)
        except ValueError as error:  # No member meets the budget, or its parameters are none.
            self.log.infeasibility = error
            return math.inf, 0.0, 0.0
        if any(np.isnan(number).any() for number in _numbers(member)):
            return math.inf, 0.0, 0.0
        if self.constraints:
            self.log.least_violation = min(self.log.least_violation, violation)
        return value, float(self.family.solved_budget(member)), violation

    def gradient(self, z: np.ndarray, value: float) -> np.ndarray:
        """Return the derivatives at the point of the last call, exact or by differences.

        Differences are to both sides, or to one next to where no member is feasible.
        """
        if self.program and z.size > 1:
            if self.log.last_point is not z:
                self(z)
            return self.log.last_slopes
        step = _DIFFERENCE_STEP * self.family.patience.gain
        slopes = np.empty(z.size)
        for axis, move in enumerate(step * np.eye(z.size)):
            before, after = self(z - move), self(z + move)
            finite = np.array([before, value, after])[np.isfinite([before, value, after])]
            slopes[axis] = (finite[-1] - finite[0]) / (step * (len(finite) - 1)) if len(finite) > 1 else math.nan
        return slopes


def _numbers(member: Member) -> list[Real]:
    """Return the numbers of a member. Masses over a NaN interval are 0: its objective may be one all the same."""
    return [leaf for leaf in jax.tree.leaves(member) if isinstance(leaf, float | np.ndarray | jax.Array)]


def traced_cost(family: Family, objective: Objective, z: Array, solved_budget: Real = 0.0) -> tuple[Array, Real]:
    """Return (the cost, the solved budget) of JAX numbers, infinite where no member meets the budget; see ``Cost``."""
    TRACED_FAMILIES.append(family.name)
    member = family.build_warm_started(domains.constrain(family.domains, z), solved_budget)
    infeasible = jnp.array([jnp.isnan(number).any() for number in _numbers(member)]).any()
    value = objective.sign * evaluate_in_unit(family.unit, objective, member)
    return jnp.where(infeasible, jnp.inf, value), family.solved_budget(member)


def _traced_cost_and_slopes(
    family: Family, objective: Objective, z: Array, solved_budget: Array
) -> tuple[Array, Real, Array | tuple[()]]:
    """Return ``traced_cost``, and its derivatives, forwards along each axis; of one number none, Brent needs none."""
    cost = partial(traced_cost, family, objective, solved_budget=solved_budget)
    if z.size == 1:
        return *cost(z), ()
    derivative = partial(jax.jvp, cost, (z,), has_aux=True)
    axes = jnp.eye(z.size)
    value, slopes, solved_budgets = jax.vmap(lambda axis: derivative((axis,)), out_axes=(None, 0, None))(axes)
    return value, solved_budgets, slopes


QUICK = jax.jit(_traced_cost_and_slopes, compiler_options=QUICKLY_COMPILED)
# This one takes three times as long to compile, and half as long to run.
OPTIMISED = jax.jit(_traced_cost_and_slopes)


def search(
    cost: Cost,
    points: np.ndarray,
    max_trials: int,
    optimizer: optax.GradientTransformation | None = None,
    warm_start: SearchResult | None = None,
) -> SearchResult:
    """Return the best of all starts, each from the best of its points, an array of shape (points, starts, n).

    With ``warm_start`` the only start is what was found nearby, such as at a neighbouring budget.
    """
    if optimizer is None and points.shape[-1] == 1:
        return _search_by_brent(cost, points, max_trials, warm_start)
    host_optimizer = bfgs() if optimizer is None else _optax_on_host(optimizer, cost)
    if warm_start is not None:
        optimizer_state = warm_start.optimizer_state if optimizer is None else None
        start = warm_start._replace(value=cost(warm_start.point), path=(), optimizer_state=optimizer_state)
        if not start.value < math.inf:
            return NO_RESULT
        return descend(cost, host_optimizer, start, max_trials, optimizer is None)
    starts = []
    for candidates in points.swapaxes(0, 1):
        values = [cost(point) for point in candidates]
        least = int(np.argmin(values))
        starts.append(SearchResult(candidates[least], values[least]))
    descents = [start for start in starts if start.value < math.inf]
    best_count = max(len(starts) // 4, _MIN_KEPT)
    while len(descents) > best_count:
        ended = [descend(cost, host_optimizer, start, _TRIALS, optimizer is None) for start in descents]
        descents = sorted(ended, key=lambda descent: descent.value)[: max(len(ended) // 2, best_count)]
    ended = [descend(cost, host_optimizer, start, max_trials, optimizer is None) for start in descents]
    best = min(ended, key=lambda descent: descent.value, default=NO_RESULT)
    ended_at_kink = best.predicted_gain > cost.family.patience.gain * abs(best.value)
    return _simplex_from_kink(cost, best, max_trials) if ended_at_kink else best


def _simplex_from_kink(cost: Cost, lowest: SearchResult, max_trials: int) -> SearchResult:
    """Search on from where a descent ended at a kink, on steep slopes, by the simplex of Nelder and Mead."""
    from scipy.optimize import minimize  # Imported on use: it takes 0.15 s.

    n, gain = lowest.point.size, cost.family.patience.gain
    options = {
        "initial_simplex": lowest.point + _SIMPLEX * np.vstack([np.zeros(n), np.eye(n)]),
        "maxfev": max_trials * (2 * n + 1),
        "xatol": gain,
        "fatol": gain * abs(lowest.value),
    }
    simplex = minimize(cost, lowest.point, method="Nelder-Mead", options=options)
    if not simplex.fun < lowest.value:
        return lowest
    value = cost(simplex.x)
    path = [*lowest.path, (simplex.x, value)]
    lower = SearchResult(simplex.x, value, cost.log.solved_budget, path, predicted_gain=lowest.predicted_gain)
    is_negligible = lowest.value - value <= _KINK_GAIN * abs(value)
    return lower if is_negligible else _simplex_from_kink(cost, lower, max_trials)


def _search_by_brent(cost: Cost, points: np.ndarray, max_trials: int, warm_start: SearchResult | None) -> SearchResult:
    """Search one number: around the lowest of the points, of which there may be several, by Brent's method."""
    if warm_start is None:
        grid = np.sort(points.ravel())
        values = np.array([cost(np.array([z])) for z in grid])
        padded = np.concatenate([[math.inf], values, [math.inf]])
        is_lowest = (values <= padded[:-2]) & (values <= padded[2:]) & (values < math.inf)
        lowest = sorted(np.flatnonzero(is_lowest).tolist(), key=values.__getitem__)[: points.shape[1]]
        steps = np.diff(grid, prepend=2 * grid[0] - grid[1]) if len(grid) > 1 else np.array([_FIRST_STEP])
        brackets = [(grid[i], values[i], steps[i], steps[min(i + 1, len(grid) - 1)]) for i in lowest]
    else:
        brackets = [(float(warm_start.point[0]), cost(warm_start.point), _FIRST_STEP, _FIRST_STEP)]
    descents = [_brent(cost, *bracket, max_trials) for bracket in brackets if bracket[1] < math.inf]
    return min(descents, key=lambda descent: descent.value, default=NO_RESULT)


def _brent(cost: Cost, z: float, value: float, lower_step: float, upper_step: float, max_trials: int) -> SearchResult:
    """Search around z, of this value; the minimum is first bracketed by ever wider steps."""
    from scipy.optimize import minimize_scalar  # Imported on use: it takes 0.15 s.

    path = [(np.array([z]), value)]
    gain = cost.family.patience.gain
    solved_budget, similar_count = cost.log.solved_budget, 0

    def evaluate(z: float) -> float:
        nonlocal solved_budget, similar_count
        value = cost(np.array([z]))
        similar_count = similar_count + 1 if value < math.inf and abs(value - path[-1][1]) <= gain * abs(value) else 0
        if value < path[-1][1]:
            path.append((np.array([z]), value))
            solved_budget = cost.log.solved_budget
        return value

    def evaluate_until_similar(z: float) -> float:
        if similar_count >= _MAX_SIMILAR:
            raise StopIteration
        return evaluate(z)

    def extrapolated(end: float, middle: float) -> tuple[float, float]:
        z = end + _BRACKET_GROWTH * (end - middle)
        return z, evaluate(z)

    (low, low_value), middle = (z - lower_step, evaluate(z - lower_step)), z
    high, high_value = z + upper_step, evaluate(z + upper_step)
    while low_value < value and abs(low) < _MAX_Z:
        (low, low_value), (middle, value), (high, high_value) = (
            extrapolated(low, middle),
            (low, low_value),
            (middle, value),
        )
    while value <= low_value and high_value < value and abs(high) < _MAX_Z:
        (low, low_value), (middle, value), (high, high_value) = (
            (middle, value),
            (high, high_value),
            extrapolated(high, middle),
        )
    options: dict[str, float] = {"maxiter": max_trials}
    with np.errstate(invalid="ignore"), contextlib.suppress(StopIteration):  # Parabolas through infinite values.
        if value < low_value and value < high_value:
            options |= {"xtol": gain}
            minimize_scalar(evaluate_until_similar, bracket=(low, middle, high), options=options)
        else:
            options |= {"xatol": gain}
            minimize_scalar(evaluate_until_similar, bounds=(low, high), method="bounded", options=options)
    return SearchResult(*path[-1], solved_budget, path)


def descend(
    cost: Cost,
    optimizer: optax.GradientTransformation,
    start: SearchResult,
    max_trials: int,
    only_down: bool = True,
) -> SearchResult:
    """Return the lowest point of a descent, whose steps are those of the optimizer.

    Those of BFGS, ``only_down``, are shortened until they lead down. Those of optax are taken as they are, unless they
    lead to where nothing is feasible. Every turn evaluates one trial.
    """
    stale_turns, gain = cost.family.patience
    z, value, solved_budget, best = start.point, start.value, start.solved_budget, start
    path = [*start.path] or [(z, value)]
    gradient = cost.gradient(z, value)
    cost.log.solved_budget = solved_budget
    step, optimizer_state = optimizer.update(gradient, start.optimizer_state or optimizer.init(z), z, value=value)
    step_fraction, reference_value, stale = 1.0, value, 0
    for _ in range(max_trials):
        predicted_fall = -step_fraction * float(gradient @ step)
        if not np.isfinite(step).all() or (only_down and not predicted_fall > _NEGLIGIBLE_FALL * gain * abs(value)):
            break
        trial = z + step_fraction * step
        trial_value = cost(trial)
        slopes = np.full(z.size, math.nan)
        if trial_value < math.inf and (not only_down or trial_value <= value - _ARMIJO * predicted_fall):
            slopes = cost.gradient(trial, trial_value)
        if np.isfinite(slopes).all():
            z, value, gradient, step_fraction = trial, trial_value, slopes, 1.0
            path.append((z, value))
            step, optimizer_state = optimizer.update(gradient, optimizer_state, z, value=value)
            if value <= best.value:
                best = SearchResult(z, value, cost.log.solved_budget, optimizer_state=optimizer_state)
        else:
            # A failed step is shortened to where a parabola of its slope and rise is lowest, to 0.1 to 0.5 of it.
            curvature = 2 * (trial_value - value + predicted_fall)
            step_fraction *= min(max(predicted_fall / curvature, 0.1), 0.5) if 0 < curvature < math.inf else 0.25
        has_gained = best.value < reference_value - gain * abs(best.value)
        reference_value, stale = (best.value, 0) if has_gained else (reference_value, stale + 1)
        if stale >= stale_turns:
            break
    return best._replace(path=path, predicted_gain=-float(gradient @ step) if only_down else 0.0)


class BfgsState(NamedTuple):
    """The end of the last step, its gradient, and the estimate of the inverse Hessian, 0 before the first step."""

    params: PyTree
    gradient: PyTree
    inverse: np.ndarray


def bfgs() -> optax.GradientTransformation:
    """Return the optimizer of steps -H g, H the BFGS estimate of the inverse Hessian (Nocedal and Wright 2006, 6.17).

    s = step, y = change of gradient, r = 1/(s y):  H <- (1 - r s y^T) H (1 - r y s^T) + r s s^T.

    The first step has length 1. Where s y <= 0, on a concave stretch, H is doubled instead, so that steps get longer
    there. At kinks, where gradients jump, BFGS with a line search still descends (Lewis and Overton 2013). It is of the
    form of an optax transformation, of NumPy numbers.
    """

    def init(params: np.ndarray) -> BfgsState:
        return BfgsState(params, np.zeros_like(params), np.zeros((params.size, params.size)))

    def update(
        gradient: np.ndarray, state: BfgsState, params: PyTree = None, **_: object
    ) -> tuple[np.ndarray, BfgsState]:
        s, y, H = params - state.params, gradient - state.gradient, state.inverse
        sy = float(s @ y)
        if H[0, 0] == 0:
            H = np.eye(params.size) / max(float(np.linalg.norm(gradient)), 1e-300)
        elif sy > 1e-12 * float(np.linalg.norm(s) * np.linalg.norm(y)):
            r, Hy = 1 / sy, H @ y
            cross = s[:, None] * Hy
            H = H + r * ((1 + r * float(y @ Hy)) * s[:, None] * s - cross - cross.T)
        elif s.any():
            H = 2 * H
        return -H @ gradient, BfgsState(params, gradient, H)

    return optax.GradientTransformation(init, update)


def _optax_on_host(optimizer: optax.GradientTransformation, cost: Cost) -> optax.GradientTransformation:
    """Return an optax transformation as one of NumPy numbers; its own line search evaluates the cost."""
    extended = optax.with_extra_args_support(optimizer)

    @jax.custom_jvp
    def host_cost(z: RealArray) -> Real:
        return jax.pure_callback(lambda z: np.float64(cost(np.asarray(z))), jax.ShapeDtypeStruct((), z.dtype), z)

    @host_cost.defjvp
    def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Real, Real]:
        (z,), (tangent,) = primals, tangents
        value = host_cost(z)
        gradient_shape = jax.ShapeDtypeStruct(z.shape, z.dtype)
        slopes = jax.pure_callback(
            lambda z, value: cost.gradient(np.asarray(z), float(value)), gradient_shape, z, value
        )
        return value, (slopes * tangent).sum()

    @jax.jit
    def updated(gradient: Array, state: PyTree, params: Array, value: Array) -> tuple[Array, PyTree]:
        return extended.update(gradient, state, params, value=value, grad=gradient, value_fn=host_cost)

    def update(gradient: np.ndarray, state: PyTree, params: PyTree = None, *, value: Real) -> tuple[np.ndarray, PyTree]:
        step, optimizer_state = updated(gradient, state, params, value)
        return np.asarray(step), optimizer_state

    return optax.GradientTransformation(lambda z: extended.init(jnp.asarray(z)), update)


def search_constrained(
    cost: Cost,
    points: np.ndarray,
    max_trials: int,
    optimizer: optax.GradientTransformation | None,
    warm_start: SearchResult | None,
) -> SearchResult:
    """Return the best member that meets all constraints, by penalties that grow until they are met.

    A large enough penalty is exact: the least sum is where a constraint binds. From the best member that meets them all
    a last step leads towards that member, as far as they allow.
    """
    lowest, weight, log = NO_RESULT, _PENALTY, cost.log
    for _ in range(_MAX_PENALTIES):
        typical = abs(log.best_feasible.value) if log.best_feasible.value < math.inf else 1.0
        cost = replace(cost, weight=weight * max(typical, 1e-300))
        weight *= _PENALTY**2
        lowest = search(cost, points, max_trials, optimizer, warm_start)
        if lowest.value == math.inf:
            return NO_RESULT
        if log.best_feasible.value - lowest.value <= 1e-3 * abs(lowest.value):
            break
        warm_start = lowest
    start = log.best_feasible

    def is_better(fraction: Real) -> bool:
        previous = log.best_feasible
        cost(start.point + fraction * (lowest.point - start.point))
        return log.best_feasible is not previous

    if start.value < math.inf:
        bisect(is_better, 0.0, 1.0, _HALVINGS)
    best = log.best_feasible
    return best._replace(path=[*lowest.path, (best.point, best.value)])
