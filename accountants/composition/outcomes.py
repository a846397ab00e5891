"""Compositions of few outcomes, summed one by one: exact but for rounding.

Releases of which each has finitely many outcomes have finitely many together. A sum of such losses has atoms off every
grid, and delta has a kink at each, which a transform on a grid rounds off; where there are few, all are enumerated.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from accountants.closed_forms.pure import log_ways
from accountants.composition.replacement import replaced_atoms
from accountants.composition.terms import Term
from accountants.pairs.tables import Atoms
from dpkernels import checks
from dpkernels.numerics import Real, map_over, namespace, without_derivative
from dpkernels.solve import bisect

# The most outcomes that are enumerated: arrays of 2 MB.
MOST = 1 << 18
_BISECTIONS = 70


class Outcomes(NamedTuple):
    """Probabilities of every outcome under both laws, of one direction of a neighbour."""

    p: Any
    q: Any

    def delta(self, epsilon: Any) -> Any:
        """Sum of max(0, p - e^eps q), one eps."""
        xp = namespace(self.p, self.q, epsilon)
        return xp.maximum(self.p - xp.exp(epsilon) * self.q, 0.0).sum()

    def epsilon(self, delta: Any) -> Any:
        """The least eps >= 0 at one delta: by bisection, with the derivative of a last Newton step."""
        xp = namespace(self.p, self.q, delta)
        p, q, goal = without_derivative((*self, delta))
        still = Outcomes(p, q)
        both = (p > 0) & (q > 0)
        losses = xp.log(xp.where(both, p, 1.0)) - xp.log(xp.where(both, q, 1.0))
        top = xp.maximum(xp.where(both, losses, 0.0).max(), 0.0)
        low, high = bisect(lambda eps: still.delta(eps) > goal, 0.0 * top, top, _BISECTIONS)
        slope = -xp.exp(high) * xp.where(p > xp.exp(high) * q, q, 0.0).sum()
        steep = slope < 0
        eps = high - xp.where(steep, (self.delta(high) - delta) / xp.where(steep, slope, -1.0), 0.0)
        # At least low. The derivative is that of the step; a maximum of equal values would halve it.
        eps = eps + without_derivative(xp.maximum(low - eps, 0.0))
        eps = xp.where(still.delta(0.0 * top) <= goal, 0.0, eps)
        return xp.where(xp.where(q > 0, 0.0, p).sum() >= goal, np.inf, eps)


def enumerate_outcomes(terms: tuple[Term, ...], ways: tuple[bool, ...]) -> list[Outcomes] | None:
    """The outcomes of the terms together, for each direction; None where they are too many, or not finitely many.

    Args:
        terms: what is composed.
        ways: one direction for each, with a neighbour that has one record more if it is true.
    """
    pairs = [_atoms(term) for term in terms]
    counts: list[Any] = [_count(term) for term in terms]
    size = 1
    for pair, count in zip(pairs, counts, strict=True):
        if pair is None or count is None:
            return None
        size *= math.comb(count + len(pair.p) - 1, count)
        if size > MOST:
            return None
    found = []
    for added in ways:
        p, q = np.ones(1), np.ones(1)
        for pair, count in zip(pairs, counts, strict=True):
            xp = namespace(pair.p, pair.q, p, q)
            here, there = (pair.q, pair.p) if added else (pair.p, pair.q)
            p = xp.multiply.outer(p, _repeated(here, count)).ravel()
            q = xp.multiply.outer(q, _repeated(there, count)).ravel()
        found.append(Outcomes(p, q))
    return found


def _atoms(term: Term) -> Any:
    """The pair of one release, if it is one table."""
    (pair, *others) = term.pairs
    if others or not isinstance(pair, Atoms):
        return None
    if term.rate is None:
        return pair
    if term.adjacency == "replace":
        return replaced_atoms(pair, term.rate)
    return Atoms(term.rate * pair.p + (1 - term.rate) * pair.q, pair.q)


def _count(term: Term) -> int | None:
    count = checks.concrete(term.count)
    return None if count is None or count.ndim or count != np.floor(count) else int(count)


def _repeated(mass: Any, count: int) -> Any:
    """Probabilities of how often each outcome comes in so many releases."""
    if count == 1:
        return mass
    xp = namespace(mass)
    times, ways = _counts(count, len(mass))
    possible = mass > 0
    logs = xp.where(possible, times * xp.log(xp.where(possible, mass, 1.0)), xp.where(times > 0, -np.inf, 0.0))
    return xp.exp(xp.asarray(ways, mass.dtype) + logs.sum(-1))


@lru_cache(maxsize=16)
def _counts(count: int, outcomes: int) -> tuple[np.ndarray, np.ndarray]:
    """How often each outcome may come, and the logarithm of in how many orders."""
    if outcomes == 1:
        return np.full((1, 1), count), np.zeros(1)
    first = [(j, *_counts(count - j, outcomes - 1)) for j in range(count + 1)]
    times = np.concatenate([np.insert(rest, 0, j, axis=1) for j, rest, _ in first])
    ways = np.concatenate([log_ways(count)[j] + orders for j, _, orders in first])
    return times, ways


def evaluate(what: str, some: list[Outcomes], at: Real) -> Any:
    """The largest delta at eps, or eps at delta, over the directions; of any shape."""
    xp = namespace(at, *(leaf for one in some for leaf in one))
    values = xp.asarray(at) if xp is jnp else np.asarray(at, np.float64)

    def largest(value: Any) -> Any:
        return xp.stack([getattr(one, what)(value) for one in some]).max(0)

    if xp is jnp:
        values = values.astype(jnp.result_type(values, *(one.p for one in some), *(one.q for one in some)))
    return map_over(largest, values.ravel()).reshape(values.shape)[()]
