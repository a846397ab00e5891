"""Budget recycling at no error in particular: the law's shape is free, its scale solved from the exact profile."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from accountants import calibrate
from accountants.scale import rescaled
from accountants.tune.domains import Domain, LogBetween
from accountants.tune.excess import recycled_excess
from accountants.tune.families.recycled import recycled_symbols
from accountants.tune.family import Family, on_unit
from dpkernels.distributions.base import Distribution
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import Real, namespace
from dpkernels.pytrees import pytree
from dpkernels.roots import safe_root

# The least theta in units of the kernel's scale, times e^eps, and for any eps: a spike of e^eps times the density.
_SPIKE, _THINNEST = 1e-2, 1e-8
# The step of the log density at theta: the least in units of eps, and the most, which is all but truncation.
_LEAST_STEP, _MOST_STEP = 1e-2, 28.0


@pytree
@dataclass(frozen=True)
class RecycledShape(Family):
    """Budget-recycled noise with free theta; see ``budget_recycled``.

    Delta falls as a law is made wider as a whole, theta with it: every theta/scale and q has one scale that meets the
    budget. So every point of the search is feasible, which those of scale and theta are not.

    Attributes:
        kernel: the law of a draw at unit scale.
        epsilon: eps.
        delta: delta.
        sensitivity: D.
    """

    kernel: Distribution
    epsilon: Any
    delta: Any
    sensitivity: Any

    @property
    def name(self) -> str:
        return f"recycled {type(self.kernel).__name__.lower()}"

    @property
    def domains(self) -> dict[str, Domain]:
        """Theta from a spike to where what is beyond is less than delta can see."""
        xp = namespace(self.epsilon)
        spike = xp.maximum(_SPIKE * xp.exp(-xp.asarray(self.epsilon)), _THINNEST)
        steps = LogBetween(_LEAST_STEP * self.epsilon, _MOST_STEP)
        return {"theta/scale": LogBetween(spike, self._farthest), "-ln(1 - q)": steps}

    @property
    def _farthest(self) -> Real:
        """z of tail t = delta (1 - delta) e^-eps/4: over a shift 2z delta(eps) >= 1 - t - e^eps t, above delta."""
        tail = self.delta * (1 - self.delta) * namespace(self.epsilon).exp(-self.epsilon) / 4
        return self.kernel.isf(tail)

    @property
    def budget(self) -> tuple[Real, Real]:
        return self.epsilon, self.delta

    def build(self, parameters: dict[str, Real]) -> Additive:
        shape = self._shape(parameters)
        shift = safe_root(_excess, (shape, self.epsilon, self.delta), 0.0, 2 * self._farthest)
        return Additive(rescaled(shape, self.sensitivity / shift), self.sensitivity, self.epsilon, self.delta)

    def _shape(self, parameters: dict[str, Any]) -> Reweighted:
        theta, step = parameters["theta/scale"], parameters["-ln(1 - q)"]
        return Reweighted(self.kernel, -theta, theta, namespace(step).exp(-step))

    def release(self, parameters: dict[str, Any]) -> Additive:
        return calibrate.scaled(
            self._shape(parameters), epsilon=self.epsilon, delta=self.delta, sensitivity=self.sensitivity
        )

    def symbols(self, parameters: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        return recycled_symbols(self.kernel, mechanism.noise)


@on_unit.register
def _(family: RecycledShape) -> tuple[Any, Any, Any]:
    return replace(family, sensitivity=1.0), -family.sensitivity, family.sensitivity


def _excess(shift: Any, parameters: tuple[Reweighted, Real, Real]) -> Real:
    shape, eps, delta = parameters
    return recycled_excess(shape.kernel, shape.outside, shape.high, shift, eps, delta)
