"""``dpkernels estimate`` for a column of categories: numbers and fractions of people, with exact intervals.

A file is read once, and the counts of the files of a dataset are added. Memory grows with the number of categories and
groups, not with the size of the files. For reports of prefixes, a file is read once for each level, to find the most
frequent values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np

from dpkernels.bounded_json import JsonObject
from dpkernels.cli.estimate import (
    Selection,
    Tally,
    check_group_count,
    check_groups,
    group_rows,
    group_title,
    join_tallies,
    select_column,
)
from dpkernels.cli.files.categories import is_categorical, parse_reports
from dpkernels.cli.files.formats import Source, ahead
from dpkernels.cli.interrupts import raise_if_interrupted
from dpkernels.cli.options import OptionValues, flag
from dpkernels.cli.perturb.sidecar import title
from dpkernels.cli.perturb.verify import build_exact_sampler
from dpkernels.cli.text import aligned, display_name, label
from dpkernels.estimation.categorical.counts import CategoryCounts
from dpkernels.estimation.categorical.estimate import CategoryEstimate
from dpkernels.estimation.categorical.heavy_hitters import HeavyHitters, PrefixSearch
from dpkernels.estimation.pictures import draw_intervals, share_scale
from dpkernels.exact.categorical.prefixes import PrefixSampler
from dpkernels.exact.categorical.sampler import CategorySampler
from dpkernels.exact.certificate import Certificate, CertificateError
from dpkernels.staging import write_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_LINES = 40  # categories of a group that a table shows
_BAR_LENGTH = 24  # characters of the longest bar of a table
_MAX_BARS = 60  # categories of a picture
_MAX_KEPT = 32  # prefixes that are kept of each level


@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories of a release, and groups of its rows."""

    column: str
    group_column: str | None  # a column that was copied as it is, whose cells are groups
    mechanism: str
    sampler: CategorySampler
    keep: bool  # whether the release kept missing values
    confidence: float  # of intervals

    @property
    def epsilon(self) -> float:
        return float(self.sampler.certificate.epsilon)

    def to_dict(self, missing: int) -> JsonObject:
        names = {"column": self.column, "by": self.group_column, "mechanism": self.mechanism}
        return names | {"epsilon": self.epsilon, "missing": missing, "confidence": self.confidence}

    def heading(self, reports: int, missing: int) -> list[str]:
        """Return the lines that say what was counted."""
        counted = f"{reports:,} reports of the mechanism {self.mechanism} at epsilon {self.epsilon:.6g}"
        return [f"{title(self.column)}: {counted}", *([f"{missing:,} rows without a report"] if missing else [])]

    def read(
        self, source: Source, chunks: Iterable[Sized], row: int
    ) -> Iterator[tuple[Sized, np.ndarray, np.ndarray, np.ndarray]]:
        """Yield every chunk with its reports, whether each is one, and whether each is missing, from row ``row`` on.

        A ValueError names the first cell that is no report, or missing although the release kept none.
        """
        mechanism, name = self.sampler.mechanism, self.column
        for chunk in chunks:
            reports, is_valid, is_missing = parse_reports(source.labels(chunk, name), mechanism, source.markers)
            if not (is_valid | is_missing).all():
                position = source.position(chunk, row + int((is_valid | is_missing).argmin()), row)
                raise ValueError(f"{label(name)}{position} is no report of this release")
            if is_missing.any() and not self.keep:
                position = source.position(chunk, row + int(is_missing.argmax()), row)
                raise ValueError(f"{label(name)}{position} is missing; the release kept none")
            yield chunk, reports, is_valid, is_missing
            row += len(chunk)
            raise_if_interrupted()


