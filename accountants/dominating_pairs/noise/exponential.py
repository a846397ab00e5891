"""Closed forms for noise that is exponential between knots, such as Laplace noise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from accountants.dominating_pairs.base import Curve, sum_of_pieces
from accountants.dominating_pairs.noise.formulas import BISECTIONS, REPLACED_POSITIONS, UNITS_REPLACED
from accountants.dominating_pairs.noise.polynomial import PolynomialFormulas
from accountants.privacy_loss import PrivacyLossDistribution, join, log_ratio
from dpkernels.numerics import (
    Real,
    RealArray,
    exponential_moment,
    floating,
    log_or_minus_inf,
    namespace,
    without_derivative,
)
from dpkernels.solve import bisect


class ExponentialFormulas(PolynomialFormulas):
    """Closed forms for noise that is exponential between knots."""

    def hockey_stick(self, side: int = 1) -> Curve:
        """Return eps -> delta(eps), the sum over pieces of a closed integral.

        integral over 0 < t < T of p_top e^(r t) - e^eps q_top e^((r + s) t),    T = (l_top - eps)/s,

        where t is the distance from the top, r the derivative of log p in t, and s = |slope|.
        """
        pieces, source = self.pieces(), self.source
        top, direction, offset = pieces.top
        xp = namespace(pieces.points)
        s, loss = xp.abs(pieces.slope), pieces.loss + xp.abs(pieces.slope) * offset

        def density(weight: Real, points: Real) -> tuple[Real, Real, Real, Real]:
            score, log_density = source.score(points), source.log_prob(points)
            change = score * (top - pieces.points)
            return weight, log_density + change, -direction * score, xp.abs(log_density) + xp.abs(change)

        # The difference of large logarithms has an error of units of theirs: eps is lowered by that, as in ``curve``.
        weight_p, log_p, r, size_p = density(pieces.weights[:, 0], pieces.points)
        weight_q, log_q, r_q, size_q = density(pieces.weights[:, 1], pieces.points - self.D)
        size = xp.maximum(size_p, size_q) + pieces.size_of_weights
        unit, size = xp.finfo(loss.dtype).eps, without_derivative(xp.where(xp.isfinite(size), size, 0.0))
        factor = 1 + side * unit * self._units(size)

        def piece_deltas(eps: Real) -> Real:
            eps = eps - side * unit * size
            T = xp.clip((loss - eps) / xp.where(s > 0, s, 1.0), 0.0, pieces.width)
            T = xp.where(s > 0, T, xp.where(loss > eps, pieces.width, 0.0))
            gap = weight_p * exponential_growth(log_p, r, T) - weight_q * exponential_growth(log_q + eps, r_q, T)
            return gap * factor

        return sum_of_pieces(piece_deltas, len(loss))

    def replaced_hockey_stick(self, rate: Real, side: int = 1) -> Curve:
        """Return eps -> delta(eps), a sum over pieces; s is the distance from their finite end, log densities l + k s.

        log r f(. - D) - log((1 - r) (t - 1) f + t r f(. + D)) is concave between knots, so positive on an interval.
        """
        pieces, source = self.split(REPLACED_POSITIONS), self.source
        xp = namespace(pieces.lower, rate)
        shifts = self.D * xp.array(REPLACED_POSITIONS, pieces.lower.dtype)
        rising = xp.isfinite(pieces.lower)
        origin = xp.where(rising, pieces.lower, pieces.upper)
        slopes = xp.where(rising, 1.0, -1.0)[:, None] * source.score(pieces.points)
        logs = source.log_prob(origin[:, None] - shifts) + log_or_minus_inf(pieces.weights)
        logs = logs + xp.stack([xp.log1p(-rate) + 0 * rate, xp.log(rate), xp.log(rate)])
        size = xp.where(xp.isfinite(logs), xp.abs(logs), 0.0).max(-1)
        unit, size = xp.finfo(logs.dtype).eps, without_derivative(size)
        factor = 1 + side * unit * (UNITS_REPLACED + self._units(size))

        (log_f, log_p, log_q), (slope_f, slope, slope_q), width = logs.T, slopes.T, pieces.width
        finite = xp.where(xp.isfinite(width), width, 0.0)

        def piece_deltas(eps: RealArray) -> Real:
            xp = namespace(eps, logs)
            eps = eps - side * 2 * unit * size
            growth = log_or_minus_inf(xp.maximum(xp.expm1(eps), 0.0))

            def excess(s: Real) -> tuple[RealArray, RealArray]:
                log_lost_f, log_gained = growth + log_f + slope_f * s, log_p + slope * s
                log_lost = xp.logaddexp(log_lost_f, eps + log_q + slope_q * s)
                fraction = xp.exp(log_lost_f - xp.where(log_lost > -np.inf, log_lost, 0.0))
                ratio = xp.where(log_gained > -np.inf, log_ratio(log_gained, log_lost), -np.inf)
                return ratio, slope - fraction * slope_f - (1 - fraction) * slope_q

            start, stop = _positive_interval(excess, finite + 0 * eps)
            endless = xp.isinf(width)
            start = xp.where(endless, 0.0, start)
            positive = excess(0.0 * eps)[0] > 0
            stop = xp.where(endless, xp.where(positive, np.inf, 0.0), xp.where(stop >= finite, width, stop))
            start = xp.where(start > 0, without_derivative(start), 0.0)

            def mass(log_start: Real, slope: Real) -> Real:
                return exponential_growth(log_start + slope * start, slope, stop - start)

            lost = xp.expm1(eps) * mass(log_f, slope_f) + mass(eps + log_q, slope_q)
            return (mass(log_p, slope) - lost) * factor

        return sum_of_pieces(piece_deltas, len(width))

    def replaced_privacy_loss(self, rate: Real) -> PrivacyLossDistribution:
        lower, upper, width = (field[1:-1] for field in self.split(REPLACED_POSITIONS)[:3])
        pieces = PrivacyLossDistribution.of_pieces(self._replaced_pieces(lower, upper, width, rate))
        # Beyond all knots the loss is constant; the last knot is that of q's part.
        tail_p, tail_f, tail_q = (floating(self.noise.sf(self.knots.max() + k * self.D))[None] for k in range(3))
        unsampled = (1 - rate) * tail_f
        outer = PrivacyLossDistribution.of_masses(unsampled + rate * tail_p, unsampled + rate * tail_q)
        return join([pieces, outer, outer.mirrored()])


def _positive_interval(excess: Callable[[Real], tuple[RealArray, RealArray]], width: Real) -> tuple[Real, Real]:
    """Return the ends of the interval on which a concave function is positive; (width, width) if it is nowhere."""

    def value(s: Real) -> RealArray:
        return without_derivative(excess(without_derivative(s))[0])

    def slope(s: Real) -> RealArray:
        return without_derivative(excess(without_derivative(s))[1])

    xp = namespace(width)
    zero = xp.zeros_like(width)
    low, high = bisect(lambda s: slope(s) > 0, zero, width, BISECTIONS)
    summit = xp.where(slope(zero) <= 0, zero, xp.where(slope(width) >= 0, width, (low + high) / 2))
    first = bisect(lambda s: value(s) <= 0, zero, summit, BISECTIONS)[1]
    first = xp.where(value(zero) > 0, zero, first)
    last = bisect(lambda s: value(s) > 0, summit, width, BISECTIONS)[0]
    last = xp.where(value(width) > 0, width, last)
    is_positive = value(summit) > 0
    return xp.where(is_positive, first, width), xp.where(is_positive, last, width)


def exponential_growth(log_start: Real, r: Real, T: Real) -> Real:
    """Return the integral of exp(log_start + r t) over 0 < t < T: 0 at T = 0, and T may be infinite where r < 0."""
    xp = namespace(log_start, r, T)
    highest = log_start + xp.maximum(r * xp.where(xp.isinf(T), 0.0, T), 0.0)
    size = xp.where(r == 0, 0.0, xp.abs(r))  # Not a maximum with -r, whose derivative at 0 is halved.
    return xp.exp(xp.where(T > 0, highest, -np.inf)) * exponential_moment(0, 0.0, size, T)
