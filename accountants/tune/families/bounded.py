"""Families of bounded mechanisms: a window on a base, and mechanisms without free parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import dpkernels as dpk
from accountants.published.searches import Enumerated, composite_search
from accountants.tune.domains import Above, Domain, Inside, LogBetween
from accountants.tune.families.constructed import Constructed
from dpkernels import checks
from dpkernels.mechanisms import named
from dpkernels.mechanisms.windowed.bases import Base, Quartic
from dpkernels.mechanisms.windowed.mechanism import CONDITIONS, Windowed, lowest_edge
from dpkernels.mechanisms.windowed.windows import Window
from dpkernels.numerics import Real
from dpkernels.pytrees import pytree

__all__ = ["composite", "duchi", "hybrid", "optimal", "piecewise", "piecewise_triangle", "square_wave"]

# Narrower windows are no optimum for eps up to 20.
_WIDTHS = (0.0, 2.0)


@partial(pytree, static=("constructor", "free", "is_free_of_units", "condition"))
@dataclass(frozen=True)
class Composite(Constructed):
    """A window on a base (Zhang 2024), its height the tallest that is eps-DP; see ``composite``."""

    window: Any = None
    base: Any = None  # None for the quartic one, whose edge is free.
    condition: str = "pointwise"

    @property
    def name(self) -> str:
        base = Quartic if self.base is None else type(self.base)
        return f"{type(self.window).__name__} on {base.__name__}".lower()

    @property
    def domains(self) -> dict[str, Domain]:
        free: dict[str, Domain] = {"width": Inside(*_WIDTHS)}
        if self.base is None:
            free["edge"] = LogBetween(lowest_edge(self.epsilon, self.condition), 1.0)
        return free

    def arguments(self, free: dict[str, Any]) -> dict[str, Any]:
        base = Quartic(free["edge"]) if self.base is None else self.base
        condition = {} if self.condition == "pointwise" else {"condition": self.condition}
        return {"window": self.window, "base": base, **self.given, "width": free["width"], **condition}

    def published_search(self, objective: Any) -> Enumerated:
        return composite_search(self, objective)

    def parameters(self, free: dict[str, Any], mechanism: Windowed) -> dict[str, Any]:
        found = {"width": mechanism.width, "height": mechanism.height, "level": mechanism.level}
        return found if self.base is not None else {**found, "edge": mechanism.base.lowest}


@partial(pytree, static=("constructor", "free", "is_free_of_units"))
class Piecewise(Constructed):
    """Piecewise transformations (Ma 2021) of type I or II, with eta = 2/m free."""

    def published_search(self, objective: Any) -> Enumerated:
        """Return what Zhang 2024's search of composite mechanisms finds."""
        window = "uniform" if self.constructor is dpk.piecewise else "triangle"
        found = composite_search(composite(window, **self.given, condition="sup_inf"), objective)
        return replace(found, parameters={"eta": 2 / found.parameters["width"]})


# A window or base of the user's own: a function, or its values at equal steps.
Tabled = Callable[[float], float] | Sequence[float]


def composite(
    window: str | Window | Tabled = "uniform",
    base: str | Base | Tabled = "constant",
    *,
    epsilon: Real,
    lower: Real,
    upper: Real,
    condition: str = "pointwise",
) -> Composite:
    """Return the family of a window on a base with free width m, and free edge r for the quartic base (Zhang 2024).

    Args:
        window: a name (see ``dpkernels.composite``), a ``Window``, a function on [0, 1] or a table.
        base: "constant", "quartic", a ``Base``, a function on [-1, 1] or a table.
        epsilon: the pure-DP budget, in [0.01, 20]; any two inputs are neighbours.
        lower: smallest valid input.
        upper: largest valid input.
        condition: "pointwise" (exact) or "sup_inf" (sufficient, the source's).

    Raises:
        ValueError: epsilon is out of range, lower is not below upper, an unknown name, or a shape that is not symmetric
            and positive.
    """
    checks.one_of("condition", condition, CONDITIONS)
    shape: Any = {"window": named.window_of(window), "base": named.base_of(base), "condition": condition}
    return Composite(dpk.composite, _given(epsilon, lower, upper), **shape)


_ETA = (("eta", Above(1.0, span=(-1.5, 4.0))),)


def piecewise(*, epsilon: Real, lower: Real, upper: Real) -> Piecewise:
    """Return the family of type-I piecewise transformations (Ma 2021) with free eta.

    Raises:
        ValueError: epsilon is not in [0.01, 20], or lower is not below upper.
    """
    return Piecewise(dpk.piecewise, _given(epsilon, lower, upper), _ETA)


def piecewise_triangle(*, epsilon: Real, lower: Real, upper: Real) -> Piecewise:
    """Return the family of type-II piecewise transformations (Ma 2021) with free eta; see ``piecewise``."""
    return Piecewise(dpk.piecewise_triangle, _given(epsilon, lower, upper), _ETA)


def square_wave(*, epsilon: Real, lower: Real, upper: Real) -> Constructed:
    """Return the family of square waves (Li 2020) with free half width, for ``distribution``, since they are biased.

    See ``piecewise`` for errors.
    """
    free = (("half_width", Above(0.0, 0.3, span=(-5.0, 1.5))),)
    return Constructed(dpk.square_wave, _given(epsilon, lower, upper), free)


def duchi(*, epsilon: Real, lower: Real, upper: Real) -> Constructed:
    """Return the family of Duchi's two-point mechanism, which has no free parameter; see ``piecewise`` for errors."""
    return Constructed(dpk.duchi, _given(epsilon, lower, upper))


def hybrid(*, epsilon: Real, lower: Real, upper: Real) -> Constructed:
    """Return the family of Wang 2019's hybrid mechanism, which has no free parameter; see ``piecewise`` for errors."""
    return Constructed(dpk.hybrid, _given(epsilon, lower, upper))


def optimal(*, epsilon: Real, lower: Real, upper: Real) -> Constructed:
    """Return the family of the linear program's mechanism of least worst-case variance; it has no free parameter.

    See ``piecewise`` for errors.
    """
    return Constructed(dpk.optimal, _given(epsilon, lower, upper))


def _given(epsilon: Real, lower: Real, upper: Real) -> dict[str, Any]:
    checks.epsilon(epsilon)
    checks.interval(lower, upper)
    return {"epsilon": epsilon, "lower": lower, "upper": upper}


# The families that ``dpkernels tune`` compares.
COMPARED: tuple[Callable[..., Constructed], ...] = (
    *(optimal, piecewise, piecewise_triangle, hybrid, duchi),
    *(
        partial(composite, window, base)
        for window in named.WINDOWS
        for base in named.BASES
        if (window, base) != ("uniform", "constant")
    ),
)
