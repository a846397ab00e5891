"""The privacy cost of noise on counts, and of the largest of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from accountants.closed_forms import concentrated
from accountants.closed_forms.concentrated import Concentrated
from accountants.closed_forms.pure import pure_delta
from accountants.dominating_pairs.registry import noise_pairs
from accountants.profile import inverse_profile
from dpkernels import checks
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.mechanisms import named
from dpkernels.numerics import Real, ndtr

MOST_COUNTS = 10**6  # The most mechanisms that ``pure_delta`` composes.


def gaussian_histogram_rho(l0_sensitivity: int, linf_sensitivity: Real, sigma: Real) -> Real:
    """Return rho = D0 Dinf^2/(2 s^2) of Gaussian noise on every count, of l2 sensitivity sqrt(D0) Dinf (Lemma 6.3)."""
    checks.positive("l0_sensitivity", l0_sensitivity)
    return np.asarray(l0_sensitivity, float) * concentrated.gaussian_rho(sigma, linf_sensitivity)


def laplace_histogram_delta(l0_sensitivity: int, linf_sensitivity: float, scale: float, epsilon: Real) -> Real:
    """Return an upper bound of delta at eps of Laplace noise of scale b: D0 counts, each (Dinf/b)-DP (Lemma 6.2)."""
    checks.positive("linf_sensitivity", linf_sensitivity)
    checks.positive("scale", scale)
    k = checks.integer_in("l0_sensitivity", l0_sensitivity, 1, MOST_COUNTS)
    return pure_delta(linf_sensitivity / np.asarray(scale, float), k, epsilon)


@dataclass(frozen=True)
class HistogramGuarantee:
    """Several valid bounds on the privacy cost of one release: eps at the total ``delta``, by the name of the bound."""

    parts: tuple[str, ...]
    delta: Any
    bounds: Mapping[str, Real]

    @property
    def epsilon(self) -> Real:
        return np.minimum.reduce(np.broadcast_arrays(*self.bounds.values()))


def known_domain_guarantee(
    k: Real, discovery_epsilon: Real, delta: Real, *, sigma: Any = None, scale: Real | None = None, leak: Real = 0.0
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
    pure: Real
    if scale is None:
        rho = concentrated.gaussian_rho(sigma)
        count, terms, pure = f"Gaussian noise, sigma {sigma}", (rho, 2 * rho), np.inf
    else:
        checks.positive("scale", scale)
        pure = 1 / np.asarray(scale, float)
        count, rho, terms = f"Laplace noise, scale {scale}", concentrated.pure_rho(pure), concentrated.pure_terms(pure)
    charge = Concentrated(k * (concentrated.bounded_range_rho(eps) + rho), Concentrated(0.0, leak).repeat(k).leak)
    checks.within("delta", delta, np.max(charge.leak), 1.0, open_ends=True)
    mean, square = (
        k * (pick + of_count) for pick, of_count in zip(concentrated.bounded_range_terms(eps), terms, strict=True)
    )
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
    checks.integer_in("l0_sensitivity", l0_sensitivity, 1, MOST_COUNTS)
    checks.positive("linf_sensitivity", linf_sensitivity)
    checks.positive("sigma", sigma)
    checks.within("truncation_delta", truncation_delta, 0.0, 1.0, open_ends=True)
    D0, Dinf, s = l0_sensitivity, linf_sensitivity, sigma
    T = named.truncation_bound(s, truncation_delta, Dinf)
    charge = Concentrated(gaussian_histogram_rho(D0, Dinf, s), Concentrated(0.0, truncation_delta).repeat(D0).leak)
    checks.within("delta", delta, float(charge.leak), 1.0, open_ends=True)
    kernel_delta = float((delta - charge.leak) * (1 - 2 * ndtr(-T / s)) ** D0)
    bounds = {
        "concentrated": float(charge.epsilon(delta)),
        "gaussian": float(inverse_profile(noise_pairs(Gaussian(1.0), math.sqrt(D0) * Dinf / s), kernel_delta)),
    }
    return HistogramGuarantee((f"{D0} counts, Gaussian, sigma {s:g}, truncated at {T:.6g}",), delta, bounds)
