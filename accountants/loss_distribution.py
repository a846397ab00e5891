"""Composition by privacy loss distribution: a rigorous bracket of delta and eps.

Above: connect the dots (Doroshenko 2022): an outcome of loss in [k h, (k+1) h] is split between both ends so that its
masses under p and under q are kept, which raises the profile everywhere. Below: outcomes are
gathered into groups around k h, which is a post-processing and lowers it, each of loss k h at least.

Sums are taken by FFT of the masses tilted by e^(c l), c the saddle point for the question asked, so that what is
computed is of the order of the tail asked for, not of 1. The bracket contains bounds on what wraps around the grid
(Chernoff) and on the floating-point error of the transforms (the norm-wise bound of Higham 2002, section 24.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import fft

from accountants.runs import Nodes

# Relative error allowed for a mass: densities and quadrature are good to a few units of 2^-53.
_MASS = 1e-12
# By how much of a step the lower bound's grid is moved down, for rounding.
_SLACK = 1e-6
_UNIT = 2.0**-53
_NEGLIGIBLE = 1e-22
_LARGEST = 1 << 23


@dataclass(frozen=True)
class Masses:
    """Masses of p on losses offset + (first + j) h, and of infinite loss; one pair's bound, n times.

    Attributes:
        mass: p, not negative; with ``infinite`` it need not sum to 1.
        first: k of mass[0].
        offset: moves the whole grid.
        infinite: mass of infinite loss.
        count: n.
    """

    mass: np.ndarray
    first: int
    offset: float
    infinite: float
    count: int


def above(nodes: Nodes, step: float, count: int) -> Masses:
    """A pair whose profile is at least the nodes'."""
    share = np.expm1(-nodes.share * step) / np.expm1(-step)
    # Rounding of a share moves mass one way or the other: towards the larger loss.
    share = np.minimum(share + _MASS, 1.0)
    mass, first = _gathered(nodes.cell, nodes.p * (1 - share), nodes.p * share)
    return Masses(mass * (1 + _MASS), first, 0.0, nodes.infinite * (1 + _MASS), count)


def below(nodes: Nodes, step: float, count: int) -> Masses:
    """A pair whose profile is at most the nodes': groups of outcomes around every k h, of loss k h at least.

    An outcome (k + s) h adds p (1 - e^(-s h)) to p - e^(k h) q of the group at k, and p (1 - e^((1-s) h)) to that of
    the group at k + 1. From the top cell down, as much of a cell as the group above can bear joins it, the largest
    losses first; so all groups but the lowest balance, and the mean of e^(-l) is kept.
    """
    order = np.lexsort((-nodes.share, -nodes.cell))
    cell, p, share = nodes.cell[order], nodes.p[order], nodes.share[order]
    keeps, costs = -p * np.expm1(-share * step), p * np.expm1((1 - share) * step)
    first, starts = int(cell[-1]), np.flatnonzero(np.concatenate([[True], cell[1:] != cell[:-1]]))
    mass = np.zeros(int(cell[0]) - first + 2)
    balance, above = 0.0, None
    for start, end in zip(starts, [*starts[1:], len(p)], strict=True):
        k = int(cell[start])
        cost, room = costs[start:end], balance if above == k + 1 else 0.0
        spare = room - np.cumsum(cost) + cost
        up = np.where(spare >= cost, 1.0, np.maximum(spare, 0.0) / np.maximum(cost, 1e-300))
        mass[k + 1 - first] += (p[start:end] * up).sum()
        mass[k - first] += (p[start:end] * (1 - up)).sum()
        balance, above = float((keeps[start:end] * (1 - up)).sum()), k
    # Shares are known to a few units of the loss over the step: an offset far above that is far below a step.
    return Masses(mass * (1 - _MASS), first, -_SLACK * step, nodes.infinite * (1 - _MASS), count)


def highest(several: Sequence[Masses], step: float) -> Masses:
    """A pair whose profile is at least that of every one: the maximum on the grid, and chords in e^eps between.

    A profile's slope in x = e^eps is minus Q(loss > eps), so masses under q are differences of slopes.
    """
    first = min(part.first for part in several)
    last = max(part.first + len(part.mass) for part in several)
    x = np.exp(np.arange(first - 1, last + 1) * step)
    profiles = [_profile(part, first - 1, last, step) for part in several]
    delta, infinite = np.max(profiles, axis=0), max(part.infinite for part in several)
    delta[-1] = infinite
    slopes = np.maximum(-np.diff(delta) / np.diff(x), 0.0)
    q = np.maximum(slopes[:-1] - slopes[1:], 0.0)
    mass = np.append(q * x[1:-1], slopes[-1] * x[-1])
    return Masses(mass * (1 + _MASS) + _UNIT * delta[0] * 8, first, 0.0, infinite, several[0].count)


