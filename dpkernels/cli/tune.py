"""``dpkernels tune``: optimise every family of mechanisms for a budget and an objective, and list the best first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import click

from accountants import tune
from accountants.shuffle.shuffled import NEIGHBOURING
from accountants.tune import Family, Objective, Result
from accountants.tune.families import constructed, noise
from dpkernels.cli.errors import error_text
from dpkernels.cli.options import flag, flags, usage_errors
from dpkernels.cli.terminal import show
from dpkernels.cli.text import aligned
from dpkernels.decimals import format_number, shortest
from dpkernels.staging import write_png

_BOUNDED = ("epsilon", "lower", "upper")
_PURE = ("epsilon", "sensitivity")
_ADDITIVE = (*_PURE, "delta")
_SHUFFLED = (*_BOUNDED, "delta", "shuffle")

# The options, the constructor and the unit of each objective; the variance is that of the worst input.
OBJECTIVES: dict[str, tuple[tuple[str, ...], Callable[..., Objective], str]] = {
    "variance": ((), lambda: tune.worst_variance, "squared data units"),
    "variance-at": (("at",), tune.variance_at, "squared data units"),
    "absolute-error": ((), tune.absolute_error, "data units"),
    "acceptance": (("theta",), tune.acceptance, "a probability"),
    "quantile": (("beta",), tune.quantile, "data units"),
    "distribution": (("reports",), tune.distribution, "data units"),
}

# The families to compare, by the options that they take.
_NOISE: tuple[Callable[..., Family], ...] = (
    *noise.COMPARED,
    *(partial(tune.budget_recycled, kernel) for kernel in noise.KERNELS),
)
_FAMILIES: dict[tuple[str, ...], tuple[Callable[..., Family], ...]] = {
    _BOUNDED: constructed.COMPARED,
    _PURE: tuple(family for family in _NOISE if "delta" not in signature(family).parameters),
    _ADDITIVE: tuple(family for family in _NOISE if "delta" in signature(family).parameters),
}


@dataclass(frozen=True)
class Tuned:
    """The results of all feasible families, best first."""

    objective: str  # its name and its numbers
    unit: str
    request: str  # budget and interval or sensitivity, in words
    results: list[Result]
    refused: list[tuple[str, str]]  # families without a result, and why
    covers: str = ""  # the reports that the budget is for, if they are shuffled

    def to_dict(self) -> dict[str, object]:
        names = ("value", "parameters", "epsilon", "delta", "steps", "evaluations", "python")
        return {
            "objective": self.objective,
            "unit": self.unit,
            **({"covers": self.covers} if self.covers else {}),
            "results": [
                {"mechanism": result.family} | {name: getattr(result, name) for name in names}
                for result in self.results
            ],
            "refused": [{"family": name, "reason": reason} for name, reason in self.refused],
        }

    def __str__(self) -> str:
        rows = [["mechanism", f"{self.objective} ({self.unit})", "parameters", "delta attained"]]
        for result in self.results:
            chosen = ", ".join(f"{name} {_format_parameter(value)}" for name, value in result.parameters.items())
            rows.append([result.family, format_number(result.value, 6), chosen or "-", f"{result.delta:.4g}"])
        refused = [f"{name}: no result: {reason}" for name, reason in self.refused]
        covers = ["", f"epsilon and delta: {self.covers}"] if self.covers else []
        best = self.results[0]
        return "\n".join([*aligned(rows), *refused, *covers, "", f"best: {best.family}", best.python])

    def plot(self, target: Path) -> None:
        """Draw the objective along every search; a mechanism without free parameters is a dashed line."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10, 5.5), dpi=150, layout="constrained")
        axes = figure.subplots()
        for number, result in enumerate(self.results):
            style: Any = {"color": f"C{number}", "label": f"{result.family}: {result.value:.5g}"}
            if result.steps:
                axes.plot(result.path["objective"], marker="o", markersize=3, linestyle=("-", ":")[number % 2], **style)
            else:
                axes.axhline(result.value, linestyle="--", linewidth=1, **style)
        # Distant starts are cut off, because the last steps of a search are of interest.
        ends = [result.value for result in self.results]
        if self.unit == "a probability":
            axes.set(ylim=(0.0, 1.0), ylabel=self.objective)
        else:
            axes.set(yscale="log", ylim=(min(ends) / 1.5, 1.5 * max(ends)))
            axes.set(ylabel=f"{self.objective} ({self.unit}), log scale")
        axes.set(xlabel="step of the winning start", title=f"Search by gradient, the best first\n{self.request}")
        axes.grid(alpha=0.3, which="both")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", frameon=False)
        write_png(figure, target)


