"""Merged Laplace noise (Mugunthan 2020), its rates and breaks free."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from accountants.profile import epsilon as realised_epsilon
from accountants.tune.domains import Between, Domain, Ordered
from accountants.tune.families.noise import check_budget
from accountants.tune.families.reports import Budgeted
from accountants.tune.family import on_unit
from dpkernels import checks
from dpkernels.distributions.merged_laplace import MergedLaplace
from dpkernels.mechanisms import named_additive as named
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import Real, RealArray, namespace
from dpkernels.pytrees import pytree
from dpkernels.roots import until_private

# Deeper falls between breaks, in units of eps, are no optimum.
_DEEPEST = 1.5
# Gaps between breaks, in units of D: a window of length D sees no two sides of a wider one.
_GAPS = (1e-4, 2.0)


@partial(pytree, static=("segments",))
@dataclass(frozen=True)
class MergedLaplaces(Budgeted):
    """Merged Laplace noise (Mugunthan 2020) with free rates and breaks; see ``merged_laplace``.

    Free are the breaks c_i and the falls f_i = r_i (c_i - c_(i-1)) of the log density between them, in the unit of its
    fall over D beyond the last break; then all rates are scaled until the largest fall over a window of length D is
    eps. That fall is linear in the rates, so this is closed.

    Attributes:
        epsilon: eps.
        sensitivity: D.
        segments: n, how many rates.
    """

    epsilon: Any
    sensitivity: Any
    segments: int

    @property
    def name(self) -> str:
        return f"merged laplace of {self.segments}"

    @property
    def domains(self) -> dict[str, Domain]:
        n = self.segments - 1
        low, high = (gap * self.sensitivity for gap in _GAPS)
        return {"falls": Between(0.0, _DEEPEST, count=n), "c": Ordered(n, low, high, span=(-0.1, 1.2))}

    def build(self, parameters: dict[str, Real]) -> Additive:
        breaks: Any = parameters["c"]
        law = MergedLaplace(tuple(self._rates(parameters)), tuple(breaks))
        return Additive(law, self.sensitivity, self.epsilon, named.TABLE_DELTA)

    def _rates(self, parameters: dict[str, Any]) -> RealArray:
        c, D = parameters["c"], self.sensitivity
        xp = namespace(c, D)
        c = xp.asarray(c)
        widths = xp.diff(c, prepend=0.0)
        rates = xp.append(xp.asarray(parameters["falls"]) / widths, 1 / D)
        return rates * self.epsilon / _steepest_window(rates, c, D, xp)

    def release(self, parameters: dict[str, Any]) -> Additive:
        """Rates lowered by rounding errors until the pure level, as computed, is at most eps."""
        rates = self._rates(parameters)

        def lower(nudge: float) -> Additive:
            return named.merged_laplace(
                rates=tuple(float(rate) * (1 - nudge) for rate in rates),
                breaks=tuple(parameters["c"]),
                sensitivity=self.sensitivity,
                epsilon=self.epsilon,
                delta=named.TABLE_DELTA,
            )

        return until_private(lower, lambda made: realised_epsilon(made) <= self.epsilon)

    def symbols(self, parameters: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        xp = namespace(*mechanism.noise.rates)
        return {"r": xp.stack(mechanism.noise.rates), "c": xp.stack(mechanism.noise.breaks)}


@on_unit.register
def _(family: MergedLaplaces) -> tuple[Any, Any, Any]:
    return replace(family, sensitivity=1.0), -family.sensitivity, family.sensitivity


def _steepest_window(rates: Real, c: Real, D: Real, xp: ModuleType) -> Real:
    """The largest integral of the slope over a window of length D, which starts at 0, at a break or D before one."""
    starts = xp.concatenate([xp.zeros(1), c, xp.maximum(c - D, 0.0)])[:, None]
    left, right = xp.concatenate([xp.zeros(1), c]), xp.concatenate([c, xp.full(1, np.inf)])
    inside = xp.minimum(starts + D, right) - xp.maximum(starts, left)
    return (xp.maximum(inside, 0.0) * rates).sum(-1).max()


def merged_laplace(*, epsilon: Real, sensitivity: Real = 1.0, segments: int = 3) -> MergedLaplaces:
    """Merged Laplace noise (Mugunthan 2020), pure eps-DP, its rates and breaks free.

    There are many local optima: with more ``starts``, see ``best``, a better one may be found.

    Raises:
        ValueError: epsilon not in [0.01, 20]; sensitivity not in [1e-100, 1e100]; segments not in 2..8.
    """
    check_budget(epsilon, 0.5, sensitivity)
    return MergedLaplaces(epsilon, sensitivity, checks.whole("segments", segments, 2, 8))