@dataclass(frozen=True)
class CategoryEstimates:
    """The estimates of every group of a release."""

    selection: CategoryColumn
    missing: int
    groups: dict[str | None, CategoryEstimate]

    def to_dict(self) -> dict[str, object]:
        return self.selection.to_dict(self.missing) | {
            "estimates": [
                {"group": group, "reports": estimate.count, "categories": self._rows(estimate)}
                for group, estimate in self.groups.items()
            ],
        }

    def _rows(self, estimate: CategoryEstimate) -> list[JsonObject]:
        return _records({**estimate.table(self.selection.confidence), "unbiased": estimate.counts.unbiased})

    def _title(self, group: str | None) -> str:
        column = self.selection.group_column
        return "" if column is None else f"{display_name(column)} {group_title(group)}: "

    def __str__(self) -> str:
        count = sum(estimate.count for estimate in self.groups.values())
        first = next(iter(self.groups.values()))
        percent = f"{100 * self.selection.confidence:.6g} %"
        interval = f"{percent} interval"
        first_line, *lines = self.selection.heading(count, self.missing)
        lines = [
            f"{first_line}, {first.mechanism.categories:,} categories",
            *lines,
            "Numbers and shares are of the people who sent the reports. Intervals assume nothing about the values.",
            f"Each single interval contains its true value with probability {percent} or more.",
        ]
        for group, estimate in self.groups.items():
            rows = sorted(self._rows(estimate), key=lambda row: -row["unbiased"])
            largest = max(row["share"] for row in rows)
            cells = [["category", "number", interval, "share", interval, ""]]
            for row in rows[:_MAX_LINES]:
                counts = f"{row['count']:,.0f}", f"{row['count_low']:,.0f} to {row['count_high']:,.0f}"
                shares = f"{row['share']:.4f}", f"{row['share_low']:.4f} to {row['share_high']:.4f}"
                cells.append([display_name(str(row["category"])), *counts, *shares, _bar(row["share"], largest)])
            heading = [f"{self._title(group)}{estimate.count:,} reports"] if self._title(group) else []
            hidden = len(rows) - _MAX_LINES
            truncation = [f"and {hidden:,} more categories; --json prints all"] if hidden > 0 else []
            lines += ["", *heading, *aligned(cells), *truncation]
        return "\n".join(lines)

    def plot(self, target: Path) -> None:
        """Draw the shares of every group with their intervals, and write a PNG."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 0.5 + 3.5 * len(self.groups)), dpi=150, layout="constrained")
        grid = figure.subplots(len(self.groups), 1, squeeze=False, sharey=True)
        # All groups have the same categories in the same order: the largest ones of all groups together.
        total = sum(estimate.count * estimate.shares.unbiased for estimate in self.groups.values())
        order = np.argsort(-total, kind="stable")[:_MAX_BARS]
        for ax, (group, estimate) in zip(grid[:, 0], self.groups.items(), strict=True):
            low, high = (end[order] for end in estimate.shares.interval(self.selection.confidence))
            names = [display_name(str(estimate.mechanism.label(int(code)))) for code in order]
            caption = f"{self._title(group)}{estimate.count:,} reports at epsilon {self.selection.epsilon:g}"
            about = f"{100 * self.selection.confidence:g} % intervals"
            _draw_shares(ax, names, estimate.shares.value[order], low, high, about, caption)
        share_scale(list(grid[:, 0]))
        write_png(figure, target)


def _records(table: Mapping[str, object]) -> list[dict[str, object]]:
    """Return the rows of a table of columns."""
    rows = zip(*(np.asarray(column).tolist() for column in table.values()), strict=True)
    return [dict(zip(table, row, strict=True)) for row in rows]


def _bar(fraction: float, largest: float) -> str:
    return "#" * round(_BAR_LENGTH * fraction / largest)


def _draw_shares(
    ax: Axes, names: Sequence[str], shares: np.ndarray, low: np.ndarray, high: np.ndarray, about: str, caption: str
) -> None:
    """Draw shares by name with their intervals, which the legend says to be ``about``."""
    positions = np.arange(len(names))
    draw_intervals(ax, positions - 0.4, positions + 0.4, shares, low, high, about)
    ax.set_xticks(positions, names, rotation=90 if len(names) > 8 else 0, parse_math=False)
    ax.set_ylabel("share of values")
    ax.set_title(caption, parse_math=False)


@dataclass(frozen=True)
class CategorySelection(CategoryColumn):
    """Which reports of categories are counted; the same for every file of a release."""

    def tally(self, source: Source, row: int = 0) -> Tally[CategoryCounts]:
        """Count the reports of one source, which begins with that row of its file."""
        groups, missing = dict[str | None, CategoryCounts](), 0
        names = [self.column] if self.group_column is None else [self.column, self.group_column]
        with closing(ahead(source.chunks(names))) as chunks:
            for chunk, reports, is_valid, is_missing in self.read(source, chunks, row):
                missing += int(is_missing.sum())
                local, cells = group_rows(source, chunk, self.group_column)
                check_group_count(self.group_column, groups.keys() | set(cells), self._width)
                for index, cell in enumerate(cells):
                    rows = is_valid if self.group_column is None else is_valid & (local == index)
                    groups.setdefault(cell, CategoryCounts(self.sampler)).add(reports[rows])
        return Tally(groups, missing)

    @property
    def _width(self) -> int:
        """Return the numbers that the counts of one group take."""
        mechanism = self.sampler.mechanism
        return mechanism.categories if mechanism.kind == "set" else mechanism.outcomes

    def join(self, tallies: Iterable[Tally[CategoryCounts]], where: object) -> CategoryEstimates:
        """Return the estimates of a release from the counts of its parts."""
        groups, missing = join_tallies(tallies, self.group_column, self._width)
        estimates = {cell: CategoryEstimate(counts) for cell, counts in groups.items() if counts.total}
        if not estimates:
            raise ValueError(f"{where}: holds no report; there is nothing to estimate from")
        return CategoryEstimates(self, missing, estimates)


@dataclass(frozen=True)
class FoundValues:
    """The most frequent values of a release of prefixes."""

    selection: CategoryColumn
    missing: int
    compared: int  # values at the last level
    standard_error: float  # of the share of a rare value
    heavy_hitters: HeavyHitters

    def to_dict(self) -> dict[str, object]:
        return self.selection.to_dict(self.missing) | {
            "reports": self.heavy_hitters.people,
            "compared": self.compared,
            "standard_error": self.standard_error,
            "found": _records(self.heavy_hitters.table()),
        }

    def __str__(self) -> str:
        hitters, confidence = self.heavy_hitters, f"{100 * self.heavy_hitters.confidence:.6g} %"
        whom = "population that the people are from" if hitters.about == "population" else "people who sent the reports"
        lines = [
            *self.selection.heading(hitters.people, self.missing),
            f"{self.compared:,} values were compared at the end. With probability {confidence} or more, all shares",
            f"in the {whom} are in their intervals.",
            f"The share of a rare value has a standard error of {self.standard_error:.2g}: values that are not much",
            "more frequent than that are not found.",
        ]
        cells = [["value", "share", f"{confidence} interval", ""]]
        for index in self._frequent[:_MAX_LINES].tolist():
            fraction, bounds = float(hitters.shares[index]), f"{hitters.low[index]:.4f} to {hitters.high[index]:.4f}"
            bar = _bar(fraction, float(hitters.shares[0]))
            cells.append([display_name(str(hitters.values[index])), f"{fraction:.4f}", bounds, bar])
        printed = len(cells) - 1
        unprinted = len(hitters.values) - printed
        lines += ["", *aligned(cells)] if printed else ["", "No value has an interval above 0."]
        if unprinted:
            lines.append(f"and {unprinted:,} more value{'s' * (unprinted > 1)}; --json prints all")
        return "\n".join(lines)

    @property
    def _frequent(self) -> np.ndarray:
        """Return the indices of the values whose intervals are above 0."""
        return np.flatnonzero(self.heavy_hitters.low > 0)

    def plot(self, target: Path) -> None:
        """Draw the shares whose intervals are above 0, and write a PNG."""
        from matplotlib.figure import Figure

        order, hitters = self._frequent[:_MAX_BARS], self.heavy_hitters
        if not len(order):
            raise ValueError("--plot: no value has an interval above 0")
        figure = Figure(figsize=(9, 4), dpi=150, layout="constrained")
        ax, names = figure.subplots(), [display_name(str(hitters.values[at])) for at in order.tolist()]
        about = f"{100 * hitters.confidence:g} % intervals, together"
        caption = f"{hitters.people:,} reports at epsilon {self.selection.epsilon:g}"
        _draw_shares(ax, names, hitters.shares[order], hitters.low[order], hitters.high[order], about, caption)
        write_png(figure, target)


class PrefixTally(NamedTuple):
    """Reports of one file or part."""

    counted: np.ndarray  # the reports of a level, and how many of them support each candidate
    people: int  # reports of all levels
    missing: int  # rows without a report


@dataclass(frozen=True)
class PrefixSelection(CategoryColumn):
    """Which reports of prefixes are counted: those of a level. The release is read once for each level."""

    search: PrefixSearch

    def tally(self, source: Source, row: int = 0) -> PrefixTally:
        """Count the reports of one source, which begins with that row of its file."""
        plan, search, people, missing = self.sampler.mechanism, self.search, 0, 0
        counted = np.zeros(1 + len(search.candidates), np.int64)
        with closing(ahead(source.chunks([self.column]))) as chunks:
            for _, reports, is_valid, is_missing in self.read(source, chunks, row):
                level, report = plan.split_reports(reports[is_valid].astype(np.int64))
                counted += search.count(report[level == search.level])
                people, missing = people + int(is_valid.sum()), missing + int(is_missing.sum())
        return PrefixTally(counted, people, missing)

    def join(self, tallies: Iterable[PrefixTally], where: object) -> PrefixSelection | FoundValues:
        """Return what to count at the next level, or after the last one the values that were found."""
        counted, people, missing = np.zeros(1 + len(self.search.candidates), np.int64), 0, 0
        for tally in tallies:
            counted, people, missing = counted + tally.counted, people + tally.people, missing + tally.missing
        if not people:
            raise ValueError(f"{where}: holds no report; there is nothing to estimate from")
        plan, search = self.search.plan, self.search.next(counted)
        if search.level < len(plan.levels):
            return replace(self, search=search)
        heavy_hitters, error = search.heavy_hitters(people, self.confidence), plan.standard_error(people)
        return FoundValues(self, missing, search.candidate_count, error, heavy_hitters)


def select_reports(
    release: JsonObject,
    names: Sequence[str],
    where: object,
    *,
    column: str | None,
    group_column: str | None,
    options: OptionValues,
) -> Selection | CategorySelection | PrefixSelection:
    """Return which reports of a release are counted: those of a column of numbers or of categories."""
    most = options.get("most")
    record = select_column(release, names, where, column)
    if is_categorical(record["certificate"]):
        return select_categories(release, record, names, where, group_column, options)
    if most is not None:
        raise click.UsageError(f"--most: is for prefix-response; the mechanism is {record['mechanism']}")
    lower, upper = options["lower"], options["upper"]
    bounds = None if lower is None else (lower, upper)
    return Selection.from_sidecar(release, names, where, column, group_column, bounds)


def select_categories(
    release: JsonObject,
    record: JsonObject,
    names: Sequence[str],
    where: object,
    group_column: str | None,
    options: OptionValues,
) -> CategorySelection | PrefixSelection:
    """Return what to count of a column; ``options`` are the command's, of which those for numbers are refused."""
    for name in ("quantiles", "histogram", "atoms", "grid", "lower", "upper"):
        if options.get(name) is not None:
            raise click.UsageError(f"{flag(name)}: is for numbers; the column holds categories")
    certificate: Certificate = Certificate.from_dict(record["certificate"])
    mechanism_options = {
        key: tuple(value) if isinstance(value, list) else value for key, value in record["options"].items()
    }
    sampler: Any = build_exact_sampler(record["mechanism"], mechanism_options, label(record["column"]))[1]
    if sampler.certificate != certificate:
        raise CertificateError(
            f"{label(record['column'])}the mechanism and its options do not have the integers of the certificate"
        )
    keep, confidence, most = release.get("missing") == "keep", float(options["confidence"]), options.get("most")
    column, mechanism = str(record["column"]), record["mechanism"]
    if isinstance(sampler, PrefixSampler):
        if group_column is not None:
            raise click.UsageError("--by: the most frequent values are those of all rows; there are no groups")
        search = PrefixSearch(sampler.mechanism, _MAX_KEPT if most is None else most)
        return PrefixSelection(column, None, mechanism, sampler, keep, confidence, search)
    if most is not None:
        raise click.UsageError(f"--most: is for prefix-response; the mechanism is {mechanism}")
    check_groups(release, names, where, group_column)
    return CategorySelection(column, group_column, mechanism, sampler, keep, confidence)
