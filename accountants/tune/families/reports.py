"""T reports that meet one budget together, and the families whose members may be such a report; see ``composed``."""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from accountants import calibrate
from accountants.calibrate.conservative import log_mu, precise_parameter
from accountants.composition.self_composed import SelfComposed
from accountants.dominating_pairs.additive import additive_pair
from accountants.dominating_pairs.registry import dominating_pairs
from accountants.guarantee import Guarantee, guarantee
from accountants.tune.domains import Domain
from accountants.tune.family import Family
from dpkernels import checks
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.base import Mechanism
from dpkernels.numerics import Real, namespace
from dpkernels.pytrees import pytree


@pytree
@dataclass(frozen=True)
class Reports:
    """Reports that are to be (eps, delta)-DP together; its attributes are what ``calibrate.composed`` takes.

    Attributes:
        count: T.
        epsilon: eps of all reports.
        delta: delta of all reports.
        rate: of the Poisson sample that each report is on, or None; or the ``FreeRate`` that it is to have.
    """

    count: Any
    epsilon: Any
    delta: Any
    rate: Any

    @property
    def gaussian_mu(self) -> Any:
        """mu/(p sqrt T): the ratio of D and sigma that each of T Gaussian reports on samples may have, roughly."""
        xp = namespace(self.epsilon, self.delta, self.rate, self.count)
        mu = xp.exp(log_mu(xp.asarray(self.delta), self.epsilon))
        return mu / xp.sqrt(xp.asarray(self.count, mu.dtype)) / (1.0 if self.rate is None else self.rate)

    def of(self, mechanism: Mechanism) -> Guarantee:
        """What T reports of a mechanism reveal."""
        one = guarantee(mechanism)
        return (one if self.rate is None else one.subsample(self.rate)).repeat(self.count)

    def estimated(self, mechanism: Any) -> Guarantee:
        """The same, traceable."""
        # All additive noise here is even, which is not seen while its ends are traced.
        even = isinstance(mechanism, Additive)
        pairs = (additive_pair(mechanism.noise, mechanism.sensitivity),) if even else dominating_pairs(mechanism)
        return Guarantee((SelfComposed(pairs, self.count, self.rate),))


class Report(Family):
    """A family whose members may be one of several reports; what budget it holds does not count then."""

    @abc.abstractmethod
    def report_domains(self, reports: Reports) -> dict[str, Domain]:
        """The free parameters of one report."""

    @abc.abstractmethod
    def report(self, reports: Reports, parameters: dict[str, Any]) -> Mechanism:
        """One of reports that have their budget together, as ``build``."""

    @abc.abstractmethod
    def spent(self, member: Any) -> Any:
        """What a report may spend, if ``released_report`` can start from there; traceable."""

    @abc.abstractmethod
    def released_report(self, reports: Reports, parameters: dict[str, Any], initial_guess: float | None) -> Mechanism:
        """The same as ``release``; from what it may spend, if that is known."""

    @abc.abstractmethod
    def report_symbols(self, parameters: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        """Every parameter of one report."""


class Budgeted(Report):
    """A family of pure budgets, of which reports have the largest that they together leave to each."""

    epsilon: Any

    @property
    def budget(self) -> tuple[Real, Real]:
        return self.epsilon, 0.0

    def report_domains(self, reports: Reports) -> dict[str, Domain]:
        return self.domains

    def member(self, loss: Real, parameters: dict[str, Any]) -> Any:
        """Of this budget; traceable."""
        return replace(self, epsilon=loss).build(parameters)  # type: ignore[type-var]

    def report(self, reports: Reports, parameters: dict[str, Any]) -> Any:
        return self.member(largest_loss(self, reports, parameters), parameters)

    def spent(self, member: Any) -> Any:
        return member.epsilon

    def released_report(self, reports: Reports, parameters: dict[str, Any], initial_guess: float | None) -> Mechanism:
        def constructor(*, epsilon: float) -> Any:
            return replace(self, epsilon=epsilon).release(parameters)  # type: ignore[type-var]

        return calibrate.composed_budget(constructor, **vars(reports), initial_guess=initial_guess)

    def report_symbols(self, parameters: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        return self.symbols(parameters, mechanism)


def largest_loss(inner: Any, reports: Reports, parameters: dict[str, Any]) -> Any:
    """Return the loss of a report at which reports of ``inner.member`` meet their budget; NaN if there is none."""
    xp = namespace(reports.epsilon, reports.delta, reports.count)
    least, most = (xp.log(xp.asarray(end)) for end in checks.EPSILON_RANGE)
    guess = xp.clip(xp.log(2 * reports.gaussian_mu), least, xp.log(reports.epsilon))
    guess = guess if xp is np else jax.lax.stop_gradient(guess)
    given, budget = (inner, reports, parameters), (reports.epsilon, reports.delta)
    t = precise_parameter(_of_log_loss, given, *budget, initial_guess=-guess, ends=(-most, -least))
    return namespace(t).exp(-t)


def _of_log_loss(t: Real, given: tuple[Any, Reports, dict[str, Any]]) -> Guarantee:
    """Return the guarantee of reports of loss e^-t."""
    inner, reports, parameters = given
    return reports.estimated(inner.member(namespace(t).exp(-t), parameters))
