"""The least noise on counts, and discovery and noise of the largest of them, for a target (epsilon, delta)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from accountants.calibrate.scale import check_target, smallest_scale
from accountants.closed_forms.pure import pure_delta
from accountants.histograms.guarantees import MOST_COUNTS, known_domain_guarantee
from accountants.profile import epsilon as realised_epsilon
from dpkernels import checks
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.mechanisms import named
from dpkernels.mechanisms.additive import Additive
from dpkernels.solve import root

__all__ = ["HistogramNoise", "KnownDomain", "gaussian_crossing", "histogram_noise", "known_domain"]

# The range in which the eps of a pick is searched; a budget that the lower end exceeds is rejected.
_PICK_EPSILONS = 1e-6, 10.0
# Noise on counts: the name of its scale, and the additional delta of a count's table.
_NOISES = {"gaussian": ("sigma", 0.0), "laplace": ("scale", 0.0)}


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
    D0, Dinf = checks.integer_in("l0_sensitivity", l0_sensitivity, 1, MOST_COUNTS), linf_sensitivity
    share = epsilon / D0

    def excess(b: float, _: object) -> float:
        return float(pure_delta(share / b, D0, epsilon)) - delta

    # From b = Dinf D0/eps on, the sum of all budgets is at most eps.
    b = root(excess, (), 1 + 1e-12, 1e-6, rtol=1e-13)
    return HistogramNoise(float(smallest_scale(Gaussian(1.0), epsilon, delta, math.sqrt(D0) * Dinf)), b * Dinf / share)


def gaussian_crossing(epsilon: float, delta: float, most: int = 10_000) -> int | None:
    """Return the smallest D0, if any up to ``most``, at which Gaussian noise has the lower variance, for any Dinf."""

    def is_gaussian_better(D0: int) -> bool:
        noise = histogram_noise(D0, 1.0, epsilon, delta)
        return noise.gaussian_variance < noise.laplace_variance

    checks.integer_in("most", most, 1, MOST_COUNTS)
    return next((D0 for D0 in range(1, most + 1) if is_gaussian_better(D0)), None)


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
    k = checks.integer_in("k", k, 1, MOST_COUNTS)
    check_target(epsilon, delta)
    checks.epsilon(epsilon)
    checks.within("share", share, 0.0, 1.0, open_ends=True)
    checks.one_of("noise", noise, _NOISES)
    name, leak = _NOISES[noise]
    ratio = 2 * math.sqrt(share / (1 - share))

    def settings(x: float) -> tuple[float, float]:
        """Return eps of a pick and the scale, from the unknown of the search: eps of a pick, or else 1/scale."""
        return (x, ratio / x) if discovery_epsilon is None else (discovery_epsilon, 1 / x)

    def excess(x: float, _: object = None) -> float:
        pick, scale = settings(x)
        return float(known_domain_guarantee(k, pick, delta, **{name: scale}, leak=leak).epsilon) - epsilon

    if discovery_epsilon is None:
        ends, subject = _PICK_EPSILONS, f"epsilon, delta: {epsilon:g}, {delta:g}; {k} picks of {_PICK_EPSILONS[0]:g}"
    else:
        checks.positive("discovery_epsilon", discovery_epsilon)
        ends, subject = (1e-9, 1e3), f"discovery_epsilon: {discovery_epsilon:g}; {k} picks alone"
    if (most := excess(ends[0])) > 0:  # The feasible end of a search is not evaluated by it.
        raise ValueError(f"{subject} have eps {epsilon + most:.6g}")
    pick, scale = settings(root(excess, (), *ends, rtol=1e-12))
    return KnownDomain(pick, _claimed_noise(noise, scale, delta / k))


def _claimed_noise(noise: str, scale: float, delta: float) -> Additive:
    if noise == "laplace":
        return named.laplace(epsilon=1 / scale)
    mechanism = named.gaussian(sigma=scale, sensitivity=1.0)
    level = realised_epsilon(mechanism, 0.99 * delta)
    return mechanism.claim(sensitivity=1.0, epsilon=max(level, checks.EPSILON_RANGE[0]), delta=delta)
