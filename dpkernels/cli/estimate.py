"""``dpkernels estimate``: reports are counted by value and group, and estimates are made of the counts.

The sidecar says what made the reports. A file is read once, and memory does not grow with it. Counts of several files
are added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpkernels import checks
from dpkernels.bounded_json import parse_json, read_text
from dpkernels.cli.files.formats import Source, ahead
from dpkernels.cli.files.layout import Layout, known_format
from dpkernels.cli.files.opening import open_source
from dpkernels.cli.interrupts import stop_if_asked
from dpkernels.cli.release.output import digest, own_sidecar
from dpkernels.cli.release.rows import label
from dpkernels.cli.release.sidecar import check_fields, title
from dpkernels.cli.text import aligned, shown
from dpkernels.decimals import shortest
from dpkernels.estimation.channel import Channel
from dpkernels.estimation.counts import Counts, ReportError, codes
from dpkernels.estimation.estimate import Estimate, estimate
from dpkernels.estimation.intervals import shown as number_text
from dpkernels.estimation.plot import MOST_PANELS, save_plots
from dpkernels.estimation.sources import channel_of
from dpkernels.exact.certificate import CertificateError


def groups_of(source: Source, piece: Any, by: str | None) -> tuple[np.ndarray, list[str | None]]:
    """Return the group of every row of a piece, and the groups' cells."""
    if by is None:
        return np.zeros(0, np.int64), [None]
    cells = source.labels(piece, by)
    if pa.types.is_dictionary(cells.type):  # whose dictionary may hold a value twice
        cells = cells.cast(cells.type.value_type)
    encoded = pc.dictionary_encode(cells, null_encoding="encode")
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), _group_names(encoded.dictionary)


def _group_names(cells: Any) -> list[str | None]:
    """Return the names of groups: different cells have different names, and null has None.

    Bytes that are not UTF-8 become lone surrogates, as in the names of files. Times are written with all their digits,
    which Python's own types do not hold.
    """
    kind = cells.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        cells = cells.cast(pa.large_binary())
    elif pa.types.is_timestamp(kind) and kind.tz is not None:
        cells = cells.cast(pa.timestamp(kind.unit, "UTC")).cast(pa.string())
    elif pa.types.is_duration(kind):
        return [None if count is None else f"{count} {kind.unit}" for count in cells.cast(pa.int64()).to_pylist()]
    elif pa.types.is_date64(kind):
        cells = cells.cast(pa.timestamp("ms")).cast(pa.string())
    elif pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        cells = cells.cast(pa.string())
    names = [_cell_text(cell) for cell in cells.to_pylist()]
    if len(set(names)) < len(names):
        raise ValueError(f"--by: different cells of {kind} read alike; make them texts")
    return names


def _cell_text(cell: Any) -> str | None:
    if isinstance(cell, bytes):
        return cell.decode(errors="surrogateescape")
    return None if cell is None else str(cell)


def ordered(cell: str | None) -> tuple[int, float, str]:
    """Numbers by size, then other texts, then null: the same order, whichever part comes first."""
    if cell is None:
        return 2, 0.0, ""
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    return (1, 0.0, cell) if math.isnan(number) else (0, number, cell)


# Counts of all groups together, eight bytes each.
_MOST_COUNTS = 1 << 25


@dataclass(frozen=True)
class Tallied:
    """Reports of one file or part.

    Attributes:
        groups: of every cell of the column of groups, as ``groups`` names it, how often each report of the
            channel is there; of None where there is no such column, and of the cells that are null.
        missing: rows without a report.
    """

    groups: dict[str | None, np.ndarray]
    missing: int


