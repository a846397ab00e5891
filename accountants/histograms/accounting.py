"""The privacy cost of a histogram's counts and top k, and the least noise (Cesar & Rogers 2021, section 6).

Unless a function says otherwise, neighbours differ in at most D0 counts (l0 sensitivity), by at most Dinf each (linf
sensitivity). Guarantees are those of the distributions of noise in real arithmetic, with the discovery that
``dpkernels.exact.choice`` samples exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from accountants.closed_forms.concentrated import (
    Concentrated,
    bounded_range_rho,
    bounded_range_terms,
    gaussian_rho,
    pure_rho,
    pure_terms,
    tail_bound,
)
from accountants.closed_forms.pure import pure_delta
from accountants.dominating_pairs.registry import noise_pairs
from accountants.profile import epsilon as realised_epsilon
from accountants.profile import epsilon_of
from accountants.scale import check_target, smallest_scale
from dpkernels import checks
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.mechanisms import named_additive as named
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.named_additive import truncation_bound
from dpkernels.numerics import Real, ndtr
from dpkernels.solve import root

MOST_COUNTS = 10**6  # The most mechanisms that ``pure_delta`` composes.


def gaussian_histogram_rho(l0_sensitivity: Any, linf_sensitivity: Any, sigma: Any) -> Any:
    """Return rho = D0 Dinf^2/(2 s^2) of Gaussian noise on every count (Cesar & Rogers 2021, Lemma 6.3).

    Neighbours differ in at most D0 counts, by at most Dinf each, so that the l2 sensitivity is sqrt(D0) Dinf.

    Raises:
        ValueError: an argument is not positive.
    """
    checks.positive("l0_sensitivity", l0_sensitivity)
    return np.asarray(l0_sensitivity, float) * gaussian_rho(sigma, linf_sensitivity)


def laplace_histogram_delta(l0_sensitivity: int, linf_sensitivity: float, scale: float, epsilon: Any) -> Any:
    """Return delta at eps of Laplace noise of scale b on every count (Cesar & Rogers 2021, Lemma 6.2).

    Neighbours are those of ``gaussian_histogram_rho``. Each of the D0 counts is (Dinf/b)-DP, and ``pure_delta`` is the
    least delta that follows from that. The true delta of Laplace noise is lower.

    Raises:
        ValueError: l0_sensitivity is not in 1..10^6, linf_sensitivity or scale is not positive, or epsilon is NaN.
    """
    checks.positive("linf_sensitivity", linf_sensitivity)
    k = checks.whole("l0_sensitivity", l0_sensitivity, 1, MOST_COUNTS)
    return pure_delta(linf_sensitivity * inverse("scale", scale), k, epsilon)


@dataclass(frozen=True)
class HistogramNoise:
    """The least noise of both kinds for one budget.

    Attributes:
        sigma: s of Gaussian noise.
        scale: b of Laplace noise.
    """

    sigma: float
    scale: float

    @property
    def gaussian_variance(self) -> float:
        """Return s^2."""
        return self.sigma**2

    @property
    def laplace_variance(self) -> float:
        """Return 2 b^2."""
        return 2 * self.scale**2


def histogram_noise(l0_sensitivity: int, linf_sensitivity: float, epsilon: float, delta: float) -> HistogramNoise:
    """Return the least sigma and the least scale of noise on every count of a histogram for (eps, delta).

    For Gaussian noise it is exact (Balle & Wang 2018) at l2 sensitivity sqrt(D0) Dinf. For Laplace noise it uses
    ``laplace_histogram_delta``. Both roots are rounded conservatively, within 1e-12.

    Raises:
        ValueError: l0_sensitivity is not in 1..10^6, linf_sensitivity is not positive, epsilon is not in [0.01, 20], or
            delta is not in (0, 1).
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
    """Return the smallest D0 at which Gaussian noise has the lower variance of ``histogram_noise``, for any Dinf.

    The result is None if there is none up to ``most``.

    Raises:
        ValueError: epsilon is not in [0.01, 20], delta is not in (0, 1), or most is not in 1..10^6.
    """

    def better(D0: int) -> bool:
        noise = histogram_noise(D0, 1.0, epsilon, delta)
        return noise.gaussian_variance < noise.laplace_variance

    checks.whole("most", most, 1, MOST_COUNTS)
    return next((D0 for D0 in range(1, most + 1) if better(D0)), None)


def gaussian_epsilon(ratio: float, delta: float) -> float:
    """Return the least eps of Gaussian noise at delta, where D/s is ``ratio``."""
    return float(epsilon_of(noise_pairs(Gaussian(1.0), ratio), delta))


