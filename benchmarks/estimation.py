"""How near estimates from local reports come to the distribution of the inputs, and how often their intervals hold.

    python -m benchmarks.estimation                # distances by shape, mechanism and estimator: ten minutes
    python -m benchmarks.estimation --quick        # n = 10^5 at three budgets, two releases each: a smoke run
    python -m benchmarks.estimation --json         # the rows as JSON
    python -m benchmarks.estimation --coverage     # how many 95 % intervals hold, in 40 releases for each cell
    python -m benchmarks.estimation --coverage --releases 500 --shape constant --shape ages

Errors are of the estimated cdf against that of the inputs that were perturbed, on the scale where the input interval is
[0, 1]: Wasserstein-1 (the mean of |F - F'|, with its standard error), Kolmogorov-Smirnov (the largest), and the mean
error of the quantiles 0.1, 0.5 and 0.9; means over releases at fixed keys. Seconds are those of an estimate from
counts, with its choice of a model and without intervals. The peer is multi-freq-ldpy (extra `peers`): optimised unary
encoding of 32 equal bins, its shares not negative. Its reports are vectors, made one at a time, so that it is left out
above 10^5 of them.

Coverage is that of 95 % intervals of the quantiles 0.1, 0.3, ..., 0.9, of the cdf at ten points, and of the shares
between neighbouring points, whose mean widths are in brackets. Each release draws values from the shape, and their
reports from the certified table. Intervals are those around the maximum likelihood estimate, which needs no choice.
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
from benchmarks.shown import make_parser, markdown
from dpkernels.estimation.counts import Counts
from dpkernels.estimation.models import InputDistribution

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
    values = np.where(which < 0.4, rng.normal(0.3, 0.01, n), rng.normal(0.62, 0.02, n))
    return np.clip(np.where(which < 0.75, values, rng.random(n)), 0, 1)


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


def zeros(rng: np.random.Generator, n: int) -> np.ndarray:
    """60 % zeros, the rest uniform."""
    return np.where(rng.random(n) < 0.6, 0.0, rng.random(n))


def whole(rng: np.random.Generator, n: int) -> np.ndarray:
    """Binomial numbers from 0 to 20, divided by 20."""
    return rng.binomial(20, 0.4, n) / 20


SHAPES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "skewed": skewed,
    "spiky": spiky,
    "at an end": at_an_end,
    "ages": ages,
    "60 % zeros": zeros,
    "whole numbers": whole,
}


@cache
def mechanism(name: str, epsilon: float, n: int) -> Any:
    """The exact form of a row's mechanism."""
    match name:
        case "piecewise":
            return dpk.exact_sampler(dpk.piecewise(epsilon=epsilon, **UNIT))
        case "piecewise for the distribution":
            tuned = tune.best(tune.piecewise(epsilon=epsilon, **UNIT), tune.distribution(n))
            return dpk.exact_sampler(tuned.mechanism)
        case _:
            return dpk.exact_sampler(dpk.square_wave(epsilon=epsilon, **UNIT))


# Mechanism and model of every row.
METHODS = {
    "piecewise, chosen": ("piecewise", "auto"),
    "piecewise for the distribution, chosen": ("piecewise for the distribution", "auto"),
    "piecewise for the distribution, splines": ("piecewise for the distribution", "splines"),
    "square wave, chosen": ("square wave", "auto"),
    "square wave, EMS": ("square wave", "ems"),
}
PEER = "multi-freq-ldpy OUE, 32 bins"


def ours(method: str, x: np.ndarray, epsilon: float, seed: int) -> tuple[InputDistribution, float]:
    """The estimate from one release, and its seconds."""
    name, model = METHODS[method]
    sampler = mechanism(name, epsilon, len(x))
    key = dpk.key_from_bytes(seed.to_bytes(32, "little"))
    counts = Counts(sampler).add(dpk.perturb(x, sampler, key=key))
    start = time.perf_counter()
    distribution = dpk.estimate(counts, bins=BINS, model=model).distribution
    return distribution, time.perf_counter() - start