@dataclass(frozen=True)
class Wanted:
    """Which reports are counted; the same for every file of a release.

    Attributes:
        column: the column's name; None for an array.
        by: a column that was copied as it is, whose cells are groups.
        mechanism: the mechanism's name.
        epsilon: its budget.
        channel: what the mechanism makes of inputs.
        keep: whether the release kept missing values.
        clip: whether the release clipped values outside the interval.
    """

    column: str | None
    by: str | None
    mechanism: str
    epsilon: float
    channel: Channel
    keep: bool
    clip: bool

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
        """Args are a sidecar's JSON, the columns that files have, how errors name these, and those of ``estimates``."""
        own = _column(form, names, where, column)
        if by is not None:
            _check_groups(form, names, where, by)
        try:
            channel = channel_of(form, column=own["column"], bounds=bounds)
        except CertificateError:
            raise
        except ValueError as error:
            raise click.UsageError(f"{label(own['column'])}{_as_options(str(error))}") from error
        epsilon, keep = float(own["certificate"]["epsilon"]), form.get("missing") == "keep"
        return cls(own["column"], by, own["mechanism"], epsilon, channel, keep, bool(form.get("clip")))


@dataclass(frozen=True)
class Read:
    """Counted reports of a release.

    Attributes:
        wanted: which.
        groups: counts by group, in the order of these; a group may have no report.
        missing: rows without a report.
    """

    wanted: Wanted
    groups: dict[str | None, Counts]
    missing: int

    @classmethod
    def of(cls, wanted: Wanted, parts: Iterable[Tallied], where: Any) -> Read:
        """Join what was counted, one after the other; ``where`` is how errors name the release.

        Raises:
            click.UsageError: too many groups.
            ValueError: no report.
        """
        groups, missing = dict[str | None, Counts](), 0
        for part in parts:
            missing += part.missing
            _check_few(groups.keys() | part.groups.keys(), wanted)
            for cell, numbers in part.groups.items():
                groups.setdefault(cell, Counts(wanted.channel)).numbers += numbers
        if not any(counts.total for counts in groups.values()):
            raise ValueError(f"{where}: holds no report; there is nothing to estimate from")
        return cls(wanted, {cell: groups[cell] for cell in sorted(groups, key=ordered)}, missing)


def read(
    path: Path, sidecar: Path | None, column: str | None, by: str | None, bounds: tuple[float, float] | None
) -> Read:
    """Count the reports of a column of one file.

    Args:
        path: the file of reports.
        sidecar: its sidecar; None for the one beside it, whose hash must be the file's.
        column: the perturbed column; None where there is one only.
        by: a column that was copied as it is, whose cells are groups.
        bounds: smallest and largest value, of additive noise.

    Raises:
        click.UsageError: a wrong option or argument.
        CertificateError: the sidecar's tables do not have what it claims.
        ValueError: not a sidecar, or another file's; no readable file; a number that is no report of the mechanism,
            with its row; no report.
    """
    form, source = _opened(path, sidecar)
    wanted = Wanted.of(form, source.names, path, column, by, bounds)
    return Read.of(wanted, [tallied(source, wanted)], path)


def _opened(path: Path, given: Path | None) -> tuple[dict[str, Any], Source]:
    """Return what a sidecar holds, and the file as it says that it is written."""
    place = path.with_name(path.name + ".json") if given is None else given
    if not place.is_file():
        raise click.UsageError(f"--sidecar: missing; {place}, which `dpkernels perturb` writes, is not there")
    target = place.with_name(place.name.removesuffix(".json"))
    try:
        own = own_sidecar(target, read_text(place))
        if own is None:
            raise ValueError(f"a run to {target} was killed; its sidecar is there, its output is not")
        form = parse_json(own)
        check_fields(form)
        written = Layout.from_dict(form["layout"])
        if given is None and "parts" in form["output"]:
            raise ValueError("it is that of a release of many files; REPORTS is then their folder")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{place}: is not the sidecar of a release") from error
    except ValueError as error:
        raise ValueError(f"{place}: is not the sidecar of a release of one file; {error}") from error
    if given is None and form["output"]["sha256"] != digest(path):
        raise ValueError(
            f"{path}: is not the file that {place} was written with; give --sidecar if it holds reports of that release"
        )
    return form, open_source(path, _layout(path, written, is_own=given is None))


