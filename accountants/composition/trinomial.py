"""Reports of three losses, summed up outcome by outcome: no grid, so that samples, whose losses fit none, are exact.

Of n reports a have the lightest loss, b the larger and m - b the smaller of the two others, m = n - a. For every a all
b from E on are above eps: with P(a, b) the probability of such counts, x their loss less eps, and t = p_b/(p_b + p_c),

    delta(eps) = sum over a of P_n(a) T_p - e^eps Q_n(a) T_q,    T = P(b >= E | a) = I_t(E, m - E + 1),
    P_n(a) T = P(a, E) E int_0^inf e^-phi(v) dv,    phi(v) = E v - (m - E) log((1 - t e^-v)/(1 - t)),

where E >= m t, so that phi is convex and rises; where it is less, the same of b < E. Derivatives are sums of counts:
that in the mass of an outcome is its count over that mass, in its loss e^eps times its count under q, where

    P_n(a) E[b; b >= E | a] = P_n(a) T m t + (1 - t) E P(a, E).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, xlogy

from accountants.pairs.losses import Losses
from dpkernels.numerics import gauss_legendre, like
from dpkernels.pytrees import pytree

# Counts of the lightest loss that are kept, at most, how far they reach (e^-33 is beyond), and how many at once.
ROWS, _BLOCK = 2048, 64
_DEVIATIONS, _FURTHER = 8.2, 16.0
# Pairs of more outcomes than this are not looked at for equal losses; losses that are equal.
MOST_OUTCOMES, _SAME = 16, 1e-12
# phi is followed up to here, and Newton's steps to where that is.
_DEEP, _STEPS = 35.0, 3
_FAR = 0.85  # Of the exponents that do not overflow.
_S, _WEIGHTS = gauss_legendre(30)
_NODES, _WEIGHTS = _S**2, 2 * _S * _WEIGHTS
# From here on log k! is Stirling's series: (k + 1/2) log k - k + log(2 pi)/2 + 1/(12 k) - 1/(360 k^3) ...
_STIRLING_FROM, _HALF_LOG = 16.0, math.log(2 * math.pi) / 2


@pytree
@dataclass(frozen=True)
class Three:
    """n reports of three losses.

    Attributes:
        mass: probabilities, of shape (3,), of what is not there, too, at least 1e-154, or 1e-19 in 32 bits.
        loss: the losses.
        counts: n; where there are to be derivatives n - 1, too.
        tilt: c, which says what counts matter, and changes no value.
    """

    mass: Any
    loss: Any
    counts: Any
    tilt: Any

    def tilted(self) -> Any:
        """Masses times e^(c l), made to sum to 1."""
        return jax.nn.softmax(jnp.log(self.mass) + self.tilt * self.loss)

    def nothing(self) -> Any:
        """The shape of what ``read`` has seen."""
        return jnp.zeros((*self.counts.shape, 2, 4), self.tilt.dtype)

    def read(self, epsilon: Any) -> tuple[Any, Any, Any]:
        """(log delta of finite losses, its derivative in eps, the sums that it is of)."""
        seen = jax.vmap(lambda count: _sums(self, count, epsilon))(self.counts)
        value, further = seen[0, :, 0]
        known = ~(value <= 0)  # NaN stays.
        value = jnp.where(known, value, 1.0)
        return jnp.where(known, jnp.log(value), -jnp.inf), jnp.where(known, -further / value, 0.0), seen

    def tells(self, epsilon: Any, *_: Any) -> Any:
        """Whether floats tell which eps it is."""
        return epsilon > -jnp.inf

    def slopes(self, seen: Any) -> tuple[Three, Any]:
        """Derivatives of delta in all of this, and in eps. That in the count is what the last report adds."""
        (value, *by_mass), (further, *by_loss) = seen[0]
        by_count = jnp.stack([value - seen[1, 0, 0], 0.0 * value])
        return Three(jnp.stack(by_mass) / self.mass, jnp.stack(by_loss), by_count, 0.0 * self.tilt), -further


def three(nodes: Losses, counts: Any, tilt: Any) -> tuple[Three, Any]:
    """(the largest, the least and the heaviest other finite loss with what they have; whether there are no others)."""
    log_p, loss = nodes.finite
    p, real = jnp.exp(log_p), ~jnp.isneginf(log_p)
    still = jax.lax.stop_gradient(loss)
    near = _SAME * (1 + jnp.abs(still))
    first = real & (still >= jnp.where(real, still, -jnp.inf).max() - near)
    second = real & ~first & (still <= jnp.where(real, still, jnp.inf).min() + near)
    rest = real & ~first & ~second
    third = rest & (jnp.abs(still - still[jnp.where(rest, p, 0.0).argmax()]) <= near)
    found = jnp.where(jnp.stack([first, second, third]), p, 0.0)
    mass = found.sum(-1)
    mean = (found * loss).sum(-1) / jnp.where(mass > 0, mass, 1.0)
    mass = jnp.maximum(mass, jnp.finfo(mass.dtype).tiny ** 0.5)
    return Three(mass, mean, jnp.asarray(counts, mass.dtype), jax.lax.stop_gradient(tilt)), ~(rest & ~third).any()


def _rows(reports: Three, count: Any) -> tuple[Any, Any]:
    """The first and the last count of the lightest loss that matter."""
    mean = count * reports.tilted().min()
    reach = _DEVIATIONS * jnp.sqrt(mean) + _FURTHER
    return jnp.maximum(jnp.ceil(mean - reach), 0.0), jnp.minimum(count, mean + reach)


def fits(reports: Three) -> Any:
    """Whether all the counts that matter are kept."""
    first, last = _rows(reports, reports.counts[0])
    return last - first < ROWS


def _sums(reports: Three, count: Any, epsilon: Any) -> Any:
    """Of what is above eps the sums of p - e^eps q and e^eps q, and of these times each outcome's count: (2, 4)."""
    order = jnp.argsort(reports.tilted())
    # The larger of the two others first.
    order = jnp.where(reports.loss[order[2]] > reports.loss[order[1]], order[np.array([0, 2, 1])], order)
    loss, mass = reports.loss[order], reports.mass[order]
    first, last = _rows(reports, count)

    def block(state: Any) -> Any:
        start, total = state
        a = start + jnp.arange(_BLOCK, dtype=mass.dtype)
        return start + _BLOCK, total + jnp.where(a <= last, _row_sums(count, mass, loss, epsilon, a), 0.0).sum(-1)

    _, total = jax.lax.while_loop(lambda state: state[0] <= last, block, (first, jnp.zeros((2, 4), mass.dtype)))
    return total[:, jnp.append(0, 1 + jnp.argsort(order))]


