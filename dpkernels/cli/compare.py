"""``dpkernels compare``: every mechanism at one budget, against Laplace noise."""

from __future__ import annotations

from typing import Any

from dpkernels.cli.choose import mechanism
from dpkernels.cli.text import aligned
from dpkernels.mechanisms.named import MECHANISMS

LAPLACE = "laplace (unbounded)"


def laplace_variance(epsilon: float, width: float) -> float:
    """2 (R / eps)^2, at any input."""
    return 2 * (width / epsilon) ** 2


def comparison(epsilon: float, lower: float, upper: float) -> list[dict[str, Any]]:
    """A row for every mechanism and for Laplace noise, the least worst-case variance first.

    Raises:
        click.UsageError: an argument out of range.
    """
    made = {name: mechanism(name, {"epsilon": epsilon, "lower": lower, "upper": upper}) for name in MECHANISMS}
    laplace = laplace_variance(epsilon, upper - lower)
    rows = [_row(name, one, laplace) for name, one in made.items()]
    rows.append(
        {
            "mechanism": LAPLACE,
            "worst_variance": laplace,
            "central_variance": laplace,
            "worst_over_laplace": 1.0,
            "reports": None,
        }
    )
    return sorted(rows, key=lambda row: row["worst_variance"])


def _row(name: str, made: Any, laplace: float) -> dict[str, Any]:
    worst = float(made.worst_variance)
    return {
        "mechanism": name,
        "worst_variance": worst,
        "central_variance": float(made.central_variance),
        "worst_over_laplace": worst / laplace,
        "reports": [float(end) for end in made.output_interval],
    }


def as_table(rows: list[dict[str, Any]], epsilon: float, lower: float, upper: float) -> str:
    """The rows for a terminal."""
    heading = ["mechanism", "worst variance", "central variance", "worst / Laplace", "reports"]
    title = f"epsilon {epsilon:g}, inputs in [{lower:g}, {upper:g}]; variances in squared data units"
    return "\n".join([title, *aligned([heading, *map(_cells, rows)])])


def _cells(row: dict[str, Any]) -> list[str]:
    numbers = [f"{row[key]:.5g}" for key in ("worst_variance", "central_variance", "worst_over_laplace")]
    reports = "unbounded" if row["reports"] is None else "[{:.5g}, {:.5g}]".format(*row["reports"])
    return [row["mechanism"], *numbers, reports]
