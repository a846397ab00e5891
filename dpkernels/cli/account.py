"""``dpkernels account``: the privacy of one report of a mechanism, and of several or shuffled reports together."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

import accountants
from accountants.published import shuffle as published
from accountants.shuffle.shuffled import MAX_REPORTS
from dpkernels import checks
from dpkernels.bounded_json import JsonObject
from dpkernels.cli.errors import error_text
from dpkernels.cli.mechanisms import mechanism
from dpkernels.cli.options import OptionValues, single, usage_errors
from dpkernels.cli.perturb.sidecar import describe_noise, guarantee, parameters
from dpkernels.cli.text import aligned
from dpkernels.decimals import format_number, shortest
from dpkernels.exact.certificate import CertificateError
from dpkernels.exact.registry import exact_sampler
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.base import Mechanism
from dpkernels.mechanisms.categorical.base import Categorical
from dpkernels.mechanisms.categorical.prefixes import PrefixPlan
from dpkernels.numerics import Real
from dpkernels.staging import write_png

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from accountants.risk import RiskReport
    from dpkernels.exact.sampler import ExactSampler

_COVERS = (
    "one report of the ideal distribution, in exact arithmetic. Does not cover sampling in floating point (a release "
    "samples the certified integers instead), several reports, which compose, or side channels."
)
_COMPOSED_COVERS = (
    "these reports together, with ideal distributions in exact arithmetic; the mechanism is fixed in advance. Does not "
    "cover sampling in floating point (a release samples certified integers instead), other reports, or side channels."
)
_SHUFFLED_COVERS = (
    "one report of each of n people, with certified integers, shuffled. Does not cover other reports of these people, "
    "data that come with a report (its time, its address), a dishonest shuffler, or side channels."
)
# The points at which the profile is printed by default.
_DELTAS = (1e-5, 1e-6, 1e-9)
_RISK_DELTA = 1e-6  # of beliefs, by default
_FRACTIONS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)  # of the mechanism's own epsilon
_EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0)  # of a mechanism without a claim

# Rows of a table, whose first entry is the argument; null is infinite.
Rows = list[dict[str, float | None]]


_MEANINGS = {
    "pure level": "the least epsilon at which delta is 0",
    "worst variance": "of one report, for the input at which it is largest",
    "central variance": "of one report, for the middle of the interval",
    "variance": "of the noise of one report",
    "mean of the noise": "how far a report is from the true value on average",
    "acceptance": "the probability that the noise is at most theta",
    "largest bias": "how far the mean of reports is from the true value, for the worst input",
    "mean squared error": "of the estimated shares of all categories together, times the number of reports",
    "share variance": "of the estimated share of a category that nobody has, times the number of reports",
    "certified": "the guarantee of the integers that a release samples",
}
_TABLES_NOTE = "delta at an epsilon, epsilon at a delta: the least that holds for any two neighbours"
_BOUNDS_NOTE = "at least: no accounting can give less; the least number that holds is between both"
_SHUFFLED_NOTE = "some inputs: the epsilon or delta if all other people have the same input, one case of many"


@dataclass(frozen=True)
class Account:
    """One report of a mechanism."""

    name: str
    mechanism: Mechanism
    options: OptionValues  # those it was made with
    epsilons: Sequence[float]  # where to print delta; empty for the usual ones
    deltas: Sequence[float]  # where to print epsilon; empty for the usual ones

    @classmethod
    def from_options(
        cls, name: str, options: OptionValues, epsilons: Sequence[float], deltas: Sequence[float]
    ) -> Account:
        built = mechanism(name, options, release=False)
        with usage_errors(errors=(TypeError, ValueError)):
            accountants.delta(built, 1.0)
            checks.within("--at-epsilon", np.array(epsilons, float), 0.0, np.finfo(float).max)
            checks.within("--at-delta", np.array(deltas, float), 0.0, 1.0, open_ends=True)
        return cls(name, built, options, epsilons, deltas)

    @property
    def single_report(self) -> Account:
        return self

    @property
    def guarantee(self) -> accountants.Guarantee:
        return accountants.guarantee(self.mechanism)

    def delta(self, epsilons: Iterable[float]) -> np.ndarray:
        # One by one, because a program for arrays is compiled for each of their lengths.
        return np.array([accountants.delta(self.mechanism, float(epsilon)) for epsilon in epsilons])

    @cached_property
    def pure(self) -> float:
        """Return the pure level; inf where there is none."""
        return float(accountants.epsilon(self.mechanism))

    @property
    def claim(self) -> tuple[float, ...]:
        """Return the claimed (epsilon, delta); empty if there is no claim."""
        built = self.mechanism
        claim = (built.epsilon, built.delta) if isinstance(built, Additive) else (self.options["epsilon"], 0.0)
        return () if None in claim else claim

    @property
    def neighbour_text(self) -> str:
        """Return which inputs are neighbours, in words."""
        if isinstance(self.mechanism, Additive):
            return f"true values at most {shortest(self.options['sensitivity'])} apart"
        if isinstance(self.mechanism, Categorical):
            return f"any two of the {self.mechanism.categories} categories"
        if isinstance(self.mechanism, PrefixPlan):
            return f"any two of the {self.mechanism.categories} values"
        interval = "[{}, {}]".format(*map(shortest, self.mechanism.input_interval))
        if "sensitivity" in self.options:
            return f"values in {interval} at most {shortest(self.options['sensitivity'])} apart"
        return f"any two values in {interval}"

    @property
    def description(self) -> str:
        """Return the mechanism, its options, and the parameters of its noise, in words."""
        noise = describe_noise(self.mechanism)
        options = ", ".join(f"{name.replace('_', '-')} {_format_option(value)}" for name, value in self.options.items())
        return f"{self.name} ({options})" + (f"; noise of {noise}" if noise else "")

    @property
    def errors(self) -> dict[str, float]:
        built: Any = self.mechanism
        if isinstance(built, Categorical):
            total_error, share_variance = float(built.mean_squared_error()), float(built.share_variance(0.0))
            return {"mean squared error": total_error, "share variance": share_variance}
        if isinstance(built, PrefixPlan):
            return {"share variance": float(len(built.levels) * built.levels[-1].share_variance(0.0))}
        if not isinstance(self.mechanism, Additive):
            middle = sum(map(float, built.input_interval)) / 2
            moments = {"worst variance": float(built.worst_variance), "central variance": float(built.variance(middle))}
            return moments | ({"largest bias": float(built.bias(built.lower))} if hasattr(built, "bias") else {})
        moments = {"variance": float(built.noise.variance), "mean of the noise": float(built.noise.mean)}
        return moments | ({"acceptance": float(built.noise.acceptance)} if "theta" in self.options else {})

    @cached_property
    def certified(self) -> str | None:
        """Return the guarantee of a release's integers, in words; None without a claim."""
        if not self.claim:
            return None
        try:
            claim = guarantee(exact_sampler(self.mechanism).certificate)
        except CertificateError as error:
            return f"no release: {error_text(error)}"
        return f"a release attains epsilon {shortest(claim.realised_epsilon)}, delta {shortest(claim.realised_delta)}"

    @property
    def tables(self) -> dict[str, Rows]:
        claim = self.options.get("epsilon")
        epsilons = self.epsilons or (_EPSILONS if claim is None else [fraction * claim for fraction in _FRACTIONS])
        deltas = self.deltas or _DELTAS
        epsilons_at_deltas = [accountants.epsilon(self.mechanism, float(delta)) for delta in deltas]
        return {
            "delta_at_epsilon": _rows("epsilon", epsilons, "delta", self.delta(epsilons)),
            "epsilon_at_delta": _rows("delta", deltas, "epsilon", epsilons_at_deltas),
        }

    def to_dict(self) -> dict[str, object]:
        return {
            "mechanism": self.name,
            "parameters": parameters(self.mechanism),
            "neighbouring": self.neighbour_text,
            "covers": _COVERS,
            **self.tables,
            "pure_epsilon": _finite(self.pure),
            **{name.replace(" ", "_"): value for name, value in self.errors.items()},
            "certified": self.certified,
        }

    def __str__(self) -> str:
        facts = {
            "mechanism": self.description,
            "neighbours": self.neighbour_text,
            "pure level": f"epsilon {shortest(self.pure)}" if math.isfinite(self.pure) else "none: delta is never 0",
            **{name: format_number(value, 9) for name, value in self.errors.items()},
            **({"certified": self.certified} if self.certified else {}),
            "covers": _COVERS,
        }
        meanings = [f"{name}: {words}" for name, words in _MEANINGS.items() if name in facts]
        return "\n".join([_as_text(facts, self.tables, shortest), "", *meanings, _TABLES_NOTE])

    def plot(self, target: Path) -> None:
        # The end is where the curve has reached the floor, or the delta that no epsilon goes below.
        pure = self.pure if math.isfinite(self.pure) else 0.0
        plateau = float(self.delta([600.0])[0])
        reached = float(accountants.epsilon(self.mechanism, max(_FLOOR, min(1.001 * plateau, 0.999))))
        end = 1.15 * max([reached if math.isfinite(reached) else 0.0, pure, *self.claim[:1], 0.1])
        steep = [level * (1 - _STEEP_DISTANCES) for level in (self.pure, *self.claim[:1]) if level < end]
        note = f"{self.description}. Neighbours: {self.neighbour_text}. Covers {_COVERS}"
        _write_with_note(_figure(self, np.union1d(np.linspace(0.0, end, _POINTS), steep)), note, target)


