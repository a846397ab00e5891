"""Releases, parameters, accounting and allocation of batches, against their goals.

python -m benchmarks.batches                 # about two minutes
python -m benchmarks.batches --quick         # a tenth of the sizes

Times are of the processor, the least of several runs; a ratio is that of one mechanism of as many values in one run.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

import accountants
import dpkernels as dpk
from accountants import tune
from accountants.from_mechanism import guarantee


def seconds(work: Callable[[], Any], times: int = 7) -> float:
    """Return the least processor time of a call."""
    least = np.inf
    for _ in range(times):
        start = time.process_time()
        work()
        least = min(least, time.process_time() - start)
    return least


def releases(count: int) -> list[tuple[str, str, str]]:
    """Return rows for exact releases."""
    random = np.random.default_rng(1)
    lengths = np.round(np.exp(random.uniform(-3, 3, count)), 2) + 0.1
    x = lengths * random.uniform(0, 1, count)
    budgets = np.linspace(0.5, 2, min(1000, count))
    repeated_budgets = np.tile(budgets, -(-count // len(budgets)))[:count]
    interval: Any = {"lower": 0.0, "upper": 30.0}
    single_piecewise = dpk.piecewise(epsilon=1.0, **interval)
    single_gaussian = dpk.gaussian(sigma=5.0, sensitivity=1.0, epsilon=1.0, delta=1e-6)
    single_times = {
        "piecewise": seconds(lambda: dpk.perturb(np.minimum(x, 30.0), single_piecewise)),
        "laplace": seconds(lambda: dpk.perturb(x, dpk.laplace(epsilon=1.0))),
        "gaussian": seconds(lambda: dpk.perturb(x, single_gaussian)),
    }
    cases = {
        "own intervals, piecewise": ("piecewise", dpk.piecewise(epsilon=1.0, lower=0.0, upper=lengths), "1.5 times"),
        "own sensitivities, Laplace": ("laplace", dpk.laplace(epsilon=1.0, sensitivity=lengths), "1.5 times"),
        "own sensitivities, Gaussian": (
            "gaussian",
            dpk.gaussian(sigma=5 * lengths, sensitivity=lengths, epsilon=1.0, delta=1e-6),
            "1.5 times",
        ),
        f"{len(budgets)} budgets, Duchi": (
            "piecewise",
            dpk.duchi(epsilon=repeated_budgets, lower=0.0, upper=lengths),
            "3 times",
        ),
        "own scales, Laplace": (
            "laplace",
            dpk.laplace(epsilon=np.exp(random.uniform(-2, 1.5, count)), sensitivity=lengths),
            "150 ns a value",
        ),
    }
    rows = []
    for name, (single, batch, goal) in cases.items():
        first = seconds(partial(dpk.perturb, x, batch), 1)
        later = seconds(partial(dpk.perturb, x, batch))
        tables = len(dpk.exact_sampler(batch).samplers)
        text = (
            f"{later / single_times[single]:.1f} times ({1e9 * later / count:.0f} ns a value), first call {first:.1f} s"
        )
        rows.append((f"{count} values, {name}", f"{text}, {tables} tables", goal))
    return rows


def samples(count: int) -> tuple[str, str, str]:
    """Return the row for float samples."""
    lengths = np.linspace(1.0, 2.0, count)
    batch, single = (dpk.piecewise(epsilon=1.0, lower=0.0, upper=upper) for upper in (lengths, 1.0))
    key, x = dpk.simulation_key(0), jax.numpy.asarray(lengths / 2, np.float32)
    first = seconds(lambda: batch.sample(key, x).block_until_ready(), 1)

    def sample(mechanism: Any) -> None:
        mechanism.sample(key, x).block_until_ready()

    later = [seconds(partial(sample, mechanism)) for mechanism in (batch, single)]
    return (
        f"float samples of {count}",
        f"first call {first:.1f} s, then {later[0] / later[1]:.1f} times",
        "2 s, 1.5 times",
    )


def parameters(count: int) -> list[tuple[str, str, str]]:
    """Return rows for parameters that are searched."""
    budgets = np.linspace(0.05, 10.0, count)
    interval: Any = {"lower": 0.0, "upper": 1.0}
    piecewise = seconds(lambda: dpk.piecewise(epsilon=budgets, **interval), 1)
    sine = seconds(lambda: dpk.composite("sine", epsilon=0.05 + budgets, **interval), 1)
    return [
        (f"best eta of {count} budgets", f"{piecewise:.2f} s", "0.5 s for 10^5"),
        (f"best width of a sine window of {count} budgets", f"{sine:.2f} s", "5 s for 10^5"),
    ]


def accounting(count: int) -> list[tuple[str, str, str]]:
    """Return rows for guarantees and calibration."""
    random = np.random.default_rng(2)
    gaussian = dpk.Additive(dpk.Gaussian(1000 * np.exp(random.uniform(-1, 1, count))), 1.0)
    few = count // 10
    laplace = dpk.Additive(dpk.Laplace(np.exp(random.uniform(4, 6, few))), 1.0)
    of_gaussian = seconds(lambda: guarantee(gaussian).bracket(delta=1e-6), 3)
    of_laplace = seconds(lambda: guarantee(laplace).bracket(delta=1e-6), 1)
    low, high = guarantee(laplace).bracket(delta=1e-6)
    budgets = np.linspace(0.5, 2, count)
    calibration = seconds(lambda: accountants.calibrate.gaussian(epsilon=budgets, delta=1e-6), 3)
    width = f"bracket [{low:.3g}, {high:.3g}], estimate {guarantee(laplace).estimate_epsilon(1e-6):.4g}"
    return [
        (f"bounds of {count} Gaussians, own scales", f"{of_gaussian:.2f} s", "0.05 s for 10^5"),
        (f"bounds of {few} Laplace, own scales", f"{of_laplace:.1f} s, {width}", "2 s for 10^4"),
        (f"calibrate.gaussian of {count} budgets", f"{calibration:.2f} s", "0.2 s for 10^5"),
    ]


def allocation(count: int) -> list[tuple[str, str, str]]:
    """Return rows for one budget, epsilon 1, divided among queries."""
    random = np.random.default_rng(3)
    sensitivity, weights = np.exp(random.uniform(-1, 1, count)), np.exp(random.uniform(-2, 2, count))
    budget: Any = {"epsilon": 1.0, "weights": weights}
    laplace, gaussian = (
        dpk.laplace(epsilon=1.0, sensitivity=sensitivity),
        dpk.gaussian(sigma=1.0, sensitivity=sensitivity),
    )
    results = {}
    for name, queries, delta in (
        ("Gaussian", gaussian, 1e-6),
        ("Laplace", laplace, 1e-6),
        ("Laplace, basic", laplace, 0.0),
    ):
        start = time.process_time()
        value = tune.allocate(queries, delta=delta, **budget).value
        results[name] = time.process_time() - start, value
    goals = {"Gaussian": "2 s", "Laplace": "10 s", "Laplace, basic": "-"}
    best = results["Gaussian"][1]
    return [
        (f"allocate {count} queries, {name}", f"{taken:.1f} s, {value / best:.3g} times the variance", goals[name])
        for name, (taken, value) in results.items()
    ]


def sweep(count: int) -> tuple[str, str, str]:
    """Return the row for a sweep of budgets by gradient."""
    budgets = np.geomspace(0.2, 6.0, count)
    family = tune.piecewise(epsilon=budgets, lower=-1.0, upper=1.0)
    start = time.process_time()
    result = tune.many(family, tune.worst_variance)
    taken = time.process_time() - start
    best = dpk.piecewise(epsilon=budgets, lower=-1.0, upper=1.0).worst_variance
    excess = float(np.max(result.values / best)) - 1
    return f"tune.many of {count} budgets, piecewise", f"{taken:.1f} s, at most {excess:.0e} above the best", "-"


def main() -> None:
    """Print the table."""
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes")
    size = 10 if parser.parse_args().quick else 1
    print("| work | measured | goal |\n|---|---|---|")
    for rows in (
        releases(1_000_000 // size),
        [samples(1_000_000 // size)],
        parameters(100_000 // size),
        accounting(100_000 // size),
        allocation(1_000 // size),
        [sweep(10_000 // size)],
    ):
        for row in rows:
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
