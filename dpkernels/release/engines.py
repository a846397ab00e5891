"""The engines behind ``perturb``: chunks of a vector to reports, on the CPU by threads, on devices by sharding.

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
from jax._src import xla_bridge  # There is no public way to ask whether JAX has run.

from dpkernels.exact.sampler import ExactSampler
from dpkernels.mechanisms.base import Mechanism, sample_from
from dpkernels.release.device_engine import DeviceRelease
from dpkernels.release.host_engine import BLOCK_VALUES, CHUNK, HostRelease, aligned, padded_length
from dpkernels.release.inputs import Bounds, report_type
from dpkernels.settings import own_settings

# Fills ``out`` with reports of ``x``, whose first value has index ``start`` in the whole release.
Engine = Callable[[np.ndarray, int, np.ndarray], None]

# Values from an index on, at most so many, fit to be perturbed.
Checked = Callable[[int, int], np.ndarray]

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_WORKERS = min(CORES, 9)

_had_run = _after_fork = False


def _before_fork() -> None:
    global _had_run  # Asked before: in the child, a lock that another thread held would never be free.
    _had_run = _after_fork or xla_bridge.backends_are_initialized()


def _note_fork() -> None:
    global _after_fork
    _after_fork = _had_run
    _pool.cache_clear()  # A fork copies no threads.


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_note_fork)


def check_process() -> None:
    """Refuse to work where JAX would wait for ever for threads that a fork did not copy.

    Raises:
        RuntimeError: this process was forked from one in which JAX had run.
    """
    if _after_fork:
        raise RuntimeError(
            "this process was forked after JAX had run, and JAX's threads are not in it; start workers by "
            "multiprocessing.get_context('spawn'), or fork before JAX runs"
        )


def exact_engine(sampler: ExactSampler, key: bytes) -> HostRelease | DeviceRelease:
    """The engine for values in host memory: this machine's accelerators if JAX has any, else its CPU.

    Raises:
        RuntimeError: this process was forked from one in which JAX had run.
    """
    check_process()
    devices = tuple(jax.local_devices())
    if len(devices) == 1 and devices[0].platform == "cpu":
        return HostRelease(sampler, key)
    return DeviceRelease(sampler, key, devices)


class Simulation:
    """Float reports by a mechanism's own sampler: reproducible from a key, not for release."""

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
    """The engine's reports of x, chunk by chunk; of several errors, the first in the order of x is raised.

    Args:
        engine: the reports of a chunk, given the index of its first value.
        bounds: checks a chunk before anything random happens to it.
        x: the values, of any shape.
        start: index of the first value in the whole release.
        row: what an error calls the first value's row; by default its index.
        advance: told the length of every chunk done.
    """
    flat, out = x.reshape(-1), aligned(x.size, report_type(x.dtype))

    def checked(at: int, size: int) -> np.ndarray:
        return bounds.check(flat[at : at + size], (start if row is None else row) + at)

    if x.size == 0:
        return out.reshape(x.shape)
    if isinstance(engine, DeviceRelease):
        _by_devices(engine, checked, start, out, advance)
    else:
        _by_threads(engine, checked, start, out, advance)
    return out.reshape(x.shape)


def _by_threads(engine: Engine, checked: Checked, start: int, out: np.ndarray, advance: Callable[[int], Any]) -> None:
    """Piece after piece, by this thread and by others that join it: to wake one takes as long as half a piece."""
    size = _piece(len(out))
    pieces, done, failed = iter(range(0, len(out), size)), deque[int](), dict[int, BaseException]()
    told, tasks = 0, list[Future[None]]()

    def work(tell: Callable[[], Any] = lambda: None) -> None:
        for at in pieces:
            try:
                chunk = checked(at, size)
                engine(chunk, start + at, out[at : at + size])
                done.append(len(chunk))
            except BaseException as error:  # Whatever it is, reports are missing.
                failed[at] = error
                _exhaust(pieces)
            tell()

    def tell() -> None:
        nonlocal told
        while done:
            told += (count := done.popleft())
            advance(count)

    try:
        tasks.extend(_pool(_WORKERS).submit(work) for _ in range(min(_WORKERS, -(-len(out) // size)) - 1))
        work(tell)
    finally:
        # Nobody writes to the reports any more once this returns, whatever ended it.
        _exhaust(pieces)
        wait([task for task in tasks if not task.cancel()])
    if failed:
        raise failed[min(failed)]
    tell()
    if told != len(out):
        raise RuntimeError(f"x: {told} of {len(out)} values were perturbed")


def _piece(count: int) -> int:
    """Values of a piece: at most a chunk, and all pieces alike."""
    pieces = -(-count // CHUNK)
    return min(CHUNK, -(-count // (pieces * BLOCK_VALUES)) * BLOCK_VALUES)


def _exhaust(pieces: Iterator[int]) -> None:
    """Nobody begins another one."""
    deque(pieces, maxlen=0)


def _by_devices(
    engine: DeviceRelease, checked: Checked, start: int, out: np.ndarray, advance: Callable[[int], object]
) -> None:
    """Two chunks at a time: one is computed while the one before it comes back and the next one is checked and sent."""
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
    """The threads of all releases of this process; they outlive a call."""
    return ThreadPoolExecutor(workers, thread_name_prefix="dpkernels")
