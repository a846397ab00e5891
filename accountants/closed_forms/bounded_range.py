"""Bounded-range mechanisms: optimal non-adaptive composition, also with pure-DP mechanisms, and the Renyi curve.

A mechanism is eps0-bounded-range (BR) if, for any neighbours, its loss ln p(y)/q(y) lies in [t - eps0, t] for some t in
[0, eps0], which may depend on the neighbours. An example is the exponential mechanism. A BR mechanism is eps0-DP, and
every eps0/2-DP mechanism is eps0-BR. The worst loss is t with probability q_t = (1 - e^(t - eps0))/(1 - E), and
otherwise t - eps0, with E = e^-eps0. Neighbours are as in the definition of eps0.

Functions take NumPy arrays (float64) or JAX arrays (in their precision), broadcast, and have derivatives. Deltas are
rounded upwards, by parts in 10^15 times the number of mechanisms, down to 1e-300.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from accountants.closed_forms import pure as pure_composition
from accountants.closed_forms.pure import grid_delta, grid_epsilon, numbers, pure_losses
from dpkernels import checks
from dpkernels.numerics import GAUSS_LEGENDRE, Boolean, Real, RealArray, namespace, without_derivative
from dpkernels.pytrees import PyTree
from dpkernels.solve import while_loop

# The error of a probability, in units in the last place of 1, of each mechanism and of the logarithms.
_UNITS = 2
# These compute ``_mean_slope`` to 1e-15.
_NODES, _WEIGHTS = GAUSS_LEGENDRE


def mixed_delta(epsilon0: Real, bounded_range: int, pure: int, epsilon: Real) -> Real:
    """Return the optimal delta at eps of m <= 4000 eps0-BR and n eps0-DP mechanisms, non-adaptive, in time m^2.

    Cesar & Rogers 2021, Theorem 3. With integers l >= 0, t_l = (eps + (l + 1 - n) eps0)/(m + 1) in (0, eps0),
    q_t = (1 - e^(t - eps0))/(1 - E), I ~ Bin(m, 1 - q_t), J ~ Bin(n, 1/(1 + e^eps0)), W = I + 2J:

        delta = max over l of  sum over w <= l of  P(W = w) (1 - e^(t_l - (l + 1 - w) eps0))

    m = 0 is ``pure_delta`` (their Theorem 1), and n = 0 is Dong, Durfee & Rogers 2019 (their Theorem 2). The total loss
    is m t + n eps0 - W eps0, so that every t gives a delta that some mechanisms have; t_l is where it is stationary.
    Derivatives are those at the best t held fixed (envelope theorem). Adaptive choices can be worse.
    """
    checks.within("epsilon", epsilon, 0.0, np.inf)
    return _map_entries(_mixed_delta, epsilon0, bounded_range, pure, epsilon)


def mixed_epsilon(epsilon0: Real, bounded_range: int, pure: int, delta: Real) -> Real:
    """Return the least eps >= 0 at delta in [0, 1) of m eps0-BR and n eps0-DP mechanisms, the inverse of mixed_delta.

    The result is rounded conservatively, as ``pure_epsilon``, and costs some 5 m^2. eps(delta) is the largest of
    eps_t(delta) over t. From a t below it, the best t at eps_t leads upwards with the convergence of Newton's method;
    bisection backs it.
    """
    checks.below_one("delta", delta)
    return _map_entries(_mixed_epsilon, epsilon0, bounded_range, pure, delta)


def bounded_range_renyi(epsilon0: Real, order: Real) -> Real:
    """Return the largest Renyi divergence of order alpha, in [1, inf], of an eps0-BR mechanism; tight.

    With t = eps0 + ln [(alpha - 1)(1 - E^alpha)/(alpha (1 - E^(alpha - 1)))] it is attained by the losses t, t - eps0:

        D = t + ln [(1 - E^alpha)/(alpha (1 - E))]/(alpha - 1)
          = g(alpha eps0) - g((alpha - 1) eps0) + [g(alpha eps0) - g(eps0)]/(alpha - 1),   g(z) = ln sinh(z/2)/(z/2)

    (Cesar & Rogers 2021). It is evaluated in mean slopes of g, which are positive and without cancellation. Limits:
    KL, y - 1 - ln y with y = eps0/(1 - E), at alpha = 1; eps0 at infinity; alpha eps0^2/8, an upper bound, as eps0 ->
    0.
    """
    checks.within("order", order, 1.0, np.inf)
    checks.positive("epsilon0", epsilon0)
    eps0, alpha = numbers(epsilon0, order)
    xp = namespace(eps0, alpha)
    finite = xp.isfinite(alpha)
    width = (xp.where(finite, alpha, 2.0) - 1) * eps0
    slopes = _mean_slope(width, eps0) + _mean_slope(eps0, width)
    return xp.where(finite, eps0 * slopes, eps0)[()]


def _mean_slope(z: Real, width: Real) -> Real:
    """Return (g(z + width) - g(z))/width; by Gauss-Legendre for short widths, with an error below 1e-15 at 6."""
    xp = namespace(z, width)
    short = width < 6
    nodes = xp.expand_dims(z, -1) + xp.expand_dims(xp.where(short, width, 1.0), -1) * _NODES
    by_quadrature = (_slope(nodes) * _WEIGHTS).sum(-1)
    w, z = xp.where(short, 6.0, width), xp.maximum(z, 1e-30)
    closed = 0.5 + (xp.log(xp.expm1(-z - w) / xp.expm1(-z)) - xp.log1p(w / z)) / w
    return xp.where(short, by_quadrature, closed)


def _slope(z: Real) -> Real:
    """Return g'(z) = coth(z/2)/2 - 1/z; by Lambert's continued fraction where that would cancel."""
    xp = namespace(z)
    is_small = z < 2
    x = xp.where(is_small, z, 1.0) / 2
    fraction = 21.0
    for odd in range(19, 1, -2):
        fraction = odd + x**2 / fraction
    large_z = xp.where(is_small, 2.0, z)
    return xp.where(is_small, x / fraction / 2, 0.5 / xp.tanh(large_z / 2) - 1 / large_z)


def _mix_losses(
    m: int, n: int, eps0: RealArray, t: RealArray, gap: RealArray | None = None
) -> tuple[RealArray, RealArray, RealArray]:
    """Return top, step and mass of the loss of the mix, with the BR mechanisms at t, which is a gap below eps0."""
    xp = namespace(eps0, t)
    mass = xp.convolve(_binomial(m, eps0, t, eps0 - t if gap is None else gap), _doubled(pure_losses(eps0, n)[2]))
    return m * t + n * eps0, eps0, mass


def _binomial(m: int, eps0: RealArray, t: RealArray, gap: RealArray) -> RealArray:
    """Return P(I = i), i = 0..m, on a last axis, rounded upwards, where I of m BR losses are t - eps0 = -gap."""
    xp = namespace(eps0, t)
    i = np.arange(m + 1)
    t, gap = xp.expand_dims(t, -1), xp.expand_dims(gap, -1)
    log_norm = xp.log(-xp.expm1(-eps0))
    log_q, log_rest = xp.log(-xp.expm1(-gap)) - log_norm, xp.log(-xp.expm1(-t)) - gap - log_norm
    logs = xp.asarray(pure_composition.log_ways(m), t.dtype), i * log_rest, (m - i) * log_q
    size = without_derivative(sum(abs(term) for term in logs))
    return xp.exp(sum(logs[1:], logs[0])) * (1 + _UNITS * xp.finfo(t.dtype).eps * (1 + m + size))


def _doubled(mass: RealArray) -> RealArray:
    xp = namespace(mass)
    return xp.stack([mass, xp.zeros_like(mass)], -1).ravel()[:-1]


def _best_t(m: int, n: int, eps0: RealArray, eps: RealArray) -> tuple[RealArray, RealArray, RealArray]:
    """Return t_l of Theorem 3's best l, eps0 - t_l, and l, for numbers, without derivative.

    The sum over w is sum over i of P(I = i) [(1 - e^(t_l - eps0)) B(l - i) + C(l - i)], with the sums B and C of 2 J.
    Products of l and eps0 are exact, so that eps0 - t_l is accurate next to the largest loss.
    """
    xp = namespace(eps0, eps)
    z = n - xp.minimum(eps / eps0, m + n)
    l = xp.floor(z).astype(int) + np.arange(-1, m + 2)  # noqa: E741
    high, low = pure_composition.split(eps0)
    t = ((eps + (l + 1 - n) * high) + (l + 1 - n) * low) / (m + 1)
    gap = (((m + n - l) * high - eps) + (m + n - l) * low) / (m + 1)
    is_valid = (t > 0) & (gap > 0)
    t, gap = xp.where(is_valid, t, eps0 / 2), xp.where(is_valid, gap, eps0 / 2)
    sums = pure_composition.grid_sums(xp.pad(_doubled(pure_losses(eps0, n)[2]), (1, max(0, m - n) + 2)), eps0)
    index = xp.clip(l[:, None] - np.arange(m + 1) + 1, 0, None)
    weight = _binomial(m, eps0, t, gap)
    B, C = ((weight * sums_of_l[index]).sum(-1) for sums_of_l in sums)
    best = xp.argmax(xp.where(is_valid, -xp.expm1(-gap) * B + C, -1.0))
    return t[best], gap[best], l[best]


def _mixed_delta(m: int, n: int, eps0: RealArray, eps: RealArray) -> Real:
    if m == 0:
        return pure_composition.upper_delta(eps, (eps0, n, pure_losses(eps0, n)))
    eps = namespace(eps0, eps).minimum(eps, (m + n + 1) * eps0)  # Above all losses; differences of infinities are NaN.
    frozen_eps0, frozen_eps = without_derivative((eps0, eps))
    t, gap, l = _best_t(m, n, frozen_eps0, frozen_eps)  # noqa: E741

    def excess(s: Real, eps: Real) -> Real:
        """Return the loss minus eps, with the derivative at t held fixed."""
        moving = (n - s) * eps0 - eps
        return gap + (l - s) * frozen_eps0 + (moving - without_derivative(moving))

    delta = grid_delta(*_mix_losses(m, n, eps0, t, gap + (eps0 - frozen_eps0)), eps, excess)
    xp = namespace(delta)
    return xp.minimum(delta * (1 + 8 * xp.finfo(delta.dtype).eps), 1.0)


def _mixed_epsilon(m: int, n: int, eps0: RealArray, delta: RealArray) -> Real:
    xp = namespace(eps0, delta)
    t = _worst_t(m, n, *without_derivative((eps0, delta))) if m else eps0 / 2
    eps = grid_epsilon(*_mix_losses(m, n, eps0, t), delta)
    eps = pure_composition.raised(lambda eps, eps0: _mixed_delta(m, n, eps0, eps), eps0, eps, delta, eps0)
    level = pure_composition.pure_level(eps0, m + n)
    return xp.where(delta > 0, xp.minimum(eps, level), level)


def _worst_t(m: int, n: int, eps0: RealArray, delta: RealArray) -> RealArray:
    """Return the t of the largest eps_t(delta), without derivative."""
    xp = namespace(eps0, delta)
    tolerance = np.finfo(eps0.dtype).eps ** 0.7

    def epsilon(t: RealArray) -> RealArray:
        return grid_epsilon(*_mix_losses(m, n, eps0, t), delta)

    def unfinished(state: PyTree) -> Boolean:
        *_, low, high, gain = state
        return (gain > tolerance * low) & (high - low > tolerance * low)

    def onwards(state: PyTree) -> PyTree:
        # Quadratic at first, for all but extreme arguments; then bisection, where gain is half of the bracket.
        step, t, low, high, _ = state
        x = xp.where(step < 8, low, (low + high) / 2)
        new, _, _ = _best_t(m, n, eps0, x)
        new_eps = epsilon(new)
        better, is_past = new_eps > low, new_eps < x
        gain = xp.where(step < 8, new_eps - low, (high - low) / 2)
        return step + 1, xp.where(better, new, t), xp.where(better, new_eps, low), xp.where(is_past, x, high), gain

    start = eps0 / 2
    return while_loop(unfinished, onwards, (0, start, epsilon(start), (m + n) * eps0, eps0))[1]


def _map_entries(
    function: Callable[..., Real], epsilon0: Real, bounded_range: int, pure: Real, values: Real
) -> RealArray:
    m = checks.integer_in("bounded_range", bounded_range, 0, 4000)
    n = checks.integer_in("pure", pure, 0, pure_composition.MAX_MECHANISMS)
    checks.positive("epsilon0", epsilon0)
    eps0, points = numbers(epsilon0, values)
    xp = namespace(eps0, points)
    eps0, points = xp.broadcast_arrays(eps0, points)
    if xp is jnp:
        return _map_traced(function, m, n, eps0.ravel(), points.ravel()).reshape(eps0.shape)
    pairs = zip(eps0.ravel(), points.ravel(), strict=True)
    return np.array([function(m, n, *pair) for pair in pairs], float).reshape(eps0.shape)[()]


@partial(jax.jit, static_argnums=(0, 1, 2))
def _map_traced(function: Callable[..., Real], m: int, n: int, eps0: Real, values: Real) -> Array:
    return jax.lax.map(lambda pair: function(m, n, *pair), (eps0, values))
