"""Staircase noise (Geng and Viswanath 2014), gamma free."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from accountants.tune.domains import Between, Domain
from accountants.tune.families.noise import check_budget
from accountants.tune.families.reports import Budgeted
from accountants.tune.family import on_unit
from dpkernels.distributions.staircase import Staircase
from dpkernels.mechanisms import named_additive as named
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import Real
from dpkernels.pytrees import pytree


@pytree
@dataclass(frozen=True)
class Staircases(Budgeted):
    """Staircase noise with free gamma; see ``staircase``.

    Attributes:
        epsilon: eps.
        sensitivity: D.
    """

    epsilon: Any
    sensitivity: Any

    @property
    def name(self) -> str:
        return "staircase"

    @property
    def domains(self) -> dict[str, Domain]:
        return {"gamma": Between(0.0, 1.0)}

    def build(self, parameters: dict[str, Real]) -> Additive:
        law = Staircase(self.epsilon, self.sensitivity, parameters["gamma"])
        return Additive(law, self.sensitivity, self.epsilon, named.TABLE_DELTA)

    def release(self, parameters: dict[str, Any]) -> Additive:
        return named.staircase(epsilon=self.epsilon, sensitivity=self.sensitivity, gamma=parameters["gamma"])

    def symbols(self, parameters: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        return {"gamma": parameters["gamma"]}


@on_unit.register
def _(family: Staircases) -> tuple[Any, Any, Any]:
    return replace(family, sensitivity=1.0), -family.sensitivity, family.sensitivity


def staircase(*, epsilon: Real, sensitivity: Real = 1.0) -> Staircases:
    """Staircase noise (Geng and Viswanath 2014), pure eps-DP, with the share gamma of the high steps free.

    For the acceptance of theta < D the best gamma is often theta/D, where the first step ends at theta: a kink.

    Raises:
        ValueError: epsilon not in [0.01, 20]; sensitivity not in [1e-100, 1e100].
    """
    check_budget(epsilon, 0.5, sensitivity)
    return Staircases(epsilon, sensitivity)
