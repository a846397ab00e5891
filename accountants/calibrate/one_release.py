"""Calibrate one release for a target (epsilon, delta): bounded mechanisms, noise on a grid, and reweighted noise.

The density of reweighted noise has a weight u beyond theta: 1 - q of recycled noise, 0 of truncated noise. With
Z(u) = p_in + u p_out, where p_in is the kernel's mass within theta,

    h(u) = Z(u) (delta(eps) - delta) = integral max(0, w_u(x) K(x) - e^eps w_u(x - D) K(x - D)) dx - delta Z(u)

is convex in u. The noise meets its budget where h(u) <= 0, and the least feasible u has the largest acceptance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accountants.calibrate.composed import split_arguments
from accountants.calibrate.scale import check_target, infeasible_shift, meets_budget, rescaled, smallest_scale
from accountants.dominating_pairs.additive import additive_pair
from accountants.dominating_pairs.base import curve, profile
from accountants.dominating_pairs.registry import dominating_pairs, noise_pairs
from accountants.profile import delta as realised
from dpkernels import checks
from dpkernels.distributions.base import Distribution
from dpkernels.distributions.discrete import DiscreteGaussian, DiscreteLaplace, Lattice
from dpkernels.distributions.gaussian import Gaussian
from dpkernels.distributions.laplace import Laplace
from dpkernels.distributions.reweighted import Reweighted
from dpkernels.mechanisms import named
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.base import Mechanism
from dpkernels.numerics import UNIT_ROUNDOFF, Real, RealArray, namespace, without_derivative
from dpkernels.pytrees import PyTree
from dpkernels.solve import (
    MARGINS,
    NotPrivateError,
    convex_root,
    first_feasible,
    first_root,
    minimum_on_grid,
    promote,
    root,
)

__all__ = [
    "best_recycled_scale",
    "best_truncation_bound",
    "bounded",
    "budget_recycled",
    "discrete_gaussian",
    "discrete_laplace",
    "least_truncation_bound",
    "recycled_scale",
    "recycling_rate",
    "truncated_gaussian",
    "truncated_laplace",
]

# Two formulas of one delta differ by rounding, which at a delta of 1e-12 is several percent of it.
_RECYCLED_MARGINS = (*MARGINS, *np.geomspace(1e-10, 1e-2, 17))
# Where delta is small the ends must move by more than their own rounding errors.
_TRUNCATED_MARGINS = (*MARGINS, *np.geomspace(1e-10, 1e-5, 11))
LEAST_WEIGHT = UNIT_ROUNDOFF  # The least weight of the outside: q is at most the float before 1.


def bounded(constructor: Callable[..., Mechanism], *, epsilon: Real, delta: Real, **arguments: Real) -> Mechanism:
    """Return a bounded mechanism with the largest budget eps0 >= eps of its own whose delta(eps) is at most delta.

    A mechanism that is exactly eps0-DP is (eps, delta)-DP for smaller eps, so that eps0, its ``epsilon``, may exceed
    eps.

    Args:
        constructor: such as ``dpkernels.piecewise``; called with ``epsilon=eps0`` and the arguments.
        epsilon: eps, in [0.01, 20].
        delta: in (0, 1).
        **arguments: the constructor's other arguments, such as lower and upper.

    Raises:
        ValueError: epsilon or delta is out of range.
    """
    checks.epsilon(epsilon)
    check_target(epsilon, delta)
    member, numbers = split_arguments(constructor, arguments)
    numbers, epsilon, delta = promote(numbers, epsilon, delta)

    def excess(budget: Real, setting: tuple[object, Real, Real]) -> Real:
        numbers, epsilon, delta = setting
        return realised(member(budget, numbers), epsilon) - delta

    setting, largest = (numbers, epsilon, delta), checks.EPSILON_RANGE[1]
    if namespace(epsilon) is np:
        budget = largest if excess(largest, setting) <= 0 else root(excess, setting, epsilon, largest, rtol=1e-12)
        smaller = (member(max(budget * (1 - margin), epsilon), numbers) for margin in MARGINS)
        return first_feasible(smaller, lambda candidate: meets_budget(dominating_pairs(candidate), epsilon, delta))
    most = jnp.full_like(epsilon, largest)
    budget = root(excess, setting, epsilon, most, rtol=1e-12)
    return member(jnp.where(excess(most, setting) <= 0, most, budget), numbers)


def discrete_gaussian(*, epsilon: float, delta: float, sensitivity: float = 1.0, step: float = 1.0) -> Additive:
    """Return Gaussian noise on multiples of ``step`` (Canonne, Kamath & Steinke 2020) with the smallest sigma.

    Arguments are plain numbers, because they decide the number of points of the noise, which JAX must know. Neighbours
    are at most n = ceil(D/step) grid points apart. It is not proven that delta falls with sigma, in particular for
    n > 1: sigma meets the target, and a slightly smaller one does not.

    Raises:
        ValueError: epsilon is not in [0.01, 20], delta is not in (0, 1), sensitivity is not in [1e-100, 1e100], or step
            is not positive, or too small for the noise.
    """
    return _calibrate_lattice(DiscreteGaussian, Gaussian(1.0), epsilon, delta, sensitivity, step)


def discrete_laplace(*, epsilon: float, delta: float, sensitivity: float = 1.0, step: float = 1.0) -> Additive:
    """Return Laplace noise on multiples of ``step`` with the smallest scale; see ``discrete_gaussian``."""
    return _calibrate_lattice(DiscreteLaplace, Laplace(1.0), epsilon, delta, sensitivity, step)


def _calibrate_lattice(
    noise: Callable[[float, float], Lattice],
    unit: Distribution,
    epsilon: float,
    delta: float,
    sensitivity: float,
    step: float,
) -> Additive:
    checks.epsilon(epsilon)
    check_target(epsilon, delta, sensitivity)
    checks.positive("step", step)
    if namespace(epsilon, delta, sensitivity, step) is not np:
        raise TypeError(
            "epsilon, delta, sensitivity, step: JAX numbers; noise on a grid is calibrated by plain numbers"
        )
    shift_steps = math.ceil(Fraction(sensitivity) / Fraction(step))

    def excess(scale: float, _: object) -> float:
        p = noise(scale, step).probabilities
        shifted = np.concatenate([np.zeros(shift_steps), p])[: len(p)]
        return float(np.maximum(p - math.exp(epsilon) * shifted, 0.0).sum()) - delta

    high = float(smallest_scale(unit, epsilon, delta, shift_steps * step))
    low = high / 2
    while excess(high, ()) > 0:
        high, low = 1.25 * high, high
    while excess(low, ()) <= 0:
        high, low = low, low / 2
    root_scale = root(excess, (), high, low, rtol=1e-13)
    # Another order of summation may change the last bits.
    wider = (Additive(noise(root_scale * (1 + margin), step), sensitivity, epsilon, delta) for margin in MARGINS)
    return first_feasible(wider, lambda candidate: meets_budget(dominating_pairs(candidate), epsilon, delta))


# Reweighted noise


def weighted_excess(kernel: Distribution, u: Real, theta: Real, D: Real, epsilon: Real, delta: Real) -> Real:
    """Return h(u) = Z(u) (delta(eps) - delta), which is convex in u."""
    gain, total = weighted_profile(kernel, u, theta, D, epsilon)
    return gain - delta * total


def weighted_profile(kernel: Distribution, u: Real, theta: Real, D: Real, epsilon: Real) -> tuple[Real, Real]:
    """Return (Z(u) delta(eps), Z(u)) of an even kernel, in closed pieces if its cut is known, else by its profile."""
    xp = namespace(u, theta, D, epsilon, *jax.tree.leaves(kernel))
    if type(kernel) in _CUTS:
        return _summed_pieces(kernel, u, theta, D, epsilon, xp)
    reweighted = Reweighted(kernel, -theta, theta, u)
    pairs = (additive_pair(reweighted, D),)
    return reweighted.total * (profile(pairs, epsilon) if xp is np else curve(pairs)(epsilon)), reweighted.total


def _summed_pieces(
    kernel: Distribution, u: Real, theta: Real, D: Real, epsilon: Real, xp: ModuleType
) -> tuple[RealArray, RealArray]:
    """Sum pieces between the steps of w(x) and w(x - D): each up to a cut, where the integrand is 0."""
    inner_step, outer_step = xp.minimum(theta, D - theta), xp.maximum(theta, D - theta)
    steps = xp.stack([-theta, inner_step, outer_step, D + theta])
    lower, upper = xp.append(-xp.inf, steps), xp.append(steps, xp.inf)
    points = xp.concatenate([steps[:1] - D, (steps[1:] + steps[:-1]) / 2, steps[-1:] + D])
    w_p, w_q = (xp.where(xp.abs(z) < theta, 1.0, u) for z in (points, points - D))
    cut = without_derivative(_CUTS[type(kernel)](kernel, D, _threshold(epsilon, w_p, w_q)))
    # The last column is the mass within theta.
    low, high = xp.append(lower, -theta), xp.append(xp.clip(cut, lower, upper), theta)
    p, q = kernel.mass(xp.stack([low, low - D]), xp.stack([high, high - D]))
    gain = xp.maximum(w_p * p[:-1] - xp.exp(epsilon) * w_q * q[:-1], 0.0).sum()
    return gain, p[-1] + u * (1 - p[-1])


def _threshold(epsilon: Real, w_p: Real, w_q: Real) -> Real:
    """Return the kernel's loss above which w_p K(x) exceeds e^eps w_q K(x - D): infinite where a weight is 0."""
    xp = namespace(epsilon, w_p, w_q)
    p_is_positive, q_is_positive = w_p > 0, w_q > 0
    finite_threshold = epsilon - xp.log(xp.where(p_is_positive, w_p, 1.0)) + xp.log(xp.where(q_is_positive, w_q, 1.0))
    return xp.where(p_is_positive, xp.where(q_is_positive, finite_threshold, -xp.inf), xp.inf)


