"""Release of the largest counts, with noise."""

from __future__ import annotations

import math
import os
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import jax
import numpy as np
from jax import Array

from accountants.histograms.guarantees import (
    MOST_COUNTS,
    HistogramGuarantee,
    known_domain_guarantee,
    unknown_domain_guarantee,
)
from dpkernels import checks
from dpkernels.budgets.filters import parse_charge
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.exact.registry import exact_sampler
from dpkernels.exact.selection.exponential import exponential_top_k
from dpkernels.mechanisms import named
from dpkernels.mechanisms.additive import Additive
from dpkernels.random.keys import check_key, os_key, release_key_bytes, simulation_key
from dpkernels.release.charges import Chargeable
from dpkernels.release.perturb import perturb

# The distributions of noise on counts, and the names of their scales.
_SCALES = {Gaussian: "sigma", Laplace: "scale"}


@dataclass(frozen=True)
class KnownTopK:
    """Top-k of a known domain: items in the order of discovery, counts that do not increase, and the privacy cost."""

    items: np.ndarray
    counts: np.ndarray
    noisy: np.ndarray
    guarantee: HistogramGuarantee


@dataclass(frozen=True)
class UnknownTopK:
    """Top-k of an unknown domain: items by falling noisy count (ties by repr), the threshold, and the privacy cost."""

    items: tuple[object, ...]
    counts: np.ndarray
    threshold: float
    guarantee: HistogramGuarantee


