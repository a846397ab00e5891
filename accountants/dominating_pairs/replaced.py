"""Reports on Poisson samples, if neighbouring datasets replace one record by another.

Fix the other records of the sample, which shift all distributions alike. Let f be the density of a report without the
record. If the record, with value a or b, is in the sample with probability r, the report has the density

    p = (1 - r) f + r f(. - a),    q = (1 - r) f + r f(. - b),    |a|, |b| <= D.

If f is even and decreases away from 0, (a, b) = (D, -D) is the worst case at every eps >= 0. At rate 1 this is noise
shifted by 2 D. For bounded mechanisms without a sensitivity, with any three inputs and e^eps' = 1 + r (e^eps - 1),
delta'(eps') <= r delta(eps) (advanced joint convexity, Balle, Barthe & Gaboardi 2018). The samples of the dominating
pair attain this bound. Proofs: docs/proofs/worst_pairs.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from accountants.dominating_pairs.additive import AdditivePair
from accountants.dominating_pairs.base import Curve, DominatingPair, upper
from accountants.dominating_pairs.discrete import Atoms
from accountants.dominating_pairs.noise.formulas import NoiseFormulas
from accountants.dominating_pairs.sampled import sampled_profile
from accountants.privacy_loss import PrivacyLossDistribution, sampled_loss
from dpkernels import checks
from dpkernels.numerics import Real, elementwise_maximum, namespace
from dpkernels.proven import proven
from dpkernels.pytrees import pytree

# The difference from its mirror up to which a pair counts as symmetric.
SYMMETRIC = 1e-9  # Of plain numbers.
_TRACED_SYMMETRIC = 1e-4  # In the precision of a trace, which may be float32.


def check_replaceable(pairs: tuple[DominatingPair, ...]) -> None:
    """Raise a ValueError for pairs whose worst replaced record is not known.

    These are noise, tables or densities that are not symmetric, noise whose density is neither log-concave nor of a
    known form, and bounded mechanisms with a sensitivity.
    """
    for pair in pairs:
        if pair.within_sensitivity:
            raise ValueError(
                "adjacency: 'replace' may move a value by twice the sensitivity that this bounded mechanism was made "
                "for; take 'add_remove', or a mechanism for any two inputs"
            )
        if isinstance(pair, AdditivePair) and type(pair.formulas) is NoiseFormulas:
            noise = pair.noise
            if len(noise.edges) or noise.unweighted.turning_points(1.0):
                raise ValueError(
                    f"adjacency: 'replace' is not known for {type(noise).__name__}, whose density is not log-concave; "
                    "take 'add_remove'"
                )
        gap = checks.concrete(pair.symmetry_gap())
        if gap is not None and not gap <= SYMMETRIC:
            raise ValueError(
                "adjacency: 'replace' is known for even noise and for tables whose second row is the first one "
                f"reversed; this {type(pair).__name__} is neither, or under tracing not known to be"
            )


@proven("worst_pairs#8-poisson-samples-one-record-replaced")
def replaced_pair(pair: DominatingPair, rate: Real) -> DominatingPair:
    """Return the symmetric pair of one release on a Poisson sample with one record replaced, from that on all data."""
    if isinstance(pair, AdditivePair):
        return ReplacedNoise(pair, rate)
    if isinstance(pair, Atoms) and pair.moved is not None:
        return _shifted_both_ways(pair, rate)
    return ReplacedBounded(pair, rate)


def _shifted_both_ways(pair: Atoms, rate: Real) -> Atoms:
    """Return the pair of a lattice that is shifted forwards and back: p starts with the weights, and q with zeros."""
    xp = namespace(pair.p, rate)
    zeros = xp.zeros(int(pair.moved or 0))
    middle = xp.concatenate([pair.q, zeros])
    forwards, backwards = xp.concatenate([zeros, pair.q]), xp.concatenate([pair.p, zeros])
    return Atoms((1 - rate) * middle + rate * forwards, (1 - rate) * middle + rate * backwards)


def replaced_atoms(pair: Atoms, rate: Real) -> Atoms:
    """Return the dominating pair of a table, as a table."""
    losses = replaced_pair(pair, rate).privacy_loss()
    return Atoms(losses.p, losses.q)


@pytree
@dataclass(frozen=True)
class ReplacedBounded(DominatingPair):
    """The pair of one release of a bounded mechanism, from that on all data; its profile is that of an added record."""

    pair: DominatingPair
    rate: Real

    @property
    def has_joint_axes(self) -> bool:  # type: ignore[override]
        return self.pair.has_joint_axes

    @property
    def rounds_up(self) -> bool:  # type: ignore[override]
        return True

    def hockey_stick(self) -> Curve:
        """Return the maximum of both directions: pairs are symmetric up to rounding."""
        pair, symmetric = self.pair, _symmetry_factor(self.pair)
        sides = (pair, *([pair.mirror()] if pair.may_be_asymmetric else []))
        sticks = [sampled_profile(upper(side), self.rate) for side in sides]

        def delta(eps: Real) -> Real:
            return symmetric * elementwise_maximum([stick(eps) for stick in sticks])

        return delta

    def lower_hockey_stick(self) -> Curve:
        return sampled_profile(self.pair.lower_hockey_stick(), self.rate, side=-1)

    def largest_loss(self) -> Real:
        levels = [pair.largest_loss() for pair in (self.pair, self.pair.mirror())]
        return elementwise_maximum([sampled_loss(level, self.rate) for level in levels])

    def privacy_loss(self) -> PrivacyLossDistribution:
        losses, symmetric = self.pair.privacy_loss().subsampled(self.rate).symmetrized(), _symmetry_factor(self.pair)
        return losses if namespace(symmetric, self.rate) is np else losses.scaled(symmetric)

    def mirror(self) -> ReplacedBounded:
        return self

    def symmetry_gap(self) -> Real:
        return 0.0

    def check(self) -> None:
        checks.within("rate", self.rate, 0.0, 1.0)
        self.pair.check()
        check_replaceable((self.pair,))
        if self.pair.is_shift and type(self) is ReplacedBounded:
            raise ValueError("pair: is noise, whose replaced records are twice the sensitivity apart")


def _symmetry_factor(pair: DominatingPair) -> Real:
    """Return 1 for a symmetric pair, and NaN for another one, which only tracing lets through."""
    gap = pair.symmetry_gap()
    return namespace(gap).where(gap <= _TRACED_SYMMETRIC, 1.0, np.nan)


@pytree
@dataclass(frozen=True)
class ReplacedNoise(ReplacedBounded):
    """The pair of one release of even additive noise.

    p - t q = r f(. - D) - (1 - r) (t - 1) f - t r f(. + D) for t = e^eps >= 1. Between the knots of all three, where
    log f is a polynomial of degree 2 at most, it changes its sign at most twice.
    """

    pair: AdditivePair

    @property
    def _formulas(self) -> NoiseFormulas:
        shift = self.pair.shift
        return replace(self.pair, shift=namespace(shift).abs(shift)).formulas

    @property
    def rounds_up(self) -> bool:  # type: ignore[override]
        return self.pair.rounds_up and not len(self.pair.noise.edges)

    def hockey_stick(self) -> Curve:
        return self._formulas.replaced_hockey_stick(self.rate)

    def nearest_curve(self) -> Curve:
        return self._formulas.replaced_hockey_stick(self.rate, -1)

    def lower_hockey_stick(self) -> Curve:
        return DominatingPair.lower_hockey_stick(self)

    def largest_loss(self) -> Real:
        """Return the loss where p has the other record's largest density, relative to f, and q its least."""
        level = self.pair.largest_loss()
        return sampled_loss(level, self.rate) - sampled_loss(-level, self.rate)

    def privacy_loss(self) -> PrivacyLossDistribution:
        return self._formulas.replaced_privacy_loss(self.rate)
