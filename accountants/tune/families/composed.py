"""T reports that meet one budget together: what a report of its own may spend is solved from the composed guarantee."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from accountants.calibrate.outward import log_mu
from accountants.composition.bracket import Bracket
from accountants.composition.guarantee import Guarantee, guarantee
from accountants.tune.certified import ROUNDING, realised, refuse_above
from accountants.tune.domains import Domain
from accountants.tune.families import reports
from accountants.tune.family import Family
from dpkernels import checks
from dpkernels.numerics import namespace
from dpkernels.pytrees import pytree


@partial(pytree, static=("count",))
@dataclass(frozen=True)
class Composed(Family):
    """T reports of one member of a family that are (eps, delta)-DP together; see ``composed``.

    Attributes:
        inner: the family of one report; its own budget does not count.
        count: T.
        epsilon: eps of all reports.
        delta: delta of all reports.
        rate: of the Poisson sample that each report is on, or None.
    """

    inner: Any
    count: int
    epsilon: Any
    delta: Any
    rate: Any = None

    @property
    def name(self) -> str:
        return f"{self.count} reports, {self.inner.name}"

    @property
    def domains(self) -> dict[str, Domain]:
        return reports.free(self.inner, self)

    @property
    def budget(self) -> tuple[Any, Any]:
        return self.epsilon, self.delta

    @property
    def about(self) -> Any:
        """mu/(p sqrt T): the ratio of D and sigma that each of T Gaussian reports on samples may have, roughly."""
        xp = namespace(self.epsilon, self.delta, self.rate)
        mu = xp.exp(log_mu(xp.asarray(self.delta), self.epsilon))
        return mu / math.sqrt(self.count) / (1.0 if self.rate is None else self.rate)

    def build(self, parameters: dict[str, Any]) -> Any:
        return reports.built(self.inner, self, parameters)

    def release(self, parameters: dict[str, Any]) -> Any:
        """As private as the upper end of the rigorous bracket of all reports."""
        return reports.released(self.inner, self, parameters)

    @property
    def target(self) -> dict[str, Any]:
        """What ``calibrate`` takes of all reports together."""
        return {"epsilon": self.epsilon, "delta": self.delta, "count": self.count, "rate": self.rate}

    def together(self, mechanism: Any) -> Guarantee:
        """What T reports of a mechanism reveal."""
        one = guarantee(mechanism)
        return (one if self.rate is None else one.subsample(self.rate)).repeat(self.count)

    def symbols(self, parameters: dict[str, Any], mechanism: Any) -> dict[str, Any]:
        own = {} if mechanism.epsilon is None else {"epsilon of a report": mechanism.epsilon}
        return {**reports.described(self.inner, parameters, mechanism), **own}


@realised.register
def _(family: Composed, mechanism: Any) -> tuple[float, float]:
    """All reports together, by the upper end of the rigorous bracket."""
    found = Bracket(family.together(mechanism)).delta(float(family.epsilon))[1]
    refuse_above(family, "delta", found, float(family.delta) * (1 + ROUNDING))
    return float(family.epsilon), found


def composed(family: Family, *, count: int, epsilon: float, delta: float, rate: float | None = None) -> Composed:
    """T reports of one member of a family that are (eps, delta)-DP together, as ``accountants.guarantee`` composes.

    What is solved for: of laplace and gaussian the scale, of budget recycling q, of bounded families the epsilon of a
    report; whatever budget the family holds does not count. Neighbouring is that of the mechanism; with a rate, one
    record added or removed.

    Args:
        family: of one report: bounded, ``laplace``, ``gaussian`` or ``budget_recycled``.
        count: T.
        epsilon: eps of all reports.
        delta: of all reports, in (0, 1).
        rate: each report is on a Poisson sample of this rate of its own.

    Raises:
        ValueError: an argument out of range.
        TypeError: another family.
    """
    if not isinstance(family, Family):
        raise TypeError(f"family: {family!r} is no Family, such as tune.piecewise(...)")
    reports.check_known(family)
    checks.epsilon(epsilon)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    if rate is not None:
        checks.within("rate", rate, 1e-9, 1.0)
    return Composed(family, checks.whole("count", count, 1, 1_000_000), epsilon, delta, rate)
