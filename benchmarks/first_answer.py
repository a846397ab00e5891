"""Seconds of the first answer in a new process, beside dp_accounting where it has one, as a markdown table.

    python -m benchmarks.first_answer                          # every row three times, four minutes on an idle machine
    python -m benchmarks.first_answer --quick                  # the rows that take seconds, once
    python -m benchmarks.first_answer --only "1,000 Laplace"   # the rows whose name contains this text
    python -m benchmarks.first_answer --json FILE              # writes the measurements to a file too

Every measurement is a process of its own with empty caches: no folder of compiled JAX programs, and a new folder for
whatever else a library may keep. Python's own compiled files are there before the first run. Seconds are processor time
(user and system, child processes included), which other work on the machine lengthens less than the clock; each row
shows the run with the least, and the clock of the same run. Timing starts after the imports that a row names. It
includes everything else that the answer needs: building the mechanism, starting JAX, compiling, and later imports.

The peer is dp_accounting with its own defaults (pip install dp-accounting): privacy loss distributions on a grid of
1e-4, rounded up, so that its eps are upper bounds; for the calibration its closed form of Gaussian noise.
"""

from __future__ import annotations

import compileall
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks.shown import machine, make_parser, markdown

if TYPE_CHECKING:
    from dpkernels.numerics import RealArray

ROOT = Path(__file__).parents[1]
PEER = "dp_accounting"
ROUNDS = 3


@dataclass(frozen=True)
class Program:
    """The Python program that a new process runs.

    Attributes:
        imports: statements that run before the clock starts.
        work: statements that are timed; they assign ``answer``.
    """

    imports: str
    work: str

    @property
    def text(self) -> str:
        """The program's source, which prints seconds, the answer and the modules imported meanwhile as JSON."""
        return _TIMED.format(imports=self.imports, work=self.work)

    def after_importing(self, modules: list[str]) -> Program:
        """Return the program with these modules, as far as they can be imported, loaded before the clock starts."""
        earlier = (
            f"import contextlib, importlib\nfor name in {modules!r}:\n"
            "    with contextlib.suppress(ImportError):\n        importlib.import_module(name)"
        )
        return replace(self, imports=f"{self.imports}\n{earlier}")


_TIMED = """\
import json, resource, sys, time
{imports}
first = set(sys.modules)
def spent():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
start, before = time.perf_counter(), spent()
{work}
seconds = {{"processor": spent() - before, "clock": time.perf_counter() - start}}
print(json.dumps({{**seconds, "answer": answer, "imported": sorted(set(sys.modules) - first)}}))
"""


@dataclass(frozen=True)
class Row:
    """One answer, by this library and by its peer.

    Attributes:
        name: the name in the table.
        ours: the program that computes it with this library.
        goal: the most processor seconds that it should take.
        peer: the program that computes it with dp_accounting, or None if that has no such function.
        slow: whether ``--quick`` leaves the row out.
    """

    name: str
    ours: Program
    goal: float
    peer: Program | None = None
    slow: bool = False


def _ours(answer: str, imports: str = "import accountants, dpkernels as dpk") -> Program:
    return Program(imports, f"answer = {answer}")


def _pld(noise: str) -> Program:
    """Return the program for eps of 1,000 releases by dp_accounting's privacy loss distributions."""
    composed = f"distribution.from_{noise}.self_compose(1000)"
    imports = "from dp_accounting.pld import privacy_loss_distribution as distribution"
    return Program(imports, f"answer = {composed}.get_epsilon_for_delta(1e-6)")


def _imported(name: str) -> Program:
    return Program("", f"import {name}\nanswer = None")


def _tuned(family: str, objective: str) -> Program:
    return _ours(f"tune.best(tune.{family}, tune.{objective}).value", "from accountants import tune")


def _slope(guarantee: str, epsilon: float) -> Program:
    """Return the program for the derivative of eps in a number ``x`` of a guarantee."""
    imports = (
        "import accountants, jax, dpkernels as dpk\nfrom accountants import guarantee\n"
        'jax.config.update("jax_enable_x64", True)'
    )
    return _ours(f"float(jax.grad(lambda x: {guarantee}.epsilon(1e-6))({epsilon}))", imports)


def _bracket(guarantee: str, delta: float = 1e-6) -> Program:
    return _ours(
        f"{guarantee}.bracket(delta={delta})", "import accountants, dpkernels as dpk\nfrom accountants import *"
    )


def _gaussian_steps(sigma: float, rate: float, steps: int) -> str:
    return f"guarantee(dpk.gaussian(sigma={sigma}), 1.0).subsample({rate}).repeat({steps})"


_UNIT, _SIGNED = "lower=0.0, upper=1.0", "lower=-1.0, upper=1.0"

