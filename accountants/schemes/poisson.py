"""Poisson samples: each record is in a sample with the same probability, independently of all others.

A mechanism that is (eps, delta)-DP on a sample of rate p is (eps_p, delta_p)-DP on the whole,

    eps_p = ln(1 + p (e^eps - 1)),   delta_p = p delta

(Jiang 2024, Theorem 4; Balle, Barthe and Gaboardi 2018). This holds for samples that contain each record independently
with probability p, where neighbours differ by one record added or removed. It also holds for samples of p n records
drawn without replacement, where neighbours differ in one record. It must stay secret which records were drawn.

A sample of limited capacity is a uniform subset of that size if more records were drawn ("truncated" Poisson).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from jax.scipy import special as jax_special
from scipy import special

from accountants.dominating_pairs.base import Curve, DominatingPair, upper
from accountants.dominating_pairs.sampled import Sampled
from accountants.privacy_loss import PrivacyLossDistribution, join, sampled_loss
from dpkernels import checks
from dpkernels.numerics import Real, elementwise_maximum, namespace
from dpkernels.proven import proven
from dpkernels.pytrees import pytree

# The relative error allowed for the probability that a sample is full, and for that of a record in a full sample.
_BINOMIAL_ERROR = 1e-9


def amplified_budget(epsilon: Real, delta: Real, rate: Real) -> tuple[Real, Real]:
    """Return ln(1 + p (e^eps - 1)) and p delta, the budget on the whole data of a mechanism that has this on a sample.

    Raises:
        ValueError: epsilon is negative, delta is not in [0, 1], or rate is not in (0, 1]. They have any shape.
    """
    _check(epsilon, delta, rate)
    return sampled_loss(epsilon, rate)[()], rate * delta


def _check(epsilon: Real, delta: Real, rate: Real) -> None:
    checks.within("epsilon", epsilon, 0.0, float("inf"))
    checks.within("delta", delta, 0.0, 1.0)
    checks.within("rate", rate, 5e-324, 1.0)


def budget_on_sample(epsilon: Real, delta: Real, rate: Real) -> tuple[Real, Real]:
    """Return ln(1 + (e^eps - 1)/p) and delta/p, which a mechanism may spend on a sample.

    This is the inverse of ``amplified_budget``.

    Raises:
        ValueError: epsilon is negative, rate is not in (0, 1], or delta is not in [0, rate). They have any shape.
    """
    _check(epsilon, delta, rate)
    spent, available = checks.concrete(delta), checks.concrete(rate)
    if spent is not None and available is not None and not (spent < available).all():
        raise ValueError(f"rate: {available.min():.9g} is not in ({spent.max():.9g}, 1], above delta")
    xp = namespace(epsilon, rate)
    return epsilon + xp.log1p(-xp.expm1(-epsilon) * (1 - rate) / rate), delta / rate


@proven("schemes#5-samples-of-limited-capacity")
@partial(pytree, static=("removed",))
@dataclass(frozen=True)
class Truncated(DominatingPair):
    """The pair of a release on a Poisson sample of limited capacity, or its mirror if ``removed``; an upper bound.

    It says whether the other records alone fill the sample, which has the probability ``full``. If they do not, the
    release is one on a Poisson sample. If they do, the record is in the sample with the probability ``kept``, in place
    of another one, so that the true value changes by up to twice the sensitivity.
    """

    one: DominatingPair  # The pair on all the data of a record that is added or removed.
    other: DominatingPair  # The same of a record that is replaced.
    rate: Real
    full: Real
    kept: Real
    removed: bool = False

    may_be_asymmetric: ClassVar[bool] = True
    rounds_up: ClassVar[bool] = True
    neighbours: ClassVar[str | None] = "add_remove"

    @property
    def joint(self) -> bool:  # type: ignore[override]
        return self.one.joint

    @property
    def _parts(self) -> tuple[tuple[Real, Sampled], tuple[Real, Sampled]]:
        """Return (weight, pair) of both cases, with weights that are rounded up."""
        xp = namespace(self.full, self.kept)
        kept = xp.minimum(self.kept * (1 + _BINOMIAL_ERROR), 1.0)
        near, far = Sampled(self.one, self.rate, self.removed), Sampled(self.other, kept, self.removed)
        return (1 - self.full * (1 - _BINOMIAL_ERROR), near), (self.full * (1 + _BINOMIAL_ERROR), far)

    def hockey_stick(self) -> Curve:
        parts = [(weight, upper(pair)) for weight, pair in self._parts]
        return lambda eps: sum(weight * stick(eps) for weight, stick in parts)

    def lower_hockey_stick(self) -> Curve:
        return self.attained()[0].lower_hockey_stick()

    def largest_loss(self) -> Real:
        return elementwise_maximum([pair.largest_loss() for _, pair in self._parts])

    def privacy_loss(self) -> PrivacyLossDistribution:
        return join([pair.privacy_loss().scaled(weight) for weight, pair in self._parts])

    def mirror(self) -> Truncated:
        return Truncated(self.one, self.other, self.rate, self.full, self.kept, not self.removed)

    def attained(self) -> tuple[DominatingPair, ...]:
        """Return the pair where all other records add 0: a Poisson sample of the rate at which the record is kept."""
        rate = (1 - self.full) * self.rate + self.full * self.kept
        return (Sampled(self.one, rate * (1 - 2 * _BINOMIAL_ERROR), self.removed),)

    def check(self) -> None:
        for name in ("rate", "full", "kept"):
            checks.within(name, getattr(self, name), 0.0, 1.0)
        for pair in (self.one, self.other):
            pair.check()


@proven("schemes#5-samples-of-limited-capacity")
def full_and_kept(rate: Real, capacity: int, examples: int) -> tuple[Real, Real]:
    """Return the probability that all other records fill the sample, and that of a record in it if they do.

    With B the capacity and n the examples, they are P(Bin(n - 1, r) >= B) and (B/n) P(Bin(n, r) > B)/P(Bin(n - 1, r) >=
    B).
    """
    betainc = special.betainc if namespace(rate) is np else jax_special.betainc
    full, more = betainc(capacity, examples - capacity, rate), betainc(capacity + 1.0, examples - capacity, rate)
    xp = namespace(full)
    some = full > 0
    return full, xp.where(some, xp.minimum(capacity / examples * more / xp.where(some, full, 1.0), 1.0), 0.0)[()]


def truncated_pair(
    pair: DominatingPair, far: DominatingPair, rate: Real, capacity: object, examples: object
) -> DominatingPair:
    """Return the pair of a Poisson sample with a capacity; without one that can be exceeded, of a Poisson sample.

    Args:
        pair: the pair of a release on all the data.
        far: the same where one record is replaced by another.
        rate: the sampling rate, in (0, 1].
        capacity: the most records of a sample, an integer of 1 or more.
        examples: the records of the larger one of both datasets.
    """
    capacity = checks.integer_in("capacity", capacity, 1, 1 << 53)
    examples = checks.integer_in("examples", examples, 1, 1 << 53)
    if capacity >= examples:
        return Sampled(pair, rate)
    return Truncated(pair, far, rate, *full_and_kept(rate, capacity, examples))
