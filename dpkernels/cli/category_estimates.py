"""``dpkernels estimate`` for a column of categories: numbers and shares of people, with exact intervals.

A file is read once, and counts of the files of a dataset are added. Memory grows with the number of categories and
groups, and not with the files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from dpkernels.cli.estimate import Selection, check_groups, column_of, groups_of, rank
from dpkernels.cli.files.categories import is_categorical, reports_of
from dpkernels.cli.files.formats import Source, ahead
from dpkernels.cli.interrupts import stop_if_asked
from dpkernels.cli.options import flag
from dpkernels.cli.release.sidecar import title
from dpkernels.cli.release.verify import build_exact_sampler
from dpkernels.cli.text import aligned, display_name, label
from dpkernels.estimation.categorical.counts import CategoryCounts
from dpkernels.estimation.categorical.estimate import CategoryEstimate
from dpkernels.estimation.pictures import draw_intervals
from dpkernels.exact.categories import CategoryCertificate, CategorySampler
from dpkernels.exact.certificate import CertificateError
from dpkernels.staging import write_png

_MOST_COUNTS = 1 << 25  # of all groups together, eight bytes each
_MOST_LINES, _BAR = 40, 24  # categories of a group that a table shows, and the length of the longest bar
_MOST_BARS = 60  # categories of a picture


@dataclass(frozen=True)
class CategoryEstimates:
    """The estimates of every group of a release."""

    column: str
    by: str | None
    mechanism: str
    epsilon: float
    missing: int
    confidence: float
    groups: dict[str | None, CategoryEstimate]

    def to_dict(self) -> dict[str, Any]:
        return {
            "column": self.column,
            "by": self.by,
            "mechanism": self.mechanism,
            "epsilon": self.epsilon,
            "missing": self.missing,
            "confidence": self.confidence,
            "estimates": [
                {"group": group, "reports": one.count, "categories": self._rows(one)}
                for group, one in self.groups.items()
            ],
        }

    def _rows(self, estimate: CategoryEstimate) -> list[dict[str, Any]]:
        table = estimate.table(self.confidence)
        each = zip(*(np.asarray(column).tolist() for column in table.values()), strict=True)
        unbiased = estimate.counts.unbiased.tolist()
        return [dict(zip(table, row, strict=True)) | {"unbiased": at} for row, at in zip(each, unbiased, strict=True)]

    def __str__(self) -> str:
        count = sum(one.count for one in self.groups.values())
        first = next(iter(self.groups.values()))
        interval = f"{100 * self.confidence:.6g} % interval"
        lines = [
            f"{title(self.column)}: {count:,} reports of {self.mechanism} at epsilon {self.epsilon:.6g}, "
            f"{first.mechanism.categories:,} categories"
        ]
        lines += [f"{self.missing:,} rows without a report"] if self.missing else []
        lines += ["Intervals are exact, and assume nothing about the values; each holds by itself."]
        for group, estimate in self.groups.items():
            rows = sorted(self._rows(estimate), key=lambda row: -row["unbiased"])
            largest = max(row["share"] for row in rows)
            cells = [["category", "number", interval, "share", interval, ""]]
            for row in rows[:_MOST_LINES]:
                numbers = f"{row['count']:,.0f}", f"{row['count_low']:,.0f} to {row['count_high']:,.0f}"
                shares = f"{row['share']:.4f}", f"{row['share_low']:.4f} to {row['share_high']:.4f}"
                bar = "#" * round(_BAR * row["share"] / largest)
                cells.append([display_name(str(row["category"])), *numbers, *shares, bar])
            heading = [] if self.by is None else [f"{display_name(self.by)} {_name(group)}: {estimate.count:,} reports"]
            more = len(rows) - _MOST_LINES
            rest = [f"and {more:,} more categories; --json prints all"] if more > 0 else []
            lines += ["", *heading, *aligned(cells), *rest]
        return "\n".join(lines)

    def plot(self, target: Path) -> None:
        """Draw the shares of every group with their intervals, and write a PNG."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 0.5 + 3.5 * len(self.groups)), dpi=150, layout="constrained")
        grid = figure.subplots(len(self.groups), 1, squeeze=False, sharey=True)
        # All groups have the same categories in the same order: the largest ones of all groups together.
        total = sum(estimate.count * estimate.shares.unbiased for estimate in self.groups.values())
        order = np.argsort(-total, kind="stable")[:_MOST_BARS]
        places = np.arange(len(order))
        for ax, (group, estimate) in zip(grid[:, 0], self.groups.items(), strict=True):
            low, high = (end[order] for end in estimate.shares.interval(self.confidence))
            about = f"{100 * self.confidence:g} % intervals"
            draw_intervals(ax, places - 0.4, places + 0.4, estimate.shares.value[order], low, high, about)
            names = [display_name(str(estimate.mechanism.label_of(int(code)))) for code in order]
            ax.set_xticks(places, names, rotation=90 if len(order) > 8 else 0, parse_math=False)
            caption = "" if self.by is None else f"{display_name(self.by)} {_name(group)}: "
            ax.set_ylabel("share of values")
            ax.set_title(f"{caption}{estimate.count:,} reports at epsilon {self.epsilon:g}", parse_math=False)
            ax.legend(frameon=False)
        grid[0, 0].set_ylim(0, 1.05 * max(ax.dataLim.y1 for ax in grid[:, 0]))
        write_png(figure, target)


