"""Which noise for the counts of a histogram: Gaussian or Laplace (Cesar & Rogers 2021, Lemmas 6.1 to 6.3).

Lemma 6.1 is the analytic Gaussian of all counts together, 6.2 Laplace noise, 6.3 Gaussian noise as zCDP.

Neighbouring, throughout: at most D0 counts differ (l0 sensitivity), by at most Dinf each (linf sensitivity). Guarantees
are those of the laws of noise, in real arithmetic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from accountants.closed_forms.concentrated import gaussian_rho
from accountants.closed_forms.pure import pure_delta
from accountants.dominating_pairs.registry import noise_pairs
from accountants.profile import epsilon_of
from accountants.scale import smallest_scale
from dpkernels import checks
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.solve import root

MOST_COUNTS = 10**6  # As many mechanisms as ``pure_delta`` composes.


def gaussian_histogram_rho(l0_sensitivity: Any, linf_sensitivity: Any, sigma: Any) -> Any:
    """rho = D0 Dinf^2/(2 s^2) of Gaussian noise on every count (Cesar & Rogers 2021, Lemma 6.3).

    Neighbouring: at most D0 counts differ, by at most Dinf each, so that the l2 sensitivity is sqrt(D0) Dinf.

    Raises:
        ValueError: an argument is not positive.
    """
    checks.positive("l0_sensitivity", l0_sensitivity)
    return np.asarray(l0_sensitivity, float) * gaussian_rho(sigma, linf_sensitivity)


def laplace_histogram_delta(l0_sensitivity: int, linf_sensitivity: float, scale: float, epsilon: Any) -> Any:
    """delta at eps of Laplace noise of scale b on every count (Cesar & Rogers 2021, Lemma 6.2).

    Neighbouring as for ``gaussian_histogram_rho``. Each of the D0 counts is (Dinf/b)-DP, and ``pure_delta`` is the
    least that follows from that; the noise being Laplace, the true delta is lower.

    Raises:
        ValueError: l0_sensitivity not in 1..10^6; linf_sensitivity or scale not positive; epsilon NaN.
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
        """s^2."""
        return self.sigma**2

    @property
    def laplace_variance(self) -> float:
        """2 b^2."""
        return 2 * self.scale**2


def histogram_noise(l0_sensitivity: int, linf_sensitivity: float, epsilon: float, delta: float) -> HistogramNoise:
    """The least sigma and the least scale that give every count of a histogram noise for (eps, delta).

    Gaussian: exact (Balle & Wang 2018) at l2 sensitivity sqrt(D0) Dinf. Laplace: ``laplace_histogram_delta``, optimal
    for what it uses. Both from the safe side of their root, within 1e-12.

    Raises:
        ValueError: l0_sensitivity not in 1..10^6; linf_sensitivity not positive; epsilon not in [0.01, 20]; delta not
            in (0, 1).
    """
    checks.positive("linf_sensitivity", linf_sensitivity)
    checks.epsilon(epsilon)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    D0, Dinf = checks.whole("l0_sensitivity", l0_sensitivity, 1, MOST_COUNTS), linf_sensitivity
    share = epsilon / D0

    def excess(b: float, _: Any) -> float:
        return float(pure_delta(share / b, D0, epsilon)) - delta

    # From b = Dinf D0/eps on, all budgets added are within eps.
    b = root(excess, (), 1 + 1e-12, 1e-6, rtol=1e-13)
    return HistogramNoise(float(smallest_scale(Gaussian(1.0), epsilon, delta, math.sqrt(D0) * Dinf)), b * Dinf / share)


def gaussian_crossing(epsilon: float, delta: float, most: int = 10_000) -> int | None:
    """The smallest D0 at which Gaussian noise has the lower variance of ``histogram_noise``, whatever Dinf is.

    None where there is none up to ``most``.

    Raises:
        ValueError: epsilon not in [0.01, 20]; delta not in (0, 1); most not in 1..10^6.
    """

    def better(D0: int) -> bool:
        noise = histogram_noise(D0, 1.0, epsilon, delta)
        return noise.gaussian_variance < noise.laplace_variance

    checks.whole("most", most, 1, MOST_COUNTS)
    return next((D0 for D0 in range(1, most + 1) if better(D0)), None)


def gaussian_epsilon(ratio: float, delta: float) -> float:
    """The least eps of Gaussian noise at delta, D/s being ``ratio``."""
    return float(epsilon_of(noise_pairs(Gaussian(1.0), ratio), delta))


def inverse(name: str, value: Any) -> Any:
    """1/value of a positive argument.

    Raises:
        ValueError: not positive.
    """
    checks.positive(name, value)
    return 1 / np.asarray(value, float)
