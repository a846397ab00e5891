"""delta at eps and eps at delta, by whatever says it best: outcome by outcome, by transform, or on the contour.

The contour is for Gaussian noise alone, where it is exact but for rounding; ``trinomial`` for reports of three losses
of which few enough counts matter; ``fourier`` for all others.

Derivatives are implicit, in one rule: those of delta at the root, of the direction that has it, which cost about what
two evaluations do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from accountants.composition import characteristic, fourier, trinomial
from accountants.composition.characteristic import Parts, certain
from accountants.composition.terms import one_release
from accountants.pairs.hockey_stick import profile
from accountants.profile import epsilon_of
from dpkernels.batching import some_at_a_time
from dpkernels.numerics import Real, RealArray, like

# Panels of quadrature that a report's varying losses are deposited from.
PANELS = 256
# So many values are read together on a processor.
_TOGETHER = 8
# c times the step is at most so large.
_STEEPEST = 0.25
_BISECTIONS, _STEPS = 24, 60
# How near the goal log delta is before the last of Newton's steps, as a power of a rounding: 1e-9, or 1e-4 in 32 bits.
_NEAR = 0.575
_TILTS = np.geomspace(1e-3, 1e5, 28)


def _not_steep(parts: Parts, c: Real) -> RealArray:
    """A tilt that is not steep on the grid."""
    least = jnp.stack([fourier.finest(part, c, part.moments(c)[0]) for part in parts]).max()
    return jnp.where(least > 0, jnp.minimum(c, _STEEPEST / jnp.where(least > 0, least, 1.0)), c)


def _capped(parts: Parts, epsilon: Real) -> Parts:
    """The parts without losses that are large next to eps, which on samples may be far out: no grid could hold both.

    All others together are the sum of the least ones at least.
    """
    least = sum(part.count * jnp.maximum(fourier.largest(part, -1), 0.0) for part in parts)
    cap = jax.lax.stop_gradient(epsilon + least + 1e-9)
    return tuple(
        part if part.losses is None else dataclasses.replace(part, losses=part.losses.capped(cap)) for part in parts
    )


def _at_most(parts: Parts, log_delta: Real) -> RealArray:
    """A bound of eps from above: delta(eps) <= e^(K(c) - c eps) c^c / (1 + c)^(c + 1) at every c > 0."""
    c = like(_TILTS, log_delta)
    moment = sum(part.count * part.log_moment(c) for part in parts)
    return jnp.maximum(((moment + c * jnp.log(c) - (c + 1) * jnp.log1p(c) - log_delta) / c).min(), 0.0)


class _Reading(NamedTuple):
    """What is known of one direction: eps or delta, and derivatives of delta in its parts and in eps, or None."""

    found: Any
    by_parts: Any
    by_epsilon: Any


def _read(what: str, sloped: bool, parts: Parts, at: Any, best: Any) -> _Reading:
    """delta at one eps, or the least eps at one delta: inf if there is none or floats do not tell it.

    What is not above ``best`` is not looked for further.
    """
    floor = jnp.where((best > 0) & (best < jnp.inf), best, 0.0)
    bound = at if what == "delta" else _at_most(parts, _log_finite(at, certain(parts)))
    (capped, sure), back = jax.vjp(lambda parts: _finite(parts, bound), parts)
    nothing = jax.tree.map(jnp.zeros_like, (capped, at))
    if what == "delta":
        c, goal, guess = characteristic.saddle(capped, at, _BISECTIONS), None, at
    else:
        goal = _log_finite(at, sure)
        c, guess = characteristic.saddle_of_delta(capped, goal, _BISECTIONS)

    def read(curve: Any, to_parts: Callable[[Any], Parts] = lambda parts: parts) -> _Reading:
        """From log delta of finite losses as a curve, and the way from its derivatives to those in the parts."""
        if goal is None:
            value, _, seen = curve.read(at)
            found = jnp.clip(sure + jnp.exp(value), 0.0, 1.0)
        else:
            start = jnp.maximum(guess, floor)
            noise = sum(part.count for part in parts) * jnp.finfo(at.dtype).eps  # About the relative error of delta.
            eps, value, slope, is_found, seen = _crossing(curve, goal, start, floor, noise)
            told = (is_found & curve.tells(eps, value, slope, noise)) | ((eps <= floor) & (value <= goal))
            found = jnp.where(told & (at > sure), eps, jnp.inf)
        if not sloped:
            return _Reading(found, None, None)

        def slopes() -> tuple[Parts, Any]:
            by_curve, by_epsilon = curve.slopes(seen)
            return to_parts(by_curve), by_epsilon

        return _Reading(found, *_where(~(found <= best), slopes, nothing))

    def by_transform() -> _Reading:
        return read(fourier.composed(capped, _not_steep(capped, c)))

    if _may_be_three(parts):

        def three(parts: Any) -> Any:
            return trinomial.three(parts[0].losses, parts[0].count - np.arange(1 + sloped), c)

        reports, to_parts, alone = jax.vjp(three, capped, has_aux=True)
        few = alone & trinomial.fits(reports)
        none = _Reading(0.0 * c, *(nothing if sloped else (None, None)))
        none = _where(~few, by_transform, none)
        found = _where(few, lambda: read(reports, lambda by_curve: to_parts(by_curve)[0]), none)
    else:
        found = by_transform()
    return found._replace(by_parts=back((found.by_parts, jnp.ones_like(sure)))[0]) if sloped else found


def _log_finite(delta: Any, sure: Any) -> Any:
    """log of what delta leaves for finite losses."""
    return jnp.log(jnp.maximum(delta - sure, jnp.finfo(delta.dtype).tiny))


def _finite(parts: Parts, bound: Any) -> tuple[Parts, Any]:
    """What is summed up to eps of the bound, and the probability of what is left out."""
    parts = _capped(parts, bound)
    return parts, certain(parts)


def _may_be_three(parts: Parts) -> bool:
    return (
        len(parts) == 1 and parts[0].losses is not None and parts[0].losses.p.shape[-1] <= trinomial.MOST_OUTCOMES + 1
    )


def _where(needed: Any, compute: Callable[[], Any], otherwise: Any) -> Any:
    """What is computed where it is needed. Under vmap lax.cond computes both sides for all; a loop has no turn then."""
    state = needed, otherwise
    return jax.lax.while_loop(lambda state: state[0], lambda _: (jnp.zeros_like(needed), compute()), state)[1]


def _crossing(curve: Any, goal: Any, start: Any, floor: Any, noise: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Where a falling function is the goal, or the floor if it is less there; its value and slope next to that.

    Whether it was found, too: to a rounding of the place, or of the value; and what the curve has seen there.

    Newton's steps; one that leaves what is known to hold the root goes half-way, or twice as far.
    """
    unit = jnp.finfo(goal.dtype).eps
    near = unit**_NEAR + noise

    def found(eps: Any, value: Any, slope: Any) -> Any:
        rounding = 2 * unit * jnp.maximum(-slope, 0.0) * eps
        return jnp.isfinite(value) & (jnp.abs(value - goal) <= near + rounding)

    def unfinished(state: Any) -> Any:
        k, eps, value, slope, low, high, _ = state
        done = found(eps, value, slope) | ((eps <= floor) & (value <= goal))
        return (k < _STEPS) & ~done & ((high == jnp.inf) | (high - low > unit * high))

    def newton(state: Any) -> Any:
        """To the next trial from what is known of this one; of the first one nothing is."""
        k, eps, value, slope, low, high, _ = state
        low, high = jnp.where(value > goal, eps, low), jnp.where(value > goal, high, eps)
        low, high = jnp.where(k > 0, low, floor - 1), jnp.where(k > 0, high, jnp.inf)
        new = jnp.maximum(eps - (value - goal) / jnp.where(slope < 0, slope, -1.0), floor)
        middle = jnp.where(low < floor, floor, jnp.where(high == jnp.inf, 2 * low + 1e-3, (low + high) / 2))
        new = jnp.where((new > low) & (new < high) & (slope < 0), new, middle)
        new = jnp.where(k > 0, new, start)
        value, slope, seen = curve.read(new)
        return k + 1, new, value, slope, low, high, seen

    none = jnp.full_like(goal, jnp.inf)
    state = jnp.zeros_like(goal, int), start, none, -none, floor - 1, none, curve.nothing()
    _, eps, value, slope, low, high, seen = jax.lax.while_loop(unfinished, newton, state)
    last = jnp.maximum(eps - (value - goal) / jnp.where(slope < 0, slope, -1.0), floor)
    is_found = found(eps, value, slope)
    # Halved to its end, it is on the safe side.
    ended = jnp.where(value <= goal, eps, high)
    return jnp.where(is_found, last, ended), value, slope, is_found | (high - low <= 4 * unit * high), seen