ROWS = (
    Row(
        "eps of 1,000 Laplace releases",
        _ours("accountants.guarantee(dpk.laplace(epsilon=0.1)).repeat(1000).epsilon(1e-6)"),
        0.1,
        _pld("laplace_mechanism(10.0)"),
    ),
    Row(
        "eps of 1,000 Gaussian releases",
        _ours("accountants.guarantee(dpk.gaussian(sigma=30.0), 1.0).repeat(1000).epsilon(1e-6)"),
        0.05,
        _pld("gaussian_mechanism(30.0)"),
    ),
    Row(
        "eps of 1,000 subsampled Gaussian releases",
        _ours("accountants.guarantee(dpk.gaussian(sigma=1.0), 1.0).subsample(0.01).repeat(1000).epsilon(1e-6)"),
        0.2,
        _pld("gaussian_mechanism(1.0, sampling_prob=0.01)"),
    ),
    Row(
        "eps of 20 piecewise reports",
        _ours(f"accountants.guarantee(dpk.piecewise(epsilon=0.5, {_UNIT})).repeat(20).epsilon(1e-6)"),
        0.1,
    ),
    Row(
        "bracket of 1,000 Laplace releases",
        _ours("accountants.guarantee(dpk.laplace(epsilon=0.1)).repeat(1000).bracket(delta=1e-6)"),
        0.5,
    ),
    Row(
        "bracket of 20 reports of a window of one's own",
        Program(
            "import accountants, dpkernels as dpk\nfrom math import cos, pi",
            "window = dpk.window_from(lambda z: 1 - cos(2 * pi * z))\n"
            f"made = dpk.composite(window, epsilon=0.3, {_UNIT})\n"
            "answer = accountants.guarantee(made).repeat(20).bracket(delta=1e-6)",
        ),
        2.0,
        slow=True,
    ),
    *(
        Row(f"bracket of {name}", _bracket(guarantee, delta), 0.3, slow=True)
        for name, guarantee, delta in (
            ("a published run (McMahan 2018)", _gaussian_steps(1.0, 5000 / 763_430, 4120), 1e-9),
            ("100,000 subsampled Gaussian releases", _gaussian_steps(0.6, 0.001, 100_000), 1e-6),
            ("20 piecewise reports", f"guarantee(dpk.piecewise(epsilon=0.5, {_UNIT})).repeat(20)", 1e-6),
            (
                "200 subsampled piecewise reports",
                f"guarantee(dpk.piecewise(epsilon=0.5, {_UNIT})).subsample(0.1).repeat(200)",
                1e-6,
            ),
            (
                "20 recycled Gaussian releases",
                "guarantee(dpk.budget_recycled(dpk.Gaussian(4.0), theta=2.0, q=0.4), 1.0).repeat(20)",
                1e-6,
            ),
            ("50 logistic releases", "guarantee(dpk.logistic(epsilon=0.2)).repeat(50)", 1e-6),
            (
                "a mixture of four mechanisms",
                "guarantee(dpk.laplace(epsilon=0.1)).repeat(100)"
                ".compose(guarantee(dpk.gaussian(sigma=20.0), 1.0).repeat(50))"
                f".compose(guarantee(dpk.piecewise(epsilon=0.3, {_UNIT})).repeat(10))"
                ".compose(guarantee(dpk.logistic(epsilon=0.2)).repeat(5))",
                1e-6,
            ),
            *(
                (f"{n:,} shuffled reports", f"shuffled(dpk.piecewise(epsilon=1.0, {_UNIT}), {n})", 1e-6)
                for n in (1000, 10**7)
            ),
        )
    ),
    Row(
        "gradient of eps of 1,000 Laplace releases", _slope("guarantee(dpk.laplace(epsilon=x)).repeat(1000)", 0.1), 2.0
    ),
    Row(
        "gradient of eps of 1,000 subsampled Gaussian releases",
        _slope("guarantee(dpk.gaussian(sigma=x), 1.0).subsample(0.01).repeat(1000)", 1.0),
        2.0,
    ),
    Row(
        "gradient of eps of 20 piecewise reports",
        _slope(f"guarantee(dpk.piecewise(epsilon=x, {_UNIT})).repeat(20)", 0.5),
        2.0,
    ),
    Row(
        "calibrate.gaussian and its check",
        Program(
            "import accountants",
            "made = accountants.calibrate.gaussian(epsilon=1.0, delta=1e-6)\n"
            "answer = made.noise.sigma, accountants.epsilon(made, 1e-6)",
        ),
        0.2,
        Program(
            "import dp_accounting",
            "sigma = dp_accounting.get_sigma_gaussian(1.0, 1e-6)\n"
            "answer = sigma, dp_accounting.get_epsilon_gaussian(sigma, 1e-6)",
        ),
    ),
    Row(
        "tune.best of a recycled Gaussian",
        _tuned('budget_recycled("gaussian", epsilon=1.0, delta=1e-5)', "acceptance(theta=1.0)"),
        1.0,
    ),
    Row(
        "tune.best of 10 composed piecewise reports",
        _tuned(
            f"composed(tune.piecewise(epsilon=1.0, {_SIGNED}), count=10, epsilon=1.0, delta=1e-5)", "worst_variance"
        ),
        3.0,
    ),
    Row(
        "tune.best of a window and a base",
        _tuned(f'composite("triangle", "quartic", epsilon=1.0, {_SIGNED})', "variance_at(0.0)"),
        1.0,
    ),
    *(
        Row(
            f"tune.many of 1,000 budgets, {name}",
            Program(
                "import numpy as np\nfrom accountants import tune",
                f"many = tune.many(tune.{family}, tune.{objective})\nanswer = float(many.values.mean())",
            ),
            goal,
            slow=True,
        )
        for name, family, objective, goal in (
            ("piecewise", f"piecewise(epsilon=np.geomspace(0.2, 6.0, 1000), {_SIGNED})", "worst_variance", 5.0),
            (
                "a window and a base",
                f'composite("triangle", "quartic", epsilon=np.geomspace(0.2, 6.0, 1000), {_SIGNED})',
                "variance_at(0.0)",
                20.0,
            ),
            (
                "recycled Gaussian",
                'budget_recycled("gaussian", epsilon=np.linspace(0.5, 3.0, 1000), delta=1e-5)',
                "acceptance(theta=1.0)",
                20.0,
            ),
        )
    ),
    Row("import accountants", _imported("accountants"), 1.0, _imported("dp_accounting.pld")),
)


