"""The exact profile of one release on a Poisson sample, from the profile of the same release on all the data.

With P the law of the release with a record and Q without it, t = e^eps and H_t(P, Q) the integral of max(0, p - t q),
a sample that holds the record with probability r gives  r P + (1 - r) Q  against Q:

    H_t(r P + (1 - r) Q, Q) = r H_s(P, Q),                        s = 1 + (t - 1)/r,
    H_t(Q, r P + (1 - r) Q) = r (1 - y) H_s(Q, P),                s = t/(1 - y),  y = (t - 1) (1 - r)/r < 1,

and 0 where y >= 1. Proof: docs/proofs/worst_pairs.md, 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from accountants.pairs.base import Curve, Pair
from accountants.pairs.rounding import cap, lowered
from accountants.privacy_loss import PrivacyLossDistribution, sampled_loss
from dpkernels import checks
from dpkernels.numerics import namespace
from dpkernels.pytrees import pytree

# By how much of itself eps is lowered: more than rounding of what follows from it is worth.
_UNITS = 8


def with_added_record(profile: Curve, rate: Any) -> Curve:
    """Return eps -> r H_s(P, Q), from eps -> H_t(P, Q): an upper bound where that is one."""

    def at(epsilon: Any) -> Any:
        xp = namespace(epsilon, rate)
        kind = xp.finfo(xp.result_type(epsilon))
        eps = epsilon - _UNITS * kind.eps * abs(epsilon)
        inner = eps + xp.log1p(-xp.expm1(-eps) / rate * (1 - rate))
        return rate * profile(xp.minimum(inner, cap(kind.dtype))) * (1 + _UNITS * kind.eps)

    return at


def with_removed_record(mirror_profile: Curve, rate: Any) -> Curve:
    """Return eps -> r (1 - y) H_s(Q, P), from eps -> H_t(Q, P): an upper bound where that is one."""

    def at(epsilon: Any) -> Any:
        xp = namespace(epsilon, rate)
        kind = xp.finfo(xp.result_type(epsilon))
        eps = xp.minimum(epsilon, cap(kind.dtype))
        eps = eps - _UNITS * kind.eps * abs(eps)
        y = xp.expm1(eps) / rate * (1 - rate)
        none = y >= 1
        y = xp.where(none, 0.0, y)
        inner = xp.minimum(eps - xp.log1p(-y), cap(kind.dtype))
        found = rate * (1 - y) * mirror_profile(inner) * (1 + _UNITS * kind.eps)
        return xp.where(none, 0.0, found)

    return at


def upper(pair: Pair) -> Curve:
    """The pair's hockey stick, read at a lower budget unless it is an upper bound by itself."""
    stick = pair.hockey_stick()
    return stick if pair.rounds_up else lambda epsilon: stick(lowered(epsilon))


@partial(pytree, static=("removed",))
@dataclass(frozen=True)
class Sampled(Pair):
    """The laws of one release on a Poisson sample: (r P + (1 - r) Q, Q), or its mirror.

    Attributes:
        pair: (P, Q) without samples, P with the record.
        rate: r, in (0, 1].
        removed: whether it is the mirror, (Q, r P + (1 - r) Q).
    """

    pair: Pair
    rate: Any
    removed: bool = False

    has_two_ways: ClassVar[bool] = True

    @property
    def joint(self) -> bool:  # type: ignore[override]
        """That of the pair without samples."""
        return self.pair.joint

    @property
    def rounds_up(self) -> bool:
        return True

    def hockey_stick(self) -> Curve:
        if self.removed:
            return with_removed_record(upper(self.pair.mirror()), self.rate)
        return with_added_record(upper(self.pair), self.rate)

    def largest_loss(self) -> Any:
        if self.removed:
            return -sampled_loss(-self.pair.mirror().largest_loss(), self.rate)
        return sampled_loss(self.pair.largest_loss(), self.rate)

    def privacy_loss(self) -> PrivacyLossDistribution:
        losses = self.pair.privacy_loss().subsampled(self.rate)
        return losses.mirrored() if self.removed else losses

    def mirror(self) -> Sampled:
        return Sampled(self.pair, self.rate, not self.removed)

    def asymmetry(self) -> Any:
        return np.inf

    def check(self) -> None:
        checks.within("rate", self.rate, 0.0, 1.0)
        self.pair.check()
