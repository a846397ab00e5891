"""``dpkernels estimate``: count reports by value and group, and compute estimates from the counts.

A file is read once, in constant memory. The counts of several files are added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpkernels import checks
from dpkernels.bounded_json import JsonObject
from dpkernels.cli.calendar import date_text, date_ticks, days_since, iso_date
from dpkernels.cli.errors import error_text
from dpkernels.cli.files.formats import Source, ahead
from dpkernels.cli.files.layout import Layout, suffix_format
from dpkernels.cli.files.opening import open_source
from dpkernels.cli.interrupts import raise_if_interrupted
from dpkernels.cli.options import usage_errors
from dpkernels.cli.perturb.output import digest, sidecar_path
from dpkernels.cli.perturb.sidecar import read_sidecar, title
from dpkernels.cli.terminal import private, public
from dpkernels.cli.text import aligned, display_name, label
from dpkernels.decimals import format_number, shortest
from dpkernels.estimation.categorical.counts import CategoryCounts
from dpkernels.estimation.channel import Channel, as_channel
from dpkernels.estimation.counts import Counts, ReportError, report_indices
from dpkernels.estimation.estimate import MAX_PANELS, Estimate, estimate, save_plots
from dpkernels.exact.certificate import CertificateError


def group_rows(source: Source, chunk: object, group_column: str | None) -> tuple[np.ndarray, list[str | None]]:
    """Return the group of every row of a chunk, and the groups' names.

    Different cells have different names, and null has None. Bytes that are not UTF-8 become lone surrogates, as in the
    names of files. Times are written with all their digits.
    """
    if group_column is None:
        return np.zeros(0, np.int64), [None]
    cells = source.labels(chunk, group_column)
    if pa.types.is_dictionary(cells.type):  # whose dictionary may hold a value twice
        cells = cells.cast(cells.type.value_type)
    encoded = pc.dictionary_encode(cells, null_encoding="encode")
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    groups, cells, data_type = encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary, cells.type
    unit = f" {data_type.unit}" if pa.types.is_duration(data_type) else ""
    if pa.types.is_string(data_type) or pa.types.is_large_string(data_type) or pa.types.is_string_view(data_type):
        cells = cells.cast(pa.large_binary())
    elif pa.types.is_duration(data_type):
        cells = cells.cast(pa.int64())
    elif pa.types.is_temporal(data_type) and not pa.types.is_interval(data_type):
        if pa.types.is_timestamp(data_type) and data_type.tz is not None:
            cells = cells.cast(pa.timestamp(data_type.unit, "UTC"))
        elif pa.types.is_date64(data_type):
            cells = cells.cast(pa.timestamp("ms"))
        cells = cells.cast(pa.string())
    texts = [cell.decode(errors="surrogateescape") if isinstance(cell, bytes) else cell for cell in cells.to_pylist()]
    names = [None if text is None else f"{text}{unit}" for text in texts]
    if len(set(names)) < len(names):
        raise ValueError(f"--by: different cells of {data_type} read alike; make them texts")
    return groups.astype(np.int64), names


def rank(cell: str | None) -> tuple[int, float, str]:
    """Return a sort key of groups: numbers by size, then other texts, then null."""
    try:
        number = math.nan if cell is None else float(cell)
    except ValueError:
        number = math.nan
    return (0, number, cell or "") if not math.isnan(number) else (1 + (cell is None), 0.0, cell or "")


_MAX_COUNTS = 1 << 25  # of all groups together, eight bytes each
C = TypeVar("C", np.ndarray, CategoryCounts)


class Tally(NamedTuple, Generic[C]):
    """Counted reports of one file or part."""

    groups: dict[str | None, C]  # by the cells of the groups' column; of numbers how often each report occurs
    missing: int  # rows without a report


def check_group_count(group_column: str | None, cells: Collection[str | None], width: int) -> None:
    """Refuse groups whose counts, of so many numbers each, would not fit into memory."""
    if len(cells) * width > _MAX_COUNTS:
        raise click.UsageError(f"--by: {group_column!r} has too many groups to be counted; is it an identifier?")


def join_tallies(tallies: Iterable[Tally[C]], group_column: str | None, width: int) -> tuple[dict[str | None, C], int]:
    """Return the counts of all parts by group, in the order of the groups, and the number of missing reports."""
    groups, missing = dict[str | None, C](), 0
    for tally in tallies:
        missing += tally.missing
        check_group_count(group_column, groups.keys() | tally.groups.keys(), width)
        for cell, counts in tally.groups.items():
            groups[cell] = groups[cell] + counts if cell in groups else counts
    return {cell: groups[cell] for cell in sorted(groups, key=rank)}, missing


@dataclass(frozen=True)
class Selection:
    """Which reports are counted; the same for every file of a release."""

    column: str | None  # None for an array
    group_column: str | None  # a column that was copied as it is, whose cells are groups
    mechanism: str
    epsilon: float
    channel: Channel  # of the mechanism
    keep: bool  # whether the release kept missing values
    clip: bool  # whether the release clipped values outside the interval
    date_origin: date | None = None  # of a column of dates, whose numbers are days since then

    @classmethod
    def from_sidecar(
        cls,
        release: JsonObject,
        names: Sequence[str],
        where: object,
        column: str | None,
        group_column: str | None,
        bounds: tuple[date | float, date | float] | None,
    ) -> Selection:
        """Return what to count, by the JSON of a sidecar and the columns of the files, which errors call ``where``."""
        if "queries" in release:
            raise click.UsageError(f"REPORTS: the rows of {where} are queries, each with a mechanism of its own")
        record = select_column(release, names, where, column)
        check_groups(release, names, where, group_column)
        origin = date.fromisoformat(record["date_origin"]) if "date_origin" in record else None
        lower, upper = (
            None if end is None else _in_days(end, origin, "--lower, --upper") for end in bounds or (None, None)
        )
        ends = None if lower is None or upper is None else (lower, upper)
        try:
            channel = as_channel(release, column=record["column"], bounds=ends)
        except CertificateError:
            raise
        except ValueError as error:
            message = error_text(error).replace("bounds:", "--lower, --upper:")
            if message.startswith("--lower, --upper: None"):
                message = (
                    "--lower and --upper: missing; additive noise needs the smallest and the largest value there can be"
                )
            raise click.UsageError(f"{label(record['column'])}{message}") from error
        epsilon, keep = float(record["certificate"]["epsilon"]), release.get("missing") == "keep"
        clip = bool(release.get("clip"))
        return cls(record["column"], group_column, record["mechanism"], epsilon, channel, keep, clip, origin)

    def tally(self, source: Source, row: int = 0) -> Tally[np.ndarray]:
        """Count the reports of one source, which begins with that row of its file."""
        name, width = self.column, len(self.channel.reports)
        groups, missing = dict[str | None, np.ndarray](), 0
        columns = [name] if self.group_column is None else [name, self.group_column]
        with closing(ahead(source.chunks(columns))) as chunks:
            for chunk in chunks:
                indices = _indices(source, chunk, name, row, self.channel, self.keep)
                missing += int((indices < 0).sum())
                local, cells = group_rows(source, chunk, self.group_column)
                check_group_count(self.group_column, groups.keys() | set(cells), width)
                is_present = indices >= 0
                index = (local[is_present] if self.group_column is not None else 0) * width + indices[is_present]
                numbers = np.bincount(index, minlength=len(cells) * width).reshape(len(cells), -1)
                for cell, more in zip(cells, numbers, strict=True):
                    groups.setdefault(cell, np.zeros(width, np.int64))[:] += more
                row += len(chunk)
                raise_if_interrupted()
        return Tally(groups, missing)

    def join(self, tallies: Iterable[Tally[np.ndarray]], where: object) -> CountedGroups:
        """Return the counted reports of a release from those of its parts."""
        numbers, missing = join_tallies(tallies, self.group_column, len(self.channel.reports))
        groups = {cell: Counts(self.channel) for cell in numbers}
        for cell, counts in groups.items():
            counts.numbers += numbers[cell]
        if not any(counts.total for counts in groups.values()):
            raise ValueError(f"{where}: holds no report; there is nothing to estimate from")
        return CountedGroups(self, groups, missing)


def _in_days(value: date | float, origin: date | None, option: str) -> float:
    """Return a number, or the days from the origin of a column to a date."""
    if not isinstance(value, date):
        return value
    if origin is None:
        raise click.UsageError(f"{option}: {value} is a date; the column holds numbers")
    return days_since(value, origin)


@dataclass(frozen=True)
class CountedGroups:
    """Counted reports of a release."""

    selection: Selection
    groups: dict[str | None, Counts]  # sorted; named by cells, None for null or without a column; may have no report
    missing: int  # rows without a report


def open_release(path: Path, sidecar: Path | None) -> tuple[JsonObject, Source]:
    """Return the JSON of a release's sidecar and its file, opened.

    Without a sidecar it is the one beside the file, whose hash must be the file's.
    """
    sidecar_file = sidecar_path(path) if sidecar is None else sidecar
    if not sidecar_file.is_file():
        raise click.UsageError(f"--sidecar: missing; {sidecar_file}, which `dpkernels perturb` writes, is not there")
    release, _ = read_sidecar(sidecar_file)
    try:
        written = Layout.from_dict(release["layout"])
    except ValueError as error:
        raise CertificateError(f"{sidecar_file}: is not the sidecar of a release; {error_text(error)}") from error
    if sidecar is None and "parts" in release["output"]:
        raise ValueError(f"{sidecar_file}: is the sidecar of a release of many files; REPORTS is then their folder")
    if sidecar is None and release["output"]["sha256"] != digest(path):
        problem = f"is not the file that {sidecar_file} was written with"
        raise CertificateError(f"{path}: {problem}; give --sidecar if it holds reports of that release")
    if sidecar is not None:  # of another file with the same reports, of the format that its suffix says
        file_format, packed = suffix_format(path), path.suffix.lower() == ".gz"
        if written.file_format == file_format:
            written = replace(written, unpack=packed, pack=packed)
        else:
            text = file_format in ("csv", "tsv")
            delimiter, markers = "\t" if file_format == "tsv" else ",", written.markers if text else ()
            written = Layout(file_format, delimiter, multiline=text, unpack=packed, pack=packed, markers=markers)
    return release, open_source(path, written)


def check_groups(release: JsonObject, names: Sequence[str], where: object, group_column: str | None) -> None:
    """Refuse groups by a column that is perturbed, or that is not there once."""
    if group_column is not None:
        if group_column in [record["column"] for record in release["columns"]]:
            raise click.UsageError(
                f"--by: {group_column!r} is perturbed; groups are of columns that were copied as they are"
            )
        if list(names).count(group_column) != 1:
            raise click.UsageError(f"--by: {where} has {list(names).count(group_column)} columns {group_column!r}")


def select_column(release: JsonObject, columns: Sequence[str], where: object, column: str | None) -> JsonObject:
    """Return the column of a sidecar that is estimated, which may be None where there is only one."""
    records = {record["column"]: record for record in release["columns"]}
    if column is None and len(records) == 1:
        column = next(iter(records))
    names = ", ".join(map(title, records))
    if column is None and None not in records:
        raise click.UsageError(f"--column: missing; the perturbed columns are {names}")
    if column not in records:
        reason = "was copied as it is" if column in columns else "is not there"
        raise click.UsageError(f"--column: {column!r} {reason}; the perturbed columns are {names}")
    if column is None and columns:
        raise ValueError(f"{where}: has columns, but the sidecar is that of an array, which has none")
    if column is not None and list(columns).count(column) != 1:
        raise ValueError(f"{where}: has {list(columns).count(column)} columns {column!r}")
    return records[column]


def _indices(source: Source, chunk: object, name: str | None, start: int, channel: Channel, keep: bool) -> np.ndarray:
    """Return the index of every report among the channel's; -1 where it is missing."""
    try:
        numbers = source.numbers(chunk, name, start)
        is_present = np.ones(len(numbers.values), bool) if numbers.missing is None else ~numbers.missing
        if not keep and not is_present.all():
            position = source.position(chunk, start + int(is_present.argmin()), start)
            raise ValueError(f"{position} is missing; the release kept none")
        indices = np.full(len(is_present), -1, np.int64)
        indices[is_present] = report_indices(channel, numbers.values[is_present])
        return indices
    except ReportError as error:
        row = int(np.flatnonzero(is_present)[error.row])
        reason = private(error.reason, "is no report of this release")
        raise ValueError(f"{label(name)}{source.position(chunk, start + row, start)} {reason}") from error
    except ValueError as error:
        raise ValueError(label(name) + error_text(error)) from error


_QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class EstimateOptions:
    """The quantities to estimate, and the assumptions about the values."""

    quantiles: tuple[float, ...] | None  # None for the usual ones, of groups that have enough reports
    histogram: int | None  # the number of bins
    confidence: float  # of every interval
    atoms: tuple[date | float, ...] | None  # places of point masses
    grid: float | None  # the distance between possible values; None if values may lie between
    assume: str  # what intervals assume, as of ``dpkernels.estimate``

    def __post_init__(self) -> None:
        with usage_errors():
            checks.within("--quantiles", self.quantiles or 0.5, 0.0, 1.0, open_ends=True)
            checks.within("--confidence", self.confidence, 0.0, 1.0, open_ends=True)
            if self.histogram is not None:
                checks.integer_in("--histogram", self.histogram, 1, 1024)


class EstimateRow(NamedTuple):
    """The estimates of one group."""

    record: JsonObject  # in JSON: the group, its reports, and every estimate with its interval or why there is none
    estimate: Estimate | None  # None if there are no reports
    error: ValueError | None  # the first of the estimates that were asked for


@dataclass(frozen=True)
class Estimates:
    """The estimates of every group of a release."""

    counted: CountedGroups
    options: EstimateOptions
    rows: list[EstimateRow]

    @property
    def assumption(self) -> str | None:
        """Return a sentence on what the intervals assume; for groups it names no places, which differ."""
        answer = next((row.estimate for row in self.rows if row.record["distribution"] is not None), None)
        if answer is not None and self.counted.selection.group_column is not None and self.options.assume == "smooth":
            smooth = "a smooth density, with point masses where it has them"
            return f"Intervals assume that the values of a group have {smooth}."
        return None if answer is None else answer.assumption

    def to_dict(self) -> dict[str, object]:
        selection = self.counted.selection
        return {
            "column": selection.column,
            "by": selection.group_column,
            "mechanism": selection.mechanism,
            "epsilon": selection.epsilon,
            "values": [selection.channel.lower, selection.channel.upper],
            **({} if selection.date_origin is None else {"date_origin": selection.date_origin.isoformat()}),
            "clipped": selection.clip,
            "missing": self.counted.missing,
            "confidence": self.options.confidence,
            "assumption": self.assumption,
            "estimates": [row.record for row in self.rows],
        }

    def __str__(self) -> str:
        selection, records = self.counted.selection, [row.record for row in self.rows]
        origin, ends = selection.date_origin, [selection.channel.lower, selection.channel.upper]
        values = f"[{', '.join(shortest(end) if origin is None else date_text(end, origin) for end in ends)}]"
        count = f"{sum(record['reports'] for record in records):,}"
        mechanism = f"the mechanism {display_name(selection.mechanism)} at epsilon {selection.epsilon:.6g}"
        clipped = "; values outside were clipped" if selection.clip else ""
        lines = [f"{title(selection.column)}: {count} reports of {mechanism}, values in {values}{clipped}"]
        lines += [] if origin is None else [f"Values are days since {origin}, printed as dates."]
        lines += [f"{self.counted.missing:,} rows without a report"] if self.counted.missing else []
        if selection.group_column is None and records[0]["distribution"] is not None:
            lines.append(f"Distribution: {records[0]['distribution']}.")
        chance = f"Each single interval contains its true value with probability {100 * self.options.confidence:.6g} %."
        lines += [self.assumption, chance] if self.assumption else []
        group_heading = [] if selection.group_column is None else [display_name(selection.group_column)]
        interval = f"{100 * self.options.confidence:.6g} % interval"
        numbers, histograms = [[*group_heading, "reports", "", "estimate", interval]], list[str]()
        for record in records:
            group = [group_title(record["group"])] if group_heading else []
            first = [*group, f"{record['reports']:,}"]
            for name, value in record.items():
                if isinstance(value, dict):
                    day = None if name == "standard_deviation" else origin
                    unit = " in days" if origin is not None and day is None else ""
                    answer = _estimate_cells(value["value"], value.get("interval", ()), value.get("why", ""), day)
                    numbers.append([*first, name.replace("_", " ") + unit, *answer])
                    first = [""] * len(first)
                elif isinstance(value, list):
                    cells = [[*group_heading, "from", "to", "share", interval, "number", interval]]
                    for entry in value:
                        lower, upper, fraction, low, high, number, low_count, high_count = list(entry.values())[:8]
                        share_cells = [f"{fraction:.4f}", f"{low:.4f} to {high:.4f}"]
                        count_cells = [f"{number:,.0f}", f"{low_count:,.0f} to {high_count:,.0f}"]
                        edges = [_edge_text(edge, origin) for edge in (lower, upper)]
                        cells.append([*group, *edges, *share_cells, *count_cells])
                    histograms += ["", *aligned(cells)]
        return "\n".join([*lines, "", *aligned(numbers), *histograms])

    def plot(self, target: Path) -> None:
        selection = self.counted.selection
        prefix = "" if selection.group_column is None else f"{display_name(selection.group_column)} "
        titles = [prefix and prefix + group_title(row.record["group"]) for row in self.rows]
        drawn = {name: row.estimate for name, row in zip(titles, self.rows, strict=True) if row.estimate is not None}
        origin, channel = selection.date_origin, selection.channel
        ticks = [] if origin is None else date_ticks(channel.lower, channel.upper, origin)
        unit = f", days since {origin}" if origin is not None and not ticks else ""
        name, options = title(selection.column) + unit, self.options
        save_plots(drawn, target, options.confidence, bins=options.histogram, label=name, ticks=ticks)


