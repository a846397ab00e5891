"""Tuning by gradient against the sources' own searches, in one run, as markdown tables.

    python -m benchmarks.tuning            # about four minutes
    python -m benchmarks.tuning --quick    # two families: a smoke run

Cold is the first call of a fresh process after its imports, with all that it compiles, and how much of a core that
took, which other work on the machine does not change as much; warm the median of five calls at
other budgets, certificates included. The sources' searches are vectorised here, which their own code is not, and
evaluated by the same compiled objectives; their evaluations are of the objective, for recycling of the privacy profile.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np

from accountants import tune
from benchmarks.shown import machine, markdown, parser_of

SIGNED: dict[str, Any] = {"lower": -1.0, "upper": 1.0}
DELTA = 1e-5
WARM = 5

Case = tuple[Callable[[float], Any], Any]


def composed(one: Any, epsilon: float, count: int, **samples: Any) -> Any:
    """So many reports together at a budget."""
    return tune.composed(one, count=count, epsilon=epsilon, delta=DELTA, **samples)


# Name -> (family at a budget, objective).
CASES: dict[str, Case] = {
    "piecewise": (lambda eps: tune.piecewise(epsilon=eps, **SIGNED), tune.worst_variance),
    "recycled gaussian": (
        lambda eps: tune.budget_recycled("gaussian", epsilon=eps, delta=DELTA),
        tune.acceptance(theta=1.0),
    ),
    "sine on constant": (
        lambda eps: tune.composite("sine", epsilon=eps, condition="sup_inf", **SIGNED),
        tune.variance_at(0.0),
    ),
    "triangle on quartic": (
        lambda eps: tune.composite("triangle", "quartic", epsilon=eps, condition="sup_inf", **SIGNED),
        tune.variance_at(0.0),
    ),
    "triangle on quartic, pointwise": (
        lambda eps: tune.composite("triangle", "quartic", epsilon=eps, **SIGNED),
        tune.variance_at(0.0),
    ),
    "recycled laplace": (
        lambda eps: tune.budget_recycled("laplace", epsilon=eps, delta=DELTA),
        tune.acceptance(theta=1.0),
    ),
    "truncated laplace": (lambda eps: tune.truncated_laplace(epsilon=eps, delta=DELTA), tune.absolute_error()),
    "truncated gaussian": (lambda eps: tune.truncated_gaussian(epsilon=eps, delta=DELTA), tune.worst_variance),
    "staircase": (lambda eps: tune.staircase(epsilon=eps, sensitivity=5.0), tune.acceptance(theta=1.0)),
    "merged laplace of 3": (lambda eps: tune.merged_laplace(epsilon=eps, segments=3), tune.absolute_error()),
    "10 reports, piecewise": (
        lambda eps: composed(tune.piecewise(epsilon=1.0, **SIGNED), eps, 10),
        tune.worst_variance,
    ),
    "10^4 reports, piecewise, on samples of 0.01": (
        lambda eps: composed(tune.piecewise(epsilon=1.0, **SIGNED), eps, 10_000, rate=0.01),
        tune.worst_variance,
    ),
    "300 reports, recycled gaussian": (
        lambda eps: composed(tune.budget_recycled("gaussian", epsilon=1.0, delta=DELTA), eps, 300),
        tune.acceptance(theta=50.0),
    ),
}
QUICK = ("piecewise", "recycled gaussian")
EPSILON = 1.0


def timed(call: Callable[[], Any]) -> tuple[float, float, Any]:
    """(seconds, seconds of the processor, result)."""
    start, spent = time.perf_counter(), time.process_time()
    result = call()
    return time.perf_counter() - start, time.process_time() - spent, result


def measured(name: str, method: str) -> dict[str, Any]:
    """One case by one method, first cold, then warm; or why it has no result."""
    family, objective = CASES[name]
    jax.numpy.zeros(2).block_until_ready()  # The backend's start is no part of a search.
    try:
        cold, spent, result = timed(lambda: tune.best(family(EPSILON), objective, method=method))
    except (TypeError, ValueError) as error:
        return {"error": str(error)}
    budgets = EPSILON * np.linspace(1.1, 2.0, WARM)
    warm = [timed(partial(tune.best, family(float(eps)), objective, method=method))[0] for eps in budgets]
    return {
        "cold": cold,
        "spent": spent,
        "warm": float(np.median(warm)),
        "evaluations": result.evaluations,
        "value": result.value,
    }


def in_a_fresh_process(name: str, method: str) -> dict[str, Any]:
    """``measured`` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.tuning", "--one", name, "--method", method]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def rows(names: Any) -> Iterator[list[str]]:
    """One row a case and method."""
    for name in names:
        for method in ("gradient", "enumeration"):
            found = in_a_fresh_process(name, method)
            if "error" in found:
                yield [name, method, "", "", "", "", found["error"].split(";")[0]]
                continue
            times = [f"{found['cold']:.2f}", f"{found['spent']:.2f}", f"{1e3 * found['warm']:.1f}"]
            yield [name, method, *times, f"{found['evaluations']}", f"{found['value']:.9g}"]


def many_rows(count: int) -> Iterator[list[str]]:
    """Seconds for many budgets in one call, cold and warm."""
    for name in QUICK:
        family, objective = CASES[name]
        budgets: Any = np.linspace(0.5, 3.0, count)
        call = partial(tune.many, family(budgets), objective)
        (cold, *_), (warm, _, found) = timed(call), timed(call)
        yield [name, f"{count}", f"{cold:.2f}", f"{warm:.2f}", f"{found.evaluations}"]


def main() -> None:
    """Print the tables, or with ``--one`` a measurement as JSON."""
    parser = parser_of(__doc__, "two families and 20 budgets")
    parser.add_argument("--one", choices=CASES, help="one case only, as JSON")
    parser.add_argument("--method", choices=("gradient", "enumeration"), default="gradient", help="of --one")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(options.one, options.method)))
        return
    print(f"{machine()}\n")
    header = ["family", "method", "cold, s", "of a core, s", "warm, ms", "evaluations", "objective at eps = 1"]
    print(markdown(header, rows(QUICK if options.quick else CASES)))
    print()
    print(
        markdown(["family", "budgets", "cold, s", "warm, s", "evaluations"], many_rows(20 if options.quick else 1000))
    )


if __name__ == "__main__":
    main()
