"""Grids for the optimal mechanism's program: inputs, distance of neighbours in rows, outputs, expected inputs.

Lengths are in half widths of the input interval, from its middle: inputs are in [-1, 1].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpkernels import checks

MOST_EPSILON, MOST_RATIO = 12.0, 16.0  # Of the width over the sensitivity. Larger ones exceed the limits below.
_MOST_WEIGHTS, _MOST_POINTS, _MOST_OUTPUTS = 1 << 21, 1401, 2049  # Probabilities, rows and outputs of a table.
_MOST_NEEDED = 1000  # Rows that a budget may require by default.
_ROUNDING = 0.008  # The share of the variance that rounding inputs to rows may add.
_FEWEST_LOCAL, _FEWEST_CELLS = 33, 4  # Rows for local DP, and steps per sensitivity for central DP.
_MARGIN = 2.0**-15  # Of a row, for rounding inputs to 2^16 steps a row.


@dataclass(frozen=True)
class InputGrid:
    """The rows of the program."""

    points: int  # n, odd.
    cells: int  # The largest distance of neighbours, in rows.
    reach: float  # The outermost rows' inputs are at -reach and reach; at least 1.

    @property
    def inputs(self) -> np.ndarray:
        return self.reach * np.linspace(-1, 1, self.points)


def grid(epsilon: float, ratio: float, points: int | None) -> InputGrid:
    """Return the rows for a budget and the interval's width over the sensitivity, at most 1 for local DP.

    By default there are as many points as keep the variance of rounding small. ``points`` is odd, in 3..1401.
    """
    if points is not None and checks.whole("points", points, 3, _MOST_POINTS) % 2 == 0:
        raise ValueError(f"points: {points} is even; the middle needs a row, so an odd number is needed")
    if points is not None:
        steps, cells = points - 1, max(1, math.ceil((points - 1) / ratio * (1 - 1e-4)))
    elif ratio <= 1:
        steps = cells = max(_FEWEST_LOCAL - 1, 2 * math.ceil(_cells_for(epsilon, ratio) / 2))
    else:
        steps, cells = _rows_for(epsilon, ratio)
    return InputGrid(steps + 1, steps, 1.0) if cells >= steps else _near_grid(ratio, steps, cells)


def _cells_for(epsilon: float, ratio: float) -> float:
    """Return the steps per sensitivity D with which rounding adds at most ``_ROUNDING`` of the variance."""
    # The least variance is above D^2 times this.
    least = min(0.5, 0.15 * (1 + ratio)) * math.exp(-2 * epsilon / 3) * (1 + 1.4 / epsilon)
    return 1 / math.sqrt(4 * _ROUNDING * least)


def most_ratio(epsilon: float) -> float:
    """Return the largest width of the interval over the sensitivity, R/D, that there are grids for at a budget."""
    # Above 5 and 8/eps the Central Piecewise Mechanism is within 2 % of the optimum.
    return min(MOST_RATIO, max(5.0, 8 / epsilon), _MOST_NEEDED / _cells_for(epsilon, MOST_RATIO))


def covers(epsilon: float, ratio: float = 1.0) -> bool:
    """Return whether there are grids for a budget and a ratio."""
    return epsilon <= MOST_EPSILON and ratio <= most_ratio(epsilon)


def _rows_for(epsilon: float, ratio: float) -> tuple[int, int]:
    """Return the steps between rows, an even number, and the steps of a sensitivity with the closest fit."""
    least = max(_FEWEST_CELLS, math.ceil(_cells_for(epsilon, ratio)), math.ceil(16 / ratio))

    def waste(fit: tuple[int, int]) -> float:
        # Rows that reach beyond the interval, or neighbours further apart than necessary, cost more.
        excess = fit[0] / (ratio * fit[1])
        return (excess - 1 if excess >= 1 else 2 * (1 / excess - 1)) + 1e-3 * fit[1] / least

    fits = [
        (2 * half, cells)
        for cells in range(least, least + 4)
        for half in {math.floor(ratio * cells / 2), math.ceil(ratio * cells / 2 * (1 - 1e-9))}
    ]
    return min(fits, key=waste)


def _near_grid(ratio: float, steps: int, cells: int) -> InputGrid:
    """Return rows spaced such that a sensitivity is ``cells`` of them, less the margin."""
    reach = max(1.0, steps / (ratio * (cells - _MARGIN)))
    return InputGrid(steps + 1, cells, reach * (1 + 1e-12))


def coarse(fine: InputGrid, ratio: float) -> InputGrid:
    """Return a smaller program that has about the same outputs."""
    if ratio <= 1:
        return InputGrid(17, 16, 1.0)
    cells = min(fine.cells, 4 if ratio <= 4 else 2)
    return _near_grid(ratio, max(4, 2 * math.ceil(ratio * cells / 2)), cells)


def first_range(epsilon: float, ratio: float) -> float:
    """Return an initial output range: Duchi's for one sensitivity, and room beyond."""
    duchi = 1 / math.tanh(epsilon / 2)
    return 1.6 * duchi if ratio <= 1 else 1 + (1.3 * (duchi - 1) + 0.6) / ratio


