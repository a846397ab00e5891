"""Zhang 2024, section 5.3: the numbers printed for its query experiments, from closed forms instead of 1,000 draws.

Every error is in sensitivities, R = D and the answer in the middle of the interval unless said; the Gaussian is the
released code's, sigma = sqrt(2 ln(1.25/delta))/eps with delta = 1e-6. Budgets are ``EPSILONS``, with equal weights: the
set whose averages give the percentages against Laplace and Gaussian noise as printed.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

import dpkernels as dpk
from benchmarks.literature_composite import DELTA, SHAPES, discrete_sigma, optimum
from benchmarks.sources import tables

EPSILONS = (0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0)
METRICS = ("RE", "MSE")


@cache
def error(shape: str, epsilon: float, metric: str, at: float = 0.5) -> float:
    """RE, the mean absolute error, or MSE of a shape's optimum on [0, 1] at an answer, the source's condition."""
    best = optimum(shape, epsilon, "sup_inf")
    return float(best.absolute_error(at) if metric == "RE" else best.variance(at))


def noise_error(kind: str, epsilon: float, metric: str) -> float:
    """RE or MSE of noise for sensitivity 1; discrete noise is on the integers, as for a count."""
    if kind == "Gaussian":
        sigma = math.sqrt(2 * math.log(1.25 / DELTA)) / epsilon
        return sigma * math.sqrt(2 / math.pi) if metric == "RE" else sigma**2
    law = _noise(kind, epsilon)
    return float(law.absolute_moment if metric == "RE" else law.variance)


@cache
def _noise(kind: str, epsilon: float) -> Any:
    if kind == "Laplace":
        return dpk.Laplace(1 / epsilon)
    if kind == "discrete Gaussian":
        return dpk.discrete_gaussian(sigma=discrete_sigma(1, epsilon, DELTA), step=1.0, sensitivity=1.0).noise
    return dpk.truncated_discrete_laplace(epsilon=epsilon, delta=DELTA, step=1.0, sensitivity=1.0).noise


def table_three(eps: float) -> list[float]:
    """Mean absolute error in percent of an answer of ``table_three_answer`` sensitivities."""
    return [100 * error(shape, eps, "RE") / table_three_answer() for shape in SHAPES]


@cache
def table_three_answer() -> float:
    """The answer, in sensitivities, over which mean absolute errors are closest to all of Table III: least squares."""
    table = tables()["Zhang 2024, Table III, bias rate (%)"]
    errors = np.array([[error(shape, given["eps"], "RE") for shape in table.columns] for given in table.inputs])
    return float(100 * (errors**2).sum() / (errors * table.values).sum())


def average_variance() -> list[float]:
    """Mean of the optima over the budgets of Table II."""
    return [float(np.mean([error(shape, eps, "MSE") for eps in (0.2, 0.3, 0.4, 0.5, 1.0)])) for shape in SHAPES]


def below_noise(shape: str, metric: str, than: str) -> list[float]:
    """Return by how many percent a shape's error is below the noise's, averaged over the budgets."""
    return [float(np.mean([100 * (1 - error(shape, e, metric) / noise_error(than, e, metric)) for e in EPSILONS]))]


def below_truncated(shape: str, query: str, eps: float) -> list[float]:
    """Return by how many percent the MSE is below truncated noise's at one budget: on the integers for the mode.

    The variance of a column is no count: its lattice is fine against D, so that the noise is Laplace noise.
    """
    kind = "truncated discrete Laplace" if query == "mode" else "Laplace"
    return [100 * (1 - error(shape, eps, "MSE") / noise_error(kind, eps, "MSE"))]


def below_shape(shape: str, other: str, metric: str) -> list[float]:
    """Return by how many percent a shape's error is below another's, averaged over the budgets."""
    return [float(np.mean([100 * (1 - error(shape, e, metric) / error(other, e, metric)) for e in EPSILONS]))]


def drop(shape: str, metric: str) -> float:
    """Return the fall of the error from eps = 0.2 to 5."""
    return error(shape, EPSILONS[0], metric) - error(shape, EPSILONS[-1], metric)


def descent_rate(query: str, sensitivity: float) -> list[float]:
    """Fall of RE for each unit of eps."""
    del query
    return [sensitivity * drop(shape, "RE") / (EPSILONS[-1] - EPSILONS[0]) for shape in SHAPES]


def average_descent(query: str, sensitivity: float) -> list[float]:
    """Fall of RE and of MSE from eps = 0.2 to 5, averaged over the shapes; not for each unit of eps."""
    del query
    return [
        sensitivity**power * float(np.mean([drop(shape, metric) for shape in SHAPES]))
        for power, metric in ((1, "RE"), (2, "MSE"))
    ]


def largest_accuracy_loss(n: int) -> list[float]:
    """Half the width of the output at eps = 0.2 over the answer n: the largest possible error of a count, D = 1."""
    outputs = [optimum(shape, EPSILONS[0], "sup_inf").output_interval for shape in ("A1B1", "A3B1")]
    return [float(high - low) / 2 / n for low, high in outputs]


def outlier_accuracy_loss(n: int) -> list[float]:
    """Mean |error / n| of a count at an end of its interval, averaged over the budgets."""
    return [float(np.mean([error(shape, e, "RE", 1.0) for e in EPSILONS])) / n for shape in ("A1B1", "A2B1")]
