"""Composition by enumeration: losses with three values, and releases with few outcomes.

Both are exact up to rounding, also for samples, whose losses fit no grid.

Of n releases, let a have the lightest loss, and let b have the larger and m - b the smaller of the other two losses,
m = n - a. For every a, the sum of losses exceeds eps for all b from some E on. With P(a, b) the probability of these
counts and t = p_b/(p_b + p_c),

    delta(eps) = sum over a of P_n(a) T_p - e^eps Q_n(a) T_q,    T = P(b >= E | a) = I_t(E, m - E + 1),
    P_n(a) T = P(a, E) E int_0^inf e^-phi(v) dv,    phi(v) = E v - (m - E) log((1 - t e^-v)/(1 - t)),

where E >= m t, so that phi is convex and rises. For a smaller E the same formulas are used for b < E. Derivatives are
sums of counts. The derivative in the mass of an outcome is its count over that mass; in its loss it is e^eps times its
count under q, where

    P_n(a) E[b; b >= E | a] = P_n(a) T m t + (1 - t) E P(a, E).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from accountants.closed_forms.pure import log_ways
from accountants.composition.base import ComposedProfile
from accountants.composition.self_composed import SelfComposed
from accountants.dominating_pairs.additive import AdditivePair
from accountants.dominating_pairs.discrete import Atoms
from accountants.dominating_pairs.replaced import replaced_atoms
from accountants.privacy_loss import PrivacyLossDistribution, log_ratio
from dpkernels import checks
from dpkernels.numerics import (
    Real,
    gauss_legendre,
    like,
    log_or_never,
    map_over,
    namespace,
    special_functions,
    without_derivative,
)
from dpkernels.pytrees import pytree
from dpkernels.solve import while_loop

# The most counts of the lightest loss that are kept, the block in which they are summed, and the range of counts in
# deviations and in counts; e^-33 is beyond.
ROWS, _BLOCK = 2048, 64
_DEVIATIONS, _FURTHER = 8.2, 16.0
# Pairs with more outcomes are not searched for equal losses; relative difference up to which losses are equal.
MOST_OUTCOMES, _SAME = 16, 1e-12
# The value up to which phi is integrated, and the Newton steps to the point where it has that value.
_DEEP, _STEPS = 35.0, 3
_FAR = 0.85  # The share of the largest exponent without overflow that is used.
_S, _WEIGHTS = gauss_legendre(30)
_NODES, _WEIGHTS = _S**2, 2 * _S * _WEIGHTS
# From here on log k! is Stirling's series: (k + 1/2) log k - k + log(2 pi)/2 + 1/(12 k) - 1/(360 k^3) ...
_STIRLING_FROM, _HALF_LOG = 16.0, math.log(2 * math.pi) / 2
MOST_JOINT_OUTCOMES = 1 << 18  # The most joint outcomes of several tables that are enumerated: arrays of 2 MB.
_FEW_JOINT_OUTCOMES = 1 << 12  # The same number for one mechanism, or for some that are no tables but have few losses.


# Losses with three values


@pytree
@dataclass(frozen=True)
class ThreePointLoss(ComposedProfile):
    """The sum of n independent losses that have three values."""

    mass: Any  # The probabilities, of shape (3,); at least 1e-154, or 1e-19 in 32 bits, also for absent ones.
    loss: Any
    counts: Any  # n; where derivatives are needed, also n - 1.
    tilt: Any  # c, which decides which counts are summed, and changes no value.

    def tilted(self) -> Any:
        """Return masses times e^(c l), made to sum to 1."""
        xp = namespace(self.mass, self.tilt)
        size = xp.log(self.mass) + self.tilt * self.loss
        masses = xp.exp(size - size.max())
        return masses / masses.sum()

    def empty(self) -> Any:
        return namespace(self.tilt).zeros((*self.counts.shape, 2, 4), self.tilt.dtype)

    def evaluate(self, epsilon: Any) -> tuple[Any, Any, Any]:
        xp = namespace(self.mass, epsilon)
        if xp is np:
            sums = np.stack([_sums(self, count, epsilon) for count in self.counts])
        else:
            sums = jax.vmap(lambda count: _sums(self, count, epsilon))(self.counts)
        value, further = sums[0, :, 0]
        known = ~(value <= 0)  # NaN stays.
        value = xp.where(known, value, 1.0)
        return xp.where(known, xp.log(value), -np.inf), xp.where(known, -further / value, 0.0), sums

    def gradient(self, evaluation: Any) -> tuple[ThreePointLoss, Any]:
        """Return derivatives of delta in all fields and in eps; in the count, the difference to one release less."""
        stack = namespace(evaluation).stack
        (value, *by_mass), (further, *by_loss) = evaluation[0]
        by_count = stack([value - evaluation[1, 0, 0], 0.0 * value])
        return ThreePointLoss(stack(by_mass) / self.mass, stack(by_loss), by_count, 0.0 * self.tilt), -further


def three_point_loss(nodes: PrivacyLossDistribution, counts: Any, tilt: Any) -> tuple[ThreePointLoss, Any]:
    """Return the sum of losses reduced to the largest, least and heaviest other one, and whether these are all."""
    log_p, loss = nodes.finite
    xp = namespace(log_p, tilt)
    p, real = xp.exp(log_p), ~xp.isneginf(log_p)
    still = without_derivative(loss)
    near = _SAME * (1 + xp.abs(still))
    first = real & (still >= xp.where(real, still, -np.inf).max() - near)
    second = real & ~first & (still <= xp.where(real, still, np.inf).min() + near)
    rest = real & ~first & ~second
    third = rest & (xp.abs(still - still[xp.where(rest, p, 0.0).argmax()]) <= near)
    found = xp.where(xp.stack([first, second, third]), p, 0.0)
    mass = found.sum(-1)
    mean = (found * loss).sum(-1) / xp.where(mass > 0, mass, 1.0)
    mass = xp.maximum(mass, xp.finfo(mass.dtype).tiny ** 0.5)
    counts = xp.asarray(counts, mass.dtype)
    return ThreePointLoss(mass, mean, counts, without_derivative(tilt)), ~(rest & ~third).any()


def _rows(releases: ThreePointLoss, count: Any) -> tuple[Any, Any]:
    xp = namespace(releases.mass, count)
    mean = count * releases.tilted().min()
    reach = _DEVIATIONS * xp.sqrt(mean) + _FURTHER
    return xp.maximum(xp.ceil(mean - reach), 0.0), xp.minimum(count, mean + reach)


def is_enumerable(releases: ThreePointLoss) -> Any:
    """Return whether all relevant counts are kept."""
    first, last = _rows(releases, releases.counts[0])
    return last - first < ROWS


def _sums(releases: ThreePointLoss, count: Any, epsilon: Any) -> Any:
    """Return the sums above eps of p - e^eps q and of e^eps q, and these times each outcome's count: (2, 4)."""
    xp = namespace(releases.mass, epsilon)
    order = xp.argsort(releases.tilted())
    # Put the larger of the two other losses first.
    order = xp.where(releases.loss[order[2]] > releases.loss[order[1]], order[np.array([0, 2, 1])], order)
    loss, mass = releases.loss[order], releases.mass[order]
    first, last = _rows(releases, count)
    # NumPy takes all rows at once, because its time depends on the number of calls.
    size = _BLOCK if xp is not np else max(int(last - first) + 1, 1)

    def add_block(state: Any) -> Any:
        start, total = state
        a = start + xp.arange(size, dtype=mass.dtype)
        return start + size, total + xp.where(a <= last, _row_sums(count, mass, loss, epsilon, a), 0.0).sum(-1)

    _, total = while_loop(lambda state: state[0] <= last, add_block, (first, xp.zeros((2, 4), mass.dtype)))
    return total[:, xp.concatenate([xp.zeros(1, int), 1 + xp.argsort(order)])]


