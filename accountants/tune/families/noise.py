"""Families of additive noise: determined by its budget, merged Laplace, staircase and truncated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from accountants import calibrate
from accountants.profile import epsilon as realised_epsilon
from accountants.scale import rescaled
from accountants.tune.domains import Between, Domain, LogBetween, Ordered
from accountants.tune.families.composed import Composed, PureDPFamily
from accountants.tune.families.constructed import Constructed, Scaled, constructed, scale_of
from accountants.tune.family import Family
from dpkernels import checks
from dpkernels.distributions.base import Distribution
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.distributions.merged_laplace import MergedLaplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.mechanisms import named_additive as named
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import Real, RealArray, namespace
from dpkernels.pytrees import pytree
from dpkernels.solve import MARGINS, first_feasible

__all__ = ["gaussian", "laplace", "merged_laplace", "staircase", "truncated_gaussian", "truncated_laplace"]

KERNELS: dict[str, Distribution] = {"gaussian": Gaussian(1.0), "laplace": Laplace(1.0)}
_DEEPEST = 1.5  # Deeper falls of merged Laplace noise between breaks, in units of eps, are no optimum.
_GAPS = (1e-4, 2.0)  # Between its breaks, in units of D: a window of length D sees no two sides of a wider one.
# Scales of truncated noise on [-1, 1], from noise without visible truncation to nearly uniform noise.
_WIDTHS = LogBetween(0.05, 20.0, span=(-1.0, 0.5))


def check_budget(epsilon: Real, delta: Real, sensitivity: Real) -> None:
    """Refuse a budget or a sensitivity that is out of range."""
    checks.epsilon(epsilon)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    checks.sensitivity(sensitivity)


def laplace(*, epsilon: Real, sensitivity: Real = 1.0) -> Constructed:
    """Return the family of Laplace noise of scale D/eps, which has no free parameter; see ``gaussian`` for errors."""
    check_budget(epsilon, 0.5, sensitivity)
    return constructed(named.laplace, epsilon=epsilon, sensitivity=sensitivity)


def gaussian(*, epsilon: Real, delta: Real, sensitivity: Real = 1.0) -> Scaled:
    """Return the family of the analytic Gaussian mechanism (Balle and Wang 2018), which has no free parameter.

    Raises:
        ValueError: epsilon is not in [0.01, 20], delta is not in (0, 1), or sensitivity is not in [1e-100, 1e100].
    """
    check_budget(epsilon, delta, sensitivity)
    return Scaled(Gaussian(1.0), epsilon, delta, sensitivity)


@partial(pytree, static=("segments",))
@dataclass(frozen=True)
class MergedLaplaces(PureDPFamily):
    """Merged Laplace noise (Mugunthan 2020) with free rates and breaks; see ``merged_laplace``.

    Free are the breaks c_i and the falls f_i = r_i (c_i - c_(i-1)) of the log density between them, in the unit of its
    fall over D beyond the last break. Then all rates are scaled until the largest fall over a window of length D, which
    is linear in the rates, is eps.
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
        return dataclasses.replace(self, sensitivity=1.0), -self.sensitivity, self.sensitivity

    def build(self, free: dict[str, Real]) -> Additive:
        breaks: Any = free["breaks"]
        noise = MergedLaplace(tuple(self._rates(free)), tuple(breaks))
        return Additive(noise, self.sensitivity, self.epsilon, named.TABLE_DELTA)

    def _rates(self, free: dict[str, Any]) -> RealArray:
        D = self.sensitivity
        xp = namespace(free["breaks"], D)
        c = xp.asarray(free["breaks"])
        rates = xp.append(xp.asarray(free["falls"]) / xp.diff(c, prepend=0.0), 1 / D)
        # The steepest window of length D starts at 0, at a break or D before one.
        starts = xp.concatenate([xp.zeros(1), c, xp.maximum(c - D, 0.0)])[:, None]
        left, right = xp.concatenate([xp.zeros(1), c]), xp.concatenate([c, xp.full(1, np.inf)])
        inside = xp.minimum(starts + D, right) - xp.maximum(starts, left)
        return rates * self.epsilon / (xp.maximum(inside, 0.0) * rates).sum(-1).max()

    def release(self, free: dict[str, Any]) -> Additive:
        """Return noise of rates that are lowered until the pure level, as computed, is at most eps."""
        rates, breaks = self._rates(free), tuple(free["breaks"])
        claim = {"sensitivity": self.sensitivity, "epsilon": self.epsilon, "delta": named.TABLE_DELTA}

        def lower(margin: float) -> Additive:
            return named.merged_laplace(
                rates=tuple(float(rate) * (1 - margin) for rate in rates), breaks=breaks, **claim
            )

        return first_feasible(map(lower, MARGINS), lambda made: realised_epsilon(made) <= self.epsilon)

    def parameters(self, free: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        xp = namespace(*mechanism.noise.rates)
        return {"rates": xp.stack(mechanism.noise.rates), "breaks": xp.stack(mechanism.noise.breaks)}


def merged_laplace(*, epsilon: Real, sensitivity: Real = 1.0, segments: int = 3) -> MergedLaplaces:
    """Return the family of merged Laplace noise (Mugunthan 2020), pure eps-DP, with free rates and breaks.

    There are many local optima: with more ``starts``, see ``best``, a better one may be found. See ``gaussian`` for
    errors; segments is in 2..8.
    """
    check_budget(epsilon, 0.5, sensitivity)
    return MergedLaplaces(epsilon, sensitivity, checks.whole("segments", segments, 2, 8))


def staircase(*, epsilon: Real, sensitivity: Real = 1.0) -> Constructed:
    """Return the family of staircase noise (Geng and Viswanath 2014), pure eps-DP, with free share gamma of high steps.

    For the acceptance of theta < D the best gamma is often theta/D, a kink. See ``gaussian`` for errors.
    """
    check_budget(epsilon, 0.5, sensitivity)
    free = (("gamma", Between(0.0, 1.0)),)
    return Constructed(named.staircase, {"epsilon": epsilon, "sensitivity": sensitivity}, free)


@pytree
class Truncated(Scaled):
    """Noise truncated to [-T, T] with a free ratio of the kernel's scale and T; see ``truncated_gaussian``."""

    @property
    def name(self) -> str:
        return f"truncated {super().name}"

    @property
    def domains(self) -> dict[str, Domain]:
        return {f"{self.kernel.lengths[0]}/bound": _WIDTHS}

    @property
    def most_shift(self) -> Any:
        return 2.0

    def shape(self, free: dict[str, Any]) -> Reweighted:
        width = free[f"{self.kernel.lengths[0]}/bound"]
        return Reweighted(rescaled(self.kernel, width), -1.0, 1.0, 0.0)

    def parameters(self, free: dict[str, Any], mechanism: Any) -> dict[str, Any]:
        return {**scale_of(mechanism.noise.kernel, self.kernel), "bound": mechanism.noise.high}


@pytree
class TruncatedLaplace(Truncated):
    """Laplace noise of scale D/eps on [A, B] with free B; one of several releases is on [-T, T], and its scale free."""

    @property
    def domains(self) -> dict[str, Domain]:
        """Return B in [B_min, B*]; at B_min A is -inf."""
        xp = namespace(self.epsilon, self.delta, self.sensitivity)
        odds = (xp.expm1(self.epsilon) + self.delta) / (2 * self.delta)
        lowest = self.sensitivity / self.epsilon * xp.log(xp.maximum(odds, 1.0))
        return {"upper": Between(lowest, named.symmetric_bound(**self.target))}

    def build(self, free: dict[str, Any]) -> Additive:
        """Return the symmetric case next to B*: there A loses half of its digits, and all where eps is large."""
        made = named.truncated_laplace(**self.target, upper=free["upper"])
        noise: Any = made.noise
        highest = named.symmetric_bound(**self.target)
        where = partial(namespace(noise.low, noise.high).where, self._is_symmetric(free))
        low, high = where(-highest, noise.low), where(highest, noise.high)
        return dataclasses.replace(made, noise=Reweighted(noise.kernel, low, high, 0.0))

    def _is_symmetric(self, free: dict[str, Any]) -> Any:
        return named.symmetric_bound(**self.target) * (1 - 1e-9) <= free["upper"]

    def release(self, free: dict[str, Any]) -> Additive:
        return calibrate.truncated_laplace(**self.target, upper=None if self._is_symmetric(free) else free["upper"])

    def parameters(self, free: dict[str, Any], mechanism: Any) -> dict[str, Any]:
        return {"lower": mechanism.noise.low, "upper": mechanism.noise.high}

    def composed_domains(self, target: Composed) -> dict[str, Domain]:
        return super().domains

    def composed_parameters(self, free: dict[str, Any], mechanism: Any) -> dict[str, Any]:
        return super().parameters(free, mechanism)


def truncated_laplace(*, epsilon: Any, delta: Real, sensitivity: Real = 1.0) -> TruncatedLaplace:
    """Return the family of Laplace noise of scale D/eps on [A, B] (Mugunthan 2020), with B free and A solved for.

    See ``gaussian`` for errors.
    """
    check_budget(epsilon, delta, sensitivity)
    return TruncatedLaplace(Laplace(1.0), epsilon, delta, sensitivity)


def truncated_gaussian(*, epsilon: Real, delta: Real, sensitivity: Real = 1.0) -> Truncated:
    """Return the family of Gaussian noise on [-T, T] (Cesar and Rogers 2021) with free sigma/bound; delta covers all.

    See ``gaussian`` for errors.
    """
    check_budget(epsilon, delta, sensitivity)
    return Truncated(Gaussian(1.0), epsilon, delta, sensitivity)


# The families that ``dpkernels tune`` compares.
COMPARED: tuple[Callable[..., Family], ...] = (
    *(laplace, staircase, merged_laplace),
    *(gaussian, truncated_laplace, truncated_gaussian),
)
