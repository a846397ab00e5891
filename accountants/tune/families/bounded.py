"""Families of bounded mechanisms: a window on a base, and those with nothing to tune."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from accountants.published.searches import Enumerated, composite_search, piecewise_search
from accountants.tune.domains import Above, Domain, Inside, LogBetween, Positive
from accountants.tune.family import Determined, Family, PureDPFamily, interval_in_units
from dpkernels import checks
from dpkernels.mechanisms import named
from dpkernels.mechanisms.base import Mechanism
from dpkernels.mechanisms.windowed import heights
from dpkernels.mechanisms.windowed.bases import Base, Constant, Quartic
from dpkernels.mechanisms.windowed.mechanism import Windowed
from dpkernels.mechanisms.windowed.square_wave import SquareWave
from dpkernels.mechanisms.windowed.square_wave import square_wave as named_square_wave
from dpkernels.mechanisms.windowed.tabulated import base_from
from dpkernels.mechanisms.windowed.windows import Window
from dpkernels.numerics import Real, namespace
from dpkernels.pytrees import pytree

# Narrower windows and flatter edges are no optimum for eps up to 20.
_WIDTHS = (0.0, 2.0)
_LOWEST_EDGE = 1e-6


@partial(pytree, static=("condition",))
@dataclass(frozen=True)
class Composite(PureDPFamily):
    """A window on a base (Zhang 2024), its height the tallest that is eps-DP; see ``composite``.

    Attributes:
        window: the window.
        base: the base; None for the quartic one, whose edge is then free.
        epsilon: the budget.
        lower: smallest valid input.
        upper: largest valid input.
        condition: "pointwise" or "sup_inf".
    """

    window: Window
    base: Base | None
    epsilon: Any
    lower: Any
    upper: Any
    condition: str

    @property
    def name(self) -> str:
        base = Quartic if self.base is None else type(self.base)
        return f"{type(self.window).__name__} on {base.__name__}".lower()

    @property
    def domains(self) -> dict[str, Domain]:
        width: dict[str, Domain] = {"width": Inside(*_WIDTHS)}
        return width if self.base is not None else {**width, "edge": LogBetween(self._lowest_edge, 1.0)}

    @property
    def _lowest_edge(self) -> Real:
        """Under sup_inf an edge of e^-eps leaves no height."""
        if self.condition == "pointwise":
            return _LOWEST_EDGE
        return namespace(self.epsilon).exp(-self.epsilon) * (1 + 1e-6)

    def on_unit(self) -> tuple[Any, Any, Any]:
        return interval_in_units(self)

    def build(self, free: dict[str, Real]) -> Windowed:
        base = Quartic(free["edge"]) if self.base is None else self.base
        k = heights.relative_height(self.window, base, free["width"], self.epsilon, self.condition)
        return Windowed(self.window, base, free["width"], k, self.lower, self.upper, self.epsilon)

    def release(self, free: dict[str, Any]) -> Windowed:
        return named.composite(
            self.window,
            Quartic(free["edge"]) if self.base is None else self.base,
            epsilon=self.epsilon,
            lower=self.lower,
            upper=self.upper,
            width=free["width"],
            condition=self.condition,
        )

    def published_search(self, objective: Any) -> Enumerated:
        return composite_search(self, objective)

    def parameters(self, free: dict[str, Real], mechanism: Windowed) -> dict[str, Real]:
        found = {"width": mechanism.width, "height": mechanism.height, "level": mechanism.level}
        return found if self.base is not None else {**found, "edge": mechanism.base.lowest}


@partial(pytree, static=("window",))
@dataclass(frozen=True)
class Piecewise(PureDPFamily):
    """Piecewise transformations (Ma 2021) of type I (uniform window) and II (triangle), with eta = 2/m free.

    Their height is the source's, y (e^eps - 1); for type I it is the tallest by the pointwise condition too.
    """

    window: str
    epsilon: Any
    lower: Any
    upper: Any

    @property
    def name(self) -> str:
        return "piecewise" if self.window == "uniform" else "piecewise-triangle"

    @property
    def domains(self) -> dict[str, Domain]:
        return {"eta": Above(1.0, span=(-1.5, 4.0))}

    def on_unit(self) -> tuple[Any, Any, Any]:
        return interval_in_units(self)

    def build(self, free: dict[str, Real]) -> Windowed:
        window, base, width = named.WINDOWS[self.window], Constant(), 2 / free["eta"]
        k = heights.relative_height(window, base, width, self.epsilon, "sup_inf")
        return Windowed(window, base, width, k, self.lower, self.upper, self.epsilon)

    def release(self, free: dict[str, Any]) -> Windowed:
        make = named.piecewise if self.window == "uniform" else named.piecewise_triangle
        return make(epsilon=self.epsilon, lower=self.lower, upper=self.upper, eta=free["eta"])

    def published_search(self, objective: Any) -> Enumerated:
        return piecewise_search(self, objective)

    def parameters(self, free: dict[str, Real], mechanism: Windowed) -> dict[str, Real]:
        return {"eta": 2 / mechanism.width}


@pytree
@dataclass(frozen=True)
class SquareWaves(Family):
    """Square waves with a free half width."""

    epsilon: Any
    lower: Any
    upper: Any

    @property
    def name(self) -> str:
        return "square-wave"

    @property
    def domains(self) -> dict[str, Domain]:
        return {"half_width": Positive(unit=0.3, span=(-5.0, 1.5))}

    @property
    def budget(self) -> tuple[Real, Real]:
        return self.epsilon, 0.0

    def on_unit(self) -> tuple[Any, Any, Any]:
        return interval_in_units(self)

    def build(self, free: dict[str, Real]) -> SquareWave:
        return SquareWave(free["half_width"], self.lower, self.upper, self.epsilon)

    def release(self, free: dict[str, Any]) -> SquareWave:
        given = {"epsilon": self.epsilon, "lower": self.lower, "upper": self.upper}
        return named_square_wave(**given, half_width=free["half_width"])

    def parameters(self, free: dict[str, Real], mechanism: SquareWave) -> dict[str, Real]:
        return {"half_width": mechanism.half_width}


@partial(pytree, static=("kind",))
@dataclass(frozen=True)
class Plain(Determined, PureDPFamily):
    """A bounded mechanism that its budget determines."""

    kind: str
    epsilon: Any
    lower: Any
    upper: Any

    def on_unit(self) -> tuple[Any, Any, Any]:
        return interval_in_units(self)

    def build(self, free: dict[str, Real]) -> Mechanism:
        return named.MECHANISMS[self.kind](epsilon=self.epsilon, lower=self.lower, upper=self.upper)


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
    """A window on a base with free width m, and free edge r for the quartic base (Zhang 2024).

    Args:
        window: "uniform", "sine", "triangle", a ``Window``, a function on [0, 1] or a table.
        base: "constant", "quartic", a ``Base``, a function on [-1, 1] or a table.
        epsilon: pure-DP budget, in [0.01, 20]; any two inputs are neighbours.
        lower: smallest valid input.
        upper: largest valid input.
        condition: "pointwise" (exact) or "sup_inf" (sufficient, the source's).

    Raises:
        ValueError: epsilon not in [0.01, 20]; not lower < upper; an unknown name; a shape that is not symmetric and
            positive.
    """
    _check(epsilon, lower, upper)
    checks.one_of("condition", condition, heights.CONDITIONS)
    return Composite(named.window_of(window), _base(base), epsilon, lower, upper, condition)


def _base(base: str | Base | Tabled) -> Base | None:
    if isinstance(base, str):
        checks.one_of("base", base, named.BASES)
        return Constant() if base == "constant" else None
    return base if isinstance(base, Base) else base_from(base)


def piecewise(*, epsilon: Real, lower: Real, upper: Real) -> Piecewise:
    """Type-I piecewise transformations (Ma 2021) with free eta.

    Raises:
        ValueError: epsilon not in [0.01, 20]; not lower < upper.
    """
    _check(epsilon, lower, upper)
    return Piecewise("uniform", epsilon, lower, upper)


def piecewise_triangle(*, epsilon: Real, lower: Real, upper: Real) -> Piecewise:
    """Type-II piecewise transformations (Ma 2021) with free eta.

    Raises:
        ValueError: epsilon not in [0.01, 20]; not lower < upper.
    """
    _check(epsilon, lower, upper)
    return Piecewise("triangle", epsilon, lower, upper)


def square_wave(*, epsilon: Real, lower: Real, upper: Real) -> SquareWaves:
    """Square waves (Li 2020) with free half width: for ``distribution``, since they are biased.

    Raises:
        ValueError: epsilon not in [0.01, 20]; not lower < upper.
    """
    _check(epsilon, lower, upper)
    return SquareWaves(epsilon, lower, upper)


def duchi(*, epsilon: Real, lower: Real, upper: Real) -> Plain:
    """Duchi's two-point mechanism: nothing is free.

    Raises:
        ValueError: epsilon not in [0.01, 20]; not lower < upper.
    """
    _check(epsilon, lower, upper)
    return Plain("duchi", epsilon, lower, upper)


def hybrid(*, epsilon: Real, lower: Real, upper: Real) -> Plain:
    """Wang 2019's hybrid mechanism: nothing is free.

    Raises:
        ValueError: epsilon not in [0.01, 20]; not lower < upper.
    """
    _check(epsilon, lower, upper)
    return Plain("hybrid", epsilon, lower, upper)


def optimal(*, epsilon: Real, lower: Real, upper: Real) -> Plain:
    """The linear program's mechanism of least worst-case variance: nothing is free.

    Raises:
        ValueError: epsilon not in [0.01, 20]; not lower < upper.
    """
    _check(epsilon, lower, upper)
    return Plain("optimal", epsilon, lower, upper)


def _check(epsilon: Real, lower: Real, upper: Real) -> None:
    checks.epsilon(epsilon)
    checks.interval(lower, upper)
