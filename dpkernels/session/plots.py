"""Plots of results: bars of a histogram, a map of a cross table, and a forest plot of everything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpkernels.estimation.intervals import format_number

Index = Mapping[str, Sequence[Any]]


def axes_for(indices: Sequence[Index], rows: Sequence[int]) -> list[Any]:
    """Return one above the other the axes of a new figure, each as high as a result with such an index needs."""
    from matplotlib.figure import Figure

    heights = [
        4.0 if _kind(index) is bars else max(2.0, 0.3 * count + 1.2) if _kind(index) is forest else _map_height(index)
        for index, count in zip(indices, rows, strict=True)
    ]
    figure = Figure(figsize=(6, sum(heights)), layout="constrained")
    return list(figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0])


def draw(ax: Any, name: str, index: Index, values: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """Draw values with their intervals, in the way that fits their index."""
    _kind(index)(ax, name, index, values, low, high)


def bars(ax: Any, name: str, index: Index, values: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """Draw a histogram with bands."""
    left, right = np.asarray(index["from"], float), np.asarray(index["to"], float)
    ax.bar(left, np.maximum(values, 0), right - left, align="edge", color="0.8", edgecolor="white")
    ax.hlines(values, left, right, color="C0")
    ax.bar(left, high - low, right - left, low, align="edge", color="C0", alpha=0.3)
    ax.set(xlabel=name.rpartition(" of ")[2], ylabel="rows")


def cell_map(ax: Any, name: str, index: Index, values: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """Draw a map of the cells of two columns of keys, which have one value for every combination."""
    rows, columns = (list(dict.fromkeys(keys)) for keys in index.values())
    ax.imshow(values.reshape(len(rows), len(columns)), cmap="Blues", aspect="auto")
    for k, value in enumerate(values):
        i, j = divmod(k, len(columns))
        text = f"{format_number(value, 3)}\n{format_number(low[k], 3)} to {format_number(high[k], 3)}"
        ax.text(
            j, i, text, ha="center", va="center", fontsize=7, color="white" if value > 0.6 * values.max() else "black"
        )
    ax.set_xticks(range(len(columns)), map(str, columns))
    ax.set_yticks(range(len(rows)), map(str, rows))
    across, along = index
    ax.set(xlabel=along, ylabel=across)


def forest(ax: Any, name: str, index: Index, values: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """Draw each value with its interval on a line, which ends at the value where the interval does not end."""
    labels = [", ".join(map(str, row)) for row in zip(*index.values(), strict=True)]
    places = np.arange(len(values))[::-1]
    ends = np.where(np.isfinite(low), low, values), np.where(np.isfinite(high), high, values)
    ax.hlines(places, *ends, color="C0", linewidth=2)
    ax.plot(values, places, "o", color="C0")
    ax.set_yticks(places if labels else [], labels)
    ax.set_ylim(-0.6, len(values) - 0.4)
    ax.set(xlabel=name, ylabel=", ".join(map(str, index)))
    ax.grid(axis="x", alpha=0.3)


def _kind(index: Index) -> Any:
    names = list(index)
    if "from" in names and len(names) == 2:
        return bars
    return cell_map if len(names) == 2 and {"p", "coefficient", "rank", "from"}.isdisjoint(names) else forest


def _map_height(index: Index) -> float:
    return max(2.0, 0.5 * len(set(next(iter(index.values())))) + 1.2)
