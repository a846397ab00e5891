"""The interface of a family of mechanisms whose free parameters are tuned, for one release and for several."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from accountants import calibrate, profile
from accountants.calibrate.composed import gaussian_ratio, largest_budget
from accountants.composition.self_composed import SelfComposed
from accountants.dominating_pairs.additive import additive_pair
from accountants.dominating_pairs.registry import dominating_pairs
from accountants.guarantee import Guarantee, guarantee
from accountants.published.searches import Enumerated
from accountants.recycling import Subsampled
from accountants.tune.domains import Domain
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.base import Mechanism
from dpkernels.numerics import Real, namespace
from dpkernels.pytrees import pytree
from dpkernels.solve import NotPrivateError

# A mechanism that a search tries, or a release on a sample.
Member = Mechanism | Subsampled

# The last Newton step of the logarithm of a budget that several releases allow to each.
_TOLERANCE = 1e-8
# The pure level of a windowed density is a quotient of floats.
ROUNDING = 1e-9


class Family(abc.ABC):
    """A set of mechanisms that all meet one budget, by construction, with some free parameters.

    A family is a frozen dataclass and a pytree. Budgets are leaves, so that other budgets need no new compilation, and
    ``many`` maps over arrays of them. Choices of shape are static.

    Attributes:
        patience: (number of turns, relative gain): a search ends after this number of turns in which the best of all
            starts gains less than this.
        is_estimated: whether the mechanism that ``release`` returns may differ from the member that a search found by
            more than rounding, so that its objective is computed again.
    """

    patience: ClassVar[tuple[int, float]] = (20, 1e-9)
    is_estimated: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Return the name in results and tables."""

    @property
    @abc.abstractmethod
    def domains(self) -> dict[str, Domain]:
        """Return the free parameters, by the source's symbols."""

    @property
    @abc.abstractmethod
    def budget(self) -> tuple[Real, Real]:
        """Return (epsilon, delta), which every member meets."""

    @abc.abstractmethod
    def build(self, free: dict[str, Any]) -> Member:
        """Return the mechanism, traceable: what the budget determines is solved for, and differentiable.

        A NaN in it means that no mechanism with these parameters meets the budget.
        """

    def release(self, free: dict[str, Any]) -> Member:
        """Return the mechanism from plain numbers, rounded conservatively; its claim is the budget."""
        return self.build(free)

    def parameters(self, free: dict[str, Any], mechanism: Any) -> dict[str, Any]:
        """Return every parameter of a member by its name in the constructor, those solved for too; traceable."""
        return dict(free)

    def python(self, mechanism: Any, parameters: dict[str, Any]) -> str:
        """Return the Python expression that makes the mechanism again to the last digit, dpkernels being ``dpk``."""
        return expression(mechanism)

    def on_unit(self) -> tuple[Any, Any, Any] | None:
        """Return (the family without data units, and the ends of the interval that is [-1, 1] for it), or None.

        Its domains and members are those of this family, in units of half the interval.
        """
        return None

    def for_error(self, theta: Any) -> Family:
        """Return the family for an objective with this tolerated error, None if it has none."""
        return self

    def spent(self, member: Any) -> Any:
        """Return what a member's release may spend of a budget that several meet together; traceable."""
        return 0.0

    def build_near(self, free: dict[str, Any], spent: Any) -> Member:
        """Return what ``build`` does. The members of several start solving at ``spent``, if that is positive."""
        return self.build(free)

    def release_from(self, free: dict[str, Any], spent: float) -> Member:
        """Return what ``release`` does, where ``spent`` of it is known but for rounding."""
        return self.release(free)

    @property
    def has_dips(self) -> bool:
        """Return whether a narrow and deeper minimum may be next to a minimum, so that a second search starts there."""
        return False

    def published_search(self, objective: Any) -> Enumerated:
        """Return what the source's own search of the family finds, for comparison.

        Raises:
            TypeError: none is published.
            ValueError: an objective, a condition or a kernel that the source's search does not have.
        """
        raise TypeError(f"family: no search of {self.name} is published; method='gradient' tunes it")

    def verify(self, mechanism: Any) -> tuple[float, float]:
        """Return the (epsilon, delta) that the mechanism meets, delta as the exact accountant computes it.

        Raises:
            NotPrivateError: the budget is exceeded, with the value.
        """
        epsilon, delta = (float(part) for part in self.budget)
        if delta > 0:
            found = float(profile.delta(mechanism, epsilon))
            self.check_allowed("delta", found, delta)
            return epsilon, found
        self.check_allowed("epsilon", float(profile.epsilon(mechanism)), epsilon * (1 + ROUNDING))
        return epsilon, 0.0

    def check_allowed(self, name: str, found: float, allowed: float) -> None:
        """Refuse a value that is above the allowed one, or NaN."""
        if not found <= allowed:
            raise NotPrivateError(f"{self.name}: {name} is {found:.12g}, above the {allowed:.12g} allowed")


