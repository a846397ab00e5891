"""The search: points of several starts, and descents from the best of them, in a loop on the host.

One free number is searched by Brent's method around the lowest points, several by BFGS, or any by an optax
transformation. Members are plain numbers, or traced once in a small program of the value and its forward derivatives,
where there are enough evaluations that compiling takes less time; see ``Cost``.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from accountants.tune import domains
from accountants.tune.family import Family, Member
from accountants.tune.objectives import Constraint, Objective, as_objective, evaluate, relative_to
from dpkernels.numerics import Real, RealArray
from dpkernels.programs import QUICKLY_COMPILED
from dpkernels.pytrees import PyTree

TRACES: list[str] = []  # Names of families, one each time members are traced.
_NEGLIGIBLE = 1e-3  # What a step promises, by the slope, when a descent is done, in units of the gain that ends it.
_ARMIJO = 1e-4  # The share of the promised fall that a step must bring: Nocedal and Wright's usual choice.
_DIFFERENCE = 1e3  # The step of differences, in units of the gain that ends a search.
# Of many starts the worse half is dropped after so many trials, again and again, until a quarter is left, or so many.
_TRIALS = 20
_MIN_KEPT = 4
_SIMPLEX = 0.1  # The size of the first simplex of a search at a kink.
_KINK_GAIN = 1e-6  # The relative gain that another simplex follows.
_MAX_Z = 60.0  # The largest |z| of a bracket.
_BRACKET_GROWTH = 1.6  # The growth of the steps of a bracket.
_FIRST_STEP = 0.01  # The first step from a start that is known to be good.
_MAX_ALIKE = 2  # Brent's method ends after so many values in a row that differ from the best by less than the gain.
_HALVINGS = 50  # Of the way from a member that meets a constraint to one that misses it.
# The weight of a missed constraint, relative to the value, at first. It grows by the square of that,
_PENALTY = 10.0
_MAX_PENALTIES = 3  # and so many weights are tried.


class SearchResult(NamedTuple):
    """The best unconstrained point z, (n,), its cost, infinite if no point was feasible, and the descent to it.

    ``path`` has (z, cost) after each step. ``solved`` is ``Family.solved_budget`` at z.
    ``memory`` is the state of the optimizer, and ``promised`` what its next step would gain by the slope.
    """

    z: np.ndarray
    value: float
    solved: float = 0.0
    path: Sequence[tuple[np.ndarray, float]] = ()
    memory: BfgsState | None = None
    promised: float = 0.0


NOTHING = SearchResult(np.zeros(0), math.inf)


@dataclass
class Cost:
    """The function of z that is minimised: the objective's sign times its value, in the family's unit.

    It is infinite where no member meets the budget. With constraints, what a member misses is added, times ``weight``.

    Attributes:
        program: ``QUICK`` or ``OPTIMISED``, in which members are traced and derivatives exact. Without one members are
            plain numbers, and derivatives differences, as those of one number always are. Constraints need that.
        evaluations: how many members have been built.
        refusal: why the last infeasible member is none.
        nearest: the best point that meets all constraints.
        least_missed: the least that a member missed of the constraints, relative to them; see ``Constraint.missed``.
        solved: the budget that the family solved for the last feasible member; the next search for one starts there.
        last_point, last_slopes: the point of the last call of the program, and the derivatives there.
    """

    family: Family
    objective: Objective
    constraints: tuple[Constraint, ...] = ()
    program: Callable[..., RealArray] | None = None
    weight: float = 0.0
    evaluations: int = 0
    refusal: ValueError | None = None
    nearest: SearchResult = NOTHING
    least_missed: float = math.inf
    solved: float = 0.0
    last_point: np.ndarray | None = field(default=None, repr=False)
    last_slopes: Any = field(default=None, repr=False)

    def __call__(self, z: np.ndarray) -> float:
        self.evaluations += 1
        if self.program:
            value, solved, slopes = self.program(self.family, self.objective, z, self.solved)
            self.last_point, self.last_slopes = z, np.asarray(slopes)
            value, solved, missed = float(value), float(solved), 0.0
        else:
            with np.errstate(over="ignore"):  # A step may lead to parameters that are infinite.
                value, solved, missed = self._evaluate_numbers(z)
        if value == -math.inf:
            raise ValueError(f"objective: {self.objective.name} of {self.family.name} is not bounded")
        if not value + missed < math.inf:
            return math.inf
        self.solved = solved if math.isfinite(solved) else 0.0
        if missed == 0 and value < self.nearest.value:
            self.nearest = SearchResult(np.array(z), value, self.solved)
        return value + self.weight * missed

    def _evaluate_numbers(self, z: np.ndarray) -> tuple[float, float, float]:
        """Return the value, the solved budget, and what is missed of the constraints."""
        try:
            member = self.family.build_warm_started(domains.constrain(self.family.domains, z), self.solved)
            value = self.objective.sign * float(relative_to(self.family.unit, self.objective, member))
            values = [float(evaluate(as_objective(constraint.objective), member)) for constraint in self.constraints]
            missed = sum(map(Constraint.missed, self.constraints, values), 0.0)
        except ValueError as error:  # No member meets the budget, or its parameters are none.
            self.refusal = error
            return math.inf, 0.0, 0.0
        if any(np.isnan(number).any() for number in _numbers(member)):
            return math.inf, 0.0, 0.0
        if self.constraints:
            self.least_missed = min(self.least_missed, missed)
        return value, float(self.family.solved_budget(member)), missed

    def gradient(self, z: np.ndarray, value: float) -> np.ndarray:
        """Return the derivatives at the point of the last call, exact or by differences.

        Differences are to both sides, or to one next to where no member is feasible.
        """
        if self.program and z.size > 1:
            if self.last_point is not z:
                self(z)
            return self.last_slopes
        step = _DIFFERENCE * self.family.patience[1]
        slopes = np.empty(z.size)
        for axis, move in enumerate(step * np.eye(z.size)):
            before, after = self(z - move), self(z + move)
            finite = np.array([before, value, after])[np.isfinite([before, value, after])]
            slopes[axis] = (finite[-1] - finite[0]) / (step * (len(finite) - 1)) if len(finite) > 1 else math.nan
        return slopes


def _numbers(member: Member) -> list[Real]:
    """Return the numbers of a member. Masses over a NaN interval are 0: its objective may be one all the same."""
    return [leaf for leaf in jax.tree.leaves(member) if isinstance(leaf, float | np.ndarray | jax.Array)]


def traced_cost(family: Family, objective: Objective, z: Array, solved: Real = 0.0) -> tuple[Array, Real]:
    """Return (the cost, the solved budget) of JAX numbers, infinite where no member meets the budget; see ``Cost``."""
    TRACES.append(family.name)
    member = family.build_warm_started(domains.constrain(family.domains, z), solved)
    infeasible = jnp.array([jnp.isnan(number).any() for number in _numbers(member)]).any()
    value = objective.sign * relative_to(family.unit, objective, member)
    return jnp.where(infeasible, jnp.inf, value), family.solved_budget(member)


def _traced(family: Family, objective: Objective, z: Array, solved: Array) -> tuple[Any, Any, Any]:
    """Return ``traced_cost``, and its derivatives, forwards along each axis; of one number none, Brent needs none."""
    at = partial(traced_cost, family, objective, solved=solved)
    if z.size == 1:
        return *at(z), ()
    along = partial(jax.jvp, at, (z,), has_aux=True)
    value, slopes, spends = jax.vmap(lambda axis: along((axis,)), out_axes=(None, 0, None))(jnp.eye(z.size))
    return value, spends, slopes


QUICK = jax.jit(_traced, compiler_options=QUICKLY_COMPILED)
# This one takes three times as long to compile, and half as long to run.
OPTIMISED = jax.jit(_traced)


def search(
    cost: Cost,
    points: np.ndarray,
    turns: int,
    optimizer: optax.GradientTransformation | None = None,
    near: SearchResult | None = None,
) -> SearchResult:
    """Return the best of all starts, each from the best of its points, an array of shape (points, starts, n).

    With ``near`` the only start is what was found nearby, such as at a neighbouring budget.
    """
    if optimizer is None and points.shape[-1] == 1:
        return _by_brent(cost, points, turns, near)
    rule = bfgs() if optimizer is None else _on_host(optimizer, cost)
    if near is not None:
        memory = near.memory if optimizer is None else None
        start = near._replace(value=cost(near.z), path=(), memory=memory)
        return descend(cost, rule, start, turns, optimizer is None) if start.value < math.inf else NOTHING
    beginnings = []
    for start in points.swapaxes(0, 1):
        values = [cost(point) for point in start]
        least = int(np.argmin(values))
        beginnings.append(SearchResult(start[least], values[least]))
    descents = [each for each in beginnings if each.value < math.inf]
    best_count = max(len(beginnings) // 4, _MIN_KEPT)
    while len(descents) > best_count:
        ended = [descend(cost, rule, each, _TRIALS, optimizer is None) for each in descents]
        descents = sorted(ended, key=lambda each: each.value)[: max(len(ended) // 2, best_count)]
    done = [descend(cost, rule, each, turns, optimizer is None) for each in descents]
    best = min(done, key=lambda each: each.value, default=NOTHING)
    return _across_kinks(cost, best, turns) if best.promised > cost.family.patience[1] * abs(best.value) else best


def _across_kinks(cost: Cost, lowest: SearchResult, turns: int) -> SearchResult:
    """Search on from where a descent ended at a kink, on steep slopes, by the simplex of Nelder and Mead."""
    from scipy.optimize import minimize  # Imported on use: it takes 0.15 s.

    n, gain = lowest.z.size, cost.family.patience[1]
    options = {
        "initial_simplex": lowest.z + _SIMPLEX * np.vstack([np.zeros(n), np.eye(n)]),
        "maxfev": turns * (2 * n + 1),
        "xatol": gain,
        "fatol": gain * abs(lowest.value),
    }
    simplex = minimize(cost, lowest.z, method="Nelder-Mead", options=options)
    if not simplex.fun < lowest.value:
        return lowest
    value = cost(simplex.x)
    path = [*lowest.path, (simplex.x, value)]
    further = lowest._replace(z=simplex.x, value=value, solved=cost.solved, path=path, memory=None)
    enough = lowest.value - value <= _KINK_GAIN * abs(value)
    return further if enough else _across_kinks(cost, further, turns)


def _by_brent(cost: Cost, points: np.ndarray, turns: int, near: SearchResult | None) -> SearchResult:
    """Search one number: around the lowest of the points, of which there may be several, by Brent's method."""
    if near is None:
        grid = np.sort(points.ravel())
        values = np.array([cost(np.array([z])) for z in grid])
        around = np.concatenate([[math.inf], values, [math.inf]])
        is_lowest = (values <= around[:-2]) & (values <= around[2:]) & (values < math.inf)
        lowest = sorted(np.flatnonzero(is_lowest).tolist(), key=values.__getitem__)[: points.shape[1]]
        steps = np.diff(grid, prepend=2 * grid[0] - grid[1]) if len(grid) > 1 else np.array([_FIRST_STEP])
        brackets = [(grid[at], values[at], steps[at], steps[min(at + 1, len(grid) - 1)]) for at in lowest]
    else:
        brackets = [(float(near.z[0]), cost(near.z), _FIRST_STEP, _FIRST_STEP)]
    descents = [_brent(cost, *bracket, turns) for bracket in brackets if bracket[1] < math.inf]
    return min(descents, key=lambda each: each.value, default=NOTHING)


