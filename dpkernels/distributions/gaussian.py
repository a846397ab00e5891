"""The Gaussian law."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpkernels import checks
from dpkernels.distributions.base import Symmetric
from dpkernels.numerics import erfc, namespace, ndtri
from dpkernels.pytrees import pytree

_ROOT = math.sqrt(2 * math.pi)


@pytree
@dataclass(frozen=True)
class Gaussian(Symmetric):
    """f(z) = exp(-z^2 / (2 s^2)) / (s sqrt(2 pi)).

    Attributes:
        sigma: s > 0.

    Raises:
        ValueError: sigma is not positive and finite.
    """

    degree: ClassVar[int] = 2

    sigma: Any

    def __post_init__(self) -> None:
        checks.width("sigma", self.sigma)

    def log_prob(self, z: Any) -> Any:
        s = self.sigma
        return -((z / s) ** 2) / 2 - namespace(z, s).log(s * _ROOT)

    def score(self, z: Any) -> Any:
        return -z / self.sigma**2

    def tail(self, z: Any) -> Any:
        """erfc(z / (s sqrt 2)) / 2: for z >= 0 six times as fast as the normal cdf in JAX."""
        z = z / (self.sigma * math.sqrt(2))
        return erfc(z) / 2

    def between(self, near: Any, far: Any) -> Any:
        """w phi(m) (1 + (m^2 - 1) w^2/24 + (m^4 - 6 m^2 + 3) w^4/1920) where w (1 + m) is small, m the middle."""
        m, w = (near + far) / 2 / self.sigma, (far - near) / self.sigma
        series = 1 + (m**2 - 1) * w**2 / 24 + (m**4 - 6 * m**2 + 3) * w**4 / 1920
        xp = namespace(m)
        narrow = w * (1 + m) < 0.02
        return xp.where(narrow, w * xp.exp(-(m**2) / 2) / _ROOT * series, self.tail(near) - self.tail(far))

    def lower_inverse(self, u: Any) -> Any:
        return self.sigma * ndtri(u)

    def first_tail(self, z: Any) -> Any:
        """s phi(z/s)."""
        s = self.sigma
        return s / _ROOT * namespace(z, s).exp(-((z / s) ** 2) / 2)

    def second_tail(self, z: Any) -> Any:
        """s^2 (z/s phi(z/s) + Phi(-z/s))."""
        return z * self.first_tail(z) + self.sigma**2 * self.tail(z)

    @property
    def knots(self) -> Any:
        return np.zeros(0)
