"""Look for unbiased reports of bounded values that are better than pure ones, for k reports with one budget.

    python -m benchmarks.best_reports [--quick]

A row has, for reports of values in [-1, 1]:

- *two points*: 1/T of two points, with the largest eps0 of one report that k reports may have. T is the mean of
  tanh(l/2)^2 over the losses l of the reports at the two ends, and 1/T - 1 is the least variance at an end.
- *free ends*: how much larger T is for losses of any number of sizes. A descent over the probabilities of 30 sizes: the
  composed delta is a polynomial in them, whose gradient one convolution gives. Each step solves a linear program in a
  trust region, and all losses are then scaled to the budget.
- *pure table*: the least worst-case variance of a table of 9 inputs and 61 outputs whose rows have ratios of at most
  e^eps0.
- *free table*: how much less variance a table has whose pairs of rows all are below a pair with two sizes of losses
  that k reports may have. Each is one linear program, over a grid of the second size
  and of its probability.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.optimize import brentq, linprog

from benchmarks.shown import machine, make_parser, markdown

DELTA = 1e-6
BUDGETS = [(epsilon, count) for epsilon in (1.0, 4.0) for count in (1, 2, 3, 5, 10, 30)]
SIZES, MIDDLE = 31, 10  # The sizes of losses of free ends; two points have the one of this number.
STEPS = 100  # The most of a descent.
INPUTS, OUTPUTS, REACH = 9, 61, 1.25  # Of tables; the largest output over that of two points.
RATIOS, SHARES = (1.5, 2.0, 3.0), (1e-6, 1e-5, 1e-4, 3e-3)  # Of the second size over the first; its probabilities.


class Ends(NamedTuple):
    """The distributions of a report at both ends: probabilities of the losses +-j step, by their sizes."""

    weights: np.ndarray
    step: float

    def contrast(self) -> float:
        """Return T."""
        return float(self.weights @ np.tanh(np.arange(len(self.weights)) * self.step / 2) ** 2)

    def delta(self, epsilon: float, count: int) -> tuple[float, np.ndarray]:
        """Return delta of ``count`` reports, and its gradient in the weights."""
        most = len(self.weights) - 1
        j = np.arange(-most, most + 1)
        factor = np.where(j == 0, 1.0, 1 / (1 + np.exp(-j * self.step)))
        convolved = np.ones(1)
        for _ in range(count - 1):
            convolved = np.convolve(convolved, self.weights[np.abs(j)] * factor)
        sums = np.arange(-(count - 1) * most, (count - 1) * most + 1)
        of_p = np.array(
            [count * (convolved @ -np.expm1(-np.maximum((sums + i) * self.step - epsilon, 0.0))) for i in j]
        )
        gradient = np.bincount(np.abs(j), of_p * factor)
        return float(gradient @ self.weights) / count, gradient

    def on_budget(self, epsilon: float, count: int) -> Ends:
        def excess(log_step: float) -> float:
            return math.log(max(Ends(self.weights, math.exp(log_step)).delta(epsilon, count)[0], 1e-300) / DELTA)

        low = high = math.log(self.step)
        while excess(low) > 0:
            low -= 0.2
        while excess(high) < 0:
            high += 0.2
        return Ends(self.weights, math.exp(brentq(excess, low, high, xtol=1e-13)))


def two_points(epsilon: float, count: int) -> Ends:
    """Return the ends of one size of losses on the budget."""
    return Ends(np.eye(SIZES)[MIDDLE], epsilon / count / MIDDLE).on_budget(epsilon, count)


def descend(ends: Ends, epsilon: float, count: int) -> Ends:
    """Return ends of a larger T on the same budget."""
    radius = 0.05
    for _ in range(STEPS):
        if radius < 1e-6:
            break
        delta, gradient = ends.delta(epsilon, count)
        gains = np.tanh(np.arange(SIZES) * ends.step / 2) ** 2
        bounds = [(max(-weight, -radius), radius) for weight in ends.weights]
        limits = {"A_ub": gradient[None] / DELTA, "b_ub": [1 - delta / DELTA], "A_eq": np.ones((1, SIZES)), "b_eq": [0]}
        move = linprog(-gains, bounds=bounds, **limits).x
        if move is not None:
            weights = np.maximum(ends.weights + move, 0.0)
            moved = Ends(weights / weights.sum(), ends.step).on_budget(epsilon, count)
            if moved.contrast() > ends.contrast() * (1 + 1e-9):
                ends, radius = moved, 1.5 * radius
                continue
        radius /= 3
    return ends


def free_ends(epsilon: float, count: int) -> Ends:
    """Return the best of several descents: from two points, from two points and others, and from smooth losses."""
    first, rng = two_points(epsilon, count), np.random.default_rng(0)
    mixed = [
        (1 - end_probability) * first.weights + end_probability * rng.dirichlet(np.ones(SIZES))
        for end_probability in (0.02, 0.2)
    ]
    smooth = np.exp(-((np.arange(SIZES) - MIDDLE) ** 2) / 18)
    starts = [first.weights, *mixed, smooth / smooth.sum()]
    descents = [descend(Ends(start, first.step).on_budget(epsilon, count), epsilon, count) for start in starts]
    return max(descents, key=Ends.contrast)


def table_variance(size: float, largest: float, beyond: float, reach: float) -> float:
    """Return the least worst-case variance of a table of ratios of at most e^largest; NaN if there is none.

    For each pair of rows the hockey-stick divergence at the first size is at most ``beyond``, if this is positive.
    """
    x, y, middle = np.linspace(-1.0, 1.0, INPUTS), np.linspace(-reach, reach, OUTPUTS), INPUTS // 2
    rows, j = range(middle, INPUTS), np.arange(OUTPUTS)
    number = [(i - middle) * OUTPUTS + j if i >= middle else (middle - i) * OUTPUTS + j[::-1] for i in range(INPUTS)]
    pairs = [(number[i], number[other]) for i in rows for other in range(INPUTS) if other != i]
    cells, slacks = len(rows) * OUTPUTS, len(pairs) * OUTPUTS if beyond > 0 else 0
    unit = sparse.identity(cells + slacks + 1, format="csr")  # The last unknown is the variance.
    above, limits = [], []
    for index, (p, q) in enumerate(pairs):
        above += [unit[p] - math.exp(largest) * unit[q], unit[q] - math.exp(largest) * unit[p]]
        limits += [0.0] * 2 * OUTPUTS
        if slacks:
            slack = unit[cells + index * OUTPUTS + j]
            above += [unit[p] - math.exp(size) * unit[q] - slack, sparse.csr_matrix(slack.sum(0))]
            limits += [0.0] * OUTPUTS + [beyond]
    equal, equal_to = [], []
    for i in rows:
        above.append(sparse.csr_matrix(y**2) @ unit[number[i]] - unit[-1])
        limits.append(x[i] ** 2)
        equal.append(sparse.csr_matrix(np.stack([np.ones(OUTPUTS), y])) @ unit[number[i]])
        equal_to += [1.0, x[i]]
    cost = np.append(np.zeros(cells + slacks), 1.0)
    solved = linprog(
        cost, sparse.vstack(above, "csr"), limits, sparse.vstack(equal, "csr"), equal_to, (0.0, None), method="highs"
    )
    return float(solved.fun) if solved.status == 0 else math.nan


def free_table(epsilon: float, count: int) -> tuple[float, float]:
    """Return the least variance of pure tables, and of tables below pairs of two sizes of losses."""
    first = two_points(epsilon, count)
    eps0 = first.step * MIDDLE
    reach = REACH / math.tanh(eps0 / 2)
    pure = table_variance(eps0, eps0, 0.0, reach)
    free = [pure]
    for ratio in RATIOS:
        for outer_share in SHARES:
            number = round(10 * ratio)
            weights = (1 - outer_share) * np.eye(number + 1)[10] + outer_share * np.eye(number + 1)[number]
            step = Ends(weights, eps0 / 10).on_budget(epsilon, count).step
            size, largest = 10 * step, number * step
            outer_probability = outer_share * (1 - math.exp(size - largest)) / (1 + math.exp(-largest))
            free.append(table_variance(size, largest, outer_probability, reach))
    return pure, float(np.nanmin(free))


def main() -> None:
    """Print the table."""
    options = make_parser((__doc__ or "").splitlines()[0], "one budget").parse_args()
    print(machine(), flush=True)
    rows, start = [], time.process_time()
    for epsilon, count in BUDGETS[2:3] if options.quick else BUDGETS:
        two, free = two_points(epsilon, count), free_ends(epsilon, count)
        pure, least = free_table(epsilon, count)
        gains = (
            f"{100 * (free.contrast() / two.contrast() - 1):.2f} %",
            f"{pure:.5g}",
            f"{100 * (pure / least - 1):.2f} %",
        )
        rows.append([f"{epsilon:g}", f"{count}", f"{1 / two.contrast():.5g}", *gains])
        print("| " + " | ".join(rows[-1]) + " |", flush=True)
    print(f"\n{markdown(['epsilon', 'k', 'two points', 'free ends', 'pure table', 'free table'], rows)}")
    print(f"{time.process_time() - start:.0f} s of processor time")


if __name__ == "__main__":
    main()