def _format_option(value: Any) -> str:
    if isinstance(value, tuple) and isinstance(value[0], str):
        return ",".join(value[:6]) + (",.." if len(value) > 6 else "")
    return value if isinstance(value, str) else ",".join(map(shortest, np.ravel(value)))


def _rows(argument: str, points: Sequence[float], result: str, values: Iterable[Real]) -> Rows:
    return [{argument: x, result: _finite(y)} for x, y in zip(points, values, strict=True)]


def _finite(value: Real) -> float | None:
    return float(value) if math.isfinite(value) else None


def _as_bound(value: float | None, *, upper: bool) -> str:
    """Return a bound with nine digits, rounded to its own side."""
    if value is None:
        return "none"
    digits = Context(prec=9, rounding=ROUND_CEILING if upper else ROUND_FLOOR)
    return f"{float(digits.create_decimal(repr(value))):.9g}"


def _as_text(facts: Mapping[str, str], tables: Mapping[str, Rows], label: Callable[[Any], str]) -> str:
    lines = [f"{name:<19} {text}" for name, text in facts.items()]
    for rows in filter(None, tables.values()):
        cells = [[name.replace("_", " ") for name in rows[0]]]
        for row in rows:
            (_, argument), *bounds = row.items()
            cells.append([label(argument), *(_as_bound(value, upper=name != "at_least") for name, value in bounds)])
        lines += ["", *aligned(cells)]
    return "\n".join(lines)


