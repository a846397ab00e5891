"""User-defined windows and bases: tables, linear between equally spaced knots, with closed-form integrals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpkernels import checks
from dpkernels.decimals import shortest
from dpkernels.mechanisms.windowed.bases import Base
from dpkernels.mechanisms.windowed.windows import Window
from dpkernels.numerics import Real, RealArray, floating, like, namespace, plain, root_or_zero
from dpkernels.pytrees import pytree

# The number of points at which a user's function is evaluated. The table then defines the shape, so the number of knots
# affects how closely it follows the function, but not privacy.
_KNOTS = 1025


class _Tables(NamedTuple):
    """The arrays from which a piecewise linear density is evaluated.

    Attributes:
        heights: the values at the n + 1 knots.
        area: the integral.
        masses: the cumulative normalised mass at the knots.
        segments: of shape (n, 5): number, heights at both ends, mass and integral of the cdf before it, of every
            segment.
        spread: the variance about 1/2 of the normalised density.
    """

    heights: Any
    area: Any
    masses: Any
    segments: Any
    spread: Any


def _tables(f: Any) -> _Tables:
    xp, n = namespace(f), len(f) - 1
    area = plain(((f[:-1] + f[1:]) / 2).mean())
    masses = xp.concatenate([xp.zeros(1), xp.cumsum((f[:-1] + f[1:]) / 2)]) / (n * area)
    pieces = masses[:-1] / n + (f[:-1] / 3 + f[1:] / 6) / (n**2 * area)
    integrals = xp.concatenate([xp.zeros(1), xp.cumsum(pieces)])
    segments = xp.stack([xp.arange(n) + 0.0, f[:-1], f[1:], masses[:-1], integrals[:-1]], -1)
    # Simpson's rule is exact for the cubic integrand of the variance.
    knots = np.linspace(0, 1, n + 1)
    middles, f_mid = (knots[:-1] + knots[1:]) / 2, (f[:-1] + f[1:]) / 2
    at_knots, at_middles = (knots - 0.5) ** 2 * f, (middles - 0.5) ** 2 * f_mid
    spread = plain((at_knots[:-1] + 4 * at_middles + at_knots[1:]).mean() / 6 / area)
    return _Tables(f, area, masses, segments, spread)


@lru_cache(maxsize=64)
def _plain_tables(values: tuple[float, ...]) -> _Tables:
    return _tables(np.asarray(values))


@partial(pytree, static=("values",))
@dataclass(frozen=True)
class PiecewiseLinear:
    """A density on [0, 1], linear between n + 1 equally spaced values; closed-form cdf, its integral and inverse.

    Within segment i, at s in [0, 1] of it: f = f_i + (f_{i+1} - f_i) s, its integral a quadratic, and so on.
    """

    values: tuple[float, ...]

    @property
    def tables(self) -> _Tables:
        return _plain_tables(self.values)

    @property
    def heights(self) -> Any:
        return self.tables.heights

    @property
    def area(self) -> Any:
        return self.tables.area

    @property
    def spread(self) -> Any:
        return self.tables.spread

    def density(self, z: Any) -> Any:
        s, low, high, _, _ = self._segment(z)
        return namespace(z, low).where((z >= 0) & (z <= 1), low + (high - low) * s, 0.0)

    def cdf(self, z: Real) -> Real:
        s, low, high, mass, _ = self._segment(z)
        return mass + (low * s + (high - low) * s**2 / 2) / ((len(self.values) - 1) * self.area)

    def cdf_integral(self, z: Real) -> Any:
        s, low, high, mass, integral = self._segment(z)
        n = len(self.values) - 1
        return integral + mass * s / n + (low * s**2 / 2 + (high - low) * s**3 / 6) / (n**2 * self.area)

    def icdf(self, u: Any) -> Any:
        """Return the root of low s + (high - low) s^2 / 2 = rest in the segment that holds u."""
        u = floating(u)
        xp, n = namespace(u, self.heights), len(self.values) - 1
        i = xp.clip(xp.searchsorted(like(self.tables.masses, u), u, side="right") - 1, 0, n - 1)
        low, high = _take(self.heights, i, u), _take(self.heights, i + 1, u)
        rest = xp.maximum(u - _take(self.tables.masses, i, u), 0.0) * n * self.area
        root = low + root_or_zero(low**2 + 2 * (high - low) * rest)
        s = 2 * rest / xp.where(root > 0, root, 1.0)
        return (i.astype(u.dtype) + xp.clip(s, 0.0, 1.0)) / n

    def _segment(self, z: Real) -> tuple[Real, ...]:
        """Return the position of z in its segment, in [0, 1], and the segment's heights, mass and integral.

        One look-up returns all of them, because XLA may compute the position at a knot twice and round it differently.
        """
        z = floating(z)
        xp, n = namespace(z, self.heights), len(self.values) - 1
        position = xp.clip(z, 0.0, 1.0) * n
        i = xp.clip(xp.floor(position).astype(int), 0, n - 1)
        number, *rest = xp.moveaxis(_take(self.tables.segments, i, z), -1, 0)
        return position - number, *rest


def _take(table: np.ndarray, i: RealArray, value: Real) -> Real:
    return like(table, value)[i]


@pytree
@dataclass(frozen=True, eq=False)
class _TracedPiecewiseLinear(PiecewiseLinear):
    """A piecewise linear density whose values JAX traces."""

    values: Any

    @property
    def tables(self) -> _Tables:
        return _tables(self.values)


def _falls(shape: PiecewiseLinear) -> bool:
    checks.not_traced("shape", "Whether a table falls is known of plain numbers; write a class instead.", shape.heights)
    return bool(np.all(np.diff(shape.heights[len(shape.heights) // 2 :]) <= 0))


@dataclass(frozen=True)
class TabulatedWindow(Window):
    """A user-defined window: a symmetric piecewise linear density on [0, 1] with peak 1."""

    steepness: ClassVar[float | None] = 0.0
    is_linear: ClassVar[bool] = True
    is_table: ClassVar[bool] = True

    shape: PiecewiseLinear

    @property
    def area(self) -> Real:
        return self.shape.area

    @property
    def spread(self) -> Real:
        return self.shape.spread

    @property
    def falls(self) -> bool:
        return _falls(self.shape)

    def check(self) -> None:
        if window_from(self.shape.values) != self or not self.falls:
            raise ValueError("shape: is not even with a peak of 1, or does not fall from its middle")

    @property
    def kinks(self) -> np.ndarray:
        return np.linspace(0, 0.5, len(self.shape.values) // 2 + 1)

    def density(self, z: Real) -> Real:
        return self.shape.density(z)

    def cdf(self, z: Real) -> Real:
        return self.shape.cdf(z)

    def cdf_integral(self, z: Real) -> Real:
        return self.shape.cdf_integral(z)

    def icdf(self, u: Real) -> Any:
        return self.shape.icdf(u)

    def ceiling(self, d: Real) -> Real:
        """Bound the suffix maximum at the knots from above by chords; between knots it is convex."""
        outward = self.shape.heights[len(self.shape.heights) // 2 :]
        highest = np.maximum.accumulate if namespace(outward) is np else jax.lax.cummax
        return self._at_distance(d, highest(outward[::-1])[::-1])

    def floor(self, d: Real) -> Real:
        """Bound the prefix minimum at the knots from below by chords; between knots it is concave."""
        outward = self.shape.heights[len(self.shape.heights) // 2 :]
        lowest = np.minimum.accumulate if namespace(outward) is np else jax.lax.cummin
        return self._at_distance(d, lowest(outward))

    @staticmethod
    def _at_distance(d: Real, table: Any) -> Real:
        d = floating(d)
        return namespace(d, table).interp(d, like(np.linspace(0, 0.5, len(table)), d), like(table, d), right=0.0)


@dataclass(frozen=True)
class TabulatedBase(Base):
    """A user-defined base: an even piecewise linear density on [-1, 1] with peak 1."""

    steepness: ClassVar[float | None] = 0.0
    is_linear: ClassVar[bool] = True
    is_table: ClassVar[bool] = True

    shape: PiecewiseLinear

    @property
    def area(self) -> Real:
        return self.shape.area

    @property
    def spread(self) -> Real:
        return 4 * self.shape.spread

    @property
    def lowest(self) -> Real:
        return plain(self.shape.heights.min())

    @property
    def falls(self) -> bool:
        return _falls(self.shape)

    def check(self) -> None:
        if base_from(self.shape.values) != self or not self.falls:
            raise ValueError("shape: is not even with a peak of 1, or does not fall from its middle")

    @property
    def kinks(self) -> np.ndarray:
        return np.linspace(0, 1, len(self.shape.values) // 2 + 1)

    def density(self, v: Real) -> Real:
        return self.shape.density((v + 1) / 2)

    def inward(self, d: Real) -> Any:
        return self.shape.density(namespace(d).clip(d / 2, 0.0, 1.0))

    def cdf(self, v: Real) -> Real:
        return self.shape.cdf((v + 1) / 2)

    def cdf_integral(self, v: Real) -> Real:
        return 2 * self.shape.cdf_integral((v + 1) / 2)

    def icdf(self, u: Real) -> Any:
        return 2 * self.shape.icdf(u) - 1


def window_from(shape: Callable[[float], float] | Sequence[float]) -> TabulatedWindow:
    """Return a window from a function on [0, 1], evaluated at 1,025 knots, or from an odd number of values there.

    The table, linear between its knots and scaled to peak 1, defines the window: all results are exact for the table.
    A JAX function may depend on a traced number; its symmetry is then not checked.

    Raises:
        ValueError: not symmetric about 1/2 to 1e-9, negative, not finite, or 0 everywhere.
    """
    return TabulatedWindow(_table("window", shape, np.linspace(0, 1, _KNOTS)))


def base_from(shape: Callable[[float], float] | Sequence[float]) -> TabulatedBase:
    """Return a base from a function on [-1, 1], evaluated at 1,025 knots, or from an odd number of values there.

    Raises:
        ValueError: not even to 1e-9, not positive, or not finite.
    """
    base = TabulatedBase(_table("base", shape, np.linspace(-1, 1, _KNOTS)))
    if checks.concrete(base.lowest) is not None and base.lowest <= 0:
        raise ValueError("base: is 0 somewhere; a base must be positive, or reports there would betray the input")
    return base


def _table(name: str, shape: Callable[[Any], Any] | Sequence[float], knots: np.ndarray) -> PiecewiseLinear:
    """Evaluate, check and scale to peak 1 a user's even, nonnegative shape."""
    if callable(shape) and isinstance(shape(0.5), jax.core.Tracer):
        shape = jax.vmap(shape)(jnp.asarray(knots))
    if isinstance(shape, jax.core.Tracer):
        return _TracedPiecewiseLinear((shape + shape[::-1]) / 2 / shape.max())
    values = np.asarray([shape(float(at)) for at in knots] if callable(shape) else shape, np.float64)
    if values.ndim != 1 or len(values) < 3 or len(values) % 2 == 0:
        raise ValueError(f"{name}: shape {values.shape}; a table needs an odd number of at least 3 values")
    if not np.all(np.isfinite(values)) or np.any(values < 0):
        worst = values[~(np.isfinite(values) & (values >= 0))][0]
        raise ValueError(f"{name}: holds {worst}; values must be finite and not negative")
    peak = values.max()
    if peak <= 0:
        raise ValueError(f"{name}: is 0 everywhere; it must be positive somewhere")
    if np.max(np.abs(values - values[::-1])) > 1e-9 * peak:
        at = int(np.argmax(np.abs(values - values[::-1])))
        raise ValueError(
            f"{name}: not symmetric, {shortest(values[at])} at knot {at} but {shortest(values[::-1][at])} opposite"
        )
    return PiecewiseLinear(tuple(((values + values[::-1]) / 2 / peak).tolist()))
