"""Hockey sticks of a ``Placed`` pair, piece by piece between the knots of both densities.

On the scaled reports v, mirrored so that the window of p is the right one, with middles s' < s,

    p(v) - e^eps q(v) = k (h_p(v) - e^eps h_q(v)) - (e^eps - 1) y g(v)

is positive only between the middle of s' and s and the window's end s + m/2: elsewhere h_p <= h_q, or h_p = 0.
Piecewise linear windows on piecewise linear bases: closed form. Others: the loss does not depend on eps, so its
monotone runs are found once; each holds one interval {loss > eps}, whose end is a root and whose mass a quadrature.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from accountants.pairs.base import Pair
from accountants.pairs.noise_sticks import Curve, total
from accountants.pairs.sides import Side, side_of
from dpkernels.mechanisms.windowed.bases import Constant
from dpkernels.mechanisms.windowed.tabulated import TabulatedBase, TabulatedWindow
from dpkernels.mechanisms.windowed.windows import Triangle, Uniform
from dpkernels.numerics import Real, RealArray, gauss_legendre, like, namespace, without_derivative
from dpkernels.solve import bisect, falling_root, shares_with_ends, turning_points

_LINEAR = (Uniform, Triangle, TabulatedWindow, Constant, TabulatedBase)
_TABULATED = (TabulatedWindow, TabulatedBase)
# Cells that a piece is searched in for turns of the loss, and the most turns that are kept.
_CELLS, _TURNS = 64, 3
# Halvings for a turn, to the last digit of float64; steps for a cut, of which the table below leaves a small bracket.
_BISECTIONS, _NEWTON_STEPS = 60, 3
# Relative distance from a knot at which its one side is looked at; pieces shorter than the second need no turns.
_INSET, _LEAST = 1e-12, 1e-13
# Units in the last place by which the derivatives of two equal densities may differ.
_UNITS = 16
# So many values of linear pieces are computed together.
_TOGETHER = 1 << 20
# Shares of a run at which its loss is tabled: dense near the top.
_SHARES = np.linspace(0, 1, 257) ** 2
_NODES, _WEIGHTS = gauss_legendre(8)


def _is_linear(pair: Any) -> bool:
    return isinstance(pair.window, _LINEAR) and isinstance(pair.base, _LINEAR)


def of_placed(pair: Pair) -> Curve:
    """eps -> delta(eps)."""
    return _linear(side_of(pair)) if _is_linear(pair) else _smooth(side_of(pair))


def largest_loss_of_placed(pair: Any) -> Any:
    """The supremum of the loss."""
    side = side_of(pair)
    xp = namespace(side.left)
    if not _is_linear(pair):
        return _side_runs(side).loss.max()
    loss = xp.stack([side.loss(e, side.in_p, side.in_q) for e in (side.left, side.right)])
    return xp.where(side.right > side.left, loss, 0.0).max()


# Piecewise linear densities


def _linear(side: Side) -> Curve:
    """With values a > 0 > b at the ends of a piece of width w, the positive part has mass w a^2 / (2 (a - b))."""
    p, q = ([density(e, inside) for e in (side.left, side.right)] for density, inside in side.densities)
    items = *p, *q, side.right - side.left

    def term(item: Any) -> Curve:
        p0, p1, q0, q1, width = item

        def at(eps: Real) -> Any:
            xp = namespace(eps, p0)
            ends = p0 - xp.exp(eps) * q0, p1 - xp.exp(eps) * q1
            high, low = xp.maximum(*ends), xp.minimum(*ends)
            crossing = (high > 0) & (low < 0)
            part = high / xp.where(crossing, high - low, 1.0)
            return width / 2 * xp.where(crossing, high * part, xp.where(high > 0, high + low, 0.0))

        return at

    def delta(eps: Any) -> Any:
        # A table has thousands of pieces: of plain numbers they are taken together, for some eps at a time.
        if namespace(eps, side.left) is not np or np.size(eps) * len(side.left) > _TOGETHER:
            return total(term, items, eps)
        return term(items)(np.asarray(eps)[..., None]).sum(-1)

    return delta


# Smooth densities


class _Runs(NamedTuple):
    """Intervals on which the loss is monotone: where it is larger, the signed way to the other end, the loss there.

    And whether the windows of p and of q cover them.
    """

    top: Any
    extent: Any
    loss: Any
    in_p: Any
    in_q: Any


def _rate(side: Side, e: Any) -> RealArray:
    """The derivative of the loss, p'/p - q'/q; 0 where rounding alone tells these apart, as where p and q are equal.

    Of both derivatives and of what they add to the loss over the piece.
    """

    def relative(density: Any, inside: Any) -> Any:
        value, slope = jax.jvp(lambda at: density(at, inside), (e,), (jnp.ones_like(e),))
        return slope / value

    of_p, of_q = (relative(density, inside) for density, inside in side.densities)
    width, units = side.right - side.left, _UNITS * jnp.finfo(e.dtype).eps
    told = jnp.abs(of_p - of_q) * width > units * (1 + (jnp.abs(of_p) + jnp.abs(of_q)) * width)
    return jnp.where(told, of_p - of_q, 0.0)


def _runs(side: Side, cells: int, most: int) -> _Runs:
    xp = namespace(side.left)
    left: Any
    right: Any
    in_p: Any
    in_q: Any
    if xp is np:
        left, right, in_p, in_q = _cut_at_turns(side, cells)
    else:
        ends = jnp.concatenate([side.left[None], _turns(side, cells, most), side.right[None]])
        left, right = ends[:-1].ravel(), ends[1:].ravel()
        in_p, in_q = (jnp.tile(inside, len(ends) - 1) for inside in (side.in_p, side.in_q))
    width = right - left
    near, far = (side.loss(e, in_p, in_q) for e in (left, right))
    falling = near >= far
    top, loss = xp.where(falling, left, right), xp.where(width <= 0, -np.inf, xp.maximum(near, far))
    return _Runs(top, xp.where(falling, width, -width), loss, in_p, in_q)


def _cut_at_turns(side: Side, cells: int) -> tuple[np.ndarray, ...]:
    """Return (left, right, in_p, in_q) of the pieces of plain numbers, cut where the loss turns."""
    some = np.flatnonzero(side.right > side.left)
    left, right, in_p, in_q = (each[some] for each in (side.left, side.right, side.in_p, side.in_q))
    low, high = _inside(left, right)
    shares: Any = shares_with_ends(cells + 1)
    points = low[:, None] * (1 - shares) + high[:, None] * shares
    turn, row = turning_points(lambda e, row: side.loss(e, in_p[row], in_q[row]), points)
    starts, rows = np.concatenate([left, turn]), np.concatenate([np.arange(len(left)), row])
    order = np.lexsort((starts, rows))
    starts, rows = starts[order], rows[order]
    last = np.append(rows[1:] != rows[:-1], np.ones(min(len(rows), 1), bool))
    ends = np.where(last, right[rows], np.append(starts[1:], 0.0)[: len(rows)])
    return starts, ends, in_p[rows], in_q[rows]


def _inside(left: Any, right: Any) -> tuple[Any, Any]:
    """Both ends of an interval, from its inside: at a knot the loss may bend."""
    inset = _INSET * (right - left) + 4 * np.finfo(left.dtype).eps * (abs(left) + abs(right))
    return left + inset, right - inset


def _turns(pieces: Side, cells: int, most: int) -> Real:
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


def _smooth(side: Side) -> Curve:
    runs = _side_runs(side)
    table = _drops(side, runs)

    def term(item: Any) -> Curve:
        run, drops = item

        def at(eps: Any) -> Any:
            xp = namespace(eps, run.top)
            share = _share(side, run, drops, eps)
            e = run.top + run.extent * share[..., None] * like(_NODES, share)
            gap = side.p(e, run.in_p) - xp.exp(eps)[..., None] * side.q(e, run.in_q)
            return xp.abs(run.extent) * share * (gap @ like(_WEIGHTS, share))

        def at_most(eps: Any) -> Any:
            """Also where the loss is NaN."""
            needless = (eps >= run.loss).all()
            if namespace(eps, run.loss) is np:
                return np.zeros_like(eps) if needless else at(eps)
            return jax.lax.cond(needless, jnp.zeros_like, at, eps)

        return at_most

    return lambda eps: total(term, (runs, table), eps)


def _side_runs(side: Side) -> _Runs:
    """In the cells of a table the loss turns once at most."""
    tabulated = any(isinstance(shape, _TABULATED) for shape in (side.pair.window, side.pair.base))
    return _runs(side, *((1, 1) if tabulated else (_CELLS, _TURNS)))


def _drops(side: Side, runs: _Runs) -> Real:
    """sqrt(loss at the top - loss) at the shares of a run; shape (runs, shares). About linear near a smooth top."""
    xp = namespace(runs.top)
    e = runs.top[:, None] + runs.extent[:, None] * like(_SHARES, runs.top)
    loss = side.loss(e, runs.in_p[:, None], runs.in_q[:, None])
    drop = xp.sqrt(xp.maximum(xp.where(runs.extent[:, None] != 0, runs.loss[:, None] - loss, 0.0), 0.0))
    return np.maximum.accumulate(drop, axis=1) if xp is np else without_derivative(jax.lax.cummax(drop, axis=1))


def _share(side: Side, run: _Runs, drops: Any, eps: Any) -> RealArray:
    """Return the share of a run, from its top, where the loss is above eps: bracketed by the table, then its root.

    An error in the share loses its square: the integrand is 0 at the end. So the first derivative of delta needs none
    of the share; JAX numbers have one, for the second.
    """
    xp = namespace(eps, drops, run.top)
    frozen, level = without_derivative((run, eps))
    shares = like(_SHARES, drops)
    drop = xp.sqrt(xp.maximum(frozen.loss - level, 0.0))
    j = xp.clip(xp.searchsorted(drops, drop, side="right") - 1, 0, len(shares) - 2)
    low, high, step = shares[j], shares[j + 1], drops[j + 1] - drops[j]
    partial = (drop > 0) & (drop < drops[-1])
    share: Any
    if xp is np:
        share = falling_root(lambda share: _gap(side, run, share, eps), low, high)
    else:
        share = low + (high - low) * jnp.clip((drop - drops[j]) / jnp.where(step > 0, step, 1.0), 0.0, 1.0)
        for _ in range(_NEWTON_STEPS):
            share = jnp.clip(share - _newton_step(side, frozen, share, level), low, high)
        share = jax.lax.stop_gradient(share)
        share = jnp.clip(share - jnp.where(partial, _newton_step(side, run, share, eps), 0.0), low, high)
    return xp.where(drop <= 0, 0.0, xp.where(partial, share, 1.0))


def _gap(side: Side, run: _Runs, share: Any, eps: Any) -> Any:
    """p - e^eps q at a share of a run: not the loss, which may bend by e^eps where the window ends."""
    e = run.top + run.extent * share
    return side.p(e, run.in_p) - namespace(e, eps).exp(eps) * side.q(e, run.in_q)


def _newton_step(side: Side, run: _Runs, share: Any, eps: Any) -> Any:
    """The gap over its derivative in the share; JAX numbers only."""

    def gap(share: Any) -> Any:
        return _gap(side, run, share, eps)

    rate = jax.lax.stop_gradient(jax.jvp(gap, (share,), (jnp.ones_like(share),))[1])
    return gap(share) / jnp.where(rate != 0, rate, 1.0)