def _row_sums(n: Any, mass: Any, loss: Any, epsilon: Any, a: Any) -> Any:
    """Return the terms of ``_sums`` for each a, of shape (2, 4, a)."""
    xp = namespace(mass, epsilon, a)
    m = xp.maximum(n - a, 0.0)
    gap = xp.maximum(loss[1] - loss[2], xp.finfo(loss.dtype).tiny)
    edge = xp.floor((epsilon - a * loss[0] - m * loss[2]) / gap) + 1
    some, all_of_it = (edge >= 1) & (edge <= m), edge < 1
    E = xp.clip(edge, 1.0, xp.maximum(m, 1.0))
    # Compute both under p and under q, whose masses are those of p times e^-l.
    far = _FAR * xp.log(xp.finfo(loss.dtype).max)
    two = mass[1:] * xp.exp(np.array([[0], [1]]) * xp.minimum(loss[1] - loss[1:], far))
    t, rest = (two / two.sum(-1, keepdims=True)).T[..., None]
    turned = m * t >= E
    # Either b >= E, or the complement: the other count >= m - E + 1 and the first one at most E - 1.
    k, b = xp.where(turned, m - E + 1, E), xp.where(turned, E - 1, E)
    p_all, p_edge = xp.where(a <= n, _probabilities(n, mass, a, m, b), 0.0)
    # Masses under q times e^eps: of all b together, and of the outcome at the edge, e^(eps - S).
    shares = mass[1:] / mass[1:].sum()
    by_all = xp.exp(epsilon - a * loss[0] - m * loss[1] + m * xp.log((shares * xp.exp(loss[1] - loss[1:])).sum()))
    by_loss = xp.exp(epsilon - a * loss[0] - b[1] * loss[1] - (m - b[1]) * loss[2])
    one = xp.ones_like(a)
    whole, at_edge = p_all[0] * xp.stack([one, by_all]), p_edge * xp.stack([one, by_loss])
    beyond = at_edge * _integrals(k, m, xp.where(turned, rest, t))
    above = xp.where(all_of_it, whole, xp.where(some, xp.where(turned, whole - beyond, beyond), 0.0))
    moved = xp.where(some, xp.where(turned, t, rest) * k * at_edge, 0.0)
    p, q = xp.stack([above, a * above, m * t * above + moved, m * rest * above - moved], 1)
    return xp.stack([p - q, q])


