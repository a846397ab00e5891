"""Reports of three losses, summed up outcome by outcome: no grid, so that samples, whose losses fit none, are exact.

Of n reports a, b and n - a - b have the losses l_1, l_2 and l_3. With their masses tilted by e^(c l) the counts
are those of independent Poisson laws, given their sum; where few enough of them matter, all these are added up,

    delta(eps) = e^(n K(c) - c eps) sum over a, b of W(a, b) e^(-c x) (1 - e^-x)_+,    x = S(a, b) - eps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma, gammaln

from accountants.pairs.losses import Losses
from dpkernels.numerics import Real, RealArray
from dpkernels.pytrees import pytree

# Counts of the lightest and of the next loss that are kept, at most, and how far they reach: e^-33 is beyond.
ROWS, COLUMNS = 384, 768
_DEVIATIONS, _FURTHER = 8.2, 16.0
# Pairs of more outcomes than this are not looked at for equal losses; losses that are equal.
MOST_OUTCOMES, _SAME = 16, 1e-12
_STEPS, _PRECISE = 40, 1e-14
_LEAST = 1e-290  # Of what is divided by.
# From here on log k! is Stirling's series: (k + 1/2) log k - k + log(2 pi)/2 + 1/(12 k) - 1/(360 k^3) ...
_STIRLING_FROM, _HALF_LOG = 16.0, math.log(2 * math.pi) / 2


@pytree
@dataclass(frozen=True)
class Three:
    """n reports of three losses.

    Attributes:
        mass: probabilities, of shape (3,); 0 where there are fewer than three losses.
        loss: the losses.
        count: n.
    """

    mass: Any
    loss: Any
    count: Any

    def tilted(self, c: Real) -> tuple[jax.Array, jax.Array]:
        """(masses times e^(c l), of sum 1; the log of what they are divided by)."""
        size = jnp.log(_positive(self.mass)) + c * self.loss
        log_scale = jax.nn.logsumexp(size)
        return jnp.exp(size - log_scale), log_scale

    def log_scale(self, epsilon: Real, c: Real) -> RealArray:
        """n K(c) - c eps."""
        return self.count * self.tilted(c)[1] - c * epsilon


def _positive(mass: RealArray) -> Real:
    return jnp.maximum(mass, jnp.finfo(mass.dtype).tiny)


def three(nodes: Losses, count: Real) -> tuple[Three, Real]:
    """(the largest, the least and the heaviest other finite loss with what they have; whether there are no others)."""
    log_p, loss = nodes.finite
    p, real = jnp.exp(log_p), ~jnp.isneginf(log_p)
    still = jax.lax.stop_gradient(loss)
    near = _SAME * (1 + jnp.abs(still))
    first = real & (still >= jnp.where(real, still, -jnp.inf).max() - near)
    second = real & ~first & (still <= jnp.where(real, still, jnp.inf).min() + near)
    rest = real & ~first & ~second
    third = rest & (jnp.abs(still - still[jnp.where(rest, p, 0.0).argmax()]) <= near)
    found = [jnp.where(each, p, 0.0) for each in (first, second, third)]
    mass = jnp.stack([each.sum() for each in found])
    mean = jnp.stack([(each * loss).sum() for each in found]) / jnp.where(mass > 0, mass, 1.0)
    return Three(mass, mean, jnp.asarray(count, mass.dtype)), ~(rest & ~third).any()


def fits(reports: Three, c: Real) -> jax.Array:
    """Whether all the counts that matter are kept."""
    few, some, _ = jnp.sort(reports.count * reports.tilted(c)[0])
    return (2 * _reach(few) < ROWS) & (2 * _reach(some) < COLUMNS)


def _reach(mean: Real) -> jax.Array:
    return _DEVIATIONS * jnp.sqrt(mean) + _FURTHER


@pytree
@dataclass(frozen=True)
class _Outcomes:
    """All counts (a, b, n - a - b) that matter, a of the lightest loss and b of the next.

    Attributes:
        first: Poisson's weights of a, one a row.
        second: those of b, one a column.
        third: those of n - a - b, by row plus column.
        rows: how many rows there are.
        total: S in the first row and column.
        moves: by how much S is larger in the next row, and in the next column.
        least: a and b in the first row and column.
        order: the losses' places, from the lightest.
    """

    first: Any
    second: Any
    third: Any
    rows: Any
    total: Any
    moves: tuple[Real, Real]
    least: tuple[Real, Real]
    order: Any


def _outcomes(reports: Three, c: jax.Array) -> _Outcomes:
    g, _ = reports.tilted(c)
    order = jnp.argsort(g)
    mean, (l1, l2, l3), n = reports.count * g[order], reports.loss[order], reports.count
    a, b = jnp.maximum(jnp.ceil(mean[:2] - _reach(mean[:2])), 0.0)
    row, column, either = (jnp.arange(size, dtype=g.dtype) for size in (ROWS, COLUMNS, ROWS + COLUMNS))
    counts = a + row, b + column, n - a - b - either
    first, second, third = (_poisson(m, k) for m, k in zip(mean, counts, strict=True))
    rows = jnp.minimum(jnp.minimum(n, mean[0] + _reach(mean[0])) - a + 1, ROWS)
    total = n * l3 + a * (l1 - l3) + b * (l2 - l3)
    return _Outcomes(first, second, third, rows.astype(int), total, (l1 - l3, l2 - l3), (a, b), order)


def _poisson(mean: Real, count: Real) -> Real:
    """Poisson's probabilities (Loader 2000): their errors are roundings of the deviation, not of k log k."""
    k, mean = jnp.maximum(count, 1.0), jnp.maximum(mean, _LEAST)
    e = (k - mean) / mean
    deviance = mean * ((1 + e) * jnp.log1p(e) - e)
    few, square = jnp.minimum(k, _STIRLING_FROM), 1 / k**2
    exact = gammaln(few + 1) - (few + 0.5) * jnp.log(few) + few - _HALF_LOG
    series = (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square * (1 / 1680 - square / 1188)))) / k
    log_p = -deviance - jnp.where(k < _STIRLING_FROM, exact, series) - jnp.log(k) / 2 - _HALF_LOG
    return jnp.where(count >= 1, jnp.exp(log_p), jnp.where(count >= 0, jnp.exp(-mean), 0.0))


