"""The Laplace distribution, and the merged (piecewise) Laplace distribution of Mugunthan 2020."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import ClassVar, Self

import numpy as np

from dpkernels import checks
from dpkernels.distributions.base import PiecewiseExponential
from dpkernels.numerics import Real, RealArray, exponential_moment, floating, log1p_over, namespace, number_like
from dpkernels.pytrees import pytree


@pytree
@dataclass(frozen=True)
class Laplace(PiecewiseExponential):
    """The Laplace distribution, f(z) = exp(-|z| / b) / (2 b), with the scale b in [1e-140, 1e140]."""

    roundings: ClassVar[float] = 32.0

    scale: Real

    def __post_init__(self) -> None:
        checks.width("scale", self.scale)

    def log_prob(self, z: Real) -> Real:
        b, xp = self.scale, namespace(z, self.scale)
        return -xp.abs(z) / b - xp.log(2 * b)

    def loss(self, z: Real, shift: Real) -> RealArray:
        return self.excess_distance(z, shift) / self.scale

    @property
    def geometric_tail(self) -> tuple[float, float | None]:
        return 0.0, None

    def score(self, z: Real) -> RealArray:
        return -namespace(z, self.scale).sign(z) / self.scale

    def tail(self, z: Real) -> Real:
        return namespace(z, self.scale).exp(-z / self.scale) / 2

    def partial_moment(self, power: int, lower: Real, upper: Real) -> Real:
        return self.tail(lower) / self.scale * exponential_moment(power, lower, 1 / self.scale, upper - lower)

    def lower_inverse(self, u: Real) -> Real:
        xp = namespace(u, self.scale)
        is_lower = u < 0.5
        log_tail = xp.log(2 * xp.where(is_lower, u, 1 - u))
        return self.scale * xp.where(is_lower, log_tail, -log_tail)

    @property
    def knots(self) -> RealArray:
        return np.zeros(1)


@pytree
@dataclass(frozen=True)
class MergedLaplace(PiecewiseExponential):
    """A distribution whose log density is continuous and piecewise linear in |z|, with slope -r_i on [c_(i-1), c_i).

    The rates r_1..r_n are in [0, 1e300], the last positive; the breaks c_1..c_(n-1) are positive and increasing. With
    c_0 = 0, c_n = infinity, w_i = c_i - c_(i-1), F_1 = 1 and F_(i+1) = F_i exp(-r_i w_i), the density is
    f(z) = F_i/Z exp(-r_i (|z| - c_(i-1))), where Z = 2 sum F_i (1 - e^(-r_i w_i))/r_i. The published appendix has a
    sign error in the third column of its table C.
    """

    roundings: ClassVar[float] = 32.0

    rates: tuple[Real, ...]
    breaks: tuple[Real, ...]

    def __post_init__(self) -> None:
        if len(self.rates) != len(self.breaks) + 1:
            raise ValueError(f"rates: {len(self.rates)} for {len(self.breaks)} breaks; one more than breaks is needed")
        for rate in self.rates[:-1]:
            checks.within("rates", rate, 0.0, 1e300)
        checks.positive("rates", self.rates[-1])
        for low, high in pairwise([0.0, *self.breaks]):
            checks.positive("breaks", high)
            if checks.concrete(low) is not None and checks.concrete(high) is not None and not np.all(low < high):
                raise ValueError(f"breaks: {self.breaks}; they must increase")

    def rescale(self, factor: Real, unit: Real = 1.0) -> Self:
        rates = tuple(rate / factor * unit for rate in self.rates)
        return dataclasses.replace(self, rates=rates, breaks=tuple(end * factor / unit for end in self.breaks))

    @property
    def geometric_tail(self) -> tuple[float, float | None]:
        return (float(self.breaks[-1]) if self.breaks else 0.0), None

    def _segments(self) -> list[tuple[Real, Real, Real, Real]]:
        """Return (start, end, rate, F) of every segment."""
        level, infinity = (number_like(value, *self.rates, *self.breaks) for value in (1.0, np.inf))
        segments, start = [], 0 * level
        for end, rate in zip((*self.breaks, infinity), self.rates, strict=True):
            segments.append((start, end, rate, level))
            if end is not infinity:
                level = level * namespace(rate, start, end).exp(-rate * (end - start))
            start = end
        return segments

    def _columns(self, xp: ModuleType) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        columns = zip(*self._segments(), strict=True)
        return tuple(xp.stack(xp.broadcast_arrays(*column), -1) for column in columns)

    def _unscaled_moment(self, power: int, lower: Real, upper: Real) -> Real:
        """Return Z times ``partial_moment``: the sum of the segments' parts, each from the start of its own."""
        xp = namespace(lower, upper, *self.rates, *self.breaks)
        start, end, rate, level = self._columns(xp)
        first, last = (xp.clip(xp.asarray(z)[..., None], start, end) for z in (lower, upper))
        is_inside = last > first
        first, width = xp.where(is_inside, first, start), xp.where(is_inside, last - first, 0.0)
        terms = level * xp.exp(-rate * (first - start)) * exponential_moment(power, first, rate, width)
        return xp.where(is_inside, terms, 0.0).sum(-1)

    @property
    def _norm(self) -> Real:
        zero, infinity = (number_like(z, *self.rates, *self.breaks) for z in (0.0, np.inf))
        return 2 * self._unscaled_moment(0, zero, infinity)

    def partial_moment(self, power: int, lower: Real, upper: Real) -> Real:
        return self._unscaled_moment(power, lower, upper) / self._norm

    def log_prob(self, z: Real) -> Real:
        z = namespace(z, *self.rates).abs(floating(z))
        xp = namespace(z, *self.rates, *self.breaks)
        fall = 0.0
        for start, end, rate, _ in self._segments():
            fall = fall + rate * (xp.clip(z, start, end) - start)
        return -fall - xp.log(self._norm)

    def loss(self, z: Real, shift: Real) -> RealArray:
        """Return the integral of the rate from |z| to |z - shift|: a sum over segments of terms of one sign."""
        xp = namespace(z, shift, *self.rates, *self.breaks)
        distance_change = self.excess_distance(z, shift)
        distance, nearer = xp.abs(distance_change), xp.minimum(xp.abs(z), xp.abs(z - shift))
        total = 0.0 * distance_change
        for start, end, rate, _ in self._segments():
            overlap = xp.minimum(xp.minimum(distance, end - start), xp.minimum(nearer + distance - start, end - nearer))
            total = total + rate * xp.maximum(overlap, 0.0)
        return xp.sign(distance_change) * total

    def score(self, z: Real) -> RealArray:
        xp = namespace(z, *self.rates, *self.breaks)
        rate = 0.0
        for start, end, r, _ in self._segments():
            rate = rate + xp.where((xp.abs(z) >= start) & (xp.abs(z) < end), r, 0.0)
        return -xp.sign(z) * rate

    def tail(self, z: Real) -> Real:
        parameters = (*self.rates, *self.breaks)
        if namespace(z, *parameters) is not np or any(np.ndim(parameter) for parameter in parameters):
            return self.partial_moment(0, z, number_like(np.inf, *parameters))
        # Of plain numbers only the segment that contains z is evaluated, and later ones are added up once.
        start, end, rate, level = self._columns(np)
        later_tail = np.append(np.cumsum((level * exponential_moment(0, start, rate, end - start))[:0:-1])[::-1], 0.0)
        i = np.searchsorted(start, z, side="right") - 1
        segment_tail = level[i] * np.exp(-rate[i] * (z - start[i])) * exponential_moment(0, z, rate[i], end[i] - z)
        return (segment_tail + later_tail[i]) / self._norm

    def lower_inverse(self, u: Real) -> Real:
        """Return end - log1p(r q)/r in the segment with end density F_end, q = (tail - tail at the end) Z / F_end."""
        xp = namespace(u, *self.rates, *self.breaks)
        is_lower = u < 0.5
        tail = xp.where(is_lower, u, 1 - u) * self._norm
        *inner, (start, _, rate, level) = self._segments()
        later_tail = level / rate  # The unnormalised tail at the start of the last segment.
        z = start - xp.log(xp.minimum(tail / later_tail, 1.0)) / rate
        slope = q = xp.zeros_like(tail)
        for start, end, rate, level in reversed(inner):
            is_inside, density = tail > later_tail, level * xp.exp(-rate * (end - start))
            z, slope = xp.where(is_inside, end, z), xp.where(is_inside, rate, slope)
            q = xp.where(is_inside, xp.maximum(tail - later_tail, 0.0) * (1 / density), q)
            later_tail = later_tail + level * exponential_moment(0, start, rate, end - start)
        z = z - log1p_over(slope, q)
        return xp.where(is_lower, -z, z)

    @property
    def knots(self) -> RealArray:
        xp = namespace(*self.breaks)
        ends = xp.stack([xp.asarray(end) for end in (0.0, *self.breaks)])
        return xp.concatenate([-ends[:0:-1], ends])
