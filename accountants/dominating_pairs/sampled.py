"""One release on a Poisson sample: the pair of one record added or removed, and its profile from that on all data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from accountants.dominating_pairs.base import UNITS, Curve, DominatingPair, cap, upper
from accountants.privacy_loss import PrivacyLossDistribution, sampled_loss
from dpkernels import checks
from dpkernels.numerics import Real, RealArray, namespace
from dpkernels.proven import proven
from dpkernels.pytrees import pytree


def sampled_profile(profile: Curve, rate: Real, *, removed: bool = False, side: int = 1) -> Curve:
    """Return the profile of a release on a Poisson sample of rate r from that on all data, t -> H_t.

    With s the odds on all data that lead to the odds e^eps of the sample, it is r H_s(P, Q) for an added record, and
    r (1 - y) H_s(Q, P) for a removed one, whose profile on all data is that of the mirror. It is an upper (side 1) or
    lower (side -1) bound if the profile is one.
    """
    sign = -1 if removed else 1

    def at(epsilon: RealArray) -> RealArray:
        xp = namespace(epsilon, rate)
        kind = xp.finfo(xp.result_type(epsilon))
        eps = xp.minimum(epsilon, cap(kind.dtype))
        eps = eps - side * UNITS * kind.eps * abs(eps)
        y = -xp.expm1(-sign * eps) / rate * (1 - rate)  # Negative for a removed record.
        none = y <= -1
        y = xp.where(none, 0.0, y)
        inner = xp.minimum(eps + sign * xp.log1p(y), cap(kind.dtype))
        delta = rate * (1 + y if removed else 1.0) * profile(inner) * (1 + side * UNITS * kind.eps)
        return xp.where(none, 0.0, delta)

    return at


@proven("worst_pairs#7-poisson-samples-one-record-added-or-removed")
@partial(pytree, static=("removed",))
@dataclass(frozen=True)
class Sampled(DominatingPair):
    """The dominating pair of one release on a Poisson sample: (r P + (1 - r) Q, Q), or its mirror if ``removed``.

    ``pair`` is (P, Q) without sampling, where P has the record, and ``rate`` is r in (0, 1].
    """

    pair: DominatingPair
    rate: Any
    removed: bool = False

    may_be_asymmetric: ClassVar[bool] = True
    rounds_up: ClassVar[bool] = True

    @property
    def joint(self) -> bool:  # type: ignore[override]
        return self.pair.joint

    @property
    def near(self) -> bool:  # type: ignore[override]
        return self.pair.near or self.pair.is_shift

    def hockey_stick(self) -> Curve:
        pair = self.pair.mirror() if self.removed else self.pair
        return sampled_profile(upper(pair), self.rate, removed=self.removed)

    def lower_hockey_stick(self) -> Curve:
        pair = self.pair.mirror() if self.removed else self.pair
        return sampled_profile(pair.lower_hockey_stick(), self.rate, removed=self.removed, side=-1)

    def largest_loss(self) -> Real:
        if self.removed:
            return -sampled_loss(-self.pair.mirror().largest_loss(), self.rate)
        return sampled_loss(self.pair.largest_loss(), self.rate)

    def privacy_loss(self) -> PrivacyLossDistribution:
        losses = self.pair.privacy_loss().subsampled(self.rate)
        return losses.mirrored() if self.removed else losses

    def mirror(self) -> Sampled:
        return Sampled(self.pair, self.rate, not self.removed)

    def check(self) -> None:
        checks.within("rate", self.rate, 0.0, 1.0)
        self.pair.check()