def _integrals(k: Any, m: Any, t: Any) -> Any:
    """Return k times the integral of e^-phi over v > 0, by Gauss-Legendre in sqrt(v); 1 <= k <= m and k >= m t."""
    xp = namespace(k, t)
    tiny = xp.finfo(k.dtype).tiny
    odds, rest = t / xp.maximum(1 - t, tiny), xp.maximum(m - k, 0.0)
    rise, bend = xp.maximum(k - rest * odds, 0.0), rest * odds * (1 + odds)
    end = 2 * _DEEP / (rise + xp.sqrt(rise**2 + 2 * _DEEP * bend))
    for _ in range(_STEPS):
        share = -xp.expm1(-end)
        size = 1 + odds * share
        slope = k - rest * odds * (1 - share) / size
        end = end - (k * end - rest * xp.log(size) - _DEEP) / xp.maximum(slope, tiny)
    v = end[..., None] * like(_NODES, end)
    value = xp.exp(rest[..., None] * xp.log1p(-odds[..., None] * xp.expm1(-v)) - k[..., None] * v)
    return k * end * (value * like(_WEIGHTS, end)).sum(-1)


def _probabilities(n: Any, mass: Any, a: Any, m: Any, b: Any) -> Any:
    """Return P_n(a) and P(a, b) = n!/prod k_j! prod p_j^k_j, with b in two rows: (2, 2, a)."""
    xp = namespace(mass, a)
    counts = xp.stack(xp.broadcast_arrays(a, m, n, *b, *(m - b)))
    share = mass / mass.sum()
    means = n * xp.stack([share[0], share[1] + share[2], xp.ones_like(n), share[1], share[1], share[2], share[2]])
    first, others, all_of_it, *two = _log_poisson(counts, means[:, None])
    first = first - all_of_it + n * xp.log(mass.sum())
    return xp.exp(first + xp.stack([xp.stack([others, others]), xp.stack(two[:2]) + xp.stack(two[2:])]))


