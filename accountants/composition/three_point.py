"""Composition of losses with three values by enumeration of the relevant counts.

The method is exact up to rounding, also for samples, whose losses fit no grid. Of n releases, let a have the loss with
the smallest probability, b the larger and m - b the smaller of the other two losses, with m = n - a. For every a there
is an E such that the sum of losses exceeds eps for all b >= E. With P(a, b) the probability of these counts and t =
p_b/(p_b + p_c),

    delta(eps) = sum over a of P_n(a) T_p - e^eps Q_n(a) T_q,    T = P(b >= E | a) = I_t(E, m - E + 1),
    P_n(a) T = P(a, E) E int_0^inf e^-phi(v) dv,    phi(v) = E v - (m - E) log((1 - t e^-v)/(1 - t)),

where E >= m t, so that phi is convex and increases. For a smaller E the same formulas are used for b < E. Derivatives
are expected counts. The derivative in the mass of an outcome is its expected count divided by this mass. The derivative
in its loss is e^eps times its expected count under q, where

    P_n(a) E[b; b >= E | a] = P_n(a) T m t + (1 - t) E P(a, E).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import numpy as np

from accountants.composition.base import ComposedProfile
from accountants.composition.repeated import LossTuple, RepeatedLoss, RepeatedReleases
from accountants.composition.tilted_direction import Direction, TiltedComposer, capped_losses
from accountants.privacy_loss import PrivacyLossDistribution
from dpkernels import checks
from dpkernels.numerics import (
    Boolean,
    Real,
    RealArray,
    cast_like,
    gauss_legendre,
    namespace,
    special_functions,
    without_derivative,
)
from dpkernels.pytrees import PyTree, pytree
from dpkernels.shapes import Float
from dpkernels.solve import while_loop

ROWS = 2048  # The most counts of the lightest loss that are kept.
_BLOCK = 64  # How many of these counts are summed at once.
# The counts that are kept reach so many deviations and so many counts from the mean; e^-33 is beyond.
_DEVIATIONS = 8.2
_FURTHER_COUNTS = 16.0
MAX_OUTCOMES = 16  # Pairs with more outcomes are not searched for equal losses.
_LOSS_RTOL = 1e-12  # The difference, relative to 1 + |l|, up to which losses are equal.
_MAX_EXPONENT = 35.0  # The value of the exponent phi up to which e^-phi is integrated.
_NEWTON_STEPS = 3  # The Newton steps to the point where phi has that value.
_OVERFLOW_SHARE = 0.85  # The share of the largest exponent without overflow that is used.
_S, _WEIGHTS = gauss_legendre(30)
_NODES, _WEIGHTS = _S**2, 2 * _S * _WEIGHTS  # Nodes that are denser at 0.
# From here on log k! is Stirling's series: (k + 1/2) log k - k + log(2 pi)/2 + 1/(12 k) - 1/(360 k^3) ...
_STIRLING_FROM = 16.0
_HALF_LOG = math.log(2 * math.pi) / 2  # log(2 pi)/2 of that series.


@pytree
@dataclass(frozen=True)
class ThreePointLoss(ComposedProfile):
    """The sum of n independent losses that have three values."""

    mass: Float[RealArray, "3"]  # The probabilities; at least 1e-154, or 1e-19 in 32 bits, also for absent ones.
    loss: Float[RealArray, "3"]
    count: Float[RealArray, ""]  # n.
    tilt: Float[RealArray, ""]  # c, which decides which counts are summed, and changes no value.

    def tilted(self) -> Float[RealArray, "3"]:
        """Return masses times e^(c l), made to sum to 1."""
        xp = namespace(self.mass, self.tilt)
        size = xp.log(self.mass) + self.tilt * self.loss
        masses = xp.exp(size - size.max())
        return masses / masses.sum()

    def empty(self) -> PyTree:
        return self.tilt, namespace(self.tilt).zeros((2, 4), self.tilt.dtype)

    def evaluate(self, epsilon: Real) -> tuple[Real, Real, PyTree]:
        xp = namespace(self.mass, epsilon)
        sums = _sums(self, self.count, epsilon)
        value, slope = sums[:, 0]
        is_positive = ~(value <= 0)  # NaN stays.
        value = xp.where(is_positive, value, 1.0)
        return (
            xp.where(is_positive, xp.log(value), -np.inf),
            xp.where(is_positive, -slope / value, 0.0),
            (epsilon, sums),
        )

    def gradient(self, evaluation: PyTree) -> tuple[ThreePointLoss, Real]:
        """Return derivatives of delta in all fields and in eps; in the count, the difference to one release less."""
        stack = namespace(self.tilt).stack
        epsilon, ((value, *by_mass), (slope, *by_loss)) = evaluation
        by_count = value - _sums(self, self.count - 1, epsilon)[0, 0]
        return ThreePointLoss(stack(by_mass) / self.mass, stack(by_loss), by_count, 0.0 * self.tilt), -slope


def three_point_loss(term: RepeatedLoss, tilt: Float[RealArray, ""]) -> tuple[ThreePointLoss, Boolean]:
    """Return the sum of losses reduced to the largest, least and heaviest other one, and whether these are all."""
    log_p, loss = cast(PrivacyLossDistribution, term.losses).finite
    xp = namespace(log_p, tilt)
    p, has_mass = xp.exp(log_p), ~xp.isneginf(log_p)
    fixed_loss = without_derivative(loss)
    tolerance = _LOSS_RTOL * (1 + xp.abs(fixed_loss))
    is_largest = has_mass & (fixed_loss >= xp.where(has_mass, fixed_loss, -np.inf).max() - tolerance)
    is_least = has_mass & ~is_largest & (fixed_loss <= xp.where(has_mass, fixed_loss, np.inf).min() + tolerance)
    is_inner = has_mass & ~is_largest & ~is_least
    is_heaviest = is_inner & (xp.abs(fixed_loss - fixed_loss[xp.where(is_inner, p, 0.0).argmax()]) <= tolerance)
    masses = xp.where(xp.stack([is_largest, is_least, is_heaviest]), p, 0.0)
    mass = masses.sum(-1)
    mean = (masses * loss).sum(-1) / xp.where(mass > 0, mass, 1.0)
    mass = xp.maximum(mass, xp.finfo(mass.dtype).tiny ** 0.5)
    return ThreePointLoss(mass, mean, xp.asarray(term.count, mass.dtype), without_derivative(tilt)), ~(
        is_inner & ~is_heaviest
    ).any()


def _rows(releases: ThreePointLoss, count: Float[RealArray, ""]) -> tuple[Real, Real]:
    xp = namespace(releases.mass, count)
    mean = count * releases.tilted().min()
    reach = _DEVIATIONS * xp.sqrt(mean) + _FURTHER_COUNTS
    return xp.maximum(xp.ceil(mean - reach), 0.0), xp.minimum(count, mean + reach)


def is_enumerable(releases: ThreePointLoss) -> Boolean:
    """Return whether all relevant counts are kept."""
    first, last = _rows(releases, releases.count)
    return last - first < ROWS


def _sums(releases: ThreePointLoss, count: Float[RealArray, ""], epsilon: Real) -> Float[RealArray, "2 4"]:
    """Return the sums above eps of p - e^eps q and of e^eps q, and these times each outcome's count: (2, 4)."""
    xp = namespace(releases.mass, epsilon)
    order = xp.argsort(releases.tilted())
    # Put the larger of the two other losses first.
    order = xp.where(releases.loss[order[2]] > releases.loss[order[1]], order[np.array([0, 2, 1])], order)
    loss, mass = releases.loss[order], releases.mass[order]
    first, last = _rows(releases, count)
    # NumPy takes all rows at once, because its time depends on the number of calls.
    size = _BLOCK if xp is not np else max(int(last - first) + 1, 1)

    def add_block(state: tuple[Real, RealArray]) -> tuple[Real, RealArray]:
        start, total = state
        a = start + xp.arange(size, dtype=mass.dtype)
        return start + size, total + xp.where(a <= last, _row_sums(count, mass, loss, epsilon, a), 0.0).sum(-1)

    _, total = while_loop(lambda state: state[0] <= last, add_block, (first, xp.zeros((2, 4), mass.dtype)))
    return total[:, xp.concatenate([xp.zeros(1, int), 1 + xp.argsort(order)])]


