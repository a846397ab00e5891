"""Reports on Poisson samples whose neighbours replace one record by another.

Given the rest of a sample, which shifts all three alike, the laws of a report are f without the record, and P and Q of
density

    p = (1 - r) f + r f(. - a),    q = (1 - r) f + r f(. - b),    |a|, |b| <= D

with the one record or the other, each in the sample with probability r.

Noise with f even and falling from 0: (a, b) = (D, -D) is the worst at every eps >= 0. At rate 1 it is noise moved by
2 D. Bounded mechanisms without a sensitivity, any three inputs: with e^eps' = 1 + r (e^eps - 1),
delta'(eps') <= r delta(eps) (advanced joint convexity, Balle, Barthe & Gaboardi 2018), which the worst pair's samples
attain. Proofs: docs/proofs/dominating_pairs.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import jax
import numpy as np

from accountants.dominating_pairs import replaced_noise
from accountants.dominating_pairs.additive import (
    REACH,
    AdditivePair,
    knots_of,
    steepness_of_quadratic,
    step_copies,
    unseen,
    width_between,
)
from accountants.dominating_pairs.base import Curve, DominatingPair, upper, with_added_record
from accountants.dominating_pairs.discrete import Atoms
from accountants.privacy_loss import PrivacyLossDistribution, SmoothPieces, join, log_ratio
from dpkernels import checks
from dpkernels.distributions.base import Distribution
from dpkernels.numerics import Real, floating, namespace, without_derivative
from dpkernels.pytrees import pytree

# Panels of a piece: of exponentials, and of a Gaussian, where the loss bends within sigma^2/D.
_PANELS, _GAUSSIAN_PANELS = 8, 96
# What symmetric pairs may differ by from their mirrors: given, and in the precision of a trace.
_CONCRETE, _TRACED = 1e-9, 1e-4


def check_replaceable(pairs: tuple[Any, ...]) -> None:
    """Refuse pairs whose worst replaced record is not known.

    Raises:
        ValueError: asymmetric noise, tables or densities, or bounded mechanisms with a sensitivity; says why.
        TypeError: a pair of an unknown type.
    """
    for pair in pairs:
        if getattr(pair, "near", False):
            raise ValueError(
                "adjacency: 'replace' may move a value by twice the sensitivity that this bounded mechanism was made "
                "for; take 'add_remove', or a mechanism for any two inputs"
            )
        odd = checks.concrete(pair.asymmetry())
        if odd is not None and not odd <= _CONCRETE:
            raise ValueError(
                "adjacency: 'replace' is known for even noise and for tables whose second row is the first one "
                f"reversed; this {type(pair).__name__} is neither, or under tracing not known to be"
            )


@pytree
@dataclass(frozen=True)
class Replaced(DominatingPair):
    """The worst pair of one release on a Poisson sample with one record replaced; its own mirror.

    Attributes:
        pair: a worst pair of the release on all the data, that of one of two records.
        rate: r, in (0, 1].
    """

    pair: DominatingPair
    rate: Any

    @property
    def joint(self) -> bool:  # type: ignore[override]
        return self.pair.joint

    @property
    def rounds_up(self) -> bool:
        """Whether it is Gaussian noise alone, or not noise; see ``replaced_stick``."""
        if isinstance(self.pair, AdditivePair):
            return self.pair.rounds_up and not len(self.pair.noise.edges)
        return not _is_lattice(self.pair)

    def hockey_stick(self) -> Curve:
        return replaced_stick(self.pair, self.rate)

    def largest_loss(self) -> Any:
        raise TypeError("pair: Replaced has no known largest loss")

    def privacy_loss(self) -> PrivacyLossDistribution:
        return replaced_privacy_loss(self.pair, self.rate)

    def mirror(self) -> Replaced:
        return self

    def asymmetry(self) -> Any:
        return 0.0

    def check(self) -> None:
        checks.within("rate", self.rate, 0.0, 1.0)
        self.pair.check()
        check_replaceable((self.pair,))


def _is_lattice(pair: Any) -> bool:
    return isinstance(pair, Atoms) and pair.moved is not None


@singledispatch
def replaced_stick(pair: Any, rate: Any) -> Curve:
    """The hockey stick of the worst pair, exactly, from a pair of inputs without samples.

    Bounded mechanisms have that of an added record; a pair is its own mirror up to rounding, and so the larger of both.
    """
    sticks = [with_added_record(upper(one), rate) for one in (pair, *([pair.mirror()] if pair.has_two_ways else []))]
    odd = pair.asymmetry()
    known = namespace(odd).where(odd <= _TRACED, 1.0, np.nan)

    def at(eps: Any) -> Any:
        values = [stick(eps) for stick in sticks]
        return known * namespace(*values).stack(values).max(0)

    return at


@replaced_stick.register
def _(pair: AdditivePair, rate: Any) -> Curve:
    D = namespace(pair.shift).abs(pair.shift)
    if pair.noise.law.degree:
        return replaced_noise.of_noise(pair.noise, D, rate)
    nodes = _of_steps(pair, _Laws.of(pair, rate))
    return Atoms(nodes.p, nodes.q).hockey_stick()


@replaced_stick.register
def _(pair: Atoms, rate: Any) -> Curve:
    if pair.moved is None:
        return replaced_stick.dispatch(object)(pair, rate)
    return _three(pair, rate).hockey_stick()


@singledispatch
def replaced_privacy_loss(pair: Any, rate: Any) -> PrivacyLossDistribution:
    """Return the distribution of the privacy loss of the worst pair, from a pair of inputs without samples."""
    return _of_bounded(pair, rate)


def _of_bounded(pair: Any, rate: Any) -> PrivacyLossDistribution:
    whole = pair.privacy_loss().subsampled(rate).symmetrized()
    odd = pair.asymmetry()
    known = namespace(odd, rate).where(odd <= _TRACED, 1.0, np.nan)
    return whole if namespace(known) is np else whole.scaled(known)


# Laws on a lattice


@replaced_privacy_loss.register
def _(pair: Atoms, rate: Any) -> PrivacyLossDistribution:
    return _of_bounded(pair, rate) if pair.moved is None else _three(pair, rate).privacy_loss()


def _three(pair: Atoms, rate: Any) -> Atoms:
    """p moved forwards and back: p has the weights in front and q, which is as much further on, behind."""
    n = int(pair.moved or 0)
    xp = namespace(pair.p, rate)
    none = xp.zeros(n)
    middle = xp.concatenate([pair.q, none])
    forth, back = xp.concatenate([none, pair.q]), xp.concatenate([pair.p, none])
    return Atoms((1 - rate) * middle + rate * forth, (1 - rate) * middle + rate * back)


def replaced_atoms(pair: Atoms, rate: Any) -> Atoms:
    """The worst pair of a table, as a table."""
    if pair.moved is not None:
        return _three(pair, rate)
    xp = namespace(pair.p, pair.q, rate)
    p, q = rate * pair.p + (1 - rate) * pair.q, pair.q
    # What is rounding would count twice, and be taken off from the rest.
    positive = p > q * (1 + 64 * xp.finfo(p.dtype).eps)
    p, q = xp.where(positive, p, 0.0), xp.where(positive, q, 0.0)
    rest = xp.maximum(1 - p.sum(keepdims=True) - q.sum(keepdims=True), 0.0)
    known = xp.where(pair.asymmetry() <= _TRACED, 1.0, xp.nan)
    return Atoms(known * xp.concatenate([p, q, rest]), xp.concatenate([q, p, rest]))


# Noise with a density


@dataclass(frozen=True)
class _Laws:
    """P and Q of noise f at rate r, for records that move it by D either way."""

    noise: Distribution
    D: Any
    rate: Any

    @classmethod
    def of(cls, pair: AdditivePair, rate: Any) -> _Laws:
        return cls(pair.noise, namespace(pair.shift).abs(pair.shift), rate)

    def log_p(self, y: Real) -> Any:
        return self._mixed(y, self.D)

    def log_q(self, y: Real) -> Any:
        return self._mixed(y, -self.D)

    def _mixed(self, y: Real, shift: Any) -> Any:
        """log of (1 - r) f + r f(. - shift)."""
        logs = self.noise.log_prob(y), self.noise.log_prob(y - shift)
        xp = namespace(*logs, self.rate)
        top = without_derivative(xp.maximum(*logs))
        top = xp.where(top > -np.inf, top, 0.0)
        total = (1 - self.rate) * xp.exp(logs[0] - top) + self.rate * xp.exp(logs[1] - top)
        return xp.where(total > 0, top + xp.log(xp.where(total > 0, total, 1.0)), -np.inf)

    def loss(self, y: Real) -> Any:
        """log p/q, 0 where both are 0."""
        return log_ratio(self.log_p(y), self.log_q(y))

    def steepness(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """That of f at all three places, between knots; see ``SmoothPieces``."""
        law, middle = self.noise.law, (left + right) / 2
        scores = [np.abs(law.score(middle - place)) for place in (0.0, self.D, -self.D)]
        curvature = float(-law.score(np.float64(1.0))) if law.degree == 2 else 0.0
        return steepness_of_quadratic(np.max(scores, axis=0), curvature, right - left)

    def beyond(self, y: Real) -> tuple[Any, Any]:
        """Masses of P and Q beyond y + D."""
        middle, near, far = (self.noise.sf(y + by * self.D) for by in (1, 0, 2))
        return (1 - self.rate) * middle + self.rate * near, (1 - self.rate) * middle + self.rate * far


@replaced_privacy_loss.register
def _(pair: AdditivePair, rate: Any) -> PrivacyLossDistribution:
    laws = _Laws.of(pair, rate)
    if pair.noise.law.degree == 0:
        return _of_steps(pair, laws)
    if pair.noise.law.degree == 2:
        ends = _within_reach(pair, laws)
        few = max(12, _GAUSSIAN_PANELS // (len(ends) - 1))
        concrete = namespace(ends, rate) is np
        return PrivacyLossDistribution.of_pieces(_between(ends, laws, few), unseen(pair.noise) if concrete else 0.0)
    # Beyond all knots the loss is constant.
    outer = _outer(laws, knots_of(pair).max())
    return join([PrivacyLossDistribution.of_pieces(_between(_ends(pair), laws, _PANELS)), outer])


def _ends(pair: AdditivePair) -> Any:
    """All knots, increasing."""
    xp = namespace(*jax.tree.leaves(pair))
    knots, D = knots_of(pair), xp.abs(pair.shift)
    return xp.sort(xp.concatenate([knots - D, knots, knots + D]))


def _of_steps(pair: AdditivePair, laws: _Laws) -> PrivacyLossDistribution:
    ends = _ends(pair)
    at = (ends[:-1] + ends[1:]) / 2
    mass = width_between(ends[:-1], ends[1:], laws.D) * step_copies(pair, at)
    loss, xp = laws.loss(at), namespace(mass)
    return PrivacyLossDistribution(mass * xp.exp(laws.log_p(at)), mass * xp.exp(laws.log_q(at)), loss, 0 * mass)


def _outer(laws: _Laws, last: Real) -> PrivacyLossDistribution:
    p, q = (mass[None] for mass in laws.beyond(last))
    upper = PrivacyLossDistribution.of_masses(p, q)
    return join([upper, upper.mirrored()])


def _within_reach(pair: AdditivePair, laws: _Laws) -> Any:
    law: Any = pair.noise.law
    xp = namespace(*jax.tree.leaves(pair))
    limit = xp.abs(pair.shift) + REACH * law.sigma + floating(xp.zeros(1))
    if len(law.knots) + len(pair.noise.edges) == 0:
        return xp.concatenate([-limit, limit])
    return xp.concatenate([-limit, xp.clip(_ends(pair), -limit, limit), limit])


def _between(ends: Any, laws: _Laws, few: int) -> SmoothPieces:
    """Return the pieces between knots."""
    left, right = ends[:-1], ends[1:]
    right = left + width_between(left, right, laws.D)

    return SmoothPieces(
        left,
        right,
        lambda x, _: laws.log_p(x),
        lambda x, _: laws.log_q(x),
        lambda x, _: laws.loss(x),
        lambda start, end, _: laws.steepness(start, end),
        None,
        few,
    )
