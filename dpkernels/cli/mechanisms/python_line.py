"""The line of Python that builds a tuned mechanism."""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch
from typing import Any

from accountants.tune.families.bounded import Composite, Piecewise, Plain, SquareWaves
from accountants.tune.families.composed import Shuffled
from accountants.tune.families.noise import MergedLaplaces, PlainNoise, Staircases, TruncatedGaussian, TruncatedLaplace
from accountants.tune.families.recycled import Recycled
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.mechanisms.base import Mechanism
from dpkernels.mechanisms.named import WINDOWS
from dpkernels.mechanisms.windowed.bases import Base, Constant, Quartic
from dpkernels.mechanisms.windowed.mechanism import Windowed
from dpkernels.mechanisms.windowed.square_wave import SquareWave


@singledispatch
def python_line(family: Any, mechanism: Any) -> str:
    """``dpk.name(...)``, which makes the mechanism of a family again, to the last digit.

    Raises:
        TypeError: a family of an unknown type.
    """
    raise TypeError(f"family: {type(family).__name__} has no line of Python")


def _call(name: str, *positional: str, **arguments: Any) -> str:
    given = [f"{key}={value!r}" for key, value in arguments.items()]
    return f"dpk.{name}({', '.join([*positional, *given])})"


def _bounded(family: Any) -> dict[str, float]:
    return {name: float(getattr(family, name)) for name in ("epsilon", "lower", "upper")}


def _claim(mechanism: Mechanism) -> dict[str, float]:
    return {name: float(getattr(mechanism, name)) for name in ("epsilon", "delta", "sensitivity")}


@python_line.register
def _(family: Composite, mechanism: Windowed) -> str:
    window = next(name for name, shape in WINDOWS.items() if shape == family.window)
    condition = {} if family.condition == "pointwise" else {"condition": family.condition}
    shapes = f'"{window}"', _base(mechanism.base)
    return _call("composite", *shapes, **_bounded(family), width=float(mechanism.width), **condition)


@python_line.register
def _(family: Shuffled, mechanism: Any) -> str:
    """Of one report."""
    return python_line(replace(family.inner, epsilon=float(mechanism.epsilon)), mechanism)


@singledispatch
def _base(base: Base) -> str:
    raise TypeError(f"base: {type(base).__name__} has no line of Python")


@_base.register
def _(base: Constant) -> str:
    return '"constant"'


@_base.register
def _(base: Quartic) -> str:
    return f"dpk.Quartic({float(base.lowest)!r})"


@python_line.register
def _(family: Piecewise, mechanism: Windowed) -> str:
    name = "piecewise" if family.window == "uniform" else "piecewise_triangle"
    return _call(name, **_bounded(family), eta=2 / float(mechanism.width))


@python_line.register
def _(family: SquareWaves, mechanism: SquareWave) -> str:
    return _call("square_wave", **_bounded(family), half_width=float(mechanism.half_width))


@python_line.register
def _(family: Plain, mechanism: Mechanism) -> str:
    return _call(family.kind, **_bounded(family))


@python_line.register
def _(family: TruncatedLaplace, mechanism: Any) -> str:
    low, high = float(mechanism.noise.low), float(mechanism.noise.high)
    upper = {} if low == -high else {"upper": high}
    return _call("truncated_laplace", **_claim(mechanism), **upper)


@python_line.register
def _(family: MergedLaplaces, mechanism: Any) -> str:
    rates, breaks = (tuple(map(float, part)) for part in (mechanism.noise.rates, mechanism.noise.breaks))
    return _call("merged_laplace", rates=rates, breaks=breaks, **_claim(mechanism))


@python_line.register
def _(family: TruncatedGaussian, mechanism: Any) -> str:
    noise = mechanism.noise
    return _call("truncated_gaussian", sigma=float(noise.kernel.sigma), bound=float(noise.high), **_claim(mechanism))


@python_line.register
def _(family: PlainNoise, mechanism: Any) -> str:
    if family.kind == "gaussian":
        return _call("gaussian", sigma=float(mechanism.noise.sigma), **_claim(mechanism))
    return _call(family.kind, epsilon=float(family.epsilon), sensitivity=float(family.sensitivity))


@python_line.register
def _(family: Staircases, mechanism: Any) -> str:
    given = {"epsilon": float(family.epsilon), "sensitivity": float(family.sensitivity)}
    return _call("staircase", **given, gamma=float(mechanism.noise.gamma))


@python_line.register
def _(family: Recycled, mechanism: Any) -> str:
    noise = mechanism.noise
    q = 1 - float(noise.outside)
    return _call("budget_recycled", _kernel(noise.kernel), theta=float(noise.high), q=q, **_claim(mechanism))


def _kernel(kernel: Any) -> str:
    if isinstance(kernel, Gaussian):
        return f"dpk.Gaussian({float(kernel.sigma)!r})"
    return f"dpk.Laplace({float(kernel.scale)!r})"