def _row_sums(n: Any, mass: Any, loss: Any, epsilon: Any, a: Any) -> Any:
    """The terms of ``_sums`` of each a: of shape (2, 4, a)."""
    m = jnp.maximum(n - a, 0.0)
    gap = jnp.maximum(loss[1] - loss[2], jnp.finfo(loss.dtype).tiny)
    edge = jnp.floor((epsilon - a * loss[0] - m * loss[2]) / gap) + 1
    some, all_of_it = (edge >= 1) & (edge <= m), edge < 1
    E = jnp.clip(edge, 1.0, jnp.maximum(m, 1.0))
    # Under p and under q, of which the masses are those of p times e^-l.
    far = _FAR * jnp.log(jnp.finfo(loss.dtype).max)
    two = mass[1:] * jnp.exp(np.array([[0], [1]]) * jnp.minimum(loss[1] - loss[1:], far))
    t, rest = (two / two.sum(-1, keepdims=True)).T[..., None]
    turned = m * t >= E
    # b >= E, or else the other one's count >= m - E + 1 and the first one's E - 1.
    k, b = jnp.where(turned, m - E + 1, E), jnp.where(turned, E - 1, E)
    p_all, p_edge = jnp.where(a <= n, _probabilities(n, mass, a, m, b), 0.0)
    # Masses under q times e^eps: of all b, and the outcome's own, e^(eps - S).
    shares = mass[1:] / mass[1:].sum()
    by_all = jnp.exp(epsilon - a * loss[0] - m * loss[1] + m * jnp.log((shares * jnp.exp(loss[1] - loss[1:])).sum()))
    by_loss = jnp.exp(epsilon - a * loss[0] - b[1] * loss[1] - (m - b[1]) * loss[2])
    one = jnp.ones_like(a)
    whole, at_edge = p_all[0] * jnp.stack([one, by_all]), p_edge * jnp.stack([one, by_loss])
    beyond = at_edge * _integrals(k, m, jnp.where(turned, rest, t))
    above = jnp.where(all_of_it, whole, jnp.where(some, jnp.where(turned, whole - beyond, beyond), 0.0))
    moved = jnp.where(some, jnp.where(turned, t, rest) * k * at_edge, 0.0)
    p, q = jnp.stack([above, a * above, m * t * above + moved, m * rest * above - moved], 1)
    return jnp.stack([p - q, q])


