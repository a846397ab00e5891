"""Zhang 2024: true optima beside the printed ones, and its query experiments, for the notebook and the tables.

Metrics are those of the authors' released code: MSE; RE, the mean absolute error in the unit of the answer (it is not
divided by the answer); accuracy loss, the mean of |error / answer|.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

import accountants
import dpkernels as dpk
from accountants import calibrate, tune
from accountants.published.searches import Enumerated, composite_search
from benchmarks.literature_trials import errors
from benchmarks.sources import tables

if TYPE_CHECKING:
    from dpkernels.numerics import Real

WINDOWS = {"A1": "uniform", "A2": "sine", "A3": "triangle"}
BASES = {"B1": "constant", "B2": "quartic"}
SHAPES = tuple(window + base for base in BASES for window in WINDOWS)

PRINTED = tables()["Zhang 2024, Table II, Variance"]
PRINTED_EPSILONS = tuple(given["eps"] for given in PRINTED.inputs)

# The neighbours' answers that the authors' released examples hand to the mechanism: (f(D), f(D')).
RELEASED_PAIRS = {"mode of BMI": (32.0, 31.2), "count of rows": (768.0, 769.0)}

DELTA = 1e-6
_CELLS = 32  # Lattice steps in a sensitivity, where answers are not counts.


@cache
def optimum(shape: str, epsilon: float, condition: str, objective: str = "central") -> dpk.Windowed:
    """The composite mechanism of a shape such as "A2B1" of least variance, on [0, 1]."""
    return dpk.composite(
        WINDOWS[shape[:2]],
        BASES[shape[2:]],
        epsilon=epsilon,
        lower=0.0,
        upper=1.0,
        condition=condition,
        objective=objective,
    )


def table_two(epsilons: Sequence[float] = PRINTED_EPSILONS) -> list[dict[str, Any]]:
    """One row a shape and budget: printed variance, true optimum under the source's condition, and its rates."""
    return [_table_two_row(shape, epsilon) for shape in SHAPES for epsilon in epsilons]


def _table_two_row(shape: str, epsilon: float) -> dict[str, Any]:
    printed = float(PRINTED.column(shape)[PRINTED_EPSILONS.index(epsilon)])
    best = optimum(shape, epsilon, "sup_inf")
    row: dict[str, Any] = {"shape": shape, "eps": epsilon, "printed": printed, "optimum": float(best.central_variance)}
    return row | {"printed / optimum": printed / row["optimum"]} | rates(best)


def rates(mechanism: dpk.Windowed) -> dict[str, float]:
    """Worst-case variance, H1, H2 at the middle and the end (Zhang 2024, Definition 4.3), and H2 of the base alone."""
    return {
        "worst case": float(mechanism.worst_variance),
        "H1": h1_rate(mechanism),
        "H2, middle": h2_rate(mechanism, mechanism.middle),
        "H2, end": h2_rate(mechanism, mechanism.upper),
        "H2 of the base": base_h2_rate(mechanism),
    }


def h1_rate(mechanism: dpk.Windowed) -> float:
    """The odds of the base against the window, S2 / S1."""
    return float(mechanism.base_mass / mechanism.window_mass)


def h2_rate(mechanism: dpk.Windowed, x: Real) -> float:
    """|F(n1) - F(x)| / |F(n2) - F(x)|, with n1 and n2 at 1/4 and 3/4 of the way from x to the far end of reports."""
    farther_end = mechanism.output_interval[0 if x > mechanism.middle else 1]
    at_input, first, second = (
        float(mechanism.cdf(x + fraction * (farther_end - x), x)) for fraction in (0.0, 0.25, 0.75)
    )
    return (first - at_input) / (second - at_input)


def base_h2_rate(mechanism: dpk.Windowed) -> float:
    """H2 at the middle with the areas of the base alone: the reading that gives the printed column."""
    first, second = (float(mechanism.base.cdf(fraction)) - 0.5 for fraction in (0.25, 0.75))
    return first / second


