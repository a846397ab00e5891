"""How well reports tell the distribution of the values, as the explorer's page looks it up: ``tune.distribution``.

Logarithms of the expected error of the cdf, in widths of the interval, by mechanism, crowd and budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from accountants.tune.fisher import cdf_error
from dpkernels.mechanisms.named import piecewise
from dpkernels.solve import bounded_minimum, minimum_near_grid

BUDGETS = (0.01, 12.0, 97)
VALUES = (1e2, 1e8, 25)  # Of as many people.
_WIDTHS = (-7.0, math.log(1.9))  # log m, of the narrowest window and the widest.
_NEAR = 0.3  # How far the best moves from one budget to the next, at most.

_errors = jax.jit(jax.vmap(cdf_error, (None, 0)))
_error = jax.jit(cdf_error)


def errors(mechanism: Any) -> list[float]:
    """Those of a mechanism on [0, 1], for each crowd."""
    with jax.enable_x64(True):
        return np.log(np.asarray(_errors(mechanism, np.geomspace(*VALUES)))).tolist()


def narrow(people: float, budgets: Iterable[float]) -> list[tuple[float, float]]:
    """At each budget log m of the piecewise mechanism that tells most of the distribution, and its error."""
    found: list[tuple[float, float]] = []
    for epsilon in budgets:
        found.append(_narrowest(float(epsilon), people, found[-1][0] if found else None))
    return found


def narrow_error(epsilon: float, people: float, log_m: float) -> float:
    """The error of the piecewise mechanism of a width."""
    one = piecewise(epsilon=epsilon, lower=0.0, upper=1.0, eta=2 / math.exp(log_m))
    with jax.enable_x64(True):
        return math.log(_error(one, people))


def _narrowest(epsilon: float, people: float, before: float | None) -> tuple[float, float]:
    def error(log_m: float) -> float:
        return narrow_error(epsilon, people, log_m)

    low, high = _WIDTHS
    if before is None:
        return minimum_near_grid(error, np.linspace(low, high, 25), xatol=1e-4)
    return bounded_minimum(error, max(before - _NEAR, low), min(before + _NEAR, high), xatol=1e-4)
