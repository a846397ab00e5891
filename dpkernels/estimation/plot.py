"""Pictures of an estimated distribution."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpkernels import checks
from dpkernels.staging import write_png

KINDS = ("histogram", "cdf")
_BINS, _POINTS, _MOST_TICKS = 25, 65, 6
MOST_PANELS = 12  # estimates in one picture


def plot_estimate(
    estimate: Any, ax: Any, kind: str, bins: Any, confidence: float, label: str, title: str | None
) -> Any:
    """Draw a histogram or a cdf into axes; see ``Estimate.plot``."""
    checks.one_of("kind", kind, KINDS)
    checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
    if kind == "histogram":
        _histogram(estimate, ax, bins, confidence)
    else:
        _cdf(estimate, ax, confidence)
    ax.set(xlabel=label, title=_caption(estimate) if title is None else title)
    ax.xaxis.set_major_locator(MaxNLocator(_MOST_TICKS))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    return ax


def _histogram(estimate: Any, ax: Any, bins: Any, confidence: float) -> None:
    found = estimate.histogram(bins)
    shares, (low, high) = found.shares.value, found.shares.interval(confidence)
    middles = (found.edges[1:] + found.edges[:-1]) / 2
    ax.bar(middles, shares, np.diff(found.edges), color="C0", alpha=0.6, label="estimate")
    reach, name = [shares - low, high - shares], f"{100 * confidence:g} % intervals"
    ax.errorbar(middles, shares, reach, fmt="none", color="C7", capsize=2, linewidth=1, label=name)
    ax.set_ylim(bottom=0)
    ax.set_ylabel(f"share of values, with {name}")


def _cdf(estimate: Any, ax: Any, confidence: float) -> None:
    x = np.linspace(estimate.lower, estimate.upper, _POINTS)
    cdf = estimate.cdf(x)
    ax.fill_between(x, *cdf.band(confidence), color="C0", alpha=0.25, label=f"{100 * confidence:g} % band")
    ax.plot(x, cdf.value, color="C0", label="estimate")
    ax.set(ylabel="share of values up to it", ylim=(0, 1))
    ax.legend(frameon=False, loc="lower right")  # The cdf is 1 at the right end.


def save_plots(
    estimates: Mapping[str, Any], target: Path, confidence: float, *, bins: int | None = None, label: str = "value"
) -> None:
    """Write the histogram beside the cdf of one or several estimates as a PNG, on common scales.

    Args:
        estimates: ``Estimate`` objects by title; an empty title is that of ``Estimate.plot``.
        target: the file.
        confidence: of the intervals.
        bins: the number of bins of the histogram; 25 by default.
        label: what the values are, with their unit.

    Raises:
        ValueError: not a ``.png`` in an existing folder, or more than 12 estimates.
    """
    if target.suffix.lower() != ".png" or not target.parent.is_dir():
        raise ValueError(f"path: {target} must be a .png in an existing folder")
    if len(estimates) > MOST_PANELS:
        raise ValueError(f"estimates: {len(estimates)} groups; at most {MOST_PANELS} are drawn")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 0.5 + 4 * len(estimates)), dpi=150, layout="constrained")
    grid = figure.subplots(len(estimates), 2, squeeze=False, sharey="col")
    for row, (title, estimate) in zip(grid, estimates.items(), strict=True):
        for kind, ax in zip(KINDS, row, strict=True):
            caption = f"{title}: {_caption(estimate)}" if title else None
            plot_estimate(estimate, ax, kind, bins or _BINS, confidence, label, caption)
    # All histograms share the scale of the first one.
    grid[0, 0].set_ylim(0, 1.05 * max(ax.dataLim.y1 for ax in grid[:, 0]))
    write_png(figure, target)


def _caption(estimate: Any) -> str:
    budget = estimate.reports.channel.epsilon
    return f"{estimate.count:,} reports" + ("" if budget is None else f" at epsilon {budget:g}")
