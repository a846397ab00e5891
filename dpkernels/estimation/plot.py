"""Pictures of an estimated distribution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dpkernels import checks
from dpkernels.staging import write_png

KINDS = ("histogram", "cdf")
_BINS, _POINTS, _MOST_TICKS = 25, 101, 6


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
    budget = estimate.reports.channel.epsilon
    made = f"{estimate.count:,} reports" + ("" if budget is None else f" at epsilon {budget:g}")
    ax.set(xlabel=label, title=made if title is None else title)
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


def save_plot(estimate: Any, target: Path, confidence: float, *, bins: int = _BINS, label: str = "value") -> None:
    """Write the histogram beside the cdf as a PNG.

    Args:
        estimate: an ``Estimate``.
        target: the file.
        confidence: of the intervals.
        bins: of the histogram.
        label: what the values are, with their unit.

    Raises:
        ValueError: not a ``.png`` in an existing folder.
    """
    if target.suffix.lower() != ".png" or not target.parent.is_dir():
        raise ValueError(f"path: {target} must be a .png in an existing folder")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), dpi=150, layout="constrained")
    for kind, ax in zip(KINDS, figure.subplots(1, 2), strict=True):
        plot_estimate(estimate, ax, kind, bins, confidence, label, None)
    write_png(figure, target)
