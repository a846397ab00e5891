"""The Gaussian distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from dpkernels import checks
from dpkernels.distributions.base import Symmetric
from dpkernels.numerics import GAUSS_LEGENDRE, Real, RealArray, cast_like, namespace, ndtri, special_functions
from dpkernels.pytrees import pytree

_ROOT = math.sqrt(2 * math.pi)  # sqrt(2 pi).


@pytree
@dataclass(frozen=True)
class Gaussian(Symmetric):
    """The Gaussian distribution, f(z) = exp(-z^2 / (2 s^2)) / (s sqrt(2 pi)), with sigma s in [1e-140, 1e140]."""

    lengths: ClassVar[tuple[str, ...]] = ("sigma",)
    roundings: ClassVar[float] = 32.0
    density_form: ClassVar[str] = "gaussian"

    sigma: Any

    def __post_init__(self) -> None:
        checks.width("sigma", self.sigma)

    @property
    def gaussian_sigma(self) -> Real:
        return self.sigma

    def log_prob(self, z: Real) -> Real:
        s = self.sigma
        return -((z / s) ** 2) / 2 - namespace(z, s).log(s * _ROOT)

    def score(self, z: Real) -> Real:
        return -z / self.sigma**2

    def loss(self, z: Real, shift: Real) -> RealArray:
        return shift * (shift - 2 * z) / (2 * self.sigma**2)

    def steepness(self, left: Real, right: Real) -> RealArray:
        """Return |g'| + 1.8 sqrt(-g''), g the log density: 1.8 is the eighth root of 105, rounded up."""
        middle, s = (left + right) / 2, self.sigma
        return namespace(middle, s).abs(middle) / s**2 + (right - left) / (2 * s**2) + 1.8 / s

    def tail(self, z: Real) -> Real:
        """Return erfc(z / (s sqrt 2)) / 2, which takes a fifth of the time of the normal cdf in JAX."""
        return _tail_moment(0, z / self.sigma)

    def partial_moment(self, power: int, lower: Real, upper: Real) -> Real:
        s, xp = self.sigma, namespace(lower, upper, self.sigma)
        is_endless = xp.isinf(upper)
        finite = _interval_moment(power, lower / s, (xp.where(is_endless, lower, upper) - lower) / s)
        return s**power * xp.where(is_endless, _tail_moment(power, lower / s), finite)

    def lower_inverse(self, u: Real) -> Real:
        return self.sigma * ndtri(u)


def _density(z: Real) -> RealArray:
    return namespace(z).exp(-(z**2) / 2) / _ROOT


def _tail_moment(power: int, z: Real) -> Real:
    """Return the integral of t^power phi(t) from z >= 0 to infinity: Q(z), phi(z) or z phi(z) + Q(z), Q = 1 - Phi."""
    if power == 1:
        return _density(z)
    tail = special_functions(z).erfc(z / math.sqrt(2)) / 2
    return tail + z * _density(z) if power else tail


def _interval_moment(power: int, m: Real, w: Real) -> Real:
    """Return the integral of t^power phi(t) over [m, m + w], for m and w of at least 0, precise for small w."""
    xp, c = namespace(m, w), m + w / 2
    if power == 1:
        return -_density(m) * xp.expm1(-w * c)
    difference = _tail_moment(power, m) - _tail_moment(power, m + w)
    if power == 0:
        series = 1 + (c**2 - 1) * w**2 / 24 + (c**4 - 6 * c**2 + 3) * w**4 / 1920
        return xp.where(w * (1 + c) < 0.02, w * _density(c) * series, difference)
    nodes, weights = (cast_like(array, w) for array in GAUSS_LEGENDRE)
    t = xp.expand_dims(m, -1) + xp.expand_dims(w, -1) * nodes
    return xp.where(w < 1, w * (weights * t**2 * _density(t)).sum(-1), difference)
