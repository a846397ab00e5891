"""Truncated Laplace and truncated Gaussian noise for a budget."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from accountants.calibrate.reweighted import profile_excess
from accountants.dominating_pairs.registry import additive_profile
from accountants.scale import check_target, infeasible_shift, smallest_scale
from dpkernels import checks
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.mechanisms import named_additive as named
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import Real
from dpkernels.solve import MARGINS, bounded_minimum, first_feasible, first_root, minimum_near_grid, root

# Scales tried by a search over many calibrations, in place of the 160 of one.
_COARSE = {"count": 40, "rtol": 1e-9}

# Where delta is small the ends have to move by more than rounding errors of their own.
_MARGINS = (*MARGINS, *np.geomspace(1e-10, 1e-5, 11))


def truncated_laplace(*, epsilon: Any, delta: Real, sensitivity: Real = 1.0, upper: Any = None) -> Additive:
    """Laplace noise of scale D/eps on the shortest interval [A, B] (Mugunthan 2020); closed form.

    Args:
        epsilon: eps, in [0.01, 20].
        delta: in (0, 1).
        sensitivity: D, in data units.
        upper: B, above B_min; by default B*, the symmetric case. See ``dpkernels``'s ``truncated_laplace``.

    Raises:
        ValueError: epsilon not in [0.01, 20]; delta not in (0, 1); sensitivity not in [1e-100, 1e100]; B outside the
            feasible interval, which the error gives.
    """
    mechanism = named.truncated_laplace(epsilon=epsilon, delta=delta, sensitivity=sensitivity, upper=upper)
    return _outward(mechanism)


def _outward(mechanism: Additive) -> Additive:
    """As much wider as rounding errors until the profile, as computed, meets the claim; not under tracing.

    The scale too: at D/eps most of the mass has a loss of eps, and delta is rounded upwards next to it.
    """
    noise: Any = mechanism.noise
    claim = mechanism.sensitivity, mechanism.epsilon, mechanism.delta

    def wider(margin: float) -> Additive:
        low, high = noise.low * (1 + margin), noise.high * (1 + margin)
        return Additive(Reweighted(Laplace(noise.kernel.scale * (1 + margin)), low, high, noise.outside), *claim)

    return first_feasible(map(wider, _MARGINS), _meets_claim)


def _meets_claim(made: Additive) -> Any:
    """Return whether the exact profile, as computed, meets the claim; true for traced numbers."""
    noise: Any = made.noise
    claimed: Any = made.delta
    over = checks.concrete(additive_profile(noise, made.sensitivity, made.epsilon) - claimed)
    return over is None or over <= 0


def truncated_gaussian(*, epsilon: Any, delta: Any, sensitivity: Any = 1.0, bound: Real | None = None) -> Additive:
    """Gaussian noise on [-T, T] (Cesar and Rogers 2021) of the least sigma.

    As sigma grows delta(eps) falls, and rises again to the D/(2T) of uniform noise: a short interval has a least
    delta, and a delta a least T.

    Args:
        epsilon: eps, in [0.01, 20].
        delta: in (0, 1), all of it: reports that reveal their input included.
        sensitivity: D, in data units.
        bound: T; by default the one with the least variance (plain numbers only, one in 10^6 of T).

    Raises:
        ValueError: epsilon not in [0.01, 20]; delta not in (0, 1); sensitivity not in [1e-100, 1e100]; bound not
            positive, or below the least feasible T, which the error gives.
    """
    checks.epsilon(epsilon)
    check_target(epsilon, delta, sensitivity)
    T = best_bound(epsilon, delta, sensitivity) if bound is None else bound
    checks.positive("bound", T)
    sigma = _truncated_sigma(T, epsilon, delta, sensitivity)
    if checks.concrete(sigma) is not None and math.isnan(sigma):
        least = least_bound(epsilon, delta, sensitivity)
        raise ValueError(f"bound: {T:g} is too short for epsilon, delta = {epsilon:g}, {delta:g}; from {least:.9g} on")
    made = (Additive(Reweighted(Gaussian(sigma * (1 + m)), -T, T, 0.0), sensitivity, epsilon, delta) for m in _MARGINS)
    return first_feasible(made, _meets_claim)


def _truncated_sigma(T: Real, epsilon: Real, delta: Real, sensitivity: Real, **search: Any) -> Real:
    """The least sigma for T, NaN where there is none; sigma = 100 T is all but uniform."""
    low = sensitivity / infeasible_shift(Gaussian(1.0), epsilon, delta)
    return first_root(_sigma_excess, (T, epsilon, delta, sensitivity), low, 100 * T + low, **search)


def _sigma_excess(sigma: Real, parameters: tuple[Real, Real, Real, Real]) -> Real:
    T, eps, delta, D = parameters
    return profile_excess(Gaussian(sigma), 0.0, T, D, eps, delta)


def least_bound(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """The least T at which some truncated Gaussian on [-T, T] is (eps, delta)-DP; to 1e-7 relative, from above."""
    eps, D = float(epsilon), 1.0

    def best_excess(T: Real, delta: Real) -> Real:
        low, high = D / infeasible_shift(Gaussian(1.0), eps, delta), 100 * T

        def at(log_sigma: float) -> float:
            return float(_sigma_excess(math.exp(log_sigma), (T, eps, delta, D)))

        return bounded_minimum(at, math.log(low), math.log(high), xatol=1e-8, enough=0.0)[1]

    uniform = D / (2 * delta)
    return float(sensitivity) * root(best_excess, delta, uniform, D / 2, rtol=1e-7)


def best_bound(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """The T at which truncated Gaussian noise that meets (eps, delta) has the least variance; to 1e-5 relative.

    Worth it where delta is large: at eps 0.1, delta 0.02 the variance is 9 % below the Gaussian's, at delta 1e-5 equal.
    """

    def variance(T: float) -> float:
        sigma = _truncated_sigma(T, epsilon, delta, 1.0, **_COARSE)
        return np.inf if math.isnan(sigma) else float(Reweighted(Gaussian(sigma), -T, T, 0.0).variance)

    low = least_bound(epsilon, delta)
    far = 10 * smallest_scale(Gaussian(1.0), epsilon, delta, 1.0)
    return (
        float(sensitivity) * minimum_near_grid(variance, np.geomspace(low, max(far, 2 * low), 12), xatol=1e-5 * low)[0]
    )
