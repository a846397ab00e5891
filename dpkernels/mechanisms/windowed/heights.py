"""The largest window height at a budget, and the free parameters of least variance.

Plain numbers are NumPy's in float64: this runs once, when a mechanism is built. A height may be traced by JAX.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import numpy as np

from dpkernels import checks
from dpkernels.decimals import shortest
from dpkernels.mechanisms.windowed.bases import Base, Quartic
from dpkernels.mechanisms.windowed.mechanism import critical_points, distances, kinks
from dpkernels.mechanisms.windowed.windows import Window
from dpkernels.numerics import Real, namespace
from dpkernels.solve import maximum_between, maximum_on, minimum_near_grid

CONDITIONS = ("pointwise", "sup_inf")
OBJECTIVES = ("worst", "central")
_XATOL = 1e-10  # Of the logarithms that are searched.


def relative_height(window: Window, base: Base, width: Real, epsilon: Real, condition: str) -> Any:
    """The largest ratio k / y of window to base height that is eps-DP.

    ``pointwise`` (exact): (e^eps - 1) g(v) >= (k/y) (ceiling(v) - e^eps floor(v)) for every v, where ceiling and
    floor are the extremes of the unit window at v over valid inputs. ``sup_inf`` (sufficient, Zhang 2024):
    the density's supremum over its infimum, (1 + k/y) / min g <= e^eps.

    Returns:
        A float for plain numbers; for JAX ones a JAX scalar, differentiable, NaN where no positive height is eps-DP.

    Raises:
        ValueError: no positive height is eps-DP, of plain numbers.
    """
    checks.one_of("condition", condition, CONDITIONS)
    xp = namespace(width, epsilon, *jax.tree.leaves((window, base)))
    if condition == "sup_inf":
        height = xp.exp(epsilon) * base.lowest - 1
    else:
        height = xp.expm1(epsilon) / _steepest(window, base, width, epsilon)
    if xp is not np:
        return xp.where(height > 0, height, xp.nan)
    if not height > 0:
        raise ValueError(
            f"epsilon: at {shortest(epsilon)} no positive window height is private; the base falls to "
            f"{shortest(base.lowest)} of its peak, and the {condition} condition needs more than "
            f"{shortest(np.exp(-epsilon))}"
        )
    return float(height)


def _steepest(window: Window, base: Base, width: Any, epsilon: Any) -> Any:
    """Return the maximum over v of (ceiling - e^eps floor) / g."""
    xp = namespace(width, epsilon, *jax.tree.leaves((window, base)))

    def steepness(v: Any) -> Any:
        near, far = distances(v, width)
        return (window.ceiling(near) - xp.exp(epsilon) * window.floor(far)) / base.density(v)

    if xp is np:
        return maximum_on(steepness, critical_points(window, base, width))
    ends = xp.concatenate([kinks(window, base, width), xp.array([0.0, 1.0])])
    return maximum_between(steepness, xp.sort(xp.clip(ends, 0.0, 1.0)))


def height_at(relative: float, window: Window, base: Base, width: float) -> float:
    """k from k / y, by normalisation: y (k/y area m + 2 b) = 1."""
    area: Any = window.area
    return relative / (relative * area * width + 2 * base.area)


def variance_at(window: Window, base: Base, width: float, height: float, objective: str) -> float:
    """Central or worst-case variance in units of the squared width of the input interval."""
    S1: Any = window.area * height * width
    reach = S1 * (1 - width / 2)  # c_max
    central = ((1 - S1) * base.spread + S1 * window.spread * width**2) / (4 * reach**2)
    return central if objective == "central" else central + (1 / S1 - 1) / 4


@lru_cache(maxsize=512)
def best_width(window: Window, base: Base, epsilon: float, condition: str, objective: str) -> tuple[float, float]:
    """The width of least variance on a given base, and that variance, by a search over m in (1e-5, 1.99).

    Raises:
        ValueError: an unknown objective or condition, or no height is private.
    """
    checks.one_of("objective", objective, OBJECTIVES)

    def variance(logit: float) -> float:
        width = _width_of(logit)
        height = height_at(relative_height(window, base, width, epsilon, condition), window, base, width)
        return variance_at(window, base, width, height, objective)

    # Quartic bases have two basins, below and above m = 1: the scan is dense there, and geometric towards 0.
    logit, value = minimum_near_grid(variance, np.linspace(-12.0, 5.0, 52), xatol=_XATOL)
    return _width_of(logit), value


def _width_of(logit: float) -> float:
    return float(2 / (1 + np.exp(-logit)))


@lru_cache(maxsize=512)
def best_quartic(window: Window, epsilon: float, condition: str, objective: str) -> Quartic:
    """The quartic base of least variance, its width chosen with it, by a bounded search over log r."""

    def variance(log_edge: float) -> float:
        return best_width(window, Quartic(float(np.exp(log_edge))), epsilon, condition, objective)[1]

    # Under sup_inf an edge below e^-eps leaves no height.
    lowest = 1e-6 if condition == "pointwise" else np.exp(-epsilon) * (1 + 1e-6)
    log_edge, value = minimum_near_grid(variance, np.linspace(float(np.log(lowest)), 0.0, 9), xatol=_XATOL)
    return Quartic(1.0) if variance(0.0) <= value else Quartic(float(np.exp(log_edge)))