def _largest(what: str, sloped: bool, directions: Parts, at: Any) -> tuple[Any, _Reading]:
    """(which direction has the largest value, what is known of it): eps is looked for above that of the one before."""

    def next_one(best: Any, way: Any) -> tuple[Any, None]:
        number, parts = way
        one = _read(what, sloped, parts, at, best[1].found)
        larger = ~(one.found <= best[1].found) & ~jnp.isnan(best[1].found)  # NaN stays, in either.
        return jax.tree.map(partial(jnp.where, larger), (number, one), best), None

    numbers = jnp.arange(jax.tree.leaves(directions)[0].shape[0])
    slopes = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), directions), 0.0 * at
    none = _Reading(0.0 * at - 1, *(slopes if sloped else (None, None)))
    return jax.lax.scan(next_one, (0 * numbers[0], none), (numbers, directions))[0]


@cache
def _reading(what: str, sloped: bool) -> Callable[[Parts, Any], tuple[Any, _Reading]]:
    """``_largest``. Of reports of three losses some are summed up by outcomes and others on the grid: one at a time."""
    return some_at_a_time(
        partial(_largest, what, sloped), lambda directions, _: 1 if _may_be_three(directions) else _TOGETHER
    )


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _value(what: str, directions: Parts, at: Any) -> Any:
    """The largest delta at eps, or eps at delta, over the directions."""
    return _reading(what, False)(directions, at)[1].found


