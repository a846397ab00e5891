"""The worst pair of neighbouring inputs of a mechanism: two laws of the report, the unit of all accounting.

The privacy profile of a mechanism is the pointwise maximum of the hockey sticks of its worst pairs,

    delta(eps) = max over pairs of  integral max(0, p(y) - e^eps q(y)) dy,    eps >= 0

and a pair and its mirror (q and p swapped) are both meant where they have the same hockey stick.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import partial, singledispatch
from typing import Any

import numpy as np

from accountants.pairs import pure
from dpkernels import checks
from dpkernels.distributions.base import Distribution, Symmetric
from dpkernels.distributions.discrete import Lattice
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.multivariate import Multivariate
from dpkernels.mechanisms.two_point import Mixture, TwoPoint
from dpkernels.mechanisms.windowed.bases import Base
from dpkernels.mechanisms.windowed.mechanism import Window, Windowed
from dpkernels.mechanisms.windowed.tabulated import TabulatedBase, TabulatedWindow
from dpkernels.numerics import namespace
from dpkernels.pytrees import pytree

# Periods of a staircase, on either side, whose steps a pair keeps: under tracing, and at most.
_TRACED_PERIODS, _MOST_PERIODS = 256, 1 << 16


@partial(pytree, static=("periods",))
@dataclass(frozen=True)
class Shifted:
    """p = f, q = f(. - D): additive noise under two inputs a distance D apart.

    Attributes:
        noise: the law with density f.
        shift: D, of any sign.
        periods: how many periods of a staircase on either side are kept step by step; the others follow geometrically.
    """

    noise: Distribution
    shift: Any
    periods: int = _TRACED_PERIODS


@pytree
@dataclass(frozen=True)
class Placed:
    """p = density(. | x), q = density(. | other) of a windowed mechanism.

    Attributes:
        mechanism: a window that falls from its middle, on a base that falls from 0.
        x: the input of p.
        other: the input of q.
    """

    mechanism: Windowed
    x: Any
    other: Any


@partial(pytree, static=("moved", "near"))
@dataclass(frozen=True)
class Atoms:
    """Two laws on the same finitely many reports.

    Attributes:
        p: probabilities under one input, a 1-D array.
        q: under the other.
        moved: of even noise on a lattice, how many points q is further on than p; None for other laws.
        near: whether the inputs are within a sensitivity, of laws that are not moved: inputs twice as far apart, as
            where a record is replaced, may have others.
    """

    p: Any
    q: Any
    moved: int | None = None
    near: bool = False


@pytree
@dataclass(frozen=True)
class Mixed:
    """The pair ``first`` with probability w, else ``second``; a report tells which: delta = w delta_1 + (1-w) delta_2.

    Attributes:
        weight: w.
        first: a pair.
        second: a pair at the same two inputs.
    """

    weight: Any
    first: Any
    second: Any


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


@worst_pairs.register(Shifted)
@worst_pairs.register(Placed)
@worst_pairs.register(Atoms)
@worst_pairs.register(Mixed)
def _(mechanism: Any, sensitivity: Any = None) -> tuple[Any, ...]:
    """A pair by itself, such as two weight tables of the user's own."""
    take_none(sensitivity)
    return (mechanism,)


@worst_pairs.register
def _(mechanism: Additive, sensitivity: Any = None) -> tuple[Any, ...]:
    return noise_pairs(mechanism.noise, sensitivity_of(mechanism, sensitivity))


