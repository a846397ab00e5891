"""Families of several releases that meet one budget together: composed, or shuffled.

What a release may spend is solved for from the budget of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from accountants import calibrate
from accountants.calibrate.shuffled import log_budget, upper_delta
from accountants.composition.bounds import Bracket
from accountants.guarantee import Guarantee
from accountants.recycling import Subsampled
from accountants.tune.domains import Domain, LogBetween
from accountants.tune.families.constructed import Constructed
from accountants.tune.families.recycled import FreeRate
from accountants.tune.family import (
    ROUNDING,
    ComposableFamily,
    CompositionTarget,
    Family,
    Member,
    checked,
    member_of,
)
from dpkernels import checks
from dpkernels.numerics import Real, namespace
from dpkernels.pytrees import pytree

__all__ = ["composed", "shuffled"]

# The least tuned rate, and the least one relative to delta. At smaller rates a release needs no noise at all.
_LEAST_RATE, _SHARE_OF_DELTA = 1e-6, 100.0


@pytree
@dataclass(frozen=True)
class Composed(Family):
    """T releases of one member of a family that are (eps, delta)-DP together; see ``composed``.

    Attributes:
        inner: the family of one release; its own budget does not count.
        target: the number of releases, and their budget.
    """

    inner: Any
    target: CompositionTarget

    # What is solved for is known to 1e-8, and a turn is thousands of times as long as of one release.
    patience = (10, 1e-6)
    is_estimated = True

    @property
    def name(self) -> str:
        count = checks.concrete(self.target.count)
        return f"reports, {self.inner.name}" if count is None else f"{count:g} reports, {self.inner.name}"

    @property
    def domains(self) -> dict[str, Domain]:
        if not isinstance(self.target.rate, FreeRate):
            return self.inner.composed_domains(self.target)
        delta = self.target.delta
        xp = namespace(delta)
        lowest = xp.maximum(_LEAST_RATE, xp.minimum(_SHARE_OF_DELTA * delta, 0.5))
        return {**self.at(1.0).domains, "rate": LogBetween(lowest, 1.0, span=(-0.5, 1.57))}

    @property
    def budget(self) -> tuple[Real, Real]:
        return self.target.epsilon, self.target.delta

    @property
    def has_dips(self) -> bool:
        """Return whether eps may be a multiple of a release's largest loss; releases on samples have many losses."""
        return self.target.rate is None and self.inner.solves_epsilon

    def at(self, p: Any) -> Composed:
        """Return the family with the rate p instead of a free one: a record moves an estimate from a sample by D/p."""
        return Composed(self.inner.with_sensitivity(1 / p), replace(self.target, rate=p))

    def for_error(self, theta: Any) -> Family:
        return self if theta is None else replace(self, inner=self.inner.for_error(theta))

    def on_unit(self) -> tuple[Any, Any, Any] | None:
        found = self.inner.on_unit()
        if found is None:
            return None
        inner, lower, upper = found
        rate = self.target.rate
        rate = rate.in_units((upper - lower) / 2) if isinstance(rate, FreeRate) else rate
        return Composed(inner, replace(self.target, rate=rate)), lower, upper

    def build(self, free: dict[str, Any]) -> Member:
        return self.build_near(free, 0.0)

    def build_near(self, free: dict[str, Any], spent: Any) -> Member:
        if isinstance(self.target.rate, FreeRate):
            return self._on_sample(free["rate"], self.at(free["rate"]).build_near(_without_rate(free), spent))
        return self.inner.composed_build(self.target, free, spent)

    def release(self, free: dict[str, Any]) -> Member:
        """Return the mechanism, private by the upper end of the rigorous bracket of all releases."""
        return self.release_from(free, 0.0)

    def release_from(self, free: dict[str, Any], spent: float) -> Member:
        if isinstance(self.target.rate, FreeRate):
            return self._on_sample(free["rate"], self.at(free["rate"]).release_from(_without_rate(free), spent))
        return self.inner.composed_release(self.target, free, spent or None)

    def _on_sample(self, p: Any, made: Any) -> Subsampled:
        return Subsampled(made, p, self.target.rate.error(p), None)

    def guarantee(self, mechanism: Any) -> Guarantee:
        """Return the guarantee of T releases of a mechanism."""
        if isinstance(mechanism, Subsampled):
            return self.at(mechanism.rate).guarantee(mechanism.mechanism)
        return self.target.guarantee(mechanism)

    def parameters(self, free: dict[str, Any], mechanism: Any) -> dict[str, Any]:
        if isinstance(mechanism, Subsampled):
            return {**self.at(mechanism.rate).parameters(free, mechanism.mechanism), "rate": mechanism.rate}
        own = {} if mechanism.epsilon is None else {"epsilon of a report": mechanism.epsilon}
        return {**self.inner.composed_parameters(free, mechanism), **own}

    def spent(self, member: Any) -> Any:
        return self.inner.spent(member.mechanism if isinstance(member, Subsampled) else member)

    def verify(self, mechanism: Any) -> tuple[float, float]:
        """Verify all releases together, by the upper end of the rigorous bracket."""
        epsilon, delta = map(float, self.budget)
        bracket = Bracket(self.guarantee(mechanism))
        found = bracket.upper_delta(epsilon)
        if found > delta:
            found = bracket.delta(epsilon)[1]
        self.check_allowed("delta", found, delta * (1 + ROUNDING))
        return epsilon, found


