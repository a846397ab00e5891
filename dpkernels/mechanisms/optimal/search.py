"""``optimal``: the grids, the solution, kept in memory and on disk, and the mechanism made of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from dpkernels import checks
from dpkernels.mechanisms.optimal import cache as optimal_cache
from dpkernels.mechanisms.optimal.grid import (
    MOST_EPSILON,
    MOST_RATIO,
    Grid,
    coarse,
    expected_inputs,
    first_range,
    grid,
    largest_ratio,
    most_ratio,
    outputs_for,
    row_weights,
    spacing,
)
from dpkernels.mechanisms.optimal.mechanism import Optimal
from dpkernels.mechanisms.optimal.program import ProgramError, least_variance
from dpkernels.numerics import namespace

# Outputs of the program that finds the range are 2 _COARSE + 1.
_COARSE = 40
# Problems of tables that were read, by the bytes of their probabilities, and those being solved again.
_READ: dict[bytes, _Problem] = {}
_DISTRUSTED: set[_Problem] = set()
_DISCRETE = (
    "The grids and the vertex that the linear program finds are discrete choices; give plain numbers, or take hybrid, "
    "piecewise or central_piecewise, which are differentiable."
)
# How far sums and means, in half widths of the interval, of a table that was read may be off.
_ROUNDING = 1e-9


def optimal(
    *,
    epsilon: float,
    lower: Any,
    upper: Any,
    sensitivity: float | None = None,
    points: int | None = None,
    outputs: int | None = None,
    objective: str = "worst",
) -> Optimal:
    """Return the bounded, unbiased epsilon-DP mechanism of least variance on a grid of inputs and outputs.

    A linear program over the table of probabilities, see ``program``. Grids are as fine as the budget needs:
    twice as fine ones gain less than 1 % of the worst-case variance, most of it in (step between rows / 2)^2, what
    rounding adds for inputs between rows, and the integers of a release are below every closed form (``benchmarks.
    optimal`` prints both). Solved once, in a second, with many rows in up to 15 s: kept in memory and in the user's
    cache folder (see ``cache``). Privacy: see ``Optimal``.

    The grids and the vertex that solves the program are discrete choices: JAX may trace the interval, of local DP with
    the objective "worst", and nothing else.

    With a sensitivity D below the width R it is for central DP. Worst-case variance over that of ``staircase`` noise
    (unbounded; Laplace noise has 2 (D/eps)^2): 0.62, 0.72, 0.82, 0.71, 0.40 at R/D = 2 and eps 0.5, 1, 2, 4, 8; 0.77,
    0.89, 0.96, 0.87, 0.49 at 4; 0.92, 0.99 at 8 and eps 0.5, 1. Beyond R/D of 8/eps or 5, whichever is more, there are
    no default grids: ``central_piecewise`` has 2 % more variance, or less. Nor are there where more than 1000 rows
    would be needed, at eps 12 beyond R/D of 2.4, where it has 20 % more.

    Args:
        epsilon: pure-DP budget, in [0.01, 12]; above, tables would be too large: take ``piecewise``.
        lower: smallest valid input, fixed before the data are seen.
        upper: largest valid input.
        sensitivity: None, local DP: any two inputs are neighbours. D: neighbouring inputs are at most D apart (central
            DP: replace or remove a person who moves the value by at most D), of the interval's width at least 1/16 and
            min(1/5, eps/8), and at large budgets so much that 1000 rows are enough: 1/4.8 at eps 10, 1/2.4 at 12.
            From the whole width on it is None's.
        points: inputs with a row of their own, odd, 3 to 1401, with any sensitivity down to 1/16 of the width. By
            default so many that rounding between them adds 0.8 % of the variance, or less: 33 up to epsilon 3.8, 69 at
            6, 529 at 12.
        outputs: possible reports before the unused ones go, odd; by default about as many as points, at least 121.
        objective: "worst" for least worst-case variance; or the expected inputs, for least average variance: an array
            of weights of equal bins of the interval, or a tuple (edges, weights). It must not come from the data that
            are to be perturbed.

    Raises:
        ValueError: epsilon not in [0.01, 12]; not lower < upper; a sensitivity below what is said above; points even or
            not in 3..1401; outputs even or not in 9..2049, or above 2^21/points; an objective of another form.
        ProgramError: the solver fails, for too few outputs or extreme grids.

    Example:
        >>> m = optimal(epsilon=1.0, lower=-1.0, upper=1.0)
        >>> round(float(m.worst_variance), 2)
        3.99
    """
    problem = _problem(epsilon, lower, upper, sensitivity, points, outputs, objective)
    low, high = checks.number("lower", lower), checks.number("upper", upper)
    neighbours = None if problem.ratio <= 1 else checks.number("sensitivity", sensitivity)
    make = _mechanism if namespace(low, high) is np else _mechanism.__wrapped__
    return make(problem, low, high, neighbours)


@dataclass(frozen=True)
class _Problem:
    """All that a solution depends on, in half widths of the interval.

    Attributes:
        epsilon: the budget.
        ratio: width of the interval over the sensitivity; 1 where any two inputs are neighbours.
        rows: the inputs.
        half: there are 2 half + 1 outputs.
        histogram: edges and masses of expected inputs; None for the worst case.
    """

    epsilon: float
    ratio: float
    rows: Grid
    half: int
    histogram: tuple[tuple[float, ...], tuple[float, ...]] | None

    def table(self, rows: Grid, apart: float, half: int) -> np.ndarray:
        """Return the program's probabilities, on these rows and outputs."""
        weights = None
        if self.histogram is not None:
            edges, masses = (np.array(part) for part in self.histogram)
            weights = row_weights(edges, masses, rows)
        return least_variance(self.epsilon, rows.inputs, apart * np.arange(-half, half + 1), rows.cells, weights)


