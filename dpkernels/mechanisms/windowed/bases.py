"""Bases of windowed mechanisms: the part of the density that does not depend on the input."""

from __future__ import annotations

import abc
import inspect
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from dpkernels import checks
from dpkernels.batches import Batchable
from dpkernels.numerics import Real, RealArray, floating, namespace
from dpkernels.pytrees import pytree
from dpkernels.solve import invert_increasing


class Shape(Batchable, abc.ABC):
    """A density of peak 1 on an interval, even about its middle: a base on [-1, 1], or a window on [0, 1].

    A subclass is a frozen dataclass. It becomes a pytree whose leaves are its fields, except those named in
    ``class X(Window, static=("field",))``.
    """

    name: ClassVar[str | None] = None  # Of a shape without fields, for constructors and the command.
    ends: ClassVar[tuple[float, float]]
    # s with |f^(8)| <= s^8 f between kinks, which bounds the quadrature error of rigorous brackets
    # (docs/proofs/brackets.md); 0 for polynomials of degree at most 7; None if no bound is known.
    steepness: ClassVar[float | None] = None
    is_flat: ClassVar[bool] = False  # 1 on the whole interval.
    is_linear: ClassVar[bool] = False  # Linear between kinks: the privacy profile then has a closed form.
    is_table: ClassVar[bool] = False  # It has many kinks, and at most one turning point between them.
    # A window rises to its middle without kinks; a base has none anywhere. Newton's method then inverts the mechanism's
    # cdf, which is bisected for other shapes.
    is_smooth: ClassVar[bool] = False
    _subclasses: ClassVar[list[type[Shape]]] = []

    def __init_subclass__(cls, static: tuple[str, ...] = (), **options: object) -> None:
        super().__init_subclass__(**options)
        pytree(cls, static=static)
        Shape._subclasses.append(cls)

    @classmethod
    def concrete_subclasses(cls) -> list[type[Self]]:
        """Return the subclasses that can be made, in the order of their definitions."""
        return [shape for shape in Shape._subclasses if issubclass(shape, cls) and not inspect.isabstract(shape)]

    @property
    def falls(self) -> bool:
        """Return whether the density never rises away from its middle."""
        # Conservative: the accounting then uses the mechanism's epsilon alone. If the window and the base both fall,
        # the ends of the input interval are the worst pair of inputs.
        return False

    def check(self) -> None:
        """Refuse a shape, read from a file, that no constructor makes."""

    @property
    @abc.abstractmethod
    def area(self) -> Real:
        """Return the mean of the density over the interval."""

    @property
    @abc.abstractmethod
    def variance(self) -> Real:
        """Return the variance of the shape normalised to mass 1, about its middle."""

    @property
    @abc.abstractmethod
    def kinks(self) -> np.ndarray:
        """Return the distances from the middle at which the density is not smooth."""

    @abc.abstractmethod
    def density(self, v: Real) -> Real:
        """Return the height at v; 0 outside the interval."""

    @abc.abstractmethod
    def cdf(self, v: Real) -> Real:
        """Return the normalised mass up to v."""

    @abc.abstractmethod
    def cdf_integral(self, v: Real) -> Real:
        """Return the integral of ``cdf`` up to v, a point of the interval."""

    def icdf(self, u: Real) -> Real:
        """Return the inverse of ``cdf``, by bisection."""
        return invert_increasing(self.cdf, floating(u), *self.ends)


class Base(Shape):
    """An even shape on [-1, 1]; its variance is Zhang's vB, its area half the integral."""

    ends = -1.0, 1.0

    @property
    @abc.abstractmethod
    def lowest(self) -> Real:
        """Return the infimum of the density over [-1, 1]."""

    def density_near_end(self, d: Real) -> Real:
        """Return the height at a distance d in [0, 2] from an end of [-1, 1], without the cancellation of 1 - d."""
        return self.density(1 - d)

    def mass_between(self, d: Real, width: Real) -> Real:
        """Return the normalised mass at distances from d to d + width of an end; a base defines it for small widths."""
        return self.cdf(d + width - 1) - self.cdf(d - 1)


