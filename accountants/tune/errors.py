"""Errors |report - x| of mechanisms and of reports on samples, for objectives; JAX, at one input x."""

from __future__ import annotations

from functools import partial, singledispatch
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accountants.tune.family import Member
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.base import Bounded
from dpkernels.mechanisms.windowed.square_wave import SquareWave
from dpkernels.numerics import Real, floating, namespace
from dpkernels.solve import bisect

# Where on the interval the worst input is looked for, both ends and the middle among them: every error costs so many
# evaluations.
_INPUTS = np.linspace(0.0, 1.0, 33)
_BISECTIONS = 60  # Enough for float64: the interval times 2^-60.


@singledispatch
def inputs(mechanism: Any) -> Any:
    """Inputs that the worst is taken of, a 1-D array.

    Raises:
        TypeError: a mechanism of an unknown type.
    """
    raise TypeError(f"mechanism: the errors of {type(mechanism).__name__} are not known")


@inputs.register
def _(mechanism: Bounded) -> Any:
    low, high = mechanism.input_interval
    return low + (high - low) * jnp.asarray(_INPUTS)


@inputs.register
def _(mechanism: Additive) -> Any:
    """One: the error is the noise."""
    return jnp.zeros(1)


@singledispatch
def within(mechanism: Any, x: Any, theta: Any) -> Any:
    """P(|report - x| <= theta); a report at the lower end exactly counts too. NaN where x is not a valid input."""
    at, p = mechanism.atoms(x)
    lowest = jnp.where(at == x - theta, p, 0.0).sum(0)
    return _of_input(mechanism, x, mechanism.cdf(x + theta, x) - mechanism.cdf(x - theta, x) + lowest)


@within.register
def _(mechanism: Additive, x: Real, theta: Real) -> Any:
    return mass_within(mechanism.noise, theta)


@singledispatch
def mass_within(noise: Any, theta: Real) -> Real:
    """P(|Z| <= theta)."""
    return noise.mass(-theta, theta)


@mass_within.register
def _(noise: Reweighted, theta: Real) -> Any:
    """Of three masses of the kernel at once: less to compile than the law's own."""
    xp = namespace(theta, noise.low)
    low, high = xp.maximum(-theta, noise.low), xp.minimum(theta, noise.high)
    inside, all_of_it, inner = noise.kernel.mass(
        xp.stack([noise.low, -theta, low]), xp.stack([noise.high, theta, high])
    )
    w = noise.outside
    return (inner + w * (all_of_it - inner)) / (inside + w * (1 - inside))


@singledispatch
def variance(mechanism: Any, x: Any) -> Any:
    """Var(report | x), NaN where x is not a valid input."""
    return _of_input(mechanism, x, mechanism.variance(x))


def _of_input(mechanism: Member, x: Real, error: Real) -> Real:
    """The error where x is a valid input, else NaN: beyond, the formulas are those of no report."""
    if not isinstance(mechanism, Bounded):
        return error
    low, high = mechanism.input_interval
    rounding = 1e-9 * (high - low)
    return jnp.where((x >= low - rounding) & (x <= high + rounding), error, jnp.nan)


@singledispatch
def worst_variance(mechanism: Any) -> Real:
    """The largest variance over inputs."""
    return mechanism.worst_variance


@variance.register
@worst_variance.register
def _(mechanism: SquareWave, *x: Any) -> Any:
    raise TypeError("mechanism: square wave is biased, so that its variance is not its error; take tune.distribution")


@singledispatch
def absolute_error(mechanism: Any, x: Real) -> Real:
    """E|report - x|, NaN where x is not a valid input."""
    return _of_input(mechanism, x, mechanism.absolute_error(x))


@singledispatch
def furthest(mechanism: Any, x: Real) -> Real:
    """An error that is never exceeded, or with a probability below 1e-9 only."""
    low, high = mechanism.output_interval
    return jnp.maximum(high - x, x - low)


@furthest.register
def _(mechanism: Additive, x: Real) -> Any:
    noise: Any = mechanism.noise
    tiny = jnp.full_like(x, 1e-12)
    return jnp.maximum(noise.isf(tiny), -noise.icdf(tiny))


def quantile(mechanism: Member, x: Real, beta: Real) -> Real:
    """The least t with P(|report - x| <= t) >= 1 - beta, by bisection; its derivative is implicit."""
    still, place, share = jax.lax.stop_gradient((mechanism, x, beta))
    ends = jnp.zeros_like(floating(place)), furthest(still, place)
    t = bisect(lambda t: within(still, place, t) < 1 - share, *ends, _BISECTIONS)[1]
    _, slope = jax.jvp(partial(within, still, place), (t,), (jnp.ones_like(t),))
    rise = within(mechanism, x, t) - (1 - beta)
    # One Newton step of value 0: it carries the derivative. On an atom, or at a kink, the quantile stays.
    rise = rise - jax.lax.stop_gradient(rise)
    return t - jnp.where(slope > 0, rise / jnp.where(slope > 0, slope, 1.0), 0.0)
