"""``dpkernels compare``: every mechanism at one budget, against the optimum and against unbounded noise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from dpkernels import checks
from dpkernels.bounded_json import JsonObject
from dpkernels.cli.mechanisms import CONSTRUCTORS, mechanism
from dpkernels.cli.options import usage_errors
from dpkernels.cli.terminal import show
from dpkernels.cli.text import aligned
from dpkernels.decimals import format_number, shortest
from dpkernels.mechanisms.base import Mechanism
from dpkernels.mechanisms.named import MECHANISMS
from dpkernels.mechanisms.optimal.search import has_grid, is_solved
from dpkernels.staging import write_png

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CENTRAL = [name for name, constructor in CONSTRUCTORS.items() if constructor.is_central]
# Noise that has no parameter without a default besides its budget and sensitivity, on any grid or none.
NOISE = [
    name
    for name, constructor in CONSTRUCTORS.items()
    if constructor.required(release=True) == ["epsilon", "sensitivity"] and "step" not in constructor.options
]


def _laplace_variance(epsilon: float, width: float) -> float:
    """Return 2 (R / eps)^2, at any input."""
    return 2 * (width / epsilon) ** 2


_MEANINGS = (
    "worst variance: of one report, for the input at which it is largest",
    "central variance: of one report, for the middle of the interval",
    "worst / Laplace: the worst variance over that of Laplace noise at this budget; below 1 is better",
    "above optimum: how far the worst variance is above the least that any mechanism can have",
    "reports: the interval that reports lie in",
)


@dataclass(frozen=True)
class Comparison:
    """Every bounded mechanism and pure noise at one budget."""

    epsilon: float
    lower: float | None
    upper: float | None
    sensitivity: float | None
    rows: list[JsonObject]  # the lowest worst-case variance first

    def to_dict(self) -> list[dict[str, object]]:
        return self.rows

    def __str__(self) -> str:
        title = f"epsilon {shortest(self.epsilon)}"
        if self.lower is not None and self.upper is not None:
            title += f", inputs in [{shortest(self.lower)}, {shortest(self.upper)}]"
        if self.sensitivity is not None:
            title += f", sensitivity {shortest(self.sensitivity)}"
        title += "; variances in squared data units"
        if any(row["mechanism"] in CENTRAL for row in self.rows):
            title += f"\nneighbours at most the sensitivity apart: noise, {', '.join(CENTRAL)}; else any two inputs"
        cells = [["mechanism", "worst variance", "central variance", "worst / Laplace", "above optimum", "reports"]]
        for row in self.rows:
            numbers = [format_number(row[key]) for key in ("worst_variance", "central_variance", "worst_over_laplace")]
            percent_above = row["percent_above_optimum"]
            reports = "unbounded" if row["reports"] is None else "[{}, {}]".format(*map(format_number, row["reports"]))
            above_optimum = "not known" if percent_above is None else f"{format_number(percent_above, 4)} %"
            cells.append([row["mechanism"], *numbers, above_optimum, reports])
        return "\n".join([title, *aligned(cells), "", *_MEANINGS])

    def plot(self, target: Path) -> None:
        """Draw every bounded mechanism's worst-case variance over that of Laplace noise, and write a PNG."""
        if self.lower is None or self.upper is None:
            raise click.UsageError("--plot: draws bounded mechanisms; give --lower and --upper")
        show("drawing: computes every mechanism at up to 25 budgets, half a minute", error=True)
        breadth = 1.0 if self.sensitivity is None else (self.upper - self.lower) / self.sensitivity
        names = [*MECHANISMS, *(() if self.sensitivity is None else CENTRAL)]
        names = [name for name in names if _covers(name, 2 * _MIN_EPSILON, breadth)]
        curves = {name: _curve(name, self.epsilon, self.lower, self.upper, breadth) for name in names}
        write_png(_figure(curves, self.epsilon, None if self.sensitivity is None else breadth), target)


def comparison(
    epsilon: float, lower: float | None = None, upper: float | None = None, sensitivity: float | None = None
) -> Comparison:
    """Compare the mechanisms that protect values in an interval, a statistic of a sensitivity, or such a one in it.

    Only noise protects a statistic without an interval. A sensitivity adds the bounded mechanisms for it, and noise is
    for it; the other mechanisms still protect any two inputs. The optimum is that of the linear program, which is
    solved once and then kept. There is none above epsilon 12, and none for a sensitivity that is a small part of the
    interval: the Central Piecewise Mechanism is then as good.
    """
    if (lower is None) != (upper is None) or (lower is None and sensitivity is None):
        raise click.UsageError(
            "--lower and --upper: give both for values in an interval, or --sensitivity, or all three"
        )
    with usage_errors():
        checks.epsilon(epsilon)
        if sensitivity is not None:
            checks.sensitivity(sensitivity)
    compared: dict[str, Any] = {}  # Mechanisms, all bounded: others may lack a central variance.
    D = sensitivity or 0.0
    if lower is not None and upper is not None:
        options = {"epsilon": epsilon, "lower": lower, "upper": upper}
        compared = {name: mechanism(name, options) for name in MECHANISMS if name != "optimal"}
        if sensitivity is not None:
            compared["central-piecewise"] = mechanism("central-piecewise", {**options, "sensitivity": sensitivity})
        compared |= _optima(options, sensitivity)
        D = upper - lower if sensitivity is None else sensitivity
    variances: list[tuple[str, float, float, list[float] | None]] = [
        (name, float(m.worst_variance), float(m.central_variance), [float(end) for end in m.output_interval])
        for name, m in compared.items()
    ]
    for name in NOISE:
        unit: Any = mechanism(name, {"epsilon": epsilon, "sensitivity": 1.0})
        variance = float(unit.noise.variance) * D**2
        variances.append((f"{name} (unbounded)", variance, variance, None))
    laplace = _laplace_variance(epsilon, D)
    best = compared.get("optimal" if sensitivity is None else "optimal-central")
    optimum = None if best is None else float(best.worst_variance)
    rows: list[dict[str, object]] = [
        {
            "mechanism": name,
            "worst_variance": worst,
            "central_variance": central,
            "worst_over_laplace": worst / laplace,
            "percent_above_optimum": None if optimum is None else 100 * (worst / optimum - 1),
            "reports": reports,
        }
        for name, worst, central, reports in sorted(variances, key=lambda m: m[1])
    ]
    return Comparison(epsilon, lower, upper, sensitivity, rows)


