"""Domains of free parameters, each with a map from the real numbers, so that a search is unconstrained.

A search moves z in R^n, and a parameter is ``domain.constrain(z)``, so no step can leave the domain. If an end may be
the optimum, a finite z must reach it. ``Between`` therefore uses a sine, whose derivative vanishes at the ends, so that
the first-order condition holds there.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import numpy as np

from dpkernels.numerics import Real, RealArray, namespace
from dpkernels.pytrees import pytree

_END_FRACTION = 1e-6  # A parameter within this fraction of a domain, or of its unit, of an end is at the end.
# Where z of a closed interval starts at the nearest, as fractions of the interval: at an end its map is flat.
_START_FRACTIONS = 1e-3, 1 - 1e-3


class Domain(abc.ABC):
    """The values that a parameter may take, as the image of real numbers z; searches start in the span.

    ``count`` is 0 for a parameter that is a number, n for a vector of n numbers.
    """

    span: tuple[float, float]
    count: int

    @abc.abstractmethod
    def constrain(self, z: Real) -> Real:
        """Return the parameter for z: a number, or an array with the last axis of n. It increases with z in the span.

        The map of a vector may join its numbers.
        """

    @abc.abstractmethod
    def unconstrain(self, value: Real) -> Real:
        """Return a z that maps to a parameter, or next to one at an end of the domain, where the map is flat."""

    @abc.abstractmethod
    def __contains__(self, value: Real) -> bool:
        """Return whether a parameter, of the right shape, is in the domain but for rounding."""

    @abc.abstractmethod
    def is_at_end(self, value: Real) -> bool:
        """Return whether a parameter, or a number of a vector, is at an end of the domain but for rounding."""

    @property
    def size(self) -> int:
        """Return the number of real numbers that it maps."""
        return max(self.count, 1)


_domain = partial(pytree, static=("span", "count"))


@_domain
@dataclass(frozen=True)
class GreaterThan(Domain):
    """The numbers above ``low``: x = low + unit e^z."""

    low: Real
    unit: Real = 1.0
    span: tuple[float, float] = (-3.0, 3.0)
    count: int = 0

    def constrain(self, z: Real) -> Real:
        return self.low + self.unit * namespace(z).exp(z)

    def unconstrain(self, value: Real) -> Real:
        return np.log(np.maximum((value - self.low) / self.unit, _END_FRACTION))

    def __contains__(self, value: Real) -> bool:
        return bool((value - self.low) / self.unit >= -_END_FRACTION)

    def is_at_end(self, value: Real) -> bool:
        return bool((value - self.low) / self.unit <= _END_FRACTION)


@dataclass(frozen=True)
class _Interval(Domain):
    low: Real
    high: Real
    span: tuple[float, float] = (-1.3, 1.3)
    count: int = 0

    def fraction(self, value: Real) -> Real:
        """Return which fraction of the interval is below a parameter."""
        with np.errstate(invalid="ignore"):  # Of an interval of one number the fraction is NaN.
            return (value - self.low) / (self.high - self.low)

    def __contains__(self, value: Real) -> bool:
        fraction = self.fraction(value)
        return bool(np.all((fraction >= -_END_FRACTION) & (fraction <= 1 + _END_FRACTION)))

    def is_at_end(self, value: Real) -> bool:
        fraction = self.fraction(value)
        return not np.all((fraction > _END_FRACTION) & (fraction < 1 - _END_FRACTION))


@_domain
@dataclass(frozen=True)
class OpenInterval(_Interval):
    """An open interval: x = low + (high - low)/(1 + e^-z)."""

    span: tuple[float, float] = (-4.0, 3.0)

    def constrain(self, z: Real) -> Real:
        return self.low + (self.high - self.low) / (1 + namespace(z).exp(-z))

    def unconstrain(self, value: Real) -> Real:
        fraction = np.clip(self.fraction(value), _END_FRACTION, 1 - _END_FRACTION)
        return np.log(fraction / (1 - fraction))


@_domain
class Between(_Interval):
    """A closed interval: x = (low + high)/2 + (high - low)/2 sin z, one to one for |z| <= pi/2."""

    def constrain(self, z: Real) -> Real:
        # sin^2 of the half angle keeps the digits of the distance from an end.
        return self.low + (self.high - self.low) * namespace(z).sin(z / 2 + np.pi / 4) ** 2

    def unconstrain(self, value: Real) -> Real:
        return 2 * np.arcsin(np.sqrt(np.clip(self.fraction(value), *_START_FRACTIONS))) - np.pi / 2


@_domain
class LogBetween(_Interval):
    """A closed interval of positive numbers: log x is ``Between`` the logarithms of its ends."""

    def constrain(self, z: Real) -> Real:
        xp = namespace(z, self.low)
        return xp.exp(self._logarithms(xp).constrain(z))

    def _logarithms(self, xp: ModuleType) -> Between:
        return Between(xp.log(self.low), xp.log(self.high))

    def fraction(self, value: Real) -> Real:
        with np.errstate(divide="ignore", invalid="ignore"):
            return self._logarithms(np).fraction(np.log(value))

    def unconstrain(self, value: Real) -> Real:
        return self._logarithms(np).unconstrain(np.log(value))


@_domain
@dataclass(frozen=True)
class Ordered(Domain):
    """Vectors 0 < x_1 < ... < x_n with gaps x_i - x_(i-1) in ``LogBetween(low, high)``, so that x has an effect."""

    count: int
    low: Real
    high: Real
    span: tuple[float, float] = (-1.3, 1.3)

    def constrain(self, z: Real) -> Real:
        return namespace(z, self.low).cumsum(LogBetween(self.low, self.high).constrain(z), axis=-1)

    def unconstrain(self, value: Real) -> Real:
        return LogBetween(self.low, self.high).unconstrain(np.diff(value, prepend=0.0))

    def __contains__(self, value: Real) -> bool:
        return np.diff(value, prepend=0.0) in LogBetween(self.low, self.high)

    def is_at_end(self, value: Real) -> bool:
        return LogBetween(self.low, self.high).is_at_end(np.diff(value, prepend=0.0))


def constrain(domains: dict[str, Domain], z: RealArray) -> dict[str, Real]:
    """Return the parameters at z, of shape (..., n)."""
    parameters, start = {}, 0
    for name, domain in domains.items():
        end = start + domain.size
        parameters[name] = domain.constrain(z[..., start:end] if domain.count else z[..., start])
        start = end
    return parameters


def unconstrain(domains: dict[str, Domain], parameters: dict[str, Real]) -> np.ndarray:
    """Return z, of shape (n,), of the parameters; see ``Domain.unconstrain``."""
    z = (np.atleast_1d(domain.unconstrain(np.asarray(parameters[name]))) for name, domain in domains.items())
    return np.concatenate([np.zeros(0), *z])


def starts(domains: dict[str, Domain], count: int) -> np.ndarray:
    """Return ``count`` points spread over the spans, of shape (count, n), evenly in one dimension.

    More dimensions are filled by the additive recurrence with the generalised golden ratio, the root of g^(n+1) = g + 1
    (Roberts 2018).
    """
    spans = np.array([domain.span for domain in domains.values() for _ in range(domain.size)]).reshape(-1, 2)
    n, steps = len(spans), np.arange(count)[:, None]
    ratio = 2.0
    for _ in range(40):
        ratio = (1 + ratio) ** (1 / (n + 1))
    fractions = (steps + 0.5) / count if n == 1 else (0.5 + steps / ratio ** np.arange(1, n + 1)) % 1.0
    return spans[:, 0] + (spans[:, 1] - spans[:, 0]) * fractions
