"""Top-k of a histogram (Cesar & Rogers 2021, section 6.2), released: known and unknown domain.

Discovery is sampled exactly (``dpkernels.exact.choice``), and counts are released by ``perturb``. The guarantee of a
release is that of the distributions of noise, whereas the samples come from integer tables close to them. Laplace noise
is charged by the claim that ``perturb`` certifies, so its tables are covered. For Gaussian noise, truncated or not, the
difference between a table and its distribution is not covered. Timing and other side channels are not covered either.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import singledispatch
from typing import Any

import jax
import numpy as np
from jax import Array

from accountants.histograms.accounting import (
    MOST_COUNTS,
    HistogramGuarantee,
    known_domain_guarantee,
    unknown_domain_guarantee,
)
from dpkernels import checks
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.exact.choice import exponential_top_k
from dpkernels.exact.registry import exact_sampler
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.named_additive import truncated_gaussian, truncation_bound
from dpkernels.random.keys import check_key, os_key, release_key_bytes, simulation_key
from dpkernels.release.perturb import perturb


@dataclass(frozen=True)
class KnownTopK:
    """Top-k of a known domain.

    Attributes:
        items: indices of the counts found, in the order of discovery.
        counts: their released counts, not increasing and not negative.
        noisy: the noisy counts before order and sign were imposed.
        guarantee: the privacy cost of all of it.
    """

    items: np.ndarray
    counts: np.ndarray
    noisy: np.ndarray
    guarantee: HistogramGuarantee


@dataclass(frozen=True)
class UnknownTopK:
    """Top-k of an unknown domain.

    Attributes:
        items: the released items, by falling noisy count; ties are in the order of their repr.
        counts: their noisy counts, all above the threshold.
        threshold: only counts above it were released.
        guarantee: the privacy cost of all of it.
    """

    items: tuple[Any, ...]
    counts: np.ndarray
    threshold: float
    guarantee: HistogramGuarantee


def known_domain_top_k(
    counts: Any,
    k: int,
    *,
    noise: Additive,
    discovery_epsilon: float,
    delta: float,
    key: Array | None = None,
    exact: bool = True,
) -> KnownTopK:
    """Release k items by the exponential mechanism, with noisy counts projected to that order.

    Neighbours add or remove one person, who changes every count by 0 or 1, all in the same direction. Replacing a
    person is not covered, because counts then move in both directions, which doubles the budget of discovery. Persons
    who are counted twice are not covered either.

    Args:
        counts: non-negative integers over a domain that is fixed beforehand, 1-D.
        k: the number of items.
        noise: the noise on a count of sensitivity 1: Laplace or Gaussian, with the claim that ``perturb`` needs.
        discovery_epsilon: eps of each pick: probability proportional to e^(eps count) among the remaining items.
        delta: the delta of the guarantee.
        key: a ChaCha20 key, to repeat a release, or any typed key to simulate.
        exact: release (True), or simulate the counts' noise by float kernels (False).

    Raises:
        TypeError: counts are not integers, or the noise has a distribution without a known charge.
        ValueError: counts are negative, 2^53 or more, or not 1-D, k is not in 1..len(counts), discovery_epsilon is not
            in [1e-4, 20], delta is not in (0, 1), or the claim of the noise is for a sensitivity below 1.
    """
    scores = _counts(counts)
    charged = known_domain_guarantee(k, discovery_epsilon, delta, **_charge(noise.noise, noise))
    key = _key(key, exact)
    items = exponential_top_k(scores, discovery_epsilon, k, _secret(key, exact))
    noisy = np.asarray(perturb(scores[items].astype(np.float64), noise, key=key, exact=exact))
    return KnownTopK(items, most_likely(noisy), noisy, charged)


def most_likely(noisy: Any) -> np.ndarray:
    """Return the non-increasing, non-negative counts nearest to noisy ones in squares: isotonic regression, cut at 0.

    For Gaussian noise they are the maximum likelihood estimate under that order. For other noise they are a projection.
    Where the true counts are in that order, the projection is not farther from them than the noisy counts.
    """
    from scipy.optimize import isotonic_regression

    return np.maximum(isotonic_regression(noisy, increasing=False).x, 0.0)


def unknown_domain_top_k(
    counts: Mapping[Any, int],
    k: int | None = None,
    *,
    sigma: float,
    truncation_delta: float,
    l0_sensitivity: int,
    linf_sensitivity: float = 1.0,
    delta: float,
    key: Array | None = None,
    exact: bool = True,
) -> UnknownTopK:
    """Release the items whose count plus truncated Gaussian noise on [-T, T] exceeds Dinf + T, at most the top k.

    An item that one person alone adds has a count of at most Dinf, and can never appear. Neighbours add, remove or
    replace one person, who changes at most D0 counts by at most Dinf each. The order of the mapping has no influence.

    Args:
        counts: a non-negative integer for every item that occurs; zeros have the same effect as absence.
        k: the most items to release; by default all.
        sigma: s of the noise before truncation.
        truncation_delta: the delta of one count in eq. 10, which sets T.
        l0_sensitivity: D0.
        linf_sensitivity: Dinf.
        delta: the delta of the guarantee, more than D0 truncation_delta.
        key: a ChaCha20 key, to repeat a release, or any typed key to simulate.
        exact: release (True), or simulate by float kernels (False).

    Raises:
        TypeError: counts are not integers.
        ValueError: counts are negative, or 2^53 or more, k or l0_sensitivity is not in 1..10^6, sigma or
            linf_sensitivity is not positive, or sigma so small that the loss of a count may exceed 20, truncation_delta
            is not in (0, 1), or delta is not below 1 and above the leak of D0 counts.
    """
    k = len(counts) if k is None else checks.whole("k", k, 1, MOST_COUNTS)
    charged = unknown_domain_guarantee(l0_sensitivity, linf_sensitivity, sigma, truncation_delta, delta)
    mechanism = _truncated(sigma, truncation_delta, linf_sensitivity)
    if exact:
        sampler = exact_sampler(mechanism)
        largest = _largest_noise(sampler.certificate)
    else:
        sampler, largest = mechanism, Fraction(truncation_bound(sigma, truncation_delta, linf_sensitivity))
    # Rounding to floats keeps the order, so no report of a count of at most Dinf exceeds this.
    threshold = math.nextafter(float(Fraction(linf_sensitivity) + largest), math.inf)
    reports = _reports(counts, sampler, _key(key, exact), exact)
    above = sorted(((-y, repr(item), item) for item, y in reports if y > threshold), key=lambda entry: entry[:2])[:k]
    items = tuple(item for _, _, item in above)
    return UnknownTopK(items, np.array([-negative for negative, _, _ in above]), threshold, charged)


def _reports(counts: Mapping[Any, int], sampler: Any, key: Array, exact: bool) -> list[tuple[Any, float]]:
    items = list(counts)
    values = _counts(list(counts.values())) if items else np.zeros(0, np.int64)
    positive = np.flatnonzero(values)
    if not len(positive):
        return []
    noisy = np.asarray(perturb(values[positive].astype(np.float64), sampler, key=key, exact=exact))
    return [(items[at], report) for at, report in zip(positive, noisy.tolist(), strict=True)]


def _truncated(sigma: float, truncation_delta: float, sensitivity: float) -> Additive:
    """Return the noise on a count, with its largest finite loss (T - D/2) D/s^2 as the budget of its claim."""
    T = truncation_bound(sigma, truncation_delta, sensitivity)
    least, most = checks.EPSILON_RANGE
    loss = max((T - sensitivity / 2) * sensitivity / sigma**2, least)
    if loss > most:
        raise ValueError(f"sigma: {sigma:g} is too small; a count's loss is up to {loss:.3g}, and {most:g} is the most")
    return truncated_gaussian(sigma=sigma, delta=truncation_delta, sensitivity=sensitivity, epsilon=loss)


def _largest_noise(certificate: Any) -> Fraction:
    """Return a bound on the released report minus its count: the table's last value plus one bin of rounding."""
    return certificate.highest + certificate.table.bin_width


