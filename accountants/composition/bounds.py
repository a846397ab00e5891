"""Rigorous brackets of composed guarantees, by privacy loss distributions on a grid.

For an upper bound of a pair's profile, connect the dots (Doroshenko 2022): split an outcome of loss in [k h, (k+1) h]
between both ends so that its masses under p and under q are kept. For a lower bound, gather outcomes into groups, each
of a loss of at least k h. Mass that is left out of a pair's cells counts as infinite loss in the upper bound, and as no
mass in the lower bound. Proofs: docs/proofs/brackets.md.

Sums are computed by FFT of the masses tilted by e^(c l), where c is the saddle point for the eps or delta in question.
The bracket contains bounds on what wraps around the grid (Chernoff), on the floating-point error of the transforms (the
norm-wise bound of Higham 2002, section 24.1), and on all other roundings. Proofs: docs/proofs/sums.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np

from accountants.composition import self_composed
from accountants.composition.cells import (
    Cells,
    MonotoneLoss,
    best_offset,
    cells_on_grid,
    split_monotone,
    two_heaviest_atoms,
)
from accountants.composition.grid import masses_of_profile, profile_on_grid
from accountants.composition.self_composed import RepeatedLosses, SelfComposed, integer_power
from accountants.dominating_pairs.base import as_float64
from dpkernels import checks
from dpkernels.solve import first_feasible, root

_UNIT = 2.0**-53  # The rounding of a float.

# For masses on the grid: the least relative error assumed for a mass, and the rounding errors assumed for a loss and
# for the log of a density, relative to 1 and the largest loss.
_MASS, _ROUNDINGS = 1e-12, 64 * _UNIT
# How far the grids of the upper and the lower bound are also moved, in steps, for atoms that were put on the grid.
_UP, _DOWN = 1.001e-9, 1e-6
_ROUNDS = 20  # Rounds in which the groups of the lower bound are balanced.
# For sums: the tilted mass that may wrap around the grid, far below the error of the transforms; the most points of a
# grid, 64 MiB an array; an exponent close to float64's largest, 709; and one from which on its negative gives 0.
_NEGLIGIBLE = 1e-22
_LARGEST = 1 << 23
_OVERFLOWS, _UNDERFLOWS = 700.0, 746.0
# The relative width aimed at, how often the grid is refined for it, and by how much in all.
_WIDTH, _REFINEMENTS, _FINEST = 9e-5, 4, 1 / 32
# n h^2 tilt / 12 of the first grid, relative to the value in question: approximately the width of either side.
_FIRST = 1.6e-5
_STEEPEST = 300.0  # Larger tilts are not needed, because losses are nearly bounded there.
_WIDEST, _FARTHEST = 1.0, 1e6  # The largest step, and the largest eps that is looked for.
# Margins, beyond the root's own tolerance; a bound that is lost in rounding errors may need larger ones.
_OUTWARD = tuple(2e-10 * 4.0**k for k in range(12))
_FURTHER = 2.0**-12, 2.0**-8, 2.0**-4  # How far from an estimate an eps is looked for, in turn.
_LEFT_OUT = 1e-7  # The mass of outcomes that are left out, of all reports, relative to delta.

# A function from a step, the share of delta left out, and sides (-1: lower bound, 1: upper bound) to bounds.
OnGrid = Callable[[float, float, tuple[int, ...]], tuple[float, ...]]


# Masses on a grid


@dataclass(frozen=True)
class Masses:
    """A bound of one pair: masses of p at the losses offset + (first + j) h and at infinite loss, composed n times."""

    mass: np.ndarray  # The masses under p, not negative; with ``infinite`` they need not sum to 1.
    first: int  # k of mass[0].
    offset: float  # a shift of the whole grid.
    infinite: float  # The mass of infinite loss.
    count: int  # n.


def above(cells: Cells, step: float, count: int) -> Masses:
    """Return a pair whose profile is at least that of the cells."""
    p, error = cells.p.sum(1), _error(cells, step)
    up = np.minimum(cells.gain.sum(1) / -np.expm1(-step), p)
    mass = np.append(p - up, 0.0) + np.append(0.0, up)
    wider = 1 + max(_MASS, error)
    # Rounding of a loss may move mass either way: all losses are raised by its bound.
    offset = cells.offset + _UP * step + error
    return Masses(mass * wider, cells.first, offset, cells.infinite * wider + cells.beyond, count)


def _error(cells: Cells, step: float) -> float:
    """Return a bound on the error of losses, which also bounds the relative error of masses."""
    ends = cells.first * step, (cells.first + len(cells.p)) * step
    return _ROUNDINGS * (1 + abs(cells.offset) + max(map(abs, ends)))


def below(cells: Cells, step: float, count: int) -> Masses:
    """Return a pair whose profile is at most that of the cells: groups around grid points, with at least their loss.

    Mass p of a half cell at k h that stays adds its gain p - e^(k h) q to the group at k. Mass that joins the group at
    k + 1 costs that group e^((k + 1) h) q - p = (e^h - 1) p - e^h gain. A cell, its upper half first, moves up what the
    levels of both of its groups allow. After a few rounds the groups are nearly in balance. The mean of e^(-l), the
    first quantity on which a composition's lower tail depends, is then kept.
    """
    gain, cost = cells.gain, np.maximum(cells.p * np.expm1(step) - cells.gain * np.exp(step), 0.0)
    moved, most = np.zeros_like(cells.p), gain.sum(1)
    for _ in range(_ROUNDS):
        gains, costs = np.append(most - (moved * gain).sum(1), 0.0), np.append(0.0, (moved * cost).sum(1))
        level = (gains + costs) / 2
        level[0] = 0.0  # No mass moves up to the first group.
        moved = np.minimum(_shares(gain, most - level[:-1]), _shares(cost, level[1:]))
    error = _error(cells, step)
    narrower = max(1 - max(_MASS, error), 0.0)
    p = cells.p * narrower
    mass = np.append((p * (1 - moved)).sum(1), 0.0) + np.append(0.0, (p * moved).sum(1))
    offset = cells.offset - _DOWN * step - error
    return Masses(mass, cells.first, offset, cells.infinite * narrower, count)


def _shares(price: np.ndarray, budget: np.ndarray) -> np.ndarray:
    """Return the shares of the upper and the lower half that the budget allows, the upper half first."""
    left = np.stack([budget - price[:, 1], budget], 1)
    return np.clip(left / np.maximum(price, 1e-300), 0.0, 1.0)


def dominating_masses(several: Sequence[Masses], step: float) -> Masses:
    """Return a pair whose profile is at least each of several: their maximum on one grid, between chords in e^eps."""
    first = min(part.first for part in several)
    size = max(part.first + len(part.mass) for part in several) - first + 1
    profiles = []
    for part in several:
        start = part.first - first + 1
        p = np.pad(part.mass, (start, size - start - len(part.mass)))
        profiles.append(part.infinite + profile_on_grid(p[::-1], step))
    delta, infinite = np.max(profiles, axis=0), max(part.infinite for part in several)
    delta[0] = infinite
    mass = np.maximum(masses_of_profile(delta, step)[-2::-1], 0.0)
    # A sum of positive terms has an error of at most one unit a term.
    mass = mass * (1 + _MASS + 8 * _UNIT * size) + _UNIT * delta[-1] * 8
    return Masses(mass, first, max(part.offset for part in several), infinite, several[0].count)


# Sums


@dataclass(frozen=True)
class ComposedBounds:
    """The composed masses, tilted: p(S) = e^(log_scale - c S) g(S)."""

    loss: np.ndarray  # S, increasing.
    g: np.ndarray  # The tilted masses.
    tilt: float  # c.
    log_scale: float  # The log of the sum of e^(c S) p(S).
    infinite: float  # 1 - prod (1 - m)^n.
    error: float  # A bound on the 2-norm of the error of g.
    outside: float  # A bound on the tilted mass beyond the grid.
    rounding: float = 1e-13  # A bound on the relative error of the tilted masses and of e^log_scale.

    def nudged(self, epsilon: float, side: int) -> float:
        """Return eps moved by more than the error of losses on the grid: up (side -1) makes all gains smaller."""
        return epsilon - side * 4 * _UNIT * (abs(epsilon) + float(np.abs(self.loss[[0, -1]]).max()))

    def delta(self, epsilon: float, side: int) -> float:
        """Return an upper (side 1) or lower (side -1) bound of the profile at eps, with all errors on that side."""
        c, epsilon = self.tilt, self.nudged(epsilon, side)
        start, stop = np.searchsorted(self.loss, [epsilon, epsilon + _UNDERFLOWS / max(c, 1e-300)], side="right")
        s = self.loss[start:stop] - epsilon
        weight = np.exp(-c * s) * -np.expm1(-s)  # 0 in floats from there on.
        peak = (c / (1 + c)) ** c / (1 + c)
        value = (weight * self.g[start:stop]).sum()
        rounding = self.rounding + 4 * _UNIT * c * abs(epsilon)
        value += side * (self.error * _norm(weight) + self.outside * peak + rounding * value)
        exponent = self.log_scale - c * epsilon
        if exponent > _OVERFLOWS and side > 0:  # The tilt is for a distant eps, and weights may underflow to 0.
            return 1.0
        finite = np.exp(min(exponent, _OVERFLOWS)) * max(value, 0.0)
        if np.isnan(finite):
            raise ValueError("epsilon, delta: there is no bracket; the losses, or their masses, are beyond the floats")
        return float(min(self.infinite + finite, 1.0))


def compose(parts: Sequence[Masses], step: float, tilt: float) -> ComposedBounds:
    """Return the distribution of the sum of independent losses, on a grid of at most 2^23 points."""
    from scipy import fft  # Imported on use: it takes 0.1 s.

    tilted = [_tilted(part, step, tilt) for part in parts]
    tails = _Tails.of(tilted)
    size = fft.next_fast_len(2 * tails.half_width() + 1, real=True)
    if size > _LARGEST:
        raise ValueError(f"the loss distribution needs {size} points at this step; at most {_LARGEST} are used")
    g, error = _transformed(tilted, size)
    lowest = int(np.floor(tails.mean)) - size // 2
    offset = sum(part.count * part.offset for part in parts)
    with np.errstate(divide="ignore"):
        log_finite = sum(part.count * np.log1p(-min(part.infinite, 1.0)) for part in parts)
    return ComposedBounds(
        (lowest + np.arange(size)) * step + offset,
        np.maximum(np.roll(g, -(lowest % size)), 0.0),
        tilt,
        sum(part.count * part.log_scale for part in tilted) + tilt * offset,
        float(-np.expm1(log_finite)),
        error,
        tails.outside(size // 2 - 1),
        1e-13 + sum(part.count * part.rounding for part in tilted) + 4 * _UNIT * abs(tilt * offset),
    )


@dataclass(frozen=True)
class _Tilted:
    """Masses times e^(c l), scaled to sum to 1: g at the grid numbers k; ``log_scale`` is the log of their sum."""

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


class _Tails(NamedTuple):
    """Chernoff bounds of the tilted sum."""

    mean: float  # The mean of the sum, in steps.
    most: int  # A bound on the distance of the sum from its mean.
    slopes: np.ndarray  # The s > 0 that are tried.
    sides: list[np.ndarray]  # Log E e^(s (S - mean)) and log E e^(-s (S - mean)).

    @classmethod
    def of(cls, parts: Sequence[_Tilted]) -> _Tails:
        mean = variance = 0.0
        for part in parts:
            center = (part.g * part.k).sum()
            mean += part.count * center
            variance += part.count * (part.g * (part.k - center) ** 2).sum()
        slopes = np.geomspace(1e-2, 1e3, 26) / np.sqrt(max(variance, 1e-12))
        sides = [
            sum(part.count * _log_moments(part, sign * slopes) for part in parts) - sign * slopes * mean
            for sign in (1, -1)
        ]
        return cls(mean, sum(part.count * len(part.g) for part in parts), slopes, sides)

    def outside(self, half: int) -> float:
        if half >= self.most:
            return 0.0
        return float(sum(np.exp(min(0.0, (side - self.slopes * half).min())) for side in self.sides))

    def half_width(self) -> int:
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
    """Return the cyclic convolution powers, and a bound on the 2-norm of their error.

    A transform of length N has an error of at most eta = 8 u log2 N of its norm, and powers one of 8 u a factor.
    """
    from scipy import fft

    eta = 8 * _UNIT * np.log2(max(size, 2))
    whole, error = np.ones(size // 2 + 1, complex), 0.0
    for part in parts:
        folded = np.bincount(part.k.astype(np.int64) % size, part.g, size)
        whole = whole * integer_power(fft.rfft(folded), part.count)
        error += part.count * (eta * _norm(folded) + 8 * _UNIT)
    g = fft.irfft(whole, size)
    return g, error + eta * _norm(g)


def _norm(values: np.ndarray) -> float:
    """Return the 2-norm; not by BLAS, whose threads may wait for each other."""
    return float(np.sqrt((values * values).sum()))


# Brackets


@dataclass
class Bracket:
    """Brackets of one guarantee with concrete parameters."""

    guarantee: Any

    def delta(self, epsilon: float) -> tuple[float, float]:
        return self._refined(*self._delta(epsilon))

    def upper_delta(self, epsilon: float) -> float:
        """Return an upper bound of delta at eps, from the first grid of ``delta``, which takes less time."""
        at, step = self._delta(epsilon)
        return at(step, _LEFT_OUT, (1,))[0]

    def epsilon(self, delta: float) -> tuple[float, float]:
        return self._refined(*self._epsilon(delta))

    def upper_epsilon(self, delta: float) -> float:
        """Return an upper bound of eps at delta, from the first grid of ``epsilon``, which takes less time."""
        at, step = self._epsilon(delta)
        return at(step, _LEFT_OUT, (1,))[0]

    def _delta(self, epsilon: float) -> tuple[OnGrid, float]:
        checks.within("epsilon", epsilon, 0.0, np.inf)
        tilts, logs = self._each_way(_saddle, epsilon)
        step = self._first_step(epsilon, tilts[logs.argmax()])
        likely = float(np.exp(min(logs.max(), 0.0)))
        return partial(self._bounds, tilts, logs, likely, lambda total, side, _: total.delta(epsilon, side)), step

    def _epsilon(self, delta: float) -> tuple[OnGrid, float]:
        checks.within("delta", delta, 0.0, 1.0, open_ends=True)
        tilts, guesses = self._each_way(_guess, delta)
        step = self._first_step(guesses.max(), tilts[guesses.argmax()])
        least = lambda total, side, guess: _least(total, side, delta, guess)  # noqa: E731
        return partial(self._bounds, tilts, guesses, delta, least), step

    def _bounds(
        self, tilts: Any, guesses: Any, likely: float, bound: Any, step: float, share: float, sides: tuple[int, ...]
    ) -> tuple[float, ...]:
        """Return the bound of each side on a grid of this step, leaving out outcomes of a share of a likely delta."""
        every = list(zip(self._cells(step, share * likely), tilts, guesses, strict=True))
        return tuple(
            max(bound(_sum(terms, tilt, side, step), side, guess) for terms, tilt, guess in every) for side in sides
        )

    def _refined(self, at: OnGrid, step: float) -> tuple[float, float]:
        """Return the bracket, refining the grid and leaving out less mass until the bracket is narrow."""
        share, last, finest = _LEFT_OUT, np.inf, _FINEST * step
        low, high = at(step, share, (-1, 1))
        for _ in range(_REFINEMENTS):
            width = high - low
            # Stop if it is narrow, if both ends are infinite, or if the width hardly depends on the grid.
            if not width > _WIDTH * high or width > 0.9 * last or (low == 0.0 and last < np.inf):
                break
            finer = float(np.clip(np.sqrt(0.5 * _WIDTH * high / width), 0.125, 0.5))
            step = self._on_atoms(max(step * finer, finest))
            share, last = share * 1e-4, width
            try:
                found = at(step, share, (-1, 1))
            except ValueError:  # The grid has become too large.
                break
            low, high = max(low, found[0]), min(high, found[1])
        return low, high

    @cached_property
    def _directions(self) -> list[list[tuple[list[MonotoneLoss], int]]]:
        """Return the losses of every term, for each neighbour direction and each order of the pairs of a term."""
        terms = self.guarantee.terms
        orders = range(max(len(term.pairs) for term in terms))

        def losses(term: SelfComposed, mirror: bool, first: int) -> list[MonotoneLoss]:
            with np.errstate(all="ignore"):
                every = [as_float64(term).privacy_loss(as_float64(pair)) for pair in term.pairs]
            split = [split_monotone(one.mirrored() if mirror else one) for one in every]
            return split[first % len(split) :] + split[: first % len(split)]

        return [
            [(losses(term, mirror, k), int(term.count)) for term in terms]
            for mirror in self.guarantee.neighbour_directions
            for k in orders
        ]

    def _cells(self, step: float, left_out: float) -> list[list[tuple[list[Cells], int]]]:
        negligible = left_out / sum(term.count for term in self.guarantee.terms)

        def cut(parts: list[MonotoneLoss]) -> list[Cells]:
            offset = best_offset(parts[0], step)
            return [cells_on_grid(part, step, offset=offset, negligible=negligible) for part in parts]

        return [[(cut(parts), count) for parts, count in direction] for direction in self._directions]

    def _each_way(self, estimate: Any, at: float) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(all="ignore"):
            found = np.array([estimate(parts, np.float64(at)) for parts in self._first])
        if not np.isfinite(found).all():
            raise ValueError(f"epsilon, delta: at {at:g} no tilt was found for a bracket; parameters are out of reach")
        c, values = np.repeat(found.T, len(self._directions) // len(found), 1)
        return np.minimum(c, _STEEPEST), values

    @cached_property
    def _first(self) -> tuple[RepeatedLosses, ...]:
        """Return the losses of the first pair of every term, for the tilt: it affects the width, not the validity."""
        terms = tuple(dataclasses.replace(term, pairs=term.pairs[:1]) for term in self.guarantee.terms)
        return as_float64(dataclasses.replace(self.guarantee, terms=terms)).repeated_losses()

    def _first_step(self, size: float, tilt: float) -> float:
        count = sum(term.count for term in self.guarantee.terms)
        return self._on_atoms(min(float(np.sqrt(12 * _FIRST * max(size, 1e-2) / (tilt * count))), _WIDEST))

    def _on_atoms(self, step: float) -> float:
        """Return a step, at most this one, for which the two heaviest atoms and their midpoint can be on the grid."""
        return self._gap / (2 * float(np.ceil(self._gap / (2 * step)))) if self._gap else step

    @cached_property
    def _gap(self) -> float:
        every = [(count, *two_heaviest_atoms(part)) for parts, count in self._directions[0] for part in parts]
        return max(every, key=lambda one: one[0] * one[3])[2]


def _sum(terms: list[tuple[list[Cells], int]], tilt: float, side: int, step: float) -> ComposedBounds:
    """Return the composed masses: below, from the first pair of each term; above, from one that dominates all pairs."""
    if side < 0:
        return compose([below(some[0], step, count) for some, count in terms], step, tilt)
    bounds = [[above(one, step, count) for one in some] for some, count in terms]
    return compose([some[0] if len(some) == 1 else dominating_masses(some, step) for some in bounds], step, tilt)


def _saddle(parts: RepeatedLosses, epsilon: np.float64) -> tuple[Any, Any]:
    c = self_composed.saddle_point(parts, epsilon)
    return c, self_composed.approximate(parts, c)[0]


def _guess(parts: RepeatedLosses, delta: np.float64) -> tuple[Any, Any]:
    target = np.maximum(delta - self_composed.infinity_mass(parts), delta / 2)
    c, eps = self_composed.saddle_point_of_delta(parts, np.log(target))
    return c, np.maximum(eps, 0.0)


def _least(total: ComposedBounds, side: int, target: float, guess: float) -> float:
    """Return an eps, searched from the tilt's, at which a bound of delta meets the target, rounded to its side."""
    low, high = None, max(guess, 1e-3)
    further = chain(_FURTHER, repeat(0.25))
    while total.delta(high, side) > target:
        low, high = high, (1 + next(further)) * high
        if high > _FARTHEST:
            return float("inf") if side > 0 or total.infinite > target else low
    if low is None:
        tried = (high * (1 - share) for share in (*_FURTHER, 0.5, 1.0))
        low = next((eps for eps in tried if total.delta(eps, side) > target), None)
    if low is None:
        return 0.0
    found = root(lambda eps, _: np.log(max(total.delta(eps, side), 1e-320) / target), (), high, low, rtol=1e-10)
    return first_feasible(
        (float(found * (1 + margin * side)) for margin in _OUTWARD),
        lambda eps: total.delta(eps, side) <= target if side > 0 else total.delta(eps, side) > target,
    )
