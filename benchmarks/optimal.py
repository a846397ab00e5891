"""Time and size of the optimal mechanism's program, and its worst-case variance beside closed forms, as a table.

    python -m benchmarks.optimal            # about ten minutes, most of them for the finer grids
    python -m benchmarks.optimal --quick    # four budgets: a smoke run
    python -m benchmarks.optimal 12 2       # one budget and width
    python -m benchmarks.optimal --steps    # central_piecewise alone: default steps beside the source's; seconds

Seconds are processor time of the solution alone. Variances are in units of the sensitivity squared, with all
roundings. The best closed form is the least of piecewise, hybrid and, below the interval's width, central_piecewise.
The gain comes from inputs and reports half as far apart. A certificate holds every weight of 64 bits, most of them
different. The second size is that of a gzip file; the last seconds are those of reading and verifying it.
"""

from __future__ import annotations

import json
import math
import os
import time
import zlib
from typing import Any

import numpy as np

import dpkernels as dpk
from benchmarks.shown import make_parser, markdown
from dpkernels.mechanisms.optimal.program import least_variance
from dpkernels.mechanisms.optimal.search import InputGrid, half_outputs, input_grid

PAIRS = (
    *((0.5, 1), (1, 1), (3, 1), (6, 1), (8, 1), (10, 1), (12, 1)),
    *((0.5, 2), (1, 2), (2, 2), (4, 2), (8, 2), (12, 2), (12, 2.4)),
    *((0.5, 4), (1, 4), (2, 4), (4, 4), (8, 4), (8, 5), (10, 4.6), (0.5, 8), (1, 8), (0.5, 16)),
)
QUICK = ((1, 1), (6, 1), (1, 4), (4, 3))


def row(epsilon: float, ratio: float) -> dict[str, str]:
    """A row of the table, at a budget and a width of the interval over the sensitivity."""
    interval: dict[str, Any] = {"epsilon": epsilon, "lower": 0.0, "upper": float(ratio)}
    problem = interval | ({"sensitivity": 1.0} if ratio > 1 else {})
    start = time.process_time()
    m = dpk.optimal(**problem)
    seconds = time.process_time() - start
    certificate = dpk.exact_sampler(m).certificate
    worst, text = float(certificate.worst_variance), certificate.to_json()
    start = time.process_time()
    dpk.Certificate.from_dict(json.loads(text))
    verified = time.process_time() - start
    closed: list[Any] = [make(**interval) for make in (dpk.piecewise, dpk.hybrid)]
    if ratio > 1:
        closed.append(dpk.central_piecewise(**problem))
    best = min(float(mechanism.worst_variance) for mechanism in closed)
    return {
        "eps": f"{epsilon:g}",
        "R/D": f"{ratio:g}",
        "inputs x reports": " x ".join(map(str, m.probabilities.shape)),
        "seconds": f"{seconds:.1f}",
        "worst case": f"{worst:.4g}",
        "of the best closed form": f"{worst / best:.3f}",
        "of staircase noise": f"{worst / float(dpk.staircase(epsilon=epsilon, sensitivity=1.0).noise.variance):.3f}",
        "gain of finer grids": f"{100 * gain(m, epsilon, ratio):.2f} %",
        "certificate, MB": f"{len(text) / 1e6:.2f}, {len(zlib.compress(text.encode())) / 1e6:.2f}",
        "verified, s": f"{verified:.1f}",
    }


def steps_row(epsilon: float, ratio: float) -> dict[str, str]:
    """Worst-case variances of central_piecewise in units of the sensitivity squared."""
    problem: dict[str, Any] = {"epsilon": epsilon, "lower": 0.0, "upper": float(ratio), "sensitivity": 1.0}
    default = dpk.central_piecewise(**problem)
    published_steps = [
        dpk.central_piecewise(core=core, steps=math.ceil(ratio), **problem) for core in ("published", "best")
    ]
    published, same_steps = (float(mechanism.worst_variance) for mechanism in published_steps)
    worst = float(default.worst_variance)
    return {
        "eps": f"{epsilon:g}",
        "R/D": f"{ratio:g}",
        "published core and steps": f"{published:.4g}",
        "best core, published steps": f"{same_steps:.4g}",
        "default": f"{worst:.4g}",
        "steps": str(default.steps),
        "gain": f"{100 * (1 - worst / published):.1f} %",
    }


def gain(m: dpk.Optimal, epsilon: float, ratio: float) -> float:
    """The share of the worst-case variance that inputs and reports half as far apart save."""
    rows = input_grid(epsilon, ratio, None)
    fine, half_count = InputGrid(2 * rows.points - 1, 2 * rows.row_distance, rows.reach), half_outputs(rows, None)
    unit = (m.upper - m.lower) / 2
    y = m.spacing / unit / 2 * np.arange(-2 * half_count, 2 * half_count + 1)
    p = least_variance(epsilon, fine.inputs, y, fine.row_distance)
    finer = (p @ y**2 - fine.inputs**2).max() + (m.step / unit / 4) ** 2
    return float(1 - finer * unit**2 / m.worst_variance)


def main() -> None:
    """Print the table."""
    parser = make_parser(__doc__, "four budgets")
    parser.add_argument("pair", nargs="*", type=float, help="eps and R/D of one row")
    parser.add_argument("--steps", action="store_true", help="the default steps of central_piecewise")
    options = parser.parse_args()
    os.environ["DPKERNELS_CACHE"] = ""
    if options.steps:
        rows = [steps_row(epsilon, ratio) for ratio in (1.5, 2, 4, 8, 16) for epsilon in (0.1, 0.5, 1, 2, 4, 8)]
    else:
        pairs = [tuple(options.pair)] if options.pair else QUICK if options.quick else PAIRS
        rows = [row(*pair) for pair in pairs]
    print(markdown(list(rows[0]), [list(cells.values()) for cells in rows]))


if __name__ == "__main__":
    main()
