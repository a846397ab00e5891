"""Weights of reports whose mean is the square of the input, from its table: what variances are estimated by."""

from __future__ import annotations

import numpy as np

from dpkernels.exact.rows.table import RowTable
from dpkernels.exact.windows.table import WindowTable

# With fewer rows than this the rounding of inputs to rows, at most gap^2/4, is not small beside squares of inputs.
_FEWEST_ROWS = 16
# How far the means of weights may be from the squares, over the interval's width squared. Some tables of ``optimal``,
# solutions of linear programs, have fewer different codes than rows: there no weights are right for every row.
_MOST_MISSED = 5e-3

Squares = tuple[np.ndarray, float]


def window_squares(table: WindowTable) -> Squares | None:
    """(N,) weights g with E[g(code) | x] = (x - middle)^2 of a window table; None if it does not tell.

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
    """(m,) weights of codes likewise, the best ones of least variance for uniform inputs, and how far they miss.

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
    missed = float(np.abs(probabilities.T @ g - target).max())
    return (g, missed) if missed <= _MOST_MISSED * (inputs[-1] - inputs[0]) ** 2 else None
