"""Errors, times and lines of code of a data holder's statistics, beside diffprivlib and OpenDP.

    python -m benchmarks.statistics                       # root mean squared errors of 300 releases
    python -m benchmarks.statistics --quick               # 5 releases: a smoke run
    python -m benchmarks.statistics --rows 1000000 --releases 5
    python -m benchmarks.statistics --json

The data are the 5,638 people of the notebooks' table; with ``--rows``, this many of them drawn with replacement. All
libraries have the same epsilon, for a person more or less. The number of people is not public; for diffprivlib's means,
variances and regressions it is. OpenDP is called by its Context API, and its mean is a sum and a count of half the
budget each. The releases are the code that is printed by ``--code``, and lines are its lines. Milliseconds are
processor time of one release after a first one, from arrays to values. The extra ``bench`` has both libraries.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import dpkernels as dpk
from benchmarks.shown import machine, make_parser, markdown

TABLE = Path(__file__).parents[1] / "notebooks" / "data" / "rand_hie.csv"
EPSILONS = (0.1, 1.0)
EDGES, P, PLANS = list(range(0, 101, 10)), [0.25, 0.5, 0.75], list(range(1, 25))
LIBRARIES = ("dpkernels", "OpenDP", "diffprivlib")

OURS = "value = dpk.Session({columns}, epsilon=epsilon).{call}.value"
CONTEXT = """\
unit, loss = dp.unit_of(contributions=1), dp.loss_of(epsilon=epsilon)
context = dp.Context.compositor(data={data}, privacy_unit=unit, privacy_loss=loss, split_evenly_over={shares})
"""
CLAMPED = "context.query().impute_constant(0.0).clamp((0.0, 100.0))"


def ours(call: str, columns: str = "x") -> str:
    """Return the code of a session with one release."""
    named = "{" + ", ".join(f'"{name}": {name}' for name in columns) + "}"
    return OURS.format(columns=named, call=call)


def opendp(code: str, shares: int = 1, data: str = "x.tolist()") -> str:
    """Return the code of a context with its queries."""
    return CONTEXT.format(data=data, shares=shares) + code


# For every statistic its true value, and the code of each library. x are ages, y visits, g 18 plans, h 24 groups.
STATISTICS: dict[str, tuple[Callable[..., Any], dict[str, str]]] = {
    "count": (
        lambda d: len(d.x),
        {
            "dpkernels": ours("count(epsilon=epsilon)"),
            "OpenDP": opendp("value = context.query().count().laplace().release()"),
        },
    ),
    "sum": (
        lambda d: d.x.sum(),
        {
            "dpkernels": ours('sum("x", 0, 100, epsilon=epsilon)'),
            "OpenDP": opendp(f"value = {CLAMPED}.sum().laplace().release()"),
            "diffprivlib": "value = tools.sum(x, epsilon=epsilon, bounds=(0, 100))",
        },
    ),
    "mean": (
        lambda d: d.x.mean(),
        {
            "dpkernels": ours('mean("x", 0, 100, epsilon=epsilon)'),
            "OpenDP": opendp(
                f"total = {CLAMPED}.sum().laplace().release()\n"
                "value = total / max(context.query().count().laplace().release(), 1)",
                2,
            ),
            "diffprivlib, n public": "value = tools.mean(x, epsilon=epsilon, bounds=(0, 100))",
        },
    ),
    "variance": (
        lambda d: d.x.var(),
        {
            "dpkernels": ours('variance("x", 0, 100, epsilon=epsilon)'),
            "diffprivlib, n public": "value = tools.var(x, epsilon=epsilon, bounds=(0, 100))",
        },
    ),
    "histogram of 10 bins": (
        lambda d: np.histogram(d.x, EDGES)[0],
        {
            "dpkernels": ours('histogram("x", edges, epsilon=epsilon)'),
            "OpenDP": opendp(
                "bins = list(range(len(edges) + 1))\n"
                "query = context.query().find_bin(edges=[float(edge) for edge in edges])\n"
                "value = query.count_by_categories(bins, null_category=False).laplace().release()[1:-1]"
            ),
            "diffprivlib": "value = tools.histogram(x, epsilon=epsilon, bins=edges, range=(0, 100))[0]",
        },
    ),
    "median": (
        lambda d: np.median(d.x),
        {
            "dpkernels": ours('quantiles("x", 0, 100, step=0.1, interval_share=0, epsilon=epsilon)'),
            "dpkernels, with an interval": ours('quantiles("x", 0, 100, step=0.1, epsilon=epsilon)'),
            "OpenDP": opendp(
                "candidates = np.linspace(0, 100, 1001).tolist()\n"
                "query = context.query().impute_constant(0.0).quantile_score_candidates(candidates, 0.5)\n"
                'value = candidates[query.report_noisy_max_gumbel(optimize="min").release()]'
            ),
            "diffprivlib": "value = tools.median(x, epsilon=epsilon, bounds=(0, 100))",
        },
    ),
    "three quantiles": (
        lambda d: np.quantile(d.x, P),
        {
            "dpkernels": ours('quantiles("x", 0, 100, p, step=0.1, interval_share=0, epsilon=epsilon)'),
            "OpenDP": opendp(
                "candidates = np.linspace(0, 100, 1001).tolist()\n"
                "value = []\nfor share in p:\n"
                "    query = context.query().impute_constant(0.0).quantile_score_candidates(candidates, share)\n"
                '    value.append(candidates[query.report_noisy_max_gumbel(optimize="min").release()])',
                3,
            ),
            "diffprivlib": "value = tools.quantile(x, p, epsilon=epsilon, bounds=(0, 100))",
        },
    ),
    "top 10 of 24": (
        lambda d: np.sort(np.bincount(d.g, minlength=25)[1:])[::-1][:10],
        {
            "dpkernels": ours('top("g", 10, plans, epsilon=epsilon)', "g"),
            "OpenDP": opendp(
                "query = context.query().count_by_categories(plans, null_category=False)\n"
                "counts = np.array(query.laplace().release())\n"
                "chosen = np.argsort(-counts)[:10]\n"
                "value = counts[chosen]",
                data="g.tolist()",
            ),
        },
    ),
    "means by 24 groups": (
        lambda d: np.array([d.x[d.h == group].mean() for group in PLANS]),
        {
            "dpkernels": ours('mean("x", 0, 100, by={"h": plans}, epsilon=epsilon)', "xh"),
            "OpenDP": "value = []\nfor plan in plans:\n    "
            + opendp(
                f"total = {CLAMPED}.sum().laplace().release()\n"
                "value.append(total / max(context.query().count().laplace().release(), 1))",
                2,
                "x[h == plan].tolist()",
            ).replace("\n", "\n    "),
            "diffprivlib, n public": "value = []\nfor plan in plans:\n    own = x[h == plan]\n"
            "    value.append(tools.mean(own, epsilon=epsilon, bounds=(0, 100)))",
        },
    ),
    "slope of a regression": (
        lambda d: np.polyfit(d.x, d.y, 1)[0],
        {
            "dpkernels": ours(
                'regression(\n    "y", "x", x_bounds=(0, 100), y_bounds=(0, 20), epsilon=epsilon)', "xy"
            ).replace(".value", ".value[1]"),
            "diffprivlib, n public": "line = models.LinearRegression(epsilon=epsilon, bounds_X=(0, 100), "
            "bounds_y=(0, 20))\nvalue = line.fit(x[:, None], y).coef_[0]",
        },
    ),
}


def make_data(rows: int | None) -> dict[str, np.ndarray]:
    """Return columns of the people of the table, or of as many as asked for, drawn from them."""
    table = np.genfromtxt(TABLE, delimiter=",", names=True)
    if rows is not None:
        table = table[np.random.default_rng(1).integers(0, len(table), rows)]
    columns = {"x": table["age"].clip(0, 100), "y": table["visits"].clip(0, 20)}
    columns |= {"g": table["plan"].astype(int), "h": np.arange(len(table)) % 24 + 1}
    return {name: np.ascontiguousarray(column) for name, column in columns.items()}


def measured(code: str, true: Any, data: dict[str, np.ndarray], epsilon: float, releases: int) -> dict[str, Any]:
    """Return the root mean squared error of some code, its processor time and its lines."""
    names: dict[str, Any] = {"dpk": dpk, "np": np, "edges": EDGES, "p": P, "plans": PLANS, "epsilon": epsilon}
    if "dp." in code:
        import opendp.prelude as dp

        dp.enable_features("contrib")
        names["dp"] = dp
    if "tools." in code or "models." in code:
        from diffprivlib import models, tools

        names |= {"tools": tools, "models": models}
    compiled, errors, seconds = compile(code, "code", "exec"), [], []
    for _ in range(releases + 1):
        scope, start = names | data, time.process_time()
        exec(compiled, scope)
        seconds.append(time.process_time() - start)
        errors.append(np.asarray(scope["value"], float) - true)
    error = float(np.sqrt(np.nanmean(np.square(errors[1:]))))
    return {"error": error, "seconds": float(np.mean(seconds[1:])), "lines": code.count("\n") + 1}


def rows(releases: int, size: int | None, only: str | None) -> list[dict[str, Any]]:
    """Return the errors, times and lines of every statistic, epsilon and library."""
    data, results = make_data(size), []
    for name, (true, codes) in STATISTICS.items():
        if only is not None and only not in name:
            continue
        for library, code in codes.items():
            for epsilon in EPSILONS:
                about = {"statistic": name, "library": library, "epsilon": epsilon}
                results.append(about | measured(code, true(SimpleNamespace(**data)), data, epsilon, releases))
    return results


def main() -> None:
    """Print the tables."""
    parser = make_parser(__doc__)
    parser.add_argument("--rows", type=int, help="people, drawn from the table with replacement")
    parser.add_argument("--releases", type=int, default=300)
    parser.add_argument("--only", help="a part of the name of a statistic")
    parser.add_argument("--code", action="store_true", help="print the code of every library")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.code:
        for name, (_, codes) in STATISTICS.items():
            print("\n".join(f"# {name}, {library}\n{code}\n" for library, code in codes.items()))
        return
    results = rows(5 if options.quick else options.releases, options.rows, options.only)
    if options.json:
        print(json.dumps(results))
        return
    print(machine("opendp", "diffprivlib"))
    header = ["statistic", "library", "error, epsilon 0.1", "error, epsilon 1", "ms", "lines"]
    pairs = zip(results[::2], results[1::2], strict=True)
    cells = [
        [a["statistic"], a["library"], f"{a['error']:.4g}", f"{b['error']:.4g}",
         f"{1e3 * (a['seconds'] + b['seconds']) / 2:.1f}", str(a["lines"])]
        for a, b in pairs
    ]  # fmt: skip
    print(markdown(header, cells))


if __name__ == "__main__":
    main()
