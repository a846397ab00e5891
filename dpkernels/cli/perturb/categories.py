"""The release of a column of categories, piece by piece."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import numpy as np

from dpkernels.cli.errors import RowError
from dpkernels.cli.files.categories import CategoryReports, codes_of
from dpkernels.cli.files.formats import Source
from dpkernels.cli.perturb.sidecar import Column
from dpkernels.cli.terminal import private
from dpkernels.release.categories import MISSING, UNKNOWN, released_reports


def perturbed(
    source: Source, column: Column, piece: Sized, start: int, key: bytes | None, offset: int, missing: str
) -> CategoryReports:
    """Return the reports of a column of a piece whose first row is ``start``; without a key its cells are checked only.

    ``offset`` leads from a row of the file to the row of the release. A ValueError names the first cell that is no
    category.
    """
    sampler: Any = column.sampler
    mechanism = sampler.mechanism
    cells = source.labels(piece, str(column.name))
    codes = codes_of(cells, mechanism, source.markers)
    unknown = codes == UNKNOWN
    if unknown.any() and mechanism.other is None:
        at = int(unknown.argmax())
        cell = cells[at].as_py()
        text = repr(cell.decode(errors="replace") if isinstance(cell, bytes) else cell)
        problem = f"which is not {mechanism.domain}; --other NAME takes such values"
        place, value = source.place(piece, start + at, start), private(text, "a value")
        raise RowError(start + at, place, "not a category", f"is {value}, {problem}")
    if unknown.any():
        codes = np.where(unknown, mechanism.other, codes)
    is_missing = codes == MISSING
    if is_missing.any() and missing == "error":
        row = start + int(is_missing.argmax())
        advice = "every row needs a category, or --missing keep or --missing drop"
        place = source.place(piece, row, start)
        raise RowError(row, place, "missing", f"is missing (empty, null, nan); {advice}")
    filled = np.where(is_missing, 0, codes)
    mask = is_missing if is_missing.any() else None
    if key is None:
        reports = np.zeros((len(filled), *mechanism.report_shape), mechanism.report_dtype)
    else:
        reports = released_reports(sampler, filled, key, start + offset)
        reports[is_missing] = 0  # Nothing lies under a missing report.
    return CategoryReports(reports, mechanism, mask)