def _log_poisson(k: Any, mean: Any) -> Any:
    """Return the log of the Poisson probability (Loader 2000), with rounding errors of the deviation, not k log k."""
    xp, special = namespace(k, mean), special_functions(k)
    few = xp.minimum(k, _STIRLING_FROM)
    exact = special.xlogy(few, mean) - mean - special.gammaln(few + 1)
    k, mean = xp.maximum(k, _STIRLING_FROM), xp.maximum(mean, xp.finfo(k.dtype).tiny ** 0.9)
    e, square = (k - mean) / mean, 1 / k**2
    series = (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square * (1 / 1680 - square / 1188)))) / k
    deviance = mean * ((1 + e) * xp.log1p(e) - e)
    return xp.where(few < _STIRLING_FROM, exact, -deviance - series - xp.log(k) / 2 - _HALF_LOG)


# Releases with few outcomes


class JointOutcomes(NamedTuple):
    """Logs of the probabilities of every joint outcome under p and under q, for one neighbour direction."""

    log_p: Any
    log_q: Any

    def _loss(self) -> tuple[Any, Any]:
        """Return the losses, and whether a probability is NaN, which comparisons would take for no loss."""
        xp = namespace(self.log_p, self.log_q)
        return log_ratio(self.log_p, self.log_q), (xp.isnan(self.log_p) | xp.isnan(self.log_q)).any()

    def delta(self, epsilon: Any) -> Any:
        xp = namespace(self.log_p, self.log_q, epsilon)
        loss, is_unknown = self._loss()
        beyond = xp.minimum(xp.minimum(epsilon, xp.finfo(self.log_p.dtype).max) - loss, 0.0)  # Also for infinite eps.
        total = (xp.exp(self.log_p) * -xp.expm1(beyond)).sum()
        return xp.where(is_unknown, np.nan, total - without_derivative(xp.maximum(total - 1.0, 0.0)))

    def epsilon(self, delta: Any) -> Any:
        """Return the least eps >= 0 at one delta.

        Between two losses delta is P - e^(eps - l) R, for all outcomes with larger losses l' and the smallest of these,
        l: P is their probability, R the sum of p e^(l - l'), so that nothing overflows.
        """
        xp = namespace(self.log_p, self.log_q, delta)
        loss, is_unknown = self._loss()
        order = xp.argsort(without_derivative(-loss))
        p, loss, log_q = xp.exp(self.log_p[order]), loss[order], without_derivative(self.log_q[order])
        above = np.logaddexp.accumulate(log_q) if xp is np else jax.lax.cumlogsumexp(log_q)
        finite, P = xp.isfinite(loss), xp.cumsum(p)
        exponents = xp.where(finite, xp.where(finite, loss, 0.0) + xp.where(finite, above, 0.0), -np.inf)
        lower = without_derivative(P - xp.exp(exponents))
        last = xp.maximum((lower <= delta).sum() - 1, 0)
        least = without_derivative(xp.where(finite[last], loss[last], 0.0))
        larger = np.arange(len(p)) <= last
        R = xp.where(larger, p * xp.exp(xp.where(larger, least - loss, 0.0)), 0.0).sum()
        some = (delta < P[last]) & (R > 0) & (self.delta(xp.zeros_like(delta)) > delta)
        eps = xp.where(some, least + xp.log(xp.where(some, P[last] - delta, 1.0)) - xp.log(xp.where(some, R, 1.0)), 0.0)
        # A maximum would halve the derivative at equal values.
        eps = eps + without_derivative(xp.maximum(-eps, 0.0))
        eps = xp.where(xp.where(loss < np.inf, 0.0, p).sum() >= delta, np.inf, eps)
        return xp.where(is_unknown | xp.isnan(delta), np.nan, eps)


