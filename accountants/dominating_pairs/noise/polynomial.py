"""Noise with a log density that is a polynomial of degree 2 at most between knots, as Laplace or Gaussian noise.

The loss is then l(x) = l(x0) + slope (x - x0) between the knots of f and of its shift. Terms that do not depend on eps
are computed once.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from accountants.dominating_pairs.noise.formulas import UNITS, UNITS_REWEIGHTED, NoiseFormulas, least_panels
from accountants.dominating_pairs.noise.pieces import Pieces
from accountants.loss_intervals import LOSS_UNITS
from accountants.privacy_loss import SMOOTH_PANELS, PrivacyLossDistribution, SmoothPieces, join
from dpkernels.numerics import (
    GAUSS_LEGENDRE,
    Real,
    RealArray,
    cast_like,
    floating,
    log_or_minus_inf,
    namespace,
    without_derivative,
)

_NODES, _WEIGHTS = GAUSS_LEGENDRE
# How much a log density may change over an interval whose mass these nodes give; other masses are differences of tails.
_MAX_LOG_CHANGE = 1.0


class PolynomialFormulas(NoiseFormulas):
    """Closed forms for an affine loss between knots."""

    mass_beyond_reach: ClassVar[float] = 0.0
    panels: ClassVar[tuple[int, int]] = SMOOTH_PANELS, 0
    panels_replaced: ClassVar[tuple[int, int]] = 8, 0

    @property
    def _reach(self) -> tuple[Real, Real]:
        return -np.inf, np.inf

    @property
    def joints(self) -> RealArray:
        return self.knots

    def _units(self, size: RealArray) -> RealArray:
        """Return the relative errors, in units in the last place, of masses with log densities of this size."""
        return UNITS * size + (UNITS_REWEIGHTED if len(self.noise.edges) else 0)

    def _loss_points(self, points: RealArray) -> tuple[RealArray, RealArray]:
        """Return (point at which the loss is given, slope of the loss) of pieces, from points inside them."""
        return points[:, 0], self.source.score(points[:, 0]) - self.source.score(points[:, 1])

    def pieces(self) -> Pieces:
        pieces, source = self.split(), self.source
        point, slope = self._loss_points(pieces.points)
        loss = source.loss(point, self.D) + pieces.log_ratio_of_weights
        xp, (has_p, has_q) = namespace(loss), (pieces.weights > 0).T
        # Where both weights are 0 the loss is that of equal small weights: derivatives in the weight are taken there.
        is_finite = has_p == has_q
        loss = xp.where(is_finite, loss, xp.where(has_p, np.inf, -np.inf))
        return pieces._replace(points=point, loss=loss, slope=xp.where(is_finite, slope, 0.0))

    def largest_loss(self) -> Real:
        pieces = self.pieces()
        xp = namespace(pieces.loss)
        top = pieces.loss + xp.abs(pieces.slope) * pieces.top[2]
        return xp.where(pieces.width > 0, top, -np.inf).max()

    def _mass(self, pieces: Pieces, shift: Real) -> RealArray:
        """Return the masses of the source moved by ``shift``: by nodes where a difference of tails would cancel."""
        source, lower, upper = self.source, pieces.lower - shift, pieces.upper - shift
        xp = namespace(lower)
        finite = xp.isfinite(pieces.width)
        low, high = xp.where(finite, lower, 0.0), xp.where(finite, upper, 0.0)
        top = source.log_prob(without_derivative(xp.clip(0.0 * low, low, high)))
        short = finite & (top - xp.minimum(source.log_prob(low), source.log_prob(high)) <= _MAX_LOG_CHANGE)
        width = xp.where(short, pieces.width, 0.0)[:, None]
        nodes, weights = (cast_like(rule, low) for rule in (_NODES, _WEIGHTS))
        by_nodes = (width * weights * source.prob(low[:, None] + width * nodes)).sum(-1)
        return xp.where(short, by_nodes, source.mass(lower, upper))

    def privacy_loss(self) -> PrivacyLossDistribution:
        pieces, source, D = self.pieces(), self.source, self.D
        xp = namespace(pieces.points)
        constant = (pieces.slope == 0) & (pieces.width > 0)
        p, q = (
            xp.where(constant, weight * self._mass(pieces, shift), 0.0)
            for weight, shift in zip(pieces.weights.T, (0.0, D), strict=True)
        )
        width = xp.where(constant, pieces.width, 0.0)
        atoms = PrivacyLossDistribution(without_underflow(p, pieces.loss, width), q, pieces.loss, 0 * p)
        lower, upper = self.within_reach(pieces)
        present = (pieces.slope != 0) & (pieces.width > 0)
        # An absent piece has no length, and values for which all formulas are finite.
        fields = lower, upper, pieces.lower, pieces.upper, pieces.points, pieces.loss
        lower, upper, *beyond, point, loss = (xp.where(present, field, 0.0) for field in fields)
        slope, log_weight = xp.where(present, pieces.slope, 1.0), floating(log_or_minus_inf(pieces.weights[:, 0]))

        def log_p(x: RealArray, i: RealArray) -> RealArray:
            return source.log_prob(x) + log_weight[i]

        def affine_loss(x: RealArray, i: Real) -> RealArray:
            return loss[i] + slope[i] * (x - point[i])

        def inverse(level: RealArray, i: Real) -> RealArray:
            return point[i] + (level - loss[i]) / slope[i]

        def log_q(x: RealArray, i: RealArray) -> RealArray:
            return log_p(x, i) - affine_loss(x, i)

        panels = least_panels(lower, self.panels)
        # Points far from 0 are rounded, by more than a loss allows for where it is steep there.
        finite = xp.isfinite(lower) & xp.isfinite(upper)
        steep = xp.where(finite, xp.abs(slope) * xp.maximum(xp.abs(lower), xp.abs(upper)), 0.0).max()
        units = max(LOSS_UNITS, UNITS * float(steep)) if self.xp is np else LOSS_UNITS
        intervals = self._intervals(pieces, affine_loss, inverse, units=units)
        steepness, whole = self._steepness(), (beyond[0], beyond[1])
        smooth = SmoothPieces(lower, upper, log_p, log_q, affine_loss, steepness, inverse, panels, whole, intervals)
        return join([atoms, PrivacyLossDistribution.of_pieces(smooth.where(present), self.unseen)])


def without_underflow(p: RealArray, loss: RealArray, width: RealArray) -> RealArray:
    """Return masses, those of losses above 0 not 0 by underflow: a possible loss must stay one, however large."""
    xp = namespace(p, loss)
    return xp.where((loss > 0) & (width > 0), xp.maximum(p, xp.finfo(p.dtype).tiny), p)
