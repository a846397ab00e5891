"""The dominating pairs of mechanisms: the distributions of a report under the worst two neighbouring inputs.

The privacy profile of a mechanism is the pointwise maximum of the hockey-stick divergences of its dominating pairs,

    delta(eps) = max over pairs of  integral max(0, p(y) - e^eps q(y)) dy,    eps >= 0.

Where a pair and its mirror (q and p exchanged) have the same profile, only one of them is listed. Proofs:
docs/proofs/worst_pairs.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import singledispatch
from typing import Any

import numpy as np

from accountants.dominating_pairs import discrete
from accountants.dominating_pairs.additive import additive_pair
from accountants.dominating_pairs.base import DominatingPair, Mixed, profile
from accountants.dominating_pairs.densities import Densities
from accountants.dominating_pairs.discrete import Atoms, pure_points
from accountants.dominating_pairs.windowed import pair_of_ends, square_wave_pair
from dpkernels import checks
from dpkernels.distributions.base import Distribution
from dpkernels.distributions.discrete import Lattice
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.exact.combined import ExactMixture, ExactMultivariate
from dpkernels.exact.noise import ExactNoise
from dpkernels.exact.rows import ExactRows
from dpkernels.exact.sampler import ExactSampler
from dpkernels.exact.windows import ExactWindow
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.base import Mechanism
from dpkernels.mechanisms.central_piecewise import CentralPiecewise
from dpkernels.mechanisms.multivariate import Multivariate
from dpkernels.mechanisms.optimal.grid import largest_ratio
from dpkernels.mechanisms.optimal.mechanism import Optimal
from dpkernels.mechanisms.two_point import Mixture, TwoPoint
from dpkernels.mechanisms.windowed.mechanism import Windowed, critical_points
from dpkernels.mechanisms.windowed.square_wave import SquareWave
from dpkernels.numerics import Real, namespace
from dpkernels.solve import maximum_on


@singledispatch
def dominating_pairs(mechanism: Any, sensitivity: Any = None) -> tuple[Any, ...]:
    """Return pairs the pointwise maximum of whose profiles is the mechanism's profile at every eps >= 0.

    Args:
        mechanism: a mechanism of dpkernels. For bounded mechanisms neighbours are any two inputs, or those within the
            mechanism's own sensitivity.
        sensitivity: D of an additive mechanism, whose neighbouring inputs differ by at most D; the default is the
            sensitivity of its claim.

    Returns:
        One pair or several.

    Raises:
        TypeError: the mechanism is unknown.
        ValueError: an additive mechanism has no sensitivity, or a bounded mechanism is given one.
    """
    raise TypeError(f"mechanism: {type(mechanism).__name__} has no known worst pair")


@dominating_pairs.register
def _(mechanism: DominatingPair, sensitivity: Any = None) -> tuple[Any, ...]:
    """Return the pair itself, for example two user-defined weight tables."""
    reject_sensitivity(sensitivity)
    return (mechanism,)


@dominating_pairs.register
def _(mechanism: Densities, sensitivity: Any = None) -> tuple[Any, ...]:
    """Return the pair and its mirror."""
    reject_sensitivity(sensitivity)
    return (mechanism, mechanism.mirror())


@dominating_pairs.register
def _(mechanism: Additive, sensitivity: Any = None) -> tuple[Any, ...]:
    return noise_pairs(mechanism.noise, sensitivity_of(mechanism, sensitivity))


def sensitivity_of(mechanism: Additive, sensitivity: Any = None) -> Real:
    """Return the given D, or else that of the mechanism's claim.

    Raises:
        ValueError: neither is given, or D is not positive and finite.
    """
    D = mechanism.sensitivity if sensitivity is None else sensitivity
    if D is None:
        raise ValueError("sensitivity: None; the mechanism claims none, so it must be given, a positive number")
    checks.sensitivity(D)
    return np.asarray(D, float) if isinstance(D, list | tuple) else D


@singledispatch
def noise_pairs(noise: Any, sensitivity: Any) -> tuple[Any, ...]:
    """Return the dominating pairs of additive noise over shifts of size up to D.

    For a density that is unimodal about 0 they are (f, f(. - D)) and (f, f(. + D)). For an even f one is enough.

    Raises:
        TypeError: the noise is of an unknown type.
    """
    raise TypeError(f"noise: {type(noise).__name__} has no known worst pair")


@noise_pairs.register
def _(noise: Distribution, sensitivity: Real) -> tuple[Any, ...]:
    shifts = (sensitivity,) if noise.is_even else (sensitivity, -sensitivity)
    return tuple(additive_pair(noise, shift) for shift in shifts)


@noise_pairs.register
def _(noise: Reweighted, sensitivity: Real) -> tuple[Any, ...]:
    """Use the kernel itself for a weight of 1: the reweighted sum in three parts would round differently."""
    outside = checks.concrete(noise.outside)
    if outside is not None and (outside == 1.0).all():
        return noise_pairs(noise.kernel, sensitivity)
    return noise_pairs.dispatch(Distribution)(noise, sensitivity)


@noise_pairs.register
def _(noise: Lattice, sensitivity: Real) -> tuple[Any, ...]:
    """Pair the probabilities with themselves n points further on, n = ceil(D/step); inputs are on the lattice."""
    D, step = (checks.concrete(value) for value in (sensitivity, noise.step))
    if D is None or step is None:
        raise TypeError("sensitivity: is traced; on a lattice it decides how many points there are")
    if D.ndim or step.ndim:
        raise ValueError(f"sensitivity: {sensitivity}; on a lattice it is one number, as the step is")
    n = math.ceil(Fraction(float(D)) / Fraction(float(step)))
    weights, xp = noise.probabilities, namespace(noise.probabilities)
    return (Atoms(xp.concatenate([weights, xp.zeros(n)]), xp.concatenate([xp.zeros(n), weights]), n),)


def reject_sensitivity(sensitivity: Any) -> None:
    """Raise ValueError for a sensitivity: a bounded mechanism has none or one of its own."""
    if sensitivity is not None:
        raise ValueError(
            f"sensitivity: {sensitivity}; neighbours of a bounded mechanism are any two inputs, or within the "
            "sensitivity it was made for, so it takes none"
        )


@dominating_pairs.register
def _(mechanism: Windowed, sensitivity: Any = None) -> tuple[Any, ...]:
    """Return the pair of the two ends of the input interval, if window and base fall from their middles.

    For other shapes (a window with several peaks, a base that rises to its edge, a user-defined class) return the
    two-point pair of the mechanism's pure level eps0. No eps0-DP mechanism exceeds its profile, so it is an upper bound
    and not the exact profile.
    """
    reject_sensitivity(sensitivity)
    if mechanism.window.falls and mechanism.base.falls:
        return (pair_of_ends(mechanism),)
    level = pure_epsilon(mechanism)
    return (pure_points(level),)


@dominating_pairs.register
def _(mechanism: SquareWave, sensitivity: Any = None) -> tuple[Any, ...]:
    """Return the pair of the two ends of the input interval; rescaled, reports are those of a type-I piecewise one."""
    reject_sensitivity(sensitivity)
    return (square_wave_pair(mechanism),)


@dominating_pairs.register
def _(mechanism: TwoPoint, sensitivity: Any = None) -> tuple[Any, ...]:
    """Return the pair of the two ends, those of randomised response: both probabilities are affine in the input."""
    reject_sensitivity(sensitivity)
    return (pure_points(mechanism.epsilon),)


@dominating_pairs.register
def _(mechanism: Mixture, sensitivity: Any = None) -> tuple[Any, ...]:
    """Return the pairs of both parts at the two ends, as if the choice of the part were published.

    The profile is exact if a report shows which part was chosen, as with a density and two points. For other parts it
    is an upper bound.
    """
    reject_sensitivity(sensitivity)
    return _mixed(mechanism.weight, mechanism)


@dominating_pairs.register
def _(mechanism: Multivariate, sensitivity: Any = None) -> tuple[Any, ...]:
    """Return the pairs of one reported coordinate, which is chosen independently of the data; any of them may change.

    Raises:
        ValueError: several coordinates are reported, whose reports compose.
    """
    reject_sensitivity(sensitivity)
    if mechanism.sampled > 1:
        raise ValueError(
            f"mechanism: reports {mechanism.sampled} coordinates, which compose; for one the profile is known, "
            "and accountants.epsilon(mechanism) is the pure level of all"
        )
    return dominating_pairs(mechanism.coordinate)


@dominating_pairs.register
def _(form: ExactMixture, sensitivity: Any = None) -> tuple[Any, ...]:
    """Return the pairs of both parts at the two ends, as if the choice of the part were published."""
    reject_sensitivity(sensitivity)
    return _mixed(float(form.certificate.weight), form)


def _mixed(weight: Real, mixture: Any) -> tuple[Mixed]:
    (first,), (second,) = dominating_pairs(mixture.first), dominating_pairs(mixture.second)
    return (Mixed(weight, first, second),)


dominating_pairs.register(ExactNoise)(discrete.exact_noise_pairs)

_ROWS: dict[type, Callable[[Any], Any]] = {
    Optimal: discrete.optimal_pair,
    CentralPiecewise: discrete.central_pair,
    ExactRows: discrete.rows_pair,
    ExactWindow: discrete.window_pair,
}


@dominating_pairs.register(Optimal)
@dominating_pairs.register(CentralPiecewise)
@dominating_pairs.register(ExactRows)
@dominating_pairs.register(ExactWindow)
def _(mechanism: Mechanism, sensitivity: Any = None) -> tuple[Any, ...]:
    """Return one pair whose profile is that of the table, or barely above it; neighbours are those of the mechanism."""
    reject_sensitivity(sensitivity)
    return (_ROWS[type(mechanism)](mechanism),)


@singledispatch
def pure_epsilon(mechanism: Any) -> float:
    """Return the smallest eps for which the mechanism is eps-DP.

    Neighbours are any two inputs of the interval, or those within the sensitivity of a mechanism that has one.

    The value covers one report of a float mechanism in exact arithmetic, not floating-point sampling:

    - Windowed mechanisms: the supremum over reports of ln(sup / inf over inputs of the density), on a grid of reports
      with every kink, refined at the maximum.
    - Mixtures: an upper bound, as if the choice of the part were published.
    - Exact samplers: computed from the integers; inf for tables of noise, which have finite support.

    Raises:
        TypeError: the mechanism is unknown.
    """
    raise TypeError(f"mechanism: {type(mechanism).__name__} has no known privacy level")


@pure_epsilon.register
def _(mechanism: Windowed) -> float:

    def loss(v: np.ndarray) -> np.ndarray:
        high, low = mechanism.envelope(v)
        return np.log(high / low)

    return maximum_on(loss, critical_points(mechanism.window, mechanism.base, float(mechanism.width)))


@pure_epsilon.register(SquareWave)
@pure_epsilon.register(TwoPoint)
@pure_epsilon.register(CentralPiecewise)
def _(mechanism: Any) -> float:
    """Return the mechanism's eps: e^eps is the ratio of two densities, of two probabilities or of two steps."""
    return float(mechanism.epsilon)


@pure_epsilon.register
def _(mechanism: Mixture) -> float:
    return max(pure_epsilon(mechanism.first), pure_epsilon(mechanism.second))


@pure_epsilon.register
def _(mechanism: Multivariate) -> float:
    return mechanism.sampled * pure_epsilon(mechanism.coordinate)


@pure_epsilon.register(ExactSampler)
@pure_epsilon.register(ExactMultivariate)
def _(mechanism: Any) -> float:
    return float(mechanism.certificate.realised_epsilon)


@pure_epsilon.register
def _(mechanism: ExactNoise) -> float:
    """Return inf: a report beyond the end of the shifted table is impossible for the other input."""
    return math.inf


@pure_epsilon.register
def _(mechanism: Optimal) -> float:
    """Return the largest log ratio of the probabilities of neighbouring inputs."""
    return math.log(largest_ratio(np.asarray(mechanism.probabilities, float), mechanism.cells))


def additive_profile(noise: Distribution, sensitivity: Real, epsilon: Real) -> Real:
    """Return delta(eps) over all shifts of size up to D, for a density unimodal about 0; see ``noise_pairs``."""
    return profile(noise_pairs(noise, sensitivity), epsilon)
