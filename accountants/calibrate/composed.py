"""Calibrate several releases together: the least noise, or the largest budget of each, for a target (epsilon, delta).

Every equation of composed releases is solved in terms of log mu. Here mu is the ratio of sensitivity to sigma of
Gaussian noise with the same delta at eps,

    Phi(mu/2 - eps/mu) = delta:    mu = sqrt(z^2 + 2 eps) - z,    z = -Phi^-1(delta).

If noise is proportional to e^t, or budgets to e^-t, log mu has a slope of about -1 in t, so few steps are needed even
from a poor initial guess. The conservative rounding of plain numbers costs about 2e-5 of the noise.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from accountants.calibrate.risk_limit import RiskLimit, parse_target, risk_parameter
from accountants.calibrate.scale import check_target, rescaled
from accountants.composition.brackets.dispatch import RigorousBounds
from accountants.composition.repeated import ConvergenceError, RepeatedReleases
from accountants.from_mechanism import guarantee
from accountants.guarantee import Guarantee
from accountants.precision import in_64_bits
from accountants.profile import epsilon as realised_epsilon
from dpkernels import checks
from dpkernels.distributions.base import Distribution
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.base import Mechanism
from dpkernels.numerics import Real, RealArray, namespace, ndtri, without_derivative
from dpkernels.pytrees import PyTree
from dpkernels.solve import NotPrivateError, conservative_root, newton, promote

__all__ = ["composed", "composed_budget", "composed_scale", "noise_scale_factor"]

# The allowed relative difference of the bracket's upper end from the estimate of eps; also the longest step after it.
_MAX_EXCESS = 1e-3
_MIN_EPSILON = 1e-300  # The least eps that is used.
_MAX_LOG_FACTOR = 40.0  # The ends of the searched parameter t; a budget or a scale changes by e^t.
_TOLERANCE = 1e-5  # The last Newton step in the logarithm of a budget.
_SCALE_TOLERANCE = 1e-8  # The last Newton step in the logarithm of a scale.


@in_64_bits
def composed_scale(
    noise: Distribution,
    *,
    epsilon: Real | None = None,
    delta: Real | None = None,
    sensitivity: Real = 1.0,
    count: int,
    rate: Real | None = None,
    adjacency: str = "add_remove",
    advantage: float | None = None,
    true_positive_rate: tuple[float, float] | None = None,
    scheme: Callable[[Guarantee], Guarantee] | None = None,
) -> Real:
    """Return the least c such that ``count`` releases with noise c Z meet a target together.

    The target is (eps, delta)-DP, or a limit of one risk. Plain numbers meet it by the rigorous bound.

    Args:
        noise: the distribution of Z.
        epsilon: eps of all releases, positive.
        delta: delta of all releases, in (0, 1).
        sensitivity: D, in the unit of c Z, in [1e-100, 1e100].
        count: the number of releases, an integer in 1..2^40.
        rate: the rate of the Poisson sample of each release, in (0, 1].
        adjacency: the neighbours of samples, as in ``Guarantee.subsample``.
        advantage: instead of eps and delta, the largest ``Guarantee.advantage``, in (0, 1). It takes plain numbers.
        true_positive_rate: instead of these, (false positive rate, largest true positive rate), plain numbers.
        scheme: instead of the rate, a function from the guarantee of one release to that of a batch scheme, such as
            ``lambda step: step.random_allocation(100)``, which is repeated ``count`` times. It takes plain numbers.

    Raises:
        ValueError: an argument is out of range, there are a rate and a scheme, or a case of ``noise_scale_factor``,
            which computes c.
        TypeError: count is not an integer, the distribution is of an unknown type, or a scheme has JAX numbers.
    """
    target = parse_target(epsilon, delta, advantage, true_positive_rate, (noise, sensitivity, count, rate))
    if scheme is not None:
        if rate is not None:
            raise ValueError(f"rate: {rate}; a scheme has samples of its own")
        if namespace(epsilon, delta, sensitivity, *jax.tree.leaves(noise)) is not np:
            raise TypeError("scheme: noise of schemes is calibrated for plain numbers")

    def releases(scale: Real) -> Guarantee:
        mechanism = Additive(rescaled(noise, scale), sensitivity)
        return (
            _releases(mechanism, count, rate, adjacency)
            if scheme is None
            else scheme(guarantee(mechanism)).repeat(count)
        )

    if isinstance(target, RiskLimit):
        checks.sensitivity(sensitivity)
        _check_samples(count, rate)
        start = gaussian_scale(noise, sensitivity, target.mu / math.sqrt(count) / (1.0 if rate is None else rate))
        if scheme is None:
            target.check_noise_is_needed(_delta_without_noise(releases(start)))
        return start * math.exp(risk_parameter(lambda t: releases(start * math.exp(t)), target))
    epsilon, delta = target
    check_target(epsilon, delta, sensitivity)
    _check_releases(epsilon, count, rate)
    noise, budget, sensitivity, rate = promote(noise, target, sensitivity, rate)
    epsilon, delta = budget
    start = gaussian_scale(noise, sensitivity, gaussian_ratio(epsilon, delta, count, rate))
    start_releases = releases(start)
    if namespace(epsilon, delta, *jax.tree.leaves(start_releases)) is np:
        if scheme is None:
            _check_noise_is_needed(start_releases, delta)
        # Solved for the scale itself, so that no rounding separates the noise from what was proven.
        t = conservative_parameter(lambda t: releases(start * math.exp(t)), float(epsilon), float(delta))
        return start * math.exp(t)
    return start * noise_scale_factor(start_releases, epsilon=epsilon, delta=delta)


@in_64_bits
def composed(
    noise: Distribution,
    *,
    epsilon: Real | None = None,
    delta: Real | None = None,
    sensitivity: Real = 1.0,
    count: int,
    rate: Real | None = None,
    adjacency: str = "add_remove",
    advantage: float | None = None,
    true_positive_rate: tuple[float, float] | None = None,
) -> Additive:
    """Return noise of this shape with the smallest scale that the target of ``count`` releases together allows.

    Arguments and errors are those of ``composed_scale``; sensitivity is in data units. The mechanism's claim, which a
    release verifies, is for one release on all the data (or on the sample): its own eps at delta / count, if that is at
    most 20. JAX numbers and limits of a risk give no claim.

    Example:
        >>> from dpkernels.distributions.gaussian import Gaussian
        >>> m = composed(Gaussian(1.0), epsilon=1.0, delta=1e-6, count=1000, rate=0.01)
        >>> round(m.noise.sigma, 3)
        1.563
    """
    scale = composed_scale(
        noise, sensitivity=sensitivity, count=count, rate=rate, adjacency=adjacency,
        epsilon=epsilon, delta=delta, advantage=advantage, true_positive_rate=true_positive_rate,
    )  # fmt: skip
    mechanism = Additive(rescaled(noise, scale), sensitivity)
    if delta is None or namespace(delta, *jax.tree.leaves(mechanism)) is jnp:
        return mechanism
    return with_release_claim(mechanism, delta / count)


def with_release_claim(mechanism: Additive, delta: Real) -> Additive:
    """Return the mechanism with the claim of one release, its own eps at delta; without a claim if that exceeds 20."""
    lowest, highest = checks.EPSILON_RANGE
    level = realised_epsilon(mechanism, delta)
    if level > highest:
        return mechanism
    return mechanism.claim(sensitivity=mechanism.sensitivity, epsilon=max(level, lowest), delta=delta)


@in_64_bits
def noise_scale_factor(
    releases: Guarantee,
    *,
    epsilon: Real | None = None,
    delta: Real | None = None,
    advantage: float | None = None,
    true_positive_rate: tuple[float, float] | None = None,
) -> Real:
    """Return the factor by which all noise must be scaled so that all releases together meet a target.

    The target is (eps, delta)-DP, or a limit of one risk, as in ``composed_scale``.

    Neighbours are those of the guarantee ``releases``, of additive noise, such as
    ``guarantee(m).subsample(rate).repeat(n)``. Plain numbers are rounded conservatively, in the time of about eight
    evaluations of delta and two of the bracket. JAX numbers are precise to 1e-9, and differentiable in every parameter;
    NaN means that no factor was found.

    Raises:
        ValueError: epsilon is not positive, delta is not in (0, 1), or releases on samples meet delta without noise.
        TypeError: the releases are not additive noise.
        ConvergenceError: no factor was found.
    """
    target = parse_target(epsilon, delta, advantage, true_positive_rate, releases)
    if isinstance(target, RiskLimit):
        target.check_noise_is_needed(_delta_without_noise(releases))
        return math.exp(risk_parameter(lambda t: _with_log_factor(t, releases), target))
    epsilon, delta = target
    check_target(epsilon, delta)
    checks.positive("epsilon", epsilon)
    _check_noise_is_needed(releases, delta)
    if namespace(epsilon, delta, *jax.tree.leaves(releases)) is np:
        return math.exp(conservative_parameter(lambda t: _with_log_factor(t, releases), float(epsilon), float(delta)))
    return precise_scale_factor(releases, epsilon, delta)


def precise_scale_factor(releases: Guarantee, epsilon: Real, delta: Real) -> Real:
    """Return the factor of ``noise_scale_factor`` by the precise composition, without conservative rounding."""
    releases, epsilon, delta = promote(releases, epsilon, delta)
    xp = namespace(epsilon, delta)
    return xp.exp((_log_factor if xp is np else jax.jit(_log_factor))(releases, epsilon, delta))


def _log_factor(releases: Guarantee, epsilon: Real, delta: Real) -> Real:
    return precise_parameter(_with_log_factor, releases, epsilon, delta, tolerance=_SCALE_TOLERANCE)


def _check_noise_is_needed(releases: Guarantee, delta: Real) -> None:
    """Check that noise is needed."""
    numbers = [number for term in releases.terms for number in (term.sampling_rate, term.count) if number is not None]
    if any(checks.concrete(number) is None for number in (*numbers, delta)):
        return
    if delta >= (most := _delta_without_noise(releases)):
        raise ValueError(f"delta: {delta:g}; on these samples releases without noise have {most:.6g} already")


def _delta_without_noise(releases: Guarantee) -> float:
    """Return delta of releases without noise: with probability prod (1 - r)^n the record is in no sample."""
    rates = [(1.0 if term.sampling_rate is None else term.sampling_rate, term.count) for term in releases.terms]
    with np.errstate(divide="ignore"):
        return -math.expm1(sum(float(count) * np.log1p(-float(rate)) for rate, count in rates))


def _with_log_factor(t: Real, releases: Guarantee) -> Guarantee:
    factor = math.exp(t) if isinstance(t, float) else jnp.exp(t)

    def scaled(term: RepeatedReleases) -> RepeatedReleases:
        return dataclasses.replace(term, pairs=tuple(pair.with_noise_scaled(factor) for pair in term.pairs))

    return Guarantee(tuple(map(scaled, releases.terms)))


@in_64_bits
def composed_budget(
    constructor: Callable[..., Mechanism],
    *,
    epsilon: Real | None = None,
    delta: Real | None = None,
    count: int,
    rate: Real | None = None,
    adjacency: str = "add_remove",
    initial_guess: float | None = None,
    advantage: float | None = None,
    true_positive_rate: tuple[float, float] | None = None,
    **arguments: Real,
) -> Mechanism:
    """Return the mechanism of the largest eps0 in [0.01, 20] such that ``count`` releases meet a target together.

    The target is (eps, delta)-DP, or a limit of one risk. Plain numbers are rounded conservatively by the bracket; JAX
    numbers are those of the estimate, NaN if eps0 = 0.01 is infeasible.

    Args:
        constructor: makes the mechanism from ``epsilon=eps0`` and the arguments, such as ``dpkernels.piecewise`` or
            ``dpkernels.laplace``. The delta of its mechanism must grow with eps0.
        epsilon: eps of all releases, positive.
        delta: delta of all releases, in (0, 1).
        count: the number of releases, an integer in 1..2^40.
        rate: the rate of the Poisson sample of each release, in (0, 1].
        adjacency: the neighbours of samples, as in ``Guarantee.subsample``.
        initial_guess: eps0, if it is known already. If the bracket agrees, eps0 is lowered only as far as it requires.
        advantage: instead of eps and delta, the largest ``Guarantee.advantage``, as in ``composed_scale``.
        true_positive_rate: instead of these, (false positive rate, largest true positive rate).
        **arguments: the constructor's other arguments, such as lower and upper.

    Raises:
        ValueError: an argument is out of range, or eps0 = 0.01 exceeds the target, with the delta that it has.
        TypeError: count is not an integer.
    """
    if initial_guess is not None:
        checks.positive("initial_guess", initial_guess)
    target = parse_target(epsilon, delta, advantage, true_positive_rate, (arguments, count, rate))
    if isinstance(target, RiskLimit):
        _check_samples(count, rate)
        return _budget_for_risk(constructor, arguments, target, count, rate, adjacency, initial_guess)
    epsilon, delta = target
    check_target(epsilon, delta)
    _check_releases(epsilon, count, rate)
    member, numbers = split_arguments(constructor, arguments)
    guess = gaussian_ratio(epsilon, delta, count, rate) if initial_guess is None else initial_guess
    if namespace(epsilon, delta, count, rate, *jax.tree.leaves(numbers)) is jnp:
        samples, fixed = _split({"count": count, "rate": rate, "adjacency": adjacency})

        def at_budget(level: Real, parameters: PyTree) -> Guarantee:
            return _releases(member(level, parameters[0]), **fixed, **parameters[1])

        return member(largest_budget(at_budget, (numbers, samples), epsilon, delta, guess), numbers)
    _, mechanism, releases = _by_log_budget(constructor, arguments, float(guess), count, rate, adjacency)
    if initial_guess is None and (best := releases(_MAX_LOG_FACTOR).delta(epsilon)) > delta:
        raise ValueError(
            f"epsilon, delta: {epsilon:g}, {delta:g}; these reports, at budgets of {checks.EPSILON_RANGE[0]} each, "
            f"have delta {best:.6g} at this epsilon"
        )
    return mechanism(
        conservative_parameter(releases, float(epsilon), float(delta), starts_at_root=initial_guess is not None)
    )


def _by_log_budget(
    constructor: Callable[..., Mechanism],
    arguments: Mapping[str, object],
    guess: float,
    count: int,
    rate: Real | None,
    adjacency: str,
) -> tuple[tuple[float, float], Callable[[float], Mechanism], Callable[[float], Guarantee]]:
    """Return (t of the least and of the largest budget, t -> mechanism, t -> releases): t lowers the log of a guess."""
    least, most = (math.log(end) for end in checks.EPSILON_RANGE)
    start = min(max(math.log(guess), least), most)

    def mechanism(t: float) -> Mechanism:
        return constructor(epsilon=math.exp(min(max(start - t, least), most)), **arguments)

    def releases(t: float) -> Guarantee:
        return _releases(mechanism(t), count, rate, adjacency)

    return (start - least, start - most), mechanism, releases


def _budget_for_risk(
    constructor: Callable[..., Mechanism],
    arguments: Mapping[str, object],
    limit: RiskLimit,
    count: int,
    rate: Real | None,
    adjacency: str,
    guess: float | None,
) -> Mechanism:
    if guess is None:
        guess = float(limit.mu / math.sqrt(count) / (1.0 if rate is None else rate))
    (least, most), mechanism, releases = _by_log_budget(constructor, arguments, guess, count, rate, adjacency)
    if limit.bound(releases(most)) <= limit.limit:
        return mechanism(most)
    if (risk := limit.bound(releases(least))) > limit.limit:
        raise ValueError(f"{limit}; these reports, at budgets of {checks.EPSILON_RANGE[0]} each, have {risk:.6g}")
    return mechanism(risk_parameter(releases, limit))


def largest_budget(
    releases: Callable[[Real, PyTree], Guarantee],
    parameters: PyTree,
    epsilon: Real,
    delta: Real,
    guess: Real,
    tolerance: float = _TOLERANCE,
) -> Real:
    """Return the largest eps0 in [0.01, 20] at which releases are (eps, delta)-DP by the precise composition.

    It is NaN if 0.01 is infeasible, and differentiable for JAX numbers. ``releases`` maps (eps0, parameters) to a
    guarantee whose delta grows with eps0, without captured tracers; the parameters are a pytree. The tolerance is the
    last Newton step of log eps0 for JAX numbers. A good guess needs a small one: a step may be short where the
    derivative jumps, away from the root.
    """
    parameters, epsilon, delta, guess = promote(parameters, epsilon, delta, guess)
    xp = namespace(epsilon, delta, guess)
    least, most = (xp.log(xp.asarray(end)) for end in checks.EPSILON_RANGE)
    start = -without_derivative(xp.clip(xp.log(xp.asarray(guess)), least, most))
    search = {"initial_guess": start, "ends": (-most, -least), "tolerance": tolerance, "clip": True}
    t = precise_parameter(partial(_at_log_budget, releases), parameters, epsilon, delta, **search)
    level = xp.minimum(xp.exp(-xp.asarray(t)), checks.EPSILON_RANGE[1])
    return xp.where(t < -least, level, xp.nan)[()]


def _at_log_budget(releases: Callable[[Real, PyTree], Guarantee], t: Real, parameters: object) -> Guarantee:
    return releases(namespace(t).exp(-t), parameters)


def split_arguments(
    constructor: Callable[..., Mechanism], arguments: Mapping[str, PyTree]
) -> tuple[Callable[[Real, PyTree], Mechanism], dict[str, Real]]:
    """Return (a function without tracers from (eps0, numbers) to the mechanism, the arguments with JAX numbers)."""
    numbers, fixed = _split(arguments)
    return lambda level, moving: constructor(epsilon=level, **fixed, **moving), numbers


def _split(arguments: Mapping[str, PyTree]) -> tuple[dict[str, PyTree], dict[str, PyTree]]:
    numbers = {name: value for name, value in arguments.items() if namespace(*jax.tree.leaves(value)) is jnp}
    return numbers, {name: value for name, value in arguments.items() if name not in numbers}


def _check_releases(epsilon: Real, count: int, rate: Real | None) -> None:
    checks.positive("epsilon", epsilon)
    _check_samples(count, rate)


def _check_samples(count: int, rate: Real | None) -> None:
    if not isinstance(count, jax.Array):
        checks.integer_in("count", count, 1, 1 << 40)
    if rate is not None:
        checks.within("rate", rate, np.nextafter(0.0, 1.0), 1.0, span="(0, 1]")


def _releases(mechanism: Mechanism, count: object, rate: Real | None, adjacency: str) -> Guarantee:
    release = guarantee(mechanism)
    return (release if rate is None else release.subsample(rate, adjacency)).repeat(count)


def log_mu(delta: RealArray | np.float64, epsilon: Real) -> Real:
    """Return log mu of the module docstring, which increases in delta."""
    xp = namespace(delta, epsilon)
    float_info = xp.finfo(delta.dtype)
    z = -ndtri(xp.clip(delta, float_info.tiny, 1 - float_info.eps))
    root = xp.sqrt(z**2 + 2 * epsilon)
    return xp.log(xp.where(z > 0, 2 * epsilon / (root + xp.where(z > 0, z, 0.0)), root - z))


def gaussian_ratio(epsilon: Real, delta: Real, count: Real, rate: Real | None) -> RealArray:
    """Return mu/(rate sqrt(count)), about the ratio D/sigma that each of ``count`` Gaussian releases may have."""
    xp = namespace(epsilon, delta, rate, count)
    mu = xp.exp(log_mu(xp.asarray(delta), epsilon))
    return mu / xp.sqrt(xp.asarray(count, mu.dtype)) / (1.0 if rate is None else rate)


def gaussian_scale(noise: Distribution, sensitivity: Real, ratio: Real) -> Real:
    """Return c for which c Z has the variance of Gaussian noise of this ratio D/sigma; without derivative."""
    xp = namespace(sensitivity, ratio, *jax.tree.leaves(noise))
    scale = without_derivative(sensitivity / xp.sqrt(noise.variance) * xp.maximum(1 / ratio, 0.25))
    return float(scale) if xp is np else scale


def precise_parameter(
    releases: Callable[[Real, PyTree], Guarantee],
    parameters: PyTree,
    epsilon: Real,
    delta: Real,
    *,
    initial_guess: Real = 0.0,
    ends: tuple[Real, Real] = (-_MAX_LOG_FACTOR, _MAX_LOG_FACTOR),
    tolerance: float = _TOLERANCE,
    clip: bool = False,
) -> Real:
    """Return the t at which releases are (eps, delta)-DP by the precise composition, or NaN if there is none.

    ``releases`` maps (t, parameters), without captured tracers, to a guarantee whose delta falls with t; see
    ``newton``.
    """
    xp = namespace(epsilon, delta)
    arguments = parameters, epsilon, log_mu(xp.asarray(delta), epsilon)
    excess = partial(_excess, releases)
    return newton(excess, arguments, initial_guess, ends, tolerance=tolerance, longest=2.0, clip=clip)


def _excess(releases: Callable[[Real, PyTree], Guarantee], t: Real, arguments: tuple[PyTree, Real, Real]) -> Real:
    parameters, epsilon, goal = arguments
    delta = releases(t, parameters).estimate_delta(epsilon)
    return log_mu(namespace(delta).asarray(delta), epsilon) - goal


def conservative_parameter(
    releases: Callable[[float], Guarantee], epsilon: float, delta: float, *, starts_at_root: bool = False
) -> float:
    """Return the least plain t at which the upper end of the rigorous bracket of the releases meets (eps, delta).

    Their delta falls with t. If the precise root is known to be t = 0, it is solved for only if the bracket disagrees.
    """

    @cache
    def missing(t: float) -> float:
        """Return the log of the bracket's eps over the target's, which is about the increase of t that is needed."""
        return math.log(max(RigorousBounds(releases(t)).upper_epsilon(delta), _MIN_EPSILON) / epsilon)

    start = 0.0
    if not starts_at_root or abs(missing(0.0)) > _MAX_EXCESS:
        target = np.float64(epsilon), np.float64(delta)
        start = float(precise_parameter(lambda t, _: releases(float(t)), (), *target, clip=True))
    try:
        # Steps are short, because a jump of the bracket's eps, as from infinity, is no measure of the error of t.
        return conservative_root(missing, start, longest=_MAX_EXCESS)
    except NotPrivateError as error:
        raise ConvergenceError(
            f"epsilon, delta: {epsilon:g}, {delta:g}; the bracket stays above it: {error}"
        ) from error
