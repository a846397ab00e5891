"""The least noise, or the largest budgets, with which several reports together meet a target.

What is returned meets it by the upper end of the rigorous bracket, whose grid costs about 2e-5 of the noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from accountants.calibrate.conservative import FARTHEST, conservative_parameter, log_mu
from accountants.calibrate.widening import widening
from accountants.guarantee import Guarantee, guarantee
from accountants.profile import epsilon as realised_epsilon
from accountants.scale import check_target, rescaled
from dpkernels import checks
from dpkernels.distributions.base import Distribution
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.base import Mechanism
from dpkernels.numerics import Real, namespace
from dpkernels.solve import promote


def composed_scale(
    noise: Distribution,
    *,
    epsilon: Real,
    delta: Real,
    sensitivity: Real = 1.0,
    count: int,
    rate: Any = None,
    adjacency: str = "add_remove",
) -> Real:
    """The least c such that ``count`` reports with noise c Z are (eps, delta)-DP together.

    Args:
        noise: the law of Z: Gaussian, Laplace, merged Laplace, staircase, or one of them truncated or recycled.
        epsilon: eps of all reports, positive.
        delta: delta of all reports, in (0, 1).
        sensitivity: D, in the unit of c Z.
        count: how many reports.
        rate: of a Poisson sample for every report; neighbouring is then as of ``Guarantee.subsample``.
        adjacency: of samples; see there.

    Returns:
        c, as ``widening`` has it.

    Raises:
        ValueError: epsilon not positive; delta not in (0, 1); sensitivity not in [1e-100, 1e100]; count not in 1..2^40;
            rate not in (0, 1]; see ``widening``.
        TypeError: count is not a whole number, or a law of an unknown type.
    """
    check_target(epsilon, delta, sensitivity)
    _check_reports(epsilon, count, rate)
    noise, epsilon, delta, sensitivity, rate = promote(noise, epsilon, delta, sensitivity, rate)
    start = _start(noise, epsilon, delta, sensitivity, count, rate)
    made = _reports(Additive(rescaled(noise, start), sensitivity), count, rate, adjacency)
    return start * widening(made, epsilon=epsilon, delta=delta)


def composed(
    noise: Distribution,
    *,
    epsilon: Real,
    delta: Real,
    sensitivity: Real = 1.0,
    count: int,
    rate: Any = None,
    adjacency: str = "add_remove",
) -> Additive:
    """Noise of this law's shape, as narrow as (eps, delta) of ``count`` reports together allows.

    Args:
        noise: see ``composed_scale``, as for the others.
        epsilon: eps of all reports, positive.
        delta: of all reports.
        sensitivity: D of one report, in data units.
        count: how many reports.
        rate: of their Poisson samples.
        adjacency: of samples.

    Returns:
        The mechanism. Its claim, which a release verifies, is that of one report on all the data (or on the sample):
        its own eps at delta / count, where that is up to 20; none under JAX.

    Raises:
        ValueError: as ``composed_scale``.

    Example:
        >>> from dpkernels.distributions.gaussian import Gaussian
        >>> m = composed(Gaussian(1.0), epsilon=1.0, delta=1e-6, count=1000, rate=0.01)
        >>> round(m.noise.sigma, 3)
        1.563
    """
    scale = composed_scale(
        noise, epsilon=epsilon, delta=delta, sensitivity=sensitivity, count=count, rate=rate, adjacency=adjacency
    )
    made = Additive(rescaled(noise, scale), sensitivity)
    return made if namespace(delta, *jax.tree.leaves(made)) is jnp else with_own_claim(made, delta / count)


def with_own_claim(made: Additive, delta: Real) -> Additive:
    """The mechanism with the claim of one report, its own eps at delta, where that is up to 20; else without one."""
    least, most = checks.EPSILON_RANGE
    own = realised_epsilon(made, delta)
    if own > most:
        return made
    return made.claim(sensitivity=made.sensitivity, epsilon=max(own, least), delta=delta)


def composed_budget(
    constructor: Callable[..., Any],
    *,
    epsilon: float,
    delta: float,
    count: int,
    rate: float | None = None,
    adjacency: str = "add_remove",
    initial_guess: float | None = None,
    **arguments: Any,
) -> Mechanism:
    """The mechanism with the largest budget eps0 of its own such that ``count`` reports are (eps, delta)-DP together.

    Args:
        constructor: such as ``dpkernels.piecewise`` or ``dpkernels.laplace``; called with ``epsilon=eps0`` and the
            arguments; its delta must fall with eps0.
        epsilon: eps of all reports, positive.
        delta: of all reports, in (0, 1).
        count: how many reports.
        rate: of a Poisson sample for every report.
        adjacency: of samples.
        initial_guess: eps0, if it is known already. If the bracket agrees, eps0 is only lowered as far as it asks.
        **arguments: the constructor's others, such as lower and upper.

    Returns:
        The mechanism; its ``epsilon`` is eps0, in [0.01, 20].

    Raises:
        ValueError: epsilon or initial_guess not positive; delta not in (0, 1); count not in 1..2^40; rate not in
            (0, 1]; a target that eps0 = 0.01 misses, with what it gives.
        TypeError: count is not a whole number.
    """
    check_target(epsilon, delta)
    _check_reports(epsilon, count, rate)
    if initial_guess is not None:
        checks.positive("initial_guess", initial_guess)
    least, most = (math.log(end) for end in checks.EPSILON_RANGE)
    start = float(log_mu(np.float64(delta), epsilon)) - math.log((rate or 1.0) * math.sqrt(count))
    start = min(max(start if initial_guess is None else math.log(initial_guess), least), most)

    def mechanism(t: float) -> Any:
        return constructor(epsilon=math.exp(min(max(start - t, least), most)), **arguments)

    def reports(t: float) -> Guarantee:
        return _reports(mechanism(t), count, rate, adjacency)

    if initial_guess is None:
        _check_feasible(reports(FARTHEST), epsilon, delta)
    return mechanism(conservative_parameter(reports, epsilon, delta, is_known=initial_guess is not None))


def _check_reports(epsilon: Real, count: int, rate: Any) -> None:
    checks.positive("epsilon", epsilon)
    if not isinstance(count, jax.Array):
        checks.whole("count", count, 1, 1 << 40)
    if rate is not None:
        checks.within("rate", rate, np.nextafter(0.0, 1.0), 1.0, span="(0, 1]")


def _check_feasible(made: Guarantee, epsilon: float, delta: float) -> None:
    best = made.delta(epsilon)
    if best > delta:
        raise ValueError(
            f"epsilon, delta: {epsilon:g}, {delta:g}; these reports, at budgets of {checks.EPSILON_RANGE[0]} each, "
            f"have delta {best:.6g} at this epsilon"
        )


def _reports(mechanism: Mechanism, count: int, rate: Any, adjacency: str) -> Guarantee:
    one = guarantee(mechanism)
    return (one if rate is None else one.subsample(rate, adjacency)).repeat(count)


def _start(noise: Distribution, epsilon: Real, delta: Real, sensitivity: Real, count: int, rate: Any) -> Real:
    """About c: that of Gaussian noise of the same variance, by the central limit; has no derivative."""
    xp = namespace(epsilon, delta, sensitivity, rate, count, *jax.tree.leaves(noise))
    mu = xp.exp(log_mu(xp.asarray(delta), epsilon))
    share = (1.0 if rate is None else rate) * xp.sqrt(count)
    about = sensitivity / xp.sqrt(noise.variance) * xp.maximum(share / mu, 0.25)
    return float(about) if xp is np else jax.lax.stop_gradient(about)