def _brent(cost: Cost, z: float, value: float, left: float, right: float, turns: int) -> SearchResult:
    """Search around z, of this value; the minimum is first bracketed by ever wider steps."""
    from scipy.optimize import minimize_scalar  # Imported on use: it takes 0.15 s.

    path = [(np.array([z]), value)]
    gain = cost.family.patience[1]
    solved, alike = cost.solved, 0

    def evaluate(z: float) -> float:
        nonlocal solved, alike
        value = cost(np.array([z]))
        alike = alike + 1 if value < math.inf and abs(value - path[-1][1]) <= gain * abs(value) else 0
        if value < path[-1][1]:
            path.append((np.array([z]), value))
            solved = cost.solved
        return value

    def until_alike(z: float) -> float:
        if alike >= _MAX_ALIKE:
            raise StopIteration
        return evaluate(z)

    at = [(z - left, evaluate(z - left)), (z, value), (z + right, evaluate(z + right))]
    while (side := 0 if at[0][1] < at[1][1] else 2 if at[2][1] < at[1][1] else 1) != 1 and abs(at[side][0]) < _MAX_Z:
        z = at[side][0] + _BRACKET_GROWTH * (at[side][0] - at[1][0])
        following = z, evaluate(z)
        at = [following, at[0], at[1]] if side == 0 else [at[1], at[2], following]
    (low, below), (middle, value), (high, above) = at
    options = {"maxiter": turns}
    with np.errstate(invalid="ignore"), contextlib.suppress(StopIteration):  # Parabolas through infinite values.
        if value < below and value < above:
            minimize_scalar(until_alike, bracket=(low, middle, high), options={"xtol": gain, **options})
        else:
            minimize_scalar(until_alike, bounds=(low, high), method="bounded", options={"xatol": gain, **options})
    return SearchResult(*path[-1], solved, path)


