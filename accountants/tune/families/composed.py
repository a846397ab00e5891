"""T reports that meet one budget together: what a report of its own may spend is solved from the composed guarantee."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from accountants.calibrate.outward import log_mu
from accountants.composition.bracket import Bracket
from accountants.composition.guarantee import Guarantee, guarantee
from accountants.recycling import Subsampled
from accountants.tune.certified import ROUNDING, realised, refuse_above
from accountants.tune.domains import Domain, LogBetween
from accountants.tune.families import reports
from accountants.tune.families.sampled import QUERIES
from accountants.tune.family import Family, Member
from dpkernels import checks
from dpkernels.numerics import Real, namespace
from dpkernels.pytrees import pytree


@partial(pytree, static=("query",))
@dataclass(frozen=True)
class FreeRate:
    """A sampling rate p that is tuned with the other parameters; see ``free_rate``."""

    query: str | None
    spread: Any
    size: Any

    def error(self, p: Any) -> Any:
        """The standard deviation of the sample's estimate."""
        return 0.0 * p if self.query is None else QUERIES[self.query](self.spread, self.size, p)


# A tuned rate is not less, nor less than so many times delta: samples of that rate need no noise at all.
_LEAST_RATE, _SHARE_OF_DELTA = 1e-6, 100.0


@pytree
@dataclass(frozen=True)
class Composed(Family):
    """T reports of one member of a family that are (eps, delta)-DP together; see ``composed``.

    Attributes:
        inner: the family of one report; its own budget does not count.
        count: T.
        epsilon: eps of all reports.
        delta: delta of all reports.
        rate: of the Poisson sample that each report is on, or None; or a ``FreeRate``.
    """

    inner: Any
    count: Any
    epsilon: Any
    delta: Any
    rate: Any = None

    @property
    def name(self) -> str:
        count = checks.concrete(self.count)
        return f"reports, {self.inner.name}" if count is None else f"{count:g} reports, {self.inner.name}"

    @property
    def domains(self) -> dict[str, Domain]:
        if not isinstance(self.rate, FreeRate):
            return reports.free(self.inner, self)
        xp = namespace(self.delta)
        lowest = xp.maximum(_LEAST_RATE, xp.minimum(_SHARE_OF_DELTA * self.delta, 0.5))
        return {**reports.free(self.inner, self.at(1.0)), "p": LogBetween(lowest, 1.0, span=(-0.5, 1.57))}

    @property
    def budget(self) -> tuple[Real, Real]:
        return self.epsilon, self.delta

    @property
    def about(self) -> Any:
        """mu/(p sqrt T): the ratio of D and sigma that each of T Gaussian reports on samples may have, roughly."""
        xp = namespace(self.epsilon, self.delta, self.rate, self.count)
        mu = xp.exp(log_mu(xp.asarray(self.delta), self.epsilon))
        return mu / xp.sqrt(xp.asarray(self.count, mu.dtype)) / (1.0 if self.rate is None else self.rate)

    def at(self, p: Any) -> Composed:
        """With the rate p instead of a free one: a record moves an estimate from a sample by D/p."""
        inner = self.inner
        if hasattr(inner, "sensitivity"):
            inner = replace(inner, sensitivity=inner.sensitivity / p)
        return replace(self, inner=inner, rate=p)

    def build(self, parameters: dict[str, Real]) -> Member:
        return self._sampled(parameters, reports.built)

    def release(self, parameters: dict[str, Any]) -> Member:
        """As private as the upper end of the rigorous bracket of all reports."""
        return self._sampled(parameters, reports.released)

    def _sampled(self, parameters: dict[str, Any], made: Callable[..., Any]) -> Any:
        """A mechanism; with a free rate the one on a sample of the parameters' rate."""
        if not isinstance(self.rate, FreeRate):
            return made(self.inner, self, parameters)
        p = parameters["p"]
        fixed = self.at(p)
        others = {name: value for name, value in parameters.items() if name != "p"}
        return Subsampled(made(fixed.inner, fixed, others), p, self.rate.error(p), None)

    @property
    def target(self) -> dict[str, Any]:
        """What ``calibrate`` takes of all reports together."""
        return {"epsilon": self.epsilon, "delta": self.delta, "count": self.count, "rate": self.rate}

    def together(self, mechanism: Any) -> Guarantee:
        """What T reports of a mechanism reveal."""
        rate = self.rate
        if isinstance(mechanism, Subsampled):
            mechanism, rate = mechanism.mechanism, mechanism.rate
        one = guarantee(mechanism)
        return (one if rate is None else one.subsample(rate)).repeat(self.count)

    def symbols(self, parameters: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        if isinstance(mechanism, Subsampled):
            return {**self.at(mechanism.rate).symbols(parameters, mechanism.mechanism), "p": mechanism.rate}
        own = {} if mechanism.epsilon is None else {"epsilon of a report": mechanism.epsilon}
        return {**reports.described(self.inner, parameters, mechanism), **own}


@realised.register
def _(family: Composed, mechanism: Member) -> tuple[float, float]:
    """All reports together, by the upper end of the rigorous bracket."""
    found = Bracket(family.together(mechanism)).delta(float(family.epsilon))[1]
    refuse_above(family, "delta", found, float(family.delta) * (1 + ROUNDING))
    return float(family.epsilon), found


def free_rate(*, query: str | None = None, spread: Any = 1.0, size: Any = 1.0) -> FreeRate:
    """The rate p of ``composed``'s samples as one more free parameter.

    The objective sees ``Subsampled`` reports: estimates from a sample rescaled by 1/p, so that noise is for the
    sensitivity D/p; of a named query with the error of sampling. Without one the rate goes where the noise is least.

    Args:
        query: "count", "sum" or "average", whose error of sampling counts; None for none.
        spread: standard deviation of the records; for counts the share that is counted.
        size: how many records there are.

    Raises:
        ValueError: spread not positive; size not in [1, 1e300]; an unknown query.
    """
    checks.positive("spread", spread)
    checks.within("size", size, 1.0, 1e300)
    if query is not None:
        checks.one_of("query", query, QUERIES)
    return FreeRate(query, spread, size)


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
    if not isinstance(family, Family):
        raise TypeError(f"family: {family!r} is no Family, such as tune.piecewise(...)")
    reports.check_known(family)
    checks.epsilon(epsilon)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    if rate is not None and not isinstance(rate, FreeRate):
        checks.within("rate", rate, 1e-9, 1.0)
    return Composed(family, checks.whole("count", count, 1, 1_000_000), epsilon, delta, rate)
