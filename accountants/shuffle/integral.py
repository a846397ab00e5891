"""E[(L_1 + ... + L_M)_+]/(gamma n) as one integral, whatever n is (the precise estimate; see ``blanket``).

    E[S_+] = (1/pi) Re integral_0^inf exp(K(s)) / s^2 du,    s = c + i u,    K(s) = n log(1 - gamma + gamma E e^(s L)),

c > 0 the saddle point of K(c) - 2 ln c; M = 0, which adds nothing to E[S_+], is taken off exp(K). Nodes in
u = w sinh v, w the saddle's width. Where L has few values S is next to a lattice, exp(K) comes back far out, and nodes
near the saddle miss that: about 1e-4 of delta at 100 reports, 1e-7 at 10,000 (``counts`` is exact there).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accountants.shuffle.crowds import Crowd
from dpkernels.numerics import Real, like
from dpkernels.solve import bisect

# Nodes, and the largest v: the integrand at 11 and at 200 widths.
NEAR, FAR = (96, 3.1), (1024, 6.0)
# c need not be precise: any contour is right.
_BISECTIONS, _NEWTON_STEPS = 32, 40
# Of log delta or log eps; how far below log eps0 an eps is looked for: delta is less at smaller ones, or at none.
_FOUND, _WIDEST = 1e-10, 60.0
_LARGEST = 600.0  # of exponents.
# Sizes that arrays of outcomes are filled up to, so that few programs are compiled.
_SIZES = (4, 16, 64, 128, 256, 512, 1024, 2048, 4096)


def padded(crowd: Crowd) -> Crowd:
    """As many outcomes as one of a few sizes, the further ones of no mass; NumPy in float64."""
    count = len(crowd.mass)
    size = next((size for size in _SIZES if size >= count), count)
    mass, p, q = (
        np.pad(column, (0, size - count), constant_values=fill)
        for column, fill in ((crowd.mass, 0.0), (crowd.p, 1.0), (crowd.q, 1.0))
    )
    return Crowd(mass, p, q, np.float64(crowd.gamma))


def _moments(crowd: Crowd, L: Any, c: Real) -> tuple[Any, Any, Any]:
    """gamma E(e^(c L) - 1), and gamma E L e^(c L), gamma E L^2 e^(c L)."""
    x = jnp.minimum(c * L, _LARGEST)
    grown = crowd.gamma * crowd.mass * jnp.exp(x) * L
    return crowd.gamma * (crowd.mass * jnp.expm1(x)).sum(), grown.sum(), (grown * L).sum()


def _saddle(crowd: Crowd, L: Any, n: Real) -> Any:
    """c, with K'(c) = 2/c."""
    highest = jnp.log(_LARGEST / jnp.maximum(L.max(), 1e-300))

    def before(log_c: Real) -> Any:
        c = jnp.exp(log_c)
        z, slope, _ = _moments(crowd, L, c)
        return n * slope * c < 2 * (1 + z)

    low, high = bisect(before, highest - 80.0, highest, _BISECTIONS)
    return jnp.exp((low + high) / 2)


def _log1p(re: Any, im: Any) -> tuple[Real, Real]:
    return jnp.log1p(re * (2 + re) + im * im) / 2, jnp.arctan2(im, 1 + re)


def log_delta(crowd: Crowd, n: Real, epsilon: Real, size: tuple[int, float] = NEAR) -> tuple[Real, Real]:
    """(log delta, an estimate of its error) at one eps >= 0; -inf where no loss is positive. JAX, 64 bits."""
    L = crowd.losses(epsilon)
    known = ~jnp.isnan(L.sum() + crowd.mass.sum() + crowd.gamma + n)
    some = (crowd.mass > 0) & (L > 0)
    possible = some.any()
    L = jnp.where(possible, L, jnp.linspace(-1.0, 1.0, L.size))  # No NaN, and no slope, from there.
    still = jax.lax.stop_gradient((crowd, L, n))
    c = _saddle(*still)
    z, slope, bend = _moments(*still[:2], c)
    mean = slope / (1 + z)
    width = 1 / jnp.sqrt(jnp.maximum(still[2] * (bend / (1 + z) - mean**2), 0.0) + 2 / c**2)
    value, error = _integral(crowd, L, n, c, width, size)
    log_scale = n * jnp.log1p(_moments(crowd, L, c)[0]) - jnp.log(crowd.gamma * n)
    positive = possible & (value > 0)
    found = jnp.log(jnp.where(positive, value, 1.0)) + log_scale
    found = jnp.where(known, jnp.where(positive, found, -jnp.inf), jnp.nan)
    return found, jnp.where(positive, error / jnp.where(positive, value, 1.0), 0.0)