def _format_parameter(value: object) -> str:
    return ",".join(f"{number:.6g}" for number in value) if isinstance(value, tuple) else f"{value:.6g}"


def tune_families(objective: str, options: Mapping[str, float]) -> Tuned:
    """Tune every family that the options allow; an error if none is feasible."""
    if objective not in OBJECTIVES:
        raise click.UsageError(f"--objective: {objective!r} is not one of {', '.join(OBJECTIVES)}")
    needs, make, unit = OBJECTIVES[objective]
    budget = _budget(options, needs)
    with usage_errors():
        aim = make(*(options[name] for name in needs))
        families = [family for names in budget for family in _families(names, options)]
    text = {name: shortest(value) for name, value in options.items()}
    if "at" in needs and "lower" in options and not options["lower"] <= options["at"] <= options["upper"]:
        raise click.UsageError(f"--at: {text['at']} is not in [{text['lower']}, {text['upper']}]")
    title = " ".join([objective, *(text[name] for name in needs)])
    request = ", ".join(f"{name} {text[name]}" for name in dict.fromkeys((*_SHUFFLED, *_ADDITIVE)) if name in options)
    results, refused = list[Result](), list[tuple[str, str]]()
    for family in families:
        show(f"tuning {family.name}", error=True)
        try:
            results.append(tune.best(family, aim))
        except ValueError as error:
            refused.append((family.name, error_text(error)))
    if not results:
        raise click.UsageError("; ".join(f"{name}: {reason}" for name, reason in refused))
    results.sort(key=lambda result: aim.sign * result.value)
    return Tuned(title, unit, request, results, refused, NEIGHBOURING if "shuffle" in options else "")


def _families(names: tuple[str, ...], options: Mapping[str, float]) -> list[Family]:
    """Return the families that take these options; for shuffled reports the bounded ones."""
    # Square waves are biased, and therefore useful for the distribution only.
    biased = (tune.square_wave,) if "reports" in options else ()
    if names != _SHUFFLED:
        return [family(**{name: options[name] for name in names}) for family in (*_FAMILIES[names], *biased)]
    interval = {name: options[name] for name in ("lower", "upper")}
    inner = [family(epsilon=1.0, **interval) for family in (*_FAMILIES[_BOUNDED], *biased)]
    n, epsilon, delta = int(options["shuffle"]), options["epsilon"], options["delta"]
    return [tune.shuffled(family, n=n, epsilon=epsilon, delta=delta) for family in inner]


def _budget(options: Mapping[str, float], needs: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the groups of families that the options are for."""
    bounded = bool({"lower", "upper", "shuffle"} & options.keys()) or "reports" in needs
    required = _SHUFFLED if "shuffle" in options else _BOUNDED if bounded else _PURE
    allowed = {*required, *needs, *(() if bounded else ("delta",))}
    if missing := [name for name in (*required, *needs) if name not in options]:
        either = "" if bounded or "sensitivity" in options else " (or --lower and --upper, for bounded mechanisms)"
        raise click.UsageError(f"{', '.join(map(flag, missing))}: missing{either}")
    if extra := [name for name in options if name not in allowed]:
        raise click.UsageError(f"{flag(extra[0])}: has no use here; this search takes {flags(sorted(allowed))}")
    if bounded:
        return [required]
    return [_PURE, _ADDITIVE] if "delta" in options else [_PURE]
