"""Reports of three losses, summed up outcome by outcome: no grid, so that samples, whose losses fit none, are exact.

Of n reports a have the lightest loss, b the larger and m - b the smaller of the two others, m = n - a. For every a all
b from E on are above eps: with P(a, b) the probability of such counts, x their loss less eps, and t = p_b/(p_b + p_c),

    delta(eps) = sum over a of P_n(a) T_p - e^eps Q_n(a) T_q,    T = P(b >= E | a) = I_t(E, m - E + 1),
    P_n(a) T = P(a, E) E int_0^inf e^-phi(v) dv,    phi(v) = E v - (m - E) log((1 - t e^-v)/(1 - t)),

where E >= m t, so that phi is convex and rises; where it is less, the same of b < E. Derivatives are those of a
homogeneous polynomial: n delta_(n-1)(eps - l_j) in the mass of the loss l_j.
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
from dpkernels.numerics import Real, RealArray, gauss_legendre, like
from dpkernels.pytrees import pytree

# Counts of the lightest loss that are kept, at most, how far they reach (e^-33 is beyond), and how many at once.
ROWS, _BLOCK = 2048, 64
_DEVIATIONS, _FURTHER = 8.2, 16.0
# Pairs of more outcomes than this are not looked at for equal losses; losses that are equal.
MOST_OUTCOMES, _SAME = 16, 1e-12
# phi is followed up to here, and Newton's steps to where that is.
_DEEP, _STEPS = 35.0, 3
_FAR = 600.0  # Of e^x, below overflow.
_S, _WEIGHTS = gauss_legendre(30)
_NODES, _WEIGHTS = _S**2, 2 * _S * _WEIGHTS
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
        tilt: c, which says what counts matter, and changes no value.
    """

    mass: Any
    loss: Any
    count: Any
    tilt: Any

    def tilted(self) -> Any:
        """Masses times e^(c l), made to sum to 1."""
        return jax.nn.softmax(jnp.log(_positive(self.mass)) + self.tilt * self.loss)

    def nothing(self) -> Any:
        """The shape of what ``read`` has seen."""
        return self.tilt

    def read(self, epsilon: Any) -> tuple[Any, Any, Any]:
        """(log delta of finite losses, its derivative in eps, where)."""
        value, further = delta(self, epsilon)
        known = ~(value <= 0)  # NaN stays.
        value = jnp.where(known, value, 1.0)
        return jnp.where(known, jnp.log(value), -jnp.inf), jnp.where(known, -further / value, 0.0), epsilon

    def tells(self, epsilon: Any, *_: Any) -> Any:
        """Whether floats tell which eps it is."""
        return epsilon > -jnp.inf

    def slopes(self, epsilon: Any) -> tuple[Three, Any]:
        """Derivatives of delta in all of this, and in eps. That in the count is what the last report adds."""
        n, mass, loss = self.count, self.mass, self.loss
        moves = jnp.append(loss, 0.0)
        gain, further = jax.vmap(lambda move: delta(Three(mass, loss, n - 1, self.tilt), epsilon - move))(moves)
        by_mass, by_loss = gain[:3], mass * further[:3]
        return Three(n * by_mass, n * by_loss, (mass * by_mass).sum() - gain[3], 0.0 * self.tilt), -by_loss.sum()


def _positive(mass: RealArray) -> Real:
    return jnp.maximum(mass, jnp.finfo(mass.dtype).tiny)


def three(nodes: Losses, count: Any, tilt: Any) -> tuple[Three, Any]:
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
    return Three(mass, mean, jnp.asarray(count, mass.dtype), jax.lax.stop_gradient(tilt)), ~(rest & ~third).any()


def _rows(reports: Three) -> tuple[Any, Any]:
    """The first and the last count of the lightest loss that matter."""
    mean = reports.count * reports.tilted().min()
    reach = _DEVIATIONS * jnp.sqrt(mean) + _FURTHER
    return jnp.maximum(jnp.ceil(mean - reach), 0.0), jnp.minimum(reports.count, mean + reach)


def fits(reports: Three) -> Any:
    """Whether all the counts that matter are kept."""
    first, last = _rows(reports)
    return last - first < ROWS


