"""Objectives of tuning: functions of a mechanism, mostly of its error |release - x|.

If the error depends on the input x (bounded mechanisms), an objective is evaluated at a given x, or at the worst of 33
equidistant inputs of the input interval, including both ends. NumPy evaluates mechanisms of plain numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from accountants.calibrate.scale import rescaled
from accountants.from_mechanism import guarantee
from accountants.guarantee import Guarantee
from accountants.risk import Risks
from accountants.tune.family import Member
from dpkernels import checks
from dpkernels.mechanisms.additive import Additive
from dpkernels.mechanisms.base import Bounded, Local, Mechanism, Parabolic
from dpkernels.mechanisms.windowed.mechanism import Windowed
from dpkernels.numerics import Real, RealArray, floating, gauss_legendre, namespace, without_derivative
from dpkernels.pytrees import pytree
from dpkernels.solve import bisect

__all__ = [
    "Constraint",
    "Objective",
    "absolute_error",
    "acceptance",
    "advantage",
    "average_variance",
    "distribution",
    "maximise",
    "quantile",
    "true_positive_rate",
    "variance_at",
    "worst_variance",
]


_cached_partial = cache(partial)  # One object for equal arguments, so that equal objectives compile once.
_NODES, _WEIGHTS = gauss_legendre(2)
# Where on the interval the worst input is searched, both ends and the middle included: each costs an evaluation.
_INPUTS = np.linspace(0.0, 1.0, 33)
_BISECTIONS = 60  # Enough for float64: the interval times 2^-60.
# An estimated distribution:
_BINS = 48  # its bins,
_CELLS = 192  # the cells of reports,
_INPUTS_IN_BIN = 4  # and the inputs in a bin, evenly spaced.


def probability_within(mechanism: Member, x: Real, theta: Real) -> Real:
    """Return P(|release - x| <= theta), NaN at an invalid input x."""
    return _at_valid_input(mechanism, x, mechanism.probability_within(x, theta))


def conditional_variance(mechanism: Parabolic, x: RealArray) -> Real:
    """Return Var(release | x), NaN at an invalid input x."""
    return _at_valid_input(mechanism, x, _unbiased(mechanism).variance(x))


def largest_variance(mechanism: Windowed) -> Real:
    """Return the largest variance over inputs."""
    return _unbiased(mechanism).worst_variance


def mean_absolute_error(mechanism: Mechanism, x: Real) -> Real:
    """Return E|release - x|, NaN at an invalid input x."""
    return _at_valid_input(mechanism, x, mechanism.absolute_error(x))


def error_quantile(mechanism: Member, x: Real, beta: Real) -> Real:
    """Return the least t with P(|release - x| <= t) >= 1 - beta, by bisection; its derivative is implicit."""
    fixed, fixed_x, fixed_beta = without_derivative((mechanism, x, beta))
    most = fixed.error_bound(fixed_x)
    least = namespace(most).zeros_like(floating(most))
    t = bisect(lambda t: probability_within(fixed, fixed_x, t) < 1 - fixed_beta, least, most, _BISECTIONS)[1]
    if namespace(t, *jax.tree.leaves(mechanism)) is np:
        return t
    _, slope = jax.jvp(partial(probability_within, fixed, fixed_x), (t,), (jnp.ones_like(t),))
    rise = probability_within(mechanism, x, t) - (1 - beta)
    # One Newton step of value 0: it carries the derivative. On an atom, or at a kink, the quantile stays.
    rise = rise - jax.lax.stop_gradient(rise)
    return t - jnp.where(slope > 0, rise / jnp.where(slope > 0, slope, 1.0), 0.0)


@cache
def _prior() -> np.ndarray:
    """Return L, of shape (d, d - 1): a square root of the prior's covariance, of probabilities that sum to 1."""
    x = (np.arange(_BINS) + 0.5) / _BINS
    centred = np.eye(_BINS) - 1 / _BINS
    r = np.sqrt(3) * np.abs(x[:, None] - x)
    eigenvalues, vectors = np.linalg.eigh(centred @ ((1 + r) * np.exp(-r)) @ centred / _BINS**2)
    return vectors[:, 1:] * np.sqrt(np.maximum(eigenvalues[1:], 0.0))


