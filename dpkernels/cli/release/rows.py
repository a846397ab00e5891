"""Checking and perturbing the rows of a file, piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from functools import partial
from typing import Any, TypeVar

import numpy as np

from dpkernels.cli.files.formats import Numbers, Source, ahead
from dpkernels.cli.files.layout import STANDARD_INPUT
from dpkernels.cli.interrupts import independent_of_reports, stop_if_asked
from dpkernels.cli.release.sidecar import Column, ReleaseSpec
from dpkernels.decimals import shortest
from dpkernels.random import host
from dpkernels.random.keys import column_secret
from dpkernels.release.engines import Engine, exact_engine, in_chunks
from dpkernels.release.inputs import Bounds, InputError, report_type

T = TypeVar("T")


def check_values(
    spec: ReleaseSpec, source: Source, show: Callable[[], object] = lambda: None, *, row: int = 0
) -> tuple[int, int]:
    """Refuse what a release of a file from a row on would refuse; return the numbers of rows of input and output."""
    bounds = [Bounds.of(column.sampler, spec.clip) for column in spec.columns]
    start, rows = row, 0
    with closing(source.pieces([column.name for column in spec.columns])) as pieces:
        for piece in pieces:
            found = [
                _with_numbers(spec, source, column, own, piece, start, partial(own.check, first=start))[0]
                for column, own in zip(spec.columns, bounds, strict=True)
            ]
            whole = _complete(spec, found)
            start, rows = start + len(piece), rows + (len(piece) if whole is None else int(whole.sum()))
            show()
            stop_if_asked()
    return start - row, rows


def check_some_rows(name: object, read: int, left: int) -> None:
    """Refuse a file of which no row is left to release."""
    if left == 0:
        problem = "every row has a missing value" if read else "is empty"
        raise ValueError(f"{name}: {problem}; there is no row to perturb")


def _complete(spec: ReleaseSpec, columns: Iterable[Numbers]) -> np.ndarray | None:
    """Return the mask of the rows that are kept where rows with a missing value are dropped; None for all."""
    masks = [column.missing for column in columns if column.missing is not None]
    return ~np.logical_or.reduce(masks) if masks and spec.row_options.missing == "drop" else None


def _with_numbers(
    spec: ReleaseSpec,
    source: Source,
    column: Column,
    bounds: Bounds,
    piece: Any,
    start: int,
    use: Callable[[np.ndarray], T],
) -> tuple[Numbers, T | None]:
    """Return a column of a piece whose first row is ``start``, and the result of ``use`` for its values, or None.

    A ValueError of a value that cannot be perturbed names its column, its place and a remedy.
    """
    first = 0
    try:
        found = source.numbers(piece, column.name, start)
        if bounds.near and found.rounded is not None:
            row = source.place(piece, start + int(np.argmax(found.rounded)), start)
            raise ValueError(f"{row} is a whole number that float64 rounds, which may move neighbours further apart")
        values = found.values
        if found.missing is not None:
            if spec.row_options.missing == "error":
                row = source.place(piece, start + int(np.argmax(found.missing)), start)
                raise ValueError(f"{row} is missing (empty, null, nan){_NOT_FINITE}")
            if found.missing.all():
                return found, None
            first = int(np.argmin(found.missing))
            values = np.where(found.missing, values[first], values)  # stands in, also before its own row
        return found, use(values) if values.size else None
    except InputError as error:
        clips = "; --clip clips" if error.clips else ""
        limits = column.guarantee.limits if error.clips else ""
        where = source.place(piece, max(error.row, start + first), start)
        reason = error.reason if np.isfinite(error.value) else _NOT_FINITE
        raise ValueError(f"{label(column.name)}{where} is {shortest(error.value)}{reason}{limits}{clips}") from error
    except ValueError as error:
        raise ValueError(label(column.name) + str(error)) from error


_NOT_FINITE = "; every value must be a finite number, or missing with --missing keep or --missing drop"


def label(name: str | None) -> str:
    """Return the beginning of an error about a column."""
    return "" if name is None else f"column {name!r}: "


# Numbers that are folded into a release's key where there is no column's name, whose hash would be folded in.
_ARRAY, _ROW_ORDER = 0, 1


def row_order_secret(secret: bytes) -> bytes:
    """Return the key of the order of the rows."""
    return host.fold_in(secret, _ROW_ORDER)


def _column_engine(column: Column, secret: bytes) -> Engine:
    """Return an engine with a key of the column's own: two columns never share noise."""
    own = host.fold_in(secret, _ARRAY) if column.name is None else column_secret(secret, column.name)
    return exact_engine(column.sampler, own)


def perturbed(
    spec: ReleaseSpec,
    source: Source,
    secret: bytes,
    show: Callable[[], object] = lambda: None,
    *,
    row: int = 0,
    first: int = 0,
) -> Generator[tuple[Any, int, int], None, None]:
    """Yield the perturbed pieces of a file or a part, and how many rows (of an array: values) each had and has now.

    ``secret`` is the release's key of 32 bytes. ``row`` is the first piece's row in the file, and ``first`` in the
    whole release, whose noise it gets. ``show`` is called after every piece.
    """
    engines = [_column_engine(column, secret) for column in spec.columns]
    pieces, at = source.pieces([column.name for column in spec.columns]), row
    # A request to stop need not wait for a stream's next bytes.
    with closing(pieces if source.path == STANDARD_INPUT else ahead(pieces)) as following:
        while True:
            with independent_of_reports():
                piece = next(following, None)
                if piece is None:
                    return
                reports = {}
                for column, engine in zip(spec.columns, engines, strict=True):
                    reports[column.name] = _reports(spec, source, column, engine, piece, at, first + at - row)
            done, left = source.replaced(piece, reports), len(piece)
            if (whole := _complete(spec, reports.values())) is not None:
                done, left = source.kept(done, whole), int(whole.sum())
            yield done, len(piece), left
            at += len(piece)
            show()
            stop_if_asked()


def _reports(
    spec: ReleaseSpec, source: Source, column: Column, engine: Engine, piece: Any, row: int, first: int
) -> Numbers:
    bounds = Bounds.of(column.sampler, spec.clip)
    reported = partial(in_chunks, engine, bounds, start=first, row=row)
    found, reports = _with_numbers(spec, source, column, bounds, piece, row, reported)
    if reports is None:  # all are missing
        reports = np.zeros(len(found.values), report_type(found.values.dtype))
    return Numbers(spec.row_options.rounded(reports), found.missing)
