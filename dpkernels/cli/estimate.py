"""``dpkernels estimate``: reports are counted by value and group, and estimates are made of the counts.

A file is read once, and memory does not grow with it. Counts of several files are added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpkernels import checks
from dpkernels.cli.errors import text_of
from dpkernels.cli.files.formats import Source, ahead
from dpkernels.cli.files.layout import Layout, known_format
from dpkernels.cli.files.opening import open_source
from dpkernels.cli.interrupts import stop_if_asked
from dpkernels.cli.options import usage_errors
from dpkernels.cli.release.output import digest, sidecar_path
from dpkernels.cli.release.sidecar import label, read_sidecar, title
from dpkernels.cli.terminal import private, public
from dpkernels.cli.text import aligned, shown
from dpkernels.decimals import shortest
from dpkernels.estimation.channel import Channel, channel_of
from dpkernels.estimation.counts import Counts, ReportError, codes
from dpkernels.estimation.estimate import MOST_PANELS, Estimate, estimate, save_plots
from dpkernels.estimation.intervals import shown as number_text
from dpkernels.exact.certificate import CertificateError


def groups_of(source: Source, piece: Any, by: str | None) -> tuple[np.ndarray, list[str | None]]:
    """Return the group of every row of a piece, and the groups' names.

    Different cells have different names, and null has None. Bytes that are not UTF-8 become lone surrogates, as in the
    names of files. Times are written with all their digits.
    """
    if by is None:
        return np.zeros(0, np.int64), [None]
    cells = source.labels(piece, by)
    if pa.types.is_dictionary(cells.type):  # whose dictionary may hold a value twice
        cells = cells.cast(cells.type.value_type)
    encoded = pc.dictionary_encode(cells, null_encoding="encode")
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    groups, cells, kind = encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary, cells.type
    unit = f" {kind.unit}" if pa.types.is_duration(kind) else ""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        cells = cells.cast(pa.large_binary())
    elif pa.types.is_duration(kind):
        cells = cells.cast(pa.int64())
    elif pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            cells = cells.cast(pa.timestamp(kind.unit, "UTC"))
        elif pa.types.is_date64(kind):
            cells = cells.cast(pa.timestamp("ms"))
        cells = cells.cast(pa.string())
    texts = [cell.decode(errors="surrogateescape") if isinstance(cell, bytes) else cell for cell in cells.to_pylist()]
    names = [None if text is None else f"{text}{unit}" for text in texts]
    if len(set(names)) < len(names):
        raise ValueError(f"--by: different cells of {kind} read alike; make them texts")
    return groups.astype(np.int64), names


def _rank(cell: str | None) -> tuple[int, float, str]:
    """Return a sort key: numbers by size, then other texts, then null."""
    try:
        number = math.nan if cell is None else float(cell)
    except ValueError:
        number = math.nan
    return (0, number, cell or "") if not math.isnan(number) else (1 + (cell is None), 0.0, cell or "")


# Counts of all groups together, eight bytes each.
_MOST_COUNTS = 1 << 25


class Tallied(NamedTuple):
    """Reports of one file or part."""

    groups: dict[str | None, np.ndarray]  # how often each report of the channel is in each group, named as in ``Read``
    missing: int  # rows without a report


@dataclass(frozen=True)
class Wanted:
    """Which reports are counted; the same for every file of a release."""

    column: str | None  # None for an array
    by: str | None  # a column that was copied as it is, whose cells are groups
    mechanism: str
    epsilon: float
    channel: Channel  # of the mechanism
    keep: bool  # whether the release kept missing values
    clip: bool  # whether the release clipped values outside the interval

    @classmethod
    def of(
        cls,
        form: Mapping[str, Any],
        names: Sequence[str],
        where: Any,
        column: str | None,
        by: str | None,
        bounds: tuple[float, float] | None,
    ) -> Wanted:
        """Return what to count, by the JSON of a sidecar and the columns of the files, which errors call ``where``."""
        own, found = _column(form, names, where, column), list(names)
        if by is not None:
            if by in [one["column"] for one in form["columns"]]:
                raise click.UsageError(f"--by: {by!r} is perturbed; groups are of columns that were copied as they are")
            if found.count(by) != 1:
                raise click.UsageError(f"--by: {where} has {found.count(by)} columns {by!r}")
        try:
            channel = channel_of(form, column=own["column"], bounds=bounds)
        except CertificateError:
            raise
        except ValueError as error:
            message = text_of(error).replace("bounds:", "--lower, --upper:")
            if message.startswith("--lower, --upper: None"):
                message = (
                    "--lower and --upper: missing; additive noise needs the smallest and the largest value there can be"
                )
            raise click.UsageError(f"{label(own['column'])}{message}") from error
        epsilon, keep = float(own["certificate"]["epsilon"]), form.get("missing") == "keep"
        return cls(own["column"], by, own["mechanism"], epsilon, channel, keep, bool(form.get("clip")))


@dataclass(frozen=True)
class Read:
    """Counted reports of a release."""

    wanted: Wanted
    groups: dict[str | None, Counts]  # sorted; named by cells, None for null or without a column; may have no report
    missing: int  # rows without a report

    @classmethod
    def of(cls, wanted: Wanted, parts: Iterable[Tallied], where: Any) -> Read:
        groups, missing = dict[str | None, Counts](), 0
        for part in parts:
            missing += part.missing
            _check_few(groups.keys() | part.groups.keys(), wanted)
            for cell, numbers in part.groups.items():
                groups.setdefault(cell, Counts(wanted.channel)).numbers += numbers
        if not any(counts.total for counts in groups.values()):
            raise ValueError(f"{where}: holds no report; there is nothing to estimate from")
        return cls(wanted, {cell: groups[cell] for cell in sorted(groups, key=_rank)}, missing)


def read(
    path: Path, sidecar: Path | None, column: str | None, by: str | None, bounds: tuple[float, float] | None
) -> Read:
    """Count the reports of a column of one file, in groups by the cells of another column, ``by``, which was copied.

    Without a sidecar it is the one beside the file, whose hash must be the file's. ``column`` may be None where there
    is only one, and ``bounds`` are for additive noise.
    """
    place = sidecar_path(path) if sidecar is None else sidecar
    if not place.is_file():
        raise click.UsageError(f"--sidecar: missing; {place}, which `dpkernels perturb` writes, is not there")
    form, _ = read_sidecar(place)
    try:
        written = Layout.from_dict(form["layout"])
    except ValueError as error:
        raise CertificateError(f"{place}: is not the sidecar of a release; {text_of(error)}") from error
    if sidecar is None and "parts" in form["output"]:
        raise ValueError(f"{place}: is the sidecar of a release of many files; REPORTS is then their folder")
    if sidecar is None and form["output"]["sha256"] != digest(path):
        raise CertificateError(
            f"{path}: is not the file that {place} was written with; give --sidecar if it holds reports of that release"
        )
    if sidecar is not None:  # of another file with the same reports, of the format that its suffix says
        format_, packed = known_format(path), path.suffix.lower() == ".gz"
        if written.kind == format_:
            written = replace(written, unpack=packed, pack=packed)
        else:
            text = format_ in ("csv", "tsv")
            written = Layout(format_, "\t" if format_ == "tsv" else ",", multiline=text, unpack=packed, pack=packed)
    source = open_source(path, written)
    wanted = Wanted.of(form, source.names, path, column, by, bounds)
    return Read.of(wanted, [tallied(source, wanted)], path)


def _column(form: Mapping[str, Any], found: Sequence[str], where: Any, column: str | None) -> Mapping[str, Any]:
    each = {one["column"]: one for one in form["columns"]}
    if column is None and len(each) == 1:
        column = next(iter(each))
    names = ", ".join(map(title, each))
    if column is None and None not in each:
        raise click.UsageError(f"--column: missing; the perturbed columns are {names}")
    if column not in each:
        known = "was copied as it is" if column in found else "is not there"
        raise click.UsageError(f"--column: {column!r} {known}; the perturbed columns are {names}")
    if column is None and found:
        raise ValueError(f"{where}: has columns, but the sidecar is that of an array, which has none")
    if column is not None and list(found).count(column) != 1:
        raise ValueError(f"{where}: has {list(found).count(column)} columns {column!r}")
    return each[column]


def tallied(source: Source, wanted: Wanted, row: int = 0) -> Tallied:
    """Count one source, which begins with that row of its file."""
    name, by, channel = wanted.column, wanted.by, wanted.channel
    groups: dict[str | None, np.ndarray] = {}
    start, missing, width = row, 0, len(channel.written)
    chosen = [name] if by is None else [name, by]
    with closing(ahead(source.pieces(chosen))) as pieces:
        for piece in pieces:
            found = _reports(source, piece, name, start, channel, wanted.keep)
            missing += int((found < 0).sum())
            local, cells = groups_of(source, piece, by)
            _check_few(groups.keys() | set(cells), wanted)
            here = found >= 0
            index = (local[here] if by is not None else 0) * width + found[here]
            numbers = np.bincount(index, minlength=len(cells) * width).reshape(len(cells), -1)
            for cell, more in zip(cells, numbers, strict=True):
                groups.setdefault(cell, np.zeros(width, np.int64))[:] += more
            start += len(piece)
            stop_if_asked()
    return Tallied(groups, missing)


def _check_few(cells: Collection[str | None], wanted: Wanted) -> None:
    if len(cells) * len(wanted.channel.written) > _MOST_COUNTS:
        raise click.UsageError(f"--by: {wanted.by!r} has too many groups to be counted by report; is it an identifier?")


def _reports(source: Source, piece: Any, name: str | None, start: int, channel: Channel, keep: bool) -> np.ndarray:
    """Return the index of every report among the channel's; -1 where it is missing."""
    try:
        found = source.numbers(piece, name, start)
        there = np.ones(len(found.values), bool) if found.missing is None else ~found.missing
        if not keep and not there.all():
            place = source.place(piece, start + int(there.argmin()), start)
            raise ValueError(f"{place} is missing; the release kept none")
        places = np.full(len(there), -1, np.int64)
        places[there] = codes(channel, found.values[there])
        return places
    except ReportError as error:
        row = int(np.flatnonzero(there)[error.row])
        reason = private(error.reason, "is no report of this release")
        raise ValueError(f"{label(name)}{source.place(piece, start + row, start)} {reason}") from error
    except ValueError as error:
        raise ValueError(label(name) + text_of(error)) from error


_QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class EstimateOptions:
    """The quantities to estimate, and the assumptions about the values."""

    quantiles: tuple[float, ...] | None  # None for the usual ones, of groups that have enough reports
    histogram: int | None  # the number of bins
    confidence: float  # of every interval
    atoms: tuple[float, ...] | None  # places of point masses
    grid: float | None  # the distance between possible values; None if values may lie between
    assume: str  # what intervals assume, as of ``dpkernels.estimate``

    def __post_init__(self) -> None:
        with usage_errors():
            checks.within("--quantiles", self.quantiles or 0.5, 0.0, 1.0, open_ends=True)
            checks.within("--confidence", self.confidence, 0.0, 1.0, open_ends=True)
            if self.histogram is not None:
                checks.whole("--histogram", self.histogram, 1, 1024)


class EstimateRow(NamedTuple):
    """The estimates of one group."""

    form: dict[str, Any]  # in JSON: the group, its reports, and every estimate with its interval or why there is none
    made: Estimate | None  # None if there are no reports
    error: ValueError | None  # the first of the estimates that were asked for


@dataclass(frozen=True)
class Estimates:
    """The estimates of every group of a release."""

    found: Read
    asked: EstimateOptions
    rows: list[EstimateRow]

    @property
    def assumption(self) -> str | None:
        """Return a sentence on what the intervals assume; for groups it names no places, which differ."""
        made = next((row.made for row in self.rows if row.form["distribution"] is not None), None)
        if made is not None and self.found.wanted.by is not None and self.asked.assume == "smooth":
            smooth = "a smooth density, with point masses where it has them"
            return f"Intervals assume that the values of a group have {smooth}."
        return None if made is None else made.assumption

    def to_dict(self) -> dict[str, Any]:
        wanted = self.found.wanted
        return {
            "column": wanted.column,
            "by": wanted.by,
            "mechanism": wanted.mechanism,
            "epsilon": wanted.epsilon,
            "values": [wanted.channel.lower, wanted.channel.upper],
            "clipped": wanted.clip,
            "missing": self.found.missing,
            "confidence": self.asked.confidence,
            "assumption": self.assumption,
            "estimates": [row.form for row in self.rows],
        }

    def __str__(self) -> str:
        wanted, forms = self.found.wanted, [row.form for row in self.rows]
        ends = f"[{shortest(wanted.channel.lower)}, {shortest(wanted.channel.upper)}]"
        count = f"{sum(form['reports'] for form in forms):,}"
        made = f"{count} reports of {shown(wanted.mechanism)} at epsilon {wanted.epsilon:.6g}"
        clipped = "; values outside were clipped" if wanted.clip else ""
        lines = [f"{title(wanted.column)}: {made}, values in {ends}{clipped}"]
        lines += [f"{self.found.missing:,} rows without a report"] if self.found.missing else []
        if wanted.by is None and forms[0]["distribution"] is not None:
            lines.append(f"Distribution: {forms[0]['distribution']}.")
        lines += [self.assumption] if self.assumption else []
        by = [] if wanted.by is None else [shown(wanted.by)]
        interval = f"{100 * self.asked.confidence:.6g} % interval"
        numbers, histograms = [[*by, "reports", "", "estimate", interval]], list[str]()
        for form in forms:
            group = [_group_title(form["group"])] if by else []
            first = [*group, f"{form['reports']:,}"]
            for name, one in form.items():
                if isinstance(one, dict):
                    numbers.append([*first, name.replace("_", " "), *_cells(**one)])
                    first = [""] * len(first)
                elif isinstance(one, list):
                    cells = [[*by, "from", "to", "share", interval, "number", interval]]
                    for each in one:
                        lower, upper, share, low, high, number, least, most = each.values()
                        shares = [f"{share:.4f}", f"{low:.4f} to {high:.4f}"]
                        counts = [f"{number:,.0f}", f"{least:,.0f} to {most:,.0f}"]
                        cells.append([*group, number_text(lower), number_text(upper), *shares, *counts])
                    histograms += ["", *aligned(cells)]
        return "\n".join([*lines, "", *aligned(numbers), *histograms])

    def plot(self, target: Path) -> None:
        wanted = self.found.wanted
        by = "" if wanted.by is None else f"{shown(wanted.by)} "
        made = {by and by + _group_title(row.form["group"]): row.made for row in self.rows if row.made is not None}
        save_plots(made, target, self.asked.confidence, bins=self.asked.histogram, label=title(wanted.column))


