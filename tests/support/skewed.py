"""A distribution as a user writes it: skewed, with a mean that is not 0, and with the abstract members alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpkernels.distributions.base import Distribution
from dpkernels.numerics import namespace
from dpkernels.pytrees import pytree


@pytree
@dataclass(frozen=True)
class Gumbel(Distribution):
    """Gumbel noise with its mode at 0: its mean is Euler's constant times the scale, its variance pi^2/6 scale^2."""

    scale: Any

    def log_prob(self, z: Any) -> Any:
        xp = namespace(z, self.scale)
        return -z / self.scale - xp.exp(-z / self.scale) - xp.log(self.scale)

    def cdf(self, z: Any) -> Any:
        xp = namespace(z, self.scale)
        return xp.exp(-xp.exp(-z / self.scale))

    def sf(self, z: Any) -> Any:
        xp = namespace(z, self.scale)
        return -xp.expm1(-xp.exp(-z / self.scale))

    def inverse(self, u: Any, lower: Any) -> Any:
        xp = namespace(u, self.scale)
        return -self.scale * xp.log(xp.where(lower, -xp.log(u), -xp.log1p(-u)))


MEAN, VARIANCE = float(np.euler_gamma), np.pi**2 / 6
