"""Checking and perturbing the rows of a file, piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, TypeVar

import numpy as np

from dpkernels.cli.files.formats import Numbers, Source, ahead
from dpkernels.cli.files.layout import STANDARD_INPUT
from dpkernels.cli.files.row_options import RowOptions, complete, filled
from dpkernels.cli.interrupts import independent_of_reports, stop_if_asked
from dpkernels.cli.release.sidecar import Column, exact_totals
from dpkernels.decimals import shortest
from dpkernels.random import host
from dpkernels.random.keys import column_secret
from dpkernels.release.engines import Engine, exact_engine, in_chunks
from dpkernels.release.inputs import Bounds, InputError, report_type

T = TypeVar("T")


def check_values(
    source: Source, columns: Sequence[Column], clip: bool, missing: str, show: Callable[[], object], row: int = 0
) -> tuple[int, int]:
    """Read a file once, as a release would, and refuse what it would refuse.

    Args:
        source: the file.
        columns: what would be perturbed.
        clip: whether values outside the interval would be clipped.
        missing: "error", "keep" or "drop".
        show: called after every piece.
        row: of the file, that it begins with.

    Returns:
        How many rows (of an array: values) there are, and how many the output would have.

    Raises:
        ValueError: a value that cannot be perturbed, or a file that is damaged.
    """
    bounds = [Bounds.of(column.sampler, clip) for column in columns]
    start, rows = row, 0
    with closing(source.pieces([column.name for column in columns])) as pieces:
        for piece in pieces:
            found = [_checked(source, *one, missing, piece, start) for one in zip(columns, bounds, strict=True)]
            whole = complete(found) if missing == "drop" else None
            start, rows = start + len(piece), rows + (len(piece) if whole is None else int(whole.sum()))
            show()
            stop_if_asked()
    return start - row, rows


def _checked(source: Source, column: Column, bounds: Bounds, missing: str, piece: Any, start: int) -> Numbers:
    return numbers_and(source, column, bounds, missing, piece, start, lambda x: bounds.check(x.reshape(-1), start))[0]


def some_rows(source: Source, read: int, left: int) -> None:
    """Refuse a file without a row to release.

    Raises:
        ValueError: no row is left.
    """
    if left == 0:
        problem = "every row has a missing value" if read else "is empty"
        raise ValueError(f"{source.path}: {problem}; there is no row to perturb")


def numbers_and(
    source: Source,
    column: Column,
    bounds: Bounds,
    missing: str,
    piece: Any,
    start: int,
    use: Callable[[np.ndarray], T],
) -> tuple[Numbers, T | None]:
    """Return a column of a piece whose first row is ``start``, and what ``use`` makes of its values; None of none.

    Raises:
        ValueError: a value that cannot be perturbed; names its column, its place and what would help.
    """
    first = 0
    try:
        found = source.numbers(piece, column.name, start)
        if bounds.near and found.rounded is not None:
            row = source.place(piece, start + int(np.argmax(found.rounded)), start)
            raise ValueError(f"{row} is a whole number that float64 rounds, which may move neighbours further apart")
        if found.missing is not None:
            first = int(np.argmin(found.missing))
            if missing == "error":
                row = source.place(piece, start + int(np.argmax(found.missing)), start)
                raise ValueError(f"{row} is missing (empty, null, nan){_NOT_FINITE}")
            if found.missing.all():
                return found, None
        return (found, use(filled(found))) if found.values.size else (found, None)
    except InputError as error:
        clips = "" if error.interval is None else "; --clip clips"
        limits = "" if error.interval is None else column.guarantee.limits
        # Where values are missing, the first that is not stands in, also before its own row.
        where = source.place(piece, max(error.row, start + first), start)
        reason = error.reason if np.isfinite(error.value) else _NOT_FINITE
        raise ValueError(f"{label(column.name)}{where} is {shortest(error.value)}{reason}{limits}{clips}") from error
    except ValueError as error:
        raise ValueError(label(column.name) + str(error)) from error


_NOT_FINITE = "; every value must be a finite number, or missing with --missing keep or --missing drop"


def label(name: str | None) -> str:
    """Return what an error about a column begins with."""
    return "" if name is None else f"column {name!r}: "


# Perturbed pieces, and how many rows (of an array: values) each had before and has now.
Perturbed = Generator[tuple[Any, int, int], None, None]

# What is folded into a release's key, once, where there is no column's name.
_ARRAY, _ROW_ORDER = 0, 1


@dataclass(frozen=True)
class ReleaseSpec:
    """The treatment of every row.

    Attributes:
        columns: the perturbed columns with their mechanisms.
        clip: clip values outside the interval.
        row_options: the treatment of rows besides noise.
    """

    columns: tuple[Column, ...]
    clip: bool
    row_options: RowOptions

    @property
    def names(self) -> list[str | None]:
        """The names of the columns."""
        return [column.name for column in self.columns]

    def engines(self, secret: bytes) -> list[Engine]:
        """One a column, each with a key of its own: two columns never share noise."""
        return [exact_engine(column.sampler, _column_secret(secret, column.name)) for column in self.columns]

    def totals(self, values_per_row: int) -> tuple[Fraction, Fraction]:
        """Return the (epsilon, delta) of a row, exactly."""
        return exact_totals([column.guarantee for column in self.columns], values_per_row)

    def copied(self, source: Source) -> list[str]:
        """Return the names of the parts of a file that are not perturbed."""
        chosen = set(self.names)
        return [*(name for name in source.names if name not in chosen), *source.also_copied]


def row_order_secret(secret: bytes) -> bytes:
    """Return the key of the order of the rows, which is no column's: those are folded from hashes."""
    return host.fold_in(secret, _ROW_ORDER)


