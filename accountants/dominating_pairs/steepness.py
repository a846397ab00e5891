"""A check of ``steepness``, the bound that brackets rely on, against sampled derivatives of the density."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.jet import jet

from dpkernels import checks
from dpkernels.distributions.base import Distribution
from dpkernels.numerics import Real

_ORDER = 8  # The order of the derivatives that are checked beside the first: the error of 4 Gauss nodes has the eighth.
_ROUNDING = 1e-6  # The share by which a computed derivative may exceed its bound.


def check_steepness(noise: Distribution, points: int = 1000, seed: int = 0) -> None:
    """Compare ``noise.steepness`` with the derivatives of the density on random panels between knots.

    A bracket of composed noise is proven if |f'| <= s f and |f^(8)| <= s^8 f for the density f and the s that
    ``noise.steepness(lower, upper)`` returns for a panel. Call this function in a test of a user-defined class, whose
    ``log_prob`` must take JAX arrays, too. It detects a bound that is too small at the 10 to 10^6 ``points`` (panels)
    that it samples; it does not prove the bound.

    Raises:
        ValueError: a derivative exceeds the bound; the message has the panel, the order and both numbers.

    Example:
        >>> import dpkernels as dpk
        >>> check_steepness(dpk.Logistic(2.0))
    """
    checks.integer_in("points", points, 10, 10**6)
    lower, upper, z = _panels(noise, points, seed)
    bound = np.broadcast_to(np.asarray(noise.steepness(lower, upper), np.float64), z.shape)
    with jax.enable_x64(True):
        level = noise.log_prob(jnp.asarray(z))
        derivatives = _derivatives(lambda x: jnp.exp(noise.log_prob(x) - level), jnp.asarray(z))
    for order in (1, _ORDER):
        size = np.abs(derivatives[order - 1])
        violations = np.flatnonzero(~(size <= bound**order * (1 + _ROUNDING)))
        if len(violations):
            worst = violations[np.argmax(size[violations] / np.maximum(bound[violations] ** order, 1e-300))]
            panel, measured = f"{lower[worst]:.6g}, {upper[worst]:.6g}", size[worst] ** (1 / order)
            raise ValueError(
                f"noise: {type(noise).__name__}.steepness({panel}) is {bound[worst]:.6g}, but |f^({order})|/f is "
                f"{measured:.6g}^{order} at {z[worst]:.6g}; the bound must be at least that, or brackets are not proven"
            )


def _panels(noise: Distribution, count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return panels (lower, upper), which hold no knot, and a point of each; some panels are far out."""
    draws = np.random.default_rng(seed)
    tails = 10.0 ** -draws.uniform(0.3, 16.0, count)
    start = np.where(draws.random(count) < 0.5, noise.inverse(tails, np.ones(count, bool)), 0.0)
    start = np.where(start == 0.0, noise.inverse(tails, np.zeros(count, bool)), start)
    start = np.where(draws.random(count) < 0.5, noise.icdf(draws.random(count)), start)
    end = start + draws.exponential(0.3, count) * float(noise.isf(np.float64(0.25)) - noise.icdf(np.float64(0.25)))
    knots = np.concatenate([np.asarray(noise.knots, float), np.asarray(noise.support, float)])
    knots = np.unique(knots[np.isfinite(knots)])
    # A panel ends before the next knot, and starts slightly after the previous one.
    next_knot = np.searchsorted(knots, start, side="right")
    end = np.minimum(end, np.append(knots, np.inf)[next_knot])
    start = np.maximum(start, np.append(-np.inf, knots)[next_knot])
    fraction = draws.uniform(1e-3, 1 - 1e-3, count)
    return start, end, start + fraction * (end - start)


def _derivatives(function: Callable[[Real], Real], z: Real) -> list[np.ndarray]:
    """Return the derivatives of the function at every z, of order 1 to 8."""
    ones, zeros = jnp.ones_like(z), jnp.zeros_like(z)
    try:
        return [np.asarray(derivative) for derivative in jet(function, (z,), ((ones, *[zeros] * (_ORDER - 1)),))[1]]
    except (TypeError, NotImplementedError):
        # An operation has no rule for Taylor series: differentiate order by order, which is slower.
        derivatives = []
        for _ in range(_ORDER):
            function = partial(_slope, function)
            derivatives.append(np.asarray(function(z)))
        return derivatives


def _slope(function: Callable[[Real], Real], z: Real) -> Real:
    return jax.jvp(function, (z,), (jnp.ones_like(z),))[1]
