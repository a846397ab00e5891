"""What the explorer's page looks up, by Python: everything else it computes by closed form.

Budgets are on geometric grids; a table of composed or shuffled epsilon holds its logarithm over the report's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np

import accountants
from dpkernels.cli.explorer import distribution
from dpkernels.mechanisms.named import HYBRID_EPSILON, MECHANISMS
from dpkernels.mechanisms.named_additive import laplace
from dpkernels.mechanisms.optimal.mechanism import Optimal

WINDOWED = ("piecewise", "sine-constant", "triangle-constant", "piecewise-triangle")
DELTAS = (1e-5, 1e-6, 1e-8, 1e-10)
COUNTS = (2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000)
# Of those with three losses the page composes reports itself.
COMPOSED = ("laplace", "optimal", *WINDOWED[1:])
# Of which the error of the distribution is tabulated, as they are made for the mean; the optimum's is not smooth.
DISTRIBUTED = ("hybrid", "duchi", "piecewise", "piecewise-wang2019", *WINDOWED[1:])
SHUFFLED = ("duchi", "hybrid", "piecewise", "piecewise-wang2019", "piecewise-triangle")
DIGITS = 6
_JUMP = 0.1  # Of log m, between neighbouring budgets of a grid, beyond what is usual there.

# First, last and number of each grid. A linear program takes the longer the larger its budget.
PARAMETERS = (0.01, 20.0, 96)
REPORTS = (0.01, 12.0, 96)
SHARES = (0.125, 1.0, 25)  # of ``hideable``
PEOPLE = (1e3, 1e8, 21)
OPTIMUM = (0.01, 6.0, 129)
OPTIMAL_REPORTS = (0.01, 6.0, 193)  # Its losses are not smooth in the budget: only these are composed.
DRAWN = (0.1, 6.0, 20)


def grid(ends: tuple[float, float, int]) -> np.ndarray:
    """The points of a geometric grid, with its ends as they are."""
    return np.geomspace(*ends)


def budgets(name: str) -> np.ndarray:
    """Those at which a mechanism's reports are composed; the optimum's as the page writes them."""
    return np.array(rounded(grid(OPTIMAL_REPORTS), 4)) if name == "optimal" else grid(REPORTS)


@cache
def made(name: str, epsilon: float) -> Any:
    """A mechanism on [0, 1], or Laplace noise of sensitivity 1."""
    if name == "laplace":
        return laplace(epsilon=epsilon, sensitivity=1.0)
    return MECHANISMS[name](epsilon=epsilon, lower=0.0, upper=1.0)


@cache
def _parameters(name: str) -> list[list[float]]:
    return _columns(windowed(name, e) for e in grid(PARAMETERS))


def windowed(name: str, epsilon: float) -> list[float]:
    """log m, and log of (k/y)/(e^eps - 1)."""
    one = made(name, epsilon)
    return [math.log(one.width), math.log(one.relative_height / math.expm1(epsilon))]


def jumps(name: str) -> list[float]:
    """Budgets at which another width becomes the best: there everything but the error jumps."""
    log_m = np.array(_parameters(name)[0])
    rise = np.diff(log_m)
    usual = [np.median(np.delete(rise[max(i - 2, 0) : i + 3], min(i, 2))) for i in range(len(rise))]
    return [_jump(name, int(i), log_m[i], log_m[i + 1]) for i in np.flatnonzero(abs(rise - usual) > _JUMP)]


def _jump(name: str, cell: int, before: float, after: float) -> float:
    low, high = grid(PARAMETERS)[cell : cell + 2]
    for _ in range(14):
        middle = math.sqrt(low * high)
        m = windowed(name, middle)[0]
        low, high = (middle, high) if abs(m - before) < abs(m - after) else (low, middle)
    return math.sqrt(low * high)


def optimum(epsilon: float) -> list[float]:
    """log of the worst-case variance, and of half the width of the reports, over the interval's width."""
    one = made("optimal", epsilon)
    low, high = one.output_interval
    return [math.log(one.worst_variance), math.log((high - low) / 2)]


