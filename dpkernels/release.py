"""The engines behind ``perturb``: chunks of a vector to reports, on the CPU by threads, on devices by sharding.

Every engine is a function of (values, index of the first one), and value i of the vector gets the same random words
whatever the engine, the chunks or the number of devices.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dpkernels.exact.forms import ExactForm, Words
from dpkernels.mechanisms.base import Mechanism, sample_from
from dpkernels.random import chacha, host
from dpkernels.validation import Bounds, report_type

# Fills ``out`` with reports of ``x``, whose first value has index ``start`` in the whole release.
Engine = Callable[[np.ndarray, int, np.ndarray], None]

# Every stream's 64-byte blocks begin at values whose index is a multiple of this: 512 bits of 16-bit words.
BLOCK_VALUES = 32

# One thread more than cores: while one waits for the interpreter's lock, the others keep the cores busy.
_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_WORKERS = min(_CORES + 1, 9)
CHUNK = 1 << 18
_SMALLEST_CHUNK = 1 << 10
_DEVICE_CHUNK = 1 << 24


def exact_engine(form: ExactForm, key: bytes) -> HostRelease | DeviceRelease:
    """The engine for values in host memory: this machine's accelerators if JAX has any, else its CPU."""
    devices = tuple(jax.local_devices())
    if len(devices) == 1 and devices[0].platform == "cpu":
        return HostRelease(form, key)
    return DeviceRelease(form, key, devices)