@cache
def searched(shape: str, epsilon: float, stop_at: float | None = None) -> Enumerated:
    """Return the result of the source's own search (Algorithms 1 and 2): three rounds over a grid, or until V_t."""
    family = tune.composite(
        WINDOWS[shape[:2]], BASES[shape[2:]], epsilon=epsilon, lower=0.0, upper=1.0, condition="sup_inf"
    )
    return composite_search(family, tune.variance_at(0.5), stop_at)


def stopped(epsilon: float, thresholds: Sequence[float]) -> list[dict[str, float]]:
    """Algorithm 2 for A1B1: rounds, evaluations, variance and H1 against V_t, a multiple of the optimum."""
    best = float(optimum("A1B1", epsilon, "sup_inf").central_variance)
    rows = []
    for threshold in thresholds:
        search = searched("A1B1", epsilon, threshold * best)
        row = {"V_t / optimum": threshold, "rounds": len(search.rounds), "evaluations": search.evaluations}
        rows.append(row | {"variance / optimum": search.value / best, "H1": h1_rate(search.mechanism)})
    return rows


def pointwise(epsilon: float) -> list[dict[str, Any]]:
    """One row a shape: the optimum under the source's sufficient condition and under the exact one."""
    rows = []
    for shape in SHAPES:
        source, exact = (optimum(shape, epsilon, condition) for condition in ("sup_inf", "pointwise"))
        row = {"eps": epsilon, "shape": shape, "sufficient": float(source.central_variance)}
        rows.append(row | {"exact": float(exact.central_variance), "H1, exact": h1_rate(exact)})
    return rows


@dataclass(frozen=True)
class Query:
    """A question about one column of n rows, n public.

    Attributes:
        name: what is asked.
        answer: the true one.
        lower: the least answer that any n rows of the interval have.
        upper: the largest.
        sensitivity: how far one row replaced by another moves the answer at most.
        step: lattice of discrete noise.
    """

    name: str
    answer: float
    lower: float
    upper: float
    sensitivity: float
    step: float

    @property
    def breadth(self) -> float:
        """R/D, the width of all answers in sensitivities."""
        return (self.upper - self.lower) / self.sensitivity


def queries(values: np.ndarray, lower: float, upper: float, *, grain: float, threshold: float) -> list[Query]:
    """The source's six: mode (of values rounded to the grain), variance, maximum, minimum, mean, count above threshold.

    The variance, over n rows, moves most where one of n equal values jumps across the interval: by
    (n - 1)/n^2 (upper - lower)^2.
    """
    n, width = len(values), upper - lower
    rounded, times = np.unique(np.round(values / grain) * grain, return_counts=True)

    def query(name: str, answer: Real, low: float, high: float, D: float) -> Query:
        return Query(name, float(answer), low, high, D, D / _CELLS)

    return [
        query("mode", rounded[times.argmax()], lower, upper, width),
        query("maximum", values.max(), lower, upper, width),
        query("minimum", values.min(), lower, upper, width),
        query("variance", values.var(), 0.0, width**2 / 4, width**2 * (n - 1) / n**2),
        query("mean", values.mean(), lower, upper, width / n),
        Query("count", float((values > threshold).sum()), 0.0, float(n), 1.0, 1.0),
    ]


def mechanisms(query: Query, epsilon: float, delta: float = DELTA) -> dict[str, Any]:
    """Return mechanisms that answer a query: three composite ones on its range, and five kinds of additive noise.

    The Gaussians and the truncated noise are (eps, delta)-DP, all others eps-DP. Neighbours differ by one replaced row.
    """
    interval: dict[str, Any] = {"epsilon": epsilon, "lower": query.lower, "upper": query.upper}
    budget: dict[str, Any] = {"epsilon": epsilon, "sensitivity": query.sensitivity}
    cells = round(query.sensitivity / query.step)
    sigma = query.sensitivity * discrete_sigma(cells, epsilon, delta)
    return {
        "A1B1": dpk.composite("uniform", "constant", **interval),
        "A2B2": dpk.composite("sine", "quartic", **interval),
        "A3B2": dpk.composite("triangle", "quartic", **interval),
        "Laplace": dpk.laplace(**budget),
        "Gaussian": calibrate.gaussian(delta=delta, **budget),
        "discrete Laplace": _reaching(dpk.discrete_laplace(step=query.step, **budget), cells),
        "truncated discrete Laplace": dpk.truncated_discrete_laplace(delta=delta, step=query.step, **budget),
        "discrete Gaussian": _reaching(
            dpk.discrete_gaussian(sigma=sigma, step=query.step, sensitivity=query.sensitivity), cells
        ),
    }