def optimal_rows(epsilon: float) -> dict[str, Any]:
    """The reports of inputs in the lower half of [0, 1], row by row; the upper half mirrors it."""
    one: Optimal = made("optimal", epsilon)
    p = np.asarray(one.probabilities)
    half = p[: (len(p) + 1) // 2]
    return {
        "reports": rounded(one.spacing * place for place in one.places),
        "rows": [[float(f"{value:.5g}") if value > 1e-9 else 0 for value in row] for row in half],
    }


def composed(name: str, epsilon: float, count: int) -> list[float]:
    """log of epsilon of so many reports over that of one, at each delta."""
    reports = accountants.guarantee(made(name, epsilon)).repeat(count)
    return np.log(np.maximum(reports.epsilon(np.array(DELTAS)), 1e-12) / epsilon).tolist()


def hideable(people: float, delta: float) -> float:
    """The largest budget of a report up to which a shuffler helps much: log(n / (8 log(2/delta)))."""
    return math.log(people / (8 * math.log(2 / delta)))


def shuffled(name: str, share: float, people: int, delta: float) -> float:
    """log of epsilon of so many people's shuffled reports over that of one, which is this share of ``hideable``."""
    epsilon = share * hideable(people, delta)
    return math.log(accountants.shuffled(made(name, epsilon), people).epsilon(delta) / epsilon)


def rounded(values: Iterable[float], digits: int = DIGITS) -> list[float]:
    """To the digits of the page."""
    return [float(f"{value:.{digits}g}") for value in values]


def _columns(rows: Iterable[list[float]]) -> list[list[float]]:
    return [rounded(column) for column in zip(*rows, strict=True)]


def people() -> list[int]:
    """The crowds that are tabulated."""
    return [round(n) for n in grid(PEOPLE)]


def tables(say: Callable[[str], object] = lambda _: None) -> dict[str, Any]:
    """All of it, as the page takes it: some minutes."""

    def each(what: str, names: Iterable[str], make: Callable[[str], Any]) -> dict[str, Any]:
        found = {}
        for name in names:
            say(f"{what}: {name}")
            found[name] = make(name)
        return found

    say("optimum")
    return {
        "deltas": DELTAS,
        "counts": COUNTS,
        "people": people(),
        "grids": {
            "parameters": PARAMETERS,
            "reports": REPORTS,
            "shares": SHARES,
            "people": PEOPLE,
            "optimum": OPTIMUM,
            "drawn": DRAWN,
            "distributed": distribution.BUDGETS,
            "values": distribution.VALUES,
        },
        "optimalReports": budgets("optimal").tolist(),
        "optimum": _columns(optimum(e) for e in grid(OPTIMUM)),
        "drawn": [optimal_rows(e) for e in grid(DRAWN)],
        "windowed": each("windowed", WINDOWED, _parameters),
        "jumps": {**each("jumps", WINDOWED, jumps), "hybrid": [HYBRID_EPSILON]},
        # By delta, then count or crowd, then budget.
        "composed": each("composed", COMPOSED, _composed),
        "shuffled": each("shuffled", SHUFFLED, _shuffled),
        # By crowd, then budget.
        "distribution": each("distribution", DISTRIBUTED, _distribution),
        "narrow": _narrow(),
    }


def _distribution(name: str) -> list[list[float]]:
    return _columns(distribution.errors(made(name, e)) for e in grid(distribution.BUDGETS))


def _narrow() -> dict[str, list[list[float]]]:
    """Widths and errors of the piecewise mechanism that tells most of the distribution."""
    found = [distribution.narrow(n, grid(distribution.BUDGETS)) for n in grid(distribution.VALUES)]
    widths, errors = np.moveaxis(np.array(found), 2, 0)
    return {"widths": [rounded(row) for row in widths], "errors": [rounded(row) for row in errors]}


def _composed(name: str) -> list[list[list[float]]]:
    values = np.array([[composed(name, e, k) for e in budgets(name)] for k in COUNTS])
    return [[rounded(row) for row in delta] for delta in np.moveaxis(values, 2, 0)]


def _shuffled(name: str) -> list[list[list[float]]]:
    return [[rounded(shuffled(name, s, n, d) for s in grid(SHARES)) for n in people()] for d in DELTAS]
