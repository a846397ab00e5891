"""The linear program of the unbiased mechanism of least variance on a grid of inputs and a grid of outputs.

Unknowns are the probabilities p_ij of output y_j given input x_i and, for the worst case, a bound v:

    min v   subject to   sum_j p_ij = 1,   sum_j p_ij y_j = x_i,   S_i = sum_j p_ij (y_j - x_i)^2 <= v,
                         p_ij <= e^eps p_i'j   for neighbouring rows, |i - i'| <= cells

or, for expected inputs with weights a_i, min sum_i a_i S_i. A column (p_ij)_i is a sum of profiles f (see
``profiles``) with nonnegative weights w, which are the unknowns of the program that is solved. For each pair of
adjacent rows it has the difference of their equations, with c = (x_i + x_(i-1))/2 and sums over all profiles and their
reports y:

    sum w (f_i - f_(i-1)) = 0,   sum w (f_i - f_(i-1)) (y - c) = x_i - x_(i-1),
    sum w (f_i - f_(i-1)) (y - c)^2 = S_i - S_(i-1),

In these equations a profile has one entry per step. The number of profiles is too large for one program, so columns are
generated: the program is solved with some profiles, and those with a favourable reduced cost are added, until no other
profile can lower the variance. The first profiles are near those of a program on coarser grids.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from dpkernels.mechanisms.optimal.profiles import Grids

if TYPE_CHECKING:
    from scipy import sparse  # Loaded where it is used: it takes a third of the time of ``import accountants``.

# Share of e^eps that the program leaves unused, so that its solution can be rounded; of eps for small eps.
_SLACKS = (1e-6, 1e-5, 1e-4)

# A column whose probabilities are all below this is a solver's zero.
_ZERO = 1e-9

# The least probability of a used report. Without it, probabilities would fall by e^-eps every sensitivity, below what
# 64-bit integers can represent within the slack.
_LEAST = 2.0**-40

# Up to this size all windows are initial profiles; larger grids begin with the solution for half the rows and outputs.
_FEW_ROWS, _FEW_OUTPUTS = 21, 81
# Profiles are added until they lower the variance by less than this share; the second value is for coarser grids.
_GAIN, _COARSE_GAIN = 1e-4, 1e-2
# Smaller relative reduced costs are rounding errors.
_PROMISE = 1e-7
# The largest number of rounds; the last solution is then returned, whose variance may be above the minimum.
_ROUNDS = 40
# The cost of a residual of a sum or a mean, in variances. If residuals remain, the program has no solution.
_MISSING = 1e4


class ProgramError(RuntimeError):
    """The solver found no mechanism; the message contains the solver's own."""


def least_variance(
    epsilon: float, inputs: np.ndarray, outputs: np.ndarray, cells: int, weights: np.ndarray | None = None
) -> np.ndarray:
    """Return probabilities of outputs given inputs, of least worst-case variance or of least average variance.

    Args:
        epsilon: the budget.
        inputs: x_i, equally spaced and symmetric about 0.
        outputs: y_j, symmetric about 0, beyond the inputs on both sides.
        cells: the largest distance of neighbouring rows.
        weights: a_i of the average; None for the worst case.

    Returns:
        p, with one row per input. Rows sum to 1 and have their input as the mean, up to rounding. The ratios of
        neighbours are below e^eps. Columns of zeros are unused outputs. p is symmetric (x -> -x, y -> -y) if the
        weights are.

    Raises:
        ProgramError: there is no such mechanism on these outputs, or the solver fails.
    """
    symmetric = weights is None or bool(np.allclose(weights, weights[::-1], rtol=1e-9, atol=0))
    for slack in _SLACKS:
        unused = slack * min(1.0, epsilon)
        ratio = math.exp(epsilon) * (1 - unused)
        p = _table(Grids(ratio, inputs, outputs, min(cells, len(inputs) - 1), weights, symmetric))
        change = _balance(p, inputs, outputs)
        if np.abs(change).max() <= unused / 4:
            return p * (1 + change)
    raise ProgramError(f"the solver's rows are off by {np.abs(change).max():.3g}; take fewer points or outputs")


