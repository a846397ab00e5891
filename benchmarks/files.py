"""Seconds and peak memory of ``dpkernels perturb`` on files, beside Arrow's own streamed reading and writing of them.

    python -m benchmarks.files            # 10^7 rows of CSV and 5 * 10^7 of Parquet, about three minutes
    python -m benchmarks.files --quick    # a smoke run

Seconds are medians of rounds in which Arrow and we take turns, in one process that has perturbed before. Peak memory is
that of the command in a process of its own, its imports included.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from benchmarks.shown import machine, markdown, parser_of
from dpkernels.cli import main as command

OPTIONS = ["--column", "age", "--lower", "0", "--upper", "120", "--epsilon", "1", "--force", "--quiet"]
_PIECE = 1_000_000
_ROUNDS = 5

# A process counts its parent's memory as its own, hence a small one between.
PEAK = (
    "import os, subprocess, sys; process = subprocess.Popen(sys.argv[1:])\n"
    "_, status, usage = os.wait4(process.pid, 0); print(usage.ru_maxrss); sys.exit(status != 0)"
)
COMMAND = [sys.executable, "-c", "import sys; from dpkernels.cli import main; sys.exit(main())"]


def tables(rows: int) -> Iterator[pa.Table]:
    """A number, a float that is perturbed and a word, piece by piece."""
    random = np.random.default_rng(1)
    for start in range(0, rows, _PIECE):
        count = min(_PIECE, rows - start)
        words = pa.array(["alice", "bob", "carol"]).take(pa.array(random.integers(0, 3, count)))
        yield pa.table({"id": np.arange(start, start + count), "age": random.uniform(0, 120, count), "name": words})


def write_csv(path: Path, rows: int, quoting: str) -> None:
    """Write rows as CSV."""
    first = next(tables(1))
    with csv.CSVWriter(path, first.schema, write_options=csv.WriteOptions(quoting_style=quoting)) as writer:
        for table in tables(rows):
            writer.write_table(table)


def write_parquet(path: Path, rows: int) -> None:
    """As Parquet, in row groups of 2^20 rows, the words left out."""
    first = next(tables(1)).drop_columns("name")
    with pq.ParquetWriter(path, first.schema) as writer:
        for table in tables(rows):
            writer.write_table(table.drop_columns("name"), row_group_size=1 << 20)


def stream_csv(source: Path, target: Path) -> None:
    """Arrow's reading and writing, batch by batch."""
    with csv.open_csv(source) as reader, csv.CSVWriter(target, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)


def stream_parquet(source: Path, target: Path) -> None:
    """The same, row group by row group."""
    file = pq.ParquetFile(source)
    with pq.ParquetWriter(target, file.schema_arrow) as writer:
        for at in range(file.num_row_groups):
            writer.write_table(file.read_row_group(at))


def perturb(source: Path, target: Path) -> None:
    """Ours."""
    if command(["perturb", str(source), str(target), *OPTIONS]):
        raise RuntimeError(f"{source} was refused")


def seconds(task: Callable[[Path, Path], None], source: Path, target: Path) -> float:
    """Of one run."""
    started = time.perf_counter()
    task(source, target)
    return time.perf_counter() - started


def peak_mebibytes(source: Path, target: Path) -> float:
    """Of the command, in a process of its own."""
    wanted = [sys.executable, "-c", PEAK, *COMMAND, "perturb", str(source), str(target), *OPTIONS]
    return int(subprocess.run(wanted, capture_output=True, text=True, check=True).stdout) / 1024


def row(name: str, rows: int, source: Path, arrow: Callable[[Path, Path], None]) -> list[str]:
    """One line of the table."""
    target = source.with_name(f"out{source.suffix}")
    perturb(source, target)
    times = [(seconds(arrow, source, target), seconds(perturb, source, target)) for _ in range(_ROUNDS)]
    theirs, ours = (statistics.median(one) for one in zip(*times, strict=True))
    ratio = statistics.median(our / their for their, our in times)
    size = source.stat().st_size / 1e6
    peak = peak_mebibytes(source, target)
    return [name, f"{rows:.0e}", f"{size:.0f}", f"{theirs:.2f}", f"{ours:.2f}", f"{ratio:.2f}", f"{peak:.0f}"]


def rows(quick: bool) -> Iterator[list[str]]:
    """Every line of the table."""
    lines, more = (100_000, 100_000) if quick else (10_000_000, 50_000_000)
    with TemporaryDirectory() as folder:
        source = Path(folder) / "in.csv"
        for name, quoting in (("CSV", "none"), ("CSV, every cell quoted", "all_valid")):
            write_csv(source, lines, quoting)
            yield row(name, lines, source, stream_csv)
        source = Path(folder) / "in.parquet"
        write_parquet(source, more)
        yield row("Parquet", more, source, stream_parquet)


def main() -> None:
    """Print the table."""
    arguments = parser_of(__doc__).parse_args()
    print(machine())
    heading = ["file", "rows", "MB", "Arrow, s", "ours, s", "ours / Arrow", "peak, MiB"]
    print(markdown(heading, rows(arguments.quick)))


if __name__ == "__main__":
    main()
