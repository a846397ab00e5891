"""Consistent counts: nonnegative estimates that add up to their sums, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import linalg
from scipy.optimize import nnls

from dpkernels import checks
from dpkernels.decimals import format_number
from dpkernels.estimation.categorical.intervals import nearest_in_simplex
from dpkernels.estimation.released import interval_ends, noise_table, rounding_errors
from dpkernels.exact.noise.table import NoiseTable
from dpkernels.mechanisms.additive import AdditiveVector
from dpkernels.numerics import Real
from dpkernels.release import containers
from dpkernels.shapes import Float, Num

# The largest numbers of bins, and of groups and bins together, since the program for groups is dense.
_MAX_BINS = 1 << 12
# The number of simulated errors behind the intervals of grouped counts.
_SIMULATED_ERRORS = 20_000
# The risk that their quantile is below the true one.
_QUANTILE_RISK = 1e-6
_MAX_ENTRIES = 1 << 22  # Entries of arrays of errors that are drawn at once.
# Sweeps that carry bounds from sums to bins and back; each only narrows them.
_SWEEPS = 4


@dataclass(frozen=True, eq=False, repr=False)
class ConsistentCounts:
    """Counts that are consistent with each other; see ``consistent_counts``.

    ``values`` are one per report: the bins, then the sums of the groups, which are exactly the sums of their bins.
    ``reports`` are the released values, and ``total`` the sum of the bins, if it was known.
    """

    values: Float[np.ndarray, " reports"]
    reports: Num[np.ndarray, " reports"]
    total: float | None
    _sums: Float[np.ndarray, "sums bins"]
    _noise: NoiseTable

    def __repr__(self) -> str:
        return f"ConsistentCounts({format_number(self.values)})"

    def interval(self, confidence: float = 0.95) -> tuple[Float[np.ndarray, " reports"], Float[np.ndarray, " reports"]]:
        """Return bounds, of the shape of ``values``, that hold for all true counts and sums at once.

        Without groups the bounds are exact quantiles of the sampled noise: (1 - a)^m = confidence for m reports and a
        risk a each. With groups they bound the errors of the least squares estimate, which are known combinations of
        the noise. Their largest standardised value is simulated with a fixed seed; the simulated quantile is too small
        with probability at most 1e-6. The bounds are then tightened by the constraints on counts and sums, and extended
        to contain ``values``. A confidence not in (0, 1) is a ValueError.
        """
        checks.within("confidence", confidence, 0.0, 1.0, open_ends=True)
        low, high = interval_ends(self.reports, self._noise, confidence, together=True)
        from scipy import stats  # Imported on use: it takes 0.3 s.

        rank = int(stats.binom.isf(_QUANTILE_RISK, _SIMULATED_ERRORS, confidence)) + 1
        if len(self._sums) and rank <= _SIMULATED_ERRORS:
            G = self._sums
            bins = _least_squares(G, self.reports - float(self._noise.mean), self.total)
            spread, largest = _errors(self._noise, G.shape, G.tobytes(), self.total is not None)
            estimate, reach = np.concatenate([bins, G @ bins]), largest[rank - 1] * spread
            low, high = estimate - reach, estimate + reach
        low, high = self._narrowed(low, high)
        return np.minimum(low, self.values), np.maximum(high, self.values)

    def _narrowed(self, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return bounds tightened by the constraints that counts are nonnegative and add up to their sums."""
        G, d = self._sums, len(self.values) - len(self._sums)
        # The bins of every sum; the last sum is the total.
        sums = [*(np.flatnonzero(row) for row in G), np.arange(d)]
        low, high = np.append(np.maximum(low, 0.0), 0.0), np.append(high, np.inf)
        if self.total is not None:
            low[-1] = high[-1] = self.total
        for _ in range(_SWEEPS):
            for total, members in enumerate(sums, d):
                sum_of_lows, sum_of_highs = low[members].sum(), high[members].sum()
                low[total], high[total] = max(low[total], sum_of_lows), min(high[total], sum_of_highs)
                low[members] = np.maximum(low[members], low[total] - (sum_of_highs - high[members]))
                high[members] = np.minimum(high[members], high[total] - (sum_of_lows - low[members]))
        return low[:-1], high[:-1]


def consistent_counts(
    reports: Real, mechanism: object, *, total: float | None = None, groups: Sequence[Sequence[int]] = ()
) -> ConsistentCounts:
    """Return the counts nearest to released ones, by least squares, that are not negative and add up.

    With groups they are more precise than the reports. The estimate is post-processing and costs no privacy. The true
    counts are assumed to be integers; the estimates are not rounded.

    Args:
        reports: (m,) one released vector, or values released one by one: the bins, then a sum for every group.
        mechanism: additive noise with its claim, on vectors or not, or its exact sampler.
        total: the sum of all bins, if it is public. A released total is a group of all bins instead.
        groups: for every report after the bins, the indices (from 0) of the bins that it sums. The levels of a
            hierarchy are groups of increasing size.

    Raises:
        ValueError: reports are empty, have several axes, or contain a value that the mechanism cannot have released;
            the total is negative; a group is empty, or has a duplicate or unknown bin; groups of more than 4,096 bins.
        TypeError: the mechanism is not additive noise.
        CertificateError: the mechanism has no certified sampler.

    Example:
        >>> import numpy as np, dpkernels as dpk
        >>> noise = dpk.on_vectors(dpk.laplace(epsilon=1.0, sensitivity=2.0), dimensions=3, norm="l1", lattice=1.0)
        >>> counts = consistent_counts(np.array([7.25, -1.5, 4.0]), noise, groups=[[0, 1]])
        >>> counts.values
        array([5.625, 0.   , 5.625])

    Source: Hay, Rastogi, Miklau, Suciu, "Boosting the accuracy of differentially private histograms through
    consistency" (VLDB 2010), here with nonnegative least squares.
    """
    noise, _ = noise_table(mechanism, None)
    values, _ = containers.unwrap(reports)
    r = np.array(values, np.float64)  # A copy: intervals are computed from it later.
    G = _checked_groups(groups, r, mechanism)
    rounding_errors("reports", r, noise)  # Refuse what the mechanism cannot have made.
    if total is not None:
        checks.within("total", total, 0.0, np.finfo(float).max)
    bins = _nearest(G, r - float(noise.mean), total)
    return ConsistentCounts(np.concatenate([bins, G @ bins]), r, total, G, noise)


