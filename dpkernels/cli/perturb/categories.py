"""The release of a column of categories, chunk by chunk."""

from __future__ import annotations

from collections.abc import Sized

import numpy as np

from dpkernels.cli.errors import RowError
from dpkernels.cli.files.categories import CategoryReports, category_codes
from dpkernels.cli.files.formats import Source
from dpkernels.cli.perturb.sidecar import Column
from dpkernels.cli.terminal import private
from dpkernels.exact.categorical.sampler import CategorySampler
from dpkernels.release.categories import MISSING, UNKNOWN, released_reports


def perturb_categories(
    source: Source, column: Column, chunk: Sized, start: int, key: bytes | None, offset: int, missing: str
) -> CategoryReports:
    """Return the reports of a column of a chunk whose first row is ``start``; without a key its cells are checked only.

    ``offset`` leads from a row of the file to the row of the release. A ValueError names the first cell that is no
    category.
    """
    sampler: CategorySampler = column.sampler
    mechanism = sampler.mechanism
    cells = source.labels(chunk, str(column.name))
    codes = category_codes(cells, mechanism, source.markers)
    unknown = codes == UNKNOWN
    if unknown.any() and mechanism.other is None:
        index = int(unknown.argmax())
        cell = cells[index].as_py()
        text = repr(cell.decode(errors="replace") if isinstance(cell, bytes) else cell)
        problem = f"which is not {mechanism.domain}; --other NAME takes such values"
        position, value = source.position(chunk, start + index, start), private(text, "a value")
        raise RowError(start + index, position, "not a category", f"is {value}, {problem}")
    if unknown.any():
        codes = np.where(unknown, mechanism.other, codes)
    is_missing = codes == MISSING
    if is_missing.any() and missing == "error":
        row = start + int(is_missing.argmax())
        advice = "every row needs a category, or --missing keep or --missing drop"
        position = source.position(chunk, row, start)
        raise RowError(row, position, "missing", f"is missing (empty, null, nan); {advice}")
    filled = np.where(is_missing, 0, codes)
    mask = is_missing if is_missing.any() else None
    if key is None:
        reports = np.zeros((len(filled), *mechanism.report_shape), mechanism.report_dtype)
    else:
        reports = released_reports(sampler, filled, key, start + offset)
        reports[is_missing] = 0  # Nothing lies under a missing report.
    return CategoryReports(reports, mechanism, mask)
