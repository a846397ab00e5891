"""Plots of results: bars of a histogram, a map of a cross table, and a forest plot of everything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from dpkernels.decimals import format_number
from dpkernels.estimation.pictures import draw_intervals, draw_open_intervals, set_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Index: TypeAlias = Mapping[str, Sequence[object]]  # of columns, which have one key for each value


def new_figure(indices: Sequence[Index], rows: Sequence[int]) -> Figure:
    """Return a figure with axes one above the other, each as high as a result with such an index needs."""
    from matplotlib.figure import Figure

    heights = [_height(index, count) for index, count in zip(indices, rows, strict=True)]
    figure = Figure(figsize=(6, sum(heights)), layout="constrained")
    figure.subplots(len(heights), 1, height_ratios=heights)
    return figure


def bars(ax: Axes, name: str, index: Index, values: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """Draw a histogram as bands with lines at the estimates; no number of rows is below 0."""
    left, right = np.asarray(index["from"], float), np.asarray(index["to"], float)
    values, low, high = (np.maximum(column, 0) for column in (values, low, high))
    draw_intervals(ax, left, right, values, low, high, "interval")
    set_labels(ax, name.rpartition(" of ")[2], "rows")
    ax.set_xlim(left.min(), right.max())


def cell_map(ax: Axes, name: str, index: Index, values: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """Draw a map of the cells of two columns of keys, which have one value for every combination."""
    rows, columns = (list(dict.fromkeys(keys)) for keys in index.values())
    ax.imshow(values.reshape(len(rows), len(columns)), cmap="Blues", aspect="auto")
    for k, value in enumerate(values):
        i, j = divmod(k, len(columns))
        text = f"{format_number(value, 3)}\n{format_number(low[k], 3)} to {format_number(high[k], 3)}"
        ax.text(
            j, i, text, ha="center", va="center", fontsize=7, color="white" if value > 0.6 * values.max() else "black"
        )
    ax.set_xticks(range(len(columns)), map(str, columns), parse_math=False)
    ax.set_yticks(range(len(rows)), map(str, rows), parse_math=False)
    row_name, column_name = index
    set_labels(ax, column_name, row_name)


def forest(ax: Axes, name: str, index: Index, values: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """Draw each value with its interval on a line, which has an arrow where the interval does not end."""
    labels = [_label(dict(zip(index, row, strict=True))) for row in zip(*index.values(), strict=True)]
    y = np.arange(len(values))[::-1]
    draw_open_intervals(ax, y, values, low, high)
    ax.set_yticks(y if labels else [], labels, parse_math=False)
    ax.set_ylim(-0.6, len(values) - 0.4)
    set_labels(ax, name, ", ".join(map(str, index)).replace("from, to", "from and to"))
    ax.grid(axis="x", alpha=0.3)


def _label(row: Mapping[str, object]) -> str:
    """Return the keys of a value in words; the two edges of a bin are one of them."""
    edges = f"{format_number(row['from'], 6)} to {format_number(row['to'], 6)}" if "from" in row else ""
    return ", ".join(edges if key == "from" else str(cell) for key, cell in row.items() if key != "to")


def drawing(index: Index) -> Callable[[Axes, str, Index, np.ndarray, np.ndarray, np.ndarray], None]:
    """Return the function that draws values with such an index."""
    names = list(index)
    if "from" in names and len(names) == 2:
        return bars
    return cell_map if len(names) == 2 and {"p", "coefficient", "rank", "from"}.isdisjoint(names) else forest


def _height(index: Index, values: int) -> float:
    """Return the height in inches of axes for so many values."""
    if drawing(index) is bars:
        return 4.0
    if drawing(index) is cell_map:
        return max(2.0, 0.5 * len(set(next(iter(index.values())))) + 1.2)
    return max(2.0, 0.3 * values + 1.2)
