"""The parameter at which several reports meet a budget: precisely, or conservatively by the rigorous bracket.

Both are the root of log mu, where mu is the ratio of sensitivity and sigma of Gaussian noise of about the same delta at
eps,

    Phi(mu/2 - eps/mu) = delta:    mu = sqrt(z^2 + 2 eps) - z,    z = -Phi^-1(delta).

As a function of t, where noise is proportional to e^t, or budgets are to e^-t, log mu has a slope of about -1. So few
steps are needed, from afar too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from accountants.composition.bounds import Bracket
from accountants.composition.self_composed import ConvergenceError
from accountants.guarantee import Guarantee
from dpkernels.numerics import Real, namespace, ndtri
from dpkernels.solve import NotPrivateError, conservative_root, newton

# How far the bracket's upper end may be from the precise eps, relatively; an eps of 0 counts as the least.
_NEAR, _LEAST_EPSILON = 1e-3, 1e-300
FARTHEST = 40.0
ENDS = (-FARTHEST, FARTHEST)


def log_mu(delta: Any, epsilon: Real) -> Real:
    """Return log of mu, which increases in delta; see the module."""
    xp = namespace(delta, epsilon)
    kind = xp.finfo(delta.dtype)
    z = -ndtri(xp.clip(delta, kind.tiny, 1 - kind.eps))
    root = xp.sqrt(z**2 + 2 * epsilon)
    return xp.log(xp.where(z > 0, 2 * epsilon / (root + xp.where(z > 0, z, 0.0)), root - z))


def precise_parameter(
    reports: Callable[[Any, Any], Guarantee],
    parameters: Any,
    epsilon: Real,
    delta: Real,
    *,
    initial_guess: Real = 0.0,
    ends: tuple[Real, Real] = ENDS,
    tolerance: float = 1e-5,
    clip: bool = False,
) -> Any:
    """Return the t at which reports are (eps, delta)-DP by the precise composition, or NaN if there is none.

    Args:
        reports: maps (t, parameters) to a guarantee whose delta falls with t; closes over no tracer.
        parameters: a pytree of numbers.
        epsilon: eps of all reports.
        delta: delta of all reports.
        initial_guess: t.
        ends: the least and the largest t.
        tolerance: see ``solve.newton``.
        clip: see ``solve.newton``.

    Returns:
        t: a float for plain numbers, else a JAX scalar, differentiable in the parameters and the budget.
    """
    xp = namespace(epsilon, delta)
    given = parameters, epsilon, log_mu(xp.asarray(delta), epsilon)
    excess = partial(_excess, reports)
    return newton(excess, given, initial_guess, ends, tolerance=tolerance, longest=2.0, clip=clip)


def _excess(reports: Callable[[Any, Any], Guarantee], t: Real, given: tuple[Any, Real, Real]) -> Any:
    parameters, epsilon, goal = given
    delta = reports(t, parameters).delta(epsilon)
    return log_mu(namespace(delta).asarray(delta), epsilon) - goal


def conservative_parameter(
    reports: Callable[[float], Guarantee], epsilon: float, delta: float, *, is_known: bool = False
) -> float:
    """Return the least t at which the upper end of the rigorous bracket of the reports meets (eps, delta).

    Args:
        reports: maps t, a plain number, to a guarantee whose delta falls with t.
        epsilon: eps of all reports.
        delta: delta of all reports.
        is_known: whether the precise root is at t = 0. It is solved for only if the bracket disagrees.

    Raises:
        ConvergenceError: no t was found.
    """

    @cache
    def missing(t: float) -> float:
        """The logarithm of the bracket's eps over the one allowed: about how much larger t has to be."""
        return math.log(max(Bracket(reports(t)).upper_epsilon(delta), _LEAST_EPSILON) / epsilon)

    start = 0.0
    if not is_known or abs(missing(0.0)) > _NEAR:
        start = precise_parameter(lambda t, _: reports(t), (), np.float64(epsilon), np.float64(delta), clip=True)
    try:
        # Where the bracket's eps jumps, as it does from infinity, it does not say how far t is off.
        return conservative_root(missing, start, longest=_NEAR)
    except NotPrivateError as error:
        raise ConvergenceError(
            f"epsilon, delta: {epsilon:g}, {delta:g}; the bracket stays above it: {error}"
        ) from error