def sensitivity_of(mechanism: Additive, sensitivity: Any = None) -> Any:
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

    For a density unimodal about 0 they are (f, f(. - D)) and (f, f(. + D)): at every x the integrand of the hockey
    stick is 0 while f(x - d) >= f(x), and grows with d after that. For an even f one of the two is enough.

    Raises:
        TypeError: noise of an unknown type.
    """
    raise TypeError(f"noise: {type(noise).__name__} has no known worst pair")


@noise_pairs.register
def _(noise: Distribution, sensitivity: Any) -> tuple[Any, ...]:
    shifts = (sensitivity,) if is_even(noise) else (sensitivity, -sensitivity)
    return tuple(shifted(noise, shift) for shift in shifts)


@noise_pairs.register
def _(noise: Lattice, sensitivity: Any) -> tuple[Any, ...]:
    """Probabilities and the same n points further on, n = ceil(D/step); inputs are on the lattice."""
    D, step = (checks.concrete(value) for value in (sensitivity, noise.step))
    if D is None or step is None:
        raise TypeError("sensitivity: is traced; on a lattice it decides how many points there are")
    if D.ndim or step.ndim:
        raise ValueError(f"sensitivity: {sensitivity}; on a lattice it is one number, as the step is")
    n = math.ceil(Fraction(float(D)) / Fraction(float(step)))
    weights, xp = noise.probabilities, namespace(noise.probabilities)
    return (Atoms(xp.concatenate([weights, xp.zeros(n)]), xp.concatenate([xp.zeros(n), weights]), n),)


def is_even(noise: Distribution) -> bool:
    """Whether the density is even for certain: under tracing, only where its type says so."""
    if not isinstance(noise, Reweighted):
        return isinstance(noise, Symmetric)
    low, high = checks.concrete(noise.low), checks.concrete(noise.high)
    known = low is not None and high is not None
    return known and bool(np.all(noise.low == -noise.high)) and is_even(noise.kernel)


def shifted(noise: Distribution, shift: Any) -> Shifted:
    """The pair of additive noise and its shift, with as many periods of a staircase as it needs.

    Raises:
        ValueError: a staircase with too many steps within the shift.
    """
    if noise.law.degree:
        return Shifted(noise, shift)
    law: Any = noise.law
    parameters = law.epsilon, law.period, shift, *noise.edges
    numbers = [number for number in map(checks.concrete, parameters) if number is not None]
    if len(numbers) < len(parameters):
        return Shifted(noise, shift)
    epsilon, period, D, *edges = (float(np.max(np.abs(number))) for number in numbers)
    reach = min(max([0.0, *edges]) / period, 120 / epsilon)
    needed = 4 + 2 * math.ceil(D / period) + math.ceil(reach)
    if needed > _MOST_PERIODS:
        raise ValueError(f"sensitivity: {D:g} is {D / period:g} periods of the staircase; at most 30000 are accounted")
    return Shifted(noise, shift, 1 << max(4, needed - 1).bit_length())


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
    """The two ends of the input interval, for a window h and a base g that fall from their middles.

    Let c, c' in [-S, S] be the middles of the windows of p and q, c' <= c (else mirror), and
    D(v) = h(v - c) - e^eps h(v - c') - k g(v), k >= 0, the integrand up to a factor. D > 0 needs |v - c| < |v - c'|.
    1. c' -> -S raises D wherever it is positive: there v > c', and h(v - c') falls.
    2. If c < 0, c -> |c| does not lower the integral: for t > 0 let X = h(t - |c|) >= x = h(-t - |c|) and
       Y = e^eps h(t - S) + k g >= y = e^eps h(t + S) + k g; the points t and -t together had [x - y]+ + [X - Y]+
       and get [X - y]+ + [x - Y]+, the same sum spread wider, which is no less for a convex function.
    3. If c >= 0, the derivative of the integral in c is that of h over A = {D > 0}: the integral over t > 0 of
       |h'(t)| (1[c + t in A] - 1[c - t in A]). It is not negative: c - t in A implies c + t in A, where h(v - c) is
       the same, h(v + S) smaller, and g no larger since |c + t| >= |c - t|.

    Other shapes (a user's humps, a base that rises to its edge): the pair of two points of the mechanism's pure level
    eps0, which no eps0-DP mechanism exceeds: an upper bound, not the exact profile.
    """
    take_none(sensitivity)
    if falls(mechanism.window) and falls(mechanism.base):
        return (Placed(mechanism, mechanism.upper, mechanism.lower),)
    high = 1 / (1 + math.exp(-pure.epsilon(mechanism)))
    return (Atoms(np.array([high, 1 - high]), np.array([1 - high, high])),)


def falls(shape: Window | Base) -> bool:
    """Whether a window or a base falls from its middle; only a table may not."""
    if not isinstance(shape, TabulatedWindow | TabulatedBase):
        return True
    outward = shape.shape.heights[len(shape.shape.heights) // 2 :]
    return bool(np.all(np.diff(outward) <= 0))


@worst_pairs.register
def _(mechanism: TwoPoint, sensitivity: Any = None) -> tuple[Any, ...]:
    """The two ends: either probability is affine in the input."""
    take_none(sensitivity)
    p = mechanism.probability_high(mechanism.upper)
    xp = namespace(p)
    return (Atoms(xp.stack([p, 1 - p]), xp.stack([1 - p, p])),)


@worst_pairs.register
def _(mechanism: Mixture, sensitivity: Any = None) -> tuple[Any, ...]:
    """The two ends are worst for either part, with the choice of the part revealed.

    Exact where a report tells the part, as a density and two points do; for other parts an upper bound.
    """
    take_none(sensitivity)
    (first,), (second,) = worst_pairs(mechanism.first), worst_pairs(mechanism.second)
    return (Mixed(mechanism.weight, first, second),)


@worst_pairs.register
def _(mechanism: Multivariate, sensitivity: Any = None) -> tuple[Any, ...]:
    """Of one reported coordinate: which one is drawn apart from the data, and any of them may change.

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
