"""``dpkernels tune``: the free parameters of every mechanism for one budget and one objective, the best first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial, singledispatch
from pathlib import Path
from typing import Any

import click

from accountants import tune
from accountants.shuffle.shuffled import NEIGHBOURING
from accountants.tune import Family, Objective, Result
from accountants.tune.families.bounded import Composite, Piecewise, Plain, SquareWaves
from accountants.tune.families.composed import Shuffled
from accountants.tune.families.noise import MergedLaplaces, PlainNoise, Staircases, TruncatedGaussian, TruncatedLaplace
from accountants.tune.families.recycled import Recycled
from dpkernels.cli.options import flag, flags
from dpkernels.cli.text import aligned
from dpkernels.decimals import shortest
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.mechanisms.base import Mechanism
from dpkernels.mechanisms.named import WINDOWS
from dpkernels.mechanisms.windowed.bases import Base, Constant, Quartic
from dpkernels.mechanisms.windowed.mechanism import Windowed
from dpkernels.mechanisms.windowed.square_wave import SquareWave
from dpkernels.staging import write_png

_BOUNDED = ("epsilon", "lower", "upper")
_PURE = ("epsilon", "sensitivity")
_ADDITIVE = (*_PURE, "delta")
_SHUFFLED = (*_BOUNDED, "delta", "shuffle")

# What each objective needs, how it is made, and its unit; variance is the worst input's.
OBJECTIVES: dict[str, tuple[tuple[str, ...], Callable[..., Objective], str]] = {
    "variance": ((), lambda: tune.worst_variance, "squared data units"),
    "variance-at": (("at",), tune.variance_at, "squared data units"),
    "absolute-error": ((), tune.absolute_error, "data units"),
    "acceptance": (("theta",), tune.acceptance, "a probability"),
    "quantile": (("beta",), tune.quantile, "data units"),
    "distribution": (("reports",), tune.distribution, "data units"),
}

# Bounded families, those of pure noise, and those that spend a delta.
_FAMILIES: dict[tuple[str, ...], tuple[Callable[..., Family], ...]] = {
    _BOUNDED: (
        tune.optimal,
        tune.piecewise,
        tune.piecewise_triangle,
        tune.hybrid,
        tune.duchi,
        *(partial(tune.composite, window, base) for window in ("sine", "triangle") for base in ("constant", "quartic")),
        partial(tune.composite, "uniform", "quartic"),
    ),
    _PURE: (tune.laplace, tune.staircase, tune.merged_laplace),
    _ADDITIVE: (
        tune.gaussian,
        tune.truncated_laplace,
        tune.truncated_gaussian,
        partial(tune.budget_recycled, "gaussian"),
        partial(tune.budget_recycled, "laplace"),
    ),
}


@dataclass(frozen=True)
class Tuned:
    """The outcome, best first.

    Attributes:
        objective: its name and numbers.
        unit: of its values.
        asked: budget and interval or sensitivity, in words.
        results: a result for every feasible family, with the line of Python that builds its mechanism.
        refused: families without a result, and why.
        covers: what a budget of shuffled reports is of; empty for others.
    """

    objective: str
    unit: str
    asked: str
    results: list[tuple[Result, str]]
    refused: list[tuple[str, str]]
    covers: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form."""
        return {
            "objective": self.objective,
            "unit": self.unit,
            **({"covers": self.covers} if self.covers else {}),
            "results": [_form(result, line) for result, line in self.results],
            "refused": [{"family": name, "reason": reason} for name, reason in self.refused],
        }

    def __str__(self) -> str:
        (best, line), *_ = self.results
        heading = ["mechanism", f"{self.objective} ({self.unit})", "parameters", "delta realised"]
        rows = [[one.family, f"{one.value:.6g}", _parameters(one), f"{one.delta:.4g}"] for one, _ in self.results]
        refused = [f"{name}: no result: {reason}" for name, reason in self.refused]
        covers = ["", f"epsilon and delta: {self.covers}"] if self.covers else []
        return "\n".join([*aligned([heading, *rows]), *refused, *covers, "", f"best: {best.family}", line])


def tuned(objective: str, given: Mapping[str, float]) -> Tuned:
    """Tune every family that the options allow.

    Args:
        objective: its name.
        given: the options that were given, by their names.

    Raises:
        click.UsageError: no such objective; a missing or needless option, or one out of range; no family is feasible.
    """
    if objective not in OBJECTIVES:
        raise click.UsageError(f"--objective: {objective!r} is not one of {', '.join(OBJECTIVES)}")
    needs, make, unit = OBJECTIVES[objective]
    budget = _budget(given, needs)
    try:
        aim = make(*(given[name] for name in needs))
        families = [family for names in budget for family in _families(names, given)]
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if "at" in needs and "lower" in given and not given["lower"] <= given["at"] <= given["upper"]:
        raise click.UsageError(
            f"--at: {shortest(given['at'])} is not in [{shortest(given['lower'])}, {shortest(given['upper'])}]"
        )
    title = " ".join([objective, *(shortest(given[name]) for name in needs)])
    groups = dict.fromkeys((*_SHUFFLED, *_ADDITIVE))
    asked = ", ".join(f"{name} {shortest(given[name])}" for name in groups if name in given)
    return Tuned(title, unit, asked, *_search(families, aim), NEIGHBOURING if "shuffle" in given else "")


