"""Budget recycling as published (Jiang 2024), to reproduce the source; mostly **not sound**.

The published profile assumes that the loss of the kernel and the loss of recycling are independent, which is wrong. The
profile is far too pessimistic for theta below about 2 sigma, and **unsound** above about 2.5 sigma. ``python -m
benchmarks.recycling`` compares acceptances and deltas.

At eps 3, D = 1, theta = 5 and a Gaussian kernel for (2.7, 1e-5), the q of Algorithm 1 has 123 times the requested
delta. With Laplace kernels and theta = 1, the choice of Algorithm 2 has 2 to 4 times the requested delta at eps up to 4
and D up to 5, and 18 times at eps 6 and D = 20. Do not choose a budget with these functions: ``accountants.recycling``
and ``accountants.calibrate`` account exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from accountants.calibrate.scale import smallest_scale
from accountants.dominating_pairs.registry import additive_profile
from dpkernels import checks
from dpkernels.distributions.base import Distribution
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.numerics import Real, namespace
from dpkernels.solve import Function, minimum, root


def published_weight(kernel: Distribution, theta: Real, sensitivity: Real) -> Real:
    """Return W = P(-theta <= N <= theta < N + D), part of the published profile, which is **not sound**.

    A report within theta for one input is outside for its neighbour. Jiang 2024, eq. 7, with tl = -theta, tu = theta
    and F the kernel's cdf:

        W = max(F(min(tl + D, tu)) - F(tl), F(tu + D) - F(max(tu, tl + D)))

    For an even kernel that falls from 0 the first is the larger, and equal to the probability above.
    """
    xp = namespace(theta, sensitivity)
    return kernel.mass(xp.maximum(theta - sensitivity, -theta), theta)


def published_profile(kernel: Distribution, theta: Real, q: Real, sensitivity: Real, epsilon: Real) -> Real:
    """Return Jiang 2024's profile of Theorem 1; **not sound**, see the module.

    (1 - W) delta_K(eps) + W delta_K(eps - Lq), Lq = -ln(1 - q), delta_K the kernel's; eps has any shape. The exact one
    is ``recycling.profile``.
    """
    Lq, W = -namespace(q).log1p(-q), published_weight(kernel, theta, sensitivity)
    of_kernel = partial(additive_profile, kernel, sensitivity)
    return (1 - W) * of_kernel(epsilon) + W * of_kernel(epsilon - Lq)


def published_baseline_rate(epsilon: Real, kernel_epsilon: Real) -> Real:
    """Return Jiang 2024's baseline q = 1 - exp(-(eps - eps_kernel)); sound only for a pure-DP kernel.

    The two losses simply add, and the step's ratio is 1/(1 - q). It is wasteful. A kernel's own delta is scaled by
    the redraws too, by up to 1/(1 - p_out q): with one the total can exceed it.
    """
    return -namespace(epsilon, kernel_epsilon).expm1(kernel_epsilon - epsilon)


def published_rate(kernel: Distribution, theta: Real, epsilon: Real, delta: Real, sensitivity: Real) -> Any:
    """Return q of Jiang 2024, Algorithm 1: the largest whose ``published_profile`` is at most delta; **not sound**.

    **Unsound for theta above about 2.5 sigma**: with a Gaussian kernel calibrated for eps 2.7, D = 1 and theta = 5, it
    returns q = 0.729 for (3, 1e-5), and the true delta is 1.23e-3. ``calibrate.recycling_rate`` is exact. The rate is
    NaN where the kernel alone exceeds delta, else in [0, 1), rounded down.
    """
    parameters = kernel, theta, epsilon, delta, sensitivity
    xp = namespace(*jax.tree.leaves(parameters))
    q = root(published_excess, parameters, 0.0, 1.0)
    return xp.where(published_excess(0.0, parameters) <= 0, q, xp.nan)[()]


def published_excess(q: Real, parameters: tuple[Any, ...]) -> Real:
    """Return how far ``published_profile``, **not sound**, is above delta."""
    kernel, theta, eps, delta, D = parameters
    return published_profile(kernel, theta, q, D, eps) - delta


class PublishedChoice(NamedTuple):
    """The choice of ``published_budget``, **not sound**: the kernel and its share of eps, q, and P(|Z| <= theta)."""

    kernel_epsilon: float
    kernel: Distribution
    q: float
    acceptance: float


def published_budget(
    kernel: type, *, theta: float, epsilon: float, delta: float, sensitivity: float = 1.0
) -> PublishedChoice:
    """Return the choice of Jiang 2024, Algorithm 2, with q by Algorithm 1; **not sound**.

    It searches the share of eps for the kernel with the largest acceptance, by golden section where the source's is
    ternary. A Gaussian kernel is the analytic one for (eps_kernel, delta), a Laplace kernel has b = D/eps_kernel.

    **Unsound, and wasteful**, as Algorithm 1 is: with Laplace kernels and delta 1e-5 its choice exceeds delta, most
    often twice, and more the larger D/theta and eps are.

    Raises:
        ValueError: a kernel other than ``Gaussian`` and ``Laplace``, theta not positive, epsilon not in [0.01, 20],
            delta not in (0, 1).
    """
    checks.positive("theta", theta)
    checks.epsilon(epsilon)
    return published_search(kernel, theta, epsilon, delta, sensitivity, published_excess)


def published_search(
    kernel: type, theta: float, epsilon: float, delta: float, sensitivity: float, excess: Function
) -> PublishedChoice:
    """Return ``published_budget``, **not sound**, by an excess that may count how often it is computed.

    Raises:
        ValueError: a kernel other than ``Gaussian`` and ``Laplace``.
    """
    checks.one_of("kernel", kernel.__name__, _KERNELS)

    def choice(fraction: float) -> PublishedChoice:
        noise = _KERNELS[kernel.__name__](fraction * epsilon, delta, sensitivity)
        q = root(excess, (noise, theta, epsilon, delta, sensitivity), 0.0, 1.0)
        return PublishedChoice(fraction * epsilon, noise, q, float(Reweighted(noise, -theta, theta, 1 - q).acceptance))

    return choice(minimum(lambda share, _: -choice(share).acceptance, (), 0.01, 1.0, rtol=1e-7))


_KERNELS: dict[str, Callable[[float, float, float], Distribution]] = {
    "Gaussian": lambda epsilon, delta, D: Gaussian(smallest_scale(Gaussian(1.0), epsilon, delta, D)),
    "Laplace": lambda epsilon, _, D: Laplace(D / epsilon),
}


def published_composition(
    kernel_profile: Callable[[Real], Real], weight: float, q: float, count: int, epsilon: float
) -> float:
    """Return delta(eps) of T recycled reports by Jiang 2024, Algorithm 3; **not sound** where the profile is not.

    sum_j C(T,j) W^j (1-W)^(T-j) delta_T(eps - j Lq): T independent kernel losses, and a binomial number of recycling
    losses Lq = -ln(1 - q). The losses of one report are not independent.

    ``kernel_profile`` is delta_T, of T kernel reports composed, a function of arrays; for a Gaussian kernel
    ``lambda eps: additive_profile(kernel, sqrt(T) * D, eps)``. The weight W is ``published_weight``, q in [0, 1) the
    probability of a redraw, and ``count`` is T.
    """
    from scipy.stats import binom

    j = np.arange(count + 1)
    probability = binom.pmf(j, count, weight)
    return float((probability * kernel_profile(epsilon + j * np.log1p(-q)))[probability > 0].sum())


def published_sensitivity(sensitivity: Real, rate: Real) -> Real:
    """Return D, whatever p, as Jiang 2024 reads it in section 7; **not sound** for estimates rescaled by 1/p."""
    return sensitivity


def published_advanced_composition(epsilon: Real, count: Real, delta: Real) -> Real:
    """Return Jiang 2024's eps of T (eps, delta)-DP mechanisms together, claimed at the same delta; **not sound**.

    Remark 4: (T eps (e^eps - 1) + sqrt(T) eps sqrt(2 ln(1/delta)), delta)-DP. The delta of the mechanisms is lost:
    T mechanisms that each print their input with probability delta, and otherwise a constant, have 1 - (1 - delta)^T at
    every eps. ``closed_forms.approximate.advanced_composition`` is sound, at T delta and a slack.

    Raises:
        ValueError: epsilon negative, count not positive, delta not in (0, 1).
    """
    checks.within("epsilon", epsilon, 0.0, np.inf)
    checks.positive("count", count)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    xp = namespace(epsilon, count, delta)
    return count * epsilon * xp.expm1(epsilon) + epsilon * xp.sqrt(2 * count * xp.log(1 / xp.asarray(delta)))


def published_acceptance_rate(sigma: Real, theta: Real, q: Real, sampling_noise: Real = 0.0) -> Real:
    """Return Jiang 2024's eq. (10), with sampling noise eq. (13); it is at least 1, so **not a probability**.

        O = 1 - q + q/B,   B = Phi(theta/s) - Phi(-theta/s),   s^2 = sigma^2 + sampling_noise^2

    What it is, without sampling noise, for a redraw probability q and the true acceptance a = B/(1 - (1 - B) q):

    | expression | value |
    |---|---|
    | 1/O with 1 - q in the place of q | a |
    | O B = (1 - q) B + q | at least a; equal only at q = 0 and q = 1 |

    O B is accepted where the noise decides once whether to be redrawn until it is within theta. With sampling noise
    neither is the truth: recycling acts on the kernel's noise alone. ``recycling.acceptance`` is exact.

    Raises:
        ValueError: sigma or theta not positive, q not in [0, 1], sampling_noise negative.
    """
    checks.positive("sigma", sigma)
    checks.positive("theta", theta)
    checks.within("q", q, 0.0, 1.0)
    checks.within("sampling_noise", sampling_noise, 0.0, np.inf)
    xp = namespace(sigma, theta, q, sampling_noise)
    probability_within = Gaussian(xp.hypot(sigma, sampling_noise)).mass(-theta, theta)
    return 1 - q + q / probability_within
