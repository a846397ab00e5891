"""Families of additive noise that its budget determines, for comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, singledispatch
from typing import Any

import jax

from accountants import calibrate
from accountants.tune.domains import Domain
from accountants.tune.families.reports import Report, Reports
from accountants.tune.family import Determined, on_unit
from dpkernels import checks
from dpkernels.distributions.base import Distribution
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.mechanisms import named_additive as named
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import Real, namespace
from dpkernels.pytrees import pytree

_PLAIN: dict[str, Callable[..., Additive]] = {
    "laplace": named.laplace,
    "gaussian": calibrate.gaussian,
}
KERNELS: dict[str, Distribution] = {"gaussian": Gaussian(1.0), "laplace": Laplace(1.0)}


@singledispatch
def scale_symbol(kernel: Distribution) -> str:
    """What the source calls the kernel's scale."""
    return "scale"


@scale_symbol.register
def _(kernel: Gaussian) -> str:
    return "sigma"


@scale_symbol.register
def _(kernel: Laplace) -> str:
    return "b"


def scale_of(kernel: Distribution, unit: Distribution) -> dict[str, Any]:
    """Its scale by its symbol, from a quantile of it and of the law of its shape at unit scale."""

    def width(law: Distribution) -> Any:
        return law.isf(0.1 * namespace(*jax.tree.leaves(law)).ones(()))

    return {scale_symbol(unit): width(kernel) / width(unit)}


@partial(pytree, static=("kind",))
@dataclass(frozen=True)
class PlainNoise(Determined, Report):
    """Additive noise that its budget determines.

    Attributes:
        kind: a name in ``_PLAIN``.
        epsilon: eps.
        delta: delta; None for pure noise.
        sensitivity: D.
    """

    kind: str
    epsilon: Any
    delta: Any
    sensitivity: Any

    @property
    def budget(self) -> tuple[Real, Real]:
        return self.epsilon, 0.0 if self.delta is None else self.delta

    def build(self, parameters: dict[str, Real]) -> Additive:
        given = {} if self.delta is None else {"delta": self.delta}
        return _PLAIN[self.kind](epsilon=self.epsilon, sensitivity=self.sensitivity, **given)

    def report_domains(self, reports: Reports) -> dict[str, Domain]:
        return {}

    def report(self, reports: Reports, parameters: dict[str, Any]) -> Additive:
        return calibrate.composed(KERNELS[self.kind], sensitivity=self.sensitivity, **vars(reports))

    def spent(self, member: Any) -> float:
        return 0.0

    def released_report(self, reports: Reports, parameters: dict[str, Any], about: float | None) -> Additive:
        return self.report(reports, parameters)

    def report_symbols(self, parameters: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        return scale_of(mechanism.noise, KERNELS[self.kind])


@on_unit.register
def _(family: PlainNoise) -> tuple[Any, Any, Any]:
    return replace(family, sensitivity=1.0), -family.sensitivity, family.sensitivity


def laplace(*, epsilon: Real, sensitivity: Real = 1.0) -> PlainNoise:
    """Laplace noise of scale D/eps: nothing is free."""
    check_budget(epsilon, 0.5, sensitivity)
    return PlainNoise("laplace", epsilon, None, sensitivity)


def gaussian(*, epsilon: Real, delta: Real, sensitivity: Real = 1.0) -> PlainNoise:
    """The analytic Gaussian (Balle and Wang 2018): nothing is free."""
    check_budget(epsilon, delta, sensitivity)
    return PlainNoise("gaussian", epsilon, delta, sensitivity)


def check_budget(epsilon: Real, delta: Real, sensitivity: Real) -> None:
    """Refuse budgets out of range."""
    checks.epsilon(epsilon)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    checks.sensitivity(sensitivity)
