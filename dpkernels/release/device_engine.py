"""Exact reports on accelerators, or on several CPU devices."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dpkernels.exact.sampler import ExactSampler
from dpkernels.numerics import RealArray
from dpkernels.random import chacha, host
from dpkernels.random.chacha import BITS_STREAM
from dpkernels.release.host_engine import BLOCK_VALUES, padded_length
from dpkernels.settings import own_settings

_DEVICE_CHUNK = 1 << 18


class DeviceRelease:
    """An engine for accelerators, or several CPU devices: ChaCha20 and kernel in one sharded computation.

    Raises:
        RuntimeError: a device's ChaCha20 words differ from OpenSSL's.
    """

    def __init__(self, sampler: ExactSampler, key: bytes, devices: tuple[Any, ...]) -> None:
        for device in devices:
            if device.platform != "cpu":
                check_words(device)
        self.sampler = sampler
        self.devices = devices
        self._compute = sharded(sampler, devices)
        self._key = key

    @property
    def chunk(self) -> int:
        """Return the values per chunk; two chunks with words and reports take at most 64 MiB of host memory."""
        return _DEVICE_CHUNK if self.devices[0].platform == "cpu" else 8 * _DEVICE_CHUNK

    def __call__(self, x: np.ndarray, start: int, out: np.ndarray) -> None:
        """Fill ``out`` with reports of ``x``, whose first value has index ``start`` in the whole release."""
        out[:] = np.asarray(self.sent(x, start))

    def in_turns(
        self,
        checked: Callable[[int, int], np.ndarray],
        start: int,
        out: np.ndarray,
        advance: Callable[[int], object],
    ) -> int:
        """Fill ``out`` chunk by chunk, and return the number of values.

        Two chunks are under way, so that transfers and checks of one overlap with the computation of the other.

        Args:
            checked: returns checked values, from one index up to another one.
            start: index of the first value in the whole release.
            out: memory of the type of reports.
            advance: called with the number of values of a completed chunk.
        """
        under_way: deque[tuple[int, Array]] = deque()

        def receive() -> int:
            at, reports = under_way.popleft()
            out[at : at + len(reports)] = np.asarray(reports)
            advance(len(reports))
            return len(reports)

        received = 0
        for at in range(0, len(out), self.chunk):
            under_way.append((at, self.sent(checked(at, at + self.chunk), start + at)))
            if len(under_way) == 2:
                received += receive()
        return received + receive()

    def sent(self, x: np.ndarray, start: int) -> Array:
        """Start copying reports back to the host, and return them before the copy has ended."""
        reports = self.on_device(x, start)
        reports.copy_to_host_async()
        return reports

    def on_device(self, x: Any, start: int) -> Array:
        """Return reports that stay on the devices."""
        skip = start % BLOCK_VALUES
        spare = padded_length(skip + len(x), len(self.devices) * BLOCK_VALUES) - skip - len(x)
        xp = np if isinstance(x, np.ndarray) else jnp
        with own_settings(x64=True):
            padded = xp.pad(x, (skip, spare), mode="edge") if skip or spare else x
            split = NamedSharding(Mesh(np.array(self.devices), ("values",)), PartitionSpec("values"))
            heads = [jax.device_put(head, split) for head in self._heads(start - skip, len(padded))]
            return self._compute(jax.device_put(padded, split), *heads)[skip : skip + len(x)]

    def _heads(self, start: int, count: int) -> list[np.ndarray]:
        """Return the initial state of every stream for every device, computed on the host."""
        firsts = [start + at * (count // len(self.devices)) for at in range(len(self.devices))]
        return [
            np.concatenate([host.head(self._key, need.stream, first * need.bits // 512) for first in firsts])
            for need in self.sampler.words
        ]


@lru_cache(maxsize=64)
def sharded(sampler: ExactSampler, devices: tuple[Any, ...]) -> Any:
    """Return the jitted program (values, the head of every stream) -> reports, all split over the devices."""
    split = PartitionSpec("values")

    def local(x: Array, *heads: Array) -> RealArray:
        words = [chacha.words_from(head, len(x), need.bits) for head, need in zip(heads, sampler.words, strict=True)]
        return sampler.reports(x, *words)

    mesh = Mesh(np.array(devices), ("values",))
    specs = (split,) * (1 + len(sampler.words))
    return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False))


@lru_cache(maxsize=64)
def check_words(device: Any) -> None:
    """Check that a device's program for ChaCha20 makes OpenSSL's words.

    Raises:
        RuntimeError: it does not.
    """
    key, first, expected = bytes(range(32)), (1 << 32) - 100, np.empty(1 << 14, "<u4")
    host.fill(expected, key, BITS_STREAM, first)
    with own_settings():
        head = jax.device_put(host.head(key, BITS_STREAM, first), device)
        words = np.asarray(jax.jit(lambda head: chacha.words_from(head, len(expected), 32))(head))
    if not np.array_equal(words, expected):
        raise RuntimeError(f"device: {device} makes other ChaCha20 words than OpenSSL, so it is not used for releases")
