"""The linear program of the unbiased mechanism of least variance on a grid of inputs and a grid of outputs.

Unknowns are the probabilities p_ij of output y_j given input x_i and, for the worst case, a bound v:

    min v   subject to   sum_j p_ij = 1,   sum_j p_ij y_j = x_i,   S_i = sum_j p_ij (y_j - x_i)^2 <= v,
                         p_ij <= e^eps p_i'j   for neighbouring rows, |i - i'| <= row_distance

or, for expected inputs with weights a_i, min sum_i a_i S_i. A column (p_ij)_i is a sum of profiles f with nonnegative
weights w, which are the unknowns of the program that is solved. For each pair of adjacent rows it has the difference of
their equations, with c = (x_i + x_(i-1))/2 and sums over all profiles and their reports y:

    sum w (f_i - f_(i-1)) = 0,   sum w (f_i - f_(i-1)) (y - c) = x_i - x_(i-1),
    sum w (f_i - f_(i-1)) (y - c)^2 = S_i - S_(i-1),

In these equations a profile has one entry per step. The number of profiles is too large for one program, so columns are
generated: the program is solved with some profiles, and those with a favourable reduced cost are added, until no other
profile can lower the variance. The first profiles are near those of a program on coarser grids.

A profile is 1 on some adjacent rows. It decreases by a factor e^-eps at each of its steps to the right, at rows r_1 <=
r_2 <= .., and to the left, at rows l_1 >= l_2 >= ... Steps of one side are at least ``row_distance`` rows apart, so
neighbouring rows are at most one step apart. Sums of profiles with nonnegative weights are private. Probabilities that
fall and rise again, which are not such sums, improve the variance by less than 2e-4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpkernels.shapes import Float, Int

# Share of e^eps that the program leaves unused, so that its solution can be rounded; of eps for small eps.
SLACKS = (1e-6, 1e-5, 1e-4)
_ZERO_TOLERANCE = 1e-9  # A column whose probabilities are all below this is a solver's zero.
# The least probability of a used report. Without it, probabilities would fall by e^-eps every sensitivity, below what
# 64-bit integers can represent within the slack.
MIN_PROBABILITY = 2.0**-40
# Up to this size all windows are initial profiles; larger grids begin with the solution for half the rows and outputs.
_MAX_DIRECT_ROWS = 21
_MAX_DIRECT_OUTPUTS = 81  # The same for outputs; half as many where the grid is halved.
# Profiles are added until they lower the variance by less than this share.
_MIN_GAIN = 1e-4
# The same for coarser grids.
_MIN_COARSE_GAIN = 1e-2
_MIN_REDUCED_COST = 1e-7  # Smaller relative reduced costs are rounding errors.
_MAX_ROUNDS = 40  # The solution of the last round is returned, whose variance may be above the minimum.
_RESIDUAL_COST = 1e4  # The cost of a residual of a sum or a mean, in variances. If some remain, there is no solution.
# Profiles are followed down to 2^-24; smaller values are negligible next to the least probability of a report.
_PROFILE_BITS = 24


class ProgramError(RuntimeError):
    """The solver found no mechanism; the message contains the solver's own."""


def least_variance(
    epsilon: float,
    inputs: Float[np.ndarray, " rows"],
    outputs: Float[np.ndarray, " outcomes"],
    row_distance: int,
    weights: Float[np.ndarray, " rows"] | None = None,
) -> Float[np.ndarray, "rows outcomes"]:
    """Return probabilities of outputs given inputs, of least worst-case variance or of least average variance.

    Inputs are equally spaced, outputs reach beyond them on both sides, and both are symmetric about 0. Ratios of rows
    at most ``row_distance`` apart are below e^eps. Rows sum to 1 and have their input as the mean, up to rounding.
    Columns of zeros are unused outputs. ``weights`` are the a_i of the average, or None for the worst case; the table
    is symmetric (x -> -x, y -> -y) if they are.
    """
    symmetric = weights is None or bool(np.allclose(weights, weights[::-1], rtol=1e-9, atol=0))
    for slack in SLACKS:
        unused = slack * min(1.0, epsilon)
        ratio = math.exp(epsilon) * (1 - unused)
        p = _table(Grids(ratio, inputs, outputs, min(row_distance, len(inputs) - 1), weights, symmetric))
        change = _balance(p, inputs, outputs)
        if np.abs(change).max() <= unused / 4:
            return p * (1 + change)
    raise ProgramError(f"the solver's rows are off by {np.abs(change).max():.3g}; take fewer points or outputs")