def _without_rate(free: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in free.items() if name != "rate"}


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
        count: T, up to 10^6.
        epsilon: eps of all reports.
        delta: delta of all reports, in (0, 1).
        rate: the rate of the Poisson sample of each report; ``free_rate`` to tune it too.

    Raises:
        ValueError: epsilon is not in [0.01, 20], delta is not in (0, 1), count is not in 1..10^6, or rate is not in
            [1e-9, 1].
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
    return Composed(family, CompositionTarget(checks.whole("count", count, 1, 1_000_000), epsilon, delta, rate))


@partial(pytree, static=("n",))
@dataclass(frozen=True)
class ShuffledFamily(Family):
    """The family of n reports of one member that are (eps, delta)-DP together once shuffled; see ``shuffled``.

    Attributes:
        inner: the family of one report; its own budget does not count.
        n: how many honest reports.
        epsilon: central eps.
        delta: central delta.
    """

    inner: Any
    n: int
    epsilon: Any
    delta: Any

    is_estimated = True

    @property
    def name(self) -> str:
        return f"{self.n} shuffled, {self.inner.name}"

    @property
    def domains(self) -> dict[str, Domain]:
        return self.inner.domains

    @property
    def budget(self) -> tuple[Real, Real]:
        return self.epsilon, self.delta

    def on_unit(self) -> tuple[Any, Any, Any] | None:
        found = self.inner.on_unit()
        return None if found is None else (replace(self, inner=found[0]), *found[1:])

    def build(self, free: dict[str, Any]) -> Member:
        """Return the member of the largest eps0 that meets the budget by the integral; NaN where there is none."""
        given = self.inner, free
        t = log_budget(member_of, given, n=self.n, epsilon=self.epsilon, delta=self.delta)
        return member_of(namespace(t).exp(t), given)

    def release(self, free: dict[str, Any]) -> Member:
        """Return the member, private by the upper end of the rigorous bracket of the integers."""

        def constructor(*, epsilon: float) -> Any:
            return self.inner.with_budget(epsilon).release(free)

        return calibrate.shuffled(constructor, epsilon=float(self.epsilon), delta=float(self.delta), n=self.n)

    def parameters(self, free: dict[str, Any], mechanism: Any) -> dict[str, Any]:
        return {**self.inner.parameters(free, mechanism), "epsilon of a report": mechanism.epsilon}

    def python(self, mechanism: Any, parameters: dict[str, Any]) -> str:
        return self.inner.with_budget(mechanism.epsilon).python(mechanism, parameters)

    def verify(self, mechanism: Any) -> tuple[float, float]:
        """Verify all reports together, by the upper end of the rigorous bracket of the integers."""
        found = upper_delta(mechanism, self.n, float(self.epsilon))
        self.check_allowed("delta", found, float(self.delta))
        return float(self.epsilon), found


def shuffled(family: Family, *, n: int, epsilon: float, delta: float) -> ShuffledFamily:
    """Return the family of n reports of one member that are (eps, delta)-DP together once shuffled.

    The epsilon of a report is solved for, and the budget that the family holds is ignored. The member of least
    worst-case variance also has the least worst-case variance of the mean of the n reports, which is that over n.

    Args:
        family: the family of one report, a bounded one such as ``piecewise``.
        n: the number of honest reports. Neighbours differ in one person's input, and the shuffler is trusted.
        epsilon: the central eps.
        delta: the central delta, in (0, 1).

    Raises:
        ValueError: an argument is out of range.
        TypeError: the family is not supported.
    """
    if not isinstance(family, Constructed) or "lower" not in family.given:
        raise TypeError(f"family: {family!r} is no bounded family, such as tune.piecewise(...)")
    checks.positive("epsilon", epsilon)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    return ShuffledFamily(family, checks.whole("n", n, 2, 1 << 50), np.float64(epsilon), np.float64(delta))
