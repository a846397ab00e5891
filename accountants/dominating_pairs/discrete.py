"""Dominating pairs with finitely many reports: integer tables, randomised response, and explicit probabilities."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from accountants.dominating_pairs.base import Curve, DominatingPair
from accountants.privacy_loss import PrivacyLossDistribution
from dpkernels import checks
from dpkernels.mechanisms.optimal.search import largest_ratio
from dpkernels.numerics import UNIT_ROUNDOFF, Real, RealArray, floating, namespace, without_derivative
from dpkernels.proven import proven
from dpkernels.pytrees import pytree
from dpkernels.shapes import Float, Int, Num


@partial(pytree, static=("moved", "within_sensitivity"))
@dataclass(frozen=True)
class Atoms(DominatingPair):
    """Two distributions on the same finite set of reports; for even noise on a lattice q is p, ``moved`` points on."""

    p: Num[RealArray, " outcomes"]
    q: Num[RealArray, " outcomes"]
    moved: int | None = None
    within_sensitivity: bool = False  # type: ignore[misc]

    has_joint_axes: ClassVar[bool] = True
    may_be_asymmetric: ClassVar[bool] = True

    @property
    def is_shift(self) -> bool:  # type: ignore[override]
        return self.moved is not None

    def hockey_stick(self) -> Curve:
        return self._curve(1)

    def nearest_curve(self) -> Curve:
        return self._curve(-1)

    def _curve(self, side: int) -> Curve:
        """Return the divergence of masses whose errors are all added (side 1), or subtracted."""
        xp = namespace(self.p, self.q)
        p, q = (floating(xp.asarray(mass)) for mass in (self.p, self.q))
        error_p, error_q = (_rounding(mass, _TABLE_UNITS if self.moved is None else _NORM_UNITS) for mass in (p, q))
        p, q = p * (1 + side * error_p), q * (1 - side * error_q)

        def delta(eps: RealArray) -> Real:
            xp = namespace(eps, p, q)
            return xp.maximum(p - xp.exp(eps)[..., None] * q, 0.0).sum(-1)

        return delta

    def largest_loss(self) -> Real:
        return self.privacy_loss().loss.max()

    def privacy_loss(self) -> PrivacyLossDistribution:
        xp = namespace(self.p, self.q)
        return PrivacyLossDistribution.of_masses(*(floating(xp.asarray(mass)) for mass in (self.p, self.q)))

    def mirror(self) -> Atoms:
        return Atoms(self.q, self.p, within_sensitivity=self.within_sensitivity)

    def symmetry_gap(self) -> Real:
        if self.moved is not None:
            return 0.0
        gap = self.q - self.p[::-1]
        return namespace(gap).abs(gap).max()

    def check(self) -> None:
        for name, mass in (("p", self.p), ("q", self.q)):
            checks.within(name, mass, 0.0, 1.0)
            if np.ndim(mass) != 1 or np.shape(mass) != np.shape(self.p) or not np.size(mass):
                raise ValueError(f"{name}: has shape {np.shape(mass)}; p and q are 1-D and of one length")
            total_mass = checks.concrete(mass)
            if total_mass is not None and not abs(total_mass.sum() - 1) <= _tolerance(np.asarray(mass).dtype):
                raise ValueError(f"{name}: adds up to {total_mass.sum():.12g}; probabilities add up to 1")
        if self.moved is None:
            return
        count = checks.integer_in("moved", self.moved, 1, len(self.p) - 1)
        weights = self.p[:-count]
        if any(self.p[-count:]) or any(self.q[:count]) or np.any(self.q[count:] != weights):
            raise ValueError(f"moved: {count}; q is not p moved by this number of points")
        if np.any(weights != weights[::-1]) or np.any(np.diff(weights[len(weights) // 2 :]) > 0):
            raise ValueError("p: of noise on a lattice is even and falls from the middle")


@partial(pytree, static=("moved", "within_sensitivity"))
@dataclass(frozen=True)
class RowPair(Atoms):
    """A pair whose profile is at least that of all rows of a table, with the rows that bound it from below."""

    rows: tuple[Atoms, ...] = ()

    def lower_hockey_stick(self) -> Curve:
        curves = [pair.lower_hockey_stick() for row in self.rows for pair in (row, row.mirror())]
        return lambda eps: np.max([curve(eps) for curve in curves], axis=0)

    def attained(self) -> tuple[DominatingPair, ...]:
        return self.rows


NO_LOSS = Atoms(np.ones(1), np.ones(1))  # A pair of equal distributions.


def _rounding(mass: Float[RealArray, " outcomes"], units: int) -> Float[RealArray, " outcomes"]:
    """Return bounds on the relative errors of computed probabilities: units, and more for exponents of small ones."""
    mass = without_derivative(mass)
    xp = namespace(mass)
    size = -xp.log(xp.where(mass > 0, mass, 1.0))
    return float(xp.finfo(mass.dtype).eps) * (units + _LOG_UNITS * size)


def _tolerance(dtype: np.dtype) -> float:
    return max(1e-9, 64 * float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0)


def discrete_pair(p: object, q: object) -> Atoms:
    """Return the pair of two distributions on the same finite set of reports; JAX arrays stay differentiable.

    A neighbour may have either distribution, and delta is the larger one of both directions. In a composition all
    reports have p under one input and q under the other. If a neighbour may have p in one report and q in the next, as
    where values move in opposite directions, a pair that is not symmetric is not covered.

    With ``subsample``, q is the distribution without the record. With replaced records, p and q are the distributions
    of the two records that are easiest to distinguish.

    Raises:
        ValueError: p and q are not two 1-D arrays of one length with entries in [0, 1] that add up to 1.
        TypeError: p or q has entries that are not numbers.
    """
    p, q = (mass if isinstance(mass, jax.Array) else np.asarray(mass) for mass in (p, q))
    pair = Atoms(p, q)
    pair.check()
    return pair


def randomised_response(epsilon: Real, categories: int = 2) -> Atoms:
    """Return the dominating pair of (generalised) randomised response on k >= 2 categories; epsilon may be traced.

    It reports the true category with probability e^eps/(e^eps + k - 1), and any other category with 1/(e^eps + k - 1).
    Neighbours are any two true categories x and x'. The reports x, the other k - 2 categories together, and x' have
    probabilities proportional to (e^eps, k - 2, 1) and (1, k - 2, e^eps).

    Raises:
        ValueError: epsilon is not positive and finite, or there are fewer than two categories.
        TypeError: categories is not an integer.

    Example:
        >>> from accountants import guarantee
        >>> round(guarantee(randomised_response(1.0, categories=4)).delta(0.0), 6)
        0.300489
    """
    checks.positive("epsilon", epsilon)
    k = checks.integer_in("categories", categories, 2, 1 << 53)
    xp = namespace(epsilon)
    # Not as 1 less the others, which cancels with many categories.
    high = 1 / (1 + (k - 1) * xp.exp(-epsilon))
    low = xp.exp(-epsilon) * high
    p = xp.stack([high, low] if k == 2 else [high, (k - 2) * low, low])
    return Atoms(p, p[::-1])


@proven("worst_pairs#3-pure-mechanisms")
def pure_points(epsilon: Real) -> Atoms:
    """Return the pair of probabilities 1/(1 + e^-eps) and 1/(1 + e^eps), whose profile no eps-DP mechanism exceeds."""
    xp = namespace(epsilon)
    p = xp.stack([1 / (1 + xp.exp(-epsilon)), 1 / (1 + xp.exp(epsilon))])
    return Atoms(p, p[::-1])


# Bounds on the errors of computed probabilities, in units in the last place:
_TABLE_UNITS = 8  # those of a table,
_NORM_UNITS = 16  # those of noise on a lattice, which have a norm,
_LOG_UNITS = 4  # and in addition those for each unit of their logarithms.
# Points at which a profile is evaluated: evenly spaced in eps, beside those at the losses of the table's rows.
_PROFILE_POINTS = 256
_LARGE_TABLE = 1 << 22  # A table of so many ratios of rows has a quarter of these points.
# Losses closer together than this share a point.
_SAME_LOSS = 1e-5
_MAX_ROW_PAIRS = 3  # The most pairs of rows that bound a table from below.
# A profile is raised by this, which is more than rounding lowers the sum of masses that add up to 1.
_ROUNDING = 8 * UNIT_ROUNDOFF
# Points are left out where the profile is this close to the chord without them, which is never below the profile.
_CHORD_TOLERANCE = 1e-13


@proven("worst_pairs#6-tables-row-by-row")
def dominating_pair(p: Any, row_distance: int) -> Atoms:
    """Return a symmetric pair whose profile is at least the largest profile of rows at most ``row_distance`` apart.

    It is exact at eps 0, at the table's own eps and at points between; for JAX numbers, evenly spaced ones, so that it
    is differentiable. With f the interpolated profile in t = e^eps, the loss ln t_i has the mass
    q_i = f'(t_i+) - f'(t_i-) under q and t_i q_i under p, the loss -ln t_i has these exchanged, and loss 0 the rest.
    """
    if namespace(p) is jnp:
        ratio = jnp.stack([jnp.maximum(p[s:] / p[:-s], p[:-s] / p[s:]).max() for s in range(1, row_distance + 1)]).max()
        t = jnp.exp(jnp.log(ratio) * jnp.linspace(0.0, 1.0, _PROFILE_POINTS, dtype=p.dtype))
        f = jax.lax.map(lambda level: _largest_profile(p, row_distance, level), t[:-1])
        return pair_of_profile(t, jnp.append(f, 0.0))
    t = np.exp(_profile_points(p, row_distance))
    f = np.append([_largest_profile(p, row_distance, level) + _ROUNDING for level in t[:-1]], 0.0)
    corners = _corners(t, f)
    pair = pair_of_profile(t[corners], f[corners])
    return RowPair(pair.p, pair.q, rows=_worst_rows(p, row_distance, t[corners][:-1]))


def pair_of_profile(t: Float[RealArray, " points"], f: Float[RealArray, " points"]) -> Atoms:
    """Return the symmetric pair whose profile is f at e^eps = t, and linear between; see ``dominating_pair``."""
    xp = namespace(t, f)
    slopes = xp.append(xp.diff(f) / xp.diff(t), 0.0)
    q = xp.maximum(xp.diff(slopes), 0.0)
    high = t[1:] * q
    remainder = xp.maximum(1 - q.sum() - high.sum(), 0.0)[None]
    return Atoms(xp.concatenate([q[::-1], remainder, high]), xp.concatenate([high[::-1], remainder, q]))


def _profile_points(p: Float[np.ndarray, "rows outcomes"], row_distance: int) -> Float[np.ndarray, " points"]:
    """Return values of eps from 0 to the largest loss: evenly spaced, and the losses of the rows furthest apart."""
    level = math.log(largest_ratio(p, row_distance))
    count = _PROFILE_POINTS if p.size * row_distance < _LARGE_TABLE else _PROFILE_POINTS // 4
    losses = np.abs(np.log(p[row_distance:] / p[:-row_distance])).ravel()
    losses = np.unique(np.round(losses[losses < level], 9))
    points = np.unique(np.concatenate([np.linspace(0, level, count), losses]))
    spacing = max(_SAME_LOSS, 1e-3 * level if len(losses) > 4 * count else 0.0)
    points = points[np.diff(points, prepend=-1.0) > spacing]
    return np.append(points[points < level - _SAME_LOSS], level)


def _corners(t: Float[np.ndarray, " points"], f: Float[np.ndarray, " points"]) -> Int[np.ndarray, " corners"]:
    """Return few points, with the first and last, whose linear interpolation is a convex f up to rounding."""
    corners = np.array([0, len(t) - 1])
    while (excess := np.interp(t, t[corners], f[corners]) - f).max() > _CHORD_TOLERANCE:
        corners = np.sort(np.append(corners, excess.argmax()))
    return corners


def _worst_rows(
    p: Float[np.ndarray, "rows outcomes"], row_distance: int, t: Float[np.ndarray, " levels"]
) -> tuple[Atoms, ...]:
    """Return the pairs of rows that have the largest profile at most of the t."""
    worst: Counter[tuple[int, int]] = Counter()
    for level in t:
        gaps = _row_profiles(p, row_distance, level)
        offset_index = int(np.argmax([gap.max() for gap in gaps]))
        row = int(gaps[offset_index].argmax())
        worst[row, row + 1 + offset_index // 2] += 1
    return tuple(_grouped_by_loss(p[i], p[j]) for (i, j), _ in worst.most_common(_MAX_ROW_PAIRS))


def _grouped_by_loss(p: Float[np.ndarray, " outcomes"], q: Float[np.ndarray, " outcomes"]) -> Atoms:
    """Return two rows with reports of nearly equal losses as one, which is processing."""
    loss = np.log(p / q)
    order = np.argsort(loss)
    starts = np.flatnonzero(np.diff(loss[order], prepend=-np.inf) > _SAME_LOSS)
    return Atoms(np.add.reduceat(p[order], starts), np.add.reduceat(q[order], starts))


def _largest_profile(p: Float[RealArray, "rows outcomes"], row_distance: int, t: Real) -> Float[RealArray, ""]:
    """Return the maximum over rows i, i' at most ``row_distance`` apart of sum_j max(0, p_ij - t p_i'j)."""
    return namespace(p).stack([gap.max() for gap in _row_profiles(p, row_distance, t)]).max()


def _row_profiles(p: Float[RealArray, "rows outcomes"], row_distance: int, t: Real) -> list[Float[RealArray, " _"]]:
    """Return sum_j max(0, p_ij - t p_i'j) for i' = i - 1, i + 1, i - 2, ..., each an array over the lesser of both."""
    pairs = (pair for s in range(1, row_distance + 1) for pair in ((p[s:], p[:-s]), (p[:-s], p[s:])))
    return [namespace(p).maximum(x - t * y, 0.0).sum(1) for x, y in pairs]


def shifted_pair(weights: Float[RealArray, " points"], n: int) -> Atoms:
    """Return the pair of the weights of even noise on a lattice and the same weights n points further on."""
    xp = namespace(weights)
    zeros = xp.zeros(n)
    return Atoms(xp.concatenate([weights, zeros]), xp.concatenate([zeros, weights]), n)
