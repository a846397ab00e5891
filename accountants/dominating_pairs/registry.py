"""The dominating pair of a mechanism: the laws of its report under the worst two neighbouring inputs.

The privacy profile of a mechanism is the pointwise maximum of the hockey sticks of its worst pairs,

    delta(eps) = max over pairs of  integral max(0, p(y) - e^eps q(y)) dy,    eps >= 0

and a pair and its mirror (q and p swapped) are both meant where they have the same hockey stick. Proofs:
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
from dpkernels.exact.noise.sampler import ExactNoise
from dpkernels.exact.rows.sampler import ExactRows
from dpkernels.exact.sampler import ExactSampler
from dpkernels.exact.windows.sampler import ExactWindow
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
    """Pairs whose hockey sticks' pointwise maximum is the mechanism's profile at every eps >= 0.

    Args:
        mechanism: a mechanism of dpkernels. Bounded ones: any two inputs are neighbours, or those within its own
            sensitivity.
        sensitivity: D of an additive mechanism, whose neighbouring inputs differ by at most D; by default its claim's.

    Returns:
        One pair or several.

    Raises:
        TypeError: an unknown mechanism.
        ValueError: no sensitivity for an additive mechanism, or one for a bounded mechanism.
    """
    raise TypeError(f"mechanism: {type(mechanism).__name__} has no known worst pair")


@dominating_pairs.register
def _(mechanism: DominatingPair, sensitivity: Any = None) -> tuple[Any, ...]:
    """A pair by itself, such as two weight tables of the user's own."""
    reject_sensitivity(sensitivity)
    return (mechanism,)


@dominating_pairs.register
def _(mechanism: Densities, sensitivity: Any = None) -> tuple[Any, ...]:
    """The pair and its mirror."""
    reject_sensitivity(sensitivity)
    return (mechanism, mechanism.mirror())


@dominating_pairs.register
def _(mechanism: Additive, sensitivity: Any = None) -> tuple[Any, ...]:
    return noise_pairs(mechanism.noise, sensitivity_of(mechanism, sensitivity))


def sensitivity_of(mechanism: Additive, sensitivity: Any = None) -> Real:
    """The given D, else that of the mechanism's claim.

    Raises:
        ValueError: neither, or not positive and finite.
    """
    D = mechanism.sensitivity if sensitivity is None else sensitivity
    if D is None:
        raise ValueError("sensitivity: None; the mechanism claims none, so it must be given, a positive number")
    checks.sensitivity(D)
    return np.asarray(D, float) if isinstance(D, list | tuple) else D


@singledispatch
def noise_pairs(noise: Any, sensitivity: Any) -> tuple[Any, ...]:
    """The worst pairs of additive noise over shifts of size up to D.

    For a density unimodal about 0 they are (f, f(. - D)) and (f, f(. + D)); for an even f one of the two is enough.

    Raises:
        TypeError: noise of an unknown type.
    """
    raise TypeError(f"noise: {type(noise).__name__} has no known worst pair")


@noise_pairs.register
def _(noise: Distribution, sensitivity: Real) -> tuple[Any, ...]:
    shifts = (sensitivity,) if noise.is_even else (sensitivity, -sensitivity)
    return tuple(additive_pair(noise, shift) for shift in shifts)


@noise_pairs.register
def _(noise: Reweighted, sensitivity: Real) -> tuple[Any, ...]:
    """What is not reweighted is its kernel, to the last digit: a sum in three parts rounds to another delta."""
    outside = checks.concrete(noise.outside)
    if outside is not None and (outside == 1.0).all():
        return noise_pairs(noise.kernel, sensitivity)
    return noise_pairs.dispatch(Distribution)(noise, sensitivity)


@noise_pairs.register
def _(noise: Lattice, sensitivity: Real) -> tuple[Any, ...]:
    """Probabilities and the same n points further on, n = ceil(D/step); inputs are on the lattice."""
    D, step = (checks.concrete(value) for value in (sensitivity, noise.step))
    if D is None or step is None:
        raise TypeError("sensitivity: is traced; on a lattice it decides how many points there are")
    if D.ndim or step.ndim:
        raise ValueError(f"sensitivity: {sensitivity}; on a lattice it is one number, as the step is")
    n = math.ceil(Fraction(float(D)) / Fraction(float(step)))
    weights, xp = noise.probabilities, namespace(noise.probabilities)
    return (Atoms(xp.concatenate([weights, xp.zeros(n)]), xp.concatenate([xp.zeros(n), weights]), n),)


