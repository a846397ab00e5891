"""The Laplace law."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpkernels import checks
from dpkernels.distributions.base import Symmetric
from dpkernels.numerics import exponential_moment, namespace
from dpkernels.pytrees import pytree


@pytree
@dataclass(frozen=True)
class Laplace(Symmetric):
    """f(z) = exp(-|z| / b) / (2 b).

    Attributes:
        scale: b > 0.

    Raises:
        ValueError: scale is not positive and finite.
    """

    degree: ClassVar[int] = 1

    scale: Any

    def __post_init__(self) -> None:
        checks.width("scale", self.scale)

    def log_prob(self, z: Any) -> Any:
        b, xp = self.scale, namespace(z, self.scale)
        return -xp.abs(z) / b - xp.log(2 * b)

    def score(self, z: Any) -> Any:
        return -namespace(z, self.scale).sign(z) / self.scale

    def tail(self, z: Any) -> Any:
        return namespace(z, self.scale).exp(-z / self.scale) / 2

    def partial_moment(self, power: int, near: Any, far: Any) -> Any:
        return self.tail(near) / self.scale * exponential_moment(power, near, 1 / self.scale, far - near)

    def lower_inverse(self, u: Any) -> Any:
        xp = namespace(u, self.scale)
        below = u < 0.5
        tail = xp.log(2 * xp.where(below, u, 1 - u))
        return self.scale * xp.where(below, tail, -tail)

    @property
    def knots(self) -> Any:
        return np.zeros(1)
