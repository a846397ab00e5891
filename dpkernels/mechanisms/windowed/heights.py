"""The largest window height at a budget, and the free parameters of least variance.

Plain numbers are computed by NumPy in float64. JAX may trace every argument.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np

from dpkernels import checks
from dpkernels.decimals import shortest
from dpkernels.mechanisms.windowed.bases import Base, Quartic
from dpkernels.mechanisms.windowed.mechanism import critical_points, distances, kinks
from dpkernels.mechanisms.windowed.windows import Window
from dpkernels.numerics import Real, namespace, plain
from dpkernels.solve import maximum_between, maximum_on, minimum_near_grid, smooth_minimum

CONDITIONS = ("pointwise", "sup_inf")
OBJECTIVES = ("worst", "central")
_XATOL = 1e-10  # Of the logarithms that are searched.
# The logits of m/2 from m = 1e-5 to 1.99. Quartic bases have two basins, below and above m = 1: the scan is dense
# there, and geometric towards 0. And how many edges are scanned, evenly in the logarithm.
_LOGITS, _EDGES = np.linspace(-12.0, 5.0, 52), 9


def relative_height(window: Window, base: Base, width: Real, epsilon: Real, condition: str) -> Any:
    """Return the largest ratio k / y of window to base height that is eps-DP.

    ``pointwise`` (exact): (e^eps - 1) g(v) >= (k/y) (ceiling(v) - e^eps floor(v)) for every v, where ceiling and
    floor are the extremes of the unit window at v over valid inputs. ``sup_inf`` (sufficient, Zhang 2024):
    the density's supremum over its infimum, (1 + k/y) / min g <= e^eps.

    Returns:
        A float for plain numbers. For JAX values a differentiable JAX scalar, NaN if no positive height is eps-DP.

    Raises:
        ValueError: no positive height is eps-DP, for plain numbers.
    """
    checks.one_of("condition", condition, CONDITIONS)
    xp = namespace(width, epsilon, *jax.tree.leaves((window, base)))
    if condition == "sup_inf":
        height = xp.exp(epsilon) * base.lowest - 1
    else:
        flat = window.is_flat and base.is_flat
        height = xp.expm1(epsilon) / (1.0 if flat else _steepest(window, base, width, epsilon))
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
    parameters = window, base, width, epsilon
    xp = namespace(*jax.tree.leaves(parameters))
    if xp is np:
        return maximum_on(lambda v: _steepness(v, parameters), critical_points(window, base, width))
    ends = xp.concatenate([kinks(window, base, width), xp.array([0.0, 1.0])])
    return maximum_between(_steepness, parameters, xp.sort(xp.clip(ends, 0.0, 1.0)))


def _steepness(v: Any, parameters: tuple[Window, Base, Any, Any]) -> Any:
    window, base, width, epsilon = parameters
    near, far = distances(v, width)
    return (window.ceiling(near) - namespace(v, epsilon).exp(epsilon) * window.floor(far)) / base.density(v)


def height_at(relative: Any, window: Window, base: Base, width: Any) -> Any:
    """Return k from k / y, by normalisation: y (k/y area m + 2 b) = 1."""
    return relative / (relative * window.area * width + 2 * base.area)


def variance_at(window: Window, base: Base, width: Any, height: Any, objective: str) -> Any:
    """Return the central or worst-case variance in units of the squared width of the input interval."""
    S1 = window.area * height * width
    reach = S1 * (1 - width / 2)  # c_max
    central = ((1 - S1) * base.spread + S1 * window.spread * width**2) / (4 * reach**2)
    return central if objective == "central" else central + (1 / S1 - 1) / 4


def best_shape(window: Window, base: Base | None, epsilon: Any, condition: str, objective: str) -> tuple[Base, Real]:
    """Return the base and the width of least variance; a base of None is quartic, its edge chosen with the width.

    For JAX numbers both are JAX scalars, differentiable by the implicit rule.

    Raises:
        ValueError: an unknown objective or condition, or no height is private.
    """
    checks.one_of("objective", objective, OBJECTIVES)
    checks.one_of("condition", condition, CONDITIONS)
    parameters = window, base, epsilon
    if namespace(*jax.tree.leaves(parameters)) is np:
        base = _best_quartic(window, epsilon, condition, objective) if base is None else base
        return base, _best_width(window, base, epsilon, condition, objective)[0]
    axes = [_LOGITS] if base is not None else [_LOGITS, np.linspace(0.0, 1.0, _EDGES)]
    starts = np.stack(np.meshgrid(*axes), -1).reshape(-1, len(axes))
    variance = partial(_variance_of_shape, condition, objective)
    x = smooth_minimum(variance, parameters, starts, starts.min(0), starts.max(0))
    return _quartic_at(x[1], epsilon, condition) if base is None else base, _width_of(x[0])


def _variance_of_shape(condition: str, objective: str, x: Any, parameters: tuple[Window, Base | None, Any]) -> Any:
    window, base, epsilon = parameters
    base = _quartic_at(x[1], epsilon, condition) if base is None else base
    return _best_height_variance(window, base, _width_of(x[0]), epsilon, condition, objective)


def _best_height_variance(window: Window, base: Base, width: Any, epsilon: Any, condition: str, objective: str) -> Any:
    height = height_at(relative_height(window, base, width, epsilon, condition), window, base, width)
    return variance_at(window, base, width, height, objective)


@lru_cache(maxsize=512)
def _best_width(window: Window, base: Base, epsilon: float, condition: str, objective: str) -> tuple[float, float]:
    """Return the width of least variance on a given base, and that variance."""

    def variance(logit: float) -> float:
        return _best_height_variance(window, base, _width_of(logit), epsilon, condition, objective)

    logit, value = minimum_near_grid(variance, _LOGITS, xatol=_XATOL)
    return _width_of(logit), value


def _width_of(logit: Any) -> Any:
    return plain(2 / (1 + namespace(logit).exp(-logit)))


@lru_cache(maxsize=512)
def _best_quartic(window: Window, epsilon: float, condition: str, objective: str) -> Quartic:
    """Return the quartic base of least variance, its width chosen with it, by a bounded search over log r."""

    def variance(log_edge: float) -> float:
        return _best_width(window, Quartic(float(np.exp(log_edge))), epsilon, condition, objective)[1]

    lowest = float(np.log(lowest_edge(epsilon, condition)))
    log_edge, value = minimum_near_grid(variance, np.linspace(lowest, 0.0, _EDGES), xatol=_XATOL)
    return Quartic(1.0) if variance(0.0) <= value else Quartic(float(np.exp(log_edge)))


def _quartic_at(share: Any, epsilon: Any, condition: str) -> Quartic:
    """Return the quartic base at a share of the way from log of the lowest edge to 0."""
    xp = namespace(share, epsilon)
    return Quartic(xp.exp((1 - share) * xp.log(lowest_edge(epsilon, condition))))


def lowest_edge(epsilon: Any, condition: str) -> Any:
    """Return the lowest edge with a private height; under sup_inf an edge of at most e^-eps has none."""
    return 1e-6 if condition == "pointwise" else namespace(epsilon).exp(-epsilon) * (1 + 1e-6)
