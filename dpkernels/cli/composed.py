"""``dpkernels account --reports`` and ``--shuffle``: what several reports of a mechanism reveal together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

import accountants
from accountants.composition.cumulant import ConvergenceError
from accountants.published import shuffle as published
from accountants.shuffle.shuffled import MOST
from dpkernels import checks
from dpkernels.cli.account import Account
from dpkernels.cli.release.sidecar import parameters
from dpkernels.cli.text import aligned
from dpkernels.exact.certificate import CertificateError
from dpkernels.exact.certify import certify

COVERS = (
    "these reports together, of the law, in exact arithmetic; their mechanism fixed in advance. Does not cover "
    "sampling in floating point (a release samples certified integers instead), other reports, or side channels."
)

SHUFFLED_COVERS = (
    "one report of each of n people, of certified integers, shuffled. Does not cover other reports of these people, "
    "what comes with a report (its time, its address), a shuffler that tells, or side channels."
)
_MOST_POINTS, _DECADES = 25, 2


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
        return _as_page(facts, self.tables)


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


@dataclass(frozen=True)
class ShuffledAccount:
    """Shuffled reports of one mechanism, and where to read what they reveal.

    Attributes:
        one: the mechanism.
        form: its exact form.
        made: what the reports reveal.
        epsilons: where to print delta.
        deltas: where to print epsilon.
    """

    one: Account
    form: Any
    made: accountants.Shuffled
    epsilons: Sequence[float]
    deltas: Sequence[float]

    @classmethod
    def of(cls, one: Account, epsilons: Sequence[float], deltas: Sequence[float], n: int) -> ShuffledAccount:
        """Certify the mechanism and shuffle n reports of it.

        Raises:
            click.UsageError: n below 2, or a mechanism that nothing hides.
            CertificateError: its integers do not have the guarantee.
        """
        try:
            accountants.shuffled(one.mechanism, n)  # What is refused is refused before anything is certified.
            form = certify(one.mechanism)
            made = accountants.shuffled(form, n)
        except CertificateError:
            raise
        except (TypeError, ValueError) as error:
            raise click.UsageError(f"--shuffle: {error}") from error
        return cls(one, form, made, tuple(epsilons), tuple(deltas if deltas or epsilons else one.deltas))

    @property
    def tables(self) -> dict[str, list[dict[str, float]]]:
        """Of each number asked for an estimate, its value where all others hold one input, and the rigorous bracket."""
        made = self.made
        return {
            "epsilon_at_delta": [
                {"delta": at, "epsilon": made.epsilon(at), **_ends(made.lower(delta=at), made.bracket(delta=at))}
                for at in self.deltas
            ],
            "delta_at_epsilon": [
                {"epsilon": at, "delta": made.delta(at), **_ends(made.lower(epsilon=at), made.bracket(epsilon=at))}
                for at in self.epsilons
            ],
        }

    def to_dict(self) -> dict[str, Any]:
        """A JSON form."""
        return {
            "mechanism": self.one.name,
            "parameters": parameters(self.one.mechanism),
            "shuffled": self.made.n,
            "neighbouring": self.made.neighbouring,
            "covers": SHUFFLED_COVERS,
            **self.tables,
        }

    def __str__(self) -> str:
        facts = {
            "mechanism": self.one.description,
            "shuffled": f"{self.made.n} honest reports",
            "neighbouring": self.made.neighbouring,
            "covers": SHUFFLED_COVERS,
        }
        return _as_page(facts, self.tables)


def _as_page(facts: Mapping[str, str], tables: Mapping[str, Sequence[Mapping[str, float | None]]]) -> str:
    lines = [f"{name:<19} {text}" for name, text in facts.items()]
    for rows in tables.values():
        if rows:
            cells = [[_shown(value) for value in row.values()] for row in rows]
            lines += ["", *aligned([[name.replace("_", " ") for name in rows[0]], *cells])]
    return "\n".join(lines)


def _ends(revealed: float, bracket: tuple[float, float]) -> dict[str, float]:
    return {"some_inputs": float(revealed), "at_least": float(bracket[0]), "at_most": float(bracket[1])}


def draw_shuffled(target: Path, account: ShuffledAccount) -> None:
    """Draw central eps against n, around the n asked for, into a PNG; with what is known of eps0 alone."""
    from matplotlib.figure import Figure

    from dpkernels.cli.plot import write_with_note

    n, delta = account.made.n, (account.deltas or account.one.deltas)[0]
    ends = np.log10(max(2, n / 10**_DECADES)), min(np.log10(n) + _DECADES, np.log10(MOST))
    counts = np.unique(np.round(np.logspace(*ends, _MOST_POINTS)).astype(int))
    made = [accountants.shuffled(account.form, int(count)) for count in counts]
    level = float(account.made.inputs.level)
    clones = [
        published.epsilon_of(partial(published.published_clones, level, int(count)), delta, level) for count in counts
    ]
    figure = Figure(figsize=(8, 5.5), dpi=150)
    axes = figure.subplots()
    axes.axhline(level, color="0.5", linestyle=":", label=f"one report without the shuffler: {level:.4g}")
    axes.plot(
        counts, clones, "--", color="C1", label="known of eps0 alone (Feldman, McMillan & Talwar 2021, numerical)"
    )
    axes.plot(counts, [one.epsilon(delta) for one in made], color="C0", linewidth=2, label="this mechanism, any inputs")
    revealed = [one.lower(delta=delta) for one in made]
    axes.plot(counts, revealed, color="C2", linestyle="-.", label="revealed where all others hold one input")
    axes.plot([n], [account.made.epsilon(delta)], "o", color="C3", label=f"n = {n}: {account.made.epsilon(delta):.4g}")
    axes.set(xscale="log", yscale="log", xlabel="n, honest reports", ylabel=f"central epsilon at delta {delta:g}")
    axes.set(title=f"Shuffled reports: {account.one.name}")
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False, loc="lower left", fontsize=8)
    note = f"{account.one.description}. Neighbouring: {account.made.neighbouring}. Covers {SHUFFLED_COVERS}"
    write_with_note(figure, note, target)
