"""Delta at eps and eps at delta of composed releases, by the first method that applies.

One release has its exact profile, and few joint outcomes are enumerated (``outcomes``). Of others, every neighbour
direction is composed by the first of ``METHODS`` that applies. Plain numbers are evaluated by NumPy, and JAX numbers by
the same functions, compiled. Derivatives of JAX numbers are implicit: they are those of delta at the root, in the
neighbour direction that has the largest value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from accountants.composition.base import FOR_DERIVATIVES, Composer
from accountants.composition.direction import PANELS, Direction, are_few, pad_losses
from accountants.composition.fft import LossesOnGrid
from accountants.composition.gaussian import GaussianNoise
from accountants.composition.infinite import InfiniteLosses
from accountants.composition.outcomes import enumerate_outcomes, evaluate_outcomes
from accountants.composition.question import EpsilonAt, Question
from accountants.composition.sampled_densities import SampledDensities
from accountants.composition.self_composed import HasTerms, LossTuple, check_one_mechanism
from accountants.composition.three_point import ThreePointLosses, may_be_three_points
from dpkernels import checks
from dpkernels.numerics import Boolean, Real, RealArray, floating, namespace, plain
from dpkernels.programs import vmap_in_batches
from dpkernels.pytrees import PyTree

METHODS: tuple[type[Composer], ...] = (GaussianNoise, InfiniteLosses, ThreePointLosses, SampledDensities, LossesOnGrid)
NO_SECOND_DERIVATIVES = (
    "delta, epsilon: composed releases have first derivatives only; for second ones take differences of gradients, as "
    "(gradient(x + h) - gradient(x - h)) / (2 h), or the formulas of one release, which have both"
)
_TOGETHER = 8  # The most values that are evaluated together under vmap on a CPU.


def evaluate(guarantee: Any, quantity: type[Question], at: Real) -> Real:
    """Return the largest answer over the neighbour directions.

    ``at`` may have any shape. Plain numbers give a float or a NumPy array, JAX numbers a differentiable JAX array.

    Of noise that is not even, the loss of one release is that of a pair whose profile is the largest over both its
    directions. The value is then an upper bound, up to the error of the composition.
    """
    is_plain = namespace(at, *jax.tree.leaves(guarantee)) is np
    guarantee = guarantee.numeric if is_plain else guarantee
    (first, *others) = guarantee.terms
    count = checks.concrete(first.count)
    if not others and count is None:
        return _evaluate_one_or_more(guarantee, quantity, floating(jnp.asarray(at)))
    if not others and count == 1:
        return plain(quantity.of_one_release(first.one_release(), at))
    check_one_mechanism(guarantee.terms)
    outcomes = None
    if is_plain or others:
        outcomes = enumerate_outcomes(guarantee.terms, guarantee.neighbour_directions)
    if outcomes is not None:
        return plain(evaluate_outcomes(quantity.name, outcomes, at))
    if not is_plain:
        values = floating(jnp.asarray(at))
        return _evaluate_traced(guarantee, quantity, values, are_few(guarantee) and values.dtype == jnp.float64)
    at = np.minimum(np.asarray(at, np.float64), np.finfo(np.float64).max ** 0.5)  # Also for an infinite eps.
    answers = np.full(at.shape, -1.0)
    with np.errstate(all="ignore"):
        for losses, coarse in guarantee.numeric_directions:
            for index, number in np.ndenumerate(at):
                largest = answers[index]
                answer = answer_of(Direction(quantity(number, largest), losses, coarse))
                answers[index] = largest if answer <= largest or np.isnan(largest) else answer  # NaN stays.
    return plain(answers[()])


def composer_of(direction: Direction) -> Composer:
    """Return the first method that applies to plain numbers."""
    return next(method.of(direction) for method in METHODS if method.applies(direction))


def answer_of(direction: Direction) -> Any:
    """Return the answer of one neighbour direction of plain numbers."""
    return direction.question.answer(composer_of(direction), direction)


def rough_epsilon(guarantee: Any, delta: float) -> float:
    """Return an estimate of eps at delta of several releases from few nodes, precise to about 1e-5: for searches."""
    with np.errstate(all="ignore"):
        directions = guarantee.numeric.repeated_losses()
        answers = [answer_of(Direction(EpsilonAt(np.asarray(delta)), pad_losses(losses))) for losses in directions]
    return max(map(float, answers))


# JAX numbers


@partial(jax.jit, static_argnames=("quantity", "may_sample"))
def _evaluate_traced(guarantee: Any, quantity: type[Question], at: RealArray, may_sample: bool = False) -> Real:
    directions = guarantee.repeated_losses(PANELS, may_sample=may_sample)
    at = at.astype(jnp.result_type(at, *jax.tree.leaves(directions)))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(jnp.broadcast_arrays(*leaves)).astype(at.dtype), *directions)
    padded = pad_losses(stacked)

    def evaluate_one(number: RealArray) -> RealArray:
        number = jnp.minimum(number, jnp.finfo(at.dtype).max ** 0.5)  # Also for an infinite eps.
        return _largest_value(quantity, padded, number)

    return evaluate_one(at) if jnp.ndim(at) == 0 else jax.lax.map(evaluate_one, at.ravel()).reshape(at.shape)


@partial(jax.jit, static_argnames=("quantity",))
def _evaluate_one_or_more(guarantee: HasTerms, quantity: type[Question], at: jax.Array) -> Real:
    """Return the value for a traced count, which may be 1: then that of the exact profile of one release."""
    (term,) = guarantee.terms

    def evaluate_one(guarantee: HasTerms) -> Real:
        return quantity.of_one_release(guarantee.terms[0].one_release(), at).astype(at.dtype)

    def evaluate_more(guarantee: HasTerms) -> Real:
        return _evaluate_traced(guarantee, quantity, at).astype(at.dtype)

    return jax.lax.cond(term.count == 1, evaluate_one, evaluate_more, guarantee)


class _Answer(NamedTuple):
    """The answer of one neighbour direction, and derivatives of delta in its losses and in eps, or None."""

    value: Any
    by_losses: PyTree = None
    by_epsilon: Any = None


class _Computation(NamedTuple):
    """A number, or a number and its derivatives, of one neighbour direction."""

    compute: Callable[[Composer, Direction], _Answer]
    nothing: Callable[[LossTuple, Any], _Answer]  # An answer of zeros for the losses of a direction at a number.

    def by_first_method(self, direction: Direction, methods: tuple[type[Composer], ...] = METHODS) -> _Answer:
        """Return what the first method that applies computes, also where JAX traces whether it applies."""
        method, *later = methods
        applies = method.applies(direction)
        if applies is False:
            return self.by_first_method(direction, tuple(later))
        if applies is True:
            return self.compute(method.of(direction), direction)
        nothing = self.nothing(direction.losses, direction.question.at)
        answer = _compute_if(~applies, lambda: self.by_first_method(direction, tuple(later)), nothing)
        return _compute_if(applies, lambda: self.compute(method.of(direction), direction), answer)


def _value(composer: Composer, direction: Direction) -> _Answer:
    return _Answer(direction.question.answer(composer, direction))


def _value_and_slopes(composer: Composer, direction: Direction) -> _Answer:
    question, losses = direction.question, direction.losses
    (prepared, infinite), pull = jax.vjp(composer.prepare, losses)
    composed = composer.profile_of(prepared, direction)
    value, evaluation = question.read(composer, composed, infinite, losses, FOR_DERIVATIVES)
    nothing = jax.tree.map(jnp.zeros_like, (prepared, question.at))
    is_larger = ~(value <= question.best)
    by_prepared, by_epsilon = _compute_if(is_larger, lambda: composed.gradient(evaluation), nothing)
    (by_losses,) = pull((by_prepared, jnp.ones_like(infinite)))
    return _Answer(value, by_losses, by_epsilon)


def _zero(_: LossTuple, at: Array) -> _Answer:
    return _Answer(0.0 * at)


def _zero_and_slopes(losses: LossTuple, at: Real) -> _Answer:
    return _Answer(0.0 * at, *jax.tree.map(jnp.zeros_like, (losses, at)))


_VALUE = _Computation(_value, _zero)
_SLOPES = _Computation(_value_and_slopes, _zero_and_slopes)


def _compute_if(needed: Boolean, compute: Callable[[], Any], otherwise: object) -> Any:
    """Return the computed value where it is needed, by a loop, as lax.cond under vmap computes both sides for all."""
    state = needed, otherwise
    return jax.lax.while_loop(lambda state: state[0], lambda _: (jnp.zeros_like(needed), compute()), state)[1]


def _largest(
    computation: _Computation, quantity: type[Question], directions: LossTuple, at: RealArray
) -> tuple[Any, _Answer]:
    """Return (the direction with the largest value, its answer); eps is searched above that of earlier directions."""

    def next_direction(best: tuple[Array, _Answer], numbered: PyTree) -> tuple[Any, None]:
        number, losses = numbered
        largest = best[1].value
        answer = computation.by_first_method(Direction(quantity(at, largest), losses))
        is_larger = ~(answer.value <= largest) & ~jnp.isnan(largest)  # A NaN in either stays.
        return jax.tree.map(partial(jnp.where, is_larger), (number, answer), best), None

    numbers = jnp.arange(jax.tree.leaves(directions)[0].shape[0])
    nothing = computation.nothing(jax.tree.map(lambda leaf: leaf[0], directions), at)
    none = nothing._replace(value=nothing.value - 1)
    return jax.lax.scan(next_direction, (0 * numbers[0], none), (numbers, directions))[0]


@cache
def _largest_in_batches(
    computation: _Computation, quantity: type[Question]
) -> Callable[[LossTuple, Real], tuple[Real, _Answer]]:
    """Return ``_largest`` for vmap; three-point losses run one at a time, because only some can be enumerated."""

    def together(directions: LossTuple, _: object) -> int:
        return 1 if may_be_three_points(directions) else _TOGETHER

    return vmap_in_batches(partial(_largest, computation, quantity), together)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _largest_value(quantity: type[Question], directions: LossTuple, at: Array) -> RealArray:
    return _largest_in_batches(_VALUE, quantity)(directions, at)[1].value


@_largest_value.defjvp
def _(quantity: type[Question], primals: PyTree, tangents: PyTree) -> tuple[Any, Any]:
    """Differentiate delta(eps) of the direction that has the largest value."""
    number, (value, by_losses, by_epsilon) = _largest_with_slopes(quantity, *primals)
    factor, by_at = quantity.chain(by_epsilon)
    is_free = ~quantity.is_at_end(value) & (factor != 0)
    # A NaN among the parameters, which comparisons do not detect, stays.
    unknown = sum(jnp.isnan(leaf.max()) for leaf in jax.tree.leaves(primals)) > 0
    factor = jnp.where(unknown, jnp.nan, jnp.where(is_free, factor, 0.0))
    along = jax.tree.map(lambda by, moved: (jnp.where(is_free, by, 0.0) * moved[number]).sum(), by_losses, tangents[0])
    return value, factor * (sum(jax.tree.leaves(along)) + jnp.where(is_free, by_at, 0.0) * tangents[1])


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _largest_with_slopes(quantity: type[Question], directions: LossTuple, at: Real) -> tuple[Real, _Answer]:
    return _largest_in_batches(_SLOPES, quantity)(directions, at)


@_largest_with_slopes.defjvp
def _(*_: object) -> Any:
    raise NotImplementedError(NO_SECOND_DERIVATIVES)
