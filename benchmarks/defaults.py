"""Variance of a report and error of the estimated distribution, for mechanisms that could be the default.

    python -m benchmarks.defaults            # eps 0.25 to 6, three releases of 10^5 values of two shapes: 4 minutes
    python -m benchmarks.defaults --quick    # eps 1, one release of one shape
    python -m benchmarks.defaults --json     # the rows as JSON

| column | mechanism |
|---|---|
| mean | the lowest worst-case variance among piecewise, hybrid and duchi |
| default | the default of `dpkernels perturb` |
| moderate | the mechanism nearest to *distribution* with at most 10 % more worst-case variance than *mean* |
| piecewise | the piecewise mechanism of the lowest worst-case variance |
| distribution | the piecewise mechanism with the smallest expected error of the cdf, found by `tune` |

*Moderate* has another width of the window where *mean* is piecewise; otherwise it is a mixture of piecewise and duchi.
Variances are over that of *mean*. Distances are Wasserstein-1 between the estimated and the true distribution, on the
scale where the interval is [0, 1], and means over releases at fixed keys. Reports of two values (duchi) have no
information on the distribution.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np

import dpkernels as dpk
from accountants import tune
from benchmarks.estimation import AT, BINS, SHAPES, UNIT
from benchmarks.shown import make_parser, markdown
from dpkernels.cli.mechanisms import DEFAULT, ROOM, mechanism
from dpkernels.estimation.counts import Counts

EPSILONS, QUICK = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0), (1.0,)
SHAPES_SHOWN, N, RELEASES = ("skewed", "ages"), 100_000, 3
_STEPS = 101


@cache
def mechanisms(epsilon: float) -> dict[str, Any]:
    """The mechanisms of a budget by what they are for."""
    best, default = (mechanism(name, {"epsilon": epsilon, **UNIT}) for name in ("closed-form", DEFAULT))
    for_cdf = tune.best(tune.piecewise(epsilon=epsilon, **UNIT), tune.distribution(N)).mechanism
    piecewise, two_points = dpk.piecewise(epsilon=epsilon, **UNIT), dpk.duchi(epsilon=epsilon, **UNIT)
    weights = np.linspace(0, 1, _STEPS)
    towards: list[Any]
    if type(best) is type(piecewise):
        widths = piecewise.width + weights * (for_cdf.width - piecewise.width)
        towards = [dpk.composite("uniform", epsilon=epsilon, width=float(width), **UNIT) for width in widths]
    else:
        towards = [dpk.Mixture(piecewise, two_points, float(weight)) for weight in weights[1:-1]] + [piecewise]
    allowed = [candidates for candidates in towards if candidates.worst_variance <= ROOM * best.worst_variance]
    return {"mean": best, "default": default, "moderate": allowed[-1], "piecewise": piecewise, "distribution": for_cdf}


def distance(mechanism: Any, shape: str, releases: int) -> float:
    """The mean Wasserstein-1 distance of estimates; NaN where the reports have no information on it."""
    sampler, errors = dpk.exact_sampler(mechanism), []
    for release in range(releases):
        x = SHAPES[shape](np.random.default_rng(release), N)
        counts = Counts(sampler).add(
            dpk.perturb(x, sampler, key=dpk.key_from_bytes((1 + release).to_bytes(32, "little")))
        )
        try:
            _ = counts.channel.square_weights
        except ValueError:
            return float("nan")
        distribution = dpk.estimate(counts, bins=BINS, model="splines").distribution
        truth = np.searchsorted(np.sort(x), AT, side="right") / N
        errors.append(float(np.abs(distribution.cdf(AT) - truth).mean()))
    return float(np.mean(errors))


def row(epsilon: float, shapes: tuple[str, ...], releases: int) -> dict[str, Any]:
    """The numbers of a budget."""
    candidates = mechanisms(epsilon)
    best = candidates["mean"]
    cells: dict[str, Any] = {"eps": epsilon, "best for the mean": type(best).__name__}
    for name, candidate in candidates.items():
        cells[f"{name}: variance"] = float(candidate.worst_variance / best.worst_variance)
        for shape in shapes:
            cells[f"{name}: {shape}"] = distance(candidate, shape, releases)
    return cells


def main() -> None:
    """Print the table."""
    parser = make_parser(__doc__)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    shapes, releases = (SHAPES_SHOWN[:1], 1) if options.quick else (SHAPES_SHOWN, RELEASES)
    rows = [row(epsilon, shapes, releases) for epsilon in (QUICK if options.quick else EPSILONS)]
    if options.json:
        print(json.dumps(rows))
        return
    names = list(dict.fromkeys(name for row_cells in rows for name in row_cells))
    cells = [[_shown(row_cells.get(name)) for name in names] for row_cells in rows]
    print(markdown(names, cells))


def _shown(value: object) -> str:
    if isinstance(value, float):
        return "-" if np.isnan(value) else f"{value:.4g}"
    return "-" if value is None else str(value)


if __name__ == "__main__":
    main()
