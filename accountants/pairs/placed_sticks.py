"""Hockey sticks of a ``Placed`` pair, piece by piece between the knots of both densities.

On the scaled reports v, mirrored so that the window of p is the right one, with middles s' < s,

    p(v) - e^eps q(v) = k (h_p(v) - e^eps h_q(v)) - (e^eps - 1) y g(v)

is positive only between the middle of s' and s and the window's end s + m/2: elsewhere h_p <= h_q, or h_p = 0.
Piecewise linear windows on piecewise linear bases: closed form. Others: the loss does not depend on eps, so its
monotone runs are found once; each holds one interval {loss > eps}, whose end is a root and whose mass a quadrature.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from accountants.pairs.base import Pair
from accountants.pairs.noise_sticks import Curve, total
from dpkernels.mechanisms.windowed.bases import Constant
from dpkernels.mechanisms.windowed.tabulated import TabulatedBase, TabulatedWindow
from dpkernels.mechanisms.windowed.windows import Triangle, Uniform
from dpkernels.numerics import Real, RealArray, floating, gauss_legendre, like
from dpkernels.solve import bisect

_LINEAR = (Uniform, Triangle, TabulatedWindow, Constant, TabulatedBase)
_TABULATED = (TabulatedWindow, TabulatedBase)
# Cells that a piece is searched in for turns of the loss, and the most turns that are kept.
_CELLS, _TURNS = 64, 3
# Halvings for a turn, to the last digit of float64; steps for a cut, of which the table below leaves a small bracket.
_BISECTIONS, _NEWTON_STEPS = 60, 3
# Relative distance from a knot at which its one side is looked at; pieces shorter than the second need no turns.
_INSET, _LEAST = 1e-12, 1e-13
# Shares of a run at which its loss is tabled: dense near the top.
_SHARES = np.linspace(0, 1, 257) ** 2
_NODES, _WEIGHTS = gauss_legendre(8)


class _Densities(NamedTuple):
    """p and q on the scaled and mirrored reports less s, and the ends of the pieces where p may exceed q.

    From s, and not from the middle of the reports: a narrow window's width would be a difference of two numbers near 1.
    """

    p: Callable[[Any], Any]
    q: Callable[[Any], Any]
    left: Any
    right: Any


def _densities(pair: Any) -> _Densities:
    m = pair.mechanism
    S1, width = m.window_mass, m.width
    middles = [(floating(jnp.asarray(x)) - m.middle) * m.scale / S1 for x in (pair.x, pair.other)]
    side = jnp.where(middles[0] >= middles[1], 1.0, -1.0)
    s, other = side * middles[0], side * middles[1]

    def density(middle: Any) -> Callable[[Any], Any]:
        return lambda v: m.level * m.base.density(v + s) + m.height * m.window.density((v - middle) / width + 0.5)

    bends, apart = width * _both_sides(m.window.kinks), s - other
    knots = jnp.concatenate([bends + 0 * s, bends - apart, _both_sides(m.base.kinks) - s, -apart[None] / 2])
    ends = jnp.sort(jnp.clip(knots, -apart / 2, width / 2))
    return _Densities(density(0 * s), density(-apart), ends[:-1], ends[1:])


def _both_sides(kinks: np.ndarray) -> np.ndarray:
    return np.unique(np.concatenate([kinks, -kinks]))


def _is_linear(pair: Any) -> bool:
    return isinstance(pair.mechanism.window, _LINEAR) and isinstance(pair.mechanism.base, _LINEAR)


def of_placed(pair: Pair) -> Curve:
    """eps -> delta(eps)."""
    return _linear(_densities(pair)) if _is_linear(pair) else _smooth(pair)


def largest_loss_of_placed(pair: Any) -> Any:
    """The supremum of the loss."""
    pieces = _densities(pair)
    if _is_linear(pair):
        ends = [_line(density, pieces.left, pieces.right) for density in (pieces.p, pieces.q)]
        loss = jnp.log(jnp.stack(ends[0])) - jnp.log(jnp.stack(ends[1]))
        return jnp.where(pieces.right > pieces.left, loss, 0.0).max()
    return _pair_runs(pair, pieces).loss.max()


# Piecewise linear densities


def _line(density: Callable[[Any], Any], left: RealArray, right: RealArray) -> tuple[jax.Array, jax.Array]:
    """Values at both ends of pieces from two points inside: at the ends themselves it may jump."""
    near, far = (density(left + share * (right - left)) for share in (0.25, 0.75))
    return near + (near - far) / 2, far + (far - near) / 2


def _linear(pieces: _Densities) -> Curve:
    """With values a > 0 > b at the ends of a piece of width w, the positive part has mass w a^2 / (2 (a - b))."""
    p, q = (_line(density, pieces.left, pieces.right) for density in (pieces.p, pieces.q))
    items = *p, *q, pieces.right - pieces.left

    def term(item: Any) -> Curve:
        p0, p1, q0, q1, width = item

        def at(eps: Real) -> Any:
            ends = p0 - jnp.exp(eps) * q0, p1 - jnp.exp(eps) * q1
            high, low = jnp.maximum(*ends), jnp.minimum(*ends)
            crossing = (high > 0) & (low < 0)
            part = high / jnp.where(crossing, high - low, 1.0)
            return width / 2 * jnp.where(crossing, high * part, jnp.where(high > 0, high + low, 0.0))

        return at

    return lambda eps: total(term, items, eps)


# Smooth densities


class _Runs(NamedTuple):
    """Intervals on which the loss is monotone: where it is larger, the signed way to the other end, the loss there."""

    top: Any
    extent: Any
    loss: Any


def _loss(pieces: _Densities, v: Real) -> RealArray:
    return jnp.log(pieces.p(v)) - jnp.log(pieces.q(v))


def _rate(pieces: _Densities, v: Real) -> RealArray:
    """The derivative of the loss."""
    return jax.jvp(lambda at: _loss(pieces, at), (v,), (jnp.ones_like(v),))[1]


def _runs(pieces: _Densities, cells: int, most: int) -> _Runs:
    ends = jnp.concatenate([pieces.left[None], _turns(pieces, cells, most), pieces.right[None]])
    left, right = ends[:-1].ravel(), ends[1:].ravel()
    width = right - left
    # Next to an empty run there may be no density, and no loss that has a derivative.
    near, far = (_loss(pieces, jnp.where(width <= 0, pieces.left[0], v)) for v in _inside(left, right))
    falling = near >= far
    top, loss = jnp.where(falling, left, right), jnp.where(width <= 0, -jnp.inf, jnp.maximum(near, far))
    return _Runs(top, jnp.where(falling, width, -width), loss)


def _inside(left: RealArray, right: RealArray) -> tuple[RealArray, RealArray]:
    """Both ends of an interval, from its inside: at a knot a density may jump."""
    inset = _INSET * (right - left) + 4 * jnp.finfo(left.dtype).eps * (jnp.abs(left) + jnp.abs(right))
    return left + inset, right - inset


def _turns(pieces: _Densities, cells: int, most: int) -> Real:
    """Where the loss turns in each piece, increasing; shape (most, pieces), filled up with the piece's right end.

    A turn is bracketed by a change of sign of the loss's derivative between cells. NaN if there are more.
    """
    left, right = jax.lax.stop_gradient(_inside(pieces.left, pieces.right))
    grid = left + (right - left) * jnp.linspace(0, 1, cells + 1, dtype=left.dtype)[:, None]
    rising = _rate(pieces, grid) > 0
    changes = rising[:-1] != rising[1:]

    low, high = bisect(lambda x: (_rate(pieces, x) > 0) == rising[:-1], grid[:-1], grid[1:], _BISECTIONS)
    found = jnp.sort(jnp.where(changes, (low + high) / 2, jnp.inf), 0)[:most]
    fits = (changes.sum(0) <= most) | (pieces.right - pieces.left <= _LEAST)
    return jnp.where(fits, jnp.where(jnp.isfinite(found), found, pieces.right), jnp.nan)


def _smooth(pair: Any) -> Curve:
    pieces = _densities(pair)
    runs = _pair_runs(pair, pieces)
    table = _drops(pieces, runs)

    def term(item: Any) -> Curve:
        run, drops = item

        def at(eps: Any) -> Any:
            share = _share(pieces, run, drops, eps)
            v = run.top + run.extent * share[..., None] * like(_NODES, share)
            gap = pieces.p(v) - jnp.exp(eps)[..., None] * pieces.q(v)
            return jnp.abs(run.extent) * share * (gap @ like(_WEIGHTS, share))

        # Also where the loss is NaN.
        return lambda eps: jax.lax.cond((eps >= run.loss).all(), jnp.zeros_like, at, eps)

    return lambda eps: total(term, (runs, table), eps)


def _pair_runs(pair: Any, pieces: _Densities) -> _Runs:
    """In the cells of a table the loss turns once at most."""
    tabulated = any(isinstance(shape, _TABULATED) for shape in (pair.mechanism.window, pair.mechanism.base))
    return _runs(pieces, *((1, 1) if tabulated else (_CELLS, _TURNS)))


def _drops(pieces: _Densities, runs: _Runs) -> Real:
    """sqrt(loss at the top - loss) at the shares of a run; shape (runs, shares). About linear near a smooth top."""
    v = runs.top[:, None] + runs.extent[:, None] * _shares(runs.top)
    drop = jnp.where(runs.extent[:, None] != 0, runs.loss[:, None] - _loss(pieces, v), 0.0)
    return jax.lax.stop_gradient(jax.lax.cummax(jnp.sqrt(jnp.maximum(drop, 0.0)), axis=1))


def _shares(value: RealArray) -> jax.Array:
    """The tabled shares, none of them at a knot."""
    inset = max(_INSET, 8 * float(jnp.finfo(value.dtype).eps))
    return jnp.clip(like(_SHARES, value), inset, 1 - inset)


def _share(pieces: _Densities, run: _Runs, drops: Any, eps: Any) -> RealArray:
    """The share of a run, from its top, where the loss is above eps: bracketed by the table, then Newton's method.

    The last step of it is differentiable; the others are not, and need not be: there the integrand is 0.
    """
    frozen, level = jax.lax.stop_gradient((run, eps))
    shares = _shares(drops)
    drop = jnp.sqrt(jnp.maximum(frozen.loss - level, 0.0))
    j = jnp.clip(jnp.searchsorted(drops, drop, side="right") - 1, 0, len(shares) - 2)
    low, high, step = shares[j], shares[j + 1], drops[j + 1] - drops[j]
    share = low + (high - low) * jnp.clip((drop - drops[j]) / jnp.where(step > 0, step, 1.0), 0.0, 1.0)
    for _ in range(_NEWTON_STEPS):
        share = jnp.clip(share - _excess(pieces, frozen, share, level), low, high)
    share = jax.lax.stop_gradient(share)
    partial = (drop > 0) & (drop < drops[-1])
    newton = share - jnp.where(partial, _excess(pieces, run, share, eps), 0.0)
    return jnp.where(drop <= 0, 0.0, jnp.where(partial, jnp.clip(newton, low, high), 1.0))


def _excess(pieces: _Densities, run: _Runs, share: Real, eps: Real) -> Real:
    """p - e^eps q over its derivative in the share: not the loss, which may bend by e^eps where the window ends."""

    def gap(share: Real) -> RealArray:
        v = run.top + run.extent * share
        return pieces.p(v) - jnp.exp(eps) * pieces.q(v)

    rate = jax.lax.stop_gradient(jax.jvp(gap, (share,), (jnp.ones_like(share),))[1])
    return gap(share) / jnp.where(rate != 0, rate, 1.0)
