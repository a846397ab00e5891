"""Confidence intervals of the number of people in a category, from the number of reports that support it.

Of n people m are in the category, and C = Bin(m, p) + Bin(n - m, q) reports support it, which increases with m. The
interval holds every m for which both P(C >= c) and P(C <= c) exceed half of the risk. It is exact: no normal
approximation is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import special

# The sum over a binomial distribution takes so many terms in a standard deviation at most, up to so many deviations: as
# the terms are smooth, the rest is below 1e-15 of the sum.
_TERMS_PER_DEVIATION = 3.5
_DEVIATIONS = 9.0
_MARGIN = 10.0  # terms more, on either side
_MAX_TERMS = 1 << 22  # evaluated at once


def tail(c: np.ndarray, m: np.ndarray, n: int, p: float, q: float, *, upper: bool) -> np.ndarray:
    """Return P(C >= c), or with ``upper=False`` P(C <= c), of C = Bin(m, p) + Bin(n - m, q), for arrays c and m."""
    size = max(1, _MAX_TERMS // _grid_size())
    parts = [_tail(c[at : at + size], m[at : at + size], n, p, q, upper) for at in range(0, len(c), size)]
    return np.concatenate(parts) if parts else np.zeros(0)


def _grid_size() -> int:
    return 2 * math.ceil(_TERMS_PER_DEVIATION * _DEVIATIONS + _MARGIN) + 2


def _tail(c: np.ndarray, m: np.ndarray, n: int, p: float, q: float, upper: bool) -> np.ndarray:
    # The sum is over the binomial with the smaller variance, since its terms are fewer.
    c, m = c.astype(float)[:, None], m.astype(float)[:, None]
    swap = m * p * (1 - p) > (n - m) * q * (1 - q)
    first, rate = np.where(swap, n - m, m), np.where(swap, q, p)
    rest, other = n - first, np.where(swap, p, q)
    spread = np.sqrt(first * rate * (1 - rate))
    step = np.maximum(1.0, np.floor(spread / _TERMS_PER_DEVIATION))
    half = _grid_size() // 2
    j = np.rint(first * rate) + step * np.arange(-half, half)
    inside = (j >= 0) & (j <= first)
    at = np.where(inside, j, 0.0)
    log_mass = (
        -special.betaln(at + 1, first - at + 1)
        - np.log1p(first)
        + special.xlogy(at, rate)
        + special.xlog1py(first - at, -rate)
    )
    mass = np.where(inside, np.exp(log_mass), 0.0)
    mass /= mass.sum(1, keepdims=True)
    s = c - at if upper else c - at + 1  # P(B >= s), or its complement.
    free = np.clip(s, 1.0, np.maximum(rest, 1.0))
    at_least = special.betainc if upper else special.betaincc
    middle = at_least(free, rest - free + 1, other)
    low, high = (1.0, 0.0) if upper else (0.0, 1.0)
    return (mass * np.where(s <= 0, low, np.where(s > rest, high, middle))).sum(1)


def count_intervals(
    supports: np.ndarray, n: int, probabilities: tuple[float, float], confidence: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and the largest number of people, int64, that each number of supports is compatible with."""
    p, q = probabilities
    risk = (1 - confidence) / 2
    values, places = np.unique(supports, return_inverse=True)
    c = values.astype(float)
    estimate = np.clip((c - n * q) / (p - q), 0.0, n)
    spread = np.sqrt(estimate * p * (1 - p) + (n - estimate) * q * (1 - q)) / (p - q)
    reach = -float(special.ndtri(risk)) * spread + 1

    def is_low_enough(m: np.ndarray, at: np.ndarray) -> np.ndarray:
        return tail(c[at], m, n, p, q, upper=False)

    def is_high_enough(m: np.ndarray, at: np.ndarray) -> np.ndarray:
        return tail(c[at], n - m, n, p, q, upper=True)

    # Both tails fall in their argument; the largest argument at which it exceeds the risk is the end.
    high = _last_above(is_low_enough, estimate + reach, n, risk, spread)
    low = n - _last_above(is_high_enough, n - (estimate - reach), n, risk, spread)
    return low[places], high[places]


def _last_above(
    tail_at: Callable[[np.ndarray, np.ndarray], np.ndarray],
    guess: np.ndarray,
    n: int,
    risk: float,
    spread: np.ndarray,
) -> np.ndarray:
    """Return the largest m in 0..n whose tail exceeds the risk, or 0, for a tail that falls in m.

    Steps are Newton's in the normal quantile of the tail, which is nearly linear, and halve the bracket if they fail.
    """
    low, high = np.zeros(len(guess)), np.full(len(guess), n + 1.0)  # The tail is taken to exceed the risk at 0.
    target, turn = float(special.ndtri(risk)), 0
    at = np.arange(len(guess))
    m = np.clip(np.rint(guess), 1.0, n)
    while len(at):
        found = tail_at(m, at)
        is_above = found > risk
        low[at], high[at] = np.where(is_above, m, low[at]), np.where(is_above, high[at], m)
        step = (special.ndtri(np.clip(found, 1e-300, 1 - 1e-16)) - target) * spread[at]
        turn += 1
        following = np.floor(m + step) if turn % 8 else np.floor((low[at] + high[at]) / 2)
        following = np.where(following == m, np.where(is_above, m + 1, m - 1), following)
        m = np.clip(following, low[at] + 1, high[at] - 1)
        left = high[at] - low[at] > 1
        at, m = at[left], m[left]
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
    risk = (1 - confidence) / 2
    c = supports.astype(float)
    low = np.where(c > 0, special.betaincinv(np.maximum(c, 1), n - c + 1, risk), 0.0)
    high = np.where(c < n, special.betainccinv(c + 1, np.maximum(n - c, 1), risk), 1.0)
    return np.clip((low - q) / (p - q), 0.0, 1.0), np.clip((high - q) / (p - q), 0.0, 1.0)


def nearest_in_simplex(values: np.ndarray, total: float) -> np.ndarray:
    """Return the nearest numbers, in squared distance, that are not negative and add up to a total."""
    falling = np.sort(values)[::-1]
    levels = (np.cumsum(falling) - total) / np.arange(1, len(values) + 1)
    return np.maximum(values - levels[np.flatnonzero(falling > levels)[-1]], 0.0)
