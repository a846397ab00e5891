"""The least noise by a precise root, moved outward until the upper end of the rigorous bracket agrees.

Roots are those of log mu, mu the ratio of sensitivity and sigma of Gaussian noise of about the same delta at eps,

    Phi(mu/2 - eps/mu) = delta:    mu = sqrt(z^2 + 2 eps) - z,    z = -Phi^-1(delta),

which falls about as -log c where all noise is made c times as wide: steps from afar are good.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import brentq

from accountants.composition.bounds import Bracket
from accountants.composition.cumulant import ConvergenceError
from accountants.composition.guarantee import Guarantee
from dpkernels.numerics import Real, namespace, ndtri

_STEPS = 40
# How far the bracket's upper end may be from the precise eps, relatively; of an eps of 0.
_NEAR, _TINY = 1e-3, 1e-300
FARTHEST = 40.0


def log_mu(delta: Any, epsilon: Real) -> Real:
    """log of mu, increasing in delta; see the module."""
    xp = namespace(delta, epsilon)
    kind = xp.finfo(delta.dtype)
    z = -ndtri(xp.clip(delta, kind.tiny, 1 - kind.eps))
    root = xp.sqrt(z**2 + 2 * epsilon)
    return xp.log(xp.where(z > 0, 2 * epsilon / (root + xp.where(z > 0, z, 0.0)), root - z))


def least_private(reports: Callable[[float], Guarantee], epsilon: float, delta: float, near: bool = False) -> float:
    """The least t at which the reports are private enough, by the bracket; log mu falls about as -t from t = 0.

    The precise root is looked for first, but where t = 0 should be near it, and the bracket agrees.
    """
    goal = float(log_mu(np.float64(delta), epsilon))

    def excess(t: float) -> float:
        return float(log_mu(np.float64(reports(t).delta(epsilon)), epsilon)) - goal

    t = 0.0 if near else _crossing(excess)
    for j in range(_STEPS):
        upper = Bracket(reports(t)).upper_epsilon(delta)
        over = math.log(max(upper, _TINY) / epsilon)
        if near and j == 0 and abs(over) > _NEAR:
            t = _crossing(excess)
        elif upper <= epsilon:
            return t
        else:
            # About the bracket's width; where eps jumps, as it does from infinity, short steps that grow.
            t += 1.05 * over + 1e-9 if over < _NEAR else min(1e-8 * 4.0**j, 0.1)
    raise ConvergenceError(f"epsilon, delta: {epsilon:g}, {delta:g}; a bracket stays above it, at {upper:.9g}")


def _crossing(falling: Callable[[float], float]) -> float:
    """Where a function of slope about -1 crosses 0, to 1e-8."""
    t, value = 0.0, falling(0.0)
    while value != 0.0:
        other = t + 1.1 * value + math.copysign(1e-6, value)
        if abs(other) > FARTHEST:
            return other
        at_other = falling(other)
        if (at_other > 0) != (value > 0):
            return float(brentq(falling, t, other, xtol=1e-8, rtol=1e-12))
        t, value = other, at_other if abs(at_other - value) > 1e-3 * abs(value) else 2 * value
    return t
