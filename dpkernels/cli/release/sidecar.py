"""The JSON file beside an output: what was done, and integers from which anyone can verify what it guarantees."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

import dpkernels
from dpkernels.cli.files.handling import Handling
from dpkernels.cli.files.layout import Layout
from dpkernels.cli.release.guarantees import Guarantee, guarantee, of_a_row
from dpkernels.cli.text import shown
from dpkernels.decimals import rational
from dpkernels.exact.sampler import ExactSampler
from dpkernels.mechanisms.base import Mechanism

if TYPE_CHECKING:
    from dpkernels.cli.ledger import Receipt

# Format 1 knew bounded mechanisms only: it has no deltas, and no neighbouring of a column. Format 2 does not bind the
# output.
FORMAT = 3


@dataclass(frozen=True)
class Column:
    """One perturbed column.

    Attributes:
        name: its name; None for an array.
        mechanism: the mechanism's name.
        form: its certified form.
        options: what the mechanism was made with.
    """

    name: str | None
    mechanism: str
    form: ExactSampler
    options: Mapping[str, Any]

    @cached_property
    def guarantee(self) -> Guarantee:
        """What its certificate guarantees."""
        return guarantee(self.form.certificate)

    @property
    def title(self) -> str:
        """Its name for a terminal."""
        return title(self.name)

    def to_dict(self) -> dict[str, Any]:
        """A JSON form with the certificate, and without anything secret."""
        return {
            "column": self.name,
            "mechanism": self.mechanism,
            "options": dict(self.options),
            "parameters": parameters(self.form.mechanism),
            "neighbouring": self.guarantee.neighbours,
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
        form: how the file is written.
        handling: what else was done to rows.
        not_kept: what of the file, besides the replaced columns, the output does not have.
        receipt: what was charged for it, if it was.
    """

    columns: tuple[Column, ...]
    rows: int
    values_per_row: int
    clip: bool
    form: Layout
    handling: Handling
    not_kept: tuple[str, ...] = ()
    receipt: Receipt | None = None

    @cached_property
    def epsilon(self) -> float:
        """The budget of a row: the sum over its values, each budget read as the decimal it prints as."""
        return total([one.epsilon for one in self.guarantees], self.values_per_row)

    @cached_property
    def delta(self) -> float:
        """The delta of a row, likewise."""
        return total([one.delta for one in self.guarantees], self.values_per_row)

    @cached_property
    def realised_epsilon(self) -> float:
        """The sum of what the tables realise."""
        return self.values_per_row * sum(one.realised_epsilon for one in self.guarantees)

    @cached_property
    def realised_delta(self) -> float:
        """The sum of what the tables realise."""
        return self.values_per_row * sum(one.realised_delta for one in self.guarantees)

    @property
    def guarantees(self) -> list[Guarantee]:
        """The columns' guarantees."""
        return [column.guarantee for column in self.columns]

    @property
    def neighbouring(self) -> str:
        """Which rows the totals are for."""
        return of_a_row(self.guarantees)


def total(parts: list[float], values_per_row: int) -> float:
    """Basic composition over the values of a row, without rounding on the way."""
    return float(exact_total(parts, values_per_row))


def exact_total(parts: list[float], values_per_row: int) -> Fraction:
    """The same, not rounded at all."""
    return values_per_row * sum(map(rational, parts), Fraction(0))


def title(name: str | None) -> str:
    """A column's name for a terminal; an array has none."""
    return "(array)" if name is None else shown(name)


def parameters(mechanism: Mechanism) -> dict[str, float]:
    """Every number of a mechanism by its name; tables are in its certificate."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(mechanism)
    numbers = [(path, leaf) for path, leaf in leaves if np.ndim(leaf) == 0]
    return {jax.tree_util.keystr(path, simple=True, separator="."): float(leaf) for path, leaf in numbers}


def law_of(mechanism: Mechanism) -> str:
    """The parameters of additive noise in a sentence; nothing for other mechanisms."""
    named = {name.removeprefix("noise."): value for name, value in parameters(mechanism).items() if "noise." in name}
    return ", ".join(f"{name} {value:.9g}" for name, value in named.items())


@dataclass(frozen=True)
class Written:
    """What binds a sidecar to its output.

    Attributes:
        sha256: of the output, in hexadecimal.
        size: of the output in bytes.
        names: all its columns, perturbed or not, in their order; empty for an array.
    """

    sha256: str
    size: int
    names: Sequence[str]

    def to_dict(self) -> dict[str, Any]:
        """A JSON form."""
        return {"sha256": self.sha256, "bytes": self.size, "columns": list(self.names)}


@dataclass(frozen=True)
class WrittenPart:
    """One file of a release of many.

    Attributes:
        name: in the sidecar's folder.
        rows: how many it has.
        size: in bytes.
        sha256: in hexadecimal.
    """

    name: str
    rows: int
    size: int
    sha256: str

    def to_dict(self) -> dict[str, Any]:
        """A JSON form."""
        return {"name": self.name, "rows": self.rows, "bytes": self.size, "sha256": self.sha256}


@dataclass(frozen=True)
class WrittenParts:
    """What binds a sidecar to an output of many files.

    Attributes:
        parts: these, in the order of their rows.
        names: all columns of each, in their order; empty for arrays.
    """

    parts: Sequence[WrittenPart]
    names: Sequence[str]

    def to_dict(self) -> dict[str, Any]:
        """A JSON form."""
        return {"parts": [part.to_dict() for part in self.parts], "columns": list(self.names)}


def to_json(release: Release, written: Written | WrittenParts) -> str:
    """The sidecar's text."""
    form = {
        "format": FORMAT,
        "epsilon": release.epsilon,
        "realised_epsilon": release.realised_epsilon,
        "delta": release.delta,
        "realised_delta": release.realised_delta,
        "neighbouring": release.neighbouring,
        "rows": release.rows,
        "values_per_row": release.values_per_row,
        "clip": release.clip,
        "output": written.to_dict(),
        "layout": release.form.to_dict(),
        **release.handling.to_dict(),
        "not_kept": release.not_kept,
        "columns": [column.to_dict() for column in release.columns],
        "versions": versions(),
    }
    if release.receipt is not None:
        form["ledger"] = release.receipt.to_dict()
    return json.dumps(form) + "\n"


def versions() -> dict[str, str]:
    """What made the release."""
    return {
        "dpkernels": dpkernels.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
