"""Trade-off curves: the least type II error of any test between neighbours, as a function of the type I error.

The privacy profile of a guarantee bounds the errors (a, b) of any test, in both neighbour directions, by two lines for
each eps >= 0:

    b >= 1 - delta(eps) - e^eps a,    b >= e^-eps (1 - delta(eps) - a).

Their supremum f is the trade-off curve of the guarantee. It is convex, decreasing and its own inverse, because the two
lines of one eps are mirror images. The first line is active where f(a) >= a, and the second where f(a) <= a.

- Lower bound: the lines from upper bounds of delta, at any eps.
- Upper bound: delta is convex in t = e^eps. So delta + t a is convex in t, and (1 - delta - a)/t is concave in 1/t.
  Chords through values at some points, extended beyond them, bound the extremum over all eps.

Proofs: docs/proofs/trade_off.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpkernels.numerics import MAX_EXPONENT, UNIT_ROUNDOFF
from dpkernels.proven import proven
from dpkernels.solve import minimum

Interval = tuple[float, float]  # (lower, upper).
Profile = Callable[[float], Interval]

_ROUNDING_RTOL = 2.0**-50  # More than the relative rounding errors of a line.
_MIN_DISTANCE = 1e-9  # The relative distance of points from which on they have a chord.
_SLOPE_RTOL = 1e-6  # More than the relative error of the slope of a chord, by that of its points.
_UNKNOWN_SLOPE = 1e300  # A slope of which nothing is known.
_MAX_EPSILON = MAX_EXPONENT  # The largest eps of a line.
# Distances from the place of an extremum, in turn: those of precise profiles, and of others in units of 1/c, where
# delta falls like e^(-c eps).
_PRECISE_DISTANCES = 1e-9 * 4.0 ** np.arange(15)
_ESTIMATE_DISTANCES = np.array([1e-3, 0.01, 0.1, 1.0])
_SEARCH_RTOL = 1e-4  # The precision of a search by an estimate, relative to the largest eps.


class CurvePoint(NamedTuple):
    """Bounds (lower, upper) of the least type II error at a type I error, and of the power, which is 1 minus it."""

    error: Interval
    power: Interval

    @classmethod
    def of_error(cls, low: float, high: float, alpha: float) -> CurvePoint:
        low, high = max(float(low), 0.0), min(float(high), 1 - alpha)
        return cls((min(low, high), high), (_round_down(1 - high), _round_up(1 - low)))

    @classmethod
    def of_power(cls, low: float, high: float, alpha: float) -> CurvePoint:
        low, high = max(float(low), alpha), min(float(high), 1.0)
        high = max(low, high)
        return cls((_round_down(1 - high), _round_up(1 - low)), (low, high))


def _round_down(value: float) -> float:
    return max(value - _ROUNDING_RTOL / 8, 0.0)


def _round_up(value: float) -> float:
    return min(value + _ROUNDING_RTOL / 8, 1.0)


def power_of_line(epsilon: float, delta: float, alpha: float, side: int = 0) -> float:
    """Return delta + e^eps alpha, rounded up (side 1) or down (side -1)."""
    return (delta + math.exp(min(epsilon, _MAX_EPSILON)) * alpha) * (1 + side * _ROUNDING_RTOL)


def error_of_line(epsilon: float, delta: float, alpha: float, side: int = 0) -> float:
    """Return e^-eps (1 - delta - alpha), rounded up (side 1) or down (side -1); it may be negative."""
    value = math.exp(-epsilon) * ((1 - alpha) - delta + side * _ROUNDING_RTOL / 2)
    return value + side * _ROUNDING_RTOL * abs(value)


@proven("trade_off#proof")
def convex_minimum(x: np.ndarray, low: np.ndarray, high: np.ndarray, floor: np.ndarray | float = -np.inf) -> float:
    """Return a lower bound of a convex function on the range of increasing, positive points, from bounds of its values.

    Between two points it is above the chords of points on the left, continued to the right, and the other way round. It
    is known to be at least ``floor`` between every two neighbouring points.
    """
    with np.errstate(over="ignore"):
        return float(np.maximum(_least_between(x, low, high), floor).min())


def _least_between(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return a lower bound between every two neighbouring points, which increase."""
    gap = x[:, None] - x
    is_apart = gap > _MIN_DISTANCE * x[:, None]
    gap = np.where(is_apart, gap, 1.0)
    rising = np.where(is_apart, (low[:, None] - high) / gap, -_UNKNOWN_SLOPE).max(1)
    falling = np.where(is_apart, (high[:, None] - low) / gap, _UNKNOWN_SLOPE).min(0)
    rising, falling = rising - _SLOPE_RTOL * np.abs(rising), falling + _SLOPE_RTOL * np.abs(falling)
    start, rise, stop, fall, width = low[:-1], rising[:-1], low[1:], falling[1:], np.diff(x)
    at_start, at_stop = np.maximum(start, stop - fall * width), np.maximum(start + rise * width, stop)
    # Where both lines meet, by the one that is less steep.
    meets = (start + rise * width < stop) == (stop - fall * width < start)
    position = (start - stop + fall * width) / np.where(fall == rise, 1.0, fall - rise)
    position = np.clip(position, 0.0, width)
    by_start = np.abs(rise) <= np.abs(fall)
    crossing = np.where(by_start, start + rise * position, stop - fall * (width - position))
    inner = np.where(meets, crossing, np.inf)
    rounding = 8 * UNIT_ROUNDOFF * (np.minimum(np.abs(rise), np.abs(fall)) * x[1:] + np.abs(start) + np.abs(stop))
    return np.minimum(np.minimum(at_start, at_stop), inner) - rounding