def is_solved(*, epsilon: float, lower: float, upper: float, sensitivity: float | None = None) -> bool:
    """Return whether ``optimal`` with these arguments finds its solution in the cache folder.

    Raises:
        ValueError: epsilon not in [0.01, 12]; not lower < upper; a sensitivity below what ``optimal`` takes.
    """
    return optimal_cache.is_kept(repr(_problem(epsilon, lower, upper, sensitivity, None, None, "worst")))


def _problem(
    epsilon: float,
    lower: float,
    upper: float,
    sensitivity: float | None,
    points: int | None,
    outputs: int | None,
    objective: str,
) -> _Problem:
    checks.epsilon(epsilon)
    checks.within("epsilon", epsilon, checks.EPSILON_RANGE[0], MOST_EPSILON)
    checks.interval(lower, upper)
    checks.not_traced("epsilon, sensitivity", _DISCRETE, epsilon, sensitivity)
    if sensitivity is not None or not isinstance(objective, str):
        checks.not_traced("lower, upper", _DISCRETE, lower, upper)
    named = ("epsilon", epsilon), ("lower", lower), ("upper", upper)
    epsilon, lower, upper = (checks.number(name, value) for name, value in named)
    ratio = (
        1.0
        if sensitivity is None
        else _interval_ratio(lower, upper, sensitivity, most_ratio(epsilon) if points is None else MOST_RATIO)
    )
    histogram = None
    if isinstance(objective, str):
        checks.one_of("objective", objective, ("worst",))
    else:
        edges, masses = expected_inputs(objective, lower, upper)
        histogram = tuple(edges.tolist()), tuple(masses.tolist())
    rows = grid(epsilon, ratio, points)
    return _Problem(epsilon, ratio, rows, outputs_for(rows, outputs), histogram)


def _interval_ratio(lower: float, upper: float, sensitivity: float, most: float) -> float:
    """Return the interval's width over the sensitivity, each number read as its shortest decimal; at least 1."""
    checks.sensitivity(sensitivity)
    low, high, D = (Fraction(repr(checks.number("sensitivity", value))) for value in (lower, upper, sensitivity))
    if (ratio := (high - low) / D) > most:
        raise ValueError(
            f"sensitivity: {sensitivity} is 1/{float(ratio):.6g} of the interval; at this budget, below "
            f"1/{most:.4g}, take central_piecewise, or additive noise (staircase, laplace), which is unbounded"
        )
    return max(1.0, float(ratio))


@lru_cache(maxsize=256)
def _mechanism(problem: _Problem, lower: float, upper: float, sensitivity: float | None) -> Optimal:
    """Return the same object for equal arguments, so that it is certified and accounted once."""
    solution, width = _solution(problem), (upper - lower) / 2
    p, places = solution["probabilities"], tuple(solution["places"].tolist())
    reach, spacing = problem.rows.reach * width, float(solution["spacing"]) * width
    return Optimal(p, places, reach, spacing, lower, upper, problem.epsilon, sensitivity)


