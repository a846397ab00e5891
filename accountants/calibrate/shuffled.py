"""Calibrate shuffled reports: find the largest local budget for which n reports meet a central one."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from accountants.calibrate.composed import split_arguments
from accountants.shuffle import shuffled as account
from accountants.shuffle.blanket import worst_inputs
from accountants.shuffle.estimate import integral_log_delta
from dpkernels import checks
from dpkernels.exact.registry import exact_sampler
from dpkernels.numerics import Real, namespace
from dpkernels.solve import first_feasible, promote, root

# Conservative margins of log eps0: the bracket exceeds the value by 1e-7 to 1e-2 of delta.
_MARGINS = (0.0, *(1e-8 * 4.0**k for k in range(13)))
# The least step of log eps0 towards a budget that a constructor rejects.
_FEWEST = 1e-2
_RTOL, _LEAST_LOG = 1e-12, 700.0


def shuffled(constructor: Callable[..., Any], *, epsilon: Real, delta: Real, n: int, **arguments: Any) -> Any:
    """Return the mechanism with the largest eps0 in [0.01, 20] for which n shuffled reports are (eps, delta)-DP.

    Neighbours differ in one person's input. The shuffler is trusted, and n counts honest reports; see
    ``accountants.shuffle``. For plain numbers the upper end of the rigorous bracket, for the integers that a release
    samples, meets the target. For JAX numbers the integral does, to its precision; NaN if eps0 = 0.01 is infeasible.

    Args:
        constructor: makes a bounded mechanism, such as ``dpkernels.piecewise``; called with ``epsilon=eps0`` and the
            arguments.
        epsilon: the central eps, positive.
        delta: the central delta, in (0, 1).
        n: the number of honest reports.
        **arguments: the constructor's other arguments, such as lower and upper.

    Raises:
        NotPrivateError: no mechanism was proven to meet the target.
        ValueError: an argument is out of range, or eps0 = 0.01 exceeds the target, with the epsilon that it has.

    Example:
        >>> from dpkernels import piecewise
        >>> round(shuffled(piecewise, epsilon=0.1, delta=1e-6, n=100_000, lower=0.0, upper=1.0).epsilon, 3)
        3.747
    """
    checks.positive("epsilon", epsilon)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    n = checks.whole("n", n, 2, 1 << 50)
    member, numbers = split_arguments(constructor, arguments)
    t = log_budget(member, numbers, n=n, epsilon=epsilon, delta=delta)
    if (xp := namespace(t)) is not np:
        return member(xp.exp(t), numbers)
    low = math.log(checks.EPSILON_RANGE[0])
    if math.isnan(t):
        own = account(member(math.exp(low), {}), n).epsilon(delta)
        raise ValueError(
            f"epsilon: {epsilon:g} at delta {delta:g}; {n} reports of eps0 = 0.01 already have epsilon {own:.4g}"
        )
    candidates = (member(math.exp(max(t - margin, low)), {}) for margin in _MARGINS)
    return first_feasible(candidates, lambda made: upper_delta(made, n, float(epsilon)) <= delta)


def upper_delta(mechanism: Any, n: int, epsilon: float) -> float:
    """Return the upper end of the rigorous bracket of delta, for the integers that a release samples."""
    return account(exact_sampler(mechanism), n).upper_bound(epsilon)


def log_budget(member: Callable[[Any, Any], Any], parameters: Any, *, n: int, epsilon: Any, delta: Any) -> Any:
    """Return log eps0 of the largest budget whose n shuffled reports are (eps, delta)-DP; NaN if 0.01 is too large.

    ``member`` maps (eps0, parameters) to the mechanism, without captured tracers. Plain numbers are solved by the
    precise value, JAX numbers by the integral over the first pair.
    """
    parameters, epsilon, delta = promote(parameters, epsilon, delta)
    low, high = (math.log(end) for end in checks.EPSILON_RANGE)
    given, xp = (parameters, epsilon, delta), namespace(epsilon, delta)
    excess = partial(_excess, member, n)
    if xp is np:
        return math.nan if excess(low, given) > 0 else _root_from_below(lambda t: excess(t, given), low, high)
    lowest, highest, _ = promote(low, high, epsilon)
    t = root(excess, given, lowest, highest, _RTOL)
    return xp.where(excess(lowest, jax.lax.stop_gradient(given)) <= 0, t, xp.nan)


def _excess(member: Callable[[Any, Any], Any], n: int, t: Any, given: tuple[Any, Any, Any]) -> Any:
    """Return log delta of reports of budget e^t, minus log of the target delta."""
    parameters, epsilon, delta = given
    xp = namespace(t, epsilon, delta)
    made = member(xp.exp(t), parameters)
    if xp is np:
        log_delta = math.log(max(account(made, n).delta(epsilon), math.exp(-_LEAST_LOG)))
    else:
        log_delta = xp.maximum(integral_log_delta(worst_inputs(made).pairs[0].upper, float(n), epsilon)[0], -_LEAST_LOG)
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
            if step < _FEWEST:
                break
    return feasible
