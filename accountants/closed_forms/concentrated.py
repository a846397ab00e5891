"""Concentrated differential privacy (zCDP), and the set-wise bound for mixed kinds of mechanisms.

rho-zCDP (Bun & Steinke 2016) bounds the Renyi divergence of every order alpha > 1 between neighbours by alpha rho. With
``leak`` = d the guarantee is d-approximate: the bound holds given events of probability at least 1 - d under both
neighbours. Neighbours are as in the definition of the sensitivity. Under adaptive composition rho adds up. Functions
broadcast. Rounding changes the results by parts in 10^12, in either direction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from dpkernels import checks
from dpkernels.numerics import Real
from dpkernels.solve import bisect


def gaussian_rho(sigma: Real, sensitivity: Real = 1.0) -> Real:
    """Return rho = D^2 / (2 s^2) of Gaussian noise, discrete or not, on values or vectors with l2 sensitivity D."""
    checks.positive("sigma", sigma)
    checks.sensitivity(sensitivity)
    return (np.asarray(sensitivity, float) / sigma) ** 2 / 2


def bounded_range_rho(epsilon: Real) -> Real:
    """Return rho = eps^2 / 8 of an eps-bounded-range mechanism (Cesar & Rogers 2021), such as the exponential one."""
    return _budget(epsilon) ** 2 / 8


def pure_rho(epsilon: Real) -> Real:
    """Return rho = eps tanh(eps/2) of an eps-DP mechanism, at most eps^2 / 2; attained by randomised response.

    The worst Renyi divergence is alpha(alpha - 1) times the slope of v -> log cosh(eps sqrt(v)) over the interval
    1/4..(alpha - 1/2)^2, divided by alpha - 1; that function is concave, so the slope is largest as alpha -> 1.
    """
    eps = _budget(epsilon)
    return eps * np.tanh(eps / 2)


def best_epsilon(rho: Real, delta: Real) -> Real:
    """Return eps at delta of rho-zCDP, by the best order (Canonne, Kamath & Steinke 2020, Corollary 13).

        eps = min over alpha > 1 of  alpha rho + ln(1 - 1/alpha) - ln(alpha delta)/(alpha - 1)

    Its derivative is rho + ln(alpha delta)/(alpha - 1)^2. Any alpha gives a valid eps, so search errors are safe.
    """
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    rho, delta = np.broadcast_arrays(_budget(rho, "rho"), np.asarray(delta, float))
    positive_rho = np.where(rho > 0, rho, 1.0)

    def slope(x: Real) -> Real:
        return positive_rho * x**2 + np.log1p(x) + np.log(delta)

    # x = alpha - 1. The slope is positive at the upper end, where some x^2 = -ln(delta).
    x = _root(slope, 1e-30, np.sqrt(-np.log(delta) / positive_rho))
    best = (1 + x) * positive_rho - np.log1p(1 / x) - (np.log1p(x) + np.log(delta)) / x
    return np.where(rho > 0, np.maximum(best, 0.0), 0.0)


def best_delta(rho: Real, epsilon: Real) -> Real:
    """Return delta at eps of rho-zCDP, by the best order (Canonne, Kamath & Steinke 2020, Proposition 12); rounded up.

    With the minimum over alpha > 1,
    ln delta = min (alpha - 1)(alpha rho - eps) - ln(alpha - 1) + alpha ln(1 - 1/alpha).
    """
    rho, eps = np.broadcast_arrays(_budget(rho, "rho"), _budget(epsilon))
    positive_rho = np.where(rho > 0, rho, 1.0)

    def slope(x: Real) -> Real:
        return (2 * x + 1) * positive_rho - eps - np.log1p(1 / x)

    x = _root(slope, 1e-30, np.maximum(1.0, (eps + 1) / (2 * positive_rho)))
    # These terms do not cancel where rho and eps are large. The sum is rounded upwards by the error of each.
    terms = [x * (positive_rho - eps), x**2 * positive_rho, -np.log1p(x), -x * np.log1p(1 / x)]
    size = 1 + sum(np.abs(term) for term in terms)
    exponent = sum(terms[1:], terms[0]) + 1.5 * np.finfo(float).eps * size
    # Delta is positive also where it underflows.
    return np.where(rho > 0, np.maximum(np.exp(np.minimum(exponent, 0.0)), np.finfo(float).tiny), 0.0)


def _root(increasing: Callable[[Real], Real], low: Real, high: Real) -> Real:
    """Return the point between positive ends at which a function becomes positive."""
    low, high = np.broadcast_arrays(np.log(low), np.log(high))
    return np.exp(bisect(lambda t: ~(increasing(np.exp(t)) > 0), low, high, 80)[1])


def _budget(value: Real, name: str = "epsilon") -> Real:
    checks.within(name, value, 0.0, np.finfo(float).max)
    return np.asarray(value, float)


@dataclass(frozen=True)
class Concentrated:
    """A mechanism that is leak-approximately rho-zCDP: rho does not cover events of probability ``leak`` in [0, 1)."""

    rho: Real
    leak: Real = 0.0

    def __post_init__(self) -> None:
        _budget(self.rho, "rho")
        checks.below_one("leak", self.leak)

    def compose(self, other: Concentrated) -> Concentrated:
        """Return the composition, adaptive or not: rho adds up, and so do leaks, minus the probability of both."""
        return Concentrated(self.rho + other.rho, self.leak + (1 - self.leak) * other.leak)

    def repeat(self, times: Real) -> Concentrated:
        """Return the composition of several copies: (times rho, 1 - (1 - leak)^times)."""
        return Concentrated(times * np.asarray(self.rho), -np.expm1(times * np.log1p(-np.asarray(self.leak))))

    def rest(self, delta: Real) -> Real:
        """Return (delta - leak)/(1 - leak), the part of a total delta that remains for events that rho covers."""
        checks.within("delta", delta, 0.0, 1.0, open_ends=True)
        return (np.asarray(delta, float) - self.leak) / (1 - np.asarray(self.leak))

    def epsilon(self, delta: Real) -> Real:
        covered_delta = self.rest(delta)
        is_possible = covered_delta > 0
        return np.where(is_possible, best_epsilon(self.rho, np.where(is_possible, covered_delta, 0.5)), np.inf)

    def delta(self, epsilon: Real) -> Real:
        return self.leak + (1 - np.asarray(self.leak)) * best_delta(self.rho, epsilon)


def setwise_epsilon(
    delta: Real,
    *,
    pure: Iterable[Real] = (),
    bounded_range: Iterable[Real] = (),
    concentrated: Iterable[tuple[Real, Real]] = (),
) -> Real:
    """Return eps at delta of mechanisms whose parameters are fixed beforehand, used adaptively in any order.

    Cesar & Rogers 2021, eq. 3, with E = e^-eps:

        eps_g = sum_DP eps (e^eps - 1)/(e^eps + 1) + sum_BR [eps/(1 - E) - 1 - ln(eps/(1 - E))] + sum_CDP mu
                + sqrt(2 (sum_DP eps^2 + sum_BR eps^2/4 + sum_CDP tau^2) ln(1/delta))

    ``pure`` and ``bounded_range`` hold the eps of their mechanisms. ``concentrated`` holds (mu, tau) of mechanisms
    whose privacy loss has mean at most mu and is tau-subgaussian about it; see ``gaussian_concentration``.
    """
    terms = [pure_terms(_budget(eps, "pure")) for eps in pure]
    terms += [bounded_range_terms(_budget(eps, "bounded_range")) for eps in bounded_range]
    terms += [(_budget(mu, "mu"), _budget(tau, "tau") ** 2) for mu, tau in concentrated]
    return tail_bound(sum(mean for mean, _ in terms), sum(square for _, square in terms), delta)


def setwise_concentrated_delta(rhos: Iterable[Real], epsilon: Real) -> Real:
    """Return a sound delta at eps of zCDP mechanisms whose rho_i are fixed beforehand, used adaptively in any order.

    Cesar & Rogers 2021, Lemma 3.4. With rho = sum rho_i, eps >= rho and y = (eps + rho)/(2 rho), rounded upwards:

        delta = exp(-(eps - rho)^2/(4 rho)) min{sqrt(pi rho), 1/y, 2/(y + sqrt(y^2 + 4/(pi rho)))}

    Each rho_i may be spent once. To set a budget take ``best_delta``, which is smaller by a factor of about 2.5.
    """
    rho_list = [float(checks.number("rhos", rho)) for rho in rhos]
    _budget(np.array(rho_list), "rhos")
    total = math.fsum(rho_list)
    checks.within("epsilon", epsilon, total, np.finfo(float).max)
    if total == 0:
        return np.zeros(np.shape(epsilon))[()]
    # A larger rho has a larger delta: this one is not below the sum.
    rho = np.nextafter(total, np.inf)
    excess = np.maximum(np.asarray(epsilon, float) - rho, 0.0)
    y = 1 + excess / (2 * rho)
    tail = np.exp(-(excess**2 / (4 * rho)) * (1 - 2.0**-48))
    # The third term is below the other two, and below 1, as y is at least 1.
    return np.minimum(tail * 2 / (y + np.sqrt(y**2 + 4 / (np.pi * rho))) * (1 + 2.0**-48), 1.0)[()]


def gaussian_concentration(sigma: Real, sensitivity: Real = 1.0) -> tuple[Real, Real]:
    """Return (mu, tau) = (rho, sqrt(2 rho)) of Gaussian noise, whose loss is normal with these parameters."""
    rho = gaussian_rho(sigma, sensitivity)
    return rho, np.sqrt(2 * rho)


def pure_terms(epsilon: Real) -> tuple[Real, Real]:
    """Return the terms of an eps-DP mechanism in eq. 3: the mean eps (e^eps - 1)/(e^eps + 1) of its loss, and eps^2."""
    return pure_rho(epsilon), _budget(epsilon) ** 2


def bounded_range_terms(epsilon: Real) -> tuple[Real, Real]:
    """Return the terms of an eps-BR mechanism in eq. 3: y - ln(1 + y) with y = eps/(1 - E) - 1, and eps^2/4."""
    eps = _budget(epsilon)
    positive_eps = np.where(eps > 0, eps, 1.0)
    y = np.where(eps > 0, positive_eps / -np.expm1(-positive_eps) - 1, 0.0)
    return y - np.log1p(y), eps**2 / 4


def tail_bound(mean: Real, square: Real, delta: Real) -> Real:
    """Return mean + sqrt(2 square ln(1/delta)), which a martingale of losses exceeds with probability at most delta."""
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    return mean + np.sqrt(2 * np.asarray(square) * np.log(1 / np.asarray(delta, float)))