def _table(grids: Grids) -> Float[np.ndarray, "rows outcomes"]:
    """Return the sum of the program's profiles, and the least probability of every report that is used."""
    profiles, w, _, missing = _solve(grids, _MIN_GAIN)
    if missing > _ZERO_TOLERANCE:
        raise ProgramError("the linear program has no solution; take more outputs or fewer points")
    p = np.zeros((grids.rows, len(grids.outputs)))
    np.add.at(p.T, profiles[:, 0], w[:, None] * grids.values(profiles, np.arange(grids.rows)))
    p = p + p[::-1, ::-1] if grids.symmetric else p
    return np.where(p.max(axis=0) > _ZERO_TOLERANCE, p + MIN_PROBABILITY, 0.0)


def _balance(
    p: Float[np.ndarray, "rows outcomes"], inputs: Float[np.ndarray, " rows"], outputs: Float[np.ndarray, " outcomes"]
) -> Float[np.ndarray, "rows outcomes"]:
    """Return the relative correction of every probability that gives every row the sum 1 and its input as the mean.

    It is (a_i + b_i z) k with z the report's distance from the input in standard deviations and k = 1/(1 + z^2).
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
    if rows <= _MAX_DIRECT_ROWS and outputs <= _MAX_DIRECT_OUTPUTS:
        # All reports and rows l_1 <= r_1, with steps ``row_distance`` rows apart.
        first, last = np.triu_indices(rows)
        j, zeros = np.repeat(np.arange(outputs), len(first)), np.zeros(len(grids.falls), int)
        last, first = (np.tile(side, outputs)[:, None] + zeros for side in (last, first))
        return _generate(grids, grids.narrowest(j, last, first), float(grids.outputs[-1]), gain)
    # Half the rows and half the outputs over the same ranges; all of them if they are few.
    x, y, row_distance = grids.inputs, grids.outputs, grids.row_distance
    if rows > _MAX_DIRECT_ROWS:
        x = np.linspace(x[0], x[-1], rows // 4 * 2 + 1)
        row_distance = -(-row_distance * (len(x) - 1) // (rows - 1))
    if outputs > _MAX_DIRECT_OUTPUTS // 2:
        y = np.linspace(y[0], y[-1], outputs // 4 * 2 + 1)
    weights = None if grids.weights is None else np.interp(x, grids.inputs, grids.weights)
    coarse = Grids(grids.ratio, x, y, row_distance, weights, grids.symmetric)
    profiles, _, objective, _ = _solve(coarse, _MIN_COARSE_GAIN)
    return _generate(grids, grids.refine(coarse, profiles), math.sqrt(max(objective, grids.gap**2)), gain)


def _generate(
    grids: Grids, profiles: np.ndarray, unit: float, gain: float
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Solve by column generation until new profiles gain less than ``gain``, in equations with this unit of length."""
    profiles, before = grids.unique(profiles), math.inf
    for _ in range(_MAX_ROUNDS):
        w, objective, missing, prices = _master(grids, profiles, unit)
        solution = profiles[w > 0], w[w > 0], objective * unit**2, missing
        candidates, value = grids.best(*prices)
        gained = missing <= _ZERO_TOLERANCE and before - objective < gain * objective
        if gained or value.max() * w.sum() <= _MIN_REDUCED_COST * objective:
            break
        before = objective if missing <= _ZERO_TOLERANCE else math.inf
        profiles = grids.unique(np.concatenate([profiles, candidates[value > 1e-3 * value.max()]]))
    return solution


def _master(
    grids: Grids, profiles: np.ndarray, unit: float
) -> tuple[np.ndarray, float, float, tuple[np.ndarray, np.ndarray]]:
    """Return the profiles' weights, the objective, the residuals, and the values of f_base and f_i - f_(i-1)."""
    from scipy import sparse  # Loaded where it is used: it takes a third of the time of ``import accountants``.

    count, first = len(grids.centres), 1 if grids.symmetric else 0
    sums, means, squares = _equations(grids, profiles, unit)
    # For symmetric profiles the middle row has the mean 0.
    constraints, right_sides = sparse.vstack([sums, means[first:]], "csr"), np.zeros((2, count))
    right_sides[0, 0], right_sides[1, 1:] = 1.0, grids.gap / unit
    constraint_values = np.append(right_sides[0], right_sides[1, first:])
    residuals = sparse.hstack([sparse.identity(len(constraint_values)), -sparse.identity(len(constraint_values))])
    steps = sparse.diags([1.0, -1.0], [0, -1], (count, count))
    if grids.weights is None:
        # S_i = v - t_i, with a slack t_i of at least 0.
        bound = sparse.csr_matrix(([1.0], ([0], [0])), (count, 1))
        to_objective, cost = sparse.hstack([steps, -bound]), np.append(np.zeros(count), 1.0)
    else:
        to_objective, cost = -steps, grids.weights[grids.base :] * np.where(np.arange(count) >= first, 1 + first, 1)
    matrix = sparse.bmat([[constraints, None, residuals], [squares, to_objective, None]], "csc")
    cost = np.concatenate([np.zeros(len(profiles)), cost, np.full(residuals.shape[1], _RESIDUAL_COST)])
    solution, prices = _optimum(cost, matrix, np.concatenate([constraint_values, np.zeros(count)]))
    residual = solution[-residuals.shape[1] :].sum()
    prices = np.insert(prices, count, 0.0) if first else prices
    objective = cost @ solution - _RESIDUAL_COST * residual
    return solution[: len(profiles)], objective, residual, _values(grids, prices, unit)


