"""Poisson samples: each record is in a sample with the same probability, independently of all others.

A mechanism that is (eps, delta)-DP on its sample is (eps_p, delta_p)-DP on the whole data if the sampling rate is p,

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
    plain_delta, plain_rate = checks.concrete(delta), checks.concrete(rate)
    if plain_delta is not None and plain_rate is not None and not (plain_delta < plain_rate).all():
        raise ValueError(f"rate: {plain_rate.min():.9g} is not in ({plain_delta.max():.9g}, 1], above delta")
    xp = namespace(epsilon, rate)
    return epsilon + xp.log1p(-xp.expm1(-epsilon) * (1 - rate) / rate), delta / rate


@proven("schemes#5-samples-of-limited-capacity")
@partial(pytree, static=("removed",))
@dataclass(frozen=True)
class TruncatedPoissonPair(DominatingPair):
    """The pair of a release on a Poisson sample of limited capacity, or its mirror if ``removed``; an upper bound.

    It says whether the other records alone fill the sample, which has the probability ``p_full``. If they do not, the
    release is one on a Poisson sample. If they do, the record takes the place of another one with probability
    ``p_kept``, so that the true value changes by up to twice the sensitivity.
    """

    added: DominatingPair  # The pair on all the data of a record that is added or removed.
    substituted: DominatingPair  # The same of a record that is replaced.
    rate: Real
    p_full: Real
    p_kept: Real
    removed: bool = False

    may_be_asymmetric: ClassVar[bool] = True
    rounds_up: ClassVar[bool] = True
    neighbours: ClassVar[str | None] = "add_remove"

    @property
    def has_joint_axes(self) -> bool:  # type: ignore[override]
        return self.added.has_joint_axes

    @property
    def _cases(self) -> tuple[tuple[Real, Sampled], tuple[Real, Sampled]]:
        """Return (weight, pair) of both cases, with weights that are rounded up."""
        xp = namespace(self.p_full, self.p_kept)
        p_kept = xp.minimum(self.p_kept * (1 + _BINOMIAL_ERROR), 1.0)
        unfilled = Sampled(self.added, self.rate, self.removed)
        filled = Sampled(self.substituted, p_kept, self.removed)
        return (1 - self.p_full * (1 - _BINOMIAL_ERROR), unfilled), (self.p_full * (1 + _BINOMIAL_ERROR), filled)

    def hockey_stick(self) -> Curve:
        cases = [(weight, upper(pair)) for weight, pair in self._cases]
        return lambda eps: sum(weight * stick(eps) for weight, stick in cases)

    def lower_hockey_stick(self) -> Curve:
        return self.attained()[0].lower_hockey_stick()

    def largest_loss(self) -> Real:
        return elementwise_maximum([pair.largest_loss() for _, pair in self._cases])

    def privacy_loss(self) -> PrivacyLossDistribution:
        return join([pair.privacy_loss().scaled(weight) for weight, pair in self._cases])

    def mirror(self) -> TruncatedPoissonPair:
        return TruncatedPoissonPair(self.added, self.substituted, self.rate, self.p_full, self.p_kept, not self.removed)

    def attained(self) -> tuple[DominatingPair, ...]:
        """Return the pair where all other records add 0: a Poisson sample of the rate at which the record is kept."""
        rate = (1 - self.p_full) * self.rate + self.p_full * self.p_kept
        return (Sampled(self.added, rate * (1 - 2 * _BINOMIAL_ERROR), self.removed),)

    def check(self) -> None:
        for name in ("rate", "p_full", "p_kept"):
            checks.within(name, getattr(self, name), 0.0, 1.0)
        for pair in (self.added, self.substituted):
            pair.check()


@proven("schemes#5-samples-of-limited-capacity")
def full_sample_probabilities(rate: Real, capacity: int, examples: int) -> tuple[Real, Real]:
    """Return the probability that all other records fill the sample, and that of a record in it if they do.

    With B the capacity and n the examples, they are P(Bin(n - 1, r) >= B) and (B/n) P(Bin(n, r) > B)/P(Bin(n - 1, r) >=
    B).
    """
    betainc = special.betainc if namespace(rate) is np else jax_special.betainc
    p_full = betainc(capacity, examples - capacity, rate)
    p_overfull = betainc(capacity + 1.0, examples - capacity, rate)
    xp = namespace(p_full)
    is_possible = p_full > 0
    p_kept = xp.minimum(capacity / examples * p_overfull / xp.where(is_possible, p_full, 1.0), 1.0)
    return p_full, xp.where(is_possible, p_kept, 0.0)[()]


def truncated_pair(
    pair: DominatingPair, substituted: DominatingPair, rate: Real, capacity: object, examples: object
) -> DominatingPair:
    """Return the pair of a Poisson sample with a capacity; without one that can be exceeded, of a Poisson sample.

    Args:
        pair: the pair of a release on all the data.
        substituted: the same where one record is replaced by another.
        rate: the sampling rate, in (0, 1].
        capacity: the most records of a sample, an integer of 1 or more.
        examples: the records of the larger one of both datasets.
    """
    capacity = checks.integer_in("capacity", capacity, 1, 1 << 53)
    examples = checks.integer_in("examples", examples, 1, 1 << 53)
    if capacity >= examples:
        return Sampled(pair, rate)
    return TruncatedPoissonPair(pair, substituted, rate, *full_sample_probabilities(rate, capacity, examples))
