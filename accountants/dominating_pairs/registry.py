"""The dominating pairs of mechanisms: the distributions of a report under the worst two neighbouring inputs.

    delta(eps) = max over pairs of  integral max(0, p(y) - e^eps q(y)) dy,    eps >= 0.

If a pair and its mirror (q and p exchanged) have the same profile, only one of them is listed. Proofs:
docs/proofs/worst_pairs.md.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache, singledispatch
from typing import Any

import jax
import numpy as np

from accountants.dominating_pairs.additive import additive_pair
from accountants.dominating_pairs.base import DominatingPair, Mixed, profile
from accountants.dominating_pairs.categories import category_pair
from accountants.dominating_pairs.densities import Densities
from accountants.dominating_pairs.discrete import Atoms, dominating_pair, pure_points, shifted_pair
from accountants.dominating_pairs.windowed import WindowedPair
from dpkernels import checks
from dpkernels.distributions.base import Distribution
from dpkernels.distributions.discrete import Lattice
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.exact.bounded.rows import ExactRows
from dpkernels.exact.bounded.windows import ExactWindow
from dpkernels.exact.categorical.prefixes import PrefixSampler
from dpkernels.exact.categorical.sampler import CategorySampler
from dpkernels.exact.noise.certificate import NoiseCertificate
from dpkernels.exact.noise.sampler import ExactNoise
from dpkernels.exact.noise.table import NoiseTable
from dpkernels.exact.registry import ExactMixture, ExactMultivariate
from dpkernels.exact.sampler import ExactSampler
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.categorical.base import Categorical
from dpkernels.mechanisms.categorical.prefixes import PrefixPlan
from dpkernels.mechanisms.central_piecewise import CentralPiecewise
from dpkernels.mechanisms.multivariate import Multivariate
from dpkernels.mechanisms.optimal.mechanism import Optimal
from dpkernels.mechanisms.optimal.search import largest_ratio
from dpkernels.mechanisms.two_point import Mixture, TwoPoint
from dpkernels.mechanisms.windowed.bases import Constant
from dpkernels.mechanisms.windowed.mechanism import SquareWave, Windowed, critical_points
from dpkernels.mechanisms.windowed.windows import Uniform
from dpkernels.numerics import Real, namespace
from dpkernels.proven import proven
from dpkernels.solve import refined_maximum


def dominating_pairs(mechanism: object, sensitivity: object = None) -> tuple[DominatingPair, ...]:
    """Return pairs the pointwise maximum of whose profiles is the mechanism's profile at every eps >= 0.

    For bounded mechanisms neighbours are any two inputs, or those within the mechanism's own sensitivity. For additive
    ones they differ by at most ``sensitivity``, by default that of the claim. Unknown mechanisms raise a TypeError.
    """
    if isinstance(mechanism, Additive):
        return noise_pairs(mechanism.noise, resolve_sensitivity(mechanism, sensitivity))
    if isinstance(mechanism, ExactNoise | NoiseCertificate):
        return _exact_noise_pairs(getattr(mechanism, "certificate", mechanism), sensitivity)
    pair = bounded_pair(mechanism)
    reject_sensitivity(sensitivity)
    return (pair, pair.mirror()) if isinstance(pair, Densities) else (pair,)


def resolve_sensitivity(mechanism: Additive, sensitivity: Any = None) -> Real:
    """Return the given D, or else that of the mechanism's claim; an error if there is neither."""
    D = mechanism.sensitivity if sensitivity is None else sensitivity
    if D is None:
        raise ValueError("sensitivity: None; the mechanism claims none, so it must be given, a positive number")
    D = np.asarray(D, float) if isinstance(D, list | tuple) else D
    checks.sensitivity(D)
    return D


def reject_sensitivity(sensitivity: object) -> None:
    """Raise ValueError for a sensitivity: a bounded mechanism has none or one of its own."""
    if sensitivity is not None:
        raise ValueError(
            f"sensitivity: {sensitivity}; neighbours of a bounded mechanism are any two inputs, or within the "
            "sensitivity it was made for, so it takes none"
        )


