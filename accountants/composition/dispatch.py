"""Delta at eps and eps at delta of composed releases, by the first method that applies.

One release has an exact profile, and few joint outcomes are enumerated (``outcomes``). In all other cases, every
neighbour direction is composed by the first of ``METHODS`` that applies. NumPy evaluates plain numbers. JAX numbers use
the same functions, compiled. Derivatives of JAX numbers follow by the implicit rule from those of delta at the root, in
the neighbour direction with the largest value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from accountants.composition.base import FOR_DERIVATIVES, FOR_VALUES, Composer
from accountants.composition.fft import LossesOnGrid
from accountants.composition.gaussian import GaussianNoise
from accountants.composition.infinite import InfiniteLosses
from accountants.composition.outcomes import enumerate_outcomes, evaluate_outcomes
from accountants.composition.quantity import EpsilonAt, Quantity
from accountants.composition.repeated import GuaranteeLike, LossTuple, RepeatedLoss, check_one_mechanism
from accountants.composition.sampled_densities import SampledDensities
from accountants.composition.tangents import (
    MAX_FORWARD,
    derivatives_forwards,
    join_moving,
    leaves_that_move,
    split_moving,
)
from accountants.composition.three_point import (
    ThreePointLosses,
    are_counts_enumerable,
    are_three_points,
    may_be_three_points,
)
from accountants.composition.tilted_direction import PANELS, Direction, may_sample_densities, pad_losses
from dpkernels import checks
from dpkernels.numerics import Boolean, Real, RealArray, float_if_scalar, floating, namespace
from dpkernels.programs import vmap_in_batches
from dpkernels.pytrees import PyTree

METHODS: tuple[type[Composer], ...] = (GaussianNoise, InfiniteLosses, ThreePointLosses, SampledDensities, LossesOnGrid)
NO_SECOND_DERIVATIVES = (
    "delta, epsilon: composed releases have first derivatives only; for second ones take differences of gradients, as "
    "(gradient(x + h) - gradient(x - h)) / (2 h), or the formulas of one release, which have both"
)
_VMAP_BATCH = 8  # The most values that are evaluated together under vmap on a CPU.


def evaluate_traceable(guarantee: GuaranteeLike, quantity: type[Quantity], argument: Real) -> Real:
    """Return the quantity at an argument: the largest value over the neighbour directions.

    The argument may have any shape. Plain numbers give a float or a NumPy array, JAX numbers a differentiable JAX one.

    Of noise that is not even, the loss of one release is that of a pair whose profile is the largest over both its
    directions. The value is then an upper bound, up to the error of the composition.
    """
    is_plain = namespace(argument, *jax.tree.leaves(guarantee)) is np
    guarantee = guarantee.numeric if is_plain else guarantee
    first, is_alone = guarantee.terms[0], len(guarantee.terms) == 1
    count = checks.concrete(first.count)
    if is_alone and count is None:
        return _evaluate_traced_count(guarantee, quantity, floating(jnp.asarray(argument)))
    if is_alone and count == 1:
        return float_if_scalar(quantity.evaluate_release(first.release_pairs(), argument))
    check_one_mechanism(guarantee.terms)
    if is_plain or not is_alone:
        outcomes = enumerate_outcomes(guarantee.terms, guarantee.neighbour_directions)
        if outcomes is not None:
            return float_if_scalar(evaluate_outcomes(quantity.name, outcomes, argument))
    if not is_plain:
        values = floating(jnp.asarray(argument))
        may_sample = may_sample_densities(guarantee) and values.dtype == jnp.float64
        counts = [checks.concrete(term.count) for term in guarantee.terms]
        are_whole = all(count is not None and bool(np.all(count == np.floor(count))) for count in counts)
        traced = _Traced(quantity, may_sample, are_counts_enumerable(guarantee.terms), are_whole)
        return _evaluate_traced(guarantee, traced, values)
    # Also for an infinite eps.
    arguments = np.minimum(np.asarray(argument, np.float64), np.finfo(np.float64).max ** 0.5)
    answers = np.full(arguments.shape, -1.0)
    with np.errstate(all="ignore"):
        for losses, coarse in guarantee.numeric_directions:
            for index, number in np.ndenumerate(arguments):
                largest = answers[index]
                answer = answer_direction(Direction(quantity(number, largest), losses, coarse))
                answers[index] = largest if answer <= largest or np.isnan(largest) else answer  # NaN stays.
    return float_if_scalar(answers[()])


def select_composer(direction: Direction) -> Composer:
    """Return the first method that applies to plain numbers."""
    return next(method.for_direction(direction) for method in METHODS if method.applies(direction))


def answer_direction(direction: Direction, composer: Composer | None = None) -> Real:
    """Return the answer of one neighbour direction, by the first method that applies to plain numbers by default."""
    composer = composer or select_composer(direction)
    return direction.quantity.read(composer, *composer.compose(direction), direction.losses, FOR_VALUES)[0]


def rough_epsilon(guarantee: GuaranteeLike, delta: float) -> float:
    """Return an estimate of eps at delta of several releases from few nodes, precise to about 1e-5: for searches."""
    with np.errstate(all="ignore"):
        directions = guarantee.numeric.repeated_losses()
        answers = [
            answer_direction(Direction(EpsilonAt(np.asarray(delta)), pad_losses(losses))) for losses in directions
        ]
    return max(map(float, answers))


# JAX numbers


class _Traced(NamedTuple):
    """The quantity that is computed of JAX numbers, and what is known of these numbers while JAX traces them."""

    quantity: type[Quantity]
    may_sample: bool = False
    is_enumerable: bool = False  # Whether the counts of any three losses are few enough to be enumerated.
    are_whole: bool = False  # Whether all counts of releases are integers.

    def losses(self, guarantee: GuaranteeLike, argument: RealArray) -> LossTuple:
        """Return the losses of all neighbour directions, along a first axis, in a type that holds ``argument``."""
        directions = guarantee.repeated_losses(PANELS, may_sample=self.may_sample)
        dtype = jnp.result_type(argument, *jax.tree.leaves(directions))
        stacked = jax.tree.map(lambda *leaves: jnp.stack(jnp.broadcast_arrays(*leaves)).astype(dtype), *directions)
        return tuple(dataclasses.replace(term, is_whole=self.are_whole) for term in pad_losses(stacked))

    def methods(self, losses: LossTuple) -> tuple[type[Composer], ...]:
        """Return the methods of which the first that applies composes the losses."""
        return (ThreePointLosses,) if self.is_enumerable and are_three_points(losses) else METHODS


@partial(jax.jit, static_argnames=("traced",))
def _evaluate_traced(guarantee: GuaranteeLike, traced: _Traced, argument: RealArray) -> Real:
    return _traced_value(traced, guarantee, argument)


@partial(jax.jit, static_argnames=("quantity",))
def _evaluate_traced_count(guarantee: GuaranteeLike, quantity: type[Quantity], argument: jax.Array) -> Real:
    """Return the value for a traced count, which may be 1: then that of the exact profile of one release."""
    (term,) = guarantee.terms

    def evaluate_single(guarantee: GuaranteeLike) -> Real:
        return quantity.evaluate_release(guarantee.terms[0].release_pairs(), argument).astype(argument.dtype)

    def evaluate_several(guarantee: GuaranteeLike) -> Real:
        return _evaluate_traced(guarantee, _Traced(quantity), argument).astype(argument.dtype)

    return jax.lax.cond(term.count == 1, evaluate_single, evaluate_several, guarantee)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _traced_value(traced: _Traced, guarantee: GuaranteeLike, argument: Array) -> Real:
    losses = traced.losses(guarantee, argument)

    def largest_value(number: Array) -> Real:
        return _largest_in_batches(_VALUE, traced)(losses, None, number)[1].value

    return _map_arguments(largest_value, argument, losses)


@partial(_traced_value.defjvp, symbolic_zeros=True)
def _(traced: _Traced, primals: PyTree, tangents: PyTree) -> tuple[Real, Real]:
    """Return the value, and its derivative along the tangents of the numbers that move.

    The derivatives are those of delta(eps), in the direction with the largest value. In few numbers they are computed
    forwards, for a smaller program than the one that JAX would transpose.
    """
    guarantee, argument = primals
    numbers, structure = jax.tree.flatten(guarantee)
    leaves, (*moving, argument_moves) = leaves_that_move(tangents)
    moved, fixed = split_moving(numbers, moving)
    tangent = [jnp.ravel(leaf) for leaf in split_moving(leaves[:-1], moving)[0]]

    def moved_losses(moved: list[Array]) -> LossTuple:
        return traced.losses(join_moving(structure, tuple(moving), moved, fixed), argument)

    counts_move = any(term.count for term in jax.tree.unflatten(structure, moving).terms)
    if forwards := sum(leaf.size for leaf in tangent) <= MAX_FORWARD:
        losses, loss_tangents = derivatives_forwards(moved_losses, moved)
        loss_tangents = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), _differentiated(loss_tangents, counts_move))
    else:
        _, pull, losses = jax.vjp(
            lambda moved: (_differentiated(losses := moved_losses(moved)), losses), moved, has_aux=True
        )
        loss_tangents = None

    def value_and_slopes(number: Array) -> tuple[Real, RealArray, RealArray]:
        direction, (value, by_moved, by_epsilon) = _largest_with_slopes(traced, losses, loss_tangents, number)
        if not forwards:
            by_losses = jax.tree.map(
                lambda zeros, by: jnp.zeros_like(zeros).at[direction].set(by), _differentiated(losses), by_moved
            )
            by_moved = jnp.concatenate([jnp.ravel(by) for by in pull(by_losses)[0]])
        factor, by_argument = traced.quantity.chain(by_epsilon)
        is_free = ~traced.quantity.is_at_end(value) & (factor != 0)
        # A NaN among the parameters, which comparisons do not detect, stays.
        unknown = sum(jnp.isnan(leaf) for leaf in (*_masses(losses), number)) > 0
        factor = jnp.where(unknown, jnp.nan, jnp.where(is_free, factor, 0.0))
        return value, factor * jnp.where(is_free, by_moved, 0.0), factor * jnp.where(is_free, by_argument, 0.0)

    value, slopes, by_argument = _map_arguments(value_and_slopes, argument, losses)
    change = (slopes * jnp.concatenate(tangent)).sum(-1) if tangent else jnp.zeros_like(value)
    change = change + by_argument * leaves[-1] if argument_moves else change
    return value, change.astype(value.dtype)


def _map_arguments(function: Callable[[Array], PyTree], arguments: Array, losses: LossTuple) -> PyTree:
    """Return the results of a function for each number, in the type of the losses."""
    arguments = arguments.astype(jnp.result_type(arguments, *jax.tree.leaves(losses)))
    arguments = jnp.minimum(arguments, jnp.finfo(arguments.dtype).max ** 0.5)  # Also for an infinite eps.
    if jnp.ndim(arguments) == 0:
        return function(arguments)
    results = jax.lax.map(function, arguments.ravel())
    return jax.tree.map(lambda leaf: leaf.reshape(*arguments.shape, *leaf.shape[1:]), results)


def _differentiated(losses: LossTuple, counts_move: bool = True) -> LossTuple:
    """Return the losses with None for numbers that change no value, or do not move: they need no derivatives."""
    absent: Any = None  # JAX takes it for no number.

    def decisive(term: RepeatedLoss) -> RepeatedLoss:
        count = term.count if counts_move else absent
        if term.losses is None:
            return dataclasses.replace(term, count=count)
        losses = dataclasses.replace(term.losses, q=absent, width=absent)
        return dataclasses.replace(term, losses=losses, mu=absent, count=count)

    return tuple(map(decisive, losses))


def _masses(losses: LossTuple) -> list[RealArray]:
    """Return a number of each term that is NaN if a parameter of the term is."""
    return [jnp.ravel(term.mu if term.losses is None else term.losses.p)[0] for term in losses]


class _Answer(NamedTuple):
    """The answer of one neighbour direction, and derivatives of delta, or None, in what moves and in eps."""

    value: Real
    by_moved: PyTree = None
    by_epsilon: Any = None


class _Computation(NamedTuple):
    """A function that computes a value, or a value and its derivatives, of one neighbour direction.

    Given changes of the losses, along a first axis, derivatives are those along each change. Otherwise they are those
    in every loss.
    """

    compute: Callable[[Composer, Direction, LossTuple | None], _Answer]
    # An answer of zeros for the losses of a direction, their changes, and a number.
    zero_answer: Callable[[LossTuple, LossTuple | None, RealArray], _Answer]

    def answer(self, direction: Direction, tangents: LossTuple | None, methods: tuple[type[Composer], ...]) -> _Answer:
        """Return what the first method that applies computes, also where JAX traces whether it applies."""
        method, *later = methods
        applies = not later or method.applies(direction)
        if applies is False:
            return self.answer(direction, tangents, tuple(later))
        if applies is True:
            return self.compute(method.for_direction(direction), direction, tangents)
        zero = self.zero_answer(direction.losses, tangents, direction.quantity.argument)
        answer = _compute_if(~applies, lambda: self.answer(direction, tangents, tuple(later)), zero)
        return _compute_if(applies, lambda: self.compute(method.for_direction(direction), direction, tangents), answer)


def _value(composer: Composer, direction: Direction, _: object) -> _Answer:
    return _Answer(answer_direction(direction, composer))


def _value_and_slopes(composer: Composer, direction: Direction, loss_tangents: LossTuple | None) -> _Answer:
    quantity, losses = direction.quantity, direction.losses
    (prepared, infinite), pull = jax.vjp(composer.prepare, losses)
    composed = composer.profile(prepared, direction)
    value, evaluation = quantity.read(composer, composed, infinite, losses, FOR_DERIVATIVES)

    def slopes() -> tuple[PyTree, Real]:
        by_prepared, by_epsilon = composed.gradient(evaluation)
        (by_losses,) = pull((by_prepared, jnp.ones_like(infinite)))
        counts_move = loss_tangents is None or loss_tangents[0].count is not None
        return _directional_derivatives(_differentiated(by_losses, counts_move), loss_tangents), by_epsilon

    zero = _zero_and_slopes(losses, loss_tangents, quantity.argument)
    return _Answer(value, *_compute_if(~(value <= quantity.best), slopes, zero[1:]))


def _directional_derivatives(by_losses: LossTuple, tangents: LossTuple | None) -> PyTree:
    """Return derivatives along changes of the losses, or without these the derivatives in the losses."""
    if tangents is None:
        return by_losses
    products = jax.tree.map(lambda by, changes: (by * changes).reshape(len(changes), -1).sum(-1), by_losses, tangents)
    return sum(jax.tree.leaves(products))


def _zero(_: LossTuple, __: object, argument: RealArray) -> _Answer:
    return _Answer(0.0 * argument)


def _zero_and_slopes(losses: LossTuple, loss_tangents: LossTuple | None, argument: RealArray) -> _Answer:
    numbers = jax.tree.leaves(loss_tangents)
    by_moved = (
        jnp.zeros(len(numbers[0]), argument.dtype) if numbers else jax.tree.map(jnp.zeros_like, _differentiated(losses))
    )
    return _Answer(0.0 * argument, by_moved, 0.0 * argument)


_VALUE = _Computation(_value, _zero)
_SLOPES = _Computation(_value_and_slopes, _zero_and_slopes)


def _compute_if(is_needed: Boolean, compute: Callable[[], PyTree], otherwise: object) -> PyTree:
    """Return the computed value where it is needed, by a loop, as lax.cond under vmap computes both sides for all."""
    state = is_needed, otherwise
    return jax.lax.while_loop(lambda state: state[0], lambda _: (jnp.zeros_like(is_needed), compute()), state)[1]


def _largest(
    computation: _Computation,
    traced: _Traced,
    directions: LossTuple,
    loss_tangents: LossTuple | None,
    argument: RealArray,
) -> tuple[Array, _Answer]:
    """Return (the direction with the largest value, its answer); eps is searched above that of earlier directions.

    ``loss_tangents`` are changes of the directions' losses, on a second axis, or None.
    """

    def next_direction(best: tuple[RealArray, _Answer], numbered: PyTree) -> tuple[PyTree, None]:
        number, losses, tangents = numbered
        largest = best[1].value
        direction = Direction(traced.quantity(argument, largest), losses)
        answer = computation.answer(direction, tangents, traced.methods(losses))
        is_larger = ~(answer.value <= largest) & ~jnp.isnan(largest)  # A NaN in either stays.
        return jax.tree.map(partial(jnp.where, is_larger), (number, answer), best), None

    numbers = jnp.arange(jax.tree.leaves(directions)[0].shape[0])
    first, first_tangents = jax.tree.map(lambda leaf: leaf[0], (directions, loss_tangents))
    zero = computation.zero_answer(first, first_tangents, argument)
    initial = zero._replace(value=zero.value - 1)
    return jax.lax.scan(next_direction, (0 * numbers[0], initial), (numbers, directions, loss_tangents))[0]


@cache
def _largest_in_batches(computation: _Computation, traced: _Traced) -> Callable[..., tuple[Array, _Answer]]:
    """Return ``_largest`` for vmap; three-point losses run one at a time, because only some can be enumerated."""

    def batch_size(directions: LossTuple, *_: object) -> int:
        return 1 if may_be_three_points(directions) else _VMAP_BATCH

    return vmap_in_batches(partial(_largest, computation, traced), batch_size)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _largest_with_slopes(
    traced: _Traced, directions: LossTuple, loss_tangents: LossTuple | None, argument: Real
) -> tuple[Array, _Answer]:
    return _largest_in_batches(_SLOPES, traced)(directions, loss_tangents, argument)


@_largest_with_slopes.defjvp
def _(*_: object) -> NoReturn:
    raise NotImplementedError(NO_SECOND_DERIVATIVES)