def _gaussian_cut(kernel: Gaussian, D: Real, loss: Real) -> Real:
    return D / 2 - loss * kernel.sigma**2 / D


def _laplace_cut(kernel: Laplace, D: Real, loss: Real) -> RealArray:
    """Use that the loss falls from D/b to -D/b between 0 and D, and is constant outside."""
    xp = namespace(kernel.scale, D, loss)
    most = D / kernel.scale
    return xp.where(loss >= most, -xp.inf, xp.where(loss < -most, xp.inf, (D - kernel.scale * loss) / 2))


# The x below which log K(x) - log K(x - D) exceeds a loss.
_CUTS: dict[type[Distribution], Callable[[Any, Real, Real], Real]] = {
    Gaussian: _gaussian_cut,
    Laplace: _laplace_cut,
}


def least_weight(kernel: Distribution, theta: Real, D: Real, epsilon: Real, delta: Real, rtol: float = 0.0) -> Real:
    """Return the least u at which the noise is (eps, delta)-DP over shifts of D, to ``rtol``; NaN if there is none."""
    return convex_root(_weight_excess, (kernel, theta, D, epsilon, delta), LEAST_WEIGHT, 1.0, rtol=rtol)


def _weight_excess(u: Real, arguments: tuple[Distribution, Real, Real, Real, Real]) -> Real:
    return weighted_excess(arguments[0], u, *arguments[1:])


