"""The tables of the page of ``dpkernels explore``; the page computes everything else from densities.

Budgets are on geometric grids. A table of composed or shuffled epsilon holds the logarithm of its ratio to the report's
own epsilon. A table of errors of the distribution holds logarithms of the expected error of the cdf, in widths of the
interval.

``python -m benchmarks.explorer_tables`` computes all tables in a few minutes and writes
``dpkernels/cli/explorer/tables.json.gz``.
"""

from __future__ import annotations

import gzip
import json
import math
import sys
from collections.abc import Callable, Iterable
from functools import cache, partial
from inspect import signature
from statistics import NormalDist
from typing import Any

import jax
import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr

import accountants
from accountants.tune.objectives import cdf_error
from dpkernels.cli.explorer.page import PACKED, TABLES, UNIT
from dpkernels.mechanisms.named import HYBRID_EPSILON, MECHANISMS, hybrid, laplace, piecewise
from dpkernels.mechanisms.optimal.mechanism import Optimal
from dpkernels.solve import bounded_minimum, minimum_and_value_on_grid

# The mechanisms with a window of free width on a constant base.
WINDOWED = tuple(
    name
    for name, constructor in MECHANISMS.items()
    if {"eta", "width"} & signature(constructor).parameters.keys() and not name.endswith("-quartic")
)
DELTAS = (1e-5, 1e-6, 1e-8, 1e-10)
COUNTS = (2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000)
# The page composes reports with three losses and Gaussian noise itself.
COMPOSED = ("laplace", "optimal", *WINDOWED[1:])
# The error of the distribution is tabulated for these, as they are made for the mean; the optimum's is not smooth.
DISTRIBUTED = ("hybrid", "duchi", "piecewise", "piecewise-wang2019", *WINDOWED[1:])
SHUFFLED = ("duchi", "hybrid", *(name for name in MECHANISMS if name.startswith("piecewise")))
DIGITS = 6
_JUMP = 0.1  # Of log m, between neighbouring budgets of a grid, beyond what is usual there.

# First, last and number of each grid. A linear program takes the longer the larger its budget.
PARAMETERS = (0.01, 20.0, 96)
REPORTS = (0.01, 12.0, 96)
SHARES = (0.125, 1.0, 25)  # of ``hideable``
PEOPLE = (1e3, 1e8, 21)
OPTIMUM = (0.01, 6.0, 129)
OPTIMAL_REPORTS = (0.01, 6.0, 193)  # Its losses are not smooth in the budget: only these are composed.
# Budgets at which the page draws the optimum's reports.
DRAWN = (0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0)
ERROR_BUDGETS = (0.01, 12.0, 97)
ERROR_VALUES = (1e2, 1e8, 25)  # numbers of people
GAUSSIAN = (1e-3, 1e4, 193)  # epsilon, also of many releases together
CONFIDENCES = (0.9, 0.95, 0.99)
_GRIDS = {"parameters": PARAMETERS, "reports": REPORTS, "shares": SHARES, "people": PEOPLE, "optimum": OPTIMUM}
_GRIDS |= {"distributed": ERROR_BUDGETS, "values": ERROR_VALUES, "gaussian": GAUSSIAN}
_WIDTHS = (-7.0, math.log(1.9))  # log m of the narrowest and the widest window
_NEAR = 0.3  # log m of the best window moves at most this far from one budget to the next.


def grid(ends: tuple[float, float, int]) -> np.ndarray:
    """Return the points of a geometric grid, with its ends as they are."""
    return np.geomspace(*ends)


def budgets(name: str) -> np.ndarray:
    """Return the budgets at which a mechanism's reports are composed; the optimum's are rounded as in the page."""
    return np.union1d(rounded(grid(OPTIMAL_REPORTS), 4), DRAWN) if name == "optimal" else grid(REPORTS)


@cache
def made(name: str, epsilon: float) -> Any:
    """Return a mechanism on [0, 1], or Laplace noise of sensitivity 1."""
    if name == "laplace":
        return laplace(epsilon=epsilon, sensitivity=1.0)
    return MECHANISMS[name](epsilon=epsilon, lower=0.0, upper=1.0)


@cache
def _parameters(name: str) -> list[list[float]]:
    return _columns(windowed(name, e) for e in grid(PARAMETERS))


