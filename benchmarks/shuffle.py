"""Shuffled reports as markdown tables: central eps and published bounds, the cost of local noise, and speed.

    python -m benchmarks.shuffle            # about two minutes; --quick: one budget, three n

Eps is at delta = 1e-6. Neighbours differ by one replaced input. The shuffler is trusted, and n counts honest reports.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import dpkernels as dpk
from accountants import calibrate, shuffled
from accountants.published import shuffle as published
from accountants.shuffle import Shuffled
from benchmarks.shown import markdown

DELTA = 1e-6
LEVELS, COUNTS = (0.5, 1.0, 2.0, 4.0, 6.0), (10**3, 10**4, 10**5, 10**7, 10**9)
LOCAL: dict[str, Callable[..., Any]] = {
    "piecewise": dpk.piecewise,
    "duchi": dpk.duchi,
    "hybrid": dpk.hybrid,
    "optimal": dpk.optimal,
}


def response(level: float, k: int) -> np.ndarray:
    """Randomised response on k categories, row by row."""
    rows = np.ones((k, k)) + np.diag(np.full(k, math.expm1(level)))
    return rows / rows.sum(1, keepdims=True)


def mechanisms(level: float) -> Iterable[tuple[str, Any]]:
    """Names and mechanisms on [0, 1], the integers of those that have them."""
    for name, make in LOCAL.items():
        yield name, dpk.exact_sampler(make(epsilon=level, lower=0.0, upper=1.0))
    yield "10 categories", response(level, 10)


def bounds(mechanism: object, shuffled_reports: Shuffled, n: int) -> list[float]:
    """eps by the closed form, by clones, by the variation ratio, by Hoeffding's and by Bennett's inequality."""
    level = float(shuffled_reports.inputs.pure_epsilon)
    variation = max(0.5 * float(np.abs(pair.first - pair.second).sum()) for pair in shuffled_reports.inputs.pairs)
    of_delta = (
        lambda eps: published.published_clones(level, n, eps),
        lambda eps: published.published_variation_ratio(level, n, eps, math.tanh(level / 2)),
        lambda eps: published.published_variation_ratio(level, n, eps, variation),
        lambda eps: published.published_blanket(mechanism, n, eps, "hoeffding"),
        lambda eps: published.published_blanket(mechanism, n, eps, "bennett"),
    )
    closed = min(published.published_closed_form(level, n, DELTA), level)
    return [closed, *(published.epsilon_of(bound, DELTA, level) for bound in of_delta)]


def rows(levels: Iterable[float], counts: Iterable[int]) -> Iterable[list[str]]:
    """Rows of the first table."""
    for level in levels:
        for name, mechanism in mechanisms(level):
            for n in counts:
                shuffled_reports = shuffled(mechanism, n)
                peer_bounds = bounds(mechanism, shuffled_reports, n)
                values = [shuffled_reports.lower(delta=DELTA), shuffled_reports.estimate_epsilon(DELTA), *peer_bounds]
                yield [f"{level:g}", name, f"{n:g}", *(f"{value:.4g}" for value in values)]


def locality(n: int, epsilon: float) -> Iterable[list[str]]:
    """Standard deviations of the mean of n values in [0, 1] at a central budget: shuffled, and of a trusted curator."""
    for name in ("piecewise", "hybrid", "duchi"):
        calibrated: Any = calibrate.shuffled(LOCAL[name], epsilon=epsilon, delta=DELTA, n=n, lower=0.0, upper=1.0)
        yield [
            f"{name}, shuffled",
            f"{float(calibrated.epsilon):.4g}",
            f"{math.sqrt(float(calibrated.worst_variance) / n):.3e}",
        ]
    gaussian: Any = calibrate.gaussian(epsilon=epsilon, delta=DELTA, sensitivity=1 / n)
    yield ["Gaussian, central", "-", f"{math.sqrt(float(gaussian.noise.variance)):.3e}"]
    yield ["Laplace, central", "-", f"{math.sqrt(2) / (epsilon * n):.3e}"]


def speeds(counts: Iterable[int]) -> Iterable[list[str]]:
    """Milliseconds of one eps(delta), the best of 20, after a first one."""
    for name, mechanism in mechanisms(2.0):
        cells = []
        for n in counts:
            shuffled_reports, best = shuffled(mechanism, n), math.inf
            shuffled_reports.estimate_epsilon(DELTA)
            for _ in range(20):
                start = time.perf_counter()
                shuffled_reports.estimate_epsilon(DELTA)
                best = min(best, time.perf_counter() - start)
            cells.append(f"{1e3 * best:.2f}")
        yield [name, *cells]


def main() -> None:
    """Print all tables."""
    quick = "--quick" in sys.argv
    levels, counts = ((4.0,), (10**3, 10**5, 10**9)) if quick else (LEVELS, COUNTS)
    header = ["eps0", "mechanism", "n", "some inputs", "any inputs", "closed form", "clones", "ratio, eps0 alone"]
    print(markdown([*header, "variation ratio", "Hoeffding", "Bennett"], rows(levels, counts)))
    for n, epsilon in ((10**4, 0.5), (10**6, 0.1)):
        print(f"\nStandard deviation of the mean of {n} values in [0, 1] at eps {epsilon}, delta {DELTA}:\n")
        print(markdown(["", "eps of a report", "standard deviation"], locality(n, epsilon)))
    few = (2, 30, 300, 10**4, 10**6, 10**9)
    print("\nMilliseconds of one eps(delta), warm:\n")
    print(markdown(["mechanism", *(f"n = {n:g}" for n in few)], speeds(few)))


if __name__ == "__main__":
    main()