def _row_sums(
    n: Float[RealArray, ""],
    mass: Float[RealArray, "3"],
    loss: Float[RealArray, "3"],
    epsilon: Real,
    a: Float[RealArray, " counts"],
) -> Float[RealArray, "2 4 counts"]:
    """Return the terms of ``_sums`` for each a, of shape (2, 4, a)."""
    xp = namespace(mass, epsilon, a)
    m = xp.maximum(n - a, 0.0)
    gap = xp.maximum(loss[1] - loss[2], xp.finfo(loss.dtype).tiny)
    edge = xp.floor((epsilon - a * loss[0] - m * loss[2]) / gap) + 1
    is_inside, all_exceed = (edge >= 1) & (edge <= m), edge < 1
    E = xp.clip(edge, 1.0, xp.maximum(m, 1.0))
    # Compute both under p and under q, whose masses are those of p times e^-l.
    max_exponent = _OVERFLOW_SHARE * xp.log(xp.finfo(loss.dtype).max)
    masses_p_q = mass[1:] * xp.exp(np.array([[0], [1]]) * xp.minimum(loss[1] - loss[1:], max_exponent))
    t, s = (masses_p_q / masses_p_q.sum(-1, keepdims=True)).T[..., None]
    is_complement = m * t >= E
    # Either b >= E, or the complement: the other count >= m - E + 1 and the first one at most E - 1.
    k, b = xp.where(is_complement, m - E + 1, E), xp.where(is_complement, E - 1, E)
    p_all, p_edge = xp.where(a <= n, _probabilities(n, mass, a, m, b), 0.0)
    # Masses under q times e^eps: of all b together, and of the outcome at the edge, e^(eps - S).
    fractions = mass[1:] / mass[1:].sum()
    by_all = xp.exp(epsilon - a * loss[0] - m * loss[1] + m * xp.log((fractions * xp.exp(loss[1] - loss[1:])).sum()))
    by_loss = xp.exp(epsilon - a * loss[0] - b[1] * loss[1] - (m - b[1]) * loss[2])
    ones = xp.ones_like(a)
    row_mass, at_edge = p_all[0] * xp.stack([ones, by_all]), p_edge * xp.stack([ones, by_loss])
    edge_integral = at_edge * _integrals(k, m, xp.where(is_complement, s, t))
    tail_mass = xp.where(
        all_exceed, row_mass, xp.where(is_inside, xp.where(is_complement, row_mass - edge_integral, edge_integral), 0.0)
    )
    edge_term = xp.where(is_inside, xp.where(is_complement, t, s) * k * at_edge, 0.0)
    p, q = xp.stack([tail_mass, a * tail_mass, m * t * tail_mass + edge_term, m * s * tail_mass - edge_term], 1)
    return xp.stack([p - q, q])


