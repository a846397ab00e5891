"""Rigorous bounds for shuffled reports: the sum of losses on a grid, including errors of transforms and rounding.

Bounds use the convex order. Splitting an outcome of L between two grid points, with its mean kept, increases
E[(L_1 + ... + L_M)_+]; a distribution whose E(L - t)_+ is a polygon below decreases it (docs/proofs/shuffle.md). Both
errors are of second order in the step where outcomes are dense, so sums of 2^j reports are first formed outcome by
outcome, as long as they have few values. A bound over many pairs is the distribution whose E(L - t)_+ is the pairs'
maximum at some t, and linear between.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from accountants.composition.bounds import ComposedBounds, Masses, compose
from accountants.shuffle.blanket import Blanket, StopLoss, WorstInputs
from dpkernels.solve import NotPrivateError, bisect, conservative_root

# Relative errors of probabilities and of sums of L that are allowed for: they are known to some units of 2^-53.
# Beyond this eps e^eps is next to overflow: a bound is that at it, or 0.
_LARGEST = 700.0
_MASS, _VALUE = 1e-12, 1e-14
# What an outcome is moved up, or down, of a cell: more than rounding does in as many cells as there are at most.
_MOVED, _UNIT = 1e-9, 2.0**-53
# Sums are made outcome by outcome from so many pairs of them at most, and have so many.
_PAIRS, _OUTCOMES = 1 << 19, 1 << 12
# Points of the grids over the sum; how many deviations of it they are for; the relative width that is enough. What a
# grid four times as fine gains is a sixteenth of the gain before, and all finer ones together are taken for a seventh.
_GRIDS, _SPAN, _WIDTH, _FINER = tuple(1 << j for j in range(12, 23, 2)), 24.0, 9e-5, 1 / 7
# Sums may have one likely value: a grid is for this share of the losses' range at least.
_NARROW = 1e-2
# Points that one law may need on a grid.
_CELLS = 1 << 20
_DOTS = np.linspace(0.0, 1.0, 257)
# Of tilts, and of a tilt times the step: steeper ones are of no use on the grid.
_BISECTIONS, _HIGHEST, _OVERFLOWS, _STEEPEST = 60, 600.0, 700.0, 1.0
# The first steps of eps from the estimate, relative to log delta over its slope; how many there are at most.
_CLOSER, _MOST_STEPS = 1e-7, 60


@dataclass(frozen=True)
class Law:
    """The sum of losses of some reports, of which every one is of the blanket with probability gamma, else 0.

    Attributes:
        value: the values.
        mass: their probabilities.
        reports: how many reports.
        slack: by so much at most a value is wrong.
    """

    value: np.ndarray
    mass: np.ndarray
    reports: int
    slack: float

    def plus(self, other: Law) -> Law:
        """The sum of two."""
        value = (self.value[:, None] + other.value).ravel()
        slack = self.slack + other.slack + _VALUE * float(np.abs(value).max())
        mass = (self.mass[:, None] * other.mass).ravel()
        return _merged(value, mass, self.reports + other.reports, slack)

    @property
    def points(self) -> int:
        """Return the number of values."""
        return len(self.value)


def _merged(value: np.ndarray, mass: np.ndarray, reports: int, slack: float) -> Law:
    """Values that may be the same are one, any of them; then wrong by twice as much."""
    keys, group = np.unique(np.round(value / slack), return_inverse=True)
    first = np.zeros(len(keys))
    first[group] = value
    return Law(first, np.bincount(group, mass), reports, 2 * slack)


def _one_report(value: np.ndarray, mass: np.ndarray, gamma: float, size: float) -> Law:
    """Return the distribution of one report, from L, a difference of numbers up to ``size``, and its masses."""
    value, mass = np.append(value, 0.0), np.append(gamma * mass, max(1 - gamma, 0.0))
    return _merged(value, mass, 1, _VALUE * size)


def _of_blanket(blanket: Blanket, E: float) -> Law:
    some = np.asarray(blanket.mass) > 0
    mass, p, q = (np.asarray(column, float)[some] for column in (blanket.mass, blanket.p, blanket.q))
    return _one_report(p - E * q, mass, float(blanket.gamma), float((p + E * q).max()))


def _of_bound(inputs: WorstInputs, stop_loss: StopLoss, E: float) -> Law:
    """Return the distribution whose E(L - t)_+ is the bound at some t, with the likely losses, and linear between."""
    blankets = [pair.upper.merged for pair in inputs.pairs]
    gamma, high = blankets[0].gamma, math.exp(inputs.level) * (1 + _MASS)
    least, most = gamma * (1 - _MASS - E * high), gamma * (high - E)  # Of all pairs.
    losses = [blanket.p - E * blanket.q for blanket in blankets]
    inner = np.concatenate([*losses, least + (most - least) * _DOTS, [0.0, 1 - E]])
    t = np.unique(np.clip(inner, least, most))
    t = t[np.append(np.diff(t) > 1e-9 * (most - least), True)]
    t[0] = least
    above = np.concatenate([[1 - E - t[0]], stop_loss(E, t[1:-1]), [0.0]])
    # What is bounded is convex, so it is below the hull as well.
    kept, slopes = hull(t, above)
    t, slopes = t[kept], np.concatenate([[-1.0], slopes, [0.0]])
    return _one_report(t, np.maximum(np.diff(slopes), 0.0), gamma, gamma * (1 + E) * high)


def _parts(one: Law, n: int) -> list[tuple[Law, int]]:
    """n reports as sums of 2^j, as far as their values are few, how many of each; one alone where all fit."""
    laws = [one]
    while 2 * laws[-1].reports <= n and laws[-1].points ** 2 <= _PAIRS and laws[-1].points <= _OUTCOMES:
        laws.append(laws[-1].plus(laws[-1]))
    whole, rest = divmod(n, laws[-1].reports)
    parts = [(laws[-1], whole), *((law, 1) for law in laws[-2::-1] if rest & law.reports)]
    while len(parts) > 1 and parts[0][1] == 1 and parts[0][0].points * parts[1][0].points <= _PAIRS:
        parts[:2] = [(parts[0][0].plus(parts[1][0]), 1)]
    return parts


def _tilt(one: Law, n: int) -> tuple[float, float]:
    """(c, deviation of the sum there), c the saddle of K(c) - 2 ln c; any c is valid."""
    top = max(float(one.value.max()), 1e-300)
    low, high = math.log(_HIGHEST / top) - 80.0, math.log(_HIGHEST / top)

    def moments(c: float) -> tuple[float, float]:
        g = one.mass * np.exp(c * (one.value - top))
        mean = (g * one.value).sum() / g.sum()
        return mean, (g * (one.value - mean) ** 2).sum() / g.sum()

    def before(log_c: float) -> bool:
        return n * moments(math.exp(log_c))[0] * math.exp(log_c) < 2

    low, _ = bisect(before, low, high, _BISECTIONS)
    deviation = math.sqrt(n * moments(math.exp(low))[1])
    return math.exp(low), max(deviation, _NARROW * float(np.ptp(one.value)))


def _above(law: Law, step: float, count: int) -> Masses:
    """Every value split between the grid points around it, its mean kept or raised."""
    place = (law.value + law.slack) / step
    k, first, size = _cells(place)
    up = np.minimum(place - k + _MOVED, 1.0)
    mass = np.bincount(k - first, law.mass * (1 - up), size) + np.bincount(k - first + 1, law.mass * up, size)
    return Masses(mass * (1 + _MASS * law.reports), first, 0.0, 0.0, count)


def _cells(place: np.ndarray) -> tuple[np.ndarray, int, int]:
    """The grid points below, the first of them, and how many points there are."""
    k = np.floor(place).astype(np.int64)
    size = int(k[-1] - k[0]) + 2
    if size > _CELLS:
        raise ValueError(f"values need {size} points at this step; at most {_CELLS} are used")
    return k, int(k[0]), size


def _below(law: Law, step: float, count: int) -> Masses:
    """Return a distribution on the grid whose f(t) = E(L - t)_+ is a convex polygon nowhere above.

    At each grid point f is lowered by the largest excess of its chords in the two cells beside; see
    docs/proofs/shuffle.md.
    """
    place = (law.value - law.slack) / step - _MOVED
    k, first, size = _cells(place)
    mass = law.mass * (1 - _MASS * law.reports - _UNIT * law.points)
    f, at_outcomes = _stop_loss(place - first, mass, size)
    share = place - k
    over = np.zeros(size + 1)
    np.maximum.at(over, k - first + 1, (1 - share) * f[k - first] + share * f[k - first + 1] - at_outcomes)
    wanted = np.maximum(over[1:], over[:-1]) + _MOVED * over.max()
    capped = f <= wanted
    f = np.where(capped | np.append(capped[1:], True), 0.0, f - wanted)
    grid, total = np.arange(size, dtype=float), mass.sum()
    f[0] = min(f[0], (f + total * grid).min())
    kept, slopes = hull(grid, f)
    found = np.zeros(size)
    found[kept] = np.maximum(np.diff(np.concatenate([[-total], slopes, [0.0]])), 0.0)
    return Masses(found, first, 0.0, 0.0, count)


def hull(t: np.ndarray, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the points of the convex hull from below, the ends among them, and the slopes between them."""
    kept = np.arange(len(t))
    while True:
        slopes = np.diff(f[kept]) / np.diff(t[kept])
        bent = np.concatenate([[True], np.diff(slopes) > 0, [True]])
        if bent.all():
            return kept, slopes
        kept = kept[bent]