def _name(group: str | None) -> str:
    return "(null)" if group is None else display_name(group)


class CategoryTally(NamedTuple):
    """Reports of one file or part."""

    groups: dict[str | None, CategoryCounts]  # by the cells of the groups' column
    missing: int  # rows without a report


@dataclass(frozen=True)
class CategorySelection:
    """Which reports of categories are counted; the same for every file of a release."""

    column: str
    by: str | None  # a column that was copied as it is, whose cells are groups
    mechanism: str
    sampler: CategorySampler
    keep: bool  # whether the release kept missing values
    confidence: float  # of intervals

    @classmethod
    def of(
        cls,
        form: Mapping[str, Any],
        names: Sequence[str],
        where: Any,
        column: str | None,
        by: str | None,
        options: Mapping[str, Any],
    ) -> CategorySelection:
        """Return what to count; ``options`` are those of the command, of which the ones for numbers are refused."""
        for name in ("quantiles", "histogram", "atoms", "grid", "lower", "upper"):
            if options.get(name) is not None:
                raise click.UsageError(f"{flag(name)}: is for numbers; the column holds categories")
        own = column_of(form, names, where, column)
        check_groups(form, names, where, by)
        certificate = CategoryCertificate.from_dict(own["certificate"])
        given = {key: tuple(value) if isinstance(value, list) else value for key, value in own["options"].items()}
        sampler: Any = build_exact_sampler(own["mechanism"], given, label(own["column"]))[1]
        if sampler.certificate != certificate:
            raise CertificateError(
                f"{label(own['column'])}the mechanism and its options do not have the integers of the certificate"
            )
        keep, confidence = form.get("missing") == "keep", float(options["confidence"])
        return cls(str(own["column"]), by, own["mechanism"], sampler, keep, confidence)

    def tally(self, source: Source, row: int = 0) -> CategoryTally:
        """Count the reports of one source, which begins with that row of its file."""
        name, by, mechanism = self.column, self.by, self.sampler.mechanism
        groups, missing, start = dict[str | None, CategoryCounts](), 0, row
        with closing(ahead(source.pieces([name] if by is None else [name, by]))) as pieces:
            for piece in pieces:
                reports, good, is_missing = reports_of(source.labels(piece, name), mechanism, source.markers)
                if not (good | is_missing).all():
                    place = source.place(piece, start + int((good | is_missing).argmin()), start)
                    raise ValueError(f"{label(name)}{place} is no report of this release")
                if is_missing.any() and not self.keep:
                    place = source.place(piece, start + int(is_missing.argmax()), start)
                    raise ValueError(f"{label(name)}{place} is missing; the release kept none")
                missing += int(is_missing.sum())
                local, cells = groups_of(source, piece, by)
                self._check_few(groups.keys() | set(cells))
                for at, cell in enumerate(cells):
                    rows = good if by is None else good & (local == at)
                    groups.setdefault(cell, CategoryCounts(self.sampler)).add(reports[rows])
                start += len(piece)
                stop_if_asked()
        return CategoryTally(groups, missing)

    def _check_few(self, cells: Collection[str | None]) -> None:
        mechanism = self.sampler.mechanism
        size = mechanism.categories if mechanism.kind == "set" else mechanism.outcomes
        if len(cells) * size > _MOST_COUNTS:
            raise click.UsageError(f"--by: {self.by!r} has too many groups to be counted; is it an identifier?")

    def join(self, tallies: Iterable[CategoryTally], where: Any) -> CategoryEstimates:
        """Return the estimates of a release from the counts of its parts."""
        groups, missing = dict[str | None, CategoryCounts](), 0
        for tally in tallies:
            missing += tally.missing
            self._check_few(groups.keys() | tally.groups.keys())
            for cell, counts in tally.groups.items():
                groups[cell] = groups[cell] + counts if cell in groups else counts
        answers = {cell: CategoryEstimate(groups[cell]) for cell in sorted(groups, key=rank) if groups[cell].total}
        if not answers:
            raise ValueError(f"{where}: holds no report; there is nothing to estimate from")
        epsilon = float(self.sampler.certificate.epsilon)
        return CategoryEstimates(self.column, self.by, self.mechanism, epsilon, missing, self.confidence, answers)


def selection_of(
    form: Mapping[str, Any],
    names: Sequence[str],
    where: Any,
    *,
    column: str | None,
    by: str | None,
    options: Mapping[str, Any],
) -> Selection | CategorySelection:
    """Return which reports of a release are counted: those of a column of numbers or of categories."""
    if is_categorical(column_of(form, names, where, column)["certificate"]):
        return CategorySelection.of(form, names, where, column, by, options)
    lower, upper = options["lower"], options["upper"]
    return Selection.of(form, names, where, column, by, None if lower is None else (lower, upper))
