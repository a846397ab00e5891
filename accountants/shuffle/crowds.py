"""Crowds that hide a report: laws of outcomes, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np

from dpkernels.numerics import namespace
from dpkernels.pytrees import pytree

# Outcomes whose laws agree to so many digits are one.
_DIGITS = 13
# A first value of many outcomes is computed of so many at most.
_MOST = 64

# (e^eps, t) -> a bound of E(L - t)_+ over all pairs.
StopLoss = Callable[[float, np.ndarray], np.ndarray]


@pytree
@dataclass(frozen=True)
class Crowd:
    """Reports that hide one: each of n is with probability gamma a draw of omega, else it hides nothing.

    Attributes:
        mass: omega of every outcome, or group of outcomes that tell the same.
        p: R_x/omega, of the report that is hidden.
        q: R_x'/omega.
        gamma: the probability.
    """

    mass: Any
    p: Any
    q: Any
    gamma: Any

    def losses(self, epsilon: Any) -> Any:
        """L = p - e^eps q."""
        return self.p - namespace(self.p, epsilon).exp(epsilon) * self.q

    @property
    def merged(self) -> Crowd:
        """Outcomes that tell the same as one; NumPy. Under JAX all as they are."""
        if namespace(self.mass, self.p, self.q, self.gamma) is not np:
            return self
        some = np.asarray(self.mass) > 0
        mass, p, q = (np.asarray(column, float)[some] for column in (self.mass, self.p, self.q))
        scale = 10.0 ** (_DIGITS - 1 - np.floor(np.log10(np.stack([p, q]))))
        keys = np.round(np.stack([p, q]) * scale) / scale
        _, first, group = np.unique(keys, axis=1, return_index=True, return_inverse=True)
        group = np.argsort(np.argsort(first))[group.ravel()]  # In the outcomes' order.
        whole = np.bincount(group, mass)
        return Crowd(
            whole, np.bincount(group, mass * p) / whole, np.bincount(group, mass * q) / whole, float(self.gamma)
        )

    @property
    def thinned(self) -> Crowd:
        """At most ``_MOST`` outcomes, whose sums of losses have the same mean, variance and skewness, next to exactly.

        Neighbours, so many at a time, become two: at their mean plus and minus their deviation along q - p.
        """
        if len(self.mass) <= _MOST:
            return self
        mass, p, q = self.mass, self.p, self.q
        share = np.cumsum(mass * np.hypot(p, q))
        block = np.minimum((share / share[-1] * (_MOST // 2)).astype(int), _MOST // 2 - 1)
        block = np.unique(block, return_inverse=True)[1]
        whole = np.bincount(block, mass)
        means = [np.bincount(block, mass * law) / whole for law in (p, q)]
        off = [law - mean[block] for law, mean in zip((p, q), means, strict=True)]
        along = np.sign(np.bincount(block, mass * off[0] * off[1]))
        spread = [np.sqrt(np.bincount(block, mass * gap**2) / whole) for gap in off]
        p, q = (
            np.append(mean - side * one, mean + side * one)
            for mean, one, side in zip(means, spread, (1.0, np.where(along < 0, -1.0, 1.0)), strict=True)
        )
        return Crowd(np.append(whole, whole) / 2, p, q, self.gamma)


@pytree
@dataclass(frozen=True)
class Reports:
    """Probabilities of outcomes.

    Attributes:
        least: the smallest over all inputs.
        first: under the input x.
        second: under x'.
        others: (k, outcomes), under inputs that all others may hold.
    """

    least: Any
    first: Any
    second: Any
    others: Any

    @property
    def upper(self) -> Crowd:
        """The blanket hides the report: what no neighbour's n reports exceed."""
        gamma = self.least.sum()
        return self._in_crowd(self.least / gamma, gamma)

    @property
    def lower(self) -> tuple[Crowd, ...]:
        """Others that all hold one input: what some neighbours' reports reveal."""
        return tuple(self._in_crowd(row, 1.0) for row in self.others)

    def _in_crowd(self, mass: Any, gamma: Any) -> Crowd:
        xp = namespace(mass)
        some = mass > 0  # Panels of no width have no mass, under JAX.
        p, q = (xp.where(some, law / xp.where(some, mass, 1.0), 1.0) for law in (self.first, self.second))
        return Crowd(mass, p, q, gamma)


@dataclass(frozen=True)
class Blanket:
    """The pairs of inputs of a mechanism that may be the worst.

    Attributes:
        pairs: those that values are computed of; the largest is meant.
        level: the pure level eps0, from which on delta is 0.
        stop_loss: a bound over all pairs, for a rigorous bracket; None where the one of ``pairs`` is proven worst.
        exact: whether probabilities are those of the mechanism to rounding, and no nodes of a quadrature.
    """

    pairs: tuple[Reports, ...]
    level: Any
    stop_loss: StopLoss | None = None
    exact: bool = True


def of_level(level: Any, gamma: Any) -> Reports:
    """Reports that are no less telling than any mechanism's of this pure level and gamma (docs/proofs/shuffle.md).

    Both R_x/omega and R_x'/omega are high, gamma e^eps0 and not gamma, with probability w = (1/gamma - 1)/(e^eps0 - 1).
    """
    high = np.exp(level)
    w = min((1 / gamma - 1) / (high - 1), 1.0)
    both = max(2 * w - 1, 0.0)
    mass = np.array([w - both, w - both, both, 1 - 2 * w + both])
    first, second = (np.where(at, high, 1.0) for at in ([1, 0, 1, 0], [0, 1, 1, 0]))
    return Reports(gamma * mass, gamma * mass * first, gamma * mass * second, np.zeros((0, 4)))


def different_pairs(rows: np.ndarray) -> list[tuple[int, int]]:
    """Pairs of rows of which none is another with its reports renamed: they are all the pairs there are."""
    least = rows.min(0)
    found: dict[bytes, tuple[int, int]] = {}
    for x, y in permutations(range(len(rows)), 2):
        columns = np.stack([least, rows[x], rows[y]])
        found.setdefault(columns[:, np.lexsort(columns)].tobytes(), (x, y))
    return list(found.values())
