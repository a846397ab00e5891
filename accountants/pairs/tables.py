"""Two laws on finitely many reports: tables, the user's own among them, and randomised response."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from accountants.pairs.base import Curve, Pair
from accountants.pairs.losses import Losses
from accountants.pairs.runs import Spectrum
from dpkernels import checks
from dpkernels.numerics import Real, floating, namespace
from dpkernels.pytrees import pytree

_NORMALISED = 1e-9  # How far a sum of probabilities may be from 1.


@partial(pytree, static=("moved", "near"))
@dataclass(frozen=True)
class Atoms(Pair):
    """Two laws on the same finitely many reports.

    Attributes:
        p: probabilities under one input, a 1-D array.
        q: under the other.
        moved: for even noise on a lattice, by how many points q is shifted from p; None for other laws.
        near: for other laws, whether the two inputs are only within a sensitivity: inputs twice as far apart, as where
            a record is replaced, may then have other laws.
    """

    p: Any
    q: Any
    moved: int | None = None
    near: bool = False

    joint: ClassVar[bool] = True
    has_two_ways: ClassVar[bool] = True

    def hockey_stick(self) -> Curve:
        return lambda eps: jnp.maximum(self.p - jnp.exp(eps)[..., None] * self.q, 0.0).sum(-1)

    def largest_loss(self) -> Real:
        possible = self.p > 0
        both = possible & (self.q > 0)
        loss = jnp.log(jnp.where(both, self.p, 1.0)) - jnp.log(jnp.where(both, self.q, 1.0))
        return jnp.where(both, loss, jnp.where(possible, jnp.inf, -jnp.inf)).max()

    def losses(self, panels: int = 0) -> Losses:
        p, q = (floating(jnp.asarray(mass)) for mass in (self.p, self.q))
        both = (p > 0) & (q > 0)
        loss = jnp.log(jnp.where(both, p, 1.0)) - jnp.log(jnp.where(both, q, 1.0))
        return Losses(p, q, jnp.where(both, loss, jnp.where(p > 0, jnp.inf, -jnp.inf)), 0 * p)

    def spectrum(self) -> Spectrum:
        with jax.enable_x64(True):
            nodes = jax.tree.map(np.asarray, self.losses())
        return Spectrum(nodes.p, nodes.q, nodes.loss, ())

    def mirror(self) -> Atoms:
        return Atoms(self.q, self.p, near=self.near)

    def asymmetry(self) -> Any:
        if self.moved is not None:
            return 0.0
        gap = self.q - self.p[::-1]
        return namespace(gap).abs(gap).max()

    def check(self) -> None:
        for name, mass in (("p", self.p), ("q", self.q)):
            checks.within(name, mass, 0.0, 1.0)
            if np.shape(mass) != np.shape(self.p) or np.ndim(mass) != 1 or abs(np.sum(mass) - 1) > 1e-9:
                raise ValueError(f"{name}: is not of as many probabilities as the other, or they do not add up to 1")
        if self.moved is not None:
            _check_moved(self)


def _check_moved(pair: Atoms) -> None:
    n = checks.whole("moved", pair.moved, 1, len(pair.p) - 1)
    weights = pair.p[: len(pair.p) - n]
    falls = np.all(np.diff(weights[len(weights) // 2 :]) <= 0)
    if any(pair.p[-n:]) or any(pair.q[:n]) or np.any(pair.q[n:] != weights):
        raise ValueError(f"moved: {n}; q is not p so many points further on")
    if np.any(weights != weights[::-1]) or not falls:
        raise ValueError("p: of noise on a lattice is even and falls from the middle")


def weights(p: Any, q: Any) -> Atoms:
    """The pair of two laws on the same finitely many reports; a report may tell either way, and delta is the larger.

    Composed reports are all of the one law or all of the other: p in every pair against q in every pair. Where a
    neighbour may have p in one report and q in the next, as where values move in opposite directions, a pair that is
    not its own mirror is not accounted for.

    With ``subsample``, q is the law without the record; with replaced records, p and q are those of the two records
    that are told apart best.

    Args:
        p: probabilities under one input, a 1-D array; JAX arrays stay differentiable.
        q: under the other.

    Raises:
        ValueError: not two arrays of one length of numbers in [0, 1] that add up to 1.
        TypeError: not numbers.
    """
    p, q = (mass if isinstance(mass, jax.Array) else np.asarray(mass) for mass in (p, q))
    for name, mass in (("p", p), ("q", q)):
        checks.within(name, mass, 0.0, 1.0)
        known = checks.concrete(mass)
        if np.ndim(mass) != 1 or np.shape(mass) != np.shape(p) or not np.size(mass):
            raise ValueError(f"{name}: has shape {np.shape(mass)}; p and q are 1-D and of one length")
        if known is not None and not abs(known.sum() - 1) <= _tolerance(mass):
            raise ValueError(f"{name}: adds up to {known.sum():.12g}; probabilities add up to 1")
    return Atoms(p, q)


def _tolerance(mass: Any) -> float:
    return _NORMALISED if mass.dtype.kind != "f" else max(_NORMALISED, 64 * float(np.finfo(mass.dtype).eps))


def randomised_response(epsilon: Any, categories: int = 2) -> Atoms:
    """The worst pair of (generalised) randomised response: the truth with probability e^eps/(e^eps + k - 1).

    Any other category has 1/(e^eps + k - 1). Neighbouring: any two true categories x and x'; of the reports x, the
    k - 2 others together, and x', the probabilities are (e^eps, k - 2, 1) and (1, k - 2, e^eps) over their sum.

    Args:
        epsilon: eps > 0 of one report; may be traced.
        categories: k, at least 2.

    Raises:
        ValueError: epsilon not positive and finite, or fewer than two categories.
        TypeError: categories is not a whole number.

    Example:
        >>> from accountants import guarantee
        >>> round(guarantee(randomised_response(1.0, categories=4)).delta(0.0), 6)
        0.300489
    """
    checks.positive("epsilon", epsilon)
    k = checks.whole("categories", categories, 2, 1 << 53)
    xp = namespace(epsilon)
    low = xp.exp(-epsilon) / (1 + (k - 1) * xp.exp(-epsilon))
    high = 1 - (k - 1) * low
    p = xp.stack([high, low] if k == 2 else [high, (k - 2) * low, low])
    return Atoms(p, p[::-1])


def pure_points(epsilon: Any) -> Atoms:
    """The pair of probabilities 1/(1 + e^-eps) and 1/(1 + e^eps), which no eps-DP mechanism exceeds."""
    xp = namespace(epsilon)
    p = xp.stack([1 / (1 + xp.exp(-epsilon)), 1 / (1 + xp.exp(epsilon))])
    return Atoms(p, p[::-1])