def _edge_text(edge: float, origin: date | None) -> str:
    return format_number(edge) if origin is None else date_text(edge, origin)


def _estimate_cells(value: float | None, interval: Sequence[float], why: str, origin: date | None) -> list[str]:
    if value is None:
        return ["-", why.partition(",")[0].partition(": ")[0]]
    if origin is None:
        return [format_number(value), " to ".join(map(format_number, interval))]
    low, high = interval
    return [date_text(value, origin), f"{date_text(math.floor(low), origin)} to {date_text(math.ceil(high), origin)}"]


def group_title(group: str | None) -> str:
    """Return the name of a group for a terminal."""
    return "(null)" if group is None else display_name(group)


def check_panels(counted: CountedGroups) -> None:
    """Refuse, before the work, to draw more groups than a picture can show."""
    count = sum(counts.total > 0 for counts in counted.groups.values())
    if count > MAX_PANELS:
        raise click.UsageError(f"--plot: {count} groups; at most {MAX_PANELS} are drawn")


def estimates(counted: CountedGroups, settings: EstimateOptions) -> Estimates:
    """Estimate from counted reports; it is an error if no group has enough of them for the options."""
    origin = counted.selection.date_origin
    atoms = tuple(_in_days(atom, origin, "--atoms") for atom in settings.atoms or ())
    rows = [_row(group, counts, settings, atoms, origin) for group, counts in counted.groups.items()]
    if all(row.error is not None for row in rows):
        group_column, message = (
            counted.selection.group_column,
            next(error_text(row.error) for row in rows if row.error is not None),
        )
        group = private(group_title(rows[0].record["group"]), "of the first group")
        where = "" if group_column is None else f"--by: no group can answer; {group_column} {group}: "
        raise ValueError(where + ("--quantiles: " if message.startswith("p: ") else "") + message.removeprefix("p: "))
    return Estimates(counted, settings, rows)