def checked(family: Any) -> Family:
    """Return the argument if it is a family.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(family, Family):
        raise TypeError(f"family: {family!r} is no Family, such as tune.piecewise(...)")
    return family


def expression(value: Any) -> str:
    """Return a Python expression of a mechanism, of its parts, or of numbers."""
    if dataclasses.is_dataclass(value):
        home = "dpk." if type(value).__module__.startswith("dpkernels.") else ""
        parts = [expression(getattr(value, field.name)) for field in dataclasses.fields(value)]
        return f"{home}{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, tuple):
        return f"({', '.join(map(expression, value))},)"
    return repr(np.asarray(value).tolist())


# Several releases


@pytree
@dataclass(frozen=True)
class CompositionTarget:
    """The budget of several releases together; its attributes are what ``calibrate.composed`` takes.

    Attributes:
        count: T, the number of releases.
        epsilon: eps of all of them.
        delta: delta of all of them.
        rate: of the Poisson sample that each is on, or None; or the ``FreeRate`` that is tuned.
    """

    count: Any
    epsilon: Any
    delta: Any
    rate: Any

    @property
    def gaussian_ratio(self) -> Any:
        """Return about the ratio of D and sigma that each of T Gaussian releases may have."""
        return gaussian_ratio(self.epsilon, self.delta, self.count, self.rate)

    def guarantee(self, mechanism: Mechanism) -> Guarantee:
        """Return the guarantee of T releases of a mechanism."""
        one = guarantee(mechanism)
        return (one if self.rate is None else one.subsample(self.rate)).repeat(self.count)

    def estimated(self, mechanism: Any) -> Guarantee:
        """Return the same, traceable."""
        # All additive noise here is even, which is not seen while its ends are traced.
        even = isinstance(mechanism, Additive)
        pairs = (additive_pair(mechanism.noise, mechanism.sensitivity),) if even else dominating_pairs(mechanism)
        return Guarantee((SelfComposed(pairs, self.count, self.rate),))

    def largest_budget(self, member: Callable[[Any, Any], Any], given: Any, near: Any = 0.0) -> Any:
        """Return the largest budget of a release of ``member(budget, given)``; NaN if there is none, traceable.

        The search starts at ``near``, if that is positive.
        """
        ratio = self.gaussian_ratio
        xp = namespace(ratio, near)
        guess = xp.where(near > 0, near, xp.minimum(2 * ratio, self.epsilon))

        def releases(level: Any, parameters: tuple[CompositionTarget, Any]) -> Guarantee:
            return parameters[0].estimated(member(level, parameters[1]))

        return largest_budget(releases, (self, given), self.epsilon, self.delta, guess, _TOLERANCE)


class ComposableFamily(Family):
    """A family whose members may be one of several releases; the budget that it holds does not count then.

    Attributes:
        solves_epsilon: whether what is solved for is the pure epsilon of a release.
    """

    solves_epsilon: ClassVar[bool] = False

    def composed_domains(self, target: CompositionTarget) -> dict[str, Domain]:
        """Return the free parameters of one release."""
        return self.domains

    @abc.abstractmethod
    def composed_build(self, target: CompositionTarget, free: dict[str, Any], near: Any = 0.0) -> Mechanism:
        """Return one of the releases that meet the target together, as ``build_near``."""

    @abc.abstractmethod
    def composed_release(
        self, target: CompositionTarget, free: dict[str, Any], initial_guess: float | None
    ) -> Mechanism:
        """Return the same as ``release`` does; the guess is what a release may spend."""

    def with_sensitivity(self, factor: Any) -> Any:
        """Return the family at this multiple of its sensitivity; a bounded family has none, and stays."""
        sensitivity = getattr(self, "sensitivity", None)
        return self if sensitivity is None else dataclasses.replace(self, sensitivity=factor * sensitivity)  # type: ignore[type-var]

    def composed_parameters(self, free: dict[str, Any], mechanism: Any) -> dict[str, Any]:
        """Return every parameter of one release."""
        return self.parameters(free, mechanism)


class PureDPFamily(ComposableFamily):
    """A family of a pure budget. Of several releases, each has the largest one that they together allow."""

    solves_epsilon = True

    epsilon: Any

    @property
    def budget(self) -> tuple[Real, Real]:
        return self.epsilon, 0.0

    def with_budget(self, epsilon: Any) -> Any:
        """Return the family with another budget."""
        return dataclasses.replace(self, epsilon=epsilon)  # type: ignore[type-var]

    def composed_build(self, target: CompositionTarget, free: dict[str, Any], near: Any = 0.0) -> Any:
        return member_of(target.largest_budget(member_of, (self, free), near), (self, free))

    def spent(self, member: Any) -> Any:
        return member.epsilon

    def composed_release(
        self, target: CompositionTarget, free: dict[str, Any], initial_guess: float | None
    ) -> Mechanism:
        def constructor(*, epsilon: float) -> Any:
            return self.with_budget(epsilon).release(free)

        return calibrate.composed_budget(constructor, **vars(target), initial_guess=initial_guess)


def member_of(epsilon: Any, given: tuple[Any, dict[str, Any]]) -> Any:
    """Return the member of (family, free parameters) with another budget; traceable."""
    family, free = given
    return family.with_budget(epsilon).build(free)
