"""What a search makes best: functions of a mechanism.

Errors are |report - x|. Where they depend on the input x (bounded mechanisms) an objective is that of the x given, or
of the worst of 33 inputs spread evenly over the input interval, both ends among them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from accountants.tune import errors
from accountants.tune.family import Member
from accountants.tune.fisher import cdf_error
from dpkernels import checks
from dpkernels.numerics import Real, RealArray, gauss_legendre
from dpkernels.pytrees import pytree

_NODES, _WEIGHTS = gauss_legendre(2)


@partial(pytree, static=("function", "name", "sign", "power", "places"))
@dataclass(frozen=True)
class Objective:
    """A function of a mechanism and some numbers, to be made small (sign 1) or large (sign -1).

    Attributes:
        function: from (mechanism, *numbers) to a JAX scalar, in JAX; compiled once for each function.
        name: for tables and plots.
        sign: 1 or -1.
        numbers: its parameters, such as beta; changing them compiles nothing.
        theta: the tolerated error of an acceptance, else None; the last number that the function is given.
        power: of a length, which the value is; None where it is not known, as of a function of the user's own.
        places: how many of the first numbers are inputs, in data units.
    """

    function: Callable[..., Any]
    name: str
    sign: int = 1
    numbers: tuple[Real, ...] = ()
    theta: Any = None
    power: int | None = None
    places: int = 0

    def __call__(self, mechanism: Any) -> Real:
        """The value, in its natural direction."""
        numbers = self.numbers if self.theta is None else (*self.numbers, self.theta)
        return self.function(mechanism, *numbers)

    def on_unit(self, lower: Any, upper: Any) -> Objective:
        """The same where the interval [lower, upper] is [-1, 1]: values are as many half widths to the power."""
        places = tuple(((x - lower) - (upper - x)) / (upper - lower) for x in self.numbers[: self.places])
        theta = None if self.theta is None else 2 * self.theta / (upper - lower)
        return dataclasses.replace(self, numbers=(*places, *self.numbers[self.places :]), theta=theta)


def _worst_variance(mechanism: Member) -> Real:
    return errors.worst_variance(mechanism)


worst_variance = Objective(_worst_variance, "worst variance", power=2)


def variance_at(x: Real) -> Objective:
    """Var(report | x), in squared data units.

    Raises:
        ValueError: x is not finite.
    """
    checks.within("x", x, -np.inf, np.inf, open_ends=True)
    return Objective(errors.variance, "variance", numbers=(x,), power=2, places=1)


def average_variance(edges: ArrayLike | None, weights: ArrayLike) -> Objective:
    """The mean variance under a histogram of the inputs that are expected, uniform in each bin.

    Args:
        edges: of the bins, increasing, one more than weights; None for equal bins over the input interval.
        weights: how much of the inputs each bin holds, not negative; scaled to total 1.

    Raises:
        ValueError: weights negative, not 1-D, or without a positive and finite total; edges not finite and increasing,
            or not one more than weights.
    """
    w = np.atleast_1d(np.asarray(weights, np.float64))
    checks.within("weights", w, 0.0, np.inf)
    if w.ndim != 1 or not 0 < w.sum() < np.inf:
        raise ValueError(f"weights: total {w.sum():g}, of shape {w.shape}; a 1-D array of positive total is needed")
    if edges is None:
        return Objective(_average_on_equal_bins, "average variance", numbers=(w / w.sum(),), power=2)
    ends = np.asarray(edges, np.float64)
    checks.within("edges", ends, -np.inf, np.inf, open_ends=True)
    if ends.shape != (len(w) + 1,) or not (np.diff(ends) > 0).all():
        raise ValueError(f"edges: {ends}; {len(w) + 1} increasing ones are needed for {len(w)} weights")
    return Objective(_average_variance, "average variance", numbers=(ends, w / w.sum()), power=2, places=1)


def _average_on_equal_bins(mechanism: Any, weights: Any) -> Any:
    low, high = mechanism.input_interval
    return _average_variance(mechanism, low + (high - low) * jnp.linspace(0.0, 1.0, weights.size + 1), weights)


def _average_variance(mechanism: Member, edges: RealArray, weights: RealArray) -> Real:
    """Two Gauss-Legendre nodes a bin: exact, since every variance is a polynomial of degree 2 in x."""
    x = edges[:-1, None] + (edges[1:] - edges[:-1])[:, None] * _NODES
    return ((errors.variance(mechanism, x) * _WEIGHTS).sum(-1) * weights).sum()


def absolute_error(x: Any = None) -> Objective:
    """E|report - x|."""
    return _of_inputs(errors.absolute_error, "absolute error", 1, x, power=1)


def acceptance(theta: Real, x: Any = None) -> Objective:
    """P(|report - x| <= theta), to be made large.

    Args:
        theta: tolerated error, in data units. A family with budget recycling recycles beyond it too, unless it has a
            theta of its own.
        x: the input; by default the worst one.

    Raises:
        ValueError: theta is not positive.
    """
    checks.positive("theta", theta)
    made = _of_inputs(errors.within, "acceptance", -1, x, power=0)
    return dataclasses.replace(made, theta=theta)


def quantile(beta: Real, x: Real | None = None) -> Objective:
    """The (1 - beta) quantile of |report - x|: the error exceeded with probability beta.

    Raises:
        ValueError: beta is not in (0, 1).
    """
    checks.within("beta", beta, 0.0, 1.0, open_ends=True)
    return _of_inputs(errors.quantile, "quantile", 1, x, beta, power=1)


def distribution(reports: float = 1e5) -> Objective:
    """The expected error of the cdf that so many reports tell, about their Wasserstein-1 distance, in data units.

    Of bounded mechanisms, by the Fisher information of their reports; see ``tune/fisher.py``. A narrower
    window tells more of a distribution, and with more reports, than the one of least variance.

    Args:
        reports: n, how many there will be.

    Raises:
        ValueError: reports not in [1, 1e15].
    """
    checks.within("reports", reports, 1.0, 1e15)
    return Objective(cdf_error, "error of the distribution", numbers=(reports,), power=1)


# What is to be made best: an objective, or a function of the mechanism that is made small.
Aim = Objective | Callable[[Any], Real]


def maximise(function: Callable[[Any], Real]) -> Objective:
    """A function of the mechanism, in JAX, to be made large; a plain callable given as an objective is made small."""
    return Objective(function, getattr(function, "__name__", "objective"), -1)


def as_objective(objective: Aim) -> Objective:
    """The objective itself, or that of a callable.

    Raises:
        TypeError: neither.
    """
    if isinstance(objective, Objective):
        return objective
    if not callable(objective):
        raise TypeError(f"objective: {objective!r} is no Objective and not callable")
    return Objective(objective, getattr(objective, "__name__", "objective"))


def _of_inputs(
    function: Callable[..., Any], name: str, sign: int, x: Real | None, *numbers: Real, power: int
) -> Objective:
    if x is None:
        return Objective(_AT_WORST[function], f"{name} at the worst input", sign, numbers, power=power)
    checks.within("x", x, -np.inf, np.inf, open_ends=True)
    return Objective(function, name, sign, (x, *numbers), power=power, places=1)


def _worst_of(function: Callable[..., Any], sign: int, mechanism: Member, *numbers: Real) -> Real:
    values = jax.vmap(lambda x: function(mechanism, x, *numbers))(errors.inputs(mechanism))
    return values.max() if sign > 0 else values.min()


# One object for each, so that equal objectives compile once.
_AT_WORST: dict[Any, Callable[..., Any]] = {
    errors.absolute_error: partial(_worst_of, errors.absolute_error, 1),
    errors.within: partial(_worst_of, errors.within, -1),
    errors.quantile: partial(_worst_of, errors.quantile, 1),
}
