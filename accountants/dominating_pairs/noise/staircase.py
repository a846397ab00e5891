"""Closed forms for a staircase, whose loss takes finitely many values."""

from __future__ import annotations

from typing import ClassVar

import jax
import numpy as np

from accountants.dominating_pairs.base import Curve, cap
from accountants.dominating_pairs.discrete import Atoms
from accountants.dominating_pairs.noise.formulas import NO_POINTS, REPLACED_POSITIONS
from accountants.dominating_pairs.noise.pieces import Pieces
from accountants.dominating_pairs.noise.polynomial import PolynomialFormulas, without_underflow
from accountants.privacy_loss import PrivacyLossDistribution, log_ratio
from dpkernels.numerics import Real, RealArray, namespace, without_derivative


class StepFormulas(PolynomialFormulas):
    """Closed forms for a staircase, whose loss takes finitely many values on the periods kept."""

    is_smooth: ClassVar[bool] = False

    @property
    def knots(self) -> RealArray:
        """Return the steps of the periods that the pair keeps, and the edges."""
        return self.xp.concatenate(self._vectors(self.source.steps(self.periods), *self.noise.edges))

    def split(self, distances: tuple[float, ...] = (0.0, 1.0), further: RealArray = NO_POINTS) -> Pieces:
        return Pieces(*(field[1:-1] for field in super().split(distances, further)[:5]))

    def _loss_points(self, points: RealArray) -> tuple[RealArray, RealArray]:
        return points[:, 0], 0.0 * points[:, 0]

    def _masses(self, pieces: Pieces) -> tuple[RealArray, RealArray]:
        xp, size = namespace(pieces.points), pieces.width * self.copies(pieces.points)
        p, q = (xp.exp(self.source.log_prob(x)) * size for x in (pieces.points, pieces.points - self.D))
        return pieces.weights[:, 0] * p, pieces.weights[:, 1] * q

    def privacy_loss(self) -> PrivacyLossDistribution:
        pieces = self.pieces()
        p, q = self._masses(pieces)
        width = pieces.width * self.copies(pieces.points)
        return PrivacyLossDistribution(without_underflow(p, pieces.loss, width), q, pieces.loss, 0 * p)

    def hockey_stick(self, side: int = 1) -> Curve:
        """Return eps -> delta(eps), which is linear in e^eps between the values l_1 < l_2 < ... of the loss.

        delta(eps) = delta(l_i) + (1 - e^(eps - l_i)) e^(l_i) Q(loss >= l_i),  l_i the least level above eps.
        """
        pieces = self.pieces()
        p, q = self._masses(pieces)
        xp = namespace(pieces.loss)
        largest = cap(pieces.loss.dtype)
        unit, points = xp.finfo(pieces.loss.dtype).eps, (pieces.points, pieces.points - self.D)
        size_p, size_q = (without_derivative(xp.abs(self.source.log_prob(x))) for x in points)
        p, q = p * (1 + side * unit * self._units(size_p)), q * (1 - side * unit * self._units(size_q))
        infinite = pieces.loss >= largest
        infinity_mass, infinity_mass_q = (xp.where(infinite, mass, 0.0).sum() for mass in (p, q))
        level = xp.clip(pieces.loss + side * unit * (size_p + size_q), -largest, largest)
        order = xp.argsort(-level)
        level, q_at_level = level[order], xp.where(infinite, 0.0, p * xp.exp(-level))[order]
        q_above = xp.cumsum(q_at_level)
        steps = q_above[:-1] * xp.exp(level[:-1]) * -xp.expm1(level[1:] - level[:-1])
        delta = xp.concatenate([xp.zeros_like(level[:1]), xp.cumsum(steps)])
        slope = q_above * xp.exp(level)

        def divergence(eps: RealArray) -> RealArray:
            xp = namespace(eps, level)
            count = len(level) - xp.searchsorted(level[::-1], eps, side="right")
            i = xp.maximum(count - 1, 0)
            finite_part = delta[i] - xp.where(count > 0, slope[i] * xp.expm1(eps - level[i]), 0.0)
            return finite_part + infinity_mass - xp.exp(eps) * infinity_mass_q

        return divergence

    def replaced_hockey_stick(self, rate: Real, side: int = 1) -> Curve:
        losses = self.replaced_privacy_loss(rate)
        pair = Atoms(losses.p, losses.q)
        return pair.hockey_stick() if side > 0 else pair.nearest_curve()

    def replaced_privacy_loss(self, rate: Real) -> PrivacyLossDistribution:
        pieces = self.split(REPLACED_POSITIONS)
        points = (pieces.lower + pieces.upper) / 2
        mass, logs = pieces.width * self.copies(points), self.replaced_logs(points, rate)
        p, q = (mass * namespace(mass).exp(log) for log in logs)
        loss = log_ratio(*logs)
        return PrivacyLossDistribution(without_underflow(p, loss, mass), q, loss, 0 * mass)

    def copies(self, points: Real) -> Real:
        """Return how often a piece counts: beyond all edges a staircase repeats, e^-eps times as high each period.

        The last whole period before the reach R represents all that follow. NaN where R is not beyond the edges.
        """
        period, epsilon = self.source.period, self.source.epsilon
        xp = namespace(points, self.D, *jax.tree.leaves(self.noise))
        shift = xp.abs(self.D)
        reach = (self.periods - 1 - xp.ceil(shift / period)) * period
        edge_reach = shift + xp.abs(xp.stack([0 * shift, *self.noise.edges])).max()
        x = xp.abs(points)
        copies = xp.where(x < reach - period, 1.0, xp.where(x < reach, -1 / xp.expm1(-epsilon), 0.0))
        negligible = epsilon * (reach / period - 1) > 120
        return xp.where((reach - period >= edge_reach) | negligible, copies, np.nan)
