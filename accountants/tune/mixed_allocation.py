"""Allocation of one budget among queries, with Laplace noise for some of them and Gaussian noise for the others.

Let s be sensitivities, w weights and r ratios of sensitivity to scale. The m queries with the largest w s^2 get Laplace
noise with a few levels of r. All others together are one Gaussian release, in closed form: with A = (sum sqrt(w) s)^2,
their weighted variances add up to A/mu^2. At the minimum of the weighted sum of variances, the sum of each level and
A/mu^2 are proportional to the derivatives of the composed epsilon in log r and in log mu. A search finds m.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from accountants.batch_guarantee import BatchGuarantee
from accountants.calibrate.scale import check_target
from accountants.composition.dispatch import rough_epsilon
from accountants.composition.repeated import RepeatedReleases
from accountants.dominating_pairs.registry import noise_pairs
from accountants.guarantee import Guarantee
from accountants.precision import in_64_bits
from accountants.tune.allocate import Problem, allocate, in_levels, shrink_until_certified
from dpkernels import checks
from dpkernels.distributions.base import Distribution
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.mechanisms.additive import Additive
from dpkernels.solve import newton

__all__ = ["MixedAllocation", "allocate_mixed"]

_LEVELS = 2  # The levels of Laplace noise in the search for the number of queries with it,
_FINAL_LEVELS = 4  # and at its end.
_MAX_ITERATIONS = 6  # The most steps of the levels.
_DIFFERENCE = 1e-3  # The step of differences, of the log of a ratio.
_POWER = 0.25  # The exponent of a step of a ratio x: where the gain grows like x^2, one step ends at the optimum.
_MIN_GAIN = 1e-4  # The relative gain at which steps end.
_MAX_VALUE_RATIO = 1.05  # The ratio to the best value at which no more Laplace noise is tried.
# The logarithm of the common factor of all ratios:
_TOLERANCE = 1e-4  # its tolerance,
_MAX_STEP = 1.0  # the longest step,
_SEARCH_RADIUS = 40.0  # and how far from 0 it is searched.
_REFINEMENTS = 5  # Of the number of queries with Laplace noise.


@dataclass(frozen=True)
class MixedAllocation:
    """Noise for every query, some Laplace and the others Gaussian; all reports together meet a budget.

    Attributes:
        is_laplace: for every query, whether its noise is Laplace.
        laplace: the batch of these queries, with claims; None if there are none.
        gaussian: that of the others.
        value: the weighted sum of variances.
        epsilon: an upper bound of epsilon of all reports together, at ``delta``; at most the budget.
        delta: the budget's delta.
    """

    is_laplace: np.ndarray
    laplace: Additive | None
    gaussian: Additive | None
    value: float
    epsilon: float
    delta: float


@in_64_bits
def allocate_mixed(sensitivities: object, *, epsilon: float, delta: float, weights: object = None) -> MixedAllocation:
    """Return Laplace or Gaussian noise for every query, such that all reports together are (epsilon, delta)-DP.

    The weighted sum of variances is the least that was found, and never more than with Gaussian noise for all queries.
    Laplace noise is better for few queries that matter much more than the others. The result is certified: the upper
    end of the bracket of the composed guarantee meets the budget. That is the guarantee of the noise as real numbers;
    see docs/batches.md.

    Args:
        sensitivities: s, one for each query, positive.
        epsilon: the budget of all reports together, in [0.01, 20].
        delta: in (0, 1).
        weights: w, positive, one for each query or a number; by default 1.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> weights = [1000.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
        >>> allocate_mixed([1.0] * 12, epsilon=1.0, delta=1e-6, weights=weights).is_laplace.nonzero()[0].tolist()
        [0]
    """
    checks.epsilon(epsilon)
    check_target(epsilon, delta)
    s, w = np.asarray(sensitivities, np.float64), np.asarray(1.0 if weights is None else weights, np.float64)
    if s.ndim != 1 or not s.size:
        raise ValueError(f"sensitivities: have shape {s.shape}; one number for each query is needed")
    checks.sensitivity(s)
    checks.positive("weights", w)
    if w.shape not in ((), s.shape):
        raise ValueError(f"weights: have shape {w.shape}; the sensitivities have {s.shape}")
    search = _Search(s, np.broadcast_to(w, s.shape), float(epsilon), float(delta))
    count = search.best_count()
    allocations = [search.single_noise(Gaussian(1.0))]
    if count < s.size:
        allocations.append(search.certify(count))
    else:
        allocations.append(search.single_noise(Laplace(1.0)))
    return min(allocations, key=lambda allocation: allocation.value)


class _Search:
    """A search for the number of queries with Laplace noise, those of the largest w s^2."""

    def __init__(self, sensitivities: np.ndarray, weights: np.ndarray, epsilon: float, delta: float) -> None:
        self.s, self.w, self.epsilon, self.delta = sensitivities, weights, epsilon, delta
        self.order = np.argsort(-weights * sensitivities**2, kind="stable")
        self.values: dict[int, float] = {}

    def single_noise(self, noise: Distribution) -> MixedAllocation:
        """Return the allocation of noise of one kind for all queries."""
        queries = Additive(noise, self.s)
        allocation = allocate(queries, epsilon=self.epsilon, delta=self.delta, weights=self.w)
        is_laplace = isinstance(noise, Laplace)
        laplace, gaussian = (allocation.mechanism, None) if is_laplace else (None, allocation.mechanism)
        all_queries = np.full(self.s.shape, is_laplace)
        return MixedAllocation(all_queries, laplace, gaussian, allocation.value, allocation.epsilon, self.delta)

    def best_count(self) -> int:
        """Return the best number, at least 1, by doubling and by halving the distance to its neighbours."""
        n, count = self.s.size, 1
        while self.value(count) <= _MAX_VALUE_RATIO * min(self.values.values()) and count < n:
            count = min(2 * count, n)
        for _ in range(_REFINEMENTS):
            tried = sorted(self.values)
            index = tried.index(min(tried, key=lambda count: self.values[count]))
            neighbours = *tried[index - 1 : index], *tried[index + 1 : index + 2]
            middles = [(tried[index] + neighbour) // 2 for neighbour in neighbours]
            if not (new := [count for count in middles if count not in self.values and count > 0]):
                break
            for count in new:
                self.value(count)
        return min(self.values, key=lambda count: self.values[count])

    def value(self, count: int) -> float:
        """Return about the least weighted sum of variances with so many queries of Laplace noise."""
        if count not in self.values:
            split = _Split(self, count, _LEVELS)
            self.values[count] = split.value(split.descend())
        return self.values[count]

    def certify(self, count: int) -> MixedAllocation:
        """Return the allocation whose bound meets the budget."""
        split = _Split(self, count, _FINAL_LEVELS)
        ratios = split.descend()

        def scaled(factor: float) -> tuple[tuple[Additive, Additive], float]:
            laplace, gaussian = split.batches(factor * ratios)
            terms = (*BatchGuarantee(laplace).joined_terms, *BatchGuarantee(gaussian).joined_terms)
            return (laplace, gaussian), float(Guarantee(terms).epsilon(self.delta))

        (laplace, gaussian), bound = shrink_until_certified(scaled, self.epsilon, 1.0)
        variances = np.empty(self.s.shape)
        variances[split.laplace_indices] = laplace.noise.variance
        variances[split.gaussian_indices] = gaussian.noise.variance
        is_laplace = np.isin(np.arange(self.s.size), split.laplace_indices)
        return MixedAllocation(is_laplace, laplace, gaussian, float((self.w * variances).sum()), bound, self.delta)


class _Split:
    """The queries with Laplace noise, in levels, and those with Gaussian noise.

    Ratios are those of the levels, and last mu, the root of the sum of the squares of the Gaussian ones.
    """

    def __init__(self, search: _Search, count: int, levels: int) -> None:
        self.epsilon, self.delta = search.epsilon, search.delta
        # In the order of the queries.
        self.laplace_indices, self.gaussian_indices = np.sort(search.order[:count]), np.sort(search.order[count:])
        self.s, self.w = search.s, search.w
        s, w = self.s[self.laplace_indices], self.w[self.laplace_indices]
        start, self.level_index = np.unique(in_levels((w * s**2) ** 0.25, levels), return_inverse=True)
        self.counts = np.bincount(self.level_index, minlength=len(start))
        self.gaussian_weights = (self.s * np.sqrt(self.w))[self.gaussian_indices]
        # The weighted variances are these over the squared ratios.
        self.costs = np.append(2 * np.bincount(self.level_index, w * s**2), self.gaussian_weights.sum() ** 2)

    @cached_property
    def start(self) -> np.ndarray:
        """Return ratios that are best if the composed epsilon depends on the sum of their squares."""
        costs, counts = self.costs, np.append(self.counts, 1)
        return (costs / counts)[: len(self.counts) + bool(len(self.gaussian_indices))] ** 0.25

    def value(self, ratios: np.ndarray) -> float:
        return float((self.costs[: len(ratios)] / ratios**2).sum())

    def estimate(self, ratios: np.ndarray) -> float:
        """Return an estimate of the composed epsilon."""
        terms = [
            RepeatedReleases(noise_pairs(Laplace(1.0), ratio), count)
            for ratio, count in zip(ratios.tolist(), self.counts.tolist(), strict=False)
        ]
        if len(self.gaussian_indices):
            terms.append(RepeatedReleases(noise_pairs(Gaussian(1.0), float(ratios[-1])), 1))
        return rough_epsilon(Guarantee(tuple(terms)), self.delta)

    def on_budget(self, ratios: np.ndarray) -> np.ndarray:
        """Return the ratios times the factor at which the composed epsilon is the budget."""

        def missing(t: float, _: object) -> float:
            return math.log(self.epsilon / self.estimate(ratios * math.exp(t)))

        ends = -_SEARCH_RADIUS, _SEARCH_RADIUS
        return ratios * math.exp(newton(missing, (), 0.0, ends, tolerance=_TOLERANCE, longest=_MAX_STEP, clip=True))

    def descend(self) -> np.ndarray:
        """Return the best ratios on the budget."""
        size = math.sqrt(float((np.append(self.counts, 1)[: len(self.start)] * self.start**2).sum()))
        best = ratios = self.on_budget(self.start * self.epsilon / size / 5)
        for _ in range(_MAX_ITERATIONS):
            gains = np.array([self._gain(ratios, index) for index in range(len(ratios))])
            target = (self.costs[: len(ratios)] / ratios**2 / gains) ** _POWER
            ratios = self.on_budget(ratios * target / target.mean())
            gain = self.value(best) - self.value(ratios)
            best = ratios if gain > 0 else best
            if gain <= _MIN_GAIN * self.value(best):
                break
        return best

    def _gain(self, ratios: np.ndarray, index: int) -> float:
        """Return the derivative of the composed epsilon in the logarithm of a ratio, which the budget's is near."""
        shifted = ratios.copy()
        shifted[index] *= math.exp(_DIFFERENCE)
        return max(self.estimate(shifted) - self.epsilon, 1e-12) / _DIFFERENCE

    def batches(self, ratios: np.ndarray) -> tuple[Additive, Additive]:
        """Return the batches of Laplace and of Gaussian noise, with claims."""
        # Squared ratios of Gaussian noise are proportional to sqrt(w) s.
        gaussian_ratios = ratios[-1] * np.sqrt(self.gaussian_weights / self.gaussian_weights.sum())
        batches = []
        for noise, indices, query_ratios in (
            (Laplace, self.laplace_indices, ratios[:-1][self.level_index]),
            (Gaussian, self.gaussian_indices, gaussian_ratios),
        ):
            queries = Additive(noise(np.ones(len(indices))), self.s[indices])
            problem = Problem.from_batch(queries, self.w[indices], self.epsilon, self.delta)
            batches.append(problem.with_claims(problem.mechanism(query_ratios)))
        return batches[0], batches[1]
