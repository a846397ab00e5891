"""``dpkernels compare --plot``: worst-case variance over Laplace's, against epsilon."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import click
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dpkernels.cli.compare import laplace_variance
from dpkernels.cli.output import write_whole
from dpkernels.mechanisms.named import MECHANISMS

_BUDGETS = np.geomspace(0.1, 8.0, 25)
_FEWER = _BUDGETS[::2]  # for quartic bases and linear programs, which take about half a second each


def draw(target: Path, epsilon: float) -> None:
    """Draw every mechanism and write a PNG.

    The ratio to Laplace's variance does not depend on the interval.

    Raises:
        click.UsageError: not a ``.png``, or its folder does not exist.
    """
    check_target(target)
    click.echo("drawing: computes every mechanism at up to 25 budgets, about 30 s", err=True)
    write_png(_figure({name: _curve(name) for name in MECHANISMS}, epsilon), target)


def check_target(target: Path) -> None:
    """Refuse a place for a picture that cannot be one.

    Raises:
        click.UsageError: not a ``.png``, or its folder does not exist.
    """
    if target.suffix.lower() != ".png" or not target.parent.is_dir():
        raise click.UsageError(f"--plot: {target} must be a .png in an existing folder")


def write_png(figure: Figure, target: Path) -> None:
    """Write a figure, whole or not at all."""
    image = io.BytesIO()
    FigureCanvasAgg(figure).print_png(image)
    write_whole(target, image.getvalue())


def _curve(name: str) -> tuple[np.ndarray, np.ndarray]:
    budgets = _FEWER if "quartic" in name or name == "optimal" else _BUDGETS
    made = (MECHANISMS[name](epsilon=float(eps), lower=-1.0, upper=1.0) for eps in budgets)
    ratios = [float(m.worst_variance) / laplace_variance(float(m.epsilon), 2.0) for m in made]
    return budgets, np.array(ratios)


def _figure(curves: dict[str, Any], epsilon: float) -> Figure:
    figure = Figure(figsize=(9, 5.5), dpi=150, layout="constrained")
    axes = figure.subplots()
    for number, (name, curve) in enumerate(sorted(curves.items(), key=lambda item: -item[1][1][-1])):
        axes.plot(*curve, label=name, color=f"C{number}", linestyle=("-", "--", ":")[number % 3], linewidth=2)
    axes.axhline(1.0, color="black", linewidth=1, label="Laplace (unbounded)")
    axes.axvline(epsilon, color="grey", linewidth=1, linestyle="-.", label=f"epsilon = {epsilon:g}")
    axes.set(xscale="log", yscale="log", xlabel="epsilon (pure local DP), log scale")
    axes.set(ylabel="worst-case variance / (2 (R / epsilon)²), R = upper - lower")
    axes.set(title="Worst-case variance of a report, relative to Laplace noise; lower is better")
    axes.set_xticks(ticks := [0.1, 0.2, 0.5, 1, 2, 4, 8], [f"{tick:g}" for tick in ticks])
    axes.set_yticks(ticks := [0.1, 0.2, 0.5, 1, 2, 5, 10], [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", frameon=False)
    return figure
