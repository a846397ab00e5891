"""Hockey sticks of additive noise in closed form: sums over the pieces of a ``Shifted`` pair.

p = f,  q = f(. - D),  l = log p - log q.  With log f a polynomial of degree d <= 2 between knots, its second
derivative the same everywhere,  l(x) = l(at) + slope (x - at)  between the knots of f and of its shift.

Where the loss is affine, {l > eps} is an interval with closed-form ends. Knots' masses do not depend
on eps and are computed once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from accountants.pairs import gaussian_sticks
from accountants.pairs.rounding import cap
from dpkernels.numerics import Real, RealArray, exponential_moment, floating
from dpkernels.pytrees import pytree

Curve = Callable[[Any], Any]

# In the last place: of numbers that a budget is made of, and of the normalisation of reweighted noise.
_UNITS, _UNITS_REWEIGHTED = 4, 256


@pytree
@dataclass(frozen=True)
class Pieces:
    """One entry a piece, left to right; arrays of one length.

    Attributes:
        left: lower end; -inf for the first, but for laws of steps.
        right: upper end; inf for the last, but for laws of steps.
        width: right - left, and 0 where the ends are equal but for rounding.
        at: the point at which log_p and loss are given; outside the piece, by the piece's formulas.
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


def split(pair: Any) -> Pieces:
    """The pieces; the whole line, but for laws of steps, where it is between the outermost knots kept."""
    noise, D, law = pair.noise, pair.shift, pair.noise.law
    left, right, width = _ends(pair)
    inner = inside(left, right, D)
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


def _ends(pair: Any) -> tuple[Real, Real, Real]:
    """Neighbouring knots of f and of its shift, and how far they are apart.

    A knot and its own shift are D apart, which the difference of the two may have lost to rounding.
    """
    knots, D = knots_of(pair), pair.shift
    own, moved = jnp.concatenate([knots, knots]), jnp.repeat(jnp.array([0.0, 1.0], knots.dtype), len(knots))
    order = jnp.argsort(own + moved * D)
    own, moved = own[order], moved[order]
    ends = own + moved * D
    left, right = ends[:-1], ends[1:]
    width = width_between(left, right, D, jnp.diff(own) + jnp.diff(moved) * D)
    if pair.noise.law.degree == 0:
        return left, right, width
    infinity = jnp.full(1, jnp.inf, ends.dtype)
    whole = jnp.concatenate([infinity, width, infinity]) if len(ends) else infinity
    return jnp.concatenate([-infinity, ends]), jnp.concatenate([ends, infinity]), whole


def knots_of(pair: Any) -> jax.Array:
    """Knots of f; of a staircase as many periods of steps as the pair keeps."""
    noise: Any = pair.noise
    law = noise.law
    points = [floating(jnp.asarray(k)) for k in (law.knots if law.degree else law.steps(pair.periods), *noise.edges)]
    return jnp.concatenate([jnp.atleast_1d(k) for k in points])


def width_between(left: Any, right: Any, D: Any, apart: Any = None) -> RealArray:
    """How far neighbouring knots are apart, by default right - left; 0 where they meet but for rounding.

    No piece lies between those, and its loss would be wrong.
    """
    rounding = 4 * jnp.finfo(left.dtype).eps * (jnp.abs(left) + jnp.abs(right) + jnp.abs(D))
    sliver = jnp.isfinite(rounding) & (right - left <= rounding)
    return jnp.where(sliver, 0.0, right - left if apart is None else apart)


def inside(left: Real, right: Real, D: Real) -> RealArray:
    """A point inside each piece."""
    near = jnp.where(jnp.isfinite(left), left, jnp.where(jnp.isfinite(right), right - 2 * jnp.abs(D), 0.0))
    far = jnp.where(jnp.isfinite(right), right, jnp.where(jnp.isfinite(left), left + 2 * jnp.abs(D), 0.0))
    return (near + far) / 2


def _log(weight: Real) -> Real:
    """log, and 0 where the weight is 0."""
    return jnp.log(jnp.where(weight > 0, weight, 1.0))


def of_noise(pair: Any) -> Curve:
    """eps -> delta(eps)."""
    return (_steps, _exponentials, _gaussians)[pair.noise.law.degree](pair)


def largest_loss_of_noise(pair: Any) -> Real:
    """The supremum of the loss."""
    if pair.noise.law.degree == 2:
        return jnp.inf + 0 * pair.shift
    pieces = split(pair)
    top = pieces.loss + jnp.abs(pieces.slope) * _top(pieces)[2]
    return jnp.where(pieces.width > 0, top, -jnp.inf).max()


