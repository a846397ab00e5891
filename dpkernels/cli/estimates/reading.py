"""Reports of a released file, counted code by code and group by group; its sidecar says what made them.

The file is read once, and memory does not grow with it. Counts of several files are joined.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from dpkernels.cli.estimates.groups import groups_of, ordered
from dpkernels.cli.files.formats import Source, ahead, open_source
from dpkernels.cli.files.layout import Layout, known_format
from dpkernels.cli.interrupts import stop_if_asked
from dpkernels.cli.release.output import digest, own_sidecar
from dpkernels.cli.release.sidecar import title
from dpkernels.cli.release.sidecar_fields import check_fields
from dpkernels.cli.release.values import label
from dpkernels.estimation.channel import Channel
from dpkernels.estimation.counts import Counts, ReportError, codes
from dpkernels.estimation.sources import channel_of
from dpkernels.exact.certificate import CertificateError
from dpkernels.untrusted import parse_json, read_text

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
    """

    column: str | None
    by: str | None
    mechanism: str
    epsilon: float
    channel: Channel
    keep: bool

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
        return cls(own["column"], by, own["mechanism"], epsilon, channel, keep)


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
    """What a sidecar holds, and the file as it says that it is written."""
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
        written = Layout.from_dict(form["layout"]) if "layout" in form else None
        if given is None and "parts" in form.get("output", {}):
            raise ValueError("it is that of a release of many files; REPORTS is then their folder")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{place}: is not the sidecar of a release") from error
    except ValueError as error:
        raise ValueError(f"{place}: is not the sidecar of a release of one file; {error}") from error
    if given is None and "output" in form and form["output"]["sha256"] != digest(path):
        raise ValueError(
            f"{path}: is not the file that {place} was written with; give --sidecar if it holds reports of that release"
        )
    return form, open_source(path, _layout(path, written, is_own=given is None))


def _layout(path: Path, written: Layout | None, *, is_own: bool) -> Layout:
    """As the sidecar says; of another file with the same reports as its suffix says, cells separated likewise."""
    if written is not None and is_own:
        return written
    kind, packed = known_format(path), path.suffix.lower() == ".gz"
    plain = Layout(kind, "\t" if kind == "tsv" else ",", multiline=kind in ("csv", "tsv"), unpack=packed, pack=packed)
    if written is None or written.kind != kind:
        return plain
    return replace(plain, delimiter=written.delimiter, multiline=written.multiline)


def _column(form: Mapping[str, Any], found: Sequence[str], where: Any, column: str | None) -> Mapping[str, Any]:
    """What the sidecar says of the column."""
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
    """An error of the library in the words of the command."""
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
    """The place of every report among the channel's; -1 where it is missing."""
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
