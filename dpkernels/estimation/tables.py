"""Quantities of tables for estimation: probabilities, means, and weights whose mean is the square of the input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dpkernels.exact.kernels import report_kernel
from dpkernels.exact.rows import RowTable
from dpkernels.exact.windows import WindowTable

# With fewer rows than this, rounding inputs to rows adds up to gap^2/4, which is not small compared with squares.
_FEWEST_ROWS = 16
# The largest bias of weights for squares, relative to the squared width of the interval. Some tables of ``optimal``
# have fewer codes than rows; no weights are then unbiased for every row.
_LARGEST_BIAS = 5e-3

Squares = tuple[np.ndarray, float]


def unbiased(table: WindowTable | RowTable) -> WindowTable | RowTable:
    """Return the table with reports of a placed window stretched, so that their means are the inputs."""
    return replace(table, is_placed=False) if isinstance(table, WindowTable) and table.is_placed else table


def squares_of(table: WindowTable | RowTable) -> Squares | None:
    """Return ``window_squares`` or ``row_squares``, of stretched reports."""
    table = unbiased(table)
    return window_squares(table) if isinstance(table, WindowTable) else row_squares(table)


def window_squares(table: WindowTable) -> Squares | None:
    """Return (N,) weights g with E[g(code) | x] = (x - middle)^2 of a window table, or None if there are none.

    E[(y - middle)^2 | x] = A + (1 + c) (x - middle)^2 + (1 + c) f (1 - f) gap^2 at the share f between two rows, whose
    mean over f is gap^2/6 (``WindowTable.variance_terms``).
    """
    if table.shifts < _FEWEST_ROWS:
        return None
    A, c, _ = map(float, table.variance_terms)
    away = float(table.step) * (np.arange(table.codes) - (table.codes - 1) / 2)
    gap = (table.upper - table.lower) / table.shifts
    return (away**2 - A) / (1 + c) - gap**2 / 6, 0.0


def row_squares(table: RowTable) -> Squares | None:
    """Return (m,) weights of codes likewise, the best ones of least variance for uniform inputs, and how far they miss.

    min sum_j q_j g_j^2 with A' g = t is g = A_q (A' A_q)^+ t, A[j, i] the probability of code j in row i, q its
    mean over rows, and A_q[j, i] = A[j, i]/q_j.
    """
    if table.shifts < _FEWEST_ROWS:
        return None
    inputs = np.array([float(table.row_input(i) - table.middle) for i in range(table.rows)])
    gap = float(table.gap)
    probabilities = table.weights.T / 2.0**table.bits
    target = inputs**2 - gap**2 / 6
    scaled = probabilities / probabilities.mean(axis=1, keepdims=True)
    g = scaled @ np.linalg.lstsq(probabilities.T @ scaled, target, rcond=1e-12)[0]
    bias_bound = float(np.abs(probabilities.T @ g - target).max())
    return (g, bias_bound) if bias_bound <= _LARGEST_BIAS * (inputs[-1] - inputs[0]) ** 2 else None


def reports_of(table: WindowTable | RowTable) -> np.ndarray:
    """Return the reports of all codes, to the bit."""
    if isinstance(table, WindowTable):
        doubled = 2 * np.arange(table.codes) - (table.codes - 1)
    else:
        doubled = 2 * np.array(table.places)
    return report_kernel(table.middle, table.step)(doubled, np.float64)


def inputs_of(table: WindowTable | RowTable) -> np.ndarray:
    """Return (rows,) the inputs of the rows."""
    first, last = (float(table.row_input(i)) for i in (0, table.shifts))
    return np.linspace(first, last, table.shifts + 1)


def integrals_of(table: WindowTable | RowTable, x: np.ndarray) -> np.ndarray:
    """Return (codes, len(x)) of P(code | u), which is linear between rows, over u from the first row up to x."""
    place, i, f = _placed(table, x)
    whole, first, second = _sliding(table, i) if isinstance(table, WindowTable) else _by_row(table, i)
    sums = whole + f * first + f**2 / 2 * (second - first)
    if isinstance(table, WindowTable):
        sums += np.outer(table.base, place)
    inputs = inputs_of(table)
    return sums * (inputs[-1] - inputs[0]) / table.shifts / 2.0**table.bits


def probabilities_of(table: WindowTable | RowTable, x: np.ndarray) -> np.ndarray:
    """Return (codes, len(x)) P(code | x), which is linear between rows."""
    _, i, f = _placed(table, x)
    _, first, second = _sliding(table, i) if isinstance(table, WindowTable) else _by_row(table, i)
    base = table.base[:, None] if isinstance(table, WindowTable) else 0.0
    return (base + first + f * (second - first)) / 2.0**table.bits


def _placed(table: WindowTable | RowTable, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return inputs in units of rows, the row before each, and the share of the way to the next row."""
    inputs = inputs_of(table)
    place = np.clip((x - inputs[0]) / (inputs[-1] - inputs[0]), 0.0, 1.0) * table.shifts
    i = np.minimum(place.astype(int), table.shifts - 1)
    return place, i, place - i


def _by_row(table: RowTable, i: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (codes, len(i)) weights' integrals over rows up to i, in rows, and the weights of rows i and i + 1."""
    W = table.weights.T.astype(np.float64)
    whole = np.zeros_like(W)
    np.cumsum((W[:, 1:] + W[:, :-1]) / 2, axis=1, out=whole[:, 1:])
    return whole[:, i], W[:, i], W[:, i + 1]


def _sliding(table: WindowTable, i: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the same sum for the window alone, window[code - row], from its cumulative sums."""
    sums, w = np.append(0.0, np.cumsum(table.window.astype(np.float64))), len(table.window)
    padded = np.concatenate([np.zeros(table.shifts + 1), table.window, np.zeros(table.shifts + 1)])
    code = np.arange(table.codes)[:, None]

    def below(n: np.ndarray) -> np.ndarray:
        return sums[np.clip(n, 0, w)]

    whole = (below(code + 1) - below(code + 1 - i) + below(code) - below(code - i)) / 2
    return whole, padded[code - i + table.shifts + 1], padded[code - i + table.shifts]


def row_means(table: WindowTable | RowTable, weights: np.ndarray) -> np.ndarray:
    """Return (rows,) the mean of weights of codes for every row."""
    if isinstance(table, RowTable):
        return table.weights @ weights / 2.0**table.bits
    window, base = (part / 2.0**table.bits for part in (table.window, table.base))
    return base @ weights + np.correlate(weights, window, "valid")
