"""Truncated Laplace and truncated Gaussian noise."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from accountants import calibrate
from accountants.scale import rescaled
from accountants.tune.domains import Between, Domain, LogBetween
from accountants.tune.families.noise import check_budget, scale_of, scale_symbol
from accountants.tune.families.reports import Report, Reports
from accountants.tune.family import on_unit
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.mechanisms import named_additive as named
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import Real, RealArray, namespace
from dpkernels.pytrees import pytree
from dpkernels.roots import safe_root

# Truncated noise as wide as the interval [-1, 1] lets it be nearly uniform, and so narrow that nothing is cut off.
_WIDTHS = LogBetween(0.05, 20.0, span=(-1.0, 0.5))


@dataclass(frozen=True)
class _Truncated(Report):
    """Noise of bounded support for a budget and a sensitivity; ``law`` is cut off."""

    law: ClassVar[type[Gaussian | Laplace]]
    epsilon: Any
    delta: Any
    sensitivity: Any

    @property
    def budget(self) -> tuple[Real, Real]:
        return self.epsilon, self.delta

    @property
    def _width(self) -> str:
        return f"{scale_symbol(self.law(1.0))}/T"

    def report_domains(self, reports: Reports) -> dict[str, Domain]:
        """How wide the noise is next to the interval [-T, T] that it is cut to; T is solved for."""
        return {self._width: _WIDTHS}

    def shape(self, parameters: dict[str, Any]) -> Reweighted:
        """The noise on [-1, 1]."""
        return Reweighted(self.law(parameters[self._width]), -1.0, 1.0, 0.0)

    def report(self, reports: Reports, parameters: dict[str, Any]) -> Additive:
        """As wide as all reports need."""
        law, D = self.shape(parameters), self.sensitivity
        start = jax.lax.stop_gradient(D / reports.about / jnp.sqrt(law.variance))
        made = reports.estimated(Additive(rescaled(law, start), D))
        factor = calibrate.widening(made, epsilon=reports.epsilon, delta=reports.delta)
        return Additive(rescaled(law, start * factor), D)

    def spent(self, member: Any) -> float:
        return 0.0

    def released_report(self, reports: Reports, parameters: dict[str, Any], about: float | None) -> Additive:
        return calibrate.composed(self.shape(parameters), sensitivity=self.sensitivity, **vars(reports))

    def report_symbols(self, parameters: dict[str, Any], mechanism: Any) -> dict[str, Any]:
        return {**scale_of(mechanism.noise.kernel, self.law(1.0)), "T": mechanism.noise.high}


@pytree
@dataclass(frozen=True)
class TruncatedLaplace(_Truncated):
    """Laplace noise of scale D/eps on [A, B] (Mugunthan 2020) with free B; see ``truncated_laplace``."""

    law = Laplace

    @property
    def name(self) -> str:
        return "truncated laplace"

    @property
    def domains(self) -> dict[str, Domain]:
        """B in [B_min, B*]; at B_min A is -inf."""
        xp = namespace(self.epsilon, self.delta, self.sensitivity)
        odds = (xp.expm1(self.epsilon) + self.delta) / (2 * self.delta)
        lowest = self.sensitivity / self.epsilon * xp.log(xp.maximum(odds, 1.0))
        return {"B": Between(lowest, named.symmetric_bound(self.epsilon, self.delta, self.sensitivity))}

    def build(self, parameters: dict[str, Real]) -> Additive:
        """Next to B* the symmetric case: there A loses half of its digits, and all where eps is large."""
        B, (highest, symmetric) = parameters["B"], self._next_to_symmetric(parameters)
        made = named.truncated_laplace(
            epsilon=self.epsilon, delta=self.delta, sensitivity=self.sensitivity, upper=parameters["B"]
        )
        noise: Any = made.noise
        xp = namespace(B, noise.low)
        low, high = xp.where(symmetric, -highest, noise.low), xp.where(symmetric, highest, B)
        return dataclasses.replace(made, noise=Reweighted(noise.kernel, low, high, 0.0))

    def _next_to_symmetric(self, parameters: dict[str, Any]) -> tuple[Real, Real]:
        """(B*, whether B is next to it)."""
        highest = named.symmetric_bound(self.epsilon, self.delta, self.sensitivity)
        return highest, highest * (1 - 1e-9) <= parameters["B"]

    def release(self, parameters: dict[str, Any]) -> Additive:
        """As ``build``."""
        upper = None if self._next_to_symmetric(parameters)[1] else parameters["B"]
        return calibrate.truncated_laplace(
            epsilon=self.epsilon, delta=self.delta, sensitivity=self.sensitivity, upper=upper
        )

    def symbols(self, parameters: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        return {"A": mechanism.noise.low, "B": mechanism.noise.high}


@pytree
@dataclass(frozen=True)
class TruncatedGaussian(_Truncated):
    """Gaussian noise on [-T, T] (Cesar and Rogers 2021) with free sigma/T; see ``truncated_gaussian``.

    Noise c times as wide seen over a shift D is the noise seen over D/c, and delta grows with the shift: for each
    shape one T meets the budget.
    """

    law = Gaussian

    @property
    def name(self) -> str:
        return "truncated gaussian"

    @property
    def domains(self) -> dict[str, Domain]:
        """From what is a plain Gaussian in floats to what is nearly uniform."""
        return {"sigma/T": _WIDTHS}

    def build(self, parameters: dict[str, Real]) -> Additive:
        shape = parameters["sigma/T"]
        T = self.sensitivity / safe_root(_truncated_excess, (shape, self.epsilon, self.delta), 0.0, 2.0)
        law = Reweighted(Gaussian(shape * T), -T, T, 0.0)
        return Additive(law, self.sensitivity, self.epsilon, self.delta)

    def release(self, parameters: dict[str, Any]) -> Additive:
        return calibrate.scaled(
            self.shape(parameters), epsilon=self.epsilon, delta=self.delta, sensitivity=self.sensitivity
        )

    def symbols(self, parameters: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        return {"sigma": mechanism.noise.kernel.sigma, "T": mechanism.noise.high}


@on_unit.register
def _(family: _Truncated) -> tuple[Any, Any, Any]:
    return dataclasses.replace(family, sensitivity=1.0), -family.sensitivity, family.sensitivity


def _truncated_excess(s: RealArray, parameters: tuple[Real, Real, Real]) -> Real:
    """Z (delta(eps) - delta) of N(0, shape^2) on [-1, 1] over a shift s.

    The loss exceeds eps below b = clip(s/2 - shape^2 eps/s, s - 1, 1).
    """
    shape, eps, delta = parameters
    kernel = Gaussian(shape)
    b = jnp.clip(jax.lax.stop_gradient(s / 2 - shape**2 * eps / s), s - 1, 1.0)
    low, high = jnp.stack([-1.0 + 0 * s, -1.0 + 0 * s, -1.0 + 0 * s]), jnp.stack([b, b - s, 1.0 + 0 * s])
    p, q, total = kernel.mass(low, high)
    return p - jnp.exp(eps) * q - delta * total


def truncated_laplace(*, epsilon: Any, delta: Real, sensitivity: Real = 1.0) -> TruncatedLaplace:
    """Laplace noise of scale D/eps truncated to [A, B] (Mugunthan 2020), B free and A solved.

    Raises:
        ValueError: epsilon not in [0.01, 20]; delta not in (0, 1); sensitivity not in [1e-100, 1e100].
    """
    check_budget(epsilon, delta, sensitivity)
    return TruncatedLaplace(epsilon, delta, sensitivity)


def truncated_gaussian(*, epsilon: Real, delta: Real, sensitivity: Real = 1.0) -> TruncatedGaussian:
    """Gaussian noise truncated to [-T, T] (Cesar and Rogers 2021), sigma/T free; delta covers all.

    Raises:
        ValueError: epsilon not in [0.01, 20]; delta not in (0, 1); sensitivity not in [1e-100, 1e100].
    """
    check_budget(epsilon, delta, sensitivity)
    return TruncatedGaussian(epsilon, delta, sensitivity)
