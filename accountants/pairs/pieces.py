"""The pieces of a shifted pair: between the knots of f and of its shift the loss is affine.

p = f,  q = f(. - D),  l = log p - log q.  With log f a polynomial of degree d <= 2 between knots, its second
derivative the same everywhere,  l(x) = l(at) + slope (x - at)  on each piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from accountants.pairs.worst import Shifted
from dpkernels.numerics import floating
from dpkernels.pytrees import pytree


@pytree
@dataclass(frozen=True)
class Pieces:
    """One entry a piece, left to right; arrays of one length.

    Attributes:
        left: lower end; -inf for the first, but for laws of steps.
        right: upper end; inf for the last, but for laws of steps.
        width: right - left, and 0 where the ends are equal but for rounding.
        at: where log_p and loss are given, the formulas of the piece being extended to there if it is outside.
        log_p: log density of p there; -inf for a piece without mass.
        rise: derivative of log p there.
        loss: l there; inf where only q is 0, -inf where only p is.
        slope: of l.
        weight_p: p relative to ``noise.law``.
        weight_q: q relative to the shift of ``noise.law``.
    """

    left: Any
    right: Any
    width: Any
    at: Any
    log_p: Any
    rise: Any
    loss: Any
    slope: Any
    weight_p: Any
    weight_q: Any


def split(pair: Shifted) -> Pieces:
    """The pieces; the whole line, but for laws of steps, where it is between the outermost knots kept."""
    noise, D, law = pair.noise, pair.shift, pair.noise.law
    left, right = _ends(pair)
    width = width_between(left, right, D)
    inner = _inside(left, right, D)
    weight_p, weight_q = noise.weight(inner), noise.weight(inner - D)
    # For one Gaussian the loss is that of the law, D (D/2 - x)/s^2, plus a step: no cancellation if taken at D/2.
    at = D / 2 + 0 * inner if law.degree == 2 else inner
    rise = law.score(at)
    slope = law.score(D + 0 * at) if law.degree == 2 else rise - law.score(at - D)
    log_p = law.log_prob(at)
    loss = log_p - law.log_prob(at - D) + _log(weight_p) - _log(weight_q)
    # Where neither is possible the loss is that of as little of both: derivatives in the weight are taken there.
    both = (weight_p > 0) == (weight_q > 0)
    loss = jnp.where(both, loss, jnp.where(weight_p > 0, jnp.inf, -jnp.inf))
    log_p = jnp.where(weight_p > 0, log_p + _log(weight_p), -jnp.inf)
    slope = jnp.where(both, slope, 0.0)
    return Pieces(left, right, width, at, log_p, rise, loss, slope, weight_p, weight_q)


def _ends(pair: Shifted) -> tuple[Any, Any]:
    """Neighbouring knots of f and of its shift."""
    knots = knots_of(pair)
    ends = jnp.sort(jnp.concatenate([knots, knots + pair.shift]))
    if pair.noise.law.degree == 0:
        return ends[:-1], ends[1:]
    infinity = jnp.full(1, jnp.inf, ends.dtype)
    return jnp.concatenate([-infinity, ends]), jnp.concatenate([ends, infinity])


def knots_of(pair: Shifted) -> Any:
    """Knots of f; of a staircase as many periods of steps as the pair keeps."""
    noise: Any = pair.noise
    law = noise.law
    points = [floating(jnp.asarray(k)) for k in (law.knots if law.degree else law.steps(pair.periods), *noise.edges)]
    return jnp.concatenate([jnp.atleast_1d(k) for k in points])


def width_between(left: Any, right: Any, D: Any) -> Any:
    """Knots may meet but for rounding: what is between them is no piece, its loss would be that of no real one."""
    rounding = 4 * jnp.finfo(left.dtype).eps * (jnp.abs(left) + jnp.abs(right) + jnp.abs(D))
    sliver = jnp.isfinite(rounding) & (right - left <= rounding)
    return jnp.where(sliver, 0.0, right - left)


def _inside(left: Any, right: Any, D: Any) -> Any:
    """A point inside each piece."""
    near = jnp.where(jnp.isfinite(left), left, jnp.where(jnp.isfinite(right), right - 2 * jnp.abs(D), 0.0))
    far = jnp.where(jnp.isfinite(right), right, jnp.where(jnp.isfinite(left), left + 2 * jnp.abs(D), 0.0))
    return (near + far) / 2


def _log(weight: Any) -> Any:
    """log, and 0 where the weight is 0."""
    return jnp.log(jnp.where(weight > 0, weight, 1.0))