@dataclass(frozen=True)
class Constant(Base):
    """The constant base B1, g(v) = 1."""

    name = "constant"
    falls = is_flat = is_linear = is_smooth = True
    area = lowest = 1.0
    variance = 1 / 3
    steepness = 0.0
    kinks = np.zeros(0)

    def density(self, v: Real) -> Real:
        return namespace(v).where((v >= -1) & (v <= 1), 1.0, 0.0)

    def cdf(self, v: Real) -> Real:
        return (namespace(v).clip(v, -1.0, 1.0) + 1) / 2

    def cdf_integral(self, v: Real) -> Real:
        return (v + 1) ** 2 / 4

    def mass_between(self, d: Real, width: Real) -> Real:
        return width / 2

    def icdf(self, u: Real) -> Real:
        return 2 * u - 1


@dataclass(frozen=True)
class Quartic(Base):
    """The quartic base B2, g(v) = 1 - (1 - r) v^4, with r = t / y the height at the edge, in [1e-9, 1]."""

    falls = is_smooth = True
    steepness = 0.0
    kinks = np.zeros(0)

    edge: Any

    def __post_init__(self) -> None:
        checks.within("edge", self.edge, 1e-9, 1.0)

    @property
    def area(self) -> Real:
        return (self.edge + 4) / 5

    @property
    def variance(self) -> Real:
        return (self.edge / 7 + 4 / 21) / self.area

    @property
    def lowest(self) -> Real:
        return self.edge

    def density(self, v: Real) -> Real:
        xp = namespace(v, self.edge)
        return xp.where((v >= -1) & (v <= 1), 1 - (1 - self.edge) * xp.clip(v, -1.0, 1.0) ** 4, 0.0)

    def density_near_end(self, d: Real) -> RealArray:
        """Return r + (1 - r)(1 - v^4), with v^2 = (1 - d)^2 and 1 - v^4 = (1 - v^2)(1 + v^2)."""
        d = namespace(d, self.edge).clip(d, 0.0, 2.0)
        return self.edge + (1 - self.edge) * d * (2 - d) * (1 + (1 - d) ** 2)

    def cdf(self, v: Real) -> Real:
        v = namespace(v, self.edge).clip(v, -1.0, 1.0)
        return (v + 1 - (1 - self.edge) * (v**5 + 1) / 5) / (2 * self.area)

    def cdf_integral(self, v: Real) -> Real:
        bend = (v**6 - 1) / 30 + (v + 1) / 5
        return ((v + 1) ** 2 / 2 - (1 - self.edge) * bend) / (2 * self.area)

    def mass_between(self, d: Real, width: Real) -> RealArray:
        return self._mass(d, width) * (0.5 / self.area)

    def _mass(self, d: Real, w: Real) -> RealArray:
        """Return the integral of g from v = d - 1 to v + w, where 1 - v^4 = d (2 - d) (1 + v^2) does not cancel."""
        v, end_height = d - 1, d * (2 - d) * (1 + (d - 1) ** 2)
        return w * (self.edge + (1 - self.edge) * (end_height - w * (2 * v**3 + w * (2 * v**2 + w * (v + 0.2 * w)))))

    def icdf(self, u: Real) -> RealArray:
        """Return the v = d - 1 with the mass 2 b u below it, for u below 1/2, by Halley's method, and mirror it."""
        r, bend = self.edge, 1 - self.edge
        xp = namespace(u, r)
        mass = 2 * self.area * xp.minimum(u, 1 - u)
        # XLA fuses a product with a reciprocal better than a quotient of arrays.
        t = 2 * mass * (1 / (r + xp.sqrt(r**2 + 8 * bend * mass)))
        # Within 0.6 %: one step leads to the resolution of float32, two to that of float64.
        d = t * (1 + bend * t * (0.407 - 0.275 * r + (0.809 + 0.379 * r) * t))
        for _ in range(1 if d.dtype == np.float32 else 2):
            excess, slope = self._mass(0.0, d) - mass, r + bend * d * (4 - d * (6 - d * (4 - d)))
            d = d - excess * slope * (1 / (slope**2 - excess * (2 * bend) * (1 - d) ** 3))
        v = xp.minimum(d, 1.0) - 1
        return xp.where(u < 0.5, v, -v)
