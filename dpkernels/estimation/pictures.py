"""Plots of numbers with intervals: a band for each interval, and a line at the estimate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOUR = "C0"  # the colour of all numbers
_ALPHA = 0.3  # the opacity of their intervals
_HEADROOM = 1.15  # the height of axes over that of their highest band


def draw_intervals(
    ax: Axes, left: np.ndarray, right: np.ndarray, value: np.ndarray, low: np.ndarray, high: np.ndarray, interval: str
) -> None:
    """Draw numbers that are not negative, each between two places on the x-axis, as bands with a line at the estimate.

    The line is dotted where the interval includes 0: the data do not show that there is anything.
    """
    ax.bar(left, high - low, right - left, low, align="edge", color=_COLOUR, alpha=_ALPHA, linewidth=0, label=interval)
    is_positive = low > 0
    ax.hlines(value[is_positive], left[is_positive], right[is_positive], color=_COLOUR, linewidth=2, label="estimate")
    if not is_positive.all():
        ends, dots = (left[~is_positive], right[~is_positive]), (0, (1, 2))
        label = "estimate; may be 0"
        ax.hlines(value[~is_positive], *ends, color=_COLOUR, linewidth=1.2, linestyles=dots, label=label)
    share_scale([ax])
    ax.legend(frameon=False, loc="upper center", ncols=3, fontsize="small", columnspacing=1.2, handlelength=1.6)


def share_scale(axes: Sequence[Axes]) -> None:
    """Give axes that share their scale the same end, with room for a legend above the bands."""
    axes[0].set_ylim(0, _HEADROOM * max(ax.dataLim.y1 for ax in axes) or 1.0)


def set_labels(ax: Axes, x: str, y: str) -> None:
    """Name the axes by names of columns, in which a dollar sign is no formula."""
    ax.set_xlabel(str(x), parse_math=False)
    ax.set_ylabel(str(y), parse_math=False)


def draw_open_intervals(ax: Axes, heights: np.ndarray, value: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """Draw numbers on lines of their intervals, one above the other; a line that does not end has an arrow."""
    finite = np.concatenate([column[np.isfinite(column)] for column in (value, low, high)] + [np.zeros(1)])
    first, last = (finite[:-1].min(), finite[:-1].max()) if len(finite) > 1 else (0.0, 0.0)
    margin = 0.08 * (last - first) or 0.08 * abs(first) or 1.0
    for height, number, ends in zip(heights, value, zip(low, high, strict=True), strict=True):
        for end, edge in zip(ends, (first - margin, last + margin), strict=True):
            if np.isfinite(end) and np.isfinite(number):
                ax.hlines(height, *sorted((number, end)), color=_COLOUR, linewidth=2)
            elif not np.isfinite(end):
                start = number if np.isfinite(number) else (first + last) / 2
                arrow = {"arrowstyle": "->", "color": _COLOUR, "linewidth": 2, "shrinkA": 0, "shrinkB": 0}
                ax.annotate("", (edge, height), (start, height), arrowprops=arrow)
    # A stroke across the line, which does not hide a narrow interval as a dot does.
    ax.plot(value, heights, "|", color=_COLOUR, markersize=11, markeredgewidth=1.6)
    ax.xaxis.set_major_formatter(lambda number, _: f"{number:,.10g}")
    ax.set_xlim(first - 1.1 * margin, last + 1.1 * margin)
