"""The dominating pair of a mixture of Gaussians against the Gaussian at 0, in units of their standard deviation.

    p = sum of w_i N(c_i, 1),    q = N(0, 1),    c_i >= 0.

The loss log(sum of w_i e^(c_i y - c_i^2/2)) rises with y, so that both directions have a closed form,

    delta(eps) = sum of w_i Phi(c_i - y) - e^eps Phi(-y),    and of (q, p):    Phi(y) - e^eps sum of w_i Phi(y - c_i),

with y the point at which the loss is eps, or -eps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from accountants.dominating_pairs.base import Curve, DominatingPair
from accountants.privacy_loss import PrivacyLossDistribution, SmoothPieces
from dpkernels import checks
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.numerics import namespace, ndtr, without_derivative
from dpkernels.pytrees import pytree
from dpkernels.solve import bisect

_STANDARD = Gaussian(1.0)
# How far beyond all means densities are integrated, the mass that is farther away, and how far roots are looked for.
_REACH, _UNSEEN, _FARTHEST = 18.0, 2e-72, 1e3
_BISECTIONS = 64


@partial(pytree, static=("is_mirrored",))
@dataclass(frozen=True)
class GaussianMixture(DominatingPair):
    """A mixture of Gaussians of standard deviation 1, and the Gaussian at 0; or this pair mirrored."""

    centres: Any
    weights: Any
    is_mirrored: bool = False

    joint: ClassVar[bool] = True
    may_be_asymmetric: ClassVar[bool] = True

    def _log_mixture(self, y: Any) -> Any:
        xp = namespace(y, self.centres)
        logs = _STANDARD.log_prob(y[..., None] - self.centres) + xp.log(self.weights)
        top = logs.max(-1)
        return top + xp.log(xp.exp(logs - top[..., None]).sum(-1))

    def _loss(self, y: Any) -> Any:
        """Return log p/q of the pair that is not mirrored."""
        xp = namespace(y, self.centres)
        logs = self.centres * (y[..., None] - self.centres / 2) + xp.log(self.weights)
        top = logs.max(-1)
        return top + xp.log(xp.exp(logs - top[..., None]).sum(-1))

    def hockey_stick(self) -> Curve:
        sign = -1.0 if self.is_mirrored else 1.0
        still = without_derivative(self)

        def at(eps: Any) -> Any:
            xp = namespace(eps, self.centres)
            level = without_derivative(sign * eps)
            low, high = xp.full_like(level, -_FARTHEST), xp.full_like(level, _FARTHEST + self.centres.max())
            ends = bisect(lambda y: still._loss(y) < level, low, high, _BISECTIONS)
            y = sign * (ends[0] + ends[1]) / 2
            mixture = (self.weights * ndtr(sign * self.centres - y[..., None])).sum(-1)
            p, q = (ndtr(-y), mixture) if self.is_mirrored else (mixture, ndtr(-y))
            gap = p - xp.exp(eps) * q
            return xp.where(gap < 0, 0.0, gap)

        return at

    def largest_loss(self) -> Any:
        xp = namespace(self.centres, self.weights)
        at_zero = xp.where(self.centres == 0, self.weights, 0.0).sum()
        return xp.where(self.is_mirrored & (at_zero > 0), -xp.log(xp.where(at_zero > 0, at_zero, 1.0)), np.inf)

    def privacy_loss(self) -> PrivacyLossDistribution:
        ends = np.unique([-_REACH, 0.0, *np.asarray(self.centres), np.max(self.centres) + _REACH])
        pieces = SmoothPieces(
            ends[:-1],
            ends[1:],
            lambda y, _: self._log_mixture(y),
            lambda y, _: _STANDARD.log_prob(y),
            lambda y, _: self._loss(y),
            # Each part of the mixture is a Gaussian, and so is q.
            lambda left, right, _: np.max(
                [_STANDARD.steepness(left - centre, right - centre) for centre in (0.0, *self.centres)], axis=0
            ),
        )
        losses = PrivacyLossDistribution.of_pieces(pieces, _UNSEEN)
        return losses.mirrored() if self.is_mirrored else losses

    def mirror(self) -> GaussianMixture:
        return replace(self, is_mirrored=not self.is_mirrored)

    def check(self) -> None:
        checks.within("centres", self.centres, 0.0, np.inf)
        checks.within("weights", self.weights, np.nextafter(0.0, 1.0), 1.0)
