"""Checking and perturbing the rows of a file, piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from io import BufferedIOBase
from itertools import count
from typing import Any

import numpy as np

from dpkernels.cli.files.formats import Numbers, Source, ahead
from dpkernels.cli.files.layout import STANDARD_INPUT
from dpkernels.cli.interrupts import independent_of_reports, stop_if_asked
from dpkernels.cli.release.sidecar import Column, ReleaseSpec, WrittenFile
from dpkernels.decimals import shortest
from dpkernels.random import host
from dpkernels.random.keys import column_secret
from dpkernels.release.engines import exact_engine, in_chunks
from dpkernels.release.inputs import Bounds, InputError, report_type
from dpkernels.staging import path_of, sha256_and_size

_NOT_FINITE = "; every value must be a finite number, or missing with --missing keep or --missing drop"
# Numbers that are folded into a release's key where there is no column's name, whose hash would be folded in.
_ARRAY, _ROW_ORDER = 0, 1
# Rows are held in memory to be shuffled.
MOST_SHUFFLED_BYTES = 1 << 30
HELD = f"they are held in memory, at most {MOST_SHUFFLED_BYTES}"

# What is done with the values of a column of a piece, which begins with a row of the file.
Use = Callable[[np.ndarray, Bounds, int], np.ndarray]


def label(name: str | None) -> str:
    """Return the beginning of an error about a column."""
    return "" if name is None else f"column {name!r}: "


def row_order(secret: bytes, rows: int) -> np.ndarray:
    """Return a uniformly random order: that of random 64-bit words, all drawn again where two are equal."""
    key = host.fold_in(secret, _ROW_ORDER)
    for stream in count():
        words = np.empty(rows, "<u8")
        host.fill(words, key, stream, 0)
        order = np.argsort(words)
        if (np.diff(words[order]) > 0).all():
            return order
    raise AssertionError


@dataclass(frozen=True)
class Done:
    """The rows (of an array: values) that were read, and those that are left and were perturbed, or only checked."""

    read: int
    rows: int
    written: WrittenFile | None = None  # None for a check
    not_kept: tuple[str, ...] = ()  # properties of the input that the file does not have


def released(
    spec: ReleaseSpec,
    source: Source,
    key: bytes | None,
    file: BufferedIOBase | None,
    show: Callable[[], object] = lambda: None,
    *,
    name: str = "",
    row: int = 0,
    first: int = 0,
) -> Done:
    """Perturb the rows of a file or a part into a new file, or without a key and a file check them.

    ``key`` is the release's, of 32 bytes. ``row`` is the first piece's row in the file, and ``first`` in the whole
    release, whose noise it gets. ``show`` is called after every piece. ``name`` is the new file's in a dataset.
    """
    held, read, rows, size = list[Any](), 0, 0, 0
    uses = {column.name: _use(column, key, first - row) for column in spec.columns}
    pieces = source.pieces(list(uses))
    with (
        nullcontext() if file is None else source.sink(path_of(file)) as sink,
        # A request to stop need not wait for a stream's next bytes.
        closing(pieces if source.path == STANDARD_INPUT else ahead(pieces)) as following,
    ):
        columns = _columns(spec, source, following, uses, row)
        while True:
            with independent_of_reports():
                if (found := next(columns, None)) is None:
                    break
            piece, reports, whole = found
            read, rows = read + len(piece), rows + (len(piece) if whole is None else int(whole.sum()))
            if sink is not None:
                done = source.replaced(piece, reports)
                done = done if whole is None else source.kept(done, whole)
                if spec.row_options.shuffle:
                    held.append(done)
                    size += source.size(done)
                else:
                    sink.write(done)
            if size > MOST_SHUFFLED_BYTES:
                raise ValueError(f"--shuffle-rows: the rows take more than {size} bytes; {HELD}")
            show()
            stop_if_asked()
        if sink is not None and key is not None and held and rows:
            for piece in source.reordered(held, row_order(key, rows // source.values_per_row)):
                sink.write(piece)
    if file is None:
        return Done(read, rows)
    written = WrittenFile(*sha256_and_size(file), name, rows // source.values_per_row)
    return Done(read, rows, written, tuple(source.not_kept(path_of(file))))


def _use(column: Column, key: bytes | None, offset: int) -> Use:
    """Return a check, or noise of a key of the column's own: two columns never share noise."""
    if key is None:
        return lambda values, bounds, row: bounds.check(values, first=row)
    own = host.fold_in(key, _ARRAY) if column.name is None else column_secret(key, column.name)
    engine = exact_engine(column.sampler, own)
    return lambda values, bounds, row: in_chunks(engine, bounds, values, start=row + offset, row=row)


def _columns(
    spec: ReleaseSpec, source: Source, pieces: Iterable[Any], uses: Mapping[str | None, Use], row: int
) -> Iterator[tuple[Any, dict[str | None, Numbers], np.ndarray | None]]:
    """Yield each piece with what ``uses`` make of its columns, and the mask of the rows that are kept, or None."""
    bounds = [Bounds.of(column.sampler, spec.clip) for column in spec.columns]
    for piece in pieces:
        found = {
            column.name: _used(spec, source, column, own, piece, row, uses[column.name])
            for column, own in zip(spec.columns, bounds, strict=True)
        }
        masks = [one.missing for one in found.values() if one.missing is not None]
        dropped = masks and spec.row_options.missing == "drop"
        yield piece, found, ~np.logical_or.reduce(masks) if dropped else None
        row += len(piece)


def _used(
    spec: ReleaseSpec, source: Source, column: Column, bounds: Bounds, piece: Any, start: int, use: Use
) -> Numbers:
    """Return a column of a piece whose first row is ``start``, with the reports, or the checked values, of ``use``.

    A ValueError of a value that cannot be perturbed names its column, its place and a remedy.
    """
    first = 0
    try:
        found = source.numbers(piece, column.name, start)
        if bounds.near and found.rounded is not None:
            row = source.place(piece, start + int(np.argmax(found.rounded)), start)
            raise ValueError(f"{row} is a whole number that float64 rounds, which may move neighbours further apart")
        values, missing = found.values, found.missing
        if missing is not None and spec.row_options.missing == "error":
            row = source.place(piece, start + int(np.argmax(missing)), start)
            raise ValueError(f"{row} is missing (empty, null, nan){_NOT_FINITE}")
        if not values.size or (missing is not None and missing.all()):
            return Numbers(np.zeros(len(values), report_type(values.dtype)), missing)
        if missing is not None:
            first = int(np.argmin(missing))
            values = np.where(missing, values[first], values)  # stands in, also before its own row
        return Numbers(spec.row_options.rounded(use(values, bounds, start)), missing)
    except InputError as error:
        clips = "; --clip clips" if error.clips else ""
        limits = column.guarantee.limits if error.clips else ""
        where = source.place(piece, max(error.row, start + first), start)
        reason = error.reason if np.isfinite(error.value) else _NOT_FINITE
        raise ValueError(f"{label(column.name)}{where} is {shortest(error.value)}{reason}{limits}{clips}") from error
    except ValueError as error:
        raise ValueError(label(column.name) + str(error)) from error