def _integrals(k: Any, m: Any, t: Any) -> Any:
    """k times the integral of e^-phi over v > 0, 1 <= k <= m and k >= m t, by Gauss-Legendre in sqrt(v)."""
    tiny = jnp.finfo(k.dtype).tiny
    odds, rest = t / jnp.maximum(1 - t, tiny), jnp.maximum(m - k, 0.0)
    rise, bend = jnp.maximum(k - rest * odds, 0.0), rest * odds * (1 + odds)
    end = 2 * _DEEP / (rise + jnp.sqrt(rise**2 + 2 * _DEEP * bend))
    for _ in range(_STEPS):
        share = -jnp.expm1(-end)
        size = 1 + odds * share
        slope = k - rest * odds * (1 - share) / size
        end = end - (k * end - rest * jnp.log(size) - _DEEP) / jnp.maximum(slope, tiny)
    v = end[..., None] * like(_NODES, end)
    value = jnp.exp(rest[..., None] * jnp.log1p(-odds[..., None] * jnp.expm1(-v)) - k[..., None] * v)
    return k * end * (value * like(_WEIGHTS, end)).sum(-1)


def _probabilities(n: Any, mass: Any, a: Any, m: Any, b: Any) -> Any:
    """P_n(a) and P(a, b) = n!/prod k_j! prod p_j^k_j, by Poisson's probabilities, of b in two rows: (2, 2, a)."""
    counts = jnp.stack(jnp.broadcast_arrays(a, m, n, *b, *(m - b)))
    share = mass / mass.sum()
    means = n * jnp.stack([share[0], share[1] + share[2], jnp.ones_like(n), share[1], share[1], share[2], share[2]])
    first, others, all_of_it, *two = _log_poisson(counts, means[:, None])
    first = first - all_of_it + n * jnp.log(mass.sum())
    return jnp.exp(first + jnp.stack([jnp.stack([others, others]), jnp.stack(two[:2]) + jnp.stack(two[2:])]))


def _log_poisson(k: Any, mean: Any) -> Any:
    """log of Poisson's probability (Loader 2000): errors are roundings of the deviation, not of k log k."""
    few = jnp.minimum(k, _STIRLING_FROM)
    exact = xlogy(few, mean) - mean - gammaln(few + 1)
    k, mean = jnp.maximum(k, _STIRLING_FROM), jnp.maximum(mean, jnp.finfo(k.dtype).tiny ** 0.9)
    e, square = (k - mean) / mean, 1 / k**2
    series = (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square * (1 / 1680 - square / 1188)))) / k
    deviance = mean * ((1 + e) * jnp.log1p(e) - e)
    return jnp.where(few < _STIRLING_FROM, exact, -deviance - series - jnp.log(k) / 2 - _HALF_LOG)
