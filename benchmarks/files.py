"""Seconds and peak memory of ``dpkernels perturb`` on files, beside Arrow's own streamed reading and writing of them.

    python -m benchmarks.files            # 10^7 rows of CSV and 5 * 10^7 of Parquet, about three minutes
    python -m benchmarks.files --quick    # a smoke run
    python -m benchmarks.files --stages 100000000   # the parts of a release of 10^8 rows of Parquet, ten minutes

Seconds are medians of rounds in which Arrow and we take turns, in one process that has perturbed before. Peak memory is
that of the command in a process of its own, its imports included.

``--stages`` runs each part of a release of one column of floats alone, in a process of its own: seconds of processor
time and of the clock, which other work lengthens, without imports but for the whole command.
"""

from __future__ import annotations

import json
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

from benchmarks.shown import machine, make_parser, markdown
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
        for group in range(file.num_row_groups):
            writer.write_table(file.read_row_group(group))


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
    command = [sys.executable, "-c", PEAK, *COMMAND, "perturb", str(source), str(target), *OPTIONS]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) / 1024


def row(name: str, rows: int, source: Path, arrow: Callable[[Path, Path], None]) -> list[str]:
    """One line of the table."""
    target = source.with_name(f"out{source.suffix}")
    perturb(source, target)
    times = [(seconds(arrow, source, target), seconds(perturb, source, target)) for _ in range(_ROUNDS)]
    theirs, ours = (statistics.median(stage_times) for stage_times in zip(*times, strict=True))
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


def read(source: Path, target: Path) -> None:
    """Decode the column, piece by piece, as the command does."""
    for _ in pq.ParquetFile(source, pre_buffer=False, buffer_size=1 << 20).iter_batches(1 << 16, use_threads=False):
        pass


def draw(source: Path, target: Path) -> None:
    """Draw as many reports as the file has rows, of one piece of values again and again."""
    import dpkernels as dpk
    from dpkernels.cli.mechanisms import select_mechanism
    from dpkernels.release.engines import exact_engine, in_chunks
    from dpkernels.release.inputs import Bounds

    name, options = select_mechanism("balanced", {"epsilon": 1.0, "lower": 0.0, "upper": 120.0})
    sampler = dpk.exact_sampler(getattr(dpk, name)(**options))
    engine, bounds = exact_engine(sampler, bytes(32)), Bounds.of(sampler, False)
    values = np.random.default_rng(1).uniform(0, 120, 1 << 16)
    for start in range(0, pq.read_metadata(source).num_rows, len(values)):
        in_chunks(engine, bounds, values, start=start, row=start)


def stream_reports(source: Path, target: Path) -> None:
    """Read the reports, and write them with the options of a release."""
    from dpkernels.cli.files.parquet import writer_options

    file = pq.ParquetFile(source)
    with pq.ParquetWriter(target, file.schema_arrow, **writer_options(file.metadata, ["age"])) as writer:
        for batch in file.iter_batches(1 << 20, use_threads=False):
            writer.write_table(pa.Table.from_batches([batch]))


def digest(source: Path, target: Path) -> None:
    """Compute the SHA-256 of a file, as the sidecar states it."""
    from dpkernels.staging import sha256_and_size

    with source.open("rb") as file:
        sha256_and_size(file)


# What is run for each stage, and whether on the released file instead of the input.
STAGES: dict[str, tuple[Callable[[Path, Path], None], bool]] = {
    "Arrow, input read and written": (stream_parquet, False),
    "decode": (read, False),
    "draw": (draw, False),
    "reports decoded and encoded": (stream_reports, True),
    "reports decoded": (read, True),
    "SHA-256 of the output": (digest, True),
}
_MEASURED = """
import json, os, subprocess, sys, time
start = time.perf_counter()
process = subprocess.Popen(sys.argv[1:])
_, status, usage = os.wait4(process.pid, 0)
print(json.dumps([usage.ru_utime + usage.ru_stime, time.perf_counter() - start, usage.ru_maxrss]))
sys.exit(status != 0)
"""
_OF_STAGE = """
import json, sys, time
from pathlib import Path
from benchmarks.files import STAGES
name, source, target = sys.argv[1:]
start, processor = time.perf_counter(), time.process_time()
STAGES[name][0](Path(source), Path(target))
print(json.dumps([time.process_time() - processor, time.perf_counter() - start]))
"""


def stages(rows: int) -> Iterator[list[str]]:
    """Yield a line for each part of a release: processor and clock time, and the peak of memory."""
    with TemporaryDirectory() as folder:
        source, target, reference = (Path(folder) / f"{name}.parquet" for name in ("in", "out", "other"))
        with pq.ParquetWriter(source, pa.schema([("age", pa.float64())])) as writer:
            for table in tables(rows):
                writer.write_table(table.select(["age"]), row_group_size=1 << 20)
        copy = ["sh", "-c", 'cp "$1" "$2" && sync "$2"', "sh", str(source), str(reference)]
        commands = {"cp and sync": copy, "perturb": [*COMMAND, "perturb", str(source), str(target), *OPTIONS]}
        for name, (_, of_release) in STAGES.items():
            commands[name] = [
                sys.executable,
                "-c",
                _OF_STAGE,
                name,
                str(target if of_release else source),
                str(reference),
            ]
        for name, arguments in commands.items():
            measured = [sys.executable, "-c", _MEASURED, *arguments]
            lines = subprocess.run(measured, capture_output=True, text=True, check=True).stdout.splitlines()
            *of_stage, (processor, clock, peak) = map(json.loads, lines)
            processor, clock = of_stage[0] if of_stage else (processor, clock)
            cells = [f"{processor:.1f}", f"{clock:.1f}", f"{1e9 * processor / rows:.0f}", f"{peak / 1024:.0f}"]
            yield [name, *cells]
        sizes = [f"{path.stat().st_size / 1e6:.0f} MB" for path in (source, target)]
        yield [f"size: in {sizes[0]}, out {sizes[1]}", *["-"] * 4]


def main() -> None:
    """Print the table."""
    parser = make_parser(__doc__)
    parser.add_argument("--stages", type=int, metavar="ROWS", help="the parts of a release of so many rows")
    arguments = parser.parse_args()
    print(machine())
    if arguments.stages:
        heading = ["part", "processor, s", "clock, s", "processor, ns a value", "peak, MiB"]
        print(markdown(heading, []))
        for line in stages(arguments.stages):
            print(f"| {' | '.join(line)} |", flush=True)
        return
    heading = ["file", "rows", "MB", "Arrow, s", "ours, s", "ours / Arrow", "peak, MiB"]
    print(markdown(heading, rows(arguments.quick)))


if __name__ == "__main__":
    main()
