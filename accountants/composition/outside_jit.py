"""Values and derivatives of JAX numbers outside ``jit``, without compiling the composition.

Outside ``jit``, also under ``grad``, ``vmap`` and ``jacfwd``, a JAX number has a value when a differentiation rule
runs. NumPy then computes the composed value, which is the same as inside ``jit``, and the derivatives of delta in the
composed masses p and losses l. JAX differentiates only the map from the parameters to these losses:

    d delta = sum of (d delta/d p) dp + (d delta/d l) dl + (d delta/d eps) d eps,    d eps = -d delta/(d delta/d eps).

The compiled program is small, and independent of the values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from accountants.composition import dispatch
from accountants.composition.base import Composer
from accountants.composition.outcomes import are_tables, enumerate_outcomes
from accountants.composition.quantity import DeltaAt, EpsilonAt, Quantity
from accountants.composition.repeated import GuaranteeLike
from accountants.composition.tangents import (
    MAX_FORWARD,
    derivatives_forwards,
    join_moving,
    leaves_that_move,
    split_moving,
)
from accountants.composition.tilted_direction import PANELS, Direction, may_sample_densities, pad_losses
from accountants.dominating_pairs.base import as_float64, profile
from dpkernels.jax_on_use import Array
from dpkernels.numerics import Real, RealArray, elementwise_maximum, float_if_scalar, floating, namespace
from dpkernels.programs import QUICKLY_COMPILED, call_on_host, is_compiling
from dpkernels.pytrees import PyTree, pytree


def evaluate_outside_jit(guarantee: GuaranteeLike, quantity: type[Quantity], argument: Real) -> Real:
    """Return ``dispatch.evaluate_traceable``, with JAX numbers outside ``jit`` computed on the host.

    Of plain numbers of noise that is not even, the neighbour may change the direction from release to release
    (``adaptive``).
    """
    is_plain = namespace(argument, *jax.tree.leaves(guarantee)) is np
    if not is_plain and not is_compiling():
        return _value(quantity, guarantee, floating(jnp.asarray(argument)))
    if is_plain and guarantee.adaptive_profile is not None:
        bounds = [guarantee.adaptive_profile.bracket(quantity.name, float(number)) for number in np.ravel(argument)]
        if None not in bounds:
            return float_if_scalar(np.reshape([bound[1] for bound in bounds if bound], np.shape(argument))[()])
    return dispatch.evaluate_traceable(guarantee, quantity, argument)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _value(quantity: type[Quantity], guarantee: GuaranteeLike, argument: Real) -> RealArray:
    return _value_and_slopes(quantity, (), guarantee, argument)[0]


@partial(_value.defjvp, symbolic_zeros=True)
def _(quantity: type[Quantity], primals: PyTree, tangents: PyTree) -> tuple[RealArray, RealArray]:
    """Return the value and its derivative along the tangents of the numbers that move."""
    moved, moving = leaves_that_move(tangents)
    value, slopes = _value_and_slopes(quantity, moving, *primals)
    *parameters, argument = (leaf if moves else None for leaf, moves in zip(moved, moving, strict=True))
    change = jnp.zeros_like(value)
    if argument is not None:
        change = change + slopes.pop() * argument
    for slope, tangent in zip(slopes, (leaf for leaf in parameters if leaf is not None), strict=True):
        change = change + (slope * tangent).sum(tuple(range(value.ndim, slope.ndim)))
    return value, change.astype(value.dtype)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _value_and_slopes(
    quantity: type[Quantity], moving: tuple[bool, ...], guarantee: GuaranteeLike, argument: RealArray
) -> tuple[Array, list[Array]]:
    """Return the value, and its derivatives in the numbers that move, of the shapes of the value and the number."""
    numbers = jax.tree.leaves(guarantee)
    dtype = jnp.result_type(argument, *(number for number in numbers if isinstance(number, jax.Array)))
    shapes = [
        argument.shape,
        *(argument.shape + np.shape(number) for number, moves in zip(numbers, moving, strict=False) if moves),
    ]
    shapes += [argument.shape] if moving and moving[-1] else []

    def compute(numbers: RealArray) -> list[np.ndarray]:
        return _evaluate_numbers(quantity, moving, *as_float64(numbers))

    value, *slopes = call_on_host(
        compute, [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes], (guarantee, argument)
    )
    return value, slopes


@_value_and_slopes.defjvp
def _(*_: object) -> NoReturn:
    raise NotImplementedError(dispatch.NO_SECOND_DERIVATIVES)


def _evaluate_numbers(
    quantity: type[Quantity], moving: tuple[bool, ...], guarantee: GuaranteeLike, argument: np.ndarray
) -> list[np.ndarray]:
    """Return the values of plain numbers, and their slopes in the numbers that move; the last one is ``argument``."""
    if any(np.isnan(number).any() for number in jax.tree.leaves((guarantee, argument))):
        unknown = [
            number for number, moves in zip(jax.tree.leaves((guarantee, argument[()])), moving, strict=False) if moves
        ]
        return [np.full(argument.shape + np.shape(number), np.nan) for number in (0.0, *unknown)]
    with np.errstate(all="ignore"):
        value = np.asarray(dispatch.evaluate_traceable(guarantee, quantity, argument))
        if not any(moving):
            return [value]
        epsilon = value if quantity is EpsilonAt else argument
        rows = [
            _slopes(quantity, moving, guarantee, *pair) for pair in zip(epsilon.ravel(), value.ravel(), strict=True)
        ]
        columns = zip(*rows, strict=True)
        return [value, *(np.reshape(column, argument.shape + np.shape(column[0])) for column in columns)]


def _slopes(
    quantity: type[Quantity], moving: tuple[bool, ...], guarantee: GuaranteeLike, epsilon: float, value: float
) -> Sequence[RealArray]:
    """Return the slopes of delta at eps, or of the eps that is the value, in all numbers that move."""
    parameters = [number for number, moves in zip(jax.tree.leaves(guarantee), moving[:-1], strict=True) if moves]
    if quantity.is_at_end(value) or np.isnan(value):
        constant = np.nan if np.isnan(value) else 0.0
        return [np.full(np.shape(number), constant) for number in parameters] + [np.full((), constant)] * moving[-1]
    by_parameters, by_epsilon = delta_slopes(guarantee, moving[:-1], np.float64(epsilon))
    factor, by_argument = quantity.chain(by_epsilon)
    return [*(factor * by for by in by_parameters), *([np.asarray(factor * by_argument)] if moving[-1] else [])]


def delta_slopes(guarantee: GuaranteeLike, moving: tuple[bool, ...], epsilon: Real) -> tuple[list[np.ndarray], Real]:
    """Return the derivatives of delta(eps) in the numbers that move, and in eps, of plain float64 numbers."""
    parameters = _Parameters.from_guarantee(guarantee, moving)
    if len(guarantee.terms) == 1 and guarantee.terms[0].count == 1:
        return parameters.gradient(_release_delta, (), epsilon)
    counts = tuple(float(term.count) for term in guarantee.terms)
    directions = guarantee.neighbour_directions
    are_fixed_tables = are_tables(guarantee.terms) and not parameters.move_counts
    if are_fixed_tables and enumerate_outcomes(guarantee.terms, directions) is not None:
        return parameters.gradient(_delta_of_outcomes, counts, epsilon)
    return _composed_slopes(guarantee, parameters, epsilon)


def _release_delta(guarantee: GuaranteeLike, epsilon: Real) -> Real:
    return profile(guarantee.terms[0].release_pairs(), epsilon)


def _delta_of_outcomes(guarantee: GuaranteeLike, *counts_and_epsilon: Real) -> Array:
    """Return delta by enumeration, whose arrays depend on the counts."""
    *counts, epsilon = counts_and_epsilon
    terms = tuple(dataclasses.replace(term, count=count) for term, count in zip(guarantee.terms, counts, strict=True))
    directions = enumerate_outcomes(terms, guarantee.neighbour_directions)
    return elementwise_maximum([outcomes.delta(epsilon) for outcomes in directions or ()])


def _composed_slopes(guarantee: GuaranteeLike, parameters: _Parameters, epsilon: Real) -> tuple[list[np.ndarray], Real]:
    """Return the slopes of the neighbour direction with the largest delta."""
    directions = [Direction(DeltaAt(epsilon), *losses) for losses in guarantee.numeric_directions]
    answers = (
        [float(dispatch.answer_direction(direction)) for direction in directions] if len(directions) > 1 else [0.0]
    )
    number = int(np.argmax(answers))
    direction = directions[number]
    composer = dispatch.select_composer(direction)
    (prepared, _), pull = parameters.differentiate(_prepared, (number, may_sample_densities(guarantee)), composer)
    composed = composer.profile(prepared, direction)
    by_prepared, by_epsilon = composed.gradient(composed.evaluate(epsilon)[2])
    return pull(by_prepared), by_epsilon


def _prepared(guarantee: GuaranteeLike, number: int, may_sample: bool, composer: Composer) -> tuple[Real, Real]:
    """Return what is composed, which JAX differentiates, and the probability of an infinite loss."""
    return composer.prepare(pad_losses(guarantee.repeated_losses(PANELS, may_sample=may_sample)[number]))


@partial(pytree, static=("structure", "moving"))
@dataclass(frozen=True)
class _Parameters:
    """The numbers of a guarantee, some of which move."""

    numbers: tuple[np.ndarray, ...]
    structure: object
    moving: tuple[bool, ...]

    @classmethod
    def from_guarantee(cls, guarantee: GuaranteeLike, moving: tuple[bool, ...]) -> _Parameters:
        numbers, structure = jax.tree.flatten(guarantee)
        return cls(tuple(numbers), structure, moving)

    @property
    def moved(self) -> list[np.ndarray]:
        return split_moving(self.numbers, self.moving)[0]

    def guarantee(self, moved: list[Array]) -> GuaranteeLike:
        """Return the guarantee with these numbers in the place of those that move."""
        return join_moving(self.structure, self.moving, moved, split_moving(self.numbers, self.moving)[1])

    @property
    def move_counts(self) -> bool:
        moving = jax.tree.unflatten(self.structure, self.moving)
        return any(term.count for term in moving.terms)

    def gradient(
        self, function: Callable[..., Real], static: tuple[object, ...], epsilon: Real
    ) -> tuple[list[np.ndarray], Real]:
        """Return the derivatives of function(guarantee, *static, eps) in the numbers that move and in eps."""
        with jax.enable_x64(True):
            slopes = _gradient(self, function, static, epsilon)
        *by_moving, by_epsilon = map(np.asarray, slopes)
        return by_moving, by_epsilon

    def differentiate(
        self, function: Callable[..., PyTree], static: tuple[object, ...], *arguments: object
    ) -> tuple[PyTree, Callable[[PyTree], list[np.ndarray]]]:
        """Return the results (losses, infinite) of a function, and a map from derivatives in the losses.

        The map gives derivatives of (a function of the losses) + infinite in the numbers that move.
        """
        moved = self.moved
        forwards = sum(number.size for number in moved) <= MAX_FORWARD
        with jax.enable_x64(True):
            results, derivatives = (_forwards if forwards else _backwards)(self, function, static, arguments)
        results = jax.tree.map(np.asarray, results)

        def pull(by_losses: PyTree) -> list[np.ndarray]:
            cotangents = by_losses, np.ones_like(results[1])
            if forwards:
                sizes = [number.size for number in moved]
                pairs = zip(jax.tree.leaves(derivatives), jax.tree.leaves(cotangents), strict=True)
                terms = [np.asarray(tangents) * by for tangents, by in pairs]
                flat = sum(term.sum(tuple(range(1, term.ndim))) for term in terms)
                rows = np.split(flat, np.cumsum(sizes))[:-1]
                return [row.reshape(number.shape) for row, number in zip(rows, moved, strict=True)]
            with jax.enable_x64(True):
                return [np.asarray(slope) for slope in _pulled_back(derivatives, cotangents)]

        return results, pull


_jit = partial(jax.jit, static_argnames=("function", "static"), compiler_options=QUICKLY_COMPILED)


@_jit
def _gradient(
    parameters: _Parameters, function: Callable[..., Real], static: tuple[object, ...], epsilon: RealArray
) -> list[Array]:
    def value(moved: list[Array], epsilon: Real) -> Real:
        return function(parameters.guarantee(moved), *static, epsilon)

    by_moved, by_epsilon = jax.grad(value, (0, 1))(parameters.moved, epsilon)
    return [*by_moved, by_epsilon]


@_jit
def _forwards(
    parameters: _Parameters, function: Callable[..., PyTree], static: tuple[object, ...], arguments: tuple[object, ...]
) -> tuple[PyTree, PyTree]:
    """Return the results, and their derivatives in every number that moves, along a first axis."""
    return derivatives_forwards(
        lambda moved: function(parameters.guarantee(moved), *static, *arguments), parameters.moved
    )


@_jit
def _backwards(
    parameters: _Parameters, function: Callable[..., PyTree], static: tuple[object, ...], arguments: tuple[object, ...]
) -> tuple[PyTree, PyTree]:
    """Return the results, and the linear map from their derivatives to those in the numbers that move."""
    return jax.vjp(lambda moved: function(parameters.guarantee(moved), *static, *arguments), parameters.moved)


@jax.jit
def _pulled_back(back: Callable[[PyTree], PyTree], cotangents: PyTree) -> list[Array]:
    return back(cotangents)[0]
