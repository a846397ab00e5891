"""n shuffled reports that meet one central budget together: what a report may spend is solved from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from accountants import calibrate
from accountants.calibrate.shuffled import log_budget, proven
from accountants.tune.certified import realised, refuse_above
from accountants.tune.domains import Domain
from accountants.tune.families.bounded import Composite, Piecewise, Plain
from accountants.tune.family import Family, Member
from dpkernels import checks
from dpkernels.numerics import Real, namespace
from dpkernels.pytrees import pytree


@partial(pytree, static=("n",))
@dataclass(frozen=True)
class Shuffled(Family):
    """n reports of one member of a family that are (eps, delta)-DP together once shuffled; see ``shuffled``.

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
        placed = self.inner.on_unit()
        return None if placed is None else (replace(self, inner=placed[0]), *placed[1:])

    def build(self, parameters: dict[str, Real]) -> Member:
        """The member of the largest eps0 that meets the budget by the integral; NaN where there is none; traceable."""
        t = log_budget(_member, (self.inner, parameters), n=self.n, epsilon=self.epsilon, delta=self.delta)
        return _member(namespace(t).exp(t), (self.inner, parameters))

    def release(self, parameters: dict[str, Any]) -> Member:
        """As private as the upper end of the rigorous bracket of the integers."""

        def constructor(*, epsilon: float) -> Any:
            return replace(self.inner, epsilon=epsilon).release(parameters)

        return calibrate.shuffled(constructor, epsilon=float(self.epsilon), delta=float(self.delta), n=self.n)

    def symbols(self, parameters: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        return {**self.inner.symbols(parameters, mechanism), "epsilon of a report": mechanism.epsilon}


def _member(level: Any, given: tuple[Any, dict[str, Any]]) -> Any:
    inner, parameters = given
    return replace(inner, epsilon=level).build(parameters)


@realised.register
def _(family: Shuffled, mechanism: Any) -> tuple[float, float]:
    """All reports together, by the upper end of the rigorous bracket of the integers."""
    found = proven(mechanism, family.n).upper_bound(float(family.epsilon))
    refuse_above(family, "delta", found, float(family.delta))
    return float(family.epsilon), found


def shuffled(family: Family, *, n: int, epsilon: float, delta: float) -> Shuffled:
    """n reports of one member of a bounded family that are (eps, delta)-DP together once shuffled.

    What is solved for is the epsilon of a report; whatever budget the family holds does not count. The member of least
    worst-case variance is also the one of the least variance of the mean of the n reports, which is that over n.

    Args:
        family: of one report: composite, piecewise, piecewise_triangle, duchi, hybrid or optimal.
        n: how many honest reports; neighbouring is one person's input replaced, and a shuffler is trusted.
        epsilon: central eps.
        delta: central delta, in (0, 1).

    Raises:
        ValueError: an argument out of range.
        TypeError: another family.
    """
    if not isinstance(family, Composite | Piecewise | Plain):
        raise TypeError(f"family: {family!r} is no bounded family, such as tune.piecewise(...)")
    checks.positive("epsilon", epsilon)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    return Shuffled(family, checks.whole("n", n, 2, 1 << 50), np.float64(epsilon), np.float64(delta))
