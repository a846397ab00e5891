"""Fixtures of every test."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
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

import jax  # noqa: E402
import pytest  # noqa: E402


def pytest_unconfigure() -> None:
    """The run's folder goes with the process that made it."""
    if OWNS:
        shutil.rmtree(os.environ.pop(SHARED), ignore_errors=True)


# A compiled program holds some ten memory maps, and Linux gives a process 65,530: past that LLVM kills it.
MAPS = Path("/proc/self/maps")
MOST_MAPS = 20_000


@pytest.fixture(autouse=True, scope="module")
def compiled_programs_are_let_go() -> Iterator[None]:
    """Let the compiled programs of the files before go when there are many: memory and maps stay bounded."""
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()


@pytest.fixture(autouse=True)
def global_flags_survive() -> Iterator[None]:
    """Nothing in the library may leave JAX's global flags other than the user set them."""
    before = jax.config.jax_enable_x64, jax.config.jax_numpy_dtype_promotion
    yield
    assert (jax.config.jax_enable_x64, jax.config.jax_numpy_dtype_promotion) == before


@pytest.fixture
def x64() -> Iterator[None]:
    """Run the test with JAX's 64-bit types on."""
    with jax.enable_x64(True):
        yield
