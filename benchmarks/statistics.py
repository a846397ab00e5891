"""Errors, times and lines of code of a data holder's statistics, beside diffprivlib and OpenDP.

    python -m benchmarks.statistics                # root mean squared errors of 300 releases: five minutes
    python -m benchmarks.statistics --quick        # 20 releases: a smoke run
    python -m benchmarks.statistics --json

The data are the 5,638 ages of the notebooks' table, in [0, 100]. All have the same epsilon, for a person more or less.
The number of people is not public; diffprivlib's mean and variance take it to be public. OpenDP is called by its
Context API, and its mean is a sum and a count of half the budget each. Seconds are processor time of one release, the
construction of noise included. The extra `bench` has both.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import dpkernels as dpk
from benchmarks.shown import markdown, parser_of

TABLE = Path(__file__).parent.parent / "notebooks" / "data" / "rand_hie.csv"
LOWER, UPPER, EDGES, P = 0.0, 100.0, list(range(0, 101, 10)), (0.25, 0.5, 0.75)
EPSILONS = (0.1, 1.0)

Release = Callable[[np.ndarray, float], Any]


def ours(name: str, *arguments: object, **options: object) -> Release:
    """Return a release by a method of a session that is made for it."""

    def release(x: np.ndarray, epsilon: float) -> Any:
        session = dpk.Session({"x": x}, epsilon=epsilon)
        return getattr(session, name)(*arguments, epsilon=epsilon, **options).value

    return release


def diffprivlib(name: str, **options: object) -> Release:
    """Return a release by one of its tools."""
    from diffprivlib import tools

    return lambda x, epsilon: getattr(tools, name)(x, epsilon=epsilon, **options)


def opendp(*steps: tuple[str, Any], shares: int = 1) -> Release:
    """Return a release by a chain of steps, divided by a released count if there are two shares of the budget."""
    import opendp.prelude as dp

    dp.enable_features("contrib")

    def release(x: np.ndarray, epsilon: float) -> Any:
        context = dp.Context.compositor(
            data=x.tolist(),
            privacy_unit=dp.unit_of(contributions=1),
            privacy_loss=dp.loss_of(epsilon=epsilon),
            split_evenly_over=shares,
        )
        query = context.query()
        for step, arguments in steps:
            query = getattr(query, step)(*arguments)
        value = query.laplace().release()
        return value if shares == 1 else value / max(context.query().count().laplace().release(), 1)

    return release


def statistics() -> dict[str, tuple[Callable[[np.ndarray], Any], dict[str, Release]]]:
    """Return for every statistic the true value, and the releases by library."""
    bounds: dict[str, Any] = {"bounds": (LOWER, UPPER)}
    clamp = [("impute_constant", (LOWER,)), ("clamp", ((LOWER, UPPER),))]
    column = ("x", LOWER, UPPER)
    counts = {"bins": EDGES, "range": (LOWER, UPPER)}
    return {
        "count": (len, {"dpkernels": ours("count"), "OpenDP": opendp(("count", ()))}),
        "sum": (
            np.sum,
            {
                "dpkernels": ours("sum", *column),
                "OpenDP": opendp(*clamp, ("sum", ())),
                "diffprivlib": diffprivlib("sum", **bounds),
            },
        ),
        "mean": (
            np.mean,
            {
                "dpkernels": ours("mean", *column),
                "OpenDP": opendp(*clamp, ("sum", ()), shares=2),
                "diffprivlib, n public": diffprivlib("mean", **bounds),
            },
        ),
        "variance": (
            np.var,
            {"dpkernels": ours("variance", *column), "diffprivlib, n public": diffprivlib("var", **bounds)},
        ),
        "histogram": (
            lambda x: np.histogram(x, EDGES)[0],
            {
                "dpkernels": ours("histogram", "x", EDGES),
                "diffprivlib": lambda x, epsilon: diffprivlib("histogram", **counts)(x, epsilon)[0],
            },
        ),
        "median": (
            np.median,
            {
                "dpkernels": ours("quantiles", *column, interval_share=0),
                "dpkernels, with an interval": ours("quantiles", *column),
                "diffprivlib": diffprivlib("median", **bounds),
            },
        ),
        "three quantiles": (
            lambda x: np.quantile(x, P),
            {
                "dpkernels": ours("quantiles", *column, P, interval_share=0),
                "diffprivlib": diffprivlib("quantile", quant=list(P), **bounds),
            },
        ),
    }


def rows(releases: int) -> list[dict[str, Any]]:
    """Return the errors and times of every statistic, epsilon and library."""
    x = np.genfromtxt(TABLE, delimiter=",", names=True)["age"].clip(LOWER, UPPER)
    made = []
    for epsilon in EPSILONS:
        for name, (true, libraries) in statistics().items():
            for library, release in libraries.items():
                release(x, epsilon)
                start = time.process_time()
                errors = [np.asarray(release(x, epsilon), float) - true(x) for _ in range(releases)]
                seconds = (time.process_time() - start) / releases
                error = float(np.sqrt(np.mean(np.square(errors))))
                made.append(
                    {"epsilon": epsilon, "statistic": name, "library": library, "error": error, "seconds": seconds}
                )
    return made


def main() -> None:
    """Print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    made = rows(20 if options.quick else 300)
    if options.json:
        print(json.dumps(made))
        return
    header = ["epsilon", "statistic", "library", "error", "ms a release"]
    cells = [
        [f"{r['epsilon']:g}", r["statistic"], r["library"], f"{r['error']:.4g}", f"{1e3 * r['seconds']:.1f}"]
        for r in made
    ]
    print(markdown(header, cells))


if __name__ == "__main__":
    main()