@_value.defjvp
def _value_jvp(what: str, primals: Any, tangents: Any) -> tuple[Any, Any]:
    """Of what moves along delta(eps) of the direction that has it."""
    number, (found, by_parts, by_epsilon) = _reading(what, True)(*primals)
    if what == "epsilon":
        possible = (found > 0) & (found < jnp.inf) & (by_epsilon < 0)
        factor, by_at = -1 / jnp.where(possible, by_epsilon, 1.0), -jnp.ones_like(found)
    else:
        possible = ~((found <= 0) | (found >= 1))
        factor, by_at = jnp.ones_like(found), jnp.where(possible, by_epsilon, 0.0)
    # A NaN among the parameters, which no comparison sees, stays.
    unknown = sum(jnp.isnan(leaf.max()) for leaf in jax.tree.leaves(primals)) > 0
    factor = jnp.where(unknown, jnp.nan, jnp.where(possible, factor, 0.0))
    along = jax.tree.map(lambda by, moved: (jnp.where(possible, by, 0.0) * moved[number]).sum(), by_parts, tangents[0])
    return found, factor * (sum(jax.tree.leaves(along)) + by_at * tangents[1])


def _composed(what: str, directions: Parts, at: Any) -> Any:
    """Gaussian noise alone has one direction, and its contour."""
    at = jnp.minimum(at, jnp.finfo(at.dtype).max ** 0.5)  # Of an infinite eps, too.
    if any(part.losses is not None for part in directions):
        return _value(what, directions, at)
    read = {"delta": characteristic.delta_at, "epsilon": characteristic.epsilon_at}[what]
    return read(jax.tree.map(lambda leaf: leaf[0], directions), at, characteristic.MIDDLE)[0]


def _renyi(directions: Parts, order: Any) -> Any:
    return jax.lax.map(lambda parts: characteristic.renyi(parts, order), directions).max(0)


# How each is read, and the panels that its nodes are on.
_READINGS: dict[str, tuple[Callable[[Parts, Any], Any], int]] = {
    "delta": (partial(_composed, "delta"), PANELS),
    "epsilon": (partial(_composed, "epsilon"), PANELS),
    "renyi": (_renyi, 0),
}


@partial(jax.jit, static_argnames=("what",))
def values_of(made: Any, at: RealArray, what: str) -> Real:
    """The largest value over both directions, point by point."""
    read, panels = _READINGS[what]
    ways = made.directions(panels)
    at = at.astype(jnp.result_type(at, *jax.tree.leaves(ways)))
    directions: Parts = jax.tree.map(lambda *leaves: jnp.stack(jnp.broadcast_arrays(*leaves)).astype(at.dtype), *ways)
    one = partial(read, tuple(part.with_room() for part in directions))
    return one(at) if jnp.ndim(at) == 0 else jax.lax.map(one, at.ravel()).reshape(at.shape)


@jax.jit
def certain_of(made: Any) -> jax.Array:
    """The probability that some loss is infinite, in the direction in which it is larger."""
    return jnp.stack([jnp.asarray(certain(parts)) for parts in made.directions()]).max()


@partial(jax.jit, static_argnames=("what",))
def values_of_one_or_more(made: Any, at: jax.Array, what: str) -> Real:
    """``values_of``; the exact profile of one release."""
    (term,) = made.terms
    exact = {"delta": profile, "epsilon": epsilon_of}[what]

    def single(made: Any) -> Real:
        return exact(one_release(made.terms[0]), at).astype(at.dtype)

    return jax.lax.cond(term.count == 1, single, lambda made: values_of(made, at, what).astype(at.dtype), made)
