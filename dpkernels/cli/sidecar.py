"""The JSON file beside an output: what was done, and integers from which anyone can verify what it guarantees."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

import dpkernels
from dpkernels.exact.forms import ExactForm
from dpkernels.exact.tables import rational

FORMAT = 1
NEIGHBOURING = "any two values of a row (local DP, replace one row's values)"


@dataclass(frozen=True)
class Column:
    """One perturbed column.

    Attributes:
        name: its name; None for an array.
        mechanism: the mechanism's name.
        form: its certified form.
    """

    name: str | None
    mechanism: str
    form: ExactForm

    def to_dict(self) -> dict[str, Any]:
        """A JSON form with the certificate, and without anything secret."""
        return {
            "column": self.name,
            "mechanism": self.mechanism,
            "parameters": parameters(self.form.mechanism),
            "certificate": self.form.certificate.to_dict(),
        }


@dataclass(frozen=True)
class Release:
    """A finished release.

    Attributes:
        columns: what was perturbed.
        rows: how many rows there are.
        values_per_row: how many values a row holds in each column.
        clip: whether inputs were clipped.
    """

    columns: tuple[Column, ...]
    rows: int
    values_per_row: int
    clip: bool

    @cached_property
    def epsilon(self) -> float:
        """The budget of a row: the sum over its values, each budget read as the decimal it prints as."""
        return total_epsilon([column.form.certificate.epsilon for column in self.columns], self.values_per_row)

    @cached_property
    def realised_epsilon(self) -> float:
        """The sum of what the tables realise."""
        return self.values_per_row * sum(column.form.certificate.realised_epsilon for column in self.columns)


def total_epsilon(budgets: list[float], values_per_row: int) -> float:
    """Basic composition over the values of a row, without rounding on the way."""
    return float(values_per_row * sum(map(rational, budgets)))


def parameters(mechanism: Any) -> dict[str, float]:
    """Every number of a mechanism by its name."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(mechanism)
    return {jax.tree_util.keystr(path, simple=True, separator="."): float(leaf) for path, leaf in leaves}


def to_json(release: Release) -> str:
    """The sidecar's text."""
    form = {
        "format": FORMAT,
        "epsilon": release.epsilon,
        "realised_epsilon": release.realised_epsilon,
        "neighbouring": NEIGHBOURING,
        "rows": release.rows,
        "values_per_row": release.values_per_row,
        "clip": release.clip,
        "columns": [column.to_dict() for column in release.columns],
        "versions": versions(),
    }
    return json.dumps(form) + "\n"


def versions() -> dict[str, str]:
    """What made the release."""
    return {
        "dpkernels": dpkernels.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
