"""Delta at eps and eps at delta of composed releases, by the first method that applies.

One release has its exact profile, and few joint outcomes are enumerated (``outcomes``). Of others, every neighbour
direction is composed by the first of ``METHODS`` that applies. Plain numbers are evaluated by NumPy, and JAX numbers by
the same functions, compiled. Derivatives of JAX numbers are implicit: they are those of delta at the root, in the
neighbour direction that has the largest value.
"""

from __future__ import annotations

import dataclasses
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
from accountants.composition.moving import (
    MAX_FORWARD,
    derivatives_forwards,
    join_moving,
    leaves_that_move,
    split_moving,
)
from accountants.composition.outcomes import enumerate_outcomes, evaluate_outcomes
from accountants.composition.question import EpsilonAt, Question
from accountants.composition.sampled_densities import SampledDensities
from accountants.composition.self_composed import HasTerms, LossTuple, RepeatedLoss, check_one_mechanism
from accountants.composition.three_point import ThreePointLosses, are_few_counts, are_three_points, may_be_three_points
from dpkernels import checks
from dpkernels.numerics import Boolean, Real, RealArray, floating, namespace, plain
from dpkernels.programs import vmap_in_batches
from dpkernels.pytrees import PyTree

METHODS: tuple[type[Composer], ...] = (GaussianNoise, InfiniteLosses, ThreePointLosses, SampledDensities, LossesOnGrid)
NO_SECOND_DERIVATIVES = (
    "delta, epsilon: composed releases have first derivatives only; for second ones take differences of gradients, as "
    "(gradient(x + h) - gradient(x - h)) / (2 h), or the formulas of one release, which have both"
)
_VMAP_BATCH = 8  # The most values that are evaluated together under vmap on a CPU.


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
        may_sample = are_few(guarantee) and values.dtype == jnp.float64
        counts = [checks.concrete(term.count) for term in guarantee.terms]
        are_whole = all(count is not None and bool(np.all(count == np.floor(count))) for count in counts)
        traced = _Traced(quantity, may_sample, are_few_counts(guarantee.terms), are_whole)
        return _evaluate_traced(guarantee, traced, values)
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


class _Traced(NamedTuple):
    """A question about JAX numbers, and what is known about them while JAX traces."""

    quantity: type[Question]
    may_sample: bool = False
    is_enumerable: bool = False  # Whether the counts of any three losses are few enough to be enumerated.
    are_whole: bool = False  # Whether all counts of releases are integers.

    def losses(self, guarantee: Any, at: RealArray) -> LossTuple:
        """Return the losses of all neighbour directions, along a first axis, in a type that holds ``at``."""
        directions = guarantee.repeated_losses(PANELS, may_sample=self.may_sample)
        dtype = jnp.result_type(at, *jax.tree.leaves(directions))
        stacked = jax.tree.map(lambda *leaves: jnp.stack(jnp.broadcast_arrays(*leaves)).astype(dtype), *directions)
        return tuple(dataclasses.replace(term, is_whole=self.are_whole) for term in pad_losses(stacked))

    def methods(self, losses: LossTuple) -> tuple[type[Composer], ...]:
        """Return the methods of which the first that applies composes the losses."""
        return (ThreePointLosses,) if self.is_enumerable and are_three_points(losses) else METHODS


@partial(jax.jit, static_argnames=("traced",))
def _evaluate_traced(guarantee: HasTerms, traced: _Traced, at: RealArray) -> Real:
    return _value_at(traced, guarantee, at)


@partial(jax.jit, static_argnames=("quantity",))
def _evaluate_one_or_more(guarantee: HasTerms, quantity: type[Question], at: jax.Array) -> Real:
    """Return the value for a traced count, which may be 1: then that of the exact profile of one release."""
    (term,) = guarantee.terms

    def evaluate_one(guarantee: HasTerms) -> Real:
        return quantity.of_one_release(guarantee.terms[0].one_release(), at).astype(at.dtype)

    def evaluate_more(guarantee: HasTerms) -> Real:
        return _evaluate_traced(guarantee, _Traced(quantity), at).astype(at.dtype)

    return jax.lax.cond(term.count == 1, evaluate_one, evaluate_more, guarantee)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _value_at(traced: _Traced, guarantee: HasTerms, at: Array) -> Real:
    losses = traced.losses(guarantee, at)

    def value_at(number: Array) -> RealArray:
        return _largest_in_batches(_VALUE, traced)(losses, None, number)[1].value

    return _at_each(value_at, at, losses)


