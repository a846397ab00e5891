"""E[(L_1 + ... + L_M)_+]/(gamma n) as one integral, whatever n is (the precise estimate; see ``blanket``).

    E[S_+] = (1/pi) Re integral_0^inf exp(K(s)) / s^2 du,    s = c + i u,    K(s) = n log(1 - gamma + gamma E e^(s L)),

c > 0 the saddle point of K(c) - 2 ln c; M = 0, which adds nothing to E[S_+], is taken off exp(K). Nodes in
u = w sinh v, w the saddle's width. Where L has few values S is next to a lattice, exp(K) comes back far out, and nodes
near the saddle miss that: about 1e-4 of delta at 100 reports, 1e-7 at 10,000 (``counts`` is exact there).
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from accountants.shuffle.crowds import Crowd
from dpkernels.numerics import Real, like, namespace
from dpkernels.solve import bisect, newton

# Nodes, and the largest v: the integrand at 11 and at 200 widths.
NEAR, FAR = (96, 3.1), (1024, 6.0)
# c need not be precise: any contour is right.
_BISECTIONS = 32
# Newton's steps of log eps, the last and the longest; how far below log eps0 an eps is looked for: delta is less at
# smaller ones, or at none.
_FOUND, _LONGEST, _WIDEST = 1e-6, 2.0, 60.0
_DIFFERENCE = 1e-4  # Of eps, to either side, for a slope.
_LARGEST = 600.0  # of exponents.


def _moments(crowd: Crowd, L: Any, c: Real) -> tuple[Any, Any, Any]:
    """gamma E(e^(c L) - 1), and gamma E L e^(c L), gamma E L^2 e^(c L)."""
    xp = namespace(L, c)
    x = xp.minimum(c * L, _LARGEST)
    grown = crowd.gamma * crowd.mass * xp.exp(x) * L
    return crowd.gamma * (crowd.mass * xp.expm1(x)).sum(), grown.sum(), (grown * L).sum()


def _saddle(crowd: Crowd, L: Any, n: Real) -> Any:
    """c, with K'(c) = 2/c."""
    xp = namespace(L, n)
    highest = xp.log(_LARGEST / xp.maximum(L.max(), 1e-300))

    def before(log_c: Real) -> Any:
        c = xp.exp(log_c)
        z, slope, _ = _moments(crowd, L, c)
        return n * slope * c < 2 * (1 + z)

    low, high = bisect(before, highest - 80.0, highest, _BISECTIONS)
    return xp.exp((low + high) / 2)


def _log1p(re: Any, im: Any) -> tuple[Real, Real]:
    xp = namespace(re, im)
    return xp.log1p(re * (2 + re) + im * im) / 2, xp.arctan2(im, 1 + re)


def log_delta(crowd: Crowd, n: Real, epsilon: Real, size: tuple[int, float] = NEAR) -> tuple[Real, Real]:
    """Return (log delta, an estimate of its error) at one eps >= 0; -inf where no loss is positive.

    The numbers are NumPy's, or JAX's of 64 bits.
    """
    L = crowd.losses(epsilon)
    xp = namespace(L, n, crowd.mass, crowd.gamma)
    known = ~xp.isnan(L.sum() + crowd.mass.sum() + crowd.gamma + n)
    some = (crowd.mass > 0) & (L > 0)
    possible = some.any()
    L = xp.where(possible, L, xp.linspace(-1.0, 1.0, L.size))  # No NaN, and no slope, from there.
    still = (crowd, L, n) if xp is np else jax.lax.stop_gradient((crowd, L, n))
    c = _saddle(*still)
    z, slope, bend = _moments(*still[:2], c)
    mean = slope / (1 + z)
    width = 1 / xp.sqrt(xp.maximum(still[2] * (bend / (1 + z) - mean**2), 0.0) + 2 / c**2)
    value, error = _integral(crowd, L, n, c, width, size)
    log_scale = n * xp.log1p(_moments(crowd, L, c)[0]) - xp.log(crowd.gamma * n)
    positive = possible & (value > 0)
    found = xp.log(xp.where(positive, value, 1.0)) + log_scale
    found = xp.where(known, xp.where(positive, found, -xp.inf), xp.nan)
    return found, xp.where(positive, error / xp.where(positive, value, 1.0), 0.0)