def shape_shift(shape: Reweighted, epsilon: Real, delta: Real, most: Real, rtol: float = 0.0) -> Real:
    """Return the largest shift, up to ``most``, over which even noise of this shape is (eps, delta)-DP, to ``rtol``."""
    return root(_shift_excess, (shape, epsilon, delta), 0.0, most, rtol)


def _shift_excess(shift: Real, arguments: tuple[Reweighted, Real, Real]) -> Real:
    shape, epsilon, delta = arguments
    return weighted_excess(shape.kernel, shape.outside, shape.high, shift, epsilon, delta)


def recycling_rate(kernel: Distribution, theta: Real, epsilon: Real, delta: Real, sensitivity: Real) -> Real:
    """Return the largest q in [0, 1) at which a kernel recycled beyond theta is (eps, delta)-DP over shifts of D.

    delta(eps) is not monotone in q: recycling thins the tails, where a kernel's own delta is, and raises the step at
    theta. The feasible q still form one interval, whose upper end has the largest acceptance; NaN if there are none.
    The computed delta(eps) is at most delta. The tolerated error theta and the sensitivity D are in the kernel's unit.
    """
    check_target(epsilon, delta, sensitivity)
    checks.positive("theta", theta)
    u = least_weight(kernel, theta, sensitivity, epsilon, delta)
    if namespace(u) is not np:
        return 1 - u

    def is_private(q: float) -> bool:
        return _is_private(Reweighted(kernel, -theta, theta, 1 - q), epsilon, delta, sensitivity)

    rates = [] if math.isnan(u) else [1 - min(u * (1 + margin), 1.0) for margin in _RECYCLED_MARGINS]
    try:
        # Where only the kernel alone is private, rounding may hide this.
        return first_feasible([*rates, 0.0], is_private)
    except NotPrivateError:
        return math.nan


