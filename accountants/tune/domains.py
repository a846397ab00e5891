"""Domains of free parameters, and from each the bijection that makes it unconstrained.

A search moves z in R^n; a parameter is ``domain.at(z)``, so that no step can leave its domain. An end that may be the
best choice must be reached at a finite z: ``Between`` uses a sine, whose derivative vanishes there, which is the
first-order condition at an end.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dpkernels.numerics import Real, namespace
from dpkernels.pytrees import pytree


class Domain(abc.ABC):
    """The values that a parameter may take, and a bijection from real numbers.

    Attributes:
        count: how many numbers: 0 for one number, n for a vector of n.
        span: lowest and highest z where searches start.
    """

    count: int
    span: tuple[float, float]

    @abc.abstractmethod
    def at(self, z: Real) -> Real:
        """The parameter for z: a number, or an array with the last axis of n."""

    @abc.abstractmethod
    def inverse(self, value: Real) -> Real:
        """z of a value."""


@partial(pytree, static=("span", "count"))
@dataclass(frozen=True)
class Positive(Domain):
    """x = unit e^z.

    Attributes:
        unit: x at z = 0.
    """

    unit: Any = 1.0
    span: tuple[float, float] = (-3.0, 3.0)
    count: int = 0

    def at(self, z: Real) -> Real:
        return self.unit * namespace(z).exp(z)

    def inverse(self, value: Real) -> Real:
        return namespace(value, self.unit).log(value / self.unit)


@partial(pytree, static=("span", "count"))
@dataclass(frozen=True)
class Above(Domain):
    """x = low + unit e^z, above low."""

    low: Any
    unit: Any = 1.0
    span: tuple[float, float] = (-3.0, 3.0)
    count: int = 0

    def at(self, z: Real) -> Real:
        return self.low + self.unit * namespace(z).exp(z)

    def inverse(self, value: Real) -> Real:
        return namespace(value, self.unit).log((value - self.low) / self.unit)


@partial(pytree, static=("span", "count"))
@dataclass(frozen=True)
class Inside(Domain):
    """x = low + (high - low)/(1 + e^-z), in the open interval: never at its ends."""

    low: Any
    high: Any
    span: tuple[float, float] = (-4.0, 3.0)
    count: int = 0

    def at(self, z: Real) -> Real:
        return self.low + (self.high - self.low) / (1 + namespace(z).exp(-z))

    def inverse(self, value: Real) -> Real:
        return namespace(value, self.low).log((value - self.low) / (self.high - value))


@partial(pytree, static=("span", "count"))
@dataclass(frozen=True)
class Between(Domain):
    """x = (low + high)/2 + (high - low)/2 sin z, in the closed interval; one to one for |z| <= pi/2.

    For a vector each of its numbers.
    """

    low: Any
    high: Any
    span: tuple[float, float] = (-1.3, 1.3)
    count: int = 0

    def at(self, z: Real) -> Real:
        # As sin^2 of the half angle: near an end it keeps the digits of the distance from it.
        share = namespace(z).sin(z / 2 + np.pi / 4) ** 2
        return self.low + (self.high - self.low) * share

    def inverse(self, value: Real) -> Real:
        xp = namespace(value, self.low)
        share = xp.clip((value - self.low) / (self.high - self.low), 0.0, 1.0)
        return 2 * xp.arcsin(xp.sqrt(share)) - np.pi / 2


@partial(pytree, static=("span", "count"))
@dataclass(frozen=True)
class LogBetween(Domain):
    """A closed interval of positive numbers: log x is ``Between`` the logarithms of its ends."""

    low: Any
    high: Any
    span: tuple[float, float] = (-1.3, 1.3)
    count: int = 0

    def at(self, z: Real) -> Real:
        xp = namespace(z, self.low)
        return xp.exp(Between(xp.log(self.low), xp.log(self.high)).at(z))

    def inverse(self, value: Real) -> Real:
        xp = namespace(value, self.low)
        return Between(xp.log(self.low), xp.log(self.high)).inverse(xp.log(value))


@partial(pytree, static=("span", "count"))
@dataclass(frozen=True)
class Ordered(Domain):
    """0 < x_1 < ... < x_n, each gap x_i - x_(i-1) in a ``LogBetween``: no search runs off to where x has no effect."""

    count: int
    low: Any
    high: Any
    span: tuple[float, float] = (-1.3, 1.3)

    def at(self, z: Real) -> Real:
        return namespace(z, self.low).cumsum(LogBetween(self.low, self.high).at(z), axis=-1)

    def inverse(self, value: Real) -> Real:
        xp = namespace(value, self.low)
        x = xp.asarray(value)
        gaps = xp.concatenate([x[..., :1], x[..., 1:] - x[..., :-1]], -1)
        return LogBetween(self.low, self.high).inverse(gaps)


def size(domains: dict[str, Domain]) -> int:
    """Return how many numbers all parameters have together."""
    return sum(max(domain.count, 1) for domain in domains.values())


def values(domains: dict[str, Domain], z: Any) -> dict[str, Any]:
    """The parameters at z, of shape (..., n)."""
    found, start = {}, 0
    for name, domain in domains.items():
        end = start + max(domain.count, 1)
        found[name] = domain.at(z[..., start:end] if domain.count else z[..., start])
        start = end
    return found


def starts(domains: dict[str, Domain], count: int) -> np.ndarray:
    """``count`` points spread over the spans: of shape (count, n).

    One dimension is divided evenly; more are filled by the additive recurrence with the generalised golden ratio,
    the root of g^(n+1) = g + 1, whose points are far apart for any count (Roberts 2018).
    """
    n = size(domains)
    if n == 0:
        return np.zeros((count, 0))
    ratio = 2.0
    for _ in range(40):
        ratio = (1 + ratio) ** (1 / (n + 1))
    shares = (0.5 + np.arange(count)[:, None] / ratio ** np.arange(1, n + 1)) % 1.0
    if n == 1:
        shares = (np.arange(count)[:, None] + 0.5) / count
    spans = np.array([domain.span for domain in domains.values() for _ in range(max(domain.count, 1))]).reshape(n, 2)
    return spans[:, 0] + (spans[:, 1] - spans[:, 0]) * shares
