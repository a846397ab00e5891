"""Random allocation: each record takes part in one of t steps, or in k of them, chosen at random.

Let (P, Q) be the pair of a step with and without the record. An allocation to one of t steps has the pair

    ((1/t) sum of Q^(i-1) P Q^(t-i),  Q^t),    with the ratio    R = (X_1 + ... + X_t)/t,

the mean of t independent ratios X = dP/dQ of one step (Feldman and Shenfeld 2025; Chua et al. 2024 for Gaussian noise).
The divergences E_Q (R - e^eps)_+ of a removed record and E_Q (1 - e^eps R)_+ of an added record are convex in every X.
So a bound of the distribution of one X in convex order gives a bound for R and for compositions.

A record that adds the largest value in its step attains the pair. Neighbours are datasets that differ by one added or
removed record, and the steps of different records are independent.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from accountants.dominating_pairs.additive import AdditivePair, additive_pair
from accountants.dominating_pairs.base import Curve, DominatingPair
from accountants.dominating_pairs.discrete import NO_LOSS
from accountants.privacy_loss import PrivacyLossDistribution
from accountants.schemes.ratio_sums import discretised_ratio, self_sum
from accountants.schemes.tables import OneDirection, RatioTable, TablePair, ratios
from accountants.schemes.traced_sums import mean_divergence, traced_losses, traced_ratios
from dpkernels import checks
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.numerics import Real, RealArray, floating, namespace
from dpkernels.proven import proven
from dpkernels.pytrees import pytree

_LOSS_ERROR = 1e-11  # More than the error of a loss: the relative error of a sum of ratios.


@proven("schemes#3-random-allocation")
@partial(pytree, static=("removed", "is_lower"))
@dataclass(frozen=True)
class Allocated(TablePair):
    """The pair of an allocation to one of ``steps`` steps, or its mirror if ``removed``; ``pair`` is that of a step."""

    pair: DominatingPair
    steps: Real
    removed: bool = False
    is_lower: bool = False

    @property
    def has_joint_axes(self) -> bool:  # type: ignore[override]
        return self.pair.has_joint_axes

    def compute_table(self, side: int) -> RatioTable:
        value, mass, infinite = ratios(self.pair, self.removed, side)
        steps = int(self.steps)
        total = self_sum(discretised_ratio(value, mass, side), steps)
        value, mass = total.points()
        mass = mass * (1 + side * total.rounding)
        infinite += total.excess / steps * (1 + total.rounding)
        table = RatioTable.of_ratios(value / steps, mass, infinite, self.removed)
        return RatioTable(table.loss + side * _LOSS_ERROR, table.mass, table.infinite)

    def hockey_stick(self) -> Curve:
        if namespace(*jax.tree.leaves(self)) is np:
            return super().hockey_stick()
        return partial(mean_divergence, self.removed, *self._traced)

    @property
    def _traced(self) -> tuple[RealArray, ...]:
        return (*traced_ratios(self.pair.privacy_loss(), self.removed), floating(jnp.asarray(self.steps)))

    def privacy_loss(self) -> PrivacyLossDistribution:
        if namespace(*jax.tree.leaves(self)) is np:
            return super().privacy_loss()
        numbers = self._traced
        p, q, loss = traced_losses(self.removed, numbers, partial(mean_divergence, self.removed, *numbers))
        return OneDirection(p, q, loss, 0 * p, pair=self)

    def largest_loss(self) -> Real:
        """Return the loss where every step has the ratio that is worst in one step."""
        return (self.pair.mirror() if self.removed else self.pair).largest_loss()

    def check(self) -> None:
        super().check()
        checks.integer_in("steps", int(self.steps), 1, 1 << 40)
        self.pair.check()


@proven("schemes#3-random-allocation")
@partial(pytree, static=("removed", "is_lower"))
@dataclass(frozen=True)
class AllocatedBlock(Allocated):
    """The pair of an allocation to one step of a block; ``times`` blocks have all of ``whole`` steps.

    As many releases bound the allocation to ``times`` of all steps from above. From below it is bounded by the sum of
    all outputs, if the noise is Gaussian, and else by nothing.
    """

    whole: Real = 1
    times: Real = 1

    def attained(self) -> tuple[DominatingPair, ...]:
        pair = self.pair
        if isinstance(pair, AdditivePair) and isinstance(pair.noise, Gaussian):
            scale = namespace(pair.shift).sqrt(self.times / self.whole)
            return (additive_pair(pair.noise, scale * pair.shift),)
        return (NO_LOSS,)


def allocated_pairs(pair: DominatingPair, steps: Real, times: int = 1) -> list[tuple[DominatingPair, int]]:
    """Return (pair, count) of releases that bound an allocation to ``times`` of so many steps, exactly so for one.

    A random partition of t steps into k blocks of f or f + 1, and a random step of each block, is a random subset of k
    steps. The hockey-stick divergence is convex, so that the mean over all partitions is at most that of one of them.

    Raises:
        ValueError: there are fewer steps than times.
    """
    if times == 1:
        plain_steps = checks.concrete(steps)
        return [(pair if plain_steps is not None and plain_steps == 1 else Allocated(pair, steps), 1)]
    steps = checks.integer_in("steps", steps, 1, 1 << 40)
    if times > steps:
        raise ValueError(f"times: {times} of {steps} steps; there must be at least as many steps")
    if times == steps:
        return [(pair, times)]
    block_size, longer_blocks = divmod(steps, times)
    blocks = [(block_size, times - longer_blocks), (block_size + 1, longer_blocks)]
    return [
        (AllocatedBlock(pair, np.float64(size), False, False, steps, times), count) for size, count in blocks if count
    ]


def repeated_gaussian(pair: DominatingPair, epochs: Real) -> DominatingPair:
    """Return the pair of all outputs of a step that is repeated with one assignment: those of Gaussian noise have one.

    Raises:
        ValueError: the noise is not Gaussian.
    """
    if not (isinstance(pair, AdditivePair) and isinstance(pair.noise, Gaussian)):
        raise ValueError(
            "mechanism: one assignment for several epochs is known for Gaussian noise; else take random_allocation"
        )
    return additive_pair(pair.noise, namespace(epochs).sqrt(epochs * 1.0) * pair.shift)
