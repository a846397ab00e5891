"""What a release does to every row, piece by piece: the one loop behind files and the parts of datasets."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from dpkernels.cli.failures import independent_of_reports
from dpkernels.cli.files.formats import Numbers, Source, ahead
from dpkernels.cli.files.handling import Handling, complete
from dpkernels.cli.files.layout import STANDARD_INPUT, Layout
from dpkernels.cli.interrupts import stop_if_asked
from dpkernels.cli.ledger import Receipt
from dpkernels.cli.release.sidecar import Column, Release, exact_total
from dpkernels.cli.release.values import numbers_and
from dpkernels.random import host
from dpkernels.random.keys import column_secret
from dpkernels.release.engines import Engine, exact_engine, in_chunks
from dpkernels.release.inputs import Bounds, report_type

# Perturbed pieces, and how many rows (of an array: values) each had before and has now.
Perturbed = Generator[tuple[Any, int, int], None, None]

# What is folded into a release's key, once, where there is no column's name.
_ARRAY, _ROW_ORDER = 0, 1


@dataclass(frozen=True)
class Treatment:
    """What is done to every row.

    Attributes:
        columns: what is perturbed, and how.
        clip: clip values outside the interval.
        handling: what else is done to rows.
    """

    columns: tuple[Column, ...]
    clip: bool
    handling: Handling

    @property
    def names(self) -> list[str | None]:
        """Of the columns."""
        return [column.name for column in self.columns]

    def engines(self, secret: bytes) -> list[Engine]:
        """One a column, each with a key of its own: two columns never share noise."""
        return [exact_engine(column.form, _column_secret(secret, column.name)) for column in self.columns]

    def totals(self, values_per_row: int) -> tuple[Fraction, Fraction]:
        """The (epsilon, delta) of a row, exactly."""
        parts = [column.guarantee for column in self.columns]
        epsilon, delta = [one.epsilon for one in parts], [one.delta for one in parts]
        return exact_total(epsilon, values_per_row), exact_total(delta, values_per_row)

    def release(
        self,
        values: int,
        values_per_row: int,
        form: Layout,
        not_kept: tuple[str, ...] = (),
        receipt: Receipt | None = None,
    ) -> Release:
        """What is to be said of a release of so many values a column."""
        done = self.columns, values // values_per_row, values_per_row, self.clip, form, self.handling
        return Release(*done, not_kept, receipt)

    def copied(self, source: Source) -> list[str]:
        """What of a file is not perturbed."""
        chosen = set(self.names)
        return [*(name for name in source.names if name not in chosen), *source.also_copied]


def row_order_secret(secret: bytes) -> bytes:
    """Return the key of the order of the rows, which is no column's: those are folded from hashes."""
    return host.fold_in(secret, _ROW_ORDER)


def _column_secret(secret: bytes, name: str | None) -> bytes:
    """Return the key of a column, derived from its name; an array has none."""
    return host.fold_in(secret, _ARRAY) if name is None else column_secret(secret, name)


def perturbed(
    treatment: Treatment, source: Source, secret: bytes, show: Callable[[], Any], *, row: int = 0, first: int = 0
) -> Perturbed:
    """The pieces of a file, perturbed.

    Args:
        treatment: what is done to them.
        source: the file, or a part of it.
        secret: 32 bytes, the release's key.
        show: called after every piece.
        row: of the file, that its first piece begins with (of an array: value).
        first: the same in the whole release, whose noise it gets.
    """
    engines, at = treatment.engines(secret), row
    pieces = source.pieces(treatment.names)
    # A request to stop need not wait for a stream's next bytes.
    with closing(pieces if source.path == STANDARD_INPUT else ahead(pieces)) as following:
        while (piece := _next(following)) is not None:
            with independent_of_reports():
                reports = {
                    column.name: _reports(treatment, source, column, engine, piece, at, first + at - row)
                    for column, engine in zip(treatment.columns, engines, strict=True)
                }
            done, left = source.replaced(piece, reports), len(piece)
            if treatment.handling.missing == "drop" and (whole := complete(reports.values())) is not None:
                done, left = source.kept(done, whole), int(whole.sum())
            yield done, len(piece), left
            at += len(piece)
            show()
            stop_if_asked()


def _next(pieces: Iterator[Any]) -> Any:
    with independent_of_reports():
        return next(pieces, None)


def _reports(
    treatment: Treatment, source: Source, column: Column, engine: Engine, piece: Any, row: int, first: int
) -> Numbers:
    bounds, missing = Bounds.of(column.form, treatment.clip), treatment.handling.missing
    reported = partial(in_chunks, engine, bounds, start=first, row=row)
    found, reports = numbers_and(source, column, bounds, missing, piece, row, reported)
    if reports is None:  # all are missing
        reports = np.zeros(len(found.values), report_type(found.values.dtype))
    return Numbers(treatment.handling.rounded(reports), found.missing)
