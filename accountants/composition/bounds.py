"""Rigorous brackets of composed guarantees, by privacy loss distributions on a grid.

Masses on the grid bound a pair's profile. Above: connect the dots (Doroshenko 2022): an outcome of loss in
[k h, (k+1) h] is split between both ends so that its masses under p and under q are kept. Below: outcomes are gathered
into groups, each of a loss of at least k h. Mass left out of a pair's cells counts as infinite loss in the upper bound,
and not at all in the lower. Proofs: docs/proofs/brackets.md.

Sums are taken by FFT of the masses tilted by e^(c l), c the saddle point for the question asked, so that what is
computed is of the order of the tail asked for, not of 1. The bracket contains bounds on what wraps around the grid
(Chernoff), on the floating-point error of the transforms (the norm-wise bound of Higham 2002, section 24.1), and on all
other roundings. Proofs: docs/proofs/sums.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from accountants.composition import self_composed
from accountants.composition.cells import (
    Cells,
    MonotoneLoss,
    best_offset,
    cells_on_grid,
    heaviest_atoms,
    split_monotone,
)
from accountants.composition.self_composed import SelfComposed
from accountants.dominating_pairs.base import DominatingPair, as_float64
from dpkernels import checks
from dpkernels.numerics import Real
from dpkernels.solve import first_feasible, root

_UNIT = 2.0**-53  # The rounding of a float.

# Of masses on the grid: the relative error allowed for a mass at least; the roundings of a loss and of the log of a
# density that are allowed for, relative to 1 and the largest loss.
_MASS, _ROUNDINGS = 1e-12, 64 * _UNIT
# By how much of a step the grids of the two bounds are moved up, and down, beside: for atoms that were put on the grid.
_UP, _DOWN = 1.001e-9, 1e-6
# Rounds in which the groups of the lower bound agree.
_ROUNDS = 20
# Of sums: the tilted mass that may wrap around the grid, far below the transforms' own error; the most points of a
# grid, 64 MiB an array; and an exponent next to float64's largest, 709.
_NEGLIGIBLE = 1e-22
_LARGEST = 1 << 23
_OVERFLOWS = 700.0
# The relative width aimed at, how often the grid is refined for it, and how much in all.
_WIDTH, _REFINEMENTS, _FINEST = 9e-5, 4, 1 / 32
# n h^2 tilt / 12, relative to the size asked for, of the first grid: about the width of either side.
_FIRST = 1.6e-5
# Tilts beyond are not needed: losses are nearly bounded there.
_STEEPEST = 300.0
# Steps beyond are not taken; eps beyond is not looked for.
_WIDEST, _FARTHEST = 1.0, 1e6
# Beyond the root's own tolerance; a bound that is lost in rounding errors may need more.
_OUTWARD = tuple(2e-10 * 4.0**k for k in range(12))
# The mass of outcomes that are left out, of all reports, relative to delta.
_LEFT_OUT = 1e-7

_BOTH = (-1, 1)  # Sides: below, above.
# Ends of a bracket at a step, with a share of delta left out, of the sides asked for.
OnGrid = Callable[[float, float, tuple[int, ...]], tuple[float, ...]]


# Masses on a grid


@dataclass(frozen=True)
class Masses:
    """Masses of p at the losses offset + (first + j) h and at infinite loss: the bound of one pair, composed n times.

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


def above(cells: Cells, step: float, count: int) -> Masses:
    """A pair whose profile is at least that of the cells."""
    p, error = cells.p.sum(1), _error(cells, step)
    up = np.minimum(cells.gain.sum(1) / -np.expm1(-step), p)
    mass = np.append(p - up, 0.0) + np.append(0.0, up)
    wider = 1 + max(_MASS, error)
    # Rounding of a loss moves mass one way or the other: all losses are raised by as much.
    offset = cells.offset + _UP * step + error
    return Masses(mass * wider, cells.first, offset, cells.infinite * wider + cells.beyond, count)


def _error(cells: Cells, step: float) -> float:
    """By how much losses are wrong at most, and masses relatively."""
    ends = cells.first * step, (cells.first + len(cells.p)) * step
    return _ROUNDINGS * (1 + abs(cells.offset) + max(map(abs, ends)))


