"""Named additive mechanisms. A claim is for neighbours whose x differ by at most the sensitivity D.

Arguments outside the stated ranges raise ``ValueError``. An epsilon is in [0.01, 20], that of a claim in [1e-6, 20], a
sensitivity in [1e-100, 1e100].
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp

from dpkernels import checks
from dpkernels.decimals import shortest
from dpkernels.distributions.base import Distribution
from dpkernels.distributions.discrete import MOST_POINTS, DiscreteGaussian, DiscreteLaplace, too_fine
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.distributions.logistic import Logistic
from dpkernels.distributions.merged_laplace import MergedLaplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.distributions.staircase import Staircase
from dpkernels.distributions.student import Student
from dpkernels.mechanisms.additive import Additive
from dpkernels.numerics import Real, elementary, namespace, ndtri
from dpkernels.solve import root

TABLE_DELTA = 1e-15  # What the truncation of an integer table may cost a release of pure-DP noise.


def laplace(*, epsilon: float, sensitivity: float = 1.0) -> Additive:
    """Return Laplace noise of scale b = D / eps, for epsilon in [0.01, 20].

    The float density is pure eps-DP; the claim has delta = 1e-15 for the ends of a release's table.
    """
    _check(epsilon, sensitivity)
    return Additive(Laplace(sensitivity / epsilon), sensitivity, epsilon, TABLE_DELTA)


def logistic(*, epsilon: float, sensitivity: float = 1.0) -> Additive:
    """Return logistic noise of scale b = D / eps, for epsilon in [0.01, 20].

    The float density is pure eps-DP and smooth; the claim has delta = 1e-15 for the ends of a release's table.
    ``accountants.calibrate.scaled(Logistic(1.0), ...)`` has the least scale for a larger delta.
    """
    _check(epsilon, sensitivity)
    return Additive(Logistic(sensitivity / epsilon), sensitivity, epsilon, TABLE_DELTA)


def student(*, epsilon: float, sensitivity: float = 1.0, degrees: float = 5.0) -> Additive:
    """Return Student noise of the least scale that is pure eps-DP, s = D / (2 sqrt(nu) sinh(eps/(nu + 1))).

    Its tails fall like |z|^-(nu + 1), as noise for smooth sensitivity requires. The degrees nu are a plain number in
    [3, 1000], and epsilon is in [0.01, 20]. The claim has delta = 1e-15, for the truncation of the integer table. With
    fewer than 5 degrees of freedom, or a small eps, the noise is too wide for a table. A release then requires noise
    truncated to [-T, T], ``Reweighted(Student(...), -T, T, 0.0)``, with a larger delta.
    """
    _check(epsilon, sensitivity)
    nu = Student(1.0, degrees).degrees
    scale = sensitivity / (2 * math.sqrt(nu) * namespace(epsilon, sensitivity).sinh(epsilon / (nu + 1)))
    return Additive(Student(scale, nu), sensitivity, epsilon, TABLE_DELTA)


def gaussian(
    *, sigma: float, sensitivity: float | None = None, epsilon: float | None = None, delta: float | None = None
) -> Additive:
    """Return Gaussian noise of standard deviation sigma, in [1e-140, 1e140], with a claim if its numbers are given.

    ``accountants.calibrate`` finds sigma for a budget.
    """
    return Additive(Gaussian(sigma), sensitivity, epsilon, delta)


def truncated_laplace(*, epsilon: Real, delta: Real, sensitivity: Real = 1.0, upper: Real | None = None) -> Additive:
    """Return Laplace noise of scale D / eps, truncated to [A, B] (Mugunthan 2020): (eps, delta)-DP.

    Epsilon is in [0.01, 20], delta in (0, 1), and D is the sensitivity. With l = D/eps and
    O = (e^eps - 1 + delta)/delta the nearer end at a and the further one at b, from 0, have

        e^(-b/l) = 2 - O e^(-a/l),

    which is the source's A = l ln(2 + (1 - delta)/delta e^(-B/l) - e^(-(B - D)/l)/delta) where |A| >= |B|.

    ``upper`` is B, above B_min = max(0, l ln(O/2)), and below -l ln(2 - O) where O < 2. By default it is
    B* = l ln(1 + (e^eps - 1)/(2 delta)), the symmetric case. Below B* the further end is A, above it B. Elsewhere than
    at B* the noise is biased. An infeasible B is a ``ValueError``, which states the interval.
    """
    _check(epsilon, sensitivity)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    scale = sensitivity / epsilon
    B = symmetric_bound(epsilon, delta, sensitivity)
    low, high = (-B, B) if upper is None else (_left_end(upper, scale, epsilon, delta, B), upper)
    return Additive(Reweighted(Laplace(scale), low, high, 0.0), sensitivity, epsilon, delta)


def symmetric_bound(epsilon: Real, delta: Real, sensitivity: Real) -> Real:
    """Return B* = (D/eps) ln(1 + (e^eps - 1)/(2 delta)), the bound of symmetric truncated Laplace noise."""
    xp = namespace(epsilon, delta, sensitivity)
    return sensitivity / epsilon * xp.log1p(xp.expm1(epsilon) / (2 * delta))


def _left_end(upper: Real, scale: Real, epsilon: Real, delta: Real, highest: Real) -> Real:
    xp = namespace(upper, scale, epsilon, delta)
    odds = (xp.expm1(epsilon) + delta) / delta
    beyond = xp.exp(-upper / scale)
    further = upper <= highest
    inner = xp.where(further, 2 - odds * beyond, (2 - beyond) / odds)
    if checks.concrete(inner) is not None and not (upper > 0 and 0 < inner < 1):
        lowest = max(0.0, scale * math.log(odds / 2))
        furthest = -scale * math.log(2 - odds) if odds < 2 else math.inf
        span = f"({shortest(lowest)}, {shortest(furthest)})"
        raise ValueError(f"upper: {shortest(upper)} is not in {span}, where the claim is feasible")
    # A larger bound is conservative. The relative rounding error of a difference grows as the difference shrinks.
    return scale * (xp.log(inner) * (1 + 1e-15 / xp.where(further, inner, 1.0)) - 1e-15)


def merged_laplace(
    *,
    rates: tuple[float, ...],
    breaks: tuple[float, ...],
    sensitivity: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
) -> Additive:
    """Return merged (piecewise) Laplace noise (Mugunthan 2020): log-density slope -r_i on [c_(i-1), c_i) of |z|.

    Its pure budget is the largest integral of the slope over a window of length D; ``accountants.epsilon`` has it.
    Rates are in [0, 1e300], the last above 0, and one more than breaks, which are positive and increasing.
    """
    return Additive(MergedLaplace(tuple(rates), tuple(breaks)), sensitivity, epsilon, delta)


def truncated_gaussian(
    *, sigma: float, delta: float, sensitivity: float = 1.0, epsilon: float | None = None, bound: float | None = None
) -> Additive:
    """Return Gaussian noise of sigma s in [1e-140, 1e140], truncated to [-T, T] (Cesar & Rogers 2021).

    Delta, in (0, 1), is the probability of an infinite privacy loss (infinity mass). With the sensitivity D it sets T
    by delta = (Phi((D - T)/s) - Phi(-T/s)) / (1 - 2 Phi(-T/s)) (eq. 10), unless ``bound``, which is positive, gives T
    itself. An epsilon is a budget to claim, with delta as the total.
    """
    checks.sensitivity(sensitivity)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    if bound is not None:
        checks.positive("bound", bound)
    T = truncation_bound(sigma, delta, sensitivity) if bound is None else bound
    return Additive(Reweighted(Gaussian(sigma), -T, T, 0.0), sensitivity, epsilon, delta)


def truncation_bound(sigma: Real, delta: Real, sensitivity: Real) -> Any:
    """Return the T of ``truncated_gaussian``: the root of eq. 10, rounded conservatively.

    The share K(-T, D - T)/K(-T, T) falls from 1 at T = D/2 to 0. Its numerator is at most P(Z > T - D), and beyond
    T = D its denominator at least K(-D, D): where P(Z > T - D) = delta K(-D, D)/2, T is safe. The two tails of the
    numerator lose a digit for each power of ten in s/D.
    """
    s, D = sigma, sensitivity
    kernel = Gaussian(s)
    far = D + s * -ndtri(delta * kernel.mass(-D, D) / 2)
    return root(_revealing_excess, (s, D, delta), far, D / 2)


def _revealing_excess(T: Real, parameters: tuple[Real, Real, Real]) -> Real:
    s, D, delta = parameters
    kernel = Gaussian(s)
    return kernel.mass(-T, D - T) / kernel.mass(-T, T) - delta


def staircase(*, epsilon: float, sensitivity: float = 1.0, gamma: float | None = None) -> Additive:
    """Return staircase noise (Geng & Viswanath 2014) for epsilon in [0.01, 20] and gamma in [0, 1].

    By default gamma = 1/(1 + e^(eps/2)), of least E|Z|. The float density is pure eps-DP; the claim has delta = 1e-15
    for the ends of a release's table.
    """
    _check(epsilon, sensitivity)
    gamma = 1 / (1 + elementary(epsilon).exp(epsilon / 2)) if gamma is None else gamma
    return Additive(Staircase(epsilon, sensitivity, gamma), sensitivity, epsilon, TABLE_DELTA)


def budget_recycled(
    kernel: Distribution | Additive,
    *,
    theta: Real,
    q: Real,
    sensitivity: Real | None = None,
    epsilon: Real | None = None,
    delta: Real | None = None,
) -> Additive:
    """Return budget-recycled noise (Jiang 2024): a kernel's draw beyond theta is redrawn with probability q.

    f(z) = K(z) w(z) / (1 - q P(|Z| > theta)), w = 1 on [-theta, theta] and 1 - q outside. The kernel, such as
    ``Gaussian(sigma=2.0)``, needs a density; theta, the tolerated error, is positive, and q is in [0, 1).
    ``noise.acceptance`` is P(|Z| <= theta). The guarantee differs from the kernel's: ``accountants.delta`` computes the
    exact one. Sensitivity, epsilon and delta make a claim.
    """
    checks.positive("theta", theta)
    checks.below_one("q", q)
    noise: Any = kernel.noise if isinstance(kernel, Additive) else kernel
    if not isinstance(noise, Distribution):
        raise TypeError(f"kernel: {type(noise).__name__} has no density; use one that has, as Gaussian or Laplace")
    return Additive(Reweighted(noise, -theta, theta, 1 - q), sensitivity, epsilon, delta)


def discrete_laplace(*, epsilon: Real, sensitivity: Real = 1.0, step: Real = 1.0, reach: int | None = None) -> Additive:
    """Return Laplace noise on multiples of ``step``: P(k step) proportional to exp(-eps |k| step / D).

    D, the sensitivity, is rounded up to a multiple of the step. Epsilon is in [0.01, 20]. The noise has at most 2^20
    points. The default ``reach``, the largest k, is a discrete choice: give it if JAX traces an argument. The claim has
    delta = 1e-15, for the truncation of the grid where probabilities fall below 2^-66.
    """
    _check(epsilon, sensitivity)
    noise = DiscreteLaplace(_cells(sensitivity, step) * step / epsilon, step, reach or 0)
    return Additive(noise, sensitivity, epsilon, TABLE_DELTA)


def truncated_discrete_laplace(
    *, epsilon: Real, delta: Real, sensitivity: Real = 1.0, step: Real = 1.0, reach: int | None = None
) -> Additive:
    """Return discrete Laplace noise on k = -R..R, by default with the smallest R that is (eps, delta)-DP.

    R is the ``reach``. Its default is a discrete choice: give R if JAX traces an argument. Epsilon is in [0.01, 20],
    delta in (0, 1), and the noise has at most 2^20 points.

    With q = e^(-eps/n), n = ceil(D / step), the n outermost points of a side hold delta:
    q^(R - n + 1) (1 - q^n) / (1 + q - 2 q^(R + 1)) <= delta.
    """
    _check(epsilon, sensitivity)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    n = _cells(sensitivity, step)
    if reach is None:
        checks.not_traced("reach", "It is a discrete choice; give it.", epsilon, delta, sensitivity, step)
        q = math.exp(-epsilon / n)
        most = delta * (1 + q) / (q ** (1 - n) * -math.expm1(-epsilon) + 2 * q * delta)
        reach = max(1, math.ceil(-math.log(most) * n / epsilon))
    return Additive(DiscreteLaplace(n * step / epsilon, step, reach), sensitivity, epsilon, delta)


def discrete_gaussian(
    *,
    sigma: float,
    sensitivity: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    step: float = 1.0,
    reach: int | None = None,
) -> Additive:
    """Return Gaussian noise on multiples of ``step``, k = -reach..reach (Canonne, Kamath & Steinke 2020).

    P(k step) is proportional to exp(-(k step)^2 / (2 s^2)), with sigma in [1e-140, 1e140]; the noise has at most 2^20
    points. ``accountants.delta`` computes its guarantee. The default reach, where probabilities fall below 2^-66, is a
    discrete choice: give it if JAX traces an argument.
    """
    return Additive(DiscreteGaussian(sigma, step, reach or 0), sensitivity, epsilon, delta)


def _cells(sensitivity: Any, step: Any) -> Any:
    """Return n, the largest number of grid steps between neighbours; the noise reaches farther."""
    checks.positive("step", step)
    if checks.concrete(sensitivity) is None or checks.concrete(step) is None:
        return jnp.ceil(jax.lax.stop_gradient(sensitivity / step))
    cells = math.ceil(Fraction(float(sensitivity)) / Fraction(float(step)))
    if cells > MOST_POINTS:
        raise too_fine(step)
    return cells


def _check(epsilon: Real, sensitivity: Real) -> None:
    checks.epsilon(epsilon)
    checks.sensitivity(sensitivity)