def _profile(part: Masses, first: int, last: int, step: float) -> np.ndarray:
    """delta(k h) for k = first..last, of masses on the grid."""
    k = part.first + np.arange(len(part.mass))
    q = np.zeros(last - first + 1)
    p = np.zeros(last - first + 1)
    p[k - first] = part.mass
    q[k - first] = part.mass * np.exp(-k * step)
    beyond_p, beyond_q = (np.append(np.cumsum(mass[::-1])[::-1][1:], 0.0) for mass in (p, q))
    return part.infinite + np.maximum(beyond_p - np.exp(np.arange(first, last + 1) * step) * beyond_q, 0.0)


def _gathered(cell: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, int]:
    first, size = int(cell.min()), int(cell.max() - cell.min()) + 2
    at = cell - first
    return np.bincount(at, low, size) + np.bincount(at + 1, high, size), first


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
    """

    loss: np.ndarray
    g: np.ndarray
    tilt: float
    log_scale: float
    infinite: float
    error: float
    outside: float

    def delta(self, epsilon: float, side: int) -> float:
        """The profile at eps with all errors to one side: 1 for an upper, -1 for a lower bound."""
        s = self.loss - epsilon
        beyond = s > 0
        weight = np.exp(-self.tilt * s[beyond]) * -np.expm1(-s[beyond])
        c = self.tilt
        peak = (c / (1 + c)) ** c / (1 + c)
        value = weight @ self.g[beyond]
        value += side * (self.error * np.sqrt(weight @ weight) + self.outside * peak + 1e-13 * value)
        finite = np.exp(min(self.log_scale - c * epsilon, 700.0)) * max(value, 0.0)
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
        float(-np.expm1(sum(part.count * np.log1p(-min(part.infinite, 1 - 1e-16)) for part in parts))),
        error,
        tails.outside(size // 2 - 1),
    )


@dataclass(frozen=True)
class _Tilted:
    """Masses times e^(c l), made to sum to 1: g on the grid numbers k; ``log_scale`` is the log of their sum."""

    g: np.ndarray
    k: np.ndarray
    log_scale: float
    count: int


def _tilted(part: Masses, step: float, tilt: float) -> _Tilted:
    k = part.first + np.arange(len(part.mass), dtype=float)
    with np.errstate(divide="ignore"):
        logs = np.log(part.mass) + tilt * step * k
    top = logs.max()
    g = np.exp(logs - top)
    return _Tilted(g / g.sum(), k, float(top + np.log(g.sum())), part.count)


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
        mean = sum(part.count * (part.g @ part.k) for part in parts)
        spread = sum(part.count * (part.g @ part.k**2 - (part.g @ part.k) ** 2) for part in parts)
        most = sum(part.count * len(part.g) for part in parts)
        slopes = np.geomspace(1e-3, 1e3, 49) / np.sqrt(max(spread, 1e-12))
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
    x = slopes[:, None] * part.k[some]
    top = x.max(1, keepdims=True)
    return top[:, 0] + np.log(np.exp(x - top) @ part.g[some])


def _transformed(parts: Sequence[_Tilted], size: int) -> tuple[np.ndarray, float]:
    """The cyclic convolution powers, and a bound on the 2-norm of their error.

    A transform of length N is off by at most eta = 8 u log2 N of its norm; powers and products by a few units each.
    All transforms are at most 1 in size, so an error of one factor reaches the product n times at most.
    """
    eta = 8 * _UNIT * np.log2(max(size, 2))
    whole, error = np.ones(size // 2 + 1, complex), 0.0
    for part in parts:
        folded = np.bincount(part.k.astype(np.int64) % size, part.g, size)
        whole = whole * _power(fft.rfft(folded), part.count)
        error += part.count * (eta * float(np.linalg.norm(folded)) + 8 * _UNIT)
    g = fft.irfft(whole, size)
    return g, error + eta * float(np.linalg.norm(g))


def _power(base: np.ndarray, count: int) -> np.ndarray:
    """By squaring."""
    result = np.ones_like(base)
    while count:
        if count & 1:
            result = result * base
        base, count = base * base, count >> 1
    return result