def descend(
    cost: Cost,
    rule: optax.GradientTransformation,
    start: SearchResult,
    turns: int,
    only_down: bool = True,
) -> SearchResult:
    """Return the lowest point of a descent, whose steps are those of the rule.

    Those of BFGS, ``only_down``, are shortened until they lead down. Those of optax are taken as they are, unless they
    lead to where nothing is feasible. Every turn evaluates one trial.
    """
    stale_turns, gain = cost.family.patience
    z, value, solved, best = start.z, start.value, start.solved, start
    path = [*start.path] or [(z, value)]
    gradient = cost.gradient(z, value)
    cost.solved = solved
    step, memory = rule.update(gradient, start.memory or rule.init(z), z, value=value)
    share, mark, stale = 1.0, value, 0
    for _ in range(turns):
        promised = -share * float(gradient @ step)
        if not np.isfinite(step).all() or (only_down and not promised > _NEGLIGIBLE * gain * abs(value)):
            break
        trial = z + share * step
        trial_value = cost(trial)
        slopes = np.full(z.size, math.nan)
        if trial_value < math.inf and (not only_down or trial_value <= value - _ARMIJO * promised):
            slopes = cost.gradient(trial, trial_value)
        if np.isfinite(slopes).all():
            z, value, gradient, share = trial, trial_value, slopes, 1.0
            path.append((z, value))
            step, memory = rule.update(gradient, memory, z, value=value)
            if value <= best.value:
                best = SearchResult(z, value, cost.solved, memory=memory)
        else:
            # A failed step is shortened to where a parabola of its slope and rise is lowest, to 0.1 to 0.5 of it.
            bend = 2 * (trial_value - value + promised)
            share *= min(max(promised / bend, 0.1), 0.5) if 0 < bend < math.inf else 0.25
        gained = best.value < mark - gain * abs(best.value)
        mark, stale = (best.value, 0) if gained else (mark, stale + 1)
        if stale >= stale_turns:
            break
    return best._replace(path=path, promised=-float(gradient @ step) if only_down else 0.0)


