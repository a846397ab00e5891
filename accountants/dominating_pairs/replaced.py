"""Reports on Poisson samples whose neighbours replace one record by another.

Given the rest of a sample, which shifts all three distributions alike, a report has the density f without the record,
and with one or the other record, each in the sample with probability r, the density

    p = (1 - r) f + r f(. - a),    q = (1 - r) f + r f(. - b),    |a|, |b| <= D.

For noise with f even and falling from 0, (a, b) = (D, -D) is the worst case at every eps >= 0. At rate 1 this is noise
shifted by 2 D. For bounded mechanisms without a sensitivity, with any three inputs and e^eps' = 1 + r (e^eps - 1),
delta'(eps') <= r delta(eps) (advanced joint convexity, Balle, Barthe & Gaboardi 2018). The samples of the dominating
pair attain this bound. Proofs: docs/proofs/worst_pairs.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from accountants.dominating_pairs import replaced_noise
from accountants.dominating_pairs.additive import AdditivePair
from accountants.dominating_pairs.base import Curve, DominatingPair, upper, with_added_record
from accountants.dominating_pairs.discrete import Atoms
from accountants.privacy_loss import PrivacyLossDistribution
from dpkernels import checks
from dpkernels.numerics import namespace
from dpkernels.pytrees import pytree

# The difference from their mirrors that symmetric pairs may have: for plain numbers, and in the precision of a trace.
_CONCRETE, _TRACED = 1e-9, 1e-4


def check_replaceable(pairs: tuple[Any, ...]) -> None:
    """Raise an error for pairs whose worst replaced record is not known.

    Raises:
        ValueError: noise, tables or densities that are not symmetric, or a bounded mechanism with a sensitivity.
        TypeError: a pair of an unknown type.
    """
    for pair in pairs:
        if getattr(pair, "near", False):
            raise ValueError(
                "adjacency: 'replace' may move a value by twice the sensitivity that this bounded mechanism was made "
                "for; take 'add_remove', or a mechanism for any two inputs"
            )
        if isinstance(pair, AdditivePair):
            replaced_noise.check_replaceable(pair)
        odd = checks.concrete(pair.symmetry_gap())
        if odd is not None and not odd <= _CONCRETE:
            raise ValueError(
                "adjacency: 'replace' is known for even noise and for tables whose second row is the first one "
                f"reversed; this {type(pair).__name__} is neither, or under tracing not known to be"
            )


def replaced_pair(pair: DominatingPair, rate: Any) -> DominatingPair:
    """Return the dominating pair of one release on a Poisson sample with one record replaced; symmetric.

    Args:
        pair: the dominating pair of the release on all the data, for one of two records.
        rate: the sampling rate r, in (0, 1].
    """
    if isinstance(pair, AdditivePair):
        return ReplacedNoise(pair, rate)
    if isinstance(pair, Atoms) and pair.moved is not None:
        return both_ways(pair, rate)
    return ReplacedBounded(pair, rate)


@pytree
@dataclass(frozen=True)
class ReplacedBounded(DominatingPair):
    """The pair of one release of a bounded mechanism; its profile is that of an added record.

    Attributes:
        pair: the dominating pair of the release on all the data, for one of two records.
        rate: the sampling rate r, in (0, 1].
    """

    pair: Any
    rate: Any

    @property
    def joint(self) -> bool:  # type: ignore[override]
        return self.pair.joint

    @property
    def rounds_up(self) -> bool:
        return True

    def hockey_stick(self) -> Curve:
        """Return the maximum of both directions: pairs are symmetric up to rounding."""
        pair, known = self.pair, _one_if_symmetric(self.pair)
        ways = (pair, *([pair.mirror()] if pair.may_be_asymmetric else []))
        sticks = [with_added_record(upper(one), self.rate) for one in ways]

        def at(eps: Any) -> Any:
            values = [stick(eps) for stick in sticks]
            return known * namespace(*values).stack(values).max(0)

        return at

    def largest_loss(self) -> Any:
        raise TypeError("pair: ReplacedBounded has no known largest loss")

    def privacy_loss(self) -> PrivacyLossDistribution:
        whole, known = self.pair.privacy_loss().subsampled(self.rate).symmetrized(), _one_if_symmetric(self.pair)
        return whole if namespace(known, self.rate) is np else whole.scaled(known)

    def mirror(self) -> ReplacedBounded:
        return self

    def symmetry_gap(self) -> Any:
        return 0.0

    def check(self) -> None:
        checks.within("rate", self.rate, 0.0, 1.0)
        self.pair.check()
        check_replaceable((self.pair,))


@pytree
@dataclass(frozen=True)
class ReplacedNoise(ReplacedBounded):
    """The pair of one release of even additive noise."""

    @property
    def rounds_up(self) -> bool:
        """Return whether the noise is Gaussian without edges."""
        return self.pair.rounds_up and not len(self.pair.noise.edges)

    def hockey_stick(self) -> Curve:
        return replaced_noise.replaced_hockey_stick(self.pair, self.rate)

    def privacy_loss(self) -> PrivacyLossDistribution:
        return replaced_noise.replaced_privacy_loss(self.pair, self.rate)


def _one_if_symmetric(pair: Any) -> Any:
    """Return 1 for a symmetric pair, and NaN for another one, which only tracing lets through."""
    odd = pair.symmetry_gap()
    return namespace(odd).where(odd <= _TRACED, 1.0, np.nan)


# Tables


def both_ways(pair: Atoms, rate: Any) -> Atoms:
    """Return the pair of shifts forwards and back: p starts with the weights, and q with zeros."""
    n = int(pair.moved or 0)
    xp = namespace(pair.p, rate)
    none = xp.zeros(n)
    middle = xp.concatenate([pair.q, none])
    forth, back = xp.concatenate([none, pair.q]), xp.concatenate([pair.p, none])
    return Atoms((1 - rate) * middle + rate * forth, (1 - rate) * middle + rate * back)


def replaced_atoms(pair: Atoms, rate: Any) -> Atoms:
    """Return the dominating pair of a table, as a table."""
    if pair.moved is not None:
        return both_ways(pair, rate)
    xp = namespace(pair.p, pair.q, rate)
    p, q = rate * pair.p + (1 - rate) * pair.q, pair.q
    # Rounding errors would be counted twice, and subtracted from the remaining mass.
    positive = p > q * (1 + 64 * xp.finfo(p.dtype).eps)
    p, q = xp.where(positive, p, 0.0), xp.where(positive, q, 0.0)
    rest = xp.maximum(1 - p.sum(keepdims=True) - q.sum(keepdims=True), 0.0)
    return Atoms(_one_if_symmetric(pair) * xp.concatenate([p, q, rest]), xp.concatenate([q, p, rest]))