def _column_secret(secret: bytes, name: str | None) -> bytes:
    """Return the key of a column, derived from its name; an array has none."""
    return host.fold_in(secret, _ARRAY) if name is None else column_secret(secret, name)


def perturbed(
    spec: ReleaseSpec, source: Source, secret: bytes, show: Callable[[], Any], *, row: int = 0, first: int = 0
) -> Perturbed:
    """Return the pieces of a file, perturbed.

    Args:
        spec: what is done to them.
        source: the file, or a part of it.
        secret: 32 bytes, the release's key.
        show: called after every piece.
        row: of the file, that its first piece begins with (of an array: value).
        first: the same in the whole release, whose noise it gets.
    """
    engines, at = spec.engines(secret), row
    pieces = source.pieces(spec.names)
    # A request to stop need not wait for a stream's next bytes.
    with closing(pieces if source.path == STANDARD_INPUT else ahead(pieces)) as following:
        while (piece := _next(following)) is not None:
            with independent_of_reports():
                reports = {
                    column.name: _reports(spec, source, column, engine, piece, at, first + at - row)
                    for column, engine in zip(spec.columns, engines, strict=True)
                }
            done, left = source.replaced(piece, reports), len(piece)
            if spec.row_options.missing == "drop" and (whole := complete(reports.values())) is not None:
                done, left = source.kept(done, whole), int(whole.sum())
            yield done, len(piece), left
            at += len(piece)
            show()
            stop_if_asked()


def _next(pieces: Iterator[Any]) -> Any:
    with independent_of_reports():
        return next(pieces, None)


def _reports(
    spec: ReleaseSpec, source: Source, column: Column, engine: Engine, piece: Any, row: int, first: int
) -> Numbers:
    bounds, missing = Bounds.of(column.sampler, spec.clip), spec.row_options.missing
    reported = partial(in_chunks, engine, bounds, start=first, row=row)
    found, reports = numbers_and(source, column, bounds, missing, piece, row, reported)
    if reports is None:  # all are missing
        reports = np.zeros(len(found.values), report_type(found.values.dtype))
    return Numbers(spec.row_options.rounded(reports), found.missing)
