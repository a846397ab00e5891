"""Jiang 2024, Table I, and Cesar & Rogers 2021, figure 5: epsilon of many reports together.

Table I: 1,000 reports of eps = 0.1. Its recycled columns answer the count query of the source's section 8 with
theta = 3 and D = 1. Each report's budget is (0.1, 1e-5).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np

import dpkernels as dpk
from accountants import Guarantee, calibrate, guarantee
from accountants.closed_forms.concentrated import best_epsilon, gaussian_rho
from accountants.closed_forms.pure import pure_epsilon
from accountants.dominating_pairs.registry import additive_profile
from accountants.published import recycling as published
from accountants.published.searches import published_recycling
from accountants.schemes.poisson import budget_on_sample

REPORTS, EPSILON, DELTA, THETA = 1000, 0.1, 1e-5, 3.0
# The sampled columns' rate is not printed. At this one the sampled Gaussian has the largest acceptance for 300 records.
RATE = 0.23
KERNELS = {"Lap": dpk.Laplace(1.0), "Gau": dpk.Gaussian(1.0)}


def table_one(delta: float) -> list[float]:
    """The row's columns: plain noise exactly, recycled noise by Algorithms 2 and 3, and exactly on a sample."""
    return [column(delta) for column in columns().values()]


def columns() -> dict[str, Callable[[float], float]]:
    """eps at delta of every column, by its printed name."""
    return {
        **{f"{kind}-DP": partial(_epsilon, plain(kind)) for kind in KERNELS},
        **{f"{kind}-BRDP": partial(by_algorithms, kind) for kind in KERNELS},
        **{f"SMP-{kind}-BRDP": partial(_epsilon, sampled(kind)) for kind in KERNELS},
    }


def running_times() -> list[float]:
    """Milliseconds of every column at delta = 1e-5, the second time, on this machine."""
    return [_milliseconds(column) for column in columns().values()]


def _milliseconds(column: Callable[[float], float]) -> float:
    column(DELTA)
    start = time.perf_counter()
    column(DELTA)
    return 1e3 * (time.perf_counter() - start)


def _epsilon(composed: Guarantee, delta: float) -> float:
    return float(composed.estimate_epsilon(delta))


@cache
def plain(kind: str) -> Guarantee:
    """1,000 reports of the kernel that meets a report's budget alone."""
    noise = dpk.laplace(epsilon=EPSILON) if kind == "Lap" else calibrate.gaussian(epsilon=EPSILON, delta=DELTA)
    return guarantee(noise, 1.0).repeat(REPORTS)


@cache
def recycled(kind: str) -> dpk.Reweighted:
    """Algorithm 2's choice for a report."""
    return published_recycling(KERNELS[kind], THETA, EPSILON, DELTA, 1.0)[0]


def exactly(kind: str) -> Guarantee:
    """1,000 reports of Algorithm 2's choice, accounted exactly."""
    return guarantee(dpk.Additive(recycled(kind)), 1.0).repeat(REPORTS)


@cache
def sampled(kind: str) -> Guarantee:
    """1,000 reports, each of Algorithm 2's choice on a fresh sample, sensitivity D, accounted exactly."""
    epsilon, delta = (float(sample_budget) for sample_budget in budget_on_sample(EPSILON, DELTA, RATE))
    law = published_recycling(KERNELS[kind], THETA, epsilon, delta, 1.0)[0]
    return guarantee(dpk.Additive(law), 1.0).subsample(RATE).repeat(REPORTS)


def by_algorithms(kind: str, delta: float) -> float:
    """eps of Algorithm 3 at Algorithm 2's choice: the exact kernel profile of a Gaussian, Renyi's of a Laplace."""
    from scipy.optimize import brentq

    law: Any = recycled(kind)
    weight, q = float(published.published_weight(law.kernel, THETA, 1.0)), float(1 - law.outside)
    profile = _gaussian_profile(law.kernel) if kind == "Gau" else _renyi_profile(law.kernel)

    def excess(epsilon: float) -> float:
        return published.published_composition(profile, weight, q, REPORTS, epsilon) / delta - 1

    return float(brentq(excess, 0.1, 100.0, xtol=1e-9))


def _gaussian_profile(kernel: Any) -> Callable[[Any], Any]:
    """T Gaussian reports are one of sigma/sqrt(T)."""
    return partial(additive_profile, dpk.Gaussian(kernel.sigma / math.sqrt(REPORTS)), 1.0)


def _renyi_profile(kernel: Any) -> Callable[[Any], Any]:
    """min over orders a of e^((a - 1)(D_a - eps)), at most 1."""
    order = 1 + np.geomspace(0.05, 50, 400)
    divergence = guarantee(dpk.Additive(kernel), 1.0).repeat(REPORTS).renyi(order)

    def profile(epsilon: Any) -> Any:
        exponents = (order - 1) * (divergence - np.asarray(epsilon, float)[..., None])
        return np.exp(np.minimum(exponents.min(-1), 0.0))

    return profile


def figure_five(counts: Any, sigma: float = math.sqrt(200.0), delta: float = 1e-6) -> Iterator[dict[str, float]]:
    """Cesar & Rogers 2021, figure 5: eps of a histogram of D0 counts, Gaussian noise on each, four ways.

    One-shot: every count is (eps0, delta0)-DP by the analytic Gaussian; D0 such compose optimally as pure mechanisms
    do, and their delta0 add. delta0 is the best share of delta. Beside it zCDP and the Gaussian exactly (l2 sensitivity
    sqrt(D0)), and Laplace noise of the same variance, as pure DP.
    """
    fractions = np.geomspace(0.01, 0.99, 25)
    for D0 in counts:
        yield {
            "D0": int(D0),
            "Gaussian, one-shot (eps, delta)": min(
                _one_shot(int(D0), sigma, delta, fraction) for fraction in fractions
            ),
            "Gaussian, zCDP": float(best_epsilon(D0 * gaussian_rho(sigma), delta)),
            "Gaussian, exact": float(guarantee(dpk.gaussian(sigma=sigma), 1.0).repeat(int(D0)).epsilon(delta)),
            "Laplace, as pure DP": float(pure_epsilon(math.sqrt(2) / sigma, int(D0), delta)),
        }


def _one_shot(D0: int, sigma: float, delta: float, fraction: float) -> float:
    epsilon_each = float(guarantee(dpk.gaussian(sigma=sigma), 1.0).epsilon(fraction * delta / D0))
    return float(pure_epsilon(epsilon_each, D0, (1 - fraction) * delta))
