"""Families of any constructor: bounded mechanisms, and noise whose scale its budget determines."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np

import dpkernels as dpk
from accountants import calibrate
from accountants.calibrate.composed import gaussian_scale, precise_scale_factor
from accountants.calibrate.one_release import shape_shift
from accountants.calibrate.scale import rescaled
from accountants.tune.domains import Domain, GreaterThan, LogBetween, OpenInterval
from accountants.tune.families.composed import ComposableFamily, Composed, PureDPFamily
from accountants.tune.family import Member, expression
from dpkernels import checks
from dpkernels.distributions.base import Distribution
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.mechanisms import named
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.base import Mechanism
from dpkernels.mechanisms.windowed.bases import Base, Quartic
from dpkernels.mechanisms.windowed.mechanism import CONDITIONS, Windowed, lowest_edge
from dpkernels.mechanisms.windowed.windows import Uniform, Window
from dpkernels.numerics import Real, namespace
from dpkernels.pytrees import pytree

__all__ = [
    "composite",
    "constructed",
    "duchi",
    "hybrid",
    "optimal",
    "piecewise",
    "piecewise_triangle",
    "square_wave",
]

SOLVED = 1e-13  # Relative: how exactly a member of a search meets its budget. What is released is rounded to meet it.


@partial(pytree, static=("constructor", "free_domains"))
@dataclass(frozen=True)
class Constructed(PureDPFamily):
    """The mechanisms that a constructor makes from fixed and free arguments; see ``constructed``."""

    constructor: Callable[..., Mechanism]
    fixed: dict[str, Any]
    free_domains: tuple[tuple[str, Domain], ...] = ()

    @property
    def epsilon(self) -> Real:
        return self.fixed["epsilon"]

    @property
    def name(self) -> str:
        return getattr(self.constructor, "__name__", type(self.constructor).__name__).replace("_", "-")

    @property
    def domains(self) -> dict[str, Domain]:
        return dict(self.free_domains)

    @property
    def budget(self) -> tuple[Real, Real]:
        return self.epsilon, self.fixed.get("delta", 0.0)

    def with_budget(self, epsilon: Real) -> PureDPFamily:
        return self._with_fixed(epsilon=epsilon)

    def _with_fixed(self, **arguments: Real) -> Constructed:
        return dataclasses.replace(self, fixed={**self.fixed, **arguments})

    def with_sensitivity(self, factor: Real) -> Constructed:
        return self._with_fixed(sensitivity=factor * self.fixed["sensitivity"]) if "sensitivity" in self.fixed else self

    @property
    def unit(self) -> Real:
        fixed = self.fixed
        return (fixed["upper"] - fixed["lower"]) / 2 if "lower" in fixed else fixed["sensitivity"]

    def arguments(self, params: dict[str, Real]) -> dict[str, object]:
        return {**self.fixed, **params}

    def build(self, params: dict[str, Real]) -> Any:
        return self.constructor(**self.arguments(params))

    def source_expression(self, mechanism: Member, parameters: dict[str, Real]) -> str:
        constructor = getattr(self.constructor, "__name__", "")
        if getattr(dpk, constructor, None) is not self.constructor:
            return super().source_expression(mechanism, parameters)
        arguments = self.arguments({name: parameters[name] for name in self.domains})
        return f"dpk.{constructor}({', '.join(f'{name}={expression(value)}' for name, value in arguments.items())})"


@pytree
@dataclass(frozen=True)
class Scaled(ComposableFamily):
    """Additive noise of a shape that the free parameters determine, with the least scale that meets the budget.

    This class has no free parameter: its shape is the kernel, a distribution at unit scale.
    """

    kernel: Distribution
    epsilon: Real
    delta: Real
    sensitivity: Real

    @property
    def name(self) -> str:
        return type(self.kernel).__name__.lower()

    @property
    def domains(self) -> dict[str, Domain]:
        return {}

    @property
    def target(self) -> dict[str, Real]:
        return {"epsilon": self.epsilon, "delta": self.delta, "sensitivity": self.sensitivity}

    def shape(self, params: dict[str, Real]) -> Distribution:
        return self.kernel

    @property
    def shift_bound(self) -> Real:
        """Return a shift over which noise of no shape meets the budget; for families with free parameters."""
        return np.inf

    def build(self, params: dict[str, Real]) -> Additive:
        shape = self.shape(params)
        if not isinstance(shape, Reweighted):
            return self.certified_member(params)
        shift = shape_shift(shape, self.epsilon, self.delta, most=self.shift_bound, rtol=SOLVED)
        return Additive(rescaled(shape, self.sensitivity / shift), self.sensitivity, self.epsilon, self.delta)

    def certified_member(self, params: dict[str, Real]) -> Additive:
        return calibrate.scaled(self.shape(params), **self.target)

    def parameters(self, params: dict[str, Real], mechanism: Any) -> dict[str, Real]:
        return scale_parameter(*(getattr(noise, "kernel", noise) for noise in (mechanism.noise, self.kernel)))

    def composed(self, target: Composed, params: dict[str, Real], solved_budget: Real) -> Additive:
        shape, D = self.shape(params), self.sensitivity
        start = gaussian_scale(shape, D, target.gaussian_ratio)
        releases = target.estimated_guarantee(Additive(rescaled(shape, start), D))
        return Additive(rescaled(shape, start * precise_scale_factor(releases, target.epsilon, target.delta)), D)

    def composed_release(self, target: Composed, params: dict[str, Real], solved_budget: float) -> Additive:
        return calibrate.composed(self.shape(params), sensitivity=self.sensitivity, **target.options)


@partial(pytree, static=("constructor", "free_domains"))
class ConstructedNoise(Constructed):
    """Additive noise that its budget determines. Of several releases, the scale is solved for."""

    def for_composition(self, target: Composed) -> Scaled:
        member = self.build({})
        return Scaled(member.noise, *self.budget, member.sensitivity)


def scale_parameter(noise: Distribution, unit: Distribution) -> dict[str, Real]:
    """Return the scale of noise of a shape by its name; if it is not a parameter of the noise, by quantiles."""
    name = unit.lengths[0]
    if hasattr(noise, name):
        return {name: getattr(noise, name)}
    tail = 0.1 * namespace(*jax.tree.leaves(noise)).ones(())
    return {name: noise.isf(tail) / unit.isf(tail)}


def constructed(
    constructor: Callable[..., Mechanism], free: Mapping[str, Domain] | None = None, *, epsilon: Real, **given: Real
) -> Constructed:
    """Return the family of the mechanisms that a constructor makes.

    Args:
        constructor: such as ``dpkernels.logistic``; it is called with ``epsilon``, the given and the free arguments.
            Define it once: it is compiled once for each object. Its numbers may be JAX numbers.
        free: the domains (``accountants.tune.domains``) of the arguments that are tuned, by name. Lengths among them
            are in data units, so they are tuned as they are.
        epsilon: eps.
        **given: the other arguments that are fixed, numbers: lower and upper, or sensitivity; delta if the mechanism
            has one. Bind arguments of other types with ``functools.partial``.

    Raises:
        ValueError: epsilon is not in [0.01, 20], or neither an interval nor a sensitivity is given.
        TypeError: a given argument or an end of a domain is not a number.

    Example:
        >>> from accountants import tune
        >>> from dpkernels import logistic
        >>> round(tune.best(constructed(logistic, epsilon=1.0, sensitivity=1.0), tune.worst_variance).value, 2)
        3.29
    """
    checks.epsilon(epsilon)
    if not {"lower", "upper"} <= given.keys() and "sensitivity" not in given:
        raise ValueError("given: needs lower and upper, or sensitivity")
    for name, value in given.items():
        _check_numbers(name, value)
    arguments = {"epsilon": epsilon, **given}
    if free:
        domains = tuple((name, _with_plain_ends(name, domain)) for name, domain in free.items())
        return Constructed(constructor, arguments, domains)
    return (Constructed if "lower" in given else ConstructedNoise)(constructor, arguments)


def _check_numbers(name: str, value: Real) -> None:
    """Refuse what cannot be a number of a compiled search, such as text."""
    for leaf in jax.tree.leaves(value):
        if not isinstance(leaf, jax.core.Tracer) and np.asarray(leaf).dtype.kind not in "biuf":
            raise TypeError(
                f"given: {name} = {value!r} is not a number; bind it with functools.partial(constructor, {name}=...)"
            )


def _with_plain_ends(name: str, domain: object) -> Domain:
    if not isinstance(domain, Domain):
        raise TypeError(f"free: {name} = {domain!r} is no Domain, such as Between(0.0, 1.0)")
    return jax.tree.map(partial(checks.number, f"free: an end of {name}"), domain)


# Bounded mechanisms

# Narrower windows are no optimum for eps up to 20.
_WIDTHS = (0.0, 2.0)


@partial(pytree, static=("constructor", "free_domains", "condition"))
@dataclass(frozen=True)
class Composite(Constructed):
    """A window on a base (Zhang 2024), its height the tallest that is eps-DP; see ``composite``."""

    window: Window = field(default_factory=Uniform)
    base: Base | None = None  # None for the quartic one, whose edge is free.
    condition: str = "pointwise"

    @property
    def name(self) -> str:
        base = Quartic if self.base is None else type(self.base)
        return f"{type(self.window).__name__} on {base.__name__}".lower()

    @property
    def domains(self) -> dict[str, Domain]:
        domains: dict[str, Domain] = {"width": OpenInterval(*_WIDTHS)}
        if self.base is None:
            domains["edge"] = LogBetween(lowest_edge(self.epsilon, self.condition), 1.0)
        return domains

    def arguments(self, params: dict[str, Real]) -> dict[str, object]:
        base = Quartic(params["edge"]) if self.base is None else self.base
        condition = {} if self.condition == "pointwise" else {"condition": self.condition}
        return {"window": self.window, "base": base, **self.fixed, "width": params["width"], **condition}

    def parameters(self, params: dict[str, Real], mechanism: Windowed) -> dict[str, Real]:
        shape = {"width": mechanism.width, "height": mechanism.height, "level": mechanism.level}
        return shape if self.base is not None else {**shape, "edge": mechanism.base.lowest}


@partial(pytree, static=("constructor", "free_domains"))
class Piecewise(Constructed):
    """Piecewise transformations (Ma 2021) of type I or II, with eta = 2/m free."""


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
    fixed = _bounded_arguments(epsilon, lower, upper)
    return Composite(
        dpk.composite, fixed, window=named.parse_window(window), base=named.parse_base(base), condition=condition
    )


_ETA = (("eta", GreaterThan(1.0, span=(-1.5, 4.0))),)


def piecewise(*, epsilon: Real, lower: Real, upper: Real) -> Piecewise:
    """Return the family of type-I piecewise transformations (Ma 2021) with free eta.

    Raises:
        ValueError: epsilon is not in [0.01, 20], or lower is not below upper.
    """
    return Piecewise(dpk.piecewise, _bounded_arguments(epsilon, lower, upper), _ETA)


def piecewise_triangle(*, epsilon: Real, lower: Real, upper: Real) -> Piecewise:
    """Return the family of type-II piecewise transformations (Ma 2021) with free eta; see ``piecewise``."""
    return Piecewise(dpk.piecewise_triangle, _bounded_arguments(epsilon, lower, upper), _ETA)


def square_wave(*, epsilon: Real, lower: Real, upper: Real) -> Constructed:
    """Return the family of square waves (Li 2020) with free half width, for ``distribution``, since they are biased.

    See ``piecewise`` for errors.
    """
    free_domains = (("half_width", GreaterThan(0.0, 0.3, span=(-5.0, 1.5))),)
    return Constructed(dpk.square_wave, _bounded_arguments(epsilon, lower, upper), free_domains)


def duchi(*, epsilon: Real, lower: Real, upper: Real) -> Constructed:
    """Return the family of Duchi's two-point mechanism, which has no free parameter; see ``piecewise`` for errors."""
    return Constructed(dpk.duchi, _bounded_arguments(epsilon, lower, upper))


def hybrid(*, epsilon: Real, lower: Real, upper: Real) -> Constructed:
    """Return the family of Wang 2019's hybrid mechanism, which has no free parameter; see ``piecewise`` for errors."""
    return Constructed(dpk.hybrid, _bounded_arguments(epsilon, lower, upper))


def optimal(*, epsilon: Real, lower: Real, upper: Real) -> Constructed:
    """Return the family of the linear program's mechanism of least worst-case variance; it has no free parameter.

    See ``piecewise`` for errors.
    """
    return Constructed(dpk.optimal, _bounded_arguments(epsilon, lower, upper))


def _bounded_arguments(epsilon: Real, lower: Real, upper: Real) -> dict[str, Real]:
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
