"""Rigorous brackets of composed guarantees: which grid and which tilt, and one pair above for several."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from accountants import characteristic
from accountants.hockey_stick import as_float64
from accountants.loss_distribution import Masses, Sum, above, below, compose, highest
from accountants.runs import Spectrum, nodes_on_grid, spectrum
from dpkernels import checks

# The relative width aimed at, the finest grid tried in steps of the first one, and the points it may take.
_WIDTH, _HALVINGS = 9e-5, 4
# Tilts beyond are not needed: losses are nearly bounded there.
_STEEPEST = 300.0


@dataclass
class Bracket:
    """Brackets of one guarantee.

    Attributes:
        guarantee: what is composed; with concrete parameters.
    """

    guarantee: Any

    def delta(self, epsilon: float) -> tuple[float, float]:
        """(lower, upper) of delta at eps."""
        checks.within("epsilon", epsilon, 0.0, np.inf)
        tilt = self._tilt(epsilon)

        def at(step: float) -> tuple[float, float]:
            pairs = [self._sums(direction, step, tilt) for direction in self._directions]
            return max(low.delta(epsilon, -1) for low, _ in pairs), max(high.delta(epsilon, 1) for _, high in pairs)

        return self._refined(at, epsilon, tilt)

    def epsilon(self, delta: float) -> tuple[float, float]:
        """(lower, upper) of eps at delta."""
        checks.within("delta", delta, 0.0, 1.0, open_ends=True)
        guess, tilt = self._guess(delta)

        def at(step: float) -> tuple[float, float]:
            ends = [
                [_least(total, side, delta, guess) for total, side in zip(pair, (-1, 1), strict=True)]
                for pair in (self._sums(direction, step, tilt) for direction in self._directions)
            ]
            return max(low for low, _ in ends), max(high for _, high in ends)

        return self._refined(at, guess, tilt)

    def _refined(self, at: Any, size: float, tilt: float) -> tuple[float, float]:
        """The bracket on finer and finer grids, until it is narrow."""
        step = self._step(size, tilt)
        best = at(step)
        for _ in range(_HALVINGS):
            if best[1] - best[0] <= _WIDTH * best[1]:
                break
            step /= 2
            try:
                found = at(step)
            except ValueError:  # The grid has become too large.
                break
            best = max(best[0], found[0]), min(best[1], found[1])
        return best

    @cached_property
    def _directions(self) -> list[list[tuple[list[Spectrum], int]]]:
        """The spectra of every term, for either direction of a neighbour."""
        return [
            [
                ([_spectrum(pair, term.rate, added) for pair in term.pairs], int(term.count))
                for term in self.guarantee.terms
            ]
            for added in self.guarantee.ways
        ]

    def _sums(self, direction: list[tuple[list[Spectrum], int]], step: float, tilt: float) -> tuple[Sum, Sum]:
        """Below, by the first pair of every term; above, by a pair whose profile is the maximum of all."""
        nodes = [([nodes_on_grid(part, step) for part in parts], count) for parts, count in direction]
        low = [below(some[0], step, count) for some, count in nodes]
        high = [_highest([above(one, step, count) for one in some], step) for some, count in nodes]
        return compose(low, step, tilt), compose(high, step, tilt)

    def _tilt(self, epsilon: float) -> float:
        with jax.enable_x64(True):
            c = float(_saddle(self._first, np.float64(epsilon)))
        return min(c, _STEEPEST)

    def _guess(self, delta: float) -> tuple[float, float]:
        with jax.enable_x64(True):
            eps, c = (float(part) for part in _guess(self._first, np.float64(delta)))
        return eps, min(c, _STEEPEST)

    @cached_property
    def _first(self) -> Any:
        """The first pair of every term; for the tilt only, which changes the width and never the validity."""
        terms = tuple(dataclasses.replace(term, pairs=term.pairs[:1]) for term in self.guarantee.terms)
        return as_float64(dataclasses.replace(self.guarantee, terms=terms))

    def _step(self, size: float, tilt: float) -> float:
        """h with n h^2 tilt / 12 about 1e-5 of the size, so that the largest atom is on the grid."""
        count = sum(term.count for term in self.guarantee.terms)
        step = float(np.sqrt(12e-5 * max(size, 1e-2) / (tilt * count)))
        most, atom = 0.0, 0.0
        for parts, n in self._directions[0]:
            for part in parts:
                finite = np.isfinite(part.loss) & (part.loss != 0)
                if finite.any() and n * part.p[finite].max() > most:
                    most = n * part.p[finite].max()
                    atom = abs(part.loss[finite][part.p[finite].argmax()])
        return float(atom / np.ceil(atom / step)) if atom > 0 else step


@jax.jit
def _saddle(made: Any, epsilon: Any) -> Any:
    return characteristic.saddle(made.directions()[0], epsilon)


@jax.jit
def _guess(made: Any, delta: Any) -> Any:
    return characteristic.guess_at(made.directions()[0], delta)


def _spectrum(pair: Any, rate: Any, added: bool) -> Spectrum:
    whole = spectrum(pair)
    if rate is not None and float(rate) != 1.0:
        whole = whole.sampled(float(rate))
    return whole.mirrored() if added else whole


def _highest(masses: list[Masses], step: float) -> Masses:
    return masses[0] if len(masses) == 1 else highest(masses, step)


def _least(total: Sum, side: int, target: float, guess: float) -> float:
    """The eps at which a bound of delta meets the target: from above for an upper bound, from below for a lower one.

    Far from the eps that the tilt is for, a lower bound is lost in rounding errors: it is followed from there.
    """
    low, high = None, max(guess, 1e-3)
    while total.delta(high, side) > target:
        low, high = high, 1.25 * high
        if high > 1e6:
            return float("inf")
    low = _above(total, side, target, high) if low is None else low
    if low is None:
        return 0.0
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if total.delta(middle, side) <= target else (middle, high)
    return high if side > 0 else low


def _above(total: Sum, side: int, target: float, high: float) -> float | None:
    """An eps below ``high`` at which the bound is above the target, the nearest of some; None if there is none."""
    tried = (high * (1 - 2.0**-k) for k in range(12, -1, -1))
    return next((eps for eps in tried if total.delta(eps, side) > target), None)