@dataclass(frozen=True)
class SeveralReports:
    """Several reports of one mechanism."""

    single_report: Account  # of a single report, with the points at which to print the privacy of all
    guarantee: Any  # of all reports together
    numbers: Mapping[str, float | None]  # of reports, by their names in JSON
    text: tuple[str, str]  # the same in words, after its heading
    covers: str
    sampler: ExactSampler | None = None  # the exact one, if its reports are shuffled

    @property
    def tables(self) -> dict[str, Rows]:
        deltas = self.single_report.deltas or (() if self.single_report.epsilons else _DELTAS)
        return {
            "epsilon_at_delta": [{"delta": x, **self._row("epsilon", delta=x)} for x in deltas],
            "delta_at_epsilon": [{"epsilon": x, **self._row("delta", epsilon=x)} for x in self.single_report.epsilons],
        }

    def _row(self, name: str, **target: float) -> dict[str, float | None]:
        low, high = self.guarantee.bracket(**target)
        # The least that is known of shuffled reports, where all others hold one input.
        revealed = {} if self.sampler is None else {"some_inputs": float(self.guarantee.lower(**target))}
        return {name: _finite(high), **revealed, "at_least": _finite(low)}

    def to_dict(self) -> JsonObject:
        return {
            "mechanism": self.single_report.name,
            "parameters": parameters(self.single_report.mechanism),
            **self.numbers,
            "neighbouring": self.guarantee.neighbouring,
            "covers": self.covers,
            **self.tables,
        }

    def __str__(self) -> str:
        heading, text = self.text
        description = self.single_report.description
        facts = {"mechanism": description, heading: text, "neighbours": self.guarantee.neighbouring}
        text = _as_text(facts | {"covers": self.covers}, self.tables, "{:.9g}".format)
        words = [_TABLES_NOTE, _BOUNDS_NOTE, *([] if self.sampler is None else [_SHUFFLED_NOTE])]
        return "\n".join([text, "", *words])

    def plot(self, target: Path) -> None:
        """Draw the privacy profile of all reports, or central epsilon against the number of shuffled ones."""
        if self.sampler is None:
            self.guarantee.plot(target)
        else:
            _plot_shuffled(target, self)