def total(term: Callable[[Any], Curve], items: Any, epsilon: RealArray) -> Any:
    """Sum of term(item)(eps) over the entries of a pytree of arrays, one at a time: each is one pass over eps."""

    def add(total: RealArray, item: Any) -> tuple[Any, None]:
        value = term(item)(epsilon)
        # Not their maximum, which halves the derivative of what is 0 only while nothing is there. NaN stays NaN.
        return total + jnp.where(value < 0, 0.0, value), None

    dtype = jnp.result_type(epsilon, *jax.tree.leaves(items))
    return jax.lax.scan(add, jnp.zeros(epsilon.shape, dtype), items)[0]


def _top(pieces: Pieces) -> tuple[Real, Real, Real]:
    """The end of each piece with the larger loss (the finite one if it is flat), -1 if it is the left one, its offset.

    The offset is |top - at|, and the loss at the top loss + |slope| offset.
    """
    rightwards = jnp.where(pieces.slope == 0, ~jnp.isfinite(pieces.left), pieces.slope > 0)
    top = jnp.where(rightwards, pieces.right, pieces.left)
    return top, jnp.where(rightwards, 1.0, -1.0), jnp.abs(top - pieces.at)


def _exponentials(pair: Any) -> Curve:
    """Sum over pieces; t is the distance from the top, r the derivative of log p in t, s = |slope|.

    integral over 0 < t < T of p_top e^(r t) - e^eps q_top e^((r + s) t),    T = (l_top - eps)/s.
    """
    pieces = split(pair)
    law: Any = pair.noise.law
    top, side, offset = _top(pieces)
    fall, moved = jnp.abs(pieces.slope), pieces.at - pair.shift
    further = law.score(moved)
    log_p = law.log_prob(pieces.at) + pieces.rise * (top - pieces.at)
    log_q = law.log_prob(moved) + further * (top - pieces.at)
    loss = pieces.loss + fall * offset
    # Of logarithms far from 0 the difference is off by units of theirs: eps is lowered by as much, as in ``curve``.
    rounding = jnp.finfo(loss.dtype).eps * jax.lax.stop_gradient(jnp.where(jnp.isfinite(log_p), jnp.abs(log_p), 0.0))
    p, q = (pieces.weight_p, log_p, -side * pieces.rise), (pieces.weight_q, log_q, -side * further)

    def term(item: Any) -> Curve:
        (weight_p, log_p, r), (weight_q, log_q, r_q), loss, s, width, rounding = item

        def at(eps: Real) -> Any:
            eps = eps - rounding
            T = jnp.clip((loss - eps) / jnp.where(s > 0, s, 1.0), 0.0, width)
            T = jnp.where(s > 0, T, jnp.where(loss > eps, width, 0.0))
            return weight_p * exponential_growth(log_p, r, T) - weight_q * exponential_growth(log_q + eps, r_q, T)

        return at

    return lambda eps: total(term, (p, q, loss, fall, pieces.width, rounding), eps)


def exponential_growth(log_start: Real, r: Real, T: Real) -> Real:
    """Integral of exp(log_start + r t) over 0 < t < T; T may be infinite where r < 0.

    Nothing at T = 0, where e^eps q may be beyond the floats.
    """
    highest = log_start + jnp.maximum(r * jnp.where(jnp.isinf(T), 0.0, T), 0.0)
    size = jnp.where(r == 0, 0.0, jnp.abs(r))  # Without a derivative at 0, where half of the maximum's is the whole.
    return jnp.exp(jnp.where(T > 0, highest, -jnp.inf)) * exponential_moment(0, 0.0, size, T)


