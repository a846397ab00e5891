"""One release on a Poisson sample: the dominating pair for one record added or removed, and its privacy profile."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

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

    def sampled_delta(epsilon: RealArray) -> RealArray:
        xp = namespace(epsilon, rate)
        info = xp.finfo(xp.result_type(epsilon))
        eps = xp.minimum(epsilon, cap(info.dtype))
        eps = eps - side * UNITS * info.eps * abs(eps)
        other_odds = -xp.expm1(-sign * eps) / rate * (1 - rate)  # Negative for a removed record.
        is_certain = other_odds <= -1
        other_odds = xp.where(is_certain, 0.0, other_odds)
        inner = xp.minimum(eps + sign * xp.log1p(other_odds), cap(info.dtype))
        delta = rate * (1 + other_odds if removed else 1.0) * profile(inner) * (1 + side * UNITS * info.eps)
        return xp.where(is_certain, 0.0, delta)

    return sampled_delta


@proven("worst_pairs#7-poisson-samples-one-record-added-or-removed")
@partial(pytree, static=("removed",))
@dataclass(frozen=True)
class Sampled(DominatingPair):
    """The dominating pair of one release on a Poisson sample: (r P + (1 - r) Q, Q), or its mirror if ``removed``.

    ``pair`` is (P, Q) without sampling, where P has the record, and ``rate`` is r in (0, 1].
    """

    pair: DominatingPair
    rate: Real
    removed: bool = False

    may_be_asymmetric: ClassVar[bool] = True
    rounds_up: ClassVar[bool] = True

    @property
    def has_joint_axes(self) -> bool:  # type: ignore[override]
        return self.pair.has_joint_axes

    @property
    def within_sensitivity(self) -> bool:  # type: ignore[override]
        return self.pair.within_sensitivity or self.pair.is_shift

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