def channel(mechanism: Mechanism) -> RealArray:
    """Return A, of shape (K, d): P(report in cell | bin), cells evenly spaced over the output interval."""
    (lower, upper), (low, high) = mechanism.input_interval, mechanism.output_interval
    x = lower + (upper - lower) * (np.arange(_BINS * _INPUTS_IN_BIN) + 0.5) / (_BINS * _INPUTS_IN_BIN)
    inner = low + (high - low) * np.linspace(0, 1, _CELLS + 1)[1:-1, None]
    cdf = mechanism.cdf(inner, x)
    xp = namespace(cdf)
    cdf = xp.concatenate([xp.zeros((1, x.size)), cdf, xp.ones((1, x.size))])
    return xp.diff(cdf, axis=0).reshape(_CELLS, _BINS, _INPUTS_IN_BIN).mean(-1)


def cdf_error(mechanism: Local, reports: Real) -> Real:
    """Return the expected absolute error of a cdf estimated from reports, averaged over the interval, in data units.

    Inputs are of one of d bins, reports of one of K cells; A is the channel between them. Of n reports the Fisher
    information about the bins' probabilities is n A' diag(1/q) A, q = A p, here at the uniform p. It is nearly
    singular, so the probabilities have a prior: the uniform one and a Gaussian process of the density with the
    covariance (1 + r) e^-r, r = sqrt(3) |x - y| on [0, 1] (once differentiable), K0 = L L' for the bins. The posterior
    covariance is

        S = L (1 + n L' A' diag(1/q) A L)^-1 L'

    and the error of the cdf at the ends of bins is sqrt(2/pi) times the square root of the diagonal of C S C', C the
    sums of first bins: their mean is what the Wasserstein-1 distance of the estimate is about, in widths of the
    interval.
    """
    lower, upper = mechanism.input_interval
    A, L = channel(mechanism), _prior()
    xp = namespace(A)
    q = A.mean(1)
    weight = xp.where(q > 0, 1 / xp.where(q > 0, q, 1.0), 0.0)
    B = A @ L
    information = xp.eye(L.shape[1]) + reports * (B.T * weight) @ B
    C = xp.cumsum(L, axis=0)
    variances = (C.T * xp.linalg.solve(information, C.T)).sum(0)
    return xp.sqrt(2 / xp.pi) * xp.sqrt(xp.maximum(variances[:-1], 1e-30)).mean() * (upper - lower)


def _unbiased(mechanism: object) -> Any:
    if isinstance(mechanism, Local) and not isinstance(mechanism, Bounded):
        raise TypeError(
            f"mechanism: {type(mechanism).__name__} is biased, so its variance is not its error; use tune.distribution"
        )
    return mechanism


def _at_valid_input(mechanism: Member, x: Real, error: Real) -> Real:
    """Return the error where x is a valid input, else NaN: the formulas hold for valid inputs only."""
    if not isinstance(mechanism, Local):
        return error
    low, high = mechanism.input_interval
    rounding = 1e-9 * (high - low)
    return namespace(x, low, error).where((x >= low - rounding) & (x <= high + rounding), error, np.nan)[()]


@partial(pytree, static=("function", "name", "sign", "power", "places", "bound"))
@dataclass(frozen=True)
class Objective:
    """A function of a mechanism and some numbers that is minimised (sign 1) or maximised (sign -1).

    Attributes:
        function: from (mechanism, *numbers) to a scalar, in JAX; compiled once for each function.
        name: the name in tables and plots.
        sign: 1 or -1.
        numbers: its parameters, such as beta. Changing them needs no new compilation.
        theta: the tolerated error of an acceptance, else None; it is the last number that the function gets.
        power: the power of a length that the value has; None where it is unknown, as for a user-defined function.
        places: how many of the first numbers are inputs, in data units.
        bound: the function for the mechanism that is released, if the value of a search is an estimate.
    """

    function: Callable[..., Real]
    name: str
    sign: int = 1
    numbers: tuple[Real | None, ...] = ()
    theta: Real | None = None
    power: int | None = None
    places: int = 0
    bound: Callable[..., Real] | None = None

    @property
    def of_release(self) -> Objective:
        """Return the objective that a mechanism is certified by."""
        return self if self.bound is None else dataclasses.replace(self, function=self.bound, bound=None)

    def __call__(self, mechanism: object) -> Real:
        """Return the value, in its natural direction."""
        numbers = self.numbers if self.theta is None else (*self.numbers, self.theta)
        return self.function(mechanism, *numbers)

    def on_unit(self, lower: Any, upper: Any) -> Objective:
        """Return the same where the interval [lower, upper] is [-1, 1]."""
        unit_inputs = tuple(((x - lower) - (upper - x)) / (upper - lower) for x in self.numbers[: self.places])
        theta = None if self.theta is None else 2 * self.theta / (upper - lower)
        return dataclasses.replace(self, numbers=(*unit_inputs, *self.numbers[self.places :]), theta=theta)

    def factor(self, unit: Real) -> Real:
        """Return the factor from values in units of a length to those in data units."""
        return unit**self.power if self.power else 1.0


