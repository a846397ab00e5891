"""delta at eps and eps at delta, by whatever says it best: outcome by outcome, by transform, or on the contour.

The contour is for Gaussian noise alone, where it is exact but for rounding; ``trinomial`` for reports of three losses
of which few enough counts matter; ``fourier`` for all others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accountants.composition import characteristic, fourier, trinomial
from accountants.composition.characteristic import Parts, certain
from accountants.composition.terms import both_ways
from accountants.pairs.hockey_stick import profile
from accountants.profile import epsilon_of
from dpkernels.numerics import like

# Panels of quadrature that a report's varying losses are deposited from.
PANELS = 256
# c times the step is at most so large.
_STEEPEST = 0.25
_BISECTIONS, _STEPS = 24, 60
# How near the goal log delta is before the last of Newton's steps, in units of rounding.
_PRECISE = 4096
_TILTS = np.geomspace(1e-3, 1e5, 28)
# The relative error of eps at which floats no longer tell it.
_TOLD = 1e-5


def _not_steep(parts: Parts, c: Any) -> Any:
    """A tilt that is not steep on the grid."""
    least = jnp.stack([fourier.finest(part, c, part.moments(c)[0]) for part in parts]).max()
    return jnp.where(least > 0, jnp.minimum(c, _STEEPEST / jnp.where(least > 0, least, 1.0)), c)


def _capped(parts: Parts, epsilon: Any) -> Parts:
    """The parts without losses that are large next to eps, which on samples may be far out: no grid could hold both.

    All others together are the sum of the least ones at least.
    """
    least = sum(part.count * jnp.maximum(fourier.largest(part, -1), 0.0) for part in parts)
    cap = jax.lax.stop_gradient(epsilon + least + 1e-9)
    return tuple(
        part if part.losses is None else dataclasses.replace(part, losses=part.losses.capped(cap)) for part in parts
    )


def _at_most(parts: Parts, log_delta: Any) -> Any:
    """A bound of eps from above: delta(eps) <= e^(K(c) - c eps) c^c / (1 + c)^(c + 1) at every c > 0."""
    c = like(_TILTS, log_delta)
    moment = sum(part.count * part.log_moment(c) for part in parts)
    return jnp.maximum(((moment + c * jnp.log(c) - (c + 1) * jnp.log1p(c) - log_delta) / c).min(), 0.0)


def delta_at(parts: Parts, epsilon: Any) -> tuple[Any, Any]:
    """(delta at one eps, the tilt that it is precise with); no derivatives."""
    parts = _capped(parts, epsilon)
    c = characteristic.saddle(parts, epsilon, _BISECTIONS)
    finite = _chosen(
        parts,
        c,
        lambda reports: trinomial.delta(reports, epsilon, c)[0],
        lambda parts: jnp.exp(fourier.composed(parts, _not_steep(parts, c)).log_delta(epsilon)),
        jnp.zeros_like(c),
    )
    return jnp.clip(certain(parts) + finite, 0.0, 1.0), c


def epsilon_at(parts: Parts, delta: Any, floor: Any) -> tuple[Any, Any]:
    """(the least eps >= ``floor`` at one delta, the tilt); inf where there is none, or floats do not tell which."""
    tiny = jnp.finfo(delta.dtype).tiny
    parts = _capped(parts, _at_most(parts, jnp.log(jnp.maximum(delta - certain(parts), tiny))))
    sure = certain(parts)
    target = jnp.log(jnp.maximum(delta - sure, tiny))
    c, guess = characteristic.saddle_of_delta(parts, target, _BISECTIONS)
    near = target, jnp.maximum(guess, floor), floor

    def by_outcomes(reports: Any) -> Any:
        def value_and_slope(eps: Any) -> tuple[Any, Any]:
            value, further = trinomial.delta(reports, eps, c)
            return _log(value), -further / jnp.where(value > 0, value, 1.0)

        return _crossing(value_and_slope, *near, _noise(parts))[0]

    def by_transform(parts: Parts) -> Any:
        whole = fourier.composed(parts, _not_steep(parts, c))
        eps, value, slope = _crossing(whole.value_and_slope, *near, _noise(parts))
        # The tilted masses' errors are about n units; delta and its slope are of them.
        tilted_slope = -slope * jnp.exp(value - whole.log_scale + whole.tilt * eps)
        told = _noise(parts) < _TOLD * tilted_slope * jnp.maximum(jnp.abs(eps), whole.step)
        return jnp.where(told | (eps <= floor), eps, jnp.inf)

    found = _chosen(parts, c, by_outcomes, by_transform, jnp.full_like(c, jnp.inf))
    return jnp.where(delta > sure, found, jnp.inf), c


def _noise(parts: Parts) -> Any:
    """About the relative error of delta."""
    return sum(part.count for part in parts) * jnp.finfo(parts[0].mu.dtype).eps


def _log(value: Any) -> Any:
    return jnp.where(value > 0, jnp.log(jnp.where(value > 0, value, 1.0)), jnp.where(value <= 0, -jnp.inf, value))


def _crossing(value_and_slope: Any, goal: Any, start: Any, floor: Any, noise: Any) -> tuple[Any, Any, Any]:
    """Where a falling function is the goal, or the floor if it is less there; its value and slope next to that.

    Newton's steps; one that leaves what is known to hold the root goes half-way, or twice as far.
    """
    near = _PRECISE * jnp.finfo(goal.dtype).eps + noise

    def done(eps: Any, value: Any) -> Any:
        return (jnp.abs(value - goal) <= near) | ((eps <= floor) & (value <= goal))

    def unfinished(state: Any) -> Any:
        k, eps, value, _, low, high = state
        apart = (high == jnp.inf) | (high - low > jnp.finfo(goal.dtype).eps * high)
        return (k < _STEPS) & ~done(eps, value) & apart

    def newton(state: Any) -> Any:
        k, eps, value, slope, low, high = state
        low, high = jnp.where(value > goal, eps, low), jnp.where(value > goal, high, eps)
        new = jnp.maximum(eps - (value - goal) / jnp.where(slope < 0, slope, -1.0), floor)
        middle = jnp.where(low < floor, floor, jnp.where(high == jnp.inf, 2 * low + 1e-3, (low + high) / 2))
        new = jnp.where((new > low) & (new < high) & (slope < 0), new, middle)
        return k + 1, new, *value_and_slope(new), low, high

    state = jnp.zeros_like(goal, int), start, *value_and_slope(start), floor - 1, jnp.full_like(goal, jnp.inf)
    _, eps, value, slope, *_ = jax.lax.while_loop(unfinished, newton, state)
    last = eps - (value - goal) / jnp.where(slope < 0, slope, -1.0)
    return jnp.where(jnp.abs(value - goal) <= near, jnp.maximum(last, floor), eps), value, slope


def _chosen(parts: Parts, c: Any, by_outcomes: Any, by_transform: Any, none: Any) -> Any:
    """Outcome by outcome where it is reports of three losses, of which few enough matter; else by transform."""
    if not _may_be_three(parts):
        return by_transform(parts)
    (part,) = parts
    nodes: Any = part.losses
    reports, alone = trinomial.three(nodes, part.count)
    few = alone & trinomial.fits(reports, c)
    return _where(few, lambda: by_outcomes(reports), _where(~few, lambda: by_transform(parts), none))


def _where(needed: Any, compute: Callable[[], Any], otherwise: Any) -> Any:
    """What is computed where it is needed. Under vmap lax.cond computes both sides for all; a loop has no turn then."""
    return jax.lax.while_loop(lambda state: state[0], lambda _: (jnp.zeros_like(needed), compute()), (needed, otherwise))[
        1
    ]


def _may_be_three(parts: Parts) -> bool:
    """Whether it may be; a cap makes one outcome more."""
    return len(parts) == 1 and parts[0].losses is not None and parts[0].losses.p.size <= trinomial.MOST_OUTCOMES + 1


def _slopes(parts: Parts, epsilon: Any, c: Any) -> tuple[Parts, Any]:
    """Derivatives of delta in all of the parts, and in eps."""

    def summed(parts: Parts, epsilon: Any) -> Any:
        parts = _capped(parts, epsilon)
        return certain(parts) + jnp.exp(fourier.composed(parts, _not_steep(parts, c)).log_delta(epsilon))

    def counted(parts: Parts) -> tuple[Any, Any]:
        capped = _capped(parts, epsilon)
        reports, alone = trinomial.three(capped[0].losses, capped[0].count)
        return (reports, certain(capped)), alone

    def by_transform() -> tuple[Parts, Any]:
        return jax.grad(summed, argnums=(0, 1))(parts, epsilon)

    if not _may_be_three(parts):
        return by_transform()
    (reports, sure), back, alone = jax.vjp(counted, parts, has_aux=True)
    few = alone & trinomial.fits(reports, c)

    def by_outcomes() -> tuple[Parts, Any]:
        by_reports, by_epsilon = trinomial.slopes(reports, epsilon, c)
        return back((by_reports, jnp.ones_like(sure)))[0], by_epsilon

    none = jax.tree.map(jnp.zeros_like, (parts, epsilon))
    return _where(few, by_outcomes, _where(~few, by_transform, none))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _held(what: str, parts: Parts, epsilon: Any, delta: Any, c: Any) -> Any:
    """eps or delta, which belong together: as it varies with the parts and the other. The tilt has no derivative."""
    return {"epsilon": epsilon, "delta": delta}[what]


@_held.defjvp
def _held_jvp(what: str, primals: Any, tangents: Any) -> tuple[Any, Any]:
    parts, epsilon, delta, c = primals
    found = _held(what, *primals)
    epsilon = jnp.where(jnp.isfinite(epsilon), found if what == "epsilon" else epsilon, 1.0)
    by_parts, by_epsilon = _slopes(parts, epsilon, c)
    if what == "epsilon":
        possible = (found > 0) & (found < jnp.inf) & (by_epsilon < 0)
        factor, at = -1 / jnp.where(possible, by_epsilon, 1.0), -tangents[2]
    else:
        possible = ~((found <= 0) | (found >= 1))
        factor, at = jnp.ones_like(found), by_epsilon * tangents[1]
    # A NaN among the parameters, which no comparison sees, stays.
    unknown = jnp.isnan(certain(parts) + characteristic.slopes(parts, c)[0])
    factor = jnp.where(unknown, jnp.nan, jnp.where(possible, factor, 0.0))
    along = jax.tree.map(lambda by, moved: (jnp.where(possible, by, 0.0) * moved).sum(), by_parts, tangents[0])
    return found, factor * (sum(jax.tree.leaves(along)) + at)


def _delta(directions: Parts, epsilon: Any) -> Any:
    """The largest delta over the directions."""
    if _gaussian(directions):
        return _by_contour(characteristic.delta_at, directions, epsilon)
    at = jax.lax.stop_gradient(epsilon)
    delta, c = jax.lax.map(lambda parts: delta_at(parts, at), jax.lax.stop_gradient(directions))
    parts, found, c = _largest(delta, (directions, delta, c))
    return _held("delta", parts, epsilon, found, c)


def _epsilon(directions: Parts, delta: Any) -> Any:
    """The largest eps over the directions: of the second one it is looked for above that of the first."""
    if _gaussian(directions):
        return _by_contour(characteristic.epsilon_at, directions, delta)

    def next_one(most: Any, parts: Parts) -> tuple[Any, Any]:
        eps, c = epsilon_at(parts, jax.lax.stop_gradient(delta), jnp.where(most < jnp.inf, most, 0.0))
        return jnp.maximum(most, eps), (eps, c)

    _, (eps, c) = jax.lax.scan(next_one, jnp.zeros_like(delta), jax.lax.stop_gradient(directions))
    parts, found, c = _largest(eps, (directions, eps, c))
    return _held("epsilon", parts, found, delta, c)


def _gaussian(directions: Parts) -> bool:
    """Whether it is Gaussian noise alone, whose directions are one."""
    return all(part.losses is None for part in directions)


def _by_contour(read: Callable[..., Any], directions: Parts, at: Any) -> Any:
    return read(jax.tree.map(lambda leaf: leaf[0], directions), at, characteristic.MIDDLE)[0]


def _renyi(directions: Parts, order: Any) -> Any:
    return jax.lax.map(lambda parts: characteristic.renyi(parts, order), directions).max(0)


def _largest(by: Any, each: Any) -> Any:
    """That of the direction with the largest value."""
    way = by.argmax()
    return jax.tree.map(lambda leaf: leaf[way], each)


# How each is read, and the panels that its nodes are on.
_READINGS: dict[str, tuple[Callable[[Parts, Any], Any], int]] = {
    "delta": (_delta, PANELS),
    "epsilon": (_epsilon, PANELS),
    "renyi": (_renyi, 0),
}


@partial(jax.jit, static_argnames=("what",))
def values_of(made: Any, at: Any, what: str) -> Any:
    """The largest value over both directions, point by point."""
    read, panels = _READINGS[what]
    directions = jax.tree.map(partial(_stacked, at.dtype), *made.directions(panels))

    def one(point: Any) -> Any:
        return read(directions, point)

    return one(at) if jnp.ndim(at) == 0 else jax.lax.map(one, at.ravel()).reshape(at.shape)


def _stacked(kind: Any, *ways: Any) -> Any:
    """Floats: a whole count has no derivative of its own."""
    whole = jnp.stack(jnp.broadcast_arrays(*ways))
    return whole if jnp.issubdtype(whole.dtype, jnp.floating) else whole.astype(kind)


@partial(jax.jit, static_argnames=("what",))
def values_of_one_or_more(made: Any, at: Any, what: str) -> Any:
    """``values_of``; the exact profile of one report."""
    (term,) = made.terms
    exact = {"delta": profile, "epsilon": epsilon_of}[what]

    def single(made: Any) -> Any:
        return exact(both_ways(made.terms[0].pairs), at).astype(at.dtype)

    return jax.lax.cond(term.count == 1, single, lambda made: values_of(made, at, what), made)
