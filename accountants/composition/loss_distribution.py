"""Composition by privacy loss distribution: sums of independent losses on a grid, with bounds on their errors.

Sums are taken by FFT of the masses tilted by e^(c l), c the saddle point for the question asked, so that what is
computed is of the order of the tail asked for, not of 1. The bracket contains bounds on what wraps around the grid
(Chernoff), on the floating-point error of the transforms (the norm-wise bound of Higham 2002, section 24.1), and on all
other roundings. Proofs: docs/proofs/sums.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import fft

from accountants.composition.loss_bounds import Masses

# The rounding of a float; the tilted mass that may wrap around the grid, far below the transforms' own error; the most
# points of a grid, 64 MiB an array; and an exponent next to float64's largest, 709.
_UNIT = 2.0**-53
_NEGLIGIBLE = 1e-22
_LARGEST = 1 << 23
_OVERFLOWS = 700.0


@dataclass(frozen=True)
class Sum:
    """The composed masses, tilted: p(S) = e^(log_scale - c S) g(S).

    Attributes:
        loss: S, increasing.
        g: tilted masses.
        tilt: c.
        log_scale: log of the sum of e^(c S) p(S).
        infinite: 1 - prod (1 - m)^n.
        error: bound on the 2-norm of the error of g.
        outside: bound on the tilted mass beyond the grid.
        rounding: bound on the relative error of the other numbers: of the tilted masses, and of e^log_scale.
    """

    loss: np.ndarray
    g: np.ndarray
    tilt: float
    log_scale: float
    infinite: float
    error: float
    outside: float
    rounding: float = 1e-13

    def nudged(self, epsilon: float, side: int) -> float:
        """eps moved to one side by more than losses on the grid are wrong: up (side -1) makes all gains smaller."""
        return epsilon - side * 4 * _UNIT * (abs(epsilon) + float(np.abs(self.loss[[0, -1]]).max()))

    def delta(self, epsilon: float, side: int) -> float:
        """The profile at eps with all errors to one side: 1 for an upper, -1 for a lower bound."""
        c, epsilon = self.tilt, self.nudged(epsilon, side)
        start = int(np.searchsorted(self.loss, epsilon, side="right"))
        s = self.loss[start:] - epsilon
        weight = np.exp(-c * s) * -np.expm1(-s)
        peak = (c / (1 + c)) ** c / (1 + c)
        value = (weight * self.g[start:]).sum()
        rounding = self.rounding + 4 * _UNIT * c * abs(epsilon)
        value += side * (self.error * _norm(weight) + self.outside * peak + rounding * value)
        exponent = self.log_scale - c * epsilon
        if exponent > _OVERFLOWS and side > 0:  # The tilt is for an eps far off, and weights may be 0 by underflow.
            return 1.0
        finite = np.exp(min(exponent, _OVERFLOWS)) * max(value, 0.0)
        return float(min(self.infinite + finite, 1.0))


def compose(parts: Sequence[Masses], step: float, tilt: float) -> Sum:
    """The sum of independent losses.

    Raises:
        ValueError: the grid would need more than 2^23 points; says so.
    """
    tilted = [_tilted(part, step, tilt) for part in parts]
    tails = _Tails.of(tilted)
    half = tails.half_width()
    size = fft.next_fast_len(2 * half + 1, real=True)
    if size > _LARGEST:
        raise ValueError(f"the loss distribution needs {size} points at this step; at most {_LARGEST} are used")
    g, error = _transformed(tilted, size)
    lowest = int(np.floor(tails.mean)) - size // 2
    offset = sum(part.count * part.offset for part in parts)
    return Sum(
        (lowest + np.arange(size)) * step + offset,
        np.maximum(np.roll(g, -(lowest % size)), 0.0),
        tilt,
        sum(part.count * part.log_scale for part in tilted) + tilt * offset,
        _any_infinite(parts),
        error,
        tails.outside(size // 2 - 1),
        1e-13 + sum(part.count * part.rounding for part in tilted) + 4 * _UNIT * abs(tilt * offset),
    )


def _any_infinite(parts: Sequence[Masses]) -> float:
    """1 - prod (1 - m)^n."""
    if any(part.infinite >= 1 for part in parts):
        return 1.0
    return float(-np.expm1(sum(part.count * np.log1p(-part.infinite) for part in parts)))


@dataclass(frozen=True)
class _Tilted:
    """Masses times e^(c l), made to sum to 1: g on the grid numbers k; ``log_scale`` is the log of their sum.

    Their exponents are off by a few units of their largest terms, and so are g and e^log_scale, relatively.
    """

    g: np.ndarray
    k: np.ndarray
    log_scale: float
    count: int
    rounding: float


def _tilted(part: Masses, step: float, tilt: float) -> _Tilted:
    k = part.first + np.arange(len(part.mass), dtype=float)
    if not part.mass.any():  # All losses are infinite.
        return _Tilted(0 * part.mass, k, 0.0, part.count, 0.0)
    with np.errstate(divide="ignore"):
        log_mass = np.log(part.mass)
    logs = log_mass + tilt * step * k
    top = logs.max()
    g = np.exp(logs - top)
    terms = 32 + np.abs(log_mass[part.mass > 0]).max(initial=0.0) + 2 * abs(tilt * step) * np.abs(k).max() + abs(top)
    return _Tilted(g / g.sum(), k, float(top + np.log(g.sum())), part.count, 4 * _UNIT * float(terms))


@dataclass(frozen=True)
class _Tails:
    """Chernoff bounds of the tilted sum.

    Attributes:
        mean: of the sum, in steps.
        most: the sum is never further from its mean.
        slopes: s > 0 tried.
        upper: log E e^(s (S - mean)).
        lower: log E e^(-s (S - mean)).
    """

    mean: float
    most: int
    slopes: np.ndarray
    upper: np.ndarray
    lower: np.ndarray

    @classmethod
    def of(cls, parts: Sequence[_Tilted]) -> _Tails:
        """All moments, computed once."""
        means = [(part.g * part.k).sum() for part in parts]
        mean = sum(part.count * each for part, each in zip(parts, means, strict=True))
        squares = [(part.g * (part.k - each) ** 2).sum() for part, each in zip(parts, means, strict=True)]
        spread = sum(part.count * each for part, each in zip(parts, squares, strict=True))
        most = sum(part.count * len(part.g) for part in parts)
        slopes = np.geomspace(1e-2, 1e3, 26) / np.sqrt(max(spread, 1e-12))
        sides = [sum(part.count * _log_moments(part, sign * slopes) for part in parts) for sign in (1, -1)]
        return cls(mean, most, slopes, sides[0] - slopes * mean, sides[1] + slopes * mean)

    def outside(self, half: int) -> float:
        """Bound on the mass further than ``half`` steps from the mean."""
        if half >= self.most:
            return 0.0
        return float(sum(np.exp(min(0.0, (side - self.slopes * half).min())) for side in (self.upper, self.lower)))

    def half_width(self) -> int:
        """How far out the mass is negligible."""
        half = 16
        while half < self.most and self.outside(half) > _NEGLIGIBLE:
            half = half + half // 8
        return min(half, self.most)


def _log_moments(part: _Tilted, slopes: np.ndarray) -> np.ndarray:
    some = part.g > 0
    if not some.any():
        return np.full_like(slopes, -np.inf)
    x = slopes[:, None] * part.k[some]
    top = x.max(1, keepdims=True)
    return top[:, 0] + np.log((np.exp(x - top) * part.g[some]).sum(1))


def _transformed(parts: Sequence[_Tilted], size: int) -> tuple[np.ndarray, float]:
    """The cyclic convolution powers, and a bound on the 2-norm of their error.

    A transform of length N is off by at most eta = 8 u log2 N of its norm, and powers by 8 u of each factor.
    """
    eta = 8 * _UNIT * np.log2(max(size, 2))
    whole, error = np.ones(size // 2 + 1, complex), 0.0
    for part in parts:
        folded = np.bincount(part.k.astype(np.int64) % size, part.g, size)
        whole = whole * _power(fft.rfft(folded), part.count)
        error += part.count * (eta * _norm(folded) + 8 * _UNIT)
    g = fft.irfft(whole, size)
    return g, error + eta * _norm(g)


def _norm(values: np.ndarray) -> float:
    """The 2-norm; not by BLAS, whose threads may wait for each other."""
    return float(np.sqrt((values * values).sum()))


def _power(base: np.ndarray, count: int) -> np.ndarray:
    """By squaring."""
    result = np.ones_like(base)
    while count:
        if count & 1:
            result = result * base
        base, count = base * base, count >> 1
    return result