def _stop_loss(place: np.ndarray, mass: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """E(L - t)_+ in steps, at grid points 0, 1, .. and at the outcomes."""
    above, weighted = (np.append(np.cumsum(column[::-1])[::-1], 0.0) for column in (mass, mass * place))
    grid = np.arange(size, dtype=float)
    first = np.searchsorted(place, grid, side="left")
    return weighted[first] - grid * above[first], weighted[:-1] - place * above[:-1]


def _positive_part(total: ComposedBounds, side: int) -> float:
    """E[S_+] with all errors to one side."""
    c, zero = total.tilt, total.nudged(0.0, side)
    s, g = total.loss[total.loss > zero] - zero, total.g[total.loss > zero]
    weight = s * np.exp(-c * s)
    value = (weight * g).sum()
    error = total.error * math.sqrt((weight * weight).sum()) + total.outside / (math.e * c)
    value += side * (error + (total.rounding + c * abs(zero)) * value)
    if total.log_scale > _OVERFLOWS:  # Weights may be 0 by underflow.
        return math.inf if side > 0 else 0.0
    return math.exp(total.log_scale) * max(value, 0.0)


def _bound(one: Law, n: int, side: int) -> float:
    """E[(L_1 + ... + L_M)_+] from above (side 1) or from below (-1)."""
    if one.value.max() <= 0:  # Every loss is negative, or 0 but for rounding.
        return max(n * (float(one.value.max()) + one.slack), 0.0) if side > 0 else 0.0
    parts = _parts(one, n)
    if len(parts) == 1 and parts[0][1] == 1:
        law = parts[0][0]
        value = np.maximum(law.value + side * law.slack, 0.0) @ law.mass
        return float(value * (1 + side * _MASS * n))
    (c, deviation), place, best = _tilt(one, n), (_above if side > 0 else _below), math.inf if side > 0 else 0.0
    for points in _GRIDS:
        step = _SPAN * deviation / points
        try:
            found = _positive_part(
                compose([place(law, step, count) for law, count in parts], step, min(c, _STEEPEST / step)), side
            )
        except (ValueError, MemoryError):  # The grid is too large.
            break
        done = 0 < best < math.inf and _FINER * abs(found - best) <= _WIDTH / 4 * best
        best = min(best, found) if side > 0 else max(best, found)
        if done:
            break
    return best


def of_blanket(blanket: Blanket, n: int, epsilon: float) -> float:
    """Return delta from above, of one blanket."""
    bound = _bound(_of_blanket(blanket, math.exp(min(epsilon, _LARGEST))), n, 1)
    return min(bound / (blanket.gamma * n) * (1 + _MASS), 1.0)


def upper_delta(inputs: WorstInputs, n: int, epsilon: float) -> float:
    """Return an upper bound of delta at eps, for n reports of any people."""
    if epsilon >= float(inputs.level) * (1 + 1e-12):
        return 0.0
    E = math.exp(epsilon)
    if inputs.stop_loss is not None:
        law, gamma = _of_bound(inputs, inputs.stop_loss, E), float(inputs.pairs[0].least.sum())
        return min(_bound(law, n, 1) / (gamma * n) * (1 + _MASS), 1.0)
    return max(of_blanket(pair.upper, n, epsilon) for pair in inputs.pairs)


def lower_delta(blanket: Blanket, n: int, epsilon: float) -> float:
    """Return a lower bound of delta at eps, for n reports where all others have one input."""
    return _bound(_of_blanket(blanket, math.exp(epsilon)), n, -1) / n * (1 - _MASS) if epsilon <= _LARGEST else 0.0


def crossing(delta_at: Any, target: float, start: float, slope: float, side: int) -> float:
    """An eps next to which a bound of delta meets the target: at most it there (side 1), or at least it (-1).

    Args:
        delta_at: eps -> the bound.
        target: delta.
        start: about the eps.
        slope: d log delta/d eps there, about.
        side: which.
    """

    def missing(eps: float) -> float:
        value = delta_at(max(eps, 0.0))
        if (value <= target) if side > 0 else (value >= target or eps <= 0):
            return 0.0
        return abs(math.log(max(value, 1e-300) / target)) / -slope

    start, least = max(start, 0.0), _CLOSER * max(start, 1e-12)
    try:
        found = conservative_root(
            missing, start, direction=side, overshoot=1 + 1e-3, least=least, growth=2.0, steps=_MOST_STEPS
        )
        return max(found, 0.0)
    except NotPrivateError:
        return math.inf if side > 0 else 0.0
