"""Reports of categories as markdown tables: errors against the strict bound, measured errors, and speed.

    python -m benchmarks.categories            # about two minutes; --quick: fewer reports
    python -m benchmarks.categories --command 1000000000 --folder /scratch     # files of so many rows, by the command

Errors are n times the expected sum of squared errors of all shares, over the strict bound. Those of OUE and OLH (Wang,
Blocki, Li & Jha 2017) are from their formulas; OLH has random hashes into e^eps + 1 buckets. Times are seconds of the
processor and of the clock. ``--peers FILE`` compares with what ``category_peers.py`` has measured of other packages.
``--command ROWS`` writes a Parquet file of codes, perturbs it and estimates from it with the command, and removes the
files; 10^9 rows take 4 GB of disk. The memory is the largest one of the command's process.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dpkernels as dpk
from benchmarks.shown import machine, make_parser, markdown

CATEGORIES, LEVELS = (2, 5, 20, 266, 4096), (0.5, 1.0, 2.0, 4.0)
_OWN_REPORTS = 1 << 20  # that are timed beside those of peers


def unary_error(epsilon: float, d: int) -> float:
    """Return the error of optimised unary encoding: p = 1/2, q = 1/(e^eps + 1)."""
    return 1 + 4 * math.exp(epsilon) * d / math.expm1(epsilon) ** 2


def hashing_error(epsilon: float, d: int) -> float:
    """Return the error of local hashing into g = round(e^eps + 1) buckets: p = e^eps/(e^eps + g - 1), q = 1/g."""
    g = max(2, round(math.exp(epsilon) + 1))
    p, q = math.exp(epsilon) / (math.exp(epsilon) + g - 1), 1 / g
    return (p * (1 - p) + (d - 1) * q * (1 - q)) / (p - q) ** 2


def errors() -> list[list[str]]:
    """Return the strict bound, and every mechanism's error over it."""
    rows = [["eps", "d", "strict bound", "subset selection", "block response", "randomised response", "OUE", "OLH"]]
    for epsilon in LEVELS:
        for d in CATEGORIES:
            bound = float(dpk.strict_bound(epsilon, d))
            mechanisms = (
                dpk.subset_selection(epsilon, d),
                dpk.block_response(epsilon, d),
                dpk.randomised_response(epsilon, d),
            )
            own_errors = [float(m.mean_squared_error()) for m in mechanisms]
            ratios = [error / bound for error in (*own_errors, unary_error(epsilon, d), hashing_error(epsilon, d))]
            rows.append([f"{epsilon:g}", str(d), f"{bound:.5g}", *(f"{ratio:.4g}" for ratio in ratios)])
    return rows


def measured(trials: int, n: int) -> list[list[str]]:
    """Return measured errors of released reports, their standard errors, and the formula."""
    rows = [["mechanism", "d", "eps", "measured", "formula", "projected on the simplex"]]
    rng = np.random.default_rng(0)
    for m in (dpk.subset_selection(1.0, 266), dpk.block_response(1.0, 266), dpk.block_response(1.0, 4096)):
        weights = 1.0 / np.arange(1, m.categories + 1)
        codes = rng.choice(m.categories, n, p=weights / weights.sum())
        truth = np.bincount(codes, minlength=m.categories) / n
        errors = []
        for _ in range(trials):
            shares = dpk.estimate(dpk.perturb(codes, m), m).shares
            errors.append([n * ((estimate - truth) ** 2).sum() for estimate in (shares.unbiased, shares.value)])
        (mean, projected), spread = np.mean(errors, axis=0), np.std(errors, axis=0, ddof=1)[0] / math.sqrt(trials)
        formula = f"{float(m.mean_squared_error()):,.1f}"
        rows.append(
            [type(m).__name__, str(m.categories), "1", f"{mean:,.1f} +- {spread:,.1f}", formula, f"{projected:,.1f}"]
        )
    return rows


