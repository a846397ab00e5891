"""A pair of laws as atoms of the loss and runs on which it is monotone: what a loss distribution is discretised from.

NumPy in float64. On a run the densities are smooth and the loss can be inverted, so that cells can end where the loss
is on a grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from dpkernels.numerics import Real, gauss_legendre
from dpkernels.solve import bisect

Function = Callable[[np.ndarray], np.ndarray]
# (left, right) -> how steep densities are at most on panels between these ends; see ``Run``.
Steepness = Callable[[np.ndarray, np.ndarray], np.ndarray]

_NODES, _WEIGHTS = gauss_legendre(4)
# Points of a piece at which turns of the loss are looked for, also the ends of panels of its mass; and halvings that
# invert the loss: 2^-60 of a run, which is float64.
_SAMPLES, _BISECTIONS = 257, 60
# At a knot itself a density may jump: how far from it, of a run's length, it is looked at.
_INSET = 1e-12
# Knots no further apart, relative to the farthest, are one but for rounding.
_ROUNDING = 64 * 2.0**-52
# The eighth root of 105, rounded up: by how much of sqrt(bend) a law of bending log density is steeper than its score.
_BENT = 1.8
# Panels times steepness at which 4 nodes are exact to 2^-53, and to 10^-4; and the most panels.
EXACT, ROUGH, _MOST_PANELS = 1 / 8, 3.0, 1 << 25
# Mass of a Gaussian beyond its reach on both sides: 2 Phi(-18).
UNSEEN = 2e-72
# Losses up to it are rounding errors.
_NO_LOSS = 64 * 2.0**-52


@dataclass(frozen=True)
class Run:
    """An interval on which the loss is monotone and continuous.

    Attributes:
        left: its lower end.
        right: its upper end.
        p: density of one law.
        q: density of the other.
        loss: log p/q.
        inverse: from losses between those at the ends to points.
        steep: s of panels, for what quadrature is proven to be good to (docs/proofs/brackets.md): p and q are sums of
            positive parts f of |f^(8)| <= s^8 f; polynomials of degree 7 have 0, as have laws of which it is unknown.
    """

    left: float
    right: float
    p: Function
    q: Function
    loss: Function
    inverse: Function
    steep: Steepness


@dataclass(frozen=True)
class Spectrum:
    """All of a pair: atoms (masses under p and q, and losses, which may be infinite) and runs.

    Attributes:
        p: masses of atoms.
        q: under the other law.
        loss: their losses.
        runs: all else.
        unseen: bound on the mass of p, and of q, that is in none of these: Gaussian tails beyond their reach.
    """

    p: np.ndarray
    q: np.ndarray
    loss: np.ndarray
    runs: tuple[Run, ...]
    unseen: float = 0.0

    def scaled(self, weight: float) -> Spectrum:
        """The same outcomes, ``weight`` times as likely."""
        runs = (replace(run, p=_times(weight, run.p), q=_times(weight, run.q)) for run in self.runs)
        return Spectrum(weight * self.p, weight * self.q, self.loss, tuple(runs), weight * self.unseen)

    def mirrored(self) -> Spectrum:
        """The pair (q, p)."""
        runs = tuple(
            replace(run, p=run.q, q=run.p, loss=_after(np.negative, run.loss), inverse=_after(run.inverse, np.negative))
            for run in self.runs
        )
        return Spectrum(self.q, self.p, -self.loss, runs, self.unseen)

    def sampled(self, rate: float) -> Spectrum:
        """The pair (r p + (1 - r) q, q), of loss log(1 + r (e^l - 1))."""

        def there(loss: np.ndarray) -> np.ndarray:
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                near = np.log1p(rate * np.expm1(loss))
                return np.where(loss > 30, loss + np.log(rate) + np.log1p((1 - rate) / rate * np.exp(-loss)), near)

        def back(loss: np.ndarray) -> np.ndarray:
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                return np.where(loss > 30, loss - np.log(rate), np.log1p(np.maximum(np.expm1(loss) / rate, -1.0)))

        runs = tuple(
            replace(run, p=_mix(run, rate), loss=_after(there, run.loss), inverse=_after(run.inverse, back))
            for run in self.runs
        )
        return Spectrum(rate * self.p + (1 - rate) * self.q, self.q, there(self.loss), runs, self.unseen)

    def both_ways(self) -> Spectrum:
        """The pair whose profile is the larger of this pair's and its mirror's, where that is this one's at eps >= 0.

        It has the positive losses, their mirror images, and otherwise no loss. A run's losses are of one sign.
        """
        some = self.loss > _NO_LOSS
        runs = tuple(run for run in self.runs if run.loss(np.array((run.left + run.right) / 2)) > 0)
        there = Spectrum(self.p[some], self.q[some], self.loss[some], runs, self.unseen)
        rest = np.maximum([1 - sum(there.p) - sum(there.q) - sum(map(_mass_of, runs))], 0.0)
        return joined([there, there.mirrored(), Spectrum(rest, rest, 0 * rest, ())])


def _mass_of(run: Run) -> float:
    return _mass(run.p, run.left, run.right, run.steep) + _mass(run.q, run.left, run.right, run.steep)


def _after(outer: Any, inner: Any) -> Function:
    return lambda x: outer(inner(x))


def _times(weight: float, density: Function) -> Function:
    return lambda x: weight * density(x)


def _mix(run: Run, rate: float) -> Function:
    return lambda x: rate * run.p(x) + (1 - rate) * run.q(x)


def joined(parts: Sequence[Spectrum]) -> Spectrum:
    """All outcomes of several."""
    p, q, loss = (np.concatenate([getattr(part, name) for part in parts]) for name in ("p", "q", "loss"))
    return Spectrum(p, q, loss, sum((part.runs for part in parts), ()), sum(part.unseen for part in parts))


def affine(
    left: float, right: float, at: float, log_p: float, rise: float, loss: float, slope: float, bend: float
) -> Run:
    """A run of an affine loss, log p being a polynomial of degree 2 at most; both are given at ``at``."""
    scores = rise, rise - slope

    def log_density(x: np.ndarray) -> np.ndarray:
        return log_p + rise * (x - at) - bend * (x - at) ** 2 / 2

    def level(x: np.ndarray) -> np.ndarray:
        return loss + slope * (x - at)

    return Run(
        left,
        right,
        lambda x: np.exp(log_density(x)),
        lambda x: np.exp(log_density(x) - level(x)),
        level,
        lambda value: at + (value - loss) / slope,
        lambda x, y: np.maximum(*(bent(np.abs(score - bend * ((x + y) / 2 - at)), bend, y - x) for score in scores)),
    )


def bent(score: Real, bend: float, width: Real) -> Any:
    """The steepness of e^g on panels of a width, g of degree 2: |g'| in their middles is given, -g'' is the bend."""
    return score + bend * width / 2 + _BENT * math.sqrt(bend)


