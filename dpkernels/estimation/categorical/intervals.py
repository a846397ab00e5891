"""Confidence intervals of the number of people in a category, from the number of reports that support it.

If m of n people are in the category, C = Bin(m, p) + Bin(n - m, q) reports support it, which increases with m. The
interval contains every m for which both P(C >= c) and P(C <= c) exceed half of the allowed error probability. It is
exact, without a normal approximation.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import special

from dpkernels.estimation.interval_formulas import clopper_pearson

# The sum over a binomial distribution takes so many terms in a standard deviation at most, up to so many deviations: as
# the terms are smooth, the rest is below 1e-15 of the sum.
_TERMS_PER_DEVIATION = 3.5
_DEVIATIONS = 9.0
_MARGIN = 10.0  # terms more, on either side
_MAX_TERMS = 1 << 22  # evaluated at once


def tail(c: np.ndarray, m: np.ndarray, n: int, p: float, q: float, *, upper: bool) -> np.ndarray:
    """Return P(C >= c), or with ``upper=False`` P(C <= c), of C = Bin(m, p) + Bin(n - m, q), for arrays c and m."""
    size = max(1, _MAX_TERMS // _grid_size())
    starts = range(0, len(c), size)
    tails = [_tail(c[start : start + size], m[start : start + size], n, p, q, upper) for start in starts]
    return np.concatenate([np.zeros(0), *tails])


def _grid_size() -> int:
    return 2 * math.ceil(_TERMS_PER_DEVIATION * _DEVIATIONS + _MARGIN) + 2


def _tail(c: np.ndarray, m: np.ndarray, n: int, p: float, q: float, upper: bool) -> np.ndarray:
    # The sum is over the binomial with the smaller variance, since its terms are fewer.
    c, m = c.astype(float)[:, None], m.astype(float)[:, None]
    swap = m * p * (1 - p) > (n - m) * q * (1 - q)
    first, first_rate = np.where(swap, n - m, m), np.where(swap, q, p)
    second, second_rate = n - first, np.where(swap, p, q)
    spread = np.sqrt(first * first_rate * (1 - first_rate))
    step = np.maximum(1.0, np.floor(spread / _TERMS_PER_DEVIATION))
    half = _grid_size() // 2
    j = np.rint(first * first_rate) + step * np.arange(-half, half)
    is_outcome = (j >= 0) & (j <= first)
    j = np.where(is_outcome, j, 0.0)
    log_mass = (
        -special.betaln(j + 1, first - j + 1)
        - np.log1p(first)
        + special.xlogy(j, first_rate)
        + special.xlog1py(first - j, -first_rate)
    )
    mass = np.where(is_outcome, np.exp(log_mass), 0.0)
    mass /= mass.sum(1, keepdims=True)
    s = c - j if upper else c - j + 1  # P(B >= s), or its complement.
    successes = np.clip(s, 1.0, np.maximum(second, 1.0))
    survival = special.betainc if upper else special.betaincc
    inner = survival(successes, second - successes + 1, second_rate)
    low, high = (1.0, 0.0) if upper else (0.0, 1.0)
    return (mass * np.where(s <= 0, low, np.where(s > second, high, inner))).sum(1)


def count_intervals(
    supports: np.ndarray, n: int, probabilities: tuple[float, float], confidence: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and the largest number of people, int64, that each number of supports is compatible with."""
    p, q = probabilities
    risk = (1 - confidence) / 2
    values, indices = np.unique(supports, return_inverse=True)
    c = values.astype(float)
    estimate = np.clip((c - n * q) / (p - q), 0.0, n)
    spread = np.sqrt(estimate * p * (1 - p) + (n - estimate) * q * (1 - q)) / (p - q)
    reach = -float(special.ndtri(risk)) * spread + 1

    def lower_tail(m: np.ndarray, which: np.ndarray) -> np.ndarray:
        return tail(c[which], m, n, p, q, upper=False)

    def upper_tail(others: np.ndarray, which: np.ndarray) -> np.ndarray:
        return tail(c[which], n - others, n, p, q, upper=True)

    # Both tails fall in their argument; the largest argument at which it exceeds the risk is the end.
    high = _last_above(lower_tail, estimate + reach, n, risk, spread)
    low = n - _last_above(upper_tail, n - (estimate - reach), n, risk, spread)
    return low[indices], high[indices]


def _last_above(
    tail_probability: Callable[[np.ndarray, np.ndarray], np.ndarray],
    initial_guess: np.ndarray,
    n: int,
    risk: float,
    spread: np.ndarray,
) -> np.ndarray:
    """Return the largest m in 0..n whose tail exceeds the risk, or 0, for a tail that falls in m.

    Steps are Newton's in the normal quantile of the tail, which is nearly linear, and halve the bracket if they fail.
    """
    size = len(initial_guess)
    low, high = np.zeros(size), np.full(size, n + 1.0)  # The tail is taken to exceed the risk at 0.
    target, iteration = float(special.ndtri(risk)), 0
    active = np.arange(size)
    m = np.clip(np.rint(initial_guess), 1.0, n)
    while len(active):
        tails = tail_probability(m, active)
        is_above = tails > risk
        low[active], high[active] = np.where(is_above, m, low[active]), np.where(is_above, high[active], m)
        step = (special.ndtri(np.clip(tails, 1e-300, 1 - 1e-16)) - target) * spread[active]
        iteration += 1
        candidate = np.floor(m + step) if iteration % 8 else np.floor((low[active] + high[active]) / 2)
        candidate = np.where(candidate == m, np.where(is_above, m + 1, m - 1), candidate)
        m = np.clip(candidate, low[active] + 1, high[active] - 1)
        is_open = high[active] - low[active] > 1
        active, m = active[is_open], m[is_open]
    return low.astype(np.int64)


def cut_by_sum(low: np.ndarray, high: np.ndarray, total: float) -> tuple[np.ndarray, np.ndarray]:
    """Return bounds that hold together, tightened by the fact that the numbers add up to a total."""
    cut_high = np.minimum(high, np.maximum(total - (low.sum() - low), 0))
    cut_low = np.maximum(low, total - (high.sum() - high))
    return np.minimum(cut_low, cut_high), np.maximum(cut_low, cut_high)


def share_intervals(
    supports: np.ndarray, n: int, probabilities: tuple[float, float], confidence: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return bounds of the shares of the population from which n people were drawn (Clopper and Pearson's)."""
    p, q = probabilities
    low, high = clopper_pearson(n, supports.astype(float), confidence)
    return np.clip((low - q) / (p - q), 0.0, 1.0), np.clip((high - q) / (p - q), 0.0, 1.0)


def nearest_in_simplex(values: np.ndarray, total: float) -> np.ndarray:
    """Return the nearest numbers, in squared distance, that are not negative and add up to a total."""
    falling = np.sort(values)[::-1]
    levels = (np.cumsum(falling) - total) / np.arange(1, len(values) + 1)
    return np.maximum(values - levels[np.flatnonzero(falling > levels)[-1]], 0.0)
