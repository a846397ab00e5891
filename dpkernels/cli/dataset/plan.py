"""A dataset in parts, from its files' footers: every part knows the index of its first row before a row is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import click

from dpkernels.cli.dataset.places import Place
from dpkernels.cli.files.arrays import ArrayFile
from dpkernels.cli.files.columnar import ParquetFile
from dpkernels.cli.files.formats import Source, open_source
from dpkernels.cli.files.layout import Layout, layout

# Row groups are put together up to so many bytes before compression: 2^23 values of a column, a second's work.
PART_BYTES = 1 << 26
_OPENED = 32  # files at once: a store answers in 50 ms


@dataclass(frozen=True)
class Part:
    """Rows of one file, and their place in the release. Of arrays, values are counted for rows.

    Attributes:
        number: of the part, in the order of the rows.
        file: where it is.
        stamp: the file's when it was planned.
        groups: its row groups, the first and the one after the last; None for a file without any.
        row: of the file, that it begins with.
        first: index of that row in the whole release, and of its noise.
        rows: how many.
    """

    number: int
    file: Place
    stamp: tuple[int, int, str]
    groups: tuple[int, int] | None
    row: int
    first: int
    rows: int

    @contextmanager
    def opened(self, form: Layout) -> Iterator[Source]:
        """The part as a file, which has not changed since it was planned.

        Raises:
            ValueError: it has.
        """
        self.check_unchanged()
        with _source(self.file, form, self.groups) as source:
            yield source

    def check_unchanged(self) -> None:
        """Refuse a file that is another by now.

        Raises:
            ValueError: it is.
        """
        try:
            now = self.file.stamp()
        except FileNotFoundError:
            now = None
        if now != self.stamp:
            raise ValueError(f"{self.file}: has changed since the release was planned; nothing of it is released")


@dataclass(frozen=True)
class _Planned:
    """A file before its place in the release is known."""

    file: Place
    stamp: tuple[int, int, str]
    schema: Any  # see ``_schema``
    values_per_row: int
    pieces: tuple[tuple[tuple[int, int] | None, int], ...]


def layout_of(files: Sequence[Place], kind: str | None, delimiter: str | None, multiline: bool) -> Layout:
    """How all the files are written, and the output's.

    Raises:
        click.UsageError: not all the same, or no known format.
    """
    forms = dict[Layout, Place]()
    for file in files:
        name = Path(file.name)
        forms.setdefault(layout(name, name, kind, delimiter, multiline), file)
    if len(forms) > 1:
        one, other = list(forms.values())[:2]
        raise click.UsageError(f"IN: {one} and {other} are not of one format")
    return next(iter(forms))


def planned(files: Sequence[Place], form: Layout) -> tuple[Part, ...]:
    """The parts of a dataset, in the order of its rows. No row is read, but of delimited files, which are counted.

    Raises:
        ValueError: a file is not readable, has other columns than the first, or there is no row.
    """
    with ThreadPoolExecutor(_OPENED) as pool:
        found = list(pool.map(lambda file: _read(file, form), files))
    for one in found:
        _check_alike(found[0], one)
    pieces = [(one, *piece) for one in found for piece in one.pieces]
    firsts = accumulate((rows for *_, rows in pieces), initial=0)
    parts, before = [], dict[Place, int]()
    for number, ((one, groups, rows), first) in enumerate(zip(pieces, firsts, strict=False)):
        row = before.setdefault(one.file, 0)
        parts.append(Part(number, one.file, one.stamp, groups, row, first, rows))
        before[one.file] += rows
    if not parts:
        raise ValueError(f"{files[0]}: no file has a row, there is nothing to perturb")
    return tuple(parts)


@contextmanager
def _source(file: Place, form: Layout, groups: tuple[int, int] | None = None) -> Iterator[Source]:
    if form.kind == "parquet":
        yield ParquetFile(Path(str(file)), form, groups, None if file.local else file.opened)
        return
    with file.at_hand() as path:
        yield open_source(path, form)


def _read(file: Place, form: Layout) -> _Planned:
    stamp = file.stamp()
    with _source(file, form) as source:
        pieces = list(_joined(source.groups)) if isinstance(source, ParquetFile) else [(None, _count(source))]
        found = _Planned(
            file, stamp, _schema(source), source.values_per_row, tuple(piece for piece in pieces if piece[1])
        )
    if file.stamp() != stamp:
        raise ValueError(f"{file}: changed while it was planned")
    return found


def _schema(source: Source) -> Any:
    """What all files of a dataset have in common: columns, with their types where the format has any."""
    if isinstance(source, ParquetFile):
        return source.schema
    return (str(source.dtype),) if isinstance(source, ArrayFile) else tuple(source.names)


def _joined(groups: Sequence[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], int]]:
    """Consecutive row groups (rows, bytes) of about ``PART_BYTES`` together: which these are, and their rows."""
    begin = rows = size = 0
    for at, (some, more) in enumerate(groups):
        if rows and size + more > PART_BYTES:
            yield (begin, at), rows
            begin, rows, size = at, 0, 0
        rows, size = rows + some, size + more
    yield (begin, len(groups)), rows


def _count(source: Source) -> int:
    """Rows of a delimited file, read once; the values of an array."""
    if isinstance(source, ArrayFile):
        return source.values
    return sum(len(piece) for piece in source.pieces(source.names[:1]))


def _check_alike(first: _Planned, one: _Planned) -> None:
    if first.values_per_row != one.values_per_row:
        counts = f"{first.values_per_row} and {one.values_per_row}"
        raise ValueError(f"{first.file} and {one.file}: have {counts} values a row; a release has rows of one length")
    if first.schema != one.schema:
        what = "hold other types" if first.file.name.endswith(".npy") else "have other columns"
        raise ValueError(f"{first.file} and {one.file}: {what}, {_named(first)} and {_named(one)}")


def _named(one: _Planned) -> str:
    """The columns, with their types where a file has any."""
    return ", ".join(f"{c.name} {c.type}" if hasattr(c, "type") else str(c) for c in one.schema)