def _row(
    group: str | None, counts: Counts, settings: EstimateOptions, atoms: Sequence[float], origin: date | None
) -> EstimateRow:
    """Return every estimate of one group that its reports allow.

    The standard deviation and the default quantiles are left out if there are too few reports; no other may fail.
    """
    record: JsonObject = {"group": group, "reports": int(counts.total), "distribution": None}
    if not counts.total:
        record["mean"] = {"value": None, "why": "no report"}
        return EstimateRow(record, None, ValueError("reports: there is none"))
    with usage_errors("--"):
        answer = estimate(counts, atoms=atoms, grid=settings.grid, assume=settings.assume)
    with suppress(ValueError):  # Otherwise the mean is all that the reports have information on.
        record["distribution"] = answer.model
    quantiles = {f"quantile_{shortest(p)}": partial(answer.quantile, p) for p in settings.quantiles or _QUANTILES}
    optional = {"standard_deviation", *(quantiles if settings.quantiles is None else ())}
    quantities: dict[str, Callable[[], Any]] = {
        "mean": lambda: answer.mean,
        "standard_deviation": lambda: answer.standard_deviation,
        **quantiles,
        **({} if settings.histogram is None else {"histogram": partial(answer.histogram, settings.histogram)}),
    }
    first = None
    for name, compute in quantities.items():
        try:
            result = compute()
            if name == "histogram":
                record[name] = [_with_dates(entry, origin) for entry in _bins(result, settings.confidence)]
            else:
                ends = [float(end) for end in result.interval(settings.confidence)]
                record[name] = {"value": float(result.value), "interval": ends}
                if origin is not None and name != "standard_deviation":
                    days = math.floor(ends[0]), math.ceil(ends[1])
                    dates = [iso_date(day, origin) for day in days]
                    record[name] |= {"date": iso_date(float(result.value), origin), "date_interval": dates}
        except ValueError as error:
            why = public(error_text(error)).partition(": ")[2]  # without the library's argument
            record[name] = {"value": None, "why": why}
            if name not in optional:
                first = first or error
    return EstimateRow(record, answer, first)


def _with_dates(entry: JsonObject, origin: date | None) -> dict[str, object]:
    """Return a bin of a histogram, of a column of dates with the dates of its edges."""
    if origin is None:
        return entry
    return entry | {f"{edge}_date": iso_date(entry[edge], origin) for edge in ("lower", "upper")}


def _bins(histogram: Any, confidence: float) -> list[dict[str, float]]:
    names = ("lower", "upper", "share", "share_low", "share_high", "count", "count_low", "count_high")
    columns = [histogram.edges[:-1], histogram.edges[1:]]
    for functional in (histogram.shares, histogram.counts):
        columns += [functional.value, *functional.interval(confidence)]
    return [dict(zip(names, map(float, row), strict=True)) for row in zip(*columns, strict=True)]
