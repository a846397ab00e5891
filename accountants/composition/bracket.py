"""Rigorous brackets of composed guarantees: the choice of grid and tilt, and one pair that dominates several."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import brentq

from accountants.composition import characteristic
from accountants.composition.loss_bounds import above, below, highest
from accountants.composition.loss_cells import Cells, best_offset, cells_on_grid, heavy_atoms
from accountants.composition.loss_distribution import Sum, compose
from accountants.composition.replacement import replaced_spectrum
from accountants.composition.terms import Term
from accountants.pairs.base import Pair
from accountants.pairs.hockey_stick import as_float64
from accountants.pairs.runs import Spectrum
from dpkernels import checks
from dpkernels.numerics import Real
from dpkernels.solve import first_feasible

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
    def _directions(self) -> list[list[tuple[list[Spectrum], int]]]:
        """The spectra of every term, for either direction of a neighbour and either pair of asymmetric noise first."""
        terms = self.guarantee.terms
        turns = range(max(len(term.pairs) for term in terms))
        return [
            [([_spectrum(pair, term, added) for pair in _turned(term.pairs, turn)], int(term.count)) for term in terms]
            for added in self.guarantee.ways
            for turn in turns
        ]

    def _cells(self, step: float, left_out: float) -> list[list[tuple[list[Cells], int]]]:
        """The cells of all spectra."""
        negligible = left_out / sum(term.count for term in self.guarantee.terms)

        def cut(parts: list[Spectrum]) -> list[Cells]:
            offset = best_offset(parts[0], step)
            return [cells_on_grid(part, step, offset=offset, negligible=negligible) for part in parts]

        return [[(cut(parts), count) for parts, count in direction] for direction in self._directions]

    def _each_way(self, estimate: Any, at: float) -> tuple[np.ndarray, np.ndarray]:
        """The tilt of every direction, and the estimate that comes with it."""
        with jax.enable_x64(True):
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
            for atoms in map(heavy_atoms, parts):
                if len(atoms) == 2 and n * atoms[1][0] > most:
                    most, gap = n * atoms[1][0], abs(atoms[0][1] - atoms[1][1])
        return gap


def _sum(terms: list[tuple[list[Cells], int]], tilt: float, side: int, step: float) -> Sum:
    """The composed masses: below, by the first pair of every term; above, by one that dominates all of its pairs."""
    if side < 0:
        return compose([below(some[0], step, count) for some, count in terms], step, tilt)
    bounds = [[above(one, step, count) for one in some] for some, count in terms]
    return compose([some[0] if len(some) == 1 else highest(some, step) for some in bounds], step, tilt)


@jax.jit
def _saddle(made: Any, epsilon: Real) -> tuple[Real, ...]:
    """(tilts, estimates of log delta)."""
    found = []
    for parts in made.directions():
        c = characteristic.saddle(parts, epsilon)
        found.append((c, characteristic.approximation(parts, c)[0]))
    return tuple(jnp.stack(column) for column in zip(*found, strict=True))


@jax.jit
def _guess(made: Any, delta: Real) -> tuple[Real, ...]:
    """(tilts, estimates of eps)."""
    found = [characteristic.guess_at(parts, delta)[::-1] for parts in made.directions()]
    return tuple(jnp.stack(column) for column in zip(*found, strict=True))


def _turned(pairs: tuple[Pair, ...], turn: int) -> tuple[Pair, ...]:
    first = turn % len(pairs)
    return pairs[first:] + pairs[:first]


def _spectrum(pair: Pair, term: Term, added: bool) -> Spectrum:
    if term.rate is not None and term.adjacency == "replace":
        whole = replaced_spectrum(pair, float(term.rate))
    elif term.rate is not None and float(term.rate) != 1.0:
        whole = pair.spectrum().sampled(float(term.rate))
    else:
        whole = pair.spectrum()
    return whole.mirrored() if added else whole


def _least(total: Sum, side: int, target: float, guess: float) -> float:
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
    root = brentq(lambda eps: np.log(max(total.delta(eps, side), 1e-320) / target), low, high, xtol=1e-10 * high)
    return first_feasible(
        (float(root * (1 + margin * side)) for margin in _OUTWARD),
        lambda eps: total.delta(eps, side) <= target if side > 0 else total.delta(eps, side) > target,
    )


def _above(total: Sum, side: int, target: float, high: float) -> float | None:
    """An eps below ``high`` at which the bound is above the target, the nearest of some; None if there is none."""
    tried = (high * (1 - 2.0**-k) for k in range(12, -1, -1))
    return next((eps for eps in tried if total.delta(eps, side) > target), None)
