"""Budget recycling for a budget: q for a kernel, a kernel for q, or the best of both."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from accountants.calibrate.reweighted import least_weight, profile_excess
from accountants.dominating_pairs.registry import additive_profile
from accountants.scale import check_target, infeasible_shift, rescaled, smallest_scale
from dpkernels import checks
from dpkernels.distributions.base import Distribution
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.mechanisms import named_additive as named
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import Real, namespace
from dpkernels.solve import MARGINS, NotPrivateError, first_feasible, first_root, minimum_near_grid, promote

# Two formulas of one delta differ by rounding, which next to a delta of 1e-12 is some percent of it.
_MARGINS = (*MARGINS, *np.geomspace(1e-10, 1e-2, 17))


def recycling_rate(kernel: Distribution, theta: Real, epsilon: Real, delta: Real, sensitivity: Real) -> Real:
    """The largest q at which a kernel recycled beyond theta is (eps, delta)-DP over shifts of D.

    delta(eps) is not monotone in q: recycling thins the tails, where a kernel's own delta is, and raises the step at
    theta. But the feasible q are one interval (see ``calibrate.reweighted``). Its upper end has the largest
    acceptance.

    Args:
        kernel: the law of a draw.
        theta: tolerated error, in the kernel's unit.
        epsilon: eps >= 0.
        delta: in (0, 1).
        sensitivity: D, in the kernel's unit.

    Returns:
        q in [0, 1); as computed its delta(eps) is at most delta. NaN where no q is feasible.
    """
    check_target(epsilon, delta, sensitivity)
    checks.positive("theta", theta)
    u = least_weight(kernel, theta, sensitivity, epsilon, delta)
    if namespace(u) is not np:
        return 1 - u

    def is_private(q: float) -> bool:
        return bool(additive_profile(Reweighted(kernel, -theta, theta, 1 - q), sensitivity, epsilon) <= delta)

    rates = [] if math.isnan(u) else [1 - min(u * (1 + margin), 1.0) for margin in _MARGINS]
    try:
        # Where only the kernel alone is private, rounding may hide it.
        return first_feasible([*rates, 0.0], is_private)
    except NotPrivateError:
        return math.nan


def recycled_scale(kernel: Distribution, theta: Real, q: Real, epsilon: Real, delta: Real, sensitivity: Real) -> Real:
    """The first c from below at which the kernel c times as wide, recycled beyond theta with q, is (eps, delta)-DP.

    For q < 1 there is one: the share within theta of a wide kernel is small, recycled or not.

    Args:
        kernel: the shape of a draw's law.
        theta: tolerated error, in the unit of c times the kernel's.
        q: in [0, 1).
        epsilon: eps >= 0.
        delta: in (0, 1).
        sensitivity: D.

    Returns:
        c; as computed its delta(eps) is at most delta.
    """
    check_target(epsilon, delta, sensitivity)
    checks.positive("theta", theta)
    checks.below_one("q", q)
    kernel, theta, q, epsilon, delta, sensitivity = promote(kernel, theta, q, epsilon, delta, sensitivity)
    # Recycling only narrows a law, so delta is above the target where it is for the kernel.
    low = sensitivity / infeasible_shift(kernel, epsilon, delta)
    alone = smallest_scale(kernel, epsilon, delta / 2, sensitivity)
    inside = 4 * theta * kernel.prob(0.0) / (delta * (1 - q))
    high = 4 * namespace(alone, inside).maximum(alone, inside)
    found = first_root(_scale_excess, (kernel, theta, q, epsilon, delta, sensitivity), low, high)
    if namespace(found) is not np or math.isnan(found):
        return found

    def is_private(scale: float) -> bool:
        law = Reweighted(rescaled(kernel, scale), -theta, theta, 1 - q)
        return bool(additive_profile(law, sensitivity, epsilon) <= delta)

    return first_feasible((found * (1 + margin) for margin in _MARGINS), is_private)


def _scale_excess(scale: Real, parameters: tuple[Distribution, Real, Real, Real, Real, Real]) -> Real:
    kernel, theta, q, eps, delta, D = parameters
    return profile_excess(rescaled(kernel, scale), 1 - q, theta, D, eps, delta)


def budget_recycled(
    kernel: Distribution | type, *, theta: Any, epsilon: Real, delta: Real, sensitivity: Any = 1.0, q: Any = None
) -> Additive:
    """Budget-recycled noise (Jiang 2024), accounted exactly.

    Args:
        kernel: a law: it is kept, and q is the largest for it. Or a type of law with one parameter, ``Gaussian`` or
            ``Laplace``: the narrowest for q; without q, the one that makes P(|Z| <= theta) largest (plain numbers).
        theta: tolerated error, in data units.
        epsilon: eps, in [0.01, 20].
        delta: in (0, 1).
        sensitivity: D, in data units.
        q: probability of a redraw, in [0, 1), for a type of kernel.

    Returns:
        The mechanism, with its claim; ``noise.acceptance`` is P(|Z| <= theta).

    Raises:
        ValueError: epsilon not in [0.01, 20]; delta not in (0, 1); sensitivity not in [1e-100, 1e100]; theta not
            positive; q not in [0, 1); a kernel that no q makes private enough, with the width it needs; a q for a
            kernel that is given.
    """
    checks.epsilon(epsilon)
    check_target(epsilon, delta, sensitivity)
    checks.positive("theta", theta)
    if isinstance(kernel, type):
        kernel, q = _kernel_and_rate(kernel(1.0), theta, q, epsilon, delta, sensitivity)
    elif q is not None:
        raise ValueError(f"q: {q:g}; with a kernel that is given q is what is calibrated, give the kernel's type")
    else:
        q = recycling_rate(kernel, theta, epsilon, delta, sensitivity)
        _check_feasible(q, kernel, theta, epsilon, delta, sensitivity)
    return named.budget_recycled(kernel, theta=theta, q=q, sensitivity=sensitivity, epsilon=epsilon, delta=delta)


def _kernel_and_rate(unit: Distribution, theta: Any, q: Real | None, *target: Any) -> tuple[Distribution, Real]:
    if q is not None:
        return rescaled(unit, recycled_scale(unit, theta, q, *target)), q
    kernel = rescaled(unit, best_recycled_scale(unit, theta, *target))
    return kernel, recycling_rate(kernel, theta, *target)


def best_recycled_scale(kernel: Distribution, theta: float, epsilon: float, delta: float, sensitivity: float) -> float:
    """The c at which the kernel c times as wide, with the largest q for it, has the largest P(|Z| <= theta).

    Searched between 0.3 and 30 times the width that the kernel alone needs, to 1e-4 relative; plain numbers only.
    """
    target, theta = (epsilon, delta, 1.0), theta / sensitivity
    alone = smallest_scale(kernel, *target)

    def refusal(log_scale: float) -> float:
        wider = rescaled(kernel, math.exp(log_scale))
        q = 1 - least_weight(wider, theta, 1.0, epsilon, delta, rtol=1e-7)
        # Infeasible scales are below the kernel's alone: the way to the feasible ones is up.
        too_narrow = 1 + math.log(alone) - log_scale
        return too_narrow if math.isnan(q) else 1 - Reweighted(wider, -theta, theta, 1 - q).acceptance

    scales = math.log(alone) + np.linspace(math.log(0.3), math.log(30), 30)
    return sensitivity * math.exp(minimum_near_grid(refusal, scales, xatol=1e-4)[0])


def _check_feasible(q: Real, kernel: Distribution, theta: Real, epsilon: Real, delta: Real, sensitivity: Real) -> None:
    if checks.concrete(q) is None or not math.isnan(q):
        return
    wider = smallest_scale(kernel, epsilon, delta, sensitivity)
    raise ValueError(
        f"kernel: {kernel} recycled beyond theta = {theta:g} meets epsilon, delta = {epsilon:g}, {delta:g} at no q;"
        f" from {wider:.6g} times as wide on it does at q = 0"
    )
