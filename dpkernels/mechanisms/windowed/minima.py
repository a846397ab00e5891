"""Minima of many functions of one variable at once, by the same algorithm as SciPy's scalar minimisation."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

# As in SciPy's ``fminbound``:
_GOLDEN = 0.5 * (3.0 - math.sqrt(5.0))  # the smaller part of a golden section,
_ROOT_EPS = math.sqrt(2.2e-16)  # the root of the rounding unit,
_MAX_EVALUATIONS = 500  # and the most evaluations of a function.
_BLOCK = 1 << 12  # Functions that are evaluated together, so that their numbers stay in a core's cache.

Functions = Callable[[np.ndarray, np.ndarray], np.ndarray]


def minima_on_grid(functions: Functions, count: int, grid: np.ndarray, xatol: float) -> np.ndarray:
    """Return, for each of some functions, the x of ``solve.minimum_and_value_on_grid``.

    ``functions(x, i)`` returns the value at x[j] of function i[j], for every j.
    """
    blocks = [np.arange(first, min(first + _BLOCK, count)) for first in range(0, count, _BLOCK)]
    return np.concatenate([_block_minima(functions, block, grid, xatol) for block in blocks])


def _block_minima(functions: Functions, block: np.ndarray, grid: np.ndarray, xatol: float) -> np.ndarray:
    values = np.stack([functions(np.full(len(block), x), block) for x in grid])
    best = values.argmin(0)
    low, high = grid[np.maximum(best - 1, 0)], grid[np.minimum(best + 1, len(grid) - 1)]
    x, value = bounded_minima(lambda x, indices: functions(x, block[indices]), low, high, xatol)
    best_value = values[best, np.arange(len(block))]
    # Brent's method may miss the minimum of a function that jumps.
    return np.where(value <= best_value + 1e-9 * np.abs(best_value), x, grid[best])


def bounded_minima(
    functions: Functions, low: np.ndarray, high: np.ndarray, xatol: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return (x, value) of the minima between low and high, by the bounded method of Brent as SciPy writes it.

    Every function takes the steps that it would take alone, so its result does not depend on the others.
    """
    a, b = low.astype(float), high.astype(float)
    fulc = a + _GOLDEN * (b - a)
    nfc, xf = fulc.copy(), fulc.copy()
    rat, e = np.zeros_like(a), np.zeros_like(a)
    fx = functions(xf, np.arange(len(a)))
    ffulc, fnfc = fx.copy(), fx.copy()
    xm = 0.5 * (a + b)
    tol1 = _ROOT_EPS * np.abs(xf) + xatol / 3.0
    tol2 = 2.0 * tol1
    evaluations = 1
    while len(i := np.flatnonzero(np.abs(xf - xm) > tol2 - 0.5 * (b - a))) and evaluations < _MAX_EVALUATIONS:
        x0, f0, tol = xf[i], fx[i], tol1[i]
        # A parabola through the three best points, where the last but one step was long enough.
        r = (x0 - nfc[i]) * (f0 - ffulc[i])
        q = (x0 - fulc[i]) * (f0 - fnfc[i])
        p = (x0 - fulc[i]) * q - (x0 - nfc[i]) * r
        q = 2.0 * (q - r)
        p, q = np.where(q > 0.0, -p, p), np.abs(q)
        before = e[i]
        is_tried = np.abs(before) > tol
        is_parabolic = is_tried & (np.abs(p) < np.abs(0.5 * q * before)) & (p > q * (a[i] - x0)) & (p < q * (b[i] - x0))
        step = (p + 0.0) / np.where(is_parabolic, q, 1.0)
        x = x0 + step
        towards_middle = np.sign(xm[i] - x0) + (xm[i] - x0 == 0)
        step = np.where((x - a[i] < 2.0 * tol) | (b[i] - x < 2.0 * tol), tol * towards_middle, step)
        golden = np.where(x0 >= xm[i], a[i] - x0, b[i] - x0)
        e[i] = np.where(is_parabolic, rat[i], golden)
        rat[i] = np.where(is_parabolic, step, _GOLDEN * golden)
        direction = np.sign(rat[i]) + (rat[i] == 0)
        x = x0 + direction * np.maximum(np.abs(rat[i]), tol)
        fu = functions(x, i)
        evaluations += 1
        is_better = fu <= f0
        a[i] = np.where(is_better & (x >= x0), x0, np.where(~is_better & (x < x0), x, a[i]))
        b[i] = np.where(is_better & ~(x >= x0), x0, np.where(~is_better & ~(x < x0), x, b[i]))
        is_second = ~is_better & ((fu <= fnfc[i]) | (nfc[i] == x0))
        is_third = ~is_better & ~is_second & ((fu <= ffulc[i]) | (fulc[i] == x0) | (fulc[i] == nfc[i]))
        moves = is_better | is_second
        fulc[i], ffulc[i] = (
            np.where(moves, nfc[i], np.where(is_third, x, fulc[i])),
            np.where(moves, fnfc[i], np.where(is_third, fu, ffulc[i])),
        )
        nfc[i], fnfc[i] = (
            np.where(is_better, x0, np.where(is_second, x, nfc[i])),
            np.where(is_better, f0, np.where(is_second, fu, fnfc[i])),
        )
        xf[i], fx[i] = np.where(is_better, x, x0), np.where(is_better, fu, f0)
        xm[i] = 0.5 * (a[i] + b[i])
        tol1[i] = _ROOT_EPS * np.abs(xf[i]) + xatol / 3.0
        tol2[i] = 2.0 * tol1[i]
    return xf, fx
