"""Families of several releases that meet one budget together: composed, or shuffled."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from accountants import calibrate, recycling
from accountants.calibrate.composed import gaussian_ratio, largest_budget
from accountants.calibrate.shuffled_reports import log_budget, upper_delta
from accountants.composition.brackets.dispatch import RigorousBounds
from accountants.composition.repeated import RepeatedReleases
from accountants.dominating_pairs.additive import additive_pair
from accountants.dominating_pairs.registry import dominating_pairs
from accountants.from_mechanism import guarantee
from accountants.guarantee import Guarantee
from accountants.recycling import Subsampled
from accountants.tune.domains import Domain, LogBetween
from accountants.tune.family import Family, Member, Patience, checked
from dpkernels import checks
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.base import Mechanism, Parabolic
from dpkernels.numerics import Real, namespace
from dpkernels.pytrees import pytree

__all__ = ["composed", "free_rate", "shuffled"]

# The last Newton step of the logarithm of a budget that several releases allow to each; the error is its square.
_TOLERANCE = 1e-5
# At smaller rates than these a release needs no noise at all.
_MIN_RATE = 1e-6  # The least tuned rate,
_MIN_RATE_OF_DELTA = 100.0  # and the least one over delta.

_SAMPLING_ERRORS: dict[str, Callable[..., Real]] = {
    "count": recycling.sampling_noise_count,
    "sum": recycling.sampling_noise_sum,
    "average": recycling.sampling_noise_mean,
}


class ComposableFamily(Family):
    """A family whose members may be one of several releases; its own budget is then ignored."""

    def for_composition(self, target: Composed) -> ComposableFamily:
        """Return the family of one of the releases that meet the target together."""
        return self

    @abc.abstractmethod
    def composed(self, target: Composed, params: dict[str, Real], solved_budget: Real) -> Mechanism:
        """Return one of the releases that meet the target together by the estimate, from ``solved_budget`` unless 0."""

    @abc.abstractmethod
    def composed_release(self, target: Composed, params: dict[str, Real], solved_budget: float) -> Mechanism:
        """Return what ``composed`` does, from plain numbers, rounded conservatively."""

    def with_sensitivity(self, factor: Real) -> ComposableFamily:
        """Return the family at this multiple of its sensitivity, if it has one."""
        sensitivity = getattr(self, "sensitivity", None)
        return self if sensitivity is None else replace(self, sensitivity=factor * sensitivity)  # type: ignore[type-var]


class PureDPFamily(ComposableFamily):
    """A family of a pure budget. Of several releases, each has the largest one that they together allow."""

    @property
    def budget(self) -> tuple[Real, Real]:
        return self.epsilon, 0.0

    def with_budget(self, epsilon: Real) -> PureDPFamily:
        return replace(self, epsilon=epsilon)  # type: ignore[type-var]

    def member(self, epsilon: Real, params: dict[str, Real]) -> Any:
        """Return the member with another budget; traceable."""
        return self.with_budget(epsilon).build(params)

    def released(self, params: dict[str, Real]) -> Callable[..., Any]:
        """Return the function from ``epsilon`` to what is released at that budget."""
        return lambda *, epsilon: self.with_budget(epsilon).certified_member(params)

    def composed(self, target: Composed, params: dict[str, Real], solved_budget: Real) -> Mechanism:
        return self.member(target.largest_budget(params, solved_budget), params)

    def composed_release(self, target: Composed, params: dict[str, Real], solved_budget: float) -> Mechanism:
        return calibrate.composed_budget(self.released(params), **target.options, initial_guess=solved_budget or None)

    def solved_budget(self, member: Any) -> Real:
        return member.epsilon


@partial(pytree, static=("query",))
@dataclass(frozen=True)
class FreeRate:
    """A sampling rate p that is tuned with the other parameters; see ``free_rate``."""

    query: str | None
    spread: Real
    size: Real

    def error(self, p: Real) -> Real:
        """Return the standard deviation of the sample's estimate."""
        return 0.0 * p if self.query is None else _SAMPLING_ERRORS[self.query](self.spread, self.size, p)