def below(cells: Cells, step: float, count: int) -> Masses:
    """A pair whose profile is at most that of the cells: groups around every grid point, of its loss at least.

    Mass p of a half cell at k h that stays brings its gain p - e^(k h) q to the group at k; what joins the group at
    k + 1 costs that group e^((k + 1) h) q - p = (e^h - 1) p - e^h gain. Of every cell the upper half goes first.
    A cell moves up what the levels of both of its groups allow. Groups are nearly in balance after a few rounds: the
    mean of e^(-l), which is what a composition's lower tail depends on first, is then kept.
    """
    gain, cost = cells.gain, np.maximum(cells.p * np.expm1(step) - cells.gain * np.exp(step), 0.0)
    moved, most = np.zeros_like(cells.p), gain.sum(1)
    for _ in range(_ROUNDS):
        gains, costs = np.append(most - (moved * gain).sum(1), 0.0), np.append(0.0, (moved * cost).sum(1))
        level = (gains + costs) / 2
        level[0] = 0.0  # Nothing moves up there.
        moved = np.minimum(_shares(gain, most - level[:-1]), _shares(cost, level[1:]))
    error = _error(cells, step)
    narrower = max(1 - max(_MASS, error), 0.0)
    p = cells.p * narrower
    mass = np.append((p * (1 - moved)).sum(1), 0.0) + np.append(0.0, (p * moved).sum(1))
    offset = cells.offset - _DOWN * step - error
    return Masses(mass, cells.first, offset, cells.infinite * narrower, count)


def _shares(price: np.ndarray, budget: np.ndarray) -> np.ndarray:
    """Which shares of the upper and the lower half the budget pays for, the upper one first."""
    left = np.stack([budget - price[:, 1], budget], 1)
    return np.clip(left / np.maximum(price, 1e-300), 0.0, 1.0)


def dominating_masses(several: Sequence[Masses], step: float) -> Masses:
    """A pair whose profile is at least that of every one: on the highest of their grids the maximum, and chords.

    These are of x = e^eps. A profile's slope in x is minus Q(loss > eps), so masses under q are differences of slopes.
    """
    first = min(part.first for part in several)
    last = max(part.first + len(part.mass) for part in several)
    offset = max(part.offset for part in several)
    loss = offset + np.arange(first - 1, last + 1) * step
    profiles = [_profile(part, part.first - first + 1, loss) for part in several]
    delta, infinite = np.max(profiles, axis=0), max(part.infinite for part in several)
    delta[-1] = infinite
    x = np.exp(loss)
    slopes = np.maximum(-np.diff(delta) / np.diff(x), 0.0)
    q = np.maximum(slopes[:-1] - slopes[1:], 0.0)
    mass = np.append(q * x[1:-1], slopes[-1] * x[-1])
    # Every sum of so many positive terms is off by a unit a term.
    mass = mass * (1 + _MASS + 8 * _UNIT * len(loss)) + _UNIT * delta[0] * 8
    return Masses(mass, first, offset, infinite, several[0].count)


def _profile(part: Masses, start: int, loss: np.ndarray) -> np.ndarray:
    """delta at losses of the grid, of masses from number ``start`` on; of positive terms alone.

    delta_k = delta_(k+1) + (1 - e^-h) sum over j > k of p_j e^(l_(k+1) - l_j).
    """
    p = np.zeros(len(loss))
    p[start : start + len(part.mass)] = part.mass
    steps = (np.cumsum((p * np.exp(-loss))[::-1])[::-1] * np.exp(loss))[1:] * -np.expm1(-np.diff(loss))
    return part.infinite + np.append(np.cumsum(steps[::-1])[::-1], 0.0)


# Sums


@dataclass(frozen=True)
class ComposedBounds:
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
        if np.isnan(finite):
            raise ValueError("epsilon, delta: there is no bracket; the losses, or their masses, are beyond the floats")
        return float(min(self.infinite + finite, 1.0))