def flat(left: np.ndarray, _: np.ndarray) -> np.ndarray:
    """No steepness: polynomials of degree 7, or what is not known."""
    return 0 * left


def refined(points: np.ndarray, steep: Steepness, still: float) -> np.ndarray:
    """The ends of panels cut evenly into ones whose width times steepness is at most ``still``.

    Raises:
        ValueError: there would be more than 2^25.
    """
    parts = np.maximum(np.ceil(np.diff(points) * steep(points[:-1], points[1:]) / still), 1.0)
    if not parts.sum() <= _MOST_PANELS:
        raise ValueError(
            f"densities need {parts.sum():.3g} panels, too many for a grid; at most {_MOST_PANELS} are used"
        )
    many = parts.astype(int)
    number = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
    inner = np.repeat(points[:-1], many) + number * np.repeat(np.diff(points) / many, many)
    return np.append(inner, points[-1])


def between_knots(p: Function, q: Function, loss: Function, ends: np.ndarray, steep: Steepness) -> Spectrum:
    """The spectrum of two densities that are smooth between knots, which increase."""
    atoms: list[tuple[Any, Any, Any]] = []
    runs: list[Run] = []
    rounding = _ROUNDING * float(np.abs(ends).max())
    for left, right in pairwise(ends.tolist()):
        if right - left <= rounding:
            continue
        inset = _INSET * (right - left)
        x = np.linspace(left + inset, right - inset, _SAMPLES)
        level = loss(x)
        if np.isinf(level).all() or np.ptp(level) <= 1e-13 * (1 + np.abs(level).max()):
            atoms.append((_mass(p, left, right, steep), _mass(q, left, right, steep), level[_SAMPLES // 2]))
        else:
            runs.extend(_numeric(p, q, loss, *span, steep) for span in monotone(loss, x, left, right))
    p_mass, q_mass, level = np.array(atoms).reshape(-1, 3).T
    return Spectrum(p_mass, q_mass, level, tuple(runs))


def _mass(density: Function, left: float, right: float, steep: Steepness) -> float:
    points = refined(np.linspace(left, right, _SAMPLES), steep, EXACT)
    width = np.diff(points)[:, None]
    return float((width * _WEIGHTS * density(points[:-1, None] + width * _NODES)).sum())


def monotone(loss: Function, x: np.ndarray, left: float, right: float) -> list[tuple[float, float]]:
    """The spans between turns of the loss, each found by golden section in its bracket."""
    from scipy.optimize import minimize_scalar

    rising = np.diff(loss(x)) > 0
    cuts = [left]
    for j in np.flatnonzero(rising[1:] != rising[:-1]) + 1:
        sign = -1.0 if rising[j - 1] else 1.0
        found = minimize_scalar(
            lambda v, sign=sign: float(sign * loss(np.array(v))),
            bounds=(x[j - 1], x[j + 1]),
            method="bounded",
            options={"xatol": 1e-12 * (right - left)},
        )
        cuts.append(float(found.x))
    return list(zip(cuts, [*cuts[1:], right], strict=True))


def _numeric(p: Function, q: Function, loss: Function, left: float, right: float, steep: Steepness) -> Run:
    """A run whose loss is inverted by bisection."""
    inset = _INSET * (right - left)
    rises = loss(np.array(right - inset)) > loss(np.array(left + inset))

    def inverse(level: np.ndarray) -> np.ndarray:
        ends = np.full(level.shape, left + inset), np.full(level.shape, right - inset)
        low, high = bisect(lambda x: (loss(x) < level) == rises, *ends, _BISECTIONS)
        return (low + high) / 2

    return Run(left, right, p, q, loss, inverse, steep)
