"""Seconds, bytes and peak memory of datasets: the engines beside each other, and what 10^9 rows take.

    python -m benchmarks.datasets            # 10^8 rows in 100 files, 4 GB of disk, three minutes
    python -m benchmarks.datasets --quick    # a smoke run

Both engines run in turns in one process, which has released before; Ray's cluster is one node of this machine's cores
and is there already (starting one takes 3 to 5 s). Seconds are medians. Memory is a worker's peak, for the local engine
that of the command in a process of its own.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import ray

from benchmarks.files import COMMAND, PEAK
from benchmarks.shown import machine, make_parser, markdown
from dpkernels.cli import main as command
from dpkernels.release.engines import CORES

_ROUNDS = 3
_BOUNDS = ("--lower", "0", "--upper", "120", "--epsilon", "1")

# Columns of a table, by what the row is called.
TABLES: dict[str, Callable[[np.random.Generator, int], dict[str, np.ndarray]]] = {
    "1 float64": lambda random, rows: {"c0": random.uniform(0, 120, rows)},
    "1 float32": lambda random, rows: {"c0": random.uniform(0, 120, rows).astype(np.float32)},
    "1 int64": lambda random, rows: {"c0": random.integers(0, 120, rows)},
    "4 float64": lambda random, rows: {f"c{index}": random.uniform(0, 120, rows) for index in range(4)},
}

# Of a kind, in so many files, so many rows; the last is of files so small that only their number counts.
_CASES = [
    ("1 float64", 100, 100_000_000),
    ("1 float32", 20, 20_000_000),
    ("1 int64", 20, 20_000_000),
    ("4 float64", 20, 20_000_000),
    ("1 float64", 2000, 2_000_000),
]
_SMOKE = [(table_kind, 4, 40_000) for table_kind in TABLES]


def write(folder: Path, table_kind: str, files: int, rows: int) -> int:
    """A dataset; returns its bytes."""
    random = np.random.default_rng(1)
    folder.mkdir()
    for index in range(files):
        pq.write_table(pa.table(TABLES[table_kind](random, rows // files)), folder / f"{index:04}.parquet")
    return size(folder)


def size(folder: Path) -> int:
    """Bytes of a folder's files."""
    return sum(path.stat().st_size for path in folder.iterdir())


def arguments(source: Path, target: Path, table_kind: str, engine: str) -> list[str]:
    """Of the command."""
    columns = [option for index in range(int(table_kind[0])) for option in ("--column", f"c{index}")]
    return ["perturb", str(source), str(target), *columns, *_BOUNDS, "--quiet", "--engine", engine]


def seconds(source: Path, target: Path, table_kind: str, engine: str) -> float:
    """Of one release, which is removed before the next."""
    shutil.rmtree(target, ignore_errors=True)
    started = time.perf_counter()
    if command(arguments(source, target, table_kind, engine)):
        raise RuntimeError(f"{source} was refused")
    return time.perf_counter() - started


def local_peak(source: Path, target: Path, table_kind: str) -> float:
    """MiB of the command in a process of its own."""
    shutil.rmtree(target, ignore_errors=True)
    command = [sys.executable, "-c", PEAK, *COMMAND, *arguments(source, target, table_kind, "local")]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) / 1024


def worker_peak() -> float:
    """MiB of the largest of Ray's workers, as long as it has lived."""
    workers = [
        process
        for process in psutil.process_iter(["cmdline"])
        if (process.info["cmdline"] or [""])[0].startswith("ray::")
    ]
    lines = [Path(f"/proc/{process.pid}/status").read_text().splitlines() for process in workers]
    return max(int(line.split()[1]) for status in lines for line in status if line.startswith("VmHWM")) / 1024


def row(folder: Path, table_kind: str, files: int, rows: int) -> list[str]:
    """One line of the table."""
    source, target = folder / "in", folder / "out"
    read = write(source, table_kind, files, rows)
    times = [[seconds(source, target, table_kind, engine) for engine in ("local", "ray")] for _ in range(_ROUNDS + 1)][
        1:
    ]
    local, cluster = (statistics.median(method_times) for method_times in zip(*times, strict=True))
    written, billion = size(target), 1e9 / rows
    peaks = f"{local_peak(source, target, table_kind):.0f}", f"{worker_peak():.0f}"
    for used in (source, target):
        shutil.rmtree(used)
    sizes = f"{read * billion / 1e9:.1f}", f"{written * billion / 1e9:.1f}", f"{local * billion * CORES:.0f}"
    ratio = statistics.median(b / a for a, b in times)
    return [table_kind, f"{rows:.0e}", str(files), f"{local:.2f}", f"{cluster:.2f}", f"{ratio:.2f}", *peaks, *sizes]


def lines(quick: bool) -> Iterator[list[str]]:
    """Every line of the tables, that of the small files last."""
    with TemporaryDirectory() as folder:
        for table_kind, files, rows in _SMOKE if quick else _CASES:
            yield row(Path(folder), table_kind, files, rows)


def task_milliseconds(tasks: int = 3000) -> float:
    """Of the driver's processor, for a task that does nothing."""
    nothing = ray.remote(lambda: None)
    ray.get(nothing.remote())
    start = time.process_time()
    ray.get([nothing.remote() for _ in range(tasks)])
    return 1e3 * (time.process_time() - start) / tasks


def main() -> None:
    """Print the tables."""
    quick = make_parser(__doc__).parse_args().quick
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init("local", num_cpus=CORES, object_store_memory=80 << 20, include_dashboard=False, log_to_driver=False)
    print(machine())
    both = ["local, s", "ray, s", "ray / local", "local peak, MiB", "worker peak, MiB"]
    heading = ["columns", "rows", "files", *both, "in, GB/1e9", "out, GB/1e9", "core s/1e9"]
    *large, small = lines(quick)
    for rows in (large, [small]):
        print(f"\n{markdown(heading, rows)}")
    print(f"\na task that does nothing: {task_milliseconds():.2f} ms of the driver's processor")
    ray.shutdown()


if __name__ == "__main__":
    main()
