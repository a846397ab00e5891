"""Constructors of the mechanisms that have names in the literature.

Arguments outside the stated ranges raise ``ValueError``. The budget epsilon of a local mechanism is in [0.01, 20], the
stated epsilon of additive noise in [1e-6, 20], and a sensitivity in [1e-100, 1e100]. The (epsilon, delta) of an
additive mechanism is for neighbours whose x differ by at most the sensitivity D.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import numpy as np

from dpkernels import checks
from dpkernels.batches import entrywise, has_axes
from dpkernels.decimals import shortest
from dpkernels.distributions.base import Distribution, Noise
from dpkernels.distributions.discrete import MAX_POINTS, DiscreteGaussian, DiscreteLaplace, too_fine
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.generalised_normal import GeneralisedNormal
from dpkernels.distributions.laplace import Laplace, MergedLaplace
from dpkernels.distributions.logistic import Logistic
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.distributions.staircase import Staircase
from dpkernels.distributions.student import Student
from dpkernels.jax_on_use import jax, jnp
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.base import Bounded
from dpkernels.mechanisms.multivariate import Multivariate
from dpkernels.mechanisms.optimal.search import optimal
from dpkernels.mechanisms.two_point import Mixture, TwoPoint
from dpkernels.mechanisms.windowed import mechanism as windowed
from dpkernels.mechanisms.windowed.bases import Base, Constant
from dpkernels.mechanisms.windowed.mechanism import NARROWEST, Windowed
from dpkernels.mechanisms.windowed.tabulated import ShapeLike, base_from, window_from
from dpkernels.mechanisms.windowed.windows import Window
from dpkernels.numerics import Real, float_if_scalar, math_namespace, namespace, ndtr, ndtri
from dpkernels.solve import MARGINS, first_feasible, floats_from, root

WINDOWS: dict[str, Window] = {shape.name: shape() for shape in Window.concrete_subclasses() if shape.name}
BASES = ("constant", "quartic")
TABLE_DELTA = 1e-15  # What the ends of an integer table may cost a release of pure noise whose tail is not geometric.

# Wang 2019, equation (7): below this budget Duchi alone is better in the worst case.
HYBRID_EPSILON = math.log(
    (-5 + 2 * (6353 - 405 * math.sqrt(241)) ** (1 / 3) + 2 * (6353 + 405 * math.sqrt(241)) ** (1 / 3)) / 27
)


def composite(
    window: Window | str | ShapeLike = "uniform",
    base: Base | str | ShapeLike = "constant",
    *,
    epsilon: Real,
    lower: Real,
    upper: Real,
    width: Real | None = None,
    condition: str = "pointwise",
    objective: str = "worst",
) -> Windowed:
    """Return a window on a base (Zhang 2024): density y g(v) + k h((v - a)/m) on the scaled interval [-1, 1].

    The height k is the largest that is eps-DP. Parameters that are not given minimise the variance.

    Args:
        window: "uniform" (A1), "sine" (A2), "triangle" (A3), a ``Window``, a function on [0, 1] or a table.
        base: "constant" (B1), "quartic" (B2), a ``Base``, a function on [-1, 1] or a table.
        epsilon: pure-DP budget, in [0.01, 20]; any two inputs are neighbours (local DP).
        lower: smallest valid input, fixed before the data are seen.
        upper: largest valid input.
        width: m in [1e-100, 2); by default the best.
        condition: "pointwise" (exact) or "sup_inf" (sufficient, the source's).
        objective: what the default parameters minimise, "worst" or "central" variance.

    Raises:
        ValueError: an argument is out of its range, a shape is not symmetric and positive, or no height is private.

    Example:
        >>> m = composite("sine", "quartic", epsilon=1.0, lower=0.0, upper=120.0)
        >>> round(float(m.central_variance / 120**2), 2)
        1.13
    """
    epsilon, lower, upper = checks.budget(epsilon, lower, upper)
    checks.one_of("condition", condition, windowed.CONDITIONS)
    checks.one_of("objective", objective, windowed.OBJECTIVES)
    h, g = parse_window(window), parse_base(base)
    if g is None or width is None:
        g, best = windowed.best_shape(h, g, epsilon, condition, objective)
        width = best if width is None else width
    windowed.check_width(width)
    m = checks.real("width", width)
    relative = windowed.relative_height(h, g, m, epsilon, condition)
    return Windowed(h, g, m, relative, lower, upper, epsilon)


def piecewise(
    *, epsilon: Real, lower: Real, upper: Real, eta: Real | None = None, objective: str = "worst"
) -> Windowed:
    """Return the type-I piecewise transformation (Ma 2021): a uniform window on a constant base, m = 2 / eta.

    Arguments are those of ``composite``, and eta, the output half-width over the window half-width, above 1 and up to
    2e100. By default eta minimises the objective.

    Example:
        >>> float(piecewise(epsilon=1.0, lower=-1.0, upper=1.0).worst_variance).__round__(4)
        5.0657
    """
    return composite("uniform", epsilon=epsilon, lower=lower, upper=upper, width=_width(eta), objective=objective)


def piecewise_triangle(
    *, epsilon: Real, lower: Real, upper: Real, eta: Real | None = None, objective: str = "worst"
) -> Windowed:
    """Return the type-II piecewise transformation (Ma 2021): a triangle window on a constant base, m = 2 / eta.

    Arguments are those of ``piecewise``. The height is the published one, k = y (e^eps - 1); ``composite("triangle")``
    may choose a larger one for m > 4/3.
    """
    width, condition = _width(eta), "sup_inf"
    return composite(
        "triangle", epsilon=epsilon, lower=lower, upper=upper, width=width, condition=condition, objective=objective
    )


def piecewise_wang2019(*, epsilon: Real, lower: Real, upper: Real) -> Windowed:
    """Return the Piecewise Mechanism of Wang 2019: type I at eta = 1 + e^(eps/2), for epsilon in [0.01, 20]."""
    epsilon, lower, upper = checks.budget(epsilon, lower, upper)
    return piecewise(epsilon=epsilon, lower=lower, upper=upper, eta=1 + math_namespace(epsilon).exp(epsilon / 2))


def duchi(*, epsilon: Real, lower: Real, upper: Real) -> TwoPoint:
    """Return Duchi's two-point mechanism for epsilon in [0.01, 20]; see ``TwoPoint``."""
    epsilon, lower, upper = checks.budget(epsilon, lower, upper)
    return TwoPoint(lower, upper, epsilon)


def hybrid(*, epsilon: Real, lower: Real, upper: Real, share: Real | None = None) -> Mixture | TwoPoint:
    """Return the hybrid mechanism of Wang 2019: its Piecewise Mechanism with a probability, else Duchi's mechanism.

    The probability of the Piecewise Mechanism is ``share``, in (0, 1), by default that of the lowest worst-case
    variance: 1 - e^(-eps/2) above eps = 0.61, else 0. The result is then Duchi's ``TwoPoint``, or, if JAX traces
    epsilon, a ``Mixture`` of weight 0. A positive share below 0.61 makes the distribution estimable. Other arguments
    are those of ``composite``.
    """
    epsilon, lower, upper = checks.budget(epsilon, lower, upper)
    two_point = duchi(epsilon=epsilon, lower=lower, upper=upper)
    piecewise_mechanism = piecewise_wang2019(epsilon=epsilon, lower=lower, upper=upper)
    if share is not None:
        checks.within("share", share, 0.0, 1.0, open_ends=True)
        return Mixture(piecewise_mechanism, two_point, checks.real("share", share))
    weight = -math_namespace(epsilon).expm1(-epsilon / 2)
    if checks.concrete(epsilon) is None or np.ndim(epsilon):
        return Mixture(piecewise_mechanism, two_point, namespace(epsilon).where(epsilon <= HYBRID_EPSILON, 0.0, weight))
    return two_point if epsilon <= HYBRID_EPSILON else Mixture(piecewise_mechanism, two_point, weight)


def _width(eta: Real | None) -> Real | None:
    if eta is None:
        return None
    checks.within("eta", eta, 1.0, math.inf, open_ends=True)
    checks.within("eta", eta, 1.0, 2 / NARROWEST)
    return 2 / checks.real("eta", eta)


def parse_window(window: Window | str | ShapeLike) -> Window:
    """Return a window from its name, a function on [0, 1], a table, or itself."""
    if isinstance(window, Window):
        return window
    if isinstance(window, str):
        checks.one_of("window", window, WINDOWS)
        return WINDOWS[window]
    return window_from(window)


def parse_base(base: Base | str | ShapeLike) -> Base | None:
    """Return a base from its name, a function on [-1, 1], a table, or itself; None for a quartic whose edge is free."""
    if isinstance(base, Base):
        return base
    if isinstance(base, str):
        checks.one_of("base", base, BASES)
        return Constant() if base == "constant" else None
    return base_from(base)


def multivariate(
    *, dimensions: int, epsilon: Real, lower: Real, upper: Real, sampled: int | None = None, coordinate: str = "hybrid"
) -> Multivariate:
    """Return a mechanism on vectors of d coordinates that reports s of them, each with eps/s.

    Source: Wang 2019, Algorithm 4; Ma 2021 has s = 1.

    Args:
        dimensions: d, 1 to 2^31.
        epsilon: pure-DP budget of a whole vector; any two vectors are neighbours. It and eps/s are in [0.01, 20].
        lower: smallest valid input, a number or one a coordinate.
        upper: largest valid input.
        sampled: s, 1 to d; by default max(1, min(d, floor(eps / 2.5))) (Wang 2019). Give s if JAX traces epsilon.
        coordinate: name of the mechanism of a coordinate, one of ``MECHANISMS``.
    """
    checks.epsilon(epsilon)
    checks.one_of("coordinate", coordinate, MECHANISMS)
    checks.interval(lower, upper)
    d, epsilon = checks.integer_in("dimensions", dimensions, 1, 1 << 31), checks.number("epsilon", epsilon)
    if sampled is None:
        checks.not_traced("epsilon", "How many coordinates are reported depends on it; give sampled.", epsilon)
        sampled = max(1, min(d, int(epsilon / 2.5)))
    s = checks.integer_in("sampled", sampled, 1, d)
    inner = MECHANISMS[coordinate](epsilon=_budget_share(epsilon, s), lower=-1.0, upper=1.0)
    low, high = (end if checks.concrete(end) is None else np.asarray(end, np.float64)[()] for end in (lower, upper))
    return Multivariate(inner, float_if_scalar(low), float_if_scalar(high), d, s)


def _budget_share(epsilon: Real, count: int) -> Real:
    """Return the budget of one of several parts; read as decimals, plain numbers do not exceed the whole."""
    if checks.concrete(epsilon) is None:
        return epsilon / count
    total = Fraction(repr(epsilon))
    return first_feasible(
        floats_from(float(epsilon) / count, 0.0), lambda share: count * Fraction(repr(share)) <= total
    )


def _optimal_local(*, epsilon: float, lower: float, upper: float) -> Bounded:
    return optimal(epsilon=epsilon, lower=lower, upper=upper)


MECHANISMS: dict[str, Callable[..., Bounded]] = {
    "piecewise": piecewise,
    "piecewise-triangle": piecewise_triangle,
    "piecewise-wang2019": piecewise_wang2019,
    "duchi": duchi,
    "hybrid": hybrid,
    "optimal": _optimal_local,
    **{f"{h}-{g}": partial(composite, h, g) for h in WINDOWS for g in BASES if h != "uniform"},
}


# Additive mechanisms


def laplace(*, epsilon: Real, sensitivity: Real = 1.0) -> Additive:
    """Return Laplace noise of scale b = D / eps, for epsilon in [0.01, 20]. It is pure eps-DP, also when released."""
    _check(epsilon, sensitivity)
    return Additive(Laplace(sensitivity / epsilon), sensitivity, epsilon, 0.0)


def logistic(*, epsilon: Real, sensitivity: Real = 1.0) -> Additive:
    """Return logistic noise of scale b = D / eps, for epsilon in [0.01, 20].

    The float density is pure eps-DP and smooth; the claim has delta = 1e-15 for the ends of a release's table.
    ``accountants.calibrate.scaled(Logistic(1.0), ...)`` has the least scale for a larger delta.
    """
    _check(epsilon, sensitivity)
    return Additive(Logistic(sensitivity / epsilon), sensitivity, epsilon, TABLE_DELTA)


def student(*, epsilon: Real, sensitivity: Real = 1.0, degrees: float = 5.0) -> Additive:
    """Return Student noise of the least scale that is pure eps-DP, s = D / (2 sqrt(nu) sinh(eps/(nu + 1))).

    Its tails fall like |z|^-(nu + 1), as noise for smooth sensitivity requires. The degrees nu are a plain number in
    [3, 1000], and epsilon is in [0.01, 20]. The claim has delta = 1e-15 for the ends of a release's table. Below 5
    degrees, or at a small eps, the noise is too wide for one; truncate it, ``Reweighted(Student(...), -T, T, 0.0)``.
    """
    _check(epsilon, sensitivity)
    nu = Student(1.0, degrees).degrees
    scale = sensitivity / (2 * math.sqrt(nu) * namespace(epsilon, sensitivity).sinh(epsilon / (nu + 1)))
    return Additive(Student(scale, nu), sensitivity, epsilon, TABLE_DELTA)


def gaussian(
    *, sigma: Real | None = None, sensitivity: Real = 1.0, epsilon: Real | None = None, delta: Real | None = None
) -> Additive:
    """Return Gaussian noise of standard deviation sigma, or of the smallest one that is (eps, delta)-DP.

    Without sigma it is the analytic Gaussian mechanism of Balle and Wang 2018 (``analytic_sigma``): epsilon is in
    [1e-6, 20], and delta in [1e-300, 1). With sigma, in [1e-140, 1e140], epsilon and delta are a claim, if given.
    """
    if sigma is None:
        if epsilon is None or delta is None:
            raise ValueError("sigma: missing; give it, or epsilon and delta, to which it is calibrated")
        sigma = analytic_sigma(epsilon, delta, sensitivity)
    return Additive(Gaussian(sigma), sensitivity, epsilon, delta)


def analytic_sigma(epsilon: Real, delta: Real, sensitivity: Real) -> Real:
    """Return the least sigma with Phi(a/2 - eps/a) - e^eps Phi(-a/2 - eps/a) <= delta, where a = D/sigma.

    It is an upper bound of the left side, which allows for all rounding errors, that is at most delta. Sigma is
    therefore above the least one: by at most 1e-7 of itself for eps >= 1e-3, and by 2e-5 at eps 1e-6. Arrays have one
    result an entry, and JAX numbers derivatives.
    """
    checks.noise_epsilon(epsilon)
    checks.within("delta", delta, 1e-300, 1.0)
    checks.below_one("delta", delta)
    checks.sensitivity(sensitivity)
    checks.broadcastable(epsilon=epsilon, delta=delta, sensitivity=sensitivity)
    if has_axes(epsilon, delta, sensitivity):
        return entrywise(analytic_sigma, epsilon, delta, sensitivity)
    # There P(A) - e^eps Q(A) = (1 + delta)/2 for A = {z < a/2}.
    too_large = -2 * ndtri((1 - delta) / (2 * (1 + math_namespace(epsilon).exp(epsilon))))
    sigma = sensitivity / root(_gaussian_excess, (epsilon, delta), 0.0, too_large)
    if namespace(sigma) is jnp:
        return sigma
    candidates = (sigma * (1 + margin) for margin in MARGINS)
    return first_feasible(candidates, lambda sigma: _gaussian_excess(sensitivity / sigma, (epsilon, delta)) <= 0)


def _gaussian_excess(a: Real, parameters: tuple[Real, Real]) -> Real:
    """Return an upper bound of the left side of ``analytic_sigma``, minus delta."""
    eps, delta = parameters
    nearer, farther = eps / a - a / 2, eps / a + a / 2
    xp = namespace(nearer)
    p, q = ndtr(-nearer), xp.exp(eps) * ndtr(-farther)
    # An error of u in a and eps moves both points by u farther, and p by at most (|nearer| + 1) u farther of itself.
    # The relative part is more than ``accountants`` adds to its own profile.
    units = 64 * p * ((xp.abs(nearer) + 1) * (farther + 1) + eps) + (4096 + 1024 * (eps - xp.log(delta))) * (p - q)
    return p - q + xp.finfo(xp.result_type(p)).eps * units - delta


def generalised_normal(
    *,
    scale: Real,
    exponent: Real,
    sensitivity: Real | None = None,
    epsilon: Real | None = None,
    delta: Real | None = None,
) -> Additive:
    """Return generalised normal (Subbotin) noise, of density proportional to exp(-(|z|/s)^b), with a claim if given.

    The scale s is in [1e-140, 1e140], and the exponent b in [1, 8]: 1 is Laplace noise and 2 Gaussian noise. With the
    exponent 1 the noise is pure (D/s)-DP; above 1 its claim has a delta, like that of Gaussian noise.
    ``accountants.calibrate`` finds the scale for a budget, and ``accountants.tune`` the exponent.
    """
    return Additive(GeneralisedNormal(scale, exponent), sensitivity, epsilon, delta)


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


def _left_end(upper: Real, scale: Real, epsilon: Real, delta: Real, symmetric: Real) -> Real:
    xp = namespace(upper, scale, epsilon, delta)
    odds = (xp.expm1(epsilon) + delta) / delta
    upper_tail = xp.exp(-upper / scale)
    is_farther_end = upper <= symmetric
    lower_tail = xp.where(is_farther_end, 2 - odds * upper_tail, (2 - upper_tail) / odds)
    if checks.concrete(lower_tail) is not None and not np.all((upper > 0) & (lower_tail > 0) & (lower_tail < 1)):
        lowest = max(0.0, scale * math.log(odds / 2))
        furthest = -scale * math.log(2 - odds) if odds < 2 else math.inf
        span = f"({shortest(lowest)}, {shortest(furthest)})"
        raise ValueError(f"upper: {shortest(upper)} is not in {span}, where the claim is feasible")
    # A larger bound is conservative. The relative rounding error of a difference grows as the difference shrinks.
    return scale * (xp.log(lower_tail) * (1 + 1e-15 / xp.where(is_farther_end, lower_tail, 1.0)) - 1e-15)


def merged_laplace(
    *,
    rates: tuple[float, ...],
    breaks: tuple[float, ...],
    sensitivity: Real | None = None,
    epsilon: Real | None = None,
    delta: Real | None = None,
) -> Additive:
    """Return merged (piecewise) Laplace noise (Mugunthan 2020): log-density slope -r_i on [c_(i-1), c_i) of |z|.

    Its pure budget is the largest integral of the slope over a window of length D; ``accountants.epsilon`` has it.
    Rates are in [0, 1e300], the last above 0, and one more than breaks, which are positive and increasing.
    """
    return Additive(MergedLaplace(tuple(rates), tuple(breaks)), sensitivity, epsilon, delta)


def truncated_gaussian(
    *, sigma: Real, delta: Real, sensitivity: Real = 1.0, epsilon: Real | None = None, bound: Real | None = None
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
    if bound is None and has_axes(sigma, delta, sensitivity):
        bound = entrywise(truncation_bound, sigma, delta, sensitivity)
    T = truncation_bound(sigma, delta, sensitivity) if bound is None else bound
    return Additive(Reweighted(Gaussian(sigma), -T, T, 0.0), sensitivity, epsilon, delta)


def truncation_bound(sigma: Real, delta: Real, sensitivity: Real) -> Real:
    """Return the T of ``truncated_gaussian``: the root of eq. 10, rounded conservatively.

    The share K(-T, D - T)/K(-T, T) falls from 1 at T = D/2 to 0. Its numerator is at most P(Z > T - D), and beyond
    T = D its denominator at least K(-D, D): where P(Z > T - D) = delta K(-D, D)/2, T is safe. The two tails of the
    numerator lose a digit for each power of ten in s/D.
    """
    s, D = sigma, sensitivity
    kernel = Gaussian(s)
    safe_bound = D + s * -ndtri(delta * kernel.mass(-D, D) / 2)
    return root(_revealing_excess, (s, D, delta), safe_bound, D / 2)


def _revealing_excess(T: Real, parameters: tuple[Real, Real, Real]) -> Real:
    s, D, delta = parameters
    kernel = Gaussian(s)
    return kernel.mass(-T, D - T) / kernel.mass(-T, T) - delta


def staircase(*, epsilon: Real, sensitivity: Real = 1.0, gamma: Real | None = None) -> Additive:
    """Return staircase noise (Geng & Viswanath 2014) for epsilon in [0.01, 20] and gamma in [0, 1].

    By default gamma = 1/(1 + e^(eps/2)), of least E|Z|. It is pure eps-DP, also when released.
    """
    _check(epsilon, sensitivity)
    gamma = 1 / (1 + math_namespace(epsilon).exp(epsilon / 2)) if gamma is None else gamma
    return Additive(Staircase(epsilon, sensitivity, gamma), sensitivity, epsilon, 0.0)


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
    ``Gaussian(sigma=2.0)``, needs a density; theta, the tolerated error, is positive, and q is in [0, 1). The guarantee
    is not the kernel's: ``accountants.delta`` computes the exact one. Sensitivity, epsilon and delta make a claim.
    """
    checks.positive("theta", theta)
    checks.below_one("q", q)
    noise: Noise = kernel.noise if isinstance(kernel, Additive) else kernel
    if not isinstance(noise, Distribution):
        raise TypeError(f"kernel: {type(noise).__name__} has no density; use one that has, as Gaussian or Laplace")
    return Additive(Reweighted(noise, -theta, theta, 1 - q), sensitivity, epsilon, delta)


def discrete_laplace(*, epsilon: Real, sensitivity: Real = 1.0, step: Real = 1.0, reach: int | None = None) -> Additive:
    """Return Laplace noise on multiples of ``step``: P(k step) proportional to exp(-eps |k| step / D).

    D, the sensitivity, is rounded up to a multiple of the step. Epsilon is in [0.01, 20]. A release is pure eps-DP: its
    noise has no largest k. In floats there are at most 2^20 points, and probabilities beyond them are below 2^-66. Give
    ``reach``, the largest k, if JAX traces an argument; then the noise ends there, and the claim has delta = 1e-15.
    """
    _check(epsilon, sensitivity)
    noise = DiscreteLaplace(_cells(sensitivity, step) * step / epsilon, step, reach or 0)
    return Additive(noise, sensitivity, epsilon, TABLE_DELTA if reach else 0.0)


def truncated_discrete_laplace(
    *, epsilon: Real, delta: Real, sensitivity: Real = 1.0, step: Real = 1.0, reach: int | None = None
) -> Additive:
    """Return discrete Laplace noise on k = -R..R, by default with the smallest R that is (eps, delta)-DP.

    Give R, the ``reach``, if JAX traces an argument. Epsilon is in [0.01, 20], delta in (0, 1), and the noise has at
    most 2^20 points. With q = e^(-eps/n), n = ceil(D / step), the n outermost points of a side hold delta:
    q^(R - n + 1) (1 - q^n) / (1 + q - 2 q^(R + 1)) <= delta.
    """
    _check(epsilon, sensitivity)
    checks.within("delta", delta, 0.0, 1.0, open_ends=True)
    n = _cells(sensitivity, step)
    if reach is None:
        checks.not_traced("reach", "It is a discrete choice; give it.", epsilon, delta, sensitivity, step)
        if has_axes(epsilon, delta, sensitivity, step):
            raise ValueError("reach: is one number for all entries of a batch; give it")
        q = math.exp(-epsilon / n)
        tail_weight = delta * (1 + q) / (q ** (1 - n) * -math.expm1(-epsilon) + 2 * q * delta)
        reach = max(1, math.ceil(-math.log(tail_weight) * n / epsilon))
    return Additive(DiscreteLaplace(n * step / epsilon, step, reach), sensitivity, epsilon, delta)


def discrete_gaussian(
    *,
    sigma: Real,
    sensitivity: Real | None = None,
    epsilon: Real | None = None,
    delta: Real | None = None,
    step: Real = 1.0,
    reach: int | None = None,
) -> Additive:
    """Return Gaussian noise on multiples of ``step``, k = -reach..reach (Canonne, Kamath & Steinke 2020).

    P(k step) is proportional to exp(-(k step)^2 / (2 s^2)), with sigma in [1e-140, 1e140]; the noise has at most 2^20
    points. Give ``reach`` if JAX traces an argument; by default probabilities beyond it are below 2^-66.
    """
    return Additive(DiscreteGaussian(sigma, step, reach or 0), sensitivity, epsilon, delta)


def _cells(sensitivity: Real, step: Real) -> Real:
    """Return n, the largest number of grid steps between neighbours; the noise reaches farther."""
    checks.positive("step", step)
    if checks.concrete(sensitivity) is None or checks.concrete(step) is None:
        return jnp.ceil(jax.lax.stop_gradient(sensitivity / step))
    if has_axes(sensitivity, step):
        return entrywise(_cells, sensitivity, step)
    steps = math.ceil(Fraction(float(sensitivity)) / Fraction(float(step)))
    if steps > MAX_POINTS:
        raise too_fine(step)
    return steps


def _check(epsilon: Real, sensitivity: Real) -> None:
    checks.epsilon(epsilon)
    checks.sensitivity(sensitivity)
    checks.broadcastable(epsilon=epsilon, sensitivity=sensitivity)
