"""The Laplace distribution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpkernels import checks
from dpkernels.distributions.base import PiecewiseExponential
from dpkernels.numerics import Real, RealArray, exponential_moment, namespace
from dpkernels.pytrees import pytree


@pytree
@dataclass(frozen=True)
class Laplace(PiecewiseExponential):
    """The Laplace distribution, f(z) = exp(-|z| / b) / (2 b), with the scale b in [1e-140, 1e140]."""

    scale: Real

    def __post_init__(self) -> None:
        checks.width("scale", self.scale)

    def log_prob(self, z: Real) -> Real:
        b, xp = self.scale, namespace(z, self.scale)
        return -xp.abs(z) / b - xp.log(2 * b)

    def score(self, z: Real) -> RealArray:
        return -namespace(z, self.scale).sign(z) / self.scale

    def tail(self, z: Real) -> Real:
        return namespace(z, self.scale).exp(-z / self.scale) / 2

    def partial_moment(self, power: int, near: Real, far: Real) -> Real:
        return self.tail(near) / self.scale * exponential_moment(power, near, 1 / self.scale, far - near)

    def lower_inverse(self, u: Real) -> Real:
        xp = namespace(u, self.scale)
        below = u < 0.5
        tail = xp.log(2 * xp.where(below, u, 1 - u))
        return self.scale * xp.where(below, tail, -tail)

    @property
    def knots(self) -> RealArray:
        return np.zeros(1)