def reject_sensitivity(sensitivity: Any) -> None:
    """Refuse a sensitivity for a bounded mechanism, which has none or one of its own.

    Raises:
        ValueError: one was given.
    """
    if sensitivity is not None:
        raise ValueError(
            f"sensitivity: {sensitivity}; neighbours of a bounded mechanism are any two inputs, or within the "
            "sensitivity it was made for, so it takes none"
        )


@dominating_pairs.register
def _(mechanism: Windowed, sensitivity: Any = None) -> tuple[Any, ...]:
    """The two ends of the input interval, for a window and a base that fall from their middles.

    Other shapes (a user's humps, a base that rises to its edge, a class of a user's own): the pair of two points of the
    mechanism's pure level eps0, which no eps0-DP mechanism exceeds: an upper bound, not the exact profile.
    """
    reject_sensitivity(sensitivity)
    if mechanism.window.falls and mechanism.base.falls:
        return (pair_of_ends(mechanism),)
    level = pure_epsilon(mechanism)
    return (pure_points(level),)


@dominating_pairs.register
def _(mechanism: SquareWave, sensitivity: Any = None) -> tuple[Any, ...]:
    """The two ends of the input interval; stretched, these are reports of a type-I piecewise mechanism."""
    reject_sensitivity(sensitivity)
    return (square_wave_pair(mechanism),)


@dominating_pairs.register
def _(mechanism: TwoPoint, sensitivity: Any = None) -> tuple[Any, ...]:
    """The two ends, since either probability is affine in the input; they are those of randomised response."""
    reject_sensitivity(sensitivity)
    return (pure_points(mechanism.epsilon),)


@dominating_pairs.register
def _(mechanism: Mixture, sensitivity: Any = None) -> tuple[Any, ...]:
    """The two ends are worst for either part, with the choice of the part revealed.

    Exact where a report tells the part, as a density and two points do; for other parts an upper bound.
    """
    reject_sensitivity(sensitivity)
    return _mixed(mechanism.weight, mechanism)


@dominating_pairs.register
def _(mechanism: Multivariate, sensitivity: Any = None) -> tuple[Any, ...]:
    """The pairs of one reported coordinate: which one is drawn apart from the data, and any of them may change.

    Raises:
        ValueError: several reported coordinates, whose reports compose.
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
    """The choice revealed; both parts at the two ends."""
    reject_sensitivity(sensitivity)
    return _mixed(float(form.certificate.weight), form)


def _mixed(weight: Real, mixture: Any) -> tuple[Mixed]:
    (first,), (second,) = dominating_pairs(mixture.first), dominating_pairs(mixture.second)
    return (Mixed(weight, first, second),)


@dominating_pairs.register
def _(form: ExactNoise, sensitivity: Any = None) -> tuple[Any, ...]:
    return discrete.exact_noise_pairs(form, sensitivity)


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
    """One pair of which the profile is the table's, or barely above it; neighbours are those of the mechanism."""
    reject_sensitivity(sensitivity)
    return (_ROWS[type(mechanism)](mechanism),)


@singledispatch
def pure_epsilon(mechanism: Any) -> float:
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


@pure_epsilon.register
def _(mechanism: Windowed) -> float:

    def loss(v: np.ndarray) -> np.ndarray:
        high, low = mechanism.envelope(v)
        return np.log(high / low)

    return maximum_on(loss, critical_points(mechanism.window, mechanism.base, float(mechanism.width)))


@pure_epsilon.register
def _(mechanism: SquareWave) -> float:
    """Its eps: e^eps is the ratio of its two densities."""
    return float(mechanism.epsilon)


@pure_epsilon.register
def _(mechanism: TwoPoint) -> float:
    """Its eps: the ends have the odds e^eps and e^-eps."""
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
    """A report beyond the shifted table's end is impossible for the other input; the claim is of (eps, delta)."""
    return math.inf


@pure_epsilon.register
def _(mechanism: Optimal) -> float:
    """The largest log ratio of neighbouring discrete."""
    return math.log(largest_ratio(np.asarray(mechanism.probabilities, float), mechanism.cells))


@pure_epsilon.register
def _(mechanism: CentralPiecewise) -> float:
    """Its eps: neighbouring densities differ by one step, a factor e^eps, or not at all."""
    return float(mechanism.epsilon)


def additive_profile(noise: Distribution, sensitivity: Real, epsilon: Real) -> Real:
    """delta(eps) over all shifts of size up to D, for a density unimodal about 0; see ``noise_pairs``."""
    return profile(noise_pairs(noise, sensitivity), epsilon)