def noise_pairs(noise: object, sensitivity: Real) -> tuple[DominatingPair, ...]:
    """Return the dominating pairs of additive noise over shifts of size up to D; a TypeError for unknown noise.

    For a density that is unimodal about 0 they are (f, f(. - D)) and (f, f(. + D)). For an even f one is enough.
    """
    if isinstance(noise, Lattice):
        return (_lattice_pair(noise, sensitivity),)
    if not isinstance(noise, Distribution):
        raise TypeError(f"noise: {type(noise).__name__} has no known worst pair")
    if isinstance(noise, Reweighted):
        # A weight of 1 is the kernel itself: the reweighted sum in three parts would round differently.
        outside_weight = checks.concrete(noise.outside)
        if outside_weight is not None and (outside_weight == 1.0).all():
            return noise_pairs(noise.kernel, sensitivity)
    shifts = (sensitivity,) if noise.is_even else (sensitivity, -sensitivity)
    return tuple(additive_pair(noise, shift) for shift in shifts)


def _lattice_pair(noise: Lattice, sensitivity: Real) -> Atoms:
    """Return the probabilities, and the same n points further on, n = ceil(D/step); inputs are on the lattice."""
    D, step = (checks.concrete(value) for value in (sensitivity, noise.step))
    if D is None or step is None:
        raise TypeError("sensitivity: is traced; on a lattice it decides how many points there are")
    if D.ndim or step.ndim:
        raise ValueError(f"sensitivity: {sensitivity}; on a lattice it is one number, as the step is")
    return shifted_pair(noise.probabilities, math.ceil(Fraction(float(D)) / Fraction(float(step))))


def _exact_noise_pairs(certificate: object, sensitivity: Any) -> tuple[Atoms, ...]:
    """Return the table and the table shifted by the cells that neighbours can be apart, in both directions.

    Of cells wider than the sensitivity, the other one is a mixture of the table and the shifted one.
    """
    if not isinstance(certificate, NoiseCertificate):
        raise ValueError("mechanism: of noise on vectors only the certificate's epsilon and delta are known")
    if sensitivity is not None and sensitivity > certificate.sensitivity:
        raise ValueError(f"sensitivity: {sensitivity:g} is above the {certificate.sensitivity:g} certified")
    if not certificate.table.is_unimodal:
        raise ValueError("mechanism: its weights are not unimodal, so its worst shift is not known")
    table = certificate.table
    if table.tail:
        weights, pair = _endless_pair(table, math.ceil(certificate.shift))
    else:
        weights = np.array([float(weight) for weight in table.outcomes]) / table.total
        pair = shifted_pair(weights, math.ceil(certificate.shift))
    fraction = min(1.0, float(certificate.shift))
    is_even = bool((weights == weights[::-1]).all())
    if fraction == 1:
        return (pair,) if is_even else (Atoms(pair.p, pair.q), Atoms(pair.q, pair.p))
    ends = [(pair.p, pair.q)] if is_even else [(pair.p, pair.q), (pair.q, pair.p)]
    mixed = [(p, (1 - fraction) * p + fraction * q) for p, q in ends]
    return tuple(Atoms(*order) for p, q in mixed for order in ((p, q), (q, p)))


def _endless_pair(table: NoiseTable, cells: int) -> tuple[np.ndarray, Atoms]:
    """Return the probabilities of a table with a tail up to two blocks, and the pair of it and it shifted.

    From the second block on, codes a whole number of blocks apart have the same ratio to the code ``cells`` before or
    behind them, so they count as one.
    """
    tail = table.tail
    if tail is None:
        raise ValueError("table: has no tail")
    block, decay = tail.block / 2.0**tail.bits, float(tail.continue_probability)
    block_weights, inner = tail.rest / 2.0**tail.bits * block, table.weights / 2.0**table.bits
    side = np.concatenate([block_weights, decay * block_weights, decay**2 * block_weights])
    p = np.concatenate([side[::-1], inner, side])
    q = np.concatenate([np.zeros(cells), p[:-cells]])
    multiplicity = np.ones(len(p))
    multiplicity[tail.codes : 2 * tail.codes] = multiplicity[-2 * tail.codes : -tail.codes] = 1 / (1 - decay)
    inner_codes = slice(tail.codes, -tail.codes)
    return inner, Atoms((p * multiplicity)[inner_codes], (q * multiplicity)[inner_codes])


