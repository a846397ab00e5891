"""Skewed noise of a user: a Laplace distribution with another scale on either side, with the abstract members only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import mpmath as mp
import numpy as np

from dpkernels.distributions.base import Distribution
from dpkernels.pytrees import pytree


@pytree
@dataclass(frozen=True)
class TwoPiece(Distribution):
    """f(z) = e^(-|z|/s)/(left + right) with the scale s = left below 0 and right above."""

    lengths: ClassVar[tuple[str, ...]] = ("left", "right")

    left: Any
    right: Any

    def log_prob(self, z):
        return np.where(z < 0, z / self.left, -z / self.right) - np.log(self.left + self.right)

    def cdf(self, z):
        mass_below = self.left / (self.left + self.right)
        inner = 1 - (1 - mass_below) * np.exp(-np.maximum(z, 0.0) / self.right)
        return np.where(z < 0, mass_below * np.exp(np.minimum(z, 0.0) / self.left), inner)

    def sf(self, z):
        return TwoPiece(self.right, self.left).cdf(-np.asarray(z, float))

    def inverse(self, u, lower):
        u, mass_below = np.asarray(u, float), self.left / (self.left + self.right)
        tail = np.where(lower, mass_below, 1 - mass_below)
        nearer, farther = np.where(lower, self.left, self.right), np.where(lower, self.right, self.left)
        with np.errstate(divide="ignore"):
            quantile = nearer * np.log(u / tail)
            back = -farther * np.log(np.maximum(1 - u, 1e-300) / (1 - tail))
        distance = np.where(u < tail, quantile, back)
        return np.where(lower, distance, -distance)

    @property
    def knots(self):
        return np.zeros(1)

    def exact_log_density(self, x):
        """Return the log density but for a constant, in digits of mpmath."""
        return x / mp.mpf(float(self.left)) if x < 0 else -x / mp.mpf(float(self.right))
