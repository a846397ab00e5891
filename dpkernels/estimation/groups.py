"""Estimates of several groups of people, whose reports are in one column."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpkernels.estimation.estimate import estimate
from dpkernels.numerics import RealArray
from dpkernels.release import containers


def estimate_by(reports: RealArray, mechanism: Any, by: Any, **options: object) -> dict[Any, Any]:
    """Return the estimate of each group of reports, by the group's label, in the order of first appearance.

    Args:
        reports: one column or array of reports, rows along the first axis; see ``estimate``.
        mechanism: the source of the reports; see ``estimate``.
        by: the label of the group of each row, as an array or a column without missing labels. Labels are copied as
            they are: in a release they are not protected.
        options: the other arguments of ``estimate``.

    Raises:
        ValueError: there are not as many labels as reports, or labels are missing.
    """
    labels = by.to_pylist() if containers.library_name(by) == "pyarrow" else np.asarray(by).tolist()
    if len(labels) != len(reports):
        raise ValueError(f"by: {len(labels)} labels for {len(reports)} reports; each report needs one")
    if any(label is None or label != label for label in labels):
        raise ValueError("by: some labels are missing; give these rows a label of their own")
    rows: dict[object, list[int]] = {}
    for row, label in enumerate(labels):
        rows.setdefault(label, []).append(row)
    source = np.asarray(reports) if containers.library_name(reports) == "jax" else reports
    return {
        label: estimate(containers.take_rows(source, np.array(members)), mechanism, **options)
        for label, members in rows.items()
    }
