"""Families of additive noise that its budget determines, for comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from accountants import calibrate
from accountants.tune.family import Determined
from dpkernels import checks
from dpkernels.mechanisms import named_additive as named
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import Real
from dpkernels.pytrees import pytree

_PLAIN: dict[str, Callable[..., Additive]] = {
    "laplace": named.laplace,
    "gaussian": calibrate.gaussian,
}


@partial(pytree, static=("kind",))
@dataclass(frozen=True)
class PlainNoise(Determined):
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