worst_variance = Objective(largest_variance, "worst variance", power=2)


def variance_at(x: Real) -> Objective:
    """Return Var(release | x), in squared data units.

    Raises:
        ValueError: x is not finite.
    """
    checks.within("x", x, -np.inf, np.inf, open_ends=True)
    return Objective(conditional_variance, "variance", numbers=(x,), power=2, places=1)


def average_variance(edges: ArrayLike | None, weights: ArrayLike) -> Objective:
    """Return the mean variance under a histogram of the inputs that are expected, uniform in each bin.

    The weights are not negative, and scaled to total 1. The edges are one more; None for equal bins over the input
    interval.

    Raises:
        ValueError: weights negative, not 1-D, or without a positive and finite total, edges not finite and increasing,
            or not one more than weights.
    """
    w = np.atleast_1d(np.asarray(weights, np.float64))
    checks.within("weights", w, 0.0, np.inf)
    if w.ndim != 1 or not 0 < w.sum() < np.inf:
        raise ValueError(f"weights: total {w.sum():g}, of shape {w.shape}; a 1-D array of positive total is needed")
    if edges is None:
        return Objective(_average_variance, "average variance", numbers=(None, w / w.sum()), power=2)
    ends = np.asarray(edges, np.float64)
    checks.within("edges", ends, -np.inf, np.inf, open_ends=True)
    if ends.shape != (len(w) + 1,) or not (np.diff(ends) > 0).all():
        raise ValueError(f"edges: {ends}; {len(w) + 1} increasing ones are needed for {len(w)} weights")
    return Objective(_average_variance, "average variance", numbers=(ends, w / w.sum()), power=2, places=1)


def _average_variance(mechanism: Parabolic, edges: RealArray | None, weights: RealArray) -> Real:
    """Return the mean by two Gauss-Legendre nodes a bin: exact, since every variance is a quadratic in x."""
    if edges is None:
        low, high = mechanism.input_interval
        edges = low + (high - low) * namespace(low, high, weights).linspace(0.0, 1.0, weights.size + 1)
    x = edges[:-1, None] + (edges[1:] - edges[:-1])[:, None] * _NODES
    return ((conditional_variance(mechanism, x) * _WEIGHTS).sum(-1) * weights).sum()


def absolute_error(x: Real | None = None) -> Objective:
    """Return E|release - x|, by default at the worst input."""
    return _of_inputs(mean_absolute_error, "absolute error", 1, x, power=1)


def acceptance(theta: Real, x: Real | None = None) -> Objective:
    """Return P(|release - x| <= theta), which is maximised; x is by default the worst input.

    The tolerated error theta is in data units. A family with budget recycling recycles beyond it too, unless it has a
    theta of its own.

    Raises:
        ValueError: theta is not positive.
    """
    checks.positive("theta", theta)
    return dataclasses.replace(_of_inputs(probability_within, "acceptance", -1, x, power=0), theta=theta)


def quantile(beta: Real, x: Real | None = None) -> Objective:
    """Return the (1 - beta) quantile of |release - x|: the error exceeded with probability beta.

    Raises:
        ValueError: beta is not in (0, 1).
    """
    checks.within("beta", beta, 0.0, 1.0, open_ends=True)
    return _of_inputs(error_quantile, "quantile", 1, x, beta, power=1)