@partial(_value_at.defjvp, symbolic_zeros=True)
def _(traced: _Traced, primals: PyTree, tangents: PyTree) -> tuple[Any, Any]:
    """Return the value, and its derivative along the tangents of the numbers that move.

    The derivatives are those of delta(eps), in the direction with the largest value. In few numbers they are computed
    forwards, for a smaller program than the one that JAX would transpose.
    """
    guarantee, at = primals
    numbers, structure = jax.tree.flatten(guarantee)
    leaves, (*moving, at_moves) = leaves_that_move(tangents)
    moved, others = split_moving(numbers, moving)
    tangent = [jnp.ravel(leaf) for leaf in split_moving(leaves[:-1], moving)[0]]

    def losses_of(moved: list[Array]) -> LossTuple:
        return traced.losses(join_moving(structure, tuple(moving), moved, others), at)

    counts_move = any(term.count for term in jax.tree.unflatten(structure, moving).terms)
    if are_few := sum(leaf.size for leaf in tangent) <= MAX_FORWARD:
        losses, along = derivatives_forwards(losses_of, moved)
        along = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), _decisive(along, counts_move))
    else:
        _, pull, losses = jax.vjp(lambda moved: (_decisive(losses := losses_of(moved)), losses), moved, has_aux=True)
        along = None

    def slopes_at(number: Array) -> tuple[RealArray, RealArray, RealArray]:
        direction, (value, by_moved, by_epsilon) = _largest_with_slopes(traced, losses, along, number)
        if not are_few:
            by_losses = jax.tree.map(
                lambda all_of_it, by: jnp.zeros_like(all_of_it).at[direction].set(by), _decisive(losses), by_moved
            )
            by_moved = jnp.concatenate([jnp.ravel(by) for by in pull(by_losses)[0]])
        factor, by_at = traced.quantity.chain(by_epsilon)
        is_free = ~traced.quantity.is_at_end(value) & (factor != 0)
        # A NaN among the parameters, which comparisons do not detect, stays.
        unknown = sum(jnp.isnan(leaf) for leaf in (*_masses(losses), number)) > 0
        factor = jnp.where(unknown, jnp.nan, jnp.where(is_free, factor, 0.0))
        return value, factor * jnp.where(is_free, by_moved, 0.0), factor * jnp.where(is_free, by_at, 0.0)

    value, slopes, by_at = _at_each(slopes_at, at, losses)
    change = (slopes * jnp.concatenate(tangent)).sum(-1) if tangent else jnp.zeros_like(value)
    change = change + by_at * leaves[-1] if at_moves else change
    return value, change.astype(value.dtype)


def _at_each(function: Callable[[Array], PyTree], at: Array, losses: LossTuple) -> PyTree:
    """Return the results of a function for each number, in the type of the losses."""
    at = at.astype(jnp.result_type(at, *jax.tree.leaves(losses)))
    at = jnp.minimum(at, jnp.finfo(at.dtype).max ** 0.5)  # Also for an infinite eps.
    if jnp.ndim(at) == 0:
        return function(at)
    results = jax.lax.map(function, at.ravel())
    return jax.tree.map(lambda leaf: leaf.reshape(*at.shape, *leaf.shape[1:]), results)


def _decisive(losses: LossTuple, counts_move: bool = True) -> LossTuple:
    """Return the losses without what changes no value, or does not move, so that no derivatives in it are computed."""

    def decisive(term: RepeatedLoss) -> RepeatedLoss:
        count = term.count if counts_move else None
        if term.losses is None:
            return dataclasses.replace(term, count=count)
        return dataclasses.replace(
            term, losses=dataclasses.replace(term.losses, q=None, width=None), mu=None, count=count
        )

    return tuple(map(decisive, losses))


def _masses(losses: LossTuple) -> list[RealArray]:
    """Return a number of each term that is NaN if a parameter of the term is."""
    return [jnp.ravel(term.mu if term.losses is None else term.losses.p)[0] for term in losses]


class _Answer(NamedTuple):
    """The answer of one neighbour direction, and derivatives of delta, or None, in what moves and in eps."""

    value: Any
    by_moved: PyTree = None
    by_epsilon: Any = None


class _Computation(NamedTuple):
    """A number, or a number and its derivatives, of one neighbour direction.

    Derivatives are those along given changes of the losses, on a first axis, or, without these, those in the losses.
    """

    compute: Callable[[Composer, Direction, LossTuple | None], _Answer]
    # An answer of zeros for the losses of a direction, their changes, and a number.
    nothing: Callable[[LossTuple, LossTuple | None, Any], _Answer]

    def by_first_method(
        self, direction: Direction, along: LossTuple | None, methods: tuple[type[Composer], ...]
    ) -> _Answer:
        """Return what the first method that applies computes, also where JAX traces whether it applies."""
        method, *later = methods
        applies = not later or method.applies(direction)
        if applies is False:
            return self.by_first_method(direction, along, tuple(later))
        if applies is True:
            return self.compute(method.of(direction), direction, along)
        nothing = self.nothing(direction.losses, along, direction.question.at)
        answer = _compute_if(~applies, lambda: self.by_first_method(direction, along, tuple(later)), nothing)
        return _compute_if(applies, lambda: self.compute(method.of(direction), direction, along), answer)