def _integral(crowd: Crowd, L: Any, n: Real, c: Real, width: Real, size: tuple[int, float]) -> tuple[Real, Real]:
    """(integral of exp(K(s) - K(c))/s^2, an estimate of its error)."""
    xp, (count, end) = namespace(L, n, c), size
    step, halves = end / count, np.r_[0.5, np.ones(count)]
    v, halves = like(np.linspace(0.0, end, count + 1), c), like(halves, c)
    u = width * xp.sinh(v)
    weight = (halves * step / xp.pi) * width * xp.cosh(v)
    grown, decay = xp.exp(xp.minimum(c * L, _LARGEST)), xp.expm1(xp.minimum(c * L, _LARGEST))
    share, phase = crowd.gamma * crowd.mass, u[:, None] * L
    half = xp.sin(phase / 2)
    re = (share * (decay - 2 * grown * half**2)).sum(-1)
    im = (share * grown * xp.sin(phase)).sum(-1)
    top = xp.log1p(crowd.gamma * (crowd.mass * decay).sum())
    log_size, angle = _log1p(re, im)
    rest = 1 - crowd.gamma
    # At most 1, as 1 - gamma is at most 1 - gamma + gamma E e^(c L).
    none = xp.where(rest > 0, xp.exp(xp.minimum(n * (xp.log(xp.where(rest > 0, rest, 1.0)) - top), 0.0)), 0.0)
    size_of = xp.exp(n * (log_size - top))
    real, imaginary = size_of * xp.cos(n * angle) - none, size_of * xp.sin(n * angle)
    # 1/s^2 = (c^2 - u^2 - 2 i c u)/|s|^4.
    over = (c**2 + u**2) ** 2
    terms = weight * (real * (c**2 - u**2) + imaginary * 2 * c * u) / over
    return terms.sum(), xp.abs(terms.sum() - 2 * terms[::2].sum()) + xp.abs(terms[-8:]).sum()


def epsilon(crowd: Crowd, n: Real, delta: Any, level: Any) -> Any:
    """Return the least eps >= 0 at one delta, at most ``level``; of JAX numbers with implicit derivatives."""
    xp = namespace(crowd.mass, n, delta, level)
    goal, top = xp.log(delta), xp.log(level)
    spread = (crowd.mass * (crowd.p - crowd.q) ** 2).sum() / (crowd.gamma * n)
    start = xp.minimum(xp.log(spread * xp.maximum(-2 * goal, 0.1)) / 2, top - 0.1)
    start = start if xp is np else jax.lax.stop_gradient(start)
    # In log eps. An eps next to the low end is 0: there delta is at most the one given.
    ends = top - _WIDEST, top
    x = newton(_log_excess, (crowd, n, goal), start, ends, tolerance=_FOUND, longest=_LONGEST, clip=True)
    return xp.where(x < ends[0] + 1, 0.0, xp.minimum(xp.exp(x), level))


def _log_excess(log_epsilon: Real, parameters: tuple[Crowd, Real, Real]) -> Any:
    crowd, n, goal = parameters
    xp = namespace(log_epsilon, crowd.mass, n, goal)
    return xp.maximum(log_delta(crowd, n, xp.exp(log_epsilon))[0], -_LARGEST) - goal


def host_log_delta(crowd: Crowd, n: float, epsilon: float, size: tuple[int, float] = NEAR) -> tuple[float, float]:
    """``log_delta`` of plain numbers."""
    value, error = log_delta(crowd, np.float64(n), np.float64(epsilon), size)
    return float(value), float(error)


def host_epsilon(crowd: Crowd, n: float, delta: float, level: float) -> tuple[float, float]:
    """Return (``epsilon`` of plain numbers, d log delta/d eps there, by a difference)."""
    found = float(epsilon(crowd, np.float64(n), np.float64(delta), np.float64(level)))
    low, high = found * (1 - _DIFFERENCE), found * (1 + _DIFFERENCE)
    if not 0 < low < high:
        return found, -1.0
    return found, (host_log_delta(crowd, n, high)[0] - host_log_delta(crowd, n, low)[0]) / (high - low)
