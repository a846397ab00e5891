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

from accountants.pairs import pure, rows
from accountants.pairs.base import Mixed, Pair
from accountants.pairs.densities import Densities
from accountants.pairs.placed import ends_of, falls, square_wave_ends
from accountants.pairs.shifted import is_even, shifted
from accountants.pairs.tables import Atoms, pure_points
from dpkernels import checks
from dpkernels.distributions.base import Distribution
from dpkernels.distributions.discrete import Lattice
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.exact.combined import ExactMixture
from dpkernels.exact.noise.sampler import ExactNoise
from dpkernels.exact.rows.sampler import ExactRows
from dpkernels.exact.windows.sampler import ExactWindow
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.base import Mechanism
from dpkernels.mechanisms.central_piecewise import CentralPiecewise
from dpkernels.mechanisms.multivariate import Multivariate
from dpkernels.mechanisms.optimal.mechanism import Optimal
from dpkernels.mechanisms.two_point import Mixture, TwoPoint
from dpkernels.mechanisms.windowed.mechanism import Windowed
from dpkernels.mechanisms.windowed.square_wave import SquareWave
from dpkernels.numerics import Real, namespace


@singledispatch
def worst_pairs(mechanism: Any, sensitivity: Any = None) -> tuple[Any, ...]:
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


@worst_pairs.register
def _(mechanism: Pair, sensitivity: Any = None) -> tuple[Any, ...]:
    """A pair by itself, such as two weight tables of the user's own."""
    take_none(sensitivity)
    return (mechanism,)


@worst_pairs.register
def _(mechanism: Densities, sensitivity: Any = None) -> tuple[Any, ...]:
    """The pair and its mirror."""
    take_none(sensitivity)
    return (mechanism, mechanism.mirror())


@worst_pairs.register
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
    shifts = (sensitivity,) if is_even(noise) else (sensitivity, -sensitivity)
    return tuple(shifted(noise, shift) for shift in shifts)


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


def take_none(sensitivity: Any) -> None:
    """Refuse a sensitivity for a bounded mechanism, which has none or one of its own.

    Raises:
        ValueError: one was given.
    """
    if sensitivity is not None:
        raise ValueError(
            f"sensitivity: {sensitivity}; neighbours of a bounded mechanism are any two inputs, or within the "
            "sensitivity it was made for, so it takes none"
        )


@worst_pairs.register
def _(mechanism: Windowed, sensitivity: Any = None) -> tuple[Any, ...]:
    """The two ends of the input interval, for a window and a base that fall from their middles.

    Other shapes (a user's humps, a base that rises to its edge, a class of a user's own): the pair of two points of the
    mechanism's pure level eps0, which no eps0-DP mechanism exceeds: an upper bound, not the exact profile.
    """
    take_none(sensitivity)
    if falls(mechanism.window) and falls(mechanism.base):
        return (ends_of(mechanism),)
    level = pure.epsilon(mechanism)
    return (pure_points(level),)


@worst_pairs.register
def _(mechanism: SquareWave, sensitivity: Any = None) -> tuple[Any, ...]:
    """The two ends of the input interval; stretched, these are reports of a type-I piecewise mechanism."""
    take_none(sensitivity)
    return (square_wave_ends(mechanism),)


@worst_pairs.register
def _(mechanism: TwoPoint, sensitivity: Any = None) -> tuple[Any, ...]:
    """The two ends, since either probability is affine in the input; they are those of randomised response."""
    take_none(sensitivity)
    return (pure_points(mechanism.epsilon),)


@worst_pairs.register
def _(mechanism: Mixture, sensitivity: Any = None) -> tuple[Any, ...]:
    """The two ends are worst for either part, with the choice of the part revealed.

    Exact where a report tells the part, as a density and two points do; for other parts an upper bound.
    """
    take_none(sensitivity)
    return _mixed(mechanism.weight, mechanism)


@worst_pairs.register
def _(mechanism: Multivariate, sensitivity: Any = None) -> tuple[Any, ...]:
    """The pairs of one reported coordinate: which one is drawn apart from the data, and any of them may change.

    Raises:
        ValueError: several reported coordinates, whose reports compose.
    """
    take_none(sensitivity)
    if mechanism.sampled > 1:
        raise ValueError(
            f"mechanism: reports {mechanism.sampled} coordinates, which compose; for one the profile is known, "
            "and accountants.epsilon(mechanism) is the pure level of all"
        )
    return worst_pairs(mechanism.coordinate)


@worst_pairs.register
def _(form: ExactMixture, sensitivity: Any = None) -> tuple[Any, ...]:
    """The choice revealed; both parts at the two ends."""
    take_none(sensitivity)
    return _mixed(float(form.certificate.weight), form)


def _mixed(weight: Real, mixture: Any) -> tuple[Mixed]:
    (first,), (second,) = worst_pairs(mixture.first), worst_pairs(mixture.second)
    return (Mixed(weight, first, second),)


@worst_pairs.register
def _(form: ExactNoise, sensitivity: Any = None) -> tuple[Any, ...]:
    return rows.exact_noise_pairs(form, sensitivity)


_ROWS: dict[type, Callable[[Any], Any]] = {
    Optimal: rows.optimal_pair,
    CentralPiecewise: rows.central_pair,
    ExactRows: rows.rows_pair,
    ExactWindow: rows.window_pair,
}


@worst_pairs.register(Optimal)
@worst_pairs.register(CentralPiecewise)
@worst_pairs.register(ExactRows)
@worst_pairs.register(ExactWindow)
def _(mechanism: Mechanism, sensitivity: Any = None) -> tuple[Any, ...]:
    """One pair of which the profile is the table's, or barely above it; neighbours are those of the mechanism."""
    take_none(sensitivity)
    return (_ROWS[type(mechanism)](mechanism),)
