"""Estimates of the privacy of shuffled reports: by enumeration, by an integral, or by the upper bound on a grid.

The integral applies to any number n of reports:

    E[(L_1 + ... + L_M)_+] = (1/pi) Re integral_0^inf exp(K(s)) / s^2 du,
    s = c + i u,    K(s) = n log(1 - gamma + gamma E e^(s L)),

with c > 0 the saddle point of K(c) - 2 ln c. The case M = 0, which contributes 0, is subtracted from exp(K). Quadrature
nodes are equidistant in v, with u = w sinh v and w the width of the saddle. If L has few values, S is nearly on a grid,
and exp(K) has further peaks far from the saddle. The nodes miss these, which changes delta by a relative 1e-4 at 100
reports and 1e-7 at 10,000.

Reports with three outcomes are enumerated, exactly up to rounding. Of n reports, K distinguish x from x'. X of these
are in favour of x. Of the other n - K reports, Z belong to the blanket but are equally likely under x and x':

    K ~ Bin(n, gamma (w_1 + w_2)),    X | K ~ Bin(K, w_1/(w_1 + w_2)),
    Z | K ~ Bin(n - K, gamma w_3/(1 - gamma (w_1 + w_2)))

and S = L_1 X + L_2 (K - X) + L_3 Z with L_1 > 0 >= L_2, L_3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from accountants.shuffle import bracket
from accountants.shuffle.blanket import MAX_TILTED_LOSS, Blanket, moments, shuffled_saddle_point
from dpkernels.numerics import Real, RealArray, cast_like, namespace, without_derivative
from dpkernels.proven import proven
from dpkernels.solve import newton, root

# The number of nodes, and the largest v.
NODES = (96, 3.1)  # Nodes end at 11 widths of the saddle.
FAR_NODES = (1024, 6.0)  # Nodes end at 200 of them.
_TOLERANCE = 1e-6  # The last Newton step of log eps.
_MAX_STEP = 2.0  # The longest one.
_SEARCHED = 60.0  # How far below log eps0 the log of an eps is searched.
_DIFFERENCE = 1e-4  # The relative distance to either side of eps for a slope.


def integral_log_delta(blanket: Blanket, n: Real, epsilon: Real, size: tuple[int, float] = NODES) -> tuple[Real, Real]:
    """Return (log delta, an estimate of its error) at one eps >= 0; -inf where no loss is positive; JAX of 64 bits."""
    L = blanket.losses(epsilon)
    xp = namespace(L, n, blanket.mass, blanket.gamma)
    is_number = ~xp.isnan(L.sum() + blanket.mass.sum() + blanket.gamma + n)
    counts = (blanket.mass > 0) & (L > 0)
    possible = counts.any()
    L = xp.where(possible, L, xp.linspace(-1.0, 1.0, L.size))  # No NaN, and no slope, from there.
    weighted = blanket.gamma * blanket.mass
    frozen_weighted, frozen_loss, frozen_n = without_derivative((weighted, L, n))
    c, variance = shuffled_saddle_point(frozen_weighted, frozen_loss, frozen_n)
    width = 1 / xp.sqrt(variance + 2 / c**2)
    value, error = _integral(blanket, L, n, c, width, size)
    log_scale = n * xp.log1p(moments(weighted, L, c)[0]) - xp.log(blanket.gamma * n)
    positive = possible & (value > 0)
    log_delta = xp.log(xp.where(positive, value, 1.0)) + log_scale
    log_delta = xp.where(is_number, xp.where(positive, log_delta, -xp.inf), xp.nan)
    return log_delta, xp.where(positive, error / xp.where(positive, value, 1.0), 0.0)


@lru_cache(maxsize=4)
def _rule(count: int, end: float) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of the trapezoidal rule in v with u = sinh v, over pi."""
    v, halves = np.linspace(0.0, end, count + 1), np.r_[0.5, np.ones(count)]
    return np.sinh(v), halves * (end / count / np.pi) * np.cosh(v)