def _integral(crowd: Crowd, L: Any, n: Real, c: Real, width: Real, size: tuple[int, float]) -> tuple[Real, Real]:
    """(integral of exp(K(s) - K(c))/s^2, an estimate of its error)."""
    count, end = size
    v, step = like(np.linspace(0.0, end, count + 1), c), end / count
    u = width * jnp.sinh(v)
    weight = (jnp.ones_like(v).at[0].set(0.5) * step / jnp.pi) * width * jnp.cosh(v)
    grown, decay = jnp.exp(jnp.minimum(c * L, _LARGEST)), jnp.expm1(jnp.minimum(c * L, _LARGEST))
    share, phase = crowd.gamma * crowd.mass, u[:, None] * L
    half = jnp.sin(phase / 2)
    re = (share * (decay - 2 * grown * half**2)).sum(-1)
    im = (share * grown * jnp.sin(phase)).sum(-1)
    top = jnp.log1p(crowd.gamma * (crowd.mass * decay).sum())
    log_size, angle = _log1p(re, im)
    rest = 1 - crowd.gamma
    none = jnp.where(rest > 0, jnp.exp(n * (jnp.log(jnp.where(rest > 0, rest, 1.0)) - top)), 0.0)
    size_of = jnp.exp(n * (log_size - top))
    real, imaginary = size_of * jnp.cos(n * angle) - none, size_of * jnp.sin(n * angle)
    # 1/s^2 = (c^2 - u^2 - 2 i c u)/|s|^4.
    over = (c**2 + u**2) ** 2
    terms = weight * (real * (c**2 - u**2) + imaginary * 2 * c * u) / over
    return terms.sum(), jnp.abs(terms.sum() - 2 * terms[::2].sum()) + jnp.abs(terms[-8:]).sum()


def epsilon(crowd: Crowd, n: Real, delta: Any, level: Any) -> tuple[Any, Any]:
    """(the least eps >= 0 at one delta, d log delta/d eps there), by Newton in log eps; derivatives are implicit."""
    still, goal, top = jax.lax.stop_gradient(((crowd, n), jnp.log(delta), jnp.log(level)))

    def value_and_slope(x: Real) -> tuple[Real, Real]:
        return jax.jvp(lambda x: log_delta(*still, jnp.exp(x))[0] - goal, (x,), (jnp.ones_like(x),))

    def step(state: Any) -> Any:
        count, x, low, high, *_ = state
        value, slope = value_and_slope(x)
        low, high = jnp.where(value > 0, x, low), jnp.where(value > 0, high, x)
        new = x - value / jnp.where(slope < 0, slope, -1.0)
        new = jnp.where((new > low) & (new < high), new, jnp.maximum((low + high) / 2, high - 2.0))
        done = (jnp.abs(value) < _FOUND) | (jnp.abs(new - x) < _FOUND)
        return count + 1, jnp.where(done, x, new), low, high, done, slope

    def unfinished(state: Any) -> Real:
        return (state[0] < _NEWTON_STEPS) & ~state[-2]

    spread = (still[0].mass * (still[0].p - still[0].q) ** 2).sum() / (still[0].gamma * still[1])
    start = jnp.minimum(jnp.log(spread * jnp.maximum(-2 * goal, 0.1)) / 2, top - 0.1)
    first = (0, start, top - _WIDEST, top, False, -jnp.ones_like(start))
    _, x, _, _, _, slope = jax.lax.while_loop(unfinished, step, first)
    moved = log_delta(crowd, n, jnp.exp(x))[0] - jnp.log(delta)
    shift = jnp.where(slope < 0, -moved / jnp.where(slope < 0, slope, -1.0), 0.0)
    found = jnp.minimum(jnp.exp(x + shift), level)
    return jnp.where(x < top - _WIDEST + 1, 0.0, found), jax.lax.stop_gradient(slope * jnp.exp(-x))


@partial(jax.jit, static_argnames=("size",))
def _log_delta(crowd: Crowd, n: Real, epsilon: Real, size: tuple[int, float]) -> tuple[Real, Real]:
    return log_delta(crowd, n, epsilon, size)


_epsilon = jax.jit(epsilon)


def host_log_delta(crowd: Crowd, n: float, epsilon: float, size: tuple[int, float] = NEAR) -> tuple[float, float]:
    """``log_delta`` of numbers, compiled."""
    with jax.enable_x64(True):
        value, error = _log_delta(crowd, np.float64(n), np.float64(epsilon), size)
        return float(value), float(error)


def host_epsilon(crowd: Crowd, n: float, delta: float, level: float) -> tuple[float, float]:
    """``epsilon`` of numbers, compiled."""
    with jax.enable_x64(True):
        found, slope = _epsilon(crowd, np.float64(n), np.float64(delta), np.float64(level))
        return float(found), float(slope)