def _sums(reports: Three, c: Any, epsilon: Real, *, weighted: bool = False) -> tuple[RealArray, RealArray]:
    """Means of e^(-c x) (1 - e^-x) and of e^(-(c+1) x) at x > 0; if ``weighted``, these times 1, each count and psi.

    psi is digamma(1 + the third's count). In a row x > 0 is from an edge on, x0 there and x0 + t s at t columns
    further: the mean is e^(-c x0) ((1 - e^-x0) A + e^-x0 B) of A = sum w e^(-c t s), B = that with 1 - e^(-t s).
    """
    it, n = _outcomes(reports, c), reports.count
    column, either = (jnp.arange(size, dtype=c.dtype) for size in (COLUMNS, ROWS + COLUMNS))
    forwards, s = it.moves[1] > 0, jnp.maximum(jnp.abs(it.moves[1]), _LEAST)
    t = jnp.arange(-COLUMNS, COLUMNS, dtype=c.dtype) * s
    A = jnp.where(t >= 0, jnp.exp(-c * jnp.maximum(t, 0.0)), 0.0)
    tables = jnp.stack([A, -A * jnp.expm1(-jnp.maximum(t, 0.0))])
    psi = digamma(jnp.maximum(n - sum(it.least) - either, 0.0) + 1)

    def row(k: Real, state: tuple[Real, Real]) -> tuple[Any, Any]:
        weight = it.first[k] * it.second * jax.lax.dynamic_slice(it.third, (k,), (COLUMNS,))
        x = it.total + k * it.moves[0] - epsilon
        lowest = jnp.where(forwards, x, x - (COLUMNS - 1) * s)
        edge = jnp.clip(jnp.floor(-lowest / s) + 1, 0, COLUMNS)
        x0 = jnp.maximum(lowest + edge * s, 0.0)
        falls = jax.lax.dynamic_slice(tables, (0, COLUMNS - edge.astype(int)), (2, COLUMNS))
        falls = jnp.where(forwards, falls, falls[:, ::-1])
        at_edge = jnp.exp(-c * x0) * jnp.stack([jnp.stack([-jnp.expm1(-x0), jnp.exp(-x0)]), jnp.exp(-x0) * _DIFFERENCE])
        some = [weight]
        if weighted:
            some += [weight * (it.least[0] + k), weight * (it.least[1] + column)]
            some += [weight * jax.lax.dynamic_slice(psi, (k,), (COLUMNS,))]
        return state[0] + at_edge @ (falls @ jnp.stack(some).T), state[1] + weight.sum()

    start = jnp.zeros((2, 4 if weighted else 1), c.dtype), jnp.zeros((), c.dtype)
    found, whole = jax.lax.fori_loop(0, it.rows, row, start)
    return found / whole, it.order