def inverse(name: str, value: Any) -> Any:
    """Return 1/value of a positive argument.

    Raises:
        ValueError: the value is not positive.
    """
    checks.positive(name, value)
    return 1 / np.asarray(value, float)


@dataclass(frozen=True)
class HistogramGuarantee:
    """Several valid bounds on the privacy cost of one release.

    Attributes:
        parts: descriptions of the composed mechanisms.
        delta: the total delta.
        bounds: eps at delta, by the name of the bound that gives it.
    """

    parts: tuple[str, ...]
    delta: Any
    bounds: Mapping[str, Any]

    @property
    def epsilon(self) -> Any:
        """Return the least of the bounds."""
        return np.minimum.reduce(np.broadcast_arrays(*self.bounds.values()))


def known_domain_guarantee(
    k: Any, discovery_epsilon: Any, delta: Any, *, sigma: Any = None, scale: Any = None, leak: Any = 0.0
) -> HistogramGuarantee:
    """Return the guarantee of ``known_domain_top_k``; arguments broadcast.

    It composes k picks of eps-bounded range, given the earlier ones, and then, given the items, their k counts. Each
    count changes by at most 1. The noise is Gaussian with l2 sensitivity sqrt(k), rho = k/(2 s^2), or Laplace, k times
    (1/b)-DP.

    Args:
        k: the number of items.
        discovery_epsilon: eps of a pick.
        delta: the total delta.
        sigma: s of Gaussian noise; or
        scale: b of Laplace noise.
        leak: an additional delta of each count's noise, for tables of Laplace noise.

    Returns:
        The bounds ``setwise`` (eq. 3), ``concentrated`` (k eps^2/8 and the counts' rho, best order) and ``added`` (the
        sum of pure budgets; infinite for Gaussian noise).

    Raises:
        ValueError: k is below 1, discovery_epsilon is negative, delta is not in (0, 1) or not above the leak of all
            counts, sigma or scale is not positive, or not exactly one of them is given, or leak is not in [0, 1).
    """
    if (sigma is None) == (scale is None):
        raise ValueError(f"sigma, scale: {sigma}, {scale}; exactly one is needed")
    checks.within("k", k, 1, np.inf)
    checks.within("discovery_epsilon", discovery_epsilon, 0.0, np.finfo(float).max)
    k, eps, pick = np.asarray(k), discovery_epsilon, bounded_range_terms(discovery_epsilon)
    count = _gaussian_count(sigma) if scale is None else _laplace_count(scale)
    charge = Concentrated(k * (bounded_range_rho(eps) + count.rho), Concentrated(0.0, leak).repeat(k).leak)
    checks.within("delta", delta, np.max(charge.leak), 1.0, open_ends=True)
    bounds = {
        "setwise": tail_bound(k * (pick[0] + count.mean), k * (pick[1] + count.square), charge.rest(delta)),
        "concentrated": charge.epsilon(delta),
        "added": k * (np.asarray(eps, float) + count.pure),
    }
    return HistogramGuarantee((f"{k} picks of bounded range {eps}", f"{k} counts, {count.name}"), delta, bounds)


class _Count(NamedTuple):
    """The privacy cost of the noise of one count: zCDP, the terms of eq. 3, pure DP."""

    name: str
    rho: Any
    mean: Any
    square: Any
    pure: Any


def _gaussian_count(sigma: Any) -> _Count:
    rho = gaussian_rho(sigma)
    return _Count(f"Gaussian noise, sigma {sigma}", rho, rho, 2 * rho, np.inf)


def _laplace_count(scale: Real) -> _Count:
    eps0 = inverse("scale", scale)
    return _Count(f"Laplace noise, scale {scale}", pure_rho(eps0), *pure_terms(eps0), eps0)


