"""The interface of a family of mechanisms whose free parameters are tuned."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from accountants import profile
from accountants.recycling import Subsampled
from accountants.tune.domains import Domain
from dpkernels.mechanisms.base import Mechanism
from dpkernels.numerics import Real
from dpkernels.solve import NotPrivateError

# A mechanism that a search tries, or a release on a sample.
Member = Mechanism | Subsampled

# What an epsilon may be exceeded by, relative: quotients and logarithms of floats are rounded.
_ROUNDING = 1e-12


class Patience(NamedTuple):
    """When a search ends: after this number of turns in which it gains less than this, relative to the value.

    The gain is about what the objective's values are known to.
    """

    turns: int = 20
    gain: float = 1e-9


class Family(abc.ABC):
    """A set of mechanisms that all meet one budget, by construction, with some free parameters.

    A family is a frozen dataclass and a pytree. Budgets are leaves: ``many`` maps over arrays of them. Choices of shape
    are static.

    Attributes:
        patience: when a descent ends.
        is_estimated: whether ``certified_member`` may differ from the member that a search found by more than rounding,
            so that its objective is computed again.
    """

    patience: ClassVar[Patience] = Patience()
    is_estimated: ClassVar[bool] = False
    epsilon: Any
    delta: Real

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Return the name in results and tables."""

    @property
    @abc.abstractmethod
    def domains(self) -> dict[str, Domain]:
        """Return the free parameters, by the source's symbols."""

    @property
    def budget(self) -> tuple[Real, Real]:
        """Return (epsilon, delta), which every member meets; by default the attributes of these names."""
        return self.epsilon, self.delta

    @abc.abstractmethod
    def build(self, params: dict[str, Real]) -> Member:
        """Return the mechanism, as precise as a search needs it; what the budget determines is solved for.

        Numbers are plain, or traced by JAX where several parameters are free or there are many budgets. A NaN in the
        mechanism, or for plain numbers a ValueError, means that no mechanism with these parameters meets the budget.
        """

    def certified_member(self, params: dict[str, Real]) -> Member:
        """Return the mechanism from plain numbers, rounded conservatively; its claim is the budget."""
        return self.build(params)

    def parameters(self, params: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        """Return every parameter of a member by its name in the constructor, those solved for too."""
        return dict(params)

    def source_expression(self, mechanism: Member, parameters: dict[str, Real]) -> str:
        """Return the Python expression that makes the mechanism again to the last digit, dpkernels being ``dpk``."""
        return expression(mechanism)

    @property
    def unit(self) -> Real:
        """Return the length that a search measures errors in: the sensitivity, or half the interval of the inputs."""
        return getattr(self, "sensitivity", 1.0)

    def with_tolerated_error(self, theta: Real | None) -> Family:
        """Return the family for an objective with this tolerated error, None if it has none."""
        return self

    def solved_budget(self, member: Member) -> Real:
        """Return what was solved for so that several releases of a member meet the budget; 0 if nothing was."""
        return 0.0

    def build_warm_started(self, params: dict[str, Real], solved_budget: Real) -> Member:
        """Return what ``build`` does. Of several releases it starts to solve at ``solved_budget``, if positive."""
        return self.build(params)

    def certified_member_warm_started(self, params: dict[str, Real], solved_budget: float) -> Member:
        """Return the ``certified_member`` whose ``solved_budget`` is known but for rounding."""
        return self.certified_member(params)

    @property
    def needs_second_search(self) -> bool:
        """Return whether a narrow and deeper minimum may be next to a minimum, so that a second search starts there."""
        return False

    def verify(self, mechanism: Member) -> tuple[float, float]:
        """Return the (epsilon, delta) that the mechanism meets, delta as the exact accountant computes it.

        Raises:
            NotPrivateError: the budget is exceeded, with the value.
        """
        epsilon, delta = map(float, self.budget)
        if delta > 0:
            realised = float(profile.delta(mechanism, epsilon))
            self.check_allowed("delta", realised, delta, rounding=0.0)
            return epsilon, realised
        self.check_allowed("epsilon", float(profile.epsilon(mechanism)), epsilon)
        return epsilon, 0.0

    def check_allowed(self, name: str, value: float, allowed: float, rounding: float = _ROUNDING) -> None:
        """Refuse a value that is above the allowed one by more than rounding, relative to it, or NaN."""
        if not value <= allowed * (1 + rounding):
            raise NotPrivateError(f"{self.name}: {name} is {value:.12g}, above the {allowed:.12g} allowed")


def checked(family: object) -> Family:
    """Return the argument, or raise a TypeError if it is no family."""
    if not isinstance(family, Family):
        raise TypeError(f"family: {family!r} is no Family, such as tune.piecewise(...)")
    return family


def checked_single(family: object) -> Family:
    """Return the argument, or raise an error if it is no family (TypeError) or one for many budgets (ValueError)."""
    for number in jax.tree.leaves(checked(family)):
        if np.ndim(number):
            raise ValueError(f"family: holds an array of shape {np.shape(number)}; tune.many takes arrays of budgets")
    return checked(family)


def expression(value: object) -> str:
    """Return a Python expression of a mechanism, of its parts, or of numbers."""
    if dataclasses.is_dataclass(value):
        home = "dpk." if type(value).__module__.startswith("dpkernels.") else ""
        fields = [expression(getattr(value, field.name)) for field in dataclasses.fields(value)]
        return f"{home}{type(value).__name__}({', '.join(fields)})"
    if isinstance(value, tuple):
        return f"({', '.join(map(expression, value))},)"
    return repr(np.asarray(value).tolist())
