"""User-defined windows and bases: tables, linear between equally spaced knots, with closed-form integrals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dpkernels import checks
from dpkernels.decimals import shortest
from dpkernels.jax_on_use import Tracer, jax, jnp
from dpkernels.mechanisms.windowed.bases import Base
from dpkernels.mechanisms.windowed.windows import Window
from dpkernels.numerics import Real, RealArray, cast_like, float_if_scalar, floating, namespace, root_or_zero
from dpkernels.pytrees import pytree

# The number of points at which a user's function is evaluated. The table then defines the shape, so their number
# affects how closely it follows the function, but not privacy.
_KNOTS = 1025

# A function on the interval of a shape, or its values at equally spaced knots.
ShapeLike = Callable[[float], Real] | Sequence[float] | np.ndarray


class _Tables(NamedTuple):
    """The arrays from which a piecewise linear density is evaluated."""

    heights: RealArray  # At the n + 1 knots.
    area: Real
    masses: RealArray  # Of the normalised density, up to every knot.
    segments: RealArray  # Of every segment: number, heights at both ends, mass and integral of the cdf before it.
    variance: Real  # Of the normalised density, its variance about 1/2.


def _tables(f: RealArray) -> _Tables:
    xp, n = namespace(f), len(f) - 1
    midpoints = (f[:-1] + f[1:]) / 2
    area = float_if_scalar(midpoints.mean())
    masses = xp.concatenate([xp.zeros(1), xp.cumsum(midpoints)]) / (n * area)
    segment_integrals = masses[:-1] / n + (f[:-1] / 3 + f[1:] / 6) / (n**2 * area)
    integrals = xp.concatenate([xp.zeros(1), xp.cumsum(segment_integrals)])
    segments = xp.stack([xp.arange(n) + 0.0, f[:-1], f[1:], masses[:-1], integrals[:-1]], -1)
    # Simpson's rule is exact for the cubic integrand of the variance.
    knots = np.linspace(0, 1, n + 1)
    knot_terms, midpoint_terms = (knots - 0.5) ** 2 * f, ((knots[:-1] + knots[1:]) / 2 - 0.5) ** 2 * midpoints
    variance = float_if_scalar((knot_terms[:-1] + 4 * midpoint_terms + knot_terms[1:]).mean() / 6 / area)
    return _Tables(f, area, masses, segments, variance)


@lru_cache(maxsize=64)
def _plain_tables(values: tuple[float, ...]) -> _Tables:
    return _tables(np.asarray(values))


@partial(pytree, static=("values",))
@dataclass(frozen=True)
class PiecewiseLinear:
    """The n + 1 values of a density on [0, 1] at equally spaced knots, between which it is linear."""

    values: tuple[float, ...]

    @property
    def tables(self) -> _Tables:
        return _plain_tables(self.values)


@pytree
@dataclass(frozen=True, eq=False)
class _TracedPiecewiseLinear(PiecewiseLinear):
    """A piecewise linear density whose values JAX traces."""

    values: Any

    @property
    def tables(self) -> _Tables:
        return _tables(self.values)


class _Tabulated:
    """The common part of a tabulated window and a tabulated base: a density on [0, 1], stretched to ``ends``."""

    steepness: ClassVar[float | None] = 0.0
    is_linear: ClassVar[bool] = True
    is_table: ClassVar[bool] = True

    ends: ClassVar[tuple[float, float]]
    shape: PiecewiseLinear

    @property
    def _length(self) -> float:
        return self.ends[1] - self.ends[0]

    @property
    def area(self) -> Real:
        return self.shape.tables.area

    @property
    def variance(self) -> Real:
        return self._length**2 * self.shape.tables.variance

    @property
    def _outward(self) -> Any:
        return self.shape.tables.heights[len(self.shape.values) // 2 :]

    @property
    def falls(self) -> bool:
        outward = self._outward
        checks.not_traced("shape", "Whether a table falls is known of plain numbers; write a class instead.", outward)
        return bool(np.all(np.diff(outward) <= 0))

    def check(self) -> None:
        make: Callable[..., object] = window_from if isinstance(self, Window) else base_from
        if make(self.shape.values) != self or not self.falls:
            raise ValueError("shape: is not even with a peak of 1, or does not fall from its middle")

    @property
    def kinks(self) -> np.ndarray:
        return np.linspace(0, self._length / 2, len(self.shape.values) // 2 + 1)

    def density(self, v: Real) -> Real:
        return self._height((v - self.ends[0]) / self._length)

    def _height(self, z: Real) -> RealArray:
        s, low, high, _, _ = self._segment(z)
        return namespace(z, low).where((z >= 0) & (z <= 1), low + (high - low) * s, 0.0)

    def cdf(self, v: Real) -> Real:
        s, low, high, mass, _ = self._segment((v - self.ends[0]) / self._length)
        return mass + (low * s + (high - low) * s**2 / 2) / ((len(self.shape.values) - 1) * self.area)

    def cdf_integral(self, v: Real) -> Real:
        s, low, high, mass, integral = self._segment((v - self.ends[0]) / self._length)
        n = len(self.shape.values) - 1
        segment_integral = (low * s**2 / 2 + (high - low) * s**3 / 6) / (n**2 * self.area)
        return self._length * (integral + mass * s / n + segment_integral)

    def icdf(self, u: Real) -> RealArray:
        """Return the root of low s + (high - low) s^2 / 2 = rest in the segment that holds u."""
        u, tables, n = floating(u), self.shape.tables, len(self.shape.values) - 1
        xp = namespace(u, tables.heights)
        i = xp.clip(xp.searchsorted(cast_like(tables.masses, u), u, side="right") - 1, 0, n - 1)
        _, low, high, before, _ = xp.moveaxis(cast_like(tables.segments, u)[i], -1, 0)
        remaining = xp.maximum(u - before, 0.0) * n * tables.area
        root = low + root_or_zero(low**2 + 2 * (high - low) * remaining)
        s = 2 * remaining / xp.where(root > 0, root, 1.0)
        return self._length * ((i.astype(u.dtype) + xp.clip(s, 0.0, 1.0)) / n) + self.ends[0]

    def _segment(self, z: Real) -> tuple[RealArray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the position in the segment of z in [0, 1], and the segment's heights, mass and integral before it."""
        z, segments, n = floating(z), self.shape.tables.segments, len(self.shape.values) - 1
        xp = namespace(z, segments)
        position = xp.clip(z, 0.0, 1.0) * n
        i = xp.clip(xp.floor(position).astype(int), 0, n - 1)
        # One look-up gives the number too, since XLA may compute i at a knot twice and round it differently.
        number, *heights_and_mass = xp.moveaxis(cast_like(segments, z)[i], -1, 0)
        return position - number, *heights_and_mass


