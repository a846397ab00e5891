"""Additive noise of any symmetric shape with the least variance for several releases, by descent over log densities.

The density is constant on cells of |z| of width D/n, where D is the sensitivity, and decreases away from 0, so that the
shift by D is the worst one. Cell j of the line then has one loss, l_j = log p_j - log p_(j - n). The loss of k releases
is a sum of k draws. Each loss is split between the two nearest grid points without changing the mean of q/p, which is
conservative. The delta of the sum and its gradient in all p_j and l_j take three Fourier transforms of losses tilted to
their saddle point.

The free parameters are the decreases of the log density from cell to cell, which are at least 0. The search solves for
a common factor of all decreases, the temperature, so that every point of the descent meets the budget; its derivative
is implicit. The result is certified as a ``Tabulated`` distribution by the upper end of the bracket of all releases.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from accountants.calibrate.composed import conservative_parameter, with_release_claim
from accountants.composition.brackets.dispatch import RigorousBounds
from accountants.composition.repeated import ConvergenceError
from accountants.from_mechanism import guarantee
from accountants.guarantee import Guarantee
from accountants.precision import in_64_bits
from accountants.tune.best_noise import BestNoise, noise
from dpkernels import checks
from dpkernels.distributions.base import Distribution
from dpkernels.distributions.tabulated import Tabulated
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import MAX_EXPONENT
from dpkernels.solve import NotPrivateError

__all__ = ["FreeForm", "free_form"]

_POINTS = 1 << 14  # Of the grid of losses.
_WINDOW = 24.0  # The width of the grid, in standard deviations of the tilted sum.
_MAX_WHOLE_SUMS = 12  # Up to so many releases the grid has all sums.
_MASS_BEYOND = 1e-4  # The mass beyond the last cell, in units of delta/count.
_MAX_CELLS = 4096  # The most cells of a table.
_MIN_SPREAD = 1e-3  # Of a tilted loss, in units of the largest one.
_MIN_LAST_FALL = 1e-6  # The least fall to the last cell, as the density beyond has to fall.
_MAX_TILT_STEPS = 60  # The most steps for a tilt.
_MAX_TEMPERATURE_STEPS = 100  # The most steps for a temperature.
_WORST = MAX_EXPONENT  # The log of the variance of falls that have no temperature on the budget.
_TEMPERATURE_TOLERANCE = 1e-10  # The error to which the log of a temperature is solved.
_LOG_DELTA_TOLERANCE = 1e-3  # The most that log delta may be off where it is steep in that log.
_STEEP_LOG_DELTA = 1e3  # With a steeper slope noise is nearly pure, and delta, not its log, is linear.
_MAX_ITERATIONS = 400  # The most steps of a descent.


@dataclass(frozen=True)
class FreeForm:
    """Noise of a free shape, certified, and the best named noise for the same budget.

    Attributes:
        mechanism: ``Tabulated`` noise as a mechanism; its claim is that of one release.
        value: its variance.
        gap: the variance of the best named noise over this one, less 1.
        named: the best named noise.
        epsilon: of all releases together.
        delta: the upper end of the bracket of the composed delta at epsilon.
        count: the number of releases.
        start: the name of the family from which the best descent started.
        steps: of that descent.
    """

    mechanism: Additive
    value: float
    gap: float
    named: BestNoise
    epsilon: float
    delta: float
    count: int
    start: str
    steps: int

    @property
    def lower_bound(self) -> float:
        """Return a lower bound on the variance of any noise for the budget; see ``least_variance``."""
        return self.named.lower_bound

    @property
    def excess(self) -> float:
        """Return how much more variance this noise has than the lower bound, relative to that bound."""
        return self.value / bound - 1 if (bound := self.lower_bound) else math.inf


@in_64_bits
def free_form(
    *,
    epsilon: float,
    delta: float,
    count: int = 1,
    sensitivity: float = 1.0,
    cells: int = 4,
    turns: int = _MAX_ITERATIONS,
) -> FreeForm:
    """Return symmetric noise of the least variance that was found for ``count`` releases together.

    The problem is not convex, so this is the best of several descents, which start at the best named noise, at the
    staircase and at generalised normal noise. Their variance falls with the number of cells.

    Args:
        epsilon: eps of all releases, positive.
        delta: delta of all releases, in (0, 1).
        count: the number of releases, an integer in 1..2^40.
        sensitivity: D, in data units, in [1e-100, 1e100].
        cells: the cells of the table in a sensitivity, 1..64.
        turns: the most steps of each descent.

    Raises:
        ValueError: an argument is out of range, or the noise is wider than a table of 4096 cells.
        NotPrivateError: no table was proven to meet the budget.

    Example:
        >>> found = free_form(epsilon=1.0, delta=1e-6, count=10, cells=1)
        >>> 0 < found.gap < 0.01
        True
    """
    checks.integer_in("cells", cells, 1, 64)
    checks.integer_in("turns", turns, 1, 10**5)
    named = noise(epsilon=epsilon, delta=delta, count=count, sensitivity=sensitivity)
    start_families = {named.costs[0].family, "staircase", "generalised normal"}
    results = []
    for cost in named.costs:
        if cost.noise is not None and cost.family in start_families:
            start = _falls(cost.noise, cells, delta / count)
            with np.errstate(all="ignore"):  # A table with numbers that are not finite is no member.
                _, falls, steps = Descent(float(epsilon), float(delta), count, cells).descend(start, turns)
            for table, number in ((falls, steps), (start, 0)):
                with suppress(NotPrivateError, ConvergenceError):
                    results.append(_certified(table, named, sensitivity, cells, delta, cost.family, number))
                    break
    if not results:
        raise NotPrivateError(f"cells: no table of {cells} cells in a sensitivity was proven to meet the budget")
    return min(results, key=lambda result: result.value)


def _falls(noise: Distribution, cells: int, delta: float) -> np.ndarray:
    """Return how much the log mass falls from each cell to the next one."""
    reach = float(noise.isf(np.float64(_MASS_BEYOND * delta)))
    count = max(math.ceil(reach * cells), 2 * cells) + 1
    if count > _MAX_CELLS:
        raise ValueError(f"cells: {cells} in a sensitivity, {count} in all; a table has at most {_MAX_CELLS}")
    ends = np.arange(count + 1) / cells
    masses = np.asarray(noise.mass(ends[:-1], ends[1:]))
    return np.maximum(-np.diff(np.log(masses)), 0.0)


def _certified(
    falls: np.ndarray, named: BestNoise, sensitivity: float, cells: int, delta: float, start: str, steps: int
) -> FreeForm:
    logs = -np.concatenate([[0.0], np.cumsum(falls)])

    def releases(t: float) -> Guarantee:
        return guarantee(Additive(member(t), 1.0)).repeat(named.count)

    def member(t: float) -> Tabulated:
        colder = math.exp(-t)
        return Tabulated(1.0 / cells, tuple((logs * colder).tolist()), float(falls[-cells:].mean() * colder))

    t = conservative_parameter(releases, named.epsilon, delta, starts_at_root=True)
    upper = RigorousBounds(releases(t)).upper_delta(named.epsilon)
    if not upper <= delta:
        raise NotPrivateError(f"delta: the table found has {upper:g} at epsilon {named.epsilon:g}, above {delta:g}")
    mechanism = with_release_claim(
        Additive(member(t).rescale(float(sensitivity)), float(sensitivity)), delta / named.count
    )
    value = float(mechanism.noise.variance)
    gap = float(named.mechanism.noise.variance) / value - 1
    return FreeForm(mechanism, value, gap, named, named.epsilon, upper, named.count, start, steps)


class Descent:
    """A descent over the falls of the log density at a budget; see the module."""

    def __init__(self, epsilon: float, delta: float, count: int, cells: int) -> None:
        self.epsilon, self.delta, self.count, self.cells = epsilon, delta, count, cells
        self.temperature, self.tilt = 1.0, 1.0

    def descend(self, falls: np.ndarray, turns: int) -> tuple[float, np.ndarray, int]:
        """Return the least variance, the falls that have it on the budget, and the number of steps."""
        from scipy.optimize import minimize  # Imported on use: it takes 0.15 s.

        bounds = [(0.0, None)] * (len(falls) - 1) + [(_MIN_LAST_FALL, None)]
        start = np.maximum(falls, [low for low, _ in bounds])
        options = {"maxiter": turns, "maxfun": 2 * turns, "maxcor": 30, "ftol": 1e-9, "gtol": 1e-9}
        result = minimize(self.log_variance, start, jac=True, bounds=bounds, method="L-BFGS-B", options=options)
        value, _ = self.log_variance(result.x)
        return math.exp(value), result.x * self.temperature, int(result.nit)

    def log_variance(self, falls: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the log of the variance at the temperature of the budget, and its gradient in the falls."""
        goal, low, high = math.log(self.delta), 0.0, math.inf
        for _ in range(_MAX_TEMPERATURE_STEPS):
            scaled = falls * self.temperature
            log_delta, delta_gradient = self.log_delta(scaled)
            slope = float(delta_gradient @ scaled)  # The derivative in the log of the temperature.
            error = log_delta - goal
            if slope > 0 and abs(error) <= min(_TEMPERATURE_TOLERANCE * max(slope, 1.0), _LOG_DELTA_TOLERANCE):
                break
            low, high = (self.temperature, high) if error < 0 else (low, self.temperature)
            if slope > 0:
                # Noise that is nearly pure has a delta that is linear in the temperature, and not its logarithm.
                linear = error > 0 or slope > _STEEP_LOG_DELTA
                step = (math.expm1(min(-error, 50.0)) if linear else -error) / slope
                aim = self.temperature * math.exp(min(max(step, -0.5), 0.5))
            else:
                aim = self.temperature * 1.01 if high == math.inf else high
            self.temperature = aim if low < aim < high else (low + high) / 2
        else:
            return _WORST, np.zeros(falls.shape)
        value, value_gradient = self.log_second_moment(scaled)
        temperature_slope = float(value_gradient @ scaled) / slope
        return value, (value_gradient - temperature_slope * delta_gradient) * self.temperature

    def _masses(self, falls: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return (p of the cells of the line, their losses, their numbers from 0 outwards, those D further on)."""
        count = len(falls) + 1
        logs = -np.concatenate([[0.0], np.cumsum(np.append(falls, np.full(self.cells, falls[-self.cells :].mean())))])
        line = np.arange(-count, count)
        cell, shifted_cell = (np.where(i < 0, -i - 1, i) for i in (line, line - self.cells))
        p = np.exp(logs[cell])
        return p / p.sum(), logs[cell] - logs[shifted_cell], cell, shifted_cell

    def _gradient(self, falls: np.ndarray, p: np.ndarray, by_p: np.ndarray, by_loss: np.ndarray) -> np.ndarray:
        """Return the gradient in the falls, from those by masses and losses."""
        *_, cell, shifted_cell = self._masses(falls)
        size = len(falls) + 1 + self.cells
        by_log = np.bincount(cell, p * (by_p - p @ by_p) + by_loss, size) - np.bincount(shifted_cell, by_loss, size)
        gradient = -np.cumsum(by_log[:0:-1])[::-1]
        gradient[len(falls) - self.cells : len(falls)] += gradient[len(falls) :].mean()
        return gradient[: len(falls)]

    def log_second_moment(self, falls: np.ndarray) -> tuple[float, np.ndarray]:
        p, _, cell, _ = self._masses(falls)
        squares = ((cell + 0.5) ** 2 + 1 / 12) / self.cells**2
        total = float(p @ squares)
        return math.log(total), self._gradient(falls, p, squares / total, np.zeros(p.shape))

    def log_delta(self, falls: np.ndarray) -> tuple[float, np.ndarray]:
        """Return log delta of all releases at epsilon, and its gradient in the falls."""
        k, eps = self.count, self.epsilon
        p, loss, _, _ = self._masses(falls)
        log_m, spread = self._solve_tilt(p, loss)
        c, most = self.tilt, k * float(loss.max())
        width = _WINDOW * spread * math.sqrt(k)
        # The sums of few losses are not nearly normal: if they are bounded near eps the grid has all of them.
        width = (max(width, min(2.2 * most, 5 * eps)) if k <= _MAX_WHOLE_SUMS else min(width, 2.2 * most)) + 2 * eps / k
        # eps/k is on the grid, or for few points eps.
        step = eps / k / max(math.ceil(eps / k * _POINTS / width), 1)
        index = np.floor(loss / step).astype(int)
        remainder = loss - index * step
        upper_fraction = -np.expm1(-remainder) / -math.expm1(-step)
        # Tilted masses, relative to the moment.
        heights = np.exp(c * step * np.arange(index.min(), index.max() + 2) - log_m)
        lower_height, upper_height = heights[index - index.min()], heights[index - index.min() + 1]
        wrapped_index = index % _POINTS
        masses = np.bincount(wrapped_index, p * (1 - upper_fraction) * lower_height, _POINTS)
        masses += np.bincount((wrapped_index + 1) % _POINTS, p * upper_fraction * upper_height, _POINTS)
        transform = np.fft.rfft(masses)
        epsilon_index = round(eps / step)
        sum_index = epsilon_index - _POINTS // 2 + np.arange(_POINTS)
        excess = sum_index * step - eps
        gains = np.where(excess > 0, -np.expm1(-np.maximum(excess, 0.0)) * np.exp(-c * np.maximum(excess, 0.0)), 0.0)
        weights = np.zeros(_POINTS)
        weights[sum_index % _POINTS] = gains
        weight_transform, powers = np.fft.rfft(weights), transform ** (k - 1)
        total = float(weights @ np.fft.irfft(powers * transform, _POINTS))
        if not total > 0:
            return -math.inf, np.zeros(len(falls))
        slopes = k / total * np.fft.irfft(weight_transform * np.conj(powers), _POINTS)
        lower_slope = slopes[wrapped_index] * lower_height
        upper_slope = slopes[(wrapped_index + 1) % _POINTS] * upper_height
        by_p = lower_slope * (1 - upper_fraction) + upper_slope * upper_fraction
        by_loss = p * (upper_slope - lower_slope) * np.exp(-remainder) / -math.expm1(-step)
        value, gradient = k * log_m - c * eps + math.log(total), self._gradient(falls, p, by_p, by_loss)
        return (value, gradient) if np.isfinite(gradient).all() else (-math.inf, np.zeros(len(falls)))

    def _solve_tilt(self, p: np.ndarray, loss: np.ndarray) -> tuple[float, float]:
        """Find the tilt at which the mean of the loss is eps/k; return (log of the moment, the standard deviation)."""
        aim, log_p = self.epsilon / self.count, np.log(np.maximum(p, 1e-300))
        for _ in range(_MAX_TILT_STEPS):
            logs = log_p + self.tilt * loss
            top = logs.max()
            weights = np.exp(logs - top)
            total = weights.sum()
            mean = float(weights @ loss / total)
            variance = float(weights @ (loss - mean) ** 2 / total)
            change = (mean - aim) / max(variance, 1e-300)
            log_m = float(top + math.log(total))
            if abs(change) <= 1e-3 * (1 + self.tilt) or not math.isfinite(change):
                break
            # Losses are bounded: where they hardly exceed eps/k the saddle point is far out.
            self.tilt = min(
                max(self.tilt - change, self.tilt / 3, 1e-3), 3 * self.tilt + 1, MAX_EXPONENT / max(loss.max(), 1e-9)
            )
        return log_m, math.sqrt(variance) + _MIN_SPREAD * abs(float(loss.max()))
