"""The engines of ``perturb``: they perturb a vector in chunks, by threads on the CPU or by sharding on devices.

Every engine is a function of (values, index of the first one), and value i of the vector gets the same random words
whatever the engine, the chunks or the number of devices.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from dpkernels.exact.sampler import ExactSampler
from dpkernels.mechanisms.base import Mechanism, sample_from
from dpkernels.release.device_engine import DeviceRelease
from dpkernels.release.host_engine import BLOCK_VALUES, CHUNK, HostRelease, aligned, padded_length
from dpkernels.release.inputs import Bounds, report_type
from dpkernels.release.process import check_process, forget_after_fork
from dpkernels.settings import own_settings

# Fills ``out`` with reports of ``x``, whose first value has index ``start`` in the whole release.
Engine = HostRelease | DeviceRelease | Callable[[np.ndarray, int, np.ndarray], None]

# Returns checked values, from an index on and at most the given number.
Checked = Callable[[int, int], np.ndarray]

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_WORKERS = min(CORES, 9)


def exact_engine(sampler: ExactSampler, key: bytes) -> HostRelease | DeviceRelease:
    """Return the engine for values in host memory: this machine's accelerators if JAX has any, else its CPU.

    Raises:
        RuntimeError: this process was forked from one in which JAX had run.
    """
    check_process()
    devices = tuple(jax.local_devices())
    if len(devices) == 1 and devices[0].platform == "cpu":
        return HostRelease(sampler, key)
    return DeviceRelease(sampler, key, devices)


class Simulation:
    """An engine for simulation: float reports from a mechanism's own sampler, reproducible from a key."""

    def __init__(self, mechanism: Mechanism, key: Array) -> None:
        self.mechanism = mechanism
        self.key = key

    def __call__(self, x: np.ndarray, start: int, out: np.ndarray) -> None:
        values = np.pad(x, (0, padded_length(len(x)) - len(x)), mode="edge")
        with own_settings(x64=x.dtype == np.float64):
            out[:] = np.asarray(sample_from(self.mechanism, self.key, start, jnp.asarray(values)))[: len(x)]


def in_chunks(
    engine: Engine,
    bounds: Bounds,
    x: np.ndarray,
    *,
    start: int = 0,
    row: int | None = None,
    advance: Callable[[int], Any] = lambda _: None,
) -> np.ndarray:
    """Return the engine's reports of x, chunk by chunk; of several errors, the first in the order of x is raised.

    Args:
        engine: the reports of a chunk, given the index of its first value.
        bounds: checks a chunk before it is perturbed.
        x: the values, of any shape.
        start: index of the first value in the whole release.
        row: the row number of the first value in errors; by default its index.
        advance: called with the length of every completed chunk.
    """
    flat, out = x if x.ndim == 1 else x.reshape(-1), aligned(x.size, report_type(x.dtype))
    row = start if row is None else row
    if x.size == 0:
        return out.reshape(x.shape)
    if isinstance(engine, DeviceRelease):
        _by_devices(engine, lambda at, size: bounds.check(flat[at : at + size], row + at), start, out, advance)
        return out.reshape(x.shape)

    def release(at: int, size: int) -> int:
        values, reports = flat[at : at + size], out[at : at + size]
        if isinstance(engine, HostRelease):  # Its kernel checks values itself.
            return engine(values, start + at, reports, bounds, row + at)
        checked = bounds.check(values, row + at)
        engine(checked, start + at, reports)
        return checked.size

    if x.size <= CHUNK:
        released = release(0, x.size)
        advance(released)
    else:
        released = _by_threads(release, x.size, advance)
    if released != x.size:
        raise RuntimeError(f"x: {released} of {x.size} values were perturbed")
    return out if x.ndim == 1 else out.reshape(x.shape)


def _by_threads(release: Callable[[int, int], int], count: int, advance: Callable[[int], Any]) -> int:
    """Release the pieces by this thread and by others that join it, and return the number of values."""
    size = _piece(count)
    pieces, done, failed = iter(range(0, count, size)), deque[int](), dict[int, BaseException]()
    told, tasks = 0, list[Future[None]]()

    def work(tell: Callable[[], Any] = lambda: None) -> None:
        for at in pieces:
            try:
                done.append(release(at, size))
            except BaseException as error:  # Whatever it is, reports are missing.
                failed[at] = error
                _exhaust(pieces)
            tell()

    def tell() -> None:
        nonlocal told
        while done:
            told += (finished := done.popleft())
            advance(finished)

    try:
        tasks.extend(_pool(_WORKERS).submit(work) for _ in range(min(_WORKERS, -(-count // size)) - 1))
        work(tell)
    finally:
        # No thread writes to the reports after this returns, also if an exception ended it.
        _exhaust(pieces)
        wait([task for task in tasks if not task.cancel()])
    if failed:
        raise failed[min(failed)]
    tell()
    return told


def _piece(count: int) -> int:
    """Return the number of values of a piece: at most a chunk, and nearly equal for all pieces."""
    pieces = -(-count // CHUNK)
    return min(CHUNK, -(-count // (pieces * BLOCK_VALUES)) * BLOCK_VALUES)


def _exhaust(pieces: Iterator[int]) -> None:
    """Stop handing out further chunks."""
    deque(pieces, maxlen=0)


def _by_devices(
    engine: DeviceRelease, checked: Checked, start: int, out: np.ndarray, advance: Callable[[int], object]
) -> None:
    """Run two chunks at a time, so that transfers and checks of one overlap with the computation of the other."""
    under_way: deque[tuple[int, Array]] = deque()

    def receive() -> None:
        at, reports = under_way.popleft()
        out[at : at + len(reports)] = np.asarray(reports)
        advance(len(reports))

    for at in range(0, len(out), engine.chunk):
        under_way.append((at, engine.sent(checked(at, engine.chunk), start + at)))
        if len(under_way) == 2:
            receive()
    receive()


@lru_cache(maxsize=1)
def _pool(workers: int) -> ThreadPoolExecutor:
    """Return the threads of all releases of this process; they outlive a call."""
    return ThreadPoolExecutor(workers, thread_name_prefix="dpkernels")


forget_after_fork(_pool.cache_clear)
