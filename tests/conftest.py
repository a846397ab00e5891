"""Fixtures of every test."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import importlib.util
import itertools
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

# One folder a run, which its workers and the commands that they start inherit: a program is compiled, and a linear
# program solved, once. Nothing is read from or left in the user's caches. Set before JAX is imported.
SHARED = "DPKERNELS_TEST_RUN"
OWNS = SHARED not in os.environ
if OWNS:
    os.environ[SHARED] = tempfile.mkdtemp(prefix="dpkernels-tests-")
    os.environ["DPKERNELS_CACHE"] = str(Path(os.environ[SHARED], "solved"))
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(os.environ[SHARED], "compiled")))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # Each worker's others wait for work in a busy loop.

import jax  # noqa: E402
import pytest  # noqa: E402

if importlib.util.find_spec("hypothesis"):  # The environment of the programs for a GPU has none.
    hypothesis = importlib.import_module("hypothesis")
    hypothesis.settings.register_profile("untimed", deadline=None)
    hypothesis.settings.load_profile("untimed")

# Programs are compiled without optimisation, in a quarter of the time: most tests ask whether the formulas are right.
# `XLA_FLAGS= python -m pytest` tests what users run, optimised; CI does so for thorough tests. XLA ends a
# process that names a flag of another version.
UNOPTIMISED = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)


def pytest_configure(config: pytest.Config) -> None:
    """Before workers start, and before XLA does."""
    long = config.option.markexpr in ("slow", "notebook")
    if not long and jax.__version_info__ < (0, 11):
        os.environ.setdefault("XLA_FLAGS", UNOPTIMISED)
    if long and config.getoption("dist", "no") == "loadfile":
        config.option.dist = "load"  # Each is long: none waits for the others of its file.


# The files of the most seconds, first: what a worker begins last is short.
LONG = [
    "pairs",
    "hockey_stick",
    "fft",
    "tune",
    "ray",
    "docs",
    "shuffle",
    "noise_certificate",
    "sweeps",
    "cli_account",
]


def matches(item: pytest.Item, pattern: str) -> bool:
    """Whether the parameters' id is of this pattern; a test without parameters is in none."""
    return hasattr(item, "callspec") and fnmatchcase(item.callspec.id, pattern)


def pytest_itemcollected(item: pytest.Item) -> None:
    """What is not in its test's quick slice is thorough."""
    quick = item.get_closest_marker("quick")
    if quick and not any(matches(item, pattern) for pattern in quick.args):
        item.add_marker("thorough")


# A cluster takes ten seconds to start; a night is a dozen commands; an audit draws a million reports.
WITHOUT_QUICK = {"test_ray.py", "test_night.py", "test_audit_releases.py"}


def wrong_slices(items: list[pytest.Item]) -> Iterator[str]:
    """A pattern of no test or a slice of all, either of which is a slip; and a file that the default set leaves out."""
    tests, files = defaultdict(list), defaultdict(list)
    for item in items:
        tests[item.path.name, item.originalname].append(item)
        files[item.path.name].append(any(item.get_closest_marker(tier) for tier in ("lengthy", "thorough", "slow")))
    for (file, name), alike in tests.items():
        quick = alike[0].get_closest_marker("quick")
        for pattern in quick.args if quick else ():
            if not any(matches(item, pattern) for item in alike):
                yield f"{file}, {name}: quick {pattern!r} is none of its tests"
        if quick and not any(item.get_closest_marker("thorough") for item in alike):
            yield f"{file}, {name}: quick keeps all of its tests"
    left_out = {file for file, without in files.items() if all(without)} - WITHOUT_QUICK
    yield from (f"{file}: none of its tests is quick" for file in sorted(left_out))


WRONG_SLICES = pytest.StashKey[list[str]]()


@pytest.hookimpl(tryfirst=True)  # Before tests are left out.
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long files before short ones."""
    config.stash[WRONG_SLICES] = list(wrong_slices(items))
    rank = {f"test_{name}": position for position, name in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(LONG)))


def pytest_collection_finish() -> None:
    """The collector of garbage no longer walks what lives as long as the run."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def slices_that_are_wrong(pytestconfig: pytest.Config) -> list[str]:
    return pytestconfig.stash[WRONG_SLICES]


def pytest_unconfigure() -> None:
    """The run's folder goes with the process that made it."""
    if OWNS:
        shutil.rmtree(os.environ.pop(SHARED), ignore_errors=True)


# A compiled program holds some ten memory maps, of which Linux gives a process 65,530, and about 10 MB.
MAPS, PAGES = Path("/proc/self/maps"), Path("/proc/self/statm")
MOST_MAPS, MOST_MB = 20_000, 900


@pytest.fixture(autouse=True, scope="module")
def compiled_programs_are_let_go() -> Iterator[None]:
    """Let the compiled programs of the files before go when there are many: memory and maps stay bounded."""
    yield
    if not PAGES.exists():
        return
    resident = int(PAGES.read_text().split()[1]) * resource.getpagesize() >> 20
    if resident > MOST_MB or MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # Else the memory stays with the process.


@pytest.fixture(autouse=True, scope="module")
def requests_to_stop_are_as_before() -> Iterator[None]:
    """Ray, which pages of the docs and some tests start, leaves a handler of its own."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def requests_to_stop_are_heeded() -> Iterator[None]:
    """Set the usual handlers, which processes that the test starts have then too.

    A shell that runs the tests in the background has them ignore SIGINT, and nohup SIGHUP.
    """
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {request: signal.signal(request, handler) for request, handler in usual.items()}
    yield
    for request, handler in before.items():
        signal.signal(request, handler)


@pytest.fixture(autouse=True)
def global_flags_survive() -> Iterator[None]:
    """Nothing in the library may leave JAX's global flags other than the user set them."""
    before = jax.config.jax_enable_x64, jax.config.jax_numpy_dtype_promotion
    yield
    assert (jax.config.jax_enable_x64, jax.config.jax_numpy_dtype_promotion) == before


@pytest.fixture
def system_bytes() -> None:
    """The test draws from the operating system, as users do: its outcome must not depend on what it draws."""


@pytest.fixture(autouse=True)
def draws_are_repeated(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the packages draw from the operating system depends on the test's name alone: no test fails by chance."""
    system, name, count = os.urandom, request.node.nodeid, itertools.count()

    def repeated(size: int) -> bytes:
        caller = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0]
        if caller not in ("accountants", "dpkernels"):
            return system(size)  # Names of files and of processes stay unique.
        return hashlib.shake_256(f"{name} {next(count)}".encode()).digest(size)

    os.urandom = system if "system_bytes" in request.fixturenames else repeated
    yield
    os.urandom = system


@pytest.fixture(autouse=True)
def the_terminal_is_an_ordinary_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed does not depend on the terminal in which the tests run."""
    for name, value in {"COLUMNS": "80", "LINES": "24", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def x64() -> Iterator[None]:
    """Run the test with JAX's 64-bit types on."""
    with jax.enable_x64(True):
        yield