def spacing(epsilon: float, ratio: float, wanted: float, half: int) -> float:
    """Return the distance of 2 half + 1 outputs that reach about ``wanted``; Duchi's reports are among them."""
    if ratio > 1:
        return wanted / half
    duchi = 1 / math.tanh(epsilon * (1 - 2e-6) / 2)
    return duchi / max(1, math.floor(half * duchi / wanted))


def outputs_for(rows: InputGrid, outputs: int | None) -> int:
    """Return (m - 1)/2 for m outputs, m odd; by default m is near the number of rows, and at least 121."""
    if outputs is None:
        fewest = 60 if rows.points > 40 and rows.cells < rows.points - 1 else 80
        return max(fewest, math.ceil(0.54 * (rows.points - 1)))
    if checks.whole("outputs", outputs, 9, _MOST_OUTPUTS) % 2 == 0:
        raise ValueError(f"outputs: {outputs} is even; the middle is one of them, so an odd number is needed")
    if outputs * rows.points > _MOST_WEIGHTS:
        raise ValueError(f"outputs: {outputs} for {rows.points} inputs are more than {_MOST_WEIGHTS} probabilities")
    return outputs // 2


def expected_inputs(objective: Any, lower: float, upper: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the edges in [-1, 1] and the masses of a histogram of inputs, from masses or (edges, masses)."""
    given = objective if isinstance(objective, tuple) else (None, objective)
    if len(given) != 2:
        raise ValueError(f"objective: a tuple of {len(given)}; (edges, weights) is one of 2")
    masses = _vector("weights", given[1])
    edges = np.linspace(lower, upper, len(masses) + 1) if given[0] is None else _vector("edges", given[0])
    if len(edges) != len(masses) + 1 or np.any(np.diff(edges) <= 0) or edges[0] < lower or edges[-1] > upper:
        raise ValueError(f"objective: {len(masses)} weights need {len(masses) + 1} rising edges in [{lower}, {upper}]")
    if np.any(masses < 0) or not masses.max() > 0:
        raise ValueError("objective: weights must be at least 0, one of them above")
    masses = masses / masses.max()  # Without this the sum may overflow.
    return (edges - (lower + upper) / 2) / ((upper - lower) / 2), masses / masses.sum()


def _vector(what: str, values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iuf" or not np.all(np.isfinite(array)):
        raise ValueError(f"objective: {what} must be a 1-D array of finite numbers, or the objective is 'worst'")
    return array.astype(np.float64)


def row_weights(edges: np.ndarray, masses: np.ndarray, rows: InputGrid) -> np.ndarray:
    """Return the probability of each row, for inputs from the histogram (even within bins) and rounded to the rows."""
    step = 2 * rows.reach / (rows.points - 1)
    u = np.clip((edges[:, None] - rows.inputs) / step, -1, 1)
    until = np.where(u < 0, (u + 1) ** 2 / 2, 1 - (1 - u) ** 2 / 2) * step
    return (masses / np.diff(edges)) @ np.diff(until, axis=0)


def largest_ratio(probabilities: np.ndarray, cells: int) -> float:
    """Return the largest ratio of a column's entries at most ``cells`` rows apart."""
    runs = np.lib.stride_tricks.sliding_window_view(probabilities, min(cells, len(probabilities) - 1) + 1, axis=0)
    return float((runs.max(axis=-1) / runs.min(axis=-1)).max())