def _integral(
    blanket: Blanket, L: RealArray, n: Real, c: Real, width: Real, size: tuple[int, float]
) -> tuple[Real, Real]:
    xp = namespace(L, n, c)
    sinh, weights = (cast_like(table, c) for table in _rule(*size))
    u, weight = width * sinh, weights * width
    grown, moment = xp.exp(xp.minimum(c * L, MAX_TILTED_LOSS)), xp.expm1(xp.minimum(c * L, MAX_TILTED_LOSS))
    weighted, phase = blanket.gamma * blanket.mass, u[:, None] * L
    half_sine = xp.sin(phase / 2)
    re = (weighted * (moment - 2 * grown * half_sine**2)).sum(-1)
    im = (weighted * grown * xp.sin(phase)).sum(-1)
    top = xp.log1p(blanket.gamma * (blanket.mass * moment).sum())
    log_size, angle = xp.log1p(re * (2 + re) + im * im) / 2, xp.arctan2(im, 1 + re)
    ignored = 1 - blanket.gamma
    # At most 1, as 1 - gamma is at most 1 - gamma + gamma E e^(c L).
    empty = xp.where(ignored > 0, xp.exp(xp.minimum(n * (xp.log(xp.where(ignored > 0, ignored, 1.0)) - top), 0.0)), 0.0)
    growth = xp.exp(n * (log_size - top))
    real, imaginary = growth * xp.cos(n * angle) - empty, growth * xp.sin(n * angle)
    # 1/s^2 = (c^2 - u^2 - 2 i c u)/|s|^4.
    denominator = (c**2 + u**2) ** 2
    terms = weight * (real * (c**2 - u**2) + imaginary * 2 * c * u) / denominator
    return terms.sum(), xp.abs(terms.sum() - 2 * terms[::2].sum()) + xp.abs(terms[-8:]).sum()


def integral_epsilon(blanket: Blanket, n: Real, delta: Real, pure_epsilon: Real) -> RealArray:
    """Return the least eps >= 0 at one delta, at most ``pure_epsilon``; of JAX numbers with implicit derivatives."""
    xp = namespace(blanket.mass, n, delta, pure_epsilon)
    goal, top = xp.log(delta), xp.log(pure_epsilon)
    spread = (blanket.mass * (blanket.p - blanket.q) ** 2).sum() / (blanket.gamma * n)
    start = xp.minimum(xp.log(spread * xp.maximum(-2 * goal, 0.1)) / 2, top - 0.1)
    # The unknown is log eps. An eps next to the low end stands for 0, where delta is at most the target.
    start, ends = without_derivative(start), (top - _SEARCHED, top)
    x = newton(_log_excess, (blanket, n, goal), start, ends, tolerance=_TOLERANCE, longest=_MAX_STEP, clip=True)
    return xp.where(x < ends[0] + 1, 0.0, xp.minimum(xp.exp(x), pure_epsilon))


def _log_excess(log_epsilon: Real, parameters: tuple[Blanket, Real, Real]) -> Real:
    blanket, n, goal = parameters
    xp = namespace(log_epsilon, blanket.mass, n, goal)
    return xp.maximum(integral_log_delta(blanket, n, xp.exp(log_epsilon))[0], -MAX_TILTED_LOSS) - goal


def host_log_delta(blanket: Blanket, n: float, epsilon: float, size: tuple[int, float] = NODES) -> tuple[float, float]:
    """Return ``integral_log_delta`` as floats."""
    with np.errstate(all="ignore"):  # Next to a tiny eps0 moments overflow or cancel.
        value, error = integral_log_delta(blanket, np.float64(n), np.float64(epsilon), size)
    return float(value), float(error)


def host_epsilon(blanket: Blanket, n: float, delta: float, pure_epsilon: float) -> tuple[float, float]:
    """Return (``epsilon`` of plain numbers, d log delta/d eps there, by a difference)."""
    with np.errstate(all="ignore"):
        eps = float(integral_epsilon(blanket, np.float64(n), np.float64(delta), np.float64(pure_epsilon)))
    low, high = eps * (1 - _DIFFERENCE), eps * (1 + _DIFFERENCE)
    if not 0 < low < high:
        return eps, -1.0
    return eps, (host_log_delta(blanket, n, high)[0] - host_log_delta(blanket, n, low)[0]) / (high - low)


_DEVIATIONS = 11.0  # Sums cover so many deviations of a count on either side of its mean,
_BESIDE = 12  # and so many counts more.
_MAX_ENTRIES = 1 << 21  # The most entries of a table of such counts.
# Outcomes are equally likely for both inputs if their losses differ relatively by less than this from 1 - e^eps.
_EQUALLY_LIKELY = 1e-10


def is_enumerable(blanket: Blanket, n: float) -> bool:
    """Return whether the blanket has two or three outcomes as above, and the tables are not too large."""
    split = _split(blanket)
    if split is None or float(n) != int(n) or n >= 1 << 31:
        return False

    def width(n: float, p: float) -> float:
        return min(n, 2 * (_DEVIATIONS * math.sqrt(max(n * p * (1 - p), 0.0)) + _BESIDE)) + 1

    informative, in_favour, uninformative = split[:3]
    k = width(n, informative)
    x = width(min(n, n * informative + k), in_favour)
    return k * max(x, width(n, min(uninformative / max(1 - informative, 1e-300), 1.0))) <= _MAX_ENTRIES


