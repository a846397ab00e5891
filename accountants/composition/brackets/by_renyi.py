"""Upper bounds of a guarantee by its Renyi divergences, where grids have too many points or leave out too much.

Divergences add up, need no grid, and leave out no mass. For every order a = 1 + c the divergence R_a of all releases
gives (Canonne, Kamath & Steinke 2020, Proposition 12)

    log delta = c (R_a - eps) + c log(1 - 1/a) - log a.

Every order is valid. The best one is searched for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from accountants.composition.brackets.cells import NoGridError
from accountants.composition.brackets.grid import GridBracket
from accountants.composition.self_composed import ConvergenceError
from accountants.composition.trade_off import CurvePoint, around_estimate, curve_point
from dpkernels.proven import proven

_ORDERS = np.geomspace(1e-3, 1e5, 17)  # The orders, less 1, that are tried first.
_MIN_ORDER = 1e-12  # The search does not go on below this order, less 1,
_MAX_ORDER = 1e12  # or above this one.
_HALVINGS = 4  # How often the ratio of neighbouring orders is replaced by its root around the best order.
_ROUNDING = 1e-12  # More than the relative rounding errors of the terms of a bound.
_WIDE_BRACKET = 0.05  # The relative width of the grid's bracket above which orders are tried as well.
_MIN_DELTA = 1e-290  # Upper bounds of delta up to this are kept: they are close to the least floats.
_MAX_EXPONENT = 700.0  # e^x overflows float64 from 709.8 on.


@proven("sums#closed-forms")
def epsilon_of_orders(guarantee: Any, delta: float) -> float:
    """Return the least epsilon at delta of the orders that are tried; inf if no divergence is finite."""

    def epsilon(c: float, divergence: float) -> float:
        terms = divergence, math.log1p(-1 / (1 + c)), -(math.log1p(c) + math.log(delta)) / c
        return sum(terms) + _ROUNDING * sum(map(abs, terms))

    return max(_least(guarantee, epsilon), 0.0)


@proven("sums#closed-forms")
def delta_of_orders(guarantee: Any, epsilon: float) -> float:
    """Return the least delta at epsilon of the orders that are tried, at most 1."""

    def log_delta(c: float, divergence: float) -> float:
        terms = c * divergence, -c * epsilon, c * math.log1p(-1 / (1 + c)), -math.log1p(c)
        return sum(terms) + _ROUNDING * sum(map(abs, terms))

    least = _least(guarantee, log_delta)
    return min(math.exp(max(least, -_MAX_EXPONENT)) * (1 + _ROUNDING), 1.0) if least < 0 else 1.0


def _least(guarantee: Any, bound: Callable[[float, float], float]) -> float:
    """Return the least bound by a divergence, over orders around the best one."""

    def at(c: float) -> float:
        with suppress(ConvergenceError):
            divergence = float(guarantee.renyi(1 + c))
            if math.isfinite(divergence):
                return bound(c, divergence)
        return math.inf

    values = [at(float(c)) for c in _ORDERS]
    best = int(np.argmin(values))
    least, center, ratio = values[best], float(_ORDERS[best]), float(_ORDERS[1] / _ORDERS[0])
    if not math.isfinite(least):
        return least
    for step in (1 / ratio, ratio):  # Beyond the first orders.
        while _MIN_ORDER < center < _MAX_ORDER and (further := at(center * step)) < least:
            least, center = further, center * step
    for _ in range(_HALVINGS):
        ratio = math.sqrt(ratio)
        least, center = min((least, center), *((at(c), c) for c in (center / ratio, center * ratio)))
    return least


@dataclass(frozen=True)
class GridOrRenyi:
    """The bounds of losses on a grid, with upper ends by Renyi divergences where the grid's are wide or missing."""

    grid: GridBracket

    def delta(self, epsilon: float) -> tuple[float, float]:
        low, high = 0.0, 1.0
        with suppress(NoGridError):
            low, high = self.grid.delta(epsilon)
        if high - low > _WIDE_BRACKET * high and high > _MIN_DELTA:
            high = max(min(high, delta_of_orders(self.grid.guarantee, epsilon)), low)
        return low, high

    def epsilon(self, delta: float) -> tuple[float, float]:
        low, high, refusal = 0.0, math.inf, None
        try:
            low, high = self.grid.epsilon(delta)
        except NoGridError as error:
            refusal = error
        if (math.isinf(high) or high - low > _WIDE_BRACKET * high) and self.grid.guarantee.infinity_mass < delta:
            high = max(min(high, epsilon_of_orders(self.grid.guarantee, delta)), low)
        if math.isinf(high) and refusal is not None:
            raise refusal
        return low, high

    def upper_delta(self, epsilon: float) -> float:
        return self.delta(epsilon)[1]

    def upper_epsilon(self, delta: float) -> float:
        return self.epsilon(delta)[1]

    def errors(self, alpha: float, largest_loss: float) -> CurvePoint:
        with suppress(NoGridError):
            return self.grid.errors(alpha, largest_loss)

        def places(alpha: float, is_flat: bool) -> np.ndarray:
            return around_estimate(self.grid.guarantee.estimate_delta, alpha, is_flat, largest_loss)

        return curve_point(self.delta, places, alpha, largest_loss)