def recycled_scale(kernel: Distribution, theta: Real, q: Real, epsilon: Real, delta: Real, sensitivity: Real) -> Real:
    """Return the first c from below at which c times the kernel, recycled beyond theta with q, is (eps, delta)-DP.

    For q < 1 there is one: the mass of a wide kernel within theta is small, recycled or not. Its computed delta(eps) is
    at most delta. The tolerated error theta and the sensitivity D are in the unit of c times the kernel's.
    """
    check_target(epsilon, delta, sensitivity)
    checks.positive("theta", theta)
    checks.below_one("q", q)
    kernel, theta, q, epsilon, delta, sensitivity = promote(kernel, theta, q, epsilon, delta, sensitivity)
    # Recycling only narrows the noise, so delta exceeds the target where the kernel's delta does.
    low = sensitivity / infeasible_shift(kernel, epsilon, delta)
    scale_of_kernel = smallest_scale(kernel, epsilon, delta / 2, sensitivity)
    scale_by_mass = 4 * theta * kernel.prob(0.0) / (delta * (1 - q))
    high = 4 * namespace(scale_of_kernel, scale_by_mass).maximum(scale_of_kernel, scale_by_mass)
    root_scale = first_root(_scale_excess, (kernel, theta, q, epsilon, delta, sensitivity), low, high)
    if namespace(root_scale) is not np or math.isnan(root_scale):
        return root_scale

    def is_private(scale: float) -> bool:
        return _is_private(Reweighted(rescaled(kernel, scale), -theta, theta, 1 - q), epsilon, delta, sensitivity)

    return first_feasible((root_scale * (1 + margin) for margin in _RECYCLED_MARGINS), is_private)


def _scale_excess(scale: Real, parameters: tuple[Distribution, Real, Real, Real, Real, Real]) -> Real:
    kernel, theta, q, eps, delta, D = parameters
    return weighted_excess(rescaled(kernel, scale), 1 - q, theta, D, eps, delta)


def best_recycled_scale(kernel: Distribution, theta: Real, epsilon: Real, delta: Real, sensitivity: Real) -> Real:
    """Return the c at which c times the kernel, with the largest q for it, has the largest P(|Z| <= theta).

    The search covers 0.3 to 30 times the scale that the kernel alone needs, to 1e-4 relative. Derivatives treat c as
    constant, which does not change those of the acceptance.
    """
    kernel, theta, epsilon, delta, sensitivity = promote(kernel, theta, epsilon, delta, sensitivity)
    arguments = kernel, theta / sensitivity, epsilon, delta
    xp = namespace(epsilon, delta, *jax.tree.leaves(kernel))
    center = xp.log(xp.asarray(without_derivative(smallest_scale(kernel, epsilon, delta, 1.0))))
    scales = center + np.linspace(math.log(0.3), math.log(30), 30)
    return sensitivity * xp.exp(minimum_on_grid(_rejection_probability, arguments, scales, xatol=1e-4))[()]


def _rejection_probability(log_scale: Real, arguments: tuple[Distribution, Real, Real, Real]) -> RealArray:
    """Return 1 - P(|Z| <= theta) with the largest q; if no q is feasible, more than 1, and more for smaller scales."""
    kernel, theta, epsilon, delta = arguments
    xp = namespace(log_scale, theta, epsilon, delta)
    wider = rescaled(kernel, xp.exp(log_scale))
    u = least_weight(wider, theta, 1.0, epsilon, delta, rtol=1e-7)
    feasible = ~xp.isnan(u)
    acceptance = Reweighted(wider, -theta, theta, xp.where(feasible, u, 1.0)).acceptance
    return xp.where(feasible, 1 - acceptance, 100.0 - log_scale)