def _split(blanket: Blanket) -> tuple[float, float, float, tuple[int, ...]] | None:
    """Return (gamma (w_1 + w_2), w_1/(w_1 + w_2), gamma w_3, their places) for outcomes p > q, p < q and p = q."""
    gap = blanket.p - blanket.q
    signs = np.where(np.abs(gap) <= _EQUALLY_LIKELY * blanket.q, 0, np.sign(gap)).astype(int).tolist()
    if sorted(signs) not in ([-1, 1], [-1, 0, 1]):
        return None
    indices = tuple(signs.index(sign) for sign in (1, -1, 0) if sign in signs)
    first, second, *third = (blanket.gamma * float(blanket.mass[index]) for index in indices)
    informative = first + second
    return min(informative, 1.0), first / informative, sum(third), indices


class _BinomialTails(NamedTuple):
    """The tail sums of every row k of probabilities, and of probabilities times entries, from or up to each entry."""

    start: np.ndarray  # The first entry of every row.
    chance: np.ndarray  # Sums of probabilities, of shape (rows, entries + 1).
    weighted: np.ndarray  # Sums of probability times entry, of the same shape.


def _binomial(n: np.ndarray, p: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (the first likely outcome of Bin(n, p) for every n, likely outcomes, their probabilities), in rows."""
    from scipy.special import gammaln, xlog1py, xlogy  # Imported on use: it takes 0.2 s.

    reach = _DEVIATIONS * np.sqrt(n * p * (1 - p)) + _BESIDE
    first = np.maximum(np.floor(n * p - reach), 0).astype(np.int64)
    last = np.minimum(np.ceil(n * p + reach), n).astype(np.int64)
    entry, n = first[:, None] + np.arange(int((last - first).max()) + 1), n[:, None]
    k = np.minimum(entry, n)
    value = gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0) + xlogy(k, p) + xlog1py(n - k, -p)
    return first, entry, np.exp(np.where(entry <= n, value, -np.inf))


def _tails(n: np.ndarray, p: float, from_top: bool) -> _BinomialTails:
    first, entry, chance = _binomial(n, p)
    columns, none = (chance, chance * entry), np.zeros((len(n), 1))
    if from_top:
        sums = (np.concatenate([np.cumsum(column[:, ::-1], 1)[:, ::-1], none], 1) for column in columns)
    else:
        sums = (np.concatenate([none, np.cumsum(column, 1)], 1) for column in columns)
    return _BinomialTails(first, *sums)


@lru_cache(maxsize=8)
def _tables(n: int, informative: float, in_favour: float, uninformative: float) -> tuple[Any, ...]:
    """Return the likely values of K, their probabilities, the tails of X and of Z, and the means of Z."""
    _, (k,), (weight,) = _binomial(np.array([n]), informative)
    p_uninformative = min(uninformative / max(1 - informative, 1e-300), 1.0)
    return k, weight, _tails(k, in_favour, True), _tails(n - k, p_uninformative, False), (n - k) * p_uninformative


@proven("shuffle#proof")
def enumerated_delta(blanket: Blanket, n: float, epsilon: float) -> float:
    """Return delta at one eps for a blanket that ``is_enumerable``: E[S_+]/(gamma n)."""
    informative, in_favour, uninformative, indices = _split(blanket)  # type: ignore[misc]
    loss_up, loss_down, *loss_rest = (float(L) for L in blanket.losses(epsilon)[list(indices)])
    if loss_up <= 0:
        return 0.0
    # E[(A - fall Z)_+ | K] with A = base + slope X for every K; X by X only where A may be below fall Z.
    k, weight, x, z, mean_z = _tables(int(n), informative, in_favour, uninformative)
    slope, base, fall, last = loss_up - loss_down, loss_down * k, -sum(loss_rest), x.chance.shape[1] - 1
    lowest, highest = z.start, z.start + z.chance.shape[1] - 2
    first = np.clip(np.floor((fall * lowest - base) / slope) + 1 - x.start, 0, last).astype(np.int64)
    last_count = np.clip(np.ceil((fall * highest - base) / slope) - x.start, first, last).astype(np.int64)
    rows = np.arange(len(base))
    total = slope * x.weighted[rows, last_count] + (base - fall * mean_z) * x.chance[rows, last_count]
    for j in range(int((last_count - first).max()) if fall > 0 else 0):
        index = np.minimum(first + j, last_count)
        chance = np.where(index < last_count, x.chance[rows, index] - x.chance[rows, np.minimum(index + 1, last)], 0.0)
        A = base + slope * (x.start + index)
        upto = np.clip(np.floor(A / fall) - z.start + 1, 0, z.chance.shape[1] - 1).astype(np.int64)
        total += chance * (A * z.chance[rows, upto] - fall * z.weighted[rows, upto])
    return float(weight @ total) / (blanket.gamma * n)


# If fewer informative reports than this are expected, the integral is checked against nodes further out.
_CHECKED_BELOW = 10_000
_CHECKED_DELTAS = (1e-3, 1e-8, 1e-14)  # The deltas at which it is checked.
_LOG_TOLERANCE = 1e-7  # If both differ in log delta by this or more, the grid is used.
_MIN_REPORTS = 50  # With fewer reports the grid is used as well.
_ROOT_TOLERANCE = 1e-11  # The error of log delta at a root.
_GRID_ROOT_TOLERANCE = 1e-6  # That on the grid, whose transforms have more noise.
_MAX_SECANTS = 8  # The most secant steps to the root before it is bracketed.
_FIRST_STEP = 1e-4  # The first step to an eps that meets delta, as a share of eps0.


@dataclass(frozen=True, eq=False)
class ShuffleEstimate:
    """An estimate of the largest delta of some blankets, for plain numbers."""

    blankets: tuple[Blanket, ...]  # The blankets.
    n: float  # The number of reports.
    pure_epsilon: float  # eps0, from which on delta is 0.

    def log_delta(self, epsilon: float) -> float:
        """Return log delta at one eps; -inf from eps0 on."""
        if epsilon >= self.pure_epsilon * (1 + 1e-12):
            return -math.inf
        pairs = zip(self.blankets, self.methods, strict=True)
        return max((self._log_value(blanket, method, epsilon) for blanket, method in pairs), default=-math.inf)

    def argmax(self, epsilon: float) -> int:
        """Return the index of the blanket with the largest delta at one eps, by the integral over thinned outcomes."""
        values = [host_log_delta(blanket.thinned, self.n, epsilon)[0] for blanket in self.blankets]
        return max(range(len(values)), key=values.__getitem__)

    @cached_property
    def methods(self) -> tuple[str, ...]:
        return tuple(self._method(blanket) for blanket in self.blankets)

    def _method(self, blanket: Blanket) -> str:
        if is_enumerable(blanket, self.n):
            return "enumeration"
        if self.n < _MIN_REPORTS and float(self.n) == int(self.n):
            return "grid"
        informative = self.n * blanket.gamma * float(blanket.mass[blanket.p != blanket.q].sum())
        if informative >= _CHECKED_BELOW or float(self.n) != int(self.n):
            return "integral"
        thin = blanket.thinned
        for delta in _CHECKED_DELTAS:
            epsilon = host_epsilon(thin, self.n, delta, self.pure_epsilon)[0]
            inner_nodes, outer_nodes = (host_log_delta(thin, self.n, epsilon, size) for size in (NODES, FAR_NODES))
            if not abs(inner_nodes[0] - outer_nodes[0]) + outer_nodes[1] < _LOG_TOLERANCE:
                return "grid"
        return "integral"

    def _log_value(self, blanket: Blanket, method: str, epsilon: float) -> float:
        if method == "integral":
            return host_log_delta(blanket, self.n, epsilon)[0]
        method_delta = enumerated_delta if method == "enumeration" else bracket.blanket_upper_delta
        value = method_delta(blanket, int(self.n), epsilon)
        return math.log(value) if value > 0 else -math.inf

    def epsilon(self, delta: float) -> tuple[float, float]:
        """Return (the least eps at one delta, an estimate of d log delta/d eps there)."""
        if not self.blankets:
            return 0.0, -1.0
        goal = math.log(delta)
        eps, slope = host_epsilon(self.blankets[0].thinned, self.n, delta, self.pure_epsilon)
        before, close = (math.nan, math.nan), _GRID_ROOT_TOLERANCE if "grid" in self.methods else _ROOT_TOLERANCE
        for _ in range(_MAX_SECANTS):
            gap = self.log_delta(eps) - goal
            if abs(gap) < close or (eps == 0.0 and gap <= 0):
                return eps, slope
            if before[0] != eps and before[1] != gap and math.isfinite(before[1]):
                slope = (gap - before[1]) / (eps - before[0])
            if not (math.isfinite(gap) and slope < 0 and 0 <= eps - gap / slope < self.pure_epsilon):
                break
            before, eps = (eps, gap), eps - gap / slope
        if self.log_delta(0.0) <= goal:
            return 0.0, -1.0
        # Next to eps0 the grid may not resolve delta, so the first eps above the estimate that meets it is taken.
        low, high, step = 0.0, min(eps, self.pure_epsilon), _FIRST_STEP * self.pure_epsilon
        while high < self.pure_epsilon and self.log_delta(high) > goal:
            low, high, step = high, min(high + step, self.pure_epsilon), 4 * step
        eps = float(root(lambda eps, _: self.log_delta(eps) - goal, (), high, low, rtol=1e-13))
        return eps, -1.0 / max(eps, 1e-9)
