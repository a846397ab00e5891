"""Families of additive noise: with one scale parameter, merged Laplace, staircase, truncated and recycled."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from accountants import calibrate, recycling
from accountants.calibrate.composed import conservative_parameter, with_release_claim
from accountants.calibrate.one_release import least_weight
from accountants.calibrate.scale import infeasible_shift, rescaled
from accountants.profile import delta as realised_delta
from accountants.profile import epsilon as realised_epsilon
from accountants.recycling import Subsampled
from accountants.schemes import poisson
from accountants.tune.domains import Between, Domain, GreaterThan, LogBetween, Ordered
from accountants.tune.families.composed import Composed, FreeRate, PureDPFamily, free_rate
from accountants.tune.families.constructed import SOLVED, Constructed, Scaled, constructed, scale_parameter
from accountants.tune.family import Family
from dpkernels import checks
from dpkernels.distributions.base import Distribution
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace, MergedLaplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.mechanisms import named
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import Boolean, Real, RealArray, namespace
from dpkernels.pytrees import pytree
from dpkernels.solve import MARGINS, NotPrivateError, first_feasible

__all__ = [
    "budget_recycled",
    "gaussian",
    "laplace",
    "merged_laplace",
    "sampled_recycled",
    "staircase",
    "truncated_gaussian",
    "truncated_laplace",
]

KERNELS: dict[str, Distribution] = {"gaussian": Gaussian(1.0), "laplace": Laplace(1.0)}
_MAX_FALL = 1.5  # Deeper falls of merged Laplace noise between breaks, in units of eps, are no optimum.
_GAPS = (1e-4, 2.0)  # Between its breaks, in units of D: a window of length D sees no two sides of a wider one.
# Scales of truncated noise on [-1, 1], from noise without visible truncation to nearly uniform noise.
_WIDTHS = LogBetween(0.05, 20.0, span=(-1.0, 0.5))
_WIDENINGS = (0.0, *np.geomspace(1e-12, 1e-2, 11))  # Deltas next to 1e-12 are known to some percent only, in floats.
_SCALE_SPAN = 7.5  # ln of the widest scale where a search starts, in units of the least one that may do.
# The least theta, in units of the kernel's scale:
_MIN_SPIKE = 1e-2  # times e^-eps, because a spike has e^eps times the density,
_MIN_THETA = 1e-8  # and for any eps.
# The step of the log density at theta:
_MIN_STEP = 1e-2  # the least, in units of eps,
_MAX_STEP = 28.0  # and the most, which is all but truncation.
_MIN_RATE_OF_DELTA = 100.0  # The least sampling rate over delta: below p = delta there is no budget.
_WHOLE_RATE = 1 - 1e-6  # A best rate so close to 1 is 1: sampling noise is a kink there.


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

    epsilon: Real
    sensitivity: Real
    segments: int

    @property
    def name(self) -> str:
        return f"merged laplace of {self.segments}"

    @property
    def domains(self) -> dict[str, Domain]:
        n = self.segments - 1
        low, high = (gap * self.sensitivity for gap in _GAPS)
        return {"falls": Between(0.0, _MAX_FALL, count=n), "breaks": Ordered(n, low, high, span=(-0.1, 1.2))}

    def build(self, params: dict[str, Real]) -> Additive:
        breaks: Any = params["breaks"]
        noise = MergedLaplace(tuple(self._rates(params)), tuple(breaks))
        return Additive(noise, self.sensitivity, self.epsilon, 0.0)

    def _rates(self, params: dict[str, Real]) -> RealArray:
        D = self.sensitivity
        xp = namespace(params["breaks"], D)
        c = xp.asarray(params["breaks"])
        rates = xp.append(xp.asarray(params["falls"]) / xp.diff(c, prepend=0.0), 1 / D)
        # The steepest window of length D starts at 0, at a break or D before one.
        starts = xp.concatenate([xp.zeros(1), c, xp.maximum(c - D, 0.0)])[:, None]
        lower, upper = xp.concatenate([xp.zeros(1), c]), xp.concatenate([c, xp.full(1, np.inf)])
        overlaps = xp.minimum(starts + D, upper) - xp.maximum(starts, lower)
        return rates * self.epsilon / (xp.maximum(overlaps, 0.0) * rates).sum(-1).max()

    def certified_member(self, params: dict[str, Any]) -> Additive:
        """Return noise of rates that are lowered until the pure level, as computed, is at most eps."""
        rates, breaks = self._rates(params), tuple(params["breaks"])
        claim = {"sensitivity": self.sensitivity, "epsilon": self.epsilon, "delta": 0.0}

        def lower(margin: float) -> Additive:
            return named.merged_laplace(
                rates=tuple(float(rate) * (1 - margin) for rate in rates), breaks=breaks, **claim
            )

        return first_feasible(map(lower, MARGINS), lambda noise: realised_epsilon(noise) <= self.epsilon)

    def parameters(self, params: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        xp = namespace(*mechanism.noise.rates)
        return {"rates": xp.stack(mechanism.noise.rates), "breaks": xp.stack(mechanism.noise.breaks)}


def merged_laplace(*, epsilon: Real, sensitivity: Real = 1.0, segments: int = 3) -> MergedLaplaces:
    """Return the family of merged Laplace noise (Mugunthan 2020), pure eps-DP, with free rates and breaks.

    There are many local optima: with more ``starts``, see ``best``, a better one may be found. See ``gaussian`` for
    errors; segments is in 2..8.
    """
    check_budget(epsilon, 0.5, sensitivity)
    return MergedLaplaces(epsilon, sensitivity, checks.integer_in("segments", segments, 2, 8))


def staircase(*, epsilon: Real, sensitivity: Real = 1.0) -> Constructed:
    """Return the family of staircase noise (Geng and Viswanath 2014), pure eps-DP, with free share gamma of high steps.

    For the acceptance of theta < D the best gamma is often theta/D, a kink. See ``gaussian`` for errors.
    """
    check_budget(epsilon, 0.5, sensitivity)
    free_domains = (("gamma", Between(0.0, 1.0)),)
    return Constructed(named.staircase, {"epsilon": epsilon, "sensitivity": sensitivity}, free_domains)


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
    def shift_bound(self) -> Real:
        return 2.0

    def shape(self, params: dict[str, Real]) -> Reweighted:
        width = params[f"{self.kernel.lengths[0]}/bound"]
        return Reweighted(rescaled(self.kernel, width), -1.0, 1.0, 0.0)

    def parameters(self, params: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        return {**scale_parameter(mechanism.noise.kernel, self.kernel), "bound": mechanism.noise.high}


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

    def build(self, params: dict[str, Real]) -> Additive:
        """Return the symmetric case next to B*: there A loses half of its digits, and all where eps is large."""
        if namespace(params["upper"]) is np and self._is_symmetric(params):
            return named.truncated_laplace(**self.target)
        mechanism = named.truncated_laplace(**self.target, upper=params["upper"])
        noise: Any = mechanism.noise
        highest = named.symmetric_bound(**self.target)
        where = partial(namespace(noise.low, noise.high).where, self._is_symmetric(params))
        low, high = where(-highest, noise.low), where(highest, noise.high)
        return replace(mechanism, noise=Reweighted(noise.kernel, low, high, 0.0))

    def _is_symmetric(self, params: dict[str, Real]) -> Boolean:
        return named.symmetric_bound(**self.target) * (1 - 1e-9) <= params["upper"]

    def certified_member(self, params: dict[str, Real]) -> Additive:
        return calibrate.truncated_laplace(**self.target, upper=None if self._is_symmetric(params) else params["upper"])

    def parameters(self, params: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        return {"lower": mechanism.noise.low, "upper": mechanism.noise.high}

    def for_composition(self, target: Composed) -> Truncated:
        return Truncated(self.kernel, self.epsilon, self.delta, self.sensitivity)


def truncated_laplace(*, epsilon: Real, delta: Real, sensitivity: Real = 1.0) -> TruncatedLaplace:
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


# Budget-recycled noise


@pytree
class RecycledShape(Scaled):
    """Budget-recycled noise of a free shape, theta/scale and q, with its scale solved for; see ``budget_recycled``."""

    # The member that was found may be next to where no q is feasible.
    is_estimated = True

    @property
    def name(self) -> str:
        return f"recycled {super().name}"

    @property
    def domains(self) -> dict[str, Domain]:
        """Return the domains: theta goes from a spike to where the mass beyond it does not matter for delta."""
        xp = namespace(self.epsilon)
        spike = xp.maximum(_MIN_SPIKE * xp.exp(-xp.asarray(self.epsilon)), _MIN_THETA)
        steps = LogBetween(_MIN_STEP * self.epsilon, _MAX_STEP)
        return {"theta/scale": LogBetween(spike, self.shift_bound / 2), "-ln(1 - q)": steps}

    @property
    def shift_bound(self) -> Real:
        """Return 2z, z of tail t = delta (1 - delta) e^-eps/4: over 2z delta(eps) >= 1 - t - e^eps t, above delta."""
        return 2 * self.kernel.isf(self.delta * (1 - self.delta) * namespace(self.epsilon).exp(-self.epsilon) / 4)

    def shape(self, params: dict[str, Real]) -> Reweighted:
        theta, step = params["theta/scale"], params["-ln(1 - q)"]
        return Reweighted(self.kernel, -theta, theta, namespace(step).exp(-step))

    def parameters(self, params: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        noise = mechanism.noise
        return {**scale_parameter(noise.kernel, self.kernel), "theta": noise.high, "q": 1 - noise.outside}


@pytree
@dataclass(frozen=True)
class Recycled(RecycledShape):
    """Budget-recycled noise with a free scale of the kernel, and q solved for; see ``budget_recycled``."""

    theta: Real | None = None  # None where it is free.
    typical: Real | None = None  # About the scale that several releases without recycling need; None for one release.

    @property
    def domains(self) -> dict[str, Domain]:
        D = self.sensitivity
        if self.typical is None:
            scale = GreaterThan(
                0.0, D / infeasible_shift(self.kernel, self.epsilon, self.delta), span=(0.0, _SCALE_SPAN)
            )
        else:
            scale = GreaterThan(0.0, self.typical, span=(0.1, 2.5))
        domains: dict[str, Domain] = {self.kernel.lengths[0]: scale}
        if self.theta is None:
            # Wide and closed: far out recycling has no effect. Starts are at 0.1 to 2000 D.
            domains["theta"] = LogBetween(1e-3 * D, 1e4 * D, span=(-0.4, 0.93))
        return domains

    def build(self, params: dict[str, Real]) -> Additive:
        kernel, theta = self.kernel_and_theta(params)
        u = least_weight(kernel, theta, self.sensitivity, self.epsilon, self.delta, SOLVED)
        return Additive(Reweighted(kernel, -theta, theta, u), self.sensitivity, self.epsilon, self.delta)

    def certified_member(self, params: dict[str, Real]) -> Additive:
        """Return the noise; a kernel that is the narrowest feasible one is widened past rounding errors."""
        kernel, theta = self.kernel_and_theta(params)

        def wider(margin: float) -> tuple[Distribution, float]:
            noise = rescaled(kernel, 1 + margin)
            return noise, float(calibrate.recycling_rate(noise, theta, **self.target))

        try:
            noise, q = first_feasible(map(wider, _WIDENINGS), lambda noise_and_q: not math.isnan(noise_and_q[1]))
        except NotPrivateError:
            return calibrate.budget_recycled(kernel, theta=theta, **self.target)  # Says what is feasible.
        return named.budget_recycled(noise, theta=theta, q=q, **self.target)

    def kernel_and_theta(self, params: dict[str, Real]) -> tuple[Distribution, Real]:
        kernel = rescaled(self.kernel, params[self.kernel.lengths[0]])
        return kernel, params["theta"] if self.theta is None else self.theta

    def for_composition(self, target: Composed) -> Recycled:
        ratio = target.gaussian_ratio * namespace(*jax.tree.leaves(self)).sqrt(self.kernel.variance)
        return replace(self, typical=self.sensitivity / ratio)

    def member(self, loss: Real, params: dict[str, Real]) -> Additive:
        """Return noise of which a redraw adds this loss: q = 1 - e^-loss at a kernel of the free parameters."""
        kernel, theta = self.kernel_and_theta(params)
        return Additive(Reweighted(kernel, -theta, theta, namespace(loss).exp(-loss)), self.sensitivity)

    def solved_budget(self, member: Any) -> Real:
        return -namespace(member.noise.outside).log(member.noise.outside)

    def composed(self, target: Composed, params: dict[str, Real], solved_budget: Real) -> Additive:
        return self.member(target.largest_budget(params, solved_budget), params)

    def composed_release(self, target: Composed, params: dict[str, Real], solved_budget: float) -> Additive:
        """Return the narrowest kernel that the bracket allows at the estimated q; its claim is that of one release."""
        loss = solved_budget or target.largest_budget(params, 0.0)
        symbol, epsilon, delta = self.kernel.lengths[0], float(target.epsilon), float(target.delta)

        def wider(t: float) -> Additive:
            return self.member(loss, {**params, symbol: params[symbol] * math.exp(t)})

        is_solved = bool(solved_budget)
        t = conservative_parameter(lambda t: target.guarantee(wider(t)), epsilon, delta, starts_at_root=is_solved)
        return with_release_claim(wider(t), delta / target.count)

    def with_tolerated_error(self, theta: Real | None) -> Family:
        """Recycle beyond the tolerated error of an acceptance; where there is none theta is free."""
        if self.theta is not None:
            return self
        if theta is not None:
            return replace(self, theta=theta)
        return RecycledShape(self.kernel, self.epsilon, self.delta, self.sensitivity)


def budget_recycled(
    kernel: str | Distribution, *, epsilon: Real, delta: Real, sensitivity: Real = 1.0, theta: Real | None = None
) -> Recycled:
    """Return the family of budget-recycled noise (Jiang 2024) under exact accounting.

    At a tolerated error sigma (or b) is free, and q the largest for it. Without one theta/sigma and q are, and sigma is
    the least for them; deltas below 1e-15, which floats do not resolve, give wider noise than there might be, or none.

    Args:
        kernel: "gaussian", "laplace", or any even distribution at unit scale.
        epsilon: eps, in [0.01, 20].
        delta: in (0, 1).
        sensitivity: D, in [1e-100, 1e100]; neighbouring: true values differ by at most D.
        theta: tolerated error; by default that of an ``acceptance`` objective, for other objectives it is free.

    Raises:
        ValueError: an argument is out of range, or an unknown kernel.
        TypeError: a distribution that cannot be rescaled.
    """
    check_budget(epsilon, delta, sensitivity)
    if theta is not None:
        checks.positive("theta", theta)
    return Recycled(parse_kernel(kernel), epsilon, delta, sensitivity, theta)


def parse_kernel(kernel: str | Distribution) -> Distribution:
    """Return a distribution at unit scale, of its name or itself."""
    if isinstance(kernel, str):
        checks.one_of("kernel", kernel, KERNELS)
        return KERNELS[kernel]
    if not isinstance(kernel, Distribution):
        raise TypeError(f"kernel: {kernel!r} is no distribution; 'gaussian', 'laplace' or one at unit scale is needed")
    rescaled(kernel, 1.0)
    return kernel


@partial(pytree, static=("sensitivity_at",))
@dataclass(frozen=True)
class SampledRecycled(Family):
    """Budget-recycled noise on a sample of free rate; see ``sampled_recycled``."""

    kernel: Distribution
    epsilon: Real
    delta: Real
    sensitivity: Real
    theta: Real
    rate: FreeRate
    sensitivity_at: Callable[[Real, Real], Real]

    @property
    def name(self) -> str:
        return f"recycled {type(self.kernel).__name__.lower()} on a sample"

    @property
    def domains(self) -> dict[str, Domain]:
        """Return the domains, the scale in units of the least one that may be feasible at the rate."""
        xp = namespace(self.epsilon, self.delta)
        # At the rate expm1(eps)/expm1(20) a sample has eps = 20, the most that a claim may have.
        densest = xp.minimum(xp.expm1(self.epsilon) * (1 + 1e-9) / math.expm1(checks.EPSILON_RANGE[1]), 1.0)
        lowest = xp.maximum(xp.minimum(_MIN_RATE_OF_DELTA * self.delta, 0.5), densest)
        return {
            "scale": GreaterThan(0.0, 1.0, span=(0.0, _SCALE_SPAN)),
            "rate": LogBetween(lowest, 1.0, span=(-1.3, 1.57)),
        }

    def build(self, params: dict[str, Real]) -> Subsampled:
        p = params["rate"]
        eps, delta, D = self.budget_on_sample(p)
        kernel = self._scaled_kernel(params["scale"], p)
        u = least_weight(kernel, self.theta, D, eps, delta, SOLVED)
        mechanism = Additive(Reweighted(kernel, -self.theta, self.theta, u), D, eps, delta)
        return Subsampled(mechanism, p, self.rate.error(p), None)

    def budget_on_sample(self, p: Real) -> tuple[Real, Real, Real]:
        return *poisson.budget_on_sample(self.epsilon, self.delta, p), self.sensitivity_at(self.sensitivity, p)

    def _scaled_kernel(self, scale: Real, p: Real) -> Distribution:
        eps, delta, D = self.budget_on_sample(p)
        return rescaled(self.kernel, scale * D / infeasible_shift(self.kernel, eps, delta))

    def certified_member(self, params: dict[str, Real]) -> Subsampled:
        p = 1.0 if params["rate"] > _WHOLE_RATE else params["rate"]
        return recycling.subsampled_recycling(
            self._scaled_kernel(params["scale"], p),
            theta=self.theta,
            rate=p,
            epsilon=self.epsilon,
            delta=self.delta,
            sensitivity=self.sensitivity,
            sampling_noise=float(self.rate.error(p)),
            sensitivity_at=self.sensitivity_at,
        )

    def parameters(self, params: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        noise = mechanism.mechanism.noise
        return {**scale_parameter(noise.kernel, self.kernel), "rate": mechanism.rate, "q": 1 - noise.outside}

    def verify(self, mechanism: Any) -> tuple[float, float]:
        """Verify the claim on the sample by its exact profile, and what it is on the whole data."""
        inner = mechanism.mechanism
        realised = float(realised_delta(inner, inner.epsilon))
        self.check_allowed("delta on the sample", realised, inner.delta)
        epsilon, delta = poisson.amplified_budget(inner.epsilon, realised, mechanism.rate)
        self.check_allowed("epsilon", float(epsilon), float(self.epsilon))
        self.check_allowed("delta", float(delta), float(self.delta))
        return float(self.epsilon), float(delta)


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
    """Return the family of budget-recycled noise on a sample of rate p, with sigma (or b), q and p tuned together.

    See Jiang 2024, section 7. The objective sees the whole error: that of the noise and, if a query is named, that of
    sampling. ``mechanism`` of the result works on the sample, and its claim is for the sample; the result's claim is
    for the whole data. With the correct sensitivity, D/p, and a realistic sampling error, all the data (p = 1) are
    nearly always best.

    Args:
        kernel: "gaussian", "laplace", or any even distribution at unit scale.
        epsilon: eps on the whole data.
        delta: delta on the whole data.
        theta: the tolerated error, in the unit of the estimate.
        sensitivity: D of the estimate from all the data; for neighbours see ``accountants.schemes.poisson``.
        query: "count", "sum" or "average", whose sampling error is included; None to leave it out.
        spread: the standard deviation of the records; for counts the share of records that is counted.
        size: n, the number of records.
        sensitivity_at: the sensitivity of the released value from D and p, by default D/p. The formula of the source,
            ``published.recycling.published_sensitivity``, is unsound for rescaled estimates.

    Raises:
        ValueError: see ``budget_recycled`` and ``free_rate``.
    """
    check_budget(epsilon, delta, sensitivity)
    checks.positive("theta", theta)
    rate = free_rate(query=query, spread=spread, size=size)
    return SampledRecycled(parse_kernel(kernel), epsilon, delta, sensitivity, theta, rate, sensitivity_at)


# The families that ``dpkernels tune`` compares.
COMPARED: tuple[Callable[..., Family], ...] = (
    *(laplace, staircase, merged_laplace),
    *(gaussian, truncated_laplace, truncated_gaussian),
)