def _layout(path: Path, written: Layout, *, is_own: bool) -> Layout:
    """As the sidecar says; of another file with the same reports as its suffix says, cells separated likewise."""
    if is_own:
        return written
    kind, packed = known_format(path), path.suffix.lower() == ".gz"
    plain = Layout(kind, "\t" if kind == "tsv" else ",", multiline=kind in ("csv", "tsv"), unpack=packed, pack=packed)
    if written.kind != kind:
        return plain
    return replace(plain, delimiter=written.delimiter, multiline=written.multiline)


def _column(form: Mapping[str, Any], found: Sequence[str], where: Any, column: str | None) -> Mapping[str, Any]:
    """Return what the sidecar says of the column."""
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


def _check_groups(form: Mapping[str, Any], found: Sequence[str], where: Any, by: str) -> None:
    if by in [one["column"] for one in form["columns"]]:
        raise click.UsageError(f"--by: {by!r} is perturbed; groups are of columns that were copied as they are")
    if list(found).count(by) != 1:
        raise click.UsageError(f"--by: {where} has {list(found).count(by)} columns {by!r}")


def _as_options(message: str) -> str:
    """Return an error of the library in the words of the command."""
    if message.startswith("bounds: None"):
        return "--lower and --upper: missing; additive noise needs the smallest and the largest value there can be"
    return message.replace("bounds:", "--lower, --upper:")


def tallied(source: Source, wanted: Wanted, row: int = 0) -> Tallied:
    """Count one source, which begins with that row of its file.

    Raises:
        click.UsageError: too many groups.
        ValueError: a number that is no report of the mechanism, with its row; missing where the release kept none.
    """
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
    """Return the place of every report among the channel's; -1 where it is missing."""
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
        raise ValueError(f"{label(name)}{source.place(piece, start + row, start)} {error.reason}") from error
    except ValueError as error:
        raise ValueError(label(name) + str(error)) from error


_QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class EstimateOptions:
    """The quantities to estimate, and what is known of the values.

    Attributes:
        quantiles: shares; None for the usual ones, for groups that have enough reports.
        histogram: the number of bins; None for no histogram.
        confidence: of every interval.
        atoms: places of point masses.
        grid: the distance between possible values; None if values may lie between.
        assume: what intervals assume, as of ``dpkernels.estimate``.
    """

    quantiles: tuple[float, ...] | None
    histogram: int | None
    confidence: float
    atoms: tuple[float, ...] = ()
    grid: float | None = None
    assume: str = "nothing"

    def __post_init__(self) -> None:
        """Check the options before a file is read.

        Raises:
            click.UsageError: one is out of range.
        """
        try:
            checks.within("--quantiles", self.quantiles or 0.5, 0.0, 1.0, open_ends=True)
            checks.within("--confidence", self.confidence, 0.0, 1.0, open_ends=True)
            if self.histogram is not None:
                checks.whole("--histogram", self.histogram, 1, 1024)
        except ValueError as error:
            raise click.UsageError(str(error)) from error

    def estimate(self, counts: Counts) -> Estimate:
        """Return the estimate from counts.

        Raises:
            click.UsageError: the atoms or the grid do not fit the interval of the values.
        """
        try:
            return estimate(counts, atoms=self.atoms, grid=self.grid, assume=self.assume)
        except ValueError as error:
            raise click.UsageError("--" + str(error)) from error