def surroundings(folder: str) -> dict[str, str]:
    """Return this process's environment without the folders in which compiled programs are kept."""
    dropped = ("JAX_COMPILATION_CACHE", "JAX_PERSISTENT_CACHE", "PYTHONDONTWRITEBYTECODE")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    path = os.pathsep.join([str(ROOT), *filter(None, [environment.get("PYTHONPATH")])])
    return environment | {"PYTHONPATH": path, "XDG_CACHE_HOME": folder, "DPKERNELS_CACHE": ""}


def measured(program: Program, rounds: int) -> dict[str, Any]:
    """Run a program in new processes, and return the seconds and the answer of the run with the least processor time.

    Raises:
        RuntimeError: a run failed.
    """
    runs = []
    for _ in range(rounds):
        with TemporaryDirectory() as folder:
            call = [sys.executable, "-c", program.text]
            done = subprocess.run(call, cwd=folder, env=surroundings(folder), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{program.work}: {done.stderr.strip()}")
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    return min(runs, key=lambda run: run["processor"])


def peer_row(row: Row, rounds: int) -> dict[str, Any] | None:
    """Measure the peer; return None if it has no such function or is not installed."""
    return measured(row.peer, rounds) if row.peer and find_spec(PEER) else None


def cells(row: Row, ours: dict[str, Any], peer: dict[str, Any] | None) -> list[str]:
    """Return a line of the table."""
    absent = "not installed" if row.peer else "-"
    theirs = [f"{peer['processor']:.3g}", shown(peer["answer"])] if peer else [absent, absent]
    times = [f"{ours[of]:.3g}" for of in ("processor", "clock", "computing")]
    return [row.name, *times, theirs[0], f"{row.goal:g}", shown(ours["answer"]), theirs[1]]


def shown(answer: RealArray) -> str:
    """Return the numbers of an answer as a cell; an import has none."""
    if answer is None:
        return "-"
    return ", ".join(f"{value:.7g}" for value in (answer if isinstance(answer, list) else [answer]))


HEADING = ["first answer", "processor, s", "clock, s", "computing, s", f"{PEER}, s", "goal, s", "answer", f"{PEER}'s"]


def lines(rows: list[Row], rounds: int, rows_measured: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Measure every row and yield its line of the table; the measurements are appended to ``found``."""
    for row in rows:
        ours, peer = measured(row.ours, rounds), peer_row(row, rounds)
        later = ours["imported"] if row.ours.imports else []  # An import alone computes nothing.
        ours["computing"] = (measured(row.ours.after_importing(later), rounds) if later else ours)["processor"]
        rows_measured.append({**asdict(row), "measured": ours, "peer_measured": peer})
        yield cells(row, ours, peer)


def main() -> None:
    """Print the table."""
    parser = make_parser(__doc__, "one run of the rows that take seconds")
    parser.add_argument("--only", default="", help="rows whose name has this text")
    parser.add_argument("--json", type=Path, help="a file for the measurements, beside the table")
    options = parser.parse_args()
    for package in ("dpkernels", "accountants"):
        compileall.compile_dir(ROOT / package, quiet=2)
    rounds = 1 if options.quick else ROUNDS
    rows = [row for row in ROWS if options.only in row.name and not (options.quick and row.slow)]
    on, command = machine("dp-accounting"), shlex.join(["python", "-m", "benchmarks.first_answer", *sys.argv[1:]])
    print(f"{on}\n{command}, the least of {rounds}\n\n{markdown(HEADING, [])}", flush=True)
    rows_measured: list[dict[str, Any]] = []
    for line in lines(rows, rounds, rows_measured):
        print(f"| {' | '.join(line)} |", flush=True)
    if options.json:
        record = {"machine": on, "command": command, "rounds": rounds, "rows": rows_measured}
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