def budget_recycled(
    kernel: Distribution | type,
    *,
    theta: Real,
    epsilon: Real,
    delta: Real,
    sensitivity: Real = 1.0,
    q: Real | None = None,
) -> Additive:
    """Return budget-recycled noise (Jiang 2024), accounted exactly; ``noise.acceptance`` is P(|Z| <= theta).

    Args:
        kernel: a distribution, which is kept and gets the largest q; or a type with one parameter, ``Gaussian`` or
            ``Laplace``, which gets the smallest scale for q, or without q the scale with the largest P(|Z| <= theta).
        theta: the tolerated error, positive, in data units.
        epsilon: eps, in [0.01, 20].
        delta: in (0, 1).
        sensitivity: D, in data units, in [1e-100, 1e100].
        q: the probability of a redraw, in [0, 1), for a type of kernel.

    Raises:
        ValueError: an argument is out of range, no q makes the kernel private enough, with the scale that it needs, or
            q is given together with a distribution.
        TypeError: kernel is neither a distribution nor a type of one.
    """
    checks.epsilon(epsilon)
    check_target(epsilon, delta, sensitivity)
    checks.positive("theta", theta)
    target = epsilon, delta, sensitivity
    scaled_kernel: Any = kernel
    if not (issubclass(kernel, Distribution) if isinstance(kernel, type) else isinstance(kernel, Distribution)):
        raise TypeError(f"kernel: {kernel!r} is no distribution; one, or the type Gaussian or Laplace, is needed")
    if isinstance(kernel, type):
        unit = kernel(1.0)
        scale = best_recycled_scale(unit, theta, *target) if q is None else recycled_scale(unit, theta, q, *target)
        scaled_kernel = rescaled(unit, scale)
    elif q is not None:
        raise ValueError(f"q: {q:g}; is calibrated for a kernel with a scale; give q with the kernel's type")
    if q is None:
        q = recycling_rate(scaled_kernel, theta, *target)
        if checks.concrete(q) is not None and math.isnan(q):
            factor = smallest_scale(scaled_kernel, *target)
            raise ValueError(
                f"kernel: {scaled_kernel} recycled beyond theta = {theta:g} meets epsilon, delta = {epsilon:g}, "
                f"{delta:g} at no q; from {factor:.6g} times as wide on it does at q = 0"
            )
    return named.budget_recycled(scaled_kernel, theta=theta, q=q, sensitivity=sensitivity, epsilon=epsilon, delta=delta)


def truncated_laplace(*, epsilon: Real, delta: Real, sensitivity: Real = 1.0, upper: Real | None = None) -> Additive:
    """Return Laplace noise of scale D/eps on the shortest interval [A, B] (Mugunthan 2020), in closed form.

    The scale and the ends are increased by rounding errors until the computed profile meets the claim: at D/eps most of
    the mass has a loss of eps, and delta is rounded upwards next to it. ``upper`` is B, by default B*, the symmetric
    case; see ``dpkernels.truncated_laplace``.

    Raises:
        ValueError: epsilon is not in [0.01, 20], delta is not in (0, 1), sensitivity is not in [1e-100, 1e100], or B is
            outside the feasible interval, which the message gives.
    """
    mechanism = named.truncated_laplace(epsilon=epsilon, delta=delta, sensitivity=sensitivity, upper=upper)
    noise: Any = mechanism.noise

    def wider(margin: float) -> Reweighted:
        low, high = noise.low * (1 + margin), noise.high * (1 + margin)
        return Reweighted(Laplace(noise.kernel.scale * (1 + margin)), low, high, noise.outside)

    return _first_private(map(wider, _TRUNCATED_MARGINS), epsilon, delta, sensitivity)


def _first_private(noises: Iterator[Reweighted], *target: Real) -> Additive:
    epsilon, delta, sensitivity = target
    noise = first_feasible(noises, lambda noise: _is_private(noise, *target))
    return Additive(noise, sensitivity, epsilon, delta)


def _is_private(noise: Distribution, epsilon: Real, delta: Real, sensitivity: Real) -> bool:
    """Return whether the computed exact profile meets the target; traced noise is not checked."""
    return meets_budget(noise_pairs(noise, sensitivity), epsilon, delta)