@dataclass(frozen=True)
class EstimateRow:
    """What one group's reports say.

    Attributes:
        group: its cell in the column of groups; None for all rows, and for the cells that are null.
        reports: how many there are.
        numbers: estimates by name, each a value with its interval, or why there is none.
        bins: of a histogram: lower end, upper end, share with its interval, number with its interval.
        model: a description of the estimated distribution; None if the reports have no information on it.
    """

    group: str | None
    reports: int
    numbers: dict[str, tuple[float, float, float] | str]
    bins: list[tuple[float, ...]]
    model: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form."""
        form: dict[str, Any] = {"group": self.group, "reports": self.reports, "distribution": self.model}
        for name, one in self.numbers.items():
            stated = (
                {"value": one[0], "interval": list(one[1:])} if isinstance(one, tuple) else {"value": None, "why": one}
            )
            form[name] = stated
        if self.bins:
            names = ("lower", "upper", "share", "share_low", "share_high", "count", "count_low", "count_high")
            form["histogram"] = [dict(zip(names, one, strict=True)) for one in self.bins]
        return form


@dataclass(frozen=True)
class Estimates:
    """The outcome.

    Attributes:
        wanted: the column, its mechanism and its groups.
        missing: rows without a report.
        confidence: of every interval.
        assumption: a sentence on what the intervals assume.
        groups: the estimates of each group.
        made: the estimates of each group that has reports, to be drawn.
    """

    wanted: Wanted
    missing: int
    confidence: float
    assumption: str | None
    groups: list[EstimateRow]
    made: dict[str | None, Estimate]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON form."""
        wanted = self.wanted
        return {
            "column": wanted.column,
            "by": wanted.by,
            "mechanism": wanted.mechanism,
            "epsilon": wanted.epsilon,
            "values": [wanted.channel.lower, wanted.channel.upper],
            "clipped": wanted.clip,
            "missing": self.missing,
            "confidence": self.confidence,
            "assumption": self.assumption,
            "estimates": [one.to_dict() for one in self.groups],
        }

    def __str__(self) -> str:
        lines = [self._heading()]
        lines += [f"{self.missing:,} rows without a report"] if self.missing else []
        if self.wanted.by is None and self.groups[0].model is not None:
            lines.append(f"Distribution: {self.groups[0].model}.")
        lines += [self.assumption] if self.assumption else []
        lines += ["", *self._numbers()]
        for one in self.groups:
            lines += ["", *self._bins(one)] if one.bins else []
        return "\n".join(lines)

    def _heading(self) -> str:
        wanted, count = self.wanted, sum(one.reports for one in self.groups)
        ends = f"[{shortest(wanted.channel.lower)}, {shortest(wanted.channel.upper)}]"
        made = f"{count:,} reports of {shown(wanted.mechanism)} at epsilon {wanted.epsilon:.6g}"
        clipped = "; values outside were clipped" if wanted.clip else ""
        return f"{title(wanted.column)}: {made}, values in {ends}{clipped}"

    def plot(self, target: Path, bins: int | None) -> None:
        """Write the histogram and the cdf of each group as a .png."""
        named = {
            "" if self.wanted.by is None else f"{shown(self.wanted.by)} {_group_title(group)}": one
            for group, one in self.made.items()
        }
        save_plots(named, target, self.confidence, bins=bins, label=title(self.wanted.column))

    def _numbers(self) -> list[str]:
        heading = [*self._named("reports"), "", "estimate", f"{100 * self.confidence:.6g} % interval"]
        rows = [heading]
        for one in self.groups:
            first = [*self._group(one), f"{one.reports:,}"]
            for name, stated in one.numbers.items():
                if isinstance(stated, str):
                    cells = ["-", stated.partition(",")[0].partition(": ")[0]]
                else:
                    value, low, high = map(number_text, stated)
                    cells = [value, f"{low} to {high}"]
                rows.append([*first, name.replace("_", " "), *cells])
                first = [""] * len(first)
        return aligned(rows)

    def _bins(self, one: EstimateRow) -> list[str]:
        interval = f"{100 * self.confidence:.6g} % interval"
        rows = [[*self._named("from"), "to", "share", interval, "number", interval]]
        for lower, upper, share, low, high, number, least, most in one.bins:
            ends = [number_text(lower), number_text(upper)]
            shares = [f"{share:.4f}", f"{low:.4f} to {high:.4f}"]
            rows.append([*self._group(one), *ends, *shares, f"{number:,.0f}", f"{least:,.0f} to {most:,.0f}"])
        return aligned(rows)

    def _named(self, *rest: str) -> list[str]:
        return [*([] if self.wanted.by is None else [shown(self.wanted.by)]), *rest]

    def _group(self, one: EstimateRow) -> list[str]:
        return [] if self.wanted.by is None else [_group_title(one.group)]


