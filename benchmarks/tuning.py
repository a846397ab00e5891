"""Tuning by gradient against the sources' own searches, in one run, as markdown tables.

    python -m benchmarks.tuning            # about four minutes
    python -m benchmarks.tuning --quick    # one family: a smoke run

A cold time is that of the first call in a new process after its imports, with all compilation. Its processor time
is given as well, because other work on the machine changes it less. A warm time is the median of five calls at other
budgets, certificates included. The sources' searches are vectorised here, unlike in their own code, and use the same
compiled objectives. Evaluations count calls of the objective, and for recycling those of the privacy profile.

The second table compares optimizers. The default is Brent's method for one free number, and this package's BFGS for
several. optax.lbfgs and optax.adam run in the same loop. scipy.optimize.minimize runs over plain numbers; it uses the
method of Nelder and Mead from the best starting point of the default, and does not certify its result.
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
import optax
from scipy.optimize import minimize

from accountants import tune
from accountants.published import searches
from accountants.tune.domains import constrain
from accountants.tune.tuning import starting_points
from benchmarks.shown import machine, make_parser, markdown

SIGNED: dict[str, Any] = {"lower": -1.0, "upper": 1.0}
DELTA = 1e-5
WARM = 5

Case = tuple[Callable[[float], Any], Any]


def composed(single: Any, epsilon: float, count: int, **samples: Any) -> Any:
    """Return the family of ``count`` reports that meet a budget together."""
    return tune.composed(single, count=count, epsilon=epsilon, delta=DELTA, **samples)


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
QUICK = ("piecewise",)
COMPARED = (
    *QUICK,
    "recycled gaussian",
    "triangle on quartic, pointwise",
    "recycled laplace",
    "truncated gaussian",
    "10 reports, piecewise",
)
EPSILON = 1.0

# Name -> an optax transformation; None for the default. SciPy's has no transformation.
_METHODS: dict[str, Callable[..., tune.Result]] = {"gradient": tune.best, "enumeration": searches.best}

OPTIMIZERS: dict[str, Any] = {
    "default": None,
    "optax.lbfgs": optax.lbfgs(),
    "optax.adam(0.05)": optax.adam(0.05),
    "scipy.optimize.minimize": None,
}


def timed(call: Callable[[], Any]) -> tuple[float, float, Any]:
    """(seconds, seconds of the processor, result)."""
    start, spent = time.perf_counter(), time.process_time()
    result = call()
    return time.perf_counter() - start, time.process_time() - spent, result


def measured(name: str, method: str) -> dict[str, Any]:
    """One case by one method, first cold, then warm; or why it has no result."""
    family, objective = CASES[name]
    best = _METHODS[method]
    jax.numpy.zeros(2).block_until_ready()  # The backend's start is no part of a search.
    try:
        cold, spent, result = timed(lambda: best(family(EPSILON), objective))
    except (TypeError, ValueError) as error:
        return {"error": str(error)}
    budgets = EPSILON * np.linspace(1.1, 2.0, WARM)
    warm = [timed(partial(best, family(float(eps)), objective))[0] for eps in budgets]
    return {
        "cold": cold,
        "spent": spent,
        "warm": float(np.median(warm)),
        "evaluations": result.evaluations,
        "value": result.value,
    }


def by_scipy(family: Any, objective: Any) -> tuple[float, int]:
    """Return (the best objective, evaluations) by SciPy over members of plain numbers."""
    target = family.with_tolerated_error(objective.theta)
    points = starting_points(target, None)

    def cost(z: np.ndarray) -> float:
        try:
            member = target.build(constrain(target.domains, z))
        except ValueError:  # Plain numbers that are infeasible are refused.
            return np.inf
        numbers = [np.asarray(leaf) for leaf in jax.tree.leaves(member)]
        known = all(np.isfinite(number).all() for number in numbers)
        return objective.sign * float(objective(member)) if known else np.inf

    with jax.enable_x64(True):
        best = min((cost(z), tuple(z)) for z in points.reshape(-1, points.shape[-1]))[1]
        result = minimize(cost, best, method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-12})
    return objective.sign * float(result.fun), result.nfev + points[..., 0].size


def by_optimizer(name: str, optimizer: str) -> dict[str, Any]:
    """Measure one case by one optimizer: seconds of the processor first and later, evaluations, value."""
    family, objective = CASES[name]
    jax.numpy.zeros(2).block_until_ready()  # The backend's start is no part of a search.

    def once(epsilon: float) -> tuple[float, int]:
        if optimizer == "scipy.optimize.minimize":
            return by_scipy(family(epsilon), objective)
        result = tune.best(family(epsilon), objective, optimizer=OPTIMIZERS[optimizer])
        return result.value, result.evaluations

    _, first, (value, evaluations) = timed(lambda: once(EPSILON))
    later = [timed(partial(once, float(eps)))[1] for eps in EPSILON * np.linspace(1.1, 2.0, WARM)]
    return {"first": first, "later": float(np.median(later)), "evaluations": evaluations, "value": value}


def optimizer_rows(names: Any) -> Iterator[list[str]]:
    """Yield one row a case and optimizer."""
    for name in names:
        for optimizer in OPTIMIZERS:
            result = in_a_fresh_process(name, "--optimizer", optimizer)
            times = [f"{result['first']:.2f}", f"{1e3 * result['later']:.1f}"]
            yield [name, optimizer, *times, f"{result['evaluations']}", f"{result['value']:.9g}"]


def in_a_fresh_process(name: str, option: str, value: str) -> dict[str, Any]:
    """Measure a case by a method or by an optimizer in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.tuning", "--one", name, option, value]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def rows(names: Any) -> Iterator[list[str]]:
    """One row a case and method."""
    for name in names:
        for method in _METHODS:
            result = in_a_fresh_process(name, "--method", method)
            if "error" in result:
                yield [name, method, "", "", "", "", result["error"].split(";")[0]]
                continue
            times = [f"{result['cold']:.2f}", f"{result['spent']:.2f}", f"{1e3 * result['warm']:.1f}"]
            yield [name, method, *times, f"{result['evaluations']}", f"{result['value']:.9g}"]


