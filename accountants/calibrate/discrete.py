"""Noise on a lattice for a budget: the profile is a finite sum."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from accountants.profile import delta as realised
from accountants.scale import check_target, smallest_scale
from dpkernels import checks
from dpkernels.distributions.discrete import DiscreteGaussian, DiscreteLaplace, Lattice
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.mechanisms.additive import Additive
from dpkernels.solve import MARGINS, first_feasible, root


def discrete_gaussian(*, epsilon: float, delta: float, sensitivity: float = 1.0, step: float = 1.0) -> Additive:
    """Gaussian noise on multiples of ``step`` (Canonne, Kamath & Steinke 2020), as narrow as (eps, delta) allows.

    Args:
        epsilon: eps, in [0.01, 20].
        delta: in (0, 1).
        sensitivity: D; neighbours are n = ceil(D/step) points of the lattice apart at most.
        step: distance of lattice points, in data units.

    Returns:
        The mechanism, with its claim. That delta falls with sigma is not proved, of n > 1 least of all: sigma meets
        the target, and a little less does not.

    Raises:
        ValueError: epsilon not in [0.01, 20]; delta not in (0, 1); sensitivity not in [1e-100, 1e100]; step not
            positive, or too fine for the noise.
    """
    return _narrowest(lambda sigma: DiscreteGaussian(sigma, step), Gaussian(1.0), epsilon, delta, sensitivity, step)


def discrete_laplace(*, epsilon: float, delta: float, sensitivity: float = 1.0, step: float = 1.0) -> Additive:
    """Laplace noise on multiples of ``step`` of the least scale; arguments as of ``discrete_gaussian``.

    Raises:
        ValueError: epsilon not in [0.01, 20]; delta not in (0, 1); sensitivity not in [1e-100, 1e100]; step not
            positive, or too fine for the noise.
    """
    return _narrowest(lambda scale: DiscreteLaplace(scale, step), Laplace(1.0), epsilon, delta, sensitivity, step)


def _narrowest(law: Callable[[float], Lattice], unit: Any, *target: Any) -> Additive:
    epsilon, delta, sensitivity, step = target
    checks.epsilon(epsilon)
    check_target(epsilon, delta, sensitivity)
    checks.positive("step", step)
    apart = math.ceil(Fraction(sensitivity) / Fraction(step))

    def excess(scale: Any, _: Any) -> Any:
        return _delta(law(scale).probabilities, apart, epsilon) - delta

    about = smallest_scale(unit, epsilon, delta, apart * step)
    high, low = about, about / 2
    while excess(high, ()) > 0:
        high, low = 1.25 * high, high
    while excess(low, ()) <= 0:
        high, low = low, low / 2
    found = root(excess, (), high, low, rtol=1e-13)
    # Another order of summation may move the last bits.
    wider = (Additive(law(found * (1 + margin)), sensitivity, epsilon, delta) for margin in MARGINS)
    return first_feasible(wider, lambda made: realised(made, epsilon) <= delta)


def _delta(probabilities: np.ndarray, apart: int, epsilon: float) -> float:
    """Of the law and the same ``apart`` points further on."""
    other = np.concatenate([np.zeros(apart), probabilities])[: len(probabilities)]
    return float(np.maximum(probabilities - math.exp(epsilon) * other, 0.0).sum())
