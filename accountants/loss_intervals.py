"""Masses of p and q between levels of the loss, as differences of tail probabilities at the roots of the loss.

No quadrature is used, so no bound on derivatives is needed. With c the ``roundings`` of the noise, a tail probability t
is assumed to have an error of at most c (1 + |log t|) relative roundings, and a loss l an error of at most max(c, 64)
(1 + |l|) roundings of 1 (docs/proofs/brackets.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpkernels.distributions.base import Distribution
from dpkernels.numerics import UNIT_ROUNDOFF, Boolean, Real, RealArray, gauss_legendre
from dpkernels.proven import proven
from dpkernels.shapes import Bool, Float, Int

LOSS_UNITS = 64  # A bound on the roundings of a loss and of a tail, for each unit of its size.
_END_UNITS = 8  # The roundings of the distance of a knot, and of its shift, of both ends of a piece.
_ZERO_UNITS = 8  # The roundings of 1 of a mass on both sides of 0, beside those of the tails.
_SAMPLED_UNITS = 16  # The roundings, of itself, of the level before sampling.
_MIN_TAIL = 2.0**-1022  # Smaller tail probabilities are not resolved.
_ACCURATE_STEEPNESS = 1 / 8  # The width times steepness at which 4 nodes are exact to 2^-53.
_NODES, _WEIGHTS = gauss_legendre(4)
_WEIGHT_ERROR = 1e-12  # The relative error of the weights of noise, all together.


@dataclass(frozen=True)
class IntervalMasses:
    """Masses of outcomes between consecutive levels, with bounds on their errors, as arrays of one length."""

    p: Float[np.ndarray, " intervals"]
    q: Float[np.ndarray, " intervals"]
    difference: Float[np.ndarray, " intervals"]  # p - q, which keeps its digits where p and q are close.
    p_error: Float[np.ndarray, " intervals"]
    q_error: Float[np.ndarray, " intervals"]
    difference_error: Float[np.ndarray, " intervals"]
    loss_error: Float[np.ndarray, " intervals"]  # How far the loss at either end of an interval may be from its level.


# From levels, and the numbers of their pieces, to the masses between consecutive ones. Pieces increase, and so do the
# levels of a piece. Results between levels of two pieces have no meaning.
Measure = Callable[[np.ndarray, np.ndarray], IntervalMasses]


@dataclass(frozen=True)
class LossIntervals:
    """Pieces of one monotone loss each, whose masses between two levels are known from tail probabilities."""

    lower: Float[np.ndarray, " pieces"]  # The lower ends.
    upper: Float[np.ndarray, " pieces"]
    measure: Measure
    mass_error: float = 0.0  # A bound on a relative error that all masses have in common.

    def where(self, is_present: Boolean) -> LossIntervals:
        return dataclasses.replace(self, upper=np.where(is_present, self.upper, self.lower))

    def scaled(self, weight: Real) -> LossIntervals:
        def measure(level: Float[np.ndarray, " levels"], piece: Int[np.ndarray, " levels"]) -> IntervalMasses:
            measured = self.measure(level, piece)
            masses = {name: weight * value for name, value in vars(measured).items() if name != "loss_error"}
            return IntervalMasses(**masses, loss_error=measured.loss_error)

        return dataclasses.replace(self, measure=measure)

    def mirrored(self) -> LossIntervals:
        """Return the intervals of the pair (q, p), with the negated loss."""

        def measure(level: Float[np.ndarray, " levels"], piece: Int[np.ndarray, " levels"]) -> IntervalMasses:
            # In reverse order the pieces' numbers fall, which no measure minds.
            columns = {name: value[::-1] for name, value in vars(self.measure(-level[::-1], piece[::-1])).items()}
            return IntervalMasses(
                columns["q"],
                columns["p"],
                -columns["difference"],
                columns["q_error"],
                columns["p_error"],
                columns["difference_error"],
                columns["loss_error"],
            )

        return dataclasses.replace(self, measure=measure)

    def subsampled(self, rate: float, level_before: Callable[[np.ndarray], np.ndarray]) -> LossIntervals:
        """Return the intervals of (r p + (1 - r) q, q); ``level_before`` is the level of the loss without sampling."""

        def measure(level: Float[np.ndarray, " levels"], piece: Int[np.ndarray, " levels"]) -> IntervalMasses:
            levels_before = level_before(level)
            masses = self.measure(levels_before, piece)
            # d l'/d l = r e^(l - l'), at the end where it is larger; infinite levels stand for the ends of pieces.
            is_finite = np.isfinite(level)
            ratio = rate * np.exp(np.where(is_finite, levels_before, -np.inf) - np.where(is_finite, level, 0.0))
            slope = np.minimum(np.maximum(ratio[:-1], ratio[1:]), 1.0)
            # The level before is the log of a difference from 1, which cancels next to the lowest level.
            size = np.where(is_finite, np.abs(level) + rate * np.expm1(-np.minimum(level, 0.0)), 0.0)
            size = np.maximum(size[:-1], size[1:])
            return IntervalMasses(
                rate * masses.p + (1 - rate) * masses.q,
                masses.q,
                rate * masses.difference,
                rate * masses.p_error + (1 - rate) * masses.q_error,
                masses.q_error,
                rate * masses.difference_error,
                slope * masses.loss_error + _SAMPLED_UNITS * UNIT_ROUNDOFF * size,
            )

        return dataclasses.replace(self, measure=measure)


@proven("brackets#proof-of-1-quadrature")
def intervals_from_tails(
    source: Any,
    shifts: Sequence[float],
    weights: tuple[Float[np.ndarray, "shifts pieces"], Float[np.ndarray, "shifts pieces"]],
    ends: tuple[Float[np.ndarray, " pieces"], Float[np.ndarray, " pieces"]],
    inverse: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]],
) -> LossIntervals:
    """Return the intervals of p and q from tails of f, and from f where they are narrow.

    p and q are sums of f at the shifts, with ``weights`` of shape (shifts, pieces), those of p and those of q.
    ``inverse`` returns the points of pieces at given levels, at the nearer end if a piece has none, and bounds on how
    far the losses there are from the levels.
    """
    lower, upper = ends
    try:
        source.steepness(0.0, 0.0)
        steepness = source.steepness
    except TypeError:  # Not known.
        steepness = None

    def measure(level: Float[np.ndarray, " levels"], piece: Int[np.ndarray, " levels"]) -> IntervalMasses:
        with np.errstate(all="ignore"):
            x, loss_error = inverse(level, piece)
            ends = np.isinf(level)
            masses, errors = np.array([_between(source, x, ends, shift, steepness) for shift in shifts]).swapaxes(0, 1)
        weight_p, weight_q = (weight[:, piece[1:]] for weight in weights)
        # The difference keeps its digits where f at one shift is a part of both.
        p, q, difference = ((weight * masses).sum(0) for weight in (weight_p, weight_q, weight_p - weight_q))
        p_error, q_error, difference_error = (
            (weight * errors).sum(0) for weight in (weight_p, weight_q, np.abs(weight_p - weight_q))
        )
        return IntervalMasses(
            p, q, difference, p_error, q_error, difference_error, np.maximum(loss_error[:-1], loss_error[1:])
        )

    # Both weights have one factor, which is computed.
    return LossIntervals(lower, upper, measure, 0.0 if np.isin(weights, (0.0, 1.0)).all() else _WEIGHT_ERROR)


def _between(
    source: Distribution,
    x: Float[np.ndarray, " levels"],
    ends: Bool[np.ndarray, " levels"],
    shift: float,
    steepness: Callable[[np.ndarray, np.ndarray], RealArray] | None,
) -> tuple[Float[np.ndarray, " intervals"], Float[np.ndarray, " intervals"]]:
    """Return masses of f(. - shift) between consecutive points, in either order; and their errors.

    Ends of pieces are rounded: they may be elsewhere by some roundings of them. Between other points nothing is lost.
    """
    z, units = x - shift, float(source.roundings)
    lower, tail = z < 0, np.empty(x.shape)
    for is_side, function in ((lower, source.cdf), (~lower, source.sf)):
        tail[is_side] = function(z[is_side])
    error = units * UNIT_ROUNDOFF * (1 + np.abs(np.log(np.maximum(tail, _MIN_TAIL)))) * tail + _MIN_TAIL
    difference = tail[1:] - tail[:-1]
    crosses_zero = lower[1:] != lower[:-1]
    mass = np.where(crosses_zero, np.maximum(1 - tail[1:] - tail[:-1], 0.0), np.abs(difference))
    start, width = np.minimum(x[1:], x[:-1]), np.abs(np.diff(x))
    error = np.where(width == 0, 0.0, error[1:] + error[:-1] + _ZERO_UNITS * UNIT_ROUNDOFF * crosses_zero)
    if steepness is not None:
        steep = np.where(width > 0, steepness(start - shift, start + width - shift), np.inf)
        # A difference of tails has lost digits where the interval is narrow, and there four nodes are exact.
        is_narrow = np.flatnonzero((error > 8 * units * UNIT_ROUNDOFF * mass) & (width * steep <= _ACCURATE_STEEPNESS))
        start, width, steep = start[is_narrow], width[is_narrow], steep[is_narrow]
        logs = source.log_prob((start[:, None] + width[:, None] * _NODES) - shift)
        by_nodes = width * (np.exp(logs) * _WEIGHTS).sum(1)
        farthest = np.abs(start) + width + abs(shift)
        rounded = _END_UNITS * (ends[1:] | ends[:-1])[is_narrow] * farthest / width
        relative = units * (2 + np.abs(logs).max(1, initial=0.0) + steep * farthest) + rounded
        node_error = UNIT_ROUNDOFF * relative * by_nodes + _MIN_TAIL
        is_better = node_error < error[is_narrow]
        mass[is_narrow[is_better]], error[is_narrow[is_better]] = by_nodes[is_better], node_error[is_better]
    return mass, error


_MIN_LEVELS = 64  # A piece with so many levels or more is first evaluated at so many points.
_MAX_SECANTS = 60  # The most steps for the point at a level; what is left of the distance is counted as an error.


@proven("brackets#proof-of-1-quadrature")
def points_at_levels(
    loss: Callable[[np.ndarray, np.ndarray], np.ndarray],
    ends: tuple[Float[np.ndarray, " pieces"], Float[np.ndarray, " pieces"]],
    level: Float[np.ndarray, " levels"],
    piece: Int[np.ndarray, " levels"],
    units: float = LOSS_UNITS,
) -> tuple[Float[np.ndarray, " levels"], Float[np.ndarray, " levels"]]:
    """Return the points of pieces with a monotone loss at given levels, and bounds on how far their losses are off."""
    numbers = np.arange(len(ends[0]))
    first, last = (loss(end, numbers) for end in ends)
    sign = np.where(first >= last, 1.0, -1.0)[piece]
    low, high = (end[piece] for end in ends)
    f_low, f_high = sign * (first[piece] - level), sign * (last[piece] - level)
    rounding = units * UNIT_ROUNDOFF * (1 + np.abs(np.clip(level, *smaller_and_larger(first[piece], last[piece]))))
    # Levels that a piece has not are at its nearer end; infinite levels are beyond any loss, also an infinite one.
    x = np.where((f_low <= 0) | (sign * level == np.inf), low, high)
    active = np.flatnonzero((f_low > 0) & (f_high < 0))
    low, high, f_low, f_high, tolerance = (column[active] for column in (low, high, f_low, f_high, rounding))
    sign, level, piece = sign[active], level[active], piece[active]
    # Of many levels of one piece, start at losses next to each.
    for number in np.flatnonzero(np.bincount(piece) >= _MIN_LEVELS):
        rows = np.flatnonzero(piece == number)
        points = np.linspace(ends[0][number], ends[1][number], _MIN_LEVELS)
        values = sign[rows[0]] * loss(points, np.full(_MIN_LEVELS, number))
        after = np.clip(np.searchsorted(-values, -sign[rows] * level[rows]), 1, _MIN_LEVELS - 1)
        f_before, f_after = (values[index] - sign[rows] * level[rows] for index in (after - 1, after))
        rows, after, f_before, f_after = (
            column[(f_before > 0) & (f_after < 0)] for column in (rows, after, f_before, f_after)
        )
        low[rows], high[rows], f_low[rows], f_high[rows] = (points[after - 1], points[after], f_before, f_after)
    side, error = np.zeros(len(active), int), np.zeros(x.shape)
    for _ in range(_MAX_SECANTS):  # The Illinois method.
        if not len(active):
            break
        fraction = f_low / (f_low - f_high)
        middle = np.clip(low + (high - low) * np.where(np.isfinite(fraction), fraction, 0.5), low, high)
        value = sign * (loss(middle, piece) - level)
        x[active], error[active] = middle, np.abs(value)
        new_side = np.where(value > 0, 1, -1)
        is_repeated, side = new_side == side, new_side
        halved = np.where(is_repeated, 0.5, 1.0)
        low, high = np.where(value > 0, middle, low), np.where(value > 0, high, middle)
        f_low, f_high = (np.where(value > 0, value, f_low * halved), np.where(value > 0, f_high * halved, value))
        # The floats between both ends, and the digits of the loss, have an end.
        remaining = np.flatnonzero((np.abs(value) > tolerance / 2) & (high - low > 4 * UNIT_ROUNDOFF * np.abs(middle)))
        active, low, high, f_low, f_high, tolerance, sign, level, piece, side = (
            column[remaining] for column in (active, low, high, f_low, f_high, tolerance, sign, level, piece, side)
        )
    return x, error + rounding


def smaller_and_larger(
    first: Float[np.ndarray, " pairs"], second: Float[np.ndarray, " pairs"]
) -> tuple[Float[np.ndarray, " pairs"], Float[np.ndarray, " pairs"]]:
    """Return the smaller and the larger one of every two numbers."""
    return np.minimum(first, second), np.maximum(first, second)
