"""Constructors of the mechanisms that have names in the literature."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from dpkernels import checks
from dpkernels.mechanisms.base import Bounded
from dpkernels.mechanisms.multivariate import Multivariate
from dpkernels.mechanisms.optimal.mechanism import Optimal
from dpkernels.mechanisms.optimal.search import optimal
from dpkernels.mechanisms.two_point import Mixture, TwoPoint
from dpkernels.mechanisms.windowed import mechanism as windowed
from dpkernels.mechanisms.windowed.bases import Base, Constant
from dpkernels.mechanisms.windowed.mechanism import NARROWEST, Windowed
from dpkernels.mechanisms.windowed.tabulated import base_from, window_from
from dpkernels.mechanisms.windowed.windows import Window
from dpkernels.numerics import Real, elementary, plain
from dpkernels.solve import first_feasible, floats_from

WINDOWS: dict[str, Window] = {kind.name: kind() for kind in Window.kinds() if kind.name}
BASES = ("constant", "quartic")

# Wang 2019, equation (7): below this budget Duchi alone is better in the worst case.
HYBRID_EPSILON = math.log(
    (-5 + 2 * (6353 - 405 * math.sqrt(241)) ** (1 / 3) + 2 * (6353 + 405 * math.sqrt(241)) ** (1 / 3)) / 27
)


def composite(
    window: Any = "uniform",
    base: Any = "constant",
    *,
    epsilon: Real,
    lower: Real,
    upper: Real,
    width: Real | None = None,
    condition: str = "pointwise",
    objective: str = "worst",
) -> Windowed:
    """Return a window on a base (Zhang 2024): density y g(v) + k h((v - a)/m) on the scaled interval [-1, 1].

    The height k is the largest that is eps-DP. Parameters that are not given minimise the variance.

    Args:
        window: "uniform" (A1), "sine" (A2), "triangle" (A3), a ``Window``, a function on [0, 1] or a table.
        base: "constant" (B1), "quartic" (B2), a ``Base``, a function on [-1, 1] or a table.
        epsilon: pure-DP budget, in [0.01, 20]; any two inputs are neighbours (local DP).
        lower: smallest valid input, fixed before the data are seen.
        upper: largest valid input.
        width: m in [1e-100, 2); by default the best.
        condition: "pointwise" (exact) or "sup_inf" (sufficient, the source's).
        objective: what the default parameters minimise, "worst" or "central" variance.

    Raises:
        ValueError: an argument is out of its range, a shape is not symmetric and positive, or no height is private.

    Example:
        >>> m = composite("sine", "quartic", epsilon=1.0, lower=0.0, upper=120.0)
        >>> round(float(m.central_variance / 120**2), 2)
        1.13
    """
    epsilon, lower, upper = checks.budget(epsilon, lower, upper)
    checks.one_of("condition", condition, windowed.CONDITIONS)
    checks.one_of("objective", objective, windowed.OBJECTIVES)
    h, g = window_of(window), base_of(base)
    if g is None or width is None:
        g, best = windowed.best_shape(h, g, epsilon, condition, objective)
        width = best if width is None else width
    checks.within("width", width, 0.0, 2.0, open_ends=True)
    checks.within("width", width, NARROWEST, 2.0)
    m = checks.number("width", width)
    relative = windowed.relative_height(h, g, m, epsilon, condition)
    return Windowed(h, g, m, relative, lower, upper, epsilon)


def piecewise(
    *, epsilon: Real, lower: Real, upper: Real, eta: Real | None = None, objective: str = "worst"
) -> Windowed:
    """Return the type-I piecewise transformation (Ma 2021): a uniform window on a constant base, m = 2 / eta.

    Arguments are those of ``composite``, and eta, the output half-width over the window half-width, above 1 and up to
    2e100. By default eta minimises the objective.

    Example:
        >>> float(piecewise(epsilon=1.0, lower=-1.0, upper=1.0).worst_variance).__round__(4)
        5.0657
    """
    return composite("uniform", epsilon=epsilon, lower=lower, upper=upper, width=_width(eta), objective=objective)


def piecewise_triangle(
    *, epsilon: Real, lower: Real, upper: Real, eta: Real | None = None, objective: str = "worst"
) -> Windowed:
    """Return the type-II piecewise transformation (Ma 2021): a triangle window on a constant base, m = 2 / eta.

    Arguments are those of ``piecewise``. The height is the published one, k = y (e^eps - 1). For wide windows
    (m > 4/3), which cover the middle for every input, ``composite("triangle")`` may choose a larger one.
    """
    given: Any = {"epsilon": epsilon, "lower": lower, "upper": upper, "objective": objective}
    return composite("triangle", width=_width(eta), condition="sup_inf", **given)


def piecewise_wang2019(*, epsilon: Real, lower: Real, upper: Real) -> Windowed:
    """Return the Piecewise Mechanism of Wang 2019: type I at eta = 1 + e^(eps/2), for epsilon in [0.01, 20]."""
    epsilon, lower, upper = checks.budget(epsilon, lower, upper)
    return piecewise(epsilon=epsilon, lower=lower, upper=upper, eta=1 + elementary(epsilon).exp(epsilon / 2))


def duchi(*, epsilon: Real, lower: Real, upper: Real) -> TwoPoint:
    """Return Duchi's two-point mechanism for epsilon in [0.01, 20]; see ``TwoPoint``."""
    epsilon, lower, upper = checks.budget(epsilon, lower, upper)
    return TwoPoint(lower, upper, epsilon)


def hybrid(*, epsilon: Real, lower: Real, upper: Real, share: Real | None = None) -> Mixture | TwoPoint:
    """Return the hybrid mechanism of Wang 2019: its Piecewise Mechanism with a probability, else Duchi's mechanism.

    The probability of the Piecewise Mechanism is ``share``, in (0, 1), by default that of the lowest worst-case
    variance: 1 - e^(-eps/2) above eps = 0.61, else 0. The result is then Duchi's ``TwoPoint``, or, if JAX traces
    epsilon, a ``Mixture`` of weight 0. A positive share below 0.61 makes the distribution estimable. Other arguments
    are those of ``composite``.
    """
    epsilon, lower, upper = checks.budget(epsilon, lower, upper)
    points = duchi(epsilon=epsilon, lower=lower, upper=upper)
    spread = piecewise_wang2019(epsilon=epsilon, lower=lower, upper=upper)
    if share is not None:
        checks.within("share", share, 0.0, 1.0, open_ends=True)
        return Mixture(spread, points, checks.number("share", share))
    weight = -elementary(epsilon).expm1(-epsilon / 2)
    if checks.concrete(epsilon) is None:
        return Mixture(spread, points, jnp.where(epsilon <= HYBRID_EPSILON, 0.0, weight))
    return points if epsilon <= HYBRID_EPSILON else Mixture(spread, points, weight)


def _width(eta: Real | None) -> Real | None:
    if eta is None:
        return None
    checks.within("eta", eta, 1.0, math.inf, open_ends=True)
    checks.within("eta", eta, 1.0, 2 / NARROWEST)
    return 2 / checks.number("eta", eta)


def window_of(window: Any) -> Window:
    """Return a window from its name, a function on [0, 1], a table, or itself."""
    if isinstance(window, Window):
        return window
    if isinstance(window, str):
        checks.one_of("window", window, WINDOWS)
        return WINDOWS[window]
    return window_from(window)


def base_of(base: Any) -> Base | None:
    """Return a base from its name, a function on [-1, 1], a table, or itself; None for a quartic whose edge is free."""
    if isinstance(base, Base):
        return base
    if isinstance(base, str):
        checks.one_of("base", base, BASES)
        return Constant() if base == "constant" else None
    return base_from(base)


def multivariate(
    *, dimensions: int, epsilon: Real, lower: Real, upper: Any, sampled: int | None = None, coordinate: str = "hybrid"
) -> Multivariate:
    """Return a mechanism on vectors of d coordinates that reports s of them, each with eps/s.

    Source: Wang 2019, Algorithm 4; Ma 2021 has s = 1.

    Args:
        dimensions: d, 1 to 2^31.
        epsilon: pure-DP budget of a whole vector; any two vectors are neighbours. It and eps/s are in [0.01, 20].
        lower: smallest valid input, a number or one a coordinate.
        upper: largest valid input.
        sampled: s, 1 to d; by default max(1, min(d, floor(eps / 2.5))) (Wang 2019). Give s if JAX traces epsilon.
        coordinate: name of the mechanism of a coordinate, one of ``MECHANISMS``.
    """
    checks.epsilon(epsilon)
    checks.one_of("coordinate", coordinate, MECHANISMS)
    checks.interval(lower, upper)
    d, epsilon = checks.whole("dimensions", dimensions, 1, 1 << 31), checks.number("epsilon", epsilon)
    if sampled is None:
        checks.not_traced("epsilon", "How many coordinates are reported depends on it; give sampled.", epsilon)
        sampled = max(1, min(d, int(epsilon / 2.5)))
    s = checks.whole("sampled", sampled, 1, d)
    inner = MECHANISMS[coordinate](epsilon=_share(epsilon, s), lower=-1.0, upper=1.0)
    low, high = (end if checks.concrete(end) is None else np.asarray(end, np.float64)[()] for end in (lower, upper))
    return Multivariate(inner, plain(low), plain(high), d, s)


def _share(epsilon: Any, parts: int) -> Any:
    """Return the budget of one of several parts; read as decimals, plain numbers do not exceed the whole."""
    if checks.concrete(epsilon) is None:
        return epsilon / parts
    total = Fraction(repr(epsilon))
    return first_feasible(floats_from(epsilon / parts, 0.0), lambda share: parts * Fraction(repr(share)) <= total)


def _optimal_local(*, epsilon: Any, lower: Real, upper: Real) -> Optimal:
    return optimal(epsilon=epsilon, lower=lower, upper=upper)


MECHANISMS: dict[str, Callable[..., Bounded]] = {
    "piecewise": piecewise,
    "piecewise-triangle": piecewise_triangle,
    "piecewise-wang2019": piecewise_wang2019,
    "duchi": duchi,
    "hybrid": hybrid,
    "optimal": _optimal_local,
    **{f"{h}-{g}": partial(composite, h, g) for h in WINDOWS for g in BASES if h != "uniform"},
}
