"""How near estimates from local reports come to the distribution of the inputs, by mechanism and estimator.

    python -m benchmarks.estimation            # four tables, the first that of README.md: ten minutes
    python -m benchmarks.estimation --quick    # n = 10^5 at three budgets, two releases each: a smoke run
    python -m benchmarks.estimation --json     # the rows as JSON

Errors are of the estimated cdf against that of the inputs that were perturbed, on the scale where the input interval is
[0, 1]: Wasserstein-1 (the mean of |F - F'|, with its standard error), Kolmogorov-Smirnov (the largest), and the mean
error of the quantiles 0.1, 0.5 and 0.9; means over releases at fixed keys. Seconds are those of an estimate from
counts, without intervals, once everything is compiled. The peer is multi-freq-ldpy (extra `peers`):
optimised unary encoding of 32 equal bins, its shares not negative; its reports are vectors, one at a time, and it is
left out above 10^5 of them.
"""

from __future__ import annotations

import csv
import json
import math
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import dpkernels as dpk
from accountants import tune
from benchmarks.shown import markdown, parser_of
from dpkernels.estimation.counts import Counts
from dpkernels.estimation.distribution import Distribution, Shares

# Budgets and numbers of reports.
CELLS = [*((epsilon, 100_000) for epsilon in (0.25, 0.5, 1.0, 2.5, 4.0)), *((1.0, 10**k) for k in (4, 6, 7))]
QUICK = [(epsilon, 100_000) for epsilon in (0.5, 1.0, 2.5)]
RELEASES, QUICK_RELEASES = 4, 2
UNIT: dict[str, Any] = {"lower": 0.0, "upper": 1.0}
BINS, PEER_BINS, MOST_OF_PEER = 256, 32, 100_000
AT = np.linspace(0, 1, 1025)
P = np.array([0.1, 0.5, 0.9])
TABLE = Path(__file__).parent.parent / "notebooks" / "data" / "rand_hie.csv"


def skewed(rng: np.random.Generator, n: int) -> np.ndarray:
    """Beta(5, 2)."""
    return rng.beta(5, 2, n)


def spiky(rng: np.random.Generator, n: int) -> np.ndarray:
    """Three quarters within 0.03 or so of 0.3 and 0.62, the rest uniform."""
    which = rng.random(n)
    near = np.where(which < 0.4, rng.normal(0.3, 0.01, n), rng.normal(0.62, 0.02, n))
    return np.clip(np.where(which < 0.75, near, rng.random(n)), 0, 1)


def at_an_end(rng: np.random.Generator, n: int) -> np.ndarray:
    """Exponential of mean 0.08, cut at 1."""
    return np.minimum(rng.exponential(0.08, n), 1.0)


def ages(rng: np.random.Generator, n: int) -> np.ndarray:
    """The real table's ages on [0, 100], drawn with replacement."""
    return rng.choice(_ages(), n)


@cache
def _ages() -> np.ndarray:
    with TABLE.open() as file:
        return np.array([float(row["age"]) for row in csv.DictReader(file)]) / 100


SHAPES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "skewed": skewed,
    "spiky": spiky,
    "at an end": at_an_end,
    "ages": ages,
}


@cache
def mechanism(name: str, epsilon: float, n: int) -> Any:
    """The exact form of a row's mechanism."""
    match name:
        case "piecewise":
            return dpk.exact_sampler(dpk.piecewise(epsilon=epsilon, **UNIT))
        case "piecewise for the distribution":
            found = tune.best(tune.piecewise(epsilon=epsilon, **UNIT), tune.distribution(n))
            return dpk.exact_sampler(found.mechanism)
        case _:
            return dpk.exact_sampler(dpk.square_wave(epsilon=epsilon, **UNIT))


# Mechanism and estimator of every row.
METHODS = {
    "piecewise, splines": ("piecewise", "splines"),
    "piecewise for the distribution, splines": ("piecewise for the distribution", "splines"),
    "square wave, splines": ("square wave", "splines"),
    "square wave, EMS": ("square wave", "ems"),
}
PEER = "multi-freq-ldpy OUE, 32 bins"


