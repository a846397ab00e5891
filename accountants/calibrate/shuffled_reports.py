"""Calibrate shuffled reports for a target (epsilon, delta), or for a limit of a risk: the largest local budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from accountants.calibrate.composed import split_arguments
from accountants.calibrate.risk_limit import RiskLimit, parse_target
from accountants.precision import in_64_bits
from accountants.shuffle import shuffled as account
from accountants.shuffle.blanket import worst_inputs
from accountants.shuffle.estimate import integral_log_delta
from dpkernels import checks
from dpkernels.exact.registry import exact_sampler
from dpkernels.mechanisms.base import Mechanism, Parabolic
from dpkernels.numerics import MAX_EXPONENT, Real, namespace
from dpkernels.pytrees import PyTree
from dpkernels.solve import first_feasible, promote, root

__all__ = ["shuffled"]

# Margins of log eps0 for shuffled reports, whose upper end exceeds the value by 1e-7 to 1e-2 of delta.
_MARGINS = (0.0, *(1e-8 * 4.0**k for k in range(13)))
# The least step of log eps0 towards a budget that a constructor rejects.
_MIN_STEP = 1e-2
_RTOL = 1e-12  # The relative tolerance of the root of a budget.


@in_64_bits
def shuffled(
    constructor: Callable[..., Any],
    *,
    epsilon: Real | None = None,
    delta: Real | None = None,
    n: int,
    advantage: float | None = None,
    true_positive_rate: tuple[float, float] | None = None,
    **arguments: object,
) -> Any:
    """Return the mechanism with the largest eps0 in [0.01, 20] for which n shuffled reports meet a target.

    The target is (eps, delta)-DP, or a limit of one risk. Neighbours differ in one person's input. The shuffler is
    trusted, and n counts honest reports (see ``accountants.shuffle``). For plain numbers the upper end of the rigorous
    bracket, for the integers that a release samples, meets the target. For JAX numbers the integral does, to its
    precision, and the result is NaN if eps0 = 0.01 is infeasible.

    Args:
        constructor: makes a bounded mechanism from ``epsilon=eps0`` and the arguments, such as ``dpkernels.piecewise``.
        epsilon: the central eps, positive.
        delta: the central delta, in (0, 1).
        n: the number of honest reports.
        advantage: instead of eps and delta, the largest ``Shuffled.advantage``, as in ``composed_scale``.
        true_positive_rate: instead of these, (false positive rate, largest true positive rate).
        **arguments: the constructor's other arguments, such as lower and upper.

    Raises:
        NotPrivateError: no mechanism was proven to meet the target.
        ValueError: an argument is out of range, or eps0 = 0.01 exceeds the target, with the epsilon that it has.

    Example:
        >>> from dpkernels import piecewise
        >>> round(shuffled(piecewise, epsilon=0.1, delta=1e-6, n=100_000, lower=0.0, upper=1.0).epsilon, 3)
        3.747
    """
    n = checks.integer_in("n", n, 2, 1 << 50)
    member, numbers = split_arguments(constructor, arguments)
    target = parse_target(epsilon, delta, advantage, true_positive_rate, arguments)
    if isinstance(target, RiskLimit):
        return _shuffled_for_risk(lambda t: member(math.exp(t), {}), target, n)
    epsilon, delta = target
    checks.positive("epsilon", epsilon)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    t = log_budget(member, numbers, n=n, epsilon=epsilon, delta=delta)
    if (xp := namespace(t)) is not np:
        return member(xp.exp(t), numbers)
    low = math.log(checks.EPSILON_RANGE[0])
    if math.isnan(t):
        attained = account(member(math.exp(low), {}), n).estimate_epsilon(delta)
        raise ValueError(
            f"epsilon: {epsilon:g} at delta {delta:g}; {n} reports of eps0 = 0.01 already have epsilon {attained:.4g}"
        )
    candidates = (member(math.exp(max(t - margin, low)), {}) for margin in _MARGINS)

    def meets(mechanism: Mechanism) -> bool:
        """Return whether the bound meets the target, read as delta at eps and as eps at delta."""
        reports = account(exact_sampler(mechanism), n)
        return bool(reports.upper_bound(float(epsilon)) <= delta and reports.epsilon(float(delta)) <= epsilon)

    return first_feasible(candidates, meets)


def _shuffled_for_risk(mechanism: Callable[[float], Any], limit: RiskLimit, n: int) -> Parabolic:
    low, high = (math.log(end) for end in checks.EPSILON_RANGE)

    def excess(t: float) -> float:
        return limit.excess(limit.estimate(account(mechanism(t), n)))

    if excess(low) > 0:
        risk = limit.estimate(account(mechanism(low), n))
        raise ValueError(f"{limit}; {n} reports of eps0 = 0.01 already have {risk:.4g}")
    t = _root_from_below(excess, low, high)
    candidates = (mechanism(max(t - margin, low)) for margin in _MARGINS)
    return first_feasible(
        candidates, lambda candidate: limit.bound(account(exact_sampler(candidate), n)) <= limit.limit
    )


def upper_delta(mechanism: object, n: int, epsilon: float) -> float:
    """Return the upper end of the rigorous bracket of delta, for the integers that a release samples."""
    return account(exact_sampler(mechanism), n).upper_bound(epsilon)


def log_budget(
    member: Callable[[Real, PyTree], Mechanism],
    parameters: PyTree,
    *,
    n: int,
    epsilon: Real,
    delta: Real,
    by_integral: bool = False,
) -> Real:
    """Return log eps0 of the largest budget whose n shuffled reports are (eps, delta)-DP; NaN if 0.01 is too large.

    ``member`` maps (eps0, parameters) to the mechanism, without captured tracers. Plain numbers are solved by the
    estimate, or 30 times as fast ``by_integral`` over the first pair, as JAX numbers are.
    """
    parameters, epsilon, delta = promote(parameters, epsilon, delta)
    low, high = (math.log(end) for end in checks.EPSILON_RANGE)
    arguments, xp = (parameters, epsilon, delta), namespace(epsilon, delta)
    excess = partial(_shuffled_excess, member, n, by_integral or xp is not np)
    if xp is np:
        return (
            math.nan
            if excess(low, arguments) > 0
            else _root_from_below(lambda t: float(excess(t, arguments)), low, high)
        )
    lowest, highest, _ = promote(low, high, epsilon)
    t = root(excess, arguments, lowest, highest, _RTOL)
    return xp.where(excess(lowest, jax.lax.stop_gradient(arguments)) <= 0, t, xp.nan)


def _shuffled_excess(
    member: Callable[[Real, PyTree], Mechanism],
    n: int,
    by_integral: bool,
    t: Real,
    arguments: tuple[PyTree, Real, Real],
) -> Real:
    """Return log delta of reports of budget e^t, minus log of the target delta."""
    parameters, epsilon, delta = arguments
    xp = namespace(t, epsilon, delta)
    mechanism = member(xp.exp(t), parameters)
    if by_integral:
        log_delta = xp.maximum(
            integral_log_delta(worst_inputs(mechanism).pairs[0].upper, float(n), epsilon)[0], -MAX_EXPONENT
        )
    else:
        log_delta = math.log(max(account(mechanism, n).estimate_delta(epsilon), math.exp(-MAX_EXPONENT)))
    return log_delta - xp.log(delta)


def _root_from_below(excess: Callable[[float], float], low: float, high: float) -> float:
    """Return the root, searched from below in growing steps: constructors may reject the largest budgets."""
    feasible, step = low, 1.0
    while feasible < high:
        infeasible = min(feasible + step, high)
        try:
            if excess(infeasible) > 0:
                return float(root(lambda t, _: excess(t), (), feasible, infeasible, _RTOL))
            feasible = infeasible
        except ValueError:
            high, step = infeasible - 1e-6, step / 2
            if step < _MIN_STEP:
                break
    return feasible
