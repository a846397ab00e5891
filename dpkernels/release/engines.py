"""The engines of ``perturb``, and the division of a vector among them.

An engine makes the reports of checked values, the first of which has index ``start`` in the whole release. The random
words of value i do not depend on the engine, the chunks or the number of devices.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from dpkernels.exact.batches import ExactBatch
from dpkernels.exact.sampler import ExactSampler
from dpkernels.jax_on_use import Array, jax, jnp
from dpkernels.numerics import RealArray
from dpkernels.random import chacha, host
from dpkernels.random.chacha import BITS_STREAM
from dpkernels.release.batch_engine import BatchRelease
from dpkernels.release.host_engine import BLOCK_VALUES, CHUNK, HostRelease, aligned, padded_length
from dpkernels.release.inputs import Bounds, report_type
from dpkernels.release.process import check_process, kernel_settings

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_WORKERS = min(CORES, 9)  # Threads: at most as many as cores, because the caller's thread works, too.
# Values per chunk on a CPU device; eight times that on an accelerator.
_DEVICE_CHUNK = 1 << 18

# A ``DeviceRelease`` is driven by ``fill``. The others are called as a ``HostRelease`` is, which is one of them.
Engine: TypeAlias = "DeviceRelease | Callable[[np.ndarray, int, np.ndarray, Bounds, int], int]"


class DeviceRelease:
    """An engine for JAX devices of any kind and number: ChaCha20 and kernel in one sharded computation."""

    def __init__(self, sampler: ExactSampler, key: bytes, devices: tuple[jax.Device, ...]) -> None:
        for device in devices:
            if device.platform != "cpu":
                check_words(device)
        self.sampler, self.devices, self._key = sampler, devices, key
        self._compute = sampler.derived[sharded, devices]
        self._mesh = jax.sharding.Mesh(np.array(devices), ("values",))
        # Two chunks with words and reports take at most 64 MiB of host memory.
        self.chunk = _DEVICE_CHUNK if devices[0].platform == "cpu" else 8 * _DEVICE_CHUNK

    def fill(
        self, checked: Callable[[int, int], np.ndarray], start: int, out: np.ndarray, advance: Callable[[int], object]
    ) -> int:
        """Fill ``out`` with reports of checked values from one index up to another, chunk by chunk.

        Two chunks are under way, so that transfers and checks overlap with computation.
        """
        pending: deque[tuple[int, Array]] = deque()

        def receive() -> int:
            first, reports = pending.popleft()
            out[first : first + len(reports)] = np.asarray(reports)
            advance(len(reports))
            return len(reports)

        received = 0
        for first in range(0, len(out), self.chunk):
            reports = self.on_device(checked(first, first + self.chunk), start + first)
            reports.copy_to_host_async()
            pending.append((first, reports))
            if len(pending) == 2:
                received += receive()
        return received + receive()

    def on_device(self, x: RealArray, start: int) -> Array:
        skip = start % BLOCK_VALUES
        spare = padded_length(skip + len(x), len(self.devices) * BLOCK_VALUES) - skip - len(x)
        xp = np if isinstance(x, np.ndarray) else jnp
        with kernel_settings(x64=True):
            padded = xp.pad(x, (skip, spare), mode="edge") if skip or spare else x
            split = jax.sharding.NamedSharding(self._mesh, jax.sharding.PartitionSpec("values"))
            firsts = range(start - skip, start - skip + len(padded), len(padded) // len(self.devices))
            # The initial state of every stream for every device, computed on the host.
            heads = [
                np.concatenate([host.head(self._key, need.stream, first * need.bits // 512) for first in firsts])
                for need in self.sampler.words
            ]
            return self._compute(*jax.device_put([padded, *heads], split))[skip : skip + len(x)]


def sharded(sampler: ExactSampler, devices: tuple[object, ...]) -> jax.stages.Wrapped:
    """Return the jitted program (values, the head of every stream) -> reports, all split over the devices."""
    split = jax.sharding.PartitionSpec("values")

    def local(x: Array, *heads: Array) -> RealArray:
        words = [chacha.words_from(head, len(x), need.bits) for head, need in zip(heads, sampler.words, strict=True)]

        def noise_words(turn: Array) -> Array:
            return chacha.words_from(heads[0].at[11].set(turn), len(x), sampler.words[0].bits)

        return sampler.complete_reports(x, *words, noise_words=noise_words)

    mesh = jax.sharding.Mesh(np.array(devices), ("values",))
    specs = (split,) * (1 + len(sampler.words))
    return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False))


@lru_cache(maxsize=64)
def check_words(device: object) -> None:
    """Refuse a device whose program for ChaCha20 makes other words than OpenSSL."""
    key, first, expected = bytes(range(32)), (1 << 32) - 100, np.empty(1 << 14, "<u4")
    host.fill(expected, key, BITS_STREAM, first)
    with kernel_settings():
        head = jax.device_put(host.head(key, BITS_STREAM, first), device)
        words = np.asarray(jax.jit(lambda head: chacha.words_from(head, len(expected), 32))(head))
    if not np.array_equal(words, expected):
        raise RuntimeError(f"device: {device} makes other ChaCha20 words than OpenSSL, so it is not used for releases")


def exact_engine(
    sampler: ExactSampler | ExactBatch, key: bytes, devices: Sequence[object] | None = None
) -> HostRelease | BatchRelease | DeviceRelease:
    """Return the engine for values in host memory: the CPU, or the JAX devices that are asked for.

    Batches are released by the CPU.
    """
    check_process()
    if isinstance(sampler, ExactBatch):
        return BatchRelease(sampler, key)
    return HostRelease(sampler, key) if devices is None else DeviceRelease(sampler, key, tuple(devices))


def in_chunks(
    engine: Engine,
    bounds: Bounds,
    x: np.ndarray,
    *,
    start: int = 0,
    row: int | None = None,
    advance: Callable[[int], object] = lambda _: None,
) -> np.ndarray:
    """Return the engine's reports of x, piece by piece; of several errors, the first in the order of x is raised.

    ``start`` is the index of the first value in the whole release, and ``row`` its row number in errors, by default the
    index. ``advance`` is called with the length of every completed piece.
    """
    flat, out = x if x.ndim == 1 else x.reshape(-1), aligned(x.size, report_type(x.dtype))
    row = start if row is None else row

    if x.size == 0:
        released = 0
    elif isinstance(engine, DeviceRelease):
        released = engine.fill(lambda first, end: bounds.check(flat[first:end], row + first), start, out, advance)
    elif x.size <= CHUNK:  # Waking another thread takes longer than it would save.
        advance(released := engine(flat, start, out, bounds, row))
    else:

        def release(first: int, end: int) -> int:
            return engine(flat[first:end], start + first, out[first:end], bounds, row + first)

        released = _release_pieces(release, advance, x.size)
    if released != x.size:
        raise RuntimeError(f"x: {released} of {x.size} values were perturbed")
    return out if x.ndim == 1 else out.reshape(x.shape)


def _release_pieces(release: Callable[[int, int], int], advance: Callable[[int], object], count: int) -> int:
    """Release nearly equal pieces of a vector in this thread and in those of a pool, and return the number of values.

    ``release`` takes two indices; ``advance`` is called in this thread with the size of every completed piece. Of
    several pieces that fail, the error of the first one is raised.
    """
    number = -(-count // CHUNK)
    size = min(CHUNK, -(-count // (number * BLOCK_VALUES)) * BLOCK_VALUES)
    ends = list(pairwise([*range(0, count, size), count]))
    pieces, done, failed, tasks = iter(ends), deque[int](), dict[int, BaseException](), list[Future[list[None]]]()

    def stop() -> None:
        deque(pieces, maxlen=0)  # No further piece is started.

    def work() -> Iterator[None]:
        """Release the pieces that no other thread has taken, one at a step."""
        for first, end in pieces:
            try:
                done.append(release(first, end))
            except BaseException as error:  # Whatever it is, reports are missing.
                failed[first] = error
                stop()
            yield

    def reported() -> int:
        sizes = [done.popleft() for _ in range(len(done))]
        for length in sizes:
            advance(length)
        return sum(sizes)

    try:
        # This thread works too, so that it does not wait for other releases, whose tasks may fill the pool.
        tasks.extend(_pool().submit(list, work()) for _ in range(min(_WORKERS, len(ends)) - 1))
        released = sum(reported() for _ in work())
    finally:
        # No thread writes to the reports after this returns, also if an exception ended it.
        stop()
        wait([task for task in tasks if not task.cancel()])
    if failed:
        raise failed[min(failed)]
    return released + reported()


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    """Return the threads of all releases of this process."""
    return ThreadPoolExecutor(_WORKERS, thread_name_prefix="dpkernels")


if hasattr(os, "register_at_fork"):  # A fork copies no threads.
    os.register_at_fork(after_in_child=_pool.cache_clear)