def _families(names: tuple[str, ...], given: Mapping[str, float]) -> list[Family]:
    """Return the families that take these options; for shuffled reports the bounded ones."""
    # Square waves are biased: of use for the distribution only.
    biased = (tune.square_wave,) if "reports" in given else ()
    if names != _SHUFFLED:
        makers = (*_FAMILIES[names], *(biased if names == _BOUNDED else ()))
        return [one(**{name: given[name] for name in names}) for one in makers]
    ends = {"lower": given["lower"], "upper": given["upper"]}
    inner = [one(epsilon=1.0, **ends) for one in (*_FAMILIES[_BOUNDED], *biased)]
    n, epsilon, delta = int(given["shuffle"]), given["epsilon"], given["delta"]
    return [tune.shuffled(one, n=n, epsilon=epsilon, delta=delta) for one in inner]


def _budget(given: Mapping[str, float], needs: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return which groups of families the options are for.

    Raises:
        click.UsageError: the options fit none, or one is missing or has no use.
    """
    bounded = bool({"lower", "upper", "shuffle"} & given.keys()) or "reports" in needs
    required = _SHUFFLED if "shuffle" in given else _BOUNDED if bounded else _PURE
    allowed = {*required, *needs, *(() if bounded else ("delta",))}
    if missing := [name for name in (*required, *needs) if name not in given]:
        either = "" if bounded or "sensitivity" in given else " (or --lower and --upper, for bounded mechanisms)"
        raise click.UsageError(f"{', '.join(map(flag, missing))}: missing{either}")
    if extra := [name for name in given if name not in allowed]:
        raise click.UsageError(f"{flag(extra[0])}: has no use here; this search takes {flags(sorted(allowed))}")
    if bounded:
        return [required]
    return [_PURE, _ADDITIVE] if "delta" in given else [_PURE]


def _search(families: list[Family], aim: Objective) -> tuple[list[tuple[Result, str]], list[tuple[str, str]]]:
    """Results, best first, and families that have none, with the reason."""
    results, refused = [], []
    for family in families:
        click.echo(f"tuning {family.name}", err=True)
        try:
            result = tune.best(family, aim)
        except ValueError as error:
            refused.append((family.name, str(error)))
        else:
            results.append((result, python_line(family, result.mechanism)))
    if not results:
        raise click.UsageError("; ".join(f"{name}: {reason}" for name, reason in refused))
    results.sort(key=lambda one: aim.sign * one[0].value)
    return results, refused


def _parameters(result: Result) -> str:
    return ", ".join(f"{name} {_shown(value)}" for name, value in result.parameters.items()) or "-"


def _shown(value: Any) -> str:
    return ",".join(f"{part:.6g}" for part in value) if isinstance(value, tuple) else f"{value:.6g}"


def _form(result: Result, line: str) -> dict[str, Any]:
    return {
        "mechanism": result.family,
        "value": result.value,
        "parameters": result.parameters,
        "epsilon": result.epsilon,
        "delta": result.delta,
        "steps": result.steps,
        "evaluations": result.evaluations,
        "python": line,
    }


def plot(target: Path, found: Tuned) -> None:
    """Draw the objective along every search into a PNG; a mechanism without free parameters is a dashed line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5.5), dpi=150, layout="constrained")
    axes = figure.subplots()
    for number, (result, _) in enumerate(found.results):
        look: Any = {"color": f"C{number}", "label": f"{result.family}: {result.value:.5g}"}
        if result.steps:
            axes.plot(result.path["objective"], marker="o", markersize=3, linestyle=("-", ":")[number % 2], **look)
        else:
            axes.axhline(result.value, linestyle="--", linewidth=1, **look)
    # Far starts are cut off: what is of interest is the way to the end.
    ends = [result.value for result, _ in found.results]
    if found.unit == "a probability":
        axes.set(ylim=(0.0, 1.0), ylabel=found.objective)
    else:
        axes.set(yscale="log", ylim=(min(ends) / 1.5, 1.5 * max(ends)))
        axes.set(ylabel=f"{found.objective} ({found.unit}), log scale")
    axes.set(xlabel="step of the winning start", title=f"Search by gradient, the best first\n{found.asked}")
    axes.grid(alpha=0.3, which="both")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", frameon=False)
    write_png(figure, target)


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


def _bounded_arguments(family: Any) -> dict[str, float]:
    return {name: float(getattr(family, name)) for name in ("epsilon", "lower", "upper")}


def _claim(mechanism: Mechanism) -> dict[str, float]:
    return {name: float(getattr(mechanism, name)) for name in ("epsilon", "delta", "sensitivity")}


@python_line.register
def _(family: Composite, mechanism: Windowed) -> str:
    window = next(name for name, shape in WINDOWS.items() if shape == family.window)
    condition = {} if family.condition == "pointwise" else {"condition": family.condition}
    shapes = f'"{window}"', _base(mechanism.base)
    return _call("composite", *shapes, **_bounded_arguments(family), width=float(mechanism.width), **condition)


@python_line.register
def _(family: Shuffled, mechanism: Any) -> str:
    """Return the line that builds the mechanism of one report."""
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
    return _call(name, **_bounded_arguments(family), eta=2 / float(mechanism.width))


@python_line.register
def _(family: SquareWaves, mechanism: SquareWave) -> str:
    return _call("square_wave", **_bounded_arguments(family), half_width=float(mechanism.half_width))


@python_line.register
def _(family: Plain, mechanism: Mechanism) -> str:
    return _call(family.kind, **_bounded_arguments(family))


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
