"""Budget recycling at a tolerated error: the kernel's scale is free, q solved from the exact profile."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accountants import calibrate
from accountants.calibrate.composed import with_own_claim
from accountants.calibrate.conservative import conservative_parameter
from accountants.calibrate.reweighted import least_weight
from accountants.scale import infeasible_shift, rescaled
from accountants.tune.domains import Domain, LogBetween, Positive
from accountants.tune.families.noise import KERNELS, check_budget, scale_of, scale_symbol
from accountants.tune.families.reports import Report, Reports, largest_loss
from dpkernels import checks
from dpkernels.distributions.base import Distribution
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.mechanisms import named_additive as named
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import Real, namespace
from dpkernels.pytrees import pytree
from dpkernels.solve import NotPrivateError, first_feasible

# Deltas next to 1e-12 are known to some percent only, in floats.
_WIDENINGS = (0.0, *np.geomspace(1e-12, 1e-2, 11))
# ln of the widest scale where a search starts, in units of the least one that may do.
SPAN = 7.5


@pytree
@dataclass(frozen=True)
class Recycled(Report):
    """Budget-recycled noise; see ``budget_recycled``.

    Attributes:
        kernel: the law of a draw at unit scale.
        epsilon: eps.
        delta: delta.
        sensitivity: D.
        theta: tolerated error; None where it is free.
    """

    kernel: Distribution
    epsilon: Any
    delta: Any
    sensitivity: Any
    theta: Any = None

    @property
    def name(self) -> str:
        return f"recycled {type(self.kernel).__name__.lower()}"

    @property
    def domains(self) -> dict[str, Domain]:
        least = self.sensitivity / infeasible_shift(self.kernel, self.epsilon, self.delta)
        scale: dict[str, Domain] = {scale_symbol(self.kernel): Positive(least, span=(0.0, SPAN))}
        return scale if self.theta is not None else {**scale, "theta": self._thetas}

    @property
    def _thetas(self) -> Domain:
        """Wide, yet closed: far out recycling does nothing, and steps went to infinity. Starts are at 0.1 to 2000 D."""
        return LogBetween(1e-3 * self.sensitivity, 1e4 * self.sensitivity, span=(-0.4, 0.93))

    @property
    def budget(self) -> tuple[Real, Real]:
        return self.epsilon, self.delta

    def on_unit(self) -> tuple[Any, Any, Any]:
        D, theta = self.sensitivity, self.theta
        return replace(self, sensitivity=1.0, theta=None if theta is None else theta / D), -D, D

    def build(self, parameters: dict[str, Real]) -> Additive:
        kernel, theta = self.drawn(parameters)
        u = least_weight(kernel, theta, self.sensitivity, self.epsilon, self.delta)
        return Additive(Reweighted(kernel, -theta, theta, u), self.sensitivity, self.epsilon, self.delta)

    def release(self, parameters: dict[str, Any]) -> Additive:
        """The best kernel may be the narrowest that is feasible at all: then it is widened past rounding errors."""
        kernel, theta = self.drawn(parameters)
        target = {"epsilon": self.epsilon, "delta": self.delta, "sensitivity": self.sensitivity}

        def wider(margin: float) -> tuple[Distribution, float]:
            law = rescaled(kernel, 1 + margin)
            return law, float(calibrate.recycling_rate(law, theta, **target))

        try:
            law, q = first_feasible(map(wider, _WIDENINGS), lambda made: not math.isnan(made[1]))
        except NotPrivateError:
            return calibrate.budget_recycled(kernel, theta=theta, **target)  # Says what is feasible.
        return named.budget_recycled(law, theta=theta, q=q, **target)

    def drawn(self, parameters: dict[str, Any]) -> tuple[Distribution, Any]:
        """The kernel, and theta."""
        kernel = rescaled(self.kernel, parameters[scale_symbol(self.kernel)])
        return kernel, parameters["theta"] if self.theta is None else self.theta

    def symbols(self, parameters: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        return recycled_symbols(self.kernel, mechanism.noise)

    def report_domains(self, reports: Reports) -> dict[str, Domain]:
        """The scale in units of about what reports without recycling need."""
        xp = namespace(reports.gaussian_mu, *jax.tree.leaves(self))
        need = self.sensitivity / reports.gaussian_mu / xp.sqrt(self.kernel.variance)
        return {**self.domains, scale_symbol(self.kernel): Positive(need, span=(0.1, 2.5))}

    def member(self, loss: Any, parameters: dict[str, Any]) -> Additive:
        """Each redraw adds this loss: q = 1 - e^-loss at a kernel that the parameters choose."""
        kernel, theta = self.drawn(parameters)
        return Additive(Reweighted(kernel, -theta, theta, namespace(loss).exp(-loss)), self.sensitivity)

    def report(self, reports: Reports, parameters: dict[str, Any]) -> Additive:
        return self.member(largest_loss(self, reports, parameters), parameters)

    def spent(self, member: Any) -> Any:
        return -jnp.log(member.noise.outside)

    def released_report(self, reports: Reports, parameters: dict[str, Any], initial_guess: float | None) -> Additive:
        """At the estimated q as narrow a kernel as the bracket allows: delta varies more with the width than with q.

        Its claim is that of one report.
        """
        if initial_guess is not None:
            checks.positive("initial_guess", initial_guess)
        loss = largest_loss(self, reports, parameters) if initial_guess is None else initial_guess
        symbol, epsilon, delta = scale_symbol(self.kernel), float(reports.epsilon), float(reports.delta)

        def wider(t: float) -> Additive:
            return self.member(loss, {**parameters, symbol: parameters[symbol] * math.exp(t)})

        t = conservative_parameter(lambda t: reports.of(wider(t)), epsilon, delta, is_known=initial_guess is not None)
        return with_own_claim(wider(t), delta / reports.count)

    def report_symbols(self, parameters: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        return self.symbols(parameters, mechanism)


def recycled_symbols(unit: Distribution, noise: Reweighted) -> dict[str, Any]:
    """Of a recycled law whose kernel is one at unit scale, scaled."""
    return {**scale_of(noise.kernel, unit), "theta": noise.high, "q": 1 - noise.outside}


def budget_recycled(
    kernel: str | Distribution, *, epsilon: Real, delta: Real, sensitivity: Any = 1.0, theta: Any = None
) -> Recycled:
    """Budget-recycled noise (Jiang 2024) under exact accounting.

    At a tolerated error sigma (or b) is free, and q the largest for it. Without one theta/sigma and q are, and sigma is
    the least for them; deltas below 1e-15, which floats do not resolve, give wider noise than there might be, or none.

    Args:
        kernel: "gaussian", "laplace", or any even law at unit scale.
        epsilon: eps, in [0.01, 20].
        delta: in (0, 1).
        sensitivity: D; neighbouring: true values differ by at most D.
        theta: tolerated error; by default that of an ``acceptance`` objective, for other objectives it is free.

    Raises:
        ValueError: epsilon not in [0.01, 20]; delta not in (0, 1); sensitivity not in [1e-100, 1e100]; theta not
            positive; an unknown kernel.
        TypeError: a law that cannot be rescaled.
    """
    check_budget(epsilon, delta, sensitivity)
    if theta is not None:
        checks.positive("theta", theta)
    return Recycled(kernel_of(kernel), epsilon, delta, sensitivity, theta)


def kernel_of(kernel: str | Distribution) -> Distribution:
    """A law at unit scale, of its name or itself."""
    if isinstance(kernel, str):
        checks.one_of("kernel", kernel, KERNELS)
        return KERNELS[kernel]
    if not isinstance(kernel, Distribution):
        raise TypeError(f"kernel: {kernel!r} is no law; 'gaussian', 'laplace' or a law at unit scale is needed")
    rescaled(kernel, 1.0)
    return kernel