def timed(function: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return a result, the processor time and the time of the clock."""
    processor, clock = time.process_time(), time.perf_counter()
    result = function()
    return result, time.process_time() - processor, time.perf_counter() - clock


def speed(n: int) -> list[list[str]]:
    """Return the seconds to perturb and to count n reports."""
    rows = [["mechanism", "d", "reports", "perturb, processor", "clock", "estimate, processor", "clock"]]
    for m in (
        dpk.randomised_response(1.0, 266),
        dpk.subset_selection(1.0, 266),
        dpk.block_response(1.0, 266),
        dpk.block_response(1.0, 4096),
    ):
        codes = np.random.default_rng(0).integers(0, m.categories, n)
        dpk.perturb(codes[:10], m)
        reports, *first = timed(partial(dpk.perturb, codes, m))
        _, *second = timed(partial(_shares, reports, m))
        name = "randomised response" if m.kind == "category" else type(m).__name__
        rows.append([name, str(m.categories), f"{n:,}", *(f"{seconds:.2f}" for seconds in (*first, *second))])
    return rows


def _shares(reports: Any, mechanism: Any) -> np.ndarray:
    return dpk.estimate(reports, mechanism).shares.value


_GROUP = 1 << 20  # rows of a row group
_OF_FILES = 4096  # categories


def commands(rows: int, folder: Path | None) -> list[list[str]]:
    """Return the times and the memory of the command for a file of so many rows, and the error of its estimates."""
    with tempfile.TemporaryDirectory(dir=folder) as work_folder:
        source, target = Path(work_folder) / "in.parquet", Path(work_folder) / "out.parquet"
        truth, *written = timed(partial(_write, source, rows))
        chosen = ["--mechanism", "block-response", "--categories", str(_OF_FILES), "--epsilon", "1"]
        table = [["step", "rows", "seconds, clock", "seconds, processor", "memory, GB", "file, GB"]]
        table.append(["write the input", f"{rows:,}", *_seconds(written[::-1]), "", _gigabytes(source)])
        _, *cost = _run("perturb", source, target, "--column", "code", *chosen, "--quiet")
        table.append(["perturb", f"{rows:,}", *_seconds(cost[:2]), f"{cost[2]:.2f}", _gigabytes(target)])
        printed, *cost = _run("estimate", target, "--column", "code", "--json")
        table.append(["estimate", f"{rows:,}", *_seconds(cost[:2]), f"{cost[2]:.2f}", ""])
    (estimate,) = json.loads(printed)["estimates"]
    unbiased = np.array([row["unbiased"] for row in estimate["categories"]])
    error = ((unbiased - truth) ** 2).sum() / rows
    expected = float(dpk.block_response(1.0, _OF_FILES).mean_squared_error())
    table.append(["squared error over the formula", f"{estimate['reports']:,}", f"{error / expected:.3f}", "", "", ""])
    return table


def _write(path: Path, rows: int) -> np.ndarray:
    """Write codes with frequencies of Zipf's law, and return how often there is each."""
    weights = 1.0 / np.arange(1, _OF_FILES + 1)
    ends, rng = np.cumsum(weights / weights.sum()), np.random.default_rng(0)
    # A table of 2^16 codes with these frequencies, of which every row draws one.
    codes = np.searchsorted(ends, (np.arange(1 << 16) + 0.5) / (1 << 16)).astype(np.uint16)
    total = np.zeros(_OF_FILES, np.int64)
    with pq.ParquetWriter(path, pa.schema([("code", pa.uint16())]), compression="none") as file:
        for first in range(0, rows, _GROUP):
            drawn = codes[rng.integers(0, 1 << 16, min(_GROUP, rows - first), np.uint16)]
            total += np.bincount(drawn, minlength=_OF_FILES)
            file.write_table(pa.table({"code": drawn}), row_group_size=_GROUP)
    return total


# A process counts its parent's memory as its own, hence a small one between.
_USAGE = (
    "import os, subprocess, sys; process = subprocess.Popen(sys.argv[1:])\n"
    "_, status, usage = os.wait4(process.pid, 0)\n"
    "print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss, file=sys.stderr); sys.exit(status != 0)"
)
_COMMAND = [sys.executable, "-c", "import sys; from dpkernels.cli import main; sys.exit(main())"]


def _run(*arguments: Any) -> tuple[str, float, float, float]:
    """Run the command in a process of its own; return its output, seconds by two clocks, and its memory in GB."""
    call, start = [sys.executable, "-c", _USAGE, *_COMMAND, *map(str, arguments)], time.perf_counter()
    done = subprocess.run(call, capture_output=True, text=True)
    clock = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"{arguments[0]}: {done.stderr}")
    processor, memory = map(float, done.stderr.split()[-2:])
    return done.stdout, clock, processor, memory * 1024 / 1e9