def _optima(options: dict[str, float], sensitivity: float | None) -> dict[str, Mechanism]:
    """Return the optimal mechanisms, with a note where a program has to be solved first."""
    epsilon, breadth = options["epsilon"], options["upper"] - options["lower"]
    optima: dict[str, dict[str, float]] = {"optimal": options} if has_grid(epsilon) else {}
    if sensitivity is not None and has_grid(epsilon, breadth / sensitivity):
        optima["optimal-central"] = {**options, "sensitivity": sensitivity}
    for name, arguments in optima.items():
        if not is_solved(**arguments):
            show(f"solving the linear program of {name}", error=True)
    return {name: mechanism(name, arguments) for name, arguments in optima.items()}


_MIN_EPSILON = 0.1  # the smallest budget that is drawn, unless --epsilon is smaller
_MAX_EPSILON = 8.0  # the largest one, unless --epsilon is larger
_POINTS = 25  # budgets that are drawn
_FEWER = 13  # budgets that are drawn where one takes about half a second: quartic bases, linear programs
_SLOW = ("quartic", "optimal")


def _curve(name: str, epsilon: float, lower: float, upper: float, breadth: float) -> tuple[np.ndarray, np.ndarray]:
    """Return budgets up to the largest of the mechanism, including the given one, and variances over Laplace's."""
    count = _FEWER if any(word in name for word in _SLOW) else _POINTS
    budgets = np.geomspace(min(_MIN_EPSILON, epsilon), max(_MAX_EPSILON, epsilon), count)
    budgets = np.unique([eps for eps in (*budgets, epsilon) if _covers(name, float(eps), breadth)])
    D = (upper - lower) / breadth
    extra = {"sensitivity": D} if name in CENTRAL else {}
    members = (mechanism(name, {"epsilon": float(eps), "lower": lower, "upper": upper, **extra}) for eps in budgets)
    return budgets, np.array([float(m.worst_variance) / _laplace_variance(float(m.epsilon), D) for m in members])


def _covers(name: str, epsilon: float, ratio: float) -> bool:
    """Return whether the mechanism is defined at a budget, for this width of the interval over the sensitivity."""
    if "optimal" in name:
        return has_grid(epsilon, ratio if name in CENTRAL else 1.0)
    return epsilon <= checks.EPSILON_RANGE[1]


def _figure(curves: dict[str, tuple[np.ndarray, np.ndarray]], epsilon: float, breadth: float | None) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator
    from scipy.interpolate import PchipInterpolator

    figure = Figure(figsize=(10, 6), dpi=150, layout="constrained")
    axes = figure.subplots()
    for number, (name, curve) in enumerate(sorted(curves.items(), key=lambda item: -item[1][1][-1])):
        style: Any = {"color": f"C{number}", "linestyle": ("-", "--", ":")[number % 3], "linewidth": 2}
        if len(curve[0]) > _FEWER + 1:
            axes.plot(*curve, label=name, **style)
        else:
            # The points are joined by a monotone cubic in logarithms.
            between = np.geomspace(curve[0][0], curve[0][-1], 200)
            smooth = np.exp(PchipInterpolator(*np.log(curve))(np.log(between)))
            axes.plot(between, smooth, label=name, **style)
            axes.plot(*curve, ".", color=f"C{number}")
    axes.axhline(1.0, color="black", linewidth=1, label="Laplace (unbounded)")
    axes.axvline(epsilon, color="grey", linewidth=1, linestyle="-.", label=f"epsilon = {shortest(epsilon)}")
    axes.set(xscale="log", yscale="log", xlabel="epsilon (pure DP), log scale; a curve with dots is computed at these")
    unit = "R = upper - lower" if breadth is None else f"D = sensitivity, upper - lower = {breadth:.4g} D"
    axes.set(ylabel=f"worst-case variance / (2 ({unit[0]} / epsilon)²)")
    axes.set(title=f"Worst-case variance over that of Laplace noise, lower is better\n{unit}")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:g}"))
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", frameon=False)
    return figure
