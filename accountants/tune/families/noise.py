"""Families of additive noise: determined by its budget, merged Laplace, staircase and truncated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any, ClassVar

import jax
import numpy as np

from accountants import calibrate
from accountants.calibrate.composed import gaussian_scale, precise_scale_factor
from accountants.calibrate.reweighted import shape_shift
from accountants.profile import epsilon as realised_epsilon
from accountants.scale import rescaled
from accountants.tune.domains import Between, Domain, LogBetween, Ordered
from accountants.tune.family import (
    ComposableFamily,
    CompositionTarget,
    Determined,
    PureDPFamily,
    sensitivity_in_units,
)
from dpkernels import checks
from dpkernels.distributions.base import Distribution
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.distributions.merged_laplace import MergedLaplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.distributions.staircase import Staircase
from dpkernels.mechanisms import named_additive as named
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import Real, RealArray, namespace
from dpkernels.pytrees import pytree
from dpkernels.solve import MARGINS, first_feasible

_DETERMINED: dict[str, Callable[..., Additive]] = {
    "laplace": named.laplace,
    "gaussian": calibrate.gaussian,
}
KERNELS: dict[str, Distribution] = {"gaussian": Gaussian(1.0), "laplace": Laplace(1.0)}
# The names of the scale of a kernel.
_SCALES: dict[type, str] = {Gaussian: "sigma"}
# Deeper falls of merged Laplace noise between breaks, in units of eps, are no optimum.
_DEEPEST = 1.5
# Gaps between its breaks, in units of D: a window of length D sees no two sides of a wider one.
_GAPS = (1e-4, 2.0)
# Truncated noise as wide as the interval [-1, 1] lets it be nearly uniform, and so narrow that nothing is cut off.
_WIDTHS = LogBetween(0.05, 20.0, span=(-1.0, 0.5))


def check_budget(epsilon: Real, delta: Real, sensitivity: Real) -> None:
    """Refuse budgets out of range."""
    checks.epsilon(epsilon)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    checks.sensitivity(sensitivity)


def scale_name(kernel: Distribution) -> str:
    """Return the name of the kernel's scale."""
    return _SCALES.get(type(kernel), "scale")


def scale_of(kernel: Distribution, unit: Distribution) -> dict[str, Any]:
    """Return the kernel's scale by its name, from quantiles of it and of the same kernel at unit scale."""

    def width(noise: Distribution) -> Any:
        return noise.isf(0.1 * namespace(*jax.tree.leaves(noise)).ones(()))

    return {scale_name(unit): width(kernel) / width(unit)}


# Noise that its budget determines


