"""The interface of a family of mechanisms that a budget leaves free to choose from."""

from __future__ import annotations

import abc
from functools import singledispatch
from typing import Any, ClassVar

from accountants.recycling import Subsampled
from accountants.tune.domains import Domain
from dpkernels.mechanisms.base import Mechanism
from dpkernels.numerics import Real

# What a search tries: a mechanism, or reports on samples.
Member = Mechanism | Subsampled


class Family(abc.ABC):
    """Mechanisms that all meet one budget, by construction, with some free parameters.

    A family is a frozen dataclass and a pytree: budgets are leaves, so that another budget compiles nothing and
    ``many`` maps over arrays of them; choices of shape are static.

    Attributes:
        patience: a search ends after so many turns in which the best of all starts gains less than this, relatively.
    """

    patience: ClassVar[tuple[int, float]] = (20, 1e-9)

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """What results and tables call it."""

    @property
    @abc.abstractmethod
    def domains(self) -> dict[str, Domain]:
        """The free parameters, by the source's symbols."""

    @property
    @abc.abstractmethod
    def budget(self) -> tuple[Real, Real]:
        """(epsilon, delta) that every member meets."""

    @abc.abstractmethod
    def build(self, parameters: dict[str, Real]) -> Member:
        """The mechanism, traceable: what depends on the parameters through the budget is solved, and differentiable.

        Any NaN in it says that no mechanism with these parameters meets the budget.
        """

    @abc.abstractmethod
    def release(self, parameters: dict[str, Any]) -> Member:
        """The mechanism by the ordinary constructors, from plain numbers; its claim is the budget."""

    @abc.abstractmethod
    def symbols(self, parameters: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        """Every parameter of a member by the source's symbols, those solved for too; traceable."""


@singledispatch
def on_unit(family: Family) -> tuple[Any, Any, Any] | None:
    """(the family without data units, and the ends of the interval that is [-1, 1] for it); None where unknown.

    Its domains and members are those of the family, in units of half the interval.
    """
    return None


@singledispatch
def spent(family: Family, member: Any) -> Any:
    """What a member's report may spend of a budget that several meet together, if that is solved for; traceable."""
    return 0.0


@singledispatch
def released(family: Family, parameters: dict[str, Any], about: float) -> Member:
    """``Family.release``, where what a report may spend is known already but for rounding."""
    return family.release(parameters)


def checked(family: Any) -> Family:
    """What has to be a family.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(family, Family):
        raise TypeError(f"family: {family!r} is no Family, such as tune.piecewise(...)")
    return family


class Determined(Family):
    """A family of one member, which its budget determines, for comparison; ``kind`` names it."""

    kind: str

    @property
    def name(self) -> str:
        return self.kind

    @property
    def domains(self) -> dict[str, Domain]:
        return {}

    def release(self, parameters: dict[str, Any]) -> Member:
        return self.build(parameters)

    def symbols(self, parameters: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        return {}
