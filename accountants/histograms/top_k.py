"""What top-k of a histogram costs (Cesar & Rogers 2021, section 6.2), known or unknown domain.

Guarantees are those of the laws of noise, with the discovery that ``dpkernels.exact.choice`` samples exactly.
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
from accountants.histograms.noise import MOST_COUNTS, gaussian_epsilon, gaussian_histogram_rho, inverse
from dpkernels import checks
from dpkernels.mechanisms.named_additive import truncation_bound
from dpkernels.numerics import Real, ndtr


@dataclass(frozen=True)
class Guarantee:
    """Several valid bounds on what one release costs.

    Attributes:
        parts: what was composed, in words.
        delta: the total delta.
        bounds: eps at delta, by the name of the bound that gives it.
    """

    parts: tuple[str, ...]
    delta: Any
    bounds: Mapping[str, Any]

    @property
    def epsilon(self) -> Any:
        """The least of the bounds."""
        return np.minimum.reduce(np.broadcast_arrays(*self.bounds.values()))


def known_domain_guarantee(
    k: Any, discovery_epsilon: Any, delta: Any, *, sigma: Any = None, scale: Any = None, leak: Any = 0.0
) -> Guarantee:
    """The guarantee of ``known_domain_top_k``; arguments broadcast.

    The parts: k picks of eps-bounded range, given the earlier ones; then, given the items, their k counts, each changed
    by at most 1: Gaussian noise with l2 sensitivity sqrt(k), rho = k/(2 s^2), or k times (1/b)-DP Laplace noise.

    Args:
        k: how many items.
        discovery_epsilon: eps of a pick.
        delta: the total.
        sigma: s of Gaussian noise; or
        scale: b of Laplace noise.
        leak: delta of each count's noise besides, for tables of Laplace noise.

    Returns:
        Bounds ``setwise`` (eq. 3), ``concentrated`` (k eps^2/8 and the counts' rho, best order) and ``added`` (pure
        budgets added; infinite for Gaussian noise).

    Raises:
        ValueError: k below 1; discovery_epsilon negative; delta not in (0, 1) or not above the leak of all counts;
            sigma or scale not positive, or not exactly one of them given; leak not in [0, 1).
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
    return Guarantee((f"{k} picks of bounded range {eps}", f"{k} counts, {count.name}"), delta, bounds)


class _Count(NamedTuple):
    """What the noise of one count costs: zCDP, the terms of eq. 3, pure DP."""

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
) -> Guarantee:
    """The guarantee of ``unknown_domain_top_k``.

    Only D0 counts differ, and only those that are positive on both sides matter: the others are never released on
    either. Where both truncated laws are positive, which each is with probability at least 1 - delta_T a count:

    - they are Gaussians on a common interval, (D0 Dinf^2/(2 s^2))-zCDP (bound ``concentrated``);
    - their densities are Gaussian ones over (1 - 2 Phi(-T/s))^D0, so that beyond the leak delta(eps) is at most the
      exact one of Gaussian noise at l2 sensitivity sqrt(D0) Dinf, over that (bound ``gaussian``).

    The threshold, its order and k come after, from released numbers alone.

    Raises:
        ValueError: l0_sensitivity not in 1..10^6; linf_sensitivity or sigma not positive; truncation_delta not in
            (0, 1); delta not below 1 and above the leak 1 - (1 - delta_T)^D0.
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
    return Guarantee((f"{D0} counts, Gaussian, sigma {s:g}, truncated at {T:.6g}",), delta, bounds)