@partial(pytree, static=("kind",))
@dataclass(frozen=True)
class PlainNoise(Determined, ComposableFamily):
    """Additive noise that its budget determines.

    Attributes:
        kind: a name in ``_DETERMINED``.
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

    def on_unit(self) -> tuple[Any, Any, Any]:
        return sensitivity_in_units(self)

    def build(self, free: dict[str, Real]) -> Additive:
        given = {} if self.delta is None else {"delta": self.delta}
        return _DETERMINED[self.kind](epsilon=self.epsilon, sensitivity=self.sensitivity, **given)

    def composed_build(self, target: CompositionTarget, free: dict[str, Any]) -> Additive:
        return calibrate.composed(KERNELS[self.kind], sensitivity=self.sensitivity, **vars(target))

    def composed_release(
        self, target: CompositionTarget, free: dict[str, Any], initial_guess: float | None
    ) -> Additive:
        return self.composed_build(target, free)

    def composed_parameters(self, free: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        return scale_of(mechanism.noise, KERNELS[self.kind])


def laplace(*, epsilon: Real, sensitivity: Real = 1.0) -> PlainNoise:
    """Laplace noise of scale D/eps: nothing is free."""
    check_budget(epsilon, 0.5, sensitivity)
    return PlainNoise("laplace", epsilon, None, sensitivity)


def gaussian(*, epsilon: Real, delta: Real, sensitivity: Real = 1.0) -> PlainNoise:
    """The analytic Gaussian (Balle and Wang 2018): nothing is free."""
    check_budget(epsilon, delta, sensitivity)
    return PlainNoise("gaussian", epsilon, delta, sensitivity)


# Merged Laplace and staircase noise


@partial(pytree, static=("segments",))
@dataclass(frozen=True)
class MergedLaplaces(PureDPFamily):
    """Merged Laplace noise (Mugunthan 2020) with free rates and breaks; see ``merged_laplace``.

    Free are the breaks c_i and the falls f_i = r_i (c_i - c_(i-1)) of the log density between them, in the unit of its
    fall over D beyond the last break; then all rates are scaled until the largest fall over a window of length D is
    eps. That fall is linear in the rates, so this is closed.

    Attributes:
        epsilon: eps.
        sensitivity: D.
        segments: n, how many rates.
    """

    epsilon: Any
    sensitivity: Any
    segments: int

    @property
    def name(self) -> str:
        return f"merged laplace of {self.segments}"

    @property
    def domains(self) -> dict[str, Domain]:
        n = self.segments - 1
        low, high = (gap * self.sensitivity for gap in _GAPS)
        return {"falls": Between(0.0, _DEEPEST, count=n), "breaks": Ordered(n, low, high, span=(-0.1, 1.2))}

    def on_unit(self) -> tuple[Any, Any, Any]:
        return sensitivity_in_units(self)

    def build(self, free: dict[str, Real]) -> Additive:
        breaks: Any = free["breaks"]
        noise = MergedLaplace(tuple(self._rates(free)), tuple(breaks))
        return Additive(noise, self.sensitivity, self.epsilon, named.TABLE_DELTA)

    def _rates(self, free: dict[str, Any]) -> RealArray:
        c, D = free["breaks"], self.sensitivity
        xp = namespace(c, D)
        c = xp.asarray(c)
        widths = xp.diff(c, prepend=0.0)
        rates = xp.append(xp.asarray(free["falls"]) / widths, 1 / D)
        return rates * self.epsilon / _steepest_window(rates, c, D, xp)

    def release(self, free: dict[str, Any]) -> Additive:
        """Rates lowered by rounding errors until the pure level, as computed, is at most eps."""
        rates = self._rates(free)

        def lower(margin: float) -> Additive:
            return named.merged_laplace(
                rates=tuple(float(rate) * (1 - margin) for rate in rates),
                breaks=tuple(free["breaks"]),
                sensitivity=self.sensitivity,
                epsilon=self.epsilon,
                delta=named.TABLE_DELTA,
            )

        return first_feasible(map(lower, MARGINS), lambda made: realised_epsilon(made) <= self.epsilon)

    def parameters(self, free: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        xp = namespace(*mechanism.noise.rates)
        return {"rates": xp.stack(mechanism.noise.rates), "breaks": xp.stack(mechanism.noise.breaks)}


def _steepest_window(rates: Real, c: Real, D: Real, xp: ModuleType) -> Real:
    """The largest integral of the slope over a window of length D, which starts at 0, at a break or D before one."""
    starts = xp.concatenate([xp.zeros(1), c, xp.maximum(c - D, 0.0)])[:, None]
    left, right = xp.concatenate([xp.zeros(1), c]), xp.concatenate([c, xp.full(1, np.inf)])
    inside = xp.minimum(starts + D, right) - xp.maximum(starts, left)
    return (xp.maximum(inside, 0.0) * rates).sum(-1).max()


def merged_laplace(*, epsilon: Real, sensitivity: Real = 1.0, segments: int = 3) -> MergedLaplaces:
    """Merged Laplace noise (Mugunthan 2020), pure eps-DP, its rates and breaks free.

    There are many local optima: with more ``starts``, see ``best``, a better one may be found.

    Raises:
        ValueError: epsilon not in [0.01, 20]; sensitivity not in [1e-100, 1e100]; segments not in 2..8.
    """
    check_budget(epsilon, 0.5, sensitivity)
    return MergedLaplaces(epsilon, sensitivity, checks.whole("segments", segments, 2, 8))


@pytree
@dataclass(frozen=True)
class Staircases(PureDPFamily):
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

    def on_unit(self) -> tuple[Any, Any, Any]:
        return sensitivity_in_units(self)

    def build(self, free: dict[str, Real]) -> Additive:
        noise = Staircase(self.epsilon, self.sensitivity, free["gamma"])
        return Additive(noise, self.sensitivity, self.epsilon, named.TABLE_DELTA)

    def release(self, free: dict[str, Any]) -> Additive:
        return named.staircase(epsilon=self.epsilon, sensitivity=self.sensitivity, gamma=free["gamma"])

    def parameters(self, free: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        return {"gamma": free["gamma"]}


def staircase(*, epsilon: Real, sensitivity: Real = 1.0) -> Staircases:
    """Staircase noise (Geng and Viswanath 2014), pure eps-DP, with the share gamma of the high steps free.

    For the acceptance of theta < D the best gamma is often theta/D, where the first step ends at theta: a kink.

    Raises:
        ValueError: epsilon not in [0.01, 20]; sensitivity not in [1e-100, 1e100].
    """
    check_budget(epsilon, 0.5, sensitivity)
    return Staircases(epsilon, sensitivity)


# Truncated noise


@dataclass(frozen=True)
class _Truncated(ComposableFamily):
    """Noise of bounded support for a budget and a sensitivity; ``kernel`` is truncated."""

    kernel: ClassVar[type[Gaussian | Laplace]]
    epsilon: Any
    delta: Any
    sensitivity: Any

    @property
    def budget(self) -> tuple[Real, Real]:
        return self.epsilon, self.delta

    def on_unit(self) -> tuple[Any, Any, Any]:
        return sensitivity_in_units(self)

    @property
    def _width(self) -> str:
        return f"{scale_name(self.kernel(1.0))}/bound"

    def composed_domains(self, target: CompositionTarget) -> dict[str, Domain]:
        """How wide the noise is next to the interval [-T, T] that it is cut to; T is solved for."""
        return {self._width: _WIDTHS}

    def shape(self, free: dict[str, Any]) -> Reweighted:
        """The noise on [-1, 1]."""
        return Reweighted(self.kernel(free[self._width]), -1.0, 1.0, 0.0)

    def composed_build(self, target: CompositionTarget, free: dict[str, Any]) -> Additive:
        """Return noise as wide as all releases need."""
        shape, D = self.shape(free), self.sensitivity
        start = gaussian_scale(shape, D, target.gaussian_ratio)
        made = target.estimated(Additive(rescaled(shape, start), D))
        return Additive(rescaled(shape, start * precise_scale_factor(made, target.epsilon, target.delta)), D)

    def composed_release(
        self, target: CompositionTarget, free: dict[str, Any], initial_guess: float | None
    ) -> Additive:
        return calibrate.composed(self.shape(free), sensitivity=self.sensitivity, **vars(target))

    def composed_parameters(self, free: dict[str, Any], mechanism: Any) -> dict[str, Any]:
        return {**scale_of(mechanism.noise.kernel, self.kernel(1.0)), "bound": mechanism.noise.high}


@pytree
@dataclass(frozen=True)
class TruncatedLaplace(_Truncated):
    """Laplace noise of scale D/eps on [A, B] (Mugunthan 2020) with free B; see ``truncated_laplace``."""

    kernel = Laplace

    @property
    def name(self) -> str:
        return "truncated laplace"

    @property
    def domains(self) -> dict[str, Domain]:
        """B in [B_min, B*]; at B_min A is -inf."""
        xp = namespace(self.epsilon, self.delta, self.sensitivity)
        odds = (xp.expm1(self.epsilon) + self.delta) / (2 * self.delta)
        lowest = self.sensitivity / self.epsilon * xp.log(xp.maximum(odds, 1.0))
        return {"upper": Between(lowest, named.symmetric_bound(self.epsilon, self.delta, self.sensitivity))}

    def build(self, free: dict[str, Real]) -> Additive:
        """Next to B* the symmetric case: there A loses half of its digits, and all where eps is large."""
        B, (highest, symmetric) = free["upper"], self._next_to_symmetric(free)
        made = named.truncated_laplace(
            epsilon=self.epsilon, delta=self.delta, sensitivity=self.sensitivity, upper=free["upper"]
        )
        noise: Any = made.noise
        xp = namespace(B, noise.low)
        low, high = xp.where(symmetric, -highest, noise.low), xp.where(symmetric, highest, B)
        return replace(made, noise=Reweighted(noise.kernel, low, high, 0.0))

    def _next_to_symmetric(self, free: dict[str, Any]) -> tuple[Real, Real]:
        """(B*, whether B is next to it)."""
        highest = named.symmetric_bound(self.epsilon, self.delta, self.sensitivity)
        return highest, highest * (1 - 1e-9) <= free["upper"]

    def release(self, free: dict[str, Any]) -> Additive:
        """As ``build``."""
        upper = None if self._next_to_symmetric(free)[1] else free["upper"]
        return calibrate.truncated_laplace(
            epsilon=self.epsilon, delta=self.delta, sensitivity=self.sensitivity, upper=upper
        )

    def parameters(self, free: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        return {"lower": mechanism.noise.low, "upper": mechanism.noise.high}


@pytree
@dataclass(frozen=True)
class TruncatedGaussian(_Truncated):
    """Gaussian noise on [-T, T] (Cesar and Rogers 2021) with free sigma/bound; see ``truncated_gaussian``.

    Noise c times as wide seen over a shift D is the noise seen over D/c, and delta grows with the shift: for each
    shape one T meets the budget.
    """

    kernel = Gaussian

    @property
    def name(self) -> str:
        return "truncated gaussian"

    @property
    def domains(self) -> dict[str, Domain]:
        """From what is a plain Gaussian in floats to what is nearly uniform."""
        return {"sigma/bound": _WIDTHS}

    def build(self, free: dict[str, Real]) -> Additive:
        shape = free["sigma/bound"]
        T = self.sensitivity / shape_shift(Gaussian(shape), 1.0, 0.0, self.epsilon, self.delta, most=2.0)
        noise = Reweighted(Gaussian(shape * T), -T, T, 0.0)
        return Additive(noise, self.sensitivity, self.epsilon, self.delta)

    def release(self, free: dict[str, Any]) -> Additive:
        return calibrate.scaled(self.shape(free), epsilon=self.epsilon, delta=self.delta, sensitivity=self.sensitivity)

    def parameters(self, free: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        return {"sigma": mechanism.noise.kernel.sigma, "bound": mechanism.noise.high}


def truncated_laplace(*, epsilon: Any, delta: Real, sensitivity: Real = 1.0) -> TruncatedLaplace:
    """Laplace noise of scale D/eps truncated to [A, B] (Mugunthan 2020), B free and A solved.

    Raises:
        ValueError: epsilon not in [0.01, 20]; delta not in (0, 1); sensitivity not in [1e-100, 1e100].
    """
    check_budget(epsilon, delta, sensitivity)
    return TruncatedLaplace(epsilon, delta, sensitivity)


def truncated_gaussian(*, epsilon: Real, delta: Real, sensitivity: Real = 1.0) -> TruncatedGaussian:
    """Gaussian noise truncated to [-T, T] (Cesar and Rogers 2021), sigma/bound free; delta covers all.

    Raises:
        ValueError: epsilon not in [0.01, 20]; delta not in (0, 1); sensitivity not in [1e-100, 1e100].
    """
    check_budget(epsilon, delta, sensitivity)
    return TruncatedGaussian(epsilon, delta, sensitivity)
