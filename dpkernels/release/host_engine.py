"""Exact reports on the CPU: OpenSSL's ChaCha20 words into the sampler's integer kernel."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import SingleDeviceSharding

from dpkernels.exact.sampler import ExactSampler
from dpkernels.random import host
from dpkernels.settings import own_settings

# Every stream's 64-byte blocks begin at values whose index is a multiple of this: 512 bits of 16-bit words.
BLOCK_VALUES = 32

_WORD = {bits: np.dtype(f"<u{bits // 8}") for bits in (16, 32, 64)}

# The most values that one compiled program is made for.
CHUNK = 1 << 17
_SMALLEST_CHUNK = 1 << 10

# Up to so many values NumPy is done before a compiled program would have started.
_FEW = 1 << 9

# Up to so many values the first calls are NumPy's: a program takes longer to compile than it would save in these.
_MORE, _CALLS = 1 << 13, 8


class HostRelease:
    """Exact reports on the CPU: by NumPy for few values, else by the sampler's compiled kernel; the same bits.

    Attributes:
        sampler: the exact sampler.
        key: 32 bytes.
    """

    def __init__(self, sampler: ExactSampler, key: bytes) -> None:
        self.sampler = sampler
        self.key = key

    def __call__(self, x: np.ndarray, start: int, out: np.ndarray) -> None:
        """Fill ``out`` with reports of ``x``, whose first value has index ``start`` in the whole release."""
        if len(x) <= _MORE and _is_far_from_subnormal(self.sampler, x.dtype) and not self._is_worth_compiling(x):
            self._by_numpy(x, start, out)
        else:
            self._by_xla(x, start, out)

    def _is_worth_compiling(self, x: np.ndarray) -> bool:
        return len(x) > _FEW and next(_calls(self.sampler, padded_length(len(x)), x.dtype)) >= _CALLS

    def _by_numpy(self, x: np.ndarray, start: int, out: np.ndarray) -> None:
        words = [np.empty(len(x) + start % BLOCK_VALUES, _WORD[need.bits]) for need in self.sampler.words]
        self._fill(words, start, len(x))
        with np.errstate(all="ignore"):
            out[:] = self.sampler.reports(x, *(stream[: len(x)] for stream in words))

    def _by_xla(self, x: np.ndarray, start: int, out: np.ndarray) -> None:
        """In a workspace that is given back only when all went well: no error leaves one that is half written."""
        program, idle = _compiled(self.sampler, padded_length(len(x)), x.dtype), _idle(*_kind(self.sampler, x))
        try:
            space = idle.pop()
        except IndexError:
            space = _Workspace(*_kind(self.sampler, x))
        space.x[: len(x)] = x
        space.x[len(x) :] = x[0]
        self._fill(space.words, start, len(x))
        with own_settings():
            space.reports = program(space.reports, *space.arguments())
            out[:] = np.asarray(space.reports)[: len(x)]
        idle.append(space)

    def _fill(self, buffers: list[np.ndarray], start: int, count: int) -> None:
        """One stream a buffer: the words of values ``start`` to ``start + count - 1``, then any."""
        skip, source = start % BLOCK_VALUES, host.Source(self.key)
        for need, buffer in zip(self.sampler.words, buffers, strict=True):
            source.fill(buffer[: skip + count], need.stream, (start - skip) * need.bits // 512)
            if skip:
                buffer[:count] = buffer[skip : skip + count]


@lru_cache(maxsize=1024)
def _calls(sampler: ExactSampler, length: int, dtype: np.dtype) -> itertools.count[int]:
    """Counts the calls for one program."""
    return itertools.count()


@cache
def _here() -> Any:
    """A CPU device that runs a program in the thread that calls it.

    JAX's own hands a program to another thread, and a half or more of it to others again: chunks have threads of their
    own, and to wake one takes as long as working on 20,000 values.
    """
    try:  # There is no public way to make a client.
        from jax._src.lib import xla_client

        with _environment("PJRT_NPROC", "1"):  # How many threads it has, and how many parts a program is cut into.
            client: Any = xla_client.make_cpu_client(asynchronous=False, num_devices=1)
        return client.devices()[0]
    except (AttributeError, ImportError, TypeError):  # Another version of JAX: the same reports, later.
        return jax.local_devices(backend="cpu")[0]


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """A variable of this process's environment, for as long as it is asked for."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


