"""The dominating pair of a mixture of Gaussians against the Gaussian at 0, in units of their standard deviation.

    p = sum of w_i N(c_i, 1),    q = N(0, 1),    c_i >= 0.

The loss log(sum of w_i e^(c_i y - c_i^2/2)) increases with y, so that both directions have a closed form,

    delta(eps) = sum of w_i Phi(c_i - y) - e^eps Phi(-y),    and of (q, p):    Phi(y) - e^eps sum of w_i Phi(y - c_i),

with y the point at which the loss is eps, or -eps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from accountants.dominating_pairs.base import Curve, DominatingPair
from accountants.dominating_pairs.gaussian_integrals import endless_gain
from accountants.privacy_loss import PrivacyLossDistribution, SmoothPieces
from dpkernels import checks
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.numerics import Real, RealArray, floating, namespace, ndtr, without_derivative
from dpkernels.pytrees import pytree
from dpkernels.solve import bisect

_STANDARD = Gaussian(1.0)
_REACH = 18.0  # How far beyond all means densities are integrated, in standard deviations.
_UNSEEN = 2e-72  # The mass that is farther away: 2 Phi(-18).
_MAX_POSITION = 1e3  # How far from 0 and from the means roots are looked for, in standard deviations.
_BISECTIONS = 64  # Halvings of the interval in which a root is.
# Bounds on relative errors, in units in the last place:
_UNITS_OF_FACTOR = 32  # of a factor, times 1 + its log;
_UNITS_OF_LOSS = 8  # of a loss, times 1 + its parts;
_UNITS_OF_GAIN = 224  # of one Gaussian's divergence, which is rounded upwards, times 1 + the squares of its positions.


@partial(pytree, static=("is_mirrored",))
@dataclass(frozen=True)
class GaussianMixture(DominatingPair):
    """A mixture of Gaussians of standard deviation 1, and the Gaussian at 0; or this pair mirrored."""

    centres: RealArray
    weights: RealArray
    is_mirrored: bool = False

    has_joint_axes: ClassVar[bool] = True
    may_be_asymmetric: ClassVar[bool] = True
    rounds_up: ClassVar[bool] = True
    neighbours: ClassVar[str | None] = "add_remove"

    def _log_mixture(self, y: RealArray) -> Real:
        return self._log_sum(_STANDARD.log_prob(y[..., None] - self.centres))

    def _loss(self, y: Any) -> RealArray:
        """Return log p/q of the pair that is not mirrored."""
        return self._log_sum(self.centres * (y[..., None] - self.centres / 2))

    def _log_sum(self, logs: Any) -> RealArray:
        """Return the log of the weighted sum of exponentials along a last axis."""
        xp = namespace(logs, self.weights)
        logs = logs + xp.log(self.weights)
        top = without_derivative(logs.max(-1))
        return top + xp.log(xp.exp(logs - top[..., None]).sum(-1))

    def hockey_stick(self) -> Curve:
        return self._bound(1)

    def lower_hockey_stick(self) -> Curve:
        return self._bound(-1)

    def _bound(self, side: int) -> Curve:
        """Return an upper (side 1) or a lower (side -1) bound of the divergence, as a sum of positive terms.

        With y the point at which the loss is eps, or -eps,

            delta = sum of w_i (Phi(c_i - y) - e^(c_i y - c_i^2/2) Phi(-y)),
            and of (q, p):  e^eps sum of w_i (e^(c_i y - c_i^2/2) Phi(y) - Phi(y - c_i)).

        Each difference is the divergence of one Gaussian. At any other y the sum is p(S) - e^loss q(S) of a set S of
        outcomes, so that p(S) - e^eps q(S), which is no larger than delta, differs by at most |loss - eps| e^eps q(S).
        An upper bound takes q of a larger set, whose loss is lower by more than the error.
        """
        sign = -1.0 if self.is_mirrored else 1.0
        frozen = without_derivative(self)

        def bound(eps: RealArray) -> Real:
            xp = namespace(eps, self.centres)
            unit, level = xp.finfo(eps.dtype).eps, without_derivative(sign * eps)
            low, high = xp.full_like(level, -_MAX_POSITION), xp.full_like(level, _MAX_POSITION + frozen.centres.max())

            def point_at_loss(level: RealArray) -> RealArray:
                return bisect(lambda y: frozen._loss(y) < level, low, high, _BISECTIONS)[0]

            def masses(pair: GaussianMixture, y: RealArray) -> tuple[RealArray, RealArray]:
                mixture = (pair.weights * ndtr(sign * (pair.centres - y[..., None]))).sum(-1)
                return (ndtr(y), mixture) if self.is_mirrored else (mixture, ndtr(-y))

            point = point_at_loss(level)
            p, q = masses(self, point)
            difference = p - xp.exp(eps) * q

            c, y, loss = frozen.centres, point[..., None], frozen._loss(point)[..., None]
            logs = xp.log(frozen.weights) + c * (y - c / 2)
            size = xp.abs(c * y) + c**2 + xp.abs(xp.log(frozen.weights))
            # The parts of the loss: e^loss is a sum, whose terms have these shares.
            fractions = xp.exp(logs - loss)
            start = -y + 0 * c if self.is_mirrored else y - c
            error = _UNITS_OF_FACTOR * unit * (1 + size)
            if side < 0:
                error = error + _UNITS_OF_GAIN * unit * (1 + start**2 + (start + c) ** 2 + c**2)
            factor = (fractions if self.is_mirrored else frozen.weights) * (1 + side * error)
            total = (factor * endless_gain(start, 0 * y + c)).sum(-1)
            loss_error = unit * (_UNITS_OF_LOSS * (1 + xp.abs(level) + (fractions * size).sum(-1)) + c.size)
            larger_set = point_at_loss(level - 2 * sign * loss_error)
            larger_mass = masses(frozen, larger_set)[1] if side > 0 else without_derivative(q)
            value = total + side * loss_error * xp.exp(without_derivative(eps)) * larger_mass
            value = xp.where(value < 0, 0.0, value) + (xp.finfo(eps.dtype).tiny if side > 0 else 0.0)
            return value + difference - without_derivative(difference)

        return bound

    def largest_loss(self) -> Real:
        xp = namespace(self.centres, self.weights)
        at_zero = xp.where(self.centres == 0, self.weights, 0.0).sum()
        return xp.where(self.is_mirrored & (at_zero > 0), -xp.log(xp.where(at_zero > 0, at_zero, 1.0)), np.inf)

    def privacy_loss(self) -> PrivacyLossDistribution:
        xp = namespace(self.centres, self.weights)
        centres = without_derivative(floating(xp.asarray(self.centres)))
        first, last = xp.asarray([-_REACH, 0.0], centres.dtype), centres.max()[None] + _REACH
        ends = xp.sort(xp.concatenate([first, centres, last]))
        pieces = SmoothPieces(
            ends[:-1],
            ends[1:],
            lambda y, _: self._log_mixture(y),
            lambda y, _: _STANDARD.log_prob(y),
            lambda y, _: self._loss(y),
            # Each part of the mixture is a Gaussian, and so is q.
            lambda lower, upper, _: np.max(
                [_STANDARD.steepness(lower - centre, upper - centre) for centre in (0.0, *np.asarray(self.centres))],
                axis=0,
            ),
        )
        losses = PrivacyLossDistribution.of_pieces(pieces, _UNSEEN)
        return losses.mirrored() if self.is_mirrored else losses

    def mirror(self) -> GaussianMixture:
        return replace(self, is_mirrored=not self.is_mirrored)

    def check(self) -> None:
        checks.within("centres", self.centres, 0.0, np.inf)
        checks.within("weights", self.weights, np.nextafter(0.0, 1.0), 1.0)
