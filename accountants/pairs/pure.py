"""The realised pure-DP level of a mechanism."""

from __future__ import annotations

import math
from functools import singledispatch
from typing import Any

import numpy as np

from dpkernels.exact.combined import ExactMultivariate
from dpkernels.exact.noise.sampler import ExactNoise
from dpkernels.exact.sampler import ExactSampler
from dpkernels.mechanisms.central_piecewise import CentralPiecewise
from dpkernels.mechanisms.multivariate import Multivariate
from dpkernels.mechanisms.optimal.grid import largest_ratio
from dpkernels.mechanisms.optimal.mechanism import Optimal
from dpkernels.mechanisms.two_point import Mixture, TwoPoint
from dpkernels.mechanisms.windowed.mechanism import Windowed, critical_points
from dpkernels.mechanisms.windowed.square_wave import SquareWave
from dpkernels.solve import maximum_on


@singledispatch
def epsilon(mechanism: Any) -> float:
    """The smallest eps for which the mechanism is eps-DP.

    Neighbouring: any two inputs of its interval, or those within the sensitivity of one that has it.

    Windowed mechanisms: the supremum over reports of ln(sup / inf over inputs of the density), on a grid of reports
    with every kink, refined at the best. Mixtures: an upper bound, that of the choice revealed. Exact forms: from the
    integers; inf for tables of noise, which end. Covers one report of a float mechanism in exact arithmetic;
    floating-point sampling is not covered.

    Raises:
        TypeError: an unknown mechanism.
    """
    raise TypeError(f"mechanism: {type(mechanism).__name__} has no known privacy level")


@epsilon.register
def _(mechanism: Windowed) -> float:

    def loss(v: np.ndarray) -> np.ndarray:
        high, low = mechanism.envelope(v)
        return np.log(high / low)

    return maximum_on(loss, critical_points(mechanism.window, mechanism.base, float(mechanism.width)))


@epsilon.register
def _(mechanism: SquareWave) -> float:
    """Its eps: e^eps is the ratio of its two densities."""
    return float(mechanism.epsilon)


@epsilon.register
def _(mechanism: TwoPoint) -> float:
    """Its eps: the ends have the odds e^eps and e^-eps."""
    return float(mechanism.epsilon)


@epsilon.register
def _(mechanism: Mixture) -> float:
    return max(epsilon(mechanism.first), epsilon(mechanism.second))


@epsilon.register
def _(mechanism: Multivariate) -> float:
    return mechanism.sampled * epsilon(mechanism.coordinate)


@epsilon.register(ExactSampler)
@epsilon.register(ExactMultivariate)
def _(mechanism: Any) -> float:
    return float(mechanism.certificate.realised_epsilon)


@epsilon.register
def _(mechanism: ExactNoise) -> float:
    """A report beyond the shifted table's end is impossible for the other input; the claim is of (eps, delta)."""
    return math.inf


@epsilon.register
def _(mechanism: Optimal) -> float:
    """The largest log ratio of neighbouring rows."""
    return math.log(largest_ratio(np.asarray(mechanism.probabilities, float), mechanism.cells))


@epsilon.register
def _(mechanism: CentralPiecewise) -> float:
    """Its eps: neighbouring densities differ by one step, a factor e^eps, or not at all."""
    return float(mechanism.epsilon)