def distribution(reports: float = 1e5) -> Objective:
    """Return the expected error of the cdf estimated from n reports, about their Wasserstein-1 distance, in data units.

    It applies to bounded mechanisms, and uses the Fisher information of their reports. A narrower window gives a
    better distribution than the window of least variance, in particular with many reports.

    Raises:
        ValueError: reports is not in [1, 1e15].
    """
    checks.within("reports", reports, 1.0, 1e15)
    return Objective(cdf_error, "error of the distribution", numbers=(reports,), power=1)


# From the guarantee of one report to that of all reports.
Releases = Callable[[Guarantee], Risks]


def advantage(releases: Releases | None = None) -> Objective:
    """Return the largest advantage of an attack on one report, or on all releases; see ``Guarantee.advantage``.

    It is mostly a constraint. A search uses estimates; what ``best`` returns meets the limit by the rigorous bound.

    Args:
        releases: from the guarantee of one report to that of all, such as ``lambda report: report.repeat(20)``. Define
            it once: it is compiled once for each object.

    Example:
        >>> from accountants import tune
        >>> constraint = tune.Constraint(tune.advantage(), at_most=0.1)
    """
    return _of_guarantee(_estimated_advantage, Risks.advantage, releases, "advantage")


def true_positive_rate(false_positive_rate: float, releases: Releases | None = None) -> Objective:
    """Return the largest true positive rate of an attack at a false positive rate; otherwise as ``advantage``.

    Raises:
        ValueError: the rate is not in (0, 1).
    """
    checks.within("false_positive_rate", false_positive_rate, 0.0, 1.0, open_ends=True)
    risks = _estimated_true_positive_rate, Risks.true_positive_rate
    return _of_guarantee(*risks, releases, "true positive rate", false_positive_rate)


def _estimated_advantage(risks: Risks) -> Real:
    return risks.estimate_delta(0.0)


def _estimated_true_positive_rate(risks: Risks, false_positive_rate: Real) -> Real:
    return 1 - risks.estimate_trade_off(false_positive_rate)


def _of_guarantee(
    estimate: Callable[..., Real], bound: Callable[..., Real], releases: Releases | None, name: str, *numbers: Real
) -> Objective:
    evaluate_estimate, evaluate_bound = (_cached_partial(_evaluate_risk, risk, releases) for risk in (estimate, bound))
    return Objective(evaluate_estimate, name, numbers=numbers, power=0, bound=evaluate_bound)


def _evaluate_risk(risk: Callable[..., Real], releases: Releases | None, mechanism: object, *numbers: Real) -> Real:
    report = guarantee(mechanism)
    return risk(report if releases is None else releases(report), *numbers)


# An objective, or a function of the mechanism that is minimised.
ObjectiveLike = Objective | Callable[[Any], Real]


def maximise(function: Callable[..., Real]) -> Objective:
    """Return the objective of a function, in JAX, that is maximised; a plain callable as an objective is minimised."""
    return Objective(function, getattr(function, "__name__", "objective"), -1)


def as_objective(objective: ObjectiveLike) -> Objective:
    """Return the objective itself, or that of a callable; raise a TypeError if it is neither."""
    if isinstance(objective, Objective):
        return objective
    if not callable(objective):
        raise TypeError(f"objective: {objective!r} is no Objective and not callable")
    return dataclasses.replace(maximise(objective), sign=1)


def _of_inputs(
    function: Callable[..., Real], name: str, sign: int, x: Real | None, *numbers: Real, power: int
) -> Objective:
    if x is None:
        worst = _cached_partial(_evaluate_at_worst, function, sign)
        return Objective(worst, f"{name} at the worst input", sign, numbers, power=power)
    checks.within("x", x, -np.inf, np.inf, open_ends=True)
    return Objective(function, name, sign, (x, *numbers), power=power, places=1)