def _integrals(
    k: Float[RealArray, "2 counts"], m: Float[RealArray, " counts"], t: Float[RealArray, "2 counts"]
) -> Float[RealArray, "2 counts"]:
    """Return k times the integral of e^-phi over v > 0, by Gauss-Legendre in sqrt(v); 1 <= k <= m and k >= m t."""
    xp = namespace(k, t)
    tiny = xp.finfo(k.dtype).tiny
    odds, m_minus_k = t / xp.maximum(1 - t, tiny), xp.maximum(m - k, 0.0)
    rise, bend = xp.maximum(k - m_minus_k * odds, 0.0), m_minus_k * odds * (1 + odds)
    end = 2 * _MAX_EXPONENT / (rise + xp.sqrt(rise**2 + 2 * _MAX_EXPONENT * bend))
    for _ in range(_NEWTON_STEPS):
        fraction = -xp.expm1(-end)
        size = 1 + odds * fraction
        slope = k - m_minus_k * odds * (1 - fraction) / size
        end = end - (k * end - m_minus_k * xp.log(size) - _MAX_EXPONENT) / xp.maximum(slope, tiny)
    v = end[..., None] * cast_like(_NODES, end)
    value = xp.exp(m_minus_k[..., None] * xp.log1p(-odds[..., None] * xp.expm1(-v)) - k[..., None] * v)
    return k * end * (value * cast_like(_WEIGHTS, end)).sum(-1)