@dataclass(frozen=True)
class Risk:
    """What the privacy of one report, or of several, means for one person."""

    account: Account | SeveralReports
    report: RiskReport

    @classmethod
    def from_account(cls, account: Account | SeveralReports) -> Risk:
        single_report = account.single_report
        if len(single_report.deltas) > 1 or single_report.epsilons:
            raise click.UsageError("takes one --at-delta and no --at-epsilon")
        (delta,) = single_report.deltas or (_RISK_DELTA,)
        return cls(account, account.guarantee.report(delta))

    def to_dict(self) -> dict[str, object]:
        record = {name: value for name, value in self.account.to_dict().items() if name not in self.account.tables}
        return record | {"risk": self.report.to_dict()}

    def __str__(self) -> str:
        return f"{self.account.single_report.description}\n\n{self.report}"

    def plot(self, target: Path) -> None:
        self.report.plot(target)


def privacy_account(name: str, risk: bool = False, **options: Any) -> Account | SeveralReports | Risk:
    """Account for one report of a mechanism, several that are composed, or shuffled ones of its certified integers."""
    account = _build_account(name, **options)
    with usage_errors("--risk: "):
        return Risk.from_account(account) if risk else account


def _build_account(
    name: str,
    at_epsilon: Sequence[float],
    at_delta: Sequence[float],
    shuffle: Sequence[int],
    reports: Sequence[int],
    subsample: Sequence[float],
    **options: tuple[object, ...],
) -> Account | SeveralReports:
    several = single({"shuffle": shuffle, "reports": reports, "subsample": subsample})
    if "shuffle" in several and len(several) > 1:
        raise click.UsageError("--shuffle: cannot be combined with --reports or --subsample; compose rounds in Python")
    single_report, n = Account.from_options(name, single(options), at_epsilon, at_delta), several.get("shuffle")
    if not several:
        return single_report
    if n is not None:
        with usage_errors("--shuffle: ", (TypeError, ValueError)):
            accountants.shuffled(single_report.mechanism, n)  # Refuse before anything is certified.
        sampler = exact_sampler(single_report.mechanism)
        guarantee, text = accountants.shuffled(sampler, n), ("shuffled", f"{n} honest reports")
        return SeveralReports(single_report, guarantee, {"shuffled": n}, text, _SHUFFLED_COVERS, sampler)
    sample, rate = "", several.get("subsample")
    with usage_errors(errors=(TypeError, ValueError)):
        composed = single_report.guarantee
        if rate is not None:
            checks.within("--subsample", rate, np.nextafter(0.0, 1.0), 1.0)
            composed, sample = composed.subsample(rate), f", each on a Poisson sample of rate {rate:g} of its own"
        count = checks.integer_in("--reports", several.get("reports", 1), 1, 1 << 40)
        composed = composed.repeat(count)
    numbers = {"reports": count, "subsample": rate}
    return SeveralReports(single_report, composed, numbers, ("reports", f"{count}{sample}"), _COMPOSED_COVERS)


