"""The profile and the privacy loss of any noise, p = f and q = f(. - D), with l = log p - log q.

If the loss is monotone between known points, the profile is exact: on each piece, {l > eps} is an interval that ends at
a root.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import jax
import numpy as np

from accountants.dominating_pairs.base import Curve, sum_of_pieces
from accountants.dominating_pairs.noise.pieces import Pieces, finite_ends, inner_points, width_between
from accountants.loss_intervals import LOSS_UNITS, LossIntervals, intervals_from_tails, points_at_levels
from accountants.privacy_loss import PrivacyLossDistribution, SmoothPieces, log_ratio
from dpkernels.distributions.base import Distribution
from dpkernels.numerics import (
    GAUSS_LEGENDRE,
    UNIT_ROUNDOFF,
    Boolean,
    Real,
    RealArray,
    cast_like,
    floating,
    log_or_minus_inf,
    namespace,
    without_derivative,
)
from dpkernels.solve import bisect

_TAIL = 1e-40  # Noise is integrated up to this tail probability on either side.
# Further tail probabilities of the joints of a profile: between them a log density changes by little.
_FAR_TAILS = 10.0 ** -np.arange(44.0, 304.0, 4.0)
_RESOLVED = 1e-307  # Masses between levels of the loss are known up to this tail probability.
_NODES, _WEIGHTS = GAUSS_LEGENDRE
_MAX_LOG_CHANGE = 10.0  # How much a log density may change over an interval on which these nodes are exact.
BISECTIONS = 60  # Steps of bisection for the point at which the loss is eps.
# Bounds on errors, in units in the last place:
UNITS = 4  # of the numbers that eps is computed from,
UNITS_REWEIGHTED = 256  # of the norm of reweighted noise,
UNITS_REPLACED = 16  # and of the numbers from which the mass of noise on samples with replaced records is computed.
# The roundings of the loss of a replaced record: log densities of up to 700 are subtracted.
_UNITS_OF_REPLACED_LOSS = 1024
NO_POINTS = np.zeros(0)
_UNMIXED = np.eye(2)  # The weights of f and of its shift in p and in q.
_LARGE_LOSS = 30.0  # Above this loss, e^loss is or will soon be close to overflow.
# The positions of f, of p's part and of q's part, in units of D, if a record of a sample is replaced.
REPLACED_POSITIONS = (0.0, 1.0, -1.0)


class NoiseFormulas:
    """The profile and the privacy loss of noise whose loss is monotone between knots, quantiles and turning points.

    Subclasses have closed forms. Of a staircase, ``periods`` on either side are kept step by step.
    ``ends_at_no_loss`` is whether pieces of even noise end where its loss changes its sign.
    """

    # Whether the computed hockey-stick divergence is an upper bound.
    rounds_up: ClassVar[bool] = False
    # Whether the profiles of the pair and its mirror cross in few places, see ``larger_profile``.
    is_smooth: ClassVar[bool] = True
    # The mass of the source that is not integrated.
    mass_beyond_reach: ClassVar[float] = 2 * _TAIL
    # The least panels of a piece, and of all pieces; the same with replaced records.
    panels: ClassVar[tuple[int, int]] = 2, 0
    panels_replaced: ClassVar[tuple[int, int]] = 4, 0

    def __init__(self, noise: Distribution, shift: Real, periods: int, ends_at_no_loss: bool) -> None:
        self.noise, self.D, self.periods, self.ends_at_no_loss = noise, shift, periods, ends_at_no_loss
        self.source, self.xp = noise.unweighted, namespace(*jax.tree.leaves((noise, shift)))

    @property
    def knots(self) -> RealArray:
        return self.xp.concatenate(self._vectors(self.source.knots, *self.noise.edges))

    def _vectors(self, *points: Real) -> list[RealArray]:
        return [self.xp.atleast_1d(floating(self.xp.asarray(point))) for point in points]

    @property
    def joints(self) -> RealArray:
        """Return the points between which f is smooth enough."""
        return self.xp.concatenate([without_derivative(self.source.quantiles), self.knots])

    def split(self, distances: tuple[float, ...] = (0.0, 1.0), further: RealArray = NO_POINTS) -> Pieces:
        """Return the pieces between all joints of f shifted by these multiples of D, and turning points of the loss."""
        joints, turns, D = self.joints, self._vectors(*self.source.turning_points(self.D)), self.D
        if self.ends_at_no_loss:
            joints = self.xp.concatenate([joints, *self._vectors(D / 2)])
        if len(further):
            joints = namespace(joints, further).concatenate([joints, further])
        xp = namespace(joints, D)
        joint = xp.concatenate([xp.tile(joints, len(distances)), *turns])
        multiple = xp.repeat(xp.array(distances, joints.dtype), len(joints))
        multiple = xp.concatenate([multiple, *(0 * turn for turn in turns)])
        order = xp.argsort(joint + multiple * D)
        joint, multiple = joint[order], multiple[order]
        position, infinity = joint + multiple * D, xp.full(1, np.inf, joint.dtype)
        lower, upper = xp.concatenate([-infinity, position]), xp.concatenate([position, infinity])
        # A joint and its own shift have the distance D, which their difference may have lost to rounding.
        width = width_between(position[:-1], position[1:], D, xp.diff(joint) + xp.diff(multiple) * D)
        width = xp.concatenate([infinity, width, infinity]) if len(position) else infinity
        points = inner_points(lower, upper, D)[:, None] - D * xp.array(distances, position.dtype)
        return Pieces(lower, upper, width, points, self.noise.weight(points))

    def hockey_stick(self, side: int = 1) -> Curve:
        """Return eps -> sum over pieces of P[l > eps] - e^eps Q[l > eps]; roots of l = eps need no derivative.

        Allowances for rounding errors are added; those that may be large are subtracted with ``side`` -1.
        """
        source, D, pieces = self.source, self.D, self.split(further=self._far_joints)
        lower, upper, width = pieces[:3]
        (weight_p, weight_q), both_positive = pieces.weights.T, pieces.both_positive
        change = pieces.log_ratio_of_weights
        low, high = finite_ends(lower, upper)
        lower_loss, upper_loss = (without_derivative(source.loss(x, D) + change) for x in (low, high))
        falls, frozen = lower_loss >= upper_loss, without_derivative((source, D))

        def solve_cut(target: RealArray, start: RealArray, end: RealArray, falls: Boolean) -> RealArray:
            ends = bisect(lambda x: (frozen[0].loss(x, frozen[1]) > target) == falls, start, end, BISECTIONS)
            return (ends[0] + ends[1]) / 2

        def piece_deltas(level: Real) -> Real:
            xp = namespace(level, lower)
            target = without_derivative(level - change)
            start, end = without_derivative((low + 0 * target, high + 0 * target))
            none_above = xp.maximum(lower_loss, upper_loss) <= level
            all_above = xp.minimum(lower_loss, upper_loss) > level
            if xp is np:  # Few pieces have the level between their ends.
                has_cut, cut = both_positive & ~none_above & ~all_above, 0 * target
                falling = np.broadcast_to(falls, has_cut.shape)[has_cut]
                cut[has_cut] = solve_cut(target[has_cut], start[has_cut], end[has_cut], falling)
            else:
                cut = solve_cut(target, start, end, falls)
            start = xp.where(both_positive & ~(falls | all_above), cut, lower)
            end = xp.where(both_positive & falls & ~all_above, cut, upper)
            is_present = (xp.where(both_positive, ~none_above, weight_p > 0)) & (width > 0)
            start, end = xp.where(is_present, start, 0.0), xp.where(is_present, end, 0.0)
            gap = weight_p * source.mass(start, end) - xp.exp(level) * weight_q * source.mass(start - D, end - D)
            short, direct = self._gap_by_quadrature(start, end, level - change)
            gap = xp.where(short & both_positive, weight_p * direct, gap)
            return gap * (1 + side * UNITS_REWEIGHTED * np.finfo(gap.dtype).eps)

        return sum_of_pieces(piece_deltas, len(lower) * len(_NODES))

    def _gap_by_quadrature(self, start: RealArray, end: RealArray, level: RealArray) -> tuple[Boolean, RealArray]:
        """Return which pieces are short, and the integral of f (1 - e^(level - loss)) on them, without cancellation."""
        source, xp = self.source, namespace(start, level)
        change = [source.log_prob(end - shift) - source.log_prob(start - shift) for shift in (0.0 * self.D, self.D)]
        short = (xp.abs(change[0]) <= _MAX_LOG_CHANGE) & (xp.abs(change[1]) <= _MAX_LOG_CHANGE)
        width = xp.where(short, end - start, 0.0)[..., None]
        x = xp.where(short, start, 0.0)[..., None] + width * cast_like(_NODES, start)
        excess = source.loss(x, self.D) - xp.where(short, level, 0.0)[..., None]
        excess = xp.where(excess > 0, excess, 0.0)
        return short, -(width * cast_like(_WEIGHTS, start) * source.prob(x) * xp.expm1(-excess)).sum(-1)

    def largest_loss(self) -> Real:
        """Return the supremum of the loss; at infinite ends it is the limit that the distribution states."""
        pieces, limits = self.split(), self.source.loss_limits(self.D)
        sides = (pieces.lower, pieces.upper)
        xp = namespace(pieces.lower, *limits)
        losses = [
            xp.where(xp.isinf(end), limit, self.source.loss(inner, self.D)) + pieces.log_ratio_of_weights
            for end, limit, inner in zip(sides, limits, finite_ends(*sides), strict=True)
        ]
        unbounded = xp.where(pieces.weights[:, 0] > 0, np.inf, -np.inf)
        loss = xp.where(pieces.both_positive, xp.maximum(*losses), unbounded)
        return xp.where(pieces.width > 0, loss, -np.inf).max()

    @property
    def unseen(self) -> float:
        """Return a bound on the mass beyond the reach on both sides, of plain numbers; 0 under tracing."""
        # Noise is reweighted at most as it is at 0.
        return self.mass_beyond_reach * float(self.noise.weight(np.zeros(()))) if self.xp is np else 0.0

    @property
    def _far_joints(self) -> RealArray:
        """Return quantiles in the tails, where a mass is too small for a difference of tails."""
        xp, quantiles = namespace(self.source.quantiles), without_derivative(self.source.quantiles)
        tails = _FAR_TAILS[4 * float(np.finfo(quantiles.dtype).tiny) < _FAR_TAILS]
        tails = cast_like(tails, quantiles)
        sides = [self.source.inverse(tails, np.full(len(tails), is_lower)) for is_lower in (True, False)]
        return without_derivative(xp.concatenate(sides))

    @property
    def _reach(self) -> tuple[Real, Real]:
        tail = cast_like(np.array([_TAIL]), self.source.quantiles)
        return self.source.inverse(tail, np.ones(1, bool)), self.source.inverse(tail, np.zeros(1, bool))

    def within_reach(self, pieces: Pieces, distances: tuple[float, ...] = (0.0, 1.0)) -> tuple[RealArray, RealArray]:
        """Return the ends of pieces within the joint reach of f shifted by these multiples of D."""
        xp, shifts, (low, high) = self.xp, [distance * self.D for distance in distances], self._reach
        low, high = low + xp.stack(shifts).min(), high + xp.stack(shifts).max()
        return xp.clip(pieces.lower, low, high), xp.clip(pieces.upper, low, high)

    def privacy_loss(self) -> PrivacyLossDistribution:
        pieces, source, D = self.split(), self.source, self.D
        lower, upper = self.within_reach(pieces)
        log_p, log_q = (floating(log_or_minus_inf(weight)) for weight in pieces.weights.T)
        change = log_ratio(log_p, log_q)
        smooth = SmoothPieces(
            lower,
            upper,
            lambda x, i: source.log_prob(x) + log_p[i],
            lambda x, i: source.log_prob(x - D) + log_q[i],
            lambda x, i: source.loss(x, D) + change[i],
            self._steepness(),
            min_panels=least_panels(lower, self.panels),
            whole_ends=(pieces.lower, pieces.upper),
            intervals=self._intervals(pieces, lambda x, i: source.loss(x, D) + change[i]),
        )
        present = (pieces.weights > 0).any(-1)
        return PrivacyLossDistribution.of_pieces(smooth.where(present), self.unseen)

    @property
    def _far_reach(self) -> tuple[RealArray, RealArray]:
        """Return points beyond which both tails have no more than the least probability that is resolved."""
        least = np.array([_RESOLVED])
        return self.source.inverse(least, np.ones(1, bool)), self.source.inverse(least, np.zeros(1, bool))

    def _intervals(
        self,
        pieces: Pieces,
        loss: Callable[..., Any],
        inverse: Callable[..., Any] | None = None,
        distances: tuple[float, ...] = (0.0, 1.0),
        coefficients: np.ndarray = _UNMIXED,
        units: float = LOSS_UNITS,
    ) -> LossIntervals | None:
        """Return the masses between levels of the loss, for plain numbers.

        ``coefficients`` are the factors of the weights at these distances, for p and for q. ``units`` are the roundings
        to which the loss is known.
        """
        if self.xp is not np:
            return None
        (low, high), shifts = self._far_reach, [distance * float(self.D) for distance in distances]
        low, high = low + min(shifts), high + max(shifts)
        ends = np.clip(pieces.lower, low, high), np.clip(pieces.upper, low, high)
        units = max(units, self.source.roundings)

        def points(level: np.ndarray, piece: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            if inverse is None:
                return points_at_levels(loss, ends, level, piece, units)
            error = units * UNIT_ROUNDOFF * (1 + np.abs(np.where(np.isfinite(level), level, 0.0)))
            return np.clip(inverse(level, piece), ends[0][piece], ends[1][piece]), error

        weights = coefficients[:, :, None] * pieces.weights.T
        intervals = intervals_from_tails(self.source, shifts, (weights[0], weights[1]), ends, points)
        return intervals.where((pieces.weights > 0).any(-1))

    def _steepness(self, distances: tuple[float, ...] = (0.0, 1.0)) -> Callable[..., np.ndarray]:
        """Return the function that maps panels to the largest steepness of f at these positions."""
        shifts = [distance * self.D for distance in distances]
        steepness = self.noise.steepness
        return lambda lower, upper, _: np.max([steepness(lower - shift, upper - shift) for shift in shifts], axis=0)

    # One release on a sample of rate r with a record replaced, D > 0: see ``replaced``.

    def replaced_hockey_stick(self, rate: Real, side: int = 1) -> Curve:
        """Use that {p > t q} is a half line for an even log-concave density: f(. - D)/f rises and f(. + D)/f falls."""
        noise, D, points = self.noise, self.D, without_derivative(self.noise.quantiles)
        low, high = points[0] - D, points[-1] + D
        frozen_noise, frozen_shift, frozen_rate = without_derivative((noise, D, rate))
        frozen = type(self)(frozen_noise, frozen_shift, self.periods, self.ends_at_no_loss)

        def divergence(eps: RealArray) -> RealArray:
            xp = namespace(eps, low)
            eps = eps - side * UNITS_REPLACED * xp.finfo(eps.dtype).eps * (1 + xp.abs(without_derivative(eps)))
            level = without_derivative(eps)

            def is_below_cut(x: Real) -> RealArray:
                return log_ratio(*frozen.replaced_logs(x, frozen_rate)) <= level

            ends = bisect(is_below_cut, low + 0 * level, high + 0 * level, BISECTIONS)
            cut = (ends[0] + ends[1]) / 2
            tail, tail_p, tail_q = noise.sf(cut), noise.sf(cut - D), noise.sf(cut + D)
            delta = rate * (tail_p - xp.exp(eps) * tail_q) - (1 - rate) * xp.expm1(eps) * tail
            return xp.where(delta < 0, 0.0, delta)

        return divergence

    def replaced_logs(self, y: Real, rate: Real) -> tuple[RealArray, RealArray]:
        """Return log p and log q of a release with a record replaced."""
        log_f, log_p_part, log_q_part = self._replaced_parts(y)
        return _log_mixture(log_f, log_p_part, rate), _log_mixture(log_f, log_q_part, rate)

    def _replaced_parts(self, y: Real) -> list[RealArray]:
        return [self.noise.log_prob(y - distance * self.D) for distance in REPLACED_POSITIONS]

    def replaced_loss(self, y: Real, rate: Real) -> RealArray:
        """Return log p/q of a release with a record replaced, to full precision.

        It is the loss l > 0 of the pair of both records on a sample of the rate that their part of q has: with
        q = (1 - r) f + r g and s = r g/q, p/q is 1 + s (e^l - 1). Where l < 0, p and q are exchanged.
        """
        log_f, log_p_part, log_q_part = self._replaced_parts(y)
        xp = namespace(log_f, log_p_part, log_q_part, rate)
        log_p, log_q = _log_mixture(log_f, log_p_part, rate), _log_mixture(log_f, log_q_part, rate)
        regular = xp.isfinite(log_p_part) & xp.isfinite(log_q_part)
        point = xp.where(regular, y, 0.0)
        weights = (floating(log_or_minus_inf(self.noise.weight(point + side * self.D))) for side in (-1.0, 1.0))
        record_loss = self.source.loss(point - self.D, -2 * self.D) + log_ratio(*weights)
        rises = record_loss >= 0
        sign, size = xp.where(rises, 1.0, -1.0), xp.abs(record_loss)
        log_ratio_of_part = xp.where(rises, log_q_part - log_q, log_p_part - log_p)
        log_s = xp.minimum(xp.log(rate) + xp.where(regular, log_ratio_of_part, 0.0), 0.0)
        large = size > _LARGE_LOSS
        small_loss = xp.log1p(xp.exp(log_s) * xp.expm1(xp.where(large, 0.0, size)))
        large_loss = xp.logaddexp(log_or_minus_inf(-xp.expm1(log_s)), size + log_s)
        return xp.where(regular, sign * xp.where(large, large_loss, small_loss), log_ratio(log_p, log_q))

    def replaced_privacy_loss(self, rate: Real) -> PrivacyLossDistribution:
        uncut = self.split(REPLACED_POSITIONS)
        lower, upper = self.within_reach(uncut, REPLACED_POSITIONS)
        intervals = None
        if len(self.noise.edges) == 0 and namespace(rate) is np:  # The density is log-concave, so the loss is monotone.
            coefficients = np.array([[1 - rate, rate, 0.0], [1 - rate, 0.0, rate]])
            intervals = self._intervals(
                uncut,
                lambda x, _: self.replaced_loss(x, rate),
                distances=REPLACED_POSITIONS,
                coefficients=coefficients,
                units=_UNITS_OF_REPLACED_LOSS,
            )
        pieces = self._replaced_pieces(lower, upper, upper - lower, rate)
        pieces = replace(pieces, whole_ends=(uncut.lower, uncut.upper), intervals=intervals)
        return PrivacyLossDistribution.of_pieces(pieces, self.unseen if namespace(lower, rate) is np else 0.0)

    def _replaced_pieces(self, lower: RealArray, upper: RealArray, width: RealArray, rate: Real) -> SmoothPieces:
        return SmoothPieces(
            lower,
            lower + width_between(lower, upper, self.D, width),
            lambda x, _: self.replaced_logs(x, rate)[0],
            lambda x, _: self.replaced_logs(x, rate)[1],
            lambda x, _: self.replaced_loss(x, rate),
            self._steepness(REPLACED_POSITIONS),
            min_panels=least_panels(lower, self.panels_replaced),
        )


def _log_mixture(log_f: RealArray, log_g: RealArray, rate: Real) -> RealArray:
    """Return log((1 - r) f + r g)."""
    xp = namespace(log_f, log_g, rate)
    top = without_derivative(xp.maximum(log_f, log_g))
    top = xp.where(top > -np.inf, top, 0.0)
    return top + log_or_minus_inf((1 - rate) * xp.exp(log_f - top) + rate * xp.exp(log_g - top))


def least_panels(pieces: RealArray, panels: tuple[int, int]) -> int:
    """Return the panels of each piece, from the least of one piece and the least of all."""
    return max(panels[0], panels[1] // len(pieces))
