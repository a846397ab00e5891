"""What one column's reports say, of all rows or group by group: the numbers, for a person and for a program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from dpkernels import checks
from dpkernels.cli.estimates.reading import Read
from dpkernels.cli.release.sidecar import title
from dpkernels.cli.text import aligned, shown
from dpkernels.decimals import shortest
from dpkernels.estimation.estimate import Estimate, estimate

_QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class Asked:
    """What is to be estimated.

    Attributes:
        quantiles: shares; None for the usual ones, where the reports tell them.
        histogram: how many bins; None for none.
        confidence: of every interval.
    """

    quantiles: tuple[float, ...] | None
    histogram: int | None
    confidence: float

    @classmethod
    def of(cls, quantiles: tuple[float, ...] | None, histogram: int | None, confidence: float) -> Asked:
        """Checked before a file is read.

        Raises:
            click.UsageError: one is out of range.
        """
        try:
            checks.within("--quantiles", quantiles or 0.5, 0.0, 1.0, open_ends=True)
            checks.within("--confidence", confidence, 0.0, 1.0, open_ends=True)
            if histogram is not None:
                checks.whole("--histogram", histogram, 1, 1024)
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        return cls(quantiles, histogram, confidence)


@dataclass(frozen=True)
class Told:
    """What one group's reports say.

    Attributes:
        group: its cell in the column of groups; None for all rows, and for the cells that are null.
        reports: how many there are.
        numbers: estimates by name, each a value with its interval, or why there is none.
        bins: of a histogram: lower end, upper end, share with its interval, number with its interval.
    """

    group: str | None
    reports: int
    numbers: dict[str, tuple[float, float, float] | str]
    bins: list[tuple[float, ...]]

    def to_dict(self) -> dict[str, Any]:
        """A JSON form."""
        form: dict[str, Any] = {"group": self.group, "reports": self.reports}
        for name, one in self.numbers.items():
            told = (
                {"value": one[0], "interval": list(one[1:])} if isinstance(one, tuple) else {"value": None, "why": one}
            )
            form[name] = told
        if self.bins:
            names = ("lower", "upper", "share", "share_low", "share_high", "count", "count_low", "count_high")
            form["histogram"] = [dict(zip(names, one, strict=True)) for one in self.bins]
        return form


@dataclass(frozen=True)
class Estimates:
    """The outcome.

    Attributes:
        column: the column's name; None for an array.
        by: the column of groups, if any.
        mechanism: the mechanism's name.
        epsilon: its budget.
        missing: rows without a report.
        ends: smallest and largest value there can be.
        confidence: of every interval.
        groups: what was told.
        whole: the estimate of all rows, to be drawn; None with groups.
    """

    column: str | None
    by: str | None
    mechanism: str
    epsilon: float
    missing: int
    ends: tuple[float, float]
    confidence: float
    groups: list[Told]
    whole: Estimate | None

    def to_dict(self) -> dict[str, Any]:
        """A JSON form."""
        return {
            "column": self.column,
            "by": self.by,
            "mechanism": self.mechanism,
            "epsilon": self.epsilon,
            "values": list(self.ends),
            "missing": self.missing,
            "confidence": self.confidence,
            "estimates": [one.to_dict() for one in self.groups],
        }

    def __str__(self) -> str:
        count = sum(one.reports for one in self.groups)
        values = "[{}, {}]".format(*map(shortest, self.ends))
        lines = [f"{title(self.column)}: {count} reports of {shown(self.mechanism)}, values in {values}"]
        lines += [f"{self.missing} rows without a report"] if self.missing else []
        lines += ["", *self._numbers()]
        for one in self.groups:
            lines += ["", *self._bins(one)] if one.bins else []
        return "\n".join(lines)

    def _numbers(self) -> list[str]:
        heading = [*self._named("reports"), "", "estimate", f"{100 * self.confidence:.6g} % interval"]
        rows = [heading]
        for one in self.groups:
            first = [*self._group(one), str(one.reports)]
            for name, told in one.numbers.items():
                if isinstance(told, str):
                    cells = ["-", told.partition(",")[0].partition(": ")[0]]
                else:
                    cells = [f"{told[0]:.5g}", f"{told[1]:.5g} to {told[2]:.5g}"]
                rows.append([*first, name.replace("_", " "), *cells])
                first = [""] * len(first)
        return aligned(rows)

    def _bins(self, one: Told) -> list[str]:
        interval = f"{100 * self.confidence:.6g} % interval"
        rows = [[*self._named("from"), "to", "share", interval, "number", interval]]
        for lower, upper, share, low, high, number, least, most in one.bins:
            ends = [f"{lower:.5g}", f"{upper:.5g}"]
            shares = [f"{share:.4f}", f"{low:.4f} to {high:.4f}"]
            rows.append([*self._group(one), *ends, *shares, f"{number:.0f}", f"{least:.0f} to {most:.0f}"])
        return aligned(rows)

    def _named(self, *rest: str) -> list[str]:
        return [*([] if self.by is None else [shown(self.by)]), *rest]

    def _group(self, one: Told) -> list[str]:
        return [] if self.by is None else [_named(one.group)]


def _named(group: str | None) -> str:
    return "(null)" if group is None else shown(group)


def estimates(found: Read, asked: Asked) -> Estimates:
    """Estimate from counted reports.

    Args:
        found: the reports of a release.
        asked: what is estimated of each group.

    Raises:
        ValueError: too few reports for what was asked, in every group.
    """
    wanted = found.wanted
    ends = wanted.channel.lower, wanted.channel.upper
    made = {group: estimate(counts) if counts.total else None for group, counts in found.groups.items()}
    each = [(group, *_told(group, one, asked)) for group, one in made.items()]
    if all(error is not None for *_, error in each):
        group, _, error = each[0]
        where = "" if wanted.by is None else f"--by: no group can answer; {wanted.by} {_named(group)}: "
        raise ValueError(where + _as_option(str(error))) from error
    told = [one for _, one, _ in each]
    whole = made[None] if wanted.by is None else None
    kept = wanted.column, wanted.by, wanted.mechanism, wanted.epsilon, found.missing, ends
    return Estimates(*kept, asked.confidence, told, whole)


def _told(group: str | None, made: Estimate | None, asked: Asked) -> tuple[Told, ValueError | None]:
    """Every number that one group's reports tell, and why they do not tell the others; None for a group without any.

    Returns:
        The numbers, and the first error of those that were asked for; the standard deviation and the default quantiles
        are printed where the reports tell them.
    """
    if made is None:
        return Told(group, 0, {"mean": "no report"}, []), ValueError("reports: there is none")
    default: dict[str, Callable[[], Any]] = {"standard_deviation": lambda: made.standard_deviation}
    default |= _quantiles(made, _QUANTILES) if asked.quantiles is None else {}
    numbers, bins, errors = dict[str, tuple[float, float, float] | str](), list[tuple[float, ...]](), []
    for name, ask in {"mean": lambda: made.mean, **default, **_quantiles(made, asked.quantiles or ())}.items():
        try:
            numbers[name] = _with_interval(ask(), asked)
        except ValueError as error:
            numbers[name] = _reason(error)
            errors += [error] if name not in default else []
    try:
        bins = _histogram(made, asked)
    except ValueError as error:
        numbers["histogram"] = _reason(error)
        errors.append(error)
    return Told(group, made.count, numbers, bins), errors[0] if errors else None


def _reason(error: ValueError) -> str:
    """The error without the argument of the library that it begins with."""
    return str(error).partition(": ")[2]


def _as_option(message: str) -> str:
    """An error of the library in the words of the command."""
    return f"--quantiles: {message.removeprefix('p: ')}" if message.startswith("p: ") else message


def _quantiles(made: Estimate, shares: tuple[float, ...]) -> dict[str, Callable[[], Any]]:
    return {f"quantile_{shortest(p)}": partial(made.quantile, p) for p in shares}


def _with_interval(found: Any, asked: Asked) -> tuple[float, float, float]:
    low, high = found.interval(asked.confidence)
    return float(found.value), float(low), float(high)


def _histogram(made: Estimate, asked: Asked) -> list[tuple[float, ...]]:
    if asked.histogram is None:
        return []
    found = made.histogram(asked.histogram)
    parts = [found.edges[:-1], found.edges[1:]]
    for one in (found.shares, found.counts):
        parts += [one.value, *one.interval(asked.confidence)]
    return [tuple(map(float, row)) for row in zip(*parts, strict=True)]