def _value(composer: Composer, direction: Direction, _: object) -> _Answer:
    return _Answer(direction.question.answer(composer, direction))


def _value_and_slopes(composer: Composer, direction: Direction, along: LossTuple | None) -> _Answer:
    question, losses = direction.question, direction.losses
    (prepared, infinite), pull = jax.vjp(composer.prepare, losses)
    composed = composer.profile_of(prepared, direction)
    value, evaluation = question.read(composer, composed, infinite, losses, FOR_DERIVATIVES)

    def slopes() -> tuple[Any, Any]:
        by_prepared, by_epsilon = composed.gradient(evaluation)
        (by_losses,) = pull((by_prepared, jnp.ones_like(infinite)))
        counts_move = along is None or along[0].count is not None
        return _along(_decisive(by_losses, counts_move), along), by_epsilon

    nothing = _zero_and_slopes(losses, along, question.at)
    return _Answer(value, *_compute_if(~(value <= question.best), slopes, nothing[1:]))


def _along(by_losses: LossTuple, along: LossTuple | None) -> Any:
    """Return derivatives along changes of the losses, or without these the derivatives in the losses."""
    if along is None:
        return by_losses
    products = jax.tree.map(lambda by, changes: (by * changes).reshape(len(changes), -1).sum(-1), by_losses, along)
    return sum(jax.tree.leaves(products))


def _zero(_: LossTuple, __: object, at: Array) -> _Answer:
    return _Answer(0.0 * at)


def _zero_and_slopes(losses: LossTuple, along: LossTuple | None, at: Array) -> _Answer:
    numbers = jax.tree.leaves(along)
    by_moved = jnp.zeros(len(numbers[0]), at.dtype) if numbers else jax.tree.map(jnp.zeros_like, _decisive(losses))
    return _Answer(0.0 * at, by_moved, 0.0 * at)


_VALUE = _Computation(_value, _zero)
_SLOPES = _Computation(_value_and_slopes, _zero_and_slopes)


def _compute_if(needed: Boolean, compute: Callable[[], PyTree], otherwise: object) -> PyTree:
    """Return the computed value where it is needed, by a loop, as lax.cond under vmap computes both sides for all."""
    state = needed, otherwise
    return jax.lax.while_loop(lambda state: state[0], lambda _: (jnp.zeros_like(needed), compute()), state)[1]


def _largest(
    computation: _Computation, traced: _Traced, directions: LossTuple, along: LossTuple | None, at: RealArray
) -> tuple[Array, _Answer]:
    """Return (the direction with the largest value, its answer); eps is searched above that of earlier directions.

    ``along`` are changes of the directions' losses, on a second axis, or None.
    """

    def next_direction(best: tuple[RealArray, _Answer], numbered: PyTree) -> tuple[Any, None]:
        number, losses, changes = numbered
        largest = best[1].value
        direction = Direction(traced.quantity(at, largest), losses)
        answer = computation.by_first_method(direction, changes, traced.methods(losses))
        is_larger = ~(answer.value <= largest) & ~jnp.isnan(largest)  # A NaN in either stays.
        return jax.tree.map(partial(jnp.where, is_larger), (number, answer), best), None

    numbers = jnp.arange(jax.tree.leaves(directions)[0].shape[0])
    first, first_along = jax.tree.map(lambda leaf: leaf[0], (directions, along))
    nothing = computation.nothing(first, first_along, at)
    none = nothing._replace(value=nothing.value - 1)
    return jax.lax.scan(next_direction, (0 * numbers[0], none), (numbers, directions, along))[0]


@cache
def _largest_in_batches(computation: _Computation, traced: _Traced) -> Callable[..., tuple[Array, _Answer]]:
    """Return ``_largest`` for vmap; three-point losses run one at a time, because only some can be enumerated."""

    def together(directions: LossTuple, *_: object) -> int:
        return 1 if may_be_three_points(directions) else _VMAP_BATCH

    return vmap_in_batches(partial(_largest, computation, traced), together)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _largest_with_slopes(
    traced: _Traced, directions: LossTuple, along: LossTuple | None, at: Real
) -> tuple[Array, _Answer]:
    return _largest_in_batches(_SLOPES, traced)(directions, along, at)


@_largest_with_slopes.defjvp
def _(*_: object) -> Any:
    raise NotImplementedError(NO_SECOND_DERIVATIVES)
