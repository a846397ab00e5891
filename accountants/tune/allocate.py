"""Allocation of one budget among the entries of a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from accountants.batch_guarantee import BatchGuarantee
from accountants.calibrate.scale import check_target
from accountants.charges import composed_epsilon
from accountants.composition.gaussian import GaussianProfile
from accountants.composition.repeated import RepeatedReleases
from accountants.dominating_pairs.registry import noise_pairs
from accountants.from_mechanism import guarantee
from accountants.guarantee import Guarantee
from accountants.profile import delta as delta_of
from accountants.profile import epsilon as smallest_epsilon
from dpkernels import checks
from dpkernels.decimals import float_at_least, rational
from dpkernels.distributions.base import Distribution
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import Real, RealArray
from dpkernels.solve import bisect

__all__ = ["Allocation", "allocate"]

Objective = str | Callable[[Array], Array]
T = TypeVar("T")

OBJECTIVES = ("variance", "largest")
_DEFAULT_LEVELS = 8  # Of ratios of sensitivity to scale, of noise whose composition has no closed form.
_MAX_ITERATIONS = 3  # Of the search by gradients of the composed epsilon.
_LOG_STEP = 1e-3  # The step in the logarithm of a level for the derivative of epsilon.
_MAX_ATTEMPTS = 40  # The most factors that are tried until a bound suffices.
_HALVINGS = 50  # Of the interval of a claim's epsilon.


@dataclass(frozen=True)
class Allocation:
    """A batch whose composition meets a budget.

    Attributes:
        mechanism: the batch, with a claim for every entry, so that ``perturb`` releases it.
        value: its objective.
        epsilon: an upper bound of epsilon of all reports together, at ``delta``; at most the budget.
        delta: the budget's delta.
    """

    mechanism: Additive
    value: float
    epsilon: float
    delta: float


def allocate(
    queries: Additive,
    *,
    epsilon: float,
    delta: float = 0.0,
    weights: object = None,
    objective: Objective = "variance",
    levels: int | None = None,
) -> Allocation:
    """Return the batch of least objective whose reports together are (epsilon, delta)-DP for one person.

    Every query keeps its sensitivity and the shape of its noise, and its scale is chosen. With the sensitivities s and
    the weights w, the weighted sum of variances is least for

    | noise and delta | scale |
    |---|---|
    | Gaussian | sigma_i^2 proportional to s_i / sqrt(w_i), in closed form |
    | pure noise, delta 0 | epsilon_i proportional to (w_i s_i^2)^(1/3), in closed form |
    | other noise, delta above 0 | ratios by the gradient of the composed epsilon, in a few levels |

    Pure noise with a delta above 0 gets the better of the second and the third row. Up to some tens of queries, the
    second is often better.

    The result is certified: a bound of the composed epsilon, and not an estimate, is at most the budget. The bound is
    for noise that is a real number; docs/batches.md says what the integers of a release add to delta.

    Args:
        queries: a batch of additive noise with sensitivities; its own scales and claims do not count.
        epsilon: the budget of all reports together, in [0.01, 20].
        delta: in [0, 1); 0 is for pure noise, whose budgets then add up.
        weights: w, positive, of the batch's shape or a number; by default 1.
        objective: "variance", the weighted sum of variances; "largest", the largest weighted standard deviation, which
            with weights 1/answer is a relative error; or a function of the array of standard deviations that JAX can
            differentiate, such as ``lambda deviations: (deviations**3).sum()``, which is made small.
        levels: the number of different ratios of sensitivity to scale, which are then also so many exact tables. By
            default every query has a ratio of its own, or one of 8 for noise whose composition has no closed form.

    Raises:
        TypeError: queries are not a batch of additive noise with a density.
        ValueError: an argument is out of range, or a sensitivity is missing.

    Example:
        >>> import numpy as np, dpkernels as dpk
        >>> queries = dpk.gaussian(sigma=1.0, sensitivity=np.array([1.0, 4.0]))
        >>> allocation = allocate(queries, epsilon=1.0, delta=1e-6)
        >>> allocation.epsilon <= 1.0
        True
    """
    if isinstance(objective, str):
        checks.one_of("objective", objective, OBJECTIVES)
    if levels is not None:
        checks.integer_in("levels", levels, 1, 1 << 20)
    return _best_allocation(Problem.from_batch(queries, weights, epsilon, delta), objective, levels)


def allocate_claims(
    queries: Additive, *, epsilon: float, delta: float, weights: object, levels: int | None
) -> Allocation:
    """Return the allocation of least weighted variance whose claims together meet the budget, as a release checks them.

    That is ``allocate``, but pure noise has the composition of its claims as its bound. It is looser, by 0.1 % for
    thousands of queries, and takes a quarter of the time.
    """
    return _best_allocation(_ClaimsProblem.from_batch(queries, weights, epsilon, delta), "variance", levels)


def _best_allocation(problem: Problem, objective: Objective, levels: int | None) -> Allocation:
    default_levels = _DEFAULT_LEVELS if problem.composition == "composed" and problem.size > _DEFAULT_LEVELS else None
    allocation = problem.allocate(objective, default_levels if levels is None else levels)
    if problem.composition == "composed" and problem.is_pure:
        # Budgets that add up may be better, also because every query may have its own.
        basic = replace(problem, delta=0.0).allocate(objective, levels)
        if basic.value < allocation.value:
            return replace(basic, delta=problem.delta)
    return allocation


@dataclass(frozen=True)
class Problem:
    """The queries as arrays: sensitivities and weights, and the noise at unit length."""

    queries: Additive
    shape: Distribution  # Noise of length 1.
    sensitivities: np.ndarray
    weights: np.ndarray
    epsilon: float
    delta: float

    @classmethod
    def from_batch(cls, queries: object, weights: object, epsilon: float, delta: float) -> Self:
        checks.epsilon(epsilon)
        checks.below_one("delta", delta)
        if delta:
            check_target(epsilon, delta)
        if not isinstance(queries, Additive) or not queries.batch_shape or not isinstance(queries.noise, Distribution):
            raise TypeError(f"queries: {type(queries).__name__} is not a batch of additive noise with a density")
        if queries.sensitivity is None:
            raise ValueError("sensitivity: None; every query needs one, a positive number")
        noise = queries.noise
        if not noise.is_even or not hasattr(noise, noise.lengths[0]):
            raise TypeError(f"queries: {type(noise).__name__} noise is not even, or has no length that is chosen")
        length = getattr(noise, noise.lengths[0])
        shape = noise.rescale(1.0, length)
        if any(np.ptp(np.asarray(leaf)) > 0 for leaf in jax.tree.leaves(shape)):
            raise ValueError(
                "queries: their noise has several shapes; allocate the queries of each shape by themselves"
            )
        shape = jax.tree.map(lambda leaf: float(np.asarray(leaf).flat[0]), shape)
        s = np.broadcast_to(np.asarray(queries.sensitivity, np.float64), queries.batch_shape).ravel()
        w = np.ones(()) if weights is None else np.asarray(weights, np.float64)
        checks.positive("weights", w)
        try:
            w = np.broadcast_to(w, queries.batch_shape).ravel()
        except ValueError:
            raise ValueError(f"weights: have shape {w.shape}, the batch {queries.batch_shape}") from None
        problem = cls(queries, shape, s, w, float(epsilon), float(delta))
        if not delta and not problem.is_pure:
            raise ValueError(f"delta: is 0; {type(noise).__name__} noise needs a delta above 0")
        return problem

    @property
    def size(self) -> int:
        return len(self.sensitivities)

    def allocate(self, objective: Objective, levels: int | None) -> Allocation:
        """Return the certified allocation, with so many different ratios of sensitivity to length; None for any."""
        ratios = self.best_ratios(objective)
        if levels is not None:
            ratios = in_levels(ratios, levels)
        if objective == "variance" and (levels is not None or self.composition == "composed"):
            ratios = self.improve_levels(ratios)
        return self.certify(ratios, objective)

    @property
    def composition(self) -> str:
        """Return which composition bounds the budget: "gaussian", "pure" (budgets add up) or "composed"."""
        if self.shape.gaussian_sigma is not None:
            return "gaussian"
        return "composed" if self.delta else "pure"

    @cached_property
    def epsilon_at_unit_ratio(self) -> float:
        """Return the pure epsilon of noise whose sensitivity is its length; inf if there is none."""
        return float(smallest_epsilon(Additive(self.shape), 0.0, sensitivity=1.0))

    @cached_property
    def is_pure(self) -> bool:
        """Return whether the pure epsilon is proportional to the sensitivity, and a release claims delta 0."""
        tail = self.shape.geometric_tail
        doubled = float(smallest_epsilon(Additive(self.shape), 0.0, sensitivity=2.0))
        single = self.epsilon_at_unit_ratio
        return tail is not None and np.isfinite(single) and abs(doubled / single / 2 - 1) < 1e-9

    def _batch_guarantee(self, ratios: np.ndarray) -> BatchGuarantee:
        return BatchGuarantee(Additive(self.shape, sensitivity=np.array(ratios)))

    def estimate(self, ratios: np.ndarray) -> float:
        """Return an estimate of the composed epsilon."""
        if self.composition == "pure":
            return self.epsilon_at_unit_ratio * float(ratios.sum())
        return float(self._batch_guarantee(ratios).estimate_epsilon(self.delta))

    def standard_deviations(self, ratios: np.ndarray) -> RealArray:
        """Return the standard deviations of the queries' noise."""
        return self.sensitivities * float(np.sqrt(self.shape.variance)) / ratios

    def value(self, ratios: np.ndarray, objective: Objective) -> float:
        deviations = self.standard_deviations(ratios)
        if callable(objective):
            with jax.enable_x64(True):
                return float(objective(jnp.asarray(deviations)))
        if objective == "variance":
            return float((self.weights * deviations**2).sum())
        return float((self.weights * deviations).max())

    def best_ratios(self, objective: Objective) -> np.ndarray:
        """Return ratios of sensitivity to length that minimise the objective, up to a common factor."""
        s, w = self.sensitivities, self.weights
        power = 1.0 if self.composition == "pure" else 2.0  # The composed epsilon depends on the sum of these powers.
        if objective == "variance":
            ratios = (w * s**2) ** (1 / (2 + power))
        elif callable(objective):
            ratios = self._minimise(objective, power)
        else:
            ratios = w * s
        return ratios / np.max(ratios)

    def _minimise(self, objective: Callable[[Array], Array], power: float) -> np.ndarray:
        """Minimise a function of the deviations by BFGS, with the sum of powers of the ratios kept at 1."""
        from scipy.optimize import minimize  # Imported on use: it takes 0.15 s.

        with jax.enable_x64(True):
            s = jnp.asarray(self.sensitivities / np.exp(np.mean(np.log(self.sensitivities))))

            def loss(log_ratios: Array) -> Array:
                ratios = jnp.exp(log_ratios - jax.nn.logsumexp(power * log_ratios) / power)
                return jnp.log(objective(s / ratios))

            start = np.log(np.asarray(s)) * 2 / (2 + power)
            step = jax.jit(jax.value_and_grad(loss))
            minimum = minimize(
                lambda x: tuple(np.asarray(value, np.float64) for value in step(x)),
                start,
                jac=True,
                method="L-BFGS-B",
                options={"maxiter": 5000, "maxfun": 10000, "ftol": 0.0, "gtol": 1e-12, "maxcor": 50},
            )
        if not np.isfinite(minimum.fun):
            raise ValueError(f"objective: is {minimum.fun} at equal deviations; it must be finite and positive")
        return np.exp(minimum.x - minimum.x.max())

    def improve_levels(self, ratios: np.ndarray) -> np.ndarray:
        """Return ratios of levels at which the variance of each falls in proportion to the composed epsilon's rise.

        With A the weighted squares of a level's sensitivities, r its ratio and g = d epsilon/d log r, this is A/r^2
        proportional to g, which is about proportional to r^q: q is 2 where many releases compose, 1 for pure noise.
        """
        levels: np.ndarray
        levels, level_index = np.unique(ratios, return_inverse=True)
        A = np.bincount(level_index, self.weights * self.sensitivities**2)
        n = np.bincount(level_index, np.ones(self.size))
        q = 1.0 if self.composition == "pure" else 2.0
        slopes: np.ndarray = n.copy()
        for turn in range(_MAX_ITERATIONS):
            levels = (A / slopes) ** (1 / (2 + q))
            if self.composition != "composed" or turn == _MAX_ITERATIONS - 1:
                break
            levels = levels * self._levels_factor(levels, n)
            slopes = self._epsilon_derivatives(levels, n) / levels**q
        return levels[level_index]

    def _epsilon_at_levels(self, levels: np.ndarray, counts: np.ndarray) -> float:
        pairs = zip(levels.tolist(), counts.astype(int).tolist(), strict=True)
        composed = Guarantee(tuple(RepeatedReleases(noise_pairs(self.shape, level), n) for level, n in pairs))
        return float(composed.estimate_epsilon(self.delta))

    def _epsilon_derivatives(self, levels: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Return the derivatives of the composed epsilon in the logarithm of every level."""
        differences = []
        for i in range(len(levels)):
            raised, lowered = levels.copy(), levels.copy()
            raised[i] *= 1 + _LOG_STEP
            lowered[i] /= 1 + _LOG_STEP
            differences.append(self._epsilon_at_levels(raised, counts) - self._epsilon_at_levels(lowered, counts))
        return np.maximum(np.array(differences), 1e-12)

    def _levels_factor(self, levels: np.ndarray, counts: np.ndarray) -> float:
        """Return the factor of all levels at which an estimate of the composed epsilon is the budget."""
        return self._factor_at_budget(
            lambda factor: self._epsilon_at_levels(factor * levels, counts), float((counts @ levels**2) ** 0.5)
        )

    def _factor_at_budget(self, composed: Callable[[float], float], size: float) -> float:
        """Return the factor at which a rising function is the budget, from one that makes ``size`` the budget."""
        from scipy.optimize import brentq

        low = high = self.epsilon / size
        while composed(low) > self.epsilon:
            low /= 2
        while composed(high) <= self.epsilon:
            high *= 2
        # A little wider, so that rounding does not hide the change of sign.
        ends = np.log(low) - 1e-6, np.log(high) + 1e-6
        return float(np.exp(brentq(lambda t: composed(np.exp(t)) - self.epsilon, *ends, xtol=1e-12)))

    def certify(self, ratios: np.ndarray, objective: Objective) -> Allocation:
        """Return the allocation of these ratios times the largest factor whose bound meets the budget."""
        size = float(ratios.sum() if self.composition == "pure" else np.sqrt((ratios**2).sum()))
        factor = self._factor_at_budget(lambda factor: self.estimate(factor * ratios), size)

        def scaled(factor: float) -> tuple[Additive, float]:
            mechanism = self.mechanism(factor * ratios)
            return mechanism, self.bound(mechanism)

        mechanism, bound = shrink_until_certified(scaled, self.epsilon, factor)
        lengths = np.ravel(getattr(mechanism.noise, self.shape.lengths[0]))
        return Allocation(
            self.with_claims(mechanism), self.value(self.sensitivities / lengths, objective), bound, self.delta
        )

    def bound(self, mechanism: Additive) -> float:
        """Return the bound of the composed epsilon of a batch."""
        if self.composition == "pure":  # Basic composition of the claims, as a ledger charges them.
            return float_at_least(sum(map(rational, np.ravel(mechanism.epsilon).tolist()), Fraction(0)))
        return float(guarantee(mechanism).epsilon(self.delta))

    def mechanism(self, ratios: np.ndarray) -> Additive:
        """Return the batch of these ratios; pure noise claims its epsilon, of which its scale follows exactly."""
        shape, unit = self.queries.batch_shape, self.epsilon_at_unit_ratio
        budgets = (unit * ratios).reshape(shape) if self.is_pure else None
        lengths = self.sensitivities.reshape(shape) / (ratios.reshape(shape) if budgets is None else budgets / unit)
        return Additive(
            self.shape.rescale(lengths), self.sensitivities.reshape(shape), budgets, 0.0 if self.is_pure else None
        )

    def with_claims(self, mechanism: Additive) -> Additive:
        """Return the batch with a claim for every entry: pure noise has one; of others the epsilon at the delta."""
        if self.is_pure:
            return mechanism
        lengths = getattr(mechanism.noise, self.shape.lengths[0])
        ratios, ratio_index = np.unique(mechanism.sensitivity / lengths, return_inverse=True)
        ends = np.zeros(len(ratios)), np.full(len(ratios), self.epsilon)
        high = bisect(lambda epsilons: ~(self._deltas(ratios, epsilons) <= self.delta), *ends, _HALVINGS)[1]
        # Room for the rounding of a table's integers.
        budgets = np.minimum(high * (1 + 1e-9) + 1e-9, self.epsilon)[ratio_index].reshape(mechanism.batch_shape)
        return mechanism.claim(sensitivity=mechanism.sensitivity, epsilon=budgets, delta=self.delta)

    def _deltas(self, ratios: np.ndarray, epsilon: Real) -> np.ndarray:
        """Return delta of one release of noise of every ratio."""
        if (sigma := self.shape.gaussian_sigma) is None:
            return np.asarray(delta_of(Additive(self.shape), epsilon, sensitivity=ratios))
        with np.errstate(all="ignore"):
            return np.exp(GaussianProfile((), ratios / float(sigma)).evaluate(epsilon)[0])


class _ClaimsProblem(Problem):
    """A problem in which reports of pure noise cost the composition of their claims."""

    def bound(self, mechanism: Additive) -> float:
        if self.composition == "composed" and self.is_pure:
            return composed_epsilon(Counter(np.ravel(mechanism.epsilon).tolist()), self.delta)
        return super().bound(mechanism)


def shrink_until_certified(
    scaled: Callable[[float], tuple[T, float]], epsilon: float, factor: float
) -> tuple[T, float]:
    """Return what ``scaled`` gives, and its bound, for the first factor, from one on downwards, whose bound suffices.

    ``scaled`` maps a factor to what it gives and a bound of its epsilon, which is about proportional to the factor.
    """
    for attempt in range(_MAX_ATTEMPTS):
        result, bound = scaled(factor)
        if bound <= epsilon:
            return result, bound
        factor *= min(epsilon / bound, 1 - 1e-12) * (1 - 1e-13 * 4**attempt)
    raise ValueError(f"epsilon: no allocation of {epsilon:g} is certified; its bound is {bound:g}")


def in_levels(ratios: np.ndarray, levels: int) -> np.ndarray:
    """Return the ratios with those of a range, evenly cut in the logarithm, replaced by one."""
    logs = np.log(ratios)
    cells = np.minimum((logs - logs.min()) / max(np.ptp(logs), 1e-300) * levels, levels - 1).astype(int)
    means = np.bincount(cells, logs, levels) / np.maximum(np.bincount(cells, minlength=levels), 1)
    return np.exp(means[cells])