@singledispatch
def _charge(distribution: Any, noise: Additive) -> dict[str, Any]:
    """Return the arguments of ``known_domain_guarantee`` for a count's noise."""
    raise TypeError(
        f"noise: {type(distribution).__name__} noise on counts has no known charge; take Laplace or Gaussian noise"
    )


@_charge.register
def _(distribution: Gaussian, noise: Additive) -> dict[str, Any]:
    return {"sigma": float(distribution.sigma)}


@_charge.register
def _(distribution: Laplace, noise: Additive) -> dict[str, Any]:
    if noise.sensitivity is None or noise.epsilon is None or noise.delta is None:
        return {"scale": float(distribution.scale)}
    if noise.sensitivity < 1:
        raise ValueError(f"noise: its claim is for sensitivity {noise.sensitivity:g}, and a count changes by up to 1")
    return {"scale": 1 / float(noise.epsilon), "leak": float(noise.delta)}


def _counts(counts: Any) -> np.ndarray:
    array = checks.integers("counts", counts)
    if array.min() < 0 or array.max() >= 1 << 53:
        raise ValueError(f"counts: {array.min()} to {array.max()} is not within 0..2^53")
    return array.astype(np.int64)


def _key(key: Array | None, exact: bool) -> Array:
    if key is None:
        return os_key() if exact else simulation_key(int.from_bytes(os.urandom(4), "little"))
    check_key(key)
    return key


def _secret(key: Array, exact: bool) -> bytes:
    """Return the 32 bytes for discovery; those of a simulation are as easy to guess as its key."""
    if exact:
        return release_key_bytes(key)
    return np.asarray(jax.random.bits(jax.random.fold_in(key, 0), (8,), "uint32")).tobytes()