_MAX_POINTS = 25  # numbers of reports for which epsilon is drawn
_DECADES = 2  # drawn on either side of the given number


def _plot_shuffled(target: Path, account: SeveralReports) -> None:
    """Draw estimates of central epsilon around the given n, with the bounds that are known from eps0 alone."""
    from matplotlib.figure import Figure

    n, delta = account.guarantee.n, (account.single_report.deltas or _DELTAS)[0]
    ends = np.log10(max(2, n / 10**_DECADES)), min(np.log10(n) + _DECADES, np.log10(MAX_REPORTS))
    counts = np.unique(np.round(np.logspace(*ends, _MAX_POINTS)).astype(int)).tolist()
    shuffled_reports = [accountants.shuffled(account.sampler, count) for count in counts]
    level = float(account.guarantee.inputs.pure_epsilon)
    clones = [published.epsilon_of(partial(published.published_clones, level, count), delta, level) for count in counts]
    clones_label = "known of eps0 alone (Feldman, McMillan & Talwar 2021, numerical)"
    epsilon = account.guarantee.estimate_epsilon(delta)
    figure = Figure(figsize=(8, 5.5), dpi=150)
    axes = figure.subplots()
    axes.axhline(level, color="0.5", linestyle=":", label=f"one report without the shuffler: {level:.4g}")
    axes.plot(counts, clones, "--", color="C1", label=clones_label)
    axes.plot(
        counts,
        [reports.estimate_epsilon(delta) for reports in shuffled_reports],
        color="C0",
        linewidth=2,
        label="this mechanism, any inputs",
    )
    revealed = [reports.lower(delta=delta) for reports in shuffled_reports]
    axes.plot(counts, revealed, color="C2", linestyle="-.", label="revealed where all others hold one input")
    axes.plot([n], [epsilon], "o", color="C3", label=f"n = {n}: {epsilon:.4g}")
    axes.set(xscale="log", yscale="log", xlabel="n, honest reports", ylabel=f"central epsilon at delta {delta:g}")
    axes.set(title=f"Shuffled reports: {account.single_report.name}")
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False, loc="lower left", fontsize=8)
    neighbours = account.guarantee.neighbouring
    note = f"{account.single_report.description}. Neighbours: {neighbours}. Covers {_SHUFFLED_COVERS}"
    _write_with_note(figure, note, target)


_FLOOR = 1e-12  # of delta
_POINTS = 240  # of the curve, evenly spaced, besides the steep parts
_STEEP_DISTANCES = np.geomspace(1e-9, 0.1, 60)  # before an epsilon at which delta falls steeply, relative to it


def _figure(account: Account, epsilons: np.ndarray) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5.5), dpi=150)
    axes = figure.subplots()
    # A delta of 0 has no place on a log scale, so the curve leaves the picture below the floor.
    deltas = np.maximum(account.delta(epsilons), _FLOOR / 10)
    axes.plot(epsilons, deltas, linewidth=2, label="attained delta, the least that holds")
    if account.claim:
        epsilon, delta = account.claim
        floor_note = f" (below the axis, drawn at {shortest(_FLOOR)})" if delta < _FLOOR else ""
        label = f"claim: epsilon {shortest(epsilon)}, delta {shortest(delta)}{floor_note}"
        axes.plot([epsilon], [max(delta, _FLOOR)], "o", color="C3", label=label, clip_on=False)
    if math.isfinite(account.pure):
        axes.axvline(account.pure, color="grey", linestyle="--", label=f"pure level, epsilon {account.pure:.6g}")
    axes.set(yscale="log", xlabel="epsilon", ylabel="delta, log scale", xlim=(0, epsilons[-1]), ylim=(_FLOOR, 1.0))
    axes.set(title=f"Privacy profile of one report: {account.name}")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="lower left")
    return figure


def _write_with_note(figure: Figure, note: str, target: Path) -> None:
    figure.text(0.02, 0.015, textwrap.fill(note, 148), fontsize=7.5, va="bottom")
    figure.subplots_adjust(left=0.1, right=0.97, top=0.93, bottom=0.22)
    write_png(figure, target)
