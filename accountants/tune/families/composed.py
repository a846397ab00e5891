"""T reports that meet one budget together: what a report of its own may spend is solved from the composed guarantee."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from accountants.composition.bounds import Bracket
from accountants.guarantee import Guarantee
from accountants.recycling import Subsampled
from accountants.tune.certified import ROUNDING, realised, refuse_above
from accountants.tune.domains import Domain, LogBetween
from accountants.tune.families.reports import Report, Reports
from accountants.tune.families.sampled import FreeRate
from accountants.tune.family import Family, Member, checked, released, spent
from dpkernels import checks
from dpkernels.numerics import Real, namespace
from dpkernels.pytrees import pytree

# A tuned rate is not less, nor less than so many times delta: samples of that rate need no noise at all.
_LEAST_RATE, _SHARE_OF_DELTA = 1e-6, 100.0


@pytree
@dataclass(frozen=True)
class Composed(Family):
    """T reports of one member of a family that are (eps, delta)-DP together; see ``composed``.

    Attributes:
        inner: the family of one report; its own budget does not count.
        reports: how many, and their budget.
    """

    inner: Any
    reports: Reports

    # What is solved for is known to 1e-8, and a turn is thousands of times as long as of one report.
    patience = (10, 1e-6)

    @property
    def name(self) -> str:
        count = checks.concrete(self.reports.count)
        return f"reports, {self.inner.name}" if count is None else f"{count:g} reports, {self.inner.name}"

    @property
    def domains(self) -> dict[str, Domain]:
        if not isinstance(self.reports.rate, FreeRate):
            return self.inner.report_domains(self.reports)
        delta = self.reports.delta
        xp = namespace(delta)
        lowest = xp.maximum(_LEAST_RATE, xp.minimum(_SHARE_OF_DELTA * delta, 0.5))
        return {**self.at(1.0).domains, "p": LogBetween(lowest, 1.0, span=(-0.5, 1.57))}

    @property
    def budget(self) -> tuple[Real, Real]:
        return self.reports.epsilon, self.reports.delta

    def at(self, p: Any) -> Composed:
        """With the rate p instead of a free one: a record moves an estimate from a sample by D/p."""
        inner = self.inner
        if hasattr(inner, "sensitivity"):
            inner = replace(inner, sensitivity=inner.sensitivity / p)
        return Composed(inner, replace(self.reports, rate=p))

    def on_unit(self) -> tuple[Any, Any, Any] | None:
        placed = self.inner.on_unit()
        if placed is None:
            return None
        inner, lower, upper = placed
        rate = self.reports.rate
        rate = rate.in_units((upper - lower) / 2) if isinstance(rate, FreeRate) else rate
        return Composed(inner, replace(self.reports, rate=rate)), lower, upper

    def build(self, parameters: dict[str, Real]) -> Member:
        if isinstance(self.reports.rate, FreeRate):
            return self._sampled(parameters["p"], self.at(parameters["p"]).build(_but_rate(parameters)))
        return self.inner.report(self.reports, parameters)

    def release(self, parameters: dict[str, Any], initial_guess: float | None = None) -> Member:
        """As private as the upper end of the rigorous bracket of all reports; see ``family.released``."""
        if isinstance(self.reports.rate, FreeRate):
            return self._sampled(
                parameters["p"], self.at(parameters["p"]).release(_but_rate(parameters), initial_guess)
            )
        return self.inner.released_report(self.reports, parameters, initial_guess)

    def _sampled(self, p: Any, made: Any) -> Subsampled:
        return Subsampled(made, p, self.reports.rate.error(p), None)

    def together(self, mechanism: Any) -> Guarantee:
        """What T reports of a mechanism reveal."""
        if isinstance(mechanism, Subsampled):
            return self.at(mechanism.rate).together(mechanism.mechanism)
        return self.reports.of(mechanism)

    def symbols(self, parameters: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        if isinstance(mechanism, Subsampled):
            return {**self.at(mechanism.rate).symbols(parameters, mechanism.mechanism), "p": mechanism.rate}
        own = {} if mechanism.epsilon is None else {"epsilon of a report": mechanism.epsilon}
        return {**self.inner.report_symbols(parameters, mechanism), **own}


def _but_rate(parameters: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if name != "p"}


@spent.register
def _(family: Composed, member: Member) -> Any:
    return family.inner.spent(member.mechanism if isinstance(member, Subsampled) else member)


@released.register
def _(family: Composed, parameters: dict[str, Any], initial_guess: float) -> Member:
    return family.release(parameters, initial_guess)


@realised.register
def _(family: Composed, mechanism: Member) -> tuple[float, float]:
    """All reports together, by the upper end of the rigorous bracket."""
    epsilon, delta = map(float, family.budget)
    bracket = Bracket(family.together(mechanism))
    found = bracket.upper_delta(epsilon)
    if found > delta:
        found = bracket.delta(epsilon)[1]
    refuse_above(family, "delta", found, delta * (1 + ROUNDING))
    return epsilon, found


def composed(
    family: Family, *, count: Real, epsilon: Real, delta: Real, rate: float | FreeRate | None = None
) -> Composed:
    """T reports of one member of a family that are (eps, delta)-DP together, as ``accountants.guarantee`` composes.

    What is solved for: of laplace and gaussian the scale, of truncated ones T (the interval is [-T, T]), of budget
    recycling q, of others the epsilon of a report; whatever budget the family holds does not count. Neighbouring is
    that of the mechanism; with a rate, one record added or removed. Other counts compile nothing.

    Args:
        family: of one report: bounded or additive; not ``sampled_recycled``, of which see ``free_rate``.
        count: T, up to 10^6.
        epsilon: eps of all reports.
        delta: of all reports, in (0, 1).
        rate: each report is on a Poisson sample of this rate of its own; ``free_rate`` to tune it too.

    Raises:
        ValueError: epsilon not in [0.01, 20]; delta not in (0, 1); count not in 1..10^6; rate not in [1e-9, 1].
        TypeError: another family.
    """
    if not isinstance(checked(family), Report):
        raise TypeError(
            f"family: {family.name} has no budget of its own that a composition could set; composed takes bounded "
            "families and additive ones"
        )
    checks.epsilon(epsilon)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    if rate is not None and not isinstance(rate, FreeRate):
        checks.within("rate", rate, 1e-9, 1.0)
    return Composed(family, Reports(checks.whole("count", count, 1, 1_000_000), epsilon, delta, rate))
