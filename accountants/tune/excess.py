"""How far a recycled law is above its delta, and the probability of a redraw that meets it; traceable by JAX.

With u = 1 - q the weight of the outside and Z(u) = p_in + u p_out (see ``calibrate.recycling_rate``),

    h(u) = Z(u) (delta(eps) - delta) = integral max(0, w_u(x) K(x) - e^eps w_u(x - D) K(x - D)) dx - delta Z(u)

is convex in u, and a member should have the least u with h(u) <= 0. Where h(0) > 0 Newton's method from u = 0 comes to
it monotonically, or to an h' >= 0 where there is none.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import jax
import jax.numpy as jnp

from accountants.pairs.hockey_stick import curve
from accountants.pairs.shifted import shifted
from dpkernels.distributions.base import Distribution, Symmetric
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.numerics import Real, RealArray

LEAST_WEIGHT = 1e-15  # Of the outside: q stays below 1.
_NEWTON_STEPS = 60  # At most: steps from u = 0 are monotone, and quadratic near the root.
_SETTLED = 1e-8  # Newton's next step is its square.


@singledispatch
def recycled_excess(kernel: Distribution, u: Real, theta: Real, D: Real, eps: Real, delta: Any) -> Any:
    """h(u), of any even kernel by its exact profile."""
    law = Reweighted(kernel, -theta, theta, u)
    return law.total * (curve((shifted(law, D),))(eps) - delta)


@recycled_excess.register(Gaussian)
@recycled_excess.register(Laplace)
def _(kernel: Symmetric, u: Real, theta: Real, D: RealArray, eps: Real, delta: Real) -> Any:
    """By pieces between the steps of w(x) and w(x - D), in each of which the loss exceeds eps up to a cut.

    The integrand is 0 at a cut, so that its derivatives do not count; an eighth of the general profile to compile.
    """
    near, far = jnp.minimum(theta, D - theta), jnp.maximum(theta, D - theta)
    steps = jnp.stack([-theta, near, far, D + theta])
    left, right = jnp.append(-jnp.inf, steps), jnp.append(steps, jnp.inf)
    inside = jnp.concatenate([steps[:1] - D, (steps[1:] + steps[:-1]) / 2, steps[-1:] + D])
    w_p, w_q = (jnp.where(jnp.abs(at) < theta, 1.0, u) for at in (inside, inside - D))
    cut = jax.lax.stop_gradient(_cut(kernel, D, eps - jnp.log(w_p) + jnp.log(w_q)))
    # The last column is the mass within theta.
    low, high = jnp.append(left, -theta), jnp.append(jnp.clip(cut, left, right), theta)
    p, q = kernel.mass(jnp.stack([low, low - D]), jnp.stack([high, high - D]))
    gain = jnp.maximum(w_p * p[:-1] - jnp.exp(eps) * w_q * q[:-1], 0.0).sum()
    return gain - delta * (p[-1] + u * (1 - p[-1]))


@singledispatch
def _cut(kernel: Any, D: Real, loss: Any) -> Any:
    """The x below which log K(x) - log K(x - D) exceeds the loss."""
    raise TypeError(f"kernel: {type(kernel).__name__} has no closed cut")


@_cut.register
def _(kernel: Gaussian, D: Real, loss: Real) -> Any:
    return D / 2 - loss * kernel.sigma**2 / D


@_cut.register
def _(kernel: Laplace, D: Real, loss: Real) -> Any:
    """The loss falls from D/b to -D/b between 0 and D, and is flat outside."""
    most = D / kernel.scale
    cut = (D - kernel.scale * loss) / 2
    return jnp.where(loss >= most, -jnp.inf, jnp.where(loss < -most, jnp.inf, cut))


def least_weight(kernel: Distribution, theta: Any, D: Any, eps: Any, delta: Any) -> RealArray:
    """The least u at which the recycled kernel is (eps, delta)-DP, NaN where none is; derivatives are implicit."""
    given = kernel, theta, D, eps, delta
    still = jax.lax.stop_gradient(given)

    def excess(u: Real) -> Any:
        return recycled_excess(still[0], u, *still[1:])

    def unfinished(state: Any) -> Any:
        u, before, _, turns = state
        return (turns < _NEWTON_STEPS) & (jnp.abs(u - before) > _SETTLED * u) & (u <= 1.0)

    def newton(state: Any) -> tuple[Any, Any, Any, Any]:
        u, _, _, turns = state
        value, slope = jax.jvp(excess, (u,), (jnp.ones_like(u),))
        step = jnp.where(slope < 0, -value / jnp.where(slope < 0, slope, -1.0), jnp.inf)
        return jnp.maximum(u + jnp.where(value > 0, step, jnp.minimum(step, 0.0)), LEAST_WEIGHT), u, slope, turns + 1

    zero = jnp.zeros_like(still[1])
    u, _, slope, _ = jax.lax.while_loop(unfinished, newton, (zero + LEAST_WEIGHT, zero, zero, 0))
    feasible = (u <= 1.0) & ((slope < 0) | (u <= LEAST_WEIGHT))
    moved = recycled_excess(kernel, u, *given[1:])
    moved = moved - jax.lax.stop_gradient(moved)
    inner = feasible & (u > LEAST_WEIGHT)
    return jnp.where(feasible, u - jnp.where(inner, moved / jnp.where(inner, slope, -1.0), 0.0), jnp.nan)
