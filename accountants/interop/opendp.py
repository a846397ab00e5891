"""OpenDP measurements that release by certified integers; they chain with OpenDP's transformations and compositors.

Install the extra ``opendp``. Every invocation is an exact release of ``perturb`` with a new key of the operating
system.

    mechanism                        input domain            input metric             output measure
    bounded, any two inputs          AtomDomain, bounded     DiscreteDistance         MaxDivergence
    additive, one value              AtomDomain              AbsoluteDistance         Approximate(MaxDivergence)
    additive, vectors of d values    VectorDomain, size d    L1, L2 or LInfDistance   Approximate(MaxDivergence)

The privacy maps hold for the integers that are sampled.

* A bounded mechanism is eps-DP for any two records, where eps is that of the certificate, rounded up.
* For additive noise on one value, inputs at distance d_in are at most ``ceil(ceil(d_in/g)/M)`` cells apart after
  rounding (see docs/proofs/noise_tables.md). The map is the upper end of the bracket for the table and the table
  shifted by these cells, at a fixed delta, rounded up.
* For vectors, the (epsilon, delta) of the certificate is for vectors at distance D. Vectors at distance d_in are
  connected by ``k = ceil(d_in/D)`` such steps, so the map is ``(k epsilon, delta (e^(k epsilon) - 1)/(e^epsilon -
  1))``. On a lattice, the intermediate vectors must be on the lattice, so D is rounded down to it, and l2 distances
  above D have no map.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import opendp.prelude as dp

import accountants
import dpkernels as dpk
from accountants.dominating_pairs.discrete import shifted_pair
from dpkernels.decimals import float_at_least, rational
from dpkernels.exact.bounded.certificate import BoundedCertificate
from dpkernels.exact.noise.certificate import NoiseCertificate
from dpkernels.numerics import MAX_EXPONENT, RealArray

_METRICS = {"l1": dp.l1_distance, "l2": dp.l2_distance, "linf": dp.linf_distance}
# Epsilons are rounded up to multiples of this, which hides the rounding of floats.
_EPSILON_STEP = 2.0**-20
# No value of the data is further out, so that infinities are read as finite values.
_MAX_VALUE = 2.0**1000


def make_measurement(mechanism: object, *, delta: float | None = None, T: type = float) -> dp.Measurement:
    """Return the OpenDP measurement of a mechanism.

    OpenDP's features "contrib" and "honest-but-curious" must be enabled: the map is computed here, not by OpenDP.

    Args:
        mechanism: a bounded mechanism for any two inputs, additive noise, or additive noise on vectors, or its exact
            sampler.
        delta: for additive noise on one value that is not pure, the delta at which the map gives an epsilon. Default:
            the claimed delta.
        T: the type of the input, float or int (32 bits). Reports are floats.

    Raises:
        TypeError: a mechanism of another kind, or T is neither float nor int.
        ValueError: delta for a mechanism whose delta is fixed, or out of range, a bounded mechanism for neighbours
            within a sensitivity, float inputs for a mechanism on a lattice.
        dpkernels.CertificateError: the mechanism has no certificate.

    Example:
        >>> import dpkernels as dpk, opendp.prelude as dp
        >>> from accountants.interop.opendp import make_measurement
        >>> dp.enable_features("contrib", "honest-but-curious")
        >>> report = make_measurement(dpk.piecewise(epsilon=1.0, lower=0.0, upper=120.0))
        >>> 0.999 < report.map(1) <= 1.0
        True
    """
    if T not in (float, int):
        raise TypeError(f"T: {T!r} is neither float nor int")
    sampler = dpk.exact_sampler(mechanism)
    mechanism = sampler.mechanism
    values = dp.atom_domain(T=float, nan=False) if T is float else dp.atom_domain(T=int)
    approximate = dp.approximate(dp.max_divergence())
    members: tuple[Any, ...]
    output_type: type | str = float
    if isinstance(mechanism, dpk.Additive):
        members = values, dp.absolute_distance(T=T), approximate, _additive_map(sampler.certificate, delta)
    elif delta is not None:
        raise ValueError(f"delta: {delta}; the delta of {type(mechanism).__name__} is fixed")
    elif isinstance(mechanism, dpk.AdditiveVector):
        vectors = dp.vector_domain(values, size=mechanism.dimensions)
        members = vectors, _METRICS[mechanism.norm](T=T), approximate, _vector_map(sampler, T)
        output_type = "Vec<f64>"
    else:
        members = _bounded(mechanism, T), dp.discrete_distance(), dp.max_divergence(), _bounded_map(sampler.certificate)
    domain, metric, measure, privacy_map = members
    return dp.m.make_user_measurement(domain, metric, measure, _release(sampler, T), privacy_map, TO=output_type)


def _bounded(mechanism: Any, T: type) -> dp.Domain:
    """Return the domain of one record's value."""
    if isinstance(mechanism, dpk.Multivariate) or np.ndim(mechanism.input_interval[0]):
        raise TypeError(f"mechanism: {type(mechanism).__name__} is on vectors; of these only additive noise is covered")
    if getattr(mechanism, "sensitivity", None) is not None:
        raise ValueError("mechanism: is for neighbours within its sensitivity; one for any two inputs is needed")
    low, high = (float(end) for end in mechanism.input_interval)
    bounds = (low, high) if T is float else (math.ceil(low), math.floor(high))
    return dp.atom_domain(bounds=bounds, nan=False) if T is float else dp.atom_domain(bounds=bounds, T=int)