def windowed(name: str, epsilon: float) -> list[float]:
    """Return log m and log((k/y)/(e^eps - 1))."""
    mechanism = made(name, epsilon)
    return [math.log(mechanism.width), math.log(mechanism.relative_height / math.expm1(epsilon))]


def jumps(name: str) -> list[float]:
    """Return the budgets at which another width becomes the best; there everything but the error jumps."""
    log_m = np.array(_parameters(name)[0])
    rise = np.diff(log_m)
    usual = [np.median(np.delete(rise[max(i - 2, 0) : i + 3], min(i, 2))) for i in range(len(rise))]
    points = []
    for i in np.flatnonzero(abs(rise - usual) > _JUMP):
        low, high = grid(PARAMETERS)[i : i + 2]
        for _ in range(14):
            middle = math.sqrt(low * high)
            m = windowed(name, middle)[0]
            low, high = (middle, high) if abs(m - log_m[i]) < abs(m - log_m[i + 1]) else (low, middle)
        points.append(math.sqrt(low * high))
    return points


def optimum(epsilon: float) -> list[float]:
    """Return the logarithms of the worst-case variance and of half the range of reports, in widths of the interval."""
    mechanism = made("optimal", epsilon)
    low, high = mechanism.output_interval
    return [math.log(mechanism.worst_variance), math.log((high - low) / 2)]