def _seconds(pair: Any) -> list[str]:
    return [f"{seconds:.1f}" for seconds in pair]


def _gigabytes(path: Path) -> str:
    return f"{path.stat().st_size / 1e9:.2f}"


def peers(path: Path, trials: int) -> list[list[str]]:
    """Return times and measured errors of other packages, and of this one: the errors over the strict bound."""
    results = json.loads(path.read_text())
    rows = [["d", "package", "mechanism", "microseconds a report", "error over the strict bound"]]
    rng = np.random.default_rng(0)
    for d in sorted({row["categories"] for row in results["rows"]}):
        bound = float(dpk.strict_bound(results["epsilon"], d))
        constructors = (dpk.randomised_response, dpk.subset_selection, dpk.block_response)
        for mechanism in [build(results["epsilon"], d) for build in constructors]:
            codes = rng.integers(0, d, _OWN_REPORTS)
            dpk.perturb(codes[: 1 << 17], mechanism)
            _, seconds, _ = timed(partial(dpk.perturb, codes, mechanism))
            few = codes[:5_000]
            truth = np.bincount(few, minlength=d) / len(few)
            errors = [
                len(few) * ((dpk.estimate(dpk.perturb(few, mechanism), mechanism).shares.unbiased - truth) ** 2).sum()
                for _ in range(trials)
            ]
            name = {"category": "randomised response", "set": "subset selection", "block": "block response"}
            spread = np.std(errors, ddof=1) / math.sqrt(trials)
            rows.append(
                _row(d, "dpkernels", name[mechanism.kind], seconds / len(codes), np.mean(errors), spread, bound)
            )
        for row in (row for row in results["rows"] if row["categories"] == d):
            named = (f"{row['package']} {results['versions'][row['package']]}", row["mechanism"])
            rows.append(_row(d, *named, row["seconds"], row["error"], row["spread"], bound))
    return rows


def _row(d: int, package: str, name: str, seconds: float, error: Any, spread: Any, bound: float) -> list[str]:
    ratio = f"{error / bound:.3g} +- {spread / bound:.2g}"
    return [str(d), package, name, f"{1e6 * seconds:.2g}", ratio]


def main() -> None:
    """Print every table."""
    parser = make_parser(__doc__, "5 releases and 10^6 reports")
    parser.add_argument("--peers", type=Path, metavar="FILE", help="what category_peers.py has printed")
    parser.add_argument("--command", type=int, metavar="ROWS", help="rows of files that the command reads and writes")
    parser.add_argument("--folder", type=Path, help="where these files are written; by default the temporary folder")
    options = parser.parse_args()
    print(machine())
    trials, n = (5, 10**6) if options.quick else (40, 10**7)
    if options.command is not None:
        tables = [commands(options.command, options.folder)]
    elif options.peers is not None:
        tables = [peers(options.peers, trials)]
    else:
        tables = [errors(), measured(trials, 5_638), speed(n)]
    for table in tables:
        print(f"\n{markdown(table[0], table[1:])}")


if __name__ == "__main__":
    main()