def many_rows(names: Any, count: int) -> Iterator[list[str]]:
    """Seconds for many budgets in one call, cold and warm."""
    for name in names:
        family, objective = CASES[name]
        budgets: Any = np.linspace(0.5, 3.0, count)
        call = partial(tune.many, family(budgets), objective)
        (cold, *_), (warm, _, result) = timed(call), timed(call)
        yield [name, f"{count}", f"{cold:.2f}", f"{warm:.2f}", f"{result.evaluations}"]


def main() -> None:
    """Print the tables, or with ``--one`` a measurement as JSON."""
    parser = make_parser(__doc__, "one family and 20 budgets")
    parser.add_argument("--one", choices=CASES, help="one case only, as JSON")
    parser.add_argument("--method", choices=_METHODS, default="gradient", help="of --one")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, help="of --one, instead of a method")
    options = parser.parse_args()
    if options.one:
        by_method = options.optimizer is None
        result = measured(options.one, options.method) if by_method else by_optimizer(options.one, options.optimizer)
        print(json.dumps(result))
        return
    print(f"{machine()}\n")
    header = ["family", "method", "cold, s", "of a core, s", "warm, ms", "evaluations", "objective at eps = 1"]
    print(markdown(header, rows(QUICK if options.quick else CASES)))
    print()
    header = ["family", "optimizer", "first, s of a core", "later, ms of a core", "evaluations", "objective at eps = 1"]
    print(markdown(header, optimizer_rows(QUICK if options.quick else COMPARED)))
    print()
    header = ["family", "budgets", "cold, s", "warm, s", "evaluations"]
    print(markdown(header, many_rows(QUICK, 20) if options.quick else many_rows(COMPARED[:2], 1000)))


if __name__ == "__main__":
    main()