def enumerate_outcomes(releases: tuple[SelfComposed, ...], mirrors: tuple[bool, ...]) -> list[JointOutcomes] | None:
    """Return the joint outcomes for each direction, or None if they are too many or not all releases are tables."""
    is_few = len(releases) == 1 or not are_tables(releases)
    tables, size, most = [], 1, _FEW_JOINT_OUTCOMES if is_few else MOST_JOINT_OUTCOMES
    for one in releases:
        table, known = _table(one), checks.concrete(one.count)
        if table is None or known is None or known.ndim or known != np.floor(known):
            return None
        count = int(known)
        size *= math.comb(count + len(table[0]) - 1, count)
        if size > most:
            return None
        tables.append((table, count))
    found = []
    for mirror in mirrors:
        joint: Any = (np.zeros(1), np.zeros(1))
        for table, count in tables:
            masses = table[::-1] if mirror else table
            outer = namespace(*masses, *joint).add.outer
            joint = [
                outer(sofar, _log_repeated(mass, count)).ravel() for sofar, mass in zip(joint, masses, strict=True)
            ]
        found.append(JointOutcomes(*joint))
    return found


def are_tables(releases: tuple[SelfComposed, ...]) -> bool:
    """Return whether the pairs of all releases are tables of probabilities."""
    return all(isinstance(pair, Atoms) for one in releases for pair in one.pairs)


def _table(one: SelfComposed) -> tuple[Any, Any] | None:
    """Return the probabilities of one release under p and under q, or None if it is no table."""
    (pair, *others), rate = one.pairs, one.sampling_rate
    if others:
        return None
    if not isinstance(pair, Atoms):
        if isinstance(pair, AdditivePair) or namespace(*jax.tree.leaves(one)) is not np:
            return None
        (losses,) = one.privacy_losses
        return None if losses.pieces or losses.unseen else (losses.p, losses.q)
    if rate is None:
        return pair.p, pair.q
    if one.neighbours == "replace":
        pair = replaced_atoms(pair, rate)
        return pair.p, pair.q
    return rate * pair.p + (1 - rate) * pair.q, pair.q


def _log_repeated(mass: Any, count: int) -> Any:
    """Return the logs of the probabilities of all counts of the outcomes; NaN stays."""
    xp = namespace(mass)
    logs = xp.where(xp.isnan(mass), np.nan, log_or_never(mass))
    if count == 1:
        return logs
    times, ways = _counts(count, len(mass))
    logs = xp.where(times > 0, times * xp.where(mass == 0, 0.0, logs), 0.0)
    logs = xp.where((times > 0) & (mass == 0), -np.inf, logs)
    return xp.asarray(ways, mass.dtype) + logs.sum(-1)


@lru_cache(maxsize=16)
def _counts(count: int, outcomes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all counts of the outcomes, and the log of the number of orders of each."""
    if outcomes == 1:
        return np.full((1, 1), count), np.zeros(1)
    first = [(j, *_counts(count - j, outcomes - 1)) for j in range(count + 1)]
    times = np.concatenate([np.insert(rest, 0, j, axis=1) for j, rest, _ in first])
    ways = np.concatenate([log_ways(count)[j] + orders for j, _, orders in first])
    return times, ways


def evaluate_outcomes(what: str, some: list[JointOutcomes], at: Real) -> Any:
    """Return the maximum over the directions of delta at eps or of eps at delta, of any shape."""
    leaves = jax.tree.leaves(some)
    xp = namespace(at, *leaves)
    values = xp.asarray(at) if xp is jnp else np.asarray(at, np.float64)
    values = values.astype(xp.result_type(values, *leaves))
    largest = map_over(lambda value: xp.stack([getattr(one, what)(value) for one in some]).max(0), values.ravel())
    return largest.reshape(values.shape)[()]