def _gaussians(pair: Any) -> Curve:
    """Sum over pieces of w_P times the integral of phi(x) (1 - e^(eps - loss)) where the loss is above eps.

    x is in units of sigma, rising with the loss: there the loss is  log(w_P/w_Q) + a (x + a/2),  a = |D|/sigma. Rounded
    upwards: eps is lowered by units of itself and of the losses at the piece's ends, and see ``gaussian_sticks``.
    """
    law: Any = pair.noise.law
    sigma, a = law.sigma, jnp.abs(pair.shift) / law.sigma
    if len(pair.noise.edges) == 0:
        return lambda eps: _of_one_gaussian(a, eps)
    pieces = split(pair)

    def term(piece: Pieces) -> Curve:
        sloped = ~jnp.isinf(piece.loss)  # NaN stays.
        left, right, width = (in_units(end, sigma) for end in (piece.left, piece.right, piece.width))
        far, top = jnp.where(pair.shift < 0, left, -right), jnp.where(pair.shift < 0, right, -left)
        loss = jnp.where(sloped, piece.loss, 0.0)
        size = sum(jnp.where(jnp.isfinite(end), jnp.abs(end), 0.0) for end in (far, top))
        size = jnp.where(size > 0, jnp.abs(loss) + a * (size + a), 0.0)

        def at(eps: RealArray) -> Any:
            eps = eps - _UNITS * jnp.finfo(eps.dtype).eps * jax.lax.stop_gradient(jnp.abs(eps) + size)
            cut = (eps - loss) / a - a / 2
            whole = ~sloped | (cut <= far)
            start = jnp.where(whole, far, jnp.minimum(cut, top))
            there = ~((start >= top) | jnp.isinf(start) | (piece.width <= 0))  # NaN stays.
            start, rest = jnp.where(there, start, 0.0), jnp.where(there, jnp.where(whole, width, top - start), 1.0)
            lead = a * jnp.where(whole & sloped & there, far - cut, 0.0)
            gain, p, q = gaussian_sticks.gain(start, rest, a, lead)
            # Where q is 0 the loss is infinite, and q counts for the derivative in its weight.
            certain = jnp.where(piece.loss > 0, piece.weight_p * p - jnp.exp(eps) * piece.weight_q * q, 0.0)
            return jnp.where(there, jnp.where(sloped, piece.weight_p * gain, certain), 0.0)

        return at

    return lambda eps: total(term, pieces, eps) * (1 + _UNITS_REWEIGHTED * jnp.finfo(eps.dtype).eps)


def _of_one_gaussian(a: Any, eps: RealArray) -> Any:
    """One piece without ends. It has a delta at every eps, also where floats do not hold it."""
    kind = jnp.finfo(eps.dtype)
    eps = eps - _UNITS * kind.eps * jnp.abs(jax.lax.stop_gradient(eps))
    return gaussian_sticks.endless_gain(eps / a - a / 2, a) * (1 + _UNITS * kind.eps) + kind.tiny


def in_units(end: Real, sigma: Real) -> RealArray:
    """end/sigma, of an infinite end the end itself, with finite derivatives."""
    finite = jnp.isfinite(end)
    return jnp.where(finite, jnp.where(finite, end, 0.0) / sigma, end)


def _steps(pair: Any) -> Curve:
    """The loss takes the values l_1 < l_2 < ...: delta is linear in e^eps between them, and summed from the top.

    delta(eps) = delta(l_i) + (1 - e^(eps - l_i)) e^(l_i) Q(loss >= l_i),  l_i the least level above eps.
    """
    pieces = split(pair)
    largest = cap(pieces.loss.dtype)
    log_prob, size = pair.noise.law.log_prob, pieces.width * step_copies(pair, pieces.at)
    mass = pieces.weight_p * jnp.exp(log_prob(pieces.at)) * size
    certain = pieces.loss >= largest
    sure, as_sure = (
        jnp.where(certain, each, 0.0).sum()
        for each in (mass, pieces.weight_q * jnp.exp(log_prob(pieces.at - pair.shift)) * size)
    )
    level = jnp.clip(pieces.loss, -largest, largest)
    order = jnp.argsort(-level)
    level, other = level[order], jnp.where(certain, 0.0, mass * jnp.exp(-level))[order]
    above = jnp.cumsum(other)
    steps = above[:-1] * jnp.exp(level[:-1]) * -jnp.expm1(level[1:] - level[:-1])
    delta = jnp.concatenate([jnp.zeros_like(level[:1]), jnp.cumsum(steps)])
    slope = above * jnp.exp(level)

    def at(eps: Real) -> Any:
        count = len(level) - jnp.searchsorted(level[::-1], eps, side="right")
        i = jnp.maximum(count - 1, 0)
        some = delta[i] - jnp.where(count > 0, slope[i] * jnp.expm1(eps - level[i]), 0.0)
        return some + sure - jnp.exp(eps) * as_sure

    return at


def step_copies(pair: Any, at: Real) -> Real:
    """How often a piece counts: beyond all edges a staircase repeats, e^-eps as high each period.

    The last whole period before the reach R stands for all that follow; NaN where R is not beyond the edges.
    """
    law: Any = pair.noise.law
    D = law.period
    shift = jnp.abs(pair.shift)
    reach = (pair.periods - 1 - jnp.ceil(shift / D)) * D
    needed = shift + jnp.abs(jnp.stack([0 * shift, *pair.noise.edges])).max()
    x = jnp.abs(at)
    copies = jnp.where(x < reach - D, 1.0, jnp.where(x < reach, -1 / jnp.expm1(-law.epsilon), 0.0))
    negligible = law.epsilon * (reach / D - 1) > 120
    return jnp.where((reach - D >= needed) | negligible, copies, jnp.nan)