@dataclass(frozen=True)
class TabulatedWindow(_Tabulated, Window):
    """A user-defined window: a symmetric piecewise linear density on [0, 1] with peak 1."""

    shape: PiecewiseLinear

    def supremum_beyond(self, d: Real) -> Real:
        """Bound the suffix maximum at the knots from above by chords; between knots it is convex."""
        highest = np.maximum.accumulate if namespace(self._outward) is np else jax.lax.cummax
        return self._at_distance(d, highest(self._outward[::-1])[::-1])

    def infimum_within(self, d: Real) -> Real:
        """Bound the prefix minimum at the knots from below by chords; between knots it is concave."""
        lowest = np.minimum.accumulate if namespace(self._outward) is np else jax.lax.cummin
        return self._at_distance(d, lowest(self._outward))

    def _at_distance(self, d: Real, table: RealArray) -> Real:
        d = floating(d)
        return namespace(d, table).interp(d, cast_like(self.kinks, d), cast_like(table, d), right=0.0)


@dataclass(frozen=True)
class TabulatedBase(_Tabulated, Base):
    """A user-defined base: an even piecewise linear density on [-1, 1] with peak 1."""

    shape: PiecewiseLinear

    @property
    def lowest(self) -> Real:
        return float_if_scalar(self.shape.tables.heights.min())

    def density_near_end(self, d: Real) -> RealArray:
        return self._height(namespace(d).clip(d / 2, 0.0, 1.0))


def window_from(shape: ShapeLike) -> TabulatedWindow:
    """Return a window from a function on [0, 1], evaluated at 1,025 knots, or from an odd number of values there.

    The table, linear between its knots and scaled to peak 1, defines the window: all results are exact for the table.
    A JAX function may depend on a traced number; its symmetry is then not checked.

    Raises:
        ValueError: not symmetric about 1/2 to 1e-9, negative, not finite, or 0 everywhere.
    """
    return TabulatedWindow(_table("window", shape, np.linspace(0, 1, _KNOTS)))


def base_from(shape: ShapeLike) -> TabulatedBase:
    """Return a base from a function on [-1, 1], evaluated at 1,025 knots, or from an odd number of values there.

    Raises:
        ValueError: not even to 1e-9, not positive, or not finite.
    """
    base = TabulatedBase(_table("base", shape, np.linspace(-1, 1, _KNOTS)))
    if checks.concrete(base.lowest) is not None and base.lowest <= 0:
        raise ValueError("base: is 0 somewhere; a base must be positive, or reports there would betray the input")
    return base


def _table(name: str, shape: Any, knots: np.ndarray) -> PiecewiseLinear:
    """Evaluate, check and scale to peak 1 a user's even, nonnegative shape."""
    if callable(shape) and isinstance(shape(0.5), Tracer):
        shape = jax.vmap(shape)(jnp.asarray(knots))
    if isinstance(shape, Tracer):
        return _TracedPiecewiseLinear((shape + shape[::-1]) / 2 / shape.max())
    values = np.asarray([shape(float(knot)) for knot in knots] if callable(shape) else shape, np.float64)
    if values.ndim != 1 or len(values) < 3 or len(values) % 2 == 0:
        raise ValueError(f"{name}: shape {values.shape}; a table needs an odd number of at least 3 values")
    if not np.all(np.isfinite(values)) or np.any(values < 0):
        worst = values[~(np.isfinite(values) & (values >= 0))][0]
        raise ValueError(f"{name}: holds {worst}; values must be finite and not negative")
    peak = values.max()
    if peak <= 0:
        raise ValueError(f"{name}: is 0 everywhere; it must be positive somewhere")
    opposite = values[::-1]
    if np.max(np.abs(values - opposite)) > 1e-9 * peak:
        knot = int(np.argmax(np.abs(values - opposite)))
        value, opposite_value = shortest(values[knot]), shortest(opposite[knot])
        raise ValueError(f"{name}: not symmetric, {value} at knot {knot} but {opposite_value} opposite")
    return PiecewiseLinear(tuple(((values + opposite) / 2 / peak).tolist()))
