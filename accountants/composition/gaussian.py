"""Composition of Gaussian mechanisms in closed form.

Gaussian mechanisms compose to one Gaussian mechanism with mu^2 = sum of n_i mu_i^2, where mu = D/sigma. With x = eps/mu
- mu/2 and y = eps/mu + mu/2,

    delta(eps) = Phi(-x) - e^eps Phi(-y) = phi(x) (M(x) - M(y)),    M(z) = int_0^inf e^(-z t - t^2/2) dt,
    d delta/d eps = -phi(x) M(y),    d delta/d mu = phi(x).

M is Mills' ratio. If x and y are close, the difference is taken under the integral, so that no digits are lost. phi(x)
is used by its logarithm, so that neither a large eps nor a small delta overflows or underflows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from accountants.composition.base import FOR_VALUES, ComposedProfile, Composer
from accountants.composition.closed_form import ClosedForm
from accountants.composition.repeated import GuaranteeLike, LossTuple
from accountants.composition.tilted_direction import Direction
from accountants.composition.trade_off import points_around
from dpkernels.numerics import (
    GAUSS_LEGENDRE,
    UNIT_ROUNDOFF,
    Real,
    RealArray,
    cast_like,
    namespace,
    ndtri,
    special_functions,
)
from dpkernels.proven import proven
from dpkernels.pytrees import PyTree, pytree

_PANELS = 8  # The panels of [0, 1], of 16 Gauss-Legendre nodes each.
_MAX_EXPONENT = 45.0  # The exponent up to which integrands are integrated: e^-45 is 3e-20 of the largest value.
_ONE_NODES, _ONE_WEIGHTS = GAUSS_LEGENDRE
_NODES = ((np.arange(_PANELS)[:, None] + _ONE_NODES) / _PANELS).ravel()
_WEIGHTS = np.tile(_ONE_WEIGHTS / _PANELS, _PANELS)
_LOG_ROOT = math.log(2 * math.pi) / 2  # log sqrt(2 pi).
# Bounds on rounding errors of log delta, in roundings of a float.
_SUM_UNITS = 128  # Those of the sums of an integral.
_LOG_UNITS = 8  # Those for each unit of |log delta|.
_PLACE_UNITS = 16  # Those of eps/mu -/+ mu/2, relative to their sum.
_MIN_FLOAT = 5e-324  # The least positive float: what a bound of a positive delta underflows to.


@pytree
@dataclass(frozen=True)
class GaussianProfile(ComposedProfile):
    """The privacy profile of repeated losses that are all Gaussian."""

    parts: LossTuple  # The repeated losses.
    mu: Real  # Sensitivity over standard deviation of the single Gaussian mechanism with the same profile.

    @classmethod
    def from_losses(cls, losses: LossTuple) -> GaussianProfile:
        total = sum(term.count * term.mu**2 for term in losses)
        return cls(losses, namespace(total).sqrt(total))

    def empty(self) -> PyTree:
        return 0.0 * self.mu

    def guess(self, log_delta: Any) -> Real:
        """Return an initial guess of the eps at which log delta has a value, from the quantile of the loss."""
        xp = namespace(self.mu, log_delta)
        quantile = xp.maximum(-ndtri(xp.maximum(xp.exp(log_delta), xp.finfo(log_delta.dtype).tiny)), 0.0)
        deep = xp.sqrt(xp.maximum(-2 * log_delta, 0.0))
        quantile = xp.where(log_delta < math.log(1e-30), deep, quantile)
        return xp.maximum(self.mu * (self.mu / 2 + quantile), 0.0)

    def evaluate(self, epsilon: Real) -> tuple[RealArray, Real, Real]:
        xp, mu = namespace(self.mu, epsilon), self.mu
        x, y = epsilon / mu - mu / 2, epsilon / mu + mu / 2
        # In the upper tail by Mills' ratios, else from the cdf: for x <= -1, mu is at least 2, and no digits are lost.
        tail = x > -1
        z = xp.where(tail, x, 0.0)
        upper_mills = mills(y)
        gain = xp.where(mu < 0.5 * xp.maximum(z, 1.0), mills(z, mu), mills(z) - upper_mills)
        log_phi = -(x**2) / 2 - _LOG_ROOT
        outer = xp.where(tail, -1.0, x)
        bulk = special_functions(outer).ndtr(-outer) - xp.exp(-(outer**2) / 2 - _LOG_ROOT) * upper_mills
        log_delta = xp.where(tail, log_phi + xp.log(gain), xp.log(bulk))
        return log_delta, -xp.exp(log_phi + xp.log(upper_mills) - log_delta), epsilon

    def gradient(self, evaluation: Real) -> tuple[LossTuple, Real]:
        xp, mu = namespace(self.mu), self.mu
        by_mu = xp.exp(-((evaluation / mu - mu / 2) ** 2) / 2 - _LOG_ROOT)
        moved = tuple(
            replace(term, mu=by_mu * term.count * term.mu / mu, count=by_mu * term.mu**2 / (2 * mu))
            for term in self.parts
        )
        return moved, -by_mu * mills(evaluation / mu + mu / 2)


def log_delta_units(log_delta: Any, x: Any, y: Real) -> Real:
    """Return a bound on the error of log delta = log phi(x) + log(M(x) - M(y)), in roundings of a float."""
    return _SUM_UNITS + _LOG_UNITS * abs(log_delta) + _PLACE_UNITS * y * (abs(x) + 2)


def mills(z: Any, mu: Any = None) -> RealArray:
    """Return M(z) for z >= -1, or M(z) - M(z + mu) for a mu that is small compared with 1 or z."""
    xp = namespace(z, mu)
    # z t + t^2/2 is 45 at the end.
    end = (2 * _MAX_EXPONENT / (z + xp.sqrt(z**2 + 2 * _MAX_EXPONENT)))[..., None]
    t = end * cast_like(_NODES, z)
    terms = end * cast_like(_WEIGHTS, z) * xp.exp(-t * (z[..., None] + t / 2))
    return (terms if mu is None else terms * -xp.expm1(-mu[..., None] * t)).sum(-1)


@pytree
@dataclass(frozen=True)
class GaussianNoise(Composer):
    """Gaussian noise alone, on all the data."""

    @classmethod
    def applies(cls, direction: Direction) -> bool:
        return all(term.losses is None for term in direction.losses)

    @classmethod
    def for_direction(cls, direction: Direction) -> GaussianNoise:
        return cls()

    def prepare(self, losses: LossTuple) -> tuple[PyTree, Real]:
        return losses, namespace(losses[0].mu).zeros_like(losses[0].mu)

    def profile(self, prepared: LossTuple, direction: Direction) -> GaussianProfile:
        return GaussianProfile.from_losses(prepared)

    def initial_guess(self, composed: Any, log_delta: Real) -> Real:
        return composed.guess(log_delta)

    def rounding_rtol(self, losses: LossTuple, number: Real) -> Real:
        return 0.0 * number


@proven("sums#closed-forms")
@dataclass(frozen=True)
class GaussianReleases(ClosedForm):
    """The bounds of Gaussian noise alone, on all the data.

    The formulas evaluate x = eps/mu - mu/2 with an error of some units of y = eps/mu + mu/2, and log delta changes by
    at most |x| + 2 for each unit of x.
    """

    profile: GaussianProfile

    @classmethod
    def from_guarantee(cls, guarantee: GuaranteeLike) -> GaussianReleases | None:
        if not all(term.is_gaussian for term in guarantee.numeric.terms):
            return None
        (losses,) = guarantee.numeric.repeated_losses()
        return cls(GaussianProfile.from_losses(losses))

    def bound(self, epsilon: float, side: int) -> float:
        mu = float(self.profile.mu)
        x, y = epsilon / mu - mu / 2, epsilon / mu + mu / 2
        with np.errstate(all="ignore"):
            log_delta = float(self.profile.evaluate(np.float64(epsilon))[0])
        units = float(log_delta_units(log_delta, x, y))
        if not math.isfinite(units):  # Beyond the floats, where delta is almost 0 or almost 1.
            return 0.0 if side < 0 else _MIN_FLOAT if x > 1e6 else 1.0
        delta = math.exp(min(log_delta + side * units * UNIT_ROUNDOFF, 0.0))
        return min(delta + _MIN_FLOAT, 1.0) if side > 0 else max(delta - _MIN_FLOAT, 0.0)

    def estimate(self, delta: float) -> float:
        log_delta, zero = np.float64(math.log(delta)), np.float64(0.0)
        with np.errstate(all="ignore"):
            guess = self.profile.guess(log_delta)
            return float(self.profile.solve(log_delta, guess, zero, zero, FOR_VALUES)[0])

    def tangent_points(self, alpha: float, is_flat: bool, largest_loss: float) -> np.ndarray:
        mu, quantile = float(self.profile.mu), float(ndtri(np.float64(alpha)))
        return points_around(mu * (mu / 2 + quantile if is_flat else -quantile - mu / 2))
