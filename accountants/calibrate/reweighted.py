"""Even noise of another weight beyond theta: recycled noise has weight u = 1 - q there, truncated noise has 0.

With Z(u) = p_in + u p_out, p_in the kernel's mass within theta,

    h(u) = Z(u) (delta(eps) - delta) = integral max(0, w_u(x) K(x) - e^eps w_u(x - D) K(x - D)) dx - delta Z(u)

is convex in u, and the noise meets its budget where h(u) <= 0. Of the feasible u the least has the largest acceptance.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import jax
import numpy as np

from accountants.dominating_pairs.additive import additive_pair
from accountants.dominating_pairs.base import curve, profile
from dpkernels.distributions.base import Distribution, Symmetric
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.numerics import Real, RealArray, namespace
from dpkernels.solve import convex_root, root

LEAST_WEIGHT = 2.0**-53  # Of the outside: q is at most the float before 1.


def excess(kernel: Distribution, u: Real, theta: Real, D: Real, epsilon: Real, delta: Any) -> Any:
    """Return h(u) = Z(u) (delta(eps) - delta), which is convex in u."""
    gain, total = weighted_profile(kernel, u, theta, D, epsilon)
    return gain - delta * total


def profile_excess(kernel: Distribution, u: Real, theta: Real, D: Real, epsilon: Real, delta: Any) -> Any:
    """Return delta(eps) - delta."""
    gain, total = weighted_profile(kernel, u, theta, D, epsilon)
    return gain / total - delta


@singledispatch
def weighted_profile(kernel: Distribution, u: Real, theta: Real, D: Real, epsilon: Real) -> tuple[Any, Any]:
    """Return (Z(u) delta(eps), Z(u)), of any even kernel by its exact profile."""
    law, xp = Reweighted(kernel, -theta, theta, u), namespace(u, theta, D, epsilon, *jax.tree.leaves(kernel))
    pairs = (additive_pair(law, D),)
    return law.total * (profile(pairs, epsilon) if xp is np else curve(pairs)(epsilon)), law.total


@weighted_profile.register(Gaussian)
@weighted_profile.register(Laplace)
def _(kernel: Symmetric, u: Real, theta: Real, D: RealArray, epsilon: Real) -> tuple[Any, Any]:
    """By pieces between the steps of w(x) and w(x - D), in each of which the loss exceeds eps up to a cut.

    The integrand is 0 at a cut, so that its derivatives do not count; an eighth of the general profile to compile.
    """
    xp = namespace(u, theta, D, epsilon, *jax.tree.leaves(kernel))
    near, far = xp.minimum(theta, D - theta), xp.maximum(theta, D - theta)
    steps = xp.stack([-theta, near, far, D + theta])
    left, right = xp.append(-xp.inf, steps), xp.append(steps, xp.inf)
    inside = xp.concatenate([steps[:1] - D, (steps[1:] + steps[:-1]) / 2, steps[-1:] + D])
    w_p, w_q = (xp.where(xp.abs(at) < theta, 1.0, u) for at in (inside, inside - D))
    cut = _cut(kernel, D, _threshold(epsilon, w_p, w_q))
    cut = cut if xp is np else jax.lax.stop_gradient(cut)
    # The last column is the mass within theta.
    low, high = xp.append(left, -theta), xp.append(xp.clip(cut, left, right), theta)
    p, q = kernel.mass(xp.stack([low, low - D]), xp.stack([high, high - D]))
    gain = xp.maximum(w_p * p[:-1] - xp.exp(epsilon) * w_q * q[:-1], 0.0).sum()
    return gain, p[-1] + u * (1 - p[-1])


def _threshold(epsilon: Real, w_p: Any, w_q: Any) -> Real:
    """Return the kernel's loss from which on w_p K(x) exceeds e^eps w_q K(x - D): infinite where a weight is 0."""
    xp = namespace(epsilon, w_p, w_q)
    some_p, some_q = w_p > 0, w_q > 0
    both = epsilon - xp.log(xp.where(some_p, w_p, 1.0)) + xp.log(xp.where(some_q, w_q, 1.0))
    return xp.where(some_p, xp.where(some_q, both, -xp.inf), xp.inf)


@singledispatch
def _cut(kernel: Any, D: Real, loss: Any) -> Any:
    """Return the x below which log K(x) - log K(x - D) exceeds the loss."""
    raise TypeError(f"kernel: {type(kernel).__name__} has no closed cut")


@_cut.register
def _(kernel: Gaussian, D: Real, loss: Real) -> Any:
    return D / 2 - loss * kernel.sigma**2 / D


@_cut.register
def _(kernel: Laplace, D: Real, loss: Real) -> Any:
    """The loss falls from D/b to -D/b between 0 and D, and is flat outside."""
    xp = namespace(kernel.scale, D, loss)
    most = D / kernel.scale
    cut = (D - kernel.scale * loss) / 2
    return xp.where(loss >= most, -xp.inf, xp.where(loss < -most, xp.inf, cut))


def least_weight(kernel: Distribution, theta: Any, D: Any, epsilon: Any, delta: Any, rtol: float = 0.0) -> Any:
    """Return the least u at which the noise is (eps, delta)-DP over shifts of D; NaN if there is none.

    Plain numbers are searched to ``rtol``. Of JAX numbers derivatives are implicit.
    """
    return convex_root(_weight_excess, (kernel, theta, D, epsilon, delta), LEAST_WEIGHT, 1.0, rtol=rtol)


def _weight_excess(u: Real, given: tuple[Distribution, Real, Real, Real, Real]) -> Any:
    return excess(given[0], u, *given[1:])


def shape_shift(kernel: Distribution, theta: Any, u: Any, epsilon: Any, delta: Any, most: Any) -> Any:
    """Return the largest shift, up to ``most``, over which noise of this shape is (eps, delta)-DP.

    Noise c times as wide is (eps, delta)-DP over a shift c times as large: one root gives the scale for any shift.
    """
    return root(_shift_excess, (kernel, theta, u, epsilon, delta), 0.0, most)


def _shift_excess(shift: Any, given: tuple[Distribution, Real, Real, Real, Real]) -> Any:
    kernel, theta, u, epsilon, delta = given
    return excess(kernel, u, theta, shift, epsilon, delta)