def _group_title(group: str | None) -> str:
    return "(null)" if group is None else shown(group)


def check_panels(found: Read) -> None:
    """Refuse, before the work, to draw more groups than a picture can show.

    Raises:
        click.UsageError: there are too many groups.
    """
    count = sum(counts.total > 0 for counts in found.groups.values())
    if count > MOST_PANELS:
        raise click.UsageError(f"--plot: {count} groups; at most {MOST_PANELS} are drawn")


def estimates(found: Read, asked: EstimateOptions) -> Estimates:
    """Estimate from counted reports.

    Args:
        found: the reports of a release.
        asked: what is estimated of each group.

    Raises:
        ValueError: too few reports for what was asked, in every group.
    """
    wanted = found.wanted
    made = {group: asked.estimate(counts) for group, counts in found.groups.items() if counts.total}
    each = [(group, *_row_and_error(group, made.get(group), asked)) for group in found.groups]
    if all(error is not None for *_, error in each):
        group, _, error = each[0]
        where = "" if wanted.by is None else f"--by: no group can answer; {wanted.by} {_group_title(group)}: "
        raise ValueError(where + _as_quantile_option(str(error))) from error
    rows = [one for _, one, _ in each]
    one = next((one for group, one in made.items() if _row_of(group, rows).model is not None), None)
    assumption = _assumption(one, wanted, asked)
    return Estimates(wanted, found.missing, asked.confidence, assumption, rows, made)


def _row_of(group: str | None, rows: list[EstimateRow]) -> EstimateRow:
    return next(row for row in rows if row.group == group)


def _assumption(one: Estimate | None, wanted: Wanted, asked: EstimateOptions) -> str | None:
    """Return the sentence on what intervals assume; that of smooth groups names no places, which differ."""
    if one is None:
        return None
    if wanted.by is not None and asked.assume == "smooth":
        return "Intervals assume that the values of a group have a smooth density, with point masses where it has them."
    return one.assumption


def _row_and_error(
    group: str | None, made: Estimate | None, asked: EstimateOptions
) -> tuple[EstimateRow, ValueError | None]:
    """Return every estimate of one group that its reports allow; ``made`` is None for a group without reports.

    Returns:
        The numbers, and the first error of those that were asked for; the standard deviation and the default quantiles
        are printed where the reports tell them.
    """
    if made is None:
        return EstimateRow(group, 0, {"mean": "no report"}, []), ValueError("reports: there is none")
    try:
        model = made.model
    except ValueError:  # The mean is all that the reports have information on.
        model = None
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
    return EstimateRow(group, made.count, numbers, bins, model), errors[0] if errors else None


def _reason(error: ValueError) -> str:
    """Return the error without the argument of the library that it begins with."""
    return str(error).partition(": ")[2]


def _as_quantile_option(message: str) -> str:
    """Return an error of the library in the words of the command."""
    return f"--quantiles: {message.removeprefix('p: ')}" if message.startswith("p: ") else message


def _quantiles(made: Estimate, shares: tuple[float, ...]) -> dict[str, Callable[[], Any]]:
    return {f"quantile_{shortest(p)}": partial(made.quantile, p) for p in shares}


def _with_interval(found: Any, asked: EstimateOptions) -> tuple[float, float, float]:
    low, high = found.interval(asked.confidence)
    return float(found.value), float(low), float(high)


def _histogram(made: Estimate, asked: EstimateOptions) -> list[tuple[float, ...]]:
    if asked.histogram is None:
        return []
    found = made.histogram(asked.histogram)
    parts = [found.edges[:-1], found.edges[1:]]
    for one in (found.shares, found.counts):
        parts += [one.value, *one.interval(asked.confidence)]
    return [tuple(map(float, row)) for row in zip(*parts, strict=True)]
