"""The values of a file's columns: checked before or without a report, and errors that say which value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, TypeVar

import numpy as np

from dpkernels.cli.files.formats import Numbers, Source
from dpkernels.cli.files.handling import complete, filled
from dpkernels.cli.interrupts import stop_if_asked
from dpkernels.cli.release.sidecar import Column
from dpkernels.decimals import shortest
from dpkernels.release.inputs import Bounds, InputError

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
    bounds = [Bounds.of(column.form, clip) for column in columns]
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
    """Refuse a file of which nothing would be released.

    Raises:
        ValueError: it is one.
    """
    if left == 0:
        problem = "every row has a missing value" if read else "is empty; there is no row"
        raise ValueError(f"{source.path}: {problem}, nothing to perturb")


def numbers_and(
    source: Source,
    column: Column,
    bounds: Bounds,
    missing: str,
    piece: Any,
    start: int,
    use: Callable[[np.ndarray], T],
) -> tuple[Numbers, T | None]:
    """A column of a piece whose first row is ``start``, and what ``use`` makes of its values; None of none.

    Raises:
        ValueError: a value that cannot be perturbed; names its column, its place and what would help.
    """
    first = 0
    try:
        found = source.numbers(piece, column.name, start)
        if bounds.near and found.rounded is not None:
            row = source.place(piece, start + int(np.argmax(found.rounded)), start)
            raise ValueError(f"{row} is a whole number that float64 rounds, and with it how far apart neighbours are")
        if found.missing is not None:
            first = int(np.argmin(found.missing))
            if missing == "error":
                row = source.place(piece, start + int(np.argmax(found.missing)), start)
                raise ValueError(f"{row} is missing (empty, null, nan); every row needs a finite number, or --missing")
            if found.missing.all():
                return found, None
        return (found, use(filled(found))) if found.values.size else (found, None)
    except InputError as error:
        clips = "" if error.interval is None else "; --clip clips"
        limits = "" if error.interval is None else column.guarantee.limits
        # Where values are missing, the first that is not stands in, also before its own row.
        where = source.place(piece, max(error.row, start + first), start)
        raise ValueError(
            f"{label(column.name)}{where} is {shortest(error.value)}{error.reason}{limits}{clips}"
        ) from error
    except ValueError as error:
        raise ValueError(label(column.name) + str(error)) from error


def label(name: str | None) -> str:
    """What an error about a column begins with."""
    return "" if name is None else f"column {name!r}: "