def truncated_gaussian(*, epsilon: Real, delta: Real, sensitivity: Real = 1.0, bound: Real | None = None) -> Additive:
    """Return Gaussian noise on [-T, T] (Cesar and Rogers 2021) with the smallest sigma.

    As sigma grows delta(eps) falls, and then rises to the D/(2T) of uniform noise. So each T has a least delta, and
    each delta a least T. Delta includes the infinity mass. T is ``bound``, by default ``best_truncation_bound``.

    Raises:
        ValueError: epsilon is not in [0.01, 20], delta is not in (0, 1), sensitivity is not in [1e-100, 1e100], or
            bound is not positive, or below the least feasible T, which the message gives.
    """
    checks.epsilon(epsilon)
    check_target(epsilon, delta, sensitivity)
    T = best_truncation_bound(epsilon, delta, sensitivity) if bound is None else bound
    checks.positive("bound", T)
    # Noise with sigma = 100 T is almost uniform.
    low = sensitivity / infeasible_shift(Gaussian(1.0), epsilon, delta)
    sigma = first_root(_sigma_excess, (T, epsilon, delta, sensitivity), low, 100 * T + low)
    if checks.concrete(sigma) is not None and math.isnan(sigma):
        least = least_truncation_bound(epsilon, delta, sensitivity)
        raise ValueError(f"bound: {T:g} is too short for epsilon, delta = {epsilon:g}, {delta:g}; from {least:.9g} on")
    noises = (Reweighted(Gaussian(sigma * (1 + margin)), -T, T, 0.0) for margin in _TRUNCATED_MARGINS)
    return _first_private(noises, epsilon, delta, sensitivity)


def _sigma_excess(sigma: Real, parameters: tuple[Real, Real, Real, Real]) -> Real:
    T, eps, delta, D = parameters
    return weighted_excess(Gaussian(sigma), 0.0, T, D, eps, delta)


def least_truncation_bound(epsilon: Real, delta: Real, sensitivity: Real = 1.0) -> Real:
    """Return the least T for which Gaussian noise truncated to [-T, T] can be (eps, delta)-DP; from above, to 1e-7."""
    # Add a little, so that a search for sigma at this T finds one.
    return _truncation_bound(_log_bound, epsilon, delta, sensitivity) * (1 + 5e-8)


def best_truncation_bound(epsilon: Real, delta: Real, sensitivity: Real = 1.0) -> Real:
    """Return a T at which truncated Gaussian noise that meets (eps, delta) has the least variance, to 1e-8 relative.

    The variance is what is accurate. T is less accurate where the variance hardly depends on it, as for a small delta.
    Derivatives are taken at a fixed sigma/T: the variance at the best T has the same derivatives either way.
    """
    return _truncation_bound(_log_variance, epsilon, delta, sensitivity)


def _truncation_bound(minimised: Callable[[Real, PyTree], Real], epsilon: Real, delta: Real, sensitivity: Real) -> Real:
    """Return T of the shape sigma/T that minimises a function; for each shape one T meets the budget."""
    check_target(epsilon, delta, sensitivity)
    epsilon, delta, sensitivity = promote(epsilon, delta, sensitivity)
    xp = namespace(epsilon, delta)
    # Shapes range from noise without visible truncation to almost uniform noise.
    narrowest = -xp.log(8 + xp.sqrt(-2 * xp.log(without_derivative(delta))))
    shapes = xp.linspace(narrowest, math.log(100.0), 32)
    log_shape = minimum_on_grid(minimised, (epsilon, delta), shapes, xatol=1e-7)
    T = sensitivity * xp.exp(_log_bound(log_shape, (epsilon, delta)))
    return float(T) if xp is np else T


def _log_bound(log_shape: Real, target: tuple[Real, Real]) -> Real:
    xp = namespace(log_shape, *target)
    return -xp.log(xp.asarray(shape_shift(_truncated(log_shape), *target, 2.0)))


def _log_variance(log_shape: Real, target: tuple[Real, Real]) -> Real:
    xp = namespace(log_shape, *target)
    return 2 * _log_bound(log_shape, target) + xp.log(_truncated(log_shape).variance)


def _truncated(log_shape: Real) -> Reweighted:
    return Reweighted(Gaussian(namespace(log_shape).exp(log_shape)), -1.0, 1.0, 0.0)