def _checked_groups(groups: Sequence[Sequence[int]], reports: np.ndarray, mechanism: object) -> np.ndarray:
    """Return (g, d) ones where a group has a bin."""
    if reports.ndim != 1 or not len(reports):
        raise ValueError(f"reports: has shape {reports.shape}; one vector of counts is needed")
    inner = getattr(mechanism, "mechanism", mechanism)
    if isinstance(inner, AdditiveVector) and inner.dimensions != len(reports):
        raise ValueError(f"reports: are {len(reports)}; the mechanism makes {inner.dimensions}")
    d = len(reports) - len(groups)
    if d < 1:
        raise ValueError(f"groups: {len(groups)} for {len(reports)} reports; the bins' own reports come first")
    if len(groups) and len(reports) > _MAX_BINS:
        raise ValueError(f"groups: {len(reports)} reports; at most {_MAX_BINS} are made consistent with groups")
    G = np.zeros((len(groups), d))
    for number, group in enumerate(groups):
        members = checks.integers(f"groups[{number}]", group)
        if not (members.min() >= 0 and members.max() < d) or len(np.unique(members)) < len(members):
            raise ValueError(f"groups: {number} is {list(group)}; different bins of 0 to {d - 1} are needed")
        G[number, members] = 1.0
    return G


@lru_cache(maxsize=8)
def _errors(noise: NoiseTable, shape: tuple[int, ...], groups: bytes, has_total: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the standard deviations of the least squares errors, and sorted simulated maxima relative to them."""
    G = np.frombuffer(groups).reshape(shape)
    A = np.vstack([np.eye(shape[1]), G])
    errors = A @ _solve(G, A.T, np.zeros((1, len(A))) if has_total else None)
    spread = math.sqrt(float(noise.variance)) * np.sqrt((errors**2).sum(1))
    scale = np.where(spread > 1e-9 * spread.max(), spread, np.inf)
    # The largest distance of a whole number from the lattice point that it is rounded to.
    rounding = 0.0 if (1 / noise.bin_width).denominator == 1 else float(noise.bin_width)
    allowance = (rounding * np.abs(errors).sum(1) / scale)[:, None]
    cumulated, rng = np.cumsum(noise.weights / 2.0**noise.bits), np.random.default_rng(0)
    largest, size = np.empty(_SIMULATED_ERRORS), max(1, _MAX_ENTRIES // len(A))
    for first in range(0, _SIMULATED_ERRORS, size):
        u = rng.random((len(A), min(size, _SIMULATED_ERRORS - first)))
        codes = noise.first + np.searchsorted(cumulated, u, side="right")
        drawn = float(noise.bin_width) * codes - float(noise.mean)
        largest[first : first + size] = (np.abs(errors @ drawn) / scale[:, None] + allowance).max(0)
    return spread, np.sort(largest)


def _nearest(
    G: Float[np.ndarray, "sums bins"], r: Float[np.ndarray, " reports"], total: float | None
) -> Float[np.ndarray, " bins"]:
    """Return the bins x >= 0 with the given total that minimise |A x - r|^2; A x are the bins and their sums."""
    if total == 0:
        return np.zeros(G.shape[1])
    if not len(G):
        if total is None:
            return np.maximum(r, 0.0)
        x = nearest_in_simplex(r, total)
        return x * (total / x.sum())
    x = _least_squares(G, r, total)
    if x.min() >= 0:
        return x
    A = np.vstack([np.eye(G.shape[1]), G])
    if total is None:
        return nnls(A, r)[0]
    # Where sum x = total, A x - r = (A - r 1'/total) x = B x. Of z = s x the best s leaves |B z|^2 + (sum z - 1)^2
    # increasing in |B x|: its minimum over z >= 0 is in the direction of x.
    B = np.vstack([A - r[:, None] / total, np.ones(G.shape[1])])
    z = nnls(B, np.append(np.zeros(len(A)), 1.0))[0]
    return z * (total / z.sum())


def _least_squares(
    G: Float[np.ndarray, "sums bins"], r: Float[np.ndarray, " reports"], total: float | None
) -> Float[np.ndarray, " bins"]:
    d = G.shape[1]
    return _solve(G, (r[:d] + G.T @ r[d:])[:, None], None if total is None else np.array([[total]]))[:, 0]


def _solve(
    G: Float[np.ndarray, "sums bins"],
    right_sides: Float[np.ndarray, "bins right_sides"],
    totals: Num[np.ndarray, "1 right_sides"] | None,
) -> Float[np.ndarray, "bins right_sides"]:
    """Return (1 + G'G)^-1 applied to right sides, restricted to the given totals if there are any."""
    factor = linalg.cho_factor(np.eye(len(G)) + G @ G.T)

    def inverse(b: np.ndarray) -> np.ndarray:
        return b - G.T @ linalg.cho_solve(factor, G @ b)

    x = inverse(right_sides)
    if totals is None:
        return x
    ones = inverse(np.ones((G.shape[1], 1)))
    return x + ones * (totals - x.sum(0)) / ones.sum()
