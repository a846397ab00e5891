"""``dpkernels account``: the privacy of one report of a mechanism, and of several or shuffled reports together."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import click
import numpy as np

import accountants
from accountants.composition.self_composed import ConvergenceError
from accountants.published import shuffle as published
from accountants.shuffle.shuffled import MOST
from dpkernels import checks
from dpkernels.cli.mechanisms import mechanism
from dpkernels.cli.release.sidecar import guarantee, noise_of, parameters
from dpkernels.cli.text import aligned
from dpkernels.decimals import shortest
from dpkernels.estimation.intervals import shown as rounded
from dpkernels.exact.certificate import CertificateError
from dpkernels.exact.registry import exact_sampler
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.base import Mechanism
from dpkernels.numerics import Real
from dpkernels.staging import write_png

COVERS = (
    "one report of the ideal distribution, in exact arithmetic. Does not cover sampling in floating point (a release "
    "samples the certified integers instead), several reports, which compose, or side channels."
)
# Where the profile is printed if the options do not say.
_DELTAS = (1e-5, 1e-6, 1e-9)
_SHARES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)  # of the mechanism's own epsilon
_EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0)  # where it has none


@dataclass(frozen=True)
class Account:
    """A mechanism and where to read its profile.

    Attributes:
        name: the mechanism's name.
        mechanism: the mechanism.
        options: those it was made with.
        epsilons: where to print delta.
        deltas: where to print epsilon.
    """

    name: str
    mechanism: Mechanism
    options: Mapping[str, Any]
    epsilons: Sequence[float]
    deltas: Sequence[float]

    @classmethod
    def of(cls, name: str, options: Mapping[str, Any], epsilons: Sequence[float], deltas: Sequence[float]) -> Account:
        """Choose the mechanism, and by its epsilon where to print delta unless that is given.

        Raises:
            click.UsageError: no such mechanism, or an option that is wrong, missing or out of range.
        """
        made = mechanism(name, options, release=False)
        try:
            accountants.delta(made, 1.0)
            checks.within("--at-epsilon", np.array(epsilons, float), 0.0, np.finfo(float).max)
            checks.within("--at-delta", np.array(deltas, float), 0.0, 1.0, open_ends=True)
        except (TypeError, ValueError) as error:
            raise click.UsageError(str(error)) from error
        own = options.get("epsilon")
        usual = _EPSILONS if own is None else [share * own for share in _SHARES]
        return cls(name, made, options, tuple(epsilons) or tuple(usual), tuple(deltas) or _DELTAS)

    def delta(self, epsilons: Iterable[float]) -> np.ndarray:
        """Return the profile at any epsilons."""
        # One by one: a number is compiled for once, an array for each of its lengths.
        return np.array([accountants.delta(self.mechanism, float(epsilon)) for epsilon in epsilons])

    def epsilon(self, deltas: Iterable[float]) -> np.ndarray:
        """Its inverse; inf where no epsilon will do."""
        return np.array([accountants.epsilon(self.mechanism, float(delta)) for delta in deltas])

    @cached_property
    def pure(self) -> float:
        """The pure level; inf where there is none."""
        return float(accountants.epsilon(self.mechanism))

    @property
    def is_additive(self) -> bool:
        """True for noise, False for a mechanism on an interval."""
        return isinstance(self.mechanism, Additive)

    @property
    def claim(self) -> tuple[float, ...]:
        """The claimed (epsilon, delta); empty if there is no claim."""
        made: Any = self.mechanism
        claim = (made.epsilon, made.delta) if self.is_additive else (self.options["epsilon"], 0.0)
        return () if None in claim else claim

    @property
    def neighbours(self) -> str:
        """The inputs that are neighbouring, in words."""
        if self.is_additive:
            return f"true values at most {shortest(self.options['sensitivity'])} apart"
        interval = "[{}, {}]".format(*map(shortest, self.mechanism.input_interval))
        if "sensitivity" in self.options:
            return f"values in {interval} at most {shortest(self.options['sensitivity'])} apart"
        return f"any two values in {interval}"

    @property
    def description(self) -> str:
        """The mechanism, its options, and the parameters of its noise."""
        noise = noise_of(self.mechanism)
        options = ", ".join(f"{name.replace('_', '-')} {_shown(value)}" for name, value in self.options.items())
        return f"{self.name} ({options})" + (f"; noise of {noise}" if noise else "")

    @cached_property
    def errors(self) -> dict[str, float]:
        """The errors of a report, by their names."""
        made: Any = self.mechanism
        if not self.is_additive:
            middle = sum(map(float, made.input_interval)) / 2
            found = {"worst variance": float(made.worst_variance), "central variance": float(made.variance(middle))}
            return found | ({"largest bias": float(made.bias(made.lower))} if hasattr(made, "bias") else {})
        found = {"variance": float(made.noise.variance), "mean of the noise": float(made.noise.mean)}
        return found | ({"acceptance": float(made.noise.acceptance)} if "theta" in self.options else {})

    @cached_property
    def certified(self) -> str | None:
        """The guarantee that the integers of a release realise, in words; None without a claim."""
        if not self.claim:
            return None
        try:
            own = guarantee(exact_sampler(self.mechanism).certificate)
        except CertificateError as error:
            return f"no release: {error}"
        return f"a release realises epsilon {shortest(own.realised_epsilon)}, delta {shortest(own.realised_delta)}"

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form; null where a number is infinite."""
        return {
            "mechanism": self.name,
            "parameters": parameters(self.mechanism),
            "neighbouring": self.neighbours,
            "covers": COVERS,
            "delta_at_epsilon": _pairs("epsilon", self.epsilons, "delta", self.delta(self.epsilons)),
            "epsilon_at_delta": _pairs("delta", self.deltas, "epsilon", self.epsilon(self.deltas)),
            "pure_epsilon": _finite(self.pure),
            **{name.replace(" ", "_"): value for name, value in self.errors.items()},
            "certified": self.certified,
        }

    def __str__(self) -> str:
        facts = {
            "mechanism": self.description,
            "neighbouring": self.neighbours,
            "pure level": f"epsilon {shortest(self.pure)}" if math.isfinite(self.pure) else "none: delta is never 0",
            **{name: rounded(value, 9) for name, value in self.errors.items()},
            **({"certified": self.certified} if self.certified else {}),
            "covers": COVERS,
        }
        lines = [f"{name:<19} {text}" for name, text in facts.items()]
        lines += ["", *_table("epsilon", "delta", self.epsilons, self.delta(self.epsilons))]
        return "\n".join([*lines, "", *_table("delta", "epsilon", self.deltas, self.epsilon(self.deltas))])