def peers(x: np.ndarray, epsilon: float) -> tuple[InputDistribution, float]:
    """Optimised unary encoding of bins by multi-freq-ldpy, and the seconds of its estimate."""
    from multi_freq_ldpy.pure_frequency_oracles.UE import UE_Aggregator_MI, UE_Client

    items = np.minimum((x * PEER_BINS).astype(int), PEER_BINS - 1)
    reports = np.array([UE_Client(item, PEER_BINS, epsilon, True) for item in items.tolist()])
    start = time.perf_counter()
    histogram = np.asarray(UE_Aggregator_MI(reports, epsilon, True), float)
    seconds = time.perf_counter() - start
    edges, none = np.linspace(0, 1, PEER_BINS + 1), np.zeros(0)
    return InputDistribution(edges, histogram / histogram.sum(), none, none), seconds


def errors(distribution: InputDistribution, x: np.ndarray) -> tuple[float, float, float]:
    """Wasserstein-1, Kolmogorov-Smirnov, and the mean error of quantiles."""
    x = np.sort(x)
    cdf_errors = np.abs(distribution.cdf(AT) - np.searchsorted(x, AT, side="right") / len(x))
    return (
        float(cdf_errors.mean()),
        float(cdf_errors.max()),
        float(np.abs(distribution.quantile(P) - np.quantile(x, P)).mean()),
    )


def rows(cells: list[tuple[float, int]], releases: int) -> Iterator[dict[str, Any]]:
    """A row for every shape, budget, number of reports and method."""
    has_peer = _has_peer()
    for shape, make in SHAPES.items():
        for epsilon, n in cells:
            for method in [*METHODS, *([PEER] if has_peer and n <= MOST_OF_PEER else [])]:
                yield _row(shape, make, n, epsilon, method, releases)


def _row(shape: str, make: Any, n: int, epsilon: float, method: str, releases: int) -> dict[str, Any]:
    release_errors = []
    for release in range(releases):
        x = make(np.random.default_rng(release), n)
        distribution, seconds = peers(x, epsilon) if method == PEER else ours(method, x, epsilon, 1 + release)
        release_errors.append((*errors(distribution, x), seconds))
    w1, ks, quantiles = np.mean(release_errors, 0)[:3]
    spread = float(np.std(np.array(release_errors)[:, 0], ddof=1)) / math.sqrt(releases)
    seconds = min(row_errors[3] for row_errors in release_errors)
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


def tables(results: list[dict[str, Any]]) -> str:
    """A table a measure, with a row for every shape, budget and number of reports, and a column a method."""
    methods = list(dict.fromkeys(row["method"] for row in results))
    cells: dict[Any, dict[str, Any]] = {(row["shape"], row["eps"], row["n"]): {} for row in results}
    for row in results:
        cells[row["shape"], row["eps"], row["n"]][row["method"]] = row
    lines = []
    for measure, text in MEASURES.items():
        rows = [
            [
                shape,
                f"{eps:g}",
                f"10^{math.log10(n):.0f}",
                *(text(by_method[method]) if method in by_method else "" for method in methods),
            ]
            for (shape, eps, n), by_method in cells.items()
        ]
        lines += [measure, "", markdown(["shape", "eps", "n", *methods], rows), ""]
    return "\n".join(lines)


# Shapes for coverage as points with masses, fine beside what reports can distinguish: name, points and masses, grid.
_POINTS = 4001
LEVELS = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
CDF_AT = np.linspace(0.05, 0.95, 10).round(10)