def _reaching(mechanism: Any, cells: int) -> Any:
    """Lattice noise to 256 sensitivities, a length for all budgets from 0.2 up: the shape is what is compiled for."""
    reach = max(mechanism.noise.reach, 256 * cells)
    return replace(mechanism, noise=replace(mechanism.noise, reach=reach))


@cache
def discrete_sigma(cells: int, epsilon: float, delta: float) -> float:
    """sigma/D of discrete Gaussian noise on a lattice of D/cells that is (eps, delta)-DP.

    From the continuous Gaussian's sigma up, in steps of 0.25 %: each step is checked, so that what is returned holds.
    """
    gaussian: Any = calibrate.gaussian(epsilon=epsilon, delta=delta).noise
    sigma = float(gaussian.sigma)
    while accountants.delta(dpk.discrete_gaussian(sigma=sigma, step=1 / cells, sensitivity=1.0), epsilon) > delta:
        sigma *= 1.0025
    return sigma


def metrics(error: np.ndarray, answer: float) -> dict[str, float]:
    """RE, MSE and accuracy loss; the last is NaN for the answer 0."""
    return {
        "RE": float(abs(error).mean()),
        "MSE": float((error**2).mean()),
        "accuracy loss": float(abs(error).mean() / abs(answer)) if answer else float("nan"),
    }


def experiment(questions: Sequence[Query], epsilons: Sequence[float], repetitions: int = 1000) -> list[dict[str, Any]]:
    """One row a query, budget and mechanism: the metrics of that many repetitions, and the exact MSE beside them.

    All mechanisms of a query get the same uniform numbers, so that they compare better than each is known.
    """
    return [
        {"query": query.name, "R/D": query.breadth, "eps": epsilon, "mechanism": name}
        | metrics(errors(mechanism, query.answer, seed, repetitions), query.answer)
        | {"exact MSE": float(mechanism.variance(query.answer))}
        for seed, query in enumerate(questions)
        for epsilon in epsilons
        for name, mechanism in mechanisms(query, epsilon).items()
    ]


def ranges(epsilon: float, breadths: Sequence[float]) -> list[dict[str, float]]:
    """Worst-case variances in squared sensitivities against R/D.

    *Optimal* is the bounded, unbiased mechanism of least worst-case variance; it uses D < R, composite ones cannot.
    """
    return [
        {
            "R/D": breadth,
            "A1B1": float(dpk.piecewise(epsilon=epsilon, lower=0.0, upper=breadth).worst_variance),
            "optimal": float(dpk.optimal(epsilon=epsilon, lower=0.0, upper=breadth, sensitivity=1.0).worst_variance),
            "Laplace": 2 / epsilon**2,
        }
        for breadth in breadths
    ]


def released_setting(answer: float, neighbour: float, epsilon: float) -> dict[str, float]:
    """MSE at the pair that the released code is given: the interval is [f(D), f(D')], D their distance.

    Composite variance is at an end of the interval, where f(D) is. The Gaussian is the code's,
    sigma = D sqrt(2 ln(1.25/delta))/eps with delta = 1e-6. A constant, the middle of the pair, is the last.
    """
    low, high = sorted((answer, neighbour))
    D = high - low
    composite = dpk.composite(epsilon=epsilon, lower=low, upper=high, objective="central", condition="sup_inf")
    return {
        "Laplace": 2 * (D / epsilon) ** 2,
        "Gaussian of the code": 2 * np.log(1.25 / DELTA) * (D / epsilon) ** 2,
        "A1B1, middle (Table II)": float(composite.central_variance),
        "A1B1, at f(D)": float(composite.variance(answer)),
        "Duchi, at f(D)": float(dpk.duchi(epsilon=epsilon, lower=low, upper=high).variance(answer)),
        "the middle, always": (D / 2) ** 2,
    }