def compose(parts: Sequence[Masses], step: float, tilt: float) -> ComposedBounds:
    """The sum of independent losses.

    Raises:
        ValueError: the grid would need more than 2^23 points; says so.
    """
    from scipy import fft  # Imported on use: it takes 0.1 s.

    tilted = [_tilted(part, step, tilt) for part in parts]
    tails = _Tails.of(tilted)
    half = tails.half_width()
    size = fft.next_fast_len(2 * half + 1, real=True)
    if size > _LARGEST:
        raise ValueError(f"the loss distribution needs {size} points at this step; at most {_LARGEST} are used")
    g, error = _transformed(tilted, size)
    lowest = int(np.floor(tails.mean)) - size // 2
    offset = sum(part.count * part.offset for part in parts)
    return ComposedBounds(
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
    from scipy import fft

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


# Brackets


@dataclass
class Bracket:
    """Brackets of one guarantee.

    Attributes:
        guarantee: what is composed; with concrete parameters.
    """

    guarantee: Any

    def delta(self, epsilon: float) -> tuple[float, float]:
        """(lower, upper) of delta at eps."""
        return self._refined(*self._delta(epsilon))

    def upper_delta(self, epsilon: float) -> float:
        """A bound of delta at eps from above, that of the first grid of ``delta``."""
        at, step = self._delta(epsilon)
        return at(step, _LEFT_OUT, (1,))[0]

    def _delta(self, epsilon: float) -> tuple[OnGrid, float]:
        """delta at eps on a grid, and the first step."""
        checks.within("epsilon", epsilon, 0.0, np.inf)
        tilts, logs = self._each_way(_saddle, epsilon)
        likely = float(np.exp(min(logs.max(), 0.0)))

        def at(step: float, share: float, sides: tuple[int, ...]) -> tuple[float, ...]:
            some = list(zip(self._cells(step, share * likely), tilts, strict=True))
            return tuple(max(_sum(*one, side, step).delta(epsilon, side) for one in some) for side in sides)

        return at, self._first_step(epsilon, tilts[logs.argmax()])

    def epsilon(self, delta: float) -> tuple[float, float]:
        """(lower, upper) of eps at delta."""
        return self._refined(*self._epsilon(delta))

    def upper_epsilon(self, delta: float) -> float:
        """A bound of eps at delta from above, in less than half the time: that of the first grid of ``epsilon``."""
        at, step = self._epsilon(delta)
        return at(step, _LEFT_OUT, (1,))[0]

    def _epsilon(self, delta: float) -> tuple[OnGrid, float]:
        """eps at delta on a grid, and the first step."""
        checks.within("delta", delta, 0.0, 1.0, open_ends=True)
        tilts, guesses = self._each_way(_guess, delta)

        def at(step: float, share: float, sides: tuple[int, ...]) -> tuple[float, ...]:
            some = list(zip(self._cells(step, share * delta), tilts, guesses, strict=True))
            return tuple(
                max(_least(_sum(one, tilt, side, step), side, delta, guess) for one, tilt, guess in some)
                for side in sides
            )

        largest = guesses.argmax()
        return at, self._first_step(guesses[largest], tilts[largest])

    def _refined(self, at: OnGrid, step: float) -> tuple[float, float]:
        """The bracket on finer and finer grids, with less and less left out, until it is narrow."""
        share, last, finest = _LEFT_OUT, np.inf, _FINEST * step
        low, high = at(step, share, _BOTH)
        for _ in range(_REFINEMENTS):
            width = high - low
            # Narrow (or both ends infinite), or what is left hardly depends on the grid.
            if not width > _WIDTH * high or width > 0.9 * last or (low == 0.0 and last < np.inf):
                break
            finer = float(np.clip(np.sqrt(0.5 * _WIDTH * high / width), 0.125, 0.5))
            step = self._on_atoms(max(step * finer, finest))
            share, last = share * 1e-4, width
            try:
                found = at(step, share, _BOTH)
            except ValueError:  # The grid has become too large.
                break
            low, high = max(low, found[0]), min(high, found[1])
        return low, high

    @cached_property
    def _directions(self) -> list[list[tuple[list[MonotoneLoss], int]]]:
        """The spectra of every term, for either direction of a neighbour and either pair of asymmetric noise first."""
        terms = self.guarantee.terms
        orders = range(max(len(term.pairs) for term in terms))
        return [
            [([_losses(term, pair, mirror) for pair in _rotated(term.pairs, k)], int(term.count)) for term in terms]
            for mirror in self.guarantee.neighbour_directions
            for k in orders
        ]

    def _cells(self, step: float, left_out: float) -> list[list[tuple[list[Cells], int]]]:
        """The cells of all spectra."""
        negligible = left_out / sum(term.count for term in self.guarantee.terms)

        def cut(parts: list[MonotoneLoss]) -> list[Cells]:
            offset = best_offset(parts[0], step)
            return [cells_on_grid(part, step, offset=offset, negligible=negligible) for part in parts]

        return [[(cut(parts), count) for parts, count in direction] for direction in self._directions]

    def _each_way(self, estimate: Any, at: float) -> tuple[np.ndarray, np.ndarray]:
        """The tilt of every direction, and the estimate that comes with it."""
        with np.errstate(all="ignore"):
            c, values = (np.asarray(part) for part in estimate(self._first, np.float64(at)))
        if not (np.isfinite(c).all() and np.isfinite(values).all()):
            raise ValueError(f"epsilon, delta: at {at:g} no tilt was found for a bracket; parameters are out of reach")
        turns = len(self._directions) // len(c)
        return np.repeat(np.minimum(c, _STEEPEST), turns), np.repeat(values, turns)

    @cached_property
    def _first(self) -> Any:
        """The first pair of every term; for the tilt only, which changes the width and never the validity."""
        terms = tuple(dataclasses.replace(term, pairs=term.pairs[:1]) for term in self.guarantee.terms)
        return as_float64(dataclasses.replace(self.guarantee, terms=terms))

    def _first_step(self, size: float, tilt: float) -> float:
        count = sum(term.count for term in self.guarantee.terms)
        return self._on_atoms(min(float(np.sqrt(12 * _FIRST * max(size, 1e-2) / (tilt * count))), _WIDEST))

    def _on_atoms(self, step: float) -> float:
        """A step not above this one, such that the two heaviest atoms can be on the grid, and one half-way."""
        return self._gap / (2 * float(np.ceil(self._gap / (2 * step)))) if self._gap else step

    @cached_property
    def _gap(self) -> float:
        """The distance of the two heaviest atoms of a report, of that where the lighter has the most mass; else 0."""
        most, gap = 0.0, 0.0
        for parts, n in self._directions[0]:
            for _, distance, second in map(heaviest_atoms, parts):
                if n * second > most:
                    most, gap = n * second, distance
        return gap


def _sum(terms: list[tuple[list[Cells], int]], tilt: float, side: int, step: float) -> ComposedBounds:
    """The composed masses: below, by the first pair of every term; above, by one that dominates all of its pairs."""
    if side < 0:
        return compose([below(some[0], step, count) for some, count in terms], step, tilt)
    bounds = [[above(one, step, count) for one in some] for some, count in terms]
    return compose([some[0] if len(some) == 1 else dominating_masses(some, step) for some in bounds], step, tilt)


def _saddle(made: Any, epsilon: Real) -> tuple[Any, ...]:
    """Return (tilts, estimates of log delta) for one eps, of every direction of neighbours."""
    found = []
    for parts in made.repeated_losses():
        c = self_composed.saddle_point(parts, epsilon)
        found.append((c, self_composed.approximate(parts, c)[0]))
    return tuple(zip(*found, strict=True))


def _guess(made: Any, delta: Real) -> tuple[Any, ...]:
    """Return (tilts, estimates of eps) for one delta, of every direction of neighbours."""
    found = []
    for parts in made.repeated_losses():
        target = np.maximum(delta - self_composed.infinity_mass(parts), delta / 2)
        c, eps = self_composed.saddle_point_of_delta(parts, np.log(target))
        found.append((c, np.maximum(eps, 0.0)))
    return tuple(zip(*found, strict=True))


def _rotated(pairs: tuple[DominatingPair, ...], number: int) -> tuple[DominatingPair, ...]:
    first = number % len(pairs)
    return pairs[first:] + pairs[:first]


def _losses(term: SelfComposed, pair: DominatingPair, mirror: bool) -> MonotoneLoss:
    with np.errstate(all="ignore"):
        whole = as_float64(term).privacy_loss(as_float64(pair))
    return split_monotone(whole.mirrored() if mirror else whole)


def _least(total: ComposedBounds, side: int, target: float, guess: float) -> float:
    """The eps at which a bound of delta meets the target: from above for an upper bound, from below for a lower one.

    Far from the eps that the tilt is for, a lower bound is lost in rounding errors: it is followed from there.
    """
    low, high = None, max(guess, 1e-3)
    while total.delta(high, side) > target:
        low, high = high, 1.25 * high
        if high > _FARTHEST:
            return float("inf") if side > 0 or total.infinite > target else low
    low = _above(total, side, target, high) if low is None else low
    if low is None:
        return 0.0
    found = root(lambda eps, _: np.log(max(total.delta(eps, side), 1e-320) / target), (), high, low, rtol=1e-10)
    return first_feasible(
        (float(found * (1 + margin * side)) for margin in _OUTWARD),
        lambda eps: total.delta(eps, side) <= target if side > 0 else total.delta(eps, side) > target,
    )


def _above(total: ComposedBounds, side: int, target: float, high: float) -> float | None:
    """An eps below ``high`` at which the bound is above the target, the nearest of some; None if there is none."""
    tried = (high * (1 - 2.0**-k) for k in range(12, -1, -1))
    return next((eps for eps in tried if total.delta(eps, side) > target), None)
