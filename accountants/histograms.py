"""Counts and the largest of them (Cesar & Rogers 2021, section 6): privacy cost, least noise, and release of the top k.

Unless a function says otherwise, neighbours differ in at most D0 counts (l0 sensitivity), by at most Dinf each (linf
sensitivity). ``delta`` is in (0, 1), and numbers of counts are in 1..10^6.

Guarantees are those of the distributions of noise in real arithmetic. Discovery is sampled exactly
(``dpkernels.exact.choice``), and counts are released by ``perturb``, from integer tables close to the distributions.
Laplace noise is charged by the claim that ``perturb`` certifies, so its tables are covered. For Gaussian noise,
truncated or not, the difference between a table and its distribution is not covered. Timing and other side channels are
not covered either.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import jax
import numpy as np
from jax import Array

from accountants.closed_forms import concentrated
from accountants.closed_forms.concentrated import Concentrated
from accountants.closed_forms.pure import pure_delta
from accountants.dominating_pairs.registry import noise_pairs
from accountants.profile import epsilon as realised_epsilon
from accountants.profile import epsilon_of
from accountants.scale import check_target, smallest_scale
from dpkernels import checks
from dpkernels.budgets.filters import parse_charge
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.exact.choice import exponential_top_k
from dpkernels.exact.registry import exact_sampler
from dpkernels.mechanisms import named
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import ndtr
from dpkernels.random.keys import check_key, os_key, release_key_bytes, simulation_key
from dpkernels.release.charges import Chargeable
from dpkernels.release.perturb import perturb
from dpkernels.solve import root

MOST_COUNTS = 10**6  # The most mechanisms that ``pure_delta`` composes.
# The range in which the eps of a pick is searched; a budget that the lower end exceeds is rejected.
_PICKS = 1e-6, 10.0
# Noise on counts: the distribution, the name of its scale, and the additional delta of a count's table.
_NOISES = {"gaussian": (Gaussian, "sigma", 0.0), "laplace": (Laplace, "scale", 0.0)}


def gaussian_histogram_rho(l0_sensitivity: Any, linf_sensitivity: Any, sigma: Any) -> Any:
    """Return rho = D0 Dinf^2/(2 s^2) of Gaussian noise on every count, of l2 sensitivity sqrt(D0) Dinf (Lemma 6.3)."""
    checks.positive("l0_sensitivity", l0_sensitivity)
    return np.asarray(l0_sensitivity, float) * concentrated.gaussian_rho(sigma, linf_sensitivity)


def laplace_histogram_delta(l0_sensitivity: int, linf_sensitivity: float, scale: float, epsilon: Any) -> Any:
    """Return an upper bound of delta at eps of Laplace noise of scale b: D0 counts, each (Dinf/b)-DP (Lemma 6.2)."""
    checks.positive("linf_sensitivity", linf_sensitivity)
    checks.positive("scale", scale)
    k = checks.whole("l0_sensitivity", l0_sensitivity, 1, MOST_COUNTS)
    return pure_delta(linf_sensitivity / np.asarray(scale, float), k, epsilon)


@dataclass(frozen=True)
class HistogramNoise:
    """The least noise of both kinds for one budget: s of Gaussian noise and b of Laplace noise."""

    sigma: float
    scale: float

    @property
    def gaussian_variance(self) -> float:
        return self.sigma**2

    @property
    def laplace_variance(self) -> float:
        return 2 * self.scale**2


def histogram_noise(l0_sensitivity: int, linf_sensitivity: float, epsilon: float, delta: float) -> HistogramNoise:
    """Return the least sigma and the least scale, rounded up, of noise on every count of a histogram for (eps, delta).

    Gaussian noise is exact (Balle & Wang 2018) at l2 sensitivity sqrt(D0) Dinf; see also ``laplace_histogram_delta``.
    """
    checks.positive("linf_sensitivity", linf_sensitivity)
    checks.epsilon(epsilon)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    D0, Dinf = checks.whole("l0_sensitivity", l0_sensitivity, 1, MOST_COUNTS), linf_sensitivity
    share = epsilon / D0

    def excess(b: float, _: Any) -> float:
        return float(pure_delta(share / b, D0, epsilon)) - delta

    # From b = Dinf D0/eps on, the sum of all budgets is at most eps.
    b = root(excess, (), 1 + 1e-12, 1e-6, rtol=1e-13)
    return HistogramNoise(float(smallest_scale(Gaussian(1.0), epsilon, delta, math.sqrt(D0) * Dinf)), b * Dinf / share)


def gaussian_crossing(epsilon: float, delta: float, most: int = 10_000) -> int | None:
    """Return the smallest D0, if any up to ``most``, at which Gaussian noise has the lower variance, for any Dinf."""

    def better(D0: int) -> bool:
        noise = histogram_noise(D0, 1.0, epsilon, delta)
        return noise.gaussian_variance < noise.laplace_variance

    checks.whole("most", most, 1, MOST_COUNTS)
    return next((D0 for D0 in range(1, most + 1) if better(D0)), None)


@dataclass(frozen=True)
class HistogramGuarantee:
    """Several valid bounds on the privacy cost of one release: eps at the total ``delta``, by the name of the bound."""

    parts: tuple[str, ...]
    delta: Any
    bounds: Mapping[str, Any]

    @property
    def epsilon(self) -> Any:
        return np.minimum.reduce(np.broadcast_arrays(*self.bounds.values()))


def known_domain_guarantee(
    k: Any, discovery_epsilon: Any, delta: Any, *, sigma: Any = None, scale: Any = None, leak: Any = 0.0
) -> HistogramGuarantee:
    """Return the guarantee of ``known_domain_top_k``, from exactly one of sigma and scale; arguments broadcast.

    It composes k picks of eps-bounded range, given the earlier ones, and then, given the items, their k counts. Each
    count changes by at most 1. The noise is Gaussian with l2 sensitivity sqrt(k), rho = k/(2 s^2), or Laplace, k times
    (1/b)-DP. ``leak`` is an additional delta of each count's noise, for tables of Laplace noise; delta must be above
    that of all counts. The bounds are ``setwise`` (eq. 3), ``concentrated`` (k eps^2/8 and the counts' rho, best order)
    and ``added`` (the sum of pure budgets; infinite for Gaussian noise).
    """
    if (sigma is None) == (scale is None):
        raise ValueError(f"sigma, scale: {sigma}, {scale}; exactly one is needed")
    checks.within("k", k, 1, np.inf)
    checks.within("discovery_epsilon", discovery_epsilon, 0.0, np.finfo(float).max)
    k, eps = np.asarray(k), discovery_epsilon
    # Of one count: the description, rho, the terms of eq. 3, and the pure budget.
    pure: Any
    if scale is None:
        rho = concentrated.gaussian_rho(sigma)
        count, terms, pure = f"Gaussian noise, sigma {sigma}", (rho, 2 * rho), np.inf
    else:
        checks.positive("scale", scale)
        pure = 1 / np.asarray(scale, float)
        count, rho, terms = f"Laplace noise, scale {scale}", concentrated.pure_rho(pure), concentrated.pure_terms(pure)
    charge = Concentrated(k * (concentrated.bounded_range_rho(eps) + rho), Concentrated(0.0, leak).repeat(k).leak)
    checks.within("delta", delta, np.max(charge.leak), 1.0, open_ends=True)
    mean, square = (k * (pick + one) for pick, one in zip(concentrated.bounded_range_terms(eps), terms, strict=True))
    bounds = {
        "setwise": concentrated.tail_bound(mean, square, charge.rest(delta)),
        "concentrated": charge.epsilon(delta),
        "added": k * (np.asarray(eps, float) + pure),
    }
    return HistogramGuarantee((f"{k} picks of bounded range {eps}", f"{k} counts, {count}"), delta, bounds)


def unknown_domain_guarantee(
    l0_sensitivity: int, linf_sensitivity: float, sigma: float, truncation_delta: float, delta: float
) -> HistogramGuarantee:
    """Return the guarantee of ``unknown_domain_top_k``; delta must be above the leak 1 - (1 - delta_T)^D0.

    Only D0 counts differ, and only those that are positive for both neighbours matter: the others are never released
    for either. The truncated distributions of a count are both positive except with probability at most delta_T under
    each. Where they are both positive:

    - they are Gaussians on a common interval, (D0 Dinf^2/(2 s^2))-zCDP (bound ``concentrated``);
    - their densities are Gaussian densities over (1 - 2 Phi(-T/s))^D0, so that beyond the leak delta(eps) is at most
      the exact one of Gaussian noise at l2 sensitivity sqrt(D0) Dinf, divided by that (bound ``gaussian``).

    The threshold, the order of items and k use released numbers alone.
    """
    checks.whole("l0_sensitivity", l0_sensitivity, 1, MOST_COUNTS)
    checks.positive("linf_sensitivity", linf_sensitivity)
    checks.positive("sigma", sigma)
    checks.within("truncation_delta", truncation_delta, 0.0, 1.0, open_ends=True)
    D0, Dinf, s = l0_sensitivity, linf_sensitivity, sigma
    T = named.truncation_bound(s, truncation_delta, Dinf)
    charge = Concentrated(gaussian_histogram_rho(D0, Dinf, s), Concentrated(0.0, truncation_delta).repeat(D0).leak)
    checks.within("delta", delta, float(charge.leak), 1.0, open_ends=True)
    rest = float((delta - charge.leak) * (1 - 2 * ndtr(-T / s)) ** D0)
    bounds = {
        "concentrated": float(charge.epsilon(delta)),
        "gaussian": float(epsilon_of(noise_pairs(Gaussian(1.0), math.sqrt(D0) * Dinf / s), rest)),
    }
    return HistogramGuarantee((f"{D0} counts, Gaussian, sigma {s:g}, truncated at {T:.6g}",), delta, bounds)


@dataclass(frozen=True)
class KnownDomain:
    """The arguments of ``known_domain_top_k`` for a budget: eps of each pick, and the noise on each count, claimed."""

    discovery_epsilon: float
    noise: Additive


def known_domain(
    k: int,
    *,
    epsilon: float,
    delta: float,
    noise: str = "gaussian",
    discovery_epsilon: float | None = None,
    share: float = 0.5,
) -> KnownDomain:
    """Return discovery and noise of the top k of a known domain that are (eps, delta)-DP all together.

    For neighbours, and for what is covered, see ``known_domain_top_k``; the bounds are ``known_domain_guarantee``'s.
    The guarantee that is computed for both scales is at most eps.

    Args:
        k: the number of items, in 1..10^6.
        epsilon: eps of all picks and counts, in [0.01, 20].
        delta: delta of all picks and counts, in (0, 1).
        noise: "gaussian" or "laplace".
        discovery_epsilon: eps of each pick; the noise is the least that the rest of the budget allows. The default
            follows from ``share``.
        share: the share of the zCDP budget for the picks: eps^2/8 each, against 1/(2 s^2) for a count (Laplace: at most
            1/(2 b^2)).

    Raises:
        ValueError: an argument is out of range, or the picks alone exceed the budget.
        TypeError: k is not an integer.

    Example:
        >>> plan = known_domain(10, epsilon=2.0, delta=1e-5)
        >>> round(plan.discovery_epsilon, 3), round(plan.noise.noise.sigma, 2)
        (0.208, 9.61)
    """
    k = checks.whole("k", k, 1, MOST_COUNTS)
    check_target(epsilon, delta)
    checks.epsilon(epsilon)
    checks.within("share", share, 0.0, 1.0, open_ends=True)
    checks.one_of("noise", noise, _NOISES)
    _, name, leak = _NOISES[noise]
    ratio = 2 * math.sqrt(share / (1 - share))

    def settings(x: float) -> tuple[float, float]:
        """Return eps of a pick and the scale, from the unknown of the search: eps of a pick, or else 1/scale."""
        return (x, ratio / x) if discovery_epsilon is None else (discovery_epsilon, 1 / x)

    def excess(x: float, _: Any = None) -> float:
        pick, scale = settings(x)
        return float(known_domain_guarantee(k, pick, delta, **{name: scale}, leak=leak).epsilon) - epsilon

    if discovery_epsilon is None:
        ends, given = _PICKS, f"epsilon, delta: {epsilon:g}, {delta:g}; {k} picks of {_PICKS[0]:g}"
    else:
        checks.positive("discovery_epsilon", discovery_epsilon)
        ends, given = (1e-9, 1e3), f"discovery_epsilon: {discovery_epsilon:g}; {k} picks alone"
    if (most := excess(ends[0])) > 0:  # The feasible end of a search is not evaluated by it.
        raise ValueError(f"{given} have eps {epsilon + most:.6g}")
    pick, scale = settings(root(excess, (), *ends, rtol=1e-12))
    return KnownDomain(pick, _claimed(noise, scale, delta / k))


def _claimed(noise: str, scale: float, delta: float) -> Additive:
    if noise == "laplace":
        return named.laplace(epsilon=1 / scale)
    made = named.gaussian(sigma=scale, sensitivity=1.0)
    own = realised_epsilon(made, 0.99 * delta)
    return made.claim(sensitivity=1.0, epsilon=max(own, checks.EPSILON_RANGE[0]), delta=delta)


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
    k = len(counts) if k is None else checks.whole("k", k, 1, MOST_COUNTS)
    charged = unknown_domain_guarantee(l0_sensitivity, linf_sensitivity, sigma, truncation_delta, delta)
    mechanism = _truncated(sigma, truncation_delta, linf_sensitivity)
    if exact:
        sampler = exact_sampler(mechanism)
        # The largest released report minus its count is the table's last value plus one bin of rounding.
        largest = sampler.certificate.highest + sampler.certificate.table.bin_width
    else:
        sampler, largest = mechanism, Fraction(named.truncation_bound(sigma, truncation_delta, linf_sensitivity))
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
    above = sorted(((-y, repr(item), item) for item, y in reports if y > threshold), key=lambda entry: entry[:2])[:k]
    items = tuple(item for _, _, item in above)
    return UnknownTopK(items, np.array([-negative for negative, _, _ in above]), threshold, charged)


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
    names = [name for kind, name, _ in _NOISES.values() if isinstance(noise.noise, kind)]
    if not names:
        kind = type(noise.noise).__name__
        raise TypeError(f"noise: {kind} noise on counts has no known charge; take Laplace or Gaussian noise")
    if names == ["sigma"] or noise.sensitivity is None or noise.epsilon is None or noise.delta is None:
        return {names[0]: float(getattr(noise.noise, names[0]))}
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
