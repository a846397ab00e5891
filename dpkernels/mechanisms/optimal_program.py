"""The linear program of the unbiased mechanism of least variance on a grid of inputs and a grid of outputs.

Unknowns are the probabilities p_ij of output y_j given input x_i and, for the worst case, a bound v:

    min v   subject to   sum_j p_ij = 1,   sum_j p_ij y_j = x_i,   sum_j p_ij (y_j - x_i)^2 <= v,
                         p_ij <= e^eps p_i'j   for neighbouring rows, |i - i'| <= cells

or, for expected inputs with weights a_i, min sum_i a_i sum_j p_ij y_j^2. Where any two rows are
neighbours, p_ij = c_j + e_ij with 0 <= e_ij <= (e^eps - 1) c_j; else unknown minima over 1, 2, 4, .. neighbouring rows
take the place of the pairs of rows: a few for every p_ij, not 2 cells. Symmetry halves the unknowns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sparse
from scipy.optimize import linprog

# Share of e^eps that the program leaves unused, so that its solution can be rounded; of eps for small eps.
_SLACKS = (1e-6, 1e-5, 1e-4)

# A column whose probabilities are all below this is a solver's zero.
_ZERO = 1e-9

# The least probability of a report that is used. Far from its place e^(-eps) every sensitivity would soon be less than
# integers of 64 bits can hold to the solver's slack.
_LEAST = 2.0**-40


class ProgramError(RuntimeError):
    """The solver found no mechanism; says what it reports."""


def least_variance(
    epsilon: float, inputs: np.ndarray, outputs: np.ndarray, cells: int, weights: np.ndarray | None = None
) -> np.ndarray:
    """Probabilities of outputs given inputs, of least worst-case variance or of least average variance.

    Args:
        epsilon: the budget.
        inputs: x_i, equally spaced and symmetric about 0.
        outputs: y_j, symmetric about 0, beyond the inputs on both sides.
        cells: rows so many apart, or fewer, are neighbours.
        weights: a_i of the average; None for the worst case.

    Returns:
        p, one row an input: rows sum to 1 and have their input as mean to rounding, and neighbours' ratios are below
        e^eps. Columns of zeros are outputs not used. Symmetric (x -> -x, y -> -y) unless the weights are not.

    Raises:
        ProgramError: there is no such mechanism on these outputs, or the solver fails.
    """
    symmetric = weights is None or bool(np.allclose(weights, weights[::-1], rtol=1e-9, atol=0))
    for slack in _SLACKS:
        ratio = np.exp(epsilon) * (1 - slack * min(1.0, epsilon))
        p = _solve(ratio, inputs, outputs, cells, weights, symmetric)
        p = lifted(np.where(p.max(axis=0) < _ZERO, 0.0, np.maximum(p, _LEAST)), ratio, cells)
        factor = _balance(p, inputs, outputs)
        if np.abs(factor - 1).max() <= slack * min(1.0, epsilon) / 4:
            return p * factor
    raise ProgramError(f"the solver's rows are off by {np.abs(factor - 1).max():.3g}; take fewer points or outputs")


def lifted(p: np.ndarray, ratio: float, cells: int) -> np.ndarray:
    """The least probabilities (not normalised) above p whose neighbours' ratios are at most ``ratio``."""
    if cells >= len(p) - 1:
        return np.maximum(p, p.max(axis=0) / ratio)
    for _ in range(-(-len(p) // cells)):
        widened = p.copy()
        for shift in range(1, cells + 1):
            widened[shift:] = np.maximum(widened[shift:], p[:-shift] / ratio)
            widened[:-shift] = np.maximum(widened[:-shift], p[shift:] / ratio)
        p = widened
    return p


def _balance(p: np.ndarray, inputs: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Factors a_i + b_i y_j, near 1, that give every row the sum 1 and its input as mean."""
    s0, s1, s2 = (p @ outputs**power for power in range(3))
    a, b = (s2 - s1 * inputs) / (s0 * s2 - s1**2), (s0 * inputs - s1) / (s0 * s2 - s1**2)
    return a[:, None] + b[:, None] * outputs


@dataclass
class _Program:
    """Unknowns, numbered as they are made, and inequalities  left <= factor right  between them."""

    symmetric: bool
    count: int = 0
    left: list[np.ndarray] = field(default_factory=list)
    right: list[np.ndarray] = field(default_factory=list)
    factor: list[np.ndarray] = field(default_factory=list)

    def table(self, rows: int, columns: int) -> np.ndarray:
        """Numbers of new unknowns in a table; turned by half a circle it is itself, if the program is symmetric."""
        numbers = np.arange(rows * columns).reshape(rows, columns)
        if self.symmetric:
            numbers = np.minimum(numbers, numbers[::-1, ::-1])
        different, place = np.unique(numbers, return_inverse=True)
        first, self.count = self.count, self.count + len(different)
        return first + place.reshape(rows, columns)

    def at_most(self, left: np.ndarray, right: np.ndarray, factor: float = 1.0) -> None:
        """left <= factor right, for tables of unknowns that broadcast."""
        left, right = np.broadcast_arrays(left, right)
        self.left.append(left.ravel())
        self.right.append(right.ravel())
        self.factor.append(np.full(left.size, factor))

    def inequalities(self) -> sparse.csr_matrix:
        """left - factor right <= 0, each once."""
        parts = (np.concatenate(part) for part in (self.left, self.right, self.factor))
        left, right, factor = np.unique(np.stack(list(parts)), axis=1)
        rows = np.arange(len(left))
        entries = np.concatenate([np.ones(len(left)), -factor])
        places = np.concatenate([rows, rows]), np.concatenate([left, right]).astype(int)
        return sparse.csr_matrix((entries, places), (len(left), self.count))

    def values(self, *tables: np.ndarray) -> sparse.csr_matrix:
        """The matrix that makes of all unknowns the sum of some tables, flat."""
        size = tables[0].size
        numbers = np.concatenate([table.ravel() for table in tables])
        places = np.tile(np.arange(size), len(tables)), numbers
        return sparse.csr_matrix((np.ones(len(numbers)), places), (size, self.count))


def _any_two(program: _Program, n: int, m: int, ratio: float) -> sparse.csr_matrix:
    """p_ij = c_j + e_ij with 0 <= e_ij <= (ratio - 1) c_j."""
    least, extra = program.table(1, m), program.table(n, m)
    program.at_most(extra, least, ratio - 1)
    return program.values(np.broadcast_to(least, (n, m)), extra)


def _near(program: _Program, n: int, m: int, ratio: float, cells: int) -> sparse.csr_matrix:
    """p_ij <= ratio p_i'j for |i - i'| <= cells, by unknown minima of ratio p over runs of rows.

    With minima of p the solver's tolerance, which is absolute, would be far more than e^-eps of it.
    """
    p = minima = program.table(n, m)
    length = 1
    while 2 * length <= cells + 1:
        shorter, minima = minima, program.table(n - 2 * length + 1, m)
        for run in (shorter[: len(minima)], shorter[length:]):
            program.at_most(minima, run, ratio if length == 1 else 1.0)
        length *= 2
    for i in range(n):
        # Runs that cover the rows from i - cells to i, and those from i to i + cells.
        first, last = max(0, i - cells), min(n - 1, i + cells)
        for begin in {first, i - length + 1, i, last - length + 1}:
            if first <= begin <= last - length + 1:
                program.at_most(p[i], minima[begin])
    return program.values(p)


def _solve(
    ratio: float, inputs: np.ndarray, outputs: np.ndarray, cells: int, weights: np.ndarray | None, symmetric: bool
) -> np.ndarray:
    """p of the solved program, to the solver's tolerance."""
    program, n, m = _Program(symmetric), len(inputs), len(outputs)
    local = cells >= n - 1
    bound = program.table(1, 1)
    p = _any_two(program, n, m, ratio) if local else _near(program, n, m, ratio, cells)
    total, first, second = (_moment(p, program, outputs**power, n) for power in range(3))
    x = inputs[: (n + 1) // 2] if symmetric else inputs
    total, first = (moment[: len(x)] for moment in (total, first))
    neighbours = program.inequalities()
    limits = np.zeros(neighbours.shape[0])
    cost = np.zeros(program.count)
    if weights is None:
        cost[bound] = 1.0
        below = second[: len(x)] - sparse.csr_matrix(np.ones((len(x), 1))) @ program.values(bound)
        neighbours, limits = sparse.vstack([neighbours, below]), np.concatenate([limits, x**2])
    else:
        cost = second.T @ weights
    found = _first_solution(
        ("highs-ds", "highs-ipm") if local else ("highs-ipm", "highs-ds"),
        c=cost,
        A_ub=neighbours.tocsc(),
        b_ub=limits,
        A_eq=sparse.vstack([total, first]).tocsc(),
        b_eq=np.concatenate([np.ones(len(x)), x]),
    )
    return (p @ np.maximum(found, 0.0)).reshape(n, m)


def _moment(p: sparse.csr_matrix, program: _Program, values: np.ndarray, n: int) -> sparse.csr_matrix:
    """sum_j p_ij values_j of every row i, of the unknowns."""
    return (sparse.kron(sparse.identity(n), values[None, :]) @ p).tocsr()


def _first_solution(methods: tuple[str, ...], **program: Any) -> np.ndarray:
    """Of the simplex method for any two neighbours, of interior points for few: the other is several times slower."""
    for method in methods:
        result = linprog(bounds=(0, None), method=method, **program)
        if result.status == 0:
            return np.asarray(result.x)
    raise ProgramError(f"the linear program has no solution ({result.message}); take more outputs or fewer points")