def ours(method: str, x: np.ndarray, epsilon: float, seed: int) -> tuple[Shares, float]:
    """The estimate from one release, and its seconds."""
    name, smoothing = METHODS[method]
    form = mechanism(name, epsilon, len(x))
    key = dpk.key_from_bytes(seed.to_bytes(32, "little"))
    counts = Counts(form).add(dpk.perturb(x, form, key=key))
    start = time.perf_counter()
    found = Distribution(counts, BINS, smoothing, resamples=40, seed=0).best
    return found, time.perf_counter() - start


def peers(x: np.ndarray, epsilon: float) -> tuple[Shares, float]:
    """Optimised unary encoding of bins by multi-freq-ldpy, and the seconds of its estimate."""
    from multi_freq_ldpy.pure_frequency_oracles.UE import UE_Aggregator_MI, UE_Client

    items = np.minimum((x * PEER_BINS).astype(int), PEER_BINS - 1)
    reports = np.array([UE_Client(item, PEER_BINS, epsilon, True) for item in items.tolist()])
    start = time.perf_counter()
    shares = np.asarray(UE_Aggregator_MI(reports, epsilon, True), float)
    seconds = time.perf_counter() - start
    return Shares(np.linspace(0, 1, PEER_BINS + 1), shares / shares.sum()), seconds


def errors(found: Shares, x: np.ndarray) -> tuple[float, float, float]:
    """Wasserstein-1, Kolmogorov-Smirnov, and the mean error of quantiles."""
    x = np.sort(x)
    off = np.abs(found.cdf(AT) - np.searchsorted(x, AT, side="right") / len(x))
    return float(off.mean()), float(off.max()), float(np.abs(found.quantile(P) - np.quantile(x, P)).mean())


def rows(cells: list[tuple[float, int]], releases: int) -> Iterator[dict[str, Any]]:
    """A row for every shape, budget, number of reports and method."""
    has_peer = _has_peer()
    for shape, make in SHAPES.items():
        for epsilon, n in cells:
            for method in [*METHODS, *([PEER] if has_peer and n <= MOST_OF_PEER else [])]:
                yield _row(shape, make, n, epsilon, method, releases)


def _row(shape: str, make: Any, n: int, epsilon: float, method: str, releases: int) -> dict[str, Any]:
    found = []
    for release in range(releases):
        x = make(np.random.default_rng(release), n)
        shares, seconds = peers(x, epsilon) if method == PEER else ours(method, x, epsilon, 1 + release)
        found.append((*errors(shares, x), seconds))
    w1, ks, quantiles = np.mean(found, 0)[:3]
    spread = float(np.std(np.array(found)[:, 0], ddof=1)) / math.sqrt(releases)
    seconds = min(one[3] for one in found)
    return {
        "shape": shape,
        "n": n,
        "eps": epsilon,
        "method": method,
        "w1": w1,
        "error": spread,
        "ks": ks,
        "q": quantiles,
        "s": seconds,
    }


def _has_peer() -> bool:
    try:
        import multi_freq_ldpy  # noqa: F401
    except ImportError:
        print("multi-freq-ldpy is not installed: without the peer")
        return False
    return True


# What is printed, how, and of which key of a row.
MEASURES = {
    "Wasserstein-1": lambda row: f"{row['w1']:.4f} +- {row['error']:.4f}",
    "Kolmogorov-Smirnov": lambda row: f"{row['ks']:.3f}",
    "quantiles": lambda row: f"{row['q']:.4f}",
    "seconds": lambda row: f"{row['s']:.3f}",
}


def tables(found: list[dict[str, Any]]) -> str:
    """A table a measure, with a row for every shape, budget and number of reports, and a column a method."""
    methods = list(dict.fromkeys(row["method"] for row in found))
    cells: dict[Any, dict[str, Any]] = {(row["shape"], row["eps"], row["n"]): {} for row in found}
    for row in found:
        cells[row["shape"], row["eps"], row["n"]][row["method"]] = row
    lines = []
    for measure, text in MEASURES.items():
        rows = [
            [shape, f"{eps:g}", f"10^{math.log10(n):.0f}", *(text(own[one]) if one in own else "" for one in methods)]
            for (shape, eps, n), own in cells.items()
        ]
        lines += [measure, "", markdown(["shape", "eps", "n", *methods], rows), ""]
    return "\n".join(lines)


def main() -> None:
    """Print the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = list(rows(QUICK, QUICK_RELEASES) if given.quick else rows(CELLS, RELEASES))
    print(json.dumps(found) if given.json else tables(found))


if __name__ == "__main__":
    main()