def optimal_rows(epsilon: float) -> dict[str, Any]:
    """Return the reports of inputs in the lower half of [0, 1], row by row; the upper half mirrors it."""
    mechanism: Optimal = made("optimal", epsilon)
    p = np.asarray(mechanism.probabilities)
    upper_rows = p[: (len(p) + 1) // 2]
    return {
        "epsilon": epsilon,
        "reports": rounded(mechanism.spacing * output for output in mechanism.places),
        "rows": [[float(f"{value:.5g}") if value > 1e-9 else 0 for value in row] for row in upper_rows],
    }


def composed(name: str, epsilon: float, count: int) -> list[float]:
    """Return, for each delta, log of the epsilon of ``count`` reports over the epsilon of one."""
    reports = accountants.guarantee(made(name, epsilon)).repeat(count)
    return np.log(np.maximum(reports.epsilon(np.array(DELTAS)), 1e-12) / epsilon).tolist()


def gaussian(delta: float) -> list[float]:
    """Return, for each epsilon of the grid, log mu; noise of standard deviation 1/mu meets (epsilon, delta).

    Source: Balle & Wang 2018, Theorem 8: delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu).
    """

    def excess(log_mu: float, epsilon: float) -> float:
        mu = math.exp(log_mu)
        log_p, log_q = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
        return float(log_p + np.log(-np.expm1(min(log_q - log_p, -1e-300)))) - math.log(delta)

    return rounded((brentq(excess, -12.0, 8.0, args=(e,), xtol=1e-10) for e in grid(GAUSSIAN)), 7)


def hideable(people: float, delta: float) -> float:
    """Return the largest budget of a report up to which a shuffler helps much: log(n / (8 log(2/delta)))."""
    return math.log(people / (8 * math.log(2 / delta)))


def shuffled(name: str, share: float, people: int, delta: float) -> float:
    """Return log of the epsilon of shuffled reports over that of one report, which is ``share`` of ``hideable``.

    The hybrid mechanism is a mixture at every budget here, so that its table is smooth. The page takes the table of
    Duchi's mechanism for budgets up to ``HYBRID_EPSILON``, where the two mechanisms are the same.
    """
    epsilon = share * hideable(people, delta)
    if name == "hybrid":
        mechanism = hybrid(epsilon=epsilon, lower=0.0, upper=1.0, share=-math.expm1(-epsilon / 2))
    else:
        mechanism = made(name, epsilon)
    return math.log(accountants.shuffled(mechanism, people).epsilon(delta) / epsilon)


def rounded(values: Iterable[float], digits: int = DIGITS) -> list[float]:
    """Round to the digits of the page."""
    return [float(f"{value:.{digits}g}") for value in values]


def _columns(rows: Iterable[list[float]]) -> list[list[float]]:
    return [rounded(column) for column in zip(*rows, strict=True)]


_errors = jax.jit(jax.vmap(cdf_error, (None, 0)))
_error = jax.jit(cdf_error)


def errors(mechanism: object) -> list[float]:
    """Return log of the expected error of the cdf for each number of people; the mechanism is on [0, 1]."""
    with jax.enable_x64(True):
        return np.log(np.asarray(_errors(mechanism, np.geomspace(*ERROR_VALUES)))).tolist()


def narrow(people: float, budgets: Iterable[float]) -> list[tuple[float, float]]:
    """Return, for each budget, log m of the piecewise mechanism with the least error of the cdf, and its error."""
    (low, high), errors = _WIDTHS, list[tuple[float, float]]()
    for epsilon in map(float, budgets):
        error = partial(narrow_error, epsilon, people)
        if errors:
            before = errors[-1][0]
            errors.append(bounded_minimum(error, max(before - _NEAR, low), min(before + _NEAR, high), xatol=1e-4))
        else:
            errors.append(minimum_and_value_on_grid(error, np.linspace(low, high, 25), xatol=1e-4))
    return errors


def narrow_error(epsilon: float, people: float, log_m: float) -> float:
    """Return log of the error of the piecewise mechanism with this width."""
    mechanism = piecewise(epsilon=epsilon, lower=0.0, upper=1.0, eta=2 / math.exp(log_m))
    with jax.enable_x64(True):
        return math.log(_error(mechanism, people))


def people() -> list[int]:
    """Return the tabulated numbers of people."""
    return [round(n) for n in grid(PEOPLE)]


def tables() -> dict[str, Any]:
    """Return all tables as the page takes them; this takes a few minutes."""

    def each(what: str, names: Iterable[str], make: Callable[[str], Any]) -> dict[str, Any]:
        values = {}
        for name in names:
            print(f"{what}: {name}", file=sys.stderr)
            values[name] = make(name)
        return values

    narrowest = [narrow(n, grid(ERROR_BUDGETS)) for n in grid(ERROR_VALUES)]
    widths, least_errors = np.moveaxis(np.array(narrowest), 2, 0)
    return {
        "deltas": DELTAS,
        "counts": COUNTS,
        "people": people(),
        "grids": _GRIDS,
        "normal": {str(c): NormalDist().inv_cdf((1 + c) / 2) for c in CONFIDENCES},
        "gaussian": [gaussian(delta) for delta in DELTAS],
        "optimalReports": budgets("optimal").tolist(),
        "optimum": _columns(optimum(e) for e in grid(OPTIMUM)),
        "drawn": [optimal_rows(e) for e in DRAWN],
        "windowed": each("windowed", WINDOWED, _parameters),
        "jumps": {**each("jumps", WINDOWED, jumps), "hybrid": [HYBRID_EPSILON]},
        # By delta, then count or crowd, then budget.
        "composed": each("composed", COMPOSED, _composed),
        "shuffled": each("shuffled", SHUFFLED, _shuffled),
        # By crowd, then budget.
        "distribution": each("distribution", DISTRIBUTED, _distribution),
        "narrow": {"widths": [rounded(row) for row in widths], "errors": [rounded(row) for row in least_errors]},
    }


def _distribution(name: str) -> list[list[float]]:
    return _columns(errors(made(name, e)) for e in grid(ERROR_BUDGETS))


def _composed(name: str) -> list[list[list[float]]]:
    values = np.array([[composed(name, e, k) for e in budgets(name)] for k in COUNTS])
    return [[rounded(row) for row in delta] for delta in np.moveaxis(values, 2, 0)]


def _shuffled(name: str) -> list[list[list[float]]]:
    return [[rounded(shuffled(name, s, n, d) for s in grid(SHARES)) for n in people()] for d in DELTAS]


def packed(values: np.ndarray) -> Any:
    """Return numbers as multiples of UNIT, each as its difference from its predecessor in the innermost list."""
    if isinstance(values, dict):
        return {name: packed(value) for name, value in values.items()}
    return np.diff(np.rint(np.array(values) / UNIT).astype(int), axis=-1, prepend=0).tolist()


if __name__ == "__main__":
    found = tables()
    form = {name: packed(one) if name in PACKED else one for name, one in found.items()}
    TABLES.write_bytes(gzip.compress(json.dumps(form, separators=(",", ":")).encode(), 9, mtime=0))
