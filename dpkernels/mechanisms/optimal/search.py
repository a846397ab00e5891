"""The constructor ``optimal``: choose grids, solve the linear program, cache the solution and make the mechanism.

Solutions are cached on disk, in the folder of ``cache_folder``. No guarantee relies on the cache: every table that is
read is checked to be private, unbiased and fine enough, and a release certifies its integers in any case. The variance
is not checked. A user who can write to the folder can therefore make reports noisier, but not less private.
"""

from __future__ import annotations

import hashlib
import io
import math
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from dpkernels import checks
from dpkernels.cache_folder import folder
from dpkernels.mechanisms.optimal.mechanism import FILES, Optimal, digest
from dpkernels.mechanisms.optimal.program import MIN_PROBABILITY, SLACKS, ProgramError, least_variance
from dpkernels.numerics import Real, namespace
from dpkernels.shapes import Float
from dpkernels.staging import staged

FORMAT = 2  # Part of every file's name. Increase it whenever the program or the format changes.
_MAX_BYTES = 1 << 24  # Of a file, and of its uncompressed content.
_COARSE_HALF_OUTPUTS = 40  # The program that finds the output range has 2 _COARSE_HALF_OUTPUTS + 1 outputs.
_DISCRETE = (
    "The grids and the vertex that the linear program finds are discrete choices; give plain numbers, or take hybrid, "
    "piecewise or central_piecewise, which are differentiable."
)
_ROUNDING = 1e-12  # Of sums and means of a table that was read, in half widths of the interval.

Arrays = dict[str, np.ndarray]


