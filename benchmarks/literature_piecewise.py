"""Ma 2021: the comparison of piecewise transformations, corrected, for the notebook and the tables.

Variances are on the input interval [-1, 1], as in the source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import dpkernels as dpk
from accountants.published.searches import published_piecewise

if TYPE_CHECKING:
    from dpkernels.numerics import Real

UNIT: dict[str, Any] = {"lower": -1.0, "upper": 1.0}

MECHANISMS: dict[str, Callable[..., Any]] = {
    "type I": dpk.piecewise,
    "type II": dpk.piecewise_triangle,
    "piecewise, Wang 2019": dpk.piecewise_wang2019,
    "Duchi": dpk.duchi,
    "hybrid": dpk.hybrid,
}
NAMES = (*MECHANISMS, "Laplace")


def mechanism(name: str, epsilon: float) -> Any:
    """A mechanism of the comparison on [-1, 1]; types I and II with the eta of least worst-case variance."""
    if name == "Laplace":
        return dpk.laplace(epsilon=epsilon, sensitivity=2.0)
    return MECHANISMS[name](epsilon=epsilon, **UNIT)


def worst_variance(name: str, epsilon: float) -> float:
    """The largest variance over [-1, 1]."""
    return float(mechanism(name, epsilon).worst_variance)


def floor(epsilon: float) -> float:
    """Worst-case variance of the optimal bounded, unbiased mechanism: no other has less, to a fraction of a percent."""
    return float(dpk.optimal(epsilon=epsilon, **UNIT).worst_variance)


def comparison(epsilons: Sequence[float]) -> Iterable[dict[str, Any]]:
    """One row a budget: worst-case variances, and the best of them."""
    for epsilon in epsilons:
        row = {name: worst_variance(name, epsilon) for name in NAMES}
        yield {"eps": epsilon} | row | {"least": min(row, key=lambda name: row[name])}


def crossing(first: str, second: str, low: float, high: float) -> float:
    """The eps in [low, high] at which two worst-case variances are equal."""
    from scipy.optimize import brentq

    return float(brentq(lambda epsilon: worst_variance(first, epsilon) - worst_variance(second, epsilon), low, high))


def better_than_duchi(epsilon: float) -> tuple[float, float]:
    """The eta between which type I has the smaller worst-case variance than Duchi's mechanism; NaN if nowhere."""
    from scipy.optimize import brentq

    duchi = worst_variance("Duchi", epsilon)

    def excess(eta: float) -> float:
        return float(dpk.piecewise(epsilon=epsilon, eta=eta, **UNIT).worst_variance) - duchi

    best = 2 / mechanism("type I", epsilon).width
    if excess(best) >= 0:
        return np.nan, np.nan
    return float(brentq(excess, 1.0001, best)), float(brentq(excess, best, 1e5))


def type_one(epsilon: float, eta: float) -> tuple[float, float]:
    """(k, a) of Ma 2021's type I: the window is [k x - a, k x + a], reports lie within k + a."""
    a = (np.exp(epsilon) + eta - 1) / ((eta - 1) * np.expm1(epsilon))
    return (eta - 1) * a, a


def type_two(epsilon: float, eta: float) -> tuple[float, float]:
    """(k, a) of type II."""
    a = ((np.exp(epsilon) + 1) / (eta - 1) + 2) / np.expm1(epsilon)
    return (eta - 1) * a, a


def mass_at_fixed_probability(epsilon: float, inside: float, a: float) -> float:
    """Total mass of a type-I density unbiased at eps with probability q inside its window of half-width a.

    Unbiased: k = 1/(q (1 - e^-eps)). Inside the height is q/(2a), outside e^-eps times it, on a length of 2k: the total
    is q + q e^-eps k/a, 1 for one a alone. Optimising a with eps and q held (Ma 2021, Theorem 4) leaves the densities.
    """
    k = -1 / (inside * np.expm1(-epsilon))
    return float(inside + inside * np.exp(-epsilon) * k / a)


def expected_root_mean_square(mechanism: Any, values: np.ndarray) -> float:
    """sqrt(sum of variances)/n, the exact error of the mean of one report a row; over all coordinates of vectors."""
    return float(np.sqrt(np.mean(mechanism.variance(values)) / len(values)))


def published_cost(epsilons: Sequence[float]) -> Iterable[dict[str, float]]:
    """Theorem 4: eta_0 beside the best eta, and what it costs in worst-case variance."""
    for epsilon in epsilons:
        best, published = mechanism("type I", epsilon), published_piecewise(epsilon=epsilon, **UNIT)
        yield {
            "eps": epsilon,
            "eta_0": 2 / float(published.width),
            "best eta": 2 / float(best.width),
            "cost": float(published.worst_variance / best.worst_variance) - 1,
        }


def held_probability_variance(epsilon: float, eta: float) -> float:
    """(eta^3 + e^eps - 1)/(3 (eta - 1)^2): what Theorem 4 minimises, the variance in the middle but for a factor."""
    return float((eta**3 + np.expm1(epsilon)) / (3 * (eta - 1) ** 2))


def constants() -> list[float]:
    """Eq. 41: theta_1 is the least of ``held_probability_variance`` at eps = 0, theta_2 one more than at eps = ln 2."""
    from scipy.optimize import minimize_scalar

    least = [
        minimize_scalar(partial(held_probability_variance, eps), bounds=(1.01, 20), options={"xatol": 1e-9}).fun
        for eps in (0.0, np.log(2))
    ]
    return [float(least[0]), 1 + float(least[1])]


def bound_over_best(epsilons: Sequence[float]) -> Iterable[dict[str, float]]:
    """theta_1/eps^2 beside the least worst-case variance that a type-I density has."""
    for epsilon in epsilons:
        bound, best = constants()[0] / epsilon**2, worst_variance("type I", epsilon)
        yield {"eps": epsilon, "theta_1 / eps^2": bound, "best type I": best, "ratio": bound / best}


def winning_eta(eps: float) -> list[float]:
    """The least eta at which type I has a smaller worst-case variance than Duchi's mechanism; NaN if none has."""
    return [better_than_duchi(eps)[0]]


def equal_constants() -> list[float]:
    """Theorem 7: the eps below which type I has the smaller variance at type II's (k, a) whatever eta is.

    At equal (k, a), two different budgets' densities, the variances differ by a/(6 (eta - 1)) times
    1 - 2 eta^3/(e^eps - 1), which is negative for every eta > 1 as long as e^eps - 1 < 2.
    """
    from scipy.optimize import brentq

    return [float(brentq(lambda eps: 1 - 2 / np.expm1(eps), 0.1, 3.0))]


def variance_in_middle(epsilon: float, inside: float, eta: Real) -> Any:
    """Return the variance at x = 0 as in the source's figure 3, which varies eta at fixed eps and q.

    With k = 1/(q (1 - e^-eps)), the window has half-width a = k/(eta - 1) and reports end at B = k + a. The density is
    q/(2a) inside and e^-eps q/(2a) outside; it is normalised only where q = e^eps/(e^eps + eta - 1).
    """
    k = -1 / (inside * np.expm1(-epsilon))
    a = k / (np.asarray(eta) - 1)
    return inside * a**2 / 3 + np.exp(-epsilon) * inside / (3 * a) * ((k + a) ** 3 - a**3)
