"""A picture of an estimated distribution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dpkernels.staging import write_png

_BINS, _POINTS = 25, 101


def draw(estimate: Any, target: Path, confidence: float) -> None:
    """The histogram with an interval a bin, beside the cdf with its band, as a PNG.

    Args:
        estimate: an ``Estimate``.
        target: where.
        confidence: of the intervals.

    Raises:
        ValueError: not a ``.png`` in an existing folder.
    """
    if target.suffix.lower() != ".png" or not target.parent.is_dir():
        raise ValueError(f"path: {target} must be a .png in an existing folder")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2)
    histogram = estimate.histogram(_BINS)
    middles = (histogram.edges[1:] + histogram.edges[:-1]) / 2
    low, high = histogram.shares.interval(confidence)
    shares = histogram.shares.value
    left.bar(middles, shares, np.diff(histogram.edges), color="C0", alpha=0.6)
    left.errorbar(middles, shares, [shares - low, high - shares], fmt="none", color="black", capsize=2, linewidth=1)
    left.set(
        xlabel="value", ylabel="share of values in a bin", title=f"{100 * confidence:g} % intervals, each by itself"
    )
    x = np.linspace(estimate.lower, estimate.upper, _POINTS)
    cdf = estimate.cdf(x)
    right.fill_between(x, *cdf.band(confidence), color="C0", alpha=0.25, label=f"{100 * confidence:g} %, everywhere")
    right.plot(x, cdf.value, color="C0", label="estimate")
    right.set(xlabel="value", ylabel="share of values up to it", ylim=(0, 1), title=f"{estimate.count} reports")
    right.legend(frameon=False, loc="upper left")
    write_png(figure, target)
