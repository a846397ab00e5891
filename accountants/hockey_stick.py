"""The exact privacy profile of additive noise, in closed form, piece by piece.

    delta(eps) = integral max(0, f(x) - e^eps f(x - D)) dx

Between the knots of f and of its shift the loss l(x) = log f(x) - log f(x - D) is affine for every law of dpkernels,
so {l > eps} is an interval with closed-form ends, and the integral over it a difference of two masses.
"""

from __future__ import annotations

from typing import Any

import jax

from dpkernels.distributions.base import Distribution
from dpkernels.numerics import floating, namespace


def shift_profile(noise: Distribution, shift: Any, epsilon: Any) -> Any:
    """delta(eps) of the pair (Z, Z + shift).

    Args:
        noise: the law of Z.
        shift: how far the second law is shifted; any sign.
        epsilon: any shape; negative values are allowed.

    Returns:
        delta, of epsilon's shape; NumPy for NumPy arguments, JAX for JAX ones.
    """
    eps = floating(epsilon)
    xp = namespace(eps, shift, *jax.tree.leaves(noise))
    left, right, level, slope = _pieces(noise, shift, xp)
    return _integral(noise, shift, eps, left, right, level, slope, xp)


def additive_profile(noise: Distribution, sensitivity: Any, epsilon: Any) -> Any:
    """delta(eps) over all shifts of size up to D, for a density unimodal about 0.

    The worst shift is +D or -D at every eps >= 0: where f(x) > f(x - d) the integrand grows with d.
    """
    up, down = (shift_profile(noise, sign * sensitivity, epsilon) for sign in (1, -1))
    return namespace(up, down).maximum(up, down)


def _pieces(noise: Distribution, shift: Any, xp: Any) -> tuple[Any, Any, Any, Any]:
    """Ends of the pieces, and the loss on each: level at the reference point, and slope."""
    knots = xp.asarray(noise.knots)
    ends = xp.sort(xp.concatenate([knots, knots + shift]))
    infinity = xp.full(1, xp.inf)
    left, right = xp.concatenate([-infinity, ends]), xp.concatenate([ends, infinity])
    width = xp.abs(shift) + 1.0
    first = xp.where(xp.isfinite(left), left, xp.where(xp.isfinite(right), right - 2 * width, 0.0))
    last = xp.where(xp.isfinite(right), right, xp.where(xp.isfinite(left), left + 2 * width, width))
    one, two = first + (last - first) / 4, last - (last - first) / 4
    at_one, at_two = (_loss(noise, shift, point, xp) for point in (one, two))
    gap = xp.where(two > one, two - one, 1.0)
    finite = xp.isfinite(at_one) & xp.isfinite(at_two)
    low, high = xp.where(finite, at_one, 0.0), xp.where(finite, at_two, 0.0)
    rise = high - low
    # A flat piece's slope is rounding only; taken as 0, its side of eps is decided by its level.
    flat = xp.abs(rise) <= 1e-12 * (1 + xp.abs(low))
    slope = xp.where(flat, 0.0, rise / gap)
    return left, right, (one, at_one), slope


def _loss(noise: Distribution, shift: Any, x: Any, xp: Any) -> Any:
    """log f(x) - log f(x - shift); infinite where only one is 0, -infinite where both are."""
    p, q = noise.log_prob(x), noise.log_prob(x - shift)
    possible = p > -xp.inf
    both = possible & (q > -xp.inf)
    difference = xp.where(both, p, 0.0) - xp.where(both, q, 0.0)
    return xp.where(both, difference, xp.where(possible, xp.inf, -xp.inf))


def _integral(noise: Distribution, shift: Any, eps: Any, left: Any, right: Any, level: Any, slope: Any, xp: Any) -> Any:
    """Sum over pieces of w_P K(start, end) - e^eps w_Q K(start - D, end - D), K the symmetric law underneath."""
    point, at = level
    eps = eps[..., None]
    sloped = slope != 0
    cut = point + (eps - xp.where(sloped, at, 0.0)) / xp.where(sloped, slope, 1.0)
    whole = ~sloped & (at > eps)
    start = xp.where(slope > 0, xp.clip(cut, left, right), left)
    end = xp.where(slope < 0, xp.clip(cut, left, right), xp.where(sloped | whole, right, left))
    law, w_p, w_q = noise.law, noise.weight(point), noise.weight(point - shift)
    pieces = w_p * law.mass(start, end) - xp.exp(eps) * w_q * law.mass(start - shift, end - shift)
    return xp.maximum(xp.where(end > start, pieces, 0.0), 0.0).sum(-1)
