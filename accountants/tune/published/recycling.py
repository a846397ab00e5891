"""Jiang 2024's own searches of budget recycling, with and without a sample, for comparison."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from accountants import recycling
from accountants.published import published_excess, published_search
from accountants.tune.families.noise import scale_symbol
from accountants.tune.families.recycled import Recycled
from accountants.tune.families.sampled import SampledRecycled
from accountants.tune.objectives import Objective
from accountants.tune.published.composite import Enumerated
from dpkernels import checks
from dpkernels.distributions.base import Distribution
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import Real

_RATE_WIDTH = 1e-3  # How close to the best rate the search ends.


def recycled_search(family: Recycled, objective: Objective) -> Enumerated:
    """Jiang 2024, Algorithm 2 with Algorithm 1 inside; see ``recycling.published_budget`` for what is wrong with them.

    Raises:
        ValueError: an objective other than an acceptance at the family's theta.
    """
    _check_acceptance(family, objective)
    budget = family.epsilon, family.delta, family.sensitivity
    best, count = published_recycling(family.kernel, family.theta, *budget)
    made = Additive(best, family.sensitivity, family.epsilon, family.delta)
    parameters = {scale_symbol(best.kernel): jax.tree.leaves(best.kernel)[0]}
    return Enumerated("Jiang 2024", made, parameters, float(best.acceptance), count, [float(best.acceptance)])


def sampled_search(family: SampledRecycled, objective: Objective) -> Enumerated:
    """Jiang 2024, Algorithm 4: a ternary search for the rate p of the largest acceptance, Algorithm 2 at every p.

    The choice at a rate has the budget that ``accountants.subsampling.on_sample`` allows on the sample. What is wrong
    with Algorithm 2 is wrong here. The acceptance that is compared is the true one of noise and error of sampling
    together, by quadrature. The source's is the reciprocal of its eq. (13), ``recycling.published_acceptance_rate``,
    which can claim several times as much.

    Raises:
        ValueError: an objective other than an acceptance at the family's theta.
    """
    _check_acceptance(family, objective)
    found: list[tuple[float, float, Any]] = []
    counts = []

    def acceptance(p: float) -> float:
        law, count = published_recycling(family.kernel, family.theta, *family.on_sample(p))
        value = float(recycling.acceptance(law, family.theta, float(family.rate.error(p))))
        found.append((value, p, law))
        counts.append(count)
        return value

    acceptance(ternary(acceptance, _sparsest(family), 1.0, _RATE_WIDTH))
    value, p, law = max(found, key=lambda one: one[0])
    eps, delta, D = family.on_sample(p)
    made = recycling.Subsampled(Additive(law, D, eps, delta), p, float(family.rate.error(p)), value)
    rounds = np.maximum.accumulate([one[0] for one in found]).tolist()
    return Enumerated("Jiang 2024, Algorithm 4", made, {}, value, sum(counts), rounds)


def ternary(function: Callable[[float], float], low: float, high: float, width: float) -> float:
    """The top of one hill on [low, high]: a third is dropped until the interval is at most that wide."""
    while high - low > width:
        first, second = low + (high - low) / 3, high - (high - low) / 3
        if function(first) < function(second):
            low = first
        else:
            high = second
    return (low + high) / 2


def _sparsest(family: SampledRecycled) -> float:
    """The least rate tried: delta/p is a probability, and eps on the sample at most what a mechanism may have."""
    densest = np.expm1(float(family.epsilon)) / np.expm1(checks.EPSILON_RANGE[1])
    return max(2 * float(family.delta), float(densest) * (1 + 1e-9))


def _check_acceptance(family: Any, objective: Objective) -> None:
    if objective.theta is None or objective.theta != family.theta:
        raise ValueError(
            f"objective: {objective.name}; the source's search is for the acceptance at the family's theta"
        )


def published_recycling(
    kernel: Distribution, theta: float, eps: float, delta: float, D: float
) -> tuple[Reweighted, int]:
    """(Algorithm 2's law, how often the published profile was computed)."""
    count = 0

    def excess(q: Real, parameters: tuple[Any, ...]) -> Any:
        nonlocal count
        count += 1
        return published_excess(q, parameters)

    choice = published_search(type(kernel), theta, eps, delta, D, excess)
    return Reweighted(choice.kernel, -theta, theta, 1 - choice.q), count