def _evaluate_at_worst(function: Callable[..., Real], sign: int, mechanism: object, *numbers: Real) -> Real:
    """Return the function of the worst input; for additive noise of 0, as all inputs are alike."""
    inputs: Real = np.zeros(1)
    values: Any
    if isinstance(mechanism, Local):
        low, high = mechanism.input_interval
        inputs = low + (high - low) * namespace(low, high).asarray(_INPUTS)
    if namespace(*jax.tree.leaves((mechanism, numbers))) is np:
        values = np.array([function(mechanism, x, *numbers) for x in np.asarray(inputs)])
    else:
        values = jax.vmap(lambda x: function(mechanism, x, *numbers))(jnp.asarray(inputs))
    return values.max() if sign > 0 else values.min()


@dataclass(frozen=True)
class Constraint:
    """An inequality on an objective that a tuned mechanism has to meet, such as an acceptance of at least 0.9.

    Args:
        objective: one of this package's, or a callable as for ``best``.
        at_least: the least value that is allowed.
        at_most: the largest value that is allowed.

    Raises:
        ValueError: not exactly one of at_least and at_most is given, or it is not finite.
        TypeError: the objective is no Objective and not callable, or the limit is not one number.

    Example:
        >>> from accountants import tune
        >>> constraint = tune.Constraint(tune.acceptance(theta=1.0), at_least=0.9)
    """

    objective: ObjectiveLike
    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "objective", as_objective(self.objective))
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(f"at_least, at_most: {self.at_least}, {self.at_most}; exactly one is needed")
        name, limit = self._limit
        checks.within(name, limit, -np.inf, np.inf, open_ends=True)
        object.__setattr__(self, name, checks.number(name, limit))

    @property
    def _limit(self) -> tuple[str, Any]:
        return ("at_most", self.at_most) if self.at_least is None else ("at_least", self.at_least)

    def __str__(self) -> str:
        name, limit = self._limit
        return f"{self.objective.name} {name.replace('_', ' ')} {limit:g}"  # type: ignore[union-attr]

    def tightened(self, fraction: float) -> Constraint:
        """Return the constraint with its limit moved to the stricter side, by a share of it."""
        name, limit = self._limit
        sign = 1 if name == "at_least" else -1
        return dataclasses.replace(self, **{name: limit + sign * fraction * (abs(limit) or 1.0)})

    def violation(self, value: float) -> float:
        """Return how far this value of the objective misses the limit, relative to it; 0 where it meets it."""
        name, limit = self._limit
        excess = value - limit if name == "at_most" else limit - value
        # NaN meets no limit.
        return 0.0 if excess <= 0 else excess / (abs(limit) or 1.0) if excess > 0 else np.inf


def evaluate_in_unit(unit: Real, objective: Objective, mechanism: Member) -> Real:
    """Return the objective of one mechanism, in its natural direction, in units of a length."""
    # Digits on [-1, 1], and of noise at a sensitivity next to 1, depend on no place and on no length.
    if objective.power is not None and isinstance(mechanism, Local):
        lower, upper = mechanism.input_interval
        return objective.on_unit(lower, upper)(mechanism.on_unit()) * objective.factor((upper - lower) / 2 / unit)
    if objective.power is not None and isinstance(mechanism, Additive):
        return objective.on_unit(-unit, unit)(
            Additive(rescaled(mechanism.noise, 1 / unit), mechanism.sensitivity / unit)
        )
    return _evaluate(objective, mechanism) / objective.factor(unit)


def evaluate(objective: Objective, mechanism: object) -> Real:
    """Return the objective of one mechanism, in its natural direction; a user-defined function is compiled."""
    if isinstance(mechanism, Local):
        return evaluate_in_unit(1.0, objective, mechanism)
    return _evaluate(objective, mechanism)


def _evaluate(objective: Objective, mechanism: object) -> Real:
    leaves = jax.tree.leaves(mechanism)
    is_pytree = not (len(leaves) == 1 and leaves[0] is mechanism)
    if objective.power is None and is_pytree and namespace(*leaves) is np:
        return _compiled(objective, mechanism)
    return _checked_value(objective, mechanism)


def _checked_value(objective: Objective, mechanism: object) -> Real:
    value: Real = objective(mechanism)
    if np.shape(value) or not isinstance(value, float | int | np.number | np.ndarray | jax.Array):
        raise TypeError(f"objective: {objective.name} of a mechanism is {value!r}; one number is needed")
    return value


_compiled = jax.jit(_checked_value)