def _shown(value: Real) -> str:
    return value if isinstance(value, str) else ",".join(map(shortest, np.ravel(value)))


def _table(given: str, found: str, at: Sequence[float], values: np.ndarray) -> list[str]:
    cells = [[shortest(x), f"{y:.9g}" if math.isfinite(y) else "none"] for x, y in zip(at, values, strict=True)]
    return aligned([[given, found], *cells])


def _pairs(given: str, at: Sequence[float], found: str, values: np.ndarray) -> list[dict[str, float | None]]:
    return [{given: x, found: _finite(float(y))} for x, y in zip(at, values, strict=True)]


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


_COMPOSED_COVERS = (
    "these reports together, with ideal distributions in exact arithmetic; the mechanism is fixed in advance. Does not "
    "cover sampling in floating point (a release samples certified integers instead), other reports, or side channels."
)

_SHUFFLED_COVERS = (
    "one report of each of n people, with certified integers, shuffled. Does not cover other reports of these people, "
    "data that come with a report (its time, its address), a dishonest shuffler, or side channels."
)
_MOST_POINTS, _DECADES = 25, 2


@dataclass(frozen=True)
class SeveralReports:
    """Several reports of one mechanism, and the points at which to print their privacy.

    Attributes:
        one: the account of a single report.
        guarantee: the guarantee of all reports together.
        numbers: the numbers of reports, by their names in JSON.
        text: the same in words, after its heading.
        covers: the scope of the guarantee.
        epsilons: where to print delta.
        deltas: where to print epsilon; by default the account's, if there are no epsilons either.
        sampler: the exact sampler, if its reports are shuffled.
    """

    one: Account
    guarantee: Any
    numbers: Mapping[str, float | None]
    text: tuple[str, str]
    covers: str
    epsilons: Sequence[float]
    deltas: Sequence[float]
    sampler: Any = None

    @property
    def tables(self) -> dict[str, list[dict[str, float | None]]]:
        """Each number with rigorous bounds; null where it is infinite."""
        deltas = self.deltas or (() if self.epsilons else self.one.deltas)
        return {
            "epsilon_at_delta": [{"delta": at, **self._row("epsilon", delta=at)} for at in deltas],
            "delta_at_epsilon": [{"epsilon": at, **self._row("delta", epsilon=at)} for at in self.epsilons],
        }

    def _row(self, name: str, **at: float) -> dict[str, float | None]:
        try:
            value = getattr(self.guarantee, name)(*at.values())
        except ConvergenceError:  # only the bracket is known
            value = math.inf
        low, high = self.guarantee.bracket(**at)
        # The least that is known of shuffled reports, where all others hold one input.
        revealed = {} if self.sampler is None else {"some_inputs": float(self.guarantee.lower(**at))}
        return {name: _finite(value), **revealed, "at_least": _finite(low), "at_most": _finite(high)}

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form."""
        return {
            "mechanism": self.one.name,
            "parameters": parameters(self.one.mechanism),
            **self.numbers,
            "neighbouring": self.guarantee.neighbouring,
            "covers": self.covers,
            **self.tables,
        }

    def __str__(self) -> str:
        heading, text = self.text
        facts = {
            "mechanism": self.one.description,
            heading: text,
            "neighbouring": self.guarantee.neighbouring,
            "covers": self.covers,
        }
        lines = [f"{name:<19} {text}" for name, text in facts.items()]
        for rows in self.tables.values():
            if rows:
                cells = [["none" if value is None else f"{value:.9g}" for value in row.values()] for row in rows]
                lines += ["", *aligned([[name.replace("_", " ") for name in rows[0]], *cells])]
        return "\n".join(lines)


def composed(
    one: Account,
    epsilons: Sequence[float],
    deltas: Sequence[float],
    *,
    reports: int = 1,
    subsample: float | None = None,
) -> SeveralReports:
    """Return reports that are composed.

    Args:
        one: the account of a single report.
        epsilons: where to print delta.
        deltas: where to print epsilon.
        reports: the number of reports.
        subsample: the rate of the Poisson sample that each report is on; None for reports on all records.

    Raises:
        click.UsageError: a count or a rate out of range, or a mechanism whose reports cannot be composed so.
    """
    try:
        made = accountants.guarantee(one.mechanism)
        if subsample is not None:
            checks.within("--subsample", subsample, np.nextafter(0.0, 1.0), 1.0)
            made = made.subsample(subsample)
        made = made.repeat(checks.whole("--reports", reports, 1, 1 << 40))
    except (TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    sample = "" if subsample is None else f", each on a Poisson sample of rate {subsample:g} of its own"
    numbers = {"reports": reports, "subsample": subsample}
    return SeveralReports(one, made, numbers, ("reports", f"{reports}{sample}"), _COMPOSED_COVERS, epsilons, deltas)


def shuffled(one: Account, epsilons: Sequence[float], deltas: Sequence[float], n: int) -> SeveralReports:
    """Return n shuffled reports of the certified integers of a mechanism.

    Raises:
        click.UsageError: n is below 2, or shuffling does not hide the mechanism's reports.
        CertificateError: its integers do not have the guarantee.
    """
    try:
        accountants.shuffled(one.mechanism, n)  # Refuse before anything is certified.
        sampler = exact_sampler(one.mechanism)
        made = accountants.shuffled(sampler, n)
    except CertificateError:
        raise
    except (TypeError, ValueError) as error:
        raise click.UsageError(f"--shuffle: {error}") from error
    text = "shuffled", f"{n} honest reports"
    return SeveralReports(one, made, {"shuffled": n}, text, _SHUFFLED_COVERS, epsilons, deltas, sampler)


def plot_composed(target: Path, account: SeveralReports) -> None:
    """Draw the privacy profile of all reports into a PNG."""
    account.guarantee.plot(target)


def plot_shuffled(target: Path, account: SeveralReports) -> None:
    """Draw central eps against n, around the n asked for, into a PNG; with what is known of eps0 alone."""
    from matplotlib.figure import Figure

    n, delta = account.guarantee.n, (account.deltas or account.one.deltas)[0]
    ends = np.log10(max(2, n / 10**_DECADES)), min(np.log10(n) + _DECADES, np.log10(MOST))
    counts = np.unique(np.round(np.logspace(*ends, _MOST_POINTS)).astype(int))
    made = [accountants.shuffled(account.sampler, int(count)) for count in counts]
    level = float(account.guarantee.inputs.level)
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
    epsilon = account.guarantee.epsilon(delta)
    axes.plot([n], [epsilon], "o", color="C3", label=f"n = {n}: {epsilon:.4g}")
    axes.set(xscale="log", yscale="log", xlabel="n, honest reports", ylabel=f"central epsilon at delta {delta:g}")
    axes.set(title=f"Shuffled reports: {account.one.name}")
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False, loc="lower left", fontsize=8)
    note = f"{account.one.description}. Neighbouring: {account.guarantee.neighbouring}. Covers {_SHUFFLED_COVERS}"
    _write_with_note(figure, note, target)


_FLOOR = 1e-12  # of delta
_POINTS = 240  # of the curve, evenly spaced, besides the steep parts
_NEAR = np.geomspace(1e-9, 0.1, 60)  # before an epsilon at which delta falls steeply, relative to it


def plot_profile(target: Path, account: Account) -> None:
    """Draw the profile, with the claim if there is one, and write a PNG."""
    end = _end(account)
    steep = [one * (1 - _NEAR) for one in (account.pure, *account.claim[:1]) if one < end]
    note = f"{account.description}. Neighbouring: {account.neighbours}. Covers {COVERS}"
    _write_with_note(_figure(account, np.union1d(np.linspace(0.0, end, _POINTS), steep)), note, target)


def _end(account: Account) -> float:
    """Return where the curve has reached the floor, or the delta that no epsilon goes below; never before the claim."""
    plateau = float(account.delta([600.0])[0])
    reached = float(account.epsilon([max(_FLOOR, min(1.001 * plateau, 0.999))])[0])
    pure = account.pure if math.isfinite(account.pure) else 0.0
    return 1.15 * max([reached if math.isfinite(reached) else 0.0, pure, *account.claim[:1], 0.1])


def _figure(account: Account, epsilons: np.ndarray) -> Any:
    from matplotlib.figure import Figure

    deltas = account.delta(epsilons)
    figure = Figure(figsize=(8, 5.5), dpi=150)
    axes = figure.subplots()
    # Below the floor the curve leaves the picture: a delta of 0 has no place on a log scale.
    axes.plot(epsilons, np.maximum(deltas, _FLOOR / 10), linewidth=2, label="realised delta, the least that is enough")
    _mark(axes, account)
    axes.set(yscale="log", xlabel="epsilon", ylabel="delta, log scale", xlim=(0, epsilons[-1]), ylim=(_FLOOR, 1.0))
    axes.set(title=f"Privacy profile of one report: {account.name}")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="lower left")
    return figure


def _mark(axes: Any, account: Account) -> None:
    """The claim and the pure level."""
    if account.claim:
        epsilon, delta = account.claim
        below = f" (below the axis, drawn at {shortest(_FLOOR)})" if delta < _FLOOR else ""
        label = f"claim: epsilon {shortest(epsilon)}, delta {shortest(delta)}{below}"
        axes.plot([epsilon], [max(delta, _FLOOR)], "o", color="C3", label=label, clip_on=False)
    if math.isfinite(account.pure):
        axes.axvline(account.pure, color="grey", linestyle="--", label=f"pure level, epsilon {account.pure:.6g}")


def _write_with_note(figure: Any, note: str, target: Path) -> None:
    """Write a PNG with a text below the picture."""
    figure.text(0.02, 0.015, textwrap.fill(note, 148), fontsize=7.5, va="bottom")
    figure.subplots_adjust(left=0.1, right=0.97, top=0.93, bottom=0.22)
    write_png(figure, target)
