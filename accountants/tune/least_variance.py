"""A lower bound on the variance of any additive noise for several releases, whatever its shape.

Let P be the distribution of the noise, and Q that of the noise plus a shift s of at most the sensitivity. A test phi
takes values in [0, 1] with phi(y) + phi(s - y) <= 1. It maps every release y to 1 with probability phi(y), to -1 with
probability phi(s - y), and otherwise to 0. The k outcomes together must be (eps, delta)-DP. This limits u = E_P phi and
v = E_Q phi to a region: v - S u <= c(S) for every slope S >= 1. So every distribution mu of noise satisfies linear
constraints,

    integral [phi(x + s) - S phi(x)] d mu(x) <= c(S)    for all tests phi, all slopes S and all shifts s.

The least variance under these constraints is a linear program. Any feasible point of its dual proves a lower bound.
Such a point has, for every (s, S), a limit L and a function g with values in [0, L]. If x^2 + sum [g(x + s) - S g(x)]
>= B for all x, the variance is at least B - sum L c(S). A solver proposes piecewise linear functions g, and B is
computed from them.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from accountants.calibrate.composed import gaussian_ratio
from accountants.calibrate.scale import check_target
from accountants.precision import in_64_bits
from dpkernels import checks
from dpkernels.numerics import RealArray
from dpkernels.proven import proven

__all__ = ["least_report_variance", "least_variance"]

_MAX_RELEASES = 128  # More of them are sums of several.
_GRID_RATIO = 1.01  # The ratio of neighbouring probabilities of a result other than 0.
_COARSE_POINTS = 100  # The points at which a difference is found by bisection.
_BISECTIONS = 30  # The halvings for each of them.
_DIFFERENCE_MARGIN = 2e-4  # The share by which the differences between these points are moved up.
_MIN_MASS = 1e-150  # The least mass of a sum that is kept.
_POSITION_ERROR = 1e-11  # The error that is allowed for positions, which are rounded to 1e-12, and for functions.
_ON_KNOT = 2e-12  # The distance from a knot, and that in spacings, up to which a point is on it.
_SUM_ERROR = 1e-9  # The relative error that is allowed for sums of positive floats.
_ERROR_OF_ONE = 4e-15  # The error that is allowed for differences from 1.
_INTEGRAL_ERROR = 1e-16  # That of an integral of slopes.
_KNOTS_PER_DEVIATION = 20.0  # The knots in a standard deviation.
_MAX_KNOTS = 256  # The most knots in a sensitivity.
_MAX_LOG_ODDS = 30.0  # The most of log(k/delta) that decides how far the knots reach.
_MAX_DEVIATIONS = 10.0  # How many standard deviations Gaussian noise extends to.
_WIDE_NOISE = 2.5  # Up to so many sensitivities of a standard deviation smaller shifts matter, too.
_SHIFTS = (0.5, 1.0)  # The shifts that matter, in sensitivities.
_SHIFTS_OF_ONE = (0.4, 0.5, 2 / 3, 5 / 6, 1.0)  # Those of one release, of which there is one slope.
_SMALL_SHIFT_SLOPES = (0.9, 1.15)  # The slopes of the smaller shifts: logs over eps/k.
_MAX_SOLVER_STEPS = 40_000  # Of the solver. Without an optimum the bound is that of fewer slopes, or 0.
# The slopes for reports; their logs are evenly spaced up to an edge, and geometrically beyond it.
_EDGE = 1.2  # The edge, over eps/k.
_MAX_EDGE = 500.0  # The most of it: e^x overflows float64 from 709.8 on.
_BEYOND_EDGE = 30.0  # How far beyond the edge the logs go.
_SLOPES = 1500  # The slopes on either side of it.
_REFINEMENTS = 2  # How often slopes are refined.
_NEGLIGIBLE = 1e-4  # The share of the bound of a slope that is not refined.


@in_64_bits
@proven("least_variance#proof-of-the-region", "least_variance#proof-of-the-bound")
def least_variance(*, epsilon: float, delta: float, count: int = 1, sensitivity: float = 1.0) -> float:
    """Return a lower bound on the variance of any noise for ``count`` releases that are (epsilon, delta)-DP together.

    Every release adds independent noise of one law to a true value. Neighbours move each value by at most the
    sensitivity, in either direction. The law may be of any shape. So ``found.value / least_variance(...) - 1`` is an
    upper bound on what any other noise could save. The bound is close for one and for two releases, and loose for more;
    docs/best_noise.md has its gaps. It takes up to a few seconds.

    Args:
        epsilon: eps of all releases, positive.
        delta: delta of all releases, in (0, 1).
        count: the number of releases, an integer in 1..2^40.
        sensitivity: D, in data units, in [1e-100, 1e100].

    Raises:
        ValueError: an argument is out of range.
        TypeError: count is not an integer.

    Example:
        >>> round(least_variance(epsilon=1.0, delta=1e-6), 2)  # The staircase has 1.918.
        1.92
    """
    check_target(epsilon, delta, sensitivity)
    checks.positive("epsilon", epsilon)
    checks.integer_in("count", count, 1, 1 << 40)
    # The sum of m releases has m times the noise and m times the sensitivity, and is one of count/m releases.
    together = math.ceil(count / _MAX_RELEASES)
    bound = together * _unit_bound(float(epsilon), float(delta), count // together)
    return float(bound * float(sensitivity) ** 2 * (1 - _SUM_ERROR))


@in_64_bits
@proven("least_variance#proof-of-the-region", "least_variance#proof-for-bounded-reports")
def least_report_variance(
    *, epsilon: float, delta: float, count: int = 1, lower: float = -1.0, upper: float = 1.0
) -> float:
    """Return a lower bound on the worst-case variance of unbiased reports that are (epsilon, delta)-DP together.

    Every report is drawn by one mechanism, with the mean x for every x in [lower, upper], and any inputs are
    neighbours. With P and Q the distributions of a report at the two ends, the variance at an end, in half widths,
    is at least

        1/T - 1,    T = integral of (p - q)^2 / (2 (p + q)) = integral over S >= 1 of 8/(1 + S)^3 sup (v - S u) dS,

    and ``Region`` bounds v - S u. docs/best_noise.md compares mechanisms with it.

    Args:
        epsilon: eps of all reports, positive.
        delta: delta of all reports, in (0, 1).
        count: the number of reports about one person, an integer in 1..2^40.
        lower: the smallest input.
        upper: the largest input.

    Raises:
        ValueError: an argument is out of range.
        TypeError: count is not an integer.

    Example:
        >>> round(least_report_variance(epsilon=1.0, delta=1e-6, count=3), 1)  # Duchi's mechanism has 36.7.
        35.4
    """
    check_target(epsilon, delta)
    checks.positive("epsilon", epsilon)
    checks.integer_in("count", count, 1, 1 << 40)
    checks.interval(lower, upper)
    # The mean of m reports is one of count/m reports, with a variance that is smaller by m.
    together = math.ceil(count / _MAX_RELEASES)
    region = Region(float(epsilon), float(delta), count // together)
    edge = min(_EDGE * region.epsilon / region.count, _MAX_EDGE)
    logs = np.concatenate([np.linspace(0.0, edge, _SLOPES), np.geomspace(edge, edge + _BEYOND_EDGE, _SLOPES)])
    slopes = np.exp(logs)
    limits = region.largest(slopes)  # They fall, so those at the left ends are bounds.
    a, b = slopes[:-1], slopes[1:]
    weights = np.append(4 * (b - a) / (1 + a) / (1 + b) * (1 / (1 + a) + 1 / (1 + b)), 4 / (1 + slopes[-1]) ** 2)
    T = float(weights @ limits) * (1 + _SUM_ERROR) + _INTEGRAL_ERROR
    return max(together * (1 / T - 1) * float((upper - lower) / 2) ** 2 * (1 - _SUM_ERROR), 0.0)


@lru_cache(maxsize=64)
def _unit_bound(epsilon: float, delta: float, count: int) -> float:
    """Return the bound at sensitivity 1, for slopes that are refined where they matter."""
    region = Region(epsilon, delta, count)
    deviation = min(1 / float(gaussian_ratio(epsilon, delta, count, None)), math.sqrt(2) * count / epsilon)
    shifts = _SHIFTS_OF_ONE if count == 1 else _SHIFTS if deviation < _WIDE_NOISE else (1.0,)
    small_shift_slopes = np.exp(np.minimum(np.array(_SMALL_SHIFT_SLOPES) * epsilon / count, 600.0))
    program = Program(deviation, math.log(count / delta), np.array(shifts), small_shift_slopes)
    best, slopes = 0.0, region.first_slopes()
    for _ in range(_REFINEMENTS if count > 1 else 1):
        bound, weights = program.solve(slopes, region.largest(slopes))
        best = max(best, bound)
        if not bound > 0:
            break
        slopes = _refined(slopes, weights > _NEGLIGIBLE * bound)
    return best


def _refined(slopes: np.ndarray, matters: np.ndarray) -> np.ndarray:
    """Return the slopes that matter, their neighbours, and those in the middle between them."""
    middles = np.sqrt(slopes[1:] * slopes[:-1])
    is_refined = matters.copy()
    is_refined[1:] |= matters[:-1]
    is_refined[:-1] |= matters[1:]
    return np.sort(np.concatenate([slopes[is_refined], middles[matters[1:] | matters[:-1]]]))


class Region:
    """The probabilities v and u of the result 1 under Q and P for which k releases are (eps, delta)-DP.

    Attributes:
        epsilon: eps of all releases.
        delta: delta of all releases.
        count: k.
        total: values t of u + v, which increase to 1.
        difference: for each of them an upper bound of v - u.
    """

    def __init__(self, epsilon: float, delta: float, count: int) -> None:
        self.epsilon, self.delta, self.count = epsilon, delta, count
        if count > 1:
            self.total, self.difference = self._boundary()

    def first_slopes(self) -> np.ndarray:
        """Return the slopes of a first program: logs are multiples of eps/k."""
        if self.count == 1:
            return np.array([math.exp(self.epsilon)])
        middle_logs, large_logs = np.linspace(0.9, 1.2, 7), np.geomspace(1.3, 1.5 * self.count, 10)
        logs = np.concatenate([np.geomspace(0.25, 0.85, 6), middle_logs, large_logs]) * self.epsilon / self.count
        return np.exp(np.minimum(logs, 600.0))

    def largest(self, slopes: np.ndarray) -> np.ndarray:
        """Return c(S), an upper bound of v - S u in the region.

        Between two values of the total t the largest difference rises, and its ratio to t falls.
        """
        if self.count == 1:
            of_pure_line = 1 - (1 + slopes) * ((1 - self.delta) / (1 + math.exp(self.epsilon))) + _ERROR_OF_ONE
            return np.where(slopes >= math.exp(self.epsilon), self.delta, np.maximum(of_pure_line, self.delta))
        t, d = self.total, self.difference
        meeting = np.minimum(t[:-1] * d[1:] / d[:-1], t[1:])
        a, b = (1 + slopes[:, None]) / 2, (slopes[:, None] - 1) / 2  # v - S u = a d - b t.
        ends = np.maximum(a * d[:-1] - b * t[:-1], a * d[1:] - b * meeting)
        # Below the first total v - S u <= v - u.
        return np.maximum(ends.max(axis=1), d[0]) * (1 + _SUM_ERROR)

    def _boundary(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (t, d) such that k releases have more than delta at each of them."""
        # With a smaller total the result 1, if impossible under P, has at most delta in k releases.
        least = -math.expm1(math.log1p(-self.delta) / self.count)
        coarse = np.geomspace(least, 1.0, _COARSE_POINTS)
        low, high = np.zeros(_COARSE_POINTS), coarse.copy()
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            exceeds_delta = self.delta_below(coarse, middle) > self.delta
            low, high = np.where(exceeds_delta, low, middle), np.where(exceeds_delta, middle, high)
        total = np.geomspace(least, 1.0, 2 + math.ceil(-math.log(least) / math.log(_GRID_RATIO)))
        total[-1] = 1.0
        difference = np.exp(np.interp(np.log(total), np.log(coarse), np.log(high))) * (1 + _DIFFERENCE_MARGIN)
        open_indices, margin = np.arange(len(total)), _DIFFERENCE_MARGIN
        while True:
            difference = np.minimum(difference, total)  # The largest possible one.
            t, d = total[open_indices], difference[open_indices]
            open_indices = open_indices[(d < t) & ~(self.delta_below(t, d) > self.delta)]
            if not open_indices.size:
                return total, difference
            difference[open_indices] *= 1 + margin
            margin *= 1.5

    def delta_below(self, total: np.ndarray, difference: np.ndarray) -> np.ndarray:
        """Return a lower bound of delta of k results at eps, from t = u + v and v - u."""
        u, v = (total - difference) / 2, (total + difference) / 2
        masses = np.stack([u, np.maximum(1 - total, 0.0), v], axis=-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            loss = np.log1p(2 * difference / (total - difference))
            losses = np.arange(1, self.count + 1) * loss[:, None]
        # A larger eps has a smaller delta. It exceeds the rounding error of the losses.
        excess = losses - (self.epsilon * (1 + 1e-12) + 1e-12)
        gains = np.where(excess > 0, -np.expm1(-np.maximum(excess, 0.0)), 0.0)
        sums = _power(masses, self.count)[:, self.count + 1 :]
        return np.asarray((sums * gains).sum(axis=1) * (1 - _SUM_ERROR))


def _power(masses: np.ndarray, count: int) -> np.ndarray:
    """Return the masses of the sum of ``count`` results in every row, by sums of positive products."""
    result = np.ones((len(masses), 1))
    while count:
        if count & 1:
            result = _convolve(masses, result)
        count >>= 1
        masses = _convolve(masses, masses) if count else masses
    return result


def _convolve(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    result = np.zeros((len(first), first.shape[1] + second.shape[1] - 1))
    for index in range(second.shape[1]):
        result[:, index : index + first.shape[1]] += first * second[:, index : index + 1]
    result[result < _MIN_MASS] = 0.0  # Less is a lower bound, too, and subnormal floats are slow.
    return result


class Program:
    """The linear program of the bound at sensitivity 1, on knots that are equally spaced from s/2 of each shift s."""

    def __init__(self, deviation: float, log_odds: float, shifts: np.ndarray, small_shift_slopes: np.ndarray) -> None:
        spacing = deviation / _KNOTS_PER_DEVIATION
        if spacing < 0.5:  # Then shifts are multiples of it.
            spacing = 1 / min(2 * math.ceil(0.5 / spacing), _MAX_KNOTS)
        reach = min(
            deviation / math.sqrt(2) * (min(log_odds, _MAX_LOG_ODDS) + 5),
            max(_MAX_DEVIATIONS * deviation, log_odds + 5),
        )
        self.small_shift_slopes = small_shift_slopes
        self.shifts = np.unique(np.round(shifts / spacing)) * spacing if spacing <= 0.5 else shifts[-1:]
        self.spacing = spacing
        self.knots = [s / 2 + spacing * np.arange(max(math.ceil(reach / spacing), 3)) for s in self.shifts]
        # Between neighbouring ones of these points all functions are linear, and constant beyond the last one.
        points = [np.abs(y - moved) for y, s in zip(self.knots, self.shifts, strict=True) for moved in (0.0, s)]
        self.points = np.unique(np.round(np.concatenate([[0.0], *points]), 12))

    def solve(self, slopes: np.ndarray, largest: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the bound, and which part of it the limit of each slope costs."""
        from scipy import sparse  # Imported on use: it takes 0.2 s.
        from scipy.optimize import linprog

        x = self.points
        blocks, slope_of_block = [], []
        for s, y in zip(self.shifts, self.knots, strict=True):
            gained = (self._interpolation_matrix(x + s, y) + self._interpolation_matrix(s - x, y)) / 2
            lost = (self._interpolation_matrix(x, y) + self._interpolation_matrix(-x, y)) / 2
            for index, slope in enumerate(slopes):
                if s > 1 - 1e-9 or self.small_shift_slopes[0] <= slope <= self.small_shift_slopes[1]:
                    blocks.append(gained - slope * lost)
                    slope_of_block.append(index)
        gains = sparse.hstack(blocks).tocsr()
        sizes = [block.shape[1] for block in blocks]
        starts = np.cumsum([0, *sizes[:-1]])
        costs = largest[slope_of_block]
        scale = np.ones(gains.shape[1])
        scale[starts] = 2.0  # The test at s/2 is its own mirror image.
        owner = sparse.csr_matrix(
            (np.ones(len(scale)), (np.arange(len(scale)), np.repeat(np.arange(len(sizes)), sizes)))
        )
        level = np.ones((len(x), 1))
        result = linprog(
            np.concatenate([np.zeros(len(scale)), costs, [-1.0]]),
            A_ub=sparse.vstack(
                [
                    sparse.hstack([-gains, sparse.csr_matrix((len(x), len(sizes))), level]),
                    sparse.hstack([sparse.diags(scale), -owner, sparse.csr_matrix((len(scale), 1))]),
                ]
            ).tocsr(),
            b_ub=np.concatenate([x**2, np.zeros(len(scale))]),
            bounds=[(0.0, None)] * (len(scale) + len(sizes)) + [(None, None)],
            method="highs-ds",
            options={"maxiter": _MAX_SOLVER_STEPS},
        )
        if result.x is None:
            return 0.0, np.zeros(len(slopes))
        functions = np.maximum(result.x[: len(scale)], 0.0)
        limits = np.maximum.reduceat(functions * scale, starts)
        size = x[-1] * (x[-1] + 1) + float((abs(gains) @ functions).max())
        rounding = _POSITION_ERROR * max(1.0, 1 / self.spacing) * size
        # A square exceeds its chord, less a quarter of the squared distance of the ends.
        value = float((x**2 + gains @ functions).min()) - float(np.diff(x).max()) ** 2 / 4
        limit_costs = limits * costs
        bound = value - float(limit_costs.sum()) * (1 + _SUM_ERROR) - rounding
        return max(bound, 0.0), np.bincount(slope_of_block, limit_costs, len(slopes))

    def _interpolation_matrix(self, z: np.ndarray, knots: np.ndarray) -> RealArray:
        """Return the matrix from values at the knots to values at z: 0 one spacing below them, constant beyond."""
        from scipy import sparse

        position = np.minimum((z - knots[0]) / self.spacing, len(knots) - 1.0)
        nearest_knot = np.round(position)
        is_on_knot = np.abs(position - nearest_knot) < _ON_KNOT * max(1.0, 1 / self.spacing)
        position = np.where(is_on_knot, nearest_knot, position)
        index = np.floor(position).astype(int)
        rows, columns, weights = [], [], []
        for column, weight in ((index, index + 1 - position), (index + 1, position - index)):
            is_on_grid = (column >= 0) & (column < len(knots)) & (weight > 0)
            rows.append(np.flatnonzero(is_on_grid))
            columns.append(column[is_on_grid])
            weights.append(weight[is_on_grid])
        shape = len(z), len(knots)
        entries = np.concatenate(weights), (np.concatenate(rows), np.concatenate(columns))
        return sparse.csr_matrix(entries, shape)
