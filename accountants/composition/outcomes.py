"""Composition of tables with few joint outcomes by their enumeration, for all neighbour directions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from accountants.closed_forms.pure import log_ways
from accountants.composition.closed_form import ClosedForm
from accountants.composition.repeated import GuaranteeLike, RepeatedReleases
from accountants.composition.trade_off import points_around, tangent_epsilon
from accountants.dominating_pairs.additive import AdditivePair
from accountants.dominating_pairs.discrete import Atoms
from accountants.dominating_pairs.replaced import replaced_atoms
from accountants.privacy_loss import log_ratio
from dpkernels import checks
from dpkernels.numerics import (
    UNIT_ROUNDOFF,
    Boolean,
    Real,
    RealArray,
    elementwise_maximum,
    log_or_minus_inf,
    map_over,
    namespace,
    without_derivative,
)
from dpkernels.proven import proven
from dpkernels.shapes import Float, Int

MAX_JOINT_OUTCOMES = 1 << 18  # The most joint outcomes of several tables that are enumerated: arrays of 2 MB.
_MAX_MIXED_OUTCOMES = 1 << 12  # The same number for one mechanism, or for some that are no tables but have few losses.
_TABLE_MASS_ERROR = 16 * UNIT_ROUNDOFF  # A bound on the relative error of a mass of a table, which is given.
MASS_ERROR = 1e-12  # The same of an outcome's mass that is computed from a mechanism's densities.
_MIN_FLOAT = 5e-324  # The least positive float.
_LOG_UNITS = 8  # Rounding errors of the log of a joint outcome's probability, in units for each unit of the log.
_LOSS_DIGITS = 12  # The decimals in which equal losses agree.
_RTOL = 1e-15  # The relative tolerance of a search for an eps.


class JointOutcomes(NamedTuple):
    """Logs of the probabilities of every joint outcome under p and under q, for one neighbour direction."""

    log_p: Float[RealArray, " outcomes"]
    log_q: Float[RealArray, " outcomes"]

    def _loss(self) -> tuple[Float[RealArray, " outcomes"], Boolean]:
        """Return the losses, and whether a probability is NaN, which comparisons would take for no loss."""
        xp = namespace(self.log_p, self.log_q)
        return log_ratio(self.log_p, self.log_q), (xp.isnan(self.log_p) | xp.isnan(self.log_q)).any()

    def delta(self, epsilon: Real) -> Float[RealArray, ""]:
        xp = namespace(self.log_p, self.log_q, epsilon)
        loss, is_unknown = self._loss()
        exponent = xp.minimum(xp.minimum(epsilon, xp.finfo(self.log_p.dtype).max) - loss, 0.0)  # Also for infinite eps.
        total = (xp.exp(self.log_p) * -xp.expm1(exponent)).sum()
        return xp.where(is_unknown, np.nan, total - without_derivative(xp.maximum(total - 1.0, 0.0)))

    def epsilon(self, delta: Real) -> Float[RealArray, ""]:
        """Return the least eps >= 0 at one delta.

        Between two losses delta is P - e^(eps - l) R, for all outcomes with larger losses l' and the smallest of these,
        l: P is their probability, R the sum of p e^(l - l'), so that nothing overflows.
        """
        xp = namespace(self.log_p, self.log_q, delta)
        loss, is_unknown = self._loss()
        order = xp.argsort(without_derivative(-loss))
        p, loss, log_q = xp.exp(self.log_p[order]), loss[order], without_derivative(self.log_q[order])
        log_tail_q = np.logaddexp.accumulate(log_q) if xp is np else jax.lax.cumlogsumexp(log_q)
        finite, P = xp.isfinite(loss), xp.cumsum(p)
        exponents = xp.where(finite, xp.where(finite, loss, 0.0) + xp.where(finite, log_tail_q, 0.0), -np.inf)
        lower = without_derivative(P - xp.exp(exponents))
        last = xp.maximum((lower <= delta).sum() - 1, 0)
        least = without_derivative(xp.where(finite[last], loss[last], 0.0))
        is_above = np.arange(len(p)) <= last
        R = xp.where(is_above, p * xp.exp(xp.where(is_above, least - loss, 0.0)), 0.0).sum()
        has_root = (delta < P[last]) & (R > 0) & (self.delta(xp.zeros_like(delta)) > delta)
        eps = xp.where(
            has_root, least + xp.log(xp.where(has_root, P[last] - delta, 1.0)) - xp.log(xp.where(has_root, R, 1.0)), 0.0
        )
        # A maximum would halve the derivative at equal values.
        eps = eps + without_derivative(xp.maximum(-eps, 0.0))
        eps = xp.where(xp.where(loss < np.inf, 0.0, p).sum() >= delta, np.inf, eps)
        return xp.where(is_unknown | xp.isnan(delta), np.nan, eps)


def enumerate_outcomes(releases: tuple[RepeatedReleases, ...], mirrors: tuple[bool, ...]) -> list[JointOutcomes] | None:
    """Return the joint outcomes for each direction, or None if they are too many or not all releases are tables."""
    are_several_tables = len(releases) > 1 and are_tables(releases)
    tables, size, most = [], 1, MAX_JOINT_OUTCOMES if are_several_tables else _MAX_MIXED_OUTCOMES
    for term in releases:
        table, number = _tables(term), checks.concrete(term.count)
        if table is None or number is None or number.ndim or number != np.floor(number):
            return None
        count = int(number)
        size *= math.comb(count + max(len(p) for p, _ in table) - 1, count)
        if size > most:
            return None
        tables.append((table, count))
    directions = []
    for mirror in mirrors:
        joint: tuple[RealArray, ...] = (np.zeros(1), np.zeros(1))
        for (forward, mirrored), count in tables:
            masses = mirrored if mirror else forward
            outer = namespace(*masses, *joint).add.outer
            logs = (_log_repeated(mass, count) for mass in masses)
            joint = tuple(outer(total, log).ravel() for total, log in zip(joint, logs, strict=True))
        directions.append(JointOutcomes(*joint))
    return directions


def are_tables(releases: tuple[RepeatedReleases, ...]) -> bool:
    """Return whether the pairs of all releases are tables of probabilities."""
    return all(isinstance(pair, Atoms) for term in releases for pair in term.pairs)


def _tables(
    term: RepeatedReleases,
) -> (
    tuple[
        tuple[Float[RealArray, " outcomes"], Float[RealArray, " outcomes"]],
        tuple[Float[RealArray, " mirrored_outcomes"], Float[RealArray, " mirrored_outcomes"]],
    ]
    | None
):
    """Return the probabilities of one release under p and q, and those of the mirror, or None if it is no table.

    A bound of a pair has masses of its own in each direction.
    """
    (pair, *further_pairs), rate = term.pairs, term.sampling_rate
    if further_pairs:
        return None
    if not isinstance(pair, Atoms):
        if isinstance(pair, AdditivePair) or namespace(*jax.tree.leaves(term)) is not np:
            return None
        (losses,) = term.privacy_losses
        if losses.pieces or losses.unseen:
            return None
        mirrored = losses.mirrored()
        return (losses.p, losses.q), (mirrored.p, mirrored.q)
    p, q = pair.p, pair.q
    if rate is not None and term.adjacency == "replace":
        pair = replaced_atoms(pair, rate)
        p, q = pair.p, pair.q
    elif rate is not None:
        p = rate * p + (1 - rate) * q
    return (p, q), (q, p)


def _log_repeated(mass: Float[RealArray, " outcomes"], count: int) -> Float[RealArray, " joint_outcomes"]:
    """Return the logs of the probabilities of all counts of the outcomes; NaN stays."""
    xp = namespace(mass)
    logs = xp.where(xp.isnan(mass), np.nan, log_or_minus_inf(mass))
    if count == 1:
        return logs
    times, log_orders = _counts(count, len(mass))
    logs = xp.where(times > 0, times * xp.where(mass == 0, 0.0, logs), 0.0)
    logs = xp.where((times > 0) & (mass == 0), -np.inf, logs)
    return xp.asarray(log_orders, mass.dtype) + logs.sum(-1)


@lru_cache(maxsize=16)
def _counts(
    count: int, outcomes: int
) -> tuple[Int[np.ndarray, "joint_outcomes {outcomes}"], Float[np.ndarray, " joint_outcomes"]]:
    """Return all counts of the outcomes, and the log of the number of orders of each."""
    if outcomes == 1:
        return np.full((1, 1), count), np.zeros(1)
    first = [(j, *_counts(count - j, outcomes - 1)) for j in range(count + 1)]
    times = np.concatenate([np.insert(counts, 0, j, axis=1) for j, counts, _ in first])
    log_orders = np.concatenate([log_ways(count)[j] + orders for j, _, orders in first])
    return times, log_orders


def evaluate_outcomes(quantity: str, directions: list[JointOutcomes], argument: Real) -> Real:
    """Return the maximum over the directions of "delta" at eps or of "epsilon" at delta, of any shape."""
    leaves = jax.tree.leaves(directions)
    xp = namespace(argument, *leaves)
    values = xp.asarray(argument) if xp is jnp else np.asarray(argument, np.float64)
    values = values.astype(xp.result_type(values, *leaves))
    largest = map_over(
        lambda value: elementwise_maximum([getattr(outcomes, quantity)(value) for outcomes in directions]),
        values.ravel(),
    )
    return largest.reshape(values.shape)[()]


@proven("sums#closed-forms")
@dataclass(frozen=True)
class FewOutcomes(ClosedForm):
    """The bounds of releases with few joint outcomes, given for each neighbour direction."""

    directions: list[JointOutcomes]
    count: int  # of all releases.
    mass_error: float  # The relative error of the mass of one release's outcome.

    @classmethod
    def from_guarantee(cls, guarantee: GuaranteeLike) -> FewOutcomes | None:
        terms = guarantee.numeric.terms
        directions = enumerate_outcomes(terms, guarantee.neighbour_directions)
        if directions is None:
            return None
        count = int(sum(term.count for term in terms))
        # Probabilities of noise on a lattice are computed.
        are_exact = are_tables(terms) and all(pair.moved is None for term in terms for pair in term.pairs)
        return cls(directions, count, _TABLE_MASS_ERROR if are_exact else MASS_ERROR)

    def bound(self, epsilon: float, side: int) -> float:
        return max(self._bound(outcomes, epsilon, side) for outcomes in self.directions)

    def _bound(self, outcomes: JointOutcomes, epsilon: float, side: int) -> float:
        logs = np.stack([outcomes.log_p, outcomes.log_q])
        size = np.where(np.isfinite(logs), np.abs(logs), 0.0)
        error_p, error_q = UNIT_ROUNDOFF * _LOG_UNITS * (self.count + size)
        with np.errstate(invalid="ignore"):
            loss = np.where(np.isneginf(logs[0]), -np.inf, logs[0] - logs[1])
        rounding = error_p + error_q + UNIT_ROUNDOFF * _LOG_UNITS * epsilon
        gain = -np.expm1(np.minimum(epsilon - loss - side * rounding, 0.0))
        mass = np.exp(logs[0] + side * (error_p + self.count * self.mass_error))
        total = float((mass * gain).sum()) * (1 + side * UNIT_ROUNDOFF * len(loss))
        underflow = 2 * _MIN_FLOAT * int((gain > 0).sum())  # What products and sums lose below the floats.
        return min(max(total + side * underflow, 0.0), 1.0)

    def estimate(self, delta: float) -> float:
        return float(evaluate_outcomes("epsilon", self.directions, np.float64(delta)))

    def tangent_points(self, alpha: float, is_flat: bool, largest_loss: float) -> np.ndarray:
        """Return points around the loss beyond which q has the mass alpha, or p that of 1 - alpha.

        Of two directions, the highest line may be where their profiles cross.
        """
        if len(self.directions) > 1:
            upper = partial(self.bound, side=1)
            return points_around(tangent_epsilon(upper, alpha, is_flat, largest_loss, _RTOL))
        ((loss, p, q),) = self._rough_profile
        if not len(loss):  # All losses are infinite.
            return np.zeros(1)
        index = int(np.searchsorted(p, 1 - alpha) if is_flat else np.searchsorted(q, alpha))
        return np.append(points_around(float(loss[min(index, len(loss) - 1)])), 0.0)

    @cached_property
    def _rough_profile(self) -> list[tuple[Float[np.ndarray, " _"], Float[np.ndarray, " _"], Float[np.ndarray, " _"]]]:
        """Return, for every direction, the different losses, falling, and the masses of p and q from each on."""
        columns = []
        for log_p, log_q in self.directions:
            is_finite = np.isfinite(log_p) & np.isfinite(log_q)
            loss, index = np.unique(np.round(log_q[is_finite] - log_p[is_finite], _LOSS_DIGITS), return_inverse=True)
            infinite = np.exp(log_p[np.isneginf(log_q)]).sum()
            p = infinite + np.cumsum(np.bincount(index, np.exp(log_p[is_finite])))
            columns.append((-loss, p, np.cumsum(np.bincount(index, np.exp(log_q[is_finite])))))
        return columns
