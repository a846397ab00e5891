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
        delta, of epsilon's shape; NumPy for NumPy arguments, JAX for JAX ones. Differentiable in every parameter but
        an ``outside`` weight of 0: a truncation is no limit of recycled laws, its loss is infinite outside.
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
    # An end piece without bound is judged at a point within the law's own scale of its finite end.
    scale = xp.abs(noise.law.lower_inverse(xp.asarray(0.25))) + xp.abs(shift)
    first = xp.where(xp.isfinite(left), left, xp.where(xp.isfinite(right), right - scale, -scale / 2))
    last = xp.where(xp.isfinite(right), right, xp.where(xp.isfinite(left), left + scale, scale / 2))
    middle = (first + last) / 2
    level = _loss(noise, shift, middle, xp)
    slope = xp.where(xp.isfinite(level), noise.law.score(middle) - noise.law.score(middle - shift), 0.0)
    return left, right, (middle, level), slope


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