def _smooth(density: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    x = (np.arange(_POINTS) + 0.5) / _POINTS
    return x, density(x) / density(x).sum()


def _mixed(share: float, place: float) -> tuple[np.ndarray, np.ndarray]:
    x, masses = _smooth(np.ones_like)
    return np.append(x, place), np.append((1 - share) * masses, share)


def _normal(x: np.ndarray, mean: float) -> np.ndarray:
    return np.exp(-0.5 * ((x - mean) / 0.04) ** 2)


COVERED: dict[str, tuple[Callable[[], tuple[np.ndarray, np.ndarray]], float | None]] = {
    "uniform": (lambda: _smooth(np.ones_like), None),
    "Beta(2, 5)": (lambda: _smooth(lambda x: x * (1 - x) ** 4), None),
    "two narrow modes": (lambda: _smooth(lambda x: _normal(x, 0.3) + _normal(x, 0.7)), None),
    "60 % zeros": (lambda: _mixed(0.6, 0.0), None),
    "60 % at the middle": (lambda: _mixed(0.6, 0.5), None),
    "constant": (lambda: (np.array([0.37]), np.ones(1)), None),
    "ages": (lambda: np.unique(_ages(), return_counts=True), None),
    "whole numbers": (lambda: (np.arange(21) / 20, np.full(21, 1 / 21)), 0.05),
    "at an end": (lambda: _smooth(lambda x: np.exp(-x / 0.08)), None),
}


def covered(shape: str, epsilon: float, n: int, releases: int, assume: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the shares of intervals that hold for quantiles, cdf and counts, and the mean widths of these."""
    make, grid = COVERED[shape]
    x, masses = make()
    order = np.argsort(x, kind="stable")
    x, masses = x[order].round(10), masses[order] / masses.sum()
    sampler = mechanism("piecewise", epsilon, n)
    channel = Counts(sampler).channel
    q = channel.probabilities(x, np.arange(len(channel.reports))) @ masses
    cdf_below = np.append(0.0, np.cumsum(masses))
    cdf, strictly = (cdf_below[np.searchsorted(x, CDF_AT, side)] for side in ("right", "left"))
    quantiles = x[np.minimum(np.searchsorted(cdf_below[1:], LEVELS - 1e-12), len(x) - 1)]
    between = strictly[1:] - strictly[:-1]
    between[-1] = cdf[-1] - strictly[-2]
    held = []
    for release in range(releases):
        counts = Counts(sampler)
        counts.numbers = np.random.default_rng(release).multinomial(n, q / q.sum())
        e = dpk.estimate(counts, grid=grid, assume=assume, model="none" if assume == "nothing" else "auto")
        intervals = [(e.cdf(CDF_AT), cdf), (e.histogram(CDF_AT).shares, between)]
        try:
            intervals.insert(0, (e.quantile(LEVELS), quantiles))
        except dpk.TooFewReportsError:
            held.append([[np.nan, np.nan], *map(_held, *zip(*intervals, strict=True))])
            continue
        held.append([_held(interval, truth) for interval, truth in intervals])
    rates = np.nanmean(np.array(held), axis=0)
    return rates[:, 0], rates[:, 1]


def _held(found: Any, truth: np.ndarray) -> list[float]:
    """Return the share of 95 % intervals that contain the truth, to within rounding, and their mean width."""
    low, high = found.interval()
    return [float(((low - 1e-6 <= truth) & (truth <= high + 1e-6)).mean()), float((high - low).mean())]


def coverage(shapes: list[str], cells: list[tuple[float, int]], releases: int, assume: str) -> Iterator[list[str]]:
    """Rows of the table of coverage, each printed as soon as it is known."""
    for shape in shapes:
        for epsilon, n in cells:
            rates, widths = covered(shape, epsilon, n, releases, assume)
            cells_of_row = [f"{rate:.1%} ({width:.3f})" for rate, width in zip(rates, widths, strict=True)]
            yield [shape, f"{epsilon:g}", f"10^{math.log10(n):.0f}", *cells_of_row, f"{np.nanmean(rates):.1%}"]


def main() -> None:
    """Print the tables."""
    parser = make_parser(__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--coverage", action="store_true", help="count how often 95 %% intervals hold")
    parser.add_argument("--releases", type=int, default=40, help="releases for each cell of coverage")
    parser.add_argument("--shape", action="append", choices=list(COVERED), help="of coverage; default: all")
    parser.add_argument("--n", action="append", type=int, help="reports, of coverage; default: 10^4 and 10^5")
    parser.add_argument("--assume", default="nothing", choices=["nothing", "smooth"], help="of coverage")
    options = parser.parse_args()
    if options.coverage:
        cells_of_table = [(epsilon, n) for n in options.n or (10**4, 10**5) for epsilon in (0.5, 1.0, 2.5)]
        heading = ["shape", "eps", "n", "quantiles (width)", "cdf (width)", "shares (width)", "all"]
        print(markdown(heading, []))
        for row in coverage(options.shape or list(COVERED), cells_of_table, options.releases, options.assume):
            print("| " + " | ".join(row) + " |", flush=True)
        return
    results = list(rows(QUICK, QUICK_RELEASES) if options.quick else rows(CELLS, RELEASES))
    print(json.dumps(results) if options.json else tables(results))


if __name__ == "__main__":
    main()