def _optimum(cost: np.ndarray, matrix: object, constraint_values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    from scipy.optimize import linprog

    for method in ("highs-ipm", "highs-ds"):
        result = linprog(cost, A_eq=matrix, b_eq=constraint_values, method=method)
        if result.status == 0:
            return result.x, result.eqlin.marginals
    raise ProgramError(f"the linear program has no solution ({result.message}); take more outputs or fewer points")


def _equations(grids: Grids, profiles: np.ndarray, unit: float) -> list[np.ndarray]:
    """Return each profile's part of the base row's sum, mean and variance, and of their differences above it."""
    from scipy import sparse

    count, entries = len(profiles), []
    numbers = np.arange(count)
    for side in (profiles, grids.mirrored(profiles)) if grids.symmetric else (profiles,):
        j, last_rows, first_rows = grids.split(side)
        entries.append((np.full(count, grids.base), numbers, j, grids.values(side, np.array([grids.base]))[:, 0]))
        for fall, last, first in zip(grids.falls, last_rows.T, first_rows.T, strict=True):
            for i, change in ((last + 1, -fall), (first, fall)):
                is_used = (i > grids.base) & (i < grids.rows)
                entries.append((i[is_used], numbers[is_used], j[is_used], np.full(is_used.sum(), change)))
    i, column, j, change = (np.concatenate(columns) for columns in zip(*entries, strict=True))
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


@dataclass(frozen=True, eq=False)
class Grids:
    """The inputs and outputs of a program, and the operations on profiles over them.

    A set of profiles is an integer array with one row per profile: the index of the report, r_1, r_2, .., l_1, l_2, ...
    The last or the first row of the grid stands for steps that a side does not have.
    """

    ratio: float  # e^eps
    inputs: Float[np.ndarray, " rows"]  # x_i, equally spaced
    outputs: Float[np.ndarray, " outcomes"]  # y_j
    row_distance: int  # The largest distance of neighbouring rows.
    weights: Float[np.ndarray, " rows"] | None  # The rows' weights in the average variance; None for the worst case.
    symmetric: bool  # A profile stands for its mirror image (x -> -x, y -> -y) too, and lower rows are omitted.

    @property
    def rows(self) -> int:
        return len(self.inputs)

    @property
    def gap(self) -> float:
        """Return x_(i+1) - x_i."""
        return float(self.inputs[1] - self.inputs[0])

    @property
    def base(self) -> int:
        """Return the first row that is not left out."""
        return (self.rows - 1) // 2 if self.symmetric else 0

    @cached_property
    def centres(self) -> np.ndarray:
        """Return the base row's input, and the middles between neighbouring rows above it."""
        x = self.inputs[self.base :]
        return np.append(x[0], (x[1:] + x[:-1]) / 2)

    @cached_property
    def falls(self) -> Float[np.ndarray, " steps"]:
        """Return the amounts by which a profile falls at its first step, its second, and so on."""
        steps = min(
            -(-(self.rows - 1) // self.row_distance), math.ceil(_PROFILE_BITS * math.log(2) / math.log(self.ratio))
        )
        return (1 - 1 / self.ratio) * self.ratio ** -np.arange(float(steps))

    def mirrored(self, profiles: Int[np.ndarray, "profiles fields"]) -> Int[np.ndarray, "profiles fields"]:
        j, rights, lefts = self.split(profiles)
        return np.column_stack([len(self.outputs) - 1 - j, self.rows - 1 - lefts, self.rows - 1 - rights])

    def split(
        self, profiles: Int[np.ndarray, "profiles fields"]
    ) -> tuple[Int[np.ndarray, " profiles"], Int[np.ndarray, "profiles steps"], Int[np.ndarray, "profiles steps"]]:
        """Return the reports, the steps to the right and those to the left."""
        steps = len(self.falls)
        return profiles[:, 0], profiles[:, 1 : 1 + steps], profiles[:, 1 + steps :]

    def unique(self, profiles: np.ndarray) -> np.ndarray:
        """Return the distinct profiles; of two mirror images, one."""
        if self.symmetric:
            mirrored = self.mirrored(profiles)
            first_difference = (profiles != mirrored).argmax(axis=1)[:, None]
            entry, opposite = (np.take_along_axis(array, first_difference, 1) for array in (profiles, mirrored))
            profiles = np.where(entry > opposite, mirrored, profiles)
        return np.unique(profiles, axis=0)

    def narrowest(
        self,
        j: Int[np.ndarray, " profiles"],
        right: Int[np.ndarray, "profiles steps"],
        left: Int[np.ndarray, "profiles steps"],
    ) -> Int[np.ndarray, "profiles fields"]:
        """Return the profiles with the nearest allowed steps to the given ones; only those with r_1 >= l_1 are kept."""
        apart = self.row_distance * np.arange(len(self.falls))
        last = self.rows - 1
        right = np.maximum.accumulate(np.maximum(right, 0) - apart, axis=1) + apart
        left = np.minimum.accumulate(np.minimum(left, last) + apart, axis=1) - apart
        return np.column_stack([j, np.minimum(right, last), np.maximum(left, 0)])

    def values(
        self, profiles: Int[np.ndarray, "profiles fields"], rows: np.ndarray
    ) -> Float[np.ndarray, "profiles rows"]:
        """Return the profiles at some rows, of shape (profiles, rows)."""
        _, right, left = self.split(profiles)
        sides = zip(right.T[:, :, None], left.T[:, :, None], strict=True)
        steps = sum((rows > after).astype(int) + (rows < before) for after, before in sides)
        return self.ratio ** -np.asarray(steps, float)

    def refine(self, coarse: Grids, profiles: np.ndarray) -> np.ndarray:
        """Return profiles of these grids near those of coarse grids, up to one report and one row away."""
        j, *sides = coarse.split(profiles)
        steps = len(self.falls)
        nearest_output = np.rint(np.interp(coarse.outputs[j], self.outputs, np.arange(len(self.outputs)))).astype(int)
        rows = np.rint(np.interp(coarse.inputs, self.inputs, np.arange(self.rows))).astype(int)
        right, left = (
            np.pad(rows[side], ((0, 0), (0, max(0, steps - side.shape[1]))), "edge")[:, :steps] for side in sides
        )
        neighbours = [
            self.narrowest(nearest_output + a, right + b, left + c)
            for a in (-1, 0, 1)
            for b in (-1, 0, 1)
            for c in (-1, 0, 1)
        ]
        candidates = np.concatenate(neighbours)
        j, right, left = self.split(candidates)
        return candidates[(j >= 0) & (j < len(self.outputs)) & (left[:, 0] <= right[:, 0])]

    def best(self, at_base: np.ndarray, at_steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the profiles of most value for every report and every row r_1, and their values.

        The value of a profile f is f_base at_base + sum_i (f_i - f_(i-1)) at_steps_i, with one price of ``at_base`` a
        report and ``at_steps`` of shape (n - 1, reports). Dynamic programming finds the best steps, outermost first.
        """
        i, none = np.arange(self.rows)[:, None], np.zeros((1, len(at_base)))
        right = np.concatenate([-at_steps, none]) - at_base * (i < self.base)
        left = np.concatenate([none, at_steps]) + at_base * (i <= self.base)
        to_right, next_right = self._best_steps(right)
        to_left, next_left = (side[::-1] for side in self._best_steps(left[::-1]))
        best = np.maximum.accumulate(to_left, axis=0)
        new = np.ones(to_left.shape, bool)
        new[1:] = to_left[1:] > best[:-1]
        first_left = np.maximum.accumulate(np.where(new, i, 0), axis=0)
        value = best + to_right
        is_best = (value.argmax(0) == i) | (value.argmax(1)[:, None] == np.arange(len(at_base)))
        r, j = np.nonzero(is_best)
        rights, lefts, last = [r], [first_left[r, j]], self.rows - 1
        for _ in range(len(self.falls) - 1):
            rights.append(next_right[rights[-1], j])
            lefts.append(last - next_left[lefts[-1], j])
        return np.column_stack([j, *rights, *lefts]), value[r, j]

    def _best_steps(self, gain: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the value of the best steps from a first one on, and the second's row; a fall by 1 gains ``gain``.

        V_i = (1 - 1/ratio) gain_i + max_(k >= i + row_distance) V_k/ratio;  past the last row there are no steps.
        """
        q, last = 1 / self.ratio, self.rows - 1
        value, second = gain.copy(), np.full(gain.shape, last)
        best, best_row = gain.copy(), np.full(gain.shape, last)
        for i in range(last - 1, -1, -1):
            k = min(i + self.row_distance, last)
            value[i], second[i] = (1 - q) * gain[i] + q * best[k], best_row[k]
            is_better = value[i] >= best[i + 1]
            best[i], best_row[i] = np.where(is_better, value[i], best[i + 1]), np.where(is_better, i, best_row[i + 1])
        return value, second