def additive_profile(noise: Distribution, sensitivity: Real, epsilon: Real) -> Real:
    """Return delta(eps) over all shifts of size up to D, for a density unimodal about 0; see ``noise_pairs``."""
    return profile(noise_pairs(noise, sensitivity), epsilon)


@singledispatch
def bounded_pair(mechanism: object) -> DominatingPair:
    """Return the dominating pair of a mechanism that takes no sensitivity."""
    raise TypeError(f"mechanism: {type(mechanism).__name__} has no known worst pair")


@bounded_pair.register
def _(mechanism: DominatingPair) -> DominatingPair:
    """Return the pair itself, for example two user-defined weight tables."""
    return mechanism


@bounded_pair.register
def _(mechanism: Windowed) -> DominatingPair:
    """Return the pair of the two ends of the input interval, if window and base fall from their middles.

    For other shapes (a window with several peaks, a base that rises to its edge, a user-defined class) return the
    two-point pair of the mechanism's pure level eps0. No eps0-DP mechanism exceeds its profile, so it is an upper bound
    and not the exact profile.
    """
    m = mechanism
    if m.window.falls and m.base.falls:
        return WindowedPair(m.window, m.base, m.width, m.relative_height, 2 - m.width)
    return pure_points(pure_epsilon(m))


@bounded_pair.register
def _(mechanism: SquareWave) -> DominatingPair:
    """Return the pair of the two ends; rescaled, reports are those of a type-I piecewise mechanism."""
    b, height = mechanism.half_width, namespace(mechanism.epsilon).expm1(mechanism.epsilon)
    return WindowedPair(Uniform(), Constant(), 4 * b / (1 + 2 * b), height, 2 / (1 + 2 * b))


@bounded_pair.register
def _(mechanism: TwoPoint) -> DominatingPair:
    """Return the pair of the two ends, those of randomised response: both probabilities are affine in the input."""
    return pure_points(mechanism.epsilon)


@bounded_pair.register(Mixture)
@bounded_pair.register(ExactMixture)
def _(mechanism: Mixture | ExactMixture) -> DominatingPair:
    """Return the pairs of both parts at the two ends, as if the choice of the part were published.

    The profile is exact if a report shows which part was chosen, as with a density and two points. For other parts it
    is an upper bound.
    """
    weight = mechanism.weight if isinstance(mechanism, Mixture) else float(mechanism.certificate.weight)
    return Mixed(weight, bounded_pair(mechanism.first), bounded_pair(mechanism.second))


@bounded_pair.register
def _(mechanism: Multivariate) -> DominatingPair:
    """Return the pairs of one reported coordinate, chosen independently of the data; any of them may change."""
    if mechanism.sampled > 1:
        raise ValueError(
            f"mechanism: reports {mechanism.sampled} coordinates, which compose; for one the profile is known, "
            "and accountants.epsilon(mechanism) is the pure level of all"
        )
    return bounded_pair(mechanism.coordinate)


@bounded_pair.register
def _(mechanism: Optimal) -> Atoms:
    """Return one pair whose profile is never below the table's, for neighbours within its own sensitivity."""
    if namespace(mechanism.probabilities) is np:
        return _pair_of_rows(mechanism)
    pair = dominating_pair(mechanism.probabilities, mechanism.cells)
    return replace(pair, within_sensitivity=mechanism.sensitivity is not None)


@bounded_pair.register(ExactRows)
@lru_cache(maxsize=64)
def _pair_of_rows(rows: Optimal | ExactRows) -> Atoms:
    """Return the pair of a table of plain numbers, or of the integers that a release samples."""
    p, cells, sensitivity = table_of_rows(rows)
    return replace(dominating_pair(p, cells), within_sensitivity=sensitivity is not None)


def table_of_rows(rows: Optimal | ExactRows) -> tuple[np.ndarray, int, Real | None]:
    """Return the probabilities, how many rows neighbours are apart at most, and their sensitivity or None."""
    if isinstance(rows, Optimal):
        return np.asarray(rows.probabilities, float), rows.cells, rows.sensitivity
    return rows.table.weights / float(1 << rows.table.bits), rows.certificate.cells, rows.certificate.sensitivity


