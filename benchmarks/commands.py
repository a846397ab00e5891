"""Seconds of every subcommand: its first run, when nothing is kept, and its second, with and without kept programs.

    python -m benchmarks.commands            # three minutes on a quiet machine
    python -m benchmarks.commands --quick    # each run once, without compare, tune and shuffled reports

A run is a process of its own. Seconds are of processor time (user and system), which other work on the machine
lengthens less than the clock's, and the least of the runs of a kind.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.shown import machine, make_parser, markdown

COMMAND = [sys.executable, "-c", "import sys; from dpkernels.cli import main; sys.exit(main())"]
_BOUNDS = ["--lower", "0", "--upper", "120", "--epsilon", "1"]
_NOISE = ["--sensitivity", "1", "--sigma", "4"]

# In the order in which they are run: a release before what reads it.
RUNS: dict[str, list[str]] = {
    "help": ["--help"],
    "mechanisms": ["mechanisms"],
    "certify piecewise": ["certify", "--mechanism", "piecewise", *_BOUNDS],
    "perturb, 200 rows of CSV": ["perturb", "few.csv", "some.csv", "--column", "age", *_BOUNDS, "--force"],
    "certify --verify, 200 rows": ["certify", "--verify", "some.csv.json"],
    "estimate, 200 rows": ["estimate", "some.csv", "--column", "age"],
    "perturb, 10^4 rows of CSV": ["perturb", "in.csv", "out.csv", "--column", "age", *_BOUNDS, "--force"],
    "certify --verify": ["certify", "--verify", "out.csv.json"],
    "estimate": ["estimate", "out.csv", "--column", "age"],
    "estimate --plot": ["estimate", "out.csv", "--column", "age", "--plot", "out.png"],
    "perturb --ledger": [
        *["perturb", "in.csv", "paid.csv", "--column", "age", *_BOUNDS, "--force"],
        *["--ledger", "people.ledger", "--budget", "50"],
    ],
    "ledger": ["ledger", "people.ledger"],
    "explore": ["explore", "--output", "page.html", "--force"],
    "account laplace": ["account", "laplace", "--sensitivity", "1", "--epsilon", "1"],
    "account, 1000 sampled reports": [
        *["account", "gaussian", *_NOISE, "--reports", "1000", "--subsample", "0.01", "--at-delta", "1e-6"]
    ],
    "account --shuffle 10^5": ["account", "piecewise", *_BOUNDS, "--shuffle", "100000"],
    "compare, bounded": ["compare", *_BOUNDS],
    "tune, additive": ["tune", "--epsilon", "1", "--delta", "1e-5", "--sensitivity", "1"],
    "tune, bounded": ["tune", *_BOUNDS],
}
# What a command cannot be faster than, if it imports them.
IMPORTS = ("jax", "numpy, scipy.optimize, scipy.special", "numpy, pyarrow.csv, pyarrow.parquet", "numpy")
SLOW = ("account --shuffle 10^5", "compare, bounded", "tune, additive", "tune, bounded")


def seconds(arguments: list[str], folder: Path, environment: Mapping[str, str], program: list[str] = COMMAND) -> float:
    """Processor time of one run.

    Raises:
        RuntimeError: it failed.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([*program, *arguments], cwd=folder, env=dict(environment), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def surroundings(cache: str) -> dict[str, str]:
    """The environment of a run whose cache folder is this; empty: none."""
    root = str(Path(__file__).parent.parent)
    return {name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION")} | {
        "DPKERNELS_CACHE": cache,
        "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])]),
    }


def rows(names: list[str], rounds: int) -> Iterator[list[str]]:
    """Every line of the table."""
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        ages = np.random.default_rng(1).integers(0, 121, 10_000)
        for name, count in (("in.csv", len(ages)), ("few.csv", 200)):
            (folder / name).write_text("age\n" + "\n".join(map(str, ages[:count])) + "\n")
        # Python's own compiled files are there in every run.
        seconds(RUNS["account laplace"], folder, surroundings(""))
        for modules in IMPORTS:
            code = [sys.executable, "-c", f"import {modules}"]
            least = min(seconds([], folder, surroundings(""), code) for _ in range(rounds))
            yield [f"import {modules}", f"{least:.2f}", *["-"] * 4]
        for number, name in enumerate(names):
            cache = str(folder / f"cache{number}")
            without = min(seconds(RUNS[name], folder, surroundings("")) for _ in range(rounds))
            first = seconds(RUNS[name], folder, surroundings(cache))
            second = min(seconds(RUNS[name], folder, surroundings(cache)) for _ in range(rounds))
            cache_megabytes = sum(path.stat().st_size for path in Path(cache).rglob("*") if path.is_file()) / 1e6
            yield [
                name,
                f"{without:.2f}",
                f"{first:.2f}",
                f"{second:.2f}",
                f"{second / without:.2f}",
                f"{cache_megabytes:.1f}",
            ]


def main() -> None:
    """Print the table."""
    arguments = make_parser(__doc__, "each run once, the fast ones").parse_args()
    print(machine())
    heading = ["command", "without the folder, s", "first run, s", "second, s", "second / without", "kept, MB"]
    names = [name for name in RUNS if not (arguments.quick and name in SLOW)]
    print(markdown(heading, []))
    for row in rows(names, 1 if arguments.quick else 2):
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