def unknown_domain_guarantee(
    l0_sensitivity: int, linf_sensitivity: float, sigma: float, truncation_delta: float, delta: float
) -> HistogramGuarantee:
    """Return the guarantee of ``unknown_domain_top_k``.

    Only D0 counts differ, and only those that are positive for both neighbours matter: the others are never released
    for either. The truncated distributions of a count are both positive except with probability at most delta_T under
    each. Where they are both positive:

    - they are Gaussians on a common interval, (D0 Dinf^2/(2 s^2))-zCDP (bound ``concentrated``);
    - their densities are Gaussian densities over (1 - 2 Phi(-T/s))^D0, so that beyond the leak delta(eps) is at most
      the exact one of Gaussian noise at l2 sensitivity sqrt(D0) Dinf, divided by that (bound ``gaussian``).

    The threshold, the order of items and k use released numbers alone.

    Raises:
        ValueError: l0_sensitivity is not in 1..10^6, linf_sensitivity or sigma is not positive, truncation_delta is not
            in (0, 1), or delta is not below 1 and above the leak 1 - (1 - delta_T)^D0.
    """
    checks.whole("l0_sensitivity", l0_sensitivity, 1, MOST_COUNTS)
    checks.positive("linf_sensitivity", linf_sensitivity)
    checks.positive("sigma", sigma)
    checks.within("truncation_delta", truncation_delta, 0.0, 1.0, open_ends=True)
    D0, Dinf, s = l0_sensitivity, linf_sensitivity, sigma
    T = truncation_bound(s, truncation_delta, Dinf)
    charge = Concentrated(gaussian_histogram_rho(D0, Dinf, s), Concentrated(0.0, truncation_delta).repeat(D0).leak)
    checks.within("delta", delta, float(charge.leak), 1.0, open_ends=True)
    rest = float((delta - charge.leak) * (1 - 2 * ndtr(-T / s)) ** D0)
    bounds = {
        "concentrated": float(charge.epsilon(delta)),
        "gaussian": gaussian_epsilon(math.sqrt(D0) * Dinf / s, rest),
    }
    return HistogramGuarantee((f"{D0} counts, Gaussian, sigma {s:g}, truncated at {T:.6g}",), delta, bounds)


# The range in which the eps of a pick is searched; a budget that the lower end exceeds is rejected.
_SMALLEST_PICK, _LARGEST_PICK = 1e-6, 10.0
# The argument of ``known_domain_guarantee`` for the scale of the noise, and its other arguments.
_ARGUMENTS: dict[str, tuple[str, dict[str, float]]] = {
    "gaussian": ("sigma", {}),
    "laplace": ("scale", {"leak": named.TABLE_DELTA}),
}


@dataclass(frozen=True)
class KnownDomain:
    """The arguments of ``known_domain_top_k`` for a budget.

    Attributes:
        discovery_epsilon: eps of each pick.
        noise: the noise on each count, with a claim for it.
    """

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

    Args:
        k: the number of items.
        epsilon: eps of all picks and counts.
        delta: delta of all picks and counts.
        noise: "gaussian" or "laplace".
        discovery_epsilon: eps of each pick; the noise is the least that the rest of the budget allows. The default
            follows from ``share``.
        share: the share of the zCDP budget for the picks: eps^2/8 each, against 1/(2 s^2) for a count (Laplace: at most
            1/(2 b^2)).

    Returns:
        Both scales; the guarantee that is computed for them is at most eps.

    Raises:
        ValueError: k is not in 1..10^6, epsilon is not in [0.01, 20], delta or share is not in (0, 1), the name of the
            noise is unknown, discovery_epsilon is not positive, or the picks alone exceed the budget.
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
    checks.one_of("noise", noise, _ARGUMENTS)
    name, more = _ARGUMENTS[noise]
    ratio = 2 * math.sqrt(share / (1 - share))

    def excess(pick: Any, scale: Real) -> Any:
        return float(known_domain_guarantee(k, pick, delta, **{name: scale}, **more).epsilon) - epsilon

    if discovery_epsilon is None:
        pick = root(lambda pick, _: excess(pick, ratio / pick), (), _SMALLEST_PICK, _LARGEST_PICK, rtol=1e-12)
        if (most := excess(pick, ratio / pick)) > 0:  # The safe end of the search is not looked at by it.
            raise ValueError(
                f"epsilon, delta: {epsilon:g}, {delta:g}; {k} picks of {pick:g} have eps {epsilon + most:.6g}"
            )
        return KnownDomain(pick, _count(noise, ratio / pick, delta / k))
    checks.positive("discovery_epsilon", discovery_epsilon)
    widest = 1e9
    if (most := excess(discovery_epsilon, widest)) > 0:
        raise ValueError(f"discovery_epsilon: {discovery_epsilon:g}; {k} picks alone have eps {epsilon + most:.6g}")
    inverse = root(lambda inverse, _: excess(discovery_epsilon, 1 / inverse), (), 1 / widest, 1e3, rtol=1e-12)
    return KnownDomain(discovery_epsilon, _count(noise, 1 / inverse, delta / k))


def _count(noise: str, scale: float, delta: float) -> Additive:
    """Return the noise of a count, with the claim that its release needs."""
    if noise == "laplace":
        return named.laplace(epsilon=1 / scale)
    made = named.gaussian(sigma=scale, sensitivity=1.0)
    own = realised_epsilon(made, 0.99 * delta)
    return made.claim(sensitivity=1.0, epsilon=max(own, checks.EPSILON_RANGE[0]), delta=delta)