@bounded_pair.register
@proven("worst_pairs#5-central-piecewise")
def _(mechanism: CentralPiecewise) -> Atoms:
    """Return the density and itself shifted by the sensitivity: it falls from its middle, so this shift is the worst.

    On the mechanism's scale v, inputs are c <= 2 apart, and a step is at least as wide as c. On one side of the
    midpoint the loss is eps on the outer c of every step of heights q E^l, 1 <= l < s, and on the part of the highest
    step that the other density's highest step does not cover. It is -eps on their mirror images, and 0 elsewhere.
    """
    xp = namespace(*jax.tree.leaves(mechanism))
    E, steps = xp.exp(-mechanism.epsilon), mechanism.steps
    c = xp.minimum(2 * mechanism.sensitivity / (mechanism.upper - mechanism.lower), 2.0)
    level = mechanism.masses[0][0] / (2 * mechanism.core * (1 - E))
    high = level * (xp.minimum(2 * mechanism.core, c) + c * (E ** np.arange(1, steps)).sum())
    p = xp.stack([high, xp.maximum(1 - high - high * E, 0.0), high * E])
    return Atoms(p, p[::-1], within_sensitivity=True)


@bounded_pair.register
def _(sampler: ExactWindow) -> Atoms:
    """Return the first and the last row if window and base fall from their middles, else ``pure_points`` of its eps."""
    table = sampler.table
    if not table.falls:
        return pure_points(sampler.certificate.realised_epsilon)
    first, last = (table.row(s).astype(np.float64) / table.total for s in (0, table.last_row))
    return Atoms(first, last)


bounded_pair.register(Categorical, category_pair)
bounded_pair.register(CategorySampler, category_pair)


@bounded_pair.register(PrefixPlan)
@bounded_pair.register(PrefixSampler)
def _(mechanism: Any) -> Atoms:
    """Return the pair of two values whose prefixes differ at every level; the level is public and independent."""
    if getattr(mechanism, "mechanism", mechanism).split != "people":
        raise TypeError("mechanism: has several reports a person; compose the guarantees of its levels")
    pairs = [category_pair(level) for level in mechanism.levels]
    p, q = (np.concatenate([getattr(pair, side) for pair in pairs]) / len(pairs) for side in ("p", "q"))
    return Atoms(p, q)


@singledispatch
def pure_epsilon(mechanism: object) -> float:
    """Return the smallest eps for which the mechanism is eps-DP, of one report in exact arithmetic.

    Neighbours are any two inputs of the interval, or those within the sensitivity of a mechanism that has one.

    - Windowed mechanisms: the supremum over reports of ln(sup / inf over inputs of the density), on a grid of reports
      with every kink, refined at the maximum.
    - Mixtures: an upper bound, as if the choice of the part were published.
    - Exact samplers: computed from the integers; inf for tables of noise, which have finite support.
    """
    raise TypeError(f"mechanism: {type(mechanism).__name__} has no known privacy level")


@pure_epsilon.register
def _(mechanism: Windowed) -> float:

    def loss(v: np.ndarray) -> np.ndarray:
        high, low = mechanism.envelope(v)
        return np.log(high / low)

    return refined_maximum(loss, critical_points(mechanism.window, mechanism.base, float(mechanism.width)))


@pure_epsilon.register(SquareWave)
@pure_epsilon.register(TwoPoint)
@pure_epsilon.register(CentralPiecewise)
@pure_epsilon.register(Categorical)
@pure_epsilon.register(PrefixPlan)
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
@pure_epsilon.register(CategorySampler)
def _(mechanism: Any) -> float:
    return float(mechanism.certificate.realised_epsilon)


@pure_epsilon.register
def _(mechanism: ExactNoise) -> float:
    """Return the budget of a table with a tail. A report beyond the end of another is impossible for some inputs."""
    return float(mechanism.certificate.epsilon) if mechanism.table.tail else math.inf


@pure_epsilon.register
def _(mechanism: Optimal) -> float:
    """Return the largest log ratio of the probabilities of neighbouring inputs."""
    return math.log(largest_ratio(np.asarray(mechanism.probabilities, float), mechanism.cells))
