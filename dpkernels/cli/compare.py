"""``dpkernels compare``: every mechanism at one budget, against the optimum and against unbounded noise."""

from __future__ import annotations

from typing import Any

import click

from dpkernels.cli.mechanisms.choose import CENTRAL, mechanism
from dpkernels.cli.text import aligned
from dpkernels.decimals import shortest
from dpkernels.mechanisms.base import Mechanism
from dpkernels.mechanisms.named import MECHANISMS
from dpkernels.mechanisms.named_additive import staircase
from dpkernels.mechanisms.optimal.grid import covers
from dpkernels.mechanisms.optimal.search import is_solved

LAPLACE, STAIRCASE = "laplace (unbounded)", "staircase (unbounded)"


def laplace_variance(epsilon: float, width: float) -> float:
    """2 (R / eps)^2, at any input."""
    return 2 * (width / epsilon) ** 2


def comparison(epsilon: float, lower: float, upper: float, sensitivity: float | None = None) -> list[dict[str, Any]]:
    """A row for every mechanism and for Laplace and staircase noise, the least worst-case variance first.

    The optimum is that of the linear program, solved once (a note says so) and then kept. Above epsilon 12, and where
    the sensitivity is so small a part of the interval that the Central Piecewise Mechanism is as good, there is none.
    With a sensitivity, neighbouring inputs are that far apart at most: the mechanisms for it come on top, and noise is
    for it; the others still protect any two inputs.

    Raises:
        click.UsageError: epsilon not in [0.01, 20], not lower < upper, or sensitivity not in [1e-100, 1e100].
    """
    options = {"epsilon": epsilon, "lower": lower, "upper": upper}
    names = [name for name in MECHANISMS if name != "optimal"]
    made = {name: mechanism(name, options) for name in names}
    if sensitivity is not None:
        made |= {"central-piecewise": mechanism("central-piecewise", {**options, "sensitivity": sensitivity})}
    made |= _optima(options, sensitivity)
    laplace = laplace_variance(epsilon, upper - lower if sensitivity is None else sensitivity)
    best = made.get("optimal" if sensitivity is None else "optimal-central")
    optimum = None if best is None else float(best.worst_variance)
    rows = [_row(name, one, laplace, optimum) for name, one in made.items()]
    D = upper - lower if sensitivity is None else sensitivity
    least = float(staircase(epsilon=epsilon, sensitivity=1.0).noise.variance) * D**2
    for name, variance in ((LAPLACE, laplace), (STAIRCASE, least)):
        rows.append(_figures(name, variance, variance, laplace, optimum, None))
    return sorted(rows, key=lambda row: row["worst_variance"])


def _optima(options: dict[str, float], sensitivity: float | None) -> dict[str, Mechanism]:
    """The optimal mechanisms, with a note where a program has to be solved first."""
    epsilon, breadth = options["epsilon"], options["upper"] - options["lower"]
    wanted: dict[str, dict[str, float]] = {"optimal": options} if covers(epsilon) else {}
    if sensitivity is not None and covers(epsilon, breadth / sensitivity):
        wanted["optimal-central"] = {**options, "sensitivity": sensitivity}
    for name, own in wanted.items():
        if not is_solved(**own):
            click.echo(f"solving the linear program of {name}", err=True)
    return {name: mechanism(name, own) for name, own in wanted.items()}


def _row(name: str, made: Any, laplace: float, optimum: float | None) -> dict[str, Any]:
    worst, central = float(made.worst_variance), float(made.central_variance)
    return _figures(name, worst, central, laplace, optimum, [float(end) for end in made.output_interval])


def _figures(
    name: str, worst: float, central: float, laplace: float, optimum: float | None, reports: list[float] | None
) -> dict[str, Any]:
    return {
        "mechanism": name,
        "worst_variance": worst,
        "central_variance": central,
        "worst_over_laplace": worst / laplace,
        "percent_above_optimum": None if optimum is None else 100 * (worst / optimum - 1),
        "reports": reports,
    }


def as_table(rows: list[dict[str, Any]], epsilon: float, lower: float, upper: float) -> str:
    """The rows for a terminal."""
    heading = ["mechanism", "worst variance", "central variance", "worst / Laplace", "above optimum", "reports"]
    interval = f"[{shortest(lower)}, {shortest(upper)}]"
    title = f"epsilon {shortest(epsilon)}, inputs in {interval}; variances in squared data units"
    if any(row["mechanism"] in CENTRAL for row in rows):
        title += "\nneighbours at most the sensitivity apart: noise, central-piecewise, optimal-central; else any two"
    return "\n".join([title, *aligned([heading, *map(_cells, rows)])])


def _cells(row: dict[str, Any]) -> list[str]:
    numbers = [f"{row[key]:.5g}" for key in ("worst_variance", "central_variance", "worst_over_laplace")]
    above = row["percent_above_optimum"]
    reports = "unbounded" if row["reports"] is None else "[{:.5g}, {:.5g}]".format(*row["reports"])
    return [row["mechanism"], *numbers, "none" if above is None else f"{above:.4g} %", reports]
