"""``dpkernels compare --plot``: worst-case variance over Laplace's, against epsilon."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import click
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator
from scipy.interpolate import PchipInterpolator

from dpkernels.checks import EPSILON_RANGE
from dpkernels.cli.compare import laplace_variance
from dpkernels.cli.mechanisms.choose import CENTRAL, mechanism
from dpkernels.decimals import shortest
from dpkernels.mechanisms.named import MECHANISMS
from dpkernels.mechanisms.optimal.grid import covers
from dpkernels.staging import write_png

# Budgets that are drawn, and how many: fewer where one takes about half a second (quartic bases, linear programs).
_LEAST, _MOST = 0.1, 8.0
_POINTS, _FEWER = 25, 13
_SLOW = ("quartic", "optimal")


def draw(target: Path, epsilon: float, lower: float, upper: float, sensitivity: float | None = None) -> None:
    """Draw every mechanism's worst-case variance over Laplace noise's and write a PNG.

    Raises:
        click.UsageError: not a ``.png``, or its folder does not exist.
    """
    check_target(target)
    click.echo("drawing: computes every mechanism at up to 25 budgets, half a minute", err=True)
    D = upper - lower if sensitivity is None else sensitivity
    names = [*MECHANISMS, *(() if sensitivity is None else CENTRAL)]
    names = [name for name in names if _covers(name, 2 * _LEAST, (upper - lower) / D)]
    curves = {name: _curve(name, epsilon, lower, upper, D) for name in names}
    write_png(_figure(curves, epsilon, None if sensitivity is None else (upper - lower) / D), target)


def check_target(target: Path) -> None:
    """Refuse a place for a picture that cannot be one.

    Raises:
        click.UsageError: not a ``.png``, or its folder does not exist.
    """
    if target.suffix.lower() != ".png" or not target.parent.is_dir():
        raise click.UsageError(f"--plot: {target} must be a .png in an existing folder")


def write_with_note(figure: Figure, note: str, target: Path) -> None:
    """Write a PNG with a text below the picture."""
    figure.text(0.02, 0.015, textwrap.fill(note, 148), fontsize=7.5, va="bottom")
    figure.subplots_adjust(left=0.1, right=0.97, top=0.93, bottom=0.22)
    write_png(figure, target)


def _curve(name: str, epsilon: float, lower: float, upper: float, sensitivity: float) -> tuple[np.ndarray, np.ndarray]:
    """Budgets up to the largest that the mechanism is for, the asked one among them, and variances over Laplace's."""
    count = _FEWER if any(part in name for part in _SLOW) else _POINTS
    budgets = np.geomspace(min(_LEAST, epsilon), max(_MOST, epsilon), count)
    ratio = (upper - lower) / sensitivity
    budgets = np.unique([eps for eps in (*budgets, epsilon) if _covers(name, float(eps), ratio)])
    near = {"sensitivity": sensitivity} if name in CENTRAL else {}
    made = (mechanism(name, {"epsilon": float(eps), "lower": lower, "upper": upper, **near}) for eps in budgets)
    return budgets, np.array([float(m.worst_variance) / laplace_variance(float(m.epsilon), sensitivity) for m in made])


def _covers(name: str, epsilon: float, ratio: float) -> bool:
    """Whether the mechanism is for a budget, given the width of the interval over the sensitivity."""
    if "optimal" in name:
        return covers(epsilon, ratio if name in CENTRAL else 1.0)
    return epsilon <= EPSILON_RANGE[1]


def _smooth(budgets: np.ndarray, ratios: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Between the points that were computed a monotone cubic in logarithms."""
    between = np.geomspace(budgets[0], budgets[-1], 200)
    return between, np.exp(PchipInterpolator(np.log(budgets), np.log(ratios))(np.log(between)))


def _figure(curves: dict[str, Any], epsilon: float, breadth: float | None) -> Figure:
    figure = Figure(figsize=(10, 6), dpi=150, layout="constrained")
    axes = figure.subplots()
    for number, (name, curve) in enumerate(sorted(curves.items(), key=lambda item: -item[1][1][-1])):
        look: Any = {"color": f"C{number}", "linestyle": ("-", "--", ":")[number % 3], "linewidth": 2}
        if len(curve[0]) > _FEWER + 1:
            axes.plot(*curve, label=name, **look)
        else:
            axes.plot(*_smooth(*curve), label=name, **look)
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