def free_rate(*, query: str | None = None, spread: Real = 1.0, size: Real = 1.0) -> FreeRate:
    """Return the rate p of ``composed``'s samples as one more free parameter.

    The objective sees ``Subsampled`` reports: estimates from a sample rescaled by 1/p, so that noise is for the
    sensitivity D/p; of a named query with the error of sampling. Without one the rate goes where the noise is least.

    Args:
        query: "count", "sum" or "average", whose error of sampling counts; None for none.
        spread: standard deviation of the records, positive; for counts the share that is counted.
        size: the number of records, in [1, 1e300].

    Raises:
        ValueError: an argument is out of range, or an unknown query.
    """
    checks.positive("spread", spread)
    checks.within("size", size, 1.0, 1e300)
    if query is not None:
        checks.one_of("query", query, _SAMPLING_ERRORS)
    return FreeRate(query, spread, size)


@pytree
@dataclass(frozen=True)
class Composed(Family):
    """T releases of one member of a family that are (eps, delta)-DP together, on samples or not; see ``composed``."""

    inner: Any
    count: Real
    epsilon: Real
    delta: Real
    rate: Any

    # What is solved for is known to 1e-10, and a turn is thousands of times as long as of one release.
    patience = Patience(10, 1e-8)
    is_estimated = True

    @property
    def name(self) -> str:
        count = checks.concrete(self.count)
        return f"reports, {self.inner.name}" if count is None else f"{count:g} reports, {self.inner.name}"

    @property
    def domains(self) -> dict[str, Domain]:
        if not isinstance(self.rate, FreeRate):
            return self.release_family.domains
        xp = namespace(self.delta)
        lowest = xp.maximum(_MIN_RATE, xp.minimum(_MIN_RATE_OF_DELTA * self.delta, 0.5))
        return {**self.at_rate(1.0).domains, "rate": LogBetween(lowest, 1.0, span=(-0.5, 1.57))}

    @property
    def release_family(self) -> ComposableFamily:
        """Return the family of one release."""
        return self.inner.for_composition(self)

    @property
    def options(self) -> dict[str, Any]:
        return {"count": self.count, "epsilon": self.epsilon, "delta": self.delta, "rate": self.rate}

    @property
    def gaussian_ratio(self) -> Real:
        """Return about the ratio of D and sigma that each of T Gaussian releases may have."""
        return gaussian_ratio(self.epsilon, self.delta, self.count, self.rate)

    @property
    def needs_second_search(self) -> bool:
        """Return whether eps may be a multiple of a release's largest loss, on samples or not."""
        return isinstance(self.release_family, PureDPFamily)

    def at_rate(self, p: Real) -> Composed:
        """Return the family with the rate p instead of a free one: a record moves an estimate from a sample by D/p."""
        return replace(self, inner=self.inner.with_sensitivity(1 / p), rate=p)

    def with_tolerated_error(self, theta: Real | None) -> Family:
        return self if theta is None else replace(self, inner=self.inner.with_tolerated_error(theta))

    @property
    def unit(self) -> Real:
        return self.inner.unit

    def build(self, params: dict[str, Real]) -> Member:
        return self.build_warm_started(params, 0.0)

    def build_warm_started(self, params: dict[str, Real], solved_budget: Real) -> Member:
        if isinstance(self.rate, FreeRate):
            return self._at_free_rate(Composed.build_warm_started, self.rate, params, solved_budget)
        return self.release_family.composed(self, params, solved_budget)

    def certified_member(self, params: dict[str, Real]) -> Member:
        return self.certified_member_warm_started(params, 0.0)

    def certified_member_warm_started(self, params: dict[str, Real], solved_budget: float) -> Member:
        """Return the mechanism, private by the upper end of the rigorous bracket of all releases."""
        if isinstance(self.rate, FreeRate):
            return self._at_free_rate(Composed.certified_member_warm_started, self.rate, params, solved_budget)
        return self.release_family.composed_release(self, params, solved_budget)

    def _at_free_rate(
        self, build: Callable[..., Any], rate: FreeRate, params: dict[str, Real], solved_budget: Real
    ) -> Subsampled:
        p = params["rate"]
        inner_params = {name: value for name, value in params.items() if name != "rate"}
        return Subsampled(build(self.at_rate(p), inner_params, solved_budget), p, rate.error(p), None)

    def guarantee(self, mechanism: Member) -> Guarantee:
        if isinstance(mechanism, Subsampled):
            return self.at_rate(mechanism.rate).guarantee(mechanism.mechanism)
        release = guarantee(mechanism)
        return (release if self.rate is None else release.subsample(self.rate)).repeat(self.count)

    def estimated_guarantee(self, mechanism: Any) -> Guarantee:
        # All additive noise here is even, which is not seen while its ends are traced.
        even = isinstance(mechanism, Additive)
        pairs = (additive_pair(mechanism.noise, mechanism.sensitivity),) if even else dominating_pairs(mechanism)
        return Guarantee((RepeatedReleases(pairs, self.count, self.rate),))

    def largest_budget(self, params: dict[str, Real], initial_guess: Real) -> Real:
        """Return the largest level of a release of ``inner.member(level, params)``, or NaN."""
        ratio = self.gaussian_ratio
        xp = namespace(ratio, initial_guess)
        guess = xp.where(initial_guess > 0, initial_guess, xp.minimum(2 * ratio, self.epsilon))
        return largest_budget(_releases, (self, params), self.epsilon, self.delta, guess, _TOLERANCE)

    def parameters(self, params: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        if isinstance(mechanism, Subsampled):
            return {**self.at_rate(mechanism.rate).parameters(params, mechanism.mechanism), "rate": mechanism.rate}
        level = {} if mechanism.epsilon is None else {"epsilon of a report": mechanism.epsilon}
        return {**self.release_family.parameters(params, mechanism), **level}

    def solved_budget(self, member: Any) -> Real:
        solved_budget = self.inner.solved_budget(member.mechanism if isinstance(member, Subsampled) else member)
        return 0.0 if solved_budget is None else solved_budget  # Noise that is scaled has no claim here.

    def verify(self, mechanism: Member) -> tuple[float, float]:
        """Verify all releases together, by the upper end of the rigorous bracket."""
        epsilon, delta = map(float, self.budget)
        bounds = RigorousBounds(self.guarantee(mechanism))
        realised = bounds.upper_delta(epsilon)
        if realised > delta:
            # The bound of epsilon, on another grid, may prove what that of delta does not.
            realised = delta if bounds.upper_epsilon(delta) <= epsilon else bounds.delta(epsilon)[1]
        self.check_allowed("delta", realised, delta, rounding=0.0)
        return epsilon, realised


def _releases(level: object, parameters: tuple[Composed, dict[str, Real]]) -> Guarantee:
    target, params = parameters
    return target.estimated_guarantee(target.inner.member(level, params))


def composed(
    family: Family, *, count: Real, epsilon: Real, delta: Real, rate: float | FreeRate | None = None
) -> Composed:
    """Return the family of T releases of one member that are (eps, delta)-DP together, by ``accountants.guarantee``.

    The parameter that is solved for is the scale of Laplace and Gaussian noise, T of truncated noise (on the interval
    [-T, T]), q of budget recycling, and the epsilon of a release for other families. The budget that the family holds
    is ignored. Neighbours are those of the mechanism; with a rate, one record is added or removed. Other counts need no
    new compilation.

    Args:
        family: the family of one report, bounded or additive. Not ``sampled_recycled``; use ``free_rate`` instead.
        count: T, in 1..10^6.
        epsilon: eps of all reports, in [0.01, 20].
        delta: delta of all reports, in (0, 1).
        rate: the rate of the Poisson sample of each report, in [1e-9, 1]; ``free_rate`` to tune it too.

    Raises:
        ValueError: an argument is out of range.
        TypeError: the family is not supported.
    """
    if not isinstance(checked(family), ComposableFamily):
        raise TypeError(
            f"family: {family.name} has no budget of its own that a composition could set; composed takes bounded "
            "families and additive ones"
        )
    checks.epsilon(epsilon)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    if rate is not None and not isinstance(rate, FreeRate):
        checks.within("rate", rate, 1e-9, 1.0)
    return Composed(family, checks.integer_in("count", count, 1, 1_000_000), epsilon, delta, rate)


@partial(pytree, static=("n",))
@dataclass(frozen=True)
class ShuffledFamily(Family):
    """The family of n reports of one member that are (eps, delta)-DP together once shuffled; see ``shuffled``."""

    inner: PureDPFamily
    n: int
    epsilon: Real
    delta: Real

    is_estimated = True

    @property
    def name(self) -> str:
        return f"{self.n} shuffled, {self.inner.name}"

    @property
    def domains(self) -> dict[str, Domain]:
        return self.inner.domains

    @property
    def unit(self) -> Real:
        return self.inner.unit

    def build(self, params: dict[str, Real]) -> Member:
        """Return the member of the largest eps0 that meets the budget by the integral; NaN where there is none."""
        epsilon, delta = self.budget
        t = log_budget(_member, (self.inner, params), n=self.n, epsilon=epsilon, delta=delta, by_integral=True)
        return self.inner.member(namespace(t).exp(t), params)

    def certified_member(self, params: dict[str, Real]) -> Member:
        """Return the member, private by the upper end of the rigorous bracket of the integers."""
        epsilon, delta = map(float, self.budget)
        return calibrate.shuffled(self.inner.released(params), epsilon=epsilon, delta=delta, n=self.n)

    def parameters(self, params: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        return {**self.inner.parameters(params, mechanism), "epsilon of a report": mechanism.epsilon}

    def source_expression(self, mechanism: Any, parameters: dict[str, Real]) -> str:
        return self.inner.with_budget(mechanism.epsilon).source_expression(mechanism, parameters)

    def verify(self, mechanism: Member) -> tuple[float, float]:
        """Verify all reports together, by the upper end of the rigorous bracket of the integers."""
        epsilon, delta = map(float, self.budget)
        realised = upper_delta(mechanism, self.n, epsilon)
        self.check_allowed("delta", realised, delta, rounding=0.0)
        return epsilon, realised


def _member(level: Real, parameters: tuple[PureDPFamily, dict[str, Real]]) -> Parabolic:
    family, params = parameters
    return family.member(level, params)


def shuffled(family: Family, *, n: int, epsilon: float, delta: float) -> ShuffledFamily:
    """Return the family of n reports of one member that are (eps, delta)-DP together once shuffled.

    The epsilon of a report is solved for, and the budget that the family, a bounded one such as ``piecewise``, holds is
    ignored. Neighbours differ in one person's input, the shuffler is trusted, and n counts honest reports. The member
    of least worst-case variance also has the least worst-case variance of the mean of the n reports, which is that over
    n.

    Raises:
        ValueError: an argument is out of range.
        TypeError: the family is not supported.
    """
    if not isinstance(family, PureDPFamily) or "lower" not in getattr(family, "fixed", {}):
        raise TypeError(f"family: {family!r} is no bounded family, such as tune.piecewise(...)")
    checks.positive("epsilon", epsilon)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    return ShuffledFamily(family, checks.integer_in("n", n, 2, 1 << 50), np.float64(epsilon), np.float64(delta))
