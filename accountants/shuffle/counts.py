"""Shuffled reports of three outcomes, outcome by outcome: exact to rounding where they are too few for the integral.

Of n reports K tell x and x' apart, X of them for x, and Z of the others hide them but tell nothing:

    K ~ Bin(n, gamma (w_1 + w_2)),    X | K ~ Bin(K, w_1/(w_1 + w_2)),
    Z | K ~ Bin(n - K, gamma w_3/(1 - gamma (w_1 + w_2)))

and S = L_1 X + L_2 (K - X) + L_3 Z with L_1 > 0 >= L_2, L_3. Sums over the tails of X, and of Z, are tabled once for
all eps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, xlog1py, xlogy

from accountants.shuffle.crowds import Crowd

# Deviations and outcomes beside them that are summed over; the most entries of a table.
_DEVIATIONS, _BESIDE, _MOST = 11.0, 12, 1 << 21
# Losses of outcomes that tell nothing differ by less than this from 1 - e^eps, relatively.
_SAME = 1e-10


def applies(crowd: Crowd, n: float) -> bool:
    """Whether the crowd has such outcomes, and tables of them are not too large."""
    split = _split(crowd)
    if split is None or float(n) != int(n) or n >= 1 << 31:
        return False
    told, share, hides = split[:3]
    k = _width(n, told)
    x, z = _width(min(n, n * told + k), share), _width(n, min(hides / max(1 - told, 1e-300), 1.0))
    return k * max(x, z) <= _MOST


def _width(n: float, p: float) -> float:
    return min(n, 2 * (_DEVIATIONS * math.sqrt(max(n * p * (1 - p), 0.0)) + _BESIDE)) + 1


def _split(crowd: Crowd) -> tuple[float, float, float, tuple[int, ...]] | None:
    """(gamma (w_1 + w_2), w_1/(w_1 + w_2), gamma w_3, where they are) of outcomes p > q, p < q and p = q, one each."""
    signs = np.where(np.abs(crowd.p - crowd.q) <= _SAME * crowd.q, 0, np.sign(crowd.p - crowd.q)).astype(int).tolist()
    if sorted(signs) not in ([-1, 1], [-1, 0, 1]):
        return None
    places = tuple(signs.index(sign) for sign in (1, -1, 0) if sign in signs)
    first, second, *third = (crowd.gamma * float(crowd.mass[place]) for place in places)
    told = first + second
    return min(told, 1.0), first / told, sum(third), places


@dataclass(frozen=True)
class _Tails:
    """Of every row k: sums over entries from number i on (or up to it) of probabilities and of them times the entry.

    Attributes:
        start: the first entry of every row.
        chance: (rows, entries + 1).
        weighted: the same, of probability times entry.
    """

    start: np.ndarray
    chance: np.ndarray
    weighted: np.ndarray


@dataclass(frozen=True)
class _Table:
    """Of K what is likely, with the tails of X and of Z."""

    k: np.ndarray
    weight: np.ndarray
    x: _Tails
    z: _Tails
    mean_z: np.ndarray


def _log_binomial(n: np.ndarray, k: np.ndarray, p: float) -> np.ndarray:
    inside = (k >= 0) & (k <= n)
    k = np.where(inside, k, 0)
    value = gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0) + xlogy(k, p) + xlog1py(n - k, -p)
    return np.where(inside, value, -np.inf)


def _entries(n: np.ndarray, p: float) -> tuple[np.ndarray, np.ndarray]:
    """(first, 0, 1, .. ) of the likely outcomes of Bin(n, p), for every n."""
    half = _DEVIATIONS * np.sqrt(n * p * (1 - p)) + _BESIDE
    first = np.maximum(np.floor(n * p - half), 0).astype(np.int64)
    last = np.minimum(np.ceil(n * p + half), n).astype(np.int64)
    return first, np.arange(int((last - first).max()) + 1)


def _tails(n: np.ndarray, p: float, from_top: bool) -> _Tails:
    first, order = _entries(n, p)
    entry = first[:, None] + order
    chance = np.exp(_log_binomial(n[:, None], entry, p))
    columns = (chance, chance * entry)
    none = np.zeros((len(n), 1))
    if from_top:
        sums = (np.concatenate([np.cumsum(each[:, ::-1], 1)[:, ::-1], none], 1) for each in columns)
    else:
        sums = (np.concatenate([none, np.cumsum(each, 1)], 1) for each in columns)
    return _Tails(first, *sums)


@lru_cache(maxsize=8)
def _table(n: int, told: float, share: float, hides: float) -> _Table:
    first, order = _entries(np.array([n]), told)
    k = first[0] + order
    other = min(hides / max(1 - told, 1e-300), 1.0)
    rest = n - k
    weight = np.exp(_log_binomial(np.array(n), k, told))
    return _Table(k, weight, _tails(k, share, True), _tails(rest, other, False), rest * other)


def delta(crowd: Crowd, n: float, epsilon: float) -> float:
    """delta at one eps, of a crowd that ``applies``: E[S_+]/(gamma n)."""
    told, share, hides, places = _split(crowd)  # type: ignore[misc]
    up, down, *other = (float(L) for L in crowd.losses(epsilon)[list(places)])
    if up <= 0:
        return 0.0
    table = _table(int(n), told, share, hides)
    return float(table.weight @ _of_rows(table, up - down, down * table.k, -sum(other))) / (crowd.gamma * n)


def _of_rows(table: _Table, slope: float, base: np.ndarray, fall: float) -> np.ndarray:
    """E[(A - fall Z)_+ | K], A = base + slope X, for every K: at once where A is above all of fall Z, else X by X."""
    x, z, last = table.x, table.z, table.x.chance.shape[1] - 1
    lowest, highest = z.start, z.start + z.chance.shape[1] - 2
    some = np.clip(np.floor((fall * lowest - base) / slope) + 1 - x.start, 0, last).astype(np.int64)
    every = np.clip(np.ceil((fall * highest - base) / slope) - x.start, some, last).astype(np.int64)
    rows = np.arange(len(base))
    total = slope * x.weighted[rows, every] + (base - fall * table.mean_z) * x.chance[rows, every]
    for j in range(int((every - some).max()) if fall > 0 else 0):
        at = np.minimum(some + j, every)
        chance = np.where(at < every, x.chance[rows, at] - x.chance[rows, np.minimum(at + 1, last)], 0.0)
        A = base + slope * (x.start + at)
        upto = np.clip(np.floor(A / fall) - z.start + 1, 0, z.chance.shape[1] - 1).astype(np.int64)
        total += chance * (A * z.chance[rows, upto] - fall * z.weighted[rows, upto])
    return total