class BfgsState(NamedTuple):
    """The end of the last step, its gradient, and the estimate of the inverse Hessian, 0 before the first step."""

    params: PyTree
    gradient: PyTree
    inverse: Any


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


def _on_host(optimizer: optax.GradientTransformation, cost: Cost) -> optax.GradientTransformation:
    """Return an optax transformation as one of NumPy numbers; its own line search evaluates the cost."""
    rule = optax.with_extra_args_support(optimizer)

    @jax.custom_jvp
    def value_at(z: RealArray) -> Real:
        return jax.pure_callback(lambda z: np.float64(cost(np.asarray(z))), jax.ShapeDtypeStruct((), z.dtype), z)

    @value_at.defjvp
    def _(primals: PyTree, tangents: PyTree) -> Any:
        (z,), (moved,) = primals, tangents
        value = value_at(z)
        like = jax.ShapeDtypeStruct(z.shape, z.dtype)
        slopes = jax.pure_callback(lambda z, at: cost.gradient(np.asarray(z), float(at)), like, z, value)
        return value, (slopes * moved).sum()

    @jax.jit
    def updated(gradient: Array, state: PyTree, params: Array, value: Array) -> np.ndarray:
        return rule.update(gradient, state, params, value=value, grad=gradient, value_fn=value_at)

    def update(gradient: np.ndarray, state: np.ndarray, params: PyTree = None, *, value: Real) -> Any:
        step, memory = updated(gradient, state, params, value)
        return np.asarray(step), memory

    return optax.GradientTransformation(lambda z: rule.init(jnp.asarray(z)), update)


def search_constrained(
    cost: Cost, points: np.ndarray, turns: int, optimizer: object, near: SearchResult | None
) -> SearchResult:
    """Return the best member that meets all constraints, by penalties that grow until they are met.

    A large enough penalty is exact: the least sum is where a constraint binds. From the best member that meets them all
    a last step leads towards that place, as far as they allow.
    """
    lowest, heavier = NOTHING, _PENALTY
    for _ in range(_MAX_PENALTIES):
        typical = abs(cost.nearest.value) if cost.nearest.value < math.inf else 1.0
        cost.weight, heavier = heavier * max(typical, 1e-300), heavier * _PENALTY**2
        lowest = search(cost, points, turns, optimizer, near)
        if lowest.value == math.inf:
            return NOTHING
        if cost.nearest.value - lowest.value <= 1e-3 * abs(lowest.value):
            break
        near = lowest
    low, high = 0.0, 1.0
    inside = cost.nearest
    for _ in range(_HALVINGS if inside.value < math.inf else 0):
        share = (low + high) / 2
        before = cost.nearest
        cost(inside.z + share * (lowest.z - inside.z))
        low, high = (low, share) if cost.nearest is before else (share, high)
    return cost.nearest._replace(path=[*lowest.path, (cost.nearest.z, cost.nearest.value)])