def _bounded_map(certificate: BoundedCertificate) -> Callable[[int], float]:
    epsilon = float(np.nextafter(float(certificate.realised_epsilon), np.inf))  # the level, rounded up
    return lambda d_in: epsilon if d_in else 0.0


def _additive_map(certificate: NoiseCertificate, delta: float | None) -> Callable[[float], tuple[float, float]]:
    if certificate.table.tail:
        if delta is not None:
            raise ValueError(f"delta: {delta}; this noise has no end, and its delta is 0")
        return _pure_map(certificate)
    target_delta = float(certificate.delta) if delta is None else float(delta)
    if not 0 < target_delta < 1:
        raise ValueError(f"delta: {target_delta} is not in (0, 1)")
    table = certificate.table
    spacing = Fraction(2) ** table.grid_log2

    @lru_cache(maxsize=256)
    def epsilon(cells: int) -> float:
        weights = np.array([float(weight) for weight in table.outcomes]) / table.total
        pair = shifted_pair(weights, min(cells, len(weights)))
        level = accountants.guarantee(accountants.discrete_pair(pair.p, pair.q)).bracket(delta=target_delta)[1]
        return math.ceil(level / _EPSILON_STEP) * _EPSILON_STEP if math.isfinite(level) else level

    def privacy_map(d_in: float) -> tuple[float, float]:
        cells = math.ceil(Fraction(math.ceil(Fraction(d_in) / spacing), table.points_per_bin))
        return (epsilon(cells), target_delta) if cells else (0.0, 0.0)

    return privacy_map


def _pure_map(certificate: NoiseCertificate) -> Callable[[float], tuple[float, float]]:
    """Return the map of noise without an end: inputs k sensitivities apart are k times as many cells apart at most."""
    D, epsilon = Fraction(certificate.sensitivity), rational(certificate.epsilon)

    def privacy_map(d_in: float) -> tuple[float, float]:
        return float_at_least(math.ceil(Fraction(d_in) / D) * epsilon), 0.0

    return privacy_map


def _vector_map(sampler: Any, T: type) -> Callable[[float], tuple[float, float]]:
    mechanism = sampler.mechanism
    if mechanism.lattice is not None and (T is float or Fraction(float(mechanism.lattice)).numerator != 1):
        raise ValueError(
            f"T: float values may be off the lattice {float(mechanism.lattice):g}; use T=int and a lattice that holds "
            "all integers"
        )
    claim, lattice = sampler.certificate, mechanism.lattice
    D, epsilon, delta = Fraction(float(mechanism.sensitivity)), float(claim.epsilon), float(claim.delta)
    if lattice is not None:  # All vectors on the way are on the lattice.
        D = Fraction(float(lattice)) * math.floor(D / Fraction(float(lattice)))

    def privacy_map(d_in: float) -> tuple[float, float]:
        k = math.ceil(Fraction(d_in) / D)
        if k == 0:
            return 0.0, 0.0
        if k > 1 and lattice is not None and mechanism.norm == "l2":
            raise ValueError(f"d_in: {d_in}; on a lattice, l2 distances above {float(D):g} have no map")
        if k * epsilon > MAX_EXPONENT:
            return math.inf, 1.0
        group = math.expm1(k * epsilon) / math.expm1(epsilon) * (1 + 1e-12) if k > 1 else 1.0
        return k * epsilon * (1 + (k > 1) * 1e-15), min(1.0, delta * group)

    return privacy_map


def _release(sampler: object, T: type) -> Callable[[Any], Any]:
    """Return the function that perturbs a value or a list, with a new key for every call."""

    def release(x: RealArray) -> Any:
        values = np.asarray(x, float)
        if T is float:  # It moves no two values apart, and without it an infinity would be an error, which shows it.
            values = np.clip(values, -_MAX_VALUE, _MAX_VALUE)
        return dpk.perturb(values, sampler, clip=T is float).tolist()

    return release