def delta(reports: Three, epsilon: Any) -> tuple[Any, Any]:
    """(delta of finite losses, e^eps times the probability under q of a loss above eps); no derivatives."""
    order = jnp.argsort(reports.tilted())
    loss, mass = reports.loss[order], reports.mass[order]
    # The larger of the two others first.
    order = jnp.where(loss[2] > loss[1], np.array([0, 2, 1]), np.array([0, 1, 2]))
    loss, mass = loss[order], mass[order]
    first, last = _rows(reports)

    def block(state: Any) -> Any:
        start, total = state
        a = start + jnp.arange(_BLOCK, dtype=mass.dtype)
        p, q = _row_sums(reports.count, mass, loss, epsilon, a)
        kept = a <= last
        return start + _BLOCK, total + jnp.stack([jnp.where(kept, p - q, 0.0).sum(), jnp.where(kept, q, 0.0).sum()])

    _, total = jax.lax.while_loop(lambda state: state[0] <= last, block, (first, jnp.zeros(2, mass.dtype)))
    return total[0], total[1]


def _row_sums(n: Any, mass: Any, loss: Any, epsilon: Any, a: Any) -> tuple[Any, Any]:
    """P_n(a) T_p and e^eps Q_n(a) T_q of each a."""
    m = jnp.maximum(n - a, 0.0)
    gap = jnp.maximum(loss[1] - loss[2], jnp.finfo(loss.dtype).tiny)
    edge = jnp.floor((epsilon - a * loss[0] - m * loss[2]) / gap) + 1
    some, all_of_it = (edge >= 1) & (edge <= m), edge < 1
    E = jnp.clip(edge, 1.0, jnp.maximum(m, 1.0))
    # Under p and under q, of which the masses are those of p times e^-l.
    two = mass[1:] * jnp.exp(np.array([[0], [1]]) * jnp.minimum(loss[1] - loss[1:], _FAR))
    t = two[:, :1] / _positive(two.sum(-1, keepdims=True))
    turned = m * t >= E
    # b >= E, or else the other one's count >= m - E + 1 and the first one's E - 1.
    k, t = jnp.where(turned, m - E + 1, E), jnp.where(turned, 1 - t, t)
    b = jnp.where(turned, E - 1, E)
    below = jnp.where(a <= n, jnp.exp(_log_weight(n, mass, (a, b, m - b))), 0.0)
    beyond = below * _integrals(k, m, t)
    whole = jnp.exp(_log_weight(n, jnp.stack([mass[0], mass[1] + mass[2]]), (a, m)))
    whole = jnp.where(a <= n, whole, 0.0)
    # Masses under q times e^eps: the outcome's own, e^(eps - S), and of all b.
    by_loss = jnp.exp(epsilon - a * loss[0] - b * loss[1] - (m - b) * loss[2])
    shares = mass[1:] / _positive(mass[1:].sum())
    by_all = jnp.exp(epsilon - a * loss[0] - m * loss[1] + m * jnp.log((shares * jnp.exp(loss[1] - loss[1:])).sum()))
    whole, beyond = whole * jnp.stack([0 * a + 1, by_all]), beyond * jnp.stack([0 * a + 1, by_loss[1]])
    p, q = jnp.where(all_of_it, whole, jnp.where(some, jnp.where(turned, whole - beyond, beyond), 0.0))
    return p, q


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


def _log_weight(n: Any, mass: Any, counts: tuple[Any, ...]) -> Any:
    """log of n!/prod k_j! prod p_j^k_j, by Poisson's probabilities."""
    whole = mass.sum()
    parts = sum(_log_poisson(k, n * p / whole) for k, p in zip(counts, mass, strict=True))
    return parts - _log_poisson(n, n) + n * jnp.log(whole)


def _log_poisson(k: Any, mean: Any) -> Any:
    """log of Poisson's probability (Loader 2000): errors are roundings of the deviation, not of k log k."""
    few = jnp.minimum(k, _STIRLING_FROM)
    exact = xlogy(few, mean) - mean - gammaln(few + 1)
    k, mean = jnp.maximum(k, _STIRLING_FROM), jnp.maximum(mean, jnp.finfo(k.dtype).tiny ** 0.9)
    e, square = (k - mean) / mean, 1 / k**2
    series = (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square * (1 / 1680 - square / 1188)))) / k
    deviance = mean * ((1 + e) * jnp.log1p(e) - e)
    return jnp.where(few < _STIRLING_FROM, exact, -deviance - series - jnp.log(k) / 2 - _HALF_LOG)