def steep_power(profile: Profile, points: np.ndarray, alpha: float, farthest: float) -> Interval:
    """Return bounds of the least delta(eps) + e^eps alpha over 0 <= eps, from points next to its place."""
    eps, low, high = _bounds(profile, points, farthest)
    bottom, top = (
        np.array([power_of_line(epsilon, delta, alpha, side) for epsilon, delta in zip(eps, rates, strict=True)])
        for rates, side in ((low, -1), (high, 1))
    )
    # Between two points delta is at least that of the right one. Beyond the farthest eps the sum rises.
    floor = [power_of_line(start, delta, alpha, -1) for start, delta in zip(eps[:-1], low[1:], strict=True)]
    return convex_minimum(np.exp(eps), bottom, top, np.array(floor)), float(top.min())


def flat_error(profile: Profile, points: np.ndarray, alpha: float, farthest: float) -> Interval:
    """Return bounds of the largest e^-eps (1 - delta(eps) - alpha) over 0 <= eps, from points next to its place."""
    eps, low, high = (column[::-1] for column in _bounds(profile, points, farthest))
    bottom, top = (
        np.array([error_of_line(epsilon, delta, alpha, side) for epsilon, delta in zip(eps, rates, strict=True)])
        for rates, side in ((high, -1), (low, 1))
    )
    ends = zip(eps[:-1], eps[1:], low[:-1], strict=True)
    ceilings = [max(error_of_line(end, delta, alpha, 1) for end in (start, stop)) for start, stop, delta in ends]
    bound = -convex_minimum(np.exp(-eps), -top, -bottom, -np.array(ceilings))
    # Beyond the largest loss delta is constant. Beyond any other eps it is not negative.
    tail_error = error_of_line(farthest, low[0] if farthest < _MAX_EPSILON else 0.0, alpha, 1)
    return float(bottom.max()), max(bound, tail_error, 0.0)


def _bounds(profile: Profile, points: np.ndarray, farthest: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return points, eps = 0 and the farthest one, and bounds of delta; those at the ends follow from the others."""
    points = np.unique(np.clip(points, 0.0, farthest))
    low, high = np.transpose([profile(float(eps)) for eps in points])
    prepend, append = bool(points[0] > 0.0), bool(points[-1] < farthest)
    eps = np.concatenate([[0.0] * prepend, points, [farthest] * append])
    low = np.concatenate([[low[0]] * prepend, low, [0.0] * append])
    return eps, low, np.concatenate([[1.0] * prepend, high, [high[-1]] * append])


@proven("trade_off#proof")
def curve_point(
    profile: Profile, tangent_points: Callable[[float, bool], np.ndarray], alpha: float, largest_loss: float
) -> CurvePoint:
    """Return bounds of the curve at alpha in (0, 1), from bounds of delta at an eps >= 0.

    ``tangent_points(alpha, is_flat)`` returns points around the eps whose line is the highest one, of either kind.
    """
    farthest = min(largest_loss, _MAX_EPSILON)
    steep = None
    if alpha <= 0.5:  # f(a) < a from some a <= 1/2 on.
        reach = min(farthest, -math.log(alpha))  # From there on e^eps alpha is at least 1.
        low, high = steep_power(profile, tangent_points(alpha, False), alpha, reach)
        steep = CurvePoint.of_power(low, high, alpha)
        if steep.error[0] >= alpha:
            return steep
    flat = CurvePoint.of_error(*flat_error(profile, tangent_points(alpha, True), alpha, farthest), alpha)
    if steep is None:
        return flat
    # Where f(a) < a is not certain, f(a) is at most the larger of a and of the bound by the first kind.
    high = max(steep.error[1], alpha)
    if flat.error[1] <= alpha:
        high = min(high, flat.error[1])
    return CurvePoint.of_error(max(steep.error[0], flat.error[0]), high, alpha)


def points_around(epsilon: float) -> np.ndarray:
    """Return points around the place of an extremum, for a precise profile."""
    return np.concatenate([epsilon - _PRECISE_DISTANCES, [epsilon], epsilon + _PRECISE_DISTANCES])


def tangent_epsilon(
    estimate: Callable[[float], float], alpha: float, is_flat: bool, largest_loss: float, rtol: float = _SEARCH_RTOL
) -> float:
    """Return about the eps whose line is the highest one."""
    largest_epsilon = min(largest_loss, _MAX_EPSILON if is_flat else -math.log(alpha))

    def objective(eps: float, _: object) -> float:
        if is_flat:
            return -error_of_line(float(eps), estimate(float(eps)), alpha)
        return power_of_line(float(eps), estimate(float(eps)), alpha)

    if is_flat and not math.isfinite(largest_loss):
        # The lines are 0 or negative almost everywhere: no eps is larger than where delta is small.
        largest_epsilon = next(
            (eps for eps in 2.0 ** np.arange(-6, 10) if estimate(eps) < (1 - alpha) * _SEARCH_RTOL), largest_epsilon
        )
    return minimum(objective, (), np.float64(0.0), np.float64(largest_epsilon), rtol=rtol)


def points_around_tangent(
    estimate: Callable[[float], float], alpha: float, is_flat: bool, largest_loss: float, rtol: float = _SEARCH_RTOL
) -> np.ndarray:
    """Return points around the eps whose line is the highest one, for bounds that are not precise."""
    epsilon = tangent_epsilon(estimate, alpha, is_flat, largest_loss, rtol)
    delta = max(estimate(epsilon), 1e-300)
    rate = (1 - alpha) / delta - 1 if is_flat else alpha * math.exp(epsilon) / delta
    distances = _ESTIMATE_DISTANCES / min(max(rate, 0.1), 1e3)
    return np.concatenate([epsilon - distances, [epsilon], epsilon + distances])