def _table(grids: Grids) -> np.ndarray:
    """Return the sum of the program's profiles, and the least probability of every report that is used."""
    profiles, w, _, missing = _solve(grids, _GAIN)
    if missing > _ZERO:
        raise ProgramError("the linear program has no solution; take more outputs or fewer points")
    p = np.zeros((grids.rows, len(grids.outputs)))
    np.add.at(p.T, profiles[:, 0], w[:, None] * grids.values(profiles, np.arange(grids.rows)))
    p = p + p[::-1, ::-1] if grids.symmetric else p
    return np.where(p.max(axis=0) > _ZERO, p + _LEAST, 0.0)


def _balance(p: np.ndarray, inputs: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Return the relative correction of every probability that gives every row the sum 1 and its input as the mean.

    It is (a_i + b_i z) k with z the report's distance from the input in standard deviations, and k = 1/(1 + z^2), which
    limits the relative change of far reports.
    """
    z = outputs - inputs[:, None]
    z /= math.sqrt((p * z**2).sum(axis=1).max())
    k = 1 / (1 + z**2)
    s0, s1, s2 = ((p * k * z**power).sum(axis=1) for power in range(3))
    r0, r1 = 1 - p.sum(axis=1), -(p * z).sum(axis=1)
    a, b = (s2 * r0 - s1 * r1) / (s0 * s2 - s1**2), (s0 * r1 - s1 * r0) / (s0 * s2 - s1**2)
    return (a[:, None] + b[:, None] * z) * k


def _solve(grids: Grids, gain: float) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Return the profiles, their weights, the objective, and the residuals of the sums and means."""
    rows, outputs = len(grids.inputs), len(grids.outputs)
    if rows <= _FEW_ROWS and outputs <= _FEW_OUTPUTS:
        return _generate(grids, grids.all_windows(), float(grids.outputs[-1]), gain)
    coarse = _coarse(grids)
    profiles, _, objective, _ = _solve(coarse, _COARSE_GAIN)
    return _generate(grids, grids.near(coarse, profiles), math.sqrt(max(objective, grids.gap**2)), gain)


def _coarse(grids: Grids) -> Grids:
    """Return half the rows and half the outputs over the same ranges; all of them if they are few."""
    x, y, cells = grids.inputs, grids.outputs, grids.cells
    if len(x) > _FEW_ROWS:
        x = np.linspace(x[0], x[-1], len(x) // 4 * 2 + 1)
        cells = -(-cells * (len(x) - 1) // (grids.rows - 1))
    if len(y) > _FEW_OUTPUTS // 2:
        y = np.linspace(y[0], y[-1], len(y) // 4 * 2 + 1)
    weights = None if grids.weights is None else np.interp(x, grids.inputs, grids.weights)
    return Grids(grids.ratio, x, y, cells, weights, grids.symmetric)


def _generate(
    grids: Grids, profiles: np.ndarray, unit: float, gain: float
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Solve by column generation from some profiles, until new ones gain less than ``gain``.

    ``unit`` is the unit of length of the equations.
    """
    profiles, before = grids.unique(profiles), math.inf
    for _ in range(_ROUNDS):
        w, objective, missing, prices = _master(grids, profiles, unit)
        used = profiles[w > 0], w[w > 0], objective * unit**2, missing
        asked, value = grids.best(*prices)
        gained = missing <= _ZERO and before - objective < gain * objective
        if gained or value.max() * w.sum() <= _PROMISE * objective:
            break
        before = objective if missing <= _ZERO else math.inf
        profiles = grids.unique(np.concatenate([profiles, asked[value > 1e-3 * value.max()]]))
    return used


def _master(
    grids: Grids, profiles: np.ndarray, unit: float
) -> tuple[np.ndarray, float, float, tuple[np.ndarray, np.ndarray]]:
    """Return the profiles' weights, the objective, the residuals, and the values of f_base and f_i - f_(i-1)."""
    from scipy import sparse

    equal, equal_to, squares = _conditions(grids, profiles, unit)
    count, first = len(grids.centres), 1 if grids.symmetric else 0
    missing = sparse.hstack([sparse.identity(len(equal_to)), -sparse.identity(len(equal_to))])
    steps = sparse.diags([1.0, -1.0], [0, -1], (count, count))
    if grids.weights is None:
        # S_i = v - t_i, with a slack t_i of at least 0.
        bound = sparse.csr_matrix(([1.0], ([0], [0])), (count, 1))
        own, cost = sparse.hstack([steps, -bound]), np.append(np.zeros(count), 1.0)
    else:
        own, cost = -steps, grids.weights[grids.base :] * np.where(np.arange(count) >= first, 1 + first, 1)
    matrix = sparse.bmat([[equal, None, missing], [squares, own, None]], "csc")
    cost = np.concatenate([np.zeros(len(profiles)), cost, np.full(missing.shape[1], _MISSING)])
    found, prices = _optimum(cost, matrix, np.concatenate([equal_to, np.zeros(count)]))
    without = found[-missing.shape[1] :].sum()
    prices = np.insert(prices, count, 0.0) if first else prices
    return found[: len(profiles)], cost @ found - _MISSING * without, without, _values(grids, prices, unit)


def _optimum(cost: np.ndarray, matrix: sparse.csc_matrix, equal_to: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    from scipy.optimize import linprog

    for method in ("highs-ipm", "highs-ds"):
        result = linprog(cost, A_eq=matrix, b_eq=equal_to, method=method)
        if result.status == 0:
            return result.x, result.eqlin.marginals
    raise ProgramError(f"the linear program has no solution ({result.message}); take more outputs or fewer points")


def _conditions(
    grids: Grids, profiles: np.ndarray, unit: float
) -> tuple[sparse.csr_matrix, np.ndarray, sparse.csr_matrix]:
    """Return the matrix of sums and means, its right side, and the matrix of second moments, by profile."""
    from scipy import sparse

    sums, means, squares = _equations(grids, profiles, unit)
    wanted = np.zeros((2, len(grids.centres)))
    wanted[0, 0], wanted[1, 1:] = 1.0, grids.gap / unit
    if not grids.symmetric:
        return sparse.vstack([sums, means], "csr"), wanted.ravel(), squares
    # For symmetric profiles the middle row has the mean 0.
    return sparse.vstack([sums, means[1:]], "csr"), np.append(wanted[0], wanted[1, 1:]), squares


def _equations(grids: Grids, profiles: np.ndarray, unit: float) -> list[sparse.csr_matrix]:
    """Return each profile's part of the base row's sum, mean and variance, and of their differences above it."""
    from scipy import sparse

    count, made = len(profiles), []
    each = np.arange(count)
    for shown in (profiles, grids.mirrored(profiles)) if grids.symmetric else (profiles,):
        j, right, left = grids.parts(shown)
        made.append((np.full(count, grids.base), each, j, grids.values(shown, np.array([grids.base]))[:, 0]))
        for fall, last, first in zip(grids.falls, right.T, left.T, strict=True):
            for i, change in ((last + 1, -fall), (first, fall)):
                at = (i > grids.base) & (i < grids.rows)
                made.append((i[at], each[at], j[at], np.full(at.sum(), change)))
    i, column, j, change = (np.concatenate(part) for part in zip(*made, strict=True))
    row = i - grids.base
    z = (grids.outputs[j] - grids.centres[row]) / unit
    shape = len(grids.centres), count
    return [sparse.csr_matrix((change * z**power, (row, column)), shape) for power in range(3)]


def _values(grids: Grids, prices: np.ndarray, unit: float) -> tuple[np.ndarray, np.ndarray]:
    """Return, per report, the values of f_base and of f_i - f_(i-1), i = 1, .., n - 1, for a profile and its mirror."""
    z = (grids.outputs - grids.centres[:, None]) / unit
    value = sum(price[:, None] * z**power for power, price in enumerate(prices.reshape(3, -1)))
    if grids.symmetric:
        return value[0] + value[0, ::-1], np.concatenate([-value[:0:-1, ::-1], value[1:]])
    return value[0], value[1:]