def optimal(
    *,
    epsilon: float,
    lower: Real,
    upper: Real,
    sensitivity: float | None = None,
    points: int | None = None,
    outputs: int | None = None,
    objective: str = "worst",
) -> Optimal:
    """Return the bounded, unbiased epsilon-DP mechanism of least variance on a grid of inputs and outputs.

    It solves a linear program over the table of probabilities, in a second or up to 15 s with many rows, and keeps the
    solution in memory and in the user's cache folder. ``Optimal`` explains the privacy guarantee. JAX may trace only
    the interval, and only for local DP with the objective "worst". With a sensitivity D below the interval's width the
    mechanism is for central DP. Where there are no default grids, ``central_piecewise`` is the alternative.

    Args:
        epsilon: pure-DP budget, in [0.01, 12]. For a larger budget use ``piecewise``.
        lower: smallest valid input, fixed before the data are seen.
        upper: largest valid input.
        sensitivity: None for local DP, in which any two inputs are neighbours. Or D for central DP, in which inputs at
            most D apart are neighbours: replacing or removing a person changes the value by at most D. D must be at
            least 1/16 and at least min(1/5, eps/8) of the width, and large enough for 1000 rows: 1/4.8 of the width at
            eps 10, 1/2.4 at eps 12. A D of the whole width or more means local DP.
        points: the number of inputs with a row of their own, odd, 3 to 1401. If it is given, D may be as small as 1/16
            of the width at any budget. By default rounding between rows adds at most 0.8 % of the variance.
        outputs: the number of candidate reports, odd, 9 to 2049 and at most 2^21/points; unused ones are dropped. The
            default is near ``points``, and at least 121.
        objective: "worst" minimises the worst-case variance. A distribution of expected inputs minimises the average
            variance: an array of weights for equal bins of the interval, or a tuple (edges, weights). It must not be
            computed from the data to be perturbed.

    Raises:
        ValueError: an argument is out of its range.
        ProgramError: the solver fails, because of too few outputs or extreme weights of expected inputs.

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
    """The parameters of a program, in half widths of the interval."""

    epsilon: float
    ratio: float  # The width of the interval over the sensitivity; 1 if any two inputs are neighbours.
    rows: InputGrid
    half: int  # There are 2 half + 1 outputs.
    histogram: tuple[tuple[float, ...], tuple[float, ...]] | None  # Edges and masses of expected inputs.

    def table(self, rows: InputGrid, apart: float, half: int) -> np.ndarray:
        weights = None
        if self.histogram is not None:
            edges, masses = (np.array(numbers) for numbers in self.histogram)
            weights = row_weights(edges, masses, rows)
        return least_variance(self.epsilon, rows.inputs, apart * np.arange(-half, half + 1), rows.row_distance, weights)


def is_solved(*, epsilon: float, lower: float, upper: float, sensitivity: float | None = None) -> bool:
    """Return whether ``optimal`` with these arguments finds its solution in the cache folder."""
    path = _path(_problem(epsilon, lower, upper, sensitivity, None, None, "worst"))
    try:
        return path is not None and path.exists()
    except OSError:  # The user may not read the folder.
        return False


def _problem(
    epsilon: Any,
    lower: Any,
    upper: Any,
    sensitivity: float | None,
    points: int | None,
    outputs: int | None,
    objective: object,
) -> _Problem:
    epsilon, lower, upper = checks.budget(epsilon, lower, upper)
    checks.within("epsilon", epsilon, checks.EPSILON_RANGE[0], MAX_EPSILON)
    checks.not_traced("epsilon, sensitivity", _DISCRETE, epsilon, sensitivity)
    if sensitivity is not None or not isinstance(objective, str):
        checks.not_traced("lower, upper", _DISCRETE, lower, upper)
    ratio, histogram = 1.0, None
    if sensitivity is not None:
        max_allowed_ratio = max_ratio(epsilon) if points is None else MAX_RATIO
        ratio = _interval_ratio(lower, upper, sensitivity, max_allowed_ratio)
    if isinstance(objective, str):
        checks.one_of("objective", objective, ("worst",))
    else:
        edges, masses = expected_inputs(objective, lower, upper)
        histogram = tuple(edges.tolist()), tuple(masses.tolist())
    rows = input_grid(epsilon, ratio, points)
    return _Problem(epsilon, ratio, rows, half_outputs(rows, outputs), histogram)


def _interval_ratio(lower: float, upper: float, sensitivity: float, largest: float) -> float:
    """Return the interval's width over the sensitivity, each number read as its shortest decimal; at least 1."""
    checks.sensitivity(sensitivity)
    low, high, D = (Fraction(repr(checks.number("sensitivity", value))) for value in (lower, upper, sensitivity))
    if (ratio := (high - low) / D) > largest:
        raise ValueError(
            f"sensitivity: {sensitivity} is 1/{float(ratio):.6g} of the interval; at this budget, below "
            f"1/{largest:.4g}, take central_piecewise, or additive noise, such as laplace, which is unbounded"
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
def _solution(problem: _Problem) -> Arrays:
    """Return the table in half widths of the interval, kept or solved: probabilities, places, spacing."""
    path = _path(problem)
    stored = None if path is None else _read(path, repr(problem))
    if path is not None and stored is not None and _is_sound(stored, problem):
        FILES[digest(stored["probabilities"])] = path
        return stored
    apart = output_spacing(problem.epsilon, problem.ratio, _output_range(problem), problem.half)
    p = problem.table(problem.rows, apart, problem.half)
    is_used = np.flatnonzero(p.max(axis=0) > 0)
    solution = {"probabilities": p[:, is_used], "places": is_used - problem.half, "spacing": np.array(apart)}
    if path is not None:
        _write(path, repr(problem), solution)
    return solution


def _output_range(problem: _Problem) -> float:
    """Return the range one step beyond the outermost report that a coarse program uses; widen it while it is filled."""
    rows, ratio, duchi = coarse_grid(problem.rows, problem.ratio), problem.ratio, 1 / math.tanh(problem.epsilon / 2)
    # Duchi's range for one sensitivity, and room beyond.
    output_range = 1.6 * duchi if ratio <= 1 else 1 + (1.3 * (duchi - 1) + 0.6) / ratio
    for _ in range(8):
        apart = output_spacing(problem.epsilon, problem.ratio, output_range, _COARSE_HALF_OUTPUTS)
        try:
            columns = np.flatnonzero(problem.table(rows, apart, _COARSE_HALF_OUTPUTS).max(axis=0) > 0)
        except ProgramError:
            columns = np.zeros(1, int)
        if (outermost := int(np.abs(columns - _COARSE_HALF_OUTPUTS).max())) < _COARSE_HALF_OUTPUTS:
            return (outermost + 1) * apart
        output_range *= 1.5
    raise ProgramError(f"no output range up to {output_range:.3g} half widths of the interval is wide enough")


# Files


def _path(problem: _Problem) -> Path | None:
    cache, key = folder(), f"{FORMAT} {problem!r}".encode()
    return None if cache is None else cache / f"optimal-{hashlib.sha256(key).hexdigest()[:32]}.npz"


def _read(path: Path, key: str) -> Arrays | None:
    try:
        if not path.is_file() or path.stat().st_size > _MAX_BYTES:
            return None
        with zipfile.ZipFile(path) as file:
            if sum(member.file_size for member in file.infolist()) > _MAX_BYTES:
                return None
            arrays = {name.removesuffix(".npy"): _array(file.read(name)) for name in file.namelist()}
    except Exception:  # A damaged file fails in zipfile, in zlib or in NumPy, each with errors of its own.
        return None
    has_key = "key" in arrays and str(arrays.pop("key")) == key
    return arrays if has_key else None


def _array(data: bytes) -> np.ndarray:
    """Return the array of a .npy file; it is never larger than the file, whatever the header states."""
    file = io.BytesIO(data)
    np.lib.format.read_magic(file)
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    return np.frombuffer(file.read(), dtype).reshape(shape, order="F" if fortran else "C")


def _write(path: Path, key: str, arrays: Arrays) -> None:
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with staged(path, 0o666) as new:
            np.savez_compressed(new.file, key=np.array(key), **arrays)  # type: ignore[arg-type]
            new.file.flush()
            new.place(path)


def _is_sound(stored: Arrays, problem: _Problem) -> bool:
    """Return whether arrays that were read have all that a release's integers need of a solution; see ``program``."""
    try:
        p, places, apart = stored["probabilities"], stored["places"], float(stored["spacing"])
        if p.dtype != np.float64 or p.shape != (problem.rows.points, *places.shape) or places.dtype.kind != "i":
            return False
        if np.abs(places).max() > problem.half or not (np.all(np.diff(places) > 0) and 0 < apart < math.inf):
            return False
        # Corrections of its rows leave a solution half of the unused share of e^eps, and of the least probability.
        largest = math.exp(problem.epsilon) * (1 - 0.4 * SLACKS[0] * min(1.0, problem.epsilon))
        if not (np.all(np.isfinite(p)) and np.all(p > MIN_PROBABILITY / 2)):
            return False
        error = max(np.abs(p.sum(axis=1) - 1).max(), np.abs(p @ (apart * places) - problem.rows.inputs).max())
        return bool(error < _ROUNDING and largest_ratio(p, problem.rows.row_distance) <= largest)
    except (KeyError, ValueError, TypeError):
        return False


# Grids: inputs, distance of neighbours in rows, outputs, expected inputs. Lengths are in half widths of the input
# interval, from its middle: inputs are in [-1, 1].

MAX_EPSILON = 12.0  # Programs of larger budgets exceed the limits below.
MAX_RATIO = 16.0  # Of the width over the sensitivity; programs of larger ratios exceed the limits below.
_MAX_WEIGHTS = 1 << 21  # Probabilities of a table.
_MAX_POINTS = 1401  # Rows of a table.
_MAX_OUTPUTS = 2049  # Outputs of a table.
_MAX_NEEDED = 1000  # Rows that a budget may require by default.
_ROUNDING_COST = 0.008  # The share of the variance that rounding inputs to rows may add.
_MIN_LOCAL = 33  # Rows for local DP.
_MIN_STEPS = 4  # Steps between rows per sensitivity for central DP.
_MARGIN = 2.0**-15  # Of a row, for rounding inputs to 2^16 steps a row.


@dataclass(frozen=True)
class InputGrid:
    """The rows of the program."""

    points: int  # n, odd.
    row_distance: int  # The largest distance of neighbours, in rows.
    reach: float  # The outermost rows' inputs are at -reach and reach; at least 1.

    @property
    def inputs(self) -> np.ndarray:
        return self.reach * np.linspace(-1, 1, self.points)


def input_grid(epsilon: float, ratio: float, points: int | None) -> InputGrid:
    """Return the rows for a budget and the interval's width over the sensitivity, at most 1 for local DP.

    By default there are as many points as keep the variance of rounding small. ``points`` is odd, in 3..1401.
    """
    if points is not None and checks.integer_in("points", points, 3, _MAX_POINTS) % 2 == 0:
        raise ValueError(f"points: {points} is even; the middle needs a row, so an odd number is needed")
    if points is not None:
        steps, row_distance = points - 1, max(1, math.ceil((points - 1) / ratio * (1 - 1e-4)))
    elif ratio <= 1:
        steps = row_distance = max(_MIN_LOCAL - 1, 2 * math.ceil(_sensitivity_steps(epsilon, ratio) / 2))
    else:
        steps, row_distance = _closest_steps(epsilon, ratio)
    return InputGrid(steps + 1, steps, 1.0) if row_distance >= steps else _sensitivity_grid(ratio, steps, row_distance)


def _sensitivity_steps(epsilon: float, ratio: float) -> float:
    """Return the steps per sensitivity D with which rounding adds at most ``_ROUNDING_COST`` of the variance."""
    # The least variance is above D^2 times this.
    least_variance = min(0.5, 0.15 * (1 + ratio)) * math.exp(-2 * epsilon / 3) * (1 + 1.4 / epsilon)
    return 1 / math.sqrt(4 * _ROUNDING_COST * least_variance)


def max_ratio(epsilon: float) -> float:
    """Return the largest width of the interval over the sensitivity, R/D, that there are grids for at a budget."""
    # Above 5 and 8/eps the Central Piecewise Mechanism is within 2 % of the optimum.
    return min(MAX_RATIO, max(5.0, 8 / epsilon), _MAX_NEEDED / _sensitivity_steps(epsilon, MAX_RATIO))


def has_grid(epsilon: float, ratio: float = 1.0) -> bool:
    """Return whether there are grids for a budget and a ratio."""
    return epsilon <= MAX_EPSILON and ratio <= max_ratio(epsilon)


def _closest_steps(epsilon: float, ratio: float) -> tuple[int, int]:
    """Return the steps between rows, an even number, and the steps of a sensitivity with the closest fit."""
    fewest = max(_MIN_STEPS, math.ceil(_sensitivity_steps(epsilon, ratio)), math.ceil(16 / ratio))

    def waste(candidate: tuple[int, int]) -> float:
        # Rows that reach beyond the interval, or neighbours further apart than necessary, cost more.
        coverage = candidate[0] / (ratio * candidate[1])
        return (coverage - 1 if coverage >= 1 else 2 * (1 / coverage - 1)) + 1e-3 * candidate[1] / fewest

    candidates = [
        (2 * half, row_distance)
        for row_distance in range(fewest, fewest + 4)
        for half in {math.floor(ratio * row_distance / 2), math.ceil(ratio * row_distance / 2 * (1 - 1e-9))}
    ]
    return min(candidates, key=waste)


def _sensitivity_grid(ratio: float, steps: int, row_distance: int) -> InputGrid:
    """Return rows spaced such that a sensitivity is ``row_distance`` of them, less the margin."""
    reach = max(1.0, steps / (ratio * (row_distance - _MARGIN)))
    return InputGrid(steps + 1, row_distance, reach * (1 + 1e-12))


def coarse_grid(fine: InputGrid, ratio: float) -> InputGrid:
    """Return a smaller program that has about the same outputs."""
    if ratio <= 1:
        return InputGrid(17, 16, 1.0)
    row_distance = min(fine.row_distance, 4 if ratio <= 4 else 2)
    return _sensitivity_grid(ratio, max(4, 2 * math.ceil(ratio * row_distance / 2)), row_distance)


def output_spacing(epsilon: float, ratio: float, output_range: float, half: int) -> float:
    """Return the distance of 2 half + 1 outputs that reach about ``output_range``; Duchi's reports are among them."""
    if ratio > 1:
        return output_range / half
    duchi = 1 / math.tanh(epsilon * (1 - 2e-6) / 2)
    return duchi / max(1, math.floor(half * duchi / output_range))


def half_outputs(rows: InputGrid, outputs: int | None) -> int:
    """Return (m - 1)/2 for m outputs, m odd; by default m is near the number of rows, and at least 121."""
    if outputs is None:
        fewest = 60 if rows.points > 40 and rows.row_distance < rows.points - 1 else 80
        return max(fewest, math.ceil(0.54 * (rows.points - 1)))
    if checks.integer_in("outputs", outputs, 9, _MAX_OUTPUTS) % 2 == 0:
        raise ValueError(f"outputs: {outputs} is even; the middle is one of them, so an odd number is needed")
    if outputs * rows.points > _MAX_WEIGHTS:
        raise ValueError(f"outputs: {outputs} for {rows.points} inputs are more than {_MAX_WEIGHTS} probabilities")
    return outputs // 2


def expected_inputs(
    objective: object, lower: float, upper: float
) -> tuple[Float[np.ndarray, " edges"], Float[np.ndarray, " edges-1"]]:
    """Return the edges in [-1, 1] and the masses of a histogram of inputs, from masses or (edges, masses)."""
    histogram = objective if isinstance(objective, tuple) else (None, objective)
    if len(histogram) != 2:
        raise ValueError(f"objective: a tuple of {len(histogram)}; (edges, weights) is one of 2")
    masses = _vector("weights", histogram[1])
    edges = np.linspace(lower, upper, len(masses) + 1) if histogram[0] is None else _vector("edges", histogram[0])
    if len(edges) != len(masses) + 1 or np.any(np.diff(edges) <= 0) or edges[0] < lower or edges[-1] > upper:
        raise ValueError(f"objective: {len(masses)} weights need {len(masses) + 1} rising edges in [{lower}, {upper}]")
    if np.any(masses < 0) or not masses.max() > 0:
        raise ValueError("objective: weights must be at least 0, one of them above")
    masses = masses / masses.max()  # Without this the sum may overflow.
    return (edges - (lower + upper) / 2) / ((upper - lower) / 2), masses / masses.sum()


def _vector(name: str, values: object) -> Float[np.ndarray, " entries"]:
    """Return the weights or the edges of an objective as floats."""
    array = np.asarray(values)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iuf" or not np.all(np.isfinite(array)):
        raise ValueError(f"objective: {name} must be a 1-D array of finite numbers, or the objective is 'worst'")
    return array.astype(np.float64)


def row_weights(
    edges: Float[np.ndarray, " edges"], masses: Float[np.ndarray, " edges-1"], rows: InputGrid
) -> Float[np.ndarray, " rows"]:
    """Return the probability of each row, for inputs from the histogram (even within bins) and rounded to the rows."""
    step = 2 * rows.reach / (rows.points - 1)
    u = np.clip((edges[:, None] - rows.inputs) / step, -1, 1)
    until = np.where(u < 0, (u + 1) ** 2 / 2, 1 - (1 - u) ** 2 / 2) * step
    return (masses / np.diff(edges)) @ np.diff(until, axis=0)


def largest_ratio(probabilities: Float[np.ndarray, "rows outcomes"], row_distance: int) -> float:
    """Return the largest ratio of a column's entries at most ``row_distance`` rows apart."""
    length = min(row_distance, len(probabilities) - 1) + 1
    runs = np.lib.stride_tricks.sliding_window_view(probabilities, length, axis=0)
    return float((runs.max(axis=-1) / runs.min(axis=-1)).max())
