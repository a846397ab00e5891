"""Scales of ``known_domain_top_k`` for a total budget."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from accountants.histograms.noise import MOST_COUNTS
from accountants.histograms.top_k import known_domain_guarantee
from accountants.profile import epsilon as realised_epsilon
from accountants.scale import check_target
from dpkernels import checks
from dpkernels.mechanisms import named_additive as named
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import Real
from dpkernels.solve import root

# The eps of a pick is searched between these; a budget that the first exceeds is refused.
_SMALLEST_PICK, _LARGEST_PICK = 1e-6, 10.0
# What ``known_domain_guarantee`` calls the scale of the noise, and what else it takes.
_ARGUMENTS: dict[str, tuple[str, dict[str, float]]] = {
    "gaussian": ("sigma", {}),
    "laplace": ("scale", {"leak": named.TABLE_DELTA}),
}


@dataclass(frozen=True)
class KnownDomain:
    """What ``known_domain_top_k`` takes.

    Attributes:
        discovery_epsilon: eps of each pick.
        noise: on each count, with a claim for it.
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
    """Discovery and noise of the top k of a known domain, (eps, delta)-DP all together.

    Neighbouring, and what is covered: see ``known_domain_top_k``; the bounds are ``top_k.known_domain_guarantee``'s.

    Args:
        k: how many items.
        epsilon: eps of all picks and counts.
        delta: of the same.
        noise: "gaussian" or "laplace".
        discovery_epsilon: eps of each pick, with the least noise that leaves; by default from ``share``.
        share: of the zCDP budget for the picks, eps^2/8 each, against 1/(2 s^2) (Laplace: at most 1/(2 b^2)) a count.

    Returns:
        Both scales; the guarantee at them, as computed, is at most eps.

    Raises:
        ValueError: k not in 1..10^6; epsilon not in [0.01, 20]; delta not in (0, 1); share not in (0, 1); noise of
            another name; discovery_epsilon not positive; picks that leave nothing for the counts, with what they cost.
        TypeError: k is not a whole number.

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
    """Noise of a count, with the claim that a release of it needs."""
    if noise == "laplace":
        return named.laplace(epsilon=1 / scale)
    made = named.gaussian(sigma=scale, sensitivity=1.0)
    own = realised_epsilon(made, 0.99 * delta)
    return made.claim(sensitivity=1.0, epsilon=max(own, checks.EPSILON_RANGE[0]), delta=delta)
