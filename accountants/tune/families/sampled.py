"""Budget recycling on a sample: the kernel's scale, q and the sampling rate p together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from accountants import recycling, subsampling
from accountants.calibrate.reweighted import least_weight
from accountants.profile import delta as realised_delta
from accountants.recycling import Subsampled
from accountants.scale import infeasible_shift, rescaled
from accountants.tune import errors
from accountants.tune.certified import ROUNDING, realised, refuse_above
from accountants.tune.domains import Domain, LogBetween, Positive
from accountants.tune.families.noise import check_budget, scale_of
from accountants.tune.families.recycled import SPAN, kernel_of
from accountants.tune.family import Family
from dpkernels import checks
from dpkernels.distributions.base import Distribution
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import Real, namespace
from dpkernels.pytrees import pytree

# Of the rate, relative to delta: below p = delta there is no budget.
_LEAST_RATE = 100.0
# A best rate so close to 1 is 1: sampling noise is a kink there.
_WHOLE = 1 - 1e-6

QUERIES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "count": recycling.sampling_noise_count,
    "sum": recycling.sampling_noise_sum,
    "average": recycling.sampling_noise_mean,
}


@partial(pytree, static=("query",))
@dataclass(frozen=True)
class FreeRate:
    """A sampling rate p that is tuned with the other parameters; see ``free_rate``."""

    query: str | None
    spread: Any
    size: Any

    def error(self, p: Any) -> Any:
        """The standard deviation of the sample's estimate."""
        return 0.0 * p if self.query is None else QUERIES[self.query](self.spread, self.size, p)

    def in_units(self, unit: Any) -> FreeRate:
        """With the error in units of a length: of a count it is the size's root, of others the spread's multiple."""
        if self.query == "count":
            return replace(self, size=self.size / unit**2)
        return replace(self, spread=self.spread / unit)


