"""``dpkernels account``: what one report of a mechanism reveals, and several or shuffled reports together."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from dpkernels.exact.certificate import CertificateError
from dpkernels.exact.registry import exact_sampler
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.base import Mechanism
from dpkernels.numerics import Real
from dpkernels.staging import write_png

COVERS = (
    "one report of the law, in exact arithmetic. Does not cover sampling in floating point (a release samples the "
    "certified integers instead), several reports, which compose, or side channels."
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
        """Whether it is noise, not a mechanism on an interval."""
        return isinstance(self.mechanism, Additive)

    @property
    def claim(self) -> tuple[float, ...]:
        """(epsilon, delta) of its claim; empty if nothing is claimed."""
        made: Any = self.mechanism
        claim = (made.epsilon, made.delta) if self.is_additive else (self.options["epsilon"], 0.0)
        return () if None in claim else claim

    @property
    def neighbours(self) -> str:
        """Which inputs are neighbouring."""
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
        """How far a report is from its input."""
        made: Any = self.mechanism
        if not self.is_additive:
            middle = sum(map(float, made.input_interval)) / 2
            found = {"worst variance": float(made.worst_variance), "central variance": float(made.variance(middle))}
            return found | ({"largest bias": float(made.bias(made.lower))} if hasattr(made, "bias") else {})
        found = {"variance": float(made.noise.variance), "mean of the noise": float(made.noise.mean)}
        return found | ({"acceptance": float(made.noise.acceptance)} if "theta" in self.options else {})

    @cached_property
    def certified(self) -> str | None:
        """What the integers of a release realise; None where nothing is claimed."""
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
            **{name: f"{value:.9g}" for name, value in self.errors.items()},
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


COMPOSED_COVERS = (
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
                {"delta": at, **_bracketed("epsilon", made.epsilon, at, made.bracket(delta=at))} for at in self.deltas
            ],
            "delta_at_epsilon": [
                {"epsilon": at, **_bracketed("delta", made.delta, at, made.bracket(epsilon=at))} for at in self.epsilons
            ],
        }

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form."""
        return {
            "mechanism": self.one.name,
            "parameters": parameters(self.one.mechanism),
            "reports": self.reports,
            "subsample": self.rate,
            "neighbouring": self.guarantee.neighbouring,
            "covers": COMPOSED_COVERS,
            **self.tables,
        }

    def __str__(self) -> str:
        sample = "" if self.rate is None else f", each on a Poisson sample of rate {self.rate:g} of its own"
        facts = {
            "mechanism": self.one.description,
            "reports": f"{self.reports}{sample}",
            "neighbouring": self.guarantee.neighbouring,
            "covers": COMPOSED_COVERS,
        }
        return _as_page(facts, self.tables)


def _bracketed(
    name: str, value: Callable[[float], float], at: float, bracket: tuple[float, float]
) -> dict[str, float | None]:
    low, high = bracket
    try:
        found = value(at)
    except ConvergenceError:  # the bracket is all that is known
        found = math.inf
    return {name: _finite(found), "at_least": _finite(low), "at_most": _finite(high)}


def _number(value: float | None) -> str:
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
            form = exact_sampler(one.mechanism)
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
        """Return a JSON form."""
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
            cells = [[_number(value) for value in row.values()] for row in rows]
            lines += ["", *aligned([[name.replace("_", " ") for name in rows[0]], *cells])]
    return "\n".join(lines)


def _ends(revealed: float, bracket: tuple[float, float]) -> dict[str, float]:
    return {"some_inputs": float(revealed), "at_least": float(bracket[0]), "at_most": float(bracket[1])}


def plot_shuffled(target: Path, account: ShuffledAccount) -> None:
    """Draw central eps against n, around the n asked for, into a PNG; with what is known of eps0 alone."""
    from matplotlib.figure import Figure

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