def _probabilities(
    n: Float[RealArray, ""],
    mass: Float[RealArray, "3"],
    a: Float[RealArray, " counts"],
    m: Float[RealArray, " counts"],
    b: Float[RealArray, "2 counts"],
) -> Float[RealArray, "2 2 counts"]:
    """Return P_n(a) and P(a, b) = n!/prod k_j! prod p_j^k_j, with b in two rows: (2, 2, a)."""
    xp = namespace(mass, a)
    counts = xp.stack(xp.broadcast_arrays(a, m, n, *b, *(m - b)))
    p = mass / mass.sum()
    means = n * xp.stack([p[0], p[1] + p[2], xp.ones_like(n), p[1], p[1], p[2], p[2]])
    log_first, log_others, log_all, *log_b = _log_poisson(counts, means[:, None])
    log_first = log_first - log_all + n * xp.log(mass.sum())
    return xp.exp(log_first + xp.stack([xp.stack([log_others, log_others]), xp.stack(log_b[:2]) + xp.stack(log_b[2:])]))


def _log_poisson(k: Float[RealArray, "7 counts"], mean: Float[RealArray, "7 1"]) -> Float[RealArray, "7 counts"]:
    """Return the log of the Poisson probability (Loader 2000), with rounding errors of the deviation, not k log k."""
    xp, special = namespace(k, mean), special_functions(k)
    small_k = xp.minimum(k, _STIRLING_FROM)
    exact = special.xlogy(small_k, mean) - mean - special.gammaln(small_k + 1)
    k, mean = xp.maximum(k, _STIRLING_FROM), xp.maximum(mean, xp.finfo(k.dtype).tiny ** 0.9)
    e, square = (k - mean) / mean, 1 / k**2
    series = (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square * (1 / 1680 - square / 1188)))) / k
    deviance = mean * ((1 + e) * xp.log1p(e) - e)
    return xp.where(small_k < _STIRLING_FROM, exact, -deviance - series - xp.log(k) / 2 - _HALF_LOG)


@pytree
@dataclass(frozen=True)
class ThreePointLosses(TiltedComposer):
    """Releases of one mechanism whose loss has three values, if the relevant counts are few enough."""

    @classmethod
    def applies(cls, direction: Direction) -> Boolean:
        if not may_be_three_points(direction.losses):
            return False
        (capped,), _ = direction.capped
        reduced, are_all = three_point_loss(capped, direction.tilt.c)
        return are_all & is_enumerable(reduced)

    def prepare(self, losses: LossTuple) -> tuple[ThreePointLoss, Real]:
        (capped,), infinite = capped_losses(losses, self.bound)
        return three_point_loss(capped, self.tilt)[0], infinite

    def profile(self, prepared: ThreePointLoss, direction: Direction) -> ThreePointLoss:
        return prepared


def may_be_three_points(losses: LossTuple) -> bool:
    """Return whether the number of outcomes does not rule out that there are only three losses."""
    nodes = losses[0].losses
    return len(losses) == 1 and nodes is not None and nodes.p.shape[-1] <= MAX_OUTCOMES + 1


def are_three_points(losses: LossTuple) -> bool:
    """Return whether there is one mechanism whose number of outcomes is at most three, beside the one that pads it."""
    nodes = losses[0].losses
    return len(losses) == 1 and nodes is not None and nodes.p.shape[-1] <= 3 + 1


def are_counts_enumerable(releases: tuple[RepeatedReleases, ...]) -> bool:
    """Return whether all counts of the lightest loss are kept, whatever its probability."""
    counts = [checks.concrete(term.count) for term in releases]
    return len(counts) == 1 and counts[0] is not None and bool(np.all(counts[0] < ROWS))
