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
from accountants.composition.deposits import profiles
from accountants.composition.terms import both_ways
from accountants.pairs.hockey_stick import profile
from accountants.profile import epsilon_of
from dpkernels.numerics import Real, RealArray, like

# Panels of quadrature that a report's varying losses are deposited from.
PANELS = 256
# c times the step is at most so large.
_STEEPEST = 0.25
_BISECTIONS, _NEWTON_STEPS = 24, 3
_TILTS = np.geomspace(1e-3, 1e5, 28)
# The relative error of eps at which floats no longer tell it.
_TOLD = 1e-5


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


def delta_at(parts: Parts, epsilon: Real) -> Real:
    """delta at one eps, by this transform; of three losses by ``trinomial``, of Gaussian noise alone by the contour."""
    if all(part.losses is None for part in parts):
        return characteristic.delta_at(parts, epsilon, characteristic.MIDDLE)[0]

    def by_transform(parts: Parts) -> Real:
        capped = _capped(parts, epsilon)
        still = jax.lax.stop_gradient((capped, epsilon))
        whole = fourier.composed(capped, _not_steep(still[0], characteristic.saddle(*still, _BISECTIONS)))
        return certain(capped) + jnp.exp(whole.log_delta(epsilon))

    if not _may_be_three(parts):
        found = by_transform(parts)
    else:
        c = characteristic.saddle(*jax.lax.stop_gradient((parts, epsilon)), _BISECTIONS)
        sure = certain(parts)
        found = _either(
            parts, c, lambda reports: sure + jnp.exp(trinomial.log_delta(reports, epsilon, c)), by_transform
        )
    return jnp.clip(found, 0.0, 1.0)


def _may_be_three(parts: Parts) -> bool:
    return len(parts) == 1 and parts[0].losses is not None and parts[0].losses.p.size <= trinomial.MOST_OUTCOMES


def _either(parts: Parts, c: Any, by_outcomes: Any, by_transform: Any) -> RealArray:
    """Outcome by outcome where it is reports of three losses, of which few enough matter."""
    (part,) = parts
    nodes: Any = part.losses
    reports, alone = trinomial.three(nodes, part.count)
    few = alone & trinomial.fits(*jax.lax.stop_gradient((reports, c)))
    return jax.lax.cond(
        few, lambda _, reports: by_outcomes(reports), lambda parts, _: by_transform(parts), parts, reports
    )


def epsilon_at(parts: Parts, delta: Any) -> RealArray:
    """eps at one delta; derivatives are implicit. inf where no eps will do, or floats do not tell which."""
    if all(part.losses is None for part in parts):
        return characteristic.epsilon_at(parts, delta, characteristic.MIDDLE)[0]
    sure = certain(parts)
    if not _may_be_three(parts):
        return jnp.where(delta > sure, _by_transform(parts, delta), jnp.inf)
    target = jnp.log(jnp.maximum(delta - sure, jnp.finfo(delta.dtype).tiny))
    c, guess = characteristic.saddle_of_delta(*jax.lax.stop_gradient((parts, target)), _BISECTIONS)
    found = _either(
        parts,
        c,
        lambda reports: trinomial.epsilon_at(reports, target, c, guess),
        lambda parts: _by_transform(parts, delta),
    )
    return jnp.where(delta > sure, found, jnp.inf)


def _by_transform(parts: Parts, delta: Any) -> RealArray:
    """``epsilon_at``; inf where floats do not tell."""
    possible = jnp.maximum(delta - certain(parts), jnp.finfo(delta.dtype).tiny)
    parts = _capped(parts, _at_most(*jax.lax.stop_gradient((parts, jnp.log(possible)))))
    sure = certain(parts)
    target = jnp.log(jnp.maximum(delta - sure, jnp.finfo(delta.dtype).tiny))
    still = jax.lax.stop_gradient((parts, target))
    c = _not_steep(still[0], characteristic.saddle_of_delta(*still, _BISECTIONS)[0])
    whole = fourier.composed(parts, c)
    fixed, goal = jax.lax.stop_gradient((whole, target))
    near = _located(fixed, goal)
    enough = near <= 0
    # Where there is nothing to look for the middle of the window has a slope.
    eps = jnp.where(enough | (delta <= sure), fixed.start + fixed.step * fourier.SIZE / 2, near)

    def newton(_: int, state: tuple[Real, Real, Real]) -> Any:
        eps, value, slope = state
        eps = eps - jnp.clip((value - goal) / slope, -fixed.step, fixed.step)
        return eps, *_log_slope(fixed, eps)

    eps, value, slope = jax.lax.fori_loop(0, _NEWTON_STEPS + 1, newton, (eps, goal, -jnp.ones_like(eps)))
    # The tilted masses' errors are about n units; delta and its slope are of them.
    noise = sum(part.count for part in parts) * jnp.finfo(eps.dtype).eps
    tilted_slope = -slope * jnp.exp(value - fixed.log_scale + fixed.tilt * eps)
    told = noise < _TOLD * tilted_slope * jnp.maximum(jnp.abs(eps), fixed.step)
    eps = eps - (whole.log_delta(eps) - target) / slope
    return jnp.where((delta > sure) & (told | enough), jnp.where(enough, 0.0, jnp.maximum(eps, 0.0)), jnp.inf)


def _log_slope(whole: fourier.Sum, eps: Real) -> tuple[RealArray, RealArray]:
    return jax.jvp(whole.log_delta, (eps,), (jnp.ones_like(eps),))


def _located(whole: fourier.Sum, goal: RealArray) -> Real:
    """The eps at which delta without its correction is the goal: from the first grid point, from the top, above it."""
    T, B = profiles(whole.g[::-1], whole.tilt, whole.step)
    loss = whole.start + whole.step * jnp.arange(fourier.SIZE, dtype=T.dtype)[::-1]
    wanted = goal - whole.log_scale + whole.tilt * loss
    above = jnp.exp(jnp.minimum(wanted, 600.0)) < T
    top = jnp.maximum(above.argmax() - 1, 0)
    share = (T[top] + B[top] - jnp.exp(wanted[top])) / B[top]
    found = loss[top] + jnp.clip(jnp.log(jnp.maximum(share, 1e-300)), -whole.step, 0.0)
    return jnp.where(above.any(), found, loss[-1])


# How each is read, and the panels that its nodes are on.
_READINGS: dict[str, tuple[Callable[[Parts, Any], Any], int]] = {
    "delta": (delta_at, PANELS),
    "epsilon": (epsilon_at, PANELS),
    "renyi": (characteristic.renyi, 0),
}


@partial(jax.jit, static_argnames=("what",))
def values_of(made: Any, at: RealArray, what: str) -> Real:
    """The largest value over both directions, point by point."""
    read, panels = _READINGS[what]
    directions = jax.tree.map(lambda *ways: jnp.stack(jnp.broadcast_arrays(*ways)), *made.directions(panels))

    def one(point: Any) -> Any:
        return jax.lax.map(lambda parts: read(parts, point), directions).max(0)

    return one(at) if jnp.ndim(at) == 0 else jax.lax.map(one, at.ravel()).reshape(at.shape)


@partial(jax.jit, static_argnames=("what",))
def values_of_one_or_more(made: Any, at: jax.Array, what: str) -> Real:
    """``values_of``; the exact profile of one report."""
    (term,) = made.terms
    exact = {"delta": profile, "epsilon": epsilon_of}[what]

    def single(made: Any) -> Real:
        return exact(both_ways(made.terms[0].pairs), at).astype(at.dtype)

    return jax.lax.cond(term.count == 1, single, lambda made: values_of(made, at, what), made)