def _cells(value: float | None, interval: Sequence[float] = (), why: str = "") -> list[str]:
    if value is None:
        return ["-", why.partition(",")[0].partition(": ")[0]]
    return [number_text(value), " to ".join(map(number_text, interval))]


def _group_title(group: str | None) -> str:
    return "(null)" if group is None else shown(group)


def check_panels(found: Read) -> None:
    """Refuse, before the work, to draw more groups than a picture can show."""
    count = sum(counts.total > 0 for counts in found.groups.values())
    if count > MOST_PANELS:
        raise click.UsageError(f"--plot: {count} groups; at most {MOST_PANELS} are drawn")


def estimates(found: Read, asked: EstimateOptions) -> Estimates:
    """Estimate from counted reports; it is an error if no group has enough of them for the options."""
    rows = [_row(group, counts, asked) for group, counts in found.groups.items()]
    if all(row.error is not None for row in rows):
        by, message = found.wanted.by, next(text_of(row.error) for row in rows if row.error is not None)
        group = private(_group_title(rows[0].form["group"]), "of the first group")
        where = "" if by is None else f"--by: no group can answer; {by} {group}: "
        raise ValueError(where + ("--quantiles: " if message.startswith("p: ") else "") + message.removeprefix("p: "))
    return Estimates(found, asked, rows)


