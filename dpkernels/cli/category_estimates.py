"""``dpkernels estimate`` for a column of categories: numbers and shares of people, with exact intervals.

A file is read once. Memory grows with the number of categories and groups, and not with the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from dpkernels import checks
from dpkernels.cli.estimate import column_of, groups_of, rank
from dpkernels.cli.files.categories import is_categorical, reports_of
from dpkernels.cli.files.formats import Source, ahead
from dpkernels.cli.interrupts import stop_if_asked
from dpkernels.cli.options import flag, usage_errors
from dpkernels.cli.release.sidecar import label, title
from dpkernels.cli.release.verify import build_exact_sampler
from dpkernels.cli.text import aligned, display_name
from dpkernels.estimation.categorical.counts import CategoryCounts
from dpkernels.estimation.categorical.estimate import CategoryEstimate
from dpkernels.exact.categories import CategoryCertificate
from dpkernels.exact.certificate import CertificateError
from dpkernels.staging import write_png

_MOST_COUNTS = 1 << 25  # of all groups together, eight bytes each
_MOST_LINES, _BAR = 40, 24  # categories of a group that a table shows, and the length of the longest bar
_MOST_BARS = 60  # categories of a picture


def is_about_categories(form: Mapping[str, Any], names: Sequence[str], where: Any, column: str | None) -> bool:
    """Return whether the column of a sidecar that is estimated holds categories."""
    return is_categorical(column_of(form, names, where, column)["certificate"])


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
        grid = figure.subplots(len(self.groups), 1, squeeze=False, sharex=True)
        for ax, (group, estimate) in zip(grid[:, 0], self.groups.items(), strict=True):
            order = np.argsort(-estimate.shares.unbiased)[:_MOST_BARS]
            value, (low, high) = estimate.shares.value[order], estimate.shares.interval(self.confidence)
            names = [str(estimate.mechanism.label_of(int(code))) for code in order]
            ax.bar(range(len(order)), value, color="C0", alpha=0.6)
            reach = [value - low[order], high[order] - value]
            ax.errorbar(range(len(order)), value, reach, fmt="none", color="C7", capsize=2, linewidth=1)
            ax.set_xticks(range(len(order)), names, rotation=90 if len(order) > 8 else 0)
            caption = "" if self.by is None else f"{self.by} {_name(group)}: "
            ax.set(ylabel="share", title=f"{caption}{estimate.count:,} reports at epsilon {self.epsilon:g}")
            ax.set_ylim(bottom=0)
        write_png(figure, target)


def _name(group: str | None) -> str:
    return "(null)" if group is None else display_name(group)


def estimates(
    form: Mapping[str, Any], source: Source, where: Any, column: str | None, by: str | None, options: Mapping[str, Any]
) -> CategoryEstimates:
    """Count the reports of a column of one file, in groups by the cells of another column, and estimate from them.

    ``options`` are those of the command; the ones for numbers are refused.
    """
    for name in ("quantiles", "histogram", "atoms", "grid", "lower", "upper"):
        if options.get(name) is not None:
            raise click.UsageError(f"{flag(name)}: is for numbers; the column holds categories")
    confidence = options["confidence"]
    with usage_errors():
        checks.within("--confidence", confidence, 0.0, 1.0, open_ends=True)
    own = column_of(form, source.names, where, column)
    name = str(own["column"])
    if by is not None and by in [one["column"] for one in form["columns"]]:
        raise click.UsageError(f"--by: {by!r} is perturbed; groups are of columns that were copied as they are")
    if by is not None and list(source.names).count(by) != 1:
        raise click.UsageError(f"--by: {where} has {list(source.names).count(by)} columns {by!r}")
    certificate = CategoryCertificate.from_dict(own["certificate"])
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in own["options"].items()}
    sampler = build_exact_sampler(own["mechanism"], given, label(name))[1]
    if sampler.certificate != certificate:
        raise CertificateError(
            f"{label(name)}the mechanism and its options do not have the integers of the certificate"
        )
    groups, missing, start = dict[str | None, CategoryCounts](), 0, 0
    with closing(ahead(source.pieces([name] if by is None else [name, by]))) as pieces:
        for piece in pieces:
            reports, good, is_missing = reports_of(source.labels(piece, name), sampler.mechanism, source.markers)
            if not (good | is_missing).all():
                place = source.place(piece, start + int((good | is_missing).argmin()), start)
                raise ValueError(f"{label(name)}{place} is no report of this release")
            if is_missing.any() and form.get("missing") != "keep":
                place = source.place(piece, start + int(is_missing.argmax()), start)
                raise ValueError(f"{label(name)}{place} is missing; the release kept none")
            missing += int(is_missing.sum())
            local, cells = groups_of(source, piece, by)
            if len(groups.keys() | set(cells)) * _size(sampler.mechanism) > _MOST_COUNTS:
                raise click.UsageError(f"--by: {by!r} has too many groups to be counted; is it an identifier?")
            for at, cell in enumerate(cells):
                rows = good if by is None else good & (local == at)
                groups.setdefault(cell, CategoryCounts(sampler)).add(reports[rows])
            start += len(piece)
            stop_if_asked()
    found = {cell: CategoryEstimate(groups[cell]) for cell in sorted(groups, key=rank) if groups[cell].total}
    if not found:
        raise ValueError(f"{where}: holds no report; there is nothing to estimate from")
    return CategoryEstimates(name, by, own["mechanism"], float(certificate.epsilon), missing, confidence, found)


def _size(mechanism: Any) -> int:
    return int(mechanism.categories if mechanism.kind == "set" else mechanism.outcomes)