@partial(pytree, static=("sensitivity_at",))
@dataclass(frozen=True)
class SampledRecycled(Family):
    """Budget-recycled noise on a sample of free rate; see ``sampled_recycled``.

    Attributes:
        kernel: the law of a draw at unit scale.
        epsilon: eps on the whole data.
        delta: delta on the whole data.
        sensitivity: D of the estimate from all the data.
        theta: tolerated error.
        rate: what is known of the error of sampling.
        sensitivity_at: the sensitivity of the estimate from D and p.
    """

    kernel: Distribution
    epsilon: Any
    delta: Any
    sensitivity: Any
    theta: Any
    rate: FreeRate
    sensitivity_at: Callable[[Real, Real], Real]

    @property
    def name(self) -> str:
        return f"recycled {type(self.kernel).__name__.lower()} on a sample"

    @property
    def domains(self) -> dict[str, Domain]:
        """The scale in units of the least one that may do at the rate, so that where it is feasible varies little."""
        xp = namespace(self.epsilon, self.delta)
        # At the rate expm1(eps)/expm1(20) a sample has eps = 20, the most that a claim may have.
        densest = xp.minimum(xp.expm1(self.epsilon) * (1 + 1e-9) / math.expm1(checks.EPSILON_RANGE[1]), 1.0)
        lowest = xp.maximum(xp.minimum(_LEAST_RATE * self.delta, 0.5), densest)
        return {"scale": Positive(1.0, span=(0.0, SPAN)), "p": LogBetween(lowest, 1.0, span=(-1.3, 1.57))}

    @property
    def budget(self) -> tuple[Real, Real]:
        return self.epsilon, self.delta

    def on_unit(self) -> tuple[Any, Any, Any] | None:
        """Of a sensitivity that is a multiple of D; of another function of it that is not known."""
        if self.sensitivity_at not in (recycling.rescaled_sensitivity, recycling.published_sensitivity):
            return None
        D = self.sensitivity
        return replace(self, sensitivity=1.0, theta=self.theta / D, rate=self.rate.in_units(D)), -D, D

    def build(self, parameters: dict[str, Real]) -> Subsampled:
        p = parameters["p"]
        eps, delta, D = self.on_sample(p)
        kernel = self._drawn(parameters["scale"], p)
        u = least_weight(kernel, self.theta, D, eps, delta)
        made = Additive(Reweighted(kernel, -self.theta, self.theta, u), D, eps, delta)
        return Subsampled(made, p, self.rate.error(p), None)

    def on_sample(self, p: Real) -> tuple[Any, Any, Any]:
        """(epsilon, delta, sensitivity) of the estimate from a sample of rate p."""
        return *subsampling.on_sample(self.epsilon, self.delta, p), self.sensitivity_at(self.sensitivity, p)

    def _drawn(self, scale: Real, p: Any) -> Distribution:
        """The kernel on a sample of rate p."""
        eps, delta, D = self.on_sample(p)
        return rescaled(self.kernel, scale * D / infeasible_shift(self.kernel, eps, delta))

    def release(self, parameters: dict[str, Any]) -> Subsampled:
        p = 1.0 if parameters["p"] > _WHOLE else parameters["p"]
        return recycling.subsampled_recycling(
            self._drawn(parameters["scale"], p),
            theta=self.theta,
            rate=p,
            epsilon=self.epsilon,
            delta=self.delta,
            sensitivity=self.sensitivity,
            sampling_noise=float(self.rate.error(p)),
            sensitivity_at=self.sensitivity_at,
        )

    def symbols(self, parameters: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        noise = mechanism.mechanism.noise
        return {**scale_of(noise.kernel, self.kernel), "p": mechanism.rate, "q": 1 - noise.outside}


@realised.register
def _(family: SampledRecycled, mechanism: Subsampled) -> tuple[float, float]:
    """The claim on the sample by its exact profile, and what it is on the whole."""
    inner = mechanism.mechanism
    found = float(realised_delta(inner, inner.epsilon))
    refuse_above(family, "delta on the sample", found, inner.delta)
    epsilon, delta = subsampling.amplified(inner.epsilon, found, mechanism.rate)
    refuse_above(family, "epsilon", float(epsilon), float(family.epsilon) * (1 + ROUNDING))
    refuse_above(family, "delta", float(delta), float(family.delta) * (1 + ROUNDING))
    return float(family.epsilon), float(delta)


@errors.inputs.register
def _(mechanism: Subsampled) -> Any:
    return errors.inputs(mechanism.mechanism)


@errors.within.register
def _(mechanism: Subsampled, x: Any, theta: Any) -> Any:
    """Of noise and error of sampling together."""
    noise: Any = mechanism.mechanism.noise
    return recycling.acceptance(noise, theta, mechanism.sampling_noise)


@errors.variance.register
def _(mechanism: Subsampled, x: Any) -> Any:
    return mechanism.mechanism.variance(x) + mechanism.sampling_noise**2


@errors.worst_variance.register
def _(mechanism: Subsampled) -> Any:
    return mechanism.mechanism.worst_variance + mechanism.sampling_noise**2


@errors.furthest.register
def _(mechanism: Subsampled, x: Any) -> Any:
    return errors.furthest(mechanism.mechanism, x) + 8 * mechanism.sampling_noise


@errors.absolute_error.register
def _(mechanism: Subsampled, x: Any) -> Any:
    raise TypeError("objective: E|error| is not known for noise and error of sampling together; use another")


def free_rate(*, query: str | None = None, spread: Any = 1.0, size: Any = 1.0) -> FreeRate:
    """The rate p of ``composed``'s samples as one more free parameter.

    The objective sees ``Subsampled`` reports: estimates from a sample rescaled by 1/p, so that noise is for the
    sensitivity D/p; of a named query with the error of sampling. Without one the rate goes where the noise is least.

    Args:
        query: "count", "sum" or "average", whose error of sampling counts; None for none.
        spread: standard deviation of the records; for counts the share that is counted.
        size: how many records there are.

    Raises:
        ValueError: spread not positive; size not in [1, 1e300]; an unknown query.
    """
    checks.positive("spread", spread)
    checks.within("size", size, 1.0, 1e300)
    if query is not None:
        checks.one_of("query", query, QUERIES)
    return FreeRate(query, spread, size)


def sampled_recycled(
    kernel: str | Distribution,
    *,
    epsilon: Real,
    delta: Real,
    theta: Real,
    sensitivity: Real = 1.0,
    query: str | None = None,
    spread: Real = 1.0,
    size: Real = 1.0,
    sensitivity_at: Callable[[Real, Real], Real] = recycling.rescaled_sensitivity,
) -> SampledRecycled:
    """Budget-recycled noise on a sample of rate p (Jiang 2024, section 7) with sigma (or b), q and p tuned together.

    The objective sees the whole error: the noise's and, where a query is named, the one of sampling. ``mechanism`` of
    the result is the one on the sample; its claim is on the sample, the result's on the whole data. With the right
    sensitivity, D/p, and a realistic error of sampling, all the data (p = 1) are nearly always best.

    Args:
        kernel: "gaussian", "laplace", or any even law at unit scale.
        epsilon: eps on the whole data.
        delta: on the whole data.
        theta: tolerated error, in the unit of the estimate.
        sensitivity: D of the estimate from all the data; neighbouring: as ``accountants.subsampling`` has it.
        query: "count", "sum" or "average", whose error of sampling counts; None for none.
        spread: standard deviation of the records; for counts the share that is counted.
        size: n, how many records there are.
        sensitivity_at: the sensitivity of what is released from D and p, by default D/p;
            ``recycling.published_sensitivity`` for the source's reading, which is unsound for rescaled estimates.

    Raises:
        ValueError: epsilon not in [0.01, 20]; delta not in (0, 1); sensitivity not in [1e-100, 1e100]; theta or spread
            not positive; size not in [1, 1e300]; an unknown kernel or query.
    """
    check_budget(epsilon, delta, sensitivity)
    checks.positive("theta", theta)
    rate = free_rate(query=query, spread=spread, size=size)
    return SampledRecycled(kernel_of(kernel), epsilon, delta, sensitivity, theta, rate, sensitivity_at)