@lru_cache(maxsize=64)
def _solution(problem: _Problem) -> optimal_cache.Arrays:
    """Return the table in half widths of the interval: probabilities, places, spacing."""

    def solve() -> optimal_cache.Arrays:
        apart = spacing(problem.epsilon, problem.ratio, _output_range(problem), problem.half)
        p = problem.table(problem.rows, apart, problem.half)
        used = np.flatnonzero(p.max(axis=0) > 0)
        return {"probabilities": p[:, used], "places": used - problem.half, "spacing": np.array(apart)}

    def is_taken(kept: optimal_cache.Arrays) -> bool:
        taken = problem not in _DISTRUSTED and _is_sound(kept, problem)
        if taken:
            _READ[kept["probabilities"].tobytes()] = problem
        return taken

    return optimal_cache.cached(repr(problem), solve, is_taken)


def solved_again(mechanism: Optimal) -> Optimal | None:
    """Return the mechanism of a solution that is not read from the cache folder; None where its own was not either.

    For one that cannot be certified: floats within rounding of a private, unbiased table may be too far from one. One
    with another budget, sensitivity or grid than the solution's is somebody's own, and stays refused.
    """
    solution = np.asarray(mechanism.probabilities).tobytes()
    problem = _READ.get(solution)
    if problem is None or not _is_of(mechanism, problem):
        return None
    del _READ[solution]
    _solution.cache_clear()
    _mechanism.cache_clear()
    _DISTRUSTED.add(problem)
    try:
        return _mechanism(problem, *_place(mechanism))
    finally:
        _DISTRUSTED.discard(problem)  # Its file is the new solution's.


def _place(mechanism: Optimal) -> tuple[Any, Any, Any]:
    """Return (lower, upper, sensitivity): plain numbers."""
    return mechanism.lower, mechanism.upper, mechanism.sensitivity


def _is_of(mechanism: Optimal, problem: _Problem) -> bool:
    """Return whether a mechanism has the parameters of the one that its problem makes."""
    low, high, D = _place(mechanism)
    ratio = 1.0 if D is None else _interval_ratio(low, high, D, math.inf)
    made = _mechanism(problem, low, high, D)
    return ratio == problem.ratio and all(
        getattr(mechanism, name) == getattr(made, name) for name in ("epsilon", "places", "reach", "spacing")
    )


def _output_range(problem: _Problem) -> float:
    """Return the range one step beyond the outermost report that a coarse program uses; widen it while it is filled."""
    rows, wanted = coarse(problem.rows, problem.ratio), first_range(problem.epsilon, problem.ratio)
    for _ in range(8):
        apart = spacing(problem.epsilon, problem.ratio, wanted, _COARSE)
        try:
            used = np.flatnonzero(problem.table(rows, apart, _COARSE).max(axis=0) > 0)
        except ProgramError:
            used = np.zeros(1, int)
        if (outermost := int(np.abs(used - _COARSE).max())) < _COARSE:
            return (outermost + 1) * apart
        wanted *= 1.5
    raise ProgramError(f"no output range up to {wanted:.3g} half widths of the interval is wide enough")


def _is_sound(kept: optimal_cache.Arrays, problem: _Problem) -> bool:
    """Return whether arrays that were read are a private, unbiased table on the problem's grids, to rounding."""
    try:
        p, places, apart = kept["probabilities"], kept["places"], float(kept["spacing"])
        if p.dtype != np.float64 or p.shape != (problem.rows.points, *places.shape) or places.dtype.kind != "i":
            return False
        if np.abs(places).max() > problem.half:
            return False
        if not (np.all(np.isfinite(p)) and np.all(p > 0) and np.all(np.diff(places) > 0) and 0 < apart < math.inf):
            return False
        off = np.abs(p @ (apart * places) - problem.rows.inputs).max()
        ratio = largest_ratio(p, problem.rows.cells)
        return bool(
            np.abs(p.sum(axis=1) - 1).max() < _ROUNDING and off < _ROUNDING and ratio <= math.exp(problem.epsilon)
        )
    except (KeyError, ValueError, TypeError):
        return False
