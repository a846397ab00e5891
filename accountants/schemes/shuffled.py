"""Shuffled batches: one pass over the records in random order, each in exactly one of t equal batches.

Neighbours replace the value of one record by 0. The best known upper bound is the dominating pair of one report without
shuffling. It holds for every order of the records, because only the report of one batch depends on the record.

For a lower bound, let every other record have the largest value in the opposite direction of the record. In units of
the sensitivity and shifted to 0, the reports of all batches but one are N(0, s^2). The remaining report is N(2, s^2)
with the record, and N(1, s^2) without it. The test "some report exceeds C" has the probabilities

    1 - Phi(C/s)^(t-1) Phi((C - 2)/s),    1 - Phi(C/s)^(t-1) Phi((C - 1)/s)

(Chua et al. 2024). Every C gives a test with two outcomes, which can be composed, and so a lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from scipy.special import log_ndtr

from accountants.dominating_pairs.additive import AdditivePair
from accountants.dominating_pairs.base import Curve, DominatingPair
from accountants.dominating_pairs.discrete import Atoms
from accountants.privacy_loss import PrivacyLossDistribution
from dpkernels import checks
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.numerics import Real, namespace
from dpkernels.proven import proven
from dpkernels.pytrees import pytree

_TESTS = np.linspace(0.3, 1.0, 24)  # Places of C, as shares of a place that no report exceeds in practice.
_ROUNDING = 1e-10  # More than the relative errors of the probabilities of a test.


@proven("schemes#7-shuffled-batches")
@pytree
@dataclass(frozen=True)
class ShuffledBatches(DominatingPair):
    """The pair of one pass of ``steps`` reports over shuffled batches: that of one report, an upper bound."""

    pair: AdditivePair
    steps: Real

    units_of_log: ClassVar[int] = AdditivePair.units_of_log
    neighbours: ClassVar[str | None] = "zero_out"

    @property
    def rounds_up(self) -> bool:  # type: ignore[override]
        return self.pair.rounds_up

    def hockey_stick(self) -> Curve:
        return self.pair.hockey_stick()

    def largest_loss(self) -> Real:
        return self.pair.largest_loss()

    def privacy_loss(self) -> PrivacyLossDistribution:
        return self.pair.privacy_loss()

    def mirror(self) -> ShuffledBatches:
        return replace(self, pair=self.pair.mirror())

    def attained(self) -> tuple[DominatingPair, ...]:
        noise: Any = self.pair.noise
        sigma, steps = float(noise.sigma / abs(self.pair.shift)), float(self.steps)
        end = 2.0 + sigma * np.sqrt(2 * np.log(steps) + 16.0)
        return tuple(_threshold_test(sigma, steps, float(fraction * end)) for fraction in _TESTS)

    def lower_hockey_stick(self) -> Curve:
        tests = [test.lower_hockey_stick() for pair in self.attained() for test in (pair, pair.mirror())]
        return lambda eps: np.max([test(eps) for test in tests], axis=0)

    def check(self) -> None:
        checks.integer_in("steps", int(self.steps), 1, 1 << 40)
        self.pair.check()


def _threshold_test(sigma: float, steps: float, threshold: float) -> Atoms:
    """Return the probabilities of whether some report exceeds a place, with the record and without it.

    A test of less power and of a larger level is another lower bound, which covers rounding.
    """
    log_others = (steps - 1) * log_ndtr(threshold / sigma)
    p, q = (-np.expm1(log_others + log_ndtr((threshold - value) / sigma)) for value in (2, 1))
    p = p * (1 - _ROUNDING)
    q = min(q * (1 + _ROUNDING), p)
    return Atoms(np.array([p, 1 - p]), np.array([q, 1 - q]))


def shuffled_pair(pair: DominatingPair, steps: int) -> DominatingPair:
    """Return the pair of one pass over shuffled batches.

    Raises:
        ValueError: the noise is not Gaussian.
    """
    if not (isinstance(pair, AdditivePair) and isinstance(pair.noise, Gaussian)):
        raise ValueError("mechanism: shuffled batches are known for Gaussian noise")
    return ShuffledBatches(pair, namespace(pair.shift).asarray(float(steps)))
