"""Calibrate one release of a bounded mechanism, or of noise on a grid, for a target (epsilon, delta)."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import numpy as np

from accountants.calibrate.composed import split_arguments
from accountants.profile import delta as realised
from accountants.scale import check_target, smallest_scale
from dpkernels import checks
from dpkernels.distributions.discrete import DiscreteGaussian, DiscreteLaplace, Lattice
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.base import Mechanism
from dpkernels.numerics import Real, namespace
from dpkernels.solve import MARGINS, first_feasible, promote, root

__all__ = ["bounded", "discrete_gaussian", "discrete_laplace"]


def bounded(constructor: Callable[..., Any], *, epsilon: Real, delta: Real, **arguments: Any) -> Mechanism:
    """Return a bounded mechanism with the largest budget eps0 >= eps of its own whose delta(eps) is at most delta.

    A mechanism that is exactly eps0-DP is (eps, delta)-DP for smaller eps, so that eps0, its ``epsilon``, may exceed
    eps.

    Args:
        constructor: such as ``dpkernels.piecewise``; called with ``epsilon=eps0`` and the arguments.
        epsilon: eps, in [0.01, 20].
        delta: in (0, 1).
        **arguments: the constructor's other arguments, such as lower and upper.

    Raises:
        ValueError: epsilon or delta is out of range.
    """
    checks.epsilon(epsilon)
    check_target(epsilon, delta)
    member, numbers = split_arguments(constructor, arguments)
    numbers, epsilon, delta = promote(numbers, epsilon, delta)

    def excess(budget: Any, given: tuple[Any, Real, Real]) -> Any:
        numbers, epsilon, delta = given
        return realised(member(budget, numbers), epsilon) - delta

    given, largest = (numbers, epsilon, delta), checks.EPSILON_RANGE[1]
    if namespace(epsilon) is np:
        budget = largest if excess(largest, given) <= 0 else root(excess, given, epsilon, largest, rtol=1e-12)
        return member(budget, numbers)
    most = jnp.full_like(epsilon, largest)
    budget = root(excess, given, epsilon, most, rtol=1e-12)
    return member(jnp.where(excess(most, given) <= 0, most, budget), numbers)


def discrete_gaussian(*, epsilon: float, delta: float, sensitivity: float = 1.0, step: float = 1.0) -> Additive:
    """Return Gaussian noise on multiples of ``step`` (Canonne, Kamath & Steinke 2020) with the smallest sigma.

    Arguments are plain numbers, because they decide the number of points of the noise, which JAX must know. Neighbours
    are at most n = ceil(D/step) grid points apart. It is not proven that delta falls with sigma, in particular for
    n > 1: sigma meets the target, and a slightly smaller one does not.

    Raises:
        ValueError: epsilon is not in [0.01, 20], delta is not in (0, 1), sensitivity is not in [1e-100, 1e100], or step
            is not positive, or too small for the noise.
    """
    return _narrowest(DiscreteGaussian, Gaussian(1.0), epsilon, delta, sensitivity, step)


def discrete_laplace(*, epsilon: float, delta: float, sensitivity: float = 1.0, step: float = 1.0) -> Additive:
    """Return Laplace noise on multiples of ``step`` with the smallest scale; see ``discrete_gaussian``."""
    return _narrowest(DiscreteLaplace, Laplace(1.0), epsilon, delta, sensitivity, step)


def _narrowest(noise: Callable[[float, float], Lattice], unit: Any, *target: Any) -> Additive:
    epsilon, delta, sensitivity, step = target
    checks.epsilon(epsilon)
    check_target(epsilon, delta, sensitivity)
    checks.positive("step", step)
    if namespace(*target) is not np:
        raise TypeError(
            "epsilon, delta, sensitivity, step: JAX numbers; noise on a grid is calibrated by plain numbers"
        )
    apart = math.ceil(Fraction(sensitivity) / Fraction(step))

    def excess(scale: Any, _: Any) -> Any:
        p = noise(scale, step).probabilities
        other = np.concatenate([np.zeros(apart), p])[: len(p)]
        return float(np.maximum(p - math.exp(epsilon) * other, 0.0).sum()) - delta

    high = smallest_scale(unit, epsilon, delta, apart * step)
    low = high / 2
    while excess(high, ()) > 0:
        high, low = 1.25 * high, high
    while excess(low, ()) <= 0:
        high, low = low, low / 2
    found = root(excess, (), high, low, rtol=1e-13)
    # Another order of summation may change the last bits.
    wider = (Additive(noise(found * (1 + margin), step), sensitivity, epsilon, delta) for margin in MARGINS)
    return first_feasible(wider, lambda made: realised(made, epsilon) <= delta)
