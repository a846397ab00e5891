"""The pieces between the joints of a density and of its shifts."""

from __future__ import annotations

from typing import Any, NamedTuple

from dpkernels.numerics import Boolean, Real, RealArray, namespace


class Pieces(NamedTuple):
    """The pieces between the joints of shifted densities, from the least up, as arrays of one length."""

    lower: RealArray  # -inf for the first piece, except for staircases.
    upper: RealArray
    width: RealArray  # 0 where the ends differ only by rounding.
    # Points inside, minus the position of each density, along a last axis. With a slope, the point at which the loss is
    # given, which may be outside the piece, whose formulas then continue.
    points: RealArray
    weights: Any  # The weights of the densities relative to the noise without weights, along a last axis.
    loss: Any = None  # If it is affine: its value, inf where only q is 0, and -inf where only p is.
    slope: Any = None

    @property
    def both_positive(self) -> Boolean:
        return (self.weights > 0).all(-1)

    @property
    def log_ratio_of_weights(self) -> RealArray:
        """Return log w_p - log w_q, where a weight of 0 counts as 1."""
        xp = namespace(self.weights)
        log_p, log_q = xp.log(xp.where(self.weights > 0, self.weights, 1.0)).T
        return log_p - log_q

    @property
    def size_of_weights(self) -> RealArray:
        """Return 0 where both weights are equal, else the size of numbers whose roundings their log ratio has."""
        xp, (weight_p, weight_q) = namespace(self.weights), self.weights.T
        logs = xp.abs(xp.log(xp.where(self.weights > 0, self.weights, 1.0))).sum(-1)
        return xp.where(weight_p == weight_q, 0.0, 2 + logs)

    @property
    def top(self) -> tuple[Real, Real, Real]:
        """Return the end with the larger loss (if flat, the finite end), -1 if it is the lower end, |top - point|."""
        xp = namespace(self.points)
        rightwards = xp.where(self.slope == 0, ~xp.isfinite(self.lower), self.slope > 0)
        top = xp.where(rightwards, self.upper, self.lower)
        return top, xp.where(rightwards, 1.0, -1.0), xp.abs(top - self.points)


def finite_ends(lower: RealArray, upper: RealArray) -> tuple[RealArray, RealArray]:
    """Return both ends, an infinite one replaced by the other."""
    xp = namespace(lower)
    return xp.where(xp.isinf(lower), upper, lower), xp.where(xp.isinf(upper), lower, upper)


def width_between(lower: RealArray, upper: RealArray, D: Real, distance: RealArray) -> RealArray:
    """Return ``apart``, the distance of neighbouring knots, and 0 where they differ only by rounding."""
    xp = namespace(lower, upper, D)
    rounding = 4 * xp.finfo(lower.dtype).eps * (xp.abs(lower) + xp.abs(upper) + xp.abs(D))
    return xp.where(xp.isfinite(rounding) & (upper - lower <= rounding), 0.0, distance)


def inner_points(lower: Real, upper: Real, D: Real) -> RealArray:
    """Return a point inside each piece."""
    xp = namespace(lower, upper, D)
    start = xp.where(xp.isfinite(lower), lower, xp.where(xp.isfinite(upper), upper - 2 * xp.abs(D), 0.0))
    end = xp.where(xp.isfinite(upper), upper, xp.where(xp.isfinite(lower), lower + 2 * xp.abs(D), 0.0))
    return (start + end) / 2