class HostRelease:
    """Exact reports on the CPU: OpenSSL's ChaCha20 words into the form's compiled integer kernel.

    Attributes:
        form: the exact form.
        key: 32 bytes.
    """

    def __init__(self, form: ExactForm, key: bytes) -> None:
        self.form = form
        self.key = key
        self._local = threading.local()

    def __call__(self, x: np.ndarray, start: int, out: np.ndarray) -> None:
        space = self._workspace(_padded_length(len(x)), x.dtype)
        space.x[: len(x)] = x
        space.x[len(x) :] = x[0]
        skip = start % BLOCK_VALUES
        for need, buffer in zip(self.form.words, space.words, strict=True):
            host.fill(buffer, self.key, need.stream, (start - skip) * need.bits // 512)
        words = [buffer[skip : skip + len(space.x)] for buffer in space.words]
        with jax.enable_x64(True):
            space.reports = self.form.compiled(space.reports, space.x, *words)
        out[:] = np.asarray(space.reports)[: len(x)]

    def _workspace(self, length: int, dtype: np.dtype) -> _Workspace:
        space = getattr(self._local, "space", None)
        if space is None or len(space.x) != length or space.x.dtype != dtype:
            space = self._local.space = _Workspace(self.form, length, dtype)
        return space


class _Workspace:
    """One thread's buffers, reused from chunk to chunk: fresh memory would cost as much as the arithmetic."""

    def __init__(self, form: ExactForm, length: int, dtype: np.dtype) -> None:
        self.x = _aligned(length, dtype)
        self.words = [_aligned(length + BLOCK_VALUES, np.dtype(f"<u{need.bits // 8}")) for need in form.words]
        with jax.enable_x64(True):
            self.reports = jnp.zeros(length, dtype)


def _aligned(length: int, dtype: np.dtype) -> np.ndarray:
    """Uninitialised memory at a multiple of 64 bytes, which JAX takes over without a copy."""
    raw = np.empty(length * dtype.itemsize + 64, np.uint8)
    first = -raw.ctypes.data % 64
    return raw[first : first + length * dtype.itemsize].view(dtype)


def _padded_length(length: int, unit: int = 1) -> int:
    """A power of two up to a chunk, then a multiple of one, and of ``unit``: so few shapes are ever compiled."""
    padded = 1 << (length - 1).bit_length() if length <= CHUNK else -(-length // CHUNK) * CHUNK
    return -(-max(_SMALLEST_CHUNK, padded) // unit) * unit


class DeviceRelease:
    """Exact reports on accelerators, or on several CPU devices: ChaCha20 and kernel in one sharded computation."""

    def __init__(self, form: ExactForm, key: bytes, devices: tuple[Any, ...]) -> None:
        self.devices = devices
        self._compute = _sharded(form, devices)
        self._key = np.frombuffer(key, "<u4")

    def __call__(self, x: np.ndarray, start: int, out: np.ndarray) -> None:
        out[:] = np.asarray(self.on_device(x, start))

    def on_device(self, x: Any, start: int) -> Array:
        """Reports that stay on the devices."""
        skip = start % BLOCK_VALUES
        spare = _padded_length(skip + len(x), len(self.devices) * BLOCK_VALUES) - skip - len(x)
        xp = np if isinstance(x, np.ndarray) else jnp
        with jax.enable_x64(True):
            padded = xp.pad(x, (skip, spare), mode="edge") if skip or spare else x
            split = NamedSharding(Mesh(np.array(self.devices), ("values",)), PartitionSpec("values"))
            reports = self._compute(self._key, jax.device_put(padded, split), np.uint64(start - skip))
            return reports[skip : skip + len(x)]


@lru_cache(maxsize=64)
def _sharded(form: ExactForm, devices: tuple[Any, ...]) -> Callable[..., Array]:
    mesh = Mesh(np.array(devices), ("values",))
    split, everywhere = PartitionSpec("values"), PartitionSpec()

    def local(key: Array, x: Array, start: Array) -> Array:
        first = start + jax.lax.axis_index("values").astype(jnp.uint64) * np.uint64(len(x))
        words = [_device_words(key, need, first, len(x)) for need in form.words]
        return form.reports(x, *words)

    return jax.jit(
        jax.shard_map(local, mesh=mesh, in_specs=(everywhere, split, everywhere), out_specs=split, check_vma=False)
    )


def _device_words(key: Array, need: Words, first: Array, count: int) -> Array:
    block = first // np.uint64(512 // need.bits)
    low_high = (block & np.uint64(0xFFFFFFFF)).astype(jnp.uint32), (block >> np.uint64(32)).astype(jnp.uint32)
    return chacha.stream_words(key, need.stream, low_high, count, need.bits)


class Simulation:
    """Float reports by a mechanism's own sampler: reproducible from a key, not for release."""

    def __init__(self, mechanism: Mechanism, key: Array) -> None:
        self.mechanism = mechanism
        self.key = key

    def __call__(self, x: np.ndarray, start: int, out: np.ndarray) -> None:
        values = np.pad(x, (0, _padded_length(len(x)) - len(x)), mode="edge")
        with jax.enable_x64(x.dtype == np.float64):
            out[:] = np.asarray(sample_from(self.mechanism, self.key, start, jnp.asarray(values)))[: len(x)]


def in_chunks(
    engine: Engine,
    bounds: Bounds,
    x: np.ndarray,
    *,
    start: int = 0,
    advance: Callable[[int], Any] | None = None,
) -> np.ndarray:
    """The engine's reports of x, chunk by chunk; of several errors, the first in the order of x is raised.

    Args:
        engine: the reports of a chunk, given the index of its first value.
        bounds: checks a chunk before anything random happens to it.
        x: the values, of any shape.
        start: index of the first value in the whole release.
        advance: told the length of every chunk done.
    """
    flat = x.reshape(-1)
    out = _aligned(x.size, report_type(x.dtype))
    parallel = not isinstance(engine, DeviceRelease)
    size = CHUNK if parallel else _DEVICE_CHUNK

    def work(at: int) -> int:
        chunk = bounds.check(flat[at : at + size], start + at)
        engine(chunk, start + at, out[at : at + size])
        return len(chunk)

    workers = min(_WORKERS, math.ceil(x.size / size)) if parallel else 1
    with closing(_in_order(work, range(0, x.size, size), workers)) as lengths:
        for length in lengths:
            if advance is not None:
                advance(length)
    return out.reshape(x.shape)


def _in_order(work: Callable[[int], int], items: range, workers: int) -> Generator[int, None, None]:
    if workers <= 1:
        yield from map(work, items)
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="dpkernels")
    try:
        yield from pool.map(work, items)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
