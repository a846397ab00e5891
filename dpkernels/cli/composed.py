"""``dpkernels account --reports``: what several reports of a mechanism reveal together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click
import numpy as np

import accountants
from accountants.composition.characteristic import ConvergenceError
from dpkernels import checks
from dpkernels.cli.account import Account
from dpkernels.cli.release.sidecar import parameters
from dpkernels.cli.text import aligned

COVERS = (
    "these reports together, of the law, in exact arithmetic; their mechanism fixed in advance. Does not cover "
    "sampling in floating point (a release samples certified integers instead), other reports, or side channels."
)


@dataclass(frozen=True)
class Composed:
    """Reports of one mechanism, and where to read what they reveal together.

    Attributes:
        one: the mechanism.
        guarantee: that of all reports.
        reports: how many there are.
        rate: of the Poisson sample that each report is on; None for reports on all records.
        epsilons: where to print delta.
        deltas: where to print epsilon.
    """

    one: Account
    guarantee: accountants.Guarantee
    reports: int
    rate: float | None
    epsilons: Sequence[float]
    deltas: Sequence[float]

    @classmethod
    def of(
        cls,
        one: Account,
        epsilons: Sequence[float],
        deltas: Sequence[float],
        *,
        reports: int = 1,
        subsample: float | None = None,
    ) -> Composed:
        """Compose.

        Args:
            one: the mechanism.
            epsilons: where to print delta.
            deltas: where to print epsilon; by default the account's, if there are no epsilons either.
            reports: how many reports.
            subsample: the rate of their samples.

        Raises:
            click.UsageError: a count or a rate out of range, or a mechanism whose reports cannot be composed so.
        """
        try:
            made = accountants.guarantee(one.mechanism)
            if subsample is not None:
                checks.within("--subsample", subsample, np.nextafter(0.0, 1.0), 1.0)
                made = made.subsample(subsample)
            composed = made.repeat(checks.whole("--reports", reports, 1, 1 << 40))
        except (TypeError, ValueError) as error:
            raise click.UsageError(str(error)) from error
        at = tuple(deltas if deltas or epsilons else one.deltas)
        return cls(one, composed, reports, subsample, tuple(epsilons), at)

    @property
    def tables(self) -> dict[str, list[dict[str, float | None]]]:
        """Each number that was asked for, and an interval that certainly holds it; null where there is none."""
        made = self.guarantee
        return {
            "epsilon_at_delta": [
                {"delta": at, **_read("epsilon", made.epsilon, at, made.bracket(delta=at))} for at in self.deltas
            ],
            "delta_at_epsilon": [
                {"epsilon": at, **_read("delta", made.delta, at, made.bracket(epsilon=at))} for at in self.epsilons
            ],
        }

    def to_dict(self) -> dict[str, Any]:
        """A JSON form."""
        return {
            "mechanism": self.one.name,
            "parameters": parameters(self.one.mechanism),
            "reports": self.reports,
            "subsample": self.rate,
            "neighbouring": self.guarantee.neighbouring,
            "covers": COVERS,
            **self.tables,
        }

    def __str__(self) -> str:
        sample = "" if self.rate is None else f", each on a Poisson sample of rate {self.rate:g} of its own"
        facts = {
            "mechanism": self.one.description,
            "reports": f"{self.reports}{sample}",
            "neighbouring": self.guarantee.neighbouring,
            "covers": COVERS,
        }
        lines = [f"{name:<19} {text}" for name, text in facts.items()]
        for rows in self.tables.values():
            if rows:
                cells = [[_shown(value) for value in row.values()] for row in rows]
                lines += ["", *aligned([[name.replace("_", " ") for name in rows[0]], *cells])]
        return "\n".join(lines)


def _read(
    name: str, value: Callable[[float], float], at: float, bracket: tuple[float, float]
) -> dict[str, float | None]:
    low, high = bracket
    try:
        found = value(at)
    except ConvergenceError:  # the bracket is all that is known
        found = math.inf
    return {name: _finite(found), "at_least": _finite(low), "at_most": _finite(high)}


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.9g}"
