"""The search: many starts at once, steps by optax, one compiled loop for each type of family and objective.

Every turn of the loop evaluates the objective and its gradient once for every start, at a trial point. The first turns
try the points that a start may begin at, and keep the best. Then a trial that lowers the objective enough (Armijo) is
accepted, and the optimizer gives the next direction; else the step is shortened by a parabola through what is known.
Derivatives are forward: there are few parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from accountants.tune import domains
from accountants.tune.family import Family
from accountants.tune.objectives import Objective, relative_to
from dpkernels.numerics import Real, RealArray

TRACES: list[str] = []  # Names of families, one each time a search is compiled.
_NEGLIGIBLE = 1e-14  # What a trial step promises, by the slope, relative to the value, when its start is done.
_IN_TURN = 2  # So few starts are evaluated one after the other, which takes half as long to compile as a vmap.
_ARMIJO = 1e-4  # The share of the promised fall that a step must bring: Nocedal and Wright's usual choice.


class Found(NamedTuple):
    """The result of a search: the best unconstrained point z, (n,), and its value in the natural direction.

    The value is inf or -inf if no start was feasible. ``path`` has the winning start's (z, value) after each of
    ``turns`` turns. ``evaluations`` counts those with gradient over all starts. ``spent`` is what a release may spend
    at z.
    """

    z: Any
    value: Any
    path: Any
    turns: Any
    evaluations: Any
    spent: Any


class _Start(NamedTuple):
    """The state of one start: its place and what is known there, the trial step, and (z, value, spent) of its best."""

    z: Any
    value: Any
    gradient: Any
    spent: Any
    memory: Any
    step: Any
    share: Any
    best: Any


def cost(family: Family, objective: Objective, z: Real, spent: Any = 0.0) -> tuple[Real, Real]:
    """Return (sign * objective in the family's unit, what is spent) at z; infinite where no member meets the budget."""
    member = family.build_near(domains.values(family.domains, z), spent)
    # Masses over a NaN interval are 0: the objective may be a number where a parameter is none.
    numbers: Any = [leaf for leaf in jax.tree.leaves(member) if isinstance(leaf, float | np.ndarray | jax.Array)]
    infeasible = jnp.array([jnp.isnan(number).any() for number in numbers]).any()
    value = objective.sign * relative_to(family.unit, objective, member)
    return jnp.where(infeasible, jnp.inf, value), family.spent(member)


def value_and_gradient(function: Callable[[Real], Any], z: RealArray) -> tuple[Real, Real, Real]:
    """Return (value, gradient by forward derivatives along each axis, what is spent) of (value, what is spent)."""
    axes = jnp.eye(z.size, dtype=z.dtype)
    along = partial(jax.jvp, function, (z,), has_aux=True)
    if z.size == 1:  # A mapped axis of one number takes time to compile.
        value, slope, spent = along((axes[0],))
        return value, slope[None], spent
    return jax.vmap(lambda axis: along((axis,)), out_axes=(None, 0, None))(axes)


# A search takes half as long to compile with them, and no longer to run. A later compiler may not have the first one,
# which asks for an older way to generate the code of fused loops.
_QUICK_COMPILING = (
    {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 1},
    {"xla_backend_optimization_level": 1},
)


@cache
def compiled_search() -> Callable[..., Found]:
    """Return ``search``, compiled once for each type of family and objective."""
    for options in _QUICK_COMPILING:
        try:
            jax.jit(lambda: 0.0, compiler_options=options)()
        except (ValueError, RuntimeError):
            continue
        return jax.jit(search, static_argnames=("turns", "optimizer"), compiler_options=options)
    return jax.jit(search, static_argnames=("turns", "optimizer"))


def search(
    family: Family, objective: Objective, starts: Real, turns: int, optimizer: optax.GradientTransformation | None
) -> Found:
    """Return the best of all starts, of shape (points, starts, n), each from the best of its points.

    The steps of an optax transformation are taken as they are; those of BFGS are shortened until they lead down.
    """
    TRACES.append(family.name)
    found = descend(partial(cost, family, objective), starts, turns, family.patience, optimizer)
    factor = objective.sign * objective.factor(family.unit)
    return found._replace(value=found.value * factor, path=found.path.at[:, -1].multiply(factor))


@partial(jax.jit, static_argnames=("turns", "optimizer"))
def search_many(
    families: Family, objective: Objective, starts: Real, turns: int, optimizer: optax.GradientTransformation | None
) -> tuple[Found, dict[str, Real]]:
    """Return ``search`` of each family of a batch, whose numbers have one leading axis, and their parameters."""

    def one(family: Family) -> tuple[Found, dict[str, Any]]:
        found = search(family, objective, starts, turns, optimizer)
        free = domains.values(family.domains, found.z)
        # The path of every one would fill the memory.
        return found._replace(path=None), family.parameters(free, family.build(free))

    return jax.vmap(one)(families)


def descend(
    function: Callable[[Any, Any], Any],
    starts: Any,
    turns: int,
    patience: tuple[int, float] = Family.patience,
    optimizer: optax.GradientTransformation | None = None,
) -> Found:
    """Run the loop of ``search`` for a function of (z, what is spent nearby) that is minimised."""
    most_stale, gain = patience
    points, count, n = starts.shape
    rule = optax.with_extra_args_support(optimizer or bfgs())
    state = jax.vmap(partial(_begin, rule))(starts[0])
    log = jnp.zeros((turns, count, n + 1), starts.dtype)

    def unfinished(carry: Any) -> Any:
        number, active, *_, stale = carry
        return (number < turns) & active.any() & (stale < most_stale)

    def body(carry: Any) -> Any:
        number, active, state, log, evaluations, mark, stale = carry
        begins = number < points
        given = state, starts[jnp.minimum(number, points - 1)]

        def one(given: tuple[_Start, Any]) -> Any:
            one_state, point = given
            return _turn(function, rule, optimizer is None, one_state, point, begins)

        state, more = jax.lax.map(one, given) if count <= _IN_TURN else jax.vmap(one)(given)
        entry = jnp.concatenate([state.z, state.value[:, None]], -1)
        log = jax.lax.dynamic_update_index_in_dim(log, entry, number, 0)
        best = state.best[1].min()
        gained = begins | (best < mark - gain * jnp.abs(best))
        mark, stale = jnp.where(gained, best, mark), jnp.where(gained, 0, stale + 1)
        active, evaluations = active & (more | (number + 1 < points)), evaluations + active.sum()
        return number + 1, active, state, log, evaluations, mark, stale

    carry = 0, jnp.ones(count, bool), state, log, 0, state.value.min(), 0
    number, _, state, log, evaluations, *_ = jax.lax.while_loop(unfinished, body, carry)
    z, value, spends = state.best
    winner = jnp.argmin(value)
    return Found(z[winner], value[winner], log[:, winner], number, evaluations, spends[winner])


def _begin(rule: Any, z: RealArray) -> _Start:
    zero, none = jnp.zeros_like(z[0]), jnp.zeros_like(z)
    infinite = zero + jnp.inf
    return _Start(z, infinite, none, zero, rule.init(z), none, zero + 1.0, (z, infinite, zero))


def _turn(
    function: Callable[[Any, Any], Any], rule: Any, only_down: bool, state: _Start, point: Any, begins: Any
) -> tuple[_Start, RealArray]:
    """Return (the state after one trial, whether there is more to do); a trial that fails shortens the step."""
    move = jnp.where(begins, 0.0, state.share * state.step)
    trial: Any = jnp.where(begins, point, optax.apply_updates(state.z, move))
    value, gradient, spends = value_and_gradient(lambda z: function(z, state.spent), trial)
    slope: Any = (state.gradient * move).sum()
    accepted: Any = jnp.isfinite(gradient).all() & (value < jnp.inf)
    if only_down:
        accepted &= value <= state.value + _ARMIJO * slope
    else:
        accepted &= ~begins | (value <= state.value)
    memory = jax.tree.map(partial(jnp.where, begins), rule.init(trial), state.memory)
    known = {"value": value, "grad": gradient, "value_fn": lambda z: function(z, state.spent)[0]}
    step, memory = rule.update(gradient, memory, trial, **known)
    there = _Start(trial, value, gradient, spends, memory, step, jnp.ones_like(value), state.best)
    # A failed step is shortened to where a parabola of its slope and rise is lowest, to 0.1 to 0.5 of it.
    bend = 2 * (value - state.value - slope)
    lowest = jnp.clip(-slope / jnp.where(bend > 0, bend, 1.0), 0.1, 0.5)
    shorter = jnp.where(begins, 1.0, jnp.where((bend > 0) & (bend < jnp.inf), lowest, 0.25))
    here = state._replace(share=state.share * shorter)
    following: Any = jax.tree.map(partial(jnp.where, accepted), there, here)
    place = following.z, following.value, following.spent
    best = jax.tree.map(partial(jnp.where, following.value <= state.best[1]), place, state.best)
    more = following.value < jnp.inf
    if only_down:
        promised = -(following.gradient * following.share * following.step).sum()
        more &= promised > _NEGLIGIBLE * jnp.abs(following.value)
    return following._replace(best=best), more


class BfgsState(NamedTuple):
    """The end of the last step, its gradient, and the estimate of the inverse Hessian, 0 before the first step."""

    params: Any
    gradient: Any
    inverse: Any


def bfgs() -> optax.GradientTransformation:
    """Return the optimizer of steps -H g, H the BFGS estimate of the inverse Hessian (Nocedal and Wright 2006, 6.17).

    s = step, y = change of gradient, r = 1/(s y):  H <- (1 - r s y^T) H (1 - r y s^T) + r s s^T.

    The first step has length 1. Where s y <= 0, on a concave stretch, H is doubled instead, so that steps get longer
    there. At kinks, where gradients jump, BFGS with a line search still descends (Lewis and Overton 2013).
    ``optax.scale_by_lbfgs`` keeps a memory of differences, made for thousands of parameters, and takes three times as
    long to compile.
    """

    def init(params: RealArray) -> BfgsState:
        return BfgsState(params, jnp.zeros_like(params), jnp.zeros((params.size, params.size), params.dtype))

    def update(gradient: Any, state: BfgsState, params: Any = None) -> tuple[jax.Array, BfgsState]:
        s, y, H = params - state.params, gradient - state.gradient, state.inverse
        sy = (s * y).sum()
        convex = sy > 1e-12 * jnp.sqrt((s * s).sum() * (y * y).sum())
        r = jnp.where(convex, 1 / jnp.where(convex, sy, 1.0), 0.0)
        Hy = (H * y).sum(-1)
        cross = s[:, None] * Hy
        better = H + r * ((1 + r * (y * Hy).sum()) * s[:, None] * s - cross - cross.T)
        length = jnp.sqrt((gradient * gradient).sum())
        first = jnp.eye(params.size, dtype=params.dtype) / jnp.maximum(length, 1e-300)
        H = jnp.where(H[0, 0] == 0, first, jnp.where(convex, better, 2 * H))
        return -(H * gradient).sum(-1), BfgsState(params, gradient, H)

    return optax.GradientTransformation(init, update)