def _row(group: str | None, counts: Counts, asked: EstimateOptions) -> EstimateRow:
    """Return every estimate of one group that its reports allow.

    The standard deviation and the default quantiles are left out if there are too few reports; no other may fail.
    """
    form: dict[str, Any] = {"group": group, "reports": int(counts.total), "distribution": None}
    if not counts.total:
        form["mean"] = {"value": None, "why": "no report"}
        return EstimateRow(form, None, ValueError("reports: there is none"))
    with usage_errors("--"):
        made = estimate(counts, atoms=asked.atoms or (), grid=asked.grid, assume=asked.assume)
    with suppress(ValueError):  # Otherwise the mean is all that the reports have information on.
        form["distribution"] = made.model
    quantiles = {f"quantile_{shortest(p)}": partial(made.quantile, p) for p in asked.quantiles or _QUANTILES}
    optional = {"standard_deviation", *(quantiles if asked.quantiles is None else ())}
    asks: dict[str, Callable[[], Any]] = {
        "mean": lambda: made.mean,
        "standard_deviation": lambda: made.standard_deviation,
        **quantiles,
        **({} if asked.histogram is None else {"histogram": partial(made.histogram, asked.histogram)}),
    }
    first = None
    for name, ask in asks.items():
        try:
            found = ask()
            if name == "histogram":
                form[name] = _bins(found, asked.confidence)
            else:
                ends = [float(end) for end in found.interval(asked.confidence)]
                form[name] = {"value": float(found.value), "interval": ends}
        except ValueError as error:
            why = public(text_of(error)).partition(": ")[2]  # without the library's argument
            form[name] = {"value": None, "why": why}
            if name not in optional:
                first = first or error
    return EstimateRow(form, made, first)


def _bins(histogram: Any, confidence: float) -> list[dict[str, float]]:
    names = ("lower", "upper", "share", "share_low", "share_high", "count", "count_low", "count_high")
    columns = [histogram.edges[:-1], histogram.edges[1:]]
    for one in (histogram.shares, histogram.counts):
        columns += [one.value, *one.interval(confidence)]
    return [dict(zip(names, map(float, row), strict=True)) for row in zip(*columns, strict=True)]