@lru_cache(maxsize=256)
def _is_far_from_subnormal(sampler: ExactSampler, dtype: np.dtype) -> bool:
    """Whether no number of a computation is so small that XLA might read it as 0, and NumPy not.

    Inputs are told apart, and reports are, by more than ``negligible``, and sums and products of those with numbers of
    at most 62 bits differ from 0 by more than 2^-64 of it or not at all.
    """
    return sampler.negligible >= float(np.finfo(dtype).smallest_normal) * 2.0**64


_compiling = threading.Lock()


def _compiled(sampler: ExactSampler, length: int, dtype: np.dtype) -> Callable[..., Array]:
    """The sampler's program for values of a length and type; threads that need one at the same time compile one."""
    with _compiling:
        return _program(sampler, length, dtype)


@lru_cache(maxsize=256)
def _program(sampler: ExactSampler, length: int, dtype: np.dtype) -> Callable[..., Array]:
    # Compiled ahead of its calls: a call of jax.jit looks at settings, devices and types each time.
    where = SingleDeviceSharding(_here())
    like = [jax.ShapeDtypeStruct((length,), kind, sharding=where) for kind in (dtype, dtype, *_word_types(sampler))]
    with own_settings(x64=True):
        return sampler.compiled.lower(*like).compile()


def _word_types(sampler: ExactSampler) -> tuple[np.dtype, ...]:
    return tuple(_WORD[need.bits] for need in sampler.words)


def _kind(sampler: ExactSampler, x: np.ndarray) -> tuple[tuple[np.dtype, ...], int, np.dtype]:
    """What distinguishes workspaces."""
    return _word_types(sampler), padded_length(len(x)), x.dtype


class _Workspace:
    """Buffers that one chunk at a time is worked on in: fresh memory would cost as much as the arithmetic.

    JAX's names for them are made once, and what a program is given is what NumPy wrote there last.
    """

    def __init__(self, words: tuple[np.dtype, ...], length: int, dtype: np.dtype) -> None:
        self.x = aligned(length, dtype)
        self.words = [aligned(length + BLOCK_VALUES, kind) for kind in words]
        with own_settings(x64=True), jax.default_device(_here()):
            self.reports = jnp.zeros(length, dtype)
        self._shared = self._handed_over()
        self._is_shared = all(
            array.unsafe_buffer_pointer() == buffer.ctypes.data
            for array, buffer in zip(self._shared, (self.x, *self.words), strict=True)
        )

    def arguments(self) -> list[Array]:
        """The buffers as JAX's arrays: of the same memory, or copies of what is in them now."""
        return self._shared if self._is_shared else self._handed_over()

    def _handed_over(self) -> list[Array]:
        buffers = (self.x, *(words[: len(self.x)] for words in self.words))
        with own_settings(x64=True):
            return [jax.device_put(buffer, _here(), may_alias=True) for buffer in buffers]


@lru_cache(maxsize=16)
def _idle(words: tuple[np.dtype, ...], length: int, dtype: np.dtype) -> list[_Workspace]:
    """Workspaces in nobody's hands, of one kind; ``pop`` and ``append`` are atomic."""
    return []


def aligned(length: int, dtype: np.dtype) -> np.ndarray:
    """Uninitialised memory at a multiple of 64 bytes, which JAX takes over without a copy."""
    raw = np.empty(length * dtype.itemsize + 64, np.uint8)
    first = -raw.__array_interface__["data"][0] % 64
    return raw[first : first + length * dtype.itemsize].view(dtype)


def padded_length(length: int, unit: int = 1) -> int:
    """A power of two up to a chunk, then a multiple of one, and of ``unit``: so few shapes are ever compiled."""
    padded = 1 << (length - 1).bit_length() if length <= CHUNK else -(-length // CHUNK) * CHUNK
    return -(-max(_SMALLEST_CHUNK, padded) // unit) * unit