_DIFFERENCE = np.array([1.0, -1.0])


@jax.custom_jvp
def log_delta(reports: Three, epsilon: Real, c: Real) -> Real:
    """log delta; c changes only what is precise, and has no derivative.

    That in n is of the factorials: it says how delta moves from count to count.
    """
    return _value_and_slope(reports, epsilon, c)[0]


def _value_and_slope(reports: Three, epsilon: Any, c: Any) -> tuple[Real, Real]:
    (value, further), _ = _sums(reports, c, epsilon)
    value, further = value[0], further[0]
    known = ~(value <= 0)  # NaN stays.
    value = jnp.where(known, value, 1.0)
    log_value = jnp.where(known, jnp.log(value), -jnp.inf) + reports.log_scale(epsilon, c)
    return log_value, jnp.where(known, -further / value, 0.0)


@log_delta.defjvp
def _log_delta_jvp(
    primals: tuple[Three, jax.Array, jax.Array], tangents: tuple[Three, jax.Array, jax.Array]
) -> tuple[Real, Real]:
    (reports, epsilon, c), (moved, by_epsilon, _) = primals, tangents
    (gain, further), order = _sums(reports, c, epsilon, weighted=True)
    n, heaviest, known = reports.count, order[2], ~(gain[0] <= 0)  # NaN stays.

    def by_loss(parts: jax.Array) -> RealArray:
        """Of the counts of each loss."""
        a, b = parts[1], parts[2]
        return jnp.zeros(3, parts.dtype).at[order].set(jnp.stack([a, b, n * parts[0] - a - b]))

    # One more loss of no mass yet is as likely as any one report is to have it.
    counts = jnp.where(reports.mass > 0, by_loss(gain) / _positive(reports.mass), 0.0)
    by_count = gain[0] * (digamma(n + 1.0) + jnp.log(reports.mass[heaviest])) - gain[3]
    by_count = by_count + further[0] * reports.loss[heaviest]
    rise = (counts * moved.mass).sum() + (by_loss(further) * moved.loss).sum() + by_count * moved.count
    value = jnp.where(known, gain[0], 1.0)
    log_value = jnp.where(known, jnp.log(value), -jnp.inf) + reports.log_scale(epsilon, c)
    return log_value, jnp.where(known, (rise - further[0] * by_epsilon) / value, 0.0)


def epsilon_at(reports: Three, log_target: RealArray, c: Real, guess: Real) -> RealArray:
    """eps at which log delta is this one, 0 where it is below at 0; derivatives are implicit."""
    still, goal = jax.lax.stop_gradient((reports, log_target))
    possible = jnp.where(still.mass > 0, still.loss, jnp.nan)
    least, most = still.count * jnp.nanmin(possible), still.count * jnp.nanmax(possible)

    def unfinished(state: tuple[Real, ...]) -> Any:
        k, eps, step, *_ = state
        return (k < _STEPS) & (jnp.abs(step) > _PRECISE * jnp.abs(eps))

    def newton(state: tuple[Real, ...]) -> Any:
        """To the next trial from what is known of this one; of the first one nothing is."""
        k, eps, _, value, slope, low, high = state
        new = eps - (value - goal) / jnp.where(slope < 0, slope, -1.0)
        new = jnp.where((new >= low) & (new <= high) & (slope < 0), new, (low + high) / 2)
        value, slope = _value_and_slope(still, new, c)
        low, high = jnp.where(value > goal, new, low), jnp.where(value > goal, high, new)
        return k + 1, new, jnp.where(k > 0, new - eps, jnp.inf), value, slope, low, high

    falling = jnp.full_like(goal, -1.0)
    state = 0, jnp.clip(guess, least, most), falling, goal, falling, least, most
    _, eps, _, _, slope, *_ = jax.lax.while_loop(unfinished, newton, state)
    value = log_delta(reports, eps, c)
    moved = (value - jax.lax.stop_gradient(value)) - (log_target - goal)
    return jnp.where(eps <= 0, 0.0, eps - moved / jnp.where(slope < 0, slope, -1.0))
