"""Windows of windowed mechanisms: the part of the density that moves with the input."""

from __future__ import annotations

import abc
from dataclasses import dataclass

import numpy as np

from dpkernels.mechanisms.windowed.bases import Shape
from dpkernels.numerics import Real, RealArray, arcsine_cdf, namespace, root_or_zero, sin_pi


class Window(Shape):
    """A symmetric shape on [0, 1]; its area is Zhang's cA, its variance vA."""

    ends = 0.0, 1.0

    def density_near_end(self, d: Real) -> Real:
        """Return the height at a distance d in [0, 1] from an end, accurate for small d."""
        return self.density(d)

    def mass_near_end(self, d: Real) -> Real:
        """Return the normalised mass within a distance d in [0, 1/2] of an end, accurate for small d."""
        return self.cdf(d)

    @abc.abstractmethod
    def supremum_beyond(self, d: Real) -> Real:
        """Return the supremum of the density at distances of at least d from the middle."""

    @abc.abstractmethod
    def infimum_within(self, d: Real) -> Real:
        """Return the infimum of the density at distances of at most d from the middle."""


class FallingWindow(Window):
    """A window that falls away from its middle, smooth except at the middle and the ends."""

    falls = True

    kinks = np.array([0.0, 0.5])

    def supremum_beyond(self, d: Real) -> Real:
        return self.density(0.5 + d)

    infimum_within = supremum_beyond


@dataclass(frozen=True)
class Uniform(FallingWindow):
    """The uniform window A1, h(z) = 1."""

    name = "uniform"
    is_flat = is_linear = is_smooth = True
    area = 1.0
    variance = 1 / 12
    steepness = 0.0

    def density(self, z: Real) -> Real:
        return namespace(z).where((z >= 0) & (z <= 1), 1.0, 0.0)

    def cdf(self, z: Real) -> Real:
        return namespace(z).clip(z, 0.0, 1.0)

    def cdf_integral(self, z: Real) -> Real:
        return z**2 / 2

    def icdf(self, u: Real) -> Real:
        return u


@dataclass(frozen=True)
class Sine(FallingWindow):
    """The sine window A2, h(z) = sin(pi z)."""

    name = "sine"
    area = 2 / np.pi
    variance = 1 / 4 - 2 / np.pi**2
    steepness = np.pi
    is_smooth = True

    def density(self, z: Real) -> Real:
        xp = namespace(z)
        return xp.where((z >= 0) & (z <= 1), sin_pi(xp.clip(z, 0.0, 1.0)), 0.0)

    def cdf(self, z: Real) -> Real:
        return sin_pi(namespace(z).clip(z, 0.0, 1.0) / 2) ** 2

    def cdf_integral(self, z: Real) -> Real:
        return z / 2 - namespace(z).sin(np.pi * z) / (2 * np.pi)

    def icdf(self, u: Real) -> RealArray:
        return arcsine_cdf(u)


@dataclass(frozen=True)
class Triangle(FallingWindow):
    """The triangle window A3, h(z) = 2 z up to the middle, then 2 (1 - z)."""

    name = "triangle"
    is_linear = is_smooth = True
    area = 0.5
    variance = 1 / 24
    steepness = 0.0

    def density(self, z: Real) -> Real:
        xp = namespace(z)
        return xp.maximum(0.0, 1 - 2 * xp.abs(z - 0.5))

    def density_near_end(self, d: Real) -> RealArray:
        xp = namespace(d)
        return xp.maximum(0.0, 2 * xp.minimum(d, 1 - d))

    def cdf(self, z: Real) -> Real:
        xp = namespace(z)
        z = xp.clip(z, 0.0, 1.0)
        return xp.where(z < 0.5, 2 * z**2, 1 - 2 * (1 - z) ** 2)

    def mass_near_end(self, d: Real) -> Real:
        return 2 * d**2

    def cdf_integral(self, z: Real) -> Real:
        return namespace(z).where(z < 0.5, 2 / 3 * z**3, z - 0.5 + 2 / 3 * (1 - z) ** 3)

    def icdf(self, u: Real) -> RealArray:
        distance = root_or_zero(namespace(u).minimum(u, 1 - u) / 2)
        return namespace(u).where(u < 0.5, distance, 1 - distance)