def known_domain_top_k(
    counts: np.ndarray,
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
        counts: integers in 0..2^53 - 1 over a domain that is fixed beforehand, 1-D.
        k: the number of items.
        noise: the noise on a count of sensitivity 1: Laplace or Gaussian, with the claim that ``perturb`` needs.
        discovery_epsilon: eps of each pick, in [1e-4, 20]: probability proportional to e^(eps count) among the
            remaining items.
        delta: the delta of the guarantee, in (0, 1).
        key: a ChaCha20 key, to repeat a release, or any typed key to simulate.
        exact: release (True), or simulate the counts' noise by float kernels (False).

    Raises:
        TypeError: counts are not integers, or the noise has a distribution without a known charge.
        ValueError: an argument is out of range, or the claim of the noise is for a sensitivity below 1.
    """
    scores = _counts(counts)
    charged = known_domain_guarantee(k, discovery_epsilon, delta, **_charge(noise))
    key = _key(key, exact)
    if exact:
        secret = release_key_bytes(key)
    else:  # The 32 bytes for the discovery of a simulation are as easy to guess as its key.
        secret = np.asarray(jax.random.bits(jax.random.fold_in(key, 0), (8,), "uint32")).tobytes()
    items = exponential_top_k(scores, discovery_epsilon, k, secret)
    noisy = np.asarray(perturb(scores[items].astype(np.float64), noise, key=key, exact=exact))
    return KnownTopK(items, most_likely(noisy), noisy, charged)


def most_likely(noisy: np.ndarray) -> np.ndarray:
    """Return the non-increasing, non-negative counts nearest to noisy ones in squares: isotonic regression, cut at 0.

    For Gaussian noise they are the maximum likelihood estimate under that order. For other noise they are a projection.
    Where the true counts are in that order, the projection is not farther from them than the noisy counts.
    """
    from scipy.optimize import isotonic_regression

    return np.maximum(isotonic_regression(noisy, increasing=False).x, 0.0)


def unknown_domain_top_k(
    counts: Mapping[Hashable, int],
    k: int | None = None,
    *,
    sigma: float,
    truncation_delta: float,
    l0_sensitivity: int,
    linf_sensitivity: float = 1.0,
    delta: float,
    key: Array | None = None,
    exact: bool = True,
    ledger: Chargeable | None = None,
    label: str = "",
) -> UnknownTopK:
    """Release the items whose count plus truncated Gaussian noise on [-T, T] exceeds Dinf + T, at most the top k.

    An item that one person alone adds has a count of at most Dinf, and can never appear. Neighbours add, remove or
    replace one person, who changes at most D0 counts by at most Dinf each. The order of the mapping has no influence.

    Args:
        counts: an integer in 0..2^53 - 1 for every item that occurs; zeros have the same effect as absence.
        k: the most items to release, in 1..10^6; by default all.
        sigma: s of the noise before truncation.
        truncation_delta: the delta of one count in eq. 10, which sets T.
        l0_sensitivity: D0, in 1..10^6.
        linf_sensitivity: Dinf, positive.
        delta: the delta of the guarantee, below 1 and more than D0 truncation_delta.
        key: a ChaCha20 key, to repeat a release, or any typed key to simulate.
        exact: release (True), or simulate by float kernels (False).
        ledger: a ledger or filter that is charged before the release: D0 times the certified claim of a count, which
            covers the table.
        label: a description of the release in the ledger.

    Raises:
        TypeError: counts are not integers.
        ValueError: an argument is out of range, or sigma so small that the loss of a count may exceed 20.
        BudgetExceeded: the ledger refuses the charge; nothing was charged or released.
    """
    k = len(counts) if k is None else checks.integer_in("k", k, 1, MOST_COUNTS)
    charged = unknown_domain_guarantee(l0_sensitivity, linf_sensitivity, sigma, truncation_delta, delta)
    mechanism = _truncated(sigma, truncation_delta, linf_sensitivity)
    if exact:
        sampler = exact_sampler(mechanism)
        # The largest released report minus its count is the table's last value plus one bin of rounding.
        largest = sampler.certificate.highest + sampler.certificate.table.bin_width
    else:
        sampler, largest = mechanism, Fraction(float(named.truncation_bound(sigma, truncation_delta, linf_sensitivity)))
    # Rounding to floats keeps the order, so no report of a count of at most Dinf exceeds this.
    threshold = math.nextafter(float(Fraction(linf_sensitivity) + largest), math.inf)
    key, values = _key(key, exact), _counts(list(counts.values())) if counts else np.zeros(0, np.int64)
    if ledger is not None:
        if not exact:
            raise ValueError("ledger: a simulation must not be released, so it is not charged")
        claim = parse_charge(sampler.certificate)
        ledger.charge(l0_sensitivity * claim.epsilon, l0_sensitivity * claim.delta, label=label)
    positive = [item for item, value in zip(counts, values, strict=True) if value]
    noisy = perturb(values[values > 0].astype(np.float64), sampler, key=key, exact=exact) if positive else []
    reports = zip(positive, np.asarray(noisy).tolist(), strict=True)
    released = sorted(((-y, repr(item), item) for item, y in reports if y > threshold), key=lambda entry: entry[:2])[:k]
    items = tuple(item for _, _, item in released)
    return UnknownTopK(items, np.array([-negative for negative, _, _ in released]), threshold, charged)


def _truncated(sigma: float, truncation_delta: float, sensitivity: float) -> Additive:
    """Return the noise on a count, with its largest finite loss (T - D/2) D/s^2 as the budget of its claim."""
    T = named.truncation_bound(sigma, truncation_delta, sensitivity)
    least, most = checks.EPSILON_RANGE
    loss = max((T - sensitivity / 2) * sensitivity / sigma**2, least)
    if loss > most:
        raise ValueError(f"sigma: {sigma:g} is too small; a count's loss is up to {loss:.3g}, and {most:g} is the most")
    return named.truncated_gaussian(sigma=sigma, delta=truncation_delta, sensitivity=sensitivity, epsilon=loss)


def _charge(noise: Additive) -> dict[str, float]:
    """Return the arguments of ``known_domain_guarantee`` for a count's noise; claimed Laplace noise costs its claim."""
    names = [name for kind, name in _SCALES.items() if isinstance(noise.noise, kind)]
    if not names:
        kind = type(noise.noise).__name__
        raise TypeError(f"noise: {kind} noise on counts has no known charge; take Laplace or Gaussian noise")
    if names == ["sigma"] or noise.sensitivity is None or noise.epsilon is None or noise.delta is None:
        return {names[0]: float(getattr(noise.noise, names[0]))}
    if noise.sensitivity < 1:
        raise ValueError(f"noise: its claim is for sensitivity {noise.sensitivity:g}, and a count changes by up to 1")
    return {"scale": 1 / float(noise.epsilon), "leak": float(noise.delta)}


def _counts(counts: object) -> np.ndarray:
    array = checks.integers("counts", counts)
    if array.min() < 0 or array.max() >= 1 << 53:
        raise ValueError(f"counts: {array.min()} to {array.max()} is not within 0..2^53")
    return array.astype(np.int64)


def _key(key: Array | None, exact: bool) -> Array:
    if key is None:
        return os_key() if exact else simulation_key(int.from_bytes(os.urandom(4), "little"))
    check_key(key)
    return key
