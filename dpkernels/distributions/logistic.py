"""The logistic distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dpkernels import checks
from dpkernels.distributions.base import Symmetric
from dpkernels.numerics import Real, RealArray, floating, namespace
from dpkernels.pytrees import pytree


@pytree
@dataclass(frozen=True)
class Logistic(Symmetric):
    """The logistic distribution, f(z) = e^(-z/b) / (b (1 + e^(-z/b))^2), with the scale b in [1e-140, 1e140].

    It is smooth near 0 and has the tails of Laplace noise. The privacy loss of a shift D is below D/b, so the noise is
    pure (D/b)-DP.
    """

    roundings: ClassVar[float] = 32.0

    scale: Real

    def __post_init__(self) -> None:
        checks.width("scale", self.scale)

    def log_prob(self, z: Real) -> Real:
        b, xp = self.scale, namespace(z, self.scale)
        distance = xp.abs(z) / b
        return -distance - 2 * xp.log(1 + xp.exp(-distance)) - xp.log(b)

    def tail(self, z: Real) -> Real:
        """Return 1 / (1 + e^(z/b)), without overflow."""
        q = namespace(z, self.scale).exp(-z / self.scale)
        return q / (1 + q)

    def lower_inverse(self, u: Real) -> Real:
        xp = namespace(u, self.scale)
        return self.scale * xp.log(u / (1 - u))

    def loss(self, z: Real, shift: Real) -> RealArray:
        """Return -4 artanh(t T) with t = tanh((z - D/2)/(2 b)) and T = tanh(D/(4 b))."""
        b, xp = self.scale, namespace(z, shift, self.scale)
        product = xp.tanh((z - shift / 2) / (2 * b)) * xp.tanh(shift / (4 * b))
        close = -4 * xp.arctanh(xp.clip(product, -0.5, 0.5))
        # In the tails 1 - t T would suffer cancellation, and so would the difference of two log densities.
        distance_change = xp.sign(shift) * xp.clip(shift - 2 * z, -xp.abs(shift), xp.abs(shift))  # |z - D| - |z|
        correction_0, correction_D = (xp.log1p(xp.exp(-xp.abs(x) / b)) for x in (z, z - shift))
        distant = distance_change / b - 2 * (correction_0 - correction_D)
        return xp.where(xp.abs(product) < 0.5, close, distant)

    def loss_limits(self, shift: Real) -> tuple[Real, Real]:
        return shift / self.scale, -shift / self.scale

    def steepness(self, left: Real, right: Real) -> RealArray:
        """Return 1.54 / b: |f^(8)/f| is largest at 0, where its eighth root is below 1.54 / b."""
        return 1.54 / self.scale + 0.0 * floating(left)

    @property
    def mean(self) -> Real:
        return 0.0 * self.scale

    @property
    def variance(self) -> Real:
        return (math.pi * self.scale) ** 2 / 3

    @property
    def absolute_moment(self) -> Real:
        return 2 * math.log(2) * self.scale
